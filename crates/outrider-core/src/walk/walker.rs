//! The service's end: what it tells of processes, and when files may be opened.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use outrider_sys::units::InodeKey;

use super::guide::Guide;
use super::link::{Link, Message, Opened};
use crate::engine::{Engine, Lane};
use crate::ledger::Ledger;
use crate::shared::Shared;

/// Bytes of the thread's stack.
const STACK: usize = 128 << 10;

/// The service's end.
pub struct Walker {
    link: Arc<Link>,
    lane: Lane,
}

impl Walker {
    /// Starts the thread that decides. `None` if there is none to be had. Files of less than `small` bytes are fetched whole, larger ones are only looked up:
    /// their reads are followed once they are open. What is ahead takes memory that is accounted for in the ledger. What is opened in no order may cost
    /// a `share` of what programs wait (see `dense.share`).
    pub fn start(
        shared: Arc<Shared>,
        engine: &Engine,
        ledger: Arc<Ledger>,
        small: u64,
        share: f64,
    ) -> Option<Walker> {
        let (tell, told) = channel();
        let link = Arc::new(Link::new(shared, tell));
        let lane = engine.lane(link.clone(), small);
        let guide = Guide::new(link.clone(), lane.clone(), ledger, share);
        let thread = std::thread::Builder::new().name("outrider-walk".into());
        let started = thread.stack_size(STACK).spawn(move || guide.run(&told));
        started.ok()?;
        Some(Walker { link, lane })
    }

    /// A process has opened a file.
    pub fn opened(&self, opened: Opened) {
        self.link.hear(opened.proc, Message::Opened(opened));
    }

    /// A process has opened a directory.
    pub fn visited(&self, opened: Opened) {
        self.link.hear(opened.proc, Message::Visited(opened));
    }

    /// A process lists a large directory, has waited, and goes on at position `at`.
    pub fn listing(&self, opened: Opened, at: u64) {
        self.link.hear(opened.proc, Message::Listing(opened, at));
    }

    /// A process has waited for attributes.
    pub fn attributes(&self, proc: usize) {
        self.link.hear(proc, Message::Attributes(proc));
    }

    /// Lets go of the files that are open because of the process in this entry.
    pub fn let_go_for(&self, proc: usize) {
        self.lane.let_go(Some(proc));
    }

    /// The process in this entry is over.
    pub fn over(&self, proc: usize) {
        self.lane.let_go(Some(proc));
        self.link.tell(Message::Over(proc));
    }

    /// This file must never be opened.
    pub fn leave(&self, key: InodeKey) {
        self.link.leave(key);
    }

    /// Whether files may be opened that no program has open.
    pub fn allow(&self, allowed: bool) {
        self.link.allow(allowed);
    }

    /// Begins to let go of everything, and opens nothing until [`Walker::come_back`].
    pub fn let_go(&self) -> Leaving {
        self.link.hold_back(true);
        self.lane.cancel_all();
        self.lane.let_go(None);
        let (done, forgotten) = channel();
        self.link.tell(Message::Forget(done));
        Leaving {
            lane: self.lane.clone(),
            forgotten: Some(forgotten),
        }
    }

    /// Files may be opened again.
    pub fn come_back(&self) {
        self.link.hold_back(false);
    }
}

/// Files that are being let go of.
pub struct Leaving {
    lane: Lane,
    /// Is told when the figures are complete, once.
    forgotten: Option<Receiver<()>>,
}

impl Leaving {
    /// Whether nothing is open, and the figures are complete.
    pub fn is_over(&mut self) -> bool {
        let forgotten = self.forgotten.as_ref();
        if forgotten.is_some_and(|f| f.try_recv() != Err(TryRecvError::Empty)) {
            self.forgotten = None;
        }
        self.forgotten.is_none() && self.lane.is_idle()
    }
}
