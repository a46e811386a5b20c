//! Which directories a program lists next: find, du, ls -R, rsync, git.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::stream::{Listen, common};
use crate::engine::Listing;
use crate::intent::Target;
use crate::tree::cursor::Cursor;
use crate::tree::known::Tree;
use crate::tree::order::{Order, judge};

/// The orders that are tried.
const ORDERS: [Order; 6] = Order::OF_DIRECTORIES;

/// A directory that comes so soon after another one in an order was foreseen by it: some are passed over.
const NEAR: usize = 4;
/// Directories foreseen in succession before any is listed ahead.
const SURE: u32 = 2;
/// Directories in succession that nobody foresaw, after which none is until that many are foreseen again.
const UNSURE: u32 = 4;
/// The same, after which the process is left alone.
const ASTRAY: u32 = 32;
/// Directories ahead at first. It doubles when the program comes to one that isn't listed yet.
const WINDOW: usize = 16;
/// Directories ahead at most, and entries in them.
const MOST: usize = 512;
const MOST_ENTRIES: usize = 8192;
/// Directories being listed at once, below which more are asked for, up to twice as many: what is found in them is needed before those behind them.
const AT_ONCE: usize = 32;
/// Directories that were asked for and not opened, which are remembered: who goes elsewhere leaves some behind.
const REMEMBERED: usize = 4 * MOST;
/// Directories in succession that were cached already, after which only what is not cached needs to be told.
const CACHED: u32 = 64;
/// How sure it can be, in directories, that attributes are asked for.
const VOTES: i32 = 4;

/// A directory that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It isn't listed yet.
    Coming,
    /// Something had to be read to list it.
    Cold,
    /// Nothing had to.
    Cached,
}

/// What one process lists.
#[derive(Debug, Default)]
pub struct Visits {
    /// The directory that was opened last.
    at: Option<PathBuf>,
    /// The directory that holds all that were opened.
    root: PathBuf,
    /// Index into [`ORDERS`].
    order: usize,
    /// How well each order foresaw lately.
    scores: [u32; ORDERS.len()],
    /// Directories that were foreseen in succession.
    foreseen: u32,
    astray: u32,
    sure: bool,
    cached: u32,
    window: usize,
    /// Directories that were opened since it was looked last what comes next, and whether any was listed.
    since: usize,
    news: bool,
    /// What was asked for and has not been opened.
    ahead: HashMap<PathBuf, State>,
    /// So many of these aren't listed yet.
    coming: usize,
    /// Attributes that the program had asked for when it opened the last directory.
    asked: u32,
    /// How often lately it asked for those of a directory's files, less how often it did not.
    votes: i32,
    /// Directories that were listed ahead, not cached, and opened.
    used: u64,
}

impl Visits {
    /// The directory that was opened last.
    pub fn latest(&self) -> Option<&Path> {
        self.at.as_deref()
    }

    /// Whether directories are listed ahead.
    pub fn is_sure(&self) -> bool {
        self.sure && self.cached < CACHED
    }

    /// Whether the program asks for the attributes of what it finds.
    pub fn asks(&self) -> bool {
        self.votes > 0
    }

    /// The program has opened a directory, and asked for the attributes of `asked` files so far, modulo 2^32.
    pub fn opened(&mut self, tree: &Tree, path: &Path, asked: u32) -> Listen {
        self.vote(tree, asked);
        let Some(last) = self.at.replace(path.to_owned()) else {
            self.root = path.to_owned();
            return self.verdict(false);
        };
        self.root = common(&self.root, path);
        self.since += 1;
        self.news |= tree.get(path).is_none();
        let expected = self.count(path);
        let foreseen = self.score(tree, &last, path);
        let late = expected == Some(State::Coming);
        if late || expected.is_none() && foreseen && tree.get(path).is_none() {
            self.window = (2 * self.window).min(MOST);
        }
        self.verdict(foreseen || expected.is_some())
    }

    /// The program has opened a directory of which it isn't known where it is.
    pub fn astray(&mut self) -> Listen {
        self.verdict(false)
    }

    /// The program has opened a directory, which counts if it was listed ahead.
    pub fn count(&mut self, path: &Path) -> Option<State> {
        let expected = self.ahead.remove(path);
        self.used += u64::from(expected == Some(State::Cold));
        self.coming -= usize::from(expected == Some(State::Coming));
        expected
    }

