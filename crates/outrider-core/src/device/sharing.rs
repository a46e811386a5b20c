//! Whether somebody else reads from a disk that is being prefetched from, by what the disk counts.
//!
//! The more lies in a disk's queue, the longer a foreign reader waits for each of its reads; with nobody there it costs nothing. Disks
//! count the requests that they complete. What neither the engine has asked for nor the programs that it serves have fetched themselves is
//! somebody else's.
//!
//! Requests are counted when they are given to the disk: those that it has completed, and those on their way. So nothing is uncertain but what is being
//! handed over at the moment, and whoever waits behind a long queue is counted as soon as one who waits behind a short one. The queue is kept short until
//! [`PROOF`] looks have found nobody, because who waits long makes few requests, and again at the first sign of somebody; who is seen once more is there.

use std::collections::VecDeque;
use std::time::Duration;

use outrider_sys::units::{DeviceId, PAGE};

use super::{DeviceModel, READAHEAD};
use crate::clock::Moment;

/// Who else reads from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Nobody has looked long enough: little is kept in flight.
    Unknown,
    /// Nobody.
    Exclusive,
    /// Somebody: no more is kept in flight than the kernel's own readahead keeps.
    Shared,
}

/// Which reads of the programs may have left holes in what is being asked for: each makes two requests of one of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// Those since the look that is compared with.
    New,
    /// The latest.
    Late,
    /// All that there were: what a program has read at random comes in pieces, for as long as it reads.
    Old,
}

/// Bytes that calls which programs make ahead themselves have in flight at most: what a disk of 1 GB/s and 8 ms is just kept busy with.
pub const AHEAD: u64 = 8 << 20;

impl Sharing {
    /// Bytes that these calls may have in flight on a device where others read so, and so many other `runs` of ours, beside `asked` bytes that the
    /// engine has on their way: beside somebody all of ours together have no more than the engine would, and runs share what one of them would have.
    /// One window of the kernel's own readahead is always left.
    pub fn ahead(self, model: &DeviceModel, runs: u32, asked: u64) -> u64 {
        let share = AHEAD / (u64::from(runs) + 1);
        let most = match self {
            Sharing::Shared => model.beside_others().saturating_sub(asked).min(share),
            Sharing::Unknown | Sharing::Exclusive => share,
        };
        most.max(READAHEAD)
    }
}

/// From one look to the next where it is not known whether somebody is there …
pub(crate) const LOOK: Duration = Duration::from_millis(2);
/// … and where it is known.
pub(crate) const LATER: Duration = Duration::from_millis(10);
/// Looks after which a disk without a foreign request is ours alone, where nobody was seen before: a reader who waits for each of his
/// reads behind a short queue makes a dozen meanwhile, if the disk answers within 1 ms …
const PROOF: u32 = 8;
/// … and times that a read waits behind what is on its way there, whatever it is, that must have passed.
const ANSWERS: u32 = 12;
/// Looks, in succession, after which it is looked more rarely.
pub(crate) const SURE: u32 = 3 * PROOF;
/// Looks after which it is where somebody was seen: a second.
const ALONE: u32 = 100;
/// Looks over which requests are counted: of a reader who reads every 10 ms there are enough.
const COUNTED: usize = 32;
/// Looks after which nothing is left that one of them didn't count, though it had been given to the disk.
const MOMENTS: usize = 4;
/// Foreign requests that are no sign of anybody: journals and directories are read now and then …
const FEW: u64 = 8;
/// … nor are so many more, once these were there …
const FEW_MORE: u64 = 3;
/// … and one in so many of ours that are longer than a page, because the kernel cuts some of them in two.
const CUT: u64 = 400;
/// Bytes that programs may have had on their way at a look, and what else it doesn't see.
const UNSEEN: u64 = 2 * READAHEAD;
/// Pieces that one of our requests may be cut into, at most: of 128 KiB, by pages that are cached.
const HOLES: u64 = 16;

