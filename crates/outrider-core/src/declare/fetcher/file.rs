//! The program's files as the fetcher sees them: opened anew, what of them is cached, where they lie.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use outrider_sys::cache;
use outrider_sys::device::Device;
use outrider_sys::raw;
use outrider_sys::units::{ByteRange, DeviceId, InodeKey, PAGE};

use super::super::Figure;
use super::super::contention::is_shortage;
use super::{Fetcher, Piece};
use crate::device::Placement;
use crate::engine::{Account, Handle};
use crate::fetch;
use crate::intent::Intent;
use crate::lock;
use crate::plan::sweep::Item;
use crate::residency;
use crate::shm::Origin;
use crate::view::{Count, FileView, Granularity, PageRange};

/// Views of one file may take so many bytes.
const VIEW_BYTES: usize = 8 << 20;

/// One count of a file's cached pages answers for so many entries at least, of which one in so many is asked about.
const LEAST_BELIEVED: u64 = 256;
const SAMPLE: u64 = 8;

pub(super) struct Own {
    pub(super) generation: u32,
    pub(super) handle: Option<Arc<Handle>>,
    pub(super) dev: DeviceId,
    pub(super) ino: u64,
    pub(super) size: u64,
    pub(super) chunk: u64,
    pub(super) view: Arc<FileView>,
    pub(super) account: Arc<Account>,
    /// The kernel says what is cached.
    pub(super) visible: bool,
    /// cachestat counts another inode's pages.
    pub(super) overlaid: bool,
    /// When it was last written to.
    pub(super) stamp: Option<(i64, i64)>,
    /// Whether the view is believed, and of how many more entries; see [`Own::is_as_known`].
    pub(super) believed: (bool, u64),
}

impl Own {
    /// Where it lies; file order stands for that where the file system doesn't tell. `None` if the file can't be read.
    pub(super) fn placement(&self) -> Option<Placement<'_>> {
        self.handle.as_deref().map(Handle::placement)
    }

    /// Where a page lies on the device, in pages: in the file, where the file system doesn't tell. `None` if the file can't be read.
    pub(super) fn place_of(&self, page: u64) -> Option<u64> {
        let (address, _) = self.placement()?.at(page * PAGE).unwrap_or_default();
        Some(address.map_or(page, |address| address / PAGE))
    }

    /// Adds a run of pages to a round, extent by extent.
    pub(super) fn place(&self, file: u16, run: PageRange, need: u32, items: &mut Vec<Item>) {
        let Some(placement) = self.placement() else {
            return;
        };
        let mut at = run.start;
        while at < run.end {
            let (place, end) = match placement.at(at * PAGE) {
                Some((Some(address), end)) => (address / PAGE, end.div_ceil(PAGE)),
                Some((None, end)) => (at, end / PAGE),
                None => (at, run.end),
            };
            let end = end.clamp(at + 1, run.end);
            if items.try_reserve(1).is_ok() {
                items.push(Item::new(place, file, at, (end - at) as u32, need));
            }
            at = end;
        }
    }

    /// Nobody has written to the file since it was opened: no page that we have brought in is dirty.
    pub(super) fn is_unwritten(&self) -> bool {
        let now = self.handle.as_ref().and_then(|h| stamp(h.fd()));
        now.is_some() && now == self.stamp
    }

    /// Nothing of the file is cached but what the view has, and a 64th of it at most that the program may have begun to read itself. One system
    /// call answers for a whole list.
    pub(super) fn is_cold(&self) -> bool {
        self.cached().is_some_and(|cached| self.is_all(cached))
    }

    /// Pages of it that are cached, where the kernel says and soon has counted them.
    fn cached(&self) -> Option<u64> {
        /// A longer file may have so much in the cache that counting takes milliseconds.
        const LONGEST: u64 = 4 << 30;
        let handle = self.handle.as_ref()?;
        let told = self.size <= LONGEST && !self.overlaid;
        let stat = told.then(|| cache::cachestat(handle.fd(), 0..self.size).ok())??;
        Some(stat.cached)
    }

    /// Whether so many cached pages are those of the view, and few more.
    fn is_all(&self, cached: u64) -> bool {
        const SLACK: u64 = 64;
        let known = self.view.present_pages() + self.view.in_flight_pages();
        cached <= known + SLACK.min(self.size / PAGE / 64)
    }

    /// Whether the view may be believed of the next entry: what it has is cached, and what it doesn't have is not. One count of all pages answers for
    /// as many entries as make it cheaper than a question about each; of one entry in [`SAMPLE`] the kernel is asked all the same, since what it takes
    /// may be as much as the program brings.
    pub(super) fn is_as_known(&mut self) -> bool {
        /// A count goes over some four cached pages in the time that an entry's question takes.
        const PAGES: u64 = 4;
        let (is, left) = self.believed;
        if left > 0 {
            self.believed.1 -= 1;
            return is && !left.is_multiple_of(SAMPLE);
        }
        let cached = self.cached();
        let present = self.view.present_pages();
        let is = cached.is_some_and(|cached| {
            self.is_all(cached) && !is_shortage(present.saturating_sub(cached), present)
        });
        self.believed = (is, (cached.unwrap_or(0) / PAGES).max(LEAST_BELIEVED));
        is
    }

    /// The kernel has said of an entry that its pages are not as the view has them: it is asked about the next ones.
    pub(super) fn doubt(&mut self) {
        self.believed = (false, LEAST_BELIEVED);
    }

    /// See [`residency::uncached`].
    pub(super) fn missing(
        &self,
        handle: &Handle,
        pages: PageRange,
        seen: Count,
        out: &mut Vec<PageRange>,
    ) -> u64 {
        let tells = residency::Tells {
            counts: !self.overlaid,
            pages: self.visible,
        };
        residency::uncached(handle, &self.view, pages, seen, tells, out)
    }

    /// What a list wants of the file.
    pub(super) fn intent<'a>(&self, ranges: &'a [ByteRange]) -> Intent<'a> {
        Intent::new(InodeKey::new(self.dev.0, self.ino), ranges, Origin::Lists)
    }
}

