//! Whether somebody else reads from a disk that is being prefetched from, by what the disk counts.
//!
//! The more lies in a disk's queue, the longer a foreign reader waits for each of its reads; with nobody there it costs nothing. Disks
//! count the requests that they complete. What neither the engine has asked for nor the programs that it serves have fetched themselves is
//! somebody else's.
//!
//! Requests are counted when they are given to the disk: those that it has completed, and those on their way. So nothing is uncertain but what is being
//! handed over at the moment, and whoever waits behind a long queue is counted as soon as one who waits behind a short one. The queue is kept short until
//! [`PROOF`] looks have found nobody, because who waits long makes few requests, and again at the first sign of somebody.
//!
//! Requests are more than those that were asked for where these are cut in parts by what is cached. Bytes tell: parts bring no more of them, and somebody else's requests bring
//! a page each at least. With little on its way, of which nobody knows what has come, that shows sooner, one way or the other.

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
    /// Somebody seems to: little is kept in flight until it is known.
    Suspected,
    /// Nobody.
    Exclusive,
    /// Somebody: he hardly waits for what is kept in flight.
    Shared,
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
            Sharing::Unknown | Sharing::Suspected | Sharing::Exclusive => share,
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
const COUNTED: usize = 64;
/// Looks after which nothing is left that one of them didn't count, though it had been given to the disk.
const MOMENTS: usize = 4;
/// Foreign requests that are no sign of anybody: journals and directories are read now and then …
const FEW: u64 = 8;
/// … nor are so many more, once these were there …
const FEW_MORE: u64 = 3;
/// … nor is one in so many of ours and the programs', which the kernel cuts in two now and then.
const PARTED: f64 = 1.0 / 400.0;
/// Looks after which it is given up to wait until nothing of ours is on its way, if something always is.
const HOLDS: u32 = 4;
/// Requests of which their bytes say whether they are somebody else's.
const SOME: u64 = 4 * FEW;

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
    /// Of the engine's, parts more than one each, as far as the bytes that they have read tell, if what lies between is as long as the programs' reads.
    pub(crate) parts: u64,
    /// Those that programs have made themselves.
    pub(crate) programs: Fetches,
    /// Bytes that the disk has delivered.
    pub(crate) delivered: u64,
    /// Bytes that it may have been asked for by us and the programs: no fewer, and no more.
    pub(crate) asked: Option<(u64, u64)>,
    /// Of these, what was on its way of ours, as far as is known.
    pub(crate) way: u64,
    /// Whether nothing was, by what the engine knows.
    pub(crate) drained: bool,
}

/// What programs have had fetched by themselves, since whenever.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fetches {
    pub(crate) requests: u64,
    /// Perhaps so many more at this look, of which the disk may have counted some.
    pub(crate) uncertain: u64,
    /// Their bytes.
    pub(crate) fetched: u64,
    /// Of these, what may have been on its way.
    pub(crate) way: u64,
    /// Streams that they read, and programs that give hints.
    pub(crate) streams: u64,
}

impl Count {
    /// Requests that the disk has been given if at `before` it had been given no more than it counted, and then what the engine has handed over.
    fn at_least(&self, before: &Count) -> u64 {
        before.begun.0 + self.handed.saturating_sub(before.issued)
    }

    /// Requests of ours and the programs' since `before`. Ours are cut into so many `pieces` each.
    fn own_since(&self, before: &Count, pieces: u64) -> u64 {
        let programs = self.programs.requests + self.programs.uncertain;
        self.issued.saturating_sub(before.handed) * pieces + programs - before.programs.requests
    }

    /// How many requests since `before` seem to be somebody else's: each of ours and the programs' has so many parts more than one.
    fn foreign_since(&self, before: &Count, pieces: u64, parted: f64) -> u64 {
        let begun = self.begun.0.saturating_sub(before.begun.1);
        let own = self.own_since(before, pieces);
        let parts = (own as f64 * parted) as u64 + self.parts.saturating_sub(before.parts);
        begun.saturating_sub(own + parts)
    }

    /// How many bytes since `before` were surely somebody else's: of how many requests ours and the programs' were doesn't matter, nor does anything but what was on its way
    /// then.
    fn foreign_bytes_since(&self, before: &Count) -> u64 {
        let Some((now, then)) = self.asked.zip(before.asked) else {
            return 0;
        };
        let asked = now.1.saturating_sub(then.0);
        let delivered = self.delivered.saturating_sub(before.delivered);
        delivered.saturating_sub(asked + before.way + before.programs.way)
    }

