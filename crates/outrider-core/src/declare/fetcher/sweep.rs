//! Fetching in rounds, each sorted by place on the device.

use std::collections::VecDeque;

use super::super::order::{self, Item, Links, Unique};
use super::super::{Figure, lock};
use super::{Fetcher, Order, QUEUED, Span, Walk, key, pages_of};
use crate::view::{PAGE_BYTES, PageRange};

/// Entries of one round at most: their pages are sorted in memory of 16 bytes each.
const ROUND_ENTRIES: usize = 1 << 19;
/// Gaps up to this many bytes are read through on a disk with a head (libprefetch section 3.3, Figure 3).
const INFILL: u64 = 32 << 10;

#[derive(Default)]
pub(super) struct Round {
    pub(super) items: Vec<Item>,
    pub(super) issued: usize,
    /// First entry behind it, and when the next one is begun.
    pub(super) end: u64,
    pub(super) renew: u64,
    /// What we have fetched and not given up yet, oldest first.
    pub(super) held: VecDeque<Span>,
    pub(super) held_pages: u64,
    /// Where the last sweep ended.
    pub(super) place: u64,
    pub(super) begun: bool,
    /// On a device without a head: the one sweep over a dense list that fits in memory, after which it is streamed.
    pub(super) lone: bool,
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
        if n < LEAST || n > ROUND_ENTRIES as u64 {
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

    /// Fetches round by round (SPEC LP3), with `room` bytes of memory. `true` if there is more to do at once.
    pub(super) fn sweep(&mut self, index: usize, walk: &mut Walk, room: u64) -> bool {
        let Order::Rounds(round) = &walk.order else {
            return false;
        };
        if round.issued < round.items.len() {
            let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
                return false;
            };
            self.issue(&mut round);
            let left = round.issued < round.items.len();
            walk.order = Order::Rounds(round);
            if left {
                // The engine rings when it has room.
                return false;
            }
        }
        let Order::Rounds(round) = &walk.order else {
            return false;
        };
        if round.begun && round.lone {
            walk.order = Order::of(false);
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
        match self.gather(index, walk, room) {
            Some(true) => {
                let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
                    return false;
                };
                self.issue(&mut round);
                walk.order = Order::Rounds(round);
                true
            }
            Some(false) => {
                self.wake_at(index, walk, room);
                false
            }
            None => true,
        }
    }

    /// Queues what of the round the engine has room for.
    fn issue(&mut self, round: &mut Round) {
        let mut queued = self.engine.queued_bytes();
        while queued < QUEUED {
            let Some(item) = round.items.get(round.issued).copied() else {
                break;
            };
            queued += u64::from(item.pages) * PAGE_BYTES;
            round.issued += 1;
            round.place = item.place + u64::from(item.pages);
            let pages = PageRange::new(item.page(), item.end());
            let Some(generation) = self.files.get(&item.file()).map(|o| o.generation) else {
                continue;
            };
            if let Some(own) = self.files.get(&item.file()) {
                self.explain.issued(own.ino, &pages, Some(item.place));
            }
            self.request(item.file(), pages);
            round.held_pages += pages.len();
            round.held.push_back(Span {
                file: item.file(),
                generation,
                pages,
            });
        }
        self.hand_over();
    }

