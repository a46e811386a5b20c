//! An io_uring without a descriptor, for one thread.
//!
//! A ring inside a stranger's program must not take a descriptor number from it, must not interrupt its system calls
//! when something completes, and must not survive fork. So the ring is set up with `REGISTERED_FD_ONLY` in memory of
//! our own (Linux 6.6), or else registered and its descriptor closed at once (Linux 6.1); completions are delivered only
//! when the thread asks for them (`DEFER_TASKRUN`); and the memory is absent in forked children.
//!
//! A registered ring belongs to the thread that made it: `Ring` is not `Send`.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::raw::syscall6;

/// Submission entries: as many as fit in one page, which every kernel accepts as ring memory.
const ENTRIES: u32 = 64;
/// Completion entries; the kernel keeps what does not fit until there is room.
const COMPLETIONS: u32 = 128;
const PAGE: usize = crate::units::PAGE as usize;

const SETUP_CQSIZE: u32 = 1 << 3;
const SETUP_SUBMIT_ALL: u32 = 1 << 7;
const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
const SETUP_NO_MMAP: u32 = 1 << 14;
const SETUP_REGISTERED_FD_ONLY: u32 = 1 << 15;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
const ENTER_GETEVENTS: usize = 1;
const ENTER_REGISTERED_RING: usize = 1 << 4;
const REGISTER_RING_FDS: usize = 20;
const UNREGISTER_RING_FDS: usize = 21;
const REGISTER_USE_REGISTERED: usize = 1 << 31;
const OFF_SQ_RING: usize = 0;
const OFF_SQES: usize = 0x1000_0000;

/// Operations, as in `linux/io_uring.h`.
pub mod op {
    /// preadv(2).
    pub const READV: u8 = 1;
    /// pwritev(2).
    pub const WRITEV: u8 = 2;
    /// Cancels another operation.
    pub const ASYNC_CANCEL: u8 = 14;
    /// pread(2).
    pub const READ: u8 = 22;
    /// pwrite(2).
    pub const WRITE: u8 = 23;
}

/// A submission, in the kernel's layout.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Submission {
    /// One of [`op`].
    pub opcode: u8,
    /// `IOSQE_*`.
    pub flags: u8,
    /// Unused here.
    pub ioprio: u16,
    /// The descriptor, or the directory.
    pub fd: i32,
    /// Offset in bytes, or the second address.
    pub off: u64,
    /// Address of the buffer or path.
    pub addr: u64,
    /// Length in bytes, or what the operation takes there.
    pub len: u32,
    /// The operation's flags.
    pub op_flags: u32,
    /// Comes back with the completion.
    pub user_data: u64,
    /// Unused here.
    pub rest: [u64; 3],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    res: i32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct SqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    resv1: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Default)]
struct CqOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    cqes: u32,
    flags: u32,
    resv1: u32,
    user_addr: u64,
}

#[repr(C)]
#[derive(Default)]
struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    sq_thread_cpu: u32,
    sq_thread_idle: u32,
    features: u32,
    wq_fd: u32,
    resv: [u32; 3],
    sq_off: SqOffsets,
    cq_off: CqOffsets,
}

/// Memory from mmap(2), unmapped when dropped.
struct Map {
    at: *mut u8,
    len: usize,
}

impl Map {
    fn new(len: usize, flags: i32, fd: i32, offset: usize) -> Result<Map, i32> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let r = unsafe {
            syscall6(
                libc::SYS_mmap,
                0,
                len,
                (libc::PROT_READ | libc::PROT_WRITE) as usize,
                flags as usize,
                fd as usize,
                offset,
            )
        };
        if r < 0 && r > -4096 {
            return Err(-r as i32);
        }
        let map = Map {
            at: r as *mut u8,
            len,
        };
        // SAFETY: our own mapping. A forked child has no use for it and must not share it.
        let e = unsafe {
            syscall6(
                libc::SYS_madvise,
                map.at as usize,
                len,
                libc::MADV_DONTFORK as usize,
                0,
                0,
                0,
            )
        };
        if e < 0 { Err(-e as i32) } else { Ok(map) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more.
        unsafe { syscall6(libc::SYS_munmap, self.at as usize, self.len, 0, 0, 0, 0) };
    }
}

