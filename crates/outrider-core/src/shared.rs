//! The service's and the runner's hold on the shared memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use outrider_sys::raw;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::board::Board;
use crate::shm::{
    self, FILES_AT, FileStat, Header, MAX_FILES, MAX_PROCS, MAX_RECORDS, PROCS_AT, Proc,
    RECORDS_AT, Record, SHM_BYTES,
};

/// The whole memory object, mapped.
pub struct Shared {
    fd: OwnedFd,
    base: *mut u8,
}

// SAFETY: the mapping lives as long as the value, and everything in it is atomics.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Makes the memory object (memfd_create, sparse) and maps it.
    pub fn create(mode: u32, min_size: u64) -> io::Result<Shared> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("outrider", flags)?;
        // Not a standard stream's number, should one of these be closed.
        let fd = rustix::io::fcntl_dupfd_cloexec(&fd, 3)?;
        set_length(&fd)?;
        // Whoever may open it must not be able to take pages from under the processes that have it mapped.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals)?;
        let strict = std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|v| v == b"2\n");
        if strict {
            // All but the entries of processes, which these reserve themselves.
            for part in [0..PROCS_AT, RECORDS_AT..SHM_BYTES] {
                if !raw::fallocate(fd.as_raw_fd(), part.start, part.len()) {
                    return Err(io::ErrorKind::OutOfMemory.into());
                }
            }
        }
        // SAFETY: a new shared mapping of the whole object.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                SHM_BYTES,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
                &fd,
                0,
            )?
        };
        let shared = Shared {
            fd,
            base: base.cast(),
        };
        shared.header().begin(mode, min_size, strict);
        Ok(shared)
    }

    /// Takes over an object that has been made and mapped as [`Shared::create`] does, its header written.
    ///
    /// # Safety
    /// `fd` is the object and `base` its mapping; both are nobody else's.
    pub unsafe fn adopt(fd: i32, base: *mut u8) -> Shared {
        // SAFETY: as promised.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Shared { fd, base }
    }

    /// The descriptor, which programs open through /proc/PID/fd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The first page.
    pub fn header(&self) -> &Header {
        // SAFETY: the object begins with a Header; zeroed memory is a valid one.
        unsafe { &*self.base.cast::<Header>() }
    }

    /// Process entry `i`, below [`MAX_PROCS`].
    pub fn proc(&self, i: usize) -> &Proc {
        let i = i.min(MAX_PROCS - 1);
        // SAFETY: within the object, page-aligned, valid when zero.
        unsafe {
            &*self
                .base
                .add(PROCS_AT + i * size_of::<Proc>())
                .cast::<Proc>()
        }
    }

    /// Statistics entry `i`, below [`shm::MAX_FILES`].
    pub fn stat(&self, i: usize) -> &FileStat {
        let i = i.min(MAX_FILES - 1);
        // SAFETY: within the object, aligned, valid when zero.
        unsafe {
            &*self
                .base
                .add(FILES_AT + i * size_of::<FileStat>())
                .cast::<FileStat>()
        }
    }

    /// Zeroes a process entry and gives its memory back.
    pub fn clear(&self, i: usize) {
        use rustix::fs::FallocateFlags;
        let (at, len) = (
            (PROCS_AT + i.min(MAX_PROCS - 1) * size_of::<Proc>()) as u64,
            size_of::<Proc>() as u64,
        );
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if rustix::fs::fallocate(&self.fd, flags, at, len).is_err() {
            // SAFETY: the entry has no owner; its memory is plain atomics, for which zero is valid.
            unsafe { std::ptr::write_bytes(self.base.add(at as usize), 0, len as usize) };
        }
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
        // SAFETY: within the object, aligned, valid when zero.
        (i < MAX_RECORDS).then(|| unsafe {
            let at = RECORDS_AT + i * size_of::<Record>();
            &*self.base.add(at).cast::<Record>()
        })
    }

    /// All records in use.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        let all = (0..MAX_RECORDS).map_while(|i| self.record(i));
        all.take_while(|r| r.pid.load(Acquire) != 0)
    }

    /// Begins the record of a process that entry `i` belongs to, as number `who` of all.
    pub fn begin_record(&self, who: usize, i: usize, pid: u32, command: &str) {
        let Some(record) = self.record(who) else {
            self.header().lose(shm::lost::RECORDS);
            return;
        };
        write_text(&record.name, command.as_bytes());
        record.entry.store(i as u32 + 1, Relaxed);
        record.pid.store(pid, Release);
    }

    /// Adds what entry `i` has counted itself to its record, if it has one, and to the totals.
    pub fn settle(&self, i: usize, record: Option<&Record>) {
        let proc = self.proc(i);
        let [reads, bytes, dropped, saved] = [
            &proc.hot_reads,
            &proc.hot_bytes,
            &proc.dropped,
            &proc.calls_saved,
        ]
        .map(|n| n.swap(0, Relaxed));
        let header = self.header();
        if dropped > 0 {
            header.lose(shm::lost::QUEUE_FULL);
        }
        header.dropped.fetch_add(dropped, Relaxed);
        header.calls_saved.fetch_add(saved, Relaxed);
        header.hot.fetch_add(bytes, Relaxed);
        if let Some(record) = record {
            record.reads.fetch_add(reads, Relaxed);
            record.bytes_read.fetch_add(bytes, Relaxed);
            record.events_dropped.fetch_add(dropped, Relaxed);
            record.calls_saved.fetch_add(saved, Relaxed);
            record.entry.store(0, Relaxed);
        }
        if proc.saved.any() {
            let stats = (0..MAX_FILES).map(|i| self.stat(i));
            for stat in stats.take_while(|s| s.path_len.load(Acquire) != 0) {
                let [dev, ino] = stat.file.each_ref().map(|n| n.load(Relaxed));
                let saved = proc.saved.take(dev, ino);
                stat.calls_saved.fetch_add(saved, Relaxed);
            }
        }
    }

    /// Does what the service had to do at the end and could not, because there is none: no process had anything to tell, or it was killed.
    pub fn settle_all(&self) {
        for (i, owner) in self.header().owners.iter().enumerate() {
            // First, because a look at a free entry takes a page of memory.
            if owner.load(Acquire) == shm::OWNER_FREE {
                continue;
            }
            let pid = self.proc(i).pid.load(Acquire);
            if pid == 0 {
                continue;
            }
            let its = |r: &&Record| r.entry.load(Relaxed) == i as u32 + 1;
            if !self.records().any(|r| its(&r)) {
                self.begin_record(self.records().count(), i, pid, &self.told_name(i));
            }
            self.settle(i, self.records().find(its));
        }
    }

    /// What programs tell of their foreaction graphs.
    pub fn board(&self) -> &Board {
        // SAFETY: within the object, page-aligned, valid when zero.
        unsafe { &*self.base.add(shm::BOARD_AT).cast::<Board>() }
    }

    /// The program's name that process entry `i` was given when it attached.
    pub fn told_name(&self, i: usize) -> String {
        text(&self.proc(i).name)
    }

    /// Path under which programs of this user can open the object while process `pid` holds it.
    pub fn path_in(&self, pid: u32) -> String {
        format!("/proc/{pid}/fd/{}", self.fd.as_raw_fd())
    }
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

/// Gives the object its length. A limit on the size of files (RLIMIT_FSIZE) counts here too, and would end the process with
/// SIGXFSZ: the soft limit is lifted for the moment, and the signal ignored.
fn set_length(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: plain calls on local structures; the disposition and the limit are put back.
    unsafe {
        let old = libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit);
        let lifted = libc::rlimit {
            rlim_cur: limit.rlim_max,
            rlim_max: limit.rlim_max,
        };
        libc::setrlimit(libc::RLIMIT_FSIZE, &lifted);
        let result = rustix::fs::ftruncate(fd, SHM_BYTES as u64);
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
        libc::signal(libc::SIGXFSZ, old);
        Ok(result?)
    }
}

impl AsRef<Header> for Shared {
    fn as_ref(&self) -> &Header {
        self.header()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: our own mapping; no reference outlives self.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), SHM_BYTES) };
    }
}
