//! Filters of system calls (seccomp) that kill, as a service manager's may.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::cache::SYS_CACHESTAT;
use outrider_sys::{child, raw};

/// Calls that the hooks or the runner make and programs rarely do, with arguments that do nothing.
const CALLS: [(&str, libc::c_long, [usize; 4]); 26] = [
    ("cachestat", SYS_CACHESTAT, [NONE, 0, 0, 0]),
    (
        "madvise",
        libc::SYS_madvise,
        [0, 0, libc::MADV_WIPEONFORK as usize, 0],
    ),
    ("readlinkat", libc::SYS_readlinkat, [NONE, 0, 0, 0]),
    ("fstat", libc::SYS_fstat, [NONE, 0, 0, 0]),
    (
        "fcntl",
        libc::SYS_fcntl,
        [NONE, libc::F_GETFL as usize, 0, 0],
    ),
    ("lseek", libc::SYS_lseek, [NONE, 0, 0, 0]),
    (
        "futex",
        libc::SYS_futex,
        [0, libc::FUTEX_WAKE as usize, 0, 0],
    ),
    ("sched_yield", libc::SYS_sched_yield, [0; 4]),
    ("memfd_create", libc::SYS_memfd_create, [0; 4]),
    ("ftruncate", libc::SYS_ftruncate, [NONE, 0, 0, 0]),
    ("fallocate", libc::SYS_fallocate, [NONE, 0, 0, 0]),
    ("setitimer", libc::SYS_setitimer, [NONE, 0, 0, 0]),
    ("close_range", libc::SYS_close_range, [2, 1, 0, 0]),
    ("fstatfs", libc::SYS_fstatfs, [NONE, 0, 0, 0]),
    (
        "getrusage",
        libc::SYS_getrusage,
        [libc::RUSAGE_THREAD as usize, 0, 0, 0],
    ),
    ("statx", libc::SYS_statx, [NONE, 0, 0, 0]),
    (
        "prctl",
        libc::SYS_prctl,
        [libc::PR_GET_CHILD_SUBREAPER as usize, 0, 0, 0],
    ),
    ("getsid", libc::SYS_getsid, [0; 4]),
    (
        "sched_getscheduler",
        libc::SYS_sched_getscheduler,
        [NONE, 0, 0, 0],
    ),
    ("rt_sigpending", libc::SYS_rt_sigpending, [0; 4]),
    ("unshare", libc::SYS_unshare, [0; 4]),
    ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo, [0; 4]),
    ("pidfd_open", libc::SYS_pidfd_open, [NONE, 0, 0, 0]),
    ("pidfd_getfd", libc::SYS_pidfd_getfd, [NONE, NONE, 0, 0]),
    ("openat2", libc::SYS_openat2, [NONE, 0, 0, 0]),
    ("sched_getaffinity", libc::SYS_sched_getaffinity, [0; 4]),
];
/// The last ones, which only graphs make.
const OF_GRAPHS: usize = 3;
/// Bytes of stack for making them.
const STACK: usize = 16 << 10;
/// No descriptor, and no timer.
const NONE: usize = usize::MAX;

/// How many of [`CALLS`] the child has begun.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn try_first(count: *mut libc::c_void) -> libc::c_int {
    for (i, (_, number, [a, b, c, d])) in CALLS.iter().take(count as usize).enumerate() {
        BEGUN.store(i, Relaxed);
        // SAFETY: arguments with which these calls do nothing.
        unsafe { raw::syscall6(*number, *a, *b, *c, *d, 0, 0) };
    }
    0
}

/// The first of these calls for which the filters in force kill, tried in a child process; with `graphs`, of those that only graphs make, too. `None` where
/// none does, or no child can be made.
pub fn deadly_call(graphs: bool) -> Option<&'static str> {
    let count = CALLS.len() - if graphs { 0 } else { OF_GRAPHS };
    let mut status = 0;
    // SAFETY: this process has one thread.
    unsafe {
        // No signal tells of its end: one that is blocked would wait for the program.
        let child = child::vfork(try_first, std::ptr::without_provenance_mut(count), STACK, 0);
        if child < 0 || libc::waitpid(child, &mut status, libc::__WALL) != child {
            return None;
        }
    }
    let (name, ..) = CALLS.get(BEGUN.load(Relaxed))?;
    libc::WIFSIGNALED(status).then_some(*name)
}
