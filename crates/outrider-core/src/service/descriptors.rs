//! What is known of a descriptor of a program: how it is read, and what its hook need not tell.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outrider_sys::units::{ByteRange, InodeKey};

use super::decide::Silence;
use super::interarrival::Interarrival;
use super::sampling::{READS, Sampling};
use crate::asked::{Overtaken, Reader, When};
use crate::clock::Moment;
use crate::shared::Shared;
use crate::shm::{Proc, Slot};
use crate::source::{Detector, Limits, Stream, between};

/// Changes of how rarely a descriptor is listened to that are remembered while events from before are on their way.
const CHANGES: usize = 64;

/// Between two looks at whether a descriptor's reads go past the page cache, each of which takes some 5 µs: a two-thousandth of a processor.
const LOOK: Duration = Duration::from_millis(10);

/// How rarely reads were told until something else was agreed on.
#[derive(Clone, Copy)]
struct Agreement {
    /// Reads that are not told after each that is.
    rarely: u16,
    /// The place in the queue from which on it no longer holds.
    until: u32,
    /// Of those after the last one that was told so many were told all the same, or have been counted already.
    unused: u16,
}

/// Of a descriptor whose file is left to the hook, what is counted of the reads that were not told until then.
#[derive(Clone, Copy)]
enum Settled {
    /// All of them. A single stream has come to byte `end` in steps of so many bytes, and so many reads may follow before one is told that
    /// doesn't know yet.
    Stream { end: u64, step: u64, left: u16 },
    /// All of them.
    All,
}

/// Reads that were not told: where they began, bytes from one to the next, and of each.
pub(super) type Silent = (ByteRange, u64, u64);

/// What is known of a descriptor.
pub(super) struct Desc {
    pub(super) generation: u32,
    pub(super) key: InodeKey,
    pub(super) detector: Detector,
    /// Where the last read ended, told or not, when it was last looked.
    last: u64,
    skip_given: u32,
    /// Reads in no order that came too fast to be looked at, since the last that was.
    overlooked: u64,
    /// What was asked for last was cached already.
    cached: bool,
    /// Reads in succession, of those that were told, with everything cached far ahead of them.
    calm: u32,
    /// Reads that are not told after each that is.
    rarely: u16,
    /// What was agreed on before, for events that were on their way when it changed.
    before: VecDeque<Agreement>,
    /// The place in the queue of its last read that was told.
    place: u32,
    /// What was counted when the file was left to the hook.
    settled: Option<Settled>,
    /// How often it is worth listening.
    sampling: Sampling,
    /// How fast it is read where nothing is cached.
    interarrival: Interarrival,
    /// An epoch that had begun before the last read that was told.
    heard: u64,
    /// Where a call begins that copies within the kernel, bytes, and when that was told.
    copy: Option<(u64, When)>,
    /// When it was last looked whether its reads go past the page cache.
    looked: Option<Moment>,
}

/// Reads that were not told before one that was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Untold {
    /// Reads that were agreed on not to be told.
    pub(super) given: u32,
    /// Of reads that are told rarely, as many as were agreed on between two that are.
    pub(super) rarely: u16,
    /// In all.
    pub(super) skipped: u64,
    /// Those that came too fast to be looked at.
    pub(super) overlooked: u64,
}

