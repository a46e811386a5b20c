//! What a thread keeps for its scopes: the ring, the places for calls in flight, the buffers.
//!
//! A call in flight has a *place*, whose memory the kernel or a thread of the pool may write to until the call is done; the place is
//! not used for anything else before that, even if nobody wants the result any more.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_void};
use std::ops::Index;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use outrider_sys::ring::{Ring, Submission, op};
use outrider_sys::threads::AtEnd;

use crate::batch::{self, Batch, Stretch};
use crate::buffers::{Buffer, Buffers};
use crate::call::{Args, Kind};
use crate::graph::{Cursor, Engine};
use crate::limits::{DEEPEST_WINDOW, PLACES};
use crate::memory::{self, Fifo, Mapped, Row};
use crate::payback::{self, Waits};
use crate::pool::{Bell, Job, state};
use crate::process;

/// Scopes of a thread that look ahead at the same time; further ones pass their calls through.
const MOST_SCOPES: usize = 32;
/// Contexts that a thread keeps for its next scopes.
const MOST_KEPT: usize = 4;
/// So many submissions are handed to the kernel at once, and then as many as it has: each takes 1 to 2 µs to put together, and the window may hold
/// [`DEEPEST_WINDOW`].
const EARLY: usize = 8;
/// Longest path of a call that is made ahead, with its zero byte.
pub const PATH: usize = 256;

/// The kernel refused a ring to this process.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// The result of what the kernel has not seen.
const NOT_MADE: i64 = -(libc::ECANCELED as i64);

/// Where a foreseen call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Its arguments are not known.
    NotReady,
    /// They are; nothing was done yet.
    Ready,
    /// An engine has it.
    Flying,
    /// The result is there.
    Done,
}

/// A foreseen call.
pub struct Place {
    pub cursor: Cursor,
    /// The kind of a node whose arguments aren't known.
    pub kind: Option<Kind>,
    pub args: Args,
    pub progress: Progress,
    /// A weak edge leads to it.
    pub weak_before: bool,
    /// It may be the function's last call.
    pub weak_after: bool,
    /// Its bytes are written by the next call.
    pub link: bool,
    /// Its bytes come from this place's buffer.
    pub linked: Option<u16>,
    /// It is not made ahead, for good.
    pub never: bool,
    /// Its paths are too long to be kept here; the graph is asked for them.
    pub long: bool,
    /// What it needs from the disk is being fetched.
    pub warmed: bool,
    /// Its result is out of date.
    pub stale: bool,
    /// Nobody wants the result.
    pub dropped: bool,
    /// The ring has it, not the pool.
    pub on_ring: bool,
    /// The next call of the same submission.
    next: Option<u16>,
    /// Only the check engine has it: it was not made.
    pub pretended: bool,
    /// Whether it would have been quick without us; unknown for what the kernel gives to threads of its own.
    pub quick: Option<bool>,
    /// Its file goes around the page cache.
    pub direct: bool,
    /// Where in the file, for calls at the descriptor's position.
    pub position: Option<i64>,
    /// When it was issued, if its device's latency is to be seen by it.
    pub issued: Option<Instant>,
    pub buffer: Option<Buffer>,
    /// Where the bytes of a write were copied from, if they can't have changed there until it is made; or 0.
    pub lent: usize,
    pub result: i64,
}

impl Place {
    /// What the call did is what the program gets. Otherwise the program makes it again, and what lies behind it has to wait for that: it failed for a
    /// moment only, was not made after all, or is out of date. EFBIG may come with a signal, which the program is to get.
    pub fn stands(&self) -> bool {
        let again = [
            libc::EINTR,
            libc::EAGAIN,
            libc::ECANCELED,
            libc::ENOMEM,
            libc::EFBIG,
        ];
        self.progress == Progress::Done
            && !self.stale
            && (self.result >= 0 || !again.contains(&(-self.result as i32)))
    }

    /// Reads into the buffer what the program has just read: the check made no read ahead.
    pub fn read_again(&self) {
        if let (Some(buffer), Some(at)) = (&self.buffer, self.position) {
            let mut call = crate::call::Call::new(self.args);
            (call.args.kind, call.args.offset) = (Kind::Pread, at);
            call.buffer = buffer.at().cast();
            // SAFETY: the buffer holds `len` bytes.
            unsafe { call.make() };
        }
    }

