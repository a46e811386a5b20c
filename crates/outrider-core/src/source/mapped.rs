//! Memory-mapped reads (CrossPrefetch section 4.6, SPEC CP11).
//!
//! Loads from a mapping pass no hook. What can be seen from outside is which pages a process has mapped by touching
//! them: /proc/PID/pagemap. That is better than the cache state that the paper polls, because it goes on showing progress
//! when everything is already cached. It is still coarse: a fault maps up to 16 cached neighbours, and the order of the touches between
//! two looks is a guess. So what is followed are the blocks of 16 pages that a fault maps at most: page by page a stride of
//! no more than that looks sequential where the pages between are cached, and like a stride where they are not, and what is fetched for the
//! one is not what the other needs.
//!
//! A look scans a stretch around where the last touches were; the whole mapping is scanned only now and then, and, unless it is very long, where the last
//! look has found nothing, or touches elsewhere: who reads in no order is elsewhere by now.

use std::io;
use std::ops::Range;

use outrider_sys::pagemap::Pagemap;
use outrider_sys::units::{InodeKey, PAGE};

use super::{Detector, Limits};

/// What a fault maps at most, bytes: cached neighbours within addresses that are a multiple of it (mm/memory.c, fault_around_bytes).
const BLOCK: u64 = 64 << 10;
/// Addresses scanned around the last touches, bytes on either side.
const NEAR: u64 = 64 << 20;
/// Every so many looks the whole mapping is scanned.
const WHOLE_EVERY: u32 = 32;
/// Mappings up to this length are scanned whole after a look that has found nothing, or touches elsewhere, bytes: a quarter of a million pages, a millisecond at most.
const SCANNED: u64 = 1 << 30;
/// Mappings are followed up to this length, bytes: a bit per block, 128 KiB.
const LONGEST: u64 = 64 << 30;

/// Touches that were made one behind the other, and none of which anything had foreseen at its begin: a read in no order of so many bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The part of the file, bytes.
    pub range: Range<u64>,
    /// Some of it was missing.
    pub missing: bool,
    /// It lies behind those before it; see [`Foresight::onward`](super::Foresight::onward).
    pub onward: bool,
    /// It fits no pattern.
    random: bool,
    /// It went on at the latest look.
    goes_on: bool,
}

/// The runs of touches that go on.
#[derive(Clone, Debug, Default)]
pub struct Runs(Vec<Run>);

impl Runs {
    /// A part of the file was touched of which something was `missing`. `random`: no pattern was found in it, and `onward` as of a [`Run`].
    pub fn touched(&mut self, range: Range<u64>, missing: bool, random: bool, onward: bool) {
        let before = self.0.iter_mut().find(|run| run.range.end == range.start);
        if let Some(run) = before {
            run.range.end = range.end;
            run.missing |= missing;
            run.goes_on = true;
            return;
        }
        self.0.push(Run {
            range,
            missing,
            onward,
            random,
            goes_on: true,
        });
    }

    /// The runs in no order that are over, after a look at which something was touched: those that have not gone on.
    pub fn over(&mut self) -> Vec<Run> {
        let over = self
            .0
            .extract_if(.., |run| !std::mem::take(&mut run.goes_on));
        over.filter(|run| run.random).collect()
    }
}

/// One mapping of a process.
pub struct Mapped {
    dev: u64,
    ino: u64,
    memory: Range<u64>,
    file_offset: u64,
    /// Blocks known to be touched, a bit each.
    touched: Vec<u64>,
    last: u64,
    /// What was scanned at the last look, addresses, and when that was (an epoch; see [`asked`](crate::asked)).
    scanned: Range<u64>,
    looked: u64,
    looks: u32,
    /// At the last look nothing was found, or not all of it near the touches before.
    scattered: bool,
    down: bool,
    scan_refused: bool,
    /// Its detector.
    pub detector: Detector,
    /// What was touched one behind the other.
    pub runs: Runs,
}

/// What is present of some addresses of a process.
pub struct Present {
    ranges: Vec<Range<u64>>,
    /// The kernel has no quick way to tell (before Linux 6.7).
    refused: bool,
}

