//! In which order what a profile has is fetched, how deep, and how much of it.
//!
//! Entries are gone through in the order of need, many at a time, because each of them waits for a directory, an inode and its first page one after the other.
//! It goes on as there is memory for it and as the profile's [`Credit`] lasts. Where the files lie on a device with a head all of them are looked up first, in the
//! order of their inodes, and then brought in the order of their places, one sweep as far as the memory reaches.
//!
//! What is cached costs a processor and gains nothing: few entries are asked for at a time until one is found cold, and where one after the other is cached, only one
//! of several is looked at, several together; what was passed over around one that is cold is made up for.
//!
//! Nothing here makes a system call or knows the time.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use outrider_sys::units::{PAGE, PageRange};

use super::credit::Credit;
use super::model::{Need, Profile};
use crate::clock::Moment;
use crate::device::HALF_SEEK;
use crate::intent::Wanted;
use crate::tree::inode_block;

/// Bytes that one errand brings: some sixteen times as much as a program has on its way that reads in order, so that threads are many on many files and few on
/// large ones.
pub const PIECE: u64 = 1 << 20;
/// Errands that wait or go on at a time: four for each thread of the lane.
pub const AHEAD: usize = 64;
/// … before anything was found cold: what is cached needs no depth, and each errand that waits costs a thread more. As many as find something within one block of
/// inodes.
const SHALLOW: usize = 4;
/// Names whose attributes one errand asks for.
const NAMES: usize = 32;
/// Bytes that a look-up is taken to cost: the block of an inode or of a directory.
const LOOK_UP: u64 = PAGE;
/// Entries that are looked at before a sweep, to see whether there is anything to be swept: the first that is cold ends that. As many are looked at together where
/// others were cached.
const PROBES: usize = 8;

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// Bytes of files that were asked for.
    pub bytes: u64,
    /// Something was not cached.
    pub cold: bool,
    /// Where files begin that are needed, by their entries.
    pub places: Vec<(usize, u64)>,
}

/// What was asked for of each entry, and what came of it.
#[derive(Debug)]
pub struct Books {
    /// Bytes, a page for what was only looked up, cached or not.
    counted: Vec<AtomicU64>,
    /// Bytes of it that were fetched.
    fetched: Vec<AtomicU64>,
    needed: Vec<AtomicBool>,
    /// Bytes that were fetched after they were needed.
    late: AtomicU64,
}

/// What that comes to, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Counted, and of these needed.
    pub counted: (u64, u64),
    /// Fetched, and of these needed.
    pub fetched: (u64, u64),
    /// Of these, after they were needed.
    pub late: u64,
}

impl Books {
    fn new(entries: usize) -> Books {
        let zeroes = || (0..entries).map(|_| AtomicU64::new(0)).collect();
        Books {
            counted: zeroes(),
            fetched: zeroes(),
            needed: (0..entries).map(|_| AtomicBool::new(false)).collect(),
            late: AtomicU64::new(0),
        }
    }

    /// What was fetched of an entry, bytes.
    pub fn fetched(&self, entry: usize) -> u64 {
        self.fetched[entry].load(Relaxed)
    }

    /// Whether an entry was needed.
    pub fn is_needed(&self, entry: usize) -> bool {
        self.needed[entry].load(Relaxed)
    }

    /// An entry was needed; whether that is news.
    pub fn set_needed(&self, entry: usize) -> bool {
        let needed = self.needed.get(entry);
        needed.is_some_and(|needed| !needed.swap(true, Relaxed))
    }

    /// All of it.
    pub fn sum(&self) -> Sum {
        let mut sum = Sum {
            late: self.late.load(Relaxed),
            ..Sum::default()
        };
        for (i, needed) in self.needed.iter().enumerate() {
            let (counted, fetched) = (self.counted[i].load(Relaxed), self.fetched(i));
            sum.counted.0 += counted;
            sum.fetched.0 += fetched;
            if needed.load(Relaxed) {
                sum.counted.1 += counted;
                sum.fetched.1 += fetched;
            }
        }
        sum
    }
}

