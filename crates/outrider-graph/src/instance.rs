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
//!   the graph expects: whole, without error. So a read that fails or comes back short stops every effect behind it.
//!
//! What is used: the whole result of a read, a successful stat, and what an effect returned. A call without effects that failed or was
//! short is made again by the program itself; so errors, ends of files and interruptions are exactly the program's own.
//!
//! How far ahead: the window doubles when the program had to wait for a call that was on its way. When call after call would have been
//! quick anyway (the data was cached), looking ahead rests for a while, each time for longer.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use outrider_sys::raw::{self, syscall6};

use crate::buffers::{Block, Buffer, LARGEST};
use crate::call::{Call, Data, Kind};
use crate::conflict::{File, Touch, conflict, has_effects};
use crate::context::{Context, Progress};
use crate::graph::{At, Cursor, Engine, Follow, Options, Source, is_linked};
use crate::process;
use crate::stats::{Counts, Shared};

/// Most calls that are looked ahead: twice what kept the fastest measured device busy.
pub const DEEPEST_WINDOW: usize = 128;
/// A call quicker than this did not wait for a device; 4 KiB from the cache take 0.3 to 0.6 µs, the fastest disks 10 µs and more.
pub const QUICK_NANOS: u64 = 8_000;
/// Calls looked ahead at first.
const FIRST_DEPTH: usize = 4;
/// So many quick calls in a row end in a rest …
const QUICK_ROW: u32 = 64;
/// … of so many calls …
const FIRST_REST: u64 = 256;
/// … up to so many, after which so many quick calls suffice for the next.
const LONGEST_REST: u64 = 65_536;
const QUICK_AFTER_REST: u32 = 16;
/// One call in so many is timed while a whole run rests.
const SAMPLE: u64 = 4;
/// Foreseen calls that are looked at to find the one that the program makes.
const SEARCH: usize = 16;
/// In place of a linked read that is over.
const GONE: u16 = u16::MAX;
/// Directories that a run remembers to have listed.
const LISTED: usize = 16;

/// How the next call of the graph is found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    Before,
    After(Cursor),
    Ended,
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
    cx: Option<Box<Context>>,
    token: u64,
    tail: Tail,
    tail_weak: bool,
    tail_link: Option<u16>,
    /// The call that the program is making.
    current: Option<u16>,
    depth: usize,
    /// Calls in the window that may yet be issued.
    waiting: usize,
    /// Calls at positions, or effects, were seen: the order matters.
    ordered: bool,
    /// Kinds that the graph has foreseen so far, a bit each.
    kinds: u32,
    counts: Counts,
    began: Option<Instant>,
    handed: Option<Buffer>,
    files: [Option<File>; 8],
    positions: [Option<(i32, Option<i64>)>; 8],
    listed: [i32; LISTED],
    listed_count: usize,
    resting: bool,
}

impl<'g> Instance<'g> {
    /// Begins a run.
    pub fn new(shared: &'g Shared, options: Options, pure: bool) -> Instance<'g> {
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
            depth: options.depth,
            waiting: 0,
            ordered: false,
            kinds: 0,
            counts: Counts {
                scopes: 1,
                ..Counts::default()
            },
            began: None,
            handed: None,
            files: [None; 8],
            positions: [None; 8],
            listed: [-1; LISTED],
            listed_count: 0,
            resting: false,
        };
        if options.engine == Engine::Serial || shared.is_off() {
            return this;
        }
        if this.adapts() {
            if shared.rest.load(Relaxed) > 0 {
                this.resting = true;
                return this;
            }
            let known = shared.depth.load(Relaxed) as usize;
            this.depth = if known == 0 { FIRST_DEPTH } else { known }.min(options.depth);
        }
        this.cx = Context::take(options.engine);
        this.token = this.cx.as_ref().map_or(0, |c| c.token);
        this
    }

    fn adapts(&self) -> bool {
        !self.options.fixed && self.options.engine != Engine::Check
    }

    /// Whether calls pass straight through from now on.
    pub fn is_passing(&self) -> bool {
        self.cx.is_none()
    }

    fn switch_off(&mut self, why: &str) {
        self.shared.switch_off(why);
        self.stop();
    }

    /// Makes a call of the program: with the graph's help, or as if it weren't there.
    ///
    /// # Safety
    /// The call's pointers are what the system call wants; memory that it writes to is valid.
    pub unsafe fn make(&mut self, source: &dyn Source, call: &Call) -> isize {
        // SAFETY: as promised by the caller.
        match unsafe { self.before(source, call, Into::Memory) } {
            Some(r) => r,
            None => {
                // SAFETY: as promised by the caller.
                let r = unsafe { call.make() };
                self.after(source, r);
                r
            }
        }
    }

