//! The plug-ins that were started here, and what they are told.
//!
//! Their tables are constant and they are never unloaded, so nothing here is locked.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use libc::{DIR, dirent};
use outrider_graph::Call;

use super::structures::{CGraph, Foreseen, Observer, Plugin};

/// Plug-ins of a process.
const MOST: usize = 16;

/// A plug-in that was started here.
struct Started {
    plugin: AtomicPtr<Plugin>,
    /// The graph of its `directory`.
    graph: AtomicPtr<CGraph>,
}

static STARTED: [Started; MOST] = [const {
    Started {
        plugin: AtomicPtr::new(null_mut()),
        graph: AtomicPtr::new(null_mut()),
    }
}; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Some of them have an observer.
static OBSERVERS: AtomicBool = AtomicBool::new(false);
/// The graph of the calls on directories' entries, if all that plug-ins want to know of calls is for it.
static ONLY: AtomicPtr<CGraph> = AtomicPtr::new(null_mut());
/// The process that they were started in; forked children are left alone.
static HOME: AtomicU32 = AtomicU32::new(0);
/// Names the process among those that have its memory (see `outrider_graph::process_token`).
static TOKEN: AtomicU64 = AtomicU64::new(0);

/// Whether any plug-in wants to know of calls.
#[inline(always)]
pub fn observed() -> bool {
    COUNT.load(Relaxed) != 0
}

/// Nobody wants to know any more.
pub fn stop() {
    COUNT.store(0, Relaxed);
}

/// Whether `pid` is the process in which the plug-ins were started, neither a forked child nor one of vfork.
pub fn at_home(pid: u32) -> bool {
    HOME.load(Relaxed) == pid
}

/// Whether this is a forked child of the process in which graphs were first used, not one of vfork that runs in its memory.
pub fn forked() -> bool {
    let known = TOKEN.load(Relaxed);
    outrider_graph::process_token().is_some_and(|t| known != 0 && t != known)
}

/// Notes whose memory this is.
pub fn remember_process() {
    if let Some(t) = outrider_graph::process_token() {
        TOKEN.store(t, Relaxed);
    }
}

fn each() -> impl Iterator<Item = (&'static Plugin, &'static Started)> {
    STARTED[..COUNT.load(Relaxed).min(MOST)]
        .iter()
        // SAFETY: set before COUNT, to tables that are never unloaded.
        .filter_map(|s| unsafe { s.plugin.load(Relaxed).as_ref() }.map(|p| (p, s)))
}

fn observers() -> impl Iterator<Item = &'static Observer> {
    // SAFETY: null or a constant table of the plug-in's.
    each().filter_map(|(p, _)| unsafe { p.observer.as_ref() })
}

/// The first plug-in that foresees the calls on a directory's entries, with its graph.
pub fn lister() -> Option<(&'static Plugin, &'static CGraph)> {
    each().find_map(|(p, s)| {
        // SAFETY: null or a graph that is never freed.
        unsafe { s.graph.load(Relaxed).as_ref() }.map(|g| (p, g))
    })
}

/// Whether some plug-in has an observer.
#[inline(always)]
pub fn has_observers() -> bool {
    OBSERVERS.load(Relaxed)
}

/// The graph of the calls on directories' entries, if all that plug-ins want to know of calls is for it and looking ahead rests.
#[inline(always)]
pub fn resting() -> Option<&'static CGraph> {
    only().filter(|g| g.0.rests())
}

/// The same, whether it rests or not.
#[inline(always)]
pub fn only() -> Option<&'static CGraph> {
    // SAFETY: null or a graph that is never freed.
    unsafe { ONLY.load(Relaxed).as_ref() }
}

/// They are started in this process.
pub fn begin(pid: u32) {
    HOME.store(pid, Relaxed);
}

/// Whether there is room for another one.
pub fn have_room() -> bool {
    COUNT.load(Relaxed) < MOST
}

/// One was started, with the graph of its `directory`, or null. To be called when there is room.
pub fn add(plugin: &'static Plugin, graph: *mut CGraph) {
    let i = COUNT.load(Relaxed);
    let Some(slot) = STARTED.get(i) else { return };
    slot.graph.store(graph, Relaxed);
    if !plugin.observer.is_null() {
        OBSERVERS.store(true, Relaxed);
    }
    slot.plugin
        .store(core::ptr::from_ref(plugin).cast_mut(), Relaxed);
    COUNT.store(i + 1, Relaxed);
    let only = lister().filter(|_| !has_observers());
    ONLY.store(
        only.map_or(null_mut(), |(_, g)| core::ptr::from_ref(g).cast_mut()),
        Relaxed,
    );
}

/// A call is about to be made.
pub fn before(call: &Call) {
    let op = Foreseen::of(call);
    for f in observers().filter_map(|o| o.before) {
        // SAFETY: the plug-in's function.
        unsafe { f(&raw const op) };
    }
}

/// It was made, with this result or negated errno.
pub fn after(call: &Call, result: isize) {
    let op = Foreseen::of(call);
    for f in observers().filter_map(|o| o.after) {
        // SAFETY: as above.
        unsafe { f(&raw const op, result as i64) };
    }
}

/// What becomes of a directory stream, and of descriptors.
#[derive(Clone, Copy)]
pub enum Event {
    Duplicated(c_int, c_int),
    Listing(*mut DIR, c_int),
    Entry(*mut DIR, *const dirent),
    Closing(*mut DIR, c_int),
    Rewound(*mut DIR, c_int),
}

/// Tells the observers.
pub fn tell(event: Event) {
    for o in observers() {
        // SAFETY: the plug-in's functions, with what the program has.
        unsafe {
            match event {
                Event::Duplicated(fd, copy) => o.duplicated.map(|f| f(fd, copy)),
                Event::Listing(stream, fd) => o.listing.map(|f| f(stream, fd)),
                Event::Entry(stream, entry) => o.entry.map(|f| f(stream, entry)),
                Event::Closing(stream, fd) => o.closing.map(|f| f(stream, fd)),
                Event::Rewound(stream, fd) => o.rewound.map(|f| f(stream, fd)),
            };
        }
    }
}
