//! Units in which files are spoken of.

use std::ops::Range;

/// Bytes of a page, of memory and of the page cache: the kernels this runs on use 4 KiB pages
/// (asm/page.h).
pub const PAGE: u64 = 4096;

/// Number of pages that a file of `bytes` occupies.
pub fn pages_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE)
}

/// What tells a file from all others that exist at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeKey {
    /// Its file system: `st_dev`.
    pub dev: u64,
    /// Its number there: `st_ino`.
    pub ino: u64,
}

impl InodeKey {
    /// The file with this `st_dev` and `st_ino`.
    pub fn new(dev: u64, ino: u64) -> InodeKey {
        InodeKey { dev, ino }
    }

    /// Its file system.
    pub fn device(self) -> DeviceId {
        DeviceId(self.dev)
    }
}

/// A device by its number, as `st_dev` and `st_rdev` have it: the disk that bytes come from, or a file system that lies on one disk, on several or on none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u64);

impl DeviceId {
    /// The device with these parts of a number.
    pub fn new(major: u32, minor: u32) -> DeviceId {
        DeviceId(rustix::fs::makedev(major, minor))
    }

    /// Major number; 0 for file systems without a block device of their own.
    pub fn major(self) -> u32 {
        rustix::fs::major(self.0)
    }

    /// Minor number.
    pub fn minor(self) -> u32 {
        rustix::fs::minor(self.0)
    }
}

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major(), self.minor())
    }
}

/// Bytes `start..end` of a file, from its start.
pub type ByteRange = Range<u64>;

/// A half-open range `start..end` of page indices (units: 4096-byte pages from the file's start).
///
/// Any pair is allowed; where `end <= start` the range is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// First page.
    pub start: u64,
    /// One past the last page.
    pub end: u64,
}

impl PageRange {
    /// The pages `start..end`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// The pages touched by `len` bytes from byte `offset`, rounded outward. A range that would pass
    /// the end of the 64-bit offset space stops there; no bytes touch no pages.
    pub const fn from_bytes(offset: u64, len: u64) -> Self {
        let start = offset / PAGE;
        if len == 0 {
            return Self { start, end: start };
        }
        Self {
            start,
            end: offset.saturating_add(len).div_ceil(PAGE),
        }
    }

    /// All bytes of the pages.
    pub const fn bytes(&self) -> ByteRange {
        self.start * PAGE..self.end * PAGE
    }

    /// Number of pages.
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range holds no page.
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// The pages in both ranges; empty (with `start == end`) where there are none.
    pub fn intersect(&self, other: PageRange) -> PageRange {
        let start = self.start.max(other.start);
        PageRange {
            start,
            end: self.end.min(other.end).max(start),
        }
    }
}

/// The bytes `range` in pieces that end at multiples of `chunk` bytes: neighbours meet on the borders of pages where `chunk` is a multiple of these, and no piece is
/// longer than that. `chunk` 0 counts as 1.
pub fn pieces(range: ByteRange, chunk: u64) -> impl Iterator<Item = ByteRange> {
    let chunk = chunk.max(1);
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = range
            .end
            .min((start / chunk).saturating_add(1).saturating_mul(chunk));
        (start < range.end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::pieces;

    /// CP4: pieces make up the range, in order, and end at multiples of the chunk.
    #[test]
    fn pieces_make_up_a_range() {
        let cut = |range, chunk| pieces(range, chunk).collect::<Vec<_>>();
        assert_eq!(cut(5..23, 10), [5..10, 10..20, 20..23]);
        assert_eq!(cut(10..20, 10), [10..20]);
        assert!(cut(7..7, 10).is_empty());
        assert_eq!(cut(3..5, 0), [3..4, 4..5]);
        assert_eq!(cut(u64::MAX - 1..u64::MAX, 4096), [u64::MAX - 1..u64::MAX]);
    }
}
