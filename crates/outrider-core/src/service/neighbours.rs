//! Whether somebody else reads from a disk that is being prefetched from.
//!
//! The more lies in a disk's queue, the longer a foreign reader waits for each of its reads; with nobody there it costs nothing. Disks
//! count the requests that they complete. What neither the engine has asked for nor the programs that it serves have fetched themselves is
//! somebody else's.

use std::time::{Duration, Instant};

use outrider_sys::counters;
use outrider_sys::device::DeviceId;

use super::Service;
use crate::engine::Load;
use crate::source::predict::PAGE;

/// From one look to the next: time enough for fifteen reads of somebody who waits for each of them behind ours.
const LOOK: Duration = Duration::from_millis(50);
/// Looks without a foreign request after which the disk is ours alone again: a second.
const ALONE: u32 = 20;
/// Foreign requests of one look that are no sign of anybody, if a group of ours has no more: one that arrived and was not seen yet …
const FEW: u64 = 4;
/// … and one in so many of ours, because the kernel cuts some of them in two.
const CUT: u64 = 100;
/// Processes beyond which nobody is looked for: the look would cost more than it brings.
const MOST: usize = 32;

/// The last look.
pub struct Neighbours {
    at: Instant,
    disks: Vec<Disk>,
    /// What each process had fetched, and what it reads at once, bytes.
    programs: Vec<(u32, u64, u64)>,
}

struct Disk {
    load: Load,
    /// Requests that the disk had completed; `None` where it doesn't count.
    completed: Option<u64>,
    /// Looks that somebody else is still taken to be there.
    shared: u32,
    /// The last look found somebody: it takes two.
    suspected: bool,
}

impl Neighbours {
    pub fn new() -> Neighbours {
        Neighbours {
            at: Instant::now(),
            disks: Vec::new(),
            programs: Vec::new(),
        }
    }
}

/// Whether of the requests that a disk completed between two looks some were neither of the engine's, in groups of `group`, nor of the programs',
/// which counts twice because a read of which a part is cached is smaller than others.
fn is_shared(completed: u64, engine: u64, group: u64, programs: u64) -> bool {
    completed > engine + 2 * programs + FEW.max(group) + engine / CUT
}

impl Service {
    /// Looks from time to time who reads from the disks that are being fetched from, and tells the engine.
    pub(super) fn look_for_neighbours(&mut self) {
        if self.neighbours.at.elapsed() < LOOK {
            return;
        }
        let loads = self.engine.loads();
        let before = std::mem::replace(&mut self.neighbours, Neighbours::new());
        let look = self.active.len() <= MOST && loads.iter().any(|l| l.busy);
        let programs: Option<Vec<(u32, u64, u64)>> = self
            .active
            .iter()
            .filter(|_| look)
            .filter_map(|i| self.procs[*i].as_ref())
            .map(|p| {
                // No less than a page, and no more than the kernel reads ahead.
                let at_once = (p.bytes / p.reads.max(1)).clamp(PAGE, 32 * PAGE);
                Some((p.pid, counters::bytes_fetched(p.pid)?, at_once))
            })
            .collect();
        // Of a process that has ended meanwhile it is not known what it fetched last.
        let own = programs.as_ref().and_then(|now| {
            let of = |list: &[(u32, u64, u64)], pid| list.iter().find(|p| p.0 == pid).map(|p| p.1);
            let ended = before.programs.iter().any(|p| of(now, p.0).is_none());
            let requests = |&(pid, fetched, at_once): &(u32, u64, u64)| {
                let since = fetched.saturating_sub(of(&before.programs, pid).unwrap_or(0));
                since.div_ceil(at_once)
            };
            (!ended).then(|| now.iter().map(requests).sum::<u64>())
        });
        for load in loads {
            let device = DeviceId::from_dev(load.device);
            let read = look.then(|| counters::read(device)).flatten();
            let completed = read.map(|r| r.completed + r.merged);
            let last = before.disks.iter().find(|d| d.load.device == load.device);
            let mut shared = last.map_or(0, |d| d.shared);
            let was = shared > 0;
            shared = shared.saturating_sub(1);
            let mut suspected = false;
            if let Some(last) = last
                && let (Some(from), Some(to), Some(own)) = (last.completed, completed, own)
                && last.load.busy
                && load.busy
            {
                let engine = load.arrived - last.load.arrived;
                let group = load.group.max(last.load.group);
                suspected = is_shared(to.saturating_sub(from), engine, group, own);
                if suspected && (was || last.suspected) {
                    shared = ALONE;
                }
            }
            if was != (shared > 0) {
                self.engine.share(load.device, shared > 0);
            }
            self.neighbours.disks.push(Disk {
                load,
                completed,
                shared,
                suspected,
            });
        }
        self.neighbours.programs = programs.unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::is_shared;

    /// DR7: who waits for each of its reads is noticed beside a fast stream; requests that the kernel cuts, a group that was not seen
    /// to arrive, and the programs' own are nobody's.
    #[test]
    fn what_nobody_of_us_asked_for_is_foreign() {
        assert!(is_shared(200 + 10, 200, 4, 0));
        assert!(!is_shared(200 + 6, 200, 4, 0));
        assert!(!is_shared(200 + 10, 200, 4, 2));
        assert!(!is_shared(1000 + 60, 1000, 64, 0));
        assert!(!is_shared(100, 200, 4, 0));
    }
}
