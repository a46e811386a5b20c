//! What a program that goes through a tree will open next.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};

use outrider_sys::units::InodeKey;

use crate::engine::Listing;
use crate::intent::Target;
use crate::ledger::Holding;
use crate::tree::cursor::{Cursor, Step};
use crate::tree::known::{Place, Tree};
use crate::tree::order::{Order, judge};

/// The orders that are tried.
const ORDERS: [Order; 6] = Order::OF_FILES;

/// A file that comes so soon after another one in an order was foreseen by it: programs pass over files that don't concern them.
const NEAR: usize = 4;
/// Files foreseen in succession before anything is fetched.
const SURE: u32 = 2;
/// Streams per process: a program can go through two trees side by side, and their files can be large and small.
const STREAMS: usize = 4;
/// Those of them for which files are fetched: the latest.
const TWO: usize = 2;
/// Files ahead at first. It doubles when the program comes to one that isn't there yet.
const WINDOW: usize = 16;
/// A part of them that is asked for at once: then three quarters are there or on their way.
const BUNCHES: usize = 4;
/// Files fetched in vain, less those fetched well, after which the process is left alone.
const IN_VAIN: i32 = 64;
/// Most that earlier luck counts, files.
const CREDIT: i32 = 256;
/// Files in succession that nobody foresaw, after which the process is left alone.
const ASTRAY: u32 = 32;
/// Files in succession that were cached already, after which only what is not cached needs to be told.
const CACHED: u32 = 64;
/// Files that were passed over and may still be opened: threads that share a tree are not quite in order.
const PASSED: usize = 64;
/// Directories listed ahead at once, and from one file that the program opens to the next.
const LISTED_AHEAD: usize = 16;
const MOST_LISTED: usize = 256;
/// Files ahead at most.
const FILES: usize = 512;
/// What a file counts for that isn't there yet, until the first are, bytes.
const GUESS: u64 = 16 << 10;

/// A file that was asked for.
#[derive(Debug)]
struct Ahead {
    place: Place,
    /// `None`: it isn't there yet.
    here: Option<Here>,
}

/// What it took to have a file there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// Bytes that were not cached, as far as is known.
    pub bytes: u64,
    /// The program would have had to wait.
    pub cold: bool,
}

/// One way through a tree.
#[derive(Debug)]
struct Stream {
    /// The file that was opened last.
    at: Place,
    /// The directory that holds all that was seen of it.
    root: PathBuf,
    /// Index into [`ORDERS`].
    order: usize,
    /// How well each order foresaw lately.
    scores: [u32; ORDERS.len()],
    /// Files that were foreseen in succession.
    foreseen: u32,
    /// From where to go on.
    cursor: Cursor,
    ahead: VecDeque<Ahead>,
    /// What was ahead and was passed over.
    passed: VecDeque<Ahead>,
    window: usize,
    /// Directories that were asked for since the program opened a file.
    listed: usize,
}

/// What became of files that were fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files that were fetched and opened.
    pub used: u64,
    /// Their bytes.
    pub used_bytes: u64,
    /// Of these, those of files that were opened while they were on their way.
    pub late_bytes: u64,
    /// Bytes of those that were not opened.
    pub wasted_bytes: u64,
}

/// Whether a process is to tell of the files that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Of those that are not cached, to begin with.
    Cold,
    /// Of all, because what was fetched ahead is cached.
    All,
    /// The same, with whether they are cached: those that are not say what it is worth.
    Whether,
    /// For both reasons.
    AllAndWhether,
    /// Not for a while.
    Rest,
}

/// One process's streams, the latest first.
#[derive(Debug, Default)]
pub struct Walks {
    streams: VecDeque<Stream>,
    balance: i32,
    astray: u32,
    cached: u32,
    /// Files that were opened while they were on their way.
    late: HashSet<InodeKey>,
    /// Files that need not be fetched any more, if nobody has begun to.
    overtaken: Vec<InodeKey>,
    /// What is told at all is not cached.
    only_cold: bool,
    /// What was ahead when it was asked last what to do, and what would be.
    holding: Holding,
    tally: Tally,
    /// The process's number among all that there were, once it is known.
    pub who: Option<usize>,
}

/// The directory that holds both.
pub fn common(a: &Path, b: &Path) -> PathBuf {
    let shared = a.components().zip(b.components());
    shared.take_while(|(a, b)| a == b).map(|(a, _)| a).collect()
}

/// A directory whose entries are wanted.
fn listing(path: PathBuf) -> Target<'static> {
    Target::Listing(Listing::Whole {
        path,
        inodes: false,
    })
}