    /// The program makes a call. `Some`: this is its result (or negated errno). `None`: it is to be made now, and
    /// [`Instance::after`] told.
    ///
    /// # Safety
    /// As [`Instance::make`].
    pub unsafe fn before(&mut self, source: &dyn Source, call: &Call, into: Into) -> Option<isize> {
        self.counts.calls += 1;
        if self.cx.is_none() {
            if self.resting && self.counts.calls.is_multiple_of(SAMPLE) {
                self.began = Some(Instant::now());
            }
            return None;
        }
        if !process::is(self.token) {
            // A forked child: nothing that was foreseen is its own.
            if let Some(cx) = self.cx.take() {
                Context::left();
                cx.abandon();
            }
            return None;
        }
        self.forget_caches();
        let Some(at) = self.find(source, call) else {
            self.unforeseen(call);
            return None;
        };
        self.advance(at);
        self.cx.as_ref()?;
        let i = self.current?;
        self.adopt(i, call);
        self.pump(source);
        self.cx.as_ref()?;
        if call.args.kind == Kind::Close {
            self.settle(call.args.fd);
        }
        let answer = if self.place(i).is_some_and(|p| {
            p.args.kind.runs_ahead() && matches!(p.progress, Progress::Flying | Progress::Done)
        }) {
            self.wait(source, i);
            // SAFETY: as promised by the caller.
            unsafe { self.harvest(i, call, into) }
        } else {
            None
        };
        match answer {
            Some(r) => {
                self.counts.hits += 1;
                if let Some(quick) = self.place(i).and_then(|p| p.quick) {
                    self.noticed(quick);
                }
                self.finish_current(source, r);
                Some(r)
            }
            None => {
                if self.adapts() && call.args.kind.runs_ahead() {
                    self.began = Some(Instant::now());
                }
                None
            }
        }
    }

    /// The call for which [`Instance::before`] gave no answer was made, with this result.
    pub fn after(&mut self, source: &dyn Source, result: isize) {
        if let Some(began) = self.began.take() {
            self.noticed((began.elapsed().as_nanos() as u64) < QUICK_NANOS);
        }
        if self.cx.is_some() && process::is(self.token) {
            self.finish_current(source, result);
        }
    }

    /// The buffer of the last answer that went to [`Into::Block`].
    pub fn block(&mut self, len: usize) -> Option<Block> {
        self.handed.take().map(|b| Block::new(b, len))
    }

    /// A buffer for a read that the caller makes itself.
    pub fn buffer(&self, len: usize) -> Option<Buffer> {
        self.cx.as_ref()?.buffers.take(len)
    }

    fn finish_current(&mut self, source: &dyn Source, result: isize) {
        if let Some(i) = self.current.take()
            && let Some(cx) = self.cx.as_mut()
        {
            let cursor = cx.places[i as usize].cursor;
            cx.release(i);
            self.unlink(i);
            source.harvest(&cursor, result);
        }
    }

    fn place(&self, i: u16) -> Option<&crate::context::Place> {
        self.cx.as_ref()?.places.get(i as usize)
    }

    /// A call of the program was quick or not, without or in spite of us.
    fn noticed(&mut self, quick: bool) {
        if !self.adapts() {
            return;
        }
        let s = self.shared;
        if !quick {
            s.quick.store(0, Relaxed);
            s.next_rest.store(FIRST_REST, Relaxed);
            s.rest.store(0, Relaxed);
            return;
        }
        if s.rest.load(Relaxed) > 0 {
            return;
        }
        if s.quick.fetch_add(1, Relaxed) + 1 >= QUICK_ROW {
            s.quick.store(QUICK_ROW - QUICK_AFTER_REST, Relaxed);
            let rest = s.next_rest.load(Relaxed).max(FIRST_REST);
            s.next_rest.store((rest * 2).min(LONGEST_REST), Relaxed);
            s.rest.store(rest, Relaxed);
        }
    }

    // ---- the window

    fn forget_caches(&mut self) {
        self.files = [None; 8];
        self.positions = [None; 8];
    }

    /// Adds the next call to the window. `false`: there is none, or none is known yet.
    fn extend(&mut self, source: &dyn Source) -> bool {
        let follow = match self.tail {
            Tail::Before => source.first(),
            Tail::After(c) => source.after(&c),
            Tail::Ended => return false,
        };
        let (cursor, weak) = match follow {
            Follow::To { cursor, weak } => (cursor, weak),
            Follow::Unknown => return false,
            Follow::End => {
                self.tail = Tail::Ended;
                return false;
            }
            Follow::Broken(why) => {
                self.switch_off(why);
                return false;
            }
        };
        let at = source.at(&cursor);
        if let At::End = at {
            self.tail = Tail::Ended;
            return false;
        }
        let Some(cx) = self.cx.as_mut() else {
            return false;
        };
        let Some(i) = cx.place(cursor) else {
            return false;
        };
        cx.places[i as usize].weak_before = weak || self.tail_weak;
        cx.order.push_back(i);
        self.tail = Tail::After(cursor);
        self.tail_weak = false;
        self.waiting += 1;
        let expected = self.tail_link.take();
        cx.places[i as usize].linked = expected;
        self.fill(i, at);
        self.cx.is_some()
    }

