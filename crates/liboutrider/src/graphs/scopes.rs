//! A thread's scopes.
//!
//! Nothing here is done twice at a time on one thread: whatever comes while we are at work (a signal handler's calls, an allocator's, a
//! plug-in's own) passes straight through. Memory comes from the kernel, never from the program's allocator, so that a scope may be
//! entered and left within any call; where there is none, a scope passes its calls through.

use core::ffi::{c_int, c_void};
use core::hint::black_box;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Relaxed, compiler_fence,
};

use outrider_graph::{Call, Graph, Kind, Scope};
use outrider_sys::mapped::{Mapped, Row, map, unmap};
use outrider_sys::raw;

use crate::local::initial_exec;

/// Scopes that a thread may have entered; calls of further ones are made without them.
const MOST_SCOPES: usize = 63;
/// Descriptors that a scope may be bound to.
const MOST_BOUND: usize = 8;

/// The thread's own code runs.
pub const PROGRAM: u32 = 0;
/// Ours does: calls that come now (from a signal handler, an allocator, a plug-in) pass straight through.
pub const OURS: u32 = 1;
/// The C library makes a call for the program; a handler's calls pass straight through.
pub const CALLING: u32 = 2;
/// A handler has left our code by longjmp, or the thread ends: everything passes through from now on.
pub const OVER: u32 = 3;

/// A thread's word with us.
#[repr(C)]
pub struct Local {
    /// Its scopes; null until it has entered one.
    pub thread: *mut Thread,
    /// One of the states above.
    pub state: u32,
    /// Calls until one is timed again, while looking ahead rests.
    pub passed: u16,
}

initial_exec! {
    /// The calling thread's.
    pub fn local() -> *mut Local = "outrider_local", 16 bytes
}

/// struct outrider_scope. The scope borrows the context in its slot.
pub struct CScope {
    pub scope: Option<Scope<'static, *mut c_void>>,
    pub thread: *mut Thread,
    /// Where it lies, and in which slot; null for the one that passes calls through.
    slots: *mut Slots,
    slot: usize,
    /// Where on the stack it was entered.
    stack: usize,
    /// Descriptors that it is bound to.
    bound: [c_int; MOST_BOUND],
    bound_count: usize,
    is_bound: bool,
    /// It was named in a call: nothing else is offered to it.
    pub named: bool,
}

/// The scope of those for whom there is no memory, or no place: it passes calls through. It is never written to.
struct Passing(CScope);
// SAFETY: as said.
unsafe impl Sync for Passing {}

static PASSING: Passing = Passing(CScope::new(null_mut(), null_mut(), 0, 0));

/// That scope.
pub fn passing() -> *mut CScope {
    (&raw const PASSING.0).cast_mut()
}

/// The memory of a thread's scopes. It stays until the last of them was left, which may be after the thread's end.
struct Slots {
    /// A bit for each slot in use, and one for the thread.
    used: AtomicU64,
    contexts: [*mut c_void; MOST_SCOPES],
    scopes: [MaybeUninit<CScope>; MOST_SCOPES],
}

const OF_THREAD: u64 = 1 << MOST_SCOPES;

impl Slots {
    /// None in use; null where there is no memory.
    fn new() -> *mut Slots {
        // Zeros are a valid value.
        let at = map(size_of::<Slots>()).map_or(null_mut(), |at| at.cast::<Slots>());
        // SAFETY: null or new memory.
        if let Some(slots) = unsafe { at.as_ref() } {
            slots.used.store(OF_THREAD, Relaxed);
        }
        at
    }

    /// A slot's use ends, or the thread.
    ///
    /// # Safety
    /// `slots` comes from `new`, and the bit is set in it; nobody uses what it stands for any more.
    unsafe fn release(slots: *mut Slots, bit: u64) {
        // SAFETY: as promised: there as long as a bit is set.
        if unsafe { (*slots).used.fetch_and(!bit, AcqRel) } == bit {
            unmap(slots.cast(), size_of::<Slots>());
        }
    }
}

/// A thread that has entered scopes.
pub struct Thread {
    /// A forked child finds its parent's.
    pub pid: u32,
    /// From the oldest to the newest.
    pub scopes: Row<*mut CScope>,
    slots: *mut Slots,
    /// Slots of scopes that may have been jumped over, a bit each.
    jumped: u64,
}

/// Nothing is made ahead in this process any more.
pub static DISABLED: AtomicBool = AtomicBool::new(false);

/// Some graph is only checked: its scopes are told of all calls, not only of those that change something.
static CHECKS: AtomicBool = AtomicBool::new(false);

