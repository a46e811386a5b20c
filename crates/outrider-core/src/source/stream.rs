//! One stream: reads at a constant distance, or of such as skip some of what lies between.
//!
//! *Is there a pattern?* is the paper's question: an n-bit saturating counter per stream climbs while reads go on as expected and falls when they don't, and its
//! value names the state, from highly random to definitely sequential. *How far ahead?* is not the paper's. There the window doubles with the counter; here it
//! doubles when the program had to wait for a page (it was late), because a window that nobody waits for is as large as it needs to be, whatever the pattern; and of that
//! there is asked for what can be paid for ([`Credit`](super::credit::Credit)).

use outrider_sys::units::{ByteRange, PAGE};

use super::counter::Counter;
use super::credit::Stake;
use super::recogniser::{Arrival, Limits, Passed, Read, between};
use super::skip_sequential::Gaps;
use super::tiled::Tiles;
use crate::device::WINDOWS;

/// Bytes of a file that a program has read, at most, before a service that has just been started hears of it.
const UNSEEN: u64 = 2 << 20;
/// Most reads that a strided window holds; bounds the work of one event.
const MAX_STEPS: u64 = 2048;
/// Bytes that are looked ahead at most, beyond what can be paid for, where a file is read from its beginning.
const MOST: u64 = 8 << 20;
/// Reads that were told within which one is recent.
const RECENT: u64 = 64;

/// One run of reads at a constant distance.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Bytes from the start of one read to the start of the next; negative when reading backwards.
    pub stride: i64,
    /// Bytes of the longest recent read.
    pub len: u64,
    /// Start of the last read known, bytes.
    pub last: u64,
    /// Thread that made it.
    pub(super) thread: u64,
    pub(super) counter: Counter,
    /// Look-ahead distance: bytes of data asked for and not yet read.
    pub distance: u64,
    /// How far reads were foreseen and asked for: everything up to here forwards, down to here backwards.
    pub front: u64,
    /// Reads so far that were foreseen by this stream.
    pub reads: u64,
    /// Where it may have gone on silently since its last read; empty after a read that came out of such silence.
    pub(super) quiet: ByteRange,
    /// The silence that its latest read has ended, if it has: until that was looked at, reads that followed it could be silent.
    pub(super) lapsed: ByteRange,
    /// Others are silent with it.
    pub(super) together: bool,
    /// Start of the last read that was told, looked at or not, bytes.
    pub heard: u64,
    /// Reads of all streams that were not told since then, at most, where it is known how many.
    pub(super) unheard: u64,
    /// The same since it was told last, looked at or not.
    pub untold: u64,
    /// Its last read was exactly the expected one.
    pub(super) proven: bool,
    /// Where the run began that it is in.
    pub(super) begun: u64,
    /// Its steps, where they differ and all that lies ahead is read.
    pub(super) gaps: Option<Gaps>,
    /// As much of that as can be paid for.
    pub(super) granted: u64,
    /// The kernel's own readahead does as well.
    pub(super) left: bool,
    /// What was staked on what is ahead.
    pub(super) stake: Stake,
    /// The latest two of its reads before which another stream was read.
    pub(super) switched: [u64; 2],
    /// For replacing the stream that was not used for the longest time.
    pub(super) tick: u64,
}

impl Stream {
    /// One of reads that are `stride` bytes apart and `len` long, of which one at `offset` is the next.
    pub(super) fn new(
        offset: u64,
        stride: i64,
        len: u64,
        thread: u64,
        counter: Counter,
        tick: u64,
    ) -> Stream {
        Stream {
            stride,
            len,
            last: offset.wrapping_sub(stride as u64),
            thread,
            counter,
            distance: 0,
            front: offset,
            reads: 0,
            quiet: 0..0,
            lapsed: 0..0,
            together: false,
            heard: 0,
            unheard: 0,
            untold: 0,
            proven: false,
            begun: offset,
            gaps: None,
            granted: u64::MAX,
            left: false,
            stake: Stake::default(),
            switched: [0; 2],
            tick,
        }
    }

