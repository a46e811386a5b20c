//! Fetching in the order of need, as far ahead as memory allows; where the list doesn't fit, by Belady's algorithm.

use std::collections::{HashMap, VecDeque};

use outrider_sys::units::{DeviceId, PAGE};

use super::super::{Figure, LIST_MAX};
use super::{BATCH, Fetcher, Order, Piece, QUEUED, STEP, Span, Walk, key, pages_of};
use crate::device::Seeks;
use crate::lock;
use crate::plan::belady::{Belady, Links};
use crate::view::PageRange;

/// The lead is this part of the memory, and that one on devices that don't seek: what is kept for later counts more there.
const PART: u64 = 8;
const QUICK_PART: u64 = 20;
/// … where that is so many bytes at least.
const LEAST_LEAD: u64 = 1 << 20;
/// Entries that the program is past what is given up, since threads may be a little behind.
const SLACK: u64 = 4;

#[derive(Default)]
pub(super) struct Stream {
    /// What is kept and given up, from this entry on, where the list is larger than memory.
    pub(super) belady: Option<(u64, Belady)>,
    /// The list up to this entry takes so many bytes at most, which there are.
    pub(super) fits: (u64, u64),
    /// To be given up when the program has passed the entry.
    pub(super) due: VecDeque<(u64, Span)>,
    pub(super) due_bytes: u64,
    /// What we have fetched and not given up yet, by the page that the entry begins on.
    pub(super) held: HashMap<u64, Span>,
    /// Of these, what the list has no use for behind an entry, as far as it is known. The part that is not may: it goes when there is need.
    pub(super) idle: VecDeque<(u64, u64)>,
    pub(super) idle_bytes: u64,
    /// On a device with a head: the entry up to which the list goes upwards by itself, so that rounds win nothing.
    pub(super) until: Option<u64>,
}

impl Stream {
    /// Bytes that are held of a list that doesn't fit in memory; `None` for one that does.
    fn bytes(&self) -> Option<u64> {
        let (_, belady) = self.belady.as_ref()?;
        Some(belady.bytes() + self.idle_bytes + self.due_bytes)
    }

    fn bytes_of(&self, key: u64) -> u64 {
        self.held.get(&key).map_or(0, Span::bytes)
    }

    /// Has pages given up once the program has passed entry `n`.
    pub(super) fn give_up(&mut self, key: u64, n: u64) {
        if let Some(span) = self.held.get(&key) {
            self.due_bytes += span.bytes();
            let at = self.due.partition_point(|(m, _)| *m <= n);
            self.due.insert(at, (n, *span));
        }
    }
}

impl Walk {
    /// Bytes of memory that the stream takes.
    fn held(&self) -> u64 {
        match &self.order {
            Order::Stream(stream) => stream.bytes().unwrap_or(self.ahead),
            _ => self.ahead,
        }
    }

    /// After how many bytes of progress the stream goes on.
    fn step(&self, room: u64, lead: u64) -> u64 {
        match &self.order {
            Order::Stream(Stream {
                belady: Some(_), ..
            }) => (self.ahead / 2).min(lead),
            _ => room / 8,
        }
    }
}

impl Fetcher {
    /// How much of `room` bytes a stream is ahead of the program, where it doesn't keep what it holds for later.
    fn lead(&self, disk: DeviceId, room: u64) -> u64 {
        let model = self.engine.model(disk);
        let quick = model.has_latency() && Seeks::of(model.latency_us) != Seeks::Yes;
        let part = if quick { QUICK_PART } else { PART };
        (room / part)
            .clamp(LEAST_LEAD, 2 * STEP.1)
            .min(room / PART)
            .max(STEP.0)
            .min(room / 2)
    }

    /// Asks for what comes next in the order of need, with `room` bytes of memory. `true` if there is more to do at once.
    pub(super) fn advance(&mut self, index: usize, walk: &mut Walk, room: u64) -> bool {
        self.end_window(walk, room);
        walk.memory = walk.memory.max(self.contention.limit());
        let lead = self.lead(walk.disk, room);
        let mut looked = 0;
        self.keep_less(index, walk, room - lead);
        self.give_up_due(walk);
        loop {
            let held = walk.held();
            // At the low mark the engine rings.
            if held >= room || self.engine.queued_bytes() >= QUEUED {
                self.wake_at(index, walk, walk.step(room, lead));
                return false;
            }
            if let Order::Stream(Stream { until: Some(n), .. }) = &walk.order
                && walk.front.0 >= *n
            {
                walk.order = std::mem::take(&mut walk.order).swept();
                return true;
            }
            if looked >= 16 * BATCH {
                return true;
            }
            let Some(pieces) = self.next_pieces(index, walk) else {
                return true;
            };
            if pieces.is_empty() {
                self.wake_at(index, walk, walk.step(room, lead));
                return false;
            }
            if !self.plan_memory(index, walk, room, lead) {
                return true;
            }
            looked += pieces.len();
            let mut last = None;
            for p in pieces {
                let left = room.saturating_sub(walk.ahead).max(STEP.0);
                let length = u64::from(p.length).min(left) as u32;
                let this = (p.file, p.offset, length);
                // The same once more has just been looked at.
                let fetched = match last.replace(this) == Some(this) {
                    true => 0,
                    false => self.want(&p, length, p.n >= walk.counted),
                };
                if fetched == 0 {
                    walk.skipped += u64::from(length);
                }
                walk.ahead += u64::from(length);
                if length < p.length {
                    walk.front = (p.n, walk.front.1.saturating_add(length));
                    break;
                }
                walk.front = (p.n + 1, 0);
                walk.counted = walk.counted.max(p.n + 1);
                if fetched > 0
                    && let Order::Stream(stream) = &mut walk.order
                    && stream.held.try_reserve(1).is_ok()
                {
                    stream.held.insert(p.key(), Span::of(&p));
                }
                self.keep(index, walk, &p, fetched > 0, room - lead);
                if walk.held() >= room {
                    break;
                }
            }
            self.hand_over();
        }
    }

