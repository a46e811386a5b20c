//! What hooked programs, the service and the runner have in memory between them.
//!
//! Foresight, bookkeeping and issuing all happen in a process of their own (docs/design/01-service-beside-the-program.md
//! says why).
//! What the hooks in a program do is reduced to this module: look up the state of a descriptor, compare
//! the access with a range in which nothing needs to be said, and otherwise put 32 bytes into a bounded
//! ring. Nothing here allocates, locks, or panics; every structure is plain atomics for which zero is the
//! initial state, so that fresh memory from the kernel is ready as it is.
//!
//! Each process has memory of its own, a [`Proc`], which it makes itself and hands to the service over a socket:
//! the kernel says who sent it. Nobody else has that memory mapped, and what the service reads there is a claim
//! of that one process: it harms its own prefetching at most. What runner and service keep for the report is a
//! [`Header`], [`FileStat`]s and [`Record`]s in memory that no program has ([`crate::shared`]).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use outrider_sys::units::{DeviceId, PAGE};

use outrider_sys::fnv;
use outrider_sys::handover::NAME_BYTES;

use crate::board::Board;
use crate::config::{Config, IoPriority, Size};
use crate::device::WINDOWS;
use crate::hints::{Hints, Saved};

/// Changes whenever the layout does; library and command must agree.
pub const VERSION: u32 = 17;
/// Processes that can be followed at one time.
pub const MAX_PROCS: usize = 512;
/// Descriptors followed per process; numbers from here on are left alone.
pub const MAX_FDS: usize = 4096;
/// Events that a process can have waiting, a power of two. At 32 bytes each the ring is 64 KiB; the service
/// drains it in microseconds, so that it fills only when the service is stopped or starved.
pub const RING: usize = 2048;
/// Files with statistics of their own; later ones are counted in the totals only.
pub const MAX_FILES: usize = 1024;
/// Processes that the report can name.
pub const MAX_RECORDS: usize = 256;
/// What /proc/PID/maps shows for a process's memory.
pub const NAME: &core::ffi::CStr = c"outrider";

/// Flags in the environment of programs: hooks look for themselves whether files are cached; see [`FLAG_RESIDENT`].
pub const ENVIRONMENT_LOOKS: u64 = 1;
/// There is to be a report: the service hears of every process that reads files worth following, cached or not.
pub const ENVIRONMENT_REPORTS: u64 = 2;
/// The kernel commits memory strictly (vm.overcommit_memory=2).
pub const ENVIRONMENT_STRICT: u64 = 4;
/// The run is remembered: hooks write down what is opened and asked about. From [`ENVIRONMENT_LOG_SHIFT`] on the flags have the number of the runner's descriptor of
/// the log ([`crate::needs`]).
pub const ENVIRONMENT_REMEMBERS: u64 = 8;
/// See [`ENVIRONMENT_REMEMBERS`].
pub const ENVIRONMENT_LOG_SHIFT: u32 = 8;

/// Nobody's entry.
pub const OWNER_FREE: u32 = 0;

/// The program's own hints pass unchanged and nothing is predicted (Table 2, `APPonly`).
pub const MODE_APP_ONLY: u32 = 0;
/// The program's hints are dropped and nothing is predicted (Table 2, `OSonly`).
pub const MODE_OS_ONLY: u32 = 1;
/// Prediction within the kernel's readahead limit (Table 2, `CrossP[+predict]`).
pub const MODE_PREDICT: u32 = 2;
/// Prediction with large windows and optimistic fetching (Table 2, `CrossP[+predict+opt]`).
pub const MODE_PREDICT_OPT: u32 = 3;
/// Whole files at open (Table 2, `CrossP[+fetchall+opt]`).
pub const MODE_FETCHALL_OPT: u32 = 4;
/// Added to the mode in the environment, which is a digit: the process has set POSIX locks. It keeps them when it becomes another program.
pub const ENVIRONMENT_LOCKED: u64 = 5;

/// Not looked at yet.
pub const FD_UNKNOWN: u32 = 0;
/// Not ours: a pipe, a socket, a small file, O_DIRECT …
pub const FD_IGNORED: u32 = 1;
/// A regular file whose reads are followed.
pub const FD_TRACKED: u32 = 2;

/// The descriptor can write: it must never be duplicated (see `service::fetch`).
pub const FLAG_WRITABLE: u32 = 1;
/// Somebody else may move the file position: a dup, a fork, a stdio buffer.
pub const FLAG_SHARED_POS: u32 = 2;
/// Opened for reading.
pub const FLAG_READABLE: u32 = 8;
/// The service is opening the file through /proc at this moment, which holds the program's own open file for some
/// microseconds. Closing waits for it to be over, so that locks end with the program's last close.
pub const FLAG_FETCHING: u32 = 16;
/// The service has the file open, and its file system shows that to others (NFS and FUSE rename an unlinked file that is
/// open). Closing waits until the service has let go.
pub const FLAG_HELD: u32 = 32;

/// What is read of this descriptor is cached: the hook itself looks, at few of the reads, and tells nobody. Set by the hook that opens a
/// file, and by the service when the file is cached again; cleared by the hook that finds more missing than [`is_resident`] allows.
pub const FLAG_RESIDENT: u32 = 64;
/// The service was never told of this descriptor.
pub const FLAG_UNTOLD: u32 = 128;
/// Its file is an overlay's, of whose pages cachestat(2) tells nothing. With [`FLAG_RESIDENT`] the hook goes by what its threads have had read from
/// disks; with [`FLAG_UNTOLD`] besides nobody has looked yet.
pub const FLAG_BLIND: u32 = 256;
/// The program has said that it reads it in order (POSIX_FADV_SEQUENTIAL): the kernel's windows are twice as long.
pub const FLAG_SEQUENTIAL: u32 = 512;
/// Calls copy its bytes within the kernel: of such a read is told when it was made.
pub const FLAG_COPIES: u32 = 1024;

/// The upper half of the flags: after a read that was told so many are not, until the service says otherwise. It is how a program
/// that finds everything cached is listened to: a burst of reads costs few events even while the service is busy.
pub const RARELY_SHIFT: u32 = 16;
/// The service helps nobody just now who has not been helped before: it is not told of descriptors that are opened now, nor of what is read of them while this lasts.
pub const UNTOLD: u32 = 1;
/// Reads that are not told after one that found the ring full: nobody could listen to them.
pub const UNHEARD: u32 = 256;

/// One page of so many may be missing of a file that is cached: kernels that reclaim before they have to take single pages at any time,
/// and a miss a pass costs less than telling of all other reads.
const STRAY: u64 = 1024;

/// Whether a range of `pages`, of which `cached` are in the page cache, has to be foreseen no more than one that is cached altogether.
#[inline]
pub fn is_resident(pages: u64, cached: u64) -> bool {
    pages.saturating_sub(cached) <= (pages / STRAY).max(1)
}

