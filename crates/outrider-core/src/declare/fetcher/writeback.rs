//! What is written into the files while a list is read that doesn't fit in memory: written back early, and then given up.
//!
//! A program that writes as much as it reads (a blur, a sort) fills its control group with dirty pages. The kernel can't reclaim them, has no
//! reason to write them back before the whole machine has many, and takes what was fetched and not yet read instead. Writing back early loses
//! nothing and changes nothing that a program can see; dirty pages are never dropped.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outrider_sys::units::{ByteRange, PAGE};
use outrider_sys::{cache, raw, threads};

use super::{Explain, Fetcher, Order, Own, Walk};
use crate::engine::Handle;
use crate::view::PageRange;

/// Bytes of the writing thread's stack.
const STACK: usize = 128 << 10;
/// Written back at once: so many bytes at least and at most, and otherwise this part of the memory. A head goes there and back for each time: with 4 MB
/// that takes a fifth of the time.
const LEAST: u64 = 1 << 20;
const MOST: u64 = 8 << 20;
const PART: u64 = 8;
/// They are counted so often at most, and counting takes one part in so many of the processor's time at most: what is found late has taken the memory of
/// what is fetched.
const LOOK: Duration = Duration::from_millis(5);
const RARELY: u32 = 64;
/// … and while a sweep stands still for what is written.
const OFTEN: u32 = 4;
/// Where the dirty pages are is looked for so late at most: somebody else may have them written back.
const LATEST: Duration = Duration::from_secs(1);
/// Dirty pages are found in so many parts at a time, down to so many pages.
const SPLIT: u64 = 8;
const FINE: u64 = 16;
/// A sweep goes on where for so long nothing was written.
const IN_VAIN: Duration = Duration::from_millis(200);
/// What was written back is given up in pieces of so many pages, each as soon as it is clean.
const PIECE: u64 = 128;

/// What is known of the dirty pages of a walk's files.
#[derive(Default)]
pub(super) struct Writeback {
    next: Option<Instant>,
    /// When it was last looked where they are.
    searched: Option<Instant>,
    files: HashMap<u16, Written>,
}

struct Written {
    /// Dirty when the list began, which may name it.
    older: Vec<PageRange>,
    /// Found dirty since, in their order.
    since: Vec<PageRange>,
}

/// Appends to `out`, in their order, where dirty pages of `pages` lie, to within [`FINE`] pages.
fn dirty(fd: BorrowedFd<'_>, pages: PageRange, out: &mut Vec<PageRange>) {
    let bytes = bytes_of(pages);
    let Ok(stat) = cache::cachestat(fd, bytes) else {
        return;
    };
    if stat.dirty == 0 {
        return;
    }
    if stat.dirty < pages.len() && pages.len() > FINE {
        let step = pages.len().div_ceil(SPLIT).max(FINE);
        let mut at = pages.start;
        while at < pages.end {
            let end = pages.end.min(at + step);
            dirty(fd, PageRange::new(at, end), out);
            at = end;
        }
        return;
    }
    match out.last_mut() {
        Some(run) if run.end == pages.start => run.end = pages.end,
        _ => out.push(pages),
    }
}

/// Appends to `out` what of `runs` doesn't lie in `older`; both ascend.
fn without(runs: &[PageRange], older: &[PageRange], out: &mut Vec<PageRange>) {
    for run in runs {
        let mut at = run.start;
        let from = older.partition_point(|o| o.end <= at);
        for o in older.iter().skip(from).take_while(|o| o.start < run.end) {
            if at < o.start {
                out.push(PageRange::new(at, o.start));
            }
            at = at.max(o.end);
        }
        if at < run.end {
            out.push(PageRange::new(at, run.end));
        }
    }
}

/// A run, cut where multiples of [`PIECE`] pages lie in the file.
fn pieces(run: &PageRange) -> impl Iterator<Item = PageRange> + use<> {
    let run = *run;
    (run.start / PIECE..run.end.div_ceil(PIECE))
        .map(move |i| PageRange::new(run.start.max(i * PIECE), run.end.min((i + 1) * PIECE)))
}

fn bytes_of(pages: PageRange) -> ByteRange {
    pages.start * PAGE..pages.end * PAGE
}

impl Writeback {
    /// Whether the program had written to a page before the list began.
    pub(super) fn is_older(&self, file: u16, page: u64) -> bool {
        let older = self.files.get(&file).map_or(&[][..], |w| &w.older);
        let i = older.partition_point(|run| run.end <= page);
        older.get(i).is_some_and(|run| run.start <= page)
    }
}

/// A thread that has files written back: the system call waits while the disk's queue is full, in which time the fetcher has to give up what the
/// program uses up, which writes as much again.
#[derive(Default)]
pub(super) struct Writer {
    thread: Option<Arc<Desk>>,
    failed: bool,
}

#[derive(Default)]
struct Desk {
    slot: Mutex<Slot>,
    changed: Condvar,
}