    /// Sees to it that the stretch at the front is linked, if the list doesn't fit in memory.
    fn plan_memory(&mut self, index: usize, walk: &mut Walk, room: u64, lead: u64) -> bool {
        let (epoch, generation, front) = (walk.epoch, walk.generation, walk.front.0);
        // What the program has yet to read that was asked for lies before this.
        let asked = if walk.ahead == 0 { 0 } else { front };
        let Order::Stream(stream) = &mut walk.order else {
            return true;
        };
        let mut state = lock(&self.process.state);
        let Some(source) = state.source(index) else {
            return false;
        };
        if source.generation != generation || source.list.epoch() != epoch {
            return false;
        }
        if let Some((base, belady)) = &stream.belady {
            // More of the list is known by now: half of a stretch shows too little of what comes next.
            let end = base + belady.len() as u64;
            if front < end && (source.ready <= end || front - base < end - front) {
                return true;
            }
            stream.belady = None;
        }
        let list = &source.list;
        let bytes = |range: std::ops::Range<u64>, so_far: u64| {
            let mut sum = so_far;
            let fits = range.into_iter().all(|n| {
                sum += list.get(n).map_or(0, |e| u64::from(e.length));
                sum <= room
            });
            fits.then_some(sum)
        };
        // Only what is new is added up; what was read meanwhile can only make it less.
        let (known, so_far) = stream.fits;
        let sum = if (front..=source.ready).contains(&known) && so_far <= room {
            bytes(known..source.ready, so_far)
        } else {
            None
        };
        let sum = sum.or_else(|| bytes(front..source.ready, walk.ahead));
        let n = source.ready.saturating_sub(front).min(LIST_MAX as u64);
        if let Some(sum) = sum {
            stream.fits = (source.ready, sum);
        } else if n > 1 {
            let key_of = |i: usize| list.get(front + i as u64).and_then(key);
            stream.belady = Links::new(n as usize, key_of)
                .and_then(Belady::new)
                .map(|mut b| {
                    // What is held already: at its next use, or idle.
                    stream.due.clear();
                    stream.due_bytes = 0;
                    let mut left = stream.held.clone();
                    for i in 0..n as usize {
                        if left.is_empty() {
                            break;
                        }
                        if let Some(span) = key_of(i).and_then(|k| left.remove(&k)) {
                            b.adopt(i as u32, span.bytes());
                        }
                    }
                    stream.idle_bytes = left.values().map(Span::bytes).sum();
                    stream.idle = left.into_keys().map(|key| (asked, key)).collect();
                    (front, b)
                });
            if stream.belady.is_some() {
                self.explain.stream(front..front + n, room, lead);
            }
        }
        true
    }

    /// What is kept for later, or because it may be wanted, has to fit in `room` bytes, which may be less than before: otherwise the stream would stand
    /// still, since it is only by going on that it gives anything up.
    fn keep_less(&mut self, index: usize, walk: &mut Walk, room: u64) {
        let (front, epoch, generation) = (walk.front.0, walk.epoch, walk.generation);
        let Order::Stream(stream) = &mut walk.order else {
            return;
        };
        while let Some((_, belady)) = &stream.belady
            && belady.bytes() + stream.idle_bytes > room
            && let Some((n, key)) = stream.idle.pop_front()
        {
            stream.idle_bytes = stream.idle_bytes.saturating_sub(stream.bytes_of(key));
            stream.give_up(key, n);
        }
        let Some((base, belady)) = &mut stream.belady else {
            return;
        };
        if belady.bytes() <= room {
            return;
        }
        let base = *base;
        let mut victims = Vec::new();
        let mut state = lock(&self.process.state);
        let Some(source) = state.source(index) else {
            return;
        };
        if source.generation != generation || source.list.epoch() != epoch {
            return;
        }
        let list = &source.list;
        let entry_of = |i: u32| list.get(base + u64::from(i));
        let size_of = |i: u32| entry_of(i).map_or(0, |e| pages_of(&e).len() * PAGE);
        belady.shrink(room, size_of, &mut victims);
        let ours = victims.iter().filter(|v| v.ours);
        for key in ours.filter_map(|v| entry_of(v.entry).and_then(key)) {
            stream.give_up(key, front);
        }
    }

