//! The calls themselves.
//!
//! Files are found by the absolute path of their directory, never by the program's descriptors. What is found has to be the file that the directory listed: a
//! regular one, on the same file system, with the same inode number. It is looked up with O_PATH, which has no effect on whatever is there, before it is
//! opened. Directories whose time of access a listing would change are not listed.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use outrider_sys::cache::residency_is_visible;
use outrider_sys::device::lies_on_disk;
use outrider_sys::look_up::openat2;
use outrider_sys::raw::{self, blocks_read};
use outrider_sys::units::{self, ByteRange, DeviceId, InodeKey, PAGE};
use rustix::fs::{Advice, CWD, FileType, Mode, OFlags, ResolveFlags, SeekFrom};

use super::super::mapping::SHORTEST_STEP;
use super::room::{Left, Way};
use super::server::{Server, waits};
use super::{Bench, Busy, Call, Desk, Found, Handle, Listing, Names, Permit, Thread, lock};
use crate::device::{HALF_SEEK, READAHEAD};
use crate::fetch::{self, leaves_access_time, reopen};
use crate::shm::Notes;
use crate::tree::inode_block;
use crate::tree::known::{Directory, Entry, Place};
use crate::tree::listing::{self, Kind};

/// Bytes that a list of a directory and looking up a few entries are taken to have on their way: blocks one after the other, which the kernel reads some more
/// of.
const LISTED: u64 = 16 << 10;
/// Bytes that are asked for at once of a file: a window of the kernel's own readahead.
const STEP: u64 = 128 << 10;
/// Entries of a directory beyond which it is left alone.
const ENTRIES: usize = 1 << 16;
/// Bytes of a directory's entries that are read at once.
const AT_ONCE: usize = 32 << 10;
/// Entries that are looked up at once.
const LOOKED_UP: usize = 16;

impl Call {
    /// The file system that is read from, where that is known.
    fn device(&self) -> Option<DeviceId> {
        match self {
            Call::Open { place, .. } => Some(place.dir.key.device()),
            Call::List { device, .. } => *device,
            Call::Stat(names) => Some(names.key.device()),
            Call::Errand(errand) => Some(errand.device()),
        }
    }

    /// Whether a thread that makes it hardly waits, where names are cached.
    pub(super) fn is_short(&self) -> bool {
        match self {
            Call::Open { patience, .. } => patience.leaves().is_some(),
            Call::Errand(errand) => errand.is_short(),
            Call::List { .. } | Call::Stat(_) => false,
        }
    }
}

impl Patience {
    /// What a thread may have left, bytes, and whether it has to be known that nobody else reads; `None`: nothing.
    fn leaves(self) -> Option<(u64, bool)> {
        match self {
            // Half of what a thread has on its way of a large file.
            Patience::Leave => Some((4 * READAHEAD, false)),
            // All threads together have no more on their way than if each waited for a file of 64 KiB. With eight times as much a foreign reader's requests took three
            // times as long (99 % of them), with this three to six tenths longer.
            Patience::LeaveFew => Some((READAHEAD / 2, true)),
            Patience::Wait | Patience::Sweep => None,
        }
    }
}

impl Desk {
    /// Makes calls for an owner, one after the other, and tells the client.
    pub(super) fn make(&self, owner: usize, calls: impl Iterator<Item = Call>, thread: &Thread) {
        // Told all at once: whoever hears of it is woken once.
        let (mut found, mut done) = (Vec::new(), Vec::new());
        let _reads = thread.reads();
        // Something is open from one to the next.
        let _busy = Busy::begin(self);
        let mut near = Near::default();
        let mut before = waits();
        for call in calls {
            found.extend(self.call(owner, &call, thread, &mut near));
            done.push(call);
            let waits = waits();
            if std::mem::replace(&mut before, waits) != waits {
                // Meanwhile anything may have happened to it.
                near = Near::default();
                self.tell(owner, &mut found, &mut done);
            }
            self.close_left();
        }
        self.tell(owner, &mut found, &mut done);
    }

    /// Closes what was let go of and asks a server for that.
    fn close_left(&self) {
        let left = std::mem::take(&mut *lock(&self.left));
        if !left.is_empty() {
            let _asks = self.under_way.begin();
            drop(left);
        }
    }

