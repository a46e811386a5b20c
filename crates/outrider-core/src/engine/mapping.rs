//! Waiting for a page to arrive.
//!
//! A file is mapped in parts of 64 MiB, of which a handle keeps a few, so that page tables stay small however
//! long the file is. Who sleeps in a fault holds the file until the disk has answered, and no signal but SIGKILL ends that: where a file may have to be let
//! go of, mincore(2) is asked again and again instead. A part is unmapped when nobody waits in it any more: its addresses must not become someone else's
//! memory under a worker that still advises them.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use outrider_sys::cache::residency_is_visible;
use outrider_sys::raw;
use outrider_sys::units::PAGE;

use crate::fetch::leaves_access_time;
use crate::shm::{Notes, lost};

/// Bytes of a mapping.
const LENGTH: u64 = 64 << 20;
/// Random reads go round all of a file of 1 GiB without mapping anew.
const KEPT: usize = 16;
/// Pages that the kernel maps around a fault (fault_around_bytes, 64 KiB).
const AROUND: u64 = 64 << 10;

/// One mapping of [`LENGTH`] bytes, unmapped when dropped.
struct Mapping {
    number: u64,
    base: usize,
}

impl Mapping {
    fn map(fd: BorrowedFd<'_>, number: u64) -> Option<Mapping> {
        // SAFETY: a new shared read-only mapping at an address of the kernel's choice.
        let base = unsafe {
            raw::syscall6(
                libc::SYS_mmap,
                0,
                LENGTH as usize,
                libc::PROT_READ as usize,
                libc::MAP_SHARED as usize,
                fd.as_raw_fd() as usize,
                (number * LENGTH) as usize,
            )
        };
        if (-4095..0).contains(&base) {
            return None;
        }
        let mapping = Mapping {
            number,
            base: base as usize,
        };
        // A fault of ours must not start a readahead of its own.
        mapping.advise(0, LENGTH, libc::MADV_RANDOM as usize);
        Some(mapping)
    }

    /// madvise(2) on `len` bytes at `offset` of the mapping; 0 or a negated errno.
    fn advise(&self, offset: u64, len: u64, advice: usize) -> isize {
        debug_assert!(offset + len <= LENGTH);
        // SAFETY: the range lies within our own read-only mapping, which lives as long as self.
        unsafe {
            raw::syscall6(
                libc::SYS_madvise,
                self.base + offset as usize,
                len as usize,
                advice,
                0,
                0,
                0,
            )
        }
    }
}

impl Mapping {
    /// Whether the page at `offset` of the mapping is up to date.
    fn is_there(&self, offset: u64) -> Option<bool> {
        let mut page = 0u8;
        // SAFETY: one page of our own mapping, and a byte for it.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_mincore,
                self.base + (offset / PAGE * PAGE) as usize,
                PAGE as usize,
                &raw mut page as usize,
                0,
                0,
                0,
            )
        };
        (r == 0).then_some(page & 1 == 1)
    }

    /// Looks at a page until it is up to date; the answer of [`Mappings::wait`], or `None` where the kernel gives none.
    fn watch(&self, offset: u64, how: Wait, gone: &AtomicU32) -> Option<Option<bool>> {
        let began = Instant::now();
        let mut step = how.first.min(how.patience);
        loop {
            if gone.load(Acquire) != 0 {
                return Some(Some(false));
            }
            if self.is_there(offset)? {
                return Some(Some(true));
            }
            let waited = began.elapsed();
            if waited >= how.patience {
                return Some(None);
            }
            step = step.max((waited / 8).clamp(SHORTEST_STEP, LONGEST_STEP));
            raw::futex_wait(gone, 0, step.as_micros() as u64);
            step = Duration::ZERO;
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nothing refers any more.
        unsafe {
            raw::syscall6(libc::SYS_munmap, self.base, LENGTH as usize, 0, 0, 0, 0);
        }
    }
}

/// How long and in which way is waited.
#[derive(Clone, Copy)]
pub struct Wait {
    /// So long at most.
    pub patience: Duration,
    /// It will hardly have arrived before.
    pub first: Duration,
    /// In the kernel, until it has arrived.
    pub sleeps: bool,
}

/// Between two looks passes an eighth of what was waited until then, within these bounds.
pub(super) const SHORTEST_STEP: Duration = Duration::from_micros(50);
const LONGEST_STEP: Duration = Duration::from_millis(1);

/// Mappings of one file, read-only.
#[derive(Default)]
pub struct Mappings {
    mapped: Mutex<Vec<Arc<Mapping>>>,
    /// Whether a mapping leaves the file's time of access as it is, and whether the kernel tells the truth about what is up to date, where that was found out
    /// before: a server is not asked here.
    known: Option<(bool, bool)>,
    /// Nobody sleeps in the kernel for long.
    watched: bool,
    /// The latter, where it was not.
    visible: OnceLock<bool>,
}

impl Mappings {
    /// Those of a file that may have to be let go of at any moment.
    pub fn watched(known: Option<(bool, bool)>) -> Mappings {
        Mappings {
            watched: true,
            known,
            ..Mappings::default()
        }
    }

    /// Unmaps all that nobody waits in.
    pub fn clear(&self) {
        self.mapped
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clear();
    }

    /// Waits until the page that holds byte `at` is up to date, and ends without it when `gone` is not 0 any more. `Some(false)` where that can't be known, `None`
    /// when there was no more patience.
    pub fn wait(
        &self,
        fd: BorrowedFd<'_>,
        at: u64,
        how: Wait,
        gone: &AtomicU32,
        notes: &Notes,
    ) -> Option<bool> {
        let Some(mapping) = self.mapping(fd, at / LENGTH) else {
            return Some(false);
        };
        let within = at % LENGTH;
        if self.watched && !how.sleeps {
            let visible = self.known.map_or_else(
                || *self.visible.get_or_init(|| residency_is_visible(fd)),
                |known| known.1,
            );
            if visible && let Some(arrived) = mapping.watch(within, how, gone) {
                return arrived;
            }
            if self.known.is_some() {
                return Some(false);
            }
        }
        let r = mapping.advise(
            within / PAGE * PAGE,
            PAGE,
            libc::MADV_POPULATE_READ as usize,
        );
        if r == -(libc::EINVAL as isize)
            || r == -(libc::EPERM as isize)
            || r == -(libc::ENOSYS as isize)
        {
            notes.lose(lost::POPULATE);
        }
        // A mapped page could not be dropped from the cache by the program: unmap it and those around it again.
        mapping.advise(
            within / AROUND * AROUND,
            AROUND,
            libc::MADV_DONTNEED as usize,
        );
        Some(r == 0)
    }

    fn mapping(&self, fd: BorrowedFd<'_>, number: u64) -> Option<Arc<Mapping>> {
        let mut mappings = self.mapped.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(w) = mappings.iter().find(|w| w.number == number) {
            return Some(w.clone());
        }
        if !self
            .known
            .map_or_else(|| leaves_access_time(fd), |known| known.0)
        {
            return None;
        }
        let mapping = Arc::new(Mapping::map(fd, number)?);
        if mappings.len() == KEPT {
            mappings.remove(0);
        }
        mappings.push(mapping.clone());
        Some(mapping)
    }
}
