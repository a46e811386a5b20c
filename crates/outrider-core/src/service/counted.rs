//! What programs have read, told or not, and what became of what was fetched for it.

use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{ByteRange, InodeKey, PAGE};

use super::Service;
use super::descriptors::Silent;
use super::kernel::Kernel;
use crate::asked::{Use, When};
use crate::device::READAHEAD;
use crate::shm::{Event, Fate, Figure, Origin};
use crate::source::Arrival;
use crate::view::{Access, PageRange};

/// Silent strided reads that are accounted for one by one.
const MOST_PASSED: usize = 65536;

/// What a read has found, in pages. The rest was missing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    hit: u64,
    late: u64,
    cached: u64,
}

impl Found {
    /// Of a read of so many pages, of which `uses` were fetched ahead and `found_late` seen to be cached after the program had asked for them.
    fn new(read: &Access, uses: &[Use], found_late: u64, pages: u64) -> Found {
        let sum = |of: fn(&Use) -> u64| uses.iter().map(of).sum::<u64>();
        let hit = sum(|u| u.hit).min(pages);
        let ours = sum(|u| u.hit + u.late + u.first);
        // Of what nobody knows any more it isn't known when it was there.
        let late = sum(|u| u.late) + read.first_use_pages.saturating_sub(ours);
        let late = late.min(pages - hit);
        // What is on its way is not used yet.
        let there = read.first_use_pages.saturating_sub(read.late_pages);
        let cached = read.hit_pages.saturating_sub(there);
        let cached = cached.saturating_sub(found_late).min(pages - hit - late);
        Found { hit, late, cached }
    }
}

