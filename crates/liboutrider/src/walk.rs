//! Small files, whose reads are not followed, and directories that are listed.
//!
//! A program that opens many of them which are not cached may be going through a tree, and then the service can go ahead of it
//! (`outrider_core::walk`). So it is told of those that are not cached, and once it goes ahead of all, since what it has fetched is cached. While all is
//! cached, ever fewer are looked at. Where cachestat(2) tells nothing (directories, others' files, overlayfs, before Linux 6.5) a file counts as not
//! cached if the thread has had something read from a disk since it last opened one.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use libc::{DIR, dirent};
use outrider_core::shm::{self, FD_IGNORED, Kind, MODE_PREDICT_OPT, Proc};
use outrider_sys::cache::{CacheStatError, cachestat, counted_on};
use outrider_sys::device::{LiesOn, known_to_lie_on, lies_on};
use outrider_sys::raw;
use outrider_sys::units::PAGE;

use crate::attach;
use crate::resident::file;

/// Files, or directories, that are not cached before the first is told: programs that open a few need no help.
const FEW: u32 = 8;
/// Most that are not looked at after one that was cached.
const RARELY: u32 = 63;

/// Blocks of 512 bytes read in a large directory that are worth telling of: four of ext4's.
const SOME: u32 = 32;
/// In a large directory it is looked whether attributes were waited for each time that so many have been asked for.
const ASKED: u32 = 64;
/// Bytes of what a C library keeps of a directory stream, before the buffer: 48 in glibc.
const STREAM: usize = 64;

/// The directory that was opened last, if it was looked then what had been read; or -1.
static LOOKED_AT: AtomicI32 = AtomicI32::new(-1);

/// The file that was told of last, or -1.
static TOLD: AtomicI32 = AtomicI32::new(-1);

/// How closely files, or directories, are looked at.
struct Attention {
    /// So many need not be looked at, …
    pass: AtomicU32,
    /// … of so many at first.
    passed: AtomicU32,
    /// So many were not cached.
    cold: AtomicU32,
}

static FILES: Attention = Attention::new();
/// Files of which it isn't known yet on what they lie.
static UNKNOWN: Attention = Attention::new();
static DIRECTORIES: Attention = Attention::new();

/// What threads have had read from disks when they last opened a file: half a hash that names the thread, and half a count of blocks.
static READ: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// The same of the thread that was last asked whether it has waited in a large directory.
static WAITED: AtomicU64 = AtomicU64::new(0);

/// Whether trees are gone through ahead of this process.
fn goes_ahead() -> bool {
    attach::MODE.load(Relaxed) == MODE_PREDICT_OPT && attach::predicts()
}

/// A small regular file was opened for reading.
#[inline(never)]
pub fn opened(fd: c_int, st: &libc::stat) {
    if !goes_ahead() || st.st_size == 0 {
        return;
    }
    // Otherwise there is nothing behind it.
    let known = known_to_lie_on(st.st_dev);
    if known == Some(LiesOn::Nothing) || !attach::looks() {
        return;
    }
    let walking = attach::current().map_or(0, |p| {
        attach::goes_on(p);
        p.walking.load(Relaxed)
    });
    let is_cold = || !is_cached(fd, st);
    if known.is_none() {
        // A server would be asked: not for the sake of a few files, nor of what lies in memory.
        let may_be_cold = || may_be_cold(fd, st.st_size as u64);
        if !UNKNOWN.is_worth_telling(may_be_cold) || lies_on(file(fd), st.st_dev) == LiesOn::Nothing
        {
            return;
        }
        FILES.cold.fetch_max(FEW, Relaxed);
    }
    let cold = match walking {
        0 if !FILES.is_worth_telling(is_cold) => return,
        0 => true,
        _ => walking & shm::WHETHER_COLD != 0 && is_cold(),
    };
    let Some(proc) = attach::attach() else {
        return;
    };
    if !rests(&proc.rest) {
        TOLD.store(fd, Relaxed);
        tell_entry(proc, fd, st, cold);
    }
}

/// A regular file was opened whose reads are followed, and it is cached.
#[cold]
#[inline(never)]
pub fn opened_cached(proc: &'static Proc, fd: c_int, st: &libc::stat) {
    attach::goes_on(proc);
    if proc.walking.load(Relaxed) & shm::WHETHER_COLD != 0 && !rests(&proc.rest) {
        tell_entry(proc, fd, st, false);
    }
}

