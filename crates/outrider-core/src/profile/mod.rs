//! What an earlier run of the same job needed: the fourth source of foresight (SPEC B15).
//!
//! A *profile* lists, in the order of first need, the files that a job read, which of their pages, and the directories and attributes that it asked for
//! ([`model`]). It is kept in a small file ([`mod@format`], [`store`]). A later run fetches what the profile lists before it is asked for ([`course`], [`replay`]), through the
//! engine's lane like everything else that nobody has open, and sees what was needed this time ([`observe`]), by which the profile is corrected.
//!
//! A profile is never trusted. It may be old, of another machine, or made to do harm: what it names is opened as [`place`] says, no more is fetched ahead of
//! what is used than [`credit`] allows, and the file itself is taken only within bounds.

pub mod course;
pub mod credit;
pub mod format;
pub mod model;
pub mod observe;
pub mod place;
pub mod replay;
pub mod store;
pub mod terms;

pub use model::{Entry, History, Need, Profile, Span};

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outrider_sys::raw;
use outrider_sys::units::{ByteRange, InodeKey, PageRange};

use crate::engine::Engine;
use crate::exclude::Excluded;
use crate::explain::Explain;
use crate::ledger::Ledger;
use crate::lock;
use crate::shared::Shared;
use crate::shm::lost;
use observe::{Needs, Observer, Subject};
use place::Places;
use replay::Replay;
use store::Stamp;
use terms::Terms;

/// How long the end of a run waits for what was seen: looking at a few hundred large files takes some 10 ms.
const PATIENCE: Duration = Duration::from_secs(1);

/// A job that is remembered, as the runner hands it to the service.
pub struct Job {
    /// Where its profile is kept: an absolute path.
    pub file: PathBuf,
    /// What it has, if there is one, and what its file was then.
    pub profile: Option<(Profile, Stamp)>,
    /// The program and its arguments.
    pub command: Vec<Vec<u8>>,
    /// What is observed.
    pub subject: Subject,
}

/// A job that is remembered, in the service.
pub struct Remember {
    file: PathBuf,
    profile: Arc<Profile>,
    stamp: Option<Stamp>,
    command: Vec<Vec<u8>>,
    directory: PathBuf,
    terms: Arc<Terms>,
    replay: Option<Arc<Replay>>,
    observer: Option<Observer>,
    /// The process whose child the program is.
    runner: u32,
    running: Mutex<Running>,
    ended: bool,
}

/// Processes of the run, as of the last look.
#[derive(Default)]
struct Running {
    pids: Vec<u32>,
    /// When that was, and what processor time it took.
    looked: Option<(Instant, Duration)>,
}

impl Remember {
    /// Begins to fetch what the profile has, if there is one and the service `fetches`, and to see what is needed.
    pub fn start(
        job: Job,
        shared: &Arc<Shared>,
        engine: &Engine,
        ledger: &Arc<Ledger>,
        fetches: bool,
        (excluded, explain): (&Excluded, &Arc<Explain>),
    ) -> Remember {
        let (places, terms) = (Arc::new(Places::new()), Arc::new(Terms::default()));
        let known = job.profile.is_some();
        let (profile, stamp) = job.profile.unzip();
        let profile = Arc::new(profile.unwrap_or_default());
        let wanted = known && fetches && !profile.entries.is_empty();
        let start = || {
            Replay::start(
                shared.clone(),
                engine,
                ledger.clone(),
                profile.clone(),
                (places.clone(), terms.clone()),
                (excluded.clone(), explain.clone()),
            )
        };
        let replay = wanted.then(start).flatten().map(Arc::new);
        let (directory, runner) = (job.subject.directory.clone(), job.subject.runner);
        let (known, grounds) = (profile.clone(), (places, terms.clone()));
        let observer = Observer::start(job.subject, shared, known, replay.clone(), grounds);
        if observer.is_none() || wanted && replay.is_none() {
            shared.header().lose(lost::THREADS);
        }
        Remember {
            file: job.file,
            profile,
            stamp,
            command: job.command,
            directory,
            terms,
            replay,
            observer,
            runner,
            running: Mutex::default(),
            ended: false,
        }
    }

