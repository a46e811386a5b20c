//! What was decided, why, and what came of it: a line each, for `outrider run --explain`.
//!
//! Declared lists are explained by the programs that go through them ([`declare`](crate::declare)), the rest by the service, into the same file. What goes on
//! alike is one line: the windows of a stream, the pieces of a region, the files of a directory. A line is written when everything that was asked for by it is
//! accounted for, or the program is over, and says how often it was decided. Of the lines themselves there are so many and no more.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use outrider_sys::look_up::openat2;
use outrider_sys::raw::{self, Fd};
use outrider_sys::units::{ByteRange, InodeKey};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use crate::asked::Outcome;
use crate::device::DeviceModel;
use crate::lock;
use crate::shm::{Fate, Header, Origin};

/// Lines are written in pieces of about this many bytes, each with one call.
const PIECE: usize = 32 << 10;
/// What a pipe takes whole or not at all (PIPE_BUF of pipe(7)).
const WHOLE: usize = 4096;
/// A pipe holds so many bytes for a reader who is late or slow, if the kernel grants it: what anybody may ask for (/proc/sys/fs/pipe-max-size).
const PIPE: usize = 1 << 20;
/// Decisions of the service that are told, at most: some megabytes.
const MOST: u64 = 20_000;
/// Decisions whose outcome is waited for, at most.
const OPEN: usize = 512;
/// Files that were left alone for one reason, at most.
const LEFT: usize = 4096;
/// What goes on within so many bytes of where the last decision ended is the same one.
const NEAR: u64 = 4 << 20;
/// Bytes that a source has half used and half not before anything is known of it.
const PRIOR: f64 = (1 << 20) as f64;

/// Lines on their way to a file, behind what others write to the same. Each begins with a process's number. Nobody waits for the reader of a pipe: what it doesn't
/// take is left out, and counted.
pub(crate) struct Lines {
    file: Option<Fd>,
    /// Bytes that are written whole, at most.
    whole: usize,
    /// It was open before, so that its writer would wait.
    waits: bool,
    pid: u32,
    text: Vec<u8>,
    left_out: u64,
}

/// Opens what exists for appending, without waiting for anybody. No link is followed: others may have put one there since it was found where it lies.
fn open(path: &OsStr) -> Option<Fd> {
    let flags = OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let none = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let open = |how| match openat2(CWD, path, flags | how, none) {
        // It isn't there, or a filter doesn't know it.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            let flags = flags | how | OFlags::NOFOLLOW;
            rustix::fs::openat(CWD, path, flags, Mode::empty())
        }
        other => other,
    };
    match open(OFlags::WRONLY) {
        // A pipe that nobody reads yet.
        Err(rustix::io::Errno::NXIO) => open(OFlags::RDWR),
        other => other,
    }
    .ok()
    .map(|file: OwnedFd| Fd::from(file))
}

/// The number of an open descriptor of this process, if that is what a path says. What is open may have no other name.
pub fn inherited(path: &Path) -> Option<RawFd> {
    let number = path.strip_prefix("/proc/self/fd").ok()?;
    number.to_str()?.parse().ok()
}

