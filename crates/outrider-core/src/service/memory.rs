//! Memory: what may be taken for what is prefetched and not read yet, and what makes room under pressure.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outrider_sys::memory::Memory;
use outrider_sys::units::{InodeKey, PAGE};

use super::Service;
use super::kernel::Kernel;
use crate::budget::{self, Grant, Policy, Supply};
use crate::clock::Moment;
use crate::config;
use crate::engine::Handle;
use crate::ledger::{Holder, Ledger};
use crate::shm::{Fate, lost};
use crate::view::{FileView, PageRange};

/// From one look at memory to the next.
const PAUSE: Duration = Duration::from_millis(200);
/// Looks of which the least counts.
const LOOKS: usize = 8;
/// Under pressure so much of memory makes room at a look: one part in …
const PART: u64 = 50;
/// Gaps in what is held of a range up to which it is given up at once.
const HOLES: usize = 1024;

/// What may be taken.
pub(super) struct MemoryBudget {
    policy: Policy,
    grant: Grant,
    /// Who has how much of it.
    ledger: Arc<Ledger>,
    /// What the page cache could take at the last looks, bytes, the latest first.
    headrooms: [u64; LOOKS],
    looked: Moment,
}

impl MemoryBudget {
    /// Nothing, until it is looked.
    pub(super) fn new(settings: &config::Budget, now: Moment) -> MemoryBudget {
        MemoryBudget {
            policy: Policy {
                fixed: settings.memory.map(|s| s.0),
                share: settings.share,
                high: settings.high_watermark,
                low: settings.low_watermark,
                stream_minimum: settings.stream_minimum.0,
                psi_max: settings.psi_some_avg10_max,
            },
            grant: Grant::NOTHING,
            ledger: Arc::default(),
            headrooms: [u64::MAX; LOOKS],
            looked: now,
        }
    }

    /// Whether it is time to look again.
    fn is_due(&self, now: Moment) -> bool {
        now - self.looked >= PAUSE
    }

    /// Decides by what there is now, of which lists hold some.
    fn learn(&mut self, memory: &Memory, lists: u64, now: Moment) {
        // Dirty pages come and go in bursts, and while they are there what is clean has less room: the least of the last
        // seconds counts.
        self.headrooms.rotate_right(1);
        self.headrooms[0] = memory.headroom();
        let headroom = self.headrooms.iter().fold(u64::MAX, |a, b| a.min(*b));
        let limit = memory.limit();
        // With half of our memory to spare, whoever waits for memory does so in a control group of its own, and would
        // wait no less if we stopped.
        let psi = memory.psi_some_avg10.filter(|_| headroom < limit / 2);
        self.grant = self.policy.grant(Supply {
            headroom,
            limit,
            psi: psi.unwrap_or(0.0),
        });
        self.ledger.hold(Holder::Lists, lists);
        // What a user allows is for all.
        let room = self
            .policy
            .fixed
            .map_or(headroom, |bytes| bytes.min(headroom));
        self.grant.total = self.ledger.grant(self.grant.total, room);
        self.looked = now;
    }

    /// Who has how much of what may be held.
    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Nothing may be taken until it is looked again.
    fn withdraw(&mut self) {
        self.grant = Grant::NOTHING;
    }

    /// Whether anything may be prefetched.
    pub(super) fn is_allowed(&self) -> bool {
        self.grant.allowed
    }

    /// Whether there is room for more than what streams need next.
    pub(super) fn is_aggressive(&self) -> bool {
        self.grant.aggressive
    }

    /// Whether there is too little of it, and not only for what the user allows.
    fn is_short(&self) -> bool {
        !self.grant.aggressive && !budget::is_nothing(self.policy.fixed)
    }

    /// Bytes that may be held in all.
    pub(super) fn total(&self) -> u64 {
        self.grant.total
    }

    /// Bytes that each of so many may hold.
    pub(super) fn part(&self, of: usize) -> u64 {
        self.grant.total / (of as u64).max(1)
    }

    /// Bytes that may still be asked for with `unused` of open files held, by so many streams.
    fn room(&self, unused: u64, streams: u64) -> u64 {
        let kept = self.ledger.kept_from(Holder::Files);
        self.grant.room(unused, kept, streams, &self.policy)
    }

    /// The largest window of one of so many streams, bytes.
    pub(super) fn window(&self, streams: u64) -> u64 {
        self.grant.window(streams, &self.policy)
    }
}

impl<K: Kernel> Service<K> {
    /// Looks at memory, if it is time, and at what has become of what was taken.
    pub(super) fn look_at_memory(&mut self) {
        if self.memory.is_due(self.kernel.now()) {
            self.take_stock();
        }
    }

    /// Some program watches files: nothing is prefetched any more.
    pub(super) fn withdraw_if_watched(&mut self) -> bool {
        let watched = self.header().watched.load(Relaxed) != 0;
        if watched {
            self.memory.withdraw();
        }
        watched
    }

    pub(super) fn take_stock(&mut self) {
        let m = self.kernel.memory();
        if m.estimated {
            self.header().lose(lost::MEMINFO);
        }
        let lists = self.tell_lists();
        self.memory.learn(&m, lists, self.kernel.now());
        self.explain.flush();
        self.allow_walks();
        self.notice_silent_reads();
        self.look_for_evictions();
        self.watch_for_others();
        if self.withdraw_if_watched() {
            self.header().lose(lost::WATCHED);
            return;
        }
        self.offer_room();
        if self.memory.is_short() && self.config.reclaim.enabled {
            self.reclaim(m.limit() / PART);
        }
    }

