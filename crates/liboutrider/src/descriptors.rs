//! What becomes of descriptors, and who hears of it.
//!
//! Four hear: the thread's graphs and plug-ins (`graphs`), declared lists (`declared`), what is kept of a followed file's descriptor
//! (`track`), and walks (`walk`). Here alone stands which of them hear of what, and in which order; they don't know of each other. Hooks say
//! what happens in the words of this module.

use core::ffi::{c_char, c_int};
use core::sync::atomic::Ordering::Relaxed;

use libc::{DIR, FILE, dirent, off_t, ssize_t};
use outrider_core::shm::{FD_IGNORED, FD_TRACKED, FD_UNKNOWN, FLAG_SHARED_POS, Kind, Slot};
use outrider_graph::Call;
use outrider_sys::raw;

use crate::libio::{self, descriptor};
use crate::track::Tracked;
use crate::{attach, declared, graphs, track, walk};

pub use crate::track::{FAR, advanced, came, mapping_changed, moved_on, reads_to_copy};
pub use crate::walk::asked;

// ---- Looking up

/// The state of a descriptor whose file is followed, or `None`. Nothing but loads unless the descriptor is seen for the
/// first time.
#[inline(always)]
pub fn tracked(fd: c_int) -> Option<Tracked> {
    let Some(proc) = attach::current() else {
        return orphan(fd);
    };
    let slot = proc.slots.get(fd as usize)?;
    let state = slot.state.load(Relaxed);
    if state == FD_TRACKED {
        Some((proc, slot))
    } else if state == FD_IGNORED {
        None
    } else {
        adopt(fd)
    }
}

#[inline(always)]
fn orphan(fd: c_int) -> Option<Tracked> {
    // Nothing was ever followed in this process or its ancestors since exec: then nothing can be.
    if attach::orphaned(fd) {
        adopt(fd)
    } else {
        None
    }
}

/// Classifies a descriptor that no hook saw being opened: inherited, received over a socket, opened by a system
/// call that is not interposed.
#[cold]
#[inline(never)]
pub fn adopt(fd: c_int) -> Option<Tracked> {
    if !attach::predicts() || fd < 0 {
        return None;
    }
    // SAFETY: F_GETFL takes no memory.
    let flags = unsafe {
        raw::syscall6(
            libc::SYS_fcntl,
            fd as usize,
            libc::F_GETFL as usize,
            0,
            0,
            0,
            0,
        )
    };
    if flags < 0 {
        return None;
    }
    opened(fd, flags as c_int, FLAG_SHARED_POS, None)
}

/// The device of the regular file behind a descriptor, in a process in which files are followed. The kernel is asked when the descriptor is seen for the
/// first time, at most.
pub fn device(fd: c_int) -> Option<u64> {
    // Classifies it, if need be.
    tracked(fd);
    let slot = attach::current()?.slots.get(fd as usize)?;
    let dev = slot.dev.load(Relaxed);
    (slot.state.load(Relaxed) != FD_UNKNOWN && dev != 0).then_some(dev)
}

/// Whether a list or the service may have to hear of reads of a descriptor.
#[inline(always)]
pub fn is_followed(fd: c_int) -> bool {
    tracked(fd).is_some() || declared::follows(fd)
}

// ---- Opening

/// open(2) and its kin with these flags: `call` is it as graphs have it, `real` makes it.
#[inline(always)]
pub fn open(
    flags: c_int,
    call: impl FnOnce() -> Call + Copy,
    real: impl FnOnce() -> c_int + Copy,
) -> c_int {
    let open = move || {
        let fd = real();
        opened(fd, flags, 0, Some(0));
        fd as isize
    };
    graphs::through(call, open) as c_int
}

/// A descriptor came to be, with these open(2) flags. `extra` are `FLAG_*` bits; its position is `begins`, bytes, if that is known.
#[cold]
#[inline(never)]
fn opened(fd: c_int, flags: c_int, extra: u32, begins: Option<u64>) -> Option<Tracked> {
    if !track::may_track(fd) {
        return None;
    }
    let file = track::regular(fd, flags);
    if let Some(st) = file
        && flags & libc::O_ACCMODE != libc::O_RDONLY
    {
        track::opened_for_writing(fd, st.st_dev);
    }
    match file {
        Some(st)
            if st.st_size as u64 >= attach::MIN_SIZE.load(Relaxed)
                && !track::passes_unfollowed(flags, st.st_size as u64) =>
        {
            track::opened(fd, flags, extra, begins, &st)
        }
        small => {
            if let Some(st) = small
                && flags & libc::O_ACCMODE == libc::O_RDONLY
            {
                walk::opened(fd, &st);
            }
            track::opened_unfollowed(fd, small.map_or(0, |st| st.st_dev));
            None
        }
    }
}

