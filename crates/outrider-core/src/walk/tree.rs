//! Directories as far as they are known, and the orders in which programs go through them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrider_sys::units::InodeKey;

/// What is remembered of all directories together takes so many bytes: some 130,000 entries.
const MOST_BYTES: usize = 32 << 20;
/// An entry, in the listing, in its orders, and by its inode, besides its name; a directory, besides its path.
const ENTRY_BYTES: usize = 192;
const DIRECTORY_BYTES: usize = 384;

/// Entries that are passed over from one file to the next, at most.
const STEPS: usize = 4096;

/// An entry of a directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name.
    pub name: OsString,
    /// Its inode number.
    pub ino: u64,
    /// A directory; otherwise a regular file. There are no others in a listing.
    pub directory: bool,
}

/// How the entries of a directory are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sorting {
    /// As the kernel lists them (tar, grep).
    Listed,
    /// By name, byte by byte (diff, rsync, sorted lists).
    Name,
    /// By inode number (cp, and whoever saves seeks).
    Inode,
}

/// An order in which a tree is gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    sorting: Sorting,
    /// A directory's files come before its subdirectories; otherwise a subdirectory is entered when its turn comes.
    files_first: bool,
}

/// All of them.
pub const MANNERS: [Manner; 6] = {
    const fn both(sorting: Sorting) -> [Manner; 2] {
        [
            Manner {
                sorting,
                files_first: false,
            },
            Manner {
                sorting,
                files_first: true,
            },
        ]
    }
    let (l, n, i) = (
        both(Sorting::Listed),
        both(Sorting::Name),
        both(Sorting::Inode),
    );
    [l[0], n[0], i[0], l[1], n[1], i[1]]
};

/// In which order the subdirectories of a directory are entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    sorting: Sorting,
    /// The last one first, as by those who put what they find on a stack.
    backwards: bool,
}

/// All of them.
pub const ORDERS: [Order; 6] = {
    const fn order(sorting: Sorting, backwards: bool) -> Order {
        Order { sorting, backwards }
    }
    [
        order(Sorting::Listed, false),
        order(Sorting::Name, false),
        order(Sorting::Inode, false),
        order(Sorting::Listed, true),
        order(Sorting::Name, true),
        order(Sorting::Inode, true),
    ]
};

/// Lets each of several orders gain by after how many `steps` it came to what was opened; which of them is the best one now, `last` being the one so far.
pub fn judge<const N: usize>(
    scores: &mut [u32; N],
    steps: &[Option<usize>; N],
    last: usize,
) -> usize {
    for (score, steps) in scores.iter_mut().zip(steps) {
        let luck = match steps {
            Some(1) => 8,
            Some(_) => 1,
            None => 0,
        };
        *score = *score * 3 / 4 + luck;
    }
    let best = (0..N).rev().max_by_key(|o| (scores[*o], *o == last));
    best.unwrap_or(0)
}

/// A listed directory.
#[derive(Debug)]
pub struct Directory {
    /// Its absolute path.
    pub path: PathBuf,
    /// What the path has to lead to.
    pub key: InodeKey,
    /// Its time of modification when it was listed, s and ns.
    pub modified: (i64, u64),
    /// Regular files and directories in it, as listed.
    pub entries: Vec<Entry>,
    /// For names and inode numbers: the entries in this order, and each entry's place in it.
    sorted: [(Vec<u32>, Vec<u32>); 2],
    /// Bytes that it takes, about.
    bytes: usize,
}

impl Directory {
    /// `entries` as listed. One that can't be listed has none.
    pub fn new(
        path: PathBuf,
        key: InodeKey,
        modified: (i64, u64),
        entries: Vec<Entry>,
    ) -> Directory {
        let sort = |less: &dyn Fn(&Entry, &Entry) -> std::cmp::Ordering| {
            let mut order: Vec<u32> = (0..entries.len() as u32).collect();
            order.sort_by(|a, b| less(&entries[*a as usize], &entries[*b as usize]));
            let mut places = vec![0; order.len()];
            for (place, entry) in order.iter().enumerate() {
                places[*entry as usize] = place as u32;
            }
            (order, places)
        };
        let sorted = [
            sort(&|a, b| a.name.as_bytes().cmp(b.name.as_bytes())),
            sort(&|a, b| a.ino.cmp(&b.ino)),
        ];
        let names: usize = entries.iter().map(|e| e.name.len()).sum();
        // The path is the key by which it is found, too, and that of its patience.
        let bytes =
            DIRECTORY_BYTES + 3 * path.as_os_str().len() + entries.len() * ENTRY_BYTES + names;
        Directory {
            bytes,
            path,
            key,
            modified,
            entries,
            sorted,
        }
    }

