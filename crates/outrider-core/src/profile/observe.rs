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

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrider_sys::pagemap::Pagemap;
use outrider_sys::raw;
use outrider_sys::units::{ByteRange, InodeKey, PAGE, PageRange, pages_of};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags};

use super::model::{Entry, Need, Profile, Seen, join};
use super::place::{Attributes, Places};
use super::replay::{Before, Replay, complement, intersect};
use crate::lock;
use crate::needs::{self, Did};
use crate::residency;
use crate::tree::inode_block;

/// Files of fewer bytes count as needed whole: the kernel's first readahead window brings as much in.
pub(super) const WHOLE: u64 = 128 << 10;
/// Of a file of which nobody knows better so much counts as needed, bytes.
const UNKNOWN: u64 = 8 << 20;
/// From one look at the log to the next: after one that has found something, and at most.
const LOOK: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(20);
/// … where all that a profile has is cached: nobody waits for what is in the log, and a look every 5 ms costs a thousandth of a processor.
const CALM: Duration = Duration::from_millis(5);
/// … and at the page tables, at first and at most.
const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);
/// Once a run has taken so long they are looked at once a second.
const START: Duration = Duration::from_secs(30);
const LATER: Duration = Duration::from_secs(1);
/// Processes that are looked at, bytes of what /proc/PID/maps says of each, and descriptors.
const PROCESSES: usize = 128;
const MAPS: u64 = 1 << 20;
const DESCRIPTORS: usize = 256;
/// Names whose attributes are asked for: so many are remembered all, and of more those of [`needs::is_sample`] whose inodes others are read with.
const NAMES: usize = 1024;
/// At the end of a run names are looked up for so long at most: what is left is learned by the next one.
const BACKLOG: Duration = Duration::from_millis(30);
/// Entries of one run at most.
const ENTRIES: usize = 1 << 18;
/// After so many runs only every fourth looks at the page tables of files that the profile has: what it has of them stays meanwhile, and what the program waits for
/// is learned all the same.
const WELL_KNOWN: u32 = 3;
const AGAIN: u32 = 4;
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
}

/// Reads that were told and not taken yet: the service doesn't wake anybody for each of them.
type Reads = Arc<Mutex<Vec<(InodeKey, ByteRange)>>>;

/// The service's end.
pub struct Observer {
    tell: Sender<End>,
    reads: Reads,
}

/// What is observed.
pub struct Subject {
    /// The process whose child the program is.
    pub runner: u32,
    /// What hooks write.
    pub log: Option<needs::Mapped>,
    /// The program's file and its arguments that may be files, as they were named in `directory`.
    pub files: Vec<PathBuf>,
    /// Where it was started.
    pub directory: PathBuf,
}

impl Observer {
    /// Starts the thread. `None` if there is none to be had.
    pub fn start(
        subject: Subject,
        profile: Arc<Profile>,
        replay: Option<Arc<Replay>>,
        places: Arc<Places>,
    ) -> Option<Observer> {
        let (tell, told) = channel();
        let reads = Reads::default();
        let witness = Witness::new(subject, profile, replay, places, reads.clone());
        let thread = std::thread::Builder::new().name("outrider-profile".into());
        thread.spawn(move || witness.run(&told)).ok()?;
        Some(Observer { tell, reads })
    }

