//! One run of a function along its graph: the pre-issuing algorithm and the checked harvest.
//!
//! The *window* holds the calls that are foreseen next, in the program's order. When the program makes a call, it is compared with the
//! window's first; the window is then filled up again, what may be made ahead is given to an engine, and if the call itself was
//! made ahead its result is used.
//!
//! What may be made ahead (section 3.3 of the paper, and more, since a graph may be wrong and calls may fail):
//!
//! - a call without effects, if no earlier call that is not done conflicts with it (see `conflict`);
//! - a call with effects, if moreover no weak edge lies between the program and it, and every read or look-up before it has come back as
//!   the graph expects: whole, without error. So a read that fails or comes back short stops every effect behind it, and so does an effect, but for
//!   those that are on their way beside it. After a call that was found behind others, which were left out, the next has to follow it first.
//!
//! What is used: the whole result of a read, a successful stat, and what an effect returned, unless it failed for a moment only. A call without effects
//! that failed or was short is made again by the program itself; so errors, ends of files and interruptions are exactly the program's own. Where the program
//! makes an effect itself that was made ahead, or one that nobody foresaw, what was made ahead behind it and conflicts with it is made anew, too (see
//! `Instance::outdate`).
//!
//! How far ahead: the window doubles when the program had to wait for a call that was on its way; what is certain is not waste, so of that it begins
//! large. What was learned of one device is not taken for another (see `device`). Where the data is cached, looking ahead rests (see `worth`).

mod harvest;
mod issue;
mod scan;
mod window;

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::buffers::{Block, Buffer, Buffers};
use crate::call::{Call, Kind};
use crate::conflict::File;
use crate::context::{self, Context, Progress, Start};
use crate::device;
use crate::graph::{Cursor, Engine, Follow, Options, Source};
use crate::memory::Mapped;
use crate::payback::{self, Misses, Share};
use crate::process;
use crate::stats::{Counts, Shared};
use scan::Scan;

/// Calls looked ahead at first, …
const FIRST_DEPTH: usize = 4;
/// … directories, where a tree is walked: as many as the pool lists at a time; and, where all of them are certain, as many as have [`FIRST_BYTES`].
const FIRST_DIRECTORIES: usize = 16;
/// A wait for such a disk, with so much on its way, is shorter: more would not end it, and leaves the processor's caches before it is used.
const LONG: Duration = Duration::from_millis(1);
/// Foreseen calls that are looked at to find the one that the program makes.
const SEARCH: usize = 16;
/// In place of a linked read that is over.
const GONE: u16 = u16::MAX;
/// In its place while it is not known whether the call before is linked.
const MAYBE: u16 = u16::MAX - 1;
/// Descriptors of which it is remembered what they name: a Get of LevelDB looks into twelve tables that have one each.
const FILES: usize = 16;
/// Directories that a run remembers to have listed.
const LISTED: usize = 16;

/// How the next call of the graph is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    Before,
    After(Cursor),
    Ended,
}

/// Whether the program's calls are looked for in the graph.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follows {
    Yes,
    /// They are only counted: looking ahead rests, or what they read is only fetched (see `scan`).
    Counting,
    /// One of them has waited: the next is looked for where the count says.
    Woken,
    /// It was not there.
    Lost,
}

/// Where a result goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Into {
    /// Into the caller's memory.
    Memory,
    /// Nowhere: the caller takes the buffer (see [`Instance::block`]).
    Block,
}

