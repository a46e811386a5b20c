//! Driving a service from a recording.

use outrider_sys::units::{ByteRange, DeviceId};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outrider_sys::cache::{CacheStat, CacheStatError};
use outrider_sys::counters::Read;
use outrider_sys::handover::{Arrival, Handed};
use outrider_sys::memory::Memory;

use super::ferry::{Ferry, Written};
use super::log::{self, Answer as _, Head};
use crate::clock::{Clock, Moment};
use crate::config::Config;
use crate::engine::{Arrived, Done, Engine, Handle, Job, Jobs, Kind, Outcome, Settings};
use crate::fetch::Wanted;
use crate::map::Keyed;
use crate::proc_memory::ProcMemory;
use crate::service::{Answer, FileSystem, InodeKey, Kernel, OpenFile, Service, Source, Turn};
use crate::shared::Shared;
use crate::sharing::Counters;
use crate::sharing::runs::Run;
use crate::shm::{Event, OWNER_FREE, Slot};
use crate::source::mapped::Mapped;

/// A recording that was read.
pub struct Recording {
    head: Head,
    config: String,
    rounds: Vec<Round>,
    /// By query.
    answers: HashMap<String, Answers>,
}

/// What was seen, and done, in a round.
#[derive(Default)]
struct Round {
    /// Since the last one.
    passed: Duration,
    done: Vec<(usize, End)>,
    gone: Vec<InodeKey>,
    written: Vec<(usize, Written)>,
    told: Vec<(usize, Event)>,
    /// Processes that hand their memory over: number and name; or somebody who knocks.
    came: VecDeque<Option<(u32, Vec<u8>)>>,
    /// What the service did, as it is written.
    did: Vec<String>,
}

/// How a job ended.
#[derive(Clone)]
enum End {
    Issued {
        began: u64,
        handed: u64,
        read: Option<u64>,
        failed: Vec<(usize, crate::engine::Failure)>,
        ends_in_cached: bool,
    },
    Arrived(Arrived),
    Waits,
}

/// Answers to one query, each with its round, in order.
#[derive(Default)]
struct Answers {
    all: Vec<(usize, String)>,
    /// The next that was not given yet.
    next: usize,
}

/// Where a service did something else than in the recording.
#[derive(Debug)]
pub struct Difference {
    /// Number of the round, from 0 on, and its time in nanoseconds from the begin of the recording.
    pub round: usize,
    /// Its time, nanoseconds since the recording began.
    pub nanos: u64,
    /// What it did there in the recording, if anything.
    pub recorded: Option<String>,
    /// What it does now.
    pub replayed: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |did: &Option<String>| did.clone().unwrap_or_else(|| "nothing more".to_owned());
        let (recorded, replayed) = (word(&self.recorded), word(&self.replayed));
        let (round, us) = (self.round, self.nanos / 1000);
        write!(
            f,
            "round {round}, at {us} µs: recorded `{recorded}`, replayed `{replayed}`"
        )
    }
}

/// What a replay came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Rounds.
    pub rounds: usize,
    /// Requests that were made alike.
    pub requests: usize,
    /// Words that were written alike.
    pub words: usize,
    /// Ranges that were dropped from the cache alike.
    pub dropped: usize,
}

/// A line that is none, or none there.
fn wrong(line: usize, why: &str) -> String {
    format!("line {line}: {why}")
}

impl Recording {
    /// Reads a recording; the error tells which line is wrong, and why.
    pub fn read(text: &str) -> Result<Recording, String> {
        let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l));
        let (_, first) = lines.next().unwrap_or((1, ""));
        let head =
            Head::read(first).ok_or_else(|| wrong(1, &format!("expected `{}`", Head::FORM)))?;
        let config = lines.next().and_then(|(_, l)| l.strip_prefix("config "));
        let config = config
            .and_then(log::unescaped)
            .and_then(|c| String::from_utf8(c).ok());
        let config = config.ok_or_else(|| wrong(2, "expected `config TEXT`"))?;
        let mut rounds: Vec<Round> = Vec::new();
        let mut answers: HashMap<String, Answers> = HashMap::new();
        for (number, line) in lines {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            if kind == "R" {
                let nanos = rest
                    .parse()
                    .map_err(|_| wrong(number, "expected `R NANOSECONDS`"))?;
                rounds.push(Round {
                    passed: Duration::from_nanos(nanos),
                    ..Round::default()
                });
                continue;
            }
            let Some(round) = rounds.len().checked_sub(1) else {
                return Err(wrong(number, "no round has begun"));
            };
            if kind == "Q" {
                let (query, answer) = rest
                    .split_once(" = ")
                    .ok_or_else(|| wrong(number, "expected `=`"))?;
                if query == "knock -" {
                    rounds[round].came.push_back(None);
                } else {
                    let to = answers.entry(query.to_owned()).or_default();
                    to.all.push((round, answer.to_owned()));
                }
                continue;
            }
            rounds[round]
                .take(kind, rest, line)
                .ok_or_else(|| wrong(number, "no line of a recording"))?;
        }
        Ok(Recording {
            head,
            config,
            rounds,
            answers,
        })
    }

    /// The configuration of the service, TOML.
    pub fn config(&self) -> &str {
        &self.config
    }
}

