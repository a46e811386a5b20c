//! Files: our hold on them, what is known of their pages, and their figures.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use outrider_sys::raw;
use outrider_sys::units::{InodeKey, PAGE};

use super::cache_users::Seen;
use super::kernel::{Kernel, Source};
use super::resident::Warmth;
use super::{HOLD, HOLD_OPEN, ProcState, Service, VIEW_BYTES, reach};
use crate::clock::Moment;
use crate::config::RangeTree;
use crate::engine::{Account, Handle};
use crate::fetch::Wanted;
use crate::shm::{self, Event, Figure, Kind, MAX_FILES, lost};
use crate::source::Arrival;
use crate::source::dense::{self, Random, Verdict};
use crate::tally::Tally;
use crate::view::{FileView, Granularity, PageRange};
use crate::walk::{Opened, Walker};

/// Silent strided reads that are accounted for one by one.
const MOST_PASSED: usize = 65536;
/// Gaps in what is held of a range up to which it is given up at once.
const HOLES: usize = 1024;

/// A file that programs have open, or had.
pub(super) struct FileState {
    pub(super) key: InodeKey,
    pub(super) view: Arc<FileView>,
    pub(super) account: Arc<Account>,
    pub(super) size: u64,
    /// The device from which it was fetched last: of a file system on several disks the disk.
    pub(super) device: u64,
    pub(super) handle: Option<Arc<Handle>>,
    /// The entry of the process because of which it is open.
    pub(super) holder: Option<usize>,
    pub(super) handle_used: Moment,
    /// The descriptor through which it can be opened: process entry, and generation of the descriptor's state.
    pub(super) source: Option<Source>,
    /// Its name when it was first opened, to find it by when all descriptors are closed and a mapping is left.
    pub(super) name: PathBuf,
    pub(super) random: Random,
    /// Random reads at which streaming is considered next.
    pub(super) consider_at: u64,
    /// What was said last.
    pub(super) verdict: Verdict,
    /// Streamed in whole: random reads are all foreseen.
    pub(super) streamed: bool,
    pub(super) openers: u32,
    /// The same, for whoever watches it being closed.
    pub(super) openers_now: Arc<AtomicU32>,
    /// What became of it with its server, and with the cache.
    pub(super) served: Served,
    pub(super) last_access: Moment,
    /// Whether others read it.
    pub(super) seen: Seen,
    pub(super) chunk: u64,
    /// cachestat is refused for this file.
    pub(super) blind: bool,
    /// Samples that found the file cached, less those that did not.
    pub(super) resident: u32,
    pub(super) samples: u32,
    /// When to look whether it can be left to the hooks.
    pub(super) warmth: Warmth,
    /// Up to which byte it was read without a gap from its beginning, since somebody has it open.
    pub(super) reach: u64,
    /// Where that is remembered.
    pub(super) place: Option<reach::Place>,
}

/// What is known of a file while programs have it open, where opening it is no small matter.
#[derive(Default)]
pub(super) struct Served {
    /// It was opened, or couldn't be: it is not opened again before all programs have closed it.
    pub(super) spent: bool,
    /// It is being opened.
    pub(super) pending: bool,
    /// Whether what is read of it stays cached.
    pub(super) caches: Option<bool>,
    /// A read that was told when the file was open here already: descriptor, thread, bytes.
    pub(super) read: Option<(u16, u64, std::ops::Range<u64>)>,
    /// Bytes that programs have read since they opened it.
    pub(super) bytes: u64,
    /// What programs have asked for while it was being opened.
    pub(super) hinted: Vec<std::ops::Range<u64>>,
}

impl FileState {
    /// What becomes of it counts in all, for the file, and for the process that has it.
    pub(super) fn count(&self, figure: Figure, bytes: u64) {
        if let Some(tally) = self.account.tally() {
            tally.add(figure, bytes);
        }
    }

