//! What waits for each device, what is on its way, and what is to be done next: without a thread, a clock or a system call, so that workers and a
//! simulator do the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrider_sys::units::{ByteRange, DeviceId, PAGE};

use super::{Account, Arrived, Class, Failure, Handed, Handle, Request, TARDY, Watched};
use crate::clock::Moment;
use crate::device::{Bulk, DeviceModel, InFlight, Layout, READAHEAD, Seeks, Sharing};
use crate::ledger::Holder;
use crate::shm::{Notes, lost};
use crate::view::{FileView, PageRange};

/// A request on its way.
struct Arriving {
    view: Option<Arc<FileView>>,
    range: ByteRange,
    account: Arc<Account>,
}

/// Requests that were issued together and are waited for as one.
pub(super) struct Batch {
    parts: Vec<Arriving>,
    handle: Arc<Handle>,
    bytes: u64,
    /// Bytes that the device was asked for, less what was cached or on its way; `None` where nobody counts.
    read: Option<u64>,
    /// See [`Outcome::ends_in_cached`].
    ends_in_cached: bool,
    issued: Moment,
    /// Bytes that were on their way before.
    ahead: u64,
    lone: bool,
    bulk: bool,
    /// Several small requests for different places.
    scattered: bool,
    watched: Option<Watched>,
}

impl Batch {
    /// Requests that the device was given, at most.
    pub(super) fn requests(&self) -> u64 {
        let all = self.parts.len() as u64;
        self.read.map_or(all, |read| all.min(read.div_ceil(PAGE)))
    }
}

/// One device: what waits, what is on its way, and what is known of it.
pub(super) struct Device {
    pub(super) id: DeviceId,
    pub(super) queues: [VecDeque<Request>; 3],
    pub(super) queued_bytes: u64,
    /// Of these, those of [`Class::Bulk`].
    pub(super) bulk_bytes: u64,
    pub(super) in_flight: VecDeque<Batch>,
    pub(super) in_flight_bytes: u64,
    /// Bytes of the lane on their way, and how often any were asked for.
    pub(super) lane_bytes: u64,
    pub(super) entered: u64,
    /// How often they had been when it was last known who else reads there.
    pub(super) known: u64,
    /// Since when something was on its way all the time, and the requests and bytes that have arrived since.
    pub(super) busy: Option<(Moment, u64, u64)>,
    /// Bytes issued since nothing was in flight.
    pub(super) unbroken: u64,
    /// Nothing more is issued for a moment.
    pub(super) held: bool,
    /// Workers that wait for an arrival.
    pub(super) waiting: u32,
    /// Threads of the lane that wait for room there.
    pub(super) wait_for_room: u32,
    pub(super) model: DeviceModel,
    pub(super) allowed: InFlight,
    /// Bounds of what is allowed, bytes.
    pub(super) bounds: (u64, u64),
    /// The least that is in flight until it is known who else reads, bytes.
    pub(super) least: u64,
    /// Bytes that the kernel has in flight there for a stream of long reads, where nobody runs ahead of it.
    pub(super) kernels: u64,
    /// The same for all streams that go forward without gaps.
    pub(super) streaming: u64,
    /// Whether somebody else reads from it.
    pub(super) sharing: Sharing,
    /// Other runs of ours that read from it.
    pub(super) others: u32,
    /// Requests that the kernel has been given.
    pub(super) handed: Arc<Handed>,
    /// See [`Load::parts`](super::Load::parts).
    pub(super) parts: u64,
    /// Requests go out in the order in which they came, one group at a time, whatever the device is found to be.
    pub(super) in_order: bool,
    /// A worker is issuing to it.
    pub(super) issuing: bool,
    /// End of the last request issued and its file, to tell seeks from continuations.
    pub(super) last_end: (usize, u64),
    /// The bound was reached, and the queue has not run empty since.
    pub(super) full: bool,
    /// First arrival since then.
    pub(super) span: Option<Moment>,
    /// Bytes that were in flight when it changed who else reads there and have not arrived since.
    pub(super) mixed: u64,
    /// It has been seen that reads from it are counted.
    pub(super) counts: bool,
    /// Programs have it fetch much at once themselves: how long its answers take says nothing of it.
    pub(super) disturbed: bool,
    /// Groups until it is taken for granted that programs' reads in no order wait there no longer.
    pub(super) scattered: u32,
    /// Bytes that arrived, and the µs that they took, in spans that were too short to say something alone.
    pub(super) before: (u64, f64),
}

