//! Threads of the library among those of the program.
//!
//! A program may end its main thread with pthread_exit(3) and live on in the others. The C library ends the process with the last of its
//! threads, and can't tell that the last ones are ours. So threads of ours that wait look from time to time whether anybody is left to wait for.
//!
//! A program's threads may give up rights one by one. So ours can be waited for: until the kernel says that they are over, beyond which nobody has them do anything.

use core::cell::Cell;
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

use crate::raw::{self, getpid, syscall6};

/// How many threads of ours live or are about to be started, below the number of the process that counted them: a forked child has none of its parent's.
static OURS: AtomicU64 = AtomicU64::new(0);

/// Calls of fork(3) under way: they have all locks of malloc(3), which whoever starts a thread waits for …
static FORKS: AtomicU32 = AtomicU32::new(0);
/// … and threads of ours that are being started.
static STARTS: AtomicU32 = AtomicU32::new(0);

fn less(count: &AtomicU32) {
    let _ = count.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
}

fn change(by: impl Fn(u64) -> u64) {
    let process = u64::from(getpid()) << 32;
    let _ = OURS.fetch_update(AcqRel, Acquire, |word| {
        let count = if word & !0xffff_ffff == process {
            word & 0xffff_ffff
        } else {
            0
        };
        Some(process | by(count))
    });
}

/// Where a thread of ours stands until it is over. It is laid out as a lock that outlives its holder (pthread_mutexattr_setrobust(3)), of which each thread has
/// a list: when the thread can't run any code of the process any more the kernel says in the lock that the holder has died. Nobody ever locks it.
#[repr(C)]
struct Place {
    /// The process, and below it the lock: the number of the thread, and [`DIED`] beside it; 0 below: nobody. A forked child finds its parent's.
    holder: AtomicU64,
    /// The thread again, which the kernel takes out of the lock when it has died.
    thread: AtomicU64,
    _other: u64,
    /// Where a lock has its links.
    before: AtomicPtr<c_void>,
    next: AtomicPtr<c_void>,
}

/// FUTEX_OWNER_DIED.
const DIED: u64 = 0x4000_0000;
/// FUTEX_TID_MASK.
const THREAD: u64 = 0x3fff_ffff;
/// From a lock's link to the lock, bytes.
const LOCK: isize = -(core::mem::offset_of!(Place, next) as isize);

/// As many as a process of a program has of ours at a time. Of others nothing more is seen than that they end.
static PLACES: [Place; 64] = [const {
    Place {
        holder: AtomicU64::new(0),
        thread: AtomicU64::new(0),
        _other: 0,
        before: AtomicPtr::new(null_mut()),
        next: AtomicPtr::new(null_mut()),
    }
}; 64];

/// struct robust_list_head.
#[repr(C)]
struct Locks {
    first: AtomicPtr<c_void>,
    lock: isize,
}

/// The calling thread's list of such locks, if it has one and that is empty.
fn locks() -> Option<&'static Locks> {
    let (mut locks, mut len) = (null_mut::<Locks>(), 0usize);
    let (to, room) = (&raw mut locks as usize, &raw mut len as usize);
    // SAFETY: the kernel writes a pointer and a number; the pointer is null or what the C library has registered, a part of the thread.
    let locks = unsafe {
        let r = syscall6(libc::SYS_get_robust_list, 0, to, room, 0, 0, 0);
        (r == 0).then_some(locks)?.as_ref()?
    };
    let is_empty = locks.first.load(Relaxed) == core::ptr::from_ref(locks).cast_mut().cast();
    (is_empty && locks.lock == LOCK).then_some(locks)
}

impl Place {
    /// Whether whoever holds it in this process can't run any code any more, or nobody does.
    fn is_over(holder: u64, process: u64) -> bool {
        holder & !0xffff_ffff != process || holder & THREAD == 0 || holder & DIED != 0
    }

