//! What of a file is in the page cache, and how to bring it in or let it go.
//!
//! Two calls tell residency. `cachestat(2)` (Linux 6.5) counts the pages of a range in a fraction of
//! a microsecond, from the moment a page is inserted, so a page whose read is still in flight counts.
//! `mincore(2)` tells page by page, counts a page once its data has arrived, and costs a mapping. The
//! kernel hides other people's files from both, but differently: where the caller neither owns the
//! file nor may write to it, `cachestat` fails with `EPERM` and `mincore` claims that every page is
//! resident. [`residency_is_visible`] tells that case from the truth.
//!
//! `readahead(2)` and `POSIX_FADV_WILLNEED` read at most max(read_ahead_kb, max_sectors_kb) of the
//! device per call and report success whatever they left out. Whoever fetches therefore asks in pieces
//! of [`device::UNCLIPPED_CHUNK`].
//!
//! Nothing here goes through libc's public names, so the functions may be called in a process whose
//! libc is hooked.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::mm::{MapFlags, ProtFlags};

use crate::units::{ByteRange, PAGE};
use crate::{device, raw, valgrind};

/// Bytes mapped at once by [`mincore`] and [`populate`], so that a huge file costs bounded address
/// space and result memory (one byte a page).
const MAP_PART: u64 = 1 << 30;

/// The number of cachestat(2), the same on every architecture; Linux 6.5.
pub const SYS_CACHESTAT: i64 = 451;

/// Counts of pages in one byte range of one file, as `cachestat(2)` returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CacheStat {
    /// Pages in the page cache, those whose read is still in flight included.
    pub cached: u64,
    /// Of these, pages that differ from the device.
    pub dirty: u64,
    /// Of these, pages being written to the device.
    pub writeback: u64,
    /// Pages that were in the cache, left under memory pressure and whose trace is still kept.
    /// `DONTNEED` leaves no trace.
    pub evicted: u64,
    /// Of these, pages that left so recently that the kernel counts their return as thrashing.
    pub recently_evicted: u64,
}

/// Why `cachestat(2)` gave no answer.
#[derive(Debug)]
pub enum CacheStatError {
    /// The caller neither owns the file nor may write to it (`EPERM`).
    NotPermitted,
    /// A filter of system calls (seccomp) or a security module answers in the kernel's place.
    Refused,
    /// The kernel is older than 6.5, a seccomp filter hides the call (`ENOSYS`), Valgrind doesn't know it, or the file
    /// system has no page cache (`EOPNOTSUPP`).
    Unsupported,
    /// Anything else, such as a bad descriptor.
    Other(io::Error),
}

impl fmt::Display for CacheStatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPermitted => {
                f.write_str("neither owner of the file nor allowed to write to it")
            }
            Self::Refused => {
                f.write_str("refused, whatever the file: by a filter of system calls (seccomp)")
            }
            Self::Unsupported => f.write_str("no cachestat(2) here (needs Linux 6.5)"),
            Self::Other(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for CacheStatError {}

/// Counts the pages of the byte range `range` of `fd` that are in the page cache.
///
/// An empty range counts nothing. Never blocks on the device. 0.2 µs on an empty range, 3 ns a page on a
/// full one. Needs Linux 6.5. Of a file that [`is_overlaid`] the kernel counts the pages of the overlay's inode, which has
/// none; [`mincore`], which asks through a mapping, tells the truth.
pub fn cachestat(fd: BorrowedFd<'_>, range: ByteRange) -> Result<CacheStat, CacheStatError> {
    if range.start >= range.end {
        return Ok(CacheStat::default());
    }
    if valgrind::is_below() {
        return Err(CacheStatError::Unsupported);
    }
    let asked = [range.start, range.end - range.start];
    let mut stat = CacheStat::default();
    // SAFETY: `asked` is a `struct cachestat_range` (two u64) and `stat` a `struct cachestat` (five
    // u64); both outlive the call.
    let r = unsafe {
        raw::syscall6(
            SYS_CACHESTAT,
            fd.as_raw_fd() as usize,
            asked.as_ptr() as usize,
            &raw mut stat as usize,
            0,
            0,
            0,
        )
    };
    match -r as i32 {
        _ if r >= 0 => Ok(stat),
        libc::EPERM if has_cachestat() => Err(CacheStatError::NotPermitted),
        libc::EPERM => Err(CacheStatError::Refused),
        libc::ENOSYS | libc::EOPNOTSUPP => Err(CacheStatError::Unsupported),
        e => Err(CacheStatError::Other(io::Error::from_raw_os_error(e))),
    }
}

/// Whether there is a cachestat(2), and nobody refuses it, whatever it says of a file.
pub fn has_cachestat() -> bool {
    if valgrind::is_below() {
        return false;
    }
    // SAFETY: no descriptor, and no memory.
    let r = unsafe { raw::syscall6(SYS_CACHESTAT, usize::MAX, 0, 0, 0, 0, 0) };
    // So says the kernel. A filter doesn't know what a descriptor is.
    r == -(libc::EBADF as isize)
}

/// Whether a file is an overlay's, so that its pages are another file's. Most are known not to be by their device number alone.
pub fn is_overlaid(fd: BorrowedFd<'_>) -> bool {
    raw::status(fd.as_raw_fd()).is_ok_and(|st| device::is_overlay(fd, st.st_dev))
}

/// True where the kernel tells the caller the truth about the residency of `fd`'s file
/// (`mm/mincore.c`, `can_do_mincore`): the caller owns it, may write to it, or has CAP_FOWNER.
///
/// CAP_FOWNER is recognised by a descriptor opened with `O_NOATIME`, which the kernel grants by the same
/// rule; without that flag a caller with CAP_FOWNER alone is told `false`, which errs to the safe side.
pub fn residency_is_visible(fd: BorrowedFd<'_>) -> bool {
    let owner = raw::status(fd.as_raw_fd())
        .is_ok_and(|st| st.st_uid == rustix::process::geteuid().as_raw());
    if owner || rustix::fs::fcntl_getfl(fd).is_ok_and(|f| f.contains(rustix::fs::OFlags::NOATIME)) {
        return true;
    }
    // SAFETY: the path is an empty C string; AT_EMPTY_PATH makes the call look at `fd` itself.
    let r = unsafe {
        raw::syscall6(
            libc::SYS_faccessat2,
            fd.as_raw_fd() as usize,
            c"".as_ptr() as usize,
            libc::W_OK as usize,
            (libc::AT_EACCESS | libc::AT_EMPTY_PATH) as usize,
            0,
            0,
        )
    };
    r == 0
}

/// A private read-only mapping that goes away with the value.
struct Mapping {
    at: *mut core::ffi::c_void,
    len: usize,
}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice; its pages are never
        // dereferenced in this module, so a file truncated meanwhile raises no SIGBUS.
        let at = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                len,
                ProtFlags::READ,
                MapFlags::SHARED,
                fd,
                offset,
            )?
        };
        Ok(Self { at, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nobody else holds its address.
        let _ = unsafe { rustix::mm::munmap(self.at, self.len) };
    }
}

