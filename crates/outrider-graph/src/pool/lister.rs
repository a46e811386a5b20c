//! The threads that list directories, and look up what is in them.
//!
//! They share a descriptor table that is not the program's, so that what they open has no number there. The first of them makes it and starts the
//! others. They list what runs ask for, and of a walk what comes next (see `frontier`), so that all are at work from the first directory on.

use std::ffi::c_void;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outrider_core::tree::listing::{Kind, Listing};
use outrider_sys::raw::{self, syscall6};
use outrider_sys::{threads, valgrind};

use super::{IDLE, Job, LOOK, Pool, Queue, finish, state, thread, timed};
use crate::frontier::{Found, Taken};
use crate::memory;
use crate::walk::{Entries, Which};

/// Most of them: each waits for one block at a time, and a disk on a network takes as many requests at once.
const LISTERS: usize = 32;
/// Bytes of directory entries that are read at once.
const LISTING: usize = 64 << 10;
/// Where so many entries lie between the program and a directory, and there is a processor beside the program's, all of its entries are looked up: who
/// lists is ahead of the disk there, and has time. du looks up what nobody has in 5 µs an entry, and in half of that what is known.
const FAR: usize = 1024;

/// Makes the table, and lists.
pub(super) extern "C" fn first(pool: *mut c_void) -> *mut c_void {
    // SAFETY: this thread gets a descriptor table of its own, with nothing in it; integers only.
    let r = unsafe {
        const CLOSE_RANGE_UNSHARE: usize = 2;
        let to = u32::MAX as usize;
        syscall6(libc::SYS_close_range, 0, to, CLOSE_RANGE_UNSHARE, 0, 0, 0)
    };
    thread(pool, c"outrider-list", |pool| pool.lister(r >= 0))
}

/// Started by one of them.
extern "C" fn further(pool: *mut c_void) -> *mut c_void {
    thread(pool, c"outrider-list", |pool| pool.lister(true))
}

impl Pool {
    fn lister(&'static self, alone: bool) {
        let me = match valgrind::is_below() {
            // It says so of each call that it doesn't know.
            true => -(libc::ENOSYS as isize),
            // SAFETY: integers only.
            false => unsafe {
                syscall6(libc::SYS_pidfd_open, raw::getpid() as usize, 0, 0, 0, 0, 0)
            },
        };
        let Some(room) = memory::map(LISTING) else {
            self.refuse_lists();
            return;
        };
        // To have it page by page would mean to wait for the program where it maps memory, which looks like waiting for a device.
        memory::advise(room, LISTING, libc::MADV_POPULATE_WRITE);
        let mut lister = Lister {
            process: (alone && me >= 0).then_some(me as usize),
            // SAFETY: new memory, of this thread alone.
            room: unsafe { core::slice::from_raw_parts_mut(room, LISTING) },
            found: Found::new(),
            beside: processors() > 1,
        };
        self.list_with(&mut lister);
        memory::unmap(room, LISTING);
        if alone && me >= 0 {
            raw::close(me as i32);
        }
    }

    /// A thread that was to list can't: what waits counts as made, since it is only a warming.
    pub(super) fn refuse_lists(&self) {
        let mut q = self.lock();
        q.lister_ends();
        while q.listers == 0
            && let Some(job) = q.lists.pop_front()
        {
            // SAFETY: as in `call`.
            finish(unsafe { &*job.0 }, || -libc::EAGAIN as isize);
        }
    }

    /// Lists what is asked for, and what comes next.
    fn list_with(&'static self, lister: &mut Lister<'_>) {
        let mut idle = Duration::ZERO;
        let mut q = self.lock();
        loop {
            if let Some(fd) = q.frontier.orphan() {
                drop(q);
                raw::close(fd);
                q = self.lock();
                continue;
            }
            if q.stopped {
                q.lister_ends();
                return;
            }
            let usable = lister.process.is_some();
            let job = q.lists.pop_front();
            let next = match job {
                None if usable => q.frontier.take(),
                _ => None,
            };
            if job.is_some() || next.is_some() {
                idle = Duration::ZERO;
                self.call_another(q, usable);
                if let Some(job) = job {
                    // SAFETY: queued jobs are valid (see `submit`), until DONE is stored.
                    self.serve(lister, unsafe { &*job.0 });
                }
                if let Some(taken) = next {
                    let (own, nanos) = timed(|| lister.go_on(&taken));
                    let mut q = self.lock();
                    q.frontier.listed(&taken, own, &lister.found, nanos);
                }
                q = self.lock();
                continue;
            }
            q.idle_listers += 1;
            let (guard, waited) = self
                .listing
                .wait_timeout(q, LOOK)
                .unwrap_or_else(|e| e.into_inner());
            q = guard;
            q.idle_listers -= 1;
            if !waited.timed_out() || !q.lists.is_empty() {
                continue;
            }
            if q.users == 0 {
                q.frontier.clear();
            }
            idle += LOOK;
            if idle >= IDLE || threads::are_left_alone() {
                q.lister_ends();
                return;
            }
        }
    }

