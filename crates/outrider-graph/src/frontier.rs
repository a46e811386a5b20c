//! The directories that a walk comes to next, in its order.
//!
//! A program that walks a tree enters a subdirectory, and all that is below it, before the next one. So what is found in a directory that is listed
//! ahead takes that directory's place in a list, and listers take what is nearest to the program. Of a directory with many subdirectories
//! [`PIECE`] are in the list, and behind them its rest, which is listed on when its turn comes.
//!
//! How far ahead is counted in entries: twice as far when a listing waited for a device, less far when it didn't.

use std::ffi::CStr;

use crate::memory::Row;
use crate::worth;

/// Subdirectories that are taken from a listing at once.
pub const PIECE: usize = 32;
/// Bytes of a name, with the zero byte at its end.
pub const NAME: usize = 256;
/// Directories in the list: 31 levels of more subdirectories than a piece.
const ROOM: usize = 1024;
/// Directories that are held open, because some in the list are named from there.
const HELD: usize = 256;
/// What a directory counts at least, in entries, and until it was listed.
const LEAST: usize = 16;
/// Entries ahead at first …
const FIRST: usize = 4 * LEAST;
/// … and at most. The kernel keeps 1 to 2 KiB for each.
const MOST: usize = 8192;
/// The list begins and ends here.
const END: u16 = 0;

/// What a directory counts that has so many entries.
pub fn weight(entries: usize) -> usize {
    entries.max(LEAST)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the list, for a lister.
    Waiting,
    /// In the list; a lister has it.
    Taken,
    /// A lister has it, and the program is past it.
    Passed,
}

/// A directory, or the rest of one.
struct Slot {
    next: u16,
    previous: u16,
    state: State,
    /// The directory in which `name` is found, or which is listed on.
    held: u16,
    /// 0 for a rest.
    inode: u64,
    /// Where a rest begins, as getdents64(2) has it.
    from: i64,
    /// Empty for a rest.
    name: [u8; NAME],
}

/// A directory that the listers hold open.
#[derive(Clone, Copy)]
struct Held {
    fd: i32,
    /// Slots that need it, and whoever is putting some in; 0: there is none here.
    users: u16,
}

/// What a lister is to list.
pub struct Taken {
    slot: u16,
    /// The directory in which `name` is found, or which is to be listed on.
    pub fd: i32,
    /// Where that begins.
    pub from: i64,
    /// Ends with a zero byte; empty: `fd` is to be listed on.
    pub name: [u8; NAME],
}

/// What a lister has found.
pub struct Found {
    /// Entries besides `.` and `..`.
    pub entries: usize,
    /// Where the listing goes on behind the subdirectories, if there are more.
    pub rest: Option<i64>,
    count: usize,
    subdirectories: [(u64, [u8; NAME]); PIECE],
}

impl Found {
    /// Nothing.
    pub const fn new() -> Found {
        Found {
            entries: 0,
            rest: None,
            count: 0,
            subdirectories: [(0, [0; NAME]); PIECE],
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        (self.entries, self.rest, self.count) = (0, None, 0);
    }

    /// Adds a subdirectory; `false` if there is no room.
    pub fn add(&mut self, inode: u64, name: &CStr) -> bool {
        let Some(free) = self.subdirectories.get_mut(self.count) else {
            return false;
        };
        let name = name.to_bytes_with_nul();
        // No file system that is mounted here has longer ones.
        if let Some(to) = free.1.get_mut(..name.len()) {
            to.copy_from_slice(name);
            free.0 = inode;
            self.count += 1;
        }
        true
    }
}

/// The list.
pub struct Frontier {
    /// The first one is the list's end.
    slots: Row<Slot>,
    free: Row<u16>,
    held: [Held; HELD],
    /// To be closed by a lister.
    orphans: Row<i32>,
    /// Inodes of the directories that were listed last.
    listed: [u64; MOST / LEAST],
    newest: usize,
    device: u64,
    /// The walk's number.
    walk: usize,
    /// Entries that were listed and the program has not read.
    ahead: usize,
    /// As many may be.
    limit: usize,
    /// What was earned and spent (see `worth`), ns.
    account: i64,
}

impl Frontier {
    /// An empty one; `None` where there is no memory.
    pub fn new() -> Option<Frontier> {
        let mut this = Frontier {
            slots: Row::new(ROOM)?,
            free: Row::new(ROOM)?,
            held: [Held { fd: -1, users: 0 }; HELD],
            orphans: Row::new(2 * HELD)?,
            listed: [0; MOST / LEAST],
            newest: 0,
            device: 0,
            walk: 0,
            ahead: 0,
            limit: FIRST,
            account: 0,
        };
        this.slots.push(Slot {
            next: END,
            previous: END,
            state: State::Taken,
            held: 0,
            inode: 0,
            from: 0,
            name: [0; NAME],
        });
        Some(this)
    }