/// A run.
pub struct Instance<'g> {
    shared: &'g Shared,
    options: Options,
    pure: bool,
    /// `None`: every call is passed through.
    cx: Option<Mapped<Context>>,
    token: u64,
    tail: Tail,
    tail_weak: bool,
    tail_link: Option<u16>,
    /// The call that the program is making.
    current: Option<u16>,
    /// How far ahead on each device; 0: not asked for yet.
    depths: [usize; device::DEVICES],
    /// The device of the read that was issued last.
    device: usize,
    /// The `st_dev` of the file that it reads; 0: none yet.
    file_system: u64,
    /// A file, and a byte of it, of whose device nothing is known yet.
    unasked: Option<(File, i64)>,
    /// Calls that had been made when a depth was last doubled.
    deepened: u64,
    /// Calls in the window when it was last filled up.
    reach: usize,
    /// Calls in the window that may yet be issued.
    waiting: usize,
    /// Calls at positions, or effects, were seen: the order matters.
    ordered: bool,
    /// Kinds that the graph has foreseen so far, a bit each.
    kinds: u32,
    counts: Counts,
    began: Option<Instant>,
    handed: Option<Buffer>,
    files: [Option<File>; FILES],
    positions: [Option<(i32, Option<i64>)>; 8],
    listed: [i32; LISTED],
    listed_count: usize,
    /// The walk in which listers come to what is below this directory; 0: none.
    walk: usize,
    /// Looking ahead rested when the run began: its calls are only counted.
    resting: bool,
    follows: Follows,
    /// Calls of its loop that have passed while it was only counted.
    counted: u64,
    /// The function's calls from number `passed_from` on, of kinds in `passing_kinds` (a bit each), are made and nothing else, as long as fewer than
    /// `passes_until` have been made.
    passed_from: u64,
    passes_until: u64,
    passing_kinds: u32,
    /// Buffers of the thread, if any was taken without a context.
    buffers: Option<Buffers>,
    scan: Option<Scan>,
    /// What it has waited for, where the first wait earns nothing.
    misses: Misses,
    /// The call that the program is making was found not to be cached, and is counted there.
    asked: bool,
    /// Effects that other scopes had passed through when this one was last asked (see `context::changes`).
    changes: u64,
    /// Whether files may only become so long; `None`: not asked for yet.
    size_limit: Option<bool>,
    /// The last file system without a disk that was met, and whether it is one of the kernel's own (see `conflict::is_of_kernel`).
    diskless: Option<(u64, bool)>,
    /// The graph was switched off; what it has done ahead is still handed out.
    closing: bool,
    /// The last call was found behind others, which it may have been like by chance: no effect is certain before the next one follows it.
    unsure: bool,
    /// Nothing is in the window any more, and nothing comes into it.
    halted: bool,
    start: Start,
}