/// What the thread is to do, and does.
#[derive(Default)]
struct Slot {
    next: Option<(Arc<Handle>, ByteRange)>,
    busy: bool,
    ended: bool,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut slot = self.lock();
        while !slot.ended {
            let Some((handle, bytes)) = slot.next.take() else {
                slot.busy = false;
                self.changed.notify_all();
                slot = self
                    .changed
                    .wait(slot)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(slot);
            let _ = cache::write_back(handle.fd(), bytes);
            drop(handle);
            slot = self.lock();
        }
    }
}

impl Writer {
    /// Has dirty pages of a file written back, on the caller's thread where there can be no other; `false` while it is at others.
    fn write_back(&mut self, handle: &Arc<Handle>, bytes: ByteRange) -> bool {
        if self.thread.is_none() && !self.failed {
            self.start();
        }
        let Some(desk) = &self.thread else {
            let _ = cache::write_back(handle.fd(), bytes);
            return true;
        };
        let mut slot = desk.lock();
        if slot.busy {
            return false;
        }
        slot.busy = true;
        slot.next = Some((handle.clone(), bytes));
        desk.changed.notify_all();
        true
    }

    fn start(&mut self) {
        let desk = Arc::new(Desk::default());
        let its = desk.clone();
        let started = threads::start(c"outrider", STACK, move || its.work());
        self.failed = !started;
        self.thread = started.then_some(desk);
    }

    /// Whether something is being submitted.
    fn is_busy(&self) -> bool {
        self.thread.as_ref().is_some_and(|desk| desk.lock().busy)
    }

    /// Waits until it holds no file, so long at most.
    pub(super) fn settle(&self, most: Duration) {
        if let Some(desk) = &self.thread {
            let _ = desk
                .changed
                .wait_timeout_while(desk.lock(), most, |slot| slot.busy);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(desk) = &self.thread {
            desk.lock().ended = true;
            desk.changed.notify_all();
        }
    }
}

/// One look at what was written.
struct Look {
    begun: Instant,
    /// Bytes of a file that are worth a search, and of all that are worth waiting for …
    enough: u64,
    /// … and those that are written back without being asked for.
    early: u64,
    /// What has been written back is given up.
    drops: bool,
    /// Nobody has searched for long.
    late: bool,
    /// A file was searched.
    searched: bool,
    /// Bytes not written back yet, and those on their way.
    unwritten: u64,
    leaving: u64,
    /// Processor time.
    took: Duration,
}

impl Look {
    /// Gives up what has been written back of a file, whoever had that done: the kernel may be first.
    fn give_up(&self, own: &Own, handle: &Handle, written: &mut Written, explain: &mut Explain) {
        for run in std::mem::take(&mut written.since) {
            match is_clean(own, run) {
                None => {}
                Some(clean) if !clean || !self.drops => written.since.push(run),
                Some(_) => {
                    let bytes = bytes_of(run);
                    if cache::drop_range(handle.fd(), bytes.clone()).is_ok() {
                        explain.dropped(own.ino, &bytes, "written back");
                    }
                }
            }
        }
    }

