//! Files that requests go to.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use outrider_sys::cache;
use outrider_sys::raw::{self, Fd};
use outrider_sys::units::{ByteRange, InodeKey, PAGE};
use rustix::fs::{CWD, Mode, OFlags};

use super::mapping::{Mappings, Wait};
use super::worker::NEVER;
use super::{LONGEST_WAIT, TARDY};
use crate::device::{Extents, Layout, Placement};
use crate::shm::Notes;

/// An open file of the program, until it is let go of.
///
/// Whoever finds out that no process of the run has the file open any more ends our hold on it at once ([`Handle::let_go`]), whatever requests still refer to
/// it: they fail, and whoever waits for an arrival is woken.
pub struct Handle {
    /// `None` where it stands for a file that is only thought of.
    fd: Option<Fd>,
    /// `st_dev` and `st_ino`, where somebody wants to know.
    file: InodeKey,
    /// [`LEAVING`] once it is let go of, and [`CLOSED`] once the descriptor is closed: a futex.
    gone: AtomicU32,
    /// That it is let go of is not told yet.
    withheld: AtomicBool,
    /// Calls that go on through the descriptor on workers' threads.
    users: AtomicU32,
    /// Something that was asked for never arrived.
    overdue: AtomicU32,
    /// What ends with our hold on the file.
    attached: Mutex<Option<Box<dyn Send>>>,
    /// Whoever closes it where that takes a server's answer. Nothing is asked of such a file here that a server would have to answer.
    closer: Option<Closer>,
    mappings: Mappings,
    /// Whoever waits for an arrival reads a byte.
    read: bool,
    /// The disks of its file system if that lies on several, and where on it the file lies, once that was asked.
    pub(super) layout: OnceLock<Option<Arc<Layout>>>,
    extents: Extents,
}

/// See `Handle::gone`.
const LEAVING: u32 = 1;
const CLOSED: u32 = 2;

impl Handle {
    /// A handle on a descriptor of our own.
    pub fn new(fd: impl Into<Fd>) -> Handle {
        Handle::over(Some(fd.into()))
    }

    /// One on no file: for whoever answers for the kernel himself.
    pub fn stand_in() -> Handle {
        let mut handle = Handle::over(None);
        // It lies on no disk.
        handle.layout = OnceLock::from(None);
        handle
    }

    /// The same, of the file that has this `st_dev` and `st_ino`.
    pub fn of(mut self, dev: u64, ino: u64) -> Handle {
        self.file = InodeKey::new(dev, ino);
        self
    }

    /// `st_dev` and `st_ino`, if [`of`](Handle::of) has told.
    pub fn file(&self) -> InodeKey {
        self.file
    }

    fn over(fd: Option<Fd>) -> Handle {
        Handle {
            fd,
            file: InodeKey::default(),
            gone: AtomicU32::new(0),
            withheld: AtomicBool::new(false),
            users: AtomicU32::new(0),
            overdue: AtomicU32::new(0),
            attached: Mutex::default(),
            closer: None,
            mappings: Mappings::default(),
            read: false,
            layout: OnceLock::new(),
            extents: Extents::default(),
        }
    }

    /// The same of one that this process reads in its own name: whoever waits for an arrival reads a byte, which shows as any read does. That takes a fifth of the calls
    /// of a mapping, also works where there can't be one, and fails where what was asked for has failed.
    pub fn read(fd: impl Into<Fd>) -> Handle {
        let mut handle = Handle::new(fd);
        handle.read = true;
        handle
    }

    /// The same of one that may have to be let go of at any moment: nobody sleeps in the kernel for long on its behalf.
    pub fn held(fd: impl Into<Fd>) -> Handle {
        let mut handle = Handle::new(fd);
        handle.mappings = Mappings::watched(None);
        handle
    }

    /// One on a file that a server keeps: when the last request for it has arrived it is handed to `closer`. `quiet`: mapping it leaves its time of
    /// access as it is; `visible`: the kernel tells the truth about what of it is cached.
    pub fn remote(fd: impl Into<Fd>, quiet: bool, visible: bool, closer: Closer) -> Handle {
        let mut handle = Handle::new(fd);
        handle.closer = Some(closer);
        handle.mappings = Mappings::watched(Some((quiet, visible)));
        // It lies on no disk of ours.
        handle.layout = OnceLock::from(None);
        handle
    }

