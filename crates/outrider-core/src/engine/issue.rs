//! The ways to ask the kernel for pages.

use outrider_sys::units::ByteRange;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use outrider_sys::cache;
use outrider_sys::kernel_cache::{BLIND, KernelCache};
use outrider_sys::raw;

use super::{Kind, Request, Settings};
use crate::shm::{Notes, lost};

/// Why a request was not issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// ENOMEM.
    OutOfMemory,
    /// The engine itself does not work here; another may.
    Engine,
    /// The kernel or a filter has no such call.
    NotAllowed,
    /// Anything else; the file can't be prefetched.
    Refused,
}

/// Hands requests to the kernel; they may arrive later.
pub trait Issue {
    /// Issues all of `group`, and counts in `handed` what the kernel has been given; returns the indices of those that failed.
    fn issue(&mut self, group: &[Request], handed: &Handed) -> Vec<(usize, Failure)>;

    /// Whether what was issued ever arrives.
    fn arrives(&self) -> bool {
        true
    }

    /// Whether the calling thread gives requests to devices itself, so that the kernel counts for it what they read.
    fn is_counted(&self) -> bool {
        true
    }
}

/// Requests that a device has been given so far, counted around each call that may give it some: nothing is uncertain but what is in such a call.
#[derive(Debug, Default)]
pub struct Handed {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Handed {
    /// So many are being given.
    pub fn begin(&self, requests: u64) {
        self.begun.fetch_add(requests, Ordering::AcqRel);
    }

    /// So many, of those that were begun, have been given.
    pub fn end(&self, requests: u64) {
        self.done.fetch_add(requests, Ordering::AcqRel);
    }

    /// So many have been given.
    pub fn add(&self, requests: u64) {
        self.begin(requests);
        self.end(requests);
    }

    /// So many were begun, and not given: the device had nothing to do for them.
    pub fn take_back(&self, requests: u64) {
        self.begun.fetch_sub(requests, Ordering::AcqRel);
    }

    /// So many were not given after all.
    pub fn remove(&self, requests: u64) {
        self.take_back(requests);
        self.done.fetch_sub(requests, Ordering::AcqRel);
    }

    /// Requests that may have been given.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Requests that have been given.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }
}

/// Issues nothing: for measuring what everything else costs.
pub struct Noop;

impl Issue for Noop {
    fn issue(&mut self, group: &[Request], handed: &Handed) -> Vec<(usize, Failure)> {
        handed.add(group.len() as u64);
        Vec::new()
    }

    fn arrives(&self) -> bool {
        false
    }
}

/// Asks the kernel for a range of a file by one call, on the calling thread and beside every queue: for who looks at what that does, and whoever issues. The
/// kernel leaves out silently what exceeds its limit.
pub fn ask(file: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    cache::will_need_once(file, range)
}

/// Reads a range of a file into the page cache on the calling thread, and returns when it is there.
pub fn bring(file: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    cache::populate(file, range)
}

/// posix_fadvise(WILLNEED), which reads like readahead(2) and leaves the file's own readahead state alone. Requests of
/// 128 KiB and less are never clipped.
pub struct Readahead;

impl Issue for Readahead {
    fn issue(&mut self, group: &[Request], handed: &Handed) -> Vec<(usize, Failure)> {
        let mut failed = Vec::new();
        for (i, r) in group.iter().enumerate() {
            handed.begin(1);
            let before = raw::blocks_read();
            let asked = ask(r.handle.fd(), r.range.clone());
            match raw::blocks_read() == before && asked.is_ok() {
                // All of it was cached or on its way.
                true => handed.take_back(1),
                false => handed.end(1),
            }
            if let Err(e) = asked {
                failed.push((i, failure(e.raw_os_error().unwrap_or(0))));
            }
        }
        failed
    }
}

fn failure(errno: i32) -> Failure {
    match errno {
        libc::ENOMEM => Failure::OutOfMemory,
        libc::ENOSYS | libc::EPERM | libc::EOPNOTSUPP => Failure::NotAllowed,
        _ => Failure::Refused,
    }
}

/// READAHEAD_INFO of the kernel module: requests that follow each other go out in one call, which passes over what is cached and is not clipped.
/// Its figures are not looked at, so it is asked for none: then it fetches whatever can be read.
/// What the module won't do is done as without it.
pub struct Module {
    module: KernelCache,
    otherwise: Readahead,
}

impl Module {
    /// Opens the device for one worker, in whose table of descriptors it stays.
    pub fn new() -> io::Result<Module> {
        Ok(Module {
            module: KernelCache::open()?,
            otherwise: Readahead,
        })
    }
}

impl Issue for Module {
    fn issue(&mut self, group: &[Request], handed: &Handed) -> Vec<(usize, Failure)> {
        let mut failed = Vec::new();
        let mut i = 0;
        while i < group.len() {
            let mut end = i + 1;
            while end < group.len()
                && Arc::ptr_eq(&group[end].handle, &group[i].handle)
                && group[end].range.start == group[end - 1].range.end
            {
                end += 1;
            }
            let range = group[i].range.start..group[end - 1].range.end;
            let requests = (end - i) as u64;
            handed.begin(requests);
            if self
                .module
                .readahead_info(group[i].handle.fd(), range, BLIND)
                .is_err()
            {
                handed.take_back(requests);
                let others = self.otherwise.issue(&group[i..end], handed);
                failed.extend(others.into_iter().map(|(k, why)| (i + k, why)));
            } else {
                handed.end(requests);
            }
            i = end;
        }
        failed
    }
}

/// IORING_OP_FADVISE in batches. The kernel runs it on threads of its own.
pub struct Uring {
    ring: IoUring,
}

impl Uring {
    /// A ring of its own for one worker.
    pub fn new() -> io::Result<Uring> {
        let ring = IoUring::builder().setup_clamp().build(64)?;
        // Two kernel threads for buffered work are as many as issue in parallel with profit.
        let _ = ring.submitter().register_iowq_max_workers(&mut [2, 2]);
        Ok(Uring { ring })
    }
}

impl Issue for Uring {
    fn issue(&mut self, group: &[Request], handed: &Handed) -> Vec<(usize, Failure)> {
        let mut failed = Vec::new();
        handed.begin(group.len() as u64);
        let mut open = vec![true; group.len()];
        let mut queued = 0;
        for (i, r) in group.iter().enumerate() {
            let len = (r.range.end - r.range.start) as libc::off_t;
            let entry = opcode::Fadvise::new(
                types::Fd(r.handle.fd().as_raw_fd()),
                len,
                libc::POSIX_FADV_WILLNEED,
            )
            .offset(r.range.start)
            .build()
            .user_data(i as u64);
            // SAFETY: the operation refers to no memory; the descriptor stays open until its completion was taken below.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            queued += usize::from(pushed.is_ok());
        }
        let mut done = 0;
        while done < queued {
            if self
                .ring
                .submit_and_wait(queued - done)
                .is_err_and(|e| e.raw_os_error() != Some(libc::EINTR))
            {
                break;
            }
            for c in self.ring.completion() {
                done += 1;
                let i = c.user_data() as usize;
                if let Some(o) = open.get_mut(i) {
                    *o = false;
                }
                if c.result() < 0 {
                    failed.push((i, failure(-c.result())));
                }
            }
        }
        handed.end(group.len() as u64);
        failed.extend(
            (0..group.len())
                .filter(|i| open[*i])
                .map(|i| (i, Failure::Engine)),
        );
        failed
    }