impl Present {
    /// What is present of the addresses `span` of process `pid`, which is not asked for in the quick way if that was `refused` before. The process can keep the caller
    /// waiting.
    ///
    /// # Errors
    /// The process can't be looked at.
    pub fn of(pid: u32, span: Range<u64>, refused: bool) -> io::Result<Present> {
        let pagemap = Pagemap::of(pid)?;
        let mut present = Present {
            ranges: Vec::new(),
            refused,
        };
        let mut found = |range| present.ranges.push(range);
        if !present.refused {
            present.refused = pagemap.scan(span.clone(), &mut found).is_err();
        }
        if present.refused {
            pagemap.read(span, &mut found)?;
        }
        Ok(present)
    }
}

impl Mapped {
    /// A mapping of file `ino` on `dev` at addresses `memory`, from `file_offset` on (bytes).
    pub fn new(
        dev: u64,
        ino: u64,
        memory: Range<u64>,
        file_offset: u64,
        limits: &Limits,
    ) -> Mapped {
        Mapped::with(dev, ino, memory, file_offset, Detector::new(limits))
    }

    fn with(
        dev: u64,
        ino: u64,
        memory: Range<u64>,
        file_offset: u64,
        detector: Detector,
    ) -> Mapped {
        let start = memory.start / PAGE * PAGE;
        let end = (memory.end.saturating_add(PAGE - 1) / PAGE * PAGE)
            .clamp(start, start.saturating_add(LONGEST));
        Mapped {
            dev,
            ino,
            memory: start..end,
            file_offset,
            touched: vec![0; (end.div_ceil(BLOCK) - start / BLOCK).div_ceil(64) as usize],
            last: start,
            scanned: start..end,
            looked: 0,
            looks: 0,
            scattered: false,
            down: false,
            scan_refused: false,
            detector,
            runs: Runs::default(),
        }
    }

    /// `st_dev` and `st_ino` of the file.
    pub fn file(&self) -> InodeKey {
        InodeKey::new(self.dev, self.ino)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Mapped>() + size_of_val(&*self.touched)
    }

    /// It was looked at in this epoch, or mapped in it.
    pub fn was_looked_at(&mut self, epoch: u64) {
        self.looked = epoch;
    }

    /// What was scanned at the last look, bytes of the file, and in which epoch that was.
    pub fn last_look(&self) -> (Range<u64>, u64) {
        let scanned = self.file_range(self.scanned.clone()).unwrap_or_default();
        (scanned, self.looked)
    }

    /// Its addresses.
    pub fn memory(&self) -> Range<u64> {
        self.memory.clone()
    }

    /// What is left of it when the pages of addresses `gone` are no longer its own; `None` if they never were.
    pub fn without(&self, gone: &Range<u64>) -> Option<Vec<Mapped>> {
        let own = self.memory();
        if gone.is_empty() {
            return None;
        }
        let gone = gone.start / PAGE * PAGE..gone.end.saturating_add(PAGE - 1) / PAGE * PAGE;
        if gone.end <= own.start || own.end <= gone.start {
            return None;
        }
        let left = [own.start..gone.start, gone.end..own.end];
        let left = left.into_iter().filter(|r| !r.is_empty());
        Some(left.map(|r| self.part(r.start - own.start, r)).collect())
    }

    /// The same mapping at addresses `memory`, perhaps longer or shorter.
    pub fn at(&self, memory: Range<u64>) -> Mapped {
        self.part(0, memory)
    }

