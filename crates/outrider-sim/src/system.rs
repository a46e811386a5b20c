//! The machine that programs run on: files, page cache, one device, and what happens when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Range;

use outrider_sys::units::{ByteRange, PAGE};

use crate::cache::{Cache, State};
use crate::device::{Device, Nanos, Request};
use crate::model::{Kind, Model};
use crate::random::Random;
use crate::readahead::Window;

/// What things take that no device does, ns. Measured on Linux 6.18, on a virtual machine of 2025.
pub mod costs {
    use super::Nanos;

    /// A read(2) without its copying: of a cached page it takes 320 to 630 ns in all.
    pub const READ: Nanos = 250;
    /// Copying a page.
    pub const COPY: Nanos = 350;
    /// Putting a page into the cache for a read of it, by the kernel's own readahead: 70 to 190 ns.
    pub const INSERT: Nanos = 130;
    /// The same by readahead(2), for whoever calls it: 270 to 840 ns.
    pub const INSERT_FORCED: Nanos = 400;
    /// Handing a request to a device.
    pub const SUBMIT: Nanos = 2_000;
    /// From the arrival of a page until who waits for it runs again.
    pub const WAKE: Nanos = 4_000;
    /// A fault that finds its page.
    pub const FAULT: Nanos = 700;
    /// An open(2) of a file whose name is known.
    pub const OPEN: Nanos = 1_500;
}

/// A machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The device.
    pub device: Model,
    /// Bytes of the page cache.
    pub memory: u64,
    /// The kernel's own readahead, bytes: `read_ahead_kb`.
    pub read_ahead: u64,
    /// The longest request that the device is given, bytes: `max_sectors_kb`.
    pub longest: u64,
    /// Who else reads from the device.
    pub neighbour: Option<Neighbour>,
}

impl Machine {
    /// One of its own, with a device as [`Model::change`] takes it, and the kernel's own settings: it reads 128 KiB ahead, and asks a disk for 1280 KiB at most.
    /// Errors say what of the words is wrong.
    pub fn of(device: &str, memory: u64) -> Result<Machine, String> {
        let device = Model::default().change(device)?;
        Ok(Machine {
            device: device.model.unwrap_or_default(),
            memory,
            read_ahead: 128 << 10,
            longest: 1280 << 10,
            neighbour: None,
        })
    }
}

/// A foreign reader of 4 KiB blocks at random places of the device, around the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Requests that it has in the device at once.
    pub depth: u32,
    /// ns between an answer and the next request.
    pub pause: Nanos,
}

/// How long somebody has waited for his requests, each ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Of so many.
    pub count: u64,
    /// Half of them took less,
    pub half: Nanos,
    /// and 99 % …
    pub hundredth: Nanos,
    /// … and none took more.
    pub longest: Nanos,
}

/// The device is as large as this at least, bytes: files lie at its begin, and the neighbour reads behind them.
const DISK: u64 = 64 << 30;

/// Something that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Event {
    /// A thread of the program goes on.
    Thread(usize),
    /// The device has something to do or to say.
    Device,
    /// Whoever runs ahead is woken, with what he had himself woken for.
    Ahead(u64),
    /// The neighbour asks again.
    Neighbour,
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The program's own reads, and the kernel's readahead for them.
    Program,
    /// Whoever runs ahead of it.
    Ahead,
}

/// Counts of what was asked of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
}

struct File {
    size: u64,
    /// Its first page in the cache.
    first: u32,
    /// Its first byte on the device.
    at: u64,
}

enum Flying {
    /// Pages of the cache.
    Pages(Range<u32>),
    Neighbour,
}

/// The machine while it runs.
pub struct System {
    /// Now.
    pub now: Nanos,
    /// The page cache.
    pub cache: Cache,
    machine: Machine,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    numbers: u64,
    files: Vec<File>,
    /// Which pages are mapped where they can be touched without a fault.
    mapped: Vec<bool>,
    device: Device,
    /// When the device is looked at next.
    look: Nanos,
    flying: BTreeMap<u64, Flying>,
    /// Who waits for a page.
    waiting: BTreeMap<u32, Vec<Event>>,
    /// Asked for, by the program and ahead of it …
    asked: [Counts; 2],
    /// … and what the device has been given and has answered, the neighbour's included.
    begun: u64,
    answered: Counts,
    /// How long the neighbour has waited for each of its blocks.
    neighbour_waited: Vec<Nanos>,
    random: Random,
}