fn is_pipe(file: &Fd) -> bool {
    raw::fstat(file.as_raw_fd()).is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

/// Whether what a pipe takes whole can be written without waiting, as long as nobody else writes.
fn has_room(file: &Fd) -> bool {
    let mut asked = [PollFd::new(file, PollFlags::OUT)];
    poll(&mut asked, Some(&Timespec::default())).is_ok_and(|n| n > 0)
}

fn lines(text: &[u8]) -> u64 {
    text.iter().filter(|b| **b == b'\n').count() as u64
}

/// How many bytes of `text` are lines that end within `most` bytes: one line at least.
fn lines_within(text: &[u8], most: usize) -> usize {
    let end = |part: &[u8]| part.iter().rposition(|b| *b == b'\n').map(|i| i + 1);
    let first = || text.iter().position(|b| *b == b'\n').map(|i| i + 1);
    text.get(..most)
        .map_or(Some(text.len()), |part| end(part).or_else(first))
        .unwrap_or(text.len())
}

impl Lines {
    /// Into a file that exists and to which no link leads; nowhere, if it can't be opened.
    pub(crate) fn into(path: Option<&OsStr>) -> Lines {
        let path = path.filter(|p| !p.is_empty());
        let file = path.and_then(open);
        let is_pipe = file.as_ref().is_some_and(is_pipe);
        if let Some(pipe) = file.as_ref().filter(|_| is_pipe) {
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE);
        }
        let whole = if is_pipe { WHOLE } else { usize::MAX };
        Lines::to(file, whole, false)
    }

    /// Into a pipe or a socket of others, which stays as it is.
    fn beside(descriptor: RawFd) -> Lines {
        // SAFETY: whoever names it has seen to it that it stays open.
        let theirs = unsafe { BorrowedFd::borrow_raw(descriptor) };
        let file = rustix::io::fcntl_dupfd_cloexec(theirs, 3)
            .ok()
            .map(Fd::from);
        Lines::to(file, WHOLE, true)
    }

    fn to(file: Option<Fd>, whole: usize, waits: bool) -> Lines {
        Lines {
            file,
            whole,
            waits,
            pid: raw::getpid(),
            text: Vec::new(),
            left_out: 0,
        }
    }

    /// Adds a line of this process's.
    pub(crate) fn line(&mut self, text: std::fmt::Arguments<'_>) {
        self.line_of(self.pid, text);
    }

    /// Adds a line of a process's.
    fn line_of(&mut self, pid: u32, text: std::fmt::Arguments<'_>) {
        if self.file.is_some() {
            let _ = writeln!(self.text, "{pid} {text}");
            if self.text.len() >= PIECE {
                self.flush();
            }
        }
    }

    /// Writes what is waiting.
    pub(crate) fn flush(&mut self) {
        let Some(file) = &self.file else { return };
        if self.text.is_empty() {
            return;
        }
        if self.left_out > 0 {
            let told = format!("{} left out {} lines\n", self.pid, self.left_out);
            self.text.splice(0..0, told.into_bytes());
            // That line, should it be left out, too.
            self.left_out -= 1;
        }
        let mut rest = self.text.as_slice();
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(lines_within(rest, self.whole));
            // A full pipe, or a full disk, costs the explanation.
            if self.waits && !has_room(file) || rustix::io::write(file, piece).is_err() {
                break;
            }
            self.left_out = 0;
            rest = more;
        }
        self.left_out += lines(rest);
        self.text.clear();
    }
}

/// Why something was not fetched ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// The kernel's own readahead gets as much from the device, or others read from it.
    Kernel,
    /// It is cached.
    Cached,
    /// The user has excluded it, or network file systems.
    Excluded,
    /// What was fetched in vain has used up what that may cost.
    NoCredit,
    /// There is no memory for it, or none that may be taken, or a program watches files.
    NoMemory,
    /// What is read of the file system does not stay cached, or its server doesn't answer.
    FileSystem,
    /// It is read in no order, and too little of it to fetch it as a whole.
    NoOrder,
}

impl Reason {
    /// All there are.
    pub const ALL: [Reason; 7] = [
        Reason::Kernel,
        Reason::Cached,
        Reason::Excluded,
        Reason::NoCredit,
        Reason::NoMemory,
        Reason::FileSystem,
        Reason::NoOrder,
    ];

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Reason::Kernel => "left to the kernel's own readahead",
            Reason::Cached => "cached",
            Reason::Excluded => "excluded by the settings",
            Reason::NoCredit => "no credit: too much was fetched in vain for what has been waited",
            Reason::NoMemory => "no memory, none in the budget, or a program watches files",
            Reason::FileSystem => "what is read there does not stay cached, or no server answers",
            Reason::NoOrder => "no order, and too little to fetch all of it",
        }
    }
}

/// What is fetched of a file, or of the files of a directory, for a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subject {
    /// The process.
    pub pid: u32,
    /// Of the file, or the directory.
    pub key: InodeKey,
}

/// What was decided, and what comes of it.
struct Decision {
    of: Subject,
    origin: Origin,
    name: PathBuf,
    /// All of it, bytes.
    range: ByteRange,
    /// The end of the latest, and its beginning.
    latest: ByteRange,
    /// How often it went on.
    times: u64,
    /// The shortest and the longest of these, bytes.
    windows: (u64, u64),
    requests: u64,
    asked: u64,
    /// How likely it was to be used when it was decided first.
    likely: f64,
    /// What that saves, and what it costs, µs.
    saves_us: f64,
    costs_us: f64,
    outcome: Arc<Outcome>,
}

impl Decision {
    /// Whether something else goes on where this was.
    fn goes_on(&self, range: &ByteRange) -> bool {
        let near = |a: u64, b: u64| a.abs_diff(b) <= NEAR;
        near(self.latest.end, range.start) || near(self.latest.start, range.end)
    }

