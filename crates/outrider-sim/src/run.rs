//! Programs that run on a machine.

use std::cell::RefCell;
use std::rc::Rc;

use outrider_sys::units::PAGE;

use crate::cache::State;
use crate::device::Nanos;
use crate::readahead::{Readahead, Window, forced};
use crate::system::{By, Counts, Event, Machine, System, Waits, costs};
use crate::trace::{MOST_FDS, Op, Trace};

/// The machine, for those who share it.
pub type Shared = Rc<RefCell<System>>;

/// Who runs ahead of the program. Each call tells of what the program is about to do, and returns the time that telling takes the program, ns. No call finds the
/// system borrowed.
pub trait Ahead {
    /// The program begins.
    fn begins(&mut self, _system: &Shared, _trace: &Trace) {}
    /// It has opened a file under a number.
    fn opened(&mut self, _system: &Shared, _fd: usize, _file: usize) -> Nanos {
        0
    }
    /// A thread reads `len` bytes from `offset` on.
    fn reads(
        &mut self,
        _system: &Shared,
        _thread: usize,
        _fd: usize,
        _offset: u64,
        _len: u64,
    ) -> Nanos {
        0
    }
    /// The same through a map.
    fn touches(&mut self, _system: &Shared, _thread: usize, _fd: usize, _offset: u64) -> Nanos {
        0
    }
    /// It says that it reads a file in order, or not.
    fn advised(&mut self, _system: &Shared, _fd: usize, _sequential: bool) -> Nanos {
        0
    }
    /// It closes a file.
    fn closes(&mut self, _system: &Shared, _fd: usize, _file: usize) -> Nanos {
        0
    }
    /// What it had itself woken for happens: [`Event::Ahead`].
    fn wakes(&mut self, _system: &Shared, _what: u64) {}
    /// The program is over.
    fn ends(&mut self, _system: &Shared) {}
}

/// Nobody: what the kernel does alone.
pub struct Nothing;

impl Ahead for Nothing {}

/// What a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// ns until the last thread was over.
    pub elapsed: Nanos,
    /// Of these, ns that threads waited for the device, all together.
    pub waited: Nanos,
    /// What the program, with the kernel's readahead for it, has asked of the device.
    pub program: Counts,
    /// What was asked ahead of it.
    pub ahead: Counts,
    /// Bytes that left the cache before anybody used them.
    pub wasted: u64,
    /// What the neighbour has waited, if there is one.
    pub neighbour: Waits,
}

struct Thread {
    /// The next of its ops.
    next: usize,
    /// Where it is in that: a byte of the file; `None` before its begin.
    at: Option<u64>,
    /// Since when it waits for a page.
    since: Option<Nanos>,
    over: bool,
}

/// A number under which a file is open.
#[derive(Clone, Copy)]
struct Descriptor {
    file: usize,
    readahead: Readahead,
}

struct Program<'a> {
    trace: &'a Trace,
    system: Shared,
    ahead: &'a mut dyn Ahead,
    threads: Vec<Thread>,
    descriptors: Vec<Option<Descriptor>>,
    waited: Nanos,
}

/// What becomes of a thread.
enum Step {
    /// It is busy for so long.
    Busy(Nanos),
    /// It waits for a page.
    Waits(u32),
    /// On to the next op.
    Next,
}

/// Runs a program from cold on a machine, with somebody ahead of it.
pub fn run(trace: &Trace, machine: &Machine, ahead: &mut dyn Ahead) -> Outcome {
    let system = Rc::new(RefCell::new(System::new(machine, &trace.files)));
    let threads = trace.threads.iter().map(|_| Thread {
        next: 0,
        at: None,
        since: None,
        over: false,
    });
    let mut program = Program {
        trace,
        system: system.clone(),
        ahead,
        threads: threads.collect(),
        descriptors: vec![None; MOST_FDS],
        waited: 0,
    };
    program.ahead.begins(&system, trace);
    for thread in 0..program.threads.len() {
        system.borrow_mut().at(0, Event::Thread(thread));
    }
    let mut left = program.threads.len();
    while left > 0 {
        let event = system.borrow_mut().happens();
        match event {
            Some(Event::Thread(thread)) => left -= usize::from(program.goes_on(thread)),
            Some(Event::Device) => system.borrow_mut().attend(),
            Some(Event::Neighbour) => system.borrow_mut().neighbour_asks(),
            Some(Event::Ahead(what)) => program.ahead.wakes(&system, what),
            // Nothing can happen any more: a thread waits for what nobody has asked for.
            None => unreachable!("a page is waited for and not on its way"),
        }
    }
    let waited = program.waited;
    program.ahead.ends(&system);
    let system = system.borrow();
    Outcome {
        elapsed: system.now,
        waited,
        program: system.asked(By::Program),
        ahead: system.asked(By::Ahead),
        wasted: system.cache.wasted() * PAGE,
        neighbour: system.neighbour(),
    }
}

