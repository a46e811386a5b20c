//! What a device does with one request and with several: rounds or a stream.

use std::sync::Arc;
use std::time::Instant;

use outrider_sys::counters;
use outrider_sys::units::{DeviceId, PAGE};

use super::super::Figure;
use super::{Fetcher, Order, Piece, Walk};
use crate::device::Seeks;
use crate::engine::{BULK, Handle};
use crate::view::PageRange;

/// Requests that are made one after the other; their median counts, because one may lie near the head, and one behind somebody else's.
const LONE: usize = 4;
/// A head, which sorts them, takes at least so many times as long for those made at once as for one; a device without takes little more.
const SERIAL: f64 = 3.0;
/// Requests that are made at once to see whether a device works on them in parallel.
const AT_ONCE: usize = 16;
/// Pages that are fetched one by one, when a list begins, to see on which disk of several they lie.
const SEEN: usize = 4;
/// A [`Measured::load`] below this one, that beside two others: others' reads made both take long, and the device is measured again, so often at most.
const CONCLUSIVE: f64 = AT_ONCE as f64 / 3.0;
const TRIES: u32 = 6;
/// What a device was found to do beside others' reads.
#[derive(Clone, Copy, Default)]
pub(super) struct Tried {
    /// How often it was measured.
    times: u32,
    /// The measurement that others disturbed least.
    best: Option<Measured>,
}

/// How long requests took.
#[derive(Clone, Copy)]
struct Measured {
    lone_us: f64,
    together_us: f64,
    /// Requests that the device made, others' included, while those made at once were on their way, for each one that it made during a lone one:
    /// [`AT_ONCE`] if nobody else used it, and 1 beside a deep queue of others.
    load: f64,
}

impl Measured {
    /// Whether the requests made at once waited for one another as on a device with a head. Beside others a lone request waits, too, so that
    /// less is to be expected of the difference.
    fn has_head(&self) -> bool {
        let more = (self.load - 1.0) / (AT_ONCE as f64 - 1.0);
        let may_seek = Seeks::of(self.lone_us) != Seeks::No;
        may_seek && self.together_us > self.lone_us * (1.0 + (SERIAL - 1.0) * more)
    }
}

/// Where the first pieces of a list lie.
#[derive(Default)]
struct Begin {
    /// The disk of the first.
    device: Option<DeviceId>,
    /// Files and pages that lie there, are missing, and lie far enough apart for a head to have to move.
    spread: Vec<(u16, u64)>,
    /// Pages that were fetched to see where they lie.
    seen: usize,
}

impl Fetcher {
    /// Chooses rounds or a stream by what the device does with several requests at once (SPEC LP3). `false`: that has to be tried again, and until
    /// then nothing is to be fetched, because a deep queue is in the way of whoever measures.
    pub(super) fn choose(&mut self, index: usize, walk: &mut Walk) -> bool {
        let Some(pieces) = self.next_pieces(index, walk) else {
            return true;
        };
        let mut begin = Begin::default();
        let mut pieces = pieces.iter();
        while begin.spread.len() < AT_ONCE + LONE
            && let Some(piece) = pieces.next()
        {
            if let Some((dev, rounds)) = self.place(piece, walk, &mut begin) {
                walk.disk = dev;
                walk.order = Order::of(rounds);
                return true;
            }
        }
        let dev = begin.device.unwrap_or_default();
        let mut tried = self.tried.get(&dev).copied().unwrap_or_default();
        let enough = begin.spread.len() == AT_ONCE + LONE;
        if !enough && tried.best.is_none() {
            // Too little to tell apart, and too little to matter.
            self.asked(index, walk, u64::MAX);
            return true;
        }
        // Beside somebody's sweep nothing is learned of the disk, and the program would only disturb it. Nor beside the program's own reads.
        self.asked(index, walk, walk.seen.0);
        if !self.turns.take(index, dev, true) {
            return false;
        }
        if self.turns.is_found(dev) {
            self.decide(index, walk, dev, true, None);
            return true;
        }
        if enough {
            let Some(measured) = self.measure(dev, &begin.spread) else {
                self.turns.give(index);
                self.asked(index, walk, u64::MAX);
                walk.order = Order::of(false);
                return true;
            };
            tried.times += 1;
            if tried.best.is_none_or(|b| measured.load > b.load) {
                tried.best = Some(measured);
            }
            self.tried.insert(dev, tried);
            if measured.load < CONCLUSIVE && tried.times < TRIES {
                self.turns.give(index);
                self.turns.look_again();
                return false;
            }
        }
        if let Some(best) = tried.best {
            let rounds = best.has_head();
            self.explain
                .device(dev, best.lone_us, best.together_us, best.load, rounds);
            self.decide(index, walk, dev, rounds, Some(best.lone_us));
        }
        true
    }

