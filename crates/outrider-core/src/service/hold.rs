//! Our hold on files: as short as can be, with the rights of who has them open.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use outrider_sys::units::InodeKey;

use super::kernel::{Kernel, Source};
use super::processes::ProcState;
use super::{HOLD, HOLD_OPEN, Service};
use crate::clock::Moment;
use crate::engine::Handle;
use crate::fetch::Wanted;
use crate::shm;

/// Files that are held beyond [`HOLD`], at most.
const FEW_HELD: usize = 128;
/// Files up to which their streams are counted, each of which is granted a minimum.
const FEW_FILES: usize = 64;

/// Who has a file open, and whether we do.
pub(super) struct Hold {
    handle: Option<Arc<Handle>>,
    /// The entry of the process because of which it is open.
    holder: Option<usize>,
    /// When it was last asked for.
    used: Moment,
    /// The descriptor through which it can be opened: process entry, and generation of the descriptor's state.
    source: Option<Source>,
    /// Descriptors and mappings that lead to it.
    openers: u32,
    /// The same, for whoever watches it being closed.
    openers_now: Arc<AtomicU32>,
    /// It could not be opened the last time, and is not tried for so long from then on.
    refused: Option<(Moment, Duration)>,
}

/// For so long nobody tries to open a file that could not be opened …
const REFUSED: Duration = Duration::from_millis(1);
/// … and for twice as long each time, up to this: who watches files, or audits, sees each try.
const REFUSED_FOR_LONG: Duration = Duration::from_secs(1);

/// What a look at a hold has come to.
struct Look {
    /// A server has not answered for long.
    overdue: bool,
    /// It is being read.
    busy: bool,
}

impl Hold {
    pub(super) fn new(now: Moment) -> Hold {
        Hold {
            handle: None,
            holder: None,
            used: now,
            source: None,
            openers: 0,
            openers_now: Arc::default(),
            refused: None,
        }
    }

    /// Whether it is too soon to try again what was refused.
    fn is_refused(&self, now: Moment) -> bool {
        self.refused.is_some_and(|(at, pause)| now - at < pause)
    }

    /// It could not be opened.
    fn was_refused(&mut self, now: Moment) {
        let longer = |(_, pause): (Moment, Duration)| (2 * pause).min(REFUSED_FOR_LONG);
        self.refused = Some((now, self.refused.map_or(REFUSED, longer)));
    }

    /// Descriptors and mappings that lead to it.
    pub(super) fn openers(&self) -> u32 {
        self.openers
    }

    /// Whether a program has it open.
    pub(super) fn is_open(&self) -> bool {
        self.openers > 0
    }

    /// The count of those who have it open, for whoever watches it being closed.
    pub(super) fn watched(&self) -> &Arc<AtomicU32> {
        &self.openers_now
    }

    /// So many more descriptors and mappings lead to it.
    pub(super) fn opened_by(&mut self, more: u32) {
        self.openers += more;
        self.openers_now.store(self.openers, SeqCst);
    }

    /// One descriptor or mapping less leads to it. Whether none does now; then we let go of it, too.
    pub(super) fn closed(&mut self) -> bool {
        self.openers = self.openers.saturating_sub(1);
        self.openers_now.store(self.openers, SeqCst);
        if self.openers > 0 {
            return false;
        }
        self.let_go();
        self.source = None;
        true
    }

    /// What it can be opened through now.
    pub(super) fn opens_through(&mut self, source: Source) {
        self.source = Some(source);
    }

    /// The process that opened it last, if it is open.
    pub(super) fn owner(&self) -> Option<usize> {
        self.source.map(|s| s.proc)
    }

    /// It is asked for.
    pub(super) fn touch(&mut self, now: Moment) {
        self.used = now;
    }

    /// What we hold.
    pub(super) fn held(&self) -> Option<&Arc<Handle>> {
        self.handle.as_ref()
    }

    /// Forgets what has been let go of elsewhere.
    fn forget_gone(&mut self) {
        self.handle.take_if(|h| h.is_gone());
    }

    /// It was opened because of the process in entry `i`.
    pub(super) fn begins(&mut self, handle: Arc<Handle>, i: usize) {
        (self.handle, self.holder) = (Some(handle), Some(i));
        self.refused = None;
    }

