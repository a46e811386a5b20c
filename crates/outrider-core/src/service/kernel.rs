//! The seam between the service and the system that it runs on.
//!
//! Nothing else of the service asks the system anything, but for the two that hand processes on (`heirs`) and that walk through directories. So the same code runs
//! on Linux and in simulated time, where every answer is a model's and two runs are alike to the digit.

use outrider_sys::units::{ByteRange, DeviceId};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use outrider_sys::cache::{CacheStat, CacheStatError};
use outrider_sys::handover::{Arrival, Handed};
use outrider_sys::memory::Memory;

use super::{FileSystem, InodeKey};
use crate::engine::Handle;
use crate::fetch::Wanted;
use crate::map::Keyed;
use crate::residency;
use crate::shared::Shared;
use crate::sharing::Counters;
use crate::shm::Slot;
use crate::source::mapped::Mapped;
use crate::view::{FileView, PageRange};

/// A descriptor of a program through which a file can be opened: entry of the process, generation of the descriptor's state, and what the hook knew of it.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Entry of the process.
    pub proc: usize,
    /// Generation of the descriptor's state.
    pub generation: u32,
    /// What the hook knew of it.
    pub wanted: Wanted,
}

impl Source {
    /// The file.
    pub fn key(&self) -> InodeKey {
        InodeKey {
            dev: self.wanted.dev,
            ino: self.wanted.ino,
        }
    }
}

/// A file that the service has open now, and its size in bytes.
pub type OpenFile = (Arc<Handle>, u64);

/// A file that a server has opened, or has not.
pub struct Answer {
    /// The file.
    pub key: InodeKey,
    /// Entry of the process because of which it was opened.
    pub proc: usize,
    /// What was opened.
    pub file: Option<OpenFile>,
}

/// What the service asks of its system, and has it do.
pub trait Kernel: Counters {
    /// What maps of the service are hashed with.
    fn keyed(&self) -> Keyed;

    /// A round begins: what the programs have written until now is seen in it.
    fn begin_round(&mut self, _shared: &Shared) {}
    /// A round is over: what the service has written in it is seen by the programs, and what it has asked for goes out.
    fn end_round(&mut self, _shared: &Shared) {}
    /// Nothing happens for so long, or until somebody knocks or hands his memory over.
    fn sleep(&mut self, shared: &Shared, pause: Duration);
    /// Lets time pass.
    fn pass(&mut self, time: Duration);
    /// The statistics are final: whoever waits for them is told, and what started the service need no longer be there.
    fn finished(&mut self, shared: &Shared);
    /// Whether the run is over, by what the runner says.
    fn finishes(&self, shared: &Shared) -> bool;
    /// Whether whoever started the service has ended without a word.
    fn is_orphaned(&self) -> bool;

    /// Who has come to the socket.
    fn receive(&mut self, shared: &Shared) -> Arrival;
    /// Whether somebody has come and not said anything yet.
    fn is_awaited(&self) -> bool;
    /// The process that has just been received was taken into entry `proc`.
    fn taken_in(&mut self, _shared: &Shared, _proc: usize) {}
    /// See [`Shared::is_still`].
    fn is_still(&self, shared: &Shared, proc: usize, handed: &Handed) -> bool;
    /// See [`Shared::stands`].
    fn stands(&self, shared: &Shared, proc: usize) -> bool;
    /// See [`fetch::command`](crate::fetch::command).
    fn command(&self, pid: u32) -> String;
    /// A descriptor by which a process's end is seen, see pidfd_open(2); `None` where there is none.
    fn life(&self, pid: u32) -> Option<OwnedFd>;
    /// Whether a process is over.
    fn is_over(&self, pid: u32, life: Option<&OwnedFd>) -> bool;
    /// See [`Shared::is_ending`].
    fn is_ending(&self, shared: &Shared, proc: usize) -> bool;
    /// See [`fetch::is_confined`](crate::fetch::is_confined).
    fn is_confined(&self, pid: u32, turn: usize) -> bool;
    /// See [`fetch::is_divided`](crate::fetch::is_divided).
    fn is_divided(&self, pid: u32, turn: usize) -> bool;
    /// Has it noticed when the process of `life` is over.
    fn follow(&self, life: Option<&OwnedFd>);
    /// Whether a process has ended since this was asked last.
    fn has_ended(&self) -> bool;

