//! Writing a recording while programs run.

use outrider_sys::units::{ByteRange, DeviceId};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use outrider_sys::cache::{CacheStat, CacheStatError};
use outrider_sys::counters::Read;
use outrider_sys::handover::{Arrival, Handed};
use outrider_sys::memory::Memory;
use outrider_sys::threads;

use super::ferry::{Ferry, carry};
use super::log::{self, Answer as _, Head};
use crate::clock::{Clock, Moment, Monotonic};
use crate::config::Config;
use crate::engine::{self, Done, Engine, Handle, Job, Jobs, Settings, Worker};
use crate::fetch::Wanted;
use crate::map::Keyed;
use crate::proc_memory::ProcMemory;
use crate::service::{Answer, FileSystem, InodeKey, Kernel, Linux, OpenFile, Service, Source};
use crate::shared::Shared;
use crate::sharing::Counters;
use crate::sharing::runs::Run;
use crate::shm::{self, Slot};
use crate::source::mapped::Mapped;

/// Linux, with everything written down that passes.
pub struct Recorder {
    system: Linux,
    clock: Monotonic,
    /// The time of the round.
    now: Moment,
    /// The programs' own memory, and the copies that the service has.
    real: Arc<Shared>,
    programs: Vec<Program>,
    out: RefCell<BufWriter<File>>,
    /// Queries that were answered as usual in this round.
    usual: RefCell<HashSet<String>>,
    /// Nothing more can be written: the disk is full, perhaps.
    failed: Cell<bool>,
    hands: Hands,
    /// Files that are open, as far as the service may know.
    handles: RefCell<Vec<Weak<Handle>>>,
}

/// A process that has handed its memory over.
struct Program {
    /// Its entry, while it is there.
    entry: Option<usize>,
    pid: u32,
    real: ProcMemory,
    ferry: Ferry,
    /// Until it is known whether it is taken in.
    fd: Option<OwnedFd>,
}

/// Workers, which get their jobs between two rounds.
struct Hands {
    queue: Jobs,
    settings: Settings,
    /// Jobs that are done at once.
    most: usize,
    notes: Arc<Shared>,
    clock: Monotonic,
    /// One for each worker that was started.
    jobs: Vec<Sender<(usize, Job)>>,
    idle: Vec<usize>,
    tell: Sender<(usize, usize, Done)>,
    told: Receiver<(usize, usize, Done)>,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Counts the jobs.
    given: usize,
}

impl Hands {
    /// Whether somebody can take a job; starts a worker if it comes to that.
    fn are_free(&mut self) -> bool {
        if self.idle.is_empty() && self.jobs.len() < self.most {
            let (give, jobs) = channel::<(usize, Job)>();
            let (number, tell, wake) = (self.jobs.len(), self.tell.clone(), self.wake.clone());
            let (settings, notes, clock) = (self.settings, self.notes.clone(), self.clock);
            let ours = threads::Own::new();
            let started = std::thread::Builder::new()
                .name("outrider".into())
                .spawn(move || {
                    ours.begins();
                    let mut worker = Worker::begin(&settings, notes, clock);
                    for (job, what) in jobs {
                        let done = worker.perform(what);
                        if tell.send((number, job, done)).is_err() {
                            return;
                        }
                        wake();
                    }
                });
            if started.is_ok() {
                self.jobs.push(give);
                self.idle.push(number);
            }
        }
        !self.idle.is_empty()
    }

    fn give(&mut self, job: Job) {
        let Some(worker) = self.idle.pop() else {
            return;
        };
        let given = self.given;
        self.given += 1;
        if let Some(jobs) = self.jobs.get(worker) {
            let _ = jobs.send((given, job));
        }
    }
}

/// Writes the recording of a run in which no service was needed; `text` is the configuration as TOML.
pub fn record_nothing(
    (config, text): (&Config, &str),
    mode: u32,
    kind: engine::Kind,
    mut file: File,
) -> io::Result<()> {
    file.write_all(Head::of(config, mode, kind, 0).write(text).as_bytes())
}

