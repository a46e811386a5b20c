//! Whether somebody else reads from a disk that is being prefetched from.
//!
//! The more lies in a disk's queue, the longer a foreign reader waits for each of its reads; with nobody there it costs nothing. Disks
//! count the requests that they complete. What neither the engine has asked for nor the programs that it serves have fetched themselves is
//! somebody else's.
//!
//! What is in flight blurs the count: the disk may have completed it, and nobody has seen it yet. A reader that waits for each of
//! its reads behind a long queue makes few, so that it would be found late, beside long queues of all things. So the queue is kept short until
//! [`PROOF`] looks have found nobody, and again as soon as one makes it likely that somebody is there: then little is in flight, and a few foreign
//! requests more are certain.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use outrider_sys::counters;
use outrider_sys::device::DeviceId;

use super::Service;
use crate::engine::Company;
use crate::source::predict::PAGE;

/// From one look to the next where it is not known whether somebody is there: a reader that waits for each of its reads behind a short
/// queue makes ten meanwhile …
const LOOK: Duration = Duration::from_millis(10);
/// … and where it is known.
const LATER: Duration = Duration::from_millis(20);
/// Looks after which a disk without a foreign request is ours alone, where nobody was seen before …
const PROOF: u32 = 6;
/// … and where somebody was: a second.
const ALONE: u32 = 50;
/// Looks over which requests are counted: of a reader who reads every 10 ms there are enough.
const WINDOW: usize = 16;
/// Foreign requests that are no sign of anybody: journals and directories are read now and then …
const FEW: u64 = 3;
/// … and one in so many of ours, because the kernel cuts some of them in two.
const CUT: u64 = 400;
/// A disk of which nothing was asked for so long is not looked at …
const IDLE: Duration = Duration::from_millis(100);
/// … and after so long it has to be proven again that it is ours alone.
const REST: Duration = Duration::from_secs(1);
/// Processes beyond which nobody is looked for: the look would cost more than it brings.
const MOST: usize = 32;

/// The last look.
pub struct Neighbours {
    at: Instant,
    disks: Vec<Disk>,
    /// What each process had fetched, and what it reads at once, bytes.
    programs: Vec<(u32, u64, u64)>,
}

/// Requests of a disk at a look, since whenever.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Completed by the disk.
    completed: u64,
    /// Asked for by the engine …
    issued: u64,
    /// … and seen to arrive, in groups of so many.
    arrived: u64,
    group: u64,
    /// Of the programs themselves.
    programs: u64,
}

impl Count {
    /// How many requests since `before` were somebody else's, if all of ours was completed that had been asked for, and if what was seen to have
    /// arrived was, but for a group. `holes` of ours may have been cut in two, besides those that the kernel cuts.
    fn foreign_since(&self, before: &Count, holes: u64) -> (u64, u64) {
        let completed = self.completed.saturating_sub(before.completed);
        let others = |engine: u64, blur: u64| {
            let programs = self.programs - before.programs;
            completed.saturating_sub(engine + programs + holes + blur + engine / CUT)
        };
        let group = self.group.max(before.group);
        (
            others(self.issued - before.arrived, FEW),
            others(self.arrived - before.arrived, FEW + 2 * group),
        )
    }
}

struct Disk {
    device: u64,
    /// The last looks, newest last.
    counts: VecDeque<Count>,
    /// Requests of the programs themselves before each of the last looks, twice as many as counts. What such a read has brought in leaves a hole in a request of ours that
    /// is still to come, which becomes two, and its own is smaller than others where a part was cached.
    own: VecDeque<u64>,
    busy: Instant,
    /// Looks until the disk is ours alone.
    alone_in: u32,
    company: Company,
}

impl Disk {
    fn new(device: u64) -> Disk {
        Disk {
            device,
            counts: VecDeque::new(),
            own: VecDeque::new(),
            busy: Instant::now(),
            alone_in: PROOF,
            company: Company::Unknown,
        }
    }

