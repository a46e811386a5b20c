//! The saturating counter of a stream (CrossPrefetch section 4.6, SPEC CP3), whose value names a state between random and sequential.

use outrider_sys::units::PAGE;

/// The states that the paper names (section 4.6); it counts seven and leaves 101 unnamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// 000: jumps beyond the random distance.
    HighlyRandom,
    /// 001: random within the random distance.
    Random,
    /// 010: a mix of sequential and random.
    PartiallyRandom,
    /// 011: mostly sequential.
    LikelySequential,
    /// 100 (and the unnamed 101): sequential with strides.
    Strided,
    /// 110 and above.
    DefinitelySequential,
}

/// The saturating counter.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    bits: u32,
    pub(super) value: u32,
}

impl Counter {
    /// A counter of `bits` bits (1 to 8) in the state that a file begins in: random.
    pub fn new(bits: u32) -> Counter {
        Counter {
            bits: bits.clamp(1, 8),
            value: 0,
        }
    }

    /// One that a pattern which was seen begins with: likely sequential.
    pub(super) fn trusted(bits: u32) -> Counter {
        let counter = Counter::new(bits);
        counter.at(counter.likely())
    }

    /// The same with another value.
    pub(super) fn at(self, value: u32) -> Counter {
        Counter { value, ..self }
    }

    /// The value of "definitely sequential": 110 with three bits.
    pub(super) fn definite(self) -> u32 {
        ((1 << self.bits) - 2u32).max(1)
    }

    /// The value of "likely sequential": 011 with three bits.
    pub(super) fn likely(self) -> u32 {
        ((1 << (self.bits - 1)) - 1u32).max(1).min(self.definite())
    }

    pub(super) fn raise(&mut self) {
        self.value = (self.value + 1).min(self.definite());
    }

    pub(super) fn lower(&mut self, by: u32) {
        self.value = self.value.saturating_sub(by);
    }

    /// The window that the paper gives this state: 2^n blocks, in bytes.
    pub fn window(self) -> u64 {
        PAGE << self.value.min(24)
    }

    /// The state's name.
    pub fn pattern(self) -> Pattern {
        if self.value >= self.definite() {
            Pattern::DefinitelySequential
        } else if self.value > self.likely() {
            Pattern::Strided
        } else if self.value == self.likely() {
            Pattern::LikelySequential
        } else {
            match self.value {
                0 => Pattern::HighlyRandom,
                1 => Pattern::Random,
                _ => Pattern::PartiallyRandom,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC CP3: the names and values of the states, with three bits as in the paper.
    #[test]
    fn counter_states_are_the_papers() {
        let mut c = Counter::new(3);
        let mut seen = vec![c.pattern()];
        for _ in 0..7 {
            c.raise();
            seen.push(c.pattern());
        }
        use Pattern::*;
        assert_eq!(
            seen,
            [
                HighlyRandom,
                Random,
                PartiallyRandom,
                LikelySequential,
                Strided,
                Strided,
                DefinitelySequential,
                DefinitelySequential
            ]
        );
        assert_eq!(c.window(), 64 * PAGE);
    }
}
