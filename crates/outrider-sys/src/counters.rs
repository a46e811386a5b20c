//! What disks and processes have read so far.

use crate::device::DeviceId;
use crate::text;

/// Read requests that a disk has completed since it was there, those counted that were merged into others. Of a partition it is its whole disk
/// that counts. `None` where nothing does.
pub fn requests_read(device: DeviceId) -> Option<u64> {
    let dir = format!("/sys/dev/block/{device}");
    let disk = match text::read(format!("{dir}/partition")) {
        Ok(_) => format!("{dir}/.."),
        Err(_) => dir,
    };
    // Reads completed, reads merged (Documentation/block/stat.rst).
    let stat = text::read(format!("{disk}/stat")).ok()?;
    let mut numbers = stat.split_ascii_whitespace().map(str::parse::<u64>);
    let completed = numbers.next()?.ok()?;
    Some(completed + numbers.next()?.ok()?)
}

/// Bytes that process `pid` has had fetched from disks, by all of its threads (proc_pid_io(5)). `None` where that is not to be known.
pub fn bytes_fetched(pid: u32) -> Option<u64> {
    let io = text::read(format!("/proc/{pid}/io")).ok()?;
    let line = io.lines().find_map(|l| l.strip_prefix("read_bytes:"))?;
    line.trim().parse().ok()
}