    fn sorted(&self, sorting: Sorting) -> Option<&(Vec<u32>, Vec<u32>)> {
        match sorting {
            Sorting::Listed => None,
            Sorting::Name => Some(&self.sorted[0]),
            Sorting::Inode => Some(&self.sorted[1]),
        }
    }

    /// The entry at a place of an order.
    fn at(&self, sorting: Sorting, place: usize) -> Option<usize> {
        match self.sorted(sorting) {
            None => (place < self.entries.len()).then_some(place),
            Some((order, _)) => order.get(place).map(|e| *e as usize),
        }
    }

    /// An entry's place in an order.
    fn place(&self, sorting: Sorting, entry: usize) -> usize {
        match self.sorted(sorting) {
            None => entry,
            Some((_, places)) => places.get(entry).map_or(0, |p| *p as usize),
        }
    }

    /// The entry at a place of an order.
    fn in_order(&self, order: Order, place: usize) -> Option<usize> {
        let place = if order.backwards {
            self.entries.len().checked_sub(place + 1)?
        } else {
            place
        };
        self.at(order.sorting, place)
    }

    /// The place behind an entry in an order.
    fn behind(&self, order: Order, entry: usize) -> usize {
        let place = self.place(order.sorting, entry);
        if order.backwards {
            self.entries.len() - place
        } else {
            place + 1
        }
    }

    fn named(&self, name: &OsStr) -> Option<usize> {
        let (order, _) = &self.sorted[0];
        let found = order.binary_search_by(|e| {
            self.entries[*e as usize]
                .name
                .as_bytes()
                .cmp(name.as_bytes())
        });
        found.ok().map(|at| order[at] as usize)
    }
}

/// A file or a directory in a listed directory.
#[derive(Clone, Debug)]
pub struct Place {
    /// The directory.
    pub dir: Arc<Directory>,
    /// The entry's number.
    pub entry: usize,
}

impl Place {
    /// Its identity.
    pub fn key(&self) -> InodeKey {
        InodeKey::new(self.dir.key.dev, self.dir.entries[self.entry].ino)
    }

    /// Its absolute path.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(&self.dir.entries[self.entry].name)
    }
}

/// The directories that are known.
#[derive(Debug, Default)]
pub struct Tree {
    dirs: HashMap<PathBuf, Arc<Directory>>,
    places: HashMap<InodeKey, Place>,
    /// What all of them take.
    bytes: usize,
}

impl Tree {
    /// The directory with this path.
    pub fn get(&self, path: &Path) -> Option<&Arc<Directory>> {
        self.dirs.get(path)
    }

    /// Where a file or a directory is, if what holds it is known.
    pub fn find(&self, key: InodeKey) -> Option<Place> {
        self.places.get(&key).cloned()
    }

    /// Takes a directory in. `false`: there was no room, and all that was known before is forgotten.
    pub fn insert(&mut self, dir: Directory) -> bool {
        if let Some(old) = self.dirs.remove(&dir.path) {
            self.bytes -= old.bytes;
            for entry in &old.entries {
                self.places.remove(&InodeKey::new(old.key.dev, entry.ino));
            }
        }
        let room = self.bytes + dir.bytes <= MOST_BYTES;
        if !room {
            self.clear();
        }
        self.bytes += dir.bytes;
        let dir = Arc::new(dir);
        for entry in 0..dir.entries.len() {
            let place = Place {
                dir: dir.clone(),
                entry,
            };
            self.places.insert(place.key(), place);
        }
        self.dirs.insert(dir.path.clone(), dir);
        room
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.dirs.clear();
        self.places.clear();
        self.bytes = 0;
    }
}

/// What comes next in an order.
#[derive(Debug)]
pub enum Step {
    /// A file.
    File(Place),
    /// Not known before this directory is listed.
    Unlisted(PathBuf),
    /// Nothing.
    End,
}

/// A place in an order, and what is left after it.
#[derive(Clone, Debug)]
pub struct Cursor {
    dir: Arc<Directory>,
    /// The next place in the directory's order.
    next: usize,
    /// Only the subdirectories are left.
    only_directories: bool,
}

impl Cursor {
    /// Right after a file.
    pub fn after(place: &Place, manner: Manner) -> Cursor {
        Cursor {
            dir: place.dir.clone(),
            next: place.dir.place(manner.sorting, place.entry) + 1,
            only_directories: false,
        }
    }