impl System {
    /// A machine at rest, with an empty cache and files of these sizes (bytes), one after the other on the device.
    pub fn new(machine: &Machine, sizes: &[u64]) -> System {
        let (mut first, mut at, mut files) = (0u32, 1 << 20, Vec::new());
        for size in sizes {
            files.push(File {
                size: *size,
                first,
                at,
            });
            let pages = size.div_ceil(PAGE);
            first += pages as u32;
            at += pages * PAGE;
        }
        let mut device = machine.device.clone();
        // Here the way to the device and back takes no time.
        device.early_us = 0.0;
        let mut system = System {
            now: 0,
            cache: Cache::new(first as usize, (machine.memory / PAGE).min(1 << 30) as u32),
            machine: machine.clone(),
            events: BinaryHeap::new(),
            numbers: 0,
            files,
            mapped: vec![false; first as usize],
            device: Device::new(device),
            look: Nanos::MAX,
            flying: BTreeMap::new(),
            waiting: BTreeMap::new(),
            asked: [Counts::default(); 2],
            begun: 0,
            answered: Counts::default(),
            neighbour_waited: Vec::new(),
            random: Random::new(1),
        };
        for _ in 0..machine.neighbour.map_or(0, |n| n.depth) {
            system.at(0, Event::Neighbour);
        }
        system
    }

    /// Whether a page can be touched without a fault.
    pub fn is_mapped(&self, page: u32) -> bool {
        self.mapped[page as usize]
    }

