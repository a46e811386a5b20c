//! Waiting for a page to arrive.
//!
//! A file is mapped in windows of 64 MiB, of which a handle keeps a few, so that page tables stay small however
//! long the file is. A window is unmapped when nobody waits in it any more: its addresses must not become someone else's
//! memory under a worker that still advises them.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use outrider_sys::raw;

use crate::fetch::leaves_access_time;
use crate::shm::{Notes, lost};

const WINDOW: u64 = 64 << 20;
/// Random reads go round all of a file of 1 GiB without mapping anew.
const KEPT: usize = 16;
/// Pages that the kernel maps around a fault (fault_around_bytes, 64 KiB).
const AROUND: u64 = 64 << 10;
const MADV_POPULATE_READ: usize = 22;

/// One mapping of [`WINDOW`] bytes, unmapped when dropped.
struct Window {
    number: u64,
    base: usize,
}

impl Window {
    fn map(fd: BorrowedFd<'_>, number: u64) -> Option<Window> {
        if !leaves_access_time(fd) {
            return None;
        }
        // SAFETY: a new shared read-only mapping at an address of the kernel's choice.
        let base = unsafe {
            raw::syscall6(
                libc::SYS_mmap,
                0,
                WINDOW as usize,
                libc::PROT_READ as usize,
                libc::MAP_SHARED as usize,
                fd.as_raw_fd() as usize,
                (number * WINDOW) as usize,
            )
        };
        if (-4095..0).contains(&base) {
            return None;
        }
        let window = Window {
            number,
            base: base as usize,
        };
        // A fault of ours must not start a readahead of its own.
        window.advise(0, WINDOW, libc::MADV_RANDOM as usize);
        Some(window)
    }

    /// madvise(2) on `len` bytes at `offset` of the window; 0 or a negated errno.
    fn advise(&self, offset: u64, len: u64, advice: usize) -> isize {
        debug_assert!(offset + len <= WINDOW);
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

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which nothing refers any more.
        unsafe {
            raw::syscall6(libc::SYS_munmap, self.base, WINDOW as usize, 0, 0, 0, 0);
        }
    }
}

/// Mappings of one file, read-only.
#[derive(Default)]
pub struct Windows(Mutex<Vec<Arc<Window>>>);

impl Windows {
    /// Sleeps until the page that holds byte `at` is up to date. `false` where that can't be known.
    pub fn wait(&self, fd: BorrowedFd<'_>, at: u64, notes: &Notes) -> bool {
        let Some(window) = self.window(fd, at / WINDOW) else {
            return false;
        };
        let within = at % WINDOW;
        let r = window.advise(within / 4096 * 4096, 4096, MADV_POPULATE_READ);
        if r == -(libc::EINVAL as isize)
            || r == -(libc::EPERM as isize)
            || r == -(libc::ENOSYS as isize)
        {
            notes.lose(lost::POPULATE);
        }
        // A mapped page could not be dropped from the cache by the program: unmap it and those around it again.
        window.advise(
            within / AROUND * AROUND,
            AROUND,
            libc::MADV_DONTNEED as usize,
        );
        r == 0
    }

    fn window(&self, fd: BorrowedFd<'_>, number: u64) -> Option<Arc<Window>> {
        let mut windows = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(w) = windows.iter().find(|w| w.number == number) {
            return Some(w.clone());
        }
        let window = Arc::new(Window::map(fd, number)?);
        if windows.len() == KEPT {
            windows.remove(0);
        }
        windows.push(window.clone());
        Some(window)
    }
}
