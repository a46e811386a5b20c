//! Fetching in rounds, each sorted by place on the device.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use outrider_sys::raw;
use outrider_sys::units::PAGE;

use super::round::{ROUND_ENTRIES, Round};
use super::stream::Stream;
use super::{BATCH, Fetcher, Order, Piece, QUEUED, QUEUED_BESIDE, Span, Walk, pages_of};
use crate::lock;
use crate::plan::{count_merged, sweep};
use crate::view::PageRange;

/// What a program has passed by so many entries is given up: threads may be a little behind.
const SLACK: u64 = 4;
/// Whoever waits in the middle of a sweep for its program keeps its turn for so long: going there and back costs a disk 20 ms.
const STAY: Duration = Duration::from_millis(20);

/// While a round waits for its program it looks, so many times for all that it holds, whether something is to be given up.
const STEPS: u64 = 16;

impl Fetcher {
    /// Whether the whole list fits in `room` bytes and is so dense in its files that reading them in order takes a quarter of
    /// the requests at most. Then one sweep is quicker than the order of need, in which each entry is a request: its price is the
    /// processor's time on a fast device, and what the program needs first it reads itself meanwhile.
    pub(super) fn is_dense(&self, index: usize, walk: &Walk, room: u64) -> bool {
        const LEAST: u64 = 256;
        let mut state = lock(&self.process.state);
        let Some(source) = state.source(index) else {
            return false;
        };
        let (front, end) = (walk.front.0, source.ready);
        let n = end.saturating_sub(front);
        if !(LEAST..=ROUND_ENTRIES).contains(&n) {
            return false;
        }
        let mut runs: Vec<(u16, PageRange)> = Vec::new();
        if runs.try_reserve_exact(n as usize).is_err() {
            return false;
        }
        let mut bytes = 0u64;
        for entry in (front..end).filter_map(|i| source.list.get(i)) {
            if entry.length > 0 {
                runs.push((entry.file, pages_of(&entry)));
            }
            bytes += u64::from(entry.length);
            if bytes > room {
                return false;
            }
        }
        drop(state);
        count_merged(&mut runs) * 4 <= runs.len()
    }

    /// Fetches round by round (SPEC LP3), as one of so many `lists`. `true` if there is more to do at once.
    pub(super) fn sweep(&mut self, index: usize, walk: &mut Walk, lists: u64) -> bool {
        let Order::Rounds(round) = &walk.order else {
            return false;
        };
        if (round.sweeps || !round.items.is_empty()) && !self.go_on(index, walk) {
            return false;
        }
        self.turns.give(index);
        let Order::Rounds(round) = &walk.order else {
            return false;
        };
        if round.begun && round.lone {
            walk.order = Order::Stream(Stream {
                held: round.held.iter().map(|(k, h)| (*k, h.span)).collect(),
                ..Stream::default()
            });
            return true;
        }
        if !round.lone {
            let asked = if round.begun {
                round.reach.end(0)
            } else {
                walk.seen.0
            };
            self.asked(index, walk, asked);
        }
        if !round.is_used_up(walk.seen.0) {
            let room = self.share(lists);
            self.wake_within(index, walk, room);
            return false;
        }
        // A round lasts: what it may take is what there is now.
        self.take_stock();
        let room = self.share(lists);
        if let Some(until) = self.ascends(index, walk, room) {
            self.asked(index, walk, u64::MAX);
            walk.order = std::mem::take(&mut walk.order).streamed(walk.front.0, until);
            return true;
        }
        match self.gather(index, walk, room) {
            Some(true) => true,
            Some(false) => {
                self.asked(index, walk, walk.front.0);
                self.wake_at(index, walk, room / 8);
                false
            }
            None => true,
        }
    }

    /// Says at which entry the program is to ring again; it does at once if it has passed it.
    fn wake_after(&self, index: usize, entry: u64) {
        let mut state = lock(&self.process.state);
        if let Some(source) = state.source(index) {
            source.wake_at = (entry, 0);
            if source.list.at() >= entry {
                self.process.bell.fetch_add(1, SeqCst);
            }
        }
    }

