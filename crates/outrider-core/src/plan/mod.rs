//! From intents to requests (SPEC CP4, CP9).
//!
//! A plan subtracts what the view knows to be cached or on its way, reads through gaps where that is cheaper than another
//! request ([`merge`]), cuts into pieces that the kernel never clips, keeps the order of need, and stops at the budget. The service makes one for each
//! intent; whoever goes through a declared list adds one after the other to it, in the order of need or in that of a [`sweep`], with what
//! [`belady`] and [`reach`] say of what fits into memory.

pub mod belady;
mod merge;
pub mod reach;
pub mod sweep;

use outrider_sys::units::{ByteRange, PAGE, PageRange, pieces};

use crate::view::FileView;
pub use merge::count as count_merged;

/// What a plan has to respect.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Bytes per request, a multiple of the page size.
    pub chunk: u64,
    /// Gaps up to this many bytes are read through.
    pub gap: u64,
    /// Bytes that the budget still grants.
    pub room: u64,
    /// End of the file, bytes; `u64::MAX` where it may have grown.
    pub size: u64,
}

/// The outcome.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Page-aligned byte ranges in the order in which they are to be issued, each at most a chunk long.
    pub requests: Vec<ByteRange>,
    /// Sum of their lengths.
    pub bytes: u64,
    /// Where the budget ran out: the first byte that was foreseen and not planned.
    pub refused_at: Option<u64>,
    /// Requests that are shorter than a chunk.
    pub(crate) short: usize,
}

/// Requests of one plan that are shorter than a chunk, at most: where single pages are missing among others that are cached there might be millions.
const SHORT: usize = 1 << 16;
/// Gaps that are looked at together.
const GAPS: usize = 256;

/// Plans `wanted` (byte ranges, in the order of need), and marks what it plans as in flight in `view`. Without a
/// view (the ablation `cache_visibility = false`) everything is taken to be missing.
pub fn plan(wanted: &[ByteRange], view: Option<&FileView>, terms: Terms, now_us: u64) -> Plan {
    let mut out = Plan::default();
    out.add(wanted, view, terms, now_us);
    out
}

impl Plan {
    /// Plans more of the same file behind what is planned, as [`plan`] does: what begins where the last request ends makes that longer, up to the
    /// chunk's end.
    pub fn add(
        &mut self,
        wanted: &[ByteRange],
        view: Option<&FileView>,
        terms: Terms,
        now_us: u64,
    ) {
        let chunk = (terms.chunk / PAGE).max(1) * PAGE;
        let gap = terms.gap / PAGE;
        let last_page = terms.size.div_ceil(PAGE);
        let in_pages = |r: &ByteRange| PageRange::from_bytes(r.start, r.end - r.start);
        let mut missing = Vec::new();
        let mut rest = wanted.iter().map(in_pages).peekable();
        while let Some(mut pages) = rest.next() {
            // Neighbours in the order of need that lie within a gap of one another become one piece.
            while rest
                .next_if(|next| merge::join(&mut pages, *next, gap))
                .is_some()
            {}
            pages.end = pages.end.min(last_page);
            if pages.is_empty() {
                continue;
            }
            // Some gaps at a time: a file may have millions. Small ones of cached pages are read through: the kernel skips pages that it has.
            let mut run: Option<PageRange> = None;
            let mut from = pages.start;
            while from < pages.end {
                missing.clear();
                let end = match view {
                    Some(view) => view.missing(PageRange::new(from, pages.end), GAPS, &mut missing),
                    None => {
                        missing.push(pages);
                        pages.end
                    }
                };
                for m in &missing {
                    let joined = run.as_mut().is_some_and(|run| merge::join(run, *m, gap));
                    if !joined {
                        let whole = run.replace(*m);
                        if whole.is_some_and(|run| !self.take(run, chunk, view, terms, now_us)) {
                            return;
                        }
                    }
                }
                if end <= from {
                    break;
                }
                from = end;
            }
            if run.is_some_and(|run| !self.take(run, chunk, view, terms, now_us)) {
                return;
            }
        }
    }

