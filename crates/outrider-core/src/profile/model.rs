//! A profile, and how runs correct it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use outrider_sys::units::{PAGE, PageRange, pages_of};

/// Runs that a need is remembered over.
const RUNS: u8 = 8;
/// Runs in succession in which something was not needed, after which it is forgotten.
const MISSES: u32 = 3;
/// Runs in succession in which little of what was fetched was used, after which a profile is forgotten.
pub const BAD_RUNS: u8 = 3;
/// Bytes of a path at most: PATH_MAX.
pub(super) const PATH: usize = 4095;
/// Files of fewer bytes count as needed whole: the kernel's first readahead window brings as much in.
pub(super) const WHOLE: u64 = 128 << 10;
/// Gaps of so many pages are read through, as the kernel's first readahead window would (16 KiB): a range more costs as much as they do.
const GAP: u64 = 4;

/// In which of the last runs something was needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct History {
    /// A bit for each, the last one lowest.
    pub bits: u8,
    /// How many runs these are, at most 8.
    pub runs: u8,
}

impl History {
    /// Of what was needed in the only run there was.
    pub const NEW: History = History { bits: 1, runs: 1 };

    /// One more run.
    pub fn add(&mut self, needed: bool) {
        self.bits = self.bits << 1 | u8::from(needed);
        self.runs = (self.runs + 1).min(RUNS);
    }

    /// Whether it was needed in at least half of the runs.
    pub fn is_likely(self) -> bool {
        2 * self.bits.count_ones() >= u32::from(self.runs)
    }

    /// Whether it has not been needed for long.
    pub fn is_over(self) -> bool {
        self.bits.trailing_zeros() >= MISSES && u32::from(self.runs) >= MISSES
    }
}

/// How something is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// Bytes of a regular file.
    File,
    /// The names in a directory.
    Listing,
    /// The attributes of what is there, whatever it is.
    Attributes,
}

impl Need {
    /// All, by their number in the file.
    pub const ALL: [Need; 3] = [Need::File, Need::Listing, Need::Attributes];

    /// As it is told.
    pub fn name(self) -> &'static str {
        match self {
            Need::File => "file",
            Need::Listing => "directory",
            Need::Attributes => "attributes",
        }
    }
}

/// Pages that are needed, and when they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The pages.
    pub pages: PageRange,
    /// In which runs.
    pub seen: History,
}

/// A file, a directory, or a name whose attributes are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Absolute and without links, or relative to a root that is named when the profile is used.
    pub path: PathBuf,
    /// How it is needed.
    pub need: Need,
    /// Bytes, when it was seen last.
    pub size: u64,
    /// Time of its last modification then, s.
    pub modified: i64,
    /// Inode number then.
    pub inode: u64,
    /// First need, µs from the start.
    pub at_us: u64,
    /// In which runs.
    pub seen: History,
    /// Which pages of a file, ascending and apart.
    pub spans: Vec<Span>,
}

impl Entry {
    /// Bytes of it that are likely to be needed.
    pub fn bytes(&self) -> u64 {
        let likely = self.spans.iter().filter(|s| s.seen.is_likely());
        let pages: u64 = likely.map(|s| s.pages.len()).sum();
        (pages * PAGE).min(self.size.div_ceil(PAGE).saturating_mul(PAGE))
    }

    /// The pages that are likely to be needed of a file that has `size` bytes now. The last page of one that has grown is no longer its last.
    pub fn pages(&self, size: u64) -> Vec<PageRange> {
        let end = pages_of(size);
        let likely = self.spans.iter().filter(|s| s.seen.is_likely());
        let within = likely.map(|s| PageRange::new(s.pages.start, s.pages.end.min(end)));
        join(within.filter(|r| r.start < r.end), GAP)
    }
}

/// What a job needs, in the order of first need.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Profile {
    /// What was run, for people.
    pub command: Vec<Vec<u8>>,
    /// Where.
    pub directory: PathBuf,
    /// First and last run, s since 1970.
    pub created: u64,
    /// See `created`.
    pub updated: u64,
    /// Runs so far.
    pub runs: u32,
    /// Of these, the last ones in succession in which little of what was fetched was used.
    pub bad: u8,
    /// Share of what was fetched in the last run that was used, of 1000; `None`: little was fetched.
    pub used: Option<u16>,
    /// Its files lie on a device with a head.
    pub seeks: bool,
    /// Paths are relative.
    pub relative: bool,
    /// What is needed.
    pub entries: Vec<Entry>,
}