    /// Whether a server keeps the file.
    pub fn is_remote(&self) -> bool {
        self.closer.is_some()
    }

    /// Has `what` end with our hold on the file.
    pub fn attach(&self, what: Box<dyn Send>) {
        *self.attached.lock().unwrap_or_else(|e| e.into_inner()) = Some(what);
        // Somebody else may have let go of it before.
        self.is_let_go();
    }

    /// Whether it is, or is being, let go of, as far as that may be known.
    pub fn is_gone(&self) -> bool {
        !self.withheld.load(Ordering::Relaxed) && self.is_closed()
    }

    /// Whether it is, whoever knows.
    fn is_closed(&self) -> bool {
        self.gone.load(Ordering::Acquire) != 0
    }

    /// For whoever decides when things become known: that somebody else has [closed](Handle::close) this is not known until
    /// [`tell_closed`](Handle::tell_closed), unless it is already.
    pub fn withhold_closed(&self) {
        self.withheld.store(!self.is_closed(), Ordering::Relaxed);
    }

    /// That it is closed is known from now on. Returns whether that is news.
    pub fn tell_closed(&self) -> bool {
        self.is_closed() && self.withheld.swap(false, Ordering::Relaxed)
    }

    /// Lets go of the file: what [`close`](Handle::close) does is known at once.
    pub fn let_go(&self) {
        self.withheld.store(false, Ordering::Relaxed);
        self.close();
    }

    /// Ends our hold on the file. The number stays taken until nobody refers to it any more, and leads to nothing: whatever is asked of it fails with EBADF.
    /// A file that a server keeps is open there until the server has answered what it was asked.
    pub fn close(&self) {
        if self.gone.swap(LEAVING, Ordering::AcqRel) != 0 || self.is_remote() {
            return;
        }
        if let (Some(nothing), Some(fd)) = (nothing(), &self.fd) {
            // SAFETY: both are our own descriptors, open as long as their owners live.
            unsafe {
                raw::syscall6(
                    libc::SYS_dup3,
                    nothing.as_raw_fd() as usize,
                    fd.as_raw_fd() as usize,
                    libc::O_CLOEXEC as usize,
                    0,
                    0,
                    0,
                );
            }
        }
        self.mappings.clear();
        self.gone.store(CLOSED, Ordering::SeqCst);
        raw::futex_wake(&self.gone, u32::MAX);
        self.is_let_go();
    }

    /// Ends what is attached, once the descriptor is closed and no call holds the file.
    fn is_let_go(&self) {
        let closed = self.gone.load(Ordering::SeqCst) == CLOSED;
        if closed && self.users.load(Ordering::SeqCst) == 0 && !self.is_remote() {
            // Who began to wait when it was closed may have mapped it since.
            self.mappings.clear();
            let mut attached = self.attached.lock().unwrap_or_else(|e| e.into_inner());
            let attached = attached.take();
            drop(attached);
        }
    }