    /// How many bytes since `before` may have been somebody else's, at most. `None` where nobody knows.
    fn most_bytes_since(&self, before: &Count) -> Option<u64> {
        let (now, then) = self.asked.zip(before.asked)?;
        let asked = now.0.saturating_sub(then.1);
        let delivered = self.delivered.saturating_sub(before.delivered);
        Some((delivered + self.way + self.programs.way).saturating_sub(asked))
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
    /// Looks in succession at which nothing was on its way, and by how many bytes more had been asked for than were delivered once there were enough of them. What has been asked
    /// for since may still be on its way: a group counts as arrived when its last page is there, and a disk may have turned to that first.
    pub(crate) idle: u32,
    pub(crate) settled: i64,
    pub(crate) busy: Moment,
    /// Whether it may be waited for until nothing of ours is on its way …
    pub(crate) drains: bool,
    /// … how often it was, in vain …
    pub(crate) held: u32,
    /// … and how many of them in succession have decided nothing.
    pub(crate) undecided: u32,
    /// Looks that have found nobody, since somebody was seen …
    pub(crate) quiet: u32,
    /// … if anybody was …
    pub(crate) seen: bool,
    /// … or some requests that may be all there were …
    pub(crate) suspected: bool,
    /// … but surely somebody's.
    pub(crate) surely: bool,
    pub(crate) sharing: Sharing,
    /// Parts more than one that each of our requests and the programs' was seen to have.
    pub(crate) parted: f64,
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
            idle: 0,
            settled: 0,
            busy: now,
            drains: false,
            held: 0,
            undecided: 0,
            quiet: 0,
            seen: false,
            suspected: false,
            surely: false,
            sharing: Sharing::Unknown,
            parted: PARTED,
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
    pub(crate) fn look(&mut self, count: Option<Count>, answer: Duration) {
        let Some(mut count) = count else {
            self.forget();
            self.pass(answer);
            return;
        };
        let drained = count.way == 0 && count.asked.is_some();
        count.drained = drained;
        self.weigh(&mut count, answer);
        let few = if self.suspected { FEW_MORE } else { FEW };
        let signs = self.signs(&count, few);
        let mut counts = self.counts.iter();
        let surely = counts.any(|c| count.foreign_bytes_since(c) > few * PAGE);
        let excess = self.excess(&count, outreads(count.programs.way) - 1);
        let excess = excess.filter(|_| drained);
        let nobody = !surely && excess.is_some_and(|bytes| bytes <= few * PAGE);
        if self.counts.len() == COUNTED {
            self.counts.pop_front();
        }
        let are_weighed = count.asked.is_some();
        self.counts.push_back(count);
        if drained {
            self.held = 0;
            self.undecided += u32::from(self.sharing != Sharing::Unknown);
        }
        if surely || signs && !are_weighed {
            // Somebody who goes on reading is seen again soon.
            self.seen |= self.suspected;
            (self.suspected, self.quiet) = (true, 0);
            self.surely |= surely && self.drains;
            // Those were counted.
            self.counts.drain(..self.counts.len() - 1);
            self.undecided = 0;
        } else if nobody && self.drains && self.suspects() {
            self.quiet = self.quiet.max(proof(answer));
            return self.is_alone();
        } else if signs {
            self.quiet = 0;
        } else {
            return self.pass(answer);
        }
        self.sharing = match self.seen || self.surely {
            true => Sharing::Shared,
            false => Sharing::Suspected,
        };
    }

    /// What was counted until now says nothing any more.
    pub(crate) fn forget(&mut self) {
        self.counts.clear();
        (self.held, self.undecided) = (0, 0);
    }

    /// What may be on its way of what is counted now.
    fn weigh(&mut self, count: &mut Count, answer: Duration) {
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
        // No more than they have asked for since the last look, or for as long as answers take, if that is known.
        if answer > Duration::ZERO {
            let back = 2 + (2 * answer.as_micros() / LOOK.as_micros()) as usize;
            let back = self.counts.len().checked_sub(back);
            let then = back.and_then(|i| self.counts.get(i));
            let fetched = count.programs.fetched;
            let since = then.map_or(u64::MAX, |c| fetched.saturating_sub(c.programs.fetched));
            count.programs.way = count.programs.way.min(since);
        }
        count.programs.way = count.programs.way.min(u64::MAX / 2);
    }

    /// Bytes more than were asked for that were read, at most, since a look at which nothing of ours was on its way, so many looks ago at least.
    fn excess(&self, count: &Count, looks: u32) -> Option<u64> {
        let mut then = self.counts.iter().rev().skip(looks as usize);
        let then = then.rfind(|c| c.drained)?;
        let most = count.most_bytes_since(then)?;
        Some(most.saturating_sub(count.programs.way))
    }

    /// Whether the next look is to find nothing of ours on its way: then bytes tell exactly what is somebody else's. That is wanted when somebody
    /// has surely read, or seems to while programs read nothing themselves, and before nobody is believed to be there who may have.
    pub(crate) fn is_to_drain(&self, answer: Duration) -> bool {
        let Some(last) = self.counts.back().filter(|c| c.asked.is_some()) else {
            return false;
        };
        let perhaps = self.excess(last, 0).is_none_or(|bytes| bytes > FEW * PAGE);
        // What is not decided by then takes longer.
        let enough = PROOF << self.undecided.saturating_sub(1).min(3);
        let mut late = self.counts.iter().rev().take(enough as usize - 1);
        let long_ago = !late.any(|c| c.drained);
        // Of what programs may have on their way themselves nobody knows how much was read.
        let tells = last.programs.way <= FEW * PAGE;
        let wanted = match self.sharing {
            _ if self.suspected => long_ago && !self.seen,
            Sharing::Suspected => long_ago && tells,
            Sharing::Unknown => long_ago && perhaps && self.quiet + 1 >= self.enough(answer),
            _ => false,
        };
        self.drains && wanted && self.held < HOLDS
    }

    /// Whether more requests were made than ours and the programs', which their bytes don't disprove: each of somebody else's has a page at least. What they do disprove
    /// was parts of ours and theirs, between which others were cached: how many those are is learned by it.
    fn signs(&mut self, count: &Count, few: u64) -> bool {
        let (mut signs, mut parted) = (false, 0.0);
        for c in &self.counts {
            let requests = count.foreign_since(c, self.pieces, self.parted);
            if requests <= few {
                continue;
            }
            let most = count.most_bytes_since(c);
            // Some are on their way.
            let disproved = most.is_some_and(|most| most < requests * PAGE / 2);
            if requests >= SOME && disproved {
                let own = count.own_since(c, self.pieces).max(1);
                parted = f64::max(parted, requests as f64 / own as f64);
            } else {
                signs = true;
            }
        }
        self.parted += parted;
        signs && parted == 0.0
    }

    /// A look has found nobody.
    fn pass(&mut self, answer: Duration) {
        self.quiet += 1;
        let enough = self.enough(answer).max(self.hidden());
        if self.quiet >= enough && !self.is_to_drain(answer) {
            self.is_alone();
        }
    }

    /// Whether somebody may be there who was not seen for long.
    fn suspects(&self) -> bool {
        !self.seen && self.sharing != Sharing::Unknown
    }

    fn is_alone(&mut self) {
        self.sharing = Sharing::Exclusive;
        (self.suspected, self.surely, self.seen, self.undecided) = (false, false, false, 0);
    }

    /// Looks that must have found nobody.
    fn enough(&self, answer: Duration) -> u32 {
        match self.seen {
            true => ALONE,
            // Of what programs have read block by block nobody knows how many requests it was.
            false if self.walked => proof(answer).max(2 * PROOF),
            false => proof(answer),
        }
    }

    /// Looks that must have found nobody while programs read several streams: something of these is on its way at any time, behind which he may be.
    fn hidden(&self) -> u32 {
        let late = || self.counts.iter().rev().take(PROOF as usize);
        if late().all(|c| c.programs.streams < 2) {
            return 0;
        }
        outreads(late().map(|c| c.programs.way).max().unwrap_or(0))
    }
}

/// Looks after which somebody who makes [`FEW`] requests in [`PROOF`] of them has read more than programs may have on their way, no more than are kept.
fn outreads(way: u64) -> u32 {
    let proofs = 1 + way / (FEW * PAGE);
    (u64::from(PROOF) * proofs.min(COUNTED as u64)).min(COUNTED as u64) as u32
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
            disk.look(Some(count), answer);
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
        assert_eq!(shortened.map(|k| believed[k]), Some(Sharing::Suspected));
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
            disk.look(Some(count), FAST);
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
            disk.look(Some(count), FAST);
            disk.sharing == Sharing::Shared
        });
        assert!(found.is_some_and(|looks| looks < 16), "{found:?}");
    }

    /// DR7: some requests that nobody goes on with, as of a journal, shorten the queue only for a moment.
    #[test]
    fn a_burst_is_nobody() {
        let believed = watched(64, FAST, 100, |k| if k == 50 { 24 } else { 0 });
        assert_eq!(believed[50], Sharing::Suspected);
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
            programs: Fetches {
                requests: 10,
                ..Fetches::default()
            },
            ..Count::default()
        };
        assert_eq!(now.foreign_since(&Count::default(), 1, 0.2), 0);
        assert_eq!(now.foreign_since(&Count::default(), 1, 0.0), 10);
        // What they made while the disk was looked at may be among what it counts.
        let mut looked_on = now;
        looked_on.programs.uncertain = 10;
        assert_eq!(looked_on.foreign_since(&Count::default(), 1, 0.0), 0);
    }

    /// What is believed of a disk in 200 looks, between which we ask for 20 requests of 128 KiB, a program reads `own` blocks of 16 KiB itself, `parts` of these requests are
    /// made more by what is cached, and somebody reads `foreign` pages. Half a MiB is on its way, or less once somebody is known to be there.
    fn weighed(own: u64, parts: u64, foreign: u64) -> Vec<Sharing> {
        let mut disk = Disk::new(DeviceId(1), u64::MAX, READAHEAD, Moment::BEGINNING);
        let (mut count, mut bytes) = (Count::default(), 0);
        count.asked = Some((0, 0));
        let looks = (0..200).map(|_| {
            disk.look(Some(count), FAST);
            let ours = 20;
            count.handed += ours;
            count.issued += ours;
            count.programs.requests += own;
            count.begun.0 += ours + own + parts + foreign;
            count.begun.1 = count.begun.0;
            let asked = (ours * READAHEAD + own * 16384) + count.asked.unwrap().0;
            count.asked = Some((asked, asked));
            count.way = match disk.sharing {
                Sharing::Shared => 64 << 10,
                _ => 512 << 10,
            };
            count.programs.fetched += own * 16384;
            count.programs.way = u64::MAX;
            bytes += foreign * PAGE;
            count.delivered = asked - count.way + bytes;
            disk.sharing
        });
        looks.collect()
    }

    /// DR7, B11: requests that are cut in two by what is cached are taken for somebody's for a moment only: their bytes tell. Who reads beside a program that reads much by
    /// itself is found by these, too, and soon.
    #[test]
    fn bytes_tell_parts_from_somebody() {
        for (own, parts) in [(0, 0), (0, 10), (5, 5), (20, 20), (0, 40)] {
            let alone = weighed(own, parts, 0);
            let suspected = alone.iter().filter(|s| **s == Sharing::Suspected).count();
            assert!(suspected <= 32, "{own} {parts}: {suspected}");
            assert!(!alone.contains(&Sharing::Shared), "{own} {parts}");
            assert_eq!(alone[199], Sharing::Exclusive, "{own} {parts}");
        }
        for own in [0, 5, 10] {
            for foreign in [5, 20] {
                let beside = weighed(own, 0, foreign);
                let found = beside.iter().position(|s| *s == Sharing::Suspected);
                assert!(
                    found.is_some_and(|look| look <= 5),
                    "{own} {foreign}: {found:?}"
                );
                let known = beside.iter().position(|s| *s == Sharing::Shared);
                assert!(
                    known.is_some_and(|look| look <= 128),
                    "{own} {foreign}: {known:?}"
                );
                assert!(
                    beside[known.unwrap()..]
                        .iter()
                        .all(|s| *s == Sharing::Shared)
                );
            }
        }
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
        assert_eq!(of(Sharing::Suspected, 0, 1 << 20), AHEAD);
        assert_eq!(of(Sharing::Shared, 0, 0), READAHEAD);
        assert_eq!(of(Sharing::Shared, 0, 1 << 20), READAHEAD);
        // A far device takes more, beside somebody, too.
        let mut far = DeviceModel::default();
        (0..32).for_each(|_| far.answered(PAGE, 0, 15_000.0));
        assert!(of_far(&far, 0) > 1 << 20 && of_far(&far, 0) <= AHEAD);
        assert_eq!(of_far(&far, 100 << 10), of_far(&far, 0) - (100 << 10));
        fn of_far(far: &DeviceModel, asked: u64) -> u64 {
            Sharing::Shared.ahead(far, 0, asked)
        }
    }
}
