//! Random reads that add up to most of a file.
//!
//! No pattern tells where the next read falls, yet if the program goes on, every block of the region will be wanted, and the
//! device delivers the region in order many times faster than block by block. Whether the program goes on is unknown.
//! This is the ski-rental problem: renting is one random miss (latency), buying is streaming what is missing
//! (bytes / bandwidth). Buying when the rent paid equals the price costs at most twice the optimum; buying
//! at a share `investment` of it costs at most 1 + 1/investment of what was spent and at best
//! 1 + investment of the optimum. The paper has nothing like it; its `fetchall` buys at once.

use outrider_sys::units::{ByteRange, PAGE};

/// What is known of a file's random reads.
#[derive(Clone, Debug, Default)]
pub struct Random {
    /// Random reads seen or skipped.
    pub reads: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Of the reads that were looked at, those that found something missing …
    pub misses: u64,
    /// … and all that were looked at.
    pub sampled: u64,
    /// The region they fall in, bytes.
    pub hull: ByteRange,
    /// Of the reads that were looked at, those that fell where one had fallen before.
    pub repeats: u64,
    /// Reads that fall where one had fallen before are not all seen: of a mapping only what is touched first is.
    pub unrepeated: bool,
    /// Where the kernel's counts began.
    since: Option<Since>,
    touched: Vec<u64>,
    /// The blocks of the latest reads, each plus one.
    recent: [u64; RECENT],
}

/// What the kernel says of the pages of a region.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Cached, or on their way.
    pub cached: u64,
    /// Read by the program at some time: cached or evicted since, without what was prefetched and not used.
    pub brought: u64,
}

/// The state at the first look at what the kernel holds.
#[derive(Clone, Copy, Debug)]
struct Since {
    misses: f64,
    brought: u64,
}

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What of the region is not cached, bytes.
    pub missing: u64,
    /// The same of other files that are being read in this way, bytes.
    pub others: u64,
    /// What may be asked for now, bytes …
    pub room: u64,
    /// … and once all that was asked for is used.
    pub grant: u64,
    /// How the reads of these files fell.
    pub draws: Draws,
    /// What the kernel holds of the region, if it says so.
    pub held: Option<Held>,
}

/// Reads that fell where one had fallen before, and as many as would if they were drawn evenly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draws {
    repeats: f64,
    by_chance: f64,
}

impl std::ops::Add for Draws {
    type Output = Draws;

    fn add(self, other: Draws) -> Draws {
        Draws {
            repeats: self.repeats + other.repeats,
            by_chance: self.by_chance + other.by_chance,
        }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Stream the region.
    Now,
    /// Stream it when there is room.
    Later,
    /// Decide anew after so many reads.
    After(u64),
    /// Too little is known: hear every read.
    Hear,
    /// Not worth it, as far as can be told.
    No,
}

/// Threads that read the same blocks, each at its own pace, wait for the same request: such reads are one.
const RECENT: usize = 16;

/// Reads before anything is decided.
pub const FEWEST: u64 = 32;

/// Chance repeats that are due before it is believed that there are none: with so many, fewer than a quarter come once in 2000 times.
const TELLING: f64 = 12.0;

/// Regions in which repeats are counted: a bit for each 16 KiB up to this many, then coarser.
const TOUCH_BITS: u64 = 1 << 17;

/// The device as far as this decision needs it.
#[derive(Clone, Copy, Debug)]
pub struct Price {
    /// Microseconds from a request of one block to its arrival.
    pub latency_us: f64,
    /// Bytes per microsecond when streaming.
    pub bandwidth: f64,
}

impl Random {
    /// Counts a random read and `skipped` more like it that were not told.
    pub fn count(&mut self, offset: u64, len: u64, missing: bool, skipped: u64, size: u64) {
        let block = (size / TOUCH_BITS + 1).max(16 << 10);
        let place = offset / block + 1;
        if len >= block && self.recent.contains(&place) {
            return;
        }
        self.recent[self.sampled as usize % RECENT] = place;
        let reads = skipped.saturating_add(1);
        self.reads = self.reads.saturating_add(reads);
        self.bytes = self.bytes.saturating_add(len.saturating_mul(reads));
        self.sampled += 1;
        self.misses += u64::from(missing);
        let end = offset.saturating_add(len).min(size).max(offset);
        self.hull = if self.hull.is_empty() {
            offset..end
        } else {
            self.hull.start.min(offset)..self.hull.end.max(end)
        };
        if self.touched.is_empty() {
            self.touched = vec![0; (TOUCH_BITS / 64) as usize];
        }
        let bit = (offset / block) % TOUCH_BITS;
        let (word, mask) = ((bit / 64) as usize, 1u64 << (bit % 64));
        self.repeats += u64::from(self.touched[word] & mask != 0);
        self.touched[word] |= mask;
    }

