//! Linux: what the service asks of its system, asked.

use outrider_sys::units::{ByteRange, DeviceId};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use std::time::Duration;

use outrider_sys::cache::{self, CacheStat, CacheStatError};
use outrider_sys::counters;
use outrider_sys::device::{Device, file_system_id};
use outrider_sys::handover::{self, Arrival, Handed};
use outrider_sys::life;
use outrider_sys::memory::{Memory, MemorySources};
use outrider_sys::raw;

use super::cache_users::Watches;
use super::ends::{Ends, Wake};
use super::kernel::{Answer, Kernel, OpenFile, Source};
use super::patient::Patient;
use super::servers::Servers;
use super::turns::{IDLING, IDLING_BUSY};
use super::{FileSystem, InodeKey};
use crate::clock::{Clock, Moment, Monotonic};
use crate::engine::Handle;
use crate::fetch::{self, Wanted};
use crate::load::Load;
use crate::map::Keyed;
use crate::residency::Residency;
use crate::shared::{Note, Shared};
use crate::sharing::{Counters, System, runs::Run};
use crate::shm::{Slot, lost};
use crate::source::mapped::{Mapped, Present};
use crate::view::{FileView, PageRange};

/// Where there is always something to do, one turn of so many looks whether somebody is at the socket.
const UNHEARD: u32 = 16;

/// The system that the service runs on.
pub struct Linux {
    clock: Monotonic,
    wake: Wake,
    /// The process that has started this one.
    runner: i32,
    residency: Residency,
    memory: MemorySources,
    /// Who has come to the socket and not said anything yet.
    coming: handover::Waiting,
    /// Somebody may be at the socket: one was there the last time, or while this slept.
    knocked: bool,
    /// How often it was not looked since the last time.
    unheard: u32,
    ends: Ends,
    servers: Servers,
    watches: Watches,
    /// Who asks what programs can keep waiting for.
    patient: RefCell<Patient>,
    counts: System,
    /// What processors do, once it has mattered.
    load: Option<Load>,
}

impl Linux {
    /// How long to sleep instead of `pause`, in which nothing comes of what is heard.
    fn beside_load(&mut self, pause: Duration) -> Duration {
        if !(IDLING..IDLING_BUSY).contains(&pause) {
            return pause;
        }
        let longer = IDLING_BUSY - pause;
        let load = self.load.get_or_insert_with(Load::begin);
        pause + longer.mul_f64(load.all_busy(0.0))
    }

    pub(super) fn new(shared: &Arc<Shared>, clock: Monotonic) -> Linux {
        let wake = Wake::new();
        let ends = Ends::start(shared.clone(), wake.clone());
        Linux {
            clock,
            residency: Residency::new(),
            memory: MemorySources::of_this_process(),
            coming: handover::Waiting::default(),
            knocked: true,
            unheard: 0,
            servers: Servers::new(shared.clone(), ends.clone(), wake.clone(), clock),
            wake,
            runner: parent(),
            ends,
            watches: Watches::default(),
            patient: RefCell::default(),
            counts: System::new(clock),
            load: None,
        }
    }
}

/// 0 where it is in another namespace: then its death is this one's.
fn parent() -> i32 {
    // SAFETY: takes no arguments.
    unsafe { libc::getppid() }
}

impl Linux {
    /// Wakes the service.
    pub(super) fn wake(&self) -> &Wake {
        &self.wake
    }
}

impl Clock for Linux {
    fn now(&self) -> Moment {
        self.clock.now()
    }
}

/// What a device is, for the service.
fn file_system_of(device: Option<&Device>, served: bool) -> FileSystem {
    FileSystem {
        chunk: match device {
            Some(d) if d.is_memory() => None,
            Some(d) => Some(d.unclipped_chunk()),
            None => Some(64 << 10),
        },
        clip: device.and_then(Device::readahead_clip).unwrap_or(0),
        read_ahead: device.and_then(Device::read_ahead).unwrap_or(0),
        shows_opens: served,
        caches: !served && device.is_none_or(fetch::surely_caches),
    }
}

impl Counters for Linux {
    fn own_pid(&self) -> u32 {
        self.counts.own_pid()
    }

    fn bytes_fetched(&self, pid: u32) -> Option<u64> {
        self.counts.bytes_fetched(pid)
    }

    fn longest_request(&self, device: DeviceId) -> Option<u64> {
        self.counts.longest_request(device)
    }

    fn begun(&self, device: DeviceId) -> Option<(u64, u64)> {
        self.counts.begun(device)
    }

    fn read(&self, device: DeviceId) -> Option<counters::Read> {
        self.counts.read(device)
    }

