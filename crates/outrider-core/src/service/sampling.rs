//! When something that may pay is not tried for a while, because it hasn't lately.
//!
//! A program that reads in no order can't be helped, and every read that it tells costs the service two microseconds of a processor that
//! the program may need itself. So once a descriptor's reads have been in no order for a while, nothing is told for some, a few are
//! listened to, and if they show nothing either, the silence doubles. The reads unheard still count (`dense`), by those that were heard.
//! In the same way it is seen whether anything comes of following a process's short files, and of asking for files as they are opened.

/// On which terms something is tried.
#[derive(Debug)]
pub struct Terms {
    /// Tries before the first pause …
    first: u32,
    /// … and between two.
    probe: u32,
    /// One try in so many must pay.
    one_in: u32,
    /// The first pause and the longest: opportunities that are passed over.
    shortest: u32,
    longest: u32,
}

/// Listening to reads, which pays where they are in order. A program that begins to read in order is noticed after the longest pause.
pub const READS: Terms = Terms {
    first: 256,
    // Enough to find a stream among other reads.
    probe: 32,
    one_in: 2,
    shortest: 64,
    longest: 1024,
};

/// Following a process's short files, which pays where something is asked for when they are opened, as that may come in time: once the program reads, the kernel is as fast
/// as anybody. Of a thousand files half a dozen are followed at least, which a change of the program's ways is noticed by.
pub const SHORT_FILES: Terms = Terms {
    first: 16,
    probe: 1,
    one_in: 16,
    shortest: 16,
    longest: 128,
};

/// Asking for something of a file when it is opened, which doesn't pay where programs that read it at once were there first.
pub const OPENINGS: Terms = Terms {
    first: 16,
    probe: 1,
    one_in: 4,
    shortest: 16,
    longest: 16,
};

/// What came of the latest tries.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampling {
    tried: u32,
    paid: u32,
    pause: u32,
}

impl Sampling {
    /// It was tried, and paid or not. Returns how many opportunities need not be taken now.
    pub fn tried(&mut self, paid: bool, terms: &Terms) -> u32 {
        self.tried += 1;
        self.paid += u32::from(paid);
        let enough = match self.pause {
            0 => terms.first,
            _ => terms.probe,
        };
        if self.tried < enough {
            return 0;
        }
        let futile = self.paid * terms.one_in < self.tried;
        (self.tried, self.paid) = (0, 0);
        self.pause = match futile {
            true => (self.pause * 2).clamp(terms.shortest, terms.longest),
            false => 0,
        };
        self.pause
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
            skip = sampling.tried(ordered(k), &READS);
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
        assert!(heard > 100_000 - READS.longest - READS.probe, "{heard}");
    }
    /// Design, "off is a decision too": what never pays is tried ever less, and what pays once is tried again each time.
    #[test]
    fn what_pays_again_is_tried_again() {
        for (terms, most) in [(&SHORT_FILES, 32), (&OPENINGS, 80)] {
            let mut sampling = Sampling::default();
            let mut tries = |all: u32, paid: bool| {
                let (mut tries, mut pass) = (0, 0u32);
                for _ in 0..all {
                    match pass {
                        0 => {
                            tries += 1;
                            pass = sampling.tried(paid, terms);
                        }
                        _ => pass -= 1,
                    }
                }
                tries
            };
            let vain = tries(1000, false);
            assert!(vain > 0 && vain <= most, "{vain} {terms:?}");
            assert!(tries(1000, true) >= 1000 - terms.longest, "{terms:?}");
        }
    }
}