impl Program<'_> {
    /// A thread goes on until it is busy or waits. `true` once it is over.
    fn goes_on(&mut self, number: usize) -> bool {
        let now = self.system.borrow().now;
        if let Some(since) = self.threads[number].since.take() {
            self.waited += now - since;
        }
        loop {
            let Some(op) = self.trace.threads[number]
                .get(self.threads[number].next)
                .copied()
            else {
                return !std::mem::replace(&mut self.threads[number].over, true);
            };
            match self.step(number, op) {
                Step::Busy(time) => {
                    self.system
                        .borrow_mut()
                        .at(now + time, Event::Thread(number));
                    return false;
                }
                Step::Waits(page) => {
                    self.threads[number].since = Some(now);
                    self.system
                        .borrow_mut()
                        .when_there(page, Event::Thread(number));
                    return false;
                }
                Step::Next => self.over(number),
            }
        }
    }

    fn over(&mut self, number: usize) {
        self.threads[number].next += 1;
        self.threads[number].at = None;
    }

    fn step(&mut self, number: usize, op: Op) -> Step {
        match op {
            Op::Think(time) => self.once(number, |_| time),
            Op::Open { fd, file } => self.once(number, |p| {
                let most = p.system.borrow().machine().read_ahead / PAGE;
                p.descriptors[fd] = Some(Descriptor {
                    file,
                    readahead: Readahead::new(most),
                });
                costs::OPEN + p.ahead.opened(&p.system, fd, file)
            }),
            Op::Close { fd } => self.once(number, |p| match p.descriptors[fd].take() {
                Some(d) => costs::READ + p.ahead.closes(&p.system, fd, d.file),
                None => costs::READ,
            }),
            Op::Advise { fd, sequential } => self.once(number, |p| {
                let most = p.system.borrow().machine().read_ahead / PAGE;
                if let Some(d) = &mut p.descriptors[fd] {
                    d.readahead.advise(sequential, most);
                }
                costs::READ + p.ahead.advised(&p.system, fd, sequential)
            }),
            Op::WillNeed { fd, offset, len } => self.once(number, |p| p.will_need(fd, offset, len)),
            Op::Read { fd, offset, len } => self.read(number, fd, offset, len),
            Op::Touch { fd, offset } => self.touch(number, fd, offset),
        }
    }

    /// Something that takes time once.
    fn once(&mut self, number: usize, what: impl FnOnce(&mut Self) -> Nanos) -> Step {
        if self.threads[number].at.is_some() {
            return Step::Next;
        }
        self.threads[number].at = Some(0);
        Step::Busy(what(self))
    }

    /// The hint (`force_page_cache_ra`).
    fn will_need(&mut self, fd: usize, offset: u64, len: u64) -> Nanos {
        let Some(d) = self.descriptors[fd] else {
            return costs::READ;
        };
        let mut system = self.system.borrow_mut();
        let longest = system.machine().longest / PAGE;
        let pages = offset / PAGE..(offset + len).min(system.size(d.file)).div_ceil(PAGE);
        let chunks = forced(pages, d.readahead.most, longest);
        let each = chunks.map(|pages| {
            let window = Window {
                pages,
                marked: None,
            };
            system.read(d.file, &window, By::Program)
        });
        costs::READ + each.sum::<Nanos>()
    }

    /// A read (`filemap_read`), as far as it gets at once.
    fn read(&mut self, number: usize, fd: usize, offset: u64, len: u64) -> Step {
        let Some(at) = self.threads[number].at else {
            self.threads[number].at = Some(offset);
            return Step::Busy(
                costs::READ + self.ahead.reads(&self.system, number, fd, offset, len),
            );
        };
        let Some(d) = &mut self.descriptors[fd] else {
            // Not open yet, or no longer: an error.
            return Step::Next;
        };
        let mut system = self.system.borrow_mut();
        let end = (offset + len).min(system.size(d.file));
        if at >= end {
            return Step::Next;
        }
        let (index, last) = (at / PAGE, end.div_ceil(PAGE));
        let longest = system.machine().longest / PAGE;
        let page = system.page(d.file, index);
        if system.cache.state(page) == State::Absent {
            let cached = |page| system.is_present(d.file, page);
            let window = d.readahead.missed(index, last - index, longest, cached);
            return Step::Busy(system.read(d.file, &window, By::Program));
        }
        if system.cache.is_marked(page) {
            system.cache.unmark(page);
            let cached = |page| system.is_present(d.file, page);
            let window = d.readahead.came(index, last - index, longest, cached);
            let time = window.map(|window| system.read(d.file, &window, By::Program));
            return Step::Busy(time.unwrap_or(0));
        }
        if system.cache.state(page) == State::Reading {
            return Step::Waits(page);
        }
        // A batch of the kernel's: 15 pages at most, up to what is to be waited for.
        let ready = |k: &u64| {
            let page = system.page(d.file, index + k);
            system.cache.state(page) == State::Uptodate && !system.cache.is_marked(page)
        };
        let pages = (1..15.min(last - index)).take_while(ready).count() as u64 + 1;
        let previous = d.readahead.previous.wrapping_sub(1) / PAGE;
        for k in 0..pages {
            if index + k != previous {
                let page = system.page(d.file, index + k);
                system.cache.access(page);
            }
        }
        let to = ((index + pages) * PAGE).min(end);
        d.readahead.previous = to;
        self.threads[number].at = Some(to);
        Step::Busy(pages * costs::COPY)
    }

    /// A touch of a map (`filemap_fault`, with `fault_around_bytes` of 64 KiB).
    fn touch(&mut self, number: usize, fd: usize, offset: u64) -> Step {
        const AROUND: u64 = 16;
        let Some(d) = &mut self.descriptors[fd] else {
            return Step::Next;
        };
        if offset >= self.system.borrow().size(d.file) {
            return Step::Next;
        }
        let index = offset / PAGE;
        let page = self.system.borrow().page(d.file, index);
        let there = self.system.borrow().cache.state(page);
        let begins = self.threads[number].at.is_none();
        if self.system.borrow().is_mapped(page) && there == State::Uptodate {
            return Step::Next;
        }
        if begins {
            self.threads[number].at = Some(offset);
            return Step::Busy(self.ahead.touches(&self.system, number, fd, offset));
        }
        let mut system = self.system.borrow_mut();
        match there {
            State::Absent => {
                let window = d.readahead.faulted(index).unwrap_or(Window {
                    pages: index..index + 1,
                    marked: None,
                });
                Step::Busy(system.read(d.file, &window, By::Program))
            }
            State::Reading => Step::Waits(page),
            State::Uptodate => {
                d.readahead.found();
                let mut time = costs::FAULT;
                if system.cache.is_marked(page) {
                    system.cache.unmark(page);
                    let (most, longest) = (d.readahead.most, system.machine().longest / PAGE);
                    let cached = |page| system.is_present(d.file, page);
                    if let Some(window) = d.readahead.came(index, most, longest, cached) {
                        time += system.read(d.file, &window, By::Program);
                    }
                }
                system.cache.access(page);
                let around = index / AROUND * AROUND..(index / AROUND + 1) * AROUND;
                for other in around {
                    if !system.is_present(d.file, other) {
                        continue;
                    }
                    let other = system.page(d.file, other);
                    // One that is marked is left out, so that it faults (`next_uptodate_folio`).
                    let marked = system.cache.is_marked(other) && other != page;
                    if system.cache.state(other) == State::Uptodate && !marked {
                        system.map(other);
                    }
                }
                Step::Busy(time)
            }
        }
    }
}
