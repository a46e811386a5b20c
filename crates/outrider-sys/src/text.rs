//! Small text files of /proc and /sys, read without libc's public names.

use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::raw::Fd;

/// Largest file read here: a mountinfo of a busy container host is a few hundred KiB.
const LIMIT: usize = 4 << 20;

/// Opens `path` for reading, close-on-exec.
pub(crate) fn open(path: &Path) -> io::Result<Fd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
}

/// The contents of a small file.
pub(crate) fn read_bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
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