    /// Ends our hold on it.
    pub(super) fn let_go(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.let_go();
        }
    }

    /// So many more descriptors and mappings lead to it.
    pub(super) fn opened_by(&mut self, more: u32) {
        self.openers += more;
        self.openers_now.store(self.openers, SeqCst);
    }

    /// How many random reads may go unheard before streaming is considered, if that is to be.
    pub(super) fn patience(&self) -> Option<u64> {
        match self.verdict {
            Verdict::No => None,
            Verdict::After(_) => Some(self.consider_at.saturating_sub(self.random.reads)),
            Verdict::Now | Verdict::Later | Verdict::Hear => Some(0),
        }
    }
}

/// Files that are held beyond [`HOLD`], at most.
const FEW_HELD: usize = 128;
/// Files up to which their streams are counted, each of which is granted a minimum.
const FEW_FILES: usize = 64;

impl<K: Kernel> Service<K> {
    /// The state of a file, new if it was not known.
    pub(super) fn take_in(&mut self, key: InodeKey, size: u64) -> &mut FileState {
        let range_tree = self.config.view.range_tree;
        let view = || match range_tree {
            RangeTree::Page => FileView::new(Granularity::Page, VIEW_BYTES),
            RangeTree::Coarse => FileView::new(Granularity::Coarse, VIEW_BYTES),
            RangeTree::Off => FileView::new(Granularity::Page, VIEW_BYTES).with_one_lock(),
        };
        let now = self.kernel.now();
        self.files.entry(key).or_insert_with(|| FileState {
            key,
            view: Arc::new(view()),
            account: Arc::new(Account::with(Tally::new(self.shared.clone()))),
            size,
            device: key.dev,
            handle: None,
            handle_used: now,
            source: None,
            name: PathBuf::new(),
            random: Random::default(),
            consider_at: dense::FEWEST,
            verdict: Verdict::After(dense::FEWEST),
            streamed: false,
            openers: 0,
            holder: None,
            openers_now: Arc::default(),
            served: Served::default(),
            last_access: now,
            seen: Seen::default(),
            chunk: 0,
            blind: false,
            resident: 0,
            samples: 0,
            warmth: Warmth::new(now),
            reach: 0,
            place: None,
        })
    }