/// What a run needed of something.
#[derive(Clone, Debug)]
pub struct Seen {
    /// As of an [`Entry`].
    pub path: PathBuf,
    /// Likewise.
    pub need: Need,
    /// Likewise.
    pub size: u64,
    /// Likewise.
    pub modified: i64,
    /// Likewise.
    pub inode: u64,
    /// Likewise.
    pub at_us: u64,
    /// Pages that were needed, ascending.
    pub pages: Vec<PageRange>,
    /// These are all: what the profile has besides was not needed. Otherwise it may have been.
    pub all: bool,
}

/// What came of fetching ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes that were fetched, an entry that was only looked up as a page.
    pub fetched: u64,
    /// Of these, of entries that were needed.
    pub used: u64,
}

/// Less than this fetched says nothing about a profile, bytes.
pub(super) const LITTLE: u64 = 1 << 20;
/// A run is bad if less than one byte of so many was used.
const BAD_PART: u64 = 4;

impl Outcome {
    /// The share of what was fetched that was used, of 1000; `None` where that says nothing.
    pub fn share(self) -> Option<u16> {
        let share = || (1000 * self.used.min(self.fetched) / self.fetched) as u16;
        (self.fetched >= LITTLE).then(share)
    }

    /// Whether little of it was used.
    pub fn is_bad(self) -> bool {
        self.share().is_some() && self.used < self.fetched / BAD_PART
    }
}

impl Profile {
    /// A run has come to its end, at `now` (s since 1970), and has seen this, in order. `false`: the profile was wrong so often that it is to be forgotten.
    pub fn learn(&mut self, seen: Vec<Seen>, outcome: Outcome, now: u64) -> bool {
        self.learn_of(seen, true, outcome, now)
    }

    /// The same of a run that may have needed more than was seen, unless this is `all`.
    pub fn learn_of(&mut self, seen: Vec<Seen>, all: bool, outcome: Outcome, now: u64) -> bool {
        self.used = outcome.share().or(self.used);
        self.bad = match outcome.is_bad() {
            true => self.bad + 1,
            // What fetched little neither confirms nor refutes.
            false if outcome.share().is_none() => self.bad,
            false => 0,
        };
        if self.bad >= BAD_RUNS {
            return false;
        }
        if self.runs == 0 {
            self.created = now;
        }
        self.updated = now;
        self.runs = self.runs.saturating_add(1);
        // Names are compared byte by byte: taking paths apart costs more than the rest.
        let mut known: HashMap<(&OsStr, Need), usize> = HashMap::new();
        for (i, entry) in self.entries.iter().enumerate() {
            known.insert((entry.path.as_os_str(), entry.need), i);
        }
        let mut numbers = Vec::with_capacity(seen.len());
        let mut next = self.entries.len();
        for seen in &seen {
            let number = *known
                .entry((seen.path.as_os_str(), seen.need))
                .or_insert(next);
            next += usize::from(number == next);
            numbers.push(number);
        }
        let mut needed = vec![false; next];
        for (seen, i) in seen.into_iter().zip(numbers) {
            if std::mem::replace(&mut needed[i], true) {
                continue;
            }
            match self.entries.get_mut(i) {
                Some(entry) => entry.see(seen),
                None => self.entries.push(seen.into()),
            }
        }
        for (entry, _) in self.entries.iter_mut().zip(&needed).filter(|(_, n)| !**n) {
            // What is not fetched any more is forgotten in any case.
            if all || !entry.seen.is_likely() {
                entry.seen.add(false);
            }
        }
        self.entries.retain(|e| !e.seen.is_over());
        self.entries.sort_by_key(|e| e.at_us);
        true
    }

    /// Takes in what another profile of the same job knows: of what both have, the longer history.
    pub fn merge(&mut self, other: Profile) {
        let mut known: HashMap<(PathBuf, Need), usize> = HashMap::new();
        for (i, entry) in self.entries.iter().enumerate() {
            known.insert((entry.path.clone(), entry.need), i);
        }
        for entry in other.entries {
            match known.get(&(entry.path.clone(), entry.need)) {
                Some(i) => self.entries[*i].merge(entry),
                None => self.entries.push(entry),
            }
        }
        self.entries.sort_by_key(|e| e.at_us);
        self.runs = self.runs.max(other.runs);
        self.created = self.created.min(other.created);
        self.updated = self.updated.max(other.updated);
        self.bad = self.bad.min(other.bad);
        self.seeks |= other.seeks;
    }

    /// Bytes that are likely to be needed.
    pub fn bytes(&self) -> u64 {
        self.likely()
            .fold(0, |all, e| all.saturating_add(e.bytes()))
    }

