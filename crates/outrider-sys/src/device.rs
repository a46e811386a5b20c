//! Which mount and which block device a file lives on, and what the kernel says of that device.
//!
//! The way leads from a file's mount id (`statx`, exact also for btrfs and bind mounts) through
//! `/proc/self/mountinfo` to `/sys/dev/block/MAJ:MIN`. Network file systems have no block device, but they
//! have a backing-device entry with a readahead size under `/sys/class/bdi`. What sysfs declares is not
//! always true (virtio claims to rotate): treat it as a first guess, to be corrected by measurement.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::look_up::{disk_named, look_up_among};
use crate::raw::Fd;
use crate::units::{DeviceId, PAGE};
use crate::{raw, text};

/// Bytes that one readahead call always reads in full on a device whose read_ahead_kb is the stock
/// 128 or more (`mm/readahead.c`, `force_page_cache_ra`: each call is limited to the larger of the
/// open file's `ra_pages` and the device's `io_pages`).
pub const UNCLIPPED_CHUNK: u64 = 128 * 1024;

/// The number that a file system gives itself, from its UUID where it has one (`f_fsid`, statfs(2)). `None` where it has none, or is behind
/// a boundary that hides it.
pub fn file_system_id(fd: impl AsFd) -> Option<u64> {
    // SAFETY: all zeros is a value of this type.
    let mut st: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and the structure is ours.
    if unsafe { libc::fstatfs(fd.as_fd().as_raw_fd(), &mut st) } != 0 {
        return None;
    }
    // SAFETY: fsid_t is two ints.
    let id: u64 = unsafe { std::mem::transmute(st.f_fsid) };
    (id != 0).then_some(id)
}

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's id, as `statx` returns it.
    pub id: u64,
    /// Device number of the file system.
    pub dev: DeviceId,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// Type, such as `ext4` or `nfs4`.
    pub fs_type: String,
    /// What is mounted, such as `/dev/vda1` or `server:/export`.
    pub source: PathBuf,
    /// Options of the file system, separated by commas.
    pub options: String,
}

impl Mount {
    /// Whether its files are a server's, which is asked to open them and may not answer, and at which it shows that they are open.
    pub fn is_served(&self) -> bool {
        const KINDS: [&str; 20] = [
            "nfs",
            "fuse",
            "cifs",
            "smb",
            "9p",
            "ceph",
            "virtiofs",
            "afs",
            "kafs",
            "coda",
            "lustre",
            "gpfs",
            "beegfs",
            "orangefs",
            "pvfs",
            "vboxsf",
            "vmhgfs",
            "prl_fs",
            "ncpfs",
            "glusterfs",
        ];
        KINDS.iter().any(|k| self.fs_type.starts_with(k))
    }

    /// Whether it is an overlay over a server's files, as far as these mounts tell.
    pub fn has_served_layers(&self, mounts: &[Mount]) -> bool {
        let options = self.options.split(',').filter_map(|o| o.split_once('='));
        let dirs = options.filter(|(name, _)| ["lowerdir", "upperdir"].contains(name));
        let mut dirs = dirs.flat_map(|(_, dirs)| dirs.split(':'));
        let is_served = |dir| above(Path::new(dir), mounts).is_some_and(Mount::is_served);
        self.fs_type == "overlay" && dirs.any(is_served)
    }
}

/// The one of these mounts in which a name lies; of several at one place the last one is seen.
pub fn above<'a>(name: &Path, mounts: &'a [Mount]) -> Option<&'a Mount> {
    let holds = |m: &&Mount| name.starts_with(&m.mount_point);
    let length = |m: &&Mount| m.mount_point.as_os_str().len();
    mounts.iter().filter(holds).max_by_key(length)
}

/// What sysfs tells about a block device's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Largest request that the kernel builds, bytes (`max_sectors_kb`).
    pub max_request: Option<u64>,
    /// Whether the device claims to have a head that moves. Virtual devices claim it wrongly.
    pub rotational: Option<bool>,
    /// The scheduler in use, such as `none` or `mq-deadline`; only `bfq`, and `mq-deadline` in part,
    /// honour I/O priorities.
    pub scheduler: Option<String>,
}