    /// Ends our hold on it.
    pub(super) fn let_go(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.let_go();
        }
    }

    /// Gives our hold on it away.
    pub(super) fn give_up(&mut self) -> Option<Arc<Handle>> {
        self.handle.take()
    }

    /// Whether it is, or was last, open because of the process in entry `i`.
    pub(super) fn is_for(&self, i: usize) -> bool {
        self.holder == Some(i)
    }

    /// Lets go of what was not asked for lately. `few`: few files are held, and those that programs have open may be held for some more reads.
    fn look(&mut self, now: Moment, few: bool) -> Look {
        let handle = self.handle.as_ref();
        // A server's file is held as long as a program has it: opening it again may cost what is cached of it.
        let remote = handle.is_some_and(|h| h.is_remote());
        let overdue = handle.is_some_and(|h| h.is_overdue());
        // What requests need is held until they have arrived, and a file that a program has, for some more reads: whoever watches sees one open.
        self.forget_gone();
        let used = self.held().is_some_and(|h| Arc::strong_count(h) > 1);
        let hold = match self.is_open() && few {
            true => HOLD_OPEN,
            false => HOLD,
        };
        if now - self.used >= hold && !remote && !used {
            self.let_go();
        }
        Look {
            overdue,
            busy: self.is_open() && now - self.used < HOLD,
        }
    }
}

impl<K: Kernel> Service<K> {
    /// A descriptor of our own for a file. Of one that a server keeps only the one that there is already: see [`Service::ask_server`].
    pub(super) fn handle(&mut self, key: InodeKey) -> Option<Arc<Handle>> {
        if self.header().watched.load(Relaxed) != 0 || self.files.untouchable().contains(&key) {
            return None;
        }
        let served = self.devices.shows_opens(key.dev);
        let file = self.files.get_mut(&key)?;
        file.hold.used = self.kernel.now();
        file.hold.forget_gone();
        if let Some(handle) = file.hold.held() {
            return Some(handle.clone());
        }
        let now = self.kernel.now();
        if self.quiesce.is_quiesced() || served || file.hold.is_refused(now) {
            return None;
        }
        let Some(source) = self.source(key) else {
            return self.handle_by_name(key);
        };
        let openers = self.files.get(&key)?.hold.openers_now.clone();
        let Some((handle, size)) = self.kernel.open(&self.shared, source, &openers) else {
            let found = self.handle_by_name(key);
            if let (None, Some(file)) = (&found, self.files.get_mut(&key)) {
                file.hold.was_refused(now);
            }
            return found;
        };
        if handle.is_gone() {
            return None;
        }
        self.holds(key, handle, size, source.proc)
    }

    /// The file is held for process `i`.
    fn holds(
        &mut self,
        key: InodeKey,
        handle: Arc<Handle>,
        size: u64,
        i: usize,
    ) -> Option<Arc<Handle>> {
        let file = self.files.get_mut(&key)?;
        file.set_size(size);
        file.hold.begins(handle.clone(), i);
        Some(handle)
    }

    /// The same of a file that process `i` has just been found to map, and of which nothing else may be known yet.
    pub(super) fn handle_of_mapped(&mut self, key: InodeKey, i: usize) -> Option<Arc<Handle>> {
        self.handle(key).or_else(|| {
            let may = self.may_open(key) && self.stands(i);
            may.then(|| self.open_by_name(key, i)).flatten()
        })
    }

    /// Whether files may be opened at all now, and this one among them.
    fn may_open(&self, key: InodeKey) -> bool {
        let watched = self.header().watched.load(Relaxed) != 0;
        let shown = self.devices.shows_opens(key.dev) || self.files.untouchable().contains(&key);
        !watched && !shown && !self.quiesce.is_quiesced()
    }

    /// The same of a file without a descriptor, by its name: one that a process has mapped that has just the rights of this one.
    fn handle_by_name(&mut self, key: InodeKey) -> Option<Arc<Handle>> {
        let maps = |p: &ProcState| p.mapped().iter().any(|m| m.file() == key);
        let lives = |p: &ProcState| !p.is_surely_over(&self.kernel);
        let is_its = |(i, p): &(usize, &ProcState)| maps(p) && lives(p) && self.stands(*i);
        let i = self.processes.iter().find(is_its)?.0;
        self.open_by_name(key, i)
    }

    /// The same where it is known already that process `i` has it mapped, and whether files may be opened for it.
    fn open_by_name(&mut self, key: InodeKey, i: usize) -> Option<Arc<Handle>> {
        let lives = |p: &ProcState| !p.is_surely_over(&self.kernel);
        let file = self.files.get(&key)?;
        let (name, openers) = (file.name(), &file.hold.openers_now);
        let held = self
            .kernel
            .open_by_name(&self.shared, i, name, key, openers);
        let (handle, size) = held?;
        // It may have ended before the watch began.
        if !self.processes.get(i).is_some_and(lives) {
            handle.let_go();
            return None;
        }
        self.holds(key, handle, size, i)
    }