/// After how many files of an order, which begins behind `from`, `to` comes.
fn distance(tree: &Tree, root: &Path, order: usize, from: &Place, to: InodeKey) -> Option<usize> {
    let mut cursor = Cursor::after(from, ORDERS[order]);
    for steps in 1..=NEAR {
        match cursor.next_file(tree, root, ORDERS[order]) {
            Step::File(place) if place.key() == to => return Some(steps),
            Step::File(_) => {}
            Step::Unlisted(_) | Step::End => return None,
        }
    }
    None
}

impl Stream {
    fn new(at: Place, like: Option<&Stream>) -> Stream {
        let order = like.map_or(0, |s| s.order);
        Stream {
            root: at.dir.path.clone(),
            order,
            scores: like.map_or([0; ORDERS.len()], |s| s.scores),
            foreseen: 0,
            cursor: Cursor::after(&at, ORDERS[order]),
            ahead: VecDeque::new(),
            passed: VecDeque::new(),
            window: like.map_or(WINDOW, |s| s.window),
            listed: 0,
            at,
        }
    }

    /// What was asked for and has not been opened.
    fn left(&mut self) -> impl Iterator<Item = Ahead> + '_ {
        self.passed.drain(..).chain(self.ahead.drain(..))
    }

    /// The program has opened `place`, which was not asked for. `None`: it can't belong to this stream.
    fn follow(&mut self, tree: &Tree, place: &Place) -> Option<bool> {
        let root = common(&self.root, &place.dir.path);
        let key = place.key();
        let found: [Option<usize>; ORDERS.len()] =
            std::array::from_fn(|m| distance(tree, &root, m, &self.at, key));
        let foreseen = found.iter().any(Option::is_some);
        if !foreseen && self.at.dir.path != place.dir.path {
            return None;
        }
        self.order = judge(&mut self.scores, &found, self.order);
        self.foreseen = if foreseen { self.foreseen + 1 } else { 0 };
        self.root = root;
        self.listed = 0;
        self.at = place.clone();
        self.cursor = Cursor::after(place, ORDERS[self.order]);
        Some(foreseen)
    }

    /// A directory to be listed, so that the first file behind the end of what was seen is known when the program opens it: a quick one has closed
    /// it before anybody could ask what it was.
    fn beyond(&mut self, tree: &Tree) -> Option<PathBuf> {
        let above = self.root.parent().filter(|_| self.listed < MOST_LISTED)?;
        let mut scout = self.cursor.clone();
        match scout.next_file(tree, above, ORDERS[self.order]) {
            Step::Unlisted(path) => {
                self.listed += 1;
                Some(path)
            }
            Step::File(_) | Step::End => None,
        }
    }
}

impl Walks {
    /// Whether files are fetched that come next in an order.
    pub fn is_sure(&self) -> bool {
        self.streams.iter().take(TWO).any(|s| s.foreseen >= SURE)
    }

    /// The path of the directory in which the latest stream is.
    pub fn latest(&self) -> Option<&Path> {
        self.streams.front().map(|s| s.at.dir.path.as_path())
    }

    /// The program has opened a file.
    pub fn opened(&mut self, tree: &Tree, place: Place) -> Listen {
        let key = place.key();
        if self.streams.front().is_some_and(|s| s.at.key() == key) {
            // Told of twice, or opened twice.
            return self.verdict();
        }
        if self.only_cold {
            self.cached = 0;
        }
        for i in 0..self.streams.len() {
            let stream = &mut self.streams[i];
            let at = |list: &VecDeque<Ahead>| list.iter().position(|a| a.place.key() == key);
            let found = if let Some(k) = at(&stream.ahead) {
                stream.passed.extend(stream.ahead.drain(..k));
                stream.at = place.clone();
                stream.ahead.pop_front()
            } else {
                at(&stream.passed).and_then(|k| stream.passed.remove(k))
            };
            let Some(found) = found else {
                continue;
            };
            stream.listed = 0;
            let too_old = stream.passed.len().saturating_sub(PASSED);
            let too_old: Vec<Ahead> = stream.passed.drain(..too_old).collect();
            match found.here {
                Some(here) => self.use_up(here),
                None => {
                    stream.window = (2 * stream.window).min(FILES);
                    self.late.insert(key);
                    self.overtaken.push(key);
                }
            }
            self.give_up(too_old);
            self.bring_forward(i);
            self.astray = 0;
            return self.verdict();
        }
        let mut foreseen = false;
        let mine = (0..self.streams.len()).find(|i| {
            let followed = self.streams[*i].follow(tree, &place);
            foreseen = followed == Some(true);
            followed.is_some()
        });
        match mine {
            Some(i) => {
                let stream = &mut self.streams[i];
                let left: Vec<Ahead> = stream.left().collect();
                self.give_up(left);
                self.bring_forward(i);
            }
            None => {
                let new = Stream::new(place, self.streams.front());
                self.streams.push_front(new);
                if self.streams.len() > STREAMS
                    && let Some(mut old) = self.streams.pop_back()
                {
                    self.give_up(old.left());
                }
            }
        }
        self.lost(foreseen)
    }

