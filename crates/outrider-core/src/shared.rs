//! What runner and service have between them, and the service's hold on the memory of processes.
//!
//! The report's figures and names lie in memory that was there before the service was forked and that no program ever has. A process's
//! memory comes over a socket, to which the runner is bound and the service listens: the process makes it, and the kernel says whose it is.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use outrider_sys::handover::{self, Arrival, Handed};
use outrider_sys::standing::Watch;
use outrider_sys::units::PAGE;
use outrider_sys::{life, mapped, raw};

use crate::asked::Stamp;
use crate::board::{self, Board};
use crate::lock;
use crate::shm::{
    self, FileStat, HEIRS, Header, MAX_FILES, MAX_PROCS, MAX_RECORDS, Notes, PROC_BYTES, Proc,
    Record,
};

/// Where the statistics of files begin, bytes.
const FILES_AT: usize = size_of::<Header>();
/// Where the records of processes begin, bytes.
const RECORDS_AT: usize = FILES_AT + MAX_FILES * size_of::<FileStat>();
/// Where the board of foreaction graphs begins, bytes.
const BOARD_AT: usize = RECORDS_AT + MAX_RECORDS * size_of::<Record>();
/// Bytes of what one service keeps.
const BOOK_BYTES: usize = BOARD_AT + size_of::<Board>();
/// Bytes of what all services keep. Sparse: only touched pages cost memory.
pub const BOOKS_BYTES: usize = (1 + HEIRS) * BOOK_BYTES;

const _: () = assert!(BOARD_AT.is_multiple_of(PAGE as usize));
const _: () = assert!(BOOK_BYTES.is_multiple_of(PAGE as usize));

/// What one service and the runner have between them, and the processes that the service has taken in.
pub struct Shared {
    /// Programs send their memory here.
    socket: OwnedFd,
    base: *mut u8,
    /// What lies there is given back with this.
    own: bool,
    /// By entry: the process's memory, or some that nobody has.
    procs: Vec<AtomicPtr<Proc>>,
    /// By entry: where it lies once the entry was used.
    places: Vec<AtomicPtr<Proc>>,
    /// By entry: the rights of the process, where it may be asked for them.
    standings: Vec<Mutex<Option<Watch>>>,
    /// By entry: it was found to have other rights than this process.
    strays: Vec<AtomicBool>,
    /// By entry: what the service has open because the process has it.
    holds: Vec<Mutex<Holds>>,
    /// Files that the service has open, or is about to open, because programs have them.
    pub(crate) held: AtomicU32,
    /// When one of these was closed last, µs of the monotonic clock.
    closed_us: AtomicU64,
    /// Counts the service's looks at what programs tell.
    epoch: AtomicU64,
}

/// Files that the service has open because a process has them.
#[derive(Default)]
struct Holds {
    /// Counts the processes that have had the entry.
    age: u64,
    all: u32,
    /// Of these, those on file systems where it shows.
    shown: u32,
}

impl Holds {
    /// Tells the process, which may be waiting for it.
    fn tell(&self, proc: &Proc) {
        proc.shows.store(self.shown, SeqCst);
        proc.holds.store(self.all, SeqCst);
    }
}

