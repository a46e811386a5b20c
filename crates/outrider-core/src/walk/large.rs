//! Directories so large that a program waits many times while it lists them.
//!
//! ext4 lists a directory by the hashes of its names, and waits for each block of it, one after the other; it reads none ahead. The position in
//! a listing is the hash, between 0 and 2^63, so that the rest can be listed in parts, all at once. Elsewhere positions are small numbers: there the first part
//! is the whole directory, and the others are empty.

use std::path::PathBuf;

use super::tree::{Directory, Entry, Key};

/// Bytes of a directory in a part: two to four waits for ext4's blocks of 4 KiB, which are half to three quarters full.
const PART: u64 = 16 << 10;
/// Parts at most: of a directory of a million entries.
const MOST: usize = 4096;
/// Parts ahead of the program at first: 2,000 to 5,000 entries. They double when the program has waited again.
const WINDOW: usize = 64;
/// Positions end here.
const END: u64 = 1 << 63;
/// Entries of a directory that are remembered, at most.
const ENTRIES: usize = 100_000;

/// A directory that is listed in parts.
#[derive(Debug)]
pub struct Large {
    /// Its absolute path.
    pub path: PathBuf,
    /// What the path has to lead to.
    pub key: Key,
    modified: (i64, u64),
    /// In so many parts.
    pub parts: usize,
    /// The part in which the program was when it had to wait first: they are listed from this one on, and those before it last.
    first: usize,
    /// So many have been asked for, …
    asked: usize,
    /// … and so many may be.
    until: usize,
    window: usize,
    /// Those not listed yet.
    left: usize,
    found: Vec<Vec<Entry>>,
    /// All of its entries are remembered.
    whole: bool,
    /// Something was read for a part.
    cold: bool,
    /// How often the program had asked for attributes before.
    asked_before: u32,
    /// Its entries are being looked up.
    pub looked_up: bool,
}

/// The positions of a part.
pub fn positions(part: usize, parts: usize) -> std::ops::Range<u64> {
    let step = END / parts as u64;
    let from = part as u64 * step;
    from..from + step
}

impl Large {
    /// A directory of so many bytes; the program is about to go on at position `at`, and has asked for attributes so many times.
    pub fn new(
        path: PathBuf,
        key: Key,
        modified: (i64, u64),
        bytes: u64,
        at: u64,
        asked_before: u32,
    ) -> Large {
        let parts = (bytes / PART).max(1).next_power_of_two();
        let parts = (parts as usize).min(MOST);
        Large {
            path,
            key,
            modified,
            parts,
            first: part_of(at, parts),
            asked: 0,
            until: 0,
            window: WINDOW,
            left: parts,
            found: vec![Vec::new(); parts],
            whole: true,
            cold: false,
            asked_before,
            looked_up: false,
        }
    }

    /// The program has had to wait, and goes on at position `at`.
    pub fn waited(&mut self, at: u64) {
        let done = part_of(at, self.parts).saturating_sub(self.first);
        self.until = self.until.max(done + self.window);
        self.window = self.window.saturating_mul(2);
        if self.until >= self.parts - self.first {
            self.until = self.parts;
        }
    }

    /// Whether it has asked for attributes since, if it has `asked` so many times.
    pub fn asks(&self, asked: u32) -> bool {
        asked != self.asked_before
    }

    /// Notes whether something was read for a part; whether that is so for the first time.
    pub fn was_cold(&mut self, cold: bool) -> bool {
        cold && !std::mem::replace(&mut self.cold, true)
    }

    /// The parts that are to be listed now.
    pub fn wanted(&mut self) -> impl Iterator<Item = usize> + use<> {
        let next = self.asked..self.until;
        self.asked = self.until.max(self.asked);
        let (first, parts) = (self.first, self.parts);
        next.map(move |part| (first + part) % parts)
    }

    /// A part is listed; `None`: it can't be. The directory once all are.
    pub fn arrived(&mut self, part: usize, entries: Option<Vec<Entry>>) -> Option<Directory> {
        self.left = self.left.saturating_sub(1);
        match (entries, self.found.get_mut(part)) {
            (Some(entries), Some(found)) => *found = entries,
            _ => self.whole = false,
        }
        if self.left > 0 || !self.whole {
            return None;
        }
        let found = std::mem::take(&mut self.found);
        if found.iter().map(Vec::len).sum::<usize>() > ENTRIES {
            return None;
        }
        let mut entries: Vec<Entry> = found.into_iter().flatten().collect();
        // Where there is nothing in a part, what comes behind it is found.
        entries.dedup_by(|a, b| (a.ino, &a.name) == (b.ino, &b.name));
        let (path, key, modified) = (self.path.clone(), self.key, self.modified);
        Some(Directory::new(path, key, modified, entries))
    }
}

fn part_of(at: u64, parts: usize) -> usize {
    ((at / (END / parts as u64)) as usize).min(parts - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::{END, Large, positions};

    /// Wherever a program waits in a directory, and however often, each part is asked for once, those ahead of it first; and in the end all are.
    #[test]
    fn each_part_is_listed_once() {
        for (bytes, waits) in [
            (128 << 10, vec![0]),
            (1 << 20, vec![END / 10]),
            (40 << 20, vec![0, END / 32, END / 8, END / 3, END - 1]),
            (40 << 20, vec![END - 1]),
        ] {
            let mut large = Large::new(PathBuf::from("/d"), (1, 2), (0, 0), bytes, waits[0], 0);
            let mut asked = BTreeSet::new();
            for at in waits {
                large.waited(at);
                for part in large.wanted() {
                    assert!(asked.insert(part), "{part} of {bytes} bytes, again");
                }
                let here = (0..large.parts).find(|p| positions(*p, large.parts).contains(&at));
                assert!(asked.contains(&here.unwrap()), "{at:x} of {bytes} bytes");
            }
            assert_eq!(asked.len(), large.parts, "{bytes}");
        }
    }

    #[test]
    fn positions_are_all_in_one_part() {
        for parts in [1, 2, 64, 4096] {
            let ends = (0..parts).map(|p| positions(p, parts));
            assert_eq!(
                ends.fold(0, |at, p| if p.start == at { p.end } else { 0 }),
                END
            );
        }
    }
}
