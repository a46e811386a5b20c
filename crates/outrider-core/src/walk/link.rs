//! What the threads of a walk share, what is told, and on whose behalf the lane opens files.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use outrider_sys::units::InodeKey;

use crate::engine::{Client, Found};
use crate::exclude::Excluded;
use crate::explain::Explain;
use crate::lock;
use crate::shared::{Note, Shared};
use crate::shm;

/// Files that the thread that decides has not heard of yet, beyond which it is told of no more: of one process, and of all.
const UNHEARD_EACH: usize = 512;
const UNHEARD: usize = 2048;

/// What the thread that decides is told.
pub(super) enum Message {
    /// A process has opened a file.
    Opened(Opened),
    /// A process has opened a directory.
    Visited(Opened),
    /// A process lists a large directory, has waited, and goes on at this position.
    Listing(Opened, u64),
    /// The process in this entry has waited for attributes.
    Attributes(usize),
    /// The process in this entry is over.
    Over(usize),
    /// Forget everything, add up the figures, and answer.
    Forget(Sender<()>),
    /// What came of calls that were made for the process in this entry.
    Found(usize, Vec<Found>),
}

/// A file or directory that a process has opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// Entry of the process.
    pub proc: usize,
    /// The process.
    pub pid: u32,
    /// Its number among all that there were, by which its record is found.
    pub who: usize,
    /// Number of the descriptor.
    pub fd: u16,
    /// Generation of the descriptor's state then.
    pub generation: u32,
    /// The file.
    pub key: InodeKey,
    /// It was not cached, of a file; otherwise it may have been.
    pub cold: bool,
    /// Bytes of a file, to a page.
    pub size: u64,
}

/// What holds for all walks, wherever they are.
pub(super) struct Common {
    pub(super) shared: Arc<Shared>,
    /// Files may be opened that no program has open: there is memory for them, and nobody watches.
    allowed: AtomicBool,
    /// Nothing may be opened for the time being.
    held_back: AtomicBool,
    /// Messages of what processes do that nobody has taken yet, in all and by process.
    unheard: AtomicUsize,
    unheard_of: Vec<AtomicUsize>,
    /// Files that must never be opened.
    untouchable: Mutex<HashSet<InodeKey>>,
    /// Names of what must never be opened or listed.
    pub(super) excluded: Excluded,
    /// Says what was decided.
    pub(super) explain: Arc<Explain>,
    /// What processes are to tell of files, by process: for those who go through disks, and for those who go through servers' trees.
    wishes: Vec<[AtomicU32; 2]>,
    /// Bytes that all have ahead.
    held: AtomicU64,
}

impl Common {
    pub(super) fn new(shared: Arc<Shared>, excluded: Excluded, explain: Arc<Explain>) -> Common {
        Common {
            shared,
            allowed: AtomicBool::new(false),
            held_back: AtomicBool::new(false),
            unheard: AtomicUsize::new(0),
            unheard_of: (0..shm::MAX_PROCS).map(|_| AtomicUsize::new(0)).collect(),
            untouchable: Mutex::default(),
            excluded,
            explain,
            wishes: (0..shm::MAX_PROCS).map(|_| Default::default()).collect(),
            held: AtomicU64::new(0),
        }
    }

    pub(super) fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Relaxed);
    }

    pub(super) fn hold_back(&self, held_back: bool) {
        self.held_back.store(held_back, SeqCst);
    }

    pub(super) fn leave(&self, key: InodeKey) {
        lock(&self.untouchable).insert(key);
    }

    /// Nobody wants to be told anything by a process.
    pub(super) fn forget_wishes(&self, proc: usize) {
        for wish in self.wishes.get(proc).into_iter().flatten() {
            wish.store(0, Relaxed);
        }
    }
}

/// What the threads of one walker share.
pub(super) struct Link {
    common: Arc<Common>,
    tell: Sender<Message>,
    /// What is opened here others see.
    shows: bool,
    /// Nothing is opened any more: the server does not answer.
    given_up: AtomicBool,
    /// Bytes that this one has ahead.
    held: AtomicU64,
}

impl std::ops::Deref for Link {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Link {
    pub(super) fn new(common: Arc<Common>, tell: Sender<Message>, shows: bool) -> Link {
        Link {
            common,
            tell,
            shows,
            given_up: AtomicBool::new(false),
            held: AtomicU64::new(0),
        }
    }