impl Round {
    /// Takes in a line of this kind; `None`: it is none.
    fn take(&mut self, kind: &str, rest: &str, line: &str) -> Option<()> {
        let words: Vec<&str> = rest.split(' ').collect();
        match kind {
            "M" => {
                let [pid, name] = words[..] else { return None };
                self.came
                    .push_back(Some((pid.parse().ok()?, log::unescaped(name)?)));
            }
            "D" => {
                let [m, at, value] = words[..] else {
                    return None;
                };
                let hex = |w| usize::from_str_radix(w, 16).ok();
                let written = (hex(at)?, u32::from_str_radix(value, 16).ok()?);
                self.written.push((hex(m)?, written));
            }
            "E" => {
                let event = log::read_event(words.get(1..)?)?;
                self.told.push((words[0].parse().ok()?, event));
            }
            "G" => {
                let [dev, ino] = words[..] else { return None };
                self.gone.push(InodeKey {
                    dev: dev.parse().ok()?,
                    ino: ino.parse().ok()?,
                });
            }
            "J" => {
                let job = words[0].parse().ok()?;
                let end = match words[1..] {
                    ["i", began, handed, read, failed, ref end @ ..] => End::Issued {
                        began: began.parse().ok()?,
                        handed: handed.parse().ok()?,
                        read: Option::read(read)?,
                        failed: log::read_failed(failed)?,
                        ends_in_cached: end == ["c"],
                    },
                    ["a", at, seen, overdue] => End::Arrived(Arrived {
                        seen: bool::read(seen)?,
                        overdue: bool::read(overdue)?,
                        at: Moment::from_nanos(at.parse().ok()?),
                    }),
                    ["w"] => End::Waits,
                    _ => return None,
                };
                self.done.push((job, end));
            }
            ">" | "W" | "X" => self.did.push(line.to_owned()),
            _ => return None,
        }
        Some(())
    }
}

/// A process of the recording.
struct Program {
    entry: Option<usize>,
    ferry: Ferry,
}

/// The system of a service that is driven from a recording.
struct Replayer {
    head: Head,
    queue: Jobs,
    now: Moment,
    rounds: Vec<Round>,
    /// The round that goes on.
    round: Option<usize>,
    answers: RefCell<HashMap<String, Answers>>,
    programs: Vec<Program>,
    /// By number; those that are not done yet.
    jobs: HashMap<usize, Job>,
    given: usize,
    handles: RefCell<Vec<Weak<Handle>>>,
    /// What the service has done in this round.
    did: RefCell<Vec<String>>,
    wrong: Option<Difference>,
    sum: Replayed,
}

impl Recording {
    /// Drives a service with this configuration, which [`config`](Recording::config) tells as text.
    pub fn replay(self, config: Config) -> io::Result<Result<Replayed, Difference>> {
        let shared = Arc::new(Shared::create(self.head.mode, config.files.min_size.0)?);
        let (engine, queue) = Engine::by_hand(Settings::of(&config, Kind::Threads), shared.clone());
        let replayer = Replayer {
            head: self.head,
            queue,
            now: Moment::BEGINNING,
            rounds: self.rounds,
            round: Some(0),
            answers: RefCell::new(self.answers),
            programs: Vec::new(),
            jobs: HashMap::new(),
            given: 0,
            handles: RefCell::default(),
            did: RefCell::default(),
            wrong: None,
            sum: Replayed::default(),
        };
        let Head { mode, workers, .. } = self.head;
        let mut service = Service::over(replayer, engine, shared, config, mode, HashMap::new());
        service.fetches = workers > 0;
        while service.kernel.is_ready() {
            let turn = service.turn();
            if let Some(difference) = service.kernel.wrong.take() {
                return Ok(Err(difference));
            }
            if turn == Turn::Over {
                break;
            }
        }
        Ok(Ok(service.kernel.sum))
    }
}