/// From now on that is so.
pub fn check() {
    CHECKS.store(true, Relaxed);
}

/// Whether all scopes are told of a call.
#[inline(always)]
pub fn is_told(call: &Call) -> bool {
    call.changes() || CHECKS.load(Relaxed)
}

/// Runs with the hooks passing calls straight through, also for what a plug-in's callbacks call.
pub fn at_work<R>(local: *mut Local, work: impl FnOnce() -> R) -> R {
    // SAFETY: the calling thread's own words.
    unsafe {
        let before = (*local).state;
        if before != OVER {
            (*local).state = OURS;
        }
        compiler_fence(core::sync::atomic::Ordering::SeqCst);
        let r = work();
        compiler_fence(core::sync::atomic::Ordering::SeqCst);
        if (*local).state != OVER {
            (*local).state = before;
        }
        r
    }
}

/// The same within a call that a handler may make, of a thread that has a record. `graph` stands by.
pub fn enter_quietly(graph: &'static Graph<*mut c_void>, context: *mut c_void) -> *mut CScope {
    let local = local();
    at_work(local, || {
        if DISABLED.load(Relaxed) {
            return passing();
        }
        match own(local, raw::getpid()) {
            // SAFETY: the calling thread's record.
            Some(thread) => unsafe {
                begin(thread, context, usize::MAX, |c| graph.enter_quietly(c))
            },
            None => passing(),
        }
    })
}

/// Where the stack is now, to tell the functions that called each other.
#[inline(always)]
pub fn stack() -> usize {
    let here = 0u8;
    black_box(&raw const here) as usize
}

