//! Processes that share something (memory, a disk's head) and don't know of one another: they count one another and take
//! turns by locks on a file of the kernel's own that stands for it. Such a file is there already, anybody may open it, nobody
//! else locks it, and the kernel takes the locks back from whoever dies.
//!
//! Locks belong to the open file description, so that nothing of the calling program's own locking is touched. Where such a file
//! can't be opened or locked, there are no peers.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};

use crate::raw::{self, Fd};
use crate::units::DeviceId;

fn open(path: &Path) -> Option<Fd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).ok().map(Fd::from)
}

/// One byte of the file stands for each process: below this one.
const PLACES: i64 = 1 << 62;
/// So many are counted. Anybody may lock the file, as often as they like: that must cost neither time nor stack.
const MOST: u64 = 256;

/// Those who share a thing, and whether the caller is one of them.
pub struct Peers {
    file: Fd,
    place: i64,
    joined: bool,
}

impl Peers {
    /// Of what `path` stands for; the caller is not among them yet.
    pub fn of(path: &Path) -> Option<Peers> {
        let file = open(path)?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let ns = now.map_or(0, |d| d.as_nanos() as u64);
        // Numbers of processes repeat between containers.
        let place = (ns ^ u64::from(raw::getpid()) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Some(Peers {
            file,
            place: (place >> 2) as i64,
            joined: false,
        })
    }

    /// Is one of them from now on, or not any more.
    pub fn join(&mut self, joins: bool) {
        if joins != self.joined {
            let kind = if joins { libc::F_RDLCK } else { libc::F_UNLCK };
            let mut lock = lock(kind, self.place..self.place + 1);
            let done = self.fcntl(libc::F_OFD_SETLK, &mut lock);
            self.joined = joins && done;
        }
    }

    /// How many there are, up to 256, the caller included if it is one. Less than 1 µs for each.
    pub fn count(&self) -> u64 {
        let own = u64::from(self.joined);
        own + self.others(0..PLACES, MOST - own)
    }

    fn others(&self, places: std::ops::Range<i64>, most: u64) -> u64 {
        if places.is_empty() || most == 0 {
            return 0;
        }
        // Whoever is there would be in the way of a lock for writing. The kernel names any one of them.
        let mut found = lock(libc::F_WRLCK, places.clone());
        if !self.fcntl(libc::F_OFD_GETLK, &mut found)
            || i32::from(found.l_type) == libc::F_UNLCK
            || !places.contains(&found.l_start)
        {
            return 0;
        }
        let found = found.l_start;
        let known = 1 + self.others(places.start..found, most - 1);
        known + self.others(found + 1..places.end, most - known)
    }

    fn fcntl(&self, command: i32, lock: &mut libc::flock) -> bool {
        // SAFETY: the structure outlives the call.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_fcntl,
                self.file.as_fd().as_raw_fd() as usize,
                command as usize,
                std::ptr::from_mut(lock) as usize,
                0,
                0,
                0,
            )
        };
        r == 0
    }
}

fn lock(kind: i32, places: std::ops::Range<i64>) -> libc::flock {
    // SAFETY: a structure of integers; zeroes are wanted in what isn't named, the process id above all.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = places.start;
    lock.l_len = places.end - places.start;
    lock
}

/// Turns at a disk's head, which share its time fairly: each is due when as much time has passed as the last one took of it, for every one of those who
/// want it (Zhang, "VirtualClock", SIGCOMM 1990).
pub struct Turn {
    /// Locked by whose turn it is.
    turn: Fd,
    /// Who waits for it has locked the byte of the time when it is due, monotonic µs.
    wait: Peers,
    /// Locked by all who have found that there is a head.
    head: Fd,
    held: bool,
    /// When the turn was taken, and when the next one is due, monotonic µs.
    began: i64,
    due: i64,
    found: bool,
}

/// Nobody is waited for any longer: it may be stopped.
pub const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_US: i64 = PATIENCE.as_micros() as i64;
/// Time that somebody has not made use of is made up for so far, µs: who comes late would have the disk alone otherwise.
const CREDIT_US: i64 = 2_000_000;

fn now_us() -> i64 {
    raw::monotonic_us() as i64
}

impl Turn {
    /// Of the disk that `id`, the disk itself or a part of it, lies on.
    pub fn at(id: DeviceId) -> Option<Turn> {
        let queue = |q| Path::new("/sys/dev/block").join(id.to_string()).join(q);
        Turn::of(&queue("queue")).or_else(|| Turn::of(&queue("../queue")))
    }