    /// What is mapped from `further` bytes on, at addresses `memory`.
    fn part(&self, further: u64, memory: Range<u64>) -> Mapped {
        let mut part = Mapped::with(
            self.dev,
            self.ino,
            memory,
            self.file_offset.saturating_add(further),
            self.detector.clone(),
        );
        let to = part.memory.clone();
        let from = self.memory.start + further;
        let from = from..from + (to.end - to.start);
        let blocks = |r: &Range<u64>| r.start / BLOCK..r.end.div_ceil(BLOCK);
        for (word, _) in self.touched.iter().enumerate().filter(|w| *w.1 != 0) {
            for number in (word * 64..word * 64 + 64).filter(|n| self.is_touched(*n)) {
                let block = self.memory.start / BLOCK + number as u64;
                let low = (block * BLOCK).max(from.start);
                let high = ((block + 1) * BLOCK).min(from.end);
                if low >= high {
                    continue;
                }
                // It may lie in two now.
                let moved = low - from.start + to.start..high - from.start + to.start;
                for number in blocks(&moved).map(|b| (b - to.start / BLOCK) as usize) {
                    part.touched[number / 64] |= 1 << (number % 64);
                }
            }
        }
        part.last = self.last.clamp(from.start, from.end) - from.start + to.start;
        (part.looks, part.down, part.scan_refused) = (self.looks, self.down, self.scan_refused);
        part
    }

    /// The part of the file behind `addresses`, bytes; `None` where they lie elsewhere.
    pub fn file_range(&self, addresses: Range<u64>) -> Option<Range<u64>> {
        let start = addresses.start.max(self.memory.start);
        let end = addresses.end.min(self.memory.end);
        (start < end).then(|| {
            let to = |at: u64| self.file_offset.saturating_add(at - self.memory.start);
            to(start)..to(end)
        })
    }

    /// The parts of the file that a process has touched since the last look, bytes, in the order in which it most
    /// likely did. `look` tells what is present of some addresses, see [`Present::of`]; an error means that the process can't be looked at.
    pub fn look(
        &mut self,
        look: impl FnOnce(Range<u64>, bool) -> io::Result<Present>,
    ) -> io::Result<Vec<Range<u64>>> {
        let mut refused = self.scan_refused;
        let found = self.look_by(|span, mark| {
            let present = look(span, refused)?;
            refused = present.refused;
            present.ranges.into_iter().for_each(mark);
            Ok(())
        });
        self.scan_refused = refused;
        found
    }

    /// The same, where what is present of some addresses is told by `scan`.
    pub fn look_by(
        &mut self,
        scan: impl FnOnce(Range<u64>, &mut dyn FnMut(Range<u64>)) -> io::Result<()>,
    ) -> io::Result<Vec<Range<u64>>> {
        self.looks = self.looks.wrapping_add(1);
        let whole = self.scattered && self.memory.end - self.memory.start <= SCANNED;
        let near = self.last.saturating_sub(NEAR).max(self.memory.start)
            ..self.last.saturating_add(NEAR).min(self.memory.end);
        let span = match whole || self.looks % WHOLE_EVERY == 1 {
            true => self.memory.clone(),
            false => near.clone(),
        };
        let mut found = Vec::new();
        self.scanned = span.clone();
        scan(span, &mut |present| self.mark(present, &mut found))?;
        found.retain(|r| r.start < r.end);
        let is_near = |r: &Range<u64>| near.start <= r.start && r.end <= near.end;
        self.scattered = found.is_empty() || !found.iter().all(is_near);
        if let (Some(first), Some(last)) = (found.first(), found.last()) {
            let (low, high) = (first.start, last.end);
            // Between two looks touches moved either up or down; which, shows from where they were before.
            if high <= self.last {
                self.down = true;
            } else if low >= self.last {
                self.down = false;
            }
            self.last = if self.down { low } else { high };
        }
        if self.down {
            found.reverse();
        }
        let offset = self.file_offset;
        let base = self.memory.start;
        Ok(found
            .into_iter()
            .map(|r| offset.saturating_add(r.start - base)..offset.saturating_add(r.end - base))
            .collect())
    }

