//! The thread that fetches what was declared.
//!
//! It starts with the first list and sleeps on a futex whenever all that may be asked for was asked for. Signals are blocked in
//! it, so that the program's handlers run on the program's threads, and its descriptor table is its own, so that the program sees no
//! descriptor of ours and closing one drops none of its locks. Files are opened anew through /proc/self/fd, which shows the
//! table of the program's first thread.
//!
//! Nothing here may end the program: no panic, and what can't be had (memory, a thread, a descriptor, a system call) is
//! counted as a failure and left out.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use outrider_sys::cache;
use outrider_sys::device::Device;
use outrider_sys::extent::{self, Extent};
use outrider_sys::memory::MemorySources;
use outrider_sys::raw;

use super::contention::{Contention, is_shortage};
use super::explain::{Explain, Wishes};
use super::list::Entry;
use super::order::{self, Belady, Item, Links, Unique};
use super::{Figure, Process, lock};
use crate::config::Config;
use crate::engine::{self, Account, Class, Engine, Handle, Request};
use crate::fetch;
use crate::shm::Header;
use crate::view::{FileView, Granularity, PAGE_BYTES, PageRange, Residency};

/// Entries that are copied out of a list at a time: the lock is held for microseconds.
const BATCH: usize = 256;
/// Bytes queued in the engine beyond which no more are: the queue is in the order of need already, and each request costs memory.
const QUEUED: u64 = 8 << 20;
/// The fetcher looks up every so many bytes of progress, at least and at most.
const STEP: (u64, u64) = (128 << 10, 4 << 20);
/// Entries of one round at most: their pages are sorted in memory of 16 bytes each.
const ROUND_ENTRIES: usize = 1 << 19;
/// Entries that the program is past what is given up, since threads may be a little behind.
const SLACK: u64 = 4;
/// Extents that are remembered of one file.
const EXTENTS: usize = 1 << 16;
/// A device that answers a lone request within this many µs has no head, and nothing is won by sorting (flash: 50 to 200 µs; a
/// tenth of a disk's seek: 800).
const NO_HEAD_US: f64 = 300.0;
/// Requests that are made at once to see whether a device works on them in parallel.
const AT_ONCE: usize = 16;
/// Gaps up to this many bytes are read through on a disk with a head (libprefetch section 3.3, Figure 3).
const INFILL: u64 = 32 << 10;
/// Fetched pages are looked after so often at most.
const CHECK: Duration = Duration::from_millis(5);
/// Entries that are looked at for lost pages, spread over the window.
const SAMPLES: u64 = 1024;
/// Views of one file may take so many bytes.
const VIEW_BYTES: usize = 8 << 20;

/// Starts the thread; `false` where that is not possible.
pub(super) fn start(process: &'static Process) -> bool {
    // All but those that the C library uses itself (to change the user of all threads, and to cancel one).
    const KEPT: u64 = 1 << (32 - 1) | 1 << (33 - 1);
    let wishes = Wishes::of_environment();
    let old = raw::set_signal_mask(!KEPT);
    let started = std::thread::Builder::new()
        .name("outrider".into())
        .stack_size(256 << 10)
        .spawn(move || {
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
        });
    raw::set_signal_mask(old);
    started.is_ok()
}

