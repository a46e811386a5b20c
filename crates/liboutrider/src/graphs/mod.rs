//! Foreaction graphs of the process: who enters them, and how the program's calls reach them.
//!
//! - `calls` are the program's calls as graphs have them.
//! - `local` is what the hooks know of their thread.
//! - `scopes` keeps the thread's scopes, and offers them the program's calls.
//! - `interface` is the C interface, through which a program, or a plug-in, builds, enters and leaves.
//! - `plugins` loads plug-ins and tells their observers.
//! - `listing` follows the directories that the program lists, for plug-ins.
//! - `streams` knows which files buffered streams may write to.
//! - `names` are the interposed names that only graphs need, `changes` those after which what was foreseen may be different.

mod calls;
mod changes;
mod interface;
mod listing;
mod local;
mod names;
mod plugins;
mod scopes;
pub mod streams;

pub use calls::{call, change, close, open, transfer, vectored};
pub use changes::{by_number, new_flags, paths, unsharing};
pub use plugins::Event;
pub use scopes::{
    announce, closing_range, disable, happened, is_nobodys, read_entry, restrict, through,
    through_or, through_or_past, unsettle, unshare_files,
};

/// Whether some plug-in foresees the calls on directories' entries.
pub fn follow_directories() -> bool {
    plugins::lister().is_some()
}

/// Runs before `main`.
pub fn start() {
    streams::start();
    plugins::start();
}
