//! The ends of programs: exit, and wait(2) for a child's.
//!
//! What the service has open for a process is let go of before others can find out that the process is over: umount(2) finds a file system busy, and on FUSE and NFS
//! an unlinked file stays under another name while somebody has it open. A process sees to that itself where it ends by a call of its own (`exec` does
//! where it becomes another program); what it has closed, before it starts another, which may be one that no hook is in; for one that was killed its parent does, if that is a program that we see.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::MaybeUninit;

use libc::FILE;

use crate::{attach, declared, exec, real};

/// A wait that returned `child`, with this status.
fn waited(child: c_int, status: c_int) -> c_int {
    if child > 0 && libc::WIFSIGNALED(status) {
        attach::child_killed();
    }
    child
}

/// Nothing of this process is left behind.
pub fn ending() {
    attach::ending();
    declared::ending();
}

/// Runs when the program ends by exit(3), behind its own handlers.
extern "C" fn end() {
    ending();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// See _exit(2). Does not return.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) {
    ending();
    // SAFETY: the caller's argument, unchanged.
    unsafe { real::_exit(status) }
}

/// The same.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) {
    // SAFETY: the caller's argument, unchanged.
    unsafe { _exit(status) }
}

/// See quick_exit(3). Does not return.
#[unsafe(no_mangle)]
unsafe extern "C" fn quick_exit(status: c_int) {
    ending();
    // SAFETY: the caller's argument, unchanged.
    unsafe { real::quick_exit(status) }
}

/// Makes a wait with room for the status, where the caller wants none.
///
/// # Safety
/// `status` is null, or what the caller of a wait passes.
unsafe fn wait_with(status: *mut c_int, wait: impl FnOnce(*mut c_int) -> c_int) -> c_int {
    let mut own = 0;
    let to = if status.is_null() {
        &raw mut own
    } else {
        status
    };
    let child = wait(to);
    if child <= 0 {
        return child;
    }
    // SAFETY: the kernel has written there.
    waited(child, unsafe { to.read_unaligned() })
}

/// See wait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn wait(status: *mut c_int) -> c_int {
    // SAFETY: the caller's argument, or our own.
    unsafe { wait_with(status, |status| real::wait(status)) }
}

/// See waitpid(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int {
    // SAFETY: the caller's arguments, or our own.
    unsafe { wait_with(status, |status| real::waitpid(process, status, options)) }
}

/// See wait3(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn wait3(status: *mut c_int, options: c_int, usage: *mut c_void) -> c_int {
    // SAFETY: the caller's arguments, or our own.
    unsafe { wait_with(status, |status| real::wait3(status, options, usage)) }
}

/// See wait4(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn wait4(
    process: c_int,
    status: *mut c_int,
    options: c_int,
    usage: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, or our own.
    unsafe {
        wait_with(status, |status| {
            real::wait4(process, status, options, usage)
        })
    }
}

/// See waitid(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn waitid(
    kind: c_uint,
    id: c_uint,
    info: *mut libc::siginfo_t,
    options: c_int,
) -> c_int {
    let mut own = MaybeUninit::<libc::siginfo_t>::zeroed();
    let to = if info.is_null() {
        own.as_mut_ptr()
    } else {
        info
    };
    // SAFETY: the caller's arguments, or our own.
    unsafe {
        let r = real::waitid(kind, id, to, options);
        // The kernel has written there: of a child, or that there is none.
        if r == 0
            && (*to).si_pid() > 0
            && [libc::CLD_KILLED, libc::CLD_DUMPED].contains(&(*to).si_code)
        {
            attach::child_killed();
        }
        r
    }
}

/// See system(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    attach::starting();
    exec::scrub_own(true);
    // SAFETY: the caller's argument, unchanged.
    let r = unsafe { real::system(command) };
    waited(1, r);
    r
}

/// See popen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut FILE {
    attach::starting();
    exec::scrub_own(true);
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::popen(command, kind) }
}

/// See wordexp(3), which has a shell put in what commands print.
#[unsafe(no_mangle)]
unsafe extern "C" fn wordexp(words: *const c_char, found: *mut c_void, flags: c_int) -> c_int {
    attach::starting();
    exec::scrub_own(true);
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::wordexp(words, found, flags) }
}

/// See pclose(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn pclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's argument, unchanged.
    let r = unsafe { real::pclose(stream) };
    waited(1, r);
    r
}