    /// Takes a look into account; `None`: nothing could be counted. `streaming`: files that programs have read at random are on their way as a whole.
    fn look(&mut self, count: Option<Count>, streaming: bool) {
        let Some(count) = count else {
            self.counts.clear();
            self.alone_in = self.alone_in.saturating_sub(1);
            if self.alone_in == 0 {
                self.company = Company::Nobody;
            }
            return;
        };
        if self.own.len() == 2 * WINDOW {
            self.own.pop_front();
        }
        let before = self.counts.back().map_or(0, |c| c.programs);
        self.own.push_back(count.programs - before);
        let holes = |since: &Count| match streaming {
            true => self.own.iter().sum(),
            false => count.programs - since.programs,
        };
        let foreign: Vec<_> = self
            .counts
            .iter()
            .map(|c| count.foreign_since(c, holes(c)))
            .collect();
        if self.counts.len() == WINDOW {
            self.counts.pop_front();
        }
        self.counts.push_back(count);
        if foreign.iter().any(|f| f.0 > 0) {
            self.company = Company::Others;
            self.alone_in = ALONE;
            // Those were counted.
            self.counts.drain(..self.counts.len() - 1);
            return;
        }
        self.alone_in = self.alone_in.saturating_sub(1);
        if self.alone_in == 0 {
            self.company = Company::Nobody;
            if foreign.iter().any(|f| f.1 > 0) {
                self.company = Company::Unknown;
                self.alone_in = PROOF;
            }
        }
    }
}

impl Neighbours {
    pub fn new() -> Neighbours {
        Neighbours {
            at: Instant::now(),
            disks: Vec::new(),
            programs: Vec::new(),
        }
    }

    fn disk(&mut self, device: u64) -> &mut Disk {
        let i = self.disks.iter().position(|d| d.device == device);
        let i = i.unwrap_or_else(|| {
            self.disks.push(Disk::new(device));
            self.disks.len() - 1
        });
        &mut self.disks[i]
    }

    /// Requests that programs have made since the last look, of which `now` tells what they have had fetched. `None` where one has ended, of
    /// which it is not known what it fetched last.
    fn requests(&mut self, now: Vec<(u32, u64, u64)>) -> Option<u64> {
        let of = |list: &[(u32, u64, u64)], pid| list.iter().find(|p| p.0 == pid).map(|p| p.1);
        let before = std::mem::take(&mut self.programs);
        let ended = before.iter().any(|p| of(&now, p.0).is_none());
        let requests = |&(pid, fetched, at_once): &(u32, u64, u64)| {
            let since = fetched.saturating_sub(of(&before, pid).unwrap_or(0));
            since.div_ceil(at_once)
        };
        let all = now.iter().map(requests).sum();
        self.programs = now;
        (!ended).then_some(all)
    }
}

