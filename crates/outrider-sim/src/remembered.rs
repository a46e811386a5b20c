//! Programs that are remembered: what one run needs is written down, and the next finds it fetched.
//!
//! What is fetched, in which order and how much of it decides [`Course`], the same code as on Linux. Its errands are done by as many threads as a lane has, each of
//! which looks a file up, hands its missing pages to the machine's readahead(2), and waits for the last. Not here: directories and inodes, which the machine has in
//! memory; what others on the device leave of it; and what the observer can't see: each page that was read or touched is known.

use std::collections::BTreeMap;
use std::sync::Arc;

use outrider_core::clock::Moment;
use outrider_core::intent::Wanted;
use outrider_core::profile::course::{Came, Course, Sum, cut};
use outrider_core::profile::model::{Entry, History, Need, Outcome, Profile, Seen};
use outrider_sys::units::{PAGE, PageRange};

use crate::cache::State;
use crate::device::Nanos;
use crate::readahead::{Window, forced};
use crate::run::{Ahead, Shared};
use crate::system::{By, Event, costs};
use crate::trace::Trace;

/// Threads of a lane.
const THREADS: usize = 16;
/// From the program's begin until the first errand: the service has been forked before, and reads mounts and profile.
const START: Nanos = 200_000;
/// What this is woken for, beside what the other one is.
const LANE: u64 = 1 << 48;

/// A program's first run: who else runs ahead of it, and what it needs.
pub struct Recorder<A> {
    inner: A,
    files: Vec<u64>,
    open: BTreeMap<usize, usize>,
    seen: BTreeMap<usize, (u64, Vec<PageRange>)>,
}