/// A ring of the thread that made it. In a forked child it must be forgotten (`mem::forget`), not dropped: its memory is not
/// there.
pub struct Ring {
    /// Index among the thread's registered rings.
    index: usize,
    /// Held for the pointers below.
    _rings: Map,
    entries: Map,
    sq_head: *const AtomicU32,
    sq_tail: *const AtomicU32,
    cq_head: *const AtomicU32,
    cq_tail: *const AtomicU32,
    cqes: *const Completion,
    sq_mask: u32,
    cq_mask: u32,
    /// Our tail; the kernel's follows at [`Ring::enter`].
    tail: u32,
    owner: PhantomData<*mut ()>,
}

impl Ring {
    /// Sets a ring up, or says with which errno the kernel refused.
    pub fn new() -> Result<Ring, i32> {
        Ring::without_descriptor().or_else(|_| Ring::with_descriptor_closed())
    }

    fn without_descriptor() -> Result<Ring, i32> {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let rings = Map::new(PAGE, anonymous, -1, 0)?;
        let entries = Map::new(ENTRIES as usize * 64, anonymous, -1, 0)?;
        let mut p = Params {
            cq_entries: COMPLETIONS,
            flags: SETUP_CQSIZE
                | SETUP_SUBMIT_ALL
                | SETUP_SINGLE_ISSUER
                | SETUP_DEFER_TASKRUN
                | SETUP_NO_MMAP
                | SETUP_REGISTERED_FD_ONLY
                | SETUP_NO_SQARRAY,
            ..Params::default()
        };
        p.cq_off.user_addr = rings.at as u64;
        p.sq_off.user_addr = entries.at as u64;
        let index = setup(&mut p)?;
        Ok(Ring::over(index, rings, entries, &p))
    }

    fn with_descriptor_closed() -> Result<Ring, i32> {
        let mut p = Params {
            cq_entries: COMPLETIONS,
            flags: SETUP_CQSIZE | SETUP_SUBMIT_ALL | SETUP_SINGLE_ISSUER | SETUP_DEFER_TASKRUN,
            ..Params::default()
        };
        let fd = setup(&mut p)? as i32;
        let made = (|| {
            let shared = libc::MAP_SHARED | libc::MAP_POPULATE;
            let size = (p.sq_off.array as usize + p.sq_entries as usize * 4)
                .max(p.cq_off.cqes as usize + p.cq_entries as usize * size_of::<Completion>());
            let rings = Map::new(size, shared, fd, OFF_SQ_RING)?;
            let entries = Map::new(p.sq_entries as usize * 64, shared, fd, OFF_SQES)?;
            for i in 0..p.sq_entries {
                // SAFETY: the kernel said where the array is; every entry names the submission of its own number.
                unsafe {
                    rings
                        .at
                        .add(p.sq_off.array as usize)
                        .cast::<u32>()
                        .add(i as usize)
                        .write(i);
                }
            }
            let mut update = [u32::MAX as u64, fd as u64];
            // SAFETY: struct io_uring_rsrc_update { u32 offset (-1: any), u32 resv, u64 data }, which the kernel fills in.
            let r = unsafe {
                syscall6(
                    libc::SYS_io_uring_register,
                    fd as usize,
                    REGISTER_RING_FDS,
                    update.as_mut_ptr() as usize,
                    1,
                    0,
                    0,
                )
            };
            if r < 0 {
                return Err(-r as i32);
            }
            Ok(Ring::over(
                (update[0] & 0xffff_ffff) as usize,
                rings,
                entries,
                &p,
            ))
        })();
        // The registration keeps the ring.
        crate::raw::close(fd);
        made
    }

    fn over(index: usize, rings: Map, entries: Map, p: &Params) -> Ring {
        let at = rings.at;
        // SAFETY: offsets within the mapping, as the kernel gave them.
        unsafe {
            let word = |offset: u32| at.add(offset as usize).cast::<AtomicU32>().cast_const();
            let tail = (*word(p.sq_off.tail)).load(Ordering::Relaxed);
            Ring {
                index,
                sq_head: word(p.sq_off.head),
                sq_tail: word(p.sq_off.tail),
                cq_head: word(p.cq_off.head),
                cq_tail: word(p.cq_off.tail),
                cqes: at.add(p.cq_off.cqes as usize).cast::<Completion>(),
                sq_mask: p.sq_entries - 1,
                cq_mask: p.cq_entries - 1,
                tail,
                _rings: rings,
                entries,
                owner: PhantomData,
            }
        }
    }

