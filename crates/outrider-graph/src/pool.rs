//! Threads that make system calls for others: the engine where io_uring is refused, and always the one for directories.
//!
//! There is one pool in a process. It grows with the work, to at most [`THREADS`]; a thread that has had nothing to do for a while
//! ends. The first is started when a run begins, the others by threads, so that giving a call to the pool allocates nothing: it may
//! happen in a signal handler. All signals are blocked in them, so the program's handlers never run there. Further threads list directories (see
//! [`lister`]).

mod lister;

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use outrider_sys::raw::{self, syscall6};
use outrider_sys::threads::{self, Own};

use crate::frontier::Frontier;
use crate::memory::{self, Fifo};
use crate::payback::Waits;

/// Most threads that make calls at the same time: as many as brought a gain with cold reads on fast disks.
pub const THREADS: usize = 16;
/// A thread ends when it had nothing to do for so long.
const IDLE: Duration = Duration::from_secs(5);
/// A thread that has nothing to do looks so often whether the program's threads have all ended.
const LOOK: Duration = Duration::from_millis(250);
/// Bytes of stack of a thread.
const STACK: usize = 128 << 10;
/// Jobs that may wait; the queue never grows, since it may be filled within a program's allocator.
const WAITING: usize = 4096;

/// States of a [`Job`].
pub mod state {
    /// Not given to the pool.
    pub const IDLE: u32 = 0;
    /// Waits for a thread.
    pub const QUEUED: u32 = 1;
    /// A thread makes the call.
    pub const RUNNING: u32 = 2;
    /// The result is there.
    pub const DONE: u32 = 3;
}

/// Rung after every call that was made for its owner. Bells are never freed, so that one may be rung for an owner that has gone
/// already.
#[repr(align(64))]
pub struct Bell {
    rung: AtomicU32,
    /// The owner sleeps, or is about to.
    waits: AtomicU32,
    /// The next one without an owner.
    next: AtomicPtr<Bell>,
}

/// Bytes of bells that are made together.
const BELL_BYTES: usize = 4096;

impl Bell {
    /// A bell for a new owner, of those that lie in `pool`; `None` where there is no memory.
    pub fn take(pool: &Pool) -> Option<&'static Bell> {
        let _signals = Undisturbed::new();
        let mut bells = pool.bells.lock().unwrap_or_else(|e| e.into_inner());
        if bells.is_none() {
            let new = memory::map(BELL_BYTES)?.cast::<Bell>();
            for i in 0..BELL_BYTES / size_of::<Bell>() {
                // SAFETY: within the new memory, which is never unmapped and whose zeros are a valid bell.
                let bell: &'static Bell = unsafe { &*new.add(i) };
                bell.hang_up(&mut bells);
            }
        }
        let bell = (*bells)?;
        // SAFETY: null or a bell, which is never freed.
        *bells = unsafe { bell.next.load(Ordering::Relaxed).as_ref() };
        Some(bell)
    }

    /// The owner ends; another may take it.
    pub fn give_back(&'static self, pool: &Pool) {
        let _signals = Undisturbed::new();
        self.hang_up(&mut pool.bells.lock().unwrap_or_else(|e| e.into_inner()));
    }

    fn hang_up(&'static self, bells: &mut Option<&'static Bell>) {
        let next = bells.map_or(null_mut(), |b| core::ptr::from_ref(b).cast_mut());
        self.next.store(next, Ordering::Relaxed);
        *bells = Some(self);
    }

    /// How often it has rung.
    pub fn rung(&self) -> u32 {
        self.rung.load(Ordering::Acquire)
    }

    /// Sleeps until it has rung more often than `seen`, a signal comes, or 100 ms have passed.
    pub fn wait(&self, seen: u32) {
        self.waits.store(1, Ordering::SeqCst);
        raw::futex_wait(&self.rung, seen, 100_000);
        self.waits.store(0, Ordering::Relaxed);
    }

    fn ring(&self) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        if self.waits.load(Ordering::SeqCst) != 0 {
            raw::futex_wake(&self.rung, 1);
        }
    }
}

/// A system call to be made: its number and arguments. It stays where it is from [`Pool::submit`] until it is done or
/// taken back.
pub struct Job {
    /// The system call, or [`Job::LIST`].
    pub number: Cell<i64>,
    /// Its arguments.
    pub args: Cell<[usize; 6]>,
    /// What the kernel returned.
    pub result: AtomicI64,
    /// How long the call waited for a device, in nanoseconds (see [`Waits::since`]).
    pub nanos: AtomicU64,
    /// One of [`state`].
    pub state: AtomicU32,
    /// Rung when it's done.
    pub bell: Cell<Option<&'static Bell>>,
}

impl Job {
    /// Lists the directory that descriptor `args[0]` names, or path `args[1]` below it if that is not null, so that its blocks are cached; and
    /// those of its entries' inodes if `args[2]` is 1. Walk `args[3]` begins with it, if that is not 0.
    pub const LIST: i64 = -1;
}