    fn slot(&mut self, i: u16) -> &mut Slot {
        &mut self.slots[usize::from(i)]
    }

    fn list(&self) -> impl Iterator<Item = u16> {
        let next = |i: u16| Some(self.slots[usize::from(i)].next).filter(|i| *i != END);
        std::iter::successors(next(END), move |i| next(*i))
    }

    /// The directory that the program comes to first of those that nobody has taken.
    fn nearest(&self) -> Option<u16> {
        let free = self.free.len() + ROOM - self.slots.len();
        if self.ahead + LEAST > self.limit || free <= PIECE {
            return None;
        }
        self.list()
            .find(|i| self.slots[usize::from(*i)].state == State::Waiting)
    }

    /// Whether the program has come nearer by a quarter of how far ahead may be listed.
    pub fn is_low(&self) -> bool {
        self.ahead <= self.limit - self.limit / 4
    }

    /// Whether a lister has something to do.
    pub fn offers(&self) -> bool {
        !self.orphans.is_empty() || self.nearest().is_some()
    }

    /// A directory that is not needed any more, to be closed.
    pub fn orphan(&mut self) -> Option<i32> {
        self.orphans.pop()
    }

    /// What is to be listed next, if that is near enough.
    pub fn take(&mut self) -> Option<Taken> {
        let i = self.nearest()?;
        self.ahead += LEAST;
        self.slot(i).state = State::Taken;
        let slot = &self.slots[usize::from(i)];
        Some(Taken {
            slot: i,
            fd: self.held[usize::from(slot.held)].fd,
            from: slot.from,
            name: slot.name,
        })
    }

    /// What was taken has been listed; it is open as `fd` unless that failed, or it is a rest. A device was waited for `nanos` nanoseconds.
    pub fn listed(&mut self, taken: &Taken, fd: Option<i32>, found: &Found, nanos: i64) {
        let waited = nanos >= worth::LISTING;
        self.account += if waited { nanos } else { -worth::LISTING };
        self.limit = if waited {
            (self.limit * 2).min(MOST)
        } else {
            (self.limit - self.limit / 8).max(LEAST)
        };
        self.ahead = (self.ahead + weight(found.entries)).saturating_sub(LEAST);
        let slot = &self.slots[usize::from(taken.slot)];
        let (held, inode, passed) = (slot.held, slot.inode, slot.state == State::Passed);
        let own = match fd {
            Some(fd) => self.hold(fd),
            None if taken.name[0] == 0 => {
                self.held[usize::from(held)].users += 1;
                Some(held)
            }
            None => None,
        };
        if let Some(own) = own {
            if !passed {
                self.newest = (self.newest + 1) % self.listed.len();
                self.listed[self.newest] = inode;
                self.insert(taken.slot, own, found);
            }
            self.release(own);
        }
        self.remove(taken.slot);
    }