/// What is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// What is left is gone through in the order of need.
    Need,
    /// It is seen whether all of it is cached.
    Probing,
    /// It is looked for where things lie.
    Looking,
    /// They are brought in the order of places.
    Sweep,
}

/// The way through a profile.
#[derive(Debug)]
pub struct Course {
    profile: Arc<Profile>,
    books: Arc<Books>,
    credit: Credit,
    phase: Phase,
    may_sweep: bool,
    seeks: bool,
    pace: Pace,
    calm: Calm,
    /// Errands that wait or go on.
    ahead: usize,
    /// Something was not cached.
    deep: bool,
    /// Bytes that were fetched and not needed yet.
    unused: u64,
    /// Entries that are left.
    left: VecDeque<usize>,
    /// Names that will be asked for together, and the blocks in which inodes lie that were.
    names: Vec<usize>,
    blocks: HashSet<u64>,
    /// Pages of files that are left, counted among those that are needed.
    more: VecDeque<(usize, Range<u64>)>,
    /// What is looked up before a sweep, and where files lie.
    looks: VecDeque<Wanted>,
    places: Vec<(usize, u64)>,
    /// What comes next, and bytes that it costs, once there is room.
    next: Option<(Wanted, u64)>,
}

impl Course {
    /// Through a profile, of which `allowance` bytes may be had and not needed yet.
    pub fn new(profile: Arc<Profile>, allowance: u64) -> Course {
        let entries = profile.entries.iter().enumerate();
        let likely = entries.filter(|(_, e)| e.seen.is_likely());
        let left: VecDeque<usize> = likely.map(|(i, _)| i).collect();
        let may_sweep = profile.bytes() <= allowance;
        Course {
            books: Arc::new(Books::new(profile.entries.len())),
            credit: Credit::new(profile.runs, profile.used, profile.bad),
            phase: match profile.seeks && may_sweep && !left.is_empty() {
                true => Phase::Probing,
                false => Phase::Need,
            },
            may_sweep,
            seeks: profile.seeks,
            pace: Pace::default(),
            calm: Calm::default(),
            ahead: 0,
            deep: false,
            unused: 0,
            left,
            names: Vec::new(),
            blocks: HashSet::new(),
            more: VecDeque::new(),
            looks: VecDeque::new(),
            places: Vec::new(),
            next: None,
            profile,
        }
    }

    /// Leaves entries alone; how many these are of what is left.
    pub fn leave(&mut self, alone: impl Fn(usize) -> bool) -> usize {
        let all = self.left.len();
        self.left.retain(|i| !alone(*i));
        if self.left.is_empty() {
            self.phase = Phase::Need;
        }
        all - self.left.len()
    }

    /// Where it is counted.
    pub fn books(&self) -> Arc<Books> {
        self.books.clone()
    }

    /// Whether a device was seen to have a head, now or before.
    pub fn seeks(&self) -> bool {
        self.seeks
    }

    /// Whether what is asked for is part of a sweep.
    pub fn sweeps(&self) -> bool {
        self.phase == Phase::Sweep
    }

    /// Bytes that were fetched and not needed yet.
    pub fn unused(&self) -> u64 {
        self.unused
    }

    /// Whether all was asked for and is done.
    pub fn is_over(&mut self) -> bool {
        self.ahead == 0 && self.make_up().is_none()
    }

