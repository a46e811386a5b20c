//! What is found out about a server's files by opening them ahead, and whether it answers.
//!
//! How long names and attributes are believed, and whether what was read of a file is still there when it is opened again, is the server's to say; nothing tells
//! beforehand. FUSE drops what is cached at each open(2) unless the server says that it may stay, and asks for a name each time where it may have changed. So
//! it is seen from the first files: a name that was looked up is looked up again, and of a file that was fetched the program's own open tells whether it is
//! cached.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use outrider_sys::raw::blocks_and_waits;
use outrider_sys::units::DeviceId;

/// Names that are looked up twice.
const TRIED: u32 = 8;
/// Files that were fetched and not cached when the program had opened them, less those that were, beyond which none is fetched any more.
const DROPPED: u32 = 8;

/// A file system whose files a server keeps.
#[derive(Debug)]
pub struct Server {
    /// Its `st_dev`.
    pub device: DeviceId,
    /// Names that were looked up a second time, and those of them for which the server was asked again.
    tried: AtomicU32,
    forgotten: AtomicU32,
    /// Files that were fetched and opened: not cached any more, and cached still.
    dropped: AtomicU32,
    kept: AtomicU32,
}

impl Server {
    pub(super) fn new(device: DeviceId) -> Server {
        Server {
            device,
            tried: AtomicU32::new(0),
            forgotten: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
            kept: AtomicU32::new(0),
        }
    }

    /// Whether a name that was looked up need not be looked up again, as far as is known.
    pub fn keeps_names(&self) -> bool {
        let tried = self.tried.load(Relaxed);
        tried < TRIED || 2 * self.forgotten.load(Relaxed) < tried
    }

    /// Whether what is fetched of a file is there when the program has opened it, as far as is known.
    pub fn keeps_files(&self) -> bool {
        let dropped = self.dropped.load(Relaxed);
        dropped < DROPPED + self.kept.load(Relaxed)
    }

    /// A file that was fetched has been opened, and was cached then or not.
    pub fn was_opened(&self, cached: bool) {
        let which = if cached { &self.kept } else { &self.dropped };
        which.fetch_add(1, Relaxed);
    }

    /// Looks up again what was found, if that is still worth knowing.
    pub(super) fn try_again(&self, look_up: impl FnOnce()) {
        if self.tried.load(Relaxed) >= TRIED {
            return;
        }
        let before = waits();
        look_up();
        self.forgotten
            .fetch_add(u32::from(waits() != before), Relaxed);
        self.tried.fetch_add(1, Relaxed);
    }
}

/// How often the calling thread has slept in the kernel: whoever asks a server does.
pub(super) fn waits() -> i64 {
    blocks_and_waits().1
}

/// Calls that wait for an answer.
#[derive(Default)]
pub(super) struct UnderWay {
    calls: Mutex<Vec<(u64, Instant)>>,
    next: AtomicU64,
}

impl UnderWay {
    pub(super) fn begin(&self) -> OneUnderWay<'_> {
        let id = self.next.fetch_add(1, Relaxed);
        self.calls().push((id, Instant::now()));
        OneUnderWay(self, id)
    }

    pub(super) fn longest(&self) -> Duration {
        let oldest = self.calls().iter().map(|(_, began)| *began).min();
        oldest.map_or(Duration::ZERO, |began| began.elapsed())
    }

    fn calls(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Instant)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them.
pub(super) struct OneUnderWay<'a>(&'a UnderWay, u64);

impl Drop for OneUnderWay<'_> {
    fn drop(&mut self) {
        self.0.calls().retain(|(id, _)| *id != self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server's files do is believed to be good until enough of them have shown otherwise, and is believed again of none.
    #[test]
    fn what_is_kept_shows() {
        let server = Server::new(DeviceId(5));
        assert!(server.keeps_names() && server.keeps_files());
        for _ in 0..DROPPED {
            assert!(server.keeps_files());
            server.was_opened(false);
        }
        assert!(!server.keeps_files());
        let server = Server::new(DeviceId(5));
        for _ in 0..100 {
            server.was_opened(true);
        }
        for _ in 0..DROPPED {
            server.was_opened(false);
        }
        assert!(server.keeps_files());
        for _ in 0..TRIED {
            assert!(server.keeps_names());
            server.try_again(|| std::thread::sleep(Duration::from_millis(1)));
        }
        assert!(!server.keeps_names());
    }

    /// The oldest call that has no answer yet says for how long.
    #[test]
    fn unanswered_calls_show() {
        let under_way = UnderWay::default();
        assert_eq!(under_way.longest(), Duration::ZERO);
        let first = under_way.begin();
        std::thread::sleep(Duration::from_millis(20));
        let second = under_way.begin();
        assert!(under_way.longest() >= Duration::from_millis(20));
        drop(first);
        assert!(under_way.longest() < Duration::from_secs(20));
        drop(second);
        assert_eq!(under_way.longest(), Duration::ZERO);
    }
}
