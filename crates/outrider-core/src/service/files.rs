//! Files: what is known of each, and of all together.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{ByteRange, DeviceId, InodeKey, PAGE};

use super::cache_users::Seen;
use super::hints::Hinted;
use super::hold::Hold;
use super::kernel::Kernel;
use super::random_reads::RandomReads;
use super::reach::{Progress, Reaches};
use super::resident::Warmth;
use super::served::Served;
use super::{FILES_KEPT, Service, VIEW_BYTES};
use crate::asked::Of;
use crate::clock::Moment;
use crate::config::{Network, RangeTree};
use crate::engine::Account;
use crate::map::{Keyed, Map};
use crate::shm::{self, Fate, Figure, Kind, MAX_FILES, lost};
use crate::source::credit::Credit;
use crate::tally::Tally;
use crate::view::{Evicted, FileView, Granularity, MAX_PAGES, PageRange, Unused};
use crate::walk::{Manner, Opened, Walker};

/// Files that are known.
pub(super) struct Files {
    known: Map<InodeKey, FileState>,
    /// What was prefetched of them and not used.
    unused: Arc<Unused>,
    /// Files with an entry of their own in the statistics.
    named: usize,
    /// With so many files it is looked which of them can be forgotten.
    many: usize,
    /// When it was looked how much memory all take.
    weighed: Moment,
    /// When those that are being read were counted.
    counted: Moment,
    /// Files that must never be opened: somebody has or wants a lease on them.
    untouchable: HashSet<InodeKey>,
    /// How far files are read from their beginning.
    reaches: Reaches,
}

impl Files {
    /// None yet, where others have named so many in the statistics before.
    pub(super) fn new(keyed: Keyed, now: Moment, named: usize) -> Files {
        Files {
            known: Map::with_hasher(keyed),
            unused: Arc::default(),
            named,
            many: FILES_KEPT,
            weighed: now,
            counted: now,
            untouchable: HashSet::new(),
            reaches: Reaches::default(),
        }
    }

