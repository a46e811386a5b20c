//! Processes: who is there, and what each has come to.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use outrider_sys::handover::{self, Arrival as Handover, Handed};
use outrider_sys::standing::{self, Watch};
use outrider_sys::units::InodeKey;

use super::bounds::{self, Debt};
use super::kernel::Kernel;
use super::sampling::{READS, SHORT_FILES, Sampling};
use super::{Desc, Service};
use crate::asked::Epochs;
use crate::clock::Moment;
use crate::map::{Keyed, Map};
use crate::shared::Shared;
use crate::shm::{self, MAX_PROCS, Proc, Slot, lost};
use crate::source::mapped::Mapped;

/// Processes taken in at a time.
const ADMITTED: usize = 64;
/// A cell that was reserved so long ago and not filled is given up.
const ABANDONED: Duration = Duration::from_secs(1);
/// What its streams' longest read would have in flight is forgotten by one part in so many with each read.
const FADES: u64 = 16;
/// Streams of a process that are counted.
const MOST_STREAMS: usize = 16;
/// Files of a process whose opening was heard of too late, and whose reads are counted all the same.
const MOST_UNSEEN: usize = 256;

/// Processes, by their entries.
pub(super) struct Processes {
    entries: Vec<Option<ProcState>>,
    /// Entries in use, in the order in which they were taken.
    active: Vec<usize>,
    /// Processes that there were, and are.
    followed: usize,
}

impl Processes {
    /// None yet, where so many were followed by others before.
    pub(super) fn new(followed: usize) -> Processes {
        Processes {
            entries: (0..MAX_PROCS).map(|_| None).collect(),
            active: Vec::new(),
            followed,
        }
    }

    /// Entries in use.
    pub(super) fn active(&self) -> &[usize] {
        &self.active
    }

    pub(super) fn len(&self) -> usize {
        self.active.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    pub(super) fn get(&self, i: usize) -> Option<&ProcState> {
        self.entries.get(i)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, i: usize) -> Option<&mut ProcState> {
        self.entries.get_mut(i)?.as_mut()
    }

    /// All, with their entries.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &ProcState)> {
        let entry = |i: &usize| Some((*i, self.get(*i)?));
        self.active.iter().filter_map(entry)
    }

    /// The `k`th, and its entry.
    pub(super) fn nth_mut(&mut self, k: usize) -> Option<(usize, &mut ProcState)> {
        let i = *self.active.get(k)?;
        Some((i, self.get_mut(i)?))
    }

    /// Calls `each` with the descriptors that are followed and have not become others since: with the entry of the process, the descriptor's slot and the process's memory.
    pub(super) fn each_open(
        &mut self,
        shared: &Shared,
        mut each: impl FnMut(usize, &mut Desc, &Slot, &Proc),
    ) {
        for k in 0..self.len() {
            let Some((i, process)) = self.nth_mut(k) else {
                continue;
            };
            let proc = shared.proc(i);
            for (fd, desc) in process.descs_mut() {
                let slot = proc.slots.get(usize::from(fd));
                if let Some(slot) = slot.filter(|s| s.generation.load(Relaxed) == desc.generation) {
                    each(i, desc, slot, proc);
                }
            }
        }
    }

    /// Descriptors of a file.
    pub(super) fn descs_of(&self, key: InodeKey) -> impl Iterator<Item = &Desc> {
        let descs = self.iter().flat_map(|(_, p)| p.descs.values());
        descs.filter(move |d| d.key == key)
    }

    /// The entry of the process with this number.
    fn find(&self, pid: u32) -> Option<usize> {
        self.iter().find(|(_, p)| p.pid == pid).map(|(i, _)| i)
    }

    /// An entry that is not in use.
    fn free(&self) -> Option<usize> {
        self.entries.iter().position(Option::is_none)
    }

    /// The number of the next one among all.
    fn next_number(&self) -> usize {
        self.followed
    }

    /// A process is followed in entry `i`, which is free.
    fn take_in(&mut self, i: usize, process: ProcState) {
        self.active.push(i);
        self.entries[i] = Some(process);
        self.followed += 1;
    }

    /// A process is not followed any more.
    fn remove(&mut self, i: usize) -> Option<ProcState> {
        let process = self.entries.get_mut(i)?.take()?;
        self.active.retain(|k| *k != i);
        Some(process)
    }
}

