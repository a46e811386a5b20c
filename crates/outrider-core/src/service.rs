//! The service: a process beside the program that hears of its reads and runs ahead of them.
//!
//! One thread takes events from the rings, keeps a detector per descriptor and a view per file, plans, and hands requests to
//! the engine's workers. It sleeps on a futex that a hook rings; while something is going on it also looks by itself
//! every millisecond or two.
//!
//! Nothing here is seen by the program: its descriptors, threads, memory, locks and children are its own. What the
//! service holds of a program's file (see `fetch`) it holds for a few milliseconds after the last request.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use outrider_sys::cache::{self, CacheStatError};
use outrider_sys::device::Device;
use outrider_sys::memory::MemorySources;
use outrider_sys::raw;

use crate::budget::{Grant, Policy, Supply};
use crate::config::{Config, IoPriority, RangeTree};
use crate::engine::{self, Account, Class, Engine, Handle, Overtaken, Request};
use crate::fetch::{self, Wanted};
use crate::place::DeviceModel;
use crate::plan::{self, Terms};
use crate::shm::{
    self, Event, FD_IGNORED, FD_TRACKED, FLAG_LAZY, FLAG_WRITABLE, FileStat, Header, Kind, MAX_FILES, MAX_PROCS, Slot,
    lost,
};
use crate::shared::Shared;
use crate::source::dense::{Price, Random};
use crate::source::mapped::Mapped;
use crate::source::predict::{Arrival, Detector, Foresight, Limits, PAGE, between};
use crate::view::{FileView, Granularity, PageRange};

/// A file is let go so long after the last request for it: long enough to serve a running stream, short enough that an
/// unlinked file's space and a file system to be unmounted are not held.
const HOLD: Duration = Duration::from_millis(30);
/// Views of one file may take so many bytes: the bitmaps of 64 GiB.
const VIEW_BYTES: usize = 8 << 20;
/// Reads waiting in a ring from which on old ones are passed over.
const BEHIND: u32 = 256;
/// Files remembered after the program closed them.
const FILES_KEPT: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct FileKey {
    dev: u64,
    ino: u64,
}

struct FileState {
    key: FileKey,
    view: Arc<FileView>,
    account: Arc<Account>,
    size: u64,
    handle: Option<Arc<Handle>>,
    handle_used: Instant,
    /// Where a descriptor for it can be had.
    source: Option<Wanted>,
    stat: Option<usize>,
    random: Random,
    /// Streamed in whole: random reads are all foreseen.
    streamed: bool,
    openers: u32,
    last_access: Instant,
    chunk: u64,
    /// cachestat is refused for this file.
    blind: bool,
    /// Samples that found the file cached, less those that did not.
    hot: u32,
    samples: u32,
    optimistic: u64,
    used_at_open: u64,
}

struct Desc {
    generation: u32,
    key: FileKey,
    detector: Detector,
    skip_given: u32,
}

struct ProcState {
    pid: u32,
    descs: HashMap<u16, Desc>,
    stuck: u32,
    mapped: Vec<Mapped>,
    reads: u64,
    bytes: u64,
    events: u64,
    command: String,
}

/// What becomes of processes for the report.
#[derive(Clone, Debug, Default)]
pub struct ProcessRecord {
    /// Process id.
    pub pid: u32,
    /// Its command name when last seen.
    pub command: String,
    /// Reads told of or skipped by agreement.
    pub reads: u64,
    /// Bytes of these.
    pub bytes_read: u64,
    /// Events that were taken.
    pub events: u64,
    /// Events that found the ring full.
    pub events_dropped: u64,
    /// Hints that never reached the kernel.
    pub calls_saved: u64,
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
        let slot = &self.shared.proc(self.proc).slots[usize::from(self.fd)];
        if slot.generation.load(Relaxed) != self.generation {
            return true;
        }
        let last = slot.last.load(Relaxed);
        // Backwards `last` is the end of a read that lies below what was passed.
        if self.forward { last >= range.end } else { last <= range.start }
    }
}

/// The service.
pub struct Service {
    shared: Arc<Shared>,
    config: Config,
    mode: u32,
    engine: Engine,
    policy: Policy,
    grant: Grant,
    sources: MemorySources,
    files: HashMap<FileKey, FileState>,
    procs: Vec<Option<ProcState>>,
    ended: Vec<ProcessRecord>,
    devices: HashMap<u64, Option<u64>>,
    start: Instant,
    last_event: Instant,
    last_budget: Instant,
    last_census: Instant,
    last_map_look: Instant,
    map_pause: Duration,
    hellos: u32,
    /// Indices of the entries in use.
    active: Vec<usize>,
    /// Files that were fetched from within the last moments: streams that share the budget.
    busy: u64,
    models: HashMap<u64, (Instant, DeviceModel)>,
    last_let_go: Instant,
    /// Bytes fetched optimistically in files that were closed since, and how much of these was used.
    optimism: (u64, u64),
    opens: u64,
}

impl Service {
    /// A service over `shared`, which describes the programs, in mode `shm::MODE_*`.
    pub fn new(shared: Arc<Shared>, config: Config, mode: u32, kind: engine::Kind) -> Service {
        let settings = engine::Settings {
            workers: config.engine.workers as usize,
            in_flight: (config.engine.in_flight_min.0, config.engine.in_flight_max.0),
            io_priority: match config.engine.io_priority {
                // IOPRIO_PRIO_VALUE(class, data) of linux/ioprio.h.
                IoPriority::BestEffort7 => 2 << 13 | 7,
                IoPriority::Idle => 3 << 13,
                IoPriority::None => 0,
            },
            kind,
        };
        let policy = Policy {
            fixed: config.budget.memory.map(|s| s.0),
            share: config.budget.share,
            high: config.budget.high_watermark,
            low: config.budget.low_watermark,
            stream_minimum: config.budget.stream_minimum.0,
            psi_max: config.budget.psi_some_avg10_max,
        };
        let now = Instant::now();
        let mut service = Service {
            engine: Engine::new(settings, shared.clone()),
            shared,
            config,
            mode,
            policy,
            grant: Grant { total: 0, aggressive: false, allowed: false },
            sources: MemorySources::of_this_process(),
            files: HashMap::new(),
            procs: (0..MAX_PROCS).map(|_| None).collect(),
            ended: Vec::new(),
            devices: HashMap::new(),
            start: now,
            last_event: now,
            last_budget: now,
            last_census: now,
            last_map_look: now,
            map_pause: Duration::from_millis(1),
            hellos: 0,
            active: Vec::new(),
            busy: 1,
            models: HashMap::new(),
            last_let_go: now,
            optimism: (0, 0),
            opens: 0,
        };
        service.take_stock();
        service
    }