    /// Puts what the graph says of a place into it.
    fn fill(&mut self, i: u16, at: At<'_>) {
        let pure = self.pure;
        let is_tail = {
            let Some(cx) = self.cx.as_ref() else { return };
            cx.order.back() == Some(&i)
        };
        match at {
            At::NotReady(kind) => {
                if let Some(cx) = self.cx.as_mut() {
                    cx.places[i as usize].kind = kind;
                }
                if is_tail && kind.is_none() && !pure {
                    self.tail_weak = true;
                }
            }
            At::Call { op, link, weak } => {
                let Some(cx) = self.cx.as_mut() else { return };
                // It will write at most what its read was asked for.
                let most = match cx.places[i as usize].linked {
                    None | Some(GONE) => i64::MAX as usize,
                    Some(read) => cx.places[read as usize].args.len,
                };
                let p = &mut cx.places[i as usize];
                let linked = is_linked(&op);
                if linked != p.linked.is_some() {
                    let why = if linked {
                        "a write takes its bytes from a read that is not linked to it"
                    } else {
                        "what follows a linked read is no write of its bytes"
                    };
                    return self.switch_off(why);
                }
                p.args = op.args();
                if linked {
                    p.args.len = most;
                }
                p.kind = Some(p.args.kind);
                p.link = link;
                p.weak_after = weak;
                p.progress = Progress::Ready;
                let kept = cx.flights[i as usize].keep_paths(op.path(), op.second_path());
                p.long = !kept;
                if !kept || matches!(p.args.kind, Kind::Close | Kind::Lseek) {
                    p.never = true;
                    self.waiting -= 1;
                }
                let kind = p.args.kind;
                if has_effects(&p.args)
                    || matches!(kind, Kind::Read | Kind::Write | Kind::Lseek | Kind::Close)
                {
                    self.ordered = true;
                }
                self.kinds |= 1 << kind as u32;
                if is_tail {
                    self.tail_weak = weak;
                    self.tail_link = link.then_some(i);
                } else if link || weak {
                    // The next one is in the window already, as if nothing was known of this one.
                    let position = cx.order.iter().position(|x| *x == i);
                    if let Some(next) = position.and_then(|n| cx.order.get(n + 1)).copied() {
                        let next = &mut cx.places[next as usize];
                        next.weak_before |= weak;
                        if link && next.progress == Progress::NotReady {
                            next.linked = Some(i);
                        }
                    }
                }
            }
            At::End => {}
            At::Broken(why) => self.switch_off(why),
        }
    }

    /// Asks again for the arguments of a place that was not ready.
    fn ask_again(&mut self, source: &dyn Source, i: u16) {
        let Some(p) = self.place(i) else { return };
        if p.progress == Progress::NotReady {
            let at = source.at(&p.cursor.clone());
            self.fill(i, at);
        }
    }

    /// The number in the window of the call that the program makes.
    fn find(&mut self, source: &dyn Source, call: &Call) -> Option<usize> {
        let mut maybe = false;
        for n in 0..SEARCH {
            if self.cx.as_ref()?.order.len() == n && !self.extend(source) {
                break;
            }
            let i = *self.cx.as_ref()?.order.get(n)?;
            self.ask_again(source, i);
            let p = self.place(i)?;
            match p.progress {
                Progress::NotReady => {
                    maybe |= n == 0 && p.kind.is_none_or(|k| k == call.args.kind);
                    // Nothing is known of it, so nothing is known of what would be left out with it.
                    if !self.pure && p.kind.is_none_or(Kind::has_effects) {
                        break;
                    }
                }
                _ if self.matches(source, i, call) => return Some(n),
                Progress::Flying | Progress::Done if p.args.kind.has_effects() => break,
                _ => {}
            }
        }
        maybe.then_some(0)
    }

    fn matches(&self, source: &dyn Source, i: u16, call: &Call) -> bool {
        let Some(cx) = self.cx.as_ref() else {
            return false;
        };
        let (p, f) = (&cx.places[i as usize], &cx.flights[i as usize]);
        let open_linked = p.linked.is_some() && p.progress == Progress::Ready;
        let numbers = if open_linked {
            (p.args.kind, p.args.fd, p.args.offset)
                == (call.args.kind, call.args.fd, call.args.offset)
        } else {
            p.args == call.args
        };
        if numbers && p.long {
            let At::Call { op, .. } = source.at(&p.cursor) else {
                return false;
            };
            fn ours(path: Option<&core::ffi::CStr>) -> &[u8] {
                path.map_or(&[], core::ffi::CStr::to_bytes)
            }
            return ours(op.path()) == path_bytes(call.path.cast())
                && ours(op.second_path()) == path_bytes(call.second_path.cast());
        }
        numbers && same_path(f.path(), call.path) && same_path(f.second_path(), call.second_path)
    }

    /// The call that is `n`-th in the window is made; those before it are left out.
    fn advance(&mut self, n: usize) {
        for _ in 0..n {
            if let Some(i) = self.pop() {
                self.counts.skipped += 1;
                self.discard(i);
            }
        }
        self.current = self.pop();
    }

    /// A call that was not issued has the arguments that the program gives it.
    fn adopt(&mut self, i: u16, call: &Call) {
        let Some(cx) = self.cx.as_mut() else { return };
        let p = &mut cx.places[i as usize];
        if !matches!(p.progress, Progress::NotReady | Progress::Ready) {
            return;
        }
        p.args = call.args;
        p.kind = Some(call.args.kind);
        p.linked = None;
        p.never = true;
        if p.progress == Progress::NotReady {
            p.progress = Progress::Ready;
            let path = |at: *const core::ffi::c_char| {
                // SAFETY: the caller's C strings.
                (!at.is_null()).then(|| unsafe { core::ffi::CStr::from_ptr(at) })
            };
            cx.flights[i as usize].keep_paths(path(call.path), path(call.second_path));
            self.ordered |= has_effects(&call.args) || call.args.kind == Kind::Read;
        }
    }

