//! Whether somebody else reads from a disk that is being prefetched from.
//!
//! The more lies in a disk's queue, the longer a foreign reader waits for each of its reads; with nobody there it costs nothing. Disks
//! count the requests that they complete. What neither the engine has asked for nor the programs that it serves have fetched themselves is
//! somebody else's.
//!
//! Requests are counted when they are given to the disk: those that it has completed, and those on their way. So nothing is uncertain but what is being
//! handed over at the moment, and whoever waits behind a long queue is counted as soon as one who waits behind a short one. The queue is kept short until
//! [`PROOF`] looks have found nobody, because who waits long makes few requests, and again at the first sign of somebody; who is seen once more is there.

use std::collections::VecDeque;
use std::time::Duration;

use outrider_sys::units::PAGE;

use super::runs::Run;
use super::{FileState, InodeKey, Kernel, ProcState, Service};
use crate::clock::Moment;
use crate::config::Config;
use crate::device::{READAHEAD, Seeks};
use crate::engine::{LEAST_BLOCK, Load, Sharing};
use crate::map::Map;

/// From one look to the next where it is not known whether somebody is there …
const LOOK: Duration = Duration::from_millis(2);
/// … and where it is known.
const LATER: Duration = Duration::from_millis(10);
/// Looks after which a disk without a foreign request is ours alone, where nobody was seen before: a reader who waits for each of his
/// reads behind a short queue makes a dozen meanwhile, if the disk answers within 1 ms …
const PROOF: u32 = 8;
/// … and latencies of the disk that must have passed, whatever it is.
const ANSWERS: u32 = 12;
/// Looks, in succession, after which it is looked more rarely.
const SURE: u32 = 3 * PROOF;
/// Looks after which it is where somebody was seen: a second.
const ALONE: u32 = 100;
/// Looks over which requests are counted: of a reader who reads every 10 ms there are enough.
const WINDOW: usize = 32;
/// Looks after which nothing is left that one of them didn't count, though it had been given to the disk.
const MOMENTS: usize = 4;
/// Foreign requests that are no sign of anybody: journals and directories are read now and then …
const FEW: u64 = 8;
/// … nor are so many more, once these were there …
const FEW_MORE: u64 = 3;
/// … and one in so many of ours, because the kernel cuts some of them in two.
const CUT: u64 = 400;
/// Bytes that programs may have had on their way at a look, and what else it doesn't see.
const UNSEEN: u64 = 2 * READAHEAD;
/// A program that went through directories so recently reads names and inodes block by block, and few of its requests are as long as its reads.
const WALKED: Duration = Duration::from_secs(1);
/// Pieces that one of our requests may be cut into, at most: of 128 KiB, by pages that are cached.
const HOLES: u64 = 16;
/// A disk of which nothing was asked for so long is not looked at …
const IDLE: Duration = Duration::from_millis(100);
/// … and after so long it has to be proven again that it is ours alone.
const REST: Duration = Duration::from_secs(1);
/// A look takes so long, and so much more for each process. Who was kept from the processor in the middle of one counts requests of the disk that programs made after theirs
/// were counted.
const LASTS: Duration = Duration::from_micros(200);
const LASTS_EACH: Duration = Duration::from_micros(40);
/// After so many of these in succession they may take twice as long, after twice as many three times.
const INTERRUPTED: u32 = 8;
/// Processes beyond which nobody is looked for: the look would cost more than it brings.
const MOST: usize = 32;

/// The last look.
pub struct DeviceSharing {
    at: Moment,
    disks: Vec<Disk>,
    /// Looks in succession that took too long.
    interrupted: u32,
    /// What each process had fetched, and what it reads at once, bytes.
    programs: Vec<(u32, u64, u64)>,
    /// Requests that all walks had made at the last look: no fewer, and no more.
    walks: (u64, u64),
    /// Bytes of which programs had given the kernel hints.
    hinted: u64,
    others: Others,
    own: Own,
    /// What other runs were shown at the last look.
    shown: Run,
}