/// Requests of a disk at a look, since whenever.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    /// Given to the disk: no fewer, by its own counts, which for a moment leave out what it has finished and nobody has been told of, dozens beside a busy processor, and
    /// perhaps as many as these.
    pub(crate) begun: (u64, u64),
    /// Of the engine and of walks, which the disk had surely been given …
    pub(crate) handed: u64,
    /// … and may have been given.
    pub(crate) issued: u64,
    /// Of the engine's and of other runs', those that the kernel may have cut in two.
    pub(crate) long: u64,
    /// Of the programs themselves.
    pub(crate) programs: u64,
    /// Of what was read beside the engine, what may have left holes in what it asks for.
    pub(crate) holes: u64,
    /// Bytes that the disk has delivered.
    pub(crate) delivered: u64,
    /// Bytes that it may have been asked for by us and the programs: no fewer, and no more.
    pub(crate) asked: Option<(u64, u64)>,
    /// Of these, what was on its way, as far as is known.
    pub(crate) way: u64,
}

impl Count {
    /// Requests that the disk has been given if at `before` it had been given no more than it counted, and then what the engine has handed over.
    fn at_least(&self, before: &Count) -> u64 {
        before.begun.0 + self.handed.saturating_sub(before.issued)
    }

    /// How many requests since `before` were surely somebody else's. Ours are cut into so many `pieces` each, and `holes` may have been cut in two, besides those that
    /// the kernel cuts.
    fn foreign_since(&self, before: &Count, pieces: u64, holes: u64) -> u64 {
        let begun = self.begun.0.saturating_sub(before.begun.1);
        let engine = self.issued.saturating_sub(before.handed) * pieces;
        let programs = self.programs - before.programs;
        let holes = holes.min(engine * HOLES);
        let cut = self.long.saturating_sub(before.long) * pieces / CUT;
        begun.saturating_sub(engine + programs + holes + cut)
    }

    /// How many bytes since `before` were surely somebody else's: of how many requests ours and the programs' were doesn't matter, nor does anything but what was on its way
    /// then.
    fn foreign_bytes_since(&self, before: &Count) -> u64 {
        let Some((now, then)) = self.asked.zip(before.asked) else {
            return 0;
        };
        let asked = now.1.saturating_sub(then.0);
        let delivered = self.delivered.saturating_sub(before.delivered);
        delivered.saturating_sub(asked + before.way + UNSEEN)
    }
}

pub(crate) struct Disk {
    pub(crate) device: DeviceId,
    /// Requests that one of the engine's becomes where the disk takes no longer ones.
    pub(crate) pieces: u64,
    /// The longest request, bytes.
    pub(crate) longest: u64,
    /// The last looks, newest last.
    pub(crate) counts: VecDeque<Count>,
    /// Requests that were surely made beside the engine, and at this look perhaps so many more; how often room had been asked for them.
    pub(crate) beside: u64,
    pub(crate) uncertain: u64,
    pub(crate) entered: u64,
    /// Whether programs have gone through directories lately.
    pub(crate) walked: bool,
    /// Requests of the programs themselves before each of the last looks, twice as many as counts. What such a read has brought in leaves a hole in a request of ours that
    /// is still to come, which becomes two, and its own is smaller than others where a part was cached.
    pub(crate) own: VecDeque<u64>,
    /// Looks since [`Holes::Old`].
    pub(crate) whole: usize,
    /// Looks in succession at which nothing was on its way, and by how many bytes more had been asked for than were delivered once there were enough of them. What has been asked
    /// for since may still be on its way: a group counts as arrived when its last page is there, and a disk may have turned to that first.
    pub(crate) idle: u32,
    pub(crate) settled: i64,
    pub(crate) busy: Moment,
    /// Looks that have found nobody, since somebody was seen …
    pub(crate) quiet: u32,
    /// … if anybody was …
    pub(crate) seen: bool,
    /// … or some requests that may be all there were.
    pub(crate) suspected: bool,
    pub(crate) sharing: Sharing,
    /// Another run of ours sees somebody.
    pub(crate) told: bool,
}

