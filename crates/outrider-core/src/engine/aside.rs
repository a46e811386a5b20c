//! Reads of ours that pass the queues by: those of walks, which wait for each of them themselves.
//!
//! They are on their way to the same devices, and whoever else reads there waits behind them no less than behind what the engine asks for. So a walk asks the
//! engine for room before it asks the device for anything, and its threads say what they have read: what is not known to be ours would be taken for a neighbour's.

use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use outrider_sys::cache::UNCLIPPED_CHUNK;
use outrider_sys::counters;
use outrider_sys::raw::{Fd, blocks_read};
use outrider_sys::units::pieces;

use super::{Device, Engine, Handle, Shared, ask};
use crate::device::{READAHEAD, Sharing};

/// How often whoever waits for room looks whether it is wanted no more.
const LOOK: Duration = Duration::from_millis(5);

/// Bytes of the smallest block in which file systems read names and inodes: ext4's, where it is small.
pub const LEAST_BLOCK: u64 = 1024;

/// A way to devices beside the engine's queues.
#[derive(Clone)]
pub struct Aside {
    shared: Arc<Shared>,
}

impl Engine {
    /// A way for those who wait for their reads themselves.
    pub fn aside(&self) -> Aside {
        Aside {
            shared: self.shared.clone(),
        }
    }

    /// Requests that all threads beside the queues have made so far.
    pub fn requests_aside(&self) -> u64 {
        let threads = self.shared.aside.lock();
        let threads = threads.unwrap_or_else(PoisonError::into_inner);
        threads.iter().map(|t| t.requests()).sum()
    }

    /// Threads that may be reading beside the queues.
    pub fn threads_aside(&self) -> usize {
        let threads = self.shared.aside.lock();
        let threads = threads.unwrap_or_else(PoisonError::into_inner);
        threads.iter().filter(|t| t.reads.load(Relaxed)).count()
    }
}

impl Aside {
    /// Room for `bytes` on their way from a device, by `st_dev` or the number of a disk: at once where nobody else reads from it, and otherwise as soon as they fit its
    /// bound. `None` once `unwanted` says so.
    pub fn enter(&self, device: u64, bytes: u64, unwanted: impl Fn() -> bool) -> Option<Way> {
        let mut way = Way {
            shared: self.shared.clone(),
            device,
            bytes: 0,
        };
        way.grow(bytes, unwanted).then_some(way)
    }

    /// The calling thread begins to read beside the queues.
    pub fn thread(&self) -> Thread {
        let counts = Arc::new(Counts {
            io: counters::of_this_thread().ok(),
            reads: AtomicBool::new(false),
            blocks: AtomicU64::new(0),
            data: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
        });
        let mut threads = self
            .shared
            .aside
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        threads.push(counts.clone());
        Thread(counts)
    }
}

/// Bytes on their way, until this is dropped.
pub struct Way {
    shared: Arc<Shared>,
    device: u64,
    bytes: u64,
}

impl Way {
    /// Waits until so many bytes more fit; `false` if they are `unwanted` before.
    pub fn grow(&mut self, bytes: u64, unwanted: impl Fn() -> bool) -> bool {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        if state.devices.iter().all(|d| d.id != self.device) {
            // Somebody will look who else is there.
            state.device(self.device, bounds).sharing = Sharing::Unknown;
        }
        // Who waits has nothing on its way: it keeps nobody else waiting.
        let had = std::mem::take(&mut self.bytes);
        let bytes = had + bytes;
        let d = state.device(self.device, bounds);
        d.aside_bytes = d.aside_bytes.saturating_sub(had);
        let mut waits = false;
        loop {
            let d = state.device(self.device, bounds);
            if d.aside_bytes == 0 || d.aside_bytes + bytes <= d.bound_aside() {
                d.aside_bytes += bytes;
                d.entered += 1;
                self.bytes = bytes;
                return true;
            }
            if !std::mem::replace(&mut waits, true) && had > 0 {
                self.shared.room.notify_all();
            }
            state.wait_aside += 1;
            let waited = self.shared.room.wait_timeout(state, LOOK);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            state.wait_aside -= 1;
            if state.stop || unwanted() {
                return false;
            }
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let d = state.device(self.device, bounds);
        d.aside_bytes = d.aside_bytes.saturating_sub(self.bytes);
        let waits = state.wait_aside > 0;
        drop(state);
        if waits {
            self.shared.room.notify_all();
        }
    }
}

impl Device {
    /// Bytes on their way beside the queues at most. Who reads in a stream waits for it with nothing to do, and has what the kernel's own readahead has on its way besides;
    /// little is added to that.
    fn bound_aside(&self) -> u64 {
        let streams = self.in_flight_bytes + self.queued_bytes > 0;
        match self.sharing {
            Sharing::Exclusive => u64::MAX,
            _ if streams => self.bound() / 4,
            // The walking program may have a window of its own on its way.
            Sharing::Shared => self.bound() / 2,
            Sharing::Unknown => self.bound(),
        }
    }
}

/// What a thread reads beside the queues.
pub struct Thread(Arc<Counts>);

/// The same, for whoever counts requests.
pub(super) struct Counts {
    /// What the kernel counts for it, while it reads.
    io: Option<Fd>,
    reads: AtomicBool,
    /// Blocks of 512 bytes that it had read when it read last.
    blocks: AtomicU64,
    /// Bytes of files among them …
    data: AtomicU64,
    /// … and the requests that these were asked for by.
    pieces: AtomicU64,
}

impl Thread {
    /// Reads are made from here on, as long as the result lives.
    pub fn reads(&self) -> Reads<'_> {
        self.0.reads.store(true, Release);
        Reads(&self.0)
    }

    /// Has bytes of a file fetched, as far as they are missing, by requests that no kernel clips.
    pub fn fetch(&self, file: &Handle, range: Range<u64>) -> io::Result<()> {
        for piece in pieces(range, UNCLIPPED_CHUNK) {
            let before = blocks_read();
            ask(file.fd(), piece)?;
            let bytes = (blocks_read() - before) as u64 * 512;
            if bytes > 0 {
                let requests = bytes.div_ceil(READAHEAD);
                self.0.pieces.fetch_add(requests, AcqRel);
                self.0.data.fetch_add(bytes, AcqRel);
            }
        }
        Ok(())
    }
}

/// See [`Thread::reads`].
pub struct Reads<'a>(&'a Counts);

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        self.0.blocks.store(blocks_read() as u64, Release);
        self.0.reads.store(false, Release);
    }
}

impl Counts {
    /// Requests so far, at most: names, inodes and lists are read block by block.
    fn requests(&self) -> u64 {
        let (data, pieces) = (self.data.load(Acquire), self.pieces.load(Acquire));
        let now = || counters::fetched(self.io.as_ref()?);
        let read = match self.reads.load(Acquire) {
            true => now(),
            false => None,
        };
        let read: u64 = read.unwrap_or_else(|| self.blocks.load(Acquire) * 512);
        pieces + read.saturating_sub(data) / LEAST_BLOCK
    }
}