impl Untold {
    /// Whether the read came right after another one that was looked at.
    pub(super) fn is_none(&self) -> bool {
        self.skipped + self.overlooked == 0
    }
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
            heard: 0,
            copy: None,
            looked: None,
        }
    }

    /// Whether it is time to look whether its reads go past the page cache. Not at its first read: the file was looked at when it was opened.
    pub(super) fn is_to_be_looked_at(&mut self, now: Moment) -> bool {
        let looked = *self.looked.get_or_insert(now);
        let due = now - looked >= LOOK;
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// A call is about to copy what lies there within the kernel.
    pub(super) fn copies(&mut self, offset: u64, told: When) {
        self.copy = Some((offset, told));
    }

    /// Whether a call was about to copy some of it within the kernel.
    pub(super) fn is_copied(&self) -> bool {
        self.copy.is_some()
    }

    /// When the program asked for what a read at `offset` has told that it has copied within the kernel.
    pub(super) fn copied(&self, offset: u64) -> When {
        match self.copy {
            Some((begin, told)) if begin == offset => told,
            // After the last read that was told.
            _ => When::Since {
                epoch: self.heard,
                reader: None,
            },
        }
    }

    /// A read was told before which this epoch had begun: the one before the last.
    pub(super) fn hears(&mut self, epoch: u64) -> u64 {
        std::mem::replace(&mut self.heard, epoch)
    }

    /// An epoch that had begun before the last read that was told.
    pub(super) fn heard_after(&self) -> u64 {
        self.heard
    }

    /// Whether an event with these bits of a generation is one of this descriptor's.
    pub(super) fn is_of(&self, generation: u8) -> bool {
        self.generation as u8 == generation
    }

    /// Its last read, told or not, ended there. Whether it has read since that was asked last.
    pub(super) fn has_come_to(&mut self, last: u64) -> bool {
        std::mem::replace(&mut self.last, last) != last
    }

    /// Reads that are not told after each that is.
    pub(super) fn rarely(&self) -> u16 {
        self.rarely
    }

    /// How fast it is read where nothing is cached.
    pub(super) fn interarrival(&self) -> Interarrival {
        self.interarrival
    }

    /// A read was told after others that were not. `beside`: requests of ours are on their way.
    pub(super) fn told(&mut self, alike: bool, beside: bool, now: Moment) {
        self.interarrival.told(alike, beside, now);
    }

    /// A read was told, in an order that is worth hearing or not: how many of the next need not be told.
    pub(super) fn heard(&mut self, ordered: bool) -> u32 {
        self.sampling.tried(ordered, &READS)
    }

    /// What was asked for was cached already, or not.
    pub(super) fn found_cached(&mut self, cached: bool) {
        self.cached = cached;
    }

    /// Whether what was asked for last was cached already.
    pub(super) fn is_cached(&self) -> bool {
        self.cached
    }

    /// Everything was found cached far ahead of a read that was told, or not: in how many in succession that was so.
    pub(super) fn calms(&mut self, calm: bool) -> u32 {
        self.calm = if calm { self.calm + 1 } else { 0 };
        self.calm
    }

    /// Nothing counts as asked for any more beyond where each stream is, and each read is to be heard.
    pub(super) fn ask_again(&mut self, limits: &Limits) {
        self.detector.streams.shrink(limits);
        self.detector.streams.go_back();
        (self.calm, self.cached, self.skip_given) = (0, false, 0);
    }

    /// Its file is left to the hook: what is foreseen begins anew, and what was agreed on and counted is kept for what is still on its way.
    pub(super) fn begin_anew(&mut self, limits: &Limits) {
        let new = Desc::new(self.generation, self.key, Detector::new(limits));
        let old = std::mem::replace(self, new);
        (self.before, self.place, self.settled) = (old.before, old.place, old.settled);
        if let (Some(last), Some(_)) = (self.before.back_mut(), self.settled) {
            last.unused = last.rarely;
        }
    }

    /// Reads that may have been made since the last that was told, by what was agreed on.
    pub(super) fn may_have_made(&self) -> u64 {
        match self.agreed() {
            0 => self.skip_given.into(),
            rarely => rarely.into(),
        }
    }

    /// A read at `offset` was told through `queue`, with `left` reads more that need not have been: those that were not told before it.
    pub(super) fn take_in(&mut self, offset: u64, left: u32, queue: &Proc) -> Untold {
        // Events that were on their way when the silence was agreed on come first; only what was used of it counts.
        let given = std::mem::take(&mut self.skip_given);
        let rarely = self.catch_up(offset, queue);
        let skipped = match rarely {
            0 if left == 0 => u64::from(given),
            rarely => u64::from(rarely),
        };
        Untold {
            given,
            rarely,
            skipped,
            overlooked: std::mem::take(&mut self.overlooked),
        }
    }

    /// A read that came too fast to be looked at. Whether one of its streams goes on with it.
    pub(super) fn overlook(&mut self, offset: u64, thread: u64, queue: &Proc) -> bool {
        self.catch_up(offset, queue);
        let followed = self.detector.streams.glance(offset, thread);
        self.overlooked += u64::from(!followed);
        followed
    }

    /// Its file is left to the hook: what it has read until now, as [`Desc::silent_reads`], which does not count once more when it is told.
    pub(super) fn settle(&mut self, slot: &Slot, queue: &Proc) -> Vec<Silent> {
        let last = slot.last.load(Relaxed);
        let left = slot.skip.load(Relaxed).min(self.agreed().into());
        if let Some(s) = self.detector.streams.going() {
            let span = between(s.last, last, s.len, s.stride);
            let (step, len) = (s.step(), s.len);
            self.settled = Some(Settled::Stream {
                end: last,
                step,
                left: left as u16,
            });
            return vec![(span, len, len)];
        }
        // What waits there is counted by itself, and its silence with it.
        let settles = queue.waiting() == 0;
        let consumed = match settles {
            true => u64::from(self.agreed()).saturating_sub(left.into()),
            false => 0,
        };
        let silent = self.silent_reads(last, consumed);
        self.settled = (settles && !silent.is_empty()).then_some(Settled::All);
        silent
    }

    /// A read at `offset` was told before its file was left to the hook: how many reads it stands for that have not been counted.
    pub(super) fn told_before(&mut self, offset: u64, queue: &Proc) -> u64 {
        let unheard = u64::from(self.unheard(queue));
        match self.settled {
            Some(Settled::Stream { end, .. }) if offset < end => 0,
            Some(Settled::Stream { end, step, left }) => {
                self.settled = Some(Settled::All);
                1 + ((offset - end) / step.max(1)).min(left.into())
            }
            _ => 1 + unheard,
        }
    }

    /// Agrees with the hook on what need not be told after the last read. `given` reads had been agreed on when that was told.
    pub(super) fn agree(&mut self, silence: Silence, given: u32, slot: &Slot, queue: &Proc) {
        if silence.rarely == 0 && self.rarely > 0 {
            self.calm = 0;
        }
        self.hear_rarely(silence.rarely, slot, queue);
        // While a silence is being used up only reads arrive that were told before it: they don't end it.
        let left = slot.skip.load(Relaxed);
        let skip = if left > 0 { left } else { silence.skip };
        let quiet = silence.quiet;
        let (start, len) = (quiet.start, quiet.end.saturating_sub(quiet.start));
        self.skip_given = if left > 0 { given } else { skip };
        // What is being used up the hook counts off meanwhile, and each read that is told rarely begins a silence of its own: neither is this one's to end.
        slot.quiet(start, len);
        if left == 0 && !slot.skips(skip) {
            self.skip_given = given;
        }
    }

    /// Reads that are not told after its last one, by what was agreed on when that was told.
    fn agreed(&self) -> u16 {
        let mut before = self.before.iter();
        let before = before.find(|b| b.until.wrapping_sub(self.place) as i32 > 0);
        before.map_or(self.rarely, |b| b.rarely)
    }

    /// Reads that were not told before the one that was just taken from `queue`.
    fn unheard(&mut self, queue: &Proc) -> u16 {
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
    fn catch_up(&mut self, offset: u64, queue: &Proc) -> u16 {
        let unheard = self.unheard(queue);
        if unheard > 0 {
            self.detector.streams.unheard(offset, unheard.into());
        }
        unheard
    }

    /// What its streams read silently until now, `consumed` reads since the last that was told, which ended at `last`.
    pub(super) fn silent_reads(&self, last: u64, consumed: u64) -> Vec<Silent> {
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
        let is_over = |span: &ByteRange| silent().any(|s| span.contains(&s.last));
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
    /// Bytes of its reads.
    pub(super) len: u64,
    /// Bytes of a long read, else 0: it waits for one part after the other, and has not come to its end when that is published.
    pub(super) long: u64,
}

impl Overtaken for Position {
    fn overtaken(&self, range: &ByteRange) -> bool {
        let Some(slot) = self.shared.proc(self.proc).slots.get(usize::from(self.fd)) else {
            return true;
        };
        if slot.generation.load(Relaxed) != self.generation {
            return true;
        }
        let last = slot.last.load(Relaxed);
        // Backwards `last` is the end of a read that lies below what was passed.
        if self.forward {
            last.saturating_sub(self.long) >= range.end
        } else {
            last <= range.start
        }
    }

    fn has_asked(&self, range: &ByteRange) -> Option<ByteRange> {
        let slot = self
            .shared
            .proc(self.proc)
            .slots
            .get(usize::from(self.fd))?;
        let same = slot.generation.load(Relaxed) == self.generation;
        let last = slot.last.load(Relaxed);
        same.then(|| match self.forward {
            true => range.start..last.clamp(range.start, range.end),
            // Where a read ends is published, and not where it begins.
            false => {
                let begin = last.saturating_sub(2 * self.len);
                begin.clamp(range.start, range.end)..range.end
            }
        })
    }

    fn who(&self) -> Option<Reader> {
        Some((self.proc, self.fd, self.generation))
    }
}
