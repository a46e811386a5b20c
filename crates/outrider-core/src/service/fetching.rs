//! From foreseen ranges to requests.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outrider_sys::units::{InodeKey, PAGE};

use super::interarrival::Interarrival;
use super::kernel::Kernel;
use super::{Service, bounds};
use crate::device::{DeviceModel, READAHEAD, Seeks, Sharing};
use crate::engine::{Handle, Request};
use crate::intent::{Intent, Target};
use crate::ledger::Holder;
use crate::plan::Terms;
use crate::shm::Origin;
use crate::source::Limits;
use crate::view::{FileView, PageRange};
use crate::{plan, shm};

/// From so many bytes that the kernel reads ahead on it is worth leaving a whole file to it: eight times its usual readahead.
const FAR: u64 = 1 << 20;

/// Hints that wait for a file to be opened.
const HINTS: usize = 64;

impl<K: Kernel> Service<K> {
    pub(super) fn room(&self) -> u64 {
        let unused = self
            .files
            .values()
            .map(|f| f.view.unused_pages())
            .sum::<u64>()
            * PAGE;
        self.ledger.hold(Holder::Files, unused);
        let all = self.ledger.held();
        self.header().peak_unused.fetch_max(all, Relaxed);
        let kept = self.ledger.kept_from(Holder::Files);
        let streams = self.streams.max(self.busy);
        self.grant.room(unused, kept, streams, &self.policy)
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
        let each = room / self.active.len().max(1) as u64;
        for i in &self.active {
            self.shared.proc(*i).hint_room.store(each, Relaxed);
        }
    }

    /// The kernel is given a hint of `len` bytes by the program, of which it carries out as much as is one of its requests.
    pub(super) fn begins(&mut self, i: usize, key: InodeKey, len: u64) {
        /// Bytes that it asks a disk for at once, at most: 256 pages.
        const PIECE: u64 = 1 << 20;
        let clip = self.devices.get(&key.dev).map_or(0, |p| p.clip);
        let bytes = len.min(clip.max(READAHEAD));
        if let Some(p) = &mut self.procs[i] {
            p.hinted.0 = p.hinted.0.saturating_add(bytes);
            p.hinted.1 = p.hinted.1.saturating_add(bytes.div_ceil(PIECE));
        }
    }

    /// The program's own hint.
    pub(super) fn advise(&mut self, i: usize, key: InodeKey, range: std::ops::Range<u64>) {
        let Some(size) = self.files.get(&key).map(|f| f.size) else {
            return;
        };
        // No more than its part: it may not go by what it was offered.
        let most = range.start.saturating_add(self.room_for_hints(i));
        let range = range.start.min(size)..range.end.min(size).min(most);
        let pages = PageRange::from_bytes(range.start, range.end.saturating_sub(range.start));
        let cached = self.config.view.cache_visibility
            && self
                .files
                .get(&key)
                .is_some_and(|f| f.view.is_cached(pages));
        if range.is_empty() || cached {
            return;
        }
        // What the kernel would have fetched is fetched, whether it stays cached or not.
        let known = self.files.get(&key).map(|f| f.served.caches);
        let served = self.devices.get(&key.dev).is_some_and(|p| p.shows_opens);
        if served && self.handle(key).is_none() {
            self.ask_server(key, true);
            if let Some(file) = self.files.get_mut(&key).filter(|f| f.served.pending)
                && file.served.hinted.len() < HINTS
            {
                file.served.hinted.push(range);
            }
            return;
        }
        if let Some(file) = self.files.get_mut(&key) {
            file.served.caches = Some(true);
        }
        self.fetch(Intent::new(key, &[range], Origin::Hints));
        if let (Some(file), Some(known)) = (self.files.get_mut(&key), known) {
            file.served.caches = known;
        }
    }

    /// Plans and queues what is wanted of a file.
    pub(super) fn fetch(&mut self, intent: Intent) -> plan::Plan {
        let Target::Ranges(key, ranges) = intent.target else {
            // Of what nobody has open walks ask the engine's lane.
            return plan::Plan::default();
        };
        let refused = |at| plan::Plan {
            refused_at: Some(at),
            ..plan::Plan::default()
        };
        let first = ranges.first().map_or(0, |r| r.start);
        if !self.grant.allowed {
            return refused(first);
        }
        if self.left_alone.contains(&key.dev) {
            return plan::Plan::default();
        }
        let Some(handle) = self.handle(key) else {
            let served = self.devices.get(&key.dev).is_some_and(|p| p.shows_opens);
            if served {
                self.ask_server(key, false);
            }
            return match self.quiesce.is_quiesced() || served {
                true => refused(first),
                false => plan::Plan::default(),
            };
        };
        if self.engine.has_many_short(bounds::QUEUED) {
            return refused(first);
        }
        let place = self.devices.get(&key.dev);
        let caches = self.files.get(&key).and_then(|f| f.served.caches);
        if place.is_some_and(|p| !p.caches) && caches != Some(true) {
            return refused(first);
        }
        self.learn(key, &handle, ranges, intent.descriptor);
        let (class, part) = self.urgency(key, intent.class);
        let room = self.room().min(part);
        let now = self.now_us();
        let device = self.engine.device_of(key.dev, &handle, first);
        self.begin_sharing(device);
        let model = self.model(device);
        let Some(file) = self.files.get_mut(&key) else {
            return plan::Plan::default();
        };
        file.device = device;
        let terms = Terms {
            chunk: file.chunk.max(PAGE),
            gap: model.merge_gap(),
            room,
            size: file.size,
        };
        let visible = self.config.view.cache_visibility;
        let plan = plan::plan(ranges, visible.then_some(&*file.view), terms, now);
        let requests = plan
            .requests
            .iter()
            .map(|r| Request {
                handle: handle.clone(),
                view: visible.then(|| file.view.clone()),
                range: r.clone(),
                reader: intent.reader.clone(),
                account: file.account.clone(),
            })
            .collect();
        self.engine.submit(key.dev, class, requests);
        if plan.refused_at.is_some() {
            // More than there was room for, whatever more is.
            self.ledger.lack(Holder::Files, u64::MAX);
        }
        let foreseen = &self.header().foreseen[intent.origin as usize];
        foreseen.fetch_add(plan.bytes, Relaxed);
        plan
    }

