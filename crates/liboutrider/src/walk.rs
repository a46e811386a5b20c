//! Small files, whose reads are not followed.
//!
//! A program that opens many of them which are not cached may be going through a tree, and then the service can go ahead of it
//! (`outrider_core::walk`). So it is told of those that are not cached, and once it goes ahead of all, since what it has fetched is cached. While all is
//! cached, ever fewer are looked at.

use core::ffi::c_int;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use outrider_core::shm::{Kind, MODE_PREDICT_OPT};

use crate::{attach, hot};

/// Files that are not cached before the first is told: programs that open a few need no help.
const FEW: u32 = 8;
/// Most files that are not looked at after one that was cached.
const RARELY: u32 = 63;
/// So many are told before the service is woken for them while it goes ahead; it looks by itself, too.
const TOGETHER: u32 = 8;

/// Files that need not be looked at, and how many these were at first.
static PASS: AtomicU32 = AtomicU32::new(0);
static PASSED: AtomicU32 = AtomicU32::new(0);
/// Files that were not cached.
static COLD: AtomicU32 = AtomicU32::new(0);
/// Files that were told.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// A small regular file was opened for reading.
pub fn opened(fd: c_int, st: &libc::stat) {
    // Without a disk of its own there is a network, a program or another file system behind it, or nothing.
    let on_disk = libc::major(st.st_dev) != 0;
    if attach::MODE.load(Relaxed) != MODE_PREDICT_OPT || st.st_size == 0 || !on_disk {
        return;
    }
    if attach::header().is_some_and(|h| h.looks.load(Relaxed) == 0) {
        return;
    }
    let current = attach::current();
    let walking = current.is_some_and(|p| p.walking.load(Relaxed) != 0);
    if !walking && !is_worth_telling(fd, st.st_size as u64) {
        return;
    }
    let (Some(proc), Some(header)) = (attach::attach(), attach::header()) else {
        return;
    };
    let rest = proc.rest.load(Relaxed);
    if rest > 0 {
        proc.rest.store(rest - 1, Relaxed);
        return;
    }
    let Some(slot) = proc.slots.get(fd as usize) else {
        return;
    };
    let generation = slot.generation.load(Relaxed);
    proc.push(
        Kind::Entry,
        fd as u16,
        generation.into(),
        st.st_dev,
        st.st_ino,
    );
    if !walking || TOLD.fetch_add(1, Relaxed).is_multiple_of(TOGETHER) {
        proc.announce(header);
    }
}

/// Whether a file is not cached, and not one of few.
fn is_worth_telling(fd: c_int, size: u64) -> bool {
    let pass = PASS.load(Relaxed);
    if pass > 0 {
        PASS.store(pass - 1, Relaxed);
        return false;
    }
    if hot::holds(fd, size) {
        let next = (2 * PASSED.load(Relaxed) + 1).min(RARELY);
        PASSED.store(next, Relaxed);
        PASS.store(next, Relaxed);
        return false;
    }
    PASSED.store(0, Relaxed);
    COLD.fetch_add(1, Relaxed) >= FEW
}