/// A process that is followed.
pub(super) struct ProcState {
    pid: u32,
    /// Its number among all that there were, by which its record is found.
    who: usize,
    /// Readable when the process is over, whatever became of its number.
    life: Option<OwnedFd>,
    descs: Map<u16, Desc>,
    /// By descriptor, the generations and sizes (bytes) of files that it has opened and nobody has found open since: it was over before, or the number another
    /// file's.
    unseen: Map<u16, (u8, u64)>,
    /// The epochs that began lately, and its places then.
    epochs: Epochs,
    /// Since when a cell of the ring has been reserved and not filled.
    stuck: Option<Moment>,
    mapped: Vec<Mapped>,
    /// Where all that it reads is one stream forward without gaps, the bytes that the kernel reads ahead of it at once.
    window: Option<u64>,
    /// The same as of each descriptor, of all together.
    sampling: Sampling,
    /// Reads told of or skipped by agreement, and their bytes.
    reads: u64,
    bytes: u64,
    /// Bytes that the kernel would have in flight for its streams' longest reads of late, and when it made the last of all.
    in_flight: (u64, Moment),
    /// Streams that go forward without gaps, and when each was asked for last, the latest last.
    streams: Vec<(u64, Moment)>,
    /// Bytes that the kernel has been given hints of beside the service, and the requests that these become.
    hinted: (u64, u64),
    /// Bytes of the last one, and when it was given.
    hint: (u64, Moment),
    /// When it was last seen to go through directories.
    walked: Option<Moment>,
    /// What it owes the others of the service's time.
    debt: Debt,
    /// Whether anything comes of following its short files.
    short: Sampling,
    /// Files that it has named which must never be opened.
    untouchable: usize,
    /// It had this service's rights when it was taken in. What others have told is counted, and nothing comes of it.
    stood: bool,
    /// Nothing more is done for it.
    left_alone: bool,
}

