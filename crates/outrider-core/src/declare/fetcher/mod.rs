//! The thread that fetches what was declared.
//!
//! It starts with the first list and sleeps on a futex whenever all that may be asked for was asked for. Signals are blocked in
//! it, so that the program's handlers run on the program's threads, and its descriptor table is its own, so that the program sees no
//! descriptor of ours and closing one drops none of its locks. Files are opened anew through /proc/self/fd, which shows the
//! table of the program's first thread.
//!
//! Nothing here may end the program: no panic, and what can't be had (memory, a thread, a descriptor, a system call) is
//! counted as a failure and left out.

mod device;
mod file;
mod loss;
mod readers;
mod round;
mod stream;
mod sweep;
mod turns;
mod writeback;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use outrider_sys::memory::MemorySources;
use outrider_sys::peers::Peers;
use outrider_sys::units::{ByteRange, DeviceId, PAGE};
use outrider_sys::{raw, threads};

use super::contention::Contention;
use super::explain::{Explain, Wishes};
use super::list::Entry;
use super::{Figure, Process};
use crate::budget;
use crate::clock::Monotonic;
use crate::config::Config;
use crate::engine::{self, Class, Engine, Request};
use crate::intent::Target;
use crate::lock;
use crate::plan::{Plan, Terms};
use crate::sharing::{DeviceSharing, System};
use crate::shm::{Notes, Proc};
use crate::view::{PageRange, Unused};
use device::Tried;
use file::{Belows, Own};
use round::Round;
use stream::Stream;
use turns::Turns;
use writeback::{Writeback, Writer};

/// Entries that are copied out of a list at a time: the lock is held for microseconds.
const BATCH: usize = 256;
/// Bytes queued in the engine beyond which no more are: the queue is in the order of need already, and each request costs memory.
const QUEUED: u64 = 8 << 20;
/// The same for a sweep whose program writes: it stops for what is written.
const QUEUED_BESIDE: u64 = 1 << 20;
/// Requests that are handed to the engine at a time: its lock and a worker's wake-up are paid once for all.
const TOGETHER: usize = 64;
/// Processes with fewer entries to read than this are not counted among those that share the memory.
const FEW: u64 = 256;
/// Memory that is left alone, as part of what [`contention::SHARE`](super::contention::SHARE) leaves: each processor takes 256 KiB in advance,
/// lists grow, and the kernel needs some for each page.
const SPARE: u64 = 1 << 20;
/// So much of the memory, as a part of it, is left at least to what a program writes beside a list that doesn't fit: it comes in bursts, and takes what
/// was fetched and not yet read.
const WRITTEN: u64 = 24;
/// Less than this that lies unused is none: what processors have taken in advance.
const NOTHING: u64 = SPARE / 2;
/// The fetcher looks up every so many bytes of progress, at least and at most.
const STEP: (u64, u64) = (128 << 10, 4 << 20);

/// How often the fetcher looks, µs, whether it is left alone after the program's first thread has ended.
const LEFT_ALONE_US: u64 = 100_000;

/// Starts the thread; `false` where that is not possible.
pub(super) fn start(process: &'static Process) -> bool {
    let wishes = Wishes::of_environment();
    let old = raw::set_signal_mask(threads::SIGNALS);
    let started = threads::start(c"outrider", 256 << 10, move || {
        // SAFETY: gives this thread a table of its own and closes what it holds there; no other thread notices.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_close_range,
                3,
                u32::MAX as usize,
                libc::CLOSE_RANGE_UNSHARE as usize,
                0,
                0,
                0,
            )
        };
        if r < 0 {
            process.fetcher_failed();
            return;
        }
        Fetcher::new(process, wishes).run();
        if let Some(proc) = process.proc() {
            proc.lists.held.store(0, Relaxed);
        }
        process.fetcher_ended.store(true, SeqCst);
        raw::futex_wake(&process.release_done, u32::MAX);
    });
    raw::set_signal_mask(old);
    started
}

