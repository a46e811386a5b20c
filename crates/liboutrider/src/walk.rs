//! Small files, whose reads are not followed, and directories that are listed.
//!
//! A program that opens many of them which are not cached may be going through a tree, and then the service can go ahead of it
//! (`outrider_core::walk`). So it is told of those that are not cached, and once it goes ahead of all, since what it has fetched is cached. While all is
//! cached, ever fewer are looked at. Where cachestat(2) tells nothing (directories, others' files, overlayfs, before Linux 6.5) a file counts as not
//! cached if the thread has had something read from a disk since it last opened one.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

use outrider_core::shm::{FD_IGNORED, Kind, MODE_PREDICT_OPT, Proc};
use outrider_sys::cache::{CacheStatError, counted};
use outrider_sys::device::lies_on_disk;
use outrider_sys::raw;

use crate::attach;
use crate::hot::{PAGE, file};

/// Files, or directories, that are not cached before the first is told: programs that open a few need no help.
const FEW: u32 = 8;
/// Most that are not looked at after one that was cached.
const RARELY: u32 = 63;
/// So many of either are told before the service is woken for them while it goes ahead; it looks by itself, too.
const TOGETHER: u32 = 8;

/// How closely files, or directories, are looked at.
struct Attention {
    /// So many need not be looked at, …
    pass: AtomicU32,
    /// … of so many at first.
    passed: AtomicU32,
    /// So many were not cached.
    cold: AtomicU32,
    /// So many were told.
    told: AtomicU32,
}

static FILES: Attention = Attention::new();
static DIRECTORIES: Attention = Attention::new();

/// Device numbers that are made up, and in the lowest bit whether files with it lie on a disk all the same; 0: free.
static MADE_UP: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
/// What threads have had read from disks when they last opened a file: half a hash that names the thread, and half a count of blocks.
static READ: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A small regular file was opened for reading.
pub fn opened(fd: c_int, st: &libc::stat) {
    if attach::MODE.load(Relaxed) != MODE_PREDICT_OPT || st.st_size == 0 {
        return;
    }
    // Otherwise there is a network or a program behind it, or nothing.
    if !is_on_disk(fd, st.st_dev) {
        return;
    }
    if attach::header().is_some_and(|h| h.looks.load(Relaxed) == 0) {
        return;
    }
    let current = attach::current();
    let walking = current.is_some_and(|p| p.walking.load(Relaxed) != 0);
    if !walking && !FILES.is_worth_telling(|| !is_cached(fd, st.st_size as u64)) {
        return;
    }
    let Some(proc) = attach::attach() else {
        return;
    };
    if !rests(&proc.rest) {
        tell(proc, Kind::Entry, fd, st, FILES.wakes(walking));
    }
}

/// A directory was opened to be listed. Those of whose files the service goes ahead it finds by itself.
pub fn visited(fd: c_int) {
    if attach::MODE.load(Relaxed) != MODE_PREDICT_OPT {
        return;
    }
    let current = attach::current();
    if current.is_some_and(|p| p.walking.load(Relaxed) != 0) {
        return;
    }
    let visiting = current.is_some_and(|p| p.visiting.load(Relaxed) != 0);
    if !visiting && !DIRECTORIES.is_worth_telling(has_read) {
        return;
    }
    let Ok(st) = raw::fstat(fd) else {
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
    tell(proc, Kind::Visit, fd, &st, DIRECTORIES.wakes(visiting));
}

/// Attributes were asked for by name.
#[inline(always)]
pub fn asked() {
    if let Some(proc) = attach::current()
        && proc.visiting.load(Relaxed) != 0
    {
        let asked = proc.asked.load(Relaxed);
        proc.asked.store(asked.wrapping_add(1), Relaxed);
    }
}

/// Whether nothing need be told; counts.
fn rests(left: &AtomicU32) -> bool {
    let rest = left.load(Relaxed);
    left.store(rest.saturating_sub(1), Relaxed);
    rest > 0
}

fn tell(proc: &Proc, kind: Kind, fd: c_int, st: &libc::stat, wakes: bool) {
    let (Some(slot), Some(header)) = (proc.slots.get(fd as usize), attach::header()) else {
        return;
    };
    let generation = slot.generation.load(Relaxed);
    proc.push(kind, fd as u16, generation.into(), st.st_dev, st.st_ino);
    if wakes {
        proc.announce(header);
    }
}

impl Attention {
    const fn new() -> Attention {
        Attention {
            pass: AtomicU32::new(0),
            passed: AtomicU32::new(0),
            cold: AtomicU32::new(0),
            told: AtomicU32::new(0),
        }
    }

    /// Whether the service is woken for what is told; `ahead`: it goes ahead.
    fn wakes(&self, ahead: bool) -> bool {
        !ahead || self.told.fetch_add(1, Relaxed).is_multiple_of(TOGETHER)
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

/// [`lies_on_disk`], asked once for a device that has no number of its own.
fn is_on_disk(fd: c_int, dev: u64) -> bool {
    if libc::major(dev) != 0 {
        return true;
    }
    let place = &MADE_UP[dev as usize % MADE_UP.len()];
    let known = place.load(Relaxed);
    if known >> 1 == dev {
        return known & 1 != 0;
    }
    let on_disk = lies_on_disk(file(fd), dev);
    place.store(dev << 1 | u64::from(on_disk), Relaxed);
    on_disk
}

/// Whether all of a file of `size` bytes is cached, as far as is known.
fn is_cached(fd: c_int, size: u64) -> bool {
    match counted(file(fd), 0..size) {
        Ok(stat) => stat.cached >= size.div_ceil(PAGE),
        Err(CacheStatError::Unsupported | CacheStatError::NotPermitted) => !has_read(),
        Err(_) => true,
    }
}

/// Whether the calling thread has had something read from a disk since it last asked: what it opened before, or the way to this one.
fn has_read() -> bool {
    let name = (raw::thread_pointer() as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let place = &READ[(name >> 58) as usize % READ.len()];
    let (name, blocks) = (name as u32, raw::blocks_read() as u32);
    let last = place.swap(u64::from(name) << 32 | u64::from(blocks), Relaxed);
    (last >> 32) as u32 == name && last as u32 != blocks
}