// SAFETY: mappings live as long as it, and everything in them is atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Makes the socket, and the memory for what is kept.
    pub fn create(mode: u32, min_size: u64) -> io::Result<Shared> {
        let socket = handover::listen()?;
        // Not a standard stream's number, should one of these be closed.
        let socket = rustix::io::fcntl_dupfd_cloexec(&socket, 3)?;
        let base = mapped::map_shared(BOOKS_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut shared = Shared::over(socket, base);
        shared.own = true;
        let secret = handover::random().ok_or(io::ErrorKind::Unsupported)?;
        shared.header().begin(mode, min_size, secret);
        Ok(shared)
    }

    /// Takes over a socket and memory that have been made as [`Shared::create`] does, the header written.
    ///
    /// # Safety
    /// `fd` is the socket and `base` the memory; both are nobody else's.
    pub unsafe fn adopt(fd: i32, base: *mut u8) -> Shared {
        // SAFETY: as promised.
        Shared::over(unsafe { OwnedFd::from_raw_fd(fd) }, base)
    }

    fn over(socket: OwnedFd, base: *mut u8) -> Shared {
        Shared {
            socket,
            base,
            own: false,
            procs: (0..MAX_PROCS).map(|_| AtomicPtr::default()).collect(),
            places: (0..MAX_PROCS).map(|_| AtomicPtr::default()).collect(),
            standings: (0..MAX_PROCS).map(|_| Mutex::default()).collect(),
            strays: (0..MAX_PROCS).map(|_| AtomicBool::new(false)).collect(),
            holds: (0..MAX_PROCS).map(|_| Mutex::default()).collect(),
            held: AtomicU32::new(0),
            closed_us: AtomicU64::new(0),
            epoch: AtomicU64::new(1),
        }
    }

    /// The same books, for whoever takes in other memory for the same processes: for a service that is recorded.
    pub fn beside(&self) -> io::Result<Shared> {
        let socket = self.socket.try_clone()?;
        Ok(Shared::over(socket, self.base))
    }

    /// What service number `i` after the first keeps, `i` below [`HEIRS`]. The socket is another one.
    pub fn heir(&self, i: usize, socket: OwnedFd) -> Shared {
        Shared::over(socket, self.book(1 + i.min(HEIRS - 1)))
    }

    /// How service number `i` after the first came to be, `i` below [`HEIRS`].
    pub fn heir_header(&self, i: usize) -> &Header {
        // SAFETY: the memory begins with a Header; zeroed memory is a valid one.
        unsafe { &*self.book(1 + i.min(HEIRS - 1)).cast::<Header>() }
    }

    fn book(&self, i: usize) -> *mut u8 {
        // SAFETY: within what `create` or `early` has mapped, which stays mapped where the first service is.
        unsafe { self.base.add(i * BOOK_BYTES) }
    }

    /// In the process of service number `i` after the first: what others keep goes from its memory. Nothing may refer to it.
    pub fn keep_only_heir(&self, i: usize) {
        for other in (0..=HEIRS).filter(|n| *n != 1 + i) {
            mapped::unmap(self.book(other), BOOK_BYTES);
        }
    }

    /// The socket to which programs send their memory.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Wakes whoever listens.
    pub fn knock(&self) {
        handover::knock(self.socket.as_raw_fd());
    }

    /// The first page.
    pub fn header(&self) -> &Header {
        // SAFETY: the memory begins with a Header; zeroed memory is a valid one.
        unsafe { &*self.base.cast::<Header>() }
    }

    /// Takes the memory that process `pid` has sent into entry `i`, below [`MAX_PROCS`]. `false`: it is none that can be trusted
    /// to stay as it is, or can't be mapped.
    pub fn take_in(&self, i: usize, pid: u32, memory: &OwnedFd) -> bool {
        if !handover::is_sealed(memory.as_fd(), PROC_BYTES) {
            return false;
        }
        let (Some(proc), Some(place)) = (self.procs.get(i), self.places.get(i)) else {
            return false;
        };
        let Some(at) = mapped::map_file(memory.as_raw_fd(), PROC_BYTES, place.load(Relaxed).cast())
        else {
            return false;
        };
        place.store(at.cast(), Relaxed);
        proc.store(at.cast(), Release);
        if let (Some(standing), Some(stray)) = (self.standings.get(i), self.strays.get(i)) {
            *lock(standing) = Watch::of(pid).ok();
            stray.store(false, Relaxed);
        }
        self.header().owners[i].store(pid, Release);
        true
    }

    /// Whether the process in entry `i`, whose memory was taken in just now, is the one that has handed it over, and still the program that did, or one with no more rights:
    /// the number may be another process's by now, and what has become a program of another user's is not asked for by the one before.
    pub fn is_still(&self, i: usize, handed: &Handed) -> bool {
        let standing = self.standings.get(i).map(lock);
        let Some(watch) = standing.as_ref().and_then(|s| s.as_ref()) else {
            return false;
        };
        let [user, group] = handed.effective;
        watch.is_users([handed.from.uid, user], [handed.from.gid, group])
            && !watch.is_privileged()
            && match &handed.life {
                Some(life) => !life::over(life),
                None => is_its(watch, handed),
            }
    }

    /// Whether the process in entry `i` has exactly the rights of this process: user, groups, capabilities, root and namespaces, and no filter of
    /// system calls. Asks the kernel, if it has not in the last millisecond.
    pub fn stands(&self, i: usize) -> bool {
        let Some(standing) = self.standings.get(i) else {
            return false;
        };
        let stands = lock(standing).as_mut().is_some_and(Watch::is_like_this);
        if !stands && let Some(stray) = self.strays.get(i) {
            stray.store(true, Relaxed);
        }
        stands
    }

    /// A file is about to be opened because the process in entry `i` has it; `shows`: others notice. The entry's age, for
    /// [`Shared::let_go`]; `None`: the process is about to end, and nothing may be opened.
    fn hold(&self, i: usize, shows: bool) -> Option<u64> {
        let mut holds = lock(self.holds.get(i)?);
        holds.all += 1;
        holds.shown += u32::from(shows);
        let proc = self.proc(i);
        holds.tell(proc);
        // It has said so before it looked, or finds the file among those that are held.
        if proc.departs.load(SeqCst) != 0 {
            holds.all -= 1;
            holds.shown -= u32::from(shows);
            holds.tell(proc);
            return None;
        }
        Some(holds.age)
    }

    /// Whether a file is open that a program has, or was until so lately, µs, that a server of files may not have looked since.
    pub(crate) fn may_show(&self, lately_us: u64) -> bool {
        let closed = self.closed_us.load(Relaxed);
        self.held.load(SeqCst) != 0
            || closed != 0 && raw::monotonic_us().saturating_sub(closed) < lately_us
    }

    /// Files that are open because the process in entry `i` has, or had, them, but for those of which others notice it.
    pub(crate) fn held_unseen(&self, i: usize) -> u32 {
        self.holds.get(i).map_or(0, |holds| {
            let holds = lock(holds);
            holds.all.saturating_sub(holds.shown)
        })
    }

    /// It is closed again.
    fn let_go(&self, i: usize, age: u64, shows: bool) {
        let Some(holds) = self.holds.get(i) else {
            return;
        };
        let mut holds = lock(holds);
        if holds.age == age {
            holds.all = holds.all.saturating_sub(1);
            holds.shown = holds.shown.saturating_sub(shows.into());
            holds.tell(self.proc(i));
        }
    }

    /// Tells a process that nobody listens to it, in memory that was not taken in.
    pub fn refuse(memory: &OwnedFd) {
        if handover::is_sealed(memory.as_fd(), PROC_BYTES)
            && let Some(at) = mapped::map_file(memory.as_raw_fd(), PROC_BYTES, std::ptr::null_mut())
        {
            // SAFETY: mapped just now; zero is a valid Proc.
            unsafe { &*at.cast::<Proc>() }.closed.store(1, Release);
            mapped::unmap(at, PROC_BYTES);
        }
    }

    /// Whether a filter of system calls stands over the process in entry `i`.
    pub fn is_filtered(&self, i: usize) -> bool {
        let standing = self.standings.get(i);
        standing.is_some_and(|s| lock(s).as_ref().is_some_and(Watch::is_filtered))
    }

    /// Whether the process in entry `i` is ending, so that it has other rights than before.
    pub fn is_ending(&self, i: usize) -> bool {
        let standing = self.standings.get(i);
        standing.is_some_and(|s| lock(s).as_ref().is_some_and(Watch::is_ending))
    }

    /// Whether the process in entry `i` has got rights by the file that it executes.
    pub fn is_privileged(&self, i: usize) -> bool {
        let standing = self.standings.get(i);
        standing.is_none_or(|s| lock(s).as_ref().is_none_or(Watch::is_privileged))
    }

    /// Whether the process in entry `i` was found to have other rights than this one.
    pub fn has_strayed(&self, i: usize) -> bool {
        self.strays.get(i).is_some_and(|s| s.load(Relaxed))
    }

    /// Process entry `i`, below [`MAX_PROCS`].
    pub fn proc(&self, i: usize) -> &Proc {
        let proc = self
            .procs
            .get(i)
            .map_or(std::ptr::null_mut(), |p| p.load(Acquire));
        match std::ptr::NonNull::new(proc) {
            // SAFETY: a mapping of a whole Proc; other memory may come to lie there, but none is taken away.
            Some(proc) => unsafe { proc.as_ref() },
            None => nobody(),
        }
    }

    /// Statistics entry `i`, below [`shm::MAX_FILES`].
    pub fn stat(&self, i: usize) -> &FileStat {
        let i = i.min(MAX_FILES - 1);
        // SAFETY: within the memory, aligned, valid when zero.
        unsafe {
            &*self
                .base
                .add(FILES_AT + i * size_of::<FileStat>())
                .cast::<FileStat>()
        }
    }

    /// The service looks at what programs have told: the epoch that begins with that.
    pub fn begin_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, SeqCst) + 1
    }

    /// The time, for whoever reads a file that the process in this entry reads.
    pub fn stamp(&self, proc: u32) -> Stamp {
        let epoch = self.epoch.load(SeqCst);
        let (_, place) = self.proc(proc as usize).places();
        Stamp { epoch, proc, place }
    }

    /// Frees a process entry: the memory is the process's alone again.
    pub fn clear(&self, i: usize) {
        let Some(place) = self.places.get(i) else {
            return;
        };
        *lock(&self.standings[i]) = None;
        // What is still open for it counts for nobody who comes after it.
        let mut holds = lock(&self.holds[i]);
        *holds = Holds {
            age: holds.age + 1,
            ..Holds::default()
        };
        drop(holds);
        let at = place.load(Relaxed);
        // Another thread may still look at it.
        if !at.is_null() && !mapped::map_over(at.cast(), PROC_BYTES) {
            self.procs[i].store(std::ptr::null_mut(), Release);
            place.store(std::ptr::null_mut(), Relaxed);
        }
        self.header().owners[i].store(shm::OWNER_FREE, Release);
    }

    /// Names a statistics entry and its file, by `st_dev` and `st_ino`; of a long name the tail is kept.
    pub fn name(&self, i: usize, path: &[u8], file: [u64; 2]) {
        let stat = self.stat(i);
        let room = size_of_val(&stat.path);
        let tail = &path[path.len().saturating_sub(room)..];
        write_text(&stat.path, tail);
        for (to, n) in stat.file.iter().zip(file) {
            to.store(n, Relaxed);
        }
        stat.path_len.store(tail.len().max(1) as u64, Release);
    }

    /// The name of a statistics entry, `None` if it is free.
    pub fn path(&self, i: usize) -> Option<Vec<u8>> {
        let stat = self.stat(i);
        let len = stat.path_len.load(Acquire) as usize;
        if len == 0 {
            return None;
        }
        let mut bytes: Vec<u8> = stat
            .path
            .iter()
            .flat_map(|w| w.load(Relaxed).to_ne_bytes())
            .collect();
        bytes.truncate(len);
        Some(bytes)
    }

    /// The record of process number `i` of all that there were; `None` from [`MAX_RECORDS`] on.
    pub fn record(&self, i: usize) -> Option<&Record> {
        // SAFETY: within the memory, aligned, valid when zero.
        (i < MAX_RECORDS).then(|| unsafe {
            let at = RECORDS_AT + i * size_of::<Record>();
            &*self.base.add(at).cast::<Record>()
        })
    }

    /// Entries of the statistics that have a name.
    pub fn named(&self) -> usize {
        let named = (0..MAX_FILES).take_while(|i| self.path(*i).is_some());
        named.count()
    }

    /// All records in use.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        let all = (0..MAX_RECORDS).map_while(|i| self.record(i));
        all.take_while(|r| r.pid.load(Acquire) != 0)
    }

    /// Begins the record of process `pid` as number `who` of all.
    pub fn begin_record(&self, who: usize, pid: u32, command: &str) {
        let Some(record) = self.record(who) else {
            self.header().lose(shm::lost::RECORDS);
            return;
        };
        write_text(&record.name, command.as_bytes());
        record.pid.store(pid, Release);
    }

    /// Adds what the process in entry `i` has counted itself since this was done last to its record, if it has one, and to the totals.
    pub fn settle(&self, i: usize, record: Option<&Record>) {
        let proc = self.proc(i);
        let [reads, bytes, passed, dropped, saved] = [
            &proc.resident_reads,
            &proc.resident_bytes,
            &proc.passed_files,
            &proc.dropped,
            &proc.calls_saved,
        ]
        .map(|n| n.swap(0, Relaxed));
        let header = self.header();
        if dropped > 0 {
            header.lose(shm::lost::QUEUE_FULL);
        }
        // What it notes it may have made up.
        proc.notes.lost.fetch_and(shm::lost::NOTED, Relaxed);
        header.notes.take_over(&proc.notes);
        header.dropped.fetch_add(dropped, Relaxed);
        header.calls_saved.fetch_add(saved, Relaxed);
        header.resident.fetch_add(bytes, Relaxed);
        header.passed_files.fetch_add(passed, Relaxed);
        if let Some(record) = record {
            record.reads.fetch_add(reads, Relaxed);
            record.bytes_read.fetch_add(bytes, Relaxed);
            record.events_dropped.fetch_add(dropped, Relaxed);
            record.calls_saved.fetch_add(saved, Relaxed);
        }
        if proc.saved.any() {
            let stats = (0..MAX_FILES).map(|i| self.stat(i));
            for stat in stats.take_while(|s| s.path_len.load(Acquire) != 0) {
                let [dev, ino] = stat.file.each_ref().map(|n| n.load(Relaxed));
                let saved = proc.saved.take(dev, ino);
                stat.calls_saved.fetch_add(saved, Relaxed);
            }
        }
        board::gather(self.board(), &proc.board);
    }

    /// Whether a process of this run says so: everybody may know the socket's name, and only these know the secret.
    pub fn is_of_the_run(&self, message: &handover::Message) -> bool {
        message.version == shm::VERSION
            && message.token == self.header().secret.load(Relaxed)
            && message.on_behalf == 0
    }

    /// Notes what a process has lost, if it is one of this run.
    pub fn hear_complaint(&self, lost: u32, token: u64) {
        if token == self.header().secret.load(Relaxed) {
            self.header().lose(lost & shm::lost::TOLD);
        }
    }

    /// Takes what processes have handed over and no service will take: what they have counted counts.
    pub fn settle_waiting(&self) {
        let mut who = self.records().count();
        let mut waiting = handover::Waiting::default();
        loop {
            match waiting.receive(self.socket()) {
                Arrival::Memory(handed) if self.is_of_the_run(&handed.message) => {
                    if self.take_in(0, handed.from.pid, &handed.memory) {
                        self.begin_record(who, handed.from.pid, &self.told_name(0));
                        self.settle(0, self.record(who));
                        self.proc(0).closed.store(1, Release);
                        self.clear(0);
                        who += 1;
                    }
                }
                Arrival::Complaint(lost, token) => self.hear_complaint(lost, token),
                Arrival::Nobody | Arrival::Deaf => break,
                Arrival::Memory(_) | Arrival::Knock => {}
            }
        }
    }

    /// Adds what another service has kept.
    pub fn gather(&self, heir: &Shared) {
        let (to, from) = (self.header(), heir.header());
        to.notes.take_over(&from.notes);
        to.total.figures.gather(&from.total.figures);
        let counts = [
            (&to.total.calls_saved, &from.total.calls_saved),
            (&to.dropped, &from.dropped),
            (&to.calls_saved, &from.calls_saved),
            (&to.resident, &from.resident),
            (&to.passed_files, &from.passed_files),
            (&to.events, &from.events),
            (&to.wakeups, &from.wakeups),
            (&to.waited_ns, &from.waited_ns),
        ];
        let pairs = to.walked.iter().zip(&from.walked);
        let pairs = pairs.chain(to.listed.iter().zip(&from.listed));
        let pairs = pairs.chain(to.foreseen.iter().zip(&from.foreseen));
        let sources = to.sources.iter().flatten();
        let pairs = pairs.chain(sources.zip(from.sources.iter().flatten()));
        for (to, from) in counts.into_iter().chain(pairs) {
            to.fetch_add(from.swap(0, Relaxed), Relaxed);
        }
        let peak = from.peak_unused.swap(0, Relaxed);
        to.peak_unused.fetch_add(peak, Relaxed);
        let known = self.records().count();
        for (who, record) in (known..).zip(heir.records()) {
            self.begin_record(who, record.pid.load(Relaxed), &text(&record.name));
            if let Some(to) = self.record(who) {
                to.figures.gather(&record.figures);
                let counts = [
                    (&to.reads, &record.reads),
                    (&to.bytes_read, &record.bytes_read),
                    (&to.events, &record.events),
                    (&to.events_dropped, &record.events_dropped),
                    (&to.calls_saved, &record.calls_saved),
                ];
                for (to, from) in counts {
                    to.fetch_add(from.load(Relaxed), Relaxed);
                }
            }
        }
        let named = self.named();
        let mut free = (named < MAX_FILES).then_some(named);
        for i in 0..heir.named() {
            let from = heir.stat(i);
            let file = from.file.each_ref().map(|n| n.load(Relaxed));
            let same = |k: &usize| self.stat(*k).file.each_ref().map(|n| n.load(Relaxed)) == file;
            let Some(k) = (0..self.named()).find(same).or(free) else {
                break;
            };
            if Some(k) == free {
                self.name(k, &heir.path(i).unwrap_or_default(), file);
                free = (k + 1 < MAX_FILES).then_some(k + 1);
            }
            self.stat(k).figures.gather(&from.figures);
            let saved = from.calls_saved.load(Relaxed);
            self.stat(k).calls_saved.fetch_add(saved, Relaxed);
        }
        board::gather(self.board(), heir.board());
    }

    /// What programs tell of their foreaction graphs.
    pub fn board(&self) -> &Board {
        // SAFETY: within the memory, page-aligned, valid when zero.
        unsafe { &*self.base.add(BOARD_AT).cast::<Board>() }
    }

    /// The program's name that process entry `i` was given when it attached.
    pub fn told_name(&self, i: usize) -> String {
        text(&self.proc(i).name)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let taken_in = self.places.iter().map(|place| place.load(Relaxed));
        for at in taken_in.filter(|at| !at.is_null()) {
            mapped::unmap(at.cast(), PROC_BYTES);
        }
        if self.own {
            mapped::unmap(self.base, BOOKS_BYTES);
        }
    }
}