impl Disk {
    /// One that takes requests of `longest` bytes, of ours that have `chunk`.
    pub(crate) fn new(device: DeviceId, longest: u64, chunk: u64, now: Moment) -> Disk {
        Disk {
            device,
            pieces: chunk.div_ceil(longest.max(PAGE)).max(1),
            longest: longest.max(PAGE),
            counts: VecDeque::new(),
            beside: 0,
            uncertain: 0,
            entered: 0,
            walked: false,
            own: VecDeque::new(),
            whole: COUNTED,
            idle: 0,
            settled: 0,
            busy: now,
            quiet: 0,
            seen: false,
            suspected: false,
            sharing: Sharing::Unknown,
            told: false,
        }
    }

    /// Who else reads from it, by what this run and others see.
    pub(crate) fn sharing(&self) -> Sharing {
        if self.told {
            Sharing::Shared
        } else {
            self.sharing
        }
    }

    /// Takes a look into account; `None`: nothing could be counted. `answer`: how long a read waits there.
    pub(crate) fn look(&mut self, count: Option<Count>, answer: Duration, holes: Holes) {
        let Some(mut count) = count else {
            self.counts.clear();
            self.pass(answer);
            return;
        };
        let before = self.counts.iter().rev().take(MOMENTS);
        let before = before.map(|c| count.at_least(c));
        count.begun.1 = before.fold(count.begun.1, u64::max);
        if let Some((_, most)) = count.asked {
            // Both are counted since whenever: only what becomes of them says something.
            let due = most.wrapping_sub(count.delivered) as i64;
            self.idle = match count.way {
                0 => self.idle + 1,
                _ => 0,
            };
            if self.counts.is_empty() || self.idle >= proof(answer) {
                self.settled = due;
            }
            count.way = count.way.max((due - self.settled).max(0) as u64);
        }
        if self.own.len() == 2 * COUNTED {
            self.own.pop_front();
        }
        let before = self.counts.back().copied().unwrap_or_default();
        let new = count.holes.saturating_sub(before.holes);
        self.own.push_back(count.programs - before.programs + new);
        self.whole = match holes {
            Holes::Old => 0,
            _ => self.whole + 1,
        };
        let holes = |since: &Count| match holes {
            _ if self.whole < COUNTED => count.programs + count.holes,
            Holes::Late => self.own.iter().sum(),
            _ => count.programs - since.programs,
        };
        let few = if self.suspected { FEW_MORE } else { FEW };
        let foreign = self.counts.iter().any(|c| {
            count.foreign_since(c, self.pieces, holes(c)) > few
                || count.foreign_bytes_since(c) > few * PAGE
        });
        if self.counts.len() == COUNTED {
            self.counts.pop_front();
        }
        self.counts.push_back(count);
        if foreign {
            // Somebody who goes on reading is seen again soon.
            self.seen |= self.suspected;
            self.sharing = match self.seen {
                true => Sharing::Shared,
                false => Sharing::Unknown,
            };
            (self.suspected, self.quiet) = (true, 0);
            // Those were counted.
            self.counts.drain(..self.counts.len() - 1);
            return;
        }
        self.pass(answer);
    }

    /// A look has found nobody.
    fn pass(&mut self, answer: Duration) {
        self.quiet += 1;
        let enough = match self.seen {
            true => ALONE,
            // Of what programs have read block by block nobody knows how many requests it was.
            false if self.walked => proof(answer).max(2 * PROOF),
            false => proof(answer),
        };
        if self.quiet >= enough {
            (self.sharing, self.suspected, self.seen) = (Sharing::Exclusive, false, false);
        }
    }
}

