//! What this kernel, and this process on it, may do. Each check tries the real thing on something of our
//! own, because version numbers don't tell what a seccomp filter or a security module refuses.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags};

use crate::cache::{self, CacheStatError};
use crate::kernel_cache::KernelCache;
use crate::pagemap::Pagemap;
use crate::units::PAGE;
use crate::{raw, text};

/// The answer to one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Capability {
    /// It works.
    Yes,
    /// It does not, and why.
    No(String),
    /// It could not be tried, and why.
    Unknown(String),
}

impl Capability {
    /// True for [`Capability::Yes`].
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes)
    }

    fn from_result<T>(what: &str, result: io::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Yes,
            Err(e) => Self::No(format!("{what}: {e}")),
        }
    }
}

/// Whether an io_uring can be set up and takes a buffered read. Containers' default seccomp filters and the
/// sysctl `kernel.io_uring_disabled` refuse it.
pub fn io_uring() -> Capability {
    Capability::from_result("io_uring_setup", io_uring::IoUring::new(2))
}

/// A pid descriptor for process `pid`.
fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: takes numbers only; the new descriptor is ours.
    let r = unsafe { raw::syscall6(libc::SYS_pidfd_open, pid as usize, 0, 0, 0, 0, 0) };
    owned(r)
}

fn owned(r: isize) -> io::Result<OwnedFd> {
    if r < 0 {
        return Err(io::Error::from_raw_os_error(-r as i32));
    }
    // SAFETY: the kernel just returned this descriptor to us, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(r as i32) })
}

fn pidfd_getfd(pid: i32, fd: i32) -> io::Result<OwnedFd> {
    // 438 is pidfd_getfd on every architecture (Linux 5.6).
    const SYS_PIDFD_GETFD: i64 = 438;
    let pidfd = pidfd_open(pid)?;
    // SAFETY: takes numbers only; the new descriptor is ours.
    owned(unsafe {
        raw::syscall6(
            SYS_PIDFD_GETFD,
            pidfd.as_raw_fd() as usize,
            fd as usize,
            0,
            0,
            0,
            0,
        )
    })
}

/// Whether this process can fetch its own descriptors (`pidfd_getfd`, Linux 5.6), which gives a worker
/// with a descriptor table of its own the program's files.
pub fn pidfd_getfd_self() -> Capability {
    let tried =
        cache_file().and_then(|file| pidfd_getfd(std::process::id() as i32, file.as_raw_fd()));
    Capability::from_result("pidfd_getfd", tried)
}

/// Whether this process can fetch a child's descriptors, as a parent that prefetches from outside does.
/// Forks: call it only where the process has one thread.
pub fn pidfd_getfd_child() -> Capability {
    let file = match cache_file() {
        Ok(file) => file,
        Err(e) => return Capability::Unknown(e.to_string()),
    };
    // SAFETY: the child calls nothing but async-signal-safe functions.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Capability::Unknown(format!("fork: {}", io::Error::last_os_error()));
    }
    if child == 0 {
        // SAFETY: as above; the child dies with its parent at the latest.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
    }
    let tried = pidfd_getfd(child, file.as_raw_fd());
    // SAFETY: `child` is our own child and has not been waited for.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    Capability::from_result("pidfd_getfd of a child", tried)
}

/// A file of our own that exists nowhere else.
fn cache_file() -> io::Result<OwnedFd> {
    Ok(rustix::fs::memfd_create(
        c"outrider-caps",
        rustix::fs::MemfdFlags::CLOEXEC,
    )?)
}

/// Whether `cachestat` answers for a file of our own.
pub fn cachestat_own() -> Capability {
    match cache_file() {
        Ok(file) => match cache::cachestat(file.as_fd(), 0..1) {
            Ok(_) => Capability::Yes,
            Err(e) => Capability::No(e.to_string()),
        },
        Err(e) => Capability::Unknown(e.to_string()),
    }
}

/// Whether the kernel module's `/dev/outrider` is there, may be opened, and speaks our version.
pub fn kernel_module() -> Capability {
    match KernelCache::open() {
        Ok(_) => Capability::Yes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Capability::Unknown("outrider_cache is not loaded".to_owned())
        }
        Err(e) => Capability::No(format!("/dev/outrider: {e}")),
    }
}