    /// Says what came of calls; an errand says so itself once it is dropped.
    fn tell(&self, owner: usize, found: &mut Vec<Found>, done: &mut Vec<Call>) {
        if !found.is_empty() {
            self.client.done(owner, std::mem::take(found));
        }
        done.clear();
    }

    fn call(&self, owner: usize, call: &Call, thread: &Thread, near: &mut Near) -> Option<Found> {
        let unwanted = || self.client.is_held_back();
        let room = |device| {
            let left = &mut thread.left.borrow_mut();
            if near.is_open()
                && let Some(way) = Way::enter_now(&self.engine, device, LISTED)
            {
                return Some(way);
            }
            // Nothing is open while this waits.
            *near = Near::default();
            Way::enter(&self.engine, device, LISTED, left, unwanted)
        };
        let mut way = call.device().and_then(room);
        let permit = Permit::begin(self, owner);
        let _asks = self.under_way.begin();
        match call {
            Call::Open {
                place,
                most,
                patience,
            } => {
                let (before, began) = (blocks_read(), Instant::now());
                let opening = Opening {
                    place,
                    most: most.unwrap_or(self.small),
                    patience: *patience,
                };
                let mut came = Came::default();
                let mut fetch = |way| self.open(owner, &opening, way, thread, near, &mut came);
                let bytes = (permit.zip(way.as_mut())).and_then(|(_permit, way)| fetch(way));
                let bytes = bytes.unwrap_or(0);
                Some(Found::Opened {
                    key: place.key(),
                    bytes,
                    cold: bytes > 0 || came.asked || blocks_read() != before,
                    took_us: (began.elapsed() + came.after).as_secs_f64() * 1e6,
                })
            }
            Call::List { listing, device } => match listing {
                Listing::Whole { path, inodes } => {
                    self.list(owner, path.clone(), *inodes, permit, device.is_some());
                    None
                }
                Listing::Part {
                    path,
                    key,
                    positions,
                } => {
                    let before = blocks_read();
                    let entries = permit.and_then(|_permit| {
                        list_part(path, *key, positions.clone(), self.server.as_ref())
                    });
                    Some(Found::PartListed {
                        key: *key,
                        entries: entries.unwrap_or_default(),
                        cold: blocks_read() != before,
                    })
                }
            },
            Call::Stat(names) => {
                if permit.is_some() {
                    self.look_up(owner, names);
                }
                None
            }
            Call::Errand(errand) => {
                let bench = Bench {
                    desk: self,
                    owner,
                    thread,
                    way: way.map(RefCell::new),
                    permit,
                };
                errand.go(&bench);
                None
            }
        }
    }

    /// Lists a directory; what can't be listed is passed over. One whose own directory is `known` must be no mount point; otherwise the program is below it.
    fn list(
        &self,
        owner: usize,
        path: PathBuf,
        inodes: bool,
        permit: Option<Permit<'_>>,
        known: bool,
    ) {
        let before = blocks_read();
        let listed = permit
            .as_ref()
            .and_then(|_| list(&path, known.then_some(&path), self.server.as_ref()));
        let cold = blocks_read() != before;
        let Some((dir, found)) = listed else {
            let dir = Directory::new(path, InodeKey::default(), (0, 0), Vec::new());
            return self.client.done(owner, vec![Found::Listed { dir, cold }]);
        };
        let first = dir.one_of_each_block().take(Names::MOST);
        let names: Vec<OsString> = first.filter(|_| inodes).cloned().collect();
        self.client.done(owner, vec![Found::Listed { dir, cold }]);
        self.look_up_in(owner, &found, &names);
    }

    /// Has the inodes of entries read, if the directory still is the one that was listed.
    fn look_up(&self, owner: usize, names: &Names) {
        if let Some(dir) = open_listed(&names.path, names.key, self.server.as_ref()) {
            self.look_up_in(owner, &dir, &names.names);
        }
    }

    /// Whoever takes one of the names away meanwhile sees that it is held.
    fn look_up_in(&self, owner: usize, dir: &OwnedFd, names: &[OsString]) {
        for name in names {
            let Some(_note) = self.client.note(owner, name) else {
                break;
            };
            let _ = find(dir, name.as_os_str());
        }
    }