    /// The program has opened a file of which it isn't known where it is.
    pub fn astray(&mut self) -> Listen {
        self.lost(false)
    }

    fn lost(&mut self, foreseen: bool) -> Listen {
        self.astray = if foreseen { 0 } else { self.astray + 1 };
        self.verdict()
    }

    fn verdict(&mut self) -> Listen {
        if self.astray >= ASTRAY || self.balance <= -IN_VAIN {
            self.clear();
            (self.astray, self.balance) = (0, 0);
            return Listen::Rest;
        }
        self.only_cold = !(self.is_sure() && self.cached < CACHED);
        if !self.only_cold {
            Listen::All
        } else {
            Listen::Cold
        }
    }

    fn bring_forward(&mut self, i: usize) {
        if i > 0
            && let Some(stream) = self.streams.remove(i)
        {
            self.streams.push_front(stream);
        }
    }

    fn use_up(&mut self, here: Here) {
        self.tally.used += u64::from(here.cold);
        self.tally.used_bytes += here.bytes;
        self.balance = (self.balance + i32::from(here.cold)).min(CREDIT);
    }

    fn give_up(&mut self, left: impl IntoIterator<Item = Ahead>) {
        for ahead in left {
            match ahead.here {
                Some(here) => {
                    self.tally.wasted_bytes += here.bytes;
                    self.balance -= i32::from(here.cold);
                }
                None => self.overtaken.push(ahead.place.key()),
            }
        }
    }

    /// Files that were asked for, since this was asked last, and need not be fetched any more.
    pub fn take_overtaken(&mut self) -> Vec<InodeKey> {
        std::mem::take(&mut self.overtaken)
    }

    /// A file that was asked for is not fetched.
    pub fn cancelled(&mut self, key: InodeKey) {
        self.late.remove(&key);
    }

    /// A file is there.
    pub fn arrived(&mut self, key: InodeKey, here: Here) {
        self.cached = if here.cold { 0 } else { self.cached + 1 };
        let lists = self
            .streams
            .iter_mut()
            .flat_map(|s| [&mut s.ahead, &mut s.passed]);
        let waiting = |a: &&mut Ahead| a.place.key() == key && a.here.is_none();
        if let Some(ahead) = lists.flatten().find(waiting) {
            ahead.here = Some(here);
        } else if self.late.remove(&key) {
            self.tally.late_bytes += here.bytes;
            self.use_up(here);
        } else {
            // The program went elsewhere.
            self.tally.wasted_bytes += here.bytes;
            self.balance -= i32::from(here.cold);
        }
    }

    /// A file that was asked for and is there.
    fn arrived_mut(&mut self, key: InodeKey) -> Option<&mut Here> {
        let lists = self
            .streams
            .iter_mut()
            .flat_map(|s| [&mut s.ahead, &mut s.passed]);
        let mut all = lists.flatten().filter(|a| a.place.key() == key);
        all.find_map(|ahead| ahead.here.as_mut())
    }

    /// What it took to have a file there that was asked for; `None`: it isn't there.
    pub fn here(&mut self, key: InodeKey) -> Option<Here> {
        self.arrived_mut(key).copied()
    }

    /// What was fetched of a file is not cached any more; that it was looked up may be of use still.
    pub fn dropped(&mut self, key: InodeKey) {
        if let Some(here) = self.arrived_mut(key) {
            let bytes = std::mem::take(&mut here.bytes);
            self.tally.wasted_bytes += bytes;
        }
    }