    /// A descriptor of our own for a file. Of one that a server keeps only the one that there is already: see [`Service::ask_server`].
    pub(super) fn handle(&mut self, key: InodeKey) -> Option<Arc<Handle>> {
        if self.header().watched.load(Relaxed) != 0 || self.untouchable.contains(&key) {
            return None;
        }
        let served = self.devices.get(&key.dev).is_some_and(|p| p.shows_opens);
        let file = self.files.get_mut(&key)?;
        file.handle_used = self.kernel.now();
        if file.handle.as_ref().is_some_and(|h| h.is_gone()) {
            file.handle = None;
        }
        if let Some(handle) = &file.handle {
            return Some(handle.clone());
        }
        if self.quiesce.is_quiesced() || served {
            return None;
        }
        let Some(source) = self.source(key) else {
            return self.handle_by_name(key);
        };
        let openers = self.files.get(&key)?.openers_now.clone();
        let Some((handle, size)) = self.kernel.open(&self.shared, source, &openers) else {
            return self.handle_by_name(key);
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
        file.size = size;
        file.handle = Some(handle.clone());
        file.holder = Some(i);
        Some(handle)
    }

    /// The same of a file without a descriptor, by its name: one that a process has mapped that has just the rights of this one.
    fn handle_by_name(&mut self, key: InodeKey) -> Option<Arc<Handle>> {
        let maps = |p: &ProcState| p.mapped.iter().any(|m| m.file() == key);
        let lives =
            |kernel: &K, p: &ProcState| p.life.is_none() || !kernel.is_over(p.pid, p.life.as_ref());
        let kernel = &self.kernel;
        let is_its = |i: &usize| {
            self.procs[*i]
                .as_ref()
                .is_some_and(|p| maps(p) && lives(kernel, p))
        };
        let mut active = self.active.iter().copied();
        let i = active.find(|i| is_its(i) && self.stands(*i))?;
        let file = self.files.get(&key)?;
        let (name, openers) = (&file.name, &file.openers_now);
        let held = kernel.open_by_name(&self.shared, i, name, key, openers);
        let (handle, size) = held?;
        // It may have ended before the watch began.
        if !self.procs[i].as_ref().is_some_and(|p| lives(kernel, p)) {
            handle.let_go();
            return None;
        }
        self.holds(key, handle, size, i)
    }

    /// A descriptor through which a file can be opened, of a process that has just the rights of this one.
    fn source(&mut self, key: InodeKey) -> Option<Source> {
        let stands = |i: usize| self.stands(i) && self.shared.proc(i).departs.load(Relaxed) == 0;
        if let Some(source) = self.files.get(&key)?.source
            && let Some(p) = self.procs[source.proc].as_ref()
            && p.pid == source.wanted.pid
            && stands(source.proc)
        {
            return Some(source);
        }
        let descs = self.active.iter().filter_map(|i| {
            let state = self.procs[*i].as_ref()?;
            let (fd, desc) = state.descs.iter().find(|(_, d)| d.key == key)?;
            let wanted = Wanted {
                pid: state.pid,
                fd: *fd,
                dev: key.dev,
                ino: key.ino,
            };
            Some(Source {
                proc: *i,
                generation: desc.generation,
                wanted,
            })
        });
        let found = descs.into_iter().find(|s| stands(s.proc));
        if found.is_some() {
            self.files.get_mut(&key)?.source = found;
        }
        found
    }

    /// Lets go of what is open because processes had it that are about to end, whether others have it or not.
    pub(super) fn let_go_for_departing(&mut self) {
        for i in &self.active {
            let proc = self.shared.proc(*i);
            if proc.departs.load(Acquire) == 0 || proc.holds.load(Acquire) == 0 {
                continue;
            }
            if let Some(walker) = &self.walker {
                walker.let_go_for(*i);
            }
            for file in self.files.values_mut().filter(|f| f.holder == Some(*i)) {
                file.let_go();
            }
        }
    }

    /// The processes that are about to start others, and wait for what they have closed to be let go of.
    pub(super) fn is_to_settle(&self) -> bool {
        let waits = |i: &usize| {
            let proc = self.shared.proc(*i);
            proc.start_wanted.load(Acquire) != proc.start_done.load(Relaxed)
        };
        self.active.iter().any(waits)
    }

    /// Lets go of what processes that are about to start others have closed, and tells them when it is done. What they have open stays: to open it again takes
    /// its time.
    pub(super) fn let_go_for_starting(&mut self) {
        for i in self.active.clone() {
            let proc = self.shared.proc(i);
            let wanted = proc.start_wanted.load(Acquire);
            if wanted == proc.start_done.load(Relaxed) {
                continue;
            }
            if let Some(walker) = &self.walker {
                walker.let_go_for(i);
            }
            let mut open = 0;
            for file in self.files.values_mut().filter(|f| f.holder == Some(i)) {
                let handle = file.handle.as_ref().filter(|h| !h.is_remote());
                if handle.is_none_or(|h| h.is_gone()) {
                    continue;
                }
                if file.openers == 0 {
                    file.let_go();
                } else {
                    open += 1;
                }
            }
            // The others are held by calls of workers that go on.
            if self.kernel.held_unseen(&self.shared, i) <= open {
                let done = &self.shared.proc(i).start_done;
                done.store(wanted, Release);
                raw::futex_wake(done, u32::MAX);
            }
        }
    }

    /// Finds out whether a server keeps the files of a file system that is new, before anything is asked of it: by the mounts that a process sees, and the name under
    /// which it has a file open.
    pub(super) fn find_server(&mut self, key: InodeKey, pid: u32, fd: u16) {
        if self.devices.contains_key(&key.dev) {
            return;
        }
        if let Some(place) = self.kernel.server(pid, key.dev, fd) {
            self.devices.insert(key.dev, place);
        }
    }

    /// Has a server's file opened, if that may pay: something is to be fetched, and it is early. A FUSE server that does not keep the cache loses what was read
    /// of the file until then.
    /// `hinted`: the program has said itself what it will read.
    pub(super) fn ask_server(&mut self, key: InodeKey, hinted: bool) {
        /// Bytes that a program may have read until then.
        const EARLY: u64 = 4 << 20;
        let served = self.devices.get(&key.dev).is_some_and(|p| p.shows_opens);
        if !served || self.left_alone.contains(&key.dev) || self.quiesce.is_quiesced() {
            return;
        }
        if self.kernel.is_stuck(key.dev) {
            self.leave_alone(key.dev, shm::UNANSWERED);
            return;
        }
        let watched = self.header().watched.load(Relaxed) != 0 || self.untouchable.contains(&key);
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let its = &file.served;
        if watched || its.pending || !hinted && (its.spent || its.bytes > EARLY) {
            return;
        }
        let Some(source) = self.source(key) else {
            return;
        };
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        let openers = &file.openers_now;
        let begun = self.kernel.begin_to_open(&self.shared, source, openers);
        (file.served.pending, file.served.spent) = (begun, begun);
    }

    /// Takes in files that servers have opened.
    pub(super) fn take_opened(&mut self) {
        let mut hinted = Vec::new();
        for opened in self.kernel.opened() {
            let away = self.quiesce.is_quiesced() || self.header().watched.load(Relaxed) != 0;
            let away = away || self.untouchable.contains(&opened.key);
            let Some(file) = self.files.get_mut(&opened.key) else {
                continue;
            };
            file.served.pending = false;
            match opened.file {
                Some((handle, size)) if file.openers > 0 && !away => {
                    file.size = size;
                    file.handle = Some(handle);
                    file.holder = Some(opened.proc);
                    file.handle_used = self.kernel.now();
                    let ranges = std::mem::take(&mut file.served.hinted);
                    hinted.push((opened.proc, opened.key, ranges));
                }
                Some((handle, _)) => handle.let_go(),
                None => file.served.hinted.clear(),
            }
        }
        for (proc, key, ranges) in hinted {
            for range in ranges {
                self.advise(proc, key, range);
            }
        }
    }

    /// A read of a file is about to be made. Where it isn't known whether what is read stays cached, the one before tells: the same thread has made it. `false`: it does
    /// not, or that is not known yet.
    pub(super) fn stays_cached(&mut self, key: InodeKey, e: &Event) -> bool {
        if self.devices.get(&key.dev).is_none_or(|p| p.caches) {
            return true;
        }
        let known = self.files.get(&key).and_then(|f| f.served.caches);
        if let Some(caches) = known {
            return caches;
        }
        let Some(handle) = self.handle(key) else {
            return false;
        };
        let Some(file) = self.files.get_mut(&key) else {
            return false;
        };
        let bytes = e.offset..e.offset.saturating_add(e.len).min(file.size);
        let before = file.served.read.take();
        let caches = match before {
            Some((fd, thread, bytes)) if (fd, thread) == (e.fd, e.extra) => {
                // Where it can't be seen it is believed.
                self.kernel
                    .counted(&handle, bytes)
                    .is_ok_and(|stat| stat.cached == 0)
            }
            _ => {
                file.served.read = (!bytes.is_empty()).then_some((e.fd, e.extra, bytes));
                return false;
            }
        };
        let caches = !caches;
        file.served.caches = Some(caches);
        if caches {
            self.caching.insert(key.dev);
        } else {
            file.served.spent = true;
            file.let_go();
            // Of a mount that does cache it is this file's matter.
            if !self.caching.contains(&key.dev) {
                self.left_alone.insert(key.dev);
            }
            self.header().leave_alone(shm::BYPASSED, key.dev);
        }
        caches
    }

    /// Nothing is prefetched of a file system any more.
    fn leave_alone(&mut self, dev: u64, reason: usize) {
        self.left_alone.insert(dev);
        self.header().leave_alone(reason, dev);
        for file in self.files.values_mut().filter(|f| f.key.dev == dev) {
            file.let_go();
        }
    }

    /// The same for a look: a file is held for its reads, not for that.
    pub(super) fn handle_for_a_look(&mut self, key: InodeKey) -> Option<Arc<Handle>> {
        let file = self.files.get(&key)?;
        let (held, used) = (file.handle.is_some(), file.handle_used);
        let handle = self.handle(key);
        if let Some(file) = self.files.get_mut(&key) {
            file.handle_used = used;
            if !held {
                file.handle = None;
            }
        }
        handle
    }

    /// Notes a file's name, and gives it an entry of its own in the statistics.
    pub(super) fn introduce(&mut self, key: InodeKey) {
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        if file.name.as_os_str().is_empty() {
            let Some(handle) = &file.handle else { return };
            file.name = self.kernel.name(handle);
        }
        let tally = file.account.tally().filter(|t| !t.has_stat());
        if let Some(tally) = tally.filter(|_| self.named < MAX_FILES) {
            let name = file.name.as_os_str().as_bytes();
            self.shared.name(self.named, name, [key.dev, key.ino]);
            tally.set_stat(self.named);
            self.named += 1;
        }
    }

    /// Lets go of files that were not asked for lately.
    pub(super) fn let_go(&mut self) {
        if self.kernel.since(self.last_let_go) >= HOLD / 4 {
            self.count_files();
        }
    }

    /// Counts the files that are being read, and lets go of the others.
    pub(super) fn count_files(&mut self) {
        self.last_let_go = self.kernel.now();
        let mut busy = Vec::new();
        let mut overdue = Vec::new();
        let few = self.files.values().filter(|f| f.handle.is_some()).count() <= FEW_HELD;
        for file in self.files.values_mut() {
            let handle = file.handle.as_ref();
            // A server's file is held as long as a program has it: opening it again may cost what is cached of it.
            let remote = handle.is_some_and(|h| h.is_remote());
            if handle.is_some_and(|h| h.is_overdue()) {
                overdue.push(file.key.dev);
            }
            if handle.is_some_and(|h| h.is_gone()) {
                file.handle = None;
            }
            // What requests need is held until they have arrived, and a file that a program has, for some more reads: whoever watches sees one open.
            let used = file
                .handle
                .as_ref()
                .is_some_and(|h| Arc::strong_count(h) > 1);
            let hold = match file.openers > 0 && few {
                true => HOLD_OPEN,
                false => HOLD,
            };
            if self.kernel.since(file.handle_used) >= hold && !remote && !used {
                file.let_go();
            }
            if self.kernel.since(file.handle_used) >= HOLD {
                // Nobody reads it.
            } else if file.openers > 0 {
                busy.push(file.key);
            }
        }
        for dev in overdue {
            self.leave_alone(dev, shm::UNANSWERED);
        }
        self.busy = busy.len().max(1) as u64;
        let procs = self.active.iter().filter_map(|i| self.procs[*i].as_ref());
        let descs = procs.flat_map(|p| p.descs.values());
        // Of many files there are enough.
        let read = descs.filter(|d| busy.len() <= FEW_FILES && busy.contains(&d.key));
        self.streams = read
            .map(|d| d.detector.streams.reading().count() as u64)
            .sum();
        self.look_at_trial(busy.len() as u64);
        self.untold = match self.prefetch_trial.quiet() {
            Some(true) => shm::UNTOLD,
            _ => 0,
        };
        for i in &self.active {
            self.shared.proc(*i).untold.store(self.untold, Relaxed);
        }
    }

    /// A process has opened a file, or visits or lists a directory, under number `fd`, perhaps one of many; the lower half of `extra` is the generation of the
    /// descriptor's state.
    pub(super) fn entered(&mut self, i: usize, kind: Kind, fd: u16, extra: u64, key: InodeKey) {
        if !self.walks {
            return;
        }
        let Some((pid, who)) = self.procs[i].as_mut().map(|p| {
            p.walked = Some(self.kernel.now());
            (p.pid, p.who)
        }) else {
            return;
        };
        if self.walker.is_none() {
            let small = self.config.files.min_size.0;
            let (shared, ledger) = (self.shared.clone(), self.ledger.clone());
            self.walker = Walker::start(shared, &self.engine, ledger, small);
            match &self.walker {
                Some(walker) => {
                    self.untouchable.iter().for_each(|key| walker.leave(*key));
                    if self.quiesce.is_quiesced() {
                        drop(walker.let_go());
                    }
                }
                None => self.header().lose(lost::THREADS),
            }
            self.allow_walks();
        }
        if let Some(walker) = &self.walker {
            let opened = Opened {
                proc: i,
                pid,
                who,
                fd,
                generation: extra as u32,
                key,
            };
            match kind {
                Kind::Visit => walker.visited(opened),
                Kind::Listing => walker.listing(opened, extra >> 32 << 32),
                Kind::Attributes => walker.attributes(i),
                _ => walker.opened(opened),
            }
        }
    }

    /// Tells whether files may be opened that no program has open.
    pub(super) fn allow_walks(&self) {
        if let Some(walker) = &self.walker {
            let watched = self.header().watched.load(Relaxed) != 0;
            let memory = self.grant.allowed && self.grant.total > 0;
            walker.allow(memory && self.walks && !watched);
        }
    }

    /// One descriptor or mapping less.
    pub(super) fn unlink(&mut self, key: InodeKey) {
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        file.openers = file.openers.saturating_sub(1);
        file.openers_now.store(file.openers, SeqCst);
        if file.openers > 0 {
            return;
        }
        self.busy = self.busy.saturating_sub(1).max(1);
        file.let_go();
        file.served = Served::default();
        file.account.cancelled.store(true, Relaxed);
        file.source = None;
        file.reach = 0;
        if let Some(place) = file.place.take() {
            self.reaches.ended(place);
        }
    }

    /// Forgets a file altogether; what was fetched and not used is wasted.
    pub(super) fn forget(&mut self, key: InodeKey) {
        if let Some(file) = self.files.remove(&key) {
            self.forget_watch(&file.seen);
            if let Some(place) = file.place {
                self.reaches.ended(place);
            }
            file.count(Figure::Wasted, file.view.unused_pages() * PAGE);
        }
    }

    pub(super) fn lost_pages(&mut self, key: InodeKey, range: PageRange) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let gone = file.view.evicted(range);
        self.count(key, Figure::Evicted, gone.unused_pages * PAGE);
    }

