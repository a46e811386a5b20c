//! Which pages of a process's memory are present: /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use crate::raw::{self, Fd};
use crate::text;
use crate::units::PAGE;

/// Regions taken from one scan.
const REGIONS: usize = 512;
/// Scans of one span at most.
const SCANS: u32 = 16;
/// Entries read at once.
const ENTRIES: usize = 4096;
/// Pages of one span whose entries are read, at most: 1 GiB of memory, 2 MiB of entries.
const MOST_ENTRIES: u64 = 1 << 18;
/// `_IOWR('f', 16, struct pm_scan_arg)` of linux/fs.h, since Linux 6.7.
const PAGEMAP_SCAN: usize = 0xc060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// Bit 63 of an entry.
const ENTRY_PRESENT: u64 = 1 << 63;

/// `struct pm_scan_arg` of linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// The open page map of a process.
pub struct Pagemap {
    file: Fd,
}

impl Pagemap {
    /// That of process `pid`. An error where it is gone or may not be looked at.
    pub fn of(pid: u32) -> io::Result<Pagemap> {
        Self::open(&format!("/proc/{pid}/pagemap"))
    }

    /// The calling process's own.
    pub fn own() -> io::Result<Pagemap> {
        Self::open("/proc/self/pagemap")
    }

    fn open(path: &str) -> io::Result<Pagemap> {
        let file = text::open(Path::new(path))?;
        Ok(Pagemap { file })
    }

    /// Tells `found` the present ranges of the addresses `span`, ascending, with the `PAGEMAP_SCAN` ioctl (Linux 6.7). A span
    /// with very many of them is scanned in part. After an error `found` may have been told some.
    pub fn scan(&self, span: Range<u64>, mut found: impl FnMut(Range<u64>)) -> io::Result<()> {
        let mut regions = [Region::default(); REGIONS];
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: span.start,
            end: span.end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            category_mask: PAGE_IS_PRESENT,
            return_mask: PAGE_IS_PRESENT,
            ..ScanArg::default()
        };
        for _ in 0..SCANS {
            if arg.start >= span.end {
                break;
            }
            // SAFETY: `arg` and the regions that it points to outlive the call.
            let n = unsafe {
                raw::syscall6(
                    libc::SYS_ioctl,
                    self.file.as_raw_fd() as usize,
                    PAGEMAP_SCAN,
                    &raw mut arg as usize,
                    0,
                    0,
                    0,
                )
            };
            if n < 0 {
                return Err(io::Error::from_raw_os_error(-n as i32));
            }
            for r in regions.iter().take(n as usize) {
                found(r.start..r.end);
            }
            if arg.walk_end <= arg.start {
                break;
            }
            arg.start = arg.walk_end;
        }
        Ok(())
    }

    /// The same for any kernel, by reading eight bytes a page; of a span of more than 1 GiB the first 1 GiB.
    pub fn read(&self, span: Range<u64>, mut found: impl FnMut(Range<u64>)) -> io::Result<()> {
        let first = span.start / PAGE;
        let end = span.end.div_ceil(PAGE).min(first + MOST_ENTRIES);
        let mut buffer = [0u8; ENTRIES * 8];
        let mut at = first;
        while at < end {
            let want = ((end - at) as usize).min(ENTRIES) * 8;
            let n = rustix::io::pread(self.file.as_fd(), &mut buffer[..want], at * 8)? / 8;
            if n == 0 {
                break;
            }
            for entry in buffer[..n * 8].chunks_exact(8) {
                let entry = u64::from_ne_bytes([
                    entry[0], entry[1], entry[2], entry[3], entry[4], entry[5], entry[6], entry[7],
                ]);
                if entry & ENTRY_PRESENT != 0 {
                    found(at * PAGE..(at + 1) * PAGE);
                }
                at += 1;
            }
        }
        Ok(())
    }
}
