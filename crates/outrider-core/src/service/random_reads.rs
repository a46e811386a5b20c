//! Reads of a file in no order: whether it is cached, and whether what they fall in is worth streaming (`source::dense` decides).

use std::ops::Add;
use std::time::Duration;

use outrider_sys::cache::CacheStatError;
use outrider_sys::units::{ByteRange, InodeKey, PAGE};

use super::decide::{Disorder, Want};
use super::kernel::Kernel;
use super::{FileState, Service};
use crate::clock::Moment;
use crate::device::{DeviceModel, Link, READAHEAD, Seeks, TRIES};
use crate::engine::Class;
use crate::intent::Intent;
use crate::shm::{self, Origin};
use crate::source::Arrival;
use crate::source::dense::{self, Case, Draws, Held, Price, Random, Verdict};
use crate::view::PageRange;

/// Reads before it is looked whether the file is cached, and before anything is measured for them.
const FIRST: u64 = 16;
/// Reads that are looked at from one sample to the next, until one finds the file cached.
const SAMPLED: u64 = 16;
/// Places of a sample, and bytes of each.
const PLACES: usize = 4;
const PLACE: u64 = 64 << 10;
/// Of the latest reads so few miss that the file is taken for cached.
const RARE: f64 = 0.05;
/// Reads by which it is seen whether a device has room, at the latest.
const PROBED: u64 = 128;
/// Misses after which it is tried again whether a device has room that seemed to have none: then after twice as many.
const TRY_AGAIN: f64 = 256.0;
/// Misses from whose number it is believed how long each takes at most.
const FEW_MISSES: f64 = 16.0;
/// So many times the share of reads that miss, a program meets a piece with one.
const MISSES: f64 = 2.0;
/// Requests by which a device's latency is measured that nothing else is asked of.
const PROBES: u32 = 2;
/// What is bought at once as quickly as the device can takes it no longer than this, µs, unless four times as many pieces do as otherwise: a program may turn elsewhere.
const SOON_US: f64 = 8000.0;
/// Files that were read within so long are being read.
const LATELY: Duration = Duration::from_secs(1);

/// What is known of a file's reads in no order.
pub(super) struct RandomReads {
    seen: Random,
    /// Reads at which streaming is considered next.
    consider_at: u64,
    /// What was said last.
    verdict: Verdict,
    /// Streamed in whole: reads are all foreseen.
    streamed: bool,
    /// What was asked for of the region, bytes: from where that was begun, to where it goes on.
    front: ByteRange,
    /// Misses after which it is tried again whether the device has room.
    try_again_at: f64,
    /// Samples in succession that found the file cached.
    resident: u32,
    samples: u32,
    /// When the first was seen, and the latest.
    began: Option<Moment>,
    latest: Moment,
}

impl RandomReads {
    /// None yet.
    pub(super) fn new() -> RandomReads {
        RandomReads {
            seen: Random::default(),
            consider_at: dense::FEWEST,
            verdict: Verdict::After(dense::FEWEST),
            streamed: false,
            front: 0..0,
            try_again_at: TRY_AGAIN,
            resident: 0,
            samples: 0,
            began: None,
            latest: Moment::default(),
        }
    }

    /// Forgets what reads have come to.
    pub(super) fn forget(&mut self) {
        *self = RandomReads {
            resident: self.resident,
            samples: self.samples,
            ..RandomReads::new()
        };
    }

    /// Forgets that samples have found the file cached.
    pub(super) fn forget_samples(&mut self) {
        self.resident = 0;
    }

    /// Bytes that it takes besides itself.
    pub(super) fn bytes(&self) -> usize {
        self.seen.bytes()
    }

    /// Whether what they fall in was asked for as a whole.
    pub(super) fn is_streamed(&self) -> bool {
        self.streamed
    }

    /// Whether what they fall in is being fetched as quickly as the device can: what that costs them is accounted for.
    pub(super) fn is_hurried(&self) -> bool {
        matches!(self.verdict, Verdict::Hurry(_))
    }

    /// Whether what they fall in is to be asked for as a whole once there is room.
    pub(super) fn is_to_be_streamed(&self) -> bool {
        self.verdict == Verdict::Later
    }

    /// Samples in succession that found the file cached.
    pub(super) fn resident(&self) -> u32 {
        self.resident
    }

    /// Whether the file is cached, as far as samples tell.
    fn is_resident(&self) -> bool {
        self.seen.reads >= FIRST && self.resident > 0
    }

