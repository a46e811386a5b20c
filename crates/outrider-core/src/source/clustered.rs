//! Random reads within neighbourhoods (SPEC CP3, state 001): some blocks here, in no order, then some elsewhere, as who reads the rows of one key, or the records of
//! one cluster.
//!
//! Where the next neighbourhood is nobody knows, but the ones before tell how many blocks are read of one and how wide it is. Once it is entered, the choice
//! is that of `dense` on a small scale: the reads that are still to come wait for the device one by one, or for one request of the whole neighbourhood. Whether that is
//! the faster way is then measured: every now and then one is left alone, and if the program doesn't get through the others faster, it is let be. The paper fetches
//! 2^n blocks in this state, whatever they bring.

use outrider_sys::units::{ByteRange, PAGE};

use super::recogniser::{Claim, Read, Recogniser, Source};

/// Neighbourhoods that may be read at the same time, by threads or in turns.
const AT_ONCE: usize = 4;
/// Neighbourhoods that have to be alike before one is fetched.
const FEWEST: u32 = 4;
/// The share that the latest one has in the means.
const SHARE: f64 = 0.25;
/// Of so many neighbourhoods one is left alone, for comparison.
const LEFT: u32 = 16;
/// So many have to be fetched before it is judged, and the time per read must be no more than this share of what it is where nothing is fetched.
const TRIED: f64 = 8.0;
const GAIN: f64 = 0.85;
/// Times are those of about so many neighbourhoods.
const MEMORY: f64 = 64.0;
/// Reads without getting any further after which a wide area doesn't drift.
const STANDS: u64 = 32;
/// What is found cached so often, in succession, needs no fetching.
const CACHED: u32 = 4;
/// Blocks are no longer than this, bytes.
const LONGEST: u64 = 1 << 40;
/// Reads for which all are left alone where that is no gain; each time four times as many.
const PAUSE: u64 = 4096;
/// A neighbourhood is at most so many times as wide as two of its reads may lie apart; what goes on further is no neighbourhood.
const WIDTH: u64 = 2;
/// Bytes of a neighbourhood that are fetched at most: what the largest of the kernel's requests hold.
const AREA: u64 = 1 << 20;

/// One neighbourhood that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    /// Bytes that were read, and what lies between.
    start: u64,
    end: u64,
    /// The lowest of them while it was a neighbourhood.
    begun: u64,
    /// Where reads began: different pages, by their numbers modulo 64.
    places: u64,
    /// Reads, when the first one was told, and the last, µs.
    reads: u64,
    first: u64,
    last: u64,
    /// It has been asked for.
    fetched: bool,
    /// Where it drifts forward, up to where it has been asked for.
    front: u64,
    /// Reads when its end was last moved on.
    grown: u64,
    /// When it was read last.
    tick: u64,
}

impl Visit {
    fn width(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it goes on forward, too far for a neighbourhood, and is read so densely that what comes next is cheaper had at once.
    fn drifts(&self, distance: u64, delay: u64) -> bool {
        // What is read again and again goes nowhere.
        if self.reads - self.grown > STANDS {
            return false;
        }
        let each = self.reads as f64 * distance as f64 / self.width().max(1) as f64;
        self.width() > WIDTH * distance
            && self.start == self.begun
            && delay > 0
            && each > 2.0 + distance as f64 / delay as f64
    }

    /// Places that were read of it.
    fn count(&self) -> u32 {
        self.places.count_ones()
    }
}

/// How long reads of neighbourhoods take, but for the first of each.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    visits: f64,
    reads: f64,
    us: f64,
}

impl Times {
    fn count(&mut self, v: &Visit) {
        if v.reads < 2 {
            return;
        }
        if self.visits >= MEMORY {
            for n in [&mut self.visits, &mut self.reads, &mut self.us] {
                *n /= 2.0;
            }
        }
        self.visits += 1.0;
        self.reads += (v.reads - 1) as f64;
        self.us += v.last.saturating_sub(v.first) as f64;
    }

    fn each(&self) -> f64 {
        self.us / self.reads.max(1.0)
    }
}

/// The neighbourhoods of one descriptor.
#[derive(Clone, Debug, Default)]
pub(super) struct Clustered {
    visits: [Visit; AT_ONCE],
    tick: u64,
    /// Neighbourhoods that were read to their end in succession.
    known: u32,
    /// Places read of each, and its width in bytes, on average.
    places: f64,
    width: f64,
    /// Each lies within one block of so many bytes, at a multiple of that; a power of two.
    block: u64,
    /// Of those that were left alone, and of those that were fetched.
    times: [Times; 2],
    /// Up to this read nothing is fetched.
    off: u64,
    pause: u64,
    /// What was asked for last, so many times, was cached.
    cached: u32,
}

impl Recogniser for Clustered {
    /// Looks whether it pays to fetch what lies around the read, once.
    fn observe(&mut self, read: &Read) -> Claim {
        let limits = read.limits;
        let distance = limits.random_distance;
        self.read(read.offset, read.len, distance, limits.now);
        match self.pays(distance, limits.delay) {
            true => Claim::Around,
            false => Claim::Nothing,
        }
    }
}