/// All devices, and the workers.
#[derive(Default)]
pub(super) struct State {
    pub(super) devices: Vec<Device>,
    /// File systems by `st_dev`, and the disks below those that lie on several.
    pub(super) layouts: Vec<(DeviceId, Option<Arc<Layout>>)>,
    pub(super) workers: usize,
    pub(super) idle: usize,
    pub(super) stop: bool,
    pub(super) turn: usize,
    /// Requests were dropped since the latest look at the queues that found nothing to do.
    pub(super) dropped: bool,
    /// Called when what is queued falls to so many bytes, and when nothing is queued or on its way any more.
    pub(super) low: Option<(u64, Box<dyn Fn() + Send>)>,
    /// It was above since the last call.
    pub(super) high: bool,
}

/// A request group is issued and waited for as one: its requests are small, and one wait costs a system call and a wake-up. It takes
/// so many bytes, or the bound on those in flight divided by [`GROUPS`], if that is more.
const GROUP_BYTES: u64 = 128 << 10;
/// As many groups are in flight at the bound, at least: when the oldest has arrived, most of the device's queue is still full.
const GROUPS: u64 = 4;
const GROUP_REQUESTS: usize = 64;

/// Calls of the lane that are made as if somebody else read there, while it is not known whether anybody does: who makes a read in the time of four of these is seen
/// meanwhile. With 32 he met more, and a tree on a network disk came no sooner.
const BEGINNING: u64 = 64;

impl State {
    /// A device, new if it was not known; `bounds` of the bytes in flight.
    pub(super) fn device(&mut self, id: DeviceId, bounds: (u64, u64)) -> &mut Device {
        let i = self
            .devices
            .iter()
            .position(|d| d.id == id)
            .unwrap_or_else(|| {
                self.devices.push(Device {
                    id,
                    queues: Default::default(),
                    queued_bytes: 0,
                    bulk_bytes: 0,
                    in_flight: VecDeque::new(),
                    in_flight_bytes: 0,
                    lane_bytes: 0,
                    entered: 0,
                    known: 0,
                    busy: None,
                    unbroken: 0,
                    held: false,
                    waiting: 0,
                    wait_for_room: 0,
                    model: DeviceModel::default(),
                    allowed: InFlight::new(bounds.0..bounds.1),
                    bounds,
                    least: bounds.0,
                    kernels: 0,
                    streaming: 0,
                    sharing: Sharing::Exclusive,
                    others: 0,
                    handed: Arc::default(),
                    parts: 0,
                    in_order: false,
                    issuing: false,
                    last_end: (0, 0),
                    full: false,
                    span: None,
                    mixed: 0,
                    counts: false,
                    disturbed: false,
                    scattered: 0,
                    before: (0, 0.0),
                });
                self.devices.len() - 1
            });
        &mut self.devices[i]
    }
}

/// What a worker is to do next.
pub enum Job {
    /// Hand requests to the kernel.
    Issue(Issuing),
    /// Wait for what is on its way.
    Await(Awaited),
}

/// Requests for one file that are being handed to the kernel.
pub struct Issuing {
    device: usize,
    group: Vec<Request>,
    bytes: u64,
    /// Bytes that were on their way before.
    ahead: u64,
    lone: bool,
    bulk: bool,
    scattered: bool,
    handed: Arc<Handed>,
    apart: Option<Handed>,
    pub(super) watched: Option<Watched>,
}

