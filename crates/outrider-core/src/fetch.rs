//! Getting at a program's open files from the service's process.
//!
//! A file is opened anew, for reading, through /proc/PID/fd, which follows the link to the very inode, unlinked files included.
//! Duplicating the program's descriptor (pidfd_getfd) would save the permission check and two inotify events, and
//! was given up: a duplicate keeps the program's *open file description* alive beyond the program's last close, and with
//! it its flock(2), its leases, its IN_CLOSE events and, if it can write, ETXTBSY for whoever executes the file.
//!
//! The number may have been reused since it was told: the result is compared with the device and inode that the hook saw.
//! Opening goes by way of O_PATH, which has no effect on whatever it finds, so that a reused number that is a
//! pipe or a device now is never really opened.

use outrider_sys::units::DeviceId;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;
use std::sync::{Mutex, PoisonError};

use outrider_sys::device::{Device, Mount, above, mounts_of, with_mounts};
use outrider_sys::look_up::look_up;
use outrider_sys::raw::{self, Fd};
use outrider_sys::{seccomp, standing, text};
use rustix::fs::{CWD, Mode, OFlags};

use crate::shared::Shared;
use crate::shm::{FD_TRACKED, FLAG_FETCHING, FLAG_HELD, Header, Slot, lost};

/// What the hook knew of a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Process.
    pub pid: u32,
    /// Number in that process.
    pub fd: u16,
    /// `st_dev`.
    pub dev: u64,
    /// `st_ino`.
    pub ino: u64,
}

fn checked(fd: impl Into<Fd>, dev: u64, ino: u64) -> Option<(Fd, u64)> {
    let fd = fd.into();
    let st = raw::status(fd.as_raw_fd()).ok()?;
    let regular = st.st_mode & libc::S_IFMT == libc::S_IFREG;
    (regular && st.st_dev == dev && st.st_ino == ino).then_some((fd, st.st_size as u64))
}

fn note(e: rustix::io::Errno, header: &Header) {
    if matches!(e, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) {
        header.lose(lost::EMFILE);
    }
}

/// Flags, mount and inode of an open file, as its place in a directory `fdinfo` tells them at once.
fn told_of(place: String) -> Option<[u64; 3]> {
    // What comes after that is as long as the process likes: it may hold many locks.
    let mut text = [0; 256];
    // Where a program has mounts of its own it may have put a pipe in its place.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, place, flags, Mode::empty());
    let len = rustix::io::read(file.ok()?, &mut text).ok()?;
    let text = String::from_utf8_lossy(&text[..len]);
    let field = |name: &str, radix| {
        let value = text.lines().find_map(|l| l.strip_prefix(name))?.trim();
        u64::from_str_radix(value, radix).ok()
    };
    // Before Linux 5.14 no inode is told.
    let ino = field("ino:", 10).unwrap_or(0);
    Some([field("flags:", 8)?, field("mnt_id:", 10)?, ino])
}

/// Whether a file with these flags is open for reading: what is open for writing alone, or without any right (O_PATH), says nothing about what a process may read.
fn are_for_reading(flags: u64) -> bool {
    let access = flags as i32 & libc::O_ACCMODE;
    flags as i32 & libc::O_PATH == 0 && matches!(access, libc::O_RDONLY | libc::O_RDWR)
}

/// Whether what a process has open under this number is read past the page cache (O_DIRECT), which may be set through a duplicate or by another process at any time.
pub fn is_direct(pid: u32, fd: u16, slot: &Slot, generation: u32) -> bool {
    flags_of(pid, fd, slot, generation).is_some_and(are_direct)
}

/// Whether a descriptor that is the one of this generation is open for reading.
pub fn is_readable_now(wanted: Wanted, slot: &Slot, generation: u32) -> bool {
    flags_of(wanted.pid, wanted.fd, slot, generation).is_some_and(are_for_reading)
}

/// The flags of a descriptor that is the one of this generation.
fn flags_of(pid: u32, fd: u16, slot: &Slot, generation: u32) -> Option<u64> {
    let told = || told_of(format!("/proc/{pid}/fdinfo/{fd}"));
    while_open(slot, generation, 0, told).map(|[flags, ..]| flags)
}

fn are_direct(flags: u64) -> bool {
    flags as i32 & libc::O_DIRECT != 0
}

/// Whether a process has something open for reading under this number.
pub fn is_open_for_reading(pid: u32, fd: &str) -> bool {
    told_of(format!("/proc/{pid}/fdinfo/{fd}")).is_some_and(|[flags, ..]| are_for_reading(flags))
}

