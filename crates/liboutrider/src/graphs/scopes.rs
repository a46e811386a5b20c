//! A thread's scopes, and how its calls reach them.
//!
//! A hook asks [`through`] to make its call. In a thread without scopes that is two loads. Otherwise the call is offered to the scopes, the
//! newest first; the first that foresees it may have the answer. The others are told of what it changes.
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
use std::time::Instant;

use libc::{DIR, dirent};
use outrider_graph::{Call, Graph, Kind, Scope};
use outrider_sys::mapped::{Mapped, Row, map, unmap};
use outrider_sys::raw;
use outrider_sys::threads::AtEnd;

use super::interface::CGraph;
use super::listing::Listings;
use super::local::{self, CALLING, Local, OURS, OVER, PROGRAM};
use super::plugins::{self, Event};
use crate::attach::{GRAPHS, INVOLVED};

/// Scopes that a thread may have entered; calls of further ones are made without them.
const MOST_SCOPES: usize = 63;
/// Descriptors that a scope may be bound to.
const MOST_BOUND: usize = 8;

/// struct outrider_scope. The scope borrows the context in its slot.
pub struct CScope {
    scope: Option<Scope<'static, *mut c_void>>,
    thread: *mut Thread,
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
    named: bool,
}

/// The scope of those for whom there is no memory, or no place: it passes calls through. It is never written to.
struct Passing(CScope);
// SAFETY: as said.
unsafe impl Sync for Passing {}

static PASSING: Passing = Passing(CScope::new(null_mut(), null_mut(), 0, 0));

fn passing() -> *mut CScope {
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
    pid: u32,
    /// From the oldest to the newest.
    scopes: Row<*mut CScope>,
    slots: *mut Slots,
    /// Slots of scopes that may have been jumped over, a bit each.
    jumped: u64,
    /// The directories that it is listing; in memory of its own, since what happens there enters and leaves scopes.
    listings: *mut Listings,
}

/// Ends what the thread has not, when it ends …
static AT_END: AtEnd = AtEnd::new(end);
/// … or when it ends the program by exit(3).
struct End;

impl Drop for End {
    fn drop(&mut self) {
        end(null_mut());
    }
}

thread_local! {
    static END: End = const { End };
}

/// Has exit(3) end the thread's scopes. To register that takes memory, without which the C library ends the program: it is left out then.
fn prepare_exit() {
    const ENOUGH: usize = 4096;
    // SAFETY: memory that is given back at once.
    unsafe {
        let some = libc::malloc(ENOUGH);
        if some.is_null() {
            return;
        }
        libc::free(some);
    }
    let _ = END.try_with(|_| ());
}

extern "C" fn end(_: *mut c_void) {
    let local = local::get();
    // SAFETY: this thread's own words; the record was made by `record`, and nothing of it is used after this.
    unsafe {
        // A thread that was cancelled in a call ends in it; one that ends within our own work leaves that as it is.
        let whole = matches!((*local).state, PROGRAM | CALLING);
        (*local).state = OVER;
        if !whole {
            return;
        }
        let thread = core::mem::replace(&mut (*local).thread, null_mut());
        if thread.is_null() || (*thread).pid != raw::getpid() {
            return;
        }
        while let Some(scope) = (*thread).scopes.pop() {
            // Whoever entered may still hold it, and leave it.
            (*scope).thread = null_mut();
            drop((*scope).scope.take());
        }
        drop(Mapped::from_raw((*thread).listings));
        Slots::release((*thread).slots, OF_THREAD);
        drop(Mapped::from_raw(thread));
    }
}

/// Nothing is made ahead in this process any more.
static DISABLED: AtomicBool = AtomicBool::new(false);

/// From now on the hooks look whether there are scopes.
pub fn use_graphs() {
    plugins::remember_process();
    if !DISABLED.load(Relaxed) {
        INVOLVED.fetch_or(GRAPHS, Relaxed);
    }
}