impl Source for Clustered {
    fn foresee(&mut self, read: &Read, most: u64) -> Vec<ByteRange> {
        let how = (read.limits.random_distance, read.limits.delay);
        let around = self.fetch(read.offset, read.size, how, most.min(AREA));
        around.into_iter().collect()
    }

    fn asked(&mut self, bytes: u64) {
        self.cached = if bytes == 0 { self.cached + 1 } else { 0 };
        if self.cached >= CACHED {
            self.let_be();
        }
    }

    fn duplicate(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}

impl Clustered {
    /// A read of `len` bytes at `offset`, at time `now`, µs; reads that lie no more than `distance` bytes apart are in one neighbourhood.
    fn read(&mut self, offset: u64, len: u64, distance: u64, now: u64) {
        self.tick += 1;
        let end = offset.saturating_add(len);
        let near = |v: &Visit| {
            // From the begin of one neighbourhood to the end of the next it is twice as far.
            let is_wide = v.width() > WIDTH * distance;
            let reach = if is_wide { 2 * distance } else { distance };
            v.places != 0
                && offset <= v.end.saturating_add(reach)
                && end.saturating_add(distance) >= v.start
        };
        let place = match self.visits.iter().position(near) {
            Some(place) => place,
            None => {
                let ticks = self.visits.iter().enumerate();
                let oldest = ticks.min_by_key(|(_, v)| v.tick).map_or(0, |(i, _)| i);
                self.over(oldest, distance);
                self.visits[oldest] = Visit {
                    start: offset,
                    end,
                    first: now,
                    ..Visit::default()
                };
                oldest
            }
        };
        let v = &mut self.visits[place];
        if end > v.end {
            v.grown = v.reads;
        }
        (v.start, v.end) = (v.start.min(offset), v.end.max(end));
        if v.width() <= WIDTH * distance {
            v.begun = v.start;
        }
        (v.tick, v.last) = (self.tick, now);
        v.reads += 1;
        v.places |= 1 << (offset / PAGE % 64);
        if v.width() > WIDTH * distance {
            // A stream, or a file that is read all over.
            self.known = 0;
        }
    }

    /// Nothing more is read of a neighbourhood.
    fn over(&mut self, i: usize, distance: u64) {
        let v = self.visits[i];
        if v.places == 0 || v.width() > WIDTH * distance {
            return;
        }
        let (places, width) = (f64::from(v.count()), v.width() as f64);
        if self.known == 0 {
            self.times = Default::default();
            (self.places, self.width, self.block) = (places, width, PAGE);
        }
        self.known = self.known.saturating_add(1);
        self.places += SHARE * (places - self.places);
        self.width += SHARE * (width - self.width);
        self.times[usize::from(v.fetched)].count(&v);
        let [alone, fetched] = &self.times;
        if fetched.visits >= TRIED && fetched.each() > GAIN * alone.each() {
            self.let_be();
        }
        while self.block < LONGEST && v.start / self.block != (v.end - 1) / self.block {
            self.block *= 2;
        }
    }

    /// Nothing is fetched for some time.
    fn let_be(&mut self) {
        self.pause = (4 * self.pause).max(PAUSE);
        self.off = self.tick + self.pause;
        (self.known, self.cached) = (0, 0);
    }

    /// Whether reads have come in neighbourhoods for some time.
    fn is_steady(&self) -> bool {
        self.known >= FEWEST && self.places >= 2.0 && self.tick >= self.off
    }

    /// Whether it pays to fetch one that is entered, or what comes next where the latest drifts: where `delay` bytes come in the time that one read waits.
    fn pays(&self, distance: u64, delay: u64) -> bool {
        if delay == 0 || self.tick < self.off {
            return false;
        }
        let latest = self.visits.iter().find(|v| v.tick == self.tick);
        let bytes = match self.is_aligned() {
            true => self.block,
            false => 2 * self.reach(),
        };
        self.is_steady() && self.places > 2.0 + bytes as f64 / delay as f64
            || latest.is_some_and(|v| v.drifts(distance, delay))
    }

    /// The neighbourhood of the latest read, at `offset`, if it pays to fetch it as a whole, once: where `delay` bytes come in the time that one read waits. At most `most`
    /// bytes of a file of `size`.
    fn fetch(
        &mut self,
        offset: u64,
        size: u64,
        (distance, delay): (u64, u64),
        most: u64,
    ) -> Option<ByteRange> {
        let latest = self.visits.iter_mut().find(|v| v.tick == self.tick);
        let drifts = |v: &&mut Visit| self.tick >= self.off && v.drifts(distance, delay);
        if let Some(v) = latest.filter(drifts) {
            let next = v.end.max(v.front);
            let ahead = (WIDTH * distance).min(most);
            if next >= v.end.saturating_add(ahead / 2).min(size) {
                return None;
            }
            v.front = v.end.saturating_add(ahead).min(size);
            return (next < v.front).then_some(next..v.front);
        }
        if !self.pays(distance, delay) {
            return None;
        }
        let area = self.area(offset, most);
        let v = self.visits.iter_mut().find(|v| v.tick == self.tick)?;
        let left = self.places - f64::from(v.count());
        let bytes = area.end.min(size).saturating_sub(area.start);
        if v.fetched || self.known.is_multiple_of(LEFT) || left <= 1.0 + bytes as f64 / delay as f64
        {
            return None;
        }
        v.fetched = true;
        Some(area.start..area.end.min(size))
    }

