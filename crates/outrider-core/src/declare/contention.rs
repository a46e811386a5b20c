//! How much memory the reorder buffer may take, found out as TCP finds bandwidth (libprefetch section 4.6; SPEC LP4, LP5).
//!
//! Processes that prefetch by declaration don't know of one another. Each starts with nearly all the memory there is. Pages that
//! were fetched and are gone before they were used say that it was too much: the size is halved. A round that was used up
//! without a loss adds a tenth of the maximum.

/// Of what the page cache can take, the part that is used at most (libprefetch section 4.6, "experimentally determined").
pub const SHARE: f64 = 0.9;
/// Added after a clean round, of the maximum (same place).
const INCREASE: f64 = 0.1;
/// Never less than this many bytes: a window that hides a disk's latency.
pub const LEAST: u64 = 1 << 20;
/// Pages missing from which on it is a shortage: kernels that reclaim proactively (DAMON) take single pages at any time.
const FEWEST: u64 = 8;
/// … and this part of the buffer.
const FRACTION: u64 = 64;

/// Whether `gone` pages, fetched and not yet used, of a buffer of `held` mean that memory is short.
pub fn is_shortage(gone: u64, held: u64) -> bool {
    gone >= FEWEST && gone >= held.div_ceil(FRACTION)
}

/// The controller. All sizes are bytes.
#[derive(Clone, Copy, Debug)]
pub struct Contention {
    most: u64,
    limit: u64,
}

impl Contention {
    /// Begins at the maximum; `available` is what the page cache can take.
    pub fn new(available: u64) -> Contention {
        let most = Self::most_of(available);
        Contention { most, limit: most }
    }

    fn most_of(available: u64) -> u64 {
        ((available as f64 * SHARE) as u64).max(LEAST)
    }

    /// More or less memory than before is available.
    pub fn available(&mut self, available: u64) {
        let was_full = self.limit == self.most;
        self.most = Self::most_of(available);
        self.limit = if was_full {
            self.most
        } else {
            self.limit.min(self.most)
        };
    }

    /// A user's bound on it.
    pub fn bound(&mut self, bytes: u64) {
        self.most = self.most.min(bytes.max(LEAST));
        self.limit = self.limit.min(self.most);
    }

    /// So many bytes are left to others.
    pub fn leave(&mut self, bytes: u64) {
        self.bound(self.most.saturating_sub(bytes));
    }

    /// Bytes of unique pages that may be held.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// A round's pages were all used.
    pub fn clean(&mut self) {
        self.limit = (self.limit + (self.most as f64 * INCREASE) as u64).min(self.most);
    }

    /// Pages were gone before they were used.
    pub fn shortage(&mut self) {
        self.limit = (self.limit / 2).max(LEAST.min(self.most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LP5: two processes that share a memory none of them knows the other's part of end up with fair shares.
    #[test]
    fn two_share_fairly() {
        const MEMORY: u64 = 512 << 20;
        for (first, period) in [(0.05, 1), (0.5, 1), (0.9, 1), (0.05, 3)] {
            let mut a = Contention::new(MEMORY);
            let mut b = Contention::new(MEMORY);
            a.limit = (a.most as f64 * first) as u64;
            let (mut sum_a, mut sum_b) = (0u64, 0u64);
            for round in 0..4000u64 {
                // The kernel takes from both when both together pass what there is.
                if a.limit() + b.limit() > MEMORY {
                    a.shortage();
                    b.shortage();
                } else if round % period == 0 {
                    a.clean();
                    b.clean();
                }
                if round >= 1000 {
                    sum_a += a.limit();
                    sum_b += b.limit();
                }
            }
            let ratio = sum_a as f64 / sum_b as f64;
            assert!((0.8..=1.25).contains(&ratio), "{first}: {ratio}");
            assert!(sum_a + sum_b > 3000 * (MEMORY / 2), "memory lies idle");
        }
    }

    /// LP4: a page or two that a proactive kernel took are no shortage.
    #[test]
    fn single_pages_are_no_shortage() {
        assert!(!is_shortage(0, 0) && !is_shortage(7, 7) && !is_shortage(100, 100_000));
        assert!(is_shortage(8, 8) && is_shortage(8, 512) && is_shortage(1600, 100_000));
    }
}
