//! Descriptors: what is known of a file when one is opened, what is fetched then, and what is counted when it is closed.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use outrider_sys::units::{InodeKey, PAGE};

use super::kernel::{Kernel, Source};
use super::left_to_kernel::{DeviceFacts, Way};
use super::{Desc, MODULE_CHUNK, Position, Service, prefetch_trial};
use crate::asked::{Overtaken, When};
use crate::config::Config;
use crate::engine::Class;
use crate::explain::{Reason, Subject};
use crate::fetch::Wanted;
use crate::intent::Intent;
use crate::shm::{
    self, Event, FD_IGNORED, FD_TRACKED, FLAG_BLIND, FLAG_RESIDENT, FLAG_WRITABLE, Kind, Origin,
    Slot,
};
use crate::source::Detector;
use crate::source::credit::Stake;

/// A file that a process has just opened.
pub(super) struct Opening {
    /// Its descriptor.
    pub(super) wanted: Wanted,
    pub(super) key: InodeKey,
    /// Entry of the process.
    proc: usize,
    /// Of the descriptor's state.
    pub(super) generation: u32,
    /// `FLAG_*` of it.
    flags: u32,
    /// Bytes; 0: not known.
    size: u64,
}

impl<K: Kernel> Service<K> {
    /// A process has opened a file of `size` bytes.
    pub(super) fn has_opened(&mut self, i: usize, e: &Event, size: u64) {
        // Another file has this number by now: that one is taken in, and then not once more.
        let stale = self.is_stale(i, e);
        if stale {
            self.follows_short(i, size, false);
        }
        let Some(state) = self.processes.get_mut(i) else {
            return;
        };
        let known = state.desc(e.fd);
        if known.is_some_and(|d| d.is_of(e.generation)) {
            return;
        }
        state.reads_windows(None);
        if let Some(desc) = state.unfollow(e.fd) {
            self.abandoned(i, e.fd, desc);
        }
        let found = self.opened(i, e.fd, if stale { 0 } else { size });
        // What was left out is not counted either.
        let slot = self.shared.proc(i).slots.get(usize::from(e.fd));
        let left_out = slot.is_none_or(|slot| slot.state.load(Relaxed) == FD_IGNORED);
        let unseen = found.is_none() && !left_out;
        if (unseen || self.is_stale(i, e))
            && let Some(state) = self.processes.get_mut(i)
        {
            state.opened_unseen(e.fd, e.generation, size);
        }
        if let Some(key) = found
            && self.walker.is_some()
        {
            let size = if stale { 0 } else { size };
            let (proc, fd) = (self.shared.proc(i), usize::from(e.fd));
            let generation = proc.slots.get(fd).map(|s| s.generation.load(Relaxed));
            let rest = proc.rest.load(Relaxed);
            proc.rest.store(rest.saturating_sub(1), Relaxed);
            if rest == 0 {
                let generation = generation.unwrap_or(0);
                // Of what is cached the hooks tell themselves.
                let pages = size.div_ceil(PAGE) << shm::PAGES_SHIFT;
                let extra = u64::from(generation) | shm::COLD | pages;
                self.entered(i, Kind::Entry, e.fd, extra, key);
            }
        }
    }

    /// A process has closed a descriptor: its last read ended at `last`, and `left` reads that were agreed on not to be told were not made.
    pub(super) fn has_closed(&mut self, i: usize, e: &Event, last: u64, left: u64) {
        let Some(state) = self.processes.get_mut(i) else {
            return;
        };
        // It is told when the next generation has begun.
        let generation = e.generation.wrapping_sub(1);
        state.closed_unseen(e.fd, generation);
        let its = |d: &Desc| d.is_of(generation);
        if state.desc(e.fd).is_some_and(its)
            && let Some(desc) = state.unfollow(e.fd)
        {
            self.closed((i, e.fd), desc, last, left);
        }
    }