/// `to` has become a duplicate of `from`, whose reads are not followed. A shell that redirects its input closes `from` right away, before anybody could find
/// out which file was opened.
#[inline(always)]
pub fn duplicated(from: c_int, to: c_int) {
    if TOLD.load(Relaxed) == from {
        told_again(to);
    }
}

#[cold]
#[inline(never)]
fn told_again(to: c_int) {
    TOLD.store(-1, Relaxed);
    if goes_ahead()
        && let Some(proc) = attach::current()
        && attach::at_home()
        && let Some(slot) = proc.slots.get(to as usize)
        && let Ok(st) = raw::status(to)
    {
        // So that closing it is noticed.
        slot.state.store(FD_IGNORED, Relaxed);
        tell_entry(proc, to, &st, true);
    }
}

/// A directory was opened to be listed. Those of whose files the service goes ahead it finds by itself.
pub fn visited(fd: c_int) {
    if !goes_ahead() {
        return;
    }
    let current = attach::current();
    if current.is_some_and(|p| p.walking.load(Relaxed) & shm::ALL_FILES != 0) {
        return;
    }
    let visiting = current.is_some_and(|p| p.visiting.load(Relaxed) == 1);
    if !visiting && !DIRECTORIES.is_worth_telling(|| has_read_before(fd)) {
        return;
    }
    let Ok(st) = raw::status(fd) else {
        return;
    };
    if !attach::at_home() || !is_on_disk(fd, st.st_dev) {
        return;
    }
    let Some(proc) = attach::attach() else {
        return;
    };
    if rests(&proc.visit_rest) {
        return;
    }
    // So that closing it is noticed.
    if let Some(slot) = proc.slots.get(fd as usize) {
        slot.state.store(FD_IGNORED, Relaxed);
    }
    tell(proc, Kind::Visit, fd, &st);
}

/// Attributes were asked for by name.
#[inline(always)]
pub fn asked() {
    if let Some(proc) = attach::current()
        && proc.visiting.load(Relaxed) != 0
    {
        let asked = proc.asked.load(Relaxed);
        proc.asked.store(asked.wrapping_add(1), Relaxed);
        if asked.is_multiple_of(ASKED) && goes_ahead() && proc.visiting.load(Relaxed) == shm::COUNTS
        {
            waited_for_attributes(proc);
        }
    }
}

#[cold]
#[inline(never)]
fn waited_for_attributes(proc: &'static Proc) {
    if has_waited() && attach::at_home() {
        attach::announce(proc).push(Kind::Attributes, 0, 0, 0, 0);
    }
}

/// Whether the entry is the first of a buffer that has just been filled: it lies right behind what a stream consists of otherwise.
#[inline(always)]
pub fn is_filled(stream: *mut DIR, entry: *mut dirent) -> bool {
    (entry as usize).wrapping_sub(stream as usize) < STREAM
}

/// Entries were read together, beginning with this one: a directory's first, or so many that they fill a buffer. Where something was waited for, the
/// service can list the rest. At the first ones of each directory it is only looked if it was looked when the directory was opened.
#[cold]
#[inline(never)]
pub fn filled(fd: c_int, entry: *mut dirent) {
    if !goes_ahead() {
        return;
    }
    // SAFETY: an entry that the C library has just read.
    let name = unsafe { &(*entry).d_name };
    // All file systems begin with it.
    let first = name[0] == b'.' as _ && name[1] == 0;
    if first && LOOKED_AT.swap(-1, Relaxed) != fd || !has_waited() {
        return;
    }
    let Ok(st) = raw::status(fd) else {
        return;
    };
    let large = st.st_size as u64 >= shm::LARGE_DIRECTORY;
    if !large || !attach::at_home() || !is_on_disk(fd, st.st_dev) {
        return;
    }
    let Some(proc) = attach::attach() else {
        return;
    };
    if let Some(slot) = proc.slots.get(fd as usize) {
        slot.state.store(FD_IGNORED, Relaxed);
    }
    let at = raw::lseek(fd, 0, libc::SEEK_CUR).max(0) as u64;
    tell_at(proc, Kind::Listing, fd, &st, at);
}