    /// Searches a file for what was written to it lately, where that is much or it is time to. Its dirty bytes. `since`: the thread's time when its turn began;
    /// the search itself, which is rare, doesn't count.
    fn search(
        &mut self,
        own: &Own,
        handle: &Handle,
        written: &mut Written,
        since: Duration,
    ) -> u64 {
        let stat = cache::cachestat(handle.fd(), bytes_of(whole(own))).ok();
        let (dirty, on_its_way) = stat.map_or((0, 0), |s| (s.dirty, s.writeback));
        self.unwritten += (dirty + on_its_way) * PAGE;
        self.leaving += on_its_way * PAGE;
        let bytes = dirty * PAGE;
        self.took += raw::thread_time().saturating_sub(since);
        if dirty > 0 && (self.late || bytes >= self.enough) {
            self.searched = true;
            let mut new = Vec::new();
            without(&all_dirty(own, handle), &written.older, &mut new);
            let known = std::mem::take(&mut written.since);
            without(&new, &known, &mut written.since);
            written.since = written.since.iter().flat_map(pieces).collect();
            written.since.extend(known);
            written.since.sort_unstable_by_key(|run| run.start);
        }
        bytes
    }
}

/// All pages of a file.
fn whole(own: &Own) -> PageRange {
    PageRange::new(0, own.size.div_ceil(PAGE))
}

/// What of a file is not written back yet.
fn all_dirty(own: &Own, handle: &Handle) -> Vec<PageRange> {
    let mut runs = Vec::new();
    dirty(handle.fd(), whole(own), &mut runs);
    runs
}

impl Walk {
    /// Whether memory doesn't hold what is to be read.
    fn exceeds_memory(&self) -> bool {
        match &self.order {
            Order::Unknown => false,
            Order::Rounds(round) => round.begun && !round.keeps && !round.lone,
            Order::Stream(stream) => stream.belady.is_some(),
        }
    }
}

impl Fetcher {
    /// Has written back what was written lately, and gives up what has been written back, with `room` bytes of memory.
    pub(super) fn write_behind(&mut self, walk: &mut Walk, room: u64) {
        let begun = Instant::now();
        let enough = (room / PART).clamp(LEAST, MOST);
        let writes = self.dirty > 0 || self.unwritten > 0;
        let much = writes && self.used_up >= enough;
        if !much && walk.writeback.next.is_some_and(|next| begun < next) {
            return;
        }
        self.used_up = 0;
        let drops = walk.exceeds_memory();
        walk.exceeds |= drops;
        let searched = walk.writeback.searched;
        let mut look = Look {
            begun,
            enough,
            // The last of a list that doesn't fit leaves room for the next one; less is not written early, and may never have to be read.
            early: if drops { enough } else { room / 4 * 3 },
            drops,
            late: searched.is_none_or(|at| begun - at >= LATEST),
            searched: false,
            unwritten: 0,
            leaving: 0,
            took: Duration::ZERO,
        };
        for (number, own) in &self.files {
            let Some(handle) = &own.handle else { continue };
            let since = raw::thread_time();
            let written = walk.writeback.files.entry(*number);
            let written = written.or_insert_with(|| Written {
                older: all_dirty(own, handle),
                since: Vec::new(),
            });
            if walk.exceeds {
                look.give_up(own, handle, written, &mut self.explain);
                let dirty = look.search(own, handle, written, since);
                let whole = bytes_of(whole(own));
                if dirty >= look.early && self.writer.write_back(handle, whole) {
                    look.leaving += dirty;
                    self.explain.written_back(own.ino, dirty);
                }
            } else {
                look.took += raw::thread_time().saturating_sub(since);
            }
        }
        if look.searched {
            walk.writeback.searched = Some(begun);
        }
        if walk.exceeds {
            self.settle_writes(walk, &mut look);
        } else if self.walks.is_empty() {
            // There is no other list.
            self.nothing_written();
        }
        let rarely = match self.waits {
            Some(_) => OFTEN,
            None => RARELY,
        };
        walk.writeback.next = Some(begun + LOOK.max(look.took * rarely));
    }

    /// Takes into account what a look at all files has found.
    fn settle_writes(&mut self, walk: &Walk, look: &mut Look) {
        let since = raw::thread_time();
        self.unwritten = look.unwritten;
        let leaving = look.leaving > 0 || self.writer.is_busy();
        self.waits = (look.unwritten >= look.enough && leaving).then(|| {
            let before = self.waits.filter(|(least, _)| *least <= look.unwritten);
            before.unwrap_or((look.unwritten, look.begun))
        });
        self.dirty = self.dirty.max(match &walk.order {
            Order::Rounds(round) => (look.unwritten + round.bytes()).saturating_sub(round.memory),
            _ => look.unwritten,
        });
        look.took += raw::thread_time().saturating_sub(since);
    }

    /// Nothing is written beside a list that exceeds memory.
    pub(super) fn nothing_written(&mut self) {
        self.unwritten = 0;
        self.waits = None;
    }

    /// Whether a sweep has to wait for what is on its way to the device. A disk that goes upwards by itself writes it when the sweep is over, and until then
    /// it takes the memory of what is fetched.
    pub(super) fn waits_for_writes(&self) -> bool {
        self.waits
            .is_some_and(|(_, since)| since.elapsed() < IN_VAIN)
    }

    /// Bytes of what was written back and is about to be given up.
    pub(super) fn leaving(&self, writeback: &Writeback) -> u64 {
        let mut sum = 0;
        for (number, written) in &writeback.files {
            let own = self.files.get(number);
            let Some(handle) = own.and_then(|own| own.handle.as_ref()) else {
                continue;
            };
            for run in &written.since {
                let stat = cache::cachestat(handle.fd(), bytes_of(*run));
                sum += stat.map_or(0, |s| s.cached.saturating_sub(s.dirty + s.writeback));
            }
        }
        sum * PAGE
    }
}

/// Whether a run was written back and may go. `None`: nothing of it is there, or there is something in it that was fetched for the list.
fn is_clean(own: &Own, run: PageRange) -> Option<bool> {
    let fd = own.handle.as_ref()?.fd();
    let stat = cache::cachestat(fd, bytes_of(run)).ok()?;
    let seen = own.view.count(run);
    (stat.cached > 0 && seen.present_pages + seen.in_flight_pages == 0)
        .then_some(stat.dirty == 0 && stat.writeback == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LP6: what was dirty before the list began stays.
    #[test]
    fn older_pages_stay() {
        let runs = |of: &[(u64, u64)]| -> Vec<PageRange> {
            of.iter().map(|(a, b)| PageRange::new(*a, *b)).collect()
        };
        let mut out = Vec::new();
        without(
            &runs(&[(0, 10), (20, 30), (40, 50)]),
            &runs(&[(5, 8), (9, 25), (60, 70)]),
            &mut out,
        );
        assert_eq!(out, runs(&[(0, 5), (8, 9), (25, 30), (40, 50)]));
    }
}