    fn of(queue: &Path) -> Option<Turn> {
        Some(Turn {
            turn: open(&queue.join("rotational"))?,
            wait: Peers::of(&queue.join("nr_requests"))?,
            head: open(&queue.join("read_ahead_kb"))?,
            held: false,
            began: 0,
            due: 0,
            found: false,
        })
    }

    /// Takes the turn, if it is free and nobody else's is due earlier; asks again later if not. Who could not have it counts as one who waits.
    pub fn take(&mut self) -> bool {
        if !self.held {
            let now = now_us();
            let oldest = (now - CREDIT_US).max(0);
            if !self.wait.joined {
                self.wait.place = self.due.max(oldest);
            }
            let earlier = (oldest - PATIENCE_US).max(0)..self.wait.place;
            // What can't be locked is nobody's.
            self.held = self.wait.others(earlier, 1) == 0
                && flock(&self.turn, FlockOperation::NonBlockingLockExclusive)
                    != Err(rustix::io::Errno::WOULDBLOCK);
            self.began = now;
            self.wait.join(!self.held);
        }
        self.held
    }

    /// Doesn't wait for it any more.
    pub fn leave(&mut self) {
        self.wait.join(false);
    }

    /// Somebody else's turn comes. Whether anybody waits for it.
    pub fn give(&mut self) -> bool {
        let others = self.wait.others(0..PLACES, MOST) as i64;
        if self.held {
            let _ = flock(&self.turn, FlockOperation::Unlock);
            self.held = false;
            let now = now_us();
            let due = self.wait.place + (now - self.began) * (others + 1);
            self.due = due.min(now + PATIENCE_US);
        }
        others > 0
    }

    /// Lets others know, as long as this lives, that there is a head.
    pub fn found(&mut self) {
        self.found = self.found || flock(&self.head, FlockOperation::NonBlockingLockShared).is_ok();
    }

    /// Whether somebody has found that there is a head.
    pub fn is_found(&self) -> bool {
        if !self.found {
            let free = flock(&self.head, FlockOperation::NonBlockingLockExclusive);
            if free.is_ok() {
                let _ = flock(&self.head, FlockOperation::Unlock);
            }
            return free == Err(rustix::io::Errno::WOULDBLOCK);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LP5: as many as have joined are counted, wherever each one's place is.
    #[test]
    fn peers_count_one_another() {
        let path = std::env::temp_dir().join(format!("outrider-peers-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let mut all: Vec<Peers> = (0..7).map(|_| Peers::of(&path).unwrap()).collect();
        for n in 0..all.len() {
            assert_eq!(all[0].count(), n as u64);
            all[n].join(true);
        }
        assert!(all.iter().all(|p| p.count() == 7));
        all[3].join(false);
        all.pop();
        assert!(all.iter().all(|p| p.count() == 5));
        std::fs::remove_file(path).unwrap();
    }

    /// B11: who locks the file many times over is not counted to the end of the stack.
    #[test]
    fn a_crowd_is_counted_in_part() {
        let path = std::env::temp_dir().join(format!("outrider-crowd-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let (crowd, mut peer) = (Peers::of(&path).unwrap(), Peers::of(&path).unwrap());
        for place in 0..5000 {
            let mut lock = lock(libc::F_RDLCK, place * 2..place * 2 + 1);
            assert!(crowd.fcntl(libc::F_OFD_SETLK, &mut lock));
        }
        peer.join(true);
        let count = std::thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(move || peer.count());
        assert_eq!(count.unwrap().join().unwrap(), MOST);
        std::fs::remove_file(path).unwrap();
    }

    /// LP10: a turn is one's at a time, and whoever gives it learns whether another waits.
    #[test]
    fn turns_are_exclusive() {
        let path = std::env::temp_dir().join(format!("outrider-turn-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        for name in ["rotational", "nr_requests", "read_ahead_kb"] {
            std::fs::write(path.join(name), "").unwrap();
        }
        let (mut a, mut b) = (Turn::of(&path).unwrap(), Turn::of(&path).unwrap());
        assert!(a.take() && !a.give());
        assert!(a.take() && a.take() && !b.take());
        assert!(a.give() && b.take() && !a.take());
        assert!(b.give() && a.take() && !b.take());
        // LP10: who has had it for a while comes behind who has waited, and who has left is not waited for.
        std::thread::sleep(Duration::from_millis(20));
        assert!(a.give() && !a.take() && b.take() && !a.take());
        let mut c = Turn::of(&path).unwrap();
        assert!(!c.take() && b.give());
        a.leave();
        assert!(c.take() && !c.give());
        assert!(!a.is_found() && !b.is_found());
        a.found();
        assert!(a.is_found() && b.is_found());
        drop(a);
        assert!(!b.is_found());
        std::fs::remove_dir_all(path).unwrap();
    }
}