/// Splits `range`, widened to whole pages, into parts of at most [`MAP_PART`] bytes.
fn parts(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let start = range.start / PAGE * PAGE;
    let end = range.end.div_ceil(PAGE) * PAGE;
    (start..end.max(start))
        .step_by(MAP_PART as usize)
        .map(move |at| at..end.min(at + MAP_PART))
}

/// Tells for each page of the byte range `range` of `fd`, widened to whole pages, whether its data is in
/// the page cache. The result has one entry a page.
///
/// True for every page where [`residency_is_visible`] is false: check that first. Pages beyond the end of
/// the file are not resident. `ENODEV` where the file cannot be mapped. About 12 ns a page.
pub fn mincore(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<Vec<bool>> {
    let mut all = Vec::new();
    for part in parts(range) {
        let len = (part.end - part.start) as usize;
        let map = Mapping::new(fd, part.start, len)?;
        let mut vec = vec![0u8; len / PAGE as usize];
        // SAFETY: `map` covers `len` bytes and `vec` holds one byte for each of their pages.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_mincore,
                map.at as usize,
                len,
                vec.as_mut_ptr() as usize,
                0,
                0,
                0,
            )
        };
        if r < 0 {
            return Err(io::Error::from_raw_os_error(-r as i32));
        }
        all.extend(vec.iter().map(|b| b & 1 == 1));
    }
    Ok(all)
}

/// [`cachestat`], which is [`CacheStatError::Unsupported`] of a file that [`is_overlaid`]. One or two calls more, only where nothing is cached.
pub fn counted(fd: BorrowedFd<'_>, range: ByteRange) -> Result<CacheStat, CacheStatError> {
    match cachestat(fd, range)? {
        stat if stat.cached == 0 && is_overlaid(fd) => Err(CacheStatError::Unsupported),
        stat => Ok(stat),
    }
}

/// [`counted`] of a file with this device number (`st_dev`), which is then not asked for.
pub fn counted_on(
    dev: u64,
    fd: BorrowedFd<'_>,
    range: ByteRange,
) -> Result<CacheStat, CacheStatError> {
    match cachestat(fd, range)? {
        stat if stat.cached == 0 && device::is_overlay(fd, dev) => Err(CacheStatError::Unsupported),
        stat => Ok(stat),
    }
}

/// The pages of the byte range `range` of `fd` that are in the page cache: as [`counted`] or, where that tells nothing and
/// residency is visible, as [`mincore`] does, which leaves out those still in flight and costs a mapping and 12 ns a page.
pub fn cached_pages(fd: BorrowedFd<'_>, range: ByteRange) -> Result<u64, CacheStatError> {
    match counted(fd, range.clone()) {
        Ok(stat) => Ok(stat.cached),
        Err(CacheStatError::Unsupported) if residency_is_visible(fd) => parts(range)
            .map(|w| Ok(mincore(fd, w)?.into_iter().filter(|r| *r).count() as u64))
            .sum::<io::Result<u64>>()
            .map_err(CacheStatError::Other),
        Err(e) => Err(e),
    }
}