/// What became of them.
pub struct Outcome {
    /// Indices of the requests that were refused, and why.
    pub failed: Vec<(usize, Failure)>,
    /// Bytes that the device was asked for, less what was cached or on its way; `None` where nobody counts.
    pub read: Option<u64>,
    /// The last page was cached, or on its way, before: that it is there does not say that what was asked for is.
    pub ends_in_cached: bool,
    /// When it was begun.
    pub began: Moment,
}

impl Issuing {
    /// The requests, in order.
    pub fn requests(&self) -> &[Request] {
        &self.group
    }

    /// Counts the requests that the kernel has been given.
    pub fn handed(&self) -> &Handed {
        self.apart.as_ref().unwrap_or(&self.handed)
    }

    /// What is counted while they are handed over is added up afterwards.
    pub fn count_apart(&mut self) {
        self.handed.begin(self.group.len() as u64);
        self.apart = Some(Handed::default());
    }

    /// What was issued becomes a batch in flight; what failed is missing again.
    pub(super) fn settle(self, outcome: Outcome, notes: &Notes) -> Issued {
        let asked_for = self.group.len() as u64;
        if let Some(apart) = self.apart {
            self.handed.end(apart.done());
            self.handed.take_back(asked_for - apart.done());
        }
        notes.requests.fetch_add(asked_for, Ordering::Relaxed);
        let mut parts = Vec::with_capacity(self.group.len());
        let mut handle = None;
        for (i, request) in self.group.into_iter().enumerate() {
            if outcome.failed.iter().any(|(f, _)| *f == i) {
                request.drop_it();
                continue;
            }
            request.account.handed(request.bytes());
            handle = Some(request.handle.clone());
            parts.push(Arriving {
                view: request.view,
                range: request.range,
                account: request.account,
            });
        }
        for (_, failure) in outcome.failed {
            match failure {
                Failure::OutOfMemory => notes.lose(lost::NO_PAGES),
                Failure::NotAllowed => notes.lose(lost::READAHEAD),
                Failure::Engine | Failure::Refused => {}
            }
        }
        // What failed never reached the device.
        let refused = asked_for - parts.len() as u64;
        let read = outcome.read.unwrap_or(self.bytes) / PAGE;
        let missing = (self.bytes / PAGE).saturating_sub(read);
        let (batch, unused) = match handle {
            Some(handle) => {
                let batch = Batch {
                    parts,
                    handle,
                    bytes: self.bytes,
                    read: outcome.read,
                    ends_in_cached: outcome.ends_in_cached,
                    issued: outcome.began,
                    ahead: self.ahead,
                    lone: self.lone,
                    bulk: self.bulk,
                    scattered: self.scattered,
                    watched: self.watched,
                };
                (Some(batch), None)
            }
            None => (None, self.watched),
        };
        if let Some(watched) = unused {
            watched.end(false);
        }
        self.handed.remove(refused);
        Issued {
            device: self.device,
            bytes: self.bytes,
            parts: missing.min(read.saturating_sub(1)),
            batch,
        }
    }
}

/// What has been handed to the kernel.
pub(super) struct Issued {
    device: usize,
    bytes: u64,
    parts: u64,
    batch: Option<Batch>,
}

/// What is waited for.
pub struct Awaited {
    device: usize,
    batch: Batch,
    soon: Option<Duration>,
}

impl Awaited {
    /// The index of its device.
    pub(super) fn device(&self) -> usize {
        self.device
    }

    /// The file.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.batch.handle
    }

    /// The last byte: it has arrived when this has.
    pub fn last(&self) -> u64 {
        let last = self.batch.parts.last();
        last.map_or(0, |part| part.range.end.saturating_sub(1))
    }

    /// When it was issued.
    pub fn issued(&self) -> Moment {
        self.batch.issued
    }

    /// How long it takes, by what is known of the device.
    pub fn takes(&self) -> Option<Duration> {
        self.soon
    }

    /// The wait is over: marks that in the views. The disk where it turned out to lie, if that was not known.
    pub(super) fn settle(&mut self, arrived: &Arrived) -> Option<DeviceId> {
        let watched = self.batch.watched.take();
        let holder = watched.and_then(|w| w.end(arrived.seen));
        for part in &self.batch.parts {
            let range = &part.range;
            let pages = PageRange::from_bytes(range.start, range.end - range.start);
            match &part.view {
                Some(view) if arrived.overdue => _ = view.fail(pages),
                Some(view) => view.complete(pages, arrived.at.micros()),
                None => {}
            }
            if arrived.seen {
                part.account.arrived(pages);
            }
        }
        holder
    }
}