    /// Brings a small file into the cache. Bytes that were not there, as far as is known; `None`: it was not opened.
    fn open(
        &self,
        owner: usize,
        opening: &Opening<'_>,
        way: &mut Way,
        thread: &Thread,
        near: &mut Near,
        came: &mut Came,
    ) -> Option<u64> {
        let client = &self.client;
        let life = client.life(owner);
        let note = client.note(owner, opening.place.name())?;
        let (found, waited) = self.lately.finds(|| self.find(owner, opening.place, near));
        let (found, len) = found?;
        if let Some(server) = &self.server {
            came.asked = waited;
            server.try_again(|| drop(self.find(owner, opening.place, &mut Near::default())));
        }
        if len == 0 || len >= opening.most {
            return Some(0);
        }
        let left = &mut thread.left.borrow_mut();
        // What was found is held while there is no room: who takes its name away waits for that.
        let unwanted = || client.is_held_back() || !client.may_hold(owner, life);
        if !way.grow(len.saturating_sub(LISTED), left, unwanted) {
            return None;
        }
        let file = self.open_found(&found)?;
        drop(found);
        let file = Arc::new(file);
        file.attach(Box::new(note));
        lock(&self.held).push((owner, Arc::downgrade(&file)));
        let _held = Held(self, &file);
        if !client.may_hold(owner, life) {
            return None;
        }
        let cached = file.counted(0..len).ok().map(|s| s.cached);
        let missing = cached.map(|cached| units::pages_of(len).saturating_sub(cached) * PAGE);
        if missing == Some(0) {
            return Some(0);
        }
        let read = thread.fetch(&file, 0..len).ok()?;
        came.after = self.settle(&file, len - 1, opening.patience, way, left);
        Some(missing.unwrap_or(read).min(len))
    }

    /// What was asked for, up to a byte of a file, is waited for, or left. After how long it will have come; then it is told, until its end is there it is not.
    fn settle(
        &self,
        file: &Handle,
        at: u64,
        patience: Patience,
        way: &mut Way,
        left: &mut Left,
    ) -> Duration {
        let leaves = patience.leaves();
        let after = leaves.and_then(|few| Some((self.lately.comes_after()?, few)));
        match after {
            Some((after, few)) if way.leave(left, after, few) => after,
            _ => {
                self.wait(file, at, left);
                Duration::ZERO
            }
        }
    }

    /// Waits for a byte of a file, with which all is there that was asked for before.
    fn wait(&self, file: &Handle, at: u64, left: &mut Left) {
        // Our waiting is no reason to keep it longer.
        let _ = rustix::fs::fadvise(file.fd(), 0, None, Advice::NoReuse);
        self.lately.wait(file, at, self.engine.notes());
        left.arrived();
    }

    /// Opens what was found.
    fn open_found(&self, found: &OwnedFd) -> Option<Handle> {
        if self.server.is_none() {
            return Some(Handle::held(open_quietly(found, OFlags::empty()).ok()?));
        }
        // What statvfs(2) says of times of access a server would be asked for.
        let fd = reopen(found.as_fd(), OFlags::NOATIME).ok()?;
        let visible = residency_is_visible(fd.as_fd());
        // Whoever has it let go of does not close it: closing asks the server, too.
        let left = self.left.clone();
        let closer = move |remains| lock(&left).push(remains);
        Some(Handle::remote(fd, true, visible, Arc::new(closer)))
    }

    /// The file that an entry leads to, if it is the one that was listed and may be opened, and its length.
    fn find(&self, owner: usize, place: &Place, near: &mut Near) -> Option<(OwnedFd, u64)> {
        let (dir, server) = (place.dir.path.file_name(), self.server.as_ref());
        let note = || self.client.note(owner, dir.unwrap_or_default());
        let parent = near.open(&place.dir, server, note)?;
        let found = find(parent, place.name()).ok()?;
        let st = raw::status(found.as_raw_fd()).ok()?;
        let key = InodeKey::new(st.st_dev, st.st_ino);
        let regular = FileType::from_raw_mode(st.st_mode) == FileType::RegularFile;
        let fit = regular && key == place.key() && !self.client.is_untouchable(key);
        fit.then_some((found, st.st_size as u64))
    }
}

/// A small file that is to be brought.
struct Opening<'a> {
    place: &'a Place,
    /// Of one that has as many bytes or more only the inode is read.
    most: u64,
    patience: Patience,
}

