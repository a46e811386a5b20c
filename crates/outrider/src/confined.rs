//! System calls that are refused, or that kill: an old kernel, a security module, and filters of system calls (seccomp) under which `outrider run` itself is
//! started, as in a container, a service or a sandbox. Whoever is refused a call knows an errno and not what is lost by it, and who is killed knows nothing.
//! So a child process makes all of ours beforehand, with arguments that do nothing. Some refusals cost something, or nothing, which `refused` puts in words.
//! Where a call kills, or one is refused without which the runner could not wait for the program, the program is not started but become.
//!
//! The first question that is asked, before the C library has started, is whether there is a filter: in /proc/self/status, with the calls by which
//! the dynamic linker reads libraries. Where there is one, it may kill for making the child, too. Whether it does is inferred: from a parent that is under as
//! many filters and has made this process, or from who has installed the filter. Where nothing speaks for it that processes may be made, nothing is tried, and
//! this process becomes the program at once. Without a filter the child is made when somebody wants a report (`refused`).

use core::mem::MaybeUninit;
use core::ptr::null;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize};

use outrider_sys::cache::SYS_CACHESTAT;
use outrider_sys::program::tight;
use outrider_sys::raw;
use outrider_sys::seccomp::UNKNOWN;

use crate::kept;
use crate::plain::{Action, Text, after, byte, call, equals, length, number, variable};

/// What is lost without a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cost {
    /// The runner can't do without it, or neither can the dynamic linker with a library that is preloaded.
    Runner,
    /// Programs can't reach the service, or the service can't fetch.
    Service,
    /// It is done in another way, or is a part that can be left out.
    Part,
    /// Its refusal has a line of its own in the report (`shm::lost`), or only graphs make it.
    Told,
}
use Cost::{Part, Runner, Service, Told};

