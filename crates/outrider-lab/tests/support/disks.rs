//! Tests that need emulated disks.

use std::fs::File;
use std::process::Command;

/// Why emulated disks cannot be made here.
pub fn no_disks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("not root".to_owned());
    }
    for node in ["/dev/fuse", "/dev/loop-control"] {
        if let Err(e) = File::options().read(true).write(true).open(node) {
            return Some(format!("{node}: {e}"));
        }
    }
    if Command::new("mkfs.ext4").arg("-V").output().is_err() {
        return Some("no mkfs.ext4".to_owned());
    }
    None
}

/// Returns from a test that needs emulated disks where there are none, and says so.
macro_rules! need_disks {
    () => {
        if let Some(reason) = crate::disks::no_disks() {
            let name = std::thread::current().name().unwrap_or("disk").to_owned();
            crate::support::skip(&name, &reason);
            return;
        }
    };
}
pub(crate) use need_disks;