    /// Calibrates the view with what the kernel says before asking for `ranges`: what others have cached is present, and what was
    /// prefetched and has gone again was evicted too soon.
    pub(super) fn learn(
        &mut self,
        key: InodeKey,
        handle: &Arc<Handle>,
        ranges: &[std::ops::Range<u64>],
        descriptor: Option<(usize, u16)>,
    ) {
        if !self.config.view.cache_visibility {
            return;
        }
        let now = self.now_us();
        let Some(file) = self.files.get(&key) else {
            return;
        };
        if file.blind {
            return;
        }
        let view = file.view.clone();
        let mut failure = None;
        // Of many small ranges a few tell, and a large one is looked at in parts only where it is cached in part: a
        // scan per call is never made.
        let step = (ranges.len() / 4).max(1);
        let mut all = true;
        let mut looks = 0;
        for r in ranges.iter().step_by(step) {
            match self.kernel.calibrate(
                handle,
                &view,
                PageRange::from_bytes(r.start, r.end - r.start),
                now,
                &mut looks,
            ) {
                Ok(cached) => all &= cached,
                Err(e) => {
                    failure = Some(e);
                    break;
                }
            }
        }
        if let Some(e) = failure {
            self.no_cachestat(key, e);
            return;
        }
        if all && step > 1 {
            for r in ranges {
                view.present(PageRange::from_bytes(r.start, r.end - r.start), now);
            }
        }
        let unused = view.unused_pages();
        if !all
            && unused > 64
            && let Some((i, fd)) = descriptor
        {
            self.check_eviction(key, handle, &view, ranges, i, fd);
        }
    }

    /// Whether what was prefetched just ahead of the reader is still there.
    pub(super) fn check_eviction(
        &mut self,
        key: InodeKey,
        handle: &Arc<Handle>,
        view: &FileView,
        ranges: &[std::ops::Range<u64>],
        i: usize,
        fd: u16,
    ) {
        let Some(desc) = self.desc(i, fd) else {
            return;
        };
        let Some(first) = ranges.first() else { return };
        let Some(s) = desc.detector.streams.all().iter().max_by_key(|s| s.reads) else {
            return;
        };
        if !s.dense() {
            return;
        }
        let held = if s.stride > 0 {
            s.last + s.len..first.start
        } else {
            first.end..s.last
        };
        if held.start >= held.end || held.end - held.start > 256 << 20 {
            return;
        }
        let pages = PageRange::from_bytes(held.start, held.end - held.start);
        if !view.is_cached(pages) || view.in_flight_pages() * 2 > pages.len() {
            return;
        }
        if let Ok(cached) = self.kernel.cached(handle, held)
            && cached * 2 < pages.len()
        {
            self.lost_pages(key, pages);
            let limits = self.limits(key);
            if let Some(desc) = self.desc_mut(i, fd) {
                desc.detector.streams.shrink(&limits);
            }
        }
    }

    /// Whether more than a quarter of what a line that begins now was to find cached, `len` bytes at the begin of each of
    /// `places`, was evicted.
    pub(super) fn line_is_lost(
        &mut self,
        key: InodeKey,
        places: &[std::ops::Range<u64>],
        len: u64,
    ) -> bool {
        let Some(handle) = self.handle(key) else {
            return false;
        };
        let Some(file) = self.files.get(&key) else {
            return false;
        };
        let view = file.view.clone();
        // What is still queued is not cached either.
        if file.blind || view.in_flight_pages() > 0 {
            return false;
        }
        let mut gone = 0;
        for r in places {
            let pages = PageRange::from_bytes(r.start, len.min(r.end - r.start));
            if view.is_cached(pages)
                && let Ok(cached) = self
                    .kernel
                    .cached(&handle, pages.start * PAGE..pages.end * PAGE)
                && cached < pages.len()
            {
                self.lost_pages(key, pages);
                gone += 1;
            }
        }
        gone * 4 > places.len()
    }

