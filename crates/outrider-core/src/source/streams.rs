//! The streams of one descriptor (CrossPrefetch sections 4.5 and 4.6, SPEC CP2 and CP3).
//!
//! A descriptor can carry several at once (threads that share it, a merge of sorted runs). A read belongs to the stream that expected it; reads that nobody
//! expected are remembered for a while, and when three of them lie at equal distances (two, where they touch), they become a stream. That covers forward and
//! backward strides of any size, reverse reading and interleaving alike.

use outrider_sys::units::{ByteRange, PAGE};

use super::counter::{Counter, Pattern};
use super::credit::Stake;
use super::recogniser::{Claim, Expected, Foresight, Limits, Passed, Read, Recogniser, between};
use super::skip_sequential::{Gaps, SETTLED};
use super::stream::Stream;
use super::tiled::Tiles;

/// Reads that nobody expected, of which a pattern is looked for.
const ORPHANS: usize = 16;
/// Reads of a stream after which it is none by chance.
pub(super) const TRUSTED: u64 = 4;
/// Reads that were told after which a silent stream is given up for ended.
const ENDED: u64 = 4096;
/// Bytes that are read forward without gaps for it to be a run: a window of the kernel's readahead.
const RUN: u64 = 128 << 10;

/// The streams of one descriptor.
#[derive(Clone, Debug)]
pub struct Streams {
    all: Vec<Stream>,
    /// Where they begin, and their bytes; the latest are the last of so many.
    orphans: [(u64, u64); ORPHANS],
    orphan_count: usize,
    /// The state of the reads that are no stream's.
    counter: Counter,
    /// Mean length of runs that were read forward without gaps before the position was moved on, bytes; 0: none.
    run: u64,
    last_end: u64,
    /// Counts the reads that were told.
    tick: u64,
}

/// A stream that was found among reads that nobody expected.
pub(super) struct Found {
    pub(super) stream: Stream,
    /// Where it may be a line of tiles: its first read, the bytes from one to the next, and those of each.
    pub(super) line: Option<(u64, u64, u64)>,
}

impl Recogniser for Streams {
    /// Looks whether a stream expected the read. One that skips is given up where its reads have become too sparse, or memory short.
    fn observe(&mut self, read: &Read) -> Claim {
        let Some(i) = self.find(read.offset, read.thread) else {
            return Claim::Nothing;
        };
        let gaps = self.all[i].gaps.as_ref();
        if gaps.is_some_and(|gaps| gaps.step() / 5 * 4 > read.limits.sparse) {
            self.all.swap_remove(i);
            return Claim::Lapsed;
        }
        Claim::Next(i)
    }
}

impl Streams {
    /// None yet.
    pub(super) fn new(limits: &Limits) -> Streams {
        Streams {
            all: Vec::new(),
            orphans: [(u64::MAX, 0); ORPHANS],
            orphan_count: 0,
            counter: Counter::new(limits.counter_bits),
            run: 0,
            last_end: u64::MAX,
            tick: 0,
        }
    }

    /// A read was made. Bytes from the end of the last one to it, either way.
    pub(super) fn tick(&mut self, offset: u64, len: u64) -> u64 {
        self.tick += 1;
        let jump = match self.last_end {
            u64::MAX => offset,
            end => offset.abs_diff(end),
        };
        self.last_end = offset + len;
        jump
    }

    /// The streams followed now.
    pub fn all(&self) -> &[Stream] {
        &self.all
    }

    /// The state of the descriptor as a whole: that of its most trusted stream, or of its random reads.
    pub fn pattern(&self) -> Pattern {
        let states = self.all.iter().map(|s| s.counter.pattern());
        states.max().unwrap_or(self.counter.pattern())
    }

    /// The streams that were read from lately.
    pub fn reading(&self) -> impl Iterator<Item = &Stream> {
        self.all.iter().filter(|s| s.is_read(self.tick))
    }

    /// Whether the latest reads were those of a stream that skips.
    pub fn skips(&self) -> bool {
        self.latest().is_some_and(|s| s.gaps.is_some())
    }

    /// Whether a read that was claimed so was expected by a stream whose reads are its own.
    pub(super) fn expected(&self, claim: Claim) -> Expected {
        match claim {
            Claim::Next(i) if self.all[i].gaps.is_some() || self.all[i].reads >= SETTLED => {
                Expected::Surely
            }
            Claim::Next(_) => Expected::ByChance,
            Claim::Lapsed => Expected::Surely,
            _ => Expected::No,
        }
    }

    /// Whether the next read of stream `i` may meet it by chance.
    pub(super) fn is_guess(&self, i: usize) -> bool {
        self.all[i].reads + 1 < TRUSTED
    }