    /// Whether a part of what they fall in was asked for: then each read says whether it was worth it.
    pub(super) fn is_begun(&self) -> bool {
        self.seen.bought > 0
    }

    /// Whether each read is heard for that. Not of a program that hardly misses anything any more, where what is there was not bought.
    fn is_watched(&self) -> bool {
        let waits = matches!(self.verdict, Verdict::After(_) | Verdict::No);
        self.is_begun() && !(waits && self.seen.missing_lately < RARE)
    }

    /// What of a region comes next, bytes; `None` once all of it was asked for.
    fn next_of(&self, region: &ByteRange) -> Option<ByteRange> {
        if self.front.is_empty() {
            return Some(region.clone());
        }
        let ahead = self.front.end.max(region.start)..region.end;
        let before = region.start..self.front.start.min(region.end);
        [ahead, before].into_iter().find(|r| r.start < r.end)
    }

    /// All up to a place of what came next was asked for: `bytes` that were not there, which cost the program `us`.
    fn has_bought(&mut self, part: ByteRange, bytes: u64, us: f64) {
        self.front = match self.front.is_empty() {
            true => part,
            false => self.front.start.min(part.start)..self.front.end.max(part.end),
        };
        self.seen.bought += bytes;
        self.seen.spent_us += us;
    }

    /// Bytes were read that had been fetched ahead.
    pub(super) fn uses(&mut self, bytes: u64) {
        if self.is_begun() {
            self.seen.used += bytes;
        }
    }

    /// Whether it is time to look whether the file is cached.
    fn is_sample_due(&self) -> bool {
        !self.is_watched()
            && self.seen.reads >= FIRST
            && (self.resident > 0 || self.seen.sampled.is_multiple_of(SAMPLED))
    }

    /// A sample was taken, and all of it is cached, or not.
    fn sampled(&mut self, cached: bool) {
        self.resident = match cached {
            true => self.resident + 1,
            false => 0,
        };
    }

    /// Where the next sample is taken: bytes where pages begin, chosen by `seed`.
    fn places(&mut self, seed: u64) -> [u64; PLACES] {
        let hull = self.seen.hull.clone();
        let span = (hull.end - hull.start).max(1);
        let mut x = seed ^ (u64::from(self.samples) << 17) ^ 0x9e37_79b9_7f4a_7c15;
        self.samples = self.samples.wrapping_add(1);
        [(); PLACES].map(|()| {
            x = x
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (hull.start + (x >> 11) % span) / PAGE * PAGE
        })
    }

