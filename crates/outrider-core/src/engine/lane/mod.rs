//! The blocking lane: directories to be listed, inodes to be read, and files to be opened and fetched that nobody has open yet.
//!
//! The kernel does none of that in the background. So threads of the engine make these calls, up to sixteen, each of which waits for its own. They have room in
//! flight for what they read ([`room`]), and say how much that was ([`counts`]). Nothing is held
//! beyond the few short calls that one of them makes together.
//!
//! On whose behalf a call is made, whether that may be still, and what is learned by it is its [`Client`]'s business.

mod calls;
mod counts;
mod room;
mod server;
mod turns;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use outrider_sys::threads;
use outrider_sys::units::{DeviceId, InodeKey};

pub use calls::{Patience, find_directory, modified_at};
pub(super) use counts::Counts;
pub use counts::{LEAST_BLOCK, Reads, Thread};
pub use server::Server;
use server::UnderWay;
use turns::Turns;

use super::{Engine, Handle, Remains, Shared, become_background};
use crate::device::DeviceModel;
use crate::lock;
use crate::shm::lost;
use crate::tree::known::{Directory, Place};

/// Threads that wait for the disk: as many requests as a disk of a network answers at once are more than a walk needs.
const THREADS: usize = 16;
/// Calls that one of them makes without a look at what else there is: with 8 waking and telling cost an eighth, and the last of them waits 0.2 ms for the others.
const AT_ONCE: usize = 8;
/// Bytes of their stacks.
const STACK: usize = 128 << 10;

/// What a thread does.
#[derive(Debug)]
pub enum Call {
    /// Opens a file of a listed directory and has it fetched.
    Open {
        /// The file.
        place: Place,
        /// Of one that has as many bytes or more only the inode is read; `None`: of one that isn't small.
        most: Option<u64>,
        /// How it is waited for.
        patience: Patience,
    },
    /// Lists a directory, on the file system with this `st_dev` if that is known.
    List {
        /// The directory, or a part of one.
        listing: Listing,
        /// `None`: there is no room to be waited for.
        device: Option<DeviceId>,
    },
    /// Reads the inodes of entries.
    Stat(Names),
    /// What the client does by itself.
    Errand(Box<dyn Errand>),
}

/// Something that a client does on a thread of the lane, with room for what it reads.
pub trait Errand: Send + std::fmt::Debug {
    /// The file system that is read from.
    fn device(&self) -> DeviceId;
    /// Whether one thread does several of them sooner than it wakes others for them.
    fn is_short(&self) -> bool;
    /// Does it.
    fn go(&self, bench: &Bench<'_>);
}

/// What an errand is done with.
pub struct Bench<'a> {
    desk: &'a Desk,
    owner: usize,
    thread: &'a Thread,
    /// `None`: nothing may be opened.
    way: Option<std::cell::RefCell<room::Way>>,
    permit: Option<Permit<'a>>,
}

/// What of a directory is listed.
#[derive(Debug)]
pub enum Listing {
    /// All of it.
    Whole {
        /// Its absolute path.
        path: PathBuf,
        /// The first inodes of what is found are read, too, one of each block of them.
        inodes: bool,
    },
    /// A part of a large one.
    Part {
        /// Its absolute path.
        path: PathBuf,
        /// What the path has to lead to.
        key: InodeKey,
        /// Positions in the listing, as lseek(2) has them.
        positions: Range<u64>,
    },
}

/// Entries of a directory.
#[derive(Debug)]
pub struct Names {
    /// Its absolute path.
    pub path: PathBuf,
    /// What the path has to lead to.
    pub key: InodeKey,
    /// The entries' names.
    pub names: Vec<OsString>,
}

/// What came of a call.
#[derive(Debug)]
pub enum Found {
    /// A file is there.
    Opened {
        /// The file that was to be opened.
        key: InodeKey,
        /// Bytes of it that were not cached, as far as is known.
        bytes: u64,
        /// Something was read.
        cold: bool,
        /// What that took, µs.
        took_us: f64,
    },
    /// A directory is listed. One that can't be has no entries.
    Listed {
        /// The directory.
        dir: Directory,
        /// Something was read.
        cold: bool,
    },
    /// The same of a part of a large one.
    PartListed {
        /// The directory.
        key: InodeKey,
        /// Entries in it whose inodes are not read ahead together, with these.
        entries: Vec<(u64, OsString)>,
        /// Something was read.
        cold: bool,
    },
}

