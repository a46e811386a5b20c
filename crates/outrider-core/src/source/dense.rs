//! Random reads that add up to most of a file.
//!
//! No pattern tells where the next read falls, yet if the program goes on, every block of the region will be wanted, and the
//! device delivers the region in order many times faster than block by block. Whether the program goes on is unknown.
//! This is a ski rental in which one may buy a piece at a time. The region is fetched in order, in pieces, and each is an investment: it delays the program's own reads
//! (see [`Bulk`](crate::device::Bulk)). What pieces have cost stays within a share of what the program has waited for misses, and of what it has been saved by pieces that
//! it came to read. So a program that stops, or reads elsewhere, has lost no more than the first share; and one that goes on is saved more by each piece than that cost, so
//! that the pace grows with the part of the region that is there. The paper has nothing like it; its `fetchall` buys at once.

use outrider_sys::units::{ByteRange, PAGE};

/// What is known of a file's random reads.
#[derive(Clone, Debug, Default)]
pub struct Random {
    /// Random reads seen or skipped.
    pub reads: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Of the reads that were looked at, those that found something missing …
    pub misses: u64,
    /// … and all that were looked at.
    pub sampled: u64,
    /// The region they fall in, bytes.
    pub hull: ByteRange,
    /// Of the reads that were looked at, those that fell where one had fallen before.
    pub repeats: u64,
    /// Reads that fall where one had fallen before are not all seen: of a mapping only what is touched first is.
    pub unrepeated: bool,
    /// What was bought so far, bytes, and what of it has been read.
    pub bought: u64,
    /// See [`Random::bought`].
    pub used: u64,
    /// What that has cost the program, µs.
    pub spent_us: f64,
    /// Misses that were counted so far, and those of them whose time may be spent.
    counted: f64,
    earned: f64,
    /// What it has cost as far as the program's pace shows: see [`Random::paced`], µs.
    pub slowed_us: f64,
    /// Time between two reads before anything was bought, µs, all of them together, and how many that were.
    before_us: f64,
    before: f64,
    /// What finding out about the device has cost the program, if that has no room for requests beside its own, µs.
    pub probed_us: f64,
    /// The share of misses among the latest reads.
    pub missing_lately: f64,
    /// Bytes of a region in which repeats are counted.
    grid: u64,
    /// Where the kernel's counts began.
    since: Option<Since>,
    touched: Vec<u64>,
    /// The blocks of the latest reads, each plus one.
    recent: [u64; RECENT],
}

/// What the kernel says of the pages of a region.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Cached, or on their way.
    pub cached: u64,
    /// Read by the program at some time: cached or evicted since, without what was prefetched and not used.
    pub brought: u64,
}

/// The state at the first look at what the kernel holds.
#[derive(Clone, Copy, Debug)]
struct Since {
    misses: f64,
    brought: u64,
}

/// What a decision is made from.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What of the region is not cached, bytes.
    pub missing: u64,
    /// The same of other files that are being read in this way, bytes.
    pub others: u64,
    /// What may be asked for now, bytes …
    pub room: u64,
    /// … and once all that was asked for is used.
    pub grant: u64,
    /// How the reads of these files fell.
    pub draws: Draws,
    /// What the kernel holds of the region, if it says so.
    pub held: Option<Held>,
}

/// Reads that fell where one had fallen before, and as many as would if they were drawn evenly.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draws {
    repeats: f64,
    by_chance: f64,
}

impl Draws {
    /// Whether each block is read once, as it seems.
    pub fn are_once(self) -> bool {
        self.by_chance >= ENOUGH && self.repeats * ENOUGH <= self.by_chance
    }
}

impl std::ops::Add for Draws {
    type Output = Draws;

