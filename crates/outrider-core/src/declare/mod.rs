//! Declared access: the program says what it will read (libprefetch; SPEC LP1 to LP8).
//!
//! Unlike prediction this runs inside the program, so that whoever links with the library needs no runner: a thread that
//! fetches (`fetcher`), started with the first list worth it, and the engine's workers, all in a descriptor table of their own.
//! This module is what the calls of the C interface and the hooks on reads do: they change and look at lists under one lock
//! and leave everything that could wait to the fetcher.
//!
//! - `list` an access list and the program's place in it,
//! - `order` in which order what is wanted is fetched: rounds for a disk with a head, a stream for devices with parallelism,
//! - `contention` how much memory it may take,
//! - `fetcher` the thread that puts these to work.
//!
//! Errors are errno values: they go to the caller as they are.

pub mod contention;
mod explain;
mod fetcher;
pub mod list;
pub mod order;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard};

use outrider_sys::raw;

use crate::shm::Header;
use list::{Entry, Found, List, MAX_FILES, MAX_LENGTH, MAX_OFFSET};

/// Entries that one list holds (OUTRIDER_LIST_MAX).
pub const LIST_MAX: usize = 1 << 20;
/// Clients of one process.
pub const CLIENTS_MAX: usize = 256;
/// Regions of one process.
pub const REGIONS_MAX: usize = 4096;
/// Descriptor numbers that are followed.
pub const NUMBERS: usize = 1 << 20;
/// Entries that a pulled list is filled up to, and those left at which it is filled again.
const PULL_FULL: u64 = 1 << 16;

/// A marked entry, in `struct outrider_access`.
pub const MARKED: u32 = 1;
/// `OUTRIDER_APPEND`.
pub const APPEND: i32 = 1;
/// `OUTRIDER_SET_FROM_MARK`.
pub const SET_FROM_MARK: i32 = 2;
/// `OUTRIDER_DONE`.
pub const DONE: i32 = 16;

/// `struct outrider_access`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Access {
    /// A descriptor.
    pub fd: i32,
    /// 0 or [`MARKED`].
    pub flags: u32,
    /// Bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// `struct outrider_position`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Position {
    /// Descriptor of the latest marked entry that was passed, or -1.
    pub mark_fd: i32,
    /// Descriptor of the read, or -1.
    pub fd: i32,
    /// Bytes.
    pub mark_offset: u64,
    /// Bytes.
    pub offset: u64,
}

/// Names of the figures of `struct outrider_stats`, in its order, as they are shown in reports.
pub const FIGURES: [&str; 11] = [
    "declared_bytes",
    "cached_bytes",
    "fetched_bytes",
    "used_bytes",
    "evicted_bytes",
    "dropped_bytes",
    "infill_bytes",
    "rounds",
    "diverged_reads",
    "callbacks",
    "failures",
];

/// A figure, as an index into [`FIGURES`].
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // as in the header file
pub enum Figure {
    Declared,
    Cached,
    Fetched,
    Used,
    Evicted,
    Dropped,
    Infill,
    Rounds,
    Diverged,
    Callbacks,
    Failures,
}

/// What a client or a pulled list names its caller's functions by: addresses that only the caller understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Callee {
    /// Address of the function, 0 for none.
    pub function: usize,
    /// Its argument.
    pub context: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The whole list was given.
    Plain,
    /// Filled by a function of the program.
    Pull(Callee),
    /// A client; `asked` is where in the list its callback was last called for more.
    Client(Callee),
}

/// A list and whose it is.
struct Source {
    generation: u32,
    kind: Kind,
    list: List,
    /// The file that names it (plain, pulled).
    file: u16,
    /// Entries below this number may be fetched.
    ready: u64,
    /// When the program reaches this entry, and so many bytes of it, the fetcher wants to know.
    wake_at: (u64, u32),
    /// When it reaches this one, the callback is due: half of the latest update is read.
    low: u64,
    /// The pulled list is at its end.
    ended: bool,
    /// Entries up to this number were seen by the fetcher as passed.
    seen: u64,
    /// Reads within the region and outside the list that the fetcher has not heard of.
    strayed: bool,
}

/// Part of a file that belongs to a source.
#[derive(Clone, Copy, Debug)]
struct Region {
    start: u64,
    end: u64,
    source: usize,
}

struct File {
    generation: u32,
    dev: u64,
    ino: u64,
    size: u64,
    /// A thread that had it open under `number`.
    thread: u32,
    /// The descriptors through which it was declared; the first is shown to callbacks.
    numbers: Vec<i32>,
    /// In file order, without overlap.
    regions: Vec<Region>,
}

/// Handle of a client: never the same twice in a process and its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId {
    index: usize,
    generation: u32,
}

impl ClientId {
    /// As a pointer that is never null.
    pub fn to_bits(self) -> usize {
        (self.generation as usize) << 16 | (self.index + 1) << 2
    }

