//! Issuing requests and learning when they have arrived.
//!
//! Every device has a queue of its own with a bound on the bytes in flight, taken from the measured bandwidth and latency
//! (`place`), because what lies in a device's queue beyond that helps nobody and delays other readers. Worker
//! threads, at most four, take the most urgent requests that fit the bound and issue them; at the bound they
//! wait for the oldest request instead. They start with the first request. Where a file system lies on several disks each of them
//! is a device, and a request goes to the one that holds its first byte.
//!
//! A readahead call returns when its reads are submitted, not when the data is there. Arrival is seen by
//! MADV_POPULATE_READ of a request's last page through a mapping of our own, which sleeps until the page is up to date,
//! moves no data, and leaves no trace on the file (a read would change its access time and raise inotify events).

mod aside;
mod issue;
mod window;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use std::ops::Range;

pub use aside::{Aside, LEAST_BLOCK, Thread, Way};
pub(crate) use issue::become_background;
pub use issue::{Failure, Issue, Noop, Readahead, Uring};
use window::{Wait, Windows};

use outrider_sys::below;
use outrider_sys::cache;
use outrider_sys::counters;
use outrider_sys::device::DeviceId;
use outrider_sys::extent::{self, Extent};
use outrider_sys::raw::{self, Fd};
use outrider_sys::threads;
use rustix::fs::{CWD, Mode, OFlags};

use crate::config::{Config, IoPriority};
use crate::place::{DeviceModel, InFlight, Spread, Watch};
use crate::shm::{Figure, Notes, lost};
use crate::tally::Tally;
use crate::view::{FileView, PAGE_BYTES, PageRange};

/// An open file of the program, until it is let go of.
///
/// Whoever finds out that no process of the run has the file open any more ends our hold on it at once ([`Handle::let_go`]), whatever requests still refer to
/// it: they fail, and whoever waits for an arrival is woken.
pub struct Handle {
    fd: Fd,
    /// 1 once it is let go of: a futex.
    gone: AtomicU32,
    /// Calls that go on through the descriptor on workers' threads.
    users: AtomicU32,
    /// Something that was asked for never arrived.
    overdue: AtomicBool,
    /// What ends with our hold on the file.
    attached: Mutex<Option<Box<dyn Send>>>,
    /// Whoever closes it where that takes a server's answer. Nothing is asked of such a file here that a server would have to answer.
    closer: Option<Closer>,
    windows: Windows,
    /// The disks of its file system if that lies on several, and where on it the file lies, once that was asked.
    spread: OnceLock<Option<Arc<Spread>>>,
    extents: OnceLock<Vec<Extent>>,
}

/// Extents that are remembered of one file; what lies behind them counts as not placed.
const EXTENTS: usize = 1 << 14;

impl Handle {
    /// A handle on a descriptor of our own.
    pub fn new(fd: impl Into<Fd>) -> Handle {
        Handle {
            fd: fd.into(),
            gone: AtomicU32::new(0),
            users: AtomicU32::new(0),
            overdue: AtomicBool::new(false),
            attached: Mutex::default(),
            closer: None,
            windows: Windows::default(),
            spread: OnceLock::new(),
            extents: OnceLock::new(),
        }
    }

    /// The same of one that may have to be let go of at any moment: nobody sleeps in the kernel for long on its behalf.
    pub fn held(fd: impl Into<Fd>) -> Handle {
        let mut handle = Handle::new(fd);
        handle.windows = Windows::watched(None);
        handle
    }

    /// One on a file that a server keeps: when the last request for it has arrived it is handed to `closer`. `quiet`: mapping it leaves its time of
    /// access as it is; `visible`: the kernel tells the truth about what of it is cached.
    pub fn remote(fd: impl Into<Fd>, quiet: bool, visible: bool, closer: Closer) -> Handle {
        let mut handle = Handle::new(fd);
        handle.closer = Some(closer);
        handle.windows = Windows::watched(Some((quiet, visible)));
        // It lies on no disk of ours.
        handle.spread = OnceLock::from(None);
        handle
    }

    /// Whether a server keeps the file.
    pub fn is_remote(&self) -> bool {
        self.closer.is_some()
    }

    /// Has `what` end with our hold on the file.
    pub fn attach(&self, what: Box<dyn Send>) {
        *self.attached.lock().unwrap_or_else(|e| e.into_inner()) = Some(what);
    }

