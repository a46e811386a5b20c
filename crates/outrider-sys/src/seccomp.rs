//! Filters of system calls (seccomp) on the calling process. Nothing here allocates, and no call is made that a program's loader has not
//! made before: a filter may kill for any other.

use core::ffi::CStr;

use crate::decimal;
use crate::raw;

/// A number of filters that can't be told: before Linux 5.9 the kernel says only that there are some.
pub const UNKNOWN: u32 = u32::MAX;

/// The filters that the calling thread is under, from /proc/self/status. `None` where that can't be read.
pub fn filters() -> Option<u32> {
    count(&read(c"/proc/self/status")?)
}

/// The same of another thread, from its status in /proc. Under strict mode (SECCOMP_MODE_STRICT) it is [`UNKNOWN`].
pub fn filters_of(status: &CStr) -> Option<u32> {
    let status = read(status)?;
    match status.mode? {
        STRICT => Some(UNKNOWN),
        _ => count(&status),
    }
}

const STRICT: u32 = 1;

fn count(status: &Status) -> Option<u32> {
    match (status.mode?, status.filters) {
        (0, _) => Some(0),
        (_, count) => Some(count.unwrap_or(UNKNOWN)),
    }
}

fn read(path: &CStr) -> Option<Status> {
    let mut status = Status::default();
    let mut buffer = [0u8; 1024];
    // SAFETY: a C string; the kernel writes at most the length given into a buffer that outlives the calls.
    unsafe {
        let fd = raw::syscall6(
            libc::SYS_openat,
            libc::AT_FDCWD as usize,
            path.as_ptr() as usize,
            // Where a program has mounts of its own it may have put a pipe in its place.
            (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize,
            0,
            0,
            0,
        );
        if fd < 0 {
            return None;
        }
        loop {
            let n = raw::syscall6(
                libc::SYS_read,
                fd as usize,
                buffer.as_mut_ptr() as usize,
                buffer.len(),
                0,
                0,
                0,
            );
            match buffer.get(..n.max(0) as usize) {
                // What follows is of no interest, and to ask for it a call.
                Some(bytes) if n > 0 && !status.take(bytes) => {}
                _ => break,
            }
        }
        raw::close(fd as i32);
    }
    Some(status)
}

/// What of the file is of interest, found piece by piece.
#[derive(Default)]
struct Status {
    line: [u8; 32],
    len: usize,
    mode: Option<u32>,
    filters: Option<u32>,
}

impl Status {
    /// Takes what comes next of the file. Whether all is known.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = rest.get(1..).unwrap_or_default();
            let begun;
            let line = if self.len == 0 {
                line
            } else {
                self.keep(line);
                begun = self.line;
                begun.get(..self.len).unwrap_or_default()
            };
            if let Some(rest) = line.strip_prefix(b"Seccomp:\t") {
                self.mode = number(rest);
            } else if let Some(rest) = line.strip_prefix(b"Seccomp_filters:\t") {
                self.filters = number(rest);
            }
            self.len = 0;
            if self.mode == Some(0) || self.mode.is_some() && self.filters.is_some() {
                return true;
            }
        }
        self.keep(bytes);
        false
    }

    /// A part of a line, of which the first bytes are enough.
    fn keep(&mut self, part: &[u8]) {
        for b in part {
            let Some(place) = self.line.get_mut(self.len) else {
                return;
            };
            *place = *b;
            self.len += 1;
        }
    }
}

fn number(text: &[u8]) -> Option<u32> {
    decimal(text)?.try_into().ok()
}