/// One `POSIX_FADV_*` advice on `len` bytes from `offset` (`len` 0: to the end of the file).
fn advise(fd: BorrowedFd<'_>, offset: u64, len: u64, advice: i32) -> io::Result<()> {
    // SAFETY: fadvise64 takes numbers only.
    let r = unsafe {
        raw::syscall6(
            libc::SYS_fadvise64,
            fd.as_raw_fd() as usize,
            offset as usize,
            len as usize,
            advice as usize,
            0,
            0,
        )
    };
    if r < 0 {
        return Err(io::Error::from_raw_os_error(-r as i32));
    }
    Ok(())
}

/// Starts reading the byte range `range` of `fd` into the page cache with one
/// `POSIX_FADV_WILLNEED` call: the kernel silently leaves out what exceeds its limit.
///
/// Returns when the reads are submitted, not when the data is there; blocks for milliseconds while the
/// device's queue is full. An empty range does nothing.
pub fn will_need_once(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    if range.start >= range.end {
        return Ok(());
    }
    advise(
        fd,
        range.start,
        range.end - range.start,
        libc::POSIX_FADV_WILLNEED,
    )
}

/// Drops the clean, unmapped pages of the byte range `range` of `fd` from the page cache
/// (`POSIX_FADV_DONTNEED`). Only pages that lie in the range as a whole go, and a large folio that
/// straddles its edge stays.
///
/// Dirty pages stay, but **the call starts writing them to the device**; whoever must not cause that asks
/// [`cachestat`] for dirty pages first.
pub fn drop_range(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    if range.start >= range.end {
        return Ok(());
    }
    advise(
        fd,
        range.start,
        range.end - range.start,
        libc::POSIX_FADV_DONTNEED,
    )
}

/// Starts writing the dirty pages of the byte range `range` of `fd` back to the device (`SYNC_FILE_RANGE_WRITE`), in the order of the file.
///
/// Returns when the writes are submitted; blocks for milliseconds while the device's queue is full. It makes nothing durable, and works with a
/// descriptor for reading. An empty range does nothing.
pub fn write_back(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    if range.start >= range.end {
        return Ok(());
    }
    // SAFETY: sync_file_range takes numbers only.
    let r = unsafe {
        raw::syscall6(
            libc::SYS_sync_file_range,
            fd.as_raw_fd() as usize,
            range.start as usize,
            (range.end - range.start) as usize,
            libc::SYNC_FILE_RANGE_WRITE as usize,
            0,
            0,
        )
    };
    if r < 0 {
        return Err(io::Error::from_raw_os_error(-r as i32));
    }
    Ok(())
}

/// Drops every clean, unmapped page of `fd`'s file; as [`drop_range`] otherwise.
pub fn drop_all(fd: BorrowedFd<'_>) -> io::Result<()> {
    advise(fd, 0, 0, libc::POSIX_FADV_DONTNEED)
}

/// Turns the kernel's own readahead off for this open file (`POSIX_FADV_RANDOM`): reads then fetch what
/// they ask for and nothing else.
pub fn advise_random(fd: BorrowedFd<'_>) -> io::Result<()> {
    advise(fd, 0, 0, libc::POSIX_FADV_RANDOM)
}

/// Reads the byte range `range` of `fd` into the page cache and returns when the data is there
/// (`MADV_POPULATE_READ` over a temporary mapping; Linux 5.14). Not clipped. The range is widened to whole
/// pages and cut at the end of the file.
///
/// `EFAULT` (reported as an I/O error) when the device fails or the file is truncated meanwhile; `EINVAL`
/// on kernels before 5.14; `ENODEV` where the file cannot be mapped.
pub fn populate(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    let size = raw::status(fd.as_raw_fd())
        .map_err(io::Error::from_raw_os_error)?
        .st_size as u64;
    for part in parts(range.start..range.end.min(size)) {
        let map = Mapping::new(fd, part.start, (part.end - part.start) as usize)?;
        // SAFETY: populating page tables of our own mapping changes no memory contents.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_madvise,
                map.at as usize,
                map.len,
                libc::MADV_POPULATE_READ as usize,
                0,
                0,
                0,
            )
        };
        if r < 0 {
            return Err(io::Error::from_raw_os_error(-r as i32));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_whole_pages_without_overlap() {
        let all: Vec<_> = parts(1..3 * MAP_PART + 1).collect();
        assert_eq!(all.len(), 4);
        assert_eq!(all[0].start, 0);
        assert_eq!(all[3], 3 * MAP_PART..3 * MAP_PART + PAGE);
        assert!(all.windows(2).all(|w| w[0].end == w[1].start));
        assert_eq!(parts(0..0).count(), 0);
    }
}
