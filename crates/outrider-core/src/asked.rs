//! What was asked for of a file and not read yet: who foresaw it, when the kernel was given it, and when it was there.
//!
//! A read that finds its bytes because they were fetched ahead is a hit, and one that waits for them is not, however soon the service comes to hear of the
//! read afterwards. So an order is needed between reads, which a program tells before it makes them, and arrivals, which workers see. No clock is asked for
//! it on a hook's way: a worker notes how many events the reading program had told by then. Events of other processes are ordered by epochs: the service
//! begins one each time it looks at the rings. Of reads that nobody tells, the place that the hook publishes says what was asked for when something
//! arrived. Where none of these is certain, a read counts as one that has waited.
//!
//! Which pages were fetched and not used yet is the view's to know ([`FileView`]); what is here says of them whose they are.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{ByteRange, PAGE};

use crate::shm::{Fate, Origin, SAVED, SOURCE_FIGURES};
use crate::view::{FileView, PageRange};

/// Parts of a file that are remembered apart, at most: 512 MiB in requests of 128 KiB.
const MOST: usize = 4096;
/// Looks at what is cached that are remembered: more are hardly made between a read and its being heard.
const LOOKS: usize = 16;
/// Places near readers that were looked at and are not read yet, at most.
const DOUBTS: usize = 64;

/// A descriptor of a process: the process's entry, the number, and the generation of its state.
pub type Reader = (usize, u16, u32);

/// Tells whether a request has been overtaken by the program.
pub trait Overtaken: Send + Sync {
    /// Whether the program has read past `range` (bytes).
    fn overtaken(&self, range: &ByteRange) -> bool;

    /// What of `range` (bytes) the program has asked for by now, if that is known.
    fn has_asked(&self, _range: &ByteRange) -> Option<ByteRange> {
        None
    }

    /// Whose reads these are.
    fn who(&self) -> Option<Reader> {
        None
    }
}

/// When something was seen to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The service's epoch.
    pub epoch: u64,
    /// Entry of the process that reads the file …
    pub proc: u32,
    /// … and the place in its ring of the next event then.
    pub place: u32,
}

/// When a program asked for what it has read.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// When it told so: the entry of the process, the event's place in its ring, and an epoch that had begun by then.
    Told {
        /// Entry of the process.
        proc: u32,
        /// The event's place.
        place: u32,
        /// Begun before it.
        epoch: u64,
    },
    /// At some time after this epoch had begun, through this descriptor if it reads one stream and says where it is.
    Since {
        /// Begun before it.
        epoch: u64,
        /// The descriptor.
        reader: Option<Reader>,
    },
}

impl When {
    /// Nothing is known of it.
    pub const UNKNOWN: When = When::Since {
        epoch: 0,
        reader: None,
    };

    /// An epoch that had begun before.
    pub fn epoch(&self) -> u64 {
        match self {
            When::Told { epoch, .. } | When::Since { epoch, .. } => *epoch,
        }
    }
}

impl Stamp {
    /// Whether it surely was before a program asked.
    fn is_before(&self, when: &When) -> bool {
        match when {
            When::Told { proc, place, .. }
                if *proc == self.proc && place.wrapping_sub(self.place) as i32 >= 0 =>
            {
                true
            }
            When::Told { epoch, .. } | When::Since { epoch, .. } => self.epoch < *epoch,
        }
    }
}

/// The epochs that began lately, and the place in a process's ring of the next event then.
#[derive(Debug, Default)]
pub struct Epochs(VecDeque<(u64, u32)>);

impl Epochs {
    /// Those that are remembered: events are taken in the epoch in which they were told, or the next.
    const KEPT: usize = 8;

    /// An epoch begins.
    pub fn begin(&mut self, epoch: u64, place: u32) {
        if let Some(last) = self.0.back_mut()
            && last.1 == place
        {
            last.0 = epoch;
            return;
        }
        if self.0.len() >= Epochs::KEPT {
            self.0.pop_front();
        }
        self.0.push_back((epoch, place));
    }

    /// The latest that had surely begun when the event at this place was told; 0: none that is remembered.
    pub fn before(&self, place: u32) -> u64 {
        let mut latest = self.0.iter().rev();
        let found = latest.find(|(_, began)| place.wrapping_sub(*began) as i32 >= 0);
        found.map_or(0, |(epoch, _)| *epoch)
    }
}