    /// Another thread is woken or started where there is more to do.
    fn call_another(&'static self, mut q: MutexGuard<'_, Queue>, usable: bool) {
        if q.lists.is_empty() && !q.frontier.offers() {
            return;
        }
        if q.idle_listers > 0 {
            self.listing.notify_one();
        } else if usable && q.listers < LISTERS {
            q.listers += 1;
            drop(q);
            if !self.spawn(further) {
                self.lock().lister_ends();
            }
        }
    }

    /// Lists what a run asks for.
    fn serve(&self, lister: &mut Lister<'_>, job: &Job) {
        job.state.store(state::RUNNING, Ordering::Relaxed);
        let [_, _, _, walk, ..] = job.args.get();
        let mut own = Err(-libc::EPERM as isize);
        finish(job, || {
            own = lister.list(job.args.get());
            own.map_or_else(|r| r, |_| 0)
        });
        match own {
            Ok(fd) if walk != 0 => self.lock().frontier.begun(walk, fd, &lister.found),
            Ok(fd) => drop(raw::close(fd)),
            Err(_) => {}
        }
    }
}

impl Queue {
    fn lister_ends(&mut self) {
        self.listers -= 1;
        if self.listers == 0 {
            // Their table goes with the last.
            self.frontier.abandon();
        }
    }
}

/// What one of them has.
struct Lister<'r> {
    /// A descriptor for the process; `None`: nothing can be opened here.
    process: Option<usize>,
    /// For directory entries.
    room: &'r mut [u8],
    found: Found,
    /// The program may run at the same time.
    beside: bool,
}

/// Processors that the calling thread may use.
fn processors() -> i32 {
    // SAFETY: plain data, which the kernel fills in.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        libc::CPU_COUNT(&set)
    }
}

impl Lister<'_> {
    /// Lists the directory that [`Job::LIST`] says, through a description of its own: the program's position does not move. Says as what it
    /// was opened, or negated errno.
    fn list(&mut self, [fd, path, look_up, walk, ..]: [usize; 6]) -> Result<i32, isize> {
        self.found.clear();
        let process = self.process.ok_or(-libc::EPERM as isize)?;
        // SAFETY: integers, and strings that outlive the calls; the numbers are those of this thread's table.
        let own = unsafe {
            let mut from = fd as isize;
            if fd as i32 != libc::AT_FDCWD {
                from = syscall6(libc::SYS_pidfd_getfd, process, fd, 0, 0, 0, 0);
                if from < 0 {
                    return Err(from);
                }
            }
            let (name, flags) = match path {
                0 => (c".".as_ptr() as usize, 0),
                path => (path, libc::O_NOFOLLOW),
            };
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | flags;
            let own = syscall6(
                libc::SYS_openat,
                from as usize,
                name,
                flags as usize,
                0,
                0,
                0,
            );
            if fd as i32 != libc::AT_FDCWD {
                raw::close(from as i32);
            }
            own
        };
        if own < 0 {
            return Err(own);
        }
        self.read(
            own as i32,
            0,
            (look_up == 1).then_some(Which::Blocks),
            walk != 0,
        );
        Ok(own as i32)
    }

    /// Lists what comes next in a walk. As what it was opened.
    fn go_on(&mut self, taken: &Taken) -> Option<i32> {
        self.found.clear();
        let which = if self.beside && taken.ahead >= FAR {
            Which::All
        } else {
            Which::Blocks
        };
        if taken.name[0] == 0 {
            raw::lseek(taken.fd, taken.from, libc::SEEK_SET);
            self.read(taken.fd, taken.from, Some(which), true);
            return None;
        }
        /// struct open_how.
        #[repr(C)]
        struct How {
            flags: u64,
            mode: u64,
            resolve: u64,
        }
        // No other file system is entered, and nothing mounted.
        const RESOLVE_NO_XDEV: u64 = 1;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let how = How {
            flags: flags as u64,
            mode: 0,
            resolve: RESOLVE_NO_XDEV,
        };
        // SAFETY: a string that ends with a zero byte, and a struct of the size given.
        let own = unsafe {
            syscall6(
                libc::SYS_openat2,
                taken.fd as usize,
                taken.name.as_ptr() as usize,
                &raw const how as usize,
                size_of::<How>(),
                0,
                0,
            )
        };
        let own = i32::try_from(own).ok().filter(|fd| *fd >= 0)?;
        self.read(own, 0, Some(which), true);
        Some(own)
    }

    /// Reads directory `fd` from where it stands, which is `from`. `look_up`: these of its entries are; `walk`: subdirectories are noted, and
    /// where there is room for no more of them it ends.
    fn read(&mut self, fd: i32, from: i64, look_up: Option<Which>, walk: bool) {
        let mut entries = look_up.map(|which| Entries::of(fd, which));
        let mut at = from;
        let mut listing = Listing::new(fd, self.room);
        while let Ok(Some(record)) = listing.next_record() {
            let is_below = walk && record.kind == Kind::Directory;
            if is_below && !self.found.add(record.ino, record.name) {
                self.found.rest = Some(at);
                return;
            }
            self.found.entries += 1;
            if let Some(entries) = &mut entries {
                entries.look_up(record.ino, record.name);
            }
            at = record.next;
        }
    }
}
