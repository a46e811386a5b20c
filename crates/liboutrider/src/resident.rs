//! Files that are cached already.
//!
//! There is nothing to foresee in them, so nothing is said of them: no event, no service, and no cache line that threads share is
//! written. Whether a file is cached the hook asks the kernel when the file is opened, with cachestat(2) in a few places, a third of a
//! microsecond each. From then on it asks nothing, since the program may have forbidden itself the call: it goes by what is waited for
//! (`waits`). A thread that has waited for anything has its next reads looked at one by one, and one that waits for several
//! of few is told, with everything after it, until the service finds the file cached and sets FLAG_RESIDENT again. A page that went astray changes nothing.
//!
//! What the program itself has dropped from the cache (POSIX_FADV_DONTNEED) need not be waited for: reads that come near it are told.
//!
//! Reads are counted off per thread and descriptor. Where the kernel gives no answer (before 6.5; a file that the process neither owns
//! nor may write to) a file counts as not cached.
//!
//! Of an overlay's file, whose pages are another file's, cachestat(2) counts none: it is presumed to be cached until it is waited for. After a file
//! that was told others are not presumed to be cached, until the service has left one.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::os::fd::BorrowedFd;

use outrider_core::shm::{
    FLAG_BLIND, FLAG_RESIDENT, FLAG_UNTOLD, MODE_FETCHALL_OPT, Proc, Slot, is_resident,
};
use outrider_sys::cache::{CacheStat, CacheStatError, counted, counted_on};
use outrider_sys::device::is_overlay;
use outrider_sys::raw;
use outrider_sys::units::{ByteRange, PAGE};

use crate::local::peek;
use crate::{attach, waits};

/// Bytes that must be cached where reading begins.
const LOOK: u64 = 128 << 10;
/// Further than the kernel's readahead reaches, bytes, and how much is looked at there.
const FAR: u64 = 16 << 20;
const PLACE: u64 = 16 << 10;
/// Bytes in which pages are counted where one is missing.
const AROUND: u64 = 16 << 20;
/// Most reads that are counted together …
const RARELY: u64 = 256;
/// … and least once so many are, and their bytes where that is more reads.
const OFTEN: u64 = 16;
const UNSEEN: u64 = 2 << 20;
/// Of a file that is cached so many reads are waited for at most within [`waits::enough_read`], where each 128 KiB that the kernel reads ahead would bring
/// one, or within so many reads.
const WAITS: u32 = 4;
const FEW: u64 = 8;

/// One thread's reads of one descriptor, on a cache line of its own.
#[repr(align(64))]
struct Count {
    /// Reads that pass before one is looked at.
    left: AtomicU32,
    /// What `left` began with.
    given: AtomicU32,
    /// Whose they are: a hash of thread, descriptor and generation.
    whose: AtomicU64,
    /// So many of these were waited for …
    waits: AtomicU32,
    /// The descriptor.
    fd: AtomicU32,
    /// … while so many bytes were read.
    bytes: AtomicU64,
    /// Bytes of the file in the read that was looked at last, at most where it was at the file position …
    len: AtomicU64,
    /// … and where it ended if it was there, else [`NOWHERE`].
    end: AtomicU64,
}

const NOWHERE: u64 = u64::MAX;

impl Count {
    /// Reads that passed since the last look, if they are those of `name`.
    fn passed(&self, name: u64) -> u64 {
        if self.whose.load(Relaxed) == name {
            let (given, left) = (self.given.load(Relaxed), self.left.load(Relaxed));
            given.saturating_sub(left).into()
        } else {
            0
        }
    }

    /// Bytes of these: as far as the file position has moved, or as long as the one that was looked at.
    fn bytes_passed(&self, slot: &Slot, name: u64) -> u64 {
        let most = self.len.load(Relaxed).saturating_mul(self.passed(name));
        let end = self.end.load(Relaxed);
        match slot.pos.load(Relaxed).checked_sub(end) {
            Some(moved) if end != NOWHERE && moved > 0 => moved.min(most),
            _ => most,
        }
    }

    /// Forgets what was waited for until now.
    fn begin(&self) {
        self.waits.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
    }

    /// From now on these are `name`'s, of this descriptor, and so many pass.
    fn pause(&self, name: u64, fd: c_int, reads: u32) {
        self.whose.store(name, Relaxed);
        self.fd.store(fd as u32, Relaxed);
        self.given.store(reads, Relaxed);
        self.left.store(reads, Relaxed);
    }
}

const COUNTS: usize = 128;
static COUNTED: [Count; COUNTS] = [const {
    Count {
        left: AtomicU32::new(0),
        given: AtomicU32::new(0),
        whose: AtomicU64::new(0),
        waits: AtomicU32::new(0),
        fd: AtomicU32::new(0),
        bytes: AtomicU64::new(0),
        len: AtomicU64::new(0),
        end: AtomicU64::new(NOWHERE),
    }
}; COUNTS];
/// A file with FLAG_BLIND was told, and the service has left none to the hooks since.
static TOLD: AtomicBool = AtomicBool::new(false);

