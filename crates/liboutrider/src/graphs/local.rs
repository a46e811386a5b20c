//! What the hooks know of the calling thread before anything else: 16 bytes of initial-exec thread-local storage.
//!
//! Rust's `thread_local!` in a shared library asks the C library where the variable is (`__tls_get_addr`), which may allocate on a thread's
//! first call, and so within the program's allocator or a signal handler. Initial-exec storage is part of the thread from its
//! beginning, at a fixed distance from the thread pointer.

use super::scopes::Thread;

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

core::arch::global_asm!(
    ".pushsection .tbss.outrider_local,\"awT\",@nobits",
    ".p2align 3",
    ".type outrider_local, @object",
    ".size outrider_local, 16",
    ".hidden outrider_local",
    ".globl outrider_local",
    "outrider_local:",
    ".zero 16",
    ".popsection",
);

/// The calling thread's.
#[inline(always)]
pub fn get() -> *mut Local {
    let at: *mut Local;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the thread pointer and an offset that the dynamic linker has put into the global offset table.
    unsafe {
        core::arch::asm!(
            "mov {at}, qword ptr [rip + outrider_local@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) at,
            options(pure, nomem, nostack)
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        core::arch::asm!(
            "adrp {at}, :gottprel:outrider_local",
            "ldr {at}, [{at}, :gottprel_lo12:outrider_local]",
            "mrs {base}, tpidr_el0",
            "add {at}, {at}, {base}",
            at = out(reg) at,
            base = out(reg) _,
            options(pure, nomem, nostack)
        );
    }
    at
}