    fn pop(&mut self) -> Option<u16> {
        let cx = self.cx.as_mut()?;
        let i = cx.order.pop_front()?;
        let p = &cx.places[i as usize];
        if matches!(p.progress, Progress::NotReady | Progress::Ready) && !p.never && !p.warmed {
            self.waiting = self.waiting.saturating_sub(1);
        }
        Some(i)
    }

    /// A foreseen call does not come.
    fn discard(&mut self, i: u16) {
        let Some(cx) = self.cx.as_mut() else { return };
        let taken_back = cx.take_back(i);
        let p = &cx.places[i as usize];
        let issued = matches!(p.progress, Progress::Flying | Progress::Done);
        if issued && p.args.kind.runs_ahead() {
            self.counts.unused += 1;
            if p.args.kind.has_effects() && !taken_back {
                self.counts.unclaimed_effects += 1;
                let verb = if p.pretended {
                    "would have been"
                } else {
                    "was"
                };
                let problem = format!(
                    "{} {verb} made ahead as certain, and the function did not call it",
                    describe(p)
                );
                self.shared.note(problem.clone());
                self.shared.switch_off(&problem);
            }
        }
        cx.release(i);
        self.unlink(i);
    }

    /// The read that place `i` held is over: a linked write that was not issued before is not made ahead any more.
    fn unlink(&mut self, i: u16) {
        if self.tail_link == Some(i) {
            self.tail_link = Some(GONE);
        }
        if let Some(cx) = self.cx.as_mut()
            && let Some(next) = cx.order.front().copied()
            && cx.places[next as usize].linked == Some(i)
        {
            cx.places[next as usize].linked = Some(GONE);
        }
    }

    /// The program makes a call that the graph does not have here.
    fn unforeseen(&mut self, call: &Call) {
        // Calls that the graph never speaks of are no reason to doubt it.
        if self.kinds & (1 << call.args.kind as u32) != 0 {
            self.counts.divergences += 1;
            if self.options.engine == Engine::Check {
                let expected = self
                    .cx
                    .as_ref()
                    .and_then(|cx| cx.order.front().map(|i| describe(&cx.places[*i as usize])));
                self.shared.note(format!(
                    "the function called {}, where {} was foreseen",
                    describe_args(&call.args),
                    expected.as_deref().unwrap_or("nothing")
                ));
            } else {
                self.shared.diverged(&self.counts);
                if self.shared.is_off() {
                    return self.stop();
                }
            }
        }
        if call.args.kind == Kind::Close {
            self.settle(call.args.fd);
        } else if has_effects(&call.args) {
            self.outdate(call);
        }
    }

    /// Waits until nothing uses a descriptor that the program is about to close, and forgets what was read from it.
    fn settle(&mut self, fd: i32) {
        let Some(cx) = self.cx.as_mut() else { return };
        for i in 0..cx.places.len() as u16 {
            let p = &mut cx.places[i as usize];
            let uses = p.args.fd == fd || p.args.kind == Kind::Renameat && p.args.fd2 == fd;
            if !uses || Some(i) == self.current {
                continue;
            }
            p.stale = true;
            if p.warmed {
                cx.take_back(i);
            }
            while !cx.poll(i) && !cx.broken {
                cx.sleep(i);
            }
        }
        if let Some(n) = self.listed[..self.listed_count]
            .iter()
            .position(|f| *f == fd)
        {
            self.listed_count -= 1;
            self.listed.swap(n, self.listed_count);
        }
    }

    /// The program has effects that the graph did not foresee: what was read ahead and may be different now is forgotten.
    fn outdate(&mut self, call: &Call) {
        let file = self.file(call.args.fd);
        let path = path_bytes(call.path.cast());
        let mut n = 0;
        while let Some(i) = self.cx.as_ref().and_then(|cx| cx.order.get(n).copied()) {
            n += 1;
            let Some((args, position)) = self.place(i).map(|p| (p.args, p.position)) else {
                return;
            };
            let own = if uses_file(args.kind) {
                self.file(args.fd)
            } else {
                None
            };
            let Some(cx) = self.cx.as_mut() else { return };
            let p = &mut cx.places[i as usize];
            if !matches!(p.progress, Progress::Flying | Progress::Done) || args.kind.has_effects() {
                continue;
            }
            let theirs = Touch {
                args: &call.args,
                position: (call.args.kind == Kind::Pwrite).then_some(call.args.offset),
                path,
                file,
            };
            let ours = Touch {
                args: &args,
                position,
                path: path_bytes(cx.flights[i as usize].path()),
                file: own,
            };
            if conflict(&theirs, &ours) {
                cx.places[i as usize].stale = true;
            }
        }
    }

    // ---- issuing

    /// Looks ahead: fills the window, and issues what may be issued.
    fn pump(&mut self, source: &dyn Source) {
        let depth = match self.depth_now() {
            0 => return,
            d => d,
        };
        let len = self.cx.as_ref().map_or(0, |cx| cx.order.len());
        if self.waiting == 0 && len * 4 > depth * 3 {
            return;
        }
        // A walk starts from where the positions are, before the current call.
        self.positions = [None; 8];
        let mut walk = Walk::default();
        if self.waiting > 0 || self.ordered || !self.pure {
            if let Some(i) = self.current {
                self.consider(source, i, &mut walk);
            }
            let mut n = 0;
            while !walk.stopped {
                let Some(i) = self.cx.as_ref().and_then(|cx| cx.order.get(n).copied()) else {
                    break;
                };
                self.consider(source, i, &mut walk);
                n += 1;
            }
        }
        while !walk.stopped
            && self.cx.as_ref().is_some_and(|cx| cx.order.len() < depth)
            && self.extend(source)
        {
            let newest = self.cx.as_ref().and_then(|cx| cx.order.back().copied());
            if let Some(i) = newest {
                self.consider(source, i, &mut walk);
            }
        }
        if let Some(cx) = self.cx.as_mut()
            && cx.ring.as_ref().is_some_and(|r| r.unsubmitted() > 0)
        {
            cx.submit();
        }
    }