/// What a file lives on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Device number of the file system (of the block device below it where that is known).
    pub id: DeviceId,
    /// The mount, unless `/proc` is not mounted.
    pub mount: Option<Mount>,
    /// The block device's name in `/sys/block` (of the whole disk, not of the partition).
    pub block_name: Option<String>,
    /// The block device's queue.
    pub queue: Option<Queue>,
    /// Readahead size in bytes (`read_ahead_kb` of the queue or of the backing-device entry) that a file
    /// opened now starts with.
    pub read_ahead: Option<u64>,
}

impl Device {
    /// The device below an open file.
    pub fn of_fd(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::find(fd, c"", AtFlags::EMPTY_PATH, 0)
    }

    /// The device below a path; a symbolic link is followed.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        Self::find(CWD, path, AtFlags::empty(), 0)
    }

    /// The device with number `id` (an `st_dev`), found without a file: exact for file systems whose
    /// files carry the mount's own number, which those of btrfs and overlayfs do not.
    pub fn of_dev(id: DeviceId) -> Self {
        let mount = mounts().into_iter().rev().find(|m| m.dev == id);
        Self::describe(id, mount, 0)
    }

    /// The device of a mount, of which nothing is asked.
    pub fn of_mount(mount: Mount) -> Self {
        const LAYERS_ARE_LEFT: u32 = 4;
        Self::describe(mount.dev, Some(mount), LAYERS_ARE_LEFT)
    }

    fn find<P: rustix::path::Arg>(
        dir: impl AsFd,
        path: P,
        flags: AtFlags,
        depth: u32,
    ) -> io::Result<Self> {
        // Of the file itself nothing is asked, nor is its server.
        let flags = flags | AtFlags::STATX_DONT_SYNC;
        let st = rustix::fs::statx(dir, path, flags, StatxFlags::MNT_ID)?;
        let id = DeviceId::new(st.stx_dev_major, st.stx_dev_minor);
        let known = st.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        let mounts = mounts();
        let mount = mounts
            .iter()
            .find(|m| known && m.id == st.stx_mnt_id)
            .or_else(|| mounts.iter().rev().find(|m| m.dev == id))
            .cloned();
        Ok(Self::describe(id, mount, depth))
    }

    fn describe(id: DeviceId, mount: Option<Mount>, depth: u32) -> Self {
        let mut device = Self {
            id,
            mount,
            block_name: None,
            queue: None,
            read_ahead: None,
        };
        let Some(mount) = device.mount.clone() else {
            device.fill_from_sysfs(id);
            return device;
        };
        // An overlay's data lies where its layers lie, if this process can see them.
        if mount.fs_type == "overlay"
            && depth < 4
            && let Some(lower) = overlay_layer(&mount, depth)
        {
            return Self {
                mount: Some(mount),
                ..lower
            };
        }
        let mut block = if mount.dev.major() != 0 {
            Some(mount.dev)
        } else {
            None
        };
        // btrfs and others with an anonymous number of their own name the device as their source.
        if block.is_none() && mount.source.starts_with("/dev") {
            block = disk_named(&mount.source);
        }
        if let Some(block) = block {
            device.fill_from_sysfs(block);
        }
        // The file system's own backing-device entry decides where there is one.
        if let Some(kb) = text::read_number(format!("/sys/class/bdi/{}/read_ahead_kb", mount.dev)) {
            device.read_ahead = Some(kb * 1024);
        }
        device
    }

    fn fill_from_sysfs(&mut self, block: DeviceId) {
        let base = PathBuf::from(format!("/sys/dev/block/{block}"));
        let Ok(target) = rustix::fs::readlink(&base, Vec::new()) else {
            return;
        };
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        let is_partition = text::read(base.join("partition")).is_ok();
        let disk = if is_partition {
            target.parent()
        } else {
            Some(target.as_path())
        };
        self.id = block;
        self.block_name = disk
            .and_then(Path::file_name)
            .map(|n| n.to_string_lossy().into_owned());
        let queue = base.join(if is_partition { "../queue" } else { "queue" });
        let kb = |name| text::read_number(queue.join(name)).map(|kb: u64| kb * 1024);
        self.read_ahead = kb("read_ahead_kb");
        self.queue = Some(Queue {
            max_request: kb("max_sectors_kb"),
            rotational: text::read_number(queue.join("rotational")).map(|n| n != 0),
            scheduler: text::read(queue.join("scheduler")).ok().map(|s| chosen(&s)),
        });
    }

    /// Bytes that the kernel reads ahead of a stream at most, where that is known.
    pub fn read_ahead(&self) -> Option<u64> {
        self.read_ahead
    }

    /// Bytes that one readahead call reads at most, whatever it was asked: max(read_ahead_kb,
    /// max_sectors_kb). `None` where neither is known. For a file already open its readahead size at open
    /// counts, doubled by `POSIX_FADV_SEQUENTIAL`.
    pub fn readahead_clip(&self) -> Option<u64> {
        let max_request = self.queue.as_ref().and_then(|q| q.max_request);
        self.read_ahead.max(max_request)
    }

    /// The largest request, in bytes, of whole pages, that is neither clipped here nor above
    /// [`UNCLIPPED_CHUNK`].
    pub fn unclipped_chunk(&self) -> u64 {
        match self.readahead_clip() {
            Some(clip) if clip >= PAGE => clip.min(UNCLIPPED_CHUNK) / PAGE * PAGE,
            _ => UNCLIPPED_CHUNK,
        }
    }

    /// True if the file system keeps its files in memory, or makes them up when they are read: there is nothing to prefetch.
    pub fn is_memory(&self) -> bool {
        self.mount.as_ref().is_some_and(|m| {
            matches!(
                m.fs_type.as_str(),
                "tmpfs"
                    | "ramfs"
                    | "devtmpfs"
                    | "hugetlbfs"
                    | "proc"
                    | "sysfs"
                    | "debugfs"
                    | "tracefs"
                    | "securityfs"
                    | "configfs"
                    | "cgroup"
                    | "cgroup2"
                    | "efivarfs"
                    | "pstore"
            )
        })
    }
}