    /// Whether all of it is accounted for.
    fn is_over(&self) -> bool {
        let all = [Fate::Used, Fate::Wasted, Fate::Evicted, Fate::Dropped];
        let all: u64 = all.iter().map(|fate| self.outcome.get(*fate)).sum();
        all >= self.asked
    }
}

/// What was asked for at once.
pub struct Asking<'a> {
    /// For whom, and of what.
    pub of: Subject,
    /// Who foresaw it.
    pub origin: Origin,
    /// Name of the file.
    pub name: &'a Path,
    /// Bytes.
    pub ranges: &'a [ByteRange],
}

#[derive(Default)]
struct State {
    open: VecDeque<Decision>,
    left: HashMap<(Subject, Reason), (PathBuf, u64)>,
    told: u64,
    left_out: u64,
}

/// Explains what the service decides. All of it does nothing where nobody wants to know.
pub struct Explain(Option<Mutex<(Lines, State)>>);

impl Explain {
    /// Into a file that exists, or a descriptor that was [`inherited`], if any is named.
    pub fn into(path: Option<&Path>) -> Explain {
        let lines = match path.and_then(inherited) {
            Some(descriptor) => Lines::beside(descriptor),
            None => Lines::into(path.map(Path::as_os_str)),
        };
        let wanted = lines.file.is_some();
        Explain(wanted.then(|| Mutex::new((lines, State::default()))))
    }

    /// Whether anybody wants to know.
    pub fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Something was asked for on a device: where it is counted what comes of it.
    pub fn asked(
        &self,
        asking: &Asking<'_>,
        model: &DeviceModel,
        header: &Header,
    ) -> Option<Arc<Outcome>> {
        let mut state = self.0.as_ref().map(lock)?;
        let (lines, state) = &mut *state;
        let (first, last) = (asking.ranges.first()?, asking.ranges.last()?);
        let asked: u64 = asking.ranges.iter().map(|r| r.end - r.start).sum();
        let requests = asking.ranges.len() as u64;
        let range = first.start.min(last.start)..first.end.max(last.end);
        let likely = likelihood(header, asking.origin);
        let transfer_us = asked as f64 * model.byte_us();
        let saves_us = likely * (requests as f64 * model.latency_us + transfer_us);
        let found = state
            .open
            .iter_mut()
            .rev()
            .find(|d| d.of == asking.of && d.origin == asking.origin && d.goes_on(&range));
        if let Some(d) = found {
            d.range = d.range.start.min(range.start)..d.range.end.max(range.end);
            d.latest = range;
            d.times += 1;
            d.windows = (d.windows.0.min(asked), d.windows.1.max(asked));
            d.requests += requests;
            d.asked += asked;
            d.saves_us += saves_us;
            d.costs_us += transfer_us;
            return Some(d.outcome.clone());
        }
        if state.open.len() >= OPEN {
            state.tell(lines, Decision::is_over);
        }
        if state.open.len() >= OPEN
            && let Some(oldest) = state.open.pop_front()
        {
            state.tell_of(lines, &oldest);
        }
        let outcome = Arc::new(Outcome::default());
        state.open.push_back(Decision {
            of: asking.of.clone(),
            origin: asking.origin,
            name: asking.name.to_owned(),
            latest: range.clone(),
            range,
            times: 1,
            windows: (asked, asked),
            requests,
            asked,
            likely,
            saves_us,
            costs_us: transfer_us,
            outcome: outcome.clone(),
        });
        Some(outcome)
    }

    /// Something was not fetched ahead.
    pub fn left(&self, of: Subject, name: &Path, reason: Reason) {
        let Some(mut state) = self.0.as_ref().map(lock) else {
            return;
        };
        let left = &mut state.1.left;
        let room = left.len() < LEFT;
        match left.get_mut(&(of.clone(), reason)) {
            Some((_, times)) => *times += 1,
            None if room => {
                left.insert((of, reason), (name.to_owned(), 1));
            }
            None => state.1.left_out += 1,
        }
    }

    /// A line by itself, of a process's.
    pub fn say(&self, pid: u32, text: std::fmt::Arguments<'_>) {
        if let Some(mut state) = self.0.as_ref().map(lock) {
            let (lines, state) = &mut *state;
            if state.may_tell() {
                lines.line_of(pid, text);
            }
        }
    }

