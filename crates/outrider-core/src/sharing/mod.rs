//! Who reads from the disks that are being prefetched from: looks at what disks and processes count, and tells the engine.
//!
//! Whoever has an engine looks: the service for all programs of its run, a program for the lists that it has declared, and `outrider warm`. What is seen is judged by
//! [`crate::device::sharing`]. Other runs of the same user show who reads for them ([`runs`]), so that none takes another for a stranger.

mod others;
mod process;
pub mod runs;
mod system;

use outrider_sys::units::{DeviceId, PAGE};
use std::time::Duration;

use outrider_sys::counters;

use crate::clock::{Clock, Moment};
use crate::device::sharing::{AHEAD, Count, Disk, Fetches, LATER, LOOK, SURE};
use crate::device::{READAHEAD, Seeks, Sharing};
use crate::engine::{Engine, Load};
use others::{Fetched, Others, Own};
pub use process::Process;
use runs::Run;
pub use system::System;

/// A disk of which nothing was asked for so long is not looked at …
const IDLE: Duration = Duration::from_millis(100);
/// … and after so long it has to be proven again that it is ours alone.
pub(crate) const REST: Duration = Duration::from_secs(1);
/// Windows of the kernel's readahead that grow, 16, 32 and 64 KiB, before they are whole, where reads are shorter than a quarter of one (mm/readahead.c,
/// `get_init_ra_size` and `get_next_ra_size`).
pub(crate) const ANEW: u64 = 3;
/// While nothing more is issued, so that all arrives, it is asked so soon again whether it has …
const DRAIN_LOOK: Duration = Duration::from_micros(100);
/// … and no longer than this.
const DRAIN_MOST: Duration = LATER;
/// Processes beyond which nobody is looked for: the look would cost more than it brings.
pub(crate) const MOST: usize = 32;

/// What the system counts.
pub trait Counters: Clock {
    /// The number of the process that has the engine.
    fn own_pid(&self) -> u32;
    /// Bytes that a process has had read from disks.
    fn bytes_fetched(&self, pid: u32) -> Option<u64>;
    /// Bytes of the longest request that a disk takes.
    fn longest_request(&self, device: DeviceId) -> Option<u64>;
    /// See [`counters::begun`].
    fn begun(&self, device: DeviceId) -> Option<(u64, u64)>;
    /// See [`counters::read`].
    fn read(&self, device: DeviceId) -> Option<counters::Read>;
    /// Shows this run to others of its user.
    fn show_run(&self, _own: &Run) {}
    /// What other runs of this user show.
    fn other_runs(&self) -> Vec<Run>;
}

/// A process that reads for a run, beside the one that has the engine.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The process.
    pub pid: u32,
    /// Bytes that it has had fetched.
    pub fetched: u64,
    /// Bytes of one of its requests.
    pub at_once: u64,
    /// The same where none of ours lies in the way.
    pub window: Option<u64>,
    /// Bytes that the kernel has in flight at once for the longest reads of its streams, where nobody runs ahead of them.
    pub in_flight: u64,
    /// Bytes that the kernel has in flight at once for all its streams that go forward without gaps.
    pub streaming: u64,
    /// Bytes that it may have on its way, if that is known.
    pub way: u64,
    /// Its streams that go forward without gaps, and one more if it gives the kernel hints.
    pub streams: u64,
}

/// What a run knows of those who read for it.
pub trait Readers {
    /// Processes, beside the one that has the engine, with what they have fetched, by requests of `longest` bytes at most; `None` where it is not to be known of all of them.
    fn programs(&self, longest: u64) -> Option<Vec<Program>>;
    /// Requests that the process which has the engine has made beside it until now: no fewer …
    fn least_beside(&self) -> u64;
    /// … and no more.
    fn most_beside(&self) -> u64;
    /// Whether these may be of a device with this load, where room beside the engine had been asked for so many times at the last look.
    fn reads_beside(&self, load: &Load, entered: u64) -> bool {
        load.busy || load.entered != entered
    }
    /// Bytes of the engine's longest requests.
    fn chunk(&self) -> u64;
    /// Whether programs have gone through directories lately.
    fn walks(&self) -> bool;
    /// Bytes of which programs have given the kernel hints.
    fn hinted(&self) -> u64;
}

