//! Has an engine of this process's own fetch what was planned. It yields to neighbours on the device, and shares with other runs of this user, as those of
//! services and of programs do.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Weak};
use std::time::Duration;

use indicatif::ProgressBar;
use outrider_core::clock::Monotonic;
use outrider_core::config::Config;
use outrider_core::device::DeviceModel;
use outrider_core::engine::{Account, BULK, Class, Engine, Handle, Kind, Request, Settings};
use outrider_core::plan::sweep::{self, Item};
use outrider_core::sharing::{DeviceSharing, Process, System, runs};
use outrider_core::shm::Notes;
use outrider_sys::device::file_system_id;
use outrider_sys::units::{DeviceId, PAGE};
use rustix::process::{Resource, getrlimit};

use super::{Chosen, Round};
use crate::models;
use crate::tree;

/// Bytes of a file system that wait to be asked for, at most: they are in order already, and each request costs memory.
const QUEUED: u64 = 8 << 20;
/// Requests that the engine is given at a time: its lock and a worker's wake-up are paid once for all.
const TOGETHER: usize = 64;
/// Files that are open at a time, and the part of those that this process may have open.
const OPEN: usize = 512;
const OPEN_PART: u64 = 2;
/// Between two looks at what has come.
const LOOK: Duration = Duration::from_millis(1);

/// The engine, and what goes with it.
pub struct Fetcher {
    engine: Engine,
    sharing: DeviceSharing,
    system: System,
    /// Bytes of the longest requests.
    chunk: u64,
    /// Models that were measured at another time, by file system.
    models: HashMap<u64, DeviceModel>,
    /// Devices of which something was asked.
    begun: HashSet<DeviceId>,
    /// Files that may be open.
    most: usize,
    low: Receiver<()>,
}

/// What became of a round before anything was asked for.
#[derive(Default)]
pub struct Fetched {
    /// Files that vanished or were replaced, and those that can't be opened.
    pub changed: HashSet<u16>,
    pub problems: BTreeMap<u16, io::Error>,
    /// Bytes of these.
    pub skipped: u64,
    /// The kernel was not asked for all that it should have been.
    pub refused: bool,
    /// The last page of each request came.
    pub seen: bool,
}

/// What is still to be asked for of a file system.
struct Queue {
    device: DeviceId,
    items: std::vec::IntoIter<Item>,
    account: Arc<Account>,
}

/// Files as they are opened for requests, which hold them.
struct Files<'a> {
    chosen: &'a BTreeMap<u16, Chosen<'a>>,
    open: HashMap<u16, Weak<Handle>>,
    /// One for each that is open, and this one.
    count: Arc<()>,
    fetched: Fetched,
}

impl Fetcher {
    /// One with so many workers at most, which start with the first request.
    pub fn new(config: &Config, workers: usize) -> Fetcher {
        let clock = Monotonic::begin();
        let settings = Settings {
            workers,
            ..Settings::of(config, Kind::Auto)
        };
        let engine = Engine::new(settings, Arc::new(Notes::default()), clock);
        let (below, low) = mpsc::sync_channel(1);
        let tell = move || {
            // One that is not taken yet says the same.
            let _ = below.try_send(());
        };
        engine.when_low(QUEUED / 2, Box::new(tell));
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Fetcher {
            engine,
            sharing: DeviceSharing::default(),
            system: System::new(clock),
            chunk: config.engine.chunk.bytes(),
            models: models::load(),
            begun: HashSet::new(),
            most: OPEN.min((limit / OPEN_PART) as usize).max(1),
            low,
        }
    }

    /// Fetches a round, and returns when nothing of it is on its way any more.
    pub fn fetch(&mut self, round: &mut Round<'_>, bar: &ProgressBar) -> Fetched {
        let mut files = Files {
            chosen: &round.files,
            open: HashMap::new(),
            count: Arc::default(),
            fetched: Fetched::default(),
        };
        let mut queues: Vec<Queue> = Vec::new();
        for (device, items) in &mut round.items {
            sweep::arrange(items);
            queues.push(Queue {
                device: *device,
                items: items.clone().into_iter(),
                account: Arc::default(),
            });
        }
        let (before, mut asked, unseen) = (bar.position(), 0, self.engine.unseen());
        loop {
            for queue in &mut queues {
                while let Some(requests) = files.next(queue, self.most) {
                    asked += requests.iter().map(bytes).sum::<u64>();
                    self.submit(queue.device, requests);
                }
            }
            let outstanding = self.engine.outstanding_bytes();
            bar.set_position(before + asked - outstanding.min(asked));
            if outstanding == 0 && queues.iter().all(|q| q.items.len() == 0) {
                break;
            }
            let _ = self.low.recv_timeout(LOOK);
            self.look();
        }
        let issued: u64 = queues.iter().map(|q| q.account.take_issued()).sum();
        files.fetched.refused = issued < asked;
        files.fetched.seen = self.engine.unseen() == unseen;
        files.fetched
    }