impl<'g> Instance<'g> {
    /// Begins a run. [`Start::Never`]: by system calls alone, within a call that a handler may make; what else is needed was prepared by
    /// [`stand_by`].
    pub fn new(shared: &'g Shared, options: Options, pure: bool, start: Start) -> Instance<'g> {
        let mut this = Instance {
            shared,
            options,
            pure,
            cx: None,
            token: 0,
            tail: Tail::Before,
            tail_weak: false,
            tail_link: None,
            current: None,
            depths: [0; device::DEVICES],
            device: 0,
            file_system: 0,
            unasked: None,
            deepened: 0,
            reach: 0,
            waiting: 0,
            ordered: false,
            kinds: 0,
            counts: Counts {
                scopes: 1,
                ..Counts::default()
            },
            began: None,
            handed: None,
            files: [None; FILES],
            positions: [None; 8],
            listed: [-1; LISTED],
            listed_count: 0,
            walk: 0,
            resting: false,
            follows: Follows::Yes,
            counted: 0,
            passed_from: 0,
            passes_until: 0,
            passing_kinds: 0,
            buffers: None,
            scan: None,
            misses: Misses::default(),
            asked: false,
            changes: context::changes(),
            size_limit: None,
            diskless: None,
            closing: false,
            unsure: false,
            halted: false,
            start,
        };
        if options.engine == Engine::Serial || shared.is_off() {
            return this;
        }
        this.scan = (options.fetch && this.is_alone() && this.adapts()).then(Scan::default);
        if this.adapts() && shared.payback.rests() {
            this.resting = true;
            return this;
        }
        this.equip(start);
        this
    }

    /// Takes what looking ahead needs. Without it calls are passed through.
    fn equip(&mut self, start: Start) {
        if self.adapts() {
            self.device = self.shared.device.load(Relaxed) as usize;
        }
        if start != Start::Never && !context::prepare() {
            return;
        }
        self.cx = Context::take(self.options.engine, self.options.beside, self.options.walk);
        self.token = self.cx.as_ref().map_or(0, |c| c.token);
        let short = self.is_short();
        if let Some(cx) = self.cx.as_mut()
            && self.options.engine != Engine::Check
        {
            cx.first_is_free = short;
            cx.enlist(start, !self.shared.without_pool.load(Relaxed));
        }
    }

    /// A run that began while looking ahead rested has waited: it is followed from here on, if how many calls it has made tells where it is.
    fn rise(&mut self, source: &dyn Source) {
        if !self.is_alone() || self.shared.is_off() {
            return;
        }
        let Follow::To { cursor, .. } = source.first() else {
            return;
        };
        if let Some(last) = source.skip(&cursor, self.counts.calls - 1) {
            self.resting = false;
            // A hook's call starts no thread.
            self.equip(match self.start {
                Start::WhenNeeded => Start::WhenNeeded,
                Start::Now | Start::Never => Start::Never,
            });
            self.tail = Tail::After(last);
            self.follows = match self.scan {
                Some(_) => Follows::Counting,
                None => Follows::Woken,
            };
        }
    }

    /// Whether its calls come one after the other, with no others in between.
    fn is_alone(&self) -> bool {
        self.pure && !self.options.among && !self.options.beside
    }

    /// Whether it makes a few reads among other calls, whose first wait is nobody's merit. What is listed of a tree serves later runs.
    fn is_short(&self) -> bool {
        self.pure && self.options.among && !self.options.walk && self.adapts()
    }

    /// Whether call `n` of a run is timed while looking ahead rests: all are where the second wait counts.
    fn is_timed(&self, n: u64, share: Share) -> bool {
        self.is_short() || payback::is_timed(n, share)
    }

    fn first_depth(&self) -> usize {
        if self.options.walk {
            FIRST_DIRECTORIES
        } else {
            FIRST_DEPTH
        }
    }

    /// How far to look ahead on a device. What is not known to be a disk, or none, begins anew in each run.
    fn depth_on(&mut self, device: usize) -> usize {
        if !self.adapts() {
            return self.options.depth;
        }
        if self.depths[device] == 0 {
            let learned = self.shared.depths[device].load(Relaxed) as usize;
            let begins = learned == 0 || device == device::UNSEEN;
            let depth = if begins { self.first_depth() } else { learned };
            self.depths[device] = depth.min(self.options.depth);
        }
        self.depths[device]
    }

    /// The program had to wait for the call of place `i`: its device is looked further ahead on.
    fn deepen(&mut self, i: u16) {
        let device = match self.read_at(i) {
            Some((file, at)) => device::of(&file, at),
            None => self.device,
        };
        let depth = self.depth_on(device);
        let weak = self.place(i).is_some_and(|p| p.weak_before || p.weak_after);
        // Under a head what nobody asks for takes as long as what is asked for: no more of it than was used.
        if weak && device::is_dear(device) && self.counts.calls - self.deepened < depth as u64 {
            return;
        }
        self.depths[device] = (depth * 2).min(self.options.depth);
        self.deepened = self.counts.calls;
    }

    /// Where the read of a place reads, if it is one.
    fn read_at(&mut self, i: u16) -> Option<(File, i64)> {
        let p = self.place(i)?;
        let (kind, fd, at) = (p.args.kind, p.args.fd, p.position?);
        kind.reads().then_some(())?;
        Some((self.file(fd)?, at))
    }

    /// The read of place `i` was waited for, and is done: how long its device took.
    fn see_latency(&mut self, i: u16) {
        if let Some(issued) = self.place(i).and_then(|p| p.issued)
            && let Some((file, at)) = self.read_at(i)
        {
            device::answered(&file, at, issued.elapsed().as_nanos());
        }
    }

    fn adapts(&self) -> bool {
        !self.options.fixed && self.options.engine != Engine::Check
    }

    /// Whether calls pass straight through from now on.
    pub fn is_passing(&self) -> bool {
        self.cx.is_none() || self.halted
    }

    /// Takes in what engines have finished; whether they have nothing any more.
    pub fn is_idle(&mut self) -> bool {
        if !process::is(self.token) {
            return true;
        }
        let Some(cx) = self.cx.as_mut() else {
            return true;
        };
        cx.poll_all();
        let idle = cx.on_ring + cx.in_pool == 0;
        self.settle_account();
        idle
    }

    fn switch_off(&mut self, why: &str) {
        self.shared.switch_off(why);
        self.closing = true;
    }

    /// Whether an effect is left that was made ahead and that the program is still to ask for.
    fn owes(&self) -> bool {
        let Some(cx) = self.cx.as_ref() else {
            return false;
        };
        cx.order.iter().chain(&self.current).any(|i| {
            let p = &cx.places[*i as usize];
            p.args.kind.has_effects() && (p.progress == Progress::Flying || p.stands())
        })
    }

    /// Stops as soon as that is not so.
    fn close_if_done(&mut self) {
        if !self.owes() {
            self.halt();
        }
    }

    /// Makes a call of the program: with the graph's help, or as if it weren't there.
    ///
    /// # Safety
    /// The call's pointers are what the system call wants; memory that it writes to is valid.
    pub unsafe fn make(&mut self, source: &dyn Source, call: &Call) -> isize {
        // SAFETY: as promised by the caller.
        let answer = unsafe { self.before(source, call, Into::Memory) };
        answer.unwrap_or_else(|| {
            if self.cx.is_none() && call.args.has_effects() {
                context::changed();
            }
            // SAFETY: as promised by the caller.
            let r = unsafe { call.make() };
            self.passed(source, r);
            r
        })
    }

    /// The call for which [`Instance::before`] gave no answer was made, with this result. Those behind it may pass ([`Instance::passes`]).
    pub fn passed(&mut self, source: &dyn Source, result: isize) {
        self.after(source, result);
        self.let_pass();
    }

    /// Whether the program's call is to be made and nothing else; it is counted then.
    #[inline(always)]
    pub fn passes(&mut self, kind: Kind) -> bool {
        let passes =
            self.counts.calls < self.passes_until && self.passing_kinds & (1 << kind as u32) != 0;
        self.counts.calls += u64::from(passes);
        passes
    }

    /// Says how many of the calls that come next are to be made and nothing else: most while looking ahead rests, or they are only counted.
    fn let_pass(&mut self) {
        let made = self.counts.calls;
        self.passed_from = made;
        let share = self.shared.payback.share();
        (self.passes_until, self.passing_kinds) = if self.resting {
            let timed = |n: &u64| self.is_timed(*n, share);
            ((made..).find(timed).unwrap_or(made), self.untold())
        } else if self.is_passing() {
            (u64::MAX, self.untold())
        } else if self.follows == Follows::Counting {
            let first = self.counted.wrapping_add(1);
            let looked_at =
                |n: &u64| payback::is_timed(first + n, share) || self.is_turn(first + n);
            let pass = (0..).find(looked_at);
            (made + pass.unwrap_or(0), self.kinds)
        } else {
            (made, 0)
        };
    }

    /// Kinds of calls that nobody is to know of, a bit each, while this scope passes its calls through. A scope around it looks ahead of reads that
    /// effects may change.
    fn untold(&self) -> u32 {
        if context::is_live() {
            let told = Kind::ALL
                .iter()
                .filter(|k| k.has_effects() || **k == Kind::Openat);
            told.fold(u32::MAX, |kinds, k| kinds & !(1 << *k as u32))
        } else {
            u32::MAX
        }
    }

    /// Takes those that have passed into account.
    fn catch_up(&mut self) {
        let until = std::mem::take(&mut self.passes_until);
        let passed = self
            .counts
            .calls
            .min(until)
            .saturating_sub(self.passed_from);
        if self.follows == Follows::Counting {
            self.counted = self.counted.wrapping_add(passed);
        }
    }

    /// The program makes a call. `Some`: this is its result (or negated errno). `None`: it is to be made now, and
    /// [`Instance::after`] told.
    ///
    /// # Safety
    /// As [`Instance::make`].
    pub unsafe fn before(&mut self, source: &dyn Source, call: &Call, into: Into) -> Option<isize> {
        match self.foresees(source, call) {
            // SAFETY: as promised by the caller.
            Some(at) => unsafe { self.begin(source, call, at, into) },
            None => {
                self.surprise(call);
                None
            }
        }
    }

    /// Where in the window the call is that the program is about to make.
    pub fn foresees(&mut self, source: &dyn Source, call: &Call) -> Option<usize> {
        self.catch_up();
        if self.is_passing() {
            return None;
        }
        let counting = self.follows == Follows::Counting;
        let turn = call.args.kind == Kind::Pread && self.is_turn(self.counted.wrapping_add(1));
        if counting && !turn || self.follows == Follows::Lost {
            return None;
        }
        if !process::is(self.token) {
            // A forked child: nothing that was foreseen is its own.
            if let Some(cx) = self.cx.take() {
                Context::left();
                Context::abandon(cx);
            }
            return None;
        }
        self.forget_caches();
        let changes = context::changes();
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.outdate_reads();
        }
        if self.scan.is_some() && (counting || self.tail == Tail::Before) {
            if self.sweep_on(source, call) {
                return None;
            }
            if counting {
                self.follows = Follows::Woken;
            }
        }
        self.wake(source);
        self.find(source, call)
    }