/// The last look.
#[derive(Default)]
pub struct DeviceSharing {
    at: Moment,
    disks: Vec<Disk>,
    /// Devices that are given nothing more until the next look.
    held: Vec<DeviceId>,
    programs: Vec<Program>,
    /// Requests of the engine until then, less those on their way.
    asked: u64,
    /// Requests that had surely been made beside the engine at the last look.
    beside: u64,
    /// Bytes of which programs had given the kernel hints.
    hinted: u64,
    others: Others,
    own: Own,
    /// What other runs were shown at the last look.
    shown: Run,
    /// Devices, and bytes that calls which programs make ahead may have in flight there, where that is less than elsewhere.
    rooms: Vec<(DeviceId, u64)>,
}

impl DeviceSharing {
    /// One that has not looked before `now`.
    pub fn new(now: Moment) -> DeviceSharing {
        DeviceSharing {
            at: now,
            ..DeviceSharing::default()
        }
    }

    /// Who reads from a device, as far as is known.
    pub fn of(&self, device: DeviceId) -> Sharing {
        let disk = self.disks.iter().find(|d| d.device == device);
        disk.map_or(Sharing::Unknown, Disk::sharing)
    }

    /// Bytes that calls which programs make ahead themselves may have in flight, by device, where others read: see [`Sharing::ahead`].
    pub fn rooms(&self) -> &[(DeviceId, u64)] {
        &self.rooms
    }

    /// Whether a device is looked at.
    pub fn knows(&self, device: DeviceId) -> bool {
        self.disks.iter().any(|d| d.device == device)
    }

    /// From one look to the next.
    pub fn pause(&self) -> Duration {
        // Who reads beside programs that nobody runs ahead of may have been overlooked.
        let known = |d: &Disk| match d.sharing {
            Sharing::Unknown | Sharing::Suspected => false,
            Sharing::Exclusive => d.quiet > SURE,
            Sharing::Shared => true,
        };
        match self.disks.iter().all(known) {
            _ if !self.held.is_empty() => DRAIN_LOOK,
            true => LATER,
            false => LOOK,
        }
    }

    /// Looks, if it is time to, and tells the engine.
    pub fn look(&mut self, system: &impl Counters, engine: &Engine, readers: &impl Readers) {
        let since = system.since(self.at);
        if since < self.pause() {
            return;
        }
        let held = std::mem::take(&mut self.held);
        if since < DRAIN_MOST && held.iter().any(|device| engine.is_asked(*device)) {
            self.held = held;
            return;
        }
        self.look_now(since, system, engine, readers);
        for device in held.into_iter().filter(|d| !self.held.contains(d)) {
            engine.hold(device, false);
        }
    }

    /// To be called before this is given up: what was held goes on.
    pub fn release(&mut self, engine: &Engine) {
        for device in self.held.drain(..) {
            engine.hold(device, false);
        }
    }

    fn look_now(
        &mut self,
        since: Duration,
        system: &impl Counters,
        engine: &Engine,
        readers: &impl Readers,
    ) {
        if since >= REST {
            // Nobody has looked for so long: it has to be proven anew.
            self.disks
                .iter()
                .for_each(|d| engine.share(d.device, Sharing::Unknown));
            self.disks.clear();
        } else if since >= IDLE {
            self.disks.iter_mut().for_each(Disk::forget);
        }
        for load in engine.loads() {
            let known = self.disks.iter().find(|d| d.device == load.device);
            let entered = known.map_or(0, |d| d.entered);
            if load.busy || load.entered > entered {
                let disk = self.disk(load.device, system, || readers.chunk());
                disk.busy = system.now();
            }
        }
        self.disks.retain(|d| {
            let rested = system.since(d.busy) >= REST;
            if rested {
                engine.share(d.device, Sharing::Unknown);
            }
            !rested
        });
        let disks = &self.disks;
        self.rooms
            .retain(|(device, _)| disks.iter().any(|d| d.device == *device));
        self.count(system, engine, readers);
    }