/// A part of a file that was asked for at once.
struct Part {
    /// Behind its last page.
    end: u64,
    of: Of,
    /// Pages of it that are neither used nor lost.
    left: u64,
    reader: Option<Arc<dyn Overtaken>>,
    /// It was given to the kernel.
    issued: Option<Stamp>,
    /// It was there.
    arrived: Option<Stamp>,
    /// What its reader had asked for by then.
    read: PageRange,
}

/// Who foresaw something, and what has come of the decision by which it was asked for, where that is explained.
#[derive(Clone, Debug)]
pub struct Of {
    /// Who it was.
    pub origin: Origin,
    /// Where the decision's bytes are counted.
    pub outcome: Option<Arc<Outcome>>,
}

impl PartialEq for Of {
    fn eq(&self, other: &Of) -> bool {
        let same = match (&self.outcome, &other.outcome) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        same && self.origin == other.origin
    }
}

/// What has come of a decision, bytes by [`Fate`], and the wait that it has saved.
#[derive(Debug, Default)]
pub struct Outcome([AtomicU64; SOURCE_FIGURES.len()]);

impl Outcome {
    /// It has saved the program so many µs.
    pub fn saves(&self, us: u64) {
        self.0[SAVED].fetch_add(us, Relaxed);
    }

    /// What it has saved the program, µs.
    pub fn saved_us(&self) -> u64 {
        self.0[SAVED].load(Relaxed)
    }

    /// So many bytes more.
    pub fn add(&self, fate: Fate, bytes: u64) {
        self.0[fate as usize].fetch_add(bytes, Relaxed);
    }

    /// Bytes that have come to this.
    pub fn get(&self, fate: Fate) -> u64 {
        self.0[fate as usize].load(Relaxed)
    }
}

/// Pages that were fetched ahead and are read for the first time.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// Whose they were.
    pub of: Of,
    /// They were there before the program asked for them.
    pub hit: u64,
    /// They were on their way.
    pub late: u64,
    /// They had been asked for, and the program was there before the kernel was given them.
    pub first: u64,
    /// The kernel has been given them by now.
    pub issued: bool,
}

/// What was asked for of one file. Ranges are in pages.
#[derive(Default)]
pub struct Asked {
    /// By their first pages, without overlap.
    parts: BTreeMap<u64, Part>,
    /// Where it was seen that something is cached, and when.
    looks: VecDeque<(PageRange, Stamp)>,
    /// What was seen to be cached so near to a reader that it may still have been on its way then, by the kernel's own readahead.
    doubtful: VecDeque<PageRange>,
    /// Who asked last.
    latest: Option<Of>,
    /// What programs have read that was asked for and waits to be given to the kernel.
    overtaken: Vec<PageRange>,
}

impl Asked {
    /// Who asked last: whose is what nobody knows any more.
    pub fn latest(&self) -> Option<&Of> {
        self.latest.as_ref()
    }

    /// These pages were asked for, and marked in `view`.
    pub fn ask(
        &mut self,
        pages: PageRange,
        of: Of,
        reader: Option<Arc<dyn Overtaken>>,
        view: &FileView,
    ) {
        let left = view.count(pages).unused_pages;
        if left == 0 {
            return;
        }
        self.cut_out(pages);
        if self.parts.len() >= MOST {
            self.join();
        }
        self.latest = Some(of.clone());
        let part = Part {
            end: pages.end,
            of,
            left,
            reader,
            issued: None,
            arrived: None,
            read: PageRange::new(pages.start, pages.start),
        };
        self.parts.insert(pages.start, part);
    }

    /// Leaves nothing of these pages: others have asked for them anew.
    fn cut_out(&mut self, pages: PageRange) {
        for start in self.starts(pages) {
            let Some(mut part) = self.parts.remove(&start) else {
                continue;
            };
            let end = part.end;
            if end > pages.end {
                let behind = Part {
                    end,
                    of: part.of.clone(),
                    reader: part.reader.clone(),
                    ..part
                };
                self.parts.insert(pages.end, behind);
            }
            if start < pages.start {
                part.end = pages.start;
                self.parts.insert(start, part);
            }
        }
    }

