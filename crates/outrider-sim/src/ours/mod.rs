//! Outrider itself in simulated time: its service, planner, engine and hooks, the same code as on Linux.
//!
//! The service takes turns, each of which takes as long as the system calls in it, and sleeps in between as it says. Workers hand its requests to the machine's
//! readahead(2) one after the other and wait for their arrival. The hooks tell what they tell on Linux, by the same memory. Not here: walks through
//! directories, declared lists, and hints of the program.

mod kernel;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outrider_core::clock::Moment;
use outrider_core::config::Config;
use outrider_core::engine::{
    Arrived, Awaited, Done, Engine, Issuing, Job, Jobs, Kind as Issue, Outcome, Settings,
};
use outrider_core::proc_memory::ProcMemory;
use outrider_core::service::{Service, Turn};
use outrider_core::shared::Shared as Books;
use outrider_core::shm::{
    self, FD_IGNORED, FD_TRACKED, FLAG_READABLE, FLAG_RESIDENT, FLAG_SEQUENTIAL, FLAG_UNTOLD, Kind,
    Slot, UNHEARD,
};
use outrider_core::source::{New, SOURCES};

use outrider_sys::units::{ByteRange, DeviceId, PAGE};

use crate::device::Nanos;
use crate::readahead::{Window, forced};
use crate::run::{Ahead, Shared};
use crate::system::{By, Event, System, costs};
use crate::trace::Trace;
use kernel::{Machine, Program, is_there};

/// Numbers of the processes.
const PROGRAM: u32 = 100;
const SERVICE: u32 = 101;
/// `st_ino` of the first file, and `st_dev` of all.
const FIRST_INODE: u64 = 1000;
const DEVICE: u64 = 0x800;

/// From the first event until the service takes its first turn, ns: a fork, and the handing over of memory.
const START: Nanos = 200_000;
/// Where maps lie: each so far from the last, bytes.
const MAPPED: u64 = 1 << 40;

/// Telling of a read, and passing over one, ns.
const TELL: Nanos = 60;
const PASS: Nanos = 10;
/// What a hook looks at when a file is opened, bytes from its begin on.
const LOOK: u64 = 128 << 10;

/// Somebody who does a job at a time.
enum Worker {
    Idle,
    /// Hands over requests: the next of them, bytes that were read for those before, whether the last page was cached, and when it began.
    Issuing(Issuing, usize, u64, bool, Moment),
    Awaiting(Awaited),
}

/// The engine's jobs and who does them.
struct Hands {
    jobs: Jobs,
    workers: Vec<Worker>,
}

/// Outrider, ahead of a program.
pub struct Ours {
    config: Config,
    mode: u32,
    sources: &'static [New],
    books: Arc<Books>,
    memory: Option<ProcMemory>,
    program: Rc<RefCell<Program>>,
    service: Option<Service<Machine>>,
    spent: Rc<Cell<Nanos>>,
    hands: Option<Hands>,
    /// Counts the turns that were planned: only the last plan holds.
    plan: u64,
    started: bool,
    /// Files that are mapped.
    mapped: Vec<bool>,
    /// Processor time of the service, ns.
    busy: Nanos,
}

/// Of what the ahead is woken for: a turn, or a worker.
const TURN: u64 = 1 << 32;

impl Ours {
    /// With this configuration, in mode `shm::MODE_*`; an error is the system's.
    pub fn new(config: Config, mode: u32) -> std::io::Result<Ours> {
        let books = Arc::new(Books::create(mode, config.files.min_size.0)?);
        let (memory, fd) = ProcMemory::new()?;
        let program = Program {
            memory: Some(fd),
            over: false,
            heard: false,
            bytes_read: 0,
            open: Vec::new(),
        };
        Ok(Ours {
            config,
            mode,
            sources: SOURCES,
            books,
            memory: Some(memory),
            program: Rc::new(RefCell::new(program)),
            service: None,
            spent: Rc::default(),
            hands: None,
            plan: 0,
            started: false,
            mapped: Vec::new(),
            busy: 0,
        })
    }

