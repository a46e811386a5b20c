//! Getting at a program's open files from the service's process.
//!
//! A file is opened anew, for reading, through /proc/PID/fd, which follows the link to the very inode, unlinked files included.
//! Duplicating the program's descriptor (pidfd_getfd) would save the permission check and two inotify events, and
//! was given up: a duplicate keeps the program's *open file description* alive beyond the program's last close, and with
//! it its flock(2), its leases, its IN_CLOSE events and, if it can write, ETXTBSY for whoever executes the file.
//!
//! The number may have been reused since it was told: the result is compared with the device and inode that the hook saw.
//! Opening goes by way of O_PATH, which has no effect on whatever it finds, so that a reused number that is a
//! pipe or a device now is never really opened.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use outrider_sys::raw;
use rustix::fs::{CWD, Mode, OFlags};

use crate::shm::{Header, lost};

/// What the hook knew of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Process.
    pub pid: u32,
    /// Number in that process.
    pub fd: u16,
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

fn checked(fd: OwnedFd, wanted: Wanted) -> Option<(OwnedFd, u64)> {
    let st = rustix::fs::fstat(fd.as_fd()).ok()?;
    let regular = st.st_mode & libc::S_IFMT == libc::S_IFREG;
    (regular && st.st_dev == wanted.dev && st.st_ino == wanted.ino)
        .then_some((fd, st.st_size as u64))
}

fn note(e: rustix::io::Errno, header: &Header) {
    if matches!(e, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) {
        header.lose(lost::EMFILE);
    }
}

/// A descriptor of our own for the file, and its size in bytes; `None` where there is no way, or the number has
/// another file now.
pub fn fetch(wanted: Wanted, header: &Header) -> Option<(OwnedFd, u64)> {
    let lose = |e: rustix::io::Errno| {
        note(e, header);
        if e == rustix::io::Errno::ACCESS || e == rustix::io::Errno::PERM {
            header.lose(lost::NO_FD);
        }
    };
    let path = format!("/proc/{}/fd/{}", wanted.pid, wanted.fd);
    let found = rustix::fs::openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(lose)
        .ok()?;
    let (found, size) = checked(found, wanted)?;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // O_NOATIME is for the file's owner only; our mapping would otherwise count as an access.
    let opened = rustix::fs::openat(CWD, &path, flags | OFlags::NOATIME, Mode::empty())
        .or_else(|_| rustix::fs::openat(CWD, &path, flags, Mode::empty()))
        .map_err(lose)
        .ok()?;
    Some((opened, size))
}

/// The name of an open file, for reports.
pub fn name(fd: &OwnedFd) -> Vec<u8> {
    use std::os::unix::ffi::OsStringExt;
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map(|p| p.into_os_string().into_vec())
        .unwrap_or_default()
}

/// Whether a process exists.
pub fn alive(pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let r = unsafe { raw::syscall6(libc::SYS_kill, pid as usize, 0, 0, 0, 0, 0) };
    r != -(libc::ESRCH as isize)
}

/// The command of a process, from /proc/PID/comm.
pub fn command(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|s| s.trim_end().to_owned())
        .unwrap_or_default()
}

/// Whether a process is over but for its parent's wait: it has no memory any more.
pub fn zombie(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|s| {
            s.rsplit_once(") ")
                .map(|(_, rest)| rest.starts_with('Z') || rest.starts_with('X'))
        })
        .unwrap_or(true)
}
