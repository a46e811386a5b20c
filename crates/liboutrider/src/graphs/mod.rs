//! Foreaction graphs of the process: who enters them, and how the program's calls reach them.
//!
//! - `local` is what the hooks know of their thread.
//! - `scopes` keeps the thread's scopes, and offers them the program's calls.
//! - `interface` is the C interface, through which a program, or a plug-in, builds, enters and leaves.
//! - `plugins` loads plug-ins and tells their observers.
//! - `listing` follows the directories that the program lists, for plug-ins.
//! - `streams` knows which files buffered streams may write to.
//! - `names` are the interposed names that only graphs need, `changes` those after which what was foreseen may be different.

mod changes;
mod interface;
mod listing;
mod local;
mod names;
mod plugins;
mod scopes;
pub mod streams;

use core::ffi::{c_char, c_int};

use outrider_graph::{Args, Call, Kind, open_creates};

pub use changes::{by_number, new_flags, paths, unsharing};
pub use plugins::Event;
pub use scopes::{
    announce, closing_range, disable, happened, is_nobodys, read_entry, restrict, through,
    through_or_past, unsettle, unshare_files,
};

/// Runs before `main`.
pub fn start() {
    streams::start();
    plugins::start();
}

/// A call without pointers.
#[inline(always)]
pub fn call(kind: Kind, fd: c_int) -> Call {
    Call::new(Args::new(kind, fd))
}

/// close(2) of a descriptor.
#[inline(always)]
pub fn close(fd: c_int) -> Call {
    call(Kind::Close, fd)
}

/// A change to a file's bytes or attributes that no graph contains, through its descriptor.
#[inline(always)]
pub fn change(fd: c_int) -> Call {
    call(Kind::Write, fd)
}

/// Bytes of a vector in all.
pub fn total(parts: *const libc::iovec, n: c_int) -> usize {
    // SAFETY: the caller's array, which a thread with scopes promises to be one.
    unsafe { interface::total(parts, n) }
}

/// openat(2).
#[inline(always)]
pub fn open(dir: c_int, path: *const c_char, flags: c_int, mode: u32) -> Call {
    let mut c = call(Kind::Openat, dir);
    c.args.flags = flags;
    if open_creates(flags) {
        c.args.extra = mode;
    }
    c.path = path;
    c
}
