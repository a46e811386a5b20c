//! The directories that a thread lists, for plug-ins that foresee the calls on their entries.
//!
//! Programs list a directory first and then name its entries, mostly by a duplicate of the stream's descriptor that stays open longer
//! (fts in du, rm, chmod …). So a listing is kept for as long as one of the directory's descriptors is open, and its scope is bound to them.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use libc::DIR;
use outrider_graph::{Call, Kind, StandBy};
use outrider_sys::mapped::{Mapped, Row, map, unmap};
use outrider_sys::raw::syscall6;

use super::plugins::{self, Event};
use super::scopes::{self, CScope};
use super::structures::{Directory, Entry, Plugin};
use crate::local::initial_exec;

/// Descriptors of a directory that are known.
const MOST_FDS: usize = 4;
/// Directories that a thread lists at the same time; further ones are not followed.
const MOST_LISTINGS: usize = 64;
/// Duplicates that are remembered until the directory is listed.
const MOST_DUPLICATES: usize = 8;
/// First size of the memory for entries and for names, bytes.
const FIRST: usize = 64 << 10;

/// Memory that grows, from the kernel: readdir(3) may be called where the program's allocator can't be.
struct Room {
    at: *mut u8,
    size: usize,
    used: usize,
}

impl Room {
    const fn new() -> Room {
        Room {
            at: null_mut(),
            size: 0,
            used: 0,
        }
    }

    /// Makes room for `n` more bytes; how far the memory has moved, or `None` if there is none.
    fn reserve(&mut self, n: usize) -> Option<isize> {
        if self.used + n <= self.size {
            return Some(0);
        }
        let size = (self.size * 2).max(FIRST);
        if self.at.is_null() {
            self.at = map(size)?;
            self.size = size;
            return Some(0);
        }
        let old = self.at as usize;
        // SAFETY: our own memory, moved to where the kernel likes.
        let r = unsafe {
            syscall6(
                libc::SYS_mremap,
                old,
                self.size,
                size,
                libc::MREMAP_MAYMOVE as usize,
                0,
                0,
            )
        };
        if (-4095..=0).contains(&r) {
            return None;
        }
        self.at = r as *mut u8;
        self.size = size;
        Some(r - old as isize)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.at.is_null() {
            unmap(self.at, self.size);
        }
    }
}

struct Listing {
    /// Null once it is closed.
    stream: *mut DIR,
    /// Open descriptors of the directory.
    fds: [c_int; MOST_FDS],
    fd_count: usize,
    entries: Room,
    names: Room,
    /// Entries that were arranged.
    arranged: usize,
    /// What the plug-in's stub sees: the entries from the one on that was named first since looking ahead began.
    directory: Directory,
    /// Entries before those.
    passed: usize,
    /// The program names what is not in the listing.
    lost: bool,
    scope: *mut CScope,
    /// What its scope needs beyond system calls; kept, since a handler may be the first that names an entry.
    stand_by: Option<StandBy>,
}

impl Listing {
    const fn new() -> Listing {
        Listing {
            stream: null_mut(),
            fds: [-1; MOST_FDS],
            fd_count: 0,
            entries: Room::new(),
            names: Room::new(),
            arranged: 0,
            directory: Directory {
                fd: -1,
                complete: 0,
                count: 0,
                entries: null_mut(),
            },
            passed: 0,
            lost: false,
            scope: null_mut(),
            stand_by: None,
        }
    }

    fn owns(&self, fd: c_int) -> bool {
        self.fds[..self.fd_count].contains(&fd)
    }

    fn add_fd(&mut self, fd: c_int) {
        if !self.owns(fd)
            && let Some(free) = self.fds.get_mut(self.fd_count)
        {
            *free = fd;
            self.fd_count += 1;
            if !self.scope.is_null() {
                // SAFETY: this listing's own scope, of this thread.
                unsafe { scopes::bind(self.scope, fd) };
            }
        }
    }

