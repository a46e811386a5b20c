//! What the kernel says is cached: the module's bitmap where `/dev/outrider` is there, `cachestat(2)` otherwise, and `mincore(2)` where
//! that tells nothing: before Linux 6.5 and on overlayfs.
//!
//! The bitmap also answers on kernels before 6.5, and tells single pages in one call, where counts have to be taken of smaller and smaller parts.
//! All of them tell only who owns a file or may write to it: where the module refuses, so do the others, and the error is theirs.

use std::ops::Range;

use outrider_sys::cache::CacheStatError;
use outrider_sys::kernel_cache::{KernelCache, LOOK};
use outrider_sys::units::PAGE;

use crate::engine::Handle;
use crate::view::{FileView, PageRange};

/// Asks the kernel what is cached.
pub struct Residency {
    module: Option<KernelCache>,
}

impl Residency {
    /// With the kernel module where it is loaded and permitted.
    pub fn new() -> Residency {
        Residency {
            module: KernelCache::open().ok(),
        }
    }

    /// Whether the kernel module is used.
    pub fn has_module(&self) -> bool {
        self.module.is_some()
    }

    /// Pages of the bytes `range` that are cached or on their way.
    pub fn count(&self, handle: &Handle, range: Range<u64>) -> Result<u64, CacheStatError> {
        let fd = handle.fd();
        if let Some(module) = &self.module
            && let Ok(info) = module.readahead_info(fd, range.clone(), LOOK)
        {
            // Pages behind the end of the file are in neither count.
            let pages = (info.next.div_ceil(PAGE)).saturating_sub(range.start / PAGE);
            return Ok(pages.saturating_sub(info.missing / PAGE));
        }
        handle.cached_pages(range)
    }

    /// Asks what of `pages` is cached and marks it present in `view`. Returns whether all of it is. `looks` counts the calls, whose number is
    /// bounded.
    pub fn calibrate(
        &self,
        handle: &Handle,
        view: &FileView,
        pages: PageRange,
        now: u64,
        looks: &mut u32,
    ) -> Result<bool, CacheStatError> {
        let bytes = pages.start * PAGE..pages.end * PAGE;
        if let Some(module) = &self.module
            && let Ok(Some(cached)) = module.pages(handle.fd(), bytes)
        {
            *looks += 1;
            let mut at = pages.start;
            let mut all = true;
            while let Some(run) = cached.next_run(at..pages.end) {
                all &= run.start == at;
                view.present(PageRange::new(run.start, run.end), now);
                at = run.end;
            }
            return Ok(all && at == pages.end);
        }
        let count = |bytes| self.count(handle, bytes);
        divide(&count, view, pages, now, looks)
    }
}

/// The same by counts of pages that are cached within a range of bytes: what is cached in part is divided down to single requests.
pub fn divide(
    count: &impl Fn(Range<u64>) -> Result<u64, CacheStatError>,
    view: &FileView,
    pages: PageRange,
    now: u64,
    looks: &mut u32,
) -> Result<bool, CacheStatError> {
    const SMALLEST: u64 = (128 << 10) / PAGE;
    const MOST: u32 = 128;
    *looks += 1;
    let cached = count(pages.start * PAGE..pages.end * PAGE)?;
    if cached >= pages.len() {
        view.present(pages, now);
        return Ok(true);
    }
    if cached > 0 && pages.len() > SMALLEST {
        let part = (pages.len() / 8).max(SMALLEST);
        let mut at = pages.start;
        while at < pages.end && *looks < MOST {
            let end = ((at / part + 1) * part).min(pages.end);
            divide(count, view, PageRange::new(at, end), now, looks)?;
            at = end;
        }
    }
    Ok(false)
}

impl Default for Residency {
    fn default() -> Residency {
        Residency::new()
    }
}
