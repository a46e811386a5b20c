//! Processes with other rights than this one's.
//!
//! The service opens files with its own rights, so it serves only processes that have just these. One that has become another user, or has another
//! root or namespace, is handed on to a service that has taken on the rights of that process. The runner, which has one thread, forks it when
//! asked to; what can't be had (by a runner that is not root, mostly) is said in the report.
//!
//! Such a service has the root directory and the namespaces of these processes. So it ends with the last of them: their mounts are busy no longer than they are.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
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
    /// Whose rights each has, and whom it serves.
    known: [Option<Known>; shm::HEIRS],
    /// Of each, once it listens: whether it has just these, and by what is seen that it is over, where the kernel has such a thing.
    found: [Option<(bool, Option<OwnedFd>)>; shm::HEIRS],
    /// Processes that wait for one: its number, and the memory that they have handed over.
    waiting: Vec<Waiting>,
    reminded: Option<Moment>,
}

struct Known {
    standing: Standing,
    /// The processes that it was handed, by number and by what is seen that they are over; where the kernel has no such thing it stays to the end.
    served: Vec<(u32, Option<OwnedFd>)>,
}

impl Known {
    /// Forgets the processes that are over; how many are not.
    fn forget_over(&mut self) -> usize {
        let over = |life: &Option<OwnedFd>| life.as_ref().is_some_and(life::over);
        self.served.retain(|(_, life)| !over(life));
        self.served.len()
    }
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
    /// Whether as many processes as may be are served, or wait to be.
    fn are_many(&mut self) -> bool {
        let waiting = self.waiting.len();
        let most = bounds::served();
        let known = || self.known.iter().flatten();
        if known().map(|k| k.served.len()).sum::<usize>() + waiting < most {
            return false;
        }
        let known = self.known.iter_mut().flatten();
        known.map(Known::forget_over).sum::<usize>() + waiting >= most
    }

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
        let Some(heir) = self.heir_for(standing, pid) else {
            return self.turn_away(&memory);
        };
        // Who hands its memory over anew has become another program.
        let is_its = |w: &Waiting| w.numbers.contains(&pid);
        self.heirs.waiting.retain(|w| !is_its(w));
        if self.heirs.waiting.len() >= bounds::WAITING {
            return self.turn_away(&memory);
        }
        if self.heirs.are_many() {
            self.header().lose(lost::PROCS_FULL);
            return Shared::refuse(&memory);
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

    /// The service that has these rights, which are those of process `pid`; another one where there is none, if there is room for it.
    fn heir_for(&mut self, standing: Standing, pid: u32) -> Option<usize> {
        let mut known = self.heirs.known.iter();
        if let Some(its) = known.position(|k| k.as_ref().is_some_and(|k| k.standing == standing)) {
            return Some(its);
        }
        let state = |i: usize| self.shared.heir_header(i).heir.state.load(Acquire);
        let mut all = 0..shm::HEIRS;
        let new = all.find(|i| self.heirs.known[*i].is_none() && state(*i) == shm::HEIR_NONE)?;
        self.heirs.known[new] = Some(Known {
            standing,
            served: Vec::new(),
        });
        self.heirs.found[new] = None;
        let heir = &self.shared.heir_header(new).heir;
        heir.pid.store(shm::HEIR_UNNOTED, Relaxed);
        heir.of.store(pid, Relaxed);
        heir.state.store(shm::HEIR_WANTED, Release);
        Some(new)
    }

    /// Has those end that have served processes, all of which are over.
    pub(super) fn end_heirs(&mut self) {
        if self.ancestor.is_some() {
            return;
        }
        for i in 0..shm::HEIRS {
            let header = self.shared.heir_header(i);
            let Some(known) = &mut self.heirs.known[i] else {
                continue;
            };
            let before = known.served.len();
            let left = known.forget_over();
            let is_awaited = self.heirs.waiting.iter().any(|w| w.heir == i);
            if before == 0 || left > 0 || is_awaited {
                continue;
            }
            let listens = shm::HEIR_LISTENS;
            let state = &header.heir.state;
            if (state.compare_exchange(listens, shm::HEIR_LEAVES, AcqRel, Relaxed)).is_ok() {
                self.heirs.known[i] = None;
                // The runner may have said so before, and have been answered.
                let _ = header.finish.compare_exchange(0, 1, Release, Relaxed);
                handover::knock_at(&header.heir.name());
            }
        }
    }

    /// The place of a service that has failed is free again, once the runner knows which it was.
    fn give_back(&mut self, i: usize) {
        let heir = &self.shared.heir_header(i).heir;
        if heir.pid.load(Acquire) != shm::HEIR_UNNOTED {
            self.heirs.known[i] = None;
            heir.state.store(shm::HEIR_NONE, Release);
        }
    }

    /// The first service has found all processes over that this one serves, if it has this one end. Those for which nobody has waited look alive here.
    pub(super) fn outlive_all(&mut self) {
        if self.header().heir.state.load(Acquire) == shm::HEIR_LEAVES {
            for i in self.processes.active().to_vec() {
                self.retire(i);
            }
        }
    }

    /// Whether one is about to end.
    pub(super) fn is_heir_leaving(&self) -> bool {
        let state = |i: usize| self.shared.heir_header(i).heir.state.load(Acquire);
        // Such a service has none itself.
        self.ancestor.is_none() && (0..shm::HEIRS).any(|i| state(i) == shm::HEIR_LEAVES)
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
                shm::HEIR_LISTENS => heir.pid.load(Acquire) == shm::HEIR_UNNOTED,
                state => state == shm::HEIR_WANTED || state == shm::HEIR_BEGINS,
            };
            if begins && now - waiting.since < PATIENCE {
                remind |= state == shm::HEIR_WANTED;
                self.heirs.waiting.push(waiting);
            } else if state == shm::HEIR_LISTENS && self.is_right(waiting.heir) {
                self.pass_on(waiting);
            } else if state == shm::HEIR_FAILED && waiting.life.as_ref().is_some_and(life::over) {
                // It may have been over before its rights could be had: others with these may be luckier.
                self.give_back(waiting.heir);
                Shared::refuse(&waiting.memory);
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
        let (Some(known), Some(own)) = (&self.heirs.known[heir], Standing::own()) else {
            return false;
        };
        let known = &known.standing;
        let look = || {
            let its = Watch::of(pid).ok().and_then(|watch| watch.standing());
            let is_right =
                !own.has_capabilities() || its.is_some_and(|its| its.serves(known, &own));
            (is_right, life::of(pid))
        };
        self.heirs.found[heir].get_or_insert_with(look).0
    }

    /// Hands a process on to a service that has its rights, and to nobody else who has taken its place.
    fn pass_on(&mut self, waiting: Waiting) {
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
        } else if let Some(pid) = waiting.numbers.first() {
            self.kernel.follow(waiting.life.as_ref());
            // It may have had others before.
            for known in self.heirs.known.iter_mut().flatten() {
                known.served.retain(|(served, _)| served != pid);
            }
            if let Some(known) = &mut self.heirs.known[waiting.heir] {
                known.served.push((*pid, waiting.life));
            }
        }
    }
}
