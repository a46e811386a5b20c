//! SPEC CP11: memory-mapped files, of whose pages it is looked which were touched.

use std::time::Duration;

use super::decide::Want;
use super::kernel::Kernel;
use super::random_reads::Unordered;
use super::{Service, bounds};
use crate::intent::Intent;
use crate::shm::{Origin, lost};
use crate::source::Limits;
use crate::source::mapped::Mapped;

impl<K: Kernel> Service<K> {
    /// Looks what was touched of a mapping, and has what comes next fetched: whether anything was, and whether anything was asked for.
    fn look_at_map(&mut self, i: usize, pid: u32, m: &mut Mapped) -> (bool, bool) {
        let key = m.file();
        // Touches are seen too late for their neighbourhood.
        let limits = Limits {
            delay: 0,
            ..self.limits(key)
        };
        let Some(size) = self.files.get(&key).map(|f| f.size) else {
            return (false, false);
        };
        let touched = match self.kernel.touched(pid, m) {
            Ok(touched) => touched,
            Err(e) => {
                // A process that has just ended is no reason to complain.
                if e.kind() == std::io::ErrorKind::PermissionDenied {
                    self.header().lose(lost::PAGEMAP);
                }
                return (false, false);
            }
        };
        let touching = !touched.is_empty();
        let mut ranges = Vec::new();
        self.reads_now(i, key);
        for r in touched {
            let len = r.end - r.start;
            let arrival = self.seen(key, r.start, len);
            let f = m.detector.access(r.start, len, 0, arrival, size, &limits);
            ranges.extend(f.ranges);
            if f.random {
                let read = Unordered {
                    offset: r.start,
                    len,
                    arrival,
                    skipped: 0,
                    onward: f.onward,
                    unrepeated: true,
                };
                let known = self.take_in_random(key, &read);
                if let Some(region) = known.and_then(|known| known.region) {
                    self.stream_region(key, &Want::dense(region));
                }
            }
        }
        if ranges.is_empty() {
            return (touching, false);
        }
        let out = self.fetch(Intent::new(key, &ranges, Origin::Mapped));
        if let Some(at) = out.refused_at {
            m.detector.streams.retreat(at);
        }
        (touching, true)
    }

    /// Looks at all mappings, for as long as a turn of each process.
    pub(super) fn look_at_maps(&mut self) {
        let begun = self.kernel.now();
        let (mut active, mut touching) = (false, false);
        for i in self.active.clone() {
            let Some(state) = &mut self.procs[i] else {
                continue;
            };
            if state.mapped.is_empty() {
                continue;
            }
            let pid = state.pid;
            let mut mapped = std::mem::take(&mut state.mapped);
            let turn = self.kernel.now();
            let mut looked = 0;
            for m in &mut mapped {
                if self.kernel.since(turn) > bounds::TURN {
                    break;
                }
                looked += 1;
                let (touched, asked) = self.look_at_map(i, pid, m);
                (touching, active) = (touching | touched, active | asked);
            }
            // Those that there was no time for come first the next time.
            mapped.rotate_left(looked);
            if let Some(state) = &mut self.procs[i] {
                mapped.append(&mut state.mapped);
                state.mapped = mapped;
                state.has_taken(self.kernel.since(turn));
            }
        }
        self.map_pause = if active {
            Duration::from_micros(500)
        } else {
            // Touches that show no pattern are looked at more rarely, but not so rarely that one which begins is missed.
            let rarest = if touching { 16 } else { 100 };
            (self.map_pause * 2).min(Duration::from_millis(rarest))
        };
        // Where there is much to look at, half of the time is left for what is told.
        self.map_pause = self.map_pause.max(self.kernel.since(begun));
        self.last_map_look = self.kernel.now();
    }
}