    /// The same with these sources of foresight in place of [`SOURCES`].
    pub fn with_sources(self, sources: &'static [New]) -> Ours {
        Ours { sources, ..self }
    }

    /// Processor time of the service, ns.
    pub fn busy(&self) -> Nanos {
        self.busy
    }

    /// Each source that asked for something, and what became of it, by [`shm::SOURCE_FIGURES`].
    pub fn figures(&self) -> Vec<(&'static str, [u64; shm::SOURCE_FIGURES.len()])> {
        let header = self.books.header();
        let all = shm::Origin::ALL.into_iter().map(|origin| {
            let figures = &header.sources[origin as usize];
            (origin.name(), figures.each_ref().map(|n| n.load(Relaxed)))
        });
        all.filter(|(_, figures)| figures.iter().any(|n| *n > 0))
            .collect()
    }

    /// Bytes that calls which the program makes ahead itself may have in flight, as it was told last, if it was told of others.
    pub fn room(&self) -> Option<u64> {
        self.memory.as_ref()?.proc().rooms.of(DeviceId(DEVICE))
    }

    fn slot(&self, fd: usize) -> Option<&Slot> {
        self.memory.as_ref()?.proc().slots.get(fd)
    }

    /// Plans the next turn.
    fn plan(&mut self, system: &Shared, when: Nanos) {
        self.plan += 1;
        system.borrow_mut().at(when, Event::Ahead(TURN | self.plan));
    }

    /// Tells the service something; it is started with the first thing that is told.
    fn tell(
        &mut self,
        system: &Shared,
        what: Kind,
        fd: usize,
        extra: u64,
        offset: u64,
        len: u64,
    ) -> bool {
        if !std::mem::replace(&mut self.started, true) {
            let now = system.borrow().now;
            self.plan(system, now + START);
        }
        let Some(memory) = &self.memory else {
            return false;
        };
        memory.proc().push(what, fd as u16, extra, offset, len)
    }

    /// A turn of the service.
    fn turn(&mut self, system: &Shared) {
        if self.service.is_none() {
            let kernel = Machine::new(system.clone(), self.program.clone());
            self.spent = kernel.spent.clone();
            let settings = Settings::of(&self.config, Issue::Threads);
            let (engine, jobs) = Engine::by_hand(settings, self.books.clone());
            let workers = (0..settings.workers).map(|_| Worker::Idle).collect();
            self.hands = Some(Hands { jobs, workers });
            let (books, config) = (self.books.clone(), self.config.clone());
            let service =
                Service::over(kernel, engine, books, config, self.mode, Default::default());
            self.service = Some(service.with_sources(self.sources));
        }
        let Some(service) = &mut self.service else {
            return;
        };
        self.spent.set(0);
        let turn = service.turn();
        let spent = self.spent.take();
        self.busy += spent;
        let end = system.borrow().now + spent;
        match turn {
            Turn::Over => {}
            Turn::Busy => self.plan(system, end),
            Turn::Pause(pause) => self.plan(system, end + pause.as_nanos() as Nanos + costs::WAKE),
        }
        if let Some(hands) = &mut self.hands {
            hands.assign(system, end);
        }
    }
}

impl Hands {
    /// Those who are idle take what there is to do.
    fn assign(&mut self, system: &Shared, when: Nanos) {
        for (i, worker) in self.workers.iter_mut().enumerate() {
            if !matches!(worker, Worker::Idle) {
                continue;
            }
            let Some(job) = self.jobs.next() else { return };
            *worker = match job {
                Job::Issue(issuing) => {
                    let cached = ends_in_cached(&system.borrow(), &issuing);
                    Worker::Issuing(issuing, 0, 0, cached, Moment::from_nanos(when))
                }
                Job::Await(awaited) => Worker::Awaiting(awaited),
            };
            system.borrow_mut().at(when, Event::Ahead(i as u64));
        }
    }

