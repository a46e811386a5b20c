//! Processes and descriptors: who is there, what they say, what they open and close.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use outrider_sys::handover::{Arrival as Handover, Handed};
use outrider_sys::standing::Watch;
use outrider_sys::units::{InodeKey, PAGE};

use super::kernel::{Kernel, Source};
use super::left_to_kernel::{DeviceFacts, Way};
use super::sampling::Sampling;
use super::told::Told;
use super::{BEHIND, Desc, MODULE_CHUNK, Position, Service, bounds, prefetch_trial};
use crate::clock::Moment;
use crate::config::Config;
use crate::engine::{Class, Overtaken};
use crate::fetch::Wanted;
use crate::intent::Intent;
use crate::map::Map;
use crate::shared::Shared;
use crate::shm::{
    self, Event, FD_IGNORED, FD_TRACKED, FLAG_BLIND, FLAG_RESIDENT, FLAG_WRITABLE, Kind, Origin,
    Slot, lost,
};
use crate::source::Detector;
use crate::source::mapped::Mapped;
use crate::view::PageRange;

/// Processes taken in at a time.
const ADMITTED: usize = 64;
/// Mappings looked at per process.
const MAPPINGS: usize = 64;
/// A cell that was reserved so long ago and not filled is given up.
const ABANDONED: Duration = Duration::from_secs(1);

/// A file that a process has just opened.
struct Opening {
    /// Its descriptor.
    wanted: Wanted,
    key: InodeKey,
    /// Entry of the process.
    proc: usize,
    /// Of the descriptor's state.
    generation: u32,
    /// `FLAG_*` of it.
    flags: u32,
    /// Bytes; 0: not known.
    size: u64,
}

/// A process that is followed.
pub(super) struct ProcState {
    pub(super) pid: u32,
    /// Its number among all that there were, by which its record is found.
    pub(super) who: usize,
    /// Readable when the process is over, whatever became of its number.
    pub(super) life: Option<OwnedFd>,
    pub(super) descs: Map<u16, Desc>,
    /// Since when a cell of the ring has been reserved and not filled.
    pub(super) stuck: Option<Moment>,
    pub(super) mapped: Vec<Mapped>,
    /// Where all that it reads is one stream forward without gaps, the bytes that the kernel reads ahead of it at once.
    pub(super) window: Option<u64>,
    /// The same as of each descriptor, of all together.
    pub(super) sampling: Sampling,
    /// Reads told of or skipped by agreement, and their bytes.
    pub(super) reads: u64,
    pub(super) bytes: u64,
    /// Bytes that the kernel has been given hints of beside the service, and the requests that these become.
    pub(super) hinted: (u64, u64),
    /// When it was last seen to go through directories.
    pub(super) walked: Option<Moment>,
    /// By so much it has taken more of the service's time than its turns.
    pub(super) owes: Duration,
    /// Files that it has named which must never be opened.
    pub(super) untouchable: usize,
    /// Nothing more is done for it.
    pub(super) left_alone: bool,
}

impl<K: Kernel> Service<K> {
    /// Takes in processes that have handed over their memory.
    pub(super) fn admit(&mut self) {
        self.deaf = false;
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
                    self.deaf = true;
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
        let former = self.active.iter().copied();
        let is_its = |i: &usize| self.procs[*i].as_ref().is_some_and(|p| p.pid == pid);
        if let Some(i) = former.into_iter().find(is_its) {
            self.retire(i);
        }
        let Some(i) = self.procs.iter().position(Option::is_none) else {
            self.header().lose(lost::PROCS_FULL);
            Shared::refuse(&handed.memory);
            return;
        };
        if !self.shared.take_in(i, pid, &handed.memory) {
            return;
        }
        self.kernel.taken_in(&self.shared, i);
        // Since it said so it may have become another program, and its number another process's.
        let is_still = self.ancestor.is_some() || self.kernel.is_still(&self.shared, i, &handed);
        if !is_still || !self.kernel.stands(&self.shared, i) {
            let looked = match is_still {
                true => Watch::of(pid).map(|watch| watch.standing().is_some()),
                false => Ok(false),
            };
            match looked {
                Ok(true) => {
                    self.shared.clear(i);
                    self.hand_on(pid, handed.memory, handed.life);
                }
                // Over before anybody looked; what it said still counts.
                looked => {
                    let lacks = looked.err().and_then(|e| e.raw_os_error());
                    if matches!(lacks, Some(libc::EMFILE | libc::ENFILE)) {
                        self.header().lose(lost::EMFILE);
                    }
                    self.take_in_process(i, pid, is_still, handed.life);
                    self.retire(i);
                }
            }
            return;
        }
        self.take_in_process(i, pid, true, handed.life);
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
        self.procs[i].as_ref().is_some_and(|p| !p.left_alone) && self.kernel.stands(&self.shared, i)
    }