    /// Bytes that it takes besides itself.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.touched)
    }

    /// The region of a file of `size` bytes that the reads seem to be drawn from. Where the outermost reads leave no more to an end of the file
    /// than chance does, it reaches to the end.
    pub fn region(&self, size: u64) -> ByteRange {
        // Reads drawn evenly leave an average gap at each end, and eight of them once in 3000 times.
        let margin = (self.hull.end - self.hull.start).saturating_mul(8) / self.sampled.max(1);
        let start = if self.hull.start <= margin {
            0
        } else {
            self.hull.start
        };
        let end = if size.saturating_sub(self.hull.end) <= margin {
            size
        } else {
            self.hull.end
        };
        start..end
    }

    /// Whether the region is worth streaming; `investment` as in the module's text.
    ///
    /// Where memory doesn't hold all of these files, streaming one drives out what was read of them. That is no loss only if nothing is read
    /// twice, and until that is known every read is worth hearing: it takes some five times the root of the number of blocks.
    pub fn decide(&mut self, case: Case, price: Price, investment: f64) -> Verdict {
        let miss_rate = self.misses as f64 / self.sampled.max(1) as f64;
        let heard = self.reads as f64 * miss_rate;
        if let (None, Some(held)) = (self.since, case.held) {
            self.since = Some(Since {
                misses: heard,
                brought: held.brought,
            });
        }
        if case.missing == 0 {
            return Verdict::No;
        }
        let own = self.draws();
        if own.repeats > 2.0 * own.by_chance + 16.0 {
            // A program that returns to the same blocks more often than chance would have it will not want them all.
            return Verdict::No;
        }
        let crowded = case.missing.saturating_add(case.others) > case.grant;
        if crowded && self.unrepeated {
            return Verdict::No;
        }
        if crowded {
            let all = own + case.draws;
            if all.repeats * 4.0 > all.by_chance.max(TELLING) {
                return Verdict::No;
            }
            if all.by_chance < TELLING {
                return Verdict::Hear;
            }
        }
        // What nobody looked at may have been cached by another read that nobody looked at.
        let misses = match (case.held, self.since) {
            (Some(held), Some(since)) => {
                let block = (self.bytes / self.reads.max(1)).max(PAGE) as f64;
                let new = held.brought.saturating_sub(since.brought) * PAGE;
                heard.min(since.misses + new as f64 / block)
            }
            _ => heard,
        };
        let cost = case.missing as f64 / price.bandwidth.max(1e-3);
        let unpaid = cost * investment - misses * price.latency_us;
        if unpaid > 0.0 {
            let rent = price.latency_us * misses / self.reads.max(1) as f64;
            return match rent > 0.0 {
                true => Verdict::After(((unpaid / rent) as u64).max(16)),
                false => Verdict::No,
            };
        }
        if case.missing > case.grant {
            // What the program reads itself need not be fetched.
            let each = (self.bytes / self.reads.max(1)).max(1);
            return Verdict::After(((case.missing - case.grant) / each).max(16));
        }
        let wanted = case
            .missing
            .saturating_add(if crowded { 0 } else { case.others });
        match wanted > case.room {
            true => Verdict::Later,
            false => Verdict::Now,
        }
    }