    /// All that was asked for.
    pub fn is_whole(&self) -> bool {
        let moves = self.args.kind.reads() || self.args.kind.writes();
        self.result >= 0 && (!moves || self.result == self.args.len as i64)
    }
}

/// The part of a place that others write to.
pub struct Flight {
    pub job: Job,
    pub stat: UnsafeCell<[u64; 32]>,
    path: UnsafeCell<[u8; PATH]>,
    second_path: UnsafeCell<[u8; PATH]>,
}

impl Flight {
    /// The paths as C strings.
    pub fn path(&self) -> *const u8 {
        self.path.get().cast()
    }

    pub fn second_path(&self) -> *const u8 {
        self.second_path.get().cast()
    }

    fn keep(to: &UnsafeCell<[u8; PATH]>, path: Option<&CStr>) -> bool {
        let bytes = path.map_or(&b"\0"[..], CStr::to_bytes_with_nul);
        // SAFETY: only the owner touches a place that is not in flight.
        match unsafe { &mut *to.get() }.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// Keeps the paths; `false` if one is too long.
    pub fn keep_paths(&self, path: Option<&CStr>, second: Option<&CStr>) -> bool {
        Flight::keep(&self.path, path) && Flight::keep(&self.second_path, second)
    }
}

/// The flights of all places, in memory that is taken as they are used.
pub struct Flights(*mut Flight);

impl Flights {
    fn new() -> Option<Flights> {
        // Zero is a valid Flight.
        memory::map(PLACES * size_of::<Flight>()).map(|at| Flights(at.cast()))
    }
}

impl Index<usize> for Flights {
    type Output = Flight;

    fn index(&self, i: usize) -> &Flight {
        assert!(i < PLACES);
        // SAFETY: within the mapping, and valid when zero.
        unsafe { &*self.0.add(i) }
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        memory::unmap(self.0.cast(), PLACES * size_of::<Flight>());
    }
}

/// When a scope may start the pool's first thread. A second thread makes each system call of the process dearer (the kernel counts who uses a
/// descriptor, the C library who may be cancelled): 80 ns for a cached read of 8 KiB.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// When it begins, unless its graph's calls need none.
    Now,
    /// With the first call that is given to the pool.
    WhenNeeded,
    /// Not at all: within a call that a handler may make.
    Never,
}

/// What a scope needs while it looks ahead; a thread keeps some.
pub struct Context {
    pub token: u64,
    pub ring: Option<Ring>,
    /// What will be pushed to the ring next.
    batch: Batch,
    /// What will be fetched next.
    stretch: Stretch,
    /// What the thread had waited for when a fetch last took long.
    waits: Waits,
    pub places: Row<Place>,
    pub flights: Flights,
    free: Row<u16>,
    /// The window, in the order of the program.
    pub order: Fifo<u16>,
    pub buffers: Buffers,
    pub bell: &'static Bell,
    /// Calls that the ring has.
    pub on_ring: usize,
    /// Calls that the pool has.
    pub in_pool: usize,
    /// The ring does not answer any more.
    pub broken: bool,
    /// Calls that the pool is to be given with [`Context::submit`].
    for_pool: Row<u16>,
    /// Something was to be given to the pool since this was taken.
    pub wanted_pool: bool,
    /// The pool keeps a thread for this scope …
    enlisted: bool,
    /// … or is to, when it is given something.
    enlists: bool,
    wants_ring: bool,
    /// Directories that are listed have their entries looked up.
    walk: bool,
    /// What calls that have come back were worth, less what they have cost, in nanoseconds (see `worth`).
    pub account: i64,
    /// The first read that is waited for earns nothing.
    pub first_is_free: bool,
    /// The next one that the thread keeps.
    next: Option<Mapped<Context>>,
}

thread_local! {
    /// The first of the contexts that the thread keeps. They are freed by [`ENDS`], not by a destructor of this: to register one takes
    /// memory, and ends the program where there is none.
    static KEPT: Cell<*mut Context> = const { Cell::new(null_mut()) };
    /// Whether [`ENDS`] is set.
    static PREPARED: Cell<bool> = const { Cell::new(false) };
    /// Scopes of the thread that look ahead.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    /// Calls with effects that scopes of the thread have passed through while others looked ahead.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
    /// Contexts in `KEPT`.
    static SPARE: Cell<usize> = const { Cell::new(0) };
}