    /// Adds an entry; `false` if there is no memory.
    fn add(&mut self, name: &[u8], inode: u64, kind: u32) -> bool {
        let Some(moved) = self.names.reserve(name.len()) else {
            return false;
        };
        if moved != 0 {
            for i in 0..self.count() {
                // SAFETY: `count` entries are there, whose names have moved with their memory.
                unsafe {
                    let e = self.entries.at.cast::<Entry>().add(i);
                    (*e).name = (*e).name.wrapping_byte_offset(moved);
                }
            }
        }
        if self.entries.reserve(size_of::<Entry>()).is_none() {
            return false;
        }
        // SAFETY: room for both was made.
        unsafe {
            self.directory.entries = self.entries.at.cast::<Entry>().add(self.passed);
            let to = self.names.at.add(self.names.used);
            core::ptr::copy_nonoverlapping(name.as_ptr(), to, name.len());
            *self.directory.entries.add(self.directory.count) = Entry {
                name: to.cast(),
                inode,
                kind,
            };
        }
        self.names.used += name.len();
        self.entries.used += size_of::<Entry>();
        self.directory.count += 1;
        true
    }

    /// Entries, also those that have been passed.
    fn count(&self) -> usize {
        self.passed + self.directory.count
    }

    /// Has what the stub sees begin with the entry of this name; `false` if there is none that was not passed.
    fn begin_with(&mut self, name: *const c_char) -> bool {
        // SAFETY: the call's C string, and entries of ours with theirs.
        unsafe {
            let name = core::ffi::CStr::from_ptr(name);
            let d = &mut self.directory;
            let entries = core::slice::from_raw_parts(d.entries, d.count);
            let at = entries
                .iter()
                .position(|e| core::ffi::CStr::from_ptr(e.name) == name);
            let Some(at) = at else { return false };
            d.entries = d.entries.add(at);
            d.count -= at;
            self.passed += at;
        }
        true
    }

    fn end_scope(&mut self) {
        let scope = core::mem::replace(&mut self.scope, null_mut());
        // SAFETY: entered by `calling`, and given up.
        unsafe { scopes::leave(scope) };
    }

    /// Forgets the entries: the program lists anew.
    fn clear(&mut self) {
        self.end_scope();
        self.names.used = 0;
        self.entries.used = 0;
        self.arranged = 0;
        self.passed = 0;
        self.lost = false;
        self.directory.count = 0;
        self.directory.complete = 0;
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.end_scope();
    }
}

/// What a thread knows of its listings.
#[repr(C)]
struct OfThread {
    /// Made with the record of its scopes; null until then.
    all: *mut Listings,
    /// It is reading directories whose entries are followed.
    reads: bool,
}

initial_exec! {
    /// The calling thread's.
    fn of_thread() -> *mut OfThread = "outrider_listings", 16 bytes
}

/// The calling thread's listings, if it has a record of scopes; else null.
#[inline(always)]
pub fn own() -> *mut Listings {
    // SAFETY: the calling thread's own words.
    unsafe { (*of_thread()).all }
}

/// Whether the calling thread is reading a directory whose entries are followed.
#[inline(always)]
pub fn is_read() -> bool {
    // SAFETY: as above.
    unsafe { (*of_thread()).reads }
}

/// From now on these are the calling thread's.
pub fn begin(listings: Mapped<Listings>) {
    // SAFETY: as above.
    unsafe { (*of_thread()).all = listings.into_raw() };
}

/// The calling thread has none any more.
///
/// # Safety
/// Nobody uses what [`own`] has given.
pub unsafe fn end() {
    // SAFETY: as promised, and from [`begin`].
    unsafe {
        let all = core::mem::replace(&mut (*of_thread()).all, null_mut());
        drop(Mapped::from_raw(all));
    }
}

/// A thread's; in memory of its own, since what happens there enters and leaves scopes.
pub struct Listings {
    /// Each at a place of its own: stubs are given the address of a directory.
    open: Row<Mapped<Listing>>,
    /// The one that was closed last, for the next: mapping and unmapping it, and touching it anew, took a twentieth of a walk through 400 cold
    /// directories, since the kernel stops the listers' processors for that.
    spare: Option<Mapped<Listing>>,
    duplicates: [(c_int, c_int); MOST_DUPLICATES],
    next_duplicate: usize,
    /// A bit for each descriptor that is known, and for those whose numbers have the same remainder.
    known: u64,
    /// Some of them have scopes.
    scopes: bool,
}