/// Who has calls made. An owner is whom one is made for: a process's entry.
pub trait Client: Send + Sync {
    /// Nothing may be opened for anybody.
    fn is_held_back(&self) -> bool;
    /// Whether something may be opened for this owner.
    fn permits(&self, owner: usize) -> bool;
    /// Whether this file must never be opened.
    fn is_untouchable(&self, file: InodeKey) -> bool;
    /// What tells an owner from a later one with the same number.
    fn life(&self, owner: usize) -> Option<u32>;
    /// A file or directory of this name is about to be opened: what ends with our hold on it. `None`: it may not be.
    fn note(&self, owner: usize, name: &OsStr) -> Option<Box<dyn Send>>;
    /// Whether a file that is open now, and known to be, may be held for the owner of this life.
    fn may_hold(&self, owner: usize, life: Option<u32>) -> bool;
    /// Calls were made, some one after the other.
    fn done(&self, owner: usize, found: Vec<Found>);
}

/// A client's way to a lane; cheap to clone. A lane has one client: owners are told apart by their numbers only.
#[derive(Clone)]
pub struct Lane(Arc<Desk>);

/// What a client's calls share.
struct Desk {
    engine: Arc<Shared>,
    /// What waits for the threads.
    lane: Arc<State>,
    /// What a server keeps is all that is opened here; `None`: what lies on disks.
    server: Option<Server>,
    under_way: UnderWay,
    lately: calls::Lately,
    client: Arc<dyn Client>,
    /// Smaller files are fetched whole, bytes.
    small: u64,
    /// Times that something may be open.
    busy: AtomicUsize,
    /// Files that are open, by owner.
    held: Mutex<Vec<(usize, Weak<Handle>)>>,
    /// What is left to be closed of files that were let go of, where that asks a server.
    left: Arc<Mutex<Vec<Remains>>>,
}

/// What the engine keeps of the lane.
#[derive(Default)]
pub(super) struct State {
    waiting: Mutex<Waiting>,
    work: Condvar,
    counts: Mutex<Vec<Arc<Counts>>>,
}

/// A call, and whose it is.
type Submitted = (Arc<Desk>, Call);

#[derive(Default)]
struct Waiting {
    calls: Turns<Submitted>,
    threads: usize,
    /// Those of them that wait for a call, and how many of these were woken and will look.
    idle: usize,
    woken: usize,
    stop: bool,
}

impl Waiting {
    /// Whether those that will look, and take so many `each`, leave any.
    fn lacks(&self, each: usize) -> bool {
        self.calls.len() > self.woken * each
    }

    /// Whether another is to be woken because of that.
    fn wakes(&mut self, each: usize) -> bool {
        let wakes = self.idle > self.woken && self.lacks(each);
        self.woken += usize::from(wakes);
        wakes
    }

    /// A thread begins, which looks first of all.
    fn begins(&mut self) {
        self.threads += 1;
        self.idle += 1;
        self.woken += 1;
    }

    /// A thread looks. Whoever wasn't woken, and comes by itself, does in place of one that was: too many look rather than too few.
    fn looks(&mut self) {
        self.idle -= 1;
        self.woken = self.woken.saturating_sub(1);
    }
}

/// Calls of an owner that a thread takes at once. Short ones are made by one thread where their names are cached, as nobody waits then: to wake a thread and to
/// tell of each costs as much of a processor as to ask for a small file.
fn together(calls: &VecDeque<Submitted>) -> usize {
    let Some((desk, _)) = calls.front() else {
        return 0;
    };
    let most = match desk.lately.finds_at_once() {
        true => AT_ONCE,
        false => (calls.len() / THREADS).min(AT_ONCE),
    };
    let alike = |(of, call): &&Submitted| Arc::ptr_eq(of, desk) && call.is_short();
    calls.iter().take(most).take_while(alike).count()
}

