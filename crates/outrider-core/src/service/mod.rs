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
mod device_sharing;
pub(crate) mod ends;
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

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use outrider_sys::cache;
pub use outrider_sys::units::InodeKey;
use outrider_sys::units::PAGE;

use crate::budget::{Grant, Policy, Supply};
use crate::clock::{Moment, Monotonic};
use crate::config::Config;
use crate::device::DeviceModel;
use crate::engine::{self, Account, Engine, Handle, Overtaken};
use crate::map::Map;
use crate::shared::Shared;
use crate::sharing::DeviceSharing;
use crate::shm::{self, Figure, Header, MAX_PROCS, Proc, Slot, lost};
use crate::source::dense::{Random, Verdict};
use crate::source::mapped::Mapped;
use crate::source::predict::{Detector, Stream, between};
use crate::view::FileView;
use crate::walk::runner::Walker;

use cache_users::{CacheUsers, Seen};
use heirs::Heirs;
use interarrival::Interarrival;
pub use kernel::{Answer, Kernel, OpenFile, Source};
pub use linux::Linux;
use prefetch_trial::PrefetchTrial;
use quiesce::Quiesce;
use resident::Warmth;
use sampling::Sampling;

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
/// Changes of how rarely a descriptor is listened to that are remembered while events from before are on their way.
const CHANGES: usize = 64;
/// Files remembered after the program closed them.
const FILES_KEPT: usize = 4096;

struct FileState {
    key: InodeKey,
    view: Arc<FileView>,
    account: Arc<Account>,
    size: u64,
    /// The device from which it was fetched last: of a file system on several disks the disk.
    device: u64,
    handle: Option<Arc<Handle>>,
    /// The entry of the process because of which it is open.
    holder: Option<usize>,
    handle_used: Moment,
    /// The descriptor through which it can be opened: process entry, and generation of the descriptor's state.
    source: Option<Source>,
    /// Its name when it was first opened, to find it by when all descriptors are closed and a mapping is left.
    name: PathBuf,
    random: Random,
    /// Random reads at which streaming is considered next.
    consider_at: u64,
    /// What was said last.
    verdict: Verdict,
    /// Streamed in whole: random reads are all foreseen.
    streamed: bool,
    openers: u32,
    /// The same, for whoever watches it being closed.
    openers_now: Arc<AtomicU32>,
    /// What became of it with its server, and with the cache.
    served: Served,
    last_access: Moment,
    /// Whether others read it.
    seen: Seen,
    chunk: u64,
    /// cachestat is refused for this file.
    blind: bool,
    /// Samples that found the file cached, less those that did not.
    resident: u32,
    samples: u32,
    /// When to look whether it can be left to the hooks.
    warmth: Warmth,
    /// Up to which byte it was read without a gap from its beginning, since somebody has it open.
    reach: u64,
    /// Where that is remembered.
    place: Option<reach::Place>,
}

/// What is known of a file while programs have it open, where opening it is no small matter.
#[derive(Default)]
struct Served {
    /// It was opened, or couldn't be: it is not opened again before all programs have closed it.
    spent: bool,
    /// It is being opened.
    pending: bool,
    /// Whether what is read of it stays cached.
    caches: Option<bool>,
    /// A read that was told when the file was open here already: descriptor, thread, bytes.
    read: Option<(u16, u64, std::ops::Range<u64>)>,
    /// Bytes that programs have read since they opened it.
    bytes: u64,
    /// What programs have asked for while it was being opened.
    hinted: Vec<std::ops::Range<u64>>,
}

/// How rarely reads were told until something else was agreed on.
#[derive(Clone, Copy)]
struct Agreement {
    /// Reads that are not told after each that is.
    rarely: u16,
    /// The place in the queue from which on it no longer holds.
    until: u32,
    /// Of those after the last one that was told so many were told all the same, or have been counted already.
    unused: u16,
}

/// Of a descriptor whose file is left to the hook, what is counted of the reads that were not told until then.
#[derive(Clone, Copy)]
enum Settled {
    /// All of them. A single stream has come to byte `end` in steps of so many bytes, and so many reads may follow before one is told that
    /// doesn't know yet.
    Stream { end: u64, step: u64, left: u16 },
    /// All of them.
    All,
}

struct Desc {
    generation: u32,
    key: InodeKey,
    detector: Detector,
    /// Where the last read ended, told or not, when it was last looked.
    last: u64,
    skip_given: u32,
    /// Reads in no order that came too fast to be looked at, since the last that was.
    overlooked: u64,
    /// What was asked for last was cached already.
    cached: bool,
    /// Reads in succession, of those that were told, with everything cached far ahead of them.
    calm: u32,
    /// Reads that are not told after each that is.
    rarely: u16,
    /// What was agreed on before, for events that were on their way when it changed.
    before: VecDeque<Agreement>,
    /// The place in the queue of its last read that was told.
    place: u32,
    /// What was counted when the file was left to the hook.
    settled: Option<Settled>,
    /// How often it is worth listening.
    sampling: Sampling,
    /// How fast it is read where nothing is cached.
    interarrival: Interarrival,
}

impl Desc {
    fn new(generation: u32, key: InodeKey, detector: Detector) -> Desc {
        Desc {
            generation,
            key,
            detector,
            last: 0,
            skip_given: 0,
            overlooked: 0,
            cached: false,
            calm: 0,
            rarely: 0,
            before: VecDeque::new(),
            place: 0,
            settled: None,
            sampling: Sampling::default(),
            interarrival: Interarrival::default(),
        }
    }