    /// Files that are open because programs have them.
    fn held(&self, shared: &Shared) -> u32;
    /// See [`Shared::held_unseen`].
    fn held_unseen(&self, shared: &Shared, proc: usize) -> u32;
    /// See [`fetch::is_open`](crate::fetch::is_open).
    fn is_open(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool;
    /// See [`fetch::is_readable_now`](crate::fetch::is_readable_now).
    fn is_readable(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool;
    /// See [`fetch::is_direct`](crate::fetch::is_direct).
    fn is_direct(&self, wanted: Wanted, slot: &Slot, generation: u32) -> bool;
    /// See [`fetch::link`](crate::fetch::link); empty where there is none.
    fn link(&self, wanted: Wanted, slot: &Slot, generation: u32) -> PathBuf;
    /// What a file lies on where a server keeps it, by the mounts that its process sees and the name under which it has the file open.
    fn server(&self, wanted: Wanted, slot: &Slot, generation: u32) -> Option<FileSystem>;
    /// See [`fetch::behind`](crate::fetch::behind).
    fn behind(&self, pid: u32, address: u64) -> Option<(PathBuf, u64, u64, u64)>;
    /// Opens the file that a program has open, and lets go of it when nobody has. `openers` counts who has.
    fn open(
        &self,
        shared: &Arc<Shared>,
        source: Source,
        openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile>;
    /// The same of a file by its name, which the process in entry `proc` has mapped; `alive` tells that it still has.
    fn open_by_name(
        &self,
        shared: &Arc<Shared>,
        proc: usize,
        name: &Path,
        key: InodeKey,
        openers: &Arc<AtomicU32>,
    ) -> Option<OpenFile>;
    /// A file by its name, for a moment.
    fn open_briefly(&self, name: &Path, key: InodeKey) -> Option<Handle>;
    /// Begins to have a file opened by the server that keeps it; `false` where that server has enough to do.
    fn begin_to_open(
        &mut self,
        shared: &Arc<Shared>,
        source: Source,
        openers: &Arc<AtomicU32>,
    ) -> bool;
    /// Files that servers have opened since this was asked last.
    fn opened(&mut self) -> Vec<Answer>;
    /// Whether a server of this file system has not answered for long.
    fn is_stuck(&self, dev: DeviceId) -> bool;
    /// What an open file lies on, and the number of its file system where that is of interest.
    fn file_system(&self, handle: &Handle) -> (FileSystem, Option<u64>);
    /// See [`fetch::name`](crate::fetch::name).
    fn name(&self, handle: &Handle) -> PathBuf;
    /// See [`fetch::size`](crate::fetch::size).
    fn size(&self, handle: &Handle) -> Option<u64>;
    /// Whether the kernel module is used.
    fn has_module(&self) -> bool;
    /// See [`Residency::calibrate`](crate::residency::Residency::calibrate).
    fn calibrate(
        &self,
        handle: &Handle,
        view: &FileView,
        pages: PageRange,
        now: u64,
        looks: &mut u32,
    ) -> Result<bool, CacheStatError> {
        let count = |bytes| self.cached(handle, bytes);
        residency::divide(&count, view, pages, now, looks)
    }
    /// Pages of the bytes `range` that are cached or on their way.
    fn cached(&self, handle: &Handle, range: ByteRange) -> Result<u64, CacheStatError>;
    /// See [`Handle::counted`].
    fn counted(&self, handle: &Handle, range: ByteRange) -> Result<CacheStat, CacheStatError>;
    /// See [`cache::drop_range`](outrider_sys::cache::drop_range).
    fn drop_range(&self, handle: &Handle, range: ByteRange) -> io::Result<()>;
    /// See [`Mapped::look`].
    fn touched(&self, pid: u32, mapped: &mut Mapped) -> io::Result<Vec<ByteRange>>;

    /// Bytes that a process has read, from wherever.
    fn bytes_read(&self, pid: u32) -> Option<u64>;
    /// Memory.
    fn memory(&self) -> Memory;

    /// Begins to watch a file for being read by anybody, by its name.
    fn watch_reads(&mut self, name: &Path, key: InodeKey) -> Option<i32>;
    /// Ends such a watch.
    fn unwatch(&mut self, watch: i32);
    /// The watches that have ended since this was asked last, and whether by a read.
    fn reads_heard(&mut self) -> Vec<(i32, bool)>;
    /// All processes.
    fn processes(&self) -> Vec<u32>;
    /// The names of files that a process has open, as far as that may be seen.
    fn open_files(&self, pid: u32) -> Vec<PathBuf>;
}