/// A service over `shared` that writes a recording of its run to `file`; `text` is its configuration as TOML. It starts with nothing known of any device.
pub fn record(
    shared: Arc<Shared>,
    (config, text): (Config, &str),
    mode: u32,
    kind: engine::Kind,
    file: File,
) -> io::Result<Service<Recorder>> {
    let clock = Monotonic::begin();
    let settings = Settings::of(&config, kind);
    let copies = Arc::new(shared.beside()?);
    let (engine, queue) = Engine::by_hand(settings, copies.clone());
    let system = Linux::new(&shared, clock);
    let wake = system.wake().clone();
    let (tell, told) = channel();
    let mut out = BufWriter::new(file);
    let head = Head::of(&config, mode, kind, std::process::id());
    write!(out, "{}", head.write(text))?;
    writeln!(out, "R 0")?;
    let recorder = Recorder {
        system,
        clock,
        now: clock.now(),
        real: shared.clone(),
        programs: Vec::new(),
        out: RefCell::new(out),
        usual: RefCell::default(),
        failed: Cell::new(false),
        hands: Hands {
            queue,
            settings,
            most: head.workers,
            notes: shared,
            clock,
            jobs: Vec::new(),
            idle: Vec::new(),
            tell,
            told,
            wake: Arc::new(move || wake.wake()),
            given: 0,
        },
        handles: RefCell::default(),
    };
    let mut service = Service::over(recorder, engine, copies, config, mode, HashMap::new());
    service.fetches = head.workers > 0;
    Ok(service)
}

impl Recorder {
    fn write(&self, line: &str) {
        if writeln!(self.out.borrow_mut(), "{line}").is_err() {
            self.failed.set(true);
        }
    }

    /// The process's own slot of a descriptor, at which whoever closes it looks.
    fn own_slot<'a>(&'a self, wanted: Wanted, slot: &'a Slot) -> &'a Slot {
        let of = |p: &&Program| p.pid == wanted.pid && p.entry.is_some();
        let program = self.programs.iter().find(of);
        program.map_or(slot, |p| &p.real.proc().slots[usize::from(wanted.fd)])
    }

    /// A query was answered.
    fn note<T: log::Answer>(&self, name: &str, arguments: &str, answer: T) -> T {
        self.write(&format!("Q {name} {arguments} = {}", answer.write()));
        answer
    }

    /// The same of what is answered like this nearly always, which goes without saying. Once it was in a round it is so to the round's end: a replay
    /// could not know when it changed.
    fn note_unusual<T>(&self, name: &str, arguments: &str, answer: T, usual: T) -> T
    where
        T: log::Answer + PartialEq,
    {
        let query = format!("{name} {arguments}");
        if answer == usual {
            self.usual.borrow_mut().insert(query);
            return usual;
        }
        match self.usual.borrow().contains(&query) {
            true => usual,
            false => self.note(name, arguments, answer),
        }
    }

    fn of(handle: &Handle) -> String {
        let InodeKey { dev, ino } = handle.file();
        format!("{dev} {ino}")
    }

    /// The same of a question about bytes of a file.
    fn part(handle: &Handle, range: &ByteRange) -> String {
        format!("{} {} {}", Recorder::of(handle), range.start, range.end)
    }

    /// What workers have done until now is done.
    fn take_done(&mut self) {
        while let Ok((worker, job, done)) = self.hands.told.try_recv() {
            self.hands.idle.push(worker);
            let mut line = format!("J {job} ");
            let told = match &done {
                Done::Issued(issuing, outcome) => {
                    let handed = issuing.handed().done();
                    let (began, failed) = (outcome.began.nanos(), log::failed(&outcome.failed));
                    let read = outcome.read.write();
                    let end = if outcome.ends_in_cached { " c" } else { "" };
                    write!(line, "i {began} {handed} {read} {failed}{end}")
                }
                Done::Arrived(_, how) => {
                    let (seen, overdue) = (how.seen.write(), how.overdue.write());
                    write!(line, "a {} {seen} {overdue}", how.at.nanos())
                }
                Done::Waits(_) => write!(line, "w"),
            };
            told.unwrap_or_default();
            self.write(&line);
            self.hands.queue.done(done);
        }
    }