    /// Writes what is known by now.
    pub fn flush(&self) {
        if let Some(mut state) = self.0.as_ref().map(lock) {
            let (lines, state) = &mut *state;
            state.tell(lines, Decision::is_over);
            lines.flush();
        }
    }

    /// The program is over: writes everything.
    pub fn finish(&self) {
        let Some(mut state) = self.0.as_ref().map(lock) else {
            return;
        };
        let (lines, state) = &mut *state;
        state.tell(lines, |_| true);
        let mut left: Vec<_> = state.left.drain().collect();
        left.sort_by(|a, b| {
            let place = |((of, reason), (name, _)): &((Subject, Reason), (PathBuf, u64))| {
                (of.pid, name.clone(), *reason as u8)
            };
            place(a).cmp(&place(b))
        });
        for ((of, reason), (name, times)) in left {
            if state.may_tell() {
                let reason = reason.text();
                lines.line_of(
                    of.pid,
                    format_args!("left {name:?}: {reason}, noted {times} times"),
                );
            }
        }
        if state.left_out > 0 {
            let n = std::mem::take(&mut state.left_out);
            lines.line(format_args!("left out {n} decisions"));
        }
        lines.flush();
        // Who reads a pipe waits for its end.
        lines.file = None;
    }
}

impl State {
    /// Whether one more may be told; it is counted.
    fn may_tell(&mut self) -> bool {
        let may = self.told < MOST;
        self.told += u64::from(may);
        self.left_out += u64::from(!may);
        may
    }

    /// Writes those of which that is so.
    fn tell(&mut self, lines: &mut Lines, is_told: impl Fn(&Decision) -> bool) {
        for d in std::mem::take(&mut self.open) {
            match is_told(&d) {
                true => self.tell_of(lines, &d),
                false => self.open.push_back(d),
            }
        }
    }

    fn tell_of(&mut self, lines: &mut Lines, d: &Decision) {
        if !self.may_tell() {
            return;
        }
        let [used, late, wasted, evicted, dropped] = [
            Fate::Used,
            Fate::Late,
            Fate::Wasted,
            Fate::Evicted,
            Fate::Dropped,
        ]
        .map(|fate| d.outcome.get(fate));
        let saved_us = d.outcome.saved_us();
        lines.line_of(
            d.of.pid,
            format_args!(
                "{} {:?} {}..{}: {} windows of {} to {}, asked {} in {} requests, likely {:.2}, expected to save {:.0} us at {:.0} us; used {used}, late {late}, wasted {wasted}, evicted {evicted}, dropped {dropped}, saved {saved_us} us",
                d.origin.name(),
                d.name,
                d.range.start,
                d.range.end,
                d.times,
                d.windows.0,
                d.windows.1,
                d.asked,
                d.requests,
                d.likely,
                d.saves_us,
                d.costs_us,
            ),
        );
    }
}