/// The shared memory, for an engine that wants to hold it.
struct HeaderRef(&'static Header);

impl AsRef<Header> for HeaderRef {
    fn as_ref(&self) -> &Header {
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
    /// Fetched pages were lost in this round or window.
    lossy: bool,
    order: Order,
}

/// In which order a list is fetched; see `order`.
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

#[derive(Default)]
struct Stream {
    /// What is kept and given up, from this entry on, where the list is larger than memory.
    belady: Option<(u64, Belady)>,
    /// The list up to this entry takes so many bytes at most, which there are.
    fits: (u64, u64),
    /// To be given up when the program has passed the entry.
    due: VecDeque<(u64, Span)>,
    due_bytes: u64,
}

#[derive(Default)]
struct Round {
    items: Vec<Item>,
    issued: usize,
    /// First entry behind it, and when the next one is begun.
    end: u64,
    renew: u64,
    /// What we have fetched and not given up yet, oldest first.
    held: VecDeque<Span>,
    held_pages: u64,
    /// Where the last sweep ended.
    place: u64,
    begun: bool,
    /// On a device without a head: the one sweep over a dense list that fits in memory, after which it is streamed.
    lone: bool,
}

/// Pages of a file.
#[derive(Clone, Copy)]
struct Span {
    file: u16,
    generation: u32,
    pages: PageRange,
}

/// What was measured of a device.
#[derive(Clone, Copy)]
struct Manner {
    rounds: bool,
    latency_us: f64,
}

struct Own {
    generation: u32,
    handle: Option<Arc<Handle>>,
    dev: u64,
    ino: u64,
    size: u64,
    chunk: u64,
    view: Arc<FileView>,
    account: Arc<Account>,
    /// The kernel says what is cached.
    visible: bool,
    /// Where it lies on its device, once that was asked.
    extents: Option<Vec<Extent>>,
}

struct Fetcher {
    process: &'static Process,
    engine: Engine,
    config: Config,
    files: HashMap<u16, Own>,
    walks: HashMap<usize, Walk>,
    memory: MemorySources,
    contention: Contention,
    stock: Instant,
    checked: Instant,
    start: Instant,
    header: &'static Header,
    wishes: Wishes,
    manners: HashMap<u64, Manner>,
    explain: Explain,
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
        let header = process.header().unwrap_or_else(|| {
            // Zeroed memory is a valid header; this one is read by nobody.
            Box::leak(Header::private())
        });
        let config = header.configured();
        let memory = MemorySources::of_this_process();
        let contention = Contention::new(memory.read().headroom());
        let mut fetcher = Fetcher {
            process,
            engine: Engine::new(
                engine::Settings::of(&config, engine::Kind::Auto),
                Arc::new(HeaderRef(header)),
            ),
            config,
            files: HashMap::new(),
            walks: HashMap::new(),
            memory,
            contention,
            stock: Instant::now(),
            checked: Instant::now(),
            start: Instant::now(),
            header,
            manners: HashMap::new(),
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
            self.process.settled.store(bell, SeqCst);
            self.process.sleeping.store(1, SeqCst);
            if self.process.bell.load(SeqCst) == bell {
                raw::futex_wait_forever(&self.process.bell, bell);
            }
            self.process.sleeping.store(0, SeqCst);
        }
    }

    /// Closes everything, if that is wanted; what is needed is opened again later.
    fn let_go(&mut self) {
        let wanted = self.process.release_wanted.load(SeqCst);
        if wanted != self.process.release_done.load(SeqCst) {
            self.engine.drain();
            self.files.clear();
            self.engine.settle(Duration::from_millis(200));
            self.process.release_done.store(wanted, SeqCst);
            raw::futex_wake(&self.process.release_done, u32::MAX);
        }
    }

    fn take_stock(&mut self) {
        self.stock = Instant::now();
        let memory = self.memory.read();
        let lists = {
            let state = lock(&self.process.state);
            let lists = state.sources.iter().flatten();
            lists.map(|s| s.list.memory() as u64).sum::<u64>()
        };
        self.contention
            .available(memory.headroom().saturating_sub(lists));
        if let Some(bound) = self.config.budget.memory {
            self.contention.bound(bound.bytes());
        }
    }

    /// One look at everything; `true` if there may be more to do at once.
    fn round(&mut self) -> bool {
        if self.stock.elapsed() >= Duration::from_millis(200) {
            self.take_stock();
        }
        self.close_forgotten();
        for own in self.files.values() {
            let issued = own.account.issued.swap(0, Relaxed);
            self.process.count(Figure::Fetched, issued);
        }
        let sources: Vec<usize> = {
            let state = lock(&self.process.state);
            let n = state.sources.len();
            (0..n)
                .filter(|i| state.sources.get(*i).is_some_and(Option::is_some))
                .collect()
        };
        let process = self.process;
        self.walks.retain(|i, _| sources.contains(i));
        let share = self.contention.limit() / (sources.len() as u64).max(1);
        let mut more = false;
        for index in sources {
            let mut walk = self.walks.remove(&index).unwrap_or_default();
            self.follow(index, &mut walk);
            self.look_after(index, &mut walk);
            if matches!(walk.order, Order::Unknown) {
                self.choose(index, &mut walk);
                if matches!(walk.order, Order::Stream(_)) && self.is_dense(index, &walk, share) {
                    walk.order = Order::Rounds(Round {
                        lone: true,
                        ..Round::default()
                    });
                }
            }
            more |= match walk.order {
                Order::Rounds(_) => self.sweep(index, &mut walk, share),
                _ => self.advance(index, &mut walk, share),
            };
            self.explain.flush();
            self.walks.insert(index, walk);
        }
        process.busy.store(u32::from(self.engine.is_busy()), SeqCst);
        more
    }

    /// Files that the program has closed or taken back are let go.
    fn close_forgotten(&mut self) {
        let state = lock(&self.process.state);
        self.files.retain(|file, own| {
            let kept = state
                .file(*file)
                .is_some_and(|f| f.generation == own.generation);
            if !kept {
                own.account.cancelled.store(true, Relaxed);
                self.process
                    .count(Figure::Fetched, own.account.issued.swap(0, Relaxed));
            }
            kept
        });
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
                    *walk = Walk {
                        generation: source.generation,
                        epoch: source.list.epoch(),
                        front: here,
                        seen: here,
                        counted: walk.counted.max(here.0),
                        order: std::mem::take(&mut walk.order).restarted(),
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
                .count(Figure::Used, access.first_use_pages * PAGE_BYTES);
        }
    }

    /// Asks for what comes next in the order of need, with `room` bytes of memory. `true` if there is more to do at once.
    fn advance(&mut self, index: usize, walk: &mut Walk, room: u64) -> bool {
        self.give_up_due(walk);
        self.end_window(walk, room);
        let lead = (room / 8).clamp(STEP.0, 2 * STEP.1).min(room / 2);
        let mut looked = 0;
        loop {
            let held = match &walk.order {
                Order::Stream(Stream {
                    belady: Some((_, b)),
                    due_bytes,
                    ..
                }) => b.bytes() + due_bytes,
                _ => walk.ahead,
            };
            // At the low mark the engine rings.
            if held >= room || self.engine.queued_bytes() >= QUEUED {
                self.wake_at(index, walk, room);
                return false;
            }
            if looked >= 16 * BATCH {
                return true;
            }
            let Some(pieces) = self.next_pieces(index, walk) else {
                return true;
            };
            if pieces.is_empty() {
                self.wake_at(index, walk, room);
                return false;
            }
            if !self.plan_memory(index, walk, room) {
                return true;
            }
            looked += pieces.len();
            let mut last = None;
            let mut run = None;
            for p in pieces {
                let left = room.saturating_sub(walk.ahead).max(STEP.0);
                let length = u64::from(p.length).min(left) as u32;
                let this = (p.file, p.offset, length);
                // The same once more has just been looked at.
                let fetched = match last.replace(this) == Some(this) {
                    true => 0,
                    false => self.want(&p, length, p.n >= walk.counted, &mut run),
                };
                walk.ahead += u64::from(length);
                if length < p.length {
                    walk.front = (p.n, walk.front.1.saturating_add(length));
                    break;
                }
                walk.front = (p.n + 1, 0);
                walk.counted = walk.counted.max(p.n + 1);
                self.keep(index, walk, &p, fetched > 0, room - lead);
                let full = match &walk.order {
                    Order::Stream(Stream {
                        belady: Some((_, b)),
                        due_bytes,
                        ..
                    }) => b.bytes() + due_bytes >= room,
                    _ => walk.ahead >= room,
                };
                if full {
                    break;
                }
            }
            if let Some((file, pages)) = run {
                self.request(file, &[pages]);
            }
        }
    }

    /// Sees to it that the stretch at the front is linked, if the list doesn't fit in memory.
    fn plan_memory(&mut self, index: usize, walk: &mut Walk, room: u64) -> bool {
        let (epoch, generation, front) = (walk.epoch, walk.generation, walk.front.0);
        let Order::Stream(stream) = &mut walk.order else {
            return true;
        };
        if let Some((base, belady)) = &stream.belady {
            if front < base + belady.len() as u64 {
                return true;
            }
            stream.belady = None;
        }
        let mut state = lock(&self.process.state);
        let Some(source) = state.source(index) else {
            return false;
        };
        if source.generation != generation || source.list.epoch() != epoch {
            return false;
        }
        let list = &source.list;
        let bytes = |range: std::ops::Range<u64>, so_far: u64| {
            let mut sum = so_far;
            let fits = range.into_iter().all(|n| {
                sum += list.get(n).map_or(0, |e| u64::from(e.length));
                sum <= room
            });
            fits.then_some(sum)
        };
        // Only what is new is added up; what was read meanwhile can only make it less.
        let (known, so_far) = stream.fits;
        let sum = if (front..=source.ready).contains(&known) && so_far <= room {
            bytes(known..source.ready, so_far)
        } else {
            None
        };
        let sum = sum.or_else(|| bytes(front..source.ready, walk.ahead));
        let n = source
            .ready
            .saturating_sub(front)
            .min(super::LIST_MAX as u64);
        if let Some(sum) = sum {
            stream.fits = (source.ready, sum);
        } else if n > 1 {
            stream.belady = Links::new(n as usize, |i| list.get(front + i as u64).and_then(key))
                .and_then(Belady::new)
                .map(|b| (front, b));
        }
        true
    }

    /// The stream has passed an entry: decides what is kept.
    fn keep(&mut self, index: usize, walk: &mut Walk, p: &Piece, fetched: bool, room: u64) {
        let Order::Stream(stream) = &mut walk.order else {
            return;
        };
        let Some((base, belady)) = &mut stream.belady else {
            return;
        };
        let base = *base;
        let Some(i) = p.n.checked_sub(base).and_then(|i| u32::try_from(i).ok()) else {
            return;
        };
        let mut victims = Vec::new();
        let mut state = lock(&self.process.state);
        {
            let Some(source) = state.source(index) else {
                return;
            };
            let list = &source.list;
            let size_of = |i: u32| {
                list.get(base + u64::from(i))
                    .map_or(0, |e| pages_of(&e).len() * PAGE_BYTES)
            };
            belady.pass(i, size_of(i), fetched, room, size_of, &mut victims);
        }
        for v in victims {
            let entry = state
                .source(index)
                .and_then(|s| s.list.get(base + u64::from(v.entry)));
            let Some(e) = entry.filter(|_| v.ours) else {
                continue;
            };
            let pages = pages_of(&e);
            stream.due_bytes += pages.len() * PAGE_BYTES;
            let span = Span {
                file: e.file,
                generation: state.file(e.file).map_or(0, |f| f.generation),
                pages,
            };
            stream.due.push_back((p.n, span));
        }
    }

    /// Gives up what the program has passed and nobody needs soon.
    fn give_up_due(&mut self, walk: &mut Walk) {
        let at = walk.seen.0;
        let Order::Stream(stream) = &mut walk.order else {
            return;
        };
        let mut due = std::mem::take(&mut stream.due);
        let mut bytes = stream.due_bytes;
        while let Some((n, span)) = due.front().copied() {
            if n + SLACK >= at {
                break;
            }
            due.pop_front();
            bytes = bytes.saturating_sub(span.pages.len() * PAGE_BYTES);
            self.drop_span(&span, "last needed");
        }
        if let Order::Stream(stream) = &mut walk.order {
            stream.due = due;
            stream.due_bytes = bytes;
        }
    }

    /// Drops pages that we have brought in, unless somebody has written to them.
    fn drop_span(&mut self, span: &Span, why: &str) {
        let Some(own) = self
            .files
            .get(&span.file)
            .filter(|o| o.generation == span.generation)
        else {
            return;
        };
        let Some(handle) = &own.handle else { return };
        let bytes = span.pages.start * PAGE_BYTES..span.pages.end * PAGE_BYTES;
        let clean = cache::cachestat(handle.fd(), bytes.clone())
            .is_ok_and(|s| s.dirty == 0 && s.writeback == 0 && s.cached > 0);
        if clean && cache::drop_range(handle.fd(), bytes.clone()).is_ok() {
            let _ = own.view.evicted(span.pages);
            self.process.count(Figure::Dropped, bytes.end - bytes.start);
            self.explain.dropped(own.ino, &bytes, why);
        }
    }

    /// The program has used up what the buffer holds, or a part of it as large: without a loss it may grow.
    fn end_window(&mut self, walk: &mut Walk, room: u64) {
        if walk.used_since >= room {
            walk.used_since = 0;
            if !walk.lossy {
                self.contention.clean();
            }
            walk.lossy = false;
            self.process.count(Figure::Rounds, 1);
        }
    }

    /// Looks whether what was fetched and not used is still there (SPEC LP4). What is gone and will be needed is fetched again.
    fn look_after(&mut self, index: usize, walk: &mut Walk) {
        if self.checked.elapsed() < CHECK || walk.front.0 <= walk.seen.0 + 1 {
            return;
        }
        if self.files.values().all(|o| o.view.unused_pages() == 0) {
            return;
        }
        self.checked = Instant::now();
        let (first, last) = (walk.seen.0 + 1, walk.front.0);
        let step = ((last - first) / SAMPLES).max(1);
        let pieces: Vec<Piece> = {
            let mut state = lock(&self.process.state);
            let Some(source) = state.source(index) else {
                return;
            };
            if source.generation != walk.generation || source.list.epoch() != walk.epoch {
                return;
            }
            (first..last)
                .step_by(step as usize)
                .filter_map(|n| source.list.get(n).map(|e| Piece::of(n, e)))
                .collect()
        };
        let (mut held, mut gone) = (0u64, 0u64);
        let mut lost: Vec<(u16, PageRange)> = Vec::new();
        let mut nearest = u64::MAX;
        for p in &pieces {
            let Some(own) = self.files.get(&p.file) else {
                continue;
            };
            let Some(handle) = &own.handle else { continue };
            let pages = PageRange::from_bytes(p.offset, u64::from(p.length));
            // Of a long entry its beginning tells.
            let pages = PageRange::new(pages.start, pages.end.min(pages.start + 512));
            let ours = (pages.start..pages.end)
                .filter(|page| {
                    let s = own.view.state(*page);
                    s.unused && s.residency == Residency::Present
                })
                .count() as u64;
            if ours == 0 || ours < pages.len() {
                continue;
            }
            let bytes = pages.start * PAGE_BYTES..pages.end * PAGE_BYTES;
            let Ok(stat) = cache::cachestat(handle.fd(), bytes) else {
                return;
            };
            held += ours;
            if stat.cached < ours {
                gone += ours - stat.cached;
                lost.push((p.file, pages));
                nearest = nearest.min(p.n);
            }
        }
        if !is_shortage(gone, held) {
            return;
        }
        for (file, pages) in lost {
            if let Some(own) = self.files.get(&file) {
                let _ = own.view.evicted(pages);
            }
        }
        // Once a window: what is lost before the smaller one is in force says nothing new.
        if !std::mem::replace(&mut walk.lossy, true) {
            self.contention.shortage();
        }
        self.process
            .count(Figure::Evicted, gone * step * PAGE_BYTES);
        self.explain
            .lost(gone * step, held * step, self.contention.limit());
        // Go over what is needed soon once more: what is there costs a look.
        walk.front = (nearest.max(walk.seen.0), 0);
        walk.ahead = 0;
        if let Order::Rounds(round) = &mut walk.order {
            round.begun = false;
        }
        if let Order::Stream(stream) = &mut walk.order {
            stream.belady = None;
        }
    }

    /// Chooses rounds or a stream by what the device does with several requests at once (SPEC LP3).
    fn choose(&mut self, index: usize, walk: &mut Walk) {
        if let Some(rounds) = self.wishes.rounds {
            walk.order = Order::of(rounds);
            return;
        }
        let Some(pieces) = self.next_pieces(index, walk) else {
            return;
        };
        let mut spread: Vec<(u16, u64)> = Vec::new();
        for p in &pieces {
            self.open(p);
            let Some(own) = self.files.get(&p.file) else {
                continue;
            };
            if let Some(manner) = self.manners.get(&own.dev) {
                walk.order = Order::of(manner.rounds);
                return;
            }
            let Some(handle) = own.handle.clone() else {
                continue;
            };
            // Requests that a disk has to move for: neighbours would be answered together.
            const APART: u64 = (256 << 10) / PAGE_BYTES;
            let page = p.offset / PAGE_BYTES;
            let near = |s: &(u16, u64)| s.0 == p.file && s.1.abs_diff(page) < APART;
            let mut missing = Vec::new();
            if !spread.iter().any(near)
                && own.missing(&handle, PageRange::new(page, page + 1), &mut missing) == 0
            {
                spread.push((p.file, page));
            }
            if spread.len() == AT_ONCE + 2 {
                break;
            }
        }
        if spread.len() < AT_ONCE + 2 {
            // Too little to tell apart, and too little to matter.
            return;
        }
        let (lone, together) = spread.split_at(2);
        let mut latency = f64::MAX;
        for (file, page) in lone {
            let since = Instant::now();
            if !self.fetch_page(*file, *page) || !self.await_page(*file, *page) {
                walk.order = Order::of(false);
                return;
            }
            latency = latency.min(since.elapsed().as_secs_f64() * 1e6);
        }
        let since = Instant::now();
        for (file, page) in together {
            self.fetch_page(*file, *page);
        }
        for (file, page) in together {
            self.await_page(*file, *page);
        }
        let took = since.elapsed().as_secs_f64() * 1e6;
        let rounds = latency > NO_HEAD_US && took > latency * AT_ONCE as f64 / 4.0;
        if let Some(dev) = spread
            .first()
            .and_then(|(f, _)| self.files.get(f))
            .map(|o| o.dev)
        {
            self.manners.insert(
                dev,
                Manner {
                    rounds,
                    latency_us: latency,
                },
            );
            self.explain.device(dev, latency, took, rounds);
        }
        walk.order = Order::of(rounds);
    }

    /// Whether the whole list fits in `room` bytes and is so dense in its files that reading them in order takes a quarter of
    /// the requests at most. Then one sweep is quicker than the order of need, in which each entry is a request: its price is the
    /// processor's time on a fast device, and what the program needs first it reads itself meanwhile.
    fn is_dense(&self, index: usize, walk: &Walk, room: u64) -> bool {
        const LEAST: u64 = 256;
        let mut state = lock(&self.process.state);
        let Some(source) = state.source(index) else {
            return false;
        };
        let (front, end) = (walk.front.0, source.ready);
        let n = end.saturating_sub(front);
        if n < LEAST || n > ROUND_ENTRIES as u64 {
            return false;
        }
        let mut runs: Vec<(u64, u64)> = Vec::new();
        if runs.try_reserve_exact(n as usize).is_err() {
            return false;
        }
        let mut bytes = 0u64;
        for entry in (front..end).filter_map(|i| source.list.get(i)) {
            let Some(start) = key(entry) else { continue };
            runs.push((start, start + pages_of(&entry).len()));
            bytes += u64::from(entry.length);
            if bytes > room {
                return false;
            }
        }
        drop(state);
        runs.sort_unstable();
        let mut merged = 0;
        let mut last = u64::MAX;
        for (start, end) in &runs {
            if last == u64::MAX || *start > last {
                merged += 1;
                last = *end;
            } else {
                last = last.max(*end);
            }
        }
        merged * 4 <= runs.len()
    }

    fn fetch_page(&self, file: u16, page: u64) -> bool {
        let Some(own) = self.files.get(&file) else {
            return false;
        };
        let now = self.start.elapsed().as_micros() as u64;
        let range = page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
        let asked = own
            .handle
            .as_ref()
            .is_some_and(|h| cache::will_need_once(h.fd(), range).is_ok());
        if asked {
            own.view.begin(PageRange::new(page, page + 1), now);
            own.view.complete(PageRange::new(page, page + 1), now);
            self.process.count(Figure::Fetched, PAGE_BYTES);
        }
        asked
    }

    fn await_page(&self, file: u16, page: u64) -> bool {
        self.files
            .get(&file)
            .and_then(|o| o.handle.as_ref())
            .is_some_and(|h| h.wait(page * PAGE_BYTES, self.header))
    }

    /// Fetches round by round (SPEC LP3), with `room` bytes of memory. `true` if there is more to do at once.
    fn sweep(&mut self, index: usize, walk: &mut Walk, room: u64) -> bool {
        let Order::Rounds(round) = &walk.order else {
            return false;
        };
        if round.issued < round.items.len() {
            let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
                return false;
            };
            self.issue(&mut round);
            let left = round.issued < round.items.len();
            walk.order = Order::Rounds(round);
            if left {
                // The engine rings when it has room.
                return false;
            }
        }
        let Order::Rounds(round) = &walk.order else {
            return false;
        };
        if round.begun && round.lone {
            walk.order = Order::of(false);
            return true;
        }
        if round.begun && walk.seen.0 < round.renew {
            let renew = round.renew;
            let mut state = lock(&self.process.state);
            if let Some(source) = state.source(index) {
                source.wake_at = (renew, 0);
                if source.list.at() >= renew {
                    return true;
                }
            }
            return false;
        }
        match self.gather(index, walk, room) {
            Some(true) => {
                let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
                    return false;
                };
                self.issue(&mut round);
                walk.order = Order::Rounds(round);
                true
            }
            Some(false) => {
                self.wake_at(index, walk, room);
                false
            }
            None => true,
        }
    }

    /// Queues what of the round the engine has room for.
    fn issue(&mut self, round: &mut Round) {
        while round.issued < round.items.len() && self.engine.queued_bytes() < QUEUED {
            let Some(item) = round.items.get(round.issued).copied() else {
                return;
            };
            round.issued += 1;
            round.place = item.place + u64::from(item.pages);
            let pages = PageRange::new(item.page(), item.end());
            let Some(generation) = self.files.get(&item.file()).map(|o| o.generation) else {
                continue;
            };
            if let Some(own) = self.files.get(&item.file()) {
                self.explain.issued(own.ino, &pages, Some(item.place));
            }
            self.request(item.file(), &[pages]);
            round.held_pages += pages.len();
            round.held.push_back(Span {
                file: item.file(),
                generation,
                pages,
            });
        }
    }

    /// Takes the next unique pages of the list into a round. `Some(false)`: there are none; `None`: the list is another one by now.
    fn gather(&mut self, index: usize, walk: &mut Walk, room: u64) -> Option<bool> {
        let front = walk.front.0;
        let (mut unique, n) = {
            let mut state = lock(&self.process.state);
            let source = state.source(index)?;
            if source.generation != walk.generation || source.list.epoch() != walk.epoch {
                return None;
            }
            let list = &source.list;
            let n = source.ready.saturating_sub(front).min(ROUND_ENTRIES as u64);
            if n == 0 {
                return Some(false);
            }
            let links = Links::new(n as usize, |i| list.get(front + i as u64).and_then(key));
            (links.and_then(Unique::new)?, n)
        };
        if walk.used_since > 0 {
            if !walk.lossy {
                self.contention.clean();
            }
            walk.used_since = 0;
            walk.lossy = false;
        }
        let mut items: Vec<Item> = Vec::new();
        let mut needed: Vec<Item> = Vec::new();
        let (mut bytes, mut asked, mut cached) = (0u64, 0u64, 0u64);
        let mut first = None;
        while walk.front.0 < front + n && bytes < room {
            let pieces = self.next_pieces(index, walk)?;
            if pieces.is_empty() {
                break;
            }
            for p in pieces {
                let i = (p.n - front) as u32;
                if p.n >= front + n || bytes >= room {
                    break;
                }
                walk.front = (p.n + 1, 0);
                walk.ahead += u64::from(p.length);
                asked += u64::from(p.length);
                let count = p.n >= walk.counted;
                walk.counted = walk.counted.max(p.n + 1);
                if !unique.take(i) || p.length == 0 {
                    continue;
                }
                self.open(&p);
                let Some(own) = self.files.get_mut(&p.file) else {
                    continue;
                };
                let Some(handle) = own.handle.clone() else {
                    continue;
                };
                let pages = PageRange::from_bytes(p.offset, u64::from(p.length));
                let mut missing = Vec::new();
                let here = own.missing(&handle, pages, &mut missing);
                if count && here > 0 {
                    let here = here.saturating_sub(own.unused(pages)) * PAGE_BYTES;
                    let here = here.min(u64::from(p.length));
                    cached += here;
                    self.process.count(Figure::Cached, here);
                }
                bytes += pages.len() * PAGE_BYTES;
                if missing.is_empty() {
                    if needed.try_reserve(1).is_ok() {
                        needed.push(Item::new(0, p.file, pages.start, pages.len() as u32));
                    }
                    continue;
                }
                for run in missing {
                    own.place(&handle, p.file, run, &mut items);
                }
                first = first.or_else(|| items.first().map(|i| i.place));
            }
        }
        let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
            return None;
        };
        needed.sort_unstable_by_key(|i| (i.file(), i.page()));
        self.make_room(&mut round, &needed, bytes, room);
        let spare = room.saturating_sub(bytes);
        let gap = self.infill(&items, spare);
        let most = items
            .first()
            .and_then(|i| self.files.get(&i.file()))
            .map_or(32, |o| o.chunk / PAGE_BYTES)
            .max(1) as u32;
        // The first sweep begins with what the program waits for.
        let from = if round.begun {
            round.place
        } else {
            first.unwrap_or(0)
        };
        let infill = order::arrange(&mut items, from, gap / PAGE_BYTES, most);
        self.process.count(Figure::Infill, infill * PAGE_BYTES);
        self.process.count(Figure::Rounds, 1);
        self.explain
            .round(front..walk.front.0, asked, cached, &items, infill, room);
        round.items = items;
        round.issued = 0;
        round.begun = true;
        round.end = walk.front.0;
        // The last bit of a round is read while the next one is fetched.
        round.renew = round.end - (round.end - front) / 16;
        walk.order = Order::Rounds(round);
        Some(true)
    }

    /// Evicts what earlier rounds have fetched and this one, of `bytes`, doesn't need, oldest first, until it fits in `room`.
    fn make_room(&mut self, round: &mut Round, needed: &[Item], bytes: u64, room: u64) {
        let mut left = round.held.len();
        while left > 0 && round.held_pages * PAGE_BYTES + bytes > room {
            left -= 1;
            let Some(span) = round.held.pop_front() else {
                break;
            };
            let at =
                needed.partition_point(|i| (i.file(), i.end()) <= (span.file, span.pages.start));
            let wanted = needed
                .get(at)
                .is_some_and(|i| i.file() == span.file && i.page() < span.pages.end);
            if wanted {
                round.held.push_back(span);
            } else {
                round.held_pages = round.held_pages.saturating_sub(span.pages.len());
                self.drop_span(&span, "not in this round");
            }
        }
    }

    /// Bytes of a gap that are read through (SPEC LP7): as many as pass under the head while it would seek, into spare memory.
    fn infill(&self, items: &[Item], spare: u64) -> u64 {
        if let Some(bytes) = self.wishes.infill {
            return bytes;
        }
        let Some(own) = items.first().and_then(|i| self.files.get(&i.file())) else {
            return 0;
        };
        let model = self.engine.model(own.dev);
        let latency = self
            .manners
            .get(&own.dev)
            .map_or(model.latency_us, |m| m.latency_us);
        // A short seek costs about an eighth of a long one, most of it turning (Figure 1).
        let even = (model.bandwidth * latency / 8.0) as u64;
        even.min(INFILL).min(spare / (items.len() as u64).max(1))
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

    /// Says at which progress of the program there is something to do again.
    fn wake_at(&self, index: usize, walk: &Walk, room: u64) {
        let step = (room / 8).clamp(STEP.0, STEP.1);
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

    /// Fetches the first `length` bytes of a piece, as far as they are not cached; returns how many pages that are. What ends
    /// in `run` is not asked for yet: the next piece may go on there, and large requests cost less.
    fn want(
        &mut self,
        p: &Piece,
        length: u32,
        first: bool,
        run: &mut Option<(u16, PageRange)>,
    ) -> u64 {
        if p.length == 0 || p.generation == 0 {
            return 0;
        }
        let end = p.offset + u64::from(length);
        let next = p.offset / PAGE_BYTES;
        if let Some((file, pages)) = *run
            && (file != p.file || pages.end != next)
        {
            self.request(file, &[pages]);
            *run = None;
        }
        self.open(p);
        let Some(own) = self.files.get_mut(&p.file) else {
            return 0;
        };
        let Some(handle) = own.handle.clone() else {
            return 0;
        };
        let pages = PageRange::from_bytes(p.offset, end - p.offset);
        if own.unused(pages) == pages.len() {
            // Asked for already and still to be read: `look_after` sees to it.
            return 0;
        }
        let mut missing = Vec::new();
        let cached = own.missing(&handle, pages, &mut missing);
        if first && cached > 0 {
            let cached = cached.saturating_sub(own.unused(pages)) * PAGE_BYTES;
            self.process
                .count(Figure::Cached, cached.min(end - p.offset));
        }
        for pages in &missing {
            self.explain.issued(own.ino, pages, None);
        }
        let sum = missing.iter().map(PageRange::len).sum();
        for pages in missing {
            *run = match run.take() {
                Some((file, before)) if before.end == pages.start => {
                    Some((file, PageRange::new(before.start, pages.end)))
                }
                Some((file, before)) => {
                    self.request(file, &[before]);
                    Some((p.file, pages))
                }
                None => Some((p.file, pages)),
            };
        }
        sum
    }

    /// Hands runs of pages to the engine.
    fn request(&mut self, file: u16, runs: &[PageRange]) {
        let Some(own) = self.files.get(&file) else {
            return;
        };
        let Some(handle) = &own.handle else { return };
        let now = self.start.elapsed().as_micros() as u64;
        let chunk = (own.chunk / PAGE_BYTES).max(1);
        let mut requests = Vec::new();
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let end = run.end.min((at / chunk + 1) * chunk);
                own.view.begin(PageRange::new(at, end), now);
                requests.push(Request {
                    handle: handle.clone(),
                    view: Some(own.view.clone()),
                    range: at * PAGE_BYTES..end * PAGE_BYTES,
                    reader: None,
                    account: own.account.clone(),
                });
                at = end;
            }
        }
        self.engine.submit(own.dev, Class::Window, requests);
    }

    /// Opens the file of a piece, once.
    fn open(&mut self, p: &Piece) {
        if self
            .files
            .get(&p.file)
            .is_some_and(|o| o.generation == p.generation)
        {
            return;
        }
        let known = {
            let state = lock(&self.process.state);
            state.file(p.file).and_then(|f| {
                let fd = f.numbers.first().copied()?;
                // From here on a close of this number waits for us; see Process::closing.
                self.process.opening.store(fd, SeqCst);
                (f.generation == p.generation).then_some((fd, f.thread, f.dev, f.ino))
            })
        };
        let opened = known.map(|(fd, thread, dev, ino)| {
            let opened = fetch::fetch_own(fd, thread, dev, ino);
            (opened, dev, ino)
        });
        self.process.opening.store(-1, SeqCst);
        let Some((opened, dev, ino)) = opened else {
            return;
        };
        let mut own = Own {
            generation: p.generation,
            handle: None,
            dev,
            size: 0,
            chunk: 0,
            view: Arc::new(FileView::new(Granularity::Page, VIEW_BYTES)),
            account: Arc::default(),
            visible: false,
            extents: None,
            ino,
        };
        match opened {
            Ok((fd, size)) => {
                let device = Device::of_fd(std::os::fd::AsFd::as_fd(&fd)).ok();
                let in_memory = device.as_ref().is_some_and(Device::is_memory);
                own.chunk = device
                    .map_or(64 << 10, |d| d.unclipped_chunk())
                    .min(self.config.engine.chunk.bytes());
                own.size = size;
                own.visible = cache::residency_is_visible(std::os::fd::AsFd::as_fd(&fd));
                own.handle = (!in_memory).then(|| Arc::new(Handle::new(fd)));
            }
            Err(_) => self.process.count(Figure::Failures, 1),
        }
        self.files.insert(p.file, own);
    }
}

