//! What is asked for, and where it is counted.

use outrider_sys::units::{ByteRange, PAGE};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Handle;
use crate::asked::{Asked, Overtaken, Stamp};
use crate::lock;
use crate::shm::{Fate, Figure};
use crate::tally::Tally;
use crate::view::{FileView, PageRange};

/// How urgent a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The window of a stream that the program is reading, the begin of a file that it opens, or its own hint.
    Window = 0,
    /// Whole files, read at random or fetched at open.
    Background = 1,
    /// What may be read some time: in pieces, beside which the program's own reads hardly wait (see [`Bulk`](crate::device::Bulk)).
    Bulk = 2,
}

/// One range to fetch.
pub struct Request {
    /// The file.
    pub handle: Arc<Handle>,
    /// Where its pages are marked.
    pub view: Option<Arc<FileView>>,
    /// Page-aligned bytes.
    pub range: ByteRange,
    /// Who reads, to drop requests that come too late.
    pub reader: Option<Arc<dyn Overtaken>>,
    /// Where issued and dropped bytes are counted.
    pub account: Arc<Account>,
}

/// Counts of one file's requests, bytes.
#[derive(Default)]
pub struct Account {
    /// Handed to the kernel and not taken yet, where there is no tally: of this file, or of all that are counted together.
    issued: Arc<AtomicU64>,
    /// Where it is counted what was handed to the kernel, and what was dropped because the program was there first or closed the file.
    tally: Option<Tally>,
    /// Set while the program has the file closed: what is still queued is dropped.
    pub cancelled: AtomicBool,
    /// Bytes that wait to be issued.
    queued: AtomicU64,
    /// What was asked for and not read yet, where there is a tally.
    asked: Mutex<Asked>,
    /// Bytes that were given to the kernel after the program had read them, and are not counted yet.
    overtaken: AtomicU64,
    /// Entry of the process that has opened or read the file last.
    proc: AtomicU32,
}

impl Account {
    /// One that counts in shared memory.
    pub fn with(tally: Tally) -> Account {
        Account {
            tally: Some(tally),
            ..Account::default()
        }
    }

    /// One of several whose issued bytes are counted together, so that nobody has to go through them all.
    pub fn among(issued: &Arc<AtomicU64>) -> Account {
        Account {
            issued: issued.clone(),
            ..Account::default()
        }
    }

    /// Bytes that wait to be issued.
    pub fn queued_bytes(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Where it counts, if that is shared memory.
    pub fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }

    /// What was asked for and not read yet, where there is a tally.
    pub fn asked(&self) -> MutexGuard<'_, Asked> {
        lock(&self.asked)
    }

    /// The process in this entry opens or reads the file.
    pub fn read_by(&self, proc: usize) {
        self.proc.store(proc as u32, Ordering::Relaxed);
    }

    /// The time, as far as it counts for what was asked for; `None` where that is not kept.
    pub fn now(&self) -> Option<Stamp> {
        let proc = self.proc.load(Ordering::Relaxed);
        Some(self.tally.as_ref()?.shared().stamp(proc))
    }

    /// It arrived.
    pub(super) fn arrived(&self, pages: PageRange) {
        if let Some(now) = self.now() {
            self.asked().arrived(pages, now);
        }
    }

    pub(super) fn handed(&self, bytes: u64) {
        match &self.tally {
            Some(tally) => {
                // The kernel skips what it has.
                let take = |all: u64| all.checked_sub(bytes).or(Some(0));
                let of = &self.overtaken;
                let before = of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
                let overtaken = before.unwrap_or(0).min(bytes);
                tally.add(Figure::Prefetched, bytes - overtaken);
                tally.add(Figure::Dropped, overtaken);
            }
            None => drop(self.issued.fetch_add(bytes, Ordering::Relaxed)),
        }
    }

    pub(super) fn dropped(&self, bytes: u64) {
        if let Some(tally) = &self.tally {
            tally.add(Figure::Dropped, bytes);
        }
    }

    /// Bytes that were handed to the kernel since this was asked last, where there is no tally.
    pub fn take_issued(&self) -> u64 {
        self.issued.swap(0, Ordering::Relaxed)
    }
}

impl Request {
    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Tells open files apart.
    pub(super) fn file(&self) -> usize {
        Arc::as_ptr(&self.handle) as usize
    }

    pub(super) fn pages(&self) -> PageRange {
        PageRange::from_bytes(self.range.start, self.bytes())
    }

    pub(super) fn stale(&self) -> bool {
        self.account.cancelled.load(Ordering::Relaxed)
            || self.handle.is_gone()
            || self
                .reader
                .as_ref()
                .is_some_and(|r| r.overtaken(&self.range))
    }

    /// It is in a queue now …
    pub(super) fn waits(&self) {
        self.account
            .queued
            .fetch_add(self.bytes(), Ordering::Relaxed);
    }

    /// … and no longer.
    pub(super) fn waited(&self) {
        self.account
            .queued
            .fetch_sub(self.bytes(), Ordering::Relaxed);
    }

    /// The kernel is given it now.
    pub(super) fn goes_out(&self) {
        if let Some(now) = self.account.now() {
            let overtaken = self.account.asked().issued(self.pages(), now);
            let overtaken = overtaken * PAGE;
            self.account
                .overtaken
                .fetch_add(overtaken, Ordering::Relaxed);
        }
    }

    pub(super) fn drop_it(self) {
        self.account.dropped(self.bytes());
        if let Some(tally) = &self.account.tally {
            for (of, pages) in self.account.asked().failed(self.pages()) {
                tally.came_to(&of, Fate::Dropped, pages * PAGE);
            }
        }
        if let Some(view) = &self.view {
            view.fail(self.pages());
        }
    }
}