    /// A worker goes on.
    fn goes_on(&mut self, system: &Shared, i: usize) {
        let now = system.borrow().now;
        match std::mem::replace(&mut self.workers[i], Worker::Idle) {
            Worker::Idle => {}
            Worker::Issuing(issuing, next, read, cached, began) => {
                if let Some(request) = issuing.requests().get(next) {
                    let (time, bytes) =
                        issue(system, request.handle.file().ino, request.range.clone());
                    // What was cached, or on its way, is no request.
                    issuing.handed().add(u64::from(bytes > 0));
                    self.workers[i] =
                        Worker::Issuing(issuing, next + 1, read + bytes, cached, began);
                    system.borrow_mut().at(now + time, Event::Ahead(i as u64));
                    return;
                }
                let outcome = Outcome {
                    failed: Vec::new(),
                    read: Some(read),
                    ends_in_cached: cached,
                    began,
                };
                self.jobs.done(Done::Issued(issuing, outcome));
            }
            Worker::Awaiting(awaited) => {
                let mut system = system.borrow_mut();
                let file = (awaited.handle().file().ino - FIRST_INODE) as usize;
                let page = system.pages(file, awaited.last()..awaited.last() + 1).start;
                if system.cache.state(page) == crate::cache::State::Reading {
                    system.when_there(page, Event::Ahead(i as u64));
                    self.workers[i] = Worker::Awaiting(awaited);
                    return;
                }
                let arrived = Arrived {
                    seen: true,
                    overdue: false,
                    at: Moment::from_nanos(now),
                };
                self.jobs.done(Done::Arrived(awaited, arrived));
            }
        }
        self.assign(system, now);
    }
}

/// Whether the last page that is asked for is cached or on its way.
fn ends_in_cached(system: &System, issuing: &Issuing) -> bool {
    let Some(last) = issuing.requests().last() else {
        return false;
    };
    let file = (last.handle.file().ino - FIRST_INODE) as usize;
    let page = system.pages(file, last.range.end - 1..last.range.end).start;
    system.cache.state(page) != crate::cache::State::Absent
}

/// readahead(2): ns that it takes, and bytes that it has read.
fn issue(system: &Shared, ino: u64, bytes: ByteRange) -> (Nanos, u64) {
    let mut system = system.borrow_mut();
    let file = (ino - FIRST_INODE) as usize;
    let before = system.asked(By::Ahead).bytes;
    let (most, longest) = (
        system.machine().read_ahead / PAGE,
        system.machine().longest / PAGE,
    );
    let mut time = costs::READ;
    for pages in forced(bytes.start / PAGE..bytes.end.div_ceil(PAGE), most, longest) {
        let window = Window {
            pages,
            marked: None,
        };
        time += system.read(file, &window, By::Ahead);
    }
    (time, system.asked(By::Ahead).bytes - before)
}

impl Ahead for Ours {
    fn begins(&mut self, _system: &Shared, trace: &Trace) {
        self.program.borrow_mut().open = vec![0; trace.files.len()];
        self.mapped = vec![false; trace.files.len()];
    }

    fn opened(&mut self, system: &Shared, fd: usize, file: usize) -> Nanos {
        self.program.borrow_mut().open[file] += 1;
        let size = system.borrow().size(file);
        let resident = is_there(system, file, 0..size.min(LOOK));
        let Some(slot) = self.slot(fd) else {
            return 0;
        };
        if size < self.config.files.min_size.0 {
            slot.state.store(FD_IGNORED, Relaxed);
            return costs::READ;
        }
        slot.forget();
        slot.dev.store(DEVICE, Relaxed);
        slot.ino.store(FIRST_INODE + file as u64, Relaxed);
        let flags = if resident {
            FLAG_RESIDENT | FLAG_UNTOLD
        } else {
            0
        };
        slot.flags.store(FLAG_READABLE | flags, Relaxed);
        slot.last.store(0, Relaxed);
        slot.state.store(FD_TRACKED, Relaxed);
        if !resident {
            self.tell(system, Kind::Open, fd, 0, size, 0);
        }
        costs::READ + TELL
    }

