//! What to fetch next, and what to give up for it (libprefetch sections 3 and 4.5; SPEC LP3, LP6, LP7).
//!
//! **A disk with a head** wants its requests sorted, as many at a time as memory allows: a *round* takes the list's next unique
//! pages, sorts them by their place on the disk, and sweeps over them in one direction (C-LOOK), reading through gaps where
//! that is cheaper than a seek. How far into the list it goes is another matter at each place: [`Reach`].
//!
//! **A device with parallelism** gains nothing from sorting, and the program can go on as soon as its next page is there: a
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

/// Parts that the way of a sweep over the disk is divided into.
pub const PARTS: u64 = 64;
/// The head may be so many parts ahead of the program.
const LEAD: u64 = 4;
/// Of a round's memory, what it plans to fill: the rest is what the lead takes, once when it is fetched and once before it is used.
const FILLED: (u64, u64) = (27, 32);

/// How far into the list a round goes, at each part of the disk.
///
/// A round that takes the same entries everywhere fills its memory once, at its end, and half of the memory lies idle on average. A sweep that
/// goes on and on passes each page once in a while, and it is enough to bring at each place what is needed before the head comes
/// there again. So a round reaches further, the later in the sweep a place comes; it begins where the one before ended, there; and the
/// program uses up the last round's entries while the head goes over this one's. Memory stays full, and rounds are fewer by nearly half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// May be before a list's first entry, where the list is another one by now.
    begin: i64,
    width: u64,
    end: u64,
}

impl Reach {
    /// Nothing was fetched of what begins with entry `begin`.
    pub fn none(begin: u64) -> Reach {
        Reach {
            begin: begin as i64,
            width: 0,
            end: begin,
        }
    }

    /// The round that begins with entry `begin` of a list of which entries below `end` are known, for `room` bytes: as far as what is held when it
    /// is over fits in there, or `None` if that is further than `end`. `first` has for each page its first use from `begin` on, its part of the disk, and
    /// its bytes.
    pub fn fitting(
        begin: u64,
        end: u64,
        room: u64,
        first: impl Iterator<Item = (u64, u64, u64)>,
    ) -> Option<Reach> {
        let room = room / FILLED.1 * FILLED.0;
        // The least width with which a round takes it.
        let mut widths: Vec<(u64, u64)> = first
            .map(|(n, part, bytes)| (n.saturating_sub(begin) * PARTS / (part + 1) + 1, bytes))
            .collect();
        widths.sort_unstable();
        let mut held = 0;
        let over = widths.iter().position(|(_, bytes)| {
            held += bytes;
            held > room
        })?;
        let width = widths.get(over).map_or(1, |(w, _)| w - 1);
        // At least something.
        let least = widths.first().map_or(1, |(w, _)| *w);
        Some(Reach {
            begin: begin as i64,
            width: width.max(least),
            end,
        })
    }

    /// The same as far as the known list goes, for one that goes on.
    pub fn known(self) -> Reach {
        Reach {
            width: self.width.min(self.length()),
            ..self
        }
    }

    /// The round that takes all entries below `end`, wherever they are.
    pub fn all(begin: u64, end: u64) -> Reach {
        Reach {
            begin: begin as i64,
            width: end.saturating_sub(begin).saturating_mul(PARTS),
            end: end.max(begin),
        }
    }

    /// The same where the list goes on with entry `to` instead of `from`. `None` if that is behind it.
    pub fn moved(self, from: u64, to: u64) -> Option<Reach> {
        (self.end > from).then(|| Reach {
            begin: self.begin + to as i64 - from as i64,
            end: self.end - from + to,
            ..self
        })
    }

    /// Whether nothing of it lies behind the list's known entries.
    pub fn is_within(&self) -> bool {
        self.width <= self.length()
    }

    /// First entry that it leaves to later rounds, of pages in a part of the disk.
    pub fn end(&self, part: u64) -> u64 {
        let far = self.width.saturating_mul(part + 1).div_ceil(PARTS);
        self.begin
            .saturating_add_unsigned(far)
            .clamp(0, self.end as i64) as u64
    }

    /// Entries from where it begins to where it ends.
    fn length(&self) -> u64 {
        (self.end as i64).saturating_sub(self.begin).max(0) as u64
    }

    /// What the lead takes of it, in entries.
    fn lead(&self) -> u64 {
        self.width.min(self.length()) / PARTS * LEAD
    }

    /// First entry of which it takes nothing anywhere.
    pub fn last(&self) -> u64 {
        self.end(PARTS - 1)
    }

    /// Entry that the program has to come to before the next round may go over a part: what it has used up by then makes room.
    pub fn pace(&self, part: u64) -> u64 {
        self.end(part).saturating_sub(self.lead())
    }

    /// Whether a page last needed by entry `n` of this round may as well stay until the next round wants it.
    pub fn is_late(&self, n: u64, part: u64) -> bool {
        self.end(part).saturating_sub(n) <= self.lead()
    }
}

