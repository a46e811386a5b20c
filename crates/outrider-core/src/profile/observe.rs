//! Seeing what a run needs, for its profile.
//!
//! Three witnesses, each of which sees what the others can't:
//!
//! - the log of the hooks ([`crate::needs`]): which names were opened, started and asked about, in order;
//! - the page tables of all processes of the run, hooked or not (/proc/PID/maps and pagemap): which libraries and data files are mapped, and which of their
//!   pages were touched. They are looked at ever more rarely, and only where a process has grown. Of processes without hooks the descriptors are looked at, too;
//! - what of a large file is cached at the end and was not when it was first seen, or fetched by us: what the program has waited for.
//!
//! What the profile has and was seen by its name is believed to be what it was: the replay has looked it up, or at some of it where all is cached. Only if one of
//! those has changed all of them are looked up, at the end.
//!
//! Small files count as needed whole. Of a large one of which no witness tells anything (everything was cached, and it was read by a hook that kept quiet) what
//! the profile has stays, and a new one counts as needed from its beginning on, up to a bound.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrider_sys::pagemap::Pagemap;
use outrider_sys::raw;
use outrider_sys::standing::Watch;
use outrider_sys::text;
use outrider_sys::units::{ByteRange, InodeKey, PAGE, PageRange, pages_of};
use rustix::fs::{AtFlags, FileType, StatxFlags};

use super::model::{Entry, Need, Profile, Seen, WHOLE, join};
use super::place::{Attributes, Lost, Places};
use super::replay::{Before, Replay, complement, intersect};
use super::terms::Terms;
use crate::lock;
use crate::needs::{self, Did};
use crate::residency;
use crate::shared::Shared;
use crate::shm::{MAX_PROCS, lost};
use crate::tree::inode_block;

/// Of a file of which nobody knows better so much counts as needed, bytes.
const UNKNOWN: u64 = 8 << 20;
/// From one look at the log to the next: after one that has found something, and at most.
const LOOK: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(20);
/// … and at the page tables, at first and at most.
const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);
/// … and so many times as long as the look has taken: a program may have tens of thousands of threads and mappings, and is to lose a fifth of a processor at most.
const REST: u32 = 4;
/// Once a run has taken so long they are looked at once a second.
const START: Duration = Duration::from_secs(30);
const LATER: Duration = Duration::from_secs(1);
/// Processes that are looked at, bytes of what /proc/PID/maps says of each, and descriptors.
const PROCESSES: usize = 128;
const MAPS: u64 = 1 << 20;
const DESCRIPTORS: usize = 256;
/// Names whose attributes are asked for: so many are remembered all, and of more those of [`needs::is_sample`] whose inodes others are read with.
const NAMES: usize = 1024;
/// At the end of a run names are looked up for so long at most, in which the thread had a processor or waited for a disk: what is left is learned by the next one.
const BACKLOG: Duration = Duration::from_millis(30);
/// Entries of one run at most.
const ENTRIES: usize = 1 << 18;
/// Bytes of all names that are kept: four times what the log has room for. Names in it may be relative, and each is kept as it was told and as it was found.
const NAMES_BYTES: usize = 4 * needs::BYTES;
/// What a name takes besides in the tables that have it, bytes.
const NAME_BYTES: usize = 64;
/// Reads that were told and not taken yet, 32 bytes each. In the millisecond from one look to the next a process tells some thousand; more are there only while a
/// look-up hangs.
const READS: usize = 1 << 15;
/// Ranges of pages that were touched, of all files, 16 bytes each: one of four pages of 16 GiB.
const RANGES: usize = 1 << 20;
/// To look who is below the runner, and may write into the log, takes one part of so many of a thread's time at most: names wait for so many times as long as the last
/// look took.
pub(super) const REST_OF_LOOKS: u32 = 20;
/// Names that the profile has needn't wait, and what a look showed is believed of them so much longer than that: nothing is looked up by these, and nothing learned
/// but that they are needed again.
const KNOWN: u32 = 16;
/// Names that are taken from the log and wait: what is more stays in it.
const TOLD: usize = 4096;
/// After so many runs only every fourth looks at the page tables of files that the profile has: what it has of them stays meanwhile, and what the program waits for
/// is learned all the same.
const WELL_KNOWN: u32 = 3;
const AGAIN: u32 = 4;
/// Where all that a profile has is cached page tables tell nothing that is waited for, and mappings only what was loaded. Looks at these come when the run has
/// taken so many times as long as at the one before: six of them in its first two seconds.
const RARER: u32 = 4;
/// Looks at a mapping after which what was never touched is known not to be needed.
const SURE: u32 = 20;

/// The run is over.
struct End(Sender<Needs>);

/// What a run needed.
#[derive(Default)]
pub struct Needs {
    /// All of it, in order.
    pub seen: Vec<Seen>,
    /// Of these the entries of the profile.
    pub entries: Vec<usize>,
    /// The profile tells all of it as it is: another run would be handed the same without this one.
    pub known: bool,
    /// All that was needed was looked for: what is not among it was not needed.
    pub all: bool,
}

/// What the service and the thread share.
#[derive(Default)]
struct Desk {
    /// Reads that were told and not taken yet: the service doesn't wake anybody for each of them.
    reads: Mutex<Vec<(InodeKey, ByteRange)>>,
    /// The thread is looking something up, by which something may be held open.
    busy: AtomicBool,
}

/// The service's end.
pub struct Observer {
    tell: Sender<End>,
    desk: Arc<Desk>,
    shared: Arc<Shared>,
}

/// What is observed.
pub struct Subject {
    /// The process whose child the program is.
    pub runner: u32,
    /// What hooks write.
    pub log: Option<needs::Mapped>,
    /// By which a mapping of it is known.
    pub log_is: InodeKey,
    /// The program's file and its arguments that may be files, as they were named in `directory`.
    pub files: Vec<PathBuf>,
    /// Where it was started.
    pub directory: PathBuf,
    /// When that was: before the program was.
    pub began_at: (i64, i64),
}

impl Observer {
    /// Starts the thread. `None` if there is none to be had.
    pub fn start(
        subject: Subject,
        shared: &Arc<Shared>,
        profile: Arc<Profile>,
        replay: Option<Arc<Replay>>,
        grounds: (Arc<Places>, Arc<Terms>),
    ) -> Option<Observer> {
        let (tell, told) = channel();
        let desk = Arc::<Desk>::default();
        let witness = Witness::new(
            subject,
            profile,
            replay,
            grounds,
            (desk.clone(), shared.clone()),
        );
        let thread = std::thread::Builder::new().name("outrider-profile".into());
        thread.spawn(move || witness.run(&told)).ok()?;
        Some(Observer {
            tell,
            desk,
            shared: shared.clone(),
        })
    }

    /// Whether nothing is open. Once the terms say that nothing may be, it stays so.
    pub fn is_idle(&self) -> bool {
        !self.desk.busy.load(SeqCst)
    }

    /// A process is about to read.
    pub fn read(&self, file: InodeKey, range: ByteRange) {
        let mut reads = lock(&self.desk.reads);
        let full = reads.len() >= READS;
        match reads.last_mut() {
            Some((last, before)) if *last == file && before.end == range.start => {
                before.end = range.end;
            }
            _ if full => self.shared.header().lose(lost::CLAIMS),
            _ => reads.push((file, range)),
        }
    }