impl State {
    /// Tells whoever waits for the queue to fall.
    pub(super) fn tell(&mut self) {
        let Some((low, call)) = &self.low else { return };
        let queued: u64 = self.devices.iter().map(|d| d.queued_bytes).sum();
        if queued > *low {
            self.high = true;
        } else if std::mem::take(&mut self.high)
            || (queued == 0 && self.devices.iter().all(|d| d.in_flight_bytes == 0))
        {
            call();
        }
    }

    /// The next thing to do: issuing goes before waiting, on every device.
    pub(super) fn next(&mut self) -> Option<Job> {
        let n = self.devices.len();
        self.turn = self.turn.wrapping_add(1);
        for k in 0..n {
            let i = (self.turn + k) % n;
            if let Some((group, class)) = self.devices[i].take_group(&mut self.dropped) {
                return Some(Job::Issue(self.devices[i].begin(i, group, class)));
            }
        }
        let several = self.devices.iter().filter(|d| d.last_end.0 != 0).count() > 1;
        for k in 0..n {
            let i = (self.turn + k) % n;
            let d = &mut self.devices[i];
            // Of several devices each has one worker at most that waits for it: a slow one must not keep all of them from the others.
            if several && d.waiting > 0 {
                continue;
            }
            if let Some(batch) = d.in_flight.pop_front() {
                d.waiting += 1;
                return Some(Job::Await(Awaited {
                    device: i,
                    soon: d.model.takes(batch.bytes),
                    batch,
                }));
            }
        }
        None
    }

    /// Whether a device is given nothing more for a moment.
    pub(super) fn holds(&self) -> bool {
        self.devices.iter().any(|d| d.held)
    }

    /// That has lasted long enough where nothing is left on its way.
    pub(super) fn lets_on(&mut self) {
        let rest = self.devices.iter_mut().filter(|d| d.in_flight_bytes == 0);
        rest.for_each(|d| d.held = false);
    }

    /// Requests have been handed to the kernel.
    pub(super) fn issued(&mut self, issued: Issued) {
        let d = &mut self.devices[issued.device];
        d.issuing = false;
        d.parts += issued.parts;
        match issued.batch {
            Some(batch) => {
                d.full |= d.in_flight_bytes + d.group_bytes() > d.bound_of_queues();
                d.in_flight.push_back(batch);
            }
            None => d.in_flight_bytes = d.in_flight_bytes.saturating_sub(issued.bytes),
        }
        self.tell();
    }

    /// It is not there yet, and something else may have to be waited for.
    pub(super) fn waits_on(&mut self, awaited: Awaited) {
        let d = &mut self.devices[awaited.device];
        d.waiting -= 1;
        d.in_flight.push_front(awaited.batch);
    }