impl Replayer {
    /// Whether there is another round.
    fn is_ready(&self) -> bool {
        self.round.map_or(0, |r| r + 1) < self.rounds.len()
    }

    /// The answer to a query: the next of this round, the last one that was given, or the next that there is.
    fn ask<T: log::Answer>(&self, name: &str, arguments: &str) -> Option<T> {
        let mut answers = self.answers.borrow_mut();
        let its = answers.get_mut(&format!("{name} {arguments}"))?;
        let round = self.round.unwrap_or(0);
        while its.all.get(its.next).is_some_and(|(r, _)| *r < round) {
            its.next += 1;
        }
        let i = match its.all.get(its.next) {
            Some((r, _)) if *r == round => {
                its.next += 1;
                its.next - 1
            }
            _ => its.next.saturating_sub(1),
        };
        let (_, answer) = its.all.get(i)?;
        T::read(answer)
    }

    /// The same of what is only written down where it is not as usual: in this round.
    fn ask_now<T: log::Answer>(&self, name: &str, arguments: &str) -> Option<T> {
        let mut answers = self.answers.borrow_mut();
        let its = answers.get_mut(&format!("{name} {arguments}"))?;
        let round = self.round.unwrap_or(0);
        while its.all.get(its.next).is_some_and(|(r, _)| *r < round) {
            its.next += 1;
        }
        let (_, answer) = its.all.get(its.next).filter(|(r, _)| *r == round)?;
        let answer = T::read(answer);
        its.next += 1;
        answer
    }

    /// All answers of this round.
    fn ask_all<T: log::Answer>(&self, name: &str, arguments: &str) -> Vec<T> {
        std::iter::from_fn(|| self.ask_now(name, arguments)).collect()
    }

    fn of(handle: &Handle) -> String {
        let InodeKey { dev, ino } = handle.file();
        format!("{dev} {ino}")
    }

    fn part(handle: &Handle, range: &ByteRange) -> String {
        format!("{} {} {}", Replayer::of(handle), range.start, range.end)
    }

    fn stand_in(&self, key: InodeKey) -> Arc<Handle> {
        let handle = Arc::new(Handle::stand_in().of(key.dev, key.ino));
        let mut handles = self.handles.borrow_mut();
        handles.retain(|h| h.strong_count() > 0);
        handles.push(Arc::downgrade(&handle));
        handle
    }

    fn open(&self, how: &str, key: InodeKey) -> Option<OpenFile> {
        let size: Option<u64> = self.ask(how, &format!("{} {}", key.dev, key.ino))?;
        Some((self.stand_in(key), size?))
    }

    /// A job is done as it was.
    fn end(&mut self, number: usize, end: End) {
        let Some(job) = self.jobs.remove(&number) else {
            return;
        };
        match (job, end) {
            (
                Job::Issue(issuing),
                End::Issued {
                    began,
                    handed,
                    read,
                    failed,
                    ends_in_cached,
                },
            ) => {
                issuing.handed().add(handed);
                let began = Moment::from_nanos(began);
                self.queue.done(Done::Issued(
                    issuing,
                    Outcome {
                        failed,
                        read,
                        ends_in_cached,
                        began,
                    },
                ));
            }
            (Job::Await(awaited), End::Arrived(how)) => {
                self.queue.done(Done::Arrived(awaited, how));
            }
            (Job::Await(awaited), End::Waits) => self.queue.done(Done::Waits(awaited)),
            // It was another job: that was told when it was taken.
            (Job::Issue(_), _) | (Job::Await(_), End::Issued { .. }) => {}
        }
    }

    /// What the service did in this round is compared.
    fn compare(&mut self) {
        let did = std::mem::take(&mut *self.did.borrow_mut());
        let Some(round) = self.round else { return };
        let recorded = &self.rounds[round].did;
        for line in &did {
            match line.as_bytes() {
                [b'>', b' ', b'i', ..] => self.sum.requests += 1,
                [b'W', ..] => self.sum.words += 1,
                [b'X', ..] => self.sum.dropped += 1,
                _ => {}
            }
        }
        self.sum.rounds += 1;
        let at = (0..recorded.len().max(did.len())).find(|i| recorded.get(*i) != did.get(*i));
        if let Some(i) = at {
            self.wrong.get_or_insert(Difference {
                round,
                nanos: self.now.nanos(),
                recorded: recorded.get(i).cloned(),
                replayed: did.get(i).cloned(),
            });
        }
    }
}

