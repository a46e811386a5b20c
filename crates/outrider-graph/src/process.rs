//! Which process this is.
//!
//! A forked child has neither our threads nor our rings, and finds our locks in whatever state they were. It has no way
//! to know that it is a child except asking (a system call per intercepted call) or memory that the kernel clears for it: one
//! page marked MADV_WIPEONFORK (Linux 4.14) names the process and its thread pool. A vfork child shares the page,
//! and the memory, with its parent.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::memory::{self, Mapped};
use crate::pool::Pool;
#[repr(C, align(4096))]
struct Page {
    /// Names this process among its ancestors; 0 until it is asked for.
    token: AtomicU64,
    /// This process's threads, once there are any.
    pool: AtomicPtr<Pool>,
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(null_mut());
/// The next token. A child goes on from where its parent was, so that none of them equals an ancestor's.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The page, if there is one.
fn page_made() -> Option<&'static Page> {
    // SAFETY: null, or made below and never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn page() -> Option<&'static Page> {
    let known = page_made();
    if known.is_some() {
        return known;
    }
    let at = memory::map(size_of::<Page>())?;
    // Zero is a valid Page.
    let first = memory::advise(at, size_of::<Page>(), libc::MADV_WIPEONFORK)
        && PAGE
            .compare_exchange(null_mut(), at.cast(), Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
    if !first {
        memory::unmap(at, size_of::<Page>());
    }
    // SAFETY: as above.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// A number that no ancestor has and that a forked child does not keep; `None` where the kernel can't tell a child.
pub fn token() -> Option<u64> {
    let page = page()?;
    match page.token.load(Ordering::Relaxed) {
        0 => {
            let new = NEXT.fetch_add(1, Ordering::Relaxed);
            match page
                .token
                .compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => Some(new),
                Err(other) => Some(other),
            }
        }
        t => Some(t),
    }
}

/// Whether this is still the process that `token` was given to.
#[inline]
pub fn is(token: u64) -> bool {
    // SAFETY: the page is never unmapped.
    unsafe { PAGE.load(Ordering::Relaxed).as_ref() }
        .is_some_and(|p| p.token.load(Ordering::Relaxed) == token)
}

/// The threads of this process end, for good.
pub fn end_threads() {
    let pool = page_made().map_or(null_mut(), |page| page.pool.load(Ordering::Acquire));
    // SAFETY: null or never freed.
    if let Some(pool) = unsafe { pool.as_ref() } {
        pool.stop();
    }
}

/// The threads of this process. They are made when something is first given to them.
pub fn pool() -> Option<&'static Pool> {
    let page = page()?;
    let known = page.pool.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: made below and never freed.
        return Some(unsafe { &*known });
    }
    let new = Mapped::new(Pool::new()?)?.into_raw();
    match page
        .pool
        .compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire)
    {
        // SAFETY: never freed from now on.
        Ok(_) => Some(unsafe { &*new }),
        Err(other) => {
            // SAFETY: nobody has seen `new`; `other` is never freed.
            unsafe {
                drop(Mapped::from_raw(new));
                Some(&*other)
            }
        }
    }
}