/// The borders between the parts of the disk in which `places` lie, equally many in each. Sorts them.
pub fn borders(places: &mut [u64]) -> Vec<u64> {
    places.sort_unstable();
    let n = places.len();
    let border = |i: u64| places.get(n * i as usize / PARTS as usize).copied();
    (1..PARTS).filter_map(border).collect()
}

/// The part of the disk in which a place lies.
pub fn part_of(borders: &[u64], place: u64) -> u64 {
    borders.partition_point(|b| *b <= place) as u64
}

/// A use of the page that an entry begins on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// The page, see `key_of`.
    pub key: u64,
    /// The entry, counted from the first one that was looked at.
    pub entry: u32,
    /// Pages of the entry.
    pub pages: u32,
}

/// Pages of one file that a round fetches: where they lie on the device, in pages, and in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Page on the device; in the file, where the file system doesn't tell.
    pub place: u64,
    /// The file in the top 16 bits, its page below.
    key: u64,
    /// Pages.
    pub pages: u32,
    /// An entry that needs one of them, counted from the first one that was looked at: the first one in a lone sweep, otherwise the last one of the
    /// round.
    pub need: u32,
}

impl Item {
    /// `pages` pages from `page` on of `file`, which lie at `place` and are needed by entry `need`.
    pub fn new(place: u64, file: u16, page: u64, pages: u32, need: u32) -> Item {
        Item {
            place,
            key: u64::from(file) << 48 | (page & ((1 << 48) - 1)),
            pages,
            need,
        }
    }

    /// The file.
    pub fn file(&self) -> u16 {
        (self.key >> 48) as u16
    }

    /// First page in the file.
    pub fn page(&self) -> u64 {
        self.key & ((1 << 48) - 1)
    }

    /// First page behind it.
    pub fn end(&self) -> u64 {
        self.page() + u64::from(self.pages)
    }
}

/// Sorts a round by place on the device: each goes over it in the same direction, from its beginning (C-LOOK).
pub fn arrange(items: &mut [Item]) {
    items.sort_unstable_by_key(|i| (i.place, i.key));
}

/// An arranged round with what touches in file and device alike joined, at most up to the next multiple of `most` pages of the file, in the order of first
/// need. Requests that begin on multiples lie in one chunk of the engine's: otherwise one page that is there already, at the front of a file, would have every
/// other one behind it made as two.
pub fn by_need(items: &[Item], most: u32) -> Vec<Item> {
    let mut out = Vec::new();
    let mut left = items;
    while let Some(first) = left.first() {
        let room = most - (first.page() % u64::from(most)) as u32;
        let Some((request, taken, _)) = join(left, 0, room) else {
            break;
        };
        out.push(request);
        left = left.get(taken..).unwrap_or_default();
    }
    out.sort_unstable_by_key(|i| i.need);
    out
}