    /// Joins neighbours that are alike, at the cost of what is known of when they were there; where that is not enough the first are forgotten.
    fn join(&mut self) {
        let mut joined: BTreeMap<u64, Part> = BTreeMap::new();
        for (start, part) in std::mem::take(&mut self.parts) {
            let last = joined.last_entry().filter(|last| {
                let last = last.get();
                last.of == part.of && last.arrived.is_some() && part.arrived.is_some()
            });
            match last {
                Some(mut last) => {
                    let last = last.get_mut();
                    last.end = part.end;
                    last.left += part.left;
                    last.reader = None;
                    last.issued = part.issued;
                    // The later of two, as far as they can be compared.
                    let later = [last.arrived, part.arrived].into_iter().flatten();
                    last.arrived = later.max_by_key(|s| s.epoch);
                }
                None => _ = joined.insert(start, part),
            }
        }
        while joined.len() > MOST / 2 {
            joined.pop_first();
        }
        self.parts = joined;
    }

    /// The first pages of the parts that hold some of these.
    fn starts(&self, pages: PageRange) -> Vec<u64> {
        let before = self.parts.range(..pages.start).next_back();
        let before = before.filter(|(_, part)| part.end > pages.start);
        let rest = self.parts.range(pages.start..pages.end.max(pages.start));
        before.into_iter().chain(rest).map(|(s, _)| *s).collect()
    }

    /// The kernel is given these pages; how many of them programs have read before.
    pub fn issued(&mut self, pages: PageRange, now: Stamp) -> u64 {
        for start in self.starts(pages) {
            if let Some(part) = self.parts.get_mut(&start) {
                part.issued.get_or_insert(now);
            }
        }
        self.forget_overtaken(pages)
    }

    /// Programs have read these pages, which wait to be given to the kernel.
    fn overtake(&mut self, pages: PageRange) {
        let room = self.overtaken.len() < MOST;
        match self.overtaken.last_mut() {
            Some(last) if last.end == pages.start => last.end = pages.end,
            Some(last) if pages.end == last.start => last.start = pages.start,
            _ if room => self.overtaken.push(pages),
            _ => {}
        }
    }

    /// These pages don't wait any more; how many of them programs have read meanwhile.
    fn forget_overtaken(&mut self, pages: PageRange) -> u64 {
        let mut found = 0;
        let mut rest = Vec::new();
        self.overtaken.retain(|of| {
            let shared = of.intersect(pages);
            found += shared.len();
            if !shared.is_empty() {
                rest.push(PageRange::new(of.start, shared.start));
                rest.push(PageRange::new(shared.end, of.end));
            }
            shared.is_empty()
        });
        self.overtaken
            .extend(rest.into_iter().filter(|r| !r.is_empty()));
        found
    }

    /// These pages are there.
    pub fn arrived(&mut self, pages: PageRange, now: Stamp) {
        for start in self.starts(pages) {
            let Some(part) = self.parts.get_mut(&start) else {
                continue;
            };
            if part.arrived.is_some() {
                continue;
            }
            part.arrived = Some(now);
            let bytes = start * PAGE..part.end * PAGE;
            let read = part.reader.as_ref().and_then(|r| r.has_asked(&bytes));
            part.read = match read {
                Some(read) => PageRange::from_bytes(read.start, read.end - read.start),
                None => PageRange::new(start, part.end),
            };
        }
    }

    /// These pages will not be fetched: how many were to be, and whose they were.
    pub fn failed(&mut self, pages: PageRange) -> Vec<(Of, u64)> {
        self.forget_overtaken(pages);
        let within = |start: &u64| {
            let part = self.parts.get(start);
            *start >= pages.start && part.is_some_and(|part| part.end <= pages.end)
        };
        let within: Vec<u64> = self.starts(pages).into_iter().filter(within).collect();
        let parts = within.iter().filter_map(|start| self.parts.remove(start));
        parts.map(|part| (part.of, part.left)).collect()
    }

    /// It was looked what of these pages is cached: whatever was found may be there only because of who is reading it.
    pub fn looked(&mut self, pages: PageRange, now: Stamp) {
        if let Some((last, stamp)) = self.looks.back_mut()
            && *stamp == now
            && last.start <= pages.end
            && pages.start <= last.end
        {
            *last = PageRange::new(last.start.min(pages.start), last.end.max(pages.end));
            return;
        }
        if self.looks.len() >= LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back((pages, now));
    }