/// Looks that prove something of a disk where a read waits so long.
fn proof(answer: Duration) -> u32 {
    let answers = (ANSWERS * answer).as_micros() / LOOK.as_micros();
    PROOF.max(answers as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(100);

    /// A disk whose queue holds `deep` requests of ours, of which it completes 100 from one look to the next: what was believed after each of the looks
    /// at which `foreign` says how many requests of somebody else's had been given to it since the last one.
    fn watched(
        deep: u64,
        answer: Duration,
        looks: u32,
        foreign: impl Fn(u32) -> u64,
    ) -> Vec<Sharing> {
        let mut disk = Disk::new(DeviceId(1), u64::MAX, READAHEAD, Moment::BEGINNING);
        let (mut done, mut others) = (0, 0);
        let believed = (0..looks).map(|k| {
            others += foreign(k);
            // At every second look a group of four is just being handed over.
            let issued = done + deep;
            let handed = issued - 4 * u64::from(k % 2);
            let count = Count {
                begun: (handed + others, issued + others),
                handed,
                issued,
                ..Count::default()
            };
            disk.look(Some(count), answer, Holes::New);
            done += 100;
            disk.sharing
        });
        believed.collect()
    }

    /// Looks until somebody was known to be there.
    fn found(believed: &[Sharing]) -> Option<usize> {
        believed.iter().position(|c| *c == Sharing::Shared)
    }

    /// DR7: who reads from the disk beside a stream is found within a few looks, however long the queue is that he waits behind, and somebody who reads
    /// one page a look within a third of a second; what we have asked for is nobody's.
    #[test]
    fn what_nobody_of_us_asked_for_is_foreign() {
        for deep in [4, 32, 1024] {
            let many = watched(deep, FAST, 40, |_| 10);
            assert!(found(&many).is_some_and(|looks| looks <= 4), "{many:?}");
            assert!(!many.contains(&Sharing::Exclusive));
            assert!(found(&watched(deep, FAST, 32, |_| 1)).is_some());
            let alone = watched(deep, FAST, 400, |_| 0);
            assert_eq!(alone[PROOF as usize - 2], Sharing::Unknown);
            assert_eq!(alone[PROOF as usize..], [Sharing::Exclusive; 392]);
        }
    }

    /// DR7: a neighbour who comes later is found beside a long queue, which is shortened at the first sign of him, and is believed to be there until a
    /// second after he has gone.
    #[test]
    fn a_neighbour_who_comes_later_is_noticed() {
        let believed = watched(
            1024,
            FAST,
            300,
            |k| if (50..100).contains(&k) { 4 } else { 0 },
        );
        assert_eq!(believed[49], Sharing::Exclusive);
        let shortened = (50..).find(|k| believed[*k] != Sharing::Exclusive);
        assert_eq!(shortened.map(|k| believed[k]), Some(Sharing::Unknown));
        assert!(shortened.is_some_and(|k| k <= 54), "{believed:?}");
        assert!(found(&believed).is_some_and(|k| k <= 57), "{believed:?}");
        assert_eq!(believed[150], Sharing::Shared);
        assert_eq!(believed[100 + ALONE as usize], Sharing::Exclusive);
    }

    /// DR7: what a disk has finished and its processor has not told anybody of yet is in none of its counts at a look, and in them at the next: that is nobody.
    #[test]
    fn what_is_counted_late_is_nobody() {
        let mut disk = Disk::new(DeviceId(1), u64::MAX, READAHEAD, Moment::BEGINNING);
        for k in 0..200 {
            let given = 20 * k + 64;
            let late = if k % 7 == 6 { 64 } else { 0 };
            let count = Count {
                begun: (given - late, given - late),
                handed: given - 16,
                issued: given,
                ..Count::default()
            };
            disk.look(Some(count), FAST, Holes::New);
            assert!(!disk.suspected, "look {k}");
        }
        assert_eq!(disk.sharing, Sharing::Exclusive);
        // A look during which the processor was away counts too many, and hides nobody for long.
        let (mut disk, mut others) = (
            Disk::new(DeviceId(1), u64::MAX, READAHEAD, Moment::BEGINNING),
            0,
        );
        let found = (0..40).position(|k| {
            others += 2;
            let given = 20 * k + 64 + others;
            let count = Count {
                begun: (given, given + if k == 2 { 300 } else { 0 }),
                handed: 20 * k + 64,
                issued: 20 * k + 64,
                ..Count::default()
            };
            disk.look(Some(count), FAST, Holes::New);
            disk.sharing == Sharing::Shared
        });
        assert!(found.is_some_and(|looks| looks < 16), "{found:?}");
    }

    /// DR7: some requests that nobody goes on with, as of a journal, shorten the queue only for a moment.
    #[test]
    fn a_burst_is_nobody() {
        let believed = watched(64, FAST, 100, |k| if k == 50 { 24 } else { 0 });
        assert_eq!(believed[50], Sharing::Unknown);
        assert_eq!(found(&believed), None);
        assert_eq!(believed[51 + PROOF as usize], Sharing::Exclusive);
    }

    /// DR7: of a disk that answers late it takes longer to know, because whoever reads there makes fewer requests.
    #[test]
    fn a_slow_disk_is_watched_for_longer() {
        let alone = |answer| {
            let believed = watched(32, answer, 200, |_| 0);
            believed.iter().position(|c| *c == Sharing::Exclusive)
        };
        let slow = Duration::from_millis(8);
        let time = |looks: Option<usize>| looks.map(|k| LOOK * k as u32);
        assert!(time(alone(FAST)).is_some_and(|t| t < 20 * LOOK));
        assert!(time(alone(slow)).is_some_and(|t| t > 10 * slow && t < 20 * slow));
    }

    /// DR7: the requests that programs make themselves are nobody's either.
    #[test]
    fn the_programs_own_requests_are_not_foreign() {
        let now = Count {
            begun: (60, 60),
            handed: 40,
            issued: 40,
            programs: 10,
            ..Count::default()
        };
        assert_eq!(now.foreign_since(&Count::default(), 1, 10), 0);
        assert_eq!(now.foreign_since(&Count::default(), 1, 0), 10);
        // Where nothing was asked for nothing of it was cut in two.
        let idle = Count {
            begun: (20, 20),
            programs: 10,
            ..Count::default()
        };
        assert_eq!(idle.foreign_since(&Count::default(), 1, 10), 10);
    }

    /// DR7, B11: what a program has read at random leaves holes in a file that is streamed afterwards, which cut our requests for long after;
    /// nothing else that it has read hides a neighbour.
    #[test]
    fn holes_in_what_is_streamed_are_nobodys() {
        let stream = |streamed: Holes, own: u64, foreign: u64| {
            let mut disk = Disk::new(DeviceId(1), u64::MAX, READAHEAD, Moment::BEGINNING);
            let mut count = Count {
                programs: own,
                ..Count::default()
            };
            for look in 0..40 {
                disk.look(Some(count), FAST, streamed);
                count.handed += 20;
                count.issued += 20;
                // Ten of them were cut until there are no holes left.
                let cut = if look * 10 < own { 10 } else { 0 };
                count.begun.0 += 20 + cut + foreign;
                count.begun.1 = count.begun.0;
            }
            disk.sharing
        };
        assert_eq!(stream(Holes::Late, 100, 0), Sharing::Exclusive);
        assert_eq!(stream(Holes::Late, 100, 20), Sharing::Shared);
        assert_eq!(stream(Holes::New, 100, 10), Sharing::Shared);
    }

    /// DR7: calls that programs make ahead have what the engine leaves of what it may have beside somebody, and runs share; where nobody is known to
    /// read it is what it always was.
    #[test]
    fn calls_ahead_yield_to_others() {
        let model = DeviceModel::default();
        let of = |sharing: Sharing, runs, asked| sharing.ahead(&model, runs, asked);
        assert_eq!(of(Sharing::Unknown, 0, 1 << 20), AHEAD);
        assert_eq!(of(Sharing::Exclusive, 0, 1 << 20), AHEAD);
        assert_eq!(of(Sharing::Exclusive, 3, 0), AHEAD / 4);
        assert_eq!(of(Sharing::Shared, 0, 0), model.beside_others());
        assert_eq!(
            of(Sharing::Shared, 0, 100 << 10),
            model.beside_others() - (100 << 10)
        );
        assert_eq!(of(Sharing::Shared, 0, 1 << 20), READAHEAD);
        // A far device takes more, beside somebody, too.
        let mut far = DeviceModel::default();
        (0..32).for_each(|_| far.answered(PAGE, 0, 15_000.0));
        assert!(of_far(&far) > 1 << 20 && of_far(&far) <= AHEAD);
        fn of_far(far: &DeviceModel) -> u64 {
            Sharing::Shared.ahead(far, 0, 0)
        }
    }
}