/// Whether what process `pid` has open under number `fd` at this moment is the file that `found` is, opened for reading through the page cache.
fn is_readable(pid: u32, fd: u16, found: &Fd) -> bool {
    let its = told_of(format!("/proc/{pid}/fdinfo/{fd}"));
    let ours = told_of(format!("/proc/self/fdinfo/{}", found.as_raw_fd()));
    let (Some([flags, mount, ino]), Some([_, our_mount, our_ino])) = (its, ours) else {
        return false;
    };
    (mount, ino) == (our_mount, our_ino) && are_for_reading(flags) && !are_direct(flags)
}

/// Looks at a descriptor of the program that is still the one of this generation, while nobody closes it: the slot is marked, and the hook waits
/// (`track::forget`). `lasting` marks stay. Whoever reads what /proc says of a descriptor holds the open file for that long: of a file that has lost its name,
/// the last to hold it gives everything back, which for megabytes takes a millisecond.
fn while_open<T>(
    slot: &Slot,
    generation: u32,
    lasting: u32,
    look: impl FnOnce() -> Option<T>,
) -> Option<T> {
    // There is one mark for all threads.
    static LOOKING: Mutex<()> = Mutex::new(());
    let _alone = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    slot.flags.fetch_or(FLAG_FETCHING | lasting, SeqCst);
    fence(SeqCst);
    let same = slot.generation.load(Relaxed) == generation;
    let seen = if same { look() } else { None };
    slot.flags.fetch_and(!FLAG_FETCHING, SeqCst);
    seen
}

/// A descriptor of our own for the file, and its size in bytes; `None` where there is no way, or the number has
/// another file now.
///
/// Following the /proc link holds the program's own open file for some microseconds. Should the program close it just then,
/// its locks would end late: the slot is marked meanwhile, and the hook waits (`track::forget`). `hold` leaves a mark that lasts,
/// for file systems on which an open file shows.
pub fn fetch(
    wanted: Wanted,
    slot: &Slot,
    generation: u32,
    hold: bool,
    header: &Header,
) -> Option<(Fd, u64)> {
    let lose = |e: rustix::io::Errno| {
        note(e, header);
        if e == rustix::io::Errno::ACCESS || e == rustix::io::Errno::PERM {
            header.lose(lost::NO_FD);
        }
    };
    let path = format!("/proc/{}/fd/{}", wanted.pid, wanted.fd);
    let lasting = if hold { FLAG_HELD } else { 0 };
    let found = while_open(slot, generation, lasting, || {
        if slot.state.load(Relaxed) != FD_TRACKED {
            return None;
        }
        let found = rustix::fs::openat(CWD, &path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(lose)
            .ok()?;
        let found = Fd::from(found);
        // What is told of others may be long.
        if !is_it(found.as_fd(), "", wanted) {
            return None;
        }
        is_readable(wanted.pid, wanted.fd, &found).then_some(found)
    });
    let (found, size) = checked(found?, wanted.dev, wanted.ino)?;
    open(&found).map_err(lose).ok().map(|fd| (fd, size))
}

/// Whether a path leads to a regular file that is the one wanted; no file system is asked anew for that.
fn is_it(at: BorrowedFd<'_>, path: &str, wanted: Wanted) -> bool {
    use rustix::fs::{AtFlags, StatxFlags};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let what = StatxFlags::TYPE | StatxFlags::INO;
    let found = match rustix::fs::statx(at, path, flags, what) {
        Ok(st) => {
            let dev = rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor);
            Some((u32::from(st.stx_mode), dev, st.stx_ino))
        }
        // A filter may not know it.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            let st = rustix::fs::statat(at, path, AtFlags::EMPTY_PATH);
            st.ok().map(|st| (st.st_mode, st.st_dev, st.st_ino))
        }
        Err(_) => None,
    };
    found.is_some_and(|(mode, dev, ino)| {
        mode & libc::S_IFMT == libc::S_IFREG && (dev, ino) == (wanted.dev, wanted.ino)
    })
}

/// Whether a process has the file open under this number, as the kernel says. Nothing is opened.
pub fn is_open(wanted: Wanted, slot: &Slot, generation: u32) -> bool {
    let path = format!("/proc/{}/fd/{}", wanted.pid, wanted.fd);
    let open = || is_it(CWD, &path, wanted).then_some(());
    while_open(slot, generation, 0, open).is_some()
}

/// What has this name, found without any right, and what is known of it: no server is asked. `None`, too, where names of programs mean something else here.
pub fn find(name: &Path) -> Option<(Fd, libc::stat)> {
    if standing::is_apart() {
        return None;
    }
    let found = look_up(name)?;
    let st = raw::status(found.as_raw_fd()).ok()?;
    Some((found, st))
}