    /// Process `i` opens or reads a file.
    pub(super) fn reads_now(&self, i: usize, key: InodeKey) {
        let (state, file) = (self.procs[i].as_ref(), self.files.get(&key));
        if let (Some(state), Some(tally)) = (state, file.and_then(|f| f.account.tally())) {
            tally.read_by(state.who);
        }
    }

    pub(super) fn count(&self, key: InodeKey, figure: Figure, bytes: u64) {
        match self.files.get(&key) {
            Some(file) => file.count(figure, bytes),
            None => self.header().total.figures.add(figure, bytes),
        }
    }

    /// The program read these bytes, or so we know by now.
    pub(super) fn seen(&mut self, key: InodeKey, offset: u64, len: u64) -> Arrival {
        let now = self.now_us();
        let Some(file) = self.files.get_mut(&key) else {
            return Arrival::Missing;
        };
        file.last_access = self.kernel.now();
        file.served.bytes += len;
        let len = len.min(file.size.saturating_sub(offset));
        if len == 0 {
            return Arrival::Present;
        }
        let pages = PageRange::from_bytes(offset, len);
        let a = file.view.access(pages, now);
        if let Some(place) = file.place
            && (offset..=offset + len).contains(&file.reach)
        {
            file.reach = offset + len;
            self.reaches.reached(place, file.reach, file.size);
        }
        // Bytes, not pages: a read of a few bytes is a hit of a few bytes.
        let share = |n| (u128::from(len) * u128::from(n) / u128::from(pages.len().max(1))) as u64;
        self.count(key, Figure::Hit, share(a.hit_pages));
        self.count(key, Figure::Late, share(a.late_pages));
        self.count(key, Figure::Miss, share(a.miss_pages));
        self.count(key, Figure::Used, a.first_use_pages * PAGE);
        if a.miss_pages > 0 {
            Arrival::Missing
        } else if a.late_pages > 0 {
            Arrival::Late
        } else {
            Arrival::Present
        }
    }