    fn show_run(&self, own: &Run) {
        self.counts.show_run(own);
    }

    fn other_runs(&self) -> Vec<Run> {
        self.counts.other_runs()
    }
}

impl Kernel for Linux {
    fn keyed(&self) -> Keyed {
        Keyed::random()
    }

    fn sleep(&mut self, shared: &Shared, pause: Duration) {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let pause = self.beside_load(pause);
        let pause = Timespec {
            tv_sec: pause.as_secs() as i64,
            tv_nsec: i64::from(pause.subsec_nanos()),
        };
        let socket = shared.socket();
        let wake = self.wake.fd().map_or(socket, AsFd::as_fd);
        let mut both = [socket, wake].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = poll(&mut both, Some(&pause));
        let [knocked, woken] = both.map(|fd| fd.revents().contains(PollFlags::IN));
        self.knocked |= knocked;
        if woken {
            self.wake.settle();
        }
    }

    fn pass(&mut self, time: Duration) {
        std::thread::sleep(time);
    }

    fn end_round(&mut self, shared: &Shared) {
        if outrider_sys::text::lacked_descriptors() {
            shared.header().lose(lost::EMFILE);
        }
    }

    fn finished(&mut self, shared: &Shared) {
        // The runner ends now; what the program left behind is still served.
        outrider_sys::child::outlive_parent();
        shared.header().finish.store(2, Release);
        raw::futex_wake(&shared.header().finish, u32::MAX);
    }

    fn finishes(&self, shared: &Shared) -> bool {
        shared.header().finish.load(Acquire) == 1
    }

    fn is_orphaned(&self) -> bool {
        parent() != self.runner
    }

    fn receive(&mut self, shared: &Shared) -> Arrival {
        // accept(2) makes a socket before it finds that there is nobody.
        self.unheard += 1;
        let may_be = self.knocked || self.unheard >= UNHEARD || self.finishes(shared);
        if !may_be && self.coming.is_empty() {
            return Arrival::Nobody;
        }
        self.unheard = 0;
        let arrival = self.coming.receive(shared.socket());
        self.knocked = !matches!(arrival, Arrival::Nobody);
        arrival
    }

    fn is_awaited(&self) -> bool {
        !self.coming.is_empty()
    }

    fn is_still(&self, shared: &Shared, proc: usize, handed: &Handed) -> bool {
        shared.is_still(proc, handed)
    }

    fn stands(&self, shared: &Shared, proc: usize) -> bool {
        shared.stands(proc)
    }

    fn command(&self, pid: u32) -> String {
        fetch::command(pid)
    }

    fn life(&self, pid: u32) -> Option<OwnedFd> {
        life::of(pid)
    }

    fn is_over(&self, pid: u32, life: Option<&OwnedFd>) -> bool {
        match life {
            Some(life) => life::over(life),
            None => !fetch::alive(pid),
        }
    }

    fn is_ending(&self, shared: &Shared, proc: usize) -> bool {
        shared.is_ending(proc)
    }

    fn is_confined(&self, pid: u32, turn: usize) -> bool {
        fetch::is_confined(pid, turn)
    }

    fn is_divided(&self, pid: u32, turn: usize) -> bool {
        fetch::is_divided(pid, turn)
    }

    fn follow(&self, life: Option<&OwnedFd>) {
        self.ends.follow(life);
    }

    fn has_ended(&self) -> bool {
        self.ends.take_ended()
    }

    fn held(&self, shared: &Shared) -> u32 {
        shared.held.load(SeqCst)
    }

    fn held_unseen(&self, shared: &Shared, proc: usize) -> u32 {
        shared.held_unseen(proc)
    }

