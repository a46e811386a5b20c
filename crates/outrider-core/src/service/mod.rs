//! The service: a process beside the program that hears of its reads and runs ahead of them.
//!
//! One thread takes events from the rings, keeps a detector per descriptor and a view per file, plans, and hands requests to
//! the engine's workers. Programs don't wake it, as that would take a system call of theirs that they may have forbidden themselves: while
//! something is going on it looks by itself, the sooner the less time has passed since the last thing that it heard.
//!
//! Nothing here is seen by the program: its descriptors, threads, memory, locks and children are its own. What the
//! service holds of a program's file (see `fetch`) it holds for a few milliseconds after the last request.

mod bounds;
mod cache_users;
mod descriptors;
mod device_sharing;
mod ends;
mod evictions;
mod fetching;
mod files;
mod heirs;
mod interarrival;
mod kernel;
mod kernel_copy;
mod linux;
mod prefetch_trial;
mod processes;
mod quiesce;
mod reach;
mod reads;
pub mod record;
mod resident;
mod sampling;
#[cfg(test)]
mod scribbled;
mod servers;
mod told;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use outrider_sys::cache;
pub use outrider_sys::units::InodeKey;
use outrider_sys::units::PAGE;

use crate::budget::{Grant, Policy, Supply};
use crate::clock::{Moment, Monotonic};
use crate::config::Config;
use crate::device::DeviceModel;
use crate::engine::{self, Engine};
use crate::ledger::Ledger;
use crate::map::Map;
use crate::shared::Shared;
use crate::sharing::DeviceSharing;
use crate::shm::{self, Figure, Header, MAX_PROCS, lost};
use crate::source::{New, SOURCES};
use crate::walk::Walker;

use cache_users::CacheUsers;
use descriptors::{Desc, Position, Settled};
use files::FileState;
use heirs::Heirs;
pub use kernel::{Answer, Kernel, OpenFile, Source};
pub use linux::Linux;
use prefetch_trial::PrefetchTrial;
use processes::ProcState;
use quiesce::Quiesce;

/// A file is let go so long after the last request for it: long enough to serve a running stream, short enough that an
/// unlinked file's space and a file system to be unmounted are not held.
const HOLD: Duration = Duration::from_millis(30);
/// The same while a program has it open: it is noticed when it closes it ([`ends`]).
const HOLD_OPEN: Duration = Duration::from_secs(1);
/// After something was told the service looks by itself every 2 ms for so long.
const RECENT: Duration = Duration::from_millis(50);
/// The shortest sleep, after something was heard: half of what a quick disk takes for a read …
const SHORTEST: Duration = Duration::from_micros(50);
/// … the longest while a process is there that may begin to read any time …
const LONGEST: Duration = Duration::from_millis(50);
/// … and while none is.
const IDLE: Duration = Duration::from_millis(250);
/// Views of one file may take so many bytes: the bitmaps of 64 GiB.
const VIEW_BYTES: usize = 8 << 20;
/// Reads waiting in a ring from which on old ones are passed over.
const BEHIND: u32 = 256;
/// Bytes that a request may have where the kernel module takes it whole, if the user has not set another size: a quarter of the calls.
const MODULE_CHUNK: u64 = 512 << 10;
/// Files remembered after the program closed them.
const FILES_KEPT: usize = 4096;

/// What is known of a device before anything is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Bytes that one readahead call takes; `None`: its files lie in memory.
    pub chunk: Option<u64>,
    /// The longest request that the kernel makes for a long read, bytes; 0: not known.
    pub clip: u64,
    /// What the kernel reads ahead of a stream, bytes; 0: not known.
    pub read_ahead: u64,
    /// A server keeps its files: see [`fetch::server`].
    pub shows_opens: bool,
    /// What is read stays cached, as far as is known from its kind.
    pub caches: bool,
}

/// What comes after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Another one, at once.
    Busy,
    /// Another one after so long, or when something has happened.
    Pause(Duration),
    /// Nothing: all are gone.
    Over,
}