/// Other runs that read from the same disks.
#[derive(Default)]
struct Others {
    /// What each of their processes had fetched, bytes, and by how many requests.
    members: Vec<(u32, (u64, u64))>,
    /// What all of them have fetched since the first look: requests, and bytes.
    requests: u64,
    bytes: u64,
    /// By their services' processes, when each was last seen to have fetched something.
    active: Vec<(u32, Moment)>,
}

impl Others {
    /// Counts what they have fetched until now. `None` where it isn't known what a run has fetched before, or one of its processes last, or they are too many.
    fn look(
        &mut self,
        runs: &[Run],
        now: Moment,
        fetched: impl Fn(u32) -> Option<u64>,
    ) -> Option<(u64, u64)> {
        let before = std::mem::take(&mut self.members);
        let known = |pid| before.iter().find(|m| m.0 == pid).map(|m| m.1);
        let mut all_known = true;
        let few = runs.iter().map(|r| r.members.len()).sum::<usize>() <= MOST;
        for run in runs.iter().filter(|_| few) {
            let bytes = self.bytes;
            let is_new = run.members.first().is_none_or(|m| known(m.0).is_none());
            all_known &= !is_new;
            for (i, (pid, at_once)) in run.members.iter().enumerate() {
                let Some(now) = fetched(*pid) else { continue };
                // A process that has just begun has fetched all of it since the last look.
                let (then, before) = known(*pid).unwrap_or(if is_new { (now, 0) } else { (0, 0) });
                let since = now.saturating_sub(then);
                // What the service has asked for was counted when it showed that, all but the last of it.
                let made = match i {
                    0 => run.made.0 + now.saturating_sub(run.made.1).div_ceil(*at_once),
                    _ => before + since.div_ceil(*at_once),
                };
                let before = if is_new { made } else { before };
                self.requests = self.requests.wrapping_add(made.wrapping_sub(before));
                self.bytes += since;
                self.members.push((*pid, (now, made)));
            }
            if let Some((service, _)) = run.members.first().filter(|_| self.bytes > bytes) {
                self.active.retain(|a| a.0 != *service);
                self.active.push((*service, now));
            }
        }
        self.active.retain(|a| now - a.1 < REST);
        let is_there = |m: &(u32, (u64, u64))| self.members.iter().any(|n| n.0 == m.0);
        let known = all_known && few && before.iter().all(is_there);
        known.then_some((self.requests, self.bytes))
    }

    /// Those of them that have lately fetched something, perhaps from this device.
    fn on<'a>(&self, runs: &'a [Run], device: u64) -> impl Iterator<Item = &'a Run> {
        let is_active = |run: &&Run| {
            let service = run.members.first().map(|m| m.0);
            self.active.iter().any(|a| Some(a.0) == service)
        };
        runs.iter()
            .filter(move |run| run.devices.contains(&device) && is_active(run))
    }
}

/// What this run asks for at once: shown to others.
#[derive(Default)]
struct Own {
    /// Bytes that the service had fetched, and by how many requests.
    counted: (u64, u64),
    /// Bytes of its requests of late; 0: not known yet.
    at_once: u64,
}

impl Own {
    /// By so many `requests` the service has had `bytes` fetched so far. Bytes of one of the last of them.
    fn at_once(&mut self, bytes: u64, requests: u64, longest: u64) -> u64 {
        /// Of fewer requests the mean says little.
        const SOME: u64 = 16;
        let (since, made) = (
            bytes.saturating_sub(self.counted.0),
            requests.saturating_sub(self.counted.1),
        );
        if made >= SOME {
            self.at_once = since / made;
            self.counted = (bytes, requests);
        }
        self.at_once.clamp(PAGE, longest.max(PAGE))
    }
}

/// Requests of a disk at a look, since whenever.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Given to the disk: no fewer, by its own counts, which for a moment leave out what it has finished and nobody has been told of, dozens beside a busy processor, and
    /// perhaps as many as these.
    begun: (u64, u64),
    /// Of the engine and of walks, which the disk had surely been given …
    handed: u64,
    /// … and may have been given.
    issued: u64,
    /// Of the programs themselves.
    programs: u64,
    /// Bytes that the disk has delivered.
    delivered: u64,
    /// Bytes that it may have been asked for by us and the programs: no fewer, and no more.
    asked: Option<(u64, u64)>,
    /// Of these, what was on its way, as far as is known.
    way: u64,
}

