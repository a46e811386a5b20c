//! What a round fetches: how far it goes, and until when each page is held.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use outrider_sys::cache;
use outrider_sys::units::PAGE;

use super::super::Figure;
use super::super::explain::Totals;
use super::file::Own;
use super::writeback::Writeback;
use super::{BATCH, Fetcher, Order, Piece, Span, Walk, key, pages_of};
use crate::lock;
use crate::plan::reach::{self, Reach};
use crate::plan::sweep::{self, Item, Use};
use crate::view::{PageRange, Residency};

/// Entries of one round at most: their pages are sorted in memory of 16 bytes each.
pub(super) const ROUND_ENTRIES: u64 = 1 << 19;
/// Requests of a lone sweep take so many pages at most (64 KiB). Larger ones cost the processor less for each byte, but bring more that is
/// needed late: the program would still have most of its list before it when the last one arrives.
const LONE_PAGES: u32 = 16;

/// What was fetched and not given up yet.
#[derive(Clone, Copy)]
pub(super) struct Held {
    pub(super) span: Span,
    /// Given up once the program has passed this entry.
    pub(super) until: u64,
}

/// What a round is made of, as it is planned.
#[derive(Default)]
struct Planned {
    items: Vec<Item>,
    /// Files of which nothing is cached, as far as that was asked.
    cold: HashMap<u16, bool>,
    /// Bytes that the list asks for, those of them that somebody else has cached, those that the round holds, and those that are held for nothing.
    asked: u64,
    cached: u64,
    bytes: u64,
    idle: u64,
}

#[derive(Default)]
pub(super) struct Round {
    /// What the round fetches, in the order of the sweep, and how many of these were asked for.
    pub(super) items: Vec<Item>,
    pub(super) issued: usize,
    /// Number of the entry from which those of its items are counted.
    pub(super) base: u64,
    /// Bytes that are read through between two of them, and pages of a request, at most.
    pub(super) gap: u64,
    pub(super) most: u32,
    /// It is being fetched, and reads of it wait.
    pub(super) sweeps: bool,
    /// Bytes that it was given.
    pub(super) memory: u64,
    /// Bytes that were left, when it was planned, to what the program writes.
    pub(super) written: u64,
    /// How far the round before it went, and how far it goes.
    pub(super) before: Reach,
    pub(super) reach: Reach,
    /// It is to be begun anew, and what lies below this has been fetched before: what of it is gone is fetched again.
    pub(super) again: Option<Reach>,
    /// Places between the parts of the disk.
    pub(super) borders: Vec<u64>,
    /// Bytes that were handed to the engine, and how many before each part that may still be on its way.
    pub(super) handed: u64,
    pub(super) parts: VecDeque<(u64, u64)>,
    /// There is memory for all that it holds: nothing is given up, as later lists may want it.
    pub(super) keeps: bool,
    /// Since when it waits for the program.
    pub(super) stopped: Option<Instant>,
    /// What we have fetched and not given up yet, by the page that it begins on.
    pub(super) held: BTreeMap<u64, Held>,
    /// The same by the entry that needs it last, and that page.
    pub(super) leaving: BTreeSet<(u64, u64)>,
    pub(super) begun: bool,
    /// On a device without a head: the one sweep over a dense list that fits in memory, after which it is streamed. Neighbours are joined, and
    /// what comes of it is fetched in the order in which the program first needs something of it.
    pub(super) lone: bool,
}

impl Round {
    /// The one sweep of a device without a head.
    pub(super) fn lone() -> Round {
        Round {
            lone: true,
            ..Round::default()
        }
    }

    /// Bytes that are held.
    pub(super) fn bytes(&self) -> u64 {
        self.held.values().map(|h| h.span.bytes()).sum()
    }

    /// Holds a span until the program has passed an entry.
    pub(super) fn hold(&mut self, span: Span, until: u64) {
        let key = span.key();
        if let Some(before) = self.held.insert(key, Held { span, until }) {
            self.leaving.remove(&(before.until, key));
        }
        self.leaving.insert((until, key));
    }

    /// The part of the disk in which a place lies.
    pub(super) fn part_of(&self, place: u64) -> u64 {
        reach::part_of(&self.borders, place)
    }

    /// The part that the sweep comes to next, if there is one.
    pub(super) fn part(&self) -> Option<u64> {
        self.items.get(self.issued).map(|i| self.part_of(i.place))
    }

    /// Whether the program has come so far that the next one may begin.
    pub(super) fn is_used_up(&self, seen: u64) -> bool {
        !self.begun || seen >= self.reach.pace(0)
    }

    /// Nothing of it counts any more: the next one begins anew, with what is needed next.
    pub(super) fn broken(self) -> Round {
        Round {
            items: Vec::new(),
            issued: 0,
            begun: false,
            again: None,
            parts: VecDeque::new(),
            ..self
        }
    }