/// Frees what a thread keeps.
static ENDS: AtEnd = AtEnd::new(ended);

/// The calling thread's kept contexts.
fn kept() -> Option<Mapped<Context>> {
    let first = KEPT.try_with(|k| k.replace(null_mut())).ok()?;
    // SAFETY: kept by `keep`, and taken once.
    unsafe { Mapped::from_raw(first) }
}

fn keep(first: Option<Mapped<Context>>) {
    let first = first.map_or(null_mut(), Mapped::into_raw);
    let _ = KEPT.try_with(|k| k.set(first));
}

extern "C" fn ended(_: *mut c_void) {
    let _ = PREPARED.try_with(|p| p.set(false));
    let _ = SPARE.try_with(|n| n.set(0));
    drop(kept());
}

/// Whether a scope of the thread looks ahead.
pub fn is_live() -> bool {
    LIVE.try_with(Cell::get).unwrap_or(0) > 0
}

/// A scope of the thread makes a call with effects of which no other is told.
pub fn changed() {
    let _ = CHANGES.try_with(|n| n.set(n.get() + 1));
}

/// How many such calls there were.
pub fn changes() -> u64 {
    CHANGES.try_with(Cell::get).unwrap_or(0)
}

/// Sees to it that what the thread keeps is freed when it ends. `false` where there is no memory for that.
pub fn prepare() -> bool {
    PREPARED.try_with(Cell::get).unwrap_or(false)
        || ENDS.ask() && PREPARED.try_with(|p| p.set(true)).is_ok()
}

impl Context {
    fn new(token: u64) -> Option<Context> {
        let flights = Flights::new()?;
        Some(Context {
            token,
            ring: None,
            batch: Batch::new()?,
            stretch: Stretch::default(),
            waits: Waits::default(),
            places: Row::new(PLACES)?,
            flights,
            free: Row::new(PLACES)?,
            order: Fifo::new(PLACES)?,
            buffers: Buffers::new()?,
            bell: Bell::take(process::pool()?)?,
            on_ring: 0,
            in_pool: 0,
            broken: false,
            for_pool: Row::new(PLACES)?,
            wanted_pool: false,
            enlisted: false,
            enlists: false,
            wants_ring: false,
            walk: false,
            account: 0,
            first_is_free: false,
            next: None,
        })
    }

    /// Takes a context of the thread's for a scope, or `None`: this scope lies within another and is not to be `beside` it, there are
    /// too many, there is no memory, or the kernel can't tell forked children. Only system calls are made once the thread is prepared.
    pub fn take(engine: Engine, beside: bool, walk: bool) -> Option<Mapped<Context>> {
        let token = process::token()?;
        let most = if beside { MOST_SCOPES } else { 1 };
        if LIVE.try_with(Cell::get).unwrap_or(most) >= most {
            return None;
        }
        let mut kept = kept();
        if let Some(parents) = kept.take_if(|cx| cx.token != token) {
            // A forked child: the ring is not there, the rest may be in any state.
            std::mem::forget(parents);
            let _ = SPARE.try_with(|n| n.set(0));
        }
        let mut cx = match kept {
            Some(mut cx) => {
                keep(cx.next.take());
                let _ = SPARE.try_with(|n| n.set(n.get() - 1));
                cx
            }
            None => Mapped::new(Context::new(token)?)?,
        };
        let _ = LIVE.try_with(|n| n.set(n.get() + 1));
        cx.wanted_pool = false;
        cx.walk = walk;
        cx.account = 0;
        cx.first_is_free = false;
        cx.wants_ring = matches!(engine, Engine::Auto | Engine::Uring);
        Some(cx)
    }

    /// Whether there is a ring for calls that it takes; it is made for the first of them.
    pub fn has_ring(&mut self) -> bool {
        if self.wants_ring && self.ring.is_none() && !REFUSED.load(Ordering::Relaxed) {
            self.ring = Ring::new().ok();
            if self.ring.is_none() {
                REFUSED.store(true, Ordering::Relaxed);
            }
        }
        self.wants_ring && self.ring.is_some() && !self.broken
    }