/// The service.
pub struct Service<K> {
    kernel: K,
    shared: Arc<Shared>,
    config: Config,
    mode: u32,
    engine: Engine,
    policy: Policy,
    grant: Grant,
    /// Who has how much of it.
    ledger: Arc<Ledger>,
    /// What the page cache could take at the last looks, bytes.
    headrooms: [u64; 8],
    files: Map<InodeKey, FileState>,
    procs: Vec<Option<ProcState>>,
    /// Processes that there were, and are.
    followed: usize,
    devices: Map<u64, Place>,
    /// Models that were measured at another time, by file system ([`file_system_id`](outrider_sys::device::file_system_id)).
    saved: HashMap<u64, DeviceModel>,
    /// Files that must never be opened: somebody has or wants a lease on them.
    untouchable: HashSet<InodeKey>,
    start: Moment,
    /// The statistics are final.
    finished: bool,
    /// The last event that said more than that all is calm.
    last_event: Moment,
    stirred: bool,
    last_budget: Moment,
    last_census: Moment,
    last_map_look: Moment,
    map_pause: Duration,
    /// See [`Proc::untold`].
    untold: u32,
    /// When something was heard last.
    heard: Moment,
    /// Processes wait to be taken in for whom there is no descriptor.
    deaf: bool,
    /// By which the service is known that hands processes on to this one, whose rights are not the runner's.
    ancestor: Option<u64>,
    /// Services for processes with other rights.
    heirs: Heirs,
    /// Indices of the entries in use.
    active: Vec<usize>,
    /// Files that were fetched from within the last moments: streams that share the budget.
    busy: u64,
    /// Streams in these files, each of which has its guaranteed minimum.
    streams: u64,
    /// Bytes of a read in order, on average of the last few.
    read_bytes: u64,
    models: HashMap<u64, (Moment, DeviceModel)>,
    /// What looks at reads of no stream.
    sources: &'static [New],
    /// Who else was seen to read from the disks.
    device_sharing: DeviceSharing,
    /// Programs were told of devices on which others read.
    bounds_graphs: bool,
    /// Whether many files that are read at once are better left alone.
    prefetch_trial: PrefetchTrial,
    last_let_go: Moment,
    quiesce: Quiesce,
    /// File systems on which what is read was seen to stay cached.
    caching: HashSet<u64>,
    /// File systems of which nothing is prefetched any more.
    left_alone: HashSet<u64>,
    /// Who uses the files that are to make room.
    cache_users: CacheUsers,
    /// Counts the looks for evictions.
    looked: u64,
    /// Calls that are moving bytes within the kernel.
    kernel_copies: Vec<kernel_copy::KernelCopy>,
    /// Whether anything is fetched: not by the engine `noop`.
    fetches: bool,
    /// Whether programs that go through trees are run ahead of …
    walks: bool,
    /// … and who does it, once there is one.
    walker: Option<Walker>,
    /// How far files are read from their beginning.
    reaches: reach::Reaches,
    /// Files with an entry of their own in the statistics.
    named: usize,
    /// With so many files it is looked which of them can be forgotten.
    files_looked_at: usize,
    /// When it was looked how much memory all take.
    bytes_looked_at: Moment,
}

impl Service<Linux> {
    /// A service over `shared`, which describes the programs, in mode `shm::MODE_*`. `saved` are models that were measured at another time, by
    /// file system ([`file_system_id`](outrider_sys::device::file_system_id)).
    pub fn new(
        shared: Arc<Shared>,
        config: Config,
        mode: u32,
        kind: engine::Kind,
        saved: HashMap<u64, DeviceModel>,
    ) -> Service<Linux> {
        if !cache::has_cachestat() {
            shared.header().lose(lost::CACHESTAT);
        }
        let clock = Monotonic::begin();
        let settings = engine::Settings::of(&config, kind);
        let engine = Engine::new(settings, shared.clone(), clock);
        let kernel = Linux::new(&shared, clock);
        let mut service = Service::over(kernel, engine, shared, config, mode, saved);
        let fetches = kind != engine::Kind::Noop;
        service.fetches = fetches;
        service.walks = service.config.files.walk && fetches && mode == shm::MODE_PREDICT_OPT;
        service
    }
}

