//! A program's own hints (SPEC CP4), as its hooks remember them.
//!
//! A hint that the kernel carries out whole goes to the kernel by the thread that gave it, as without us: whoever hints each block a little
//! ahead of reading it has no time for a way round. What is left to do is to believe it. Reads that were hinted well before them find
//! their blocks there, and say nothing of how the program would fare without hints: they are told to nobody. A block that is hinted
//! just before it is read makes the program wait as if there were no hint.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The longest hint that no kernel shortens by default, bytes: `read_ahead_kb` is 128.
pub const WHOLE: u64 = 128 << 10;

/// A hint counts in blocks of so many bytes: the common page of databases, two of the kernel's.
const BLOCK_BITS: u32 = 13;
/// Blocks that are remembered.
const PLACES: usize = 2048;
/// Hints that must have been given since, for a read to be in time: four requests at once are what most devices serve as quickly as one.
const AHEAD: u32 = 4;

/// The blocks that a process hinted last. Zero is empty. For any thread and signal handler: plain atomics, of which a lost one costs a hint's memory.
#[repr(C)]
pub struct Hints {
    given: AtomicU32,
    _pad: u32,
    /// What was hinted (upper half), and by which hint.
    blocks: [AtomicU64; PLACES],
}

/// Where a block is remembered, and what tells it from others that share the place.
fn place(fd: i32, generation: u32, block: u64) -> (usize, u32) {
    let file = u64::from(generation) << 32 | u64::from(fd as u32);
    let mixed = (block ^ file.wrapping_mul(0xd6e8_feb8_6659_fd93))
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (
        mixed as usize >> 21 & (PLACES - 1),
        (mixed >> 32) as u32 | 1,
    )
}

impl Hints {
    /// The program hinted `len` bytes at `offset` of a descriptor; at most [`WHOLE`] of them are remembered.
    pub fn give(&self, fd: i32, generation: u32, offset: u64, len: u64) {
        let number = self.given.fetch_add(1, Relaxed);
        let last = offset.saturating_add(len.clamp(1, WHOLE) - 1) >> BLOCK_BITS;
        for block in offset >> BLOCK_BITS..=last {
            let (at, tag) = place(fd, generation, block);
            if let Some(to) = self.blocks.get(at) {
                to.store(u64::from(tag) << 32 | u64::from(number), Relaxed);
            }
        }
    }

    /// Whether a read at `offset` was hinted, with several hints given since.
    pub fn in_time(&self, fd: i32, generation: u32, offset: u64) -> bool {
        let given = self.given.load(Relaxed);
        let (at, tag) = place(fd, generation, offset >> BLOCK_BITS);
        let found = self.blocks.get(at).map_or(0, |b| b.load(Relaxed));
        found >> 32 == u64::from(tag) && given.wrapping_sub(found as u32) > AHEAD
    }
}

/// Files that can be told apart in [`Saved`].
const FILES: usize = 64;

/// How many hints never reached the kernel, by file. For any thread and signal handler; of more files than there is room for, only the first are counted.
#[repr(C)]
pub struct Saved {
    /// What tells a file from others (zero: free), and its count.
    files: [[AtomicU64; 2]; FILES],
}

impl Saved {
    fn tag(dev: u64, ino: u64) -> u64 {
        (ino ^ dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
    }

    /// The places where a file may be, the likeliest first.
    fn places(&self, tag: u64) -> impl Iterator<Item = &[AtomicU64; 2]> {
        let first = (tag >> 58) as usize;
        (0..FILES).filter_map(move |i| self.files.get((first + i) % FILES))
    }

    /// One more.
    pub fn count(&self, dev: u64, ino: u64) {
        let tag = Self::tag(dev, ino);
        for [file, count] in self.places(tag) {
            let found = match file.load(Relaxed) {
                0 => match file.compare_exchange(0, tag, Relaxed, Relaxed) {
                    Ok(_) => tag,
                    Err(other) => other,
                },
                found => found,
            };
            if found == tag {
                count.fetch_add(1, Relaxed);
                return;
            }
        }
    }

    /// How many there were of a file; they are counted from zero again.
    pub fn take(&self, dev: u64, ino: u64) -> u64 {
        let tag = Self::tag(dev, ino);
        for [file, count] in self.places(tag) {
            match file.load(Relaxed) {
                0 => return 0,
                found if found == tag => return count.swap(0, Relaxed),
                _ => {}
            }
        }
        0
    }

    /// Whether there were any.
    pub fn any(&self) -> bool {
        self.files.iter().any(|[file, _]| file.load(Relaxed) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC CP4: of hints given some reads ahead, those that lead by more than a few count, for as long as they are remembered; another
    /// descriptor's don't.
    #[test]
    fn who_hints_well_ahead_is_believed() {
        let hints: Box<Hints> = Box::new(Hints {
            given: AtomicU32::new(0),
            _pad: 0,
            blocks: std::array::from_fn(|_| AtomicU64::new(0)),
        });
        let at = |i: u64| (i * 7 % 100_000) << 13;
        assert!(!hints.in_time(3, 0, at(0)));
        for (ahead, believed) in [(1, false), (3, false), (8, true), (300, true)] {
            let (first, reads) = (ahead * 10_000, 1000);
            for i in first..first + ahead {
                hints.give(3, 9, at(i), 8192);
            }
            let mut held = 0;
            for i in first..first + reads {
                hints.give(3, 9, at(i + ahead), 8192);
                held += u32::from(hints.in_time(3, 9, at(i)));
                assert!(!hints.in_time(4, 9, at(i)));
                assert!(!hints.in_time(3, 8, at(i)));
            }
            // Blocks that share a place drive one another out.
            match believed {
                true => assert!(held > 800, "{held} of 1000, {ahead} ahead"),
                false => assert_eq!(held, 0, "{ahead} ahead"),
            }
        }
        // A long hint covers what begins within it.
        hints.give(5, 1, 1 << 30, 100 << 10);
        for _ in 0..8 {
            hints.give(5, 1, 0, 1);
        }
        assert!(hints.in_time(5, 1, (1 << 30) + (99 << 10)));
        assert!(!hints.in_time(5, 1, (1 << 30) + (104 << 10)));
    }
}