    fn is_open(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool {
        fetch::is_open(wanted, slot, generation)
    }

    fn is_readable(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool {
        fetch::is_readable_now(wanted, slot, generation)
    }

    fn is_direct(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool {
        fetch::is_direct(wanted.pid, wanted.fd, slot, generation)
    }

    fn link(&self, wanted: Wanted, slot: &Slot, generation: u32) -> PathBuf {
        fetch::link(wanted.pid, wanted.fd, slot, generation).unwrap_or_default()
    }

    fn server(&self, wanted: Wanted, slot: &Slot, generation: u32) -> Option<FileSystem> {
        let name = self.link(wanted, slot, generation);
        let mount = fetch::server(wanted.pid, DeviceId(wanted.dev), &name)?;
        Some(file_system_of(Some(&Device::of_mount(mount)), true))
    }

    fn behind(&self, pid: u32, address: u64) -> Option<(PathBuf, u64, u64, u64)> {
        let mut patient = self.patient.borrow_mut();
        patient.ask(pid, move || fetch::behind(pid, address))?
    }

    fn open(
        &self,
        shared: &Arc<Shared>,
        source: Source,
        openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile> {
        let Source {
            proc,
            generation,
            wanted,
        } = source;
        let slot = shared.proc(proc).slots.get(usize::from(wanted.fd))?;
        let note = Note::new(shared.clone(), Some(proc), false)?;
        let (fd, size) = fetch::fetch(wanted, slot, generation, false, shared.header())?;
        let source = Arc::new(fetch::Source::new(wanted, shared, proc, generation)?);
        let handle = Arc::new(Handle::held(fd).of(wanted.dev, wanted.ino));
        let watch = self
            .ends
            .watch(&handle, openers.clone(), Some(source.clone()));
        handle.attach(Box::new((watch, note)));
        // It may have been closed before the watch began.
        if !source.is_open(shared) {
            handle.close();
        }
        Some((handle, size))
    }

    fn open_by_name(
        &self,
        shared: &Arc<Shared>,
        proc: usize,
        name: &Path,
        key: InodeKey,
        openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile> {
        let note = Note::new(shared.clone(), Some(proc), false)?;
        let (fd, size) = fetch::by_name(name, key.dev, key.ino)?;
        let handle = Arc::new(Handle::held(fd).of(key.dev, key.ino));
        let watch = self.ends.watch(&handle, openers.clone(), None);
        handle.attach(Box::new((watch, note)));
        Some((handle, size))
    }

    fn open_briefly(&self, name: &Path, key: InodeKey) -> Option<Handle> {
        let (fd, _) = fetch::by_name(name, key.dev, key.ino)?;
        Some(Handle::new(fd).of(key.dev, key.ino))
    }

    fn begin_to_open(
        &mut self,
        shared: &Arc<Shared>,
        source: Source,
        openers: &Arc<AtomicU32>,
    ) -> bool {
        self.servers.open(shared, source, openers)
    }

    fn opened(&mut self) -> Vec<Answer> {
        self.servers.opened()
    }

    fn is_stuck(&self, dev: DeviceId) -> bool {
        self.servers.is_stuck(dev)
    }

    fn file_system(&self, handle: &Handle) -> (FileSystem, Option<u64>) {
        let device = Device::of_fd(handle.fd()).ok();
        (
            file_system_of(device.as_ref(), false),
            file_system_id(handle.fd()),
        )
    }

    fn name(&self, handle: &Handle) -> PathBuf {
        fetch::name(handle.fd())
    }

    fn size(&self, handle: &Handle) -> Option<u64> {
        fetch::size(handle.fd())
    }

    fn has_module(&self) -> bool {
        self.residency.has_module()
    }

    fn calibrate(
        &self,
        handle: &Handle,
        view: &FileView,
        pages: PageRange,
        now: u64,
        looks: &mut u32,
    ) -> Result<bool, CacheStatError> {
        self.residency.calibrate(handle, view, pages, now, looks)
    }

    fn cached(&self, handle: &Handle, range: ByteRange) -> Result<u64, CacheStatError> {
        self.residency.count(handle, range)
    }

    fn counted(&self, handle: &Handle, range: ByteRange) -> Result<CacheStat, CacheStatError> {
        handle.counted(range)
    }

    fn drop_range(&self, handle: &Handle, range: ByteRange) -> io::Result<()> {
        cache::drop_range(handle.fd(), range)
    }

    fn touched(&self, pid: u32, mapped: &mut Mapped) -> io::Result<Vec<ByteRange>> {
        let mut patient = self.patient.borrow_mut();
        mapped.look(|span, refused| {
            let present = patient.ask(pid, move || Present::of(pid, span, refused));
            present.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
        })
    }

    fn bytes_read(&self, pid: u32) -> Option<u64> {
        counters::bytes_read(pid)
    }

    fn memory(&self) -> Memory {
        self.memory.read()
    }

    fn watch_reads(&mut self, name: &Path, key: InodeKey) -> Option<i32> {
        self.watches.begin(name, key)
    }

    fn unwatch(&mut self, watch: i32) {
        self.watches.end(watch);
    }

    fn reads_heard(&mut self) -> Vec<(i32, bool)> {
        self.watches.heard()
    }

    fn processes(&self) -> Vec<u32> {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|p| p.file_name().to_str()?.parse().ok())
            .collect()
    }

    fn open_files(&self, pid: u32) -> Vec<PathBuf> {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"));
        let links = descriptors.into_iter().flatten().flatten();
        links
            .filter_map(|d| std::fs::read_link(d.path()).ok())
            .collect()
    }
}
