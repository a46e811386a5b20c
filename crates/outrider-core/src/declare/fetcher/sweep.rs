//! Fetching in rounds, each sorted by place on the device.

use std::collections::{BTreeMap, HashMap, VecDeque};

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use outrider_sys::{cache, raw};

use super::super::explain::Totals;
use super::super::order::{self, Item, Unique};
use super::super::{Figure, lock};
use super::file::Own;
use super::stream::Stream;
use super::{BATCH, Fetcher, Order, Piece, QUEUED, STEP, Span, Walk, key, key_of, pages_of};
use crate::view::{PAGE_BYTES, PageRange, Residency};

/// Entries of one round at most: their pages are sorted in memory of 16 bytes each.
const ROUND_ENTRIES: u64 = 1 << 19;
/// Requests of a lone sweep take so many pages at most (64 KiB). Larger ones cost the processor less for each byte, but bring more that is
/// needed late: the program would still have most of its list before it when the last one arrives.
const LONE_PAGES: u32 = 16;
/// Gaps up to this many bytes are read through on a disk with a head (libprefetch section 3.3, Figure 3).
const INFILL: u64 = 32 << 10;

#[derive(Default)]
pub(super) struct Round {
    /// What the round fetches, in the order of the sweep, and how many of these were asked for.
    pub(super) items: Vec<Item>,
    pub(super) issued: usize,
    /// Pages that are read through between two of them, and pages of a request, at most.
    pub(super) gap: u64,
    pub(super) most: u32,
    /// It is being fetched, and reads of it wait.
    pub(super) sweeps: bool,
    /// Bytes that it was given.
    pub(super) memory: u64,
    /// First entry behind it, and when the next one is begun.
    pub(super) end: u64,
    pub(super) renew: u64,
    /// What we have fetched and not given up yet, by the page that it begins on.
    pub(super) held: BTreeMap<u64, Span>,
    /// What makes room for the round: given up while it is fetched.
    pub(super) leaving: VecDeque<Span>,
    /// Where the last sweep ended.
    pub(super) place: u64,
    pub(super) begun: bool,
    /// On a device without a head: the one sweep over a dense list that fits in memory, after which it is streamed. Neighbours are joined, and
    /// what comes of it is fetched in the order in which the program first needs something of it.
    pub(super) lone: bool,
}