    /// A wait is over. What was asked for without knowing where it lies says something about the device `holder`, where it turned out to lie.
    pub(super) fn arrived(
        &mut self,
        awaited: Awaited,
        arrived: Arrived,
        holder: Option<DeviceId>,
        bounds: (u64, u64),
    ) {
        let now = arrived.at;
        let batch = awaited.batch;
        let d = &mut self.devices[awaited.device];
        d.waiting -= 1;
        d.in_flight_bytes = d.in_flight_bytes.saturating_sub(batch.bytes);
        // Nothing was in flight when a lone one was issued.
        let behind = d.unbroken.saturating_sub(batch.bytes);
        if arrived.seen {
            let took = now - batch.issued;
            d.counts |= batch.read.is_some_and(|read| read > 0);
            // What was cached arrives at once, and would make any device a fast one.
            let read = batch.read.filter(|_| d.counts).unwrap_or(batch.bytes);
            d.measure(batch.bytes, read.min(batch.bytes), now);
            let (since, requests, bytes) = match d.busy {
                Some(busy) if batch.ahead > 0 => busy,
                _ => (batch.issued, 0, 0),
            };
            let (requests, bytes) = match batch.ends_in_cached {
                true => (requests, bytes),
                false => (requests + batch.requests(), bytes + read.min(batch.bytes)),
            };
            d.busy = Some((since, requests, bytes));
            // What was thrown away before anybody looked is there only when it has been fetched again.
            let whole = !batch.ends_in_cached && read >= batch.bytes - batch.bytes / 8;
            let telling = whole && took < TARDY && !d.disturbed;
            let id = holder.unwrap_or(d.id);
            if telling {
                let took = took.as_secs_f64() * 1e6;
                let model = &mut self.device(id, bounds).model;
                model.answered(batch.bytes, batch.ahead, took);
                if batch.bulk {
                    model.piece_arrived(batch.bytes, took);
                } else if batch.scattered && batch.ahead == 0 {
                    model.several_arrived(batch.parts.len(), took);
                }
                model.overlapped(requests, bytes, (now - since).as_secs_f64() * 1e6);
                if !batch.lone && batch.ahead <= READAHEAD {
                    model.group_arrived(batch.bytes, took);
                }
                if batch.lone {
                    model.lone_request(batch.bytes, behind, took);
                }
            }
        }
        self.tell();
    }
}

impl Device {
    /// The requests that are due, if there is room for them: of one file, taken from the queues. `dropped` is set where some had come too late.
    fn take_group(&mut self, dropped: &mut bool) -> Option<(Vec<Request>, Class)> {
        // Two workers would each send a part of the same sweep, and a head would go to and fro between them.
        if self.issuing && (self.in_order || self.model.seeks() == Seeks::Yes) {
            return None;
        }
        if self.held {
            return None;
        }
        if self.in_flight_bytes == 0 {
            self.unbroken = 0;
        } else if self.unbroken >= self.breath() {
            return None;
        }
        [Class::Window, Class::Background, Class::Bulk]
            .into_iter()
            .map(|class| (self.take_from(class, dropped), class))
            .find(|(group, _)| !group.is_empty())
    }

    /// The same from the queue of a class.
    fn take_from(&mut self, class: Class, dropped: &mut bool) -> Vec<Request> {
        let mut group: Vec<Request> = Vec::new();
        let (bound, most, queued) = match class {
            Class::Bulk => {
                let piece = self.model.piece();
                let all = piece * self.model.bulk().pieces();
                // A head that is called away for less has come there for nothing; the program's wait is in the price.
                let long = self.sharing != Sharing::Shared && self.model.seeks() == Seeks::Yes;
                let bound = match long {
                    true => all,
                    false => all.min(self.bound_of_queues()),
                };
                (bound, piece, self.bulk_bytes)
            }
            _ => {
                let queued = self.queued_bytes - self.bulk_bytes;
                (self.bound_of_queues(), self.group_bytes(), queued)
            }
        };
        // Room for a whole group is waited for: once groups are small they would stay so.
        if self.in_flight_bytes > 0 && self.in_flight_bytes + most.min(queued) > bound {
            return group;
        }
        let mut bytes = 0;
        let queue = &mut self.queues[class as usize];
        while group.len() < GROUP_REQUESTS {
            let Some(next) = queue.front() else { break };
            let b = next.bytes();
            let before = self.in_flight_bytes + bytes;
            let fits = before + b <= bound || before == 0;
            let same = group
                .first()
                .is_none_or(|g| Arc::ptr_eq(&g.handle, &next.handle));
            if !fits || !same || (bytes > 0 && bytes + b > most) {
                break;
            }
            let Some(request) = queue.pop_front() else {
                break;
            };
            self.queued_bytes = self.queued_bytes.saturating_sub(b);
            if class == Class::Bulk {
                self.bulk_bytes = self.bulk_bytes.saturating_sub(b);
            }
            request.waited();
            if request.stale() {
                request.drop_it();
                *dropped = true;
                continue;
            }
            bytes += b;
            request.goes_out();
            group.push(request);
        }
        group
    }

