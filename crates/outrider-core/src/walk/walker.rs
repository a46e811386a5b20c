//! The service's end: what it tells of processes, and when files may be opened.
//!
//! What lies on disks has one thread that decides, and the engine's lane. Each file system that a server keeps has its own of both: a server that does not answer
//! holds up whoever asks it, and nobody else.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use outrider_sys::units::{DeviceId, InodeKey};

use super::guide::{Guide, LONGEST_REST};
use super::link::{Common, Link, Message, Opened};
use crate::engine::{Engine, Lane, Server};
use crate::exclude::Excluded;
use crate::explain::Explain;
use crate::fetch;
use crate::ledger::Ledger;
use crate::shared::Shared;

/// Bytes of the thread's stack.
const STACK: usize = 128 << 10;

/// File systems of servers that are gone through at a time: each has threads of its own.
const SERVERS: usize = 4;
/// A server that has not answered for so long is not asked any more.
const PATIENCE: Duration = Duration::from_secs(10);
/// … and is not waited for where somebody waits until nothing is open.
const TARDY: Duration = Duration::from_secs(1);
/// How long it is believed that no server keeps the files of a file system.
const STALE: Duration = Duration::from_secs(1);
/// File systems of which that is remembered.
const SYSTEMS: usize = 64;

/// What walkers are made of.
#[derive(Clone)]
pub struct Manner {
    /// Files of fewer bytes are fetched whole, larger ones are only looked up: their reads are followed once they are open.
    pub small: u64,
    /// What is opened in no order may cost this share of what programs wait (see `dense.share`).
    pub share: f64,
    /// Whether trees are followed that a server keeps.
    pub servers: bool,
    /// Names of what is left alone.
    pub excluded: Excluded,
    /// Says what was decided.
    pub explain: Arc<Explain>,
}

/// The service's end.
pub struct Walker {
    common: Arc<Common>,
    ledger: Arc<Ledger>,
    manner: Manner,
    /// What lies on disks.
    disks: Party,
    servers: Vec<Party>,
    /// File systems without a disk of their own: when it was looked, and whether a server keeps their files.
    known: HashMap<DeviceId, (Instant, bool)>,
}

/// A thread that decides, and the lane that it has.
struct Party {
    link: Arc<Link>,
    lane: Lane,
}

impl Party {
    /// Starts the thread. `None` if there is none to be had.
    fn start(
        common: &Arc<Common>,
        engine: &Engine,
        ledger: &Arc<Ledger>,
        manner: &Manner,
        server: Option<DeviceId>,
    ) -> Option<Party> {
        let (tell, told) = channel();
        let link = Arc::new(Link::new(common.clone(), tell, server.is_some()));
        let (lane, share) = match server {
            // What is opened in no order the program may never open.
            Some(device) => (
                engine.lane_of_server(link.clone(), manner.small, device),
                0.0,
            ),
            None => (engine.lane(link.clone(), manner.small), manner.share),
        };
        let guide = Guide::new(link.clone(), lane.clone(), ledger.clone(), share);
        let thread = std::thread::Builder::new().name("outrider-walk".into());
        let started = thread.stack_size(STACK).spawn(move || guide.run(&told));
        started.ok()?;
        Some(Party { link, lane })
    }

    fn device(&self) -> Option<DeviceId> {
        self.lane.server().map(|s| s.device)
    }
}

impl Walker {
    /// Starts the thread that decides. `None` if there is none to be had. What is ahead takes memory that is accounted for in the ledger.
    pub fn start(
        shared: Arc<Shared>,
        engine: &Engine,
        ledger: Arc<Ledger>,
        manner: Manner,
    ) -> Option<Walker> {
        let common = Arc::new(Common::new(
            shared,
            manner.excluded.clone(),
            manner.explain.clone(),
        ));
        let disks = Party::start(&common, engine, &ledger, &manner, None)?;
        Some(Walker {
            common,
            ledger,
            manner,
            disks,
            servers: Vec::new(),
            known: HashMap::new(),
        })
    }

    /// A process has opened a file.
    pub fn opened(&mut self, engine: &Engine, opened: Opened) {
        let device = opened.key.device();
        if !self.is_server(device) {
            return self.disks.link.hear(opened.proc, Message::Opened(opened));
        }
        let known = self.servers.iter().position(|p| p.device() == Some(device));
        let known = known.or_else(|| self.take_in(engine, device));
        let party = known.map(|i| &self.servers[i]);
        let goes_on = |p: &&Party| {
            let server = p.lane.server();
            // Otherwise each file costs more requests ahead of the program, and as many by itself.
            let stays = server.is_some_and(Server::keeps_names);
            stays && !p.link.has_given_up()
        };
        match party.filter(goes_on) {
            Some(party) => party.link.hear(opened.proc, Message::Opened(opened)),
            // So that little is told.
            None => {
                let entry = self.common.shared.proc(opened.proc);
                if entry.walking.load(Relaxed) == 0 {
                    entry.rest.store(LONGEST_REST, Relaxed);
                }
            }
        }
    }

