//! The nodes that the kernel knows, and where they are in the directory that is shown.
//!
//! A node is an inode: names of one file share it, as their links are counted together. It is found again by a name, so
//! that a tree of any size takes no descriptors; what was renamed in the meantime is no longer found under the node.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, Stat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::fuse::{Attributes, ROOT};

/// The longest path that is handed to the kernel at once, bytes: PATH_MAX is 4096.
const LONGEST_PATH: usize = 3840;
/// Names on the way from the top to a node. More is a directory that was moved into one below itself meanwhile.
const DEEPEST: usize = 1 << 16;

/// A node other than the top.
#[derive(Debug)]
struct Node {
    parent: u64,
    name: Box<[u8]>,
    /// Device and inode number.
    id: (u64, u64),
    /// How often the kernel was told of it, less what it has forgotten.
    told: u64,
    /// Nodes whose `parent` it is.
    children: u64,
}

#[derive(Debug, Default)]
struct Nodes {
    all: HashMap<u64, Node>,
    by_id: HashMap<(u64, u64), u64>,
    last: u64,
}

/// An entry of a listing.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The inode's number.
    pub inode: u64,
    /// As in dirent(3).
    pub kind: u32,
    /// Its name.
    pub name: Box<[u8]>,
}

/// A directory, and the nodes below it that the kernel knows.
#[derive(Debug)]
pub struct Tree {
    top: OwnedFd,
    nodes: Mutex<Nodes>,
}

/// A place: a directory, and a path from there that ends at the node.
struct Place<'a> {
    from: From<'a>,
    path: CString,
}

enum From<'a> {
    Top(BorrowedFd<'a>),
    Below(OwnedFd),
}

impl Place<'_> {
    fn from(&self) -> BorrowedFd<'_> {
        match &self.from {
            From::Top(fd) => *fd,
            From::Below(fd) => fd.as_fd(),
        }
    }
}

/// What stat(2) says, as the kernel wants to hear it.
fn attributes(stat: &Stat) -> Attributes {
    let (major, minor) = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    Attributes {
        inode: stat.st_ino,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        times: [
            (stat.st_atime, stat.st_atime_nsec as u32),
            (stat.st_mtime, stat.st_mtime_nsec as u32),
            (stat.st_ctime, stat.st_ctime_nsec as u32),
        ],
        mode: stat.st_mode,
        links: stat.st_nlink as u32,
        user: stat.st_uid,
        group: stat.st_gid,
        device: (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12),
        block_size: stat.st_blksize as u32,
    }
}

fn path(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL.into())
}

impl Tree {
    /// The tree below a directory.
    pub fn new(directory: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            top: openat(CWD, directory.as_bytes(), flags, Mode::empty())?,
            nodes: Mutex::default(),
        })
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names from the top to a node.
    fn names(&self, node: u64) -> io::Result<Vec<Box<[u8]>>> {
        let nodes = self.nodes();
        let (mut names, mut at) = (Vec::new(), node);
        while at != ROOT {
            let node = nodes.all.get(&at).ok_or(Errno::STALE)?;
            names.push(node.name.clone());
            at = node.parent;
            if names.len() > DEEPEST {
                return Err(Errno::STALE.into());
            }
        }
        names.reverse();
        Ok(names)
    }

    /// Where a node, or the name below it, is.
    fn place(&self, node: u64, below: Option<&[u8]>) -> io::Result<Place<'_>> {
        let names = self.names(node)?;
        let mut place = Place {
            from: From::Top(self.top.as_fd()),
            path: CString::default(),
        };
        let mut way: Vec<u8> = Vec::new();
        for name in names.iter().map(AsRef::as_ref).chain(below) {
            if way.len() + name.len() > LONGEST_PATH {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let fd = openat(place.from(), path(&way)?, flags, Mode::empty())?;
                place.from = From::Below(fd);
                way.clear();
            }
            if !way.is_empty() {
                way.push(b'/');
            }
            way.extend(name);
        }
        if way.is_empty() {
            way.push(b'.');
        }
        place.path = path(&way)?;
        Ok(place)
    }

    /// The node of a name in a directory, and its attributes. The kernel has been told of it once more.
    pub fn look_up(&self, parent: u64, name: &[u8]) -> io::Result<(u64, Attributes)> {
        let place = self.place(parent, Some(name))?;
        let stat = statat(place.from(), &place.path, AtFlags::SYMLINK_NOFOLLOW)?;
        let id = (stat.st_dev, stat.st_ino);
        let attributes = attributes(&stat);
        let nodes = &mut *self.nodes();
        let known = nodes.by_id.get(&id).copied();
        let number = known.unwrap_or_else(|| {
            nodes.last = nodes.last.max(ROOT) + 1;
            nodes.last
        });
        if let Some(node) = nodes.all.get_mut(&number) {
            node.told += 1;
            // The newest name is the one that is there.
            node.name = name.into();
            let before = std::mem::replace(&mut node.parent, parent);
            if before != parent {
                nodes.count_child(parent);
                nodes.release_child(before);
            }
        } else {
            nodes.by_id.insert(id, number);
            let node = Node {
                parent,
                name: name.into(),
                id,
                told: 1,
                children: 0,
            };
            nodes.all.insert(number, node);
            nodes.count_child(parent);
        }
        Ok((number, attributes))
    }

    /// The kernel forgets that it was told of a node so many times.
    pub fn forget(&self, node: u64, times: u64) {
        let nodes = &mut *self.nodes();
        if let Some(known) = nodes.all.get_mut(&node) {
            known.told = known.told.saturating_sub(times);
            nodes.drop_unused(node);
        }
    }

    /// The attributes of a node.
    pub fn attributes(&self, node: u64) -> io::Result<Attributes> {
        let place = self.place(node, None)?;
        let stat = statat(place.from(), &place.path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(attributes(&stat))
    }

    /// Where a link leads.
    pub fn link(&self, node: u64) -> io::Result<CString> {
        let place = self.place(node, None)?;
        Ok(readlinkat(place.from(), &place.path, Vec::new())?)
    }

    /// Opens a node for reading, without changing its time of access where that is permitted.
    pub fn open(&self, node: u64, more: OFlags) -> io::Result<OwnedFd> {
        let place = self.place(node, None)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC | more;
        let open = |flags| openat(place.from(), &place.path, flags, Mode::empty());
        match open(flags | OFlags::NOATIME) {
            Err(Errno::PERM) => Ok(open(flags)?),
            opened => Ok(opened?),
        }
    }

    /// The file system that the top is on.
    pub fn space(&self) -> io::Result<rustix::fs::StatFs> {
        Ok(rustix::fs::fstatfs(&self.top)?)
    }
}