    /// How far to look now; 0 while looking ahead rests.
    fn depth_now(&mut self) -> usize {
        if self.cx.as_ref().is_none_or(|cx| cx.broken) {
            return 0;
        }
        if self.adapts() && self.shared.rest.load(Relaxed) > 0 {
            if self.shared.rest.fetch_sub(1, Relaxed) == 0 {
                self.shared.rest.store(0, Relaxed);
            }
            return 0;
        }
        self.depth
    }

    /// Looks at a place in the course of a walk: issues it if that is possible, and notes what it means for those behind it.
    fn consider(&mut self, source: &dyn Source, i: u16, walk: &mut Walk) {
        let is_current = self.current == Some(i);
        self.ask_again(source, i);
        let Some(cx) = self.cx.as_mut() else {
            walk.stopped = true;
            return;
        };
        cx.poll(i);
        let p = &cx.places[i as usize];
        if p.weak_before && !is_current {
            walk.certain = false;
        }
        if p.progress == Progress::NotReady {
            walk.expected = false;
            if !self.pure && p.kind.is_none_or(Kind::has_effects) {
                // It may change anything.
                walk.stopped = true;
            } else if p.kind.is_none_or(|k| !k.runs_ahead() || k == Kind::Read) {
                walk.unknown_position = true;
            }
            return;
        }
        self.predict_position(i, walk);
        let Some(p) = self.place(i) else { return };
        let open = p.progress == Progress::Ready && !p.never && !p.warmed && !is_current;
        if open && self.may_issue(i, walk) && self.issue(source, i) {
            self.waiting -= 1;
        }
        let Some(p) = self.place(i) else {
            walk.stopped = true;
            return;
        };
        let done = p.progress == Progress::Done && !p.pretended;
        let pure = !has_effects(&p.args);
        if pure && !matches!(p.args.kind, Kind::Lseek) {
            let whole = if p.args.kind.reads() {
                p.result == p.args.len as i64
            } else {
                p.result >= 0
            };
            let known = p.args.kind.runs_ahead() && (done || p.pretended) && !p.stale;
            walk.expected &= known && (whole || p.pretended);
        }
        if !done {
            walk.effects |= !pure;
            walk.pending.push(i);
        }
    }

    /// Sets the offset that a call at its descriptor's position will have, and moves the position on.
    fn predict_position(&mut self, i: u16, walk: &mut Walk) {
        let Some((args, progress, result, assumed)) = self
            .place(i)
            .map(|p| (p.args, p.progress, p.result, p.position))
        else {
            return;
        };
        let at = match args.kind {
            Kind::Read | Kind::Write | Kind::Lseek if !walk.unknown_position => {
                self.position(args.fd)
            }
            Kind::Pread | Kind::Pwrite => Some(args.offset),
            _ => None,
        };
        let Some(cx) = self.cx.as_mut() else { return };
        let p = &mut cx.places[i as usize];
        let issued = matches!(progress, Progress::Flying | Progress::Done);
        if !issued {
            p.position = at;
        } else if assumed != at && args.kind == Kind::Read {
            p.stale = true;
        }
        let next = match args.kind {
            Kind::Read | Kind::Write => {
                let moved = if progress == Progress::Done && !p.pretended {
                    result.max(0)
                } else {
                    args.len as i64
                };
                at.map(|a| a.saturating_add(moved))
            }
            Kind::Lseek => match args.flags {
                libc::SEEK_SET => Some(args.offset),
                libc::SEEK_CUR => at.map(|a| a.saturating_add(args.offset)),
                _ => None,
            },
            _ => return,
        };
        // An unsent linked write's length is not known.
        let next = if p.linked.is_some() && !issued {
            None
        } else {
            next
        };
        if let Some(entry) = self
            .positions
            .iter_mut()
            .flatten()
            .find(|entry| entry.0 == args.fd)
        {
            entry.1 = next;
        }
    }

    /// The position of a descriptor at the point that a walk has reached.
    fn position(&mut self, fd: i32) -> Option<i64> {
        if let Some((_, at)) = self.positions.iter().flatten().find(|e| e.0 == fd) {
            return *at;
        }
        let free = self.positions.iter_mut().find(|e| e.is_none())?;
        let at = raw::lseek(fd, 0, libc::SEEK_CUR);
        let at = (at >= 0).then_some(at);
        *free = Some((fd, at));
        at
    }