impl Service {
    /// Looks from time to time who reads from the disks that are being fetched from, and tells the engine.
    pub(super) fn look_for_neighbours(&mut self) {
        let known = |d: &Disk| d.company != Company::Unknown;
        let pause = if self.neighbours.disks.iter().all(known) {
            LATER
        } else {
            LOOK
        };
        if self.neighbours.at.elapsed() < pause {
            return;
        }
        self.neighbours.at = Instant::now();
        let loads = self.engine.loads();
        for load in loads.iter().filter(|l| l.busy) {
            self.neighbours.disk(load.device).busy = Instant::now();
        }
        let engine = &self.engine;
        self.neighbours.disks.retain(|d| {
            let rested = d.busy.elapsed() >= REST;
            if rested {
                engine.share(d.device, Company::Unknown);
            }
            !rested
        });
        let looked_at = |d: &Disk| d.busy.elapsed() < IDLE;
        if !self.neighbours.disks.iter().any(looked_at) {
            self.neighbours.programs.clear();
            return;
        }
        let few = self.active.len() <= MOST;
        let programs: Option<Vec<(u32, u64, u64)>> = self
            .active
            .iter()
            .filter_map(|i| self.procs[*i].as_ref())
            .map(|p| {
                // No less than a page, and no more than the kernel reads ahead.
                let at_once = (p.bytes / p.reads.max(1)).clamp(PAGE, 32 * PAGE);
                let fetched = few.then(|| counters::bytes_fetched(p.pid)).flatten()?;
                Some((p.pid, fetched, at_once))
            })
            .collect();
        let own = programs.and_then(|now| self.neighbours.requests(now));
        for load in loads {
            let streaming = self
                .files
                .values()
                .any(|f| f.streamed && f.device == load.device && f.view.in_flight_pages() > 0);
            let Some(d) = self
                .neighbours
                .disks
                .iter_mut()
                .find(|d| d.device == load.device)
            else {
                continue;
            };
            if !looked_at(d) {
                d.counts.clear();
                continue;
            }
            let count = own.and_then(|own| {
                let read = counters::read(DeviceId::from_dev(load.device))?;
                Some(Count {
                    completed: read.completed + read.merged,
                    issued: load.issued,
                    arrived: load.arrived,
                    group: load.group,
                    programs: d.counts.back().map_or(0, |c| c.programs) + own,
                })
            });
            d.look(count, streaming);
            self.engine.share(load.device, d.company);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk whose queue holds `deep` requests of ours, of which it completes `ours` from one look to the next, and `foreign` of
    /// somebody else: after how many looks that is known, of `looks`, and what was last believed.
    fn watched(
        deep: impl Fn(Company) -> u64,
        ours: u64,
        foreign: u64,
        looks: u32,
    ) -> (Option<u32>, Company) {
        let mut disk = Disk::new(1);
        let (mut done, mut others) = (0, 0);
        let mut seen = None;
        for k in 0..looks {
            let queue = deep(disk.company);
            disk.look(
                Some(Count {
                    completed: done + others,
                    // Half of the queue has been completed, and nobody has seen it yet, at every second look.
                    arrived: done - (queue / 2 * u64::from(k % 2)).min(done),
                    issued: done + queue - queue / 2 * u64::from(k % 2),
                    group: 4,
                    programs: 0,
                }),
                false,
            );
            if disk.company == Company::Others {
                seen = seen.or(Some(k));
            }
            done += ours;
            others += foreign;
        }
        (seen, disk.company)
    }

    /// DR7: who reads from the disk beside a stream is noticed at the second look while little is in flight, within a few beside a long queue, and
    /// somebody who reads one page a look within a third of a second; what has arrived and was not seen yet is nobody's.
    #[test]
    fn what_nobody_of_us_asked_for_is_foreign() {
        let short = |_| 4;
        let long = |company| if company == Company::Nobody { 16 } else { 4 };
        assert_eq!(watched(short, 100, 10, 40), (Some(1), Company::Others));
        assert!(watched(long, 100, 1, 40).0.is_some_and(|looks| looks < 32));
        assert_eq!(watched(long, 100, 0, 400), (None, Company::Nobody));
    }

    /// DR7: a neighbour who comes later is noticed beside a long queue, which is shortened as soon as it is likely.
    #[test]
    fn a_neighbour_who_comes_later_is_noticed() {
        let mut disk = Disk::new(1);
        let mut count = Count {
            group: 4,
            ..Count::default()
        };
        let mut seen = None;
        for k in 0..100 {
            let queue = if disk.company == Company::Nobody {
                16
            } else {
                4
            };
            count.issued = count.arrived + queue;
            disk.look(Some(count), false);
            if k == 50 {
                assert_eq!(disk.company, Company::Nobody);
            }
            if disk.company == Company::Others {
                seen = seen.or(Some(k - 50));
            }
            count.arrived += 100;
            count.completed += 100 + if k < 50 { 0 } else { 4 };
        }
        assert!(seen.is_some_and(|looks| looks <= 6), "{seen:?}");
    }

    /// DR7: the requests that programs make themselves are nobody's either.
    #[test]
    fn the_programs_own_requests_are_not_foreign() {
        let before = Count::default();
        let now = Count {
            completed: 60,
            issued: 40,
            arrived: 40,
            group: 1,
            programs: 10,
        };
        assert_eq!(now.foreign_since(&before, 10), (0, 0));
    }

    /// DR7, B11: what a program has read at random leaves holes in a file that is streamed afterwards, which cut our requests for long after;
    /// nothing else that it has read hides a neighbour.
    #[test]
    fn holes_in_what_is_streamed_are_nobodys() {
        let stream = |streamed, own: u64, foreign: u64| {
            let mut disk = Disk::new(1);
            let mut count = Count {
                programs: own,
                ..Count::default()
            };
            for look in 0..40 {
                disk.look(Some(count), streamed);
                count.issued += 20;
                count.arrived += 20;
                // Ten of them were cut until there are no holes left.
                let cut = if look * 10 < own { 10 } else { 0 };
                count.completed += 20 + cut + foreign;
            }
            disk.company
        };
        assert_eq!(stream(true, 100, 0), Company::Nobody);
        assert_eq!(stream(true, 100, 20), Company::Others);
        assert_eq!(stream(false, 100, 10), Company::Others);
    }
}
