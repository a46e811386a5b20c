//! How fast a program reads as it is.

use std::time::{Duration, Instant};

/// Reads over which the time is taken: several of the batches in which the service hears of them.
const WINDOW: u32 = 32;
/// Reads after which the first answer is given.
const FIRST: u32 = 16;

/// The time from one read of a descriptor to the next, of those that were told one after the other while nothing more was done for them than for
/// any others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    since: Option<Instant>,
    reads: u32,
    mean: Option<Duration>,
}

impl Pace {
    /// A read was heard of at `now`; `alike` if none was unheard before it, and it counts.
    pub fn told(&mut self, alike: bool, now: Instant) {
        let Some(since) = self.since.filter(|_| alike) else {
            (self.since, self.reads) = (alike.then_some(now), 0);
            return;
        };
        self.reads += 1;
        if self.reads < if self.mean.is_none() { FIRST } else { WINDOW } {
            return;
        }
        let each = (now - since) / self.reads;
        // A pause of the program's is no slow read.
        self.mean = Some(
            self.mean
                .map_or(each, |mean| (mean * 3 + each.min(mean * 2)) / 4),
        );
        (self.since, self.reads) = (Some(now), 0);
    }

    /// The mean, once it is known.
    pub fn each(&self) -> Option<Duration> {
        self.mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads are heard of in batches; a pause doesn't make a fast reader a slow one, and reads that don't count say nothing.
    #[test]
    fn batches_and_pauses_count_little() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        for batch in 0..200u32 {
            now += Duration::from_micros(if batch % 50 == 49 { 1_000_000 } else { 800 });
            for _ in 0..8 {
                now += Duration::from_nanos(500);
                pace.told(true, now);
            }
            assert_eq!(pace.each().is_some(), batch >= 3);
            if batch % 20 == 0 {
                pace.told(false, now);
            }
        }
        let each = pace.each().unwrap();
        assert!(
            each > Duration::from_micros(70) && each < Duration::from_micros(140),
            "{each:?}"
        );
    }
}