    /// Finds out on what a file lies. `false` where there is nothing to prefetch.
    pub(super) fn located(&mut self, key: InodeKey) -> bool {
        let found = match self.devices.file_system(key.dev) {
            Some(known) => *known,
            None => {
                if self.devices.are_enough() {
                    return false;
                }
                let Some(handle) = self.handle(key) else {
                    return false;
                };
                let (found, id) = self.kernel.file_system(&handle);
                if let Some(model) = id.and_then(|id| self.devices.saved(id)) {
                    self.engine.assume(key.device(), *model);
                }
                self.devices.found(key.dev, found);
                found
            }
        };
        let Some(chunk) = found.chunk else {
            return false;
        };
        let wanted = self.config.engine.chunk.0;
        let chunk = if self.kernel.has_module() && wanted == Config::default().engine.chunk.0 {
            MODULE_CHUNK
        } else {
            chunk.min(wanted)
        };
        if let Some(f) = self.files.get_mut(&key) {
            f.set_chunk(chunk);
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
        let pid = self.processes.get(i)?.pid();
        let wanted = Wanted {
            pid,
            fd,
            dev: key.dev,
            ino: key.ino,
        };
        let old = self.processes.get_mut(i)?.unfollow(fd);
        if let Some(old) = old {
            self.abandoned(i, fd, old);
        }
        // What it has open the kernel knows; while nothing may be opened, nothing is looked at either. The file may be held because of others, whose rights who tells
        // of it need not have.
        if self.quiesce.is_quiesced()
            || !self.stands(i)
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
        let alone = self.take_in_opened(&opening, slot);
        if self.is_off_limits(&opening, slot) {
            slot.state.store(FD_IGNORED, Relaxed);
            if self.explain.is_wanted() {
                let name = self.kernel.link(wanted, slot, generation);
                self.explain
                    .left(Subject { pid, key }, &name, Reason::Excluded);
            }
            self.unlink(key);
            return None;
        }
        if !self.name_opened(&opening, slot) && !self.kernel.is_readable(wanted, slot, generation) {
            self.unlink(key);
            return None;
        }
        if !self.located(key) {
            let found = self.devices.file_system(key.dev);
            if found.is_some_and(|p| p.chunk.is_none()) {
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
        self.processes.get_mut(i)?.follow(fd, desc);
        Some(key)
    }

    /// Takes a file in that was opened; whether nobody else has it open.
    fn take_in_opened(&mut self, opening: &Opening, slot: &Slot) -> bool {
        let key = opening.key;
        self.keep_few_files();
        self.take_in(key, opening.size);
        self.reads_now(opening.proc, key);
        self.find_server(opening, slot);
        let now = self.kernel.now();
        let file = self.take_in(key, opening.size);
        file.hold.opened_by(1);
        let alone = file.hold.openers() == 1;
        if alone && opening.flags & FLAG_BLIND != 0 {
            file.warmth.hasten(now);
        }
        file.account.cancelled.store(false, Relaxed);
        file.hold.opens_through(Source {
            proc: opening.proc,
            generation: opening.generation,
            wanted: opening.wanted,
        });
        file.touch(now);
        if opening.size > 0 {
            file.set_size(opening.size);
        }
        alone
    }

    /// Finds the name of a file that was opened, and its size where a descriptor that is shared or inherited says nothing of that. Whether it was opened through the
    /// descriptor for that, which is for reading then.
    fn name_opened(&mut self, opening: &Opening, slot: &Slot) -> bool {
        let (key, wanted) = (opening.key, opening.wanted);
        let file = self.files.get(&key);
        let Some(file) = file.filter(|f| f.size() == 0 || !f.has_name()) else {
            return false;
        };
        let held = file.hold.held().is_some();
        let known = file.size() > 0 && self.devices.file_system(key.dev).is_some();
        let served = self.devices.shows_opens(key.dev);
        let vain = self.devices.opens_in_vain(key.dev);
        if served || known && (vain || self.device_facts(key).leaves_to_kernel(Way::Opens)) {
            // It need not be opened: nothing of it will be asked for soon. Who has other rights learns no names by what it claims to have open.
            let generation = opening.generation;
            let name = self
                .stands(opening.proc)
                .then(|| self.kernel.link(wanted, slot, generation));
            let same = slot.generation.load(Relaxed) == opening.generation;
            if let (Some(file), Some(name), true) = (self.files.get_mut(&key), name, same) {
                file.set_name(name);
            }
        } else {
            self.handle(key);
        }
        self.introduce(key);
        let file = self.files.get(&key).map(|file| &file.hold);
        !held && file.is_some_and(|hold| hold.held().is_some() && hold.is_for(opening.proc))
    }

    /// What reads of a file that was opened are followed with, after its beginning is fetched if that pays.
    fn ahead_of_opened(&mut self, opening: &Opening, alone: bool, slot: &Slot) -> Detector {
        let key = opening.key;
        let writable = opening.flags & FLAG_WRITABLE != 0;
        let limits = self.limits(key);
        let mut detector = Detector::new(&limits);
        if alone && !writable {
            self.files.follow(key);
        }
        let position = slot.pos.load(Relaxed);
        // A program that begins elsewhere was told of by the hook before this service looked.
        let begins = slot.last.load(Relaxed) <= self.config.window.optimistic_open.0;
        let whole = self.mode == shm::MODE_FETCHALL_OPT;
        let left = |facts: DeviceFacts| facts.leaves_to_kernel(Way::Opens);
        let left = !whole && position == 0 && begins && left(self.device_facts(key));
        if left {
            self.leaves(key, Reason::Kernel);
        }
        let mut fruitful = false;
        if whole || position == 0 && begins && !left {
            let reader = Arc::new(Position {
                shared: self.shared.clone(),
                proc: opening.proc,
                fd: opening.wanted.fd,
                generation: opening.generation,
                forward: true,
                len: 0,
                long: 0,
            });
            let (ahead, bytes, stake) = self.at_open(key, writable, reader);
            fruitful = bytes > 0;
            if ahead > 0 {
                detector.optimistic(ahead, &limits);
                detector.streams.staked(stake);
            }
        }
        if opening.flags & (FLAG_WRITABLE | FLAG_RESIDENT) == 0 {
            self.follows_short(opening.proc, opening.size, fruitful);
        }
        detector
    }

    /// Something was asked for of a file of `size` bytes that process `i` has opened, or not: tells the hooks how many short ones need not be followed.
    fn follows_short(&mut self, i: usize, size: u64, fruitful: bool) {
        let short = (1..=shm::SHORT).contains(&size);
        // A profile names all that was read.
        if !short || self.mode != shm::MODE_PREDICT_OPT || self.remember.is_some() {
            return;
        }
        if let Some(state) = self.processes.get_mut(i) {
            let pass = state.opens_short(fruitful);
            self.shared.proc(i).unfollowed.store(pass, Relaxed);
        }
    }

    /// SPEC CP9, CP12: what is fetched when a file is opened. Returns up to which byte it is there or asked for, how many bytes were asked for, and what is staked on
    /// these.
    fn at_open(
        &mut self,
        key: InodeKey,
        writable: bool,
        reader: Arc<dyn Overtaken>,
    ) -> (u64, u64, Stake) {
        let none = (0, 0, Stake::default());
        if !self.memory.is_aggressive() {
            return none;
        }
        let Some(file) = self.files.get(&key) else {
            return none;
        };
        let size = file.size();
        // A server is asked once there is a reason.
        if self.devices.file_system(key.dev).is_none_or(|p| !p.caches) {
            return none;
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
                let ahead = self.files.reach_at_open(key, ahead);
                if ahead > 0 && self.devices.opens_in_vain(key.dev) {
                    self.devices.has_opened(key.dev, None);
                    return none;
                }
                if ahead == 0 {
                    return none;
                }
                if self.device_facts(key).leaves_to_kernel(Way::Begins) {
                    self.leaves(key, Reason::Kernel);
                    return none;
                }
                // Who has set how much it is has said that it is wanted.
                let ahead = match self.config.window.optimistic_open.0 {
                    as_ever if as_ever == Config::default().window.optimistic_open.0 => {
                        self.affords_at_open(key, ahead)
                    }
                    _ => ahead,
                };
                (ahead, Class::Window)
            }
            _ => return none,
        };
        if ahead == 0 {
            self.leaves(key, Reason::NoCredit);
            return none;
        }
        // Whole files are wanted wherever the program begins.
        let reader = Some(reader).filter(|_| self.mode != shm::MODE_FETCHALL_OPT);
        let issued = self.fetch(Intent {
            class,
            reader,
            ..Intent::new(key, &[0..ahead], Origin::Opens)
        });
        let stake = match self.mode {
            shm::MODE_FETCHALL_OPT => Stake::default(),
            _ => {
                self.devices.has_opened(key.dev, Some(issued.bytes > 0));
                self.stake_at_open(key, issued.bytes)
            }
        };
        (issued.refused_at.unwrap_or(ahead), issued.bytes, stake)
    }

    /// A descriptor is gone, and its end was not told: its place tells of it unless another has it already.
    pub(super) fn abandoned(&mut self, i: usize, fd: u16, desc: Desc) {
        let slot = &self.shared.proc(i).slots[usize::from(fd)];
        let (last, left) = (slot.last.load(Relaxed), slot.skip.load(Relaxed));
        if slot.generation.load(Relaxed) == desc.generation {
            self.closed((i, fd), desc, last, left.into());
        } else {
            self.unlink(desc.key);
        }
    }

    /// A descriptor was closed: its last read ended at `last`, and `left` more would not have been told.
    fn closed(&mut self, (i, fd): (usize, u16), mut desc: Desc, last: u64, left: u64) {
        let given = desc.may_have_made();
        let returned = desc.detector.streams.ended(last);
        self.book(desc.key, |credit| credit.returned(returned));
        let when = When::Since {
            epoch: desc.heard_after(),
            reader: (!self.copies(i, fd, &desc)).then_some((i, fd, desc.generation)),
        };
        for silent in desc.silent_reads(last, given.saturating_sub(left)) {
            if let Some(remember) = &self.remember {
                remember.read(desc.key, silent.0.clone());
            }
            self.pass(i, desc.key, silent, &when);
        }
        self.unlink(desc.key);
    }
}
