//! What bounds the service, whatever programs say.
//!
//! Everything that a process tells is a claim, and it may tell millions a second. So each table that grows by what is told has a bound, which is shared among the
//! processes that are there: who reaches its part is not helped with what lies beyond, and the others go on as before. The same with the service's time: who
//! has taken more than a turn sits out as many. docs/semantics.md has a table of all of them.

use std::collections::HashMap;
use std::time::Duration;

use outrider_sys::units::{InodeKey, PAGE};

use super::kernel::Kernel;
use super::{FILES_KEPT, FileState, Service};
use crate::engine::Class;
use crate::shm::{self, Fate, lost};
use crate::source::mapped::Mapped;
use crate::view::{FileView, PageRange};

/// Events of one process are taken for so long at a time.
pub(super) const TURN: Duration = Duration::from_millis(2);
/// Descriptors that are followed in all processes together, at up to 5 KiB each: a process that is alone, or one of two, has all that hooks follow. More processes
/// share them evenly.
const DESCRIPTORS: usize = 2 * shm::MAX_FDS;
/// What is known of all files together takes so many bytes: the bitmaps of 256 GiB.
pub(super) const KNOWN_BYTES: usize = 32 << 20;
/// What takes more memory than that is looked for so often, at most …
const LOOK: Duration = Duration::from_millis(1);
/// … while no more files are known: to go through so many takes 10 to 20 µs.
const FEW: usize = 256;
/// Bytes of the notes on which parts of mappings were touched, in all processes together: 128 mappings of 64 GiB.
const MAPPED_BYTES: usize = 16 << 20;
/// Devices from which is fetched.
pub(super) const DEVICES: usize = 256;
/// Calls within the kernel that move bytes, of one process and of all: as many threads.
pub(super) const KERNEL_COPIES_EACH: usize = 16;
pub(super) const KERNEL_COPIES: usize = 256;
/// Files with hints that are being carried out.
pub(super) const HINTS: usize = 256;
/// Files that are remembered which must never be opened, of one process and of all. To forget one is not safe.
const LEFT_EACH: usize = 1024;
const LEFT: usize = 1 << 14;
/// Requests of less than 64 KiB that may wait to be issued. Of longer ones the budget allows no more than memory has room for.
pub(super) const QUEUED: usize = 1 << 14;
/// Bytes that one of several processes can have waiting before those of the others: the largest window. What it asks for beyond that comes after theirs.
const PROMPT: u64 = 64 << 20;
/// Processes with other rights that wait for a service: no more can be waiting to be taken in.
pub(super) const WAITING: usize = 128;
/// Processes that services with other rights serve, all of these together: of each a descriptor says when it is over. As many as this one serves itself …
const SERVED: usize = shm::MAX_PROCS;
/// … and no more than one in so many of the descriptors that it may have.
const SERVED_OF_ALL: usize = 4;

/// Who has taken more than its turn sits out others, up to so long.
const DEBT: Duration = Duration::from_secs(1);
/// Every process may have so much of a table, however many there are.
const LEAST: usize = 16;

/// See [`SERVED`].
pub(super) fn served() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = limit.map_or(usize::MAX, |n| n as usize / SERVED_OF_ALL);
    most.min(SERVED)
}

impl FileState {
    /// Bytes that are taken by what is known of it.
    fn bytes(&self) -> usize {
        let fixed = size_of::<FileState>() + 2 * size_of::<FileView>();
        fixed + self.name_bytes() + self.view.memory_bytes() + self.random.bytes()
    }
}

/// Time of the service's that a process has taken beyond its turns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Debt(Duration);

impl Debt {
    /// Its events, or looks at its memory, have taken so long.
    pub(super) fn takes(&mut self, time: Duration) {
        self.0 = (self.0 + time.saturating_sub(TURN)).min(DEBT);
    }

    /// Whether it has to sit out a turn.
    pub(super) fn sits_out(&mut self) -> bool {
        let owed = self.0 >= TURN;
        self.0 = self.0.saturating_sub(TURN);
        owed
    }
}

impl<K: Kernel> Service<K> {
    /// The part of each process in what there are so many of.
    fn share(&self, all: usize) -> usize {
        (all / self.processes.len().max(2)).max(LEAST)
    }

    /// Whether one more descriptor of process `i` is followed.
    pub(super) fn follows_more(&self, i: usize) -> bool {
        let followed = self.processes.get(i).map_or(0, |p| p.followed());
        let more = followed < self.share(DESCRIPTORS);
        if !more {
            self.header().lose(lost::CLAIMS);
        }
        more
    }

    /// There are more processes than there were: who has more than its part of the descriptors gives some up.
    pub(super) fn share_descriptors(&mut self) {
        let share = self.share(DESCRIPTORS);
        for i in self.processes.active().to_vec() {
            let Some(process) = self.processes.get(i) else {
                continue;
            };
            let many: Vec<u16> = process.descs().map(|(fd, _)| fd).skip(share).collect();
            for fd in many {
                self.header().lose(lost::CLAIMS);
                let desc = self.processes.get_mut(i).and_then(|p| p.unfollow(fd));
                if let Some(desc) = desc {
                    self.abandoned(i, fd, desc);
                }
            }
        }
    }