    /// Finds out where a piece lies, and takes its first page in if requests may be tried with it. The disk, and whether it is read in rounds, where that is
    /// known or wished.
    fn place(
        &mut self,
        piece: &Piece,
        walk: &mut Walk,
        begin: &mut Begin,
    ) -> Option<(DeviceId, bool)> {
        /// Requests that a disk has to move for: neighbours would be answered together.
        const APART: u64 = (256 << 10) / PAGE;
        self.open(piece);
        let own = self.files.get(&piece.file)?;
        let handle = own.handle.clone()?;
        let page = piece.offset / PAGE;
        let one = PageRange::new(page, page + 1);
        let is_missing = || own.missing(&handle, one, own.view.count(one), &mut Vec::new()) == 0;
        walk.several = self.engine.is_spread(own.dev, &handle);
        let at = page * PAGE;
        let wished = self.wishes.rounds;
        // Where that is only a guess it has to be seen, with pages that nobody has read yet.
        if wished.is_none() && begin.seen < SEEN && !self.engine.knows_place(own.dev, &handle, at) {
            if is_missing() {
                self.engine.see_place(own.dev, &handle, at, || {
                    begin.seen += 1;
                    self.fetch_page(piece.file, page) && self.await_page(piece.file, page)
                });
            }
            if !self.engine.knows_place(own.dev, &handle, at) {
                return None;
            }
        }
        let here = self.engine.device_of(own.dev, &handle, at);
        let dev = *begin.device.get_or_insert(here);
        if let Some(rounds) = wished.or(self.engine.model(dev).serial()) {
            return Some((dev, rounds));
        }
        let near = |s: &(u16, u64)| s.0 == piece.file && s.1.abs_diff(page) < APART;
        if here == dev && !begin.spread.iter().any(near) && is_missing() {
            begin.spread.push((piece.file, page));
        }
        None
    }

    /// Whether the list begins on another disk than the one before it, or may: on one of several.
    pub(super) fn is_elsewhere(&mut self, index: usize, walk: &Walk) -> bool {
        let first = self
            .next_pieces(index, walk)
            .and_then(|p| p.first().copied());
        let Some(piece) = first else {
            return false;
        };
        self.open(&piece);
        self.files.get(&piece.file).is_some_and(|own| {
            let spread = own
                .handle
                .as_ref()
                .is_some_and(|h| self.engine.is_spread(own.dev, h));
            spread || own.dev != walk.disk
        })
    }

    /// [`Fetcher::choose`] in the middle of a list, whose order stays until the disk is known: whether it has a head.
    fn choose_anew(&mut self, index: usize, walk: &mut Walk) -> Option<bool> {
        let before = std::mem::take(&mut walk.order);
        let decided = self.choose(index, walk);
        let chosen = std::mem::replace(&mut walk.order, before);
        if !decided && matches!(walk.order, Order::Stream(_)) {
            self.asked(index, walk, u64::MAX);
        }
        match chosen {
            Order::Rounds(_) => Some(true),
            Order::Stream(_) => Some(false),
            Order::Unknown => None,
        }
    }

    /// The device is known from now on.
    fn decide(
        &mut self,
        index: usize,
        walk: &mut Walk,
        dev: DeviceId,
        rounds: bool,
        lone_us: Option<f64>,
    ) {
        self.engine.tried(dev, rounds, lone_us);
        walk.disk = dev;
        if rounds {
            // The program goes on waiting: others may be about to measure.
            self.turns.found(dev);
        } else {
            self.engine.allow(dev, BULK);
            self.asked(index, walk, u64::MAX);
        }
        self.turns.give(index);
        walk.order = Order::of(rounds);
    }

