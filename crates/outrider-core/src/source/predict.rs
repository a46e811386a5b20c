//! The pattern detector of one descriptor (CrossPrefetch sections 4.5 and 4.6, SPEC CP2 and CP3).
//!
//! Two questions are kept apart. *Is there a pattern?* is the paper's: an n-bit saturating counter per
//! stream climbs while reads go on as expected and falls when they don't, and its value names the state, from
//! highly random to definitely sequential. *How far ahead?* is not the paper's. There the window doubles with the
//! counter; here it doubles when the program had to wait for a page (it was late), because a window that nobody waits
//! for is as large as it needs to be, whatever the pattern.
//!
//! A descriptor can carry several streams at once (threads that share it, a merge of sorted runs). A read belongs to the
//! stream that expected it; reads that nobody expected are remembered for a while, and when three of them lie at equal
//! distances (two, where they touch), they become a stream. That covers forward and backward strides of any size, reverse
//! reading and interleaving alike.
//!
//! Everything here is arithmetic on offsets: no system calls, no clock.

use std::ops::Range;

use outrider_sys::units::PAGE;

use super::clustered::Clustered;
use super::skip_sequential::{Gaps, Onward, SETTLED};
use super::tiled::Tiled;

/// Constants of the detector; see `config.rs` for their meaning and sources.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bits of the counter (paper: 3).
    pub counter_bits: u32,
    /// Reads that jump less than this many bytes are random nearby, others highly random (paper: 128 KiB).
    pub random_distance: u64,
    /// Streams per descriptor.
    pub max_streams: usize,
    /// First window of a stream that was late, bytes.
    pub initial: u64,
    /// Largest window, bytes (paper: 64 MB; 128 KB in mode `predict`).
    pub max: u64,
    /// Largest window of a stream that reads forward without gaps, bytes: less than others' where it may soon be left to the kernel's own readahead.
    pub near: u64,
    /// Smallest quantum in which a window is refilled, bytes: long enough that a seek does not show.
    pub quantum: u64,
    /// Bytes of one request, at whose multiples windows end: the next one then begins with a whole request.
    pub chunk: u64,
    /// Steady random descriptors skip prediction (SPEC CP3).
    pub skip_when_steady: bool,
    /// Reads that go onward by steps of this many bytes on average, or fewer, are answered by reading on in order; 0: never.
    pub sparse: u64,
    /// Bytes that the device delivers in the time that one read waits, where that was measured; 0: neighbourhoods are not fetched.
    pub delay: u64,
    /// The time, µs since any.
    pub now: u64,
}

impl Limits {
    /// Bytes of a band of lines: three quarters of the budget, of which a window is half.
    fn band(&self) -> u64 {
        self.max / 2 * 3
    }
}

/// The states that the paper names (section 4.6); it counts seven and leaves 101 unnamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// 000: jumps beyond the random distance.
    HighlyRandom,
    /// 001: random within the random distance.
    Random,
    /// 010: a mix of sequential and random.
    PartiallyRandom,
    /// 011: mostly sequential.
    LikelySequential,
    /// 100 (and the unnamed 101): sequential with strides.
    Strided,
    /// 110 and above.
    DefinitelySequential,
}

/// The saturating counter.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    bits: u32,
    value: u32,
}

impl Counter {
    /// A counter of `bits` bits (1 to 8) in the state that a file begins in: random.
    pub fn new(bits: u32) -> Counter {
        Counter {
            bits: bits.clamp(1, 8),
            value: 0,
        }
    }

    /// The value of "definitely sequential": 110 with three bits.
    fn definite(self) -> u32 {
        ((1 << self.bits) - 2u32).max(1)
    }

    /// The value of "likely sequential": 011 with three bits.
    fn likely(self) -> u32 {
        ((1 << (self.bits - 1)) - 1u32).max(1).min(self.definite())
    }

    fn raise(&mut self) {
        self.value = (self.value + 1).min(self.definite());
    }

    fn lower(&mut self, by: u32) {
        self.value = self.value.saturating_sub(by);
    }

    /// The window that the paper gives this state: 2^n blocks, in bytes.
    pub fn window(self) -> u64 {
        PAGE << self.value.min(24)
    }

    /// The state's name.
    pub fn pattern(self) -> Pattern {
        if self.value >= self.definite() {
            Pattern::DefinitelySequential
        } else if self.value > self.likely() {
            Pattern::Strided
        } else if self.value == self.likely() {
            Pattern::LikelySequential
        } else {
            match self.value {
                0 => Pattern::HighlyRandom,
                1 => Pattern::Random,
                _ => Pattern::PartiallyRandom,
            }
        }
    }
}

/// How a read found the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Everything was there.
    Present,
    /// Something was asked for and not there yet.
    Late,
    /// Something had not been asked for.
    Missing,
}

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
    thread: u64,
    counter: Counter,
    /// Look-ahead distance: bytes of data asked for and not yet read.
    pub distance: u64,
    /// How far reads were foreseen and asked for: everything up to here forwards, down to here backwards.
    pub front: u64,
    /// Reads so far that were foreseen by this stream.
    pub reads: u64,
    /// Where it may have gone on silently since its last read; empty after a read that came out of such silence.
    quiet: Range<u64>,
    /// Others are silent with it.
    together: bool,
    /// Start of the last read that was told, looked at or not, bytes.
    pub heard: u64,
    /// Reads of all streams that were not told since then, at most, where it is known how many.
    unheard: u64,
    /// The same since it was told last, looked at or not.
    pub untold: u64,
    /// Its last read was exactly the expected one.
    proven: bool,
    /// Where the run began that it is in.
    begun: u64,
    /// Its steps, where they differ and all that lies ahead is read.
    gaps: Option<Gaps>,
    /// For replacing the stream that was not used for the longest time.
    tick: u64,
}