    /// Has the pool keep a thread for this scope, from now on or from when it is needed. `expected`: it is likely to be.
    pub fn enlist(&mut self, start: Start, expected: bool) {
        self.enlists = start == Start::WhenNeeded;
        if !self.enlists
            && expected
            && let Some(pool) = process::pool()
        {
            pool.enlist(start == Start::Never);
            self.enlisted = true;
        }
    }

    /// Gives it back at the end of the scope; nothing is in flight.
    pub fn give_back(mut cx: Mapped<Context>) {
        Context::left();
        cx.enlists = false;
        if std::mem::take(&mut cx.enlisted)
            && let Some(pool) = process::pool()
        {
            pool.discharge();
        }
        if cx.broken {
            // The kernel may still write to it.
            std::mem::forget(cx);
            return;
        }
        let spare = SPARE.try_with(Cell::get).unwrap_or(MOST_KEPT);
        let prepared = PREPARED.try_with(Cell::get).unwrap_or(false);
        if prepared && spare < MOST_KEPT {
            let _ = SPARE.try_with(|n| n.set(spare + 1));
            cx.next = kept();
            keep(Some(cx));
        }
    }

    /// In a forked child, of a scope that has nothing under way: what is done may be used, and that is all.
    pub fn inherit(&mut self, token: u64) {
        self.token = token;
        // The ring's memory is not there.
        std::mem::forget(self.ring.take());
        if !self.batch.is_empty() {
            self.batch.close();
        }
        self.for_pool.clear();
        (self.on_ring, self.in_pool) = (0, 0);
        (self.enlisted, self.enlists) = (false, false);
        self.broken = true;
    }

    /// The scope ends in a forked child.
    pub fn abandon(cx: Mapped<Context>) {
        std::mem::forget(cx);
    }

    /// One scope less of the thread looks ahead.
    pub fn left() {
        let _ = LIVE.try_with(|n| n.set(n.get().saturating_sub(1)));
    }

    /// A place for `cursor`, or `None` if all are in use.
    pub fn place(&mut self, cursor: Cursor) -> Option<u16> {
        let new = Place {
            cursor,
            kind: None,
            args: Args::new(Kind::Close, -1),
            progress: Progress::NotReady,
            weak_before: false,
            weak_after: false,
            link: false,
            linked: None,
            never: false,
            long: false,
            warmed: false,
            stale: false,
            dropped: false,
            on_ring: false,
            next: None,
            pretended: false,
            quick: None,
            direct: false,
            position: None,
            issued: None,
            buffer: None,
            lent: 0,
            result: 0,
        };
        if self.free.is_empty() && self.places.len() == PLACES {
            // Those that nobody waits for any more are free once they are done.
            self.poll_all();
        }
        if let Some(i) = self.free.pop() {
            self.places[i as usize] = new;
            return Some(i);
        }
        if self.places.len() == PLACES {
            return None;
        }
        self.places.push(new);
        Some((self.places.len() - 1) as u16)
    }

    /// A place is not needed any more: it is free now, or when its call is done.
    pub fn release(&mut self, i: u16) {
        let p = &mut self.places[i as usize];
        if p.progress == Progress::Flying {
            p.dropped = true;
        } else {
            p.buffer = None;
            self.free.push(i);
        }
    }

    /// A call has come back.
    fn landed(&mut self, i: u16, result: i64) {
        let p = &mut self.places[i as usize];
        p.result = result;
        p.progress = Progress::Done;
        if p.dropped {
            p.buffer = None;
            self.free.push(i);
        }
    }

    /// Takes in what the ring has finished. `inline`: it did so while it was being submitted.
    fn reap(&mut self, inline: bool) {
        while let Some((user_data, res)) = self.ring.as_mut().and_then(Ring::completion) {
            if user_data == u64::MAX {
                continue;
            }
            self.landed_together(user_data as u16, i64::from(res), inline);
        }
    }

    /// The submission of place `first`, and of those that went with it, has come back.
    fn landed_together(&mut self, first: u16, result: i64, inline: bool) {
        let alone = self.places[first as usize].next.is_none();
        let (mut member, mut before) = (Some(first), 0);
        while let Some(i) = member {
            let p = &mut self.places[i as usize];
            member = p.next.take();
            let len = p.args.len as i64;
            // A buffered write that was left to a kernel thread may have been quick all the same.
            if p.args.kind.reads() {
                p.quick = Some(inline);
                self.account += match inline {
                    true => -payback::cached_read(len),
                    // Those that went together waited together.
                    false if before > 0 => 0,
                    false if std::mem::take(&mut self.first_is_free) => 0,
                    false => payback::WAIT,
                };
            }
            let own = batch::share(result, alone, p.args.kind.writes(), before, len);
            before += len;
            self.on_ring -= 1;
            self.landed(i, own);
        }
    }

