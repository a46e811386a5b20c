//! Filters of system calls (seccomp) under which `outrider run` itself is started, as in a container, a service or a sandbox. Some refuse calls, which costs
//! something or nothing; others kill whoever makes them, and then the program must not pay for calls that are ours.
//!
//! So the first question that is asked, before the C library has started, is whether there is a filter: in /proc/self/status, with the calls by which
//! the dynamic linker reads libraries. Which calls a filter kills for nobody is told, but a child process can try, as long as processes may be made. Whether
//! they may is inferred: from a parent that is under as many filters and has made this process, or from who has installed the filter. Where nothing
//! speaks for it, nothing is tried, and this process becomes the program at once.

use core::mem::MaybeUninit;
use core::ptr::null;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use outrider_sys::cache::SYS_CACHESTAT;
use outrider_sys::raw;
use outrider_sys::seccomp::UNKNOWN;

use crate::plain::{Action, Text, after, byte, call, equals, length, number, variable};

/// A system call with arguments with which it does nothing, or nothing to any other process than the one that makes it.
struct Call {
    name: &'static str,
    number: libc::c_long,
    arguments: [usize; 4],
    /// Without it a program can't be started as a child and waited for, or the dynamic linker can't load our library.
    is_vital: bool,
}

const fn calls(name: &'static str, number: libc::c_long, arguments: [usize; 4]) -> Call {
    Call {
        name,
        number,
        arguments,
        is_vital: false,
    }
}

const fn vital(name: &'static str, number: libc::c_long, arguments: [usize; 4]) -> Call {
    Call {
        is_vital: true,
        ..calls(name, number, arguments)
    }
}

/// No descriptor, process, signal, flag or timer.
const NONE: usize = usize::MAX;
const AT: usize = libc::AT_FDCWD as usize;
/// Bytes of the kernel's set of signals.
const SET: usize = 8;

