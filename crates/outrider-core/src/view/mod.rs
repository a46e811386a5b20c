//! What we believe is in the page cache of one file.
//!
//! A prefetcher that cannot see the cache asks for what is already there: every such request costs a
//! system call, a walk of the page-cache tree under its lock, and a place in the queue in front of a
//! request that matters. So every file (inode, not descriptor) has a *view*: per page, is it missing,
//! on its way, or present, and has the program read what we fetched for it. The planner subtracts the
//! view from what a source foresees and only the rest becomes requests (SPEC CP4). Many threads read
//! one file, and one bitmap under one lock would make them queue for a data structure that exists to
//! save them waiting; hence a concurrent range tree (SPEC CP5; CrossPrefetch, section 4.5): each node
//! covers a contiguous range, embeds its bitmap, and has its own lock.
//!
//! # A belief, not a fact
//!
//! The kernel evicts without telling us, so the view errs, and it is built so that the usual error is
//! the cheap one. A page wrongly believed missing costs a redundant request. A page wrongly believed
//! present costs a read that nobody prefetched. When memory for the view runs out, pages are therefore
//! *forgotten* (they become missing), never assumed.
//!
//! # Structure
//!
//! [`FileView`] holds a skeleton, an ordered map from a node's first page to the node, behind a
//! reader-writer lock. A call that finds its node takes the skeleton's lock for reading and that node's
//! mutex; threads in different nodes share nothing else (the file's totals are written only when a
//! page changes state). A node grows to the right under these two locks alone, since the gap behind a
//! node belongs to that node until a writer comes. Everything that adds, removes or re-keys a node
//! takes the skeleton for writing, one segment at a time: creating, growing to the left, merging,
//! splitting, shrinking.
//!
//! What threads in different nodes still share is the count of readers in the skeleton's lock. Measured
//! on two cores (`tests/view_speed.rs`), an access costs about 65 ns alone and 35 to 65 ns more
//! with a second thread on the file, in whichever node. Should that ever matter beside a system call,
//! the skeleton can be replicated per group of threads; nodes need not change.
//!
//! A node covers at most [`NODE_MAX_PAGES`] and never crosses a multiple of it. Missing runs shorter
//! than 64 units (one bitmap word; see [`Granularity`] for the unit) live inside a node, as zero bits;
//! longer ones separate two nodes. A node whose pages are all alike has no bitmap at all: a file read
//! through from start to end costs one small node per 64 MiB.
//!
//! # Bounds
//!
//! Work is proportional to the bitmap words and nodes touched, never to the file's size. A call creates
//! at most as many nodes as fit in three quarters of the view's memory cap; what a longer range asks
//! for beyond that stays missing. Memory may pass the cap by a bitmap (6 KiB) per thread for the
//! length of a call. Pages from 2^52 on ([`MAX_PAGES`]) cannot exist in a file with 64-bit
//! offsets and are ignored everywhere.

mod bitmap;
mod file_view;
mod node;

pub use file_view::{FileView, Unused};

use outrider_sys::units::PAGE;
pub use outrider_sys::units::PageRange;

/// Pages a file can have at most: 2^64 bytes.
pub const MAX_PAGES: u64 = u64::MAX / PAGE + 1;

/// A node spans at most this many pages (64 MiB), and never crosses a multiple of it.
///
/// It bounds two things. The time a node's lock is held: 256 words of bitmap are walked within
/// about a microsecond. And what a structural change copies: 6 KiB at most, when nodes merge or split
/// while the skeleton is locked for writing. The fixed grid makes the bound local: a merge can never
/// cascade over a boundary, so no call restructures more than the segments that its range touches.
pub const NODE_MAX_PAGES: u64 = 16384;

/// Pages per bit in [`Granularity::Coarse`]: 128 KiB, the size of request that no kernel clips.
pub const COARSE_PAGES: u64 = 32;

/// What one bit of a view stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// One page.
    #[default]
    Page,
    /// A block of [`COARSE_PAGES`] pages, aligned to that many: bitmaps take 1/32 of the memory.
    ///
    /// A missing block changes only through a call whose range covers it wholly: an absent page is
    /// never called present because its neighbour is. A block that is in flight or present changes
    /// through any call that touches it: 128 KiB is one request to the device, so what is true of one
    /// of its pages is taken to be true of all. Hence reads and prefetches smaller than a block leave
    /// no trace on missing blocks, and whoever prefetches rounds requests outward to whole blocks
    /// (past the end of the file too). Numbers of pages that are about state (totals, newly in flight,
    /// first use, lost) count 32 for a block; hits, late pages and misses count the pages read.
    Coarse,
}

impl Granularity {
    /// Pages per unit, a unit being what one bit stands for.
    pub(crate) const fn pages_per_unit(self) -> u64 {
        match self {
            Granularity::Page => 1,
            Granularity::Coarse => COARSE_PAGES,
        }
    }
}

/// Where a page is believed to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Residency {
    /// Not in the page cache, or unknown.
    #[default]
    Missing,
    /// A prefetch of it was issued and is not known to have arrived.
    InFlight,
    /// In the page cache.
    Present,
}

/// All that a view knows about one page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageState {
    /// Where it is.
    pub residency: Residency,
    /// Prefetched by us and not read by the program since.
    pub unused: bool,
}

/// How many pages of a range are what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Pages believed to be in the page cache.
    pub present_pages: u64,
    /// Pages on their way.
    pub in_flight_pages: u64,
    /// Of both, pages prefetched by us and not read by the program since.
    pub unused_pages: u64,
}

/// What a read of the program found, in pages: `hit + late + miss` is the length of the read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Access {
    /// Pages that were present.
    pub hit_pages: u64,
    /// Pages that were on their way: the program waits for (part of) a prefetch.
    pub late_pages: u64,
    /// Pages that nobody had asked for.
    pub miss_pages: u64,
    /// Pages prefetched by us which the program read for the first time now.
    pub first_use_pages: u64,
}

/// What became missing, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Pages that were present.
    pub present_pages: u64,
    /// Pages, present or in flight, that were prefetched and never read: wasted.
    pub unused_pages: u64,
}