    fn add(self, other: Draws) -> Draws {
        Draws {
            repeats: self.repeats + other.repeats,
            by_chance: self.by_chance + other.by_chance,
        }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Buy so many pieces of the region.
    Buy(u64),
    /// Buy so many as quickly as the device can.
    Hurry(u64),
    /// Buy when there is room.
    Later,
    /// Decide anew after so many reads.
    After(u64),
    /// Too little is known: hear every read.
    Hear,
    /// Not worth it, as far as can be told.
    No,
}

/// What may be spent before anything was waited for: so many misses, and no more than so many µs.
pub const CREDIT: f64 = 16.0;
/// See [`CREDIT`].
pub const CREDIT_US: f64 = 2000.0;

/// Chance repeats that are due before it is believed of a program, of which there were none, that it reads each block once: with so many there are none once in 50 times.
const ENOUGH: f64 = 4.0;
/// So many times the share is spent then, but no more than that can save of what is waited (see [`Price::saves`]): it will most likely come to all blocks.
const ONCE: f64 = 20.0;
/// The same where there is no room: the worst that may come of it is six tenths more than a program takes by itself.
const ONCE_BESIDE: f64 = 12.0;

/// Pieces that are bought at once.
pub const AT_ONCE: u64 = 16;

/// Of what pieces have saved the program, so much may be spent on the next ones.
const SAVED: f64 = 1.0;

/// Reads by whose pace it is known how quickly a program goes on by itself …
const PACE: f64 = 16.0;
/// … of which a longer pause counts so many times as much at most.
const LONGEST: f64 = 4.0;

/// Threads that read the same blocks, each at its own pace, wait for the same request: such reads are one.
const RECENT: usize = 16;

/// Reads before anything is decided.
pub const FEWEST: u64 = 32;

/// Chance repeats that are due before it is believed that there are none: with so many, fewer than a quarter come once in 2000 times.
const TELLING: f64 = 12.0;

/// Regions in which repeats are counted: a bit for each page up to this many, then coarser.
pub const TOUCH_BITS: u64 = 1 << 17;

/// Bytes of such a region in a file of `size` bytes.
fn grid(size: u64) -> u64 {
    size.div_ceil(TOUCH_BITS).next_multiple_of(PAGE).max(PAGE)
}

/// The device as far as this decision needs it.
#[derive(Clone, Copy, Debug)]
pub struct Price {
    /// Microseconds that a read of a block takes that misses.
    pub miss_us: f64,
    /// By how much a piece delays a program that waits for its reads, microseconds.
    pub piece_us: f64,
    /// The same where as many are on their way as the device takes, microseconds.
    pub hurried_us: f64,
    /// Bytes of a piece.
    pub piece: u64,
    /// Pieces that are bought at once where as many are on their way as the device takes.
    pub soon: u64,
    /// The device has room for requests beside the program's.
    pub has_room: bool,
}

impl Price {
    /// What share of the wait for so many bytes is saved where all of them are bought as quickly as the device can: long reads keep it as busy themselves.
    pub fn saves(&self, each: u64) -> f64 {
        let us = match self.hurried_us.is_finite() {
            true => self.hurried_us,
            false => self.piece_us,
        };
        (1.0 - us * each as f64 / (self.miss_us * self.piece as f64)).max(0.0)
    }

    /// Whether a byte in order costs more than one that is read so many at a time.
    pub fn is_higher(&self, each: u64) -> bool {
        self.piece_us * each as f64 > self.miss_us * self.piece as f64
    }
}

impl Random {
    /// Counts a random read and `skipped` more like it that were not told.
    pub fn count(&mut self, offset: u64, len: u64, missing: bool, skipped: u64, size: u64) {
        let block = grid(size);
        self.grid = block;
        let place = offset / block + 1;
        if len >= block && self.recent.contains(&place) {
            return;
        }
        self.recent[self.sampled as usize % RECENT] = place;
        let reads = skipped.saturating_add(1);
        self.reads = self.reads.saturating_add(reads);
        self.bytes = self.bytes.saturating_add(len.saturating_mul(reads));
        self.sampled += 1;
        self.misses += u64::from(missing);
        self.missing_lately += (f64::from(u8::from(missing)) - self.missing_lately) / 16.0;
        let end = offset.saturating_add(len).min(size).max(offset);
        self.hull = if self.hull.is_empty() {
            offset..end
        } else {
            self.hull.start.min(offset)..self.hull.end.max(end)
        };
        if self.touched.is_empty() {
            self.touched = vec![0; (TOUCH_BITS / 64) as usize];
        }
        let bit = (offset / block) % TOUCH_BITS;
        let (word, mask) = ((bit / 64) as usize, 1u64 << (bit % 64));
        self.repeats += u64::from(self.touched[word] & mask != 0);
        self.touched[word] |= mask;
    }