impl<K: Kernel> Service<K> {
    /// A service that asks `kernel` and has `engine` fetch; see [`Service::new`]. It walks through no directories.
    pub fn over(
        kernel: K,
        engine: Engine,
        shared: Arc<Shared>,
        config: Config,
        mode: u32,
        saved: HashMap<u64, DeviceModel>,
    ) -> Service<K> {
        let policy = Policy {
            fixed: config.budget.memory.map(|s| s.0),
            share: config.budget.share,
            high: config.budget.high_watermark,
            low: config.budget.low_watermark,
            stream_minimum: config.budget.stream_minimum.0,
            psi_max: config.budget.psi_some_avg10_max,
        };
        let (now, keyed) = (kernel.now(), kernel.keyed());
        let mut service = Service {
            kernel,
            caching: HashSet::new(),
            left_alone: HashSet::new(),
            engine,
            shared,
            config,
            mode,
            policy,
            grant: Grant {
                total: 0,
                aggressive: false,
                allowed: false,
            },
            ledger: Arc::default(),
            headrooms: [u64::MAX; 8],
            files: Map::with_hasher(keyed),
            procs: (0..MAX_PROCS).map(|_| None).collect(),
            followed: 0,
            devices: Map::with_hasher(keyed),
            saved,
            untouchable: HashSet::new(),
            start: now,
            finished: false,
            last_event: now,
            stirred: false,
            last_budget: now,
            last_census: now,
            last_map_look: now,
            map_pause: Duration::from_millis(1),
            untold: 0,
            heard: now,
            deaf: false,
            ancestor: None,
            heirs: Heirs::default(),
            active: Vec::new(),
            busy: 1,
            streams: 1,
            read_bytes: 0,
            models: HashMap::new(),
            sources: SOURCES,
            device_sharing: DeviceSharing::new(now),
            bounds_graphs: false,
            prefetch_trial: PrefetchTrial::new(now),
            last_let_go: now,
            quiesce: Quiesce::new(now),
            cache_users: CacheUsers::default(),
            looked: 0,
            kernel_copies: Vec::new(),
            fetches: true,
            walks: false,
            walker: None,
            reaches: reach::Reaches::default(),
            named: 0,
            files_looked_at: FILES_KEPT,
            bytes_looked_at: now,
        };
        service.take_stock();
        service
    }

    /// Has these sources look at reads of no stream, in this order, in place of [`SOURCES`].
    pub fn with_sources(mut self, sources: &'static [New]) -> Service<K> {
        self.sources = sources;
        self
    }

    fn header(&self) -> &Header {
        self.shared.header()
    }

    fn now_us(&self) -> u64 {
        self.kernel.since(self.start).as_micros() as u64
    }

    /// A service that processes are handed on to by one that shows this token; it may know them by other numbers.
    pub fn inherit(mut self, token: u64) -> Service<K> {
        self.ancestor = Some(token);
        self
    }

