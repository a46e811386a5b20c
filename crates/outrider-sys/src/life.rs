//! Whether a process is over, whatever became of its number (pidfd_open(2)).

use std::os::fd::OwnedFd;

use crate::valgrind;

/// A descriptor that becomes readable when process `pid` is over; `None` where the kernel (before 5.3) or Valgrind has none, or refuses.
pub fn of(pid: u32) -> Option<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    if valgrind::is_below() {
        return None;
    }
    pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()
}

/// Whether the process of [`of`] is over, all of its threads included.
pub fn over(life: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(
        poll(&mut [PollFd::new(life, PollFlags::IN)], Some(&now)),
        Ok(1)
    )
}
