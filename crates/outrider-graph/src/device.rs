//! On which device a graph's reads lie.
//!
//! How far ahead is right on one device says nothing of another: behind a weak edge, sixty reads that nobody then asks for take an SSD a
//! millisecond, and a disk half a second. So what a graph has learned of its depth counts for the device on which it learned it.
//!
//! A file system on one disk is one device. Of one on several (LVM, md, bcache) only root may ask what lies where. There it is seen, as Outrider's own
//! device models are: by how long requests took that had few others beside them, for a neighbourhood of 64 MiB of a file. Such a device has a head or it
//! has none; of a neighbourhood that no request has come back from nothing is known.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use outrider_core::device::{AHEAD, Seeks};
use outrider_core::tree::listing::Listing;
use outrider_sys::raw::{self, syscall6};

use crate::conflict::File;
use crate::limits::FIRST_BYTES;

/// File systems that are told apart; the last of them stands for all further ones.
const SYSTEMS: usize = 4;
/// On a file system on several disks: one without a head …
const FLASH: usize = SYSTEMS;
/// … one with …
const HEAD: usize = SYSTEMS + 1;
/// … and what has not been seen yet.
pub const UNSEEN: usize = SYSTEMS + 2;
/// Devices for which a graph keeps a depth. The first one that the process met has number 0.
pub const DEVICES: usize = SYSTEMS + 3;

/// Calls on their way beside which a request still tells its device's latency.
pub const FEW: usize = 4;
/// Answers after which a device that nothing else shows to seek is believed not to, as seeks are short now and then.
const ENOUGH: u64 = 4;
/// Bits of an offset within a neighbourhood.
const NEAR: u32 = 26;
/// Neighbourhoods that are remembered.
const REMEMBERED: usize = 1024;
/// Layers are followed this far down.
const DEEPEST: usize = 8;

/// `st_dev` plus one of the file systems that were met, in that order, whether they lie on several disks, and whether the kernel reads far ahead there.
static SYSTEM: [AtomicU64; SYSTEMS] = [const { AtomicU64::new(0) }; SYSTEMS];
const SEVERAL: u64 = 1 << 63;
const FAR: u64 = 1 << 62;
/// The kernel's read-ahead from which on it is far, KiB: as much as is looked ahead of what is certain.
const FAR_KIB: u64 = (FIRST_BYTES >> 10) as u64;

/// A neighbourhood in 44 bits, its answers so far in 4, and the microseconds that they take in 16.
static SEEN: [AtomicU64; REMEMBERED] = [const { AtomicU64::new(0) }; REMEMBERED];
const LONGEST_US: u64 = (1 << 16) - 1;
const MOST_ANSWERS: u64 = 15;

/// Who knows of others that read from a device: by its `st_dev`, bytes that may be in flight there.
type Asked = fn(u64) -> Option<u64>;
static ROOM: OnceLock<Asked> = OnceLock::new();

/// Has `room` be asked how many bytes calls that are made ahead may have in flight on the device with this `st_dev`; `None`: nobody is known to read
/// there. It is called within calls of the program, and must neither allocate nor wait.
pub fn ask_room(room: fn(u64) -> Option<u64>) {
    let _ = ROOM.set(room);
}

/// Bytes that may be in flight on the device with this `st_dev`, beside a call that the program makes.
pub fn room(device: u64) -> usize {
    let known = ROOM.get().and_then(|room| room(device));
    known.map_or(AHEAD, |bytes| bytes.min(AHEAD)) as usize
}

/// The number of a file system's device, and what is known of it. Neither allocates nor waits for a lock; the first time it asks sysfs.
fn system(device: u64) -> (usize, u64) {
    let name = device + 1;
    for (i, slot) in SYSTEM.iter().enumerate() {
        let mut known = slot.load(Relaxed);
        if known == 0 {
            let several = if is_several(device) { SEVERAL } else { 0 };
            let far = if readahead_kib(device) >= FAR_KIB {
                FAR
            } else {
                0
            };
            known = slot
                .compare_exchange(0, name | several | far, Relaxed, Relaxed)
                .map_or_else(|other| other, |_| name | several | far);
        }
        if known & !(SEVERAL | FAR) == name {
            return (i, known);
        }
    }
    (SYSTEMS - 1, 0)
}

/// Whether sysfs was asked about a file's device, which takes 20 to 50 µs.
pub fn is_known(file: &File) -> bool {
    let name = file.device + 1;
    let mut known = SYSTEM.iter().map(|slot| slot.load(Relaxed));
    known.any(|k| k & !(SEVERAL | FAR) == name)
}

/// The device of byte `at` of a file, below [`DEVICES`].
pub fn of(file: &File, at: i64) -> usize {
    let (number, known) = system(file.device);
    if known & SEVERAL == 0 {
        return number;
    }
    let (slot, key) = neighbourhood(file, at);
    match slot.load(Relaxed) {
        seen if seen >> 20 != key => UNSEEN,
        seen => match (
            Seeks::of((seen & LONGEST_US) as f64),
            seen >> 16 & MOST_ANSWERS,
        ) {
            (Seeks::Yes, _) => HEAD,
            (Seeks::No, _) | (_, ENOUGH..) => FLASH,
            _ => UNSEEN,
        },
    }
}