impl Listings {
    /// None yet; `None` where there is no memory.
    pub fn new() -> Option<Mapped<Listings>> {
        Mapped::new(Listings {
            open: Row::new(MOST_LISTINGS)?,
            spare: None,
            duplicates: [(-1, -1); MOST_DUPLICATES],
            next_duplicate: 0,
            known: 0,
            scopes: false,
        })
    }

    /// The program makes a call: if it is the first that names an entry of a listed directory, the directory's scope begins.
    pub fn calling(&mut self, call: &Call) {
        if call.args.kind == Kind::Close {
            return self.close(call.args.fd);
        }
        self.rest_if_due();
        let fd = call.args.fd;
        if self.open.is_empty() || !call.args.kind.takes_path() || !self.know(fd) {
            return;
        }
        let Some((plugin, graph)) = plugins::lister() else {
            return;
        };
        if graph.0.rests() {
            return;
        }
        let Some(l) = self.open.iter_mut().rev().find(|l| l.owns(fd)) else {
            return;
        };
        if l.count() != l.arranged {
            arrange(plugin, l);
        }
        if l.scope.is_null() && !l.lost {
            if l.directory.count == 0 || !l.begin_with(call.path) {
                l.lost = true;
                return;
            }
            l.directory.fd = fd;
            let context: *mut c_void = (&raw mut l.directory).cast();
            l.scope = scopes::enter_quietly(&graph.0, context);
            self.scopes = true;
            for fd in &l.fds[..l.fd_count] {
                // SAFETY: just entered.
                unsafe { scopes::bind(l.scope, *fd) };
            }
            // SAFETY: as above.
            unsafe { scopes::walk(l.scope, fd) };
        }
    }

    /// While looking ahead rests, scopes end that have nothing under way; what they had may have been worth so much that it goes on. The
    /// listings are kept.
    #[inline]
    pub fn rest_if_due(&mut self) {
        if self.scopes && plugins::lister().is_some_and(|(_, graph)| graph.0.rests()) {
            self.rest();
        }
    }

    fn rest(&mut self) {
        self.scopes = false;
        for l in self.open.iter_mut() {
            // SAFETY: this listing's own scope, of this thread.
            if unsafe { scopes::is_idle(l.scope) } {
                l.end_scope();
            } else {
                self.scopes = true;
            }
        }
    }

    /// Whether a call changes what is known here.
    pub fn are_concerned(&self, call: &Call) -> bool {
        call.args.kind == Kind::Close && self.know(call.args.fd)
    }

    /// A glance: `false` if a descriptor is not known.
    #[inline(always)]
    pub fn may_know(&self, fd: c_int) -> bool {
        self.known >> (fd as u32 % u64::BITS) & 1 != 0
    }

    /// Has the glances see what is known now.
    fn index(&mut self) {
        // SAFETY: the calling thread's own words.
        unsafe { (*of_thread()).reads = self.open.iter().any(|l| !l.stream.is_null()) };
        let fds = self.open.iter().flat_map(|l| &l.fds[..l.fd_count]).copied();
        let pairs = self.duplicates.iter().flat_map(|(fd, copy)| [*fd, *copy]);
        let bit = |fd: c_int| 1 << (fd as u32 % u64::BITS);
        self.known = fds
            .chain(pairs.filter(|fd| *fd >= 0))
            .fold(0, |known, fd| known | bit(fd));
    }

    fn know(&self, fd: c_int) -> bool {
        if !self.may_know(fd) {
            return false;
        }
        let of = |pair: &(c_int, c_int)| pair.0 == fd || pair.1 == fd;
        self.open.iter().any(|l| l.owns(fd)) || fd >= 0 && self.duplicates.iter().any(of)
    }

    /// Whether an event is about something that is known here.
    pub fn have(&self, event: Event) -> bool {
        match event {
            Event::Duplicated(fd, copy) => self.know(fd) || self.know(copy),
            Event::Listing(_, fd) => self.know(fd),
            Event::Entry(stream, _) | Event::Closing(stream, _) | Event::Rewound(stream, _) => {
                self.open.iter().any(|l| l.stream == stream)
            }
        }
    }

