//! Fetching what a profile has, from the start of a run on.
//!
//! A thread of its own takes from the [`Course`] what is wanted next, as an [`Intent`], and has the engine's lane look it up, list it or bring its pages, as far as
//! they are missing. It hears what came of that, and what was needed.
//!
//! Nothing is opened while the service holds nothing open (before umount(2), for programs that watch), and nothing after the end of the run.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::hash::Hash;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use outrider_sys::cache;
use outrider_sys::raw::blocks_read;
use outrider_sys::units::{ByteRange, DeviceId, InodeKey, PAGE, PageRange, pages_of};

use super::course::{Books, Came, Course, cut};
use super::model::{Need, Outcome, Profile, WHOLE};
use super::place::{Attributes, Found, Places};
use super::terms::Terms;
use crate::asked;
use crate::clock::{Clock, Monotonic};
use crate::engine::{self, Bench, Call, Client, Engine, Errand, Handle, Lane, Patience};
use crate::exclude::Excluded;
use crate::explain::{Asking, Explain, Subject};
use crate::intent::{Intent, Target, Wanted};
use crate::ledger::{Holder, Ledger};
use crate::lock;
use crate::residency;
use crate::shared::{Note, Shared};
use crate::shm::{Fate, Figure, Origin};
use crate::tree::listing::Listing;

/// Whom the lane's calls are made for: nobody's entry.
const OWNER: usize = usize::MAX;
/// So long after the last was fetched what is still unused is not held for the job any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Ranges of large files of which is kept that they were cached, and as many that were brought, 16 bytes each: one of four pages of 16 GiB.
const RANGES: usize = 1 << 20;
/// Between two looks at memory and credit while neither lets it go on.
const PAUSE: Duration = Duration::from_millis(2);

/// Figures for the report.
#[derive(Default)]
pub struct Figures {
    /// Bytes that were asked for.
    pub fetched: AtomicU64,
    /// Entries that were looked up, listed or brought.
    pub entries: AtomicU64,
    /// Those that are gone, or left alone.
    pub lost: AtomicU64,
    /// Of what was fetched, bytes of entries that were needed; a page for those that were only looked up.
    pub used: AtomicU64,
    /// What was asked for, a page for what was only looked up.
    pub counted: AtomicU64,
}

/// What the service and the lane tell.
enum Message {
    /// Entries were needed.
    Needed(Vec<usize>),
    /// An errand is done.
    Done(Wanted, Came),
    /// A file has so many pages that are needed.
    Pages(usize, u64),
    End,
}

/// Pages of a large file that were cached when it was opened ahead, or were fetched, ascending.
pub type Before = Vec<PageRange>;

/// What is kept of the pages of large files.
struct Kept<K> {
    of: HashMap<K, Before>,
    /// Ranges of all.
    ranges: usize,
}

impl<K> Default for Kept<K> {
    fn default() -> Kept<K> {
        Kept {
            of: HashMap::new(),
            ranges: 0,
        }
    }
}

impl<K: Eq + Hash> Kept<K> {
    /// These are the pages of a file of which nothing is kept yet, if there is room for them.
    fn begin(&mut self, file: K, pages: Vec<PageRange>) {
        if !self.of.contains_key(&file) {
            self.add(file, pages);
        }
    }

    /// Adds pages of a file, as far as there is room for them.
    fn add(&mut self, file: K, pages: Vec<PageRange>) {
        if self.ranges + pages.len() > RANGES {
            return;
        }
        let of = self.of.entry(file).or_default();
        self.ranges -= of.len();
        of.extend(pages);
        of.sort_unstable_by_key(|r| r.start);
        *of = super::model::join(std::mem::take(of).into_iter(), 0);
        self.ranges += of.len();
    }
}

