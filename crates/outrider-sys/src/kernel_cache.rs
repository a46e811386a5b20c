//! `/dev/outrider`: the kernel module `outrider_cache`, where it is loaded.
//!
//! One call ([`KernelCache::readahead_info`]) looks a range up in the bitmap that the module keeps of a file's cached pages, starts reading
//! what is missing without the clip of `readahead(2)`, and tells the rest. It needs a descriptor that could be read from, and tells only
//! whom `cachestat` would tell, too: `EPERM` for a file that the caller neither owns nor may write to. [`BLIND`] fetches for others as well.
//! `kernel/outrider_uapi.h` describes the call; a test compares what is declared here with what a C compiler makes of it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{Mode, OFlags};

use crate::raw;
use crate::units::PAGE;

/// Version of the interface that is spoken here.
pub const ABI: i32 = 1;
/// Flag: look only, fetch nothing.
pub const LOOK: u32 = 1 << 0;
/// Flag: fill in free and available memory and the caller's control group.
pub const MEMORY: u32 = 1 << 1;
/// Flag: fetch only, and tell nothing of the file; for whoever may read it.
pub const BLIND: u32 = 1 << 2;
/// ioctl that returns [`ABI`].
pub const VERSION: u32 = 0x6fd0;
/// ioctl of [`ReadaheadInfo`].
pub const READAHEAD_INFO: u32 = 0xc000_6fd1 | (size_of::<ReadaheadInfo>() as u32) << 16;

/// Bits in a word of a bitmap.
const WORD: u64 = 64;

/// `struct outrider_readahead_info`. The first half is what is asked, see `kernel/outrider_uapi.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs)]
pub struct ReadaheadInfo {
    pub size: u32,
    pub flags: u32,
    pub fd: i32,
    pub reserved: u32,
    pub offset: u64,
    pub length: u64,
    pub budget: u64,
    pub bitmap: u64,
    pub bitmap_offset: u64,
    pub bitmap_bytes: u32,
    pub bitmap_written: u32,
    pub bitmap_start: u64,
    pub shift: u32,
    pub readers: u32,
    pub missing: u64,
    pub issued: u64,
    pub next: u64,
    pub cached: u64,
    pub inserted: u64,
    pub removed: u64,
    pub hits: u64,
    pub misses: u64,
    pub free: u64,
    pub available: u64,
    pub group_used: u64,
    pub group_limit: u64,
}

/// An open `/dev/outrider`.
pub struct KernelCache {
    device: raw::Fd,
}

impl KernelCache {
    /// Opens the device. Fails where the module is not loaded (`ENOENT`), the device is not permitted, or the module speaks another
    /// version.
    pub fn open() -> io::Result<KernelCache> {
        let device = rustix::fs::open(
            c"/dev/outrider",
            OFlags::RDWR | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // SAFETY: integers only.
        let abi = unsafe {
            raw::syscall6(
                libc::SYS_ioctl,
                device.as_raw_fd() as usize,
                VERSION as usize,
                0,
                0,
                0,
                0,
            )
        };
        match i32::try_from(abi) {
            Ok(ABI) => Ok(KernelCache {
                device: device.into(),
            }),
            Ok(other) if other >= 0 => Err(io::Error::other(format!(
                "the module speaks version {other} of its interface, this program {ABI}"
            ))),
            _ => Err(io::Error::from_raw_os_error(-abi as i32)),
        }
    }

    /// Looks at the bytes `range` of `fd`'s file, and unless `flags` has [`LOOK`] starts reading what of them is missing. An empty
    /// range asks for nothing; whatever lies behind the end of the file is ignored.
    pub fn readahead_info(
        &self,
        fd: BorrowedFd<'_>,
        range: Range<u64>,
        flags: u32,
    ) -> io::Result<ReadaheadInfo> {
        self.call(fd, range, flags, 0, &mut [])
    }

    /// Bits of the pages of the bytes `range`, one each, from the page in which it begins: whether the page is cached or on its way. `None` for a
    /// file so large that a bit stands for several pages.
    pub fn pages(&self, fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Option<Pages>> {
        let first = range.start / PAGE;
        let end = range.end.div_ceil(PAGE).max(first);
        let start = first / WORD * WORD;
        let mut words = vec![0u64; (end - start).div_ceil(WORD) as usize];
        let info = self.call(fd, range, LOOK, start * PAGE, &mut words)?;
        Ok((info.shift == 0).then_some(Pages { start, words }))
    }

    fn call(
        &self,
        fd: BorrowedFd<'_>,
        range: Range<u64>,
        flags: u32,
        bitmap_offset: u64,
        words: &mut [u64],
    ) -> io::Result<ReadaheadInfo> {
        let mut info = ReadaheadInfo {
            size: size_of::<ReadaheadInfo>() as u32,
            flags,
            fd: fd.as_raw_fd(),
            offset: range.start,
            length: range.end.saturating_sub(range.start),
            bitmap: if words.is_empty() {
                0
            } else {
                words.as_mut_ptr() as u64
            },
            bitmap_offset,
            bitmap_bytes: size_of_val(words) as u32,
            ..ReadaheadInfo::default()
        };
        if info.length == 0 {
            return Ok(info);
        }
        // SAFETY: `info` is the structure that the call reads and writes, and `words` is as long as it says; both outlive it.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_ioctl,
                self.device.as_fd().as_raw_fd() as usize,
                READAHEAD_INFO as usize,
                &raw mut info as usize,
                0,
                0,
                0,
            )
        };
        if r < 0 {
            return Err(io::Error::from_raw_os_error(-r as i32));
        }
        Ok(info)
    }
}

/// Which pages of a range are cached.
#[derive(Clone, Debug)]
pub struct Pages {
    start: u64,
    words: Vec<u64>,
}

impl Pages {
    /// Whether page `page` of the file is cached. What was not asked for is not.
    pub fn is_cached(&self, page: u64) -> bool {
        page.checked_sub(self.start)
            .and_then(|bit| {
                self.words
                    .get((bit / WORD) as usize)
                    .map(|w| w >> (bit % WORD) & 1 == 1)
            })
            .unwrap_or(false)
    }

    /// The next run of cached pages in `pages`.
    pub fn next_run(&self, pages: Range<u64>) -> Option<Range<u64>> {
        let first = pages.clone().find(|p| self.is_cached(*p))?;
        let end = (first..pages.end)
            .find(|p| !self.is_cached(*p))
            .unwrap_or(pages.end);
        Some(first..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_cached_pages() {
        let pages = Pages {
            start: 64,
            words: vec![0b1110, 1 << 63, 1],
        };
        assert!(!pages.is_cached(0) && !pages.is_cached(64) && pages.is_cached(65));
        assert_eq!(pages.next_run(64..256), Some(65..68));
        assert_eq!(pages.next_run(66..67), Some(66..67));
        assert_eq!(pages.next_run(68..400), Some(191..193));
        assert_eq!(pages.next_run(193..400), None);
    }
}