    /// Every order by which `path` comes soon after `last` gains. As long as the best one is right, the others are not looked at.
    fn score(&mut self, tree: &Tree, last: &Path, path: &Path) -> bool {
        let steps = |order| {
            let mut cursor = Cursor::into(last, tree, order)?;
            let mut next = || Some(cursor.next_directory(tree, &self.root, order)?.0);
            (1..=NEAR).find(|_| next().is_some_and(|next| next == path))
        };
        if self.sure && steps(ORDERS[self.order]) == Some(1) {
            return true;
        }
        let found = ORDERS.map(steps);
        self.order = judge(&mut self.scores, &found, self.order);
        found.iter().any(Option::is_some)
    }

    /// Learns from the last directory whether attributes are asked for. One that has subdirectories may not be done with.
    fn vote(&mut self, tree: &Tree, asked: u32) {
        let since = asked.wrapping_sub(self.asked) as usize;
        self.asked = asked;
        let Some(last) = self.at.as_ref().and_then(|last| tree.get(last)) else {
            return;
        };
        let below = last.entries.iter().filter(|e| e.directory).count();
        let files = last.entries.len() - below;
        if files > 0 && 2 * since >= files {
            self.votes = (self.votes + 1).min(VOTES);
        } else if files > 0 && below == 0 {
            self.votes = (self.votes - 1).max(-VOTES);
        }
    }

    fn verdict(&mut self, foreseen: bool) -> Listen {
        if foreseen {
            (self.foreseen, self.astray) = (self.foreseen + 1, 0);
            self.sure |= self.foreseen >= SURE;
        } else {
            (self.foreseen, self.astray) = (0, self.astray + 1);
            self.sure &= self.astray < UNSURE;
        }
        if self.astray >= ASTRAY {
            *self = Visits {
                used: self.used,
                ..Visits::default()
            };
            return Listen::Rest;
        }
        if self.is_sure() {
            Listen::All
        } else {
            self.cached = 0;
            Listen::Cold
        }
    }

    /// A directory is listed; `cold`: something had to be read for that. Whether that, and before the program has opened it.
    pub fn arrived(&mut self, path: &Path, cold: bool) -> bool {
        self.cached = if cold { 0 } else { self.cached + 1 };
        self.news = true;
        let Some(ahead) = self.ahead.get_mut(path) else {
            return false;
        };
        self.coming -= usize::from(*ahead == State::Coming);
        *ahead = if cold { State::Cold } else { State::Cached };
        cold
    }

    /// The directories to be listed next, in their order; with inodes in them, where the program asks for attributes.
    pub fn wanted(&mut self, tree: &Tree) -> impl Iterator<Item = Target<'static>> {
        let inodes = self.asks();
        let listing = move |path| Listing::Whole { path, inodes };
        let paths = self.next_directories(tree).into_iter();
        paths.map(listing).map(Target::Listing)
    }

    fn next_directories(&mut self, tree: &Tree) -> Vec<PathBuf> {
        let mut wanted = Vec::new();
        let Some(at) = self.at.as_ref().filter(|_| self.is_sure()) else {
            return wanted;
        };
        self.window = self.window.max(WINDOW);
        let due = self.news || self.since >= self.window / 4;
        if !due || self.coming >= AT_ONCE {
            return wanted;
        }
        (self.since, self.news) = (0, false);
        let order = ORDERS[self.order];
        let Some(mut cursor) = Cursor::into(at, tree, order) else {
            return vec![at.clone()];
        };
        if tree.get(at).is_none() {
            wanted.push(at.clone());
        }
        if self.ahead.len() > REMEMBERED {
            (self.ahead, self.coming) = (HashMap::new(), 0);
        }
        let (mut reach, mut entries) = (0, 0);
        while reach < self.window && entries < MOST_ENTRIES && self.coming < 2 * AT_ONCE {
            let Some((path, known)) = cursor.next_directory(tree, &self.root, order) else {
                break;
            };
            reach += 1;
            match known {
                Some(dir) => entries += dir.entries.len(),
                None if self.ahead.contains_key(&path) => {}
                None => {
                    self.ahead.insert(path.clone(), State::Coming);
                    self.coming += 1;
                    wanted.push(path);
                }
            }
        }
        wanted
    }

    /// Directories that were listed ahead, not cached, and opened, since this was asked last.
    pub fn take_used(&mut self) -> u64 {
        std::mem::take(&mut self.used)
    }
}