    /// Notes the blocks of present pages and collects what was touched anew: of a block by itself those pages, and all of one beside another.
    fn mark(&mut self, present: Range<u64>, new: &mut Vec<Range<u64>>) {
        let memory = self.memory.clone();
        let present = present.start.max(memory.start)..present.end.min(memory.end);
        if present.is_empty() {
            return;
        }
        for block in present.start / BLOCK..present.end.div_ceil(BLOCK) {
            let number = (block - memory.start / BLOCK) as usize;
            if self.is_touched(number) {
                continue;
            }
            self.touched[number / 64] |= 1 << (number % 64);
            let whole = (block * BLOCK).max(memory.start)..((block + 1) * BLOCK).min(memory.end);
            let before = number > 0 && self.is_touched(number - 1);
            if !before && !self.is_touched(number + 1) {
                new.push(whole.start.max(present.start)..whole.end.min(present.end));
                continue;
            }
            match new.last_mut() {
                Some(r) if before && r.end + BLOCK > whole.start => r.end = whole.end,
                _ => new.push(whole),
            }
        }
    }

    fn is_touched(&self, block: usize) -> bool {
        self.touched
            .get(block / 64)
            .is_some_and(|w| w & 1 << (block % 64) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::recogniser::testing;

    /// A mapping of 1 MiB of a file from 64 KiB on, at `start`, of which the blocks at these bytes of it were touched.
    fn mapping(start: u64, touched: &[u64]) -> Mapped {
        let mut m = Mapped::with(1, 2, start..start + (1 << 20), BLOCK, detector());
        for at in touched {
            m.mark(start + at..start + at + PAGE, &mut Vec::new());
        }
        m
    }

    fn detector() -> Detector {
        Detector::new(&testing::limits())
    }

    /// The bytes of the file behind the blocks of a mapping that were touched.
    fn touched(m: &Mapped) -> Vec<u64> {
        let blocks = (0..m.touched.len() * 64).filter(|b| m.is_touched(*b));
        let address = |b| ((m.memory.start / BLOCK + b as u64) * BLOCK).max(m.memory.start);
        blocks
            .map(|b| address(b) - m.memory.start + m.file_offset)
            .collect()
    }

    /// CP11: what is cut off is gone, with the rest of its last page, and what is left has its part of the file and its touches; nothing is left of a whole one.
    #[test]
    fn parts_keep_what_was_touched() {
        let start = 1 << 30;
        let m = mapping(start, &[0, 4 * BLOCK, 15 * BLOCK]);
        let before = m.without(&(start + 8 * BLOCK..start + (1 << 20))).unwrap();
        assert_eq!(before.len(), 1);
        assert_eq!(before[0].memory(), start..start + 8 * BLOCK);
        assert_eq!(touched(&before[0]), [BLOCK, 5 * BLOCK]);
        let both = m
            .without(&(start + BLOCK + 1..start + 2 * BLOCK - 1))
            .unwrap();
        assert_eq!(both.len(), 2);
        assert_eq!(both[1].memory(), start + 2 * BLOCK..start + (1 << 20));
        assert_eq!(touched(&both[1]), [5 * BLOCK, 16 * BLOCK]);
        assert_eq!(
            both[1].file_range(start..start + 3 * BLOCK),
            Some(3 * BLOCK..4 * BLOCK)
        );
        assert!(
            m.without(&(start..start + (1 << 20) - 100))
                .unwrap()
                .is_empty()
        );
        for elsewhere in [0..start, start + (1 << 20)..u64::MAX, start + 5..start + 5] {
            assert!(m.without(&elsewhere).is_none(), "{elsewhere:?}");
        }
    }

    /// CP11: a mapping that was moved, also by no multiple of a block, and made longer or shorter keeps its touches.
    #[test]
    fn moved_mappings_keep_what_was_touched() {
        let m = mapping(1 << 30, &[0, 4 * BLOCK, 15 * BLOCK]);
        let longer = m.at(1 << 40..(1 << 40) + (2 << 20));
        assert_eq!(touched(&longer), [BLOCK, 5 * BLOCK, 16 * BLOCK]);
        let shorter = m.at(1 << 40..(1 << 40) + 6 * BLOCK);
        assert_eq!(touched(&shorter), [BLOCK, 5 * BLOCK]);
        let askew = m.at((1 << 40) + PAGE..(1 << 40) + PAGE + 6 * BLOCK);
        let of = touched(&askew);
        assert!(of.contains(&BLOCK) && of.len() == 4, "{of:?}");
    }
}