    /// What is likely to be needed, in order.
    pub fn likely(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|e| e.seen.is_likely())
    }

    /// Paths below `root` relative to it; of others nothing is left. How many these are.
    pub fn relative_to(&mut self, root: &Path) -> usize {
        let before = self.entries.len();
        self.entries
            .retain_mut(|e| match e.path.strip_prefix(root) {
                Ok(path) if !path.as_os_str().is_empty() => {
                    e.path = path.to_owned();
                    true
                }
                _ => false,
            });
        self.relative = true;
        before - self.entries.len()
    }

    /// The other way round. Paths that become longer than the kernel takes are left out.
    pub fn below(&mut self, root: &Path) {
        if std::mem::take(&mut self.relative) {
            self.entries.retain_mut(|entry| {
                entry.path = root.join(&entry.path);
                entry.path.as_os_str().len() <= PATH
            });
        }
    }
}

impl From<Seen> for Entry {
    fn from(seen: Seen) -> Entry {
        let spans = join(seen.pages.into_iter(), GAP).into_iter();
        let new = |pages| Span {
            pages,
            seen: History::NEW,
        };
        Entry {
            path: seen.path,
            need: seen.need,
            size: seen.size,
            modified: seen.modified,
            inode: seen.inode,
            at_us: seen.at_us,
            seen: History::NEW,
            spans: spans.map(new).collect(),
        }
    }
}

impl Entry {
    /// It was needed.
    fn see(&mut self, seen: Seen) {
        self.seen.add(true);
        (self.size, self.modified) = (seen.size, seen.modified);
        (self.inode, self.at_us) = (seen.inode, seen.at_us);
        let new = join(seen.pages.into_iter(), GAP);
        self.spans = overlay(&self.spans, &new, seen.all);
    }

    fn merge(&mut self, other: Entry) {
        if other.seen.runs > self.seen.runs {
            self.seen = other.seen;
        }
        self.at_us = self.at_us.min(other.at_us);
        let pages: Vec<PageRange> = other.spans.iter().map(|s| s.pages).collect();
        let mut spans = Vec::new();
        // What both have keeps its history; what only the other has brings its own.
        for span in overlay(&self.spans, &pages, false) {
            let own = first_meeting(&self.spans, &span.pages);
            let from = first_meeting(&other.spans, &span.pages);
            let history = match (own, from) {
                (None, Some(from)) => from.seen,
                _ => span.seen,
            };
            spans.push(Span {
                pages: span.pages,
                seen: history,
            });
        }
        self.spans = spans;
    }
}

/// The first of `spans`, which ascend and may be many, that has some of these pages.
fn first_meeting<'a>(spans: &'a [Span], pages: &PageRange) -> Option<&'a Span> {
    let at = spans.partition_point(|s| s.pages.end <= pages.start);
    spans.get(at).filter(|s| meets(&s.pages, pages))
}

fn meets(a: &PageRange, b: &PageRange) -> bool {
    a.start < b.end && b.start < a.end
}

/// Spans after a run that needed the pages `new`. What is in both was needed once more; what only the spans have was not, if `all`, and otherwise counts as
/// needed, since nobody could see that it wasn't; what is new begins.
fn overlay(old: &[Span], new: &[PageRange], all: bool) -> Vec<Span> {
    let mut cuts: Vec<u64> = Vec::new();
    for r in old.iter().map(|s| &s.pages).chain(new) {
        cuts.extend([r.start, r.end]);
    }
    cuts.sort_unstable();
    cuts.dedup();
    let (mut o, mut n) = (old.iter().peekable(), new.iter().peekable());
    let mut out: Vec<Span> = Vec::new();
    for pair in cuts.windows(2) {
        let &[start, end] = pair else { continue };
        while o.next_if(|s| s.pages.end <= start).is_some() {}
        while n.next_if(|r| r.end <= start).is_some() {}
        let was = o.peek().filter(|s| s.pages.start <= start);
        let is = n.peek().is_some_and(|r| r.start <= start);
        let mut seen = match (was, is) {
            (None, false) => continue,
            (None, true) => History::NEW,
            (Some(was), _) => was.seen,
        };
        if was.is_some() && (is || all) {
            seen.add(is);
        } else if was.is_some() {
            seen.add(true);
        }
        if seen.is_over() {
            continue;
        }
        match out.last_mut() {
            Some(last) if last.pages.end == start && last.seen == seen => last.pages.end = end,
            _ => out.push(Span {
                pages: PageRange::new(start, end),
                seen,
            }),
        }
    }
    out
}

