//! The thread that decides: it hears of what processes open, finds out where that is, and has done what the policy wants next.

mod dense;
mod directories;
mod files;
mod places;

use outrider_sys::units::{DeviceId, InodeKey};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use places::Systems;

use self::dense::Processors;
use super::dense::DenseDirectories;
use super::large::Large;
use super::link::{Link, Message};
use super::stream::{Here, Listen, Walks};
use super::visits::Visits;
use crate::asked::Outcome;
use crate::engine::{Call, Found, Lane, Listing, Patience};
use crate::intent::{Intent, Target};
use crate::ledger::Ledger;
use crate::shm::{self, Fate, Figure, Origin};
use crate::tree::known::{Directory, Tree};

/// Messages that are taken before what they say is acted on: as many as come while a thread is woken.
const TOGETHER: usize = 16;
/// Opens that are not told after a process turned out not to be foreseeable; each time twice as many.
const REST: u32 = 256;
pub(super) const LONGEST_REST: u32 = 1 << 16;

/// What hooks tell of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Told {
    Files,
    Directories,
}

/// The thread that decides.
pub(super) struct Guide {
    link: Arc<Link>,
    lane: Lane,
    /// What is ahead takes memory.
    ledger: Arc<Ledger>,
    tree: Tree,
    walks: HashMap<usize, Walks>,
    visits: HashMap<usize, Visits>,
    /// What is opened in no order, by device.
    dense: HashMap<DeviceId, DenseDirectories>,
    /// See `dense.share`; 0: nothing is fetched for that.
    share: f64,
    processors: Processors,
    began: Instant,
    /// The large directory that each process has listed last.
    large: HashMap<usize, Large>,
    /// How long each process was left alone last, with its files and with its directories.
    rests: HashMap<(usize, Told), u32>,
    systems: Systems,
    /// Where it is counted what comes of files that were fetched, and their bytes, if anybody wants to know.
    outcomes: HashMap<InodeKey, (Arc<Outcome>, u64)>,
    /// Directories that are being listed.
    listing: HashSet<PathBuf>,
    /// Files that have to turn up in vain before a directory that has changed is listed again: as many as it had.
    patience: HashMap<PathBuf, usize>,
}

impl Guide {
    pub(super) fn new(link: Arc<Link>, lane: Lane, ledger: Arc<Ledger>, share: f64) -> Guide {
        Guide {
            link,
            lane,
            ledger,
            tree: Tree::default(),
            walks: HashMap::new(),
            visits: HashMap::new(),
            dense: HashMap::new(),
            share,
            began: Instant::now(),
            processors: Processors::new(),
            large: HashMap::new(),
            rests: HashMap::new(),
            systems: Systems::default(),
            outcomes: HashMap::new(),
            listing: HashSet::new(),
            patience: HashMap::new(),
        }
    }

    pub(super) fn run(mut self, told: &Receiver<Message>) {
        let thread = self.lane.thread();
        let lane = self.lane.clone();
        let mut heard = Vec::new();
        while let Ok(message) = told.recv() {
            let _reads = thread.reads();
            let _asks = lane.asks();
            // Whoever is heard together is answered together.
            let all = std::iter::once(message).chain(told.try_iter().take(TOGETHER));
            for message in all {
                let proc = self.take(message);
                heard.extend(proc.filter(|proc| !heard.contains(proc)));
            }
            for proc in heard.drain(..) {
                self.go_on(proc);
            }
        }
    }

    /// Takes a message; the process that may want something now.
    fn take(&mut self, message: Message) -> Option<usize> {
        match message {
            Message::Opened(opened) => {
                self.link.has_heard(opened.proc);
                self.opened(opened);
                Some(opened.proc)
            }
            Message::Visited(opened) => {
                self.link.has_heard(opened.proc);
                self.visited(opened);
                Some(opened.proc)
            }
            Message::Listing(opened, at) => {
                self.link.has_heard(opened.proc);
                self.listing(opened, at);
                Some(opened.proc)
            }
            Message::Attributes(proc) => {
                self.link.has_heard(proc);
                self.look_up_large(proc);
                Some(proc)
            }
            Message::Over(proc) => {
                self.over(proc);
                None
            }
            Message::Forget(done) => {
                self.forget(&done);
                None
            }
            Message::Found(proc, found) => {
                for found in found {
                    self.found(proc, found);
                }
                Some(proc)
            }
        }
    }

    /// A call was made for the process in this entry.
    fn found(&mut self, proc: usize, found: Found) {
        match found {
            Found::Opened {
                key,
                bytes,
                cold,
                took_us,
            } => self.fetched(proc, key, Here { bytes, cold }, took_us),
            Found::Listed { dir, cold } => self.listed(proc, dir, cold),
            Found::PartListed { key, entries, cold } => {
                self.part_listed(proc, key, entries, cold);
            }
        }
    }