/// What it took to bring one.
#[derive(Default)]
struct Came {
    /// A server was asked for its name.
    asked: bool,
    /// It will have come after so long, if it was not waited for.
    after: Duration,
}

/// The directory in which something was found last, open until one of the calls that are made together has waited, or they are over; and what ends with our hold on it.
#[derive(Default)]
struct Near(Option<(Arc<Directory>, OwnedFd, Box<dyn Send>)>);

impl Near {
    fn is_open(&self) -> bool {
        self.0.is_some()
    }

    fn open(
        &mut self,
        dir: &Arc<Directory>,
        server: Option<&Server>,
        note: impl FnOnce() -> Option<Box<dyn Send>>,
    ) -> Option<&OwnedFd> {
        if !matches!(&self.0, Some((of, ..)) if Arc::ptr_eq(of, dir)) {
            self.0 = None;
            let note = note()?;
            let found = open_listed(&dir.path, dir.key, server)?;
            self.0 = Some((dir.clone(), found, note));
        }
        self.0.as_ref().map(|(_, fd, _)| fd)
    }
}

/// How long it took of late until what was asked for was there, and whether names were found without it. Who waits looks again and again, each of which is a system
/// call and two switches of the thread.
#[derive(Default)]
pub(super) struct Lately {
    /// Names that were found in succession without waiting.
    found: AtomicU32,
    /// The shortest of the last few, and the last, µs.
    shortest: AtomicU64,
    last: AtomicU64,
    /// How often somebody waited, or would have.
    times: AtomicU32,
}

impl Lately {
    /// So many in succession show how it is.
    pub(super) const EACH: u32 = 16;

    /// Finds something by its name; and whether that waited.
    pub(super) fn finds<T>(&self, find: impl FnOnce() -> T) -> (T, bool) {
        let before = waits();
        let found = find();
        let waited = waits() != before;
        match waited {
            true => self.found.store(0, Relaxed),
            false => _ = self.found.fetch_add(1, Relaxed),
        }
        (found, waited)
    }

    /// Whether names are found without waiting, as far as is known.
    pub(super) fn finds_at_once(&self) -> bool {
        self.found.load(Relaxed) >= Lately::EACH
    }

    /// After how long what was asked for now will be there, if nobody need wait for it: one of so many is waited for, and the first so many all are. What takes longer
    /// than half a seek is, too: whether a device has a head shows by that.
    fn comes_after(&self) -> Option<Duration> {
        let times = self.times.fetch_add(1, Relaxed);
        let last = Duration::from_micros(self.last.load(Relaxed));
        let known =
            times >= Lately::EACH && !times.is_multiple_of(Lately::EACH) && last < HALF_SEEK;
        known.then_some(last)
    }

    /// Sleeps until the page of a file that holds byte `at` is up to date, or the file is let go of. Nobody looks before three quarters of that time have passed: what
    /// comes sooner then is seen to, and shortens it.
    fn wait(&self, file: &Handle, at: u64, notes: &Notes) {
        /// A longer time grows by an eighth at a wait, which is how exactly it is seen.
        const GROWS: u64 = 8;
        let (lately, began) = (self.shortest.load(Relaxed), Instant::now());
        file.wait_watched(at, Duration::from_micros(lately / 4 * 3), notes);
        let most = lately + lately / GROWS + SHORTEST_STEP.as_micros() as u64;
        let took = began.elapsed().as_micros() as u64;
        self.shortest.store(took.min(most), Relaxed);
        self.last.store(took, Relaxed);
    }
}

/// How a thread waits for what it has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until it is there.
    Wait,
    /// Not at all, most of the time, where answers come soon and nobody else is known to read.
    Leave,
    /// The same of a few at a time, and once it is known that nobody does: who goes through a tree does for long, and whoever begins to read from the device meanwhile waits
    /// for what is on its way until he is known.
    LeaveFew,
    /// Until it is there, in a sweep over a disk that has a head, with no bound on what is in flight: what lies in its queue it sorts, and with less there the head moves
    /// half as often again, and nobody reads sooner (see `Engine::share`).
    Sweep,
}