    /// What to do next, with at most `most` bytes ahead that were fetched and not read.
    pub fn wanted(&mut self, tree: &Tree, most: u64) -> Vec<Target<'static>> {
        let (mut unread, mut here, mut coming) = (0, 0, 0);
        for ahead in self.streams.iter().flat_map(|s| &s.ahead) {
            match ahead.here {
                Some(there) => (unread, here) = (unread + there.bytes, here + 1),
                None => coming += 1,
            }
        }
        let each = u64::checked_div(unread, here).unwrap_or(GUESS);
        let held = unread + coming * each;
        let begin = most.saturating_sub(held);
        let mut room = begin;
        let mut wants = Vec::new();
        let known_cold = self.cached < CACHED;
        // More is asked for once it is so many: each time threads are woken for it.
        let low = |s: &Stream| s.ahead.len() + s.window / BUNCHES <= s.window;
        let sure = |s: &&mut Stream| s.foreseen >= SURE && known_cold && low(s);
        let mut going: Vec<_> = self.streams.iter_mut().take(TWO).filter(sure).collect();
        while room > each {
            // The one that has less ahead: they share the room.
            let short = |(_, s): &(usize, &&mut Stream)| s.ahead.len() < s.window;
            let shorts = going.iter().enumerate().filter(short);
            let Some((i, _)) = shorts.min_by_key(|(_, s)| s.ahead.len()) else {
                break;
            };
            let stream = &mut *going[i];
            let order = ORDERS[stream.order];
            match stream.cursor.next_file(tree, &stream.root, order) {
                Step::File(place) => {
                    room -= each;
                    wants.push(Target::Entry(place.clone(), None));
                    stream.ahead.push_back(Ahead { place, here: None });
                    continue;
                }
                Step::Unlisted(path) if stream.listed < MOST_LISTED => {
                    let more = stream.cursor.unlisted(tree, order, LISTED_AHEAD);
                    stream.listed += 1;
                    wants.extend(std::iter::once(path).chain(more).map(listing));
                }
                Step::Unlisted(_) => {}
                Step::End => wants.extend(stream.beyond(tree).map(listing)),
            }
            going.swap_remove(i);
        }
        let short = going.iter().map(|s| s.window.saturating_sub(s.ahead.len()));
        self.holding = Holding {
            held: held + begin - room,
            short: short.sum::<usize>() as u64 * each,
        };
        wants
    }

    /// Bytes that are ahead, on their way among them, and those that would be if there were room; as of when it was asked last what to do.
    pub fn holding(&self) -> Holding {
        self.holding
    }

    /// Forgets all streams: what was fetched for them was in vain.
    pub fn clear(&mut self) {
        for mut stream in std::mem::take(&mut self.streams) {
            self.give_up(stream.left());
        }
        self.holding = Holding::default();
    }

    /// What became of files since this was asked last.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The same, from zero again.
    pub fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::known::{Directory, Entry};

    const FILE_SYSTEM: u64 = 5;

    /// A directory of so many files.
    fn tree(files: u64) -> Tree {
        let entry = |n: u64| Entry {
            name: format!("{n:04}").into(),
            ino: 100 + n,
            directory: false,
        };
        let entries = (0..files).map(entry).collect();
        let key = InodeKey::new(FILE_SYSTEM, 1);
        let mut tree = Tree::default();
        tree.insert(Directory::new("/d".into(), key, (0, 0), entries));
        tree
    }

    fn key(n: u64) -> InodeKey {
        InodeKey::new(FILE_SYSTEM, 100 + n)
    }

    fn open(walks: &mut Walks, tree: &Tree, n: u64) {
        walks.opened(tree, tree.find(key(n)).unwrap());
    }

    /// The files that are asked for.
    fn asked(walks: &mut Walks, tree: &Tree, most: u64) -> Vec<InodeKey> {
        let file = |target| match target {
            Target::Entry(place, _) => Some(place.key()),
            _ => None,
        };
        let wanted = walks.wanted(tree, most).into_iter();
        wanted.filter_map(file).collect()
    }

    /// Whatever there is memory for, no more than that is ahead; what would be is told, and is asked for once there is room. Files are asked for in order,
    /// each once.
    #[test]
    fn memory_bounds_what_is_ahead() {
        let tree = tree(400);
        let mut walks = Walks::default();
        for n in 0..4 {
            open(&mut walks, &tree, n);
        }
        let each = GUESS;
        assert_eq!(asked(&mut walks, &tree, each), []);
        let nothing = Holding {
            held: 0,
            short: WINDOW as u64 * each,
        };
        assert_eq!(walks.holding(), nothing);

        let four = asked(&mut walks, &tree, 5 * each);
        assert_eq!(four, (4..8).map(key).collect::<Vec<_>>());
        let some = Holding {
            held: 4 * each,
            short: (WINDOW as u64 - 4) * each,
        };
        assert_eq!(walks.holding(), some);

        // They are there, larger than believed, and only one has been read.
        let (bytes, cold) = (2 * GUESS, true);
        for file in four {
            walks.arrived(file, Here { bytes, cold });
        }
        open(&mut walks, &tree, 4);
        assert_eq!(asked(&mut walks, &tree, 8 * each), []);
        assert_eq!(walks.holding().held, 6 * each);
        let rest = asked(&mut walks, &tree, u64::MAX);
        assert_eq!(rest, (8..5 + WINDOW as u64).map(key).collect::<Vec<_>>());
        assert_eq!(walks.holding().short, 0);

        walks.clear();
        assert_eq!(walks.holding(), Holding::default());
    }
}