/// The same as [`fetch`] for a file without a descriptor, by the name that it had.
pub fn by_name(name: &Path, dev: u64, ino: u64) -> Option<(Fd, u64)> {
    let (found, _) = find(name)?;
    let (found, size) = checked(found, dev, ino)?;
    open(&found).ok().map(|fd| (fd, size))
}

/// The file that this very process has open under number `fd`, for a thread with a descriptor table of its own: the same, but
/// without another process's slot. `thread` is one that had the number, for the case that the first thread has ended.
pub fn fetch_own(fd: i32, thread: u32, dev: u64, ino: u64) -> rustix::io::Result<(Fd, u64)> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    // /proc/self is the first thread, whose table is the program's.
    let found = rustix::fs::openat(CWD, format!("/proc/self/fd/{fd}"), flags, Mode::empty())
        .or_else(|_| {
            let path = format!("/proc/self/task/{thread}/fd/{fd}");
            rustix::fs::openat(CWD, path, flags, Mode::empty())
        })?;
    let (found, size) = checked(found, dev, ino).ok_or(rustix::io::Errno::STALE)?;
    Ok((open(&found)?, size))
}

/// Opens for reading what was found with O_PATH and checked.
fn open(found: &Fd) -> rustix::io::Result<Fd> {
    // O_NOATIME is for the file's owner only; our mapping would otherwise count as an access.
    reopen(found.as_fd(), OFlags::NOATIME)
        .or_else(|_| reopen(found.as_fd(), OFlags::empty()))
        .map(Fd::from)
}

/// Opens for reading what was found with O_PATH, with these flags besides.
pub(crate) fn reopen(found: BorrowedFd<'_>, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    // Not /proc/self: the caller may have a descriptor table of its own.
    let path = format!("/proc/thread-self/fd/{}", found.as_raw_fd());
    let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::openat(CWD, &path, flags, Mode::empty())
}

/// Whether reading, listing or mapping what `fd` is open for, or has found with O_PATH, leaves its time of access as it is. What is opened with
/// O_NOATIME does, which is for the owner only. Otherwise most mounts (relatime) note an access only where the last one noted is no younger than the last
/// change, or a day old.
pub(crate) fn leaves_access_time(fd: BorrowedFd<'_>) -> bool {
    use rustix::fs::StatVfsMountFlags;
    /// A day, less a minute in which it may not end.
    const DAY: i64 = 24 * 60 * 60 - 60;
    if rustix::fs::fcntl_getfl(fd).is_ok_and(|f| f.contains(OFlags::NOATIME)) {
        return true;
    }
    let Ok(mount) = rustix::fs::fstatvfs(fd) else {
        return false;
    };
    let never = StatVfsMountFlags::NOATIME | StatVfsMountFlags::RDONLY;
    if mount.f_flag.intersects(never) {
        return true;
    }
    let Ok(st) = raw::status(fd.as_raw_fd()) else {
        return false;
    };
    let (now, _) = raw::clock(libc::CLOCK_REALTIME);
    let accessed = (st.st_atime, st.st_atime_nsec);
    mount.f_flag.contains(StatVfsMountFlags::RELATIME)
        && accessed > (st.st_mtime, st.st_mtime_nsec)
        && accessed > (st.st_ctime, st.st_ctime_nsec)
        && now - st.st_atime < DAY
}

/// The file behind an address of a process, from /proc/PID/maps: name, `st_dev`, `st_ino`, size in bytes; `None` of a server's file, and where names of
/// that process's mean something else here.
pub fn behind(pid: u32, address: u64) -> Option<(PathBuf, u64, u64, u64)> {
    if standing::is_apart() {
        return None;
    }
    // A line at a time: there may be 65,530 with long names.
    let mut maps = std::io::BufReader::with_capacity(64 << 10, maps(pid).ok()?);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = std::io::BufRead::read_until(&mut maps, b'\n', &mut line).ok()?;
        if read == 0 {
            return None;
        }
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = std::str::from_utf8(line.get(..line.len().min(96))?).unwrap_or_default();
        let Some((start, rest)) = text.split_once('-') else {
            continue;
        };
        let end = rest.split(' ').next().unwrap_or_default();
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        else {
            continue;
        };
        if (start..end).contains(&address) {
            let at = line.iter().position(|b| *b == b'/')?;
            let name = PathBuf::from(std::ffi::OsStr::from_bytes(line.get(at..)?));
            // ADDRESSES PERMISSIONS OFFSET MAJOR:MINOR INODE NAME, in hexadecimal.
            let (major, minor) = text.split_whitespace().nth(3)?.split_once(':')?;
            let [major, minor] = [major, minor].map(|n| u32::from_str_radix(n, 16).ok());
            let dev = rustix::fs::makedev(major?, minor?);
            let served = |dev| server(pid, DeviceId(dev), &name).is_some();
            if served(dev) {
                return None;
            }
            // Another file may have that name by now, on another file system.
            let (_, st) = find(&name)?;
            let regular = st.st_mode & libc::S_IFMT == libc::S_IFREG;
            let fit = regular && (st.st_dev == dev || !served(st.st_dev));
            return fit.then_some((name, st.st_dev, st.st_ino, st.st_size as u64));
        }
        if start > address {
            return None;
        }
    }
}