impl Bench<'_> {
    /// Whether something may be looked up now.
    pub fn permits(&self) -> bool {
        self.permit.is_some() && self.way.is_some() && !self.desk.client.is_held_back()
    }

    /// Finds something by its name.
    pub fn find<T>(&self, find: impl FnOnce() -> T) -> T {
        self.desk.lately.finds(find).0
    }

    /// Has ranges of a file fetched that `open` opens, page-aligned and ascending, and waits for the end of the last as told. Bytes that were asked for; `None` where
    /// it may not be open. What has no room beside what others have on their way is asked for step by step, each once the one before is there: else it would
    /// wait until nothing is.
    pub fn bring(
        &self,
        open: impl FnOnce() -> Option<OwnedFd>,
        ranges: &[ByteRange],
        patience: Patience,
    ) -> Option<u64> {
        let (desk, client) = (self.desk, &self.desk.client);
        let life = client.life(self.owner);
        let note = client.note(self.owner, OsStr::new(""))?;
        let mut way = self.way.as_ref()?.borrow_mut();
        if !self.permits() {
            return None;
        }
        let file = Arc::new(Handle::held(open()?));
        file.attach(Box::new(note));
        lock(&desk.held).push((self.owner, Arc::downgrade(&file)));
        let _held = Held(desk, &file);
        if !client.may_hold(self.owner, life) {
            return None;
        }
        let mut asked: Option<u64> = None;
        let mut bytes = 0;
        for step in ranges.iter().flat_map(|r| units::pieces(r.clone(), STEP)) {
            let len = step.end - step.start;
            if patience != Patience::Sweep && !way.try_grow(len) {
                let left = &mut self.thread.left.borrow_mut();
                if let Some(last) = asked {
                    desk.wait(&file, last, left);
                }
                way.arrived();
                let unwanted = || client.is_held_back() || file.is_gone();
                if !way.grow(len, left, unwanted) || !self.permits() {
                    return Some(bytes);
                }
            }
            self.thread.fetch(&file, step.clone()).ok()?;
            bytes += len;
            asked = Some(step.end - 1);
        }
        if let Some(last) = asked {
            let left = &mut self.thread.left.borrow_mut();
            desk.settle(&file, last, patience, &mut way, left);
        }
        Some(bytes)
    }
}

/// A file that is open, until this is dropped.
struct Held<'a>(&'a Desk, &'a Arc<Handle>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let this = Arc::as_ptr(self.1);
        lock(&self.0.held).retain(|(_, held)| !std::ptr::eq(held.as_ptr(), this));
    }
}

impl Names {
    /// Names that one call has at most.
    pub const MOST: usize = LOOKED_UP;
}