    /// Tells what a process does, unless too much of that is waiting.
    pub(super) fn hear(&self, proc: usize, message: Message) {
        let own = self.unheard_of.get(proc).map_or(0, |n| n.load(Relaxed));
        if own < UNHEARD_EACH && self.unheard.load(Relaxed) < UNHEARD {
            self.unheard.fetch_add(1, Relaxed);
            if let Some(own) = self.unheard_of.get(proc) {
                own.fetch_add(1, Relaxed);
            }
            self.tell(message);
        }
    }

    /// A message of what a process does was taken.
    pub(super) fn has_heard(&self, proc: usize) {
        self.unheard.fetch_sub(1, Relaxed);
        if let Some(own) = self.unheard_of.get(proc) {
            own.fetch_sub(1, Relaxed);
        }
    }

    pub(super) fn tell(&self, message: Message) {
        let _ = self.tell.send(message);
    }

    /// This one has so many bytes ahead; how many all have.
    pub(super) fn holds(&self, bytes: u64) -> u64 {
        let before = self.held.swap(bytes, Relaxed);
        let change = bytes.wrapping_sub(before);
        let all = self.common.held.fetch_add(change, Relaxed);
        all.wrapping_add(change)
    }

    /// Bytes that the others have ahead.
    pub(super) fn others_hold(&self) -> u64 {
        let all = self.common.held.load(Relaxed);
        all.saturating_sub(self.held.load(Relaxed))
    }

    /// Whether nothing is opened ahead of a process until it opens something again: another may be about to take away what a server keeps, or it is itself.
    fn rests(&self, owner: usize) -> bool {
        self.shows && self.shared.proc(owner).rests.load(SeqCst) != 0
    }

    /// Whether files may be opened ahead of a process, if it has this one's rights. That costs more to find out than to hear of a file that is opened.
    pub(super) fn goes_ahead(&self, owner: usize) -> bool {
        let watched = self.shared.header().watched.load(Relaxed) != 0;
        !watched && !self.is_held_back() && !self.rests(owner)
    }

    /// What a process is to tell of files (`shm::ALL_FILES` and its like), for this one; and for all together.
    pub(super) fn wishes(&self, proc: usize, wish: u32) -> u32 {
        let Some(wishes) = self.wishes.get(proc) else {
            return wish;
        };
        let served = if self.shows && wish != 0 {
            shm::SERVED
        } else {
            0
        };
        wishes[usize::from(self.shows)].store(wish | served, Relaxed);
        wishes.iter().fold(0, |all, w| all | w.load(Relaxed))
    }

    /// Nothing is opened here any more.
    pub(super) fn give_up(&self) {
        self.given_up.store(true, SeqCst);
    }

    pub(super) fn has_given_up(&self) -> bool {
        self.given_up.load(SeqCst)
    }

    /// Whether this is the process in an entry still.
    pub(super) fn is_owner(&self, proc: usize, pid: u32) -> bool {
        self.life(proc) == Some(pid)
    }
}

impl Client for Link {
    fn is_held_back(&self) -> bool {
        self.held_back.load(SeqCst) || !self.allowed.load(Relaxed) || self.has_given_up()
    }

    /// As long as the process may do just what this one may.
    fn permits(&self, owner: usize) -> bool {
        self.goes_ahead(owner) && self.shared.stands(owner)
    }

    fn is_untouchable(&self, file: InodeKey) -> bool {
        lock(&self.untouchable).contains(&file)
    }

    fn life(&self, owner: usize) -> Option<u32> {
        let owners = &self.shared.header().owners;
        owners.get(owner).map(|o| o.load(SeqCst))
    }

    fn note(&self, owner: usize, name: &OsStr) -> Option<Box<dyn Send>> {
        let note = Note::ahead(self.shared.clone(), owner, name.as_bytes())?;
        Some(Box::new(note))
    }

    /// The process may have ended before.
    fn may_hold(&self, owner: usize, life: Option<u32>) -> bool {
        let entry = self.shared.proc(owner);
        let departs = entry.departs.load(SeqCst) != 0;
        let starts = entry.start_wanted.load(SeqCst) != entry.start_done.load(SeqCst);
        let goes_on = !departs && !starts && !self.rests(owner);
        goes_on && self.life(owner) == life && !self.held_back.load(SeqCst)
    }

    fn done(&self, owner: usize, found: Vec<Found>) {
        self.tell(Message::Found(owner, found));
    }
}