/// The thread is about to forbid itself system calls, so that nobody may make others in its place, nor ask the kernel anything.
#[cold]
pub fn disable() {
    let local = local::get();
    // SAFETY: the calling thread's own words, and scopes that were entered and not left. A vfork child speaks for itself only.
    unsafe {
        let thread = (*local).thread;
        if !thread.is_null() && (*thread).pid != raw::getpid() {
            return;
        }
        DISABLED.store(true, Relaxed);
        if !thread.is_null() && (*local).state == PROGRAM {
            (*local).state = OURS;
            (*thread).each(Scope::halt);
            (*local).state = PROGRAM;
        }
    }
    INVOLVED.fetch_and(!GRAPHS, Relaxed);
}

/// The thread is about to have a table of descriptors of its own: others can't make its calls any more, on this table or the old one. Effects that were
/// made are still handed out; who observes calls is told of no more.
#[cold]
pub fn unshare_files() {
    each_of_thread(|s| {
        s.retire();
    });
    if forbid() {
        plugins::stop();
    }
}

/// Has forks told of, once there are graphs.
pub fn watch_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if !WATCHED.swap(true, Relaxed) {
        // SAFETY: functions of a library that is never unloaded.
        unsafe { libc::pthread_atfork(Some(forking), None, Some(forked)) };
    }
}

unsafe extern "C" fn forking() {
    each_of_thread(Scope::forking);
}

/// In the child, on the thread that has forked.
unsafe extern "C" fn forked() {
    let Some(local) = turn() else { return };
    at_work(local, || {
        // SAFETY: the calling thread's record, null or a copy of the parent's.
        let Some(thread) = (unsafe { (*local).thread.as_mut() }) else {
            return;
        };
        let mut inherits = false;
        thread.each(|s| inherits |= s.forked());
        if inherits {
            thread.pid = raw::getpid();
        }
    });
}

/// Some graph is only checked: its scopes are told of all calls, not only of those that change something.
static CHECKS: AtomicBool = AtomicBool::new(false);

/// From now on that is so.
pub fn check() {
    CHECKS.store(true, Relaxed);
}

/// Whether all scopes are told of a call.
#[inline(always)]
fn is_told(call: &Call) -> bool {
    call.changes() || CHECKS.load(Relaxed)
}