    /// `us` have passed since the read before, in which a read took place that waited, or not, and as many more like it as were not told. What a piece costs follows from the
    /// device, but not what becomes of a program whose processor, or whose share of a volume, it takes: that shows in its pace. A read that waits takes as long as one did
    /// before anything was bought, and one that does not that much less what it would have waited, `miss_us`. What it takes beyond that is what pieces have cost. `busy`: some are on
    /// their way still.
    pub fn paced(&mut self, us: f64, waits: bool, skipped: u64, miss_us: f64, busy: bool) {
        let reads = 1.0 + skipped as f64;
        if self.bought == 0 {
            self.before_us += us;
            self.before += reads;
            return;
        }
        if self.before < PACE {
            return;
        }
        let before_us = self.before_us / self.before;
        // Who computes for a while has not waited, unless pieces were on their way all the while.
        let us = match busy {
            true => us,
            false => us.min(reads * before_us * LONGEST),
        };
        let expected = match waits {
            true => before_us,
            false => (before_us - miss_us).max(0.0),
        };
        self.slowed_us = (self.slowed_us + us - reads * expected).max(0.0);
    }

    /// Reads that missed, those that were not told among them.
    pub fn missed(&self) -> f64 {
        self.reads as f64 * self.misses as f64 / self.sampled.max(1) as f64
    }

    /// Bytes that it takes besides itself.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.touched)
    }

    /// Bytes of a read.
    pub fn each(&self) -> u64 {
        (self.bytes / self.reads.max(1)).max(1)
    }

    /// The region of a file of `size` bytes that the reads seem to be drawn from. Where the outermost reads leave no more to an end of the file
    /// than chance does, it reaches to the end.
    pub fn region(&self, size: u64) -> ByteRange {
        // Reads drawn evenly leave an average gap at each end, and eight of them once in 3000 times.
        let margin = (self.hull.end - self.hull.start).saturating_mul(8) / self.sampled.max(1);
        let start = if self.hull.start <= margin {
            0
        } else {
            self.hull.start
        };
        let end = if size.saturating_sub(self.hull.end) <= margin {
            size
        } else {
            self.hull.end
        };
        start..end
    }

    /// How much of the region is to be bought now; `share` as in the module's text.
    ///
    /// Where memory doesn't hold all of these files, streaming one drives out what was read of them. That is no loss only if nothing is read
    /// twice, and until that is known every read is worth hearing: it takes some five times the root of the number of blocks.
    pub fn decide(&mut self, case: Case, price: Price, share: f64) -> Verdict {
        let heard = self.missed();
        if let (None, Some(held)) = (self.since, case.held) {
            self.since = Some(Since {
                misses: heard,
                brought: held.brought,
            });
        }
        if case.missing == 0 {
            return Verdict::No;
        }
        let own = self.draws();
        if own.repeats > 2.0 * own.by_chance + 16.0 {
            // A program that returns to the same blocks more often than chance would have it will not want them all.
            return Verdict::No;
        }
        let crowded = case.missing.saturating_add(case.others) > case.grant;
        if crowded && self.unrepeated {
            return Verdict::No;
        }
        if crowded {
            let all = own + case.draws;
            if all.repeats * 4.0 > all.by_chance.max(TELLING) {
                return Verdict::No;
            }
            if all.by_chance < TELLING {
                return Verdict::Hear;
            }
        }
        // What nobody looked at may have been cached by another read that nobody looked at.
        let misses = match (case.held, self.since) {
            (Some(held), Some(since)) => {
                let block = (self.bytes / self.reads.max(1)).max(PAGE) as f64;
                let new = held.brought.saturating_sub(since.brought) * PAGE;
                heard.min(since.misses + new as f64 / block)
            }
            _ => heard,
        };
        // What streams have used in the same file is not for these.
        let saved = self.used as f64 * self.reads as f64 / self.bytes.max(1) as f64;
        let saved = saved.min(self.reads as f64 - heard);
        let start = CREDIT_US.min(CREDIT.min(misses) * price.miss_us);
        let share = match (own.are_once(), price.has_room) {
            (true, true) => share.max((share * ONCE).min(price.saves(self.each()))),
            (true, false) => (share * ONCE_BESIDE).min(1.0),
            (false, _) => share,
        };
        self.earned += share * (misses - self.counted).max(0.0);
        self.counted = misses;
        let earned = (self.earned + SAVED * saved) * price.miss_us;
        let probed = if price.has_room { 0.0 } else { self.probed_us };
        let spent_us = self.spent_us.max(self.slowed_us);
        let credit = start + earned - spent_us - probed;
        let pieces = credit / price.piece_us.max(0.1);
        if pieces < 1.0 {
            let rent = share * price.miss_us * misses / self.reads.max(1) as f64;
            return match rent > 0.0 {
                true => Verdict::After((((price.piece_us - credit) / rent) as u64).max(1)),
                false => Verdict::No,
            };
        }
        if case.missing > case.grant {
            // What the program reads itself need not be fetched.
            return Verdict::After(((case.missing - case.grant) / self.each()).max(16));
        }
        // What is bought of files that don't fit together is driven out by the others before it is used, unless one fits as a whole.
        let wanted = if crowded { case.missing } else { price.piece };
        if case.room < wanted {
            return Verdict::Later;
        }
        let hurried = credit / price.hurried_us.max(0.1);
        match hurried >= AT_ONCE as f64 {
            true => Verdict::Hurry((hurried as u64).min(price.soon)),
            false => Verdict::Buy((pieces as u64).min(AT_ONCE)),
        }
    }

