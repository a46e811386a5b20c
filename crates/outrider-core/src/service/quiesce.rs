//! Letting go of every descriptor, for a system call of a program's that an open file elsewhere would disturb: umount(2) (EBUSY), F_SETLEASE
//! (EAGAIN), and close(2) where it shows that a file is open.
//!
//! The program waits meanwhile (`attach::release_all`). What a disk was asked for can't be taken back: its file is held until the disk has
//! answered. For umount and leases nothing is opened until the call is over: its [`Proc::calls`] say so.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Weak};
use std::time::Duration;

use outrider_sys::raw;
use outrider_sys::units::InodeKey;

use super::Service;
use super::kernel::Kernel;
use crate::clock::Moment;
use crate::engine::Handle;
use crate::profile::Remember;
use crate::shm;
use crate::walk::{Leaving, Walker};

/// A call that isn't over so long after everything was let go of is that of a program that was killed, or has long since found out whether
/// anything is open.
const LONGEST_CALL: Duration = Duration::from_secs(2);
/// So long is waited for disks on behalf of a call that has begun, …
const PATIENCE: Duration = Duration::from_micros(shm::PATIENCE_US);
/// … and so long for no call in particular, at the end of the run, and as long as a disk has not answered for which [`PATIENCE`] was had in vain.
const IMPATIENCE: Duration = Duration::from_micros(shm::IMPATIENCE_US);
/// So long one process may keep the service from opening files for all others …
const ALLOWANCE: Duration = Duration::from_secs(2);
/// … and in the long run for one part in so many of the time. From then on its demands are about its own files, and those that nobody has open: it
/// is only these that can be in its way.
const PART: f64 = 8.0;
/// What a demand takes from the allowance at least: what was queued for others is dropped, and their files are opened anew.
const LEAST: Duration = Duration::from_millis(2);
/// Demands of a process that has used its allowance up are honoured so often at most.
const PAUSE: Duration = Duration::from_millis(2);
/// So long, µs, a server of files may take to close one: it hears of that while it is at others.
const LATELY_US: u64 = 100_000;
/// Turns in which is heard what was told before a demand.
const TURNS: usize = 16;

/// Whether files may be opened.
pub(super) struct Quiesce {
    quiesced: bool,
    /// The demands that are being honoured.
    leaving: Option<Demand>,
    /// Calls that go on, by process entry and place in [`Proc::calls`].
    calls: HashMap<(usize, usize), Ongoing>,
    /// A disk did not answer in time, and has not yet.
    stubborn: bool,
    /// By process entry, what is left of the allowances that were drawn on.
    credits: HashMap<usize, Credit>,
    /// When time away was last charged.
    charged: Moment,
    /// Demands of processes without credit that wait until their own files are let go of, by process entry.
    aside: HashMap<usize, Aside>,
}

/// What is left of an allowance.
struct Credit {
    /// Seconds; less than none where one demand took longer.
    left: f64,
    at: Moment,
    /// When its last demand was honoured without credit.
    honoured: Option<Moment>,
}

impl Credit {
    fn new(now: Moment) -> Credit {
        Credit {
            left: ALLOWANCE.as_secs_f64(),
            at: now,
            honoured: None,
        }
    }

    fn look(&mut self, now: Moment) -> f64 {
        let since = now - self.at;
        self.at = now;
        self.left = (self.left + since.as_secs_f64() / PART).min(ALLOWANCE.as_secs_f64());
        self.left
    }
}

/// A demand that is about a process's own files.
struct Aside {
    number: u32,
    began: Moment,
    /// What was open of these, and may be until a disk has answered.
    open: Vec<Weak<Handle>>,
    files: Vec<InodeKey>,
}

struct Demand {
    /// By process entry, the values of [`Proc::release_wanted`].
    numbers: HashMap<usize, u32>,
    walker: Option<Leaving>,
    began: Moment,
}

#[derive(Clone, Copy)]
struct Ongoing {
    /// Its entry in [`Proc::calls`].
    call: u32,
    seen: Moment,
    /// When everything had been let go of.
    honoured: Option<Moment>,
    /// Its process had used its allowance up when it began: others need not wait for it.
    alone: bool,
}

impl Ongoing {
    fn is_over(&self, now: Moment) -> bool {
        let honoured = self.honoured.is_some_and(|h| now - h > LONGEST_CALL);
        honoured || now - self.seen > PATIENCE + LONGEST_CALL
    }
}

impl Quiesce {
    pub(super) fn new(now: Moment) -> Quiesce {
        Quiesce {
            quiesced: false,
            leaving: None,
            calls: HashMap::new(),
            stubborn: false,
            credits: HashMap::new(),
            charged: now,
            aside: HashMap::new(),
        }
    }

    /// Whether a process has used its allowance up.
    fn is_spent(&mut self, i: usize, now: Moment) -> bool {
        self.credits.get_mut(&i).is_some_and(|c| c.look(now) <= 0.0)
    }