impl Order {
    fn of(rounds: bool) -> Order {
        match rounds {
            true => Order::Rounds(Round::default()),
            false => Order::Stream(Stream::default()),
        }
    }

    /// For another list of the same client: what was fetched stays known.
    fn restarted(self) -> Order {
        match self {
            Order::Rounds(round) => Order::Rounds(Round {
                items: Vec::new(),
                issued: 0,
                begun: false,
                ..round
            }),
            Order::Stream(_) => Order::Stream(Stream::default()),
            Order::Unknown => Order::Unknown,
        }
    }
}

fn pages_of(e: &Entry) -> PageRange {
    PageRange::from_bytes(e.offset, u64::from(e.length))
}

/// The page that an entry begins on.
fn key(e: Entry) -> Option<u64> {
    (e.length > 0).then_some((u64::from(e.file) << 48) | (e.offset / PAGE_BYTES))
}

impl Own {
    /// Adds a run of pages to a round, extent by extent.
    fn place(&mut self, handle: &Handle, file: u16, run: PageRange, items: &mut Vec<Item>) {
        let size = self.size;
        let extents = self.extents.get_or_insert_with(|| {
            extent::extents(handle.fd(), 0..size.max(PAGE_BYTES), EXTENTS)
                .map(|m| m.extents)
                .unwrap_or_default()
        });
        let mut at = run.start;
        while at < run.end {
            let byte = at * PAGE_BYTES;
            let i = extents.partition_point(|e| e.range().end <= byte);
            let extent = extents.get(i);
            let (place, end) = match extent {
                Some(e) if e.logical <= byte && e.is_placed() => (
                    (e.physical + (byte - e.logical)) / PAGE_BYTES,
                    e.range().end.div_ceil(PAGE_BYTES),
                ),
                Some(e) if e.logical > byte => (at, e.logical / PAGE_BYTES),
                // File order where the file system doesn't tell.
                _ => (at, run.end),
            };
            let end = end.clamp(at + 1, run.end);
            if items.try_reserve(1).is_ok() {
                items.push(Item::new(place, file, at, (end - at) as u32));
            }
            at = end;
        }
    }

