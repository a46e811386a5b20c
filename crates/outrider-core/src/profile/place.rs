//! Finding what a profile names, so that nothing happens but a look-up.
//!
//! A name is looked up below the directory that its file system is mounted on, with O_PATH, which has no effect on whatever is there; no link is followed and no
//! mount is crossed, so that nothing is mounted by looking and nothing outside is reached. What is opened for reading after that is a regular file, by the inode
//! that was found. File systems whose files lie on nothing (/proc, /dev, tmpfs) are left alone, and so are those of servers, which may not answer.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;

use outrider_sys::device::{LiesOn, Mount, lies_on, mounts};
use outrider_sys::look_up::{look_up, openat2};
use outrider_sys::raw;
use outrider_sys::units::InodeKey;
use rustix::fs::{FileType, OFlags, ResolveFlags};

use crate::fetch::{leaves_access_time, reopen};
use crate::lock;

/// Links in a path, as the kernel has it.
pub(super) const LINKS: usize = 40;

/// Looks names up. Cheap to share.
pub struct Places {
    /// By where they are mounted.
    mounts: HashMap<OsString, Mount>,
    /// `st_dev` of what is mounted there, as it is found; `None`: it is left alone. Nothing is held open: it could not be unmounted.
    devices: Mutex<HashMap<OsString, Option<u64>>>,
}

/// What was found.
pub struct Found {
    /// Without any right.
    pub fd: OwnedFd,
    /// Its attributes.
    pub st: libc::stat,
}

/// What is kept of what a file is.
#[derive(Clone, Copy)]
pub struct Attributes {
    pub(super) key: InodeKey,
    pub(super) size: u64,
    pub(super) modified: i64,
}

impl From<libc::stat> for Attributes {
    fn from(st: libc::stat) -> Attributes {
        Attributes {
            key: InodeKey::new(st.st_dev, st.st_ino),
            size: st.st_size.max(0) as u64,
            modified: st.st_mtime,
        }
    }
}

/// Why nothing was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// There is nothing of that name, or it is not to be reached without a link.
    Gone,
    /// It lies where nothing is opened.
    LeftAlone,
}

impl Found {
    /// Whether it is a regular file.
    pub fn is_regular(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == FileType::Directory
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.st.st_mode)
    }

    /// Its number.
    pub fn key(&self) -> InodeKey {
        InodeKey::new(self.st.st_dev, self.st.st_ino)
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.st.st_size.max(0) as u64
    }

    /// Opened for reading, if it is a regular file or a directory, and its time of access stays as it is.
    pub fn open(&self) -> Option<OwnedFd> {
        let directory = match self.is_directory() {
            true => OFlags::DIRECTORY,
            false if self.is_regular() => OFlags::empty(),
            false => return None,
        };
        let quiet = reopen(self.fd.as_fd(), directory | OFlags::NOATIME);
        let open = || match self.is_regular() || leaves_access_time(self.fd.as_fd()) {
            true => reopen(self.fd.as_fd(), directory),
            false => Err(rustix::io::Errno::PERM),
        };
        quiet.or_else(|_| open()).ok()
    }
}

impl Places {
    /// As this process sees them now.
    pub fn new() -> Places {
        let all = mounts();
        Places {
            // Of two at one place the later one is seen.
            mounts: all
                .into_iter()
                .map(|m| (m.mount_point.clone().into_os_string(), m))
                .collect(),
            devices: Mutex::default(),
        }
    }