    /// Cuts what is to be fetched ahead of a reader who has read a file from its beginning up to `end` to what others of its kind would read of it; where it was cut.
    pub(super) fn cut(
        &self,
        key: InodeKey,
        end: u64,
        ranges: &mut Vec<std::ops::Range<u64>>,
    ) -> Option<u64> {
        let file = self.files.get(&key).filter(|f| f.reach >= end)?;
        let ahead = ranges.iter().map(|r| r.end).max()?;
        let at = self.reaches.ahead(file.place?, file.reach, ahead);
        if at >= ahead {
            return None;
        }
        ranges.retain_mut(|r| {
            r.end = r.end.min(at);
            r.start < r.end
        });
        Some(at)
    }

    pub(super) fn limits(&mut self, key: InodeKey) -> Limits {
        /// Bytes that are asked for ahead where a stream may soon be left to the kernel.
        const NEAR: u64 = 8 << 20;
        let model = self.model(self.device(key));
        let may_be_left = model.seeks() != Seeks::Yes && self.sharing(key) != Sharing::Exclusive;
        let config = &self.config;
        let chunk = self.files.get(&key).map_or(0, |f| f.chunk).max(PAGE);
        let largest = match self.mode {
            // Table 2: prediction alone keeps the kernel's limit.
            shm::MODE_PREDICT => 128 << 10,
            _ if self.grant.aggressive => config.window.max.0,
            _ => config.window.optimistic_open.0.max(config.window.initial.0),
        };
        let share = self.grant.window(self.busy, &self.policy);
        Limits {
            counter_bits: u32::from(config.predict.counter_bits),
            random_distance: config.predict.random_distance.0,
            max_streams: config.predict.max_streams as usize,
            initial: config.window.initial.0,
            max: largest.min(share).max(PAGE),
            near: if may_be_left { NEAR } else { u64::MAX },
            quantum: model.quantum(),
            chunk,
            skip_when_steady: config.predict.skip_when_steady,
            sparse: 0,
            delay: match model.has_latency() && self.mode != shm::MODE_PREDICT {
                true => model.bandwidth_delay(),
                false => 0,
            },
            now: self.now_us(),
            sources: self.sources,
        }
    }

    /// Up to which mean step reads that go onward by steps that differ are answered by reading on, bytes: what arrives in a share of the time
    /// that the program takes from one read that waits to the next. A latency that was measured beside other requests would promise too much.
    pub(super) fn sparse(&mut self, key: InodeKey, interarrival: &Interarrival) -> u64 {
        let Some(each) = interarrival.each() else {
            return 0;
        };
        if self.mode == shm::MODE_PREDICT || !self.grant.aggressive {
            return 0;
        }
        let model = self.model(self.device(key));
        let waits = (each.as_secs_f64() * 1e6).min(model.latency_us);
        (waits * model.bandwidth * self.config.predict.sparse) as u64
    }

    /// Whether so many files are in use that one request of the kernel's readahead for each, or one read where reads are longer, keeps
    /// the device several times busy. Where heads move that is not so, however many there are: there every request should be long.
    ///
    /// Once that was tried the outcome counts.
    pub(super) fn crowded(&mut self, key: InodeKey) -> bool {
        const TIMES: u64 = 4;
        if let Some(quiet) = self.prefetch_trial.quiet() {
            return quiet;
        }
        let model = self.model(self.device(key));
        let place = self.devices.get(&key.dev);
        let window = place
            .and_then(|p| p.chunk)
            .map_or(0, |chunk| chunk.max(self.read_bytes));
        // A long read keeps the device busy only as long as it lasts: there must be others meanwhile.
        model.is_measured()
            && model.seeks() == Seeks::No
            && self.busy >= TIMES
            && self.busy * window >= TIMES * model.bandwidth_delay()
    }

    /// Whether the kernel's own readahead begins with more than any request of ours and keeps the device busy: what is read whole from its beginning is
    /// left to it. It brings that in large folios, where what is asked for comes in single pages, at up to twice the processor's time.
    pub(super) fn kernel_reads_far(&mut self, key: InodeKey) -> bool {
        let ahead = self.devices.get(&key.dev).map_or(0, |p| p.read_ahead);
        ahead >= FAR && ahead >= 2 * self.model(self.device(key)).bandwidth_delay()
    }

    /// The device from which a file was fetched last.
    pub(super) fn device(&self, key: InodeKey) -> u64 {
        self.files.get(&key).map_or(key.dev, |f| f.device)
    }

    /// The model of a device, at most 2 ms old: asking the engine takes its lock.
    pub(super) fn model(&mut self, dev: u64) -> DeviceModel {
        if let Some((at, model)) = self.models.get(&dev)
            && self.kernel.since(*at) < Duration::from_millis(2)
        {
            return *model;
        }
        let model = self.engine.model(dev);
        self.models.insert(dev, (self.kernel.now(), model));
        model
    }
}