    /// Whether reads of this stream touch or overlap, or lie so near to one another that what is between is read too: then the file is needed as
    /// a whole.
    pub fn dense(&self) -> bool {
        self.stride.unsigned_abs() <= self.len
    }

    /// Whether reads touch and go forward: the kernel's own readahead sees as much.
    pub fn plain(&self) -> bool {
        self.dense() && self.stride > 0 && self.gaps.is_none()
    }

    /// Whether the kernel's own readahead serves it, and nothing is asked for ahead of it.
    pub fn is_left(&self) -> bool {
        self.plain() && self.granted == 0
    }

    /// From one read to the next, bytes; on average, where that differs.
    pub fn step(&self) -> u64 {
        match &self.gaps {
            Some(gaps) => gaps.step().max(self.len + 1),
            None => self.stride.unsigned_abs(),
        }
    }

    /// The reads that it must have made silently before one at `offset`.
    pub(super) fn passed(&self, offset: u64) -> Option<Passed> {
        let ahead = offset.wrapping_sub(self.last) as i64;
        if let Some(gaps) = &self.gaps {
            // About as many as would lie there.
            let span = match self.stride > 0 {
                true => self.last.saturating_add(gaps.step())..offset,
                false => offset.saturating_add(gaps.step())..self.last,
            };
            return (!self.quiet.is_empty() && span.start < span.end).then(|| Passed {
                span,
                stride: self.step(),
                len: self.len,
            });
        }
        (self.reads > 0 && ahead != self.stride && ahead != 0).then(|| Passed {
            span: between(self.last, offset, self.len, self.stride),
            stride: self.stride.unsigned_abs(),
            len: self.len,
        })
    }

    /// A read at `offset` is the next of a stream that skips: what was left out since the last.
    pub(super) fn skip(&mut self, offset: u64) -> ByteRange {
        let Some(gaps) = self.gaps.as_mut().filter(|_| self.reads > 0) else {
            return 0..0;
        };
        let (low, high) = (self.last.min(offset), self.last.max(offset));
        if !self.quiet.is_empty() {
            gaps.silence();
        } else if let Some(stride) = gaps.next(high - low) {
            // What lies between two reads isn't needed.
            self.gaps = None;
            self.stride = self.stride.signum() * stride as i64;
            self.front = match self.stride > 0 {
                true => offset.saturating_add(stride),
                false => offset,
            };
        }
        low.saturating_add(self.len).min(high)..high
    }

    /// Whether its last read was exactly the expected one, and not the first few.
    pub fn is_proven(&self) -> bool {
        self.proven
    }

    /// Whether it may have gone on without being told.
    pub fn is_silent(&self) -> bool {
        !self.quiet.is_empty()
    }

    /// Whether it may be at `offset`, with no more reads than were not told.
    pub(super) fn comes_to(&self, offset: u64) -> bool {
        let ahead = match self.stride > 0 {
            true => offset.checked_sub(self.last),
            false => self.last.checked_sub(offset),
        };
        let step = self.step().max(1);
        ahead.is_some_and(|ahead| {
            ahead > 0 && ahead.is_multiple_of(step) && ahead / step <= self.unheard + 1
        })
    }

    /// It has read on to `offset` in silence: what lies before need not be asked for any more.
    pub(super) fn moves_on(&mut self, offset: u64) {
        self.quiet = self.last.min(offset)..self.last.max(offset).saturating_add(self.len);
        self.front = match self.stride > 0 {
            true => self.front.max(offset),
            false => self.front.min(offset.saturating_add(self.len)),
        };
    }

    /// Whether a read at `offset` goes on where this stream is. After a silence it may be anywhere up to the front; otherwise it
    /// has to be the next one.
    pub(super) fn expects(&self, offset: u64) -> bool {
        let ahead = offset.wrapping_sub(self.last) as i64;
        if let Some(gaps) = &self.gaps {
            let far = gaps.step().saturating_mul(32);
            return match self.stride > 0 {
                true => ahead > 0 && offset <= self.front.max(self.last.saturating_add(far)),
                false => ahead < 0 && offset >= self.front.min(self.last.saturating_sub(far)),
            };
        }
        if ahead == self.stride {
            return true;
        }
        let forward = self.stride > 0;
        if self.dense() && ahead != 0 && (ahead > 0) == forward && ahead.unsigned_abs() <= self.len
        {
            return true;
        }
        let silence = match self.quiet.is_empty() {
            true => &self.lapsed,
            false => &self.quiet,
        };
        if silence.is_empty() {
            return false;
        }
        let within = if forward {
            ahead > 0 && offset <= self.front.saturating_add(self.len)
        } else {
            ahead < 0 && offset.saturating_add(2 * self.len) >= self.front.min(silence.start)
        };
        within && (self.dense() || ahead % self.stride == 0)
    }

