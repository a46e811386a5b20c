//! The library's own memory.
//!
//! What is made within a program's calls can't come from the program's allocator: a signal handler may have interrupted it, or it may be what
//! called us, and whoever holds one of our locks would wait for its lock while its holder waits for ours. So everything here is got from the
//! kernel by mmap(2) and divided by a heap of our own, and nothing ever waits: a heap that is in use (by another thread, or by what
//! a handler has interrupted) is left alone and the next one taken; what is freed meanwhile is put on a list for the heap's next user.
//!
//! The library must never end the program, and a failed allocation of Rust's collections would. Large ones are made so that failure is an
//! answer; for the small ones of the fetcher (a request, a queue's growth) there is a reserve that is touched only where the kernel has
//! nothing to give, which is under RLIMIT_AS or strict overcommitment.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use dlmalloc::{Allocator, Dlmalloc};
use outrider_sys::mapped::{map, remap, unmap};

/// One for each thread of ours that is likely to allocate at the same time; with all in use memory comes from the kernel by the page.
const HEAPS: usize = 8;
/// What is at least so large, in bytes, is mapped by itself, as malloc(3) does: it grows without copying and goes back when it is freed.
const LARGE: usize = 128 << 10;
const PAGE: usize = outrider_sys::units::PAGE as usize;
/// Bytes in front of each piece. The last 8 say whose it is.
const HEAD: usize = 16;
/// Owner of what is mapped by itself.
const NOBODY: usize = HEAPS;

/// The kernel, as dlmalloc asks it for segments.
struct Kernel;

// SAFETY: memory of the kernel's, new each time, and given back by its address.
unsafe impl Allocator for Kernel {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match map(size) {
            Some(at) => (at, size, 0),
            None => (null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        unmap(at.wrapping_add(new), old - new);
        true
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        unmap(at, size);
        true
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE
    }
}

/// A piece that was freed while its heap was in use.
struct Freed {
    next: *mut Freed,
}

struct Heap {
    in_use: AtomicBool,
    freed: AtomicPtr<Freed>,
    pieces: UnsafeCell<Dlmalloc<Kernel>>,
}

// SAFETY: the pieces are touched only by whoever set `in_use`.
unsafe impl Sync for Heap {}

impl Heap {
    const fn new() -> Heap {
        Heap {
            in_use: AtomicBool::new(false),
            freed: AtomicPtr::new(null_mut()),
            pieces: UnsafeCell::new(Dlmalloc::new_with_allocator(Kernel)),
        }
    }

    /// Runs `f`, or doesn't, where the heap is in use.
    fn enter<T>(&self, f: impl FnOnce(&mut Dlmalloc<Kernel>) -> T) -> Option<T> {
        if self.in_use.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: nobody else is here until `in_use` is cleared.
        let pieces = unsafe { &mut *self.pieces.get() };
        let mut freed = self.freed.swap(null_mut(), Ordering::Acquire);
        while !freed.is_null() {
            // SAFETY: put there by `leave`, and taken off by us alone; dlmalloc looks at neither size nor alignment.
            unsafe {
                let next = (*freed).next;
                pieces.c_free(freed.cast());
                freed = next;
            }
        }
        let result = f(pieces);
        self.in_use.store(false, Ordering::Release);
        Some(result)
    }

    /// Frees a piece of this heap, now or at its next use.
    ///
    /// # Safety
    /// `piece` is from this heap, of at least [`HEAD`] bytes, and not used any more.
    #[inline(never)]
    unsafe fn free(&self, piece: *mut u8) {
        // SAFETY: as the caller promises.
        let free = |pieces: &mut Dlmalloc<Kernel>| unsafe { pieces.c_free(piece) };
        if self.enter(free).is_some() {
            return;
        }
        let freed = piece.cast::<Freed>();
        let mut first = self.freed.load(Ordering::Relaxed);
        loop {
            // SAFETY: ours until it is on the list.
            unsafe { (*freed).next = first };
            match self.freed.compare_exchange_weak(
                first,
                freed,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

static ALL: [Heap; HEAPS] = [const { Heap::new() }; HEAPS];

/// Bytes of the reserve: as many requests as the queue holds at most (8 MiB, a page each), of some 100 bytes.
const RESERVE: usize = 256 << 10;

#[repr(align(64))]
struct Reserve(UnsafeCell<[u8; RESERVE]>);

// SAFETY: parts are handed out once each and never twice.
unsafe impl Sync for Reserve {}

static STORE: Reserve = Reserve(UnsafeCell::new([0; RESERVE]));
static USED: AtomicUsize = AtomicUsize::new(0);

impl Reserve {
    fn holds(&self, at: *mut u8) -> bool {
        (at as usize).wrapping_sub(self.0.get() as usize) < RESERVE
    }

    /// A part that is never given back.
    fn part(&self, layout: Layout) -> *mut u8 {
        if layout.size() > RESERVE / 4 || layout.align() > 64 {
            return null_mut();
        }
        let size = layout.size().next_multiple_of(64);
        let taken = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(size).filter(|end| *end <= RESERVE)
        });
        match taken {
            // SAFETY: within the store.
            Ok(at) => unsafe { self.0.get().cast::<u8>().add(at) },
            Err(_) => null_mut(),
        }
    }
}

/// Bytes in front of a piece of this alignment.
fn lead(align: usize) -> usize {
    align.max(HEAD)
}

/// Where the owner of a piece is written.
///
/// # Safety
/// `at` is a piece with a head.
unsafe fn owner(at: *mut u8) -> *mut usize {
    // SAFETY: within the head, aligned as it is.
    unsafe { at.sub(size_of::<usize>()).cast() }
}

/// Bytes of a mapping that holds a head and `size` bytes.
fn mapping(size: usize, align: usize) -> Option<usize> {
    size.checked_add(lead(align))?
        .checked_next_multiple_of(PAGE)
}

struct Library;

#[global_allocator]
static ALLOCATOR: Library = Library;

impl Library {
    /// A piece, and whether it is zeroed.
    #[inline]
    fn piece(&self, layout: Layout) -> (*mut u8, bool) {
        let (size, align) = (layout.size(), layout.align());
        if align > PAGE {
            return (null_mut(), false);
        }
        let headed = |piece: *mut u8, whose: usize| {
            if piece.is_null() {
                return piece;
            }
            // SAFETY: the piece has room for the head and what was asked for behind it.
            unsafe {
                let at = piece.add(lead(align));
                *owner(at) = whose;
                at
            }
        };
        if size < LARGE {
            let given = ALL.iter().enumerate().find_map(|(n, heap)| {
                // SAFETY: aligned by a power of two.
                let piece = heap
                    .enter(|pieces| unsafe { pieces.c_memalign(lead(align), size + lead(align)) });
                piece.map(|piece| headed(piece, n))
            });
            if let Some(at) = given {
                return (at, false);
            }
        }
        let mapped = mapping(size, align).and_then(map);
        (mapped.map_or(null_mut(), |at| headed(at, NOBODY)), true)
    }
}

// SAFETY: each piece is of the size and alignment asked for, belongs to one owner, and goes back to that one.
unsafe impl GlobalAlloc for Library {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (at, _) = self.piece(layout);
        if at.is_null() { STORE.part(layout) } else { at }
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (at, zeroed) = self.piece(layout);
        if at.is_null() {
            return STORE.part(layout);
        }
        if !zeroed {
            // SAFETY: so many bytes are there.
            unsafe { at.write_bytes(0, layout.size()) };
        }
        at
    }

    #[inline(never)]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if STORE.holds(at) {
            return;
        }
        // SAFETY: a piece with a head, made for this layout.
        unsafe {
            let whose = *owner(at);
            let piece = at.sub(lead(layout.align()));
            match ALL.get(whose) {
                Some(heap) => heap.free(piece),
                None => {
                    if let Some(bytes) = mapping(layout.size(), layout.align()) {
                        unmap(piece, bytes);
                    }
                }
            }
        }
    }