    /// A group goes out, to the device with this index.
    fn begin(&mut self, device: usize, group: Vec<Request>, class: Class) -> Issuing {
        let bytes: u64 = group.iter().map(Request::bytes).sum();
        let (first, last) = (&group[0], &group[group.len() - 1]);
        let continues = self.last_end == (first.file(), first.range.start);
        let one = group.windows(2).all(|w| w[0].range.end == w[1].range.start);
        let ahead = self.in_flight_bytes + self.lane_bytes;
        // Beside a walk there is no other: what is read for that is short.
        let lone = self.in_flight_bytes == 0 && !continues && one;
        self.last_end = (last.file(), last.range.end);
        let small = |r: &Request| r.bytes() <= Bulk::SMALL;
        let scattered = group.len() > 1 && !one && group.iter().all(small);
        self.issuing = true;
        self.scattered = self.scattered.saturating_sub(1);
        self.in_flight_bytes += bytes;
        self.unbroken = self.unbroken.saturating_add(bytes);
        Issuing {
            device,
            group,
            bytes,
            ahead,
            lone,
            bulk: class == Class::Bulk,
            scattered,
            handed: self.handed.clone(),
            apart: None,
            watched: None,
        }
    }

    /// Drops what waits.
    pub(super) fn drain(&mut self) {
        (self.queued_bytes, self.bulk_bytes) = (0, 0);
        for request in self.queues.iter_mut().flat_map(|q| q.drain(..)) {
            request.waited();
            request.drop_it();
        }
    }

    /// Who else reads from it.
    pub(super) fn set_sharing(&mut self, sharing: Sharing) {
        // A sweep goes by what lies in its queue: with less there the head moves half as often again, and nobody reads sooner.
        let sharing = match self.in_order {
            true => Sharing::Exclusive,
            false => sharing,
        };
        if self.sharing == sharing {
            return;
        }
        if matches!(self.sharing, Sharing::Exclusive | Sharing::Shared) {
            self.known = self.entered;
        }
        self.sharing = sharing;
        // What arrived beside others, and what without, says nothing of either, nor does what is on its way.
        (self.span, self.before) = (None, (0, 0.0));
        self.mixed = self.in_flight_bytes;
    }

    /// The kernel has so many bytes in flight for a stream of long reads, and for all streams, where nobody runs ahead of them.
    pub(super) fn match_kernel(&mut self, bytes: u64, streaming: u64) {
        self.streaming = streaming.min(self.bounds.1);
        self.kernels = bytes.min(self.bounds.1);
        self.allowed.rise_to(self.kernels);
    }

    /// Bytes in flight at most.
    pub(super) fn bound(&self) -> u64 {
        // Runs share what one of them would have.
        let runs = u64::from(self.others + 1);
        let alone = (self.allowed.bound() / runs).max(self.bounds.0);
        let bound = match self.sharing {
            Sharing::Exclusive if self.scattered == 0 => alone,
            // Programs' own reads in no order wait behind it as somebody else's would.
            Sharing::Exclusive | Sharing::Unknown | Sharing::Suspected => {
                alone.min((self.model.unproven() / runs).max(self.least))
            }
            Sharing::Shared => alone.min(self.beside_others()),
        };
        // With less in flight than without us the program would wait longer, and nobody else shorter.
        bound.max(self.kernels)
    }

    /// Bytes in flight at most beside others: no less than the kernel would have for the same streams.
    pub(super) fn beside_others(&self) -> u64 {
        self.model.beside_others().max(self.streaming)
    }

    /// Bytes of the queues in flight at most: where somebody else may wait behind them and the lane's, both together keep to the bound, in which each has its
    /// share.
    fn bound_of_queues(&self) -> u64 {
        let bound = self.bound();
        match self.sharing {
            Sharing::Exclusive => bound,
            _ => bound - self.lane_bytes.min(Holder::Walks.share(bound)),
        }
    }