impl Engine {
    /// A way for those who have directories listed and files opened. Of files of `small` bytes and more only the inodes are read.
    pub fn lane(&self, client: Arc<dyn Client>, small: u64) -> Lane {
        self.lane_over(self.shared.lane.clone(), client, small, None)
    }

    /// The same with threads of their own: who fetches what a profile has doesn't wait behind walks, nor they behind that.
    pub fn lane_apart(&self, client: Arc<dyn Client>) -> Lane {
        let lane = Arc::<State>::default();
        lock(&self.shared.lanes_apart).push(Arc::downgrade(&lane));
        self.lane_over(lane, client, u64::MAX, None)
    }

    /// The same for the files of one server, with threads of their own: those that wait for an answer that never comes are in nobody else's way.
    pub fn lane_of_server(&self, client: Arc<dyn Client>, small: u64, device: DeviceId) -> Lane {
        let lane = Arc::<State>::default();
        lock(&self.shared.lanes_apart).push(Arc::downgrade(&lane));
        self.lane_over(lane, client, small, Some(Server::new(device)))
    }

    fn lane_over(
        &self,
        lane: Arc<State>,
        client: Arc<dyn Client>,
        small: u64,
        server: Option<Server>,
    ) -> Lane {
        Lane(Arc::new(Desk {
            engine: self.shared.clone(),
            lane,
            server,
            under_way: UnderWay::default(),
            lately: calls::Lately::default(),
            client,
            small,
            busy: AtomicUsize::new(0),
            held: Mutex::default(),
            left: Arc::default(),
        }))
    }
}

impl State {
    pub(super) fn counts(&self) -> MutexGuard<'_, Vec<Arc<Counts>>> {
        lock(&self.counts)
    }

    /// Has the threads end once they have made their calls; drops what waits.
    pub(super) fn stop(&self) {
        let mut waiting = lock(&self.waiting);
        waiting.stop = true;
        let dropped = std::mem::take(&mut waiting.calls);
        drop(waiting);
        drop(dropped);
        self.work.notify_all();
    }

    /// The next calls, once there are any; `None` at the end. What the thread has not waited for comes meanwhile.
    fn next(&self, thread: &Thread) -> Option<(usize, VecDeque<Submitted>)> {
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.stop {
                return None;
            }
            if let Some(next) = waiting.calls.pop(together) {
                if waiting.wakes(next.1.len()) {
                    self.work.notify_one();
                }
                return Some(next);
            }
            let mut left = thread.left.borrow_mut();
            let due = left.due();
            if due == Some(Duration::ZERO) {
                drop(waiting);
                left.arrived();
                waiting = lock(&self.waiting);
                continue;
            }
            waiting.idle += 1;
            waiting = match due {
                None => (self.work.wait(waiting)).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let waited = self.work.wait_timeout(waiting, due);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            waiting.looks();
        }
    }

    /// The calling thread begins to read beside the queues.
    fn thread(&self) -> Thread {
        let (thread, counts) = Thread::begin();
        self.counts().push(counts);
        thread
    }
}

/// One thread of a lane, until the engine is dropped.
fn work(shared: &Shared, lane: &State) {
    become_background(shared.settings.io_priority);
    let thread = lane.thread();
    lock(&lane.waiting).looks();
    while let Some((owner, calls)) = lane.next(&thread) {
        if let Some((desk, _)) = calls.front() {
            let desk = desk.clone();
            desk.make(owner, calls.into_iter().map(|(_, call)| call), &thread);
        }
    }
}

impl Lane {
    /// Has a call made for an owner as soon as it is its turn.
    pub fn submit(&self, owner: usize, call: Call) {
        let (engine, lane) = (&self.0.engine, &self.0.lane);
        let mut waiting = lock(&lane.waiting);
        let each = match call.is_short() && self.0.lately.finds_at_once() {
            true => AT_ONCE,
            false => 1,
        };
        waiting.calls.push(owner, (self.0.clone(), call));
        let wakes = waiting.wakes(each);
        if !wakes && waiting.lacks(each) && waiting.threads < THREADS {
            let (shared, its) = (engine.clone(), lane.clone());
            let ours = threads::Own::new();
            let thread = std::thread::Builder::new().name("outrider-lane".into());
            let started = thread.stack_size(STACK).spawn(move || {
                ours.begins();
                work(&shared, &its);
            });
            match started {
                Ok(_) => waiting.begins(),
                Err(_) => engine.notes().lose(lost::THREADS),
            }
        }
        drop(waiting);
        if wakes {
            lane.work.notify_one();
        }
    }

