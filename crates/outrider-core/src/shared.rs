//! The service's and the runner's hold on the shared memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use outrider_sys::raw;
use rustix::fs::{MemfdFlags, SealFlags};

use crate::board::Board;
use crate::service::ProcessRecord;
use crate::shm::{
    self, FILES_AT, FileStat, Header, MAX_PROCS, MAX_RECORDS, PROCS_AT, Proc, RECORD_BYTES,
    RECORDS_AT, SHM_BYTES,
};

/// Where a process's name is in its record, behind its length: after six numbers and the figures.
const NAME_AT: usize = 8 * (6 + shm::FIGURES.len()) + 1;

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
        let i = i.min(shm::MAX_FILES - 1);
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

    /// Names a statistics entry; of a long name the tail is kept.
    pub fn name(&self, i: usize, path: &[u8]) {
        let stat = self.stat(i);
        let room = stat.path.len() * 8;
        let tail = &path[path.len().saturating_sub(room)..];
        for (word, bytes) in stat.path.iter().zip(tail.chunks(8)) {
            let mut w = [0u8; 8];
            w[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(w), Relaxed);
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

    fn record(&self, i: usize) -> *mut u8 {
        // SAFETY: within the object.
        unsafe { self.base.add(RECORDS_AT + i * RECORD_BYTES) }
    }

    /// Leaves the processes' records for the runner. Called once, before `finish` is set.
    pub fn write_processes(&self, records: &[ProcessRecord]) {
        if records.len() > MAX_RECORDS {
            self.header().lose(shm::lost::RECORDS);
        }
        for (i, r) in records.iter().take(MAX_RECORDS).enumerate() {
            let mut bytes = [0u8; RECORD_BYTES];
            let numbers = [
                u64::from(r.pid),
                r.reads,
                r.bytes_read,
                r.events,
                r.events_dropped,
                r.calls_saved,
            ];
            for (to, n) in bytes
                .chunks_mut(8)
                .zip(numbers.into_iter().chain(r.figures))
            {
                to.copy_from_slice(&n.to_ne_bytes());
            }
            let name = r.command.as_bytes();
            let n = name.len().min(RECORD_BYTES - NAME_AT);
            bytes[NAME_AT - 1] = n as u8;
            bytes[NAME_AT..NAME_AT + n].copy_from_slice(&name[..n]);
            // SAFETY: within the object; the runner reads only after `finish` is 2.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.record(i), RECORD_BYTES) };
        }
    }

    /// What programs tell of their foreaction graphs.
    pub fn board(&self) -> &Board {
        // SAFETY: within the object, page-aligned, valid when zero.
        unsafe { &*self.base.add(shm::BOARD_AT).cast::<Board>() }
    }

    /// The processes' records, once `finish` is 2.
    pub fn processes(&self) -> Vec<ProcessRecord> {
        let mut out = Vec::new();
        for i in 0..MAX_RECORDS {
            let mut bytes = [0u8; RECORD_BYTES];
            // SAFETY: within the object; the service has finished writing.
            unsafe {
                std::ptr::copy_nonoverlapping(self.record(i), bytes.as_mut_ptr(), RECORD_BYTES)
            };
            let number = |k: usize| {
                let mut w = [0u8; 8];
                w.copy_from_slice(&bytes[k * 8..k * 8 + 8]);
                u64::from_ne_bytes(w)
            };
            if number(0) == 0 {
                break;
            }
            let n = usize::from(bytes[NAME_AT - 1]).min(RECORD_BYTES - NAME_AT);
            out.push(ProcessRecord {
                pid: number(0) as u32,
                who: i,
                command: String::from_utf8_lossy(&bytes[NAME_AT..NAME_AT + n]).into_owned(),
                reads: number(1),
                bytes_read: number(2),
                events: number(3),
                events_dropped: number(4),
                calls_saved: number(5),
                figures: std::array::from_fn(|k| number(6 + k)),
            });
        }
        out
    }

    /// The program's name that process entry `i` was given when it attached.
    pub fn told_name(&self, i: usize) -> String {
        let name = self.proc(i).name.each_ref();
        let bytes = name.map(|w| w.load(Relaxed).to_ne_bytes()).concat();
        let told = bytes.split(|b| *b == 0).next().unwrap_or_default();
        String::from_utf8_lossy(told).into_owned()
    }

    /// Leaves the records of a run in which no process had anything to tell, so that there was no service to do it.
    pub fn write_unserved(&self) {
        let mut records = Vec::new();
        for (i, owner) in self.header().owners.iter().enumerate() {
            // First, because a look at a free entry takes a page of memory.
            if owner.load(Acquire) == shm::OWNER_FREE {
                continue;
            }
            let proc = self.proc(i);
            let pid = proc.pid.load(Acquire);
            if pid == 0 {
                continue;
            }
            let bytes_read = proc.hot_bytes.load(Relaxed);
            self.header().hot.fetch_add(bytes_read, Relaxed);
            records.push(ProcessRecord {
                pid,
                command: self.told_name(i),
                reads: proc.hot_reads.load(Relaxed),
                bytes_read,
                ..ProcessRecord::default()
            });
        }
        self.write_processes(&records);
    }

    /// Path under which programs of this user can open the object while process `pid` holds it.
    pub fn path_in(&self, pid: u32) -> String {
        format!("/proc/{pid}/fd/{}", self.fd.as_raw_fd())
    }
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
