//! What looking ahead may cost, and what it has come to.
//!
//! Whether a pattern goes on is unknown, and what is fetched of one that stops is lost: a device that has nothing else to do gives it for next to nothing, a head or a volume
//! of so many requests a second gives it instead of what the program reads next. So what is fetched ahead is staked: its price is set aside, and comes back, with what the
//! program was saved, as the reader comes by. What it leaves behind stays lost. A stream may then have so much ahead as is left of a small credit to begin with, a share of
//! the time that the program has waited, and all that it was saved: one that stops soon has lost little, and one that goes on is limited no longer after a few windows.

use super::Stream;
use crate::device::READAHEAD;

/// What may be spent before anything was waited for, µs.
pub const START_US: f64 = 2000.0;

/// Reads by which it is known what a window of the kernel's takes: those that begin somewhere wait for more.
const SURE: u64 = 16;
/// Reads by which it is known what one takes.
const FEWEST: u64 = 2;

/// What was asked for ahead and not come to yet, or has been by now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stake {
    /// By how much it delays a program that reads elsewhere, µs.
    pub cost_us: f64,
    /// What the program would wait for the same bytes as it is, µs.
    pub worth_us: f64,
}

impl std::ops::AddAssign for Stake {
    fn add_assign(&mut self, other: Stake) {
        self.cost_us += other.cost_us;
        self.worth_us += other.worth_us;
    }
}

impl Stake {
    /// Takes a share of it out.
    pub(super) fn take(&mut self, share: f64) -> Stake {
        let taken = Stake {
            cost_us: self.cost_us * share,
            worth_us: self.worth_us * share,
        };
        self.cost_us -= taken.cost_us;
        self.worth_us -= taken.worth_us;
        taken
    }
}

/// An account of what was fetched ahead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Credit {
    /// When it was opened, µs.
    since: Option<u64>,
    /// When the last read was told, µs.
    last: u64,
    /// Reads that found nothing, and what they took, µs.
    reads: u64,
    took_us: u64,
    /// Those of them that go on with what the kernel reads ahead: how many, their bytes, and what they took, µs.
    plain: (u64, u64, u64),
    /// What reads have waited that nothing was fetched for, µs.
    waited_us: f64,
    /// What those would have that were foreseen, µs.
    foreseen_us: f64,
    /// What is set aside, or lost, µs.
    staked_us: f64,
    /// What was saved, µs.
    saved_us: f64,
}

impl Credit {
    /// A read of `bytes` at time `now`, µs, has waited for so long, as far as is known of the device. `plain`: it goes on with what the kernel reads ahead.
    pub fn waited(&mut self, us: f64, bytes: u64, plain: bool, now: u64) {
        self.waited_us += us;
        if let (Some(_), true) = (self.since, us > 0.0) {
            let took_us = now.saturating_sub(self.last);
            self.took_us += took_us;
            self.reads += 1;
            if plain {
                let (reads, all, us) = self.plain;
                self.plain = (reads + 1, all + bytes, us + took_us);
            }
        }
        self.since.get_or_insert(now);
        self.last = now;
    }

    /// So much is set aside.
    pub fn stake(&mut self, stake: Stake) {
        self.staked_us += stake.cost_us;
    }

    /// The reader has come by.
    pub fn returned(&mut self, stake: Stake) {
        self.staked_us -= stake.cost_us;
        self.foreseen_us += stake.worth_us;
        self.saved_us += (stake.worth_us - stake.cost_us).max(0.0);
    }

    /// What reads have waited that nothing was fetched for, µs.
    pub fn waited_us(&self) -> f64 {
        self.waited_us
    }

    /// What a read takes that finds nothing, µs, once that is known.
    pub fn each_us(&self) -> Option<f64> {
        (self.reads >= FEWEST).then(|| self.took_us as f64 / self.reads as f64)
    }

    /// What a window of the kernel's readahead takes that is read like those, µs, once that is known.
    pub fn window_us(&self) -> Option<f64> {
        let (reads, bytes, took_us) = self.plain;
        (reads >= SURE).then(|| took_us as f64 * READAHEAD as f64 / bytes.max(1) as f64)
    }

    /// What may be spent at time `now`, µs, where that is so much of what was waited.
    pub fn left_us(&self, now: u64, share: f64) -> f64 {
        // It cannot have waited for longer than it was there.
        let lasted = now.saturating_sub(self.since.unwrap_or(now)) as f64;
        let waited = self.waited_us.min(lasted) + self.foreseen_us;
        START_US + share * waited + self.saved_us - self.staked_us
    }
}

/// What may be spent on looking ahead, and what that costs on a device.
#[derive(Clone, Copy, Debug)]
pub struct Funds {
    /// What may be spent, µs.
    pub left_us: f64,
    /// By how much a request delays the program's own, beside its transfer, µs.
    pub request_us: f64,
    /// The transfer of a byte, µs.
    pub byte_us: f64,
    /// What a read waits on its own, beside its transfer, µs.
    pub wait_us: f64,
    /// What a stream that reads forward without gaps waits for each window of the kernel's own readahead beside its transfer, alone and beside others, µs.
    pub window_us: [f64; 2],
    /// It is to be tried whether the device has a head.
    pub unsure: bool,
    /// Several requests have been seen on their way there at once.
    pub overlapped: bool,
    /// The device has a head: what goes on where it is costs its transfer alone.
    pub head: bool,
    /// Bytes of a request.
    pub chunk: u64,
    /// Reads of more bytes are long: the kernel asks for each as a whole, as far as the device takes it at once.
    pub long: u64,
}