    fn header(&self) -> &Header {
        self.shared.header()
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// Runs until the program and all that it left behind are over.
    pub fn run(&mut self) {
        let parent = rustix::process::getppid();
        let mut finished = false;
        loop {
            let worked = self.round();
            let header = self.shared.header();
            if header.finish.load(Acquire) == 1 && !finished {
                self.finish();
                finished = true;
            }
            let orphaned = rustix::process::getppid() != parent;
            if (finished || orphaned) && self.active.is_empty() {
                return;
            }
            if worked {
                continue;
            }
            // Announce the sleep, look once more, sleep: see Header::ring_doorbell.
            let header = self.shared.header();
            let bell = header.doorbell.load(Acquire);
            header.sleeping.store(1, Release);
            std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
            let quiet = self.active.iter().all(|i| self.shared.proc(*i).waiting() == 0);
            let changed = header.hello.load(Relaxed) != self.hellos
                || header.release_wanted.load(Relaxed) != header.release_done.load(Relaxed)
                || (header.finish.load(Relaxed) == 1 && !finished);
            if quiet && !changed {
                raw::futex_wait(&header.doorbell, bell, self.pause().as_micros() as u64);
            }
            header.sleeping.store(0, Relaxed);
        }
    }

    /// How long to sleep when nothing rings.
    fn pause(&self) -> Duration {
        let mut pause = if self.last_event.elapsed() < Duration::from_millis(50) {
            Duration::from_millis(2)
        } else if self.last_event.elapsed() < Duration::from_secs(2) {
            Duration::from_millis(20)
        } else {
            Duration::from_millis(250)
        };
        if self.active.iter().any(|i| self.procs[*i].as_ref().is_some_and(|p| !p.mapped.is_empty())) {
            pause = pause.min(self.map_pause);
        }
        pause
    }

    /// One look at everything; `true` if there was something to do.
    fn round(&mut self) -> bool {
        let header = self.shared.header();
        let hellos = header.hello.load(Acquire);
        if hellos != self.hellos {
            self.hellos = hellos;
            self.admit();
        }
        let mut worked = false;
        for k in 0..self.active.len() {
            worked |= self.drain(self.active[k]);
        }
        if worked {
            self.last_event = Instant::now();
        }
        let wanted = self.header().release_wanted.load(Acquire);
        if self.header().watched.load(Relaxed) != 0 && self.grant.allowed {
            self.grant = Grant { total: 0, aggressive: false, allowed: false };
        }
        if wanted != self.header().release_done.load(Relaxed) {
            self.release_all();
            self.header().release_done.store(wanted, Release);
            raw::futex_wake(&self.header().release_done, u32::MAX);
        }
        if self.last_budget.elapsed() >= Duration::from_millis(200) {
            self.take_stock();
        }
        if self.last_census.elapsed() >= Duration::from_millis(100) {
            self.census();
        }
        if self.last_map_look.elapsed() >= self.map_pause {
            self.look_at_maps();
        }
        self.let_go();
        worked
    }

    fn take_stock(&mut self) {
        let m = self.sources.read();
        self.grant = self.policy.grant(Supply {
            headroom: m.headroom(),
            limit: m.limit(),
            psi: m.psi_some_avg10.unwrap_or(0.0),
        });
        self.last_budget = Instant::now();
        if self.header().watched.load(Relaxed) != 0 {
            self.grant = Grant { total: 0, aggressive: false, allowed: false };
            self.header().lose(lost::WATCHED);
            return;
        }
        if !self.grant.aggressive && self.config.reclaim.enabled {
            self.reclaim(m.limit() / 50);
        }
    }

    /// SPEC CP10: under pressure, files that nobody has read for 30 s go first and whole; then the ranges of large
    /// files that were not touched for the longest time. Only what this program tree brought in, and only pages
    /// that are clean and unmapped: DONTNEED leaves all others alone.
    fn reclaim(&mut self, target: u64) {
        let idle = Duration::from_secs(u64::from(self.config.reclaim.inactive_after_s));
        let mut order: Vec<(Instant, FileKey)> =
            self.files.values().filter(|f| f.view.present_pages() > 0).map(|f| (f.last_access, f.key)).collect();
        order.sort();
        let mut freed = 0;
        for (when, key) in order {
            if freed >= target {
                break;
            }
            if when.elapsed() >= idle {
                let pages = self.files.get(&key).map_or(0, |f| f.view.present_pages());
                if self.drop_range(key, 0..u64::MAX >> 1) {
                    freed += pages * PAGE;
                }
            } else {
                let cold_before = self.now_us().saturating_sub(idle.as_micros() as u64);
                let ranges = self.files.get(&key).map(|f| f.view.oldest_ranges(4)).unwrap_or_default();
                for (touched, range) in ranges {
                    if touched < cold_before && freed < target && self.drop_range(key, range.start * PAGE..range.end * PAGE) {
                        freed += range.len() * PAGE;
                    }
                }
            }
        }
    }

    fn drop_range(&mut self, key: FileKey, range: std::ops::Range<u64>) -> bool {
        let Some(handle) = self.handle(key) else { return false };
        let done = cache::drop_range(handle.fd(), range.clone()).is_ok();
        if done {
            self.lost_pages(key, PageRange::from_bytes(range.start, range.end - range.start));
        }
        done
    }

    fn lost_pages(&mut self, key: FileKey, range: PageRange) {
        let Some(file) = self.files.get(&key) else { return };
        let gone = file.view.evicted(range);
        self.count(key, |s| &s.evicted, gone.unused_pages * PAGE);
    }

    /// Takes in processes that have attached.
    fn admit(&mut self) {
        for i in 0..MAX_PROCS {
            let owner = self.header().owners[i].load(Acquire);
            if owner == shm::OWNER_GONE {
                self.retire(i);
            } else if owner != shm::OWNER_FREE && self.procs[i].is_none() && self.shared.proc(i).pid.load(Acquire) == owner {
                self.active.push(i);
                self.procs[i] = Some(ProcState {
                    pid: owner,
                    descs: HashMap::new(),
                    stuck: 0,
                    mapped: Vec::new(),
                    reads: 0,
                    bytes: 0,
                    events: 0,
                    command: fetch::command(owner),
                });
            }
        }
    }

    /// Ends what is over: processes, idle files.
    fn census(&mut self) {
        self.last_census = Instant::now();
        for i in 0..MAX_PROCS {
            let owner = self.header().owners[i].load(Acquire);
            if owner == shm::OWNER_FREE {
                continue;
            }
            if owner == shm::OWNER_GONE || !fetch::alive(owner) || fetch::zombie(owner) {
                self.retire(i);
            } else if self.procs[i].is_none() {
                self.admit();
            }
        }
        if self.files.len() > FILES_KEPT {
            let mut old: Vec<_> =
                self.files.values().filter(|f| f.openers == 0).map(|f| (f.last_access, f.key)).collect();
            old.sort();
            for (_, key) in old.into_iter().take(FILES_KEPT / 4) {
                self.forget(key);
            }
        }
    }

    /// A process is over: takes what it still said, closes its descriptors, and clears its entry.
    fn retire(&mut self, i: usize) {
        if self.procs[i].is_none() {
            self.header().owners[i].store(shm::OWNER_FREE, Release);
            return;
        }
        self.drain(i);
        let Some(mut state) = self.procs[i].take() else { return };
        self.active.retain(|k| *k != i);
        for (fd, desc) in state.descs.drain() {
            self.closed(i, fd, desc);
        }
        let proc = self.shared.proc(i);
        let record = self.record(i, &state);
        self.header().dropped.fetch_add(record.events_dropped, Relaxed);
        self.header().calls_saved.fetch_add(record.calls_saved, Relaxed);
        let _ = proc;
        self.ended.push(record);
        self.shared.clear(i);
        self.header().owners[i].store(shm::OWNER_FREE, Release);
    }

    fn record(&self, i: usize, state: &ProcState) -> ProcessRecord {
        let proc = self.shared.proc(i);
        let dropped = proc.dropped.load(Relaxed);
        if dropped > 0 {
            self.header().lose(lost::QUEUE_FULL);
        }
        ProcessRecord {
            pid: state.pid,
            command: state.command.clone(),
            reads: state.reads,
            bytes_read: state.bytes,
            events: state.events,
            events_dropped: dropped,
            calls_saved: proc.calls_saved.load(Relaxed),
        }
    }

    fn drain(&mut self, i: usize) -> bool {
        let mut any = false;
        // A reader that finds everything cached can outrun this thread. What it read long ago helps nobody: only
        // the latest reads are looked at.
        let behind = self.shared.proc(i).waiting();
        let mut passed_over = if behind > BEHIND { behind - BEHIND / 4 } else { 0 };
        // Bounded, so that a busy process does not keep the others waiting.
        for _ in 0..shm::RING {
            let Some(event) = self.shared.proc(i).pop(false) else {
                let waiting = self.shared.proc(i).waiting() > 0;
                let Some(state) = &mut self.procs[i] else { return any };
                state.stuck = if waiting { state.stuck + 1 } else { 0 };
                if state.stuck > 100 {
                    // A cell that was reserved and never filled: its thread is gone.
                    state.stuck = 0;
                    self.shared.proc(i).pop(true);
                }
                return any;
            };
            any = true;
            if let Some(state) = &mut self.procs[i] {
                state.events += 1;
            }
            if passed_over > 0 {
                passed_over -= 1;
                if event.kind == Kind::Read {
                    self.header().events.fetch_add(1, Relaxed);
                    if let Some(key) = self.known(i, event.fd) {
                        self.pass(i, key, event.offset..event.offset.saturating_add(event.len), 1, event.len);
                        if let Some(desc) = self.procs[i].as_mut().and_then(|p| p.descs.get_mut(&event.fd)) {
                            desc.detector.glance(event.offset, event.extra);
                        }
                    }
                    continue;
                }
            }
            self.handle_event(i, event);
        }
        any
    }

    fn handle_event(&mut self, i: usize, e: Event) {
        match e.kind {
            Kind::Open => {
                if let Some(desc) = self.procs[i].as_mut().and_then(|p| p.descs.remove(&e.fd)) {
                    self.closed(i, e.fd, desc);
                }
                self.opened(i, e.fd, e.offset);
            }
            Kind::Close => {
                if let Some(desc) = self.procs[i].as_mut().and_then(|p| p.descs.remove(&e.fd)) {
                    self.closed(i, e.fd, desc);
                }
            }
            Kind::Read => self.read(i, e),
            Kind::WillNeed => {
                if let Some(key) = self.known(i, e.fd) {
                    self.advise(key, e.offset..e.offset.saturating_add(e.len));
                }
            }
            Kind::DontNeed => {
                if let Some(key) = self.known(i, e.fd) {
                    self.lost_pages(key, PageRange::from_bytes(e.offset, e.len));
                }
            }
            Kind::Truncate => {
                if let Some(key) = self.known(i, e.fd) {
                    self.lost_pages(key, PageRange::new(e.offset.div_ceil(PAGE), u64::MAX / PAGE));
                    if let Some(f) = self.files.get_mut(&key) {
                        f.size = e.offset;
                    }
                }
            }
            Kind::Map => {
                if let Some(key) = self.known(i, e.fd)
                    && let Some(state) = &mut self.procs[i]
                {
                    let limits = limits(&self.config, &self.grant, self.mode, 1, 64 << 10);
                    // More mappings than this are not looked at.
                    if state.mapped.len() < 64 {
                        state.mapped.push(Mapped::new(key.dev, key.ino, e.offset..e.offset.saturating_add(e.len), e.extra, &limits));
                    }
                    if let Some(f) = self.files.get_mut(&key) {
                        f.openers += 1;
                    }
                    self.map_pause = Duration::from_millis(1);
                }
            }
            Kind::Unmap => {
                let range = e.offset..e.offset.saturating_add(e.len);
                let mut gone = Vec::new();
                if let Some(state) = &mut self.procs[i] {
                    state.mapped.retain(|m| {
                        let over = m.memory().start >= range.start && m.memory().end <= range.end;
                        if over {
                            gone.push(FileKey { dev: m.file().0, ino: m.file().1 });
                        }
                        !over
                    });
                }
                for key in gone {
                    self.unlink(key);
                }
            }
            Kind::MapWillNeed => {
                let found = self.procs[i].as_ref().and_then(|p| {
                    p.mapped.iter().find_map(|m| m.file_range(e.offset..e.offset.saturating_add(e.len)).map(|r| (m.file(), r)))
                });
                if let Some(((dev, ino), range)) = found {
                    self.advise(FileKey { dev, ino }, range);
                }
            }
        }
    }

    /// The file of a descriptor, taken in now if the event that told of it was lost.
    fn known(&mut self, i: usize, fd: u16) -> Option<FileKey> {
        let slot = self.shared.proc(i).slots.get(usize::from(fd))?;
        let generation = slot.generation.load(Relaxed);
        match self.procs[i].as_ref()?.descs.get(&fd) {
            Some(d) if d.generation == generation => Some(d.key),
            _ => self.opened(i, fd, 0),
        }
    }

    fn opened(&mut self, i: usize, fd: u16, size: u64) -> Option<FileKey> {
        let shared = self.shared.clone();
        let slot = shared.proc(i).slots.get(usize::from(fd))?;
        if slot.state.load(Acquire) != FD_TRACKED {
            return None;
        }
        let key = FileKey { dev: slot.dev.load(Relaxed), ino: slot.ino.load(Relaxed) };
        let generation = slot.generation.load(Relaxed);
        let flags = slot.flags.load(Relaxed);
        let pid = self.procs[i].as_ref()?.pid;
        let source = Wanted { pid, fd, dev: key.dev, ino: key.ino };
        let writable = flags & FLAG_WRITABLE != 0;
        let now = Instant::now();
        let old = self.procs[i].as_mut()?.descs.remove(&fd);
        if let Some(old) = old {
            self.closed(i, fd, old);
        }
        let config = &self.config;
        let file = self.files.entry(key).or_insert_with(|| FileState {
            key,
            view: Arc::new(FileView::new(
                if config.view.range_tree == RangeTree::Coarse { Granularity::Coarse } else { Granularity::Page },
                VIEW_BYTES,
            )),
            account: Arc::default(),
            size,
            handle: None,
            handle_used: now,
            source: Some(source),
            stat: None,
            random: Random::default(),
            streamed: false,
            openers: 0,
            last_access: now,
            chunk: 0,
            blind: false,
            hot: 0,
            samples: 0,
            optimistic: 0,
            used_at_open: 0,
        });
        file.openers += 1;
        file.account.cancelled.store(false, Relaxed);
        file.source = Some(source);
        file.last_access = now;
        if size > 0 {
            file.size = size;
        }
        // A descriptor that is shared or inherited says nothing of its size: it is asked for with the handle.
        if file.size == 0 || file.stat.is_none() {
            self.handle(key)?;
            self.introduce(key);
        }
        let file = self.files.get(&key)?;
        if file.chunk == 0 {
            let ignored = match self.devices.get(&key.dev) {
                Some(known) => *known,
                None => {
                    let device = file.handle.as_ref().and_then(|h| Device::of_fd(h.fd()).ok());
                    let chunk = match &device {
                        Some(d) if d.is_memory() => None,
                        Some(d) => Some(d.unclipped_chunk()),
                        None => Some(64 << 10),
                    };
                    self.devices.insert(key.dev, chunk);
                    chunk
                }
            };
            let Some(chunk) = ignored else {
                slot.state.store(FD_IGNORED, Relaxed);
                self.unlink(key);
                return None;
            };
            let chunk = chunk.min(self.config.engine.chunk.0);
            if let Some(f) = self.files.get_mut(&key) {
                f.chunk = chunk;
            }
        }
        let limits = self.limits(key);
        let mut detector = Detector::new(&limits);
        self.opens += 1;
        let position = slot.pos.load(Relaxed);
        let ahead = if position == 0 { self.at_open(key, writable) } else { 0 };
        if ahead > 0 {
            detector.optimistic(ahead, &limits);
        }
        self.procs[i]
            .as_mut()?
            .descs
            .insert(fd, Desc { generation, key, detector, skip_given: 0 });
        Some(key)
    }

    /// SPEC CP9, CP12: what is fetched when a file is opened. Returns up to which byte.
    fn at_open(&mut self, key: FileKey, writable: bool) -> u64 {
        if !self.grant.aggressive {
            return 0;
        }
        let Some(file) = self.files.get(&key) else { return 0 };
        let size = file.size;
        let ahead = match self.mode {
            shm::MODE_FETCHALL_OPT => size,
            // A database opens its file for writing and reads a page of it.
            shm::MODE_PREDICT_OPT if !writable && self.optimism_pays() => self.config.window.optimistic_open.0.min(size),
            _ => 0,
        };
        if ahead == 0 {
            return 0;
        }
        let issued = self.fetch(key, &[0..ahead], Class::Background, None, None);
        if let Some(f) = self.files.get_mut(&key) {
            f.optimistic += issued.bytes;
        }
        issued.refused_at.unwrap_or(ahead)
    }

    /// Whether programs of this run mostly read what was fetched for them at open. Where they do not, one open in 32 is
    /// still tried.
    fn optimism_pays(&self) -> bool {
        let (fetched, used) = self.optimism;
        fetched < 16 << 20 || used * 4 >= fetched || self.opens.is_multiple_of(32)
    }

    fn limits(&mut self, key: FileKey) -> Limits {
        let quantum = self.model(key.dev).quantum();
        limits(&self.config, &self.grant, self.mode, self.busy, quantum)
    }

    /// The model of a device, at most 2 ms old: asking the engine takes its lock.
    fn model(&mut self, dev: u64) -> DeviceModel {
        if let Some((at, model)) = self.models.get(&dev)
            && at.elapsed() < Duration::from_millis(2)
        {
            return *model;
        }
        let model = self.engine.model(dev);
        self.models.insert(dev, (Instant::now(), model));
        model
    }

    fn closed(&mut self, i: usize, fd: u16, desc: Desc) {
        // What was read silently to the end: the hook's position tells how far a single stream came; of several it is only
        // known how many reads they made together.
        let slot = &self.shared.proc(i).slots[usize::from(fd)];
        let last = slot.last.load(Relaxed);
        let silent: Vec<_> = desc.detector.reading().filter(|s| s.is_silent()).cloned().collect();
        let alone = desc.detector.only().is_some();
        let consumed = u64::from(desc.skip_given.saturating_sub(slot.skip.load(Relaxed)));
        for s in &silent {
            let step = s.stride.unsigned_abs();
            let share = consumed / silent.len() as u64;
            let end = match (alone, s.stride > 0) {
                (true, true) => last,
                (true, false) => last.saturating_sub(s.len),
                (false, true) => s.last.saturating_add(step.saturating_mul(share + 1)),
                (false, false) => s.last.saturating_sub(step.saturating_mul(share)),
            };
            let mut span = between(s.last, end, s.len, s.stride);
            if s.stride < 0 {
                // The last read itself was not told either.
                span.start = end;
            }
            self.pass(i, desc.key, span, step, s.len);
        }
        self.unlink(desc.key);
    }

    /// One descriptor or mapping less.
    fn unlink(&mut self, key: FileKey) {
        let Some(file) = self.files.get_mut(&key) else { return };
        file.openers = file.openers.saturating_sub(1);
        if file.openers > 0 {
            return;
        }
        file.handle = None;
        file.account.cancelled.store(true, Relaxed);
        file.source = None;
        if file.optimistic > 0 {
            let stat = file.stat.map(|s| self.shared.stat(s).used.load(Relaxed)).unwrap_or(0);
            let file = self.files.get_mut(&key);
            if let Some(file) = file {
                let used = (stat - file.used_at_open.min(stat)).min(file.optimistic);
                self.optimism.0 += file.optimistic;
                self.optimism.1 += used;
                file.used_at_open = stat;
                file.optimistic = 0;
            }
            if self.optimism.0 > 256 << 20 {
                self.optimism = (self.optimism.0 / 2, self.optimism.1 / 2);
            }
        }
    }

    /// Forgets a file altogether; what was fetched and not used is wasted.
    fn forget(&mut self, key: FileKey) {
        if let Some(file) = self.files.remove(&key) {
            let unused = file.view.unused_pages() * PAGE;
            let total = &self.header().total;
            total.wasted.fetch_add(unused, Relaxed);
            if let Some(s) = file.stat {
                self.shared.stat(s).wasted.fetch_add(unused, Relaxed);
                self.flush(&file);
            }
        }
    }

    /// A descriptor of our own for a file.
    fn handle(&mut self, key: FileKey) -> Option<Arc<Handle>> {
        if self.header().watched.load(Relaxed) != 0 {
            return None;
        }
        let shared = self.shared.clone();
        let file = self.files.get_mut(&key)?;
        file.handle_used = Instant::now();
        if let Some(handle) = &file.handle {
            return Some(handle.clone());
        }
        let (fd, size) = fetch::fetch(file.source?, shared.header())?;
        file.size = size;
        let handle = Arc::new(Handle::new(fd));
        file.handle = Some(handle.clone());
        Some(handle)
    }

    fn introduce(&mut self, key: FileKey) {
        let Some(file) = self.files.get_mut(&key) else { return };
        if file.stat.is_some() {
            return;
        }
        let Some(handle) = &file.handle else { return };
        let free = (0..MAX_FILES).find(|i| self.shared.stat(*i).path_len.load(Relaxed) == 0);
        if let Some(i) = free {
            let Ok(copy) = handle.fd().try_clone_to_owned() else { return };
            self.shared.name(i, &fetch::name(&copy));
            file.stat = Some(i);
        }
    }

    /// Lets go of files that were not asked for lately.
    fn let_go(&mut self) {
        if self.last_let_go.elapsed() < HOLD / 4 {
            return;
        }
        self.last_let_go = Instant::now();
        let mut busy = 0;
        for file in self.files.values_mut() {
            if file.handle.is_some() {
                if file.handle_used.elapsed() >= HOLD {
                    file.handle = None;
                } else {
                    busy += 1;
                }
            }
        }
        self.busy = busy.max(1);
    }

    fn release_all(&mut self) {
        self.engine.drain();
        for file in self.files.values_mut() {
            file.handle = None;
        }
        self.engine.settle(Duration::from_millis(200));
    }

    fn count(&self, key: FileKey, field: impl Fn(&FileStat) -> &std::sync::atomic::AtomicU64, bytes: u64) {
        if bytes > 0 {
            field(&self.header().total).fetch_add(bytes, Relaxed);
            if let Some(s) = self.files.get(&key).and_then(|f| f.stat) {
                field(self.shared.stat(s)).fetch_add(bytes, Relaxed);
            }
        }
    }

    /// Copies a file's request counts to its statistics.
    fn flush(&self, file: &FileState) {
        let issued = file.account.issued.swap(0, Relaxed);
        self.header().total.prefetched.fetch_add(issued, Relaxed);
        if let Some(s) = file.stat {
            self.shared.stat(s).prefetched.fetch_add(issued, Relaxed);
        }
    }

    /// The program read these bytes, or so we know by now.
    fn seen(&mut self, key: FileKey, offset: u64, len: u64) -> Arrival {
        let now = self.now_us();
        let Some(file) = self.files.get_mut(&key) else { return Arrival::Missing };
        file.last_access = Instant::now();
        let len = len.min(file.size.saturating_sub(offset));
        if len == 0 {
            return Arrival::Present;
        }
        let pages = PageRange::from_bytes(offset, len);
        let a = file.view.access(pages, now);
        // Bytes, not pages: a read of a few bytes is a hit of a few bytes.
        let share = |n: u64| len * n / pages.len().max(1);
        self.count(key, |s| &s.hit, share(a.hit_pages));
        self.count(key, |s| &s.late, share(a.late_pages));
        self.count(key, |s| &s.miss, share(a.miss_pages));
        self.count(key, |s| &s.used, a.first_use_pages * PAGE);
        if a.miss_pages > 0 {
            Arrival::Missing
        } else if a.late_pages > 0 {
            Arrival::Late
        } else {
            Arrival::Present
        }
    }

    /// Reads that were not told: pieces of `len` bytes that begin every `stride` bytes in `span`.
    fn pass(&mut self, i: usize, key: FileKey, span: std::ops::Range<u64>, stride: u64, len: u64) {
        if span.is_empty() || span.end - span.start > 1 << 40 || len == 0 {
            return;
        }
        let span = span.start..span.end.min(self.files.get(&key).map_or(0, |f| f.size));
        let (mut reads, mut bytes) = (0, 0);
        if stride <= len {
            bytes = span.end.saturating_sub(span.start);
            reads = bytes.div_ceil(len);
            if bytes > 0 {
                self.seen(key, span.start, bytes);
            }
        } else {
            let mut at = span.start;
            while at < span.end {
                self.seen(key, at, len);
                reads += 1;
                bytes += len;
                at += stride;
            }
        }
        if let Some(state) = &mut self.procs[i] {
            state.reads += reads;
            state.bytes += bytes;
        }
    }

    fn read(&mut self, i: usize, e: Event) {
        self.header().events.fetch_add(1, Relaxed);
        let Some(key) = self.known(i, e.fd) else { return };
        let shared = self.shared.clone();
        let slot = &shared.proc(i).slots[usize::from(e.fd)];
        let limits = self.limits(key);
        let arrival = self.seen(key, e.offset, e.len);
        let Some(file) = self.files.get_mut(&key) else { return };
        if e.offset >= file.size {
            // The file may have grown.
            file.handle = None;
            self.handle(key);
        }
        let Some(size) = self.files.get(&key).map(|f| f.size) else { return };
        let Some(state) = self.procs[i].as_mut() else { return };
        let Some(desc) = state.descs.get_mut(&e.fd) else { return };
        // Events that were on their way when the silence was agreed on come first; only what was used of it counts.
        let given = std::mem::take(&mut desc.skip_given);
        let left = slot.skip.load(Relaxed);
        let skipped = if left == 0 { u64::from(given) } else { 0 };
        let mut f = desc.detector.access(e.offset, e.len, e.extra, arrival, size, &limits);
        let alone = desc.detector.only().is_some();
        // Of a stream that went on silently it is known what was read meanwhile; of random reads only how many.
        let counted = if f.random { 1 + skipped } else { 1 };
        state.reads += counted;
        state.bytes += e.len.min(size.saturating_sub(e.offset)) * counted;
        if let Some(p) = &f.passed {
            let (span, stride, len) = (p.span.clone(), p.stride, p.len);
            self.pass(i, key, span, stride, len);
        }
        let (mut skip, mut lazy) = (f.skip, f.random || !alone);
        if f.random {
            skip = self.random_read(key, e.offset, e.len, arrival, skipped, skip);
            lazy = skip == 0 || lazy;
        } else if !f.ranges.is_empty() {
            let forward = f.ranges.first().map(|r| r.start >= e.offset).unwrap_or(true);
            let reader = alone.then(|| -> Arc<dyn Overtaken> {
                Arc::new(Position {
                    shared: shared.clone(),
                    proc: i,
                    fd: e.fd,
                    generation: slot.generation.load(Relaxed),
                    forward,
                })
            });
            let out = self.fetch(key, &f.ranges, Class::Window, reader, Some((i, e.fd)));
            if let Some(at) = out.refused_at {
                if let Some(desc) = self.procs[i].as_mut().and_then(|p| p.descs.get_mut(&e.fd)) {
                    desc.detector.retreat(at);
                }
                // What was refused is asked for at the next read: keep listening.
                self.hush(slot, i, e.fd, Foresight::default(), (0, given), true);
                return;
            }
            if out.bytes == 0 {
                let quiet = self.look_further(i, e, size, &limits).unwrap_or(0..0);
                if alone {
                    f.quiet = quiet;
                }
            }
        }
        if !f.random && arrival == Arrival::Present && !alone {
            // Several streams that all find what they need: listen to a part only.
            lazy = true;
        }
        self.hush(slot, i, e.fd, f, (skip, given), lazy);
    }

    /// What a stream will read next was cached already: looks how far that goes on, so that a hot file costs next to
    /// nothing. Returns what is quiet then.
    fn look_further(&mut self, i: usize, e: Event, size: u64, limits: &Limits) -> Option<std::ops::Range<u64>> {
        const LOOKS: [u64; 2] = [4 << 20, 60 << 20];
        let key = self.procs[i].as_ref()?.descs.get(&e.fd)?.key;
        let handle = self.handle(key)?;
        let stream = self.procs[i].as_ref()?.descs.get(&e.fd)?.detector.latest().filter(|s| s.is_proven())?;
        let (mut front, forward) = (stream.front, stream.stride > 0);
        let now = self.now_us();
        let file = self.files.get(&key)?;
        if file.blind {
            return None;
        }
        for len in LOOKS {
            let range = if forward {
                front.min(size)..front.saturating_add(len).min(size)
            } else {
                front.saturating_sub(len)..front
            };
            let pages = PageRange::from_bytes(range.start, range.end - range.start);
            let stat = cache::cachestat(handle.fd(), pages.start * PAGE..pages.end * PAGE).ok()?;
            if pages.is_empty() || stat.cached < pages.len() {
                break;
            }
            file.view.present(pages, now);
            front = if forward { range.end } else { range.start };
        }
        let desc = self.procs[i].as_mut()?.descs.get_mut(&e.fd)?;
        Some(desc.detector.cached_up_to(front, e.offset, size, limits))
    }

    fn hush(&mut self, slot: &Slot, i: usize, fd: u16, f: Foresight, (skip, given): (u32, u32), lazy: bool) {
        let quiet = f.quiet;
        // While a silence is being used up only reads arrive that were told before it: they don't end it.
        let left = slot.skip.load(Relaxed);
        let skip = if left > 0 { left } else { skip };
        slot.hush(quiet.start, quiet.end.saturating_sub(quiet.start), skip);
        let flags = slot.flags.load(Relaxed);
        let new = if lazy { flags | FLAG_LAZY } else { flags & !FLAG_LAZY };
        if new != flags {
            slot.flags.store(new, Relaxed);
        }
        if let Some(desc) = self.procs[i].as_mut().and_then(|p| p.descs.get_mut(&fd)) {
            desc.skip_given = if left > 0 { given } else { skip };
        }
    }

    /// A read that fits no pattern. Returns how many reads to skip.
    fn random_read(&mut self, key: FileKey, offset: u64, len: u64, arrival: Arrival, skipped: u64, skip: u32) -> u32 {
        let Some(file) = self.files.get_mut(&key) else { return skip };
        let size = file.size;
        file.random.count(offset, len, arrival == Arrival::Missing, skipped, size);
        if file.streamed {
            // Every read is told while the streamed bytes are being used, without waking anybody.
            return if file.view.unused_pages() == 0 { 64 } else { 0 };
        }
        let reads = file.random.reads;
        if reads >= 16 && (file.hot > 0 || file.random.sampled.is_multiple_of(16)) {
            // Is the file cached already? Looked for where the program has not just read.
            let hot = self.sample(key, offset);
            if let Some(file) = self.files.get_mut(&key) {
                file.hot = if hot == Some(true) { file.hot + 1 } else { 0 };
                if file.hot > 0 {
                    // Everything that is sampled is there: look ever more rarely, but keep looking.
                    return 16 << file.hot.min(6);
                }
            }
        }
        if self.mode >= shm::MODE_PREDICT_OPT && self.config.dense.enabled && self.grant.aggressive && reads >= 32 {
            self.consider_streaming(key);
        }
        skip
    }

    /// Whether a few places of the file, chosen by `seed`, are all cached; `None` where it can't be known.
    fn sample(&mut self, key: FileKey, seed: u64) -> Option<bool> {
        let handle = self.handle(key)?;
        let file = self.files.get_mut(&key)?;
        if file.blind {
            return None;
        }
        let hull = file.random.hull.clone();
        let span = (hull.end - hull.start).max(1);
        let mut x = seed ^ (u64::from(file.samples) << 17) ^ 0x9e37_79b9_7f4a_7c15;
        file.samples = file.samples.wrapping_add(1);
        for _ in 0..4 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (hull.start + (x >> 11) % span) / PAGE * PAGE;
            let end = (at + (64 << 10)).min(file.size);
            match cache::cachestat(handle.fd(), at..end) {
                Ok(s) if s.cached < (end - at).div_ceil(PAGE) => return Some(false),
                Ok(_) => {}
                Err(e) => {
                    self.no_cachestat(key, e);
                    return None;
                }
            }
        }
        Some(true)
    }