impl<A> Recorder<A> {
    /// Nothing was needed yet.
    pub fn new(inner: A) -> Recorder<A> {
        Recorder {
            inner,
            files: Vec::new(),
            open: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    /// The profile that a run leaves.
    pub fn profile(self) -> Profile {
        let mut profile = Profile::default();
        let mut seen: Vec<Seen> = Vec::new();
        for (file, (at_us, mut pages)) in self.seen {
            pages.sort_unstable_by_key(|r| r.start);
            seen.push(Seen {
                path: format!("/{file}").into(),
                need: Need::File,
                size: self.files[file],
                modified: 0,
                inode: file as u64,
                at_us,
                pages,
                all: true,
            });
        }
        profile.learn(seen, Outcome::default(), 0);
        profile
    }

    fn needs(&mut self, system: &Shared, fd: usize, offset: u64, len: u64) {
        let Some(file) = self.open.get(&fd).copied() else {
            return;
        };
        let end = (offset + len).min(self.files[file]);
        if offset >= end {
            return;
        }
        let now = system.borrow().now / 1000;
        let (_, pages) = self.seen.entry(file).or_insert((now, Vec::new()));
        let read = PageRange::new(offset / PAGE, end.div_ceil(PAGE));
        match pages.last_mut() {
            Some(last) if last.start <= read.start && read.start <= last.end => {
                last.end = last.end.max(read.end);
            }
            _ => pages.push(read),
        }
    }
}

impl<A: Ahead> Ahead for Recorder<A> {
    fn begins(&mut self, system: &Shared, trace: &Trace) {
        self.files.clone_from(&trace.files);
        self.inner.begins(system, trace);
    }

    fn opened(&mut self, system: &Shared, fd: usize, file: usize) -> Nanos {
        self.open.insert(fd, file);
        self.inner.opened(system, fd, file)
    }

    fn reads(&mut self, system: &Shared, thread: usize, fd: usize, offset: u64, len: u64) -> Nanos {
        self.needs(system, fd, offset, len);
        self.inner.reads(system, thread, fd, offset, len)
    }

    fn touches(&mut self, system: &Shared, thread: usize, fd: usize, offset: u64) -> Nanos {
        self.needs(system, fd, offset, 1);
        self.inner.touches(system, thread, fd, offset)
    }

    fn advised(&mut self, system: &Shared, fd: usize, sequential: bool) -> Nanos {
        self.inner.advised(system, fd, sequential)
    }

    fn closes(&mut self, system: &Shared, fd: usize, file: usize) -> Nanos {
        self.open.remove(&fd);
        self.inner.closes(system, fd, file)
    }

    fn wakes(&mut self, system: &Shared, what: u64) {
        self.inner.wakes(system, what);
    }

    fn ends(&mut self, system: &Shared) {
        self.inner.ends(system);
    }
}

/// What a thread of the lane does.
struct Errand {
    wanted: Wanted,
    came: Came,
    /// Requests that are left, and the last page of all, of a file.
    left: Vec<PageRange>,
    last: Option<(usize, u64)>,
}

/// A later run: a profile beside whoever else runs ahead of the program.
pub struct Remembered<A> {
    inner: A,
    profile: Arc<Profile>,
    course: Course,
    allowance: u64,
    lane: Vec<Option<Errand>>,
    by_file: BTreeMap<usize, usize>,
    open: BTreeMap<usize, usize>,
    files: Vec<u64>,
}

impl<A> Remembered<A> {
    /// With what an earlier run has left, of which `allowance` bytes may be had and not needed yet.
    pub fn new(inner: A, profile: Profile, allowance: u64) -> Remembered<A> {
        let profile = Arc::new(profile);
        let file = |e: &Entry| e.inode as usize;
        let by_file = profile.entries.iter().enumerate();
        Remembered {
            inner,
            course: Course::new(profile.clone(), allowance),
            allowance,
            lane: (0..THREADS).map(|_| None).collect(),
            by_file: by_file.map(|(i, e)| (file(e), i)).collect(),
            open: BTreeMap::new(),
            files: Vec::new(),
            profile,
        }
    }

    /// Who else runs ahead of it.
    pub fn inner(&self) -> &A {
        &self.inner
    }

    /// What came of the profile.
    pub fn sum(&self) -> Sum {
        self.course.books().sum()
    }

    /// Threads that have nothing to do take what is wanted next.
    fn assign(&mut self, system: &Shared) {
        for i in 0..THREADS {
            if self.lane[i].is_some() {
                continue;
            }
            let Some(wanted) = self.course.next(self.allowance) else {
                return;
            };
            let time = self.begin(system, i, wanted);
            let now = system.borrow().now;
            system
                .borrow_mut()
                .at(now + time, Event::Ahead(LANE | i as u64));
        }
    }

    /// A thread begins with an errand: what looking it up takes, ns.
    fn begin(&mut self, system: &Shared, i: usize, wanted: Wanted) -> Nanos {
        let mut errand = Errand {
            came: Came::default(),
            left: Vec::new(),
            last: None,
            wanted: wanted.clone(),
        };
        let mut time = costs::WAKE;
        match wanted {
            Wanted::Names(entries) => time += costs::OPEN * entries.len() as u64,
            Wanted::Places(entries) => {
                time += 2 * costs::OPEN * entries.len() as u64;
                let place = |i: usize| {
                    let (file, pages) = self.pages(i);
                    Some((i, system.borrow().address(file, pages.first()?.start)))
                };
                errand.came.places = entries.into_iter().filter_map(place).collect();
            }
            Wanted::Probe(entries) => {
                time += 2 * costs::OPEN * entries.len() as u64;
                let cold = |i: &usize| {
                    let (file, pages) = self.pages(*i);
                    !missing(system, file, pages).is_empty()
                };
                errand.came.cold = entries.iter().any(cold);
            }
            Wanted::Pages(i, part) => {
                time += 2 * costs::OPEN;
                let (file, pages) = self.pages(i);
                if part.start == 0 {
                    self.course
                        .has_pages(i, pages.iter().map(PageRange::len).sum());
                }
                errand.left = missing(system, file, cut(&pages, part));
                errand.left.reverse();
                errand.last = errand.left.first().map(|r| (file, r.end - 1));
            }
        }
        self.lane[i] = Some(errand);
        time
    }

    /// The file of an entry, and which of its pages are likely to be needed.
    fn pages(&self, entry: usize) -> (usize, Vec<PageRange>) {
        let entry = &self.profile.entries[entry];
        let file = entry.inode as usize;
        (file, entry.pages(self.files[file]))
    }

    /// A thread goes on with its errand.
    fn goes_on(&mut self, system: &Shared, i: usize) {
        let Some(errand) = &mut self.lane[i] else {
            return;
        };
        let again = Event::Ahead(LANE | i as u64);
        if let Some((file, last)) = errand.last {
            if let Some(pages) = errand.left.pop() {
                let mut system = system.borrow_mut();
                let before = system.asked(By::Ahead).bytes;
                let (most, longest) = (
                    system.machine().read_ahead / PAGE,
                    system.machine().longest / PAGE,
                );
                let windows = forced(pages.start..pages.end, most, longest);
                let read = windows.map(|pages| {
                    let window = Window {
                        pages,
                        marked: None,
                    };
                    system.read(file, &window, By::Ahead)
                });
                let time = costs::READ + read.sum::<Nanos>();
                errand.came.bytes += system.asked(By::Ahead).bytes - before;
                let now = system.now;
                return system.at(now + time, again);
            }
            let mut system = system.borrow_mut();
            let page = system.page(file, last);
            if system.cache.state(page) == State::Reading {
                return system.when_there(page, again);
            }
        }
        if let Some(mut errand) = self.lane[i].take() {
            errand.came.cold |= errand.came.bytes > 0;
            let now = Moment::from_nanos(system.borrow().now);
            self.course.done(&errand.wanted, errand.came, now);
        }
        self.assign(system);
    }

    /// A file is read.
    fn needed(&mut self, system: &Shared, fd: usize) {
        let file = self.open.get(&fd);
        let entry = file.and_then(|file| self.by_file.get(file)).copied();
        // It may go on where nothing was needed.
        if entry.is_some_and(|entry| self.course.needed(entry)) {
            let now = system.borrow().now;
            system
                .borrow_mut()
                .at(now, Event::Ahead(LANE | THREADS as u64));
        }
    }
}

/// What is missing of some pages of a file.
fn missing(system: &Shared, file: usize, pages: Vec<PageRange>) -> Vec<PageRange> {
    let system = system.borrow();
    let mut out: Vec<PageRange> = Vec::new();
    for page in pages.iter().flat_map(|r| r.start..r.end) {
        if system.is_present(file, page) {
            continue;
        }
        match out.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => out.push(PageRange::new(page, page + 1)),
        }
    }
    out
}

impl<A: Ahead> Ahead for Remembered<A> {
    fn begins(&mut self, system: &Shared, trace: &Trace) {
        self.files.clone_from(&trace.files);
        self.inner.begins(system, trace);
        system
            .borrow_mut()
            .at(START, Event::Ahead(LANE | THREADS as u64));
    }

