//! What to give up for what is fetched next, where a list doesn't fit in memory (libprefetch section 4.5; SPEC LP6).
//!
//! A device with parallelism gains nothing from sorting, and the program can go on as soon as its next page is there: a
//! *stream* asks in the order of need, as far ahead as memory allows. Once memory is full it is Belady's algorithm: what is needed
//! last is given up first. That is decided where the stream stands, ahead of the program, and carried out when the program has
//! come there; the difference is the lead.
//!
//! It asks the list for each entry: is its page wanted again, and where? Links from each entry to the next one that begins on the
//! same page answer it, at four bytes an entry.

/// No further use.
const NONE: u32 = u32::MAX;

/// A set of small numbers that knows its largest one: one bit each, and a bit above every 64.
#[derive(Debug, Default)]
struct Bits {
    levels: Vec<Vec<u64>>,
}

impl Bits {
    /// Room for numbers below `n`; `None` without the memory.
    fn new(n: usize) -> Option<Bits> {
        let mut levels = Vec::new();
        let mut words = n.div_ceil(64).max(1);
        loop {
            let mut level: Vec<u64> = Vec::new();
            level.try_reserve_exact(words).ok()?;
            level.resize(words, 0);
            levels.push(level);
            if words == 1 {
                return Some(Bits { levels });
            }
            words = words.div_ceil(64);
        }
    }

    fn has(&self, n: u32) -> bool {
        self.levels
            .first()
            .and_then(|l| l.get(n as usize / 64))
            .is_some_and(|w| w >> (n % 64) & 1 != 0)
    }

    fn insert(&mut self, n: u32) {
        let mut at = n as usize;
        for level in &mut self.levels {
            if let Some(w) = level.get_mut(at / 64) {
                *w |= 1 << (at % 64);
            }
            at /= 64;
        }
    }

    fn remove(&mut self, n: u32) {
        let mut at = n as usize;
        for level in &mut self.levels {
            let Some(w) = level.get_mut(at / 64) else {
                return;
            };
            *w &= !(1 << (at % 64));
            if *w != 0 {
                return;
            }
            at /= 64;
        }
    }

    fn last(&self) -> Option<u32> {
        let mut at = 0usize;
        for level in self.levels.iter().rev() {
            let w = *level.get(at)?;
            if w == 0 {
                return None;
            }
            at = at * 64 + 63 - w.leading_zeros() as usize;
        }
        u32::try_from(at).ok()
    }
}

/// For each entry of a stretch of the list, the next one that begins on the same page.
#[derive(Debug, Default)]
pub struct Links {
    next: Vec<u32>,
}

impl Links {
    /// Links `n` entries; `key` says on which page an entry begins, `None` for one that is not wanted. `None` without the memory.
    pub fn new(n: usize, key: impl Fn(usize) -> Option<u64>) -> Option<Links> {
        let mut next: Vec<u32> = Vec::new();
        next.try_reserve_exact(n).ok()?;
        next.resize(n, NONE);
        // Open addressing over entries' numbers; the keys stay in the list. Only for as long as this takes.
        let size = (n + n / 4 + 1).next_power_of_two();
        let mut table: Vec<u32> = Vec::new();
        table.try_reserve_exact(size).ok()?;
        table.resize(size, NONE);
        for i in (0..n).rev() {
            let Some(k) = key(i) else { continue };
            let mut at = (k.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize & (size - 1);
            loop {
                let place = table.get_mut(at)?;
                if *place == NONE {
                    *place = i as u32;
                    break;
                }
                if key(*place as usize) == Some(k) {
                    if let Some(link) = next.get_mut(i) {
                        *link = *place;
                    }
                    *place = i as u32;
                    break;
                }
                at = (at + 1) & (size - 1);
            }
        }
        Some(Links { next })
    }

    /// Entries that are linked.
    pub fn len(&self) -> usize {
        self.next.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }

    fn after(&self, i: usize) -> u32 {
        self.next.get(i).copied().unwrap_or(NONE)
    }
}

/// What a stream that has come to an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its page is among those kept.
    Kept,
    /// It has to be fetched.
    Fetch,
}

/// A page that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// An entry of the list that begins on it: where it is needed next, or was last needed.
    pub entry: u32,
    /// We brought it into the cache.
    pub ours: bool,
    /// The program needs it once more, only later than everything that is kept.
    pub needed: bool,
}

/// Belady's algorithm over the linked stretch. Which pages are kept is known by the entry that needs them next, a bit each.
#[derive(Debug)]
pub struct Belady {
    links: Links,
    kept: Bits,
    ours: Bits,
    bytes: u64,
}

impl Belady {
    /// Nothing kept yet. `None` without the memory.
    pub fn new(links: Links) -> Option<Belady> {
        let n = links.len();
        Some(Belady {
            links,
            kept: Bits::new(n)?,
            ours: Bits::new(n)?,
            bytes: 0,
        })
    }

    /// Entries of the stretch.
    pub fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The page of entry `i`, of `size` bytes, is there already, and ours.
    pub fn adopt(&mut self, i: u32, size: u64) {
        self.kept.insert(i);
        self.ours.insert(i);
        self.bytes += size;
    }

