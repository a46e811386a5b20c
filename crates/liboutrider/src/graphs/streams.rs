//! Buffered streams that may write to files.
//!
//! The C library empties a stream's buffer by a write of its own, which no hook sees, and at moments of its own. So while a stream is open
//! that may write to a regular file, nothing of that file is taken from what was made ahead.

use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use libc::{AT_FDCWD, FILE};
use outrider_sys::raw;

use super::calls::{change, open};
use super::turns::announce;
use crate::libio::descriptor;

/// Streams that are known, standard output and standard error included.
const MOST: usize = 64;

/// What a stream's descriptor names is not known yet …
const UNKNOWN: u32 = 0;
/// … is a regular file …
const REGULAR: u32 = 1;
/// … or something else.
const OTHER: u32 = 2;

struct Stream {
    at: AtomicPtr<FILE>,
    /// Its descriptor: the stream itself may be freed by ways that no hook sees.
    fd: AtomicI32,
    state: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
}

static STREAMS: [Stream; MOST] = [const {
    Stream {
        at: AtomicPtr::new(null_mut()),
        fd: AtomicI32::new(-1),
        state: AtomicU32::new(UNKNOWN),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
    }
}; MOST];
/// Entries that were ever used.
static USED: AtomicU32 = AtomicU32::new(0);
/// There were more.
static MORE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    static stdout: *mut FILE;
    static stderr: *mut FILE;
}

/// Called once, from the constructor.
pub fn start() {
    // SAFETY: the C library's, set before any constructor runs.
    unsafe {
        add(stdout);
        add(stderr);
    }
    outrider_graph::ask_who_writes(may_write);
}

/// Flags of open(2) for a mode of fopen(3), if the stream may write.
fn flags(mode: *const c_char) -> Option<c_int> {
    if mode.is_null() {
        return None;
    }
    // SAFETY: the caller's C string.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let both = mode.contains(&b'+');
    match mode.first() {
        Some(b'w') => Some(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC),
        Some(b'a') => Some(libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND),
        Some(b'r') if both => Some(libc::O_RDWR),
        _ => None,
    }
}

/// fopen(3) and freopen(3) are about to open a file.
pub fn opening(path: *const c_char, mode: *const c_char) {
    if let Some(flags) = flags(mode) {
        announce(|| open(AT_FDCWD, path, flags, 0));
    }
}

/// A stream was opened.
pub fn opened(stream: *mut FILE, mode: *const c_char) {
    if !stream.is_null() && flags(mode).is_some() {
        add(stream);
        announce(|| change(descriptor(stream)));
    }
}

fn add(stream: *mut FILE) {
    for (i, s) in STREAMS.iter().enumerate() {
        let free = s.at.compare_exchange(null_mut(), stream, AcqRel, Relaxed);
        if free.is_ok() {
            s.fd.store(descriptor(stream), Release);
            s.state.store(UNKNOWN, Release);
            USED.fetch_max(i as u32 + 1, AcqRel);
            return;
        }
    }
    MORE.store(true, Relaxed);
}

fn known() -> &'static [Stream] {
    STREAMS
        .get(..USED.load(Acquire) as usize)
        .unwrap_or(&STREAMS)
}

/// A stream is about to be closed.
pub fn closing(stream: *mut FILE) {
    for s in known() {
        if s.at.load(Relaxed) == stream {
            s.at.store(null_mut(), Release);
            announce(|| change(descriptor(stream)));
        }
    }
}

/// A descriptor names another file.
pub fn replaced(fd: c_int) {
    for s in known() {
        if s.fd.load(Acquire) == fd {
            s.state.store(UNKNOWN, Release);
        }
    }
}

/// Whether an open stream may write to a file.
fn may_write(device: u64, inode: u64) -> bool {
    MORE.load(Relaxed)
        || known().iter().any(|s| {
            if s.at.load(Acquire).is_null() {
                return false;
            }
            if s.state.load(Acquire) == UNKNOWN {
                let about = raw::status(s.fd.load(Acquire)).ok();
                let about = about.filter(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG);
                s.device.store(about.map_or(0, |st| st.st_dev), Relaxed);
                s.inode.store(about.map_or(0, |st| st.st_ino), Relaxed);
                let state = if about.is_some() { REGULAR } else { OTHER };
                s.state.store(state, Release);
            }
            s.state.load(Relaxed) == REGULAR
                && (s.device.load(Relaxed), s.inode.load(Relaxed)) == (device, inode)
        })
}
