//! Files: our hold on them, what is known of their pages, and their figures.

use std::os::unix::ffi::OsStrExt;

use super::*;

/// Silent strided reads that are accounted for one by one.
const MOST_PASSED: usize = 65536;
/// Gaps in what is held of a range up to which it is given up at once.
const HOLES: usize = 1024;

impl FileState {
    /// What becomes of it counts in all, for the file, and for the process that has it.
    pub(super) fn count(&self, figure: Figure, bytes: u64) {
        if let Some(tally) = self.account.tally() {
            tally.add(figure, bytes);
        }
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

/// Files up to which their streams are counted, each of which is granted a minimum.
const FEW_FILES: usize = 64;

impl Service {
    /// The state of a file, new if it was not known.
    pub(super) fn take_in(&mut self, key: FileKey, size: u64) -> &mut FileState {
        let range_tree = self.config.view.range_tree;
        let view = || match range_tree {
            RangeTree::Page => FileView::new(Granularity::Page, VIEW_BYTES),
            RangeTree::Coarse => FileView::new(Granularity::Coarse, VIEW_BYTES),
            RangeTree::Off => FileView::new(Granularity::Page, VIEW_BYTES).with_one_lock(),
        };
        let now = Instant::now();
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
            last_access: now,
            seen: Seen::default(),
            chunk: 0,
            blind: false,
            hot: 0,
            samples: 0,
            warmth: Warmth::new(now),
            reach: 0,
            place: None,
        })
    }

    /// A descriptor of our own for a file.
    pub(super) fn handle(&mut self, key: FileKey) -> Option<Arc<Handle>> {
        if self.header().watched.load(Relaxed) != 0 || self.untouchable.contains(&key) {
            return None;
        }
        let shared = self.shared.clone();
        let shows_opens = self.devices.get(&key.dev).is_none_or(|p| p.shows_opens);
        let file = self.files.get_mut(&key)?;
        file.handle_used = Instant::now();
        if let Some(handle) = &file.handle {
            return Some(handle.clone());
        }
        if self.away.is_away() {
            return None;
        }
        let source = file.source;
        let asks = match source {
            Some((i, ..)) if self.stands(i) => true,
            _ => self.is_asked_for(key),
        };
        if !asks {
            return None;
        }
        let file = self.files.get_mut(&key)?;
        let through = source.and_then(|(i, generation, wanted)| {
            let slot = shared.proc(i).slots.get(usize::from(wanted.fd))?;
            fetch::fetch(wanted, slot, generation, shows_opens, shared.header())
        });
        let (fd, size) = through.or_else(|| fetch::by_name(&file.name, key.dev, key.ino))?;
        file.size = size;
        let handle = Arc::new(Handle::new(fd));
        file.handle = Some(handle.clone());
        Some(handle)
    }

    /// Whether some process that has just the rights of this one has the file open or mapped.
    fn is_asked_for(&self, key: FileKey) -> bool {
        let asks = |i: &usize| {
            self.procs[*i].as_ref().is_some_and(|p| {
                let mapped = p.mapped.iter().any(|m| m.file() == (key.dev, key.ino));
                mapped || p.descs.values().any(|d| d.key == key)
            })
        };
        let mut active = self.active.iter().filter(|i| asks(i));
        active.any(|i| self.stands(*i))
    }