    /// Bytes of the lane in flight at most. Who reads in a stream waits for it with nothing to do, and has what the kernel's own readahead has on its way
    /// besides.
    pub(super) fn bound_of_lane(&self) -> u64 {
        let streams = self.in_flight_bytes + self.queued_bytes > 0;
        match self.sharing {
            // Its threads are few.
            Sharing::Exclusive => u64::MAX,
            _ if streams => Holder::Walks.share(self.bound()),
            // The walking program may have a window of its own on its way.
            Sharing::Shared => self.bound() / 2,
            Sharing::Unknown | Sharing::Suspected if self.entered < self.known + BEGINNING => {
                self.bound().min(self.beside_others() / 2)
            }
            Sharing::Unknown | Sharing::Suspected => self.bound(),
        }
    }

    /// Bytes after which nothing more is issued until all has arrived: a head goes on with what is nearest, and whoever reads elsewhere would wait
    /// for as long as a stream goes on.
    fn breath(&self) -> u64 {
        match self.sharing {
            _ if self.model.seeks() != Seeks::Yes => u64::MAX,
            Sharing::Shared => self.model.quantum() / 2,
            Sharing::Exclusive | Sharing::Unknown | Sharing::Suspected => 2 * self.model.quantum(),
        }
    }

    /// Bytes of a group at most.
    fn group_bytes(&self) -> u64 {
        (self.bound() / GROUPS).max(GROUP_BYTES)
    }