/// What the detector wants done after a read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Foresight {
    /// Byte ranges that will be read, in the order of need.
    pub ranges: Vec<Range<u64>>,
    /// Reads that begin in this byte range need not be told.
    pub quiet: Range<u64>,
    /// So many reads need not be told.
    pub skip: u32,
    /// No pattern was found in this read.
    pub random: bool,
    /// It is the first or one of the first in a neighbourhood of which more will be read than is worth waiting for one by one: these bytes.
    pub clustered: Option<Range<u64>>,
    /// Like those before, it lies behind the last one, but too far for what lies between to be read too.
    pub onward: bool,
    /// The read begins a line whose places were asked for before: they may have been evicted.
    pub line: bool,
    /// The read went on in a stream that has been told in whole: bytes that were passed since its last read was known.
    pub passed: Option<Passed>,
    /// Bytes that were skipped, and will hardly be read any more.
    pub skipped: Range<u64>,
}

/// Reads that were not told because they were expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// Where the reads between the last known one and this one begin, bytes; where they touch, all of their bytes.
    pub span: Range<u64>,
    /// Bytes between the starts of two reads.
    pub stride: u64,
    /// Bytes of each read.
    pub len: u64,
}

/// Where reads begin that lie between one at `last` and one at `offset`, both left out: every `stride` bytes, `len` long.
pub fn between(last: u64, offset: u64, len: u64, stride: i64) -> Range<u64> {
    let step = if stride.unsigned_abs() <= len {
        len
    } else {
        stride.unsigned_abs()
    };
    if stride > 0 {
        last.wrapping_add(step)..offset
    } else {
        offset.saturating_add(step)..last
    }
}

const ORPHANS: usize = 16;
/// Bytes of a neighbourhood that are fetched at most: what the largest of the kernel's requests hold.
const AREA: u64 = 1 << 20;
/// After so many reads without a pattern a new one has to show itself once more than usual: among that many, some lie at equal
/// distances by chance.
const DOUBT: u32 = 16;
/// Reads of a stream after which it is none by chance.
const TRUSTED: u64 = 4;
/// Reads that were told after which a silent stream is given up for ended.
const ENDED: u64 = 4096;

/// Bytes that are read forward without gaps for it to be a run: a window of the kernel's readahead.
const RUN: u64 = 128 << 10;

/// Of what a stream has read so far, as many times as much is looked ahead at most, beyond what the device wants.
const TIMES: u64 = 8;

/// The detector of one descriptor.
#[derive(Clone, Debug)]
pub struct Detector {
    streams: Vec<Stream>,
    tiled: Option<Tiled>,
    clustered: Clustered,
    orphans: [(u64, u64); ORPHANS],
    orphan_count: usize,
    counter: Counter,
    /// Onward, and backwards.
    onward: [Onward; 2],
    /// Mean length of runs that were read forward without gaps before the position was moved on, bytes; 0: none.
    run: u64,
    last_end: u64,
    steady: u32,
    tick: u64,
}

impl Stream {
    /// Whether reads of this stream touch or overlap, or lie so near to one another that what is between is read too: then the file is needed as
    /// a whole.
    pub fn dense(&self) -> bool {
        self.stride.unsigned_abs() <= self.len
    }

    /// Whether reads touch and go forward: the kernel's own readahead sees as much.
    pub fn plain(&self) -> bool {
        self.dense() && self.stride > 0 && self.gaps.is_none()
    }

    /// From one read to the next, bytes; on average, where that differs.
    pub fn step(&self) -> u64 {
        match &self.gaps {
            Some(gaps) => gaps.step().max(self.len + 1),
            None => self.stride.unsigned_abs(),
        }
    }

