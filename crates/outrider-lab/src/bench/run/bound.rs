//! The lower bound of a row: the blocks that it needs, read as fast as the device can; and everything cached.

use std::fs;

use super::once::Way;
use super::{BOUNDS, Bench, Pair, round};
use crate::bench::column::{Column, STOCK_KB};
use crate::bench::direct;
use crate::bench::exec::not_interrupted;
use crate::bench::needed::Needed;
use crate::bench::record::BOUND;
use crate::disk;
use crate::output::Outcome;
use crate::results::median;
use crate::results::{Bound, Line};
use crate::rows::Memory;

/// Requests under way in a replay: what deep queues of today's devices take.
const REPLAY_DEPTH: usize = 64;

impl Bench<'_> {
    /// The lower bound: its median time, s, or none if it could not be told.
    pub fn bound(
        &mut self,
        pair: &Pair,
        needed: &mut Option<Needed>,
        runs: u32,
    ) -> Outcome<Option<f64>> {
        let count = runs.min(BOUNDS);
        if needed.is_none() {
            *needed = match self.trace(pair)? {
                Ok(found) => Some(found),
                Err(why) => {
                    self.record.add(&pair.skip(BOUND, why))?;
                    return Ok(None);
                }
            };
        }
        let Some(needed) = needed else {
            return Ok(None);
        };
        let reads = needed.reads();
        pair.disk.tune(&pair.device.words, STOCK_KB)?;
        pair.disk.model(&pair.device.words)?;
        let mut replay = Vec::new();
        for _ in 0..count {
            not_interrupted()?;
            replay.push(round(
                direct::read(&pair.disk.device(), &reads, REPLAY_DEPTH)?.seconds,
            ));
        }
        let mut warm = Vec::new();
        let stock = Column::stock();
        // The first one fills the cache.
        for i in 0..=count {
            let way = Way {
                model: if i == 0 {
                    disk::FULL_SPEED
                } else {
                    &pair.device.words
                },
                readahead_kb: STOCK_KB,
                memory: Memory::Free,
                beside: false,
                cold: i == 0,
                column: &stock,
                trace: None,
            };
            let done = self.once(pair, &way)?;
            if done.ended.exit != 0 || done.ended.timed_out {
                self.record
                    .add(&pair.skip(BOUND, "the commands fail when everything is cached"))?;
                return Ok(None);
            }
            if i > 0 {
                warm.push(round(done.ended.seconds));
            }
        }
        let of = |times: &[f64]| median(times).unwrap_or(f64::NAN);
        let bound = of(&replay).max(of(&warm));
        self.record.add(&Line::Bound(Bound {
            row: pair.row.name.clone(),
            device: pair.device.label.clone(),
            replay,
            warm,
            needed_bytes: needed.bytes(),
            needed_requests: needed.requests(),
        }))?;
        Ok(Some(bound))
    }

    /// The blocks that a row needs, or why that could not be found out.
    fn trace(&mut self, pair: &Pair) -> Outcome<Result<Needed, String>> {
        let file = self.scratch.path("trace");
        let stock = Column::stock();
        let way = Way {
            model: disk::FULL_SPEED,
            readahead_kb: 0,
            memory: Memory::Free,
            beside: false,
            cold: true,
            column: &stock,
            trace: Some(&file),
        };
        let done = self.once(pair, &way)?;
        if done.ended.exit != 0 || done.ended.timed_out {
            return Ok(Err("the commands fail without readahead".to_owned()));
        }
        let needed = Needed::of(&file)?;
        let _ = fs::remove_file(&file);
        Ok(Ok(needed))
    }
}
