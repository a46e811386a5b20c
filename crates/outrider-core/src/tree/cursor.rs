//! What comes next in an order of a tree that is known, in parts or whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::known::{Directory, Place, Tree};
use super::order::Order;

/// Entries that are passed over from one file to the next, at most.
const STEPS: usize = 4096;

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