    /// Something of what it has fetched may be gone, and the list goes on with entry `to` where it was at `from`.
    pub(super) fn doubtful(self, from: u64, to: u64) -> Round {
        let fetched = match (self.begun, self.items.is_empty()) {
            (true, true) => Some(self.reach),
            (true, false) => Some(self.before),
            (false, _) => self.again,
        };
        Round {
            again: fetched.and_then(|reach| reach.moved(from, to)),
            ..self.broken()
        }
    }
}

impl Fetcher {
    /// The uses of pages from entry `from` on, by page: of all entries below `begin`, and then so many `bytes` of entries. Returns them, the first
    /// entry behind them, and whether more are known. `None`: the list is another one by now, or there is no memory.
    fn uses(
        &self,
        index: usize,
        walk: &Walk,
        begin: u64,
        bytes: u64,
    ) -> Option<(Vec<Use>, u64, bool)> {
        let from = walk.seen.0;
        let mut uses: Vec<Use> = Vec::new();
        let (mut at, mut sum) = (from, 0);
        loop {
            let mut state = lock(&self.process.state);
            let source = state.source(index)?;
            if source.generation != walk.generation || source.list.epoch() != walk.epoch {
                return None;
            }
            let end = source.ready.min(from + ROUND_ENTRIES);
            let batch = at..end.min(at + BATCH as u64);
            at = batch.end;
            for n in batch {
                if n >= begin && sum >= bytes {
                    at = n;
                    break;
                }
                let Some(e) = source.list.get(n) else {
                    continue;
                };
                if let Some(key) = key(e) {
                    uses.try_reserve(1).ok()?;
                    uses.push(Use {
                        key,
                        entry: (n - from) as u32,
                        pages: pages_of(&e).len() as u32,
                    });
                }
                if n >= begin {
                    sum += u64::from(e.length);
                }
            }
            let over = at >= begin && sum >= bytes;
            if over || at >= end {
                uses.sort_unstable();
                return Some((uses, at, at < end));
            }
        }
    }

    /// Where the page of a use lies on the disk.
    fn place_of(&mut self, of: &Use) -> Option<u64> {
        let file = (of.key >> 48) as u16;
        if !self.files.contains_key(&file) {
            let generation = lock(&self.process.state).file(file)?.generation;
            self.open(&Piece {
                n: 0,
                file,
                generation,
                offset: 0,
                length: 0,
                read: false,
            });
        }
        let own = self.files.get_mut(&file)?;
        own.place_of(of.key & ((1 << 48) - 1))
    }

    /// Takes the next pages of the list into a round. `Some(false)`: there are none; `None`: the list is another one by now.
    pub(super) fn gather(&mut self, index: usize, walk: &mut Walk, room: u64) -> Option<bool> {
        let Order::Rounds(round) = &walk.order else {
            return None;
        };
        let from = walk.seen.0;
        // What is cached of the files and not ours is not ours to give up, but takes its part, as long as it stays.
        let room = room
            .saturating_sub(self.foreign(round, &walk.writeback))
            .max(room / 2);
        // The last round doesn't count once the program has passed all of it, nor where it took much more memory than there is by now, because others
        // have come: what it holds would be theirs for as long as this round lasts.
        let less = room < round.memory / 4 * 3;
        let anew = !round.begun || less || from > round.reach.last();
        let again = round.again.filter(|r| r.last() > from);
        let before = match anew {
            true => Reach::none(from),
            false => round.reach,
        };
        let mut borders = round.borders.clone();
        let (goes_on, grows, ready) = self.growth(index, walk)?;
        if ready <= before.end(0) {
            return Some(false);
        }
        if walk.used_since > 0 {
            if !walk.is_short() {
                self.contention.clean();
            }
            walk.used_since = 0;
        }
        // Twice its memory if no page is used twice, and further otherwise.
        let begin = again.unwrap_or(before).last();
        let mut bytes = match again {
            Some(_) => 0,
            None => room.saturating_mul(4),
        };
        let known = |reach: Reach| if goes_on { reach.known() } else { reach };
        let (uses, parts, reach) = loop {
            let (uses, end, more) = self.uses(index, walk, begin, bytes)?;
            let learns = anew && (again.is_none() || borders.is_empty());
            let parts = self.parts(&uses, &mut borders, learns);
            let pages = || uses.chunk_by(|a, b| a.key == b.key).zip(&parts);
            if let Some(again) = again {
                let wanted = pages().filter_map(|(page, part)| {
                    let n = page.first()?;
                    let is = from + u64::from(n.entry) < again.end(u64::from(*part));
                    is.then_some(u64::from(n.pages) * PAGE)
                });
                if wanted.sum::<u64>() <= room {
                    break (uses, parts, again);
                }
                if let Order::Rounds(round) = &mut walk.order {
                    *round = std::mem::take(round).broken();
                }
                return None;
            }
            let first = pages().filter_map(|(page, part)| {
                let n = page.iter().find(|u| from + u64::from(u.entry) >= begin)?;
                let bytes = u64::from(n.pages) * PAGE;
                Some((from + u64::from(n.entry), u64::from(*part), bytes))
            });
            match Reach::fitting(begin, end, room, first) {
                Some(reach) if reach.is_within() || !more => break (uses, parts, known(reach)),
                // The program's function is adding to it just now: a round of the little that is there would cost as much as one of all.
                None if !more && grows => return Some(false),
                None if !more => break (uses, parts, known(Reach::all(begin, end))),
                _ => bytes = bytes.saturating_mul(2),
            }
        };
        let Order::Rounds(round) = &mut walk.order else {
            return None;
        };
        round.borders = borders;
        round.before = before;
        round.reach = reach;
        round.again = None;
        self.plan(walk, room, &uses, &parts);
        Some(true)
    }