/// Whether reading on a device costs as much as ten thousand calls, or may, for all that is known.
pub fn is_dear(device: usize) -> bool {
    device == HEAD || device == UNSEEN
}

/// Whether it is to be seen what lies where: the file's file system lies on several disks.
pub fn is_spread(file: &File) -> bool {
    system(file.device).1 & SEVERAL != 0
}

/// Whether the kernel by itself reads as far ahead of a sequential reader as a graph would. It takes large folios for that, which cost it, and the reader,
/// less than those that it takes for readahead(2).
pub fn reads_far_ahead(file: &File) -> bool {
    system(file.device).1 & FAR != 0
}

/// A request for byte `at` of a file that [`is_spread`], with [`FEW`] others beside it at most, was answered after so many nanoseconds.
pub fn answered(file: &File, at: i64, nanos: u128) {
    let (slot, key) = neighbourhood(file, at);
    let us = (nanos / 1000).min(u128::from(LONGEST_US)) as u64;
    let seen = slot.load(Relaxed);
    let mut answers = seen >> 16 & MOST_ANSWERS;
    let before = seen & LONGEST_US;
    // Others at the same device only ever make an answer slower.
    let now = if seen >> 20 != key {
        answers = 0;
        us
    } else if us < before {
        before - (before - us) / 3
    } else {
        before + (us - before) / 8
    };
    answers = (answers + 1).min(MOST_ANSWERS);
    slot.store(key << 20 | answers << 16 | now, Relaxed);
}

/// Where a neighbourhood is remembered, and its key there.
fn neighbourhood(file: &File, at: i64) -> (&'static AtomicU64, u64) {
    let mut mixed = file.inode ^ file.device.rotate_left(40) ^ (at as u64 >> NEAR).rotate_left(20);
    mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    let slot = &SEEN[mixed as usize % REMEMBERED];
    // Zero is what nothing was noted in.
    (slot, (mixed >> 20).max(1))
}

/// The kernel's read-ahead on a file system's device, KiB; 0 where sysfs does not say. A partition has its disk's.
fn readahead_kib(device: u64) -> u64 {
    [&b"/queue/read_ahead_kb"[..], b"/../queue/read_ahead_kb"]
        .iter()
        .find_map(|below| {
            let mut path = Path::of(device);
            path.push(below);
            path.read_number()
        })
        .unwrap_or(0)
}

/// Whether sysfs knows of several devices below a file system's, at the first layer that has more than one.
fn is_several(device: u64) -> bool {
    let mut path = Path::of(device);
    for _ in 0..DEEPEST {
        path.push(b"/slaves");
        let mut only = Path::default();
        match below(&path, &mut only) {
            0 => return false,
            1 => {
                path.push(b"/");
                path.push(only.text());
            }
            _ => return true,
        }
    }
    false
}

/// How many entries a directory of sysfs has, up to two, and the name of the last one.
fn below(path: &Path, last: &mut Path) -> usize {
    let fd = path.open(libc::O_DIRECTORY);
    if fd < 0 {
        return 0;
    }
    let mut count = 0;
    let mut room = [0u8; 1024];
    let mut listing = Listing::new(fd as i32, &mut room);
    while let Ok(Some(record)) = listing.next_record() {
        count += 1;
        *last = Path::default();
        last.push(record.name.to_bytes());
    }
    raw::close(fd as i32);
    count.min(2)
}

/// A path that is put together without allocating; what doesn't fit is left out, and names nothing then.
struct Path {
    bytes: [u8; 256],
    len: usize,
}

impl Default for Path {
    fn default() -> Path {
        Path {
            bytes: [0; 256],
            len: 0,
        }
    }
}

impl Path {
    /// A device's directory in sysfs.
    fn of(device: u64) -> Path {
        let mut path = Path::default();
        path.push(b"/sys/dev/block/");
        path.number(libc::major(device));
        path.push(b":");
        path.number(libc::minor(device));
        path
    }

    /// A descriptor, or a negated errno.
    fn open(&self, flags: i32) -> isize {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC | flags;
        // SAFETY: the path ends with a zero byte.
        unsafe {
            let at = self.bytes.as_ptr() as usize;
            let from = libc::AT_FDCWD as usize;
            syscall6(libc::SYS_openat, from, at, flags as usize, 0, 0, 0)
        }
    }

    /// The number that is the first line of a file.
    fn read_number(&self) -> Option<u64> {
        let fd = self.open(0);
        if fd < 0 {
            return None;
        }
        let mut text = [0u8; 32];
        // SAFETY: the memory is ours.
        let read = unsafe {
            let at = text.as_mut_ptr() as usize;
            syscall6(libc::SYS_read, fd as usize, at, text.len(), 0, 0, 0)
        };
        raw::close(fd as i32);
        let text = text.get(..read.max(0) as usize)?;
        std::str::from_utf8(text).ok()?.trim_end().parse().ok()
    }

    fn push(&mut self, text: &[u8]) {
        let end = self.len + text.len();
        if end < self.bytes.len() {
            self.bytes[self.len..end].copy_from_slice(text);
            self.len = end;
        }
    }

    fn number(&mut self, number: u32) {
        if number >= 10 {
            self.number(number / 10);
        }
        self.push(&[b'0' + (number % 10) as u8]);
    }

    fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