    #[inline(never)]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in dealloc; a new place of `size` bytes, and an old one of which so many are valid.
        unsafe {
            if !STORE.holds(at)
                && *owner(at) == NOBODY
                && size >= LARGE
                && let Some(old) = mapping(layout.size(), layout.align())
                && let Some(new) = mapping(size, layout.align())
            {
                let lead = lead(layout.align());
                return remap(at.sub(lead), old, new).map_or(null_mut(), |piece| piece.add(lead));
            }
            let Ok(wanted) = Layout::from_size_align(size, layout.align()) else {
                return null_mut();
            };
            let new = self.alloc(wanted);
            if !new.is_null() {
                core::ptr::copy_nonoverlapping(at, new, layout.size().min(size));
                self.dealloc(at, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
    use std::sync::mpsc::{Receiver, channel};

    /// A piece whose bytes all are `mark`.
    struct Piece(*mut u8, Layout, u8);

    // SAFETY: memory that only its holder uses.
    unsafe impl Send for Piece {}

    impl Piece {
        fn is(&self, bytes: usize, mark: u8) -> bool {
            // SAFETY: so many bytes are valid.
            unsafe { std::slice::from_raw_parts(self.0, bytes) }
                .iter()
                .all(|b| *b == mark)
        }
    }

    /// Pieces of all sizes and alignments, freed by other threads than made them, hold what was put into them until then.
    #[test]
    fn pieces_are_nobody_elses() {
        const THREADS: usize = 12;
        let (to, from): (Vec<_>, Vec<Receiver<Piece>>) = (0..THREADS).map(|_| channel()).unzip();
        std::thread::scope(|scope| {
            for (n, inbox) in from.into_iter().enumerate() {
                let next = to[(n + 1) % THREADS].clone();
                scope.spawn(move || {
                    let mut seed = 88172645463325252u64 + n as u64;
                    let mut random = |below: u64| {
                        seed ^= seed << 13;
                        seed ^= seed >> 7;
                        seed ^= seed << 17;
                        seed % below
                    };
                    for _ in 0..3000 {
                        let most = [64, 4096, 200 << 10][random(3) as usize];
                        let (size, align) = (1 + random(most) as usize, 1 << random(13));
                        let (layout, mark) = (
                            Layout::from_size_align(size, align).unwrap(),
                            random(256) as u8,
                        );
                        // SAFETY: of the layout that goes with it, each freed once.
                        unsafe {
                            let zeroed = random(4) == 0;
                            let at = if zeroed {
                                alloc_zeroed(layout)
                            } else {
                                alloc(layout)
                            };
                            assert!(!at.is_null() && (at as usize).is_multiple_of(align));
                            assert!(!zeroed || Piece(at, layout, 0).is(size, 0));
                            at.write_bytes(mark, size);
                            let _ = next.send(Piece(at, layout, mark));
                            let Ok(mut got) = inbox.try_recv() else {
                                continue;
                            };
                            let old = got.1.size();
                            assert!(got.is(old, got.2));
                            if random(3) == 0 {
                                let new = 1 + random(most) as usize;
                                got.0 = realloc(got.0, got.1, new);
                                got.1 = Layout::from_size_align(new, got.1.align()).unwrap();
                                assert!(got.is(new.min(old), got.2));
                                assert!((got.0 as usize).is_multiple_of(got.1.align()));
                            }
                            dealloc(got.0, got.1);
                        }
                    }
                });
            }
        });
    }
}
