//! Issuing requests and learning when they have arrived.
//!
//! Every device has a queue of its own with a bound on the bytes in flight, taken from the measured bandwidth and latency
//! (`place`), because what lies in a device's queue beyond that helps nobody and delays other readers. Worker
//! threads, at most four, take the most urgent requests that fit the bound and issue them; at the bound they
//! wait for the oldest request instead. They start with the first request. Where a file system lies on several disks each of them
//! is a device, and a request goes to the one that holds its first byte.
//!
//! What the kernel has no queue for, opening files and listing directories, has threads of its own that wait ([`lane`]), and room among the bytes in flight.
//!
//! A readahead call returns when its reads are submitted, not when the data is there. Arrival is seen by
//! MADV_POPULATE_READ of a request's last page through a mapping of our own, which sleeps until the page is up to date,
//! moves no data, and leaves no trace on the file (a read would change its access time and raise inotify events).

mod handle;
mod issue;
mod lane;
mod mapping;
mod queue;
mod request;
mod worker;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

pub use handle::{Closer, Handle, Remains};
use issue::become_background;
pub use issue::{Failure, Handed, Issue, Noop, Readahead, Uring, ask, bring};
pub use lane::{
    Bench, Call, Client, Errand, Found, LEAST_BLOCK, Lane, Listing, Names, Patience, Permit, Reads,
    Server, Thread, find_directory, modified_at,
};
pub use queue::{Awaited, Issuing, Job, Outcome};
use queue::{Batch, Device, State};
pub use request::{Account, Class, Request};
pub use worker::{Arrived, Done, Worker};
use worker::{Watched, bytes_read};

use outrider_sys::raw::Fd;
use outrider_sys::units::{ByteRange, DeviceId, PAGE};
use outrider_sys::{below, counters, threads};

use crate::clock::{Clock, Monotonic};
use crate::config::{Config, IoPriority};
use crate::device::{DeviceModel, InFlight, Layout, Seeks, Sharing};
use crate::shm::{Notes, lost};

/// What is going on with a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// `st_dev`, or the number of a disk.
    pub device: DeviceId,
    /// Requests that the kernel has been given so far …
    pub handed: u64,
    /// … and these with those that it is being given.
    pub issued: u64,
    /// Parts more than one each that they may have, each of a page: between what was cached of them, by the bytes that they have read.
    pub parts: u64,
    /// Of these, those on their way.
    pub way: u64,
    /// Something is on its way.
    pub busy: bool,
    /// Bytes on their way.
    pub bytes: u64,
    /// Bytes that may be on their way.
    pub bound: u64,
    /// How often something was asked for beside the queues.
    pub entered: u64,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Calls that wait for the disk themselves, and those that wait for room in flight.
    lane: Arc<lane::State>,
    /// The same for servers' files, a lane for each file system.
    lanes_apart: Mutex<Vec<Weak<lane::State>>>,
    room: Condvar,
    /// What the kernel counts for each worker.
    counts: Mutex<Vec<Fd>>,
    notes: Arc<dyn AsRef<Notes> + Send + Sync>,
    settings: Settings,
    clock: Monotonic,
    /// Batches that were not seen to arrive.
    unseen: AtomicU64,
    /// Nobody starts threads: the jobs are somebody else's.
    by_hand: bool,
}

/// How the engine is set up; see `config.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Worker threads, from 1 on.
    pub workers: usize,
    /// Bounds of the bytes in flight per device.
    pub in_flight: (u64, u64),
    /// Argument of ioprio_set(2), 0 to leave the priority.
    pub io_priority: i32,
    /// How requests are issued.
    pub kind: Kind,
    /// What each group of requests is delayed by, and of how many requests one fails; 0 for none.
    pub monitor: (Duration, u64),
}

impl Settings {
    /// As the user has configured it.
    pub fn of(config: &Config, kind: Kind) -> Settings {
        Settings {
            workers: config.engine.workers as usize,
            in_flight: (config.engine.in_flight_min.0, config.engine.in_flight_max.0),
            io_priority: match config.engine.io_priority {
                // IOPRIO_PRIO_VALUE(class, data) of linux/ioprio.h.
                IoPriority::BestEffort7 => 2 << 13 | 7,
                IoPriority::Idle => 3 << 13,
                IoPriority::None => 0,
            },
            kind,
            monitor: (
                Duration::from_micros(config.monitor.delay_us.into()),
                config.monitor.fail_every.into(),
            ),
        }
    }
}

