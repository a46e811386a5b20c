//! The lanes of the file system: threads that take a request each, hold it for its latency, and answer.
//!
//! A lane has the answer ready before its time has come, so that what the directory behind takes itself is part of the
//! latency, as far as it fits in. Requests that find no lane free wait in the kernel, in order.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::counts::{Counts, Kind};
use super::tree::{self, Entry, Tree};
use crate::fuse::{self, Body, Call};

/// The largest message that the kernel sends: nothing is ever written.
const LARGEST_WRITE: u32 = 4096;
/// Bytes that hold such a message with its headers; no less than the kernel insists on (8192).
const BUFFER: usize = 4 * LARGEST_WRITE as usize;
/// What is asked of the kernel.
const FLAGS: u32 = fuse::ASYNC_READ
    | fuse::ASYNC_DIO
    | fuse::PARALLEL_DIROPS
    | fuse::MAX_PAGES
    | fuse::CACHE_SYMLINKS
    | fuse::AUTO_INVAL_DATA;

/// How the file system behaves.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// What opening a file takes, ns.
    pub open: u64,
    /// What a look-up, attributes, or where a link leads take, ns.
    pub lookup: u64,
    /// What a read takes, ns.
    pub read: u64,
    /// What listing a directory takes, ns.
    pub list: u64,
    /// Bandwidth that all reads share, 10⁶ bytes/s; 0 is unlimited.
    pub bandwidth_mbs: f64,
    /// How long names and attributes are valid, s.
    pub valid: u64,
    /// Requests that nobody waits for, readahead's, that may be under way.
    pub background: u16,
    /// What is cached of a file stays when it is opened again.
    pub keep_cache: bool,
    /// Reads go past the page cache.
    pub direct_io: bool,
    /// Listings are cached.
    pub cache_lists: bool,
}

/// What was opened.
#[derive(Debug)]
enum Opened {
    File(File),
    Directory(OwnedFd, Mutex<Option<Vec<Entry>>>),
}

/// What all lanes share.
#[derive(Debug)]
pub struct Lanes {
    fuse: OwnedFd,
    tree: Tree,
    manner: Manner,
    counts: Counts,
    opened: Mutex<HashMap<u64, Arc<Opened>>>,
    handles: AtomicU64,
    /// When the link is free, ns.
    link_free: Mutex<u64>,
}

/// An answer.
enum Answer {
    Body(Body),
    Bytes(Vec<u8>),
    Nothing,
    /// There is none.
    Silence,
}