    /// Whether it is, or is being, let go of.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) != 0
    }

    /// Ends our hold on the file. The number stays taken until nobody refers to it any more, and leads to nothing: whatever is asked of it fails with EBADF.
    /// A file that a server keeps is open there until the server has answered what it was asked.
    pub fn let_go(&self) {
        if self.gone.swap(1, Ordering::AcqRel) != 0 || self.is_remote() {
            return;
        }
        if let Some(nothing) = nothing() {
            // SAFETY: both are our own descriptors, open as long as their owners live.
            unsafe {
                raw::syscall6(
                    libc::SYS_dup3,
                    nothing.as_raw_fd() as usize,
                    self.fd.as_raw_fd() as usize,
                    libc::O_CLOEXEC as usize,
                    0,
                    0,
                    0,
                );
            }
        }
        self.windows.clear();
        raw::futex_wake(&self.gone, u32::MAX);
        self.is_let_go();
    }

    /// Ends what is attached, unless a call still holds the file.
    fn is_let_go(&self) {
        if self.users.load(Ordering::SeqCst) == 0 && !self.is_remote() {
            let mut attached = self.attached.lock().unwrap_or_else(|e| e.into_inner());
            let attached = attached.take();
            drop(attached);
        }
    }

    /// As long as the result lives a call through the descriptor may go on.
    fn enter(&self) -> Use<'_> {
        self.users.fetch_add(1, Ordering::SeqCst);
        Use(self)
    }

    /// Sleeps until the page that holds byte `at` is up to date, or the file is let go of.
    pub fn wait_watched(&self, at: u64, notes: &Notes) {
        let began = Instant::now();
        let how = |began: &Instant| Wait {
            patience: LONGEST_WAIT,
            first: Duration::ZERO,
            sleeps: began.elapsed() > TARDY,
        };
        while self.arrives(at, how(&began), notes).is_none() {}
    }

    /// Pages of the bytes `range` that are cached or on their way, as cachestat(2) counts them; nothing is asked that a server would have to answer.
    pub fn counted(&self, range: Range<u64>) -> Result<cache::CacheStat, cache::CacheStatError> {
        match self.is_remote() {
            true => cache::cachestat(self.fd(), range),
            false => cache::counted(self.fd(), range),
        }
    }

    /// The same, as one number, also where only mincore(2) tells.
    pub fn cached_pages(&self, range: Range<u64>) -> Result<u64, cache::CacheStatError> {
        match self.is_remote() {
            true => cache::cachestat(self.fd(), range).map(|s| s.cached),
            false => cache::cached_pages(self.fd(), range),
        }
    }

    /// Where a range of the file begins in its file system, and as much of it as lies there in one piece: addresses as FIEMAP tells them.
    fn addresses(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let extents = self.extents.get_or_init(|| {
            extent::extents(self.fd(), 0..u64::MAX, EXTENTS)
                .map(|m| m.extents)
                .unwrap_or_default()
        });
        let i = extents.partition_point(|e| e.range().end <= range.start);
        let e = extents.get(i)?;
        let skipped = range.start.checked_sub(e.logical)?;
        let bytes = (e.len - skipped).min(range.end - range.start);
        (e.is_placed() && e.costs_io()).then(|| e.physical + skipped..e.physical + skipped + bytes)
    }

    /// Sleeps until the page that holds byte `at` is up to date. `false` where that can't be known.
    pub fn wait(&self, at: u64, notes: &Notes) -> bool {
        let forever = Wait {
            patience: Duration::MAX,
            first: Duration::ZERO,
            sleeps: true,
        };
        self.arrives(at, forever, notes) == Some(true)
    }

    /// The same, waiting as `how` says; `None` after that.
    fn arrives(&self, at: u64, how: Wait, notes: &Notes) -> Option<bool> {
        let remote = self.is_remote();
        let how = Wait {
            sleeps: how.sleeps && !remote,
            ..how
        };
        let _used = self.enter();
        self.windows.wait(self.fd(), at, how, &self.gone, notes)
    }

    /// What was asked for never arrives.
    fn give_up(&self) {
        self.overdue.store(true, Ordering::Release);
        self.let_go();
    }

    /// Whether something that was asked for did not arrive in [`NEVER`].
    pub fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Acquire)
    }

    /// The descriptor.
    pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.fd)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let attached = self
            .attached
            .get_mut()
            .unwrap_or_else(|e| e.into_inner())
            .take();
        if let Some(closer) = &self.closer {
            let fd = self.fd.take();
            closer(Remains {
                _windows: std::mem::take(&mut self.windows),
                _fd: fd,
                _attached: attached,
            });
        }
    }
}

/// See [`Handle::enter`].
struct Use<'a>(&'a Handle);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_gone() {
            self.0.is_let_go();
        }
    }
}

/// Takes what is to be closed by somebody who may wait for a server.
pub type Closer = Arc<dyn Fn(Remains) + Send + Sync>;

/// What is left of a file that a server keeps, in the order in which it goes: dropping it waits for the server.
pub struct Remains {
    _windows: Windows,
    _fd: Fd,
    _attached: Option<Box<dyn Send>>,
}

/// A descriptor of which nothing can be asked, and which holds nothing that this process does not hold anyway: its root directory, found with O_PATH.
fn nothing() -> Option<&'static OwnedFd> {
    static NOTHING: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    NOTHING
        .get_or_init(|| rustix::fs::openat(CWD, c"/", flags, Mode::empty()).ok())
        .as_ref()
}

/// How urgent a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The window of a stream that the program is reading, the begin of a file that it opens, or its own hint.
    Window = 0,
    /// Whole files, read at random or fetched at open.
    Background = 1,
}

/// Tells whether a request has been overtaken by the program.
pub trait Overtaken: Send + Sync {
    /// Whether the program has read past `range` (bytes).
    fn overtaken(&self, range: &Range<u64>) -> bool;
}

