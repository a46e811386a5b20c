//! Whether what was cached still is: one question, asked of what the kernel counts, with as much allowed to be missing as the asker can bear.
//!
//! | who asks | what may be missing | because |
//! | --- | --- | --- |
//! | silence: samples of random reads, looks ahead of a stream | nothing | nobody hears of it from then on, and each page that is missing is waited for |
//! | the hooks, and whoever leaves a file to them | a page in 1024, or one | they notice what is missing, and kernels take single pages at any time |
//! | evictions, by the page | half | what is fetched anew costs as much as it spares, where half of it is there |
//! | evictions, by some places of a file | half of the places | all of the file is gone through then |
//! | evictions, by the lines of a tile | a quarter of the places | the lines beside it are asked for next, and are lost in the same way |

use outrider_sys::units::ByteRange;
use std::sync::Arc;

use outrider_sys::cache::CacheStatError;

use super::Service;
use super::kernel::Kernel;
use crate::engine::Handle;
use crate::shm;
use crate::view::PageRange;

/// Of so few pages it is not looked whether they still are there: the kernel's first windows are as many.
pub(super) const WORTH_A_LOOK: u64 = 64;

/// Pages that ought to be cached, and how many are, or are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) pages: u64,
    pub(super) cached: u64,
}

impl Counted {
    /// Whether all of them are.
    pub(super) fn is_whole(self) -> bool {
        self.cached >= self.pages
    }

    /// Whether so many are that a hook need not tell of them.
    pub(super) fn is_resident(self) -> bool {
        shm::is_resident(self.pages, self.cached)
    }

    /// Whether fewer than half are.
    pub(super) fn is_mostly_gone(self) -> bool {
        self.cached * 2 < self.pages
    }
}

/// Places that ought to be cached, and how many of them are not as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) all: usize,
    pub(super) gone: usize,
}

impl Places {
    /// Whether what they stand for is to be gone through.
    pub(super) fn are_mostly_gone(self) -> bool {
        self.gone * 2 > self.all
    }

    /// Whether they are the line of a tile that was fetched in vain.
    pub(super) fn are_a_lost_line(self) -> bool {
        self.gone * 4 > self.all
    }
}

impl<K: Kernel> Service<K> {
    /// Counts bytes of a file.
    pub(super) fn count_cached(
        &self,
        handle: &Arc<Handle>,
        bytes: ByteRange,
    ) -> Result<Counted, CacheStatError> {
        let pages = PageRange::from_bytes(bytes.start, bytes.end.saturating_sub(bytes.start)).len();
        let cached = self.kernel.cached(handle, bytes)?;
        Ok(Counted { pages, cached })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One page that is missing of few and of many, half of them, and all.
    #[test]
    fn who_asks_bears_as_much_as_it_can() {
        for (pages, cached, whole, resident, mostly_gone) in [
            (0, 0, true, true, false),
            (1, 1, true, true, false),
            (1, 0, false, true, true),
            (16, 15, false, true, false),
            (16, 14, false, false, false),
            (16, 8, false, false, false),
            (16, 7, false, false, true),
            (4096, 4092, false, true, false),
            (4096, 4091, false, false, false),
            // More than there are: some were counted on their way, too.
            (16, 17, true, true, false),
        ] {
            let counted = Counted { pages, cached };
            assert_eq!(counted.is_whole(), whole, "{counted:?}");
            assert_eq!(counted.is_resident(), resident, "{counted:?}");
            assert_eq!(counted.is_mostly_gone(), mostly_gone, "{counted:?}");
        }
        for (all, gone, line, mostly) in [
            (0, 0, false, false),
            (8, 2, false, false),
            (8, 3, true, false),
            (8, 4, true, false),
            (8, 5, true, true),
        ] {
            let places = Places { all, gone };
            assert_eq!(places.are_a_lost_line(), line, "{places:?}");
            assert_eq!(places.are_mostly_gone(), mostly, "{places:?}");
        }
    }
}
