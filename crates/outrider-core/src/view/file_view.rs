//! The range tree of one file: the skeleton, its locks, its totals and its memory cap.
//!
//! What is true of a page never depends on how pages are grouped into nodes. That is what keeps the
//! locking simple: events happen under the skeleton's read lock, and restructuring comes afterwards,
//! under the write lock, from whatever is there by then. Between the two, a node is merely larger than
//! it has to be.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::bitmap::{Change, Tally, Word};
use super::node::{Body, GAP_UNITS, NODE_BYTES, Node};
use super::{
    Access, Count, Evicted, Granularity, MAX_PAGES, NODE_MAX_PAGES, PageRange, PageState, Residency,
};

/// The smallest memory cap, in bytes: two full nodes with their bitmaps, since a reader and the
/// prefetch ahead of it may stand in different segments.
const MIN_MAX_BYTES: usize = 16 * 1024;

/// By first unit. Boxed, so that a node stays on its cache line while the map moves its entries.
type Skeleton = BTreeMap<u64, Box<Node>>;

/// What is believed to be in the page cache of one file, shared by all its descriptors and threads.
///
/// All methods take `&self` and may be called from any thread; none panics on any range. Ranges are
/// half-open, in 4096-byte pages. `now_us` is the caller's clock in microseconds; only its order counts.
/// See the [module](super) for the structure and its bounds.
#[derive(Debug)]
pub struct FileView {
    /// Pages per unit, a unit being what one bit stands for.
    unit_pages: u64,
    /// Units per segment: the widest node.
    segment_units: u64,
    max_bytes: usize,
    /// Order of locks: this one, then one node at a time.
    ///
    /// The units between a node and the next in its segment belong to the node on the left: with this
    /// lock held for reading, only who holds that node's lock may grow into them.
    skeleton: RwLock<Skeleton>,
    totals: Totals,
    /// Held by whoever looks or changes anything, where there is to be one lock for all.
    one_lock: Option<Mutex<()>>,
    /// What this view is one of, if that is counted.
    all: Option<Arc<Unused>>,
}

/// What was prefetched and not used of several files together, so that nobody has to go through them all.
#[derive(Debug, Default)]
pub struct Unused(AtomicU64);

impl Unused {
    /// Pages.
    pub fn pages(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sums over all nodes, in units and bytes. Written with the lock held of the node that changed, so
/// that no one ever sees a sum that lacks an addition but not its subtraction.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Totals {
    present: AtomicU64,
    in_flight: AtomicU64,
    unused: AtomicU64,
    bytes: AtomicUsize,
    forgotten: AtomicU64,
}

/// What some nodes contribute to the totals.
#[derive(Clone, Copy, Default)]
struct Share {
    present: u64,
    in_flight: u64,
    unused: u64,
    bytes: usize,
}

impl Share {
    fn of(body: &Body) -> Share {
        Share {
            present: body.present(),
            in_flight: body.in_flight(),
            unused: body.unused(),
            bytes: body.memory_bytes(),
        }
    }