    /// Reads that were not told: pieces of `len` bytes that begin every `stride` bytes in `span`.
    pub(super) fn pass(
        &mut self,
        i: usize,
        key: InodeKey,
        span: std::ops::Range<u64>,
        stride: u64,
        len: u64,
    ) {
        if span.is_empty() || span.end - span.start > 1 << 40 || len == 0 {
            return;
        }
        self.reads_now(i, key);
        let span = span.start..span.end.min(self.files.get(&key).map_or(0, |f| f.size));
        let (mut reads, mut bytes) = (0, 0);
        if stride <= len {
            bytes = span.end.saturating_sub(span.start);
            reads = bytes.div_ceil(len);
            if bytes > 0 {
                self.seen(key, span.start, bytes);
            }
        } else {
            // Bounded: a hostile stride must not keep the service busy.
            for at in (span.start..span.end)
                .step_by(stride as usize)
                .take(MOST_PASSED)
            {
                self.seen(key, at, len);
                reads += 1;
                bytes = u64::saturating_add(bytes, len);
            }
        }
        self.has_read(i, reads, bytes);
    }

    /// Process `i` has made so many reads, of so many bytes together.
    pub(super) fn has_read(&mut self, i: usize, reads: u64, bytes: u64) {
        let Some(state) = &mut self.procs[i] else {
            return;
        };
        state.reads = state.reads.saturating_add(reads);
        state.bytes = state.bytes.saturating_add(bytes);
        if let Some(record) = self.shared.record(state.who) {
            record.reads.fetch_add(reads, Relaxed);
            record.bytes_read.fetch_add(bytes, Relaxed);
        }
    }