    /// A descriptor is about to be closed.
    fn close(&mut self, fd: c_int) {
        if !self.know(fd) {
            return;
        }
        for pair in &mut self.duplicates {
            if pair.0 == fd || pair.1 == fd {
                *pair = (-1, -1);
            }
        }
        let Some(at) = self.open.iter().position(|l| l.owns(fd)) else {
            return self.index();
        };
        let l = &mut *self.open[at];
        if let Some(i) = l.fds[..l.fd_count].iter().position(|f| *f == fd) {
            l.fd_count -= 1;
            l.fds.swap(i, l.fd_count);
        }
        if l.fd_count == 0 {
            self.forget(at);
        }
        self.index();
    }

    /// The directory is not listed any more.
    fn forget(&mut self, at: usize) {
        let Some(mut l) = self.open.swap_remove(at) else {
            return;
        };
        l.clear();
        l.stand_by = None;
        if l.names.size <= FIRST && l.entries.size <= FIRST {
            self.spare = Some(l);
        }
    }

    /// Descriptors `first..=last` are about to be closed.
    pub fn closing_range(&mut self, first: u32, last: u32) {
        let closes = |fd: &c_int| (first..=last).contains(&(*fd as u32));
        while let Some(at) = self
            .open
            .iter()
            .position(|l| l.fds[..l.fd_count].iter().any(closes))
        {
            self.forget(at);
        }
        self.index();
    }

    fn find(&mut self, stream: *mut DIR) -> Option<&mut Mapped<Listing>> {
        self.open.iter_mut().find(|l| l.stream == stream)
    }

    fn begin(&mut self, stream: *mut DIR, fd: c_int) {
        // The number is another directory's now.
        if let Some(at) = self.open.iter().position(|l| l.owns(fd)) {
            self.forget(at);
        }
        if self.open.len() == MOST_LISTINGS {
            return;
        }
        let stand_by = plugins::lister().and_then(|(_, graph)| graph.0.stand_by());
        let new = self.spare.take().or_else(|| Mapped::new(Listing::new()));
        let Some(mut l) = new else { return };
        (l.stream, l.fd_count, l.directory.fd) = (stream, 0, fd);
        l.stand_by = stand_by;
        l.add_fd(fd);
        for (from, to) in self.duplicates {
            if from == fd {
                l.add_fd(to);
            } else if to == fd {
                l.add_fd(from);
            }
        }
        self.open.push(l);
    }

    /// What became of a stream or a descriptor.
    pub fn heard(&mut self, event: Event) {
        match event {
            Event::Duplicated(fd, copy) => {
                self.close(copy);
                self.duplicates[self.next_duplicate % MOST_DUPLICATES] = (fd, copy);
                self.next_duplicate += 1;
                if let Some(l) = self.open.iter_mut().find(|l| l.owns(fd)) {
                    l.add_fd(copy);
                }
                self.index();
            }
            Event::Listing(stream, fd) => {
                self.begin(stream, fd);
                self.index();
            }
            Event::Entry(stream, entry) => {
                let Some(l) = self.find(stream) else { return };
                if entry.is_null() {
                    l.directory.complete = 1;
                    return;
                }
                // SAFETY: the C library's entry, whose name ends with a zero byte.
                let (name, inode, kind) = unsafe {
                    let name = core::ffi::CStr::from_ptr((&raw const (*entry).d_name).cast());
                    let kind = u32::from((*entry).d_type);
                    (name.to_bytes_with_nul(), (*entry).d_ino, kind)
                };
                if name != b".\0" && name != b"..\0" && !l.add(name, inode, kind) {
                    // No memory: the directory is not followed any further.
                    l.clear();
                    l.stream = null_mut();
                }
            }
            Event::Closing(stream, _) => {
                // Its descriptor is told of by itself.
                if let Some(l) = self.find(stream) {
                    l.stream = null_mut();
                }
                self.index();
            }
            Event::Rewound(stream, _) => {
                if let Some(l) = self.find(stream) {
                    l.clear();
                }
            }
        }
    }
}

fn arrange(plugin: &Plugin, l: &mut Listing) {
    if let Some(arrange) = plugin.arrange {
        // SAFETY: the plug-in's function, on entries of ours.
        unsafe { arrange(&raw mut l.directory, l.arranged.saturating_sub(l.passed)) };
    }
    l.arranged = l.count();
}