    /// Tells the processes how much is kept from what they have declared, with what others lacked since the last look; how much they hold of it.
    fn tell_lists(&self) -> u64 {
        self.hold();
        let kept = self.memory.ledger.kept_from(Holder::Lists);
        let procs = self.processes.active().iter().map(|i| self.shared.proc(*i));
        let held = procs.map(|proc| {
            proc.lists.kept.store(kept, Relaxed);
            proc.lists.held.load(Relaxed)
        });
        held.fold(0, u64::saturating_add)
    }

    /// Notes what is held of open files; how many bytes that are.
    fn hold(&self) -> u64 {
        let unused = self.files.unused_pages() * PAGE;
        self.memory.ledger.hold(Holder::Files, unused);
        unused
    }

    /// Bytes that may be asked for now.
    pub(super) fn room(&self) -> u64 {
        let unused = self.hold();
        let all = self.memory.ledger.held();
        self.header().peak_unused.fetch_max(all, Relaxed);
        self.memory.room(unused, self.reading.readers())
    }

    /// Tells the hooks how much of the programs' hints can be carried out.
    pub(super) fn offer_room(&self) {
        let watched = self.header().watched.load(Relaxed) != 0;
        let room = match self.fetches && !self.quiesce.is_quiesced() && !watched {
            true => self.room(),
            false => 0,
        };
        self.offer(room);
    }

    /// Each process may give hints of its part of so many bytes.
    pub(super) fn offer(&self, room: u64) {
        let each = room / self.processes.len().max(1) as u64;
        for i in self.processes.active() {
            self.shared.proc(*i).hint_room.store(each, Relaxed);
        }
    }

    /// SPEC CP10: under pressure, files that nobody has read for 30 s go first and whole; then the ranges of large
    /// files that were not touched for the longest time, but what is yet to be read of a file in use. Only what this program tree read or had
    /// fetched and nobody else uses, and only pages that are clean and unmapped: DONTNEED leaves all others alone.
    fn reclaim(&mut self, target: u64) {
        let idle = self.inactive_after();
        let mut order: Vec<(Moment, InodeKey)> = self
            .files
            .values()
            .filter(|f| f.view.present_pages() > 0)
            .map(|f| (f.last_access(), f.key))
            .collect();
        order.sort();
        let mut freed = 0;
        for (when, key) in order {
            if freed >= target {
                break;
            }
            let Some(view) = self.files.get(&key).map(|f| f.view.clone()) else {
                continue;
            };
            let (inactive, cold_before) = (self.kernel.since(when) >= idle, self.now_us());
            let cold_before = cold_before.saturating_sub(idle.as_micros() as u64);
            let ranges = view.oldest_ranges(if inactive { usize::MAX } else { 4 });
            let ranges: Vec<PageRange> = ranges
                .into_iter()
                .filter(|(touched, range)| {
                    inactive || *touched < cold_before && view.count(*range).unused_pages == 0
                })
                .map(|(_, range)| range)
                .collect();
            if ranges.is_empty() || inactive && self.others_read(key) || self.is_open_elsewhere(key)
            {
                continue;
            }
            for range in ranges {
                if inactive || freed < target {
                    freed += self.give_up(key, &view, range);
                }
            }
        }
    }

    /// A file that no program has open any more, by its name, for as long as it takes to drop pages of it: what a program of this run has read, or had
    /// fetched. Not where it shows that a file is open.
    fn open_briefly(&self, key: InodeKey) -> Option<Handle> {
        let file = self.files.get(&key).filter(|f| !f.hold.is_open())?;
        let shown = self.devices.may_show_opens(key.dev);
        let watched = self.header().watched.load(Relaxed) != 0;
        if shown || watched || self.quiesce.is_quiesced() || self.files.untouchable().contains(&key)
        {
            return None;
        }
        self.kernel.open_briefly(file.name(), key)
    }

    /// Drops what the view has of a range of a file from the cache; how many bytes that were. What of it was not read yet was fetched in vain.
    fn give_up(&mut self, key: InodeKey, view: &FileView, range: PageRange) -> u64 {
        let handle = self.handle(key);
        let briefly = match handle {
            Some(_) => None,
            None => self.open_briefly(key),
        };
        let Some(handle) = handle.as_deref().or(briefly.as_ref()) else {
            return 0;
        };
        let mut missing = Vec::new();
        let examined = view.missing(range, HOLES, &mut missing);
        let ends = missing.iter().map(|gap| (gap.start, gap.end));
        let mut from = range.start;
        let mut freed = 0;
        for (end, next) in ends.chain([(examined, examined)]) {
            let held = PageRange::new(from, end);
            from = next;
            if held.is_empty() || self.kernel.drop_range(handle, held.bytes()).is_err() {
                continue;
            }
            let file = self.files.get(&key);
            let gone = file.map(|f| f.lose(held, Fate::Wasted));
            freed += gone.map_or(0, |gone| gone.present_pages) * PAGE;
        }
        freed
    }
}