    /// The run is over: what was seen.
    pub fn end(&self, patience: Duration) -> Option<Needs> {
        let (answer, answered) = channel();
        self.tell.send(End(answer)).ok()?;
        answered.recv_timeout(patience).ok()
    }
}

/// Something that the run needs.
struct Node {
    /// Its number in the profile.
    entry: Option<usize>,
    /// Where it isn't there: its path.
    path: PathBuf,
    need: Need,
    size: u64,
    modified: i64,
    /// 0: what it is was not looked up, but is what the profile says.
    device: u64,
    inode: u64,
    at_us: u64,
    /// Pages of it that were seen in page tables, or told to be read.
    touched: Vec<PageRange>,
    /// Looks at its mappings.
    looks: u32,
    /// The last of these, as they are counted for all.
    looked: u64,
    /// Pages that were cached when it was first seen.
    before: Option<Vec<PageRange>>,
    /// It is needed only if something of it came.
    maybe: bool,
}

/// What something is that was looked up.
struct Is {
    is: Attributes,
    kind: FileType,
    /// When it was made, s and ns, if its file system knows.
    born: Option<(i64, i64)>,
}

impl Is {
    fn of(found: impl AsFd) -> Option<Is> {
        let what = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        match rustix::fs::statx(&found, "", AtFlags::EMPTY_PATH, what) {
            Ok(st) => Some(Is {
                is: Attributes {
                    key: InodeKey::new(
                        rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor),
                        st.stx_ino,
                    ),
                    size: st.stx_size,
                    modified: st.stx_mtime.tv_sec,
                },
                kind: FileType::from_raw_mode(st.stx_mode.into()),
                born: (st.stx_mask & StatxFlags::BTIME.bits() != 0)
                    .then_some((st.stx_btime.tv_sec, st.stx_btime.tv_nsec.into())),
            }),
            // A filter that doesn't know it.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                let st = raw::fstat(found.as_fd().as_raw_fd()).ok()?;
                Some(Is {
                    is: st.into(),
                    kind: FileType::from_raw_mode(st.st_mode),
                    born: None,
                })
            }
            Err(_) => None,
        }
    }
}

/// Numbers by name and need. Names are compared byte by byte: taking paths apart costs more than all else that is done for a name.
#[derive(Default)]
struct ByName(HashMap<OsString, [Option<usize>; Need::ALL.len()]>);

impl ByName {
    fn get(&self, path: &Path, need: Need) -> Option<usize> {
        self.0.get(path.as_os_str())?[need as usize]
    }

    fn insert(&mut self, path: &Path, need: Need, number: usize) {
        match self.0.get_mut(path.as_os_str()) {
            Some(numbers) => numbers[need as usize] = Some(number),
            None => {
                let mut numbers = [None; Need::ALL.len()];
                numbers[need as usize] = Some(number);
                self.0.insert(path.as_os_str().to_owned(), numbers);
            }
        }
    }
}

/// A name that was told.
struct Told {
    path: PathBuf,
    did: Did,
    /// It is one of those that stand for all.
    sample: bool,
    /// The profile has what was done by it.
    known: bool,
}

struct Witness {
    subject: Subject,
    replay: Option<Arc<Replay>>,
    places: Arc<Places>,
    began: Instant,
    /// No time that a file system has taken before is later, whether from the last tick or, as it does where somebody has asked for the one before, from the clock itself.
    began_at: (i64, i64),
    /// Where the log was read to.
    taken: u32,
    nodes: Vec<Node>,
    by_path: ByName,
    by_key: HashMap<InodeKey, usize>,
    /// Of each entry its node, if it was seen, and when its attributes were asked for by the name of a file or a directory, in µs.
    of_entry: Vec<Option<usize>>,
    asked_at: HashMap<usize, u64>,
    /// Entries that were needed and not told yet.
    news: Vec<usize>,
    /// Files of the profile by their inodes, once somebody asks.
    by_inode: Option<HashMap<u64, Vec<usize>>>,
    /// A name that was taken from the log begins at a directory that may not be known for long.
    hurries: bool,
    /// Of directories in which something was looked up, whether their names led there without links, on a disk.
    straight: HashMap<OsString, bool>,
    /// Names that were opened.
    known: HashSet<OsString>,
    /// Names whose attributes were asked for and that have not been looked up, with the time in µs; `None`: it has.
    looked: HashMap<OsString, Option<u64>>,
    /// Names of the profile whose attributes were asked for.
    listed_looks: usize,
    /// Of those that stand for all one for each block of inodes that is read at once and each directory, with the time in µs.
    stand_in: HashMap<(u64, u64, OsString), (OsString, u64)>,
    /// Entries of the profile.
    listed: ByName,
    /// Bytes of names that are kept.
    names: usize,
    /// Ranges of all that is touched.
    ranges: usize,
    /// What of processes shows that they have grown, and whether they have hooks.
    grown: HashMap<u32, (Grown, bool)>,
    /// Names that were taken from the log, in its order, and not believed yet.
    told: VecDeque<Told>,
    /// When it was looked who may write into the log, and what processor time that took: by a clock on the wall a busy machine would have it look ever more rarely.
    believed: Option<(Instant, Duration)>,
    /// Reads that were told of files whose names weren't believed yet.
    unnamed: Vec<(InodeKey, ByteRange)>,
    /// Looks at processes.
    looks: u64,
    /// The service's own program, which what is forked from it runs until it starts another.
    own: PathBuf,
    /// Some looks were left out: nobody waits for what they could have shown.
    calm: bool,
    /// Between [`Witness::begins`] and [`Witness::pauses`].
    begun: bool,
    profile: Arc<Profile>,
    terms: Arc<Terms>,
    desk: Arc<Desk>,
    shared: Arc<Shared>,
}

impl Witness {
    fn new(
        subject: Subject,
        profile: Arc<Profile>,
        replay: Option<Arc<Replay>>,
        (places, terms): (Arc<Places>, Arc<Terms>),
        (desk, shared): (Arc<Desk>, Arc<Shared>),
    ) -> Witness {
        Witness {
            replay,
            places,
            began: Instant::now(),
            began_at: subject.began_at,
            taken: 0,
            nodes: Vec::new(),
            by_path: ByName::default(),
            by_key: HashMap::new(),
            of_entry: vec![None; profile.entries.len()],
            asked_at: HashMap::new(),
            news: Vec::new(),
            by_inode: None,
            hurries: false,
            straight: HashMap::new(),
            known: HashSet::new(),
            looked: HashMap::new(),
            listed_looks: 0,
            stand_in: HashMap::new(),
            listed: ByName::default(),
            names: 0,
            ranges: 0,
            grown: HashMap::new(),
            told: VecDeque::new(),
            believed: None,
            unnamed: Vec::new(),
            looks: 0,
            subject,
            own: std::env::current_exe().unwrap_or_default(),
            calm: false,
            begun: false,
            profile,
            terms,
            desk,
            shared,
        }
    }

