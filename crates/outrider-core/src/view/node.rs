//! One node of the range tree: a contiguous range of units and what is believed about each.
//!
//! Most ranges are dull: read from end to end, or wholly on their way. So a node starts without a
//! bitmap, as "all units are alike", gets one when an event tells its units apart, and drops it when
//! they are alike again. How many units are what is always counted; while there is no bitmap, the
//! counters are also what says what the units are.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::bitmap::{Bitmap, Change, Tally, WORD_UNITS, Word};

/// Missing runs of at least this many units are kept out of nodes: one word of bitmap.
///
/// Memory alone would allow about 300: a node of its own costs [`NODE_BYTES`], bridging costs 24 bytes a
/// word. Smaller nodes mean fewer threads per lock. One value for both, bridging and splitting, keeps
/// the structure from wavering: what is evicted and read again finds the node it had.
pub(super) const GAP_UNITS: u64 = WORD_UNITS;

/// What a node costs besides its bitmap, in bytes: itself, its allocation's header, and its entry in
/// the skeleton at the half-full occupancy that a B-tree guarantees.
pub(super) const NODE_BYTES: usize = size_of::<Node>() + 16 + 2 * 16;

/// A node behind its lock. A cache line of its own: neighbours in the tree belong to different threads.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Node(Mutex<Body>);

impl Node {
    pub fn new(body: Body) -> Self {
        Self(Mutex::new(body))
    }

