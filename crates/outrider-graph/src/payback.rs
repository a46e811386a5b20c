//! Whether looking ahead is worth its price.
//!
//! An account in nanoseconds. What a device was waited for, by the program or by an engine in its stead, is earned: so much may be spent on looking further.
//! What was made ahead and would have been quick anyway, because the data was cached, is a price that was paid for nothing; calls of the pool are paid for
//! when they are given to it, and those that waited are paid back. Of a function that makes a few reads among other calls, the first wait of a run earns
//! nothing, as no looking ahead spares it; each further one earns what the first has taken, and where reads are only fetched what the looking ahead takes
//! of the processor's time is paid for. When the account is empty, looking ahead rests; the program's own calls are timed, some of them, and the first that waits ends the rest. So a program whose data is cached pays
//! for [`FIRST`] once, and then only for the clock.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A call quicker than this did not wait for a device; 4 KiB from the cache take 0.3 to 0.6 µs, the fastest disks 10 µs and more.
pub const QUICK: i64 = 8_000;
/// A readahead(2) of up to 128 KiB that is quicker found everything cached, in 0.3 to 1.4 µs; 4 KiB from a device take 3 µs to ask for.
pub const CACHED: Duration = Duration::from_micros(2);
/// Before anything was earned: 320 quick calls of a ring, 20 of the pool, 4 listings.
const FIRST: i64 = 160_000;
/// No more is kept, so that a program whose data is cached from some time on soon has peace.
const MOST: i64 = 4_000_000;
/// What a call that is followed costs, given to a ring or to nobody.
pub const CALL: i64 = 500;
/// What a read of `len` bytes costs that was made ahead and found everything cached. Besides the call, its bytes have left the processor's nearer caches
/// when they are used, and come back with 8 bytes a nanosecond; of more than 16 KiB that is so without us, too.
pub fn cached_read(len: i64) -> i64 {
    CALL + len.clamp(0, 16 << 10) / 8
}
/// What it costs in a thread of the pool: it is woken, and wakes.
pub const POOL_CALL: i64 = 8_000;
/// The same of a directory's listing.
pub const LISTING: i64 = 50_000;
/// What is earned where only that there was a wait is known: that for a fast disk.
pub const WAIT: i64 = 20_000;
/// One run in so many is looked at then, where the others can be passed by.
const RUNS: u32 = 32;
/// Calls between two that are timed then, where nobody follows the others. A walk through neighbouring inodes waits for one look-up in 8 or 16: any
/// other distance meets one of them soon.
const UNTIMED: u16 = 10;
/// So many are timed before any is passed over.
const NEW: u32 = 64;

/// Which calls are timed while looking ahead rests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// One in four …
    Fourth,
    /// … and one in sixteen, when [`IN_VAIN`] have not waited.
    Sixteenth,
}

/// So many calls are timed, and do not wait, before fewer are. Where 128 KiB of reads of 8 KiB wait together, the next wait is seen after 4 of them,
/// and after what has been cached for longer than 1,000 calls after 16.
const IN_VAIN: u32 = 256;

/// Whether the `n`th call is timed: one in four, but not every fourth. Where the kernel reads ahead, only every so many calls wait, often every sixteenth:
/// no such step is missed for long.
#[inline]
pub fn is_timed(n: u64, share: Share) -> bool {
    // The golden ratio's multiples spread evenly, and so do those of most steps among them; but not every sixteenth of them below a sixteenth.
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let spread = n.wrapping_mul(GOLDEN);
    match share {
        Share::Fourth => spread < 1 << 62,
        Share::Sixteenth => (spread ^ spread >> 32).wrapping_mul(GOLDEN) < 1 << 60,
    }
}

/// What a thread has waited for in all.
#[derive(Clone, Copy, Default)]
pub struct Waits {
    /// How often it has slept.
    sleeps: i64,
    /// Blocks of 512 bytes that it has asked devices for.
    blocks: i64,
}

impl Waits {
    /// Of the calling thread.
    pub fn of_thread() -> Waits {
        // SAFETY: plain data, which the kernel fills in.
        unsafe {
            let mut usage: libc::rusage = core::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
            Waits {
                sleeps: usage.ru_nvcsw,
                blocks: usage.ru_inblock,
            }
        }
    }

    /// Whether it has asked a device for anything since `before`.
    pub fn asked_since(self, before: Waits) -> bool {
        self.blocks != before.blocks
    }

    /// Of `nanos` nanoseconds since `before` those that are taken for a wait for a device. A call during which another program had the processor took long
    /// too; it did not sleep. One that slept without having asked a device for anything may have waited for what others asked for, for a
    /// server, or for a lock.
    pub fn since(self, before: Waits, nanos: i64) -> i64 {
        if self.asked_since(before) {
            nanos
        } else {
            nanos.min((self.sleeps - before.sleeps) * WAIT)
        }
    }
}

/// What the waits of a run earn that makes a few reads among other calls.
#[derive(Clone, Copy, Default)]
pub struct Misses {
    count: u32,
    /// What the first has taken, ns; 0 while that is not known.
    first: i64,
}

impl Misses {
    /// A read whose data was not cached was asked for ahead: what is earned.
    pub fn asked(&mut self) -> i64 {
        self.count += 1;
        if self.count == 1 {
            0
        } else {
            self.first.max(WAIT)
        }
    }

    /// One was waited for, so long. `asked`: it is counted already.
    pub fn waited(&mut self, nanos: i64, asked: bool) -> i64 {
        self.count += u32::from(!asked);
        if self.count == 1 {
            self.first = nanos;
        }
        if self.count == 1 || asked { 0 } else { nanos }
    }
}