    fn no_cachestat(&mut self, key: FileKey, e: CacheStatError) {
        self.header().lose(lost::CACHESTAT);
        let _ = e;
        if let Some(f) = self.files.get_mut(&key) {
            f.blind = true;
        }
    }

    fn consider_streaming(&mut self, key: FileKey) {
        let model = self.model(key.dev);
        let Some(file) = self.files.get(&key) else { return };
        let hull = file.random.hull.clone();
        let pages = PageRange::from_bytes(hull.start, hull.end - hull.start);
        let missing = (pages.len().saturating_sub(file.view.present_pages() + file.view.in_flight_pages())) * PAGE;
        let price = Price {
            latency_us: model.latency_us + file.random.bytes as f64 / file.random.reads.max(1) as f64 / model.bandwidth,
            bandwidth: model.bandwidth,
        };
        let room = self.room();
        let Some(range) = file.random.decide(missing, room, price, self.config.dense.investment) else { return };
        self.fetch(key, &[range], Class::Background, None, None);
        if let Some(f) = self.files.get_mut(&key) {
            f.streamed = true;
        }
    }

    fn room(&self) -> u64 {
        let unused = self.files.values().map(|f| f.view.unused_pages()).sum::<u64>() * PAGE;
        self.grant.room(unused, self.busy, &self.policy)
    }