    /// That a file is let go of is known from a round's begin on only.
    fn keep(&self, handle: &Arc<Handle>) {
        handle.withhold_closed();
        if !handle.is_gone() {
            self.handles.borrow_mut().push(Arc::downgrade(handle));
        }
    }

    /// Files that were let go of from outside are so from now on.
    fn see_gone(&self) {
        let mut lines = Vec::new();
        self.handles.borrow_mut().retain(|handle| {
            let Some(handle) = handle.upgrade() else {
                return false;
            };
            if handle.tell_closed() {
                lines.push(format!("G {}", Recorder::of(&handle)));
            }
            !handle.is_gone()
        });
        lines.iter().for_each(|line| self.write(line));
    }

    /// The entry of a process whose memory was taken in.
    fn program(&self, proc: usize) -> Option<&Program> {
        self.programs.iter().find(|p| p.entry == Some(proc))
    }
}

impl Clock for Recorder {
    fn now(&self) -> Moment {
        self.now
    }
}

impl Counters for Recorder {
    fn own_pid(&self) -> u32 {
        self.system.own_pid()
    }

    fn bytes_fetched(&self, pid: u32) -> Option<u64> {
        let answer = self.system.bytes_fetched(pid);
        self.note("fetched", &pid.to_string(), answer)
    }

    fn longest_request(&self, device: DeviceId) -> Option<u64> {
        let answer = self.system.longest_request(device);
        self.note("longest", &device.0.to_string(), answer)
    }

    fn begun(&self, device: DeviceId) -> Option<(u64, u64)> {
        let answer = self.system.begun(device);
        let both = answer.map(|(least, most)| [least, most]);
        self.note("begun", &device.0.to_string(), both);
        answer
    }

    fn read(&self, device: DeviceId) -> Option<Read> {
        let answer = self.system.read(device);
        self.note("delivered", &device.0.to_string(), answer)
    }

    fn show_run(&self, own: &Run) {
        self.system.show_run(own);
    }

    fn other_runs(&self) -> Vec<Run> {
        let runs = self.system.other_runs();
        for run in &runs {
            self.note("run", "-", run.numbers());
        }
        runs
    }
}

impl Kernel for Recorder {
    fn begin_round(&mut self, _shared: &Shared) {
        let now = self.clock.now();
        self.write(&format!("R {}", (now - self.now).as_nanos()));
        self.now = now;
        self.usual.borrow_mut().clear();
        self.see_gone();
        self.take_done();
        let mut lines = Vec::new();
        for (m, p) in self.programs.iter_mut().enumerate() {
            if p.entry.is_some() {
                let (events, written) = p.ferry.come(&p.real);
                let words = written
                    .iter()
                    .map(|(at, v)| format!("D {m:x} {at:x} {v:x}"));
                lines.extend(words);
                lines.extend(events.iter().map(|e| log::event(m, e)));
            }
        }
        lines.iter().for_each(|line| self.write(line));
    }

    fn end_round(&mut self, _shared: &Shared) {
        while self.hands.are_free() {
            let Some(mut job) = self.hands.queue.next() else {
                break;
            };
            if let Job::Issue(issuing) = &mut job {
                issuing.count_apart();
            }
            self.write(&log::job(&job));
            self.hands.give(job);
        }
        let mut lines = Vec::new();
        for (m, p) in self.programs.iter_mut().enumerate() {
            let Some(entry) = p.entry else { continue };
            let written = p.ferry.go();
            carry(&p.real, &written);
            let words = written
                .iter()
                .map(|((at, v), _)| format!("W {m:x} {at:x} {v:x}"));
            lines.extend(words);
            if self.real.header().owners[entry].load(Relaxed) != p.pid {
                self.real.clear(entry);
                p.entry = None;
            }
        }
        lines.iter().for_each(|line| self.write(line));
    }

    fn sleep(&mut self, shared: &Shared, pause: Duration) {
        self.system.sleep(shared, pause);
    }

    fn pass(&mut self, time: Duration) {
        self.system.pass(time);
        self.now += time;
    }

    fn finished(&mut self, shared: &Shared) {
        if self.failed.get() || self.out.borrow_mut().flush().is_err() {
            self.real.header().lose(shm::lost::RECORDING);
        }
        self.system.finished(shared);
    }

