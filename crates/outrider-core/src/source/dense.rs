//! Random reads that add up to most of a file.
//!
//! No pattern tells where the next read falls, yet if the program goes on, every block of the region will be wanted, and the
//! device delivers the region in order many times faster than block by block. Whether the program goes on is unknown.
//! This is the ski-rental problem: renting is one random miss (latency), buying is streaming what is missing
//! (bytes / bandwidth). Buying when the rent paid equals the price costs at most twice the optimum; buying
//! at a share `investment` of it costs at most 1 + 1/investment of what was spent and at best
//! 1 + investment of the optimum. The paper has nothing like it; its `fetchall` buys at once.

use std::ops::Range;

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
    pub hull: Range<u64>,
    /// Reads that fell where one had fallen before.
    pub repeats: u64,
    touched: Vec<u64>,
    /// The blocks of the latest reads, each plus one.
    recent: [u64; RECENT],
}

/// Threads that read the same blocks, each at its own pace, wait for the same request: such reads are one.
const RECENT: usize = 16;

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
        self.reads += 1 + skipped;
        self.bytes += len * (1 + skipped);
        self.sampled += 1;
        self.misses += u64::from(missing);
        let end = (offset + len).min(size);
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

    /// The region of a file of `size` bytes that the reads seem to be drawn from. Where the outermost reads leave no more to an end of the file
    /// than chance does, it reaches to the end.
    pub fn region(&self, size: u64) -> Range<u64> {
        // Reads drawn evenly leave an average gap at each end, and eight of them once in 3000 times.
        let margin = 8 * (self.hull.end - self.hull.start) / self.sampled.max(1);
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

    /// Whether the region is worth streaming now. `missing` is how much of it is not cached, bytes; `grant`
    /// is what the budget allows, and `others` what is missing of other files that are being read in the same way; `investment` as in the
    /// module's text.
    ///
    /// Where memory doesn't hold all of these files, streaming one drives out what was read of them. That is no loss only if nothing is read
    /// twice, and it takes some more reads to tell.
    pub fn decide(
        &self,
        missing: u64,
        others: u64,
        grant: u64,
        price: Price,
        investment: f64,
    ) -> bool {
        if self.reads < 32 || missing == 0 || missing > grant {
            return false;
        }
        let miss_rate = self.misses as f64 / self.sampled.max(1) as f64;
        let spent = self.reads as f64 * miss_rate * price.latency_us;
        let cost = missing as f64 / price.bandwidth.max(1e-3);
        if spent < cost * investment {
            return false;
        }
        // A program that returns to the same blocks more often than chance would have it will not want them all.
        let blocks = (self.hull.end - self.hull.start).max(1) as f64 * self.reads as f64
            / self.bytes.max(1) as f64;
        let drawn = self.sampled as f64;
        let by_chance = drawn - blocks * (1.0 - (-drawn / blocks).exp());
        if self.repeats as f64 > 2.0 * by_chance + 16.0 {
            return false;
        }
        let once = by_chance >= 8.0 && self.repeats as f64 * 4.0 < by_chance;
        if missing.saturating_add(others) > grant && !once {
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert!(!r.decide(size, 0, size / 2, NVME, 0.25), "does not fit");
            if r.decide(size, 0, size, NVME, 0.25) {
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
        assert!(!cached.decide(size, 0, size, NVME, 0.25));
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
            r.decide(size, 0, size, NVME, 0.25)
        });
        let price = size as f64 / NVME.bandwidth / NVME.latency_us;
        let at = bought.expect("never streamed") as f64;
        assert!(at < price, "bought after {at} of {price}");
    }

    /// B11: one of several files that memory can't hold together is streamed only if its blocks are read once each.
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
        let (mut again, mut once) = (Random::default(), Random::default());
        let mut bought = None;
        for i in 0..blocks {
            again.count(drawn() << 14, 16 << 10, true, 0, size);
            assert!(!again.decide(size, size, size, NVME, 0.25));
            once.count((i * 2011 % blocks) << 14, 16 << 10, true, 0, size);
            if bought.is_none() && once.decide(size, size, size, NVME, 0.25) {
                bought = Some(i);
            }
        }
        assert!(again.decide(size, 0, size, NVME, 0.25));
        assert!(bought.is_some_and(|at| at < blocks / 8), "{bought:?}");
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
        assert!(!r.decide(size, 0, size, NVME, 0.25));
    }
}