/// One range to fetch.
pub struct Request {
    /// The file.
    pub handle: Arc<Handle>,
    /// Where its pages are marked.
    pub view: Option<Arc<FileView>>,
    /// Page-aligned bytes.
    pub range: Range<u64>,
    /// Who reads, to drop requests that come too late.
    pub reader: Option<Arc<dyn Overtaken>>,
    /// Where issued and dropped bytes are counted.
    pub account: Arc<Account>,
}

/// What is going on with a device.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// `st_dev`, or the number of a disk.
    pub device: u64,
    /// Requests that the kernel has been given so far …
    pub handed: u64,
    /// … and these with those that it is being given.
    pub issued: u64,
    /// Something is on its way.
    pub busy: bool,
    /// Bytes on their way.
    pub bytes: u64,
    /// How often something was asked for beside the queues.
    pub entered: u64,
}

/// Who else reads from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Nobody has looked long enough: little is kept in flight.
    Unknown,
    /// Nobody.
    Nobody,
    /// Somebody: no more is kept in flight than the kernel's own readahead keeps.
    Others,
}

/// Counts of one file's requests, bytes.
#[derive(Default)]
pub struct Account {
    /// Handed to the kernel and not taken yet, where there is no tally.
    issued: AtomicU64,
    /// Where it is counted what was handed to the kernel, and what was dropped because the program was there first or closed the file.
    tally: Option<Tally>,
    /// Set while the program has the file closed: what is still queued is dropped.
    pub cancelled: AtomicBool,
    /// Bytes that wait to be issued.
    queued: AtomicU64,
}

impl Account {
    /// One that counts in shared memory.
    pub fn with(tally: Tally) -> Account {
        Account {
            tally: Some(tally),
            ..Account::default()
        }
    }

    /// Bytes that wait to be issued.
    pub fn queued_bytes(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Where it counts, if that is shared memory.
    pub fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }

    fn handed(&self, bytes: u64) {
        match &self.tally {
            Some(tally) => tally.add(Figure::Prefetched, bytes),
            None => drop(self.issued.fetch_add(bytes, Ordering::Relaxed)),
        }
    }

    fn dropped(&self, bytes: u64) {
        if let Some(tally) = &self.tally {
            tally.add(Figure::Dropped, bytes);
        }
    }

    /// Bytes that were handed to the kernel since this was asked last, where there is no tally.
    pub fn take_issued(&self) -> u64 {
        self.issued.swap(0, Ordering::Relaxed)
    }
}

struct Batch {
    parts: Vec<(Option<Arc<FileView>>, Range<u64>)>,
    handle: Arc<Handle>,
    bytes: u64,
    /// Bytes that the device was asked for, less what was cached or on its way; `None` where nobody counts.
    read: Option<u64>,
    issued: Instant,
    /// Bytes that were on their way before.
    ahead: u64,
    lone: bool,
    watched: Option<Watched>,
}

/// A batch by which is learned what lies where.
struct Watched {
    spread: Arc<Spread>,
    addresses: Range<u64>,
    watch: Watch,
}

struct Device {
    id: u64,
    queues: [VecDeque<Request>; 2],
    queued_bytes: u64,
    in_flight: VecDeque<Batch>,
    in_flight_bytes: u64,
    /// Bytes on their way beside the queues, and how often any were asked for.
    aside_bytes: u64,
    entered: u64,
    /// Bytes issued since nothing was in flight.
    unbroken: u64,
    /// Workers that wait for an arrival.
    waiting: u32,
    model: DeviceModel,
    allowed: InFlight,
    /// Bounds of what is allowed, bytes.
    bounds: (u64, u64),
    /// Whether somebody else reads from it.
    company: Company,
    /// Requests that the kernel has been given, and these with those that it is being given.
    handed: Arc<AtomicU64>,
    issued: u64,
    /// Requests go out in the order in which they came, one group at a time, whatever the device is found to be.
    in_order: bool,
    /// A worker is issuing to it.
    issuing: bool,
    /// End of the last request issued and its file, to tell seeks from continuations.
    last_end: (usize, u64),
    /// The bound was reached, and the queue has not run empty since.
    full: bool,
    /// First arrival since then.
    span: Option<Instant>,
    /// Bytes that were in flight when the company changed and have not arrived since.
    mixed: u64,
    /// It has been seen that reads from it are counted.
    counts: bool,
    /// Programs have it fetch much at once themselves: how long its answers take says nothing of it.
    disturbed: bool,
    /// Bytes that arrived, and the µs that they took, in spans that were too short to say something alone.
    before: (u64, f64),
}

#[derive(Default)]
struct State {
    devices: Vec<Device>,
    /// File systems by `st_dev`, and the disks below those that lie on several.
    spreads: Vec<(u64, Option<Arc<Spread>>)>,
    workers: usize,
    idle: usize,
    stop: bool,
    turn: usize,
    /// Requests were dropped since the latest look at the queues that found nothing to do.
    dropped: bool,
    /// Called when what is queued falls to so many bytes, and when nothing is queued or on its way any more.
    low: Option<(u64, Box<dyn Fn() + Send>)>,
    /// It was above since the last call.
    high: bool,
    /// Threads that wait for room beside the queues.
    wait_aside: u32,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Somebody waits for room beside the queues; these read there.
    room: Condvar,
    aside: Mutex<Vec<Arc<aside::Counts>>>,
    notes: Arc<dyn AsRef<Notes> + Send + Sync>,
    settings: Settings,
    epoch: Instant,
}

