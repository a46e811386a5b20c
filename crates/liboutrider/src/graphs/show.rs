//! Graphs printed, for `outrider graph show`.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use outrider_sys::environment::variable;
use outrider_sys::raw;

/// What `outrider graph show` asks for.
static SHOWN: AtomicU32 = AtomicU32::new(SHOW_NONE);
const SHOW_NONE: u32 = 0;
const SHOW_DOT: u32 = 1;
const SHOW_TEXT: u32 = 2;

/// Notes what the environment asks for.
///
/// # Safety
/// No other thread changes the environment.
pub unsafe fn ask() {
    // SAFETY: as promised.
    let wanted = unsafe { variable(c"OUTRIDER_GRAPH_SHOW") };
    SHOWN.store(
        match wanted.map(CStr::to_bytes) {
            Some(b"dot") => SHOW_DOT,
            Some(b"text") => SHOW_TEXT,
            _ => SHOW_NONE,
        },
        Relaxed,
    );
}

/// Whether this process is there to print graphs, and for nothing else.
pub fn is_asked() -> bool {
    SHOWN.load(Relaxed) != SHOW_NONE
}

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