/// What an [`Event`] of a hint tells besides where the kernel has begun to carry it out.
pub const BEGUN: u64 = 1;

/// What an [`Event`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A descriptor was opened (or seen for the first time): offset = file size in bytes.
    Open = 1,
    /// A read of `len` bytes at `offset` is about to be made.
    Read = 2,
    /// The descriptor is about to be closed: offset = end of its last read, len = reads that would still not have been told.
    Close = 3,
    /// The program's own WILLNEED or readahead of `offset..offset+len`; `extra` is [`BEGUN`] where it is passed to the kernel, too.
    WillNeed = 4,
    /// The program dropped `offset..offset+len` from the cache.
    DontNeed = 5,
    /// The file now ends at `offset`.
    Truncate = 6,
    /// A file was mapped: offset = address, len = bytes, extra = file offset in bytes.
    Map = 7,
    /// An address range was unmapped: offset = address, len = bytes.
    Unmap = 8,
    /// The program's own WILLNEED on mapped memory: offset = address, len = bytes.
    MapWillNeed = 9,
    /// Never open this file again: offset = `st_dev`, len = `st_ino`.
    Leave = 10,
    /// A file was opened whose reads are not followed: extra = generation of the descriptor's state, offset = `st_dev`, len = `st_ino`.
    Entry = 11,
    /// A directory was opened to be listed: as for an entry.
    Visit = 12,
    /// A large directory is being listed, and something was waited for: as for an entry, and the upper half of extra is that of its position.
    Listing = 13,
    /// Attributes were asked for by name, and something was waited for.
    Attributes = 14,
    /// Reads, told or not, went up to byte `offset`, and the next one is at `len`: what lies between was not read.
    Seek = 15,
    /// The kernel is about to move `offset..offset+len` to another file. The read is told when it is done; if
    /// it failed, a move of nothing is.
    KernelCopy = 16,
    /// A mapping was moved or has changed its length: offset = its address before, extra = its address, len = bytes.
    Remap = 17,
}

/// Bytes of a file that the kernel's own readahead brings in two requests, the second while the first is being read: once it is read there is nothing left to ask for
/// ahead.
pub const SHORT: u64 = WINDOWS;

/// A bit of [`Proc::walking`]: small files are told of because those are fetched that come next in an order.
pub const ALL_FILES: u32 = 1;
/// The same: all files are told of, with [`COLD`] if they are not cached.
pub const WHETHER_COLD: u32 = 2;
/// The same: files are opened ahead of the process that a server keeps.
pub const SERVED: u32 = 4;
/// What [`Kind::Entry`] tells besides the generation: the file was not cached, …
pub const COLD: u64 = 1 << 32;
/// … and how long it is, in pages, from this bit on.
pub const PAGES_SHIFT: u32 = 33;

impl Kind {
    /// The kind that has this number.
    pub fn from_u8(v: u8) -> Option<Kind> {
        Some(match v {
            1 => Kind::Open,
            2 => Kind::Read,
            3 => Kind::Close,
            4 => Kind::WillNeed,
            5 => Kind::DontNeed,
            6 => Kind::Truncate,
            7 => Kind::Map,
            8 => Kind::Unmap,
            9 => Kind::MapWillNeed,
            10 => Kind::Leave,
            11 => Kind::Entry,
            12 => Kind::Visit,
            13 => Kind::Listing,
            14 => Kind::Attributes,
            15 => Kind::Seek,
            16 => Kind::KernelCopy,
            17 => Kind::Remap,
            _ => return None,
        })
    }
}

/// One thing that a program did or is about to do.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// What happened.
    pub kind: Kind,
    /// Descriptor number.
    pub fd: u16,
    /// The lowest bits of [`Slot::generation`] when it was told.
    pub generation: u8,
    /// Read: a hash of the thread; otherwise as [`Kind`] says, or 0.
    pub extra: u64,
    /// Bytes, or an address for mappings.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A cell of the ring: a bounded multi-producer single-consumer queue after D. Vyukov.
///
/// `seq` holds the sequence number less the cell's index, so that zeroed memory is an empty ring.
#[repr(C)]
pub struct Cell {
    seq: AtomicU32,
    what: AtomicU32,
    extra: AtomicU64,
    offset: AtomicU64,
    len: AtomicU64,
}

/// All cells, from the beginning of a cache line on.
#[repr(C, align(64))]
struct Ring([Cell; RING]);

/// State of one descriptor: one cache line, written by hooks and service with relaxed stores. A torn view
/// of two fields costs a needless or a missed event, nothing else.
#[repr(C, align(64))]
pub struct Slot {
    /// `FD_UNKNOWN`, `FD_IGNORED` or `FD_TRACKED`.
    pub state: AtomicU32,
    /// `FLAG_*`.
    pub flags: AtomicU32,
    /// Counts opens and closes of this number.
    pub generation: AtomicU32,
    /// Accesses that need not be told (paper section 4.6: "delays predictions for the next n accesses").
    pub skip: AtomicU32,
    /// `st_dev` of the file.
    pub dev: AtomicU64,
    /// `st_ino` of the file.
    pub ino: AtomicU64,
    /// Reads that begin at or after this byte …
    pub quiet_start: AtomicU64,
    /// … and within this many bytes of it need not be told.
    pub quiet_len: AtomicU64,
    /// The file position as far as the hooks know it, bytes.
    pub pos: AtomicU64,
    /// End of the last read, bytes.
    pub last: AtomicU64,
}

/// Bytes of a directory that is listed in parts: some 3,000 entries in ext4.
pub const LARGE_DIRECTORY: u64 = 128 << 10;
/// [`Proc::visiting`]: a large directory is being listed.
pub const COUNTS: u32 = 2;

/// Devices on which others read, by `st_dev`, and bytes that calls which a program makes ahead may have in flight there; unused entries are zero.
#[repr(C)]
pub struct Rooms([[AtomicU64; 2]; 3]);

impl Rooms {
    /// None.
    pub const fn new() -> Rooms {
        Rooms([const { [const { AtomicU64::new(0) }; 2] }; 3])
    }

    /// These, as far as there is room for them.
    pub fn set(&self, rooms: &[(DeviceId, u64)]) {
        let rooms = rooms
            .iter()
            .copied()
            .chain(core::iter::repeat((DeviceId(0), 0)));
        for ([device, bytes], (of, room)) in self.0.iter().zip(rooms) {
            bytes.store(room, Ordering::Relaxed);
            device.store(of.0, Ordering::Relaxed);
        }
    }