/// The place where the calling thread's reads of a descriptor are counted, and the hash that names them. Two may share a place; then both
/// are looked at more often.
#[inline(always)]
fn count(slot: &Slot, fd: c_int) -> (&'static Count, u64) {
    // Threads' pointers are further apart than there are descriptors.
    let thread = raw::thread_pointer() as u64;
    let file = u64::from(slot.generation.load(Relaxed)) << 32 | fd as u64;
    // An odd factor, so that no two have one name, and one that fits into an instruction.
    let name = (thread ^ file).wrapping_mul(0x5bd1_e995);
    // Seven bits in which thread and descriptor have a part; the index is below COUNTS.
    (&COUNTED[(name as u32 >> 25) as usize % COUNTS], name)
}

/// Whether a read of a descriptor with FLAG_RESIDENT need not be looked at.
#[inline(always)]
pub fn passes(slot: &Slot, fd: c_int) -> bool {
    let (count, name) = count(slot, fd);
    let left = count.left.load(Relaxed);
    if left == 0 || peek(&count.whose) != name || !waits::is_calm() {
        return false;
    }
    count.left.store(left - 1, Relaxed);
    true
}

/// A read of a descriptor with FLAG_RESIDENT was made; before it is counted, if that is done afterwards.
pub fn came(slot: &Slot, fd: c_int) {
    if waits::after() {
        let (count, name) = count(slot, fd);
        if count.whose.load(Relaxed) == name {
            count.waits.fetch_add(1, Relaxed);
        }
    }
}

/// The program has dropped what lies in `offset..offset+len`, of a descriptor with FLAG_RESIDENT: what it reads from there on is missing.
pub fn dropped(slot: &Slot, offset: u64, len: u64) {
    if offset.saturating_add(len) > slot.last.load(Relaxed).max(slot.pos.load(Relaxed)) {
        // No range is quiet while FLAG_RESIDENT is set: the fields are the hooks'. What they hold then means nothing later, since
        // such a range would begin where the file ends.
        slot.quiet_len.store(offset.saturating_add(1), Relaxed);
    }
}

/// Whether a read that ends at `end` is followed soon by what the program itself has dropped.
fn nears_dropped(slot: &Slot, end: u64) -> bool {
    let dropped = slot.quiet_len.load(Relaxed);
    dropped > 0 && end.saturating_add(FAR) >= dropped
}

/// The read that was let pass last got nothing: it doesn't count.
pub fn unread(slot: &Slot, fd: c_int) {
    let (count, name) = count(slot, fd);
    if count.passed(name) > 0 {
        count.left.fetch_add(1, Relaxed);
    }
}

/// The flags with which a descriptor begins that was just opened or met: FLAG_RESIDENT if the file, of `size` bytes, is cached from `pos` on, in its
/// middle and at its end, but for single pages, and FLAG_BLIND on an overlay.
#[inline(never)]
pub fn begins(slot: &Slot, fd: c_int, pos: u64, size: u64) -> u32 {
    if !looks() {
        return 0;
    }
    let first = pos..pos.saturating_add(LOOK).min(size);
    let [further, middle, last] =
        [pos.saturating_add(FAR), size / 2, size].map(|at| place(at, size));
    // See `stays`.
    slot.quiet_start.store(size, Relaxed);
    for range in [first.clone(), further, middle, last] {
        if range != first && range.start >= first.start && range.end <= first.end {
            continue;
        }
        match found(fd, slot.dev.load(Relaxed), range, size) {
            Found::Cached | Found::Astray => {}
            Found::Missing => return 0,
            Found::Overlaid if TOLD.load(Relaxed) => return FLAG_BLIND,
            Found::Overlaid => {
                return FLAG_BLIND | FLAG_RESIDENT;
            }
        }
    }
    FLAG_RESIDENT
}

/// Whether what is cached is to be known here.
fn looks() -> bool {
    attach::MODE.load(Relaxed) != MODE_FETCHALL_OPT && attach::looks()
}

/// Where to look in a file of `size` bytes for what lies at `at`.
fn place(at: u64, size: u64) -> ByteRange {
    let start = at.min(size.saturating_sub(PLACE));
    start..start.saturating_add(PLACE).min(size)
}