/// A system call with arguments with which it does nothing, or nothing to any other process than the one that makes it.
pub type Call = (&'static str, Cost, libc::c_long, [usize; 4]);

/// No descriptor, process, address, signal, flag or timer.
const NONE: usize = usize::MAX;
const AT: usize = libc::AT_FDCWD as usize;
/// Bytes of the kernel's set of signals.
const SET: usize = 8;
const UNIX: usize = libc::AF_UNIX as usize;
const PACKETS: usize = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
const ANONYMOUS: usize = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;

/// What runner, service and hooks call. Where a call serves several ends, with the arguments of each that something depends on. The first ones are those
/// without which the child that makes them is not left without a trace.
#[rustfmt::skip]
pub const CALLS: &[Call] = &[
    ("wait4", Runner, libc::SYS_wait4, [NONE, 0, libc::WNOHANG as usize, 0]),
    ("waitid", Runner, libc::SYS_waitid, [libc::P_PID as usize, 0, 0, libc::WEXITED as usize]),
    ("rt_sigtimedwait", Part, libc::SYS_rt_sigtimedwait, [0, 0, 0, 0]),
    ("write", Part, libc::SYS_write, [NONE, 0, 0, 0]),
    // What the C library begins with, and the command.
    ("brk", Part, libc::SYS_brk, [0; 4]),
    #[cfg(target_arch = "x86_64")]
    ("arch_prctl", Runner, libc::SYS_arch_prctl, [0; 4]),
    ("set_tid_address", Part, libc::SYS_set_tid_address, [0; 4]),
    ("set_robust_list", Part, libc::SYS_set_robust_list, [0; 4]),
    ("get_robust_list", Part, libc::SYS_get_robust_list, [i32::MAX as usize, 0, 0, 0]),
    ("rseq", Part, libc::SYS_rseq, [0; 4]),
    ("prlimit64", Service, libc::SYS_prlimit64, [0, NONE, 0, 0]),
    ("readlinkat", Service, libc::SYS_readlinkat, [NONE, 0, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    ("readlink", Part, libc::SYS_readlink, [0; 4]),
    ("getrandom", Service, libc::SYS_getrandom, [0; 4]),
    ("mprotect", Runner, libc::SYS_mprotect, [1, 0, 0, 0]),
    ("mmap", Runner, libc::SYS_mmap, [0, 0, 0, ANONYMOUS]),
    ("mremap", Part, libc::SYS_mremap, [1, 0, 0, 0]),
    ("munmap", Runner, libc::SYS_munmap, [1, 0, 0, 0]),
    ("madvise", Service, libc::SYS_madvise, [0, 0, libc::MADV_WIPEONFORK as usize, 0]),
    ("madvise", Service, libc::SYS_madvise, [0, 0, libc::MADV_DONTFORK as usize, 0]),
    ("madvise", Part, libc::SYS_madvise, [0, 0, libc::MADV_WILLNEED as usize, 0]),
    ("madvise", Part, libc::SYS_madvise, [0, 0, libc::MADV_POPULATE_READ as usize, 0]),
    ("mincore", Part, libc::SYS_mincore, [1, 0, 0, 0]),
    ("membarrier", Part, libc::SYS_membarrier, [0; 4]),
    ("uname", Part, libc::SYS_uname, [0; 4]),
    ("sysinfo", Part, libc::SYS_sysinfo, [0; 4]),
    ("sigaltstack", Part, libc::SYS_sigaltstack, [0; 4]),
    // Files.
    ("read", Runner, libc::SYS_read, [NONE, 0, 0, 0]),
    ("readv", Part, libc::SYS_readv, [NONE, 0, 0, 0]),
    ("writev", Part, libc::SYS_writev, [NONE, 0, 0, 0]),
    ("pread64", Runner, libc::SYS_pread64, [NONE, 0, 0, 0]),
    ("pwrite64", Part, libc::SYS_pwrite64, [NONE, 0, 0, 0]),
    ("close", Runner, libc::SYS_close, [NONE, 0, 0, 0]),
    ("close_range", Part, libc::SYS_close_range, [2, 1, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    ("open", Part, libc::SYS_open, [0; 4]),
    ("openat", Runner, libc::SYS_openat, [AT, 0, 0, 0]),
    ("openat", Part, libc::SYS_openat, [AT, 0, (libc::O_WRONLY | libc::O_CREAT) as usize, 0]),
    ("openat2", Part, libc::SYS_openat2, [NONE, 0, 0, 0]),
    // What stands for the library in LD_PRELOAD is made by these.
    #[cfg(target_arch = "x86_64")]
    ("mkdir", Part, libc::SYS_mkdir, [0; 4]),
    #[cfg(target_arch = "x86_64")]
    ("rename", Part, libc::SYS_rename, [0; 4]),
    #[cfg(target_arch = "x86_64")]
    ("symlink", Part, libc::SYS_symlink, [0; 4]),
    #[cfg(target_arch = "x86_64")]
    ("unlink", Part, libc::SYS_unlink, [0; 4]),
    ("mkdirat", Part, libc::SYS_mkdirat, [AT, 0, 0, 0]),
    ("renameat", Part, libc::SYS_renameat, [AT, 0, AT, 0]),
    ("symlinkat", Part, libc::SYS_symlinkat, [0, AT, 0, 0]),
    ("unlinkat", Part, libc::SYS_unlinkat, [AT, 0, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    ("access", Part, libc::SYS_access, [0; 4]),
    ("faccessat", Part, libc::SYS_faccessat, [AT, 0, 0, 0]),
    ("faccessat2", Part, libc::SYS_faccessat2, [AT, 0, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    ("stat", Part, libc::SYS_stat, [0; 4]),
    ("fstat", Runner, libc::SYS_fstat, [NONE, 0, 0, 0]),
    ("newfstatat", Runner, libc::SYS_newfstatat, [NONE, 0, 0, 0]),
    ("statx", Part, libc::SYS_statx, [NONE, 0, 0, 0]),
    ("fstatfs", Part, libc::SYS_fstatfs, [NONE, 0, 0, 0]),
    ("statfs", Part, libc::SYS_statfs, [0; 4]),
    ("getxattr", Part, libc::SYS_getxattr, [0; 4]),
    ("listxattr", Part, libc::SYS_listxattr, [0; 4]),
    ("fsetxattr", Part, libc::SYS_fsetxattr, [NONE, 0, 0, 0]),
    ("fremovexattr", Part, libc::SYS_fremovexattr, [NONE, 0, 0, 0]),
    ("lseek", Service, libc::SYS_lseek, [NONE, 0, 0, 0]),
    ("ftruncate", Service, libc::SYS_ftruncate, [NONE, 0, 0, 0]),
    ("fallocate", Part, libc::SYS_fallocate, [NONE, 0, 0, 0]),
    ("fchown", Part, libc::SYS_fchown, [NONE, NONE, NONE, 0]),
    ("fchmod", Part, libc::SYS_fchmod, [NONE, 0, 0, 0]),
    ("fadvise64", Told, libc::SYS_fadvise64, [NONE, 0, 0, 0]),
    ("readahead", Part, libc::SYS_readahead, [NONE, 0, 0, 0]),
    ("cachestat", Told, SYS_CACHESTAT, [NONE, 0, 0, 0]),
    ("memfd_create", Told, libc::SYS_memfd_create, [0; 4]),
    ("getdents64", Part, libc::SYS_getdents64, [NONE, 0, 0, 0]),
    ("getcwd", Part, libc::SYS_getcwd, [0; 4]),
    ("chdir", Part, libc::SYS_chdir, [0; 4]),
    ("fcntl", Runner, libc::SYS_fcntl, [NONE, libc::F_GETFL as usize, 0, 0]),
    ("fcntl", Part, libc::SYS_fcntl, [NONE, libc::F_GETFD as usize, 0, 0]),
    ("fcntl", Part, libc::SYS_fcntl, [NONE, libc::F_DUPFD_CLOEXEC as usize, 0, 0]),
    ("fcntl", Part, libc::SYS_fcntl, [NONE, libc::F_OFD_GETLK as usize, 0, 0]),
    ("fcntl", Part, libc::SYS_fcntl, [NONE, kept::F_GETOWN_EX as usize, 0, 0]),
    ("fcntl", Part, libc::SYS_fcntl, [NONE, libc::F_ADD_SEALS as usize, 0, 0]),
    ("fcntl", Part, libc::SYS_fcntl, [NONE, libc::F_GET_SEALS as usize, 0, 0]),
    ("ioctl", Part, libc::SYS_ioctl, [NONE, libc::TCGETS as usize, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    ("dup2", Part, libc::SYS_dup2, [NONE, NONE, 0, 0]),
    ("dup3", Part, libc::SYS_dup3, [NONE, NONE, 0, 0]),
    ("pipe2", Part, libc::SYS_pipe2, [0; 4]),
    ("eventfd2", Part, libc::SYS_eventfd2, [0, NONE, 0, 0]),
    // Waiting, and time.
    ("ppoll", Runner, libc::SYS_ppoll, [0, NONE, 0, 0]),
    #[cfg(target_arch = "x86_64")]
    ("poll", Part, libc::SYS_poll, [0; 4]),
    ("epoll_create1", Part, libc::SYS_epoll_create1, [NONE, 0, 0, 0]),
    ("epoll_ctl", Part, libc::SYS_epoll_ctl, [NONE, 0, NONE, 0]),
    ("epoll_pwait", Part, libc::SYS_epoll_pwait, [NONE, 0, 0, 0]),
    ("inotify_init1", Part, libc::SYS_inotify_init1, [NONE, 0, 0, 0]),
    ("inotify_add_watch", Part, libc::SYS_inotify_add_watch, [NONE, 0, 0, 0]),
    ("inotify_rm_watch", Part, libc::SYS_inotify_rm_watch, [NONE, 0, 0, 0]),
    ("futex", Runner, libc::SYS_futex, [0, libc::FUTEX_WAKE as usize, 0, 0]),
    ("futex", Part, libc::SYS_futex, [0, libc::FUTEX_WAIT as usize, 0, 0]),
    ("clock_gettime", Part, libc::SYS_clock_gettime, [NONE, 0, 0, 0]),
    ("clock_nanosleep", Part, libc::SYS_clock_nanosleep, [NONE, 0, 0, 0]),
    ("nanosleep", Part, libc::SYS_nanosleep, [0; 4]),
    ("setitimer", Part, libc::SYS_setitimer, [NONE, 0, 0, 0]),
    // Sockets.
    ("socket", Service, libc::SYS_socket, [UNIX, PACKETS, 0, 0]),
    ("bind", Service, libc::SYS_bind, [NONE, 0, 0, 0]),
    ("listen", Service, libc::SYS_listen, [NONE, 0, 0, 0]),
    ("accept4", Service, libc::SYS_accept4, [NONE, 0, 0, 0]),
    ("connect", Service, libc::SYS_connect, [NONE, 0, 0, 0]),
    ("getsockname", Service, libc::SYS_getsockname, [NONE, 0, 0, 0]),
    ("getsockopt", Service, libc::SYS_getsockopt, [NONE, 0, 0, 0]),
    ("setsockopt", Part, libc::SYS_setsockopt, [NONE, 0, 0, 0]),
    ("sendmsg", Service, libc::SYS_sendmsg, [NONE, 0, 0, 0]),
    ("recvmsg", Service, libc::SYS_recvmsg, [NONE, 0, 0, 0]),
    ("sendto", Part, libc::SYS_sendto, [NONE, 0, 0, 0]),
    ("recvfrom", Part, libc::SYS_recvfrom, [NONE, 0, 0, 0]),
    // Processes, and what they have.
    ("getpid", Runner, libc::SYS_getpid, [0; 4]),
    ("getppid", Runner, libc::SYS_getppid, [0; 4]),
    ("gettid", Part, libc::SYS_gettid, [0; 4]),
    ("getsid", Part, libc::SYS_getsid, [0; 4]),
    ("setsid", Part, libc::SYS_setsid, [0; 4]),
    ("getuid", Service, libc::SYS_getuid, [0; 4]),
    ("geteuid", Service, libc::SYS_geteuid, [0; 4]),
    ("getgid", Service, libc::SYS_getgid, [0; 4]),
    ("getegid", Service, libc::SYS_getegid, [0; 4]),
    ("getresuid", Part, libc::SYS_getresuid, [0; 4]),
    ("getresgid", Part, libc::SYS_getresgid, [0; 4]),
    ("getgroups", Part, libc::SYS_getgroups, [0; 4]),
    ("capget", Part, libc::SYS_capget, [0; 4]),
    ("getrusage", Part, libc::SYS_getrusage, [libc::RUSAGE_THREAD as usize, 0, 0, 0]),
    ("prctl", Part, libc::SYS_prctl, [libc::PR_GET_CHILD_SUBREAPER as usize, 0, 0, 0]),
    ("prctl", Part, libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, NONE, 0, 0]),
    ("prctl", Part, libc::SYS_prctl, [libc::PR_GET_TIMERSLACK as usize, 0, 0, 0]),
    ("prctl", Part, libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, 0, 0, 0]),
    ("prctl", Part, libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, NONE, 0, 0]),
    ("prctl", Part, libc::SYS_prctl, [libc::PR_SET_NAME as usize, 0, 0, 0]),
    ("unshare", Part, libc::SYS_unshare, [0; 4]),
    ("setns", Part, libc::SYS_setns, [NONE, 0, 0, 0]),
    ("ioprio_get", Part, libc::SYS_ioprio_get, [NONE, 0, 0, 0]),
    ("ioprio_set", Part, libc::SYS_ioprio_set, [NONE, 0, 0, 0]),
    ("getpriority", Part, libc::SYS_getpriority, [NONE, 0, 0, 0]),
    ("setpriority", Part, libc::SYS_setpriority, [NONE, 0, 0, 0]),
    ("sched_yield", Part, libc::SYS_sched_yield, [0; 4]),
    ("sched_getscheduler", Part, libc::SYS_sched_getscheduler, [NONE, 0, 0, 0]),
    ("sched_setscheduler", Part, libc::SYS_sched_setscheduler, [NONE, 0, 0, 0]),
    ("sched_getattr", Part, libc::SYS_sched_getattr, [NONE, 0, 0, 0]),
    ("sched_setattr", Part, libc::SYS_sched_setattr, [NONE, 0, 0, 0]),
    ("sched_getaffinity", Part, libc::SYS_sched_getaffinity, [NONE, 0, 0, 0]),
    ("kill", Runner, libc::SYS_kill, [i32::MAX as usize, 0, 0, 0]),
    ("tgkill", Part, libc::SYS_tgkill, [NONE, NONE, 0, 0]),
    ("pidfd_open", Part, libc::SYS_pidfd_open, [NONE, 0, 0, 0]),
    ("rt_sigpending", Part, libc::SYS_rt_sigpending, [0; 4]),
    ("rt_sigqueueinfo", Part, libc::SYS_rt_sigqueueinfo, [0; 4]),
    ("rt_tgsigqueueinfo", Part, libc::SYS_rt_tgsigqueueinfo, [0; 4]),
    ("rt_sigprocmask", Runner, libc::SYS_rt_sigprocmask, [0, 0, 0, SET]),
    ("rt_sigaction", Runner, libc::SYS_rt_sigaction, [libc::SIGCHLD as usize, 0, 0, SET]),
    ("clone", Runner, libc::SYS_clone, [libc::CLONE_SIGHAND as usize, 0, 0, 0]),
    // As a thread is made, but for the flag that none can be without.
    ("clone", Told, libc::SYS_clone, [THREAD as usize, 0, 0, 0]),
    // Where the C library is told that it isn't there, it uses clone(2).
    ("clone3", Part, libc::SYS_clone3, [0; 4]),
    // These only graphs make.
    ("pidfd_getfd", Told, libc::SYS_pidfd_getfd, [NONE, NONE, 0, 0]),
    ("io_uring_setup", Told, libc::SYS_io_uring_setup, [0; 4]),
    ("io_uring_enter", Told, libc::SYS_io_uring_enter, [NONE, 0, 0, 0]),
    ("io_uring_register", Told, libc::SYS_io_uring_register, [NONE, NONE, 0, 0]),
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

/// What the child is to try, which it has begun, and what it was answered: an errno, or 0.
static FIRST: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static BEGUN: AtomicUsize = AtomicUsize::new(0);
static ANSWERS: [AtomicI32; CALLS.len()] = [const { AtomicI32::new(0) }; CALLS.len()];
/// Why no child can be made, an errno.
static CHILDLESS: AtomicI32 = AtomicI32::new(0);

/// Whether a call was refused, and not only what was asked of it.
pub fn is_refusal(errno: i32) -> bool {
    errno == libc::ENOSYS || errno == libc::EPERM || errno == libc::EACCES
}

fn was_refused(i: usize) -> bool {
    ANSWERS.get(i).is_some_and(|e| is_refusal(e.load(Relaxed)))
}

/// What [`look`] or [`answers`] has found: see [`reason`].
static FOUND: AtomicU32 = AtomicU32::new(NOTHING_FOUND);
const NOTHING_FOUND: u32 = 0;
/// None of our calls kills, or is refused that has to be made.
const CLEARED: u32 = 1;
/// OUTRIDER=off.
const OFF: u32 = 2;
/// Whether a process can be made without dying of it isn't known.
const UNCERTAIN: u32 = 3;
/// No process can be made.
const ALONE: u32 = 4;
/// The call that [`BEGUN`] says kills, or is refused.
const KILLS: u32 = 5;
const REFUSES: u32 = 6;
/// A child would be the first process of its namespace, which ends with it.
const FIRST_OF_ALL: u32 = 7;
/// A limit leaves no room for what would follow.
const TIGHT: u32 = 8;
/// See [`taken`].
static TAKEN: AtomicUsize = AtomicUsize::new(0);

const MAY_KILL: &str = "a filter of system calls (seccomp) is in force that may kill whoever makes a process (OUTRIDER=on says that it doesn't)";
const BEGINNING: &str = "a filter of system calls (seccomp) is in force that ";
const CONSEQUENCE: &str = ": the program runs without Outrider";

/// Why this process is to become the program, in pieces, if it is; the first is empty where that need not be told.
fn pieces() -> Option<[&'static str; 3]> {
    let begun = BEGUN.load(Relaxed);
    let name = match begun {
        RETURN => "rt_sigreturn",
        i => CALLS.get(i).map_or("", |(name, ..)| *name),
    };
    match FOUND.load(Relaxed) {
        OFF => Some([""; 3]),
        FIRST_OF_ALL => Some([kept::NAMESPACE, "", ""]),
        TIGHT => Some([
            tight(TAKEN.load(Relaxed) as u64).unwrap_or_default(),
            " is too low",
            "",
        ]),
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
                    line.reports = true;
                    line.file = match equals(file, b"-") {
                        true => std::ptr::null(),
                        false => file,
                    };
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
                } else if value(b"--explain").is_some() || value(b"--record").is_some() {
                    line.reports = true;
                } else if equals(here, b"--remember") || after(here, b"--remember=").is_some() {
                    // Its value stands in the same argument.
                } else if value(b"--budget").is_none()
                    && value(b"--config").is_none()
                    && value(b"--report-every").is_none()
                {
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
            0 => {
                if tight(taken(environment)).is_none() {
                    return Some(status);
                }
                without_room(count, arguments, environment);
            }
            UNKNOWN => return None,
            _ => confined(&status, word, count, arguments, environment),
        }
    }
    None
}

/// Bytes of the stack that are taken: arguments and variables lie at its end.
unsafe fn taken(environment: *const Text) -> u64 {
    let mut end = environment as usize;
    let mut at = environment;
    // SAFETY: as promised.
    unsafe {
        while !at.read_volatile().is_null() {
            end = end.max(at.read_volatile() as usize);
            at = at.add(1);
        }
    }
    end.saturating_sub((&raw const end) as usize) as u64
}

/// Becomes the program: what would follow takes more room than there is.
#[cold]
unsafe fn without_room(count: usize, arguments: *const Text, environment: *const Text) {
    // SAFETY: as promised.
    unsafe {
        let Some(line) = Line::of(count, arguments) else {
            return;
        };
        TAKEN.store(taken(environment) as usize, Relaxed);
        FOUND.store(TIGHT, Relaxed);
        if line.reports {
            tell(&line);
        }
        execute(line.command, environment);
    }
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
        } else if would_be_first() {
            FOUND.store(FIRST_OF_ALL, Relaxed);
        } else {
            may_write = attempt(status, line.plugins);
            if FOUND.load(Relaxed) == CLEARED {
                if tight(taken(environment)).is_some() {
                    without_room(count, arguments, environment);
                }
                return;
            }
        }
        if may_write {
            tell(&line);
        }
        execute(line.command, environment);
    }
}

/// Whether a child would be the first process of its namespace. Where that has none yet the kernel doesn't show it: see [`kept::obstacle`].
unsafe fn would_be_first() -> bool {
    let opens = |name: &core::ffi::CStr| {
        let (name, flags) = (name.as_ptr() as usize, libc::O_RDONLY | libc::O_CLOEXEC);
        // SAFETY: a text.
        unsafe {
            let fd = call(libc::SYS_openat, AT, name, flags as usize, 0);
            fd >= 0 && raw::close(fd as i32) == 0
        }
    };
    let [own, children] = &kept::NAMESPACES[0];
    opens(own) && !opens(children)
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
        let is_metrics = !line.file.is_null() && ends_with(line.file, METRICS.as_bytes());
        if line.file.is_null() || is_metrics {
            // A comment, among metrics.
            add(if is_metrics {
                "# outrider: "
            } else {
                "outrider: "
            });
            pieces.iter().for_each(|piece| add(piece));
            add(CONSEQUENCE);
            add("\n");
            match is_metrics {
                true => write_report(line.file, text, n),
                false => drop(call(libc::SYS_write, 2, text as usize, n, 0)),
            }
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
        write_report(line.file, text, n);
    }
}

/// The end of the name of a report's file that is to have metrics for Prometheus.
pub const METRICS: &str = ".prom";

unsafe fn ends_with(text: Text, end: &[u8]) -> bool {
    // SAFETY: as promised.
    unsafe {
        let n = length(text);
        n >= end.len() && equals(text.add(n - end.len()), end)
    }
}

unsafe fn write_report(file: Text, text: Text, n: usize) {
    // A pipe that nobody reads from is not waited for.
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: as promised.
    unsafe {
        let fd = call(libc::SYS_openat, AT, file as usize, flags as usize, 0o666);
        if fd >= 0 {
            call(libc::SYS_write, fd as usize, text as usize, n, 0);
            raw::close(fd as i32);
        }
    }
}

/// The report of a run that couldn't be: around the engine, the reason and the mode. See `report::document`.
pub const DOCUMENT: [&str; 4] = [
    "{\n  \"declared\": {},\n  \"devices\": [],\n  \"ended\": false,\n  \"engine\": \"",
    "\",\n  \"files\": [],\n  \"graphs\": [],\n  \"lost\": [\n    \"",
    "\"\n  ],\n  \"mode\": \"",
    "\",\n  \"processes\": [],\n  \"schema\": \"outrider-report\",\n  \"sources\": {},\n  \"totals\": {},\n  \"version\": 1\n}\n",
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
            let child = trial(status.mode != 0, first, end);
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
        let vital = |i: &usize| (*CALLS.as_ptr().add(*i)).1 == Runner && was_refused(*i);
        let (found, which) = match (begun, (0..count).find(vital)) {
            (SURVIVED, None) => (CLEARED, begun),
            (SURVIVED, Some(refused)) => (REFUSES, refused),
            _ => (KILLS, begun),
        };
        FOUND.store(found, Relaxed);
        // What has not been tried may kill this process. If neither of the calls that wait may be made, nobody can see that there was a child.
        let mut may = |call: usize, child: usize| {
            let lives = begun > call || run(child, call, call + 1) == Some(SURVIVED);
            lives && !was_refused(call)
        };
        let wait4 = begun > WAIT4 && may(WAIT4, 2);
        let waitid = !wait4 && may(WAITID, 2);
        let may_write = may(WRITE, 3);
        BEGUN.store(which, Relaxed);
        for i in 0..children.len() {
            let child = (&raw const children).cast::<isize>().add(i).read_volatile();
            if child > 0 && wait4 {
                call(libc::SYS_wait4, child as usize, 0, libc::__WALL as usize, 0);
            } else if child > 0 && waitid {
                let (kind, flags) = (libc::P_PID as usize, libc::WEXITED | libc::__WALL);
                call(libc::SYS_waitid, kind, child as usize, 0, flags as usize);
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

/// Runs a child that tries these calls. Its process id, when it has ended, or 0 and [`CHILDLESS`].
unsafe fn trial(filtered: bool, first: usize, end: usize) -> isize {
    FIRST.store(first, Relaxed);
    END.store(end, Relaxed);
    // SAFETY: this process has one thread, and waits until the child has ended.
    unsafe {
        // Filters that are to keep a program from making threads kill for clone(2) alone. Without one no signal is to tell of the child's end.
        #[cfg(target_arch = "x86_64")]
        let child = match filtered.then(|| run_child(libc::SYS_vfork, 0)) {
            Some(child @ 1..) => child,
            _ => run_child(
                libc::SYS_clone,
                (libc::CLONE_VM | libc::CLONE_VFORK) as usize,
            ),
        };
        #[cfg(not(target_arch = "x86_64"))]
        let child = {
            let _ = filtered;
            extern "C" fn f(_: *mut libc::c_void) -> libc::c_int {
                // SAFETY: the child.
                unsafe { try_calls() }
            }
            match outrider_sys::child::vfork(f, core::ptr::null_mut(), 16 << 10, 0) {
                -1 => -(*libc::__errno_location() as isize),
                child => child as isize,
            }
        };
        if child < 0 {
            CHILDLESS.store(-child as i32, Relaxed);
        }
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
            let (_, _, number, arguments) = &*CALLS.as_ptr().add(i);
            let at = arguments.as_ptr();
            let answer = call(*number, *at, *at.add(1), *at.add(2), *at.add(3));
            (*ANSWERS.as_ptr().add(i)).store((-answer).clamp(0, 4095) as i32, Relaxed);
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

/// What a child was answered for each of our calls, an errno or 0, in the order of [`CALLS`]; with `graphs`, for those that only graphs make, too. It is made now
/// where none was yet. Else why this process has to become the program. This process has one thread.
pub fn answers(graphs: bool) -> Result<impl Iterator<Item = i32>, String> {
    if FOUND.load(Relaxed) == NOTHING_FOUND {
        // SAFETY: as the caller promises.
        unsafe {
            let status = Status::of(c"/proc/self/status".as_ptr().cast());
            attempt(&status.unwrap_or(Status::UNKNOWN), graphs);
        }
    }
    // Where there can be no child for another reason, such as a scheduling policy or a limit, nothing is known: who starts the program sees why.
    let errno = CHILDLESS.load(Relaxed);
    match FOUND.load(Relaxed) {
        KILLS => Err(reason().unwrap_or_default()),
        ALONE if is_refusal(errno) => Err(format!("clone is refused ({})", text(errno))),
        _ => Ok(ANSWERS.iter().map(|e| e.load(Relaxed))),
    }
}

/// An errno in words.
pub fn text(errno: i32) -> String {
    let all = std::io::Error::from_raw_os_error(errno).to_string();
    all[..all.find(" (os error").unwrap_or(all.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_calls_and_the_last_lie_where_they_are_looked_for() {
        let at = [WAIT4, WAITID, TAKE_SIGNAL, WRITE].map(|i| CALLS[i].0);
        assert_eq!(at, ["wait4", "waitid", "rt_sigtimedwait", "write"]);
        let graphs = &CALLS[CALLS.len() - OF_GRAPHS..];
        assert!(graphs.iter().all(|(name, cost, ..)| {
            *cost == Told && (name.starts_with("io_uring") || *name == "pidfd_getfd")
        }));
    }
}
