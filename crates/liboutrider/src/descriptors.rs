//! What becomes of descriptors, and who hears of it.
//!
//! Four hear: the thread's graphs and plug-ins (`graphs`), declared lists (`declared`), what is kept of a followed file's descriptor
//! (`track`), and walks (`walk`). Here alone stands which of them hear of what, and in which order; they don't know of each other. Hooks say
//! what happens in the words of this module.

use core::ffi::c_int;

use libc::{DIR, FILE};

use crate::libio::descriptor;
use crate::{declared, graphs, track, walk};

// ---- Closing

/// close(2): `real` is the call.
#[inline(always)]
pub fn close(fd: c_int, real: impl FnOnce() -> c_int + Copy) -> c_int {
    let close = move || {
        forget(fd);
        real() as isize
    };
    graphs::through(move || graphs::close(fd), close) as c_int
}

/// A function of the C library is about to close a descriptor, or its number to become another file's.
#[inline(always)]
pub fn closing(fd: c_int) {
    graphs::announce(|| graphs::close(fd));
    forget(fd);
}

/// The same where graphs know of it.
#[inline]
pub fn forget(fd: c_int) {
    declared::closing(fd);
    track::closing(fd);
}

/// Descriptors `first..=last` are about to be closed.
pub fn closing_range(first: u32, last: u32) {
    graphs::closing_range(first, last);
    declared::closing_range(first, last);
    track::closing_range(first, last);
}

/// A buffered stream is about to be closed.
pub fn closing_stream(stream: *mut FILE) {
    let fd = descriptor(stream);
    if fd >= 0 {
        closing(fd);
    }
    graphs::streams::closing(stream);
}

/// A directory stream with this descriptor is about to be closed.
pub fn closing_directory(stream: *mut DIR, fd: c_int) {
    graphs::happened(graphs::Event::Closing(stream, fd));
    graphs::announce(|| graphs::close(fd));
    track::closing(fd);
}

/// The flags of a descriptor were changed, O_DIRECT perhaps: it is looked at anew.
#[inline]
pub fn flags_changed(fd: c_int) {
    track::closing(fd);
}

/// The file behind a descriptor is not to be touched from outside, through whatever descriptor. Lists are waited for until the monotonic clock
/// shows `until_us` µs.
pub fn leave_alone(fd: c_int, until_us: u64) {
    declared::leave_alone(fd, until_us);
    track::leave_alone(fd);
}

// ---- Duplicating

/// `to` has become a duplicate of `from`, or a call that was to make it so failed (`to` < 0).
#[inline]
pub fn duplicated(from: c_int, to: c_int) {
    if to < 0 || from == to {
        return;
    }
    declared::duplicated(from, to);
    graphs::happened(graphs::Event::Duplicated(from, to));
    if !track::duplicated(from, to) {
        walk::duplicated(from, to);
    }
}

/// dup2(2) and dup3(2), by which the number `to` becomes a duplicate of `from`: `real` is the call.
#[inline(always)]
pub fn duplicate_onto(from: c_int, to: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if from != to {
        closing(to);
    }
    let new = real();
    graphs::streams::replaced(to);
    duplicated(from, new);
    new
}
