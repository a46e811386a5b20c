//! The view against a naive model: one map entry per unit, every event spelled out.
//!
//! What must hold, page granularity: after any sequence of events the state of every page, the
//! answers of every call, and the totals equal the model's.
//!
//! Coarse granularity: the same with blocks of 32 pages as units. A missing block changes only through
//! a range that covers it wholly, any other block through a range that touches it; `missing` is cut
//! to the range asked for; hits, late pages and misses count pages read, everything else 32 a block.

use std::collections::BTreeMap;
use std::sync::{Arc, Barrier};
use std::thread;

use outrider_core::view::{
    Access, Evicted, FileView, Granularity, MAX_PAGES, NODE_MAX_PAGES, PageRange, PageState,
    Residency, Unused,
};
use proptest::prelude::*;

const NO_CAP: usize = 1 << 30;

#[derive(Clone, Copy, Debug)]
enum Op {
    Begin,
    Complete,
    Fail,
    Access,
    Present,
    Evicted,
    Truncate,
    Missing,
}

/// The naive view: units that are not missing.
struct Model {
    unit_pages: u64,
    units: BTreeMap<u64, (Residency, bool)>,
    present: u64,
    in_flight: u64,
    unused: u64,
}

impl Model {
    fn new(granularity: Granularity) -> Self {
        let unit_pages = if granularity == Granularity::Page {
            1
        } else {
            32
        };
        Self {
            unit_pages,
            units: BTreeMap::new(),
            present: 0,
            in_flight: 0,
            unused: 0,
        }
    }

    fn get(&self, unit: u64) -> (Residency, bool) {
        self.units.get(&unit).copied().unwrap_or_default()
    }

    fn count(&mut self, (residency, unused): (Residency, bool), by: i64) {
        let add = |n: &mut u64| *n = n.checked_add_signed(by).expect("count below zero");
        match residency {
            Residency::Missing => {}
            Residency::InFlight => add(&mut self.in_flight),
            Residency::Present => add(&mut self.present),
        }
        if unused {
            add(&mut self.unused);
        }
    }

    fn set(&mut self, unit: u64, state: (Residency, bool)) {
        let before = self.get(unit);
        self.count(before, -1);
        self.count(state, 1);
        if state.0 == Residency::Missing {
            self.units.remove(&unit);
        } else {
            self.units.insert(unit, state);
        }
    }

    /// The units of `r`, each with how many of its pages are in `r`.
    fn touched(&self, r: PageRange) -> Vec<(u64, u64)> {
        let r = r.intersect(PageRange::new(0, MAX_PAGES));
        if r.is_empty() {
            return Vec::new();
        }
        let p = self.unit_pages;
        (r.start / p..r.end.div_ceil(p))
            .map(|u| (u, PageRange::new(u * p, (u + 1) * p).intersect(r).len()))
            .collect()
    }

    fn begin(&mut self, r: PageRange) -> u64 {
        let mut new = 0;
        for (unit, pages) in self.touched(r) {
            if pages == self.unit_pages && self.get(unit).0 == Residency::Missing {
                self.set(unit, (Residency::InFlight, true));
                new += self.unit_pages;
            }
        }
        new
    }

    fn complete(&mut self, r: PageRange) {
        for (unit, _) in self.touched(r) {
            if let (Residency::InFlight, unused) = self.get(unit) {
                self.set(unit, (Residency::Present, unused));
            }
        }
    }

    fn fail(&mut self, r: PageRange) -> u64 {
        let mut failed = 0;
        for (unit, _) in self.touched(r) {
            if self.get(unit).0 == Residency::InFlight {
                self.set(unit, (Residency::Missing, false));
                failed += self.unit_pages;
            }
        }
        failed
    }

    fn access(&mut self, r: PageRange) -> Access {
        let mut access = Access::default();
        for (unit, pages) in self.touched(r) {
            let (residency, unused) = self.get(unit);
            match residency {
                Residency::Missing => access.miss_pages += pages,
                Residency::InFlight => access.late_pages += pages,
                Residency::Present => access.hit_pages += pages,
            }
            if unused {
                access.first_use_pages += self.unit_pages;
            }
            if residency != Residency::Missing || pages == self.unit_pages {
                self.set(unit, (Residency::Present, false));
            }
        }
        access
    }

