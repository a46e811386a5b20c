//! The directories that a walk comes to next, as the kernel lists them ([`Order::LISTED`]).
//!
//! A program that walks a tree enters a subdirectory, and all that is below it, before the next one. So what is found in a directory that is listed
//! ahead is put behind it in a list, and listers take what is nearest to the program. Of a directory with many subdirectories [`PIECE`] are in the
//! list, and behind them its rest, which is listed on when its turn comes. Where the program enters one, all before that is past.
//!
//! How far ahead is counted in entries: twice as far when a listing waited for a device, less far when it didn't.
//!
//! [`Order::LISTED`]: outrider_core::tree::order::Order::LISTED

use std::ffi::CStr;

use crate::memory::Row;
use crate::payback;

/// Subdirectories that are taken from a listing at once.
pub const PIECE: usize = 32;
/// Bytes of a name, with the zero byte at its end.
pub const NAME: usize = 256;
/// Directories in the list.
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the list, for a lister.
    Waiting,
    /// In the list; a lister has it.
    Taken,
    /// In the list, until the program has come there.
    Listed,
    /// Not in the list any more; a lister has it.
    Passed,
}

/// A directory, or the rest of one.
struct Slot {
    next: u16,
    /// The nearest before and behind it that were not listed.
    pending: [u16; 2],
    state: State,
    /// The directory in which `name` is found, or which is listed on; of no meaning once that was listed.
    held: u16,
    /// What it counts of what is ahead.
    weight: usize,
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
    /// Entries that lie between the program and it, as far as is known.
    pub ahead: usize,
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
    device: u64,
    /// The walk's number.
    walk: usize,
    /// What the slots in the list count, in entries.
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
            device: 0,
            walk: 0,
            ahead: 0,
            limit: FIRST,
            account: 0,
        };
        this.slots.push(Slot {
            next: END,
            pending: [END; 2],
            state: State::Listed,
            held: 0,
            weight: 0,
            inode: 0,
            from: 0,
            name: [0; NAME],
        });
        Some(this)
    }

    fn slot(&mut self, i: u16) -> &mut Slot {
        &mut self.slots[usize::from(i)]
    }

    /// All in the list.
    fn list(&self) -> impl Iterator<Item = u16> {
        let next = |i: u16| Some(self.slots[usize::from(i)].next).filter(|i| *i != END);
        std::iter::successors(next(END), move |i| next(*i))
    }

    /// Those that were not listed.
    fn pending(&self) -> impl Iterator<Item = u16> {
        let next = |i: u16| Some(self.slots[usize::from(i)].pending[1]).filter(|i| *i != END);
        std::iter::successors(next(END), move |i| next(*i))
    }

    /// The directory that the program comes to first of those that nobody has taken.
    fn nearest(&self) -> Option<u16> {
        let free = self.free.len() + ROOM - self.slots.len();
        if self.ahead + LEAST > self.limit || free <= PIECE {
            return None;
        }
        self.pending()
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
        let ahead = self.ahead;
        self.weigh(i, LEAST);
        self.slot(i).state = State::Taken;
        let slot = &self.slots[usize::from(i)];
        Some(Taken {
            slot: i,
            fd: self.held[usize::from(slot.held)].fd,
            from: slot.from,
            ahead,
            name: slot.name,
        })
    }

    /// What was taken has been listed; it is open as `fd` unless that failed, or it is a rest. A device was waited for `nanos` nanoseconds.
    pub fn listed(&mut self, taken: &Taken, fd: Option<i32>, found: &Found, nanos: i64) {
        let waited = nanos >= payback::LISTING;
        self.account += if waited { nanos } else { -payback::LISTING };
        self.limit = if waited {
            (self.limit * 2).min(MOST)
        } else {
            (self.limit - self.limit / 8).max(LEAST)
        };
        let slot = self.slot(taken.slot);
        let (held, passed) = (slot.held, slot.state == State::Passed);
        if passed {
            self.free.push(taken.slot);
        } else {
            slot.state = State::Listed;
            self.weigh(taken.slot, found.entries.max(LEAST));
        }
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
                self.insert(taken.slot, own, found);
            }
            self.release(own);
        }
        if !passed {
            self.unlink_pending(taken.slot);
        }
        self.release(held);
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

    /// The program enters a directory. The number of the walk, if it comes to it there.
    pub fn enter(&mut self, device: u64, inode: u64) -> Option<usize> {
        if device != self.device || inode == 0 {
            return None;
        }
        let is_here = |i: &u16| self.slots[usize::from(*i)].inode == inode;
        let here = self.list().find(is_here)?;
        self.pass_to(here);
        if self.slot(here).state == State::Listed {
            let next = self.slot(here).next;
            self.pass_to(next);
        }
        Some(self.walk)
    }

    /// Nobody walks any more.
    pub fn clear(&mut self) {
        self.pass_to(END);
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

    /// Has a slot in the list count so much.
    fn weigh(&mut self, i: u16, weight: usize) {
        let before = std::mem::replace(&mut self.slot(i).weight, weight);
        self.ahead = self.ahead - before + weight;
    }

    /// Takes a slot out of those that were not listed.
    fn unlink_pending(&mut self, i: u16) {
        let [before, behind] = self.slot(i).pending;
        self.slot(before).pending[1] = behind;
        self.slot(behind).pending[0] = before;
    }

    /// The program is past all that lies before this slot.
    fn pass_to(&mut self, end: u16) {
        loop {
            let i = self.slot(END).next;
            if i == end {
                return;
            }
            self.weigh(i, 0);
            let (next, held, state) = {
                let slot = self.slot(i);
                (slot.next, slot.held, slot.state)
            };
            self.slot(END).next = next;
            match state {
                State::Taken => {
                    self.unlink_pending(i);
                    self.slot(i).state = State::Passed;
                }
                State::Waiting => {
                    self.unlink_pending(i);
                    self.release(held);
                    self.free.push(i);
                }
                State::Listed | State::Passed => {
                    self.free.push(i);
                }
            }
        }
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

    /// Puts what was found in directory `own` behind slot `at`, which was not listed before.
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
        let beyond = self.slot(behind).pending[1];
        let new = Slot {
            next,
            pending: [behind, beyond],
            state: State::Waiting,
            held,
            weight: 0,
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
        self.slot(behind).pending[1] = i;
        self.slot(beyond).pending[0] = i;
        i
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A tree of directories, numbered as a program comes to them.
    struct Tree {
        children: Vec<Vec<usize>>,
        last: Vec<usize>,
    }

    fn random(state: &mut u64, below: usize) -> usize {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize % below
    }

    impl Tree {
        fn grow(&mut self, state: &mut u64, depth: usize) -> usize {
            let me = self.children.len();
            self.children.push(Vec::new());
            self.last.push(0);
            let most = [3 * PIECE, 5, 4, 2, 1][depth];
            for _ in 0..random(state, most) {
                let child = self.grow(state, depth + 1);
                self.children[me].push(child);
            }
            self.last[me] = self.children.len();
            me
        }

        /// What a lister finds in `directory` from its child number `from` on.
        fn list(&self, directory: usize, from: i64) -> Found {
            let mut found = Found::new();
            for (i, child) in self.children[directory]
                .iter()
                .enumerate()
                .skip(from as usize)
            {
                let name = std::ffi::CString::new(format!("{child}")).unwrap();
                if !found.add(*child as u64, &name) {
                    found.rest = Some(i as i64);
                    break;
                }
                found.entries += 1;
            }
            found
        }
    }

    /// What one has taken: the directory, and where its children are listed from.
    fn place(taken: &Taken) -> (usize, i64) {
        let name = CStr::from_bytes_until_nul(&taken.name)
            .unwrap()
            .to_str()
            .unwrap();
        match name.parse() {
            Ok(directory) => (directory, 0),
            Err(_) => (taken.fd as usize, taken.from),
        }
    }

    /// Listers that take any time, and a program that comes along: what is taken is what comes next of all that is known and not past, each
    /// directory is listed once at most, and whatever was opened is closed once.
    #[test]
    fn what_comes_next_is_listed_next() {
        for seed in 1..200 {
            let mut state = seed;
            let mut tree = Tree {
                children: Vec::new(),
                last: Vec::new(),
            };
            // Number 0 would be no inode.
            tree.children.push(Vec::new());
            tree.last.push(0);
            let root = tree.grow(&mut state, 0);
            let mut frontier = Frontier::new().unwrap();
            let walk = frontier.begin(7);
            let mut open = BTreeSet::from([root as i32]);
            frontier.begun(walk, root as i32, &tree.list(root, 0));
            let first = tree.list(root, 0);
            let mut known: BTreeSet<(usize, i64)> = tree.children[root][..first.count]
                .iter()
                .map(|c| (*c, 0))
                .collect();
            known.extend(first.rest.map(|from| (root, from)));
            let mut busy: Vec<Taken> = Vec::new();
            let (mut at, mut taken_ever) = (root, BTreeSet::new());
            // A rest comes after the children before it.
            let order = |tree: &Tree, (d, from): (usize, i64)| match from {
                0 => d,
                from => tree.last[tree.children[d][from as usize - 1]],
            };
            for _ in 0..10_000 {
                match random(&mut state, 3) {
                    0 => {
                        let Some(taken) = frontier.take() else {
                            continue;
                        };
                        let this = place(&taken);
                        let next = known.iter().map(|p| order(&tree, *p)).min();
                        assert_eq!(next, Some(order(&tree, this)), "seed {seed}");
                        assert!(known.remove(&this) && taken_ever.insert(this));
                        busy.push(taken);
                    }
                    1 if !busy.is_empty() => {
                        let i = random(&mut state, busy.len());
                        let taken = busy.swap_remove(i);
                        let (directory, from) = place(&taken);
                        let found = tree.list(directory, from);
                        let own = (from == 0).then_some(directory as i32);
                        open.extend(own);
                        let passed = order(&tree, (directory, from)) < at;
                        frontier.listed(&taken, own, &found, [0, 1_000_000][random(&mut state, 2)]);
                        if !passed {
                            let children = &tree.children[directory][from as usize..];
                            known.extend(children[..found.count].iter().map(|c| (*c, 0)));
                            known.extend(found.rest.map(|from| (directory, from)));
                        }
                    }
                    2 if at + 1 < tree.children.len() && random(&mut state, 4) == 0 => {
                        let here = known.contains(&(at + 1, 0))
                            || busy.iter().any(|t| place(t) == (at + 1, 0));
                        at += 1;
                        let listed = taken_ever.contains(&(at, 0));
                        let entered = frontier.enter(7, at as u64);
                        assert_eq!(entered.is_some(), here || listed, "seed {seed}");
                        known.retain(|p| order(&tree, *p) >= at);
                        if entered.is_none() {
                            // It is ahead of what the listers know: what they have is of no use.
                            break;
                        }
                    }
                    _ => {}
                }
                while let Some(fd) = frontier.orphan() {
                    assert!(open.remove(&fd), "seed {seed}: {fd} is not open");
                }
            }
            frontier.clear();
            for taken in busy {
                frontier.listed(&taken, None, &Found::new(), 0);
            }
            while let Some(fd) = frontier.orphan() {
                assert!(open.remove(&fd), "seed {seed}: {fd} is not open");
            }
            assert!(open.is_empty(), "seed {seed}: {open:?} stays open");
            assert_eq!(
                (frontier.free.len() + 1, frontier.ahead),
                (frontier.slots.len(), 0)
            );
        }
    }
}