/// The engines, which have the same semantics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Threads, which call the kernel module where it is loaded.
    Auto,
    /// IORING_OP_FADVISE in batches: the kernel's workers do the allocation.
    Uring,
    /// posix_fadvise(WILLNEED) on the worker threads.
    Threads,
    /// The same on a single worker.
    Readahead,
    /// Nothing is issued.
    Noop,
}

/// Bytes in flight, at least, for whoever wants much and has nothing to do but wait for it: a program with declared lists on a device without a head, and `outrider warm`.
/// A fast device is seldom full while threads take turns on the processors, so that the engine's own search for the fewest bytes ends too low: for many small
/// requests at half the rate. A far one takes long to be known as nobody else's, and to be searched. It is what ordinary reads of a deep queue hold, and delays others
/// by 2 ms at 1 GB/s.
pub const BULK: u64 = 2 << 20;
/// Groups that are issued between two reads in no order at most, for as long as such reads are expected: some milliseconds' worth.
const SCATTERED: u32 = 16;
/// A worker waits for one batch for so long at a time.
const LONGEST_WAIT: Duration = Duration::from_millis(20);
/// What should have arrived long ago, and may have failed, is waited for in the kernel.
const TARDY: Duration = Duration::from_millis(250);

/// The engine.
pub struct Engine {
    shared: Arc<Shared>,
}

/// The jobs of an engine that has no threads.
pub struct Jobs(Arc<Shared>);

impl Jobs {
    /// What is to be done next.
    pub fn next(&self) -> Option<Job> {
        self.0.lock().next()
    }

    /// A job was done.
    pub fn done(&self, done: Done) {
        self.0.done(done);
    }
}

impl Engine {
    /// An engine without threads; they start with the first request. `notes` is where lost capabilities are noted and
    /// requests are counted.
    pub fn new(
        settings: Settings,
        notes: Arc<dyn AsRef<Notes> + Send + Sync>,
        clock: Monotonic,
    ) -> Engine {
        Engine::over(settings, notes, clock, false)
    }

    /// One that never starts threads, and what its jobs are taken with: whoever made it does them in a time of his own.
    pub fn by_hand(
        settings: Settings,
        notes: Arc<dyn AsRef<Notes> + Send + Sync>,
    ) -> (Engine, Jobs) {
        let engine = Engine::over(settings, notes, Monotonic::begin(), true);
        let jobs = Jobs(engine.shared.clone());
        (engine, jobs)
    }