    /// These pages, of which nothing is known, are looked at near a reader.
    pub fn doubt(&mut self, pages: PageRange) {
        if let Some(last) = self.doubtful.back_mut()
            && last.start <= pages.start
            && pages.start <= last.end
        {
            last.end = last.end.max(pages.end);
            return;
        }
        if self.doubtful.len() >= DOUBTS {
            self.doubtful.pop_front();
        }
        self.doubtful.push_back(pages);
    }

    /// Pages of these that were not fetched ahead, and may have been on their way when they were seen, or were seen to be cached only after they were read, as `view` has it before that read.
    pub fn found_late(&mut self, view: &FileView, pages: PageRange, when: &When) -> u64 {
        let looks = self.looks.iter().filter(|(_, at)| !at.is_before(when));
        let looks = looks.map(|(looked, _)| looked);
        let late = looks.chain(&self.doubtful).map(|looked| {
            let c = view.count(looked.intersect(pages));
            let ours = c.unused_pages.saturating_sub(c.in_flight_pages);
            c.present_pages.saturating_sub(ours)
        });
        let late = late.sum();
        // What was read is there.
        self.doubtful.retain_mut(|d| {
            if pages.start <= d.start {
                d.start = d.start.max(pages.end.min(d.end));
            } else if d.end <= pages.end {
                d.end = d.end.min(pages.start.max(d.start));
            }
            !d.is_empty()
        });
        late
    }

    /// A program has read these pages: what of that was fetched ahead and is used now, as `view` has it before that read.
    pub fn used(&mut self, view: &FileView, pages: PageRange, when: &When) -> Vec<Use> {
        let mut uses = Vec::new();
        let mut overtaken = Vec::new();
        self.take(view, pages, |part, shared, unused| {
            if part.issued.is_none() {
                overtaken.push(shared);
            }
            let reader = part.reader.as_ref().and_then(|r| r.who());
            let hit = match (&part.arrived, when) {
                (None, _) => 0,
                (Some(_), When::Since { reader: who, .. }) if who.is_some() && *who == reader => {
                    unused
                        - view
                            .count(part.read.intersect(shared))
                            .unused_pages
                            .min(unused)
                }
                (Some(at), when) if at.is_before(when) => unused,
                _ => 0,
            };
            let issued = match (&part.issued, when) {
                (Some(at), When::Told { .. }) => at.is_before(when),
                (at, _) => at.is_some(),
            };
            let (late, first) = match issued || hit > 0 {
                true => (unused - hit, 0),
                false => (0, unused),
            };
            uses.push(Use {
                of: part.of.clone(),
                hit,
                late,
                first,
                issued: part.issued.is_some(),
            });
        });
        overtaken.into_iter().for_each(|pages| self.overtake(pages));
        uses
    }

    /// These pages are gone, or nobody comes to them any more: how many were fetched and not read, and whose, as `view` has it before that.
    pub fn gone(&mut self, view: &FileView, pages: PageRange) -> Vec<(Of, u64)> {
        let mut gone = Vec::new();
        self.take(view, pages, |part, _, unused| {
            gone.push((part.of.clone(), unused))
        });
        gone
    }

