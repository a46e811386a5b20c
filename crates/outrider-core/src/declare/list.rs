//! An access list and the program's place in it (libprefetch sections 4.1 and 4.2; SPEC LP1, LP2).
//!
//! Entries are byte ranges in the order of need, 12 bytes each: the list competes for memory with the data it is about, and a
//! million entries are nothing unusual. They are numbered from the list's beginning for ever, so that whoever works ahead can
//! keep a number across calls; consumed ones are forgotten from the front.
//!
//! A program hardly ever follows its list to the letter. It keeps some of the data in a cache of its own and skips entries, it
//! reads an entry in pieces, or several at once, or again, and threads overtake one another. A read is therefore looked for
//! near the place where the program is, in front of it and behind, before it counts as outside the list.

use std::collections::VecDeque;
use std::ops::Range;

/// Files that can be named at one time: 14 bits.
pub const MAX_FILES: usize = 1 << 14;
/// First byte that no entry can name: 48 bits, 256 TiB.
pub const MAX_OFFSET: u64 = 1 << 48;
/// Bytes of one entry at most; longer ranges are several entries.
pub const MAX_LENGTH: u64 = 1 << 31;
/// Entries in front of the program among which a read is looked for first, and behind it.
const NEAR: u64 = 64;
/// Entries in front in which it is looked for at last: as much as an application's cache of some megabytes makes it skip.
const FAR: u64 = 1024;
/// Entries kept behind the program: for reads that repeat, and for whoever follows.
pub(super) const KEPT: u64 = NEAR;

/// A range that will be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the file, below [`MAX_FILES`].
    pub file: u16,
    /// Byte, below [`MAX_OFFSET`].
    pub offset: u64,
    /// Bytes, at most [`MAX_LENGTH`]; 0: nothing to read any more.
    pub length: u32,
    /// A landmark.
    pub marked: bool,
    /// The program has read of it.
    pub read: bool,
}

impl Entry {
    /// First byte behind it.
    pub fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

const FILE_MASK: u16 = MAX_FILES as u16 - 1;

/// Offset in the low 48 bits, file in the next 14, read and mark on top; and the length.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Packed {
    head: u64,
    length: u32,
}

impl Packed {
    fn new(e: Entry) -> Packed {
        Packed {
            head: (e.offset & (MAX_OFFSET - 1))
                | u64::from(e.file & FILE_MASK) << 48
                | u64::from(e.read) << 62
                | u64::from(e.marked) << 63,
            length: e.length,
        }
    }

    fn open(self) -> Entry {
        let head = self.head;
        Entry {
            file: (head >> 48) as u16 & FILE_MASK,
            offset: head & (MAX_OFFSET - 1),
            length: self.length,
            marked: head >> 63 != 0,
            read: head >> 62 & 1 != 0,
        }
    }
}

/// Where a read was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The program went on in its list.
    Ahead,
    /// A place that it had passed: read again, or by a thread that is behind.
    Behind,
    /// Nowhere near.
    Outside,
}

/// The list.
#[derive(Debug, Default)]
pub struct List {
    entries: VecDeque<Packed>,
    /// Number of the first entry that is kept.
    base: u64,
    /// Number of the entry that the program is at.
    at: u64,
    /// Bytes of it that were read.
    within: u32,
    /// The latest marked entry that was passed, and its number.
    mark: Option<(u64, Entry)>,
    /// A place far ahead where a read would fit; a second one there proves it.
    guess: Option<u64>,
    /// Reads since the last wide search.
    credit: u32,
    /// Changes whenever entries are replaced rather than added.
    epoch: u32,
}

