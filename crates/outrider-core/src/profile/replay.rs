//! Fetching what a profile has, from the start of a run on.
//!
//! A thread of its own goes through the entries in the order of need and has the engine's lane look them up, list them and bring their pages, as far as
//! they are missing: deep, because each of them waits for a directory, an inode and its first page one after the other. It goes on as the ledger has memory
//! for it and as the profile's [`Credit`] lasts. Where the files lie on a device with a head it first looks all of them up, in the order of their inodes, and
//! then brings them in the order of their places, one sweep as far as the memory reaches.
//!
//! Nothing is opened while the service holds nothing open (before umount(2), for programs that watch), and nothing after the end of the run.

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrider_sys::cache;
use outrider_sys::units::{ByteRange, DeviceId, InodeKey, PAGE, PageRange, pages_of};

use super::credit::Credit;
use super::model::{Need, Outcome, Profile, Seen};
use super::observe::WHOLE;
use super::place::{Found, Places};
use crate::engine::{self, Bench, Call, Client, Engine, Errand, Handle, Lane};
use crate::ledger::{Holder, Ledger};
use crate::lock;
use crate::residency;
use crate::shared::{Note, Shared};
use crate::tree::inode_block;
use crate::tree::listing::Listing;

/// Whom the lane's calls are made for: nobody's entry.
const OWNER: usize = usize::MAX;
/// Bytes that one errand brings: some sixteen times as much as a program has on its way that reads in order, so that threads are many on many files and few on
/// large ones.
const PIECE: u64 = 1 << 20;
/// Errands that wait or go on at a time: four for each thread of the lane.
const AHEAD: usize = 64;
/// Names whose attributes one errand asks for.
const NAMES: usize = 32;
/// Bytes that a look-up is taken to cost: the block of an inode or of a directory.
const LOOK_UP: u64 = PAGE;
/// So long after the last was fetched what is still unused is not held for the job any more.
const PATIENCE: Duration = Duration::from_secs(10);
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
    /// What was fetched, a page for what was only looked up.
    pub counted: AtomicU64,
}

/// What the service tells.
enum Message {
    /// An entry was needed.
    Needed(usize),
    /// An errand is done, which has asked for so many bytes.
    Done(u64),
    /// A file has so many pages that are needed.
    Pages(usize, u64),
    /// Looking up is done: places of entries.
    Places(Vec<(usize, u64)>),
    End,
}

/// What an entry was found to be.
#[derive(Clone, Debug)]
pub struct Before {
    /// Its attributes.
    pub st: libc::stat,
    /// Pages of a large file that were cached or were fetched, ascending, where the kernel tells.
    pub pages: Option<Vec<PageRange>>,
}

struct Common {
    shared: Arc<Shared>,
    allowed: AtomicBool,
    held_back: AtomicBool,
    ended: AtomicBool,
    /// A device was seen to have a head.
    seeks: AtomicBool,
    untouchable: Mutex<HashSet<InodeKey>>,
    profile: Arc<Profile>,
    places: Arc<Places>,
    figures: Arc<Figures>,
    /// What was fetched of each entry, bytes, a page for what was only looked up; and whether it was needed.
    counted: Vec<AtomicU64>,
    needed: Vec<AtomicBool>,
    /// What entries were found to be like, by their numbers.
    before: Mutex<HashMap<usize, Before>>,
    tell: Mutex<Sender<Message>>,
}

impl Client for Common {
    fn is_held_back(&self) -> bool {
        self.held_back.load(SeqCst) || !self.allowed.load(Relaxed) || self.ended.load(SeqCst)
    }
    fn permits(&self, _: usize) -> bool {
        self.shared.header().watched.load(Relaxed) == 0 && !self.is_held_back()
    }
    fn is_untouchable(&self, file: InodeKey) -> bool {
        lock(&self.untouchable).contains(&file)
    }
    fn life(&self, _: usize) -> Option<u32> {
        None
    }
    fn note(&self, _: usize) -> Option<Box<dyn Send>> {
        Some(Box::new(Note::new(self.shared.clone(), None, false)?))
    }
    fn may_hold(&self, _: usize, _: Option<u32>) -> bool {
        !self.is_held_back()
    }
    fn done(&self, _: usize, _: engine::Found) {}
}

impl Common {
    fn tell(&self, message: Message) {
        let _ = lock(&self.tell).send(message);
    }