    fn present(&mut self, r: PageRange) {
        for (unit, pages) in self.touched(r) {
            if pages == self.unit_pages {
                let unused = self.get(unit).1;
                self.set(unit, (Residency::Present, unused));
            }
        }
    }

    fn evicted(&mut self, r: PageRange) -> Evicted {
        let mut lost = Evicted::default();
        let Some(first) = self.touched_ends(r) else {
            return lost;
        };
        let gone: Vec<u64> = self
            .units
            .range(first.0..first.1)
            .map(|(unit, _)| *unit)
            .collect();
        for unit in gone {
            let (residency, unused) = self.get(unit);
            lost.present_pages += self.unit_pages * u64::from(residency == Residency::Present);
            lost.unused_pages += self.unit_pages * u64::from(unused);
            self.set(unit, (Residency::Missing, false));
        }
        lost
    }

    fn touched_ends(&self, r: PageRange) -> Option<(u64, u64)> {
        let r = r.intersect(PageRange::new(0, MAX_PAGES));
        (!r.is_empty()).then(|| (r.start / self.unit_pages, r.end.div_ceil(self.unit_pages)))
    }

    fn missing(&self, r: PageRange) -> Vec<PageRange> {
        let mut out: Vec<PageRange> = Vec::new();
        for (unit, _) in self.touched(r) {
            if self.get(unit).0 != Residency::Missing {
                continue;
            }
            let start = unit * self.unit_pages;
            let run = PageRange::new(start, start + self.unit_pages).intersect(r);
            match out.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => out.push(run),
            }
        }
        out
    }

    fn state(&self, page: u64) -> PageState {
        let (residency, unused) = self.get(page / self.unit_pages);
        PageState { residency, unused }
    }
}

/// Lets one event happen to both, and compares what they say.
fn step(
    view: &FileView,
    model: &mut Model,
    op: Op,
    r: PageRange,
    now_us: u64,
) -> Result<(), TestCaseError> {
    match op {
        Op::Begin => prop_assert_eq!(view.begin(r, now_us), model.begin(r)),
        Op::Complete => {
            view.complete(r, now_us);
            model.complete(r);
        }
        Op::Fail => prop_assert_eq!(view.fail(r), model.fail(r)),
        Op::Access => {
            let access = view.access(r, now_us);
            prop_assert_eq!(access, model.access(r));
            let clipped = r.intersect(PageRange::new(0, MAX_PAGES));
            prop_assert_eq!(
                access.hit_pages + access.late_pages + access.miss_pages,
                clipped.len()
            );
        }
        Op::Present => {
            view.present(r, now_us);
            model.present(r);
        }
        Op::Evicted => prop_assert_eq!(view.evicted(r), model.evicted(r)),
        Op::Truncate => {
            let r = PageRange::new(r.start, u64::MAX);
            prop_assert_eq!(view.truncate(r.start), model.evicted(r));
        }
        Op::Missing => {
            let want = model.missing(r);
            for limit in [usize::MAX, 0, 1, 2] {
                let mut got = vec![PageRange::new(7, 9)];
                let upto = view.missing(r, limit, &mut got);
                let cut = &want[..want.len().min(limit)];
                prop_assert_eq!(&got[1..], cut);
                prop_assert_eq!(got[0], PageRange::new(7, 9));
                if cut.len() < want.len() {
                    prop_assert_eq!(upto, cut.last().map_or(r.start, |last| last.end));
                }
            }
            prop_assert_eq!(view.is_cached(r), want.is_empty());
        }
    }
    prop_assert_eq!(view.present_pages(), model.present * model.unit_pages);
    prop_assert_eq!(view.in_flight_pages(), model.in_flight * model.unit_pages);
    prop_assert_eq!(view.unused_pages(), model.unused * model.unit_pages);
    Ok(())
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Begin),
        3 => Just(Op::Complete),
        1 => Just(Op::Fail),
        4 => Just(Op::Access),
        2 => Just(Op::Present),
        2 => Just(Op::Evicted),
        1 => (0..4u8).prop_map(|n| if n == 0 { Op::Truncate } else { Op::Evicted }),
        2 => Just(Op::Missing),
    ]
}