    /// `None` for what was never a handle.
    pub fn from_bits(bits: usize) -> Option<ClientId> {
        let index = ((bits & 0xffff) >> 2).checked_sub(1)?;
        let generation = u32::try_from(bits >> 16).ok()?;
        (bits & 3 == 0).then_some(ClientId { index, generation })
    }
}

/// A call of the program's functions that is due, on the thread that reads.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// A client's callback.
    Client {
        /// Which client.
        id: ClientId,
        /// What to call.
        callee: Callee,
        /// Where the program is.
        at: Position,
    },
    /// A pulled list wants more.
    Pull {
        /// Which list.
        id: ClientId,
        /// What to call.
        callee: Callee,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fetcher {
    None,
    Runs,
    Failed,
}

struct State {
    files: Vec<Option<File>>,
    inodes: HashMap<(u64, u64), u16>,
    sources: Vec<Option<Source>>,
    regions: usize,
    fetcher: Fetcher,
    /// Thread, client, how often it said so.
    ignoring: Vec<(u32, usize, u32)>,
    /// Thread and source of the callbacks that run.
    calling: Vec<(u32, usize)>,
    off: bool,
}

/// Counts handed out to sources and files; goes on in forked children, so that a parent's handle is none of the child's.
static GENERATION: AtomicU32 = AtomicU32::new(1);

fn generation() -> u32 {
    GENERATION.fetch_add(1, Relaxed)
}

/// Everything that this process has declared.
pub struct Process {
    state: Mutex<State>,
    /// Futex word on which the fetcher sleeps; counts reasons to look.
    bell: AtomicU32,
    sleeping: AtomicU32,
    /// The value of `bell` for which everything was asked for.
    settled: AtomicU32,
    /// Descriptor that the fetcher is opening through /proc at this moment, or -1.
    opening: AtomicI32,
    figures: [AtomicU64; 11],
    /// The runner's memory, where there is one.
    header: AtomicPtr<Header>,
    /// File of a descriptor plus 1, by number; 0: not declared. [`NUMBERS`] entries.
    numbers: &'static [AtomicU32],
    /// Ends of callbacks; a futex word.
    returned: AtomicU32,
    /// 1 while something is queued in the engine or on its way, as the fetcher last knew.
    busy: AtomicU32,
    /// Counts demands to let go of all files, and the last one that was met; futex words.
    release_wanted: AtomicU32,
    release_done: AtomicU32,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|e| e.into_inner())
}

impl Process {
    /// Nothing declared yet. `numbers` is zeroed memory of [`NUMBERS`] entries.
    pub fn new(numbers: &'static [AtomicU32]) -> Process {
        Process {
            state: Mutex::new(State {
                files: Vec::new(),
                inodes: HashMap::new(),
                sources: Vec::new(),
                regions: 0,
                fetcher: Fetcher::None,
                ignoring: Vec::new(),
                calling: Vec::new(),
                off: false,
            }),
            bell: AtomicU32::new(0),
            sleeping: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            opening: AtomicI32::new(-1),
            figures: [const { AtomicU64::new(0) }; 11],
            header: AtomicPtr::new(std::ptr::null_mut()),
            numbers,
            returned: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            release_wanted: AtomicU32::new(0),
            release_done: AtomicU32::new(0),
        }
    }

    /// Reports to a runner from here on.
    pub fn report_to(&self, header: &'static Header) {
        self.header
            .store(std::ptr::from_ref(header).cast_mut(), Release);
    }