    /// Where a request is made to see how long it takes: any place that reads may fall in, of a file of `size` bytes.
    fn probe(&self, seed: u64, size: u64) -> u64 {
        let hull = match self.seen.hull.is_empty() {
            true => 0..size,
            false => self.seen.hull.clone(),
        };
        let x = (seed ^ self.seen.reads).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hull.start + (x >> 11) % (hull.end - hull.start).max(1)) / PAGE * PAGE
    }

    /// How many reads may go unheard before streaming is considered, if that is to be.
    fn patience(&self) -> Option<u64> {
        match self.verdict {
            Verdict::No => None,
            Verdict::After(_) if self.is_watched() => Some(0),
            Verdict::After(_) => Some(self.consider_at.saturating_sub(self.seen.reads)),
            Verdict::Buy(_) | Verdict::Hurry(_) | Verdict::Later | Verdict::Hear => Some(0),
        }
    }

    /// What came of considering; and when that is done again. Of a file that is to be streamed now, at the next read, unless it has begun.
    fn judged(&mut self, verdict: Verdict) {
        self.verdict = verdict;
        // The kernel counts the pages of a large file in milliseconds.
        let reads = self.seen.reads;
        self.consider_at = match verdict {
            Verdict::Buy(_) | Verdict::Hurry(_) => reads + 1,
            Verdict::After(wait) => reads.saturating_add(wait),
            Verdict::No => reads.saturating_add(reads / 2 + 64),
            _ => reads.saturating_add((reads / 16).max(8)),
        };
    }

    /// What a read costs that misses, and a piece. A request of ours waits behind the program's, which shows what that waits only from above.
    fn price(&self, model: &DeviceModel, now: Moment) -> Price {
        let each = self.seen.bytes as f64 / self.seen.reads.max(1) as f64;
        // A fault waits for what the kernel reads around it.
        let each = match self.seen.unrepeated {
            true => each.max(READAHEAD as f64),
            false => each,
        };
        // Beside what is bought requests take longer than a program's reads alone.
        let bulk = model.bulk();
        // What was seen of requests that are few may be half of what there is.
        let bandwidth = model.bandwidth.min(2.0 / model.byte_us());
        let lone = bulk.lone_us().unwrap_or(f64::MAX);
        let miss_us = model.latency_us.min(lone) + each / bandwidth;
        let passed = self
            .began
            .map_or(0.0, |began| (now - began).as_secs_f64() * 1e6);
        let pieces_us = match bulk.has_room() {
            true => self.seen.slowed_us,
            false => self.seen.spent_us,
        };
        let without_us = passed - pieces_us - self.seen.probed_us;
        // Of a mapping it is not known how many there were.
        let known =
            |misses: f64| misses >= FEW_MISSES && !(self.seen.unrepeated && bulk.has_room());
        let waits_us = match self.seen.missed() {
            misses if known(misses) => miss_us.min((without_us / misses).max(0.0)),
            _ => miss_us,
        };
        // What a piece takes of a device that has room follows from what that takes itself.
        let beside_us = if bulk.has_room() { miss_us } else { waits_us };
        // Between its misses a program that doesn't think takes next to no time, and meets each piece with the next one, unless hardly any is left.
        let meets = (self.seen.missing_lately * MISSES).min(1.0);
        // A head that is called away from a read of several windows has to come back for the next one.
        let windows = (each / READAHEAD as f64).max(1.0);
        let back_us = match model.may_seek() {
            true => model.latency_us * (1.0 - 1.0 / windows),
            false => 0.0,
        };
        let link = Link { bandwidth, each };
        let hurried_us = bulk.hurried_us(beside_us, &link);
        Price {
            miss_us: waits_us,
            piece_us: (bulk.delay_us(beside_us, &link) + back_us) * meets,
            hurried_us: match hurried_us.is_finite() {
                true => (hurried_us + back_us) * meets,
                false => hurried_us,
            },
            piece: model.piece(),
            soon: ((SOON_US / hurried_us) as u64).max(4 * dense::AT_ONCE),
            has_room: bulk.has_room(),
        }
    }
}

/// A read that fits no pattern.
pub(super) struct Unordered {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) arrival: Arrival,
    /// So many more like it were not told.
    pub(super) skipped: u64,
    /// It lies behind the last one, as those before.
    pub(super) onward: bool,
    /// Those that fall where one had fallen are not told.
    pub(super) unrepeated: bool,
}

impl<K: Kernel> Service<K> {
    /// Takes in a read that fits no pattern, and looks what there is to decide by.
    pub(super) fn take_in_random(&mut self, key: InodeKey, read: &Unordered) -> Option<Disorder> {
        let now = self.kernel.now();
        let miss_us = self.model(self.device(key)).latency_us;
        let file = self.files.get_mut(&key)?;
        let missing = read.arrival == Arrival::Missing;
        let size = file.size();
        let busy = file.account.queued_bytes() > 0 || file.view.in_flight_pages() > 0;
        let of = &mut file.random;
        // Touches of a mapping are seen several at once: the time between them says nothing.
        if of.began.is_some() && !read.unrepeated {
            let us = (now - of.latest).as_nanos() as f64 / 1e3;
            // One that waits for what is on its way waits no longer than it would have.
            let waits = read.arrival != Arrival::Present;
            of.seen.paced(us, waits, read.skipped, miss_us, busy);
        }
        of.latest = now;
        of.began.get_or_insert(now);
        of.seen.unrepeated |= read.unrepeated;
        of.seen
            .count(read.offset, read.len, missing, read.skipped, size);
        let mut known = Disorder {
            streamed: of.streamed.then(|| file.view.unused_pages()),
            ..Disorder::default()
        };
        if known.streamed.is_some() {
            return Some(known);
        }
        if of.is_sample_due() {
            // Looked for where the program has not just read.
            let cached = self.sample(key, read.offset) == Some(true);
            self.files.get_mut(&key)?.random.sampled(cached);
        }
        let of = &self.files.get(&key)?.random;
        if of.is_resident() {
            known.resident = of.resident;
            return Some(known);
        }
        let considers = self.streams_regions();
        if considers && missing && of.seen.reads >= FIRST {
            self.probe(key, read.offset);
        }
        // What reads that go onward have fallen in is behind them.
        if considers && !read.onward && !self.is_probing(key) {
            known.region = self.consider_streaming(key);
            known.patience = self.files.get(&key)?.random.patience();
        }
        Some(known)
    }

