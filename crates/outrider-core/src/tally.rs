//! Where what becomes of a file is counted as it happens: in shared memory, so that it is not lost with the service.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::asked::Of;
use crate::shared::Shared;
use crate::shm::{FIGURES, Fate, Figure, Figures, Origin, SAVED};

/// No entry.
const NONE: usize = usize::MAX;

/// The counts of one file: in all, for the file if it has an entry of its own, and for the process that has it.
pub struct Tally {
    shared: Arc<Shared>,
    stat: AtomicUsize,
    reader: AtomicUsize,
}

impl Tally {
    /// Of a file that has no entry and that no process reads yet.
    pub fn new(shared: Arc<Shared>) -> Tally {
        Tally {
            shared,
            stat: AtomicUsize::new(NONE),
            reader: AtomicUsize::new(NONE),
        }
    }

    /// Adds bytes.
    pub fn add(&self, figure: Figure, bytes: u64) {
        if bytes > 0 {
            self.counts().for_each(|to| to.add(figure, bytes));
        }
    }

    /// Takes bytes off again, of each count as many as there are.
    pub fn take_off(&self, figure: Figure, bytes: u64) {
        self.counts().for_each(|to| to.take_off(figure, bytes));
    }

    /// What so many bytes have come to that somebody foresaw.
    pub fn came_to(&self, of: &Of, fate: Fate, bytes: u64) {
        self.source(of.origin, fate as usize, bytes);
        if let Some(outcome) = of.outcome.as_ref().filter(|_| bytes > 0) {
            outcome.add(fate, bytes);
        }
    }

    /// What somebody foresaw has saved the program so many µs.
    pub fn saved(&self, of: &Of, us: u64) {
        self.source(of.origin, SAVED, us);
        if let Some(outcome) = of.outcome.as_ref().filter(|_| us > 0) {
            outcome.saves(us);
        }
    }

    fn source(&self, origin: Origin, figure: usize, n: u64) {
        if n > 0 {
            self.shared.header().sources[origin as usize][figure].fetch_add(n, Relaxed);
        }
    }

    /// Where it counts.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    fn counts(&self) -> impl Iterator<Item = &Figures> {
        let all = &self.shared.header().total.figures;
        let reader = self.shared.record(self.reader.load(Relaxed));
        [Some(all), self.its(), reader.map(|r| &r.figures)]
            .into_iter()
            .flatten()
    }

    fn its(&self) -> Option<&Figures> {
        let stat = self.stat.load(Relaxed);
        (stat != NONE).then(|| &self.shared.stat(stat).figures)
    }

    /// The file's own counts, in the order of [`FIGURES`], if it has an entry.
    pub fn of_file(&self) -> Option<[u64; FIGURES.len()]> {
        self.its().map(Figures::all)
    }

    /// The file has this entry in the statistics.
    pub fn set_stat(&self, stat: usize) {
        self.stat.store(stat, Relaxed);
    }

    /// Whether it has one.
    pub fn has_stat(&self) -> bool {
        self.stat.load(Relaxed) != NONE
    }

    /// Process number `who` opens or reads it: what becomes of it from now on counts for that one.
    pub fn read_by(&self, who: usize) {
        self.reader.store(who, Relaxed);
    }
}
