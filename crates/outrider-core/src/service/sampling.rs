//! When listening is not worth it.
//!
//! A program that reads in no order can't be helped, and every read that it tells costs the service two microseconds of a processor that
//! the program may need itself. So once a descriptor's reads have been in no order for a while, nothing is told for some, a few are
//! listened to, and if they show nothing either, the silence doubles. The reads unheard still count (`dense`), by those that were heard.

/// Reads listened to before the first silence …
const FIRST: u32 = 256;
/// … and between two: enough to find a stream among other reads.
const PROBE: u32 = 32;
/// The first silence and the longest, reads. A program that begins to read in order is noticed so late.
const SHORTEST: u32 = 64;
const LONGEST: u32 = 1024;

/// What the reads of a descriptor, or of a process, were lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampling {
    heard: u32,
    ordered: u32,
    silence: u32,
}

impl Sampling {
    /// A read was told; `ordered` if it was of a stream. Returns how many need not be told now.
    pub fn heard(&mut self, ordered: bool) -> u32 {
        self.heard += 1;
        self.ordered += u32::from(ordered);
        if self.heard < if self.silence == 0 { FIRST } else { PROBE } {
            return 0;
        }
        let futile = self.ordered * 2 < self.heard;
        (self.heard, self.ordered) = (0, 0);
        self.silence = if futile {
            (self.silence * 2).clamp(SHORTEST, LONGEST)
        } else {
            0
        };
        self.silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads told of `all`, of which `ordered(k)` says what the k-th is.
    fn told(sampling: &mut Sampling, all: u32, ordered: impl Fn(u32) -> bool) -> u32 {
        let (mut told, mut skip) = (0, 0);
        for k in 0..all {
            if skip > 0 {
                skip -= 1;
                continue;
            }
            told += 1;
            skip = sampling.heard(ordered(k));
        }
        told
    }

    /// Design, "off is a decision too": disorder is listened to ever less, order always, and a change is noticed.
    #[test]
    fn disorder_is_listened_to_ever_less() {
        let mut sampling = Sampling::default();
        assert_eq!(told(&mut sampling, 100_000, |k| k % 3 > 0), 100_000);
        let heard = told(&mut sampling, 100_000, |k| k % 8 == 0);
        assert!((3000..5000).contains(&heard), "{heard}");
        let heard = told(&mut sampling, 100_000, |_| true);
        assert!(heard > 100_000 - LONGEST - PROBE, "{heard}");
    }
}
