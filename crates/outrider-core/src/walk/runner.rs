//! The threads that go ahead: one that hears of files and decides, and a few that wait for the disk.
//!
//! Files are found by the absolute path of their directory, never by the program's descriptors, and nothing is held between one file and the next.
//! What is found has to be the file that the directory listed: a regular one, on the same file system, with the same inode number. It is looked
//! up with O_PATH, which has no effect on whatever is there, before it is opened. Directories whose time of access a listing would change are
//! not listed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use outrider_sys::device::{Device, lies_on_disk};
use outrider_sys::raw::{self, blocks_read};
use outrider_sys::units::{self, InodeKey, PAGE};
use rustix::fs::{Advice, CWD, FileType, Mode, OFlags, ResolveFlags, SeekFrom};

use super::large::{self, Large};
use super::stream::{Here, Listen, Walks, Want, common};
use super::visits::Visits;
use crate::config::Config;
use crate::engine::{self, Aside, Handle, Thread, Way, become_background};
use crate::fetch;
use crate::service::ends::Note;
use crate::shared::Shared;
use crate::shm::{self, Figure};
use crate::tree::inode_block;
use crate::tree::known::{Directory, Entry, Place, Tree};
use crate::tree::listing::{Kind, Listing};

/// Threads that wait for the disk: as many requests as a disk of a network answers at once are more than a walk needs.
const WORKERS: usize = 16;
/// Bytes of their stacks.
const STACK: usize = 128 << 10;
/// Bytes that a list of a directory and looking up a few entries are taken to have on their way: blocks one after the other, which the kernel reads some more of.
const LISTED: u64 = 16 << 10;
/// Most bytes fetched and not read, of all processes together.
const AHEAD_BYTES: u64 = 8 << 20;
/// Entries of a directory beyond which it is left alone.
const ENTRIES: usize = 1 << 16;
/// Bytes of a directory's entries that are read at once.
const AT_ONCE: usize = 32 << 10;
/// How long it is believed what a number of a device stands for.
const STALE: Duration = Duration::from_secs(1);
/// Directories listed to find out how two are related.
const LEVELS: usize = 4;
/// Opens that are not told after a process turned out not to be foreseeable; each time twice as many.
const REST: u32 = 256;
const LONGEST_REST: u32 = 1 << 16;
/// Entries that one job looks up.
const LOOKED_UP: usize = 16;
/// Files that the thread that decides has not heard of yet, beyond which it is told of no more: of one process, and of all.
const UNHEARD_EACH: usize = 512;
const UNHEARD: usize = 2048;
/// Jobs that wait, of all processes together, of which each of those for which any do has an equal part, though no more than an eighth.
const JOBS: usize = 8192;
const PARTS: usize = 8;
/// File systems of which it is remembered whether files are fetched from them.
const SYSTEMS: usize = 64;
/// Large directories that are listed in parts at a time, one of a process.
const LARGE: usize = 8;

/// What the walker is told.
enum Message {
    /// A process has opened a file.
    Opened(Opened),
    /// A process has opened a directory.
    Visited(Opened),
    /// A process lists a large directory, has waited, and goes on at this position.
    Listing(Opened, u64),
    /// The process in this entry has waited for attributes.
    Attributes(usize),
    /// The process in this entry is over.
    Over(usize),
    /// Forget everything, add up the figures, and answer.
    Forget(Sender<()>),
    /// A job is done: so many bytes were fetched.
    Fetched {
        proc: usize,
        key: InodeKey,
        here: Here,
    },
    /// A directory is listed; `cold`: something was read for that.
    Listed {
        proc: usize,
        dir: Directory,
        cold: bool,
    },
    /// The same of a part of a large one: entries in it whose inodes are not read ahead together, with these.
    Part {
        proc: usize,
        key: InodeKey,
        entries: Vec<(u64, OsString)>,
        cold: bool,
    },
}

/// A file or directory that a process has opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Entry of the process.
    pub proc: usize,
    /// The process.
    pub pid: u32,
    /// Its number among all that there were, by which its record is found.
    pub who: usize,
    /// Number of the descriptor.
    pub fd: u16,
    /// Generation of the descriptor's state then.
    pub generation: u32,
    /// The file.
    pub key: InodeKey,
}

/// What a worker does.
enum Job {
    Fetch {
        proc: usize,
        dir: PathBuf,
        dir_key: InodeKey,
        entry: Entry,
    },
    List {
        proc: usize,
        path: PathBuf,
        /// Its file system, if its own directory has been listed.
        device: Option<u64>,
        /// The first of what is found is looked up, too.
        look_up: bool,
    },
    LookUp {
        proc: usize,
        dir: PathBuf,
        dir_key: InodeKey,
        names: Vec<OsString>,
    },
    /// List a part of a directory.
    Part {
        proc: usize,
        dir: PathBuf,
        dir_key: InodeKey,
        part: usize,
        /// Of so many.
        parts: usize,
    },
}

impl Job {
    /// The file system that is read from, where that is known.
    fn device(&self) -> Option<u64> {
        match self {
            Job::Fetch { dir_key, .. }
            | Job::LookUp { dir_key, .. }
            | Job::Part { dir_key, .. } => Some(dir_key.dev),
            Job::List { device, .. } => *device,
        }
    }

    /// Entry of the process that it is done for.
    fn proc(&self) -> usize {
        match self {
            Job::Fetch { proc, .. }
            | Job::List { proc, .. }
            | Job::LookUp { proc, .. }
            | Job::Part { proc, .. } => *proc,
        }
    }
}

