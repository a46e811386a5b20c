//! Whether many files that are read at once are helped at all.
//!
//! A few readers keep a device that works in parallel busy by themselves, or the processors; then each event, and each page that is fetched
//! one by one where the kernel would have brought a large folio, only costs. How many it takes no model tells: behind sixteen readers every request
//! waits, so that a flash device answers like a network, and what is short may as well be processors or memory. So it is tried: the programs go
//! on for a while without prefetching and for a while with it, and what they read meanwhile, from wherever, decides. While they do as well without,
//! nothing is asked for at open or for plain streams, and the hooks don't even tell of files that are opened.

use std::time::Duration;

use super::{Kernel, Service};
use crate::clock::Moment;
use crate::shm;

/// Files that are read at once of which it is tried …
const SEVERAL: u64 = 4;
/// … and of which two of the kernel's windows each keep a device busy that works in parallel: then it is tried first without prefetching.
pub(super) const MANY: u64 = 8;
/// Bytes per second that no head delivers to so many: then prefetching is tried later, because most programs are over before it could pay.
const FAST: f64 = 500e6;
/// Bytes per second below which readers wait for a head, or compute: neither suffers from prefetching, and a head should not be left to them for long.
const SLOW: f64 = 200e6;
/// After each change what the last state has left behind is used up.
const SETTLE: Duration = Duration::from_millis(20);
/// What is read in so long, or until it is so much, is compared; a head needs long for it.
const SPAN: Duration = Duration::from_millis(40);
const LONGEST_SPAN: Duration = Duration::from_millis(500);
const ENOUGH: u64 = 16 << 20;
/// Prefetching has to be so many times faster.
const WORTH: f64 = 1.1;
/// A verdict holds so long at first, then twice as long, up to the longest.
const HOLDS: Duration = Duration::from_secs(1);
const HOLDS_LONGEST: Duration = Duration::from_secs(16);
/// Processes beyond which nothing is counted: it would cost more than it brings.
const MOST: usize = 32;

/// What is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Too few files are read at once, or it is not known what the programs read.
    Idle,
    /// Without prefetching, or with it; the second of the two.
    Trial { quiet: bool, second: bool },
    /// The verdict.
    Held { quiet: bool },
}

/// The experiment.
#[derive(Debug)]
pub(super) struct PrefetchTrial {
    stage: Stage,
    /// When it began.
    since: Moment,
    /// From when on it is measured, and what had been read then.
    from: Option<(Moment, u64)>,
    /// Bytes per second without prefetching, and with it.
    without: f64,
    with: f64,
    holds: Duration,
    /// When a trial began last, so that a number of files that goes up and down does not begin one each time.
    tried: Option<Moment>,
    /// What each process had read at the last look.
    read: Vec<(u32, u64)>,
    all: u64,
}

impl PrefetchTrial {
    pub(super) fn new(now: Moment) -> PrefetchTrial {
        PrefetchTrial {
            stage: Stage::Idle,
            since: now,
            from: None,
            without: 0.0,
            with: 0.0,
            holds: HOLDS,
            tried: None,
            read: Vec::new(),
            all: 0,
        }
    }

    /// Whether readers of plain streams are to be left alone; `None`: that is for others to say.
    pub(super) fn quiet(&self) -> Option<bool> {
        match self.stage {
            Stage::Idle => None,
            Stage::Trial { quiet, .. } | Stage::Held { quiet } => Some(quiet),
        }
    }

    /// What hooks are told of it: bits of [`Proc::untold`](shm::Proc::untold).
    pub(super) fn untold(&self) -> u32 {
        match self.quiet() {
            Some(true) => shm::UNTOLD,
            _ => 0,
        }
    }

    fn enter(&mut self, stage: Stage, now: Moment) {
        (self.stage, self.since, self.from) = (stage, now, None);
    }

    /// The first trial of these files.
    fn begin(&mut self, files: u64, now: Moment) {
        (self.with, self.without) = (0.0, 0.0);
        self.tried = Some(now);
        let quiet = files >= MANY;
        let second = false;
        self.enter(Stage::Trial { quiet, second }, now);
    }