/// Whether the calling thread has had more read from a disk than a directory's way takes since it was last asked that, or [`has_read`].
fn has_waited() -> bool {
    let (name, blocks) = thread_and_blocks();
    let of_thread = |place: &AtomicU64| {
        let last = place.load(Relaxed);
        ((last >> 32) as u32 == name).then_some(blocks.wrapping_sub(last as u32))
    };
    let since = of_thread(&WAITED).into_iter().chain(of_thread(place(name)));
    let since = since.min();
    WAITED.store(u64::from(name) << 32 | u64::from(blocks), Relaxed);
    since.is_some_and(|since| since >= SOME)
}

/// Whether nothing need be told; counts.
pub fn rests(left: &AtomicU32) -> bool {
    let rest = left.load(Relaxed);
    left.store(rest.saturating_sub(1), Relaxed);
    rest > 0
}

fn tell_entry(proc: &'static Proc, fd: c_int, st: &libc::stat, cold: bool) {
    let cold = if cold { shm::COLD } else { 0 };
    let at = cold | (st.st_size as u64).div_ceil(PAGE) << shm::PAGES_SHIFT;
    tell_at(proc, Kind::Entry, fd, st, at);
}

fn tell(proc: &'static Proc, kind: Kind, fd: c_int, st: &libc::stat) {
    tell_at(proc, kind, fd, st, 0);
}

/// The same of what happens at position `at`.
fn tell_at(proc: &'static Proc, kind: Kind, fd: c_int, st: &libc::stat, at: u64) {
    let proc = attach::announce(proc);
    let Some(slot) = proc.slots.get(fd as usize) else {
        return;
    };
    let generation = slot.generation.load(Relaxed);
    let extra = at >> 32 << 32 | u64::from(generation);
    proc.push(kind, fd as u16, extra, st.st_dev, st.st_ino);
}

impl Attention {
    const fn new() -> Attention {
        Attention {
            pass: AtomicU32::new(0),
            passed: AtomicU32::new(0),
            cold: AtomicU32::new(0),
        }
    }

    /// Whether something is not cached, and not one of few.
    fn is_worth_telling(&self, is_cold: impl FnOnce() -> bool) -> bool {
        let pass = self.pass.load(Relaxed);
        if pass > 0 {
            self.pass.store(pass - 1, Relaxed);
            return false;
        }
        if !is_cold() {
            let next = (2 * self.passed.load(Relaxed) + 1).min(RARELY);
            self.passed.store(next, Relaxed);
            self.pass.store(next, Relaxed);
            return false;
        }
        self.passed.store(0, Relaxed);
        self.cold.fetch_add(1, Relaxed) >= FEW
    }
}

/// Whether a directory lies on a disk.
fn is_on_disk(fd: c_int, dev: u64) -> bool {
    lies_on(file(fd), dev) == LiesOn::Disk
}

/// Whether a file that lies on nobody knows what is not all in memory, as far as is seen without asking for that.
fn may_be_cold(fd: c_int, size: u64) -> bool {
    !cachestat(file(fd), 0..size).is_ok_and(|stat| stat.cached >= size.div_ceil(PAGE))
}

/// Whether all of a file is cached, as far as is known.
fn is_cached(fd: c_int, st: &libc::stat) -> bool {
    let size = st.st_size as u64;
    match counted_on(st.st_dev, file(fd), 0..size) {
        Ok(stat) => stat.cached >= size.div_ceil(PAGE),
        Err(
            CacheStatError::Unsupported | CacheStatError::NotPermitted | CacheStatError::Refused,
        ) => !has_read(),
        Err(_) => true,
    }
}

/// [`has_read`], before a directory was opened.
fn has_read_before(fd: c_int) -> bool {
    LOOKED_AT.store(fd, Relaxed);
    has_read()
}

/// Whether the calling thread has had something read from a disk since it last asked: what it opened before, or the way to this one.
fn has_read() -> bool {
    let (name, blocks) = thread_and_blocks();
    let last = place(name).swap(u64::from(name) << 32 | u64::from(blocks), Relaxed);
    (last >> 32) as u32 == name && last as u32 != blocks
}

/// Half a hash that names the calling thread, and half a count of what it has had read from disks.
fn thread_and_blocks() -> (u32, u32) {
    let name = (raw::thread_pointer() as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    ((name >> 32) as u32, raw::blocks_read() as u32)
}

/// Where that is noted.
fn place(name: u32) -> &'static AtomicU64 {
    &READ[name as usize % READ.len()]
}
