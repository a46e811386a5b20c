//! Declared access: a program says what it will read, and has it in the page cache in time.
//!
//! A program that knows what it will read declares it, as byte ranges in the order of need. Outrider fetches them ahead of the
//! reads, in the order that suits the device and as far ahead as memory allows, follows the program through the list, and gives
//! up first what is needed last. The program goes on reading with its usual calls. A wrong, stale, empty or hostile list costs
//! time, never correctness.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let path = std::env::temp_dir().join(format!("outrider-doc-lib-{}", std::process::id()));
//! # std::fs::write(&path, vec![7u8; 1 << 20])?;
//! use outrider::{Declared, File};
//!
//! const RECORD: u64 = 64 << 10;
//! let file = File::open(&path)?;
//! let order = [9u64, 3, 12, 0, 7];
//! let _declared = Declared::ranges(&file, order.iter().map(|i| i * RECORD..(i + 1) * RECORD))?;
//! let mut record = vec![0; RECORD as usize];
//! for i in order {
//!     file.read_exact_at(&mut record, i * RECORD)?;
//! }
//! # std::fs::remove_file(&path)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Progress
//!
//! Outrider must know which reads were made. In a Rust program nothing stands between it and the kernel, so reads are told: by
//! [`File`], which wraps [`std::fs::File`] and tells of each read, or by [`reading`], where memory maps, io_uring or other means are
//! used. What is never told is taken for not read yet, and no more is fetched than fits in front of it.
//!
//! # What runs in the program
//!
//! The first list starts a thread that fetches, and up to a few for requests. They block all signals and have a table of
//! descriptors of their own. Memory of the process grows by some 12 bytes per declared range. Where threads or memory are refused
//! everything here succeeds and nothing is prefetched: [`stats`] shows it. A forked child has declared nothing and can't
//! declare; a program that is started by `exec` can.
//!
//! The same interface for C is `outrider.h`; the two may be used in one process.
//!
//! # Calls that are known, not only ranges
//!
#![cfg_attr(
    feature = "graph",
    doc = "[`graph`] is for functions whose system calls are known: they are made ahead, and their results are there when the function calls."
)]
#![cfg_attr(
    not(feature = "graph"),
    doc = "With the feature `graph` there are foreaction graphs, for functions whose system calls are known."
)]
#![warn(missing_docs)]

mod client;
mod declared;
mod file;
mod process;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

pub use client::{Client, Ignoring, Position, Requests, Update};
pub use declared::Declared;
pub use file::File;

/// Foreaction graphs, with the feature `graph` (on by default).
///
/// ```
/// use outrider::graph::{Graph, Next, Op};
///
/// // The attributes of files, all of which will be asked for.
/// let graph = Graph::generator("attributes", |names: &Vec<std::ffi::CString>, i| {
///     match names.get(i as usize) {
///         Some(path) => Next::Call(Op::Fstatat { dir: libc::AT_FDCWD, path, flags: 0 }),
///         None => Next::End,
///     }
/// }).pure();
/// let names = vec![c"/etc".to_owned(), c"/usr".to_owned(), c"/bin".to_owned()];
/// let mut scope = graph.enter(&names);
/// for name in &names {
///     assert_eq!(scope.fstatat(&libc::AT_FDCWD, name, 0)?.st_mode & libc::S_IFMT, libc::S_IFDIR);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[cfg(feature = "graph")]
#[doc(inline)]
pub use outrider_graph as graph;

/// Entries that one list holds; the rest is taken when these were read.
pub const LIST_MAX: usize = outrider_core::declare::LIST_MAX;

/// A part of a file that will be read: an entry of an access list.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    file: BorrowedFd<'a>,
    offset: u64,
    length: u64,
    marked: bool,
}

impl<'a> Entry<'a> {
    /// `length` bytes of `file` from `offset` on. Without bytes, or beyond the file's end, it is left out.
    pub fn new(file: &'a impl AsFd, offset: u64, length: u64) -> Entry<'a> {
        Entry {
            file: file.as_fd(),
            offset,
            length,
            marked: false,
        }
    }

    /// Makes it a landmark: callbacks are told which one was passed last, and [`Update::SetFromMark`] refers to it.
    pub fn marked(mut self) -> Entry<'a> {
        self.marked = true;
        self
    }

    fn access(&self) -> outrider_core::declare::Access {
        outrider_core::declare::Access {
            fd: self.file.as_raw_fd(),
            flags: if self.marked {
                outrider_core::declare::MARKED
            } else {
                0
            },
            offset: self.offset,
            length: self.length,
        }
    }
}

/// Says that `length` bytes of `file` at `offset` are about to be read, or were. Not needed with [`File`].
pub fn reading(file: &impl AsFd, offset: u64, length: u64) {
    process::reading(file.as_fd().as_raw_fd(), offset, length);
}

/// What became of what this process declared, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes in entries that were taken.
    pub declared_bytes: u64,
    /// Bytes found cached when their turn came.
    pub cached_bytes: u64,
    /// Bytes asked for.
    pub fetched_bytes: u64,
    /// Bytes fetched, and read by the program while they were there.
    pub used_bytes: u64,
    /// Bytes fetched, and gone before they were read.
    pub evicted_bytes: u64,
    /// Bytes given up by Outrider: no longer needed, or needed last.
    pub dropped_bytes: u64,
    /// Bytes read through gaps.
    pub infill_bytes: u64,
    /// Rounds of the reorder buffer, or windows when streaming.
    pub rounds: u64,
    /// Reads within a region and not in the list.
    pub diverged_reads: u64,
    /// Calls of callbacks and iterators.
    pub callbacks: u64,
    /// Requests that could not be made.
    pub failures: u64,
}

/// What became of what this process declared, so far.
pub fn stats() -> Stats {
    let [
        declared_bytes,
        cached_bytes,
        fetched_bytes,
        used_bytes,
        evicted_bytes,
        dropped_bytes,
        infill_bytes,
        rounds,
        diverged_reads,
        callbacks,
        failures,
    ] = process::existing().map_or([0; 11], |p| p.figures());
    Stats {
        declared_bytes,
        cached_bytes,
        fetched_bytes,
        used_bytes,
        evicted_bytes,
        dropped_bytes,
        infill_bytes,
        rounds,
        diverged_reads,
        callbacks,
        failures,
    }
}

/// Waits until what is wanted now was asked for; for tests and tools. Fails with [`io::ErrorKind::TimedOut`].
pub fn settle(timeout: Duration) -> io::Result<()> {
    let Some(process) = process::existing() else {
        return Ok(());
    };
    process::error(process.not_in_callback())?;
    process::error(process.settle(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)))
}
