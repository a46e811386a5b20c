//! The ends of programs: exit, exec, and wait(2) for a child's.
//!
//! What the service has open for a process is let go of before others can find out that the process is over: on FUSE and NFS an unlinked file stays under another
//! name while somebody has it open, and umount(2) finds a file system busy. A process sees to that itself where it ends by a call of its own; for one that was killed
//! its parent does, if that is a program that we see.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::FILE;

use crate::{attach, real, track};

/// A wait for `child` that returned: whether it has ended, by its status if the caller wanted that.
///
/// # Safety
/// `status` is null, or the kernel has written there.
unsafe fn waited(child: c_int, status: *const c_int) -> c_int {
    // SAFETY: the caller's promise.
    let status = unsafe { status.as_ref() }.copied();
    let lives = status.is_some_and(|s| libc::WIFSTOPPED(s) || libc::WIFCONTINUED(s));
    if child > 0 && !lives {
        attach::child_ended(Some(child as u32));
    }
    child
}

/// Runs when the program ends by exit(3), behind its own handlers.
extern "C" fn end() {
    attach::leaving();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// See _exit(2). Does not return.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) {
    attach::leaving();
    // SAFETY: the caller's argument, unchanged.
    unsafe { real::_exit(status) }
}

/// The same.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) {
    // SAFETY: the caller's argument, unchanged.
    unsafe { _exit(status) }
}

macro_rules! execs {
    ($($name:ident ($($a:ident: $t:ty),*);)*) => {
        $(
            /// See exec(3).
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($a: $t),*) -> c_int {
                track::leaving();
                // SAFETY: the caller's arguments, unchanged.
                unsafe { real::$name($($a),*) }
            }
        )*
    };
}

execs! {
    execve(path: *const c_char, argv: *const *const c_char, env: *const *const c_char);
    execv(path: *const c_char, argv: *const *const c_char);
    execvp(name: *const c_char, argv: *const *const c_char);
    execvpe(name: *const c_char, argv: *const *const c_char, env: *const *const c_char);
    fexecve(fd: c_int, argv: *const *const c_char, env: *const *const c_char);
    execveat(dir: c_int, path: *const c_char, argv: *const *const c_char, env: *const *const c_char, flags: c_int);
}

/// See wait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn wait(status: *mut c_int) -> c_int {
    // SAFETY: the caller's argument, unchanged, and written by the kernel since.
    unsafe { waited(real::wait(status), status) }
}

/// See waitpid(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int {
    // SAFETY: the caller's arguments, unchanged, and written by the kernel since.
    unsafe { waited(real::waitpid(process, status, options), status) }
}

/// See wait3(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn wait3(status: *mut c_int, options: c_int, usage: *mut c_void) -> c_int {
    // SAFETY: the caller's arguments, unchanged, and written by the kernel since.
    unsafe { waited(real::wait3(status, options, usage), status) }
}

/// See wait4(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn wait4(
    process: c_int,
    status: *mut c_int,
    options: c_int,
    usage: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged, and written by the kernel since.
    unsafe { waited(real::wait4(process, status, options, usage), status) }
}

/// See waitid(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn waitid(
    kind: c_uint,
    id: c_uint,
    info: *mut libc::siginfo_t,
    options: c_int,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    let r = unsafe { real::waitid(kind, id, info, options) };
    // SAFETY: the kernel has written there, if it is not null.
    if r == 0
        && let Some(info) = unsafe { info.as_ref() }
    {
        // SAFETY: of a child that has ended or stopped it is a process's number, and 0 where there is none.
        let child = unsafe { info.si_pid() };
        let ended = [libc::CLD_EXITED, libc::CLD_KILLED, libc::CLD_DUMPED].contains(&info.si_code);
        if child > 0 && ended {
            attach::child_ended(Some(child as u32));
        }
    }
    r
}

/// See system(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's argument, unchanged.
    let r = unsafe { real::system(command) };
    attach::child_ended(None);
    r
}

/// See pclose(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn pclose(stream: *mut FILE) -> c_int {
    // SAFETY: the caller's argument, unchanged.
    let r = unsafe { real::pclose(stream) };
    attach::child_ended(None);
    r
}