/// Ranges in ascending order, those with gaps of at most `gap` pages in one.
pub fn join(ranges: impl Iterator<Item = PageRange>, gap: u64) -> Vec<PageRange> {
    let mut out: Vec<PageRange> = Vec::new();
    for range in ranges.filter(|r| r.start < r.end) {
        match out.last_mut() {
            Some(last) if range.start <= last.end + gap => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn seen(path: &str, at_us: u64, pages: &[(u64, u64)], all: bool) -> Seen {
        Seen {
            path: path.into(),
            need: Need::File,
            size: 1 << 30,
            modified: 1,
            inode: 2,
            at_us,
            pages: pages.iter().map(|p| PageRange::new(p.0, p.1)).collect(),
            all,
        }
    }

    fn names(profile: &Profile) -> Vec<&str> {
        profile.likely().filter_map(|e| e.path.to_str()).collect()
    }

    /// B15: what is needed in most runs stays, what isn't ages out, and what is new comes in, in the order of need.
    #[test]
    fn runs_correct_a_profile() {
        let mut profile = Profile::default();
        let fine = Outcome::default();
        let run = |profile: &mut Profile, files: &[&str]| {
            let files = files.iter().zip(1..);
            let files = files.map(|(name, at)| seen(name, at, &[(0, 1)], true));
            assert!(profile.learn(files.collect(), fine, 7));
        };
        run(&mut profile, &["/b", "/a", "/once"]);
        assert_eq!(names(&profile), ["/b", "/a", "/once"]);
        run(&mut profile, &["/a", "/b", "/new"]);
        assert_eq!(names(&profile), ["/a", "/b", "/once", "/new"]);
        run(&mut profile, &["/a", "/b"]);
        assert_eq!(names(&profile), ["/a", "/b", "/new"]);
        run(&mut profile, &["/a", "/b"]);
        assert!(profile.entries.iter().all(|e| e.path != Path::new("/once")));
        assert_eq!(profile.runs, 4);
    }

    /// B15: a profile of which little was used three times in succession is forgotten, and one that is right once begins anew.
    #[test]
    fn a_profile_that_is_wrong_three_times_is_forgotten() {
        let (bad, good) = (
            Outcome {
                fetched: 9 << 20,
                used: 1 << 20,
            },
            Outcome {
                fetched: 9 << 20,
                used: 8 << 20,
            },
        );
        let little = Outcome {
            fetched: 9 << 10,
            used: 0,
        };
        let mut profile = Profile::default();
        let mut learn = |outcome| profile.learn(Vec::new(), outcome, 7);
        assert!(
            learn(bad) && learn(bad) && learn(good) && learn(bad) && learn(bad) && learn(little)
        );
        assert!(!learn(bad));
    }

    /// B15, B16: what a file may list is merged in no time that grows with its square.
    #[test]
    fn many_spans_are_merged() {
        let of = |first: u64| {
            let pages: Vec<_> = (0..1 << 18)
                .map(|i| (8 * i + first, 8 * i + first + 1))
                .collect();
            Entry::from(seen("/x", 0, &pages, true))
        };
        let mut entry = of(0);
        entry.merge(of(0));
        assert_eq!(entry.spans.len(), 1 << 18);
        let mut other = of(0);
        other.spans.retain(|s| s.pages.start % 16 == 0);
        other.merge(of(0));
        assert_eq!(
            other.spans.iter().map(|s| s.pages.len()).sum::<u64>(),
            1 << 18
        );
    }

    proptest! {
        /// Pages, one by one, have the history that spans have.
        #[test]
        fn spans_are_what_single_pages_would_be(
            runs in prop::collection::vec((prop::collection::vec((0u64..60, 1u64..9), 0..6), any::<bool>()), 1..12)
        ) {
            let mut spans: Vec<Span> = Vec::new();
            let mut pages: BTreeMap<u64, History> = BTreeMap::new();
            for (ranges, all) in runs {
                let mut ranges: Vec<PageRange> = ranges.into_iter().map(|(s, n)| PageRange::new(s, s + n)).collect();
                ranges.sort_by_key(|r| r.start);
                let ranges = join(ranges.into_iter(), 0);
                spans = overlay(&spans, &ranges, all);
                let needed = |page: u64| ranges.iter().any(|r| r.start <= page && page < r.end);
                for (page, history) in &mut pages {
                    history.add(needed(*page) || !all);
                }
                for range in &ranges {
                    for page in range.start..range.end {
                        pages.entry(page).or_insert(History::NEW);
                    }
                }
                pages.retain(|_, history| !history.is_over());
                let mut found = BTreeMap::new();
                for span in &spans {
                    prop_assert!(span.pages.start < span.pages.end);
                    for page in span.pages.start..span.pages.end {
                        prop_assert!(found.insert(page, span.seen).is_none());
                    }
                }
                prop_assert_eq!(&found, &pages);
            }
        }
    }
}
