//! SPEC CP11: memory-mapped files, of whose pages it is looked which were touched.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{InodeKey, pieces};

use super::decide::Want;
use super::kernel::Kernel;
use super::processes::ProcState;
use super::random_reads::Unordered;
use super::{Service, bounds, credit};
use crate::asked::When;
use crate::device::{DeviceModel, READAHEAD};
use crate::intent::Intent;
use crate::shm::{Event, Origin, lost};
use crate::source::mapped::Mapped;
use crate::source::{Arrival, Limits};

/// Mappings looked at per process.
const MAPPINGS: usize = 64;

impl<K: Kernel> Service<K> {
    /// Looks what was touched of a mapping, and has what comes next fetched: whether anything was, and whether anything was asked for.
    fn look_at_map(&mut self, i: usize, pid: u32, m: &mut Mapped) -> (bool, bool) {
        let key = m.file();
        let model = self.model(self.device(key));
        let limits = self.limits_of_map(key, &model);
        let Some(size) = self.files.get(&key).map(|f| f.size()) else {
            return (false, false);
        };
        let epoch = self.shared.begin_epoch();
        let (scanned, looked) = m.last_look();
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
        m.was_looked_at(epoch);
        let touching = !touched.is_empty();
        if !touching {
            return (false, self.goes_on_streaming(key));
        }
        let mut ranges = Vec::new();
        self.reads_now(i, key);
        let now = self.now_us();
        for r in touched {
            let len = r.end - r.start;
            // What had not been touched by the last look was touched after it.
            let within = scanned.start <= r.start && r.end <= scanned.end;
            let when = When::Since {
                epoch: if within { looked } else { 0 },
                reader: None,
            };
            let (arrival, _) = self.seen(key, r.start, len, &when);
            let f = m.detector.access(r.start, len, 0, arrival, size, &limits);
            let streams = &m.detector.streams;
            let read = credit::Read {
                len,
                arrival,
                skipped: (len / READAHEAD).saturating_sub(1),
                plain_us: match f.random {
                    true => None,
                    false => credit::Read::plain_us(streams, len, READAHEAD, &limits.funds),
                },
                funds: limits.funds,
                now,
            };
            self.account_for_read(key, &read, &f);
            ranges.extend(f.ranges);
            let missing = arrival == Arrival::Missing;
            m.runs.touched(r, missing, f.random, f.onward);
        }
        // A part takes longer than what was bought with the last one.
        let mut asked = self.take_in_runs(key, m, &model) | self.goes_on_streaming(key);
        // Where there is no room what is bought is bought with the next part.
        asked &= self.model(self.device(key)).bulk().has_room();
        asked |= self.is_probing(key);
        if ranges.is_empty() || !self.stands(i) {
            return (touching, asked);
        }
        let plain = m.detector.streams.latest().is_some_and(|s| s.plain());
        if let Some(process) = self.processes.get_mut(i).filter(|_| plain) {
            process.streams(u64::MAX - key.ino, self.kernel.now());
        }
        let out = self.fetch(Intent::new(key, &ranges, Origin::Mapped));
        self.stake_mapped(key, &mut m.detector.streams, &limits.funds, &out);
        if let Some(at) = out.refused_at {
            m.detector.streams.retreat(at);
        }
        (touching, true)
    }

    /// [`Service::limits`] of a file whose mapping is looked at.
    fn limits_of_map(&mut self, key: InodeKey, model: &DeviceModel) -> Limits {
        // Touches are seen too late for their neighbourhood, and each is a fault's, however many are seen at once.
        let mut limits = Limits {
            delay: 0,
            ..self.limits(key)
        };
        limits.funds.long = u64::MAX;
        // What comes back does so late, when it is seen; where there is room that is no reason to wait.
        if model.bulk().has_room() {
            limits.funds.left_us = f64::INFINITY;
        }
        limits
    }

    /// Takes in what was touched in no order, and is over; whether anything was asked for because of it.
    fn take_in_runs(&mut self, key: InodeKey, m: &mut Mapped, model: &DeviceModel) -> bool {
        let mut asked = false;
        // Who copies a part, and then another elsewhere, reads parts in no order, however well each is foreseen once it has begun.
        for run in m.runs.over() {
            let arrival = match run.missing {
                true => Arrival::Missing,
                false => Arrival::Present,
            };
            // A fault waits for what the kernel reads around it; a head has come there with the first one.
            let each = match model.may_seek() {
                true => run.range.end - run.range.start,
                false => READAHEAD,
            };
            for piece in pieces(run.range, each) {
                let read = Unordered {
                    offset: piece.start,
                    len: piece.end - piece.start,
                    arrival,
                    skipped: 0,
                    onward: run.onward,
                    unrepeated: true,
                };
                let known = self.take_in_random(key, &read);
                if let Some(region) = known.and_then(|known| known.region) {
                    self.stream_region(key, &Want::dense(region));
                    asked = true;
                }
            }
        }
        asked
    }

