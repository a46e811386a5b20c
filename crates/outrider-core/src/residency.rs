//! What the kernel says is cached: the module's bitmap where `/dev/outrider` is there, `cachestat(2)` otherwise, and `mincore(2)` where
//! that tells nothing: before Linux 6.5 and on overlayfs.
//!
//! The bitmap also answers on kernels before 6.5, and tells single pages in one call, where counts have to be taken of smaller and smaller parts.
//! All of them tell only who owns a file or may write to it: where the module refuses, so do the others, and the error is theirs.
//!
//! What has failed to arrive may lie in the cache all the same, for cachestat(2), and isn't there for the others.

use std::os::fd::BorrowedFd;

use outrider_sys::cache::{self, CacheStatError};
use outrider_sys::kernel_cache::{KernelCache, LOOK};
use outrider_sys::units::{ByteRange, PAGE};

use crate::engine::Handle;
use crate::view::{Count, FileView, PageRange, Residency as State};

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
    pub fn count(&self, handle: &Handle, range: ByteRange) -> Result<u64, CacheStatError> {
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
        if let Some(module) = &self.module
            && let Ok(Some(cached)) = module.pages(handle.fd(), pages.bytes())
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
    count: &impl Fn(ByteRange) -> Result<u64, CacheStatError>,
    view: &FileView,
    pages: PageRange,
    now: u64,
    looks: &mut u32,
) -> Result<bool, CacheStatError> {
    const SMALLEST: u64 = (128 << 10) / PAGE;
    const MOST: u32 = 128;
    *looks += 1;
    let cached = count(pages.bytes())?;
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

/// What the kernel tells of a file.
#[derive(Clone, Copy, Debug)]
pub struct Tells {
    /// How many of its pages are cached, by cachestat(2): not on overlayfs.
    pub counts: bool,
    /// Which, by mincore(2): of files that are ours, or may be written to.
    pub pages: bool,
}

/// The exact answer of few pages: appends to `out` the runs of `pages` that are neither cached nor on their way, and returns how many are cached. Of
/// those `view` believes nothing afterwards; `seen` is what it has of `pages`. What others have cached is not noted there, unlike by
/// [`calibrate`](Residency::calibrate): whoever gives pages up gives up his own.
pub fn uncached(
    handle: &Handle,
    view: &FileView,
    pages: PageRange,
    seen: Count,
    tells: Tells,
    out: &mut Vec<PageRange>,
) -> u64 {
    let bytes = pages.start * PAGE..pages.end * PAGE;
    let all = pages.len();
    let counted = || cache::cachestat(handle.fd(), bytes.clone()).ok();
    let mut cached = match tells.counts.then(counted).flatten() {
        Some(stat) => stat.cached.min(all),
        None if tells.pages => u64::MAX,
        // Nobody tells: our own record has to do.
        None => {
            view.missing(pages, usize::MAX, out);
            return all - out.iter().map(PageRange::len).sum::<u64>().min(all);
        }
    };
    if cached == all {
        return all;
    }
    if cached == 0 && seen.in_flight_pages == 0 {
        if seen.present_pages > 0 {
            let _ = view.evicted(pages);
        }
        out.push(pages);
        return 0;
    }
    let resident = if cached > 0 {
        cache::mincore(handle.fd(), bytes).unwrap_or_default()
    } else {
        Vec::new()
    };
    if cached == u64::MAX {
        cached = resident.iter().filter(|r| **r).count() as u64;
    }
    let on_its_way = seen.in_flight_pages > 0;
    for (i, page) in (pages.start..pages.end).enumerate() {
        if resident.get(i).copied().unwrap_or(false)
            || (on_its_way && view.state(page).residency == State::InFlight)
        {
            continue;
        }
        match out.last_mut() {
            Some(run) if run.end == page => run.end = page + 1,
            _ => out.push(PageRange::new(page, page + 1)),
        }
    }
    for run in out.iter() {
        // Whatever we believed.
        let _ = view.evicted(*run);
    }
    cached
}

/// The runs of `pages` that are not cached, page by page: for who reads whole files and can wait for as long as that takes, 12 ns a page. What is still on
/// its way isn't. `None` where the kernel doesn't tell.
pub fn missing(file: BorrowedFd<'_>, pages: PageRange) -> Option<Vec<PageRange>> {
    /// Pages that are looked at together: a byte each.
    const TOGETHER: u64 = 1 << 18;
    if !cache::residency_is_visible(file) {
        return None;
    }
    // What is cold is counted at once, while mincore(2) goes through it page by page.
    let counted = cache::counted(file, pages.bytes());
    if pages.start < pages.end && counted.is_ok_and(|stat| stat.cached == 0) {
        return Some(vec![pages]);
    }
    let mut missing: Vec<PageRange> = Vec::new();
    let mut from = pages.start;
    while from < pages.end {
        let to = pages.end.min(from + TOGETHER);
        let resident = cache::mincore(file, from * PAGE..to * PAGE).ok()?;
        for (page, _) in (from..to).zip(resident).filter(|(_, resident)| !resident) {
            match missing.last_mut() {
                Some(run) if run.end == page => run.end = page + 1,
                _ => missing.push(PageRange::new(page, page + 1)),
            }
        }
        from = to;
    }
    Some(missing)
}

impl Default for Residency {
    fn default() -> Residency {
        Residency::new()
    }
}
