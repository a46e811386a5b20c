//! Reading a block device past the page cache with a deep queue: for the lower bound and the emulator's accuracy.
//!
//! Through io_uring, or through threads where that is refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, ProtFlags};

use crate::output::{Context, Outcome};

/// A read: first byte and length, multiples of 4096.
pub type Read = (u64, u32);

/// How long it took.
#[derive(Debug)]
pub struct Took {
    /// All, s.
    pub seconds: f64,
    /// Each one from its submission to its completion, s, in no order.
    pub each: Vec<f64>,
}

/// Reads all of `reads`, in this order, `depth` at a time.
pub fn read(device: &Path, reads: &[Read], depth: usize) -> Outcome<Took> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(device)
        .doing(device.display())?;
    let longest = reads.iter().map(|r| r.1).max().unwrap_or(4096) as usize;
    let buffers = Buffers::new(depth, longest).doing("memory for reading")?;
    let done = match IoUring::new(depth.next_power_of_two() as u32) {
        Ok(ring) => through_ring(ring, &file, reads, depth, &buffers),
        Err(_) => through_threads(&file, reads, depth, &buffers),
    };
    done.doing(format!("cannot read {}", device.display()))
}

/// Memory that the device may write to directly.
struct Buffers {
    base: NonNull<u8>,
    each: usize,
    count: usize,
}

// SAFETY: the memory is only handed out slot by slot, and each slot to one user at a time.
unsafe impl Sync for Buffers {}

impl Buffers {
    fn new(count: usize, each: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                count * each,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        Ok(Self {
            base: NonNull::new(base.cast()).expect("mmap does not return null"),
            each,
            count,
        })
    }

    fn slot(&self, i: usize) -> *mut u8 {
        debug_assert!(i < self.count);
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(i * self.each) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`; no read into it is under way any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.count * self.each) };
    }
}

fn through_ring(
    mut ring: IoUring,
    file: &File,
    reads: &[Read],
    depth: usize,
    buffers: &Buffers,
) -> io::Result<Took> {
    let fd = types::Fd(file.as_raw_fd());
    let mut each = Vec::with_capacity(reads.len());
    let mut since = vec![Instant::now(); depth];
    let mut lengths = vec![0u32; depth];
    let mut free: Vec<usize> = (0..depth).rev().collect();
    let mut next = reads.iter();
    let mut under_way = 0;
    let mut failed = None;
    let start = Instant::now();
    loop {
        while failed.is_none()
            && let Some(&slot) = free.last()
            && let Some(&(offset, len)) = next.next()
        {
            free.pop();
            let read = opcode::Read::new(fd, buffers.slot(slot), len)
                .offset(offset)
                .build();
            since[slot] = Instant::now();
            lengths[slot] = len;
            // SAFETY: the buffer and the file live until all completions were seen; the queue has `depth` places.
            unsafe { ring.submission().push(&read.user_data(slot as u64)) }
                .map_err(io::Error::other)?;
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        match ring.submit_and_wait(1) {
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            done => {
                done?;
            }
        }
        let now = Instant::now();
        for done in ring.completion() {
            let slot = done.user_data() as usize;
            under_way -= 1;
            free.push(slot);
            each.push((now - since[slot]).as_secs_f64());
            if done.result() < 0 {
                failed = Some(io::Error::from_raw_os_error(-done.result()));
            } else if done.result() as u32 != lengths[slot] {
                failed = Some(io::Error::other("a read came back short"));
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    failed.map_or(Ok(Took { seconds, each }), Err)
}

fn through_threads(
    file: &File,
    reads: &[Read],
    depth: usize,
    buffers: &Buffers,
) -> io::Result<Took> {
    let next = AtomicUsize::new(0);
    let each = Mutex::new(Vec::with_capacity(reads.len()));
    let failed = Mutex::new(None);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for slot in 0..depth.min(reads.len()) {
            let (next, each, failed) = (&next, &each, &failed);
            scope.spawn(move || {
                let mut own = Vec::new();
                while let Some(&(offset, len)) = reads.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // SAFETY: slot `slot` is this thread's alone.
                    let buffer =
                        unsafe { std::slice::from_raw_parts_mut(buffers.slot(slot), len as usize) };
                    let since = Instant::now();
                    if let Err(e) = file.read_exact_at(buffer, offset) {
                        *failed.lock().expect("no thread panicked") = Some(e);
                        break;
                    }
                    own.push(since.elapsed().as_secs_f64());
                }
                each.lock().expect("no thread panicked").extend(own);
            });
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    match failed.into_inner().expect("no thread panicked") {
        Some(e) => Err(e),
        None => Ok(Took {
            seconds,
            each: each.into_inner().expect("no thread panicked"),
        }),
    }
}