    /// Whether files may be opened that no program has open.
    pub fn allow(&self, allowed: bool) {
        self.terms.allow(allowed);
    }

    /// This file must never be opened.
    pub fn leave(&self, key: InodeKey) {
        self.terms.leave(key);
    }

    /// Begins to let go of everything.
    pub fn let_go(&self) {
        self.terms.hold_back(true);
        self.replay.iter().for_each(|r| r.let_go());
    }

    /// Files may be opened again.
    pub fn come_back(&self) {
        self.terms.hold_back(false);
    }

    /// Whether something is left to be fetched.
    pub fn is_fetching(&self) -> bool {
        self.replay.as_ref().is_some_and(|r| r.is_fetching())
    }

    /// Processes of the run, also those that have not told anything yet, or never will: so many at most.
    pub fn running(&self, most: usize) -> Vec<u32> {
        let mut running = lock(&self.running);
        let rests = |(at, took): (Instant, Duration)| at.elapsed() < observe::REST_OF_LOOKS * took;
        if !running.looked.is_some_and(rests) {
            let began = raw::thread_time();
            running.pids = observe::below(self.runner, most);
            running.looked = Some((Instant::now(), raw::thread_time().saturating_sub(began)));
        }
        running.pids.clone()
    }

    /// Whether nothing is open.
    pub fn is_idle(&self) -> bool {
        let observes = self.observer.as_ref().is_some_and(|o| !o.is_idle());
        !observes && self.replay.as_ref().is_none_or(|r| r.is_idle())
    }

    /// A process is about to read.
    pub fn read(&self, file: InodeKey, range: ByteRange) {
        if let Some(observer) = &self.observer {
            observer.read(file, range);
        }
    }

    /// How many of these pages of a large file were fetched because an earlier run had needed them, and have come.
    pub fn brought(&self, file: InodeKey, pages: PageRange) -> u64 {
        let replay = self.replay.as_ref();
        replay.map_or(0, |replay| replay.brought(file, pages))
    }

    /// The run is over: the profile is corrected. `seeks`: some device that was read from has a head.
    pub fn end(&mut self, shared: &Shared, seeks: bool) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.replay.iter().for_each(|r| r.end());
        let needs = self.observer.as_ref().and_then(|o| o.end(PATIENCE));
        let outcome = self.replay.as_ref().map(|replay| {
            let entries = needs.iter().flat_map(|needs| &needs.entries);
            replay.outcome(entries.copied())
        });
        let outcome = outcome.unwrap_or_default();
        let header = shared.header();
        if let Some(replay) = &self.replay {
            let f = replay.figures();
            let figures = [&f.entries, &f.lost, &f.fetched, &f.counted, &f.used];
            for (to, from) in header.remembered.iter().zip(figures) {
                to.store(from.load(Relaxed), Relaxed);
            }
        }
        let Some(Needs {
            seen, known, all, ..
        }) = needs
        else {
            return header.lose(lost::PROFILE);
        };
        let seeks = seeks || self.replay.as_ref().is_some_and(|r| r.seeks());
        let fetched = |r: &Arc<Replay>| r.figures().fetched.load(Relaxed) >= model::LITTLE;
        let same = known
            && !self.replay.as_ref().is_none_or(fetched)
            && self.profile.seeks == seeks
            && self.profile.command == self.command
            && self.profile.directory == self.directory;
        // Where nothing was to be learned all that changes is when it was used.
        if same && store::touch(&self.file).is_ok() {
            return;
        }
        let learn = |old: Option<Profile>| {
            // One that somebody has forgotten meanwhile, or damaged, begins anew.
            let mut profile = old.unwrap_or_default();
            profile.command.clone_from(&self.command);
            profile.directory.clone_from(&self.directory);
            profile.seeks = seeks;
            if profile.relative {
                return Some(profile);
            }
            profile
                .learn_of(seen, all, outcome, store::now())
                .then_some(profile)
        };
        let known = self.stamp.map(|stamp| (stamp, &*self.profile));
        if store::change(&self.file, known, learn).is_err() {
            header.lose(lost::PROFILE);
        }
    }
}