    /// Where blocks are a little wider than what is read of them, they are what is read …
    fn is_aligned(&self) -> bool {
        self.block <= 2 * self.reach()
    }

    /// … and elsewhere so many bytes to either side of a read.
    fn reach(&self) -> u64 {
        (self.width as u64).div_ceil(PAGE) * PAGE
    }

    fn area(&self, offset: u64, most: u64) -> ByteRange {
        if self.is_aligned() && self.block <= most {
            let start = offset / self.block * self.block;
            return start..start + self.block;
        }
        let reach = self.reach().min(most / 2);
        let page = offset / PAGE * PAGE;
        page.saturating_sub(reach)..page.saturating_add(reach)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISTANCE: u64 = 128 << 10;
    const SIZE: u64 = 1 << 40;

    /// Reads `pages` of each of some neighbourhoods that begin at `start`, each in 100 µs, or in `gained` where they were fetched, and says what is fetched.
    fn fetched_with(
        starts: impl Iterator<Item = u64>,
        pages: &[u64],
        delay: u64,
        gained: u64,
    ) -> Vec<ByteRange> {
        let mut clustered = Clustered::default();
        let mut all: Vec<ByteRange> = Vec::new();
        let mut now = 0;
        for start in starts {
            for page in pages {
                let offset = start + page * PAGE;
                let is_there = all.last().is_some_and(|a| a.contains(&offset));
                now += if is_there { gained } else { 100 };
                clustered.read(offset, PAGE, DISTANCE, now);
                all.extend(clustered.fetch(offset, SIZE, (DISTANCE, delay), 1 << 20));
            }
        }
        all
    }

    fn fetched(starts: impl Iterator<Item = u64>, pages: &[u64], delay: u64) -> Vec<ByteRange> {
        fetched_with(starts, pages, delay, 10)
    }

    /// CP3: what is fetched is the block in which the reads fall, where such blocks lie at multiples of their length, and around the first read where they don't; each
    /// once, and none before some were alike.
    #[test]
    fn neighbourhoods_are_fetched_once() {
        let pages = [3, 30, 11, 7, 25, 19, 0, 31];
        let blocks = || (0..32).map(|i| (i * 7919 % 1009) << 20);
        let areas = fetched(blocks(), &pages, 100 << 10);
        assert!((20..=28).contains(&areas.len()), "{}", areas.len());
        for area in &areas {
            assert!(area.start.is_multiple_of(128 << 10), "{area:?}");
            assert_eq!(area.end - area.start, 128 << 10);
            assert!(blocks().any(|b| b == area.start));
        }
        let anywhere = (0..32).map(|i| ((i * 7919 % 1009) << 20) + i * 36864);
        let areas = fetched(anywhere, &pages, 200 << 10);
        assert!(areas.len() >= 16, "{}", areas.len());
        assert!(areas.iter().all(|a| a.end - a.start <= 256 << 10));
    }

    /// Design, "off is a decision too": where reads take as long as before, it is tried ever more rarely.
    #[test]
    fn what_gains_nothing_is_let_be() {
        let blocks = (0..20_000).map(|i| (i * 7919 % 100_003) << 20);
        let pages = [3, 30, 11, 7, 25, 19, 0, 31];
        let tried = fetched_with(blocks.clone(), &pages, 100 << 10, 95).len();
        assert!((10..200).contains(&tried), "{tried}");
        let gained = fetched_with(blocks, &pages, 100 << 10, 50).len();
        assert!(gained > 18_000, "{gained}");
    }

    /// CP3: where one neighbourhood passes into the next, what comes next is fetched a little ahead, and each byte once.
    #[test]
    fn neighbourhoods_that_drift_are_fetched_ahead() {
        let pages = [3, 30, 11, 7, 25, 19, 0, 31];
        let blocks = (1000..1064u64).map(|i| i << 17);
        let areas = fetched(blocks, &pages, 100 << 10);
        let all: u64 = areas.iter().map(|a| a.end - a.start).sum();
        assert!(all > 56 << 17 && all < 68 << 17, "{all}");
        assert!(areas.windows(2).all(|w| w[0].end <= w[1].start));
    }

    /// CP3: nothing is where reads jump further (000), where too few fall together for the time that it takes, or where few drift.
    #[test]
    fn nothing_is_fetched_in_vain() {
        let far = (0..400).map(|i| (i * 7919 % 1009) << 20);
        assert_eq!(fetched(far.clone(), &[0], 100 << 10), []);
        assert_eq!(fetched(far.clone(), &[3, 30], 100 << 10), []);
        assert_eq!(fetched(far, &[3, 30, 11, 7, 25, 19, 0, 31], 8 << 10), []);
        assert_eq!(fetched((0..400).map(|i| i << 16), &[0], 100 << 10), []);
    }
}