    /// Whether more may be asked for on behalf of an owner at the moment.
    pub fn has_room(&self, owner: usize) -> bool {
        lock(&self.0.lane.waiting).calls.have_room(owner)
    }

    /// Takes back what no thread has begun with for an owner.
    pub fn cancel(&self, owner: usize) -> impl Iterator<Item = Call> {
        let calls = lock(&self.0.lane.waiting).calls.take(owner);
        calls.into_iter().map(|(_, call)| call)
    }

    /// Nobody need open this file for an owner any more; whether no thread had begun to.
    pub fn cancel_open(&self, owner: usize, file: InodeKey) -> bool {
        let same = |(_, call): &Submitted| match call {
            Call::Open { place, .. } => place.key() == file,
            Call::List { .. } | Call::Stat(_) | Call::Errand(_) => false,
        };
        let mut waiting = lock(&self.0.lane.waiting);
        waiting.calls.remove(owner, same)
    }

    /// Takes back all that no thread has begun with.
    pub fn cancel_all(&self) {
        let dropped = std::mem::take(&mut lock(&self.0.lane.waiting).calls);
        drop(dropped);
    }

    /// Lets go of the files that are open for an owner, or for all.
    pub fn let_go(&self, owner: Option<usize>) {
        let its = |of: usize| owner.is_none_or(|owner| owner == of);
        let mut held = lock(&self.0.held);
        let gone: Vec<_> = held.extract_if(.., |(of, _)| its(*of)).collect();
        drop(held);
        for handle in gone.iter().filter_map(|(_, handle)| handle.upgrade()) {
            handle.let_go();
        }
    }

    /// Whether nothing is open.
    pub fn is_idle(&self) -> bool {
        self.0.busy.load(SeqCst) == 0
    }

    /// The model of a device, by `st_dev` or the number of a disk.
    pub fn model(&self, device: DeviceId) -> DeviceModel {
        self.0.engine.model(device)
    }

    /// Bytes that the lane may have on their way at once from a device, as far as others may wait for them.
    pub fn bound(&self, device: DeviceId) -> u64 {
        self.0.engine.bound_of_lane(device)
    }

    /// What the calling thread reads on a client's behalf is counted by what this yields.
    pub fn thread(&self) -> Thread {
        self.0.lane.thread()
    }

    /// Something may be opened for an owner on the calling thread as long as the result lives. `None`: it may not.
    pub fn permit(&self, owner: usize) -> Option<Permit<'_>> {
        Permit::begin(&self.0, owner)
    }

    /// Lists a directory on the calling thread.
    pub fn list_here(&self, _permit: &Permit<'_>, path: &Path) -> Option<Directory> {
        calls::list(path, None, self.server()).map(|(dir, _)| dir)
    }

    /// Whose files are opened here, if a server keeps them.
    pub fn server(&self) -> Option<&Server> {
        self.0.server.as_ref()
    }

    /// The calling thread asks something that may not be answered, until the result is dropped.
    pub fn asks(&self) -> impl Drop + '_ {
        self.0.under_way.begin()
    }

    /// For how long the oldest call of those under way has not been answered.
    pub fn unanswered(&self) -> Duration {
        self.0.under_way.longest()
    }
}

/// Something may be opened, as long as this lives.
pub struct Permit<'a> {
    _busy: Busy<'a>,
}

impl<'a> Permit<'a> {
    fn begin(desk: &'a Desk, owner: usize) -> Option<Permit<'a>> {
        // Whoever lets go of everything sees it, or it is seen here that nothing may be opened.
        let permit = Permit {
            _busy: Busy::begin(desk),
        };
        desk.client.permits(owner).then_some(permit)
    }
}

/// Something may be open, as long as this lives.
struct Busy<'a>(&'a Desk);