    /// What is to be asked for now, where so many bytes may be had and not needed yet. `None`: nothing, until something is done or needed, or there is more memory.
    pub fn next(&mut self, allowance: u64) -> Option<Wanted> {
        // Where all was cached so far depth gains nothing.
        let most = match self.deep && self.calm.doubled < Calm::DOUBLED {
            true => AHEAD,
            false => SHALLOW,
        };
        if self.ahead >= most {
            return None;
        }
        let cost = self.make_up()?.1;
        let is_needed = |w: &Wanted| w.first().is_some_and(|i| self.books.is_needed(i));
        let needed = self.next.as_ref().is_some_and(|(w, _)| is_needed(w));
        let unused = self.unused + if needed { 0 } else { cost };
        if !self.credit.allows(cost) || unused > allowance {
            return None;
        }
        let (wanted, cost) = self.next.take()?;
        self.credit.fetched(cost);
        self.ahead += 1;
        match &wanted {
            Wanted::Names(entries) if cost > 0 => {
                for i in entries.clone() {
                    self.count(i, LOOK_UP);
                }
            }
            Wanted::Pages(i, _) => self.count(*i, cost),
            _ => {}
        }
        Some(wanted)
    }

    /// Nothing was done for longer than what is cached takes.
    pub fn waits(&mut self) {
        self.deep |= self.ahead > 0;
    }

    /// What was asked for is done.
    pub fn done(&mut self, wanted: &Wanted, came: Came, now: Moment) {
        self.pace.done(self.ahead, came.bytes, now);
        self.ahead = self.ahead.saturating_sub(1);
        self.places.extend(came.places);
        self.deep |= came.cold;
        match wanted {
            Wanted::Probe(_) if self.phase == Phase::Probing && came.cold => self.look(),
            Wanted::Probe(_) if self.phase == Phase::Probing => {
                self.calm.is_sure();
                self.phase = Phase::Need;
            }
            Wanted::Probe(entries) if came.cold => self.is_cold_again(entries),
            Wanted::Probe(entries) => self.calm.found_cached(entries.len()),
            Wanted::Names(entries) if came.cold => self.is_cold(entries),
            Wanted::Names(entries) => self.calm.found_cached(entries.len()),
            Wanted::Pages(i, _) => {
                self.books.fetched[*i].fetch_add(came.bytes, Relaxed);
                if self.books.is_needed(*i) {
                    self.books.late.fetch_add(came.bytes, Relaxed);
                }
                match came.cold {
                    true => self.is_cold(&[*i]),
                    false => self.calm.found_cached(1),
                }
            }
            Wanted::Places(_) => {}
        }
    }

    /// What was asked for is left alone: of what is cached that says nothing.
    pub fn left(&mut self, wanted: &Wanted) {
        self.ahead = self.ahead.saturating_sub(1);
        match wanted {
            Wanted::Probe(_) if self.phase == Phase::Probing => self.look(),
            // Its first entry is what can't be looked at.
            Wanted::Probe(entries) => entries
                .iter()
                .skip(1)
                .rev()
                .for_each(|i| self.left.push_front(*i)),
            _ => {}
        }
    }

    /// So many pages of a file are needed, as long as it is now.
    pub fn has_pages(&mut self, entry: usize, pages: u64) {
        if pages > PIECE / PAGE {
            self.more.push_back((entry, PIECE / PAGE..pages));
        }
    }

    /// An entry was needed; whether that is news.
    pub fn needed(&mut self, entry: usize) -> bool {
        let news = self.books.set_needed(entry);
        if news {
            let bytes = self.books.counted[entry].load(Relaxed);
            self.unused = self.unused.saturating_sub(bytes);
            self.credit.used(bytes);
        }
        news
    }

    fn count(&mut self, i: usize, bytes: u64) {
        self.books.counted[i].fetch_add(bytes, Relaxed);
        if self.books.is_needed(i) {
            self.credit.used(bytes);
        } else {
            self.unused += bytes;
        }
    }

    /// Some of these entries were not cached.
    fn is_cold(&mut self, entries: &[usize]) {
        let around = entries.iter().map(|i| self.calm.found_cold(*i));
        let passed: Vec<usize> = around.flatten().collect();
        self.put_back(passed);
    }

