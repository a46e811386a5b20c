//! System calls that this machine refuses: an old kernel, a filter of system calls (seccomp), a security module.
//!
//! Whoever is refused a call knows an errno and not what is lost by it, and many calls stand behind each thing that can fail. So they are all asked
//! once, before the program is started, by a child process and with arguments that do nothing: what is refused is told by its name. Without some of them
//! the runner could not wait for the program, and the program is not started but become.

use std::io;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicUsize};

use outrider_sys::{child, raw};

/// What is lost without a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cost {
    /// The runner can't do without it, or neither can the dynamic linker with a library that is preloaded.
    Runner,
    /// Programs can't reach the service, or the service can't fetch.
    Service,
    /// It is done in another way, or is a part that can be left out.
    Part,
}
use Cost::{Part, Runner, Service};

/// No descriptor, no process, and no address.
const NONE: usize = usize::MAX;
const UNIX: usize = libc::AF_UNIX as usize;
const STREAM: usize = libc::SOCK_SEQPACKET as usize | libc::SOCK_CLOEXEC as usize;
/// MADV_POPULATE_READ, since Linux 5.14.
const POPULATE_READ: usize = 22;

type Call = (&'static str, Cost, libc::c_long, [usize; 5]);

/// What runner, service and hooks ask of the kernel, with arguments with which these calls do nothing. Where one of them serves several ends, with those
/// of each that something depends on. Left out are those whose refusal has a line of its own (`shm::lost`): cachestat, fadvise64, memfd_create, io_uring.
#[rustfmt::skip]
const CALLS: &[Call] = &[
    ("read", Runner, libc::SYS_read, [NONE, 0, 0, 0, 0]),
    ("pread64", Runner, libc::SYS_pread64, [NONE, 0, 0, 0, 0]),
    ("openat", Runner, libc::SYS_openat, [NONE, 0, 0, 0, 0]),
    ("close", Runner, libc::SYS_close, [NONE, 0, 0, 0, 0]),
    ("fstat", Runner, libc::SYS_fstat, [NONE, 0, 0, 0, 0]),
    ("newfstatat", Runner, libc::SYS_newfstatat, [NONE, 0, 0, 0, 0]),
    ("readlinkat", Service, libc::SYS_readlinkat, [NONE, 0, 0, 0, 0]),
    ("mmap", Runner, libc::SYS_mmap, [0, 0, 0, 0, NONE]),
    ("munmap", Runner, libc::SYS_munmap, [0, 0, 0, 0, 0]),
    ("mprotect", Runner, libc::SYS_mprotect, [0, 0, 0, 0, 0]),
    ("fcntl", Runner, libc::SYS_fcntl, [NONE, libc::F_GETFL as usize, 0, 0, 0]),
    ("rt_sigaction", Runner, libc::SYS_rt_sigaction, [0, 0, 0, 8, 0]),
    ("rt_sigprocmask", Runner, libc::SYS_rt_sigprocmask, [0, 0, 0, 8, 0]),
    ("wait4", Runner, libc::SYS_wait4, [NONE, 0, libc::WNOHANG as usize, 0, 0]),
    ("waitid", Runner, libc::SYS_waitid, [NONE, 0, 0, 0, 0]),
    ("ppoll", Runner, libc::SYS_ppoll, [0, NONE, 0, 0, 0]),
    ("kill", Runner, libc::SYS_kill, [0, NONE, 0, 0, 0]),
    ("getpid", Runner, libc::SYS_getpid, [0; 5]),
    ("getppid", Runner, libc::SYS_getppid, [0; 5]),
    ("futex", Runner, libc::SYS_futex, [0, libc::FUTEX_WAKE as usize, 0, 0, 0]),
    ("prctl", Part, libc::SYS_prctl, [libc::PR_GET_TIMERSLACK as usize, 0, 0, 0, 0]),
    ("socket", Service, libc::SYS_socket, [UNIX, STREAM, 0, 0, 0]),
    ("bind", Service, libc::SYS_bind, [NONE, 0, 0, 0, 0]),
    ("listen", Service, libc::SYS_listen, [NONE, 0, 0, 0, 0]),
    ("accept4", Service, libc::SYS_accept4, [NONE, 0, 0, 0, 0]),
    ("connect", Service, libc::SYS_connect, [NONE, 0, 0, 0, 0]),
    ("getsockname", Service, libc::SYS_getsockname, [NONE, 0, 0, 0, 0]),
    ("getsockopt", Service, libc::SYS_getsockopt, [NONE, 0, 0, 0, 0]),
    ("sendmsg", Service, libc::SYS_sendmsg, [NONE, 0, 0, 0, 0]),
    ("recvmsg", Service, libc::SYS_recvmsg, [NONE, 0, 0, 0, 0]),
    ("getrandom", Service, libc::SYS_getrandom, [0, 0, 0, 0, 0]),
    ("ftruncate", Service, libc::SYS_ftruncate, [NONE, 0, 0, 0, 0]),
    ("prlimit64", Service, libc::SYS_prlimit64, [0, NONE, 0, 0, 0]),
    ("lseek", Service, libc::SYS_lseek, [NONE, 0, 0, 0, 0]),
    ("madvise", Service, libc::SYS_madvise, [0, 0, libc::MADV_WIPEONFORK as usize, 0, 0]),
    ("madvise", Service, libc::SYS_madvise, [0, 0, libc::MADV_DONTFORK as usize, 0, 0]),
    ("madvise", Part, libc::SYS_madvise, [0, 0, POPULATE_READ, 0, 0]),
    ("getuid", Service, libc::SYS_getuid, [0; 5]),
    ("geteuid", Service, libc::SYS_geteuid, [0; 5]),
    ("getgid", Service, libc::SYS_getgid, [0; 5]),
    ("getegid", Service, libc::SYS_getegid, [0; 5]),
    #[cfg(target_arch = "x86_64")]
    ("readlink", Part, libc::SYS_readlink, [0; 5]),
    ("statx", Part, libc::SYS_statx, [NONE, 0, 0, 0, 0]),
    ("fstatfs", Part, libc::SYS_fstatfs, [NONE, 0, 0, 0, 0]),
    ("statfs", Part, libc::SYS_statfs, [0; 5]),
    ("getdents64", Part, libc::SYS_getdents64, [NONE, 0, 0, 0, 0]),
    ("getcwd", Part, libc::SYS_getcwd, [0; 5]),
    ("chdir", Part, libc::SYS_chdir, [0; 5]),
    ("faccessat", Part, libc::SYS_faccessat, [NONE, 0, 0, 0, 0]),
    ("getxattr", Part, libc::SYS_getxattr, [0; 5]),
    ("readahead", Part, libc::SYS_readahead, [NONE, 0, 0, 0, 0]),
    ("mincore", Part, libc::SYS_mincore, [1, 0, 0, 0, 0]),
    ("fallocate", Part, libc::SYS_fallocate, [NONE, 0, 0, 0, 0]),
    ("close_range", Part, libc::SYS_close_range, [2, 1, 0, 0, 0]),
    ("dup3", Part, libc::SYS_dup3, [NONE, NONE, 0, 0, 0]),
    ("ioctl", Part, libc::SYS_ioctl, [NONE, 0, 0, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    ("poll", Part, libc::SYS_poll, [0, NONE, 0, 0, 0]),
    ("setitimer", Part, libc::SYS_setitimer, [NONE, 0, 0, 0, 0]),
    ("getrusage", Part, libc::SYS_getrusage, [NONE - 1, 0, 0, 0, 0]),
    ("clock_gettime", Part, libc::SYS_clock_gettime, [0; 5]),
    ("ioprio_set", Part, libc::SYS_ioprio_set, [NONE, 0, 0, 0, 0]),
    ("sched_yield", Part, libc::SYS_sched_yield, [0; 5]),
    ("sched_getscheduler", Part, libc::SYS_sched_getscheduler, [NONE, 0, 0, 0, 0]),
    ("sched_getaffinity", Part, libc::SYS_sched_getaffinity, [0; 5]),
    ("getsid", Part, libc::SYS_getsid, [0; 5]),
    ("setsid", Part, libc::SYS_setsid, [0; 5]),
    ("rt_sigpending", Part, libc::SYS_rt_sigpending, [0; 5]),
    ("rt_sigqueueinfo", Part, libc::SYS_rt_sigqueueinfo, [0; 5]),
    ("unshare", Part, libc::SYS_unshare, [0; 5]),
    ("pidfd_open", Part, libc::SYS_pidfd_open, [NONE, 0, 0, 0, 0]),
    ("eventfd2", Part, libc::SYS_eventfd2, [0, NONE, 0, 0, 0]),
    ("epoll_create1", Part, libc::SYS_epoll_create1, [NONE, 0, 0, 0, 0]),
    ("epoll_ctl", Part, libc::SYS_epoll_ctl, [NONE, 0, 0, 0, 0]),
    ("epoll_pwait", Part, libc::SYS_epoll_pwait, [NONE, 0, 0, 0, 0]),
    ("inotify_init1", Part, libc::SYS_inotify_init1, [NONE, 0, 0, 0, 0]),
    ("inotify_add_watch", Part, libc::SYS_inotify_add_watch, [NONE, 0, 0, 0, 0]),
    ("inotify_rm_watch", Part, libc::SYS_inotify_rm_watch, [NONE, 0, 0, 0, 0]),
    // Threads: where the C library is told that it isn't there, it uses clone(2).
    ("clone3", Part, libc::SYS_clone3, [0; 5]),
];

/// Bytes of stack for making them.
const STACK: usize = 16 << 10;

/// What the child was answered, and how many calls it has begun.
static ANSWERS: [AtomicI32; CALLS.len()] = [const { AtomicI32::new(0) }; CALLS.len()];
static BEGUN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn make_all(_: *mut libc::c_void) -> libc::c_int {
    for (i, (_, _, number, [a, b, c, d, e])) in CALLS.iter().enumerate() {
        BEGUN.store(i, Relaxed);
        // SAFETY: arguments with which these calls do nothing, or nothing to another process than this one.
        let answer = unsafe { raw::syscall6(*number, *a, *b, *c, *d, *e, 0) };
        if let Some(slot) = ANSWERS.get(i) {
            slot.store(answer as i32, Relaxed);
        }
    }
    BEGUN.store(CALLS.len(), SeqCst);
    0
}

/// What was found.
#[derive(Debug, Default)]
pub struct Refused {
    /// Why this process has to become the program, if it has.
    pub obstacle: Option<String>,
    /// What is lost, a line each.
    pub notes: Vec<String>,
}

/// Asks. `filtered` says that filters of system calls are in force: then what is done otherwise is told, too.
pub fn ask(filtered: bool) -> Refused {
    // SAFETY: this process has one thread. No signal tells of the child's end: one that is blocked would wait for the program.
    let child = unsafe { child::vfork(make_all, std::ptr::null_mut(), STACK, 0) };
    if child < 0 {
        // Where there can be no child for another reason, such as a scheduling policy or a limit, nothing can be asked: who starts the program sees why.
        let error = io::Error::last_os_error();
        let refused = error.raw_os_error().is_some_and(|e| is_refusal(&e));
        return Refused {
            obstacle: refused.then(|| format!("clone is refused ({})", text(&error))),
            notes: Vec::new(),
        };
    }
    // SAFETY: our own child, which has ended; no status is wanted: how far it came tells.
    unsafe {
        if libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) != child {
            let mut info = std::mem::zeroed();
            let all = libc::WEXITED | libc::__WALL;
            libc::waitid(libc::P_PID, child as libc::id_t, &mut info, all);
        }
    }
    if let Some((name, ..)) = CALLS.get(BEGUN.load(SeqCst)) {
        return Refused {
            obstacle: Some(format!(
                "a filter of system calls (seccomp) is in force that kills for {name}"
            )),
            notes: Vec::new(),
        };
    }
    let answers = ANSWERS.iter().map(|a| a.load(Relaxed));
    told(answers, filtered)
}

fn text(error: &io::Error) -> String {
    let all = error.to_string();
    let end = all.find(" (os error").unwrap_or(all.len());
    all[..end].to_owned()
}

fn is_refusal(errno: &i32) -> bool {
    [libc::ENOSYS, libc::EPERM, libc::EACCES].contains(errno)
}

/// What the answers say, in the order of [`CALLS`].
fn told(answers: impl Iterator<Item = i32>, filtered: bool) -> Refused {
    let refused: Vec<(&str, Cost, i32)> = CALLS
        .iter()
        .zip(answers)
        .map(|((name, cost, ..), answer)| (*name, *cost, -answer))
        .filter(|(.., errno)| is_refusal(errno))
        .collect();
    let of = |wanted: Cost| {
        let mut names: Vec<String> = refused
            .iter()
            .filter(|(_, cost, _)| *cost == wanted)
            .map(|(name, _, errno)| {
                let error = io::Error::from_raw_os_error(*errno);
                format!("{name} ({})", text(&error))
            })
            .collect();
        names.dedup();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let service = of(Cost::Service)
        .map(|names| format!("system calls: refused here: {names}; nothing could be prefetched"));
    let part = of(Cost::Part).filter(|_| filtered).map(|names| {
        format!(
            "system calls: refused here: {names}; what needs them was done in other ways or not at all"
        )
    });
    Refused {
        obstacle: of(Cost::Runner).map(|names| format!("system calls are refused here: {names}")),
        notes: service.into_iter().chain(part).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that every kernel has is refused where no filter is in force.
    #[test]
    fn nothing_is_refused_here() {
        if outrider_sys::seccomp::filters() == Some(0) {
            let found = ask(false);
            assert!(
                found.obstacle.is_none() && found.notes.is_empty(),
                "{found:?}"
            );
        }
    }

    #[test]
    fn what_is_refused_is_named() {
        let with = |name: &str, errno: i32, filtered: bool| {
            let answers = CALLS
                .iter()
                .map(|(n, ..)| if *n == name { -errno } else { -9 });
            told(answers, filtered)
        };
        let found = with("wait4", libc::ENOSYS, false);
        let obstacle = found.obstacle.unwrap();
        assert!(
            obstacle.ends_with("wait4 (Function not implemented)"),
            "{obstacle}"
        );
        let found = with("accept4", libc::EPERM, false);
        assert!(found.obstacle.is_none());
        assert!(found.notes[0].contains("accept4 (Operation not permitted); nothing"));
        assert!(with("statx", libc::EPERM, false).notes.is_empty());
        assert_eq!(with("statx", libc::EPERM, true).notes.len(), 1);
        // One that is asked of in several ways is named once.
        let notes = with("madvise", libc::EPERM, false).notes;
        assert_eq!(notes[0].matches("madvise").count(), 1, "{notes:?}");
        assert!(with("statx", libc::EFAULT, true).notes.is_empty());
    }
}