    /// What an entry names, if it may be opened.
    fn find(&self, entry: usize) -> Option<Found> {
        let found = self.places.find(&self.profile.entries.get(entry)?.path);
        let found = found.ok().filter(|found| {
            let key = InodeKey::new(found.st.st_dev, found.st.st_ino);
            !self.is_untouchable(key)
        });
        match &found {
            Some(found) => {
                let (st, pages) = (found.st, None);
                let mut before = lock(&self.before);
                before.entry(entry).or_insert(Before { st, pages });
            }
            None => drop(self.figures.lost.fetch_add(1, Relaxed)),
        }
        found
    }
}

/// One errand: entries that are looked up or listed, or a part of a file.
enum Job {
    /// Names that are looked up, and directories that are listed.
    Names(Vec<usize>),
    /// Pages of a file: all of a small one, or so many of its pages from some on, counted among those that are needed.
    Pages(usize, Range<u64>),
    /// Entries of files whose places are looked for.
    Look(Vec<usize>),
}

struct Task {
    common: Arc<Common>,
    device: DeviceId,
    job: Job,
    /// It is a part of a sweep.
    sweep: bool,
    /// Bytes that were asked for.
    asked: Cell<u64>,
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

    fn go(self: Box<Self>, bench: &Bench<'_>) {
        let mut places = Vec::new();
        let bytes = match &self.job {
            _ if !bench.permits() => 0,
            Job::Names(entries) => {
                entries.iter().for_each(|i| self.look_up(*i));
                0
            }
            Job::Look(entries) => {
                places = entries.iter().filter_map(|i| self.place(*i)).collect();
                0
            }
            Job::Pages(entry, pages) => self.bring(bench, *entry, pages.clone()).unwrap_or(0),
        };
        self.common.figures.fetched.fetch_add(bytes, Relaxed);
        self.asked.set(bytes);
        if matches!(self.job, Job::Look(_)) {
            self.common.tell(Message::Places(places));
        }
    }
}

impl Drop for Task {
    /// Done or dropped: whoever counts is told.
    fn drop(&mut self) {
        self.common.tell(Message::Done(self.asked.get()));
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

    /// Brings what is missing of some of the pages that are needed of a file.
    fn bring(&self, bench: &Bench<'_>, i: usize, part: Range<u64>) -> Option<u64> {
        let found = self.common.find(i).filter(Found::is_regular)?;
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
        let counted = cache::counted(file.as_fd(), span.bytes());
        let cached = counted.is_ok_and(|stat| stat.cached >= span.len());
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
        bench.bring(|| Some(file), &bytes, self.sweep)
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
        if let Some(before) = lock(&self.common.before).get_mut(&i) {
            before.pages = Some(pages);
        }
    }
}

/// Pages `part` of those in `ranges`, counted through.
fn cut(ranges: &[PageRange], part: Range<u64>) -> Vec<PageRange> {
    let mut before = 0;
    let mut out = Vec::new();
    for range in ranges {
        let own = before..before + range.len();
        let (start, end) = (own.start.max(part.start), own.end.min(part.end));
        if start < end {
            out.push(PageRange::new(
                range.start + (start - own.start),
                range.start + (end - own.start),
            ));
        }
        before = own.end;
    }
    out
}

/// What is in both, which ascend.
pub(super) fn intersect(a: &[PageRange], b: &[PageRange]) -> Vec<PageRange> {
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
}

impl Replay {
    /// Starts the thread that goes through a profile. `None` if there is none to be had.
    pub fn start(
        shared: Arc<Shared>,
        engine: &Engine,
        ledger: Arc<Ledger>,
        profile: Arc<Profile>,
        places: Arc<Places>,
    ) -> Option<Replay> {
        let (tell, told) = channel();
        let figures = Arc::<Figures>::default();
        let entries = profile.entries.len();
        let common = Arc::new(Common {
            counted: (0..entries).map(|_| AtomicU64::new(0)).collect(),
            needed: (0..entries).map(|_| AtomicBool::new(false)).collect(),
            shared,
            allowed: AtomicBool::new(true),
            held_back: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            seeks: AtomicBool::new(profile.seeks),
            untouchable: Mutex::default(),
            profile,
            places,
            figures: figures.clone(),
            before: Mutex::default(),
            tell: Mutex::new(tell),
        });
        let lane = engine.lane_apart(common.clone());
        let guide = Guide {
            common: common.clone(),
            lane: lane.clone(),
            ledger,
            credit: Credit::new(common.profile.runs, common.profile.used, common.profile.bad),
            ahead: 0,
            unused: 0,
            places: Vec::new(),
            pace: Pace::default(),
            sweeps: false,
            more: VecDeque::new(),
        };
        let thread = std::thread::Builder::new().name("outrider-replay".into());
        thread.spawn(move || guide.run(&told)).ok()?;
        Some(Replay {
            common,
            lane,
            figures,
        })
    }

