//! The thread that fetches what was declared.
//!
//! It starts with the first list and sleeps on a futex whenever all that may be asked for was asked for. Signals are blocked in
//! it, so that the program's handlers run on the program's threads, and its descriptor table is its own, so that the program sees no
//! descriptor of ours and closing one drops none of its locks. Files are opened anew through /proc/self/fd, which shows the
//! table of the program's first thread.
//!
//! Nothing here may end the program: no panic, and what can't be had (memory, a thread, a descriptor, a system call) is
//! counted as a failure and left out.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use outrider_sys::cache;
use outrider_sys::device::Device;
use outrider_sys::memory::MemorySources;
use outrider_sys::raw;

use super::contention::Contention;
use super::list::Entry;
use super::{Figure, Process, lock};
use crate::config::Config;
use crate::engine::{self, Account, Class, Engine, Handle, Request};
use crate::fetch;
use crate::shm::Header;
use crate::view::{FileView, Granularity, PAGE_BYTES, PageRange};

/// Entries that are copied out of a list at a time: the lock is held for microseconds.
const BATCH: usize = 256;
/// Bytes queued in the engine beyond which no more are: the queue is in the order of need already, and each request costs memory.
const QUEUED: u64 = 8 << 20;
/// The fetcher looks up every so many bytes of progress, at least and at most.
const STEP: (u64, u64) = (128 << 10, 4 << 20);
/// Views of one file may take so many bytes.
const VIEW_BYTES: usize = 8 << 20;

/// Starts the thread; `false` where that is not possible.
pub(super) fn start(process: &'static Process) -> bool {
    // All but those that the C library uses itself (to change the user of all threads, and to cancel one).
    const KEPT: u64 = 1 << (32 - 1) | 1 << (33 - 1);
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
            Fetcher::new(process).run();
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
}

struct Own {
    generation: u32,
    handle: Option<Arc<Handle>>,
    dev: u64,
    size: u64,
    chunk: u64,
    view: Arc<FileView>,
    account: Arc<Account>,
    /// The kernel says what is cached.
    visible: bool,
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
    start: Instant,
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
    fn new(process: &'static Process) -> Fetcher {
        let header = process.header().unwrap_or_else(|| {
            // Zeroed memory is a valid header; this one is read by nobody.
            Box::leak(Header::private())
        });
        let config = Config::default();
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
            start: Instant::now(),
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
            if self.process.is_off() {
                self.files.clear();
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
            more |= self.advance(index, &mut walk, share);
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
            walk.ahead = walk.ahead.saturating_sub(u64::from(p.length));
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

    /// Asks for what comes next, up to `room` bytes ahead of the program. `true` if there is more to do at once.
    fn advance(&mut self, index: usize, walk: &mut Walk, room: u64) -> bool {
        let mut looked = 0;
        loop {
            if walk.ahead >= room {
                self.wake_at(index, walk, room);
                return false;
            }
            if self.engine.queued_bytes() >= QUEUED {
                // The engine rings when it has room.
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
            looked += pieces.len();
            for p in pieces {
                let left = room.saturating_sub(walk.ahead).max(STEP.0);
                let length = u64::from(p.length).min(left) as u32;
                self.want(&p, length, p.n >= walk.counted);
                walk.ahead += u64::from(length);
                if length == p.length {
                    walk.front = (p.n + 1, 0);
                    walk.counted = walk.counted.max(p.n + 1);
                } else {
                    walk.front = (p.n, walk.front.1.saturating_add(length));
                }
                if walk.ahead >= room || length < p.length {
                    break;
                }
            }
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

    /// Fetches the first `length` bytes of a piece, as far as they are not cached.
    fn want(&mut self, p: &Piece, length: u32, first: bool) {
        if p.length == 0 || p.generation == 0 {
            return;
        }
        let end = p.offset + u64::from(length);
        self.open(p);
        let Some(own) = self.files.get_mut(&p.file) else {
            return;
        };
        let Some(handle) = own.handle.clone() else {
            return;
        };
        let pages = PageRange::from_bytes(p.offset, end - p.offset);
        let mut missing = Vec::new();
        let cached = own.missing(&handle, pages, &mut missing);
        if first {
            self.process
                .count(Figure::Cached, (cached * PAGE_BYTES).min(end - p.offset));
        }
        let now = self.start.elapsed().as_micros() as u64;
        let chunk = (own.chunk / PAGE_BYTES).max(1);
        let mut requests = Vec::new();
        for run in missing {
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
        let dev = own.dev;
        self.engine.submit(dev, Class::Window, requests);
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
        let opened =
            known.map(|(fd, thread, dev, ino)| (fetch::fetch_own(fd, thread, dev, ino), dev));
        self.process.opening.store(-1, SeqCst);
        let Some((opened, dev)) = opened else { return };
        let mut own = Own {
            generation: p.generation,
            handle: None,
            dev,
            size: 0,
            chunk: 0,
            view: Arc::new(FileView::new(Granularity::Page, VIEW_BYTES)),
            account: Arc::default(),
            visible: false,
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

impl Own {
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
                || (on_its_way
                    && self.view.state(page).residency == crate::view::Residency::InFlight)
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