    /// The program makes a call that is not foreseen.
    pub fn surprise(&mut self, call: &Call) {
        self.counts.calls += 1;
        match self.follows {
            _ if self.is_passing() => {
                // A run may make few calls: the first counts.
                let share = self.shared.payback.share();
                if self.resting && self.is_timed(self.counts.calls - 1, share) {
                    self.began = Some(Instant::now());
                }
            }
            Follows::Counting => {
                if self.kinds & (1 << call.args.kind as u32) != 0 {
                    self.counted = self.counted.wrapping_add(1);
                    if payback::is_timed(self.counted, self.shared.payback.share()) {
                        self.began = Some(Instant::now());
                    }
                }
            }
            // It left calls out, unseen. Where it is can't be told any more.
            Follows::Woken => {
                self.follows = Follows::Lost;
                if self.scan.is_some() {
                    self.unforeseen(call);
                }
            }
            Follows::Lost => {}
            Follows::Yes => self.unforeseen(call),
        }
    }

    /// The thread makes a call of another scope's, or of none: what it changes is looked at anew.
    pub fn notice(&mut self, call: &Call) {
        if self.is_passing() || !process::is(self.token) {
            return;
        }
        self.forget_caches();
        self.disturbed(call);
    }

    /// The thread is about to close descriptors `first..=last`.
    pub fn closing_range(&mut self, first: u32, last: u32) {
        if !self.is_passing() && process::is(self.token) {
            // AT_FDCWD is none of them.
            self.settle(|fd| fd >= 0 && (first..=last).contains(&(fd as u32)));
        }
    }

