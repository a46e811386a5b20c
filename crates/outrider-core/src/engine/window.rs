//! Waiting for a page to arrive.
//!
//! A file is mapped in windows of 64 MiB, of which a handle keeps a few, so that page tables stay small however
//! long the file is.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Mutex;

use outrider_sys::raw;

use crate::shm::{Header, lost};

const WINDOW: u64 = 64 << 20;
const KEPT: usize = 4;
/// Pages that the kernel maps around a fault (fault_around_bytes, 64 KiB).
const AROUND: u64 = 64 << 10;
const MADV_POPULATE_READ: usize = 22;

/// Mappings of one file, read-only, by window number.
#[derive(Default)]
pub struct Windows(Mutex<Vec<(u64, usize)>>);

impl Windows {
    /// Sleeps until the page that holds byte `at` is up to date. `false` where that can't be known.
    pub fn wait(&self, fd: BorrowedFd<'_>, at: u64, header: &Header) -> bool {
        let mut windows = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let number = at / WINDOW;
        let base = match windows.iter().find(|(n, _)| *n == number) {
            Some((_, base)) => *base,
            None => {
                // SAFETY: a new shared read-only mapping at an address of the kernel's choice.
                let r = unsafe {
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
                if (-4095..0).contains(&r) {
                    return false;
                }
                // SAFETY: our own mapping. No readahead of its own on a fault.
                unsafe {
                    raw::syscall6(libc::SYS_madvise, r as usize, WINDOW as usize, libc::MADV_RANDOM as usize, 0, 0, 0);
                }
                if windows.len() == KEPT {
                    let (_, old) = windows.remove(0);
                    unmap(old);
                }
                windows.push((number, r as usize));
                r as usize
            }
        };
        // A window that is unmapped by another worker meanwhile makes the call fail, which means "unknown".
        drop(windows);
        let page = base + (at % WINDOW) as usize / 4096 * 4096;
        // SAFETY: populates one page of our own mapping; it fails where the page lies beyond the end of the file.
        let r = unsafe { raw::syscall6(libc::SYS_madvise, page, 4096, MADV_POPULATE_READ, 0, 0, 0) };
        if r == -(libc::EINVAL as isize) || r == -(libc::EPERM as isize) || r == -(libc::ENOSYS as isize) {
            header.lose(lost::POPULATE);
        }
        let around = base + (at % WINDOW / AROUND * AROUND) as usize;
        // SAFETY: drops the page table entries again: a mapped page could not be dropped from the cache by the program.
        unsafe {
            raw::syscall6(libc::SYS_madvise, around, AROUND as usize, libc::MADV_DONTNEED as usize, 0, 0, 0);
        }
        r == 0
    }
}

fn unmap(base: usize) {
    // SAFETY: a mapping made in `wait` and removed from the list.
    unsafe {
        raw::syscall6(libc::SYS_munmap, base, WINDOW as usize, 0, 0, 0, 0);
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        for (_, base) in self.0.get_mut().unwrap_or_else(|e| e.into_inner()).drain(..) {
            unmap(base);
        }
    }
}