/// A job on its way to a thread.
#[derive(Clone, Copy)]
struct Pointer(*const Job);
// SAFETY: a job stays in place while it is queued or running, and its owner leaves the
// cells alone meanwhile.
unsafe impl Send for Pointer {}

struct Queue {
    calls: Fifo<Pointer>,
    lists: Fifo<Pointer>,
    /// What comes next in a walk.
    frontier: Frontier,
    threads: usize,
    idle: usize,
    listers: usize,
    idle_listers: usize,
    /// Runs that may need a thread: the last one stays for them.
    users: usize,
    /// Nothing is done here any more.
    stopped: bool,
}

/// The threads of a process.
pub struct Pool {
    queue: Mutex<Queue>,
    work: Condvar,
    listing: Condvar,
    /// The first of the bells without an owner. Here, so that a forked child finds no lock that another thread held.
    bells: Mutex<Option<&'static Bell>>,
    /// The number of the present walk.
    walk: AtomicUsize,
    /// The signals that the thread blocked which started the first of these.
    mask: AtomicU64,
    /// The process that they are threads of.
    process: u32,
}

impl Pool {
    /// A pool without threads; `None` where there is no memory.
    pub fn new() -> Option<Pool> {
        Some(Pool {
            queue: Mutex::new(Queue {
                calls: Fifo::new(WAITING)?,
                lists: Fifo::new(WAITING)?,
                frontier: Frontier::new()?,
                threads: 0,
                idle: 0,
                listers: 0,
                idle_listers: 0,
                users: 0,
                stopped: false,
            }),
            work: Condvar::new(),
            listing: Condvar::new(),
            bells: Mutex::new(None),
            walk: AtomicUsize::new(0),
            mask: AtomicU64::new(0),
            process: raw::getpid(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A run begins that may give calls to the pool: there is a thread from now on. Threads beyond the first are started by threads, so
    /// that [`Pool::submit`] does not allocate. `quietly`: none is started; where none runs, calls are not taken.
    pub fn enlist(&'static self, quietly: bool) {
        let signals = Undisturbed::new();
        let mut q = self.lock();
        q.users += 1;
        let first = q.threads == 0 && !quietly && !q.stopped;
        q.threads += usize::from(first);
        drop(q);
        if first {
            self.mask.store(signals.0, Ordering::Relaxed);
            if !self.spawn(calls) {
                self.lock().threads -= 1;
            }
        }
    }

    /// Starts a thread, in which the signals are blocked that are blocked now. Not by the standard library, which ends the program where there is
    /// no memory.
    fn spawn(&'static self, body: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
        let own = core::ptr::from_ref(self).cast_mut().cast::<c_void>();
        // SAFETY: the function gets this pool, which is never freed.
        unsafe { threads::start_by(STACK, body, own) }
    }

    /// That run has ended.
    pub fn discharge(&self) {
        let _signals = Undisturbed::new();
        let mut q = self.lock();
        q.users = q.users.saturating_sub(1);
    }

    /// Has calls made, in this order; says how many. The others won't be: there are no threads, or too many jobs.
    ///
    /// # Safety
    /// The jobs and all that their arguments point to stay valid until their state is `DONE` or [`Pool::take_back`] has returned
    /// `true` for them.
    pub unsafe fn submit<'a>(&'static self, jobs: impl Iterator<Item = &'a Job>) -> usize {
        let _signals = Undisturbed::new();
        let mut q = self.lock();
        let mut taken = 0;
        for job in jobs {
            let list = job.number.get() == Job::LIST;
            let waiting = if list { q.lists.len() } else { q.calls.len() };
            if waiting >= WAITING || q.threads == 0 || q.stopped {
                break;
            }
            taken += 1;
            job.state.store(state::QUEUED, Ordering::Relaxed);
            if list {
                q.lists.push_back(Pointer(job));
            } else {
                q.calls.push_back(Pointer(job));
            }
        }
        // Threads that run look into the queue before they sleep. The first for listings is started by the others.
        for _ in 0..q.idle_listers.min(q.lists.len()) {
            self.listing.notify_one();
        }
        for _ in 0..q.idle.min(taken) {
            self.work.notify_one();
        }
        taken
    }

    /// Takes a job back that no thread has begun.
    pub fn take_back(&self, job: &Job) -> bool {
        if job.state.load(Ordering::Relaxed) != state::QUEUED {
            return false;
        }
        let _signals = Undisturbed::new();
        let mut q = self.lock();
        let q = &mut *q;
        for waiting in [&mut q.calls, &mut q.lists] {
            let at = waiting.iter().position(|p| core::ptr::eq(p.0, job));
            if let Some(i) = at {
                waiting.remove(i);
                job.state.store(state::IDLE, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// A walk begins with a directory on this device, which is to be listed; says its number.
    pub fn begin_walk(&self, device: u64) -> usize {
        let _signals = Undisturbed::new();
        let mut q = self.lock();
        let walk = q.frontier.begin(device);
        self.walk.store(walk, Ordering::Relaxed);
        walk
    }

    /// The number of the walk that listers go on with: another one has ended.
    pub fn walk(&self) -> usize {
        self.walk.load(Ordering::Relaxed)
    }

    /// A program that walks enters a directory. The number of the walk that it belongs to, if it is one of those that listers know, and
    /// what listing has earned or cost since this was asked last, in nanoseconds.
    pub fn enter(&self, device: u64, inode: u64) -> (Option<usize>, i64) {
        let _signals = Undisturbed::new();
        let mut q = self.lock();
        let walk = q.frontier.enter(device, inode);
        if q.idle_listers > 0 && q.frontier.is_low() && q.frontier.offers() {
            self.listing.notify_one();
        }
        (walk, q.frontier.settle())
    }

    /// The threads end, for good; what no thread has begun counts as not made. Nothing happens in a child of vfork(2), which runs in its parent's memory.
    pub fn stop(&self) {
        if self.process != raw::getpid() {
            return;
        }
        let _signals = Undisturbed::new();
        let mut q = self.lock();
        q.stopped = true;
        let q = &mut *q;
        for waiting in [&mut q.calls, &mut q.lists] {
            while let Some(job) = waiting.pop_front() {
                // SAFETY: queued jobs are valid (see `submit`), until DONE is stored.
                finish(unsafe { &*job.0 }, || -libc::ECANCELED as isize);
            }
        }
        self.work.notify_all();
        self.listing.notify_all();
    }

    fn call(&'static self) {
        let mut idle = Duration::ZERO;
        let mut q = self.lock();
        loop {
            if q.stopped {
                q.threads -= 1;
                return;
            }
            if !q.lists.is_empty() && q.listers == 0 {
                q.listers = 1;
                drop(q);
                if !self.spawn(lister::first) {
                    self.refuse_lists();
                }
                q = self.lock();
                continue;
            }
            if let Some(job) = q.calls.pop_front() {
                // SAFETY: queued jobs are valid (see `submit`), until DONE is stored.
                let job = unsafe { &*job.0 };
                job.state.store(state::RUNNING, Ordering::Relaxed);
                // Nothing is allocated under the lock: a signal may have come to the program's thread within its allocator.
                let more = !q.calls.is_empty() && q.idle == 0 && q.threads < THREADS;
                q.threads += usize::from(more);
                drop(q);
                if more && !self.spawn(calls) {
                    self.lock().threads -= 1;
                }
                finish(job, || {
                    let [a, b, c, d, e, f] = job.args.get();
                    // SAFETY: as promised by whoever submitted it.
                    unsafe { syscall6(job.number.get(), a, b, c, d, e, f) }
                });
                q = self.lock();
                continue;
            }
            q.idle += 1;
            let (guard, waited) = self
                .work
                .wait_timeout(q, LOOK)
                .unwrap_or_else(|e| e.into_inner());
            q = guard;
            q.idle -= 1;
            if !waited.timed_out() || !q.calls.is_empty() || !q.lists.is_empty() {
                idle = Duration::ZERO;
                continue;
            }
            idle += LOOK;
            let needed = q.users > 0 && q.threads == 1;
            if idle >= IDLE && !needed || threads::are_left_alone() {
                q.threads -= 1;
                return;
            }
        }
    }
}

/// Makes a call; how long it waited for a device, in nanoseconds.
fn timed<R>(call: impl FnOnce() -> R) -> (R, i64) {
    let (began, before) = (Instant::now(), Waits::of_thread());
    let r = call();
    let nanos = began.elapsed().as_nanos() as i64;
    (r, Waits::of_thread().since(before, nanos))
}

/// Makes the call and says so. The job is its owner's again once DONE is stored.
fn finish(job: &Job, call: impl FnOnce() -> isize) {
    let (r, nanos) = timed(call);
    let bell = job.bell.get();
    job.result.store(r as i64, Ordering::Relaxed);
    job.nanos.store(nanos as u64, Ordering::Relaxed);
    job.state.store(state::DONE, Ordering::Release);
    if let Some(bell) = bell {
        bell.ring();
    }
}

/// No signal comes to the thread while it holds the lock: a handler may leave by siglongjmp(3).
struct Undisturbed(u64);

impl Undisturbed {
    fn new() -> Undisturbed {
        Undisturbed(raw::set_signal_mask(u64::MAX))
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        raw::set_signal_mask(self.0);
    }
}

extern "C" fn calls(pool: *mut c_void) -> *mut c_void {
    thread(pool, c"outrider-call", Pool::call)
}

/// A thread's life.
fn thread(pool: *mut c_void, name: &CStr, life: impl FnOnce(&'static Pool)) -> *mut c_void {
    threads::set_name(name);
    // Who has started it blocks more.
    raw::set_signal_mask(threads::SIGNALS);
    // SAFETY: the pool that has started the thread, which is never freed.
    let pool = unsafe { &*pool.cast::<Pool>() };
    let own = Own::handed();
    own.begins();
    life(pool);
    drop(own);
    // If it is the last, the program's exit handlers run on it.
    raw::set_signal_mask(pool.mask.load(Ordering::Relaxed));
    null_mut()
}