    /// The program makes the call that [`Instance::foresees`] found at `at`.
    ///
    /// # Safety
    /// As [`Instance::make`].
    pub unsafe fn begin(
        &mut self,
        source: &dyn Source,
        call: &Call,
        at: usize,
        into: Into,
    ) -> Option<isize> {
        self.counts.calls += 1;
        self.follows = Follows::Yes;
        self.unsure = at > 0;
        self.advance(at);
        let (known, longer) =
            self.current
                .and_then(|i| self.place(i))
                .map_or((false, false), |p| {
                    let known = p.progress != Progress::NotReady;
                    (known, call.args.len > p.args.len)
                });
        self.counts.foreseen += u64::from(known);
        self.cx.as_ref()?;
        let i = self.current?;
        self.look_at_warmed(i);
        // Those behind it were made ahead as if it had no effects, or less.
        let surprises = (!known || longer) && self.may_outdate(call);
        self.adopt(i, call);
        let was_issued = |p: &crate::context::Place| {
            p.args.kind.runs_ahead() && matches!(p.progress, Progress::Flying | Progress::Done)
        };
        let was_ahead = self.place(i).is_some_and(was_issued);
        self.pump(source);
        if self.is_passing() {
            return None;
        }
        if call.args.kind == Kind::Close {
            self.settle(|fd| fd == call.args.fd);
        }
        let answer = if self.place(i).is_some_and(was_issued) {
            self.wait(source, i, was_ahead);
            // SAFETY: as promised by the caller.
            unsafe { self.harvest(i, call, into) }
        } else {
            None
        };
        match answer {
            Some(r) => {
                self.counts.hits += 1;
                self.finish_current(source, r);
                Some(r)
            }
            None => {
                let made = |p: &crate::context::Place| was_issued(p) && !p.pretended;
                let again = call.args.kind.has_effects() && self.place(i).is_some_and(made);
                if again || surprises {
                    self.outdate(call);
                }
                let timed = call.args.kind.runs_ahead() || call.args.kind == Kind::Openat;
                if self.adapts() && timed {
                    self.began = Some(Instant::now());
                }
                None
            }
        }
    }

    /// The call for which [`Instance::before`] gave no answer was made, with this result.
    pub fn after(&mut self, source: &dyn Source, result: isize) {
        if let Some(began) = self.began.take() {
            let took = began.elapsed();
            let nanos = self.shared.payback.waited(took);
            let waited = nanos > 0;
            let asked = std::mem::take(&mut self.asked);
            if waited {
                self.earn(nanos, asked);
            }
            if waited && self.follows == Follows::Counting {
                match &mut self.scan {
                    Some(scan) => scan.waited(took),
                    None => self.follows = Follows::Woken,
                }
            }
            if waited && self.resting {
                self.rise(source);
            }
            if waited
                && let Some(i) = self.current
                && self
                    .place(i)
                    .is_some_and(|p| p.warmed && p.args.kind.reads())
            {
                self.see_latency(i);
                self.deepen(i);
            }
        }
        if self.cx.is_some() && process::is(self.token) {
            self.finish_current(source, result);
        }
    }