impl Count {
    /// Requests that the disk has been given if at `before` it had been given no more than it counted, and then what the engine has handed over.
    fn at_least(&self, before: &Count) -> u64 {
        before.begun.0 + self.handed.saturating_sub(before.issued)
    }

    /// How many requests since `before` were surely somebody else's. Ours are cut into so many `pieces` each, and `holes` may have been cut in two, besides those that
    /// the kernel cuts.
    fn foreign_since(&self, before: &Count, pieces: u64, holes: u64) -> u64 {
        let begun = self.begun.0.saturating_sub(before.begun.1);
        let engine = self.issued.saturating_sub(before.handed) * pieces;
        let programs = self.programs - before.programs;
        let holes = holes.min(engine * HOLES);
        begun.saturating_sub(engine + programs + holes + engine / CUT)
    }

    /// How many bytes since `before` were surely somebody else's: of how many requests ours and the programs' were doesn't matter, nor does anything but what was on its way
    /// then.
    fn foreign_bytes_since(&self, before: &Count) -> u64 {
        let Some((now, then)) = self.asked.zip(before.asked) else {
            return 0;
        };
        let asked = now.1.saturating_sub(then.0);
        let delivered = self.delivered.saturating_sub(before.delivered);
        delivered.saturating_sub(asked + before.way + UNSEEN)
    }
}

struct Disk {
    device: u64,
    /// Requests that one of the engine's becomes where the disk takes no longer ones.
    pieces: u64,
    /// The longest request, bytes.
    longest: u64,
    /// The last looks, newest last.
    counts: VecDeque<Count>,
    /// Requests that walks have made, no fewer and no more than these, and how often they had asked for room.
    walks: (u64, u64),
    entered: u64,
    /// Whether programs have gone through directories lately.
    walked: bool,
    /// Requests of the programs themselves before each of the last looks, twice as many as counts. What such a read has brought in leaves a hole in a request of ours that
    /// is still to come, which becomes two, and its own is smaller than others where a part was cached.
    own: VecDeque<u64>,
    busy: Moment,
    /// Looks that have found nobody, since somebody was seen …
    quiet: u32,
    /// … if anybody was …
    seen: bool,
    /// … or some requests that may be all there were.
    suspected: bool,
    sharing: Sharing,
    /// Another run of ours sees somebody.
    told: bool,
}

impl Disk {
    /// One that takes requests of `longest` bytes, of ours that have `chunk`.
    fn new(device: u64, longest: u64, chunk: u64, now: Moment) -> Disk {
        Disk {
            device,
            pieces: chunk.div_ceil(longest.max(PAGE)).max(1),
            longest: longest.max(PAGE),
            counts: VecDeque::new(),
            walks: (0, 0),
            entered: 0,
            walked: false,
            own: VecDeque::new(),
            busy: now,
            quiet: 0,
            seen: false,
            suspected: false,
            sharing: Sharing::Unknown,
            told: false,
        }
    }

    /// Who else reads from it, by what this run and others see.
    fn sharing(&self) -> Sharing {
        if self.told {
            Sharing::Shared
        } else {
            self.sharing
        }
    }

    /// Takes a look into account; `None`: nothing could be counted. `answer`: the disk's latency. `streaming`: files that programs have read at random
    /// are on their way as a whole.
    fn look(&mut self, count: Option<Count>, answer: Duration, streaming: bool) {
        let Some(mut count) = count else {
            self.counts.clear();
            self.pass(answer);
            return;
        };
        let before = self.counts.iter().rev().take(MOMENTS);
        let before = before.map(|c| count.at_least(c));
        count.begun.1 = before.fold(count.begun.1, u64::max);
        if self.own.len() == 2 * WINDOW {
            self.own.pop_front();
        }
        let before = self.counts.back().map_or(0, |c| c.programs);
        self.own.push_back(count.programs - before);
        let holes = |since: &Count| match streaming {
            true => self.own.iter().sum(),
            false => count.programs - since.programs,
        };
        let few = if self.suspected { FEW_MORE } else { FEW };
        let foreign = self.counts.iter().any(|c| {
            count.foreign_since(c, self.pieces, holes(c)) > few
                || count.foreign_bytes_since(c) > few * PAGE
        });
        if self.counts.len() == WINDOW {
            self.counts.pop_front();
        }
        self.counts.push_back(count);
        if foreign {
            // Somebody who goes on reading is seen again soon.
            self.seen |= self.suspected;
            self.sharing = match self.seen {
                true => Sharing::Shared,
                false => Sharing::Unknown,
            };
            (self.suspected, self.quiet) = (true, 0);
            // Those were counted.
            self.counts.drain(..self.counts.len() - 1);
            return;
        }
        self.pass(answer);
    }