    /// Bytes arrived: adds them to the span of full queue, and closes it when it is long enough. Streams refill their windows
    /// in pieces, between which the queue runs empty: the time until it is full again does not count.
    /// `read` of them were not cached before.
    fn measure(&mut self, bytes: u64, read: u64, now: Moment) {
        let bounds = (self.bounds.0, self.bounds.1.max(self.bounds.0));
        if self.mixed > 0 {
            self.mixed = self.mixed.saturating_sub(bytes);
            return;
        }
        if !self.full {
            return;
        }
        let long = (4 * self.bound()).max(2 << 20);
        self.full = self.queued_bytes > self.bulk_bytes;
        if let Some(since) = self.span {
            self.before.0 += read;
            let took = self.before.1 + (now - since).as_secs_f64() * 1e6;
            if self.before.0 >= long {
                let rate = self.before.0 as f64 / took.max(1.0);
                match self.sharing {
                    Sharing::Exclusive => {
                        self.model.full_span(self.before.0, took);
                        let low = self.model.reserve().max(self.kernels);
                        let low = low.clamp(bounds.0, bounds.1);
                        self.allowed.epoch(rate, low..bounds.1);
                    }
                    // With little in flight a device shows less than it has, unless its head makes the rate.
                    Sharing::Unknown
                        if self.model.seeks() == Seeks::Yes || rate > self.model.bandwidth =>
                    {
                        self.model.full_span(self.before.0, took);
                    }
                    Sharing::Unknown | Sharing::Suspected => {}
                    // It is no more than others have left.
                    Sharing::Shared => self.model.delivers(rate),
                }
                self.before = (0, 0.0);
                self.span = Some(now);
            } else if !self.full {
                self.before.1 = took;
            }
        } else {
            self.span = Some(now);
        }
        if !self.full {
            self.span = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are handed out at once of 8 MiB that wait, to a device that is best with 2 MiB in flight, and has so many of the lane on their way; and the
    /// lane's bound then, and once nothing waits or is on its way any more.
    fn in_flight(sharing: Sharing, lane_bytes: u64) -> [u64; 3] {
        let mut state = State::default();
        let handle = Arc::new(Handle::new(std::os::fd::OwnedFd::from(
            std::fs::File::open("/dev/null").unwrap(),
        )));
        let d = state.device(DeviceId(1), (256 << 10, 16 << 20));
        d.allowed = InFlight::new(2 << 20..2 << 20);
        d.sharing = sharing;
        d.entered = BEGINNING;
        d.queued_bytes = 8 << 20;
        d.queues[0].extend((0..64).map(|k| Request {
            handle: handle.clone(),
            view: None,
            range: k * GROUP_BYTES..(k + 1) * GROUP_BYTES,
            reader: None,
            account: Arc::default(),
        }));
        state.devices[0].lane_bytes = lane_bytes;
        while let Some(Job::Issue(_)) = state.next() {}
        let d = &mut state.devices[0];
        let (issued, beside) = (d.in_flight_bytes, d.bound_of_lane());
        d.drain();
        d.in_flight_bytes = 0;
        [issued, beside, d.bound_of_lane()]
    }

    /// DR7: beside others there is one request in flight, as these have a window of 128 KiB, and half a MiB until it is known that nobody is there.
    #[test]
    fn who_else_reads_bounds_what_is_in_flight() {
        let all = [Sharing::Shared, Sharing::Unknown, Sharing::Exclusive];
        let issued = all.map(|sharing| in_flight(sharing, 0)[0]);
        assert_eq!(issued, [128 << 10, 512 << 10, 2 << 20]);
    }

    /// DR7: where the kernel alone would have more in flight for long reads, so much is in flight with us too, whoever else reads, and no more than the user allows.
    #[test]
    fn no_less_is_in_flight_than_without_us() {
        for sharing in [Sharing::Shared, Sharing::Unknown, Sharing::Exclusive] {
            let bounds = (256 << 10, 8 << 20);
            let mut state = State::default();
            let d = state.device(DeviceId(1), bounds);
            d.sharing = sharing;
            let before = d.bound();
            for (kernels, least) in [(2560 << 10, 2560 << 10), (16 << 20, 8 << 20)] {
                d.match_kernel(kernels, 0);
                assert_eq!(d.bound(), least, "{sharing:?}");
            }
            d.match_kernel(0, 0);
            d.allowed = InFlight::new(bounds.0..bounds.1);
            assert_eq!(d.bound(), before);
        }
    }

    /// B15, DR7: a walk begins as beside somebody, each time that it is not known any more who is there, and not for long where nobody finds out.
    #[test]
    fn a_lane_begins_as_beside_others() {
        let mut state = State::default();
        let d = state.device(DeviceId(1), (256 << 10, 16 << 20));
        let [beside, unknown] = [16 << 10, 512 << 10];
        let found = [Sharing::Exclusive, Sharing::Shared];
        for before in found {
            d.set_sharing(before);
            d.set_sharing(Sharing::Unknown);
            assert_eq!(d.bound_of_lane(), beside);
            d.entered += BEGINNING - 1;
            d.set_sharing(Sharing::Suspected);
            assert_eq!(d.bound_of_lane(), beside);
            d.entered += 1;
            assert_eq!(d.bound_of_lane(), unknown);
            d.set_sharing(Sharing::Unknown);
            assert_eq!(d.bound_of_lane(), unknown);
        }
    }

    /// Where others may wait for it, queues and lane keep to one bound together. Each has its share of it, and what the other doesn't use.
    #[test]
    fn queues_and_lane_share_a_bound() {
        let unknown = 512 << 10;
        for lane_bytes in [0, 16 << 10, unknown / 4, unknown, 16 << 20] {
            let [issued, beside, alone] = in_flight(Sharing::Unknown, lane_bytes);
            assert!(
                issued + lane_bytes.min(unknown / 4) <= unknown,
                "{lane_bytes}"
            );
            assert!(issued >= unknown * 3 / 4 - GROUP_BYTES, "{lane_bytes}");
            assert_eq!([beside, alone], [unknown / 4, unknown]);
        }
        let [_, beside, alone] = in_flight(Sharing::Shared, 0);
        assert_eq!([beside, alone], [8 << 10, 16 << 10]);
        // Nobody waits where nobody else reads.
        let [issued, beside, alone] = in_flight(Sharing::Exclusive, 16 << 20);
        assert_eq!([issued, beside, alone], [2 << 20, u64::MAX, u64::MAX]);
    }
}