impl<K: Kernel> Service<K> {
    pub(super) fn lost_pages(&mut self, key: InodeKey, range: PageRange) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        file.lose(range, Fate::Evicted);
    }

    /// Process `i` opens or reads a file.
    pub(super) fn reads_now(&self, i: usize, key: InodeKey) {
        let (state, file) = (self.processes.get(i), self.files.get(&key));
        if let (Some(state), Some(file)) = (state, file)
            && let Some(tally) = file.account.tally()
        {
            tally.read_by(state.who());
            file.account.read_by(i);
        }
    }

    pub(super) fn count(&self, key: InodeKey, figure: Figure, bytes: u64) {
        match self.files.get(&key) {
            Some(file) => file.count(figure, bytes),
            None => self.header().total.figures.add(figure, bytes),
        }
    }

    /// The program read these bytes, for which it had asked then, or so we know by now.
    pub(super) fn seen(
        &mut self,
        key: InodeKey,
        offset: u64,
        len: u64,
        when: &When,
    ) -> (Arrival, u64) {
        let now = self.now_us();
        let Some(file) = self.files.get_mut(&key) else {
            return (Arrival::Missing, len);
        };
        file.touch(self.kernel.now());
        file.served.has_read(len);
        let len = len.min(file.size().saturating_sub(offset));
        if len == 0 {
            return (Arrival::Present, 0);
        }
        if file.served.never_caches() {
            // What was read before is not there.
            self.count(key, Figure::Miss, len);
            return (Arrival::Missing, len);
        }
        let pages = PageRange::from_bytes(offset, len);
        let (uses, found_late) = {
            let mut asked = file.account.asked();
            let found_late = asked.found_late(&file.view, pages, when);
            (asked.used(&file.view, pages, when), found_late)
        };
        file.reads(offset..offset + len);
        let a = file.view.access(pages, now);
        file.random.uses(a.first_use_pages * PAGE);
        self.files.reached(key, offset, len);
        let mut found = Found::new(&a, &uses, found_late, pages.len());
        let rest = pages.len() - (found.hit + found.late + found.cached).min(pages.len());
        if rest > 0 {
            // What a profile had fetched nobody has noted in the file's view.
            found.hit += self.remembered(key, pages).min(rest);
        }
        let missed = self.has_found(key, &found, pages.len(), len);
        self.has_used(key, &a, &uses, len);
        let arrival = if a.miss_pages > 0 {
            if let Some(file) = self.files.get_mut(&key) {
                file.hinted.missed(self.kernel.now());
            }
            Arrival::Missing
        } else if a.late_pages > 0 {
            Arrival::Late
        } else {
            Arrival::Present
        };
        (arrival, missed)
    }

    /// How many of these pages were there because an earlier run had needed them.
    pub(super) fn remembered(&self, key: InodeKey, pages: PageRange) -> u64 {
        let remember = self.remember.as_ref();
        remember.map_or(0, |remember| remember.brought(key, pages))
    }

    /// Counts what a read of `len` bytes has found in so many pages; how many of them count as missed.
    fn has_found(&self, key: InodeKey, found: &Found, pages: u64, len: u64) -> u64 {
        // Bytes, not pages: a read of a few bytes is a hit of a few bytes.
        let share = |n| (u128::from(len) * u128::from(n) / u128::from(pages.max(1))) as u64;
        let [hit, late, cached] = [found.hit, found.late, found.cached].map(share);
        self.count(key, Figure::Hit, hit);
        self.count(key, Figure::Late, late);
        self.count(key, Figure::Cached, cached);
        let missed = len.saturating_sub(hit + late + cached);
        self.count(key, Figure::Miss, missed);
        missed
    }

    /// Counts what is used, by a read of `len` bytes, of what was fetched ahead.
    fn has_used(&self, key: InodeKey, read: &Access, uses: &[Use], len: u64) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let Some(tally) = file.account.tally() else {
            return;
        };
        let (request_us, byte_us) = file.price();
        let mut rest = read.first_use_pages;
        for u in uses {
            rest = rest.saturating_sub(u.hit + u.late + u.first);
            // What waits to be given to the kernel is not fetched, nor will it be.
            if !u.issued {
                tally.came_to(&u.of, Fate::Dropped, u.first * PAGE);
                continue;
            }
            let late = u.late + u.first;
            tally.add(Figure::Used, (u.hit + late) * PAGE);
            tally.came_to(&u.of, Fate::Used, (u.hit + late) * PAGE);
            tally.came_to(&u.of, Fate::Late, late * PAGE);
            let bytes = u.hit * PAGE;
            let requests = match u.of.origin {
                Origin::Sources | Origin::Dense => bytes.min(len).div_ceil(len.max(1)) as f64,
                // Of what is read in order the kernel reads ahead, too.
                _ => bytes as f64 / READAHEAD as f64,
            };
            let us = requests * request_us + bytes as f64 * byte_us;
            tally.saved(&u.of, us as u64);
        }
        let of = file.account.asked().latest().cloned();
        if let Some(of) = of.filter(|_| rest > 0) {
            tally.add(Figure::Used, rest * PAGE);
            tally.came_to(&of, Fate::Used, rest * PAGE);
            tally.came_to(&of, Fate::Late, rest * PAGE);
        }
    }

    /// The program has read these pages, and all of them are counted as read: what of them was fetched ahead is used.
    pub(super) fn uses_own(&self, key: InodeKey, pages: PageRange) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let uses = file.account.asked().used(&file.view, pages, &self.hearing);
        let read = file.view.access(pages, self.now_us());
        let waited = |u: Use| Use {
            hit: 0,
            late: u.hit + u.late + u.first,
            first: 0,
            ..u
        };
        let uses: Vec<Use> = uses.into_iter().map(waited).collect();
        self.has_used(key, &read, &uses, pages.len() * PAGE);
    }

    /// Reads that were not told, for which the program had asked then: pieces of so many bytes that begin every so many bytes in a span.
    pub(super) fn pass(
        &mut self,
        i: usize,
        key: InodeKey,
        (span, stride, len): Silent,
        when: &When,
    ) {
        if span.is_empty() || span.end - span.start > 1 << 40 || len == 0 {
            return;
        }
        self.reads_now(i, key);
        let span = span.start..span.end.min(self.files.get(&key).map_or(0, |f| f.size()));
        let (mut reads, mut bytes) = (0, 0);
        if stride <= len {
            bytes = span.end.saturating_sub(span.start);
            reads = bytes.div_ceil(len);
            if bytes > 0 {
                self.seen(key, span.start, bytes, when);
            }
        } else {
            // Bounded: a hostile stride must not keep the service busy.
            for at in (span.start..span.end)
                .step_by(stride as usize)
                .take(MOST_PASSED)
            {
                self.seen(key, at, len, when);
                reads += 1;
                bytes = u64::saturating_add(bytes, len);
            }
        }
        self.has_read(i, reads, bytes);
    }

    /// Process `i` has made so many reads, of so many bytes together.
    pub(super) fn has_read(&mut self, i: usize, reads: u64, bytes: u64) {
        let Some(state) = self.processes.get_mut(i) else {
            return;
        };
        state.has_read(reads, bytes);
        if let Some(record) = self.shared.record(state.who()) {
            record.reads.fetch_add(reads, Relaxed);
            record.bytes_read.fetch_add(bytes, Relaxed);
        }
    }

    /// A read was told of a file that nobody has found open: of what it was, it is counted. What was there nobody knows.
    pub(super) fn read_unseen(&mut self, i: usize, e: &Event) {
        let state = self.processes.get(i);
        let Some(size) = state.and_then(|state| state.unseen(e.fd, e.generation)) else {
            return;
        };
        let bytes = e.len.min(size.saturating_sub(e.offset));
        self.header().total.figures.add(Figure::Miss, bytes);
        self.has_read(i, 1, bytes);
    }

    /// The program has skipped these bytes: what was fetched of them is wasted, and no longer waited for.
    pub(super) fn pass_over(&mut self, key: InodeKey, bytes: &ByteRange) {
        let pages = PageRange::new(bytes.start.div_ceil(PAGE), bytes.end / PAGE);
        if pages.is_empty() || pages.len() > u64::from(u32::MAX) {
            return;
        }
        let now = self.now_us();
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let unused = file.view.count(pages).unused_pages;
        if unused > 0 {
            let whose = file.account.asked().gone(&file.view, pages);
            // What lies between two reads is there: it was asked for before what lies behind it.
            let _ = file.view.access(pages, now);
            file.has_lost(&whose, unused, Fate::Wasted);
        }
    }

    /// Reads that nobody told move a descriptor's place all the same: who reads slowly, with all of it foreseen, is silent for long.
    pub(super) fn notice_silent_reads(&mut self) {
        let now = self.kernel.now();
        self.processes.each_open(&self.shared, |_, desc, slot, _| {
            if desc.has_come_to(slot.last.load(Relaxed))
                && let Some(file) = self.files.get_mut(&desc.key)
            {
                file.touch(now);
            }
        });
    }
}