/// fopen(3) and freopen(3) are about to open a file; [`opened_stream`] is to follow.
pub fn opening_stream(path: *const c_char, mode: *const c_char) {
    graphs::streams::opening(path, mode);
}

/// A stream was opened in this mode, or couldn't be.
pub fn opened_stream(stream: *mut FILE, mode: *const c_char) {
    graphs::streams::opened(stream, mode);
    let fd = descriptor(stream);
    if fd >= 0
        && let Some((flags, begins)) = libio::opened_as(mode)
    {
        opened(fd, flags, FLAG_SHARED_POS, begins);
    }
}

/// The same of one that was put before an open descriptor.
pub fn wrapped(fd: c_int, stream: *mut FILE, mode: *const c_char) {
    graphs::streams::opened(stream, mode);
    if !stream.is_null()
        && let Some((_, slot)) = tracked(fd)
    {
        slot.flags.fetch_or(FLAG_SHARED_POS, Relaxed);
    }
}

// ---- Reading and writing

/// Whether graphs or lists may have to hear of the calling thread's reads.
#[inline(always)]
fn are_reads_heard() -> bool {
    attach::INVOLVED.load(Relaxed) != 0 && (!graphs::is_nobodys() || declared::declares())
}

/// A read of `len` bytes at the file position is about to be made: with the state for [`advanced`], if [`transfer`] need not be called.
#[inline(always)]
pub fn silent_here(fd: c_int, len: usize) -> Option<Option<&'static Slot>> {
    if are_reads_heard() {
        return None;
    }
    track::silent(fd, |slot| slot.pos.load(Relaxed), len)
}

/// A read of `offset..offset+len` is about to be made: whether [`read_at`] need not be called.
#[inline(always)]
pub fn silent_at(fd: c_int, offset: u64, len: usize) -> bool {
    !are_reads_heard() && track::silent(fd, |_| offset, len).is_some()
}

/// What a call does with the bytes of a file.
#[derive(Clone, Copy)]
pub enum Transfer {
    /// It reads so many at most, bytes; `None`: that is only known afterwards.
    Read(Option<usize>),
    /// It writes.
    Write,
}

/// A transfer at the file position: `call` is it as graphs have it, `real` makes it.
#[inline(always)]
pub fn transfer(
    fd: c_int,
    what: Transfer,
    call: impl FnOnce() -> Call + Copy,
    real: impl FnOnce() -> ssize_t + Copy,
) -> ssize_t {
    let transfer = move || match what {
        Transfer::Read(Some(len)) => {
            let slot = reading(fd, len);
            let n = real();
            came(fd);
            advanced(slot, n);
            n
        }
        Transfer::Read(None) => {
            let n = real();
            has_read(fd, n);
            n
        }
        Transfer::Write => {
            let n = real();
            has_written(fd, n);
            n
        }
    };
    graphs::through_or(call, transfer, move |n| track::transferred(fd, n))
}

/// A read of `len` bytes at `offset`, bytes, likewise.
#[inline(always)]
pub fn read_at(
    fd: c_int,
    offset: off_t,
    len: Option<usize>,
    call: impl FnOnce() -> Call + Copy,
    real: impl FnOnce() -> ssize_t + Copy,
) -> ssize_t {
    let read = move || {
        let Some(len) = len else {
            let n = real();
            has_read_at(fd, offset as u64, n);
            return n;
        };
        reading_at(fd, offset as u64, len);
        let n = real();
        came(fd);
        n
    };
    graphs::through(call, read)
}

/// lseek(2).
#[inline(always)]
pub fn seek(
    fd: c_int,
    call: impl FnOnce() -> Call + Copy,
    real: impl FnOnce() -> off_t + Copy,
) -> off_t {
    let seek = move || {
        let at = real();
        track::moved(fd, at);
        at as isize
    };
    graphs::through(call, seek) as off_t
}

/// A read of `len` bytes at the file position is about to be made; [`advanced`] is to follow.
#[inline(always)]
pub fn reading(fd: c_int, len: usize) -> Option<&'static Slot> {
    declared::reading(fd, len);
    reading_here(fd, len)
}

