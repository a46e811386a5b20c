//! Random numbers from a seed, the same in every run and on every machine.

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Evenly from 0..n (n > 0).
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Evenly from 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// 0..n in random order.
    pub fn permutation(&mut self, n: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..n).collect();
        for i in (1..n).rev() {
            all.swap(i as usize, self.below(i + 1) as usize);
        }
        all
    }
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
        let u = random.unit();
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
        let mut seen = Random::new(7).permutation(1000);
        assert_eq!(seen, Random::new(7).permutation(1000));
        assert_ne!(seen, Random::new(8).permutation(1000));
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
