//! Threads that issue what is due and wait for what is on its way.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrider_sys::counters;
use outrider_sys::device::DeviceId;
use outrider_sys::raw;

use super::issue::{self, Issue};
use super::queue::{Awaited, Issuing, Job, Outcome};
use super::window::Wait;
use super::{Failure, LONGEST_WAIT, Readahead, Request, Shared, TARDY};
use crate::clock::Clock;
use crate::place::{Spread, Watch};
use crate::shm::lost;

/// What has not arrived after this never will.
const NEVER: Duration = Duration::from_secs(10);
/// What a disk answers within this is waited for in the kernel: a file is held for no longer than that.
const BRIEF: Duration = Duration::from_micros(400);

/// One worker, until the engine is dropped.
pub(super) fn work(shared: &Shared) {
    issue::become_background(shared.settings.io_priority);
    let mut engine = issue::engine(&shared.settings, shared.notes());
    let mut state = shared.lock();
    loop {
        match state.next() {
            Some(Job::Issue(issuing)) => {
                drop(state);
                hand_over(shared, &mut engine, issuing);
                state = shared.lock();
            }
            Some(Job::Await(awaited)) => {
                drop(state);
                wait(shared, engine.arrives(), awaited);
                state = shared.lock();
            }
            None => {
                if state.stop {
                    return;
                }
                // Nothing of it ever arrives: this was the end of the queue.
                if std::mem::take(&mut state.dropped) {
                    state.tell();
                }
                state.idle += 1;
                state = shared.work.wait(state).unwrap_or_else(|e| e.into_inner());
                state.idle -= 1;
            }
        }
    }
}

/// Hands requests to the kernel.
fn hand_over(shared: &Shared, engine: &mut Box<dyn Issue>, issuing: Issuing) {
    let group = issuing.requests();
    let handed = issuing.handed();
    let handle = group.first().map(|first| first.handle.clone());
    let used = handle.as_ref().map(|h| h.enter());
    let watched = Watched::begin(group);
    let began = shared.clock.now();
    let blocks = raw::blocks_read();
    let mut failed = engine.issue(group, handed);
    if failed.iter().any(|(_, f)| *f == Failure::Engine) {
        shared.notes().lose(lost::URING);
        *engine = Box::new(Readahead);
        handed.fetch_sub(group.len() as u64, Ordering::Relaxed);
        failed = engine.issue(group, handed);
    }
    let read = (raw::blocks_read() - blocks) as u64 * 512;
    let read = engine.is_counted().then_some(read);
    drop(used);
    drop(handle);
    let outcome = Outcome {
        failed,
        read,
        began,
    };
    let issued = issuing.settle(outcome, watched, shared.notes());
    shared.lock().issued(issued);
}

/// Waits for what is on its way; for a moment, as others may have to be waited for, too. `seen`: it can be seen whether it has arrived.
fn wait(shared: &Shared, seen: bool, mut awaited: Awaited) {
    let soon = awaited.takes();
    let since = shared.clock.since(awaited.issued());
    let how = Wait {
        patience: LONGEST_WAIT,
        first: soon.unwrap_or_default().saturating_sub(since),
        sleeps: soon.is_some_and(|took| took < BRIEF) || since > TARDY,
    };
    let seen = match seen {
        true => awaited
            .handle()
            .arrives(awaited.last(), how, shared.notes()),
        false => Some(false),
    };
    let now = shared.clock.now();
    if seen.is_none() && now - awaited.issued() < NEVER {
        return shared.lock().waits_on(awaited);
    }
    // Of what never arrives, nothing more is asked.
    let overdue = seen.is_none();
    if overdue {
        awaited.handle().give_up();
    }
    let seen = seen == Some(true);
    let holder = awaited.settle(seen, overdue, now);
    shared.arrived(awaited, seen, holder, now);
}

/// What each disk has read so far, bytes.
pub(super) fn bytes_read(disks: &[u64]) -> Option<Vec<u64>> {
    let read = |d: &u64| counters::read(DeviceId::from_dev(*d)).map(|r| r.bytes);
    disks.iter().map(read).collect()
}

/// A batch by which is learned what lies where.
pub(super) struct Watched {
    spread: Arc<Spread>,
    addresses: Range<u64>,
    watch: Watch,
}

impl Watched {
    /// Looks at the disks' counters before a group goes out, unless it is known where its first run lies or there is only one disk.
    fn begin(group: &[Request]) -> Option<Watched> {
        let first = group.first()?;
        let spread = first.handle.spread.get()?.as_ref()?;
        let mut run = first.range.clone();
        for next in group.iter().skip(1) {
            if next.range.start != run.end {
                break;
            }
            run.end = next.range.end;
        }
        let addresses = first.handle.addresses(&run)?;
        let watch = spread.issued(&addresses, bytes_read)?;
        Some(Watched {
            spread: spread.clone(),
            addresses,
            watch,
        })
    }

    /// Looks again after it has arrived.
    pub(super) fn end(self, arrived: bool) -> Option<u64> {
        let after = if arrived {
            bytes_read(self.spread.disks())
        } else {
            None
        };
        self.spread.arrived(self.watch, self.addresses, after)
    }
}