    /// A look has found nobody.
    fn pass(&mut self, answer: Duration) {
        self.quiet += 1;
        let answers = (ANSWERS * answer).as_micros() / LOOK.as_micros();
        let enough = match self.seen {
            true => ALONE,
            // Of what programs have read block by block nobody knows how many requests it was.
            false if self.walked => (2 * PROOF).max(answers as u32),
            false => PROOF.max(answers as u32),
        };
        if self.quiet >= enough {
            (self.sharing, self.suspected, self.seen) = (Sharing::Exclusive, false, false);
        }
    }
}

impl DeviceSharing {
    pub fn new(now: Moment) -> DeviceSharing {
        DeviceSharing {
            at: now,
            disks: Vec::new(),
            interrupted: 0,
            programs: Vec::new(),
            walks: (0, 0),
            hinted: 0,
            others: Others::default(),
            own: Own::default(),
            shown: Run::default(),
        }
    }

    fn disk(
        &mut self,
        device: u64,
        kernel: &impl Kernel,
        chunk: impl FnOnce() -> u64,
    ) -> &mut Disk {
        let i = self.disks.iter().position(|d| d.device == device);
        let i = i.unwrap_or_else(|| {
            let longest = kernel.longest_request(device).unwrap_or(u64::MAX);
            let disk = Disk::new(device, longest, chunk(), kernel.now());
            self.disks.push(disk);
            self.disks.len() - 1
        });
        &mut self.disks[i]
    }

    /// What other runs of this user are shown: this one's disks, and who reads for it.
    fn own_run(
        &mut self,
        loads: &[Load],
        service: Option<(u32, u64)>,
        programs: Option<&Vec<(u32, u64, u64)>>,
        longest: u64,
    ) -> Run {
        let issued = loads.iter().map(|l| l.issued).sum();
        let longest = longest.min(self.longest());
        let made = service.map_or((0, 0), |(_, bytes)| (issued, bytes));
        let service = service.map(|(pid, bytes)| (pid, self.own.at_once(bytes, issued, longest)));
        let programs = programs.into_iter().flatten().map(|p| (p.0, p.2));
        Run {
            devices: loads.iter().map(|l| l.device).collect(),
            in_flight: loads.iter().map(|l| l.bound).max().unwrap_or(0),
            made,
            // Not what others have told, or nobody would ever take it back.
            sees_somebody: self.disks.iter().any(|d| d.sharing == Sharing::Shared),
            members: service.into_iter().chain(programs).collect(),
        }
    }

