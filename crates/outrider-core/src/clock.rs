//! Time as the service sees it: one of its two seams (the other is [`Kernel`](crate::service::Kernel)), so that the same code runs in simulated time.

use std::ops::{Add, AddAssign, Sub};
use std::time::{Duration, Instant};

/// A point in time, in nanoseconds since its clock began. Of two clocks they can't be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// When the clock began.
    pub const BEGINNING: Moment = Moment(0);

    /// So many nanoseconds after the clock began.
    pub const fn from_nanos(nanos: u64) -> Moment {
        Moment(nanos)
    }

    /// Nanoseconds since the clock began.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Microseconds since the clock began.
    pub const fn micros(self) -> u64 {
        self.0 / 1000
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(time.as_nanos() as u64))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

impl Sub for Moment {
    type Output = Duration;

    /// The time from `earlier` to this one; none where that is not earlier.
    fn sub(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Tells the time.
pub trait Clock {
    /// Now.
    fn now(&self) -> Moment;

    /// The time since `earlier`.
    fn since(&self, earlier: Moment) -> Duration {
        self.now() - earlier
    }
}

/// CLOCK_MONOTONIC, from when this was made on.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    began: Instant,
}

impl Monotonic {
    /// A clock that begins now.
    pub fn begin() -> Monotonic {
        Monotonic {
            began: Instant::now(),
        }
    }
}

impl Clock for Monotonic {
    fn now(&self) -> Moment {
        Moment(self.began.elapsed().as_nanos() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_never_go_back() {
        let clock = Monotonic::begin();
        let (first, second) = (clock.now(), clock.now());
        assert!(second >= first && first - second == Duration::ZERO);
        let later = first + Duration::from_micros(5);
        assert_eq!((later - first).as_nanos(), 5000);
        assert_eq!(Moment::from_nanos(2_500_999).micros(), 2500);
    }
}