    /// An entry was needed.
    pub fn needed(&self, entry: usize) {
        self.common.tell(Message::Needed(entry));
    }

    /// Whether files may be opened.
    pub fn allow(&self, allowed: bool) {
        self.common.allowed.store(allowed, Relaxed);
    }

    /// This file must never be opened.
    pub fn leave(&self, key: InodeKey) {
        lock(&self.common.untouchable).insert(key);
    }

    /// Begins to let go of everything, and opens nothing until [`Replay::come_back`].
    pub fn let_go(&self) {
        self.common.held_back.store(true, SeqCst);
        self.lane.let_go(None);
    }

    /// Files may be opened again.
    pub fn come_back(&self) {
        self.common.held_back.store(false, SeqCst);
    }

    /// Whether nothing is open.
    pub fn is_idle(&self) -> bool {
        self.lane.is_idle()
    }

    /// Nothing is fetched any more.
    pub fn end(&self) {
        self.common.ended.store(true, SeqCst);
        self.lane.cancel_all();
        self.lane.let_go(None);
        self.common.tell(Message::End);
    }

    /// Whether a device was seen to have a head, now or before.
    pub fn seeks(&self) -> bool {
        self.common.seeks.load(Relaxed)
    }

    /// What an entry was found to be, if it has been looked up.
    pub fn found(&self, entry: usize) -> Option<libc::stat> {
        lock(&self.common.before).get(&entry).map(|b| b.st)
    }

    /// What was cached or fetched of entries.
    pub fn before(&self) -> HashMap<usize, Before> {
        lock(&self.common.before).clone()
    }

    /// Figures so far.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// What it came to, for a run that has seen this.
    pub fn outcome(&self, seen: &[Seen]) -> Outcome {
        let common = &self.common;
        let seen: HashSet<(&Path, Need)> = seen.iter().map(|s| (&*s.path, s.need)).collect();
        let mut outcome = Outcome::default();
        for (i, entry) in common.profile.entries.iter().enumerate() {
            let bytes = common.counted[i].load(Relaxed);
            outcome.fetched += bytes;
            let was_seen = || seen.contains(&(entry.path.as_path(), entry.need));
            if common.needed[i].load(Relaxed) || was_seen() {
                outcome.used += bytes;
            }
        }
        common.figures.used.store(outcome.used, Relaxed);
        outcome
    }
}

/// The thread.
struct Guide {
    common: Arc<Common>,
    lane: Lane,
    ledger: Arc<Ledger>,
    credit: Credit,
    /// Errands that wait or go on.
    ahead: usize,
    /// Bytes that were fetched and not needed yet.
    unused: u64,
    places: Vec<(usize, u64)>,
    pace: Pace,
    /// What is submitted is part of a sweep.
    sweeps: bool,
    /// Pages of files that are left, counted among those that are needed.
    more: VecDeque<(usize, Range<u64>)>,
}

/// How fast errands are done while many are under way: a device with a head does them one after the other, seek by seek, and only sorting helps; every other one
/// does many at a time, however late it answers.
#[derive(Debug, Default)]
struct Pace {
    last: Option<Instant>,
    took: Duration,
    done: u32,
    bytes: u64,
}

impl Pace {
    /// Errands that have to be under way: half of the lane's threads.
    const DEEP: usize = 8;
    /// Errands that are looked at, some 100 ms of a disk's.
    const ENOUGH: u32 = 16;
    /// From one to the next: half an average seek of a disk, and more than the slowest of stores takes for one of sixteen at a time.
    const SEEK: Duration = Duration::from_millis(3);
    /// Bytes that take so long by themselves, at 60 MB/s, are no seek's fault.
    const LARGE: u64 = 180 << 10;