    /// The program was at an entry before the stream: what was kept for it is kept for its next use.
    pub(super) fn overtaken(&mut self, index: usize, walk: &mut Walk, p: &Piece) {
        self.keep(index, walk, p, false, u64::MAX);
    }

    /// The stream has passed an entry: decides what is kept.
    fn keep(&mut self, index: usize, walk: &mut Walk, p: &Piece, fetched: bool, room: u64) {
        let Order::Stream(stream) = &mut walk.order else {
            return;
        };
        let Some((base, belady)) = &mut stream.belady else {
            return;
        };
        let base = *base;
        let Some(i) = p.n.checked_sub(base).and_then(|i| u32::try_from(i).ok()) else {
            return;
        };
        let mut victims = Vec::new();
        let mut gone: Vec<u64> = Vec::new();
        let mut state = lock(&self.process.state);
        let Some(source) = state.source(index) else {
            return;
        };
        let list = &source.list;
        let size_of = |i: u32| {
            list.get(base + u64::from(i))
                .map_or(0, |e| pages_of(&e).len() * PAGE)
        };
        let size = match size_of(i) {
            0 => Span::of(p).bytes(),
            size => size,
        };
        belady.pass(i, size, fetched, room, size_of, &mut victims);
        let kept = belady.bytes();
        for v in victims {
            let entry = list.get(base + u64::from(v.entry));
            let Some(key) = entry.filter(|_| v.ours).and_then(key) else {
                continue;
            };
            if v.needed || !source.goes_on() {
                gone.push(key);
            } else {
                stream.idle_bytes += stream.bytes_of(key);
                stream.idle.push_back((p.n, key));
            }
        }
        while kept + stream.idle_bytes > room
            && let Some((_, key)) = stream.idle.pop_front()
        {
            stream.idle_bytes = stream.idle_bytes.saturating_sub(stream.bytes_of(key));
            gone.push(key);
        }
        for key in gone {
            stream.give_up(key, p.n);
        }
    }

    /// Fetches the first `length` bytes of a piece, as far as they are not cached; returns how many pages that are.
    fn want(&mut self, p: &Piece, length: u32, first: bool) -> u64 {
        if p.length == 0 || p.generation == 0 {
            return 0;
        }
        let end = p.offset + u64::from(length);
        self.open(p);
        let Some(own) = self.files.get_mut(&p.file) else {
            return 0;
        };
        let Some(handle) = own.handle.clone() else {
            return 0;
        };
        let pages = PageRange::from_bytes(p.offset, end - p.offset);
        let seen = own.view.count(pages);
        if seen.unused_pages == pages.len() {
            // Asked for already and still to be read: `look_after` sees to it.
            return 0;
        }
        let mut missing = Vec::new();
        let known = seen.present_pages + seen.in_flight_pages;
        let cached = match known == pages.len() || known == 0 {
            true if own.is_as_known() => {
                if known == 0 {
                    missing.push(pages);
                }
                known
            }
            _ => {
                let cached = own.missing(&handle, pages, seen, &mut missing);
                if cached != known && seen.in_flight_pages == 0 {
                    own.doubt();
                }
                cached
            }
        };
        if first && cached > 0 {
            let cached = cached.saturating_sub(seen.unused_pages) * PAGE;
            self.process
                .count(Figure::Cached, cached.min(end - p.offset));
        }
        for pages in &missing {
            self.explain.issued(own.ino, pages, None);
        }
        self.fetch(p.file, &missing, 0);
        missing.iter().map(PageRange::len).sum()
    }

    /// Gives up what the program has passed and nobody needs soon.
    fn give_up_due(&mut self, walk: &mut Walk) {
        let at = walk.seen.0;
        let Order::Stream(stream) = &mut walk.order else {
            return;
        };
        let mut due = std::mem::take(&mut stream.due);
        let mut bytes = stream.due_bytes;
        let mut gone = Vec::new();
        while let Some((n, span)) = due.front().copied() {
            if n + SLACK >= at {
                break;
            }
            due.pop_front();
            bytes = bytes.saturating_sub(span.pages.len() * PAGE);
            gone.push(span);
        }
        self.drop_spans(gone.clone(), "last needed");
        if let Order::Stream(stream) = &mut walk.order {
            stream.due = due;
            stream.due_bytes = bytes;
            for span in gone {
                stream.held.remove(&span.key());
            }
        }
    }

    /// The program has used up what the buffer holds, or a part of it as large: without a loss it may grow.
    fn end_window(&mut self, walk: &mut Walk, room: u64) {
        if walk.used_since >= room {
            self.explain.window(walk.seen.0, walk.skipped);
            walk.skipped = 0;
            walk.used_since = 0;
            walk.memory = 0;
            if !walk.is_short() {
                self.contention.clean();
            }
            self.process.count(Figure::Rounds, 1);
        }
    }
}