    /// Looks on which disks of several the list goes on (SPEC DR7): in rounds where one of them has a head, and in the order of need elsewhere.
    pub(super) fn look_around(&mut self, index: usize, walk: &mut Walk) {
        let rounds = match &walk.order {
            _ if !walk.several || self.wishes.rounds.is_some() => return,
            Order::Rounds(round) if round.lone || !round.is_used_up(walk.seen.0) => {
                return;
            }
            Order::Unknown => return,
            Order::Rounds(_) => true,
            Order::Stream(stream) => stream.until.is_some(),
        };
        let Some(pieces) = self.next_pieces(index, walk) else {
            return;
        };
        let (mut last, mut goes_on) = (None, None);
        for p in &pieces {
            self.open(p);
            let Some(own) = self.files.get(&p.file) else {
                continue;
            };
            let Some(handle) = &own.handle else { continue };
            let here = self.engine.device_of(own.dev, handle, p.offset);
            if last.replace(here) == Some(here) {
                continue;
            }
            match self.engine.model(here).serial() {
                Some(true) => {
                    goes_on = Some((here, true));
                    break;
                }
                Some(false) => goes_on = goes_on.or(Some((here, false))),
                None if goes_on.is_none() => {
                    goes_on = self.choose_anew(index, walk).map(|rounds| (here, rounds));
                }
                None => {}
            }
        }
        let Some((disk, head)) = goes_on else { return };
        walk.disk = disk;
        if head != rounds {
            if !head {
                self.turns.give(index);
                self.asked(index, walk, u64::MAX);
            }
            walk.order = std::mem::take(&mut walk.order).turned(walk.front.0, head);
        }
    }

    /// Fetches pages, the first [`LONE`] one by one and the rest at once. `None` where that can't be done.
    fn measure(&self, dev: DeviceId, spread: &[(u16, u64)]) -> Option<Measured> {
        let reads = || counters::read(dev).map(|r| r.completed);
        let (lone, together) = spread.split_at(LONE);
        let mut took = [(0.0, 0); LONE];
        for ((file, page), took) in lone.iter().zip(&mut took) {
            let (before, since) = (reads(), Instant::now());
            if !self.fetch_page(*file, *page) || !self.await_page(*file, *page) {
                return None;
            }
            *took = (
                since.elapsed().as_secs_f64() * 1e6,
                made(before, reads(), 1),
            );
        }
        took.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let (lone_us, beside) = took[LONE / 2];
        let (before, since) = (reads(), Instant::now());
        for (file, page) in together {
            self.fetch_page(*file, *page);
        }
        for (file, page) in together {
            self.await_page(*file, *page);
        }
        let together_us = since.elapsed().as_secs_f64() * 1e6;
        let all = made(before, reads(), AT_ONCE as u64);
        Some(Measured {
            lone_us,
            together_us,
            load: (all as f64 / beside as f64).min(AT_ONCE as f64),
        })
    }

    fn fetch_page(&self, file: u16, page: u64) -> bool {
        let Some(own) = self.files.get(&file) else {
            return false;
        };
        let now = self.start.elapsed().as_micros() as u64;
        let range = page * PAGE..(page + 1) * PAGE;
        let fetch = |h: &Arc<Handle>| self.engine.fetch_now(h, range);
        let asked = own.handle.as_ref().is_some_and(fetch);
        if asked {
            own.view.begin(PageRange::new(page, page + 1), now);
            own.view.complete(PageRange::new(page, page + 1), now);
            self.process.count(Figure::Fetched, PAGE);
        }
        asked
    }

    fn await_page(&self, file: u16, page: u64) -> bool {
        self.files
            .get(&file)
            .and_then(|o| o.handle.as_ref())
            .is_some_and(|h| h.wait(page * PAGE, self.notes))
    }
}

/// Requests that a device has made between two looks at its counter, of which `ours` are known of, counter or not.
fn made(before: Option<u64>, after: Option<u64>, ours: u64) -> u64 {
    let counted = before.zip(after).map_or(0, |(b, a)| a.saturating_sub(b));
    counted.max(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LP3: a disk is told from a device with parallelism beside others' reads, too.
    #[test]
    fn heads_are_found_beside_others() {
        // One request of a disk's queue takes so long, whoever asked for it; sorting makes sixteen of them cheaper.
        let disk = |others: f64| Measured {
            lone_us: 700.0 * (others + 1.0),
            together_us: 480.0 * (others + AT_ONCE as f64),
            load: (others + AT_ONCE as f64) / (others + 1.0),
        };
        // All take as long as one, and a little for each request.
        let parallel = |others: f64| Measured {
            lone_us: 500.0 + 10.0 * others,
            together_us: 500.0 + 10.0 * (others + AT_ONCE as f64),
            load: (others + AT_ONCE as f64) / (others + 1.0),
        };
        for others in [0.0, 1.0, 2.0] {
            assert!(disk(others).has_head(), "disk beside {others}");
            assert!(!parallel(others).has_head(), "parallel beside {others}");
        }
        let flash = Measured {
            lone_us: 120.0,
            together_us: 1900.0,
            load: 16.0,
        };
        assert!(!flash.has_head(), "nothing to win by sorting");
    }
}