    fn is_counted(&self) -> bool {
        false
    }
}

/// Delays and fails requests on their way to another engine.
struct Monitor {
    /// Where the requests go.
    inner: Box<dyn Issue>,
    /// Waited before each group.
    delay: Duration,
    /// Of so many requests the last one fails; 0 for none.
    fail_every: u64,
    /// Requests seen.
    requests: u64,
}

impl Issue for Monitor {
    fn issue(&mut self, group: &[Request], handed: &Handed) -> Vec<(usize, Failure)> {
        std::thread::sleep(self.delay);
        let (mut failed, mut at) = (Vec::new(), 0);
        while at < group.len() {
            let good = match self.fail_every {
                0 => group.len() - at,
                every => ((every - 1 - self.requests % every) as usize).min(group.len() - at),
            };
            let part = &group[at..at + good];
            if !part.is_empty() {
                let theirs = self.inner.issue(part, handed);
                failed.extend(theirs.into_iter().map(|(i, f)| (at + i, f)));
            }
            at += good;
            self.requests += good as u64;
            if at < group.len() {
                handed.add(1);
                failed.push((at, Failure::Refused));
                at += 1;
                self.requests += 1;
            }
        }
        failed
    }

    fn arrives(&self) -> bool {
        self.inner.arrives()
    }

    fn is_counted(&self) -> bool {
        self.inner.is_counted()
    }
}

/// The engine of one worker, behind a [`Monitor`] if that is wanted.
pub fn engine(settings: &Settings, notes: &Notes) -> Box<dyn Issue> {
    let inner = plain(settings.kind, notes);
    let (delay, fail_every) = settings.monitor;
    if (delay, fail_every) == (Duration::ZERO, 0) {
        return inner;
    }
    Box::new(Monitor {
        inner,
        delay,
        fail_every,
        requests: 0,
    })
}

/// Falls back to threads where io_uring is refused.
fn plain(kind: Kind, notes: &Notes) -> Box<dyn Issue> {
    match kind {
        Kind::Noop => Box::new(Noop),
        Kind::Uring => match Uring::new() {
            Ok(u) => Box::new(u),
            Err(_) => {
                notes.lose(lost::URING);
                Box::new(Readahead)
            }
        },
        Kind::Auto => match Module::new() {
            Ok(module) => Box::new(module),
            Err(_) => Box::new(Readahead),
        },
        Kind::Threads | Kind::Readahead => Box::new(Readahead),
    }
}

/// Lets everyone else's reads go first, where the I/O scheduler honours that.
pub fn become_background(io_priority: i32) {
    if io_priority != 0 {
        const IOPRIO_WHO_PROCESS: usize = 1;
        // SAFETY: integers only; 0 is the calling thread.
        unsafe {
            raw::syscall6(
                libc::SYS_ioprio_set,
                IOPRIO_WHO_PROCESS,
                0,
                io_priority as usize,
                0,
                0,
                0,
            );
        }
    }
}