/// The scheduler in brackets, or the text itself where none is bracketed.
fn chosen(schedulers: &str) -> String {
    schedulers
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map_or(schedulers, |(name, _)| name)
        .to_owned()
}

/// The device of the first layer of an overlay that this process can look at.
fn overlay_layer(mount: &Mount, depth: u32) -> Option<Device> {
    let option = |name: &str| {
        mount
            .options
            .split(',')
            .find_map(|o| o.strip_prefix(name)?.strip_prefix('='))
    };
    let layers = option("upperdir")
        .into_iter()
        .chain(option("lowerdir")?.split(':'));
    let mounts = mounts();
    let find = |dir| {
        let dir = look_up_among(Path::new(dir), &mounts)?;
        Device::find(dir, c"", AtFlags::EMPTY_PATH, depth + 1).ok()
    };
    layers.filter_map(find).find(|d| d.id != mount.dev)
}

/// Whether the files of the file system on which `fd` is, with device number `dev` (an `st_dev`), lie on a disk: it has the number of one, or is
/// btrfs or an overlay, whose numbers are made up.
pub fn lies_on_disk(fd: BorrowedFd<'_>, dev: u64) -> bool {
    lies_on(fd, dev) == LiesOn::Disk
}

/// What the files of a file system without a number of its own lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiesOn {
    /// A disk.
    Disk,
    /// A server, or a program that stands for one: NFS, FUSE and their kind.
    Server,
    /// Memory, or nothing.
    Nothing,
}

/// Kinds of file systems whose device numbers are made up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nothing,
    Btrfs,
    Overlay,
    Server,
}

/// Device numbers that are made up, and in the lowest two bits of which kind their file systems are; 0: free. A server would be asked each time.
static MADE_UP: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

fn known_kind(dev: u64) -> Option<Kind> {
    let known = MADE_UP[dev as usize % MADE_UP.len()].load(Relaxed);
    let kinds = [Kind::Nothing, Kind::Btrfs, Kind::Overlay, Kind::Server];
    (known != 0 && known >> 2 == dev).then(|| kinds[known as usize & 3])
}

/// `f_type` of FUSE (and virtiofs), NFS, CIFS, SMB, 9P, Ceph, AFS (two), Coda, Lustre, OrangeFS, GPFS and VirtualBox's.
const SERVERS: [i64; 13] = [
    0x6573_5546,
    0x6969,
    0xff53_4d42,
    0xfe53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x6b41_4653,
    0x7375_7245,
    0x0bd0_0bd0,
    0x2003_0528,
    0x4750_4653,
    0x786f_4256,
];

/// Whether a file system of this kind, `f_type` of statfs(2), is a server's, or a program's that stands for one.
pub fn is_servers(file_system: i64) -> bool {
    // The field is short and has a sign on some processors.
    SERVERS.contains(&unsigned(file_system))
}