    /// Takes in a run of missing pages, in pieces of `chunk` bytes; `false` where there is no room for all of it.
    fn take(
        &mut self,
        run: PageRange,
        chunk: u64,
        view: Option<&FileView>,
        terms: Terms,
        now_us: u64,
    ) -> bool {
        for piece in pieces(run.start * PAGE..run.end * PAGE, chunk) {
            let bytes = piece.end - piece.start;
            let goes_on =
                |last: &&mut ByteRange| last.end == piece.start && !last.end.is_multiple_of(chunk);
            let last = self.requests.last_mut().filter(goes_on);
            self.short += usize::from(last.is_none() && bytes < chunk);
            if self.bytes + bytes > terms.room || self.short > SHORT {
                self.refused_at = Some(piece.start);
                return false;
            }
            if let Some(view) = view {
                view.begin(PageRange::from_bytes(piece.start, bytes), now_us);
            }
            match last {
                Some(last) => last.end = piece.end,
                None => self.requests.push(piece),
            }
            self.bytes += bytes;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Granularity;

    fn terms() -> Terms {
        Terms {
            chunk: 128 << 10,
            gap: 0,
            room: u64::MAX,
            size: 1 << 30,
        }
    }

    /// SPEC CP4: what is cached or in flight is not asked for again; nothing is clipped or passes the end of the file.
    #[test]
    fn subtracts_cuts_and_stops() {
        let view = FileView::new(Granularity::Page, 1 << 20);
        view.present(PageRange::new(10, 20), 0);
        let p = plan(&[0..(256 << 10)], Some(&view), terms(), 0);
        assert_eq!(p.requests, [0..40960, 81920..131072, 131072..262144]);
        assert!(
            plan(&[0..(256 << 10)], Some(&view), terms(), 0)
                .requests
                .is_empty()
        );
        let end = plan(
            &[(1 << 30) - 5000..(1 << 30) + 70000],
            Some(&view),
            terms(),
            0,
        );
        assert_eq!(end.requests, [(1 << 30) - 8192..1 << 30]);
        let poor = plan(
            &[1 << 20..2 << 20],
            Some(&view),
            Terms {
                room: 300 << 10,
                ..terms()
            },
            0,
        );
        assert_eq!(
            (poor.bytes, poor.refused_at),
            (256 << 10, Some((1 << 20) + (256 << 10)))
        );
    }

    /// SPEC CP4: a range with very many holes is planned whole.
    #[test]
    fn many_holes() {
        let view = FileView::new(Granularity::Page, 1 << 20);
        for i in 0..1000 {
            view.present(PageRange::new(i * 4, i * 4 + 1), 0);
        }
        assert_eq!(
            plan(&[0..4000 * PAGE], Some(&view), terms(), 0).bytes,
            3000 * PAGE
        );
    }

    /// LP7: strided pieces join across gaps where reading through is cheaper, and stay apart where it is not.
    #[test]
    fn reads_through_gaps() {
        let wanted: Vec<_> = (0..4u64).map(|i| i * 32768..i * 32768 + 4096).collect();
        assert_eq!(plan(&wanted, None, terms(), 0).requests.len(), 4);
        let joined = plan(
            &wanted,
            None,
            Terms {
                gap: 32 << 10,
                ..terms()
            },
            0,
        );
        assert_eq!(joined.requests, [0..3 * 32768 + 4096]);
        let backwards: Vec<_> = wanted.iter().rev().cloned().collect();
        assert_eq!(
            plan(
                &backwards,
                None,
                Terms {
                    gap: 32 << 10,
                    ..terms()
                },
                0
            )
            .requests,
            [0..3 * 32768 + 4096]
        );
    }

    /// CP4, LP6: what is wanted in one intent after the other is asked for as if it had been in one, up to the chunk's end; what lies elsewhere is a
    /// request of its own, and what is on its way is not asked for again.
    #[test]
    fn intents_go_on_where_the_last_one_ended() {
        let view = FileView::new(Granularity::Page, 1 << 20);
        let mut planned = Plan::default();
        let chunk = terms().chunk;
        for i in 0..40 {
            let wanted = [i * 4096..(i + 1) * 4096];
            planned.add(&wanted, Some(&view), terms(), 0);
        }
        planned.add(&[0..8192], Some(&view), terms(), 0);
        planned.add(&[1 << 20..(1 << 20) + 4096], Some(&view), terms(), 0);
        let whole = [0..chunk, chunk..40 * 4096, 1 << 20..(1 << 20) + 4096];
        assert_eq!(planned.requests, whole);
        assert_eq!(planned.bytes, 41 * 4096);
    }
}