    /// What a descriptor names, asked once per call of the program.
    fn file(&mut self, fd: i32) -> Option<File> {
        if let Some(f) = self.files.iter().flatten().find(|f| f.fd == fd) {
            return Some(*f);
        }
        let st = raw::fstat(fd).ok()?;
        // SAFETY: F_GETFL takes no memory.
        let flags = unsafe {
            syscall6(
                libc::SYS_fcntl,
                fd as usize,
                libc::F_GETFL as usize,
                0,
                0,
                0,
                0,
            )
        } as i32;
        let format = st.st_mode & libc::S_IFMT;
        let file = File {
            fd,
            device: st.st_dev,
            inode: st.st_ino,
            size: st.st_size,
            regular: format == libc::S_IFREG,
            directory: format == libc::S_IFDIR,
            append: flags & libc::O_APPEND != 0,
            direct: flags & libc::O_DIRECT != 0,
        };
        if let Some(free) = self.files.iter_mut().find(|f| f.is_none()) {
            *free = Some(file);
        }
        Some(file)
    }

    /// Whether a call may be made now, before the program makes it.
    fn may_issue(&mut self, i: u16, walk: &Walk) -> bool {
        let Some(p) = self.place(i) else { return false };
        let (args, position) = (p.args, p.position);
        if !args.kind.runs_ahead() {
            // It is only warmed, which has no effects.
            return true;
        }
        if args.kind.has_effects() && !(walk.certain && walk.expected) {
            return false;
        }
        if !args.kind.has_effects() && !walk.effects {
            return true;
        }
        let own = if uses_file(args.kind) {
            self.file(args.fd)
        } else {
            None
        };
        for e in &walk.pending {
            let Some((earlier, earlier_position)) = self.place(*e).map(|p| (p.args, p.position))
            else {
                return false;
            };
            let file = if uses_file(earlier.kind) {
                self.file(earlier.fd)
            } else {
                None
            };
            let Some(cx) = self.cx.as_ref() else {
                return false;
            };
            let first = Touch {
                args: &earlier,
                position: earlier_position,
                path: path_bytes(cx.flights[*e as usize].path()),
                file,
            };
            let second = Touch {
                args: &args,
                position,
                path: path_bytes(cx.flights[i as usize].path()),
                file: own,
            };
            if conflict(&first, &second) {
                return false;
            }
        }
        true
    }