    /// The longest request that the disks take, bytes.
    fn longest(&self) -> u64 {
        let longest = self.disks.iter().map(|d| d.longest);
        longest.min().unwrap_or(u64::MAX)
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

/// Bytes that a process has fetched by one request, by the bytes and numbers of its reads and of the hints that it has given the kernel: whatever more comes by.
fn at_once(read: (u64, u64), hinted: (u64, u64)) -> u64 {
    match hinted.0 > read.0 {
        true => hinted.0 / hinted.1.max(1),
        false => (read.0 / read.1.max(1)).clamp(PAGE, READAHEAD),
    }
}

/// Bytes of the longest requests that are made.
fn longest_chunk(config: &Config, files: &Map<InodeKey, FileState>) -> u64 {
    let chunks = files.values().map(|f| f.chunk);
    chunks.fold(config.engine.chunk.0, u64::max)
}

impl<K: Kernel> Service<K> {
    /// Looks from time to time who reads from the disks that are being fetched from, and tells the engine.
    pub(super) fn look_at_sharing(&mut self) {
        // Who reads beside programs that nobody runs ahead of may have been overlooked.
        let known = |d: &Disk| match d.sharing {
            Sharing::Unknown => false,
            Sharing::Exclusive => d.quiet > SURE,
            Sharing::Shared => true,
        };
        let pause = if self.device_sharing.disks.iter().all(known) {
            LATER
        } else {
            LOOK
        };
        if self.kernel.since(self.device_sharing.at) < pause {
            return;
        }
        for load in self.engine.loads() {
            let disks = &self.device_sharing.disks;
            let known = disks.iter().find(|d| d.device == load.device);
            let entered = known.map_or(0, |d| d.entered);
            if load.busy || load.entered > entered {
                let chunk = || longest_chunk(&self.config, &self.files);
                let disk = self.device_sharing.disk(load.device, &self.kernel, chunk);
                disk.busy = self.kernel.now();
            }
        }
        let engine = &self.engine;
        self.device_sharing.disks.retain(|d| {
            let rested = self.kernel.since(d.busy) >= REST;
            if rested {
                engine.share(d.device, Sharing::Unknown);
            }
            !rested
        });
        self.count_requests();
    }

    /// Whether somebody else was seen to read from the flash device that a file lies on.
    pub(super) fn shared_with_others(&mut self, key: InodeKey) -> bool {
        self.sharing(key) == Sharing::Shared && self.model(self.device(key)).seeks() == Seeks::No
    }

    /// Whether anybody else reads from the device that a file lies on, as far as is known.
    pub(super) fn sharing(&self, key: InodeKey) -> Sharing {
        let device = self.device(key);
        let disk = self
            .device_sharing
            .disks
            .iter()
            .find(|d| d.device == device);
        disk.map_or(Sharing::Unknown, Disk::sharing)
    }

    /// To be called before something is asked of a device: begins to count there.
    pub(super) fn begin_sharing(&mut self, device: u64) {
        if self.device_sharing.disks.iter().all(|d| d.device != device) {
            self.engine.share(device, Sharing::Unknown);
            let chunk = || longest_chunk(&self.config, &self.files);
            self.device_sharing.disk(device, &self.kernel, chunk);
            self.count_requests();
        }
    }

    /// A process was taken in, which is about to read: other runs of this user know of it before it does.
    pub(super) fn show_process(&mut self, pid: u32) {
        let shown = &mut self.device_sharing.shown;
        if !shown.devices.is_empty() {
            shown.members.push((pid, at_once((0, 0), (0, 0))));
            self.kernel.show_run(shown);
        }
    }

    fn count_requests(&mut self) {
        self.device_sharing.at = self.kernel.now();
        let looked_at = |d: &Disk| self.kernel.since(d.busy) < IDLE;
        if !self.device_sharing.disks.iter().any(looked_at) {
            self.device_sharing.programs.clear();
            return;
        }
        let walking = self.engine.threads_aside();
        let own = self.kernel.own_pid();
        let ours = self.kernel.bytes_fetched(own);
        for d in self
            .device_sharing
            .disks
            .iter_mut()
            .filter(|d| !looked_at(d))
        {
            d.counts.clear();
        }
        let few = self.active.len() <= MOST;
        let looks_from = self.kernel.now();
        let longest = self.device_sharing.longest();
        let programs: Option<Vec<(u32, u64, u64)>> = self
            .active
            .iter()
            .filter_map(|i| Some((*i, self.procs[*i].as_ref()?)))
            .map(|(i, p)| {
                // No less than a page, and no more than the kernel reads ahead. A stream that is left to it begins anew now and then, with less.
                let left = p.left.map(|window| window / 4 * 3);
                let at_once = left
                    .or_else(|| self.moving_at_once(i))
                    .unwrap_or_else(|| at_once((p.bytes, p.reads), p.hinted));
                let walks = p.walked.is_some_and(|at| self.kernel.since(at) < WALKED);
                let at_once = if walks { LEAST_BLOCK } else { at_once };
                let fetched = few.then(|| self.kernel.bytes_fetched(p.pid)).flatten()?;
                Some((p.pid, fetched, at_once.min(longest)))
            })
            .collect();
        let run = self.device_sharing.own_run(
            &self.engine.loads(),
            ours.map(|bytes| (own, bytes)),
            programs.as_ref(),
            longest_chunk(&self.config, &self.files),
        );
        self.kernel.show_run(&run);
        let mut runs = self.kernel.other_runs();
        runs.retain(|other| other.devices.iter().any(|d| run.devices.contains(d)));
        self.device_sharing.shown = run;
        let fetched = |pid| self.kernel.bytes_fetched(pid);
        let at = self.kernel.now();
        let others = self.device_sharing.others.look(&runs, at, fetched);
        let walked = self.engine.requests_aside();
        // Of each disk what it had been given, between what the engine had surely handed over and may have by now.
        let disks: Vec<_> = self
            .engine
            .loads()
            .into_iter()
            .filter(|l| {
                let disks = &self.device_sharing.disks;
                disks.iter().any(|d| d.device == l.device && looked_at(d))
            })
            .map(|before| {
                let device = before.device;
                let (begun, read) = (self.kernel.begun(device), self.kernel.read(device));
                let after = self.engine.loads();
                let after = after.into_iter().find(|l| l.device == before.device);
                (before, begun.zip(read), after)
            })
            .collect();
        let asked = ours.zip(self.kernel.bytes_fetched(own));
        let at = self.kernel.now();
        let others = others.zip(self.device_sharing.others.look(&runs, at, fetched));
        let walked = (walked, self.engine.requests_aside());
        let before = self.device_sharing.walks;
        // What is just being read may have been counted page by page.
        self.device_sharing.walks = (walked.0.max(before.0), walked.1.max(before.1));
        let walked = (
            walked.0.saturating_sub(before.0),
            walked.1.saturating_sub(before.1),
        );
        for (load, _, _) in &disks {
            let known =
                |d: &&mut Disk| d.device == load.device && (load.busy || d.entered != load.entered);
            // Who walks through several disks at once is believed to have read all from each.
            if let Some(d) = self.device_sharing.disks.iter_mut().find(known) {
                (d.walks.0, d.walks.1) = (d.walks.0 + walked.0, d.walks.1 + walked.1);
                d.entered = load.entered;
            }
        }
        let theirs = runs.iter().map(|run| 1 + 2 * run.members.len());
        let parts =
            self.active.len().min(MOST) + disks.len() + walking.div_ceil(8) + theirs.sum::<usize>();
        let lasts = LASTS + LASTS_EACH * parts as u32;
        self.device_sharing.interrupted += 1;
        // Where all of them take longer, it is the machine.
        if self.kernel.since(looks_from)
            > lasts * self.device_sharing.interrupted.div_ceil(INTERRUPTED)
        {
            return;
        }
        self.device_sharing.interrupted = 0;
        let fetched = |list: &Vec<(u32, u64, u64)>| list.iter().map(|p| p.1).sum::<u64>();
        let fetched = programs.as_ref().map_or(0, fetched);
        let walked = |p: &ProcState| p.walked.is_some_and(|at| self.kernel.since(at) < WALKED);
        let walks = self
            .active
            .iter()
            .filter_map(|i| self.procs[*i].as_ref())
            .any(walked);
        let hinted = self.active.iter().filter_map(|i| self.procs[*i].as_ref());
        let hinted = hinted.map(|p| p.hinted.0).fold(0, u64::saturating_add);
        let hints = std::mem::replace(&mut self.device_sharing.hinted, hinted) < hinted;
        let own = programs.and_then(|now| self.device_sharing.requests(now));
        let own = own.zip(others);
        for (load, begun, after) in disks {
            let streaming = self
                .files
                .values()
                .any(|f| f.streamed && f.device == load.device && f.view.in_flight_pages() > 0);
            let answer = self.engine.model(load.device).latency_us;
            let Some(d) = self
                .device_sharing
                .disks
                .iter_mut()
                .find(|d| d.device == load.device)
            else {
                continue;
            };
            let there: Vec<&Run> = self.device_sharing.others.on(&runs, load.device).collect();
            self.engine.divide(load.device, there.len() as u32);
            let count = own.and_then(|(own, (least, most))| {
                let (begun, read) = begun?;
                let asked = asked.map(|a| (a.0 + fetched + least.1, a.1 + fetched + most.1));
                let way = there.iter().map(|run| run.in_flight).sum::<u64>();
                Some(Count {
                    begun,
                    handed: load.handed + d.walks.0 + least.0,
                    issued: after?.issued + d.walks.1 + most.0,
                    programs: d.counts.back().map_or(0, |c| c.programs) + own,
                    delivered: read.bytes,
                    asked,
                    way: load.bytes + way,
                })
            });
            let (counted, known) = (count.is_some(), d.sharing);
            d.walked = walks;
            d.look(count, Duration::from_micros(answer as u64), streaming);
            d.told = there.iter().any(|run| run.sees_somebody);
            self.engine.share(load.device, d.sharing());
            self.engine.disturb(load.device, hints);
            if counted && d.sharing == Sharing::Exclusive && known != d.sharing {
                self.engine.deepen(load.device);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(100);

    /// A disk whose queue holds `deep` requests of ours, of which it completes 100 from one look to the next: what was believed after each of the looks
    /// at which `foreign` says how many requests of somebody else's had been given to it since the last one.
    fn watched(
        deep: u64,
        answer: Duration,
        looks: u32,
        foreign: impl Fn(u32) -> u64,
    ) -> Vec<Sharing> {
        let mut disk = Disk::new(1, u64::MAX, READAHEAD, Moment::BEGINNING);
        let (mut done, mut others) = (0, 0);
        let believed = (0..looks).map(|k| {
            others += foreign(k);
            // At every second look a group of four is just being handed over.
            let issued = done + deep;
            let handed = issued - 4 * u64::from(k % 2);
            let count = Count {
                begun: (handed + others, issued + others),
                handed,
                issued,
                ..Count::default()
            };
            disk.look(Some(count), answer, false);
            done += 100;
            disk.sharing
        });
        believed.collect()
    }

    /// Looks until somebody was known to be there.
    fn found(believed: &[Sharing]) -> Option<usize> {
        believed.iter().position(|c| *c == Sharing::Shared)
    }

    /// DR7: who reads from the disk beside a stream is found within a few looks, however long the queue is that he waits behind, and somebody who reads
    /// one page a look within a third of a second; what we have asked for is nobody's.
    #[test]
    fn what_nobody_of_us_asked_for_is_foreign() {
        for deep in [4, 32, 1024] {
            let many = watched(deep, FAST, 40, |_| 10);
            assert!(found(&many).is_some_and(|looks| looks <= 4), "{many:?}");
            assert!(!many.contains(&Sharing::Exclusive));
            assert!(found(&watched(deep, FAST, 32, |_| 1)).is_some());
            let alone = watched(deep, FAST, 400, |_| 0);
            assert_eq!(alone[PROOF as usize - 2], Sharing::Unknown);
            assert_eq!(alone[PROOF as usize..], [Sharing::Exclusive; 392]);
        }
    }

    /// DR7: a neighbour who comes later is found beside a long queue, which is shortened at the first sign of him, and is believed to be there until a
    /// second after he has gone.
    #[test]
    fn a_neighbour_who_comes_later_is_noticed() {
        let believed = watched(
            1024,
            FAST,
            300,
            |k| if (50..100).contains(&k) { 4 } else { 0 },
        );
        assert_eq!(believed[49], Sharing::Exclusive);
        let shortened = (50..).find(|k| believed[*k] != Sharing::Exclusive);
        assert_eq!(shortened.map(|k| believed[k]), Some(Sharing::Unknown));
        assert!(shortened.is_some_and(|k| k <= 54), "{believed:?}");
        assert!(found(&believed).is_some_and(|k| k <= 57), "{believed:?}");
        assert_eq!(believed[150], Sharing::Shared);
        assert_eq!(believed[100 + ALONE as usize], Sharing::Exclusive);
    }

    /// DR7: what a disk has finished and its processor has not told anybody of yet is in none of its counts at a look, and in them at the next: that is nobody.
    #[test]
    fn what_is_counted_late_is_nobody() {
        let mut disk = Disk::new(1, u64::MAX, READAHEAD, Moment::BEGINNING);
        for k in 0..200 {
            let given = 20 * k + 64;
            let late = if k % 7 == 6 { 64 } else { 0 };
            let count = Count {
                begun: (given - late, given - late),
                handed: given - 16,
                issued: given,
                ..Count::default()
            };
            disk.look(Some(count), FAST, false);
            assert!(!disk.suspected, "look {k}");
        }
        assert_eq!(disk.sharing, Sharing::Exclusive);
        // A look during which the processor was away counts too many, and hides nobody for long.
        let (mut disk, mut others) = (Disk::new(1, u64::MAX, READAHEAD, Moment::BEGINNING), 0);
        let found = (0..40).position(|k| {
            others += 2;
            let given = 20 * k + 64 + others;
            let count = Count {
                begun: (given, given + if k == 2 { 300 } else { 0 }),
                handed: 20 * k + 64,
                issued: 20 * k + 64,
                ..Count::default()
            };
            disk.look(Some(count), FAST, false);
            disk.sharing == Sharing::Shared
        });
        assert!(found.is_some_and(|looks| looks < 16), "{found:?}");
    }

    /// DR7: some requests that nobody goes on with, as of a journal, shorten the queue only for a moment.
    #[test]
    fn a_burst_is_nobody() {
        let believed = watched(64, FAST, 100, |k| if k == 50 { 24 } else { 0 });
        assert_eq!(believed[50], Sharing::Unknown);
        assert_eq!(found(&believed), None);
        assert_eq!(believed[51 + PROOF as usize], Sharing::Exclusive);
    }

    /// DR7: of a disk that answers late it takes longer to know, because whoever reads there makes fewer requests.
    #[test]
    fn a_slow_disk_is_watched_for_longer() {
        let alone = |answer| {
            let believed = watched(32, answer, 200, |_| 0);
            believed.iter().position(|c| *c == Sharing::Exclusive)
        };
        let slow = Duration::from_millis(8);
        let time = |looks: Option<usize>| looks.map(|k| LOOK * k as u32);
        assert!(time(alone(FAST)).is_some_and(|t| t < 20 * LOOK));
        assert!(time(alone(slow)).is_some_and(|t| t > 10 * slow && t < 20 * slow));
    }

    /// DR7: the requests that programs make themselves are nobody's either.
    #[test]
    fn the_programs_own_requests_are_not_foreign() {
        let now = Count {
            begun: (60, 60),
            handed: 40,
            issued: 40,
            programs: 10,
            ..Count::default()
        };
        assert_eq!(now.foreign_since(&Count::default(), 1, 10), 0);
        assert_eq!(now.foreign_since(&Count::default(), 1, 0), 10);
        // Where nothing was asked for nothing of it was cut in two.
        let idle = Count {
            begun: (20, 20),
            programs: 10,
            ..Count::default()
        };
        assert_eq!(idle.foreign_since(&Count::default(), 1, 10), 10);
    }

    /// DR7, B11: what a program has read at random leaves holes in a file that is streamed afterwards, which cut our requests for long after;
    /// nothing else that it has read hides a neighbour.
    #[test]
    fn holes_in_what_is_streamed_are_nobodys() {
        let stream = |streamed, own: u64, foreign: u64| {
            let mut disk = Disk::new(1, u64::MAX, READAHEAD, Moment::BEGINNING);
            let mut count = Count {
                programs: own,
                ..Count::default()
            };
            for look in 0..40 {
                disk.look(Some(count), FAST, streamed);
                count.handed += 20;
                count.issued += 20;
                // Ten of them were cut until there are no holes left.
                let cut = if look * 10 < own { 10 } else { 0 };
                count.begun.0 += 20 + cut + foreign;
                count.begun.1 = count.begun.0;
            }
            disk.sharing
        };
        assert_eq!(stream(true, 100, 0), Sharing::Exclusive);
        assert_eq!(stream(true, 100, 20), Sharing::Shared);
        assert_eq!(stream(false, 100, 10), Sharing::Shared);
    }
}