/// A read of a descriptor with FLAG_RESIDENT that is not merely counted. `false`: its file is no longer cached, as it seems, or will soon not be.
#[inline(never)]
pub fn stays(proc: &Proc, slot: &Slot, fd: c_int, offset: u64, len: u64) -> bool {
    let flags = slot.flags.load(Relaxed);
    let inside = match slot.quiet_start.load(Relaxed) {
        // The file may have grown since; what is read of it is no less then.
        0 => len,
        size if offset <= size => len.min(size - offset),
        _ => len,
    };
    let (count, name) = count(slot, fd);
    let known = count.whose.load(Relaxed) == name;
    let waited = known && count.waits.load(Relaxed) >= WAITS;
    if waited || nears_dropped(slot, offset.saturating_add(inside)) {
        if flags & FLAG_BLIND != 0 {
            TOLD.store(true, Relaxed);
        }
        ends(proc, slot, fd);
        count.begin();
        count.pause(name, fd, 0);
        return false;
    }
    let passed = count.passed(name);
    let since = len.saturating_mul(1 + passed);
    let bytes = count.bytes.load(Relaxed).saturating_add(since);
    if known && bytes <= waits::enough_read().max(FEW * len) {
        count.bytes.store(bytes, Relaxed);
    } else {
        count.begin();
        if flags & (FLAG_BLIND | FLAG_UNTOLD) == FLAG_BLIND {
            // The service has left it.
            TOLD.store(false, Relaxed);
        }
    }
    proc.resident_reads.fetch_add(1 + passed, Relaxed);
    let before = count.bytes_passed(slot, name);
    let read_to = offset.saturating_add(inside);
    // Of a stream's reads some are twice as long, and they are made already.
    let (end, most) = match slot.pos.load(Relaxed) {
        pos if pos == offset => (read_to, inside),
        pos if pos == read_to => (read_to, inside.saturating_mul(2)),
        _ => (NOWHERE, inside),
    };
    if inside > 0 || !known {
        count.len.store(most, Relaxed);
    }
    count.end.store(end, Relaxed);
    proc.resident_bytes
        .fetch_add(inside.saturating_add(before), Relaxed);
    let most = (UNSEEN / len.max(1)).clamp(OFTEN, RARELY);
    let next = match waits::before() {
        true => 0,
        false => (2 * passed + 1).min(most),
    };
    count.pause(name, fd, next as u32);
    true
}

/// The reads of a descriptor with FLAG_RESIDENT are told from now on, or it is about to be closed: counts the calling thread's since the last that was looked at.
pub fn ends(proc: &Proc, slot: &Slot, fd: c_int) {
    let (count, name) = count(slot, fd);
    count_passed(proc, slot, count, name);
}

/// The process is about to end: counts those of all threads and descriptors.
pub fn all_end(proc: &Proc) {
    for count in &COUNTED {
        let slot = proc.slots.get(count.fd.load(Relaxed) as usize);
        if count.given.load(Relaxed) > count.left.load(Relaxed)
            && let Some(slot) = slot
            && slot.flags.load(Relaxed) & FLAG_RESIDENT != 0
        {
            count_passed(proc, slot, count, count.whose.load(Relaxed));
        }
    }
}

fn count_passed(proc: &Proc, slot: &Slot, count: &Count, name: u64) {
    proc.resident_reads.fetch_add(count.passed(name), Relaxed);
    proc.resident_bytes
        .fetch_add(count.bytes_passed(slot, name), Relaxed);
    if count.whose.load(Relaxed) == name {
        // Once: a descriptor is closed, and then the process ends.
        count.given.store(count.left.load(Relaxed), Relaxed);
    }
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
    /// Its pages are another file's, of which cachestat(2) doesn't tell.
    Overlaid,
}

/// Looks for `range` of a file of `size` bytes.
#[inline(never)]
fn found(fd: c_int, dev: u64, range: ByteRange, size: u64) -> Found {
    if range.is_empty() {
        return Found::Cached;
    }
    let cached = |range: ByteRange| pages(&range, counted_on(dev, file(fd), range.clone()));
    match cached(range.clone()) {
        Ok((pages, cached)) if cached >= pages => return Found::Cached,
        Ok(_) => {}
        Err(CacheStatError::Unsupported) if is_overlay(file(fd), dev) => return Found::Overlaid,
        Err(_) => return Found::Missing,
    }
    let start = range.start.min(size.saturating_sub(AROUND));
    match cached(start..start.saturating_add(AROUND).min(size)) {
        Ok((pages, cached)) if is_resident(pages, cached) => Found::Astray,
        _ => Found::Missing,
    }
}

/// Whether all that the file has of `len` bytes at `offset` is in the page cache or on its way there. Not so if that is nothing, or nobody can
/// tell. Looks at pieces, up to one of which something is missing.
pub fn holds(fd: c_int, offset: u64, len: u64) -> bool {
    if !looks() {
        return false;
    }
    let asked = offset.saturating_add(len);
    let mut end = asked;
    let mut at = offset;
    while at < end {
        let piece = at..end.min(at.saturating_add(AROUND));
        match pages(&piece, counted(file(fd), piece.clone())) {
            Ok((pages, cached)) if cached >= pages => at = piece.end,
            // There are no pages beyond the end of the file.
            Ok((_, 1..)) if end == asked => match raw::status(fd) {
                Ok(st) if (st.st_size as u64) < piece.end => end = st.st_size as u64,
                _ => return false,
            },
            _ => return false,
        }
    }
    at > offset
}

/// The pages of `range` and how many of them are in the page cache.
fn pages(
    range: &ByteRange,
    counted: Result<CacheStat, CacheStatError>,
) -> Result<(u64, u64), CacheStatError> {
    let pages = range.end.div_ceil(PAGE).saturating_sub(range.start / PAGE);
    Ok((pages, counted?.cached))
}

/// A number that is only asked about.
pub fn file(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: the kernel answers EBADF if it is nobody's.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
