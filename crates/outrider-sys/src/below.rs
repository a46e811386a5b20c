//! The disks below a file system that lies on several, and what they have read.
//!
//! Volume managers and btrfs spread one file system over disks that may differ by a hundred times. Which disks these are stands
//! in sysfs for everybody to read (`slaves`, `/sys/fs/btrfs/*/devices`), and so do their counters (`stat`). Which range of the
//! file system lies on which of them does not: a device-mapper table and btrfs's chunk tree are root's.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use crate::device::Device;
use crate::raw;
use crate::text;
use crate::units::DeviceId;

/// Layers are followed this far down: encryption on a volume on a RAID on partitions is four.
const DEEPEST: u32 = 8;

/// The whole disks on which the file system of an open file lies, in the order of their numbers; empty unless there are at least two.
pub fn disks(fd: BorrowedFd<'_>) -> Vec<DeviceId> {
    let block = |id| PathBuf::from(format!("/sys/dev/block/{id}"));
    let mut found = Vec::new();
    match raw::status(fd.as_raw_fd()).map(|st| DeviceId(st.st_dev)) {
        Ok(id) if id.major() != 0 => add(&block(id), 0, &mut found),
        // No device of its own: the mount says.
        _ => match Device::of_fd(fd) {
            Ok(device) if device.mount.as_ref().is_some_and(|m| m.fs_type == "btrfs") => {
                for member in btrfs_members(device.id) {
                    add(&member, 0, &mut found);
                }
            }
            Ok(device) => add(&block(device.id), 0, &mut found),
            Err(_) => {}
        },
    }
    found.sort_unstable();
    found.dedup();
    if found.len() < 2 {
        found.clear();
    }
    found
}

/// Adds the whole disks below a block device, itself if it is one.
fn add(block: &Path, depth: u32, found: &mut Vec<DeviceId>) {
    let below = entries(&block.join("slaves"));
    if !below.is_empty() && depth < DEEPEST {
        for one in below {
            add(&one, depth + 1, found);
        }
        return;
    }
    // A partition's directory lies in its disk's.
    let number = |dir: &Path| text::read(dir.join("dev")).ok().and_then(|t| parse(&t));
    let disk = match text::read(block.join("partition")) {
        Ok(_) => number(&block.join("..")),
        Err(_) => number(block),
    };
    found.extend(disk);
}

/// The block devices of the btrfs file system to which `member` belongs.
fn btrfs_members(member: DeviceId) -> Vec<PathBuf> {
    let number = Some(member);
    entries(Path::new("/sys/fs/btrfs"))
        .into_iter()
        .map(|fs| entries(&fs.join("devices")))
        .find(|devices| {
            devices
                .iter()
                .any(|d| text::read(d.join("dev")).ok().and_then(|t| parse(&t)) == number)
        })
        .unwrap_or_default()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(read) = rustix::fs::open(
        dir,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    ) else {
        return Vec::new();
    };
    // Closed past the hooks: in a descriptor table of our own the number is another file's.
    let read = raw::Fd::from(read);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut listing = rustix::fs::RawDir::new(&read, &mut buffer);
    let mut found = Vec::new();
    while let Some(entry) = listing.next() {
        let Ok(entry) = entry else { break };
        let name = entry.file_name().to_string_lossy();
        if !name.starts_with('.') {
            found.push(dir.join(name.as_ref()));
        }
    }
    found
}

/// `major:minor`.
fn parse(text: &str) -> Option<DeviceId> {
    let (major, minor) = text.split_once(':')?;
    Some(DeviceId::new(major.parse().ok()?, minor.parse().ok()?))
}