pub struct Payback {
    account: AtomicI64,
    /// What the last thread that asked had waited for.
    sleeps: AtomicI64,
    blocks: AtomicI64,
    /// Runs that began while looking ahead rested.
    runs: AtomicU32,
    /// Calls that were timed, up to [`NEW`].
    timed: AtomicU32,
    /// Calls that were timed since one has waited, up to [`IN_VAIN`].
    in_vain: AtomicU32,
}

impl Default for Payback {
    fn default() -> Payback {
        Payback {
            account: AtomicI64::new(FIRST),
            sleeps: AtomicI64::new(0),
            blocks: AtomicI64::new(0),
            runs: AtomicU32::new(0),
            timed: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
        }
    }
}

impl Payback {
    /// Nothing was earned yet: looking ahead rests until the first wait.
    pub fn at_rest() -> Payback {
        Payback {
            account: AtomicI64::new(0),
            ..Payback::default()
        }
    }

    /// Whether hardly a call was timed yet.
    pub fn is_new(&self) -> bool {
        self.timed.load(Relaxed) < NEW
    }

    /// Calls that are passed over after one that was timed.
    pub fn untimed(&self) -> u16 {
        if self.is_new() { 0 } else { UNTIMED }
    }

    /// Which calls are timed now, where all others are made and nothing else.
    #[inline]
    pub fn share(&self) -> Share {
        if self.in_vain.load(Relaxed) < IN_VAIN {
            Share::Fourth
        } else {
            Share::Sixteenth
        }
    }

    /// Whether looking ahead rests.
    #[inline]
    pub fn rests(&self) -> bool {
        self.account.load(Relaxed) <= 0
    }

    /// Whether a run that begins now need not be looked at.
    #[inline]
    pub fn passes_by(&self) -> bool {
        if !self.rests() {
            return false;
        }
        // What threads that meet here lose is a run's turn.
        let run = self.runs.load(Relaxed);
        self.runs.store(run.wrapping_add(1), Relaxed);
        !run.is_multiple_of(RUNS)
    }

    /// So much was earned, or spent if it is negative.
    pub fn enter(&self, nanos: i64) {
        if nanos == 0 {
            return;
        }
        // Threads that meet here may lose an entry, which is no more than a call's price.
        let new = (self.account.load(Relaxed).max(0) + nanos).min(MOST);
        self.account.store(new, Relaxed);
    }

    /// A call of the program's own has just ended, after so long. Whether it waited for a device: that is earned.
    pub fn timed(&self, took: Duration) -> bool {
        let waited = self.waited(took);
        self.enter(waited);
        waited > 0
    }

    /// The same where it is for the caller to say what is earned: how long it has waited for a device, ns.
    pub fn waited(&self, took: Duration) -> i64 {
        let nanos = took.as_nanos() as i64;
        if self.is_new() {
            // Threads that meet here count once.
            self.timed.store(self.timed.load(Relaxed) + 1, Relaxed);
        }
        let mut waited = 0;
        if nanos >= QUICK {
            let now = Waits::of_thread();
            let before = Waits {
                sleeps: self.sleeps.swap(now.sleeps, Relaxed),
                blocks: self.blocks.swap(now.blocks, Relaxed),
            };
            // Another thread may have asked last, and a first call finds the thread's whole past.
            let slept = (now.sleeps - before.sleeps).clamp(0, 1);
            let before = Waits {
                sleeps: now.sleeps - slept,
                ..before
            };
            waited = now.since(before, nanos);
        }
        let waited_long = waited >= QUICK;
        // What threads that meet here lose is a call's count.
        let in_vain = self.in_vain.load(Relaxed);
        if waited_long {
            self.in_vain.store(0, Relaxed);
        } else if in_vain < IN_VAIN {
            self.in_vain.store(in_vain + 1, Relaxed);
        }
        if waited_long {
            return waited;
        }
        if !self.rests() {
            self.enter(-CALL);
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::{Misses, Share, WAIT, is_timed};

    /// Calls that wait come every so many, from anywhere on.
    #[test]
    fn whatever_waits_regularly_is_timed_soon() {
        for (share, calls, most) in [(Share::Fourth, 2500, 12), (Share::Sixteenth, 625, 128)] {
            assert!(is_timed(0, share), "a run's first call is");
            let timed = (0..10_000).filter(|n| is_timed(*n, share)).count();
            assert!(timed.abs_diff(calls) < 50, "{timed}");
            for step in (1..=512).filter(|n: &u64| n.is_power_of_two()) {
                for first in 0..step {
                    let waits = (0..).map(|n| first + n * step);
                    let missed = waits.take_while(|n| !is_timed(*n, share)).count();
                    assert!(
                        missed < most,
                        "every {step}th from the {first}th on: {missed}"
                    );
                }
            }
        }
    }

    /// No looking ahead spares the first wait of a run.
    #[test]
    fn the_first_miss_of_a_run_earns_nothing() {
        let mut misses = Misses::default();
        assert_eq!(misses.asked(), 0);
        assert_eq!(misses.waited(90_000, true), 0);
        assert_eq!(misses.asked(), 90_000, "as long as the first has taken");
        assert_eq!(misses.waited(10_000, true), 0, "counted already");
        assert_eq!(misses.waited(70_000, false), 70_000);
        let mut unasked = Misses::default();
        assert_eq!(unasked.waited(90_000, false), 0);
        assert_eq!(unasked.waited(70_000, false), 70_000);
        // How long the first takes is not known yet.
        let mut early = Misses::default();
        assert_eq!((early.asked(), early.asked()), (0, WAIT));
    }
}
