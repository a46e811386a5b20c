//! The program's calls as graphs have them.

use core::ffi::{c_char, c_int, c_void};

use libc::{iovec, off_t, size_t};
use outrider_graph::{Args, Call, Kind, open_creates};

/// A call without pointers.
#[inline(always)]
pub fn call(kind: Kind, fd: c_int) -> Call {
    Call::new(Args::new(kind, fd))
}

/// close(2) of a descriptor.
#[inline(always)]
pub fn close(fd: c_int) -> Call {
    call(Kind::Close, fd)
}

/// A change to a file's bytes or attributes that no graph contains, through its descriptor.
#[inline(always)]
pub fn change(fd: c_int) -> Call {
    call(Kind::Write, fd)
}

/// openat(2).
#[inline(always)]
pub fn open(dir: c_int, path: *const c_char, flags: c_int, mode: u32) -> Call {
    let mut c = call(Kind::Openat, dir);
    c.args.flags = flags;
    if open_creates(flags) {
        c.args.extra = mode;
    }
    c.path = path;
    c
}

/// A read or write as graphs have it.
#[inline(always)]
pub fn transfer(kind: Kind, fd: c_int, buffer: *mut c_void, n: size_t, offset: off_t) -> Call {
    let mut c = call(kind, fd);
    (c.args.len, c.args.offset, c.buffer) = (n, offset, buffer);
    c
}

/// A vectored read as graphs have it. Its length is looked up where the array is one that the kernel would take.
pub fn vectored(kind: Kind, fd: c_int, iov: *const iovec, n: c_int, offset: off_t) -> Call {
    let mut c = call(kind, fd);
    c.args.offset = offset;
    // SAFETY: the caller's array, which a thread with scopes promises to be one.
    c.args.len = unsafe { total(iov, n) };
    (c.vectored, c.vectors, c.vector_count) = (true, iov, n);
    c
}

/// Bytes of a vector in all; what the kernel would refuse comes out as a length that no graph foresees.
///
/// # Safety
/// `parts` is null or an array of `n`.
pub unsafe fn total(parts: *const iovec, n: c_int) -> usize {
    if parts.is_null() || !(0..=1024).contains(&n) {
        return usize::MAX;
    }
    // SAFETY: the caller's array.
    unsafe { core::slice::from_raw_parts(parts, n as usize) }
        .iter()
        .fold(0, |sum, p| sum.saturating_add(p.iov_len))
}
