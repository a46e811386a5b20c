//! How fast a program reads as it is.

use std::time::Duration;

use crate::clock::Moment;

/// Reads over which the time is taken: several of the batches in which the service hears of them.
const SAMPLE: u32 = 32;
/// Reads after which the first answer is given, if both halves of them took about as long: what our first requests have disturbed takes longer.
const FIRST: u32 = 16;
/// Reads beside requests of ours that are left out; then they count, because there are no others.
const BESIDE: u32 = 64;

/// The time from one read of a descriptor to the next, of those that were told one after the other while nothing more was done for them than for
/// any others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interarrival {
    since: Option<Moment>,
    reads: u32,
    left_out: u32,
    half: Duration,
    mean: Option<Duration>,
}

impl Interarrival {
    /// A read was heard of at `now`; `alike` if none was unheard before it, and it counts; `beside` if requests of ours are on their way, behind which it
    /// waits longer than it does as it is.
    pub fn told(&mut self, alike: bool, beside: bool, now: Moment) {
        self.left_out += u32::from(alike && beside && self.left_out < BESIDE);
        let alike = alike && (!beside || self.left_out == BESIDE);
        let Some(since) = self.since.filter(|_| alike) else {
            (self.since, self.reads) = (alike.then_some(now), 0);
            return;
        };
        self.reads += 1;
        if self.reads == FIRST / 2 {
            self.half = now - since;
        }
        let rest = (now - since).saturating_sub(self.half);
        let even = rest * 3 < self.half * 4 && self.half * 3 < rest * 4;
        let first = self.mean.is_none() && self.reads == FIRST && even;
        if self.reads < SAMPLE && !first {
            return;
        }
        let each = (now - since) / self.reads;
        // A pause of the program's is no slow read.
        self.mean = Some(
            self.mean
                .map_or(each, |mean| (mean * 3 + each.min(mean * 2)) / 4),
        );
        (self.since, self.reads, self.left_out) = (Some(now), 0, 0);
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
        let mut interarrival = Interarrival::default();
        let mut now = Moment::BEGINNING;
        for batch in 0..200u32 {
            now += Duration::from_micros(if batch % 50 == 49 { 1_000_000 } else { 800 });
            for _ in 0..8 {
                now += Duration::from_nanos(500);
                interarrival.told(true, false, now);
            }
            assert_eq!(interarrival.each().is_some(), batch >= 3);
            if batch % 20 == 0 {
                interarrival.told(false, false, now);
            }
        }
        let each = interarrival.each().unwrap();
        assert!(
            each > Duration::from_micros(70) && each < Duration::from_micros(140),
            "{each:?}"
        );
    }

    /// Reads that wait behind requests of ours don't make a program slow, unless there are no others.
    #[test]
    fn reads_beside_our_own_requests_count_only_where_there_are_no_others() {
        let each = |beside: fn(u32) -> bool| {
            let (mut interarrival, mut now) = (Interarrival::default(), Moment::BEGINNING);
            for k in 0..200 {
                interarrival.told(true, beside(k), now);
                now += Duration::from_micros(if beside(k) { 400 } else { 100 });
            }
            interarrival.each().unwrap().as_micros()
        };
        assert_eq!(each(|k| k < 24 || k % 40 == 0), 100);
        assert_eq!(each(|_| true), 400);
    }
}