impl Clock for Replayer {
    fn now(&self) -> Moment {
        self.now
    }
}

impl Counters for Replayer {
    fn own_pid(&self) -> u32 {
        self.head.pid
    }

    fn bytes_fetched(&self, pid: u32) -> Option<u64> {
        self.ask("fetched", &pid.to_string()).flatten()
    }

    fn longest_request(&self, device: DeviceId) -> Option<u64> {
        self.ask("longest", &device.0.to_string()).flatten()
    }

    fn begun(&self, device: DeviceId) -> Option<(u64, u64)> {
        let both: Option<[u64; 2]> = self.ask("begun", &device.0.to_string())?;
        both.map(|[least, most]| (least, most))
    }

    fn read(&self, device: DeviceId) -> Option<Read> {
        self.ask("delivered", &device.0.to_string()).flatten()
    }

    fn other_runs(&self) -> Vec<Run> {
        let all: Vec<Vec<u64>> = self.ask_all("run", "-");
        all.iter().filter_map(|numbers| Run::of(numbers)).collect()
    }
}

impl Kernel for Replayer {
    fn begin_round(&mut self, _shared: &Shared) {
        let next = self.round.map_or(0, |r| r + 1);
        self.round = Some(next);
        let Some(round) = self.rounds.get_mut(next) else {
            return;
        };
        self.now += round.passed;
        let (done, gone) = (
            std::mem::take(&mut round.done),
            std::mem::take(&mut round.gone),
        );
        for (m, written) in &round.written {
            if let Some(p) = self.programs.get_mut(*m) {
                p.ferry.write(*written);
            }
        }
        for (m, event) in &round.told {
            if let Some(p) = self.programs.get_mut(*m) {
                p.ferry.tell(event);
            }
        }
        for handle in self.handles.borrow().iter().filter_map(Weak::upgrade) {
            if gone.contains(&handle.file()) {
                handle.let_go();
            }
        }
        for (number, end) in done {
            self.end(number, end);
        }
    }

    fn end_round(&mut self, shared: &Shared) {
        while self.jobs.len() < self.head.workers {
            let Some(mut job) = self.queue.next() else {
                break;
            };
            if let Job::Issue(issuing) = &mut job {
                issuing.count_apart();
            }
            self.did.borrow_mut().push(log::job(&job));
            self.jobs.insert(self.given, job);
            self.given += 1;
        }
        for (m, p) in self.programs.iter_mut().enumerate() {
            let Some(entry) = p.entry else { continue };
            let written = p.ferry.go();
            let words = written
                .iter()
                .map(|((at, v), _)| format!("W {m:x} {at:x} {v:x}"));
            self.did.borrow_mut().extend(words);
            if shared.header().owners[entry].load(Relaxed) == OWNER_FREE {
                p.entry = None;
            }
        }
        self.compare();
    }

    fn sleep(&mut self, _shared: &Shared, _pause: Duration) {}

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn finished(&mut self, shared: &Shared) {
        shared.header().finish.store(2, Relaxed);
    }

    fn finishes(&self, _shared: &Shared) -> bool {
        self.ask_now("finishes", "-").unwrap_or(false)
    }

    fn is_orphaned(&self) -> bool {
        self.ask_now("orphaned", "-").unwrap_or(false)
    }

    fn keyed(&self) -> Keyed {
        Keyed::with(0)
    }

    fn receive(&mut self, shared: &Shared) -> Arrival {
        let Some(round) = self.round.and_then(|r| self.rounds.get_mut(r)) else {
            return Arrival::Nobody;
        };
        let Some(came) = round.came.pop_front() else {
            return Arrival::Nobody;
        };
        let Some((pid, name)) = came else {
            return Arrival::Knock;
        };
        let Ok((copy, fd)) = ProcMemory::new() else {
            return Arrival::Deaf;
        };
        let words = name.chunks(8).map(|c| {
            let mut word = [0; 8];
            word.iter_mut().zip(c).for_each(|(to, from)| *to = *from);
            u64::from_ne_bytes(word)
        });
        for (to, from) in copy.proc().name.iter().zip(words) {
            to.store(from, Relaxed);
        }
        let m = self.programs.len();
        let mut ferry = Ferry::new(copy);
        let its = round.told.iter().filter(|(of, _)| *of == m);
        its.for_each(|(_, event)| ferry.tell(event));
        let its = round.written.iter().filter(|(of, _)| *of == m);
        its.for_each(|(_, written)| ferry.write(*written));
        self.programs.push(Program { entry: None, ferry });
        Arrival::Memory(ProcMemory::handed(fd, shared, pid))
    }