    /// Looks at all mappings, for as long as a turn of each process.
    pub(super) fn look_at_maps(&mut self) {
        let begun = self.kernel.now();
        let (mut active, mut touching) = (false, false);
        for i in self.processes.active().to_vec() {
            let Some(state) = self.processes.get_mut(i) else {
                continue;
            };
            if state.mapped().is_empty() {
                continue;
            }
            let pid = state.pid();
            let mut mapped = std::mem::take(state.mapped_mut());
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
            if let Some(state) = self.processes.get_mut(i) {
                mapped.append(state.mapped_mut());
                *state.mapped_mut() = mapped;
                state.debt().takes(self.kernel.since(turn));
            }
        }
        let now = self.kernel.now();
        self.turns.looked_at_maps(touching, active, begun, now);
    }

    /// A process has mapped a file from byte `offset` on.
    pub(super) fn has_mapped(&mut self, i: usize, e: &Event, memory: Range<u64>, offset: u64) {
        let known = self.known(i, e);
        let Some(key) = known.or_else(|| self.mapped_file(i, memory.start)) else {
            return;
        };
        let limits = self.limits(key);
        let mut new = Mapped::new(key.dev, key.ino, memory, offset, &limits);
        new.was_looked_at(self.hearing.epoch());
        let few = |p: &ProcState| p.mapped().len() < MAPPINGS;
        if !self.processes.get(i).is_some_and(few) || !self.maps_more(i, new.bytes()) {
            return;
        }
        if let Some(state) = self.processes.get_mut(i) {
            state.mapped_mut().push(new);
        }
        if let Some(f) = self.files.get_mut(&key) {
            f.hold.opened_by(1);
        }
        self.turns.has_mapped();
    }

    /// Puts others in the place of mappings of a process, for which `others` names any.
    pub(super) fn remap(&mut self, i: usize, others: impl Fn(&Mapped) -> Option<Vec<Mapped>>) {
        let Some(state) = self.processes.get_mut(i) else {
            return;
        };
        let mut changed: Vec<(InodeKey, u32)> = Vec::new();
        let mapped = state.mapped_mut();
        let mut count = mapped.len();
        for m in std::mem::take(mapped) {
            let Some(mut instead) = others(&m) else {
                mapped.push(m);
                continue;
            };
            // Holes must not make more of them than are followed.
            if count - 1 + instead.len() > MAPPINGS {
                instead.truncate(1);
            }
            count = count - 1 + instead.len();
            changed.push((m.file(), instead.len() as u32));
            mapped.extend(instead);
        }
        // Longer ones need more memory.
        while !changed.is_empty() && !self.maps_more(i, 0) {
            let gone = self.processes.get_mut(i).and_then(|p| p.mapped_mut().pop());
            let Some(gone) = gone else { break };
            changed.push((gone.file(), 0));
        }
        for (key, instead) in changed {
            if let Some(f) = self.files.get_mut(&key) {
                f.hold.opened_by(instead);
            }
            self.unlink(key);
        }
    }

    /// The file behind an address of process `i`, whose descriptors are closed already; taken in if it is new.
    fn mapped_file(&mut self, i: usize, address: u64) -> Option<InodeKey> {
        if self.quiesce.is_quiesced() {
            return None;
        }
        let pid = self.processes.get(i)?.pid();
        if !self.stands(i) {
            return None;
        }
        let (name, dev, ino, size) = self.kernel.behind(pid, address)?;
        if self.excluded.holds(&name) {
            return None;
        }
        let key = InodeKey { dev, ino };
        if size < self.config.files.min_size.0 {
            return None;
        }
        let file = self.take_in(key, size);
        file.set_size(size);
        if !file.has_name() {
            file.set_name(name);
        }
        file.account.cancelled.store(false, Relaxed);
        self.handle_of_mapped(key, i)?;
        self.introduce(key);
        self.located(key).then_some(key)
    }
}
