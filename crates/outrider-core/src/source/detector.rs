//! The recognisers of one descriptor, and who of them has a read (SPEC CP2, CP3).

use outrider_sys::units::ByteRange;

use super::recogniser::{Arrival, Claim, Expected, Foresight, Limits, Read, Recogniser, Source};
use super::skip_sequential::SkipSequential;
use super::streams::Streams;
use super::tiled::Tiles;

/// After so many reads without a pattern a new one has to show itself once more than usual: among that many, some lie at equal
/// distances by chance.
const DOUBT: u32 = 16;
/// Reads without a pattern after which the next need not all be told.
const STEADY: u32 = 64;

/// The recognisers of one descriptor.
#[derive(Debug)]
pub struct Detector {
    /// The streams that are followed.
    pub streams: Streams,
    tiles: Tiles,
    skips: SkipSequential,
    sources: Vec<Box<dyn Source>>,
    /// Which of the sources claims the latest read.
    claimed: Option<usize>,
    /// Reads in succession without a pattern that is surely none by chance.
    steady: u32,
}

impl Clone for Detector {
    fn clone(&self) -> Detector {
        Detector {
            streams: self.streams.clone(),
            tiles: self.tiles.clone(),
            skips: self.skips.clone(),
            sources: self.sources.iter().map(|s| s.duplicate()).collect(),
            claimed: self.claimed,
            steady: self.steady,
        }
    }
}

impl Detector {
    /// A detector that has seen nothing.
    pub fn new(limits: &Limits) -> Detector {
        Detector {
            streams: Streams::new(limits),
            tiles: Tiles::default(),
            skips: SkipSequential::default(),
            sources: limits.sources.iter().map(|new| new()).collect(),
            claimed: None,
            steady: 0,
        }
    }

    /// Everything up to `front` was asked for when the file was opened: a stream that begins at 0 starts from there.
    pub fn optimistic(&mut self, front: u64, limits: &Limits) {
        self.streams.optimistic(front, limits);
    }

    /// A read of `len` bytes at `offset` is being made in a file of `size` bytes: what is wanted then.
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
        let mut read = Read {
            offset,
            len,
            thread,
            arrival,
            size,
            expected: Expected::No,
            limits,
        };
        let jump = self.streams.tick(offset, len);
        self.claimed = None;
        for (i, source) in self.sources.iter_mut().enumerate() {
            let claims = source.observe(&read) == Claim::Around;
            self.claimed = self.claimed.or(claims.then_some(i));
        }
        match self.stream_of(&mut read) {
            Some(i) => self.streams.follow(i, &read, &mut self.tiles),
            None => self.of_no_stream(&read, jump),
        }
    }

    /// The stream that has a read: that of the next line of tiles, before one that expected it, unless reads only go onward; and last one that is found.
    fn stream_of(&mut self, read: &mut Read) -> Option<usize> {
        if let Claim::Line { stride } = self.tiles.observe(read)
            && let Some(i) = self.streams.again(read, stride)
        {
            self.steady = 0;
            return Some(i);
        }
        if self.has_all_distances() {
            self.streams.forget_chance();
        }
        let mut claim = self.streams.observe(read);
        read.expected = self.streams.expected(claim);
        if let Claim::Onward { step, way } = self.skips.observe(read) {
            claim = Claim::Next(self.streams.skip_on(read, step, way));
        }
        match claim {
            Claim::Next(i) => {
                if !self.streams.is_guess(i) {
                    self.steady = 0;
                }
                Some(i)
            }
            _ => self.discover(read),
        }
    }

    /// Whether there are all distances between reads, as in a neighbourhood, and among reads onward: then only what is in order read by read is a stream.
    fn has_all_distances(&self) -> bool {
        self.claimed.is_some() || self.skips.goes_on()
    }

    /// A stream that is found with this read.
    fn discover(&mut self, read: &Read) -> Option<usize> {
        let found = self.streams.discover(read, !self.has_all_distances())?;
        if let Some((start, stride, len)) = found.line
            && !self.in_tile()
        {
            self.tiles.begin(start, stride, len);
        }
        let mut stream = found.stream;
        if self.steady > DOUBT || self.skips.goes_on() {
            stream.doubt();
        }
        self.steady += 1;
        Some(self.streams.admit(stream, read))
    }

    /// A read of no pattern, `jump` bytes from the last one: it is a source's, or nobody's.
    fn of_no_stream(&mut self, read: &Read, jump: u64) -> Foresight {
        let limits = read.limits;
        self.streams.remember(read, jump);
        self.steady = self.steady.saturating_add(1);
        let (onward, claimed) = (self.skips.goes_on(), self.is_claimed());
        let around = match self.claimed.filter(|_| claimed) {
            Some(source) => self.sources[source].foresee(read, limits.max),
            None => Vec::new(),
        };
        // A stream of one read is a guess.
        let settled = self.steady > STEADY && self.streams.are_guesses();
        let skip = match settled && limits.skip_when_steady && !claimed && !onward {
            // n accesses for an n-bit counter at first; rarer the longer nothing else comes.
            true => limits.counter_bits << (self.steady.saturating_sub(STEADY) / STEADY).min(3),
            false => 0,
        };
        Foresight {
            random: true,
            around,
            onward,
            skip,
            ..Foresight::default()
        }
    }

    /// Whether a source claims the latest read, if it is no stream's: then each has to be heard. What goes onward is nobody's.
    pub fn is_claimed(&self) -> bool {
        self.claimed.is_some() && !self.skips.goes_on()
    }

    /// What [`Foresight::around`] named was asked for, and so many bytes of it were not cached.
    pub fn asked(&mut self, bytes: u64) {
        if let Some(source) = self.claimed {
            self.sources[source].asked(bytes);
        }
    }

    /// Whether the present line's places were asked for together with those of the lines beside it.
    pub fn in_band(&self) -> bool {
        self.tiles
            .band()
            .is_some_and(|stride| self.streams.goes_by(stride))
    }

    /// Whether reads follow lines that lie beside one another.
    pub fn in_tile(&self) -> bool {
        let reads = |stride| self.streams.reading().any(|s| s.stride == stride as i64);
        self.tiles.known().is_some_and(reads)
    }

    /// The line that begins with a read at `offset` was asked for and evicted before it was read: what to ask for instead.
    pub fn narrow(&mut self, offset: u64, size: u64, limits: &Limits) -> Option<Vec<ByteRange>> {
        self.tiles.narrow(offset, size, limits)
    }
}

#[cfg(test)]
mod tests {
    use outrider_sys::units::PAGE;

    use super::*;
    use crate::source::counter::Pattern;
    use crate::source::recogniser::testing::limits;

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
            for r in f.ranges.into_iter().chain(f.around) {
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
        assert!(d.streams.pattern() <= Pattern::PartiallyRandom);
    }
}