    /// Whether none has been followed for more than one read.
    pub(super) fn are_guesses(&self) -> bool {
        self.all.iter().all(|s| s.reads < 2)
    }

    /// What looks like streams is chance, but for what goes on read by read.
    pub(super) fn forget_chance(&mut self) {
        let tick = self.tick;
        self.all
            .retain(|s| s.reads >= TRUSTED || s.tick + 1 >= tick);
    }

    /// Everything up to `front` was asked for when the file was opened: a stream that begins at 0 starts from there.
    pub(super) fn optimistic(&mut self, front: u64, limits: &Limits) {
        self.tick += 1;
        let counter = Counter::trusted(limits.counter_bits);
        // As if the page before the file had been read: the read at 0 is then the next one.
        let stream = Stream::new(0, PAGE as i64, PAGE, 0, counter, self.tick);
        self.all.push(Stream {
            distance: front,
            front,
            ..stream
        });
    }

    /// The stream of a line is over, and begins again with the next line: its index, if there is one.
    pub(super) fn again(&mut self, read: &Read, stride: u64) -> Option<usize> {
        let is = |s: &Stream| s.stride == stride as i64 && s.len == read.len;
        let before = self.all.iter().position(is)?;
        let before = self.all.swap_remove(before);
        let counter = Counter::trusted(read.limits.counter_bits);
        let (offset, tick) = (read.offset, self.tick);
        let stream = Stream::new(offset, stride as i64, read.len, read.thread, counter, tick);
        let stream = Stream {
            distance: before.distance,
            gaps: before.gaps,
            ..stream
        };
        Some(self.admit(stream, read))
    }