/// Whether `cachestat` answers for a file that this process neither owns nor may write to. Root may write
/// to every file, so for root the answer is that of [`cachestat_own`].
pub fn cachestat_foreign() -> Capability {
    for path in [
        "/etc/passwd",
        "/usr/lib/os-release",
        "/bin/sh",
        "/proc/self/exe",
    ] {
        let Ok(file) = text::open(Path::new(path)) else {
            continue;
        };
        if cache::residency_is_visible(file.as_fd()) {
            continue;
        }
        return match cache::cachestat(file.as_fd(), 0..1) {
            Ok(_) => Capability::Yes,
            Err(
                e @ (CacheStatError::NotPermitted
                | CacheStatError::Refused
                | CacheStatError::Unsupported),
            ) => Capability::No(e.to_string()),
            Err(e) => Capability::Unknown(e.to_string()),
        };
    }
    cachestat_own()
}

/// One anonymous page that is there.
fn with_page<T>(act: impl FnOnce(*mut core::ffi::c_void, usize) -> io::Result<T>) -> io::Result<T> {
    let len = PAGE as usize;
    // SAFETY: a new anonymous mapping, written only here and unmapped below.
    unsafe {
        let at = rustix::mm::mmap_anonymous(
            core::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?;
        at.cast::<u8>().write_volatile(1);
        let result = act(at, len);
        rustix::mm::munmap(at, len)?;
        result
    }
}

/// Whether `MADV_POPULATE_READ` (Linux 5.14) works: the readahead that is never clipped and that tells
/// when the data has arrived.
pub fn populate_read() -> Capability {
    let tried = with_page(|at, len| {
        // SAFETY: populating our own mapping changes nothing in it.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_madvise,
                at as usize,
                len,
                libc::MADV_POPULATE_READ as usize,
                0,
                0,
                0,
            )
        };
        if r < 0 {
            Err(io::Error::from_raw_os_error(-r as i32))
        } else {
            Ok(())
        }
    });
    Capability::from_result("MADV_POPULATE_READ", tried)
}

/// Whether `/proc/self/pagemap` can be read, which tells which pages of a mapping the program has touched.
pub fn pagemap() -> Capability {
    let tried = with_page(|at, len| {
        let mut shown = false;
        Pagemap::own()?.read(addresses(at, len), |_| shown = true)?;
        shown_as_present(shown)
    });
    Capability::from_result("/proc/self/pagemap", tried)
}

/// Whether the `PAGEMAP_SCAN` ioctl (Linux 6.7) works: all touched ranges of a mapping in one call.
pub fn pagemap_scan() -> Capability {
    let tried = with_page(|at, len| {
        let mut shown = false;
        Pagemap::own()?.scan(addresses(at, len), |_| shown = true)?;
        shown_as_present(shown)
    });
    Capability::from_result("PAGEMAP_SCAN", tried)
}

fn addresses(at: *mut core::ffi::c_void, len: usize) -> Range<u64> {
    at as u64..(at as usize + len) as u64
}

fn shown_as_present(shown: bool) -> io::Result<()> {
    if shown {
        Ok(())
    } else {
        Err(io::Error::other("a touched page is not shown as present"))
    }
}

/// `kernel.yama.ptrace_scope`: 0 anyone of the same user, 1 descendants only, 2 administrators only, 3
/// nobody may look into another process. `None` where Yama is not built in (as 0).
pub fn yama_ptrace_scope() -> Option<u64> {
    text::read_number("/proc/sys/kernel/yama/ptrace_scope")
}

/// The running kernel's release, such as `6.18.1`.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_answer() {
        // What the answer is depends on the machine; that there is one does not.
        for answer in [
            io_uring(),
            pidfd_getfd_self(),
            cachestat_own(),
            cachestat_foreign(),
            populate_read(),
            pagemap(),
            pagemap_scan(),
        ] {
            if let Capability::No(why) | Capability::Unknown(why) = answer {
                assert!(!why.is_empty());
            }
        }
        assert!(!kernel_release().is_empty());
    }
}
