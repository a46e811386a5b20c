//! The window: what the graph foresees next, and what of it the program makes.

use super::issue::Pending;
use super::{FILES, GONE, Instance, MAYBE, SEARCH, Tail, Words, path_bytes, uses_file};
use crate::call::{Call, Kind};
use crate::conflict::{Touch, conflict};
use crate::context::Progress;
use crate::graph::{At, Engine, Follow, Source, is_linked};

impl Instance<'_> {
    pub(super) fn forget_caches(&mut self) {
        if !self.keeps_files() {
            self.files = [None; FILES];
        }
        self.positions = [None; 8];
    }

    /// Whether what descriptors name is remembered from call to call: they outlive the scope, or are closed through it, and nothing depends on more of
    /// their files than where they lie.
    pub(super) fn keeps_files(&self) -> bool {
        self.options.fetch && self.options.stable
    }

    /// Adds the next call to the window. `false`: there is none, or none is known yet.
    pub(super) fn extend(&mut self, source: &dyn Source) -> bool {
        if self.closing {
            return false;
        }
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
    pub(super) fn fill(&mut self, i: u16, at: At<'_>) {
        let pure = self.pure;
        let is_tail = {
            let Some(cx) = self.cx.as_ref() else { return };
            cx.order.back() == Some(&i)
        };
        match at {
            At::NotReady { kind, link } => {
                if let Some(cx) = self.cx.as_mut() {
                    cx.places[i as usize].kind = kind;
                }
                if is_tail {
                    self.tail_link = match kind {
                        None => Some(MAYBE),
                        Some(_) => link.then_some(i),
                    };
                    self.tail_weak = kind.is_none() && !pure;
                }
            }
            At::Call { op, link, weak } => {
                let Some(cx) = self.cx.as_deref_mut() else {
                    return;
                };
                let linked = is_linked(&op);
                if cx.places[i as usize].linked == Some(MAYBE) {
                    cx.places[i as usize].linked = linked.then_some(GONE);
                }
                // It will write at most what its read was asked for.
                let most = match cx.places[i as usize].linked {
                    None | Some(GONE) => i64::MAX as usize,
                    Some(read) if cx.places[read as usize].progress == Progress::NotReady => {
                        i64::MAX as usize
                    }
                    Some(read) => cx.places[read as usize].args.len,
                };
                let p = &mut cx.places[i as usize];
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
                // What has no path touches no page of its flight.
                let kept = !p.args.kind.takes_path()
                    || cx.flights[i as usize].keep_paths(op.path(), op.second_path());
                p.long = !kept;
                if !kept || matches!(p.args.kind, Kind::Close | Kind::Lseek) {
                    p.never = true;
                    self.waiting -= 1;
                }
                let kind = p.args.kind;
                if p.args.has_effects()
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
    pub(super) fn ask_again(&mut self, source: &dyn Source, i: u16) {
        let Some(p) = self.place(i) else { return };
        if p.progress == Progress::NotReady && !self.closing {
            let at = source.at(&p.cursor.clone());
            self.fill(i, at);
        }
    }

    /// The number in the window of the call that the program makes.
    pub(super) fn find(&mut self, source: &dyn Source, call: &Call) -> Option<usize> {
        let mut maybe = false;
        let window = self.cx.as_ref()?.order.len();
        if window >= SEARCH && self.kinds & (1 << call.args.kind as u32) == 0 {
            // None of them is such a call.
            return None;
        }
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

    pub(super) fn matches(&self, source: &dyn Source, i: u16, call: &Call) -> bool {
        let Some(cx) = self.cx.as_ref() else {
            return false;
        };
        let p = &cx.places[i as usize];
        let open_linked = p.linked.is_some() && p.progress == Progress::Ready;
        let numbers = if open_linked {
            (p.args.kind, p.args.fd, p.args.offset)
                == (call.args.kind, call.args.fd, call.args.offset)
        } else {
            p.args == call.args
        };
        if numbers && p.long {
            if self.closing {
                return false;
            }
            let At::Call { op, .. } = source.at(&p.cursor) else {
                return false;
            };
            fn ours(path: Option<&core::ffi::CStr>) -> &[u8] {
                path.map_or(&[], core::ffi::CStr::to_bytes)
            }
            return ours(op.path()) == path_bytes(call.path.cast())
                && ours(op.second_path()) == path_bytes(call.second_path.cast());
        }
        let theirs = || {
            (
                path_bytes(call.path.cast()),
                path_bytes(call.second_path.cast()),
            )
        };
        numbers && cx.paths(i) == theirs()
    }

    /// The call that is `n`-th in the window is made; those before it are left out.
    pub(super) fn advance(&mut self, n: usize) {
        for _ in 0..n {
            if let Some(i) = self.pop() {
                self.left_out(i, "the function left it out");
                self.discard(i);
            }
        }
        self.current = self.pop();
    }

    /// A foreseen call that does not come, although another after it does, or no weak edge lies before it.
    fn left_out(&mut self, i: u16, how: &str) {
        self.counts.skipped += 1;
        if self.options.engine == Engine::Check
            && let Some(cx) = self.cx.as_ref()
        {
            self.shared
                .note(format_args!("{} was foreseen, and {how}", cx.words(i)));
        }
    }

    /// The function ends: what the graph says that it calls before the next weak edge has not come. Only the first of it is told of.
    pub(super) fn ended_early(&mut self) {
        let Some(cx) = self.cx.as_ref() else { return };
        let Some(i) = cx.order.front().copied() else {
            return;
        };
        let p = &cx.places[i as usize];
        // Effects are told of when they are discarded.
        let issued = matches!(p.progress, Progress::Flying | Progress::Done);
        if !p.weak_before
            && p.progress != Progress::NotReady
            && !(issued && p.args.kind.has_effects())
        {
            self.left_out(i, "the function ended without it");
        }
    }

    /// A call that was not issued has the arguments that the program gives it.
    pub(super) fn adopt(&mut self, i: u16, call: &Call) {
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
            self.ordered |= call.args.has_effects() || call.args.kind == Kind::Read;
        }
    }

    pub(super) fn pop(&mut self) -> Option<u16> {
        let cx = self.cx.as_mut()?;
        let i = cx.order.pop_front()?;
        let p = &cx.places[i as usize];
        if matches!(p.progress, Progress::NotReady | Progress::Ready) && !p.never && !p.warmed {
            self.waiting = self.waiting.saturating_sub(1);
        }
        Some(i)
    }

    /// A foreseen call does not come.
    pub(super) fn discard(&mut self, i: u16) {
        let Some(cx) = self.cx.as_mut() else { return };
        cx.take_back(i);
        let p = &cx.places[i as usize];
        let effects = p.args.kind.has_effects();
        // An effect that was cancelled, or failed, did not happen.
        let issued = match p.progress {
            Progress::Flying => true,
            Progress::Done => !effects || p.pretended || p.result >= 0,
            Progress::NotReady | Progress::Ready => false,
        };
        if issued && p.args.kind.runs_ahead() {
            self.counts.unused += 1;
            if effects {
                self.counts.unclaimed_effects += 1;
                let verb = if p.pretended {
                    "would have been"
                } else {
                    "was"
                };
                let problem = crate::stats::Line::new(format_args!(
                    "{} {verb} made ahead as certain, and the function did not call it",
                    cx.words(i)
                ));
                if p.pretended {
                    self.shared.note(format_args!("{}", problem.as_str()));
                } else {
                    self.shared.switch_off(problem.as_str());
                }
            }
        }
        cx.release(i);
        self.unlink(i);
    }

    /// The read that place `i` held is over: a linked write that was not issued before is not made ahead any more.
    pub(super) fn unlink(&mut self, i: u16) {
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
    pub(super) fn unforeseen(&mut self, call: &Call) {
        // Calls that the graph never speaks of are no reason to doubt it.
        if self.kinds & (1 << call.args.kind as u32) != 0 && !self.options.among && !self.closing {
            self.counts.divergences += 1;
            if self.options.engine == Engine::Check {
                let cx = self.cx.as_ref();
                match cx.and_then(|cx| cx.order.front().map(|i| cx.words(*i))) {
                    Some(expected) => self.shared.note(format_args!(
                        "the function called {}, where {expected} was foreseen",
                        Words::of(call)
                    )),
                    None => self.shared.note(format_args!(
                        "the function called {}, where nothing was foreseen",
                        Words::of(call)
                    )),
                }
            } else {
                self.shared.diverged(&self.counts);
                if self.shared.is_off() {
                    self.closing = true;
                    self.close_if_done();
                    if self.is_passing() {
                        return;
                    }
                }
            }
        }
        self.disturbed(call);
    }

    /// The thread makes a call that the graph does not have here.
    pub(super) fn disturbed(&mut self, call: &Call) {
        let closes = call.args.kind == Kind::Close;
        let checks = self.options.engine == Engine::Check;
        if checks || !closes && self.may_outdate(call) {
            self.outdate(call);
        }
        if closes {
            self.settle(|fd| fd == call.args.fd);
        }
    }

    /// Whether a call changes what the graph's calls return.
    pub(super) fn may_outdate(&self, call: &Call) -> bool {
        call.args.has_effects() && !(self.options.stable && self.pure)
    }

    /// Waits until nothing uses descriptors that the program is about to close, and forgets what was read from them.
    pub(super) fn settle(&mut self, closes: impl Fn(i32) -> bool) {
        let Some(cx) = self.cx.as_mut() else { return };
        for i in 0..cx.places.len() as u16 {
            let p = &mut cx.places[i as usize];
            let uses = closes(p.args.fd) || p.args.kind == Kind::Renameat && closes(p.args.fd2);
            if !uses || Some(i) == self.current {
                continue;
            }
            p.stale = true;
            if p.warmed {
                cx.take_back(i);
            }
            cx.land(i);
        }
        for f in &mut self.files {
            f.take_if(|f| closes(f.fd));
        }
        while let Some(n) = self.listed[..self.listed_count]
            .iter()
            .position(|f| closes(*f))
        {
            self.listed_count -= 1;
            self.listed.swap(n, self.listed_count);
        }
    }

    /// Another scope of the thread has made a call with effects; which one, nobody said.
    pub(super) fn outdate_reads(&mut self) {
        let stable = self.options.stable;
        let Some(cx) = self.cx.as_deref_mut() else {
            return;
        };
        for n in 0..cx.order.len() {
            let p = &mut cx.places[cx.order[n] as usize];
            let kind = p.args.kind;
            p.stale |= matches!(p.progress, Progress::Flying | Progress::Done)
                && (!kind.has_effects() && !stable || kind == Kind::Fsync);
        }
    }

    /// The program makes a call, or makes it again, of which what lies behind it knew nothing: what was made ahead there and meets it is out of date. Reads
    /// and look-ups are made anew when the program comes to them, and so are writes and fsync: those that are under way are waited for first, and
    /// whatever meets one that is made anew is out of date, too. What has changed names can't be made twice and stays. The check says what it meets.
    pub(super) fn outdate(&mut self, call: &Call) {
        let file = if uses_file(call.args.kind) {
            self.file(call.args.fd)
        } else {
            None
        };
        if call.args.kind.writes() && file.is_some_and(|f| !f.regular) {
            // A pipe, a terminal: no file changes.
            return;
        }
        let theirs = Touch {
            args: &call.args,
            position: matches!(call.args.kind, Kind::Pread | Kind::Pwrite)
                .then_some(call.args.offset),
            path: path_bytes(call.path.cast()),
            file,
        };
        let mut again = Pending::default();
        let mut n = 0;
        while let Some(i) = self.cx.as_ref().and_then(|cx| cx.order.get(n).copied()) {
            n += 1;
            let issued = |p: &crate::context::Place| {
                matches!(p.progress, Progress::Flying | Progress::Done)
                    && (!self.options.stable || p.args.kind.has_effects())
            };
            if !self.place(i).is_some_and(issued) {
                continue;
            }
            let own = self.file_of(i);
            let meets = self.touch(i, own).is_none_or(|t| conflict(&theirs, &t))
                || again.into_iter().any(|e| self.meet(*e, i));
            let Some(cx) = self.cx.as_mut().filter(|_| meets) else {
                continue;
            };
            let p = &mut cx.places[i as usize];
            if p.pretended && p.args.kind.has_effects() {
                self.shared.note(format_args!(
                    "{} may meet {}, which would have been made ahead by then",
                    Words::of(call),
                    cx.words(i)
                ));
            } else if !p.args.kind.has_effects() {
                p.stale = true;
            } else if cx.take_back(i) {
                cx.places[i as usize].never = true;
            } else {
                cx.land(i);
                let p = &mut cx.places[i as usize];
                if p.args.kind.writes() || p.args.kind == Kind::Fsync || p.result < 0 {
                    p.stale = true;
                    again.push(i);
                }
            }
        }
    }
}