    /// The calling thread, whose list this is, holds it from here on, if nobody does.
    fn take(&'static self, locks: &Locks) -> bool {
        let process = u64::from(getpid()) << 32;
        let before = self.holder.load(Relaxed);
        let own = process | u64::from(raw::gettid());
        let taken = Place::is_over(before, process)
            && self
                .holder
                .compare_exchange(before, own, AcqRel, Relaxed)
                .is_ok();
        if taken {
            self.thread.store(own & THREAD, Relaxed);
            let end = locks.first.load(Relaxed);
            self.before.store(end, Relaxed);
            self.next.store(end, Relaxed);
            let link = core::ptr::from_ref(&self.next).cast_mut().cast();
            locks.first.store(link, Release);
        }
        taken
    }
}

/// Signals that threads of ours block: all but those that the C library sends to threads itself, to cancel one and to change the user of all.
pub const SIGNALS: u64 = !(1 << (32 - 1) | 1 << (33 - 1));

/// The process whose threads of ours end without the C library, whose locks may be held by what a signal handler has interrupted; 0: none.
static ABRUPT: AtomicU32 = AtomicU32::new(0);

/// A thread of ours, from before it is started on until it is about to be over.
pub struct Own {
    /// It runs.
    begun: Cell<bool>,
}

impl Own {
    /// One is about to be started.
    #[allow(clippy::new_without_default)] // it counts
    pub fn new() -> Own {
        change(|count| count + 1);
        Own::handed()
    }

    /// The same, called in the thread for which one was made and forgotten.
    pub fn handed() -> Own {
        Own {
            begun: Cell::new(false),
        }
    }

    /// Called in the thread.
    pub fn begins(&self) {
        self.begun.set(true);
        if let Some(locks) = locks() {
            PLACES.iter().any(|place| place.take(locks));
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        change(|count| count.saturating_sub(1));
        if self.begun.get() && ABRUPT.load(Acquire) == getpid() {
            // SAFETY: ends the calling thread, of which nobody waits for more than that. Its stack stays.
            unsafe { syscall6(libc::SYS_exit, 0, 0, 0, 0, 0, 0) };
        }
    }
}

/// What a thread that [`start`] has made runs: its name, and a function.
extern "C" fn begin<F: FnOnce()>(body: *mut c_void) -> *mut c_void {
    let own = Own::handed();
    own.begins();
    // SAFETY: what `start` has made for this thread alone.
    let (name, body) = *unsafe { Box::from_raw(body.cast::<(&CStr, F)>()) };
    set_name(name);
    body();
    drop(own);
    null_mut()
}

/// The calling thread is called so from here on.
pub fn set_name(name: &CStr) {
    // SAFETY: a C string.
    unsafe {
        let (set_name, name) = (libc::PR_SET_NAME as usize, name.as_ptr() as usize);
        syscall6(libc::SYS_prctl, set_name, name, 0, 0, 0, 0);
    }
}

/// Before fork(3). From here on threads of ours that would start another wait where they can be told to end, as they couldn't be in malloc(3): a handler of the
/// program's may give up rights within the fork, and waits until they are over. Waits until none is being started, some milliseconds at most: the caller may
/// have interrupted that. The kernel is asked for nothing, which a filter could refuse.
pub fn forking() {
    FORKS.fetch_add(1, SeqCst);
    for _ in 0..LONGEST_START {
        if STARTS.load(SeqCst) == 0 {
            break;
        }
        core::hint::spin_loop();
    }
}

/// After it, in the parent.
pub fn has_forked() {
    less(&FORKS);
}

/// In a child that has a copy of its parent's memory: who forked and started there did so there.
pub fn forked() {
    FORKS.store(0, SeqCst);
    STARTS.store(0, SeqCst);
}

/// Whether threads of ours are being told to end, and none is to be started.
pub fn are_to_end() -> bool {
    ABRUPT.load(Acquire) == getpid()
}

/// While it lives a thread is being started.
struct Start;

impl Start {
    /// Waits until nobody forks; `None`: threads of ours are told to end.
    fn begin() -> Option<Start> {
        let begun = raw::monotonic_us();
        let nothing = AtomicU32::new(0);
        loop {
            STARTS.fetch_add(1, SeqCst);
            let start = Start;
            // Of a fork that a handler has left by longjmp(3) nobody says that it is over.
            if FORKS.load(SeqCst) == 0 || raw::monotonic_us() - begun > LONGEST_FORK_US {
                return Some(start);
            }
            drop(start);
            if are_to_end() {
                return None;
            }
            raw::futex_wait(&nothing, 0, LOOK_US);
        }
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        less(&STARTS);
    }
}

/// Starts a thread with this name and at least so large a stack, bytes, that nobody waits for; `false`: there is none to be had, or [`are_to_end`].
///
/// It isn't one of the standard library's. These ask the C library for memory before they begin, whose locks may be held by what a signal handler of the
/// program's has interrupted, while that waits for our threads to end.
pub fn start<F: FnOnce() + Send + 'static>(name: &'static CStr, stack: usize, body: F) -> bool {
    let body = Box::into_raw(Box::new((name, body)));
    // SAFETY: it is made for the thread.
    let started = unsafe { start_by(stack, begin::<F>, body.cast()) };
    if !started {
        // SAFETY: made above, and nobody else has it.
        drop(unsafe { Box::from_raw(body) });
    }
    started
}