    pub(super) fn get(&self, key: &InodeKey) -> Option<&FileState> {
        self.known.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &InodeKey) -> Option<&mut FileState> {
        self.known.get_mut(key)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &FileState> {
        self.known.values()
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut FileState> {
        self.known.values_mut()
    }

    /// Pages of all of them that were prefetched and not used.
    pub(super) fn unused_pages(&self) -> u64 {
        self.unused.pages()
    }

    /// How many are known.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether it is time to look which can be forgotten.
    pub(super) fn are_many(&self) -> bool {
        self.known.len() >= self.many
    }

    /// It was looked which can be forgotten; again with so many more.
    pub(super) fn were_forgotten(&mut self, more: usize) {
        self.many = self.known.len() + more;
    }

    /// When it was looked how much memory all take.
    pub(super) fn weighed(&mut self) -> &mut Moment {
        &mut self.weighed
    }

    /// When those that are being read were counted.
    pub(super) fn counted(&mut self) -> &mut Moment {
        &mut self.counted
    }

    /// Files that must never be opened.
    pub(super) fn untouchable(&self) -> &HashSet<InodeKey> {
        &self.untouchable
    }

    /// A file must never be opened.
    pub(super) fn leave(&mut self, key: InodeKey) {
        self.untouchable.insert(key);
    }

    /// A file is opened that nobody else has open: how far it is read is followed.
    pub(super) fn follow(&mut self, key: InodeKey) {
        if let Some(file) = self.known.get_mut(&key) {
            file.progress.begin(&mut self.reaches, &file.name);
        }
    }

    /// These bytes of a file were read.
    pub(super) fn reached(&mut self, key: InodeKey, offset: u64, len: u64) {
        if let Some(file) = self.known.get_mut(&key) {
            let (progress, size) = (&mut file.progress, file.size);
            progress.read(&mut self.reaches, offset, len, size);
        }
    }

    /// Up to which byte others of its kind would read a file on that was read from its beginning up to `end`, if they read on up to `ahead`.
    pub(super) fn reach(&self, key: InodeKey, end: u64, ahead: u64) -> Option<u64> {
        self.get(&key)?.progress.ahead(&self.reaches, end, ahead)
    }

    /// The same for a file that is opened, of which `ahead` bytes would be fetched.
    pub(super) fn reach_at_open(&self, key: InodeKey, ahead: u64) -> u64 {
        let file = self.get(&key);
        file.map_or(ahead, |f| f.progress.at_open(&self.reaches, ahead))
    }

    /// One descriptor or mapping less leads to a file. Whether none does now: then nothing is asked for any more.
    fn closed(&mut self, key: InodeKey) -> bool {
        let Some(file) = self.known.get_mut(&key) else {
            return false;
        };
        if !file.hold.closed() {
            return false;
        }
        file.served = Served::default();
        file.account.cancelled.store(true, Relaxed);
        file.progress.end(&mut self.reaches);
        true
    }

    fn remove(&mut self, key: InodeKey) -> Option<FileState> {
        let mut file = self.known.remove(&key)?;
        file.progress.end(&mut self.reaches);
        Some(file)
    }
}

/// A file that programs have open, or had.
pub(super) struct FileState {
    pub(super) key: InodeKey,
    pub(super) view: Arc<FileView>,
    pub(super) account: Arc<Account>,
    /// Bytes.
    size: u64,
    /// The device from which it was fetched last: of a file system on several disks the disk.
    device: DeviceId,
    /// Who has it open, and whether we do.
    pub(super) hold: Hold,
    /// Its name when it was first opened, to find it by when all descriptors are closed and a mapping is left.
    name: PathBuf,
    /// Its reads in no order.
    pub(super) random: RandomReads,
    /// What looking ahead in it may cost.
    pub(super) credit: Credit,
    /// What is left of hints at it.
    pub(super) hinted: Hinted,
    /// What became of it with its server, and with the cache.
    pub(super) served: Served,
    /// When a program read it last, or opened it.
    last_access: Moment,
    /// Whether others read it.
    pub(super) seen: Seen,
    /// Bytes of a request.
    chunk: u64,
    /// cachestat is refused for this file.
    blind: bool,
    /// When to look whether it can be left to the hooks.
    pub(super) warmth: Warmth,
    /// How far it is read from its beginning, since somebody has it open.
    progress: Progress,
    /// What its device takes for a request, µs, and for a byte of it, when something was last asked for.
    price: (f64, f64),
    /// The last read that is known of, bytes.
    last_read: ByteRange,
}

impl FileState {
    fn new(key: InodeKey, size: u64, view: FileView, account: Account, now: Moment) -> FileState {
        FileState {
            key,
            view: Arc::new(view),
            account: Arc::new(account),
            size,
            device: key.device(),
            hold: Hold::new(now),
            name: PathBuf::new(),
            random: RandomReads::new(),
            credit: Credit::default(),
            hinted: Hinted::default(),
            served: Served::default(),
            last_access: now,
            seen: Seen::default(),
            chunk: 0,
            blind: false,
            warmth: Warmth::new(now),
            progress: Progress::default(),
            price: (0.0, 0.0),
            last_read: 0..0,
        }
    }

    /// These bytes are read.
    pub(super) fn reads(&mut self, bytes: ByteRange) {
        self.last_read = bytes;
    }

    /// It is looked what of these pages is cached, and nothing else is known of them: near a reader the kernel, which reads so many bytes ahead, may have them on their way.
    pub(super) fn looked(&self, pages: PageRange, read_ahead: u64) {
        /// Runs of pages of which nothing is known.
        const RUNS: usize = 16;
        let Some(now) = self.account.now() else {
            return;
        };
        let mut asked = self.account.asked();
        asked.looked(pages, now);
        let last = &self.last_read;
        let near = 2 * read_ahead.max(last.end - last.start);
        let (start, end) = (
            last.start.saturating_sub(near),
            last.end.saturating_add(near),
        );
        let near = PageRange::from_bytes(start, end - start).intersect(pages);
        let mut unknown = Vec::new();
        self.view.missing(near, RUNS, &mut unknown);
        unknown.into_iter().for_each(|run| asked.doubt(run));
    }

    /// What its device takes for a request, µs, and for a byte of it, when something was last asked for.
    pub(super) fn price(&self) -> (f64, f64) {
        self.price
    }

    /// So much its device takes.
    pub(super) fn costs(&mut self, price: (f64, f64)) {
        self.price = price;
    }

    /// Bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// It has so many bytes.
    pub(super) fn set_size(&mut self, size: u64) {
        self.size = size;
    }

    /// The device from which it was fetched last: of a file system on several disks the disk.
    pub(super) fn device(&self) -> DeviceId {
        self.device
    }

    /// It is fetched from there.
    pub(super) fn set_device(&mut self, device: DeviceId) {
        self.device = device;
    }

    /// Its name when it was first opened; none, where that is not known.
    pub(super) fn name(&self) -> &Path {
        &self.name
    }

    /// Whether its name is known.
    pub(super) fn has_name(&self) -> bool {
        !self.name.as_os_str().is_empty()
    }

    /// Its name was found.
    pub(super) fn set_name(&mut self, name: PathBuf) {
        self.name = name;
    }

    /// Bytes that its name takes.
    pub(super) fn name_bytes(&self) -> usize {
        self.name.capacity()
    }

    /// When a program read it last, or opened it.
    pub(super) fn last_access(&self) -> Moment {
        self.last_access
    }

    /// A program reads it, or opens it.
    pub(super) fn touch(&mut self, now: Moment) {
        self.last_access = now;
    }

    /// Bytes of a request; 0 while it is not known on what it lies.
    pub(super) fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Requests of it have so many bytes.
    pub(super) fn set_chunk(&mut self, chunk: u64) {
        self.chunk = chunk;
    }

    /// Whether the kernel refuses to tell what of it is cached.
    pub(super) fn is_blind(&self) -> bool {
        self.blind
    }

    /// The kernel refuses to tell what of it is cached.
    pub(super) fn set_blind(&mut self) {
        self.blind = true;
    }

    /// These pages are gone, or nobody comes to them any more: what was fetched of them and not read counts as that, and nothing is believed of them.
    pub(super) fn lose(&self, pages: PageRange, fate: Fate) -> Evicted {
        let whose = self.account.asked().gone(&self.view, pages);
        let gone = self.view.evicted(pages);
        self.has_lost(&whose, gone.unused_pages, fate);
        gone
    }

    /// So many pages were fetched and not read, of which these are known to be somebody's.
    pub(super) fn has_lost(&self, whose: &[(Of, u64)], pages: u64, fate: Fate) {
        self.count(
            match fate {
                Fate::Evicted => Figure::Evicted,
                _ => Figure::Wasted,
            },
            pages * PAGE,
        );
        let Some(tally) = self.account.tally() else {
            return;
        };
        let mut rest = pages;
        for (of, pages) in whose {
            let pages = rest.min(*pages);
            rest -= pages;
            tally.came_to(of, fate, pages * PAGE);
        }
        if let Some(of) = self.account.asked().latest() {
            tally.came_to(of, fate, rest * PAGE);
        }
    }

    /// What was fetched of it and not read is wasted.
    pub(super) fn ends(&self) {
        let all = PageRange::new(0, MAX_PAGES);
        let whose = self.account.asked().gone(&self.view, all);
        self.has_lost(&whose, self.view.unused_pages(), Fate::Wasted);
    }

    /// What becomes of it counts in all, for the file, and for the process that has it.
    pub(super) fn count(&self, figure: Figure, bytes: u64) {
        if let Some(tally) = self.account.tally() {
            tally.add(figure, bytes);
        }
    }
}

impl<K: Kernel> Service<K> {
    /// The state of a file, new if it was not known.
    pub(super) fn take_in(&mut self, key: InodeKey, size: u64) -> &mut FileState {
        let range_tree = self.config.view.range_tree;
        let all = self.files.unused.clone();
        let view = || match range_tree {
            RangeTree::Page => FileView::new(Granularity::Page, VIEW_BYTES),
            RangeTree::Coarse => FileView::new(Granularity::Coarse, VIEW_BYTES),
            RangeTree::Off => FileView::new(Granularity::Page, VIEW_BYTES).with_one_lock(),
        };
        let now = self.kernel.now();
        self.files.known.entry(key).or_insert_with(|| {
            let account = Account::with(Tally::new(self.shared.clone()));
            FileState::new(key, size, view().among(all), account, now)
        })
    }

    /// Notes a file's name, and gives it an entry of its own in the statistics.
    pub(super) fn introduce(&mut self, key: InodeKey) {
        let files = &mut self.files;
        let Some(file) = files.known.get_mut(&key) else {
            return;
        };
        if !file.has_name() {
            let Some(handle) = file.hold.held() else {
                return;
            };
            file.name = self.kernel.name(handle);
        }
        let tally = file.account.tally().filter(|t| !t.has_stat());
        if let Some(tally) = tally.filter(|_| files.named < MAX_FILES) {
            let name = file.name.as_os_str().as_bytes();
            self.shared.name(files.named, name, [key.dev, key.ino]);
            tally.set_stat(files.named);
            files.named += 1;
        }
    }

    /// A process has opened a file, or visits or lists a directory, under number `fd`, perhaps one of many; the lower half of `extra` is the generation of the
    /// descriptor's state.
    pub(super) fn entered(&mut self, i: usize, kind: Kind, fd: u16, extra: u64, key: InodeKey) {
        if !self.walks {
            return;
        }
        let now = self.kernel.now();
        let Some((pid, who)) = self.processes.get_mut(i).map(|p| {
            p.walks(now);
            (p.pid(), p.who())
        }) else {
            return;
        };
        let proc = self.shared.proc(i);
        let all_files = proc.walking.load(Relaxed) & shm::ALL_FILES != 0;
        if all_files || proc.visiting.load(Relaxed) != 0 {
            // Somebody goes ahead of it.
            self.turns.asks(now);
        }
        if self.walker.is_none() {
            let (shared, ledger) = (self.shared.clone(), self.memory.ledger().clone());
            let dense = &self.config.dense;
            let manner = Manner {
                small: self.config.files.min_size.0,
                share: if dense.enabled { dense.share } else { 0.0 },
                servers: self.config.files.network == Network::Auto,
                excluded: self.excluded.clone(),
                explain: self.explain.clone(),
            };
            self.walker = Walker::start(shared, &self.engine, ledger, manner);
            match &self.walker {
                Some(walker) => {
                    let untouchable = self.files.untouchable.iter();
                    untouchable.for_each(|key| walker.leave(*key));
                    if self.quiesce.is_quiesced() {
                        drop(walker.let_go());
                    }
                }
                None => self.header().lose(lost::THREADS),
            }
            self.allow_walks();
        }
        if let Some(walker) = &mut self.walker {
            let opened = Opened {
                proc: i,
                pid,
                who,
                fd,
                generation: extra as u32,
                key,
                cold: extra & shm::COLD != 0,
                size: (extra >> shm::PAGES_SHIFT) * PAGE,
            };
            match kind {
                Kind::Visit => walker.visited(opened),
                Kind::Listing => walker.listing(opened, extra >> 32 << 32),
                Kind::Attributes => walker.attributes(i),
                _ => walker.opened(&self.engine, opened),
            }
        }
    }

    /// Tells whether files may be opened that no program has open.
    pub(super) fn allow_walks(&self) {
        let watched = self.header().watched.load(Relaxed) != 0;
        let memory = self.memory.is_allowed() && self.memory.total() > 0;
        if let Some(walker) = &self.walker {
            walker.allow(memory && self.walks && !watched);
        }
        if let Some(remember) = &self.remember {
            remember.allow(memory && !watched);
        }
    }

    /// One descriptor or mapping less.
    pub(super) fn unlink(&mut self, key: InodeKey) {
        if self.files.closed(key) {
            self.reading.closed();
        }
    }

    /// Forgets a file altogether; what was fetched and not used is wasted.
    pub(super) fn forget(&mut self, key: InodeKey) {
        if let Some(file) = self.files.remove(key) {
            self.forget_watch(&file.seen);
            file.ends();
        }
    }
}