    /// Bytes that these calls may have in flight on a device, if others read there.
    pub fn of(&self, device: DeviceId) -> Option<u64> {
        let mut rooms = self.0.iter();
        let [_, bytes] = rooms.find(|[of, _]| of.load(Ordering::Relaxed) == device.0)?;
        // It may be another device's by now, or none's.
        let bytes = bytes.load(Ordering::Relaxed);
        (bytes > 0).then_some(bytes)
    }
}

impl Default for Rooms {
    fn default() -> Rooms {
        Rooms::new()
    }
}

/// What the two who fetch for a process tell each other of memory that is taken ahead of its reads, bytes: see [`crate::ledger`].
#[repr(C)]
pub struct Lists {
    /// What the service has, or is kept for it. Nobody needs it in what is recorded.
    pub kept: AtomicU64,
    /// What was fetched of lists that the process has declared, and is not read yet.
    pub held: AtomicU64,
}

/// Names in [`Proc::ahead`]: of each of 16 threads that open files ahead a file and its directory, on disks and on a server.
pub const AHEAD: usize = 64;

/// What tells a file's name from others, by the bytes of a path that leads to it: of its last part, and never 0.
pub fn name_tag(path: impl DoubleEndedIterator<Item = u8>) -> u32 {
    let last = path
        .rev()
        .skip_while(|b| *b == b'/')
        .take_while(|b| *b != b'/');
    let hash = last.fold(fnv::NOTHING, fnv::then);
    (hash >> 32) as u32 | 1
}

/// What one process and the service tell each other, in memory that nobody else has.
#[repr(C, align(4096))]
pub struct Proc {
    /// The name that the program was called by, up to 16 bytes, zeros after it; for when the process is over before the
    /// service has looked.
    pub name: [AtomicU64; 2],
    /// What foreaction graphs may have in flight.
    pub rooms: Rooms,
    head: AtomicU32,
    /// So many files that are opened for reading and are no larger than [`SHORT`] need not be followed. Nobody needs it in what is recorded.
    pub unfollowed: AtomicU32,
    /// Files that were not followed because of that.
    pub passed_files: AtomicU64,
    /// 1: since this process opened a file last it has started another, or taken a name from a server: nothing that a server keeps is opened ahead of it.
    pub rests: AtomicU32,
    _pad1: [u32; 11],
    tail: AtomicU32,
    /// The value of [`Proc::release_wanted`] at which something was open last, or had just been closed.
    pub release_found: AtomicU32,
    _pad2: [u32; 10],
    /// What it has declared and the service tell each other of memory.
    pub lists: Lists,
    /// Events that found the ring full.
    pub dropped: AtomicU64,
    /// Hints of the program that never reached the kernel.
    pub calls_saved: AtomicU64,
    /// Reads of descriptors with [`FLAG_RESIDENT`], as far as counted …
    pub resident_reads: AtomicU64,
    /// … and their bytes.
    pub resident_bytes: AtomicU64,
    /// Bytes of the program's own hints that the service has memory for; see [`Proc::takes_hint`].
    pub hint_room: AtomicU64,
    /// 1: the service listens. It says so when it has taken the process in.
    pub served: AtomicU32,
    /// 1: nobody listens any more, hooks pass straight through.
    pub closed: AtomicU32,
    /// 1: hooks look for themselves whether files are cached; see [`FLAG_RESIDENT`].
    pub looks: AtomicU32,
    /// [`UNTOLD`], or 0.
    pub untold: AtomicU32,
    /// 1: a filter of system calls was seen to stand over this process: what the program does not ask the kernel itself may kill it.
    pub confined: AtomicU32,
    /// 1: this program watches files for being opened and closed (inotify, fanotify); the service opens no more.
    pub watches: AtomicU32,
    /// 1: some program of the run does.
    pub watched: AtomicU32,
    /// Counts demands to let go of every descriptor (before umount and leases).
    pub release_wanted: AtomicU32,
    /// The value of `release_wanted` that is being honoured.
    pub release_begun: AtomicU32,
    /// The value of `release_wanted` that has been honoured; a futex word.
    pub release_done: AtomicU32,
    /// System calls that go on for which nothing may be open, each a number of its own; unused entries are zero.
    pub calls: [AtomicU32; CALLS],
    /// Counts these.
    pub called: AtomicU32,
    /// Files that are opened are told of, whether they are cached or not ([`ALL_FILES`], [`WHETHER_COLD`]); 0: only those that are not.
    pub walking: AtomicU32,
    /// Of these, so many need not be told.
    pub rest: AtomicU32,
    /// The same two of directories that are opened to be listed. [`COUNTS`]: they are not told of, and [`asked`](Proc::asked) is counted all the same.
    pub visiting: AtomicU32,
    /// Of these, so many need not be told.
    pub visit_rest: AtomicU32,
    /// How often attributes were asked for by name while [`visiting`](Proc::visiting) isn't 0.
    pub asked: AtomicU32,
    /// 1: it has given a hint; see `hints`.
    pub hinted: AtomicU32,
    /// Files that the service has open, or is about to open, because this process has them …
    pub holds: AtomicU32,
    /// … and of these, those on file systems where it shows that they are open.
    pub shows: AtomicU32,
    /// 1: this process is about to end, or to become another program; nothing more is opened because it has it.
    pub departs: AtomicU32,
    /// Counts how often it was about to start another program, having closed files: what nobody has open any more is let go of.
    pub start_wanted: AtomicU32,
    /// The value of `start_wanted` for which that has been done.
    pub start_done: AtomicU32,
    /// What it notes for the report.
    pub notes: Notes,
    ring: Ring,
    /// Descriptor states, by number.
    pub slots: [Slot; MAX_FDS],
    /// The hints that it gave last.
    pub hints: Hints,
    /// Of which files hints never reached the kernel.
    pub saved: Saved,
    /// What the service has open ahead of this process, or is about to, by their names' [`name_tag`]; 0: none.
    pub ahead: [AtomicU32; AHEAD],
    /// What becomes of its foreaction graphs.
    pub board: Board,
}

/// Size of a process's memory, bytes. Sparse: only touched pages cost memory.
pub const PROC_BYTES: usize = size_of::<Proc>();
/// Bytes of it that a process without foreaction graphs may come to touch.
pub const PROC_BYTES_USED: usize = core::mem::offset_of!(Proc, board);
/// Where in it single words lie by which a process and the service tell each other something, bytes.
pub const PROC_WORDS: core::ops::Range<usize> =
    core::mem::offset_of!(Proc, lists.held)..core::mem::offset_of!(Proc, ring);
/// Of these, words that somebody may wait for (futex), bytes from its beginning.
pub const PROC_FUTEXES: [usize; 1] = [core::mem::offset_of!(Proc, release_done)];