    /// Pushes what is gathered.
    fn push_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let s = self.batch.close();
        // SAFETY: the places' memory is left alone until they have landed.
        if self.ring.as_mut().is_some_and(|r| unsafe { r.push(&s) }) {
            return;
        }
        self.submit_to_ring();
        // SAFETY: as above.
        if !self.ring.as_mut().is_some_and(|r| unsafe { r.push(&s) }) {
            self.landed_together(s.user_data as u16, NOT_MADE, false);
        }
    }

    /// Has the kernel fetch `len` bytes from `at` on, together with their neighbours, for the read of a place or for one that has none.
    pub fn fetch(&mut self, place: Option<u16>, fd: i32, at: i64, len: usize) {
        if !self.stretch.join(place, fd, at, len as i64) {
            self.fetch_stretch();
            self.stretch.join(place, fd, at, len as i64);
        }
    }

    /// Has it fetch what is gathered. That a device was asked is earned when the first read comes, or at once if that has no place.
    pub fn fetch_stretch(&mut self) {
        let Some((first, took)) = self.stretch.fetch() else {
            return;
        };
        self.account -= payback::CALL;
        if took < payback::CACHED {
            return;
        }
        let now = Waits::of_thread();
        if now.asked_since(self.waits) {
            match first {
                Some(i) => self.places[i as usize].quick = Some(false),
                None => self.account += payback::WAIT,
            }
        }
        self.waits = now;
    }

    /// Hands what was launched to the kernel and to the pool; what the kernel finishes at once would have been quick anyway.
    pub fn submit(&mut self) {
        self.fetch_stretch();
        self.submit_to_pool();
        self.push_batch();
        if self.ring.as_ref().is_some_and(|r| r.unsubmitted() > 0) {
            self.submit_to_ring();
        }
    }

    /// The device begins while the window is still being filled.
    fn hand_over_early(&mut self) {
        let waiting = self.ring.as_ref().map_or(0, Ring::unsubmitted) as usize;
        if waiting >= EARLY && waiting * 2 > self.on_ring {
            self.submit_to_ring();
        }
    }

    fn submit_to_ring(&mut self) {
        self.reap(false);
        if let Some(ring) = self.ring.as_mut() {
            let r = ring.submit();
            self.check(r);
        }
        self.reap(true);
    }

    fn submit_to_pool(&mut self) {
        if self.for_pool.is_empty() {
            return;
        }
        if std::mem::take(&mut self.enlists) {
            self.enlist(Start::Now, true);
        }
        let jobs = self.for_pool.iter().map(|i| &self.flights[*i as usize].job);
        // SAFETY: a place's memory is left alone until it has landed.
        let taken = process::pool().map_or(0, |pool| unsafe { pool.submit(jobs) });
        while self.for_pool.len() > taken {
            if let Some(i) = self.for_pool.pop() {
                self.in_pool -= 1;
                self.landed(i, -i64::from(libc::ECANCELED));
            }
        }
        self.for_pool.clear();
    }

    fn check(&mut self, r: isize) {
        let temporary = [libc::EINTR, libc::EAGAIN, libc::EBUSY, libc::ENOMEM];
        self.broken |= r < 0 && !temporary.contains(&(-r as i32));
        if self.ring.as_ref().is_some_and(|r| r.unsubmitted() == 0) {
            self.batch.taken();
        }
    }

    /// Hands what was pushed to the kernel and takes in what it has finished; waits for `wait_for` completions or a signal.
    pub fn enter(&mut self, wait_for: u32) {
        self.push_batch();
        let Some(ring) = self.ring.as_mut() else {
            return;
        };
        let r = ring.enter(wait_for);
        self.check(r);
        self.reap(false);
    }

    /// Looks whether `i` is done without waiting.
    pub fn poll(&mut self, i: u16) -> bool {
        if self.places[i as usize].progress == Progress::Flying {
            if self.places[i as usize].on_ring {
                self.reap(false);
            } else {
                self.collect(i);
            }
        }
        self.places[i as usize].progress != Progress::Flying
    }

    /// Takes a call in that the pool has finished.
    fn collect(&mut self, i: u16) -> bool {
        let job = &self.flights[i as usize].job;
        if job.state.load(Ordering::Acquire) != state::DONE {
            return false;
        }
        job.state.store(state::IDLE, Ordering::Relaxed);
        let result = job.result.load(Ordering::Relaxed);
        let nanos = job.nanos.load(Ordering::Relaxed) as i64;
        self.in_pool -= 1;
        // A listing takes many locks, and may have slept for one of them.
        let price = price(job);
        let quick = nanos < price;
        if !quick {
            self.account += price + nanos;
        }
        self.places[i as usize].quick = Some(quick);
        self.landed(i, result);
        true
    }

    /// Takes in whatever is finished.
    pub fn poll_all(&mut self) {
        self.reap(false);
        for i in 0..self.places.len() as u16 {
            if self.in_pool == 0 {
                return;
            }
            let p = &self.places[i as usize];
            if p.progress == Progress::Flying && !p.on_ring {
                self.collect(i);
            }
        }
    }

    /// Waits until `i` is done.
    pub fn land(&mut self, i: u16) {
        while !self.poll(i) && !self.broken {
            self.sleep(i);
        }
    }

    /// Sleeps until something may have changed for `i`, which is in flight.
    pub fn sleep(&mut self, i: u16) {
        if self.places[i as usize].on_ring {
            self.enter(1);
        } else {
            self.submit_to_pool();
            let seen = self.bell.rung();
            if self.places[i as usize].progress == Progress::Flying && !self.collect(i) {
                self.bell.wait(seen);
            }
        }
    }

    /// Gives the call of place `i` to the ring, or to the pool. Its flight's paths, its buffer and its arguments are set.
    pub fn launch(&mut self, i: u16) -> bool {
        if let Some(s) = submission(&self.places[i as usize], i)
            && self.has_ring()
        {
            if self.on_ring >= DEEPEST_WINDOW {
                return false;
            }
            if !self.batch.continues(&s) {
                self.push_batch();
                self.hand_over_early();
                if self.batch.is_full() {
                    self.submit_to_ring();
                }
                if self.batch.is_full() {
                    return false;
                }
            } else {
                let last = self.batch.last();
                self.places[last as usize].next = Some(i);
            }
            let direct = self.places[i as usize].direct;
            self.batch.add(i, &s, direct);
            self.on_ring += 1;
            let p = &mut self.places[i as usize];
            p.on_ring = true;
            p.progress = Progress::Flying;
            return true;
        }
        let flight = &self.flights[i as usize];
        let (number, args) = job(&self.places[i as usize], flight, self.walk);
        flight.job.number.set(number);
        flight.job.args.set(args);
        flight.job.bell.set(Some(self.bell));
        self.account -= price(&flight.job);
        self.wanted_pool = true;
        self.for_pool.push(i);
        self.in_pool += 1;
        self.places[i as usize].on_ring = false;
        self.places[i as usize].progress = Progress::Flying;
        true
    }

    /// Takes a call back that no thread of the pool has begun.
    pub fn take_back(&mut self, i: u16) -> bool {
        let p = &self.places[i as usize];
        let in_pool = p.progress == Progress::Flying && !p.on_ring;
        let waiting = self.for_pool.iter().position(|x| *x == i && in_pool);
        if let Some(at) = waiting {
            self.for_pool.remove(at);
        }
        let back = waiting.is_some()
            || in_pool
                && process::pool()
                    .is_some_and(|pool| pool.take_back(&self.flights[i as usize].job));
        if back {
            self.in_pool -= 1;
            self.account += price(&self.flights[i as usize].job);
            let p = &mut self.places[i as usize];
            p.progress = Progress::Ready;
            if p.dropped {
                p.dropped = false;
                self.free.push(i);
            }
        }
        back
    }

    /// Cancels what can be cancelled and waits for the rest.
    pub fn drain(&mut self) {
        self.stretch = Stretch::default();
        // What nobody has seen need not be cancelled.
        while let Some(i) = self.for_pool.pop() {
            self.in_pool -= 1;
            self.landed(i, NOT_MADE);
        }
        if !self.batch.is_empty() {
            let s = self.batch.close();
            self.landed_together(s.user_data as u16, NOT_MADE, false);
        }
        while let Some(i) = self.ring.as_mut().and_then(Ring::withdraw) {
            self.landed_together(i as u16, NOT_MADE, false);
        }
        self.batch.taken();
        if self.on_ring > 0 {
            const CANCEL_ALL_ANY: u32 = 1 | 4;
            let cancel = Submission {
                opcode: op::ASYNC_CANCEL,
                fd: -1,
                op_flags: CANCEL_ALL_ANY,
                user_data: u64::MAX,
                ..Submission::default()
            };
            if let Some(ring) = self.ring.as_mut() {
                // SAFETY: it points to nothing.
                unsafe { ring.push(&cancel) };
            }
            self.enter(0);
        }
        while self.on_ring > 0 && !self.broken {
            self.enter(1);
        }
        while self.in_pool > 0 {
            let seen = self.bell.rung();
            self.poll_all();
            if self.in_pool > 0 {
                self.bell.wait(seen);
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if !process::is(self.token) {
            // A forked child's thread ends: the ring's memory is not there.
            std::mem::forget(self.ring.take());
            return;
        }
        if let Some(pool) = process::pool() {
            self.bell.give_back(pool);
        }
    }
}

/// What a job costs in nanoseconds.
fn price(job: &Job) -> i64 {
    if job.number.get() == Job::LIST {
        payback::LISTING
    } else {
        payback::POOL_CALL
    }
}

/// The call as the ring takes it; `None` for what it would hand to threads anyway. Those of the pool are the better ones: they tell
/// how long a call took, and so whether looking ahead is worth it.
fn submission(p: &Place, i: u16) -> Option<Submission> {
    let a = &p.args;
    Some(Submission {
        opcode: match a.kind {
            Kind::Read | Kind::Pread => op::READ,
            Kind::Write | Kind::Pwrite => op::WRITE,
            _ => return None,
        },
        fd: a.fd,
        addr: p.buffer.as_ref()?.at() as u64,
        len: a.len as u32,
        off: p.position.unwrap_or(a.offset) as u64,
        user_data: u64::from(i),
        ..Submission::default()
    })
}

/// Whether an open with these flags can only be that of a directory.
pub fn opens_directory(flags: i32) -> bool {
    flags & (libc::O_DIRECTORY | libc::O_TMPFILE) == libc::O_DIRECTORY
}

/// How an open's path is looked up without opening it.
fn lookup_flags(open: i32) -> i32 {
    let follow = if open & libc::O_NOFOLLOW != 0 {
        libc::AT_SYMLINK_NOFOLLOW
    } else {
        0
    };
    follow | libc::AT_NO_AUTOMOUNT
}

/// The call as a thread of the pool makes it.
fn job(p: &Place, flight: &Flight, walk: bool) -> (i64, [usize; 6]) {
    let a = &p.args;
    let mut call = crate::call::Call::new(*a);
    call.path = flight.path().cast();
    call.second_path = flight.second_path().cast();
    call.buffer = match a.kind {
        Kind::Fstat | Kind::Fstatat | Kind::Statx => flight.stat.get().cast(),
        _ => p
            .buffer
            .as_ref()
            .map_or(std::ptr::null_mut(), |b| b.at().cast()),
    };
    match a.kind {
        Kind::Getdents => (
            Job::LIST,
            [a.fd as usize, 0, usize::from(walk), a.offset as usize, 0, 0],
        ),
        Kind::Read | Kind::Write => {
            call.args.kind = if a.kind == Kind::Read {
                Kind::Pread
            } else {
                Kind::Pwrite
            };
            call.args.offset = p.position.unwrap_or(0);
            call.words()
        }
        // A directory is opened to be listed.
        Kind::Openat if opens_directory(a.flags) => (
            Job::LIST,
            [
                a.fd as usize,
                call.path as usize,
                usize::from(walk),
                0,
                0,
                0,
            ],
        ),
        Kind::Openat => {
            call.args.kind = Kind::Statx;
            call.args.flags = lookup_flags(a.flags);
            call.args.extra = libc::STATX_BASIC_STATS;
            call.buffer = flight.stat.get().cast();
            call.words()
        }
        _ => call.words(),
    }
}
