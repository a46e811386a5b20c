//! From foreseen ranges to requests.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{ByteRange, InodeKey, PAGE};

use super::interarrival::Interarrival;
use super::kernel::Kernel;
use super::left_to_kernel::DeviceFacts;
use super::processes::ProcState;
use super::still_cached::{Counted, Places, WORTH_A_LOOK};
use super::{Service, bounds};
use crate::asked::Of;
use crate::device::{DeviceModel, READAHEAD, Sharing};
use crate::engine::{Class, Handle, Request};
use crate::explain::{Asking, Reason, Subject};
use crate::intent::{Intent, Target};
use crate::ledger::Holder;
use crate::plan::Terms;
use crate::source::Limits;
use crate::view::{FileView, PageRange};
use crate::{plan, shm};

impl<K: Kernel> Service<K> {
    /// Plans and queues what is wanted of a file.
    pub(super) fn fetch(&mut self, intent: Intent) -> plan::Plan {
        let Target::Ranges(key, ranges) = intent.target else {
            // Of what nobody has open walks ask the engine's lane.
            return plan::Plan::default();
        };
        let first = ranges.first().map_or(0, |r| r.start);
        let handle = match self.may_fetch(key, first) {
            Ok(handle) => handle,
            Err(refused) => return refused,
        };
        self.learn(key, &handle, ranges, intent.descriptor);
        let (class, part) = self.urgency(key, intent.class);
        let room = self.room().min(part);
        let now = self.now_us();
        let device = self.engine.device_of(key.device(), &handle, first);
        self.begin_sharing(device);
        let model = self.model(device);
        // What is on its way beside somebody comes in pieces of which there is room for one.
        let most = match self.sharing(key) {
            Sharing::Shared => self.engine.beside_others(device),
            _ => u64::MAX,
        };
        let Some(file) = self.files.get_mut(&key) else {
            return plan::Plan::default();
        };
        file.set_device(device);
        file.costs((model.latency_us, model.byte_us()));
        let terms = Terms {
            chunk: match class {
                Class::Bulk => file.chunk().min(model.piece()).max(PAGE),
                _ => file.chunk().min(most).max(PAGE),
            },
            gap: model.merge_gap(),
            room,
            size: file.size(),
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
        if visible {
            self.enter(key, &intent, &plan.requests, &model);
        }
        self.engine.submit(key.device(), class, requests);
        if plan.bytes > 0 {
            self.turns.asks(self.kernel.now());
        }
        if plan.refused_at.is_some() {
            self.leaves(key, Reason::NoMemory);
            // More than there was room for, whatever more is.
            self.memory.ledger().lack(Holder::Files, u64::MAX);
        }
        let foreseen = &self.header().foreseen[intent.origin as usize];
        foreseen.fetch_add(plan.bytes, Relaxed);
        plan
    }

    /// The file, if anything of it from `first` on may be fetched; otherwise what is told to who wants it.
    fn may_fetch(&mut self, key: InodeKey, first: u64) -> Result<Arc<Handle>, plan::Plan> {
        let refused = plan::Plan {
            refused_at: Some(first),
            ..plan::Plan::default()
        };
        if !self.memory.is_allowed() {
            self.leaves(key, Reason::NoMemory);
            return Err(refused);
        }
        if self.devices.leaves_alone(key.dev) {
            self.leaves(key, Reason::FileSystem);
            return Err(plan::Plan::default());
        }
        let Some(handle) = self.handle(key) else {
            let served = self.devices.shows_opens(key.dev);
            if served {
                self.ask_server(key, false);
            }
            return match self.quiesce.is_quiesced() || served {
                true => Err(refused),
                false => Err(plan::Plan::default()),
            };
        };
        if self.engine.has_many_short(bounds::QUEUED) {
            return Err(refused);
        }
        let found = self.devices.file_system(key.dev);
        let file = self.files.get(&key);
        let caches = file.is_some_and(|f| f.served.surely_caches());
        if found.is_some_and(|p| !p.caches) && !caches {
            self.leaves(key, Reason::FileSystem);
            return Err(refused);
        }
        Ok(handle)
    }

    /// Enters in a file's account what is about to be asked for, and explains it.
    fn enter(&self, key: InodeKey, intent: &Intent, requests: &[ByteRange], model: &DeviceModel) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let pid_of = |i| self.processes.get(i).map_or(0, ProcState::pid);
        let outcome = match requests.is_empty() || !self.explain.is_wanted() {
            true => None,
            false => {
                let asking = Asking {
                    of: Subject {
                        pid: file.hold.owner().map_or(0, pid_of),
                        key,
                    },
                    origin: intent.origin,
                    name: file.name(),
                    ranges: requests,
                };
                self.explain.asked(&asking, model, self.shared.header())
            }
        };
        let of = Of {
            origin: intent.origin,
            outcome,
        };
        let mut asked = file.account.asked();
        for r in requests {
            let pages = PageRange::from_bytes(r.start, r.end - r.start);
            asked.ask(pages, of.clone(), intent.reader.clone(), &file.view);
        }
    }

    /// Bytes that the kernel reads ahead of whoever reads a file, at most.
    pub(super) fn kernel_reads_ahead(&self, key: InodeKey) -> u64 {
        let found = self.devices.file_system(key.dev);
        found.map_or(0, |p| p.read_ahead).max(2 * READAHEAD)
    }

