//! When the service looks by itself: the sooner the less time has passed since it heard something.

use std::time::Duration;

use crate::clock::Moment;

/// After something was told the service looks by itself every 2 ms for so long.
const RECENT: Duration = Duration::from_millis(50);
/// The shortest sleep, after something was heard: half of what a quick disk takes for a read …
const SHORTEST: Duration = Duration::from_micros(50);
/// … up to this one while nothing comes of what is heard: a look takes some 30 µs of busy processors, with the thread's way there and back (`bench/results/2026-11-30-workers`),
/// which is a tenth of it. With half a millisecond and with one some programs gain less in the simulator (`sim/tests/runs`) …
pub(super) const IDLING: Duration = Duration::from_micros(300);
/// … and to this one where all processors are busy, whose time is the program's: 3 % of one.
pub(super) const IDLING_BUSY: Duration = Duration::from_millis(1);
/// … the longest while a process is there that may begin to read any time …
const LONGEST: Duration = Duration::from_millis(50);
/// … while something goes on …
const BUSY: Duration = Duration::from_millis(2);
/// … while a program waits for an answer …
const ASKED: Duration = Duration::from_millis(1);
/// … and while none is there.
const IDLE: Duration = Duration::from_millis(250);
/// From one look at which processes are over to the next.
const CENSUS: Duration = Duration::from_millis(100);
/// From one look at mappings to the next: when there is a new one, while something is asked for, and at most while something is touched, or nothing.
const MAPPED: Duration = Duration::from_millis(1);
const ASKING: Duration = Duration::from_micros(500);
const TOUCHED: Duration = Duration::from_millis(16);
const UNTOUCHED: Duration = Duration::from_millis(100);

/// What the service waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// What a program waits for itself.
    Answer,
    /// Something that goes on.
    Progress,
    /// What programs tell.
    Events,
    /// Programs: there are none.
    Programs,
}

/// When what was done last.
#[derive(Debug)]
pub(super) struct Turns {
    /// Something was heard.
    heard: Moment,
    /// Something was heard that said more than that all is calm.
    event: Moment,
    /// That is so in this turn.
    stirred: bool,
    /// Something was asked for because of it.
    asked: Moment,
    /// It was looked which processes are over.
    census: Moment,
    /// Mappings were looked at, and are not for so long.
    maps: Moment,
    maps_pause: Duration,
}

impl Turns {
    pub(super) fn new(now: Moment) -> Turns {
        Turns {
            heard: now,
            event: now,
            stirred: false,
            asked: now,
            census: now,
            maps: now,
            maps_pause: MAPPED,
        }
    }

    /// Something was heard that says more than that all is calm, if `stirs`.
    pub(super) fn stir(&mut self, stirs: bool) {
        self.stirred |= stirs;
    }

    /// All has been heard that was told until now.
    pub(super) fn hears_no_more(&mut self, now: Moment) {
        if std::mem::take(&mut self.stirred) {
            self.event = now;
        }
    }

    /// Something was asked for because of what was heard, or is by who goes through trees.
    pub(super) fn asks(&mut self, now: Moment) {
        self.asked = now;
    }

    /// There was something to do.
    pub(super) fn worked(&mut self, now: Moment) {
        self.heard = now;
    }

    /// Whether it is time to look which processes are over.
    pub(super) fn is_census_due(&self, now: Moment) -> bool {
        now - self.census >= CENSUS
    }

    /// It is looked which processes are over.
    pub(super) fn census(&mut self, now: Moment) {
        self.census = now;
    }

    /// Whether it is time to look at mappings.
    pub(super) fn are_maps_due(&self, now: Moment) -> bool {
        now - self.maps >= self.maps_pause
    }

    /// There is a new mapping.
    pub(super) fn has_mapped(&mut self) {
        self.maps_pause = MAPPED;
    }

    /// Mappings were looked at since `begun`: whether anything of them was touched, and whether something was asked for because of that.
    pub(super) fn looked_at_maps(
        &mut self,
        touched: bool,
        asked: bool,
        begun: Moment,
        now: Moment,
    ) {
        let pause = match (asked, touched) {
            (true, _) => ASKING,
            // Touches that show no pattern are looked at more rarely, but not so rarely that one which begins is missed.
            (_, true) => (self.maps_pause * 2).min(TOUCHED),
            _ => (self.maps_pause * 2).min(UNTOUCHED),
        };
        // Where there is much to look at, half of the time is left for what is told.
        self.maps_pause = pause.max(now - begun);
        self.maps = now;
    }