    /// To be called before something is asked of a device that is not looked at: begins to count there.
    pub fn begin(
        &mut self,
        device: DeviceId,
        system: &impl Counters,
        engine: &Engine,
        readers: &impl Readers,
    ) {
        engine.share(device, Sharing::Unknown);
        // What was made beside the engine until now is nothing of this one.
        let beside = self.beside_since(readers.least_beside());
        self.attribute(engine.loads().iter(), beside, 0, readers);
        self.disk(device, system, || readers.chunk());
        self.count(system, engine, readers);
    }

    /// A process was taken in, which is about to read `at_once` bytes with each request: other runs know of it before it does.
    pub fn show_process(&mut self, pid: u32, at_once: u64, system: &impl Counters) {
        if !self.shown.devices.is_empty() {
            self.shown.members.push((pid, at_once));
            system.show_run(&self.shown);
        }
    }

    fn disk(
        &mut self,
        device: DeviceId,
        system: &impl Counters,
        chunk: impl FnOnce() -> u64,
    ) -> &mut Disk {
        let i = self.disks.iter().position(|d| d.device == device);
        let i = i.unwrap_or_else(|| {
            let longest = system.longest_request(device).unwrap_or(u64::MAX);
            let disk = Disk::new(device, longest, chunk(), system.now());
            self.disks.push(disk);
            self.disks.len() - 1
        });
        &mut self.disks[i]
    }

    /// What other runs of this user are shown: this one's disks, and who reads for it. `process`: the one that has the engine, and what it has fetched, bytes.
    fn own_run(
        &mut self,
        loads: &[Load],
        process: Option<(u32, u64)>,
        programs: Option<&Vec<Program>>,
        chunk: u64,
    ) -> Run {
        let issued = loads.iter().map(|l| l.issued).sum::<u64>() + self.beside;
        let longest = chunk.min(self.longest());
        let made = process.map_or((0, 0), |(_, bytes)| (issued, bytes));
        let process = process.map(|(pid, bytes)| (pid, self.own.at_once(bytes, issued, longest)));
        let programs = programs.into_iter().flatten().map(|p| (p.pid, p.at_once));
        Run {
            devices: loads.iter().map(|l| l.device).collect(),
            in_flight: loads.iter().map(|l| l.bound).max().unwrap_or(0),
            made,
            // Not what others have told, or nobody would ever take it back.
            sees_somebody: self.disks.iter().any(|d| d.sharing == Sharing::Shared),
            members: process.into_iter().chain(programs).collect(),
        }
    }

    /// The longest request that the disks take, bytes.
    fn longest(&self) -> u64 {
        let longest = self.disks.iter().map(|d| d.longest);
        longest.min().unwrap_or(u64::MAX)
    }

    /// Requests that programs have made since the last look, of which `now` tells what they have had fetched. `None` where one has ended, of
    /// which it is not known what it fetched last.
    fn requests(&mut self, now: Vec<Program>) -> Option<u64> {
        let of = |list: &[Program], pid| list.iter().find(|p| p.pid == pid).map(|p| p.fetched);
        let before = std::mem::take(&mut self.programs);
        let ended = before.iter().any(|p| of(&now, p.pid).is_none());
        let requests = |p: &Program| {
            let since = p.fetched.saturating_sub(of(&before, p.pid).unwrap_or(0));
            since.div_ceil(p.at_once)
        };
        let all = now.iter().map(requests).sum();
        self.programs = now;
        (!ended).then_some(all)
    }