/// What the report counts of a file, of a process, and of all: bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Read, and there before the program asked because we had fetched them ahead.
    Hit,
    /// Read, and asked for by us, but still on their way when the program asked.
    Late,
    /// Read, and known to be there before the program asked, not because of us.
    Cached,
    /// Read, and none of these: foreseen by nobody, or too late.
    Miss,
    /// Requested by us.
    Prefetched,
    /// Of these, read.
    Used,
    /// Of these, never read.
    Wasted,
    /// Of these, gone from the cache before they were read.
    Evicted,
    /// Foreseen and not requested after all: the program was there first, or closed the file.
    Dropped,
}

/// The names of [`Figure`]s in reports, in their order.
pub const FIGURES: [&str; 9] = [
    "hit",
    "late",
    "cached",
    "missed",
    "prefetched",
    "used",
    "wasted",
    "evicted",
    "dropped",
];

/// One count for each [`Figure`], bytes.
#[repr(C)]
#[derive(Default, Debug)]
pub struct Figures([AtomicU64; FIGURES.len()]);

impl Figures {
    /// Adds all of other counts.
    pub fn gather(&self, from: &Figures) {
        for (to, from) in self.0.iter().zip(from.all()) {
            to.fetch_add(from, Ordering::Relaxed);
        }
    }

