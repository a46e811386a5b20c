//! What disks and processes have read so far.

use std::io;
use std::os::fd::AsFd;

use crate::raw::Fd;
use crate::standing::Stat;
use crate::text;
use crate::units::DeviceId;

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

/// What a disk has read; of a partition, its whole disk. `None` where nothing counts.
pub fn read(device: DeviceId) -> Option<Read> {
    completed(&disk(device))
}

/// Requests to read that a disk has been given so far: no fewer and no more than these. `None` where nothing counts.
pub fn begun(device: DeviceId) -> Option<(u64, u64)> {
    let disk = disk(device);
    let before = completed(&disk)?;
    // Reads and writes that are on their way (Documentation/ABI/stable/sysfs-block).
    let inflight = text::read(format!("{disk}/inflight")).ok()?;
    let in_flight: u64 = inflight.split_ascii_whitespace().next()?.parse().ok()?;
    // Of what is completed meanwhile nobody knows whether it was counted as on its way.
    let after = completed(&disk)?;
    Some((
        before.completed + before.merged + in_flight,
        after.completed + after.merged + in_flight,
    ))
}

/// Bytes of the longest request that a disk is given; longer ones are cut.
pub fn longest_request(device: DeviceId) -> Option<u64> {
    let kib: u64 = text::read_number(format!("{}/queue/max_sectors_kb", disk(device)))?;
    Some(kib * 1024)
}

/// The directory of the disk in sysfs.
fn disk(device: DeviceId) -> String {
    let dir = format!("/sys/dev/block/{device}");
    match text::read(format!("{dir}/partition")) {
        Ok(_) => format!("{dir}/.."),
        Err(_) => dir,
    }
}

fn completed(disk: &str) -> Option<Read> {
    // Reads completed, reads merged, sectors of 512 bytes read (Documentation/block/stat.rst).
    let stat = text::read(format!("{disk}/stat")).ok()?;
    let mut numbers = stat.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    Some(Read {
        completed: next()?,
        merged: next()?,
        bytes: next()? * 512,
    })
}

/// What all processors together have done so far, clock ticks.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    /// Ticks in which they were at work.
    pub busy: u64,
    /// All ticks.
    pub all: u64,
}

/// What all processors have done so far (proc_stat(5), the first line). `None` where that is not to be known.
pub fn processors() -> Option<Processors> {
    let stat = text::read("/proc/stat").ok()?;
    let ticks = stat.lines().next()?.strip_prefix("cpu ")?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' ticks are users' already.
    let ticks = ticks.split_ascii_whitespace().take(8);
    let ticks: Vec<u64> = ticks.map_while(|n| n.parse().ok()).collect();
    let idle: u64 = ticks.get(3..5)?.iter().sum();
    let all: u64 = ticks.iter().sum();
    Some(Processors {
        busy: all - idle,
        all,
    })
}

/// Bytes that process `pid` has had fetched from disks, by all of its threads. `None` where that is not to be known.
pub fn bytes_fetched(pid: u32) -> Option<u64> {
    of_process(pid, FETCHED)
}

/// Bytes that system calls of process `pid` have read, from disks, caches or elsewhere. `None` where that is not to be known.
pub fn bytes_read(pid: u32) -> Option<u64> {
    of_process(pid, "rchar:")
}

/// proc_pid_io(5) of the calling thread.
pub fn of_this_thread() -> io::Result<Fd> {
    text::open("/proc/thread-self/io".as_ref())
}

/// When a process began, clock ticks since the machine did (proc_pid_stat(5), field 22).
pub fn began(pid: u32) -> Option<u64> {
    let stat = text::read_bytes(format!("/proc/{pid}/stat")).ok()?;
    Stat::new(&stat).nth_field(19)?.parse().ok()
}

/// Bytes fetched by the process or thread whose proc_pid_io(5) this is.
pub fn fetched(io: impl AsFd) -> Option<u64> {
    let mut text = [0; 256];
    let n = rustix::io::pread(io, &mut text, 0).ok()?;
    line_of(std::str::from_utf8(text.get(..n)?).ok()?, FETCHED)
}

/// The line of proc_pid_io(5) that tells of bytes fetched.
const FETCHED: &str = "read_bytes:";

fn of_process(pid: u32, name: &str) -> Option<u64> {
    line_of(&text::read(format!("/proc/{pid}/io")).ok()?, name)
}

/// The number behind a name in proc_pid_io(5).
fn line_of(io: &str, name: &str) -> Option<u64> {
    let line = io.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().parse().ok()
}
