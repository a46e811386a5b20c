//! Children: one that runs in its parent's memory while the parent waits, as one of vfork(2) does, but on a stack of its own; and one that ends with its
//! parent.

use core::ffi::{c_int, c_void};

/// Runs `f(argument)` in such a child, on `stack` bytes, until it returns, exits, or executes a program. The child's process id, to be
/// waited for, or -1 and errno. `flags` are those of clone(2) besides: the signal that tells of its end, and what is shared.
///
/// # Safety
/// The calling process has one thread. What the child does to memory is done to the caller's.
pub unsafe fn vfork(
    f: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    stack: usize,
    flags: c_int,
) -> i32 {
    // Never written to here: only the pages that the child uses are made.
    let mut stack = Vec::<u128>::with_capacity(stack.div_ceil(size_of::<u128>()));
    // SAFETY: as promised; the stack outlives its use, and it grows down from its end.
    unsafe {
        libc::clone(
            f,
            stack.spare_capacity_mut().as_mut_ptr_range().end.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | flags,
            argument,
        )
    }
}

/// Has the kernel kill this process when the thread that forked it ends, whatever state it is in then. Its parent may have ended before.
pub fn die_with_parent() {
    on_parents_death(libc::SIGKILL);
}

/// Takes [`die_with_parent`] back; called by the same thread.
pub fn outlive_parent() {
    on_parents_death(0);
}

fn on_parents_death(signal: c_int) {
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) };
}
