//! Files that are cached again are left to the hooks.
//!
//! A hook that found pages missing tells of its descriptor from then on (see [`shm::FLAG_RESIDENT`]). When the file is cached again, brought in
//! by us or by the program, there is nothing left to foresee in it; so while its reads are told, the service looks from time to time, and then
//! says so. From then on the hook goes by what its threads wait for, and tells again if that is much. A
//! file that comes back at once is looked at ever more rarely.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outrider_sys::units::{InodeKey, PAGE};

use super::kernel::Kernel;
use super::{Desc, Service};
use crate::asked::When;
use crate::clock::Moment;
use crate::explain::Reason;
use crate::shm::{self, Event, FLAG_RESIDENT, Fate, Figure};
use crate::view::PageRange;

/// From the first read that is told to the first look, and the longest time between two.
const FIRST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(250);
/// A file that came back only after so many times its pause begins anew.
const LASTING: u32 = 16;
/// Bytes that are looked at, from the place that is read: the kernel counts them in less than a millisecond, where cachestat(2) tells of them, and
/// else in three …
const LOOK: u64 = 1 << 30;
/// … but the first of them first: most files that are not cached have none.
const NEAR: u64 = 1 << 20;
/// Of a file that is left to the hooks, one page of so many may be prefetched and not used yet; more, if there were as many at the last look:
/// nobody uses them, or not so that we hear of it.
const UNUSED: u64 = 64;

/// When a file is looked at.
#[derive(Debug)]
pub(super) struct Warmth {
    next: Moment,
    pause: Duration,
    /// When it was left to the hooks, if they haven't told of it since.
    left: Option<Moment>,
    /// Pages that were prefetched and not used at the last look.
    unused: u64,
}

impl Warmth {
    /// Of a file whose reads are told from now on.
    pub(super) fn new(now: Moment) -> Warmth {
        Warmth {
            next: now + FIRST,
            pause: FIRST,
            left: None,
            unused: 0,
        }
    }

    /// The hook can't tell whether this file is cached: the first read that it tells is time for a look.
    pub(super) fn hasten(&mut self, now: Moment) {
        self.next = now;
    }

    /// A read was told. Whether it is time for a look.
    fn told(&mut self, now: Moment) -> bool {
        if let Some(left) = self.left.take() {
            if now - left >= self.pause * LASTING {
                self.pause = FIRST;
            }
            self.wait(now);
            return false;
        }
        now >= self.next
    }

    /// Not yet: the next look, after twice the time.
    fn wait(&mut self, now: Moment) {
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST);
    }
}

impl<K: Kernel> Service<K> {
    /// Whether a read was told before its file was left to the hook; it is counted, and nothing more.
    pub(super) fn told_before(&mut self, i: usize, key: InodeKey, e: Event) -> bool {
        let slot = &self.shared.proc(i).slots[usize::from(e.fd)];
        if slot.flags.load(Relaxed) & FLAG_RESIDENT == 0 {
            return false;
        }
        let size = self.files.get(&key).map_or(0, |f| f.size());
        let len = e.len.min(size.saturating_sub(e.offset));
        let shared = self.shared.clone();
        let desc = self.desc_mut(i, e.fd);
        let reads = desc.map_or(1, |desc| desc.told_before(e.offset, shared.proc(i)));
        let bytes = len.saturating_mul(reads);
        self.has_read(i, reads, bytes);
        self.reads_now(i, key);
        // It was found cached while they waited to be heard, for whatever reason, if no profile tells.
        let pages = PageRange::from_bytes(e.offset, len);
        let there = self.remembered(key, pages);
        let hit = bytes / pages.len().max(1) * there.min(pages.len());
        self.count(key, Figure::Hit, hit);
        self.count(key, Figure::Miss, bytes - hit);
        true
    }

    /// Counts what the streams in a file have read up to now without telling, and a single one also what it has told and nobody has taken yet.
    fn pass_silent(&mut self, key: InodeKey) {
        let mut passed = Vec::new();
        self.processes
            .each_open(&self.shared, |i, desc, slot, proc| {
                if desc.key == key {
                    let silent = desc.settle(slot, proc).into_iter();
                    passed.extend(silent.map(|reads| (i, reads)));
                }
            });
        for (i, (span, step, len)) in passed {
            self.pass(i, key, (span, step, len), &When::UNKNOWN);
        }
    }