impl ProcState {
    fn new(pid: u32, who: usize, life: Option<OwnedFd>, stood: bool, keyed: Keyed) -> ProcState {
        ProcState {
            pid,
            who,
            life,
            stood,
            descs: Map::with_hasher(keyed),
            unseen: Map::with_hasher(keyed),
            epochs: Epochs::default(),
            stuck: None,
            mapped: Vec::new(),
            window: None,
            sampling: Sampling::default(),
            reads: 0,
            bytes: 0,
            in_flight: (0, Moment::BEGINNING),
            streams: Vec::new(),
            hinted: (0, 0),
            hint: (0, Moment::BEGINNING),
            walked: None,
            debt: Debt::default(),
            short: Sampling::default(),
            untouchable: 0,
            left_alone: false,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it had this service's rights when it was taken in.
    pub(super) fn stood(&self) -> bool {
        self.stood
    }

    /// Its number among all that there were, by which its record is found.
    pub(super) fn who(&self) -> usize {
        self.who
    }

    /// Whether it is over.
    pub(super) fn is_over(&self, kernel: &impl Kernel) -> bool {
        kernel.is_over(self.pid, self.life.as_ref())
    }

    /// Whether it is over, as far as that can be told whatever became of its number.
    pub(super) fn is_surely_over(&self, kernel: &impl Kernel) -> bool {
        self.life.is_some() && self.is_over(kernel)
    }

    /// The epochs that began lately, and its places then.
    pub(super) fn epochs(&mut self) -> &mut Epochs {
        &mut self.epochs
    }

    pub(super) fn desc(&self, fd: u16) -> Option<&Desc> {
        self.descs.get(&fd)
    }

    pub(super) fn desc_mut(&mut self, fd: u16) -> Option<&mut Desc> {
        self.descs.get_mut(&fd)
    }

    /// Its descriptors that are followed.
    pub(super) fn descs(&self) -> impl Iterator<Item = (u16, &Desc)> {
        self.descs.iter().map(|(fd, desc)| (*fd, desc))
    }

    pub(super) fn descs_mut(&mut self) -> impl Iterator<Item = (u16, &mut Desc)> {
        self.descs.iter_mut().map(|(fd, desc)| (*fd, desc))
    }

    /// Descriptors that are followed.
    pub(super) fn followed(&self) -> usize {
        self.descs.len()
    }

    /// A descriptor is followed from now on.
    pub(super) fn follow(&mut self, fd: u16, desc: Desc) {
        self.descs.insert(fd, desc);
    }

    /// A descriptor is followed no more.
    pub(super) fn unfollow(&mut self, fd: u16) -> Option<Desc> {
        self.descs.remove(&fd)
    }

    /// It has told that it opened a file of `size` bytes which nobody has found open.
    pub(super) fn opened_unseen(&mut self, fd: u16, generation: u8, size: u64) {
        if self.unseen.len() < MOST_UNSEEN || self.unseen.contains_key(&fd) {
            self.unseen.insert(fd, (generation, size));
        }
    }

    /// The size in bytes of such a file.
    pub(super) fn unseen(&self, fd: u16, generation: u8) -> Option<u64> {
        let found = self.unseen.get(&fd).filter(|(g, _)| *g == generation);
        found.map(|(_, size)| *size)
    }

    /// It has closed a descriptor.
    pub(super) fn closed_unseen(&mut self, fd: u16, generation: u8) {
        if self.unseen(fd, generation).is_some() {
            self.unseen.remove(&fd);
        }
    }

    /// It has opened a short file ([`shm::SHORT`]), of which something was asked for or not: how many of the next need not be followed.
    pub(super) fn opens_short(&mut self, fruitful: bool) -> u32 {
        self.short.tried(fruitful, &SHORT_FILES)
    }

    /// Its mappings that are looked at.
    pub(super) fn mapped(&self) -> &[Mapped] {
        &self.mapped
    }

    pub(super) fn mapped_mut(&mut self) -> &mut Vec<Mapped> {
        &mut self.mapped
    }

    /// The next cell of its ring is not filled; `reserved`: somebody is about to. Whether it has been so for so long that nobody will: the thread has died, or
    /// jumped away in the middle.
    pub(super) fn gives_up(&mut self, reserved: bool, kernel: &impl Kernel) -> bool {
        if !reserved {
            self.stuck = None;
            return false;
        }
        let since = *self.stuck.get_or_insert_with(|| kernel.now());
        let over = kernel.since(since) > ABANDONED;
        if over {
            self.stuck = None;
        }
        over
    }

    /// All that it reads is one stream forward without gaps, ahead of which the kernel reads so many bytes at once; `None`: it is not.
    pub(super) fn reads_windows(&mut self, window: Option<u64>) {
        self.window = window;
    }

    /// See [`ProcState::reads_windows`].
    pub(super) fn window(&self) -> Option<u64> {
        self.window
    }

    /// A read was told on a descriptor, in an order that is worth hearing or not: how many of the next need not be told. Many descriptors with few reads each are
    /// judged together.
    pub(super) fn heard(&mut self, fd: u16, ordered: bool) -> Option<u32> {
        let together = self.sampling.tried(ordered, &READS);
        let silence = self.descs.get_mut(&fd)?.heard(ordered);
        Some(if ordered { 0 } else { silence.max(together) })
    }

    /// It has made so many reads, of so many bytes together.
    pub(super) fn has_read(&mut self, reads: u64, bytes: u64) {
        self.reads = self.reads.saturating_add(reads);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// For a read of one of its streams the kernel would have so many bytes in flight.
    pub(super) fn reads_at_once(&mut self, bytes: u64, now: Moment) {
        let faded = self.in_flight.0 - self.in_flight.0 / FADES;
        self.in_flight = (faded.max(bytes), now);
    }

    /// This stream of its, by a number that it has alone, goes forward without gaps.
    pub(super) fn streams(&mut self, stream: u64, now: Moment) {
        self.streams.retain(|(other, _)| *other != stream);
        if self.streams.len() == MOST_STREAMS {
            self.streams.remove(0);
        }
        self.streams.push((stream, now));
    }

    /// Bytes that the kernel would have in flight for its streams' longest reads of late, and when it made the last of all.
    pub(super) fn in_flight(&self) -> (u64, Moment) {
        self.in_flight
    }

    /// How many of its streams went forward without gaps at such a moment.
    pub(super) fn streaming(&self, late: impl Fn(Moment) -> bool) -> usize {
        self.streams.iter().filter(|(_, at)| late(*at)).count()
    }

    /// Bytes that it has read, and in how many reads.
    pub(super) fn read(&self) -> (u64, u64) {
        (self.bytes, self.reads)
    }

    /// The kernel was given a hint of so many bytes, which becomes so many requests.
    pub(super) fn has_hinted(&mut self, bytes: u64, requests: u64, now: Moment) {
        self.hint = (bytes, now);
        self.hinted.0 = self.hinted.0.saturating_add(bytes);
        self.hinted.1 = self.hinted.1.saturating_add(requests);
    }

    /// Bytes that the kernel has on its way at once by the last hint, and when it was given that.
    pub(super) fn hint(&self) -> (u64, Moment) {
        self.hint
    }

    /// Bytes that the kernel was given hints of, and the requests that these became.
    pub(super) fn hinted(&self) -> (u64, u64) {
        self.hinted
    }

    /// It goes through directories.
    pub(super) fn walks(&mut self, now: Moment) {
        self.walked = Some(now);
    }

    /// When it was last seen to go through directories.
    pub(super) fn walked(&self) -> Option<Moment> {
        self.walked
    }

    /// What it owes the others of the service's time.
    pub(super) fn debt(&mut self) -> &mut Debt {
        &mut self.debt
    }

    /// It names a file that must never be opened, of so many at most; `false` if it has named as many.
    pub(super) fn names_untouchable(&mut self, most: usize) -> bool {
        let more = self.untouchable < most;
        self.untouchable += usize::from(more);
        more
    }

    /// Nothing more is done for it.
    pub(super) fn leave_alone(&mut self) {
        self.left_alone = true;
    }

    /// Whether nothing more is done for it.
    pub(super) fn is_left_alone(&self) -> bool {
        self.left_alone
    }
}

impl<K: Kernel> Service<K> {
    /// Takes in processes that have handed over their memory.
    pub(super) fn admit(&mut self) {
        let turn = self.kernel.now();
        for _ in 0..ADMITTED {
            if self.kernel.since(turn) > bounds::TURN {
                break;
            }
            match self.kernel.receive(&self.shared) {
                Handover::Memory(handed) => self.admit_one(handed),
                Handover::Complaint(lost, token) => self.shared.hear_complaint(lost, token),
                Handover::Knock => {}
                Handover::Nobody => break,
                Handover::Deaf => {
                    self.header().lose(lost::EMFILE);
                    break;
                }
            }
        }
    }

    fn admit_one(&mut self, handed: Handed) {
        let message = &handed.message;
        let pid = match self.ancestor {
            None if self.shared.is_of_the_run(message) => handed.from.pid,
            Some(token) if message.token == token && message.version == shm::VERSION => {
                message.on_behalf
            }
            _ => return,
        };
        if pid == 0 {
            return;
        }
        // It has become another program, or another user's.
        if let Some(i) = self.processes.find(pid) {
            self.retire(i);
        }
        let Some(i) = self.processes.free() else {
            self.header().lose(lost::PROCS_FULL);
            Shared::refuse(&handed.memory);
            return;
        };
        if !self.shared.take_in(i, pid, &handed.memory) {
            return;
        }
        self.kernel.taken_in(&self.shared, i);
        // Since it said so it may have become another program, and its number another process's.
        let is_still = match self.ancestor {
            Some(_) => !self.shared.is_privileged(i),
            None => self.kernel.is_still(&self.shared, i, &handed),
        };
        if !is_still || !self.kernel.stands(&self.shared, i) {
            let looked = match is_still {
                true => Watch::of(pid).map(|watch| watch.standing().is_some()),
                false => Ok(false),
            };
            match looked {
                Ok(true) => {
                    self.shared.clear(i);
                    self.hand_on(pid, handed);
                }
                // Over before anybody looked, or another program by now; what it has read still counts.
                looked => {
                    let lacks = looked.err().and_then(|e| e.raw_os_error());
                    if matches!(lacks, Some(libc::EMFILE | libc::ENFILE)) {
                        self.header().lose(lost::EMFILE);
                    } else if !standing::is_proc() {
                        // The program has covered where that is looked up.
                        self.header().lose(lost::RIGHTS);
                    }
                    self.take_in_process(i, pid, (is_still, false), handed.life);
                    self.retire(i);
                }
            }
            return;
        }
        // It is served here and not handed on, so that it is mapped by all who are to have it.
        handover::belongs(handed.memory.as_fd());
        self.take_in_process(i, pid, (true, true), handed.life);
        let proc = self.shared.proc(i);
        let looks = self.config.view.cache_visibility;
        proc.looks.store(looks.into(), Relaxed);
        proc.untold.store(self.prefetch_trial.untold(), Relaxed);
        proc.watched
            .store(self.header().watched.load(Relaxed), Relaxed);
        proc.notes.configure(&self.config);
        proc.served.store(1, Release);
        self.offer_room();
    }

    /// Whether the process in entry `i` may at this moment do what this one may, and nothing else: only then anything is done for it.
    pub(super) fn stands(&self, i: usize) -> bool {
        self.processes.get(i).is_some_and(|p| !p.left_alone) && self.kernel.stands(&self.shared, i)
    }

    /// Nothing is done any more for a process whose rights are others now. It did not say so before, or it would do without us by itself.
    fn dismiss(&mut self, i: usize) {
        // One that has ended since it was looked at has no rights at all.
        let over = self
            .processes
            .get(i)
            .is_none_or(|p| p.is_over(&self.kernel))
            || self.kernel.is_ending(&self.shared, i);
        let proc = self.shared.proc(i);
        if proc.closed.swap(1, AcqRel) == 0 && !over {
            match self.shared.is_filtered(i) {
                true => proc.confined.store(1, Release),
                false => self.header().lose(lost::RIGHTS),
            }
        }
        self.retire(i);
    }

    /// Some program of the run watches files: no process is helped any more.
    pub(super) fn look_for_watchers(&self) {
        let watches = |i: &usize| self.shared.proc(*i).watches.load(Acquire) != 0;
        if self.header().watched.load(Relaxed) == 0 && self.processes.active().iter().any(watches) {
            self.header().watched.store(1, Release);
            for i in self.processes.active() {
                self.shared.proc(*i).watched.store(1, Release);
            }
        }
    }

    /// `is_still`: the number is that process's; `stands`: it has this one's rights. `life`: as [`fetch::life`], where it is known.
    fn take_in_process(
        &mut self,
        i: usize,
        pid: u32,
        (is_still, stands): (bool, bool),
        life: Option<OwnedFd>,
    ) {
        let mut command = match is_still {
            true => self.kernel.command(pid),
            false => String::new(),
        };
        if command.is_empty() {
            // It is over already.
            command = self.shared.told_name(i);
        }
        let who = self.processes.next_number();
        self.shared.begin_record(who, pid, &command);
        // An heir knows processes by the numbers of another namespace.
        let by_number = || {
            self.ancestor
                .is_none()
                .then(|| self.kernel.life(pid))
                .flatten()
        };
        let life = match self.ancestor {
            None if !is_still => life,
            None => life.or_else(by_number),
            Some(_) => None,
        };
        self.kernel.follow(life.as_ref());
        let keyed = self.kernel.keyed();
        self.processes
            .take_in(i, ProcState::new(pid, who, life, stands, keyed));
        self.turns.stir(true);
        self.show_process(pid);
    }

    /// Ends what is over: processes, idle files.
    pub(super) fn census(&mut self) {
        self.turns.census(self.kernel.now());
        let turn = self.kernel.since(self.start).as_millis() as usize / 100;
        for i in self.processes.active().to_vec() {
            let Some(state) = self.processes.get(i) else {
                continue;
            };
            let over = state.is_over(&self.kernel);
            let left = self.shared.proc(i).closed.load(Acquire) != 0;
            if over || left {
                self.retire(i);
            } else if state.left_alone {
                self.shared.proc(i).closed.store(1, Release);
                self.retire(i);
            } else if self.shared.has_strayed(i) || !self.stands(i) {
                self.dismiss(i);
            } else if self.kernel.is_confined(state.pid, turn) {
                self.shared.proc(i).confined.store(1, Release);
                self.dismiss(i);
            } else if self.kernel.is_divided(state.pid, turn) {
                self.dismiss(i);
            } else {
                self.settle(i, state.who);
            }
        }
        self.end_heirs();
        self.keep_few_files();
        self.share_descriptors();
    }

    /// A process is over: takes what it still said, closes its descriptors, and clears its entry.
    pub(super) fn retire(&mut self, i: usize) {
        self.drain(i);
        // What they still read counts for it.
        let none = Map::with_hasher(self.kernel.keyed());
        let descs = self.processes.get_mut(i);
        let descs = descs.map(|p| std::mem::replace(&mut p.descs, none));
        for (fd, desc) in descs.into_iter().flatten() {
            self.abandoned(i, fd, desc);
        }
        let Some(mut state) = self.processes.remove(i) else {
            return;
        };
        if let Some(walker) = &self.walker {
            walker.over(i);
        }
        for m in state.mapped.drain(..) {
            self.unlink(m.file());
        }
        self.quiesce.forget(i);
        self.settle(i, state.who);
        self.shared.clear(i);
    }

    /// Adds what a process has counted itself; nothing does once the statistics are final.
    pub(super) fn settle(&self, i: usize, who: usize) {
        if self.header().finish.load(Relaxed) < 2 {
            self.shared.settle(i, self.shared.record(who));
        }
    }

    /// What is known of a descriptor of the process in entry `i`.
    pub(super) fn desc(&self, i: usize, fd: u16) -> Option<&Desc> {
        self.processes.get(i)?.desc(fd)
    }

    pub(super) fn desc_mut(&mut self, i: usize, fd: u16) -> Option<&mut Desc> {
        self.processes.get_mut(i)?.desc_mut(fd)
    }
}