    /// How many requests programs make of which it is known by how many bytes the kernel reads ahead of them: each of ours since the last look, or on its way then, may have
    /// cut one of these windows short.
    fn cut_windows(&mut self, programs: &mut Option<Vec<Program>>, loads: &[Load]) {
        let issued = loads.iter().map(|l| l.issued).sum::<u64>();
        let way = loads.iter().map(|l| l.way).sum::<u64>();
        let ours = issued.saturating_sub(self.asked);
        self.asked = issued.saturating_sub(way);
        for p in programs.iter_mut().flatten() {
            let before = self.programs.iter().find(|b| b.pid == p.pid);
            let since = p.fetched - before.map_or(0, |b| b.fetched.min(p.fetched));
            if let Some(window) = p.window {
                let requests = since.div_ceil(window) + (1 + ANEW) * ours;
                p.at_once = p.at_once.max(since.div_ceil(requests.max(1)));
            }
        }
    }

    /// Requests that have surely been made beside the engine since this was asked last, of `least` in all.
    fn beside_since(&mut self, least: u64) -> u64 {
        // What is just being read may have been counted page by page.
        let before = self.beside;
        self.beside = least.max(before);
        self.beside - before
    }

    /// Adds requests that were made beside the engine, and perhaps so many `uncertain` ones more, to the disks with these loads that they may be of.
    fn attribute<'a>(
        &mut self,
        loads: impl Iterator<Item = &'a Load>,
        beside: u64,
        uncertain: u64,
        readers: &impl Readers,
    ) {
        for load in loads {
            let known =
                |d: &&mut Disk| d.device == load.device && readers.reads_beside(load, d.entered);
            // Who reads from several disks at once is believed to have read all from each.
            if let Some(d) = self.disks.iter_mut().find(known) {
                (d.beside, d.uncertain) = (d.beside + beside, uncertain);
                d.entered = load.entered;
            }
        }
    }

    /// Other runs that read from the same disks, of which none has a process of this one's.
    fn other_runs(&self, own: &Run, system: &impl Counters) -> Vec<Run> {
        let mut runs = system.other_runs();
        let is_own = |pid: u32| own.members.iter().any(|m| m.0 == pid);
        runs.retain(|other| {
            let leads = other.leader().is_some_and(is_own);
            !leads && other.devices.iter().any(|d| own.devices.contains(d))
        });
        // A program that has declared lists shows itself, and is shown by the run that it belongs to.
        let leaders: Vec<u32> = runs.iter().filter_map(Run::leader).collect();
        for run in &mut runs {
            let leader = run.leader();
            run.members.retain(|m| {
                let leads = leaders.contains(&m.0) && Some(m.0) != leader;
                !leads && !is_own(m.0)
            });
        }
        runs
    }

    fn count(&mut self, system: &impl Counters, engine: &Engine, readers: &impl Readers) {
        self.at = system.now();
        let looked_at = |d: &Disk| system.since(d.busy) < IDLE;
        if !self.disks.iter().any(looked_at) {
            self.programs.clear();
            return;
        }
        let counts = self.counts(system, engine, readers);
        self.judge(counts, engine, readers);
    }

    /// What system, engine and readers count. Who looks may be kept from the processor in the middle of it: what they count is asked for before the disks and after.
    fn counts(
        &mut self,
        system: &impl Counters,
        engine: &Engine,
        readers: &impl Readers,
    ) -> Counts {
        let looked_at = |d: &Disk| system.since(d.busy) < IDLE;
        let own_pid = system.own_pid();
        let ours = system.bytes_fetched(own_pid);
        for d in &mut self.disks {
            d.uncertain = 0;
            if !looked_at(d) {
                d.forget();
            }
        }
        let mut programs = readers.programs(self.longest());
        let loads = engine.loads();
        self.cut_windows(&mut programs, &loads);
        let process = ours.map(|bytes| (own_pid, bytes));
        let run = self.own_run(&loads, process, programs.as_ref(), readers.chunk());
        system.show_run(&run);
        let runs = self.other_runs(&run, system);
        self.shown = run;
        let fetched = |pid| system.bytes_fetched(pid);
        let others = self.others.look(&runs, system.now(), fetched);
        let least_beside = readers.least_beside();
        let disks: Vec<_> = engine
            .loads()
            .into_iter()
            .filter(|l| {
                let disks = &self.disks;
                disks.iter().any(|d| d.device == l.device && looked_at(d))
            })
            .map(|before| {
                let device = before.device;
                let (begun, read) = (system.begun(device), system.read(device));
                let after = engine.loads();
                let after = after.into_iter().find(|l| l.device == before.device);
                Given {
                    before,
                    counted: begun.zip(read),
                    after,
                }
            })
            .collect();
        let asked = ours.zip(system.bytes_fetched(own_pid));
        let after = programs.iter().flatten().map(|p| {
            let bytes = fetched(p.pid).unwrap_or(p.fetched).max(p.fetched);
            (bytes, (bytes - p.fetched).div_ceil(p.at_once))
        });
        let after = after.fold((0, 0), |all, p| (all.0 + p.0, all.1 + p.1));
        let others = others.zip(self.others.look(&runs, system.now(), fetched));
        let most_beside = readers.most_beside();
        let beside = self.beside_since(least_beside);
        let uncertain = most_beside.saturating_sub(self.beside);
        let loads = disks.iter().map(|given| &given.before);
        self.attribute(loads, beside, uncertain, readers);
        Counts {
            asked,
            after,
            programs,
            runs,
            others,
            disks,
        }
    }

    /// Has each disk judged by what was counted, and tells the engine.
    fn judge(&mut self, counts: Counts, engine: &Engine, readers: &impl Readers) {
        let Counts {
            asked,
            after: (fetched_after, requests_after),
            programs,
            runs,
            others,
            disks,
        } = counts;
        let theirs = Together::of(programs.as_deref());
        // A process that has the engine for itself lists nobody, and reads all the same.
        let (fetched, on_way) = match theirs.way {
            Some(way) => (theirs.fetched, way),
            None => (asked.map_or(0, |(bytes, _)| bytes), 2 * READAHEAD),
        };
        let hinted = readers.hinted();
        let hints = std::mem::replace(&mut self.hinted, hinted) < hinted;
        let own = programs.and_then(|now| self.requests(now));
        let own = own.zip(others);
        let walks = readers.walks();
        for given in disks {
            let load = given.before;
            let known = self.disks.iter_mut().find(|d| d.device == load.device);
            let Some(d) = known else { continue };
            let there: Vec<&Run> = self.others.on(&runs, load.device).collect();
            engine.divide(load.device, there.len() as u32);
            let way = load.bytes + there.iter().map(|run| run.in_flight).sum::<u64>();
            let count = own.and_then(|(own, (least, most))| {
                let (begun, read) = given.counted?;
                // Nothing of anybody's is on its way.
                let rests = read.completed + read.merged >= begun.1;
                let after = given.after?;
                let asked = asked.map(|a| {
                    (
                        a.0 + theirs.fetched + least.bytes,
                        a.1 + fetched_after + most.bytes,
                    )
                });
                Some(Count {
                    begun,
                    handed: load.handed + d.beside + least.requests,
                    issued: after.issued + d.beside + d.uncertain + most.requests + most.uncertain,
                    parts: after.parts / (theirs.block / PAGE).max(1),
                    programs: Fetches {
                        requests: d.counts.back().map_or(0, |c| c.programs.requests) + own,
                        uncertain: requests_after,
                        fetched,
                        way: if rests { 0 } else { on_way },
                        streams: theirs.streams,
                    },
                    delivered: read.bytes,
                    asked,
                    way,
                    ..Count::default()
                })
            });
            let (is_counted, known) = (count.is_some(), d.sharing);
            d.walked = walks;
            // Whoever reads there waits behind what is on its way.
            let model = engine.model(load.device);
            let answer = model.takes(way + theirs.unarrived).unwrap_or_default();
            // A head takes a breath anyway.
            d.drains = model.seeks() != Seeks::Yes;
            d.look(count, answer);
            if d.is_to_drain(answer) {
                d.held += 1;
                self.held.push(load.device);
                engine.hold(load.device, true);
            }
            d.told = there.iter().any(|run| run.sees_somebody);
            engine.share(load.device, d.sharing());
            let room = d.sharing().ahead(&model, there.len() as u32, load.bytes);
            self.rooms.retain(|(device, _)| *device != load.device);
            if room < AHEAD {
                self.rooms.push((load.device, room));
            }
            engine.disturb(load.device, hints);
            engine.match_kernel(load.device, theirs.long, theirs.streaming);
            if is_counted && d.sharing == Sharing::Exclusive && known != d.sharing {
                engine.deepen(load.device);
            }
        }
    }
}