    /// Locks the node. A thread that panicked in here left at worst a wrong belief behind.
    pub fn lock(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get_mut(&mut self) -> &mut Body {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn into_body(self) -> Body {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The content of a node: units `start..end`. A node holds at most 16384, so counts fit 16 bits.
#[derive(Debug)]
pub(super) struct Body {
    start: u64,
    end: u64,
    touched_us: u64,
    /// Bit 0 is the unit `start` rounded down to a whole word, so that the bitmaps of any two nodes
    /// can be joined and cut word by word. Bits outside of `start..end` are zero.
    bits: Option<Bitmap>,
    present: u16,
    in_flight: u16,
    unused: u16,
}

/// `at` rounded down to a whole word.
fn word_floor(at: u64) -> u64 {
    at - at % WORD_UNITS
}

impl Body {
    /// A node that covers nothing yet, at `at`.
    pub fn empty_at(at: u64) -> Self {
        Self {
            start: at,
            end: at,
            touched_us: 0,
            bits: None,
            present: 0,
            in_flight: 0,
            unused: 0,
        }
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn present(&self) -> u64 {
        u64::from(self.present)
    }

    pub fn in_flight(&self) -> u64 {
        u64::from(self.in_flight)
    }

    pub fn unused(&self) -> u64 {
        u64::from(self.unused)
    }

    pub fn touched_us(&self) -> u64 {
        self.touched_us
    }

    /// Notes a touch at `now_us`; time does not run backward.
    pub fn touch(&mut self, now_us: u64) {
        self.touched_us = self.touched_us.max(now_us);
    }

    /// Bytes of memory, with the bookkeeping around the node.
    pub fn memory_bytes(&self) -> usize {
        NODE_BYTES + self.bits.as_ref().map_or(0, |bits| bits.heap_bytes() + 16)
    }

    fn len(&self) -> u64 {
        self.end - self.start
    }

    fn position(&self, unit: u64) -> usize {
        (unit - word_floor(self.start)) as usize
    }

    fn positions(&self, units: &Range<u64>) -> Range<usize> {
        self.position(units.start)..self.position(units.end)
    }

    /// `units` cut to the node.
    pub fn clip(&self, units: &Range<u64>) -> Range<u64> {
        let start = units.start.clamp(self.start, self.end);
        start..units.end.clamp(start, self.end)
    }

    /// What each unit is, while there is no bitmap.
    fn alike(&self) -> Word {
        Word {
            present: u64::from(self.present > 0),
            in_flight: u64::from(self.in_flight > 0),
            unused: u64::from(self.unused > 0),
        }
    }

    /// One unit, as bit 0 of a word.
    pub fn unit(&self, unit: u64) -> Word {
        if !(self.start..self.end).contains(&unit) {
            return Word::default();
        }
        self.bits
            .as_ref()
            .map_or_else(|| self.alike(), |bits| bits.get(self.position(unit)))
    }

    /// Counts the units of `units` that lie in the node.
    pub fn count(&self, units: &Range<u64>) -> Tally {
        let units = self.clip(units);
        match &self.bits {
            Some(bits) => bits.count(self.positions(&units)),
            None => Tally::of_alike(self.alike(), self.alike(), units.end - units.start),
        }
    }

    fn set_counts(&mut self, present: u64, in_flight: u64, unused: u64) {
        let narrow = |count: u64| u16::try_from(count).unwrap_or(u16::MAX);
        self.present = narrow(present);
        self.in_flight = narrow(in_flight);
        self.unused = narrow(unused);
    }

    /// Lets an event happen to `units`, growing the node to cover them. The caller made sure that this
    /// is its place: same segment, no other node in between, and no gap that is too wide.
    ///
    /// `segment_end`, in units, is how far the node can ever grow.
    pub fn apply(&mut self, units: &Range<u64>, change: Change, segment_end: u64) -> Tally {
        if units.is_empty() {
            return Tally::default();
        }
        if let Some(tally) = self.apply_alike(units, change) {
            return tally;
        }
        self.cover(
            self.start.min(units.start),
            self.end.max(units.end),
            segment_end,
        );
        let positions = self.positions(units);
        let Some(bits) = &mut self.bits else {
            return Tally::default();
        };
        let tally = bits.apply(positions, change);
        self.set_counts(
            self.present() + tally.present - tally.was_present,
            self.in_flight() + tally.in_flight - tally.was_in_flight,
            self.unused() + tally.unused - tally.was_unused,
        );
        self.drop_bits_if_alike();
        tally
    }

    /// [`apply`](Self::apply) where the node has no bitmap and needs none afterwards.
    fn apply_alike(&mut self, units: &Range<u64>, change: Change) -> Option<Tally> {
        if self.bits.is_some() {
            return None;
        }
        let own = self.alike();
        let inside = self.clip(units);
        let inside = inside.end - inside.start;
        let outside = units.end - units.start - inside;
        let inside_after = change.on(own, 1);
        let outside_after = change.on(Word::default(), 1);
        if self.len() > 0 {
            let apart = units.start > self.end || units.end < self.start;
            let rest_differs = inside < self.len() && inside > 0 && inside_after != own;
            let grown = if inside > 0 { inside_after } else { own };
            if apart || rest_differs || (outside > 0 && outside_after != grown) {
                return None;
            }
        }
        let mut tally = Tally::of_alike(own, inside_after, inside);
        tally += Tally::of_alike(Word::default(), outside_after, outside);
        self.start = self.start.min(units.start);
        self.end = self.end.max(units.end);
        self.set_counts(
            self.present() + tally.present - tally.was_present,
            self.in_flight() + tally.in_flight - tally.was_in_flight,
            self.unused() + tally.unused - tally.was_unused,
        );
        Some(tally)
    }

    /// Gives the node a bitmap, and one that covers `start..end`, a range around its own.
    fn cover(&mut self, start: u64, end: u64, segment_end: u64) {
        let base = word_floor(start);
        let words = |to: u64| (to - base).div_ceil(WORD_UNITS) as usize;
        match &mut self.bits {
            Some(bits) => {
                bits.prepend(((word_floor(self.start) - base) / WORD_UNITS) as usize);
                bits.extend_to(words(end), words(segment_end));
            }
            None => {
                let mut bits = Bitmap::new(words(end));
                let own = (self.start - base) as usize..(self.end - base) as usize;
                bits.fill(own, self.alike());
                self.bits = Some(bits);
            }
        }
        self.start = start;
        self.end = end;
    }

    /// Takes in another node of the same segment that lies wholly to the right.
    pub fn absorb(&mut self, other: Body, segment_end: u64) {
        if self.len() == 0 {
            *self = other;
            return;
        }
        self.cover(
            self.start.min(other.start),
            self.end.max(other.end),
            segment_end,
        );
        let at = self.position(word_floor(other.start));
        let own = self.positions(&(other.start..other.end));
        if let Some(bits) = &mut self.bits {
            match &other.bits {
                Some(theirs) => bits.merge(theirs, at / WORD_UNITS as usize),
                None => bits.fill(own, other.alike()),
            }
        }
        self.set_counts(
            self.present() + other.present(),
            self.in_flight() + other.in_flight(),
            self.unused() + other.unused(),
        );
        self.touch(other.touched_us);
    }

    fn drop_bits_if_alike(&mut self) {
        let len = self.len();
        let all_or_none = |count: u64| count == 0 || count == len;
        if all_or_none(self.present())
            && all_or_none(self.in_flight())
            && all_or_none(self.unused())
        {
            self.bits = None;
        }
    }

    /// Calls `found` with each maximal missing run in `units`, in order, until it returns false.
    /// Returns false if it did. `units` must lie in the node.
    pub fn missing_runs(
        &self,
        units: &Range<u64>,
        mut found: impl FnMut(Range<u64>) -> bool,
    ) -> bool {
        if units.is_empty() {
            return true;
        }
        let Some(bits) = &self.bits else {
            return self.alike().known() != 0 || found(units.clone());
        };
        let base = word_floor(self.start);
        let Range { start: mut at, end } = self.positions(units);
        while let Some(start) = bits.first_missing(at..end) {
            at = bits.first_known(start..end).unwrap_or(end);
            if !found(base + start as u64..base + at as u64) {
                return false;
            }
        }
        true
    }

    /// Whether, after units in `units` became missing, the node has missing units at an end or a
    /// missing run in there that is long enough to split it.
    pub fn wants_tidying(&self, units: &Range<u64>) -> bool {
        let Some(bits) = &self.bits else {
            return self.alike().known() == 0;
        };
        let own = self.positions(&(self.start..self.end));
        if bits.get(own.start).known() == 0 || bits.get(own.end - 1).known() == 0 {
            return true;
        }
        let base = word_floor(self.start);
        let around = self.positions(&self.clip(units));
        let from = bits.last_known_before(around.start).unwrap_or(own.start);
        let to = bits.first_known(around.end..own.end).unwrap_or(own.end);
        let around = base + from as u64..base + to as u64;
        !self.missing_runs(&around, |run| run.end - run.start < GAP_UNITS)
    }

    /// Cuts the node at its long missing runs and trims its ends: what is left is zero or more nodes,
    /// left to right.
    pub fn tidied(self) -> Vec<Body> {
        let Some(bits) = &self.bits else {
            let known = self.alike().known() != 0;
            return if known { vec![self] } else { Vec::new() };
        };
        let base = word_floor(self.start);
        let end = self.position(self.end);
        let mut bodies = Vec::new();
        let mut next = bits.first_known(self.position(self.start)..end);
        while let Some(start) = next {
            let mut last_end = start;
            loop {
                last_end = bits.first_missing(last_end..end).unwrap_or(end);
                next = bits.first_known(last_end..end);
                match next {
                    Some(known) if ((known - last_end) as u64) < GAP_UNITS => last_end = known,
                    _ => break,
                }
            }
            // Two pieces never share a word: at least GAP_UNITS, a whole word, lie between them.
            let count = bits.count(start..last_end);
            let mut body = Body {
                start: base + start as u64,
                end: base + last_end as u64,
                touched_us: self.touched_us,
                bits: Some(bits.copy_words(start..last_end)),
                ..Body::empty_at(0)
            };
            body.set_counts(count.present, count.in_flight, count.unused);
            body.drop_bits_if_alike();
            bodies.push(body);
        }
        bodies
    }

    /// Compares what is counted with what is there.
    pub fn check(&self) -> Result<(), String> {
        let name = format!("node {}..{}", self.start, self.end);
        if self.start >= self.end {
            return Err(format!("{name} is empty"));
        }
        let Some(bits) = &self.bits else {
            let counts = [self.present(), self.in_flight(), self.unused()];
            let alike = counts
                .iter()
                .all(|count| *count == 0 || *count == self.len());
            let sound = self.present == 0 || self.in_flight == 0;
            return if alike && sound {
                Ok(())
            } else {
                Err(format!("{name}: alike, counts {counts:?}"))
            };
        };
        let own = self.positions(&(self.start..self.end));
        if !bits.is_sound(own.clone()) {
            return Err(format!("{name}: unsound bitmap"));
        }
        let count = bits.count(own);
        if (count.present, count.in_flight, count.unused)
            != (self.present(), self.in_flight(), self.unused())
        {
            return Err(format!("{name}: counts differ from {count:?}"));
        }
        Ok(())
    }
}