    /// A walk begins with a directory on this device, which is being listed; says its number.
    pub fn begin(&mut self, device: u64) -> usize {
        self.clear();
        self.walk += 1;
        self.device = device;
        self.walk
    }

    /// The first directory of that walk was listed.
    pub fn begun(&mut self, walk: usize, fd: i32, found: &Found) {
        if let Some(own) = self.hold(fd) {
            if walk == self.walk {
                self.insert(END, own, found);
            }
            self.release(own);
        }
    }

    /// The program enters a directory, having read so many entries since it was last here. The number of the walk to which it belongs.
    pub fn enter(&mut self, device: u64, inode: u64, read: usize) -> Option<usize> {
        self.ahead = self.ahead.saturating_sub(read);
        if device != self.device || inode == 0 {
            return None;
        }
        let here = self.list().find(|i| self.slots[usize::from(*i)].inode == inode);
        if let Some(here) = here {
            // It has come to what is being listed: all before that is past.
            self.pass_to(here);
            self.ahead = 0;
        }
        (here.is_some() || self.listed.contains(&inode)).then_some(self.walk)
    }

    /// Nobody walks any more.
    pub fn clear(&mut self) {
        self.pass_to(END);
        self.listed.fill(0);
        self.ahead = 0;
        self.device = 0;
    }

    /// The listers have gone, and what they held open with them.
    pub fn abandon(&mut self) {
        self.clear();
        self.orphans.clear();
    }

    /// What listing earned or cost since this was asked last, ns.
    pub fn settle(&mut self) -> i64 {
        std::mem::take(&mut self.account)
    }

    /// The program is past all that lies before this slot.
    fn pass_to(&mut self, end: u16) {
        loop {
            let i = self.slot(END).next;
            match self.slot(i).state {
                _ if i == end => return,
                State::Waiting => self.remove(i),
                _ => {
                    self.unlink(i);
                    self.slot(i).state = State::Passed;
                }
            }
        }
    }

    fn unlink(&mut self, i: u16) {
        let (previous, next) = (self.slot(i).previous, self.slot(i).next);
        self.slot(previous).next = next;
        self.slot(next).previous = previous;
    }

    fn remove(&mut self, i: u16) {
        if self.slot(i).state != State::Passed {
            self.unlink(i);
        }
        let held = self.slot(i).held;
        self.release(held);
        self.free.push(i);
    }

    fn hold(&mut self, fd: i32) -> Option<u16> {
        let Some(i) = self.held.iter().position(|h| h.users == 0) else {
            self.orphans.push(fd);
            return None;
        };
        self.held[i] = Held { fd, users: 1 };
        Some(i as u16)
    }

    fn release(&mut self, held: u16) {
        let h = &mut self.held[usize::from(held)];
        h.users -= 1;
        if h.users == 0 {
            let fd = h.fd;
            self.orphans.push(fd);
        }
    }

    /// Puts what was found in directory `own` behind slot `at`.
    fn insert(&mut self, at: u16, own: u16, found: &Found) {
        let mut last = at;
        let subdirectories = &found.subdirectories[..found.count];
        for (inode, name) in subdirectories {
            last = self.put(last, own, *inode, 0, name);
        }
        if let Some(from) = found.rest {
            self.put(last, own, 0, from, &[0; NAME]);
        }
    }

    fn put(&mut self, behind: u16, held: u16, inode: u64, from: i64, name: &[u8; NAME]) -> u16 {
        let next = self.slot(behind).next;
        let new = Slot {
            next,
            previous: behind,
            state: State::Waiting,
            held,
            inode,
            from,
            name: *name,
        };
        let i = match self.free.pop() {
            Some(i) => {
                *self.slot(i) = new;
                i
            }
            None if self.slots.push(new) => (self.slots.len() - 1) as u16,
            None => return behind,
        };
        self.held[usize::from(held)].users += 1;
        self.slot(behind).next = i;
        self.slot(next).previous = i;
        i
    }
}