    /// Where the file system of a path is mounted.
    fn mount_of<'a>(&self, path: &'a Path) -> &'a Path {
        let mut above = path.ancestors();
        above
            .find(|p| self.mounts.contains_key(p.as_os_str()))
            .unwrap_or(Path::new("/"))
    }

    /// What is mounted at a place, opened without any right. Where something is mounted there are no links on the way, and there are none now.
    fn root(at: &Path) -> Option<OwnedFd> {
        look_up(at).map(OwnedFd::from)
    }

    /// The `st_dev` of what is mounted at a place, if it is looked at.
    fn device_at(&self, at: &Path) -> Option<u64> {
        if let Some(known) = lock(&self.devices).get(at.as_os_str()) {
            return *known;
        }
        let find = || {
            let served = |m: &Mount| m.fs_type == "autofs" || m.is_served();
            // To look where something is mounted below a server asks that, too.
            let mut above = at.ancestors().map(|p| self.mounts.get(p.as_os_str()));
            if above.any(|mount| mount.is_some_and(served)) {
                return None;
            }
            let dir = Places::root(at)?;
            let dev = raw::status(dir.as_raw_fd()).ok()?.st_dev;
            (lies_on(dir.as_fd(), dev) == LiesOn::Disk).then_some(dev)
        };
        let found = find();
        lock(&self.devices).insert(at.as_os_str().to_owned(), found);
        found
    }

    /// Whether what has this absolute path may be looked up.
    pub fn is_looked_at(&self, path: &Path) -> bool {
        self.device(path).is_some()
    }

    /// Whether a path's file system reads many blocks of inodes where one is asked for.
    pub fn reads_inodes_ahead(&self, path: &Path) -> bool {
        let mount = self.mounts.get(self.mount_of(path).as_os_str());
        mount.is_some_and(|m| m.fs_type.starts_with("ext"))
    }

    /// The `st_dev` of a path's file system, if it is looked at.
    pub fn device(&self, path: &Path) -> Option<u64> {
        self.device_at(self.mount_of(path))
    }

    /// What an absolute path leads to, which may have links in it, and its name without. Links to other file systems are followed one by one, so that none is
    /// touched that is left alone: a server behind one need not answer.
    pub fn follow(&self, path: &Path) -> Option<(PathBuf, OwnedFd)> {
        let at = self.mount_of(path);
        self.device_at(at)?;
        let within = || {
            let below = below(path, at)?;
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
            openat2(Places::root(at)?, below, flags, resolve).ok()
        };
        if let Some(found) = within() {
            let name = crate::fetch::name(found.as_fd());
            return name.is_absolute().then_some((name, found));
        }
        let mut left: Vec<OsString> = components(path);
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        while let Some(part) = left.pop() {
            if part == ".." {
                at.pop();
                continue;
            }
            let next = at.join(part);
            let found = self.find(&next).ok()?;
            if found.kind() != FileType::Symlink {
                at = next;
                continue;
            }
            links += 1;
            let target = rustix::fs::readlinkat(&found.fd, "", Vec::new()).ok()?;
            let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
            if links > LINKS {
                return None;
            }
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            left.extend(components(&target));
        }
        let found = self.find(&at).ok()?;
        Some((at, found.fd))
    }

    /// What has this absolute path, which has no links in it.
    pub fn find(&self, path: &Path) -> Result<Found, Lost> {
        let fd = self.look_up(path)?;
        let st = raw::fstat(fd.as_raw_fd()).map_err(|_| Lost::Gone)?;
        Ok(Found { fd, st })
    }

    /// As [`Places::find`], where nobody has asked yet what it is.
    pub fn look_up(&self, path: &Path) -> Result<OwnedFd, Lost> {
        let at = self.mount_of(path);
        let dev = self.device_at(at).ok_or(Lost::LeftAlone)?;
        // What is mounted there may be something else by now.
        let root = Places::root(at).ok_or(Lost::Gone)?;
        let same = raw::status(root.as_raw_fd()).is_ok_and(|st| st.st_dev == dev);
        if !same {
            return Err(Lost::Gone);
        }
        let below = below(path, at).ok_or(Lost::Gone)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_XDEV
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS;
        openat2(&root, below, flags, resolve).map_err(|_| Lost::Gone)
    }
}

/// A path from a directory above it on.
fn below<'a>(path: &'a Path, at: &Path) -> Option<&'a Path> {
    let below = path.strip_prefix(at).ok()?;
    let is_it = below.as_os_str().is_empty();
    Some(if is_it { Path::new(".") } else { below })
}

/// What a path consists of, its last part first.
pub(super) fn components(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter_map(|c| match c {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

impl Default for Places {
    fn default() -> Places {
        Places::new()
    }
}