    /// Whether mappings of process `i` are followed for which `more` bytes are needed.
    pub(super) fn maps_more(&self, i: usize, more: usize) -> bool {
        let mapped = self.processes.get(i).into_iter().flat_map(|p| p.mapped());
        let bytes = mapped.map(Mapped::bytes).sum::<usize>() + more;
        let fits = bytes <= self.share(MAPPED_BYTES);
        if !fits {
            self.header().lose(lost::CLAIMS);
        }
        fits
    }

    /// A file must never be opened: process `i` says so. Who names more than can be remembered is left alone, and nothing is opened any more that no program has opened.
    pub(super) fn leave_untouched(&mut self, i: usize, key: InodeKey) {
        if self.files.untouchable().contains(&key) {
            return;
        }
        let Some(state) = self.processes.get_mut(i) else {
            return;
        };
        if self.files.untouchable().len() >= LEFT || !state.names_untouchable(LEFT_EACH) {
            state.leave_alone();
            self.walks = false;
            self.header().lose(lost::LEASES);
            if let Some(walker) = &self.walker {
                walker.allow(false);
            }
            if let Some(remember) = &self.remember {
                remember.allow(false);
            }
            return;
        }
        self.files.leave(key);
        if let Some(walker) = &self.walker {
            walker.leave(key);
        }
        if let Some(remember) = &self.remember {
            remember.leave(key);
        }
    }

    /// Of files that no program has open, so many are remembered: those that were read last.
    pub(super) fn keep_few_files(&mut self) {
        if !self.files.are_many() {
            return;
        }
        let closed = self.files.values().filter(|f| !f.hold.is_open());
        let mut old: Vec<_> = closed.map(|f| (f.last_access(), f.key)).collect();
        old.sort_unstable();
        let keep = FILES_KEPT / 4 * 3;
        for (_, key) in old.iter().take(old.len().saturating_sub(keep)) {
            self.forget(*key);
        }
        self.files.were_forgotten(FILES_KEPT / 4);
    }

    /// Where what is known of files takes too much memory, something is forgotten: first of files that nobody has open, then of those of the process that has the most.
    pub(super) fn keep_to_bytes(&mut self) {
        let pause = LOOK * (self.files.len() / FEW).max(1) as u32;
        if self.kernel.since(*self.files.weighed()) < pause {
            return;
        }
        *self.files.weighed() = self.kernel.now();
        let mut all: usize = self.files.values().map(FileState::bytes).sum();
        if all <= KNOWN_BYTES {
            return;
        }
        let mut of: HashMap<usize, usize> = HashMap::new();
        for f in self.files.values() {
            if let Some(i) = f.hold.owner() {
                *of.entry(i).or_default() += f.bytes();
            }
        }
        let part = |f: &FileState| f.hold.owner().map_or(usize::MAX, |i| of[&i]);
        let order = |f: &FileState| (std::cmp::Reverse(part(f)), f.last_access(), f.key);
        let mut order: Vec<_> = self.files.values().map(order).collect();
        order.sort_unstable();
        for (_, _, key) in order {
            if all <= KNOWN_BYTES / 8 * 7 {
                break;
            }
            let Some(file) = self.files.get_mut(&key) else {
                continue;
            };
            let before = file.bytes();
            if !file.hold.is_open() {
                self.forget(key);
                all -= before;
                continue;
            }
            let everything = PageRange::new(0, u64::MAX / PAGE);
            file.lose(everything, Fate::Wasted);
            file.random.forget();
            all -= before.saturating_sub(file.bytes());
        }
        *self.files.weighed() = self.kernel.now();
    }

    /// How urgent a request for a file is, and how many bytes may be asked for: whoever is not alone has no more waiting than its part of the budget. What waits
    /// is counted by the engine: a process may say that it has dropped what it asked for.
    pub(super) fn urgency(&self, key: InodeKey, class: Class) -> (Class, u64) {
        let owner = self.files.get(&key).and_then(|f| f.hold.owner());
        let processes = self.processes.len();
        let own = self.files.values().filter(|f| f.hold.owner() == owner);
        // Most of the time nothing waits of anybody's.
        let waits: u64 = match self.engine.queued_bytes() {
            0 => 0,
            _ => own.map(|f| f.account.queued_bytes()).sum(),
        };
        let part = self.memory.part(processes).max(PROMPT);
        let late = processes > 1 && waits >= PROMPT;
        let class = match class {
            Class::Window if late => Class::Background,
            class => class,
        };
        (class, part.saturating_sub(waits))
    }

    /// Bytes that may be asked for by hints of the process that has a file: its part of the budget, less what it has not read of what was fetched.
    pub(super) fn room_for_hints(&self, i: usize) -> u64 {
        let own = self.files.values().filter(|f| f.hold.owner() == Some(i));
        let unused = own.map(|f| f.view.unused_pages()).sum::<u64>() * PAGE;
        self.memory
            .part(self.processes.len())
            .saturating_sub(unused)
    }
}