    /// As long as the result lives a call through the descriptor may go on.
    pub(super) fn enter(&self) -> Use<'_> {
        self.users.fetch_add(1, Ordering::SeqCst);
        Use(self)
    }

    /// Sleeps until the page that holds byte `at` is up to date, or the file is let go of. It will hardly be so before `first` has passed.
    pub fn wait_watched(&self, at: u64, first: Duration, notes: &Notes) {
        let began = Instant::now();
        let how = |began: &Instant| Wait {
            patience: LONGEST_WAIT,
            first: first.saturating_sub(began.elapsed()),
            sleeps: began.elapsed() > TARDY,
        };
        let goes_on = || !self.is_closed() || began.elapsed() < NEVER;
        while self.arrives(at, how(&began), notes).is_none() && goes_on() {}
    }

    /// Pages of the bytes `range` that are cached or on their way, as cachestat(2) counts them; nothing is asked that a server would have to answer.
    pub fn counted(&self, range: ByteRange) -> Result<cache::CacheStat, cache::CacheStatError> {
        match self.is_remote() {
            true => cache::cachestat(self.fd(), range),
            false => cache::counted(self.fd(), range),
        }
    }

    /// The same, as one number, also where only mincore(2) tells.
    pub fn cached_pages(&self, range: ByteRange) -> Result<u64, cache::CacheStatError> {
        match self.is_remote() {
            true => cache::cachestat(self.fd(), range).map(|s| s.cached),
            false => cache::cached_pages(self.fd(), range),
        }
    }

    /// Where a range of the file begins in its file system, and as much of it as lies there in one piece: addresses as FIEMAP tells them.
    pub(super) fn addresses(&self, range: &ByteRange) -> Option<Range<u64>> {
        self.placement().addresses(range)
    }

    /// Where the file lies on its device; asks the file system once, which blocks while that reads its own metadata.
    pub fn placement(&self) -> Placement<'_> {
        self.extents.of(self.fd())
    }

    /// Sleeps until the page that holds byte `at` is up to date. `false` where that can't be known.
    pub fn wait(&self, at: u64, notes: &Notes) -> bool {
        let forever = Wait {
            patience: Duration::MAX,
            first: Duration::ZERO,
            sleeps: true,
        };
        self.arrives(at, forever, notes) == Some(true)
    }

    /// The same, waiting as `how` says; `None` after that.
    pub(super) fn arrives(&self, at: u64, how: Wait, notes: &Notes) -> Option<bool> {
        let remote = self.is_remote();
        let how = Wait {
            sleeps: how.sleeps && !remote,
            ..how
        };
        let _used = self.enter();
        if self.read {
            let mut byte = [0];
            let page = at / PAGE * PAGE;
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(self.fd(), &mut byte, page));
            return Some(read == Ok(1));
        }
        // Until a server has answered it has the file open, whoever has let go of it.
        let ends = match remote {
            true => &self.overdue,
            false => &self.gone,
        };
        self.mappings.wait(self.fd(), at, how, ends, notes)
    }

    /// What was asked for never arrives.
    pub(crate) fn give_up(&self) {
        self.overdue.store(1, Ordering::Release);
        self.let_go();
    }

    /// Whether something that was asked for did not arrive in `NEVER`.
    pub fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Acquire) != 0
    }

    /// The descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match (&self.fd, nothing()) {
            (Some(fd), _) => fd.as_fd(),
            (None, Some(nothing)) => nothing.as_fd(),
            // SAFETY: of a number that is nobody's everything fails with EBADF.
            (None, None) => unsafe { BorrowedFd::borrow_raw(i32::MAX) },
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let attached = self
            .attached
            .get_mut()
            .unwrap_or_else(|e| e.into_inner())
            .take();
        // What is attached ends last.
        let remains = Remains {
            _mappings: std::mem::take(&mut self.mappings),
            _fd: self.fd.take(),
            _attached: attached,
        };
        match &self.closer {
            Some(closer) => closer(remains),
            None => drop(remains),
        }
    }
}

/// See [`Handle::enter`].
pub(super) struct Use<'a>(&'a Handle);

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if self.0.users.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.is_let_go();
        }
    }
}

/// Takes what is to be closed by somebody who may wait for a server.
pub type Closer = Arc<dyn Fn(Remains) + Send + Sync>;

/// What is left of a file that a server keeps, in the order in which it goes: dropping it waits for the server.
pub struct Remains {
    _mappings: Mappings,
    _fd: Option<Fd>,
    _attached: Option<Box<dyn Send>>,
}

/// A descriptor of which nothing can be asked, and which holds nothing that this process does not hold anyway: its root directory, found with O_PATH.
fn nothing() -> Option<&'static OwnedFd> {
    static NOTHING: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    NOTHING
        .get_or_init(|| rustix::fs::openat(CWD, c"/", flags, Mode::empty()).ok())
        .as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC B11: what is attached ends with the hold on the file, in whatever order a file is let go of, asked about and attached to.
    #[test]
    fn what_is_attached_ends_with_the_hold() {
        let handle = || Handle::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let attached = Arc::new(());
        let is_over = || Arc::strong_count(&attached) == 1;
        let file = handle();
        file.attach(Box::new(attached.clone()));
        assert!(!is_over());
        file.close();
        assert!(is_over());
        // Let go of before.
        file.attach(Box::new(attached.clone()));
        assert!(is_over());
        // A call holds it.
        let file = handle();
        let used = file.enter();
        file.close();
        file.attach(Box::new(attached.clone()));
        assert!(!is_over());
        drop(used);
        assert!(is_over());
    }
}
