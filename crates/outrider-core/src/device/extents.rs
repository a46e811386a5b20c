//! Where a file lies on its device, asked once for each open file and remembered.

use outrider_sys::units::ByteRange;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use outrider_sys::extent::{self, Extent, ExtentMap};

/// The extents of one file, in the order of its bytes; none where the file system does not tell.
#[derive(Debug, Default)]
pub struct Extents(OnceLock<ExtentMap>);

/// As many are remembered of one file: 2 MiB of memory. What lies behind them counts as not placed.
const MOST: usize = 1 << 16;

impl Extents {
    /// Those of the file that is open as `fd`.
    pub fn of(&self, fd: BorrowedFd<'_>) -> Placement<'_> {
        let ask = || extent::extents(fd, 0..u64::MAX, MOST).unwrap_or_default();
        let map = self.0.get_or_init(ask);
        Placement {
            extents: &map.extents,
            complete: map.complete,
        }
    }
}

/// Where the bytes of a file lie.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    extents: &'a [Extent],
    /// What lies behind the last extent is a hole.
    complete: bool,
}

/// Bytes of a file that have to be read from the device, and lie there in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Where in the file.
    pub bytes: ByteRange,
    /// The address of the first of them, as FIEMAP tells it, if it does.
    pub address: Option<u64>,
}

impl Placement<'_> {
    /// Whether the file system tells.
    pub fn is_known(&self) -> bool {
        !self.extents.is_empty()
    }

    /// What of a range has to be read from the device, in the order of the file: neither holes nor what was never written. All of it where the file
    /// system doesn't tell.
    pub fn stretches(&self, range: ByteRange) -> impl Iterator<Item = Stretch> {
        let first = self
            .extents
            .partition_point(|e| e.range().end <= range.start);
        let told = self.extents.get(first..).unwrap_or_default();
        let end = self.extents.last().map_or(0, |e| e.range().end);
        let rest = (!self.complete).then_some(Stretch {
            bytes: range.start.max(end)..range.end,
            address: None,
        });
        let within = move |e: &Extent| Stretch {
            bytes: range.start.max(e.logical)..range.end.min(e.range().end),
            address: e
                .is_placed()
                .then_some(e.physical + range.start.saturating_sub(e.logical)),
        };
        told.iter()
            .filter(|e| e.costs_io())
            .map(within)
            .chain(rest)
            .filter(|s| s.bytes.start < s.bytes.end)
    }

    /// The address of byte `at`, as FIEMAP tells it, and where in the file the piece ends that lies there in one; no address where the file system
    /// doesn't tell one. `None` behind the last extent.
    pub fn at(&self, at: u64) -> Option<(Option<u64>, u64)> {
        let i = self.extents.partition_point(|e| e.range().end <= at);
        let e = self.extents.get(i)?;
        Some(match at.checked_sub(e.logical) {
            Some(skipped) => (e.is_placed().then_some(e.physical + skipped), e.range().end),
            // A hole.
            None => (None, e.logical),
        })
    }

    /// The addresses of the first bytes of a range that have to be read from the device, as far as they lie in one piece.
    pub fn addresses(&self, range: &ByteRange) -> Option<Range<u64>> {
        let i = self
            .extents
            .partition_point(|e| e.range().end <= range.start);
        let e = self.extents.get(i)?;
        let skipped = range.start.checked_sub(e.logical)?;
        let bytes = (e.len - skipped).min(range.end - range.start);
        (e.is_placed() && e.costs_io()).then(|| e.physical + skipped..e.physical + skipped + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(logical: u64, physical: u64, len: u64, flags: u32) -> Extent {
        Extent {
            logical,
            physical,
            len,
            flags,
        }
    }

    /// Bytes of a file with a hole, and one extent that isn't placed.
    #[test]
    fn bytes_lie_where_the_file_system_tells() {
        let all = [
            extent(0, 1 << 20, 8192, 0),
            extent(16384, 0, 4096, Extent::UNKNOWN),
        ];
        let p = Placement {
            extents: &all,
            complete: true,
        };
        assert_eq!(p.at(4096), Some((Some((1 << 20) + 4096), 8192)));
        assert_eq!(p.at(8192), Some((None, 16384)));
        assert_eq!(p.at(16384), Some((None, 20480)));
        assert_eq!(p.at(20480), None);
        assert_eq!(
            p.addresses(&(4096..20480)),
            Some((1 << 20) + 4096..(1 << 20) + 8192)
        );
        assert_eq!(p.addresses(&(8192..20480)), None);
        assert!(p.is_known());
    }

    /// Holes and what was never written are not read; what nobody tells of is.
    #[test]
    fn what_lies_nowhere_is_not_read() {
        let all = [
            extent(0, 1 << 20, 8192, 0),
            extent(8192, 2 << 20, 8192, Extent::UNWRITTEN),
            extent(20480, 0, 4096, Extent::INLINE),
        ];
        let read = |complete, extents, range| {
            let p = Placement { extents, complete };
            let read = p.stretches(range).map(|s| (s.bytes, s.address));
            read.collect::<Vec<_>>()
        };
        let told = [
            (4096..8192, Some((1 << 20) + 4096)),
            (20480..24576, None),
            (24576..30000, None),
        ];
        assert_eq!(read(false, &all, 4096..30000), told);
        assert_eq!(read(true, &all, 4096..30000), told[..2]);
        assert_eq!(read(true, &all, 8192..20480), []);
        assert_eq!(read(false, &[], 5..9000), [(5..9000, None)]);
    }
}