    /// How the reads that were looked at fell.
    pub fn draws(&self) -> Draws {
        let each = (self.bytes / self.reads.max(1)).max(self.grid).max(1);
        let blocks = ((self.hull.end - self.hull.start) as f64 / each as f64).max(1.0);
        let looked_at = self.sampled as f64;
        Draws {
            repeats: self.repeats as f64,
            by_chance: looked_at - blocks * (1.0 - (-looked_at / blocks).exp()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: f64 = 0.05;

    const NVME: Price = Price {
        miss_us: 92.0,
        piece_us: 4.0,
        hurried_us: 24.0,
        piece: 32 << 10,
        soon: 4 * AT_ONCE,
        has_room: true,
    };

    const DISK: Price = Price {
        miss_us: 12_000.0,
        piece_us: 30_000.0,
        hurried_us: 30_000.0,
        piece: 2 << 20,
        soon: 4 * AT_ONCE,
        has_room: false,
    };

    /// `missing` bytes of a file, beside `others` and with `grant`, where the kernel doesn't say what it holds.
    fn case(missing: u64, others: u64, grant: u64) -> Case {
        Case {
            missing,
            others,
            room: grant,
            grant,
            draws: Draws::default(),
            held: None,
        }
    }

    /// How many pieces a verdict has bought.
    fn buying(verdict: Verdict) -> Option<u64> {
        match verdict {
            Verdict::Buy(pieces) | Verdict::Hurry(pieces) => Some(pieces),
            _ => None,
        }
    }

    /// Whether anything is bought in such a case.
    fn buys(r: &mut Random, missing: u64, others: u64, grant: u64) -> bool {
        let case = case(missing, others, grant);
        buying(r.decide(case, NVME, SHARE)).is_some()
    }

    /// Buys what the verdict says of `missing` bytes; how many.
    fn buy(r: &mut Random, case: Case, price: Price) -> u64 {
        let verdict = r.decide(case, price, SHARE);
        let Some(pieces) = buying(verdict) else {
            return 0;
        };
        let each = match verdict {
            Verdict::Hurry(_) => price.hurried_us,
            _ => price.piece_us,
        };
        let bytes = (pieces * price.piece).min(case.missing);
        r.bought += bytes;
        r.spent_us += bytes as f64 / price.piece as f64 * each;
        bytes
    }

    /// B11: a program that reads at random, and never comes to what was bought, loses no more than the share of what it waits, at any moment; and no more than what is
    /// missing is bought.
    #[test]
    fn what_proves_useless_has_cost_a_share() {
        for price in [NVME, DISK] {
            let size = 64u64 << 30;
            let mut r = Random::default();
            let mut missing = size;
            for i in 0..20_000u64 {
                r.count((i * 7919 % (size >> 14)) << 14, 16 << 10, true, 0, size);
                missing -= buy(&mut r, case(missing, 0, size), price);
                let waited = (i + 1) as f64 * price.miss_us;
                // Nothing is read twice: that earns more.
                let most = CREDIT * price.miss_us + ONCE * SHARE * waited;
                assert!(r.spent_us <= most, "{} of {waited} after {i}", r.spent_us);
            }
            assert!(r.bought > 0);
        }
    }

    /// B12: a program that goes on more slowly than what was bought should cost it, for whatever reason, is sold no more than its share of that; one that pauses has not
    /// been slowed by that.
    #[test]
    fn what_slows_a_program_counts() {
        let size = 64u64 << 30;
        let bought = |slow: f64, pause: f64| {
            let mut r = Random::default();
            let mut missing = size;
            for i in 0..20_000u64 {
                let begun = r.bought > 0;
                let us = NVME.miss_us * if begun { slow } else { 1.0 };
                let us = us + if i % 500 == 400 { pause } else { 0.0 };
                r.paced(us, true, 0, NVME.miss_us, false);
                // Every sixteenth block has been read before: as a file that is much larger.
                let at = (i / 16 * 15 + i % 15) * 7919 % (size >> 14);
                r.count(at << 14, 16 << 10, true, 0, size);
                if r.reads >= FEWEST {
                    missing -= buy(&mut r, case(missing, 0, size), NVME);
                }
            }
            r.bought
        };
        let quick = bought(1.0, 0.0);
        let [slow, pausing] = [bought(1.6, 0.0), bought(1.0, 50_000.0)];
        assert!(slow < quick / 4, "{slow} of {quick}");
        assert!(pausing > quick / 2, "{pausing} of {quick}");
    }

    /// B11: of a permutation ever more is bought the more of it is used, so that most of its reads find what was bought.
    #[test]
    fn what_is_used_pays_for_the_rest() {
        for price in [NVME, DISK] {
            let size = 1u64 << 30;
            let blocks = size >> 14;
            let mut r = Random::default();
            let (mut missing, mut misses) = (size, 0u64);
            for i in 0..blocks {
                let at = (i * 20_011 % blocks) << 14;
                // Bought in order, from the begin on.
                let hit = at < r.bought;
                r.used += if hit { 16 << 10 } else { 0 };
                misses += u64::from(!hit);
                r.count(at, 16 << 10, !hit, 0, size);
                missing -= buy(&mut r, case(missing, 0, size), price);
            }
            assert_eq!(missing, 0);
            assert!(misses < blocks / 4, "{misses} of {blocks} missed");
        }
    }

    /// B11: nothing is bought of a file that is cached, or too large for the budget.
    #[test]
    fn what_does_not_pay_is_not_bought() {
        let size = 512u64 << 20;
        let (mut large, mut cached) = (Random::default(), Random::default());
        for i in 0..20_000u64 {
            let at = (i * 7919 % (size >> 14)) << 14;
            large.count(at, 16 << 10, true, 0, size);
            assert!(!buys(&mut large, size, 0, size / 2), "does not fit");
            cached.count(at, 16 << 10, false, 0, size);
        }
        assert!(!buys(&mut cached, size, 0, size));
    }

    /// CP11, B11: of a file that is touched through a mapping, and doesn't fit, nothing is streamed, because what is touched twice doesn't show.
    #[test]
    fn mapped_files_have_to_fit() {
        let size = 512u64 << 20;
        let mut r = Random::default();
        for i in 0..(size >> 14) {
            r.count((i * 20_011 % (size >> 14)) << 14, 16 << 10, true, 0, size);
        }
        r.unrepeated = true;
        assert!(buys(&mut r, size, 0, size));
        let crowded = case(size, 0, size / 2);
        assert_eq!(r.decide(crowded, NVME, SHARE), Verdict::No);
    }

    /// CP14, B11: threads that read the same random order, a few reads apart, are no reason to take it for a hot spot.
    #[test]
    fn threads_in_step_are_one_reader() {
        let size = 512u64 << 20;
        let blocks = size >> 14;
        let mut r = Random::default();
        // An odd factor makes a permutation.
        let order: Vec<u64> = (0..blocks).map(|i| i * 20_011 % blocks).collect();
        for i in 3..blocks as usize {
            for behind in 0..4 {
                let at = order[i - behind] << 14;
                r.count(at, 16 << 10, behind == 0, 0, size);
            }
            assert!(buys(&mut r, size, 0, size), "not after {i} reads");
        }
    }

    /// B11: one of several files that memory can't hold together is streamed only if its blocks are read once each, and all of these
    /// files together show that.
    #[test]
    fn crowded_files_must_not_repeat() {
        let size = 64u64 << 20;
        let blocks = size >> 14;
        let mut x = 1u64;
        let mut drawn = || {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (x >> 33) % blocks
        };
        let case = |draws| Case {
            draws,
            ..case(size, 3 * size, size)
        };
        let mut again = Random::default();
        for _ in 0..blocks {
            again.count(drawn() << 14, 16 << 10, true, 0, size);
            let verdict = again.decide(case(Draws::default()), NVME, SHARE);
            assert_eq!(buying(verdict), None);
        }
        assert!(buys(&mut again, size, 0, size));
        // Alone, and as one of four.
        for (files, earliest, latest) in [(1.0, 300, 340), (4.0, 120, 170)] {
            let mut once = Random::default();
            let bought = (0..blocks).find(|i| {
                once.count((i * 2011 % blocks) << 14, 16 << 10, true, 0, size);
                let own = once.draws();
                let others = Draws {
                    repeats: own.repeats * (files - 1.0),
                    by_chance: own.by_chance * (files - 1.0),
                };
                buying(once.decide(case(others), NVME, SHARE)).is_some()
            });
            assert!(
                bought.is_some_and(|at| (earliest..latest).contains(&at)),
                "{bought:?}"
            );
        }
    }

    /// B11: the moment of buying is not missed because few reads are told, and not hurried by reads that found cached what one that nobody
    /// told of had brought.
    #[test]
    fn silence_ends_in_time() {
        let size = 512u64 << 20;
        let blocks = size >> 14;
        let price = DISK.piece_us / DISK.miss_us / SHARE;
        for distinct in [1u64, 2] {
            let mut r = Random::default();
            let (mut read, mut told, mut skip) = (0u64, 0, 0u64);
            let bought = loop {
                r.count(
                    (read / distinct * 20_011 % blocks) << 14,
                    16 << 10,
                    true,
                    skip,
                    size,
                );
                read += 1;
                told += 1;
                let cached = read.div_ceil(distinct) * 4;
                let case = Case {
                    held: Some(Held {
                        cached,
                        brought: cached,
                    }),
                    ..case(size - cached * PAGE, 0, size)
                };
                skip = match r.decide(case, DISK, SHARE) {
                    Verdict::Buy(_) | Verdict::Hurry(_) => break read,
                    Verdict::After(reads) => reads,
                    other => panic!("{other:?} after {read}"),
                };
                read += skip;
            };
            let due = price * distinct as f64;
            assert!(
                (0.85..1.1).contains(&(bought as f64 / due)),
                "bought after {bought} of {due}"
            );
            assert!(told < 20, "{told} reads told");
        }
    }

    /// B11: what is streamed reaches to the ends of a file all over which reads fall, and not beyond a part of it.
    #[test]
    fn few_reads_stand_for_a_region() {
        let size = 512u64 << 20;
        let mut whole = Random::default();
        let mut part = Random::default();
        for i in 1..64u64 {
            whole.count(i * (size / 64), 16 << 10, true, 0, size);
            part.count(size / 4 + i * (size / 128), 16 << 10, true, 0, size);
        }
        assert_eq!(whole.region(size), 0..size);
        assert_eq!(part.region(size), part.hull);
    }

    /// B11: a hot spot inside a large file is not a reason to fetch the file.
    #[test]
    fn hot_spots_are_not_dense() {
        let size = 512u64 << 20;
        let mut r = Random::default();
        for i in 0..20_000u64 {
            let block = if i % 100 == 0 {
                i % (size >> 14)
            } else {
                i % 64
            };
            r.count(block << 14, 16 << 10, true, 0, size);
        }
        assert!(!buys(&mut r, size, 0, size));
    }
}