    /// `files` are being read, as far as is told, and `read` bytes so far by programs that all were there at the last look.
    fn look(&mut self, now: Moment, files: u64, read: Option<u64>) {
        let unknown = read.is_none();
        // Where hooks don't tell of files, nobody knows how many there are.
        let few = files < SEVERAL && self.quiet() != Some(true);
        if few || unknown {
            if self.stage != Stage::Idle {
                self.enter(Stage::Idle, now);
                self.holds = HOLDS;
            }
            return;
        }
        let read = read.unwrap_or(0);
        match self.stage {
            Stage::Idle if self.tried.is_some_and(|t| now - t < HOLDS) => {}
            Stage::Idle => self.begin(files, now),
            // Threads that begin together open their files one after the other.
            Stage::Trial {
                quiet: false,
                second: false,
            } if files >= MANY && self.without == 0.0 => self.begin(files, now),
            Stage::Trial { quiet: true, .. } if self.is_slow(now, read) => {
                self.holds = HOLDS_LONGEST;
                self.enter(Stage::Held { quiet: false }, now);
            }
            Stage::Trial { quiet, second } => {
                let Some(rate) = self.rate(now, read) else {
                    return;
                };
                if quiet {
                    self.without = rate;
                } else {
                    self.with = rate;
                }
                let next = if second {
                    Stage::Held {
                        quiet: self.with < self.without * WORTH,
                    }
                } else if self.with == 0.0 && self.without > FAST {
                    Stage::Held { quiet }
                } else {
                    Stage::Trial {
                        quiet: !quiet,
                        second: true,
                    }
                };
                self.enter(next, now);
            }
            Stage::Held { quiet } => {
                // Far fewer bytes than when it was tried: others are read, or few any more.
                if quiet && let Some(rate) = self.rate(now, read) {
                    self.from = Some((now, read));
                    if rate < self.without / 2.0 {
                        self.enter(Stage::Idle, now);
                        self.holds = HOLDS;
                        return;
                    }
                }
                if now - self.since >= self.holds {
                    self.holds = (self.holds * 2).min(HOLDS_LONGEST);
                    self.enter(
                        Stage::Trial {
                            quiet: !quiet,
                            second: false,
                        },
                        now,
                    );
                }
            }
        }
    }

    /// Bytes per second in this stage, once they tell something.
    fn rate(&mut self, now: Moment, read: u64) -> Option<f64> {
        let Some((from, before)) = self.from else {
            if now - self.since >= SETTLE {
                self.from = Some((now, read));
            }
            return None;
        };
        let (took, bytes) = (now - from, read.saturating_sub(before));
        let enough = took >= SPAN && bytes >= ENOUGH || took >= LONGEST_SPAN;
        enough.then(|| bytes as f64 / took.as_secs_f64())
    }

    /// Whether so little is read without prefetching that there is nothing to try.
    fn is_slow(&self, now: Moment, read: u64) -> bool {
        self.from.is_some_and(|(from, before)| {
            let (took, bytes) = (now - from, read.saturating_sub(before));
            took >= SPAN && (bytes as f64) < SLOW * took.as_secs_f64()
        })
    }

    /// Adds up what processes have read since the last look. `None` where one has ended, of which it is not known what it read last.
    fn sum(&mut self, now: Vec<(u32, u64)>) -> Option<u64> {
        let before = std::mem::replace(&mut self.read, now);
        let at = |list: &[(u32, u64)], pid| list.iter().find(|p| p.0 == pid).map(|p| p.1);
        let ended = before.iter().any(|p| at(&self.read, p.0).is_none());
        for (pid, read) in &self.read {
            self.all += read.saturating_sub(at(&before, *pid).unwrap_or(*read));
        }
        (!ended).then_some(self.all)
    }
}