    /// Runs until the program and all that it left behind are over, or its parent is.
    pub fn run(&mut self) {
        loop {
            match self.turn() {
                Turn::Over => return,
                Turn::Busy => {}
                Turn::Pause(pause) => {
                    self.kernel.sleep(&self.shared, pause);
                    self.header().wakeups.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// Does what is to be done now.
    pub fn turn(&mut self) -> Turn {
        self.kernel.begin_round(&self.shared);
        let worked = self.round();
        if !self.finished && self.kernel.finishes(&self.shared) {
            self.finish();
            self.finished = true;
        }
        if (self.finished || self.kernel.is_orphaned()) && self.active.is_empty() {
            // Whoever attaches from here on is not heard.
            self.header().closed.store(1, Release);
            self.kernel.end_round(&self.shared);
            return Turn::Over;
        }
        if worked {
            self.heard = self.kernel.now();
        }
        let pause = self.pause();
        self.kernel.end_round(&self.shared);
        // What came while that was done.
        let changed = self.active.iter().any(|i| self.shared.proc(*i).is_ready())
            || self.has_to_leave()
            || !self.finished && self.kernel.finishes(&self.shared);
        match worked || changed {
            true => Turn::Busy,
            false => Turn::Pause(pause),
        }
    }

    /// How long to sleep: a quarter of the time in which nothing was heard, so that what a program does next is heard little later than it would be by a
    /// call of its own, and up to a longest time.
    fn pause(&self) -> Duration {
        let longest =
            if self.is_to_settle() || self.quiesce.is_leaving() || self.is_asked_to_step_aside() {
                Duration::from_millis(1)
            } else if self.kernel.since(self.last_event) < RECENT
                || !self.kernel_copies.is_empty()
                || self.heirs.are_awaited()
                || self.kernel.is_awaited()
            {
                Duration::from_millis(2)
            } else if self.active.is_empty() {
                IDLE
            } else {
                // A program that was silent for long loses little by being heard late: a hundredth of that time.
                (self.kernel.since(self.last_event) / 100).clamp(Duration::from_millis(2), LONGEST)
            };
        let mut pause = (self.kernel.since(self.heard) / 4).clamp(SHORTEST, longest.max(SHORTEST));
        if self.active.iter().any(|i| {
            self.procs[*i]
                .as_ref()
                .is_some_and(|p| !p.mapped.is_empty())
        }) {
            pause = pause.min(self.map_pause);
        }
        pause
    }

    /// One look at everything; `true` if there was something to do.
    fn round(&mut self) -> bool {
        self.come_back();
        self.admit();
        self.look_for_watchers();
        self.look_after_heirs();
        let worked = self.drain_all();
        if std::mem::take(&mut self.stirred) {
            self.last_event = self.kernel.now();
        }
        if self.header().watched.load(Relaxed) != 0 && self.grant.allowed {
            self.grant = Grant {
                total: 0,
                aggressive: false,
                allowed: false,
            };
        }
        self.let_go_for_departing();
        self.let_go_for_starting();
        self.go_away();
        if self.kernel.since(self.last_budget) >= Duration::from_millis(200) {
            self.take_stock();
        }
        self.take_opened();
        if self.kernel.has_ended()
            || self.kernel.since(self.last_census) >= Duration::from_millis(100)
        {
            self.census();
        }
        if self.kernel.since(self.last_map_look) >= self.map_pause {
            self.look_at_maps();
        }
        self.look_at_sharing();
        self.go_on_moving();
        self.let_go();
        worked
    }

    fn take_stock(&mut self) {
        let m = self.kernel.memory();
        if m.estimated {
            self.header().lose(lost::MEMINFO);
        }
        // Dirty pages come and go in bursts, and while they are there what is clean has less room: the least of the last
        // seconds counts.
        self.headrooms.rotate_right(1);
        self.headrooms[0] = m.headroom();
        let headroom = self.headrooms.iter().fold(u64::MAX, |a, b| a.min(*b));
        let limit = m.limit();
        // With half of our memory to spare, whoever waits for memory does so in a control group of its own, and would
        // wait no less if we stopped.
        let psi = m.psi_some_avg10.filter(|_| headroom < limit / 2);
        self.grant = self.policy.grant(Supply {
            headroom,
            limit,
            psi: psi.unwrap_or(0.0),
        });
        self.last_budget = self.kernel.now();
        self.ledger.grant(self.grant.total);
        self.allow_walks();
        self.notice_silent_reads();
        self.look_for_evictions();
        self.watch_for_others();
        if self.header().watched.load(Relaxed) != 0 {
            self.grant = Grant {
                total: 0,
                aggressive: false,
                allowed: false,
            };
            self.header().lose(lost::WATCHED);
            return;
        }
        self.offer_room();
        if !self.grant.aggressive && self.config.reclaim.enabled {
            self.reclaim(m.limit() / 50);
        }
    }

    /// The program is over: makes the statistics final.
    fn finish(&mut self) {
        self.admit();
        self.census();
        // What was asked for last counts too.
        self.room();
        // Nothing of the program's is held from here on, so that it can be unmounted or removed at once.
        if let Some(walker) = &self.walker {
            walker.allow(false);
        }
        self.leave_for_good();
        for i in self.active.clone() {
            if let Some(state) = &self.procs[i] {
                self.settle(i, state.who);
            }
        }
        for file in self.files.values() {
            // Read before the request was issued: foreseen, but not fetched by us.
            if let Some(tally) = file.account.tally()
                && let Some(its) = tally.of_file()
            {
                let [prefetched, used] =
                    [Figure::Prefetched, Figure::Used].map(|f| its[f as usize]);
                tally.take_off(Figure::Used, used.saturating_sub(prefetched));
            }
            file.count(Figure::Wasted, file.view.unused_pages() * PAGE);
        }
        let models = self.engine.models();
        for (to, (dev, model)) in self
            .header()
            .devices
            .iter()
            .zip(models.iter().filter(|(_, m)| m.has_latency()))
        {
            to[0].store(*dev, Relaxed);
            to[1].store(model.latency_us as u64, Relaxed);
            to[2].store(model.measured_bandwidth().unwrap_or(0.0) as u64, Relaxed);
        }
        self.kernel.finished(&self.shared);
    }
}