struct Common {
    shared: Arc<Shared>,
    terms: Arc<Terms>,
    ended: AtomicBool,
    /// Something is left to be fetched.
    fetching: AtomicBool,
    /// It matters what is needed: something is left to be fetched, or was and isn't needed yet.
    heeds: AtomicBool,
    /// A device was seen to have a head.
    seeks: AtomicBool,
    profile: Arc<Profile>,
    places: Arc<Places>,
    figures: Arc<Figures>,
    /// What came of each entry.
    books: Arc<Books>,
    /// What was cached of large files, by the numbers of entries.
    before: Mutex<Kept<usize>>,
    /// Pages of large files that were brought and have come.
    brought: Mutex<Kept<InodeKey>>,
    /// What was found of entries that were looked up, by their numbers.
    found: Mutex<HashMap<usize, Attributes>>,
    /// Below which nothing is opened.
    excluded: Excluded,
    explain: Arc<Explain>,
    tell: Mutex<Sender<Message>>,
}

impl Client for Common {
    fn is_held_back(&self) -> bool {
        self.terms.is_held_back() || !self.terms.is_allowed() || self.ended.load(SeqCst)
    }
    fn permits(&self, _: usize) -> bool {
        self.shared.header().watched.load(Relaxed) == 0 && !self.is_held_back()
    }
    fn is_untouchable(&self, file: InodeKey) -> bool {
        self.terms.is_untouchable(file)
    }
    fn life(&self, _: usize) -> Option<u32> {
        None
    }
    fn note(&self, _: usize, _: &OsStr) -> Option<Box<dyn Send>> {
        Some(Box::new(Note::new(self.shared.clone(), None, false)?))
    }
    fn may_hold(&self, _: usize, _: Option<u32>) -> bool {
        !self.is_held_back()
    }
    fn done(&self, _: usize, _: Vec<engine::Found>) {}
}

impl Common {
    fn tell(&self, message: Message) {
        let _ = lock(&self.tell).send(message);
    }

    /// What an entry names, if it may be opened.
    fn find(&self, entry: usize) -> Option<Found> {
        let found = self.places.find(&self.profile.entries.get(entry)?.path);
        let found = found.ok().filter(|found| !self.is_untouchable(found.key()));
        match &found {
            None => drop(self.figures.lost.fetch_add(1, Relaxed)),
            Some(found) => drop(lock(&self.found).insert(entry, found.st.into())),
        }
        found
    }
}

struct Task {
    common: Arc<Common>,
    device: DeviceId,
    wanted: Wanted,
    /// It is a part of a sweep.
    sweep: bool,
    came: RefCell<Came>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("what a profile has")
    }
}

impl Errand for Task {
    fn device(&self) -> DeviceId {
        self.device
    }

    fn is_short(&self) -> bool {
        let entries = &self.common.profile.entries;
        let small = |i: usize| entries.get(i).is_some_and(|entry| entry.size < WHOLE);
        matches!(self.wanted, Wanted::Pages(i, _) if small(i)) && !self.sweep
    }

    fn go(&self, bench: &Bench<'_>) {
        let before = blocks_read();
        let mut came = Came::default();
        match &self.wanted {
            _ if !bench.permits() => {}
            Wanted::Names(entries) => entries.iter().for_each(|i| self.look_up(*i)),
            Wanted::Places(entries) => {
                came.places = entries.iter().filter_map(|i| self.place(*i)).collect();
            }
            Wanted::Pages(entry, pages) => {
                came.bytes = self.bring(bench, *entry, pages.clone()).unwrap_or(0);
            }
            Wanted::Probe(entries) => came.cold = entries.iter().any(|i| self.is_cold(*i)),
        }
        came.cold |= came.bytes > 0 || blocks_read() != before;
        self.common.figures.fetched.fetch_add(came.bytes, Relaxed);
        self.came.replace(came);
    }
}

impl Drop for Task {
    /// Done or dropped: whoever counts is told.
    fn drop(&mut self) {
        let wanted = std::mem::replace(&mut self.wanted, Wanted::Names(Vec::new()));
        let done = Message::Done(wanted, self.came.take());
        self.common.tell(done);
    }
}

impl Task {
    /// Has the inode of an entry read, and the names in a directory.
    fn look_up(&self, i: usize) {
        let Some(found) = self.common.find(i) else {
            return;
        };
        self.common.figures.entries.fetch_add(1, Relaxed);
        let entry = &self.common.profile.entries[i];
        if entry.need == Need::Listing
            && found.is_directory()
            && let Some(dir) = found.open()
        {
            let mut room = vec![0; 32 << 10];
            let mut listing = Listing::new(std::os::fd::AsRawFd::as_raw_fd(&dir), &mut room);
            // As many as a listing has: the kernel reads the directory's blocks.
            while let Ok(Some(_)) = listing.next_record() {
                if self.common.is_held_back() {
                    break;
                }
            }
        }
    }

