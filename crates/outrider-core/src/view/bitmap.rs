//! Three bitmaps side by side, and what each event does to a word of them.
//!
//! Every event of a page's life is the same few boolean operations on 64 pages at once. They stand
//! here, in one function, so that a node without a bitmap (all pages alike) is driven by the very same
//! rules on a word of one bit. The three bitmaps are interleaved word by word, as every event looks at
//! all three.

use std::ops::{AddAssign, Range};

/// Units per word.
pub(super) const WORD_UNITS: u64 = 64;
const BITS: usize = WORD_UNITS as usize;

/// 64 units. No unit is both present and in flight; one that is neither is not unused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word {
    pub present: u64,
    pub in_flight: u64,
    pub unused: u64,
}

impl Word {
    /// What bit 0 says, repeated over `mask`.
    fn spread(self, mask: u64) -> Word {
        let over = |bits: u64| (bits & 1).wrapping_neg() & mask;
        Word {
            present: over(self.present),
            in_flight: over(self.in_flight),
            unused: over(self.unused),
        }
    }

    /// Units that are not missing.
    pub fn known(self) -> u64 {
        self.present | self.in_flight
    }
}

/// An event in the life of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A prefetch of the missing ones was issued.
    Begin,
    /// Those in flight arrived.
    Complete,
    /// Those in flight will not arrive.
    Fail,
    /// The program read all of them.
    Access,
    /// The program read a part of each (coarse granularity only): as `Access`, but the missing stay so.
    AccessPart,
    /// Someone saw them in the cache.
    Present,
    /// They left the cache.
    Evict,
}

impl Change {
    /// The word after the event hit the units in `mask`.
    pub fn on(self, word: Word, mask: u64) -> Word {
        let Word {
            present,
            in_flight,
            unused,
        } = word;
        match self {
            Change::Begin => {
                let new = mask & !word.known();
                Word {
                    present,
                    in_flight: in_flight | new,
                    unused: unused | new,
                }
            }
            Change::Complete => {
                let arrived = in_flight & mask;
                Word {
                    present: present | arrived,
                    in_flight: in_flight & !mask,
                    unused,
                }
            }
            Change::Fail => {
                let failed = in_flight & mask;
                Word {
                    present,
                    in_flight: in_flight & !failed,
                    unused: unused & !failed,
                }
            }
            Change::Access => Word {
                present: present | mask,
                in_flight: in_flight & !mask,
                unused: unused & !mask,
            },
            Change::AccessPart => Word {
                present: present | (in_flight & mask),
                in_flight: in_flight & !mask,
                unused: unused & !mask,
            },
            Change::Present => Word {
                present: present | mask,
                in_flight: in_flight & !mask,
                unused,
            },
            Change::Evict => Word {
                present: present & !mask,
                in_flight: in_flight & !mask,
                unused: unused & !mask,
            },
        }
    }
}

/// How many of the units hit by an event were what before it, and are what after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub was_present: u64,
    pub was_in_flight: u64,
    pub was_unused: u64,
    pub present: u64,
    pub in_flight: u64,
    pub unused: u64,
}

impl Tally {
    fn of_word(before: Word, after: Word, mask: u64) -> Tally {
        let count = |bits: u64| u64::from((bits & mask).count_ones());
        Tally {
            was_present: count(before.present),
            was_in_flight: count(before.in_flight),
            was_unused: count(before.unused),
            present: count(after.present),
            in_flight: count(after.in_flight),
            unused: count(after.unused),
        }
    }

    /// `units` units alike, which went from bit 0 of `before` to bit 0 of `after`.
    pub fn of_alike(before: Word, after: Word, units: u64) -> Tally {
        Tally {
            was_present: (before.present & 1) * units,
            was_in_flight: (before.in_flight & 1) * units,
            was_unused: (before.unused & 1) * units,
            present: (after.present & 1) * units,
            in_flight: (after.in_flight & 1) * units,
            unused: (after.unused & 1) * units,
        }
    }

    /// Whether some unit became missing.
    pub fn lost(&self) -> bool {
        self.present + self.in_flight < self.was_present + self.was_in_flight
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.was_present += other.was_present;
        self.was_in_flight += other.was_in_flight;
        self.was_unused += other.was_unused;
        self.present += other.present;
        self.in_flight += other.in_flight;
        self.unused += other.unused;
    }
}

/// The bitmaps of a node. Bit positions are relative to the first word; a position past the end reads
/// as missing and is never written.
#[derive(Debug, Default)]
pub(super) struct Bitmap {
    words: Vec<Word>,
}

/// The bits of word `index` that lie in `range`; the two must overlap.
fn mask(index: usize, range: &Range<usize>) -> u64 {
    let base = index * BITS;
    let from = range.start.saturating_sub(base).min(BITS - 1);
    let to = range.end.saturating_sub(base).clamp(1, BITS);
    (u64::MAX << from) & (u64::MAX >> (BITS - to))
}

