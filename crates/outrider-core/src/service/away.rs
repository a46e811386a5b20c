//! Letting go of every descriptor, for a system call of a program's that an open file elsewhere would disturb: umount(2) (EBUSY), F_SETLEASE
//! (EAGAIN), and close(2) where it shows that a file is open.
//!
//! The program waits meanwhile (`attach::release_all`). What a disk was asked for can't be taken back: its file is held until the disk has
//! answered. From the demand until the call is over nothing is opened.

use super::*;
use crate::walk::runner::Leaving;

/// A call that isn't over so long after everything was let go of is that of a program that was killed, or has long since found out whether
/// anything is open.
const LONGEST_CALL: Duration = Duration::from_secs(2);
/// The end of the whole run waits so long for disks at most.
const AT_THE_END: Duration = Duration::from_millis(200);

/// Whether files may be opened.
#[derive(Default)]
pub(super) struct Away {
    /// The demand that is being honoured.
    leaving: Option<Demand>,
    /// When the last one was honoured, as long as calls are not over.
    left: Option<Instant>,
    /// Calls that are not waited for any more.
    given_up: u32,
}

struct Demand {
    /// The value of [`Header::release_wanted`].
    number: u32,
    walker: Option<Leaving>,
}

impl Away {
    pub(super) fn is_away(&self) -> bool {
        self.leaving.is_some() || self.left.is_some()
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

    /// Does what is demanded, step by step.
    pub(super) fn come_and_go(&mut self) {
        // In this order no call is over that was not wanted.
        let over = self.header().release_over.load(Acquire);
        let wanted = self.header().release_wanted.load(Acquire);
        if wanted != self.header().release_begun.load(Relaxed) {
            let walker = self.let_go_of_all();
            self.away.leaving = Some(Demand {
                number: wanted,
                walker,
            });
            self.header().release_begun.store(wanted, Release);
        }
        if let Some(mut demand) = self.away.leaving.take() {
            if !self.is_gone(&mut demand.walker) {
                self.away.leaving = Some(demand);
                return;
            }
            self.away.left = Some(Instant::now());
            let header = self.header();
            header.release_done.store(demand.number, Release);
            raw::futex_wake(&header.release_done, u32::MAX);
        }
        let Some(left) = self.away.left else { return };
        let open = wanted.wrapping_sub(over);
        let away = &mut self.away;
        away.given_up = match left.elapsed() > LONGEST_CALL {
            true => open,
            false => away.given_up.min(open),
        };
        if away.given_up == open {
            away.left = None;
            self.come_back();
        }
    }

    /// The end: lets go of everything, and of what a disk does not answer before long when the process ends.
    pub(super) fn leave_for_good(&mut self) {
        let until = Instant::now() + AT_THE_END;
        let mut walker = self.let_go_of_all();
        while !self.is_gone(&mut walker) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(100));
        }
        if !self.away.is_away() {
            self.come_back();
        }
    }

    fn let_go_of_all(&mut self) -> Option<Leaving> {
        let walker = self.walker.as_ref().map(Walker::let_go);
        self.engine.drain();
        for file in self.files.values_mut() {
            file.handle = None;
        }
        walker
    }

    fn is_gone(&self, walker: &mut Option<Leaving>) -> bool {
        !self.engine.is_busy() && walker.as_mut().is_none_or(Leaving::is_over)
    }

    fn come_back(&self) {
        if let Some(walker) = &self.walker {
            walker.come_back();
        }
    }
}