    /// A descriptor through which a file can be opened, of a process that has just the rights of this one.
    pub(super) fn source(&mut self, key: InodeKey) -> Option<Source> {
        let stands = |i: usize| self.stands(i) && self.shared.proc(i).departs.load(Relaxed) == 0;
        if let Some(source) = self.files.get(&key)?.hold.source
            && let Some(p) = self.processes.get(source.proc)
            && p.pid() == source.wanted.pid
            && stands(source.proc)
        {
            return Some(source);
        }
        let mut descs = self.processes.iter().filter_map(|(i, p)| {
            let (fd, desc) = p.descs().find(|(_, d)| d.key == key)?;
            let wanted = Wanted {
                pid: p.pid(),
                fd,
                dev: key.dev,
                ino: key.ino,
            };
            Some(Source {
                proc: i,
                generation: desc.generation,
                wanted,
            })
        });
        let found = descs.find(|s| stands(s.proc));
        drop(descs);
        if found.is_some() {
            self.files.get_mut(&key)?.hold.source = found;
        }
        found
    }

    /// Lets go of what is open because processes had it that are about to end, whether others have it or not.
    pub(super) fn let_go_for_departing(&mut self) {
        for i in self.processes.active() {
            let proc = self.shared.proc(*i);
            if proc.departs.load(Acquire) == 0 || proc.holds.load(Acquire) == 0 {
                continue;
            }
            if let Some(walker) = &self.walker {
                walker.let_go_for(*i);
            }
            for file in self.files.values_mut().filter(|f| f.hold.is_for(*i)) {
                file.hold.let_go();
            }
        }
    }

    /// The processes that are about to start others, and wait for what they have closed to be let go of.
    pub(super) fn is_to_settle(&self) -> bool {
        let waits = |i: &usize| {
            let proc = self.shared.proc(*i);
            proc.start_wanted.load(Acquire) != proc.start_done.load(Relaxed)
        };
        self.processes.active().iter().any(waits)
    }

    /// Lets go of what processes that are about to start others have closed, and tells them when it is done. What they have open stays: to open it again takes
    /// its time.
    pub(super) fn let_go_for_starting(&mut self) {
        for i in self.processes.active().to_vec() {
            let proc = self.shared.proc(i);
            let wanted = proc.start_wanted.load(Acquire);
            if wanted == proc.start_done.load(Relaxed) {
                continue;
            }
            if let Some(walker) = &self.walker {
                walker.let_go_for(i);
            }
            let mut open = 0;
            for file in self.files.values_mut().filter(|f| f.hold.is_for(i)) {
                let handle = file.hold.held().filter(|h| !h.is_remote());
                if handle.is_none_or(|h| h.is_gone()) {
                    continue;
                }
                match file.hold.is_open() {
                    true => open += 1,
                    false => file.hold.let_go(),
                }
            }
            // The others are held by calls of workers that go on.
            if self.kernel.held_unseen(&self.shared, i) <= open {
                self.shared.proc(i).start_done.store(wanted, Release);
            }
        }
    }

    /// The same for a look: a file is held for its reads, not for that.
    pub(super) fn handle_for_a_look(&mut self, key: InodeKey) -> Option<Arc<Handle>> {
        let file = self.files.get(&key)?;
        let (held, used) = (file.hold.handle.is_some(), file.hold.used);
        let handle = self.handle(key);
        if let Some(file) = self.files.get_mut(&key) {
            file.hold.used = used;
            if !held {
                file.hold.handle = None;
            }
        }
        handle
    }

    /// Lets go of files that were not asked for lately.
    pub(super) fn let_go(&mut self) {
        if self.kernel.since(*self.files.counted()) >= HOLD / 4 {
            self.count_files();
        }
    }

    /// Counts the files that are being read, and lets go of the others.
    pub(super) fn count_files(&mut self) {
        let now = self.kernel.now();
        *self.files.counted() = now;
        let (mut busy, mut overdue) = (Vec::new(), Vec::new());
        let held = self.files.values().filter(|f| f.hold.held().is_some());
        let few = held.count() <= FEW_HELD;
        for file in self.files.values_mut() {
            let look = file.hold.look(now, few);
            if look.overdue {
                overdue.push(file.key.dev);
            }
            if look.busy {
                busy.push(file.key);
            }
        }
        for dev in overdue {
            self.leave_alone(dev, shm::UNANSWERED);
        }
        let processes = self.processes.iter();
        let descs = processes.flat_map(|(_, p)| p.descs().map(|(_, d)| d));
        // Of many files there are enough.
        let read = descs.filter(|d| busy.len() <= FEW_FILES && busy.contains(&d.key));
        let streams = read.map(|d| d.detector.streams.reading().count() as u64);
        self.reading.counted(busy.len(), streams.sum());
        self.look_at_trial(busy.len() as u64);
        let untold = self.prefetch_trial.untold();
        for i in self.processes.active() {
            self.shared.proc(*i).untold.store(untold, Relaxed);
        }
    }
}