    /// The program has skipped these bytes: what was fetched of them is wasted, and no longer waited for.
    pub(super) fn pass_over(&mut self, key: InodeKey, bytes: &std::ops::Range<u64>) {
        let pages = PageRange::new(bytes.start.div_ceil(PAGE), bytes.end / PAGE);
        if pages.is_empty() || pages.len() > u64::from(u32::MAX) {
            return;
        }
        let now = self.now_us();
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let unused = file.view.count(pages).unused_pages;
        if unused > 0 {
            // What lies between two reads is there: it was asked for before what lies behind it.
            let _ = file.view.access(pages, now);
            self.count(key, Figure::Wasted, unused * PAGE);
        }
    }

    /// Reads that nobody told move a descriptor's place all the same: who reads slowly, with all of it foreseen, is silent for long.
    pub(super) fn notice_silent_reads(&mut self) {
        let now = self.kernel.now();
        for i in self.active.clone() {
            let slots = &self.shared.proc(i).slots;
            let descs = self.procs[i].iter_mut().flat_map(|p| p.descs.iter_mut());
            for (fd, desc) in descs {
                let Some(slot) = slots.get(usize::from(*fd)) else {
                    continue;
                };
                let last = slot.last.load(Relaxed);
                if last != desc.last && slot.generation.load(Relaxed) == desc.generation {
                    desc.last = last;
                    if let Some(file) = self.files.get_mut(&desc.key) {
                        file.last_access = now;
                    }
                }
            }
        }
    }