impl Nodes {
    fn count_child(&mut self, parent: u64) {
        if let Some(parent) = self.all.get_mut(&parent) {
            parent.children += 1;
        }
    }

    fn release_child(&mut self, parent: u64) {
        if let Some(known) = self.all.get_mut(&parent) {
            known.children = known.children.saturating_sub(1);
            self.drop_unused(parent);
        }
    }

    /// Drops a node that the kernel doesn't know and that isn't on the way to another, and then its parent likewise.
    fn drop_unused(&mut self, mut number: u64) {
        while let Some(node) = self.all.get(&number)
            && node.told == 0
            && node.children == 0
        {
            let (parent, id) = (node.parent, node.id);
            self.all.remove(&number);
            self.by_id.remove(&id);
            number = parent;
            if let Some(parent) = self.all.get_mut(&number) {
                parent.children = parent.children.saturating_sub(1);
            }
        }
    }
}

/// All entries of a directory, from its begin on, with `.` and `..`.
pub fn entries(directory: BorrowedFd<'_>) -> io::Result<Vec<Entry>> {
    rustix::fs::seek(directory, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = Vec::with_capacity(1 << 16);
    let mut raw = RawDir::new(directory, buffer.spare_capacity_mut());
    let mut found = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        found.push(Entry {
            inode: entry.ino(),
            kind: (entry.file_type().as_raw_mode() & libc::S_IFMT) >> 12,
            name: entry.file_name().to_bytes().into(),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What is forgotten takes no memory, in whatever order and whichever of two names went first.
    #[test]
    fn nodes_go_when_they_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        fs::create_dir(at("c")).unwrap();
        fs::write(at("a/b/file"), "content").unwrap();
        fs::hard_link(at("a/b/file"), at("c/other")).unwrap();
        let tree = Tree::new(directory.path().as_os_str()).unwrap();
        let known = || tree.nodes().all.len();
        let look = |parent: u64, name: &str| tree.look_up(parent, name.as_bytes()).unwrap().0;
        let (a, c) = (look(ROOT, "a"), look(ROOT, "c"));
        let b = look(a, "b");
        let file = look(b, "file");
        assert_eq!(look(c, "other"), file);
        assert_eq!(tree.attributes(file).unwrap().links, 2);
        assert_eq!(known(), 4);
        // Its last name was c/other: c stays while the file is known, b and a go.
        tree.forget(c, 1);
        tree.forget(a, 1);
        tree.forget(b, 1);
        assert_eq!(known(), 2);
        assert_eq!(tree.attributes(file).unwrap().size, 7);
        tree.forget(file, 1);
        assert_eq!(known(), 2);
        tree.forget(file, 1);
        assert_eq!(known(), 0);
        assert!(tree.nodes().by_id.is_empty());
        assert_eq!(
            tree.attributes(file).unwrap_err().raw_os_error(),
            Some(libc::ESTALE)
        );
    }

    /// A path that is longer than any call takes.
    #[test]
    fn deep_nodes_are_found() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::new(directory.path().as_os_str()).unwrap();
        let name = "n".repeat(250);
        let mut node = ROOT;
        for _ in 0..40 {
            let place = tree.place(node, Some(name.as_bytes())).unwrap();
            rustix::fs::mkdirat(place.from(), &place.path, Mode::RWXU).unwrap();
            node = tree.look_up(node, name.as_bytes()).unwrap().0;
        }
        let listed = entries(tree.open(node, OFlags::DIRECTORY).unwrap().as_fd()).unwrap();
        assert_eq!(listed.len(), 2);
        assert_eq!(tree.names(node).unwrap().len(), 40);
    }
}
