//! Hints: what programs say that they will read.
//!
//! What the kernel itself would have fetched at once is asked for at once. The rest is not certain: there are programs that hint at all of a file, and read some pages of it.
//! It is asked for in pieces, each of which is an investment. While nobody waits for anything else of the file, the next one costs nothing. While somebody does, no more
//! lies there unused than was used. So a hint that is true is carried out as quickly as the device can, and one that isn't delays a program by no more than its first piece.

use std::collections::VecDeque;
use std::time::Duration;

use outrider_sys::units::{ByteRange, InodeKey, PAGE};

use super::kernel::Kernel;
use super::{Service, bounds};
use crate::clock::Moment;
use crate::engine::Class;
use crate::intent::Intent;
use crate::shm::Origin;
use crate::source::credit::START_US;
use crate::view::PageRange;

/// Hints of one file that are being carried out, at most; then the oldest is forgotten.
const HINTS: usize = 64;
/// Who has waited so lately is taken to wait again: mappings are looked at every 16 ms.
const LATELY: Duration = Duration::from_millis(20);
/// … or within so many times what a request takes.
const ANSWERS: f64 = 3.0;

/// What is left to ask for of a file's hints.
#[derive(Debug, Default)]
pub(super) struct Hinted {
    rest: VecDeque<ByteRange>,
    /// Bytes that were asked for of them.
    asked: u64,
    /// When a program waited last for something that was not there.
    missed: Option<Moment>,
}

impl Hinted {
    /// Whether anything is left.
    fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// A program has waited for something.
    pub(super) fn missed(&mut self, now: Moment) {
        if !self.is_over() {
            self.missed = Some(now);
        }
    }

    /// What is hinted at is not wanted any more.
    pub(super) fn forget(&mut self) {
        *self = Hinted::default();
    }

    fn add(&mut self, rest: ByteRange) {
        if rest.is_empty() {
            return;
        }
        match self.rest.back_mut() {
            Some(last) if last.end == rest.start => last.end = rest.end,
            _ => self.rest.push_back(rest),
        }
        if self.rest.len() > HINTS {
            self.rest.pop_front();
        }
    }

    /// The next `bytes` of it.
    fn next(&mut self, bytes: u64) -> Option<ByteRange> {
        let first = self.rest.front_mut()?;
        let piece = first.start..first.end.min(first.start.saturating_add(bytes));
        first.start = piece.end;
        if first.is_empty() {
            self.rest.pop_front();
        }
        Some(piece)
    }

    /// Of a piece what begins at `at` was refused.
    fn refused(&mut self, rest: ByteRange) {
        self.asked = self.asked.saturating_sub(rest.end - rest.start);
        match self.rest.front_mut() {
            Some(first) if first.start == rest.end => first.start = rest.start,
            _ => self.rest.push_front(rest),
        }
    }
}

impl<K: Kernel> Service<K> {
    /// The kernel is given a hint of `len` bytes by the program, of which it carries out as much as is one of its requests.
    pub(super) fn begins(&mut self, i: usize, key: InodeKey, len: u64) {
        /// Bytes that it asks a disk for at once, at most: 256 pages.
        const PIECE: u64 = 1 << 20;
        let bytes = len.min(self.devices.clip(key.dev));
        let now = self.kernel.now();
        if let Some(p) = self.processes.get_mut(i) {
            p.has_hinted(bytes, bytes.div_ceil(PIECE), now);
        }
    }

    /// The program's own hint.
    pub(super) fn advise(&mut self, i: usize, key: InodeKey, range: ByteRange) {
        let Some(size) = self.files.get(&key).map(|f| f.size()) else {
            return;
        };
        // No more than its part: it may not go by what it was offered.
        let most = range.start.saturating_add(self.room_for_hints(i));
        let range = range.start.min(size)..range.end.min(size).min(most);
        let pages = PageRange::from_bytes(range.start, range.end.saturating_sub(range.start));
        let cached = self.config.view.cache_visibility
            && self
                .files
                .get(&key)
                .is_some_and(|f| f.view.is_cached(pages));
        // The file may be held because of others.
        if range.is_empty() || cached || !self.stands(i) {
            return;
        }
        // What the kernel would have fetched is fetched, whether it stays cached or not.
        let served = self.devices.shows_opens(key.dev);
        if served && self.handle(key).is_none() {
            self.ask_server(key, true);
            if let Some(file) = self.files.get_mut(&key) {
                file.served.hint(range);
            }
            return;
        }
        let file = self.files.get_mut(&key);
        let known = file.map(|f| f.served.believe(Some(true)));
        let first = range
            .end
            .min(range.start.saturating_add(self.piece_of_hint(key)));
        self.fetch(Intent::new(key, &[range.start..first], Origin::Hints));
        if let (Some(file), Some(known)) = (self.files.get_mut(&key), known) {
            file.served.believe(known);
        }
        let few = self.hints.len() < bounds::HINTS || self.hints.contains(&key);
        if let Some(file) = self.files.get_mut(&key).filter(|_| few) {
            file.hinted.asked += first - range.start;
            file.hinted.add(first..range.end);
            if !file.hinted.is_over() && !self.hints.contains(&key) {
                self.hints.push(key);
            }
        }
    }

    /// Bytes of a hint that are asked for at once: as many as the kernel would have, or as are delivered in the time that looking ahead may cost before anything is known.
    fn piece_of_hint(&mut self, key: InodeKey) -> u64 {
        let model = self.model(self.device(key));
        let start = (START_US / model.byte_us()) as u64 / PAGE * PAGE;
        self.devices.clip(key.dev).max(start)
    }

    /// Goes on with what hints are left.
    pub(super) fn go_on_with_hints(&mut self) {
        let mut hints = std::mem::take(&mut self.hints);
        hints.retain(|key| self.goes_on_with_hint(*key));
        self.hints = hints;
    }

    /// Asks for the next piece of what a file's hints have left, if it is time for it. Whether there will be more to ask for.
    fn goes_on_with_hint(&mut self, key: InodeKey) -> bool {
        let piece = self.piece_of_hint(key);
        let latency = self.model(self.device(key)).latency_us * ANSWERS;
        let now = self.kernel.now();
        let Some(file) = self.files.get_mut(&key) else {
            return false;
        };
        if !file.hold.is_open() || file.hinted.is_over() {
            file.hinted.forget();
            return false;
        }
        let on_its_way = file.view.in_flight_pages() * PAGE + file.account.queued_bytes();
        if self.quiesce.is_quiesced() || on_its_way > piece {
            return true;
        }
        let hinted = &mut file.hinted;
        let lately = LATELY.max(Duration::from_micros(latency as u64));
        let waits = hinted.missed.is_some_and(|at| now - at < lately);
        let unused = file.view.unused_pages() * PAGE;
        if waits && unused > hinted.asked.saturating_sub(unused).max(piece) {
            return true;
        }
        let Some(next) = hinted.next(piece) else {
            return false;
        };
        hinted.asked += next.end - next.start;
        let plan = self.fetch(Intent {
            class: Class::Background,
            ..Intent::new(key, std::slice::from_ref(&next), Origin::Hints)
        });
        // What is touched of a mapping is looked at meanwhile.
        self.turns.has_mapped();
        let Some(file) = self.files.get_mut(&key) else {
            return false;
        };
        if let Some(at) = plan.refused_at {
            file.hinted
                .refused(at.clamp(next.start, next.end)..next.end);
        }
        !file.hinted.is_over()
    }
}