/// CLOCK_MONOTONIC, ns.
fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn sleep_until(at: u64) {
    let until = Timespec {
        tv_sec: (at / 1_000_000_000) as i64,
        tv_nsec: (at % 1_000_000_000) as _,
    };
    while let Err(Errno::INTR) = clock_nanosleep_absolute(ClockId::Monotonic, &until) {}
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lanes {
    /// Lanes of a tree, which speak through `fuse`.
    pub fn new(fuse: OwnedFd, tree: Tree, manner: Manner, counts: Counts) -> Self {
        Self {
            fuse,
            tree,
            manner,
            counts,
            opened: Mutex::default(),
            handles: AtomicU64::new(0),
            link_free: Mutex::new(0),
        }
    }

    /// Answers one request after the other, until the file system is gone.
    pub fn serve(&self) -> io::Result<()> {
        // SAFETY: the call takes numbers and concerns this thread only: it wakes up when it has to.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0) };
        let mut buffer = vec![0; BUFFER];
        loop {
            let len = match rustix::io::read(&self.fuse, &mut buffer) {
                Ok(len) => len,
                // Interrupted, or the request was taken back before it could be read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            let came = now();
            let Some((unique, node, call)) = fuse::parse(&buffer[..len]) else {
                return Err(io::Error::other(
                    "the kernel sent a FUSE message that is cut short",
                ));
            };
            let (answer, took) = self.answer(node, call);
            if took > 0 {
                sleep_until(came + took);
            }
            match answer {
                Ok(Answer::Body(body)) => self.reply(unique, 0, body.bytes())?,
                Ok(Answer::Bytes(bytes)) => {
                    self.transfer(bytes.len());
                    self.reply(unique, 0, &bytes)?;
                }
                Ok(Answer::Nothing) => self.reply(unique, 0, &[])?,
                Ok(Answer::Silence) => {}
                Err(e) => self.reply(unique, e.raw_os_error().unwrap_or(libc::EIO), &[])?,
            }
        }
    }

    fn reply(&self, unique: u64, errno: i32, body: &[u8]) -> io::Result<()> {
        // SAFETY: the body is a slice.
        unsafe { fuse::reply(self.fuse.as_fd(), unique, errno, body.as_ptr(), body.len()) }
    }

    /// Waits until the link has carried `len` bytes, after those that came before.
    fn transfer(&self, len: usize) {
        if self.manner.bandwidth_mbs <= 0.0 {
            return;
        }
        let takes = (len as f64 * 1000.0 / self.manner.bandwidth_mbs) as u64;
        let done = {
            let mut free = hold(&self.link_free);
            *free = (*free).max(now()) + takes;
            *free
        };
        sleep_until(done);
    }

    fn handle(&self, opened: Opened) -> u64 {
        let handle = self.handles.fetch_add(1, Ordering::Relaxed) + 1;
        hold(&self.opened).insert(handle, Arc::new(opened));
        handle
    }

    fn opened(&self, handle: u64) -> io::Result<Arc<Opened>> {
        let found = hold(&self.opened).get(&handle).cloned();
        found.ok_or_else(|| Errno::BADF.into())
    }

    /// The answer, and how long it takes, ns.
    fn answer(&self, node: u64, call: Call<'_>) -> (io::Result<Answer>, u64) {
        let (manner, valid) = (&self.manner, self.manner.valid);
        let count = |kind| self.counts.count(kind, 0);
        match call {
            Call::Init {
                minor,
                readahead,
                flags,
            } => {
                let background = (manner.background, (manner.background / 4 * 3).max(1));
                let flags = flags & FLAGS;
                let body = fuse::init(minor, readahead, flags, background, LARGEST_WRITE);
                (Ok(Answer::Body(body)), 0)
            }
            Call::Lookup { parent, name } => {
                count(Kind::Lookup);
                let found = self.tree.look_up(parent, name);
                let found = found.map(|(node, a)| Answer::Body(fuse::entry(node, &a, valid)));
                (found, manner.lookup)
            }
            Call::Attributes => {
                count(Kind::Attributes);
                let found = self.tree.attributes(node);
                let found = found.map(|a| Answer::Body(fuse::attributes(&a, valid)));
                (found, manner.lookup)
            }
            Call::Link => {
                count(Kind::Link);
                let found = self.tree.link(node);
                let found = found.map(|to| Answer::Bytes(to.into_bytes()));
                (found, manner.lookup)
            }
            Call::Open => {
                count(Kind::Open);
                let opened = self.tree.open(node, OFlags::NONBLOCK);
                let flag = |on: bool, flag: u32| if on { flag } else { 0 };
                let flags = flag(manner.keep_cache, fuse::OPEN_KEEP_CACHE)
                    | flag(manner.direct_io, fuse::OPEN_DIRECT_IO);
                let opened = opened.map(|fd| {
                    let handle = self.handle(Opened::File(File::from(fd)));
                    Answer::Body(fuse::open(handle, flags))
                });
                (opened, manner.open)
            }
            Call::Read {
                handle,
                offset,
                len,
            } => {
                let read = self.read(handle, offset, len);
                let got = read.as_ref().map_or(0, Vec::len);
                self.counts.count(Kind::Read, got);
                (read.map(Answer::Bytes), manner.read)
            }
            Call::OpenList => {
                let flags = match manner.cache_lists {
                    true => fuse::OPEN_CACHE_DIR | fuse::OPEN_KEEP_CACHE,
                    false => 0,
                };
                let opened = self.tree.open(node, OFlags::DIRECTORY).map(|fd| {
                    let handle = self.handle(Opened::Directory(fd, Mutex::default()));
                    Answer::Body(fuse::open(handle, flags))
                });
                (opened, 0)
            }
            Call::List {
                handle,
                offset,
                len,
            } => {
                let (kind, takes) = match offset {
                    0 => (Kind::List, manner.list),
                    _ => (Kind::ListMore, 0),
                };
                count(kind);
                let listed = self.list(handle, offset, len);
                (listed.map(Answer::Body), takes)
            }
            Call::Release { handle } => {
                hold(&self.opened).remove(&handle);
                (Ok(Answer::Nothing), 0)
            }
            Call::Forget(all) => {
                for (node, times) in all {
                    self.tree.forget(node, times);
                }
                (Ok(Answer::Silence), 0)
            }
            Call::Space => {
                let space = self.tree.space().map(|s| {
                    let counts = [s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree];
                    let sizes = [s.f_bsize as u32, s.f_namelen as u32, s.f_frsize as u32];
                    Answer::Body(fuse::space(counts, sizes))
                });
                (space, manner.lookup)
            }
            Call::Sync | Call::Destroy => (Ok(Answer::Nothing), 0),
            Call::Silent => (Ok(Answer::Silence), 0),
            // Closing a file tells nobody anything, rights are the kernel's to judge.
            Call::Nothing | Call::Unknown => (Err(Errno::NOSYS.into()), 0),
            Call::Write { .. } | Call::Allocate { .. } => (Err(Errno::ROFS.into()), 0),
        }
    }

    /// Bytes of a file, fewer than asked for only at its end.
    fn read(&self, handle: u64, offset: u64, len: u32) -> io::Result<Vec<u8>> {
        let opened = self.opened(handle)?;
        let Opened::File(file) = &*opened else {
            return Err(Errno::ISDIR.into());
        };
        let mut bytes = vec![0; len.min(fuse::MAX_IO) as usize];
        let mut got = 0;
        while got < bytes.len() {
            match file.read_at(&mut bytes[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        bytes.truncate(got);
        Ok(bytes)
    }

    /// Entries of a directory. Those of a handle are as they were when it was read from the begin on.
    fn list(&self, handle: u64, offset: u64, len: u32) -> io::Result<Body> {
        let opened = self.opened(handle)?;
        let Opened::Directory(directory, listing) = &*opened else {
            return Err(Errno::NOTDIR.into());
        };
        let mut listing = hold(listing);
        if offset == 0 {
            *listing = None;
        }
        let listing = match &mut *listing {
            Some(read) => read,
            unread => unread.insert(tree::entries(directory.as_fd())?),
        };
        let mut body = Body::default();
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (i, entry) in listing.iter().enumerate().skip(from) {
            let next = i as u64 + 1;
            if !body.entry(entry.inode, next, entry.kind, &entry.name, len as usize) {
                break;
            }
        }
        Ok(body)
    }
}