    fn header(&self) -> Option<&'static Header> {
        // SAFETY: null, or what `report_to` was given for ever.
        unsafe { self.header.load(Acquire).as_ref() }
    }

    fn count(&self, figure: Figure, n: u64) {
        if n == 0 {
            return;
        }
        if let Some(f) = self.figures.get(figure as usize) {
            f.fetch_add(n, Relaxed);
        }
        if let Some(f) = self.header().and_then(|h| h.declared.get(figure as usize)) {
            f.fetch_add(n, Relaxed);
        }
    }

    /// The figures of `struct outrider_stats`.
    pub fn figures(&self) -> [u64; 11] {
        let mut out = [0; 11];
        for (to, from) in out.iter_mut().zip(&self.figures) {
            *to = from.load(Relaxed);
        }
        out
    }

    fn ring(&self) {
        self.bell.fetch_add(1, SeqCst);
        if self.sleeping.load(SeqCst) != 0 && self.sleeping.swap(0, AcqRel) != 0 {
            raw::futex_wake(&self.bell, 1);
        }
    }

    /// Whether descriptor `fd` is of a file that was declared.
    #[inline]
    pub fn follows(&self, fd: i32) -> bool {
        self.numbers
            .get(fd as usize)
            .is_some_and(|n| n.load(Relaxed) != 0)
    }

    /// Fails with EDEADLK where the calling thread is in a callback.
    pub fn not_in_callback(&self) -> Result<(), i32> {
        let state = lock(&self.state);
        let me = raw::gettid();
        match state.calling.iter().any(|(t, _)| *t == me) {
            true => Err(libc::EDEADLK),
            false => Ok(()),
        }
    }

    fn start(&'static self, state: &mut State) {
        if state.fetcher == Fetcher::None && !state.off {
            state.fetcher = if fetcher::start(self) {
                Fetcher::Runs
            } else {
                self.count(Figure::Failures, 1);
                Fetcher::Failed
            };
        }
    }

    /// See outrider_declare. `ranges` yields offsets and lengths, bytes.
    pub fn declare(
        &'static self,
        fd: i32,
        ranges: impl ExactSizeIterator<Item = (u64, u64)>,
    ) -> Result<usize, i32> {
        let n = ranges.len();
        let mut state = lock(&self.state);
        let file = match self.file(&mut state, fd, n > 0)? {
            Some(file) => file,
            None => return Ok(0),
        };
        let own = state.own_source(file)?;
        if n == 0 {
            if let Some(source) = own {
                self.drop_source(&mut state, source, Some(file));
            }
            self.drop_unused(&mut state, file);
            return Ok(0);
        }
        // The new list is whole before the old one goes: nothing changes without the memory.
        let mut list = List::default();
        if !list.reserve(n.min(LIST_MAX)) {
            self.drop_unused(&mut state, file);
            return Err(libc::ENOMEM);
        }
        let size = state.size(file);
        let mut taken = 0;
        let mut bytes = 0u64;
        for (offset, length) in ranges {
            match append(&mut list, file, offset, length, false, size) {
                Some(b) => bytes = bytes.saturating_add(b),
                None => break,
            }
            taken += 1;
        }
        if let Some(source) = own {
            self.drop_source(&mut state, source, Some(file));
        }
        let Some(index) = state.new_source(Kind::Plain, file, usize::MAX) else {
            self.drop_unused(&mut state, file);
            return Err(libc::ENOMEM);
        };
        if !state.add_region(file, 0, u64::MAX, index) {
            self.drop_source(&mut state, index, Some(file));
            self.drop_unused(&mut state, file);
            return Err(libc::ENOMEM);
        }
        if let Some(source) = state.source(index) {
            source.ready = list.end();
            source.low = u64::MAX;
            source.list = list;
        }
        self.count(Figure::Declared, bytes);
        self.start(&mut state);
        drop(state);
        self.ring();
        Ok(taken)
    }

    /// See outrider_pull. Returns the call that fills the list first.
    pub fn pull(&'static self, fd: i32, callee: Callee) -> Result<Option<Call>, i32> {
        let mut state = lock(&self.state);
        let file = match self.file(&mut state, fd, callee.function != 0)? {
            Some(file) => file,
            None => return Ok(None),
        };
        let own = state.own_source(file)?;
        if let Some(source) = own {
            self.drop_source(&mut state, source, Some(file));
        }
        if callee.function == 0 {
            self.drop_unused(&mut state, file);
            return Ok(None);
        }
        let Some(index) = state.new_source(Kind::Pull(callee), file, usize::MAX) else {
            self.drop_unused(&mut state, file);
            return Err(libc::ENOMEM);
        };
        if !state.add_region(file, 0, u64::MAX, index) {
            self.drop_source(&mut state, index, Some(file));
            self.drop_unused(&mut state, file);
            return Err(libc::ENOMEM);
        }
        let call = self.begin_call(&mut state, index, -1, 0);
        self.start(&mut state);
        Ok(call)
    }

    /// What a pulled list's function returned. `true` if it is to be called again at once.
    pub fn pulled(&'static self, id: ClientId, accesses: &[Access]) -> bool {
        let mut state = lock(&self.state);
        if state.named(id).is_none() {
            return false;
        }
        let more = self.take(&mut state, id.index, accesses);
        let Some(source) = state.source(id.index) else {
            return false;
        };
        source.ready = source.list.end();
        source.low = source.list.at() + source.list.pending() / 2;
        source.ended |= accesses.is_empty();
        let again = !source.ended && more.is_ok() && source.list.pending() < PULL_FULL;
        if !again {
            drop(state);
            self.ring();
        }
        again
    }

    /// See outrider_client_new.
    pub fn client_new(&'static self, callee: Callee) -> Result<ClientId, i32> {
        let mut state = lock(&self.state);
        let clients = state
            .sources
            .iter()
            .flatten()
            .filter(|s| matches!(s.kind, Kind::Client(_)))
            .count();
        if clients >= CLIENTS_MAX {
            return Err(libc::ENOSPC);
        }
        let index = state
            .new_source(Kind::Client(callee), 0, MAX_FILES)
            .ok_or(libc::ENOMEM)?;
        let generation = state.source(index).map_or(0, |s| s.generation);
        Ok(ClientId { index, generation })
    }

    /// See outrider_client_free.
    pub fn client_free(&'static self, id: ClientId) -> Result<(), i32> {
        let mut state = lock(&self.state);
        state.client(id)?;
        // From here on no callback begins; those that run are waited for.
        if let Some(source) = state.source(id.index) {
            source.kind = Kind::Client(Callee {
                function: 0,
                context: 0,
            });
        }
        loop {
            state.calling.retain(|(t, _)| raw::thread_lives(*t));
            if !state.calling.iter().any(|(_, s)| *s == id.index) {
                break;
            }
            let seen = self.returned.load(Acquire);
            drop(state);
            // A thread that was cancelled in its callback never returns: look again now and then.
            raw::futex_wait(&self.returned, seen, 100_000);
            state = lock(&self.state);
            state.client(id)?;
        }
        self.drop_source(&mut state, id.index, None);
        drop(state);
        self.ring();
        Ok(())
    }

    /// See outrider_region_add.
    pub fn region_add(
        &'static self,
        id: ClientId,
        fd: i32,
        offset: u64,
        length: u64,
    ) -> Result<(), i32> {
        const LAST: u64 = i64::MAX as u64;
        let end = match length {
            0 => u64::MAX,
            n => offset
                .checked_add(n)
                .filter(|e| *e <= LAST)
                .ok_or(libc::EINVAL)?,
        };
        if offset > LAST {
            return Err(libc::EINVAL);
        }
        let mut state = lock(&self.state);
        state.client(id)?;
        let file = self.file(&mut state, fd, true)?.ok_or(libc::EBADF)?;
        let overlaps = state
            .file(file)
            .is_some_and(|f| f.regions.iter().any(|r| r.start < end && offset < r.end));
        let result = if overlaps {
            Err(libc::EEXIST)
        } else if state.regions >= REGIONS_MAX {
            Err(libc::ENOSPC)
        } else if !state.add_region(file, offset, end, id.index) {
            Err(libc::ENOMEM)
        } else {
            Ok(())
        };
        self.drop_unused(&mut state, file);
        result
    }

    /// See outrider_region_remove.
    pub fn region_remove(&'static self, id: ClientId, fd: i32, offset: u64) -> Result<(), i32> {
        let mut state = lock(&self.state);
        state.client(id)?;
        let found = self.file(&mut state, fd, false)?;
        let file = found.ok_or(libc::ENOENT)?;
        let regions = state
            .file_mut(file)
            .map(|f| &mut f.regions)
            .ok_or(libc::ENOENT)?;
        let i = regions
            .iter()
            .position(|r| r.start == offset && r.source == id.index)
            .ok_or(libc::ENOENT)?;
        let gone = regions.remove(i);
        state.regions = state.regions.saturating_sub(1);
        if let Some(source) = state.source(id.index) {
            source.list.forget_range(file, gone.start, gone.end);
        }
        self.drop_unused(&mut state, file);
        drop(state);
        self.ring();
        Ok(())
    }

    /// See outrider_request.
    pub fn request(
        &'static self,
        id: ClientId,
        accesses: &[Access],
        how: i32,
    ) -> Result<usize, i32> {
        let mut state = lock(&self.state);
        let me = raw::gettid();
        if let Some((_, own)) = state.calling.iter().find(|(t, _)| *t == me)
            && *own != id.index
        {
            return Err(libc::EDEADLK);
        }
        state.client(id)?;
        let done = how & DONE != 0;
        let what = how & !DONE;
        if !(0..=SET_FROM_MARK).contains(&what) || accesses.iter().any(|a| a.flags & !MARKED != 0) {
            return Err(libc::EINVAL);
        }
        {
            let list = &mut state.source(id.index).ok_or(libc::EINVAL)?.list;
            // The memory comes first, so that a failure changes nothing.
            let room = LIST_MAX.min(accesses.len());
            if !list.reserve(room) {
                return Err(libc::ENOMEM);
            }
            match what {
                APPEND => {}
                SET_FROM_MARK => list.clear_from_mark(),
                _ => list.clear(),
            }
        }
        let taken = self.take(&mut state, id.index, accesses)?;
        let full = taken < accesses.len();
        let Some(source) = state.source(id.index) else {
            return Err(libc::EINVAL);
        };
        source.ready = source.ready.min(source.list.end());
        if what != APPEND {
            // What was given before is gone: nothing of it is still to be fetched.
            source.seen = source.seen.min(source.list.at());
        }
        if done || full {
            source.ready = source.list.end();
            source.low = source.list.at() + source.list.pending() / 2;
        }
        if taken > 0 {
            self.start(&mut state);
        }
        drop(state);
        self.ring();
        Ok(taken)
    }

    /// Adds accesses to a list; how many were taken.
    fn take(
        &'static self,
        state: &mut State,
        index: usize,
        accesses: &[Access],
    ) -> Result<usize, i32> {
        let pulls = state
            .source(index)
            .is_some_and(|s| matches!(s.kind, Kind::Pull(_)));
        let mut last: Option<(i32, u16)> = None;
        let mut taken = 0;
        let mut bytes = 0u64;
        if !state
            .source(index)
            .is_some_and(|s| s.list.reserve(accesses.len().min(LIST_MAX)))
        {
            return Err(libc::ENOMEM);
        }
        for a in accesses {
            if state
                .source(index)
                .is_none_or(|s| s.list.pending() >= LIST_MAX as u64)
            {
                break;
            }
            taken += 1;
            let end = a.offset.saturating_add(a.length);
            let file = match last {
                Some((fd, file)) if fd == a.fd => Some(file),
                _ => self.file(state, a.fd, pulls).ok().flatten(),
            };
            let Some(file) = file else { continue };
            if last != Some((a.fd, file)) {
                last = Some((a.fd, file));
                if pulls && state.file(file).is_some_and(|f| f.regions.is_empty()) {
                    state.add_region(file, 0, u64::MAX, index);
                }
            }
            let inside = state.file(file).is_some_and(|f| {
                f.regions
                    .iter()
                    .any(|r| r.source == index && r.start <= a.offset && end <= r.end)
            });
            if !inside {
                continue;
            }
            if state.file(file).is_some_and(|f| end > f.size) {
                state.refresh(file, a.fd);
            }
            let size = state.size(file);
            let Some(source) = state.source(index) else {
                break;
            };
            let marked = a.flags & MARKED != 0;
            bytes = bytes.saturating_add(
                append(&mut source.list, file, a.offset, a.length, marked, size).unwrap_or(0),
            );
        }
        self.count(Figure::Declared, bytes);
        Ok(taken)
    }

    /// See outrider_ignore.
    pub fn ignore(&self, id: ClientId, on: bool) -> Result<(), i32> {
        let mut state = lock(&self.state);
        state.client(id)?;
        let me = raw::gettid();
        let at = state
            .ignoring
            .iter()
            .position(|(t, s, _)| (*t, *s) == (me, id.index));
        match (at, on) {
            (Some(i), true) => {
                if let Some(e) = state.ignoring.get_mut(i) {
                    e.2 = e.2.saturating_add(1);
                }
            }
            (None, true) => {
                if state.ignoring.try_reserve(1).is_err() {
                    return Err(libc::ENOMEM);
                }
                state.ignoring.push((me, id.index, 1));
            }
            (Some(i), false) => {
                if let Some(e) = state.ignoring.get_mut(i) {
                    e.2 -= 1;
                    if e.2 == 0 {
                        state.ignoring.swap_remove(i);
                    }
                }
            }
            (None, false) => return Err(libc::EINVAL),
        }
        Ok(())
    }

    /// The program is about to read `offset..offset+len` (bytes) of `fd`, or has. Returns the call that is due now; it must be
    /// followed by [`Process::called`].
    pub fn reading(&'static self, fd: i32, offset: u64, len: u64) -> Option<Call> {
        let number = self.numbers.get(fd as usize)?.load(Relaxed);
        let file = u16::try_from(number.checked_sub(1)?).ok()?;
        if len == 0 {
            return None;
        }
        let mut state = lock(&self.state);
        let end = offset.saturating_add(len);
        let region = state
            .file(file)?
            .regions
            .iter()
            .find(|r| r.start < end && offset < r.end)
            .copied()?;
        if !(state.ignoring.is_empty() && state.calling.is_empty()) {
            let me = raw::gettid();
            let ignored = state
                .ignoring
                .iter()
                .any(|(t, s, _)| (*t, *s) == (me, region.source))
                || state.calling.iter().any(|(t, _)| *t == me);
            if ignored {
                return None;
            }
        }
        let source = state.source(region.source)?;
        let found = source
            .list
            .read(file, offset.max(region.start), end.min(region.end));
        let at = source.list.at();
        let mut ring = (at, source.list.within()) >= source.wake_at;
        if ring {
            source.wake_at = (u64::MAX, 0);
        }
        let due = match found {
            Found::Outside => {
                source.strayed = true;
                self.count(Figure::Diverged, 1);
                true
            }
            Found::Ahead => at >= source.low,
            Found::Behind => false,
        };
        let mut call = None;
        if due {
            source.low = if at >= source.list.end() {
                u64::MAX
            } else {
                source.list.end()
            };
            ring |= found == Found::Outside && source.list.pending() > 0;
            call = self.begin_call(&mut state, region.source, fd, offset);
        }
        drop(state);
        if ring {
            self.ring();
        }
        call
    }

    fn begin_call(&self, state: &mut State, index: usize, fd: i32, offset: u64) -> Option<Call> {
        let me = raw::gettid();
        // One at a time: what another thread's call brings is what this one would ask for.
        if state.calling.iter().any(|(_, s)| *s == index) || state.calling.try_reserve(1).is_err() {
            state.calling.retain(|(t, _)| raw::thread_lives(*t));
            return None;
        }
        let source = state.source(index)?;
        let id = ClientId {
            index,
            generation: source.generation,
        };
        let (kind, ended, mark) = (source.kind, source.ended, source.list.mark());
        let call = match kind {
            Kind::Plain => return None,
            Kind::Pull(callee) if ended || callee.function == 0 => return None,
            Kind::Pull(callee) => Call::Pull { id, callee },
            Kind::Client(callee) if callee.function == 0 => return None,
            Kind::Client(callee) => Call::Client {
                id,
                callee,
                at: Position {
                    mark_fd: mark
                        .and_then(|m| state.file(m.file)?.numbers.first().copied())
                        .unwrap_or(-1),
                    fd,
                    mark_offset: mark.map_or(0, |m| m.offset),
                    offset,
                },
            },
        };
        state.calling.push((me, index));
        self.count(Figure::Callbacks, 1);
        Some(call)
    }

    /// The call that [`Process::reading`] or [`Process::pull`] asked for has returned.
    pub fn called(&self, id: ClientId) {
        let mut state = lock(&self.state);
        let me = raw::gettid();
        state.calling.retain(|c| *c != (me, id.index));
        drop(state);
        self.returned.fetch_add(1, Release);
        raw::futex_wake(&self.returned, u32::MAX);
        self.ring();
    }

    /// Descriptor `fd` is about to be closed, or its number to become another file's.
    pub fn closing(&self, fd: i32) {
        let Some(number) = self.numbers.get(fd as usize) else {
            return;
        };
        if number.load(Relaxed) == 0 {
            return;
        }
        let mut state = lock(&self.state);
        self.forget_number(&mut state, fd);
        drop(state);
        self.ring();
        // Following the /proc link holds the program's own open file for some microseconds: its locks must end with this close.
        for _ in 0..10_000 {
            if self.opening.load(SeqCst) != fd {
                break;
            }
            // SAFETY: takes no arguments.
            unsafe { raw::syscall6(libc::SYS_sched_yield, 0, 0, 0, 0, 0, 0) };
        }
    }

    /// `fd` is no longer a descriptor of the file that it was declared for.
    fn forget_number(&self, state: &mut State, fd: i32) {
        let Some(number) = self.numbers.get(fd as usize) else {
            return;
        };
        let Some(file) = number.swap(0, Relaxed).checked_sub(1) else {
            return;
        };
        let Some(f) = state.file_mut(file as u16) else {
            return;
        };
        f.numbers.retain(|n| *n != fd);
        if f.numbers.is_empty() {
            self.drop_file(state, file as u16);
        }
    }

    /// Numbers `range` are about to be closed.
    pub fn closing_range(&self, range: Range<usize>) {
        let end = range.end.min(self.numbers.len());
        for fd in range.start..end {
            if self.follows(fd as i32) {
                self.closing(fd as i32);
            }
        }
    }

    /// `to` has become a duplicate of `from`: reads through either are reads of the same file.
    pub fn duplicated(&self, from: i32, to: i32) {
        let (Some(from), Some(number)) = (
            self.numbers.get(from as usize),
            self.numbers.get(to as usize),
        ) else {
            return;
        };
        let file = from.load(Relaxed);
        if file == 0 {
            return;
        }
        let mut state = lock(&self.state);
        if let Some(f) = state.file_mut((file - 1) as u16)
            && f.numbers.try_reserve(1).is_ok()
        {
            f.numbers.push(to);
            number.store(file, Relaxed);
        }
    }

    /// The file behind `fd` is not to be opened by us: it is taken off all lists, and nothing of it is held any more.
    pub fn leave_alone(&self, fd: i32) {
        let file = self
            .numbers
            .get(fd as usize)
            .and_then(|n| n.load(Relaxed).checked_sub(1));
        if let Some(file) = file {
            let mut state = lock(&self.state);
            self.drop_file(&mut state, file as u16);
            drop(state);
            self.release_all();
        }
    }

    /// Waits up to 300 ms until nothing of the program's files is held: before umount(2) and F_SETLEASE.
    pub fn release_all(&self) {
        if lock(&self.state).fetcher != Fetcher::Runs {
            return;
        }
        let wanted = self.release_wanted.fetch_add(1, AcqRel).wrapping_add(1);
        self.ring();
        for _ in 0..30 {
            let done = self.release_done.load(Acquire);
            if done.wrapping_sub(wanted) as i32 >= 0 {
                return;
            }
            raw::futex_wait(&self.release_done, done, 10_000);
        }
    }

    /// Nothing is declared any more, nor ever again in this process.
    pub fn turn_off(&self) {
        let mut state = lock(&self.state);
        state.off = true;
        for file in 0..state.files.len() {
            self.drop_file(&mut state, file as u16);
        }
        drop(state);
        self.release_all();
    }

    /// The number of the file behind `fd`. With `make` a new one is taken in; otherwise `None` where it is not known.
    fn file(&self, state: &mut State, fd: i32, make: bool) -> Result<Option<u16>, i32> {
        let st = readable(fd)?;
        if let Some(n) = self.numbers.get(fd as usize).map(|n| n.load(Relaxed))
            && n > 0
        {
            let file = (n - 1) as u16;
            let same = |f: &File| (f.dev, f.ino) == (st.st_dev, st.st_ino);
            if state.file(file).is_some_and(same) {
                return Ok(Some(file));
            }
            // Closed where it can't be seen: nothing is interposed, or the system call was made directly.
            self.forget_number(state, fd);
        }
        let known = state.inodes.get(&(st.st_dev, st.st_ino)).copied();
        let file = match known {
            Some(file) => file,
            None if !make => return Ok(None),
            None => {
                let file = match state.files.iter().position(Option::is_none) {
                    Some(i) => i,
                    None if state.files.len() < MAX_FILES => {
                        state.files.try_reserve(1).map_err(|_| libc::ENOMEM)?;
                        state.files.push(None);
                        state.files.len() - 1
                    }
                    None => return Err(libc::ENOMEM),
                };
                state.inodes.try_reserve(1).map_err(|_| libc::ENOMEM)?;
                state.inodes.insert((st.st_dev, st.st_ino), file as u16);
                if let Some(slot) = state.files.get_mut(file) {
                    *slot = Some(File {
                        generation: generation(),
                        dev: st.st_dev,
                        ino: st.st_ino,
                        size: st.st_size as u64,
                        thread: raw::gettid(),
                        numbers: Vec::new(),
                        regions: Vec::new(),
                    });
                }
                file as u16
            }
        };
        if let Some(f) = state.file_mut(file) {
            f.numbers.try_reserve(1).map_err(|_| libc::ENOMEM)?;
            f.numbers.push(fd);
            if let Some(n) = self.numbers.get(fd as usize) {
                n.store(u32::from(file) + 1, Relaxed);
            }
        }
        Ok(Some(file))
    }

    /// Forgets a list and its regions; files that belong to nobody any more go with it, except `kept`.
    fn drop_source(&self, state: &mut State, index: usize, kept: Option<u16>) {
        let files = state.files.len();
        for file in 0..files {
            let Some(f) = state.file_mut(file as u16) else {
                continue;
            };
            let before = f.regions.len();
            f.regions.retain(|r| r.source != index);
            let gone = before - f.regions.len();
            if gone > 0 {
                state.regions = state.regions.saturating_sub(gone);
                if kept != Some(file as u16) {
                    self.drop_unused(state, file as u16);
                }
            }
        }
        state.ignoring.retain(|(_, s, _)| *s != index);
        if let Some(slot) = state.sources.get_mut(index) {
            *slot = None;
        }
    }

    /// Forgets a file that belongs to nobody any more.
    fn drop_unused(&self, state: &mut State, file: u16) {
        if state.file(file).is_some_and(|f| f.regions.is_empty()) {
            self.drop_file(state, file);
        }
    }

    fn drop_file(&self, state: &mut State, file: u16) {
        let Some(gone) = state
            .files
            .get_mut(usize::from(file))
            .and_then(Option::take)
        else {
            return;
        };
        state.inodes.remove(&(gone.dev, gone.ino));
        for fd in &gone.numbers {
            if let Some(n) = self.numbers.get(*fd as usize) {
                n.store(0, Relaxed);
            }
        }
        state.regions = state.regions.saturating_sub(gone.regions.len());
        for index in 0..state.sources.len() {
            let Some(source) = state.source(index) else {
                continue;
            };
            let names = source.file == file && !matches!(source.kind, Kind::Client(_));
            if gone.regions.iter().any(|r| r.source == index) {
                source.list.forget_file(file);
            }
            if names {
                self.drop_source(state, index, None);
            }
        }
    }

    fn is_off(&self) -> bool {
        lock(&self.state).off
    }

    fn fetcher_failed(&self) {
        self.count(Figure::Failures, 1);
        lock(&self.state).fetcher = Fetcher::Failed;
    }

    /// Waits until what is wanted was asked for, and everything that was read is accounted for.
    pub fn settle(&self, timeout_ms: i32) -> Result<(), i32> {
        let until =
            std::time::Instant::now() + std::time::Duration::from_millis(timeout_ms.max(0) as u64);
        loop {
            {
                let state = lock(&self.state);
                if state.fetcher != Fetcher::Runs {
                    return Ok(());
                }
            }
            let bell = self.bell.load(SeqCst);
            if self.settled.load(SeqCst) == bell && self.busy.load(SeqCst) == 0 {
                return Ok(());
            }
            if timeout_ms >= 0 && std::time::Instant::now() >= until {
                return Err(libc::ETIMEDOUT);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

impl State {
    fn file(&self, file: u16) -> Option<&File> {
        self.files.get(usize::from(file))?.as_ref()
    }

    fn file_mut(&mut self, file: u16) -> Option<&mut File> {
        self.files.get_mut(usize::from(file))?.as_mut()
    }

    fn source(&mut self, index: usize) -> Option<&mut Source> {
        self.sources.get_mut(index)?.as_mut()
    }

    fn named(&mut self, id: ClientId) -> Option<&mut Source> {
        self.source(id.index)
            .filter(|s| s.generation == id.generation)
    }

    fn client(&mut self, id: ClientId) -> Result<(), i32> {
        match self.named(id) {
            Some(s) if matches!(s.kind, Kind::Client(_)) => Ok(()),
            _ => Err(libc::EINVAL),
        }
    }

    fn size(&self, file: u16) -> u64 {
        self.file(file).map_or(0, |f| f.size)
    }

    /// The file may have grown.
    fn refresh(&mut self, file: u16, fd: i32) {
        if let (Some(f), Ok(st)) = (self.file_mut(file), raw::fstat(fd))
            && (st.st_dev, st.st_ino) == (f.dev, f.ino)
        {
            f.size = st.st_size as u64;
        }
    }

    /// The plain or pulled list of a file. EBUSY where a client has it.
    fn own_source(&mut self, file: u16) -> Result<Option<usize>, i32> {
        let Some(first) = self.file(file).and_then(|f| f.regions.first()).copied() else {
            return Ok(None);
        };
        match self.source(first.source).map(|s| (s.kind, s.file)) {
            Some((Kind::Client(_), _)) => Err(libc::EBUSY),
            // One of the files of a list that another one names.
            Some((_, named)) if named != file => Err(libc::EBUSY),
            Some(_) => Ok(Some(first.source)),
            None => Ok(None),
        }
    }

    /// A new source at a free place below `most`.
    fn new_source(&mut self, kind: Kind, file: u16, most: usize) -> Option<usize> {
        let index = match self.sources.iter().position(Option::is_none) {
            Some(i) => i,
            None => {
                self.sources.try_reserve(1).ok()?;
                self.sources.push(None);
                self.sources.len() - 1
            }
        };
        if index >= most.min(MAX_FILES - 1) {
            return None;
        }
        *self.sources.get_mut(index)? = Some(Source {
            generation: generation(),
            kind,
            list: List::default(),
            file,
            ready: 0,
            wake_at: (0, 0),
            low: 0,
            ended: false,
            seen: 0,
            strayed: false,
        });
        Some(index)
    }

    fn add_region(&mut self, file: u16, start: u64, end: u64, source: usize) -> bool {
        let Some(f) = self.file_mut(file) else {
            return false;
        };
        if f.regions.try_reserve(1).is_err() {
            return false;
        }
        let at = f.regions.partition_point(|r| r.start < start);
        f.regions.insert(at, Region { start, end, source });
        self.regions += 1;
        true
    }
}

/// Adds one range to a list, clipped to the file's `size`. Bytes that were taken, or `None` if the list is full.
fn append(
    list: &mut List,
    file: u16,
    offset: u64,
    length: u64,
    marked: bool,
    size: u64,
) -> Option<u64> {
    if list.pending() >= LIST_MAX as u64 {
        return None;
    }
    let end = offset.saturating_add(length).min(size).min(MAX_OFFSET);
    if offset >= end {
        return Some(0);
    }
    let mut at = offset;
    while at < end {
        let piece = (end - at).min(MAX_LENGTH);
        if !list.reserve(1) {
            return None;
        }
        list.push(Entry {
            file,
            offset: at,
            length: piece as u32,
            marked: marked && at == offset,
            read: false,
        });
        at += piece;
    }
    Some(end - offset)
}

/// What a descriptor open for reading refers to. EBADF, or ESPIPE where it is no regular file.
fn readable(fd: i32) -> Result<libc::stat, i32> {
    // SAFETY: F_GETFL takes no memory.
    let flags = unsafe {
        raw::syscall6(
            libc::SYS_fcntl,
            fd as usize,
            libc::F_GETFL as usize,
            0,
            0,
            0,
            0,
        )
    };
    if flags < 0
        || flags as i32 & libc::O_ACCMODE == libc::O_WRONLY
        || flags as i32 & libc::O_PATH != 0
    {
        return Err(libc::EBADF);
    }
    let st = raw::fstat(fd).map_err(|_| libc::EBADF)?;
    if st.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(libc::ESPIPE);
    }
    Ok(st)
}
