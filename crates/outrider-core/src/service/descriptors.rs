//! What is known of a descriptor of a program: how it is read, and what its hook need not tell.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::InodeKey;

use super::interarrival::Interarrival;
use super::sampling::Sampling;
use crate::engine::Overtaken;
use crate::shared::Shared;
use crate::shm::{Proc, Slot};
use crate::source::{Detector, Stream, between};

/// Changes of how rarely a descriptor is listened to that are remembered while events from before are on their way.
const CHANGES: usize = 64;

/// How rarely reads were told until something else was agreed on.
#[derive(Clone, Copy)]
pub(super) struct Agreement {
    /// Reads that are not told after each that is.
    pub(super) rarely: u16,
    /// The place in the queue from which on it no longer holds.
    pub(super) until: u32,
    /// Of those after the last one that was told so many were told all the same, or have been counted already.
    pub(super) unused: u16,
}

/// Of a descriptor whose file is left to the hook, what is counted of the reads that were not told until then.
#[derive(Clone, Copy)]
pub(super) enum Settled {
    /// All of them. A single stream has come to byte `end` in steps of so many bytes, and so many reads may follow before one is told that
    /// doesn't know yet.
    Stream { end: u64, step: u64, left: u16 },
    /// All of them.
    All,
}

pub(super) struct Desc {
    pub(super) generation: u32,
    pub(super) key: InodeKey,
    pub(super) detector: Detector,
    /// Where the last read ended, told or not, when it was last looked.
    pub(super) last: u64,
    pub(super) skip_given: u32,
    /// Reads in no order that came too fast to be looked at, since the last that was.
    pub(super) overlooked: u64,
    /// What was asked for last was cached already.
    pub(super) cached: bool,
    /// Reads in succession, of those that were told, with everything cached far ahead of them.
    pub(super) calm: u32,
    /// Reads that are not told after each that is.
    pub(super) rarely: u16,
    /// What was agreed on before, for events that were on their way when it changed.
    pub(super) before: VecDeque<Agreement>,
    /// The place in the queue of its last read that was told.
    pub(super) place: u32,
    /// What was counted when the file was left to the hook.
    pub(super) settled: Option<Settled>,
    /// How often it is worth listening.
    pub(super) sampling: Sampling,
    /// How fast it is read where nothing is cached.
    pub(super) interarrival: Interarrival,
}

impl Desc {
    pub(super) fn new(generation: u32, key: InodeKey, detector: Detector) -> Desc {
        Desc {
            generation,
            key,
            detector,
            last: 0,
            skip_given: 0,
            overlooked: 0,
            cached: false,
            calm: 0,
            rarely: 0,
            before: VecDeque::new(),
            place: 0,
            settled: None,
            sampling: Sampling::default(),
            interarrival: Interarrival::default(),
        }
    }

    /// Whether an event with these bits of a generation is one of this descriptor's.
    pub(super) fn is_of(&self, generation: u8) -> bool {
        self.generation as u8 == generation
    }

    /// Reads that are not told after its last one, by what was agreed on when that was told.
    pub(super) fn agreed(&self) -> u16 {
        let mut before = self.before.iter();
        let before = before.find(|b| b.until.wrapping_sub(self.place) as i32 > 0);
        before.map_or(self.rarely, |b| b.rarely)
    }

    /// Reads that were not told before the one that was just taken from `queue`.
    pub(super) fn unheard(&mut self, queue: &Proc) -> u16 {
        let mut unheard = self.agreed();
        let mut last = self.place;
        let (taken, _) = queue.places();
        self.place = taken.wrapping_sub(1);
        let is_over = |until: u32| until.wrapping_sub(self.place) as i32 <= 0;
        while let Some(over) = self.before.front().copied().filter(|b| is_over(b.until)) {
            self.before.pop_front();
            // It held for the last one that was told, and ended before this one.
            if over.until.wrapping_sub(last) as i32 > 0 {
                unheard = over.rarely.saturating_sub(over.unused);
                last = self.place;
            }
        }
        unheard
    }

    /// The same before a read at `offset`, of which its streams learn.
    pub(super) fn catch_up(&mut self, offset: u64, queue: &Proc) -> u16 {
        let unheard = self.unheard(queue);
        if unheard > 0 {
            self.detector.streams.unheard(offset, unheard.into());
        }
        unheard
    }

    /// What its streams read silently until now, `consumed` reads since the last that was told, which ended at `last`: where reads began, bytes from one to the next,
    /// and of each.
    pub(super) fn silent_reads(
        &self,
        last: u64,
        consumed: u64,
    ) -> Vec<(std::ops::Range<u64>, u64, u64)> {
        // The hook's position tells how far a single stream came; of several it is only known how many reads they made together.
        let alone = self.detector.streams.only().is_some();
        let silent = || self.detector.streams.reading().filter(|s| s.is_silent());
        let streams = silent().count() as u64;
        let span_of = |s: &Stream| {
            let step = s.step();
            // Since it was heard last, all have taken turns.
            let share = (s.untold + consumed) / streams;
            let end = match (alone, s.stride > 0) {
                (true, true) => last,
                (true, false) => last.saturating_sub(s.len),
                (false, true) => s.heard.saturating_add(step.saturating_mul(share + 1)),
                (false, false) => s.heard.saturating_sub(step.saturating_mul(share)),
            };
            let mut span = between(s.last, end, s.len, s.stride);
            if s.stride < 0 {
                // The last read itself was not told either.
                span.start = end;
            }
            (span, step, s.len)
        };
        // Where another one has come already, it took over.
        let is_over = |span: &std::ops::Range<u64>| silent().any(|s| span.contains(&s.last));
        silent()
            .map(span_of)
            .filter(|(span, ..)| alone || !is_over(span))
            .collect()
    }

    /// From what is told next on so many reads are not told after each that is. If that is none, the silence that has begun ends.
    pub(super) fn hear_rarely(&mut self, rarely: u16, slot: &Slot, queue: &Proc) {
        if rarely != self.rarely {
            let (_, until) = queue.places();
            let unused = match rarely {
                0 => slot.skip.swap(0, Relaxed),
                _ => 0,
            };
            if self.before.len() >= CHANGES {
                self.before.pop_front();
            }
            self.before.push_back(Agreement {
                rarely: self.rarely,
                until,
                unused: unused.min(self.rarely.into()) as u16,
            });
            self.rarely = rarely;
        }
        slot.listen_rarely(rarely);
    }
}

/// A reader whose position the hooks publish in its slot.
pub(super) struct Position {
    pub(super) shared: Arc<Shared>,
    pub(super) proc: usize,
    pub(super) fd: u16,
    pub(super) generation: u32,
    pub(super) forward: bool,
}

impl Overtaken for Position {
    fn overtaken(&self, range: &std::ops::Range<u64>) -> bool {
        let Some(slot) = self.shared.proc(self.proc).slots.get(usize::from(self.fd)) else {
            return true;
        };
        if slot.generation.load(Relaxed) != self.generation {
            return true;
        }
        let last = slot.last.load(Relaxed);
        // Backwards `last` is the end of a read that lies below what was passed.
        if self.forward {
            last >= range.end
        } else {
            last <= range.start
        }
    }
}