    /// Puts a submission into the ring; [`Ring::enter`] hands it to the kernel. `false`: the ring is full.
    ///
    /// # Safety
    /// What the submission points to stays valid until its completion was taken.
    pub unsafe fn push(&mut self, s: &Submission) -> bool {
        // SAFETY: the ring's own memory.
        let head = unsafe { (*self.sq_head).load(Ordering::Acquire) };
        if self.tail.wrapping_sub(head) > self.sq_mask {
            return false;
        }
        // SAFETY: an entry that the kernel has consumed.
        unsafe {
            self.entries
                .at
                .cast::<Submission>()
                .add((self.tail & self.sq_mask) as usize)
                .write(*s);
        }
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Submissions that the kernel has not taken yet.
    pub fn unsubmitted(&self) -> u32 {
        // SAFETY: the ring's own memory.
        self.tail
            .wrapping_sub(unsafe { (*self.sq_head).load(Ordering::Acquire) })
    }

    /// Hands over what was pushed, lets completions in, and waits until there are `wait_for` of them or a signal comes.
    /// Returns how many submissions were taken, or a negated errno (EINTR among them).
    pub fn enter(&mut self, wait_for: u32) -> isize {
        self.call(wait_for, ENTER_GETEVENTS)
    }

    /// Hands over what was pushed. What completes at once is there afterwards; completions that come later are not let in.
    pub fn submit(&mut self) -> isize {
        self.call(0, 0)
    }

    /// Takes the latest submission back that the kernel has not seen; its `user_data`.
    pub fn withdraw(&mut self) -> Option<u64> {
        if self.unsubmitted() == 0 {
            return None;
        }
        self.tail = self.tail.wrapping_sub(1);
        // SAFETY: an entry that we have written.
        Some(unsafe {
            (*self
                .entries
                .at
                .cast::<Submission>()
                .add((self.tail & self.sq_mask) as usize))
            .user_data
        })
    }

    fn call(&mut self, wait_for: u32, flags: usize) -> isize {
        // SAFETY: the ring's own memory; the entries before the tail are written.
        unsafe { (*self.sq_tail).store(self.tail, Ordering::Release) };
        // SAFETY: the registered ring of this thread; no memory is passed.
        unsafe {
            syscall6(
                libc::SYS_io_uring_enter,
                self.index,
                self.unsubmitted() as usize,
                wait_for as usize,
                flags | ENTER_REGISTERED_RING,
                0,
                0,
            )
        }
    }

    /// The next completion: its `user_data` and result.
    pub fn completion(&mut self) -> Option<(u64, i32)> {
        // SAFETY: the ring's own memory; entries before the tail are the kernel's answers.
        unsafe {
            let head = (*self.cq_head).load(Ordering::Relaxed);
            if head == (*self.cq_tail).load(Ordering::Acquire) {
                return None;
            }
            let c = self.cqes.add((head & self.cq_mask) as usize).read();
            (*self.cq_head).store(head.wrapping_add(1), Ordering::Release);
            Some((c.user_data, c.res))
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let update = [self.index as u64, 0];
        // SAFETY: struct io_uring_rsrc_update as above, naming our registration.
        unsafe {
            syscall6(
                libc::SYS_io_uring_register,
                self.index,
                UNREGISTER_RING_FDS | REGISTER_USE_REGISTERED,
                update.as_ptr() as usize,
                1,
                0,
                0,
            )
        };
    }
}

fn setup(p: &mut Params) -> Result<usize, i32> {
    // SAFETY: the kernel reads and fills the structure.
    let r = unsafe {
        syscall6(
            libc::SYS_io_uring_setup,
            ENTRIES as usize,
            &raw mut *p as usize,
            0,
            0,
            0,
            0,
        )
    };
    if r < 0 {
        Err(-r as i32)
    } else {
        Ok(r as usize)
    }
}