/// What one look has counted.
struct Counts {
    /// Bytes that programs had fetched after the disks were looked at, and requests that they had made meanwhile.
    after: (u64, u64),
    /// Bytes that the process with the engine had fetched when the look began, and when it ended.
    asked: Option<(u64, u64)>,
    programs: Option<Vec<Program>>,
    /// Other runs on the same disks, and what they had fetched then.
    runs: Vec<Run>,
    others: Option<(Fetched, Fetched)>,
    disks: Vec<Given>,
}

/// What programs do together.
struct Together {
    /// Bytes that they have had fetched.
    fetched: u64,
    /// Bytes of the shortest request that one of them makes; a page without any.
    block: u64,
    /// Bytes that the kernel has in flight at once for the longest reads of one of them, where that is more than two windows; otherwise 0 …
    long: u64,
    /// … and what all of them have beyond two windows each.
    unarrived: u64,
    /// Bytes that the kernel has in flight at once for all their streams that go forward without gaps.
    streaming: u64,
    /// Bytes that they may have on their way. `None` where no programs are listed.
    way: Option<u64>,
    /// Streams of all, and programs that give hints.
    streams: u64,
}

impl Together {
    fn of(programs: Option<&[Program]>) -> Together {
        let none = Together {
            fetched: 0,
            block: u64::MAX,
            long: 0,
            unarrived: 0,
            streaming: 0,
            way: None,
            streams: 0,
        };
        let mut all = programs.into_iter().flatten().fold(none, |mut all, p| {
            let beyond = p.in_flight.saturating_sub(2 * READAHEAD);
            all.fetched += p.fetched;
            all.block = all.block.min(p.at_once);
            if beyond > 0 {
                all.long = all.long.max(p.in_flight);
            }
            all.unarrived += beyond;
            all.streaming += p.streaming;
            all.streams += p.streams;
            all.way = Some(all.way.unwrap_or(0).saturating_add(p.way));
            all
        });
        if all.way.is_none() {
            all.block = PAGE;
        }
        all
    }
}