/// How the engine is set up; see `config.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Worker threads, 1 to 4.
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

/// A request group is issued and waited for as one: its requests are small, and one wait costs a system call and a wake-up. It takes
/// so many bytes, or the bound on those in flight divided by [`GROUPS`], if that is more.
const GROUP_BYTES: u64 = 128 << 10;
/// As many groups are in flight at the bound, at least: when the oldest has arrived, most of the device's queue is still full.
const GROUPS: u64 = 4;
const GROUP_REQUESTS: usize = 64;

/// A worker waits for one batch for so long at a time, …
const LONGEST_WAIT: Duration = Duration::from_millis(20);
/// … and what has not arrived after this never will.
const NEVER: Duration = Duration::from_secs(10);

/// What a disk answers within this is waited for in the kernel: a file is held for no longer than that …
const BRIEF: Duration = Duration::from_micros(400);
/// … and so is what should have arrived long ago, and may have failed.
const TARDY: Duration = Duration::from_millis(250);

/// The engine.
pub struct Engine {
    shared: Arc<Shared>,
}

impl Engine {
    /// An engine without threads; they start with the first request. `notes` is where lost capabilities are noted and
    /// requests are counted.
    pub fn new(settings: Settings, notes: Arc<dyn AsRef<Notes> + Send + Sync>) -> Engine {
        Engine {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                work: Condvar::new(),
                room: Condvar::new(),
                aside: Mutex::default(),
                notes,
                settings,
                epoch: Instant::now(),
            }),
        }
    }

    /// The model of a device, by `st_dev` or the number of a disk.
    pub fn model(&self, device: u64) -> DeviceModel {
        self.shared
            .lock()
            .device(device, self.shared.settings.in_flight)
            .model
    }

    /// What is known of a device before anything is asked of it.
    pub fn assume(&self, device: u64, model: DeviceModel) {
        self.shared
            .lock()
            .device(device, self.shared.settings.in_flight)
            .model = model;
    }

    /// The devices that were used and their models.
    pub fn models(&self) -> Vec<(u64, DeviceModel)> {
        let state = self.shared.lock();
        state.devices.iter().map(|d| (d.id, d.model)).collect()
    }

    /// The device that holds byte `at` of a file on file system `device`: `device` itself where it is one, or isn't known to be several.
    pub fn device_of(&self, device: u64, handle: &Handle, at: u64) -> u64 {
        self.spread(device, handle)
            .and_then(|spread| spread.disk_at(handle.addresses(&(at..at + 1))?.start))
            .unwrap_or(device)
    }

    /// Whether that is known, and not only guessed.
    pub fn knows_place(&self, device: u64, handle: &Handle, at: u64) -> bool {
        let known =
            |spread: &Arc<Spread>| Some(spread.knows(handle.addresses(&(at..at + 1))?.start));
        self.spread(device, handle).and_then(known).unwrap_or(true)
    }

    /// Sees on which disk of several the page at byte `at` of a file lies, unless that is known: by what the disks have read once `fetch` has
    /// brought it in, if it has.
    pub fn see_place(&self, device: u64, handle: &Handle, at: u64, fetch: impl FnOnce() -> bool) {
        if let Some(spread) = self.spread(device, handle)
            && let Some(addresses) = handle.addresses(&(at..at + PAGE_BYTES))
            && let Some(watch) = spread.issued(&addresses, bytes_read)
        {
            let after = fetch().then(|| bytes_read(spread.disks()));
            spread.arrived(watch, addresses, after.flatten());
        }
    }

    /// Whether the file's file system lies on several disks.
    pub fn is_spread(&self, device: u64, handle: &Handle) -> bool {
        self.spread(device, handle).is_some()
    }

    /// The disks of a file system that lies on several.
    fn spread<'a>(&self, device: u64, handle: &'a Handle) -> Option<&'a Arc<Spread>> {
        let find = || {
            let known = |(d, _): &&(u64, Option<Arc<Spread>>)| *d == device;
            if let Some((_, spread)) = self.shared.lock().spreads.iter().find(known) {
                return spread.clone();
            }
            let disks: Vec<u64> = below::disks(handle.fd())
                .into_iter()
                .map(|d| rustix::fs::makedev(d.major, d.minor))
                .collect();
            let spread = (!disks.is_empty()).then(|| Arc::new(Spread::new(disks)));
            self.shared.lock().spreads.push((device, spread.clone()));
            spread
        };
        handle.spread.get_or_init(find).as_ref()
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
    pub fn allow(&self, device: u64, bytes: u64) {
        let bounds = self.shared.settings.in_flight;
        self.each(device, |d| {
            d.bounds.0 = bytes.clamp(bounds.0, bounds.1.max(bounds.0));
            d.allowed = InFlight::new(d.bounds.0..d.bounds.1);
        });
    }

    /// Requests of a device go out in the order in which they are queued from now on, as they do where it is found to have a head.
    pub fn keep_order(&self, device: u64) {
        self.each(device, |d| d.in_order = true);
    }

    /// For a device and the disks below it.
    fn each(&self, device: u64, change: impl Fn(&mut Device)) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let below = state.spreads.iter().find(|(d, _)| *d == device);
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
            handed: d.handed.load(Ordering::Relaxed),
            issued: d.issued,
            busy: d.in_flight_bytes + d.aside_bytes > 0,
            bytes: d.in_flight_bytes + d.aside_bytes,
            entered: d.entered,
        };
        state.devices.iter().map(load).collect()
    }

    /// Who else reads from a device. Without this call it is nobody.
    pub fn share(&self, device: u64, company: Company) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let d = state.device(device, bounds);
        if d.company != company {
            d.company = company;
            // What arrived in different company says nothing of either, nor does what is on its way.
            (d.span, d.before) = (None, (0, 0.0));
            d.mixed = d.in_flight_bytes;
        }
    }

    /// Whether programs have a device fetch much at once themselves, ahead of what is asked for here.
    pub fn disturb(&self, device: u64, disturbed: bool) {
        let bounds = self.shared.settings.in_flight;
        self.shared.lock().device(device, bounds).disturbed = disturbed;
    }

    /// A device was found to be nobody else's: begins with much in flight.
    pub fn deepen(&self, device: u64) {
        let bounds = self.shared.settings.in_flight;
        let mut state = self.shared.lock();
        let d = state.device(device, bounds);
        if let Some(deep) = d.model.deep() {
            d.allowed.fall_from(deep, d.bounds.0..d.bounds.1);
        }
    }

    /// Queues requests for files of one file system, in the order of need within their class.
    pub fn submit(&self, device: u64, class: Class, requests: Vec<Request>) {
        let Some(first) = requests.first() else {
            return;
        };
        if self.spread(device, &first.handle).is_none() {
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

    fn queue(&self, device: u64, class: Class, requests: Vec<Request>) {
        let settings = self.shared.settings;
        let mut state = self.shared.lock();
        let queued = {
            let d = state.device(device, settings.in_flight);
            d.queued_bytes += requests
                .iter()
                .map(|r| r.range.end - r.range.start)
                .sum::<u64>();
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
            let shared = self.shared.clone();
            state.workers += 1;
            let started = std::thread::Builder::new()
                .name("outrider".into())
                .stack_size(128 << 10)
                .spawn(move || {
                    let _ours = threads::Own::new();
                    work(&shared);
                });
            if started.is_err() {
                state.workers -= 1;
                self.shared.notes().lose(lost::THREADS);
                break;
            }
        }
        if state.workers == 0 {
            // Nobody will ever take them.
            let d = state.device(device, settings.in_flight);
            d.queued_bytes = 0;
            for request in d.queues.iter_mut().flat_map(VecDeque::drain_all) {
                request.waited();
                request.drop_it();
            }
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
    pub fn is_asked(&self, device: u64) -> bool {
        let state = self.shared.lock();
        let asked = |d: &Device| d.id == device && d.in_flight_bytes > 0;
        state.devices.iter().any(asked)
    }

    /// Waits until nothing is in flight, at most `limit`.
    pub fn settle(&self, limit: std::time::Duration) {
        let until = Instant::now() + limit;
        while Instant::now() < until
            && self
                .shared
                .lock()
                .devices
                .iter()
                .any(|d| d.in_flight_bytes > 0)
        {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Drops what is queued.
    pub fn drain(&self) {
        let mut state = self.shared.lock();
        for d in &mut state.devices {
            d.queued_bytes = 0;
            for request in d.queues.iter_mut().flat_map(VecDeque::drain_all) {
                request.waited();
                request.drop_it();
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.drain();
        self.shared.lock().stop = true;
        self.shared.work.notify_all();
        self.shared.room.notify_all();
    }
}

trait DrainAll<T> {
    fn drain_all(&mut self) -> std::collections::vec_deque::Drain<'_, T>;
}

impl<T> DrainAll<T> for VecDeque<T> {
    fn drain_all(&mut self) -> std::collections::vec_deque::Drain<'_, T> {
        self.drain(..)
    }
}

impl Request {
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Tells open files apart.
    fn file(&self) -> usize {
        Arc::as_ptr(&self.handle) as usize
    }

    fn pages(&self) -> PageRange {
        PageRange::from_bytes(self.range.start, self.bytes())
    }

    fn stale(&self) -> bool {
        self.account.cancelled.load(Ordering::Relaxed)
            || self.handle.is_gone()
            || self
                .reader
                .as_ref()
                .is_some_and(|r| r.overtaken(&self.range))
    }

    /// It is in a queue now …
    fn waits(&self) {
        self.account
            .queued
            .fetch_add(self.bytes(), Ordering::Relaxed);
    }

    /// … and no longer.
    fn waited(&self) {
        self.account
            .queued
            .fetch_sub(self.bytes(), Ordering::Relaxed);
    }

    fn drop_it(self) {
        self.account.dropped(self.bytes());
        if let Some(view) = &self.view {
            view.fail(self.pages());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn notes(&self) -> &Notes {
        (*self.notes).as_ref()
    }

    fn now_us(&self) -> u64 {
        self.epoch.elapsed().as_micros() as u64
    }
}

impl State {
    fn device(&mut self, id: u64, bounds: (u64, u64)) -> &mut Device {
        let i = self
            .devices
            .iter()
            .position(|d| d.id == id)
            .unwrap_or_else(|| {
                self.devices.push(Device {
                    id,
                    queues: [VecDeque::new(), VecDeque::new()],
                    queued_bytes: 0,
                    in_flight: VecDeque::new(),
                    in_flight_bytes: 0,
                    aside_bytes: 0,
                    entered: 0,
                    unbroken: 0,
                    waiting: 0,
                    model: DeviceModel::default(),
                    allowed: InFlight::new(bounds.0..bounds.1),
                    bounds,
                    company: Company::Nobody,
                    handed: Arc::default(),
                    issued: 0,
                    in_order: false,
                    issuing: false,
                    last_end: (0, 0),
                    full: false,
                    span: None,
                    mixed: 0,
                    counts: false,
                    disturbed: false,
                    before: (0, 0.0),
                });
                self.devices.len() - 1
            });
        &mut self.devices[i]
    }
}

enum Job {
    Issue(usize, Vec<Request>),
    Await(usize, Batch),
}

impl State {
    /// Tells whoever waits for the queue to fall.
    fn tell(&mut self) {
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
    fn next(&mut self) -> Option<Job> {
        let n = self.devices.len();
        self.turn = self.turn.wrapping_add(1);
        for k in 0..n {
            let i = (self.turn + k) % n;
            let d = &mut self.devices[i];
            // Two workers would each send a part of the same sweep, and a head would go to and fro between them.
            if d.issuing && (d.in_order || d.model.has_head()) {
                continue;
            }
            if d.in_flight_bytes == 0 {
                d.unbroken = 0;
            } else if d.unbroken >= d.breath() {
                continue;
            }
            let bound = d.bound();
            let most = d.group_bytes();
            // Room for a whole group is waited for: once groups are small they would stay so.
            if d.in_flight_bytes > 0 && d.in_flight_bytes + most.min(d.queued_bytes) > bound {
                continue;
            }
            let mut group: Vec<Request> = Vec::new();
            let mut bytes = 0;
            for queue in &mut d.queues {
                while group.len() < GROUP_REQUESTS {
                    let Some(next) = queue.front() else { break };
                    let b = next.bytes();
                    let fits =
                        d.in_flight_bytes + bytes + b <= bound || d.in_flight_bytes + bytes == 0;
                    let same = group
                        .first()
                        .is_none_or(|g| Arc::ptr_eq(&g.handle, &next.handle));
                    if !fits || !same || (bytes > 0 && bytes + b > most) {
                        break;
                    }
                    let Some(request) = queue.pop_front() else {
                        break;
                    };
                    d.queued_bytes = d.queued_bytes.saturating_sub(b);
                    request.waited();
                    if request.stale() {
                        request.drop_it();
                        self.dropped = true;
                        continue;
                    }
                    bytes += b;
                    group.push(request);
                }
                if !group.is_empty() {
                    break;
                }
            }
            if !group.is_empty() {
                d.issuing = true;
                return Some(Job::Issue(i, group));
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
                return Some(Job::Await(i, batch));
            }
        }
        None
    }
}

fn work(shared: &Shared) {
    issue::become_background(shared.settings.io_priority);
    let mut engine = issue::engine(&shared.settings, shared.notes());
    let mut state = shared.lock();
    loop {
        match state.next() {
            Some(Job::Issue(i, group)) => {
                let bytes: u64 = group.iter().map(Request::bytes).sum();
                let d = &mut state.devices[i];
                let first = &group[0];
                let continues = d.last_end == (first.file(), first.range.start);
                let one = group.windows(2).all(|w| w[0].range.end == w[1].range.start);
                let ahead = d.in_flight_bytes + d.aside_bytes;
                // Beside a walk there is no other: what is read for that is short.
                let lone = d.in_flight_bytes == 0 && !continues && one;
                let last = &group[group.len() - 1];
                d.last_end = (last.file(), last.range.end);
                d.in_flight_bytes += bytes;
                d.unbroken = d.unbroken.saturating_add(bytes);
                let asked_for = group.len() as u64;
                d.issued += asked_for;
                let handed = d.handed.clone();
                drop(state);
                let handle = first.handle.clone();
                let used = handle.enter();
                let watched = Watched::begin(&group);
                let issued = Instant::now();
                let blocks = raw::blocks_read();
                let mut failed = engine.issue(&group, &handed);
                if failed.iter().any(|(_, f)| *f == Failure::Engine) {
                    shared.notes().lose(lost::URING);
                    engine = Box::new(Readahead);
                    handed.fetch_sub(asked_for, Ordering::Relaxed);
                    failed = engine.issue(&group, &handed);
                }
                let read = (raw::blocks_read() - blocks) as u64 * 512;
                let read = engine.is_counted().then_some(read);
                drop(used);
                drop(handle);
                shared
                    .notes()
                    .requests
                    .fetch_add(group.len() as u64, Ordering::Relaxed);
                let mut batch = settle(group, failed, bytes, issued, lone, shared.notes());
                match &mut batch {
                    Some(batch) => {
                        (batch.watched, batch.ahead, batch.read) = (watched, ahead, read);
                    }
                    None => drop(watched.and_then(|w| w.end(false))),
                }
                state = shared.lock();
                let d = &mut state.devices[i];
                d.issuing = false;
                // What failed never reached the device.
                let refused = asked_for - batch.as_ref().map_or(0, |b| b.parts.len() as u64);
                d.issued -= refused;
                handed.fetch_sub(refused, Ordering::Relaxed);
                match batch {
                    Some(batch) => {
                        d.full |= d.in_flight_bytes + d.group_bytes() > d.bound();
                        d.in_flight.push_back(batch);
                    }
                    None => d.in_flight_bytes = d.in_flight_bytes.saturating_sub(bytes),
                }
                state.tell();
            }
            Some(Job::Await(i, mut batch)) => {
                let soon = state.devices[i].model.takes(batch.bytes);
                drop(state);
                let last = batch
                    .parts
                    .last()
                    .map_or(0, |(_, r)| r.end.saturating_sub(1));
                let seen = match engine.arrives() {
                    true => {
                        let since = batch.issued.elapsed();
                        let how = Wait {
                            patience: LONGEST_WAIT,
                            first: soon.unwrap_or_default().saturating_sub(since),
                            sleeps: soon.is_some_and(|took| took < BRIEF) || since > TARDY,
                        };
                        batch.handle.arrives(last, how, shared.notes())
                    }
                    false => Some(false),
                };
                if seen.is_none() && batch.issued.elapsed() < NEVER {
                    // Others may have to be waited for, too.
                    state = shared.lock();
                    let d = &mut state.devices[i];
                    d.waiting -= 1;
                    d.in_flight.push_front(batch);
                    continue;
                }
                // Of what never arrives, nothing more is asked.
                let overdue = seen.is_none();
                if overdue {
                    batch.handle.give_up();
                }
                let seen = seen == Some(true);
                let took = batch.issued.elapsed().as_secs_f64() * 1e6;
                // What was asked for without knowing where it lies says something about the disk where it turned out to lie.
                let holder = batch.watched.take().and_then(|w| w.end(seen));
                let now = shared.now_us();
                for (view, range) in &batch.parts {
                    let pages = PageRange::from_bytes(range.start, range.end - range.start);
                    match view {
                        Some(view) if overdue => _ = view.fail(pages),
                        Some(view) => view.complete(pages, now),
                        None => {}
                    }
                }
                state = shared.lock();
                let d = &mut state.devices[i];
                d.waiting -= 1;
                d.in_flight_bytes = d.in_flight_bytes.saturating_sub(batch.bytes);
                // Nothing was in flight when a lone one was issued.
                let behind = d.unbroken.saturating_sub(batch.bytes);
                if seen {
                    d.counts |= batch.read.is_some_and(|read| read > 0);
                    // What was cached arrives at once, and would make any device a fast one.
                    let read = batch.read.filter(|_| d.counts).unwrap_or(batch.bytes);
                    d.measure(batch.bytes, read.min(batch.bytes));
                    let id = holder.unwrap_or(d.id);
                    // What was thrown away before anybody looked is there only when it has been fetched again.
                    let timely = took < TARDY.as_micros() as f64;
                    let whole = read >= batch.bytes - batch.bytes / 8;
                    let telling = whole && timely && !d.disturbed;
                    let d = state.device(id, shared.settings.in_flight);
                    if telling {
                        d.model.answered(batch.bytes, batch.ahead, took);
                    }
                    if batch.lone && telling {
                        d.model.lone_request(batch.bytes, behind, took);
                    }
                }
                if state.wait_aside > 0 {
                    shared.room.notify_all();
                }
                state.tell();
            }
            None => {
                if state.stop {
                    return;
                }
                // Nothing of it ever arrives: this was the end of the queue.
                if std::mem::take(&mut state.dropped) {
                    state.tell();
                }
                state.idle += 1;
                state = shared.work.wait(state).unwrap_or_else(|e| e.into_inner());
                state.idle -= 1;
            }
        }
    }
}

impl Device {
    /// Bytes in flight at most.
    fn bound(&self) -> u64 {
        let alone = self.allowed.bound();
        match self.company {
            Company::Nobody => alone,
            Company::Unknown => alone.min(self.model.unproven().max(self.bounds.0)),
            Company::Others => alone.min(self.model.beside_others().max(self.bounds.0)),
        }
    }

    /// Bytes after which nothing more is issued until all has arrived: a head goes on with what is nearest, and whoever reads elsewhere would wait
    /// for as long as a stream goes on.
    fn breath(&self) -> u64 {
        match self.company {
            _ if !self.model.has_head() => u64::MAX,
            Company::Others => self.model.quantum() / 2,
            Company::Nobody | Company::Unknown => 2 * self.model.quantum(),
        }
    }

    /// Bytes of a group at most.
    fn group_bytes(&self) -> u64 {
        (self.bound() / GROUPS).max(GROUP_BYTES)
    }

    /// Bytes arrived: adds them to the span of full queue, and closes it when it is long enough. Streams refill their windows
    /// in pieces, between which the queue runs empty: the time until it is full again does not count.
    /// `read` of them were not cached before.
    fn measure(&mut self, bytes: u64, read: u64) {
        let bounds = (self.bounds.0, self.bounds.1.max(self.bounds.0));
        if self.mixed > 0 {
            self.mixed = self.mixed.saturating_sub(bytes);
            return;
        }
        if !self.full {
            return;
        }
        let long = (4 * self.bound()).max(2 << 20);
        self.full = self.queues.iter().any(|q| !q.is_empty());
        if let Some(since) = self.span {
            self.before.0 += read;
            let took = self.before.1 + since.elapsed().as_secs_f64() * 1e6;
            if self.before.0 >= long {
                let rate = self.before.0 as f64 / took.max(1.0);
                match self.company {
                    Company::Nobody => {
                        self.model.full_span(self.before.0, took);
                        let low = self.model.reserve().clamp(bounds.0, bounds.1);
                        self.allowed.epoch(rate, low..bounds.1);
                    }
                    // With little in flight a device shows less than it has, unless its head makes the rate.
                    Company::Unknown if self.model.has_head() || rate > self.model.bandwidth => {
                        self.model.full_span(self.before.0, took);
                    }
                    Company::Unknown => {}
                    // It is no more than others have left.
                    Company::Others => self.model.delivers(rate),
                }
                self.before = (0, 0.0);
                self.span = Some(Instant::now());
            } else if !self.full {
                self.before.1 = took;
            }
        } else {
            self.span = Some(Instant::now());
        }
        if !self.full {
            self.span = None;
        }
    }
}

/// What was issued becomes a batch in flight; what failed is missing again.
fn settle(
    group: Vec<Request>,
    failed: Vec<(usize, Failure)>,
    bytes: u64,
    issued: Instant,
    lone: bool,
    notes: &Notes,
) -> Option<Batch> {
    let mut parts = Vec::with_capacity(group.len());
    let mut handle = None;
    for (i, request) in group.into_iter().enumerate() {
        if failed.iter().any(|(f, _)| *f == i) {
            request.drop_it();
            continue;
        }
        request.account.handed(request.bytes());
        handle = Some(request.handle.clone());
        parts.push((request.view, request.range));
    }
    for (_, failure) in failed {
        match failure {
            Failure::OutOfMemory => notes.lose(lost::NO_PAGES),
            Failure::NotAllowed => notes.lose(lost::READAHEAD),
            Failure::Engine | Failure::Refused => {}
        }
    }
    Some(Batch {
        parts,
        handle: handle?,
        bytes,
        issued,
        read: None,
        ahead: 0,
        lone,
        watched: None,
    })
}

/// What each disk has read so far, bytes.
fn bytes_read(disks: &[u64]) -> Option<Vec<u64>> {
    let read = |d: &u64| counters::read(DeviceId::from_dev(*d)).map(|r| r.bytes);
    disks.iter().map(read).collect()
}

impl Watched {
    /// Looks at the disks' counters before a group goes out, unless it is known where its first run lies or there is only one disk.
    fn begin(group: &[Request]) -> Option<Watched> {
        let first = group.first()?;
        let spread = first.handle.spread.get()?.as_ref()?;
        let mut run = first.range.clone();
        for next in group.iter().skip(1) {
            if next.range.start != run.end {
                break;
            }
            run.end = next.range.end;
        }
        let addresses = first.handle.addresses(&run)?;
        let watch = spread.issued(&addresses, bytes_read)?;
        Some(Watched {
            spread: spread.clone(),
            addresses,
            watch,
        })
    }

    /// Looks again after it has arrived.
    fn end(self, arrived: bool) -> Option<u64> {
        let after = if arrived {
            bytes_read(self.spread.disks())
        } else {
            None
        };
        self.spread.arrived(self.watch, self.addresses, after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that are handed out at once of 8 MiB that wait, to a device that is best with 2 MiB in flight.
    fn in_flight(company: Company) -> u64 {
        let mut state = State::default();
        let handle = Arc::new(Handle::new(std::os::fd::OwnedFd::from(
            std::fs::File::open("/dev/null").unwrap(),
        )));
        let d = state.device(1, (256 << 10, 16 << 20));
        d.allowed = InFlight::new(2 << 20..2 << 20);
        d.company = company;
        d.queued_bytes = 8 << 20;
        d.queues[0].extend((0..64).map(|k| Request {
            handle: handle.clone(),
            view: None,
            range: k * GROUP_BYTES..(k + 1) * GROUP_BYTES,
            reader: None,
            account: Arc::default(),
        }));
        while let Some(Job::Issue(i, group)) = state.next() {
            let d = &mut state.devices[i];
            d.in_flight_bytes += group.iter().map(Request::bytes).sum::<u64>();
        }
        state.devices[0].in_flight_bytes
    }

    /// DR7: beside others there is no more in flight than the kernel's own readahead has, two windows of 128 KiB, and half a MiB until it is
    /// known that nobody is there.
    #[test]
    fn who_else_reads_bounds_what_is_in_flight() {
        let all = [Company::Others, Company::Unknown, Company::Nobody].map(in_flight);
        assert_eq!(all, [256 << 10, 512 << 10, 2 << 20]);
    }
}