    /// Whether what random reads fall in is streamed at all.
    fn streams_regions(&self) -> bool {
        self.mode >= shm::MODE_PREDICT_OPT
            && self.config.dense.enabled
            && self.config.dense.share > 0.0
            && self.memory.is_aggressive()
    }

    /// Goes on with what random reads fall in, between two of them, beside a device's room. Whether anything was asked for.
    pub(super) fn goes_on_streaming(&mut self, key: InodeKey) -> bool {
        let begun = self.files.get(&key).is_some_and(|f| f.random.is_begun());
        if !begun || !self.streams_regions() {
            return false;
        }
        if !self.model(self.device(key)).bulk().has_room() {
            return false;
        }
        let region = self.consider_streaming(key);
        if let Some(region) = region.clone() {
            self.stream_region(key, &Want::dense(region));
        }
        region.is_some()
    }

    /// Random reads alone bring no request of ours from which the device's latency could be learned, and what streaming is weighed against
    /// would be a guess: fetches a few pages of the region that they fall in, first one at a time, then several at once, as far as there is credit for that.
    /// Of streams it isn't known whether they wait for a head, or for a network that answers as late.
    pub(super) fn probe(&mut self, key: InodeKey, seed: u64) {
        let device = self.device(key);
        // As it is now: what was tried a moment ago need not be tried again.
        let mut model = self.engine.model(device);
        // Whatever was in the way of the first tries costs a program that goes on ever more.
        let refused = model.bulk().tries() >= TRIES && !model.bulk().does_several();
        if refused && !model.may_seek() && !self.engine.is_busy() {
            let Some(file) = self.files.get_mut(&key) else {
                return;
            };
            if file.random.seen.missed() >= file.random.try_again_at {
                file.random.try_again_at *= 2.0;
                self.engine.try_room_again(device);
                model = self.engine.model(device);
            }
        }
        let alone = model.samples() < PROBES || model.bulk().lone_us().is_none();
        if !alone && model.bulk().tries() >= TRIES || self.engine.is_busy() {
            return;
        }
        let share = self.config.dense.share;
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        let of = &mut file.random;
        let requests = if alone { 1 } else { model.at_once() };
        let us = model.latency_us * requests as f64;
        let waited = match of.seen.reads {
            0 => file.credit.waited_us(),
            _ => of.seen.misses as f64 * model.latency_us,
        };
        if model.has_latency() && of.seen.probed_us + us > dense::CREDIT_US + share * waited {
            return;
        }
        of.seen.probed_us += us;
        let size = file.size();
        let at = |k: u64| {
            let at = file.random.probe(seed.wrapping_add(k << 32), size);
            at..(at + PAGE).min(size)
        };
        let places: Vec<_> = (0..requests as u64).map(at).collect();
        self.fetch(Intent {
            class: Class::Background,
            ..Intent::new(key, &places, Origin::Dense)
        });
    }

    /// Whether it is still to be seen if the device has room for pieces, without which nothing is bought.
    pub(super) fn is_probing(&mut self, key: InodeKey) -> bool {
        let model = self.model(self.device(key));
        let untried = model.bulk().tries() < TRIES && model.seeks() != Seeks::Yes;
        let few = |f: &FileState| (FIRST..PROBED).contains(&f.random.seen.sampled);
        untried && self.files.get(&key).is_some_and(few)
    }

    /// Whether a few places of the file, chosen by `seed`, are all cached; `None` where it can't be known.
    pub(super) fn sample(&mut self, key: InodeKey, seed: u64) -> Option<bool> {
        let handle = self.handle(key)?;
        let file = self.files.get_mut(&key)?;
        if file.is_blind() {
            return None;
        }
        let size = file.size();
        for at in file.random.places(seed) {
            // It may have become shorter.
            let end = (at + PLACE).min(size).max(at);
            match self.count_cached(&handle, at..end) {
                Ok(counted) if !counted.is_whole() => return Some(false),
                Ok(_) => {}
                Err(e) => {
                    self.no_cachestat(key, e);
                    return None;
                }
            }
        }
        Some(true)
    }

