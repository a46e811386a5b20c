//! Signals of the runner: what is meant for the program is passed on to it. A leaf, because `fast_start` installs the same handlers as `run`.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use outrider_sys::raw;

/// The program's process, for the signal handlers; 0 before it is started, and [`OVER`] afterwards.
pub static PROGRAM: AtomicI32 = AtomicI32::new(0);
/// No process's number: that of the program may be another's soon.
pub const OVER: i32 = -1;
/// How the program ended, as wait4(2) says it, once it is [`OVER`].
pub static ENDED: AtomicI32 = AtomicI32::new(0);
/// Signals of those that are passed on which this process ignored before, bit by bit.
pub static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Whether this process stops itself because the program was stopped: [`GOING`], [`STOPPING`] or [`CONTINUED`].
pub static STOPPED: AtomicU32 = AtomicU32::new(GOING);
/// It does not.
pub const GOING: u32 = 0;
/// It does.
pub const STOPPING: u32 = 1;
/// Somebody has sent SIGCONT since.
pub const CONTINUED: u32 = 2;

/// Whether somebody has asked for a report: [`NO_REPORT`], [`OFFERED`] or [`ASKED`].
pub static REPORT: AtomicU32 = AtomicU32::new(NO_REPORT);
/// There is no file for one.
pub const NO_REPORT: u32 = 0;
/// There is one.
pub const OFFERED: u32 = 1;
/// It is to be written.
pub const ASKED: u32 = 2;
/// The signal by which `outrider report` asks. Nobody dies of it who doesn't know it.
pub const REQUEST: i32 = libc::SIGURG;
/// The value that it sends with it: no program's, which has addresses or small numbers. "outrider" in ASCII.
pub const REQUESTED: usize = 0x6f75_7472_6964_6572;

/// What a terminal or the kernel sends to the whole group the program gets by itself; what somebody sent to this process is
/// meant for the program. What this process has brought on itself it dies of.
// Where `fast_start` lies: no functions of the C library.
#[unsafe(link_section = ".text")]
pub extern "C" fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let call = |n, a: i32, b: usize, c: usize| {
        // SAFETY: calls on numbers and on structures that outlive them.
        unsafe { raw::syscall6(n, a as usize, b, c, 8, 0, 0) }
    };
    let pid = PROGRAM.load(Acquire);
    let this = raw::getpid() as i32;
    // SAFETY: the kernel passes a valid siginfo; these codes have a process id.
    let (code, sender) = unsafe {
        let code = (*info).si_code;
        let sent = matches!(code, libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE);
        (code, if sent { (*info).si_pid() } else { 0 })
    };
    if is_fault(signal) && (code > 0 || sender == this) {
        // The default action, mask and flags.
        let default = [0u64; 4];
        let action = default.as_ptr() as usize;
        call(libc::SYS_rt_sigaction, signal, action, 0);
        call(libc::SYS_kill, this, signal as usize, 0);
        return;
    }
    let is_asked = || {
        // SAFETY: what is queued has a value.
        let value = unsafe { (*info).si_value() };
        value.sival_ptr as usize == REQUESTED
    };
    if signal == REQUEST && code == libc::SI_QUEUE && is_asked() {
        // The program is not concerned, whether there is a file or not.
        if REPORT.load(Acquire) != NO_REPORT {
            REPORT.store(ASKED, Release);
        }
        return;
    }
    let from_terminal = match signal {
        libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => true,
        libc::SIGWINCH => true,
        // When a terminal is gone only the session's leader hears of it.
        libc::SIGHUP => call(libc::SYS_getsid, 0, 0, 0) != this as isize,
        _ => false,
    };
    let mut needless = false;
    if signal == libc::SIGCONT {
        // The shell that continues this process continues the whole group.
        needless = STOPPED.load(Acquire) != GOING;
        if needless {
            STOPPED.store(CONTINUED, Release);
        }
        // The end of the observer.
        needless |= (libc::CLD_EXITED..=libc::CLD_CONTINUED).contains(&code);
    }
    // What this process has written exceeds its limit on the size of files: the write says so.
    let exceeds = signal == libc::SIGXFSZ && sender == this;
    // What the program sends to its own group it gets itself.
    let concerns_nobody = pid <= 0 || needless || exceeds || code > 0 && from_terminal;
    if concerns_nobody || code == libc::SI_USER && sender == pid {
        return;
    }
    // With the value that was sent, where the kernel lets others send such.
    if code >= 0
        || code == libc::SI_TKILL
        || call(
            libc::SYS_rt_sigqueueinfo,
            pid,
            signal as usize,
            info as usize,
        ) != 0
    {
        call(libc::SYS_kill, pid, signal as usize, 0);
    }
}

/// A child changed its state: interrupts what the runner waits in.
// Where `fast_start` lies.
#[unsafe(link_section = ".text")]
pub extern "C" fn child_changed(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Whether a process brings the signal on itself, unless somebody has sent it.
fn is_fault(signal: i32) -> bool {
    const FAULTS: u64 = 1 << libc::SIGSEGV
        | 1 << libc::SIGBUS
        | 1 << libc::SIGFPE
        | 1 << libc::SIGILL
        | 1 << libc::SIGABRT
        | 1 << libc::SIGTRAP
        | 1 << libc::SIGSYS
        | 1 << libc::SIGPIPE;
    signal < 32 && FAULTS & 1 << signal != 0
}

/// Whether a signal that somebody sends to this process is meant for the program.
pub fn is_passed_on(signal: i32) -> bool {
    const KEPT: u64 = 1 << libc::SIGKILL | 1 << libc::SIGSTOP | 1 << libc::SIGCHLD;
    // 32 and 33 belong to the C library.
    signal >= 34 || signal < 32 && KEPT & 1 << signal == 0
}
