//! Where a file lies on its device, asked once for each open file and remembered.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use outrider_sys::extent::{self, Extent};

/// The extents of one file, in the order of its bytes; none where the file system does not tell.
#[derive(Debug, Default)]
pub struct Extents(OnceLock<Vec<Extent>>);

/// As many are remembered of one file: 2 MiB of memory. What lies behind them counts as not placed.
const MOST: usize = 1 << 16;

impl Extents {
    /// Those of the file that is open as `fd`.
    pub fn of(&self, fd: BorrowedFd<'_>) -> Placement<'_> {
        let ask = || extent::extents(fd, 0..u64::MAX, MOST).map_or_else(Vec::new, |m| m.extents);
        Placement(self.0.get_or_init(ask))
    }
}

/// Where the bytes of a file lie.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a>(&'a [Extent]);

impl Placement<'_> {
    /// Whether the file system tells.
    pub fn is_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// The address of byte `at`, as FIEMAP tells it, and where in the file the piece ends that lies there in one; no address where the file system
    /// doesn't tell one. `None` behind the last extent.
    pub fn at(&self, at: u64) -> Option<(Option<u64>, u64)> {
        let i = self.0.partition_point(|e| e.range().end <= at);
        let e = self.0.get(i)?;
        Some(match at.checked_sub(e.logical) {
            Some(skipped) => (e.is_placed().then_some(e.physical + skipped), e.range().end),
            // A hole.
            None => (None, e.logical),
        })
    }

    /// The addresses of the first bytes of a range that have to be read from the device, as far as they lie in one piece.
    pub fn addresses(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let i = self.0.partition_point(|e| e.range().end <= range.start);
        let e = self.0.get(i)?;
        let skipped = range.start.checked_sub(e.logical)?;
        let bytes = (e.len - skipped).min(range.end - range.start);
        (e.is_placed() && e.costs_io()).then(|| e.physical + skipped..e.physical + skipped + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a file with a hole, and one extent that isn't placed.
    #[test]
    fn bytes_lie_where_the_file_system_tells() {
        let extent = |logical, physical, len, flags| Extent {
            logical,
            physical,
            len,
            flags,
        };
        let all = [
            extent(0, 1 << 20, 8192, 0),
            extent(16384, 0, 4096, Extent::UNKNOWN),
        ];
        let p = Placement(&all);
        assert_eq!(p.at(4096), Some((Some((1 << 20) + 4096), 8192)));
        assert_eq!(p.at(8192), Some((None, 16384)));
        assert_eq!(p.at(16384), Some((None, 20480)));
        assert_eq!(p.at(20480), None);
        assert_eq!(
            p.addresses(&(4096..20480)),
            Some((1 << 20) + 4096..(1 << 20) + 8192)
        );
        assert_eq!(p.addresses(&(8192..20480)), None);
        assert!(p.is_known() && !Placement(&[]).is_known());
    }
}