    /// The time since this was called last goes to the account of those for whom nothing is open.
    fn charge(&mut self, now: Moment) {
        let since = now - self.charged;
        self.charged = now;
        if !self.quiesced {
            return;
        }
        let calls = self.calls.iter().filter(|(_, o)| !o.alone);
        let mut who: HashSet<usize> = calls.map(|((i, _), _)| *i).collect();
        who.extend(self.leaving.iter().flat_map(|d| d.numbers.keys()));
        for i in who {
            self.take(i, since, now);
        }
    }

    fn take(&mut self, i: usize, time: Duration, now: Moment) {
        let credit = self.credits.entry(i).or_insert_with(|| Credit::new(now));
        credit.look(now);
        credit.left -= time.as_secs_f64();
    }

    /// Whether a process without credit was honoured so lately that it can wait.
    fn can_wait(&self, i: usize, now: Moment) -> bool {
        let honoured = self.credits.get(&i).and_then(|c| c.honoured);
        self.aside.contains_key(&i) || honoured.is_some_and(|at| now - at < PAUSE)
    }

    /// The process in entry `i` is over: it demands nothing any more.
    pub(super) fn forget(&mut self, i: usize) {
        self.calls.retain(|(of, _), _| *of != i);
        self.credits.remove(&i);
        self.aside.remove(&i);
        if let Some(demand) = &mut self.leaving {
            demand.numbers.remove(&i);
        }
    }

    pub(super) fn is_quiesced(&self) -> bool {
        self.quiesced
    }

    /// Whether disks have yet to answer.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}

impl<K: Kernel> Service<K> {
    /// The processes that demand what is not being honoured yet, and the numbers of their demands.
    fn demands(&self) -> impl Iterator<Item = (usize, u32)> {
        self.processes.active().iter().filter_map(|i| {
            let proc = self.shared.proc(*i);
            let wanted = proc.release_wanted.load(Acquire);
            (wanted != proc.release_begun.load(Relaxed)).then_some((*i, wanted))
        })
    }

    /// Whether there is a demand that is not being honoured yet, and has not to wait.
    pub(super) fn has_to_leave(&self) -> bool {
        let now = self.kernel.now();
        self.demands().any(|(i, _)| !self.quiesce.can_wait(i, now))
    }

    /// Whether a process waits for its own files to be let go of.
    pub(super) fn is_asked_to_step_aside(&self) -> bool {
        !self.quiesce.aside.is_empty() || self.demands().next().is_some()
    }

    /// Opens files again once the calls are over for which none was opened: before anything is heard of what came after them.
    pub(super) fn come_back(&mut self) {
        self.quiesce.charge(self.kernel.now());
        if self.quiesce.quiesced && self.quiesce.leaving.is_none() && !self.is_called() {
            self.quiesce.quiesced = false;
            self.offer_room();
            if let Some(walker) = &self.walker {
                walker.come_back();
            }
            if let Some(remember) = &self.remember {
                remember.come_back();
            }
        }
    }

    /// Whether a call goes on for which nothing may be opened.
    fn is_called(&mut self) -> bool {
        let (mut called, time) = (false, self.kernel.now());
        for i in self.processes.active() {
            for (place, word) in self.shared.proc(*i).calls.iter().enumerate() {
                let call = word.load(Acquire);
                let ongoing = self.quiesce.calls.get(&(*i, place)).copied();
                if call == 0 {
                    if ongoing.is_some() {
                        self.quiesce.calls.remove(&(*i, place));
                    }
                    continue;
                }
                let same = ongoing.filter(|o| o.call == call);
                let now = same.unwrap_or_else(|| Ongoing {
                    call,
                    seen: time,
                    honoured: None,
                    alone: self.quiesce.is_spent(*i, time),
                });
                if now.is_over(time) {
                    let _ = word.compare_exchange(call, 0, AcqRel, Relaxed);
                    self.quiesce.calls.remove(&(*i, place));
                    continue;
                }
                self.quiesce.calls.insert((*i, place), now);
                called |= !now.alone;
            }
        }
        called
    }

    /// Lets go of everything, if that is demanded, and tells when it is done.
    pub(super) fn quiesce(&mut self) {
        let now = self.kernel.now();
        let demands: Vec<usize> = self.demands().map(|(i, _)| i).collect();
        let (spent, new): (Vec<_>, Vec<_>) = demands
            .into_iter()
            .partition(|i| self.quiesce.is_spent(*i, now));
        for i in spent {
            self.step_aside(i);
        }
        self.stand_aside();
        if !new.is_empty() {
            self.quiesce.quiesced = true;
            // Files that were told to be left alone must be known before the demand is honoured.
            for i in &new {
                self.hear_out(*i);
            }
            self.end_heirs();
            let finds = self.shared.may_show(LATELY_US);
            let walker = self.let_go_of_all();
            let before = self.quiesce.leaving.take();
            let mut demand = Demand {
                numbers: before.map(|d| d.numbers).unwrap_or_default(),
                walker,
                began: self.kernel.now(),
            };
            for i in new {
                let proc = self.shared.proc(i);
                let wanted = proc.release_wanted.load(Acquire);
                demand.numbers.insert(i, wanted);
                if finds {
                    proc.release_found.store(wanted, Relaxed);
                }
                proc.release_begun.store(wanted, Release);
                self.quiesce.take(i, LEAST, now);
            }
            self.quiesce.leaving = Some(demand);
        }
        let Some(mut demand) = self.quiesce.leaving.take() else {
            return;
        };
        let gone = self.is_gone(&mut demand.walker);
        let patience = match self.is_called() && !self.quiesce.stubborn {
            true => PATIENCE,
            false => IMPATIENCE,
        };
        if !gone && self.kernel.since(demand.began) < patience {
            self.quiesce.leaving = Some(demand);
            return;
        }
        self.quiesce.stubborn = !gone;
        for ongoing in self.quiesce.calls.values_mut() {
            ongoing.honoured.get_or_insert(self.kernel.now());
        }
        for (i, number) in demand.numbers {
            let done = &self.shared.proc(i).release_done;
            done.store(number, Release);
            raw::futex_wake(done, u32::MAX);
        }
    }