    fn run(mut self, told: &Receiver<End>) {
        for (i, entry) in self.profile.entries.iter().enumerate() {
            self.listed.insert(&entry.path, entry.need, i);
        }
        let files = std::mem::take(&mut self.subject.files);
        if self.begins() {
            for (i, path) in files.iter().enumerate() {
                self.opened(path, i > 0);
            }
            self.pauses();
        }
        let (mut pause, mut next) = (FIRST, Instant::now() + FIRST);
        let mut look = LOOK;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            match told.recv_timeout(look.min(left.max(LOOK))) {
                Ok(End(answer)) => {
                    self.begins();
                    self.take_log(true);
                    self.take_reads();
                    self.look_up_names();
                    let seen = self.seen();
                    self.pauses();
                    let _ = answer.send(seen);
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let before = self.taken;
            if !self.begins() {
                continue;
            }
            // Reads are of files whose names come before.
            self.take_log(false);
            self.take_reads();
            let heeds = self.replay.as_ref().is_none_or(|replay| replay.heeds());
            look = match self.taken == before {
                true if !self.told.is_empty() => LOOK,
                true => (look * 2).min(IDLE),
                false if heeds || std::mem::take(&mut self.hurries) => LOOK,
                // All that the profile has is cached: nobody waits for what is in the log.
                false => IDLE,
            };
            if Instant::now() >= next {
                let began = Instant::now();
                self.look_at_processes();
                let took = began.elapsed();
                pause = match (self.is_calm(), self.began.elapsed()) {
                    (true, since) => (since * (RARER - 1)).clamp(FIRST, LATER),
                    (_, since) if since < START => (pause * 2).min(LONGEST),
                    _ => (pause * 2).min(LATER),
                };
                pause = pause.max(REST * took);
                next = Instant::now() + pause;
            }
            self.pauses();
            self.tell_news();
        }
    }

    /// Whether all that the profile has is cached, as far as was looked.
    fn is_calm(&mut self) -> bool {
        let calm = self.replay.as_ref().is_some_and(|r| !r.heeds());
        // What is hardly known is looked at as closely as at first.
        let calm = calm && self.profile.runs >= WELL_KNOWN;
        self.calm |= calm;
        calm
    }

    fn tell_news(&mut self) {
        let news = std::mem::take(&mut self.news);
        if let Some(replay) = self.replay.as_ref().filter(|_| !news.is_empty()) {
            replay.needed(news);
        }
    }

    /// From here on something may be open for a moment; `false`: nothing may be.
    fn begins(&mut self) -> bool {
        self.desk.busy.store(true, SeqCst);
        self.begun = !self.terms.is_held_back();
        if !self.begun {
            self.pauses();
        }
        self.begun
    }

    /// Nothing is open.
    fn pauses(&mut self) {
        self.begun = false;
        self.desk.busy.store(false, SeqCst);
    }

    /// Whether more may be looked up: the service knows of it, and has not said meanwhile that nothing may be open.
    fn may_look(&self) -> bool {
        self.begun && !self.terms.is_held_back()
    }

    /// Something that is told finds no more room.
    fn loses(&self) {
        self.shared.header().lose(lost::CLAIMS);
    }

    /// Whether there is room for one more name.
    fn has_room(&mut self, name: &Path) -> bool {
        let names = self.names + name.as_os_str().len() + NAME_BYTES;
        let fits = names <= NAMES_BYTES;
        match fits {
            true => self.names = names,
            false => self.loses(),
        }
        fits
    }

    /// Pages of a file were touched.
    fn touch(&mut self, i: usize, pages: PageRange) {
        let full = self.ranges >= RANGES;
        let node = &mut self.nodes[i];
        if full && !node.goes_on(&pages) {
            return self.loses();
        }
        let before = node.touched.len();
        node.touch(pages);
        self.ranges = self.ranges + node.touched.len() - before;
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn take_log(&mut self, end: bool) {
        let began = Instant::now();
        let waited = if end {
            raw::thread_waited()
        } else {
            Duration::ZERO
        };
        // Beside others' load the same names are learned as without.
        let is_late = || {
            let took = began.elapsed();
            let waited = || raw::thread_waited().saturating_sub(waited);
            took > BACKLOG && took.saturating_sub(waited()) > BACKLOG
        };
        while self.may_look() {
            self.hear(end);
            let believed = self.believed_names(end);
            if believed == 0 {
                return;
            }
            for _ in 0..believed {
                if end && is_late() || !self.may_look() {
                    return;
                }
                let Some(told) = self.told.pop_front() else {
                    return;
                };
                match told.did {
                    Did::Open | Did::Start => drop(self.opened(&told.path, false)),
                    Did::Look => self.looked(told.path, told.sample),
                }
            }
        }
    }

    /// Takes names from the log. Where relative ones begin is asked for now, as long as their process is there: nothing is looked up by that.
    fn hear(&mut self, end: bool) {
        let Some(log) = self.subject.log else {
            return;
        };
        // Who changes its directory is seen in the new one all the same, or in the old one, if it has just done so.
        let mut directories: HashMap<u32, PathBuf> = HashMap::new();
        while self.told.len() < TOLD
            && let Some(entry) = log.take(&mut self.taken, end)
        {
            let name = Path::new(OsStr::from_bytes(&entry.name));
            self.hurries |= !name.is_absolute();
            let path = match (name.is_absolute(), entry.dir) {
                (true, _) => name.to_owned(),
                (_, libc::AT_FDCWD) => {
                    let own = directories.entry(entry.pid).or_insert_with(|| {
                        let at = std::fs::read_link(format!("/proc/{}/cwd", entry.pid));
                        at.unwrap_or_else(|_| self.subject.directory.clone())
                    });
                    own.join(name)
                }
                (_, dir) => match std::fs::read_link(format!("/proc/{}/fd/{dir}", entry.pid)) {
                    Ok(at) if at.is_absolute() => at.join(name),
                    _ => continue,
                },
            };
            self.told.push_back(Told {
                path,
                did: entry.did,
                sample: needs::is_sample(&entry.name),
                known: self.knows(name, entry.did),
            });
        }
    }

    /// Whether the profile has what was done by this name: then nothing is looked up for it.
    fn knows(&self, name: &Path, did: Did) -> bool {
        let numbers = self.listed.0.get(name.as_os_str());
        self.replay.is_some()
            && numbers.is_some_and(|numbers| match did {
                Did::Look => true,
                Did::Open | Did::Start => numbers[Need::File as usize]
                    .or(numbers[Need::Listing as usize])
                    .is_some(),
            })
    }

    /// How many of the names that were told may be used by now: those before which only processes with the service's rights had the log mapped. One that has given up
    /// some by an instruction of its own has it mapped all the same, and may write at once: what was seen before a name was told says nothing of it. From when such
    /// a process is seen nothing is believed any more.
    fn believed_names(&mut self, end: bool) -> usize {
        let known = self.told.iter().take_while(|told| told.known).count();
        if self.told.is_empty() || self.subject.log.is_none() {
            return 0;
        }
        let now = Instant::now();
        let within = |times: u32| (self.believed).is_some_and(|(at, took)| now < at + times * took);
        let rests = !end && within(REST_OF_LOOKS);
        if rests || known == self.told.len() && within(KNOWN * REST_OF_LOOKS) {
            return known;
        }
        let began = raw::thread_time();
        let pids = below(self.subject.runner, MAX_PROCS + 1);
        let (dev, ino) = (self.subject.log_is.dev, self.subject.log_is.ino);
        let writes = |pid: u32| {
            let watch = Watch::of(pid);
            watch.is_ok_and(|mut w| !w.is_like_this() && w.has_mapped(dev, ino))
        };
        if pids.len() > MAX_PROCS || pids.iter().any(|pid| writes(*pid)) {
            self.subject.log = None;
            self.told.clear();
            self.shared.header().lose(lost::RIGHTS);
            return 0;
        }
        let took = raw::thread_time().saturating_sub(began);
        self.believed = Some((Instant::now(), took));
        self.told.len()
    }

    /// A name was opened; `maybe`: or it may be.
    fn opened(&mut self, path: &Path, maybe: bool) -> Option<usize> {
        if let Some(i) = self.believed(path, maybe) {
            return Some(i);
        }
        if self.known.contains(path.as_os_str()) {
            let known = self.number(path, Need::File);
            if let Some(i) = known.filter(|_| !maybe) {
                self.is_needed(i);
            }
            return known;
        }
        if !self.has_room(path) {
            return None;
        }
        self.known.insert(path.as_os_str().to_owned());
        for need in [Need::File, Need::Listing] {
            if maybe && need == Need::Listing {
                continue;
            }
            if let Some(st) = self.found_before(path, need) {
                return self.node(path.to_owned(), need, None, st, maybe);
            }
        }
        let own = path;
        let (path, found) = self.resolve(path)?;
        let need = match found.kind {
            FileType::RegularFile => Need::File,
            FileType::Directory => Need::Listing,
            _ => return None,
        };
        if maybe && need == Need::Listing {
            // An argument is no directory that is listed before somebody does.
            self.known.remove(own.as_os_str());
            return None;
        }
        let i = self.node(path, need, found.born, found.is, maybe)?;
        let node = &self.nodes[i];
        if need == Need::File && node.size >= WHOLE && node.before.is_none() {
            let all = PageRange::new(0, pages_of(node.size));
            self.nodes[i].before = self.cached(self.path(node), &[all]);
        }
        Some(i)
    }

    /// A file or a directory of the profile was opened by its name.
    fn believed(&mut self, path: &Path, maybe: bool) -> Option<usize> {
        self.replay.as_ref()?;
        let numbers = self.listed.0.get(path.as_os_str())?;
        let entry = match (numbers[Need::File as usize], maybe) {
            (None, false) => numbers[Need::Listing as usize]?,
            (file, _) => file?,
        };
        self.entry(entry, maybe)
    }

    /// What the profile has was needed, `maybe`, and is what it was.
    fn entry(&mut self, entry: usize, maybe: bool) -> Option<usize> {
        if let Some(i) = self.of_entry[entry] {
            if !maybe {
                self.is_needed(i);
            }
            return Some(i);
        }
        if self.nodes.len() >= ENTRIES {
            return None;
        }
        let known = &self.profile.entries[entry];
        let is = Attributes {
            key: InodeKey::new(0, known.inode),
            size: known.size,
            modified: known.modified,
        };
        Some(self.add(Some(entry), PathBuf::new(), known.need, is, maybe))
    }

    /// Adds what was needed, `maybe`, and not seen before.
    fn add(
        &mut self,
        entry: Option<usize>,
        path: PathBuf,
        need: Need,
        is: Attributes,
        maybe: bool,
    ) -> usize {
        let i = self.nodes.len();
        match entry {
            Some(entry) => self.of_entry[entry] = Some(i),
            None => self.by_path.insert(&path, need, i),
        }
        if !maybe {
            self.news.extend(entry);
        }
        if need == Need::File && is.key.dev != 0 {
            self.by_key.insert(is.key, i);
        }
        self.nodes.push(Node {
            entry,
            path,
            need,
            size: is.size,
            modified: is.modified,
            device: is.key.dev,
            inode: is.key.ino,
            at_us: self.now_us(),
            touched: Vec::new(),
            looks: 0,
            looked: 0,
            before: None,
            maybe,
        });
        i
    }

    /// Which node this is.
    fn number(&self, path: &Path, need: Need) -> Option<usize> {
        match self.listed.get(path, need) {
            Some(entry) => self.of_entry[entry],
            None => self.by_path.get(path, need),
        }
    }

    /// Attributes of a name were told.
    fn looked(&mut self, path: PathBuf, sample: bool) {
        if self.replay.is_some()
            && let Some(numbers) = self.listed.0.get(path.as_os_str())
        {
            if let Some(entry) = numbers[Need::Attributes as usize] {
                self.listed_looks += usize::from(self.of_entry[entry].is_none());
                self.entry(entry, false);
                return;
            }
            // It is looked for before it is opened.
            if let Some(entry) = numbers.iter().flatten().next() {
                let at_us = self.now_us();
                let before = self.asked_at.len();
                self.asked_at.entry(*entry).or_insert(at_us);
                self.listed_looks += self.asked_at.len() - before;
                return;
            }
        }
        if self.looked.contains_key(path.as_os_str()) || !self.has_room(&path) {
            return;
        }
        let at_us = self.now_us();
        let listed = self.listed.get(&path, Need::Attributes).is_some();
        let found = listed
            .then(|| self.found_before(&path, Need::Attributes))
            .flatten();
        let done = found.is_some();
        if let Some(is) = found {
            self.node(path.clone(), Need::Attributes, None, is, false);
        } else if sample {
            self.may_stand_in(&path, at_us);
        }
        let at = (!done).then_some(at_us);
        self.looked.insert(path.into_os_string(), at);
    }

    /// The block of inodes in which one lies that was found by a path, as its file system reads them.
    fn block(&self, path: &Path, key: InodeKey) -> (u64, u64) {
        let block = match self.places.reads_inodes_ahead(path) {
            true => inode_block::read_ahead(key.ino),
            false => inode_block::of(key.ino),
        };
        (key.dev, block)
    }

    /// Remembers a name that may stand for all whose inodes are read with its own: of several that which comes first in their order, in each run the same.
    fn may_stand_in(&mut self, path: &Path, at_us: u64) {
        if !self.begun {
            return;
        }
        let key = match self.places.find(path) {
            Ok(found) => Some(found.key()),
            // Behind a link.
            Err(Lost::Gone) if !self.lies_straight(path) => {
                self.resolve(path).map(|(_, found)| found.is.key)
            }
            Err(Lost::Gone | Lost::LeftAlone) => None,
        };
        let Some(key) = key else {
            return;
        };
        let (dev, block) = self.block(path, key);
        let parent = path.parent().unwrap_or(path).as_os_str().to_owned();
        let own = || (path.as_os_str().to_owned(), at_us);
        let (name, at) = self
            .stand_in
            .entry((dev, block, parent))
            .or_insert_with(own);
        if path.as_os_str() < name.as_os_str() {
            *name = path.as_os_str().to_owned();
        }
        *at = at_us.min(*at);
    }

    fn look_up_name(&mut self, path: &Path, at_us: u64) {
        if path.file_name().is_none() {
            return;
        }
        // It was opened as well.
        if let Some(i) = [Need::File, Need::Listing]
            .iter()
            .find_map(|need| self.number(path, *need))
        {
            self.nodes[i].at_us = self.nodes[i].at_us.min(at_us);
            return;
        }
        let known = Need::ALL.iter().find_map(|n| self.found_before(path, *n));
        let i = match known {
            Some(is) => self.node(path.to_owned(), Need::Attributes, None, is, false),
            None => self.resolve(path).and_then(|(path, found)| {
                self.node(path, Need::Attributes, found.born, found.is, false)
            }),
        };
        if let Some(node) = i.and_then(|i| self.nodes.get_mut(i)) {
            node.at_us = node.at_us.min(at_us);
        }
    }

    /// Looks up names whose attributes were told and that the profile has not: all of them, if they are few; otherwise one for each block of inodes that none of the
    /// profile's lies in, and for each directory that is not listed as well.
    fn look_up_names(&mut self) {
        // What was asked for and then opened is fetched as what it was opened as, and its inode by that.
        let mut opened: Vec<usize> = Vec::new();
        for (entry, at_us) in std::mem::take(&mut self.asked_at) {
            match self.of_entry[entry] {
                Some(i) => {
                    self.nodes[i].at_us = self.nodes[i].at_us.min(at_us);
                    opened.push(i);
                }
                None => {
                    let path = self.profile.entries[entry].path.clone();
                    if self.has_room(&path) {
                        self.looked.insert(path.into_os_string(), Some(at_us));
                    }
                }
            }
        }
        let looked = std::mem::take(&mut self.looked);
        let mut names: Vec<(u64, OsString)> = Vec::new();
        if looked.len() + self.listed_looks <= NAMES {
            let left = looked
                .into_iter()
                .filter_map(|(name, at)| Some((at?, name)));
            names.extend(left);
        } else {
            let as_opened = |name: &OsString| {
                let needs = [Need::File, Need::Listing];
                needs.iter().find_map(|n| self.number(name.as_ref(), *n))
            };
            opened.extend(looked.keys().filter_map(as_opened));
            let opened = opened.iter().map(|i| &self.nodes[*i]);
            let known = self.nodes.iter().filter(|n| n.need == Need::Attributes);
            let mut blocks: HashSet<(u64, u64)> = known
                .chain(opened)
                .map(|n| self.block(self.path(n), self.key(n)))
                .collect();
            let mut stand_in: Vec<_> = std::mem::take(&mut self.stand_in).into_iter().collect();
            stand_in.sort();
            for ((dev, block, parent), (name, at_us)) in stand_in {
                let listed = self.number(Path::new(&parent), Need::Listing);
                if blocks.insert((dev, block)) || listed.is_none() {
                    names.push((at_us, name));
                }
            }
        }
        names.sort();
        for (at_us, name) in names {
            if !self.may_look() {
                return;
            }
            self.look_up_name(Path::new(&name), at_us);
        }
    }

    /// The attributes of what the profile has by this name, if it still is what it was: what has been found so before was looked up without links, and this run has
    /// not made it.
    fn found_before(&self, path: &Path, need: Need) -> Option<Attributes> {
        let entry = &self.profile.entries[self.listed.get(path, need)?];
        let found = self.begun.then(|| self.places.find(path).ok()).flatten()?;
        let fits = match need {
            Need::File => found.is_regular(),
            Need::Listing => found.is_directory(),
            Need::Attributes => true,
        };
        (fits && found.st.st_ino == entry.inode).then(|| found.st.into())
    }

    /// The absolute name without links of something on a disk, and what it is.
    fn resolve(&mut self, path: &Path) -> Option<(PathBuf, Is)> {
        if self.nodes.len() >= ENTRIES || !self.begun {
            return None;
        }
        if self.lies_straight(path) {
            // Whatever has become of the directory: no link is followed.
            let found = Is::of(self.places.look_up(path).ok()?)?;
            if found.kind != FileType::Symlink {
                return Some((path.to_owned(), found));
            }
        }
        let (name, found) = self.places.follow(path)?;
        // What has been removed meanwhile has no name.
        let is_here = self.places.is_looked_at(&name);
        let is = is_here.then(|| Is::of(found)).flatten();
        is.map(|is| (name, is))
    }

    /// Whether a path says what the name of its directory is, and it led there without links, on a disk: then it is the name of what is found by it, and what is not
    /// found isn't there. Names lie many to a directory. Nothing is found by this: a link may be in the directory's place by now.
    fn lies_straight(&mut self, path: &Path) -> bool {
        let mut parts = path.as_os_str().as_bytes().split(|b| *b == b'/').skip(1);
        let Some(parent) = path.parent() else {
            return false;
        };
        if parts.any(|part| [&b""[..], b".", b".."].contains(&part)) {
            return false;
        }
        if let Some(known) = self.straight.get(parent.as_os_str()) {
            return *known;
        }
        if !self.begun || !self.has_room(parent) {
            return false;
        }
        let straight = (self.places.find(parent)).is_ok_and(|found| found.is_directory());
        self.straight
            .insert(parent.as_os_str().to_owned(), straight);
        straight
    }

    fn node(
        &mut self,
        path: PathBuf,
        need: Need,
        born: Option<(i64, i64)>,
        is: Attributes,
        maybe: bool,
    ) -> Option<usize> {
        if let Some(i) = self.number(&path, need) {
            if !maybe {
                self.is_needed(i);
            }
            return Some(i);
        }
        if self.is_made_here(born) {
            return None;
        }
        let entry = self.listed.get(&path, need);
        if self.nodes.len() >= ENTRIES || entry.is_none() && !self.has_room(&path) {
            return None;
        }
        let path = if entry.is_some() {
            PathBuf::new()
        } else {
            path
        };
        Some(self.add(entry, path, need, is, maybe))
    }

    /// What the run makes itself is not there the next time.
    fn is_made_here(&self, born: Option<(i64, i64)>) -> bool {
        born.is_some_and(|born| born > self.began_at)
    }

    fn path<'a>(&'a self, node: &'a Node) -> &'a Path {
        match node.entry {
            Some(entry) => &self.profile.entries[entry].path,
            None => &node.path,
        }
    }

    fn key(&self, node: &Node) -> InodeKey {
        let device = match node.device {
            0 if self.begun => self.places.device(self.path(node)).unwrap_or(0),
            known => known,
        };
        InodeKey::new(device, node.inode)
    }

    /// A file that may have been needed is.
    fn is_needed(&mut self, i: usize) {
        if std::mem::take(&mut self.nodes[i].maybe) {
            self.news.extend(self.nodes[i].entry);
        }
    }

    /// What was told to be read since this was asked last, and what waits for its file's name.
    fn take_reads(&mut self) {
        let mut reads = std::mem::take(&mut self.unnamed);
        reads.append(&mut lock(&self.desk.reads));
        reads.retain(|(key, range)| !self.read(*key, range.clone()));
        // Names that were taken from the log may not be believed yet; without any that waits the file has none.
        if !self.told.is_empty() {
            if reads.len() > READS {
                reads.truncate(READS);
                self.loses();
            }
            self.unnamed = reads;
        }
    }

    /// A process is about to read; whether it is known what.
    fn read(&mut self, key: InodeKey, range: ByteRange) -> bool {
        let i = self.by_key.get(&key).copied();
        let i = i.or_else(|| self.believed_key(key));
        let Some((i, node)) = i.and_then(|i| Some((i, self.nodes.get(i)?))) else {
            return false;
        };
        let end = range.end.min(node.size);
        let pages = PageRange::from_bytes(range.start, end.saturating_sub(range.start));
        self.touch(i, pages);
        true
    }

    /// The node of what the profile has by this inode, and was seen.
    fn believed_key(&mut self, key: InodeKey) -> Option<usize> {
        self.replay.as_ref()?;
        let by_inode = self.by_inode.get_or_insert_with(|| {
            let mut all: HashMap<u64, Vec<usize>> = HashMap::new();
            for (i, entry) in self.profile.entries.iter().enumerate() {
                if entry.need == Need::File {
                    all.entry(entry.inode).or_default().push(i);
                }
            }
            all
        });
        let of = by_inode.get(&key.ino)?.iter();
        let nodes: Vec<usize> = of.filter_map(|entry| self.of_entry[*entry]).collect();
        let i = nodes.into_iter().find(|i| {
            let node = &self.nodes[*i];
            node.inode == key.ino && self.key(node).dev == key.dev
        })?;
        self.by_key.insert(key, i);
        Some(i)
    }

    /// Looks at the page tables of the program and of all below it that have the service's rights: by what others have mapped and open it would look up, and
    /// open, what they may not.
    fn look_at_processes(&mut self) {
        self.looks += 1;
        let pids = below(self.subject.runner, PROCESSES);
        self.grown.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            if !self.may_look() {
                return;
            }
            self.look_at(pid);
        }
    }

    fn look_at(&mut self, pid: u32) {
        let Ok(statm) = text::read_bytes(format!("/proc/{pid}/statm")) else {
            return;
        };
        let statm = String::from_utf8_lossy(&statm);
        let scans = self.scans();
        let hooks = self.grown.get(&pid).is_some_and(|(_, hooked)| *hooked);
        let grown = Grown::of(&statm, hooks, scans);
        if self.grown.get(&pid).is_some_and(|(last, _)| *last == grown) {
            return;
        }
        self.grown.insert(pid, (grown, hooks));
        if !is_like_this(pid) {
            return;
        }
        let Ok(file) = crate::fetch::maps(pid) else {
            return;
        };
        let mut text = Vec::new();
        if file.take(MAPS).read_to_end(&mut text).is_err() {
            return;
        }
        let maps = || text.split(|b| *b == b'\n').filter_map(Mapping::of);
        // It has not become the program yet.
        if !hooks && maps().any(|map| map.path == self.own) {
            return;
        }
        let pagemap = Pagemap::of(pid).ok();
        let mut hooked = false;
        // A library has several mappings, one after the other.
        let mut last: Option<(PathBuf, Option<usize>)> = None;
        for map in maps() {
            if !self.may_look() {
                return;
            }
            let known = last.as_ref().filter(|(path, _)| *path == map.path);
            let i = match known {
                Some((_, i)) => *i,
                None => {
                    hooked |= map.path.ends_with("liboutrider.so");
                    let i = self.opened(&map.path, false);
                    last = Some((map.path.clone(), i));
                    i
                }
            };
            let Some(i) = i else { continue };
            let Some(pagemap) = &pagemap else { continue };
            if !scans && self.listed.get(&map.path, Need::File).is_some() {
                continue;
            }
            let mut pages = Vec::new();
            let mut mark = |found: std::ops::Range<u64>| {
                let at = |address: u64| (map.offset + (address - map.start)) / PAGE;
                pages.push(PageRange::new(at(found.start), at(found.end)));
            };
            let span = map.start..map.end;
            if pagemap.scan(span.clone(), &mut mark).is_err() {
                let _ = pagemap.read(span, &mut mark);
            }
            let node = &mut self.nodes[i];
            node.looks += u32::from(node.looked != self.looks);
            node.looked = self.looks;
            pages.into_iter().for_each(|pages| self.touch(i, pages));
            // The loader reads the head of what it maps.
            self.touch(i, PageRange::new(0, 1));
        }
        if hooked != hooks {
            // From here on less of it is looked at, or more, as of what has become a static program.
            let grown = Grown::of(&statm, hooked, scans);
            self.grown.insert(pid, (grown, hooked));
        }
        if !hooked {
            self.look_at_descriptors(pid);
        }
    }

    /// What a process without the hooks has open.
    fn look_at_descriptors(&mut self, pid: u32) {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
        let open = open.into_iter().flatten().flatten().take(DESCRIPTORS);
        for entry in open {
            let name = std::fs::read_link(entry.path()).unwrap_or_default();
            let number = entry.file_name();
            let known =
                self.known.contains(name.as_os_str()) || self.number(&name, Need::File).is_some();
            let reads = |number: &str| crate::fetch::is_open_for_reading(pid, number);
            if name.is_absolute() && (known || number.to_str().is_some_and(reads)) {
                self.opened(&name, false);
            }
        }
    }

    /// All that was needed, in order.
    fn seen(&mut self) -> Needs {
        let (checked, scans) = (self.check(), self.scans());
        let before = self.replay.as_ref().map(|r| r.before()).unwrap_or_default();
        // A library is looked for before it is loaded, and only seen once it is.
        let mut looked: HashMap<&OsStr, u64> = HashMap::new();
        for node in self.nodes.iter().filter(|n| n.need == Need::Attributes) {
            looked.insert(self.path(node).as_os_str(), node.at_us);
        }
        let mut richer: HashSet<&OsStr> = HashSet::new();
        if !looked.is_empty() {
            let others = self.nodes.iter().filter(|n| n.need != Need::Attributes);
            let names = others.map(|n| self.path(n).as_os_str());
            richer.extend(names.filter(|name| looked.contains_key(name)));
        }
        let mut needs = Needs::default();
        // What was believed before fits, too.
        let mut known = checked && !scans;
        needs.all = !self.calm;
        for node in &self.nodes {
            let path = self.path(node);
            if node.need == Need::Attributes && richer.contains(path.as_os_str()) {
                continue;
            }
            let entry = node.entry.map(|i| &self.profile.entries[i]);
            let fetched = node.entry.and_then(|i| before.get(&i));
            let pages = match node.need {
                Need::File => match self.pages(node, path, entry, fetched) {
                    Some(pages) => pages,
                    None => continue,
                },
                Need::Listing | Need::Attributes => Vec::new(),
            };
            known &= entry.is_some_and(|e| {
                e.seen.is_likely()
                    && node.fits(e)
                    && (pages.is_empty() || intersect(&pages, &e.pages(e.size)) == pages)
            });
            needs.entries.extend(node.entry);
            let at = looked.get(path.as_os_str()).copied();
            needs.seen.push(Seen {
                path: path.to_owned(),
                need: node.need,
                size: node.size,
                modified: node.modified,
                inode: node.inode,
                at_us: node.at_us.min(at.unwrap_or(u64::MAX)),
                pages,
                all: node.looks >= SURE,
            });
        }
        // What is not fetched any more is forgotten by and by.
        let mut unseen = vec![true; self.profile.entries.len()];
        needs.entries.iter().for_each(|i| unseen[*i] = false);
        let each = self.profile.entries.iter().zip(unseen);
        needs.known = known
            && each
                .filter(|(_, unseen)| *unseen)
                .all(|(e, _)| e.seen.is_likely());
        needs
    }

    /// Whether the page tables of files that the profile has are looked at.
    fn scans(&mut self) -> bool {
        let often = self.profile.runs < WELL_KNOWN || self.profile.runs.is_multiple_of(AGAIN);
        often && !self.is_calm()
    }

    /// What was believed to be what it was is looked up, if one of those that the replay has looked up isn't; `false`: nothing may be looked up.
    /// Directories, and what is only asked about, change whenever something is made in them or written, which says nothing of others.
    fn check(&mut self) -> bool {
        let Some(replay) = &self.replay else {
            return true;
        };
        let found = replay.found();
        let mut changed = false;
        for node in self.nodes.iter_mut().filter(|n| n.device == 0) {
            let is = node.entry.and_then(|entry| found.get(&entry));
            if let Some(is) = is {
                let (size, modified) = match node.need {
                    Need::File => (is.size, is.modified),
                    Need::Listing | Need::Attributes => (node.size, node.modified),
                };
                let now = (is.key.ino, size, modified);
                let as_before = now == (node.inode, node.size, node.modified);
                changed |= !as_before;
                if as_before {
                    node.device = is.key.dev;
                }
            }
        }
        if !changed {
            return true;
        }
        let mut checked = true;
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.retain_mut(|node| {
            // Where nothing may be looked up any more nobody knows.
            checked &= self.may_look();
            if node.device != 0 || !checked {
                return true;
            }
            self.is_there(node).is_some_and(|is| node.is(is))
        });
        self.nodes = nodes;
        checked
    }

    /// What it is, if it is there and this run has not made it.
    fn is_there(&mut self, node: &Node) -> Option<Attributes> {
        let path = self.path(node);
        if let Some(is) = self.found_before(path, node.need) {
            return Some(is);
        }
        let path = path.to_owned();
        let (name, found) = self.resolve(&path)?;
        (name == path && !self.is_made_here(found.born)).then_some(found.is)
    }

    /// Which of these pages of a file are cached, if the kernel tells, and the file may be opened: that shows to others, which is left out where somebody watches.
    fn cached(&self, path: &Path, of: &[PageRange]) -> Option<Vec<PageRange>> {
        if !self.may_look() || !self.terms.is_allowed() {
            return None;
        }
        let found = self.places.find(path).ok()?;
        let may = found.is_regular() && !self.terms.is_untouchable(found.key());
        let file = may.then(|| found.open()).flatten()?;
        // What a profile says of its size may be anything.
        let end = pages_of(found.size());
        let mut cached = Vec::new();
        for part in intersect(of, &[PageRange::new(0, end)]) {
            let missing = residency::missing(file.as_fd(), part)?;
            cached.extend(intersect(&complement(&missing, part.end), &[part]));
        }
        Some(cached)
    }

    /// The pages of a file that were needed; `None`: it wasn't. `entry` is its place in the profile, `fetched` what was fetched of it, or cached before.
    fn pages(
        &self,
        node: &Node,
        path: &Path,
        entry: Option<&Entry>,
        fetched: Option<&Before>,
    ) -> Option<Vec<PageRange>> {
        let end = pages_of(node.size);
        if node.size < WHOLE && !node.maybe {
            return Some(Vec::from_iter((end > 0).then(|| PageRange::new(0, end))));
        }
        // Where page tables tell, what the kernel has read around what was touched is not needed, unless it was touched after the last look.
        let waited_for = entry.is_some() || node.looks == 0;
        let before = fetched.or(node.before.as_ref()).filter(|_| waited_for);
        // Of what was cached before nothing can have come.
        let could_come = before.map(|before| complement(before, end));
        let came = could_come
            .filter(|pages| !pages.is_empty())
            .map(|pages| self.cached(path, &pages).unwrap_or_default());
        let mut pages = node.touched.clone();
        pages.extend(came.unwrap_or_default());
        pages.sort_unstable_by_key(|r| r.start);
        let pages = join(pages.into_iter(), 0);
        if !pages.is_empty() || node.maybe {
            return (!pages.is_empty()).then_some(pages);
        }
        if entry.is_some_and(|e| !e.spans.is_empty()) {
            return Some(Vec::new());
        }
        let begin = [PageRange::new(0, end.min(UNKNOWN / PAGE))];
        Some(self.cached(path, &begin).unwrap_or(begin.to_vec()))
    }
}

impl Node {
    /// Whether it still is what the profile says, as far as that matters for what is fetched.
    fn fits(&self, entry: &Entry) -> bool {
        let same = (entry.size, entry.modified) == (self.size, self.modified);
        entry.inode == self.inode && (same || self.need != Need::File)
    }