    fn taken_in(&mut self, _shared: &Shared, proc: usize) {
        let before = self.programs.iter_mut().filter(|p| p.entry == Some(proc));
        before.for_each(|p| p.entry = None);
        if let Some(p) = self.programs.last_mut() {
            p.entry = Some(proc);
        }
    }

    fn is_awaited(&self) -> bool {
        self.ask_now("awaited", "-").unwrap_or(false)
    }

    fn is_still(&self, _shared: &Shared, proc: usize, _handed: &Handed) -> bool {
        self.ask_now("still", &proc.to_string()).unwrap_or(true)
    }

    fn stands(&self, _shared: &Shared, proc: usize) -> bool {
        self.ask_now("stands", &proc.to_string()).unwrap_or(true)
    }

    fn command(&self, pid: u32) -> String {
        let command: Option<Vec<u8>> = self.ask("command", &pid.to_string());
        String::from_utf8(command.unwrap_or_default()).unwrap_or_default()
    }

    fn life(&self, _pid: u32) -> Option<OwnedFd> {
        None
    }

    fn is_over(&self, pid: u32, _life: Option<&OwnedFd>) -> bool {
        self.ask_now("over", &pid.to_string()).unwrap_or(false)
    }

    fn is_ending(&self, _shared: &Shared, proc: usize) -> bool {
        self.ask_now("ending", &proc.to_string()).unwrap_or(false)
    }

    fn is_confined(&self, pid: u32, _turn: usize) -> bool {
        self.ask_now("confined", &pid.to_string()).unwrap_or(false)
    }

    fn is_divided(&self, pid: u32, _turn: usize) -> bool {
        self.ask_now("divided", &pid.to_string()).unwrap_or(false)
    }

    fn follow(&self, _life: Option<&OwnedFd>) {}

    fn has_ended(&self) -> bool {
        self.ask_now("ended", "-").unwrap_or(false)
    }

    fn held(&self, _shared: &Shared) -> u32 {
        self.ask_now("held", "-").map_or(0, |n: u64| n as u32)
    }

    fn held_unseen(&self, _shared: &Shared, proc: usize) -> u32 {
        let held = self.ask_now("unseen", &proc.to_string());
        held.map_or(0, |n: u64| n as u32)
    }

    fn is_open(&self, wanted: Wanted, _slot: &Slot, _generation: u32) -> bool {
        let arguments = format!("{} {}", wanted.pid, wanted.fd);
        self.ask_now("open?", &arguments).unwrap_or(true)
    }

    fn is_readable(&self, wanted: Wanted, _slot: &Slot, _generation: u32) -> bool {
        let arguments = format!("{} {}", wanted.pid, wanted.fd);
        self.ask_now("readable?", &arguments).unwrap_or(true)
    }

    fn is_direct(&self, wanted: Wanted, _slot: &Slot, _generation: u32) -> bool {
        let arguments = format!("{} {}", wanted.pid, wanted.fd);
        self.ask_now("direct?", &arguments).unwrap_or(false)
    }

    fn link(&self, wanted: Wanted, _slot: &Slot, _generation: u32) -> PathBuf {
        let arguments = format!("{} {}", wanted.pid, wanted.fd);
        log::path(self.ask("link", &arguments).unwrap_or_default())
    }

    fn server(&self, wanted: Wanted, _slot: &Slot, _generation: u32) -> Option<FileSystem> {
        self.ask_now("server", &wanted.dev.to_string()).flatten()
    }

    fn behind(&self, pid: u32, address: u64) -> Option<(PathBuf, u64, u64, u64)> {
        let words: Option<Vec<u8>> = self.ask("behind", &format!("{pid} {address}"))?;
        let words = String::from_utf8(words?).ok()?;
        let (name, numbers) = words.split_once(' ')?;
        let [dev, ino, size] = log::Answer::read(numbers)?;
        Some((log::path(log::unescaped(name)?), dev, ino, size))
    }

    fn open(&self, _shared: &Arc<Shared>, source: Source, _: &Arc<AtomicU32>) -> Option<OpenFile> {
        Replayer::open(self, "open", source.key())
    }