fn directory() -> OFlags {
    OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Finds an entry of a directory, and never anything that is mounted on it or that it leads to.
fn find(dir: &OwnedFd, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    openat2(dir, name, flags, resolve)
}

/// Opens for reading what was found, without changing its time of access.
fn open_quietly(found: &OwnedFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    reopen(found.as_fd(), flags | OFlags::NOATIME).or_else(|e| {
        if leaves_access_time(found.as_fd()) {
            reopen(found.as_fd(), flags)
        } else {
            Err(e)
        }
    })
}

/// A file's time of modification, s and ns.
fn modified(st: &libc::stat) -> (i64, u64) {
    (st.st_mtime, st.st_mtime_nsec as u64)
}

/// The time of modification of a directory now. A server is not asked for it, unless its own for the name.
pub fn modified_at(path: &Path, server: Option<&Server>) -> Option<(i64, u64)> {
    find_directory(path, server).map(|(_, st)| modified(&st))
}

/// A directory by its name, without any right, and what is known of it. Only the `server` whose file system is gone through is asked, on threads that may wait for it.
pub fn find_directory(path: &Path, server: Option<&Server>) -> Option<(OwnedFd, libc::stat)> {
    if server.is_some() {
        let found = rustix::fs::openat(CWD, path, directory(), Mode::empty()).ok()?;
        let st = raw::status(found.as_raw_fd()).ok()?;
        return Some((found, st));
    }
    let (found, st) = fetch::find(path)?;
    let is_one = FileType::from_raw_mode(st.st_mode) == FileType::Directory;
    is_one.then(|| (found.into(), st))
}

/// Lists a directory, of another that is known if it is `within` one; and what finds entries in it.
pub(super) fn list(
    path: &Path,
    within: Option<&Path>,
    server: Option<&Server>,
) -> Option<(Directory, OwnedFd)> {
    let (found, st) = match within.and_then(|p| Some((p.parent()?, p.file_name()?))) {
        Some((parent, name)) => {
            let (parent, _) = find_directory(parent, server)?;
            let found = find(&parent, name).ok()?;
            let st = raw::status(found.as_raw_fd()).ok()?;
            (found, st)
        }
        None => find_directory(path, server)?,
    };
    let opened = match server {
        Some(server) => {
            if st.st_dev != server.device.0 {
                return None;
            }
            reopen(found.as_fd(), OFlags::DIRECTORY | OFlags::NOATIME).ok()?
        }
        None => {
            if !lies_on_disk(found.as_fd(), st.st_dev) {
                return None;
            }
            open_quietly(&found, OFlags::DIRECTORY).ok()?
        }
    };
    let mut room = vec![0; AT_ONCE];
    let mut listing = listing::Listing::new(opened.as_raw_fd(), &mut room);
    let mut entries = Vec::new();
    while let Some(record) = listing.next_record().ok()? {
        if entries.len() >= ENTRIES {
            return None;
        }
        if record.kind != Kind::Other {
            entries.push(Entry {
                name: OsStr::from_bytes(record.name.to_bytes()).to_owned(),
                ino: record.ino,
                directory: record.kind == Kind::Directory,
            });
        }
    }
    let key = InodeKey::new(st.st_dev, st.st_ino);
    let dir = Directory::new(path.to_owned(), key, modified(&st), entries);
    Some((dir, found))
}

/// Goes through what is at some positions of a directory, and one entry behind them if nothing is there. Entries of inodes that are not read ahead together,
/// with their inodes.
fn list_part(
    path: &Path,
    key: InodeKey,
    positions: Range<u64>,
    server: Option<&Server>,
) -> Option<Vec<(u64, OsString)>> {
    let found = open_listed(path, key, server)?;
    let opened = open_quietly(&found, OFlags::DIRECTORY).ok()?;
    rustix::fs::seek(&opened, SeekFrom::Start(positions.start)).ok()?;
    // Little is read beyond the end: a third of the names that ext4 has in a block.
    let mut room = [0; 1024];
    let mut listing = listing::Listing::new(opened.as_raw_fd(), &mut room);
    let (mut known, mut entries) = (HashSet::new(), Vec::new());
    let mut at = positions.start;
    while at < positions.end
        && let Some(record) = listing.next_record().ok()?
    {
        at = record.next as u64;
        if known.insert(inode_block::read_ahead(record.ino)) {
            let name = OsStr::from_bytes(record.name.to_bytes());
            entries.push((record.ino, name.to_owned()));
        }
    }
    Some(entries)
}

/// Opens a directory to find something in it, if it still is the one that was listed.
fn open_listed(path: &Path, key: InodeKey, server: Option<&Server>) -> Option<OwnedFd> {
    let (dir, st) = find_directory(path, server)?;
    (InodeKey::new(st.st_dev, st.st_ino) == key).then_some(dir)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{inode_block, list, list_part};

    /// Positions in a listing end here.
    const END: u64 = 1 << 63;

    /// However many parts a directory is listed in, together they have one entry at least of all inodes in its listing that are read ahead together, and
    /// none that isn't in it.
    #[test]
    fn parts_make_up_a_listing() {
        let dir = std::env::temp_dir().join(format!("outrider-parts-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        for i in 0..6000 {
            std::fs::write(dir.join(format!("{:x}", i * 7919)), "").unwrap();
        }
        let listed = list(&dir, None, None);
        // Nothing is listed that doesn't lie on a disk.
        if let Some((whole, _)) = listed {
            let entries: BTreeSet<_> = whole.entries.iter().map(|e| (e.ino, &e.name)).collect();
            assert_eq!(entries.len(), 6000);
            let of = |inodes: &mut dyn Iterator<Item = u64>| -> BTreeSet<u64> {
                inodes.map(inode_block::read_ahead).collect()
            };
            let expected = of(&mut whole.entries.iter().map(|e| e.ino));
            for parts in [1u64, 16, 512] {
                let mut found = Vec::new();
                for part in 0..parts {
                    let positions = END / parts * part..END / parts * (part + 1);
                    found.extend(list_part(&dir, whole.key, positions, None).unwrap());
                }
                assert!(found.iter().all(|(i, n)| entries.contains(&(*i, n))));
                assert_eq!(of(&mut found.iter().map(|(i, _)| *i)), expected, "{parts}");
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