    /// Where the first needed page of a file lies on its device.
    fn place(&self, i: usize) -> Option<(usize, u64)> {
        let found = self.common.find(i).filter(Found::is_regular)?;
        let pages = self.common.profile.entries[i].pages(found.size());
        let first = pages.first()?.start * PAGE;
        let handle = Handle::new(found.open()?);
        let place = handle.placement().addresses(&(first..first + 1));
        Some((i, place.map_or(0, |at| at.start)))
    }

    /// Whether something of an entry is not cached.
    fn is_cold(&self, i: usize) -> bool {
        let before = blocks_read();
        let Some(found) = self.common.find(i) else {
            return false;
        };
        let pages = self.common.profile.entries[i].pages(found.size());
        let file = found.is_regular().then(|| found.open()).flatten();
        let of = pages.first().zip(pages.last());
        let missing = file.zip(of).is_some_and(|(file, (first, last))| {
            let span = PageRange::new(first.start, last.end);
            if is_cached(&file, &span) {
                return false;
            }
            let missing = residency::missing(file.as_fd(), span);
            missing.is_some_and(|missing| !intersect(&pages, &missing).is_empty())
        });
        missing || blocks_read() != before
    }

    /// Brings what is missing of some of the pages that are needed of a file.
    fn bring(&self, bench: &Bench<'_>, i: usize, part: Range<u64>) -> Option<u64> {
        let found = bench.find(|| self.common.find(i));
        let found = found.filter(Found::is_regular)?;
        let all = self.common.profile.entries[i].pages(found.size());
        if part.start == 0 {
            let pages = all.iter().map(PageRange::len).sum();
            self.common.tell(Message::Pages(i, pages));
        }
        let wanted = cut(&all, part.clone());
        let (first, last) = (wanted.first()?.start, wanted.last()?.end);
        let (size, file) = (found.size(), found.open()?);
        if part.start == 0 {
            self.common.figures.entries.fetch_add(1, Relaxed);
        }
        let span = PageRange::new(first, last);
        let cached = is_cached(&file, &span);
        if part.start == 0 && size >= WHOLE {
            self.remember_cached(i, &file, size, all);
        }
        if cached {
            return Some(0);
        }
        let ranges = match residency::missing(file.as_fd(), span) {
            Some(missing) => intersect(&wanted, &missing),
            None => wanted,
        };
        if ranges.is_empty() {
            return Some(0);
        }
        let bytes: Vec<ByteRange> = (ranges.iter())
            .map(|r| r.start * PAGE..(r.end * PAGE).min(size))
            .collect();
        let all: u64 = bytes.iter().map(|r| r.end - r.start).sum();
        let patience = match self.sweep {
            true => Patience::Sweep,
            // What of large files has come is told.
            false if size >= WHOLE => Patience::Wait,
            false => Patience::Leave,
        };
        let came = bench.bring(|| Some(file), &bytes, patience);
        if size >= WHOLE && came == Some(all) {
            lock(&self.common.brought).add(found.key(), ranges);
        }
        came
    }
}

impl Task {
    /// Notes what of a large file is cached, or will be as it is `wanted`.
    fn remember_cached(&self, i: usize, file: &OwnedFd, size: u64, wanted: Vec<PageRange>) {
        let end = pages_of(size);
        let Some(missing) = residency::missing(file.as_fd(), PageRange::new(0, end)) else {
            return;
        };
        let mut pages = complement(&missing, end);
        pages.extend(wanted);
        pages.sort_unstable_by_key(|r| r.start);
        let pages = super::model::join(pages.into_iter(), 0);
        lock(&self.common.before).begin(i, pages);
    }
}

/// Whether the kernel says that all of these pages are cached.
fn is_cached(file: &OwnedFd, span: &PageRange) -> bool {
    let counted = cache::counted(file.as_fd(), span.bytes());
    counted.is_ok_and(|stat| stat.cached >= span.len())
}