    /// The process in this entry is over.
    fn over(&mut self, proc: usize) {
        if let Some(mut walks) = self.walks.remove(&proc) {
            walks.clear();
            self.account(&mut walks);
            self.settle();
        }
        self.visits.remove(&proc);
        self.large.remove(&proc);
        self.rests.retain(|(of, _), _| *of != proc);
        let lane = self.lane.clone();
        for call in lane.cancel(proc) {
            match call {
                Call::List {
                    listing: Listing::Whole { path, .. },
                    ..
                } => {
                    self.listing.remove(&path);
                }
                Call::Open { place, .. } => self.not_fetched(place.key()),
                _ => {}
            }
        }
    }

    /// Forgets everything, adds up the figures, and answers.
    fn forget(&mut self, done: &Sender<()>) {
        for (_, mut walks) in std::mem::take(&mut self.walks) {
            walks.clear();
            self.account(&mut walks);
        }
        self.forget_dense();
        for (_, (outcome, bytes)) in self.outcomes.drain() {
            outcome.add(Fate::Wasted, bytes);
        }
        self.settle();
        self.visits.clear();
        self.large.clear();
        self.tree.clear();
        self.listing.clear();
        self.patience.clear();
        self.systems = Systems::default();
        let _ = done.send(());
    }

    /// Has done what a process needs next.
    fn go_on(&mut self, proc: usize) {
        if !self.lane.has_room(proc) {
            // Once something of it is done.
            return;
        }
        self.list_ahead(proc);
        self.fetch_ahead(proc);
        self.fetch_dense(proc);
    }

    /// Takes what the policy wants: the lane is asked for it.
    fn issue(&mut self, intent: Intent<'static>) {
        let Some(proc) = intent.process else { return };
        let excluded = &self.link.excluded;
        let call = match intent.target {
            Target::Entry(place, _) if !excluded.is_empty() && excluded.holds(&place.path()) => {
                return self.fetched(proc, place.key(), Here::default(), 0.0);
            }
            Target::Listing(Listing::Whole { path, .. }) if excluded.holds(&path) => {
                let empty = Directory::new(path, InodeKey::default(), (0, 0), Vec::new());
                self.take_in(empty);
                return;
            }
            Target::Entry(place, most) => Call::Open {
                // Where a file has to be opened anew, nothing of it is there any more.
                most: match self.lane.server() {
                    Some(server) if !server.keeps_files() => Some(0),
                    _ => most,
                },
                patience: match intent.origin {
                    Origin::Walks if self.lane.server().is_none() => Patience::LeaveFew,
                    // What comes in no order is paid for by how long it takes.
                    _ => Patience::Wait,
                },
                place,
            },
            Target::Inodes(names) => Call::Stat(names),
            Target::Listing(listing) => {
                let device = match &listing {
                    // Somebody has it listed already.
                    Listing::Whole { path, .. } if !self.listing.insert(path.clone()) => return,
                    Listing::Whole { path, .. } => self.device_of(path),
                    Listing::Part { key, .. } => Some(key.device()),
                };
                Call::List { listing, device }
            }
            // What a program has open is the service's, and what a profile has its own.
            Target::Ranges(..) | Target::Remembered(_) => return,
        };
        self.lane.submit(proc, call);
    }

    /// The file system of a directory whose own directory has been listed.
    fn device_of(&self, dir: &Path) -> Option<DeviceId> {
        self.tree.get(dir.parent()?).map(|above| above.key.device())
    }

    /// Adds to the figures of all, and of a process.
    fn count(&self, who: Option<usize>, figure: Figure, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let shared = &self.link.shared;
        shared.header().total.figures.add(figure, bytes);
        if let Some(record) = who.and_then(|who| shared.record(who)) {
            record.figures.add(figure, bytes);
        }
    }

    /// Tells the hooks of a process what is to be told.
    fn listen(&mut self, told: Told, proc: usize, pid: u32, listen: Listen) {
        if !self.link.is_owner(proc, pid) {
            return;
        }
        let entry = self.link.shared.proc(proc);
        let wish = match listen {
            Listen::All => shm::ALL_FILES,
            Listen::Whether => shm::WHETHER_COLD,
            Listen::AllAndWhether => shm::ALL_FILES | shm::WHETHER_COLD,
            Listen::Cold | Listen::Rest => 0,
        };
        let (all, rests, wish) = match told {
            Told::Files => (&entry.walking, &entry.rest, self.link.wishes(proc, wish)),
            Told::Directories => (&entry.visiting, &entry.visit_rest, wish),
        };
        match listen {
            // Somebody else goes ahead of it.
            Listen::Rest if wish != 0 => {}
            Listen::Rest => {
                let rest = self.rests.entry((proc, told)).or_insert(REST);
                rests.store(*rest, Relaxed);
                all.store(0, Relaxed);
                *rest = rest.saturating_mul(2).min(LONGEST_REST);
            }
            _ => all.store(wish, Relaxed),
        }
    }
}