    /// An errand is done, one of `ahead` that were under way, which has asked for so many bytes.
    fn done(&mut self, ahead: usize, bytes: u64, now: Instant) {
        if bytes == 0 {
            // What was cached took no time: neither does the next begin here.
            return;
        }
        if let Some(last) = self.last.replace(now).filter(|_| ahead >= Self::DEEP) {
            self.took += now - last;
            self.done += 1;
            self.bytes += bytes;
        }
    }

    /// Whether the device has a head, as far as that is seen.
    fn seeks(&self) -> bool {
        self.done >= Self::ENOUGH
            && self.took / self.done >= Self::SEEK
            && self.bytes / u64::from(self.done) < Self::LARGE
    }
}

impl Guide {
    fn run(mut self, told: &Receiver<Message>) {
        let common = self.common.clone();
        let profile = &common.profile;
        let likely: Vec<usize> = (profile.entries.iter().enumerate())
            .filter(|(_, e)| e.seen.is_likely())
            .map(|(i, _)| i)
            .collect();
        let all_fits = profile.bytes() <= self.allowance();
        let goes_on = match profile.seeks && all_fits {
            true => self.sweep(&likely, told),
            false => self.in_order(&likely, all_fits, told),
        };
        if goes_on.and_then(|()| self.finish(told)).is_some() {
            self.wind_up(told);
        }
        self.ledger.hold(Holder::Remembered, 0);
    }

    fn allowance(&self) -> u64 {
        self.ledger.allowance(Holder::Remembered)
    }

    /// In the order of need, until the device is seen to have a head, if the rest then `may_sweep`. `None`: the run is over.
    fn in_order(
        &mut self,
        entries: &[usize],
        may_sweep: bool,
        told: &Receiver<Message>,
    ) -> Option<()> {
        let mut names = Vec::new();
        let mut blocks = HashSet::new();
        for (n, i) in entries.iter().enumerate() {
            if self.pace.seeks() {
                self.common.seeks.store(true, Relaxed);
                if may_sweep {
                    let rest = names.iter().chain(&entries[n..]).copied();
                    return self.sweep(&rest.collect::<Vec<_>>(), told);
                }
            }
            let entry = &self.common.profile.entries[*i];
            if entry.need == Need::File && !entry.spans.is_empty() {
                self.flush(&mut names, told)?;
                self.pages(*i, told)?;
                continue;
            }
            // The attributes of what lies in one block are read together, whose names may not be.
            let lone = entry.need == Need::Listing || blocks.insert(inode_block::of(entry.inode));
            names.push(*i);
            if lone || names.len() >= NAMES {
                self.flush(&mut names, told)?;
            }
        }
        self.flush(&mut names, told)
    }

    /// In the order of places: a look at all of them first.
    fn sweep(&mut self, entries: &[usize], told: &Receiver<Message>) -> Option<()> {
        let profile = self.common.profile.clone();
        let mut by_inode = entries.to_vec();
        by_inode.sort_by_key(|i| profile.entries[*i].inode);
        let (files, names): (Vec<usize>, Vec<usize>) =
            (by_inode.into_iter()).partition(|i| profile.entries[*i].need == Need::File);
        for part in names.chunks(NAMES) {
            self.submit(Job::Names(part.to_vec()), 0, told)?;
        }
        for part in files.chunks(NAMES) {
            self.submit(Job::Look(part.to_vec()), 0, told)?;
        }
        while self.ahead > 0 {
            self.hear(told, PAUSE)?;
        }
        let mut places = std::mem::take(&mut self.places);
        places.sort_by_key(|(i, place)| (*place, *i));
        self.sweeps = true;
        for (i, _) in places {
            self.pages(i, told)?;
        }
        Some(())
    }

    fn flush(&mut self, names: &mut Vec<usize>, told: &Receiver<Message>) -> Option<()> {
        if names.is_empty() {
            return Some(());
        }
        let names = std::mem::take(names);
        for i in &names {
            self.count(*i, LOOK_UP);
        }
        let cost = LOOK_UP * names.len() as u64;
        self.submit(Job::Names(names), cost, told)
    }

    /// What is needed of a file: its first piece, and the others once it is known how long the file is now.
    fn pages(&mut self, i: usize, told: &Receiver<Message>) -> Option<()> {
        let entry = &self.common.profile.entries[i];
        let pages: u64 = entry.pages(entry.size).iter().map(PageRange::len).sum();
        if pages > 0 {
            self.piece(i, 0..pages.min(PIECE / PAGE), told)?;
        }
        self.further(told)
    }