fn unsigned(magic: i64) -> i64 {
    magic & 0xffff_ffff
}

/// The kind of the file system on which `fd` is, with a made up device number; asked once.
fn kind_of(fd: BorrowedFd<'_>, dev: u64) -> Kind {
    if let Some(known) = known_kind(dev) {
        return known;
    }
    let magic = unsigned(raw::file_system(fd.as_raw_fd()));
    let kind = match magic {
        0 => return Kind::Nothing,
        _ if magic == unsigned(libc::BTRFS_SUPER_MAGIC) => Kind::Btrfs,
        _ if magic == unsigned(libc::OVERLAYFS_SUPER_MAGIC) => Kind::Overlay,
        _ if is_servers(magic) => Kind::Server,
        _ => Kind::Nothing,
    };
    MADE_UP[dev as usize % MADE_UP.len()].store(dev << 2 | kind as u64, Relaxed);
    kind
}

fn lying_on(kind: Kind) -> LiesOn {
    match kind {
        Kind::Nothing => LiesOn::Nothing,
        Kind::Btrfs | Kind::Overlay => LiesOn::Disk,
        Kind::Server => LiesOn::Server,
    }
}

/// What the files of the file system lie on, on which `fd` is, with device number `dev` (an `st_dev`). A server is asked once in a process. Neither allocates
/// nor goes through libc's public names.
pub fn lies_on(fd: BorrowedFd<'_>, dev: u64) -> LiesOn {
    match libc::major(dev) {
        0 => lying_on(kind_of(fd, dev)),
        _ => LiesOn::Disk,
    }
}

/// The same as far as it is known. Nothing is asked.
pub fn known_to_lie_on(dev: u64) -> Option<LiesOn> {
    match libc::major(dev) {
        0 => known_kind(dev).map(lying_on),
        _ => Some(LiesOn::Disk),
    }
}

/// Whether the file system on which `fd` is, with this device number, is an overlay.
pub fn is_overlay(fd: BorrowedFd<'_>, dev: u64) -> bool {
    libc::major(dev) == 0 && kind_of(fd, dev) == Kind::Overlay
}

/// All mounts that this process sees, in mount order; empty where `/proc` is not mounted.
pub fn mounts() -> Vec<Mount> {
    parse_mounts(&text::read_bytes("/proc/self/mountinfo").unwrap_or_default())
}

/// The same that process `pid` sees, as far as they fit into a small file: in a namespace of its own it may have a hundred thousand.
pub fn mounts_of(pid: u32) -> Vec<Mount> {
    parse_mounts(&text::read_bytes(format!("/proc/{pid}/mountinfo")).unwrap_or_default())
}

/// The mounts that this process sees, read anew only when they have changed: a look costs a call of poll(2) instead of 40 µs and, on a host of containers,
/// milliseconds. It stays with the namespace in which it was opened.
#[derive(Debug)]
pub struct MountTable {
    file: Fd,
    mounts: Vec<Mount>,
}

impl MountTable {
    /// That of this process.
    ///
    /// # Errors
    /// Where `/proc` is not mounted, or there are no descriptors.
    pub fn open() -> io::Result<MountTable> {
        let mut table = MountTable {
            file: text::open(Path::new("/proc/self/mountinfo"))?,
            mounts: Vec::new(),
        };
        table.read()?;
        Ok(table)
    }

    fn read(&mut self) -> io::Result<()> {
        rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Start(0))?;
        self.mounts = parse_mounts(&text::read_open(&self.file)?);
        Ok(())
    }

    /// Its mounts at this moment, in mount order.
    pub fn mounts(&mut self) -> &[Mount] {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&self.file, PollFlags::PRI)];
        let at_once = Timespec::default();
        // proc(5): a change shows as an error, once.
        let changed = poll(&mut fds, Some(&at_once)).map_or(true, |ready| ready > 0);
        if changed && self.read().is_err() {
            self.mounts.clear();
        }
        &self.mounts
    }
}