    /// Adds bytes.
    pub fn add(&self, figure: Figure, bytes: u64) {
        self.0[figure as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes bytes off again, as many as there are.
    pub fn take_off(&self, figure: Figure, bytes: u64) {
        let now = self.get(figure);
        self.0[figure as usize].store(now.saturating_sub(bytes), Ordering::Relaxed);
    }

    /// A count.
    pub fn get(&self, figure: Figure) -> u64 {
        self.0[figure as usize].load(Ordering::Relaxed)
    }

    /// All counts, in the order of [`FIGURES`].
    pub fn all(&self) -> [u64; FIGURES.len()] {
        self.0.each_ref().map(|n| n.load(Ordering::Relaxed))
    }
}

/// Statistics of one file, written by the service only.
#[repr(C, align(64))]
pub struct FileStat {
    /// What was read, and what became of what was fetched.
    pub figures: Figures,
    /// Hints of programs for it that never reached the kernel.
    pub calls_saved: AtomicU64,
    /// `st_dev` and `st_ino`.
    pub file: [AtomicU64; 2],
    /// Bytes of `path` in use; 0: this entry is free.
    pub path_len: AtomicU64,
    /// The file's name when it was first seen, or its tail where it is longer.
    pub path: [AtomicU64; 19],
}

/// What one process did and what was done for it, written by the service as it happens. Its hooks count some of it themselves, in its [`Proc`];
/// that is added when the process is over.
#[repr(C, align(64))]
pub struct Record {
    /// The process; 0: this record and those after it are free. Stored last.
    pub pid: AtomicU32,
    _pad: u32,
    /// Reads told of or skipped by agreement.
    pub reads: AtomicU64,
    /// Bytes of these.
    pub bytes_read: AtomicU64,
    /// Events that were taken.
    pub events: AtomicU64,
    /// Events that found the ring full.
    pub events_dropped: AtomicU64,
    /// Hints that never reached the kernel.
    pub calls_saved: AtomicU64,
    /// What it read, and what became of what was fetched for it.
    pub figures: Figures,
    /// Its command's name, zeros after it.
    pub name: [AtomicU64; 17],
}

/// Reasons why something was lost, as bits of [`Notes::lost`].
pub mod lost {
    /// One bit and the line that the report prints for it.
    pub const LINES: &[(u32, &str)] = &[
        (
            SERVICE_START,
            "service: the helper process could not be started; nothing was prefetched",
        ),
        (
            SERVICE_DIED,
            "service: the helper process was killed; prefetching and its figures ended there, and what was fetched and not read by then is not counted as wasted",
        ),
        (
            SERVICE_SILENT,
            "service: the helper process did not answer in 2 s when the program was over; the figures are incomplete",
        ),
        (
            THREADS,
            "threads: worker threads could not be started; fewer or no requests were issued",
        ),
        (
            URING,
            "io_uring: refused by this system; requests were issued by threads",
        ),
        (
            WATCHED,
            "inotify: a program watches files for being opened or closed; from then on nothing was prefetched, so that it sees no event of ours",
        ),
        (
            NO_FD,
            "descriptors: some files could not be opened through /proc/PID/fd; they were not prefetched",
        ),
        (
            CACHESTAT,
            "cachestat: refused; what is cached is asked of mincore where that is permitted, and else known from our own bookkeeping only",
        ),
        (
            POPULATE,
            "madvise(MADV_POPULATE_READ): refused; arrival of data is estimated",
        ),
        (
            QUEUE_FULL,
            "queue full: events were dropped because the helper did not keep up",
        ),
        (
            PROCS_FULL,
            "processes: more processes at once than can be followed; the rest ran without prefetching",
        ),
        (
            MEMORY,
            "shared memory: a process could not make any (memfd_create, ftruncate or mmap was refused, or RLIMIT_DATA, RLIMIT_AS, RLIMIT_NOFILE or RLIMIT_FSIZE is too low); it ran without prefetching",
        ),
        (
            NO_PAGES,
            "memory: the kernel had none for some requests (ENOMEM); what they asked for was not fetched",
        ),
        (
            RECORDS,
            "processes: more than 256; the figures of the others are in the totals only",
        ),
        (
            PAGEMAP,
            "pagemap: refused; memory-mapped reads were not foreseen",
        ),
        (
            EMFILE,
            "descriptors: the helper ran out of file descriptors (EMFILE); some files were not prefetched",
        ),
        (
            RIGHTS,
            "rights: a process changed its user, its capabilities, its root or its namespaces, or a thread of it its own, or confined itself by Landlock, and no helper with just these rights could be had; it was left alone, and what it started then",
        ),
        (
            NETWORK,
            "network namespace: a program entered another one, in which the helper can't be reached; what it read and started there was left alone",
        ),
        (
            READAHEAD,
            "readahead: posix_fadvise(WILLNEED) refused; nothing could be fetched",
        ),
        (
            ENVIRONMENT,
            "LD_PRELOAD: a program was started with an environment that doesn't name our library (env -i, sudo); it ran without Outrider, and so did what it started",
        ),
        (
            LIBRARY,
            "library: it isn't there or may not be read where a program was started (another root, another user); it ran without Outrider, and so did what it started",
        ),
        (
            UNFIT,
            "library: a program was started that can't load it (another C library, another word size, another processor, or a limit below 128 KiB of stack, 4 MiB of data or 16 MiB of addresses), or is linked statically and may start such a one; it ran without Outrider, and so did what it started",
        ),
        (
            MEMINFO,
            "memory: /proc/meminfo can't be read; how much of it the page cache may take was estimated",
        ),
        (
            LEASES,
            "leases: a process took leases on more files than can be remembered; from then on nothing was opened for it, nor any file that no program had opened",
        ),
        (
            CLAIMS,
            "bounds: a process has more descriptors or mappings than are followed; the rest was not prefetched",
        ),
        (
            RECORDING,
            "recording: it could not be written to its end (is the disk full?); it can't be replayed",
        ),
        (
            PROFILE,
            "profile: it could not be written; what this run needed is not remembered",
        ),
    ];
    /// What processes may say themselves.
    pub const TOLD: u32 = MEMORY | NETWORK | ENVIRONMENT | LIBRARY | UNFIT | RIGHTS;
    /// What programs that declare what they will read may note besides: of their own threads and requests, not of the service's and the runner's.
    pub const NOTED: u32 =
        TOLD | THREADS | URING | CACHESTAT | POPULATE | READAHEAD | EMFILE | NO_PAGES | QUEUE_FULL;
    /// fork of the service failed.
    pub const SERVICE_START: u32 = 1;
    /// The service ended before the program.
    pub const SERVICE_DIED: u32 = 1 << 1;
    /// A thread could not be created.
    pub const THREADS: u32 = 1 << 2;
    /// io_uring_setup failed.
    pub const URING: u32 = 1 << 3;
    /// A program would notice that files are opened.
    pub const WATCHED: u32 = 1 << 4;
    /// No way to a program's file.
    pub const NO_FD: u32 = 1 << 5;
    /// cachestat failed.
    pub const CACHESTAT: u32 = 1 << 6;
    /// MADV_POPULATE_READ failed.
    pub const POPULATE: u32 = 1 << 7;
    /// A ring was full.
    pub const QUEUE_FULL: u32 = 1 << 8;
    /// No free process entry.
    pub const PROCS_FULL: u32 = 1 << 9;
    /// A process could make no memory.
    pub const MEMORY: u32 = 1 << 10;
    /// /proc/PID/pagemap could not be read.
    pub const PAGEMAP: u32 = 1 << 11;
    /// No readahead call is allowed.
    pub const READAHEAD: u32 = 1 << 13;
    /// Out of descriptors in the service.
    pub const EMFILE: u32 = 1 << 12;
    /// The service did not make its figures final.
    pub const SERVICE_SILENT: u32 = 1 << 14;
    /// The kernel had no memory for a request.
    pub const NO_PAGES: u32 = 1 << 15;
    /// More processes ended than [`MAX_RECORDS`](super::MAX_RECORDS).
    pub const RECORDS: u32 = 1 << 16;
    /// A process has other rights than any service.
    pub const RIGHTS: u32 = 1 << 17;
    /// A process is in a network namespace of its own.
    pub const NETWORK: u32 = 1 << 18;
    /// A program was started without our entry in LD_PRELOAD.
    pub const ENVIRONMENT: u32 = 1 << 19;
    /// A program could not have loaded the library.
    pub const LIBRARY: u32 = 1 << 20;
    /// A program was started that another linker loads.
    pub const UNFIT: u32 = 1 << 21;
    /// What memory is available is an estimate.
    pub const MEMINFO: u32 = 1 << 22;
    /// More files must never be opened than can be remembered.
    pub const LEASES: u32 = 1 << 23;
    /// A process has told of more than is followed.
    pub const CLAIMS: u32 = 1 << 24;
    /// The recording could not be written.
    pub const RECORDING: u32 = 1 << 25;
    /// The profile could not be written.
    pub const PROFILE: u32 = 1 << 26;
}

/// How long a program waits at most, µs, until disks have answered what they were asked and nothing of theirs is open any more: before calls that an open
/// file would disturb. Whoever reads from such a disk waits as long without us.
pub const PATIENCE_US: u64 = 5_000_000;
/// The same for a service that does not begin (it may be stopped), and for disks where the call can do without.
pub const IMPATIENCE_US: u64 = 300_000;
/// Calls at one time for which nothing may be open. More wait like these, and files may be opened again before they are over.
pub const CALLS: usize = 8;

/// Reasons of [`Header::left_alone`]: what is read does not stay cached, …
pub const BYPASSED: usize = 0;
/// … or a server does not answer.
pub const UNANSWERED: usize = 1;

/// What is noted for the report, by whoever has something to note; and the settings that matter inside a program.
#[repr(C)]
#[derive(Default)]
pub struct Notes {
    /// `lost::*` bits.
    pub lost: AtomicU32,
    _pad: u32,
    /// Requests issued to the kernel.
    pub requests: AtomicU64,
    /// What declared access came to; `declare::FIGURES` names them.
    pub declared: [AtomicU64; 11],
    /// See [`Notes::configure`].
    pub settings: [AtomicU64; SETTINGS],
}

impl AsRef<Notes> for Notes {
    fn as_ref(&self) -> &Notes {
        self
    }
}

/// Numbers of [`Notes::settings`].
pub const SETTINGS: usize = 7;

/// Who foresaw what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Streams of a descriptor, tiles and skips among them.
    Streams,
    /// Sources of reads of no stream: neighbourhoods.
    Sources,
    /// Random reads that add up to most of a file.
    Dense,
    /// Touches of a mapping.
    Mapped,
    /// That a file is opened: its begin, or all of it.
    Opens,
    /// Hints of the program.
    Hints,
    /// Calls that move bytes within the kernel.
    KernelCopies,
    /// What a program has declared.
    Lists,
    /// The way of a program through a tree.
    Walks,
    /// Files that are opened in no order and add up to most of a directory.
    DenseDirectories,
    /// What an earlier run of the job needed.
    Remembered,
}

impl Origin {
    /// All, in the order of their numbers.
    pub const ALL: [Origin; 11] = [
        Origin::Streams,
        Origin::Sources,
        Origin::Dense,
        Origin::Mapped,
        Origin::Opens,
        Origin::Hints,
        Origin::KernelCopies,
        Origin::Lists,
        Origin::Walks,
        Origin::DenseDirectories,
        Origin::Remembered,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Streams => "streams",
            Origin::Sources => "neighbourhoods",
            Origin::Dense => "dense",
            Origin::Mapped => "mapped",
            Origin::Opens => "opens",
            Origin::Hints => "hints",
            Origin::KernelCopies => "kernel_copies",
            Origin::Lists => "lists",
            Origin::Walks => "walks",
            Origin::DenseDirectories => "dense_directories",
            Origin::Remembered => "remembered",
        }
    }
}

/// What became of bytes that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Read.
    Used,
    /// Of these, those that the program asked for before they were there.
    Late,
    /// Never read.
    Wasted,
    /// Gone from the cache before they were read.
    Evicted,
    /// Not fetched after all: the program was there first, or closed the file.
    Dropped,
}

