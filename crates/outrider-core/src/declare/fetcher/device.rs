//! What a device does with one request and with several: rounds or a stream.

use std::time::Instant;

use outrider_sys::cache;

use super::super::Figure;
use super::{Fetcher, Order, Walk};
use crate::view::{PAGE_BYTES, PageRange};

/// A device that answers a lone request within this many µs has no head, and nothing is won by sorting (flash: 50 to 200 µs; a
/// tenth of a disk's seek: 800).
const NO_HEAD_US: f64 = 300.0;
/// Requests that are made one after the other; their median counts, because one may lie near the head, and one behind somebody else's.
const LONE: usize = 4;
/// A head, which sorts them, takes at least so many times as long for those made at once as for one; a device without takes little more.
const SERIAL: f64 = 3.0;
/// Requests that are made at once to see whether a device works on them in parallel.
const AT_ONCE: usize = 16;
/// Bytes in flight, at least, on a device without a head. The program waits for what it has declared, and a fast device is seldom full while
/// threads take turns on the processors, so that the engine's own search for the fewest bytes ends too low: for many small
/// requests at half the rate. It is what ordinary reads of a deep queue hold, and delays others by 2 ms at 1 GB/s.
const IN_FLIGHT: u64 = 2 << 20;

/// What was measured of a device.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    pub(super) rounds: bool,
    pub(super) latency_us: f64,
}

impl Fetcher {
    /// Chooses rounds or a stream by what the device does with several requests at once (SPEC LP3).
    pub(super) fn choose(&mut self, index: usize, walk: &mut Walk) {
        if let Some(rounds) = self.wishes.rounds {
            walk.order = Order::of(rounds);
            return;
        }
        let Some(pieces) = self.next_pieces(index, walk) else {
            return;
        };
        let mut spread: Vec<(u16, u64)> = Vec::new();
        for p in &pieces {
            self.open(p);
            let Some(own) = self.files.get(&p.file) else {
                continue;
            };
            if let Some(manner) = self.manners.get(&own.dev) {
                walk.order = Order::of(manner.rounds);
                return;
            }
            let Some(handle) = own.handle.clone() else {
                continue;
            };
            // Requests that a disk has to move for: neighbours would be answered together.
            const APART: u64 = (256 << 10) / PAGE_BYTES;
            let page = p.offset / PAGE_BYTES;
            let near = |s: &(u16, u64)| s.0 == p.file && s.1.abs_diff(page) < APART;
            let mut missing = Vec::new();
            let one = PageRange::new(page, page + 1);
            if !spread.iter().any(near)
                && own.missing(&handle, one, own.view.count(one), &mut missing) == 0
            {
                spread.push((p.file, page));
            }
            if spread.len() == AT_ONCE + LONE {
                break;
            }
        }
        if spread.len() < AT_ONCE + LONE {
            // Too little to tell apart, and too little to matter.
            self.asked(index, walk, u64::MAX);
            return;
        }
        // Beside somebody's sweep nothing is learned of the disk, and the program would only disturb it.
        let dev = spread
            .first()
            .and_then(|(f, _)| self.files.get(f))
            .map_or(0, |o| o.dev);
        if !self.turns.take(index, dev, true) {
            self.asked(index, walk, walk.seen.0);
            return;
        }
        if self.turns.is_found(dev) {
            let latency_us = self.engine.model(dev).latency_us;
            let rounds = true;
            self.manners.insert(dev, Manner { rounds, latency_us });
            self.turns.give(index);
            walk.order = Order::of(rounds);
            return;
        }
        // Nor beside the program's own reads.
        self.asked(index, walk, walk.seen.0);
        let (lone, together) = spread.split_at(LONE);
        let mut took_alone = [0.0; LONE];
        for ((file, page), took) in lone.iter().zip(&mut took_alone) {
            let since = Instant::now();
            if !self.fetch_page(*file, *page) || !self.await_page(*file, *page) {
                self.turns.give(index);
                self.asked(index, walk, u64::MAX);
                walk.order = Order::of(false);
                return;
            }
            *took = since.elapsed().as_secs_f64() * 1e6;
        }
        took_alone.sort_unstable_by(f64::total_cmp);
        let latency = took_alone[LONE / 2];
        let since = Instant::now();
        for (file, page) in together {
            self.fetch_page(*file, *page);
        }
        for (file, page) in together {
            self.await_page(*file, *page);
        }
        let took = since.elapsed().as_secs_f64() * 1e6;
        let rounds = latency > NO_HEAD_US && took > latency * SERIAL;
        self.manners.insert(
            dev,
            Manner {
                rounds,
                latency_us: latency,
            },
        );
        self.explain.device(dev, latency, took, rounds);
        if rounds {
            // The program goes on waiting: others may be about to measure.
            self.turns.found(dev);
        } else {
            self.engine.allow(dev, IN_FLIGHT);
            self.asked(index, walk, u64::MAX);
        }
        self.turns.give(index);
        walk.order = Order::of(rounds);
    }

    fn fetch_page(&self, file: u16, page: u64) -> bool {
        let Some(own) = self.files.get(&file) else {
            return false;
        };
        let now = self.start.elapsed().as_micros() as u64;
        let range = page * PAGE_BYTES..(page + 1) * PAGE_BYTES;
        let asked = own
            .handle
            .as_ref()
            .is_some_and(|h| cache::will_need_once(h.fd(), range).is_ok());
        if asked {
            own.view.begin(PageRange::new(page, page + 1), now);
            own.view.complete(PageRange::new(page, page + 1), now);
            self.process.count(Figure::Fetched, PAGE_BYTES);
        }
        asked
    }

    fn await_page(&self, file: u16, page: u64) -> bool {
        self.files
            .get(&file)
            .and_then(|o| o.handle.as_ref())
            .is_some_and(|h| h.wait(page * PAGE_BYTES, self.header))
    }
}
