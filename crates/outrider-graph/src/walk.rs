//! Looking up the entries of directories ahead of a program that walks a tree.
//!
//! A file system keeps the inodes of neighbouring numbers in one block (ext4 16 of 256 bytes, XFS 8 to 16), so one look-up of them fetches all, and the
//! program's own look-ups find their block cached. That is a small part of the calls, and no result has to be handed over.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use outrider_core::tree::inode_block;
use outrider_sys::raw::{self, syscall6};

/// Blocks that are remembered to have been fetched: those of a few hundred directories. One that was forgotten costs a quick call.
const REMEMBERED: usize = 8192;

static FETCHED: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];

/// Seconds after which it may have been evicted.
const FRESH: u64 = 16;

/// Notes something of a device; whether it was noted already.
fn noted(device: u64, number: u64, kind: u64) -> bool {
    let mixed = (number ^ device.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let when = (now() / FRESH) & 0x7f;
    let key = (mixed ^ mixed >> 29) << 8 | when << 1 | kind;
    let slot = &FETCHED[(key >> 8) as usize % REMEMBERED];
    slot.load(Relaxed) == key || {
        slot.store(key, Relaxed);
        false
    }
}

/// Seconds of a clock that costs next to nothing to read.
fn now() -> u64 {
    // SAFETY: plain data, which the C library fills in.
    unsafe {
        let mut t: libc::timespec = core::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut t);
        t.tv_sec as u64
    }
}

/// Whether a directory was listed for a walk of late; from now on it counts as that.
pub fn was_walked(device: u64, inode: u64) -> bool {
    noted(device, inode, 1)
}

/// Which of a directory's entries are looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The first of each block of inodes.
    Blocks,
    /// All: the program's own look-ups find names and attributes, not only their blocks.
    All,
}

/// The entries of a directory that is being listed.
pub struct Entries {
    directory: i32,
    device: u64,
    which: Which,
}

impl Entries {
    /// Of the directory that is open as `directory`, in the calling thread's table.
    pub fn of(directory: i32, which: Which) -> Entries {
        let device = raw::status(directory).map_or(0, |st| {
            was_walked(st.st_dev, st.st_ino);
            st.st_dev
        });
        Entries {
            directory,
            device,
            which,
        }
    }

    /// Looks one of them up, if it is the first of its block of inodes or all are wanted.
    pub fn look_up(&mut self, inode: u64, name: &CStr) {
        if noted(self.device, inode_block::of(inode), 0) && self.which == Which::Blocks {
            return;
        }
        let mut attributes = [0u64; 32];
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
        // SAFETY: a C string, and room for a struct statx.
        unsafe {
            syscall6(
                libc::SYS_statx,
                self.directory as usize,
                name.as_ptr() as usize,
                flags as usize,
                libc::STATX_BASIC_STATS as usize,
                attributes.as_mut_ptr() as usize,
                0,
            )
        };
    }
}
