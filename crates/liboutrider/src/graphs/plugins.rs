//! Plug-ins (`include/outrider_plugin.h`).
//!
//! `outrider run --plugin` preloads them behind this library and names them in the environment. The constructor asks each for its table and,
//! if it is for this program, starts it. Tables are constant and plug-ins are never unloaded, so nothing here is locked.

use core::ffi::{CStr, c_char, c_int, c_uint};
use core::ptr::null_mut;
use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use libc::{DIR, dirent};
use outrider_graph::Call;
use outrider_sys::environment::variable;
use outrider_sys::raw;

use super::interface::{CGraph, Foreseen, NextStub};
use super::{interface, listing, scopes};

/// Plug-ins of a process.
const MOST: usize = 16;

/// struct outrider_observer.
#[repr(C)]
pub struct Observer {
    before: Option<unsafe extern "C" fn(*const Foreseen)>,
    after: Option<unsafe extern "C" fn(*const Foreseen, i64)>,
    duplicated: Option<unsafe extern "C" fn(c_int, c_int)>,
    listing: Option<unsafe extern "C" fn(*mut DIR, c_int)>,
    entry: Option<unsafe extern "C" fn(*mut DIR, *const dirent)>,
    closing: Option<unsafe extern "C" fn(*mut DIR, c_int)>,
    rewound: Option<unsafe extern "C" fn(*mut DIR, c_int)>,
}

/// struct outrider_plugin.
#[repr(C)]
pub struct Plugin {
    name: *const c_char,
    programs: *const *const c_char,
    start: Option<unsafe extern "C" fn() -> c_int>,
    observer: *const Observer,
    directory: Option<NextStub>,
    directory_flags: c_uint,
    pub arrange: Option<unsafe extern "C" fn(*mut listing::Directory, usize)>,
}

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

/// Starts the plug-ins that OUTRIDER_PLUGINS names, paths with colons between them. Called once, from the constructor.
pub fn start() {
    // SAFETY: the constructor runs before the program can change its environment from another thread.
    let (named, wanted) = unsafe {
        let Some(named) = variable(c"OUTRIDER_PLUGINS") else {
            return;
        };
        (named, variable(c"OUTRIDER_GRAPH_SHOW"))
    };
    HOME.store(raw::getpid(), Relaxed);
    SHOWN.store(
        match wanted.map(CStr::to_bytes) {
            Some(b"dot") => SHOW_DOT,
            Some(b"text") => SHOW_TEXT,
            _ => SHOW_NONE,
        },
        Relaxed,
    );
    for path in named.to_bytes().split(|b| *b == b':') {
        let mut text = path.to_vec();
        text.push(0);
        // SAFETY: a C string; the object is loaded already or not touched, and stays loaded.
        let table = unsafe {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            let handle = libc::dlopen(text.as_ptr().cast(), flags);
            if handle.is_null() {
                continue;
            }
            libc::dlsym(handle, c"outrider_plugin_1".as_ptr()).cast::<Plugin>()
        };
        // SAFETY: null or the plug-in's table.
        if let Some(plugin) = unsafe { table.as_ref() } {
            begin(plugin);
        }
    }
    if SHOWN.load(Relaxed) != SHOW_NONE {
        // SAFETY: ends the process, which was started for nothing else.
        unsafe { libc::_exit(0) };
    }
}

/// What `outrider graph show` asks for.
static SHOWN: AtomicU32 = AtomicU32::new(SHOW_NONE);
const SHOW_NONE: u32 = 0;
const SHOW_DOT: u32 = 1;
const SHOW_TEXT: u32 = 2;

/// Prints a graph that was just built, if this process is there for that.
pub fn show<C>(graph: &outrider_graph::Graph<C>) {
    let text = match SHOWN.load(Relaxed) {
        SHOW_DOT => graph.dot(),
        SHOW_TEXT => graph.to_string(),
        _ => return,
    };
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        // SAFETY: bytes of ours.
        let n = unsafe {
            raw::syscall6(
                libc::SYS_write,
                1,
                rest.as_ptr() as usize,
                rest.len(),
                0,
                0,
                0,
            )
        };
        match usize::try_from(n) {
            Ok(n) if n > 0 => rest = &rest[n.min(rest.len())..],
            _ => return,
        }
    }
}

unsafe extern "C" {
    /// See program_invocation_short_name(3).
    static program_invocation_short_name: AtomicPtr<c_char>;
}

fn is_for_this_program(plugin: &Plugin) -> bool {
    if plugin.programs.is_null() || SHOWN.load(Relaxed) != SHOW_NONE {
        return true;
    }
    // SAFETY: the C library's, a C string; an array of C strings that ends with null.
    unsafe {
        let own = program_invocation_short_name.load(Relaxed);
        let mut at = plugin.programs;
        while !(*at).is_null() {
            if !own.is_null() && libc::strcmp(*at, own) == 0 {
                return true;
            }
            at = at.add(1);
        }
    }
    false
}

fn begin(plugin: &'static Plugin) {
    let i = COUNT.load(Relaxed);
    let Some(slot) = STARTED.get(i) else { return };
    if plugin.name.is_null() || !is_for_this_program(plugin) {
        return;
    }
    // SAFETY: the plug-in's function.
    if plugin.start.is_some_and(|start| unsafe { start() } != 0) {
        return;
    }
    if let Some(next) = plugin.directory {
        // SAFETY: a C string.
        let name = unsafe { CStr::from_ptr(plugin.name) }.to_string_lossy();
        let graph = interface::generator(&name, next, plugin.directory_flags);
        slot.graph.store(graph, Relaxed);
        // What becomes of descriptors before the first directory is listed is remembered there.
        scopes::prepare();
    }
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
    scopes::use_graphs();
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
