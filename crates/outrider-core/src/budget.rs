//! One memory budget for everything that is prefetched (SPEC CP9, B3).
//!
//! What counts is data that was prefetched and not used yet: used data is the program's own cache, which the kernel
//! manages. The budget is a share of what the page cache could take, in the tightest of the control groups and the machine,
//! read anew a few times a second. Below two watermarks of availability prefetching first stops being
//! aggressive (no optimism, no streaming, small windows) and then stops.

use outrider_sys::units::PAGE;

/// Settings; see `config.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Bytes, where the user fixed them.
    pub fixed: Option<u64>,
    /// Share of the headroom.
    pub share: f64,
    /// Fraction of the limit that must be available to be aggressive.
    pub high: f64,
    /// Fraction of the limit that must be available at all.
    pub low: f64,
    /// Bytes that each stream gets however many there are.
    pub stream_minimum: u64,
    /// Per cent of PSI memory some avg10 above which prefetching stops.
    pub psi_max: f64,
}

/// Memory as the kernel reports it, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Supply {
    /// What the page cache may take.
    pub headroom: u64,
    /// The limit that counts: of the control group, or the machine's memory.
    pub limit: u64,
    /// PSI memory some avg10, per cent.
    pub psi: f64,
}

/// What may be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Bytes of prefetched and unused data, in all.
    pub total: u64,
    /// Optimistic fetches, streaming of dense files and large windows are allowed.
    pub aggressive: bool,
    /// Prefetching is allowed.
    pub allowed: bool,
}

/// Whether a user who has fixed so many bytes wants nothing to be prefetched: less than a page holds none. No stream has its minimum then.
pub fn is_nothing(fixed: Option<u64>) -> bool {
    fixed.is_some_and(|bytes| bytes < PAGE)
}

impl Policy {
    /// Decides from the supply.
    pub fn grant(&self, supply: Supply) -> Grant {
        if is_nothing(self.fixed) {
            return Grant::NOTHING;
        }
        let available = supply.headroom as f64 / supply.limit.max(1) as f64;
        let allowed = available >= self.low && supply.psi <= self.psi_max;
        let automatic = (supply.headroom as f64 * self.share) as u64;
        Grant {
            total: if allowed {
                self.fixed.map_or(automatic, |f| f.min(supply.headroom))
            } else {
                0
            },
            aggressive: allowed && available >= self.high,
            allowed,
        }
    }
}

impl Grant {
    /// Nothing may be done.
    pub const NOTHING: Grant = Grant {
        total: 0,
        aggressive: false,
        allowed: false,
    };

    /// The largest window of one of `streams` streams, bytes.
    pub fn window(&self, streams: u64, policy: &Policy) -> u64 {
        if !self.allowed {
            return 0;
        }
        // Half: what is asked for lies in flight and in wait beside what is there.
        (self.total / 2 / streams.max(1)).max(policy.stream_minimum)
    }

    /// Bytes that may still be asked for with `unused` of them held, and `kept` for others than streams.
    pub fn room(&self, unused: u64, kept: u64, streams: u64, policy: &Policy) -> u64 {
        if !self.allowed {
            return 0;
        }
        self.total
            .saturating_sub(kept)
            .max(streams * policy.stream_minimum)
            .saturating_sub(unused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC CP9: the two watermarks, PSI, and the minimum per stream.
    #[test]
    fn watermarks() {
        let p = Policy {
            fixed: None,
            share: 0.5,
            high: 0.1,
            low: 0.05,
            stream_minimum: 1 << 18,
            psi_max: 20.0,
        };
        let m = |headroom, psi| {
            p.grant(Supply {
                headroom,
                limit: 1000 << 20,
                psi,
            })
        };
        assert_eq!(
            m(800 << 20, 0.0),
            Grant {
                total: 400 << 20,
                aggressive: true,
                allowed: true
            }
        );
        assert_eq!(
            m(80 << 20, 0.0),
            Grant {
                total: 40 << 20,
                aggressive: false,
                allowed: true
            }
        );
        assert_eq!(
            m(40 << 20, 0.0),
            Grant {
                total: 0,
                aggressive: false,
                allowed: false
            }
        );
        assert_eq!(
            m(800 << 20, 30.0),
            Grant {
                total: 0,
                aggressive: false,
                allowed: false
            }
        );
        assert_eq!(m(80 << 20, 0.0).window(1 << 20, &p), 1 << 18);
        assert_eq!(m(80 << 20, 0.0).room(30 << 20, 0, 1, &p), 10 << 20);
        assert_eq!(m(80 << 20, 0.0).room(30 << 20, 8 << 20, 1, &p), 2 << 20);
        // Each stream has its minimum whatever others hold.
        assert_eq!(m(80 << 20, 0.0).room(0, 40 << 20, 4, &p), 1 << 20);
        let fixed = Policy {
            fixed: Some(8 << 20),
            ..p
        };
        assert_eq!(
            fixed
                .grant(Supply {
                    headroom: 800 << 20,
                    limit: 1000 << 20,
                    psi: 0.0
                })
                .total,
            8 << 20
        );
        // Nothing is nothing, and more than there is is what there is.
        for (bytes, total, window) in [
            (0, 0, 0),
            (PAGE - 1, 0, 0),
            (PAGE, PAGE, 1 << 18),
            (u64::MAX, 800 << 20, 400 << 20),
        ] {
            let fixed = Some(bytes);
            let p = Policy { fixed, ..p };
            let grant = p.grant(Supply {
                headroom: 800 << 20,
                limit: 1000 << 20,
                psi: 0.0,
            });
            assert_eq!((grant.total, grant.window(1, &p)), (total, window));
            assert_eq!(grant.room(0, 0, 1, &p), total.max(window.min(1 << 18)));
        }
    }
}