/// Of a read at the file position, which was made or is about to be.
#[inline(always)]
fn reading_here(fd: c_int, len: usize) -> Option<&'static Slot> {
    let tracked = tracked(fd)?;
    track::reading(tracked, fd, len);
    Some(tracked.1)
}

/// A read of `offset..offset+len` is about to be made.
#[inline(always)]
pub fn reading_at(fd: c_int, offset: u64, len: usize) {
    declared::reading_at(fd, offset, len);
    if let Some(tracked) = tracked(fd) {
        track::reading_at(tracked, fd, offset, len);
    }
}

/// `n` bytes were read at the file position.
#[inline(always)]
pub fn has_read(fd: c_int, n: isize) {
    if n > 0 {
        declared::has_read(fd, n);
        came(fd);
        advanced(reading_here(fd, n as usize), n);
    }
}

/// `n` bytes were read at `offset`.
#[inline(always)]
pub fn has_read_at(fd: c_int, offset: u64, n: isize) {
    if n > 0 {
        came(fd);
        reading_at(fd, offset, n as usize);
    }
}

/// Whether a list follows a descriptor. If so, `n` bytes were read at the file position.
pub fn has_read_declared(fd: c_int, n: usize) -> bool {
    let follows = declared::follows(fd);
    if follows {
        declared::has_read(fd, n as isize);
    }
    follows
}

/// A file's bytes are about to be changed through a descriptor by a call that no graph contains.
#[inline(always)]
pub fn changing(fd: c_int) {
    graphs::announce(|| graphs::change(fd));
}

/// `n` bytes were written at the file position.
#[inline(always)]
pub fn has_written(fd: c_int, n: isize) {
    track::transferred(fd, n);
}

// ---- Hints, and what else concerns the pages of a file that is followed

/// See [`track::about`].
pub fn about(fd: c_int, kind: Kind, extra: u64, offset: u64, len: u64) -> bool {
    tracked(fd).is_some_and(|tracked| track::about(tracked, fd, kind, extra, offset, len))
}

/// See [`track::take_over`].
pub fn take_over(fd: c_int, offset: u64, len: u64) -> bool {
    attach::predicts() && tracked(fd).is_some_and(|t| track::take_over(t, fd, offset, len))
}

/// The kernel has taken this advice on how a file is read.
pub fn advised(fd: c_int, advice: c_int) {
    if let Some((_, slot)) = tracked(fd) {
        track::advised(slot, advice);
    }
}

/// A file was mapped at `address`, `len` bytes from `offset` on.
pub fn mapped(fd: c_int, offset: u64, address: usize, len: usize) {
    if let Some(tracked) = tracked(fd) {
        track::mapped(tracked, fd, offset, address, len);
    }
}

/// What is read through this descriptor is to leave the page cache at once, which the kernel sees to where it was the read that brought it in: nobody else is to.
pub fn leave_uncached(fd: c_int) {
    ignore(fd);
}

/// The reads of this descriptor are declared: nobody is to predict them as well.
pub fn leave_to_declared(fd: c_int) {
    ignore(fd);
}

fn ignore(fd: c_int) {
    if tracked(fd).is_some() {
        track::ignore(fd);
    }
}

// ---- Directories

fn directory(stream: *mut DIR) -> c_int {
    // SAFETY: an open stream.
    unsafe { libc::dirfd(stream) }
}

/// A directory stream was opened, or couldn't be.
pub fn opened_directory(stream: *mut DIR) {
    if !stream.is_null() {
        let fd = directory(stream);
        graphs::happened(graphs::Event::Listing(stream, fd));
        if !graphs::follow_directories() {
            walk::visited(fd);
        }
    }
}

/// An entry was read from it, or null at its end.
#[inline(always)]
pub fn listed(stream: *mut DIR, entry: *mut dirent) {
    graphs::read_entry(stream, entry);
    if walk::is_filled(stream, entry) && !graphs::follow_directories() {
        walk::filled(directory(stream), entry);
    }
}

/// It begins anew.
pub fn rewound(stream: *mut DIR) {
    graphs::happened(graphs::Event::Rewound(stream, directory(stream)));
}

/// It is about to be closed.
pub fn closing_directory(stream: *mut DIR) {
    if !stream.is_null() {
        let fd = directory(stream);
        graphs::happened(graphs::Event::Closing(stream, fd));
        graphs::announce(|| graphs::close(fd));
        track::closing(fd);
    }
}

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
    match tracked(from) {
        Some(tracked) => track::duplicated(tracked, from, to),
        None => {
            track::duplicated_unfollowed(to);
            walk::duplicated(from, to);
        }
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
