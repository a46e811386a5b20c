//! How a thread's calls reach its scopes, and who observes calls.
//!
//! A hook asks [`through`] to make its call. In a thread without scopes that is two loads. Otherwise the call is offered to the scopes, the
//! newest first; the first that foresees it may have the answer. The others are told of what it changes.

use core::ffi::{c_int, c_void};
use core::hint::black_box;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed, compiler_fence};
use std::time::Instant;

use libc::{DIR, dirent};
use outrider_graph::{Call, Graph, Kind, Scope};
use outrider_sys::raw;
use outrider_sys::threads::AtEnd;

use super::calls::close;
use super::listing::{self, Listings};
use super::plugins::{self, Event};
use super::scopes::{
    CALLING, CScope, DISABLED, Local, OURS, OVER, PROGRAM, Thread, at_work, begin, errno, is_told,
    local, own, passing, set_errno, stack,
};
use super::structures::CGraph;
use crate::attach::{GRAPHS, INVOLVED};

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
    let local = local();
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
        (*thread).end_all();
        listing::end();
        Thread::free(thread);
    }
}

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
    let local = local();
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
    let thread = unsafe { (*local()).thread.as_ref() };
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
        let listings = Listings::new()?;
        let new = Thread::new(pid)?;
        if !AT_END.ask() {
            Thread::free(new);
            return None;
        }
        prepare_exit();
        (*local).thread = new;
        listing::begin(listings);
        use_graphs();
        Some(new)
    }
}

/// Makes the calling thread's record before it is needed, for plug-ins.
pub fn prepare() {
    let local = local();
    // SAFETY: the calling thread's.
    at_work(local, || unsafe { record(local, raw::getpid()) });
}

/// A function begins.
pub fn enter(graph: &'static Graph<*mut c_void>, context: *mut c_void) -> *mut CScope {
    if graph.passes_by() {
        return passing();
    }
    let local = local();
    at_work(local, || {
        // SAFETY: the calling thread's.
        match unsafe { record(local, raw::getpid()) } {
            // SAFETY: the calling thread's record.
            Some(thread) => unsafe { begin(thread, context, stack(), |c| graph.enter_prepared(c)) },
            None => passing(),
        }
    })
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

/// Whether any of the thread's scopes or listings is to know of a call while looking ahead rests.
fn is_concerned(local: *mut Local, call: &Call) -> bool {
    // SAFETY: the calling thread's record, null or alive, and its listings.
    unsafe {
        let thread = (*local).thread.as_ref();
        thread.is_some_and(|t| t.is_concerned(call) || (*listing::own()).are_concerned(call))
    }
}

/// A glance: `true` if looking ahead rests and nobody on the thread is interested in a call.
#[inline(always)]
fn is_of_nobody(local: *mut Local, call: &Call) -> bool {
    let closes = call.args.kind == Kind::Close;
    if plugins::resting().is_none() {
        return false;
    }
    // SAFETY: the calling thread's record, null or alive, and its listings.
    unsafe {
        (*local).thread.as_ref().is_none_or(|thread| {
            thread.scopes.is_empty() && !(closes && (*listing::own()).may_know(call.args.fd))
        })
    }
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
        && !is_concerned(local, &call)
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
        announce(|| close(r as c_int));
    }
    if let Some(began) = began {
        let was = errno();
        graph.0.timed(began);
        // SAFETY: the calling thread's record, null or alive.
        if unsafe { (*local).thread.as_ref() }.is_some_and(|t| !t.scopes.is_empty()) {
            at_work(local, || {
                if own(local, raw::getpid()).is_some() {
                    // SAFETY: the thread's own.
                    unsafe { (*listing::own()).rest_if_due() };
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
        let of_nobody = plugins::resting().is_some() && !is_concerned(local, &call);
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
    let local = local();
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
                (*listing::own()).calling(call);
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
            (*listing::own()).calling(&close(result as c_int));
            (*thread).notice(&close(result as c_int), null_mut());
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
                (*listing::own()).calling(call);
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
    if plugins::observed() && (listing::is_read() || plugins::has_observers()) {
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
    let known = unsafe { (*local).thread.as_ref().map(|_| &*listing::own()) };
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
        if thread.is_some() {
            // SAFETY: the thread's own.
            unsafe { (*listing::own()).heard(event) };
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
                (*listing::own()).closing_range(first, last);
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
    let local = local();
    let was = errno();
    let r = at_work(local, || {
        if is_told(call)
            && let Some(thread) = own(local, raw::getpid())
        {
            // SAFETY: the thread's own record.
            unsafe {
                (*listing::own()).calling(call);
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
    let local = local();
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