    /// Whether the list goes on, whether the program's function is adding to it just now, and how many entries are ready. `None`: it is another one by now.
    fn growth(&self, index: usize, walk: &Walk) -> Option<(bool, bool, u64)> {
        let mut state = lock(&self.process.state);
        let grows = state.calling.iter().any(|(_, s)| *s == index);
        let source = state.source(index)?;
        let is = source.generation == walk.generation && source.list.epoch() == walk.epoch;
        is.then(|| (source.goes_on(), grows, source.ready))
    }

    /// In which part of the disk each page lies. `learns`: what borders these is found anew, by where the pages lie.
    fn parts(&mut self, uses: &[Use], borders: &mut Vec<u64>, learns: bool) -> Vec<u8> {
        let pages = uses.chunk_by(|a, b| a.key == b.key);
        let place = |page: &[Use]| page.first().and_then(|u| self.place_of(u));
        let places: Vec<u64> = pages.map(place).map(|p| p.unwrap_or(u64::MAX)).collect();
        if learns {
            let mut placed: Vec<u64> = places.iter().copied().filter(|p| *p < u64::MAX).collect();
            *borders = reach::borders(&mut placed);
        }
        let part = |place: &u64| reach::part_of(borders, *place) as u8;
        places.iter().map(part).collect()
    }