    /// Says that the program is to ring again when it has used up the round, and before that for each eighth of `room`, where what it has used makes
    /// room for what it writes.
    fn wake_within(&mut self, index: usize, walk: &mut Walk, room: u64) {
        let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
            return;
        };
        let pace = round.reach.pace(0);
        let keeps = round.keeps || round.lone;
        self.give_up(&mut round, walk.seen.0);
        walk.order = Order::Rounds(round);
        self.wake_after(index, pace);
        if !keeps {
            self.wake_before(index, room / 8, pace);
        }
    }

    /// The same for an earlier entry, if that is so many bytes away.
    fn wake_before(&self, index: usize, step: u64, entry: u64) {
        let mut state = lock(&self.process.state);
        let Some(source) = state.source(index) else {
            return;
        };
        let (mut at, mut sum) = (source.list.at(), 0);
        while at < entry && sum < step {
            let Some(e) = source.list.get(at) else { break };
            sum += u64::from(e.length);
            at += 1;
        }
        if at < source.wake_at.0 {
            source.wake_at = (at, 0);
        }
    }

    /// Has more of a round fetched, as far as it is this one's turn, the program has made room, and the engine has; `true` when all of it has come.
    fn go_on(&mut self, index: usize, walk: &mut Walk) -> bool {
        let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
            return false;
        };
        self.give_up(&mut round, walk.seen.0);
        let stopped = round.part().map(|part| round.before.pace(part));
        let stopped = stopped.filter(|pace| walk.seen.0 < *pace);
        let busy = self.engine.outstanding_bytes();
        let head = (!round.lone && !round.items.is_empty()).then_some(walk.disk);
        let mine = match (head, stopped) {
            (Some(disk), None) => {
                round.stopped = None;
                self.turns.take(index, disk, busy == 0)
            }
            (Some(_), Some(pace)) => {
                self.wake_after(index, pace);
                self.wake_before(index, round.memory / STEPS, pace);
                let since = *round.stopped.get_or_insert_with(Instant::now);
                if busy > 0 || since.elapsed() < STAY {
                    self.turns.look_again();
                } else {
                    self.turns.give(index);
                }
                false
            }
            (None, _) => true,
        };
        if mine {
            if let Some(disk) = head {
                self.turns.found(disk);
                self.turns.look_again();
            }
            if head.is_none() || !self.waits_for_writes() {
                self.issue(&mut round, walk.seen.0);
            }
        }
        // The engine rings when it has room, and when nothing is left, queued or on its way.
        let busy = self.engine.outstanding_bytes();
        let done = round.items.is_empty() && (round.lone || busy == 0);
        round.sweeps &= !done;
        // What of earlier parts has come is there for the program.
        let come = round.handed.saturating_sub(busy);
        while round
            .parts
            .get(1)
            .is_some_and(|(before, _)| *before <= come)
        {
            round.parts.pop_front();
        }
        let part = match busy {
            0 => round.part(),
            _ => round.parts.front().map(|(_, part)| *part),
        };
        let asked = part.map(|part| round.before.end(part));
        let lone = round.lone;
        walk.order = Order::Rounds(round);
        match asked.filter(|_| !lone && !done) {
            Some(entry) => self.asked(index, walk, entry),
            None => self.swept(),
        }
        done
    }

    fn swept(&self) {
        self.process.swept.fetch_add(1, SeqCst);
        raw::futex_wake(&self.process.swept, u32::MAX);
    }

    /// Lets the program know that it has to wait for what begins with this entry.
    pub(super) fn asked(&self, index: usize, walk: &Walk, entry: u64) {
        let mut state = lock(&self.process.state);
        if let Some(source) = state.source(index)
            && source.generation == walk.generation
        {
            source.asked = entry;
        }
        drop(state);
        self.swept();
    }

    /// How far the list goes upwards on the device as it is, from its front on. `None` where it does so for less than a few rounds, of `room` bytes each:
    /// sorting would win something. Otherwise rounds only cost: at the end of each the head stands still, or goes to and fro between the program
    /// and the next round, which overtake one another.
    fn ascends(&mut self, index: usize, walk: &Walk, room: u64) -> Option<u64> {
        /// Entries that are looked at.
        const LOOK: u64 = 1 << 14;
        /// One of so many may lie lower than the one before: where a file goes on in another part of the disk.
        const DESCENTS: u64 = 64;
        /// One of so many may lie among what was passed over: more of them, and the list goes over the same part again and again (the columns of an
        /// image), which sorting makes one pass.
        const BACK: u64 = 1024;
        /// What goes upwards is so many times the memory at least: less, and a round that reaches further the later a place comes joins what two of
        /// these passes have there.
        const PASSES: u64 = 4;
        let Order::Rounds(round) = &walk.order else {
            return None;
        };
        let room = room.saturating_mul(PASSES);
        if round.lone || self.wishes.rounds.is_some() {
            return None;
        }
        let (front, mut at) = (walk.front.0, walk.front.0);
        let (mut last, mut descents, mut back, mut bytes) = (0, 0, 0, 0);
        let mut lowest = u64::MAX;
        loop {
            let entries: Vec<Piece> = {
                let mut state = lock(&self.process.state);
                let source = state.source(index)?;
                if source.generation != walk.generation || source.list.epoch() != walk.epoch {
                    return None;
                }
                let end = source.ready.min(at + BATCH as u64);
                (at..end)
                    .filter_map(|n| source.list.get(n).map(|e| Piece::of(n, e)))
                    .collect()
            };
            if entries.is_empty() || at - front >= LOOK {
                return (at > front).then_some(at);
            }
            for p in entries {
                at = p.n + 1;
                let Some(own) = self.files.get_mut(&p.file) else {
                    // It is opened when its first entry is fetched, and looked at then.
                    return (bytes >= room).then_some(p.n);
                };
                let place = own.place_of(p.offset / PAGE)?;
                descents += u64::from(place < last);
                back += u64::from((lowest..last).contains(&place));
                lowest = lowest.min(place);
                last = place;
                if descents > 1 + (at - front) / DESCENTS || back > (at - front) / BACK {
                    return (bytes >= room).then_some(p.n);
                }
                bytes += u64::from(p.length);
            }
        }
    }

    /// Queues what of the round the engine has room for, as far as a program that has come to entry `seen` has made room.
    fn issue(&mut self, round: &mut Round, seen: u64) {
        self.give_up(round, seen);
        let (mut queued, most) = match self.unwritten > 0 && !round.lone {
            true => (self.engine.outstanding_bytes(), QUEUED_BESIDE),
            false => (self.engine.queued_bytes(), QUEUED),
        };
        while queued < most {
            let left = round.items.get(round.issued..).unwrap_or_default();
            let Some((request, taken, _)) = sweep::join(left, round.gap / PAGE, round.most) else {
                round.items = Vec::new();
                round.issued = 0;
                break;
            };
            let part = round.part_of(request.place);
            if !round.lone && seen < round.before.pace(part) {
                break;
            }
            if round.parts.back().is_none_or(|(_, last)| *last != part) {
                round.parts.push_back((round.handed, part));
            }
            let bytes = u64::from(request.pages) * PAGE;
            queued += bytes;
            let items = round.issued..round.issued + taken;
            round.issued += taken;
            let file = request.file();
            let Some(generation) = self.files.get(&file).map(|o| o.generation) else {
                continue;
            };
            // What is wanted and what is read through between are given up apart.
            let mut at = request.page();
            for i in items {
                let Some(item) = round.items.get(i).copied() else {
                    break;
                };
                let until = round.base + u64::from(item.need);
                for (end, until) in [(item.page(), 0), (item.end(), until)] {
                    if at < end {
                        let pages = PageRange::new(at, end);
                        let span = Span {
                            file,
                            generation,
                            pages,
                        };
                        round.hold(span, until);
                        at = end;
                    }
                }
            }
            let pages = request.pages_of_file();
            if let Some(own) = self.files.get(&file) {
                let placed = own.placement().is_some_and(|p| p.is_known());
                let place = placed.then_some(request.place);
                self.explain.issued(own.ino, &pages, place);
            }
            round.handed += bytes;
            self.fetch(file, &[pages], round.gap);
        }
        self.hand_over();
    }

    /// Gives up what a program that has come to entry `seen` has no use for.
    fn give_up(&mut self, round: &mut Round, seen: u64) {
        let mut spans = Vec::new();
        let mut coming = Vec::new();
        while !round.keeps
            && let Some((until, key)) = round.leaving.first().copied()
            && (until == 0 || until + SLACK < seen)
        {
            round.leaving.pop_first();
            let Some(held) = round.held.remove(&key) else {
                continue;
            };
            // What the program has read itself meanwhile is still to come, and would stay for good.
            let own = self.files.get(&held.span.file);
            match own.is_some_and(|own| own.view.count(held.span.pages).in_flight_pages > 0) {
                true => coming.push(held),
                false => spans.push(held.span),
            }
        }
        for held in coming {
            round.hold(held.span, held.until);
        }
        self.used_up += spans.iter().map(Span::bytes).sum::<u64>();
        self.drop_spans(spans, "used up");
    }
}