/// Names of what is kept of each source, in reports: bytes by [`Fate`], and by how much less a program has waited, µs.
pub const SOURCE_FIGURES: [&str; 6] = [
    "used_bytes",
    "late_bytes",
    "wasted_bytes",
    "evicted_bytes",
    "dropped_bytes",
    "saved_us",
];
/// The last of these.
pub const SAVED: usize = 5;

/// What runner and service keep for the report, and how they tell each other of their ends.
#[repr(C, align(4096))]
pub struct Header {
    /// `MODE_*`.
    pub mode: AtomicU32,
    /// Process id of the service, 0 before it is started.
    pub service_pid: AtomicU32,
    /// 1: nobody listens any more.
    pub closed: AtomicU32,
    /// 1: a program watches files for being opened and closed (inotify, fanotify); the service opens no more.
    pub watched: AtomicU32,
    /// 1: the program is over and a report is wanted; 2: the statistics are final.
    pub finish: AtomicU32,
    /// Smallest file that is followed, bytes.
    pub min_size: AtomicU64,
    /// What programs of the run show, and others don't know: it is in their environment.
    pub secret: AtomicU64,
    /// What is noted of all processes.
    pub notes: Notes,
    /// Totals over all files, also of those without an entry of their own.
    pub total: FileStat,
    /// Events that found a ring full.
    pub dropped: AtomicU64,
    /// Hints that never reached the kernel.
    pub calls_saved: AtomicU64,
    /// Bytes of reads that found everything cached and were told nobody.
    pub resident: AtomicU64,
    /// Short files that were not followed, since nothing had come of following others.
    pub passed_files: AtomicU64,
    /// Read events that the service has taken.
    pub events: AtomicU64,
    /// How often the service went to sleep and woke up.
    pub wakeups: AtomicU64,
    /// What reads have waited that found nothing and for which nothing was on its way, as far as is known of the devices, ns.
    pub waited_ns: AtomicU64,
    /// The most bytes that were prefetched and not read yet, in flight included, at one time.
    pub peak_unused: AtomicU64,
    /// What was measured of the devices: `st_dev`, latency in µs, bandwidth in MB/s or zero if that was not; unused entries are zero.
    pub devices: [[AtomicU64; 3]; 8],
    /// Files fetched before programs that go through trees opened them, and how many of these were opened.
    pub walked: [AtomicU64; 2],
    /// Directories that were listed ahead, all or the rest of them, and not cached, and how many of these were opened.
    pub listed: [AtomicU64; 2],
    /// Bytes that were asked for, by who foresaw them (`Origin::ALL`).
    pub foreseen: [AtomicU64; Origin::ALL.len()],
    /// What came of a profile: entries that were looked up, listed or brought, those that are gone or left alone, bytes that were asked for, and bytes that
    /// count as fetched (a page for what was only looked up) and as used.
    pub remembered: [AtomicU64; 5],
    /// What became of these; see [`SOURCE_FIGURES`].
    pub sources: [[AtomicU64; SOURCE_FIGURES.len()]; Origin::ALL.len()],
    /// File systems of which nothing is prefetched any more, by `st_dev`: what is read does not stay cached; a server did not answer. Unused entries are zero.
    pub left_alone: [[AtomicU64; 4]; 2],
    /// How this service came to be, if it is not the first.
    pub heir: Heir,
    /// Owners of the process entries: a process id, or [`OWNER_FREE`].
    pub owners: [AtomicU32; MAX_PROCS],
}

/// A service beside the first, with the rights of a process that has others: what the first one, the runner and it tell each other.
#[repr(C)]
pub struct Heir {
    /// One of `HEIR_*`.
    pub state: AtomicU32,
    /// The process whose rights it is to have.
    pub of: AtomicU32,
    /// Of the numbers that /proc/PID/status shows under NSpid, the one by which it knows processes.
    pub level: AtomicU32,
    /// Its process id; [`HEIR_UNNOTED`] before the runner has noted it, 0 once it has ended.
    pub pid: AtomicU32,
    /// By which it knows the first one.
    pub token: AtomicU64,
    /// The name of its socket.
    name: [AtomicU64; NAME_BYTES.div_ceil(8)],
}

impl Heir {
    /// The name of its socket.
    pub fn name(&self) -> [u8; NAME_BYTES] {
        let mut name = [0; NAME_BYTES];
        let words = self.name.iter();
        let bytes = words.flat_map(|w| w.load(Ordering::Acquire).to_ne_bytes());
        name.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        name
    }

    /// Says under which name it listens.
    pub fn set_name(&self, name: &[u8; NAME_BYTES]) {
        for (word, bytes) in self.name.iter().zip(name.chunks(8)) {
            let mut w = [0; 8];
            w.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            word.store(u64::from_ne_bytes(w), Ordering::Release);
        }
    }
}

/// Nobody's.
pub const HEIR_NONE: u32 = 0;
/// The runner is to start it.
pub const HEIR_WANTED: u32 = 1;
/// It has not got its rights yet.
pub const HEIR_BEGINS: u32 = 2;
/// It listens.
pub const HEIR_LISTENS: u32 = 3;
/// It could not get the rights, or has ended.
pub const HEIR_FAILED: u32 = 4;
/// It is to end, since all that it has served are over; once it has, another may go on in its memory.
pub const HEIR_LEAVES: u32 = 5;

/// No process's number.
pub const HEIR_UNNOTED: u32 = u32::MAX;

/// Services beside the first, each for processes with rights of their own.
pub const HEIRS: usize = 4;

const _: () = assert!(size_of::<Header>() == PAGE as usize);
const _: () = assert!(size_of::<Slot>() == 64);
const _: () = assert!(size_of::<Cell>() == 32);
const _: () = assert!(size_of::<FileStat>() == 256);
const _: () = assert!(size_of::<Record>() == 256);

impl Notes {
    /// Hands the settings that matter inside a program to it.
    pub fn configure(&self, config: &Config) {
        for (to, value) in self.settings.iter().zip(settings(config)) {
            to.store(value, Ordering::Release);
        }
    }

    /// The settings of [`Notes::configure`], where somebody called it; else the defaults.
    pub fn configured(&self) -> Config {
        let mut config = Config::default();
        let [set, workers, chunk, least, most, priority, memory] =
            self.settings.each_ref().map(|s| s.load(Ordering::Acquire));
        if set == 1 {
            let mut given = config.clone();
            given.engine.workers = workers as u32;
            given.engine.chunk = Size(chunk);
            given.engine.in_flight_min = Size(least);
            given.engine.in_flight_max = Size(most);
            given.engine.io_priority = match priority {
                0 => IoPriority::BestEffort7,
                1 => IoPriority::Idle,
                _ => IoPriority::None,
            };
            given.budget.memory = (memory != u64::MAX).then_some(Size(memory));
            // They came through the environment.
            if given.validate().is_ok() {
                config = given;
            }
        }
        config
    }

