//! Where a file's bytes lie on its device, from the `FIEMAP` ioctl.
//!
//! Reading in physical order is what turns a heap of fragments into one sweep of a disk's head. File
//! systems that have no extents to tell (tmpfs, NFS, most FUSE ones) refuse the ioctl; the answer is
//! then `None`, and callers fall back to file order.

use crate::units::ByteRange;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::raw;

/// One contiguous run of a file's bytes on its device. All numbers are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset in the file.
    pub logical: u64,
    /// Offset on the device that the file system lies on; meaningless unless [`Extent::is_placed`].
    pub physical: u64,
    /// Length. The last extent may reach beyond the end of the file.
    pub len: u64,
    /// `FIEMAP_EXTENT_*` flags of `linux/fiemap.h`.
    pub flags: u32,
}

impl Extent {
    /// `FIEMAP_EXTENT_LAST`: nothing follows in this file.
    pub const LAST: u32 = 0x1;
    /// `FIEMAP_EXTENT_UNKNOWN`: the physical offset is not known (delayed allocation sets it too).
    pub const UNKNOWN: u32 = 0x2;
    /// `FIEMAP_EXTENT_DELALLOC`: not allocated yet, its data is in the page cache only.
    pub const DELALLOC: u32 = 0x4;
    /// `FIEMAP_EXTENT_ENCODED`: compressed or encrypted; fewer bytes on the device than in the file.
    pub const ENCODED: u32 = 0x8;
    /// `FIEMAP_EXTENT_DATA_INLINE`: kept inside the file system's metadata.
    pub const INLINE: u32 = 0x200;
    /// `FIEMAP_EXTENT_UNWRITTEN`: allocated, but reads as zeros without touching the device.
    pub const UNWRITTEN: u32 = 0x800;
    /// `FIEMAP_EXTENT_SHARED`: other files use the same place.
    pub const SHARED: u32 = 0x2000;

    /// True if `physical` says where on the device the bytes are.
    pub fn is_placed(&self) -> bool {
        self.flags & (Self::UNKNOWN | Self::DELALLOC | Self::INLINE) == 0
    }

    /// True if reading the bytes makes the device work: neither unwritten nor still to be allocated.
    pub fn costs_io(&self) -> bool {
        self.flags & (Self::UNWRITTEN | Self::DELALLOC) == 0
    }

    /// The bytes of the file that the extent holds.
    pub fn range(&self) -> ByteRange {
        self.logical..self.logical.saturating_add(self.len)
    }
}

/// The extents of one byte range of a file, in file order. Gaps between them are holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtentMap {
    /// In file order, without overlap.
    pub extents: Vec<Extent>,
    /// False if the file had more extents than the caller wanted.
    pub complete: bool,
}

const FS_IOC_FIEMAP: usize = 0xC020_660B;
const PER_CALL: usize = 128;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; PER_CALL],
}

/// The extents that hold bytes of `range` of `fd`, at most `limit` of them, 128 per call.
///
/// Nothing is flushed for it (`FIEMAP_FLAG_SYNC` is not set): data not yet allocated appears as
/// [`Extent::DELALLOC`]. Blocks while the file system reads its own metadata from the device. `None` where
/// the file system has no answer.
pub fn extents(fd: BorrowedFd<'_>, range: ByteRange, limit: usize) -> Option<ExtentMap> {
    let mut map = ExtentMap {
        extents: Vec::new(),
        complete: true,
    };
    let mut at = range.start;
    while at < range.end {
        let mut request = Request {
            start: at,
            length: range.end - at,
            flags: 0,
            mapped_extents: 0,
            extent_count: PER_CALL as u32,
            reserved: 0,
            extents: [RawExtent::default(); PER_CALL],
        };
        // SAFETY: `request` is a `struct fiemap` followed by `extent_count` extents, as the ioctl
        // demands, and outlives the call.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_ioctl,
                fd.as_raw_fd() as usize,
                FS_IOC_FIEMAP,
                &raw mut request as usize,
                0,
                0,
                0,
            )
        };
        if r < 0 {
            return None;
        }
        let got = (request.mapped_extents as usize).min(PER_CALL);
        for e in &request.extents[..got] {
            if map.extents.len() == limit {
                map.complete = false;
                return Some(map);
            }
            let extent = Extent {
                logical: e.logical,
                physical: e.physical,
                len: e.length,
                flags: e.flags,
            };
            // A file that changes between two calls may repeat itself; order is what callers rely on.
            if map
                .extents
                .last()
                .is_none_or(|l| l.range().end <= extent.logical)
            {
                map.extents.push(extent);
            }
            at = at.max(extent.range().end);
        }
        if got < PER_CALL || request.extents[got - 1].flags & Extent::LAST != 0 {
            break;
        }
    }
    Some(map)
}