    /// It turns out to be this; whether it fits.
    fn is(&mut self, is: Attributes) -> bool {
        (self.device, self.inode) = (is.key.dev, is.key.ino);
        (self.size, self.modified) = (is.size, is.modified);
        true
    }

    /// Whether pages are next to those that were touched last, or among them.
    fn goes_on(&self, pages: &PageRange) -> bool {
        let last = self.touched.last();
        last.is_some_and(|last| last.start <= pages.start && pages.start <= last.end)
    }

    fn touch(&mut self, pages: PageRange) {
        /// Ranges that are kept apart until they are put in order.
        const MANY: usize = 4096;
        if pages.start >= pages.end {
            return;
        }
        let goes_on = self.goes_on(&pages);
        match self.touched.last_mut().filter(|_| goes_on) {
            Some(last) => last.end = last.end.max(pages.end),
            None => self.touched.push(pages),
        }
        if self.touched.len() >= MANY && self.touched.len().is_power_of_two() {
            self.touched.sort_unstable_by_key(|r| r.start);
            self.touched = join(std::mem::take(&mut self.touched).into_iter(), 0);
        }
    }
}

/// The program that a runner has started and all below it, as many at most.
pub(super) fn below(runner: u32, most: usize) -> Vec<u32> {
    let own = raw::getpid();
    let mut below = crate::fetch::children(runner);
    below.retain(|pid| *pid != own);
    let mut at = 0;
    while at < below.len().min(most) {
        below.extend(crate::fetch::children(below[at]));
        at += 1;
    }
    below.truncate(most);
    below
}

/// Whether a process has the service's rights, at this moment or a millisecond ago.
fn is_like_this(pid: u32) -> bool {
    Watch::of(pid).is_ok_and(|mut watch| watch.is_like_this())
}

/// By what it is seen that a process may have mapped more, or touched more of what it has mapped: numbers of /proc/PID/statm. Of one with `hooks`, which tell what
/// it opens, those of its own memory don't matter; where page tables aren't read, neither does what it has touched.
#[derive(PartialEq, Eq)]
struct Grown {
    /// Pages that are mapped and can't be written to.
    fixed: u64,
    /// Pages of files that it has touched.
    files: u64,
    /// All the rest.
    own: Option<[u64; 2]>,
}

impl Grown {
    fn of(statm: &str, hooks: bool, scans: bool) -> Grown {
        let mut numbers = statm
            .split_ascii_whitespace()
            .map(|n| n.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        let [size, resident, files] = [next(), next(), next()];
        let data: u64 = numbers.nth(2).unwrap_or(0);
        Grown {
            fixed: size.saturating_sub(data),
            files: if hooks && !scans { 0 } else { files },
            own: (!hooks).then_some([resident, data]),
        }
    }
}

/// A mapping of a file, addresses and bytes.
struct Mapping {
    start: u64,
    end: u64,
    offset: u64,
    path: PathBuf,
}

impl Mapping {
    /// From a line of /proc/PID/maps.
    fn of(line: &[u8]) -> Option<Mapping> {
        let at = line.iter().position(|b| *b == b'/')?;
        let (head, name) = line.split_at(at);
        let mut fields = std::str::from_utf8(head).ok()?.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let [start, end, offset] =
            [start, end, fields.nth(1)?].map(|n| u64::from_str_radix(n, 16).ok());
        let (start, end) = (start?, end?);
        let gone = name.ends_with(b" (deleted)");
        (!gone && start < end).then(|| Mapping {
            start,
            end,
            offset: offset.unwrap_or(0),
            path: PathBuf::from(OsStr::from_bytes(name)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn mappings_are_read() {
        let line = b"7f2c4000-7f2c8000 r-xp 00026000 08:01 1311 /usr/lib/x y.so";
        let map = Mapping::of(line).unwrap();
        assert_eq!(
            (map.start, map.end, map.offset),
            (0x7f2c4000, 0x7f2c8000, 0x26000)
        );
        assert_eq!(map.path, Path::new("/usr/lib/x y.so"));
        assert!(Mapping::of(b"7f2c4000-7f2c8000 r-xp 0 08:01 1 /x (deleted)").is_none());
        assert!(Mapping::of(b"7f2c4000-7f2c8000 rw-p 00000000 00:00 0 [heap]").is_none());
    }
    fn witness() -> (Observer, Witness) {
        let shared = Arc::new(Shared::create(0, 65536).unwrap());
        let (tell, _) = channel();
        let desk = Arc::<Desk>::default();
        let observer = Observer {
            tell,
            desk: desk.clone(),
            shared: shared.clone(),
        };
        let subject = Subject {
            runner: raw::getpid(),
            log: None,
            log_is: InodeKey::default(),
            files: Vec::new(),
            directory: PathBuf::new(),
            began_at: raw::clock(libc::CLOCK_REALTIME),
        };
        let grounds = (Arc::new(Places::new()), Arc::new(Terms::default()));
        let witness = Witness::new(subject, Arc::default(), None, grounds, (desk, shared));
        (observer, witness)
    }

    fn loses(of: &Observer) -> bool {
        of.shared.header().notes.lost.swap(0, Relaxed) & lost::CLAIMS != 0
    }

    /// B12, B16: what processes tell takes so much memory and no more, also while the thread that takes it hangs: reads that are not taken, names, and pages.
    #[test]
    fn what_is_told_has_bounds() {
        let (observer, mut witness) = witness();
        assert!(witness.begins());
        let file = InodeKey::new(7, 7);
        for i in 0..2 * READS as u64 {
            observer.read(file, 2 * i * PAGE..(2 * i + 1) * PAGE);
            assert_eq!(loses(&observer), i >= READS as u64);
        }
        assert_eq!(lock(&observer.desk.reads).len(), READS);
        let names = (0..).map(|i| PathBuf::from(format!("/nowhere/{}{i}", "x".repeat(4000))));
        let told = names.take(2 * NAMES_BYTES / 4000);
        for (i, name) in told.enumerate() {
            match i % 2 {
                0 => drop(witness.opened(&name, false)),
                _ => witness.looked(name, false),
            }
        }
        assert!(loses(&observer));
        let known = witness.known.iter().chain(witness.looked.keys());
        let bytes: usize = known.map(|n| n.len()).sum();
        assert!((NAMES_BYTES / 2..=NAMES_BYTES).contains(&bytes), "{bytes}");
        let is = Attributes {
            key: file,
            size: u64::MAX,
            modified: 0,
        };
        let node = witness.node("/x".into(), Need::File, None, is, false);
        assert_eq!(node, Some(0));
        let pages = |i: usize| PageRange::new(2 * i as u64, 2 * i as u64 + 1);
        (0..RANGES + 1000).for_each(|i| witness.touch(0, pages(i)));
        assert!(loses(&observer));
        assert_eq!(
            (witness.ranges, witness.nodes[0].touched.len()),
            (RANGES, RANGES)
        );
        // What goes on takes no more.
        let last = witness.nodes[0].touched[RANGES - 1];
        witness.touch(0, PageRange::new(last.end, last.end + 9));
        assert!(!loses(&observer));
    }
    /// B15: what is told to be read of a file whose name is not believed yet waits for that, and for no other file.
    #[test]
    fn reads_wait_for_names() {
        let (observer, mut witness) = witness();
        let (file, nobodys) = (InodeKey::new(7, 7), InodeKey::new(7, 8));
        let is = Attributes {
            key: file,
            size: 9 * PAGE,
            modified: 0,
        };
        witness.told.push_back(Told {
            path: "/x".into(),
            did: Did::Open,
            sample: false,
            known: false,
        });
        observer.read(file, 2 * PAGE..4 * PAGE);
        observer.read(nobodys, 0..PAGE);
        witness.take_reads();
        witness.told.clear();
        witness.node("/x".into(), Need::File, None, is, false);
        witness.take_reads();
        assert_eq!(witness.nodes[0].touched, [PageRange::new(2, 4)]);
        assert!(witness.unnamed.is_empty());
    }
    /// B16: what is known of a directory spares following links, and never has one followed; it counts as the names do. Nothing is looked up or opened but
    /// on the service's terms.
    #[test]
    fn look_ups_keep_to_the_terms() {
        let (observer, mut witness) = witness();
        let root = std::env::temp_dir().join(format!("outrider-terms-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        let root = root.canonicalize().unwrap();
        if !witness.places.is_looked_at(&root) {
            std::fs::remove_dir(&root).unwrap();
            return;
        }
        let (a, b) = (root.join("a"), root.join("b"));
        let file = a.join("f");
        for dir in [&a, &b] {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join("f"), vec![1; 4 * PAGE as usize]).unwrap();
        }
        assert!(
            witness.resolve(&file).is_none()
                && witness.cached(&file, &[PageRange::new(0, 4)]).is_none()
        );
        assert!(witness.straight.is_empty() && observer.is_idle());
        assert!(witness.begins() && !observer.is_idle());
        let (name, found) = witness.resolve(&file).unwrap();
        assert_eq!(name, file);
        assert!(witness.resolve(&a.join("none")).is_none());
        assert_eq!(
            witness.names,
            a.as_os_str().len() + NAME_BYTES,
            "one directory"
        );
        assert!(
            witness
                .cached(&file, &[PageRange::new(0, u64::MAX)])
                .is_some()
        );
        witness.terms.allow(false);
        assert!(witness.cached(&file, &[PageRange::new(0, 4)]).is_none());
        witness.terms.allow(true);
        witness.terms.leave(found.is.key);
        assert!(witness.cached(&file, &[PageRange::new(0, 4)]).is_none());
        // Another name for it has links in it, and is followed as it was.
        std::os::unix::fs::symlink(&a, root.join("link")).unwrap();
        let (name, same) = witness.resolve(&root.join("link/../link/f")).unwrap();
        assert_eq!((name, same.is.key), (file.clone(), found.is.key));
        // A link comes in the directory's place.
        std::fs::rename(&a, root.join("c")).unwrap();
        std::os::unix::fs::symlink(&b, &a).unwrap();
        assert!(witness.resolve(&file).is_none());
        witness.terms.hold_back(true);
        assert!(!witness.may_look());
        witness.pauses();
        assert!(!witness.begins() && observer.is_idle());
        assert!(witness.resolve(&b.join("f")).is_none());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