/// What runner, service and hooks call. The first ones are those without which the child that tries them is not left without a trace.
#[rustfmt::skip]
static CALLS: &[Call] = &[
    vital("wait4", libc::SYS_wait4, [NONE, 0, libc::WNOHANG as usize, 0]),
    vital("waitid", libc::SYS_waitid, [libc::P_PID as usize, 0, 0, libc::WEXITED as usize]),
    calls("rt_sigtimedwait", libc::SYS_rt_sigtimedwait, [0, 0, 0, 0]),
    calls("write", libc::SYS_write, [NONE, 0, 0, 0]),
    // What the C library begins with, and the command.
    calls("brk", libc::SYS_brk, [0; 4]),
    #[cfg(target_arch = "x86_64")]
    vital("arch_prctl", libc::SYS_arch_prctl, [0; 4]),
    calls("set_tid_address", libc::SYS_set_tid_address, [0; 4]),
    calls("set_robust_list", libc::SYS_set_robust_list, [0; 4]),
    calls("rseq", libc::SYS_rseq, [0; 4]),
    calls("prlimit64", libc::SYS_prlimit64, [0, NONE, 0, 0]),
    calls("readlinkat", libc::SYS_readlinkat, [NONE, 0, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    calls("readlink", libc::SYS_readlink, [0; 4]),
    calls("getrandom", libc::SYS_getrandom, [0; 4]),
    vital("mprotect", libc::SYS_mprotect, [1, 0, 0, 0]),
    vital("mmap", libc::SYS_mmap, [0, 0, 0, 0]),
    calls("mremap", libc::SYS_mremap, [1, 0, 0, 0]),
    calls("munmap", libc::SYS_munmap, [1, 0, 0, 0]),
    calls("madvise", libc::SYS_madvise, [0, 0, libc::MADV_WIPEONFORK as usize, 0]),
    calls("madvise", libc::SYS_madvise, [0, 0, libc::MADV_DONTFORK as usize, 0]),
    calls("madvise", libc::SYS_madvise, [0, 0, libc::MADV_WILLNEED as usize, 0]),
    calls("mincore", libc::SYS_mincore, [1, 0, 0, 0]),
    calls("membarrier", libc::SYS_membarrier, [0; 4]),
    calls("uname", libc::SYS_uname, [0; 4]),
    calls("sysinfo", libc::SYS_sysinfo, [0; 4]),
    calls("sigaltstack", libc::SYS_sigaltstack, [0; 4]),
    // Files.
    vital("read", libc::SYS_read, [NONE, 0, 0, 0]),
    calls("readv", libc::SYS_readv, [NONE, 0, 0, 0]),
    calls("writev", libc::SYS_writev, [NONE, 0, 0, 0]),
    calls("pread64", libc::SYS_pread64, [NONE, 0, 0, 0]),
    calls("pwrite64", libc::SYS_pwrite64, [NONE, 0, 0, 0]),
    vital("close", libc::SYS_close, [NONE, 0, 0, 0]),
    calls("close_range", libc::SYS_close_range, [2, 1, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    calls("open", libc::SYS_open, [0; 4]),
    vital("openat", libc::SYS_openat, [AT, 0, 0, 0]),
    calls("openat", libc::SYS_openat, [AT, 0, (libc::O_WRONLY | libc::O_CREAT) as usize, 0]),
    calls("openat2", libc::SYS_openat2, [NONE, 0, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    calls("access", libc::SYS_access, [0; 4]),
    calls("faccessat", libc::SYS_faccessat, [AT, 0, 0, 0]),
    calls("faccessat2", libc::SYS_faccessat2, [AT, 0, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    calls("stat", libc::SYS_stat, [0; 4]),
    calls("fstat", libc::SYS_fstat, [NONE, 0, 0, 0]),
    vital("newfstatat", libc::SYS_newfstatat, [NONE, 0, 0, 0]),
    calls("statx", libc::SYS_statx, [NONE, 0, 0, 0]),
    calls("fstatfs", libc::SYS_fstatfs, [NONE, 0, 0, 0]),
    calls("statfs", libc::SYS_statfs, [0; 4]),
    calls("getxattr", libc::SYS_getxattr, [0; 4]),
    calls("lseek", libc::SYS_lseek, [NONE, 0, 0, 0]),
    calls("ftruncate", libc::SYS_ftruncate, [NONE, 0, 0, 0]),
    calls("fallocate", libc::SYS_fallocate, [NONE, 0, 0, 0]),
    calls("fadvise64", libc::SYS_fadvise64, [NONE, 0, 0, 0]),
    calls("readahead", libc::SYS_readahead, [NONE, 0, 0, 0]),
    calls("cachestat", SYS_CACHESTAT, [NONE, 0, 0, 0]),
    calls("memfd_create", libc::SYS_memfd_create, [0; 4]),
    calls("getdents64", libc::SYS_getdents64, [NONE, 0, 0, 0]),
    calls("getcwd", libc::SYS_getcwd, [0; 4]),
    calls("chdir", libc::SYS_chdir, [0; 4]),
    calls("fcntl", libc::SYS_fcntl, [NONE, libc::F_GETFL as usize, 0, 0]),
    calls("fcntl", libc::SYS_fcntl, [NONE, libc::F_GETFD as usize, 0, 0]),
    calls("fcntl", libc::SYS_fcntl, [NONE, libc::F_DUPFD_CLOEXEC as usize, 0, 0]),
    calls("fcntl", libc::SYS_fcntl, [NONE, libc::F_OFD_GETLK as usize, 0, 0]),
    calls("fcntl", libc::SYS_fcntl, [NONE, crate::kept::F_GETOWN_EX as usize, 0, 0]),
    calls("fcntl", libc::SYS_fcntl, [NONE, libc::F_ADD_SEALS as usize, 0, 0]),
    calls("fcntl", libc::SYS_fcntl, [NONE, libc::F_GET_SEALS as usize, 0, 0]),
    calls("ioctl", libc::SYS_ioctl, [NONE, libc::TCGETS as usize, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    calls("dup2", libc::SYS_dup2, [NONE, NONE, 0, 0]),
    calls("dup3", libc::SYS_dup3, [NONE, NONE, 0, 0]),
    calls("pipe2", libc::SYS_pipe2, [0; 4]),
    calls("eventfd2", libc::SYS_eventfd2, [0, NONE, 0, 0]),
    // Waiting, and time.
    vital("ppoll", libc::SYS_ppoll, [0, NONE, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    calls("poll", libc::SYS_poll, [0; 4]),
    calls("epoll_create1", libc::SYS_epoll_create1, [NONE, 0, 0, 0]),
    calls("epoll_ctl", libc::SYS_epoll_ctl, [NONE, 0, NONE, 0]),
    calls("epoll_pwait", libc::SYS_epoll_pwait, [NONE, 0, 0, 0]),
    calls("inotify_init1", libc::SYS_inotify_init1, [NONE, 0, 0, 0]),
    calls("inotify_add_watch", libc::SYS_inotify_add_watch, [NONE, 0, 0, 0]),
    calls("inotify_rm_watch", libc::SYS_inotify_rm_watch, [NONE, 0, 0, 0]),
    calls("futex", libc::SYS_futex, [0, libc::FUTEX_WAKE as usize, 0, 0]),
    calls("futex", libc::SYS_futex, [0, libc::FUTEX_WAIT as usize, 0, 0]),
    calls("clock_gettime", libc::SYS_clock_gettime, [NONE, 0, 0, 0]),
    calls("clock_nanosleep", libc::SYS_clock_nanosleep, [NONE, 0, 0, 0]),
    calls("nanosleep", libc::SYS_nanosleep, [0; 4]),
    calls("setitimer", libc::SYS_setitimer, [NONE, 0, 0, 0]),
    // Sockets.
    calls("socket", libc::SYS_socket, [libc::AF_UNIX as usize, NONE, 0, 0]),
    calls("bind", libc::SYS_bind, [NONE, 0, 0, 0]),
    calls("listen", libc::SYS_listen, [NONE, 0, 0, 0]),
    calls("accept4", libc::SYS_accept4, [NONE, 0, 0, 0]),
    calls("connect", libc::SYS_connect, [NONE, 0, 0, 0]),
    calls("getsockname", libc::SYS_getsockname, [NONE, 0, 0, 0]),
    calls("getsockopt", libc::SYS_getsockopt, [NONE, 0, 0, 0]),
    calls("setsockopt", libc::SYS_setsockopt, [NONE, 0, 0, 0]),
    calls("sendmsg", libc::SYS_sendmsg, [NONE, 0, 0, 0]),
    calls("recvmsg", libc::SYS_recvmsg, [NONE, 0, 0, 0]),
    calls("sendto", libc::SYS_sendto, [NONE, 0, 0, 0]),
    calls("recvfrom", libc::SYS_recvfrom, [NONE, 0, 0, 0]),
    // Processes, and what they have.
    vital("getpid", libc::SYS_getpid, [0; 4]),
    vital("getppid", libc::SYS_getppid, [0; 4]),
    calls("gettid", libc::SYS_gettid, [0; 4]),
    calls("getsid", libc::SYS_getsid, [0; 4]),
    calls("setsid", libc::SYS_setsid, [0; 4]),
    calls("getuid", libc::SYS_getuid, [0; 4]),
    calls("geteuid", libc::SYS_geteuid, [0; 4]),
    calls("getgid", libc::SYS_getgid, [0; 4]),
    calls("getegid", libc::SYS_getegid, [0; 4]),
    calls("getresuid", libc::SYS_getresuid, [0; 4]),
    calls("getresgid", libc::SYS_getresgid, [0; 4]),
    calls("getgroups", libc::SYS_getgroups, [0; 4]),
    calls("capget", libc::SYS_capget, [0; 4]),
    calls("getrusage", libc::SYS_getrusage, [libc::RUSAGE_THREAD as usize, 0, 0, 0]),
    calls("prctl", libc::SYS_prctl, [libc::PR_GET_CHILD_SUBREAPER as usize, 0, 0, 0]),
    calls("prctl", libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, NONE, 0, 0]),
    calls("prctl", libc::SYS_prctl, [libc::PR_GET_TIMERSLACK as usize, 0, 0, 0]),
    calls("prctl", libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, 0, 0, 0]),
    calls("prctl", libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, NONE, 0, 0]),
    calls("prctl", libc::SYS_prctl, [libc::PR_SET_NAME as usize, 0, 0, 0]),
    calls("unshare", libc::SYS_unshare, [0; 4]),
    calls("setns", libc::SYS_setns, [NONE, 0, 0, 0]),
    calls("ioprio_get", libc::SYS_ioprio_get, [NONE, 0, 0, 0]),
    calls("ioprio_set", libc::SYS_ioprio_set, [NONE, 0, 0, 0]),
    calls("getpriority", libc::SYS_getpriority, [NONE, 0, 0, 0]),
    calls("setpriority", libc::SYS_setpriority, [NONE, 0, 0, 0]),
    calls("sched_yield", libc::SYS_sched_yield, [0; 4]),
    calls("sched_getscheduler", libc::SYS_sched_getscheduler, [NONE, 0, 0, 0]),
    calls("sched_setscheduler", libc::SYS_sched_setscheduler, [NONE, 0, 0, 0]),
    calls("sched_getattr", libc::SYS_sched_getattr, [NONE, 0, 0, 0]),
    calls("sched_setattr", libc::SYS_sched_setattr, [NONE, 0, 0, 0]),
    calls("sched_getaffinity", libc::SYS_sched_getaffinity, [NONE, 0, 0, 0]),
    calls("kill", libc::SYS_kill, [i32::MAX as usize, 0, 0, 0]),
    calls("tgkill", libc::SYS_tgkill, [NONE, NONE, 0, 0]),
    calls("pidfd_open", libc::SYS_pidfd_open, [NONE, 0, 0, 0]),
    calls("rt_sigpending", libc::SYS_rt_sigpending, [0; 4]),
    calls("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, [0; 4]),
    vital("rt_sigprocmask", libc::SYS_rt_sigprocmask, [0, 0, 0, SET]),
    vital("rt_sigaction", libc::SYS_rt_sigaction, [libc::SIGCHLD as usize, 0, 0, SET]),
    vital("clone", libc::SYS_clone, [libc::CLONE_SIGHAND as usize, 0, 0, 0]),
    // As a thread is made, but for the flag that none can be without.
    calls("clone", libc::SYS_clone, [THREAD as usize, 0, 0, 0]),
    calls("clone3", libc::SYS_clone3, [0; 4]),
    // These only graphs make.
    calls("pidfd_getfd", libc::SYS_pidfd_getfd, [NONE, NONE, 0, 0]),
    calls("io_uring_setup", libc::SYS_io_uring_setup, [0; 4]),
    calls("io_uring_enter", libc::SYS_io_uring_enter, [NONE, 0, 0, 0]),
    calls("io_uring_register", libc::SYS_io_uring_register, [NONE, NONE, 0, 0]),
];
/// The last ones, which only graphs make.
const OF_GRAPHS: usize = 4;
/// Places of the first ones.
const WAIT4: usize = 0;
const WAITID: usize = 1;
const TAKE_SIGNAL: usize = 2;
const WRITE: usize = 3;
/// What comes after the others: to return from a signal's handler.
const RETURN: usize = usize::MAX - 1;
/// Nothing has killed.
const SURVIVED: usize = usize::MAX;
const THREAD: libc::c_int = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// What the child is to try, and which it has begun.
static FIRST: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static BEGUN: AtomicUsize = AtomicUsize::new(0);
/// The one that it has begun was refused, and is vital.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// What [`look`] has found: see [`reason`] and [`is_cleared`].
static FOUND: AtomicU32 = AtomicU32::new(NOTHING_FOUND);
const NOTHING_FOUND: u32 = 0;
/// None of our calls kills.
const CLEARED: u32 = 1;
/// OUTRIDER=off.
const OFF: u32 = 2;
/// Whether a process can be made without dying of it isn't known.
const UNCERTAIN: u32 = 3;
/// No process can be made.
const ALONE: u32 = 4;
/// The call that the child has [`BEGUN`] kills, or is refused.
const KILLS: u32 = 5;
const REFUSES: u32 = 6;

const MAY_KILL: &str = "a filter of system calls (seccomp) is in force that may kill whoever makes a process (OUTRIDER=on says that it doesn't)";
const BEGINNING: &str = "a filter of system calls (seccomp) is in force that ";
const CONSEQUENCE: &str = ": the program runs without Outrider";

/// Why this process is to become the program, in pieces, if it is; the first is empty where that need not be told.
fn pieces() -> Option<[&'static str; 3]> {
    let begun = BEGUN.load(Relaxed);
    let name = match begun {
        RETURN => "rt_sigreturn",
        i => CALLS.get(i).map_or("", |c| c.name),
    };
    match FOUND.load(Relaxed) {
        OFF => Some([""; 3]),
        UNCERTAIN => Some([MAY_KILL, "", ""]),
        ALONE => Some([BEGINNING, "lets no process be made", ""]),
        KILLS => Some([BEGINNING, "kills for ", name]),
        REFUSES => Some([BEGINNING, "refuses ", name]),
        _ => None,
    }
}

/// Why this process is to become the program, for `main`, which has to do that where it couldn't be done here; empty where that was wanted.
pub fn reason() -> Option<String> {
    Some(pieces()?.concat())
}

/// Whether it is known that the filters in force kill for none of our calls.
pub fn is_cleared() -> bool {
    FOUND.load(Relaxed) == CLEARED
}

/// What is of interest of /proc/PID/status.
pub struct Status {
    /// The kernel's SECCOMP_MODE_*; [`UNKNOWN`] where it has none.
    mode: u32,
    /// [`UNKNOWN`] before Linux 5.9.
    filters: u32,
    /// PR_SET_NO_NEW_PRIVS was not called, as whoever is not privileged must before a filter.
    is_free: bool,
    pid: usize,
    parent: usize,
    /// In the innermost process namespace.
    own_pid: usize,
    /// SIGCHLD is blocked, and waits already.
    child_blocked: bool,
    child_waits: bool,
    /// There are no descriptors from this number on.
    pub descriptors: usize,
}

/// Bytes that are read at once, mostly all there are, and most of a line that count.
const CHUNK: usize = 4096;
const LINE: usize = 64;

impl Status {
    const UNKNOWN: Status = Status {
        mode: UNKNOWN,
        filters: UNKNOWN,
        is_free: false,
        pid: 0,
        parent: 0,
        own_pid: 0,
        child_blocked: false,
        child_waits: false,
        descriptors: 0,
    };

    unsafe fn of(path: Text) -> Option<Status> {
        let mut status = Status::UNKNOWN;
        let mut chunk = MaybeUninit::<[u8; CHUNK]>::uninit();
        let chunk = chunk.as_mut_ptr().cast::<u8>();
        let mut line = MaybeUninit::<[u8; LINE]>::uninit();
        let line = line.as_mut_ptr().cast::<u8>();
        let mut len = 0;
        // SAFETY: the kernel writes at most so many bytes; of a line LINE at most are kept, the last of them a zero.
        unsafe {
            let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
            let fd = call(libc::SYS_openat, AT, path as usize, flags, 0);
            if fd < 0 {
                return None;
            }
            loop {
                let n = call(libc::SYS_read, fd as usize, chunk as usize, CHUNK, 0);
                if n <= 0 {
                    break;
                }
                for i in 0..n as usize {
                    let b = byte(chunk, i);
                    if b != b'\n' {
                        if len < LINE - 1 {
                            line.add(len).write_volatile(b);
                            len += 1;
                        }
                        continue;
                    }
                    line.add(len).write_volatile(0);
                    status.take(line, len);
                    len = 0;
                }
            }
            raw::close(fd as i32);
        }
        Some(status)
    }

    unsafe fn take(&mut self, line: Text, len: usize) {
        // SAFETY: as promised.
        unsafe {
            let value = |name: &[u8]| after(line, name).and_then(|digits| number(digits));
            let has_child = |name: &[u8]| after(line, name).is_some_and(|set| holds_child(set));
            if let Some(n) = value(b"Seccomp:\t") {
                self.mode = n as u32;
            } else if let Some(n) = value(b"Seccomp_filters:\t") {
                self.filters = n as u32;
            } else if let Some(n) = value(b"NoNewPrivs:\t") {
                self.is_free = n == 0;
            } else if let Some(n) = value(b"FDSize:\t") {
                self.descriptors = n;
            } else if let Some(n) = value(b"PPid:\t") {
                self.parent = n;
            } else if let Some(n) = value(b"Pid:\t") {
                self.pid = n;
            } else if after(line, b"NSpid:\t").is_some() {
                let last = (0..len).rfind(|i| byte(line, *i) == b'\t').unwrap_or(0);
                self.own_pid = number(line.add(last + 1)).unwrap_or(0);
            } else if has_child(b"SigBlk:\t") {
                self.child_blocked = true;
            } else if has_child(b"SigPnd:\t") || has_child(b"ShdPnd:\t") {
                self.child_waits = true;
            }
        }
    }

    /// Whether something speaks for it that processes may be made under the filter in force.
    unsafe fn may_fork(&self, environment: *const Text) -> bool {
        // SAFETY: as promised; the path has room for the longest number.
        unsafe {
            // A container's first process, one that was put into a container, or a filter that needed privileges: it was installed by
            // whoever runs containers or services, whose filters let processes be made, and refuse what they don't allow.
            if self.is_free || self.own_pid == 1 || self.parent == 0 {
                return true;
            }
            // A service of systemd's.
            let executed = variable(environment, b"SYSTEMD_EXEC_PID=");
            if executed.is_some_and(|pid| number(pid) == Some(self.pid))
                || self.parent == 1 && variable(environment, b"INVOCATION_ID=").is_some()
            {
                return true;
            }
            // Filters are inherited: a parent that is under as many has made this process under the same ones.
            let mut path = MaybeUninit::<[u8; 32]>::uninit();
            let path = path.as_mut_ptr().cast::<u8>();
            let mut at = path;
            let mut put = |b: u8| {
                at.write_volatile(b);
                at = at.add(1);
            };
            b"/proc/".iter().for_each(|b| put(*b));
            let mut unit = 1;
            while self.parent / unit > 9 {
                unit *= 10;
            }
            while unit > 0 {
                put(b'0' + (self.parent / unit % 10) as u8);
                unit /= 10;
            }
            b"/status\0".iter().for_each(|b| put(*b));
            let known = self.filters != UNKNOWN && self.filters != 0;
            known && Status::of(path).is_some_and(|parent| parent.filters == self.filters)
        }
    }
}

/// Whether a set of signals, as the kernel prints it, has SIGCHLD.
unsafe fn holds_child(set: Text) -> bool {
    const DIGIT: usize = (libc::SIGCHLD as usize - 1) / 4;
    // SAFETY: a text.
    unsafe {
        let n = length(set);
        if n <= DIGIT {
            return false;
        }
        let digit = match byte(set, n - 1 - DIGIT) {
            d @ b'0'..=b'9' => d - b'0',
            d => d.wrapping_sub(b'a').wrapping_add(10),
        };
        digit >> ((libc::SIGCHLD - 1) % 4) & 1 != 0
    }
}

/// A command line of `outrider run`.
struct Line {
    /// The program and its arguments.
    command: *const Text,
    /// A report or an explanation is wanted, and in which file; null for standard error.
    reports: bool,
    file: Text,
    mode: Text,
    engine: Text,
    plugins: bool,
}

impl Line {
    /// `None` where it isn't one, or has what only `main` understands.
    unsafe fn of(count: usize, arguments: *const Text) -> Option<Line> {
        let mut line = Line {
            command: arguments,
            reports: false,
            file: null(),
            mode: c"predict+opt".as_ptr().cast(),
            engine: c"auto".as_ptr().cast(),
            plugins: false,
        };
        // SAFETY: so many arguments are there.
        unsafe {
            let argument = |i: usize| (i < count).then(|| arguments.add(i).read_volatile());
            if !equals(argument(1)?, b"run") {
                return None;
            }
            let mut at = 2;
            loop {
                let here = argument(at)?;
                at += 1;
                if equals(here, b"--") {
                    break;
                }
                if byte(here, 0) != b'-' {
                    at -= 1;
                    break;
                }
                // The value of a flag, behind it or in the next argument.
                let mut value = |name: &[u8]| {
                    let rest = after(here, name)?;
                    match byte(rest, 0) {
                        b'=' => Some(rest.add(1)),
                        0 => {
                            at += 1;
                            argument(at - 1)
                        }
                        _ => None,
                    }
                };
                if equals(here, b"--report") {
                    line.reports = true;
                } else if let Some(file) = after(here, b"--report=") {
                    (line.reports, line.file) = (true, file);
                } else if let Some(mode) = value(b"--mode") {
                    let known = [
                        &b"os-only"[..],
                        b"app-only",
                        b"predict",
                        b"predict+opt",
                        b"fetchall+opt",
                    ];
                    known.iter().any(|word| equals(mode, word)).then_some(())?;
                    line.mode = mode;
                } else if let Some(engine) = value(b"--engine") {
                    let known = [&b"auto"[..], b"uring", b"threads", b"readahead", b"noop"];
                    known
                        .iter()
                        .any(|word| equals(engine, word))
                        .then_some(())?;
                    line.engine = engine;
                } else if value(b"--plugin").is_some() {
                    line.plugins = true;
                } else if value(b"--explain").is_some() {
                    line.reports = true;
                } else if value(b"--budget").is_none() && value(b"--config").is_none() {
                    return None;
                }
            }
            if byte(argument(at)?, 0) == 0 {
                return None;
            }
            line.command = arguments.add(at);
        }
        Some(line)
    }
}

/// Whether a text is one of some words, in whatever case.
unsafe fn is_one_of(text: Text, words: &[&[u8]]) -> bool {
    // SAFETY: as promised.
    unsafe {
        let n = length(text);
        let same = |word: &&&[u8]| {
            word.len() == n
                && (0..n).all(|i| byte(text, i).to_ascii_lowercase() == byte(word.as_ptr(), i))
        };
        words.iter().find(same).is_some()
    }
}

/// Comes before all else that this process asks. Where it is to become the program, as far as that is known here, it does so. `None`: `main` goes on, or
/// tries the same again. Else there is no filter.
#[unsafe(link_section = ".text")]
pub unsafe fn look(
    count: usize,
    arguments: *const Text,
    environment: *const Text,
) -> Option<Status> {
    // SAFETY: what the kernel has handed over.
    unsafe {
        if count < 2 || !equals(arguments.add(1).read_volatile(), b"run") {
            return None;
        }
        let word = variable(environment, b"OUTRIDER=");
        if word.is_some_and(|word| is_one_of(word, &[b"off", b"no", b"false", b"0"])) {
            let line = Line::of(count, arguments)?;
            FOUND.store(OFF, Relaxed);
            execute(line.command, environment);
            return None;
        }
        let status = Status::of(c"/proc/self/status".as_ptr().cast())?;
        match status.mode {
            0 => return Some(status),
            UNKNOWN => return None,
            _ => confined(&status, word, count, arguments, environment),
        }
    }
    None
}

#[cold]
unsafe fn confined(
    status: &Status,
    word: Option<Text>,
    count: usize,
    arguments: *const Text,
    environment: *const Text,
) {
    // SAFETY: as promised.
    unsafe {
        let Some(line) = Line::of(count, arguments) else {
            return;
        };
        let vouched = word.is_some_and(|word| is_one_of(word, &[b"on", b"yes", b"true", b"1"]));
        let mut may_write = line.reports;
        if !vouched && !status.may_fork(environment) {
            FOUND.store(UNCERTAIN, Relaxed);
        } else {
            may_write = attempt(status, line.plugins);
            if is_cleared() {
                return;
            }
        }
        if may_write {
            tell(&line);
        }
        execute(line.command, environment);
    }
}

/// Says why nothing is prefetched, on standard error, and in the report.
unsafe fn tell(line: &Line) {
    let Some(pieces) = pieces() else {
        return;
    };
    let mut text = MaybeUninit::<[u8; 1024]>::uninit();
    let text = text.as_mut_ptr().cast::<u8>();
    let mut n = 0;
    // SAFETY: what is written is shorter than the text has room for: the command line's words are known ones.
    unsafe {
        let mut add = |s: &str| {
            for b in s.bytes() {
                text.add(n).write_volatile(b);
                n += 1;
            }
        };
        if line.file.is_null() {
            add("outrider: ");
            pieces.iter().for_each(|piece| add(piece));
            add(CONSEQUENCE);
            add("\n");
            call(libc::SYS_write, 2, text as usize, n, 0);
            return;
        }
        let word = |add: &mut dyn FnMut(&str), word: Text| {
            let bytes = core::slice::from_raw_parts(word, length(word));
            add(core::str::from_utf8_unchecked(bytes));
        };
        add(DOCUMENT[0]);
        word(&mut add, line.engine);
        add(DOCUMENT[1]);
        pieces.iter().for_each(|piece| add(piece));
        add(CONSEQUENCE);
        add(DOCUMENT[2]);
        word(&mut add, line.mode);
        add(DOCUMENT[3]);
        // A pipe that nobody reads from is not waited for.
        let flags =
            libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let fd = call(
            libc::SYS_openat,
            AT,
            line.file as usize,
            flags as usize,
            0o666,
        );
        if fd >= 0 {
            call(libc::SYS_write, fd as usize, text as usize, n, 0);
            raw::close(fd as i32);
        }
    }
}

/// The report of a run that couldn't be: around the engine, the reason and the mode. See `report::document`.
pub const DOCUMENT: [&str; 4] = [
    "{\n  \"declared\": {},\n  \"devices\": [],\n  \"engine\": \"",
    "\",\n  \"files\": [],\n  \"graphs\": [],\n  \"lost\": [\n    \"",
    "\"\n  ],\n  \"mode\": \"",
    "\",\n  \"processes\": [],\n  \"totals\": {},\n  \"version\": 1\n}\n",
];

/// Longest path that is tried.
const PATH: usize = 4096;

/// Executes the program as execvp(3) does, but for what `main` does better: scripts that don't say what runs them, and failures.
unsafe fn execute(command: *const Text, environment: *const Text) {
    // SAFETY: arrays that end with a null pointer; the path has room for what is put there.
    unsafe {
        let name = command.read_volatile();
        let run = |path: Text| {
            let path = path as usize;
            call(
                libc::SYS_execve,
                path,
                command as usize,
                environment as usize,
                0,
            ) as i32
        };
        let n = length(name);
        if (0..n).any(|i| byte(name, i) == b'/') {
            run(name);
            return;
        }
        let Some(mut directory) = variable(environment, b"PATH=").filter(|_| n <= 255) else {
            return;
        };
        let mut path = MaybeUninit::<[u8; PATH + 260]>::uninit();
        let path = path.as_mut_ptr().cast::<u8>();
        loop {
            let mut m = 0;
            while byte(directory, m) != 0 && byte(directory, m) != b':' {
                m += 1;
            }
            if m < PATH {
                for i in 0..m {
                    path.add(i).write_volatile(byte(directory, i));
                }
                path.add(m).write_volatile(b'/');
                let from = if m > 0 { m + 1 } else { 0 };
                for i in 0..=n {
                    path.add(from + i).write_volatile(byte(name, i));
                }
                let error = -run(path);
                if error != libc::ENOENT && error != libc::ENOTDIR && error != libc::EACCES {
                    return;
                }
            }
            if byte(directory, m) == 0 {
                return;
            }
            directory = directory.add(m + 1);
        }
    }
}

/// Has a child try all that is to be called, and notes what comes of it. Whether write(2) kills nobody.
unsafe fn attempt(status: &Status, graphs: bool) -> bool {
    let count = CALLS.len() - if graphs { 0 } else { OF_GRAPHS };
    // SAFETY: this process has one thread.
    unsafe {
        let mut children = [0isize; 4];
        let mut run = |i: usize, first: usize, end: usize| {
            let child = trial(first, end);
            (&raw mut children)
                .cast::<isize>()
                .add(i)
                .write_volatile(child);
            (child > 0).then(|| BEGUN.load(Relaxed))
        };
        let mut first = run(0, 0, count);
        if LIMIT.load(Relaxed) == SETTING {
            first = run(1, 0, count);
        }
        let Some(begun) = first else {
            FOUND.store(ALONE, Relaxed);
            return false;
        };
        let found = match begun {
            SURVIVED => CLEARED,
            _ if REFUSED.load(Relaxed) => REFUSES,
            _ => KILLS,
        };
        FOUND.store(found, Relaxed);
        // What has not been tried may kill this process. If neither of the calls that wait may be made, nobody can see that there was a child.
        let wait4 = begun > WAIT4;
        let waitid = !wait4 && run(2, WAITID, WAITID + 1) == Some(SURVIVED);
        let may_write = begun > WRITE || run(3, WRITE, WRITE + 1) == Some(SURVIVED);
        BEGUN.store(begun, Relaxed);
        for i in 0..children.len() {
            let child = (&raw const children).cast::<isize>().add(i).read_volatile();
            if child > 0 && wait4 {
                call(libc::SYS_wait4, child as usize, 0, libc::__WALL as usize, 0);
            } else if child > 0 && waitid {
                let (kind, flags) = (libc::P_PID as usize, libc::WEXITED | libc::__WALL);
                raw::syscall6(
                    libc::SYS_waitid,
                    kind,
                    child as usize,
                    0,
                    flags as usize,
                    0,
                    0,
                );
            }
        }
        if status.child_blocked && !status.child_waits && begun > TAKE_SIGNAL {
            let (set, now) = (1u64 << (libc::SIGCHLD - 1), [0u64; 2]);
            let (set, now) = (&raw const set as usize, now.as_ptr() as usize);
            call(libc::SYS_rt_sigtimedwait, set, 0, now, SET);
        }
        may_write
    }
}

/// Runs a child that tries these calls. Its process id, when it has ended, or 0.
unsafe fn trial(first: usize, end: usize) -> isize {
    FIRST.store(first, Relaxed);
    END.store(end, Relaxed);
    REFUSED.store(false, Relaxed);
    // SAFETY: this process has one thread, and waits until the child has ended.
    unsafe {
        // Filters that are to keep a program from making threads kill for clone(2) alone.
        #[cfg(target_arch = "x86_64")]
        let child = match run_child(libc::SYS_vfork, 0) {
            child @ 1.. => child,
            _ => run_child(
                libc::SYS_clone,
                (libc::CLONE_VM | libc::CLONE_VFORK) as usize,
            ),
        };
        #[cfg(not(target_arch = "x86_64"))]
        let child = {
            extern "C" fn f(_: *mut libc::c_void) -> libc::c_int {
                // SAFETY: the child.
                unsafe { try_calls() }
            }
            outrider_sys::child::vfork(f, core::ptr::null_mut(), 16 << 10, 0) as isize
        };
        child.max(0)
    }
}

/// A child that shares this process's memory, its stack too, while this process waits for its end.
#[cfg(target_arch = "x86_64")]
unsafe fn run_child(number: libc::c_long, flags: usize) -> isize {
    let child: isize;
    // SAFETY: what the child leaves on the stack lies below what this process has there.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "call {try_calls}",
            "2:",
            try_calls = sym try_calls,
            inlateout("rax") number as isize => child,
            in("rdi") flags,
            in("rsi") 0usize,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") 0usize,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    child
}

/// Whether the child that was made last sets itself a limit, so that it leaves no core if it is killed.
static LIMIT: AtomicU32 = AtomicU32::new(0);
const SETTING: u32 = 1;
const SET_BEFORE: u32 = 2;

/// In the child.
unsafe extern "C" fn try_calls() -> ! {
    // SAFETY: calls that do nothing to others; structures of this frame.
    unsafe {
        BEGUN.store(0, Relaxed);
        if LIMIT.swap(SETTING, Relaxed) != SETTING {
            let mut limit = [0u64; 2];
            let (which, at) = (libc::RLIMIT_CORE as usize, limit.as_mut_ptr());
            call(libc::SYS_prlimit64, 0, which, 0, at as usize);
            // One byte: nobody is asked to take it, either.
            at.write_volatile(at.add(1).read_volatile().min(1));
            call(libc::SYS_prlimit64, 0, which, at as usize, 0);
        }
        LIMIT.store(SET_BEFORE, Relaxed);
        let mut i = FIRST.load(Relaxed);
        let end = END.load(Relaxed);
        let everything = i == 0;
        while i < end {
            BEGUN.store(i, Relaxed);
            let c = &*CALLS.as_ptr().add(i);
            let at = c.arguments.as_ptr();
            let answer = call(c.number, *at, *at.add(1), *at.add(2), *at.add(3)) as i32;
            if c.is_vital && [libc::EPERM, libc::ENOSYS, libc::EACCES].contains(&-answer) {
                REFUSED.store(true, Relaxed);
                leave();
            }
            i += 1;
        }
        if everything {
            BEGUN.store(RETURN, Relaxed);
            return_from_handler();
        }
        BEGUN.store(SURVIVED, Relaxed);
        leave()
    }
}

unsafe fn leave() -> ! {
    // SAFETY: ends the child.
    unsafe {
        call(libc::SYS_exit_group, 0, 0, 0, 0);
        loop {
            call(libc::SYS_exit, 0, 0, 0, 0);
        }
    }
}

extern "C" fn handler(_: libc::c_int) {}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn restorer() {
    core::arch::naked_asm!("mov eax, {number}", "syscall", number = const libc::SYS_rt_sigreturn);
}

/// Has a handler of the child's interrupt it, and return.
unsafe fn return_from_handler() {
    #[cfg(target_arch = "x86_64")]
    let (flags, restorer) = (0x0400_0000, restorer as *const () as usize);
    // There the kernel has code for it.
    #[cfg(not(target_arch = "x86_64"))]
    let (flags, restorer) = (0, 0);
    let action = Action {
        handler: handler as *const () as usize,
        flags,
        restorer,
        mask: 0,
    };
    let none = 0u64;
    // SAFETY: the child's own handler, mask and signal.
    unsafe {
        let (signal, action) = (libc::SIGCHLD as usize, &raw const action as usize);
        call(libc::SYS_rt_sigaction, signal, action, 0, SET);
        let set = libc::SIG_SETMASK as usize;
        call(
            libc::SYS_rt_sigprocmask,
            set,
            &raw const none as usize,
            0,
            SET,
        );
        call(libc::SYS_kill, raw::getpid() as usize, signal, 0, 0);
    }
}

/// The first of our calls for which the filters in force kill, or that they refuse although nothing can be without it; with `graphs`, of those that only
/// graphs make, too. `None` where there is none, or no child can be made. This process has one thread.
pub fn deadly_call(graphs: bool) -> Option<String> {
    // SAFETY: as the caller promises.
    unsafe { attempt(&Status::UNKNOWN, graphs) };
    match FOUND.load(Relaxed) {
        KILLS | REFUSES => reason(),
        _ => None,
    }
}