impl Funds {
    /// Of all that may be had for nothing.
    #[cfg(test)]
    pub(super) const UNLIMITED: Funds = Funds {
        left_us: f64::INFINITY,
        request_us: 0.0,
        byte_us: 0.0,
        wait_us: 0.0,
        window_us: [1.0; 2],
        unsure: false,
        overlapped: true,
        head: false,
        chunk: READAHEAD,
        long: READAHEAD,
    };

    /// What `bytes` are waited for, beside their transfer, by a stream that reads forward without gaps, `len` at a time, µs. Of a long read the
    /// kernel asks for all at once, and part of it arrives while another is waited for.
    pub fn plain_us(&self, bytes: u64, len: u64, alone: bool) -> f64 {
        let len = if len > self.long { len } else { READAHEAD };
        let overlapped = len.saturating_sub(READAHEAD) as f64 * self.byte_us / 2.0;
        let each = (self.window_us[usize::from(!alone)] - overlapped).max(0.0);
        bytes as f64 / len as f64 * each
    }

    /// What so many bytes from the beginning of a file cost, and what they are worth.
    pub fn beginning(&self, bytes: u64) -> Stake {
        let transfer = bytes as f64 * self.byte_us;
        let requests = match self.head || !self.overlapped {
            true => 0.0,
            false => bytes as f64 / self.chunk.max(1) as f64,
        };
        Stake {
            cost_us: requests * self.request_us + transfer,
            worth_us: self.plain_us(bytes, READAHEAD, true) + transfer,
        }
    }

    /// Bytes that a stream can pay for ahead of what it has.
    pub(super) fn bytes(&self, s: &Stream) -> u64 {
        let chunk = self.chunk.max(1) as f64;
        let (once, each) = match (s.dense(), self.head) {
            // One may be in debt for the way to it.
            (true, true) if s.stride > 0 => (0.0, self.byte_us),
            (true, true) => (self.request_us, self.byte_us),
            (true, false) => (0.0, self.byte_us + self.request_us / chunk),
            (false, _) => (0.0, self.byte_us + self.request_us / s.len.max(1) as f64),
        };
        ((self.left_us - once) / each.max(1e-9)).max(0.0) as u64
    }

    /// What so many requests of so many bytes ahead of a stream come to. `beside`: others are read, too.
    pub fn stake(&self, s: &Stream, requests: usize, bytes: u64, beside: bool) -> Stake {
        let way = match (s.dense(), self.head) {
            // The head has been called for what is ahead already.
            (true, true) if s.stride > 0 && s.stake.cost_us > 0.0 => 0.0,
            (true, true) => self.request_us,
            _ => self.request_us * requests as f64,
        };
        let transfer = bytes as f64 * self.byte_us;
        let waits_us = match s.plain() {
            true => self.plain_us(bytes, s.len, !beside),
            false if s.dense() => bytes as f64 / s.step().max(s.len).max(1) as f64 * self.wait_us,
            false => requests as f64 * self.wait_us,
        };
        Stake {
            cost_us: way + transfer,
            worth_us: waits_us + transfer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: f64 = 0.05;

    fn stake(cost_us: f64, worth_us: f64) -> Stake {
        Stake { cost_us, worth_us }
    }

    /// B12: whoever always leaves what was fetched for him has lost the credit to begin with, and a share of what he has waited.
    #[test]
    fn what_is_left_behind_stays_lost() {
        let mut credit = Credit::default();
        let mut lost = 0.0;
        for now in (0..1_000_000).step_by(1000) {
            credit.waited(1000.0, 4096, false, now);
            if credit.left_us(now, SHARE) >= 100.0 {
                credit.stake(stake(100.0, 1000.0));
                lost += 100.0;
            }
        }
        assert!(lost <= START_US + SHARE * 1e6, "{lost}");
        assert!(lost > 0.9 * SHARE * 1e6, "{lost}");
    }

    /// B12: of whom it serves an account has ever more, and a program that thinks for long has waited no longer for it.
    #[test]
    fn what_is_of_use_pays_for_more() {
        let mut credit = Credit::default();
        let mut ahead = Stake::default();
        let mut windows = Vec::new();
        for now in 0..8 {
            let left = credit.left_us(now, SHARE);
            windows.push(left);
            let next = stake(left, 3.0 * left);
            credit.stake(next);
            ahead += next;
            credit.returned(ahead.take(1.0));
        }
        assert!(windows.windows(2).all(|w| w[1] > 2.0 * w[0]), "{windows:?}");
        let mut idle = Credit::default();
        idle.waited(0.0, 0, false, 0);
        assert_eq!(idle.left_us(1_000_000_000, SHARE), START_US);
    }
}
