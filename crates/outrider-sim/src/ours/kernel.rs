//! The system as the service sees it, played by the simulated machine.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use outrider_core::clock::{Clock, Moment};
use outrider_core::engine::Handle;
use outrider_core::fetch::Wanted;
use outrider_core::map::Keyed;
use outrider_core::service::{Answer, FileSystem, InodeKey, Kernel, OpenFile, Source};
use outrider_core::shared::Shared as Books;
use outrider_core::sharing::Counters;
use outrider_core::sharing::runs::Run;
use outrider_core::shm::Slot;
use outrider_core::source::mapped::Mapped;
use outrider_sys::cache::{CacheStat, CacheStatError};
use outrider_sys::counters::Read;
use outrider_sys::handover::{Arrival, Handed};
use outrider_sys::memory::Memory;
use outrider_sys::units::{ByteRange, DeviceId, PAGE};

use super::{FIRST_INODE, PROGRAM, SERVICE};
use crate::cache::State;
use crate::device::Nanos;
use crate::run::Shared;
use crate::system::By;

/// What the service's queries take, ns: system calls as measured on Linux 6.18, files of /proc and /sys opened, read and closed.
mod costs {
    use super::Nanos;

    /// A round with nothing in it.
    pub const ROUND: Nanos = 1_000;
    /// cachestat(2).
    pub const CACHED: Nanos = 600;
    /// Opening a program's file.
    pub const OPEN: Nanos = 12_000;
    /// A small file of /proc or /sys.
    pub const FILE: Nanos = 8_000;
    /// A page that PAGEMAP_SCAN looks at.
    pub const LOOK: Nanos = 4;
    /// Pages of a page table.
    pub const TABLE: u64 = 512;
}

/// What program and service know of each other.
pub struct Program {
    /// Its memory, until the service takes it.
    pub memory: Option<OwnedFd>,
    /// It is over.
    pub over: bool,
    /// The service has heard that.
    pub heard: bool,
    /// Bytes that it has read, from wherever.
    pub bytes_read: u64,
    /// How often each file is open.
    pub open: Vec<u32>,
}

/// Answers for the system.
pub struct Machine {
    pub system: Shared,
    pub program: Rc<RefCell<Program>>,
    /// ns that this round has taken so far.
    pub spent: Rc<Cell<Nanos>>,
    handles: RefCell<Vec<Weak<Handle>>>,
}

impl Machine {
    pub fn new(system: Shared, program: Rc<RefCell<Program>>) -> Machine {
        Machine {
            system,
            program,
            spent: Rc::default(),
            handles: RefCell::default(),
        }
    }

    fn takes(&self, time: Nanos) {
        self.spent.set(self.spent.get() + time);
    }

    /// The file of this number on the simulated device.
    fn file(&self, key: InodeKey) -> Option<usize> {
        let file = usize::try_from(key.ino.checked_sub(FIRST_INODE)?).ok()?;
        (file < self.system.borrow().files()).then_some(file)
    }

    fn of(&self, handle: &Handle) -> Option<usize> {
        self.file(handle.file())
    }
}

impl Clock for Machine {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.system.borrow().now + self.spent.get())
    }
}

impl Counters for Machine {
    fn own_pid(&self) -> u32 {
        SERVICE
    }

    fn bytes_fetched(&self, pid: u32) -> Option<u64> {
        self.takes(costs::FILE);
        let by = if pid == SERVICE {
            By::Ahead
        } else {
            By::Program
        };
        Some(self.system.borrow().asked(by).bytes)
    }

    fn longest_request(&self, _device: DeviceId) -> Option<u64> {
        self.takes(costs::FILE);
        Some(self.system.borrow().machine().longest)
    }

    fn begun(&self, _device: DeviceId) -> Option<(u64, u64)> {
        self.takes(2 * costs::FILE);
        let begun = self.system.borrow().begun();
        Some((begun, begun))
    }

    fn read(&self, _device: DeviceId) -> Option<Read> {
        self.takes(costs::FILE);
        let answered = self.system.borrow().answered();
        Some(Read {
            completed: answered.requests,
            merged: 0,
            bytes: answered.bytes,
        })
    }

    fn other_runs(&self) -> Vec<Run> {
        Vec::new()
    }
}

impl Kernel for Machine {
    fn keyed(&self) -> Keyed {
        Keyed::with(0)
    }

