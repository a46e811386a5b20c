//! How busy processors are.

use std::time::{Duration, Instant};

use outrider_sys::counters::{self, Processors};

/// From one look to the next: ten ticks of each processor's clock.
const LOOKS: Duration = Duration::from_millis(100);

/// What processors have done of late.
pub(crate) struct Load {
    /// So many there are …
    count: f64,
    /// … which were looked at last then, had done so much, and had been so busy since the look before.
    looked: Instant,
    before: Option<Processors>,
    busy: Option<f64>,
}

impl Load {
    /// Counts from now on.
    pub(crate) fn begin() -> Load {
        Load {
            count: std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64),
            looked: Instant::now(),
            before: counters::processors(),
            busy: None,
        }
    }

    /// How likely it is that all processors are busy, so that what is done in one displaces something. As long as it is not known each is taken to be busy for the share
    /// `prior` of its time.
    pub(crate) fn all_busy(&mut self, prior: f64) -> f64 {
        if self.looked.elapsed() >= LOOKS {
            self.looked = Instant::now();
            let now = counters::processors();
            if let (Some(before), Some(now)) = (std::mem::replace(&mut self.before, now), now) {
                let all = now.all.saturating_sub(before.all).max(1);
                self.busy = Some(now.busy.saturating_sub(before.busy) as f64 / all as f64);
            }
        }
        self.busy.unwrap_or(prior).min(1.0).powf(self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not known is as it was said to be, and later it is what the kernel has counted meanwhile.
    #[test]
    fn processors_are_counted() {
        let mut load = Load::begin();
        load.count = 2.0;
        assert_eq!(load.all_busy(0.5), 0.25);
        assert_eq!(load.all_busy(0.0), 0.0);
        // As if all of them had done nothing, and then as if they had done nothing else, since the system began.
        let now = counters::processors().unwrap();
        for (busy, all, expected) in [(now.busy, 0, 0.0), (0, now.all - now.busy, 1.0)] {
            load.looked = Instant::now().checked_sub(2 * LOOKS).unwrap();
            load.before = Some(Processors { busy, all });
            let found = load.all_busy(0.5);
            assert!((found - expected).abs() < 0.2, "{found} {expected}");
        }
    }
}