    /// The program's own hint.
    fn advise(&mut self, key: FileKey, range: std::ops::Range<u64>) {
        let Some(size) = self.files.get(&key).map(|f| f.size) else { return };
        let range = range.start.min(size)..range.end.min(size);
        if !range.is_empty() {
            self.fetch(key, &[range], Class::Window, None, None);
        }
    }

    /// Plans and queues byte ranges of a file.
    fn fetch(
        &mut self,
        key: FileKey,
        ranges: &[std::ops::Range<u64>],
        class: Class,
        reader: Option<Arc<dyn Overtaken>>,
        descriptor: Option<(usize, u16)>,
    ) -> plan::Plan {
        let refused = |at| plan::Plan { refused_at: Some(at), ..plan::Plan::default() };
        let first = ranges.first().map_or(0, |r| r.start);
        if !self.grant.allowed {
            return refused(first);
        }
        let Some(handle) = self.handle(key) else { return plan::Plan::default() };
        self.learn(key, &handle, ranges, descriptor);
        let room = self.room();
        let now = self.now_us();
        let model = self.model(key.dev);
        let Some(file) = self.files.get(&key) else { return plan::Plan::default() };
        let terms = Terms { chunk: file.chunk.max(PAGE), gap: model.merge_gap(), room, size: file.size };
        let visible = self.config.view.cache_visibility && self.config.view.range_tree != RangeTree::Off;
        let plan = plan::plan(ranges, visible.then_some(&*file.view), terms, now);
        let requests = plan
            .requests
            .iter()
            .map(|r| Request {
                handle: handle.clone(),
                view: visible.then(|| file.view.clone()),
                range: r.clone(),
                reader: reader.clone(),
                account: file.account.clone(),
            })
            .collect();
        self.engine.submit(key.dev, class, requests);
        plan
    }