    /// Whether it was read from within the last 64 reads that were told, of which `tick` is the latest.
    pub(super) fn is_read(&self, tick: u64) -> bool {
        self.reads > 0 && tick - self.tick <= RECENT
    }

    /// The look-ahead in file bytes, and by how many of them it must have shrunk before it is filled up again: a quarter, and
    /// more where the device wants longer runs.
    fn reach(&self, limits: &Limits) -> (u64, u64) {
        let distance = self
            .distance
            .min(limits.max)
            .max(self.len)
            .min(self.granted);
        if self.dense() {
            return (
                distance,
                (distance / 4).max(limits.quantum.min(distance / 2)).max(1),
            );
        }
        let step = self.stride.unsigned_abs();
        let count = (distance / self.len.next_multiple_of(PAGE)).min(MAX_STEPS);
        (
            count.saturating_mul(step),
            (count / 4).max(1).saturating_mul(step),
        )
    }

    /// Bytes of the file from the read behind one at `offset` to the front.
    fn ahead(&self, offset: u64) -> u64 {
        match (self.dense(), self.stride > 0) {
            // The read before the first one is said to be there, too.
            (true, true) => self.front.saturating_sub(offset.wrapping_add(self.len)),
            (false, true) => self.front.saturating_sub(offset.wrapping_add(self.step())),
            (true, false) => offset.saturating_sub(self.front),
            (false, false) => offset.saturating_sub(self.front.saturating_add(self.step())),
        }
    }

    /// Another stream was read since its last read, and `tick` is the next.
    pub(super) fn switches(&mut self, tick: u64) {
        self.switched = [self.switched[1], tick];
    }

    /// Whether others are read in between, of which `tick` is the latest read.
    pub(super) fn takes_turns(&self, tick: u64) -> bool {
        self.switched[0] > 0 && tick - self.switched[0] <= RECENT
    }

    /// A read at `offset` goes on in it: what was staked on what it has come by.
    pub(super) fn comes_by(&mut self, offset: u64) -> Stake {
        let before = self.ahead(self.last);
        let after = self.ahead(offset).min(before);
        match before {
            0 => Stake::default(),
            before => self.stake.take((before - after) as f64 / before as f64),
        }
    }

    /// As much is looked ahead from a read at `offset` as is there and can be paid for.
    fn grant(&mut self, offset: u64, alone: bool, limits: &Limits) {
        let held = match self.dense() {
            true => self.ahead(offset),
            false => self.ahead(offset) / self.step().max(1) * self.len.next_multiple_of(PAGE),
        };
        let paid = match self.dense() {
            true => limits.funds.bytes(self),
            false => limits.funds.bytes(self) / self.len.max(1) * self.len.next_multiple_of(PAGE),
        };
        let least = match self.dense() || limits.funds.overlapped {
            true => 0,
            // Two tell whether the device does several at once.
            false => 2 * self.len.next_multiple_of(PAGE),
        };
        let paid = if paid < least { 0 } else { paid };
        self.granted = held.saturating_add(paid);
        if self.plain() {
            // The kernel's own readahead has as much on its way: with less it would be held up, and with it nothing is lost that it would not lose.
            let own = self.last.saturating_add(self.len) - self.begun.min(self.last);
            // Of a long read the kernel asks for all that it takes, and of the next one when that is there.
            let is_long = self.len > limits.funds.long;
            let kernels = WINDOWS.max(if is_long { 2 * self.len } else { 0 });
            let begins = self.begun <= UNSEEN;
            self.left =
                !begins && !is_long && limits.funds.plain_us(self.len, self.len, alone) <= 0.0;
            self.granted = match self.left {
                // Who begins where the file does mostly wants all of it.
                _ if begins => self.granted.max(own.clamp(kernels, MOST.max(kernels))),
                false if held > 0 || is_long => self.granted.max(kernels),
                false if self.granted >= WINDOWS => self.granted,
                _ => 0,
            };
        }
    }