impl Bitmap {
    /// `words` words, all missing.
    pub fn new(words: usize) -> Self {
        Self {
            words: vec![Word::default(); words],
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.words.capacity() * size_of::<Word>()
    }

    /// The words that `range` touches, each with its mask.
    fn masked(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Word, u64)> {
        let touched = if range.is_empty() {
            0..0
        } else {
            range.start / BITS..range.end.div_ceil(BITS)
        };
        let words = self
            .words
            .iter()
            .enumerate()
            .take(touched.end)
            .skip(touched.start);
        words.map(move |(index, word)| (index, *word, mask(index, &range)))
    }

    /// Lets the event happen to the units in `range`.
    pub fn apply(&mut self, range: Range<usize>, change: Change) -> Tally {
        let mut tally = Tally::default();
        if range.is_empty() {
            return tally;
        }
        let touched = range.start / BITS..range.end.div_ceil(BITS);
        let words = self
            .words
            .iter_mut()
            .enumerate()
            .take(touched.end)
            .skip(touched.start);
        for (index, word) in words {
            let mask = mask(index, &range);
            let after = change.on(*word, mask);
            tally += Tally::of_word(*word, after, mask);
            *word = after;
        }
        tally
    }

    /// Sets the units in `range`, missing so far, to what bit 0 of `unit` says.
    pub fn fill(&mut self, range: Range<usize>, unit: Word) {
        if range.is_empty() {
            return;
        }
        let touched = range.start / BITS..range.end.div_ceil(BITS);
        let words = self
            .words
            .iter_mut()
            .enumerate()
            .take(touched.end)
            .skip(touched.start);
        for (index, word) in words {
            let add = unit.spread(mask(index, &range));
            word.present |= add.present;
            word.in_flight |= add.in_flight;
            word.unused |= add.unused;
        }
    }

    /// Counts the units in `range` as they are.
    pub fn count(&self, range: Range<usize>) -> Tally {
        let mut tally = Tally::default();
        for (_, word, mask) in self.masked(range) {
            tally += Tally::of_word(word, word, mask);
        }
        tally
    }

    /// One unit, as bit 0 of a word.
    pub fn get(&self, position: usize) -> Word {
        let word = self.words.get(position / BITS).copied().unwrap_or_default();
        let bit = |bits: u64| (bits >> (position % BITS)) & 1;
        Word {
            present: bit(word.present),
            in_flight: bit(word.in_flight),
            unused: bit(word.unused),
        }
    }

    /// The first unit in `range` that is not missing.
    pub fn first_known(&self, range: Range<usize>) -> Option<usize> {
        self.masked(range).find_map(|(index, word, mask)| {
            let known = word.known() & mask;
            (known != 0).then(|| index * BITS + known.trailing_zeros() as usize)
        })
    }

    /// The first unit in `range` that is missing.
    pub fn first_missing(&self, range: Range<usize>) -> Option<usize> {
        self.masked(range).find_map(|(index, word, mask)| {
            let missing = !word.known() & mask;
            (missing != 0).then(|| index * BITS + missing.trailing_zeros() as usize)
        })
    }

    /// The last unit before `end` that is not missing.
    pub fn last_known_before(&self, end: usize) -> Option<usize> {
        let words = self.words.iter().enumerate().take(end.div_ceil(BITS)).rev();
        let mut known = words.map(|(index, word)| (index, word.known() & mask(index, &(0..end))));
        known
            .find(|(_, known)| *known != 0)
            .map(|(index, known)| index * BITS + BITS - 1 - known.leading_zeros() as usize)
    }

    /// Puts `words` missing words in front of the first.
    pub fn prepend(&mut self, words: usize) {
        if words > 0 {
            self.words
                .splice(0..0, std::iter::repeat_n(Word::default(), words));
        }
    }

    /// Makes the bitmap at least `words` long. Room is doubled, so that growing word by word copies
    /// each word a constant number of times, but never beyond `most` words.
    pub fn extend_to(&mut self, words: usize, most: usize) {
        let len = self.words.len();
        if words > self.words.capacity() {
            let room = words.max((2 * len).min(most));
            self.words.reserve_exact(room - len);
        }
        if words > len {
            self.words.resize(words, Word::default());
        }
    }

    /// Adds all of `other`, whose first word stands at word `at` of this bitmap.
    pub fn merge(&mut self, other: &Bitmap, at: usize) {
        for (word, add) in self.words.iter_mut().skip(at).zip(&other.words) {
            word.present |= add.present;
            word.in_flight |= add.in_flight;
            word.unused |= add.unused;
        }
    }

    /// A copy of the words that `range` touches, without room to spare.
    pub fn copy_words(&self, range: Range<usize>) -> Bitmap {
        Bitmap {
            words: self.masked(range).map(|(_, word, _)| word).collect(),
        }
    }

    /// Whether every word keeps [`Word`]'s promise and nothing is set outside of `range`.
    pub fn is_sound(&self, range: Range<usize>) -> bool {
        let all = self.count(0..self.words.len() * BITS);
        all == self.count(range)
            && self
                .words
                .iter()
                .all(|w| w.present & w.in_flight == 0 && w.unused & !w.known() == 0)
    }
}