    fn finishes(&self, shared: &Shared) -> bool {
        let answer = self.system.finishes(shared);
        self.note_unusual("finishes", "-", answer, false)
    }

    fn is_orphaned(&self) -> bool {
        let answer = self.system.is_orphaned();
        self.note_unusual("orphaned", "-", answer, false)
    }

    fn keyed(&self) -> Keyed {
        Keyed::with(0)
    }

    fn receive(&mut self, _shared: &Shared) -> Arrival {
        let handed = match self.system.receive(&self.real) {
            Arrival::Memory(handed) => handed,
            Arrival::Nobody => return Arrival::Nobody,
            other => {
                self.write("Q knock - = 1");
                return other;
            }
        };
        let sealed = outrider_sys::handover::is_sealed;
        let fits = sealed(std::os::fd::AsFd::as_fd(&handed.memory), shm::PROC_BYTES);
        let real = fits.then(|| ProcMemory::map(&handed.memory)).flatten();
        let (Some(real), Ok((copy, fd))) = (real, ProcMemory::new()) else {
            self.write("Q knock - = 1");
            return Arrival::Knock;
        };
        for (to, from) in copy.proc().name.iter().zip(&real.proc().name) {
            to.store(from.load(Relaxed), Relaxed);
        }
        let name: Vec<u8> = copy
            .proc()
            .name
            .iter()
            .flat_map(|w| w.load(Relaxed).to_ne_bytes())
            .collect();
        let pid = handed.from.pid;
        self.write(&format!("M {pid} {}", log::escaped(&name)));
        let mut ferry = Ferry::new(copy);
        let m = self.programs.len();
        let (events, written) = ferry.come(&real);
        for (at, v) in &written {
            self.write(&format!("D {m:x} {at:x} {v:x}"));
        }
        events.iter().for_each(|e| self.write(&log::event(m, e)));
        self.programs.push(Program {
            entry: None,
            pid,
            real,
            ferry,
            fd: Some(handed.memory),
        });
        Arrival::Memory(Handed {
            memory: fd,
            ..handed
        })
    }

    fn is_awaited(&self) -> bool {
        let answer = self.system.is_awaited();
        self.note_unusual("awaited", "-", answer, false)
    }

    fn is_still(&self, _shared: &Shared, proc: usize, handed: &Handed) -> bool {
        let answer = self.system.is_still(&self.real, proc, handed);
        self.note_unusual("still", &proc.to_string(), answer, true)
    }

    fn taken_in(&mut self, _shared: &Shared, proc: usize) {
        let before = self.programs.iter_mut();
        for p in before.filter(|p| p.entry == Some(proc)) {
            self.real.clear(proc);
            p.entry = None;
        }
        if let Some(p) = self.programs.last_mut()
            && let Some(fd) = p.fd.take()
            && self.real.take_in(proc, p.pid, &fd)
        {
            p.entry = Some(proc);
        }
    }

    fn stands(&self, _shared: &Shared, proc: usize) -> bool {
        let answer = self.program(proc).is_some() && self.system.stands(&self.real, proc);
        self.note_unusual("stands", &proc.to_string(), answer, true)
    }

    fn command(&self, pid: u32) -> String {
        let command = self.system.command(pid);
        self.note("command", &pid.to_string(), command.clone().into_bytes());
        command
    }

    fn life(&self, pid: u32) -> Option<OwnedFd> {
        self.system.life(pid)
    }

    fn is_over(&self, pid: u32, life: Option<&OwnedFd>) -> bool {
        let answer = self.system.is_over(pid, life);
        self.note_unusual("over", &pid.to_string(), answer, false)
    }

    fn is_ending(&self, _shared: &Shared, proc: usize) -> bool {
        let answer = self.system.is_ending(&self.real, proc);
        self.note_unusual("ending", &proc.to_string(), answer, false)
    }

    fn is_confined(&self, pid: u32, turn: usize) -> bool {
        let answer = self.system.is_confined(pid, turn);
        self.note_unusual("confined", &pid.to_string(), answer, false)
    }

    fn is_divided(&self, pid: u32, turn: usize) -> bool {
        let answer = self.system.is_divided(pid, turn);
        self.note_unusual("divided", &pid.to_string(), answer, false)
    }