    /// Nothing is done any more for a process whose rights are others now. It did not say so before, or it would do without us by itself.
    fn dismiss(&mut self, i: usize) {
        let proc = self.shared.proc(i);
        if proc.closed.swap(1, AcqRel) == 0 {
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
        if self.header().watched.load(Relaxed) == 0 && self.active.iter().any(watches) {
            self.header().watched.store(1, Release);
            for i in &self.active {
                self.shared.proc(*i).watched.store(1, Release);
            }
        }
    }

    /// `is_still`: the number is that process's. `life`: as [`fetch::life`], where it is known.
    fn take_in_process(&mut self, i: usize, pid: u32, is_still: bool, life: Option<OwnedFd>) {
        let mut command = match is_still {
            true => self.kernel.command(pid),
            false => String::new(),
        };
        if command.is_empty() {
            // It is over already.
            command = self.shared.told_name(i);
        }
        self.active.push(i);
        self.shared.begin_record(self.followed, pid, &command);
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
        self.procs[i] = Some(ProcState {
            pid,
            who: self.followed,
            life,
            descs: Map::with_hasher(self.kernel.keyed()),
            stuck: None,
            mapped: Vec::new(),
            window: None,
            sampling: Sampling::default(),
            reads: 0,
            bytes: 0,
            hinted: (0, 0),
            walked: None,
            owes: Duration::ZERO,
            untouchable: 0,
            left_alone: false,
        });
        self.followed += 1;
        self.stirred = true;
        self.show_process(pid);
    }

    /// Ends what is over: processes, idle files.
    pub(super) fn census(&mut self) {
        self.last_census = self.kernel.now();
        let turn = self.kernel.since(self.start).as_millis() as usize / 100;
        for i in self.active.clone() {
            let Some(state) = &self.procs[i] else {
                continue;
            };
            let over = self.kernel.is_over(state.pid, state.life.as_ref());
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
        self.keep_few_files();
        self.share_descriptors();
    }

    /// A process is over: takes what it still said, closes its descriptors, and clears its entry.
    pub(super) fn retire(&mut self, i: usize) {
        self.drain(i);
        // What they still read counts for it.
        let none = Map::with_hasher(self.kernel.keyed());
        let descs = self.procs[i].as_mut();
        let descs = descs.map(|p| std::mem::replace(&mut p.descs, none));
        for (fd, desc) in descs.into_iter().flatten() {
            self.abandoned(i, fd, desc);
        }
        let Some(mut state) = self.procs[i].take() else {
            return;
        };
        self.active.retain(|k| *k != i);
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

    /// Takes the events of all processes; `true` if there were any.
    pub(super) fn drain_all(&mut self) -> bool {
        let mut any = false;
        for k in 0..self.active.len() {
            let i = self.active[k];
            any |= match self.procs[i].as_mut().is_some_and(ProcState::sits_out) {
                true => true,
                false => self.drain(i),
            };
        }
        any
    }

    /// Takes the events of a process, for a turn; `true` if there were any.
    pub(super) fn drain(&mut self, i: usize) -> bool {
        let turn = self.kernel.now();
        let any = self.drain_for(i, turn);
        if any {
            self.keep_to_bytes();
            if let Some(state) = &mut self.procs[i] {
                state.has_taken(self.kernel.since(turn));
            }
        }
        any
    }

    fn drain_for(&mut self, i: usize, turn: Moment) -> bool {
        let mut any = false;
        // A reader that finds everything cached can outrun this thread. What it read long ago helps nobody: only
        // the latest reads are looked at.
        let behind = self.shared.proc(i).waiting();
        let mut passed_over = if behind > BEHIND {
            behind - BEHIND / 4
        } else {
            0
        };
        // Bounded, so that a busy process does not keep the others waiting.
        for k in 0..shm::RING {
            if k % 8 == 7 && self.kernel.since(turn) > bounds::TURN {
                return true;
            }
            let Some(event) = self.shared.proc(i).pop(false) else {
                let waiting = self.shared.proc(i).waiting() > 0;
                let Some(state) = &mut self.procs[i] else {
                    return any;
                };
                if !waiting {
                    state.stuck = None;
                } else if self
                    .kernel
                    .since(*state.stuck.get_or_insert(self.kernel.now()))
                    > ABANDONED
                {
                    // Its thread has died, or jumped away in the middle.
                    state.stuck = None;
                    self.shared.proc(i).pop(true);
                }
                return any;
            };
            any = true;
            let who = self.procs[i].as_ref().map(|p| p.who);
            if let Some(record) = who.and_then(|who| self.shared.record(who)) {
                record.events.fetch_add(1, Relaxed);
            }
            let no_time = passed_over > 0;
            passed_over = passed_over.saturating_sub(1);
            if event.kind == Kind::Read && (no_time || self.is_stale(i, &event)) {
                self.overlook(i, event);
                continue;
            }
            self.handle_event(i, event);
        }
        any
    }

    pub(super) fn handle_event(&mut self, i: usize, e: Event) {
        if self.procs[i].as_ref().is_none_or(|p| p.left_alone) {
            return;
        }
        self.stirred |= e.kind != Kind::Read;
        let Some(told) = Told::of(&e) else { return };
        match told {
            Told::Opened { size } => self.has_opened(i, &e, size),
            Told::Closed { last, left } => self.has_closed(i, &e, last, left),
            Told::Read => self.read(i, e),
            Told::Sought => self.sought(i, &e),
            Told::Copies => self.kernel_copy(i, &e),
            Told::Entered(key) => self.entered(i, e.kind, e.fd, e.extra, key),
            Told::Hinted { range, begun } => {
                if let Some(key) = self.known(i, &e) {
                    if begun {
                        self.begins(i, key, e.len);
                    }
                    self.advise(i, key, range);
                }
            }
            Told::Dropped(pages) => {
                if let Some(key) = self.known(i, &e) {
                    self.lost_pages(key, pages);
                    if let Some(file) = self.files.get_mut(&key) {
                        file.served.read = None;
                    }
                }
            }
            Told::Truncated { size } => {
                if let Some(key) = self.known(i, &e) {
                    let beyond = PageRange::new(size.div_ceil(PAGE), u64::MAX / PAGE);
                    self.lost_pages(key, beyond);
                    if let Some(file) = self.files.get_mut(&key) {
                        file.size = size;
                    }
                }
            }
            Told::Mapped { memory, offset } => self.has_mapped(i, &e, memory, offset),
            Told::Unmapped(gone) => self.remap(i, |m| m.without(&gone)),
            Told::Moved { from, to } => {
                self.remap(i, |m| {
                    (m.memory().start == from).then(|| vec![m.at(to.clone())])
                });
            }
            Told::Untouchable(key) => {
                self.leave_untouched(i, key);
                if let Some(file) = self.files.get_mut(&key) {
                    file.let_go();
                    file.account.cancelled.store(true, Relaxed);
                }
            }
            Told::MapHinted(memory) => {
                let mapped = self.procs[i].iter().flat_map(|p| &p.mapped);
                let found: Vec<_> = mapped
                    .filter_map(|m| Some((m.file(), m.file_range(memory.clone())?)))
                    .collect();
                for (key, range) in found {
                    self.advise(i, key, range);
                }
            }
        }
    }

    /// A process has opened a file of `size` bytes.
    fn has_opened(&mut self, i: usize, e: &Event, size: u64) {
        // Another file has this number by now: that one is taken in, and then not once more.
        let size = if self.is_stale(i, e) { 0 } else { size };
        let Some(state) = &mut self.procs[i] else {
            return;
        };
        let known = state.descs.get(&e.fd);
        if known.is_some_and(|d| d.is_of(e.generation)) {
            return;
        }
        state.window = None;
        if let Some(desc) = state.descs.remove(&e.fd) {
            self.abandoned(i, e.fd, desc);
        }
        if let Some(key) = self.opened(i, e.fd, size)
            && self.walker.is_some()
        {
            let (proc, fd) = (self.shared.proc(i), usize::from(e.fd));
            let generation = proc.slots.get(fd).map(|s| s.generation.load(Relaxed));
            let rest = proc.rest.load(Relaxed);
            proc.rest.store(rest.saturating_sub(1), Relaxed);
            if rest == 0 {
                let generation = generation.unwrap_or(0);
                self.entered(i, Kind::Entry, e.fd, generation.into(), key);
            }
        }
    }

    /// A process has closed a descriptor: its last read ended at `last`, and `left` reads that were agreed on not to be told were not made.
    fn has_closed(&mut self, i: usize, e: &Event, last: u64, left: u64) {
        let Some(state) = &mut self.procs[i] else {
            return;
        };
        // It is told when the next generation has begun.
        let its = |d: &Desc| d.is_of(e.generation.wrapping_sub(1));
        if state.descs.get(&e.fd).is_some_and(its)
            && let Some(desc) = state.descs.remove(&e.fd)
        {
            self.closed(i, desc, last, left);
        }
    }

    /// A process has mapped a file from byte `offset` on.
    fn has_mapped(&mut self, i: usize, e: &Event, memory: Range<u64>, offset: u64) {
        let known = self.known(i, e);
        let Some(key) = known.or_else(|| self.mapped_file(i, memory.start)) else {
            return;
        };
        let limits = self.limits(key);
        let new = Mapped::new(key.dev, key.ino, memory, offset, &limits);
        let few = |p: &ProcState| p.mapped.len() < MAPPINGS;
        if !self.procs[i].as_ref().is_some_and(few) || !self.maps_more(i, new.bytes()) {
            return;
        }
        if let Some(state) = &mut self.procs[i] {
            state.mapped.push(new);
        }
        if let Some(f) = self.files.get_mut(&key) {
            f.opened_by(1);
        }
        self.map_pause = Duration::from_millis(1);
    }

    /// Puts others in the place of mappings of a process, for which `others` names any.
    fn remap(&mut self, i: usize, others: impl Fn(&Mapped) -> Option<Vec<Mapped>>) {
        let Some(state) = &mut self.procs[i] else {
            return;
        };
        let mut changed: Vec<(InodeKey, u32)> = Vec::new();
        let mut count = state.mapped.len();
        for m in std::mem::take(&mut state.mapped) {
            let Some(mut instead) = others(&m) else {
                state.mapped.push(m);
                continue;
            };
            // Holes must not make more of them than are followed.
            if count - 1 + instead.len() > MAPPINGS {
                instead.truncate(1);
            }
            count = count - 1 + instead.len();
            changed.push((m.file(), instead.len() as u32));
            state.mapped.extend(instead);
        }
        // Longer ones need more memory.
        while !changed.is_empty() && !self.maps_more(i, 0) {
            let gone = self.procs[i].as_mut().and_then(|p| p.mapped.pop());
            let Some(gone) = gone else { break };
            changed.push((gone.file(), 0));
        }
        for (key, instead) in changed {
            if let Some(f) = self.files.get_mut(&key) {
                f.opened_by(instead);
            }
            self.unlink(key);
        }
    }

    /// What is known of a descriptor of the process in entry `i`.
    pub(super) fn desc(&self, i: usize, fd: u16) -> Option<&Desc> {
        self.procs[i].as_ref()?.descs.get(&fd)
    }

    pub(super) fn desc_mut(&mut self, i: usize, fd: u16) -> Option<&mut Desc> {
        self.procs[i].as_mut()?.descs.get_mut(&fd)
    }

    /// The file of a descriptor, taken in now if the event that told of it was lost.
    pub(super) fn known(&mut self, i: usize, e: &Event) -> Option<InodeKey> {
        if self.is_stale(i, e) {
            return None;
        }
        let slot = self.shared.proc(i).slots.get(usize::from(e.fd))?;
        let generation = slot.generation.load(Relaxed);
        match self.desc(i, e.fd) {
            Some(d) if d.generation == generation => Some(d.key),
            _ => self.opened(i, e.fd, 0),
        }
    }

    /// Whether a descriptor has been closed since an event was told.
    fn is_stale(&self, i: usize, e: &Event) -> bool {
        let slot = self.shared.proc(i).slots.get(usize::from(e.fd));
        slot.is_none_or(|s| s.generation.load(Relaxed) as u8 != e.generation)
    }

    /// A read that helps to foresee nothing any more is counted.
    fn overlook(&mut self, i: usize, e: Event) {
        self.header().events.fetch_add(1, Relaxed);
        let stale = self.is_stale(i, &e);
        let key = if stale {
            let desc = self.desc(i, e.fd);
            desc.filter(|d| d.is_of(e.generation)).map(|d| d.key)
        } else {
            self.known(i, &e)
        };
        self.has_moved(i, e.fd, Some(e.offset));
        let Some(key) = key else {
            return;
        };
        if !stale && self.told_before(i, key, e) {
            return;
        }
        let shared = self.shared.clone();
        let desc = self.procs[i].as_mut().and_then(|p| p.descs.get_mut(&e.fd));
        self.stirred |= desc.as_ref().is_none_or(|d| d.rarely == 0);
        let followed = desc.is_some_and(|d| {
            d.catch_up(e.offset, shared.proc(i));
            let followed = d.detector.streams.glance(e.offset, e.extra);
            d.overlooked += u64::from(!followed);
            followed
        });
        if !followed {
            let span = e.offset..e.offset.saturating_add(e.len);
            self.pass(i, key, span, 1, e.len);
        }
    }

    /// The file behind an address of process `i`, whose descriptors are closed already; taken in if it is new.
    fn mapped_file(&mut self, i: usize, address: u64) -> Option<InodeKey> {
        if self.quiesce.is_quiesced() {
            return None;
        }
        let pid = self.procs[i].as_ref()?.pid;
        if !self.stands(i) {
            return None;
        }
        let (name, dev, ino, size) = self.kernel.behind(pid, address)?;
        let key = InodeKey { dev, ino };
        if size < self.config.files.min_size.0 {
            return None;
        }
        let file = self.take_in(key, size);
        file.size = size;
        if file.name.as_os_str().is_empty() {
            file.name = name;
        }
        file.account.cancelled.store(false, Relaxed);
        self.handle(key)?;
        self.introduce(key);
        self.located(key).then_some(key)
    }

    /// Finds out on what a file lies. `false` where there is nothing to prefetch.
    fn located(&mut self, key: InodeKey) -> bool {
        let place = match self.devices.place(key.dev) {
            Some(known) => *known,
            None => {
                if self.devices.are_enough() {
                    return false;
                }
                let Some(handle) = self.handle(key) else {
                    return false;
                };
                let (place, id) = self.kernel.place(&handle);
                if let Some(model) = id.and_then(|id| self.devices.saved(id)) {
                    self.engine.assume(key.dev, *model);
                }
                self.devices.found(key.dev, place);
                place
            }
        };
        let Some(chunk) = place.chunk else {
            return false;
        };
        let wanted = self.config.engine.chunk.0;
        let chunk = if self.kernel.has_module() && wanted == Config::default().engine.chunk.0 {
            MODULE_CHUNK
        } else {
            chunk.min(wanted)
        };
        if let Some(f) = self.files.get_mut(&key) {
            f.chunk = chunk;
        }
        true
    }

    pub(super) fn opened(&mut self, i: usize, fd: u16, size: u64) -> Option<InodeKey> {
        let shared = self.shared.clone();
        let slot = shared.proc(i).slots.get(usize::from(fd))?;
        if slot.state.load(Acquire) != FD_TRACKED {
            return None;
        }
        let key = InodeKey {
            dev: slot.dev.load(Relaxed),
            ino: slot.ino.load(Relaxed),
        };
        let generation = slot.generation.load(Relaxed);
        let pid = self.procs[i].as_ref()?.pid;
        let wanted = Wanted {
            pid,
            fd,
            dev: key.dev,
            ino: key.ino,
        };
        let old = self.procs[i].as_mut()?.descs.remove(&fd);
        if let Some(old) = old {
            self.abandoned(i, fd, old);
        }
        // What it has open the kernel knows; while nothing may be opened, nothing is looked at either.
        if self.quiesce.is_quiesced()
            || !self.kernel.is_open(wanted, slot, generation)
            || !self.follows_more(i)
        {
            return None;
        }
        let opening = Opening {
            wanted,
            key,
            proc: i,
            generation,
            flags: slot.flags.load(Relaxed),
            size,
        };
        let alone = self.take_in_opened(&opening);
        self.name_opened(&opening, slot);
        if !self.located(key) {
            let place = self.devices.place(key.dev);
            if place.is_some_and(|p| p.chunk.is_none()) {
                slot.state.store(FD_IGNORED, Relaxed);
            }
            self.unlink(key);
            return None;
        }
        if alone {
            if opening.flags & FLAG_RESIDENT == 0 {
                self.look_for_dropped(key);
            }
            // Until they are counted.
            self.reading.opened();
            if self.reading.files() >= prefetch_trial::MANY && self.prefetch_trial.quiet().is_none()
            {
                self.count_files();
            }
        }
        let detector = self.ahead_of_opened(&opening, alone, slot);
        let desc = Desc::new(generation, key, detector);
        self.procs[i].as_mut()?.descs.insert(fd, desc);
        Some(key)
    }

    /// Takes a file in that was opened; whether nobody else has it open.
    fn take_in_opened(&mut self, opening: &Opening) -> bool {
        let key = opening.key;
        self.keep_few_files();
        self.take_in(key, opening.size);
        self.reads_now(opening.proc, key);
        self.find_server(key, opening.wanted.pid, opening.wanted.fd);
        let now = self.kernel.now();
        let file = self.take_in(key, opening.size);
        file.opened_by(1);
        let alone = file.openers == 1;
        if alone && opening.flags & FLAG_BLIND != 0 {
            file.warmth.hasten(now);
        }
        file.account.cancelled.store(false, Relaxed);
        file.source = Some(Source {
            proc: opening.proc,
            generation: opening.generation,
            wanted: opening.wanted,
        });
        file.last_access = now;
        if opening.size > 0 {
            file.size = opening.size;
        }
        alone
    }

    /// Finds the name of a file that was opened, and its size where a descriptor that is shared or inherited says nothing of that.
    fn name_opened(&mut self, opening: &Opening, slot: &Slot) {
        let (key, wanted) = (opening.key, opening.wanted);
        let file = self.files.get(&key);
        let Some(file) = file.filter(|f| f.size == 0 || f.name.as_os_str().is_empty()) else {
            return;
        };
        let known = file.size > 0 && self.devices.place(key.dev).is_some();
        let served = self.devices.shows_opens(key.dev);
        if served || known && self.device_facts(key).leaves_to_kernel(Way::Opens) {
            // It need not be opened: nothing of it will be asked for soon.
            let name = self.kernel.link(wanted.pid, wanted.fd);
            let same = slot.generation.load(Relaxed) == opening.generation;
            if let (Some(file), true) = (self.files.get_mut(&key), same) {
                file.name = name;
            }
        } else {
            self.handle(key);
        }
        self.introduce(key);
    }

    /// What reads of a file that was opened are followed with, after its beginning is fetched if that pays.
    fn ahead_of_opened(&mut self, opening: &Opening, alone: bool, slot: &Slot) -> Detector {
        let key = opening.key;
        let writable = opening.flags & FLAG_WRITABLE != 0;
        let limits = self.limits(key);
        let mut detector = Detector::new(&limits);
        if let Some(file) = self.files.get_mut(&key).filter(|_| alone && !writable) {
            file.reach = 0;
            file.place = Some(self.reaches.begin(&file.name));
        }
        let position = slot.pos.load(Relaxed);
        // A program that begins elsewhere was told of by the hook before this service looked.
        let begins = slot.last.load(Relaxed) <= self.config.window.optimistic_open.0;
        let whole = self.mode == shm::MODE_FETCHALL_OPT;
        let left = |facts: DeviceFacts| facts.leaves_to_kernel(Way::Opens);
        if whole || position == 0 && begins && !left(self.device_facts(key)) {
            let reader = Arc::new(Position {
                shared: self.shared.clone(),
                proc: opening.proc,
                fd: opening.wanted.fd,
                generation: opening.generation,
                forward: true,
            });
            let ahead = self.at_open(key, writable, reader);
            if ahead > 0 {
                detector.optimistic(ahead, &limits);
            }
        }
        detector
    }

    /// SPEC CP9, CP12: what is fetched when a file is opened. Returns up to which byte.
    pub(super) fn at_open(
        &mut self,
        key: InodeKey,
        writable: bool,
        reader: Arc<dyn Overtaken>,
    ) -> u64 {
        if !self.memory.is_aggressive() {
            return 0;
        }
        let Some(file) = self.files.get(&key) else {
            return 0;
        };
        let size = file.size;
        // A server is asked once there is a reason.
        if self.devices.place(key.dev).is_none_or(|p| !p.caches) {
            return 0;
        }
        let (ahead, class) = match self.mode {
            shm::MODE_FETCHALL_OPT => (
                size.min(self.config.window.whole_file_max.0),
                Class::Background,
            ),
            // A database opens its file for writing and reads a page of it. A program that reads on from here needs this
            // before its first window, which begins where this ends.
            shm::MODE_PREDICT_OPT if !writable => {
                let ahead = self.config.window.optimistic_open.0.min(size);
                let place = file.place;
                let ahead = place.map_or(ahead, |place| self.reaches.ahead(place, 0, ahead));
                if ahead == 0 || self.device_facts(key).leaves_to_kernel(Way::Begins) {
                    return 0;
                }
                (ahead, Class::Window)
            }
            _ => return 0,
        };
        if ahead == 0 {
            return 0;
        }
        // Whole files are wanted wherever the program begins.
        let reader = Some(reader).filter(|_| self.mode != shm::MODE_FETCHALL_OPT);
        let issued = self.fetch(Intent {
            class,
            reader,
            ..Intent::new(key, &[0..ahead], Origin::Opens)
        });
        issued.refused_at.unwrap_or(ahead)
    }

    /// A descriptor is gone, and its end was not told: its place tells of it unless another has it already.
    pub(super) fn abandoned(&mut self, i: usize, fd: u16, desc: Desc) {
        let slot = &self.shared.proc(i).slots[usize::from(fd)];
        let (last, left) = (slot.last.load(Relaxed), slot.skip.load(Relaxed));
        if slot.generation.load(Relaxed) == desc.generation {
            self.closed(i, desc, last, left.into());
        } else {
            self.unlink(desc.key);
        }
    }

    /// A descriptor was closed: its last read ended at `last`, and `left` more would not have been told.
    fn closed(&mut self, i: usize, desc: Desc, last: u64, left: u64) {
        let given = match desc.agreed() {
            0 => u64::from(desc.skip_given),
            rarely => rarely.into(),
        };
        for (span, step, len) in desc.silent_reads(last, given.saturating_sub(left)) {
            self.pass(i, desc.key, span, step, len);
        }
        self.unlink(desc.key);
    }
}