    /// Whether an event with these bits of a generation is one of this descriptor's.
    fn is_of(&self, generation: u8) -> bool {
        self.generation as u8 == generation
    }

    /// Reads that are not told after its last one, by what was agreed on when that was told.
    fn agreed(&self) -> u16 {
        let mut before = self.before.iter();
        let before = before.find(|b| b.until.wrapping_sub(self.place) as i32 > 0);
        before.map_or(self.rarely, |b| b.rarely)
    }

    /// Reads that were not told before the one that was just taken from `queue`.
    fn unheard(&mut self, queue: &Proc) -> u16 {
        let mut unheard = self.agreed();
        let mut last = self.place;
        let (taken, _) = queue.places();
        self.place = taken.wrapping_sub(1);
        let is_over = |until: u32| until.wrapping_sub(self.place) as i32 <= 0;
        while let Some(over) = self.before.front().copied().filter(|b| is_over(b.until)) {
            self.before.pop_front();
            // It held for the last one that was told, and ended before this one.
            if over.until.wrapping_sub(last) as i32 > 0 {
                unheard = over.rarely.saturating_sub(over.unused);
                last = self.place;
            }
        }
        unheard
    }

    /// The same before a read at `offset`, of which its streams learn.
    fn catch_up(&mut self, offset: u64, queue: &Proc) -> u16 {
        let unheard = self.unheard(queue);
        if unheard > 0 {
            self.detector.unheard(offset, unheard.into());
        }
        unheard
    }

    /// What its streams read silently until now, `consumed` reads since the last that was told, which ended at `last`: where reads began, bytes from one to the next,
    /// and of each.
    fn silent_reads(&self, last: u64, consumed: u64) -> Vec<(std::ops::Range<u64>, u64, u64)> {
        // The hook's position tells how far a single stream came; of several it is only known how many reads they made together.
        let alone = self.detector.only().is_some();
        let silent = || self.detector.reading().filter(|s| s.is_silent());
        let streams = silent().count() as u64;
        let span_of = |s: &Stream| {
            let step = s.step();
            // Since it was heard last, all have taken turns.
            let share = (s.untold + consumed) / streams;
            let end = match (alone, s.stride > 0) {
                (true, true) => last,
                (true, false) => last.saturating_sub(s.len),
                (false, true) => s.heard.saturating_add(step.saturating_mul(share + 1)),
                (false, false) => s.heard.saturating_sub(step.saturating_mul(share)),
            };
            let mut span = between(s.last, end, s.len, s.stride);
            if s.stride < 0 {
                // The last read itself was not told either.
                span.start = end;
            }
            (span, step, s.len)
        };
        // Where another one has come already, it took over.
        let is_over = |span: &std::ops::Range<u64>| silent().any(|s| span.contains(&s.last));
        silent()
            .map(span_of)
            .filter(|(span, ..)| alone || !is_over(span))
            .collect()
    }

    /// From what is told next on so many reads are not told after each that is. If that is none, the silence that has begun ends.
    fn hear_rarely(&mut self, rarely: u16, slot: &Slot, queue: &Proc) {
        if rarely != self.rarely {
            let (_, until) = queue.places();
            let unused = match rarely {
                0 => slot.skip.swap(0, Relaxed),
                _ => 0,
            };
            if self.before.len() >= CHANGES {
                self.before.pop_front();
            }
            self.before.push_back(Agreement {
                rarely: self.rarely,
                until,
                unused: unused.min(self.rarely.into()) as u16,
            });
            self.rarely = rarely;
        }
        slot.listen_rarely(rarely);
    }
}

struct ProcState {
    pid: u32,
    /// Its number among all that there were, by which its record is found.
    who: usize,
    /// Readable when the process is over, whatever became of its number.
    life: Option<OwnedFd>,
    descs: Map<u16, Desc>,
    /// Since when a cell of the ring has been reserved and not filled.
    stuck: Option<Moment>,
    mapped: Vec<Mapped>,
    /// Where all that it reads is a stream that is left to the kernel, the bytes that are read ahead at once.
    left: Option<u64>,
    /// The same as of each descriptor, of all together.
    sampling: Sampling,
    /// Reads told of or skipped by agreement, and their bytes.
    reads: u64,
    bytes: u64,
    /// Bytes that the kernel has been given hints of beside the service, and the requests that these become.
    hinted: (u64, u64),
    /// When it was last seen to go through directories.
    walked: Option<Moment>,
    /// By so much it has taken more of the service's time than its turns.
    owes: Duration,
    /// Files that it has named which must never be opened.
    untouchable: usize,
    /// Nothing more is done for it.
    left_alone: bool,
}

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

/// A reader whose position the hooks publish in its slot.
struct Position {
    shared: Arc<Shared>,
    proc: usize,
    fd: u16,
    generation: u32,
    forward: bool,
}

impl Overtaken for Position {
    fn overtaken(&self, range: &std::ops::Range<u64>) -> bool {
        let Some(slot) = self.shared.proc(self.proc).slots.get(usize::from(self.fd)) else {
            return true;
        };
        if slot.generation.load(Relaxed) != self.generation {
            return true;
        }
        let last = slot.last.load(Relaxed);
        // Backwards `last` is the end of a read that lies below what was passed.
        if self.forward {
            last >= range.end
        } else {
            last <= range.start
        }
    }
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
    /// Who else was seen to read from the disks.
    device_sharing: DeviceSharing,
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
            device_sharing: DeviceSharing::new(now),
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
        self.limit_walker();
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
            walker.limit(0);
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
