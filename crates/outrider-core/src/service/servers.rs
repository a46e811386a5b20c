//! Files that a server keeps: FUSE, NFS and their kind.
//!
//! Opening and closing such a file waits for an answer that may never come, and no signal ends that wait once the server has taken the request. So threads do it of
//! which a bounded number may be stuck, and the service's own asks nothing that a server would have to answer.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outrider_sys::cache::residency_is_visible;
use outrider_sys::units::{DeviceId, InodeKey};

use super::ends::{Ends, Wake};
use super::kernel::{Answer, OpenFile, Source};
use crate::clock::{Clock, Moment, Monotonic};
use crate::engine::{Handle, Remains};
use crate::fetch;
use crate::shared::{Note, Shared};
use crate::shm::lost;

/// Threads at most.
const THREADS: usize = 4;
/// Files of one file system that are being opened at a time: more than one that does not answer are not needed to see that it doesn't.
const OPENING: usize = 2;
/// Bytes of their stacks.
const STACK: usize = 128 << 10;
/// An open that takes longer than this is a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A file to be opened.
struct Wish {
    source: Source,
    openers: Arc<AtomicU32>,
    note: Note,
}

enum Job {
    Open(Box<Wish>),
    Close(Remains),
}

struct Inner {
    shared: Arc<Shared>,
    wake: Wake,
    ends: Ends,
    jobs: Mutex<Jobs>,
    work: Condvar,
    /// There is something to be taken.
    news: AtomicBool,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// The service's end.
pub(super) struct Servers {
    inner: Arc<Inner>,
    tell: Sender<Answer>,
    told: Receiver<Answer>,
    /// Opens that have not been answered, by file system, and since when.
    opening: Vec<(InodeKey, Moment)>,
    clock: Monotonic,
}

impl Servers {
    pub(super) fn new(shared: Arc<Shared>, ends: Ends, wake: Wake, clock: Monotonic) -> Servers {
        let (tell, told) = channel();
        let inner = Inner {
            shared,
            wake,
            ends,
            jobs: Mutex::default(),
            work: Condvar::new(),
            news: AtomicBool::new(false),
        };
        Servers {
            inner: Arc::new(inner),
            tell,
            told,
            opening: Vec::new(),
            clock,
        }
    }

    /// Whether a server of this file system has not answered for long.
    pub(super) fn is_stuck(&self, dev: DeviceId) -> bool {
        let late = |since: &Moment| self.clock.since(*since) > PATIENCE;
        let mut opening = self.opening.iter();
        opening.any(|(key, since)| key.device() == dev && late(since))
    }

    /// Begins to open a file. `false`: enough are being opened there, or the process is about to end.
    pub(super) fn open(
        &mut self,
        shared: &Arc<Shared>,
        source: Source,
        openers: &Arc<AtomicU32>,
    ) -> bool {
        let key = source.key();
        let its = self.opening.iter().filter(|(k, _)| k.dev == key.dev);
        if its.count() >= OPENING || self.opening.len() >= THREADS {
            return false;
        }
        let Some(note) = Note::new(shared.clone(), Some(source.proc), true) else {
            return false;
        };
        let wish = Wish {
            source,
            openers: openers.clone(),
            note,
        };
        self.opening.push((key, self.clock.now()));
        Inner::give(&self.inner, Job::Open(Box::new(wish)), &self.tell);
        true
    }

    /// Files that have been opened since this was asked last.
    pub(super) fn opened(&mut self) -> Vec<Answer> {
        if !self.inner.news.swap(false, Acquire) {
            return Vec::new();
        }
        let opened: Vec<Answer> = self.told.try_iter().collect();
        for o in &opened {
            self.opening.retain(|(key, _)| *key != o.key);
        }
        opened
    }
}

impl Inner {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give(self: &Arc<Inner>, job: Job, tell: &Sender<Answer>) {
        let mut jobs = self.jobs();
        jobs.waiting.push_back(job);
        if jobs.idle < jobs.waiting.len() && jobs.threads < THREADS {
            let (inner, tell) = (self.clone(), tell.clone());
            let thread = std::thread::Builder::new().name("outrider-open".into());
            match thread.stack_size(STACK).spawn(move || inner.work(&tell)) {
                Ok(_) => jobs.threads += 1,
                Err(_) => self.shared.header().lose(lost::THREADS),
            }
        }
        drop(jobs);
        self.work.notify_one();
    }

    fn work(self: &Arc<Inner>, tell: &Sender<Answer>) {
        loop {
            let mut jobs = self.jobs();
            let job = loop {
                match jobs.waiting.pop_front() {
                    Some(job) => break job,
                    None => {
                        jobs.idle += 1;
                        jobs = self.work.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                        jobs.idle -= 1;
                    }
                }
            };
            drop(jobs);
            match job {
                Job::Close(remains) => drop(remains),
                Job::Open(wish) => {
                    let (key, proc) = (wish.source.key(), wish.source.proc);
                    let file = self.open(*wish, tell);
                    let _ = tell.send(Answer { key, proc, file });
                    self.news.store(true, Release);
                    self.wake.wake();
                }
            }
        }
    }

    fn open(self: &Arc<Inner>, wish: Wish, tell: &Sender<Answer>) -> Option<OpenFile> {
        let Source {
            proc,
            generation,
            wanted,
        } = wish.source;
        // Its rights may be others since it was asked for.
        if !self.shared.stands(proc) {
            return None;
        }
        let slots = &self.shared.proc(proc).slots;
        let slot = slots.get(usize::from(wanted.fd))?;
        let header = self.shared.header();
        let (fd, size) = fetch::fetch(wanted, slot, generation, true, header)?;
        let fd_of = std::os::fd::AsFd::as_fd(&fd);
        let quiet = fetch::leaves_access_time(fd_of);
        let visible = residency_is_visible(fd_of);
        let (inner, tell) = (self.clone(), tell.clone());
        let closer = move |remains| Inner::give(&inner, Job::Close(remains), &tell);
        let handle = Handle::remote(fd, quiet, visible, Arc::new(closer));
        let handle = Arc::new(handle.of(wanted.dev, wanted.ino));
        let source = fetch::Source::new(wanted, &self.shared, proc, generation);
        let source = source.map(Arc::new);
        let watch = self.ends.watch(&handle, wish.openers, source.clone());
        handle.attach(Box::new((watch, wish.note)));
        // It may have been closed before the watch began.
        let there = source.is_some_and(|s| s.is_open(&self.shared));
        if !there {
            handle.close();
        }
        there.then_some((handle, size))
    }
}
