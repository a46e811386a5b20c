//! Foreaction graphs of the process: who enters them, and how the program's calls reach them.
//!
//! Each knows only those before it:
//!
//! - `calls` are the program's calls as graphs have them, `structures` those of the C headers.
//! - `plugins` are the plug-ins that were started here, and what their observers are told.
//! - `scopes` are those that a thread has entered.
//! - `listing` follows the directories that the program lists, for plug-ins.
//! - `turns` offers a thread's calls to its scopes, and tells listings and plug-ins of them.
//! - `streams` knows which files buffered streams may write to.
//! - `show` prints graphs, `made` makes them, `loading` starts the plug-ins that need them.

mod calls;
mod listing;
mod loading;
pub mod made;
mod plugins;
pub mod scopes;
mod show;
pub mod streams;
pub mod structures;
pub mod turns;

pub use calls::{call, change, close, open, total, transfer, vectored};
pub use plugins::Event;
pub use turns::{
    announce, closing_range, disable, happened, is_nobodys, jumping, read_entry, restrict, through,
    through_or, through_or_past, unsettle, unshare_files,
};

/// Whether some plug-in foresees the calls on directories' entries.
pub fn follow_directories() -> bool {
    plugins::lister().is_some()
}

/// Runs before `main`.
pub fn start() {
    streams::start();
    made::start();
    loading::start();
}