    /// Gives a call to the engine. `false`: not now. A call that can't be made ahead at all is marked so.
    fn issue(&mut self, source: &dyn Source, i: u16) -> bool {
        let Some((args, linked, cursor, position)) = self
            .place(i)
            .map(|p| (p.args, p.linked, p.cursor, p.position))
        else {
            return false;
        };
        let mut buffer = None;
        let mut len = args.len;
        let mut direct = false;
        match args.kind {
            Kind::Read | Kind::Pread | Kind::Write | Kind::Pwrite => {
                let fits = linked.is_some() || (1..=LARGEST).contains(&len);
                let allowed = args.kind != Kind::Write || self.options.private_positions;
                let file = self.file(args.fd);
                let usable = file.is_some_and(|f| f.regular && !(f.append && args.kind.writes()));
                if !fits || !allowed || !usable {
                    return self.never(i);
                }
                direct = file.is_some_and(|f| f.direct);
                // Neither EINVAL for a negative offset nor an unknown position is for us.
                if position.is_none_or(|p| p < 0) {
                    return false;
                }
                if args.kind.reads() {
                    buffer = self.buffer(len);
                } else if linked == Some(GONE) {
                    return self.never(i);
                } else if let Some(from) = linked {
                    let Some(read) = self.place(from) else {
                        return false;
                    };
                    if read.progress != Progress::Done
                        || read.result != read.args.len as i64 && !read.pretended
                    {
                        return false;
                    }
                    len = read.args.len;
                    buffer = read.buffer.clone();
                } else if let At::Call { op, .. } = source.at(&cursor)
                    && op.args() == args
                    && let Some(Data::Bytes(bytes)) = op.data()
                {
                    buffer = self.buffer(len);
                    if let Some(b) = &buffer {
                        // SAFETY: the buffer holds `len` bytes, and is new to us.
                        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), b.at(), len) };
                    }
                }
                if buffer.is_none() {
                    return false;
                }
            }
            Kind::Getdents => {
                let new = !self.listed[..self.listed_count].contains(&args.fd);
                let directory = self.file(args.fd).is_some_and(|f| f.directory);
                if !new || !directory || self.listed_count == LISTED {
                    return self.never(i);
                }
                self.listed[self.listed_count] = args.fd;
                self.listed_count += 1;
            }
            _ => {}
        }
        let Some(cx) = self.cx.as_mut() else {
            return false;
        };
        let p = &mut cx.places[i as usize];
        p.args.len = len;
        p.buffer = buffer;
        p.direct = direct;
        if self.options.engine == Engine::Check {
            p.pretended = true;
            p.progress = Progress::Done;
        } else if !cx.launch(i) {
            let p = &mut cx.places[i as usize];
            p.buffer = None;
            p.args.len = args.len;
            return false;
        }
        let p = &mut cx.places[i as usize];
        p.warmed = !args.kind.runs_ahead();
        self.counts.ahead += 1;
        true
    }

    fn never(&mut self, i: u16) -> bool {
        if let Some(cx) = self.cx.as_mut() {
            cx.places[i as usize].never = true;
            self.waiting -= 1;
        }
        false
    }

    // ---- harvesting

    /// Waits until the call of place `i` is done, and has what depends on others issued meanwhile.
    fn wait(&mut self, source: &dyn Source, i: u16) {
        let mut waited = false;
        loop {
            let Some(cx) = self.cx.as_mut() else { return };
            if cx.poll(i) || cx.broken {
                break;
            }
            if cx.places[i as usize].on_ring {
                // What is finished is let in first; only what is not is waited for.
                cx.enter(0);
                if cx.places[i as usize].progress != Progress::Flying {
                    break;
                }
            }
            waited = true;
            cx.sleep(i);
            if self.waiting > 0 {
                self.pump(source);
            }
        }
        if waited {
            self.counts.waits += 1;
            if self.adapts() {
                self.noticed(false);
                self.depth = (self.depth * 2).min(self.options.depth);
            }
        }
        if self.waiting > 0 && self.ordered {
            self.pump(source);
        }
    }

    /// The result of a call that was made ahead, or `None` if the program is to make it itself.
    ///
    /// # Safety
    /// As [`Instance::make`].
    unsafe fn harvest(&mut self, i: u16, call: &Call, into: Into) -> Option<isize> {
        let cx = self.cx.as_mut()?;
        let p = &cx.places[i as usize];
        if p.progress != Progress::Done || p.pretended || p.stale {
            return self.unusable(i, call);
        }
        let r = p.result as isize;
        let kind = p.args.kind;
        let again = [libc::EINTR, libc::EAGAIN, libc::ECANCELED, libc::ENOMEM];
        if kind.has_effects() {
            if kind.writes() {
                let b = p.buffer.as_ref()?;
                let ours = b.at().cast_const();
                let theirs = call.buffer.cast::<u8>().cast_const();
                // SAFETY: both have `len` bytes.
                let same = ours == theirs
                    || unsafe {
                        core::slice::from_raw_parts(ours, p.args.len)
                            == core::slice::from_raw_parts(theirs, p.args.len)
                    };
                if !same {
                    // The program writes other bytes to the same place.
                    self.counts.divergences += 1;
                    self.shared.note(format!(
                        "{} was called with other bytes than foreseen",
                        describe(p)
                    ));
                    self.shared.diverged(&self.counts);
                    return None;
                }
            }
            // EFBIG comes with a signal, which the program is to get.
            if r < 0 && (again.contains(&(-r as i32)) || r == -libc::EFBIG as isize) {
                return None;
            }
            if kind == Kind::Write && r > 0 {
                let (fd, position) = (p.args.fd, p.position?);
                if raw::lseek(fd, 0, libc::SEEK_CUR) != position {
                    self.switch_off(
                        "a position that was declared private was moved by someone else",
                    );
                    return None;
                }
                raw::lseek(fd, r as i64, libc::SEEK_CUR);
            }
            return Some(r);
        }
        if r < 0 || kind.reads() && r as usize != p.args.len {
            return None;
        }
        match kind {
            Kind::Pread | Kind::Read => {
                // A buffer that O_DIRECT would not take must fail as it would.
                let aligned = |at: usize| !p.direct || at.is_multiple_of(512);
                if call.vectors.is_null() && into == Into::Memory && !aligned(call.buffer as usize)
                    || p.direct && !call.vectors.is_null()
                {
                    return None;
                }
                if kind == Kind::Read {
                    let (fd, position) = (p.args.fd, p.position?);
                    let now = raw::lseek(fd, r as i64, libc::SEEK_CUR);
                    if now - r as i64 != position {
                        // Someone else moved it. These bytes are ours now, as if read(2) had been first.
                        // SAFETY: as promised by the caller.
                        return unsafe { self.read_claimed(i, call, into, now - r as i64) };
                    }
                }
                let b = p.buffer.as_ref()?;
                if into == Into::Block {
                    self.handed = Some(b.clone());
                } else {
                    // SAFETY: `r` bytes were read; the caller's memory has room for them.
                    unsafe { copy_out(b.at(), r as usize, call) };
                }
            }
            Kind::Statx => {
                // SAFETY: the kernel filled a struct statx; the caller's memory has room for one.
                unsafe {
                    core::ptr::copy_nonoverlapping(
                        cx.flights[i as usize].stat.get().cast::<libc::statx>(),
                        call.buffer.cast::<libc::statx>(),
                        1,
                    );
                }
            }
            Kind::Fstat | Kind::Fstatat => {
                // SAFETY: a thread filled a struct stat; the caller's memory has room for one.
                unsafe {
                    core::ptr::copy_nonoverlapping(
                        cx.flights[i as usize].stat.get().cast::<libc::stat>(),
                        call.buffer.cast::<libc::stat>(),
                        1,
                    );
                }
            }
            _ => {}
        }
        Some(r)
    }

    /// A result that can't be used; in the check engine, what it would have been.
    fn unusable(&mut self, i: u16, call: &Call) -> Option<isize> {
        let p = self.place(i)?;
        if p.pretended && p.args.kind.writes() {
            let same = p.buffer.as_ref().is_some_and(|b| {
                // SAFETY: both have `len` bytes.
                p.linked.is_some()
                    || unsafe {
                        core::slice::from_raw_parts(b.at(), p.args.len)
                            == core::slice::from_raw_parts(call.buffer.cast::<u8>(), p.args.len)
                    }
            });
            if !same {
                let problem = format!("{} was called with other bytes than foreseen", describe(p));
                self.counts.divergences += 1;
                self.shared.note(problem);
            }
        }
        None
    }

    /// Reads what the position was moved over.
    ///
    /// # Safety
    /// As [`Instance::make`].
    unsafe fn read_claimed(
        &mut self,
        i: u16,
        call: &Call,
        into: Into,
        offset: i64,
    ) -> Option<isize> {
        let p = self.place(i)?;
        let (len, fd) = (p.args.len, p.args.fd);
        let mut at = *call;
        at.args.kind = Kind::Pread;
        at.args.offset = offset;
        if into == Into::Block {
            at.buffer = p.buffer.as_ref()?.at().cast();
            self.handed = p.buffer.clone();
        }
        // SAFETY: as promised by the caller.
        let r = unsafe { at.make() };
        raw::lseek(fd, r.max(0) as i64 - len as i64, libc::SEEK_CUR);
        Some(r)
    }

    // ---- the end

    /// Cancels what is in flight, and passes everything through from now on.
    pub fn stop(&mut self) {
        let Some(cx) = self.cx.as_mut() else { return };
        if !process::is(self.token) {
            if let Some(cx) = self.cx.take() {
                Context::left();
                cx.abandon();
            }
            return;
        }
        if let Some(i) = self.current.take() {
            cx.release(i);
        }
        // What no thread has begun is taken back before anything is waited for.
        for n in 0..cx.order.len() {
            let i = cx.order[n];
            cx.take_back(i);
        }
        cx.drain();
        while let Some(i) = self.pop() {
            // An effect that was cancelled, or failed, did not happen.
            let undone = self.place(i).is_some_and(|p| {
                p.progress == Progress::Done
                    && !p.pretended
                    && p.args.kind.has_effects()
                    && p.result < 0
            });
            if undone && let Some(cx) = self.cx.as_mut() {
                cx.places[i as usize].progress = Progress::Ready;
            }
            self.discard(i);
        }
        self.handed = None;
        if let Some(cx) = self.cx.take() {
            cx.give_back();
        }
    }

    /// Ends the run.
    pub fn end(&mut self) {
        let was_passing = self.cx.is_none();
        self.stop();
        if self.adapts() && !was_passing {
            let mut depth = self.depth;
            if self.counts.unused > self.counts.hits {
                depth = (depth / 2).max(1);
            }
            self.shared.depth.store(depth as u32, Relaxed);
        }
        if self.resting {
            let passed = self.counts.calls;
            let _ = self
                .shared
                .rest
                .fetch_update(Relaxed, Relaxed, |r| Some(r.saturating_sub(passed)));
        }
        self.shared.counters.add(&std::mem::take(&mut self.counts));
    }
}