    fn follow(&self, life: Option<&OwnedFd>) {
        self.system.follow(life);
    }

    fn has_ended(&self) -> bool {
        let answer = self.system.has_ended();
        self.note_unusual("ended", "-", answer, false)
    }

    fn held(&self, _shared: &Shared) -> u32 {
        let held = self.system.held(&self.real);
        self.note_unusual("held", "-", u64::from(held), 0) as u32
    }

    fn held_unseen(&self, _shared: &Shared, proc: usize) -> u32 {
        let held = self.system.held_unseen(&self.real, proc);
        self.note_unusual("unseen", &proc.to_string(), u64::from(held), 0) as u32
    }

    fn is_open(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool {
        let slot = self.own_slot(wanted, slot);
        let answer = self.system.is_open(wanted, slot, generation);
        let arguments = format!("{} {}", wanted.pid, wanted.fd);
        self.note_unusual("open?", &arguments, answer, true)
    }

    fn is_readable(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool {
        let slot = self.own_slot(wanted, slot);
        let answer = self.system.is_readable(wanted, slot, generation);
        let arguments = format!("{} {}", wanted.pid, wanted.fd);
        self.note_unusual("readable?", &arguments, answer, true)
    }

    fn is_direct(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool {
        let slot = self.own_slot(wanted, slot);
        let answer = self.system.is_direct(wanted, slot, generation);
        let arguments = format!("{} {}", wanted.pid, wanted.fd);
        self.note_unusual("direct?", &arguments, answer, false)
    }

    fn link(&self, wanted: Wanted, slot: &Slot, generation: u32) -> PathBuf {
        let slot = self.own_slot(wanted, slot);
        let link = self.system.link(wanted, slot, generation);
        let arguments = format!("{} {}", wanted.pid, wanted.fd);
        self.note("link", &arguments, log::bytes(&link));
        link
    }

    fn server(&self, wanted: Wanted, slot: &Slot, generation: u32) -> Option<FileSystem> {
        let slot = self.own_slot(wanted, slot);
        let answer = self.system.server(wanted, slot, generation);
        self.note_unusual("server", &wanted.dev.to_string(), answer, None)
    }

    fn behind(&self, pid: u32, address: u64) -> Option<(PathBuf, u64, u64, u64)> {
        let answer = self.system.behind(pid, address);
        let words = answer.as_ref().map(|(name, dev, ino, size)| {
            format!("{} {dev} {ino} {size}", log::escaped(&log::bytes(name))).into_bytes()
        });
        self.note("behind", &format!("{pid} {address}"), words);
        answer
    }

    fn open(
        &self,
        _shared: &Arc<Shared>,
        source: Source,
        openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile> {
        let answer = self.system.open(&self.real, source, openers);
        self.opened("open", source.key(), answer)
    }

    fn open_by_name(
        &self,
        _shared: &Arc<Shared>,
        proc: usize,
        name: &Path,
        key: InodeKey,
        openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile> {
        let answer = self
            .system
            .open_by_name(&self.real, proc, name, key, openers);
        self.opened("by-name", key, answer)
    }

    fn open_briefly(&self, name: &Path, key: InodeKey) -> Option<Handle> {
        let answer = self.system.open_briefly(name, key);
        let arguments = format!("{} {}", key.dev, key.ino);
        self.note("briefly", &arguments, answer.is_some());
        answer
    }

    fn begin_to_open(
        &mut self,
        _shared: &Arc<Shared>,
        source: Source,
        openers: &Arc<AtomicU32>,
    ) -> bool {
        let answer = self.system.begin_to_open(&self.real, source, openers);
        let key = source.key();
        self.note("begin", &format!("{} {}", key.dev, key.ino), answer)
    }

    fn opened(&mut self) -> Vec<Answer> {
        let answers = self.system.opened();
        for a in &answers {
            let size = a.file.as_ref().map(|(_, size)| *size);
            let gone = a.file.as_ref().is_some_and(|(handle, _)| handle.is_gone());
            let (dev, ino, size) = (a.key.dev, a.key.ino, size.unwrap_or(u64::MAX));
            let words = [dev, ino, a.proc as u64, size, u64::from(gone)];
            self.note("answered", "-", words);
            if let Some((handle, _)) = &a.file {
                self.keep(handle);
            }
        }
        answers
    }

    fn is_stuck(&self, dev: DeviceId) -> bool {
        let answer = self.system.is_stuck(dev);
        self.note_unusual("stuck", &dev.0.to_string(), answer, false)
    }

    fn file_system(&self, handle: &Handle) -> (FileSystem, Option<u64>) {
        let (found, _) = self.system.file_system(handle);
        (self.note("place", &Recorder::of(handle), found), None)
    }

    fn name(&self, handle: &Handle) -> PathBuf {
        let name = self.system.name(handle);
        self.note("name", &Recorder::of(handle), log::bytes(&name));
        name
    }

    fn size(&self, handle: &Handle) -> Option<u64> {
        let answer = self.system.size(handle);
        self.note("size", &Recorder::of(handle), answer)
    }

    fn has_module(&self) -> bool {
        false
    }

    fn cached(&self, handle: &Handle, range: ByteRange) -> Result<u64, CacheStatError> {
        let arguments = Recorder::part(handle, &range);
        let answer = handle.cached_pages(range);
        self.note("cached", &arguments, answer)
    }

    fn counted(&self, handle: &Handle, range: ByteRange) -> Result<CacheStat, CacheStatError> {
        let arguments = Recorder::part(handle, &range);
        let answer = self.system.counted(handle, range);
        self.note("counted", &arguments, answer)
    }

    fn drop_range(&self, handle: &Handle, range: ByteRange) -> io::Result<()> {
        self.write(&format!("X {}", Recorder::part(handle, &range)));
        let answer = self.system.drop_range(handle, range.clone());
        if answer.is_err() {
            self.note("refused", &Recorder::part(handle, &range), true);
        }
        answer
    }

    fn touched(&self, pid: u32, mapped: &mut Mapped) -> io::Result<Vec<ByteRange>> {
        let arguments = format!("{pid} {}", mapped.memory().start);
        let answer = self.system.touched(pid, mapped);
        match answer.as_ref().is_ok_and(Vec::is_empty) {
            true => answer,
            false => self.note("touched", &arguments, answer),
        }
    }

    fn bytes_read(&self, pid: u32) -> Option<u64> {
        let answer = self.system.bytes_read(pid);
        self.note("read", &pid.to_string(), answer)
    }

    fn memory(&self) -> Memory {
        self.note("memory", "-", self.system.memory())
    }

    fn watch_reads(&mut self, name: &Path, key: InodeKey) -> Option<i32> {
        let answer = self.system.watch_reads(name, key);
        let arguments = format!("{} {}", key.dev, key.ino);
        self.note("watch", &arguments, answer.map(|n| n as u64));
        answer
    }

    fn unwatch(&mut self, watch: i32) {
        self.system.unwatch(watch);
    }

    fn reads_heard(&mut self) -> Vec<(i32, bool)> {
        let heard = self.system.reads_heard();
        for (watch, was_read) in &heard {
            self.note("heard", "-", [*watch as u64, u64::from(*was_read)]);
        }
        heard
    }

    fn processes(&self) -> Vec<u32> {
        let all = self.system.processes();
        for pid in &all {
            self.note("process", "-", u64::from(*pid));
        }
        all
    }

    fn open_files(&self, pid: u32) -> Vec<PathBuf> {
        let all = self.system.open_files(pid);
        for name in &all {
            self.note("has", &pid.to_string(), log::bytes(name));
        }
        all
    }
}

impl Recorder {
    /// A file was opened, or not; it may have been closed just then.
    fn opened(&self, how: &str, key: InodeKey, answer: Option<OpenFile>) -> Option<OpenFile> {
        let answer = answer.filter(|(handle, _)| !handle.is_gone());
        let arguments = format!("{} {}", key.dev, key.ino);
        let words = answer.as_ref().map(|(_, size)| *size);
        self.note(how, &arguments, words);
        if let Some((handle, _)) = &answer {
            self.keep(handle);
        }
        answer
    }
}
