//! Tree order: the orders in which programs go through trees, and what comes next in one.
//!
//! Every program is done with a subdirectory, and with all that is below it, before it comes to what lies behind. They differ in how they sort a
//! directory's entries, from which end they take them, and whether files come before subdirectories.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::known::{Directory, Place, Tree};

/// Entries that are passed over from one file to the next, at most.
const STEPS: usize = 4096;

/// How the entries of a directory are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sorting {
    /// As the kernel lists them (tar, grep).
    Listed,
    /// By name, byte by byte (diff, rsync, sorted lists).
    Name,
    /// By inode number (cp, and whoever saves seeks).
    Inode,
}

/// An order in which a tree is gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub(super) sorting: Sorting,
    /// The last one first, as by those who put what they find on a stack.
    pub(super) backwards: bool,
    /// A directory's files come before its subdirectories; otherwise a subdirectory is entered when its turn comes.
    files_first: bool,
}

impl Order {
    /// As the kernel lists the entries, each subdirectory when its turn comes: that of programs that keep nothing in mind, and of graphs' walks.
    pub const LISTED: Order = Order {
        sorting: Sorting::Listed,
        backwards: false,
        files_first: false,
    };
    const BY_NAME: Order = Order {
        sorting: Sorting::Name,
        ..Order::LISTED
    };
    const BY_INODE: Order = Order {
        sorting: Sorting::Inode,
        ..Order::LISTED
    };

    /// Those in which programs open files.
    pub const OF_FILES: [Order; 6] = [
        Order::LISTED,
        Order::BY_NAME,
        Order::BY_INODE,
        Order::LISTED.files_first(),
        Order::BY_NAME.files_first(),
        Order::BY_INODE.files_first(),
    ];

    /// Those in which programs list directories.
    pub const OF_DIRECTORIES: [Order; 6] = [
        Order::LISTED,
        Order::BY_NAME,
        Order::BY_INODE,
        Order::LISTED.backwards(),
        Order::BY_NAME.backwards(),
        Order::BY_INODE.backwards(),
    ];

    const fn files_first(self) -> Order {
        Order {
            files_first: true,
            ..self
        }
    }

    const fn backwards(self) -> Order {
        Order {
            backwards: true,
            ..self
        }
    }
}

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
    pub fn after(place: &Place, order: Order) -> Cursor {
        Cursor {
            dir: place.dir.clone(),
            next: place.dir.behind(order, place.entry),
            only_directories: false,
        }
    }

    /// Right after a directory's opening: what is in it comes next if it is listed, otherwise what lies behind. `None`: nor is the one that holds it.
    pub fn into(path: &Path, tree: &Tree, order: Order) -> Option<Cursor> {
        match tree.get(path) {
            Some(dir) => Some(Cursor::before(dir)),
            None => Cursor::behind(path, tree, order).ok(),
        }
    }

    /// At a directory's beginning.
    fn before(dir: &Arc<Directory>) -> Cursor {
        Cursor {
            dir: dir.clone(),
            next: 0,
            only_directories: false,
        }
    }

    /// Behind a directory and all that is in it; or why that is not possible.
    fn behind(path: &Path, tree: &Tree, order: Order) -> Result<Cursor, Step> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Step::End);
        };
        let Some(dir) = tree.get(above) else {
            return Err(Step::Unlisted(above.to_owned()));
        };
        let me = dir.named(name).ok_or(Step::End)?;
        Ok(Cursor {
            next: dir.behind(order, me),
            only_directories: order.files_first,
            dir: dir.clone(),
        })
    }

    /// Goes on by one entry, and up where a directory has ended, though not out of `root`. `Ok(None)`: to something that is passed over.
    fn step(&mut self, tree: &Tree, root: &Path, order: Order) -> Result<Option<usize>, Step> {
        let Some(entry) = self.dir.in_order(order, self.next) else {
            if order.files_first && !self.only_directories {
                (self.next, self.only_directories) = (0, true);
            } else if self.dir.path == root {
                return Err(Step::End);
            } else {
                *self = Cursor::behind(&self.dir.path, tree, order)?;
            }
            return Ok(None);
        };
        self.next += 1;
        let in_turn =
            !order.files_first || self.only_directories == self.dir.entries[entry].directory;
        Ok(in_turn.then_some(entry))
    }

    /// Goes on to the next file, within `root`. On [`Step::Unlisted`] the cursor stays, so that it can be asked again.
    pub fn next_file(&mut self, tree: &Tree, root: &Path, order: Order) -> Step {
        for _ in 0..STEPS {
            let entry = match self.step(tree, root, order) {
                Ok(Some(entry)) => entry,
                Ok(None) => continue,
                Err(step) => return step,
            };
            let e = &self.dir.entries[entry];
            if !e.directory {
                return Step::File(Place {
                    dir: self.dir.clone(),
                    entry,
                });
            }
            let path = self.dir.path.join(&e.name);
            let Some(child) = tree.get(&path) else {
                self.next -= 1;
                return Step::Unlisted(path);
            };
            *self = Cursor::before(child);
        }
        Step::End
    }

    /// Goes on to the next directory, within `root`, and says what is known of it. What isn't listed is passed over with all that is in it.
    pub fn next_directory<'a>(
        &mut self,
        tree: &'a Tree,
        root: &Path,
        order: Order,
    ) -> Option<(PathBuf, Option<&'a Arc<Directory>>)> {
        loop {
            let Some(entry) = self.step(tree, root, order).ok()? else {
                continue;
            };
            let e = &self.dir.entries[entry];
            if e.directory {
                let path = self.dir.path.join(&e.name);
                let known = tree.get(&path);
                if let Some(child) = known {
                    *self = Cursor::before(child);
                }
                return Some((path, known));
            }
        }
    }

    /// Directories that are entered soon and not listed yet, at most `most`: of those that are left in this directory.
    pub fn unlisted(&self, tree: &Tree, order: Order, most: usize) -> Vec<PathBuf> {
        let next = if order.files_first && !self.only_directories {
            0
        } else {
            self.next
        };
        (next..)
            .map_while(|place| self.dir.in_order(order, place))
            .map(|entry| &self.dir.entries[entry])
            .filter(|e| e.directory)
            .map(|e| self.dir.path.join(&e.name))
            .filter(|path| tree.get(path).is_none())
            .take(most)
            .collect()
    }
}