    /// A call was waited for, so long. `asked`: it was counted when it was found not to be cached.
    pub(super) fn earn(&mut self, nanos: i64, asked: bool) {
        let earned = if self.is_short() {
            self.misses.waited(nanos, asked)
        } else {
            nanos
        };
        self.shared.payback.enter(earned);
    }

    /// The buffer of the last answer that went to [`Into::Block`].
    pub fn block(&mut self, len: usize) -> Option<Block> {
        self.handed.take().map(|b| Block::new(b, len))
    }

    /// A buffer for a read that the caller makes itself.
    pub fn buffer(&mut self, len: usize) -> Option<Buffer> {
        if let Some(cx) = self.cx.as_ref() {
            return cx.buffers.take(len);
        }
        if self.buffers.is_none() {
            self.buffers = Buffers::of_thread();
        }
        self.buffers.as_ref()?.take(len)
    }

    fn finish_current(&mut self, source: &dyn Source, result: isize) {
        if let Some(i) = self.current.take()
            && let Some(cx) = self.cx.as_mut()
        {
            let p = &cx.places[i as usize];
            let cursor = p.cursor;
            if self.options.engine == Engine::Check {
                let moves = p.args.kind.reads() || p.args.kind.writes();
                let whole = result >= 0 && (!moves || result as usize == p.args.len);
                if whole && p.link {
                    p.read_again();
                } else if !whole && (self.options.stops || !p.args.kind.has_effects()) {
                    self.not_pretended();
                }
            }
            if let Some(cx) = self.cx.as_mut() {
                cx.release(i);
            }
            self.unlink(i);
            if !self.closing {
                source.harvest(&cursor, result);
            }
            self.doze(source);
        }
        if self.closing {
            self.close_if_done();
        }
    }

    /// A read came back short, or a look-up failed, or an effect on whose success others depend: in a normal run no effect behind it would have been made
    /// ahead.
    fn not_pretended(&mut self) {
        let Some(cx) = self.cx.as_deref_mut() else {
            return;
        };
        for n in 0..cx.order.len() {
            let p = &mut cx.places[cx.order[n] as usize];
            // The function may end here.
            p.weak_before |= self.options.stops && n == 0;
            if p.pretended && p.args.kind.has_effects() {
                p.pretended = false;
                p.progress = Progress::Ready;
                p.buffer = None;
                self.waiting += 1;
            }
        }
    }

    /// While looking ahead rests and nothing is under way, the calls of a loop without effects are not followed, only counted.
    fn doze(&mut self, source: &dyn Source) {
        let Some(cx) = self.cx.as_ref() else { return };
        let rests = self.shared.payback.rests();
        let idle = cx.order.is_empty() && cx.on_ring + cx.in_pool == 0;
        let Tail::After(last) = self.tail else { return };
        if rests && idle && self.is_alone() && self.adapts() && source.skip(&last, 0).is_some() {
            self.follows = Follows::Counting;
            self.counted = 0;
            if let Some(scan) = &mut self.scan {
                *scan = Scan::default();
            }
        }
    }

    /// Finds the place in the loop again.
    fn wake(&mut self, source: &dyn Source) {
        if self.counted == 0 {
            return;
        }
        if let Tail::After(last) = self.tail
            && let Some(now) = source.skip(&last, self.counted)
        {
            self.tail = Tail::After(now);
        }
        self.counted = 0;
    }

    /// What was only warmed and is now asked for: how far ahead was enough, or not.
    fn look_at_warmed(&mut self, i: u16) {
        let (adapts, short) = (self.adapts(), self.is_short());
        self.asked = false;
        let Some(cx) = self.cx.as_mut() else { return };
        if !cx.places[i as usize].warmed {
            return;
        }
        cx.poll_all();
        let p = &cx.places[i as usize];
        if p.args.kind.reads() && p.quick == Some(false) {
            cx.account += if short {
                self.misses.asked()
            } else {
                payback::WAIT
            };
            self.asked = short;
        }
        if adapts && cx.places[i as usize].progress == Progress::Flying {
            self.deepen(i);
        }
    }

