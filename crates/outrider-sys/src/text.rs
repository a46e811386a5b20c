//! Small text files of /proc and /sys, read without libc's public names.

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Mode, OFlags};

use crate::raw::Fd;

/// Largest file read here: a mountinfo of a busy container host is a few hundred KiB; this is some 30,000 mounts.
const LIMIT: usize = 4 << 20;

/// Whether one of these files was not opened for want of a descriptor.
static LACKED_DESCRIPTORS: AtomicBool = AtomicBool::new(false);

/// Whether one of these files was not opened for want of a descriptor (EMFILE, ENFILE) since this was asked last: whoever needed it takes it for one that is not there.
pub fn lacked_descriptors() -> bool {
    LACKED_DESCRIPTORS.load(Relaxed) && LACKED_DESCRIPTORS.swap(false, Relaxed)
}

/// Opens `path` for reading, close-on-exec. Where a program has mounts of its own it may have put a pipe or a terminal in its place: neither keeps anybody waiting.
pub fn open(path: &Path) -> io::Result<Fd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    Ok(noted(opened)?.into())
}

/// What came of opening one of these files, noted if a descriptor was lacking.
pub(crate) fn noted<T>(opened: rustix::io::Result<T>) -> rustix::io::Result<T> {
    if let Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) = opened {
        LACKED_DESCRIPTORS.store(true, Relaxed);
    }
    opened
}

/// The contents of a small file. Whatever lies there in its place, nobody is waited for.
pub fn read_bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_open(&open(path.as_ref())?)
}

/// The same of one that is open, from where it was read last.
pub(crate) fn read_open(fd: &Fd) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    let mut buf = [0u8; 4096];
    loop {
        match rustix::io::read(fd, &mut buf) {
            Ok(0) => return Ok(all),
            Ok(n) => all.extend_from_slice(&buf[..n]),
            Err(rustix::io::Errno::INTR) => continue,
            Err(e) => return Err(e.into()),
        }
        if all.len() > LIMIT {
            return Ok(all);
        }
    }
}

/// The contents of a small file as text, without the white space at its ends.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&read_bytes(path)?)
        .trim()
        .to_owned())
}

/// A number that stands alone in a small file.
pub(crate) fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read(path).ok()?.parse().ok()
}