/// Looks at the mounts that this process sees now; at none where `/proc` is not mounted.
pub fn with_mounts<T>(look: impl FnOnce(&[Mount]) -> T) -> T {
    thread_local! {
        // A thread may have a descriptor table of its own, and so has a child, whose mounts may be others, too.
        static TABLE: RefCell<Option<(u32, MountTable)>> = const { RefCell::new(None) };
    }
    let own = raw::getpid();
    TABLE.with_borrow_mut(|table| {
        if table.as_ref().is_none_or(|(of, _)| *of != own) {
            let new = MountTable::open().ok().map(|new| (own, new));
            // What had that number may be closed, and another file have it.
            std::mem::forget(std::mem::replace(table, new));
        }
        look(table.as_mut().map_or(&[], |(_, table)| table.mounts()))
    })
}

fn parse_mounts(bytes: &[u8]) -> Vec<Mount> {
    bytes
        .split(|b| *b == b'\n')
        .filter_map(parse_mount)
        .collect()
}

/// One line of mountinfo: `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw` (proc(5)).
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let number = |f: &[u8]| std::str::from_utf8(f).ok()?.parse::<u64>().ok();
    let id = number(fields.next()?)?;
    let _parent = fields.next()?;
    let (major, minor) = std::str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let root = unescape(fields.next()?);
    let mount_point = unescape(fields.next()?);
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?);
    let options = String::from_utf8_lossy(fields.next().unwrap_or_default()).into_owned();
    Some(Mount {
        id,
        dev: DeviceId::new(major.parse().ok()?, minor.parse().ok()?),
        root,
        mount_point,
        fs_type,
        source,
        options,
    })
}

/// Undoes mountinfo's octal escapes of blanks, tabs, newlines and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field
            .get(at + 1..at + 4)
            .filter(|d| field[at] == b'\\' && d.iter().all(|c| (b'0'..=b'7').contains(c)));
        if let Some(d) = octal {
            out.push(
                d.iter()
                    .fold(0u8, |n, c| n.wrapping_mul(8).wrapping_add(c - b'0')),
            );
            at += 4;
        } else {
            out.push(field[at]);
            at += 1;
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is mounted and unmounted shows at the next look.
    #[test]
    fn tables_of_mounts_follow_changes() {
        // SAFETY: takes no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let place = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
        let mut table = MountTable::open().unwrap();
        let mut holds = || {
            let is_it = |m: &Mount| m.mount_point == dir.path();
            let seen = table.mounts().iter().any(is_it);
            assert_eq!(seen, mounts().iter().any(is_it));
            seen
        };
        assert!(!holds());
        for _ in 0..3 {
            let kind = c"tmpfs".as_ptr();
            // SAFETY: C strings that outlive the calls.
            let mounted = unsafe { libc::mount(kind, place.as_ptr(), kind, 0, std::ptr::null()) };
            assert_eq!(mounted, 0);
            assert!(holds() && holds());
            // SAFETY: a C string that outlives the call.
            assert_eq!(unsafe { libc::umount(place.as_ptr()) }, 0);
            assert!(!holds() && !holds());
        }
    }

    /// A child that has closed what its parent had open sees its mounts all the same.
    #[test]
    fn children_have_a_table_of_their_own() {
        let count = || with_mounts(<[Mount]>::len);
        let all = count();
        // SAFETY: the child closes what is its own and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: likewise.
            unsafe {
                libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
                libc::_exit(i32::from(count() != all));
            }
        }
        let mut status = 0;
        // SAFETY: our own child, and a status.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(all > 0 && status == 0, "{all} mounts, {status}");
    }

    #[test]
    fn mountinfo_lines() {
        let line = br"36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue";
        let mount = parse_mount(line).unwrap();
        assert_eq!(mount.mount_point, Path::new("/mnt 2"));
        assert_eq!(mount.dev, DeviceId::new(98, 0));
        assert_eq!(
            (mount.fs_type.as_str(), mount.source.to_str()),
            ("ext3", Some("/dev/root"))
        );
        assert!(parse_mount(b"").is_none() && parse_mount(b"1 2 x:y / / rw - a b c").is_none());
    }

    #[test]
    fn scheduler_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] bfq"), "mq-deadline");
        assert_eq!(chosen("none"), "none");
    }

    #[test]
    fn every_file_has_a_device() {
        let device = Device::of_path(Path::new("/")).unwrap();
        assert!(device.unclipped_chunk() >= PAGE);
        // The root of a chroot need not be a mount; /proc is one.
        let device = Device::of_path(Path::new("/proc/self/stat")).unwrap();
        assert_eq!(device.mount.unwrap().fs_type, "proc");
    }
}