    fn reads(&mut self, system: &Shared, thread: usize, fd: usize, offset: u64, len: u64) -> Nanos {
        self.program.borrow_mut().bytes_read += len;
        let Some(slot) = self
            .slot(fd)
            .filter(|slot| slot.state.load(Relaxed) == FD_TRACKED)
        else {
            return 0;
        };
        let flags = slot.flags.load(Relaxed);
        if flags & FLAG_RESIDENT != 0 {
            let file = (slot.ino.load(Relaxed) - FIRST_INODE) as usize;
            if is_there(system, file, offset..offset + len) {
                return PASS;
            }
            slot.flags
                .fetch_and(!(FLAG_RESIDENT | FLAG_UNTOLD), Relaxed);
            slot.hush(0, 0, 0);
            slot.last.store(offset + len, Relaxed);
        } else if slot.passes(offset, len) {
            return PASS;
        } else {
            slot.tells(flags);
        }
        let tag = 0x1000 + thread as u64;
        if !self.tell(system, Kind::Read, fd, tag, offset, len)
            && let Some(slot) = self.slot(fd)
        {
            slot.skip.store(UNHEARD, Relaxed);
        }
        TELL
    }

    fn touches(&mut self, system: &Shared, _thread: usize, fd: usize, _offset: u64) -> Nanos {
        let Some(slot) = self
            .slot(fd)
            .filter(|slot| slot.state.load(Relaxed) == FD_TRACKED)
        else {
            return 0;
        };
        let file = (slot.ino.load(Relaxed) - FIRST_INODE) as usize;
        if self.mapped[file] {
            return 0;
        }
        // Its map is made when it is touched first.
        slot.is_told();
        self.mapped[file] = true;
        let (address, size) = (MAPPED + file as u64 * MAPPED, system.borrow().size(file));
        self.tell(system, Kind::Map, fd, 0, address, size);
        TELL
    }

    fn advised(&mut self, _system: &Shared, fd: usize, sequential: bool) -> Nanos {
        if let Some(slot) = self.slot(fd) {
            match sequential {
                true => slot.flags.fetch_or(FLAG_SEQUENTIAL, Relaxed),
                false => slot.flags.fetch_and(!FLAG_SEQUENTIAL, Relaxed),
            };
        }
        PASS
    }

    fn closes(&mut self, system: &Shared, fd: usize, file: usize) -> Nanos {
        {
            let mut program = self.program.borrow_mut();
            program.open[file] = program.open[file].saturating_sub(1);
        }
        let Some(slot) = self
            .slot(fd)
            .filter(|slot| slot.state.load(Relaxed) == FD_TRACKED)
        else {
            return 0;
        };
        let (last, skip) = (slot.last.load(Relaxed), slot.skip.load(Relaxed));
        let told = slot.flags.load(Relaxed) & FLAG_UNTOLD == 0;
        slot.forget();
        if told {
            self.tell(system, Kind::Close, fd, 0, last, skip.into());
        }
        TELL
    }

    fn wakes(&mut self, system: &Shared, what: u64) {
        if what & TURN == 0 {
            if let Some(hands) = &mut self.hands {
                hands.goes_on(system, what as usize);
            }
        } else if what == TURN | self.plan {
            self.turn(system);
        }
    }

    fn ends(&mut self, _system: &Shared) {
        self.program.borrow_mut().over = true;
    }
}

/// What Outrider comes to with its own configuration.
pub fn ours(
    trace: &Trace,
    machine: &crate::system::Machine,
) -> std::io::Result<(crate::Outcome, Nanos)> {
    let mut ours = Ours::new(Config::default(), shm::MODE_PREDICT_OPT)?;
    let outcome = crate::run(trace, machine, &mut ours);
    Ok((outcome, ours.busy()))
}