    /// … which were only looked at.
    fn is_cold_again(&mut self, entries: &[usize]) {
        let around = entries.iter().map(|i| self.calm.found_cold(*i));
        let mut passed: Vec<usize> = around.flatten().collect();
        passed.extend(entries);
        self.put_back(passed);
    }

    fn put_back(&mut self, mut passed: Vec<usize>) {
        passed.sort_unstable();
        for i in passed.into_iter().rev() {
            self.left.push_front(i);
        }
    }

    /// The next entry that is left.
    fn take(&mut self) -> Option<usize> {
        let i = self.left.pop_front()?;
        // What lies beside one that was cold may be followed by what lies far behind it, which is not to be
        // passed over before any of it was looked at.
        if self.phase == Phase::Need && i >= self.calm.from {
            let past = (self.calm.stride() - 1).min(self.left.len());
            self.calm.passed.extend(self.left.drain(..past));
        }
        Some(i)
    }

    /// Makes up what comes next, and what it costs.
    fn make_up(&mut self) -> Option<&(Wanted, u64)> {
        if self.next.is_none() {
            self.next = self.further().or_else(|| self.step());
        }
        self.next.as_ref()
    }

    fn step(&mut self) -> Option<(Wanted, u64)> {
        if self.phase == Phase::Need && !self.seeks && self.pace.seeks() {
            self.seeks = true;
            if self.may_sweep {
                let names = std::mem::take(&mut self.names);
                names
                    .into_iter()
                    .rev()
                    .for_each(|i| self.left.push_front(i));
                self.look();
            }
        }
        match self.phase {
            Phase::Need => self.probes().or_else(|| self.in_order()),
            Phase::Probing if self.ahead > 0 => None,
            Phase::Probing => {
                let n = self.left.len();
                let each =
                    (0..PROBES.min(n)).map(|k| self.left[(2 * k + 1) * n / (2 * PROBES.min(n))]);
                Some((Wanted::Probe(each.collect()), 0))
            }
            Phase::Looking => match self.looks.pop_front() {
                Some(looks) => Some((looks, 0)),
                None if self.ahead > 0 => None,
                None => {
                    let mut places = std::mem::take(&mut self.places);
                    places.sort_by_key(|(i, place)| (*place, *i));
                    self.left = places.into_iter().map(|(i, _)| i).collect();
                    self.phase = Phase::Sweep;
                    self.step()
                }
            },
            Phase::Sweep => {
                while let Some(i) = self.take() {
                    if let Some(pages) = self.pages(i) {
                        return Some(pages);
                    }
                }
                None
            }
        }
    }

    /// Where what came before was cached: entries that are looked at together.
    fn probes(&mut self) -> Option<(Wanted, u64)> {
        let mut each = Vec::new();
        while self.calm.doubled == Calm::DOUBLED
            && each.len() < PROBES
            && self.names.is_empty()
            && self.left.front().is_some_and(|i| *i >= self.calm.from)
        {
            each.extend(self.take());
        }
        (!each.is_empty()).then_some((Wanted::Probe(each), 0))
    }

    fn in_order(&mut self) -> Option<(Wanted, u64)> {
        while let Some(i) = self.take() {
            let entry = &self.profile.entries[i];
            if entry.need == Need::File && !entry.spans.is_empty() {
                let pages = self.pages(i);
                let names = self.flush();
                match (names, pages) {
                    (Some(names), Some(_)) => {
                        self.left.push_front(i);
                        return Some(names);
                    }
                    (None, None) => continue,
                    (one, other) => return one.or(other),
                }
            }
            // The attributes of what lies in one block are read together, whose names may not be.
            let (listing, inode) = (entry.need == Need::Listing, entry.inode);
            let lone = listing || self.blocks.insert(inode_block::of(inode));
            self.names.push(i);
            if lone || self.names.len() >= NAMES {
                return self.flush();
            }
        }
        self.flush()
    }

