//! The library that `outrider run` preloads.
//!
//! It looks at the program's file calls as they pass and tells the service process about those from which
//! something can be foreseen. It never changes an argument, a result, `errno`, a file position or a
//! descriptor number, and it starts no thread. The path of every call is: one look at the descriptor's
//! state, mostly nothing, then the C library's own function.
//!
//! Each module knows only those after it:
//!
//! - `hooks`, `names`, `changes` and `ends` are the interposed names, `stdio` those of buffered streams; `interface` is what programs and
//!   plug-ins call by its own name.
//! - `rights` is what is done before a program changes what it may do.
//! - `exec` starts programs that can't take the library without it.
//! - `descriptors` says who hears of what becomes of a descriptor: the next four, which don't know of each other.
//! - `graphs` are foreaction graphs: plug-ins, and how the program's calls reach them.
//! - `declared` is what the program has declared that it will read.
//! - `track` is what the hooks keep of descriptors whose files are followed.
//! - `walk` sees that a program goes through a tree.
//! - `resident` lets files that are cached pass without a word.
//! - `needs` writes down names for a run that is remembered.
//! - `attach` connects the process to the service's memory, at the first file that is worth following.
//! - `waits` sees when a thread has waited, so that what was cached no longer is.
//! - `real` finds the C library's functions, `symbols` what programs find by a handle; `libio` is how it keeps buffered streams, `local` how
//!   a thread has memory of its own.
//! - `baseline` is how little we need of the C library's version; `heap` is the memory of all this: never the program's.

mod attach;
mod baseline;
mod changes;
mod declared;
mod descriptors;
mod ends;
mod exec;
mod graphs;
mod heap;
mod hooks;
mod interface;
mod libio;
mod local;
mod names;
mod needs;
mod real;
mod resident;
mod rights;
mod stdio;
mod symbols;
mod track;
mod waits;
mod walk;

// See unwinder.rs, beside the build script.
#[cfg(static_unwinder)]
#[link(name = "gcc_eh", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

/// Runs before `main`: resolves the functions that the hooks stand before.
extern "C" fn start() {
    real::resolve();
    waits::start();
    if attach::start() {
        // A redirected standard input is a file that no hook sees being opened.
        descriptors::adopt(0);
        exec::start();
        graphs::start();
    } else {
        graphs::disable();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
