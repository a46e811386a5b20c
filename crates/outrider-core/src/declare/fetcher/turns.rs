//! Turns at a disk's head, with the program's other lists and with other processes.
//!
//! Two sweeps at once make the head go to and fro between them, which costs more than either of them. So one process at a time
//! sweeps, while the others' programs use what they have.

use outrider_sys::units::DeviceId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use outrider_sys::peers::{PATIENCE, Turn};

/// A long sweep is interrupted after so long, if others wait. Going there and back costs a disk 20 ms.
const LONGEST: Duration = Duration::from_secs(1);
/// Those who wait look so often, µs.
const LOOK_US: u64 = 1000;
/// Who has given its turn to others waits so long before it asks for the next one.
const PAUSE: Duration = Duration::from_millis(3);

struct Head {
    turn: Option<Turn>,
    /// The list whose turn it is, and since when.
    owner: Option<(usize, Instant)>,
    /// When somebody here began to wait.
    waits: Option<Instant>,
    /// It was asked for in this look.
    asked: bool,
    /// It was waited for in vain, and has not been free since: whoever has it doesn't sweep.
    stuck: bool,
    not_before: Option<Instant>,
}

/// The disks that are swept over.
#[derive(Default)]
pub(super) struct Turns {
    heads: HashMap<DeviceId, Head>,
    naps: bool,
}

impl Turns {
    /// A look at all lists begins; these are left.
    pub fn begin(&mut self, lists: &[usize]) {
        self.naps = false;
        for head in self.heads.values_mut() {
            if head.owner.is_some_and(|(list, _)| !lists.contains(&list)) {
                head.give();
            }
        }
    }

    /// Whether it is the turn of `list` at the disk with device number `dev`. `idle`: all that it has asked for was handed to the disk.
    pub fn take(&mut self, list: usize, dev: DeviceId, idle: bool) -> bool {
        let head = self.heads.entry(dev).or_insert_with(|| Head {
            turn: Turn::at(dev),
            owner: None,
            waits: None,
            asked: false,
            stuck: false,
            not_before: None,
        });
        head.asked = true;
        let now = Instant::now();
        if let Some((owner, since)) = head.owner {
            if owner == list && now - since < LONGEST {
                return true;
            }
            if owner == list {
                if !idle {
                    // What is asked for already comes first.
                    return false;
                }
                head.give();
            }
        }
        let waits = *head.waits.get_or_insert(now);
        let free = head.owner.is_none()
            && head.not_before.is_none_or(|t| t <= now)
            && head.turn.as_mut().is_none_or(Turn::take);
        head.stuck = !free && (head.stuck || now - waits >= PATIENCE);
        if free || head.stuck {
            head.owner = Some((list, now));
            head.waits = None;
            return true;
        }
        self.naps = true;
        false
    }

    /// The disk has a head, as others need not find out again.
    pub fn found(&mut self, dev: DeviceId) {
        if let Some(turn) = self.heads.get_mut(&dev).and_then(|h| h.turn.as_mut()) {
            turn.found();
        }
    }

    /// Whether another process has found that the disk has a head.
    pub fn is_found(&self, dev: DeviceId) -> bool {
        let turn = self.heads.get(&dev).and_then(|h| h.turn.as_ref());
        turn.is_some_and(Turn::is_found)
    }

    /// The list's sweep is over.
    pub fn give(&mut self, list: usize) {
        for head in self.heads.values_mut() {
            if head.owner.is_some_and(|(owner, _)| owner == list) {
                head.give();
            }
        }
    }

    /// There is something to be tried again soon.
    pub fn look_again(&mut self) {
        self.naps = true;
    }

    /// A look at all lists is over. When to look again, µs, if somebody waits.
    pub fn nap(&mut self) -> Option<u64> {
        for head in self.heads.values_mut() {
            if !std::mem::take(&mut head.asked) {
                head.waits = None;
                if let Some(turn) = &mut head.turn {
                    turn.leave();
                }
            }
        }
        self.naps.then_some(LOOK_US)
    }
}

impl Head {
    fn give(&mut self) {
        self.owner = None;
        if self.turn.as_mut().is_some_and(Turn::give) {
            self.not_before = Some(Instant::now() + PAUSE);
        }
    }
}
