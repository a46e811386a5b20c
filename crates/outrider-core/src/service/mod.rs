//! The service: a process beside the program that hears of its reads and runs ahead of them.
//!
//! One thread takes events from the rings, keeps a detector per descriptor and a view per file, plans, and hands requests to
//! the engine's workers. Programs don't wake it, as that would take a system call of theirs that they may have forbidden themselves: while
//! something is going on it looks by itself, the sooner the less time has passed since the last thing that it heard.
//!
//! State and decisions are apart. What is known of memory, devices, processes, descriptors and files is owned by the file of that name, which says what can be
//! done with it. What a read comes to ([`decide`]), what is left to the kernel ([`left_to_kernel`]), whether something still is cached ([`still_cached`]) and how
//! long to sleep ([`turns`]) is decided from facts, without asking anybody; `Service::apply` carries out what was decided of a read.
//!
//! Nothing here is seen by the program: its descriptors, threads, memory, locks and children are its own. What the
//! service holds of a program's file (see `fetch`) it holds for a few milliseconds after the last request.

mod bounds;
mod cache_users;
mod counted;
mod credit;
mod decide;
mod descriptors;
mod device_sharing;
mod devices;
mod ends;
mod events;
mod evictions;
mod fetching;
mod files;
mod heirs;
mod hints;
mod hold;
mod interarrival;
mod kernel;
mod kernel_copy;
mod left_to_kernel;
mod linux;
mod mappings;
mod memory;
mod opening;
mod patient;
mod prefetch_trial;
mod processes;
mod quiesce;
mod random_reads;
mod reach;
mod reads;
pub mod record;
mod resident;
mod sampling;
#[cfg(test)]
mod scribbled;
mod served;
mod servers;
mod still_cached;
mod told;
mod turns;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use outrider_sys::cache;
pub use outrider_sys::units::InodeKey;

use crate::asked::When;
use crate::clock::{Moment, Monotonic};
use crate::config::Config;
use crate::device::{DeviceModel, Seeks};
use crate::engine::{self, Engine};
use crate::exclude::Excluded;
use crate::explain::Explain;
use crate::profile::{Job, Remember};
use crate::shared::{Shared, text};
use crate::sharing::DeviceSharing;
use crate::shm::{self, Figure, Header, Record, lost};
use crate::source::{New, SOURCES};
use crate::walk::Walker;

use cache_users::CacheUsers;
use descriptors::{Desc, Position};
use devices::Devices;
pub use devices::FileSystem;
use files::{FileState, Files};
use heirs::Heirs;
pub use kernel::{Answer, Kernel, OpenFile, Source};
use left_to_kernel::Reading;
pub use linux::Linux;
use memory::MemoryBudget;
use prefetch_trial::PrefetchTrial;
use processes::Processes;
use quiesce::Quiesce;
use turns::{Awaited, Turns};