    /// Notes a lost capability once.
    pub fn lose(&self, bit: u32) {
        if self.lost.load(Ordering::Relaxed) & bit != bit {
            self.lost.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

impl Notes {
    /// Adds what was noted elsewhere, and takes it off there.
    pub fn take_over(&self, from: &Notes) {
        self.lose(from.lost.swap(0, Ordering::Relaxed));
        let requests = from.requests.swap(0, Ordering::Relaxed);
        self.requests.fetch_add(requests, Ordering::Relaxed);
        for (to, from) in self.declared.iter().zip(&from.declared) {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        for (to, from) in self.settings.iter().zip(&from.settings) {
            let value = from.load(Ordering::Relaxed);
            if value != 0 {
                to.store(value, Ordering::Release);
            }
        }
    }
}

/// The settings that matter inside a program, as [`Notes::settings`] has them.
pub fn settings(config: &Config) -> [u64; SETTINGS] {
    let e = &config.engine;
    [
        1,
        u64::from(e.workers),
        e.chunk.0,
        e.in_flight_min.0,
        e.in_flight_max.0,
        match e.io_priority {
            IoPriority::BestEffort7 => 0,
            IoPriority::Idle => 1,
            IoPriority::None => 2,
        },
        config.budget.memory.map_or(u64::MAX, |s| s.0),
    ]
}

impl Header {
    /// Makes a zeroed header that of a run: how programs are helped, from how many bytes on a file is looked after, and what programs show.
    pub fn begin(&self, mode: u32, min_size: u64, secret: u64) {
        self.mode.store(mode, Ordering::Relaxed);
        self.secret.store(secret, Ordering::Relaxed);
        for word in [&self.closed, &self.watched, &self.finish] {
            word.store(0, Ordering::Relaxed);
        }
        self.min_size.store(min_size, Ordering::Release);
    }

    /// Notes a lost capability once.
    pub fn lose(&self, bit: u32) {
        self.notes.lose(bit);
    }

    /// Nothing is prefetched from file system `dev` any more, for a reason of [`Header::left_alone`].
    pub fn leave_alone(&self, reason: usize, dev: u64) {
        for entry in self.left_alone.get(reason).into_iter().flatten() {
            let was = entry.compare_exchange(0, dev, Ordering::AcqRel, Ordering::Acquire);
            if was.is_ok() || was == Err(dev) {
                return;
            }
        }
    }
}

impl Proc {
    /// Bytes that are not for what the program declares, where a service listens.
    pub fn kept_from_lists(&self) -> u64 {
        match self.served.load(Ordering::Relaxed) == 1 && self.closed.load(Ordering::Relaxed) == 0 {
            true => self.lists.kept.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// Whether the service is there, and opens files.
    pub fn is_served(&self) -> bool {
        let [closed, watched] = [&self.closed, &self.watched].map(|w| w.load(Ordering::Relaxed));
        self.served.load(Ordering::Relaxed) != 0 && closed == 0 && watched == 0
    }

    /// Whether the service can carry out a hint of `len` bytes, which are taken off its room. The kernel is to have it otherwise.
    pub fn takes_hint(&self, len: u64) -> bool {
        self.hint_room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| {
                room.checked_sub(len).filter(|_| room > 0)
            })
            .is_ok()
    }

    /// Takes over what a process has kept in memory that only it has, from there: states of descriptors, counts and settings.
    pub fn take_over(&self, from: &Proc) {
        let words = [
            (&self.looks, &from.looks),
            (&self.untold, &from.untold),
            (&self.unfollowed, &from.unfollowed),
            (&self.hinted, &from.hinted),
            (&self.watches, &from.watches),
            (&self.confined, &from.confined),
        ];
        for (to, from) in words {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let counts = [
            (&self.dropped, &from.dropped),
            (&self.calls_saved, &from.calls_saved),
            (&self.resident_reads, &from.resident_reads),
            (&self.resident_bytes, &from.resident_bytes),
            (&self.passed_files, &from.passed_files),
        ];
        for (to, from) in counts {
            to.fetch_add(from.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        for (to, from) in self.name.iter().zip(&from.name) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.notes.take_over(&from.notes);
        for (to, from) in self.slots.iter().zip(&from.slots) {
            to.take_over(from);
        }
    }

    /// Puts an event into the ring; `false` (and one more in `dropped`) where it is full.
    ///
    /// Async-signal-safe and lock-free: a producer that is interrupted between reserving and filling a cell
    /// delays the consumer, never another producer.
    #[inline]
    pub fn push(&self, kind: Kind, fd: u16, extra: u64, offset: u64, len: u64) -> bool {
        let what = || {
            let slot = self.slots.get(usize::from(fd));
            let generation = slot.map_or(0, |s| s.generation.load(Ordering::Relaxed));
            u32::from(fd) | (kind as u32) << 16 | generation << 24
        };
        self.put(what, extra, offset, len)
    }

    /// Puts an event in that was told elsewhere.
    pub fn pass(&self, e: &Event) -> bool {
        let what = u32::from(e.fd) | (e.kind as u32) << 16 | u32::from(e.generation) << 24;
        self.put(|| what, e.extra, e.offset, e.len)
    }

    #[inline(always)]
    fn put(&self, what: impl Fn() -> u32, extra: u64, offset: u64, len: u64) -> bool {
        let mut pos = self.head.load(Ordering::Relaxed);
        // Bounded: memory that someone scribbles over must not hold a program up.
        for _ in 0..64 {
            let index = pos as usize & (RING - 1);
            let cell = &self.ring.0[index];
            let free = pos.wrapping_sub(index as u32);
            let ahead = cell.seq.load(Ordering::Acquire).wrapping_sub(free) as i32;
            if ahead < 0 {
                break;
            }
            if ahead > 0 {
                pos = self.head.load(Ordering::Relaxed);
                continue;
            }
            let next = pos.wrapping_add(1);
            match self
                .head
                .compare_exchange_weak(pos, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    cell.what.store(what(), Ordering::Relaxed);
                    cell.extra.store(extra, Ordering::Relaxed);
                    cell.offset.store(offset, Ordering::Relaxed);
                    cell.len.store(len, Ordering::Relaxed);
                    // Fails where the service has given this cell up meanwhile: the event is lost.
                    return cell
                        .seq
                        .compare_exchange(
                            free,
                            free.wrapping_add(1),
                            Ordering::Release,
                            Ordering::Relaxed,
                        )
                        .is_ok();
                }
                Err(now) => pos = now,
            }
        }
        let dropped = self.dropped.load(Ordering::Relaxed);
        self.dropped
            .store(dropped.wrapping_add(1), Ordering::Relaxed);
        false
    }

    /// Takes the oldest event. Only the service calls this, from one thread. `skip` passes over a cell that
    /// was reserved and never filled (a thread that died or jumped away in the middle).
    pub fn pop(&self, skip: bool) -> Option<Event> {
        // Bounded: memory that someone scribbles over must not hold the service up.
        for _ in 0..RING {
            let pos = self.tail.load(Ordering::Relaxed);
            let index = pos as usize & (RING - 1);
            let cell = &self.ring.0[index];
            let free = pos.wrapping_sub(index as u32);
            let again = free.wrapping_add(RING as u32);
            if cell.seq.load(Ordering::Acquire) != free.wrapping_add(1) {
                let given_up = skip
                    && self.head.load(Ordering::Relaxed) != pos
                    && cell
                        .seq
                        .compare_exchange(free, again, Ordering::AcqRel, Ordering::Acquire)
                        .is_ok();
                if !given_up {
                    return None;
                }
                self.tail.store(pos.wrapping_add(1), Ordering::Relaxed);
                continue;
            }
            let what = cell.what.load(Ordering::Relaxed);
            let event = Kind::from_u8((what >> 16) as u8).map(|kind| Event {
                kind,
                fd: what as u16,
                generation: (what >> 24) as u8,
                extra: cell.extra.load(Ordering::Relaxed),
                offset: cell.offset.load(Ordering::Relaxed),
                len: cell.len.load(Ordering::Relaxed),
            });
            cell.seq.store(again, Ordering::Release);
            self.tail.store(pos.wrapping_add(1), Ordering::Relaxed);
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// Whether [`Proc::pop`] would take something now: the oldest cell is filled.
    pub fn is_ready(&self) -> bool {
        let pos = self.tail.load(Ordering::Relaxed);
        let index = pos as usize & (RING - 1);
        let filled = pos.wrapping_sub(index as u32).wrapping_add(1);
        self.ring.0[index].seq.load(Ordering::Acquire) == filled
    }

    /// The places in the order of all events up to which they are taken, and up to which they are told.
    pub fn places(&self) -> (u32, u32) {
        (
            self.tail.load(Ordering::Relaxed),
            self.head.load(Ordering::Relaxed),
        )
    }

    /// Events reserved or waiting.
    pub fn waiting(&self) -> u32 {
        let (taken, told) = self.places();
        told.wrapping_sub(taken)
    }
}

impl Slot {
    /// Becomes what another slot is, if that is anything.
    fn take_over(&self, from: &Slot) {
        let state = from.state.load(Ordering::Acquire);
        if state == FD_UNKNOWN {
            return;
        }
        let words = [
            (&self.flags, &from.flags),
            (&self.generation, &from.generation),
            (&self.skip, &from.skip),
        ];
        for (to, from) in words {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let words = [
            (&self.dev, &from.dev),
            (&self.ino, &from.ino),
            (&self.pos, &from.pos),
            (&self.last, &from.last),
        ];
        for (to, from) in words {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.state.store(state, Ordering::Release);
    }

    /// A read of `offset..offset+len` is about to be made through a descriptor that is told of: whether this one need not be.
    #[inline(always)]
    pub fn passes(&self, offset: u64, len: u64) -> bool {
        self.last.store(offset.wrapping_add(len), Ordering::Relaxed);
        let quiet = self.quiet_start.load(Ordering::Relaxed);
        if offset.wrapping_sub(quiet) < self.quiet_len.load(Ordering::Relaxed) {
            return true;
        }
        let skip = self.skip.load(Ordering::Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Ordering::Relaxed);
        }
        skip > 0
    }

    /// One is told, with these flags: some of those after it need not be.
    #[inline(always)]
    pub fn tells(&self, flags: u32) {
        let rarely = flags >> RARELY_SHIFT;
        if rarely > 0 {
            self.skip.store(rarely, Ordering::Relaxed);
        }
    }

    /// Back to [`FD_UNKNOWN`], with a new generation.
    #[inline]
    pub fn forget(&self) {
        self.state.store(FD_UNKNOWN, Ordering::Relaxed);
        self.generation.store(
            self.generation.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Relaxed,
        );
        self.hush(0, 0, 0);
    }

    /// The service is told of this descriptor from now on; what was only presumed to be cached it has to look at.
    pub fn is_told(&self) {
        let presumed = FLAG_UNTOLD | FLAG_BLIND;
        let resident = match self.flags.load(Ordering::Relaxed) & presumed {
            both if both == presumed => FLAG_RESIDENT,
            _ => 0,
        };
        self.flags
            .fetch_and(!(FLAG_UNTOLD | resident), Ordering::Relaxed);
    }

    /// Sets how many reads are not told after each that is.
    #[inline]
    pub fn listen_rarely(&self, rarely: u16) {
        let old = self.flags.load(Ordering::Relaxed) >> RARELY_SHIFT;
        if old != u32::from(rarely) {
            // Only the service changes these bits.
            self.flags
                .fetch_xor((old ^ u32::from(rarely)) << RARELY_SHIFT, Ordering::Relaxed);
        }
    }

    /// Sets what need not be told: reads within `start..start+len` (bytes), and the next `skip` reads.
    #[inline]
    pub fn hush(&self, start: u64, len: u64, skip: u32) {
        self.quiet(start, len);
        self.skip.store(skip, Ordering::Relaxed);
    }

    /// Sets what need not be told: reads within `start..start+len` (bytes).
    #[inline]
    pub fn quiet(&self, start: u64, len: u64) {
        self.quiet_len.store(0, Ordering::Relaxed);
        self.quiet_start.store(start, Ordering::Relaxed);
        self.quiet_len.store(len, Ordering::Relaxed);
    }

    /// The next `skip` reads need not be told, unless it is some already: the hook counts them off meanwhile. Whether it is so.
    pub fn skips(&self, skip: u32) -> bool {
        let (order, none) = (Ordering::Relaxed, 0);
        let skips = self.skip.compare_exchange(none, skip, order, order);
        skips.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    /// What `deputy.c`, `forger.c` and `stranger.c` in `tests/programs` take for granted.
    #[test]
    fn layout() {
        let proc = [
            offset_of!(Proc, head),
            offset_of!(Proc, served),
            offset_of!(Proc, closed),
            offset_of!(Proc, asked),
            offset_of!(Proc, notes),
            offset_of!(Proc, ring),
            offset_of!(Proc, slots),
        ];
        assert_eq!(proc, [64, 232, 236, 324, 352, 512, 512 + 65536]);
        assert_eq!(PROC_BYTES, 872_448);
        let slot = [
            offset_of!(Slot, state),
            offset_of!(Slot, flags),
            offset_of!(Slot, generation),
            offset_of!(Slot, dev),
            offset_of!(Slot, ino),
        ];
        assert_eq!(slot, [0, 4, 8, 16, 24]);
    }
}
