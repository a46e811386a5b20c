//! Memory for what is read or written ahead.
//!
//! Buffers come from mmap(2) in powers of two, so they are aligned as O_DIRECT wants and never touch the program's allocator,
//! which may be what we are called from. A thread keeps some for its next scope. All threads together stay below [`LIMIT`]: who
//! gets none issues nothing ahead.

use core::cell::{Cell, RefCell};
use core::mem::replace;
use core::ops::Deref;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::memory::{self, Mapped, Row};

/// Bytes of buffers that a process may have.
pub const LIMIT: usize = 64 << 20;
/// Bytes that a thread keeps between scopes.
const KEPT: usize = 4 << 20;
/// The smallest buffer.
const SMALLEST: usize = 4096;
/// Bytes that are mapped together: a call of mmap(2) and a mapping for each buffer of 4 KiB cost more than reading it from the cache.
const TOGETHER: usize = 64 << 10;
/// Sizes: 4 KiB, 8 KiB … 8 MiB.
const CLASSES: usize = 12;
/// The largest buffer, and so the largest call that is made ahead.
pub const LARGEST: usize = SMALLEST << (CLASSES - 1);

static TOTAL: AtomicUsize = AtomicUsize::new(0);

struct One {
    at: *mut u8,
    class: usize,
    users: usize,
    /// The next in the list that this is in.
    next: u32,
}

/// No further entry.
const NONE: u32 = u32::MAX;

struct Inner {
    all: Row<One>,
    /// The first unused buffer of each size; the next is in its entry.
    free: [u32; CLASSES],
    /// The first entry of `all` without memory.
    empty: u32,
    kept: usize,
}

/// What the holders of a thread's buffers share.
struct Holding {
    holders: Cell<usize>,
    /// The buffer that was given back last, if it is small: a read at rest takes it, and gives it back.
    last: Cell<Option<Last>>,
    inner: RefCell<Inner>,
}

/// A buffer that counts as in use and is not.
#[derive(Clone, Copy)]
struct Last {
    index: u32,
    class: u32,
    at: *mut u8,
}

/// The buffers of a scope.
pub struct Buffers(*mut Holding);

thread_local! {
    static OWN: Option<Buffers> = Buffers::new();
}

/// One user's hold on a buffer.
pub struct Buffer {
    owner: Buffers,
    index: u32,
    /// Its size, and whether it has ever had a second user.
    class: u16,
    shared: Cell<bool>,
    at: *mut u8,
}

impl Buffers {
    /// Without buffers yet; `None` where there is no memory.
    pub fn new() -> Option<Buffers> {
        let inner = RefCell::new(Inner {
            all: Row::new(LIMIT / SMALLEST)?,
            free: [NONE; CLASSES],
            empty: NONE,
            kept: 0,
        });
        let held = Holding {
            holders: Cell::new(1),
            last: Cell::new(None),
            inner,
        };
        Mapped::new(held).map(|held| Buffers(held.into_raw()))
    }

    fn held(&self) -> &Holding {
        // SAFETY: there as long as it has a holder.
        unsafe { &*self.0 }
    }

    /// Those of this thread, for scopes that pass their calls through; others when it ends just now.
    pub fn of_thread() -> Option<Buffers> {
        OWN.try_with(Option::clone)
            .unwrap_or_else(|_| Buffers::new())
    }

    /// A buffer of at least `len` bytes, or `None` when there is no memory for it.
    #[inline]
    pub fn take(&self, len: usize) -> Option<Buffer> {
        if len > LARGEST {
            return None;
        }
        let size = len.max(SMALLEST).next_power_of_two();
        let class = (size / SMALLEST).trailing_zeros();
        let held = self.held();
        let found = match held.last.get() {
            Some(last) if last.class == class => {
                held.last.set(None);
                last
            }
            _ => held.inner.borrow_mut().take(class)?,
        };
        Some(Buffer {
            owner: self.clone(),
            index: found.index,
            class: class as u16,
            shared: Cell::new(false),
            at: found.at,
        })
    }
}

impl Inner {
    /// One that nobody uses, or a new one.
    fn take(&mut self, class: u32) -> Option<Last> {
        let index = match self.free[class as usize] {
            NONE => self.grow(class as usize)?,
            i => {
                self.free[class as usize] = self.all[i as usize].next;
                self.kept -= SMALLEST << class;
                i
            }
        };
        let one = &mut self.all[index as usize];
        one.users = 1;
        let at = one.at;
        Some(Last { index, class, at })
    }

    /// One of its users has no use for it any more.
    fn give_back(&mut self, index: u32) {
        let one = &mut self.all[index as usize];
        one.users -= 1;
        if one.users > 0 {
            return;
        }
        let (class, size) = (one.class, SMALLEST << one.class);
        if self.kept + size <= KEPT {
            self.kept += size;
            one.next = replace(&mut self.free[class], index);
        } else {
            unmap(one.at, size);
            one.at = null_mut();
            one.next = replace(&mut self.empty, index);
        }
    }