impl List {
    /// Number behind the last entry.
    pub fn end(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Number of the entry that the program is at; [`List::end`] when it has read them all.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Number of the first entry that can still be looked at.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Entries that are still to be read.
    pub fn pending(&self) -> u64 {
        self.end() - self.at
    }

    /// Changes whenever entries are replaced rather than added.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The latest marked entry that was passed.
    pub fn mark(&self) -> Option<Entry> {
        self.mark.map(|(_, e)| e)
    }

    /// Entry `n`, if it is kept.
    pub fn get(&self, n: u64) -> Option<Entry> {
        let i = n.checked_sub(self.base)?;
        self.entries.get(usize::try_from(i).ok()?).map(|p| p.open())
    }

    /// Makes room for `n` more. `false` without the memory.
    pub fn reserve(&mut self, n: usize) -> bool {
        // Many small additions must not each move the whole list.
        let spare = self.entries.capacity() - self.entries.len();
        spare >= n
            || if n >= self.entries.len() / 4 {
                self.entries.try_reserve_exact(n).is_ok()
            } else {
                self.entries.try_reserve(n).is_ok()
            }
    }

    /// Adds an entry at the end; [`List::reserve`] was called for it.
    pub fn push(&mut self, entry: Entry) {
        if self.entries.len() < self.entries.capacity() {
            self.entries.push_back(Packed::new(entry));
        }
    }

    /// Takes back what was added last, down to number `end`.
    pub fn truncate(&mut self, end: u64) {
        if end < self.end() {
            self.entries
                .truncate(end.saturating_sub(self.base) as usize);
            self.at = self.at.min(self.end());
            self.epoch = self.epoch.wrapping_add(1);
            self.guess = None;
        }
    }

    /// Forgets all that is still to be read (PF_SET). The latest mark stays what it was.
    pub fn clear(&mut self) {
        let end = self.end();
        // Numbers go on: nobody may mistake a new entry for an old one.
        self.entries.clear();
        self.entries.shrink_to_fit();
        self.base = end;
        self.at = end;
        self.within = 0;
        self.guess = None;
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Forgets what follows the latest marked entry that was passed (PF_SET_FROM_MARK); all, if none was.
    pub fn clear_from_mark(&mut self) {
        match self.mark {
            // The place of the program is behind its mark, so everything still to be read goes.
            Some(_) => self.truncate(self.at),
            None => self.clear(),
        }
        self.within = 0;
    }

    /// What lies in `bytes` of a file is not to be read any more; it is named by some of these `entries`. What the program has passed stays: whoever follows has yet to see it.
    pub fn forget(&mut self, file: u16, bytes: Range<u64>, entries: Range<u64>) {
        let place = |n: u64| n.saturating_sub(self.base) as usize;
        let end = place(entries.end).min(self.entries.len());
        let start = place(entries.start.max(self.at)).min(end);
        let mut forgets = false;
        for p in self.entries.range_mut(start..end) {
            let e = p.open();
            if e.file == file && e.length > 0 && bytes.start <= e.offset && e.end() <= bytes.end {
                p.length = 0;
                forgets = true;
            }
        }
        if forgets {
            self.skip_dead();
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    /// Lets go of entries that the program has passed, except the last few, and of those from `follower` on, which somebody
    /// still wants to see.
    pub fn release(&mut self, follower: u64) {
        let keep = self.at.saturating_sub(KEPT).min(follower);
        let n = keep.saturating_sub(self.base) as usize;
        if n > 0 {
            self.entries.drain(..n.min(self.entries.len()));
            self.base = keep;
            if self.entries.capacity() > 4096 && self.entries.len() < self.entries.capacity() / 4 {
                self.entries.shrink_to(self.entries.len() * 2);
            }
        }
    }

    /// The program is about to read, or has read, `start..end` (bytes) of `file`.
    pub fn read(&mut self, file: u16, start: u64, end: u64) -> Found {
        self.skip_dead();
        let hit = |e: Option<Entry>| {
            e.is_some_and(|e| e.file == file && e.length > 0 && e.offset < end && start < e.end())
        };
        let passed = |n: u64| {
            let first = self.at.saturating_sub(n).max(self.base);
            (first..self.at).rev()
        };
        if hit(self.get(self.at)) {
            self.advance_to(self.at, file, start, end);
            return Found::Ahead;
        }
        // The rest of what was just read comes before the same range further on.
        if passed(2).any(|n| hit(self.get(n))) {
            return Found::Behind;
        }
        let near = (self.at + 1..self.at + NEAR).find(|n| hit(self.get(*n)));
        if let Some(n) = near {
            self.advance_to(n, file, start, end);
            return Found::Ahead;
        }
        if passed(NEAR).any(|n| hit(self.get(n))) {
            return Found::Behind;
        }
        if let Some(n) = (self.at + NEAR..self.at + FAR).find(|n| hit(self.get(*n))) {
            self.advance_to(n, file, start, end);
            return Found::Ahead;
        }
        // Skipping more than that takes two reads in a row to believe.
        if let Some(guess) = self.guess.take()
            && let Some(n) = (guess..guess + NEAR).find(|n| hit(self.get(*n)))
        {
            self.advance_to(n, file, start, end);
            return Found::Ahead;
        }
        self.credit = self.credit.saturating_add(1);
        if self.credit >= 16 {
            self.credit = 0;
            let limit = self.end().min(self.at + 64 * FAR);
            self.guess = (self.at + FAR..limit).find(|n| hit(self.get(*n)));
        }
        Found::Outside
    }

    /// Entry `n` is being read; those before it are passed.
    fn advance_to(&mut self, n: u64, file: u16, start: u64, end: u64) {
        self.pass(n);
        let Some(mut entry) = self.get(self.at) else {
            return;
        };
        self.set_read();
        if start > entry.end() || end < entry.offset {
            return;
        }
        // One read may cover entries that follow one another in the file, too.
        while end >= entry.end() {
            let behind = entry.end();
            self.pass(self.at + 1);
            self.within = 0;
            match self.get(self.at) {
                Some(next)
                    if next.file == file
                        && next.offset == behind
                        && next.length > 0
                        && end > behind =>
                {
                    entry = next
                }
                _ => return,
            }
            self.set_read();
        }
        let read = end
            .saturating_sub(entry.offset)
            .min(u64::from(entry.length)) as u32;
        self.within = self.within.max(read);
    }

    fn set_read(&mut self) {
        let i = self.at - self.base;
        if let Some(p) = self.entries.get_mut(i as usize) {
            p.head |= 1 << 62;
        }
    }

    /// Moves on to entry `n`, noting marks on the way.
    fn pass(&mut self, n: u64) {
        let n = n.min(self.end());
        for i in self.at..n {
            if let Some(e) = self.get(i).filter(|e| e.marked) {
                self.mark = Some((i, e));
            }
        }
        if n != self.at {
            self.at = n;
            self.within = 0;
        }
    }

    fn skip_dead(&mut self) {
        while self.get(self.at).is_some_and(|e| e.length == 0) {
            self.pass(self.at + 1);
        }
    }

    /// Bytes of the current entry that were read.
    pub fn within(&self) -> u32 {
        self.within
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: u64 = 4096;

    /// Entry `i` of a list in which no page comes twice.
    fn entry(i: u64) -> Entry {
        Entry {
            file: (i % 3) as u16,
            offset: i * 7 * BLOCK,
            length: BLOCK as u32,
            marked: i.is_multiple_of(5),
            read: false,
        }
    }

    fn list(n: u64) -> List {
        let mut list = List::default();
        assert!(list.reserve(n as usize));
        (0..n).for_each(|i| list.push(entry(i)));
        list
    }

    /// What a program does next, relative to where it is.
    #[derive(Clone, Debug)]
    enum Step {
        /// Skips so many entries and reads the next.
        Skip(u64),
        /// Reads again what lies so many entries back.
        Back(u64),
        /// Reads an entry in this many pieces.
        Pieces(u64),
        /// Reads what is not in the list.
        Stray(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u64..3).prop_map(Step::Skip),
            1 => (0u64..1000).prop_map(Step::Skip),
            2 => (1u64..60).prop_map(Step::Back),
            2 => (2u64..9).prop_map(Step::Pieces),
            1 => (0u64..100).prop_map(Step::Stray),
        ]
    }

    proptest! {
        /// LP2: the place in the list is where a naive program counter is, whatever is skipped, repeated, split or strayed; marks
        /// are those that were passed; entries that were released make no difference.
        #[test]
        fn follows_a_program(steps in prop::collection::vec(step(), 1..200), release in any::<bool>()) {
            const N: u64 = 6000;
            let mut list = list(N);
            let mut at = 0u64;
            for step in steps {
                if at + 1001 >= N {
                    break;
                }
                match step {
                    Step::Skip(n) => {
                        let e = entry(at + n);
                        prop_assert_eq!(list.read(e.file, e.offset, e.end()), Found::Ahead);
                        at += n + 1;
                    }
                    Step::Back(n) if n <= at => {
                        let e = entry(at - n);
                        prop_assert_eq!(list.read(e.file, e.offset, e.end()), Found::Behind);
                    }
                    Step::Back(_) => {}
                    Step::Pieces(n) => {
                        let e = entry(at);
                        let piece = BLOCK / n;
                        for k in 0..n - 1 {
                            prop_assert_eq!(list.read(e.file, e.offset + k * piece, e.offset + (k + 1) * piece), Found::Ahead);
                            prop_assert_eq!(list.at(), at);
                            prop_assert_eq!(u64::from(list.within()), (k + 1) * piece);
                        }
                        prop_assert_eq!(list.read(e.file, e.offset + (n - 1) * piece, e.end()), Found::Ahead);
                        at += 1;
                    }
                    Step::Stray(n) => {
                        let offset = (at + n) * 7 * BLOCK + BLOCK;
                        prop_assert_eq!(list.read((at % 3) as u16, offset, offset + BLOCK), Found::Outside);
                    }
                }
                prop_assert_eq!(list.at(), at);
                let mark = at.checked_sub(1).map(|last| entry(last / 5 * 5));
                prop_assert_eq!(list.mark().map(|m| (m.file, m.offset)), mark.map(|m| (m.file, m.offset)));
                if release {
                    list.release(u64::MAX);
                    prop_assert!(list.base() + 64 >= at.min(N));
                }
            }
        }

        /// One read may cover entries that follow one another; the same entry given several times is read several times.
        #[test]
        fn covers_neighbours_not_repetitions(run in 1u64..20, repeats in 1u64..20) {
            let mut list = List::default();
            prop_assert!(list.reserve((run + repeats) as usize));
            let page = |n: u64| Entry { file: 1, offset: n * BLOCK, length: BLOCK as u32, marked: false, read: false };
            (0..run).for_each(|n| list.push(page(n)));
            (0..repeats).for_each(|_| list.push(page(100)));
            prop_assert_eq!(list.read(1, 0, run * BLOCK), Found::Ahead);
            prop_assert_eq!(list.at(), run);
            for k in 0..repeats {
                prop_assert_eq!(list.at(), run + k);
                prop_assert_eq!(list.read(1, 100 * BLOCK, 101 * BLOCK), Found::Ahead);
            }
            prop_assert_eq!(list.pending(), 0);
        }
    }

    /// A program that skips more than is looked ahead is found again, by its second read there.
    #[test]
    fn found_again_far_ahead() {
        let mut list = list(20_000);
        let mut found = Vec::new();
        for i in 10_000..10_100 {
            let e = entry(i);
            found.push(list.read(e.file, e.offset, e.end()));
        }
        assert_eq!(found[0], Found::Outside);
        assert_eq!(found[99], Found::Ahead);
        assert_eq!(list.at(), 10_100);
    }

    /// An entry takes 12 bytes.
    #[test]
    fn entries_are_small() {
        assert_eq!(size_of::<Packed>(), 12);
        assert!(list(1 << 20).entries.capacity() * size_of::<Packed>() <= 12 << 20);
    }
}
