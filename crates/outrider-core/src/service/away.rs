//! Letting go of every descriptor, for a system call of a program's that an open file elsewhere would disturb: umount(2) (EBUSY), F_SETLEASE
//! (EAGAIN), and close(2) where it shows that a file is open.
//!
//! The program waits meanwhile (`attach::release_all`). What a disk was asked for can't be taken back: its file is held until the disk has
//! answered. For umount and leases nothing is opened until the call is over: its [`Header::calls`] say so.

use std::sync::atomic::Ordering::AcqRel;

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
    /// The demand that is being honoured.
    leaving: Option<Demand>,
    /// Calls that go on.
    calls: [Option<Ongoing>; shm::CALLS],
    /// A disk did not answer in time, and has not yet.
    stubborn: bool,
}

struct Demand {
    /// The value of [`Header::release_wanted`].
    number: u32,
    walker: Option<Leaving>,
    began: Instant,
}

#[derive(Clone, Copy)]
struct Ongoing {
    /// Its entry in [`Header::calls`].
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
    /// A call may have begun before there was a service.
    pub(super) fn new() -> Away {
        Away {
            away: true,
            leaving: None,
            calls: [None; shm::CALLS],
            stubborn: false,
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
    /// Whether there is a demand that is not being honoured yet.
    pub(super) fn has_to_leave(&self) -> bool {
        let header = self.header();
        header.release_wanted.load(Relaxed) != header.release_begun.load(Relaxed)
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
        let header = self.shared.header();
        for (word, ongoing) in header.calls.iter().zip(&mut self.away.calls) {
            let call = word.load(Acquire);
            if call == 0 {
                *ongoing = None;
                continue;
            }
            let now = ongoing.filter(|o| o.call == call).unwrap_or(Ongoing {
                call,
                seen: Instant::now(),
                honoured: None,
            });
            let over = now.is_over();
            if over {
                let _ = word.compare_exchange(call, 0, AcqRel, Relaxed);
            }
            *ongoing = Some(now).filter(|_| !over);
            called |= !over;
        }
        called
    }

    /// Lets go of everything, if that is demanded, and tells when it is done.
    pub(super) fn go_away(&mut self) {
        let wanted = self.header().release_wanted.load(Acquire);
        if wanted != self.header().release_begun.load(Relaxed) {
            self.away.away = true;
            // Files that were told to be left alone must be known before the demand is honoured.
            for _ in 0..TURNS {
                if !self.drain_all() {
                    break;
                }
            }
            let walker = self.let_go_of_all();
            self.away.leaving = Some(Demand {
                number: wanted,
                walker,
                began: Instant::now(),
            });
            self.header().release_begun.store(wanted, Release);
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
        for ongoing in self.away.calls.iter_mut().flatten() {
            ongoing.honoured.get_or_insert_with(Instant::now);
        }
        let header = self.header();
        header.release_done.store(demand.number, Release);
        raw::futex_wake(&header.release_done, u32::MAX);
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
        self.header().hint_room.store(0, Relaxed);
        self.engine.drain();
        for file in self.files.values_mut() {
            file.let_go();
        }
        walker
    }

    fn is_gone(&self, walker: &mut Option<Leaving>) -> bool {
        // What a server was asked for is open there until it has answered.
        !self.header().holds_any() && walker.as_mut().is_none_or(Leaving::is_over)
    }
}
