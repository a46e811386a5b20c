//! Files named on the command line and files below directories named there.
//!
//! Cold metadata is read one request at a time by anything that walks a tree with one thread, so the walk
//! and everything done per file run on [`METADATA_THREADS`] threads.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use outrider_core::profile::place::Places;
use outrider_sys::look_up::openat2;
use outrider_sys::units::{InodeKey, PageRange};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::output::{Failure, show};

/// Threads for metadata: cold opens take 140-237 µs one by one and 40 µs with 16 threads on a local disk,
/// and gain more on a remote one.
pub const METADATA_THREADS: usize = 16;

/// A regular file that the walk came across.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its path, below the path given on the command line.
    pub path: PathBuf,
    /// Inode number: opening in this order reads inode tables in order.
    pub ino: u64,
    /// Where it was found; `None` if it was named on the command line itself, where a symbolic link is followed.
    pub root: Option<Arc<Root>>,
    /// Of what a profile has: which pages, and how it is found.
    pub remembered: Option<Remembered>,
}

impl Found {
    /// What was named on the command line.
    fn named(path: PathBuf, ino: u64) -> Found {
        Found {
            path,
            ino,
            root: None,
            remembered: None,
        }
    }
}

/// A file that a profile has.
#[derive(Clone)]
pub struct Remembered {
    /// Finds it without following links or crossing mounts.
    pub places: Arc<Places>,
    /// Its pages, ascending.
    pub pages: Vec<PageRange>,
}

impl std::fmt::Debug for Remembered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.pages.fmt(f)
    }
}

/// What a walk found.
#[derive(Debug, Default)]
pub struct Listing {
    /// Regular files, in the order of the command line and sorted by path below each directory.
    pub files: Vec<Found>,
    /// Directories that could not be read, each with why.
    pub problems: Vec<(PathBuf, io::Error)>,
}

/// A file open for looking at.
#[derive(Debug)]
pub struct Open {
    /// Read-only, not updating the access time where that is permitted.
    pub file: File,
    /// Bytes.
    pub size: u64,
    pub key: InodeKey,
}

/// Opens a regular file without waiting for anything else than the device. `Ok(None)` if it is none, or
/// has vanished since the walk.
pub fn open(found: &Found) -> io::Result<Option<Open>> {
    if let Some(remembered) = &found.remembered {
        let found = remembered.places.find(&found.path).ok();
        let found = found.filter(|f| f.is_regular());
        return Ok(found.and_then(|found| {
            Some(Open {
                file: File::from(found.open()?),
                size: found.size(),
                key: InodeKey::new(found.st.st_dev, found.st.st_ino),
            })
        }));
    }
    let place = match &found.root {
        Some(root) => root.find(&found.path, OFlags::PATH),
        None => rustix::fs::open(&found.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()),
    };
    let place = match place {
        Ok(place) => place,
        Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    // What has taken a file's name since is not even opened: to open a device may have it do something.
    if !is_regular(&place) {
        return Ok(None);
    }
    let name = format!("/proc/self/fd/{}", place.as_raw_fd());
    let try_open = |path: &Path, extra| {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | extra;
        rustix::fs::open(path, flags, Mode::empty())
    };
    let open = |path| match try_open(path, OFlags::NOATIME) {
        Err(Errno::PERM) => try_open(path, OFlags::empty()),
        other => other,
    };
    let file = match open(Path::new(&name)) {
        // There is no /proc.
        Err(Errno::NOENT) => open(&found.path),
        other => other,
    };
    let file = File::from(file?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(None);
    }
    Ok(Some(Open {
        size: meta.len(),
        key: InodeKey::new(meta.dev(), meta.ino()),
        file,
    }))
}

fn is_regular(place: &OwnedFd) -> bool {
    let found = rustix::fs::fstat(place);
    found.is_ok_and(|st| FileType::from_raw_mode(st.st_mode).is_file())
}

/// A directory that was named on the command line. What lies below it is looked for from here on and behind no link: whose it is may put one in the place of a directory
/// meanwhile that leads to where he may not go.
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    fd: OwnedFd,
}

impl Root {
    /// Links on the way to it are followed.
    pub fn of(path: &Path) -> io::Result<Arc<Root>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let path = path.to_owned();
        Ok(Arc::new(Root { path, fd }))
    }

    /// Opens what has such a path, which begins with this one's.
    fn find(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let below = path.strip_prefix(&self.path).unwrap_or(path);
        let below = match below.as_os_str().is_empty() {
            true => Path::new("."),
            false => below,
        };
        match openat2(&self.fd, below, flags, ResolveFlags::NO_SYMLINKS) {
            // Before Linux 5.6 links are followed that somebody puts on the way.
            Err(Errno::NOSYS | Errno::PERM) => {
                rustix::fs::openat(&self.fd, below, flags, Mode::empty())
            }
            found => found,
        }
    }
}