    /// A process is about to read.
    pub fn read(&self, file: InodeKey, range: ByteRange) {
        let mut reads = lock(&self.reads);
        match reads.last_mut() {
            Some((last, before)) if *last == file && before.end == range.start => {
                before.end = range.end;
            }
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
    fn of(dir: impl AsFd, path: &Path, flags: AtFlags) -> Option<Is> {
        let what = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let (dir, knows) = (dir.as_fd(), |st: &Statx, what: StatxFlags| {
            st.stx_mask & what.bits() != 0
        });
        match rustix::fs::statx(dir, path, flags, what) {
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
                born: knows(&st, StatxFlags::BTIME)
                    .then_some((st.stx_btime.tv_sec, st.stx_btime.tv_nsec.into())),
            }),
            // A filter that doesn't know it.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                let st = rustix::fs::statat(dir, path, flags).ok()?;
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

struct Witness {
    subject: Subject,
    replay: Option<Arc<Replay>>,
    places: Arc<Places>,
    began: Instant,
    /// By the clock that file systems take times from.
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
    /// Of directories in which something was looked up, whether their names lead there without links, on a disk.
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
    /// What /proc/PID/statm said.
    grown: HashMap<u32, String>,
    /// Looks at processes.
    looks: u64,
    profile: Arc<Profile>,
    reads: Reads,
}

impl Witness {
    fn new(
        subject: Subject,
        profile: Arc<Profile>,
        replay: Option<Arc<Replay>>,
        places: Arc<Places>,
        reads: Reads,
    ) -> Witness {
        Witness {
            subject,
            replay,
            places,
            began: Instant::now(),
            began_at: raw::clock(libc::CLOCK_REALTIME_COARSE),
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
            grown: HashMap::new(),
            looks: 0,
            profile,
            reads,
        }
    }

    fn run(mut self, told: &Receiver<End>) {
        for (i, entry) in self.profile.entries.iter().enumerate() {
            self.listed.insert(&entry.path, entry.need, i);
        }
        for (i, path) in std::mem::take(&mut self.subject.files)
            .into_iter()
            .enumerate()
        {
            self.opened(&path, i > 0);
        }
        let (mut pause, mut next) = (FIRST, Instant::now() + FIRST);
        let mut look = LOOK;
        loop {
            let left = next.saturating_duration_since(Instant::now());
            match told.recv_timeout(look.min(left.max(LOOK))) {
                Ok(End(answer)) => {
                    self.take_log(true);
                    self.take_reads();
                    self.look_up_names();
                    let _ = answer.send(self.seen());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let before = self.taken;
            self.take_log(false);
            self.take_reads();
            let heeds = self.replay.as_ref().is_none_or(|replay| replay.heeds());
            look = match self.taken == before {
                true => (look * 2).min(IDLE),
                false if heeds || std::mem::take(&mut self.hurries) => LOOK,
                false => CALM,
            };
            if Instant::now() >= next {
                self.look_at_processes();
                let most = match self.began.elapsed() < START {
                    true => LONGEST,
                    false => LATER,
                };
                pause = (pause * 2).min(most);
                next = Instant::now() + pause;
            }
            self.tell_news();
        }
    }

    fn tell_news(&mut self) {
        let news = std::mem::take(&mut self.news);
        if let Some(replay) = self.replay.as_ref().filter(|_| !news.is_empty()) {
            replay.needed(news);
        }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn take_log(&mut self, end: bool) {
        let Some(log) = self.subject.log else {
            return;
        };
        let began = Instant::now();
        // Who changes its directory is seen in the new one all the same, or in the old one, if it has just done so.
        let mut directories: HashMap<u32, PathBuf> = HashMap::new();
        while let Some(entry) = log.take(&mut self.taken, end) {
            if end && began.elapsed() > BACKLOG {
                return;
            }
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
            match entry.did {
                Did::Open | Did::Start => drop(self.opened(&path, false)),
                Did::Look => self.looked(path, needs::is_sample(&entry.name)),
            }
        }
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
            self.nodes[i].before = self.cached(self.path(node), pages_of(node.size));
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
        Some(self.entry(entry, maybe))
    }

    /// What the profile has was needed, `maybe`, and is what it was.
    fn entry(&mut self, entry: usize, maybe: bool) -> usize {
        if let Some(i) = self.of_entry[entry] {
            if !maybe {
                self.is_needed(i);
            }
            return i;
        }
        let known = &self.profile.entries[entry];
        let is = Attributes {
            key: InodeKey::new(0, known.inode),
            size: known.size,
            modified: known.modified,
        };
        self.add(Some(entry), PathBuf::new(), known.need, is, maybe)
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
        if self.looked.len() >= ENTRIES || self.looked.contains_key(path.as_os_str()) {
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
        let Ok(st) = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) else {
            return;
        };
        let (dev, block) = self.block(path, InodeKey::new(st.st_dev, st.st_ino));
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
        for (entry, at_us) in std::mem::take(&mut self.asked_at) {
            match self.of_entry[entry] {
                Some(i) => self.nodes[i].at_us = self.nodes[i].at_us.min(at_us),
                None => {
                    let path = self.profile.entries[entry].path.clone();
                    self.looked.insert(path.into_os_string(), Some(at_us));
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
            let known = self.nodes.iter().filter(|n| n.need == Need::Attributes);
            let mut blocks: HashSet<(u64, u64)> = known
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
            self.look_up_name(Path::new(&name), at_us);
        }
    }

    /// The attributes of what the profile has by this name, if it still is what it was: what has been found so before was looked up without links, and this run has
    /// not made it.
    fn found_before(&self, path: &Path, need: Need) -> Option<Attributes> {
        let entry = &self.profile.entries[self.listed.get(path, need)?];
        if !self.places.is_looked_at(path) {
            return None;
        }
        let st = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let kind = FileType::from_raw_mode(st.st_mode);
        let fits = match need {
            Need::File => kind == FileType::RegularFile,
            Need::Listing => kind == FileType::Directory,
            Need::Attributes => true,
        };
        (fits && st.st_ino == entry.inode).then(|| st.into())
    }

    /// The absolute name without links of something on a disk, and what it is.
    fn resolve(&mut self, path: &Path) -> Option<(PathBuf, Is)> {
        if self.nodes.len() >= ENTRIES {
            return None;
        }
        if self.lies_straight(path) {
            let is = Is::of(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
            if is.kind != FileType::Symlink {
                return Some((path.to_owned(), is));
            }
        }
        if !self.places.is_looked_at(path) {
            return None;
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let found = rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?;
        let name = crate::fetch::name(found.as_fd());
        // What has been removed meanwhile has no name.
        let is_here = name.is_absolute() && self.places.is_looked_at(&name);
        let is = Is::of(found.as_fd(), Path::new(""), AtFlags::EMPTY_PATH);
        is.filter(|_| is_here).map(|is| (name, is))
    }

    /// Whether the directory that a path lies in has the name that the path says, on a disk, and nothing is mounted on the path itself. Names lie many to a directory.
    fn lies_straight(&mut self, path: &Path) -> bool {
        let bytes = path.as_os_str().as_bytes();
        let Some(at) = bytes.iter().rposition(|b| *b == b'/').filter(|at| *at > 0) else {
            return false;
        };
        let (parent, last) = (OsStr::from_bytes(&bytes[..at]), &bytes[at + 1..]);
        if [&b""[..], b".", b".."].contains(&last) || self.places.is_mounted(path) {
            return false;
        }
        if let Some(known) = self.straight.get(parent) {
            return *known;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let looked_at = self.places.is_looked_at(Path::new(parent));
        let found = (looked_at).then(|| rustix::fs::openat(CWD, parent, flags, Mode::empty()).ok());
        let found = found.flatten();
        let straight = found.is_some_and(|f| crate::fetch::name(f.as_fd()).as_os_str() == parent);
        self.straight.insert(parent.to_owned(), straight);
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
            0 => self.places.device(self.path(node)).unwrap_or(0),
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

    /// What was told to be read since this was asked last.
    fn take_reads(&mut self) {
        let reads = std::mem::take(&mut *lock(&self.reads));
        reads
            .into_iter()
            .for_each(|(key, range)| self.read(key, range));
    }

    /// A process is about to read.
    fn read(&mut self, key: InodeKey, range: ByteRange) {
        let i = self.by_key.get(&key).copied();
        let i = i.or_else(|| self.believed_key(key));
        if let Some(node) = i.and_then(|i| self.nodes.get_mut(i)) {
            let end = range.end.min(node.size);
            node.touch(PageRange::from_bytes(
                range.start,
                end.saturating_sub(range.start),
            ));
        }
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

    /// Looks at the page tables of the program and of all below it.
    fn look_at_processes(&mut self) {
        self.looks += 1;
        let mut below = crate::fetch::children(self.subject.runner);
        let own = raw::getpid();
        below.retain(|pid| *pid != own);
        let mut at = 0;
        while at < below.len().min(PROCESSES) {
            let pid = below[at];
            at += 1;
            below.extend(crate::fetch::children(pid));
            self.look_at(pid);
        }
    }

    fn look_at(&mut self, pid: u32) {
        let Ok(statm) = std::fs::read_to_string(format!("/proc/{pid}/statm")) else {
            return;
        };
        if self.grown.get(&pid) == Some(&statm) {
            return;
        }
        self.grown.insert(pid, statm);
        let Ok(file) = std::fs::File::open(format!("/proc/{pid}/maps")) else {
            return;
        };
        let mut text = Vec::new();
        if file.take(MAPS).read_to_end(&mut text).is_err() {
            return;
        }
        let pagemap = Pagemap::of(pid).ok();
        let scans = self.scans();
        let mut hooked = false;
        for line in text.split(|b| *b == b'\n') {
            let Some(map) = Mapping::of(line) else {
                continue;
            };
            hooked |= map.path.ends_with("liboutrider.so");
            let Some(i) = self.opened(&map.path, false) else {
                continue;
            };
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
            pages.into_iter().for_each(|pages| node.touch(pages));
            // The loader reads the head of what it maps.
            node.touch(PageRange::new(0, 1));
        }
        if !hooked {
            let open = std::fs::read_dir(format!("/proc/{pid}/fd"));
            let open = open.into_iter().flatten().flatten().take(DESCRIPTORS);
            let names: Vec<PathBuf> = open
                .filter_map(|e| std::fs::read_link(e.path()).ok())
                .collect();
            for name in names.iter().filter(|n| n.is_absolute()) {
                self.opened(name, false);
            }
        }
    }

    /// All that was needed, in order.
    fn seen(&mut self) -> Needs {
        self.check();
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
        let mut known = !self.scans();
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
            let is = (node.size, node.modified, node.inode);
            known &= entry.is_some_and(|e| {
                e.seen.is_likely()
                    && (e.size, e.modified, e.inode) == is
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
    fn scans(&self) -> bool {
        self.profile.runs < WELL_KNOWN || self.profile.runs.is_multiple_of(AGAIN)
    }

    /// What was believed to be what it was is looked up, if one of those that the replay has looked up isn't.
    fn check(&mut self) {
        let Some(replay) = &self.replay else { return };
        let found = replay.found();
        let mut changed = false;
        for node in self.nodes.iter_mut().filter(|n| n.device == 0) {
            let is = node.entry.and_then(|entry| found.get(&entry));
            if let Some(is) = is {
                let as_before =
                    (is.key.ino, is.size, is.modified) == (node.inode, node.size, node.modified);
                changed |= !as_before;
                if as_before {
                    node.device = is.key.dev;
                }
            }
        }
        if !changed {
            return;
        }
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.retain_mut(|node| {
            let is = (node.device == 0).then(|| self.is_there(node));
            is.is_none_or(|is| is.is_some_and(|is| node.is(is)))
        });
        self.nodes = nodes;
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

    /// Which of the first pages of a file are cached, if the kernel tells.
    fn cached(&self, path: &Path, end: u64) -> Option<Vec<PageRange>> {
        let file = self.places.find(path).ok()?;
        let file = file.is_regular().then(|| file.open()).flatten()?;
        let missing = residency::missing(file.as_fd(), PageRange::new(0, end))?;
        Some(complement(&missing, end))
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
        let came = could_come.filter(|pages| !pages.is_empty()).map(|pages| {
            let cached = self.cached(path, end).unwrap_or_default();
            intersect(&cached, &pages)
        });
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
        Some(match self.cached(path, end) {
            Some(cached) => intersect(&cached, &begin),
            None => begin.to_vec(),
        })
    }
}

impl Node {
    /// It turns out to be this; whether it fits.
    fn is(&mut self, is: Attributes) -> bool {
        (self.device, self.inode) = (is.key.dev, is.key.ino);
        (self.size, self.modified) = (is.size, is.modified);
        true
    }

    fn touch(&mut self, pages: PageRange) {
        /// Ranges that are kept apart until they are put in order.
        const MANY: usize = 4096;
        if pages.start >= pages.end {
            return;
        }
        match self.touched.last_mut() {
            Some(last) if last.start <= pages.start && pages.start <= last.end => {
                last.end = last.end.max(pages.end);
            }
            _ => self.touched.push(pages),
        }
        if self.touched.len() >= MANY && self.touched.len().is_power_of_two() {
            self.touched.sort_unstable_by_key(|r| r.start);
            self.touched = join(std::mem::take(&mut self.touched).into_iter(), 0);
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
}