    /// Considers whether it pays to stream what random reads fall in, if it is time: the part of it that is to be fetched now.
    fn consider_streaming(&mut self, key: InodeKey) -> Option<ByteRange> {
        let due = self.files.get(&key)?;
        let waits = due.account.queued_bytes() > 0;
        if due.random.seen.reads < due.random.consider_at || waits {
            return None;
        }
        let region = due.random.seen.region(due.size());
        if due.random.next_of(&region).is_none() {
            self.files.get_mut(&key)?.random.streamed = true;
            return None;
        }
        let held = match due.random.is_begun() {
            true => None,
            false => self.held(key, &region),
        };
        let model = self.model(self.device(key));
        let file = self.files.get(&key)?;
        let pages = PageRange::from_bytes(region.start, region.end - region.start).len();
        let there = file.view.present_pages() + file.view.in_flight_pages();
        let there = held.map_or(there, |held| held.cached);
        let missing = pages.saturating_sub(there) * PAGE;
        if missing == 0 && file.random.is_begun() {
            self.files.get_mut(&key)?.random.streamed = true;
            return None;
        }
        let price = file.random.price(&model, self.kernel.now());
        let (others, draws) = self.read_like(key);
        let case = Case {
            missing,
            others,
            room: self.room(),
            grant: self.memory.total(),
            draws,
            held,
        };
        let share = self.config.dense.share;
        let of = &mut self.files.get_mut(&key)?.random;
        // Before a piece was seen only of a head it is known well enough what it takes.
        let known = model.bulk().is_known() || model.may_seek() && of.is_begun();
        let dearer = known && !price.has_room && price.is_higher(of.seen.each());
        let verdict = match dearer {
            true => Verdict::After(dense::FEWEST),
            false => of.seen.decide(case, price, share),
        };
        of.judged(verdict);
        let (Verdict::Buy(pieces) | Verdict::Hurry(pieces)) = verdict else {
            return None;
        };
        let next = of.next_of(&region)?;
        let bytes = pieces * price.piece;
        Some(next.start..next.end.min(next.start + bytes))
    }

    /// Other files that are read in no order at the moment: what of them is not cached, bytes, and how their reads fell.
    fn read_like(&self, key: InodeKey) -> (u64, Draws) {
        let alike = |f: &&FileState| {
            f.key != key
                && f.hold.is_open()
                && f.random.seen.reads >= dense::FEWEST
                && self.kernel.since(f.last_access()) < LATELY
        };
        let of = |f: &FileState| {
            let hull = &f.random.seen.hull;
            let hull = PageRange::from_bytes(hull.start, hull.end - hull.start);
            let there = f.view.present_pages() + f.view.in_flight_pages();
            let missing = hull.len().saturating_sub(there) * PAGE;
            (missing, f.random.seen.draws())
        };
        let others = self.files.values().filter(alike).map(of);
        others.fold((0, Draws::default()), |all, (missing, draws)| {
            (u64::saturating_add(all.0, missing), all.1.add(draws))
        })
    }

    /// What the kernel holds of a file's region.
    fn held(&mut self, key: InodeKey, region: &ByteRange) -> Option<Held> {
        if self.files.get(&key)?.is_blind() {
            return None;
        }
        let handle = self.handle(key)?;
        match self.kernel.counted(&handle, region.clone()) {
            Ok(stat) => {
                let unused = self.files.get(&key)?.view.unused_pages();
                Some(Held {
                    cached: stat.cached,
                    brought: (stat.cached + stat.evicted).saturating_sub(unused),
                })
            }
            // What has left the cache only cachestat tells.
            Err(CacheStatError::Unsupported) => None,
            Err(e) => {
                self.no_cachestat(key, e);
                None
            }
        }
    }

    /// Has a region fetched as a whole. Of what is refused because there is no room, the rest is asked for later.
    pub(super) fn stream_region(&mut self, key: InodeKey, want: &Want) {
        let model = self.model(self.device(key));
        let hurries = self.files.get(&key).is_some_and(|f| f.random.is_hurried());
        let class = match hurries {
            true => Class::Background,
            false => Class::Bulk,
        };
        let plan = self.fetch(Intent {
            class,
            ..want.of(key)
        });
        let now = self.kernel.now();
        let (Some(file), Some(part)) = (self.files.get_mut(&key), want.ranges.first()) else {
            return;
        };
        let end = plan.refused_at.unwrap_or(part.end).min(part.end);
        if end > part.start {
            let price = file.random.price(&model, now);
            let pieces = plan.bytes as f64 / price.piece as f64;
            let us = pieces
                * match hurries {
                    true => price.hurried_us,
                    false => price.piece_us,
                };
            file.random.has_bought(part.start..end, plan.bytes, us);
        }
    }
}