    /// How long to sleep: a quarter of the time in which nothing was heard, so that what a program does next is heard little later than it would be by a
    /// call of its own, and up to a longest time. `maps`: there are mappings to look at.
    pub(super) fn pause(&self, now: Moment, awaited: Awaited, maps: bool) -> Duration {
        let silent = now - self.event;
        let longest = match awaited {
            Awaited::Answer => ASKED,
            Awaited::Progress => BUSY,
            _ if silent < RECENT => BUSY,
            Awaited::Programs => IDLE,
            // A program that was silent for long loses little by being heard late: a hundredth of that time.
            Awaited::Events => (silent / 100).clamp(BUSY, LONGEST),
        };
        let shortest = ((now - self.asked) / 16).clamp(SHORTEST, IDLING);
        let pause = ((now - self.heard) / 4).clamp(shortest, longest);
        match maps {
            true => pause.min(self.maps_pause),
            false => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Of a service that has heard something, and before that something that says more than that all is calm, so many milliseconds ago.
    #[test]
    fn silence_is_answered_with_sleep() {
        for (heard, stirred, awaited, pause) in [
            (0, 0, Awaited::Events, SHORTEST),
            (4, 4, Awaited::Events, MS),
            (40, 40, Awaited::Events, BUSY),
            (40, 40, Awaited::Programs, BUSY),
            (100, 100, Awaited::Events, BUSY),
            (0, 1000, Awaited::Events, SHORTEST),
            (1000, 1000, Awaited::Events, 10 * MS),
            (1000, 1000, Awaited::Answer, ASKED),
            (1000, 1000, Awaited::Progress, BUSY),
            (60_000, 60_000, Awaited::Events, LONGEST),
            (800, 800, Awaited::Programs, 200 * MS),
            (60_000, 60_000, Awaited::Programs, IDLE),
        ] {
            let now = Moment::BEGINNING + 100_000 * MS;
            let ago = |ms: u32| Moment::BEGINNING + (100_000 - ms) * MS;
            let mut turns = Turns::new(Moment::BEGINNING);
            turns.asks(now);
            turns.stir(true);
            turns.hears_no_more(ago(stirred));
            // What is calm changes nothing.
            turns.stir(false);
            turns.hears_no_more(now);
            turns.worked(ago(heard));
            let what = (heard, stirred, awaited);
            assert_eq!(turns.pause(now, awaited, false), pause, "{what:?}");
            assert_eq!(
                turns.pause(now, awaited, true),
                pause.min(MAPPED),
                "{what:?}"
            );
        }
    }

    /// While nothing comes of what is heard it may be heard a little later.
    #[test]
    fn what_nothing_comes_of_is_heard_later() {
        let mut now = Moment::BEGINNING;
        let mut turns = Turns::new(now);
        let mut pauses = Vec::new();
        for _ in 0..20 {
            turns.worked(now);
            pauses.push(turns.pause(now, Awaited::Events, false));
            now += MS;
        }
        assert_eq!(pauses[0], SHORTEST);
        assert!(pauses.is_sorted());
        assert_eq!(pauses[19], IDLING);
        turns.asks(now);
        turns.worked(now);
        assert_eq!(turns.pause(now, Awaited::Events, false), SHORTEST);
    }

    /// Mappings of which something is asked for are looked at often, others ever more rarely, and none for longer than it is not.
    #[test]
    fn mappings_are_looked_at_as_often_as_that_pays() {
        let mut turns = Turns::new(Moment::BEGINNING);
        let mut now = Moment::BEGINNING;
        let mut look = |touched, asked, took: Duration| {
            let begun = now;
            now += took;
            turns.looked_at_maps(touched, asked, begun, now);
            let mut waits = Duration::ZERO;
            while !turns.are_maps_due(now) {
                now += ASKING;
                waits += ASKING;
            }
            waits
        };
        assert_eq!(look(true, true, Duration::ZERO), ASKING);
        assert_eq!(look(true, false, Duration::ZERO), MS);
        let touched: Vec<_> = (0..6).map(|_| look(true, false, Duration::ZERO)).collect();
        assert_eq!(touched[3..], [TOUCHED; 3]);
        let untouched: Vec<_> = (0..6).map(|_| look(false, false, Duration::ZERO)).collect();
        assert_eq!(untouched[3..], [UNTOUCHED; 3]);
        assert_eq!(look(true, true, 7 * MS), 7 * MS);
    }
}