/// What is to be done, by process; these take turns.
#[derive(Default)]
struct Jobs(VecDeque<(usize, VecDeque<Job>)>);

impl Jobs {
    fn of(&self, proc: usize) -> Option<&VecDeque<Job>> {
        self.0
            .iter()
            .find(|(of, _)| *of == proc)
            .map(|(_, jobs)| jobs)
    }

    /// Whether there is room for more of a process.
    fn have_room(&self, proc: usize) -> bool {
        let part = JOBS / self.0.len().max(PARTS);
        self.of(proc).is_none_or(|jobs| jobs.len() < part)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, job: Job) {
        let proc = job.proc();
        match self.0.iter_mut().find(|(of, _)| *of == proc) {
            Some((_, jobs)) => jobs.push_back(job),
            None => self.0.push_back((proc, VecDeque::from([job]))),
        }
    }

    /// The next job of the process whose turn it is.
    fn pop(&mut self) -> Option<Job> {
        let (proc, mut jobs) = self.0.pop_front()?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.0.push_back((proc, jobs));
        }
        job
    }

    /// Takes all jobs of a process off.
    fn take(&mut self, proc: usize) -> VecDeque<Job> {
        let at = self.0.iter().position(|(of, _)| *of == proc);
        at.and_then(|at| self.0.remove(at))
            .map_or_else(VecDeque::new, |(_, jobs)| jobs)
    }

    /// Takes the first job of a process off that is such a one; whether there was any.
    fn remove(&mut self, proc: usize, is_one: impl Fn(&Job) -> bool) -> bool {
        let mut jobs = self.take(proc);
        let found = jobs.iter().position(is_one).and_then(|at| jobs.remove(at));
        if !jobs.is_empty() {
            self.0.push_back((proc, jobs));
        }
        found.is_some()
    }
}

/// What the threads share.
struct Link {
    shared: Arc<Shared>,
    jobs: Mutex<Jobs>,
    work: Condvar,
    /// Bytes that may be ahead; 0: nothing may be opened.
    limit: AtomicU64,
    /// Threads that have something open.
    busy: AtomicUsize,
    /// Nothing may be opened for the time being.
    held_back: AtomicBool,
    /// Messages of what processes do that nobody has taken yet, in all and by process.
    unheard: AtomicUsize,
    unheard_of: Vec<AtomicUsize>,
    /// Files that must never be opened.
    untouchable: Mutex<HashSet<InodeKey>>,
    /// Files that are open, by the entry of the process that they are open for.
    held: Mutex<Vec<(usize, Weak<Handle>)>>,
    /// Where there is room on the devices.
    aside: Aside,
    settings: Settings,
}

impl Link {
    /// Waits for room on a device. `None` where nothing may be opened any more.
    fn room(&self, device: u64, bytes: u64) -> Option<Way> {
        self.aside.enter(device, bytes, || self.is_held_back())
    }

    fn is_held_back(&self) -> bool {
        self.held_back.load(SeqCst) || self.limit.load(Relaxed) == 0
    }

    /// Lets go of the files that are open for a process, or for all.
    fn let_go_for(&self, proc: Option<usize>) {
        let mut held = lock(&self.held);
        let its = |of: usize| proc.is_none_or(|proc| proc == of);
        let gone: Vec<_> = held.extract_if(.., |(of, _)| its(*of)).collect();
        drop(held);
        for handle in gone.iter().filter_map(|(_, handle)| handle.upgrade()) {
            handle.let_go();
        }
    }
}

/// How it is set up.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Smaller files are fetched whole, larger ones are only looked up, bytes: their reads are followed once they are open.
    pub small: u64,
    /// Argument of ioprio_set(2), 0 to leave the priority.
    pub io_priority: i32,
}