    /// Takes the next unique pages of the list into a round. `Some(false)`: there are none; `None`: the list is another one by now.
    fn gather(&mut self, index: usize, walk: &mut Walk, room: u64) -> Option<bool> {
        let front = walk.front.0;
        let (mut unique, n) = {
            let mut state = lock(&self.process.state);
            let source = state.source(index)?;
            if source.generation != walk.generation || source.list.epoch() != walk.epoch {
                return None;
            }
            let list = &source.list;
            let n = source.ready.saturating_sub(front).min(ROUND_ENTRIES as u64);
            if n == 0 {
                return Some(false);
            }
            let links = Links::new(n as usize, |i| list.get(front + i as u64).and_then(key));
            (links.and_then(Unique::new)?, n)
        };
        if walk.used_since > 0 {
            if !walk.lossy {
                self.contention.clean();
            }
            walk.used_since = 0;
            walk.lossy = false;
        }
        let mut items: Vec<Item> = Vec::new();
        let mut needed: Vec<Item> = Vec::new();
        let (mut bytes, mut asked, mut cached) = (0u64, 0u64, 0u64);
        let mut first = None;
        while walk.front.0 < front + n && bytes < room {
            let pieces = self.next_pieces(index, walk)?;
            if pieces.is_empty() {
                break;
            }
            for p in pieces {
                let i = (p.n - front) as u32;
                if p.n >= front + n || bytes >= room {
                    break;
                }
                walk.front = (p.n + 1, 0);
                walk.ahead += u64::from(p.length);
                asked += u64::from(p.length);
                let count = p.n >= walk.counted;
                walk.counted = walk.counted.max(p.n + 1);
                if !unique.take(i) || p.length == 0 {
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
                let here = own.missing(&handle, pages, seen, &mut missing);
                if count && here > 0 {
                    let here = here.saturating_sub(seen.unused_pages) * PAGE_BYTES;
                    let here = here.min(u64::from(p.length));
                    cached += here;
                    self.process.count(Figure::Cached, here);
                }
                bytes += pages.len() * PAGE_BYTES;
                if missing.is_empty() {
                    if needed.try_reserve(1).is_ok() {
                        needed.push(Item::new(0, p.file, pages.start, pages.len() as u32));
                    }
                    continue;
                }
                for run in missing {
                    own.place(&handle, p.file, run, &mut items);
                }
                first = first.or_else(|| items.first().map(|i| i.place));
            }
        }
        let Order::Rounds(mut round) = std::mem::take(&mut walk.order) else {
            return None;
        };
        needed.sort_unstable_by_key(|i| (i.file(), i.page()));
        self.make_room(&mut round, &needed, bytes, room);
        let spare = room.saturating_sub(bytes);
        let gap = self.infill(&items, spare);
        let most = items
            .first()
            .and_then(|i| self.files.get(&i.file()))
            .map_or(32, |o| o.chunk / PAGE_BYTES)
            .max(1) as u32;
        // The first sweep begins with what the program waits for.
        let from = if round.begun {
            round.place
        } else {
            first.unwrap_or(0)
        };
        let infill = order::arrange(&mut items, from, gap / PAGE_BYTES, most);
        self.process.count(Figure::Infill, infill * PAGE_BYTES);
        self.process.count(Figure::Rounds, 1);
        self.explain
            .round(front..walk.front.0, asked, cached, &items, infill, room);
        round.items = items;
        round.issued = 0;
        round.begun = true;
        round.end = walk.front.0;
        // The last bit of a round is read while the next one is fetched.
        round.renew = round.end - (round.end - front) / 16;
        walk.order = Order::Rounds(round);
        Some(true)
    }

    /// Evicts what earlier rounds have fetched and this one, of `bytes`, doesn't need, oldest first, until it fits in `room`.
    fn make_room(&mut self, round: &mut Round, needed: &[Item], bytes: u64, room: u64) {
        let mut left = round.held.len();
        let mut spans = Vec::new();
        while left > 0 && round.held_pages * PAGE_BYTES + bytes > room {
            left -= 1;
            let Some(span) = round.held.pop_front() else {
                break;
            };
            let at =
                needed.partition_point(|i| (i.file(), i.end()) <= (span.file, span.pages.start));
            let wanted = needed
                .get(at)
                .is_some_and(|i| i.file() == span.file && i.page() < span.pages.end);
            if wanted {
                round.held.push_back(span);
            } else {
                round.held_pages = round.held_pages.saturating_sub(span.pages.len());
                spans.push(span);
            }
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
        let model = self.engine.model(own.dev);
        let latency = self
            .manners
            .get(&own.dev)
            .map_or(model.latency_us, |m| m.latency_us);
        // A short seek costs about an eighth of a long one, most of it turning (Figure 1).
        let even = (model.bandwidth * latency / 8.0) as u64;
        even.min(INFILL).min(spare / (items.len() as u64).max(1))
    }
}