    fn over(
        settings: Settings,
        notes: Arc<dyn AsRef<Notes> + Send + Sync>,
        clock: Monotonic,
        by_hand: bool,
    ) -> Engine {
        Engine {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                work: Condvar::new(),
                lane: Arc::default(),
                lanes_apart: Mutex::default(),
                room: Condvar::new(),
                counts: Mutex::default(),
                notes,
                settings,
                clock,
                unseen: AtomicU64::new(0),
                by_hand,
            }),
        }
    }

    /// The model of a device, by `st_dev` or the number of a disk.
    pub fn model(&self, device: DeviceId) -> DeviceModel {
        self.shared.model(device)
    }

    /// What is known of a device before anything is asked of it.
    pub fn assume(&self, device: DeviceId, model: DeviceModel) {
        self.shared
            .lock()
            .device(device, self.shared.settings.in_flight)
            .model = model;
    }

    /// See [`DeviceModel::tried`].
    pub fn tried(&self, device: DeviceId, serial: bool, lone_us: Option<f64>) {
        let mut state = self.shared.lock();
        let device = state.device(device, self.shared.settings.in_flight);
        device.model.tried(serial, lone_us);
    }

    /// See [`DeviceModel::try_room_again`].
    pub fn try_room_again(&self, device: DeviceId) {
        let mut state = self.shared.lock();
        let device = state.device(device, self.shared.settings.in_flight);
        device.model.try_room_again();
    }

    /// The devices that were used and their models.
    pub fn models(&self) -> Vec<(DeviceId, DeviceModel)> {
        let state = self.shared.lock();
        state.devices.iter().map(|d| (d.id, d.model)).collect()
    }

    /// The device that holds byte `at` of a file on file system `device`: `device` itself where it is one, or isn't known to be several.
    pub fn device_of(&self, device: DeviceId, handle: &Handle, at: u64) -> DeviceId {
        self.layout(device, handle)
            .and_then(|layout| layout.disk_at(handle.addresses(&(at..at + 1))?.start))
            .unwrap_or(device)
    }

    /// Whether that is known, and not only guessed.
    pub fn knows_place(&self, device: DeviceId, handle: &Handle, at: u64) -> bool {
        let known =
            |layout: &Arc<Layout>| Some(layout.knows(handle.addresses(&(at..at + 1))?.start));
        self.layout(device, handle).and_then(known).unwrap_or(true)
    }

    /// Sees on which disk of several the page at byte `at` of a file lies, unless that is known: by what the disks have read once `fetch` has
    /// brought it in, if it has.
    pub fn see_place(
        &self,
        device: DeviceId,
        handle: &Handle,
        at: u64,
        fetch: impl FnOnce() -> bool,
    ) {
        if let Some(layout) = self.layout(device, handle)
            && let Some(addresses) = handle.addresses(&(at..at + PAGE))
            && let Some(watch) = layout.issued(&addresses, bytes_read)
        {
            let after = fetch().then(|| bytes_read(layout.disks()));
            layout.arrived(watch, addresses, after.flatten());
        }
    }

    /// Whether the file's file system lies on several disks.
    pub fn is_spread(&self, device: DeviceId, handle: &Handle) -> bool {
        self.layout(device, handle).is_some()
    }

    /// The disks of a file system that lies on several.
    fn layout<'a>(&self, device: DeviceId, handle: &'a Handle) -> Option<&'a Arc<Layout>> {
        let find = || {
            let known = |(d, _): &&(DeviceId, Option<Arc<Layout>>)| *d == device;
            if let Some((_, layout)) = self.shared.lock().layouts.iter().find(known) {
                return layout.clone();
            }
            let disks = below::disks(handle.fd());
            let layout = (!disks.is_empty()).then(|| Arc::new(Layout::new(disks)));
            self.shared.lock().layouts.push((device, layout.clone()));
            layout
        };
        handle.layout.get_or_init(find).as_ref()
    }

    /// Bytes that the workers have had disks read so far.
    pub fn fetched(&self) -> u64 {
        let counts = self.shared.counts.lock();
        let counts = counts.unwrap_or_else(PoisonError::into_inner);
        counts.iter().filter_map(counters::fetched).sum()
    }

    /// Has a few pages of a file fetched at once, on the calling thread and beside the queues: to see what the device does with them. Whether that was possible.
    pub fn fetch_now(&self, handle: &Handle, range: ByteRange) -> bool {
        ask(handle.fd(), range).is_ok()
    }

    /// How often what was asked for was not seen to arrive: it failed, or that can't be seen.
    pub fn unseen(&self) -> u64 {
        self.shared.unseen.load(Ordering::Acquire)
    }

    /// Bytes that wait to be issued, on all devices.
    pub fn queued_bytes(&self) -> u64 {
        self.shared
            .lock()
            .devices
            .iter()
            .map(|d| d.queued_bytes)
            .sum()
    }

    /// Whether more than so many requests of less than 64 KiB wait to be issued, beside longer ones.
    pub fn has_many_short(&self, most: usize) -> bool {
        const SHORT: u64 = 64 << 10;
        let state = self.shared.lock();
        let queues = state.devices.iter().flat_map(|d| &d.queues);
        let bytes: u64 = state.devices.iter().map(|d| d.queued_bytes).sum();
        queues.map(VecDeque::len).sum::<usize>() > most + (bytes / SHORT) as usize
    }

    /// Allows at least `bytes` in flight on a device, within what the user allows at most.
    pub fn allow(&self, device: DeviceId, bytes: u64) {
        let bounds = self.shared.settings.in_flight;
        self.each(device, |d| {
            d.bounds.0 = bytes.clamp(bounds.0, bounds.1.max(bounds.0));
            d.allowed = InFlight::new(d.bounds.0..d.bounds.1);
        });
    }

    /// Requests of a device go out in the order in which they are queued from now on, as they do where it is found to have a head.
    pub fn keep_order(&self, device: DeviceId) {
        self.each(device, |d| {
            (d.in_order, d.sharing) = (true, Sharing::Exclusive)
        });
    }

    /// For a device and the disks below it.
    fn each(&self, device: DeviceId, change: impl Fn(&mut Device)) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let below = state.layouts.iter().find(|(d, _)| *d == device);
        let disks = below.and_then(|(_, s)| s.as_ref().map(|s| s.disks().to_vec()));
        for device in disks.unwrap_or_default().into_iter().chain([device]) {
            change(state.device(device, bounds));
        }
    }

    /// What is going on with each device.
    pub fn loads(&self) -> Vec<Load> {
        let state = self.shared.lock();
        let load = |d: &Device| Load {
            device: d.id,
            handed: d.handed.done(),
            issued: d.handed.begun(),
            parts: d.parts,
            way: d.in_flight.iter().map(Batch::requests).sum(),
            busy: d.in_flight_bytes + d.lane_bytes > 0,
            bytes: d.in_flight_bytes + d.lane_bytes,
            bound: d.bound(),
            entered: d.entered,
        };
        state.devices.iter().map(load).collect()
    }

    /// Who else reads from a device. Without this call it is nobody.
    pub fn share(&self, device: DeviceId, sharing: Sharing) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        state.device(device, bounds).set_sharing(sharing);
    }

    /// Whether a device is given nothing more for a moment, so that all that is on its way arrives.
    pub fn hold(&self, device: DeviceId, held: bool) {
        let bounds = self.shared.settings.in_flight;
        self.shared.lock().device(device, bounds).held = held;
        if !held {
            self.shared.work.notify_all();
        }
    }

    /// Bytes in flight at most on a device while others read from it.
    pub fn beside_others(&self, device: DeviceId) -> u64 {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        state.device(device, bounds).beside_others()
    }

    /// How many other runs of ours read from a device.
    pub fn divide(&self, device: DeviceId, others: u32) {
        let bounds = self.shared.settings.in_flight;
        self.shared.lock().device(device, bounds).others = others;
    }

    /// The kernel has so many bytes in flight on a device for a stream of long reads, and so many for all that go forward without gaps, where nobody runs ahead of them.
    pub fn match_kernel(&self, device: DeviceId, bytes: u64, streaming: u64) {
        let bounds = self.shared.settings.in_flight;
        self.shared
            .lock()
            .device(device, bounds)
            .match_kernel(bytes, streaming);
    }

    /// Whether programs have a device fetch much at once themselves, ahead of what is asked for here.
    pub fn disturb(&self, device: DeviceId, disturbed: bool) {
        let bounds = self.shared.settings.in_flight;
        self.shared.lock().device(device, bounds).disturbed = disturbed;
    }

    /// A program has waited for a read in no order there. The next ones would wait behind all that is on its way for what is read in order.
    pub fn scatters(&self, device: DeviceId) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let d = state.device(device, bounds);
        if d.model.seeks() != Seeks::Yes {
            d.scattered = SCATTERED;
        }
    }

    /// A device was found to be nobody else's: begins with much in flight.
    pub fn deepen(&self, device: DeviceId) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let d = state.device(device, bounds);
        // Whoever wants much asks for it as it lies, so that a head loses nothing by more of it. A network that answers as late needs it, and shows that it has no head.
        let bulk = (d.bounds.0 >= BULK).then_some(4 * BULK);
        if let Some(deep) = d.model.deep().or(bulk).filter(|_| !d.in_order) {
            d.allowed.fall_from(deep, d.bounds.0..d.bounds.1);
        }
    }

    /// Queues requests for files of one file system, in the order of need within their class.
    pub fn submit(&self, device: DeviceId, class: Class, requests: Vec<Request>) {
        let Some(first) = requests.first() else {
            return;
        };
        if self.layout(device, &first.handle).is_none() {
            return self.queue(device, class, requests);
        }
        let mut rest = requests.into_iter().peekable();
        while let Some(first) = rest.next() {
            let place = |r: &Request| self.device_of(device, &r.handle, r.range.start);
            let at = place(&first);
            let mut together = vec![first];
            while let Some(next) = rest.next_if(|r| place(r) == at) {
                together.push(next);
            }
            self.queue(at, class, together);
        }
    }

    fn queue(&self, device: DeviceId, class: Class, requests: Vec<Request>) {
        let settings = self.shared.settings;
        let mut state = self.shared.lock();
        let queued = {
            let d = state.device(device, settings.in_flight);
            let bytes: u64 = requests.iter().map(Request::bytes).sum();
            d.queued_bytes += bytes;
            if class == Class::Bulk {
                d.bulk_bytes += bytes;
            }
            requests.iter().for_each(|r| r.waits());
            d.queues[class as usize].extend(requests);
            d.queues[class as usize].len()
        };
        // One worker will do for little work; a second where the first would sleep over its own requests, or over another device's.
        let elsewhere = state
            .devices
            .iter()
            .any(|d| d.id != device && d.in_flight_bytes > 0);
        let wanted = if queued > 4 || elsewhere {
            settings.workers
        } else {
            1
        };
        let limit = if settings.kind == Kind::Readahead {
            1
        } else {
            wanted
        };
        while state.workers < limit {
            if self.shared.by_hand {
                state.workers = limit;
                break;
            }
            let shared = self.shared.clone();
            state.workers += 1;
            let started = threads::start(c"outrider", 128 << 10, move || worker::work(&shared));
            if !started {
                state.workers -= 1;
                if !threads::are_to_end() {
                    self.shared.notes().lose(lost::THREADS);
                }
                break;
            }
        }
        if state.workers == 0 {
            // Nobody will ever take them.
            let d = state.device(device, settings.in_flight);
            d.drain();
            return;
        }
        // Waking costs a system call even where nobody sleeps. Whoever works looks into the queues before it goes to sleep.
        let idle = state.idle;
        drop(state);
        match (idle, queued) {
            (0, _) => {}
            (_, 1) => self.shared.work.notify_one(),
            _ => self.shared.work.notify_all(),
        }
    }

    /// Has `call` called when what is queued falls below `bytes`, and when nothing is left at all. It must not call the engine.
    pub fn when_low(&self, bytes: u64, call: Box<dyn Fn() + Send>) {
        self.shared.lock().low = Some((bytes, call));
    }

    /// Bytes that are queued or in flight, on all devices.
    pub fn outstanding_bytes(&self) -> u64 {
        let state = self.shared.lock();
        let devices = state.devices.iter();
        devices.map(|d| d.queued_bytes + d.in_flight_bytes).sum()
    }

    /// Whether anything is queued or in flight.
    pub fn is_busy(&self) -> bool {
        self.outstanding_bytes() > 0
    }

    /// Whether anything is in flight on a device.
    pub fn is_asked(&self, device: DeviceId) -> bool {
        let state = self.shared.lock();
        let asked = |d: &Device| d.id == device && d.in_flight_bytes > 0;
        state.devices.iter().any(asked)
    }

    /// Waits until nothing is in flight, at most `limit`.
    pub fn settle(&self, limit: Duration) {
        let began = self.shared.clock.now();
        while self.shared.clock.since(began) < limit
            && self
                .shared
                .lock()
                .devices
                .iter()
                .any(|d| d.in_flight_bytes > 0)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Drops what is queued.
    pub fn drain(&self) {
        let mut state = self.shared.lock();
        for d in &mut state.devices {
            d.drain();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.drain();
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        self.shared.lane.stop();
        let lanes = std::mem::take(&mut *crate::lock(&self.shared.lanes_apart));
        lanes
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|l| l.stop());
        self.shared.room.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn model(&self, device: DeviceId) -> DeviceModel {
        self.lock().device(device, self.settings.in_flight).model
    }

    fn bound_of_lane(&self, device: DeviceId) -> u64 {
        let bounds = self.settings.in_flight;
        self.lock().device(device, bounds).bound_of_lane()
    }

    fn notes(&self) -> &Notes {
        (*self.notes).as_ref()
    }

    fn done(&self, done: Done) {
        match done {
            Done::Issued(issuing, outcome) => {
                let issued = issuing.settle(outcome, self.notes());
                self.lock().issued(issued);
            }
            Done::Arrived(mut awaited, arrived) => {
                if !arrived.seen {
                    self.unseen.fetch_add(1, Ordering::AcqRel);
                }
                // Of what never arrives, nothing more is asked.
                if arrived.overdue {
                    awaited.handle().give_up();
                }
                let holder = awaited.settle(&arrived);
                let mut state = self.lock();
                let device = state.devices[awaited.device()].id;
                state.arrived(awaited, arrived, holder, self.settings.in_flight);
                self.has_room(&state, device);
            }
            Done::Waits(awaited) => self.lock().waits_on(awaited),
        }
    }
}