    fn open_by_name(
        &self,
        _shared: &Arc<Shared>,
        _proc: usize,
        _name: &Path,
        key: InodeKey,
        _openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile> {
        Replayer::open(self, "by-name", key)
    }

    fn open_briefly(&self, _name: &Path, key: InodeKey) -> Option<Handle> {
        let opened: bool = self.ask("briefly", &format!("{} {}", key.dev, key.ino))?;
        opened.then(|| Handle::stand_in().of(key.dev, key.ino))
    }

    fn begin_to_open(&mut self, _: &Arc<Shared>, source: Source, _: &Arc<AtomicU32>) -> bool {
        let key = source.key();
        let begun = self.ask("begin", &format!("{} {}", key.dev, key.ino));
        begun.unwrap_or(false)
    }

    fn opened(&mut self) -> Vec<Answer> {
        let answers: Vec<[u64; 5]> = self.ask_all("answered", "-");
        let answer = |[dev, ino, proc, size, gone]: [u64; 5]| {
            let key = InodeKey { dev, ino };
            let file = (size != u64::MAX).then(|| (self.stand_in(key), size));
            if let Some((handle, _)) = file.as_ref().filter(|_| gone != 0) {
                handle.let_go();
            }
            Answer {
                key,
                proc: proc as usize,
                file,
            }
        };
        answers.into_iter().map(answer).collect()
    }

    fn is_stuck(&self, dev: DeviceId) -> bool {
        self.ask_now("stuck", &dev.0.to_string()).unwrap_or(false)
    }

    fn file_system(&self, handle: &Handle) -> (FileSystem, Option<u64>) {
        let nothing = FileSystem {
            chunk: None,
            clip: 0,
            read_ahead: 0,
            shows_opens: false,
            caches: true,
        };
        let found = self.ask("place", &Replayer::of(handle));
        (found.unwrap_or(nothing), None)
    }

    fn name(&self, handle: &Handle) -> PathBuf {
        log::path(self.ask("name", &Replayer::of(handle)).unwrap_or_default())
    }

    fn size(&self, handle: &Handle) -> Option<u64> {
        self.ask("size", &Replayer::of(handle)).flatten()
    }

    fn has_module(&self) -> bool {
        false
    }

    fn cached(&self, handle: &Handle, range: ByteRange) -> Result<u64, CacheStatError> {
        let answer = self.ask("cached", &Replayer::part(handle, &range));
        answer.unwrap_or(Err(CacheStatError::Unsupported))
    }

    fn counted(&self, handle: &Handle, range: ByteRange) -> Result<CacheStat, CacheStatError> {
        let answer = self.ask("counted", &Replayer::part(handle, &range));
        answer.unwrap_or(Err(CacheStatError::Unsupported))
    }

    fn drop_range(&self, handle: &Handle, range: ByteRange) -> io::Result<()> {
        let part = Replayer::part(handle, &range);
        self.did.borrow_mut().push(format!("X {part}"));
        match self.ask_now("refused", &part) {
            Some(true) => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Ok(()),
        }
    }

    fn touched(&self, pid: u32, mapped: &mut Mapped) -> io::Result<Vec<ByteRange>> {
        let arguments = format!("{pid} {}", mapped.memory().start);
        self.ask_now("touched", &arguments)
            .unwrap_or(Ok(Vec::new()))
    }

    fn bytes_read(&self, pid: u32) -> Option<u64> {
        self.ask("read", &pid.to_string()).flatten()
    }

    fn memory(&self) -> Memory {
        self.ask("memory", "-").unwrap_or_default()
    }

    fn watch_reads(&mut self, _name: &Path, key: InodeKey) -> Option<i32> {
        let watch: Option<u64> = self.ask("watch", &format!("{} {}", key.dev, key.ino))?;
        watch.map(|n| n as i32)
    }

    fn unwatch(&mut self, _watch: i32) {}

    fn reads_heard(&mut self) -> Vec<(i32, bool)> {
        let heard: Vec<[u64; 2]> = self.ask_all("heard", "-");
        let each = heard.into_iter();
        each.map(|[watch, was_read]| (watch as i32, was_read != 0))
            .collect()
    }

    fn processes(&self) -> Vec<u32> {
        let all: Vec<u64> = self.ask_all("process", "-");
        all.into_iter().map(|pid| pid as u32).collect()
    }

    fn open_files(&self, pid: u32) -> Vec<PathBuf> {
        let all: Vec<Vec<u8>> = self.ask_all("has", &pid.to_string());
        all.into_iter().map(log::path).collect()
    }
}
