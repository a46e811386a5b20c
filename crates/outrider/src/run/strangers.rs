//! Programs below the one that was started which no hook reaches: looked for while they run, at most once a second, where there is to be a report.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use outrider_core::fetch;
use crate::elf;

/// From one look to the next, at first and at most.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);
/// Processes that are looked at, programs that are remembered, and those that are named.
const PROCESSES: usize = 256;
const PROGRAMS: usize = 1024;
const NAMES: usize = 8;

/// What was found.
pub struct Strangers {
    program: u32,
    /// Readable when the program is over; `None` once it is.
    life: Option<OwnedFd>,
    pause: Duration,
    /// Device and inode of each program that was seen, by name.
    seen: BTreeMap<PathBuf, (u64, u64)>,
}

impl Strangers {
    /// `None` where the end of `program` could not be told from the outside.
    pub fn below(program: i32) -> Option<Strangers> {
        let program = program as u32;
        Some(Strangers {
            program,
            life: Some(fetch::life(program)?),
            pause: FIRST,
            seen: BTreeMap::new(),
        })
    }

    /// Waits until it is time for a look, a child changes its state, the program is over, or somebody comes to the socket: whether somebody did. To be called
    /// with all signals blocked, of which `mask` is what lets them through: whatever came before is still there to be waited for.
    pub fn wait(&mut self, mask: &libc::sigset_t, socket: Option<BorrowedFd<'_>>) -> bool {
        // A negative one is passed over.
        let number = |fd: Option<BorrowedFd<'_>>| libc::pollfd {
            fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
            events: libc::POLLIN,
            revents: 0,
        };
        let life = self.life.as_ref().map(AsFd::as_fd);
        let mut poll = [number(life), number(socket)];
        // Once the program is over there is only its end to wait for.
        let timeout = self.life.as_ref().map(|_| libc::timespec {
            tv_sec: self.pause.as_secs() as i64,
            tv_nsec: self.pause.subsec_nanos().into(),
        });
        let limit = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: structures of this frame.
        let r = unsafe { libc::ppoll(poll.as_mut_ptr(), 2, limit, mask) };
        if r > 0 && poll[0].revents & libc::POLLIN != 0 {
            self.life = None;
        }
        r > 0 && poll[1].revents & libc::POLLIN != 0
    }

    /// Looks who is there.
    pub fn look(&mut self) {
        self.pause = (2 * self.pause).min(LONGEST);
        let mut below = children(self.program);
        let mut at = 0;
        while at < below.len().min(PROCESSES) {
            let pid = below[at];
            at += 1;
            below.extend(children(pid));
            let link = format!("/proc/{pid}/exe");
            if self.seen.len() < PROGRAMS
                && let (Ok(name), Ok(meta)) = (std::fs::read_link(&link), std::fs::metadata(&link))
            {
                self.seen.insert(name, (meta.dev(), meta.ino()));
            }
        }
    }

    /// A line for each program that can't be hooked. Looks into the programs, which takes time and reads them.
    pub fn notes(self) -> impl Iterator<Item = String> {
        let seen = self.seen.into_iter().filter(|(name, file)| {
            // Not another one of this name: there are other roots, and names are given again.
            let meta = std::fs::metadata(name);
            meta.is_ok_and(|m| (m.dev(), m.ino()) == *file)
        });
        let found = seen.filter_map(|(name, _)| {
            let why = elf::obstacle(&name).ok()??;
            Some(format!(
                "{}: {why}; it ran without Outrider",
                name.display()
            ))
        });
        found.take(NAMES)
    }
}

fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    let pids = lists.iter().flat_map(|list| list.split_ascii_whitespace());
    pids.filter_map(|pid| pid.parse().ok()).collect()
}