/// The same of a function that gets this, and has the thread's [`Own`] from [`Own::handed`].
///
/// # Safety
/// The function may be called with it, on another thread.
pub unsafe fn start_by(
    stack: usize,
    body: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> bool {
    let Some(start) = Start::begin() else {
        return false;
    };
    let ours = Own::new();
    // SAFETY: attributes that are set up before they are used; the caller's promise.
    let r = unsafe {
        let mut about: libc::pthread_attr_t = core::mem::zeroed();
        if libc::pthread_attr_init(&raw mut about) != 0 {
            return false;
        }
        libc::pthread_attr_setdetachstate(&raw mut about, libc::PTHREAD_CREATE_DETACHED);
        let mut new: libc::pthread_t = core::mem::zeroed();
        libc::pthread_attr_setstacksize(&raw mut about, stack);
        let mut r = libc::pthread_create(&raw mut new, &raw const about, body, argument);
        if r == libc::EINVAL {
            // The program's thread-local variables take more than that.
            libc::pthread_attr_setstacksize(&raw mut about, 64 * stack);
            r = libc::pthread_create(&raw mut new, &raw const about, body, argument);
        }
        libc::pthread_attr_destroy(&raw mut about);
        r
    };
    drop(start);
    if r == 0 {
        // The thread has it.
        core::mem::forget(ours);
    }
    r == 0
}

/// How often is looked whether a thread is over, µs.
const LOOK_US: u64 = 100;
/// Turns of a loop, some tens of milliseconds: no thread takes longer to be started, unless who starts it has been interrupted.
const LONGEST_START: u32 = 500_000;
/// A fork that takes longer, µs, was left without a word: one takes 30 ms for each GB of memory in small pages on an EPYC.
const LONGEST_FORK_US: u64 = 5_000_000;

/// Forgets the threads of ours that are over: their numbers may be other threads' by now. Before the others are told to end, and [`await_ends`]. Until
/// then they end by the system call alone. The C library would free what it has for them, and the caller may be a signal handler in the midst of a
/// fork(3), which has all locks of malloc(3). It goes on counting them: where all other threads end by pthread_exit(3) it won't call exit(3).
pub fn forget_ended() {
    let ours = OURS.load(Acquire);
    if ours == 0 {
        return;
    }
    let process = u64::from(getpid()) << 32;
    let is_over = |p: &&Place| Place::is_over(p.holder.load(Acquire), process);
    // Not in a child of vfork(2).
    if ours & !0xffff_ffff == process {
        ABRUPT.store((process >> 32) as u32, Release);
        PLACES
            .iter()
            .filter(is_over)
            .for_each(|p| p.thread.store(0, Relaxed));
    }
}

/// Waits until no thread of ours can run any code in this process, or the monotonic clock shows so many µs, which are asked for where there are any; whether that is so. In
/// a child of vfork(2), which runs in its parent's memory, there are none. The kernel doesn't count them any more then.
pub fn await_ends(until_us: impl FnOnce() -> u64) -> bool {
    let are_over = are_over_by(until_us);
    ABRUPT.store(0, Release);
    are_over
}

fn are_over_by(until_us: impl FnOnce() -> u64) -> bool {
    let ours = OURS.load(Acquire);
    if ours == 0 {
        return true;
    }
    let process = u64::from(getpid()) << 32;
    if ours & !0xffff_ffff != process {
        return true;
    }
    let until_us = until_us();
    let nothing = AtomicU32::new(0);
    let lives = |place: &Place| !Place::is_over(place.holder.load(Acquire), process);
    while OURS.load(Acquire) != process || PLACES.iter().any(lives) {
        if raw::monotonic_us() >= until_us {
            return false;
        }
        raw::futex_wait(&nothing, 0, LOOK_US);
    }
    for place in &PLACES {
        let thread = place.thread.swap(0, Relaxed) as u32;
        while thread != 0 && raw::thread_lives(thread) && raw::monotonic_us() < until_us {
            raw::futex_wait(&nothing, 0, LOOK_US);
        }
    }
    true
}

/// Whether the program's main thread has ended and all others that live are ours. Takes no descriptor; `false` where /proc can't tell.
pub fn are_left_alone() -> bool {
    let ours = OURS.load(Relaxed) & 0xffff_ffff;
    let mut target = [0u8; 1];
    // SAFETY: plain data, which the kernel fills in; constant C strings, and buffers of the lengths given.
    let (threads, main) = unsafe {
        let mut st: libc::stat = core::mem::zeroed();
        let path = c"/proc/self/task".as_ptr() as usize;
        let at = libc::AT_FDCWD as usize;
        let r = syscall6(
            libc::SYS_newfstatat,
            at,
            path,
            &raw mut st as usize,
            0,
            0,
            0,
        );
        if r < 0 {
            return false;
        }
        // A link to the directory, one within it, and one for each thread. The first thread is among them when it has ended, too.
        let threads = (st.st_nlink as u64).saturating_sub(2);
        // An ended thread has no program.
        let main = syscall6(
            libc::SYS_readlinkat,
            at,
            c"/proc/self/exe".as_ptr() as usize,
            target.as_mut_ptr() as usize,
            target.len(),
            0,
            0,
        );
        (threads, main)
    };
    main == -(libc::ENOENT as isize) && threads == ours + 1
}

/// A function to be called when a thread ends, for threads that ask for it. exit(3) does not call it.
pub struct AtEnd {
    call: extern "C" fn(*mut c_void),
    /// One more than the key; 0 until there is one.
    key: AtomicU32,
}

impl AtEnd {
    /// Nobody has asked for it. The function is never unloaded.
    pub const fn new(call: extern "C" fn(*mut c_void)) -> AtEnd {
        AtEnd {
            call,
            key: AtomicU32::new(0),
        }
    }

    /// The calling thread asks for it. `false`: there is no memory, or no key.
    pub fn ask(&self) -> bool {
        // Any but null, for which nothing is called.
        let value = (&raw const self.key).cast();
        // SAFETY: a key of our own, with a function that takes any value.
        unsafe {
            if self.key.load(Acquire) == 0 {
                let mut new = 0;
                if libc::pthread_key_create(&raw mut new, Some(self.call)) != 0 {
                    return false;
                }
                let first = self.key.compare_exchange(0, new + 1, AcqRel, Acquire);
                if first.is_err() {
                    libc::pthread_key_delete(new);
                }
            }
            libc::pthread_setspecific(self.key.load(Acquire) - 1, value) == 0
        }
    }
}
