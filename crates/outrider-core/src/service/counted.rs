//! What programs have read, told or not, and what became of what was fetched for it.

use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{ByteRange, InodeKey, PAGE};

use super::Service;
use super::kernel::Kernel;
use crate::shm::Figure;
use crate::source::Arrival;
use crate::view::PageRange;

/// Silent strided reads that are accounted for one by one.
const MOST_PASSED: usize = 65536;

impl<K: Kernel> Service<K> {
    pub(super) fn lost_pages(&mut self, key: InodeKey, range: PageRange) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let gone = file.view.evicted(range);
        self.count(key, Figure::Evicted, gone.unused_pages * PAGE);
    }

    /// Process `i` opens or reads a file.
    pub(super) fn reads_now(&self, i: usize, key: InodeKey) {
        let (state, file) = (self.processes.get(i), self.files.get(&key));
        if let (Some(state), Some(tally)) = (state, file.and_then(|f| f.account.tally())) {
            tally.read_by(state.who());
        }
    }

    pub(super) fn count(&self, key: InodeKey, figure: Figure, bytes: u64) {
        match self.files.get(&key) {
            Some(file) => file.count(figure, bytes),
            None => self.header().total.figures.add(figure, bytes),
        }
    }

    /// The program read these bytes, or so we know by now.
    pub(super) fn seen(&mut self, key: InodeKey, offset: u64, len: u64) -> Arrival {
        let now = self.now_us();
        let Some(file) = self.files.get_mut(&key) else {
            return Arrival::Missing;
        };
        file.touch(self.kernel.now());
        file.served.has_read(len);
        let len = len.min(file.size().saturating_sub(offset));
        if len == 0 {
            return Arrival::Present;
        }
        let pages = PageRange::from_bytes(offset, len);
        let a = file.view.access(pages, now);
        file.random.uses(a.first_use_pages * PAGE);
        self.files.reached(key, offset, len);
        // Bytes, not pages: a read of a few bytes is a hit of a few bytes.
        let share = |n| (u128::from(len) * u128::from(n) / u128::from(pages.len().max(1))) as u64;
        self.count(key, Figure::Hit, share(a.hit_pages));
        self.count(key, Figure::Late, share(a.late_pages));
        self.count(key, Figure::Miss, share(a.miss_pages));
        self.count(key, Figure::Used, a.first_use_pages * PAGE);
        if a.miss_pages > 0 {
            if let Some(file) = self.files.get_mut(&key) {
                file.hinted.missed(self.kernel.now());
            }
            Arrival::Missing
        } else if a.late_pages > 0 {
            Arrival::Late
        } else {
            Arrival::Present
        }
    }

    /// Reads that were not told: pieces of `len` bytes that begin every `stride` bytes in `span`.
    pub(super) fn pass(&mut self, i: usize, key: InodeKey, span: ByteRange, stride: u64, len: u64) {
        if span.is_empty() || span.end - span.start > 1 << 40 || len == 0 {
            return;
        }
        self.reads_now(i, key);
        let span = span.start..span.end.min(self.files.get(&key).map_or(0, |f| f.size()));
        let (mut reads, mut bytes) = (0, 0);
        if stride <= len {
            bytes = span.end.saturating_sub(span.start);
            reads = bytes.div_ceil(len);
            if bytes > 0 {
                self.seen(key, span.start, bytes);
            }
        } else {
            // Bounded: a hostile stride must not keep the service busy.
            for at in (span.start..span.end)
                .step_by(stride as usize)
                .take(MOST_PASSED)
            {
                self.seen(key, at, len);
                reads += 1;
                bytes = u64::saturating_add(bytes, len);
            }
        }
        self.has_read(i, reads, bytes);
    }

    /// Process `i` has made so many reads, of so many bytes together.
    pub(super) fn has_read(&mut self, i: usize, reads: u64, bytes: u64) {
        let Some(state) = self.processes.get_mut(i) else {
            return;
        };
        state.has_read(reads, bytes);
        if let Some(record) = self.shared.record(state.who()) {
            record.reads.fetch_add(reads, Relaxed);
            record.bytes_read.fetch_add(bytes, Relaxed);
        }
    }

    /// The program has skipped these bytes: what was fetched of them is wasted, and no longer waited for.
    pub(super) fn pass_over(&mut self, key: InodeKey, bytes: &ByteRange) {
        let pages = PageRange::new(bytes.start.div_ceil(PAGE), bytes.end / PAGE);
        if pages.is_empty() || pages.len() > u64::from(u32::MAX) {
            return;
        }
        let now = self.now_us();
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let unused = file.view.count(pages).unused_pages;
        if unused > 0 {
            // What lies between two reads is there: it was asked for before what lies behind it.
            let _ = file.view.access(pages, now);
            self.count(key, Figure::Wasted, unused * PAGE);
        }
    }

    /// Reads that nobody told move a descriptor's place all the same: who reads slowly, with all of it foreseen, is silent for long.
    pub(super) fn notice_silent_reads(&mut self) {
        let now = self.kernel.now();
        self.processes.each_open(&self.shared, |_, desc, slot, _| {
            if desc.has_come_to(slot.last.load(Relaxed))
                && let Some(file) = self.files.get_mut(&desc.key)
            {
                file.touch(now);
            }
        });
    }
}