/// Walks the paths of a command line. Those that are missing, unreadable or neither a file nor a directory are problems beside the others; where
/// there are no others, nothing is done.
pub fn list(paths: &[PathBuf]) -> Result<Listing, Failure> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for path in paths {
        match check(path) {
            Ok(()) => good.push(path),
            Err(e) => bad.push((path.clone(), e)),
        }
    }
    if good.is_empty() {
        let wrong = bad.iter().map(|(path, e)| format!("{}: {e}", show(path)));
        return Err(Failure::usage(wrong.collect::<Vec<_>>().join("; ")));
    }
    let mut all = Listing {
        problems: bad,
        ..Listing::default()
    };
    for path in good {
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => {
                let mut below = match Root::of(path) {
                    Ok(root) => walk(&root),
                    Err(e) => {
                        all.problems.push((path.clone(), e));
                        continue;
                    }
                };
                below.files.sort_by(|a, b| a.path.cmp(&b.path));
                below.problems.sort_by(|a, b| a.0.cmp(&b.0));
                all.files.append(&mut below.files);
                all.problems.append(&mut below.problems);
            }
            Ok(meta) => all.files.push(Found::named(path.clone(), meta.ino())),
            Err(e) => all.problems.push((path.clone(), e)),
        }
    }
    Ok(all)
}

/// Attributes of a path of a command line, which has to be a file or a directory.
pub fn attributes(path: &Path) -> Result<fs::Metadata, Failure> {
    kind_of(path).map_err(|e| Failure::usage(format!("{}: {e}", show(path))))
}

fn kind_of(path: &Path) -> io::Result<fs::Metadata> {
    let meta = fs::metadata(path)?;
    match meta.is_dir() || meta.is_file() {
        true => Ok(meta),
        false => Err(neither()),
    }
}

fn neither() -> io::Error {
    io::Error::other("neither a regular file nor a directory, which alone are accepted")
}

fn check(path: &Path) -> io::Result<()> {
    match kind_of(path)?.is_dir() {
        true => fs::read_dir(path).map(drop),
        false => match open(&Found::named(path.to_owned(), 0))? {
            Some(_) => Ok(()),
            None => Err(neither()),
        },
    }
}

/// Directories still to be read and how many threads are reading one.
struct Queue {
    directories: Vec<PathBuf>,
    busy: usize,
    found: Listing,
}

/// All regular files below `root`, links not followed, pseudo file systems left out.
fn walk(root: &Arc<Root>) -> Listing {
    let queue = Mutex::new(Queue {
        directories: vec![root.path.clone()],
        busy: 0,
        found: Listing::default(),
    });
    let changed = Condvar::new();
    std::thread::scope(|scope| {
        for _ in 0..METADATA_THREADS {
            scope.spawn(|| walker(root, &queue, &changed));
        }
    });
    queue
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .found
}

fn walker(root: &Arc<Root>, queue: &Mutex<Queue>, changed: &Condvar) {
    let mut held = queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(directory) = held.directories.pop() {
            held.busy += 1;
            drop(held);
            let mut files = Vec::new();
            let mut below = Vec::new();
            let result = read_directory(root, &directory, &mut files, &mut below);
            held = queue.lock().unwrap_or_else(PoisonError::into_inner);
            held.busy -= 1;
            held.found.files.append(&mut files);
            held.directories.append(&mut below);
            match result {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    held.found.problems.push((directory, e))
                }
                _ => {}
            }
            changed.notify_all();
        } else if held.busy == 0 {
            return;
        } else {
            held = changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn read_directory(
    root: &Arc<Root>,
    path: &Path,
    files: &mut Vec<Found>,
    below: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let directory = match root.find(path, OFlags::RDONLY | OFlags::DIRECTORY) {
        // It is a link or something else by now.
        Err(Errno::LOOP | Errno::NOTDIR) => return Ok(()),
        found => found?,
    };
    if is_pseudo(&directory) {
        return Ok(());
    }
    let mut entries = Dir::new(directory)?;
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            // Not every file system tells.
            FileType::Unknown => {
                let about = rustix::fs::statat(entries.fd()?, name, AtFlags::SYMLINK_NOFOLLOW);
                about.map_or(FileType::Unknown, |st| FileType::from_raw_mode(st.st_mode))
            }
            kind => kind,
        };
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        match kind {
            FileType::Directory => below.push(path),
            FileType::RegularFile => files.push(Found {
                path,
                ino: entry.ino(),
                root: Some(root.clone()),
                remembered: None,
            }),
            // Links, sockets and the like; or vanished meanwhile.
            _ => {}
        }
    }
    Ok(())
}

/// True for file systems whose files are made up by the kernel when they are read (linux/magic.h).
fn is_pseudo(directory: &OwnedFd) -> bool {
    let pseudo = [
        0x9fa0,      // proc
        0x6265_6572, // sysfs
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0x0027_e0eb, // cgroup
        0x6367_7270, // cgroup2
        0xcafe_4a11, // bpf
        0x7363_6673, // securityfs
        0xde5e_81e4, // efivarfs
        0x6265_6570, // configfs
        0x1cd1,      // devpts
    ];
    rustix::fs::fstatfs(directory)
        .is_ok_and(|st| pseudo.contains(&(st.f_type as u64 & 0xffff_ffff)))
}

/// Applies `act` to every item on up to `threads` threads and returns the results in the items' order.
pub fn parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    act: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else {
                return done;
            };
            done.push((i, act(item)));
        }
    };
    let threads = threads.min(items.len());
    if threads <= 1 {
        return worker().into_iter().map(|(_, r)| r).collect();
    }
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        handles
            .into_iter()
            .flat_map(|h| {
                h.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, r)| r).collect()
}
