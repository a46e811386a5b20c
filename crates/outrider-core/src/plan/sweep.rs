//! The order of a sweep (libprefetch section 3; SPEC LP3, LP7).
//!
//! A disk with a head wants its requests sorted, as many at a time as memory allows: a *round* takes the list's next unique
//! pages, sorts them by their place on the disk, and sweeps over them in one direction (C-LOOK), reading through gaps where
//! that is cheaper than a seek. How far into the list it goes is another matter at each place: [`Reach`](super::reach::Reach).

use outrider_sys::units::PageRange;

use super::merge;

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

    /// Its pages in the file.
    pub fn pages_of_file(&self) -> PageRange {
        PageRange::new(self.page(), self.end())
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
        let in_one = file.is_some() && file == device && item.file() == first.file();
        let mut pages = request.pages_of_file();
        if !in_one
            || !merge::join(&mut pages, item.pages_of_file(), gap)
            || pages.len() > u64::from(most)
        {
            break;
        }
        infill += item.page().saturating_sub(request.end());
        request.pages = pages.len() as u32;
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

    proptest! {
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