    /// What is left of files whose length is known.
    fn further(&mut self, told: &Receiver<Message>) -> Option<()> {
        while let Some((i, left)) = self.more.pop_front() {
            let end = left.end.min(left.start + PIECE / PAGE);
            if end < left.end {
                self.more.push_front((i, end..left.end));
            }
            self.piece(i, left.start..end, told)?;
        }
        Some(())
    }

    fn piece(&mut self, i: usize, pages: Range<u64>, told: &Receiver<Message>) -> Option<()> {
        let bytes = (pages.end - pages.start) * PAGE;
        self.count(i, bytes);
        self.submit(Job::Pages(i, pages), bytes, told)
    }

    /// All that was asked for is done, and all that this has shown to be left.
    fn finish(&mut self, told: &Receiver<Message>) -> Option<()> {
        while self.ahead > 0 || !self.more.is_empty() {
            self.further(told)?;
            self.hear(told, PAUSE)?;
        }
        Some(())
    }

    fn count(&mut self, i: usize, bytes: u64) {
        self.common.counted[i].fetch_add(bytes, Relaxed);
        self.common.figures.counted.fetch_add(bytes, Relaxed);
        if self.common.needed[i].load(Relaxed) {
            self.use_of(bytes);
        } else {
            self.unused += bytes;
        }
    }

    fn use_of(&mut self, bytes: u64) {
        self.credit.used(bytes);
    }

    /// Has an errand done as soon as there is room for it.
    fn submit(&mut self, job: Job, cost: u64, told: &Receiver<Message>) -> Option<()> {
        while self.ahead >= AHEAD
            || self.common.is_held_back()
            || !self.credit.allows(cost)
            || self.unused > self.allowance()
        {
            self.hear(told, PAUSE)?;
        }
        self.hear_all(told)?;
        let first = match &job {
            Job::Names(entries) | Job::Look(entries) => entries.first().copied(),
            Job::Pages(entry, _) => Some(*entry),
        };
        let path: &PathBuf = &self.common.profile.entries.get(first?)?.path;
        let Some(device) = self.common.places.device(path) else {
            self.common.figures.lost.fetch_add(1, Relaxed);
            return Some(());
        };
        self.credit.fetched(cost);
        self.ahead += 1;
        self.ledger.hold(Holder::Remembered, self.unused);
        let task = Task {
            common: self.common.clone(),
            device: DeviceId(device),
            job,
            sweep: self.sweeps,
            asked: Cell::new(0),
        };
        self.lane.submit(OWNER, Call::Errand(Box::new(task)));
        Some(())
    }

    fn hear_all(&mut self, told: &Receiver<Message>) -> Option<()> {
        while let Ok(message) = told.try_recv() {
            self.take(message)?;
        }
        Some(())
    }

    fn hear(&mut self, told: &Receiver<Message>, pause: Duration) -> Option<()> {
        match told.recv_timeout(pause) {
            Ok(message) => self.take(message)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return None,
        }
        self.hear_all(told)
    }

    fn take(&mut self, message: Message) -> Option<()> {
        match message {
            Message::End => return None,
            Message::Done(bytes) => {
                self.pace.done(self.ahead, bytes, Instant::now());
                self.ahead = self.ahead.saturating_sub(1);
            }
            Message::Places(places) => self.places.extend(places),
            Message::Pages(i, pages) => {
                if pages > PIECE / PAGE {
                    self.more.push_back((i, PIECE / PAGE..pages));
                }
            }
            Message::Needed(i) => {
                let common = self.common.clone();
                let needed = common.needed.get(i);
                if needed.is_some_and(|needed| !needed.swap(true, Relaxed)) {
                    let bytes = common.counted[i].load(Relaxed);
                    self.unused = self.unused.saturating_sub(bytes);
                    self.use_of(bytes);
                }
            }
        }
        Some(())
    }

    /// All is fetched: what is unused is held for a while.
    fn wind_up(&mut self, told: &Receiver<Message>) {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let held = if left.is_zero() { 0 } else { self.unused };
            self.ledger.hold(Holder::Remembered, held);
            let pause = left.max(Duration::from_millis(50));
            if self.hear(told, pause).is_none() {
                return;
            }
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
