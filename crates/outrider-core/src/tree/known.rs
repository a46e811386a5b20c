//! Directories as far as they are known.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrider_sys::units::InodeKey;

use super::inode_block;
use super::order::{Order, Sorting};

/// What is remembered of all directories together takes so many bytes: some 130,000 entries.
const MOST_BYTES: usize = 32 << 20;
/// An entry, in the listing, in its orders, and by its inode, besides its name; a directory, besides its path.
const ENTRY_BYTES: usize = 192;
const DIRECTORY_BYTES: usize = 384;

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
    pub(super) fn in_order(&self, order: Order, place: usize) -> Option<usize> {
        let count = self.entries.len();
        let place = if order.backwards {
            count.checked_sub(place + 1)?
        } else {
            place
        };
        match self.sorted(order.sorting) {
            None => (place < count).then_some(place),
            Some((sorted, _)) => sorted.get(place).map(|e| *e as usize),
        }
    }

    /// The place behind an entry in an order.
    pub(super) fn behind(&self, order: Order, entry: usize) -> usize {
        let sorted = self.sorted(order.sorting);
        let place = sorted.map_or(entry, |(_, places)| {
            places.get(entry).map_or(0, |place| *place as usize)
        });
        if order.backwards {
            self.entries.len() - place
        } else {
            place + 1
        }
    }

    /// The entries in the order of their inodes, which is about that in which they lie.
    pub fn by_inode(&self) -> impl Iterator<Item = usize> {
        self.sorted[1].0.iter().map(|entry| *entry as usize)
    }

    /// The entry at a place of that order.
    pub fn entry_by_inode(&self, rank: usize) -> Option<usize> {
        self.sorted[1].0.get(rank).map(|entry| *entry as usize)
    }

    /// The place of an entry in that order.
    pub fn rank_by_inode(&self, entry: usize) -> usize {
        self.sorted[1].1[entry] as usize
    }

    /// Names of entries whose inodes lie in different blocks, in the order of the listing.
    pub fn one_of_each_block(&self) -> impl Iterator<Item = &OsString> {
        let mut blocks = HashSet::new();
        let first = move |e: &&Entry| blocks.insert(inode_block::of(e.ino));
        self.entries.iter().filter(first).map(|e| &e.name)
    }

    /// The entry of this name.
    pub(super) fn named(&self, name: &OsStr) -> Option<usize> {
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

    /// Its name.
    pub fn name(&self) -> &OsStr {
        &self.dir.entries[self.entry].name
    }

    /// Its absolute path.
    pub fn path(&self) -> PathBuf {
        self.dir.path.join(self.name())
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
