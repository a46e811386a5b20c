//! Memory for when there is none.
//!
//! The library must never end the program, and a failed allocation of Rust's collections would. Large ones are made so that failure is
//! an answer; for the small ones of the fetcher (a request, a queue's growth) there is a reserve that is touched only where the
//! system's allocator has nothing to give, which is under RLIMIT_AS or strict overcommitment.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::alloc::System;

/// Bytes: as many requests as the queue holds at most (8 MiB, a page each), of some 100 bytes.
const BYTES: usize = 256 << 10;

#[repr(align(64))]
struct Store(UnsafeCell<[u8; BYTES]>);

// SAFETY: parts are handed out once each and never twice.
unsafe impl Sync for Store {}

static STORE: Store = Store(UnsafeCell::new([0; BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, and behind it the reserve.
struct Reserve;

#[global_allocator]
static ALLOCATOR: Reserve = Reserve;

fn is_ours(at: *mut u8) -> bool {
    (at as usize).wrapping_sub(STORE.0.get() as usize) < BYTES
}

// SAFETY: what the system's allocator gave goes back to it; what the reserve gave is fresh, aligned, and never given again.
unsafe impl GlobalAlloc for Reserve {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let given = unsafe { System.alloc(layout) };
        if !given.is_null() || layout.size() > BYTES / 4 || layout.align() > 64 {
            return given;
        }
        let size = layout.size().next_multiple_of(64);
        let taken = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(size).filter(|end| *end <= BYTES)
        });
        match taken {
            // SAFETY: within the store.
            Ok(at) => unsafe { STORE.0.get().cast::<u8>().add(at) },
            Err(_) => null_mut(),
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if !is_ours(at) {
            // SAFETY: given by the system's allocator with this layout.
            unsafe { System.dealloc(at, layout) };
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_ours(at) {
            // SAFETY: as in dealloc.
            let given = unsafe { System.realloc(at, layout, size) };
            if !given.is_null() {
                return given;
            }
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
            return null_mut();
        };
        // SAFETY: a new place of `size` bytes, and an old one of which so many are valid.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                core::ptr::copy_nonoverlapping(at, new, layout.size().min(size));
                self.dealloc(at, layout);
            }
            new
        }
    }
}
