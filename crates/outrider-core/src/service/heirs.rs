//! Processes with other rights than this one's.
//!
//! The service opens files with its own rights, so it serves only processes that have just these. One that has become another user, or has another
//! root or namespace, is handed on to a service that has taken on the rights of that process. The runner, which has one thread, forks it when
//! asked to; what can't be had (by a runner that is not root, mostly) is said in the report.

use outrider_sys::handover::{self, NAME_BYTES};
use outrider_sys::standing::{Standing, Watch};

use super::*;

/// A runner that has not started a service after so long will not.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often it is reminded.
const REMINDER: Duration = Duration::from_millis(1);

/// Services that were asked for.
#[derive(Default)]
pub(super) struct Heirs {
    /// Whose rights each has.
    known: Vec<Standing>,
    /// Processes that wait for one: its number, and the memory that they have handed over.
    waiting: Vec<Waiting>,
    reminded: Option<Instant>,
}

struct Waiting {
    heir: usize,
    pid: u32,
    memory: OwnedFd,
    since: Instant,
}

impl Heirs {
    /// Whether a process waits for one that has not begun to listen.
    pub(super) fn are_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl Service {
    /// A process has handed over its memory that has other rights.
    pub(super) fn hand_on(&mut self, pid: u32, memory: OwnedFd) {
        let watch = Watch::of(pid);
        let standing = watch.as_ref().and_then(Watch::standing);
        let (Some(watch), Some(standing), None) = (watch, standing, self.ancestor) else {
            return self.turn_away(pid, &memory);
        };
        if watch.is_filtered() {
            // It may not do what it could be helped with.
            return Shared::refuse(&memory);
        }
        let heir = match self.heirs.known.iter().position(|s| *s == standing) {
            Some(known) => known,
            None if self.heirs.known.len() < shm::HEIRS => {
                self.heirs.known.push(standing);
                let new = self.heirs.known.len() - 1;
                let heir = &self.header().heirs[new];
                heir.of.store(pid, Relaxed);
                heir.state.store(shm::HEIR_WANTED, Release);
                new
            }
            None => return self.turn_away(pid, &memory),
        };
        // Who hands its memory over anew has become another program.
        self.heirs.waiting.retain(|w| w.pid != pid);
        if self.heirs.waiting.len() >= bounds::WAITING {
            return self.turn_away(pid, &memory);
        }
        self.heirs.waiting.push(Waiting {
            heir,
            pid,
            memory,
            since: Instant::now(),
        });
        self.look_after_heirs();
    }

    /// Nobody serves it, and the report says so, unless it is over already.
    fn turn_away(&self, pid: u32, memory: &OwnedFd) {
        Shared::refuse(memory);
        if fetch::alive(pid) {
            self.header().lose(lost::RIGHTS);
        }
    }

    /// Hands processes on to services that have begun to listen.
    pub(super) fn look_after_heirs(&mut self) {
        if self.heirs.waiting.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut remind = false;
        for waiting in std::mem::take(&mut self.heirs.waiting) {
            let heir = &self.header().heirs[waiting.heir];
            match heir.state.load(Acquire) {
                shm::HEIR_LISTENS => self.pass_on(&waiting),
                shm::HEIR_WANTED | shm::HEIR_BEGINS if now - waiting.since < PATIENCE => {
                    remind |= heir.state.load(Relaxed) == shm::HEIR_WANTED;
                    self.heirs.waiting.push(waiting);
                }
                _ => self.turn_away(waiting.pid, &waiting.memory),
            }
        }
        let due = self.heirs.reminded.is_none_or(|at| now - at >= REMINDER);
        if remind && due {
            self.heirs.reminded = Some(now);
            if let Some(runner) = rustix::process::getppid() {
                // Its wait is over, as when a child has ended.
                let _ = rustix::process::kill_process(runner, rustix::process::Signal::CHILD);
            }
        }
    }

    fn pass_on(&self, waiting: &Waiting) {
        let heir = &self.header().heirs[waiting.heir];
        let mut name = [0; NAME_BYTES];
        let bytes = heir.name.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes());
        for (to, from) in name.iter_mut().zip(bytes) {
            *to = from;
        }
        let level = heir.level.load(Relaxed) as usize;
        let its = fetch::numbers(waiting.pid).get(level).copied();
        let listens = |peer: handover::Peer| peer.uid != u32::MAX;
        let sent = its.map(|pid| {
            let memory = waiting.memory.as_raw_fd();
            handover::send(&name, memory, shm::VERSION, pid, listens)
        });
        if sent != Some(0) {
            self.turn_away(waiting.pid, &waiting.memory);
        }
    }
}