    /// Of `pages`, those that we fetched and the program has not read yet.
    fn unused(&self, pages: PageRange) -> u64 {
        if self.view.unused_pages() == 0 {
            return 0;
        }
        let ours = |page: &u64| self.view.state(*page).unused;
        (pages.start..pages.end).filter(ours).count() as u64
    }

    /// Appends to `out` the runs of `pages` that are neither cached nor on their way; returns how many pages are cached.
    fn missing(&self, handle: &Handle, pages: PageRange, out: &mut Vec<PageRange>) -> u64 {
        let bytes = pages.start * PAGE_BYTES..pages.end * PAGE_BYTES;
        let all = pages.len();
        let mut cached = match cache::cachestat(handle.fd(), bytes.clone()) {
            Ok(stat) => stat.cached.min(all),
            Err(_) if self.visible => u64::MAX,
            // Nobody tells: our own record has to do.
            Err(_) => {
                self.view.missing(pages, usize::MAX, out);
                return all - out.iter().map(PageRange::len).sum::<u64>().min(all);
            }
        };
        if cached == all {
            return all;
        }
        let resident = if cached > 0 {
            cache::mincore(handle.fd(), bytes).unwrap_or_default()
        } else {
            Vec::new()
        };
        if cached == u64::MAX {
            cached = resident.iter().filter(|r| **r).count() as u64;
        }
        let on_its_way = self.view.in_flight_pages() > 0;
        for (i, page) in (pages.start..pages.end).enumerate() {
            if resident.get(i).copied().unwrap_or(false)
                || (on_its_way && self.view.state(page).residency == Residency::InFlight)
            {
                continue;
            }
            match out.last_mut() {
                Some(run) if run.end == page => run.end = page + 1,
                _ => out.push(PageRange::new(page, page + 1)),
            }
        }
        for run in out.iter() {
            // Whatever we believed.
            let _ = self.view.evicted(*run);
        }
        cached
    }
}

impl Piece {
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