/// Puts a scope into a free slot. `stack`: where it is entered.
///
/// # Safety
/// The calling thread's record.
pub unsafe fn begin(
    thread: *mut Thread,
    context: *mut c_void,
    stack: usize,
    enter: impl FnOnce(&'static *mut c_void) -> Scope<'static, *mut c_void>,
) -> *mut CScope {
    // SAFETY: as promised; a slot that is not in use is nobody's, and its context stays until its scope has ended.
    unsafe {
        if (*thread).jumped != 0 {
            (*thread).end_jumped(stack);
        }
        let slots = (*thread).slots;
        let mut slot = (*slots).used.load(Relaxed).trailing_ones() as usize;
        if slot < MOST_SCOPES {
            (*slots).used.fetch_or(1 << slot, AcqRel);
        } else if let Some(left) = (*thread).jumped_slot() {
            slot = left;
        } else {
            return passing();
        }
        let own_context = (&raw mut (*slots).contexts[slot]).cast::<*mut c_void>();
        own_context.write(context);
        let new = (*thread).at(slot);
        new.write(CScope::new(thread, slots, slot, stack));
        let scope = enter(&*own_context);
        // To a graph that was switched off no calls are offered.
        let is_off = scope.is_off();
        (*new).scope = Some(scope);
        if !is_off {
            (*thread).scopes.push(new);
        }
        new
    }
}

/// It ends.
///
/// # Safety
/// The scope is null or was entered, and given up by the caller.
pub unsafe fn leave(scope: *mut CScope) {
    if scope.is_null() || scope == passing() {
        return;
    }
    let local = local();
    // SAFETY: as promised. What a handler has left by longjmp in the middle of our work is not touched any more.
    unsafe {
        let of_this_thread = (*scope).thread == (*local).thread && (*local).state != OVER;
        if !(*scope).thread.is_null() && !of_this_thread {
            return;
        }
        at_work(local, || {
            if let Some(thread) = (*scope).thread.as_mut() {
                thread.end(scope);
                thread.jumped &= !(1 << (*scope).slot);
                if thread.jumped != 0 {
                    // What was entered by functions that this one called.
                    thread.end_jumped((*scope).stack.saturating_sub(1));
                }
            } else {
                drop((*scope).scope.take());
            }
            Slots::release((*scope).slots, 1 << (*scope).slot);
        });
    }
}

/// Has only calls on `fd`, and others that were bound before, offered to the scope.
///
/// # Safety
/// The scope is null or one of this thread.
pub unsafe fn bind(scope: *mut CScope, fd: c_int) -> bool {
    if scope == passing() {
        return true;
    }
    // SAFETY: as promised.
    let Some(s) = (unsafe { scope.as_mut() }) else {
        return false;
    };
    if s.bound[..s.bound_count].contains(&fd) {
        return true;
    }
    let Some(free) = s.bound.get_mut(s.bound_count) else {
        return false;
    };
    *free = fd;
    s.bound_count += 1;
    s.is_bound = true;
    true
}

/// Whether nothing is under way in a scope: what has come back is taken in.
///
/// # Safety
/// The scope is null or one of this thread.
pub unsafe fn is_idle(scope: *mut CScope) -> bool {
    scope == passing()
        // SAFETY: as promised.
        || unsafe { scope.as_mut() }
            .and_then(|s| s.scope.as_mut())
            .is_none_or(Scope::is_idle)
}

/// The function that entered is about to walk through a directory (`outrider_graph::Graph::walk`).
///
/// # Safety
/// The scope is null or one of this thread.
pub unsafe fn walk(scope: *mut CScope, fd: c_int) {
    if scope != passing()
        // SAFETY: as promised.
        && let Some(s) = unsafe { scope.as_mut() }.and_then(|s| s.scope.as_mut())
    {
        s.walk(fd);
    }
}

impl CScope {
    const fn new(thread: *mut Thread, slots: *mut Slots, slot: usize, stack: usize) -> CScope {
        CScope {
            scope: None,
            thread,
            slots,
            slot,
            stack,
            bound: [-1; MOST_BOUND],
            bound_count: 0,
            is_bound: false,
            named: false,
        }
    }

    /// Whether the thread's calls of this kind are its business.
    fn hears(&self, call: &Call) -> bool {
        let bound = &self.bound[..self.bound_count];
        let on = |fd: c_int| bound.contains(&fd);
        !self.named
            && (!self.is_bound
                || on(call.args.fd)
                || call.args.kind == Kind::Renameat && on(call.args.fd2))
    }

    pub fn unbind(&mut self, closes: impl Fn(c_int) -> bool) {
        while let Some(i) = self.bound[..self.bound_count]
            .iter()
            .position(|b| closes(*b))
        {
            self.bound_count -= 1;
            self.bound.swap(i, self.bound_count);
        }
    }
}

impl Thread {
    /// None entered yet; `None` where there is no memory.
    pub fn new(pid: u32) -> Option<*mut Thread> {
        let slots = Slots::new();
        if slots.is_null() {
            return None;
        }
        let new = Row::new(MOST_SCOPES).and_then(|scopes| {
            Mapped::new(Thread {
                pid,
                scopes,
                slots,
                jumped: 0,
            })
        });
        if new.is_none() {
            // SAFETY: just made, and nobody else's.
            unsafe { Slots::release(slots, OF_THREAD) };
        }
        new.map(Mapped::into_raw)
    }

    /// All scopes end. Whoever entered one may still hold it, and leave it.
    pub fn end_all(&mut self) {
        while let Some(scope) = self.scopes.pop() {
            // SAFETY: entered and not left.
            unsafe {
                (*scope).thread = null_mut();
                drop((*scope).scope.take());
            }
        }
    }

    /// The record is gone.
    ///
    /// # Safety
    /// It comes from `new`, and nobody uses it any more.
    pub unsafe fn free(thread: *mut Thread) {
        // SAFETY: as promised.
        unsafe {
            Slots::release((*thread).slots, OF_THREAD);
            drop(Mapped::from_raw(thread));
        }
    }

    /// Whether any of its scopes does.
    pub fn looks_ahead(&self) -> bool {
        // SAFETY: entered and not left.
        let mut scopes = self
            .scopes
            .iter()
            .filter_map(|s| unsafe { (**s).scope.as_ref() });
        scopes.any(|s| !s.is_passing())
    }

    /// Whether any of its scopes is to know of a call while looking ahead rests.
    pub fn is_concerned(&self, call: &Call) -> bool {
        use Kind::{Close, Openat};
        let of_all = call.changes() || matches!(call.args.kind, Close | Openat);
        // SAFETY: entered and not left.
        let mut heard = self.scopes.iter().map(|s| unsafe { (**s).hears(call) });
        of_all && !self.scopes.is_empty() || heard.any(|h| h)
    }

    /// Runs `f` with each scope that the thread has entered and not left.
    pub fn each(&mut self, mut f: impl FnMut(&mut Scope<'static, *mut c_void>)) {
        for scope in self.scopes.iter() {
            // SAFETY: entered and not left.
            let scope = unsafe { &mut **scope };
            if let Some(s) = scope.scope.as_mut() {
                f(s);
            }
        }
    }

    /// The program leaves functions by longjmp(3), and with them perhaps scopes, whose contexts are gone then. Those of which nothing is to be handed out any
    /// more end here. Their slots stay: who entered may still hold them.
    pub fn jump(&mut self) {
        // SAFETY: the thread's own.
        let used = unsafe { (*self.slots).used.load(Relaxed) } & !(OF_THREAD | self.jumped);
        for slot in (0..MOST_SCOPES).filter(|slot| used & 1 << slot != 0) {
            // SAFETY: a slot that is in use has a scope.
            let scope = unsafe { &mut *self.at(slot) };
            if scope.is_bound {
                continue;
            }
            self.jumped |= 1 << slot;
            if let Some(s) = scope.scope.as_mut() {
                s.retire();
            }
            if scope.scope.as_ref().is_none_or(Scope::is_passing) {
                self.end(scope);
            }
        }
    }

    /// Scopes that may have been jumped over were, if the stack is back where they were entered or beyond. They end.
    #[cold]
    fn end_jumped(&mut self, stack: usize) {
        let jumped = self.jumped;
        for slot in (0..MOST_SCOPES).filter(|slot| jumped & 1 << slot != 0) {
            let scope = self.at(slot);
            // SAFETY: a slot that is in use has a scope.
            if unsafe { (*scope).stack } <= stack {
                self.end(scope);
            }
        }
    }

    /// Where no slot is free, that of an ended scope that may have been jumped over, still in use: the deepest on the stack. If its function goes on all the same and
    /// leaves it in the end, functions that it has called by then, and their scopes, are over.
    #[cold]
    fn jumped_slot(&mut self) -> Option<usize> {
        let jumped = self.jumped;
        // SAFETY: a slot that is in use has a scope.
        let slot = (0..MOST_SCOPES)
            .filter(|slot| jumped & 1 << slot != 0)
            .filter(|slot| unsafe { (*self.at(*slot)).scope.is_none() })
            .min_by_key(|slot| unsafe { (*self.at(*slot)).stack })?;
        self.jumped &= !(1 << slot);
        Some(slot)
    }

    fn at(&self, slot: usize) -> *mut CScope {
        // SAFETY: within the thread's slots.
        unsafe { (&raw mut (*self.slots).scopes[slot]).cast() }
    }

    /// Ends a scope of this thread, whose slot stays in use.
    fn end(&mut self, scope: *mut CScope) {
        if let Some(at) = self.scopes.iter().position(|s| *s == scope) {
            self.scopes.remove(at);
        }
        // SAFETY: entered and not left.
        drop(unsafe { (*scope).scope.take() });
    }

    /// Tells all scopes but one of a call.
    pub fn notice(&mut self, call: &Call, but: *mut CScope) {
        for scope in self.scopes.iter() {
            if *scope == but {
                continue;
            }
            // SAFETY: entered and not left.
            let scope = unsafe { &mut **scope };
            if let Some(s) = scope.scope.as_mut() {
                s.notice(call);
            }
            if call.args.kind == Kind::Close {
                scope.unbind(|fd| fd == call.args.fd);
            }
        }
    }

    /// Offers a call to the scopes. The one that is to be told of the result, and the answer if there is one.
    ///
    /// # Safety
    /// The call's pointers are what the system call wants.
    pub unsafe fn offer(&mut self, call: &Call) -> (*mut CScope, Option<isize>) {
        let mut asked = null_mut::<CScope>();
        let mut found = None;
        for at in (0..self.scopes.len()).rev() {
            let Some(scope) = self.scopes.get(at).copied() else {
                continue;
            };
            // SAFETY: entered and not left.
            let s = unsafe { &mut *scope };
            if !s.hears(call) {
                continue;
            }
            if asked.is_null() {
                asked = scope;
            }
            if let Some(place) = s.scope.as_mut().and_then(|s| s.foresees(call)) {
                asked = scope;
                found = Some(place);
                break;
            }
        }
        if is_told(call) {
            self.notice(call, asked);
        }
        // SAFETY: entered and not left.
        let Some(s) = (unsafe { asked.as_mut() }).and_then(|s| s.scope.as_mut()) else {
            return (null_mut(), None);
        };
        let answer = match found {
            // SAFETY: as promised.
            Some(place) => unsafe { s.begin(call, place) },
            None => {
                s.surprise(call);
                None
            }
        };
        if answer.is_none() && call.args.kind == Kind::Close {
            // SAFETY: as above.
            unsafe { (*asked).unbind(|fd| fd == call.args.fd) };
        }
        (asked, answer)
    }
}

pub fn errno() -> c_int {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() }
}

pub fn set_errno(e: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = e };
}

/// Whether the thread's calls are the process's own: not those of a vfork child, which runs in its memory.
pub fn own(local: *mut Local, pid: u32) -> Option<*mut Thread> {
    // SAFETY: the calling thread's; a record stays until its thread ends.
    unsafe {
        let thread = (*local).thread;
        (!thread.is_null() && (*thread).pid == pid).then_some(thread)
    }
}