    /// Calibrates the view with cachestat before asking for `ranges`: what others have cached is present, and what was
    /// prefetched and has gone again was evicted too soon.
    fn learn(&mut self, key: FileKey, handle: &Arc<Handle>, ranges: &[std::ops::Range<u64>], descriptor: Option<(usize, u16)>) {
        if !self.config.view.cache_visibility {
            return;
        }
        let now = self.now_us();
        let Some(file) = self.files.get(&key) else { return };
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
            match calibrate(handle, &view, PageRange::from_bytes(r.start, r.end - r.start), now, &mut looks) {
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
        if !all && unused > 64 && let Some((i, fd)) = descriptor {
            self.check_eviction(key, handle, &view, ranges, i, fd);
        }
    }

    /// Whether what was prefetched just ahead of the reader is still there.
    fn check_eviction(
        &mut self,
        key: FileKey,
        handle: &Arc<Handle>,
        view: &FileView,
        ranges: &[std::ops::Range<u64>],
        i: usize,
        fd: u16,
    ) {
        let Some(desc) = self.procs[i].as_ref().and_then(|p| p.descs.get(&fd)) else { return };
        let Some(first) = ranges.first() else { return };
        let Some(s) = desc.detector.streams().iter().max_by_key(|s| s.reads) else { return };
        if !s.dense() {
            return;
        }
        let held = if s.stride > 0 { s.last + s.len..first.start } else { first.end..s.last };
        if held.start >= held.end || held.end - held.start > 256 << 20 {
            return;
        }
        let pages = PageRange::from_bytes(held.start, held.end - held.start);
        if !view.is_cached(pages) || view.in_flight_pages() * 2 > pages.len() {
            return;
        }
        if let Ok(stat) = cache::cachestat(handle.fd(), held)
            && stat.cached * 2 < pages.len()
        {
            self.lost_pages(key, pages);
            let limits = self.limits(key);
            if let Some(desc) = self.procs[i].as_mut().and_then(|p| p.descs.get_mut(&fd)) {
                desc.detector.shrink(&limits);
            }
        }
    }

    /// SPEC CP11: memory-mapped files.
    fn look_at_maps(&mut self) {
        self.last_map_look = Instant::now();
        let mut active = false;
        for i in self.active.clone() {
            let Some(state) = &mut self.procs[i] else { continue };
            if state.mapped.is_empty() {
                continue;
            }
            let pid = state.pid;
            let mut mapped = std::mem::take(&mut state.mapped);
            for m in &mut mapped {
                let (dev, ino) = m.file();
                let key = FileKey { dev, ino };
                let limits = self.limits(key);
                let Some(file) = self.files.get(&key) else { continue };
                let size = file.size;
                let Ok(touched) = m.look(pid) else {
                    if fetch::alive(pid) && !fetch::zombie(pid) {
                        self.header().lose(lost::PAGEMAP);
                    }
                    continue;
                };
                active |= !touched.is_empty();
                let mut ranges = Vec::new();
                for r in touched {
                    let arrival = self.seen(key, r.start, r.end - r.start);
                    let f = m.detector.access(r.start, r.end - r.start, 0, arrival, size, &limits);
                    ranges.extend(f.ranges);
                }
                if !ranges.is_empty() {
                    let out = self.fetch(key, &ranges, Class::Window, None, None);
                    if let Some(at) = out.refused_at {
                        m.detector.retreat(at);
                    }
                }
            }
            if let Some(state) = &mut self.procs[i] {
                mapped.append(&mut state.mapped);
                state.mapped = mapped;
            }
        }
        self.map_pause = if active {
            Duration::from_micros(500)
        } else {
            (self.map_pause * 2).min(Duration::from_millis(100))
        };
    }

    /// The program is over: makes the statistics final.
    fn finish(&mut self) {
        self.census();
        // Nothing of the program's is held from here on, so that it can be unmounted or removed at once.
        self.release_all();
        for i in self.active.clone() {
            if let Some(state) = &self.procs[i] {
                let record = self.record(i, state);
                self.header().dropped.fetch_add(record.events_dropped, Relaxed);
                self.header().calls_saved.fetch_add(record.calls_saved, Relaxed);
                self.ended.push(record);
            }
        }
        for file in self.files.values() {
            self.flush(file);
            let unused = file.view.unused_pages() * PAGE;
            self.header().total.wasted.fetch_add(unused, Relaxed);
            if let Some(s) = file.stat {
                self.shared.stat(s).wasted.fetch_add(unused, Relaxed);
            }
        }
        let models: Vec<_> = self.devices.keys().copied().map(|d| (d, self.engine.model(d))).collect();
        for (to, (dev, model)) in self.header().devices.iter().zip(models.iter().filter(|(_, m)| m.is_measured())) {
            to[0].store(*dev, Relaxed);
            to[1].store(model.latency_us as u64, Relaxed);
            to[2].store(model.bandwidth as u64, Relaxed);
        }
        self.shared.write_processes(&self.ended);
        self.header().finish.store(2, Release);
        raw::futex_wake(&self.header().finish, u32::MAX);
    }
}

/// Asks the kernel what of `pages` is cached and marks it present in `view`, dividing what is cached in part down to single
/// requests. Returns whether all of it is.
fn calibrate(
    handle: &Handle,
    view: &FileView,
    pages: PageRange,
    now: u64,
    looks: &mut u32,
) -> Result<bool, CacheStatError> {
    const SMALLEST: u64 = (128 << 10) / PAGE;
    const MOST: u32 = 128;
    *looks += 1;
    let cached = cache::cachestat(handle.fd(), pages.start * PAGE..pages.end * PAGE)?.cached;
    if cached >= pages.len() {
        view.present(pages, now);
        return Ok(true);
    }
    if cached > 0 && pages.len() > SMALLEST {
        let part = (pages.len() / 8).max(SMALLEST);
        let mut at = pages.start;
        while at < pages.end && *looks < MOST {
            let end = ((at / part + 1) * part).min(pages.end);
            calibrate(handle, view, PageRange::new(at, end), now, looks)?;
            at = end;
        }
    }
    Ok(false)
}

fn limits(config: &Config, grant: &Grant, mode: u32, streams: u64, quantum: u64) -> Limits {
    let largest = match mode {
        // Table 2: prediction alone keeps the kernel's limit.
        shm::MODE_PREDICT => 128 << 10,
        _ if grant.aggressive => config.window.max.0,
        _ => config.window.optimistic_open.0.max(config.window.initial.0),
    };
    let share = if grant.allowed { (grant.total / 2 / streams).max(config.budget.stream_minimum.0) } else { 0 };
    Limits {
        counter_bits: u32::from(config.predict.counter_bits),
        random_distance: config.predict.random_distance.0,
        max_streams: config.predict.max_streams as usize,
        initial: config.window.initial.0,
        max: largest.min(share).max(PAGE),
        quantum,
        skip_when_steady: config.predict.skip_when_steady,
    }
}