/// Whether a process is the one that has handed memory over, and still the program that did. Nobody else has it mapped, and whoever has become another program has not.
/// To ask takes up to 0.2 ms.
pub(crate) fn is_its(watch: &Watch, handed: &Handed) -> bool {
    let [dev, ino] = handed.sent;
    !handed.life.as_ref().is_some_and(life::over) && watch.has_mapped(dev, ino)
}

/// An entry that no process has. What is written there nobody reads.
fn nobody() -> &'static Proc {
    static NOBODY: std::sync::LazyLock<usize> = std::sync::LazyLock::new(|| {
        let at = mapped::map(PROC_BYTES).map(|at| at as usize);
        at.unwrap_or_else(|| std::alloc::handle_alloc_error(std::alloc::Layout::new::<Proc>()))
    });
    // SAFETY: fresh memory from the kernel, for good; zero is a valid Proc.
    unsafe { &*(*NOBODY as *const Proc) }
}

/// Writes bytes into words that were zero; what there is no room for is left out.
fn write_text(words: &[AtomicU64], bytes: &[u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks(8)) {
        let mut w = [0u8; 8];
        w[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(w), Relaxed);
    }
}

/// What words hold, up to the first zero byte.
pub fn text(words: &[AtomicU64]) -> String {
    let bytes = words.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes());
    let bytes: Vec<u8> = bytes.take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Counts that the service has a file open, or is about to, for as long as it lives.
