//! Skip-sequential reads: onward through a file, or backwards, by steps that differ.
//!
//! A bitmap heap scan of a database, a merge that looks up sorted keys, whoever takes some of a file's blocks in the order in which they
//! lie: no two steps need be alike, so there is no stride, and yet where the next read falls is known well enough. All that lies ahead is
//! read in order where that takes less time than to wait for each block: where the bytes from one read to the next arrive within a share
//! of the device's latency. The paper's states between random and sequential (CrossPrefetch section 4.6, 010 and 011) are
//! of this kind; how sparse such reads may be it doesn't say.

use super::recogniser::{Claim, Expected, Read, Recogniser};

/// Reads in succession that must have gone onward before it is believed that they will.
const ONWARD: u32 = 16;
/// Of these, so many must not have been foreseen: what streams foresee is theirs.
const UNFORESEEN: u32 = 6;
/// Reads foreseen by one stream after which they are its own, and no skipping.
pub(super) const SETTLED: u64 = 16;
/// Reads without a silence between them by which the mean step is known.
const HEARD: u32 = 8;
/// Equal steps in succession after which they are a stride.
const EVEN: u32 = 12;
/// Steps of which the mean is taken, about.
const STEPS: u32 = 32;

/// Watches whether the reads of a descriptor go onward, or backwards.
#[derive(Clone, Debug, Default)]
pub(super) struct SkipSequential {
    onward: Onward,
    backwards: Onward,
}

impl Recogniser for SkipSequential {
    /// Looks whether the read goes on where none of those before was surely a stream's.
    fn observe(&mut self, read: &Read) -> Claim {
        let at = read.offset;
        let most = read.limits.sparse;
        let expected = match read.expected {
            Expected::Surely => return self.settle(at),
            expected => expected != Expected::No,
        };
        // Both count each read.
        let onward = self.onward.step(at, expected, most);
        let backwards = self.backwards.step(!at, expected, most);
        let step = onward.map(|step| (step, 1));
        let Some((step, way)) = step.or(backwards.map(|step| (step, -1))) else {
            return Claim::Nothing;
        };
        self.settle(at);
        Claim::Onward { step, way }
    }
}

impl SkipSequential {
    /// Whether many reads went onward, or backwards, however far.
    pub(super) fn goes_on(&self) -> bool {
        self.onward.goes_on() || self.backwards.goes_on()
    }

    /// A stream expects these reads.
    fn settle(&mut self, offset: u64) -> Claim {
        self.onward.settle(offset);
        self.backwards.settle(!offset);
        Claim::Nothing
    }
}

/// Watches whether reads go onward; backwards, if offsets are told as their complements.
#[derive(Clone, Debug, Default)]
struct Onward {
    last: u64,
    run: u32,
    unforeseen: u32,
    step: u64,
    /// Many reads went onward before a stream that lies behind them.
    went: bool,
}

/// The steps of reads that go onward.
#[derive(Clone, Debug)]
pub(super) struct Gaps {
    mean: u64,
    /// So many in succession were like the last, of so many bytes.
    even: (u32, u64),
    /// Since the last silence.
    heard: u32,
}

impl Gaps {
    /// Steps of so many bytes on average.
    pub(super) fn new(mean: u64) -> Gaps {
        Gaps {
            mean,
            even: (0, 0),
            heard: 0,
        }
    }

    /// The mean step, bytes, at least one.
    pub(super) fn step(&self) -> u64 {
        self.mean.max(1)
    }

    /// Whether the mean is that of the latest steps.
    pub(super) fn known(&self) -> bool {
        self.heard >= HEARD
    }

    /// Reads were made that nobody heard of.
    pub(super) fn silence(&mut self) {
        self.heard = 0;
        self.even = (0, 0);
    }

    /// A step of so many bytes. Returns them where it is a stride, if only the step of reads that touch.
    pub(super) fn next(&mut self, bytes: u64) -> Option<u64> {
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
    fn step(&mut self, offset: u64, foreseen: bool, most: u64) -> Option<u64> {
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
    fn goes_on(&self) -> bool {
        self.went || self.run >= ONWARD
    }

    /// A stream foresees these reads. Whoever has skipped up to where it is (a member of an archive that is taken out) will hardly go back.
    fn settle(&mut self, offset: u64) {
        let went = self.goes_on() && offset.wrapping_sub(self.last) as i64 >= 0;
        *self = Onward {
            last: offset,
            went,
            ..Onward::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::recogniser::testing;

    const SIZE: u64 = 1 << 30;

    /// What reads at these offsets are, where reading on is worth it for steps of 256 KiB, and streams expect them so.
    fn claims(offsets: impl IntoIterator<Item = u64>, expected: Expected) -> Vec<Claim> {
        let limits = testing::limits();
        let mut skips = SkipSequential::default();
        let claim = |offset| {
            let read = testing::read(offset, 8192, SIZE, &limits);
            skips.observe(&Read { expected, ..read })
        };
        offsets.into_iter().map(claim).collect()
    }

    /// Places by steps of one to nine times so many bytes.
    fn steps(bytes: u64) -> Vec<u64> {
        let place = |at: &mut u64, k: u64| {
            *at += (k * 7919 % 9 + 1) * bytes;
            Some(*at)
        };
        (0..100).scan(0, place).collect()
    }

    /// CP3: reads that go onward, or backwards, by steps that differ are claimed after sixteen, with about their mean step; not by steps that are too long, nor where
    /// they turn back before, nor those that are surely a stream's.
    #[test]
    fn what_goes_onward_by_other_steps_is_claimed() {
        let near = steps(16 << 10);
        let claimed = |claim: &Claim| *claim != Claim::Nothing;
        let onward = claims(near.clone(), Expected::No);
        assert_eq!(onward.iter().position(claimed), Some(ONWARD as usize - 1));
        let backwards = claims(near.iter().rev().copied(), Expected::No);
        for (claims, sign) in [(onward, 1), (backwards, -1)] {
            let first = claims.into_iter().find(claimed);
            assert!(
                matches!(first, Some(Claim::Onward { step, way })
                    if way == sign && (64 << 10..100 << 10).contains(&step)),
                "{first:?}"
            );
        }
        let none = |claims: Vec<Claim>| claims.iter().all(|claim| !claimed(claim));
        assert!(none(claims(steps(128 << 10), Expected::No)));
        assert!(none(claims(near.clone(), Expected::Surely)));
        // Ten onward and one back, again and again.
        let turns = near.chunks(10).flat_map(|c| c.iter().copied().chain([0]));
        assert!(none(claims(turns, Expected::No)));
    }
}
