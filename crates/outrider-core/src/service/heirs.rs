//! Processes with other rights than this one's.
//!
//! The service opens files with its own rights, so it serves only processes that have just these. One that has become another user, or has another
//! root or namespace, is handed on to a service that has taken on the rights of that process. The runner, which has one thread, forks it when
//! asked to; what can't be had (by a runner that is not root, mostly) is said in the report.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use outrider_sys::handover::{self, Handed, Message, Peer};
use outrider_sys::life;
use outrider_sys::standing::{Standing, Watch};

use super::kernel::Kernel;
use super::{Service, bounds};
use crate::clock::Moment;
use crate::shared::{Shared, is_its};
use crate::shm::lost;
use crate::{fetch, shm};

/// A runner that has not started a service after so long will not.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often it is reminded.
const REMINDER: Duration = Duration::from_millis(1);

/// Services that were asked for.
#[derive(Default)]
pub(super) struct Heirs {
    /// Whose rights each has.
    known: Vec<Standing>,
    /// Of each, once it listens: whether it has just these, and by what is seen that it is over, where the kernel has such a thing.
    found: [Option<(bool, Option<OwnedFd>)>; shm::HEIRS],
    /// Processes that wait for one: its number, and the memory that they have handed over.
    waiting: Vec<Waiting>,
    reminded: Option<Moment>,
}

struct Waiting {
    heir: usize,
    /// Its numbers in the namespaces in which it is, outermost first.
    numbers: Vec<u32>,
    /// Readable when it is over, where the kernel has such a thing.
    life: Option<OwnedFd>,
    memory: OwnedFd,
    since: Moment,
}

impl Heirs {
    /// Whether a process waits for one that has not begun to listen.
    pub(super) fn are_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl<K: Kernel> Service<K> {
    /// A process has handed over its memory that has other rights.
    pub(super) fn hand_on(&mut self, pid: u32, handed: Handed) {
        let watch = Watch::of(pid).ok();
        let found = watch.and_then(|watch| Some((watch.standing()?, watch)));
        // Only as long as it lives the number is its own. Asked after its rights: these are not those of a program that it has become since, with more by its file.
        let is_its = |watch: &Watch| is_its(watch, &handed) && !watch.is_privileged();
        let found = found.filter(|(_, watch)| is_its(watch));
        let Handed { memory, life, .. } = handed;
        let Some((standing, watch)) = found else {
            // It is over, or another program by now.
            return Shared::refuse(&memory);
        };
        if self.ancestor.is_some() {
            return self.turn_away(&memory);
        }
        if watch.is_filtered() {
            // It may not do what it could be helped with.
            return Shared::refuse(&memory);
        }
        let heir = match self.heirs.known.iter().position(|s| *s == standing) {
            Some(known) => known,
            None if self.heirs.known.len() < shm::HEIRS => {
                self.heirs.known.push(standing);
                let new = self.heirs.known.len() - 1;
                let heir = &self.shared.heir_header(new).heir;
                heir.of.store(pid, Relaxed);
                heir.state.store(shm::HEIR_WANTED, Release);
                new
            }
            None => return self.turn_away(&memory),
        };
        // Who hands its memory over anew has become another program.
        let is_its = |w: &Waiting| w.numbers.contains(&pid);
        self.heirs.waiting.retain(|w| !is_its(w));
        if self.heirs.waiting.len() >= bounds::WAITING {
            return self.turn_away(&memory);
        }
        self.heirs.waiting.push(Waiting {
            heir,
            numbers: fetch::numbers(pid),
            life,
            memory,
            since: self.kernel.now(),
        });
        self.look_after_heirs();
    }

    /// Nobody serves it, and the report says so.
    fn turn_away(&self, memory: &OwnedFd) {
        Shared::refuse(memory);
        self.header().lose(lost::RIGHTS);
    }

    /// Hands processes on to services that have begun to listen.
    pub(super) fn look_after_heirs(&mut self) {
        if self.heirs.waiting.is_empty() {
            return;
        }
        let now = self.kernel.now();
        let mut remind = false;
        for waiting in std::mem::take(&mut self.heirs.waiting) {
            let heir = &self.shared.heir_header(waiting.heir).heir;
            let state = heir.state.load(Acquire);
            let begins = match state {
                // The runner has not noted its number yet.
                shm::HEIR_LISTENS => heir.pid.load(Acquire) == 0,
                state => state == shm::HEIR_WANTED || state == shm::HEIR_BEGINS,
            };
            if begins && now - waiting.since < PATIENCE {
                remind |= state == shm::HEIR_WANTED;
                self.heirs.waiting.push(waiting);
            } else if state == shm::HEIR_LISTENS && self.is_right(waiting.heir) {
                self.pass_on(&waiting);
            } else {
                self.turn_away(&waiting.memory);
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

    /// Whether a service that listens has the rights for which it was asked. The process of which it has taken them on may have become another program before that, with
    /// more: a set-user-ID one. Where this process has no capabilities it has started none that has others.
    fn is_right(&mut self, heir: usize) -> bool {
        let pid = self.shared.heir_header(heir).heir.pid.load(Relaxed);
        let (Some(known), Some(own)) = (self.heirs.known.get(heir), Standing::own()) else {
            return false;
        };
        let look = || {
            let its = Watch::of(pid).ok().and_then(|watch| watch.standing());
            let is_right =
                !own.has_capabilities() || its.is_some_and(|its| its.serves(known, &own));
            (is_right, life::of(pid))
        };
        self.heirs.found[heir].get_or_insert_with(look).0
    }

    /// Hands a process on to a service that has its rights, and to nobody else who has taken its place.
    fn pass_on(&self, waiting: &Waiting) {
        let heir = &self.shared.heir_header(waiting.heir).heir;
        let level = heir.level.load(Relaxed) as usize;
        let over = waiting.life.as_ref().is_some_and(life::over);
        let its = waiting.numbers.get(level).copied().filter(|_| !over);
        let sent = its.map(|pid| {
            let message = Message {
                version: shm::VERSION,
                on_behalf: pid,
                token: heir.token.load(Relaxed),
            };
            let found = self.heirs.found[waiting.heir].as_ref();
            let lives = || !found.is_some_and(|(_, life)| life.as_ref().is_some_and(life::over));
            let is_it = |peer: Peer| peer.pid == heir.pid.load(Relaxed) && lives();
            handover::send(&heir.name(), waiting.memory.as_raw_fd(), message, is_it)
        });
        if over {
            Shared::refuse(&waiting.memory);
        } else if sent != Some(0) {
            self.turn_away(&waiting.memory);
        }
    }
}