impl<K: Kernel> Service<K> {
    /// Looks whether many files are being read, and whether that is better left alone. Tells the hooks.
    pub(super) fn look_at_trial(&mut self, files: u64) {
        let tries = self.mode == shm::MODE_PREDICT_OPT && self.memory.is_allowed();
        if !tries || files < SEVERAL && self.prefetch_trial.stage == Stage::Idle {
            self.prefetch_trial.stage = Stage::Idle;
            self.prefetch_trial.read.clear();
            return;
        }
        let read: Option<Vec<_>> = (self.processes.len() <= MOST)
            .then(|| {
                let programs = self.processes.iter().map(|(_, p)| p.pid());
                programs
                    .map(|pid| Some((pid, self.kernel.bytes_read(pid)?)))
                    .collect()
            })
            .flatten();
        let read = read.and_then(|now| self.prefetch_trial.sum(now));
        self.prefetch_trial.look(self.kernel.now(), files, read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often `files` that are read at once are left alone in `seconds`, where its programs read at `rate(quiet)` bytes per second.
    fn quiet_share(files: u64, seconds: u64, rate: impl Fn(bool, Duration) -> f64) -> f64 {
        const TICK: Duration = Duration::from_millis(8);
        let start = Moment::BEGINNING;
        let (mut now, mut read, mut quiet, mut ticks) = (start, 0.0, 0, 0);
        let mut trial = PrefetchTrial::new(now);
        while now - start < Duration::from_secs(seconds) {
            let is_quiet = trial.quiet() == Some(true);
            // Files of which nobody is told are not seen.
            trial.look(now, if is_quiet { 0 } else { files }, Some(read as u64));
            read += rate(is_quiet, now - start) * TICK.as_secs_f64();
            now += TICK;
            ticks += 1;
            quiet += u32::from(is_quiet);
        }
        f64::from(quiet) / f64::from(ticks)
    }

    /// Design, "off is a decision too": many files that are read as fast alone are left alone but for short trials, those that are helped are helped
    /// but for short trials, so are those that are read as slowly as behind a head, and of few files it isn't tried.
    #[test]
    fn many_files_are_tried() {
        for fast in [1e6, 3e8, 1e9] {
            let helped = |quiet: bool, _| if quiet { fast } else { 1.5 * fast };
            let alone = |quiet: bool, _| if quiet { fast } else { 0.95 * fast };
            for files in [4, 16] {
                let share = quiet_share(files, 60, helped);
                assert!(share < 0.1, "{share} of {files} files at {fast}");
                let share = quiet_share(files, 60, alone);
                let left = if fast > SLOW {
                    share > 0.9
                } else {
                    share < 0.1
                };
                assert!(left, "{share} of {files} files at {fast}");
            }
            assert_eq!(quiet_share(3, 60, alone), 0.0);
        }
    }

    /// Design, "off is a decision too": that many files are over, so that far less is read, is noticed at once, and few files are helped again.
    #[test]
    fn the_end_of_many_files_is_noticed() {
        let over = Duration::from_secs(10);
        let start = Moment::BEGINNING;
        let mut trial = PrefetchTrial::new(start);
        let (mut now, mut read) = (start, 0u64);
        while now - start < over {
            trial.look(now, 16, Some(read));
            read += 8_000_000;
            now += Duration::from_millis(8);
        }
        assert_eq!(trial.quiet(), Some(true));
        while trial.quiet() == Some(true) {
            trial.look(now, 0, Some(read));
            read += 1_000_000;
            now += Duration::from_millis(8);
        }
        assert!(now - start - over < Duration::from_millis(600));
        assert_eq!(trial.quiet(), None);
    }

    /// Design: of a process that has ended it is not known what it read last.
    #[test]
    fn ended_processes_spoil_the_count() {
        let mut trial = PrefetchTrial::new(Moment::BEGINNING);
        assert_eq!(trial.sum(vec![(1, 100), (2, 5)]), Some(0));
        assert_eq!(trial.sum(vec![(1, 150), (2, 10)]), Some(55));
        assert_eq!(trial.sum(vec![(1, 160)]), None);
        assert_eq!(trial.sum(vec![(1, 170), (3, 1000)]), Some(75));
    }
}
