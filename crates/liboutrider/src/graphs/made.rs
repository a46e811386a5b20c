//! Graphs of programs and plug-ins, made from what they say by the C interface.

use core::ffi::{CStr, c_int, c_uint, c_void};
use outrider_sys::units::DeviceId;

use outrider_core::board;
use outrider_graph::{Counts, Engine, Graph, Next, Sink};
use outrider_sys::environment::variable;

use super::structures::{CGraph, Foreseen, NextStub};
use super::{scopes, show, turns};
use crate::{attach, declared};

const END: c_int = 0;
const CALL: c_int = 1;
const WEAK: c_int = 2;
const LINK: c_int = 3;
const NOT_READY: c_int = 4;
const PURE: c_uint = 1;
const PRIVATE_POSITIONS: c_uint = 2;
const AMONG: c_uint = 4;
const STABLE: c_uint = 8;
const WALK: c_uint = 16;
const FETCH: c_uint = 32;
const STOPS: c_uint = 64;
/// All flags of a graph.
pub const FLAGS: c_uint = PURE | PRIVATE_POSITIONS | AMONG | STABLE | WALK | FETCH | STOPS;

/// Bytes that may be in flight on a device, by what the service and this process's own lists know of others who read there.
fn room(device: u64) -> Option<u64> {
    let device = DeviceId(device);
    let lists = declared::current().and_then(|process| process.room(device));
    attach::room(device).into_iter().chain(lists).min()
}

/// Called once, from the constructor.
pub fn start() {
    outrider_graph::ask_room(room);
}

/// Tells the runner's report of the graphs of this name.
struct Report(&'static str);

impl Report {
    /// Where this process tells it: a child of the one that made the graph tells it elsewhere.
    fn entry(&self) -> Option<&'static board::Entry> {
        board::entry(attach::board()?, self.0)
    }
}

impl Sink for Report {
    fn add(&self, counts: &Counts) {
        if let Some(entry) = self.entry() {
            for (i, n) in counts.values().enumerate() {
                entry.add(i, n);
            }
        }
    }

    fn note(&self, problem: &str, off: bool) {
        if let Some(entry) = self.entry() {
            entry.note(problem, off);
        }
    }
}

/// A graph that was just built, as its flags say.
pub fn with_flags(mut graph: Graph<*mut c_void>, flags: c_uint) -> *mut CGraph {
    // It is in the report although nothing may come of it.
    if attach::board().is_some_and(|b| board::entry(b, graph.name()).is_some()) {
        // A graph may be freed while another thread's counts are on their way: this stays.
        let name = Box::leak(graph.name().to_owned().into_boxed_str());
        graph = graph.sink(Box::leak(Box::new(Report(name))));
    }
    if flags & PURE != 0 {
        graph = graph.pure();
    }
    if flags & PRIVATE_POSITIONS != 0 {
        graph = graph.private_positions();
    }
    if flags & AMONG != 0 {
        graph = graph.among();
    }
    if flags & STABLE != 0 {
        graph = graph.stable();
    }
    if flags & WALK != 0 {
        graph = graph.walk();
    }
    if flags & FETCH != 0 {
        graph = graph.fetch();
    }
    if flags & STOPS != 0 {
        graph = graph.stops();
    }
    graph = graph.beside().changing();
    // SAFETY: looked at, at once. Who changes the environment beside other threads can't be helped.
    let engine = match unsafe { variable(c"OUTRIDER_GRAPH") }.map(CStr::to_bytes) {
        Some(b"uring") => Engine::Uring,
        Some(b"threads") => Engine::Threads,
        Some(b"serial") => Engine::Serial,
        Some(b"check") => Engine::Check,
        _ => Engine::Auto,
    };
    if engine == Engine::Check {
        scopes::check();
    }
    turns::watch_forks();
    show::show(&graph);
    Box::into_raw(Box::new(CGraph(graph.engine(engine))))
}

/// A graph of one loop of calls.
pub fn generator(name: &str, next: NextStub, flags: c_uint) -> *mut CGraph {
    let graph = Graph::generator(name, move |context: &*mut c_void, i| {
        let mut op = Foreseen::new();
        // SAFETY: the stub, with the context that it is meant for.
        let said = unsafe { next(*context, i, &raw mut op) };
        // SAFETY: what the stub gives lives as long as the header says.
        let call = || unsafe { op.op() };
        let made = match said {
            END => return Next::End,
            NOT_READY => return Next::NotReady,
            CALL => call().map(Next::Call),
            WEAK => call().map(Next::Weak),
            LINK => call().map(Next::Link),
            _ => Err("a generator returned an unknown value"),
        };
        made.unwrap_or_else(Next::Broken)
    });
    with_flags(graph, flags)
}
