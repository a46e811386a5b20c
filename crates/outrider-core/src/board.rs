//! What becomes of foreaction graphs, told by the processes that use them, for the report.
//!
//! Part of the memory that each process has with the service (see `shm`); what all have told is gathered in the runner's. Graphs of one name
//! are one entry. Nothing here allocates or waits on the programs' side.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::collections::HashSet;

/// Graphs that the report can name.
pub const MAX_GRAPHS: usize = 64;
/// Longest name, bytes; longer ones are cut.
const NAME: usize = 64;
/// Counts of a graph.
pub const COUNTS: usize = 16;
/// Bytes of an entry.
const ENTRY: usize = 8192;
/// Bytes of problems, a line each.
const TEXT: usize = ENTRY - NAME - 8 * COUNTS - 16;

/// Lines of one graph that are looked at in what a process has told. There is room for so many of forty bytes; of shorter ones, as nobody writes, some are left out.
const LINES: usize = 256;

const FREE: u32 = 0;
const NAMING: u32 = 1;
const NAMED: u32 = 2;

/// A graph's entry. Zero is a free one.
#[repr(C)]
pub struct Entry {
    state: AtomicU32,
    used: AtomicU32,
    /// One more than where the line lies that says why the graph was switched off.
    off: AtomicU32,
    _reserved: AtomicU32,
    counts: [AtomicU64; COUNTS],
    name: [AtomicU8; NAME],
    text: [AtomicU8; TEXT],
}

const _: () = assert!(size_of::<Entry>() == ENTRY);

/// All entries.
pub type Board = [Entry; MAX_GRAPHS];

fn string(bytes: &[AtomicU8]) -> String {
    let bytes: Vec<u8> = bytes.iter().map(|b| b.load(Relaxed)).collect();
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The entry of the graphs of this name, a new one if there is none; `None` if all are taken.
pub fn entry<'a>(board: &'a Board, name: &str) -> Option<&'a Entry> {
    let name = &name.as_bytes()[..name.len().min(NAME)];
    for e in board {
        match e.state.load(Acquire) {
            NAMED if e.is_named(name) => return Some(e),
            FREE if e
                .state
                .compare_exchange(FREE, NAMING, AcqRel, Relaxed)
                .is_ok() =>
            {
                for (to, from) in e.name.iter().zip(name) {
                    to.store(*from, Relaxed);
                }
                e.state.store(NAMED, Release);
                return Some(e);
            }
            // Two processes may name the same graph at once: the report joins their entries.
            _ => {}
        }
    }
    None
}

/// Adds what a process has told to what others have, and takes it off there. Not for programs.
pub fn gather(all: &Board, its: &Board) {
    for from in its.iter().filter(|e| e.state.load(Acquire) == NAMED) {
        let Some(to) = entry(all, &string(&from.name)) else {
            continue;
        };
        for (to, from) in to.counts.iter().zip(&from.counts) {
            to.fetch_add(from.swap(0, Relaxed), Relaxed);
        }
        let told = told_by(from);
        let known: HashSet<String> = told_by(to).problems.into_iter().collect();
        let new = told.problems.iter().take(LINES);
        for line in new.filter(|line| !known.contains(*line)) {
            to.note(line, told.off.as_ref() == Some(line));
        }
    }
}

/// What an entry has told.
fn told_by(e: &Entry) -> Told {
    let text = string(&e.text);
    let off = e.off.load(Relaxed).checked_sub(1).and_then(|at| {
        let rest = e.text.get(at as usize..).map(string)?;
        rest.lines().next().map(str::to_owned)
    });
    Told {
        name: string(&e.name),
        counts: e.counts.each_ref().map(|c| c.load(Relaxed)),
        off,
        problems: text.lines().map(str::to_owned).collect(),
    }
}

impl Entry {
    fn is_named(&self, name: &[u8]) -> bool {
        let own = self.name.iter().map(|b| b.load(Relaxed));
        own.take_while(|b| *b != 0).eq(name.iter().copied())
    }

    /// Adds to a count.
    pub fn add(&self, i: usize, n: u64) {
        if let Some(c) = self.counts.get(i)
            && n != 0
        {
            c.fetch_add(n, Relaxed);
        }
    }

    /// Keeps a problem as long as there is room. `off`: it is why the graph was switched off.
    pub fn note(&self, problem: &str, off: bool) {
        let len = problem.len() as u32 + 1;
        let Ok(at) = self.used.fetch_update(Relaxed, Relaxed, |used| {
            (used + len < TEXT as u32).then_some(used + len)
        }) else {
            return;
        };
        let line = problem.bytes().chain([b'\n']);
        for (to, from) in self.text.iter().skip(at as usize).zip(line) {
            to.store(from, Relaxed);
        }
        if off {
            let _ = self.off.compare_exchange(0, at + 1, Relaxed, Relaxed);
        }
    }
}

/// A graph in the report.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Its name.
    pub name: String,
    /// Its counts, in the order in which they were added.
    pub counts: [u64; COUNTS],
    /// Why it was switched off.
    pub off: Option<String>,
    /// Its problems.
    pub problems: Vec<String>,
}

/// What all processes have told.
pub fn told(board: &Board) -> Vec<Told> {
    let mut all: Vec<Told> = Vec::new();
    for e in board.iter().filter(|e| e.state.load(Acquire) == NAMED) {
        let its = told_by(e);
        let Some(t) = all.iter_mut().find(|t| t.name == its.name) else {
            all.push(its);
            continue;
        };
        for (sum, n) in t.counts.iter_mut().zip(its.counts) {
            *sum += n;
        }
        let new = its.problems.into_iter();
        let new: Vec<_> = new.filter(|line| !t.problems.contains(line)).collect();
        t.problems.extend(new);
        t.off = t.off.take().or(its.off);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_name_and_problems_are_kept_while_there_is_room() {
        // SAFETY: zero is a valid board.
        let board: Box<Board> = unsafe { Box::new_zeroed().assume_init() };
        let du = entry(&board, "du").unwrap();
        assert!(std::ptr::eq(du, entry(&board, "du").unwrap()));
        entry(&board, "d").unwrap().add(0, 5);
        du.add(1, 7);
        du.note("first", false);
        du.note("the reason", true);
        du.note("another reason", true);
        for i in 0..2000 {
            du.note(&format!("problem {i}"), false);
        }
        let all = told(&board);
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].counts[1], all[1].counts[0]), (7, 5));
        assert_eq!(all[0].off.as_deref(), Some("the reason"));
        assert_eq!(all[0].problems[0], "first");
        assert!(all[0].problems.len() > 100);
        assert!(
            all[0]
                .problems
                .iter()
                .skip(3)
                .all(|p| p.starts_with("problem "))
        );
        for i in 0..2 * MAX_GRAPHS {
            assert_eq!(
                entry(&board, &format!("g{i}")).is_some(),
                i < MAX_GRAPHS - 2
            );
        }
    }
}
