//! Loop devices, mounts and file systems: what stands between the emulated disk's file and a directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outrider_sys::device::{Mount, mounts};
use outrider_sys::units::DeviceId;
use rustix::fs::{FileType, Mode, makedev, mknodat};

// linux/loop.h and linux/fs.h.
const LOOP_CLR_FD: libc::c_ulong = 0x4c01;
const LOOP_SET_STATUS64: libc::c_ulong = 0x4c04;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const BLKFLSBUF: libc::c_ulong = 0x1261;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Their major number.
const LOOP: u32 = 7;

/// struct loop_config.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// struct loop_info64.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// The kernel's own limit for a request, KiB (BLK_DEF_MAX_SECTORS_CAP of 2560 sectors).
const LONGEST_KB: u32 = 1280;

impl LoopInfo {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// A loop device by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loop(pub u32);

impl Loop {
    /// Its node.
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.0))
    }

    fn sysfs(self, what: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/loop{}/{what}", self.0))
    }

    /// The name of the file behind it, if there is one.
    pub fn backing_file(self) -> Option<Vec<u8>> {
        let mut name = fs::read(self.sysfs("loop/backing_file")).ok()?;
        while name.last() == Some(&b'\n') {
            name.pop();
        }
        Some(name)
    }

    /// Whether it reads the file directly. Otherwise the page cache stands between, and depth is 1.
    pub fn is_direct(self) -> bool {
        fs::read_to_string(self.sysfs("loop/dio")).is_ok_and(|s| s.trim() == "1")
    }

    /// Its number.
    pub fn number(self) -> DeviceId {
        DeviceId::new(LOOP, self.0)
    }

    /// Whether a file system has it, wherever that is mounted: nobody else may have it to himself then.
    pub fn is_claimed(self) -> bool {
        let mut options = OpenOptions::new();
        let exclusive = options.read(true).custom_flags(libc::O_EXCL);
        exclusive
            .open(self.path())
            .is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
    }

    /// Opens its node, which is made if a container lacks it.
    pub fn open(self) -> io::Result<File> {
        let path = self.path();
        if !path.exists() {
            let device = makedev(LOOP, self.0);
            let mode = Mode::from_raw_mode(0o600);
            mknodat(rustix::fs::CWD, &path, FileType::BlockDevice, mode, device)?;
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let meta = file.metadata()?;
        if !meta.file_type().is_block_device() {
            return Err(io::Error::other("not a block device"));
        }
        Ok(file)
    }

    /// Sets the queue up as a disk of this kind would have it. Returns read_ahead_kb as it is afterwards.
    ///
    /// The order matters: writing `rotational` resets `read_ahead_kb`.
    pub fn tune(self, rotational: bool, readahead_kb: u32) -> io::Result<u32> {
        let scheduler = if rotational { "mq-deadline" } else { "none" };
        fs::write(
            self.sysfs("queue/rotational"),
            if rotational { "1" } else { "0" },
        )?;
        // What somebody has set for the file that this device was before.
        let longest = fs::read_to_string(self.sysfs("queue/max_hw_sectors_kb"))?;
        let longest = longest.trim().parse().unwrap_or(LONGEST_KB).min(LONGEST_KB);
        fs::write(self.sysfs("queue/max_sectors_kb"), longest.to_string())?;
        // A kernel may lack a scheduler; the default does then.
        let _ = fs::write(self.sysfs("queue/scheduler"), scheduler);
        let readahead = self.sysfs("queue/read_ahead_kb");
        fs::write(&readahead, readahead_kb.to_string())?;
        let set = fs::read_to_string(readahead)?;
        set.trim().parse().map_err(io::Error::other)
    }

    /// All loop devices with a file behind them.
    pub fn all() -> Vec<(Self, Vec<u8>)> {
        let Ok(entries) = fs::read_dir("/sys/block") else {
            return Vec::new();
        };
        let mut found: Vec<_> = entries
            .flatten()
            .filter_map(|e| {
                let name = e.file_name().into_string().ok()?;
                let device = Self(name.strip_prefix("loop")?.parse().ok()?);
                Some((device, device.backing_file()?))
            })
            .collect();
        found.sort_by_key(|(device, _)| device.0);
        found
    }
}

