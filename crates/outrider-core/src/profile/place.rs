//! Finding what a profile names, so that nothing happens but a look-up.
//!
//! A name is looked up below the directory that its file system is mounted on, with O_PATH, which has no effect on whatever is there; no link is followed and no
//! mount is crossed, so that nothing is mounted by looking and nothing outside is reached. What is opened for reading after that is a regular file, by the inode
//! that was found. File systems whose files lie on nothing (/proc, /dev, tmpfs) are left alone, and so are those of servers, which may not answer.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use outrider_sys::device::{LiesOn, Mount, lies_on, mounts};
use outrider_sys::raw;
use outrider_sys::units::InodeKey;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};

use crate::fetch::{leaves_access_time, reopen};
use crate::lock;

/// Types of file systems of which nothing is asked by looking at where they are mounted.
const SERVERS: [&str; 12] = [
    "nfs",
    "cifs",
    "smb3",
    "9p",
    "ceph",
    "fuse",
    "afs",
    "lustre",
    "glusterfs",
    "virtiofs",
    "ncpfs",
    "coda",
];

/// Looks names up. Cheap to share.
pub struct Places {
    /// By where they are mounted.
    mounts: HashMap<OsString, Mount>,
    /// Their directories, as they are found; `None`: they are left alone.
    roots: Mutex<HashMap<OsString, Option<Arc<Root>>>>,
}

struct Root {
    dir: OwnedFd,
    /// `st_dev`.
    dev: u64,
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

impl From<rustix::fs::Stat> for Attributes {
    fn from(st: rustix::fs::Stat) -> Attributes {
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
            roots: Mutex::default(),
        }
    }

    /// Where the file system of a path is mounted.
    fn mount_of<'a>(&self, path: &'a Path) -> &'a Path {
        let mut above = path.ancestors();
        above
            .find(|p| self.mounts.contains_key(p.as_os_str()))
            .unwrap_or(Path::new("/"))
    }

    /// Whether something is mounted at this path.
    pub fn is_mounted(&self, path: &Path) -> bool {
        self.mounts.contains_key(path.as_os_str())
    }

    fn root(&self, at: &Path) -> Option<Arc<Root>> {
        if let Some(known) = lock(&self.roots).get(at.as_os_str()) {
            return known.clone();
        }
        let find = || {
            let served = |m: &Mount| {
                m.fs_type == "autofs" || SERVERS.iter().any(|s| m.fs_type.starts_with(s))
            };
            if self.mounts.get(at.as_os_str()).is_some_and(served) {
                return None;
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let dir = rustix::fs::openat(CWD, at, flags, Mode::empty()).ok()?;
            let dev = raw::status(dir.as_raw_fd()).ok()?.st_dev;
            let disk = lies_on(dir.as_fd(), dev) == LiesOn::Disk;
            disk.then(|| Arc::new(Root { dir, dev }))
        };
        let found = find();
        lock(&self.roots).insert(at.as_os_str().to_owned(), found.clone());
        found
    }

    /// Whether what has this absolute path may be looked up.
    pub fn is_looked_at(&self, path: &Path) -> bool {
        self.root(self.mount_of(path)).is_some()
    }

    /// Whether a path's file system reads many blocks of inodes where one is asked for.
    pub fn reads_inodes_ahead(&self, path: &Path) -> bool {
        let mount = self.mounts.get(self.mount_of(path).as_os_str());
        mount.is_some_and(|m| m.fs_type.starts_with("ext"))
    }

    /// The `st_dev` of a path's file system, if it is looked at.
    pub fn device(&self, path: &Path) -> Option<u64> {
        Some(self.root(self.mount_of(path))?.dev)
    }

    /// What has this absolute path, which has no links in it.
    pub fn find(&self, path: &Path) -> Result<Found, Lost> {
        let at = self.mount_of(path);
        let root = self.root(at).ok_or(Lost::LeftAlone)?;
        let below = path.strip_prefix(at).map_err(|_| Lost::Gone)?;
        let below = match below.as_os_str().is_empty() {
            true => Path::new("."),
            false => below,
        };
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH
            | ResolveFlags::NO_XDEV
            | ResolveFlags::NO_SYMLINKS
            | ResolveFlags::NO_MAGICLINKS;
        let fd = rustix::fs::openat2(&root.dir, below, flags, Mode::empty(), resolve)
            .map_err(|_| Lost::Gone)?;
        let st = raw::fstat(fd.as_raw_fd()).map_err(|_| Lost::Gone)?;
        Ok(Found { fd, st })
    }
}

impl Default for Places {
    fn default() -> Places {
        Places::new()
    }
}