    fn begin_round(&mut self, _books: &Books) {
        self.takes(costs::ROUND);
        let program = self.program.borrow();
        // What nobody has open any more is let go of.
        self.handles.borrow_mut().retain(|handle| {
            let Some(handle) = handle.upgrade() else {
                return false;
            };
            let open = self.of(&handle).is_some_and(|file| program.open[file] > 0);
            if !open {
                handle.close();
            }
            open
        });
    }

    fn sleep(&mut self, _books: &Books, pause: Duration) {
        self.pass(pause);
    }

    fn pass(&mut self, time: Duration) {
        self.takes(time.as_nanos() as Nanos);
    }

    fn finished(&mut self, books: &Books) {
        books.header().finish.store(2, Relaxed);
    }

    fn finishes(&self, _books: &Books) -> bool {
        self.program.borrow().over
    }

    fn is_orphaned(&self) -> bool {
        false
    }

    fn receive(&mut self, books: &Books) -> Arrival {
        match self.program.borrow_mut().memory.take() {
            Some(memory) => Arrival::Memory(outrider_core::proc_memory::ProcMemory::handed(
                memory, books, PROGRAM,
            )),
            None => Arrival::Nobody,
        }
    }

    fn is_awaited(&self) -> bool {
        false
    }

    fn is_still(&self, _books: &Books, _proc: usize, _handed: &Handed) -> bool {
        true
    }

    fn stands(&self, _books: &Books, _proc: usize) -> bool {
        true
    }

    fn command(&self, _pid: u32) -> String {
        "program".to_owned()
    }

    fn life(&self, _pid: u32) -> Option<OwnedFd> {
        None
    }

    fn is_over(&self, _pid: u32, _life: Option<&OwnedFd>) -> bool {
        self.program.borrow().over
    }

    fn is_ending(&self, _books: &Books, _proc: usize) -> bool {
        self.program.borrow().over
    }

    fn is_confined(&self, _pid: u32, _turn: usize) -> bool {
        false
    }

    fn is_divided(&self, _pid: u32, _turn: usize) -> bool {
        false
    }

    fn follow(&self, _life: Option<&OwnedFd>) {}

    fn has_ended(&self) -> bool {
        let mut program = self.program.borrow_mut();
        program.over && !std::mem::replace(&mut program.heard, true)
    }

    fn held(&self, _books: &Books) -> u32 {
        0
    }

    fn held_unseen(&self, _books: &Books, _proc: usize) -> u32 {
        0
    }

    fn is_open(&self, _wanted: Wanted, slot: &Slot, generation: u32) -> bool {
        slot.generation.load(Relaxed) == generation
    }

    fn is_readable(&self, _wanted: Wanted, _slot: &Slot, _generation: u32) -> bool {
        true
    }

    fn is_direct(&self, _wanted: Wanted, _slot: &Slot, _generation: u32) -> bool {
        false
    }

    fn link(&self, _wanted: Wanted, _slot: &Slot, _generation: u32) -> PathBuf {
        PathBuf::new()
    }

    fn server(&self, _wanted: Wanted, _slot: &Slot, _generation: u32) -> Option<FileSystem> {
        None
    }

    fn behind(&self, _pid: u32, _address: u64) -> Option<(PathBuf, u64, u64, u64)> {
        None
    }