    /// Something is not fetched of a file.
    pub(super) fn leaves(&self, key: InodeKey, reason: Reason) {
        if !self.explain.is_wanted() {
            return;
        }
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let owner = file.hold.owner().and_then(|i| self.processes.get(i));
        let pid = owner.map_or(0, ProcState::pid);
        self.explain.left(Subject { pid, key }, file.name(), reason);
    }

    /// Calibrates the view with what the kernel says before asking for `ranges`: what others have cached is present, and what was
    /// prefetched and has gone again was evicted too soon.
    pub(super) fn learn(
        &mut self,
        key: InodeKey,
        handle: &Arc<Handle>,
        ranges: &[ByteRange],
        descriptor: Option<(usize, u16)>,
    ) {
        if !self.config.view.cache_visibility {
            return;
        }
        let now = self.now_us();
        let Some(file) = self.files.get(&key) else {
            return;
        };
        if file.is_blind() {
            return;
        }
        let view = file.view.clone();
        let read_ahead = self.kernel_reads_ahead(key);
        for r in ranges {
            file.looked(PageRange::from_bytes(r.start, r.end - r.start), read_ahead);
        }
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
            && unused > WORTH_A_LOOK
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
        ranges: &[ByteRange],
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
        let counted = self.count_cached(handle, held);
        if counted.is_ok_and(Counted::is_mostly_gone) {
            self.lost_pages(key, pages);
            let limits = self.limits(key);
            if let Some(desc) = self.desc_mut(i, fd) {
                desc.detector.streams.shrink(&limits);
            }
        }
    }

    /// Whether what a line that begins now was to find cached, `len` bytes at the begin of each of `places`, was evicted.
    pub(super) fn line_is_lost(&mut self, key: InodeKey, places: &[ByteRange], len: u64) -> bool {
        let Some(handle) = self.handle(key) else {
            return false;
        };
        let Some(file) = self.files.get(&key) else {
            return false;
        };
        let view = file.view.clone();
        // What is still queued is not cached either.
        if file.is_blind() || view.in_flight_pages() > 0 {
            return false;
        }
        let mut gone = 0;
        for r in places {
            let pages = PageRange::from_bytes(r.start, len.min(r.end - r.start));
            if view.is_cached(pages)
                && let Ok(counted) = self.count_cached(&handle, pages.bytes())
                && !counted.is_whole()
            {
                self.lost_pages(key, pages);
                gone += 1;
            }
        }
        let all = places.len();
        Places { all, gone }.are_a_lost_line()
    }

    /// Up to which byte others of its kind would read a file on that was read from its beginning up to `end`, as far as these ranges lie ahead.
    pub(super) fn reach(&self, key: InodeKey, end: u64, ranges: &[ByteRange]) -> Option<u64> {
        let ahead = ranges.iter().map(|r| r.end).max()?;
        self.files.reach(key, end, ahead)
    }

    pub(super) fn limits(&mut self, key: InodeKey) -> Limits {
        let facts = self.device_facts(key);
        self.limits_on(&facts, key)
    }

    /// The same, where what is known of the file's device was asked for already.
    pub(super) fn limits_on(&self, facts: &DeviceFacts, key: InodeKey) -> Limits {
        /// Bytes that are asked for ahead where a stream may soon be left to the kernel.
        const NEAR: u64 = 8 << 20;
        let model = &facts.model;
        let config = &self.config;
        let chunk = self.files.get(&key).map_or(0, |f| f.chunk()).max(PAGE);
        let largest = match self.mode {
            // Table 2: prediction alone keeps the kernel's limit.
            shm::MODE_PREDICT => 128 << 10,
            _ if self.memory.is_aggressive() => config.window.max.0,
            _ => config.window.optimistic_open.0.max(config.window.initial.0),
        };
        let share = self.memory.window(self.reading.files());
        Limits {
            counter_bits: u32::from(config.predict.counter_bits),
            random_distance: config.predict.random_distance.0,
            max_streams: config.predict.max_streams as usize,
            initial: config.window.initial.0,
            max: largest.min(share).max(PAGE),
            near: match facts.may_leave_streams() {
                true => NEAR,
                false => u64::MAX,
            },
            quantum: model.quantum(),
            chunk,
            skip_when_steady: config.predict.skip_when_steady,
            sparse: 0,
            delay: match model.has_latency() && self.mode != shm::MODE_PREDICT {
                true => model.bandwidth_delay(),
                false => 0,
            },
            funds: self.funds(key, model, chunk),
            now: self.now_us(),
            sources: self.sources,
        }
    }

    /// Up to which mean step reads that go onward by steps that differ are answered by reading on, bytes: what arrives in a share of the time
    /// that the program takes from one read that waits to the next. A latency that was measured beside other requests would promise too much.
    pub(super) fn sparse(&self, model: &DeviceModel, interarrival: &Interarrival) -> u64 {
        let Some(each) = interarrival.each() else {
            return 0;
        };
        if self.mode == shm::MODE_PREDICT || !self.memory.is_aggressive() {
            return 0;
        }
        let waits = (each.as_secs_f64() * 1e6).min(model.latency_us);
        (waits / model.byte_us() * self.config.predict.sparse) as u64
    }
}