/// What a disk had been given, between what the engine had surely handed over and may have by now.
struct Given {
    before: Load,
    /// Requests to read, no fewer and no more, and what it has read.
    counted: Option<((u64, u64), counters::Read)>,
    after: Option<Load>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DR7: a stream that overtakes what is asked for ahead of it is read by whole windows of the kernel's, so that a neighbour's requests show beside its own; where
    /// requests of ours lie in its way it may be as many as it makes reads.
    #[test]
    fn what_overtakes_us_is_read_by_windows() {
        const READ: u64 = 64 << 10;
        let mut sharing = DeviceSharing::default();
        let mut load = Load::default();
        let mut made = |fetched: u64, ours: u64| {
            load.issued += ours;
            let mut now = Some(vec![Program {
                pid: 1,
                fetched,
                at_once: READ,
                window: Some(2 * READ),
                in_flight: 2 * READ,
                streaming: 2 * READ,
                way: 2 * READ,
                streams: 1,
            }]);
            sharing.cut_windows(&mut now, &[load]);
            sharing.requests(now.unwrap_or_default())
        };
        assert_eq!(made(0, 0), Some(0));
        assert_eq!(made(100 * READ, 0), Some(50));
        assert_eq!(made(200 * READ, 4), Some(50 + 4 * (1 + ANEW)));
        assert_eq!(made(300 * READ, 100), Some(100));
    }
}
