//! Noticing at once that a program's file or process is no more, whether hooks see it or not.
//!
//! A file that the service has open is watched with inotify(7) for being closed: the event comes when the last descriptor or mapping of an open file goes, by close(2),
//! exit, exec, a signal or munmap(2), in programs without hooks, too. A thread that does nothing else lets go of the file then: the service's own may be busy.
//! Processes are watched by their pidfds.
//!
//! Where there is no inotify (a user may have 128 instances) it is noticed when the hooks tell, or the process is over.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::epoll;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::engine::Handle;
use crate::fetch::Source;
use crate::shared::Shared;
use crate::shm::lost;

/// Bytes of the thread's stack.
const STACK: usize = 64 << 10;
/// The inotify instance among what is waited for; others are entries of processes.
const FILES: u64 = u64::MAX;

/// Wakes the service's own thread from others of its process; cheap to clone. Where the kernel has none for us it looks by itself.
#[derive(Clone)]
pub(super) struct Wake(Option<Arc<OwnedFd>>);

impl Wake {
    pub(super) fn new() -> Wake {
        use rustix::event::{EventfdFlags, eventfd};
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Wake(made.ok().map(Arc::new))
    }

    pub(super) fn wake(&self) {
        if let Some(fd) = &self.0 {
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// Readable when somebody has woken it.
    pub(super) fn fd(&self) -> Option<&OwnedFd> {
        self.0.as_deref()
    }

    /// It is awake.
    pub(super) fn settle(&self) {
        if let Some(fd) = &self.0 {
            let _ = rustix::io::read(fd, &mut [0u8; 8]);
        }
    }
}

/// A file that is watched, and how many descriptors and mappings of programs lead to it.
struct Watched {
    handle: Weak<Handle>,
    openers: Arc<AtomicU32>,
    /// Through which it was opened, if not by its name.
    source: Option<Arc<Source>>,
    /// The kernel has one number for all watches of a file; this is the last one's.
    serial: u64,
}

/// What the thread shares with the service.
struct Inner {
    shared: Arc<Shared>,
    wake: Wake,
    epoll: OwnedFd,
    inotify: Option<OwnedFd>,
    watched: Mutex<HashMap<i32, Watched>>,
    /// Counts watches.
    serial: AtomicU64,
    /// A process has ended.
    ended: AtomicBool,
}

/// A watch, which ends with it.
struct Watch {
    inner: Arc<Inner>,
    number: i32,
    serial: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.inner.watched();
        // The file may have been opened again.
        if watched.get(&self.number).map(|w| w.serial) != Some(self.serial) {
            return;
        }
        watched.remove(&self.number);
        if let Some(inotify) = &self.inner.inotify {
            let _ = inotify::remove_watch(inotify, self.number);
        }
    }
}

/// The service's end; cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Ends(Option<Arc<Inner>>);

impl Ends {
    /// Starts the thread. Without it nothing is noticed.
    pub(super) fn start(shared: Arc<Shared>, wake: Wake) -> Ends {
        let Ok(epoll) = epoll::create(epoll::CreateFlags::CLOEXEC) else {
            return Ends(None);
        };
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        let inotify = inotify::init(flags).ok().filter(|fd| {
            let data = epoll::EventData::new_u64(FILES);
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN).is_ok()
        });
        let inner = Arc::new(Inner {
            shared,
            wake,
            epoll,
            inotify,
            watched: Mutex::default(),
            serial: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let its = inner.clone();
        let thread = std::thread::Builder::new().name("outrider-ends".into());
        match thread.stack_size(STACK).spawn(move || its.run()) {
            Ok(_) => Ends(Some(inner)),
            Err(_) => {
                inner.shared.header().lose(lost::THREADS);
                Ends(None)
            }
        }
    }

    /// Has a file let go of when it is closed, unless that was not `source`; where a server keeps it, unless more than one of `openers` lead to it.
    pub(super) fn watch(
        &self,
        handle: &Arc<Handle>,
        openers: Arc<AtomicU32>,
        source: Option<Arc<Source>>,
    ) -> Option<Box<dyn Send>> {
        let inner = self.0.as_ref()?;
        let inotify = inner.inotify.as_ref()?;
        let path = format!("/proc/thread-self/fd/{}", handle.fd().as_raw_fd());
        let mut watched = inner.watched();
        let flags = WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        let number = inotify::add_watch(inotify, path, flags).ok()?;
        let serial = inner.serial.fetch_add(1, Relaxed);
        watched.insert(
            number,
            Watched {
                handle: Arc::downgrade(handle),
                openers,
                source,
                serial,
            },
        );
        drop(watched);
        Some(Box::new(Watch {
            inner: inner.clone(),
            number,
            serial,
        }))
    }

    /// Has it noticed when the process of `life`, a pidfd, is over.
    pub(super) fn follow(&self, life: Option<&OwnedFd>) {
        if let (Some(inner), Some(life)) = (&self.0, life) {
            let data = epoll::EventData::new_u64(0);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
            let _ = epoll::add(&inner.epoll, life, data, flags);
        }
    }

    /// Whether a process has ended since this was asked last.
    pub(super) fn take_ended(&self) -> bool {
        let ended = self.0.as_ref().map(|inner| &inner.ended);
        ended.is_some_and(|e| e.load(Relaxed) && e.swap(false, SeqCst))
    }
}

impl Inner {
    fn watched(&self) -> MutexGuard<'_, HashMap<i32, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let mut events = [MaybeUninit::<epoll::Event>::uninit(); 16];
            let waited = match epoll::wait(&self.epoll, &mut events, None) {
                Ok((waited, _)) => waited,
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
            };
            for event in waited.iter() {
                if event.data.u64() == FILES {
                    self.closed();
                } else {
                    self.ended.store(true, SeqCst);
                    self.wake.wake();
                }
            }
        }
    }

    /// Files were closed.
    fn closed(&self) {
        let Some(inotify) = &self.inotify else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(inotify, &mut buffer);
        while let Ok(event) = events.next() {
            let watched = self.watched();
            let found = watched.get(&event.wd());
            // Of several descriptors it is not known which went: the hooks tell, or the process ends.
            let found = found.filter(|w| !w.shows_more());
            let source = found.and_then(|w| w.source.clone());
            let handle = found.and_then(|w| w.handle.upgrade());
            drop(watched);
            // Others close the file, too: whoever has it open here keeps it so.
            let is_open = source.is_some_and(|s| s.is_open(&self.shared));
            if let Some(handle) = handle.filter(|_| !is_open) {
                handle.close();
            }
        }
    }
}

impl Watched {
    /// Whether letting go of the file costs more than opening it again would, and others still lead to it.
    fn shows_more(&self) -> bool {
        let remote = self.handle.upgrade().is_some_and(|h| h.is_remote());
        remote && self.openers.load(SeqCst) > 1
    }
}
