//! What exec(2) keeps of a process and fork(2) doesn't hand on.
//!
//! The program is a child where without us it would have been this process. A child begins with nearly everything its parent has (execve(2), fork(2),
//! credentials(7), capabilities(7), sched(7), namespaces(7), prctl(2)). What is left out is given to it here: how it is scheduled, where that was to be
//! reset in children; the timer slack that it falls back to; signals that wait; whom a descriptor's signals are for. Timers, the disposition of SIGCHLD and
//! being a subreaper are `run`'s; adjustments of System V semaphores are shared by a flag of clone(2). What nobody can hand on (POSIX locks, see `locks`,
//! and what [`obstacle`] names) is kept by becoming the program.

use std::mem::{MaybeUninit, size_of};
use std::path::Path;

use outrider_sys::raw;

use crate::locks;

/// struct sched_attr of sched_setattr(2), as it is since Linux 5.3; before, the last two are left out by the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    util_min: u32,
    util_max: u32,
}

const RESET_ON_FORK: u64 = 1;
const UTIL_CLAMP_MIN: u64 = 0x20;
const UTIL_CLAMP_MAX: u64 = 0x40;
/// What sched_getscheduler(2) has besides the policy.
pub const RESET: isize = 0x4000_0000;
/// A policy with which fork(2) fails.
pub const DEADLINE: isize = libc::SCHED_DEADLINE as isize;

impl Scheduling {
    fn of_this() -> Option<Scheduling> {
        let mut found = Scheduling::default();
        let (at, size) = (&raw mut found as usize, size_of::<Scheduling>());
        // SAFETY: the kernel writes at most the size given.
        let answer = unsafe { raw::syscall6(libc::SYS_sched_getattr, 0, at, size, 0, 0, 0) };
        (answer == 0).then_some(found)
    }

    fn set(&self) -> bool {
        let at = &raw const *self as usize;
        // SAFETY: the kernel reads as much as the structure says that it has.
        unsafe { raw::syscall6(libc::SYS_sched_setattr, 0, at, 0, 0, 0, 0) == 0 }
    }

    /// Makes it, and the nice value `nice`, those of this process. `false` where that is not permitted.
    fn restore(&self, nice: usize) -> bool {
        // Of real-time policies it is what there is to go back to.
        // SAFETY: takes numbers.
        let set = |n| unsafe { raw::syscall6(libc::SYS_setpriority, 0, 0, n, 0, 0, 0) };
        if nice != own_nice() && set(nice) != 0 {
            return false;
        }
        let Some(now) = Self::of_this() else {
            return false;
        };
        if now == *self {
            return true;
        }
        let mut wanted = *self;
        if self.policy != libc::SCHED_DEADLINE as u32 && now.runtime == self.runtime {
            // Of other policies the length of a turn, which nobody has chosen.
            wanted.runtime = 0;
        }
        if (now.util_min, now.util_max) != (self.util_min, self.util_max) {
            wanted.flags |= UTIL_CLAMP_MIN | UTIL_CLAMP_MAX;
        }
        wanted.set()
    }
}

fn own_nice() -> usize {
    // SAFETY: takes and returns numbers: 40 to 1 for -20 to 19.
    let inverse = unsafe { raw::syscall6(libc::SYS_getpriority, 0, 0, 0, 0, 0, 0) };
    (20 - inverse) as usize
}

/// A signal that waits, as the kernel tells it: number, error, code, and what belongs to that.
#[repr(C, align(8))]
struct Waiting {
    info: [i32; 32],
    /// It is the thread's, not the process's.
    private: bool,
}

/// The struct f_owner_ex of fcntl(2): kind, and process, group or thread.
pub type Owner = [i32; 2];
pub const F_SETOWN_EX: i32 = 15;
pub const F_GETOWN_EX: i32 = 16;
/// Kinds of owner: a thread, a process.
pub const OWNER_TID: i32 = 0;
pub const OWNER_PID: i32 = 1;

/// What the program is to have of this process.
pub struct Kept {
    /// With the nice value.
    scheduling: Option<(Scheduling, usize)>,
    /// ns.
    slack: Option<usize>,
    signals: Vec<Waiting>,
    /// Descriptors whose signals this process gets, and as what.
    owned: Vec<(i32, i32)>,
}