/// The share of what a source has asked for up to now that was used, of what has come to anything.
fn likelihood(header: &Header, origin: Origin) -> f64 {
    let figures = &header.sources[origin as usize];
    let [used, wasted, evicted] =
        [Fate::Used, Fate::Wasted, Fate::Evicted].map(|f| figures[f as usize].load(Relaxed) as f64);
    (used + PRIOR) / (used + wasted + evicted + 2.0 * PRIOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm;
    use std::fs;

    /// A file of this test's.
    fn file(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("outrider-{name}-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        path
    }

    fn header() -> Box<Header> {
        // SAFETY: zero is a valid one.
        unsafe { Box::<Header>::new_zeroed().assume_init() }
    }

    fn asked(explain: &Explain, ino: u64, range: ByteRange) -> Arc<Outcome> {
        let asking = Asking {
            of: Subject {
                pid: 77,
                key: InodeKey::new(1, ino),
            },
            origin: Origin::Streams,
            name: Path::new("/a\n\u{1b}[2Jb\"c"),
            ranges: &[range],
        };
        explain
            .asked(&asking, &DeviceModel::default(), &header())
            .unwrap()
    }

    /// The lines that were written, without the process's number.
    fn written(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        fs::remove_file(path).unwrap();
        let line = |l: &str| l.split_once(' ').unwrap().1.to_owned();
        text.lines().map(line).collect()
    }

    /// What goes on is one line, what begins elsewhere another, and a name is what it is called and nothing else.
    #[test]
    fn windows_that_go_on_are_one_line() {
        const MIB: u64 = 1 << 20;
        let path = file("windows");
        let explain = Explain::into(Some(&path));
        let forward = asked(&explain, 1, 0..MIB);
        for k in 1..9 {
            let again = asked(&explain, 1, k * MIB..(k + 1) * MIB);
            assert!(Arc::ptr_eq(&forward, &again));
        }
        let backward = asked(&explain, 1, 99 * MIB..100 * MIB);
        assert!(Arc::ptr_eq(
            &backward,
            &asked(&explain, 1, 98 * MIB..99 * MIB)
        ));
        let other = asked(&explain, 2, 9 * MIB..10 * MIB);
        assert!(!Arc::ptr_eq(&forward, &other) && !Arc::ptr_eq(&backward, &other));
        forward.add(Fate::Used, 9 * MIB);
        forward.add(Fate::Late, MIB);
        forward.saves(1234);
        // All of it is accounted for.
        explain.flush();
        backward.add(Fate::Wasted, 5);
        explain.finish();
        let lines = written(&path);
        assert_eq!(lines.len(), 3, "{lines:#?}");
        let name = r#"streams "/a\n\u{1b}[2Jb\"c""#;
        assert!(lines.iter().all(|l| l.starts_with(name)), "{lines:#?}");
        assert!(
            lines[0].contains(
                "0..9437184: 9 windows of 1048576 to 1048576, asked 9437184 in 9 requests"
            )
        );
        let end = "used 9437184, late 1048576, wasted 0, evicted 0, dropped 0, saved 1234 us";
        assert!(lines[0].ends_with(end), "{lines:#?}");
        assert!(
            lines[1].contains(" 102760448..104857600: 2 windows") && lines[1].contains("wasted 5,")
        );
    }

    /// However many decisions there are, so many are told, and how many are not.
    #[test]
    fn so_many_lines_and_no_more() {
        let path = file("bound");
        let explain = Explain::into(Some(&path));
        for ino in 0..MOST + 1000 {
            asked(&explain, ino, 0..1);
        }
        for ino in 0..2 * LEFT as u64 {
            let key = InodeKey::new(1, ino);
            explain.left(Subject { pid: 1, key }, Path::new("x"), Reason::Kernel);
        }
        explain.finish();
        let lines = written(&path);
        assert_eq!(lines.len() as u64, MOST + 1);
        let left_out = 1000 + 2 * LEFT;
        assert_eq!(
            lines[MOST as usize],
            format!("left out {left_out} decisions")
        );
    }

    /// Why a file was left alone is told once, with how often that was noted.
    #[test]
    fn reasons_are_added_up() {
        let path = file("reasons");
        let explain = Explain::into(Some(&path));
        let of = |ino| Subject {
            pid: 9,
            key: InodeKey::new(1, ino),
        };
        for _ in 0..3 {
            explain.left(of(1), Path::new("/x"), Reason::Cached);
        }
        explain.left(of(1), Path::new("/x"), Reason::NoOrder);
        explain.finish();
        let told = [Reason::Cached, Reason::NoOrder].map(Reason::text);
        let expected = [
            format!("left \"/x\": {}, noted 3 times", told[0]),
            format!("left \"/x\": {}, noted 1 times", told[1]),
        ];
        assert_eq!(written(&path), expected);
    }

    /// What a source has come to says how likely it is believed.
    #[test]
    fn use_makes_likely() {
        let header = header();
        let likely = || likelihood(&header, Origin::Dense);
        assert_eq!(likely(), 0.5);
        let of = &header.sources[Origin::Dense as usize];
        of[Fate::Used as usize].store(98 << 20, Relaxed);
        assert_eq!(likely(), 0.99);
        of[Fate::Wasted as usize].store(100 << 20, Relaxed);
        assert_eq!(likely(), 99.0 / 200.0);
        assert_eq!(likelihood(&header, Origin::Streams), 0.5);
        assert_eq!(shm::SOURCE_FIGURES[shm::SAVED], "saved_us");
    }

    /// Nobody wants to know: nothing is kept.
    #[test]
    fn nothing_is_kept_for_nobody() {
        for path in [None, Some(Path::new("/nonexistent/file"))] {
            let explain = Explain::into(path);
            assert!(!explain.is_wanted());
            let asking = Asking {
                of: Subject {
                    pid: 1,
                    key: InodeKey::new(1, 1),
                },
                origin: Origin::Dense,
                name: Path::new("x"),
                ranges: &[0..1],
            };
            let nobody = explain.asked(&asking, &DeviceModel::default(), &header());
            assert!(nobody.is_none());
        }
    }
}