/// The shared memory, for an engine that wants to hold it.
struct NotesRef(&'static Notes);

impl AsRef<Notes> for NotesRef {
    fn as_ref(&self) -> &Notes {
        self.0
    }
}

/// A place in a list: an entry's number, and bytes of it.
type Place = (u64, u32);

/// How far a list was worked off.
#[derive(Default)]
struct Walk {
    generation: u32,
    epoch: u32,
    /// What lies before this was asked for or found cached.
    front: Place,
    /// The program was last seen here.
    seen: Place,
    /// Bytes between the two.
    ahead: u64,
    /// Entries before this one were counted as cached or not.
    counted: u64,
    /// Bytes that the program went on since the buffer's size was last looked at.
    used_since: u64,
    /// Bytes of entries that the stream asked for nothing of, since it last told of them.
    skipped: u64,
    /// Fetched pages were lost of what lies before this entry.
    short_until: u64,
    /// Pages that were gone when the program came to them, since memory was last found short or a round began.
    missed: u64,
    /// Bytes that the buffer might take while what the stream holds was fetched, at most.
    memory: u64,
    /// The disk for which the order was chosen, and whether the file system lies on several.
    disk: DeviceId,
    several: bool,
    /// The list is another one than that for which the order was chosen.
    anew: bool,
    order: Order,
    /// Memory didn't hold what was to be read, of this list or of one before it.
    exceeds: bool,
    writeback: Writeback,
}

impl Walk {
    /// Whether the program still reads what was fetched when pages were lost.
    fn is_short(&self) -> bool {
        self.seen.0 < self.short_until
    }
}

/// In which order a list is fetched; see [`plan`](crate::plan).
#[derive(Default)]
enum Order {
    /// Not known: too little was missing to measure the device.
    #[default]
    Unknown,
    /// In the order of need.
    Stream(Stream),
    /// Sorted by place.
    Rounds(Round),
}

/// Pages of a file.
#[derive(Clone, Copy)]
struct Span {
    file: u16,
    generation: u32,
    pages: PageRange,
}

impl Span {
    fn of(p: &Piece) -> Span {
        Span {
            file: p.file,
            generation: p.generation,
            pages: PageRange::from_bytes(p.offset, u64::from(p.length)),
        }
    }

    fn bytes(&self) -> u64 {
        self.pages.len() * PAGE
    }

    /// The page that it begins on.
    fn key(&self) -> u64 {
        key_of(self.file, self.pages.start)
    }
}

struct Fetcher {
    process: &'static Process,
    engine: Engine,
    batch: Batch,
    config: Config,
    files: HashMap<u16, Own>,
    /// What all of these hold that was not read, and bytes that were handed to the kernel for them and not counted yet: summed as it comes about.
    unused: Arc<Unused>,
    issued: Arc<AtomicU64>,
    walks: HashMap<usize, Walk>,
    memory: MemorySources,
    contention: Contention,
    /// All who fetch what they have declared into the same memory.
    peers: Option<Peers>,
    turns: Turns,
    /// What was lately mapped of the page cache, bytes.
    mapped: u64,
    /// Memory that lately was taken by what is dirty of the files, bytes: beside what a stream holds, and beyond what a round may.
    dirty: u64,
    /// What of the files was dirty or on its way to the device when it was last counted, bytes.
    unwritten: u64,
    /// The least of it since a sweep waits for it, and since when it was no less.
    waits: Option<(u64, Instant)>,
    /// Bytes of rounds that were used up since it was counted: so much may have been written meanwhile.
    used_up: u64,
    writer: Writer,
    /// Who else reads from the devices.
    sharing: DeviceSharing,
    system: System,
    /// Bytes yet to be fetched until the cache that others had left when this began has made room. Until then the kernel takes pages of ours as
    /// well, which says nothing of how much memory there is.
    stale: u64,
    stock: Instant,
    checked: Instant,
    start: Instant,
    notes: &'static Notes,
    wishes: Wishes,
    /// Devices that could not be measured well yet.
    tried: HashMap<DeviceId, Tried>,
    below: Belows,
    explain: Explain,
}

/// What is about to be handed to the engine.
#[derive(Default)]
struct Batch {
    /// A device, and what is to be fetched of it.
    device: DeviceId,
    requests: Vec<Request>,
    /// A file that lies there, and what is planned of it behind that.
    file: u16,
    plan: Plan,
}

/// Part of an entry that is to be fetched.
#[derive(Clone, Copy)]
struct Piece {
    n: u64,
    file: u16,
    generation: u32,
    offset: u64,
    length: u32,
    read: bool,
}

impl Fetcher {
    fn new(process: &'static Process, mut wishes: Wishes) -> Fetcher {
        let notes = match process.proc() {
            Some(proc) => &proc.notes,
            // These are read by nobody.
            None => Box::leak(Box::default()),
        };
        let config = notes.configured();
        let memory = MemorySources::of_this_process();
        let contention = Contention::new(memory.read().headroom());
        let clock = Monotonic::begin();
        let mut fetcher = Fetcher {
            process,
            engine: Engine::new(
                engine::Settings::of(&config, engine::Kind::Auto),
                Arc::new(NotesRef(notes)),
                clock,
            ),
            batch: Batch::default(),
            config,
            files: HashMap::new(),
            unused: Arc::default(),
            issued: Arc::default(),
            walks: HashMap::new(),
            peers: Peers::of(&memory.shared_file()),
            turns: Turns::default(),
            mapped: 0,
            dirty: 0,
            unwritten: 0,
            waits: None,
            used_up: 0,
            writer: Writer::default(),
            sharing: DeviceSharing::default(),
            system: System::new(clock),
            stale: 0,
            memory,
            contention,
            stock: Instant::now(),
            checked: Instant::now(),
            start: Instant::now(),
            notes,
            tried: HashMap::new(),
            below: Belows::default(),
            explain: Explain::new(wishes.explain.take()),
            wishes,
        };
        let bell = &process.bell;
        fetcher.engine.when_low(
            QUEUED / 2,
            Box::new(move || {
                bell.fetch_add(1, SeqCst);
                raw::futex_wake(bell, 1);
            }),
        );
        fetcher.take_stock();
        let memory = fetcher.memory.read();
        let old = memory.headroom().saturating_sub(memory.unused());
        fetcher.stale = old.min(fetcher.contention.limit());
        fetcher
    }

    fn run(&mut self) {
        loop {
            let bell = self.process.bell.load(SeqCst);
            self.let_go();
            if self.process.is_off() {
                return;
            }
            if self.round() {
                continue;
            }
            let nap = self.turns.nap();
            if nap.is_none() {
                self.process.settled.store(bell, SeqCst);
            }
            self.process.sleeping.store(1, SeqCst);
            while self.process.bell.load(SeqCst) == bell {
                let left_alone = self.process.leader_ended.load(SeqCst);
                let nap = nap.or(left_alone.then_some(LEFT_ALONE_US));
                let look = self.engine.is_busy();
                let look = look.then(|| self.sharing.pause().as_micros() as u64);
                if look.is_none() {
                    // Nobody looks who reads.
                    self.process.rooms.set(&[]);
                }
                match nap.into_iter().chain(look).min() {
                    Some(us) => raw::futex_wait(&self.process.bell, bell, us),
                    None => raw::futex_wait_forever(&self.process.bell, bell),
                };
                self.look_at_sharing();
                if nap.is_some() {
                    break;
                }
            }
            self.process.sleeping.store(0, SeqCst);
            if self.process.leader_ended.load(SeqCst) && threads::are_left_alone() {
                lock(&self.process.state).off = true;
                return;
            }
        }
    }

    /// Closes everything, if that is wanted; what is needed is opened again later.
    fn let_go(&mut self) {
        let wanted = self.process.release_wanted.load(SeqCst);
        if wanted != self.process.release_done.load(SeqCst) {
            self.engine.drain();
            self.files.clear();
            self.below = Belows::default();
            let until_us = self.process.release_until_us.load(SeqCst);
            let rest = || Duration::from_micros(until_us.saturating_sub(raw::monotonic_us()));
            self.engine.settle(rest());
            self.writer.settle(rest());
            self.hide();
            self.process.release_done.store(wanted, SeqCst);
            raw::futex_wake(&self.process.release_done, u32::MAX);
        }
    }

    fn take_stock(&mut self) {
        self.stock = Instant::now();
        let all = self.peers.as_ref().map_or(1, Peers::count).max(1);
        let memory = self.memory.read();
        // Programs' text that was reclaimed comes back: what was mapped lately counts, too.
        self.mapped = memory.mapped().max(self.mapped - self.mapped / 16);
        let headroom = memory.headroom();
        // What is mapped may be data as well, used once.
        let text = self.mapped.min(headroom / 2);
        // Dirty pages come and go in bursts: those that have just been written back come again. What a round's program writes while it uses up what
        // the round has brought takes the place of that, and is written back before it is full again.
        self.dirty -= self.dirty / 16;
        let now = memory.tightest().map_or(0, |group| group.dirty);
        if self.unwritten > 0 {
            self.dirty = self.dirty.max(headroom / WRITTEN);
        }
        let written = self.dirty.saturating_sub(now).min(headroom / 2);
        let goes = self.unwritten.min(now).saturating_sub(self.dirty);
        let free = (headroom - text).saturating_sub(written) + goes;
        self.contention.available(free / all);
        self.contention.bound(free.saturating_sub(SPARE) / all);
        let kept = self.process.proc().map_or(0, Proc::kept_from_lists);
        self.contention.leave(kept / all);
        if let Some(bound) = self.config.budget.memory {
            self.contention.bound(bound.bytes().saturating_sub(kept));
        }
        self.process.memory.store(self.contention.limit(), Relaxed);
    }

    /// Bytes that each of `lists` lists may hold.
    fn share(&self, lists: u64) -> u64 {
        self.contention.limit() / lists.max(1)
    }

    /// Tells the service what is held of its memory.
    fn tell_held(&self) {
        if let Some(proc) = self.process.proc() {
            let held = self.unused.pages().saturating_mul(PAGE);
            proc.lists.held.store(held, Relaxed);
        }
    }

    /// One look at everything; `true` if there may be more to do at once.
    fn round(&mut self) -> bool {
        if self.stock.elapsed() >= Duration::from_millis(200) {
            self.take_stock();
        }
        self.close_forgotten();
        let issued = self.issued.swap(0, Relaxed);
        self.stale = self.stale.saturating_sub(issued);
        self.process.count(Figure::Fetched, issued);
        let mut pending = 0;
        let sources: Vec<usize> = {
            let state = lock(&self.process.state);
            let live = state.sources.iter().enumerate();
            let live = live.filter_map(|(i, s)| s.as_ref().map(|s| (i, s)));
            live.map(|(i, s)| {
                pending += s.list.pending();
                i
            })
            .collect()
        };
        if let Some(peers) = &mut self.peers {
            peers.join(pending >= FEW);
        }
        let process = self.process;
        self.walks.retain(|i, _| sources.binary_search(i).is_ok());
        if sources.is_empty() {
            self.nothing_written();
        }
        self.turns.begin(&sources);
        let lists = sources.len() as u64;
        let share = self.share(lists);
        let mut more = false;
        for index in sources {
            let mut walk = self.walks.remove(&index).unwrap_or_default();
            self.follow(index, &mut walk);
            self.look_after(index, &mut walk);
            self.write_behind(&mut walk, share);
            if budget::is_nothing(self.config.budget.memory.map(|memory| memory.0)) {
                self.walks.insert(index, walk);
                continue;
            }
            if std::mem::take(&mut walk.anew) && self.is_elsewhere(index, &walk) {
                walk.order = Order::Unknown;
            }
            if matches!(walk.order, Order::Unknown) {
                if !self.choose(index, &mut walk) {
                    self.walks.insert(index, walk);
                    continue;
                }
                if matches!(walk.order, Order::Stream(_)) && self.is_dense(index, &walk, share) {
                    walk.order = Order::Rounds(Round::lone());
                }
            }
            self.look_around(index, &mut walk);
            more |= match walk.order {
                Order::Rounds(_) => self.sweep(index, &mut walk, lists),
                _ => self.advance(index, &mut walk, share),
            };
            self.explain.flush();
            self.walks.insert(index, walk);
        }
        self.tell_held();
        process.busy.store(u32::from(self.engine.is_busy()), SeqCst);
        more
    }

    /// Files that the program has closed or taken back are let go.
    fn close_forgotten(&mut self) {
        let mut state = lock(&self.process.state);
        let gone: Option<Vec<u16>> = state.gone().map(Iterator::collect);
        let is_kept = |file: &u16, own: &Own| {
            let known = state.file(*file);
            let kept = known.is_some_and(|f| f.generation == own.generation);
            if !kept {
                own.account.cancelled.store(true, Relaxed);
            }
            kept
        };
        match gone {
            Some(numbers) => {
                for file in numbers {
                    let own = self.files.get(&file);
                    if own.is_some_and(|own| !is_kept(&file, own)) {
                        self.files.remove(&file);
                    }
                }
            }
            None => self.files.retain(|file, own| is_kept(file, own)),
        }
        if self.files.is_empty() {
            self.below = Belows::default();
        }
    }

    /// Looks where the program is now.
    fn follow(&mut self, index: usize, walk: &mut Walk) {
        loop {
            let mut pieces: Vec<Piece> = Vec::new();
            let at = {
                let mut state = lock(&self.process.state);
                let Some(source) = state.source(index) else {
                    return;
                };
                if walk.generation != source.generation || walk.epoch != source.list.epoch() {
                    let here = (source.list.at(), source.list.within());
                    let short = walk.short_until.saturating_sub(walk.seen.0);
                    let left = match walk.generation == source.generation {
                        true => walk.seen.0,
                        false => source.left.unwrap_or(walk.seen.0),
                    };
                    *walk = Walk {
                        generation: source.generation,
                        epoch: source.list.epoch(),
                        front: here,
                        seen: here,
                        counted: walk.counted.max(here.0),
                        short_until: here.0 + short,
                        disk: walk.disk,
                        several: walk.several,
                        anew: walk.generation != source.generation,
                        exceeds: walk.exceeds,
                        order: std::mem::take(&mut walk.order).restarted(left, here.0),
                        ..Walk::default()
                    };
                }
                let at = (source.list.at(), source.list.within());
                let upto = walk.seen.0.saturating_add(BATCH as u64).min(at.0);
                for n in walk.seen.0..upto {
                    if let Some(e) = source.list.get(n) {
                        pieces.push(Piece::of(n, e));
                    }
                }
                source.seen = upto;
                source.list.release(upto);
                if upto < at.0 { (upto, 0) } else { at }
            };
            let last = at.0 == walk.seen.0 || pieces.len() < BATCH;
            for p in &pieces {
                if p.n >= walk.front.0 {
                    self.overtaken(index, walk, p);
                }
                self.passed(p, walk);
            }
            // Of the entry that is being read.
            if walk.front.0 == walk.seen.0.max(at.0) || at.0 < walk.front.0 {
                let from = if at.0 == walk.seen.0 { walk.seen.1 } else { 0 };
                walk.ahead = walk
                    .ahead
                    .saturating_sub(u64::from(at.1.saturating_sub(from)));
            }
            walk.seen = at;
            if walk.front < at {
                walk.front = at;
                walk.ahead = 0;
            }
            if last {
                return;
            }
        }
    }

    /// The program has read an entry, or skipped it.
    fn passed(&mut self, p: &Piece, walk: &mut Walk) {
        if p.n < walk.front.0 {
            let done = if p.n == walk.seen.0 { walk.seen.1 } else { 0 };
            walk.ahead = walk
                .ahead
                .saturating_sub(u64::from(p.length.saturating_sub(done)));
        }
        walk.used_since = walk.used_since.saturating_add(u64::from(p.length));
        if !p.read {
            return;
        }
        let now = self.start.elapsed().as_micros() as u64;
        if let Some(own) = self.files.get(&p.file)
            && own.view.unused_pages() > 0
        {
            let pages = PageRange::from_bytes(p.offset, u64::from(p.length));
            let access = own.view.access(pages, now);
            self.process
                .count(Figure::Used, access.first_use_pages * PAGE);
        }
    }

    /// What lies at the front; `None` if the list is another one by now.
    fn next_pieces(&self, index: usize, walk: &Walk) -> Option<Vec<Piece>> {
        let mut state = lock(&self.process.state);
        let mut pieces = Vec::new();
        let source = state.source(index)?;
        if source.generation != walk.generation || source.list.epoch() != walk.epoch {
            return None;
        }
        let end = source.ready.min(walk.front.0 + BATCH as u64);
        for n in walk.front.0..end {
            let Some(e) = source.list.get(n) else { break };
            let mut p = Piece::of(n, e);
            if n == walk.front.0 {
                let done = walk.front.1.min(p.length);
                p.offset += u64::from(done);
                p.length -= done;
            }
            pieces.push(p);
        }
        for p in &mut pieces {
            p.generation = state.file(p.file).map_or(0, |f| f.generation);
        }
        Some(pieces)
    }

    /// Says that there is something to do again once the program has gone on by `step` bytes.
    fn wake_at(&self, index: usize, walk: &Walk, step: u64) {
        let step = step.clamp(STEP.0, STEP.1);
        let mut state = lock(&self.process.state);
        let Some(source) = state.source(index) else {
            return;
        };
        if source.generation != walk.generation || source.list.epoch() != walk.epoch {
            self.process.bell.fetch_add(1, SeqCst);
            return;
        }
        let list = &source.list;
        if list.at() == list.end() && walk.seen.0 < list.end() {
            // It has come to the end meanwhile, and won't ring again.
            self.process.bell.fetch_add(1, SeqCst);
        }
        let (mut at, mut within) = (list.at(), list.within());
        let mut sum = 0;
        let wake = loop {
            let Some(e) = list.get(at) else {
                break (list.end(), 0);
            };
            let rest = e.length.saturating_sub(within);
            if sum + u64::from(rest) > step {
                break (at, within.saturating_add((step - sum) as u32));
            }
            sum += u64::from(rest);
            at += 1;
            within = 0;
        };
        source.wake_at = wake;
    }

    /// Has runs of pages of a file fetched, with others that follow, in the order of need; gaps of up to so many bytes are read through.
    /// [`Fetcher::hand_over`] comes after the last ones.
    fn fetch(&mut self, file: u16, runs: &[PageRange], gap: u64) {
        let Some(dev) = self.files.get(&file).map(|o| o.dev) else {
            return;
        };
        if self.batch.device != dev {
            self.hand_over();
            self.batch.device = dev;
        }
        if self.batch.file != file {
            self.close_plan();
            self.batch.file = file;
        }
        let now = self.start.elapsed().as_micros() as u64;
        let Some(own) = self.files.get(&file).filter(|o| o.handle.is_some()) else {
            return;
        };
        let bytes = |pages: &PageRange| pages.start * PAGE..pages.end * PAGE;
        let ranges: Vec<ByteRange> = runs.iter().map(bytes).collect();
        let Target::Ranges(_, wanted) = own.intent(&ranges).target else {
            return;
        };
        let terms = Terms {
            chunk: own.chunk,
            gap,
            room: u64::MAX,
            size: u64::MAX,
        };
        let plan = &mut self.batch.plan;
        plan.add(wanted, Some(&own.view), terms, now);
        if plan.requests.len() + self.batch.requests.len() >= TOGETHER {
            self.hand_over();
        }
    }

    /// What is planned of a file becomes requests.
    fn close_plan(&mut self) {
        let plan = std::mem::take(&mut self.batch.plan);
        let own = self.files.get(&self.batch.file);
        if let Some((own, handle)) = own.and_then(|own| Some((own, own.handle.as_ref()?))) {
            let requests = plan.requests.into_iter().map(|range| Request {
                handle: handle.clone(),
                view: Some(own.view.clone()),
                range,
                reader: None,
                account: own.account.clone(),
            });
            self.batch.requests.extend(requests);
        }
    }

    /// Hands what was asked for to the engine.
    fn hand_over(&mut self) {
        self.close_plan();
        if !self.batch.requests.is_empty() {
            let requests = std::mem::take(&mut self.batch.requests);
            self.begin_sharing(self.batch.device, &requests);
            self.engine
                .submit(self.batch.device, Class::Window, requests);
        }
    }
}

impl Order {
    fn of(rounds: bool) -> Order {
        match rounds {
            true => Order::Rounds(Round::default()),
            false => Order::Stream(Stream::default()),
        }
    }

    /// For another list of the same client, at entry `to` where the one before was at `from`: what was fetched stays known, and most lists go on as the
    /// one before would have.
    fn restarted(self, from: u64, to: u64) -> Order {
        match self {
            Order::Rounds(round) => Order::Rounds(round.doubtful(from, to)),
            Order::Stream(Stream { until: Some(_), .. }) => self.swept(),
            Order::Stream(stream) => Order::Stream(Stream {
                held: stream.held,
                ..Stream::default()
            }),
            Order::Unknown => Order::Unknown,
        }
    }

    /// From rounds, whose last one ended at `front`, to a stream up to entry `until`. What they hold is given up when the program is at the front.
    fn streamed(self, front: u64, until: u64) -> Order {
        let mut stream = Stream {
            until: Some(until),
            ..Stream::default()
        };
        if let Order::Rounds(round) = self {
            for (key, held) in round.held {
                stream.held.insert(key, held.span);
                stream.give_up(key, front);
            }
        }
        Order::Stream(stream)
    }

    /// From rounds to the order of need, or the other way, where the list goes on on another disk. What is held stays known.
    fn turned(self, front: u64, rounds: bool) -> Order {
        match self {
            Order::Rounds(_) if !rounds => match self.streamed(front, front) {
                Order::Stream(stream) => Order::Stream(Stream {
                    until: None,
                    ..stream
                }),
                other => other,
            },
            Order::Stream(_) if rounds => self.swept(),
            other => other,
        }
    }

    /// Back from such a stream to rounds.
    fn swept(self) -> Order {
        let mut round = Round::default();
        if let Order::Stream(stream) = self {
            for span in stream.held.into_values() {
                round.hold(span, 0);
            }
        }
        Order::Rounds(round)
    }
}

fn pages_of(e: &Entry) -> PageRange {
    PageRange::from_bytes(e.offset, u64::from(e.length))
}

/// The page that an entry begins on.
fn key(e: Entry) -> Option<u64> {
    (e.length > 0).then_some(key_of(e.file, e.offset / PAGE))
}

/// A page of a file as one number.
fn key_of(file: u16, page: u64) -> u64 {
    u64::from(file) << 48 | page
}

impl Piece {
    /// The page that it begins on.
    fn key(&self) -> u64 {
        key_of(self.file, self.offset / PAGE)
    }

    fn of(n: u64, e: Entry) -> Piece {
        Piece {
            n,
            file: e.file,
            generation: 0,
            offset: e.offset,
            length: e.length,
            read: e.read,
        }
    }
}
