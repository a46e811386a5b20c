//! Declared access: the program says what it will read (libprefetch; SPEC LP1 to LP8).
//!
//! Unlike prediction this runs inside the program, so that whoever links with the library needs no runner: a thread that
//! fetches (`fetcher`), started with the first list worth it, and the engine's workers, all in a descriptor table of their own.
//! This module is what the calls of the C interface and the hooks on reads do: they change and look at lists under one lock
//! and leave everything that could wait to the fetcher.
//!
//! - `list` an access list and the program's place in it,
//! - `contention` how much memory it may take,
//! - `fetcher` the thread that puts these to work: in rounds for a disk with a head, in a stream for devices with parallelism (`crate::plan`),
//! - `state` what was declared; `lists`, `clients`, `files` and `reading` are the calls that change and look at it.
//!
//! Errors are errno values: they go to the caller as they are.

mod clients;
pub mod contention;
mod explain;
mod fetcher;
mod files;
pub mod list;
mod lists;
mod reading;
mod state;

use outrider_sys::units::DeviceId;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard};

use outrider_sys::raw;

use crate::sharing::runs;
use crate::shm::{Proc, Rooms};
use state::State;

use crate::lock;

/// Entries that one list holds (OUTRIDER_LIST_MAX).
pub const LIST_MAX: usize = 1 << 20;
/// Clients of one process.
pub const CLIENTS_MAX: usize = 256;
/// Regions of one process.
pub const REGIONS_MAX: usize = 4096;
/// Descriptor numbers that are followed.
pub const NUMBERS: usize = 1 << 20;
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

/// What follows from a read that is about to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Due {
    /// To be made on this thread, and followed by [`Process::called`].
    pub call: Option<Call>,
    /// To be handed to [`Process::await_sweep`].
    pub entry: Option<Place>,
}

/// An entry of a list.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    source: ClientId,
    n: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fetcher {
    None,
    Runs,
    Failed,
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
    /// Finds what this process and the service have in memory between them, where it does.
    proc: AtomicPtr<()>,
    /// File of a descriptor plus 1, by number; 0: not declared. [`NUMBERS`] entries.
    numbers: &'static [AtomicU32],
    /// Counts what was asked for of rounds; a futex word, on which reads wait.
    swept: AtomicU32,
    /// What reads have waited in vain for the round that is to come, µs.
    waited_us: AtomicU64,
    /// Bytes that the fetcher may hold, as it last knew; 0: not known yet.
    memory: AtomicU64,
    /// Ends of callbacks; a futex word.
    returned: AtomicU32,
    /// 1 while something is queued in the engine or on its way, as the fetcher last knew.
    busy: AtomicU32,
    /// The program's first thread has called pthread_exit(3).
    leader_ended: AtomicBool,
    /// Counts demands to let go of all files, and the last one that was met; futex words.
    release_wanted: AtomicU32,
    release_done: AtomicU32,
    /// So long the latest of them waits, µs of the monotonic clock.
    release_until_us: AtomicU64,
    /// Nobody fetches any more.
    fetcher_ended: AtomicBool,
    /// What foreaction graphs of this process may have in flight while lists are fetched from the same devices.
    rooms: Rooms,
    /// User and process by which other runs find what they are shown of it ([`crate::sharing::runs`]), 0 for nothing.
    shown: AtomicU64,
}

impl Process {
    /// Nothing declared yet. `numbers` is zeroed memory of [`NUMBERS`] entries.
    pub fn new(numbers: &'static [AtomicU32]) -> Process {
        Process {
            state: Mutex::new(State::new()),
            bell: AtomicU32::new(0),
            sleeping: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            opening: AtomicI32::new(-1),
            figures: [const { AtomicU64::new(0) }; 11],
            proc: AtomicPtr::new(std::ptr::null_mut()),
            numbers,
            swept: AtomicU32::new(0),
            waited_us: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            returned: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            leader_ended: AtomicBool::new(false),
            release_wanted: AtomicU32::new(0),
            release_done: AtomicU32::new(0),
            release_until_us: AtomicU64::new(0),
            fetcher_ended: AtomicBool::new(false),
            rooms: Rooms::new(),
            shown: AtomicU64::new(0),
        }
    }

