//! What disks and processes have read so far.

use crate::device::DeviceId;
use crate::raw::Fd;
use crate::text;

/// What a disk has read since it was there.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Requests that it has completed …
    pub completed: u64,
    /// … and those that were merged into these.
    pub merged: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Where sysfs has the disk `device`; of a partition, its whole disk.
fn disk(device: DeviceId) -> String {
    let dir = format!("/sys/dev/block/{device}");
    match text::read(format!("{dir}/partition")) {
        Ok(_) => format!("{dir}/.."),
        Err(_) => dir,
    }
}

/// What a disk has read; of a partition, its whole disk. `None` where nothing counts.
pub fn read(device: DeviceId) -> Option<Read> {
    // Reads completed, reads merged, sectors of 512 bytes read (Documentation/block/stat.rst).
    let stat = text::read(format!("{}/stat", disk(device))).ok()?;
    let mut numbers = stat.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    Some(Read {
        completed: next()?,
        merged: next()?,
        bytes: next()? * 512,
    })
}

/// Requests that a disk has been given and has not completed.
pub struct Pending(Fd);

impl Pending {
    /// Of `device`, or of its whole disk if it is a partition. `None` where nothing counts.
    pub fn of(device: DeviceId) -> Option<Pending> {
        let path = format!("{}/inflight", disk(device));
        text::open(path.as_ref()).ok().map(Pending)
    }

    /// Reads that are pending now.
    pub fn reads(&self) -> Option<u64> {
        let mut both = [0; 64];
        let len = rustix::io::pread(&self.0, &mut both, 0).ok()?;
        // Reads, then writes (Documentation/ABI/stable/sysfs-block).
        let both = std::str::from_utf8(both.get(..len)?).ok()?;
        both.split_ascii_whitespace().next()?.parse().ok()
    }
}

/// Bytes that process `pid` has had fetched from disks, by all of its threads. `None` where that is not to be known.
pub fn bytes_fetched(pid: u32) -> Option<u64> {
    io(pid, "read_bytes:")
}

/// Bytes that system calls of process `pid` have read, from disks, caches or elsewhere. `None` where that is not to be known.
pub fn bytes_read(pid: u32) -> Option<u64> {
    io(pid, "rchar:")
}

/// A line of proc_pid_io(5).
fn io(pid: u32, name: &str) -> Option<u64> {
    let io = text::read(format!("/proc/{pid}/io")).ok()?;
    let line = io.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().parse().ok()
}