    /// A read at `offset` was told. Leaves the file to the hooks if it is cached from there on and nothing of ours is under way.
    pub(super) fn leave_to_hooks(&mut self, key: InodeKey, offset: u64) -> bool {
        let now = self.kernel.now();
        let Some(file) = self.files.get_mut(&key) else {
            return false;
        };
        if !file.warmth.told(now) {
            return false;
        }
        if !self.is_cached(key, offset) {
            if let Some(file) = self.files.get_mut(&key) {
                file.warmth.wait(now);
            }
            return false;
        }
        let limits = self.limits(key);
        let Some(file) = self.files.get_mut(&key) else {
            return false;
        };
        file.warmth.left = Some(now);
        self.leaves(key, Reason::Cached);
        self.pass_silent(key);
        let Some(file) = self.files.get(&key) else {
            return false;
        };
        // What happens to its pages from here on nobody hears.
        file.lose(PageRange::new(0, u64::MAX / PAGE), Fate::Wasted);
        self.listen_anew(key, |desc| {
            desc.begin_anew(&limits);
            FLAG_RESIDENT
        });
        true
    }

    /// Forgets what random reads of a file have come to, and has all of its reads told again, once `change` has been made to what is known of each descriptor;
    /// it returns flags to set then.
    pub(super) fn listen_anew(&mut self, key: InodeKey, mut change: impl FnMut(&mut Desc) -> u32) {
        let size = self.files.get(&key).map_or(0, |f| f.size());
        if let Some(file) = self.files.get_mut(&key) {
            file.random.forget();
            file.random.forget_samples();
        }
        self.processes
            .each_open(&self.shared, |_, desc, slot, proc| {
                if desc.key == key {
                    desc.hear_rarely(0, slot, proc);
                    let flags = change(desc);
                    // Hooks count by the size what they don't tell of.
                    slot.hush(size, 0, 0);
                    slot.flags.fetch_or(flags, Relaxed);
                }
            });
    }

    /// Whether something that was prefetched lies right ahead of a stream: once nobody hears of its reads it isn't known that they have used it.
    fn is_ahead_of_readers(&mut self, key: InodeKey) -> bool {
        let Some(file) = self.files.get(&key) else {
            return false;
        };
        let mut is_ahead = false;
        self.processes.each_open(&self.shared, |_, desc, _, _| {
            if desc.key == key
                && let Some(ahead) = desc.detector.streams.looks_at()
            {
                let pages = PageRange::from_bytes(ahead.start, ahead.end - ahead.start);
                is_ahead |= file.view.count(pages).unused_pages > 0;
            }
        });
        is_ahead
    }

    fn is_cached(&mut self, key: InodeKey, offset: u64) -> bool {
        let looks = self.config.view.cache_visibility && self.mode != shm::MODE_FETCHALL_OPT;
        let Some(file) = self.files.get_mut(&key) else {
            return false;
        };
        let unused = file.view.unused_pages();
        let last = std::mem::replace(&mut file.warmth.unused, unused);
        if !looks
            || file.is_blind()
            || file.view.in_flight_pages() > 0
            || unused > file.size() / PAGE / UNUSED && unused != last
            || unused > 0 && self.is_ahead_of_readers(key)
        {
            return false;
        }
        let Some(handle) = self.handle(key) else {
            return false;
        };
        let size = self.files.get(&key).map_or(0, |f| f.size());
        let start = offset.min(size.saturating_sub(LOOK)) / PAGE;
        let pages = PageRange::new(start, size.min(start * PAGE + LOOK).div_ceil(PAGE));
        let near = PageRange::new(start, pages.end.min(start + NEAR / PAGE));
        for look in [near, pages] {
            match self.count_cached(&handle, look.bytes()) {
                Ok(counted) if counted.is_resident() => {}
                Ok(_) => return false,
                Err(e) => {
                    self.no_cachestat(key, e);
                    return false;
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design, "off is a decision too": a file that comes back at once is looked at ever more rarely, but never not at all; one that stayed
    /// cached for long is soon left alone again.
    #[test]
    fn files_that_come_back_are_looked_at_ever_more_rarely() {
        let mut now = Moment::BEGINNING;
        let mut warmth = Warmth::new(now);
        let mut waits = Vec::new();
        for _ in 0..10 {
            let since = now;
            while !warmth.told(now) {
                now += Duration::from_millis(1);
            }
            waits.push((now - since).as_millis());
            warmth.left = Some(now);
        }
        assert_eq!(waits, [5, 5, 10, 20, 40, 80, 160, 250, 250, 250]);
        now += LONGEST * LASTING;
        assert!(!warmth.told(now));
        assert!(warmth.told(now + FIRST));
    }
}
