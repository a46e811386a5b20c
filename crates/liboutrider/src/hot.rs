//! Files that are cached already.
//!
//! There is nothing to foresee in them, so nothing is said of them: no event, no service, and no cache line that threads share is
//! written. Whether it is still so the hook asks the kernel itself, with cachestat(2) on what is about to be read, a third of a
//! microsecond, at ever fewer of the reads. Looked at is also a place further on: cachestat(2) counts a page from the moment its read
//! begins, so that right in front of a sequential reader the kernel's own readahead makes everything look cached.
//!
//! Where a page is missing, those around it are counted, which takes a hundredth of a millisecond. A page that went astray changes
//! nothing but that the next reads are looked at again; if there are more, the read is told, and everything after it, until the service
//! finds the file cached and sets FLAG_HOT again.
//!
//! Reads are counted off per thread and descriptor. Where the kernel gives no answer (before 6.5; a file that the process neither owns
//! nor may write to) a file counts as not cached.

use core::ffi::c_int;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::os::fd::BorrowedFd;

use outrider_core::shm::{MODE_FETCHALL_OPT, Proc, Slot, is_hot};
use outrider_sys::{cache, raw};

use crate::attach;

/// Bytes that must be cached where reading begins, and of a large read those looked at on both of its ends.
const LOOK: u64 = 128 << 10;
/// Further than the kernel's readahead reaches, bytes, and how much is looked at there.
const FAR: u64 = 16 << 20;
const PLACE: u64 = 16 << 10;
/// Bytes in which pages are counted where one is missing.
const AROUND: u64 = 16 << 20;
/// Most reads between two that are looked at …
const RARELY: u64 = 256;
/// … and least once so many are, and the bytes that may go by meanwhile where that is more reads: a file that
/// stops being cached is noticed so late.
const OFTEN: u64 = 16;
const UNSEEN: u64 = 2 << 20;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// One thread's reads of one descriptor, on a cache line of its own.
#[repr(align(64))]
struct Count {
    /// Reads that pass before one is looked at.
    left: AtomicU32,
    /// What `left` began with.
    given: AtomicU32,
    /// Whose they are: a hash of thread, descriptor and generation.
    whose: AtomicU64,
}

const COUNTS: usize = 128;
static COUNTED: [Count; COUNTS] = [const {
    Count {
        left: AtomicU32::new(0),
        given: AtomicU32::new(0),
        whose: AtomicU64::new(0),
    }
}; COUNTS];

/// The place where the calling thread's reads of a descriptor are counted, and the hash that names them. Two may share a place; then both
/// are looked at more often.
#[inline(always)]
fn count(slot: &Slot, fd: c_int) -> (&'static Count, u64) {
    // Threads' pointers are further apart than there are descriptors.
    let thread = raw::thread_pointer() as u64;
    let file = u64::from(slot.generation.load(Relaxed)) << 32 | fd as u64;
    let name = (thread ^ file).wrapping_mul(0xff51_afd7_ed55_8ccd);
    // The index is below COUNTS, a power of two.
    (&COUNTED[(name >> 57) as usize % COUNTS], name)
}

/// Whether a read of a descriptor with FLAG_HOT need not be looked at.
#[inline(always)]
pub fn passes(slot: &Slot, fd: c_int) -> bool {
    let (count, name) = count(slot, fd);
    let left = count.left.load(Relaxed);
    if left == 0 || count.whose.load(Relaxed) != name {
        return false;
    }
    count.left.store(left - 1, Relaxed);
    true
}

/// Whether a descriptor, just opened or met, can begin as FLAG_HOT: the file, of `size` bytes, is cached from `pos` on, in its middle
/// and at its end, but for single pages.
pub fn begins(fd: c_int, pos: u64, size: u64) -> bool {
    let looks = attach::header()
        .is_some_and(|h| h.looks.load(Relaxed) != 0 && h.mode.load(Relaxed) != MODE_FETCHALL_OPT);
    let first = pos..pos.saturating_add(LOOK).min(size);
    let [further, middle, last] =
        [pos.saturating_add(FAR), size / 2, size].map(|at| place(at, size));
    looks
        && [first, further, middle, last]
            .into_iter()
            .all(|r| found(fd, r, size) != Found::Missing)
}

/// Where to look in a file of `size` bytes for what lies at `at`.
fn place(at: u64, size: u64) -> Range<u64> {
    let start = at.min(size.saturating_sub(PLACE));
    start..start.saturating_add(PLACE).min(size)
}

/// Looks at a read of a descriptor with FLAG_HOT. `false`: something of it is missing, and not a single page.
pub fn stays(proc: &Proc, slot: &Slot, fd: c_int, offset: u64, len: u64) -> bool {
    let Ok(st) = raw::fstat(fd) else {
        return false;
    };
    let size = st.st_size as u64;
    let end = offset.saturating_add(len).min(size);
    let first = offset..end.min(offset.saturating_add(LOOK));
    let last = first.end.max(end.saturating_sub(LOOK))..end;
    let further = place(end.saturating_add(FAR), size);
    let mut astray = false;
    for range in [first, last, further] {
        match found(fd, range, size) {
            Found::Cached => {}
            Found::Astray => astray = true,
            Found::Missing => return false,
        }
    }
    let (count, name) = count(slot, fd);
    let mine = count.whose.load(Relaxed) == name;
    let passed = if mine {
        u64::from(count.given.load(Relaxed))
    } else {
        0
    };
    proc.hot_reads.fetch_add(1 + passed, Relaxed);
    proc.hot_bytes
        .fetch_add(len.saturating_mul(1 + passed), Relaxed);
    let most = (UNSEEN / len.max(1)).clamp(OFTEN, RARELY);
    let next = if astray { 1 } else { 2 * passed + 1 }.min(most) as u32;
    count.whose.store(name, Relaxed);
    count.given.store(next, Relaxed);
    count.left.store(next, Relaxed);
    true
}

/// What of a range is in the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// All of it.
    Cached,
    /// Nearly all of what lies around it.
    Astray,
    /// Too little, or nobody can tell.
    Missing,
}

/// Looks for `range` of a file of `size` bytes.
fn found(fd: c_int, range: Range<u64>, size: u64) -> Found {
    if range.is_empty() {
        return Found::Cached;
    }
    match cached(fd, range.clone()) {
        Some((pages, cached)) if cached >= pages => return Found::Cached,
        Some(_) => {}
        None => return Found::Missing,
    }
    let start = range.start.min(size.saturating_sub(AROUND));
    match cached(fd, start..start.saturating_add(AROUND).min(size)) {
        Some((pages, cached)) if is_hot(pages, cached) => Found::Astray,
        _ => Found::Missing,
    }
}

/// The pages of `range` and how many of them are in the page cache.
fn cached(fd: c_int, range: Range<u64>) -> Option<(u64, u64)> {
    let pages = range.end.div_ceil(PAGE).saturating_sub(range.start / PAGE);
    // SAFETY: a number that is only asked about; the kernel answers EBADF if it is nobody's.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = cache::cachestat(file, range).ok()?;
    Some((pages, stat.cached))
}