    fn opened(&mut self, system: &Shared, fd: usize, file: usize) -> Nanos {
        self.open.insert(fd, file);
        self.inner.opened(system, fd, file)
    }

    fn reads(&mut self, system: &Shared, thread: usize, fd: usize, offset: u64, len: u64) -> Nanos {
        self.needed(system, fd);
        self.inner.reads(system, thread, fd, offset, len)
    }

    fn touches(&mut self, system: &Shared, thread: usize, fd: usize, offset: u64) -> Nanos {
        self.needed(system, fd);
        self.inner.touches(system, thread, fd, offset)
    }

    fn advised(&mut self, system: &Shared, fd: usize, sequential: bool) -> Nanos {
        self.inner.advised(system, fd, sequential)
    }

    fn closes(&mut self, system: &Shared, fd: usize, file: usize) -> Nanos {
        self.open.remove(&fd);
        self.inner.closes(system, fd, file)
    }

    fn wakes(&mut self, system: &Shared, what: u64) {
        match what & LANE {
            0 => self.inner.wakes(system, what),
            _ if what == LANE | THREADS as u64 => self.assign(system),
            _ => self.goes_on(system, (what & !LANE) as usize),
        }
    }

    fn ends(&mut self, system: &Shared) {
        self.inner.ends(system);
    }
}

/// A profile of some bytes of files that no program needs, for seeing what a wrong one costs.
pub fn wrong(files: &[u64]) -> Profile {
    let entry = |(i, size): (usize, &u64)| Entry {
        path: format!("/{i}").into(),
        need: Need::File,
        size: *size,
        modified: 0,
        inode: i as u64,
        at_us: i as u64,
        seen: History::NEW,
        spans: vec![outrider_core::profile::Span {
            pages: PageRange::new(0, size.div_ceil(PAGE)),
            seen: History::NEW,
        }],
    };
    Profile {
        runs: 1,
        entries: files.iter().enumerate().map(entry).collect(),
        ..Profile::default()
    }
}