    /// Whether the page of entry `i` is kept for it.
    pub fn verdict(&self, i: u32) -> Verdict {
        if self.kept.has(i) {
            Verdict::Kept
        } else {
            Verdict::Fetch
        }
    }

    /// There is room for `room` bytes only: what is needed last goes, and is added to `victims`.
    pub fn shrink(&mut self, room: u64, size_of: impl Fn(u32) -> u64, victims: &mut Vec<Victim>) {
        while self.bytes > room
            && let Some(last) = self.kept.last()
        {
            victims.push(Victim {
                entry: last,
                ours: self.ours.has(last),
                needed: true,
            });
            self.kept.remove(last);
            self.ours.remove(last);
            self.bytes = self.bytes.saturating_sub(size_of(last));
        }
    }

    /// The stream goes past entry `i`, of `size` bytes, with room for `room` bytes in all. `fetched`: it had to be, and was. `size_of`
    /// tells the size of another entry. What is to be given up, once the program has come to `i`, is added to `victims`.
    pub fn pass(
        &mut self,
        i: u32,
        size: u64,
        fetched: bool,
        room: u64,
        size_of: impl Fn(u32) -> u64,
        victims: &mut Vec<Victim>,
    ) {
        let ours = fetched || self.ours.has(i);
        if self.kept.has(i) {
            self.kept.remove(i);
            self.ours.remove(i);
            self.bytes = self.bytes.saturating_sub(size);
        }
        let next = self.links.after(i as usize);
        // This one needs its place now, however late it is needed again.
        self.shrink(room.saturating_sub(size), &size_of, victims);
        if next == NONE {
            victims.push(Victim {
                entry: i,
                ours,
                needed: false,
            });
        } else {
            self.kept.insert(next);
            if ours {
                self.ours.insert(next);
            }
            self.bytes += size_of(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Belady's algorithm, the slow way: fetches for `list` with room for `room` pages.
    fn naive(list: &[u64], room: usize) -> usize {
        let mut held: BTreeSet<u64> = BTreeSet::new();
        let mut fetches = 0;
        for (i, page) in list.iter().enumerate() {
            if !held.contains(page) {
                fetches += 1;
                if held.len() >= room {
                    let next =
                        |p: &u64| list[i..].iter().position(|q| q == p).unwrap_or(usize::MAX);
                    let farthest = held.iter().copied().max_by_key(next).unwrap();
                    held.remove(&farthest);
                }
                held.insert(*page);
            }
        }
        fetches
    }

    proptest! {
        /// LP6: a stream fetches as often as Belady's algorithm, and what it gives up is never what it needs first.
        #[test]
        fn stream_is_belady(list in prop::collection::vec(0u64..40, 1..300), room in 1usize..30) {
            let links = Links::new(list.len(), |i| list.get(i).copied()).unwrap();
            let mut stream = Belady::new(links).unwrap();
            let mut held: BTreeSet<u64> = BTreeSet::new();
            let mut fetches = 0;
            for i in 0..list.len() as u32 {
                let page = list[i as usize];
                let fetch = stream.verdict(i) == Verdict::Fetch;
                prop_assert_eq!(fetch, !held.contains(&page));
                fetches += usize::from(fetch);
                let mut victims = Vec::new();
                stream.pass(i, 1, fetch, room as u64, |_| 1, &mut victims);
                held.insert(page);
                for v in victims {
                    prop_assert!(v.ours);
                    prop_assert!(held.remove(&list[v.entry as usize]));
                }
                prop_assert!(held.len() <= room);
            }
            prop_assert_eq!(fetches, naive(&list, room));
        }

        /// LP6: when memory shrinks, what is needed last goes, and no more than has to.
        #[test]
        fn less_room(list in prop::collection::vec(0u64..40, 2..300), room in 2usize..30, less in 1usize..30) {
            let links = Links::new(list.len(), |i| list.get(i).copied()).unwrap();
            let mut stream = Belady::new(links).unwrap();
            let half = list.len() / 2;
            for i in 0..half as u32 {
                let fetch = stream.verdict(i) == Verdict::Fetch;
                stream.pass(i, 1, fetch, room as u64, |_| 1, &mut Vec::new());
            }
            let rest = || half as u32..list.len() as u32;
            let before: Vec<u32> = rest().filter(|i| stream.verdict(*i) == Verdict::Kept).collect();
            let mut victims = Vec::new();
            stream.shrink(less as u64, |_| 1, &mut victims);
            let kept: Vec<u32> = rest().filter(|i| stream.verdict(*i) == Verdict::Kept).collect();
            let (near, far) = before.split_at(before.len().min(less));
            prop_assert_eq!(kept, near);
            prop_assert_eq!(stream.bytes(), near.len() as u64);
            let mut gone: Vec<u32> = victims.iter().map(|v| v.entry).collect();
            gone.sort_unstable();
            prop_assert_eq!(gone, far);
            prop_assert!(victims.iter().all(|v| v.needed && v.ours));
        }
    }
}
