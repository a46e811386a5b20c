//! Threads that issue what is due and wait for what is on its way.

use outrider_sys::units::{DeviceId, PAGE};
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use outrider_sys::counters;
use outrider_sys::raw;

use super::issue::{self, Issue};
use super::mapping::Wait;
use super::queue::{Awaited, Issuing, Job, Outcome};
use super::{Failure, LONGEST_WAIT, Readahead, Request, Settings, Shared, TARDY};
use crate::clock::{Clock, Moment, Monotonic};
use crate::device::{Layout, Watch};
use crate::shm::{Notes, lost};

/// A device that is given nothing for a moment, and has nothing left, waits no longer for whoever wanted to look at that: some turns of his. He may have no processor.
const HELD: Duration = Duration::from_millis(1);
/// What has not arrived after this never will.
pub(super) const NEVER: Duration = Duration::from_secs(10);
/// What a disk answers within this is waited for in the kernel: a file is held for no longer than that.
const BRIEF: Duration = Duration::from_micros(400);

/// One worker, until the engine is dropped.
pub(super) fn work(shared: &Shared) {
    let mut worker = Worker::begin(&shared.settings, shared.notes.clone(), shared.clock);
    let counts = shared.counts.lock();
    let mut counts = counts.unwrap_or_else(PoisonError::into_inner);
    counts.extend(counters::of_this_thread());
    drop(counts);
    let mut state = shared.lock();
    loop {
        match state.next() {
            Some(job) => {
                drop(state);
                shared.done(worker.perform(job));
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
                state = match state.holds() {
                    true => {
                        let waited = shared.work.wait_timeout(state, HELD);
                        let (mut state, over) = waited.unwrap_or_else(|e| e.into_inner());
                        if over.timed_out() {
                            state.lets_on();
                        }
                        state
                    }
                    false => shared.work.wait(state).unwrap_or_else(|e| e.into_inner()),
                };
                state.idle -= 1;
            }
        }
    }
}

/// What has become of a job.
pub enum Done {
    /// Requests have been handed to the kernel.
    Issued(Issuing, Outcome),
    /// What was waited for has arrived, or never will.
    Arrived(Awaited, Arrived),
    /// It has not arrived yet.
    Waits(Awaited),
}

/// How a wait ended.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// It was seen to be there; otherwise it could not be seen.
    pub seen: bool,
    /// It never arrives.
    pub overdue: bool,
    /// When that was known.
    pub at: Moment,
}

/// Does jobs, on the thread that made it.
pub struct Worker {
    engine: Box<dyn Issue>,
    notes: Arc<dyn AsRef<Notes> + Send + Sync>,
    clock: Monotonic,
}

impl Worker {
    /// The calling thread becomes a worker.
    pub fn begin(
        settings: &Settings,
        notes: Arc<dyn AsRef<Notes> + Send + Sync>,
        clock: Monotonic,
    ) -> Worker {
        issue::become_background(settings.io_priority);
        Worker {
            engine: issue::engine(settings, (*notes).as_ref()),
            notes,
            clock,
        }
    }

    fn notes(&self) -> &Notes {
        (*self.notes).as_ref()
    }

    /// Does a job. Waiting for an arrival takes a moment, as others may have to be waited for, too.
    pub fn perform(&mut self, job: Job) -> Done {
        match job {
            Job::Issue(issuing) => self.hand_over(issuing),
            Job::Await(awaited) => self.wait(awaited),
        }
    }

    /// Hands requests to the kernel.
    fn hand_over(&mut self, mut issuing: Issuing) -> Done {
        issuing.watched = Watched::begin(issuing.requests());
        let group = issuing.requests();
        let handed = issuing.handed();
        let handle = group.first().map(|first| first.handle.clone());
        let used = handle.as_ref().map(|h| h.enter());
        let began = self.clock.now();
        let ends_in_cached = group.last().is_some_and(|last| {
            let page = last.range.end.saturating_sub(1) / PAGE * PAGE;
            let counted = last.handle.counted(page..page + PAGE);
            counted.is_ok_and(|c| c.cached > 0)
        });
        let blocks = raw::blocks_read();
        let mut failed = self.engine.issue(group, handed);
        if failed.iter().any(|(_, f)| *f == Failure::Engine) {
            self.notes().lose(lost::URING);
            self.engine = Box::new(Readahead);
            handed.remove(group.len() as u64);
            failed = self.engine.issue(group, handed);
        }
        let read = (raw::blocks_read() - blocks) as u64 * 512;
        let read = self.engine.is_counted().then_some(read);
        drop(used);
        drop(handle);
        let outcome = Outcome {
            failed,
            read,
            ends_in_cached,
            began,
        };
        Done::Issued(issuing, outcome)
    }

    /// Waits for what is on its way.
    fn wait(&mut self, awaited: Awaited) -> Done {
        let soon = awaited.takes();
        let since = self.clock.since(awaited.issued());
        let how = Wait {
            patience: LONGEST_WAIT,
            first: soon.unwrap_or_default().saturating_sub(since),
            sleeps: soon.is_some_and(|took| took < BRIEF) || since > TARDY,
        };
        let handle = awaited.handle();
        let seen = match self.engine.arrives() {
            true => handle.arrives(awaited.last(), how, self.notes()),
            false => Some(false),
        };
        let at = self.clock.now();
        if seen.is_none() && at - awaited.issued() < NEVER {
            return Done::Waits(awaited);
        }
        let arrived = Arrived {
            seen: seen == Some(true),
            overdue: seen.is_none(),
            at,
        };
        Done::Arrived(awaited, arrived)
    }
}

/// What each disk has read so far, bytes.
pub(super) fn bytes_read(disks: &[DeviceId]) -> Option<Vec<u64>> {
    let read = |d: &DeviceId| counters::read(*d).map(|r| r.bytes);
    disks.iter().map(read).collect()
}

/// A batch by which is learned what lies where.
pub(super) struct Watched {
    layout: Arc<Layout>,
    addresses: Range<u64>,
    watch: Watch,
}

impl Watched {
    /// Looks at the disks' counters before a group goes out, unless it is known where its first run lies or there is only one disk.
    fn begin(group: &[Request]) -> Option<Watched> {
        let first = group.first()?;
        let layout = first.handle.layout.get()?.as_ref()?;
        let mut run = first.range.clone();
        for next in group.iter().skip(1) {
            if next.range.start != run.end {
                break;
            }
            run.end = next.range.end;
        }
        let addresses = first.handle.addresses(&run)?;
        let watch = layout.issued(&addresses, bytes_read)?;
        Some(Watched {
            layout: layout.clone(),
            addresses,
            watch,
        })
    }

    /// Looks again after it has arrived.
    pub(super) fn end(self, arrived: bool) -> Option<DeviceId> {
        let after = if arrived {
            bytes_read(self.layout.disks())
        } else {
            None
        };
        self.layout.arrived(self.watch, self.addresses, after)
    }
}