    /// Bytes that calls which the program makes ahead itself may have in flight on a device, if others were seen to read there.
    pub fn room(&self, device: DeviceId) -> Option<u64> {
        self.rooms.of(device)
    }

    /// Reports to a runner from here on, and shares memory with its service. A forked child has other memory than its parent: so where is asked each time.
    pub fn report_to(&self, memory: fn() -> Option<&'static Proc>) {
        self.proc.store(memory as *mut (), Release);
    }

    fn proc(&self) -> Option<&'static Proc> {
        let memory = self.proc.load(Acquire);
        if memory.is_null() {
            return None;
        }
        // SAFETY: what `report_to` was given.
        let memory: fn() -> Option<&'static Proc> = unsafe { std::mem::transmute(memory) };
        memory()
    }

    fn count(&self, figure: Figure, n: u64) {
        if n == 0 {
            return;
        }
        if let Some(f) = self.figures.get(figure as usize) {
            f.fetch_add(n, Relaxed);
        }
        if let Some(f) = self
            .proc()
            .and_then(|p| p.notes.declared.get(figure as usize))
        {
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

    /// Lets go of the lock, and starts the fetcher if it is not there yet: a thread's start allocates where the program does, which a handler
    /// that reads here may have interrupted.
    fn start(&'static self, mut state: MutexGuard<'_, State>) {
        let first = state.fetcher == Fetcher::None && !state.off;
        if first {
            state.fetcher = Fetcher::Runs;
        }
        drop(state);
        if first && !fetcher::start(self) {
            self.fetcher_failed();
        }
    }

    /// Demands that nothing of the program's files is held, before umount(2) and F_SETLEASE: what [`Process::await_release`] waits for, until the
    /// monotonic clock shows `until_us` µs. `None` where nothing is.
    pub fn demand_release(&self, until_us: u64) -> Option<u32> {
        if lock(&self.state).fetcher != Fetcher::Runs {
            return None;
        }
        self.release_until_us.fetch_max(until_us, AcqRel);
        let wanted = self.release_wanted.fetch_add(1, AcqRel).wrapping_add(1);
        self.ring();
        Some(wanted)
    }

    /// Waits until that is so, or the monotonic clock shows `until_us` µs.
    pub fn await_release(&self, wanted: u32, until_us: u64) {
        while !self.fetcher_ended.load(Acquire) {
            let done = self.release_done.load(Acquire);
            let is_done = done.wrapping_sub(wanted) as i32 >= 0;
            if is_done || raw::monotonic_us() >= until_us {
                return;
            }
            raw::futex_wait(&self.release_done, done, 10_000);
        }
    }

    /// Nothing is declared any more, nor ever again in this process.
    pub fn turn_off(&self) {
        let mut state = lock(&self.state);
        state.off = true;
        for file in 0..state.numbers() {
            self.drop_file(&mut state, file as u16);
        }
    }

    /// What is shown of this process to other runs has this name.
    fn shows(&self, name: Option<(u32, u32)>) {
        let word = name.map_or(0, |(user, pid)| u64::from(user) << 32 | u64::from(pid));
        self.shown.store(word, SeqCst);
    }

    /// The program is about to end, perhaps in a signal handler: nothing is left behind.
    pub fn ends(&self) {
        let shown = self.shown.swap(0, SeqCst);
        let (user, pid) = ((shown >> 32) as u32, shown as u32);
        // A child of fork(2) has shown nothing yet.
        if shown != 0 && pid == raw::getpid() {
            runs::remove((user, pid));
        }
    }

    /// The program's first thread is about to end, and others may go on: the fetcher ends after the last of them, so that the process can.
    pub fn leader_ends(&self) {
        self.leader_ended.store(true, SeqCst);
        self.ring();
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
