//! How far into a list a round goes, at each part of a disk with a head (SPEC LP3).

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

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
        let part_of: Vec<u64> = (0..pages).map(|page| part_of(&borders, page)).collect();
        // The pages of each part.
        let mut parts: Vec<Vec<u64>> = vec![Vec::new(); PARTS as usize];
        for (page, part) in (0..).zip(&part_of) {
            parts[*part as usize].push(page);
        }
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
                let uses = &uses[p as usize];
                let n = uses.get(uses.partition_point(|n| *n < begin))?;
                Some((*n, part_of[p as usize], 1))
            });
            let reach = Reach::fitting(begin, end, room, first).unwrap_or(Reach::all(begin, end));
            swept.rounds += 1;
            for part in 0..PARTS {
                for &page in &parts[part as usize] {
                    let uses = &uses[page as usize];
                    let new = uses.partition_point(|n| *n < reach.end(part));
                    let last = new.checked_sub(1).map(|i| uses[i]);
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
        /// LP3: rounds that reach further the later a place comes bring each page before the program needs it, whatever the list, hold no more than they
        /// were given, and end.
        #[test]
        fn reaches_follow_one_another(list in prop::collection::vec(0u64..200, 1..2000), room in 20u64..150) {
            let swept = sweep_over(&list, 200, room);
            prop_assert!(swept.missing == 0, "{} missing", swept.missing);
            // Parts are steps, and a short list is uneven.
            prop_assert!(swept.most * 4 <= room * 5 + 16, "{} held of {room}", swept.most);
        }
    }
}