/// A file is let go so long after the last request for it: long enough to serve a running stream, short enough that an
/// unlinked file's space and a file system to be unmounted are not held.
const HOLD: Duration = Duration::from_millis(30);
/// The same while a program has it open: it is noticed when it closes it ([`ends`]).
const HOLD_OPEN: Duration = Duration::from_secs(1);
/// Views of one file may take so many bytes: the bitmaps of 64 GiB.
const VIEW_BYTES: usize = 8 << 20;
/// Reads waiting in a ring from which on old ones are passed over.
const BEHIND: u32 = 256;
/// Bytes that a request may have where the kernel module takes it whole, if the user has not set another size: a quarter of the calls.
const MODULE_CHUNK: u64 = 512 << 10;
/// Files remembered after the program closed them.
const FILES_KEPT: usize = 4096;

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
    memory: MemoryBudget,
    files: Files,
    processes: Processes,
    devices: Devices,
    start: Moment,
    /// The statistics are final.
    finished: bool,
    /// When what was done last.
    turns: Turns,
    /// By which the service is known that hands processes on to this one, whose rights are not the runner's.
    ancestor: Option<u64>,
    /// Services for processes with other rights.
    heirs: Heirs,
    /// What is read at the moment.
    reading: Reading,
    /// What looks at reads of no stream.
    sources: &'static [New],
    /// Who else was seen to read from the disks.
    device_sharing: DeviceSharing,
    /// Programs were told of devices on which others read.
    bounds_graphs: bool,
    /// Whether many files that are read at once are better left alone.
    prefetch_trial: PrefetchTrial,
    quiesce: Quiesce,
    /// Who uses the files that are to make room.
    cache_users: CacheUsers,
    /// Counts the looks for evictions.
    looked: u64,
    /// When the event was told that is being heard.
    hearing: When,
    /// Calls that are moving bytes within the kernel.
    kernel_copies: Vec<kernel_copy::KernelCopy>,
    /// Files of which hints have something left to ask for.
    hints: Vec<InodeKey>,
    /// Whether anything is fetched: not by the engine `noop`.
    fetches: bool,
    /// Whether programs that go through trees are run ahead of …
    walks: bool,
    /// … and who does it, once there is one.
    walker: Option<Walker>,
    /// Names of what nothing is fetched of.
    excluded: Excluded,
    /// The job, if it is remembered.
    remember: Option<Remember>,
    /// Says what was decided, if anybody wants to know.
    explain: Arc<Explain>,
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
        let (now, keyed) = (kernel.now(), kernel.keyed());
        let memory = MemoryBudget::new(&config.budget, now);
        // A bad pattern was refused before.
        let excluded = Excluded::new(&config.files.exclude).unwrap_or_default();
        let mut service = Service {
            kernel,
            engine,
            files: Files::new(keyed, now, shared.named()),
            processes: Processes::new(shared.records().count()),
            shared,
            config,
            mode,
            memory,
            devices: Devices::new(keyed, saved),
            start: now,
            finished: false,
            turns: Turns::new(now),
            ancestor: None,
            heirs: Heirs::default(),
            reading: Reading::new(),
            sources: SOURCES,
            device_sharing: DeviceSharing::new(now),
            bounds_graphs: false,
            prefetch_trial: PrefetchTrial::new(now),
            quiesce: Quiesce::new(now),
            cache_users: CacheUsers::default(),
            looked: 0,
            hearing: When::UNKNOWN,
            kernel_copies: Vec::new(),
            hints: Vec::new(),
            fetches: true,
            walks: false,
            walker: None,
            excluded,
            remember: None,
            explain: Arc::new(Explain::into(None)),
        };
        service.take_stock();
        service
    }

    /// The job is remembered: what its profile has is fetched from here on.
    pub fn remember(mut self, job: Job) -> Service<K> {
        let (shared, ledger) = (self.shared.clone(), self.memory.ledger().clone());
        let (engine, told) = (&self.engine, (&self.excluded, &self.explain));
        let remember = Remember::start(job, &shared, engine, &ledger, self.fetches, told);
        self.remember = Some(remember);
        self.allow_walks();
        self
    }

    /// Has these sources look at reads of no stream, in this order, in place of [`SOURCES`].
    pub fn with_sources(mut self, sources: &'static [New]) -> Service<K> {
        self.sources = sources;
        self
    }

    /// Has it say what it decides, into a file that exists, if one is named.
    pub fn explaining(mut self, path: Option<&Path>) -> Service<K> {
        self.explain = Arc::new(Explain::into(path));
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
        if self.processes.is_empty() && (self.finished || self.kernel.is_orphaned()) {
            // Whoever attaches from here on is not heard.
            self.header().closed.store(1, Release);
            self.kernel.end_round(&self.shared);
            return Turn::Over;
        }
        if worked {
            self.turns.worked(self.kernel.now());
        }
        let pause = self.pause();
        self.kernel.end_round(&self.shared);
        // What came while that was done.
        let changed = self
            .processes
            .active()
            .iter()
            .any(|i| self.shared.proc(*i).is_ready())
            || self.has_to_leave()
            || !self.finished && self.kernel.finishes(&self.shared);
        match worked || changed {
            true => Turn::Busy,
            false => Turn::Pause(pause),
        }
    }

    /// How long to sleep.
    fn pause(&mut self) -> Duration {
        let asked =
            self.is_to_settle() || self.quiesce.is_leaving() || self.is_asked_to_step_aside();
        let goes_on = !self.kernel_copies.is_empty()
            || !self.hints.is_empty()
            || self.heirs.are_awaited()
            || self.kernel.is_awaited();
        let awaited = match (asked, goes_on, self.processes.is_empty()) {
            (true, ..) => Awaited::Answer,
            (_, true, _) => Awaited::Progress,
            (.., true) => Awaited::Programs,
            _ => Awaited::Events,
        };
        let mut processes = self.processes.iter();
        let maps = processes.any(|(_, p)| !p.mapped().is_empty());
        self.turns.pause(self.kernel.now(), awaited, maps)
    }

    /// One look at everything; `true` if there was something to do.
    fn round(&mut self) -> bool {
        self.come_back();
        self.admit();
        self.look_for_watchers();
        self.look_after_heirs();
        let worked = self.drain_all();
        self.turns.hears_no_more(self.kernel.now());
        self.withdraw_if_watched();
        self.let_go_for_departing();
        self.let_go_for_starting();
        self.quiesce();
        self.look_at_memory();
        self.take_opened();
        if self.kernel.has_ended() || self.turns.is_census_due(self.kernel.now()) {
            self.census();
        }
        if self.turns.are_maps_due(self.kernel.now()) {
            self.look_at_maps();
        }
        self.look_at_sharing();
        self.look_at_servers();
        self.go_on_moving();
        self.go_on_with_hints();
        self.let_go();
        worked
    }

    /// Says what a process has read that nobody foresaw, as far as it was told.
    fn explain_process(&self, record: &Record) {
        let [pid, reads, events, saved] = [
            record.pid.load(Relaxed).into(),
            record.reads.load(Relaxed),
            record.events.load(Relaxed),
            record.calls_saved.load(Relaxed),
        ];
        let name = text(&record.name);
        let told = match (reads, events) {
            (0, 0) => ", which is what is short or passes no hook",
            (_, 0) => ", all of it cached",
            _ => "",
        };
        self.explain.say(
            pid as u32,
            format_args!(
                "process {name:?}: {reads} reads of {} bytes followed{told}; {saved} of its hints taken over",
                record.bytes_read.load(Relaxed)
            ),
        );
    }

    /// The program is over: makes the statistics final.
    fn finish(&mut self) {
        self.admit();
        self.outlive_all();
        self.census();
        // What was asked for last counts too.
        self.room();
        // Nothing of the program's is held from here on, so that it can be unmounted or removed at once.
        if let Some(mut remember) = self.remember.take() {
            let models = self.engine.models();
            let seeks = models.iter().any(|(_, m)| m.seeks() == Seeks::Yes);
            remember.end(&self.shared, seeks);
            self.remember = Some(remember);
        }
        if let Some(walker) = &self.walker {
            walker.allow(false);
        }
        self.leave_for_good();
        for (i, process) in self.processes.iter() {
            self.settle(i, process.who());
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
            file.ends();
        }
        for record in self.shared.records().filter(|_| self.explain.is_wanted()) {
            self.explain_process(record);
        }
        self.explain.finish();
        let models = self.engine.models();
        for (to, (dev, model)) in self
            .header()
            .devices
            .iter()
            .zip(models.iter().filter(|(_, m)| m.has_latency()))
        {
            to[0].store(dev.0, Relaxed);
            to[1].store(model.latency_us as u64, Relaxed);
            to[2].store(model.measured_bandwidth().unwrap_or(0.0) as u64, Relaxed);
        }
        if self.processes.is_empty() {
            // Nobody is left to be served: who waits for the figures waits for the end of this process, too.
            self.header().closed.store(1, Release);
        }
        self.kernel.finished(&self.shared);
    }
}