impl Kept {
    /// Takes it off this process, as far as it has to be taken off to be handed on. To be called with all signals blocked.
    pub fn take() -> Result<Kept, &'static str> {
        let mut kept = Kept {
            scheduling: None,
            slack: None,
            signals: Vec::new(),
            owned: owned(),
        };
        // SAFETY: takes and returns numbers.
        let policy = unsafe { raw::syscall6(libc::SYS_sched_getscheduler, 0, 0, 0, 0, 0, 0) };
        if policy >= 0 && (policy & RESET != 0 || policy & !RESET == DEADLINE) {
            kept.scheduling = Scheduling::of_this().map(|s| (s, own_nice()));
            let plain = Scheduling {
                size: size_of::<Scheduling>() as u32 - 8,
                flags: kept.scheduling.map_or(0, |(s, _)| s.flags & RESET_ON_FORK),
                nice: own_nice() as i32,
                ..Scheduling::default()
            };
            let Some((own, _)) = kept.scheduling else {
                return Err(SCHEDULING);
            };
            // It can't fork, and the two together would have twice the share of the processor that was granted. Who may not ask for it again, even
            // for what is there, wouldn't get it back.
            if policy & !RESET == DEADLINE && !(own.set() && plain.set()) {
                return Err(SCHEDULING);
            }
        }
        kept.slack = take_slack();
        kept.signals = take_signals();
        Ok(kept)
    }

    /// Gives it to the calling process, the program's: why that can't be, if it can't.
    pub fn hand_on(&self) -> Result<(), &'static str> {
        if self.scheduling.is_some_and(|(s, nice)| !s.restore(nice)) {
            return Err(SCHEDULING);
        }
        let this = raw::getpid() as i32;
        for (fd, kind) in &self.owned {
            let owner: Owner = [*kind, this];
            // SAFETY: the kernel reads the structure.
            unsafe { libc::fcntl(*fd, F_SETOWN_EX, &owner) };
        }
        self.back();
        Ok(())
    }

    /// Gives it back to the process that it was taken from.
    pub fn put_back(&self) {
        if let Some((scheduling, nice)) = &self.scheduling {
            scheduling.restore(*nice);
        }
        self.back();
    }

    fn back(&self) {
        self.set_slack();
        let pid = raw::getpid() as usize;
        for signal in &self.signals {
            let (number, info) = (signal.info[0] as usize, signal.info.as_ptr() as usize);
            // SAFETY: the kernel reads the structure. A process may send itself whatever it says.
            unsafe {
                if signal.private {
                    raw::syscall6(libc::SYS_rt_tgsigqueueinfo, pid, pid, number, info, 0, 0);
                } else {
                    raw::syscall6(libc::SYS_rt_sigqueueinfo, pid, number, info, 0, 0, 0);
                }
            }
        }
    }

    /// The runner's own as it was.
    pub fn set_slack(&self) {
        if let Some(slack) = self.slack {
            prctl(libc::PR_SET_TIMERSLACK, slack);
        }
    }
}

const SCHEDULING: &str =
    "the scheduling policy is one that a child can't be given (sched_setattr refused)";

fn prctl(what: i32, value: usize) -> isize {
    // SAFETY: these take numbers.
    unsafe { raw::syscall6(libc::SYS_prctl, what as usize, value, 0, 0, 0, 0) }
}

/// A child's timer slack and the one that it falls back to are both its parent's present one. So that of this process becomes what it falls back to itself;
/// returns what it was, if that is another.
fn take_slack() -> Option<usize> {
    let slack = prctl(libc::PR_GET_TIMERSLACK, 0);
    prctl(libc::PR_SET_TIMERSLACK, 0);
    let usual = prctl(libc::PR_GET_TIMERSLACK, 0);
    (slack > 0 && slack != usual).then_some(slack as usize)
}

/// The signals that wait, which wait no more.
fn take_signals() -> Vec<Waiting> {
    let mut taken = Vec::new();
    let mut pending = 0u64;
    let at = &raw mut pending as usize;
    loop {
        // SAFETY: the kernel writes eight bytes.
        unsafe { raw::syscall6(libc::SYS_rt_sigpending, at, 8, 0, 0, 0, 0) };
        if pending == 0 {
            return taken;
        }
        let own = private_signals();
        let mut info = MaybeUninit::<[i32; 32]>::zeroed();
        let now = [0u64; 2];
        // SAFETY: the kernel reads the set and the time, and writes the structure.
        let signal = unsafe {
            let (info, now) = (info.as_mut_ptr() as usize, now.as_ptr() as usize);
            raw::syscall6(libc::SYS_rt_sigtimedwait, at, info, now, 8, 0, 0)
        };
        if signal <= 0 {
            return taken;
        }
        taken.push(Waiting {
            // SAFETY: zero at first, and written by the kernel.
            info: unsafe { info.assume_init() },
            // The thread's come first.
            private: own & 1 << (signal - 1) != 0,
        });
    }
}