impl Round {
    /// How many of `pages` it holds.
    fn holds(&self, file: u16, pages: PageRange) -> u64 {
        let before = self.held.range(..key_of(file, pages.start)).next_back();
        let within = self
            .held
            .range(key_of(file, pages.start)..key_of(file, pages.end));
        let spans = before.into_iter().chain(within).map(|(_, s)| s);
        spans
            .filter(|s| s.file == file)
            .map(|s| {
                let end = s.pages.end.min(pages.end);
                end.saturating_sub(s.pages.start.max(pages.start))
            })
            .sum()
    }
}

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
        let mut runs: Vec<(u64, u64)> = Vec::new();
        if runs.try_reserve_exact(n as usize).is_err() {
            return false;
        }
        let mut bytes = 0u64;
        for entry in (front..end).filter_map(|i| source.list.get(i)) {
            let Some(start) = key(entry) else { continue };
            runs.push((start, start + pages_of(&entry).len()));
            bytes += u64::from(entry.length);
            if bytes > room {
                return false;
            }
        }
        drop(state);
        runs.sort_unstable();
        let mut merged = 0;
        let mut last = u64::MAX;
        for (start, end) in &runs {
            if last == u64::MAX || *start > last {
                merged += 1;
                last = *end;
            } else {
                last = last.max(*end);
            }
        }
        merged * 4 <= runs.len()
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
        if !round.lone {
            self.asked(
                index,
                walk,
                if round.begun { round.end } else { walk.seen.0 },
            );
        }
        if round.begun && round.lone {
            walk.order = Order::Stream(Stream {
                held: round.held.iter().map(|(k, s)| (*k, *s)).collect(),
                ..Stream::default()
            });
            return true;
        }
        if round.begun && walk.seen.0 < round.renew {
            let renew = round.renew;
            let mut state = lock(&self.process.state);
            if let Some(source) = state.source(index) {
                source.wake_at = (renew, 0);
                if source.list.at() >= renew {
                    return true;
                }
            }
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
                self.wake_at(index, walk, room);
                false
            }
            None => true,
        }
    }

    /// Has more of a round fetched, as far as it is this one's turn and the engine has room; `true` when all of it was asked for.
    fn go_on(&mut self, index: usize, walk: &mut Walk) -> bool {
        let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
            return false;
        };
        let head = (!round.lone && !round.items.is_empty()).then_some(walk.disk);
        let mine = head.is_none_or(|d| self.turns.take(index, d, !self.engine.is_busy()));
        if mine {
            if let Some(disk) = head {
                self.turns.found(disk);
            }
            self.issue(&mut round);
        }
        // The engine rings when it has room, and when nothing is left, queued or on its way.
        let done = round.items.is_empty() && (round.lone || !self.engine.is_busy());
        round.sweeps &= !done;
        walk.order = Order::Rounds(round);
        self.process.swept.fetch_add(1, SeqCst);
        raw::futex_wake(&self.process.swept, u32::MAX);
        done
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
        self.process.swept.fetch_add(1, SeqCst);
        raw::futex_wake(&self.process.swept, u32::MAX);
    }

    /// How far the list goes upwards on the device as it is, from its front on. `None` where it does so for less than a round, of `room` bytes:
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
        let Order::Rounds(round) = &walk.order else {
            return None;
        };
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
                let place = own.place_of(p.offset / PAGE_BYTES)?;
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

    /// Queues what of the round the engine has room for.
    fn issue(&mut self, round: &mut Round) {
        let mut queued = self.engine.queued_bytes();
        while queued < QUEUED {
            let left = round.items.get(round.issued..).unwrap_or_default();
            let Some((request, taken, _)) = order::join(left, round.gap, round.most) else {
                round.items = Vec::new();
                round.issued = 0;
                self.give_up(round, u64::MAX);
                break;
            };
            queued += u64::from(request.pages) * PAGE_BYTES;
            self.give_up(round, u64::from(request.pages));
            let left = round.items.get(round.issued..).unwrap_or_default();
            let items = left.get(..taken).unwrap_or_default();
            round.issued += taken;
            round.place = request.place + u64::from(request.pages);
            let file = request.file();
            let Some(generation) = self.files.get(&file).map(|o| o.generation) else {
                continue;
            };
            // What is wanted and what is read through between are given up apart.
            let mut at = request.page();
            for item in items {
                for end in [item.page(), item.end()] {
                    if at < end {
                        let span = Span {
                            file,
                            generation,
                            pages: PageRange::new(at, end),
                        };
                        round.held.insert(span.key(), span);
                        at = end;
                    }
                }
            }
            let pages = PageRange::new(request.page(), request.end());
            if let Some(own) = self.files.get(&file) {
                self.explain.issued(own.ino, &pages, Some(request.place));
            }
            self.request(file, pages);
        }
        self.hand_over();
    }

    /// Takes the next unique pages of the list into a round. `Some(false)`: there are none; `None`: the list is another one by now.
    fn gather(&mut self, index: usize, walk: &mut Walk, room: u64) -> Option<bool> {
        let front = walk.front.0;
        let Order::Rounds(round) = &walk.order else {
            return None;
        };
        // What is cached of the files and not ours is not ours to give up, but takes its part, as long as it stays.
        let room = room.saturating_sub(self.foreign(round)).max(room / 2);
        let mut needed: Vec<Item> = Vec::new();
        let mut unique = Unique::default();
        let mut bytes = 0u64;
        let end = {
            let mut state = lock(&self.process.state);
            let source = state.source(index)?;
            if source.generation != walk.generation || source.list.epoch() != walk.epoch {
                return None;
            }
            let list = &source.list;
            if source.ready <= front {
                return Some(false);
            }
            // What the last round fetched and the program has not come to yet stays, and counts.
            for e in (walk.seen.0..front).filter_map(|n| list.get(n)) {
                let Some(page) = key(e) else { continue };
                if unique.take(page)? && needed.try_reserve(1).is_ok() {
                    let pages = pages_of(&e);
                    bytes += pages.len() * PAGE_BYTES;
                    needed.push(Item::new(0, e.file, pages.start, pages.len() as u32, 0));
                }
            }
            source.ready.min(front + ROUND_ENTRIES)
        };
        if walk.used_since > 0 {
            if !walk.is_short() {
                self.contention.clean();
            }
            walk.used_since = 0;
        }
        let mut items: Vec<Item> = Vec::new();
        let mut adopted: Vec<Span> = Vec::new();
        let (mut asked, mut cached) = (0u64, 0u64);
        let mut first = None;
        let lone = matches!(&walk.order, Order::Rounds(r) if r.lone);
        let mut cold: HashMap<u16, bool> = HashMap::new();
        // At least something, however little room the last round's end leaves.
        let room_here = room.max(bytes + STEP.0);
        while walk.front.0 < end && bytes < room_here {
            let pieces = self.next_pieces(index, walk)?;
            if pieces.is_empty() {
                break;
            }
            for p in pieces {
                if p.n >= end || bytes >= room_here {
                    break;
                }
                walk.front = (p.n + 1, 0);
                walk.ahead += u64::from(p.length);
                asked += u64::from(p.length);
                let count = p.n >= walk.counted;
                walk.counted = walk.counted.max(p.n + 1);
                if p.length == 0 || !unique.take(p.key())? {
                    continue;
                }
                self.open(&p);
                let Some(own) = self.files.get_mut(&p.file) else {
                    continue;
                };
                let Some(handle) = own.handle.clone() else {
                    continue;
                };
                let pages = PageRange::from_bytes(p.offset, u64::from(p.length));
                let mut missing = Vec::new();
                let seen = own.view.count(pages);
                let cold = lone && *cold.entry(p.file).or_insert_with(|| own.is_cold());
                let here = if cold {
                    own.view.missing(pages, usize::MAX, &mut missing);
                    seen.present_pages
                } else {
                    own.missing(&handle, pages, seen, &mut missing)
                };
                if count && here > 0 {
                    let here = here.saturating_sub(seen.unused_pages) * PAGE_BYTES;
                    let here = here.min(u64::from(p.length));
                    cached += here;
                    self.process.count(Figure::Cached, here);
                }
                let need = (p.n - front) as u32;
                let mut at = pages.start;
                for run in missing
                    .iter()
                    .chain([&PageRange::new(pages.end, pages.end)])
                {
                    let here = PageRange::new(at, run.start.max(at));
                    if !here.is_empty() && needed.try_reserve(1).is_ok() {
                        needed.push(Item::new(0, p.file, at, here.len() as u32, need));
                        // What the program had to read itself, off this list, is given up like what was fetched for it.
                        let held = round.holds(p.file, here);
                        let present = |n| own.view.state(n).residency == Residency::Present;
                        let read = held == 0 && (here.start..here.end).all(present);
                        if read && adopted.try_reserve(1).is_ok() {
                            adopted.push(Span {
                                pages: here,
                                ..Span::of(&p)
                            });
                        }
                        bytes += if read { here.len() } else { held } * PAGE_BYTES;
                    }
                    bytes += run.len() * PAGE_BYTES;
                    at = run.end;
                }
                for run in missing {
                    own.place(p.file, run, need, &mut items);
                }
                first = first.or_else(|| items.first().map(|i| i.place));
            }
        }
        let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
            return None;
        };
        round.held.extend(adopted.iter().map(|s| (s.key(), *s)));
        needed.sort_unstable_by_key(|i| (i.file(), i.page()));
        self.make_room(&mut round, &needed, bytes, room);
        let spare = room.saturating_sub(bytes);
        let gap = self.infill(&items, spare);
        let own = items.first().and_then(|i| self.files.get(&i.file()));
        let most = own.map_or(32, |o| o.chunk / PAGE_BYTES).max(1) as u32;
        if !round.lone && own.is_some() {
            self.engine.keep_order(walk.disk);
        }
        // The first sweep begins with what the program waits for.
        let from = if round.begun {
            round.place
        } else {
            first.unwrap_or(0)
        };
        let gap = if round.lone { 0 } else { gap / PAGE_BYTES };
        order::arrange(&mut items, from);
        if round.lone {
            items = order::by_need(&items, LONE_PAGES);
        }
        let mut totals = Totals::default();
        let mut left = &items[..];
        while let Some((request, taken, infill)) = order::join(left, gap, most) {
            totals.requests += 1;
            totals.bytes += u64::from(request.pages) * PAGE_BYTES;
            totals.infill += infill * PAGE_BYTES;
            left = left.get(taken..).unwrap_or_default();
        }
        self.process.count(Figure::Infill, totals.infill);
        self.process.count(Figure::Rounds, 1);
        self.explain
            .round(front..walk.front.0, asked, cached, &totals, room);
        round.items = items;
        round.issued = 0;
        round.gap = gap;
        round.most = most;
        round.begun = true;
        round.sweeps = !round.lone;
        self.process.waited_us.store(0, Relaxed);
        round.memory = room;
        walk.missed = 0;
        round.end = walk.front.0;
        // The last bit of a round is read while the next one is fetched.
        round.renew = round.end - (round.end - front) / 64;
        walk.order = Order::Rounds(round);
        Some(true)
    }

    /// Says what of earlier rounds goes, in file order, until this one fits in `room`, of whose `bytes` `needed` are cached (in file
    /// order).
    fn make_room(&mut self, round: &mut Round, needed: &[Item], bytes: u64, room: u64) {
        let wanted = |span: &Span| {
            let at =
                needed.partition_point(|i| (i.file(), i.end()) <= (span.file, span.pages.start));
            needed
                .get(at)
                .is_some_and(|i| i.file() == span.file && i.page() < span.pages.end)
        };
        // What was to go already may be wanted again by now.
        for span in std::mem::take(&mut round.leaving) {
            round.held.insert(span.key(), span);
        }
        let unwanted = round.held.values().filter(|s| !wanted(s));
        let mut over = unwanted.map(Span::bytes).sum::<u64>() + bytes;
        let leaving = &mut round.leaving;
        round.held.retain(|_, span| {
            let stays = over <= room || wanted(span);
            if !stays {
                over -= span.bytes();
                leaving.push_back(*span);
            }
            stays
        });
    }

    /// Bytes of the files that are cached and that `round` has not fetched.
    fn foreign(&self, round: &Round) -> u64 {
        let cached = |own: &Own| {
            let fd = own.handle.as_ref()?.fd();
            cache::cachestat(fd, 0..own.size)
                .ok()
                .map(|s| s.cached * PAGE_BYTES)
        };
        let all: u64 = self.files.values().filter_map(cached).sum();
        let ours = round.held.values().chain(&round.leaving);
        all.saturating_sub(ours.map(Span::bytes).sum())
    }

    /// Gives up pages that are to go, `pages` at least.
    fn give_up(&mut self, round: &mut Round, pages: u64) {
        let mut given = 0;
        let mut spans = Vec::new();
        while given < pages
            && let Some(span) = round.leaving.pop_front()
        {
            given += span.pages.len();
            spans.push(span);
        }
        self.drop_spans(spans, "not in this round");
    }

    /// Bytes of a gap that are read through (SPEC LP7): as many as pass under the head while it would seek, into spare memory.
    fn infill(&self, items: &[Item], spare: u64) -> u64 {
        if let Some(bytes) = self.wishes.infill {
            return bytes;
        }
        let Some(own) = items.first().and_then(|i| self.files.get(&i.file())) else {
            return 0;
        };
        let device = match (&own.handle, items.first()) {
            (Some(handle), Some(i)) => {
                self.engine
                    .device_of(own.dev, handle, i.page() * PAGE_BYTES)
            }
            _ => own.dev,
        };
        let model = self.engine.model(device);
        let latency = self
            .manners
            .get(&device)
            .map_or(model.latency_us, |m| m.latency_us);
        // A short seek costs about an eighth of a long one, most of it turning (Figure 1).
        let even = (model.bandwidth * latency / 8.0) as u64;
        even.min(INFILL).min(spare / (items.len() as u64).max(1))
    }
}