impl Settings {
    /// As the user has configured it.
    pub fn of(config: &Config) -> Settings {
        Settings {
            small: config.files.min_size.0,
            io_priority: engine::Settings::of(config, engine::Kind::Auto).io_priority,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The service's end.
pub struct Walker {
    link: Arc<Link>,
    tell: Sender<Message>,
}

impl Walker {
    /// Starts the thread that decides. `None` if there is none to be had.
    pub fn start(shared: Arc<Shared>, settings: Settings, aside: Aside) -> Option<Walker> {
        let link = Arc::new(Link {
            shared,
            jobs: Mutex::default(),
            work: Condvar::new(),
            limit: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            held_back: AtomicBool::new(false),
            unheard: AtomicUsize::new(0),
            unheard_of: (0..shm::MAX_PROCS).map(|_| AtomicUsize::new(0)).collect(),
            untouchable: Mutex::default(),
            held: Mutex::default(),
            aside,
            settings,
        });
        let (tell, told) = channel();
        let guide = Guide {
            link: link.clone(),
            tell: tell.clone(),
            tree: Tree::default(),
            walks: HashMap::new(),
            visits: HashMap::new(),
            large: HashMap::new(),
            rests: HashMap::new(),
            systems: HashMap::new(),
            listing: HashSet::new(),
            patience: HashMap::new(),
            workers: 0,
        };
        spawn(move || guide.run(&told))?;
        Some(Walker { link, tell })
    }

    /// A process has opened a file.
    pub fn opened(&self, opened: Opened) {
        self.hear(opened.proc, Message::Opened(opened));
    }

    /// A process has opened a directory.
    pub fn visited(&self, opened: Opened) {
        self.hear(opened.proc, Message::Visited(opened));
    }

    /// A process lists a large directory, has waited, and goes on at position `at`.
    pub fn listing(&self, opened: Opened, at: u64) {
        self.hear(opened.proc, Message::Listing(opened, at));
    }

    /// A process has waited for attributes.
    pub fn attributes(&self, proc: usize) {
        self.hear(proc, Message::Attributes(proc));
    }

    fn hear(&self, proc: usize, message: Message) {
        let link = &self.link;
        let own = link.unheard_of.get(proc).map_or(0, |n| n.load(Relaxed));
        if own < UNHEARD_EACH && link.unheard.load(Relaxed) < UNHEARD {
            link.unheard.fetch_add(1, Relaxed);
            if let Some(own) = link.unheard_of.get(proc) {
                own.fetch_add(1, Relaxed);
            }
            let _ = self.tell.send(message);
        }
    }

    /// Lets go of the files that are open because of the process in this entry.
    pub fn let_go_for(&self, proc: usize) {
        self.link.let_go_for(Some(proc));
    }

    /// The process in this entry is over.
    pub fn over(&self, proc: usize) {
        self.link.let_go_for(Some(proc));
        let _ = self.tell.send(Message::Over(proc));
    }

    /// This file must never be opened.
    pub fn leave(&self, key: InodeKey) {
        lock(&self.link.untouchable).insert(key);
    }

    /// At most so many bytes may have been fetched and not read, in all processes together; 0: nothing may be opened.
    pub fn limit(&self, bytes: u64) {
        self.link.limit.store(bytes.min(AHEAD_BYTES), Relaxed);
    }

    /// Begins to let go of everything, and opens nothing until [`Walker::come_back`].
    pub fn let_go(&self) -> Leaving {
        self.link.held_back.store(true, SeqCst);
        *lock(&self.link.jobs) = Jobs::default();
        self.link.let_go_for(None);
        let (done, forgotten) = channel();
        let _ = self.tell.send(Message::Forget(done));
        Leaving {
            link: self.link.clone(),
            forgotten: Some(forgotten),
        }
    }

    /// Files may be opened again.
    pub fn come_back(&self) {
        self.link.held_back.store(false, SeqCst);
    }
}

/// Files that are being let go of.
pub struct Leaving {
    link: Arc<Link>,
    /// Is told when the figures are complete, once.
    forgotten: Option<Receiver<()>>,
}

impl Leaving {
    /// Whether nothing is open, and the figures are complete.
    pub fn is_over(&mut self) -> bool {
        let forgotten = self.forgotten.as_ref();
        if forgotten.is_some_and(|f| f.try_recv() != Err(TryRecvError::Empty)) {
            self.forgotten = None;
        }
        self.forgotten.is_none() && self.link.busy.load(SeqCst) == 0
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Option<()> {
    let thread = std::thread::Builder::new().name("outrider-walk".into());
    thread.stack_size(STACK).spawn(work).ok().map(drop)
}

/// Something may be opened, as long as this lives.
struct Busy<'a>(&'a Link);

impl<'a> Busy<'a> {
    /// On behalf of the process in entry `proc`, as long as that may do just what this one may.
    fn begin(link: &'a Link, proc: usize) -> Option<Busy<'a>> {
        link.busy.fetch_add(1, SeqCst);
        let busy = Busy(link);
        let watched = link.shared.header().watched.load(Relaxed) != 0;
        let free = !watched && !link.held_back.load(SeqCst) && link.limit.load(Relaxed) > 0;
        (free && link.shared.stands(proc)).then_some(busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, SeqCst);
    }
}

/// What hooks tell of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Told {
    Files,
    Directories,
}

/// The thread that decides.
struct Guide {
    link: Arc<Link>,
    tell: Sender<Message>,
    tree: Tree,
    walks: HashMap<usize, Walks>,
    visits: HashMap<usize, Visits>,
    /// The large directory that each process has listed last.
    large: HashMap<usize, Large>,
    /// How long each process was left alone last, with its files and with its directories.
    rests: HashMap<(usize, Told), u32>,
    /// Whether files of a file system are fetched, by `st_dev`.
    systems: HashMap<u64, (Instant, bool)>,
    /// Directories that are being listed.
    listing: HashSet<PathBuf>,
    /// Files that have to turn up in vain before a directory that has changed is listed again: as many as it had.
    patience: HashMap<PathBuf, usize>,
    workers: usize,
}

impl Guide {
    fn run(mut self, told: &Receiver<Message>) {
        let thread = self.link.aside.thread();
        while let Ok(message) = told.recv() {
            let _reads = thread.reads();
            let proc = match message {
                Message::Opened(opened) => {
                    self.has_heard(opened.proc);
                    self.opened(opened);
                    opened.proc
                }
                Message::Visited(opened) => {
                    self.has_heard(opened.proc);
                    self.visited(opened);
                    opened.proc
                }
                Message::Listing(opened, at) => {
                    self.has_heard(opened.proc);
                    self.listing(opened, at);
                    opened.proc
                }
                Message::Attributes(proc) => {
                    self.has_heard(proc);
                    self.look_up_large(proc);
                    proc
                }
                Message::Over(proc) => {
                    if let Some(mut walks) = self.walks.remove(&proc) {
                        walks.clear();
                        self.account(&mut walks);
                    }
                    self.visits.remove(&proc);
                    self.large.remove(&proc);
                    self.rests.retain(|(of, _), _| *of != proc);
                    for job in lock(&self.link.jobs).take(proc) {
                        if let Job::List { path, .. } = job {
                            self.listing.remove(&path);
                        }
                    }
                    continue;
                }
                Message::Forget(done) => {
                    for (_, mut walks) in std::mem::take(&mut self.walks) {
                        walks.clear();
                        self.account(&mut walks);
                    }
                    self.visits.clear();
                    self.large.clear();
                    self.tree.clear();
                    self.listing.clear();
                    self.patience.clear();
                    self.systems.clear();
                    let _ = done.send(());
                    continue;
                }
                Message::Fetched { proc, key, here } => {
                    let header = self.link.shared.header();
                    header.walked[0].fetch_add(u64::from(here.cold), Relaxed);
                    let bytes = here.bytes;
                    let who = self.walks.get(&proc).and_then(|w| w.who);
                    self.count(who, Figure::Prefetched, bytes);
                    match self.walks.get_mut(&proc) {
                        Some(walks) => walks.arrived(key, here),
                        None => self.count(who, Figure::Wasted, bytes),
                    }
                    proc
                }
                Message::Listed { proc, dir, cold } => {
                    self.listing.remove(&dir.path);
                    let path = dir.path.clone();
                    self.take_in(dir);
                    self.listed(proc, &path, cold);
                    proc
                }
                Message::Part {
                    proc,
                    key,
                    entries,
                    cold,
                } => {
                    let large = self.large.get_mut(&proc).filter(|l| l.key == key);
                    if large.is_some_and(|l| l.arrived(entries, cold)) {
                        for figure in &self.link.shared.header().listed {
                            figure.fetch_add(1, Relaxed);
                        }
                    }
                    self.look_up_large(proc);
                    proc
                }
            };
            self.go_on(proc);
        }
    }

    /// A message of what a process does was taken.
    fn has_heard(&self, proc: usize) {
        self.link.unheard.fetch_sub(1, Relaxed);
        if let Some(own) = self.link.unheard_of.get(proc) {
            own.fetch_sub(1, Relaxed);
        }
    }

    /// Whether more may be done for a process at the moment.
    fn has_room(&self, proc: usize) -> bool {
        lock(&self.link.jobs).have_room(proc)
    }

    /// Adds what became of files to the figures.
    fn account(&self, walks: &mut Walks) {
        let header = self.link.shared.header();
        let tally = walks.take_tally();
        header.walked[1].fetch_add(tally.used, Relaxed);
        self.count(walks.who, Figure::Used, tally.used_bytes);
        self.count(walks.who, Figure::Wasted, tally.wasted_bytes);
    }

    /// Adds to the figures of all, and of a process.
    fn count(&self, who: Option<usize>, figure: Figure, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let shared = &self.link.shared;
        shared.header().total.figures.add(figure, bytes);
        if let Some(record) = who.and_then(|who| shared.record(who)) {
            record.figures.add(figure, bytes);
        }
    }

    fn take_in(&mut self, dir: Directory) {
        self.patience.insert(dir.path.clone(), dir.entries.len());
        if !self.tree.insert(dir) {
            self.patience.clear();
        }
    }

    fn opened(&mut self, opened: Opened) {
        let Opened { proc, pid, who, .. } = opened;
        let link = self.link.clone();
        let Some(_busy) = Busy::begin(&link, opened.proc) else {
            // Nothing is known of what may not be opened, and so nothing can be learned.
            return self.listen(Told::Files, proc, pid, Listen::Cold);
        };
        let place = match self.tree.find(opened.key) {
            Some(place) => Some(place),
            None => self.locate(opened),
        };
        let latest = self.walks.get(&proc).and_then(Walks::latest);
        if let (Some(latest), Some(place)) = (latest.map(Path::to_owned), &place) {
            self.relate(proc, &latest, &place.dir.path);
        }
        let walks = self.walks.entry(proc).or_default();
        walks.who = Some(who);
        let listen = match place {
            Some(place) => walks.opened(&self.tree, place),
            None => walks.astray(),
        };
        self.listen(Told::Files, proc, pid, listen);
    }

    fn visited(&mut self, opened: Opened) {
        let Opened { proc, pid, .. } = opened;
        let link = self.link.clone();
        let found = self.tree.find(opened.key).map(|place| place.path());
        let Some(_busy) = Busy::begin(&link, opened.proc) else {
            if let (Some(path), Some(visits)) = (found, self.visits.get_mut(&proc)) {
                visits.count(&path);
            }
            return self.listen(Told::Directories, proc, pid, Listen::Cold);
        };
        let path = found.or_else(|| self.link_of(opened));
        let Some(path) = path.filter(|path| self.is_fit(opened.key.dev, path)) else {
            let listen = self.visits.entry(proc).or_default().astray();
            return self.listen(Told::Directories, proc, pid, listen);
        };
        let visits = self.visits.entry(proc).or_default();
        let (sure, latest) = (visits.is_sure(), visits.latest().map(Path::to_owned));
        let known = self.tree.get(&path).map(|dir| dir.key == opened.key);
        let unknown = known == Some(false) || known.is_none() && !sure;
        if unknown && !self.list_in_parts(opened, &path, 0) {
            self.list_now(proc, &path);
            self.look_up(proc, &path, 0);
        }
        if let Some(latest) = latest {
            self.relate(proc, &latest, &path);
        }
        let asked = self.link.shared.proc(proc).asked.load(Relaxed);
        let visits = self.visits.entry(proc).or_default();
        let listen = visits.opened(&self.tree, &path, asked);
        self.listen(Told::Directories, proc, pid, listen);
    }

    /// A process lists a large directory, has waited, and goes on at position `at`: the rest of it is listed in parts.
    fn listing(&mut self, opened: Opened, at: u64) {
        let Opened { proc, key, .. } = opened;
        let link = self.link.clone();
        let Some(_busy) = Busy::begin(&link, opened.proc) else {
            return;
        };
        if let Some(large) = self.large.get_mut(&proc).filter(|l| l.key == key) {
            return large.waited(at);
        }
        let known = self.tree.find(key).map(|place| place.path());
        let Some(path) = known.or_else(|| self.link_of(opened)) else {
            return;
        };
        if self.is_fit(key.dev, &path) {
            self.list_in_parts(opened, &path, at);
        }
    }

    /// Has what is left of a directory at position `at` listed in parts, if it is a large one.
    fn list_in_parts(&mut self, of: Opened, path: &Path, at: u64) -> bool {
        let same = |st: &rustix::fs::Stat| InodeKey::new(st.st_dev, st.st_ino) == of.key;
        let Some(st) = rustix::fs::stat(path).ok().filter(same) else {
            return false;
        };
        let bytes = st.st_size as u64;
        let room = self.large.len() < LARGE || self.large.contains_key(&of.proc);
        if bytes < shm::LARGE_DIRECTORY || !room || !self.is_owner(of.proc, of.pid) {
            return false;
        }
        let entry = self.link.shared.proc(of.proc);
        let asked = entry.asked.load(Relaxed);
        let path = path.to_owned();
        let large = Large::new(path, of.key, bytes, at, asked);
        self.large.insert(of.proc, large);
        let counts = &entry.visiting;
        let _ = counts.compare_exchange(0, shm::COUNTS, Relaxed, Relaxed);
        true
    }

    /// A directory was listed ahead for a process.
    fn listed(&mut self, proc: usize, path: &Path, cold: bool) {
        if let Some(visits) = self.visits.get_mut(&proc) {
            let ahead = visits.arrived(path, cold);
            let header = self.link.shared.header();
            header.listed[0].fetch_add(u64::from(ahead), Relaxed);
            self.look_up(proc, path, LOOKED_UP);
        }
    }

    /// Has entries of a large directory looked up, if the program has begun to ask for attributes.
    fn look_up_large(&mut self, proc: usize) {
        let asked = self.link.shared.proc(proc).asked.load(Relaxed);
        let Some(large) = self.large.get_mut(&proc) else {
            return;
        };
        let asks = self.visits.get(&proc).is_some_and(Visits::asks);
        if !asks && !large.asks(asked) {
            return;
        }
        let names = std::mem::take(&mut large.names);
        let (path, key) = (large.path.clone(), large.key);
        self.look_up_names(proc, &path, key, &names);
    }

    fn look_up_names(&mut self, proc: usize, dir: &Path, dir_key: InodeKey, names: &[OsString]) {
        for names in names.chunks(LOOKED_UP) {
            // What isn't looked up ahead the program looks up.
            if !self.has_room(proc) {
                return;
            }
            self.give(Job::LookUp {
                proc,
                dir: dir.to_owned(),
                dir_key,
                names: names.to_vec(),
            });
        }
    }

    /// Has the files of a listed directory looked up, if the program asks for their attributes, but for the first `done` that are to be.
    fn look_up(&mut self, proc: usize, path: &Path, done: usize) {
        let asks = self.visits.get(&proc).is_some_and(Visits::asks);
        let Some(dir) = self.tree.get(path).filter(|_| asks).cloned() else {
            return;
        };
        let names: Vec<OsString> = one_of_each_block(&dir).skip(done).cloned().collect();
        self.look_up_names(proc, &dir.path, dir.key, &names);
    }

    /// Whether this is the process in an entry still.
    fn is_owner(&self, proc: usize, pid: u32) -> bool {
        let header = self.link.shared.header();
        header.owners.get(proc).map(|o| o.load(Relaxed)) == Some(pid)
    }

    /// Tells the hooks of a process what is to be told.
    fn listen(&mut self, told: Told, proc: usize, pid: u32, listen: Listen) {
        if !self.is_owner(proc, pid) {
            return;
        }
        let entry = self.link.shared.proc(proc);
        let (all, rests) = match told {
            Told::Files => (&entry.walking, &entry.rest),
            Told::Directories => (&entry.visiting, &entry.visit_rest),
        };
        match listen {
            Listen::All => all.store(1, Relaxed),
            Listen::Cold => all.store(0, Relaxed),
            Listen::Rest => {
                let rest = self.rests.entry((proc, told)).or_insert(REST);
                rests.store(*rest, Relaxed);
                all.store(0, Relaxed);
                *rest = rest.saturating_mul(2).min(LONGEST_REST);
            }
        }
    }

    /// The name under which the program has something open.
    fn link_of(&self, opened: Opened) -> Option<PathBuf> {
        let proc = self.link.shared.proc(opened.proc);
        let slot = proc.slots.get(usize::from(opened.fd))?;
        fetch::link_of(opened.pid, opened.fd, slot, opened.generation)
            .filter(|path| path.is_absolute())
    }

    /// Where a file is that the program has open, by the name under which it was opened.
    fn locate(&mut self, opened: Opened) -> Option<Place> {
        let path = self.link_of(opened)?;
        let dir = path.parent()?;
        if !self.is_fit(opened.key.dev, dir) {
            return None;
        }
        match self.tree.get(dir) {
            None => self.list_now(opened.proc, dir),
            Some(known) => {
                let now = rustix::fs::stat(dir).ok()?;
                let patience = self.patience.get_mut(dir);
                match patience {
                    _ if modified(&now) == known.modified => {}
                    Some(left) if *left > 0 => *left -= 1,
                    _ => self.list_now(opened.proc, dir),
                }
            }
        }
        self.tree.find(opened.key)
    }

    /// Whether files are fetched from the file system of a directory, with this `st_dev`: it lies on a disk, as far as can be seen, and nobody
    /// else sees that they are open.
    fn is_fit(&mut self, dev: u64, dir: &Path) -> bool {
        let known = self
            .systems
            .get(&dev)
            .filter(|(at, _)| at.elapsed() < STALE);
        let known = known.map(|(_, fit)| *fit);
        if known == Some(false) {
            return false;
        }
        // What a process says of a device must not count for the others.
        if !rustix::fs::stat(dir).is_ok_and(|st| st.st_dev == dev) {
            return false;
        }
        if let Some(fit) = known {
            return fit;
        }
        if self.systems.len() >= SYSTEMS {
            self.systems.clear();
        }
        let fit = if fetch::server(std::process::id(), dev, dir).is_some() {
            // It is not asked anything.
            false
        } else if libc::major(dev) != 0 {
            true
        } else {
            Device::of_path(dir).is_ok_and(|device| {
                // The layers of a container's root can't be seen from within.
                let overlay = device.mount.as_ref().filter(|m| m.fs_type == "overlay");
                let hidden = overlay.is_some_and(|m| m.dev == device.id);
                device.id.major != 0 || hidden
            })
        };
        self.systems.insert(dev, (Instant::now(), fit));
        fit
    }

    /// Lists what lies between two directories and the one that holds both.
    fn relate(&mut self, proc: usize, a: &Path, b: &Path) {
        let above = common(a, b);
        for dir in [a, b] {
            let up = dir.ancestors().skip(1).take(LEVELS);
            for dir in up.take_while(|d| d.starts_with(&above)) {
                if self.tree.get(dir).is_none() {
                    self.list_now(proc, dir);
                }
            }
        }
    }

    /// Lists a directory. One that can't be listed is one without entries.
    fn list_now(&mut self, proc: usize, path: &Path) {
        let link = self.link.clone();
        let Some(_busy) = Busy::begin(&link, proc) else {
            return;
        };
        let listed = list(path, None).map(|(dir, _)| dir).unwrap_or_else(|| {
            let now = rustix::fs::stat(path).map_or((0, 0), |st| modified(&st));
            Directory::new(path.to_owned(), InodeKey::default(), now, Vec::new())
        });
        self.take_in(listed);
    }

    /// Has done what a process needs next.
    fn go_on(&mut self, proc: usize) {
        if !self.has_room(proc) {
            // Once something of it is done.
            return;
        }
        let walking = self.link.shared.proc(proc).walking.load(Relaxed) != 0;
        if let Some(mut visits) = self.visits.remove(&proc).filter(|_| !walking) {
            self.link.shared.header().listed[1].fetch_add(visits.take_used(), Relaxed);
            let look_up = visits.asks();
            for path in visits.wanted(&self.tree) {
                if self.listing.insert(path.clone()) {
                    let device = self.device_of(&path);
                    self.give(Job::List {
                        proc,
                        path,
                        device,
                        look_up,
                    });
                }
            }
            self.visits.insert(proc, visits);
        }
        if let Some(mut large) = self.large.remove(&proc) {
            for part in large.wanted() {
                self.give(Job::Part {
                    proc,
                    dir: large.path.clone(),
                    dir_key: large.key,
                    part,
                    parts: large.parts,
                });
            }
            self.large.insert(proc, large);
        }
        let Some(mut walks) = self.walks.remove(&proc) else {
            return;
        };
        self.account(&mut walks);
        for key in walks.take_overtaken() {
            self.cancel(proc, key, &mut walks);
        }
        let bytes = self.link.limit.load(Relaxed) / (self.walks.len() as u64 + 1);
        for want in walks.wanted(&self.tree, bytes) {
            let job = match want {
                Want::Fetch(place) => Job::Fetch {
                    proc,
                    dir: place.dir.path.clone(),
                    dir_key: place.dir.key,
                    entry: place.dir.entries[place.entry].clone(),
                },
                Want::List(path) if self.listing.insert(path.clone()) => Job::List {
                    proc,
                    device: self.device_of(&path),
                    path,
                    look_up: false,
                },
                Want::List(_) => continue,
            };
            self.give(job);
        }
        self.walks.insert(proc, walks);
    }

    /// The file system of a directory whose own directory has been listed.
    fn device_of(&self, dir: &Path) -> Option<u64> {
        self.tree.get(dir.parent()?).map(|above| above.key.dev)
    }

    /// Nobody need fetch this file any more.
    fn cancel(&self, proc: usize, key: InodeKey, walks: &mut Walks) {
        let same = |job: &Job| match job {
            Job::Fetch { dir_key, entry, .. } => InodeKey::new(dir_key.dev, entry.ino) == key,
            Job::List { .. } | Job::LookUp { .. } | Job::Part { .. } => false,
        };
        if lock(&self.link.jobs).remove(proc, same) {
            walks.cancelled(key);
        }
    }

    fn give(&mut self, job: Job) {
        let mut jobs = lock(&self.link.jobs);
        let more = !jobs.is_empty();
        jobs.push(job);
        drop(jobs);
        if (more || self.workers == 0) && self.workers < WORKERS {
            let (link, tell) = (self.link.clone(), self.tell.clone());
            match spawn(move || work(&link, &tell)) {
                Some(()) => self.workers += 1,
                None => self.link.shared.header().lose(shm::lost::THREADS),
            }
        }
        self.link.work.notify_one();
    }
}

/// A worker.
fn work(link: &Link, tell: &Sender<Message>) {
    become_background(link.settings.io_priority);
    let thread = link.aside.thread();
    loop {
        let mut jobs = lock(&link.jobs);
        let job = loop {
            match jobs.pop() {
                Some(job) => break job,
                None => jobs = link.work.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(jobs);
        // Nothing is open yet while this waits.
        let mut way = job.device().and_then(|device| link.room(device, LISTED));
        let _reads = thread.reads();
        let busy = Busy::begin(link, job.proc());
        let done = match job {
            Job::Fetch {
                proc,
                dir,
                dir_key,
                entry,
            } => {
                let key = InodeKey::new(dir_key.dev, entry.ino);
                let before = blocks_read();
                let bytes = busy.zip(way.as_mut()).and_then(|(_busy, way)| {
                    fetch(link, proc, &dir, dir_key, &entry, way, &thread)
                });
                let bytes = bytes.unwrap_or(0);
                let cold = bytes > 0 || blocks_read() != before;
                let here = Here { bytes, cold };
                Message::Fetched { proc, key, here }
            }
            Job::List {
                proc,
                path,
                look_up,
                ..
            } => {
                let before = blocks_read();
                let listed = busy.as_ref().and_then(|_busy| list(&path, Some(&path)));
                let cold = blocks_read() != before;
                // What can't be listed is passed over.
                let (dir, found) = match listed {
                    Some((dir, found)) => (dir, Some(found)),
                    None => (
                        Directory::new(path, InodeKey::default(), (0, 0), Vec::new()),
                        None,
                    ),
                };
                let first = one_of_each_block(&dir).take(LOOKED_UP).filter(|_| look_up);
                let names: Vec<OsString> = first.cloned().collect();
                if tell.send(Message::Listed { proc, dir, cold }).is_err() {
                    return;
                }
                if let Some(found) = found {
                    look_up_in(&found, &names);
                }
                continue;
            }
            Job::Part {
                proc,
                dir,
                dir_key,
                part,
                parts,
            } => {
                let before = blocks_read();
                let positions = large::positions(part, parts);
                let entries = busy.and_then(|_busy| list_part(&dir, dir_key, positions));
                let cold = blocks_read() != before;
                Message::Part {
                    proc,
                    key: dir_key,
                    entries: entries.unwrap_or_default(),
                    cold,
                }
            }
            Job::LookUp {
                dir,
                dir_key,
                names,
                ..
            } => {
                let dir = busy.as_ref().and_then(|_busy| open_listed(&dir, dir_key));
                if let Some(dir) = dir {
                    look_up_in(&dir, &names);
                }
                continue;
            }
        };
        if tell.send(done).is_err() {
            return;
        }
    }
}

fn directory() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Finds an entry of a directory, and never anything that is mounted on it or that it leads to.
fn find(dir: &OwnedFd, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    rustix::fs::openat2(dir, name, flags, Mode::empty(), resolve)
}

/// Opens for reading what was found, without changing its time of access.
fn open_quietly(found: &OwnedFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    fetch::reopen(found.as_fd(), flags | OFlags::NOATIME).or_else(|e| {
        if fetch::leaves_access_time(found.as_fd()) {
            fetch::reopen(found.as_fd(), flags)
        } else {
            Err(e)
        }
    })
}

fn modified(st: &rustix::fs::Stat) -> (i64, u64) {
    (st.st_mtime, st.st_mtime_nsec)
}

/// Lists a directory, of another that is known if it is `within` one; and what finds entries in it.
fn list(path: &Path, within: Option<&Path>) -> Option<(Directory, OwnedFd)> {
    let found = match within.and_then(|p| Some((p.parent()?, p.file_name()?))) {
        Some((parent, name)) => {
            let parent = rustix::fs::openat(CWD, parent, directory(), Mode::empty()).ok()?;
            find(&parent, name).ok()?
        }
        None => rustix::fs::openat(CWD, path, directory(), Mode::empty()).ok()?,
    };
    let device = raw::status(found.as_raw_fd()).ok()?.st_dev;
    if !lies_on_disk(found.as_fd(), device) {
        return None;
    }
    let st = rustix::fs::fstat(&found).ok()?;
    let opened = open_quietly(&found, OFlags::DIRECTORY).ok()?;
    let mut room = vec![0; AT_ONCE];
    let mut listing = Listing::new(opened.as_raw_fd(), &mut room);
    let mut entries = Vec::new();
    while let Some(record) = listing.next_record().ok()? {
        if entries.len() >= ENTRIES {
            return None;
        }
        if record.kind != Kind::Other {
            entries.push(Entry {
                name: OsStr::from_bytes(record.name.to_bytes()).to_owned(),
                ino: record.ino,
                directory: record.kind == Kind::Directory,
            });
        }
    }
    let key = InodeKey::new(st.st_dev, st.st_ino);
    let dir = Directory::new(path.to_owned(), key, modified(&st), entries);
    Some((dir, found))
}

/// Goes through what is at some positions of a directory, and one entry behind them if nothing is there. Entries of inodes that are not read ahead together, with their inodes.
fn list_part(path: &Path, key: InodeKey, positions: Range<u64>) -> Option<Vec<(u64, OsString)>> {
    let found = open_listed(path, key)?;
    let opened = open_quietly(&found, OFlags::DIRECTORY).ok()?;
    rustix::fs::seek(&opened, SeekFrom::Start(positions.start)).ok()?;
    // Little is read beyond the end: a third of the names that ext4 has in a block.
    let mut room = [0; 1024];
    let mut listing = Listing::new(opened.as_raw_fd(), &mut room);
    let (mut known, mut entries) = (HashSet::new(), Vec::new());
    let mut at = positions.start;
    while at < positions.end
        && let Some(record) = listing.next_record().ok()?
    {
        at = record.next as u64;
        if known.insert(inode_block::read_ahead(record.ino)) {
            let name = OsStr::from_bytes(record.name.to_bytes());
            entries.push((record.ino, name.to_owned()));
        }
    }
    Some(entries)
}

/// Opens a directory to find something in it, if it still is the one that was listed.
fn open_listed(path: &Path, key: InodeKey) -> Option<OwnedFd> {
    let dir = rustix::fs::openat(CWD, path, directory(), Mode::empty()).ok()?;
    let st = raw::status(dir.as_raw_fd()).ok()?;
    (InodeKey::new(st.st_dev, st.st_ino) == key).then_some(dir)
}

/// Names of entries whose inodes lie in different blocks, in the order of the listing.
fn one_of_each_block(dir: &Directory) -> impl Iterator<Item = &OsString> {
    let mut blocks = HashSet::new();
    let first = move |e: &&Entry| blocks.insert(inode_block::of(e.ino));
    dir.entries.iter().filter(first).map(|e| &e.name)
}

/// Has the inodes of entries read.
fn look_up_in(dir: &OwnedFd, names: &[OsString]) {
    for name in names {
        let _ = find(dir, name.as_os_str());
    }
}

/// A file that is open, until this is dropped.
struct Held<'a>(&'a Link, &'a Arc<Handle>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let this = Arc::as_ptr(self.1);
        lock(&self.0.held).retain(|(_, held)| !std::ptr::eq(held.as_ptr(), this));
    }
}

/// Brings a file into the cache. Bytes that were not there, as far as is known.
fn fetch(
    link: &Link,
    proc: usize,
    dir: &Path,
    dir_key: InodeKey,
    entry: &Entry,
    way: &mut Way,
    thread: &Thread,
) -> Option<u64> {
    let owner = || {
        link.shared
            .header()
            .owners
            .get(proc)
            .map(|o| o.load(SeqCst))
    };
    let pid = owner();
    let note = Note::new(link.shared.clone(), Some(proc), false)?;
    let parent = open_listed(dir, dir_key)?;
    let found = find(&parent, entry.name.as_os_str()).ok()?;
    let st = raw::status(found.as_raw_fd()).ok()?;
    let key = InodeKey::new(st.st_dev, st.st_ino);
    let regular = FileType::from_raw_mode(st.st_mode) == FileType::RegularFile;
    if !regular
        || key != InodeKey::new(dir_key.dev, entry.ino)
        || lock(&link.untouchable).contains(&key)
    {
        return None;
    }
    let len = st.st_size as u64;
    if len == 0 || len >= link.settings.small {
        return Some(0);
    }
    drop(parent);
    if !way.grow(len.saturating_sub(LISTED), || link.is_held_back()) {
        return None;
    }
    let file = open_quietly(&found, OFlags::empty()).ok()?;
    drop(found);
    let file = Arc::new(Handle::held(file));
    file.attach(Box::new(note));
    lock(&link.held).push((proc, Arc::downgrade(&file)));
    let _held = Held(link, &file);
    // The process may have ended before.
    let entry = link.shared.proc(proc);
    let departs = entry.departs.load(SeqCst) != 0;
    let starts = entry.start_wanted.load(SeqCst) != entry.start_done.load(SeqCst);
    if departs || starts || owner() != pid || link.held_back.load(SeqCst) {
        return None;
    }
    let before = blocks_read();
    let cached = file.counted(0..len).ok().map(|s| s.cached);
    let missing = cached.map(|cached| units::pages_of(len).saturating_sub(cached) * PAGE);
    if missing == Some(0) {
        return Some(0);
    }
    // Our waiting below is no reason to keep it longer.
    let _ = rustix::fs::fadvise(file.fd(), 0, None, Advice::NoReuse);
    thread.fetch(&file, 0..len).ok()?;
    // Until its end is there, it is not; and no more files are in flight than there are workers.
    file.wait_watched(len - 1, (*link.shared).as_ref());
    let read = || (blocks_read() - before) as u64 * 512;
    Some(missing.unwrap_or_else(read).min(len))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{inode_block, large, list, list_part};

    /// However many parts a directory is listed in, together they have one entry at least of all inodes in its listing that are read ahead together, and
    /// none that isn't in it.
    #[test]
    fn parts_make_up_a_listing() {
        let dir = std::env::temp_dir().join(format!("outrider-parts-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        for i in 0..6000 {
            std::fs::write(dir.join(format!("{:x}", i * 7919)), "").unwrap();
        }
        let listed = list(&dir, None);
        // Nothing is listed that doesn't lie on a disk.
        if let Some((whole, _)) = listed {
            let entries: BTreeSet<_> = whole.entries.iter().map(|e| (e.ino, &e.name)).collect();
            assert_eq!(entries.len(), 6000);
            let of = |inodes: &mut dyn Iterator<Item = u64>| -> BTreeSet<u64> {
                inodes.map(inode_block::read_ahead).collect()
            };
            let expected = of(&mut whole.entries.iter().map(|e| e.ino));
            for parts in [1, 16, 512] {
                let mut found = Vec::new();
                for part in 0..parts {
                    let positions = large::positions(part, parts);
                    found.extend(list_part(&dir, whole.key, positions).unwrap());
                }
                assert!(found.iter().all(|(i, n)| entries.contains(&(*i, n))));
                assert_eq!(of(&mut found.iter().map(|(i, _)| *i)), expected, "{parts}");
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