    /// How the reads that were looked at fell.
    pub fn draws(&self) -> Draws {
        let blocks = (self.hull.end - self.hull.start).max(1) as f64 * self.reads as f64
            / self.bytes.max(1) as f64;
        let looked_at = self.sampled as f64;
        Draws {
            repeats: self.repeats as f64,
            by_chance: looked_at - blocks * (1.0 - (-looked_at / blocks).exp()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether `missing` bytes are streamed at once, beside `others` and with `grant`, where the kernel doesn't say what it holds.
    fn buys(r: &mut Random, missing: u64, others: u64, grant: u64) -> bool {
        let case = Case {
            missing,
            others,
            room: grant,
            grant,
            draws: Draws::default(),
            held: None,
        };
        r.decide(case, NVME, 0.25) == Verdict::Now
    }

    const NVME: Price = Price {
        latency_us: 92.0,
        bandwidth: 1400.0,
    };

    /// B11: a permutation is streamed after a quarter of the price was paid; a few reads, a cached file, or one too large for
    /// the budget are not.
    #[test]
    fn buys_at_a_share_of_the_price() {
        let size = 512u64 << 20;
        let mut r = Random::default();
        let mut x = 1u64;
        let mut bought = None;
        for i in 0..20_000u64 {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            r.count(((x >> 33) % (size >> 14)) << 14, 16 << 10, true, 0, size);
            assert!(!buys(&mut r, size, 0, size / 2), "does not fit");
            if buys(&mut r, size, 0, size) {
                bought = Some(i);
                break;
            }
        }
        let price = size as f64 / NVME.bandwidth / NVME.latency_us;
        let at = bought.expect("never streamed") as f64;
        assert!(
            (at / (price * 0.25) - 1.0).abs() < 0.1,
            "bought after {at} of {price}"
        );
        let mut cached = Random::default();
        for i in 0..20_000u64 {
            cached.count((i * 7919 % (size >> 14)) << 14, 16 << 10, false, 0, size);
        }
        assert!(!buys(&mut cached, size, 0, size));
    }

    /// CP11, B11: of a file that is touched through a mapping, and doesn't fit, nothing is streamed, because what is touched twice doesn't show.
    #[test]
    fn mapped_files_have_to_fit() {
        let size = 512u64 << 20;
        let mut r = Random::default();
        for i in 0..(size >> 14) {
            r.count((i * 20_011 % (size >> 14)) << 14, 16 << 10, true, 0, size);
        }
        r.unrepeated = true;
        assert!(buys(&mut r, size, 0, size));
        let crowded = Case {
            missing: size,
            others: 0,
            room: size / 2,
            grant: size / 2,
            draws: Draws::default(),
            held: None,
        };
        assert_eq!(r.decide(crowded, NVME, 0.25), Verdict::No);
    }

    /// CP14, B11: threads that read the same random order, a few reads apart, are no reason to take it for a hot spot.
    #[test]
    fn threads_in_step_are_one_reader() {
        let size = 512u64 << 20;
        let blocks = size >> 14;
        let mut r = Random::default();
        // An odd factor makes a permutation.
        let order: Vec<u64> = (0..blocks).map(|i| i * 20_011 % blocks).collect();
        let bought = (3..blocks as usize).find(|i| {
            for behind in 0..4 {
                let at = order[i - behind] << 14;
                r.count(at, 16 << 10, behind == 0, 0, size);
            }
            buys(&mut r, size, 0, size)
        });
        let price = size as f64 / NVME.bandwidth / NVME.latency_us;
        let at = bought.expect("never streamed") as f64;
        assert!(at < price, "bought after {at} of {price}");
    }

    /// B11: one of several files that memory can't hold together is streamed only if its blocks are read once each, and all of these
    /// files together show that.
    #[test]
    fn crowded_files_must_not_repeat() {
        let size = 64u64 << 20;
        let blocks = size >> 14;
        let mut x = 1u64;
        let mut drawn = || {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (x >> 33) % blocks
        };
        let case = |draws| Case {
            missing: size,
            others: 3 * size,
            room: size,
            grant: size,
            draws,
            held: None,
        };
        let mut again = Random::default();
        for _ in 0..blocks {
            again.count(drawn() << 14, 16 << 10, true, 0, size);
            assert_ne!(
                again.decide(case(Draws::default()), NVME, 0.25),
                Verdict::Now
            );
        }
        assert!(buys(&mut again, size, 0, size));
        // Alone, and as one of four.
        for (files, earliest, latest) in [(1.0, 300, 340), (4.0, 120, 170)] {
            let mut once = Random::default();
            let bought = (0..blocks).find(|i| {
                once.count((i * 2011 % blocks) << 14, 16 << 10, true, 0, size);
                let own = once.draws();
                let others = Draws {
                    repeats: own.repeats * (files - 1.0),
                    by_chance: own.by_chance * (files - 1.0),
                };
                once.decide(case(others), NVME, 0.25) == Verdict::Now
            });
            assert!(
                bought.is_some_and(|at| (earliest..latest).contains(&at)),
                "{bought:?}"
            );
        }
    }

    /// B11: the moment of buying is not missed because few reads are told, and not hurried by reads that found cached what one that nobody
    /// told of had brought.
    #[test]
    fn silence_ends_in_time() {
        let size = 512u64 << 20;
        let blocks = size >> 14;
        let price = size as f64 / NVME.bandwidth / NVME.latency_us * 0.25;
        for distinct in [1u64, 2] {
            let mut r = Random::default();
            let (mut read, mut told, mut skip) = (0u64, 0, 0u64);
            let bought = loop {
                r.count(
                    (read / distinct * 20_011 % blocks) << 14,
                    16 << 10,
                    true,
                    skip,
                    size,
                );
                read += 1;
                told += 1;
                let cached = read.div_ceil(distinct) * 4;
                let case = Case {
                    missing: size - cached * PAGE,
                    others: 0,
                    room: size,
                    grant: size,
                    draws: Draws::default(),
                    held: Some(Held {
                        cached,
                        brought: cached,
                    }),
                };
                skip = match r.decide(case, NVME, 0.25) {
                    Verdict::Now => break read,
                    Verdict::After(reads) => reads,
                    other => panic!("{other:?} after {read}"),
                };
                read += skip;
            };
            let due = price * distinct as f64;
            assert!(
                (0.85..1.1).contains(&(bought as f64 / due)),
                "bought after {bought} of {due}"
            );
            assert!(told < 20, "{told} reads told");
        }
    }

    /// B11: what is streamed reaches to the ends of a file all over which reads fall, and not beyond a part of it.
    #[test]
    fn few_reads_stand_for_a_region() {
        let size = 512u64 << 20;
        let mut whole = Random::default();
        let mut part = Random::default();
        for i in 1..64u64 {
            whole.count(i * (size / 64), 16 << 10, true, 0, size);
            part.count(size / 4 + i * (size / 128), 16 << 10, true, 0, size);
        }
        assert_eq!(whole.region(size), 0..size);
        assert_eq!(part.region(size), part.hull);
    }

    /// B11: a hot spot inside a large file is not a reason to fetch the file.
    #[test]
    fn hot_spots_are_not_dense() {
        let size = 512u64 << 20;
        let mut r = Random::default();
        for i in 0..20_000u64 {
            let block = if i % 100 == 0 {
                i % (size >> 14)
            } else {
                i % 64
            };
            r.count(block << 14, 16 << 10, true, 0, size);
        }
        assert!(!buys(&mut r, size, 0, size));
    }
}
