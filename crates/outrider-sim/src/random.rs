//! Numbers and bytes from a seed: the same on every machine, for ever, so that a data set and what is read of it can be
//! made again.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): fast, and its bytes don't
/// compress.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of part `part` of `seed`: parts may be made in any order.
    pub fn part(seed: u64, part: u64) -> Self {
        let mut mixed = Self(seed ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(mixed.draw())
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0. (Multiply and shift: its bias is below end / 2⁶⁴.)
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// A number of `from..=to`.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// Fills `bytes` with noise.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.draw().to_le_bytes());
        }
        let rest = words.into_remainder();
        let last = self.draw().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Puts `items` in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// Evenly from 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// 0..n in random order.
    pub fn permutation(&mut self, n: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..n).collect();
        self.shuffle(&mut all);
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
        let zeta = |n: u64| (1..=n).map(|i| libm::pow(i as f64, -theta)).sum::<f64>();
        let all = zeta(n);
        Self {
            n: n as f64,
            theta,
            zeta: all,
            eta: (1.0 - libm::pow(2.0 / n as f64, 1.0 - theta)) / (1.0 - zeta(2) / all),
        }
    }

    /// A number.
    pub fn pick(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let scaled = u * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + libm::pow(0.5, self.theta) {
            return 1.min(self.n as u64 - 1);
        }
        let at = self.n * libm::pow(self.eta * u - self.eta + 1.0, 1.0 / (1.0 - self.theta));
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
