//! Skip-sequential reads: onward through a file, or backwards, by steps that differ.
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
const HEARD: u32 = 8;
/// Equal steps in succession after which they are a stride.
const EVEN: u32 = 12;
/// Steps of which the mean is taken, about.
const STEPS: u32 = 32;

/// Watches whether the reads of a descriptor go onward; backwards, if offsets are told as their complements.
#[derive(Clone, Debug, Default)]
pub struct Onward {
    last: u64,
    run: u32,
    unforeseen: u32,
    step: u64,
    /// Many reads went onward before a stream that lies behind them.
    went: bool,
}

/// The steps of reads that go onward.
#[derive(Clone, Debug)]
pub struct Gaps {
    mean: u64,
    /// So many in succession were like the last, of so many bytes.
    even: (u32, u64),
    /// Since the last silence.
    heard: u32,
}

impl Gaps {
    /// Steps of so many bytes on average.
    pub fn new(mean: u64) -> Gaps {
        Gaps {
            mean,
            even: (0, 0),
            heard: 0,
        }
    }

    /// The mean step, bytes, at least one.
    pub fn step(&self) -> u64 {
        self.mean.max(1)
    }

    /// Whether the mean is that of the latest steps.
    pub fn known(&self) -> bool {
        self.heard >= HEARD
    }

    /// Reads were made that nobody heard of.
    pub fn silence(&mut self) {
        self.heard = 0;
        self.even = (0, 0);
    }

    /// A step of so many bytes. Returns them where it is a stride, if only the step of reads that touch.
    pub fn next(&mut self, bytes: u64) -> Option<u64> {
        self.heard += 1;
        self.mean = blend(self.mean, STEPS - 1, bytes);
        self.even = match self.even {
            (n, step) if step == bytes => (n + 1, step),
            _ => (0, bytes),
        };
        (self.even.0 >= EVEN).then_some(bytes)
    }
}

/// The mean of `mean`, of `count` values, and one more. Of many only the last count.
fn blend(mean: u64, count: u32, value: u64) -> u64 {
    let weight = u64::from(count.clamp(1, STEPS - 1));
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
        self.went || self.run >= ONWARD
    }

    /// A stream foresees these reads. Whoever has skipped up to where it is (a member of an archive that is taken out) will hardly go back.
    pub fn settle(&mut self, offset: u64) {
        let went = self.goes_on() && offset.wrapping_sub(self.last) as i64 >= 0;
        *self = Onward {
            last: offset,
            went,
            ..Onward::default()
        };
    }
}