    /// Makes a round of these uses: what of their pages is fetched, and until when each is held.
    fn plan(&mut self, walk: &mut Walk, room: u64, uses: &[Use], parts: &[u8]) {
        let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
            return;
        };
        round.base = walk.seen.0;
        round.leaving.clear();
        let (base, reach) = (round.base, round.reach);
        let mut known = std::mem::take(&mut round.held);
        let mut planned = Planned::default();
        for (page, part) in uses.chunk_by(|a, b| a.key == b.key).zip(parts) {
            let part = u64::from(*part);
            self.plan_page(walk, &mut round, &mut known, (page, part), &mut planned);
        }
        // What it has no use for goes if it is in the way.
        for (_, held) in known {
            planned.idle += held.span.bytes();
            round.hold(held.span, 0);
        }
        let taken = planned.bytes + planned.idle;
        round.keeps = taken <= room;
        walk.counted = walk.counted.max(reach.end(0));
        walk.front = (reach.end(0).max(base), 0);
        let so_far = uses
            .iter()
            .filter(|u| base + u64::from(u.entry) < walk.front.0);
        walk.ahead = so_far.map(|u| u64::from(u.pages) * PAGE).sum();
        let mut items = planned.items;
        let gap = self.infill(&items, room.saturating_sub(taken));
        let own = items.first().and_then(|i| self.files.get(&i.file()));
        let most = own.map_or(32, |o| o.chunk / PAGE).max(1) as u32;
        if !round.lone && own.is_some() {
            self.engine.keep_order(walk.disk);
        }
        let gap = if round.lone { 0 } else { gap / PAGE * PAGE };
        sweep::arrange(&mut items);
        if round.lone {
            items = sweep::by_need(&items, LONE_PAGES);
        }
        let mut totals = Totals::default();
        let mut left = &items[..];
        while let Some((request, taken, infill)) = sweep::join(left, gap / PAGE, most) {
            totals.requests += 1;
            totals.bytes += u64::from(request.pages) * PAGE;
            totals.infill += infill * PAGE;
            left = left.get(taken..).unwrap_or_default();
        }
        // One of what the last ones have fetched, at the end of a list, is none.
        if totals.requests > 0 || planned.cached > 0 {
            self.process.count(Figure::Infill, totals.infill);
            self.process.count(Figure::Rounds, 1);
            let entries = round.before.end(0)..reach.last();
            let (asked, cached) = (planned.asked, planned.cached);
            self.explain.round(entries, asked, cached, &totals, room);
        }
        self.process.waited_us.store(0, Relaxed);
        walk.missed = 0;
        walk.order = Order::Rounds(Round {
            items,
            issued: 0,
            gap,
            most,
            begun: true,
            sweeps: !round.lone,
            memory: room,
            written: self.dirty,
            handed: 0,
            parts: VecDeque::new(),
            stopped: None,
            ..round
        });
    }

    /// Plans one page, in a part of the disk, of which `known` tells what is still held of the rounds before.
    fn plan_page(
        &mut self,
        walk: &Walk,
        round: &mut Round,
        known: &mut BTreeMap<u64, Held>,
        (page, part): (&[Use], u64),
        planned: &mut Planned,
    ) {
        let (base, before, reach) = (round.base, round.before, round.reach);
        let entry = |u: &Use| base + u64::from(u.entry);
        // Uses that were left to earlier rounds, and to this one.
        let (old, rest) = page.split_at(page.partition_point(|u| entry(u) < before.end(part)));
        let new = rest
            .get(..rest.partition_point(|u| entry(u) < reach.end(part)))
            .unwrap_or_default();
        let key = page.first().map_or(0, |u| u.key);
        let (file, start) = ((key >> 48) as u16, key & ((1 << 48) - 1));
        let own = self.files.get_mut(&file);
        let Some((handle, own)) = own.and_then(|own| Some((own.handle.clone()?, own))) else {
            return;
        };
        let longest = page.iter().map(|u| u64::from(u.pages)).max().unwrap_or(0);
        let pages = PageRange::new(start, start + longest);
        let span = Span {
            file,
            generation: own.generation,
            pages,
        };
        planned.asked += new.iter().map(|u| u64::from(u.pages)).sum::<u64>() * PAGE;
        let seen = own.view.count(pages);
        let held = known.remove(&key).filter(|_| seen.present_pages > 0);
        // When this round needs it: a sweep, when it is used last, and who reads behind a lone one, first.
        let ends = new.first().zip(new.last());
        let ends = ends.map(|(first, last)| (first, last, if round.lone { first } else { last }));
        if let Some(held) = held
            && let Some(last) = old.last()
        {
            // Until this round comes there the page makes room for others, unless that is soon.
            let stays = new.last().filter(|_| before.is_late(entry(last), part));
            planned.bytes += held.span.bytes();
            round.hold(held.span, entry(stays.unwrap_or(last)));
            if let Some((_, _, need)) = ends.filter(|_| stays.is_none()) {
                own.place(file, pages, need.entry, &mut planned.items);
                planned.bytes += longest * PAGE;
            }
            return;
        }
        let Some((first, last, need)) = ends else {
            if let Some(held) = held {
                planned.idle += held.span.bytes();
                round.hold(held.span, 0);
            }
            return;
        };
        planned.bytes += longest * PAGE;
        let mut missing = Vec::new();
        let is_cold = round.lone && *planned.cold.entry(file).or_insert_with(|| own.is_cold());
        let here = if is_cold {
            own.view.missing(pages, usize::MAX, &mut missing);
            seen.present_pages
        } else {
            own.missing(&handle, pages, seen, &mut missing)
        };
        if here > 0 && entry(first) >= walk.counted {
            let here = here.saturating_sub(seen.unused_pages) * PAGE;
            planned.cached += here;
            self.process.count(Figure::Cached, here);
        }
        // What the program had to read itself, off this list, or had written before, is given up like what was fetched for it.
        let present = |n| {
            let is_present = own.view.state(n).residency == Residency::Present;
            is_present || walk.writeback.is_older(file, n)
        };
        if held.is_some() || (missing.is_empty() && (start..pages.end).all(present)) {
            round.hold(span, entry(last));
        }
        for run in missing {
            own.place(file, run, need.entry, &mut planned.items);
        }
    }

    /// Bytes of the files that are cached and that `round` has not fetched. What is dirty or being written back has been taken off already, and what was
    /// written back is about to go.
    fn foreign(&self, round: &Round, writeback: &Writeback) -> u64 {
        let cached = |own: &Own| {
            let fd = own.handle.as_ref()?.fd();
            let stat = cache::cachestat(fd, 0..own.size).ok()?;
            let clean = stat.cached.saturating_sub(stat.dirty + stat.writeback);
            Some(clean * PAGE)
        };
        let all: u64 = self.files.values().filter_map(cached).sum();
        all.saturating_sub(round.bytes() + self.leaving(writeback))
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
            (Some(handle), Some(i)) => self.engine.device_of(own.dev, handle, i.page() * PAGE),
            _ => own.dev,
        };
        let gap = self.engine.model(device).merge_gap();
        gap.min(spare / (items.len() as u64).max(1))
    }
}