    /// SPEC CP10: under pressure, files that nobody has read for 30 s go first and whole; then the ranges of large
    /// files that were not touched for the longest time, but what is yet to be read of a file in use. Only what this program tree read or had
    /// fetched and nobody else uses, and only pages that are clean and unmapped: DONTNEED leaves all others alone.
    pub(super) fn reclaim(&mut self, target: u64) {
        let idle = self.inactive_after();
        let mut order: Vec<(Moment, InodeKey)> = self
            .files
            .values()
            .filter(|f| f.view.present_pages() > 0)
            .map(|f| (f.last_access, f.key))
            .collect();
        order.sort();
        let mut freed = 0;
        for (when, key) in order {
            if freed >= target {
                break;
            }
            let Some(view) = self.files.get(&key).map(|f| f.view.clone()) else {
                continue;
            };
            let (inactive, cold_before) = (self.kernel.since(when) >= idle, self.now_us());
            let cold_before = cold_before.saturating_sub(idle.as_micros() as u64);
            let ranges = view.oldest_ranges(if inactive { usize::MAX } else { 4 });
            let ranges: Vec<PageRange> = ranges
                .into_iter()
                .filter(|(touched, range)| {
                    inactive || *touched < cold_before && view.count(*range).unused_pages == 0
                })
                .map(|(_, range)| range)
                .collect();
            if ranges.is_empty() || inactive && self.others_read(key) || self.is_open_elsewhere(key)
            {
                continue;
            }
            for range in ranges {
                if inactive || freed < target {
                    freed += self.give_up(key, &view, range);
                }
            }
        }
    }

