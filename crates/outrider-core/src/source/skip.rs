//! Skip-sequential reads: onward through a file, by steps that differ.
//!
//! A bitmap heap scan of a database, a merge that looks up sorted keys, whoever takes some of a file's blocks in the order in which they
//! lie: no two steps need be alike, so there is no stride, and yet where the next read falls is known well enough. All that lies ahead is
//! read in order where that takes less time than to wait for each block: where the bytes from one read to the next arrive within a share
//! of the device's latency. The paper's states between random and sequential (CrossPrefetch section 4.6, 010 and 011) are
//! of this kind; how sparse such reads may be it doesn't say.

/// Reads in succession that must have gone onward before it is believed that they will.
const ONWARD: u32 = 16;
/// Of these, so many must not have been foreseen: what streams foresee is theirs.
const UNFORESEEN: u32 = 6;
/// Reads foreseen by one stream after which they are its own, and no skipping.
pub const SETTLED: u64 = 16;
/// Reads without a silence between them by which the mean step is known.
pub const HEARD: u32 = 8;
/// Equal steps in succession after which they are a stride.
pub const EVEN: u32 = 12;

/// Watches whether the reads of a descriptor go onward.
#[derive(Clone, Debug, Default)]
pub struct Onward {
    last: u64,
    run: u32,
    unforeseen: u32,
    step: u64,
}

/// The mean of `mean`, of `count` values, and one more. Of many the last 32 or so count.
pub fn blend(mean: u64, count: u32, value: u64) -> u64 {
    let weight = u64::from(count.clamp(1, 31));
    (mean / (weight + 1)).saturating_mul(weight) + value / (weight + 1)
}

impl Onward {
    /// A read at byte `offset` was made. Returns the mean step in bytes once reads go onward by steps of less than `most` bytes on average.
    pub fn step(&mut self, offset: u64, foreseen: bool, most: u64) -> Option<u64> {
        let ahead = offset.wrapping_sub(self.last) as i64;
        self.last = offset;
        if ahead < 0 {
            *self = Onward {
                last: offset,
                ..Onward::default()
            };
            return None;
        }
        if ahead == 0 {
            return None;
        }
        self.run += 1;
        self.unforeseen += u32::from(!foreseen);
        self.step = match self.run {
            1 => ahead as u64,
            n => blend(self.step, n - 1, ahead as u64),
        };
        let onward = self.run >= ONWARD && self.unforeseen >= UNFORESEEN && self.step <= most;
        onward.then_some(self.step)
    }

    /// Whether many reads went onward, however far.
    pub fn goes_on(&self) -> bool {
        self.run >= ONWARD
    }

    /// A stream foresees these reads.
    pub fn settle(&mut self, offset: u64) {
        *self = Onward {
            last: offset,
            ..Onward::default()
        };
    }
}
