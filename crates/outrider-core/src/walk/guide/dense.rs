//! Files that processes open in no order.

use std::time::Duration;

use outrider_sys::raw;
use outrider_sys::units::{DeviceId, InodeKey};

use super::super::dense::{Bounds, Open};
use super::super::link::Opened;
use super::super::stream::{Here, Listen, Walks};
use super::Guide;
use crate::intent::Intent;
use crate::ledger::Holder;
use crate::load::Load;
use crate::shm::Origin;
use crate::tree::known::Place;

/// What processors do, and what this process takes of them.
pub(super) struct Processors {
    load: Load,
    /// What this process had taken when the last file came or the first was asked for, µs; what it has taken since enough had come, with all that it hears meanwhile, and
    /// how many have come since.
    from_us: f64,
    took_us: f64,
    files: u32,
}

/// Files by which the time is divided that they take.
const FILES: u32 = 8;
/// How busy processors are before it is known.
const PRIOR: f64 = 0.5;

impl Processors {
    pub(super) fn new() -> Processors {
        Processors {
            load: Load::begin(),
            from_us: 0.0,
            took_us: 0.0,
            files: 0,
        }
    }

    /// How likely it is that all are busy, so that what is done in one displaces something.
    fn displace(&mut self) -> f64 {
        self.load.all_busy(PRIOR)
    }

    /// Files are asked for, after none was on its way.
    fn begin(&mut self) {
        self.from_us = Processors::taken_us();
    }

    /// A file is there: what each of the last has taken, µs, once there are enough.
    fn fetched(&mut self) -> Option<f64> {
        let now = Processors::taken_us();
        self.took_us += now - std::mem::replace(&mut self.from_us, now);
        self.files += 1;
        (self.files == FILES).then(|| {
            self.files = 0;
            std::mem::take(&mut self.took_us) / f64::from(FILES)
        })
    }

    /// What this process has taken so far, µs.
    fn taken_us() -> f64 {
        let (s, ns) = raw::clock(libc::CLOCK_PROCESS_CPUTIME_ID);
        s as f64 * 1e6 + ns as f64 / 1e3
    }
}

impl Guide {
    /// What may be fetched from a device of directories whose files are opened in no order.
    fn bounds(&mut self, device: DeviceId) -> Bounds {
        let model = self.lane.model(device);
        let walks: u64 = self.walks.values().map(|w| w.holding().held).sum();
        let grant = self.ledger.allowance(Holder::Walks).saturating_sub(walks);
        Bounds {
            room: grant.saturating_sub(self.held_dense()),
            grant,
            together: self.lane.bound(device),
            latency_us: model.latency_us,
            bandwidth: model.bandwidth,
            share: self.share,
            displaces: self.processors.displace(),
        }
    }

    /// Bytes that are ahead because files are opened in no order.
    pub(super) fn held_dense(&self) -> u64 {
        self.dense.values().map(|d| d.held()).sum()
    }

    /// A process has opened a file, of which it is known where it is if it lies in a `place`: what is to be told, which is `listen` for those that are foreseen by an order.
    pub(super) fn in_no_order(
        &mut self,
        opened: Opened,
        place: Option<Place>,
        listen: Listen,
    ) -> Listen {
        let key = opened.key;
        let ordered = self.walks.get(&opened.proc).is_some_and(Walks::is_sure);
        let device = key.device();
        let known = self.dense.get(&device).is_some_and(|d| d.knows(key));
        if self.share == 0.0 || ordered && !known {
            return self.with_whether(device, listen);
        }
        if let Some(place) = place {
            let dense = self.dense.entry(device).or_default();
            let late = dense.awaits(key);
            let open = Open {
                cold: opened.cold,
                size: opened.size,
            };
            dense.opened(&place, &open, self.began.elapsed().as_secs_f64() * 1e6);
            // Nobody need fetch what the program does.
            if late && self.lane.cancel_open(opened.proc, key) {
                self.not_fetched(key);
            }
        }
        self.with_whether(device, listen)
    }

    /// What is to be told, if files are fetched that are opened in no order.
    fn with_whether(&self, device: DeviceId, listen: Listen) -> Listen {
        let Some(dense) = self.dense.get(&device) else {
            return listen;
        };
        match listen {
            Listen::All if dense.is_ahead() => Listen::AllAndWhether,
            Listen::Cold | Listen::Rest if dense.is_ahead() => Listen::Whether,
            Listen::Rest if dense.is_promising() => Listen::Cold,
            listen => listen,
        }
    }

    /// Whether a directory may be listed that isn't known, in which a process has opened a file.
    pub(super) fn may_list(&mut self, opened: Opened) -> bool {
        let ordered = self.walks.get(&opened.proc).is_some_and(Walks::is_sure);
        if ordered || self.share == 0.0 {
            return true;
        }
        let device = opened.key.device();
        let bounds = self.bounds(device);
        let dense = self.dense.entry(device).or_default();
        dense.may_list(&bounds)
    }

    /// A directory was listed, which took so long.
    pub(super) fn has_listed(&mut self, device: DeviceId, took: Duration) {
        if let Some(dense) = self.dense.get_mut(&device) {
            dense.listed(took.as_secs_f64() * 1e6);
        }
    }

    /// A file is there that was asked for, after so long, µs. `false`: not because files are opened in no order.
    pub(super) fn has_arrived(&mut self, key: InodeKey, here: Here, took_us: f64) -> bool {
        let dense = self.dense.get_mut(&key.device());
        let dense = dense.filter(|d| d.awaits(key));
        if let Some(dense) = dense {
            dense.arrived(key, here.bytes, here.cold, took_us);
            if here.cold
                && let Some(us) = self.processors.fetched()
            {
                dense.takes_processor(us);
            }
            return true;
        }
        false
    }

    /// A file that was asked for will not be fetched.
    pub(super) fn not_fetched(&mut self, key: InodeKey) {
        if let Some(dense) = self.dense.get_mut(&key.device()) {
            dense.cancelled(key);
        }
    }

    /// Has files fetched that some process may open, such as the one in an entry.
    pub(super) fn fetch_dense(&mut self, proc: usize) {
        let devices: Vec<DeviceId> = self.dense.keys().copied().collect();
        for device in devices {
            let bounds = self.bounds(device);
            let Some(dense) = self.dense.get_mut(&device) else {
                continue;
            };
            let waits = dense.awaits_any();
            let (wanted, tally) = (dense.wanted(&bounds), dense.take_tally());
            if !waits && !wanted.is_empty() {
                self.processors.begin();
            }
            let who = self.walks.get(&proc).and_then(|w| w.who);
            self.add_up(who, Origin::DenseDirectories, tally);
            for wanted in wanted {
                self.issue(Intent::of_directory(proc, wanted.place, wanted.most));
            }
        }
        self.settle();
    }

    /// Forgets which directories there are.
    pub(super) fn forget_dense(&mut self) {
        let mut forgotten = std::mem::take(&mut self.dense);
        for dense in forgotten.values_mut() {
            dense.clear();
            self.add_up(None, Origin::DenseDirectories, dense.take_tally());
        }
        self.dense = forgotten;
    }
}
