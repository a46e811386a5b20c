//! What threads read beside the queues: what is not known to be ours would be taken for a neighbour's.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};

use outrider_sys::counters;
use outrider_sys::device::UNCLIPPED_CHUNK;
use outrider_sys::raw::{Fd, blocks_read};
use outrider_sys::units::{ByteRange, pieces};

use super::State;
use super::room::Left;
use crate::device::READAHEAD;
use crate::engine::{Engine, Handle, ask};
use crate::lock;

/// Bytes of the smallest block in which file systems read names and inodes: ext4's, where it is small.
pub const LEAST_BLOCK: u64 = 1024;

impl Engine {
    /// Requests that all threads beside the queues have made so far.
    pub fn lane_requests(&self) -> u64 {
        let lanes = self.lanes();
        let of = |lane: &Arc<State>| lane.counts().iter().map(|t| t.requests()).sum::<u64>();
        lanes.iter().map(of).sum()
    }

    /// Threads that may be reading beside the queues.
    #[cfg(test)]
    pub(super) fn lane_threads(&self) -> usize {
        let reads = |lane: &Arc<State>| {
            let counts = lane.counts();
            counts.iter().filter(|t| t.reads.load(Acquire)).count()
        };
        self.lanes().iter().map(reads).sum()
    }

    /// The lane, and those that have threads of their own.
    fn lanes(&self) -> Vec<Arc<State>> {
        let apart = lock(&self.shared.lanes_apart);
        let apart = apart.iter().filter_map(Weak::upgrade);
        std::iter::once(self.shared.lane.clone())
            .chain(apart)
            .collect()
    }
}

/// What a thread reads beside the queues.
pub struct Thread {
    counts: Arc<Counts>,
    /// What it has not waited for.
    pub(super) left: RefCell<Left>,
}

/// The same, for whoever counts requests.
pub(in crate::engine) struct Counts {
    /// What the kernel counts for it, while it reads.
    io: Option<Fd>,
    reads: AtomicBool,
    /// Blocks of 512 bytes that it had read when it read last.
    blocks: AtomicU64,
    /// Bytes of files among them …
    data: AtomicU64,
    /// … and the requests that these were asked for by.
    pieces: AtomicU64,
    /// While bytes of a file are asked for, what it had read before, bytes, and one.
    asks_from: AtomicU64,
}

impl Thread {
    /// The calling thread, whose reads are counted by the second half.
    pub(super) fn begin() -> (Thread, Arc<Counts>) {
        let counts = Arc::new(Counts {
            io: counters::of_this_thread().ok(),
            reads: AtomicBool::new(false),
            blocks: AtomicU64::new(0),
            data: AtomicU64::new(0),
            pieces: AtomicU64::new(0),
            asks_from: AtomicU64::new(0),
        });
        let thread = Thread {
            counts: counts.clone(),
            left: RefCell::default(),
        };
        (thread, counts)
    }

    /// Reads are made from here on, as long as the result lives.
    pub fn reads(&self) -> Reads<'_> {
        self.counts.reads.store(true, Release);
        Reads(&self.counts)
    }

    /// Has bytes of a file fetched, as far as they are missing, by requests that no kernel clips. Bytes that the kernel had read for that.
    pub(super) fn fetch(&self, file: &Handle, range: ByteRange) -> io::Result<u64> {
        let mut all = 0;
        for piece in pieces(range, UNCLIPPED_CHUNK) {
            let before = blocks_read();
            let counts = &self.counts;
            counts.asks_from.store(before as u64 * 512 + 1, Release);
            let asked = ask(file.fd(), piece);
            let bytes = (blocks_read() - before) as u64 * 512;
            if bytes > 0 {
                let requests = bytes.div_ceil(READAHEAD);
                counts.pieces.fetch_add(requests, AcqRel);
                counts.data.fetch_add(bytes, AcqRel);
            }
            counts.asks_from.store(0, Release);
            asked?;
            all += bytes;
        }
        Ok(all)
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
    /// Requests so far, at most: names, inodes and lists are read block by block. Whoever takes what a thread is just having fetched of a file for these counts a
    /// hundred too many, and misses as many later on.
    fn requests(&self) -> u64 {
        let asks_from = self.asks_from.load(Acquire);
        let (data, pieces) = (self.data.load(Acquire), self.pieces.load(Acquire));
        let now = || counters::fetched(self.io.as_ref()?);
        let read = match self.reads.load(Acquire) {
            true => now(),
            false => None,
        };
        let read: u64 = read.unwrap_or_else(|| self.blocks.load(Acquire) * 512);
        requests(read, data, pieces, asks_from)
    }
}

/// Requests by which `read` bytes came, of which `data` bytes of files did by so many `pieces`; `asks_from`: what had been read before the piece that is being asked for,
/// bytes, and one.
fn requests(read: u64, data: u64, pieces: u64, asks_from: u64) -> u64 {
    let before = match asks_from {
        0 => read,
        from => read.min(from - 1),
    };
    let piece = (read - before).div_ceil(READAHEAD);
    pieces + piece + before.saturating_sub(data) / LEAST_BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DR7: a piece of a file is one request, also while it is being asked for: what is counted never becomes less, so that nobody is hidden or made up by it.
    #[test]
    fn a_piece_is_one_request() {
        let (block, piece) = (4096, READAHEAD);
        let (mut read, mut data, mut pieces, mut last) = (0, 0, 0, 0);
        for _ in 0..100 {
            read += block;
            let looked_up = requests(read, data, pieces, 0);
            let from = read + 1;
            let begins = requests(read, data, pieces, from);
            read += piece;
            let goes_on = requests(read, data, pieces, from);
            data += piece;
            pieces += 1;
            let done = requests(read, data, pieces, 0);
            assert!(last <= looked_up && looked_up == begins);
            assert_eq!((goes_on, done), (begins + 1, begins + 1));
            last = done;
        }
        assert_eq!(last, 100 * (1 + block / LEAST_BLOCK));
    }
}