    /// Has the engines' calls that have come back told of in the account.
    fn settle_account(&mut self) {
        if let Some(cx) = self.cx.as_mut()
            && !self.options.fixed
        {
            self.shared.payback.enter(std::mem::take(&mut cx.account));
        }
    }

    fn place(&self, i: u16) -> Option<&crate::context::Place> {
        self.cx.as_ref()?.places.get(i as usize)
    }

    /// Cancels what is in flight, and passes everything through from now on.
    pub fn stop(&mut self) {
        self.halt();
        self.settle_account();
        self.handed = None;
        if let Some(cx) = self.cx.take() {
            if self.counts.ahead > 0 {
                let without = !cx.wanted_pool;
                self.shared.without_pool.store(without, Relaxed);
            }
            Context::give_back(cx);
        }
    }

    /// Cancels what is in flight and asks the graph for nothing more, without giving memory back: also in a signal handler.
    pub fn halt(&mut self) {
        let Some(cx) = self.cx.as_mut() else { return };
        if !process::is(self.token) {
            if let Some(cx) = self.cx.take() {
                Context::left();
                Context::abandon(cx);
            }
            return;
        }
        self.closing = true;
        self.halted = true;
        if let Some(i) = self.current.take() {
            cx.release(i);
        }
        // What no thread has begun is taken back before anything is waited for, and so is what nobody wants any more.
        if cx.in_pool > 0 {
            for i in 0..cx.places.len() as u16 {
                cx.take_back(i);
            }
        }
        cx.drain();
        while let Some(i) = self.pop() {
            self.discard(i);
        }
    }

    /// The thread is about to change who makes its calls, or with which limits (`names_only`: only where its paths lead).
    pub fn unsettle(&mut self, names_only: bool) {
        if self.is_passing() || !process::is(self.token) || names_only && self.pure {
            return;
        }
        let why = "the function changes its user, its limits or its paths between effects that are certain";
        // Between effects that are certain the thread must not do that.
        match self.retire() {
            Some(true) => self.shared.note(format_args!("{why}")),
            Some(false) => self.shared.switch_off(why),
            None => {}
        }
    }

    /// From now on the graph is asked for nothing, and nothing is made ahead: what nobody has begun is taken back, effects that are under way are waited for.
    /// Those that were made are still handed out. Says whether there are any, and whether they are the check's.
    pub fn retire(&mut self) -> Option<bool> {
        if self.is_passing() || !process::is(self.token) {
            self.halt();
            return None;
        }
        self.closing = true;
        let cx = self.cx.as_deref_mut()?;
        let mut effects = None;
        for n in 0..cx.order.len() {
            let i = cx.order[n];
            if cx.take_back(i) {
                cx.places[i as usize].never = true;
                continue;
            }
            cx.land(i);
            let p = &mut cx.places[i as usize];
            if p.progress != Progress::Done {
                continue;
            }
            if p.args.kind.has_effects() {
                effects.get_or_insert(p.pretended);
            } else {
                p.stale = true;
            }
        }
        self.close_if_done();
        effects
    }

    /// The process is about to be forked. Either process may go on in the function: nothing that has effects is made ahead any more.
    pub fn forking(&mut self) {
        if !self.pure && self.retire() == Some(true) {
            self.shared.note(format_args!(
                "the function forks between effects that are certain"
            ));
        }
    }

    /// This is the child: effects that were made are handed out here, too. `false`: there are none.
    pub fn forked(&mut self) -> bool {
        let owes = self.closing && self.owes();
        let (Some(cx), Some(token), true) = (self.cx.as_mut(), process::token(), owes) else {
            return false;
        };
        cx.inherit(token);
        self.token = token;
        true
    }

    /// Ends the run.
    pub fn end(&mut self) {
        let was_passing = self.is_passing();
        if self.options.engine == Engine::Check && !was_passing && process::is(self.token) {
            self.ended_early();
        }
        self.stop();
        if self.adapts() && !was_passing {
            if self.counts.unused > self.counts.hits {
                self.depths[self.device] = (self.depth_on(self.device) / 2).max(1);
            }
            for (depth, learned) in self.depths.iter().zip(&self.shared.depths) {
                if *depth != 0 {
                    learned.store(*depth as u32, Relaxed);
                }
            }
            self.shared.device.store(self.device as u32, Relaxed);
        }
        // The check uses nothing.
        let among = self.options.among && self.options.engine != Engine::Check;
        self.shared.ended(&std::mem::take(&mut self.counts), among);
    }
}

