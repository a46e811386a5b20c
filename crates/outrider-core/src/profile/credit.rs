//! How much may be fetched on the word of a profile.
//!
//! A profile may be of another job. So a first slice is fetched, and more only as what was fetched is seen to be needed: a right profile is used from its first
//! entries on, at the pace of the program, and is never held up; a wrong one costs the slice and some multiple of the little that happens to fit (every program
//! reads the C library).

/// The first slice, bytes: what a device of 1 GB/s reads in the time that an interpreter takes to start, 30 ms.
pub const FIRST: u64 = 32 << 20;
/// Bytes that may be fetched for each that was used.
const PER_USED: u64 = 8;
/// The first slice grows by this factor with each run in which most was used …
const TRUST: u32 = 2;
/// … up to so many times.
const TRUSTED: u32 = 5;

/// Bytes that may be fetched.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    first: u64,
    fetched: u64,
    used: u64,
}

impl Credit {
    /// For a profile of so many runs, of the last of which this share was used, of 1000, where it is known.
    pub fn new(runs: u32, used: Option<u16>, bad: u8) -> Credit {
        let good = used.is_some_and(|share| share >= 500) && bad == 0;
        let times = if good {
            runs.saturating_sub(1).min(TRUSTED)
        } else {
            0
        };
        Credit {
            first: FIRST * u64::from(TRUST.pow(times)),
            fetched: 0,
            used: 0,
        }
    }

    /// Whether so many bytes more may be fetched.
    pub fn allows(&self, bytes: u64) -> bool {
        self.fetched == 0 || self.fetched + bytes <= self.first + PER_USED.saturating_mul(self.used)
    }

    /// They are.
    pub fn fetched(&mut self, bytes: u64) {
        self.fetched += bytes;
    }

    /// So many were needed.
    pub fn used(&mut self, bytes: u64) {
        self.used += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B12, B15: what is never used costs a slice, and what is used at a tenth of the pace of fetching is not held up.
    #[test]
    fn a_wrong_profile_costs_a_slice() {
        const PIECE: u64 = 1 << 20;
        let mut wrong = Credit::new(9, Some(100), 1);
        let mut fetched = 0;
        while wrong.allows(PIECE) {
            wrong.fetched(PIECE);
            fetched += PIECE;
        }
        assert_eq!(fetched, FIRST);
        let mut right = Credit::new(1, None, 0);
        for _ in 0..1000 {
            assert!(right.allows(PIECE));
            right.fetched(PIECE);
            right.used(PIECE / 8);
        }
        assert!(Credit::new(4, Some(900), 0).allows(FIRST * 8));
    }
}