/// The request that an arranged round begins with: what lies within `gap` pages of one another in file and device alike, at most
/// `most` pages. Returns it, how many items it takes, and the pages that it reads through.
pub fn join(items: &[Item], gap: u64, most: u32) -> Option<(Item, usize, u64)> {
    let (first, rest) = items.split_first()?;
    let mut request = *first;
    let (mut taken, mut infill) = (1, 0);
    for item in rest {
        let file = item.key.checked_sub(first.key);
        let device = item.place.checked_sub(first.place);
        let (Some(apart), true) = (file, file == device) else {
            break;
        };
        let pages = (apart + u64::from(item.pages)).max(u64::from(request.pages));
        if item.file() != first.file()
            || apart > u64::from(request.pages) + gap
            || pages > u64::from(most)
        {
            break;
        }
        infill += apart.saturating_sub(u64::from(request.pages));
        request.pages = pages as u32;
        request.need = request.need.min(item.need);
        taken += 1;
    }
    Some((request, taken, infill))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

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

    /// What rounds of the policy do to a list.
    #[derive(Debug)]
    struct Swept {
        rounds: u64,
        /// Pages that are held at a time, at most.
        most: u64,
        /// Entries whose page was not there when all that is asked for by then had come.
        missing: u64,
    }

    /// Goes over a list of pages below `pages`, which lie in their order, in memory for `room` of them, with a program that uses at once what it may.
    fn sweep_over(list: &[u64], pages: u64, room: u64) -> Swept {
        let end = list.len() as u64;
        let mut borders = borders(&mut (0..pages).collect::<Vec<u64>>());
        borders.dedup();
        let part_of = |page| part_of(&borders, page);
        let mut uses: Vec<Vec<u64>> = vec![Vec::new(); pages as usize];
        for (n, page) in (0..).zip(list) {
            uses[*page as usize].push(n);
        }
        let mut swept = Swept {
            rounds: 0,
            most: 0,
            missing: 0,
        };
        // Pages that are held, and the entry up to which.
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut before, mut at) = (Reach::none(0), 0);
        while before.end(0) < end {
            let begin = before.last();
            let first = (0..pages).filter_map(|p| {
                let n = uses[p as usize].iter().find(|n| **n >= begin)?;
                Some((*n, part_of(p), 1))
            });
            let reach = Reach::fitting(begin, end, room, first).unwrap_or(Reach::all(begin, end));
            swept.rounds += 1;
            for part in 0..PARTS {
                for page in (0..pages).filter(|p| part_of(*p) == part) {
                    let new = uses[page as usize].iter().rev();
                    let last = new.copied().find(|n| *n < reach.end(part));
                    if let Some(last) = last.filter(|n| *n >= before.end(part)) {
                        held.insert(page, last);
                    }
                }
                swept.most = swept.most.max(held.len() as u64);
                // The parts that come still have what the last round brought.
                let there = match part + 1 {
                    PARTS => reach.end(0),
                    next => before.end(next),
                };
                for n in at..there {
                    swept.missing += u64::from(!held.contains_key(&list[n as usize]));
                }
                at = at.max(there);
                held.retain(|_, until| *until >= at);
            }
            before = reach;
        }
        swept.missing += end - at;
        swept
    }

    /// LP3: where a list goes over the same pages at random, such rounds are fewer by a third than those that take the same entries everywhere.
    #[test]
    fn reaching_further_takes_fewer_rounds() {
        let mut state = 1u64;
        let mut page = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % 7000
        };
        let list: Vec<u64> = (0..47_500).map(|_| page()).collect();
        for room in [1250, 2300] {
            let (mut plain, mut taken) = (1, BTreeSet::new());
            for page in &list {
                if taken.len() as u64 == room {
                    taken.clear();
                    plain += 1;
                }
                taken.insert(*page);
            }
            let swept = sweep_over(&list, 7000, room);
            assert!(
                swept.rounds * 3 <= plain * 2,
                "{swept:?}, otherwise {plain}"
            );
        }
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

        /// LP3: rounds that reach further the later a place comes bring each page before the program needs it, whatever the list, hold no more than they
        /// were given, and end.
        #[test]
        fn reaches_follow_one_another(list in prop::collection::vec(0u64..200, 1..2000), room in 20u64..150) {
            let swept = sweep_over(&list, 200, room);
            prop_assert!(swept.missing == 0, "{} missing", swept.missing);
            // Parts are steps, and a short list is uneven.
            prop_assert!(swept.most * 4 <= room * 5 + 16, "{} held of {room}", swept.most);
        }

        /// LP3, LP7: what is issued covers each wanted page exactly once, sweeps upwards, joins only what is contiguous or within the gap in file and
        /// device, and says how much it reads through.
        #[test]
        fn sweeps(pages in prop::collection::btree_map((0u16..3, 0u64..500), 0u64..2000, 1..200), gap in 0u64..9) {
            // Files are laid out in fragments of 16 pages.
            let mut fragments: BTreeMap<(u16, u64), u64> = BTreeMap::new();
            let mut items: Vec<Item> = Vec::new();
            for ((file, page), random) in &pages {
                let n = fragments.len() as u64;
                let base = *fragments.entry((*file, page / 16)).or_insert((random % 7 + n * 3) * 1000);
                items.push(Item::new(base + page % 16, *file, *page, 1, items.len() as u32));
            }
            let wanted: BTreeSet<(u16, u64)> = pages.keys().copied().collect();
            items.reverse();
            arrange(&mut items);
            // The sweep of a device without a head: pieces of the file that begin on multiples.
            let mut pieces = BTreeSet::new();
            for item in by_need(&items, 8) {
                prop_assert_eq!(item.page() / 8, (item.end() - 1) / 8);
                for page in item.page()..item.end() {
                    prop_assert!(pieces.insert((item.file(), page)), "twice");
                }
            }
            prop_assert_eq!(&pieces, &wanted);
            let (mut requests, mut infill, mut rest) = (Vec::new(), 0, &items[..]);
            while let Some((request, taken, through)) = join(rest, gap, 32) {
                requests.push(request);
                infill += through;
                rest = &rest[taken..];
            }
            let items = requests;
            let mut covered = BTreeSet::new();
            let mut extra = 0;
            for item in &items {
                prop_assert!(item.pages <= 32);
                for page in item.page()..item.end() {
                    prop_assert!(covered.insert((item.file(), page)), "twice");
                    extra += u64::from(!wanted.contains(&(item.file(), page)));
                }
            }
            prop_assert!(wanted.is_subset(&covered));
            prop_assert_eq!(extra, infill);
            prop_assert!(items.windows(2).all(|w| w[0].place <= w[1].place));
            if gap == 0 {
                prop_assert_eq!(infill, 0);
            }
        }
    }
}
