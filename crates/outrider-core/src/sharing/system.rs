//! What Linux counts.

use std::cell::RefCell;

use outrider_sys::counters;
use outrider_sys::units::DeviceId;

use super::Counters;
use super::runs::{Run, Runs};
use crate::clock::{Clock, Moment, Monotonic};

/// The system that this process runs on.
pub struct System {
    clock: Monotonic,
    /// Other runs, once this one has something to show.
    runs: RefCell<Option<Option<Runs>>>,
}

impl System {
    /// By this clock.
    pub fn new(clock: Monotonic) -> System {
        System {
            clock,
            runs: RefCell::default(),
        }
    }

    /// The name of what this run shows, if it shows anything.
    pub fn shown(&self) -> Option<(u32, u32)> {
        let runs = self.runs.borrow();
        runs.as_ref()?.as_ref().map(Runs::name)
    }

    /// This run has nothing to show for the time being.
    pub fn hide(&self) {
        *self.runs.borrow_mut() = None;
    }
}

impl Clock for System {
    fn now(&self) -> Moment {
        self.clock.now()
    }
}

impl Counters for System {
    fn own_pid(&self) -> u32 {
        std::process::id()
    }

    fn bytes_fetched(&self, pid: u32) -> Option<u64> {
        counters::bytes_fetched(pid)
    }

    fn longest_request(&self, device: DeviceId) -> Option<u64> {
        counters::longest_request(device)
    }

    fn begun(&self, device: DeviceId) -> Option<(u64, u64)> {
        counters::begun(device)
    }

    fn read(&self, device: DeviceId) -> Option<counters::Read> {
        counters::read(device)
    }

    fn show_run(&self, own: &Run) {
        let mut runs = self.runs.borrow_mut();
        if let Some(runs) = runs.get_or_insert_with(Runs::open) {
            runs.show(own);
        }
    }

    fn other_runs(&self) -> Vec<Run> {
        let runs = self.runs.borrow();
        let runs = runs.as_ref().and_then(Option::as_ref);
        runs.map_or_else(Vec::new, Runs::others)
    }
}