/// What is in both, which ascend.
pub fn intersect(a: &[PageRange], b: &[PageRange]) -> Vec<PageRange> {
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let both = PageRange::new(x.start.max(y.start), x.end.min(y.end));
        if both.start < both.end {
            out.push(both);
        }
        match x.end < y.end {
            true => i += 1,
            false => j += 1,
        }
    }
    out
}

/// Pages below `end` that are not in `ranges`, which ascend.
pub(super) fn complement(ranges: &[PageRange], end: u64) -> Vec<PageRange> {
    let mut at = 0;
    let mut out = Vec::new();
    for range in ranges.iter().chain([&PageRange::new(end, end)]) {
        if at < range.start.min(end) {
            out.push(PageRange::new(at, range.start.min(end)));
        }
        at = at.max(range.end);
    }
    out
}

/// The service's end.
pub struct Replay {
    common: Arc<Common>,
    lane: Lane,
    figures: Arc<Figures>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Replay {
    /// Starts the thread that goes through a profile. `None` if there is none to be had.
    pub fn start(
        shared: Arc<Shared>,
        engine: &Engine,
        ledger: Arc<Ledger>,
        profile: Arc<Profile>,
        (places, terms): (Arc<Places>, Arc<Terms>),
        (excluded, explain): (Excluded, Arc<Explain>),
    ) -> Option<Replay> {
        let (tell, told) = channel();
        let figures = Arc::<Figures>::default();
        let course = Course::new(profile.clone(), ledger.allowance(Holder::Remembered));
        let common = Arc::new(Common {
            books: course.books(),
            excluded,
            explain,
            shared,
            terms,
            ended: AtomicBool::new(false),
            fetching: AtomicBool::new(true),
            heeds: AtomicBool::new(true),
            seeks: AtomicBool::new(profile.seeks),
            profile,
            places,
            figures: figures.clone(),
            before: Mutex::default(),
            brought: Mutex::default(),
            found: Mutex::default(),
            tell: Mutex::new(tell),
        });
        let lane = engine.lane_apart(common.clone());
        let guide = Guide {
            common: common.clone(),
            lane: lane.clone(),
            ledger,
            course,
            clock: Monotonic::begin(),
            outcomes: HashMap::new(),
        };
        let thread = std::thread::Builder::new().name("outrider-replay".into());
        let thread = thread.spawn(move || guide.run(&told)).ok()?;
        Some(Replay {
            common,
            lane,
            figures,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Entries were needed.
    pub fn needed(&self, entries: Vec<usize>) {
        match self.heeds() {
            true => self.common.tell(Message::Needed(entries)),
            false => {
                for i in entries {
                    self.common.books.set_needed(i);
                }
            }
        }
    }

    /// Whether it matters now what is needed, or is only counted.
    pub fn heeds(&self) -> bool {
        self.common.heeds.load(Relaxed)
    }

    /// Begins to let go of everything: the terms say already that nothing may be opened.
    pub fn let_go(&self) {
        self.lane.let_go(None);
    }

    /// Whether something is left to be fetched.
    pub fn is_fetching(&self) -> bool {
        self.common.fetching.load(Relaxed)
    }

    /// Whether nothing is open.
    pub fn is_idle(&self) -> bool {
        self.lane.is_idle()
    }

    /// Nothing is fetched any more, and all that was told is counted: the thread waits for nobody.
    pub fn end(&self) {
        self.common.ended.store(true, SeqCst);
        self.lane.cancel_all();
        self.lane.let_go(None);
        self.common.tell(Message::End);
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }

    /// Whether a device was seen to have a head, now or before.
    pub fn seeks(&self) -> bool {
        self.common.seeks.load(Relaxed)
    }

    /// What was cached or fetched of entries.
    pub fn before(&self) -> HashMap<usize, Before> {
        lock(&self.common.before).of.clone()
    }

    /// How many of these pages of a large file were brought and have come.
    pub fn brought(&self, file: InodeKey, pages: PageRange) -> u64 {
        let brought = lock(&self.common.brought);
        let of = brought.of.get(&file).map(|of| intersect(of, &[pages]));
        of.iter().flatten().map(PageRange::len).sum()
    }

    /// What was found of entries that were looked up.
    pub fn found(&self) -> HashMap<usize, Attributes> {
        std::mem::take(&mut lock(&self.common.found))
    }

    /// Figures so far.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// What it came to, for a run that needed these entries.
    pub fn outcome(&self, needed: impl Iterator<Item = usize>) -> Outcome {
        let common = &self.common;
        let mut outcome = Outcome::default();
        for i in needed {
            common.books.set_needed(i);
        }
        let sum = common.books.sum();
        (outcome.fetched, outcome.used) = sum.counted;
        common.figures.counted.store(sum.counted.0, Relaxed);
        common.figures.used.store(sum.counted.1, Relaxed);
        // What was only seen at the end was not told before.
        let header = common.shared.header();
        let of = &header.sources[Origin::Remembered as usize];
        let (fetched, used) = sum.fetched;
        of[Fate::Used as usize].store(used, Relaxed);
        of[Fate::Late as usize].store(sum.late, Relaxed);
        of[Fate::Wasted as usize].store(fetched - used, Relaxed);
        header.total.figures.add(Figure::Used, used);
        header.total.figures.add(Figure::Wasted, fetched - used);
        outcome
    }
}

/// The thread.
struct Guide {
    common: Arc<Common>,
    lane: Lane,
    ledger: Arc<Ledger>,
    course: Course,
    clock: Monotonic,
    /// Where it is counted what comes of entries, if anybody wants to know.
    outcomes: HashMap<usize, Arc<asked::Outcome>>,
}

impl Guide {
    fn run(mut self, told: &Receiver<Message>) {
        let common = self.common.clone();
        if !common.excluded.is_empty() {
            let entries = &common.profile.entries;
            let left = |i: usize| common.excluded.holds(&entries[i].path);
            let left = self.course.leave(left) as u64;
            common.figures.lost.fetch_add(left, Relaxed);
        }
        let _ = self.go(told);
        self.ledger.hold(Holder::Remembered, 0);
        for (i, outcome) in self.outcomes.drain() {
            let books = &self.common.books;
            let left = books.fetched(i).saturating_sub(outcome.get(Fate::Used));
            outcome.add(Fate::Wasted, left);
        }
    }

    /// Until all is fetched, and what of it is unused is not held for the job any more. `None`: the run is over.
    fn go(&mut self, told: &Receiver<Message>) -> Option<()> {
        while !self.course.is_over() {
            self.hear_all(told)?;
            self.ask();
            if !self.hear(told, PAUSE)? {
                self.course.waits();
            }
        }
        self.common.fetching.store(false, Relaxed);
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let fetched = self.common.figures.fetched.load(Relaxed) > 0;
            let held = match fetched && !left.is_zero() {
                true => self.course.unused(),
                false => 0,
            };
            self.ledger.hold(Holder::Remembered, held);
            if !fetched || self.course.unused() == 0 {
                // Nothing is there any more that was fetched and may be needed.
                self.common.heeds.store(false, Relaxed);
            }
            self.hear(told, left.max(Duration::from_millis(50)))?;
        }
    }

    /// Asks for all that may be asked for now.
    fn ask(&mut self) {
        while !self.common.is_held_back() {
            let allowance = self.ledger.allowance(Holder::Remembered);
            let Some(wanted) = self.course.next(allowance) else {
                return;
            };
            self.ledger.hold(Holder::Remembered, self.course.unused());
            self.issue(Intent::of_profile(wanted));
        }
    }

    /// Takes what the profile wants: the lane is asked for it.
    fn issue(&mut self, intent: Intent<'static>) {
        let Target::Remembered(wanted) = intent.target else {
            return;
        };
        let common = &self.common;
        let entries = &common.profile.entries;
        let first = wanted.first().and_then(|i| entries.get(i));
        let Some(device) = first.and_then(|entry| common.places.device(&entry.path)) else {
            let left = u64::from(first.is_some());
            common.figures.lost.fetch_add(left, Relaxed);
            return self.course.left(&wanted);
        };
        let task = Task {
            common: common.clone(),
            device: DeviceId(device),
            wanted,
            sweep: self.course.sweeps(),
            came: RefCell::default(),
        };
        self.lane.submit(OWNER, Call::Errand(Box::new(task)));
    }

    fn hear_all(&mut self, told: &Receiver<Message>) -> Option<()> {
        while let Ok(message) = told.try_recv() {
            self.take(message)?;
        }
        Some(())
    }

    /// Hears all that is told; whether there was something within `pause`.
    fn hear(&mut self, told: &Receiver<Message>, pause: Duration) -> Option<bool> {
        let heard = match told.recv_timeout(pause) {
            Ok(message) => {
                self.take(message)?;
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        self.hear_all(told)?;
        Some(heard)
    }

    fn take(&mut self, message: Message) -> Option<()> {
        match message {
            Message::End => return None,
            Message::Done(wanted, came) => {
                let bytes = came.bytes;
                self.course.done(&wanted, came, self.clock.now());
                let seeks = self.course.seeks();
                self.common.seeks.store(seeks, Relaxed);
                if let Some(i) = wanted.first().filter(|_| bytes > 0) {
                    self.fetched(i, bytes);
                }
            }
            Message::Pages(i, pages) => self.course.has_pages(i, pages),
            Message::Needed(entries) => {
                for i in entries {
                    if self.course.needed(i) {
                        let bytes = self.common.books.fetched(i);
                        self.used(i, bytes);
                    }
                }
            }
        }
        Some(())
    }

    /// Bytes of an entry were fetched.
    fn fetched(&mut self, i: usize, bytes: u64) {
        let header = self.common.shared.header();
        header.foreseen[Origin::Remembered as usize].fetch_add(bytes, Relaxed);
        header.total.figures.add(Figure::Prefetched, bytes);
        self.explain(i, bytes);
        if self.common.books.is_needed(i) {
            self.used(i, bytes);
        }
    }

    /// So many of the bytes of an entry that were fetched are needed.
    fn used(&mut self, i: usize, bytes: u64) {
        let header = self.common.shared.header();
        let of = &header.sources[Origin::Remembered as usize];
        of[Fate::Used as usize].fetch_add(bytes, Relaxed);
        if let Some(outcome) = self.outcomes.get(&i) {
            outcome.add(Fate::Used, bytes);
        }
    }

    /// Says that a part of a file was fetched.
    fn explain(&mut self, i: usize, bytes: u64) {
        let explain = &self.common.explain;
        let entry = &self.common.profile.entries[i];
        let Some(device) = (explain.is_wanted())
            .then(|| self.common.places.device(&entry.path))
            .flatten()
        else {
            return;
        };
        let asking = Asking {
            of: Subject {
                pid: 0,
                key: InodeKey::new(device, entry.inode),
            },
            origin: Origin::Remembered,
            name: &entry.path,
            ranges: &[0..bytes],
        };
        let model = self.lane.model(DeviceId(device));
        let header = self.common.shared.header();
        if let Some(outcome) = explain.asked(&asking, &model, header) {
            self.outcomes.insert(i, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ranges() -> impl Strategy<Value = Vec<PageRange>> {
        prop::collection::vec((0u64..9, 1u64..9), 0..8).prop_map(|parts| {
            let mut at = 0;
            let each = parts.into_iter().map(|(gap, len)| {
                let start = at + gap + 1;
                at = start + len;
                PageRange::new(start, at)
            });
            each.collect()
        })
    }

    fn pages(ranges: &[PageRange]) -> BTreeSet<u64> {
        ranges.iter().flat_map(|r| r.start..r.end).collect()
    }

    proptest! {
        #[test]
        fn ranges_are_sets_of_pages(a in ranges(), b in ranges(), end in 0u64..99, start in 0u64..40, len in 0u64..40) {
            let both: BTreeSet<u64> = pages(&a).intersection(&pages(&b)).copied().collect();
            prop_assert_eq!(pages(&intersect(&a, &b)), both);
            let rest: BTreeSet<u64> = (0..end).filter(|p| !pages(&a).contains(p)).collect();
            prop_assert_eq!(pages(&complement(&a, end)), rest);
            let part: BTreeSet<u64> = pages(&a).into_iter().skip(start as usize).take(len as usize).collect();
            prop_assert_eq!(pages(&cut(&a, start..start + len)), part);
        }
    }
}