/// Keeps what a run that begins quietly can't get.
pub struct StandBy {
    token: u64,
    enlisted: bool,
}

/// Prepares the thread and the pool for runs that begin quietly. `None` where that can't be.
pub fn stand_by(options: &Options) -> Option<StandBy> {
    if matches!(options.engine, Engine::Serial) || !context::prepare() {
        return None;
    }
    let token = process::token()?;
    let enlisted = options.engine != Engine::Check;
    if enlisted {
        process::pool()?.enlist(false);
    }
    Some(StandBy { token, enlisted })
}

impl Drop for StandBy {
    fn drop(&mut self) {
        if self.enlisted
            && process::is(self.token)
            && let Some(pool) = process::pool()
        {
            pool.discharge();
        }
    }
}

/// Whether a call's descriptor is the file itself, not a directory for its path.
fn uses_file(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Read
            | Kind::Pread
            | Kind::Write
            | Kind::Pwrite
            | Kind::Fstat
            | Kind::Fsync
            | Kind::Getdents
            | Kind::Lseek
    )
}

fn path_bytes<'a>(path: *const u8) -> &'a [u8] {
    if path.is_null() {
        return &[];
    }
    // SAFETY: a C string, ours or the caller's, that outlives the walk.
    unsafe { core::ffi::CStr::from_ptr(path.cast()) }.to_bytes()
}

impl Context {
    /// The call of a place in words.
    fn words(&self, i: u16) -> Words<'_> {
        let p = &self.places[i as usize];
        let (path, second_path) = self.paths(i);
        Words {
            args: (p.progress != Progress::NotReady).then_some(p.args),
            kind: p.kind,
            path,
            second_path,
        }
    }

    /// The paths of a place; empty where its call has none.
    fn paths(&self, i: u16) -> (&[u8], &[u8]) {
        if !self.places[i as usize].args.kind.takes_path() {
            return (&[], &[]);
        }
        let f = &self.flights[i as usize];
        (path_bytes(f.path()), path_bytes(f.second_path()))
    }
}

/// A call in words, for who is told of a problem.
struct Words<'a> {
    /// `None`: of this kind at most is known.
    args: Option<crate::call::Args>,
    kind: Option<Kind>,
    path: &'a [u8],
    second_path: &'a [u8],
}

impl<'a> Words<'a> {
    /// The call that the program makes.
    fn of(call: &'a Call) -> Words<'a> {
        Words {
            args: Some(call.args),
            kind: Some(call.args.kind),
            path: path_bytes(call.path.cast()),
            second_path: path_bytes(call.second_path.cast()),
        }
    }
}

impl std::fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(a) = self.args else {
            return match self.kind {
                Some(k) => write!(f, "{} (not ready)", k.name()),
                None => f.write_str("a call"),
            };
        };
        if a.kind == Kind::Write && a.len == 0 {
            // Whatever function changes it.
            return write!(f, "a change of the file of descriptor {}", a.fd);
        }
        write!(f, "{}(", a.kind.name())?;
        if a.fd == libc::AT_FDCWD {
            f.write_str("AT_FDCWD")?;
        } else {
            write!(f, "{}", a.fd)?;
        }
        let (path, second) = (self.path.escape_ascii(), self.second_path.escape_ascii());
        match a.kind {
            Kind::Pread | Kind::Pwrite => write!(f, ", {} bytes at {}", a.len, a.offset)?,
            Kind::Read | Kind::Write | Kind::Getdents => write!(f, ", {} bytes", a.len)?,
            Kind::Lseek => write!(f, ", {}, whence {}", a.offset, a.flags)?,
            Kind::Renameat => write!(f, ", \"{path}\", {}, \"{second}\"", a.fd2)?,
            Kind::Mkdirat => write!(f, ", \"{path}\", mode {:#o}", a.extra)?,
            Kind::Openat | Kind::Fstatat | Kind::Statx | Kind::Unlinkat => {
                write!(f, ", \"{path}\", flags {:#x}", a.flags)?;
            }
            Kind::Close | Kind::Fstat | Kind::Fsync => {}
        }
        f.write_str(")")
    }
}