    fn flush(&mut self) -> Option<(Wanted, u64)> {
        let names = std::mem::take(&mut self.names);
        let cost = LOOK_UP * names.len() as u64;
        (!names.is_empty()).then_some((Wanted::Names(names), cost))
    }

    /// What is needed of a file: its first piece, and the others once it is known how long the file is now.
    fn pages(&self, i: usize) -> Option<(Wanted, u64)> {
        let entry = &self.profile.entries[i];
        let pages: u64 = entry.pages(entry.size).iter().map(PageRange::len).sum();
        let first = pages.min(PIECE / PAGE);
        (pages > 0).then_some((Wanted::Pages(i, 0..first), first * PAGE))
    }

    /// What is left of files whose length is known.
    fn further(&mut self) -> Option<(Wanted, u64)> {
        let (i, left) = self.more.pop_front()?;
        let end = left.end.min(left.start + PIECE / PAGE);
        if end < left.end {
            self.more.push_front((i, end..left.end));
        }
        let pages = left.start..end;
        let cost = (pages.end - pages.start) * PAGE;
        Some((Wanted::Pages(i, pages), cost))
    }

    /// Has all that is left looked for, in the order of inodes.
    fn look(&mut self) {
        let profile = &self.profile;
        let mut by_inode: Vec<usize> = std::mem::take(&mut self.left).into();
        by_inode.sort_by_key(|i| profile.entries[*i].inode);
        let (files, names): (Vec<usize>, Vec<usize>) =
            (by_inode.into_iter()).partition(|i| profile.entries[*i].need == Need::File);
        let names = names.chunks(NAMES).map(|part| Wanted::Names(part.to_vec()));
        let files = files
            .chunks(NAMES)
            .map(|part| Wanted::Places(part.to_vec()));
        self.looks = names.chain(files).collect();
        self.phase = Phase::Looking;
    }
}

/// Pages `part` of those in `ranges`, counted through.
pub fn cut(ranges: &[PageRange], part: Range<u64>) -> Vec<PageRange> {
    let mut before = 0;
    let mut out = Vec::new();
    for range in ranges {
        let own = before..before + range.len();
        let (start, end) = (own.start.max(part.start), own.end.min(part.end));
        if start < end {
            out.push(PageRange::new(
                range.start + (start - own.start),
                range.start + (end - own.start),
            ));
        }
        before = own.end;
    }
    out
}

/// How fast errands are done while many are under way: a device with a head does them one after the other, seek by seek, and only sorting helps; every other one
/// does many at a time, however late it answers.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Moment>,
    took: Duration,
    done: u32,
    bytes: u64,
}

impl Pace {
    /// Errands that have to be under way: half of the lane's threads.
    const DEEP: usize = 8;
    /// Errands that are looked at, some 100 ms of a disk's.
    const ENOUGH: u32 = 16;
    /// Bytes that take so long by themselves, at 60 MB/s, are no seek's fault.
    const LARGE: u64 = 180 << 10;

    /// An errand is done, one of `ahead` that were under way, which has asked for so many bytes.
    fn done(&mut self, ahead: usize, bytes: u64, now: Moment) {
        if bytes == 0 {
            // What was cached took no time: neither does the next begin here.
            return;
        }
        if let Some(last) = self.last.replace(now).filter(|_| ahead >= Self::DEEP) {
            self.took += now - last;
            self.done += 1;
            self.bytes += bytes;
        }
    }

    /// Whether the device has a head, as far as that is seen.
    fn seeks(&self) -> bool {
        self.done >= Self::ENOUGH
            && self.took / self.done >= HALF_SEEK
            && self.bytes / u64::from(self.done) < Self::LARGE
    }
}