    /// Takes all that a process has told until now.
    fn hear_out(&mut self, i: usize) {
        for _ in 0..TURNS {
            if !self.drain(i) {
                break;
            }
        }
    }

    /// Honours a demand of a process that has kept the others waiting for too long: lets go of the files that it has open or nobody has.
    fn step_aside(&mut self, i: usize) {
        if self.quiesce.can_wait(i, self.kernel.now()) || self.processes.get(i).is_none() {
            return;
        }
        self.hear_out(i);
        let proc = self.shared.proc(i);
        let number = proc.release_wanted.load(Acquire);
        proc.release_begun.store(number, Release);
        let mut own: HashMap<InodeKey, u32> = HashMap::new();
        if let Some(p) = self.processes.get(i) {
            let mapped = p.mapped().iter().map(|m| m.file());
            for key in p.descs().map(|(_, d)| d.key).chain(mapped) {
                *own.entry(key).or_default() += 1;
            }
        }
        let (mut open, mut files) = (Vec::new(), Vec::new());
        for file in self.files.values_mut() {
            if file.hold.openers() > own.get(&file.key).copied().unwrap_or(0) {
                // Somebody else has it open, too.
                continue;
            }
            if let Some(handle) = file.hold.give_up() {
                // What waits is dropped; what is on its way keeps the file open.
                file.account.cancelled.store(true, Relaxed);
                open.push(Arc::downgrade(&handle));
                files.push(file.key);
            }
        }
        let aside = Aside {
            number,
            began: self.kernel.now(),
            open,
            files,
        };
        self.quiesce.aside.insert(i, aside);
    }

    /// Tells who waits for its own files that these are let go of.
    fn stand_aside(&mut self) {
        let over = |a: &Aside| {
            let open = a.open.iter().any(|h| h.strong_count() > 0);
            !open || self.kernel.since(a.began) >= IMPATIENCE
        };
        let done = self.quiesce.aside.iter().filter(|(_, a)| over(a));
        for i in done.map(|(i, _)| *i).collect::<Vec<_>>() {
            let Some(aside) = self.quiesce.aside.remove(&i) else {
                continue;
            };
            let now = self.kernel.now();
            let credits = &mut self.quiesce.credits;
            let credit = credits.entry(i).or_insert_with(|| Credit::new(now));
            credit.honoured = Some(now);
            for key in &aside.files {
                let open = self.files.get(key).filter(|f| f.hold.is_open());
                if let Some(file) = open {
                    file.account.cancelled.store(false, Relaxed);
                }
            }
            let done = &self.shared.proc(i).release_done;
            done.store(aside.number, Release);
            raw::futex_wake(done, u32::MAX);
        }
    }

    /// The end: lets go of everything, and of what a disk does not answer before long when the process ends.
    pub(super) fn leave_for_good(&mut self) {
        let began = self.kernel.now();
        let mut walker = self.let_go_of_all();
        while !self.is_gone(&mut walker) && self.kernel.since(began) < IMPATIENCE {
            self.kernel.pass(Duration::from_micros(100));
        }
        if let Some(walker) = self.walker.as_ref().filter(|_| !self.quiesce.quiesced) {
            walker.come_back();
        }
        if let Some(remember) = self.remember.as_ref().filter(|_| !self.quiesce.quiesced) {
            remember.come_back();
        }
    }

    fn let_go_of_all(&mut self) -> Option<Leaving> {
        let walker = self.walker.as_ref().map(Walker::let_go);
        if let Some(remember) = &self.remember {
            remember.let_go();
        }
        self.offer(0);
        self.engine.drain();
        for file in self.files.values_mut() {
            file.hold.let_go();
        }
        walker
    }

    fn is_gone(&self, walker: &mut Option<Leaving>) -> bool {
        // What a server was asked for is open there until it has answered.
        let remembered = self.remember.as_ref().is_none_or(Remember::is_idle);
        self.kernel.held(&self.shared) == 0
            && !self.is_heir_leaving()
            && remembered
            && walker.as_mut().is_none_or(Leaving::is_over)
    }
}