/// Does something with each scope of the calling thread.
fn each_of_thread(f: impl FnMut(&mut Scope<'static, *mut c_void>)) {
    let Some(local) = turn() else { return };
    let was = errno();
    at_work(local, || {
        if let Some(thread) = own(local, raw::getpid()) {
            // SAFETY: the thread's own record.
            unsafe { (*thread).each(f) };
        }
    });
    set_errno(was);
}

/// The thread is about to change who makes its calls, or with which limits (`names_only`: where its paths lead).
#[inline(always)]
pub fn unsettle(names_only: bool) {
    if turn().is_some() {
        unsettled(names_only);
    }
}

#[cold]
#[inline(never)]
fn unsettled(names_only: bool) {
    each_of_thread(|s| s.unsettle(names_only));
}

/// The thread is about to confine itself: others can't make its calls any more. No scope that is entered from now on, on any thread, looks
/// ahead; what is done is handed out.
#[cold]
pub fn restrict() {
    unsettle(false);
    forbid();
}

/// No scope that is entered from now on looks ahead. `false` in a vfork child, which speaks for itself only.
fn forbid() -> bool {
    // SAFETY: the calling thread's own words.
    let thread = unsafe { (*local::get()).thread.as_ref() };
    let speaks = thread.is_none_or(|t| t.pid == raw::getpid() || plugins::forked());
    if speaks {
        DISABLED.store(true, Relaxed);
    }
    speaks
}

/// The thread's record; made if there is none, which no handler may do. `None` in a vfork child, in a thread that ends, and where there is
/// no memory.
///
/// # Safety
/// `local` is the calling thread's.
unsafe fn record(local: *mut Local, pid: u32) -> Option<*mut Thread> {
    // SAFETY: as promised; a record stays until its thread ends.
    unsafe {
        if (*local).state == OVER || DISABLED.load(Relaxed) {
            return None;
        }
        let known = (*local).thread;
        if !known.is_null() {
            if (*known).pid == pid {
                return Some(known);
            }
            if !plugins::forked() {
                // A vfork child, in its parent's memory.
                return None;
            }
            // A forked child: its parent's scopes are none of its own.
        }
        let slots = Slots::new();
        if slots.is_null() {
            return None;
        }
        let Some(new) = Thread::new(pid, slots) else {
            Slots::release(slots, OF_THREAD);
            return None;
        };
        prepare_exit();
        (*local).thread = new;
        use_graphs();
        Some(new)
    }
}

/// Makes the calling thread's record before it is needed, for plug-ins.
pub fn prepare() {
    let local = local::get();
    // SAFETY: the calling thread's.
    at_work(local, || unsafe { record(local, raw::getpid()) });
}

/// Runs with the hooks passing calls straight through, also for what a plug-in's callbacks call.
fn at_work<R>(local: *mut Local, work: impl FnOnce() -> R) -> R {
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

/// A function begins.
pub fn enter(graph: &'static Graph<*mut c_void>, context: *mut c_void) -> *mut CScope {
    if graph.passes_by() {
        return passing();
    }
    let local = local::get();
    at_work(local, || {
        // SAFETY: the calling thread's.
        match unsafe { record(local, raw::getpid()) } {
            // SAFETY: the calling thread's record.
            Some(thread) => unsafe { begin(thread, context, stack(), |c| graph.enter_prepared(c)) },
            None => passing(),
        }
    })
}

/// The same within a call that a handler may make, of a thread that has a record. `graph` stands by.
pub fn enter_quietly(graph: &'static Graph<*mut c_void>, context: *mut c_void) -> *mut CScope {
    let local = local::get();
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
fn stack() -> usize {
    let here = 0u8;
    black_box(&raw const here) as usize
}

/// Puts a scope into a free slot. `stack`: where it is entered.
///
/// # Safety
/// The calling thread's record.
unsafe fn begin(
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
/// The scope is null or from [`enter`], and given up by the caller.
pub unsafe fn leave(scope: *mut CScope) {
    if scope.is_null() || scope == passing() {
        return;
    }
    let local = local::get();
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

    fn unbind(&mut self, closes: impl Fn(c_int) -> bool) {
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
    /// A record that ends with the calling thread; `None` where there is no memory.
    fn new(pid: u32, slots: *mut Slots) -> Option<*mut Thread> {
        let listings = Mapped::new(Listings::new()?)?.into_raw();
        let scopes = Row::new(MOST_SCOPES)?;
        let new = Mapped::new(Thread {
            pid,
            scopes,
            slots,
            jumped: 0,
            listings,
        })?;
        AT_END.ask().then(|| new.into_raw())
    }

    /// Whether any of its scopes does.
    fn looks_ahead(&self) -> bool {
        // SAFETY: entered and not left.
        let mut scopes = self
            .scopes
            .iter()
            .filter_map(|s| unsafe { (**s).scope.as_ref() });
        scopes.any(|s| !s.is_passing())
    }

    /// Whether any of its scopes or listings is to know of a call while looking ahead rests.
    fn is_concerned(&self, call: &Call) -> bool {
        use Kind::{Close, Openat};
        let of_all = call.changes() || matches!(call.args.kind, Close | Openat);
        // SAFETY: entered and not left.
        let mut heard = self.scopes.iter().map(|s| unsafe { (**s).hears(call) });
        // SAFETY: the thread's own.
        let listings = unsafe { &*self.listings };
        of_all && !self.scopes.is_empty() || heard.any(|h| h) || listings.are_concerned(call)
    }

    /// Runs `f` with each scope that the thread has entered and not left.
    fn each(&mut self, mut f: impl FnMut(&mut Scope<'static, *mut c_void>)) {
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
    fn jump(&mut self) {
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
    fn notice(&mut self, call: &Call, but: *mut CScope) {
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
    unsafe fn offer(&mut self, call: &Call) -> (*mut CScope, Option<isize>) {
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

/// Makes a call of the program by `real`, a function of the C library, with the help of the thread's scopes. The result is as C has it. Closures
/// that can be copied leave the arguments in registers where nobody is interested: only the copies for [`followed`] are written to memory, and
/// `black_box` keeps the compiler from saving these.
#[inline(always)]
pub fn through(call: impl FnOnce() -> Call + Copy, real: impl FnOnce() -> isize + Copy) -> isize {
    through_or(call, real, |_| {})
}

/// The same; where a scope has the answer, `answered` hears it.
#[inline(always)]
pub fn through_or(
    call: impl FnOnce() -> Call + Copy,
    real: impl FnOnce() -> isize + Copy,
    answered: impl FnOnce(isize) + Copy,
) -> isize {
    match turn() {
        None => real(),
        Some(local) => perhaps_followed(local, black_box(call), black_box(real), answered),
    }
}

/// The same for a call that walks make by the ten thousand: where nobody is interested it is made at once, at the price of a longer function.
#[inline(always)]
pub fn through_or_past(
    call: impl FnOnce() -> Call + Copy,
    real: impl FnOnce() -> isize + Copy,
) -> isize {
    match turn() {
        None => real(),
        Some(local) if is_passed_quickly(local, &call()) => real(),
        Some(local) => followed(local, black_box(call), black_box(real), |_| {}),
    }
}

/// The calling thread's listings, if it has any.
#[inline(always)]
fn listings<'a>(local: *mut Local) -> Option<(&'a Thread, &'a Listings)> {
    // SAFETY: the calling thread's record, null or alive, and its listings, which live as long.
    unsafe {
        let thread = (*local).thread.as_ref()?;
        Some((thread, thread.listings.as_ref()?))
    }
}

/// A glance: `true` if looking ahead rests and nobody on the thread is interested in a call.
#[inline(always)]
fn is_of_nobody(local: *mut Local, call: &Call) -> bool {
    let closes = call.args.kind == Kind::Close;
    plugins::resting().is_some()
        && listings(local).is_none_or(|(thread, listings)| {
            thread.scopes.is_empty() && !(closes && listings.may_know(call.args.fd))
        })
}

/// Whether a call of nobody's interest is simply made; it counts as one that was passed. Opens are told of, since they give numbers.
#[inline(always)]
fn is_passed_quickly(local: *mut Local, call: &Call) -> bool {
    if call.args.kind == Kind::Openat || !is_of_nobody(local, call) {
        return false;
    }
    // SAFETY: the calling thread's own words.
    let passed = unsafe { &mut (*local).passed };
    let is_timed = call.args.kind.takes_path() && *passed == 0;
    *passed = passed.saturating_sub(1);
    !is_timed
}

/// The same, on a thread whose calls somebody may be interested in.
#[cold]
#[inline(never)]
fn perhaps_followed(
    local: *mut Local,
    call: impl FnOnce() -> Call + Copy,
    real: impl FnOnce() -> isize + Copy,
    answered: impl FnOnce(isize),
) -> isize {
    if is_passed_quickly(local, &call()) {
        return real();
    }
    followed(local, call, real, answered)
}

/// The same, on a thread whose calls somebody is interested in.
#[cold]
#[inline(never)]
fn followed(
    local: *mut Local,
    call: impl FnOnce() -> Call,
    real: impl FnOnce() -> isize,
    answered: impl FnOnce(isize),
) -> isize {
    let call = call();
    if let Some(graph) = plugins::resting()
        // SAFETY: the calling thread's record, null or alive.
        && !unsafe { (*local).thread.as_ref() }.is_some_and(|t| t.is_concerned(&call))
    {
        return passed_by(local, graph, &call, real);
    }
    // SAFETY: the caller's arguments, which its call would hand to the kernel.
    let turn = unsafe { before(local, &call) };
    match turn {
        Turn::Answer(r) => {
            answered(r);
            r
        }
        Turn::Make(told, errno) => {
            let r = real();
            after(local, &call, told, errno, r);
            r
        }
        Turn::Pass => real(),
    }
}

/// Makes a call that nobody follows, since looking ahead rests. Some of them are timed: the rest is over when one has waited.
fn passed_by(
    local: *mut Local,
    graph: &CGraph,
    call: &Call,
    real: impl FnOnce() -> isize,
) -> isize {
    if !call.args.kind.takes_path() {
        return real();
    }
    // SAFETY: the calling thread's own words.
    let passed = unsafe { &mut (*local).passed };
    let began = (*passed == 0).then(Instant::now);
    *passed = passed.checked_sub(1).unwrap_or(graph.0.untimed());
    let r = real();
    if call.args.kind == Kind::Openat && r >= 0 {
        // Whoever closed what had this number before, nobody told this thread.
        announce(|| super::close(r as c_int));
    }
    if let Some(began) = began {
        let was = errno();
        graph.0.timed(began);
        // SAFETY: the calling thread's record, null or alive.
        if unsafe { (*local).thread.as_ref() }.is_some_and(|t| !t.scopes.is_empty()) {
            at_work(local, || {
                if let Some(thread) = own(local, raw::getpid()) {
                    // SAFETY: the thread's own record.
                    unsafe { (*(*thread).listings).rest_if_due() };
                }
            });
        }
        set_errno(was);
    }
    r
}

/// Tells scopes and observers of a call that is about to be made, and is not to be followed up: a descriptor that a function of the C library
/// closes, a change that no graph contains.
#[inline(always)]
pub fn announce(call: impl FnOnce() -> Call) {
    if let Some(local) = turn() {
        let call = call();
        // SAFETY: the calling thread's record, null or alive.
        let of_nobody = plugins::resting().is_some()
            && !unsafe { (*local).thread.as_ref() }.is_some_and(|t| t.is_concerned(&call));
        if !of_nobody {
            told(local, &call);
        }
    }
}

/// The thread's word with us, if anybody is interested in its calls.
#[inline(always)]
pub fn turn() -> Option<*mut Local> {
    if INVOLVED.load(Relaxed) & GRAPHS == 0 {
        return None;
    }
    let local = local::get();
    // SAFETY: the calling thread's own words.
    let (state, scopes) = unsafe { ((*local).state, !(*local).thread.is_null()) };
    (state == PROGRAM && (scopes || plugins::observed())).then_some(local)
}

/// Whether a call of the thread concerns nobody here.
#[inline(always)]
pub fn is_nobodys() -> bool {
    turn().is_none()
}

/// Who is told of a call's result.
struct Told {
    /// The thread's record, null where its calls are not the process's own.
    thread: *mut Thread,
    /// Null for none.
    scope: *mut CScope,
    observers: bool,
}

enum Turn {
    /// Make the call; nobody is to be told.
    Pass,
    /// Make the call and tell these; errno was this.
    Make(Told, c_int),
    Answer(isize),
}

fn errno() -> c_int {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() }
}

fn set_errno(e: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = e };
}

/// Whether the thread's calls are the process's own: not those of a vfork child, which runs in its memory.
fn own(local: *mut Local, pid: u32) -> Option<*mut Thread> {
    // SAFETY: the calling thread's; a record stays until its thread ends.
    unsafe {
        let thread = (*local).thread;
        (!thread.is_null() && (*thread).pid == pid).then_some(thread)
    }
}

#[cold]
#[inline(never)]
unsafe fn before(local: *mut Local, call: &Call) -> Turn {
    let was = errno();
    // SAFETY: the calling thread's own words.
    unsafe { (*local).state = OURS };
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    // Where scopes only count, as they do while looking ahead rests, it does not matter whose reads these are. What comes and goes of
    // descriptors does: a vfork child has its own.
    let counted = !plugins::observed() && !matches!(call.args.kind, Kind::Close | Kind::Openat);
    // SAFETY: the thread's own record, null or alive.
    let pid = match unsafe { (*local).thread.as_ref() } {
        Some(thread) if counted && !thread.looks_ahead() => thread.pid,
        _ => raw::getpid(),
    };
    let observed = plugins::observed() && plugins::at_home(pid);
    if observed {
        if let Some(graph) = plugins::only() {
            graph.0.followed();
        }
        plugins::before(call);
    }
    let thread = own(local, pid).unwrap_or(null_mut());
    let (scope, answer) = if thread.is_null() {
        (null_mut(), None)
    } else {
        // SAFETY: as promised by the caller; the record is this thread's.
        unsafe {
            if observed {
                (*(*thread).listings).calling(call);
            }
            (*thread).offer(call)
        }
    };
    let turn = match answer {
        Some(r) => {
            if observed {
                plugins::after(call, r);
            }
            set_errno(if r < 0 { -r as c_int } else { was });
            Turn::Answer(if r < 0 { -1 } else { r })
        }
        // What an open gives is told in any case: its number may have been another file's.
        None if scope.is_null() && !observed && call.args.kind != Kind::Openat => {
            set_errno(was);
            Turn::Pass
        }
        None => Turn::Make(
            Told {
                thread,
                scope,
                observers: observed,
            },
            was,
        ),
    };
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    let state = if let Turn::Make(..) = turn {
        CALLING
    } else {
        PROGRAM
    };
    // SAFETY: as above.
    unsafe { (*local).state = state };
    turn
}

#[cold]
#[inline(never)]
fn after(local: *mut Local, call: &Call, told: Told, errno_before: c_int, r: isize) {
    let errno_after = errno();
    let result = if r < 0 { -(errno_after as isize) } else { r };
    // SAFETY: the calling thread's own words.
    unsafe { (*local).state = OURS };
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    // SAFETY: the thread's own record, and a scope that was entered; it is left alone if it was left meanwhile.
    unsafe {
        let thread = told.thread;
        if !told.scope.is_null()
            && !thread.is_null()
            && (*thread).scopes.contains(&told.scope)
            && let Some(s) = (*told.scope).scope.as_mut()
        {
            s.made(result);
        }
        if call.args.kind == Kind::Openat && result >= 0 && !thread.is_null() {
            // Whoever closed what had this number before, nobody told this thread.
            (*(*thread).listings).calling(&super::close(result as c_int));
            (*thread).notice(&super::close(result as c_int), null_mut());
        }
    }
    if told.observers {
        plugins::after(call, result);
    }
    set_errno(if r < 0 { errno_after } else { errno_before });
    compiler_fence(core::sync::atomic::Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { (*local).state = PROGRAM };
}

#[cold]
#[inline(never)]
fn told(local: *mut Local, call: &Call) {
    let was = errno();
    at_work(local, || {
        let pid = raw::getpid();
        if plugins::observed() && plugins::at_home(pid) {
            plugins::before(call);
        }
        if let Some(thread) = own(local, pid) {
            // SAFETY: the thread's own record.
            unsafe {
                (*(*thread).listings).calling(call);
                (*thread).notice(call, null_mut());
            }
        }
    });
    set_errno(was);
}

/// Tells plug-ins what became of a directory stream or a descriptor.
#[inline(always)]
pub fn happened(event: Event) {
    if plugins::observed()
        && let Some(local) = turn()
    {
        heard(local, event);
    }
}

/// The same of an entry that was read.
#[inline(always)]
pub fn read_entry(stream: *mut DIR, entry: *mut dirent) {
    #[cold]
    #[inline(never)]
    fn tell(stream: *mut DIR, entry: *mut dirent) {
        happened(Event::Entry(stream, entry));
    }
    // SAFETY: the calling thread's own words.
    if plugins::observed() && (unsafe { (*local::get()).listing } || plugins::has_observers()) {
        tell(stream, entry);
    }
}

/// Whether a directory that is about to be listed takes so long that something may have been waited for before its end.
fn is_large(fd: c_int) -> bool {
    /// Bytes of names of some thousand entries.
    const LARGE: i64 = 64 << 10;
    raw::status(fd).is_ok_and(|st| st.st_size >= LARGE)
}

#[cold]
#[inline(never)]
fn heard(local: *mut Local, event: Event) {
    // SAFETY: the calling thread's record, null or alive.
    let known = unsafe { (*local).thread.as_ref() }.map(|t| unsafe { &*t.listings });
    let listed = known.is_some_and(|l| l.have(event));
    if let Some(graph) = plugins::resting()
        && !listed
        && !matches!(event, Event::Listing(_, fd) if graph.0.is_new() && is_large(fd))
    {
        return;
    }
    // An entry of a listing that is known is its process's.
    let pid = match known {
        Some(_) if listed && matches!(event, Event::Entry(..)) && !plugins::has_observers() => {
            // SAFETY: as above.
            unsafe { (*(*local).thread).pid }
        }
        _ => raw::getpid(),
    };
    if !plugins::at_home(pid) {
        return;
    }
    let was = errno();
    at_work(local, || {
        plugins::tell(event);
        if plugins::lister().is_none() {
            return;
        }
        let thread = match event {
            // No handler opens a directory stream.
            // SAFETY: the calling thread's.
            Event::Listing(..) => unsafe { record(local, pid) },
            _ => own(local, pid),
        };
        if let Some(thread) = thread {
            // SAFETY: the thread's own record.
            unsafe { (*(*thread).listings).heard(event) };
        }
    });
    set_errno(was);
}

/// The program is about to close descriptors `first..=last`.
pub fn closing_range(first: u32, last: u32) {
    let Some(local) = turn() else { return };
    let was = errno();
    at_work(local, || {
        if let Some(thread) = own(local, raw::getpid()) {
            // SAFETY: the thread's own record.
            unsafe {
                for scope in (*thread).scopes.iter() {
                    if let Some(s) = (**scope).scope.as_mut() {
                        s.closing_range(first, last);
                    }
                    (**scope).unbind(|fd| (first..=last).contains(&(fd as u32)));
                }
                (*(*thread).listings).closing_range(first, last);
            }
        }
    });
    set_errno(was);
}

/// Makes a call through a scope that is named in it, or without one where it is null. If that closes a descriptor it is told to `closing` first.
///
/// # Safety
/// The scope is null or one of this thread; the call's pointers are what the system call wants.
pub unsafe fn make(scope: *mut CScope, call: &Call, closing: impl FnOnce(c_int)) -> isize {
    let local = local::get();
    let was = errno();
    let r = at_work(local, || {
        if is_told(call)
            && let Some(thread) = own(local, raw::getpid())
        {
            // SAFETY: the thread's own record.
            unsafe {
                (*(*thread).listings).calling(call);
                (*thread).notice(call, scope);
            }
        }
        if call.args.kind == Kind::Close {
            closing(call.args.fd);
        }
        // SAFETY: as promised.
        unsafe {
            if scope != passing()
                && let Some(s) = scope.as_mut()
            {
                s.named = true;
                if let Some(s) = s.scope.as_mut() {
                    return s.make(call);
                }
            }
            call.make()
        }
    });
    // Stubs may have set it.
    set_errno(was);
    r
}

/// The program is about to leave functions by longjmp(3). The contexts of scopes that they have entered may lie on the stack that is left:
/// nothing more is asked of their graphs, and effects that were made are handed out. Scopes that are bound to descriptors go on.
pub fn jumping() {
    if INVOLVED.load(Relaxed) & GRAPHS == 0 {
        return;
    }
    let local = local::get();
    // SAFETY: the calling thread's own words, and scopes that were entered and not left.
    unsafe {
        if (*local).state == OURS {
            // Out of the middle of our work: what it leaves behind is not looked at again.
            (*local).state = OVER;
            return;
        }
        if (*local).state == OVER {
            return;
        }
        if let Some(thread) = own(local, raw::getpid()) {
            (*local).state = OURS;
            (*thread).jump();
        }
        (*local).state = PROGRAM;
    }
}