/// What a walk along the window has met so far.
struct Walk {
    /// No weak edge.
    certain: bool,
    /// Every read and look-up has come back as expected.
    expected: bool,
    /// A call with effects that is not done.
    effects: bool,
    /// Positions can't be told from here on.
    unknown_position: bool,
    /// Nothing can be said of what comes.
    stopped: bool,
    pending: Pending,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk {
            certain: true,
            expected: true,
            effects: false,
            unknown_position: false,
            stopped: false,
            pending: Pending {
                list: [0; DEEPEST_WINDOW + SEARCH + 1],
                len: 0,
            },
        }
    }
}

/// Calls that are not done, in order. No allocation.
struct Pending {
    list: [u16; DEEPEST_WINDOW + SEARCH + 1],
    len: usize,
}

impl Pending {
    fn push(&mut self, i: u16) {
        if let Some(at) = self.list.get_mut(self.len) {
            *at = i;
            self.len += 1;
        }
    }
}

impl<'a> IntoIterator for &'a Pending {
    type Item = &'a u16;
    type IntoIter = std::slice::Iter<'a, u16>;

    fn into_iter(self) -> Self::IntoIter {
        self.list[..self.len].iter()
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

fn same_path(ours: *const u8, theirs: *const core::ffi::c_char) -> bool {
    path_bytes(ours) == path_bytes(theirs.cast())
}

/// Copies `n` bytes to where a call wants them.
///
/// # Safety
/// `from` has them; the call's memory has room for them.
unsafe fn copy_out(from: *const u8, n: usize, call: &Call) {
    // SAFETY: as promised.
    unsafe {
        if call.vectors.is_null() {
            core::ptr::copy_nonoverlapping(from, call.buffer.cast(), n);
            return;
        }
        let mut done = 0;
        for v in core::slice::from_raw_parts(call.vectors, call.vector_count as usize) {
            let part = v.iov_len.min(n - done);
            core::ptr::copy_nonoverlapping(from.add(done), v.iov_base.cast(), part);
            done += part;
        }
    }
}

fn describe(p: &crate::context::Place) -> String {
    if p.progress == Progress::NotReady {
        return p
            .kind
            .map_or("a call".into(), |k| format!("{} (not ready)", k.name()));
    }
    describe_args(&p.args)
}

fn describe_args(a: &crate::call::Args) -> String {
    match a.kind {
        Kind::Pread | Kind::Pwrite => format!(
            "{}({}, {} bytes at {})",
            a.kind.name(),
            a.fd,
            a.len,
            a.offset
        ),
        Kind::Read | Kind::Write | Kind::Getdents => {
            format!("{}({}, {} bytes)", a.kind.name(), a.fd, a.len)
        }
        _ => format!("{}({})", a.kind.name(), a.fd),
    }
}