/// Whether one entry after the other is found cached.
#[derive(Debug, Default)]
struct Calm {
    /// Entries in succession that were.
    streak: usize,
    /// How often one of twice as many is looked at.
    doubled: u32,
    /// Entries that were passed over.
    passed: VecDeque<usize>,
    /// Entries before this one lie beside one that was not cached.
    from: usize,
}

impl Calm {
    /// Entries after which one of twice as many is looked at: what an interpreter shares with all others is cached, and what it loads after that may not be.
    const ENOUGH: usize = 16;
    /// One of 32 is looked at, at least: so much of what is cold the program finds so itself, at 4 files to a look that waits some 10 ms of a store that answers in
    /// one. Looking at an entry takes 10 µs of a processor.
    const DOUBLED: u32 = 5;

    fn stride(&self) -> usize {
        1 << self.doubled
    }

    fn is_sure(&mut self) {
        self.doubled = Self::DOUBLED;
    }

    fn found_cached(&mut self, entries: usize) {
        self.streak += entries;
        if self.streak >= Self::ENOUGH {
            self.streak = 0;
            self.doubled = (self.doubled + 1).min(Self::DOUBLED);
        }
    }

    /// An entry was not: those that were passed over just before it and behind. Others lie beside entries of their own that are looked at.
    fn found_cold(&mut self, entry: usize) -> Vec<usize> {
        (self.streak, self.doubled) = (0, 0);
        self.from = self.from.max(entry + (1 << Self::DOUBLED) + 1);
        let near = entry.saturating_sub(1 << Self::DOUBLED)..=entry + (1 << Self::DOUBLED);
        let first = self.passed.partition_point(|i| i < near.start());
        let behind = self.passed.partition_point(|i| i <= near.end());
        self.passed.drain(first..behind).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::{Entry, History, Span};
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const ALL: u64 = 1 << 40;

    fn profile(entries: usize, seeks: bool) -> Arc<Profile> {
        let entry = |i: usize| Entry {
            path: format!("/disk/{i:05}").into(),
            need: match i % 5 {
                0 => Need::Attributes,
                1 => Need::Listing,
                _ => Need::File,
            },
            size: 5 * PAGE,
            modified: 0,
            inode: 100 + 7 * i as u64,
            at_us: i as u64,
            seen: History::NEW,
            spans: match i % 5 {
                0 | 1 => Vec::new(),
                _ => vec![Span {
                    pages: PageRange::new(0, 5),
                    seen: History::NEW,
                }],
            },
        };
        Arc::new(Profile {
            runs: 9,
            used: Some(900),
            seeks,
            entries: (0..entries).map(entry).collect(),
            ..Profile::default()
        })
    }

    /// Goes through it with so many errands at a time, on files of which some are cold: entries that were asked for.
    fn go(profile: &Arc<Profile>, deep: usize, is_cold: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut course = Course::new(profile.clone(), ALL);
        let (mut asked, mut under_way) = (Vec::new(), VecDeque::new());
        loop {
            while under_way.len() < deep
                && let Some(wanted) = course.next(ALL)
            {
                under_way.push_back(wanted);
            }
            let Some(wanted) = under_way.pop_front() else {
                break;
            };
            let entries = match &wanted {
                Wanted::Names(entries) | Wanted::Probe(entries) | Wanted::Places(entries) => {
                    entries.clone()
                }
                Wanted::Pages(i, _) => vec![*i],
            };
            let cold = entries.iter().any(|i| is_cold(*i));
            let bytes = match &wanted {
                Wanted::Pages(..) if cold => 5 * PAGE,
                _ => 0,
            };
            let places = match &wanted {
                Wanted::Places(entries) => entries.clone(),
                _ => Vec::new(),
            };
            let place = |i: usize| (i, (i * 7919 % 1009) as u64);
            let came = Came {
                bytes,
                cold,
                places: places.into_iter().map(place).collect(),
            };
            course.done(&wanted, came, Moment::BEGINNING);
            if matches!(wanted, Wanted::Names(_) | Wanted::Pages(..)) {
                asked.extend(entries);
            }
        }
        assert!(course.is_over());
        asked
    }

    /// What is cached is looked at here and there, what is cold is asked for, each entry once and in the order of need.
    #[test]
    fn what_is_cached_is_not_gone_through() {
        for deep in [1, AHEAD] {
            let cold = go(&profile(2000, false), deep, |_| true);
            assert_eq!(cold, Vec::from_iter(0..2000));
            let cached = go(&profile(2000, false), deep, |_| false);
            assert!(cached.len() < 2000 / 8 + 2 * AHEAD, "{}", cached.len());
            // The interpreter is cached, what it runs is not.
            let half: BTreeSet<usize> = go(&profile(2000, false), deep, |i| i >= 1000)
                .into_iter()
                .collect();
            assert!((1000..2000).all(|i| half.contains(&i)));
            assert!(half.len() < 1000 + 1000 / 8 + 2 * AHEAD, "{}", half.len());
        }
        // The second is behind what was looked at while the first was found.
        let two = |i| (484..517).contains(&i) || (1492..1525).contains(&i);
        let asked = go(&profile(1600, false), 4, two);
        assert!((0..1600).filter(|i| two(*i)).all(|i| asked.contains(&i)));
    }

    /// A sweep brings all in the order of places, and does without where all is cached.
    #[test]
    fn a_sweep_is_made_of_what_is_cold() {
        let swept = go(&profile(2000, true), 4, |_| true);
        let files: Vec<usize> = swept.iter().copied().filter(|i| i % 5 > 1).collect();
        let last = &files[files.len() - 1200..];
        let mut sorted = last.to_vec();
        sorted.sort_by_key(|i| (i * 7919 % 1009, *i));
        assert_eq!(last, sorted);
        assert_eq!(BTreeSet::from_iter(swept).len(), 2000);
        let cached = go(&profile(2000, true), 4, |_| false);
        assert!(cached.len() < 2000 / 8 + 2 * AHEAD, "{}", cached.len());
    }

    /// What nobody needs holds memory and credit; what is needed gives both back.
    #[test]
    fn it_stops_where_nothing_is_needed() {
        let wrong = Arc::new(Profile {
            runs: 1,
            used: None,
            ..Profile::clone(&profile(9000, false))
        });
        let go = |allowance: u64, needed: bool| {
            let mut course = Course::new(wrong.clone(), allowance);
            while let Some(wanted) = course.next(allowance) {
                let came = Came {
                    bytes: 5 * PAGE,
                    cold: true,
                    places: Vec::new(),
                };
                course.done(&wanted, came, Moment::BEGINNING);
                if needed && let Some(i) = wanted.first() {
                    course.needed(i);
                }
            }
            course.books().sum()
        };
        let slice = go(ALL, false);
        assert!(slice.counted.0 <= super::super::credit::FIRST && slice.counted.1 == 0);
        assert!(go(1 << 20, false).counted.0 <= 1 << 20);
        let all = go(1 << 20, true);
        assert_eq!(all.counted.0, all.counted.1);
        assert_eq!(all.fetched, (5400 * 5 * PAGE, 5400 * 5 * PAGE));
    }

    proptest! {
        /// Whatever is cold, no entry is asked for twice, and where an errand finds something cold its neighbours are asked for.
        #[test]
        fn each_is_asked_for_once(cold in prop::collection::vec(0usize..1600, 0..60), deep in 1usize..64) {
            let cold: BTreeSet<usize> = cold.into_iter().flat_map(|at| at..at + 33).collect();
            let asked = go(&profile(1600, false), deep, |i| cold.contains(&i));
            let once: BTreeSet<usize> = asked.iter().copied().collect();
            prop_assert_eq!(once.len(), asked.len());
            prop_assert!(cold.iter().filter(|i| **i < 1600 - 33).all(|i| once.contains(i)));
        }
    }
}