impl<'a> Busy<'a> {
    fn begin(desk: &'a Desk) -> Busy<'a> {
        desk.busy.fetch_add(1, SeqCst);
        Busy(desk)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::clock::Monotonic;
    use crate::engine::{Kind, Settings};
    use crate::shared::Shared as Memory;
    use crate::shm::MODE_PREDICT_OPT;
    use crate::tree::known::Entry;

    /// Whom nothing may be opened for.
    const FORBIDDEN: usize = 7;

    /// Lets everybody but one have files opened, and none for whose life another has begun.
    struct Told {
        tell: Mutex<Sender<(usize, Found)>>,
        held_back: AtomicBool,
        untouchable: Option<InodeKey>,
    }

    impl Client for Told {
        fn is_held_back(&self) -> bool {
            self.held_back.load(SeqCst)
        }
        fn permits(&self, owner: usize) -> bool {
            owner != FORBIDDEN && !self.is_held_back()
        }
        fn is_untouchable(&self, file: InodeKey) -> bool {
            self.untouchable == Some(file)
        }
        fn life(&self, owner: usize) -> Option<u32> {
            Some(owner as u32)
        }
        fn note(&self, _: usize, _: &OsStr) -> Option<Box<dyn Send>> {
            Some(Box::new(()))
        }
        fn may_hold(&self, owner: usize, life: Option<u32>) -> bool {
            life == Some(owner as u32)
        }
        fn done(&self, owner: usize, found: Vec<Found>) {
            for found in found {
                let _ = lock(&self.tell).send((owner, found));
            }
        }
    }

    fn lane(untouchable: Option<InodeKey>) -> (Engine, Lane, Arc<Told>, Receiver<(usize, Found)>) {
        let settings = Settings {
            workers: 1,
            in_flight: (256 << 10, 16 << 20),
            io_priority: 0,
            kind: Kind::Threads,
            monitor: (Duration::ZERO, 0),
        };
        let memory = Arc::new(Memory::create(MODE_PREDICT_OPT, 64 << 10).unwrap());
        let engine = Engine::new(settings, memory, Monotonic::begin());
        let (tell, told) = channel();
        let client = Arc::new(Told {
            tell: Mutex::new(tell),
            held_back: AtomicBool::new(false),
            untouchable,
        });
        let lane = engine.lane(client.clone(), 64 << 10);
        (engine, lane, client, told)
    }

    fn whole(path: &Path) -> Call {
        Call::List {
            listing: Listing::Whole {
                path: path.to_owned(),
                inodes: true,
            },
            device: None,
        }
    }

    fn next(told: &Receiver<(usize, Found)>) -> (usize, Found) {
        told.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    /// Directories are listed and files fetched only for those for whom they may be; a file that must not be opened, or isn't the one that was listed any
    /// more, is not; and nothing stays open.
    #[test]
    fn calls_are_made_for_those_who_may() {
        let path = std::env::temp_dir().join(format!("outrider-lane-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        for name in ["a", "b", "c"] {
            fs::write(path.join(name), vec![b'x'; 5000]).unwrap();
        }
        let Some((dir, _)) = calls::list(&path, None, None) else {
            // It doesn't lie on a disk.
            return fs::remove_dir_all(&path).unwrap();
        };
        let dir = Arc::new(dir);
        let place = |name: &str| Place {
            entry: dir.entries.iter().position(|e| e.name == name).unwrap(),
            dir: dir.clone(),
        };
        // Its place is taken by another one.
        fs::write(path.join("new"), "y").unwrap();
        fs::rename(path.join("new"), path.join("b")).unwrap();
        let (engine, lane, client, told) = lane(Some(place("c").key()));

        for owner in [1, FORBIDDEN] {
            lane.submit(owner, whole(&path));
            let (of, Found::Listed { dir, .. }) = next(&told) else {
                panic!("something else was done")
            };
            let names: BTreeSet<_> = dir.entries.iter().map(|e| e.name.to_str()).collect();
            let expected = match owner {
                FORBIDDEN => BTreeSet::new(),
                _ => BTreeSet::from([Some("a"), Some("b"), Some("c")]),
            };
            assert_eq!((of, names), (owner, expected));
        }
        let asked = engine.loads().first().map_or(0, |load| load.entered);
        for name in ["a", "b", "c"] {
            let call = Call::Open {
                place: place(name),
                most: None,
                patience: Patience::Wait,
            };
            lane.submit(2, call);
            let (of, Found::Opened { key, .. }) = next(&told) else {
                panic!("something else was done")
            };
            assert_eq!((of, key), (2, place(name).key()));
        }
        // Each had room; the one that was opened had it anew for its bytes.
        let loads = engine.loads();
        let of_device = loads.iter().find(|l| l.device == dir.key.device()).unwrap();
        assert_eq!(of_device.entered - asked, 4);

        client.held_back.store(true, SeqCst);
        assert!(lane.permit(1).is_none());
        drop(engine);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while !lane.is_idle() || !lock(&lane.0.held).is_empty() {
            assert!(std::time::Instant::now() < until, "something is open");
            std::thread::yield_now();
        }
        fs::remove_dir_all(&path).unwrap();
    }

    /// B15: what a thread does not wait for has its room until it is due, for so many bytes at most or one file, and only where it is known that nobody else waits for it.
    #[test]
    fn what_is_not_waited_for_has_room() {
        use super::room::{Left, Way};
        use crate::device::{READAHEAD, Sharing};
        let (engine, _lane, _client, _told) = lane(None);
        let device = DeviceId(77);
        let on_way = || {
            let loads = engine.loads();
            loads.iter().find(|l| l.device == device).unwrap().bytes
        };
        let enter = |left: &mut Left, bytes: u64| {
            let way = Way::enter(&engine.shared, device, bytes, left, || true);
            way.unwrap()
        };
        let mut left = Left::default();
        let soon = Duration::from_millis(1);
        let small = READAHEAD / 8;
        let few = (4 * small, true);
        for sharing in [Sharing::Unknown, Sharing::Suspected, Sharing::Shared] {
            engine.share(device, sharing);
            let mut beside = enter(&mut left, small);
            assert!(!beside.leave(&mut left, soon, few) && left.due().is_none());
        }
        engine.share(device, Sharing::Unknown);
        let mut begins = enter(&mut left, small);
        assert!(begins.leave(&mut left, soon, (4 * small, false)));
        left.arrived();
        engine.share(device, Sharing::Exclusive);
        for k in 1..=4 {
            let mut way = enter(&mut left, small);
            assert!(way.leave(&mut left, soon, few));
            drop(way);
            assert_eq!(on_way(), k * small);
        }
        let mut fifth = enter(&mut left, small);
        assert!(!fifth.leave(&mut left, soon, few));
        drop(fifth);
        left.wait();
        assert!(left.due().is_none());
        assert_eq!(on_way(), 0);
        let mut long = enter(&mut left, READAHEAD);
        assert!(long.leave(&mut left, soon, few));
        assert!(!enter(&mut left, small).leave(&mut left, soon, few));
    }

    /// B12: short calls are made together once names are found without waiting, a few at a time, and none with what waits.
    #[test]
    fn short_calls_are_made_together() {
        let (_engine, lane, _, _told) = lane(None);
        let path = std::env::temp_dir().join(format!("outrider-together-{}", std::process::id()));
        let entry = Entry {
            name: "a".into(),
            ino: 3,
            directory: false,
        };
        let key = InodeKey::new(5, 2);
        let dir = Arc::new(Directory::new(path, key, (0, 0), vec![entry]));
        let open = |patience| Call::Open {
            place: Place {
                dir: dir.clone(),
                entry: 0,
            },
            most: None,
            patience,
        };
        let desk = &lane.0;
        let calls = |n: usize, patience| -> VecDeque<Submitted> {
            (0..n).map(|_| (desk.clone(), open(patience))).collect()
        };
        assert_eq!(together(&calls(9, Patience::Leave)), 0);
        assert_eq!(together(&calls(3 * THREADS, Patience::Leave)), 3);
        for _ in 0..calls::Lately::EACH {
            desk.lately.finds(|| ());
        }
        assert_eq!(together(&calls(100, Patience::Leave)), AT_ONCE);
        assert_eq!(together(&calls(3, Patience::Leave)), 3);
        assert_eq!(together(&calls(9, Patience::Wait)), 0);
        let mut mixed = calls(2, Patience::Leave);
        mixed.extend(calls(5, Patience::Wait));
        assert_eq!(together(&mixed), 2);
        desk.lately
            .finds(|| std::thread::sleep(Duration::from_millis(1)));
        assert_eq!(together(&calls(9, Patience::Leave)), 0);
    }

    /// B12: threads are woken for what those that will look leave, and no more of them.
    #[test]
    fn as_many_are_woken_as_are_needed() {
        let (_engine, lane, _, _told) = lane(None);
        let mut waiting = Waiting::default();
        let submit = |waiting: &mut Waiting, each| {
            waiting
                .calls
                .push(1, (lane.0.clone(), whole(Path::new("/nowhere"))));
            waiting.wakes(each)
        };
        assert!(!submit(&mut waiting, 1) && waiting.lacks(1));
        waiting.begins();
        assert!(!waiting.lacks(1));
        waiting.looks();
        waiting.idle = 3;
        // Two wait already.
        let woken: Vec<bool> = (0..4).map(|_| submit(&mut waiting, 1)).collect();
        assert_eq!(woken, [true, true, true, false]);
        assert_eq!((waiting.idle, waiting.woken), (3, 3));
        let mut waiting = Waiting {
            idle: 3,
            ..Waiting::default()
        };
        let woken: Vec<bool> = (0..9).map(|_| submit(&mut waiting, AT_ONCE)).collect();
        assert_eq!(woken.iter().filter(|w| **w).count(), 2);
        assert!(woken[0] && woken[8]);
        // One that came by itself is no reason to believe that more will.
        (0..3).for_each(|_| waiting.looks());
        assert_eq!((waiting.idle, waiting.woken), (0, 0));
    }

    /// What was taken back for one owner is made for the others.
    #[test]
    fn what_is_cancelled_is_not_made() {
        let (engine, lane, _, told) = lane(None);
        // Nobody takes any as long as there are no threads.
        lock(&engine.shared.lane.waiting).threads = THREADS;
        let nowhere = Path::new("/nowhere");
        for owner in [1, 2, 1] {
            lane.submit(owner, whole(nowhere));
        }
        assert_eq!(lane.cancel(1).count(), 2);
        assert_eq!(lane.cancel(1).count(), 0);
        lane.submit(3, whole(nowhere));
        lock(&engine.shared.lane.waiting).threads = 0;
        lane.submit(4, whole(nowhere));
        let made: BTreeSet<usize> = (0..3).map(|_| next(&told).0).collect();
        assert_eq!(made, BTreeSet::from([2, 3, 4]));
    }

    /// Waits on its thread until it is told to go on.
    struct Waits(Arc<Mutex<Receiver<()>>>, Mutex<Sender<(usize, Found)>>);

    impl std::fmt::Debug for Waits {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("waits")
        }
    }

    impl Errand for Waits {
        fn device(&self) -> DeviceId {
            DeviceId(7)
        }

        fn is_short(&self) -> bool {
            false
        }

        fn go(&self, _: &Bench<'_>) {
            let key = InodeKey::default();
            let (bytes, cold, took_us) = (0, false, 0.0);
            let found = Found::Opened {
                key,
                bytes,
                cold,
                took_us,
            };
            let _ = lock(&self.1).send((1, found));
            let _ = lock(&self.0).recv_timeout(Duration::from_secs(60));
        }
    }

    /// DR7: what threads of a lane of their own read is counted as that of all others: it is nobody else's.
    #[test]
    fn lanes_apart_are_counted() {
        let (engine, _, client, told) = lane(None);
        let apart = engine.lane_apart(client.clone());
        let (go_on, waits) = channel();
        let tell = lock(&client.tell).clone();
        let errand = Waits(Arc::new(Mutex::new(waits)), Mutex::new(tell));
        apart.submit(1, Call::Errand(Box::new(errand)));
        next(&told);
        assert_eq!(engine.lane_threads(), 1);
        go_on.send(()).unwrap();
        while engine.lane_threads() > 0 {
            std::thread::yield_now();
        }
    }
}