pub(crate) struct Note {
    shared: Arc<Shared>,
    /// Entry and age of the entry of the process that has the file.
    proc: Option<(usize, u64)>,
    shows: bool,
    /// Where it stands in [`Proc::ahead`], and by which tag.
    ahead: Option<(usize, u32)>,
}

impl Note {
    /// A file that the process in this entry has is about to be opened; `shows`: others notice. `None`: the process is about to end.
    pub(crate) fn new(shared: Arc<Shared>, proc: Option<usize>, shows: bool) -> Option<Note> {
        let proc = match proc {
            Some(i) => Some((i, shared.hold(i, shows)?)),
            None => None,
        };
        shared.held.fetch_add(1, SeqCst);
        Some(Note {
            shared,
            proc,
            shows,
            ahead: None,
        })
    }

    /// The same of what is opened ahead of the process in an entry: before a name goes it sees by this one whether that has to be let go of. `None` also where too many are open.
    pub(crate) fn ahead(shared: Arc<Shared>, i: usize, name: &[u8]) -> Option<Note> {
        let mut note = Note::new(shared, Some(i), false)?;
        let tag = shm::name_tag(name.iter().copied());
        let names = &note.shared.proc(i).ahead;
        let claims = |word: &AtomicU32| word.compare_exchange(0, tag, SeqCst, Relaxed).is_ok();
        note.ahead = Some((names.iter().position(claims)?, tag));
        Some(note)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Some((i, age)) = self.proc {
            if let Some((at, tag)) = self.ahead
                && let Some(word) = self.shared.proc(i).ahead.get(at)
            {
                let _ = word.compare_exchange(tag, 0, SeqCst, Relaxed);
            }
            self.shared.let_go(i, age, self.shows);
        }
        let now = raw::monotonic_us();
        self.shared.closed_us.store(now, Relaxed);
        self.shared.held.fetch_sub(1, SeqCst);
    }
}

impl AsRef<Notes> for Shared {
    fn as_ref(&self) -> &Notes {
        &self.header().notes
    }
}
