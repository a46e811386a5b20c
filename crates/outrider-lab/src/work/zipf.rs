//! Orders and distributions of what is read.

use crate::random::Random;

/// 0..n in random order.
pub fn permutation(random: &mut Random, n: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..n).collect();
    random.shuffle(&mut all);
    all
}

/// Evenly from 0..1.
fn unit(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// Zipf's distribution over 0..n, 0 the most frequent, after Gray et al. (SIGMOD '94), as YCSB draws it.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    theta: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Over 0..n with skew `theta`, 0 < theta < 1.
    pub fn new(n: u64, theta: f64) -> Self {
        let zeta = |n: u64| (1..=n).map(|i| (i as f64).powf(-theta)).sum::<f64>();
        let all = zeta(n);
        Self {
            n: n as f64,
            theta,
            zeta: all,
            eta: (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta(2) / all),
        }
    }

    /// A number.
    pub fn pick(&self, random: &mut Random) -> u64 {
        let u = unit(random);
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.theta) {
            return 1.min(self.n as u64 - 1);
        }
        let at = self.n * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - self.theta));
        (at as u64).min(self.n as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_hold_everything_once() {
        let mut seen = permutation(&mut Random::new(7), 1000);
        assert_eq!(seen, permutation(&mut Random::new(7), 1000));
        assert_ne!(seen, permutation(&mut Random::new(8), 1000));
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn zipf_is_as_skewed_as_it_should_be() {
        let (n, draws) = (1000, 100_000);
        let zipf = Zipf::new(n, 0.99);
        let mut random = Random::new(3);
        let mut count = vec![0u32; n as usize];
        for _ in 0..draws {
            count[zipf.pick(&mut random) as usize] += 1;
        }
        let zeta: f64 = (1..=n).map(|i| (i as f64).powf(-0.99)).sum();
        let expected = f64::from(draws) / zeta;
        assert!(
            (f64::from(count[0]) / expected - 1.0).abs() < 0.05,
            "{} {expected}",
            count[0]
        );
        assert!(count[999] < count[9] && count[9] < count[0]);
    }
}