    /// Byte ranges from the front on, to the full distance ahead of `offset`; moves the front.
    fn extend(&mut self, offset: u64, size: u64, limits: &Limits) -> Vec<ByteRange> {
        let (reach, refill) = self.reach(limits);
        let step = self.stride.unsigned_abs();
        let whole = if reach < 4 * limits.chunk {
            1
        } else {
            limits.chunk
        };
        let mut ranges = Vec::new();
        match (self.dense(), self.stride > 0) {
            (true, true) => {
                let here = offset.saturating_add(self.len);
                let from = self.front.max(here).min(size);
                let target = match here.saturating_add(reach) {
                    target if target >= size => size,
                    // Half of a long read is no help: the kernel asks for the rest of it itself, after what lies behind that, and a head goes to and fro.
                    _ if self.len > limits.funds.long => here
                        .saturating_add(reach.next_multiple_of(self.len))
                        .min(size),
                    target => target / whole * whole,
                };
                if target > from && (target - from >= refill || target == size) {
                    ranges.push(from..target);
                    self.front = target;
                }
            }
            (true, false) => {
                let from = self.front.min(offset);
                let target = offset.saturating_sub(reach).div_ceil(whole) * whole;
                if target < from && (from - target >= refill || target == 0) {
                    ranges.push(target..from);
                    self.front = target;
                }
            }
            (false, true) => {
                let mut at = self.front.max(offset.saturating_add(step));
                let target = offset.saturating_add(reach).min(size.saturating_sub(1));
                if target >= at && (target - at + step >= refill || target == size - 1) {
                    while at <= target {
                        ranges.push(at..(at + self.len).min(size));
                        at = at.saturating_add(step);
                    }
                    self.front = at;
                }
            }
            (false, false) => {
                let mut at = self.front.min(offset.saturating_sub(step));
                let target = offset.saturating_sub(reach);
                if offset >= step && at >= target && (at - target + step >= refill || target == 0) {
                    loop {
                        ranges.push(at..(at + self.len).min(size));
                        if at < target.saturating_add(step) {
                            break;
                        }
                        at -= step;
                    }
                    self.front = at.saturating_sub(step);
                }
            }
        }
        ranges
    }

    /// Reads that need not be told: from here to where the window is filled up again.
    pub(super) fn quiet(&self, offset: u64, size: u64, limits: &Limits) -> ByteRange {
        let (reach, refill) = self.reach(limits);
        let end = offset.saturating_add(self.len);
        let held = reach - refill.min(reach);
        match (self.stride > 0, self.dense()) {
            (true, _) if self.front >= size => offset..u64::MAX,
            (true, true) => offset..self.front.saturating_sub(held + self.len).max(offset),
            (true, false) => offset..self.front.saturating_sub(held).max(offset),
            (false, _) if self.front == 0 => 0..end,
            (false, _) => self.front.saturating_add(held + 1).min(end)..end,
        }
    }

    /// Takes in a read that it expected.
    pub(super) fn take(&mut self, read: &Read, tick: u64) {
        if self.dense() && self.reads == 0 && self.stride > 0 {
            // The length of a read is known only now for a stream that began as a guess.
            self.stride = read.len as i64;
            self.len = read.len;
        }
        if self.dense() {
            self.len = read.len.max(self.len / 2);
            self.stride = if self.stride > 0 {
                self.len as i64
            } else {
                -(self.len as i64)
            };
        } else {
            self.len = self.len.max(read.len);
        }
        (self.last, self.heard) = (read.offset, read.offset);
        (self.unheard, self.untold) = (0, 0);
        self.thread = read.thread;
        self.tick = tick;
        self.reads += 1;
        self.counter.raise();
    }

    /// It may be chance: it has to show itself once more than usual.
    pub(super) fn doubt(&mut self) {
        self.counter.value = self.counter.likely().saturating_sub(2);
    }

