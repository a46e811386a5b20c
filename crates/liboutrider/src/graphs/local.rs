//! What the hooks know of the calling thread before anything else.

use super::scopes::Thread;
use crate::local::initial_exec;

/// The thread's own code runs.
pub const PROGRAM: u32 = 0;
/// Ours does: calls that come now (from a signal handler, an allocator, a plug-in) pass straight through.
pub const OURS: u32 = 1;
/// The C library makes a call for the program; a handler's calls pass straight through.
pub const CALLING: u32 = 2;
/// A handler has left our code by longjmp, or the thread ends: everything passes through from now on.
pub const OVER: u32 = 3;

/// A thread's word with us.
#[repr(C)]
pub struct Local {
    /// Its scopes; null until it has entered one.
    pub thread: *mut Thread,
    /// One of the states above.
    pub state: u32,
    /// Calls until one is timed again, while looking ahead rests.
    pub passed: u16,
    /// It is reading directories whose entries are followed.
    pub listing: bool,
}

initial_exec! {
    /// The calling thread's.
    pub fn get() -> *mut Local = "outrider_local", 16 bytes
}
