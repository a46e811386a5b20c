//! Pages that leave the cache: those that we give up, and those that were taken from us.

use std::time::{Duration, Instant};

use outrider_sys::cache;
use outrider_sys::units::PAGE;

use super::super::Figure;
use super::super::contention::is_shortage;
use super::{Fetcher, NOTHING, Order, Own, Piece, Span, Walk};
use crate::lock;
use crate::view::PageRange;

/// Fetched pages are looked after so often at most.
const CHECK: Duration = Duration::from_millis(10);
/// Entries that are looked at for lost pages, spread over the window: a system call each.
const SAMPLES: u64 = 256;

impl Fetcher {
    /// Drops pages that we have brought in, unless somebody has written to them. Neighbours go as one: each call costs as much
    /// as the pages of an entry.
    pub(super) fn drop_spans(&mut self, mut spans: Vec<Span>, why: &str) {
        spans.sort_unstable_by_key(|s| (s.file, s.generation, s.pages.start));
        let mut rest = spans.as_slice();
        let mut last = None;
        while let Some((first, more)) = rest.split_first() {
            let mut pages = first.pages;
            let joined = more
                .iter()
                .take_while(|s| {
                    let next = (s.file, s.generation) == (first.file, first.generation)
                        && s.pages.start <= pages.end;
                    if next {
                        pages.end = pages.end.max(s.pages.end);
                    }
                    next
                })
                .count();
            rest = more.get(joined..).unwrap_or_default();
            let unwritten = match last {
                Some((file, unwritten)) if file == first.file => unwritten,
                _ => self.files.get(&first.file).is_some_and(Own::is_unwritten),
            };
            last = Some((first.file, unwritten));
            self.drop_span(first, pages, unwritten, why);
        }
    }

    fn drop_span(&mut self, span: &Span, pages: PageRange, unwritten: bool, why: &str) {
        let Some(own) = self
            .files
            .get(&span.file)
            .filter(|o| o.generation == span.generation)
        else {
            return;
        };
        let Some(handle) = &own.handle else { return };
        let bytes = pages.start * PAGE..pages.end * PAGE;
        let clean = unwritten
            || cache::cachestat(handle.fd(), bytes.clone())
                .is_ok_and(|s| s.dirty == 0 && s.writeback == 0 && s.cached > 0);
        if clean && cache::drop_range(handle.fd(), bytes.clone()).is_ok() {
            let _ = own.view.evicted(pages);
            self.process.count(Figure::Dropped, bytes.end - bytes.start);
            self.explain.dropped(own.ino, &bytes, why);
        }
    }

    /// Looks whether what was fetched and not used is still there (SPEC LP4). What is gone and will be needed is fetched again.
    pub(super) fn look_after(&mut self, index: usize, walk: &mut Walk) {
        if self.checked.elapsed() < CHECK {
            return;
        }
        let missed = {
            let mut state = lock(&self.process.state);
            state
                .source(index)
                .map_or(0, |s| std::mem::take(&mut s.lost))
        };
        walk.missed += missed;
        if walk.front.0 <= walk.seen.0 + 1 {
            return;
        }
        if self.unused.pages() == 0 {
            return;
        }
        self.checked = Instant::now();
        let (first, last) = (walk.seen.0 + 1, walk.front.0);
        let step = ((last - first) / SAMPLES).max(1);
        let Some(lost) = self.lost(index, walk, (first..last).step_by(step as usize)) else {
            return;
        };
        // Of the whole buffer: near the end of a round what is left of it is little, and a few pages would be much of that.
        let buffer = self.contention.limit() / PAGE;
        let (all, held) = (lost.gone * step + walk.missed, lost.held * step);
        if !is_shortage(all, buffer.max(held)) {
            return;
        }
        walk.missed = 0;
        for (file, pages) in lost.pages {
            if let Some(own) = self.files.get(&file) {
                let _ = own.view.evicted(pages);
            }
        }
        let excuse = self.excuse(walk);
        // Once a window: what was fetched before says nothing new, however often it is lost.
        if excuse.is_none() && !walk.is_short() {
            if !self.is_outgrown(walk, all) {
                self.contention.shortage();
            }
            walk.short_until = walk.front.0;
        }
        self.process.count(Figure::Evicted, all * PAGE);
        let from_now_on = excuse.map_or(Ok(self.contention.limit()), Err);
        self.explain.lost(all, held, from_now_on);
        if let Some(nearest) = lost.nearest {
            self.go_over(index, walk, nearest, excuse.is_some());
        }
    }