/// Ranges that meet each other, on both sides of node boundaries, near the last page that can exist,
/// empty, inverted, short, word-sized, and longer than a node.
fn range() -> impl Strategy<Value = PageRange> {
    let start = prop_oneof![
        3 => 0..400u64,
        3 => NODE_MAX_PAGES - 300..NODE_MAX_PAGES + 300,
        1 => 2 * NODE_MAX_PAGES - 200..2 * NODE_MAX_PAGES + 64,
        1 => MAX_PAGES - 300..MAX_PAGES + 10,
    ];
    let len = prop_oneof![
        8 => 0..12u64,
        8 => 0..200u64,
        4 => (0..8u64).prop_map(|n| 32 * n),
        4 => 0..1500u64,
        1 => 16000..20000u64,
    ];
    (start, len, 0..40u8).prop_map(|(start, len, shape)| match shape {
        0 => PageRange::new(start, start.saturating_sub(len)),
        1..8 => PageRange::new(start / 32 * 32, start / 32 * 32 + len.div_ceil(32) * 32),
        _ => PageRange::new(start, start + len),
    })
}

fn granularity() -> impl Strategy<Value = Granularity> {
    prop_oneof![Just(Granularity::Page), Just(Granularity::Coarse)]
}

/// Windows that hold every page that [`range`] can produce, with a margin.
fn windows() -> [PageRange; 2] {
    [
        PageRange::new(0, 4 * NODE_MAX_PAGES),
        PageRange::new(MAX_PAGES - 1000, MAX_PAGES),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// SPEC CP5: the tree of nodes, however it grows, merges, splits and shrinks, says what a plain
    /// map of pages (or blocks) says; the structure stays normal after every event.
    #[test]
    fn tree_equals_model(
        granularity in granularity(),
        one_lock in any::<bool>(),
        ops in prop::collection::vec((op(), range()), 1..50),
    ) {
        let mut view = FileView::new(granularity, NO_CAP);
        if one_lock {
            view = view.with_one_lock();
        }
        let mut model = Model::new(granularity);
        for (now_us, (op, r)) in ops.into_iter().enumerate() {
            step(&view, &mut model, op, r, now_us as u64)?;
            prop_assert_eq!(view.check(), Ok(()), "after {:?} {:?}", op, r);
        }
        for window in windows() {
            step(&view, &mut model, Op::Missing, window, 0)?;
            for page in (window.start..window.end).step_by(7) {
                prop_assert_eq!(view.state(page), model.state(page), "page {}", page);
            }
        }
        let _ = view.truncate(0);
        prop_assert_eq!((view.nodes(), view.memory_bytes()), (0, 0));
        prop_assert_eq!(view.take_forgotten(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// SPEC CP5, LP4: what is unused of several views together is kept as their sum, also with a memory cap and when views go.
    #[test]
    fn a_sum_of_views_is_the_naive_one(
        granularity in granularity(),
        capped in any::<bool>(),
        ops in prop::collection::vec((op(), range(), 0usize..6, any::<bool>()), 1..80),
    ) {
        let all = Arc::new(Unused::default());
        let fresh = || {
            let cap = if capped { 0 } else { NO_CAP };
            FileView::new(granularity, cap).among(all.clone())
        };
        let mut views: Vec<FileView> = (0..6).map(|_| fresh()).collect();
        for (now_us, (op, r, i, goes)) in ops.into_iter().enumerate() {
            if goes && now_us % 5 == 0 {
                views[i] = fresh();
            }
            let (view, now_us) = (&views[i], now_us as u64);
            match op {
                Op::Begin => _ = view.begin(r, now_us),
                Op::Complete => view.complete(r, now_us),
                Op::Fail => _ = view.fail(r),
                Op::Access => _ = view.access(r, now_us),
                Op::Present => view.present(r, now_us),
                Op::Evicted => _ = view.evicted(r),
                Op::Truncate => _ = view.truncate(r.start),
                Op::Missing => _ = view.missing(r, 1, &mut Vec::new()),
            }
            let naive: u64 = views.iter().map(FileView::unused_pages).sum();
            prop_assert_eq!(all.pages(), naive, "after {:?} {:?}", op, r);
        }
        drop(views);
        prop_assert_eq!(all.pages(), 0);
    }
}

proptest! {
    // Few but long: it takes some hundred events to fill the smallest cap.
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// SPEC CP5: with a memory cap the tree only ever forgets: what it says is cached is cached in
    /// the model, it stays below the cap, and every prefetched page is used, lost, forgotten or
    /// still unused.
    #[test]
    fn memory_cap_only_forgets(
        granularity in granularity(),
        ops in prop::collection::vec((op(), 0..200u64, 0..3 * NODE_MAX_PAGES, 1..400u64), 50..600),
    ) {
        let cap = 16 * 1024;
        let view = FileView::new(granularity, cap);
        let mut model = Model::new(granularity);
        let (mut begun, mut ended) = (0, 0);
        for (now_us, (op, spread, start, len)) in ops.into_iter().enumerate() {
            let now_us = now_us as u64;
            let start = start + spread * 5 * NODE_MAX_PAGES;
            let r = PageRange::new(start / 32 * 32, start + len);
            match op {
                Op::Begin | Op::Truncate | Op::Missing => {
                    begun += view.begin(r, now_us);
                    model.begin(r);
                }
                Op::Complete => {
                    view.complete(r, now_us);
                    model.complete(r);
                }
                Op::Fail => {
                    ended += view.fail(r);
                    model.fail(r);
                }
                Op::Access => {
                    ended += view.access(r, now_us).first_use_pages;
                    let _ = model.access(r);
                }
                Op::Present => {
                    view.present(r, now_us);
                    model.present(r);
                }
                Op::Evicted => {
                    ended += view.evicted(r).unused_pages;
                    model.evicted(r);
                }
            }
            ended += view.take_forgotten();
            prop_assert!(view.memory_bytes() <= cap, "{} bytes", view.memory_bytes());
            prop_assert_eq!(begun, ended + view.unused_pages());
            prop_assert_eq!(view.check(), Ok(()));
        }
        let mut known = 0;
        for unit in model.units.keys() {
            let page = unit * model.unit_pages;
            let (got, want) = (view.state(page), model.state(page));
            known += u64::from(got.residency != Residency::Missing) * model.unit_pages;
            let forgot = got.residency == Residency::Missing;
            let re_begun = got.residency == Residency::InFlight;
            prop_assert!(forgot || re_begun || got.residency == want.residency);
        }
        // Nothing is known that the model does not know.
        prop_assert_eq!(known, view.present_pages() + view.in_flight_pages());
    }

    /// SPEC CP5: a range of pages holds what half-open ranges and rounding outward promise.
    #[test]
    fn page_ranges(offset in any::<u64>(), len in any::<u64>(), small in 0..100_000u64) {
        for (offset, len) in [(offset, len), (offset, small), (small, len), (small, offset % 9000)] {
            let r = PageRange::from_bytes(offset, len);
            prop_assert_eq!(r.is_empty(), len == 0);
            prop_assert_eq!(r.len(), r.end - r.start);
            prop_assert!(r.end <= MAX_PAGES);
            if len > 0 {
                let last = offset.saturating_add(len - 1);
                prop_assert_eq!(r.start, offset / 4096);
                // The last byte of the offset space itself has no one past it.
                let end = (u128::from(last) + 1).div_ceil(4096) as u64;
                prop_assert!(r.end == end || last == u64::MAX && r.end >= end - 1);
            }
            let other = PageRange::new(len, offset);
            let both = r.intersect(other);
            prop_assert!(both.start <= both.end);
            prop_assert!(both.is_empty() || both.start >= other.start && both.end <= other.end);
        }
    }
}

/// SPEC CP5: node life by example: grow both ways, merge, stay apart across a segment boundary, split,
/// shrink, disappear.
#[test]
fn nodes_grow_merge_split_shrink() {
    let view = FileView::new(Granularity::Page, NO_CAP);
    let node_ranges = || {
        view.oldest_ranges(usize::MAX)
            .into_iter()
            .map(|(_, r)| r)
            .collect::<Vec<_>>()
    };
    view.present(PageRange::new(1000, 1100), 1);
    view.present(PageRange::new(1100, 1200), 1);
    view.present(PageRange::new(900, 1000), 1);
    assert_eq!(node_ranges(), [PageRange::new(900, 1200)]);
    view.present(PageRange::new(2000, 2100), 1);
    assert_eq!(view.nodes(), 2);
    view.present(PageRange::new(1200, 2000), 1);
    assert_eq!(node_ranges(), [PageRange::new(900, 2100)]);
    // A short gap stays inside, a long one splits, loose ends are trimmed.
    let _ = view.evicted(PageRange::new(1500, 1563));
    assert_eq!(view.nodes(), 1);
    let lost = view.evicted(PageRange::new(1563, 1564));
    assert_eq!(
        lost,
        Evicted {
            present_pages: 1,
            unused_pages: 0
        }
    );
    assert_eq!(
        node_ranges(),
        [PageRange::new(900, 1500), PageRange::new(1564, 2100)]
    );
    let _ = view.evicted(PageRange::new(900, 910));
    let _ = view.truncate(2090);
    assert_eq!(
        node_ranges(),
        [PageRange::new(910, 1500), PageRange::new(1564, 2090)]
    );
    view.present(PageRange::new(NODE_MAX_PAGES - 10, NODE_MAX_PAGES + 10), 2);
    assert_eq!(view.nodes(), 4, "a node never crosses a segment boundary");
    let _ = view.truncate(0);
    assert_eq!(
        (view.nodes(), view.memory_bytes(), view.present_pages()),
        (0, 0, 0)
    );
    view.check().unwrap();
}

/// SPEC CP5: the oldest ranges come first, and touching renews them.
#[test]
fn oldest_ranges_are_in_order_of_touch() {
    let view = FileView::new(Granularity::Page, NO_CAP);
    for n in 0..10 {
        view.present(PageRange::new(n * 1000, n * 1000 + 4), 100 - n);
    }
    let _ = view.access(PageRange::new(9001, 9002), 500);
    let oldest = view.oldest_ranges(3);
    assert_eq!(
        oldest,
        [
            (92, PageRange::new(8000, 8004)),
            (93, PageRange::new(7000, 7004)),
            (94, PageRange::new(6000, 6004))
        ]
    );
    assert_eq!(
        view.oldest_ranges(99).last(),
        Some(&(500, PageRange::new(9000, 9004)))
    );
    assert!(view.oldest_ranges(0).is_empty());
    // A merged node is as fresh as the freshest of its parts.
    view.present(PageRange::new(20_000, 20_010), 600);
    view.present(PageRange::new(20_200, 20_210), 700);
    view.present(PageRange::new(20_010, 20_200), 0);
    assert_eq!(
        view.oldest_ranges(99).last(),
        Some(&(700, PageRange::new(20_000, 20_210)))
    );
}

/// SPEC CP5: the least recently touched nodes go first when memory runs out.
#[test]
fn memory_cap_drops_the_oldest() {
    let view = FileView::new(Granularity::Page, 0);
    for n in 0..10_000u64 {
        assert_eq!(view.begin(PageRange::new(n * 1000, n * 1000 + 4), n), 4);
        // The very first range is touched all the time.
        let _ = view.access(PageRange::new(0, 4), n);
        assert!(view.memory_bytes() <= 16 * 1024);
    }
    assert_eq!(view.state(0).residency, Residency::Present);
    assert_eq!(view.state(1000).residency, Residency::Missing);
    assert_eq!(view.state(9_999_000).residency, Residency::InFlight);
    assert_eq!(view.take_forgotten() + view.unused_pages(), 4 * 9_999);
    assert_eq!(view.take_forgotten(), 0);
    view.check().unwrap();
}

/// SPEC CP5: a file read page by page for 1 GiB costs one small node per 64 MiB, forward and backward.
#[test]
fn sequential_gibibyte_stays_small() {
    const PAGES: u64 = (1 << 30) / 4096;
    for backward in [false, true] {
        let view = FileView::new(Granularity::Page, NO_CAP);
        let mut most = 0;
        for n in 0..PAGES {
            let page = if backward { PAGES - 1 - n } else { n };
            let access = view.access(PageRange::new(page, page + 1), n);
            assert_eq!(access.miss_pages, 1);
            most = most.max(view.memory_bytes());
        }
        assert_eq!(view.nodes() as u64, PAGES / NODE_MAX_PAGES);
        assert_eq!(view.present_pages(), PAGES);
        assert!(most < 4096, "{most} bytes");
        assert!(view.is_cached(PageRange::new(0, PAGES)));
        view.check().unwrap();
    }
    // With a prefetch window of 512 pages ahead of the reader, bitmaps come and go.
    let view = FileView::new(Granularity::Page, NO_CAP);
    for n in 0..PAGES / 4 {
        if n % 128 == 0 {
            view.begin(PageRange::new(n * 4, n * 4 + 512), n);
            view.complete(PageRange::new(n * 4, n * 4 + 512), n);
        }
        let access = view.access(PageRange::new(n * 4, n * 4 + 4), n);
        assert_eq!((access.hit_pages, access.first_use_pages), (4, 4));
        assert!(view.memory_bytes() < 16 * 1024);
    }
    assert_eq!(view.nodes() as u64, PAGES / NODE_MAX_PAGES);
    assert!(view.memory_bytes() < 4096);
    view.check().unwrap();
}

/// SPEC CP5: one bit per 128 KiB takes a fraction of the memory of one bit per page.
#[test]
fn coarse_takes_less_memory() {
    let memory = |granularity| {
        let view = FileView::new(granularity, NO_CAP);
        for n in 0..1000 {
            view.begin(PageRange::new(n * 64, n * 64 + 32), 0);
        }
        assert_eq!(view.in_flight_pages(), 32_000);
        view.memory_bytes()
    };
    let (page, coarse) = (memory(Granularity::Page), memory(Granularity::Coarse));
    assert!(coarse * 10 < page, "{coarse} of {page} bytes");
}

/// SPEC CP5: no range panics, takes long or takes much memory: empty, inverted, and the whole of the
/// 64-bit space, for each call, from an empty and from a populated view.
#[test]
fn absurd_ranges_are_bounded() {
    for granularity in [Granularity::Page, Granularity::Coarse] {
        let cap = 256 * 1024;
        let view = FileView::new(granularity, cap);
        let edges = [
            0,
            1,
            31,
            33,
            NODE_MAX_PAGES,
            MAX_PAGES - 1,
            MAX_PAGES,
            MAX_PAGES + 1,
            u64::MAX,
        ];
        for round in 0..2 {
            for start in edges {
                for end in edges {
                    let r = PageRange::new(start, end);
                    let clipped = r.intersect(PageRange::new(0, MAX_PAGES)).len();
                    assert!(view.begin(r, 1) <= clipped);
                    view.complete(PageRange::new(start, start.saturating_add(40)), 2);
                    let access = view.access(r, 3);
                    assert_eq!(
                        access.hit_pages + access.late_pages + access.miss_pages,
                        clipped
                    );
                    view.present(r, 4);
                    let mut out = Vec::new();
                    view.missing(r, 16, &mut out);
                    assert!(out.len() <= 16);
                    assert_eq!(view.is_cached(r), out.is_empty());
                    view.state(start);
                    if round == 1 {
                        view.fail(r);
                        let _ = view.evicted(r);
                        let _ = view.truncate(start);
                    }
                    assert!(view.memory_bytes() <= cap);
                }
            }
            view.check().unwrap();
        }
    }
}

/// A small generator, so that threads need no shared state: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn op(&mut self) -> Op {
        use Op::{Access, Begin, Complete, Evicted, Fail, Missing, Present};
        [
            Begin, Begin, Complete, Access, Access, Present, Evicted, Fail, Missing,
        ][self.below(9) as usize]
    }
}

/// SPEC CP5: threads on disjoint ranges of one file each see exactly their own model, although
/// their ranges are neighbours within nodes which others grow, merge and split at the same time.
#[test]
fn disjoint_threads_see_their_own_model() {
    const THREADS: u64 = 4;
    for granularity in [Granularity::Page, Granularity::Coarse] {
        // Wide stripes, and narrow ones, many of which share a node and meet within one word.
        for stripe in [2 * NODE_MAX_PAGES - 320, 96] {
            let view = FileView::new(granularity, NO_CAP);
            let barrier = Barrier::new(THREADS as usize);
            let run = |thread: u64| {
                let mut random = Random(thread);
                let mut model = Model::new(granularity);
                barrier.wait();
                for now_us in 0..3000 {
                    let start = random.below(stripe);
                    let longest = if random.below(50) == 0 { stripe } else { 300 };
                    let end = stripe.min(start + random.below(longest));
                    let base = thread * stripe;
                    let r = PageRange::new(base + start, base + end);
                    let op = random.op();
                    let wrong = |what: &str| panic!("thread {thread}: {what} of {op:?} {r:?}");
                    match op {
                        Op::Begin => (view.begin(r, now_us) == model.begin(r)) || wrong("count"),
                        Op::Complete => {
                            view.complete(r, now_us);
                            model.complete(r);
                            true
                        }
                        Op::Fail => (view.fail(r) == model.fail(r)) || wrong("count"),
                        Op::Access => {
                            (view.access(r, now_us) == model.access(r)) || wrong("counts")
                        }
                        Op::Present => {
                            view.present(r, now_us);
                            model.present(r);
                            true
                        }
                        Op::Evicted | Op::Truncate => {
                            (view.evicted(r) == model.evicted(r)) || wrong("counts")
                        }
                        Op::Missing => {
                            let mut got = Vec::new();
                            view.missing(r, usize::MAX, &mut got);
                            (got == model.missing(r)) || wrong("ranges")
                        }
                    };
                }
                model
            };
            let models: Vec<Model> = thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|n| {
                        scope.spawn({
                            let run = &run;
                            move || run(n)
                        })
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            view.check().unwrap();
            let sum = |count: fn(&Model) -> u64| {
                models
                    .iter()
                    .map(|model| count(model) * model.unit_pages)
                    .sum::<u64>()
            };
            assert_eq!(view.present_pages(), sum(|model| model.present));
            assert_eq!(view.in_flight_pages(), sum(|model| model.in_flight));
            assert_eq!(view.unused_pages(), sum(|model| model.unused));
            for (thread, model) in models.iter().enumerate() {
                for page in thread as u64 * stripe..(thread as u64 + 1) * stripe {
                    assert_eq!(view.state(page), model.state(page), "page {page}");
                }
            }
        }
    }
}

/// SPEC CP5: threads on the same ranges, with the memory cap dropping nodes under them, leave a
/// sound tree (totals equal a recount, no page both present and in flight: `check`), and no
/// prefetched page is counted twice or lost.
#[test]
fn overlapping_threads_keep_the_invariants() {
    for (granularity, cap) in [
        (Granularity::Page, NO_CAP),
        (Granularity::Page, 20_000),
        (Granularity::Coarse, 20_000),
    ] {
        let view = FileView::new(granularity, cap);
        let barrier = Barrier::new(4);
        let run = |thread: u64| {
            let mut random = Random(thread);
            let (mut begun, mut ended) = (0, 0);
            barrier.wait();
            for now_us in 0..8000 {
                let start = random.below(4) * NODE_MAX_PAGES + random.below(3000);
                let longest = if random.below(100) == 0 { 40_000 } else { 400 };
                let r = PageRange::new(start, start + random.below(longest));
                match random.op() {
                    Op::Begin => begun += view.begin(r, now_us),
                    Op::Complete => view.complete(r, now_us),
                    Op::Fail => ended += view.fail(r),
                    Op::Access => {
                        let access = view.access(r, now_us);
                        ended += access.first_use_pages;
                        assert_eq!(
                            access.hit_pages + access.late_pages + access.miss_pages,
                            r.len()
                        );
                    }
                    Op::Present => view.present(r, now_us),
                    Op::Evicted => ended += view.evicted(r).unused_pages,
                    Op::Truncate => ended += view.truncate(r.start).unused_pages,
                    Op::Missing => {
                        let mut out = Vec::new();
                        view.missing(r, 100, &mut out);
                        assert!(out.windows(2).all(|pair| pair[0].end < pair[1].start));
                        let inside = |m: &PageRange| !m.is_empty() && m.intersect(r) == *m;
                        assert!(out.iter().all(inside));
                    }
                }
                assert!(view.unused_pages() < 1 << 40, "a total went below zero");
            }
            (begun, ended)
        };
        let (begun, ended) = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|n| {
                    scope.spawn({
                        let run = &run;
                        move || run(n)
                    })
                })
                .collect();
            threads.into_iter().fold((0, 0), |(begun, ended), thread| {
                let (more_begun, more_ended) = thread.join().unwrap();
                (begun + more_begun, ended + more_ended)
            })
        });
        view.check().unwrap();
        assert!(view.memory_bytes() <= cap);
        assert_eq!(begun, ended + view.take_forgotten() + view.unused_pages());
    }
}