    fn take(
        &mut self,
        view: &FileView,
        pages: PageRange,
        mut each: impl FnMut(&Part, PageRange, u64),
    ) {
        for start in self.starts(pages) {
            let Some(part) = self.parts.get_mut(&start) else {
                continue;
            };
            let shared = PageRange::new(start, part.end).intersect(pages);
            let unused = view.count(shared).unused_pages.min(shared.len());
            if unused > 0 {
                each(part, shared, unused);
            }
            part.left = part.left.saturating_sub(unused);
            let whole = pages.start <= start && part.end <= pages.end;
            if whole || part.left == 0 {
                self.parts.remove(&start);
            }
        }
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.parts.len() * (size_of::<Part>() + 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Granularity;
    use outrider_sys::units::ByteRange;

    const OF: Of = Of {
        origin: Origin::Streams,
        outcome: None,
    };

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::new(start, end)
    }

    fn at(epoch: u64, place: u32) -> Stamp {
        Stamp {
            epoch,
            proc: 3,
            place,
        }
    }

    fn told(place: u32) -> When {
        When::Told {
            proc: 3,
            place,
            epoch: 0,
        }
    }

    /// A view and what was asked for, of which the kernel was given all at place 5, and which arrived at place 8.
    fn arrived() -> (FileView, Asked) {
        let view = FileView::new(Granularity::Page, 1 << 20);
        let mut asked = Asked::default();
        view.begin(pages(0, 64), 0);
        asked.ask(pages(0, 64), OF, None, &view);
        asked.issued(pages(0, 64), at(1, 5));
        view.complete(pages(0, 64), 0);
        asked.arrived(pages(0, 64), at(2, 8));
        (view, asked)
    }

    fn read(view: &FileView, asked: &mut Asked, range: PageRange, when: &When) -> [u64; 3] {
        let uses = asked.used(view, range, when);
        let _ = view.access(range, 0);
        uses.iter().fold([0; 3], |s, u| {
            assert_eq!(u.of, OF);
            [s[0] + u.hit, s[1] + u.late, s[2] + u.first]
        })
    }

    /// A read that was told before an arrival has waited, however late it is heard; one told before the kernel was asked was there first.
    #[test]
    fn what_was_told_before_an_arrival_is_no_hit() {
        let (view, mut asked) = arrived();
        assert_eq!(read(&view, &mut asked, pages(0, 8), &told(4)), [0, 0, 8]);
        assert_eq!(read(&view, &mut asked, pages(8, 16), &told(7)), [0, 8, 0]);
        assert_eq!(read(&view, &mut asked, pages(16, 24), &told(8)), [8, 0, 0]);
        // What was read is nobody's any more.
        assert_eq!(read(&view, &mut asked, pages(0, 24), &told(9)), [0, 0, 0]);
        assert_eq!(asked.gone(&view, pages(0, 64)), [(OF, 40)]);
        assert_eq!(asked.bytes(), 0);
    }

    /// The numbers of events begin anew after four thousand million.
    #[test]
    fn places_wrap() {
        let (view, mut asked) = arrived();
        asked.arrived(pages(0, 64), at(2, u32::MAX));
        view.begin(pages(64, 80), 0);
        asked.ask(pages(64, 80), OF, None, &view);
        asked.issued(pages(64, 80), at(2, u32::MAX - 9));
        view.complete(pages(64, 80), 0);
        asked.arrived(pages(64, 80), at(2, u32::MAX));
        let late = read(&view, &mut asked, pages(64, 72), &told(u32::MAX - 1));
        assert_eq!(late, [0, 8, 0]);
        assert_eq!(read(&view, &mut asked, pages(72, 80), &told(2)), [8, 0, 0]);
    }

    /// Of another process only epochs tell, and what came in the same one is uncertain.
    #[test]
    fn other_processes_are_ordered_by_epochs() {
        for (epoch, hit) in [(1, 0), (2, 0), (3, 8)] {
            let (view, mut asked) = arrived();
            let other = When::Told {
                proc: 4,
                place: 100,
                epoch,
            };
            assert_eq!(read(&view, &mut asked, pages(0, 8), &other)[0], hit);
            let silent = When::Since {
                epoch,
                reader: None,
            };
            assert_eq!(read(&view, &mut asked, pages(8, 16), &silent)[0], hit);
        }
    }

    /// Events are ordered by the places at which epochs began; where nothing was told meanwhile the later one counts.
    #[test]
    fn events_belong_to_epochs() {
        let mut epochs = Epochs::default();
        assert_eq!(epochs.before(5), 0);
        epochs.begin(2, 10);
        epochs.begin(3, 10);
        epochs.begin(5, 12);
        let before = [9, 10, 11, 12, 99].map(|place| epochs.before(place));
        assert_eq!(before, [0, 3, 3, 5, 5]);
        for k in 0..20 {
            epochs.begin(6 + u64::from(k), 13 + k);
        }
        assert_eq!(epochs.before(12), 0);
        assert_eq!(epochs.before(32), 25);
    }

    struct At(u64);

    impl Overtaken for At {
        fn overtaken(&self, _: &ByteRange) -> bool {
            false
        }

        fn has_asked(&self, range: &ByteRange) -> Option<ByteRange> {
            Some(range.start..self.0.clamp(range.start, range.end))
        }

        fn who(&self) -> Option<Reader> {
            Some((3, 9, 1))
        }
    }

    /// Of a reader that says where it is, what it had passed when something arrived was waited for, and the rest not; of others that says nothing.
    #[test]
    fn silent_reads_go_by_where_the_reader_was() {
        let view = FileView::new(Granularity::Page, 1 << 20);
        let mut asked = Asked::default();
        view.begin(pages(0, 64), 0);
        asked.ask(pages(0, 64), OF, Some(Arc::new(At(9 * PAGE + 1))), &view);
        asked.issued(pages(0, 64), at(1, 5));
        view.complete(pages(0, 64), 0);
        asked.arrived(pages(0, 64), at(2, 8));
        let silent = |reader| When::Since { epoch: 0, reader };
        let own = silent(Some((3, 9, 1)));
        assert_eq!(read(&view, &mut asked, pages(0, 32), &own), [22, 10, 0]);
        let other = silent(Some((3, 9, 2)));
        assert_eq!(read(&view, &mut asked, pages(32, 64), &other), [0, 32, 0]);
    }

    /// What has not been there yet, was refused, or asked for anew.
    #[test]
    fn what_never_came_is_no_hit() {
        let view = FileView::new(Granularity::Page, 1 << 20);
        let mut asked = Asked::default();
        view.begin(pages(0, 64), 0);
        asked.ask(pages(0, 32), OF, None, &view);
        asked.ask(pages(32, 64), OF, None, &view);
        asked.issued(pages(0, 32), at(1, 5));
        assert_eq!(read(&view, &mut asked, pages(0, 8), &told(9)), [0, 8, 0]);
        assert_eq!(read(&view, &mut asked, pages(32, 40), &told(9)), [0, 0, 8]);
        view.fail(pages(32, 64));
        asked.failed(pages(32, 64));
        assert_eq!(read(&view, &mut asked, pages(40, 64), &told(9)), [0; 3]);
        let again = Of {
            origin: Origin::Dense,
            ..OF
        };
        asked.ask(pages(16, 24), again.clone(), None, &view);
        let gone = asked.gone(&view, pages(8, 32));
        assert_eq!(gone, [(OF, 8), (again, 8), (OF, 8)]);
    }

    /// What is seen to be cached while somebody waits to be heard may be there because of him.
    #[test]
    fn looks_that_come_after_a_read_say_nothing_of_it() {
        let (view, mut asked) = arrived();
        view.present(pages(60, 80), 0);
        asked.looked(pages(60, 80), at(2, 8));
        assert_eq!(asked.found_late(&view, pages(64, 72), &told(7)), 8);
        // Those before were fetched ahead.
        assert_eq!(asked.found_late(&view, pages(56, 72), &told(7)), 8);
        assert_eq!(asked.found_late(&view, pages(64, 72), &told(8)), 0);
    }

    /// What lies near a reader may be on its way when it is seen, once; what was read is there.
    #[test]
    fn what_is_seen_near_a_reader_is_doubtful_once() {
        let (view, mut asked) = arrived();
        asked.doubt(pages(64, 72));
        asked.doubt(pages(72, 96));
        view.present(pages(64, 128), 0);
        assert_eq!(asked.found_late(&view, pages(64, 80), &told(99)), 16);
        assert_eq!(asked.found_late(&view, pages(64, 80), &told(99)), 0);
        assert_eq!(asked.found_late(&view, pages(88, 128), &told(99)), 8);
        assert_eq!(asked.found_late(&view, pages(0, 128), &told(99)), 8);
        assert_eq!(asked.found_late(&view, pages(0, 128), &told(99)), 0);
        for k in 0..10 * DOUBTS as u64 {
            asked.doubt(pages(1000 + 2 * k, 1001 + 2 * k));
        }
        assert_eq!(asked.doubtful.len(), DOUBTS);
    }

    /// However many parts there are, only so many are remembered, and what is not known any more is no hit.
    #[test]
    fn remembers_so_much_and_no_more() {
        let view = FileView::new(Granularity::Page, 8 << 20);
        let mut asked = Asked::default();
        for k in 0..3 * MOST as u64 {
            let one = pages(2 * k, 2 * k + 1);
            view.begin(one, 0);
            asked.ask(one, OF, None, &view);
            asked.issued(one, at(k, k as u32));
            view.complete(one, 0);
            asked.arrived(one, at(k, k as u32));
        }
        assert!(asked.parts.len() <= MOST);
        let last = 3 * MOST as u64 - 1;
        let all = pages(0, 2 * last + 1);
        let when = When::Since {
            epoch: last,
            reader: None,
        };
        let hit = read(&view, &mut asked, all, &when)[0];
        assert!(hit > MOST as u64 && hit <= last, "{hit}");
    }
}