    /// A new buffer that is in no list; small ones are mapped several at a time, the others of which are unused.
    fn grow(&mut self, class: usize) -> Option<u32> {
        let size = SMALLEST << class;
        let together = (TOGETHER / size).max(1);
        let (at, count) = match map(together * size) {
            Some(at) => (at, together),
            None => (map(size)?, 1),
        };
        let mut first = None;
        for i in 0..count {
            // SAFETY: within the new mapping.
            let at = unsafe { at.add(i * size) };
            let index = self.entry(One {
                at,
                class,
                users: 0,
                next: NONE,
            });
            match index {
                None => unmap(at, size),
                Some(index) if first.is_none() => first = Some(index),
                Some(index) => {
                    self.kept += size;
                    self.all[index as usize].next = replace(&mut self.free[class], index);
                }
            }
        }
        first
    }

    /// Puts a buffer where there is none; `None` where there is no such place.
    fn entry(&mut self, one: One) -> Option<u32> {
        let empty = self.empty;
        if empty != NONE {
            self.empty = self.all[empty as usize].next;
            self.all[empty as usize] = one;
            return Some(empty);
        }
        let pushed = self.all.push(one);
        pushed.then(|| (self.all.len() - 1) as u32)
    }
}

impl Clone for Buffers {
    fn clone(&self) -> Buffers {
        let holders = &self.held().holders;
        holders.set(holders.get() + 1);
        Buffers(self.0)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let holders = &self.held().holders;
        holders.set(holders.get() - 1);
        if holders.get() == 0 {
            // SAFETY: made by `new`, and nobody has it any more.
            drop(unsafe { Mapped::from_raw(self.0) });
        }
    }
}

impl Buffer {
    /// Where it begins.
    pub fn at(&self) -> *mut u8 {
        self.at
    }
}

impl Clone for Buffer {
    /// A further hold on the same memory.
    fn clone(&self) -> Buffer {
        let mut inner = self.owner.held().inner.borrow_mut();
        inner.all[self.index as usize].users += 1;
        drop(inner);
        self.shared.set(true);
        Buffer {
            owner: self.owner.clone(),
            index: self.index,
            class: self.class,
            shared: Cell::new(true),
            at: self.at,
        }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        let held = self.owner.held();
        let is_small = SMALLEST << self.class <= TOGETHER;
        if is_small && !self.shared.get() && held.last.get().is_none() {
            held.last.set(Some(Last {
                index: self.index,
                class: u32::from(self.class),
                at: self.at,
            }));
        } else {
            held.inner.borrow_mut().give_back(self.index);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for one in self.all.iter() {
            if !one.at.is_null() {
                unmap(one.at, SMALLEST << one.class);
            }
        }
    }
}

fn map(size: usize) -> Option<*mut u8> {
    if TOTAL.fetch_add(size, Ordering::Relaxed) + size > LIMIT {
        TOTAL.fetch_sub(size, Ordering::Relaxed);
        return None;
    }
    let at = memory::map(size);
    if at.is_none() {
        TOTAL.fetch_sub(size, Ordering::Relaxed);
    }
    at
}

fn unmap(at: *mut u8, size: usize) {
    memory::unmap(at, size);
    TOTAL.fetch_sub(size, Ordering::Relaxed);
}

/// Bytes that were read, in the library's own memory: nothing is copied. The memory is used again once this is dropped.
pub struct Block {
    held: Held,
    len: usize,
}

enum Held {
    Buffer(Buffer),
    /// When there are no buffers, or for more bytes than one holds.
    Vector {
        bytes: Vec<u8>,
        /// Where they begin.
        from: usize,
    },
}

impl Block {
    pub(crate) fn new(buffer: Buffer, len: usize) -> Block {
        Block {
            held: Held::Buffer(buffer),
            len,
        }
    }

    pub(crate) fn empty() -> Block {
        Block::from(Vec::new())
    }

    /// What `read` puts into memory of `len` bytes that is aligned as O_DIRECT wants, without a buffer.
    pub(crate) fn filled<E>(
        len: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Block, E> {
        let mut bytes = vec![0u8; len.saturating_add(SMALLEST)];
        let from = bytes.as_ptr().align_offset(SMALLEST).min(SMALLEST);
        let len = read(&mut bytes[from..from + len])?;
        Ok(Block {
            held: Held::Vector { bytes, from },
            len,
        })
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Block {
        let len = bytes.len();
        Block {
            held: Held::Vector { bytes, from: 0 },
            len,
        }
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.held {
            // SAFETY: `len` bytes of the buffer were filled; nobody writes to it while this exists.
            Held::Buffer(b) => unsafe { core::slice::from_raw_parts(b.at(), self.len) },
            Held::Vector { bytes, from } => &bytes[*from..*from + self.len],
        }
    }
}