    fn open(
        &self,
        books: &Arc<Books>,
        source: Source,
        _openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile> {
        self.takes(costs::OPEN);
        let slot = books
            .proc(source.proc)
            .slots
            .get(usize::from(source.wanted.fd))?;
        let key = source.key();
        let file = self.file(key)?;
        let still = slot.generation.load(Relaxed) == source.generation;
        if !still || self.program.borrow().open[file] == 0 {
            return None;
        }
        let handle = Arc::new(Handle::stand_in().of(key.dev, key.ino));
        self.handles.borrow_mut().push(Arc::downgrade(&handle));
        Some((handle, self.system.borrow().size(file)))
    }

    fn open_by_name(
        &self,
        _books: &Arc<Books>,
        _proc: usize,
        _name: &Path,
        _key: InodeKey,
        _openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile> {
        None
    }

    fn open_briefly(&self, _name: &Path, key: InodeKey) -> Option<Handle> {
        self.takes(costs::OPEN);
        self.file(key)
            .map(|_| Handle::stand_in().of(key.dev, key.ino))
    }

    fn begin_to_open(
        &mut self,
        _books: &Arc<Books>,
        _source: Source,
        _openers: &Arc<AtomicU32>,
    ) -> bool {
        false
    }

    fn opened(&mut self) -> Vec<Answer> {
        Vec::new()
    }

    fn is_stuck(&self, _dev: DeviceId) -> bool {
        false
    }

    fn file_system(&self, _handle: &Handle) -> (FileSystem, Option<u64>) {
        self.takes(costs::FILE);
        let system = self.system.borrow();
        let machine = system.machine();
        let found = FileSystem {
            // As `Device::unclipped_chunk` has it: no longer than a request may be.
            chunk: Some(machine.read_ahead.max(64 << 10).min(machine.longest)),
            clip: machine.longest,
            read_ahead: machine.read_ahead,
            shows_opens: false,
            caches: true,
        };
        (found, None)
    }

    fn name(&self, handle: &Handle) -> PathBuf {
        PathBuf::from(format!("/file{}", self.of(handle).unwrap_or_default()))
    }

    fn size(&self, handle: &Handle) -> Option<u64> {
        let file = self.of(handle)?;
        Some(self.system.borrow().size(file))
    }

    fn has_module(&self) -> bool {
        false
    }

    fn cached(&self, handle: &Handle, range: ByteRange) -> Result<u64, CacheStatError> {
        self.counted(handle, range).map(|stat| stat.cached)
    }

    fn counted(&self, handle: &Handle, range: ByteRange) -> Result<CacheStat, CacheStatError> {
        self.takes(costs::CACHED);
        if handle.is_gone() {
            return Err(CacheStatError::Other(io::Error::from_raw_os_error(9)));
        }
        let file = self.of(handle).ok_or(CacheStatError::Unsupported)?;
        let system = self.system.borrow();
        let pages = system.pages(file, range);
        let evicted = system.cache.evicted(pages.clone());
        Ok(CacheStat {
            cached: system.cache.present(pages),
            dirty: 0,
            writeback: 0,
            evicted,
            recently_evicted: evicted,
        })
    }

    fn drop_range(&self, handle: &Handle, range: ByteRange) -> io::Result<()> {
        let file = self.of(handle).ok_or(io::ErrorKind::NotFound)?;
        let mut system = self.system.borrow_mut();
        let pages = system.pages(file, range);
        pages.for_each(|page| system.cache.discard(page));
        Ok(())
    }

    fn touched(&self, _pid: u32, mapped: &mut Mapped) -> io::Result<Vec<ByteRange>> {
        let (base, file) = (mapped.memory().start, self.file(mapped.file()));
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        mapped.look_by(|span, mark| {
            let pages = (span.start - base) / PAGE..(span.end - base) / PAGE;
            let system = self.system.borrow();
            let mapped = |page: &u64| system.is_mapped(system.page(file, *page));
            // Where nothing was touched there are no tables to go through.
            let (mut tables, mut table) = (0, None);
            let mut run: Option<ByteRange> = None;
            for page in pages.filter(mapped) {
                tables +=
                    u64::from(table.replace(page / costs::TABLE) != Some(page / costs::TABLE));
                let at = base + page * PAGE..base + (page + 1) * PAGE;
                match &mut run {
                    Some(run) if run.end == at.start => run.end = at.end,
                    _ => {
                        let before = run.replace(at);
                        before.into_iter().for_each(&mut *mark);
                    }
                }
            }
            run.into_iter().for_each(mark);
            drop(system);
            self.takes(costs::FILE + tables * costs::TABLE * costs::LOOK);
            Ok(())
        })
    }

    fn bytes_read(&self, _pid: u32) -> Option<u64> {
        self.takes(costs::FILE);
        Some(self.program.borrow().bytes_read)
    }

    fn memory(&self) -> Memory {
        self.takes(3 * costs::FILE);
        let total = self.system.borrow().machine().memory;
        let held = u64::from(self.system.borrow().cache.held()) * PAGE;
        Memory {
            total,
            // All of the cache is clean.
            available: total - total / 20,
            free: total.saturating_sub(held),
            ..Memory::default()
        }
    }

    fn watch_reads(&mut self, _name: &Path, _key: InodeKey) -> Option<i32> {
        None
    }

    fn unwatch(&mut self, _watch: i32) {}

    fn reads_heard(&mut self) -> Vec<(i32, bool)> {
        Vec::new()
    }

    fn processes(&self) -> Vec<u32> {
        vec![PROGRAM, SERVICE]
    }

    fn open_files(&self, _pid: u32) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// Whether all of these bytes are there, not only on their way.
pub fn is_there(system: &Shared, file: usize, bytes: ByteRange) -> bool {
    let system = system.borrow();
    let mut pages = system.pages(file, bytes);
    pages.all(|page| system.cache.state(page) == State::Uptodate)
}