/// What is below a file.
#[derive(Clone, Copy)]
pub(super) struct Below {
    in_memory: bool,
    /// What the kernel takes of one request at least, bytes.
    chunk: u64,
}

/// What is below files, by the number of their file system. The kernel is asked anew after a time, since settings change; asking takes some forty system
/// calls, which is longer than fetching a small file.
#[derive(Default)]
pub(super) struct Belows(HashMap<DeviceId, (Instant, Below)>);

impl Belows {
    const BELIEVED: Duration = Duration::from_secs(1);

    fn of(&mut self, fd: BorrowedFd<'_>, dev: DeviceId) -> Below {
        if let Some((asked, below)) = self.0.get(&dev)
            && asked.elapsed() < Self::BELIEVED
        {
            return *below;
        }
        let device = Device::of_fd(fd).ok();
        let below = Below {
            in_memory: device.as_ref().is_some_and(Device::is_memory),
            chunk: device.map_or(64 << 10, |d| d.unclipped_chunk()),
        };
        self.0.insert(dev, (Instant::now(), below));
        below
    }
}

impl Fetcher {
    /// Opens the file of a piece, once.
    pub(super) fn open(&mut self, p: &Piece) {
        if self
            .files
            .get(&p.file)
            .is_some_and(|o| o.generation == p.generation)
        {
            return;
        }
        let known = {
            let state = lock(&self.process.state);
            state.file(p.file).and_then(|f| {
                let fd = f.numbers.first().copied()?;
                // From here on a close of this number waits for us; see Process::closing.
                self.process.opening.store(fd, SeqCst);
                (f.generation == p.generation).then_some((fd, f.thread, f.dev, f.ino))
            })
        };
        let opened = known.map(|(fd, thread, dev, ino)| {
            let opened = fetch::fetch_own(fd, thread, dev, ino);
            (opened, dev, ino)
        });
        self.process.opening.store(-1, SeqCst);
        let Some((opened, dev, ino)) = opened else {
            return;
        };
        let view = FileView::new(Granularity::Page, VIEW_BYTES);
        let mut own = Own {
            generation: p.generation,
            handle: None,
            dev: DeviceId(dev),
            size: 0,
            chunk: 0,
            view: Arc::new(view.among(self.unused.clone())),
            account: Arc::new(Account::among(&self.issued)),
            visible: false,
            overlaid: false,
            stamp: None,
            believed: (false, 0),
            ino,
        };
        match opened {
            Ok((fd, size)) => {
                let below = self.below.of(std::os::fd::AsFd::as_fd(&fd), own.dev);
                own.chunk = below.chunk.min(self.config.engine.chunk.bytes());
                own.size = size;
                own.stamp = stamp(std::os::fd::AsFd::as_fd(&fd));
                let file = std::os::fd::AsFd::as_fd(&fd);
                own.visible = cache::residency_is_visible(file);
                own.overlaid = cache::is_overlaid(file);
                own.handle = (!below.in_memory).then(|| Arc::new(Handle::new(fd)));
            }
            Err(_) => self.process.count(Figure::Failures, 1),
        }
        // What is planned is of the one before.
        self.close_plan();
        self.files.insert(p.file, own);
    }
}

/// When a file was last written to: seconds and nanoseconds.
fn stamp(fd: BorrowedFd<'_>) -> Option<(i64, i64)> {
    let st = raw::fstat(fd.as_raw_fd()).ok()?;
    Some((st.st_mtime, st.st_mtime_nsec))
}