    fn find(&self, offset: u64, thread: u64) -> Option<usize> {
        let mut best: Option<(usize, (bool, bool, u64))> = None;
        for (i, s) in self.all.iter().enumerate() {
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

    /// Looks for earlier reads with which this one makes a pattern, among the latest two, or all that are remembered where the pattern may be `any`.
    pub(super) fn discover(&self, read: &Read, any: bool) -> Option<Found> {
        let (offset, len) = (read.offset, read.len);
        let counter = Counter::new(read.limits.counter_bits);
        let (likely, guessed) = (counter.likely(), counter.likely().saturating_sub(1));
        let known = self.orphan_count.min(if any { ORPHANS } else { 2 });
        // Programs that read a file from its beginning mostly go on (mm/readahead.c assumes the same).
        let begins = (offset == 0).then_some((len as i64, 0, guessed));
        let (mut found, mut line) = (begins, None);
        for k in 1..=known {
            let (a, a_len) = self.orphan(k);
            if a.wrapping_add(a_len) == offset {
                found = Some((a_len as i64, a_len, guessed));
                break;
            }
            if offset.wrapping_add(len) == a {
                found = Some((-(len as i64), a_len, guessed));
                break;
            }
            let stride = offset.wrapping_sub(a) as i64;
            let before = a.wrapping_sub(stride as u64);
            let third = (k + 1..=known).any(|j| self.orphan(j).0 == before);
            if stride != 0 && third {
                if stride > len as i64 && len == a_len {
                    line = Some((before, stride as u64, len));
                }
                found = Some((stride, a_len, likely));
                break;
            }
        }
        let (stride, other, value) = found?;
        let counter = counter.at(value);
        let stream = Stream::new(
            offset,
            stride,
            len.max(other),
            read.thread,
            counter,
            self.tick,
        );
        let front = match stride > 0 {
            true => offset,
            false => offset.saturating_add(len),
        };
        let stream = Stream { front, ..stream };
        Some(Found { stream, line })
    }

    /// The latest but `k - 1` of the reads that nobody expected.
    fn orphan(&self, k: usize) -> (u64, u64) {
        self.orphans[(self.orphan_count - k) % ORPHANS]
    }

    /// The stream of reads that were found to go onward, or backwards (-1), by steps of so many bytes on average, of which this one is next: its index.
    pub(super) fn skip_on(&mut self, read: &Read, step: u64, way: i64) -> usize {
        let counter = Counter::trusted(read.limits.counter_bits);
        // What looked like streams among them were chance.
        self.all.retain(|s| s.reads >= SETTLED);
        let stride = way * read.len as i64;
        let (offset, tick) = (read.offset, self.tick);
        let stream = Stream::new(offset, stride, read.len, read.thread, counter, tick);
        let gaps = Some(Gaps::new(step));
        self.admit(Stream { gaps, ..stream }, read)
    }

    /// A read that nobody expected and that makes no pattern, `jump` bytes from the last one.
    pub(super) fn remember(&mut self, read: &Read, jump: u64) {
        self.orphans[self.orphan_count % ORPHANS] = (read.offset, read.len);
        self.orphan_count += 1;
        if self.orphan_count == 1 {
            // The paper starts at random; the first read says nothing about the pattern.
            return;
        }
        // Who stays within a neighbourhood falls no lower than to the state that is named after it.
        match jump > read.limits.random_distance {
            true => self.counter.lower(2),
            false => self.counter.value = self.counter.value.saturating_sub(1).max(1),
        }
        let tick = self.tick;
        for s in &mut self.all {
            if tick - s.tick > 64 {
                s.counter.lower(1);
            }
        }
        self.all
            .retain(|s| s.counter.value > 0 || tick - s.tick < 256);
    }

    /// Whether no other stream than the latest is being read, as far as can be told: a position that was passed is then passed by
    /// this one.
    pub fn sole(&self) -> bool {
        let going = |s: &&Stream| s.reads > 0 && self.tick - s.tick <= ENDED;
        self.all.iter().filter(going).count() == 1
    }

    /// Whether stream `i` is the only one that is being read.
    fn alone(&self, i: usize) -> bool {
        self.all
            .iter()
            .enumerate()
            .all(|(k, s)| k == i || !s.is_read(self.tick))
    }

    /// Whether the stream of the latest read takes turns with others: the device is asked for theirs in between.
    pub fn beside(&self) -> bool {
        let latest = self.all.iter().max_by_key(|s| s.tick);
        latest.is_some_and(|s| s.takes_turns(self.tick))
    }

    /// A read that there is no time to look at. Whether a stream expected it: then the next read of that stream which is looked at
    /// accounts for it too, as if it had not been told.
    pub fn glance(&mut self, offset: u64, thread: u64) -> bool {
        let Some(i) = self.find(offset, thread) else {
            return false;
        };
        let s = &mut self.all[i];
        (s.heard, s.untold) = (offset, 0);
        // Else it would be lost beyond what was asked for, and what it has read until there be counted twice, or not at all.
        s.moves_on(offset);
        s.reads > 0
    }

    /// Up to so many reads were not told before the one at `offset`, which is about to be heard: the nearest stream that would have come there with them
    /// goes on there.
    pub fn unheard(&mut self, offset: u64, reads: u64) {
        for s in &mut self.all {
            s.unheard = s.unheard.saturating_add(reads);
            s.untold = s.untold.saturating_add(reads);
        }
        let fit = self.all.iter_mut().filter(|s| s.comes_to(offset));
        if let Some(s) = fit.min_by_key(|s| s.last.abs_diff(offset))
            && !s.expects(offset)
        {
            s.moves_on(offset);
        }
    }

    /// The position was moved to byte `to`, where no stream goes on, after a stream forward had read up to byte `from`. If its run was long enough to be one, it
    /// goes on at `to`, and looks no further ahead than such runs are long; once they are too short for runs (a member was taken out of an archive, and headers
    /// are read again), it is over. Returns what it had read since its last read was known; `None` if there is no such stream.
    pub fn seek(&mut self, from: u64, to: u64) -> Option<Passed> {
        let run = |s: &Stream| from.saturating_sub(s.begun);
        let i = self.find(from, 0).filter(|i| {
            let s = &self.all[*i];
            s.plain() && (self.run > 0 || run(s) >= RUN) && from < to
        })?;
        if self.find(to, 0).is_some_and(|k| k != i) {
            return None;
        }
        let s = &mut self.all[i];
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
            self.all.swap_remove(i);
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
        self.all
            .iter()
            .max_by_key(|s| s.tick)
            .filter(|s| s.reads > 0)
    }

    /// Which of its streams that is, while it goes on.
    pub fn which(&self) -> usize {
        let all = self.all.iter().enumerate();
        all.max_by_key(|(_, s)| s.tick).map_or(0, |(i, _)| i)
    }

    /// What lies between the place of that stream and its front, if the latest read was one of its own.
    pub fn looks_at(&self) -> Option<ByteRange> {
        let latest = self.latest().filter(|s| s.tick == self.tick);
        latest.map(|s| s.last.min(s.front)..s.last.max(s.front))
    }

    /// What comes next in that stream was asked for.
    pub fn staked(&mut self, stake: Stake) {
        if let Some(s) = self.all.iter_mut().max_by_key(|s| s.tick) {
            s.stake += stake;
        }
    }

    /// The descriptor is read no further than to byte `end`, maybe in silence: what the only stream has come by.
    pub fn ended(&mut self, end: u64) -> Stake {
        let newest = (0..self.all.len()).max_by_key(|i| self.all[*i].tick);
        let Some(i) = newest.filter(|i| self.alone(*i)) else {
            return Stake::default();
        };
        let s = &mut self.all[i];
        match s.is_silent() {
            true => s.comes_by(end.saturating_sub(s.len)),
            false => Stake::default(),
        }
    }

    /// Whether the latest read was that of a stream of this stride.
    pub(super) fn goes_by(&self, stride: u64) -> bool {
        let latest = self.latest();
        latest.is_some_and(|s| s.stride == stride as i64 && s.tick == self.tick)
    }

    /// The one stream that is being read, if there is just one.
    pub fn only(&self) -> Option<&Stream> {
        let newest = (0..self.all.len()).max_by_key(|i| self.all[*i].tick)?;
        self.alone(newest).then(|| &self.all[newest])
    }

    /// The one stream that is being read forward without gaps, if the latest read was one of its own.
    pub fn going(&self) -> Option<&Stream> {
        let latest = |s: &&Stream| s.plain() && s.reads > 0 && s.tick == self.tick;
        self.only().filter(latest)
    }

    /// Makes room for a stream, of which a read is the first: those that have come to the end of the file go, and if need be the one that was silent for
    /// the longest time. Its index.
    pub(super) fn admit(&mut self, stream: Stream, read: &Read) -> usize {
        self.all.retain(|s| {
            let over = if s.stride > 0 {
                !s.quiet.is_empty() && s.front >= read.size
            } else {
                s.last == 0
            };
            !over || s.reads == 0
        });
        if self.all.len() >= read.limits.max_streams.max(1) {
            let oldest = (0..self.all.len())
                .min_by_key(|i| self.all[*i].tick)
                .unwrap_or(0);
            self.all.swap_remove(oldest);
        }
        self.all.push(stream);
        self.all.len() - 1
    }

    /// Stream `i` goes on with a read: what is wanted then.
    pub(super) fn follow(&mut self, i: usize, read: &Read, tiles: &mut Tiles) -> Foresight {
        let alone = self.alone(i);
        let before = self.all[i].tick;
        let others = |(k, s): (usize, &Stream)| k != i && s.reads > 0 && s.tick > before;
        let switches = self.all[i].reads > 0 && self.all.iter().enumerate().any(others);
        let s = &mut self.all[i];
        if switches {
            s.switches(self.tick);
        }
        let beside = s.takes_turns(self.tick);
        let passed = s.passed(read.offset);
        let returned = s.comes_by(read.offset);
        let skipped = s.skip(read.offset);
        s.take(read, self.tick);
        self.counter.raise();
        s.look_ahead(read, self.run, !beside);
        if !s.is_likely() {
            s.quiet = 0..0;
            return Foresight {
                passed,
                skipped,
                returned,
                ..Foresight::default()
            };
        }
        let (ranges, line) = s.ask(read, tiles);
        let quiet = s.fall_silent(read, passed.is_some(), alone);
        let skip = match alone {
            true => 0,
            false => self.skip_together(read.size, read.limits),
        };
        Foresight {
            ranges,
            quiet,
            skip,
            line,
            passed,
            skipped,
            returned,
            ..Foresight::default()
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
        for s in self.all.iter_mut().filter(|s| s.is_read(tick)) {
            s.quiet = s.quiet(s.last, size, limits);
            (s.proven, s.together) = (false, true);
        }
        skip as u32
    }

    /// From here on only some of the reads are told: what comes next of each stream may be anywhere up to its front.
    pub fn keep_following(&mut self, size: u64, limits: &Limits) {
        let tick = self.tick;
        for s in self.all.iter_mut().filter(|s| s.is_read(tick)) {
            s.quiet = s.quiet(s.last, size, limits);
        }
    }

    /// A part of the last request could not be granted: the stream asks again from `at`.
    pub fn retreat(&mut self, at: u64) {
        for s in &mut self.all {
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
        for s in &mut self.all {
            let next = s.last.saturating_add(s.stride.unsigned_abs().max(s.len));
            s.front = match s.stride > 0 {
                true => s.front.min(next),
                false => s.front.max(s.last),
            };
        }
    }

    /// Everything from the front of the only stream to byte `at` turned out to be cached: it need not be asked for, nor
    /// reads of it be told. Returns what is quiet now.
    pub fn cached_up_to(&mut self, at: u64, offset: u64, size: u64, limits: &Limits) -> ByteRange {
        let Some(i) = (0..self.all.len()).max_by_key(|i| self.all[*i].tick) else {
            return 0..0;
        };
        let alone = self.alone(i);
        let s = &mut self.all[i];
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

    /// Prefetched bytes of this descriptor were evicted before they were read: windows halve.
    pub fn shrink(&mut self, limits: &Limits) {
        for s in &mut self.all {
            s.distance = (s.distance / 2).max(limits.initial.min(limits.max));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::recogniser::testing;

    const READ: u64 = 16 << 10;
    const SIZE: u64 = 1 << 30;

    /// Has streams look at reads at these offsets, and begins those that are found: what the last read was, to them.
    fn seen(offsets: &[u64]) -> (Claim, Streams) {
        let limits = testing::limits();
        let mut streams = Streams::new(&limits);
        let mut claim = Claim::Nothing;
        for offset in offsets {
            let read = testing::read(*offset, READ, SIZE, &limits);
            streams.tick(read.offset, read.len);
            claim = streams.observe(&read);
            match (claim, streams.discover(&read, true)) {
                (Claim::Next(i), _) => drop(streams.follow(i, &read, &mut Tiles::default())),
                (_, Some(found)) => {
                    let i = streams.admit(found.stream, &read);
                    streams.follow(i, &read, &mut Tiles::default());
                }
                _ => streams.remember(&read, SIZE),
            }
        }
        (claim, streams)
    }

    /// CP3, CP13: a stream of whose reads there is no time to look at any goes on behind all of them, however far that is beyond what was asked for.
    #[test]
    fn what_is_only_glanced_at_is_followed() {
        let at = |n: u64| 1024 * READ + n * READ;
        for begin in [[at(0), at(1), at(2)], [at(2), at(1), at(0)]] {
            let (_, mut streams) = seen(&begin);
            let (first, stride) = (begin[2], begin[2].wrapping_sub(begin[1]));
            let read = |n: u64| first.wrapping_add(stride.wrapping_mul(n));
            for n in 1..1000 {
                assert!(streams.glance(read(n), 0), "{n} of {begin:?}");
            }
            assert_eq!(streams.all()[0].last, first);
            assert!(streams.all()[0].expects(read(1000)));
        }
    }

    /// CP3: two reads that touch, and three at equal distances, either way, are a stream, of which the next is expected; any others are none.
    #[test]
    fn what_goes_on_is_expected() {
        let at = |n: u64| 512 * READ + n * READ;
        for (begin, next) in [
            (vec![at(0), at(1)], at(2)),
            (vec![at(9), at(8)], at(7)),
            (vec![at(0), at(5), at(10)], at(15)),
            (vec![at(40), at(33), at(26)], at(19)),
            (vec![at(0), at(100), at(5), at(90), at(10)], at(15)),
        ] {
            let mut reads = begin.clone();
            assert_eq!(seen(&reads).0, Claim::Nothing, "{begin:?}");
            reads.push(next);
            let (claim, streams) = seen(&reads);
            assert_eq!(claim, Claim::Next(0), "{begin:?}");
            assert_eq!(streams.all().len(), 1, "{begin:?}");
            *reads.last_mut().unwrap() = next + 2 * READ;
            assert_eq!(seen(&reads).0, Claim::Nothing, "{begin:?}");
        }
        let (claim, streams) = seen(&[at(0), at(50), at(10), at(90)]);
        assert_eq!((claim, streams.all().len()), (Claim::Nothing, 0));
    }

    /// CP13: a silence may go on in the hook after a read that has ended it, until that was looked at: what is told next is expected all the same.
    #[test]
    fn a_silence_that_has_ended_is_not_forgotten_at_once() {
        let at = |n: i64| ((512 + n) as u64) * READ;
        for way in [1, -1] {
            let mut reads: Vec<u64> = (0..12).map(|n| at(way * n)).collect();
            let (_, streams) = seen(&reads);
            assert!(streams.all()[0].is_silent());
            reads.extend([at(way * 14), at(way * 17)]);
            let (claim, streams) = seen(&reads);
            assert_eq!((claim, streams.all().len()), (Claim::Next(0), 1), "{way}");
        }
    }

    /// CP3: each of two streams in turns is its own, whichever was read last.
    #[test]
    fn streams_in_turns_are_told_apart() {
        let turns: Vec<u64> = (0..16)
            .map(|k| k % 2 * (SIZE / 2) + (k / 2 + 1) * READ)
            .collect();
        let (_, streams) = seen(&turns);
        let mut last: Vec<u64> = streams.all().iter().map(|s| s.last).collect();
        last.sort_unstable();
        assert_eq!(last, [8 * READ, SIZE / 2 + 8 * READ]);
    }
}
