//! Letting go of every descriptor, for a system call of a program's that an open file elsewhere would disturb: umount(2) (EBUSY), F_SETLEASE
//! (EAGAIN), and close(2) where it shows that a file is open.
//!
//! The program waits meanwhile (`attach::release_all`). What a disk was asked for can't be taken back: its file is held until the disk has
//! answered. For umount and leases nothing is opened until the call is over: its [`Proc::calls`] say so.

use std::sync::atomic::Ordering::{AcqRel, SeqCst};

use super::*;
use crate::walk::runner::Leaving;

/// A call that isn't over so long after everything was let go of is that of a program that was killed, or has long since found out whether
/// anything is open.
const LONGEST_CALL: Duration = Duration::from_secs(2);
/// So long is waited for disks on behalf of a call that has begun, …
const PATIENCE: Duration = Duration::from_micros(shm::PATIENCE_US);
/// … and so long for no call in particular, at the end of the run, and as long as a disk has not answered for which [`PATIENCE`] was had in vain.
const IMPATIENCE: Duration = Duration::from_micros(shm::IMPATIENCE_US);
/// Turns in which is heard what was told before a demand.
const TURNS: usize = 16;

/// Whether files may be opened.
pub(super) struct Away {
    away: bool,
    /// The demands that are being honoured.
    leaving: Option<Demand>,
    /// Calls that go on, by process entry and place in [`Proc::calls`].
    calls: HashMap<(usize, usize), Ongoing>,
    /// A disk did not answer in time, and has not yet.
    stubborn: bool,
}

struct Demand {
    /// By process entry, the values of [`Proc::release_wanted`].
    numbers: HashMap<usize, u32>,
    walker: Option<Leaving>,
    began: Instant,
}

#[derive(Clone, Copy)]
struct Ongoing {
    /// Its entry in [`Proc::calls`].
    call: u32,
    seen: Instant,
    /// When everything had been let go of.
    honoured: Option<Instant>,
}

impl Ongoing {
    fn is_over(&self) -> bool {
        let honoured = self.honoured.is_some_and(|h| h.elapsed() > LONGEST_CALL);
        honoured || self.seen.elapsed() > PATIENCE + LONGEST_CALL
    }
}

impl Away {
    pub(super) fn new() -> Away {
        Away {
            away: false,
            leaving: None,
            calls: HashMap::new(),
            stubborn: false,
        }
    }

    /// The process in entry `i` is over: it demands nothing any more.
    pub(super) fn forget(&mut self, i: usize) {
        self.calls.retain(|(of, _), _| *of != i);
        if let Some(demand) = &mut self.leaving {
            demand.numbers.remove(&i);
        }
    }

    pub(super) fn is_away(&self) -> bool {
        self.away
    }

    /// Whether disks have yet to answer.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}

impl Service {
    /// The processes that demand what is not being honoured yet, and the numbers of their demands.
    fn demands(&self) -> impl Iterator<Item = (usize, u32)> {
        self.active.iter().filter_map(|i| {
            let proc = self.shared.proc(*i);
            let wanted = proc.release_wanted.load(Acquire);
            (wanted != proc.release_begun.load(Relaxed)).then_some((*i, wanted))
        })
    }

    /// Whether there is a demand that is not being honoured yet.
    pub(super) fn has_to_leave(&self) -> bool {
        self.demands().next().is_some()
    }

    /// Opens files again once the calls are over for which none was opened: before anything is heard of what came after them.
    pub(super) fn come_back(&mut self) {
        if self.away.away && self.away.leaving.is_none() && !self.is_called() {
            self.away.away = false;
            self.offer_room();
            if let Some(walker) = &self.walker {
                walker.come_back();
            }
        }
    }

    /// Whether a call goes on for which nothing may be opened.
    fn is_called(&mut self) -> bool {
        let mut called = false;
        for i in &self.active {
            for (place, word) in self.shared.proc(*i).calls.iter().enumerate() {
                let call = word.load(Acquire);
                let ongoing = self.away.calls.get(&(*i, place)).copied();
                if call == 0 {
                    if ongoing.is_some() {
                        self.away.calls.remove(&(*i, place));
                    }
                    continue;
                }
                let now = ongoing.filter(|o| o.call == call).unwrap_or(Ongoing {
                    call,
                    seen: Instant::now(),
                    honoured: None,
                });
                if now.is_over() {
                    let _ = word.compare_exchange(call, 0, AcqRel, Relaxed);
                    self.away.calls.remove(&(*i, place));
                    continue;
                }
                self.away.calls.insert((*i, place), now);
                called = true;
            }
        }
        called
    }

    /// Lets go of everything, if that is demanded, and tells when it is done.
    pub(super) fn go_away(&mut self) {
        if self.has_to_leave() {
            self.away.away = true;
            // Files that were told to be left alone must be known before the demand is honoured.
            for _ in 0..TURNS {
                if !self.drain_all() {
                    break;
                }
            }
            let walker = self.let_go_of_all();
            let before = self.away.leaving.take();
            let mut demand = Demand {
                numbers: before.map(|d| d.numbers).unwrap_or_default(),
                walker,
                began: Instant::now(),
            };
            for (i, wanted) in self.demands().collect::<Vec<_>>() {
                demand.numbers.insert(i, wanted);
                let proc = self.shared.proc(i);
                proc.release_begun.store(wanted, Release);
            }
            self.away.leaving = Some(demand);
        }
        let Some(mut demand) = self.away.leaving.take() else {
            return;
        };
        let gone = self.is_gone(&mut demand.walker);
        let patience = match self.is_called() && !self.away.stubborn {
            true => PATIENCE,
            false => IMPATIENCE,
        };
        if !gone && demand.began.elapsed() < patience {
            self.away.leaving = Some(demand);
            return;
        }
        self.away.stubborn = !gone;
        for ongoing in self.away.calls.values_mut() {
            ongoing.honoured.get_or_insert_with(Instant::now);
        }
        for (i, number) in demand.numbers {
            let done = &self.shared.proc(i).release_done;
            done.store(number, Release);
            raw::futex_wake(done, u32::MAX);
        }
    }

    /// The end: lets go of everything, and of what a disk does not answer before long when the process ends.
    pub(super) fn leave_for_good(&mut self) {
        let began = Instant::now();
        let mut walker = self.let_go_of_all();
        while !self.is_gone(&mut walker) && began.elapsed() < IMPATIENCE {
            std::thread::sleep(Duration::from_micros(100));
        }
        if let Some(walker) = self.walker.as_ref().filter(|_| !self.away.away) {
            walker.come_back();
        }
    }

    fn let_go_of_all(&mut self) -> Option<Leaving> {
        let walker = self.walker.as_ref().map(Walker::let_go);
        self.offer(0);
        self.engine.drain();
        for file in self.files.values_mut() {
            file.let_go();
        }
        walker
    }

    fn is_gone(&self, walker: &mut Option<Leaving>) -> bool {
        // What a server was asked for is open there until it has answered.
        self.shared.held.load(SeqCst) == 0 && walker.as_mut().is_none_or(Leaving::is_over)
    }
}