    /// A file that no program has open any more, by its name, for as long as it takes to drop pages of it: what a program of this run has read, or had
    /// fetched. Not where it shows that a file is open.
    fn open_briefly(&self, key: InodeKey) -> Option<Handle> {
        let file = self.files.get(&key).filter(|f| f.openers == 0)?;
        let shown = self.devices.get(&key.dev).is_none_or(|p| p.shows_opens);
        let watched = self.header().watched.load(Relaxed) != 0;
        if shown || watched || self.quiesce.is_quiesced() || self.untouchable.contains(&key) {
            return None;
        }
        self.kernel.open_briefly(&file.name, key)
    }

    /// Drops what the view has of a range of a file from the cache; how many bytes that were. What of it was not read yet was fetched in vain.
    fn give_up(&mut self, key: InodeKey, view: &FileView, range: PageRange) -> u64 {
        let handle = self.handle(key);
        let briefly = match handle {
            Some(_) => None,
            None => self.open_briefly(key),
        };
        let Some(handle) = handle.as_deref().or(briefly.as_ref()) else {
            return 0;
        };
        let mut missing = Vec::new();
        let examined = view.missing(range, HOLES, &mut missing);
        let ends = missing.iter().map(|gap| (gap.start, gap.end));
        let mut from = range.start;
        let mut freed = 0;
        for (end, next) in ends.chain([(examined, examined)]) {
            let held = PageRange::new(from, end);
            from = next;
            let bytes = held.start * PAGE..held.end * PAGE;
            if held.is_empty() || self.kernel.drop_range(handle, bytes).is_err() {
                continue;
            }
            let gone = view.evicted(held);
            self.count(key, Figure::Wasted, gone.unused_pages * PAGE);
            freed += gone.present_pages * PAGE;
        }
        freed
    }
}