    /// What of these entries was fetched and is gone. `None`: the list is another one by now, or that can't be seen.
    fn lost(&self, index: usize, walk: &Walk, entries: impl Iterator<Item = u64>) -> Option<Lost> {
        let pieces: Vec<Piece> = {
            let mut state = lock(&self.process.state);
            let source = state.source(index)?;
            if source.generation != walk.generation || source.list.epoch() != walk.epoch {
                return None;
            }
            let piece = |n| source.list.get(n).map(|e| Piece::of(n, e));
            entries.filter_map(piece).collect()
        };
        let mut lost = Lost::default();
        for p in &pieces {
            let Some(own) = self.files.get(&p.file) else {
                continue;
            };
            let Some(handle) = own.handle.as_ref().filter(|_| !own.overlaid) else {
                continue;
            };
            let pages = PageRange::from_bytes(p.offset, u64::from(p.length));
            // Of a long entry its beginning tells.
            let pages = PageRange::new(pages.start, pages.end.min(pages.start + 512));
            let seen = own.view.count(pages);
            let ours = pages.len();
            if seen.unused_pages < ours || seen.present_pages < ours {
                continue;
            }
            let bytes = pages.start * PAGE..pages.end * PAGE;
            let stat = cache::cachestat(handle.fd(), bytes).ok()?;
            lost.held += ours;
            if stat.cached < ours {
                lost.gone += ours - stat.cached;
                lost.pages.push((p.file, pages));
                lost.nearest = Some(lost.nearest.map_or(p.n, |n| n.min(p.n)));
            }
        }
        Some(lost)
    }

    /// Why pages may be gone though memory is not short. Where it lies unused the kernel reclaims before it has to, and takes what lay unread for a while.
    fn excuse(&self, walk: &Walk) -> Option<&'static str> {
        if self.memory.read().unused() >= NOTHING {
            Some("memory lies unused")
        } else if self.stale > 0 {
            Some("older cache makes room")
        } else if matches!(&walk.order, Order::Rounds(round) if self.dirty > round.written) {
            Some("what is written makes room")
        } else {
            None
        }
    }

    /// Whether so many lost `pages` say nothing: they were fetched into more memory than there is by now, because others have come since, or programs have grown.
    fn is_outgrown(&mut self, walk: &Walk, pages: u64) -> bool {
        match &walk.order {
            Order::Rounds(round) => round.memory > self.contention.limit(),
            _ => {
                self.take_stock();
                walk.memory.saturating_sub(self.contention.limit()) >= pages * PAGE
            }
        }
    }

    /// Goes over what is needed soon once more, from entry `nearest` on: what is there costs a look. `excused`: memory is not short.
    fn go_over(&mut self, index: usize, walk: &mut Walk, nearest: u64, excused: bool) {
        walk.front = (nearest.max(walk.seen.0), 0);
        walk.ahead = 0;
        if let Order::Rounds(round) = &mut walk.order {
            let at = walk.seen.0;
            *round = match excused {
                true => std::mem::take(round).doubtful(at, at),
                false => std::mem::take(round).broken(),
            };
            self.asked(index, walk, walk.seen.0);
        }
        if let Order::Stream(stream) = &mut walk.order {
            stream.belady = None;
        }
    }
}

/// What was fetched, of some entries, and is gone.
#[derive(Default)]
struct Lost {
    /// Pages that were there, and those of them that are gone.
    held: u64,
    gone: u64,
    /// Files, and their pages.
    pages: Vec<(u16, PageRange)>,
    /// The first entry of these.
    nearest: Option<u64>,
}
