//! Devices: what file systems lie on, how they were measured, and of which nothing is fetched.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outrider_sys::units::{DeviceId, InodeKey};

use super::kernel::Kernel;
use super::left_to_kernel::DeviceFacts;
use super::sampling::{OPENINGS, Sampling};
use super::{Service, bounds};
use crate::clock::Moment;
use crate::device::{DeviceModel, READAHEAD};
use crate::engine::Engine;
use crate::map::{Keyed, Map};
use crate::source::credit::Credit;

/// A model is asked for anew after so long: asking the engine takes its lock.
const FRESH: Duration = Duration::from_millis(2);

/// What is known of a file system, and of the device that it lies on, before anything is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FileSystem {
    /// Bytes that one readahead call takes; `None`: its files lie in memory.
    pub chunk: Option<u64>,
    /// The longest request that the kernel makes for a long read, bytes; 0: not known.
    pub clip: u64,
    /// What the kernel reads ahead of a stream, bytes; 0: not known.
    pub read_ahead: u64,
    /// A server keeps its files: see [`fetch::server`](crate::fetch::server).
    pub shows_opens: bool,
    /// What is read stays cached, as far as is known from its kind.
    pub caches: bool,
}

/// File systems, by their numbers, and devices.
pub(super) struct Devices {
    file_systems: Map<u64, FileSystem>,
    /// Models that were measured at another time, by file system ([`file_system_id`](outrider_sys::device::file_system_id)).
    saved: HashMap<u64, DeviceModel>,
    /// What the engine said, and when.
    models: HashMap<DeviceId, (Moment, DeviceModel)>,
    /// What looking ahead on them may cost.
    credits: HashMap<DeviceId, Credit>,
    /// File systems on which what is read was seen to stay cached.
    caching: HashSet<u64>,
    /// File systems of which nothing is prefetched any more.
    left_alone: HashSet<u64>,
    /// What came of asking for files as they were opened, and how many more are passed over now.
    openings: HashMap<u64, (Sampling, u32)>,
}

impl Devices {
    pub(super) fn new(keyed: Keyed, saved: HashMap<u64, DeviceModel>) -> Devices {
        Devices {
            file_systems: Map::with_hasher(keyed),
            saved,
            models: HashMap::new(),
            credits: HashMap::new(),
            caching: HashSet::new(),
            left_alone: HashSet::new(),
            openings: HashMap::new(),
        }
    }

    /// What a file system lies on, if it was looked.
    pub(super) fn file_system(&self, dev: u64) -> Option<&FileSystem> {
        self.file_systems.get(&dev)
    }

    /// A file system was looked at.
    pub(super) fn found(&mut self, dev: u64, found: FileSystem) {
        self.file_systems.insert(dev, found);
    }

    /// Whether there are so many that no more are taken in.
    pub(super) fn are_enough(&self) -> bool {
        self.file_systems.len() >= bounds::DEVICES
    }

    /// What was measured of a file system at another time, by its number.
    pub(super) fn saved(&self, id: u64) -> Option<&DeviceModel> {
        self.saved.get(&id)
    }

    /// Whether opening a file shows: it is known that a server keeps it.
    pub(super) fn shows_opens(&self, dev: u64) -> bool {
        self.file_system(dev).is_some_and(|p| p.shows_opens)
    }

    /// The same, or nobody has looked yet.
    pub(super) fn may_show_opens(&self, dev: u64) -> bool {
        self.file_system(dev).is_none_or(|p| p.shows_opens)
    }

    /// The longest request that the kernel makes for a long read, bytes: no less than its readahead.
    pub(super) fn clip(&self, dev: u64) -> u64 {
        self.file_system(dev).map_or(0, |p| p.clip).max(READAHEAD)
    }

    /// The model of a device, not older than [`FRESH`].
    fn model(&mut self, device: DeviceId, engine: &Engine, now: Moment) -> DeviceModel {
        if let Some((at, model)) = self.models.get(&device)
            && now - *at < FRESH
            && model.has_overlapped()
        {
            return *model;
        }
        let model = engine.model(device);
        self.models.insert(device, (now, model));
        model
    }

    /// Whether what is asked for when a file is opened would come too late again, as nearly all did lately: programs that read a file as soon as they have it open are
    /// there first. Now and then it is tried all the same.
    pub(super) fn opens_in_vain(&self, dev: u64) -> bool {
        self.openings.get(&dev).is_some_and(|(_, pass)| *pass > 0)
    }

    /// A file was opened, of which something was asked for (`fruitful`), nothing because all of it was there, or nothing because nobody tried.
    pub(super) fn has_opened(&mut self, dev: u64, fruitful: Option<bool>) {
        let (sampling, pass) = self.openings.entry(dev).or_default();
        *pass = match fruitful {
            Some(fruitful) => sampling.tried(fruitful, &OPENINGS),
            None => pass.saturating_sub(1),
        };
    }

    /// What looking ahead on a device may cost.
    pub(super) fn credit(&mut self, device: DeviceId) -> &mut Credit {
        self.credits.entry(device).or_default()
    }

    /// See [`Devices::credit`].
    pub(super) fn credit_of(&self, device: DeviceId) -> Credit {
        self.credits.get(&device).copied().unwrap_or_default()
    }

    /// Whether nothing is prefetched of a file system any more.
    pub(super) fn leaves_alone(&self, dev: u64) -> bool {
        self.left_alone.contains(&dev)
    }

    /// Nothing is prefetched of a file system any more.
    pub(super) fn leave_alone(&mut self, dev: u64) {
        self.left_alone.insert(dev);
    }

    /// What was read of one of its files has stayed cached.
    pub(super) fn has_cached(&mut self, dev: u64) {
        self.caching.insert(dev);
    }

    /// What was read of one of its files has not stayed cached. Of a mount that does cache it is this file's matter.
    pub(super) fn has_not_cached(&mut self, dev: u64) {
        if !self.caching.contains(&dev) {
            self.left_alone.insert(dev);
        }
    }
}

impl<K: Kernel> Service<K> {
    /// The device from which a file was fetched last.
    pub(super) fn device(&self, key: InodeKey) -> DeviceId {
        let file = self.files.get(&key);
        file.map_or(key.device(), |f| f.device())
    }

    /// The model of a device.
    pub(super) fn model(&mut self, device: DeviceId) -> DeviceModel {
        self.devices.model(device, &self.engine, self.kernel.now())
    }

    /// What is known of the device that a file lies on.
    pub(super) fn device_facts(&mut self, key: InodeKey) -> DeviceFacts {
        DeviceFacts {
            model: self.model(self.device(key)),
            file_system: self.devices.file_system(key.dev).copied(),
            sharing: self.sharing(key),
            trial: self.prefetch_trial.quiet(),
            reading: self.reading,
        }
    }
}
