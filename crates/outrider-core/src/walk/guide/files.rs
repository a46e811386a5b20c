//! Files that processes open one after the other.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::InodeKey;

use super::super::link::Opened;
use super::super::stream::{Here, Listen, Tally, Walks};
use super::{Guide, Told};
use crate::explain::{Asking, Subject};
use crate::intent::Intent;
use crate::ledger::{Holder, Holding};
use crate::shm::{Fate, Figure, Origin};

impl Guide {
    /// A process has opened a file.
    pub(super) fn opened(&mut self, opened: Opened) {
        let Opened { proc, pid, who, .. } = opened;
        let lane = self.lane.clone();
        let known = self.tree.find(opened.key);
        // Of what is known nothing is asked.
        let permit = match known {
            Some(_) => None,
            None => lane.permit(proc),
        };
        if known.is_none() && permit.is_none() || !self.link.goes_ahead(proc) {
            // Nothing is known of what may not be opened, and so nothing can be learned.
            return self.listen(Told::Files, proc, pid, Listen::Cold);
        }
        if let Some((outcome, bytes)) = self.outcomes.remove(&opened.key) {
            outcome.add(Fate::Used, bytes);
        }
        let place = known.or_else(|| self.locate(opened));
        drop(permit);
        let known = place.clone();
        let latest = self.walks.get(&proc).and_then(Walks::latest);
        if let (Some(latest), Some(place)) = (latest.map(Path::to_owned), &place) {
            self.relate(proc, &latest, &place.dir.path);
        }
        let walks = self.walks.entry(proc).or_default();
        walks.who = Some(who);
        // What is not there any more was not of use.
        let ahead = walks.here(opened.key).filter(|here| here.bytes > 0);
        let server = lane.server();
        if let (Some(server), Some(_)) = (server, ahead) {
            server.was_opened(!opened.cold);
            if opened.cold {
                walks.dropped(opened.key);
            }
        }
        let listen = match place {
            Some(place) => walks.opened(&self.tree, place),
            None => walks.astray(),
        };
        let listen = match listen {
            Listen::All if server.is_some() => Listen::AllAndWhether,
            listen => self.in_no_order(opened, known, listen),
        };
        self.listen(Told::Files, proc, pid, listen);
    }

    /// A file is there that was fetched for a process.
    pub(super) fn fetched(&mut self, proc: usize, key: InodeKey, here: Here, took_us: f64) {
        let shared = self.link.shared.clone();
        let header = shared.header();
        header.walked[0].fetch_add(u64::from(here.cold), Relaxed);
        let who = self.walks.get(&proc).and_then(|w| w.who);
        self.count(who, Figure::Prefetched, here.bytes);
        let late_before = self.late_bytes(proc, key);
        let origin = if self.has_arrived(key, here, took_us) {
            Origin::DenseDirectories
        } else {
            match self.walks.get_mut(&proc) {
                Some(walks) => walks.arrived(key, here),
                None => {
                    self.count(who, Figure::Wasted, here.bytes);
                    self.source(Origin::Walks, Fate::Wasted, here.bytes);
                }
            }
            Origin::Walks
        };
        header.foreseen[origin as usize].fetch_add(here.bytes, Relaxed);
        let late = self.late_bytes(proc, key) > late_before;
        self.explain_fetched(who, key, origin, here.bytes, late);
    }

    /// Bytes that came too late, of what a process opens next and of what is opened in no order where a file lies.
    fn late_bytes(&self, proc: usize, key: InodeKey) -> u64 {
        let walks = self.walks.get(&proc).map(|w| w.tally().late_bytes);
        let dense = self.dense.get(&key.device()).map(|d| d.tally().late_bytes);
        walks.unwrap_or(0) + dense.unwrap_or(0)
    }

    /// Says that a file was fetched, and what comes of it.
    fn explain_fetched(
        &mut self,
        who: Option<usize>,
        key: InodeKey,
        origin: Origin,
        bytes: u64,
        late: bool,
    ) {
        /// Files that may still be opened.
        const MOST: usize = 1 << 16;
        let link = self.link.clone();
        if !link.explain.is_wanted() || bytes == 0 {
            return;
        }
        let Some(place) = self.tree.find(key) else {
            return;
        };
        let record = who.and_then(|who| link.shared.record(who));
        let asking = Asking {
            of: Subject {
                pid: record.map_or(0, |r| r.pid.load(Relaxed)),
                key: place.dir.key,
            },
            origin,
            name: &place.dir.path,
            ranges: &[0..bytes],
        };
        let model = self.lane.model(key.device());
        let outcome = link.explain.asked(&asking, &model, link.shared.header());
        match outcome {
            Some(outcome) if late => {
                outcome.add(Fate::Used, bytes);
                outcome.add(Fate::Late, bytes);
            }
            Some(outcome) if self.outcomes.len() < MOST => {
                self.outcomes.insert(key, (outcome, bytes));
            }
            _ => {}
        }
    }

    /// Adds what became of files to the figures.
    pub(super) fn account(&self, walks: &mut Walks) {
        self.add_up(walks.who, Origin::Walks, walks.take_tally());
    }

    /// Adds what became of files to the figures of all, and of a process.
    pub(super) fn add_up(&self, who: Option<usize>, origin: Origin, tally: Tally) {
        let header = self.link.shared.header();
        header.walked[1].fetch_add(tally.used, Relaxed);
        self.count(who, Figure::Used, tally.used_bytes);
        self.count(who, Figure::Wasted, tally.wasted_bytes);
        self.source(origin, Fate::Used, tally.used_bytes);
        self.source(origin, Fate::Late, tally.late_bytes);
        self.source(origin, Fate::Wasted, tally.wasted_bytes);
    }

    /// What so many bytes have come to that were foreseen so.
    fn source(&self, origin: Origin, fate: Fate, bytes: u64) {
        let sources = &self.link.shared.header().sources[origin as usize];
        sources[fate as usize].fetch_add(bytes, Relaxed);
    }

    /// Has the files fetched that a process opens next.
    pub(super) fn fetch_ahead(&mut self, proc: usize) {
        let Some(mut walks) = self.walks.remove(&proc) else {
            return;
        };
        self.account(&mut walks);
        for key in walks.take_overtaken() {
            if self.lane.cancel_open(proc, key) {
                walks.cancelled(key);
            }
        }
        let bytes = self.memory();
        for target in walks.wanted(&self.tree, bytes) {
            self.issue(Intent::of_walk(proc, target));
        }
        self.ledger.lack(Holder::Walks, walks.holding().short);
        self.walks.insert(proc, walks);
        self.settle();
    }

    /// Bytes that a process may have ahead of what all walks may: its equal part, and what the others don't use of theirs.
    fn memory(&self) -> u64 {
        let allowance = self.ledger.allowance(Holder::Walks);
        let others = self.walks.values().map(Walks::holding);
        let others: Vec<Holding> = others.filter(|h| h.held + h.short > 0).collect();
        let part = allowance / (others.len() as u64 + 1);
        let kept: u64 = others.iter().map(|h| h.kept(part)).sum();
        allowance
            .saturating_sub(self.link.others_hold())
            .saturating_sub(kept)
            .saturating_sub(self.held_dense())
    }

    /// Tells what all walks have ahead.
    pub(super) fn settle(&self) {
        let walks: u64 = self.walks.values().map(|w| w.holding().held).sum();
        let all = self.link.holds(walks + self.held_dense());
        self.ledger.hold(Holder::Walks, all);
    }
}