/// The name of a file that process `pid` has open under number `fd`, as its link tells: the file is not opened. Kernels from 6.7 on hold the program's own
/// open file while they tell.
pub fn link(pid: u32, fd: u16, slot: &Slot, generation: u32) -> Option<PathBuf> {
    let read = || std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok();
    while_open(slot, generation, 0, read)
}

/// The name of an open file.
pub fn name(fd: BorrowedFd<'_>) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default()
}

/// A descriptor of a program, by which is seen whether it has a file open.
pub struct Source {
    pid: u32,
    fd: u16,
    proc: usize,
    generation: u32,
    name: PathBuf,
}

impl Source {
    /// The descriptor of the process in entry `proc`; `None` where it is closed already.
    pub fn new(wanted: Wanted, shared: &Shared, proc: usize, generation: u32) -> Option<Source> {
        let mut source = Source {
            pid: wanted.pid,
            fd: wanted.fd,
            proc,
            generation,
            name: PathBuf::new(),
        };
        source.name = source.link(shared)?;
        Some(source)
    }

    /// Whether it is still open, and the same, also where no hook has seen it being closed: then it leads to another name at most.
    pub fn is_open(&self, shared: &Shared) -> bool {
        const DELETED: &[u8] = b" (deleted)";
        let link = self.link(shared).unwrap_or_default();
        let name = self.name.as_os_str().as_bytes();
        let rest = link.as_os_str().as_bytes().strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest == DELETED)
    }

    fn link(&self, shared: &Shared) -> Option<PathBuf> {
        let slot = shared.proc(self.proc).slots.get(usize::from(self.fd))?;
        let link = link(self.pid, self.fd, slot, self.generation)?;
        (!link.as_os_str().is_empty()).then_some(link)
    }
}

/// Whether others notice that a file is open where this device is: NFS and FUSE keep an unlinked one under another name until it is closed.
pub fn shows_opens(device: &Device) -> bool {
    device.mount.as_ref().is_some_and(Mount::is_served)
}

/// The mount of a server's files, if file system `id`, on which process `pid` has a file of this name, is one, or an overlay over one. Nothing is asked of the file
/// system: it may not answer.
pub fn server(pid: u32, id: DeviceId, name: &Path) -> Option<Mount> {
    // What this process sees under that number is the same file system, whoever has it; where an overlay's layers lie may differ.
    let seen = known_mount(id);
    if let Some(mount) = seen.as_ref().filter(|m| m.fs_type != "overlay") {
        return mount.is_served().then(|| mount.clone());
    }
    let mounts = mounts_of(pid);
    let by_number = mounts.iter().rev().find(|m| m.dev == id);
    let mount = match by_number.or(seen.as_ref()).or_else(|| above(name, &mounts)) {
        // btrfs and overlays have numbers of their own for parts of themselves; nothing else lies between the mount and the name.
        Some(mount) if mount.dev == id || mount.is_served() || is_device(name, id) => mount,
        _ if id.major() != 0 || id == memory_of_the_kernel()? => return None,
        // It is mounted nowhere any more, or only where this process can't see: a server's, for all that is known.
        _ => {
            return Some(Mount {
                id: 0,
                dev: id,
                root: PathBuf::from("/"),
                mount_point: PathBuf::from("/"),
                fs_type: "unknown".to_owned(),
                source: PathBuf::new(),
                options: String::new(),
            });
        }
    };
    (mount.is_served() || mount.has_served_layers(&mounts)).then(|| mount.clone())
}

/// What is mounted last with this number, as far as this process sees.
fn known_mount(id: DeviceId) -> Option<Mount> {
    with_mounts(|mounts| mounts.iter().rev().find(|m| m.dev == id).cloned())
}

/// Whether a file of this name lies on file system `id`; where the name means something else here it doesn't.
fn is_device(name: &Path, id: DeviceId) -> bool {
    find(name).is_some_and(|(_, st)| st.st_dev == id.0)
}