    /// Begins to go through a server's file system.
    fn take_in(&mut self, engine: &Engine, device: DeviceId) -> Option<usize> {
        if !self.manner.servers || self.servers.len() >= SERVERS {
            return None;
        }
        let party = Party::start(
            &self.common,
            engine,
            &self.ledger,
            &self.manner,
            Some(device),
        )?;
        self.servers.push(party);
        Some(self.servers.len() - 1)
    }

    /// Whether a server keeps the files of a file system. It isn't asked.
    fn is_server(&mut self, device: DeviceId) -> bool {
        if device.major() != 0 {
            return false;
        }
        let known = self.known.get(&device);
        if let Some((_, server)) = known.filter(|(at, _)| at.elapsed() < STALE) {
            return *server;
        }
        if self.known.len() >= SYSTEMS {
            self.known.clear();
        }
        let mount = fetch::server(std::process::id(), device, Path::new("/"));
        let server = mount.is_some_and(|m| m.dev == device && m.id != 0);
        self.known.insert(device, (Instant::now(), server));
        server
    }

    /// Servers that do not answer, which are not asked any more from here on.
    pub fn silent(&mut self) -> Vec<DeviceId> {
        let late = |p: &&Party| !p.link.has_given_up() && p.lane.unanswered() > PATIENCE;
        let late = self.servers.iter().filter(late);
        late.filter_map(|p| {
            p.link.give_up();
            p.lane.cancel_all();
            p.device()
        })
        .collect()
    }

    fn parties(&self) -> impl Iterator<Item = &Party> {
        std::iter::once(&self.disks).chain(&self.servers)
    }

    /// A process has opened a directory.
    pub fn visited(&self, opened: Opened) {
        let message = Message::Visited(opened);
        self.disks.link.hear(opened.proc, message);
    }

    /// A process lists a large directory, has waited, and goes on at position `at`.
    pub fn listing(&self, opened: Opened, at: u64) {
        let message = Message::Listing(opened, at);
        self.disks.link.hear(opened.proc, message);
    }

    /// A process has waited for attributes.
    pub fn attributes(&self, proc: usize) {
        self.disks.link.hear(proc, Message::Attributes(proc));
    }

    /// Lets go of the files that are open because of the process in this entry.
    pub fn let_go_for(&self, proc: usize) {
        self.parties().for_each(|p| p.lane.let_go(Some(proc)));
    }

    /// The process in this entry is over.
    pub fn over(&self, proc: usize) {
        self.common.forget_wishes(proc);
        for party in self.parties() {
            party.lane.let_go(Some(proc));
            party.link.tell(Message::Over(proc));
        }
    }

    /// This file must never be opened.
    pub fn leave(&self, key: InodeKey) {
        self.common.leave(key);
    }

    /// Whether files may be opened that no program has open.
    pub fn allow(&self, allowed: bool) {
        self.common.allow(allowed);
    }

    /// Begins to let go of everything, and opens nothing until [`Walker::come_back`].
    pub fn let_go(&self) -> Leaving {
        self.common.hold_back(true);
        let leave = |party: &Party| {
            party.lane.cancel_all();
            party.lane.let_go(None);
            let (done, forgotten) = channel();
            party.link.tell(Message::Forget(done));
            Leave {
                lane: party.lane.clone(),
                forgotten: Some(forgotten),
            }
        };
        Leaving(self.parties().map(leave).collect())
    }

    /// Files may be opened again.
    pub fn come_back(&self) {
        self.common.hold_back(false);
    }
}

/// Files that are being let go of.
pub struct Leaving(Vec<Leave>);

struct Leave {
    lane: Lane,
    /// Is told when the figures are complete, once.
    forgotten: Option<Receiver<()>>,
}

impl Leaving {
    /// Whether nothing is open, and the figures are complete; but for servers that do not answer.
    pub fn is_over(&mut self) -> bool {
        self.0.iter_mut().all(Leave::is_over)
    }
}

impl Leave {
    fn is_over(&mut self) -> bool {
        if self.lane.server().is_some() && self.lane.unanswered() > TARDY {
            return true;
        }
        let forgotten = self.forgotten.as_ref();
        if forgotten.is_some_and(|f| f.try_recv() != Err(TryRecvError::Empty)) {
            self.forgotten = None;
        }
        self.forgotten.is_none() && self.lane.is_idle()
    }
}