    /// Whether it is trusted: likely sequential, or more.
    pub(super) fn is_likely(&self) -> bool {
        self.counter.value >= self.counter.likely()
    }

    /// How far it looks ahead from a read on that it has taken in, where runs are so many bytes long on average; 0: not known.
    pub(super) fn look_ahead(&mut self, read: &Read, run: u64, alone: bool) {
        let limits = read.limits;
        let own = (read.offset + read.len).saturating_sub(self.begun);
        // The paper's window for this state is the floor; waiting makes it grow from there.
        self.distance = self.distance.max(self.counter.window());
        // What was fetched at open says nothing of a second read, and nobody could know where the position would be moved to.
        let grows = match self.reads {
            1 => self.distance < limits.initial,
            _ => read.offset != self.begun,
        };
        if read.arrival != Arrival::Present && self.is_likely() && grows {
            self.distance = (self.distance * 2).max(limits.initial);
        }
        let most = if self.plain() { limits.near } else { u64::MAX };
        self.distance = self.distance.min(limits.max.min(most));
        if run > 0 && self.plain() {
            let most = run.max(own).max(limits.quantum / 8);
            self.distance = self.distance.min(most).max(read.len);
        }
        self.grant(read.offset, alone, limits);
        if run > 0 && self.plain() && !self.left {
            // Those before say how long this one is: it is no stream that may stop at any time.
            self.granted = self.granted.max(run.saturating_sub(own));
        }
        if read.arrival == Arrival::Missing {
            // What was asked for and is not there was dropped or evicted: it is asked for again.
            self.front = if self.stride > 0 {
                self.front.min(read.offset.saturating_add(read.len))
            } else {
                self.front.max(read.offset)
            };
        }
    }

    /// What is to be asked for after a read that it has taken in; and whether that begins a line whose places were asked for before.
    pub(super) fn ask(&mut self, read: &Read, tiles: &mut Tiles) -> (Vec<ByteRange>, bool) {
        let (offset, len, size, limits) = (read.offset, read.len, read.size, read.limits);
        let line = tiles.line_of(offset, self.stride, self.len);
        let (mut ranges, was_asked) = match line {
            Some(line) => {
                let begins = self.reads == 1;
                line.step(offset);
                let was_asked = begins && line.in_band();
                let band = match begins {
                    true => line.band(offset, size, limits.band(), limits.quantum),
                    false => None,
                };
                let end = line.end().map_or(size, |end| end.min(size));
                let ranges = match band {
                    Some(ranges) => {
                        self.front = self.front.max(end);
                        ranges
                    }
                    None => self.extend(offset, end, limits),
                };
                (ranges, was_asked)
            }
            None => (self.extend(offset, size, limits), false),
        };
        if len > limits.random_distance && self.dense() && self.stride > 0 && !self.left {
            // A large read needs all of its own bytes too, beyond what one kernel request brings.
            let own = offset
                ..(offset + len)
                    .min(offset.saturating_add(limits.max))
                    .min(size);
            match ranges.first_mut() {
                Some(first) if first.start == own.end => first.start = own.start,
                _ => ranges.insert(0, own),
            }
        }
        (ranges, was_asked)
    }

    /// Which reads need not be told after one that it has taken in, having `passed` others, or none. `alone`: no other stream is being read.
    pub(super) fn fall_silent(&mut self, read: &Read, passed: bool, alone: bool) -> ByteRange {
        // Silence follows only a read that was exactly the next one, so that a pattern which changes in the silence is
        // noticed right after it.
        self.proven = !passed && self.reads > 3;
        // How sparse they are shows only in reads that follow one another.
        let silent = self.gaps.as_ref().is_none_or(Gaps::known);
        // A silence of several is agreed on while reads that were told before it are still on their way: they don't end it.
        self.together &= !alone && !passed;
        if self.together {
            return 0..0;
        }
        let quiet = match alone && self.proven && silent {
            true => self.quiet(read.offset, read.size, read.limits),
            false => 0..0,
        };
        self.lapsed = std::mem::replace(&mut self.quiet, quiet);
        self.quiet.clone()
    }
}