/// The file system of memory that has no name (memfd_create(2)), which is mounted nowhere. `None` where that can't be known.
fn memory_of_the_kernel() -> Option<DeviceId> {
    static FOUND: OnceLock<Option<DeviceId>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let memory = rustix::fs::memfd_create("", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
        let st = rustix::fs::fstat(&memory).ok()?;
        Some(DeviceId(st.st_dev))
    })
}

/// Whether a mount keeps what is read in the page cache, as far as its kind tells.
pub fn surely_caches(device: &Device) -> bool {
    const KINDS: [&str; 26] = [
        "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "jfs", "nilfs2", "reiserfs",
        "vfat", "exfat", "msdos", "ntfs3", "hfsplus", "iso9660", "udf", "squashfs", "erofs",
        "romfs", "cramfs", "minix", "ubifs", "jffs2", "overlay", "ufs",
    ];
    let mount = device.mount.as_ref();
    mount.is_none_or(|m| KINDS.contains(&m.fs_type.as_str()))
}

/// Whether reading a file goes past the page cache (DAX), as it tells itself.
pub fn bypasses(fd: BorrowedFd<'_>) -> bool {
    use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::TYPE)
        .is_ok_and(|st| st.stx_attributes.contains(StatxAttributes::DAX))
}

/// The size of an open file in bytes, as far as is known without asking a server.
pub fn size(fd: BorrowedFd<'_>) -> Option<u64> {
    use rustix::fs::{AtFlags, StatxFlags};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let st = rustix::fs::statx(fd, c"", flags, StatxFlags::SIZE).ok()?;
    Some(st.stx_size)
}

/// Whether a thread of a process is under more filters of system calls than this process: the first one, or one of the others, in turns.
pub fn is_confined(pid: u32, turn: usize) -> bool {
    static OWN: OnceLock<Option<u32>> = OnceLock::new();
    let Some(own) = *OWN.get_or_init(seccomp::filters) else {
        return false;
    };
    let is_under_more = |thread: &str| {
        let path = CString::new(format!("/proc/{pid}/task/{thread}/status"));
        path.is_ok_and(|path| seccomp::filters_of(&path).is_some_and(|n| n > own))
    };
    is_under_more(&pid.to_string()) || thread(pid, turn).is_some_and(|t| is_under_more(&t))
}

/// One of the threads of a process, in turns.
fn thread(pid: u32, turn: usize) -> Option<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads: Vec<_> = threads.into_iter().flatten().flatten().collect();
    let one = threads.get(turn % threads.len().max(1))?;
    Some(one.file_name().to_string_lossy().into_owned())
}

/// Whether a thread of a process, one after the other in turns, has other rights than the first one: credentials are each thread's own. Then nobody can say on
/// whose behalf it is that a file is opened by its name.
pub fn is_divided(pid: u32, turn: usize) -> bool {
    let Some(other) = thread(pid, turn).filter(|t| *t != pid.to_string()) else {
        return false;
    };
    let rights = |path: String| standing::rights_of(&text::read_bytes(path).ok()?);
    let first = rights(format!("/proc/{pid}/status"));
    let other = rights(format!("/proc/{pid}/task/{other}/status"));
    // Who is over has none.
    first.is_some() && other.is_some() && first != other
}

/// Processes that a process has started, each by any of its threads; none where `/proc` doesn't tell.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads.filter_map(|t| text::read_bytes(t.path().join("children")).ok());
    let lists: Vec<Vec<u8>> = lists.collect();
    let pids = lists
        .iter()
        .flat_map(|list| list.split(u8::is_ascii_whitespace));
    pids.filter_map(|pid| std::str::from_utf8(pid).ok()?.parse().ok())
        .collect()
}

/// The list of a process's mappings, opened.
pub fn maps(pid: u32) -> std::io::Result<std::fs::File> {
    let maps = text::open(Path::new(&format!("/proc/{pid}/maps")))?;
    Ok(OwnedFd::from(maps).into())
}

/// Whether a process exists, as /proc shows it.
pub fn alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/stat")).exists()
}

/// The numbers of a process in the namespaces in which it is, outermost first, as far as they are seen from here.
pub fn numbers(pid: u32) -> Vec<u32> {
    let status = text::read_bytes(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status
        .split(|b| *b == b'\n')
        .find_map(|l| l.strip_prefix(b"NSpid:"));
    let words = std::str::from_utf8(line.unwrap_or_default()).unwrap_or_default();
    words
        .split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect()
}

/// The command of a process, from /proc/PID/comm.
pub fn command(pid: u32) -> String {
    let name = text::read_bytes(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}