    fn plus(self, body: &Body) -> Share {
        let more = Share::of(body);
        Share {
            present: self.present + more.present,
            in_flight: self.in_flight + more.in_flight,
            unused: self.unused + more.unused,
            bytes: self.bytes + more.bytes,
        }
    }
}

impl FileView {
    /// Replaces one contribution by another, here and where several are counted.
    fn replace(&self, before: Share, after: Share) {
        self.totals.replace(before, after);
        if before.unused != after.unused
            && let Some(all) = &self.all
        {
            let more = after.unused.wrapping_sub(before.unused);
            let more = more.wrapping_mul(self.unit_pages);
            all.0.fetch_add(more, Ordering::Relaxed);
        }
    }
}

impl Drop for FileView {
    fn drop(&mut self) {
        if let Some(all) = &self.all {
            all.0.fetch_sub(self.unused_pages(), Ordering::Relaxed);
        }
    }
}

impl Totals {
    /// Replaces one contribution by another. Counters that stay the same are not written: reads that
    /// hit would otherwise fight over this cache line.
    fn replace(&self, before: Share, after: Share) {
        let shift = |total: &AtomicU64, before: u64, after: u64| {
            if before != after {
                total.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        shift(&self.present, before.present, after.present);
        shift(&self.in_flight, before.in_flight, after.in_flight);
        shift(&self.unused, before.unused, after.unused);
        if before.bytes != after.bytes {
            self.bytes
                .fetch_add(after.bytes.wrapping_sub(before.bytes), Ordering::Relaxed);
        }
    }
}

/// A range of pages as units: the first and last unit may be covered in part (coarse granularity
/// only), those between are covered wholly.
struct Cut {
    /// None or one unit, and how many of its pages are meant.
    head: Range<u64>,
    head_pages: u64,
    whole: Range<u64>,
    /// None or one unit, and how many of its pages are meant.
    tail: Range<u64>,
    tail_pages: u64,
}

impl FileView {
    /// A view of a file of which nothing is known.
    ///
    /// `max_bytes` caps the memory of nodes and bitmaps ([`memory_bytes`](Self::memory_bytes)); less
    /// than 16 KiB counts as 16 KiB. Above the cap, the least recently touched nodes are dropped.
    pub fn new(granularity: Granularity, max_bytes: usize) -> Self {
        let unit_pages = granularity.pages_per_unit();
        Self {
            unit_pages,
            segment_units: NODE_MAX_PAGES / unit_pages,
            max_bytes: max_bytes.max(MIN_MAX_BYTES),
            skeleton: RwLock::default(),
            totals: Totals::default(),
            one_lock: None,
            all: None,
        }
    }

    /// The same as one of several whose unused pages are counted together.
    pub fn among(mut self, all: Arc<Unused>) -> Self {
        self.all = Some(all);
        self
    }

    /// The same with one lock a file, as a bitmap without a range tree has (Table 5): for comparison.
    pub fn with_one_lock(mut self) -> Self {
        self.one_lock = Some(Mutex::default());
        self
    }

    fn alone(&self) -> Option<MutexGuard<'_, ()>> {
        let lock = self.one_lock.as_ref()?;
        Some(lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends to `out` the sub-ranges of `range` that are neither present nor in flight: ascending,
    /// disjoint, not adjacent, at most `limit` of them.
    ///
    /// Returns the page up to which `range` was examined: its end, or the end of the last sub-range
    /// where `limit` cut the answer short. With coarse granularity the first and last sub-range are cut
    /// to `range`, and so may begin or end within a block.
    pub fn missing(&self, range: PageRange, limit: usize, out: &mut Vec<PageRange>) -> u64 {
        let _alone = self.alone();
        let Some(range) = clip(range) else {
            return range.end;
        };
        let mut found = 0;
        let mut last: Option<PageRange> = None;
        let complete = self.missing_units(&self.touched(range), |run| {
            let run = self.pages(&run).intersect(range);
            match &mut last {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => {
                    if found == limit {
                        return false;
                    }
                    found += 1;
                    out.extend(last.replace(run));
                }
            }
            true
        });
        out.extend(last);
        match (complete, last) {
            (true, _) => range.end,
            (false, Some(last)) => last.end,
            (false, None) => range.start,
        }
    }

    /// A prefetch of `range` was issued: its missing pages are in flight and unused from now on.
    /// Returns how many pages that were.
    pub fn begin(&self, range: PageRange, now_us: u64) -> u64 {
        let _alone = self.alone();
        let Some(range) = clip(range) else { return 0 };
        let tally = self.mark(self.cut(range).whole, Change::Begin, now_us);
        (tally.in_flight - tally.was_in_flight) * self.unit_pages
    }

    /// The prefetch of `range` arrived: its pages in flight are present. Others stay as they are, and
    /// so does whether they are unused.
    pub fn complete(&self, range: PageRange, now_us: u64) {
        let _alone = self.alone();
        if let Some(range) = clip(range) {
            self.visit(self.touched(range), Change::Complete, Some(now_us));
        }
    }

    /// The prefetch of `range` failed: its pages in flight are missing. Returns how many pages that were.
    pub fn fail(&self, range: PageRange) -> u64 {
        let _alone = self.alone();
        let Some(range) = clip(range) else { return 0 };
        let tally = self.visit(self.touched(range), Change::Fail, None);
        (tally.was_in_flight - tally.in_flight) * self.unit_pages
    }

    /// The program read `range`. Says what it found; afterwards all of it is present and none unused
    /// (blocks missing before and read in part excepted, see [`Granularity::Coarse`]).
    pub fn access(&self, range: PageRange, now_us: u64) -> Access {
        let _alone = self.alone();
        let Some(range) = clip(range) else {
            return Access::default();
        };
        let cut = self.cut(range);
        let whole = self.mark(cut.whole, Change::Access, now_us);
        let mut access = Access {
            hit_pages: whole.was_present * self.unit_pages,
            late_pages: whole.was_in_flight * self.unit_pages,
            miss_pages: 0,
            first_use_pages: whole.was_unused * self.unit_pages,
        };
        for (unit, pages) in [(cut.head, cut.head_pages), (cut.tail, cut.tail_pages)] {
            if !unit.is_empty() {
                let part = self.visit(unit, Change::AccessPart, Some(now_us));
                access.hit_pages += part.was_present * pages;
                access.late_pages += part.was_in_flight * pages;
                access.first_use_pages += part.was_unused * self.unit_pages;
            }
        }
        access.miss_pages = range.len() - access.hit_pages - access.late_pages;
        access
    }

    /// All of `range` was seen in the page cache (cachestat, mincore): it is present. What was unused
    /// stays so, and nothing becomes unused.
    pub fn present(&self, range: PageRange, now_us: u64) {
        let _alone = self.alone();
        if let Some(range) = clip(range) {
            self.mark(self.cut(range).whole, Change::Present, now_us);
        }
    }

    /// `range` left the page cache, or was told to: all of it is missing. Returns what was lost.
    pub fn evicted(&self, range: PageRange) -> Evicted {
        let _alone = self.alone();
        let Some(range) = clip(range) else {
            return Evicted::default();
        };
        let tally = self.visit(self.touched(range), Change::Evict, None);
        Evicted {
            present_pages: tally.was_present * self.unit_pages,
            unused_pages: tally.was_unused * self.unit_pages,
        }
    }

    /// The file now ends before `first_page`: everything from there on is missing. Returns what was
    /// lost.
    pub fn truncate(&self, first_page: u64) -> Evicted {
        self.evicted(PageRange::new(first_page, MAX_PAGES))
    }

    /// Pages that are in flight or present, prefetched by us, and not read by the program yet.
    pub fn unused_pages(&self) -> u64 {
        self.totals.unused.load(Ordering::Relaxed) * self.unit_pages
    }

    /// Pages believed to be in the page cache.
    pub fn present_pages(&self) -> u64 {
        self.totals.present.load(Ordering::Relaxed) * self.unit_pages
    }

    /// Pages of which a prefetch was issued and is not known to have ended.
    pub fn in_flight_pages(&self) -> u64 {
        self.totals.in_flight.load(Ordering::Relaxed) * self.unit_pages
    }

    /// Unused pages dropped by the memory cap since the last call. They were neither used nor known
    /// to be wasted: the account calls them forgotten.
    pub fn take_forgotten(&self) -> u64 {
        self.totals.forgotten.swap(0, Ordering::Relaxed) * self.unit_pages
    }

    /// Nodes in the tree.
    pub fn nodes(&self) -> usize {
        self.read().len()
    }

    /// Memory of all nodes and bitmaps, in bytes, with the allocator's overhead estimated.
    pub fn memory_bytes(&self) -> usize {
        self.totals.bytes.load(Ordering::Relaxed)
    }

    /// What is known about one page.
    pub fn state(&self, page: u64) -> PageState {
        let unit = page / self.unit_pages;
        let skeleton = self.read();
        let word = skeleton
            .range(..=unit)
            .next_back()
            .map_or_else(Word::default, |(_, node)| node.lock().unit(unit));
        let residency = match (word.present, word.in_flight) {
            (0, 0) => Residency::Missing,
            (0, _) => Residency::InFlight,
            _ => Residency::Present,
        };
        PageState {
            residency,
            unused: word.unused != 0,
        }
    }

    /// What is known about the pages of `range`, in numbers. With coarse granularity a block that lies in it in part counts
    /// as a whole.
    pub fn count(&self, range: PageRange) -> Count {
        let _alone = self.alone();
        let Some(range) = clip(range) else {
            return Count::default();
        };
        let units = self.touched(range);
        let skeleton = self.read();
        let mut sum = Tally::default();
        for node in overlapping(&skeleton, &units) {
            sum += node.lock().count(&units);
        }
        Count {
            present_pages: sum.present * self.unit_pages,
            in_flight_pages: sum.in_flight * self.unit_pages,
            unused_pages: sum.unused * self.unit_pages,
        }
    }

    /// Whether every page of `range` is present or in flight: a prefetch of it has nothing to do.
    pub fn is_cached(&self, range: PageRange) -> bool {
        let _alone = self.alone();
        clip(range).is_none_or(|range| self.missing_units(&self.touched(range), |_| false))
    }

    /// The ranges of the `max` least recently touched nodes, least recently first, each with the
    /// `now_us` of its last touch. A node's range may contain missing pages. Walks all nodes: meant for
    /// reclaim, not for the path of a read.
    pub fn oldest_ranges(&self, max: usize) -> Vec<(u64, PageRange)> {
        let _alone = self.alone();
        if max == 0 {
            return Vec::new();
        }
        let mut ranges: Vec<_> = {
            let skeleton = self.read();
            let bodies = skeleton.values().map(|node| node.lock());
            bodies
                .map(|body| (body.touched_us(), self.pages(&(body.start()..body.end()))))
                .collect()
        };
        let order = |(touched_us, range): &(u64, PageRange)| (*touched_us, range.start);
        if max < ranges.len() {
            ranges.select_nth_unstable_by_key(max, order);
            ranges.truncate(max);
        }
        ranges.sort_unstable_by_key(order);
        ranges
    }

    /// Recounts everything and compares it with the totals; for tests. Nobody else may be calling.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        let mut sum = Share::default();
        let mut previous: Option<(u64, u64)> = None;
        for (start, node) in self.write().iter_mut() {
            let body = node.get_mut();
            body.check()?;
            sum = sum.plus(body);
            let segment = start / self.segment_units;
            if body.start() != *start || (body.end() - 1) / self.segment_units != segment {
                return Err(format!(
                    "node {start} spans {}..{}",
                    body.start(),
                    body.end()
                ));
            }
            if let Some((before, end)) = previous {
                let near = before == segment && start.saturating_sub(end) < GAP_UNITS;
                if near || end > *start {
                    return Err(format!("nodes ..{end} and {start}.. should be one"));
                }
            }
            if body.wants_tidying(&(body.start()..body.end())) {
                return Err(format!(
                    "node {start}..{} has a gap or a loose end",
                    body.end()
                ));
            }
            previous = Some((segment, body.end()));
        }
        let totals = &self.totals;
        let counted = [sum.present, sum.in_flight, sum.unused, sum.bytes as u64];
        let kept = [
            totals.present.load(Ordering::Relaxed),
            totals.in_flight.load(Ordering::Relaxed),
            totals.unused.load(Ordering::Relaxed),
            totals.bytes.load(Ordering::Relaxed) as u64,
        ];
        if counted != kept {
            return Err(format!("counted {counted:?}, totals {kept:?}"));
        }
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, Skeleton> {
        self.skeleton.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Skeleton> {
        self.skeleton
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// All units that `range` (not empty) touches.
    fn touched(&self, range: PageRange) -> Range<u64> {
        range.start / self.unit_pages..range.end.div_ceil(self.unit_pages)
    }

    fn pages(&self, units: &Range<u64>) -> PageRange {
        PageRange::new(units.start * self.unit_pages, units.end * self.unit_pages)
    }

    fn cut(&self, range: PageRange) -> Cut {
        let touched = self.touched(range);
        let whole = range.start.div_ceil(self.unit_pages)..range.end / self.unit_pages;
        if whole.start > whole.end {
            // Begins and ends within one block.
            let (head_pages, nothing) = (range.len(), touched.end..touched.end);
            return Cut {
                head: touched,
                head_pages,
                whole: nothing.clone(),
                tail: nothing,
                tail_pages: 0,
            };
        }
        Cut {
            head_pages: whole.start * self.unit_pages - range.start,
            tail_pages: range.end - whole.end * self.unit_pages,
            head: touched.start..whole.start,
            tail: whole.end..touched.end,
            whole,
        }
    }

    fn segment_end(&self, unit: u64) -> u64 {
        (unit / self.segment_units + 1) * self.segment_units
    }

    /// Calls `found` with the missing runs in `units`, in order (adjacent ones may come separately),
    /// until it returns false. Returns false if it did.
    fn missing_units(&self, units: &Range<u64>, mut found: impl FnMut(Range<u64>) -> bool) -> bool {
        let skeleton = self.read();
        let mut at = units.start;
        for node in overlapping(&skeleton, units) {
            let body = node.lock();
            let own = body.clip(units);
            if own.is_empty() {
                continue;
            }
            if at < own.start && !found(at..own.start) {
                return false;
            }
            if !body.missing_runs(&own, &mut found) {
                return false;
            }
            at = own.end;
        }
        at >= units.end || found(at..units.end)
    }

    /// Lets an event happen to those of `units` that lie in nodes; no node is created or grown.
    fn visit(&self, units: Range<u64>, change: Change, now_us: Option<u64>) -> Tally {
        let mut tally = Tally::default();
        let mut untidy = Vec::new();
        {
            let skeleton = self.read();
            for node in overlapping(&skeleton, &units) {
                let mut body = node.lock();
                let own = body.clip(&units);
                if own.is_empty() {
                    continue;
                }
                let done = self.apply(&mut body, &own, change, now_us);
                if done.lost() && body.wants_tidying(&own) {
                    untidy.push(body.start());
                }
                tally += done;
            }
        }
        self.tidy(&untidy);
        self.keep_to_cap();
        tally
    }

    /// Lets an event happen to all of `units`, creating, growing and merging nodes as needed.
    fn mark(&self, units: Range<u64>, change: Change, now_us: u64) -> Tally {
        let mut tally = Tally::default();
        let mut at = units.start;
        // More nodes than this would push each other out; the rest of the range stays missing.
        let mut budget = self.max_bytes / 4 * 3 / NODE_BYTES;
        while at < units.end {
            at = self.mark_in_place(at..units.end, change, now_us, &mut tally);
            if at >= units.end {
                break;
            }
            if budget == 0 {
                tally += self.visit(at..units.end, change, Some(now_us));
                break;
            }
            budget -= 1;
            let piece = at..units.end.min(self.segment_end(at));
            at = piece.end;
            let mut skeleton = self.write();
            tally += self.restructure(&mut skeleton, piece, change, now_us);
            self.drop_oldest(&mut skeleton);
        }
        self.keep_to_cap();
        tally
    }

    /// The fast path of [`mark`](Self::mark): goes on, segment by segment, while a node is there or
    /// can grow to the right without meeting the next. Returns where it stopped.
    fn mark_in_place(
        &self,
        units: Range<u64>,
        change: Change,
        now_us: u64,
        tally: &mut Tally,
    ) -> u64 {
        let skeleton = self.read();
        let mut at = units.start;
        while at < units.end {
            let segment_end = self.segment_end(at);
            let piece = at..units.end.min(segment_end);
            let Some((start, node)) = skeleton.range(..=at).next_back() else {
                break;
            };
            if start / self.segment_units != at / self.segment_units {
                break;
            }
            let mut body = node.lock();
            if piece.end > body.end() {
                if piece.start.saturating_sub(body.end()) >= GAP_UNITS {
                    break;
                }
                let next = skeleton.range(at + 1..segment_end).next();
                if next.is_some_and(|(next, _)| next.saturating_sub(piece.end) < GAP_UNITS) {
                    break;
                }
            }
            *tally += self.apply(&mut body, &piece, change, Some(now_us));
            at = piece.end;
        }
        at
    }

    /// The slow path of [`mark`](Self::mark), for `units` within one segment: all nodes in them or
    /// closer than a gap become one, or a new one is made.
    fn restructure(
        &self,
        skeleton: &mut Skeleton,
        units: Range<u64>,
        change: Change,
        now_us: u64,
    ) -> Tally {
        let segment_end = self.segment_end(units.start);
        let segment_start = segment_end - self.segment_units;
        let reach = segment_end.min(units.end + GAP_UNITS);
        let mut keys = Vec::new();
        for (start, node) in skeleton.range_mut(segment_start..reach).rev() {
            if units.start.saturating_sub(node.get_mut().end()) >= GAP_UNITS {
                break;
            }
            keys.push(*start);
        }
        let mut before = Share::default();
        let mut joined = Body::empty_at(units.start);
        for key in keys.iter().rev() {
            if let Some(node) = skeleton.remove(key) {
                let body = node.into_body();
                before = before.plus(&body);
                joined.absorb(body, segment_end);
            }
        }
        let tally = joined.apply(&units, change, segment_end);
        joined.touch(now_us);
        self.replace(before, Share::of(&joined));
        skeleton.insert(joined.start(), Box::new(Node::new(joined)));
        tally
    }

    /// Lets an event happen to `units` in `body`, whose lock is held, and keeps the totals.
    fn apply(
        &self,
        body: &mut Body,
        units: &Range<u64>,
        change: Change,
        now_us: Option<u64>,
    ) -> Tally {
        let before = Share::of(body);
        let tally = body.apply(units, change, self.segment_end(units.start));
        if let Some(now_us) = now_us {
            body.touch(now_us);
        }
        self.replace(before, Share::of(body));
        tally
    }

    /// Splits, shrinks or removes the nodes that hold these units, if they still want it. A node may
    /// have changed hands since it was noted down, so each is looked up by place, not by key.
    fn tidy(&self, untidy: &[u64]) {
        if untidy.is_empty() {
            return;
        }
        let mut skeleton = self.write();
        for unit in untidy {
            let Some((start, node)) = skeleton.range_mut(..=unit).next_back() else {
                continue;
            };
            let body = node.get_mut();
            if !body.wants_tidying(&(body.start()..body.end())) {
                continue;
            }
            let start = *start;
            let Some(node) = skeleton.remove(&start) else {
                continue;
            };
            let body = node.into_body();
            let before = Share::of(&body);
            let mut after = Share::default();
            for piece in body.tidied() {
                after = after.plus(&piece);
                skeleton.insert(piece.start(), Box::new(Node::new(piece)));
            }
            self.replace(before, after);
        }
    }

    /// Drops nodes if the view takes more memory than allowed.
    fn keep_to_cap(&self) {
        if self.memory_bytes() > self.max_bytes {
            self.drop_oldest(&mut self.write());
        }
    }

    /// If the view is above its memory cap, drops the least recently touched nodes until an eighth of
    /// it is free: making room for one node at a time would walk all of them for each.
    fn drop_oldest(&self, skeleton: &mut Skeleton) {
        if self.memory_bytes() <= self.max_bytes {
            return;
        }
        let enough = self.max_bytes - self.max_bytes / 8;
        let mut by_age: Vec<(u64, u64)> = skeleton
            .iter_mut()
            .map(|(start, node)| (node.get_mut().touched_us(), *start))
            .collect();
        by_age.sort_unstable();
        for (_, start) in by_age {
            if self.memory_bytes() <= enough {
                break;
            }
            if let Some(node) = skeleton.remove(&start) {
                let lost = Share::of(&node.into_body());
                self.totals
                    .forgotten
                    .fetch_add(lost.unused, Ordering::Relaxed);
                self.replace(lost, Share::default());
            }
        }
    }
}

/// `range` without pages that cannot exist; none if it is empty then.
fn clip(range: PageRange) -> Option<PageRange> {
    let range = range.intersect(PageRange::new(0, MAX_PAGES));
    (!range.is_empty()).then_some(range)
}

/// The nodes that may overlap `units`, left to right; the first may end before them.
fn overlapping<'a>(
    skeleton: &'a Skeleton,
    units: &Range<u64>,
) -> impl Iterator<Item = &'a Node> + use<'a> {
    let before = skeleton.range(..=units.start).next_back();
    let rest = skeleton.range(units.start + 1..units.end.max(units.start + 1));
    before
        .into_iter()
        .chain(rest)
        .map(|(_, node)| node.as_ref())
}