    /// The reads that it must have made silently before one at `offset`.
    fn passed(&self, offset: u64) -> Option<Passed> {
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
    fn skip(&mut self, offset: u64) -> Range<u64> {
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
    fn comes_to(&self, offset: u64) -> bool {
        let ahead = match self.stride > 0 {
            true => offset.checked_sub(self.last),
            false => self.last.checked_sub(offset),
        };
        let step = self.step().max(1);
        ahead.is_some_and(|ahead| {
            ahead > 0 && ahead.is_multiple_of(step) && ahead / step <= self.unheard + 1
        })
    }

    /// Whether a read at `offset` goes on where this stream is. After a silence it may be anywhere up to the front; otherwise it
    /// has to be the next one.
    fn expects(&self, offset: u64) -> bool {
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
        if self.quiet.is_empty() {
            return false;
        }
        let within = if forward {
            ahead > 0 && offset <= self.front.saturating_add(self.len)
        } else {
            ahead < 0 && offset.saturating_add(2 * self.len) >= self.front.min(self.quiet.start)
        };
        within && (self.dense() || ahead % self.stride == 0)
    }

    /// The state that the counter gives it.
    pub fn pattern(&self) -> Pattern {
        self.counter.pattern()
    }

    /// Whether it was read from within the last 64 reads that were told, of which `tick` is the latest.
    fn is_read(&self, tick: u64) -> bool {
        self.reads > 0 && tick - self.tick <= 64
    }

    /// The look-ahead in file bytes, and by how many of them it must have shrunk before it is filled up again: a quarter, and
    /// more where the device wants longer runs.
    fn reach(&self, limits: &Limits) -> (u64, u64) {
        let distance = self.distance.min(limits.max).max(self.len);
        if self.dense() {
            return (
                distance,
                (distance / 4).max(limits.quantum.min(distance / 2)).max(1),
            );
        }
        let step = self.stride.unsigned_abs();
        let count = (distance / self.len.next_multiple_of(PAGE)).clamp(1, MAX_STEPS);
        (
            count.saturating_mul(step),
            (count / 4).max(1).saturating_mul(step),
        )
    }

    /// Byte ranges from the front on, to the full distance ahead of `offset`; moves the front.
    fn extend(&mut self, offset: u64, size: u64, limits: &Limits) -> Vec<Range<u64>> {
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
                    target if target < size => target / whole * whole,
                    _ => size,
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
                if target >= at && (target - at >= refill || target == size - 1) {
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
                if offset >= step && at >= target && (at - target >= refill || target == 0) {
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
    fn quiet(&self, offset: u64, size: u64, limits: &Limits) -> Range<u64> {
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
}

/// Most reads that a strided window holds; bounds the work of one event.
const MAX_STEPS: u64 = 2048;

impl Detector {
    /// A detector that has seen nothing.
    pub fn new(limits: &Limits) -> Detector {
        Detector {
            streams: Vec::new(),
            tiled: None,
            clustered: Clustered::default(),
            orphans: [(u64::MAX, 0); ORPHANS],
            orphan_count: 0,
            counter: Counter::new(limits.counter_bits),
            onward: Default::default(),
            run: 0,
            last_end: u64::MAX,
            steady: 0,
            tick: 0,
        }
    }

    /// The state of the descriptor as a whole: that of its most trusted stream, or of its random reads.
    pub fn pattern(&self) -> Pattern {
        self.streams
            .iter()
            .map(Stream::pattern)
            .max()
            .unwrap_or(self.counter.pattern())
    }

    /// The streams that were read from lately.
    pub fn reading(&self) -> impl Iterator<Item = &Stream> {
        self.streams.iter().filter(|s| s.is_read(self.tick))
    }

    /// Whether the latest reads were those of a stream that skips.
    pub fn skips(&self) -> bool {
        self.latest().is_some_and(|s| s.gaps.is_some())
    }

    /// The streams followed now.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Everything up to `front` was asked for when the file was opened: a stream that begins at 0 starts from there.
    pub fn optimistic(&mut self, front: u64, limits: &Limits) {
        self.tick += 1;
        let mut counter = Counter::new(limits.counter_bits);
        counter.value = counter.likely();
        self.streams.push(Stream {
            stride: PAGE as i64,
            len: PAGE,
            // As if the page before the file had been read: the read at 0 is then the next one.
            last: 0u64.wrapping_sub(PAGE),
            thread: 0,
            counter,
            distance: front,
            front,
            reads: 0,
            quiet: 0..0,
            together: false,
            heard: 0,
            unheard: 0,
            untold: 0,
            proven: false,
            begun: 0,
            gaps: None,
            tick: self.tick,
        });
    }

    /// A read of `len` bytes at `offset` is being made in a file of `size` bytes.
    pub fn access(
        &mut self,
        offset: u64,
        len: u64,
        thread: u64,
        arrival: Arrival,
        size: u64,
        limits: &Limits,
    ) -> Foresight {
        let len = len.min(size.saturating_sub(offset));
        if len == 0 {
            return Foresight::default();
        }
        self.tick += 1;
        let jump = if self.last_end == u64::MAX {
            offset
        } else {
            offset.abs_diff(self.last_end)
        };
        self.last_end = offset + len;
        self.clustered
            .read(offset, len, limits.random_distance, limits.now);
        if let Some(stream) = self.turn(offset, len, thread, limits) {
            self.steady = 0;
            let i = self.admit(stream, size, limits);
            return self.follow(i, offset, len, thread, arrival, size, limits);
        }
        if self.is_clustered(limits) {
            // What looks like streams in a neighbourhood is chance, but for what goes on read by read.
            let tick = self.tick;
            self.streams
                .retain(|s| s.reads >= TRUSTED || s.tick + 1 >= tick);
        }
        let mut found = self.find(offset, thread);
        if let Some(i) = found
            && let Some(gaps) = &self.streams[i].gaps
            && gaps.step() / 5 * 4 > limits.sparse
        {
            // They have become too sparse, or memory short.
            self.streams.swap_remove(i);
            self.settle(offset);
            found = None;
        }
        match found {
            Some(i) if self.streams[i].gaps.is_some() || self.streams[i].reads >= SETTLED => {
                self.settle(offset);
            }
            _ => {
                let foreseen = found.is_some();
                let ways = [(offset, 1), (!offset, -1)];
                let steps = self.onward.iter_mut().zip(ways).map(|(onward, (at, way))| {
                    let step = onward.step(at, foreseen, limits.sparse);
                    step.map(|step| (step, way))
                });
                // Both count each read.
                if let Some((step, way)) = steps.fold(None, Option::or) {
                    self.settle(offset);
                    found = Some(self.skip_on(offset, len, (step, way), thread, size, limits));
                }
            }
        }
        if let Some(i) = found {
            // Two reads may meet a stream by chance.
            if self.streams[i].reads + 1 >= TRUSTED {
                self.steady = 0;
            }
            return self.follow(i, offset, len, thread, arrival, size, limits);
        }
        if let Some(mut stream) = self.discover(offset, len, thread, limits) {
            if self.steady > DOUBT || self.goes_on() {
                stream.counter.value = stream.counter.likely().saturating_sub(2);
            }
            self.steady += 1;
            let i = self.admit(stream, size, limits);
            return self.follow(i, offset, len, thread, arrival, size, limits);
        }
        self.orphans[self.orphan_count % ORPHANS] = (offset, len);
        self.orphan_count += 1;
        if self.orphan_count > 1 {
            // The paper starts at random; the first read says nothing about the pattern. Who stays within a neighbourhood falls no lower than to the state that
            // is named after it.
            match jump > limits.random_distance {
                true => self.counter.lower(2),
                false => self.counter.value = self.counter.value.saturating_sub(1).max(1),
            }
            for s in &mut self.streams {
                if self.tick - s.tick > 64 {
                    s.counter.lower(1);
                }
            }
            let tick = self.tick;
            self.streams
                .retain(|s| s.counter.value > 0 || tick - s.tick < 256);
        }
        self.steady = self.steady.saturating_add(1);
        // A stream of one read is a guess.
        let settled = self.streams.iter().all(|s| s.reads < 2) && self.steady > 64;
        let is_clustered = self.is_clustered(limits);
        let clustered = is_clustered.then(|| {
            let how = (limits.random_distance, limits.delay);
            self.clustered
                .fetch(offset, size, how, limits.max.min(AREA))
        });
        let skip = if settled && limits.skip_when_steady && !is_clustered && !self.goes_on() {
            // n accesses for an n-bit counter at first; rarer the longer nothing else comes.
            limits.counter_bits << (self.steady.saturating_sub(64) / 64).min(3)
        } else {
            0
        };
        Foresight {
            random: true,
            clustered: clustered.flatten(),
            onward: self.goes_on(),
            skip,
            ..Foresight::default()
        }
    }

    /// A stream foresees these reads.
    fn settle(&mut self, offset: u64) {
        self.onward[0].settle(offset);
        self.onward[1].settle(!offset);
    }

    /// Whether many reads went onward, or backwards, however far.
    fn goes_on(&self) -> bool {
        self.onward.iter().any(Onward::goes_on)
    }

    /// A line of the tiles is over and the next one begins: its stream.
    fn turn(&mut self, offset: u64, len: u64, thread: u64, limits: &Limits) -> Option<Stream> {
        let tiled = self.tiled.as_mut()?;
        if !tiled.turns_at(offset, len, limits.max_streams) {
            return None;
        }
        let stride = tiled.stride();
        tiled.turn(offset);
        let before = self
            .streams
            .iter()
            .position(|s| s.stride == stride as i64 && s.len == len)?;
        let before = self.streams.swap_remove(before);
        let mut counter = Counter::new(limits.counter_bits);
        counter.value = counter.likely();
        Some(Stream {
            last: offset.wrapping_sub(stride),
            thread,
            counter,
            front: offset,
            reads: 0,
            quiet: 0..0,
            together: false,
            heard: 0,
            unheard: 0,
            untold: 0,
            proven: false,
            begun: offset,
            tick: self.tick,
            ..before
        })
    }

    fn find(&self, offset: u64, thread: u64) -> Option<usize> {
        let mut best: Option<(usize, (bool, bool, u64))> = None;
        for (i, s) in self.streams.iter().enumerate() {
            if s.expects(offset) {
                // Behind a silence the nearest goes on, whichever was heard last.
                let just_read = s.tick + 1 == self.tick && s.reads > 0 && s.quiet.is_empty();
                let rank = (s.thread != thread, !just_read, offset.abs_diff(s.last));
                if best.is_none_or(|(_, b)| rank < b) {
                    best = Some((i, rank));
                }
            }
        }
        best.map(|(i, _)| i)
    }

    /// Looks for earlier reads with which this one makes a pattern.
    fn discover(&mut self, offset: u64, len: u64, thread: u64, limits: &Limits) -> Option<Stream> {
        let mut counter = Counter::new(limits.counter_bits);
        // In a neighbourhood there are all distances: only what is in order read by read is a stream.
        let most = if self.is_clustered(limits) {
            2
        } else {
            ORPHANS
        };
        let known = self.orphan_count.min(most);
        let mut found = None;
        if offset == 0 {
            // Programs that read a file from its beginning mostly go on (mm/readahead.c assumes the same).
            counter.value = counter.likely().saturating_sub(1);
            found = Some((len as i64, 0));
        }
        for k in 1..=known {
            let (a, a_len) = self.orphans[(self.orphan_count - k) % ORPHANS];
            if a.wrapping_add(a_len) == offset {
                counter.value = counter.likely().saturating_sub(1);
                found = Some((a_len as i64, a_len));
                break;
            }
            if offset.wrapping_add(len) == a {
                counter.value = counter.likely().saturating_sub(1);
                found = Some((-(len as i64), a_len));
                break;
            }
            let stride = offset.wrapping_sub(a) as i64;
            let before = a.wrapping_sub(stride as u64);
            let third = (k + 1..=known)
                .any(|j| self.orphans[(self.orphan_count - j) % ORPHANS].0 == before);
            if stride != 0 && third {
                if stride > len as i64 && len == a_len {
                    self.line(before, stride as u64, len);
                }
                counter.value = counter.likely();
                found = Some((stride, a_len));
                break;
            }
        }
        let (stride, other) = found?;
        Some(Stream {
            stride,
            len: len.max(other),
            last: offset.wrapping_sub(stride as u64),
            thread,
            counter,
            distance: 0,
            front: if stride > 0 {
                offset
            } else {
                offset.saturating_add(len)
            },
            reads: 0,
            quiet: 0..0,
            together: false,
            heard: 0,
            unheard: 0,
            untold: 0,
            proven: false,
            begun: offset,
            gaps: None,
            tick: self.tick,
        })
    }

    /// The stream of reads that were found to go onward, or backwards (-1), by steps of so many bytes on average, of which one of `len` bytes at `offset` is next.
    fn skip_on(
        &mut self,
        offset: u64,
        len: u64,
        (step, way): (u64, i64),
        thread: u64,
        size: u64,
        limits: &Limits,
    ) -> usize {
        let mut counter = Counter::new(limits.counter_bits);
        counter.value = counter.likely();
        // What looked like streams among them were chance.
        self.streams.retain(|s| s.reads >= SETTLED);
        let stream = Stream {
            stride: way * len as i64,
            len,
            last: offset.wrapping_sub((way * len as i64) as u64),
            thread,
            counter,
            distance: 0,
            front: offset,
            reads: 0,
            quiet: 0..0,
            together: false,
            heard: 0,
            unheard: 0,
            untold: 0,
            proven: false,
            begun: offset,
            gaps: Some(Gaps::new(step)),
            tick: self.tick,
        };
        self.admit(stream, size, limits)
    }

    /// A strided stream of reads of `len` bytes was found that began at `start`.
    fn line(&mut self, start: u64, stride: u64, len: u64) {
        let known = self.in_tile()
            || self
                .tiled
                .as_ref()
                .is_some_and(|f| f.is_on(start, stride, len));
        if !known {
            self.tiled = Some(Tiled::new(start, stride, len));
        }
    }

    /// Whether random reads come in neighbourhoods that are worth fetching: then each of them has to be heard. What goes onward is none.
    pub fn is_clustered(&self, limits: &Limits) -> bool {
        !self.goes_on() && self.clustered.pays(limits.random_distance, limits.delay)
    }

    /// What [`Foresight::clustered`] named was asked for, and so many bytes of it were not cached.
    pub fn clustered_asked(&mut self, bytes: u64) {
        self.clustered.asked(bytes);
    }

    /// Whether the present line's places were asked for together with those of the lines beside it.
    pub fn in_band(&self) -> bool {
        self.tiled.as_ref().is_some_and(|f| {
            f.in_band()
                && self
                    .latest()
                    .is_some_and(|s| s.stride == f.stride() as i64 && s.tick == self.tick)
        })
    }

    /// Whether no other stream than the latest is being read, as far as can be told: a position that was passed is then passed by
    /// this one.
    pub fn sole(&self) -> bool {
        let going = |s: &&Stream| s.reads > 0 && self.tick - s.tick <= ENDED;
        self.streams.iter().filter(going).count() == 1
    }

    /// Whether stream `i` is the only one that is being read.
    fn alone(&self, i: usize) -> bool {
        self.streams
            .iter()
            .enumerate()
            .all(|(k, s)| k == i || !s.is_read(self.tick))
    }

    /// A read that there is no time to look at. Whether a stream expected it: then the next read of that stream which is looked at
    /// accounts for it too, as if it had not been told.
    pub fn glance(&mut self, offset: u64, thread: u64) -> bool {
        let Some(i) = self.find(offset, thread) else {
            return false;
        };
        let s = &mut self.streams[i];
        s.quiet = s.last.min(offset)..s.last.max(offset).saturating_add(s.len);
        (s.heard, s.untold) = (offset, 0);
        s.reads > 0
    }

    /// Up to so many reads were not told before the one at `offset`, which is about to be heard: the nearest stream that would have come there with them
    /// goes on there.
    pub fn unheard(&mut self, offset: u64, reads: u64) {
        for s in &mut self.streams {
            s.unheard = s.unheard.saturating_add(reads);
            s.untold = s.untold.saturating_add(reads);
        }
        let fit = self.streams.iter_mut().filter(|s| s.comes_to(offset));
        if let Some(s) = fit.min_by_key(|s| s.last.abs_diff(offset))
            && !s.expects(offset)
        {
            s.quiet = s.last.min(offset)..s.last.max(offset).saturating_add(s.len);
            s.front = match s.stride > 0 {
                true => s.front.max(offset),
                false => s.front.min(offset.saturating_add(s.len)),
            };
        }
    }

    /// The position was moved to byte `to`, where no stream goes on, after a stream forward had read up to byte `from`. If its run was long enough to be one, it
    /// goes on at `to`, and looks no further ahead than such runs are long; once they are too short for runs (a member was taken out of an archive, and headers
    /// are read again), it is over. Returns what it had read since its last read was known; `None` if there is no such stream.
    pub fn seek(&mut self, from: u64, to: u64) -> Option<Passed> {
        let run = |s: &Stream| from.saturating_sub(s.begun);
        let i = self.find(from, 0).filter(|i| {
            let s = &self.streams[*i];
            s.plain() && (self.run > 0 || run(s) >= RUN) && from < to
        })?;
        if self.find(to, 0).is_some_and(|k| k != i) {
            return None;
        }
        let s = &mut self.streams[i];
        let passed = Passed {
            span: between(s.last, from, s.len, s.stride),
            stride: s.stride.unsigned_abs(),
            len: s.len,
        };
        let run = run(s);
        self.run = match self.run {
            0 => run,
            mean => (mean + run) / 2,
        };
        if self.run < RUN {
            self.run = 0;
            self.streams.swap_remove(i);
        } else {
            s.last = to.wrapping_sub(s.stride as u64);
            s.heard = s.last;
            (s.unheard, s.untold) = (0, 0);
            (s.begun, s.front, s.quiet) = (to, s.front.max(to), 0..0);
        }
        Some(passed)
    }

    /// The stream of the latest read that belonged to one.
    pub fn latest(&self) -> Option<&Stream> {
        self.streams
            .iter()
            .max_by_key(|s| s.tick)
            .filter(|s| s.reads > 0)
    }

    /// The one stream that is being read, if there is just one.
    pub fn only(&self) -> Option<&Stream> {
        let newest = (0..self.streams.len()).max_by_key(|i| self.streams[*i].tick)?;
        self.alone(newest).then(|| &self.streams[newest])
    }

    /// The one stream that is being read forward without gaps, if the latest read was one of its own.
    pub fn going(&self) -> Option<&Stream> {
        let latest = |s: &&Stream| s.plain() && s.reads > 0 && s.tick == self.tick;
        self.only().filter(latest)
    }

    /// Makes room for a stream: those that have come to the end of the file go, and if need be the one that was silent for
    /// the longest time.
    fn admit(&mut self, stream: Stream, size: u64, limits: &Limits) -> usize {
        self.streams.retain(|s| {
            let over = if s.stride > 0 {
                !s.quiet.is_empty() && s.front >= size
            } else {
                s.last == 0
            };
            !over || s.reads == 0
        });
        if self.streams.len() >= limits.max_streams.max(1) {
            let oldest = (0..self.streams.len())
                .min_by_key(|i| self.streams[*i].tick)
                .unwrap_or(0);
            self.streams.swap_remove(oldest);
        }
        self.streams.push(stream);
        self.streams.len() - 1
    }

    #[allow(clippy::too_many_arguments)]
    fn follow(
        &mut self,
        i: usize,
        offset: u64,
        len: u64,
        thread: u64,
        arrival: Arrival,
        size: u64,
        limits: &Limits,
    ) -> Foresight {
        let tick = self.tick;
        let alone = self.alone(i);
        let s = &mut self.streams[i];
        let passed = s.passed(offset);
        let skipped = s.skip(offset);
        if s.dense() && s.reads == 0 && s.stride > 0 {
            // The length of a read is known only now for a stream that began as a guess.
            s.stride = len as i64;
            s.len = len;
        }
        if s.dense() {
            s.len = len.max(s.len / 2);
            s.stride = if s.stride > 0 {
                s.len as i64
            } else {
                -(s.len as i64)
            };
        } else {
            s.len = s.len.max(len);
        }
        (s.last, s.heard) = (offset, offset);
        (s.unheard, s.untold) = (0, 0);
        s.thread = thread;
        s.tick = tick;
        s.reads += 1;
        s.counter.raise();
        self.counter.raise();
        let likely = s.counter.value >= s.counter.likely();
        // The paper's window for this state is the floor; waiting makes it grow from there.
        s.distance = s.distance.max(s.counter.window());
        // What was fetched at open says nothing of a second read, and nobody could know where the position would be moved to.
        let grows = match s.reads {
            1 => s.distance < limits.initial,
            _ => offset != s.begun,
        };
        if arrival != Arrival::Present && likely && grows {
            // Each of the reads that wait for the same request would double it, and most of a file be asked for by who has read a member of it. Who begins
            // where the file does mostly wants all of it.
            let run = (offset + len).saturating_sub(s.begun);
            let most = match s.plain() && s.begun > 0 {
                true => TIMES
                    .saturating_mul(run)
                    .max(limits.quantum)
                    .max(s.distance),
                false => u64::MAX,
            };
            s.distance = (s.distance * 2).min(most).max(limits.initial);
        }
        let most = if s.plain() { limits.near } else { u64::MAX };
        s.distance = s.distance.min(limits.max.min(most));
        if self.run > 0 && s.plain() {
            let run = (offset + len).saturating_sub(s.begun);
            let most = self.run.max(run).max(limits.quantum / 8);
            s.distance = s.distance.min(most).max(len);
        }
        if arrival == Arrival::Missing {
            // What was asked for and is not there was dropped or evicted: it is asked for again.
            s.front = if s.stride > 0 {
                s.front.min(offset.saturating_add(len))
            } else {
                s.front.max(offset)
            };
        }
        if !likely {
            s.quiet = 0..0;
            return Foresight {
                passed,
                skipped,
                ..Foresight::default()
            };
        }
        let begins = s.reads == 1;
        let mut line = false;
        let tiled = self
            .tiled
            .as_mut()
            .filter(|f| f.is_on(offset, s.stride.unsigned_abs(), s.len) && s.stride > 0);
        let mut ranges = match tiled {
            Some(tiled) => {
                tiled.step(offset);
                // Reads and the rest of their line lie within three quarters of the budget, of which a window is half.
                let most = limits.max / 2 * 3;
                line = begins && tiled.in_band();
                let band = if begins {
                    tiled.band(offset, size, most, limits.quantum)
                } else {
                    None
                };
                let end = tiled.end().map_or(size, |end| end.min(size));
                match band {
                    Some(ranges) => {
                        s.front = s.front.max(end);
                        ranges
                    }
                    None => s.extend(offset, end, limits),
                }
            }
            None => s.extend(offset, size, limits),
        };
        if len > limits.random_distance && s.dense() && s.stride > 0 {
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
        // Silence follows only a read that was exactly the next one, so that a pattern which changes in the silence is
        // noticed right after it.
        s.proven = passed.is_none() && s.reads > 3;
        // How sparse they are shows only in reads that follow one another.
        let silent = s.gaps.as_ref().is_none_or(Gaps::known);
        // A silence of several is agreed on while reads that were told before it are still on their way: they don't end it.
        s.together &= !alone && passed.is_none();
        let quiet = if s.together {
            0..0
        } else {
            s.quiet = if alone && s.proven && silent {
                s.quiet(offset, size, limits)
            } else {
                0..0
            };
            s.quiet.clone()
        };
        let skip = if alone {
            0
        } else {
            self.skip_together(size, limits)
        };
        Foresight {
            ranges,
            quiet,
            skip,
            random: false,
            clustered: None,
            onward: false,
            line,
            passed,
            skipped,
        }
    }

    /// Several streams that are all well ahead can be silent together, for a number of reads that even a single one of them
    /// could make before its window needs more. 0 where one of them still has to show itself.
    fn skip_together(&mut self, size: u64, limits: &Limits) -> u32 {
        const MOST: u64 = 8192;
        let tick = self.tick;
        let n = self.reading().count() as u64;
        let mut least = MOST;
        for s in self.reading() {
            if !s.proven {
                return 0;
            }
            let quiet = s.quiet(s.last, size, limits);
            let end = if quiet.end == u64::MAX {
                size
            } else {
                quiet.end
            };
            least = least.min(end.saturating_sub(quiet.start) / s.stride.unsigned_abs().max(1));
        }
        let skip = (least * n / 2).min(MOST);
        if skip < 4 * n {
            return 0;
        }
        for s in self.streams.iter_mut().filter(|s| s.is_read(tick)) {
            s.quiet = s.quiet(s.last, size, limits);
            (s.proven, s.together) = (false, true);
        }
        skip as u32
    }

    /// From here on only some of the reads are told: what comes next of each stream may be anywhere up to its front.
    pub fn keep_following(&mut self, size: u64, limits: &Limits) {
        let tick = self.tick;
        for s in self.streams.iter_mut().filter(|s| s.is_read(tick)) {
            s.quiet = s.quiet(s.last, size, limits);
        }
    }

    /// A part of the last request could not be granted: the stream asks again from `at`.
    pub fn retreat(&mut self, at: u64) {
        for s in &mut self.streams {
            if s.stride > 0 && s.front > at && s.last < at {
                s.front = at;
            }
            if s.stride < 0 && s.front < at && s.last > at {
                s.front = at;
            }
        }
    }

    /// What was asked for is gone: the streams ask again from where they are.
    pub fn go_back(&mut self) {
        for s in &mut self.streams {
            let next = s.last.saturating_add(s.stride.unsigned_abs().max(s.len));
            s.front = match s.stride > 0 {
                true => s.front.min(next),
                false => s.front.max(s.last),
            };
        }
    }

    /// Everything from the front of the only stream to byte `at` turned out to be cached: it need not be asked for, nor
    /// reads of it be told. Returns what is quiet now.
    pub fn cached_up_to(&mut self, at: u64, offset: u64, size: u64, limits: &Limits) -> Range<u64> {
        let Some(i) = (0..self.streams.len()).max_by_key(|i| self.streams[*i].tick) else {
            return 0..0;
        };
        let alone = self.alone(i);
        let s = &mut self.streams[i];
        s.front = if s.stride > 0 {
            s.front.max(at)
        } else {
            s.front.min(at)
        };
        if alone && s.proven {
            s.quiet = s.quiet(offset, size, limits);
        }
        s.quiet.clone()
    }

    /// The line that begins with a read at `offset` was asked for and evicted before it was read: what to ask for instead.
    pub fn narrow(&mut self, offset: u64, size: u64, limits: &Limits) -> Option<Vec<Range<u64>>> {
        let tiled = self.tiled.as_mut()?;
        tiled.shrink();
        tiled.band(offset, size, limits.band(), limits.quantum)
    }

    /// Whether reads follow lines that lie beside one another.
    pub fn in_tile(&self) -> bool {
        self.tiled.as_ref().is_some_and(|f| {
            let read = |s: &Stream| s.stride == f.stride() as i64 && s.is_read(self.tick);
            f.is_known() && self.streams.iter().any(read)
        })
    }

    /// Prefetched bytes of this descriptor were evicted before they were read: windows halve.
    pub fn shrink(&mut self, limits: &Limits) {
        for s in &mut self.streams {
            s.distance = (s.distance / 2).max(limits.initial.min(limits.max));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            counter_bits: 3,
            random_distance: 128 << 10,
            max_streams: 16,
            initial: 128 << 10,
            max: 64 << 20,
            quantum: 64 << 10,
            chunk: 128 << 10,
            skip_when_steady: true,
            sparse: 256 << 10,
            near: u64::MAX,
            delay: 0,
            now: 0,
        }
    }

    /// CP9: behind what was fetched at open nothing is asked for until the program has read on, however late its first read found that.
    #[test]
    fn what_was_fetched_at_open_waits_for_a_second_read() {
        let (limits, len, size) = (limits(), 16 << 10, 1 << 30);
        let mut d = Detector::new(&limits);
        d.optimistic(2 << 20, &limits);
        let first = d.access(0, len, 1, Arrival::Late, size, &limits);
        assert_eq!(first.ranges, []);
        let second = d.access(len, len, 1, Arrival::Late, size, &limits);
        assert_eq!(second.ranges, [2 << 20..4 << 20]);
    }

    /// Design, "stall growth": a window that its reader never waits for stays small, also over thousands of reads, and one that he waits for doubles.
    #[test]
    fn windows_grow_only_on_stalls() {
        let ahead = |arrival, stride: u64| {
            let (limits, len, size) = (limits(), 16 << 10, 1 << 34);
            let mut d = Detector::new(&limits);
            let (mut end, reads) = (0, 4096);
            for at in (0..reads).map(|k| k * stride) {
                let f = d.access(at, len, 1, arrival, size, &limits);
                end = f.ranges.iter().fold(end, |end, r| end.max(r.end));
            }
            end - (reads - 1) * stride
        };
        for stride in [16 << 10, 64 << 10] {
            let [hit, waited] = [Arrival::Present, Arrival::Late].map(|a| ahead(a, stride));
            assert!(hit <= 2 << 20, "{stride}: {hit}");
            assert!(waited >= limits().max / 2, "{stride}: {waited}");
        }
    }

    /// SPEC CP3: the names and values of the states, with three bits as in the paper.
    #[test]
    fn counter_states_are_the_papers() {
        let mut c = Counter::new(3);
        let mut seen = vec![c.pattern()];
        for _ in 0..7 {
            c.raise();
            seen.push(c.pattern());
        }
        use Pattern::*;
        assert_eq!(
            seen,
            [
                HighlyRandom,
                Random,
                PartiallyRandom,
                LikelySequential,
                Strided,
                Strided,
                DefinitelySequential,
                DefinitelySequential
            ]
        );
        assert_eq!(c.window(), 64 * PAGE);
    }

    /// Runs a list of reads and returns which bytes (as pages) were foreseen before they were read.
    fn foreseen(reads: &[(u64, u64)], size: u64) -> (usize, u64) {
        foreseen_with(reads, size, limits())
    }

    fn foreseen_with(reads: &[(u64, u64)], size: u64, l: Limits) -> (usize, u64) {
        let mut d = Detector::new(&l);
        let mut asked = std::collections::HashSet::new();
        let mut hits = 0;
        for (offset, len) in reads {
            let pages = offset / PAGE..(offset + len).div_ceil(PAGE);
            let hit = pages.clone().all(|p| asked.contains(&p));
            hits += usize::from(hit);
            let f = d.access(
                *offset,
                *len,
                1,
                if hit { Arrival::Late } else { Arrival::Missing },
                size,
                &l,
            );
            for r in f.ranges.into_iter().chain(f.clustered) {
                assert!(r.end <= size, "{r:?} beyond the end");
                asked.extend(r.start / PAGE..r.end.div_ceil(PAGE));
            }
        }
        (hits, asked.len() as u64)
    }

    /// SPEC CP3: sequential, reverse, and strided reads in both directions, several streams interleaved: nearly every read is
    /// foreseen and nothing beyond the pattern is asked for.
    #[test]
    fn patterns_are_foreseen() {
        let size = 256u64 << 20;
        let k = 16u64 << 10;
        let n = 1000u64;
        let forward: Vec<_> = (0..n).map(|i| (i * k, k)).collect();
        let reverse: Vec<_> = (0..n).map(|i| (size - (i + 1) * k, k)).collect();
        let stride: Vec<_> = (0..n).map(|i| (i * 65536, k)).collect();
        let back: Vec<_> = (0..n).map(|i| (size - (i + 1) * 69632, k)).collect();
        let four: Vec<_> = (0..4 * n)
            .map(|i| ((i % 4) * (size / 4) + (i / 4) * k, k))
            .collect();
        let mixed: Vec<_> = (0..2 * n)
            .map(|i| {
                if i % 2 == 0 {
                    (i / 2 * 65536, k)
                } else {
                    (size - (i / 2 + 1) * k, k)
                }
            })
            .collect();
        // Two reads of each in turn.
        let six: Vec<_> = (0..6 * n)
            .map(|i| (i / 2 % 6 * (40 << 20) + (i / 12 * 2 + i % 2) * k, k))
            .collect();
        for (name, reads) in [
            ("six", &six),
            ("forward", &forward),
            ("reverse", &reverse),
            ("stride", &stride),
            ("back", &back),
            ("four", &four),
            ("mixed", &mixed),
        ] {
            let near = Limits {
                delay: 100 << 10,
                ..limits()
            };
            let hits_near = foreseen_with(reads, size, near).0;
            let (hits, asked) = foreseen(reads, size);
            assert!(
                hits.min(hits_near) + 40 >= reads.len(),
                "{name}: {hits} and {hits_near} of {}",
                reads.len()
            );
            let needed = reads.len() as u64 * k / PAGE;
            // The last windows reach beyond the last read.
            assert!(
                asked <= needed + 8 * (64 << 20) / PAGE,
                "{name}: {asked} pages for {needed}"
            );
        }
    }

    /// SPEC CP3: among reads in random order in a file that is not very large, some lie at equal distances by chance. They bring
    /// next to nothing; and a stride that begins among them is found all the same.
    #[test]
    fn chance_is_no_stride() {
        let blocks = 16384u64;
        let size = blocks << 14;
        let l = limits();
        let mut d = Detector::new(&l);
        let mut asked = 0;
        // An odd factor makes a permutation; multiplying it with itself makes it a less regular one.
        let mut x = 1u64;
        for _ in 0..8192 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let at = ((x >> 33) % blocks) << 14;
            let f = d.access(at, 16384, 1, Arrival::Missing, size, &l);
            asked += f.ranges.iter().map(|r| r.end - r.start).sum::<u64>();
        }
        assert!(asked < 8192 * 16384 / 50, "{asked} bytes asked for");
        let found = (0..8u64)
            .position(|i| {
                let at = (i * 40) << 14;
                let f = d.access(at, 16384, 1, Arrival::Missing, size, &l);
                !f.ranges.is_empty()
            })
            .expect("a stride after random reads");
        assert!(found <= 5, "found by read {found}");
    }

    /// Reads onward by steps of 8 KiB times a number that is drawn, `mean` bytes on average.
    fn onward(mean: u64, len: u64, size: u64) -> Vec<(u64, u64)> {
        let (mut x, mut at, mut reads) = (7u64, 0, Vec::new());
        loop {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let drawn = -(((x >> 11) + 1) as f64 / (1u64 << 53) as f64).ln();
            at += len.max((drawn * mean as f64) as u64 / len * len);
            if at >= size {
                return reads;
            }
            reads.push((at, len));
        }
    }

    /// SPEC CP3 (the paper's states between random and sequential): reads that skip some blocks, onward or backwards, are foreseen where reading on is cheaper
    /// than waiting, and little is asked for that lies behind them; where they are too sparse for that next to nothing is asked for.
    #[test]
    fn onward_reads_are_foreseen_unless_sparse() {
        let size = 512u64 << 20;
        for mean in [16 << 10, 64 << 10, 200 << 10] {
            let mut reads = onward(mean, 8192, size);
            for _ in 0..2 {
                let (hits, asked) = foreseen(&reads, size);
                assert!(hits + 60 > reads.len(), "{mean}: {hits} of {}", reads.len());
                assert!(asked <= size / PAGE);
                reads.reverse();
            }
        }
        for mean in [600 << 10, 2 << 20] {
            let mut reads = onward(mean, 8192, size);
            let read = reads.len() as u64 * 2;
            for _ in 0..2 {
                let (_, asked) = foreseen(&reads, size);
                assert!(
                    asked < read / 4,
                    "{mean}: {asked} pages asked for, {read} read"
                );
                reads.reverse();
            }
        }
    }

    /// SPEC CP3: reads that become sparser than reading on is worth are given up before that costs much more than waiting does.
    #[test]
    fn onward_reads_that_become_sparse_are_given_up() {
        let (size, turn) = (512u64 << 20, 64 << 20);
        let near = onward(100 << 10, 8192, turn);
        // The limit is 256 KiB.
        let far = onward(370 << 10, 8192, size - turn);
        let reads: Vec<_> = near
            .into_iter()
            .chain(far.into_iter().map(|(at, len)| (turn + at, len)))
            .collect();
        let (_, asked) = foreseen(&reads, size);
        assert!((turn / PAGE..size / PAGE / 2).contains(&asked), "{asked}");
    }

    /// SPEC CP3, B11: who goes onward by long steps, reads one piece in order and goes on by long steps (who takes a member out of an archive) goes onward all the
    /// time; who then turns back does not.
    #[test]
    fn a_member_of_an_archive_is_no_turn() {
        let (size, l) = (512u64 << 20, limits());
        let mut d = Detector::new(&l);
        let member = 64u64 << 20;
        let before = onward(1 << 20, 8192, member);
        let inside = (0..64).map(|k| (member + k * 10240, 10240));
        let behind = onward(1 << 20, 8192, member);
        let behind = behind
            .into_iter()
            .map(|(at, len)| (at + member + (1 << 20), len));
        let mut random = Vec::new();
        for (at, len) in before.into_iter().chain(inside).chain(behind) {
            let f = d.access(at, len, 1, Arrival::Missing, size, &l);
            if f.random {
                random.push(f.onward);
            }
        }
        let (first, rest) = random.split_at(20);
        assert!(!first[0] && rest.len() > 80);
        assert!(rest.iter().all(|onward| *onward), "{random:?}");
        assert!(!d.access(4096, 8192, 1, Arrival::Missing, size, &l).onward);
    }

    /// SPEC CP3, B11: random reads ask for next to nothing, and the steady state is skipped.
    #[test]
    fn random_asks_for_nothing() {
        let size = 1u64 << 30;
        let l = limits();
        let mut d = Detector::new(&l);
        let mut x = 12345u64;
        let (mut asked, mut skipped) = (0, 0u64);
        for _ in 0..2000 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let f = d.access(
                (x >> 20) % (size / 16384) * 16384,
                16384,
                1,
                Arrival::Missing,
                size,
                &l,
            );
            asked += f.ranges.iter().map(|r| r.end - r.start).sum::<u64>();
            skipped += u64::from(f.skip);
        }
        assert!(asked < 2000 * 16384 / 20, "{asked} bytes asked for");
        assert!(skipped > 2000);
        assert!(d.pattern() <= Pattern::PartiallyRandom);
    }
}