/// Attaches `file` to a free loop device with direct I/O. With `goes_away` the device lets the file go
/// when it is closed the last time. `label` is what old tools show as its file.
///
/// Needs LOOP_CONFIGURE (Linux 5.8).
pub fn attach(file: BorrowedFd<'_>, goes_away: bool, label: &Path) -> io::Result<(Loop, File)> {
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    let mut config = LoopConfig {
        fd: file.as_raw_fd() as u32,
        block_size: 512,
        info: LoopInfo {
            flags: LO_FLAGS_DIRECT_IO | if goes_away { LO_FLAGS_AUTOCLEAR } else { 0 },
            ..LoopInfo::EMPTY
        },
        reserved: [0; 8],
    };
    for (to, from) in config.info.file_name[..63]
        .iter_mut()
        .zip(label.as_os_str().as_bytes())
    {
        *to = *from;
    }
    // Somebody else may take the free device first.
    for _ in 0..64 {
        // SAFETY: the call takes no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _, 0) };
        let number = u32::try_from(number).map_err(|_| io::Error::last_os_error())?;
        let device = Loop(number);
        let node = device.open()?;
        // SAFETY: the configuration is laid out as the kernel defines it and outlives the call.
        if unsafe { libc::ioctl(node.as_raw_fd(), LOOP_CONFIGURE as _, &config) } == 0 {
            return Ok((device, node));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
    Err(io::Error::other("no loop device stayed free"))
}

/// Says whether a loop device lets its file go when it is closed the last time.
pub fn set_goes_away(device: &File, goes_away: bool) -> io::Result<()> {
    let mut info = LoopInfo::EMPTY;
    // SAFETY: the kernel fills the structure, which is laid out as it defines it.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, &mut info) } != 0 {
        return Err(io::Error::last_os_error());
    }
    info.flags &= !LO_FLAGS_AUTOCLEAR;
    if goes_away {
        info.flags |= LO_FLAGS_AUTOCLEAR;
    }
    // SAFETY: the kernel reads the structure, which outlives the call.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_STATUS64 as _, &info) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes a loop device's file away, once nobody has it open any more.
pub fn detach(device: &File) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _, 0) } != 0 {
        let error = io::Error::last_os_error();
        // There is none.
        if error.raw_os_error() != Some(libc::ENXIO) {
            return Err(error);
        }
    }
    Ok(())
}

/// Drops what the kernel has cached of a block device.
pub fn flush_buffers(device: &File) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), BLKFLSBUF as _, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The file system that was mounted on `dir` last, if one is. The directory isn't looked at, so that one whose server is dead is no trouble. `dir`
/// is a full name without links.
pub fn mounted_on(dir: &Path) -> Option<Mount> {
    let here = |m: &Mount| m.mount_point == dir;
    mounts().into_iter().rfind(here)
}

/// Where the device is mounted, the last mount first.
pub fn mounts_of(device: Loop) -> Vec<PathBuf> {
    among(device, mounts())
}

fn among(device: Loop, mounts: Vec<Mount>) -> Vec<PathBuf> {
    let (number, source) = (device.number(), device.path());
    let ours = |m: &Mount| m.dev == number || m.source == source;
    let found = mounts.into_iter().rev().filter(ours);
    found.map(|m| m.mount_point).collect()
}

/// Unmounts what other mount namespaces have of the device: whoever makes one gets a copy of every mount, and while one is left the file system lives on,
/// with all that is cached of it. `false`: somebody still has it.
pub fn unmount_elsewhere(device: Loop) -> bool {
    let is_free = || {
        // Who mounts a device has it for himself.
        let alone = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL)
            .open(device.path());
        !alone.is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
    };
    if is_free() {
        return true;
    }
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let mut seen = Vec::new();
    for pid in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = pid.file_name().to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let namespace = PathBuf::from(format!("/proc/{pid}/ns/mnt"));
        let Ok(name) = fs::read_link(&namespace) else {
            continue;
        };
        if Some(&name) == own.as_ref() || seen.contains(&name) {
            continue;
        }
        let places = among(device, outrider_sys::device::mounts_of(pid));
        if let (false, Ok(namespace)) = (places.is_empty(), File::open(&namespace)) {
            // What is in use there stays.
            let _ = std::thread::spawn(move || unmount_in(&namespace, &places)).join();
        }
        seen.push(name);
    }
    is_free()
}

/// Unmounts in another mount namespace, in which the calling thread stays.
fn unmount_in(namespace: &File, places: &[PathBuf]) {
    // SAFETY: numbers only; what this thread shares with others of where it is in the file system it shares no longer.
    let there = unsafe {
        libc::unshare(libc::CLONE_FS) == 0
            && libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS) == 0
    };
    for place in places.iter().filter(|_| there) {
        let _ = rustix::mount::unmount(place, rustix::mount::UnmountFlags::NOFOLLOW);
    }
}

/// Whether something is mounted on `dir`.
pub fn is_mount_point(dir: &Path) -> bool {
    let (Ok(here), Some(parent)) = (fs::metadata(dir), dir.parent()) else {
        return false;
    };
    fs::metadata(parent).is_ok_and(|up| up.dev() != here.dev() || up.ino() == here.ino())
}

/// The file system that lies on an image, if it is one that the lab makes.
pub fn file_system_on(image: &mut File) -> io::Result<Option<&'static str>> {
    for (offset, magic, name) in [
        (0, &b"XFSB"[..], "xfs"),
        (1080, &[0x53, 0xef], "ext4"),
        (65536 + 64, b"_BHRfS_M", "btrfs"),
    ] {
        let mut there = vec![0; magic.len()];
        image.seek(SeekFrom::Start(offset))?;
        match image.read_exact(&mut there) {
            Ok(()) if there == magic => return Ok(Some(name)),
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(e) => return Err(e),
        }
    }
    Ok(None)
}

/// Polls `what` until it is true or `limit` has passed; whether it became true.
pub fn wait_until(limit: Duration, mut what: impl FnMut() -> bool) -> bool {
    let step = Duration::from_millis(5);
    let mut left = limit;
    loop {
        if what() {
            return true;
        }
        if left < step {
            return false;
        }
        std::thread::sleep(step);
        left -= step;
    }
}