    /// From now on it can.
    pub fn map(&mut self, page: u32) {
        self.mapped[page as usize] = true;
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Has something happen, not before now.
    pub fn at(&mut self, when: Nanos, what: Event) {
        self.numbers += 1;
        let when = when.max(self.now);
        self.events.push(Reverse((when, self.numbers, what)));
    }

    /// The next thing that happens; it is its time then.
    pub fn happens(&mut self) -> Option<Event> {
        let Reverse((when, _, what)) = self.events.pop()?;
        self.now = when;
        Some(what)
    }

    /// Bytes of a file.
    pub fn size(&self, file: usize) -> u64 {
        self.files[file].size
    }

    /// Files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Where a page of a file lies on the device, bytes.
    pub fn address(&self, file: usize, index: u64) -> u64 {
        self.files[file].at + index * PAGE
    }

    /// A page of a file, in the cache.
    pub fn page(&self, file: usize, index: u64) -> u32 {
        self.files[file].first + index as u32
    }

    /// Those of a range of bytes, as far as the file has them.
    pub fn pages(&self, file: usize, bytes: ByteRange) -> Range<u32> {
        let File { size, first, .. } = self.files[file];
        let end = bytes.end.min(size).div_ceil(PAGE);
        let start = (bytes.start / PAGE).min(end);
        first + start as u32..first + end as u32
    }

    /// What a page of a file is.
    pub fn state(&self, file: usize, index: u64) -> State {
        self.cache.state(self.page(file, index))
    }

    /// Whether it is there or on its way; not behind the end.
    pub fn is_present(&self, file: usize, index: u64) -> bool {
        index < self.files[file].size.div_ceil(PAGE) && self.state(file, index) != State::Absent
    }

    /// Has those pages of a file read that are not cached (`page_cache_ra_unbounded`); the marked one is marked if it is among them. Returns what that has
    /// the caller take, ns.
    pub fn read(&mut self, file: usize, window: &Window, by: By) -> Nanos {
        let end = self.files[file].size.div_ceil(PAGE);
        let pages = window.pages.start..window.pages.end.min(end);
        let (mut inserted, mut begun) = (0, None);
        let requests = self.asked[by as usize].requests;
        for index in pages.clone() {
            if self.state(file, index) != State::Absent {
                if let Some(start) = begun.take() {
                    self.submit(file, start..index, by);
                }
                continue;
            }
            let page = self.page(file, index);
            self.cache.begin(page);
            if window.marked == Some(index) {
                self.cache.mark(page);
            }
            inserted += 1;
            begun.get_or_insert(index);
        }
        if let Some(start) = begun {
            self.submit(file, start..pages.end, by);
        }
        let each = match by {
            By::Program => costs::INSERT,
            By::Ahead => costs::INSERT_FORCED,
        };
        inserted * each + (self.asked[by as usize].requests - requests) * costs::SUBMIT
    }

    /// Gives the device requests for pages of a file that are on their way now.
    fn submit(&mut self, file: usize, pages: Range<u64>, by: By) {
        let longest = (self.machine.longest / PAGE).max(1);
        for start in pages.clone().step_by(longest as usize) {
            let end = pages.end.min(start + longest);
            let len = (end - start) * PAGE;
            let offset = self.files[file].at + start * PAGE;
            let range = self.page(file, start)..self.page(file, end);
            let asked = &mut self.asked[by as usize];
            asked.requests += 1;
            asked.bytes += len;
            self.ask(Flying::Pages(range), offset, len);
        }
        self.attend();
    }

    fn ask(&mut self, what: Flying, offset: u64, len: u64) {
        self.numbers += 1;
        self.begun += 1;
        self.flying.insert(self.numbers, what);
        self.device.submit(Request {
            tag: self.numbers,
            offset,
            len: len as u32,
            write: false,
            arrived: self.now,
        });
    }

    /// The device does what it can, and is looked at again in time.
    pub fn attend(&mut self) {
        self.device.advance(self.now);
        while let Some(served) = self.device.take_due(self.now) {
            self.answered.requests += 1;
            self.answered.bytes += u64::from(served.request.len);
            match self.flying.remove(&served.request.tag) {
                Some(Flying::Pages(pages)) => self.arrived(pages),
                Some(Flying::Neighbour) => {
                    self.neighbour_waited
                        .push(self.now - served.request.arrived);
                    let pause = self.machine.neighbour.map_or(0, |n| n.pause);
                    self.at(self.now + pause, Event::Neighbour);
                }
                None => {}
            }
        }
        if self.look <= self.now {
            self.look = Nanos::MAX;
        }
        if let Some(next) = self.device.next_event().filter(|next| *next < self.look) {
            self.look = next;
            self.at(next, Event::Device);
        }
    }

    fn arrived(&mut self, pages: Range<u32>) {
        pages.clone().for_each(|page| self.cache.arrive(page));
        let waiting: Vec<u32> = self.waiting.range(pages).map(|(page, _)| *page).collect();
        for page in waiting {
            for what in self.waiting.remove(&page).into_iter().flatten() {
                self.at(self.now + costs::WAKE, what);
            }
        }
    }

    /// The neighbour asks for another block.
    pub fn neighbour_asks(&mut self) {
        let block = self.random.below((DISK / 2) / PAGE);
        self.ask(Flying::Neighbour, DISK / 2 + block * PAGE, PAGE);
        self.attend();
    }

    /// How long the neighbour has waited for its blocks.
    pub fn neighbour(&self) -> Waits {
        let mut all = self.neighbour_waited.clone();
        all.sort_unstable();
        let at = |part: f64| {
            let i = (all.len() as f64 * part) as usize;
            all.get(i).or(all.last()).copied().unwrap_or(0)
        };
        Waits {
            count: all.len() as u64,
            half: at(0.5),
            hundredth: at(0.99),
            longest: at(1.0),
        }
    }

    /// Has something happen when a page that is on its way has come.
    pub fn when_there(&mut self, page: u32, what: Event) {
        self.waiting.entry(page).or_default().push(what);
    }

    /// What was asked of the device by the program, or ahead of it.
    pub fn asked(&self, by: By) -> Counts {
        self.asked[by as usize]
    }

    /// Requests that the device was given so far, anybody's.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// What it has answered so far.
    pub fn answered(&self) -> Counts {
        self.answered
    }

    /// Requests that the device works on at once, at most.
    pub fn parallel(&self) -> u64 {
        match self.machine.device.kind {
            Kind::Off => 1,
            Kind::Lanes => self.machine.device.parallel.into(),
            Kind::Head => self.machine.device.queue.into(),
        }
    }
}
