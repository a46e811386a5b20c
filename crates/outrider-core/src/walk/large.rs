//! Directories so large that a program waits many times while it lists them.
//!
//! ext4 lists a directory by the hashes of its names, and waits for each block of it, one after the other; it reads none ahead. The position in
//! a listing is the hash, between 0 and 2^63, so that the rest can be listed in parts, all at once. Elsewhere positions are small numbers: there the first part
//! is the whole directory, and the others are empty.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::PathBuf;

use outrider_sys::units::InodeKey;

use crate::engine::Listing;
use crate::intent::Target;
use crate::tree::inode_block;

/// Bytes of a directory in a part: four to six waits for ext4's blocks of 4 KiB, which are half to three quarters full.
const PART: u64 = 32 << 10;
/// Parts at most: of a directory of two million entries.
const MOST: usize = 4096;
/// Parts ahead of the program at first: 20,000 entries or more. They double when the program has waited again.
const WINDOW: usize = 32;
/// Names of inodes that are not read ahead together, as many as are remembered of one directory: of one of two million entries and more.
const MOST_FOUND: usize = 1 << 15;
/// Positions end here.
const END: u64 = 1 << 63;

/// A directory that is listed in parts.
#[derive(Debug)]
pub struct Large {
    /// Its absolute path.
    pub path: PathBuf,
    /// What the path has to lead to.
    pub key: InodeKey,
    /// In so many parts.
    parts: usize,
    /// The first that has not been asked for.
    next: usize,
    /// The first that must not be yet.
    until: usize,
    window: usize,
    /// How often the program had asked for attributes before.
    asked_before: u32,
    /// Something was read for a part.
    cold: bool,
    /// What is read ahead together, of which one inode was found.
    found: HashSet<u64>,
    /// The names of those that are to be looked up if the program asks for attributes.
    pub names: Vec<OsString>,
}

/// The positions of a part.
fn positions(part: usize, parts: usize) -> std::ops::Range<u64> {
    let step = END / parts as u64;
    let from = part as u64 * step;
    from..from + step
}

impl Large {
    /// A directory of so many bytes; the program is about to go on at position `at`, and has asked for attributes so many times.
    pub fn new(path: PathBuf, key: InodeKey, bytes: u64, at: u64, asked_before: u32) -> Large {
        let parts = (bytes / PART).max(1).next_power_of_two();
        let parts = (parts as usize).min(MOST);
        let mut large = Large {
            path,
            key,
            parts,
            next: 0,
            until: 0,
            window: WINDOW,
            asked_before,
            cold: false,
            found: HashSet::new(),
            names: Vec::new(),
        };
        large.waited(at);
        large
    }

    /// The program has had to wait, and goes on at position `at`.
    pub fn waited(&mut self, at: u64) {
        let here = part_of(at, self.parts);
        self.next = self.next.max(here);
        self.until = self.until.max((here + self.window).min(self.parts));
        self.window = self.window.saturating_mul(2);
    }

    /// What is to be listed now.
    pub fn wanted(&mut self) -> impl Iterator<Item = Target<'static>> {
        let (path, key, parts) = (self.path.clone(), self.key, self.parts);
        self.next_parts().map(move |part| {
            Target::Listing(Listing::Part {
                path: path.clone(),
                key,
                positions: positions(part, parts),
            })
        })
    }

    /// The parts that are to be listed now.
    fn next_parts(&mut self) -> std::ops::Range<usize> {
        let next = std::mem::replace(&mut self.next, self.until);
        next..self.until
    }

    /// A part is listed, which has these entries, whose inodes are not read ahead together; `cold`: something was read for that. Whether that is so for the
    /// first time.
    pub fn arrived(&mut self, entries: Vec<(u64, OsString)>, cold: bool) -> bool {
        let found = &mut self.found;
        let new = entries.into_iter().filter(|(inode, _)| {
            found.len() < MOST_FOUND && found.insert(inode_block::read_ahead(*inode))
        });
        self.names.extend(new.map(|(_, name)| name));
        cold && !std::mem::replace(&mut self.cold, true)
    }

    /// Whether the program has begun to ask for attributes, which it has done so many times in all.
    pub fn asks(&self, asked: u32) -> bool {
        asked != self.asked_before
    }
}

fn part_of(at: u64, parts: usize) -> usize {
    ((at / (END / parts as u64)) as usize).min(parts - 1)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{END, InodeKey, Large, positions};

    /// Wherever a program waits in a directory, and however often: the parts from there on are asked for, each once, those that it has passed are not, and
    /// twice as many from one time to the next.
    #[test]
    fn what_lies_ahead_is_listed_once() {
        for (bytes, waits, parts) in [
            (128 << 10, vec![0], vec![0..4]),
            (1 << 20, vec![END / 4], vec![8..32]),
            (40 << 20, vec![0, END / 64 + 1], vec![0..32, 32..96]),
            (
                40 << 20,
                vec![0, END / 8, END / 2],
                vec![0..32, 256..320, 1024..1152],
            ),
            (
                40 << 20,
                vec![0, 1, 2, END / 128],
                vec![0..32, 32..64, 64..128, 128..272],
            ),
            (40 << 20, vec![END - 1], vec![2047..2048]),
        ] {
            let mut large =
                Large::new(PathBuf::from("/d"), InodeKey::new(1, 2), bytes, waits[0], 0);
            for (i, (at, expected)) in waits.iter().zip(parts).enumerate() {
                if i > 0 {
                    large.waited(*at);
                }
                assert_eq!(large.next_parts(), expected, "{at:x} of {bytes} bytes");
                assert_eq!(large.next_parts().count(), 0);
            }
        }
    }

    #[test]
    fn positions_are_all_in_one_part() {
        for parts in [1, 2, 64, 4096] {
            let ends = (0..parts).map(|p| positions(p, parts));
            let end = ends.fold(0, |at, p| if p.start == at { p.end } else { 0 });
            assert_eq!(end, END);
        }
    }
}
