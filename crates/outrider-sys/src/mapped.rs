//! Values and lists in memory of their own from the kernel.
//!
//! What is made within a program's calls can't use the program's allocator: it may be what we are called from, by a handler or by
//! itself, and it may have nothing to give, which would end the program. Here having no memory is an answer, and mmap(2) may be called
//! wherever a system call may.

use core::ops::{Deref, DerefMut, Index};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::raw::{self, syscall6};

/// New zeroed memory of `len` bytes, aligned to a page.
#[inline(always)]
pub fn map(len: usize) -> Option<*mut u8> {
    anonymous(0, len, libc::MAP_PRIVATE)
}

/// The same, which children of fork(2) share.
#[inline(always)]
pub fn map_shared(len: usize) -> Option<*mut u8> {
    anonymous(0, len, libc::MAP_SHARED | libc::MAP_NORESERVE)
}

/// Puts new zeroed memory in the place of a mapping of ours at `at`.
pub fn map_over(at: *mut u8, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
    anonymous(at as usize, len, flags).is_some()
}

/// Puts new zeroed memory where nothing is mapped, at `at`. `false` where something is, which stays.
pub fn map_hole(at: *mut u8, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
    match anonymous(at as usize, len, flags) {
        // Before Linux 4.17 the address is but a wish.
        Some(elsewhere) if elsewhere != at => {
            unmap(elsewhere, len);
            false
        }
        found => found.is_some(),
    }
}

#[inline(always)]
fn anonymous(at: usize, len: usize, flags: libc::c_int) -> Option<*mut u8> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (flags | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new anonymous mapping, at an address of the kernel's choice or in the place of one of ours.
    let r = unsafe { syscall6(libc::SYS_mmap, at, len, access, flags, usize::MAX, 0) };
    (!(-4095..=0).contains(&r)).then_some(r as *mut u8)
}

/// Maps `len` bytes of a file, to be read and written by all who have it mapped: in the place of a mapping of ours at `at`, or where the kernel
/// chooses if that is null.
pub fn map_file(fd: i32, len: usize, at: *mut u8) -> Option<*mut u8> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = (libc::MAP_SHARED | fixed) as usize;
    // SAFETY: a new mapping, at an address of the kernel's choice or in the place of one of ours.
    let r = unsafe {
        syscall6(
            libc::SYS_mmap,
            at as usize,
            len,
            access,
            flags,
            fd as usize,
            0,
        )
    };
    (!(-4095..=0).contains(&r)).then_some(r as *mut u8)
}

/// Memory of [`map`] of `old` bytes, grown or shrunk to `new`, perhaps elsewhere; `None` leaves it as it is.
pub fn remap(at: *mut u8, old: usize, new: usize) -> Option<*mut u8> {
    let may_move = libc::MREMAP_MAYMOVE as usize;
    // SAFETY: a mapping of ours, of this size.
    let r = unsafe { syscall6(libc::SYS_mremap, at as usize, old, new, may_move, 0, 0) };
    (!(-4095..=0).contains(&r)).then_some(r as *mut u8)
}

/// Gives memory of [`map`] back; nothing may refer to it.
pub fn unmap(at: *mut u8, len: usize) {
    // SAFETY: a mapping of ours.
    unsafe { syscall6(libc::SYS_munmap, at as usize, len, 0, 0, 0, 0) };
}

/// One value. Its alignment is at most a page's.
pub struct Mapped<T>(NonNull<T>);

// SAFETY: it owns the value, as a Box does.
unsafe impl<T: Send> Send for Mapped<T> {}

impl<T> Mapped<T> {
    /// `None` where there is no memory.
    pub fn new(value: T) -> Option<Mapped<T>> {
        let at = NonNull::new(map(size_of::<T>())?.cast::<T>())?;
        // SAFETY: new memory, of this size and alignment.
        unsafe { at.write(value) };
        Some(Mapped(at))
    }

    /// The value, which [`Mapped::from_raw`] gives back.
    pub fn into_raw(self) -> *mut T {
        let at = self.0.as_ptr();
        core::mem::forget(self);
        at
    }

    /// Takes a value back.
    ///
    /// # Safety
    /// `at` comes from [`Mapped::into_raw`], and is not used any more.
    pub unsafe fn from_raw(at: *mut T) -> Option<Mapped<T>> {
        NonNull::new(at).map(Mapped)
    }
}

impl<T> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written by `new`, and ours.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Mapped<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: ours; nothing refers to it any more.
        unsafe { self.0.drop_in_place() };
        unmap(self.0.as_ptr().cast(), size_of::<T>());
    }
}

/// Up to a fixed number of values. Memory is taken as it is used.
pub struct Row<T> {
    at: NonNull<T>,
    len: usize,
    room: usize,
}

// SAFETY: it owns its values, as a Vec does.
unsafe impl<T: Send> Send for Row<T> {}