    fn before(dir: &Arc<Directory>) -> Cursor {
        Cursor {
            dir: dir.clone(),
            next: 0,
            only_directories: false,
        }
    }

    /// Goes on to the next file, within `root`. On [`Step::Unlisted`] the cursor stays, so that it can be asked again.
    pub fn advance(&mut self, tree: &Tree, root: &Path, manner: Manner) -> Step {
        for _ in 0..STEPS {
            let Some(entry) = self.dir.at(manner.sorting, self.next) else {
                if manner.files_first && !self.only_directories {
                    (self.next, self.only_directories) = (0, true);
                    continue;
                }
                match self.climb(tree, root, manner) {
                    Some(step) => return step,
                    None => continue,
                }
            };
            let e = &self.dir.entries[entry];
            if !e.directory {
                self.next += 1;
                if manner.files_first && self.only_directories {
                    continue;
                }
                return Step::File(Place {
                    dir: self.dir.clone(),
                    entry,
                });
            }
            if manner.files_first && !self.only_directories {
                self.next += 1;
                continue;
            }
            let path = self.dir.path.join(&e.name);
            match tree.get(&path) {
                Some(child) => *self = Cursor::before(child),
                None => return Step::Unlisted(path),
            }
        }
        Step::End
    }

    /// Goes up; `Some` if that is not possible.
    fn climb(&mut self, tree: &Tree, root: &Path, manner: Manner) -> Option<Step> {
        let path = &self.dir.path;
        let above = path.parent().filter(|_| path != root);
        let (Some(above), Some(name)) = (above, path.file_name()) else {
            return Some(Step::End);
        };
        let Some(parent) = tree.get(above) else {
            return Some(Step::Unlisted(above.to_owned()));
        };
        let Some(me) = parent.named(name) else {
            return Some(Step::End);
        };
        *self = Cursor {
            next: parent.place(manner.sorting, me) + 1,
            only_directories: manner.files_first,
            dir: parent.clone(),
        };
        None
    }

    /// Directories that are entered soon and not listed yet, at most `most`: of those that are left in this directory.
    pub fn unlisted(&self, tree: &Tree, manner: Manner, most: usize) -> Vec<PathBuf> {
        let next = if manner.files_first && !self.only_directories {
            0
        } else {
            self.next
        };
        (next..)
            .map_while(|place| self.dir.at(manner.sorting, place))
            .map(|entry| &self.dir.entries[entry])
            .filter(|e| e.directory)
            .map(|e| self.dir.path.join(&e.name))
            .filter(|path| tree.get(path).is_none())
            .take(most)
            .collect()
    }
}

/// The directories that are entered after one, each before what is in it.
#[derive(Clone, Debug)]
pub struct Descent {
    dir: Arc<Directory>,
    /// The next place in the directory's order.
    next: usize,
}

impl Descent {
    /// Behind a listed directory, and before those in it.
    fn into(dir: &Arc<Directory>) -> Descent {
        Descent {
            dir: dir.clone(),
            next: 0,
        }
    }

    /// Behind a directory, with those in it if it is listed. `None`: neither it nor the one that holds it is.
    pub fn after(path: &Path, tree: &Tree, order: Order) -> Option<Descent> {
        match tree.get(path) {
            Some(dir) => Some(Descent::into(dir)),
            None => Descent::behind(path, tree, order),
        }
    }

    fn behind(path: &Path, tree: &Tree, order: Order) -> Option<Descent> {
        let parent = tree.get(path.parent()?)?;
        let me = parent.named(path.file_name()?)?;
        Some(Descent {
            next: parent.behind(order, me),
            dir: parent.clone(),
        })
    }

    /// The next directory within `root`, and what is known of it. What isn't listed is passed over with all that is in it.
    pub fn advance<'a>(
        &mut self,
        tree: &'a Tree,
        root: &Path,
        order: Order,
    ) -> Option<(PathBuf, Option<&'a Arc<Directory>>)> {
        loop {
            let Some(entry) = self.dir.in_order(order, self.next) else {
                self.climb(tree, root, order)?;
                continue;
            };
            self.next += 1;
            let e = &self.dir.entries[entry];
            if e.directory {
                let path = self.dir.path.join(&e.name);
                let known = tree.get(&path);
                if let Some(child) = known {
                    *self = Descent::into(child);
                }
                return Some((path, known));
            }
        }
    }

    fn climb(&mut self, tree: &Tree, root: &Path, order: Order) -> Option<()> {
        let path = Some(&self.dir.path).filter(|path| *path != root)?;
        *self = Descent::behind(path, tree, order)?;
        Some(())
    }
}