    /// The same for a look: a file is held for its reads, not for that.
    pub(super) fn handle_for_a_look(&mut self, key: FileKey) -> Option<Arc<Handle>> {
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
    pub(super) fn introduce(&mut self, key: FileKey) {
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        if file.name.as_os_str().is_empty() {
            let Some(handle) = &file.handle else { return };
            file.name = fetch::name(handle.fd());
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
        if self.last_let_go.elapsed() >= HOLD / 4 {
            self.count_files();
        }
    }

    /// Counts the files that are being read, and lets go of the others.
    pub(super) fn count_files(&mut self) {
        self.last_let_go = Instant::now();
        let (mut busy, mut held) = (Vec::new(), 0);
        for file in self.files.values_mut() {
            if file.handle_used.elapsed() >= HOLD {
                file.handle = None;
            } else if file.openers > 0 {
                busy.push(file.key);
                held += u64::from(file.handle.is_some());
            }
        }
        self.busy = busy.len().max(1) as u64;
        let procs = self.active.iter().filter_map(|i| self.procs[*i].as_ref());
        let descs = procs.flat_map(|p| p.descs.values());
        // Of many files there are enough.
        let read = descs.filter(|d| busy.len() <= FEW_FILES && busy.contains(&d.key));
        self.streams = read.map(|d| d.detector.reading().count() as u64).sum();
        self.holding = held > 0;
        self.look_at_crowd(busy.len() as u64);
        let recent = self.last_event.elapsed() < RECENT;
        let unhurried = match self.crowd.quiet() {
            Some(true) => shm::UNTOLD,
            _ if recent && !busy.is_empty() && busy.iter().all(|key| self.crowded(*key)) => {
                shm::UNHURRIED
            }
            _ => 0,
        };
        self.unhurried = unhurried;
        for i in &self.active {
            self.shared.proc(*i).unhurried.store(unhurried, Relaxed);
        }
    }

    /// A process has opened a file, or visits or lists a directory, under number `fd`, perhaps one of many; the lower half of `extra` is the generation of the
    /// descriptor's state.
    pub(super) fn entered(&mut self, i: usize, kind: Kind, fd: u16, extra: u64, key: FileKey) {
        if !self.walks {
            return;
        }
        let Some((pid, who)) = self.procs[i].as_ref().map(|p| (p.pid, p.who)) else {
            return;
        };
        if self.walker.is_none() {
            self.walker = Walker::start(self.shared.clone(), walk::Settings::of(&self.config));
            match &self.walker {
                Some(walker) => {
                    self.untouchable
                        .iter()
                        .for_each(|key| walker.leave((key.dev, key.ino)));
                    if self.away.is_away() {
                        drop(walker.let_go());
                    }
                }
                None => self.header().lose(lost::THREADS),
            }
            self.limit_walker();
        }
        if let Some(walker) = &self.walker {
            let opened = Opened {
                proc: i,
                pid,
                who,
                fd,
                generation: extra as u32,
                key: (key.dev, key.ino),
            };
            match kind {
                Kind::Visit => walker.visited(opened),
                Kind::Listing => walker.listing(opened, extra >> 32 << 32),
                Kind::Attributes => walker.attributes(i),
                _ => walker.opened(opened),
            }
        }
    }

    /// Tells how much may be fetched of files that nobody has opened yet.
    pub(super) fn limit_walker(&self) {
        if let Some(walker) = &self.walker {
            let watched = self.header().watched.load(Relaxed) != 0;
            let allowed = self.grant.allowed && self.walks && !watched;
            walker.limit(if allowed { self.grant.total / 4 } else { 0 });
        }
    }

    /// One descriptor or mapping less.
    pub(super) fn unlink(&mut self, key: FileKey) {
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        file.openers = file.openers.saturating_sub(1);
        if file.openers > 0 {
            return;
        }
        self.busy = self.busy.saturating_sub(1).max(1);
        file.handle = None;
        file.account.cancelled.store(true, Relaxed);
        file.source = None;
        file.reach = 0;
        if let Some(place) = file.place.take() {
            self.reaches.ended(place);
        }
    }

    /// Forgets a file altogether; what was fetched and not used is wasted.
    pub(super) fn forget(&mut self, key: FileKey) {
        if let Some(file) = self.files.remove(&key) {
            self.others.forget(&file.seen);
            if let Some(place) = file.place {
                self.reaches.ended(place);
            }
            file.count(Figure::Wasted, file.view.unused_pages() * PAGE);
        }
    }

    pub(super) fn lost_pages(&mut self, key: FileKey, range: PageRange) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let gone = file.view.evicted(range);
        self.count(key, Figure::Evicted, gone.unused_pages * PAGE);
    }

    /// Process `i` opens or reads a file.
    pub(super) fn reads_now(&self, i: usize, key: FileKey) {
        let (state, file) = (self.procs[i].as_ref(), self.files.get(&key));
        if let (Some(state), Some(tally)) = (state, file.and_then(|f| f.account.tally())) {
            tally.read_by(state.who);
        }
    }

    pub(super) fn count(&self, key: FileKey, figure: Figure, bytes: u64) {
        match self.files.get(&key) {
            Some(file) => file.count(figure, bytes),
            None => self.header().total.figures.add(figure, bytes),
        }
    }

    /// The program read these bytes, or so we know by now.
    pub(super) fn seen(&mut self, key: FileKey, offset: u64, len: u64) -> Arrival {
        let now = self.now_us();
        let Some(file) = self.files.get_mut(&key) else {
            return Arrival::Missing;
        };
        file.last_access = Instant::now();
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
        key: FileKey,
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
    pub(super) fn pass_over(&mut self, key: FileKey, bytes: &std::ops::Range<u64>) {
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
        let now = Instant::now();
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
        let mut order: Vec<(Instant, FileKey)> = self
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
            let (inactive, cold_before) = (when.elapsed() >= idle, self.now_us());
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

    /// Drops what the view has of a range of a file from the cache; how many bytes that were. What of it was not read yet was fetched in vain.
    fn give_up(&mut self, key: FileKey, view: &FileView, range: PageRange) -> u64 {
        let Some(handle) = self.handle(key) else {
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
            if held.is_empty() || cache::drop_range(handle.fd(), bytes).is_err() {
                continue;
            }
            let gone = view.evicted(held);
            self.count(key, Figure::Wasted, gone.unused_pages * PAGE);
            freed += gone.present_pages * PAGE;
        }
        freed
    }
}