impl<T> Row<T> {
    /// Without values, and with room for `room` of them, one at least; `None` where there is no memory.
    pub fn new(room: usize) -> Option<Row<T>> {
        let at = NonNull::new(map(room.checked_mul(size_of::<T>())?)?.cast())?;
        Some(Row { at, len: 0, room })
    }

    /// Adds a value; `false` if there is no room for it.
    pub fn push(&mut self, value: T) -> bool {
        if self.len == self.room {
            return false;
        }
        // SAFETY: within the memory, behind the last value.
        unsafe { self.at.add(self.len).write(value) };
        self.len += 1;
        true
    }

    /// Takes the last value.
    pub fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: a value, which is none of ours any more.
        Some(unsafe { self.at.add(self.len).read() })
    }

    /// Takes value `i`, whose place the last one gets.
    pub fn swap_remove(&mut self, i: usize) -> Option<T> {
        if i >= self.len {
            return None;
        }
        let last = self.len - 1;
        self.swap(i, last);
        self.pop()
    }

    /// Takes value `i`; those behind it move up.
    pub fn remove(&mut self, i: usize) -> Option<T> {
        if i >= self.len {
            return None;
        }
        self[i..].rotate_left(1);
        self.pop()
    }

    /// Drops all values.
    pub fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

impl<T> Deref for Row<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: so many values are there.
        unsafe { core::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Row<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T> Drop for Row<T> {
    fn drop(&mut self) {
        self.clear();
        unmap(self.at.as_ptr().cast(), self.room * size_of::<T>());
    }
}

/// Up to a fixed number of values, first in, first out.
pub struct Fifo<T: Copy> {
    at: NonNull<T>,
    first: usize,
    len: usize,
    room: usize,
}

// SAFETY: as for a Row.
unsafe impl<T: Copy + Send> Send for Fifo<T> {}

impl<T: Copy> Fifo<T> {
    /// As [`Row::new`].
    pub fn new(room: usize) -> Option<Fifo<T>> {
        let at = NonNull::new(map(room.checked_mul(size_of::<T>())?)?.cast())?;
        Some(Fifo {
            at,
            first: 0,
            len: 0,
            room,
        })
    }

    fn place(&self, i: usize) -> NonNull<T> {
        // SAFETY: within the memory.
        unsafe { self.at.add((self.first + i) % self.room) }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value that came `i` after the first.
    pub fn get(&self, i: usize) -> Option<&T> {
        // SAFETY: so many values are there.
        (i < self.len).then(|| unsafe { self.place(i).as_ref() })
    }

    /// The value that will be taken next.
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The value that came last.
    pub fn back(&self) -> Option<&T> {
        self.get(self.len.checked_sub(1)?)
    }

    /// All, from the first on.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len).filter_map(|i| self.get(i))
    }

    /// Adds a value; `false` if there is no room for it.
    pub fn push_back(&mut self, value: T) -> bool {
        if self.len == self.room {
            return false;
        }
        // SAFETY: a place without a value.
        unsafe { self.place(self.len).write(value) };
        self.len += 1;
        true
    }

    /// Takes the first value.
    pub fn pop_front(&mut self) -> Option<T> {
        let value = *self.front()?;
        self.first = (self.first + 1) % self.room;
        self.len -= 1;
        Some(value)
    }

    /// Takes the value that came `i` after the first; those behind it move up.
    pub fn remove(&mut self, i: usize) -> Option<T> {
        let value = *self.get(i)?;
        for n in i + 1..self.len {
            // SAFETY: two places with values.
            unsafe { self.place(n - 1).write(self.place(n).read()) };
        }
        self.len -= 1;
        Some(value)
    }
}

impl<T: Copy> Index<usize> for Fifo<T> {
    type Output = T;

    fn index(&self, i: usize) -> &T {
        assert!(i < self.len);
        // SAFETY: so many values are there.
        unsafe { self.place(i).as_ref() }
    }
}

impl<T: Copy> Drop for Fifo<T> {
    fn drop(&mut self) {
        unmap(self.at.as_ptr().cast(), self.room * size_of::<T>());
    }
}

/// A page of this process that is written to now and then, and by nobody else.
#[repr(C, align(4096))]
struct Written(AtomicU32);

static WRITTEN: Written = Written(AtomicU32::new(0));

/// Whether this process's memory was copied since this was called last, by fork(2) in whatever way; now and then also where it was not. The child shares pages
/// with it from then on, to which neither may write before one of them has got its own: the kernel counts that as a fault of who writes next. One thread calls this at a
/// time. By system calls alone.
#[inline(never)]
pub fn was_copied() -> bool {
    let before = raw::faults();
    WRITTEN.0.fetch_add(1, Ordering::SeqCst);
    raw::faults() != before
}