/// Has a signal that waits, and is blocked, wait no more.
pub fn forget(signal: i32) {
    let (set, now) = ([1u64 << (signal - 1)], [0u64; 2]);
    let (set, now) = (set.as_ptr() as usize, now.as_ptr() as usize);
    // SAFETY: the kernel reads the set and the time.
    unsafe { raw::syscall6(libc::SYS_rt_sigtimedwait, set, 0, now, 8, 0, 0) };
}

/// The signals that wait for this thread alone.
fn private_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("SigPnd:\t"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

/// The descriptors whose signals (fcntl(2), F_SETOWN) are for this process.
fn owned() -> Vec<(i32, i32)> {
    let this = raw::getpid() as i32;
    let owner = |fd: i32| {
        let mut owner: Owner = [0; 2];
        // SAFETY: the kernel writes the structure.
        let answer = unsafe { libc::fcntl(fd, F_GETOWN_EX, &mut owner) };
        let [kind, who] = owner;
        let own = answer == 0 && who == this && matches!(kind, OWNER_TID | OWNER_PID);
        own.then_some((fd, kind))
    };
    locks::descriptors().filter_map(owner).collect()
}

/// Where the kernel shows the namespace of this process and the one that its children will be in.
pub const NAMESPACES: [[&std::ffi::CStr; 2]; 2] = [
    [c"/proc/self/ns/pid", c"/proc/self/ns/pid_for_children"],
    [c"/proc/self/ns/time", c"/proc/self/ns/time_for_children"],
];

pub const NAMESPACE: &str = "children of this process are in another PID or time namespace, as whose first one the program would begin";

/// How the kernel names what counts events of a process (perf_event_open(2)), and what waits for descriptors (epoll(7)).
pub const COUNTER: &str = "anon_inode:[perf_event]";
pub const WAITER: &str = "anon_inode:[eventpoll]";

/// Whether a descriptor is of what has neither a file nor a socket behind it.
pub fn is_anonymous(kind: u32) -> bool {
    kind & libc::S_IFMT == 0
}

/// Why an inherited descriptor would be of no use to a child, if one would.
fn own_events() -> Option<&'static str> {
    let (mut waits, mut signals) = (false, false);
    for fd in locks::descriptors().filter(|fd| locks::kind(*fd).is_some_and(is_anonymous)) {
        let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        match name.to_str() {
            Some(COUNTER) => {
                return Some(
                    "events of this process are counted (perf_event_open), and no child's",
                );
            }
            Some(WAITER) => {
                let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
                waits |= info.is_ok_and(|info| info.contains("\ntfd:"));
            }
            Some("anon_inode:[signalfd]") => signals = true,
            _ => {}
        }
    }
    // The numbers that it was given may be others' by now.
    (waits && signals).then_some(
        "this process waits by epoll for signals of its own (signalfd), and for no child's",
    )
}

/// Why this process itself has to become the program, if it has.
pub fn obstacle() -> Option<&'static str> {
    if locks::held() {
        return Some(locks::REASON);
    }
    let differs = |[own, children]: &[&std::ffi::CStr; 2]| {
        let link = |name: &std::ffi::CStr| {
            use std::os::unix::ffi::OsStrExt;
            std::fs::read_link(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()))).ok()
        };
        // One that has no process yet isn't shown.
        let own = link(own);
        own.is_some() && own != link(children)
    };
    if NAMESPACES.iter().any(differs) {
        return Some(NAMESPACE);
    }
    let directory =
        |fd: i32| locks::kind(fd).is_some_and(|kind| kind & libc::S_IFMT == libc::S_IFDIR);
    if owned().iter().any(|(fd, _)| directory(*fd)) {
        return Some(
            "this process has itself told of changes in a directory (dnotify), which only it can be",
        );
    }
    own_events()
}