    /// Hands requests to the engine, which is told who else reads from their device.
    fn submit(&mut self, file_system: DeviceId, requests: Vec<Request>) {
        if let Some(first) = requests.first() {
            let handle = &first.handle;
            let device = self
                .engine
                .device_of(file_system, handle, first.range.start);
            if self.begun.insert(device) {
                let saved = file_system_id(handle.fd()).and_then(|id| self.models.get(&id));
                if let Some(model) = saved {
                    self.engine.assume(device, *model);
                }
                self.engine.allow(device, BULK);
            }
            // It may not have been looked for long.
            self.look();
            if !self.sharing.knows(device) {
                let (sharing, own) = self.readers();
                sharing.begin(device, own.system, own.engine, &own);
                end_with_signals();
            }
        }
        self.engine.submit(file_system, Class::Background, requests);
    }

    /// Looks who else reads, if it is time to.
    fn look(&mut self) {
        let (sharing, own) = self.readers();
        sharing.look(own.system, own.engine, &own);
    }

    fn readers(&mut self) -> (&mut DeviceSharing, Process<'_>) {
        let own = Process {
            engine: &self.engine,
            system: &self.system,
            chunk: self.chunk,
        };
        (&mut self.sharing, own)
    }

    /// Nothing is fetched any more, and other runs are shown nothing.
    pub fn end(self) {
        self.system.hide();
    }
}

impl Files<'_> {
    /// The next requests of a queue, as many as may wait.
    fn next(&mut self, queue: &mut Queue, most: usize) -> Option<Vec<Request>> {
        let mut requests: Vec<Request> = Vec::new();
        let mut queued = queue.account.queued_bytes();
        while requests.len() < TOGETHER
            && queued < QUEUED
            && Arc::strong_count(&self.count) <= most
            && let Some(item) = queue.items.next()
        {
            let range = item.page() * PAGE..item.end() * PAGE;
            let Some(handle) = self.handle(item.file()) else {
                let size = self.chosen.get(&item.file()).map_or(0, |f| f.size);
                self.fetched.skipped += super::bytes_of(&item, size);
                continue;
            };
            queued += range.end - range.start;
            requests.push(Request {
                handle,
                view: None,
                range,
                reader: None,
                account: queue.account.clone(),
            });
        }
        (!requests.is_empty()).then_some(requests)
    }

    /// A file, opened unless it is.
    fn handle(&mut self, index: u16) -> Option<Arc<Handle>> {
        if let Some(handle) = self.open.get(&index).and_then(Weak::upgrade) {
            return Some(handle);
        }
        let fetched = &mut self.fetched;
        if fetched.changed.contains(&index) || fetched.problems.contains_key(&index) {
            return None;
        }
        let chosen = self.chosen.get(&index)?;
        match tree::open(chosen.found) {
            Ok(Some(open)) if open.key == chosen.key => {
                let handle = Handle::read(OwnedFd::from(open.file));
                handle.attach(Box::new(self.count.clone()));
                let handle = Arc::new(handle);
                self.open.insert(index, Arc::downgrade(&handle));
                return Some(handle);
            }
            Ok(_) => drop(fetched.changed.insert(index)),
            Err(e) => drop(fetched.problems.insert(index, e)),
        }
        None
    }
}

fn bytes(request: &Request) -> u64 {
    request.range.end - request.range.start
}

/// What other runs are shown is gone when a signal ends this process, unless it ignores it.
fn end_with_signals() {
    extern "C" fn end(signal: libc::c_int) {
        runs::remove((
            rustix::process::geteuid().as_raw(),
            outrider_sys::raw::getpid(),
        ));
        // SAFETY: a number; the signal's action is the default one again.
        unsafe { libc::raise(signal) };
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: all zeros is a value of this type, and the handler makes system calls only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0;
            if known && action.sa_sigaction == libc::SIG_DFL {
                action.sa_sigaction = end as *const () as usize;
                action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }
}
