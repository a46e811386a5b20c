//! Reads across the grain: a picture stored tile by tile in rows and read by columns, a matrix, a table of fixed records.
//!
//! Such a reader makes *lines*: strided passes, each of which begins where the one before began, one read further. The next line
//! of each place lies right behind this one, and on a device whose requests cost more than the transfer of a read, asking for
//! several lines at once saves most of the requests. How many, a *band*, is bounded by memory: all of a band is held until its last line is
//! read. The kernel does the same in the small: it reads ahead where it finds the pages before cached, which a prefetch of single
//! lines would take from it.

use std::ops::Range;

/// Lines that have begun beside the one before until the next is taken for granted.
const CERTAIN: u32 = 2;
/// Whole lines that may go by while there was no time to look at reads.
const MISSED: u64 = 3;
/// Places of a line at most; bounds the work of one event.
const MOST_PLACES: u64 = 2048;

/// The lines of one descriptor, forwards.
#[derive(Clone, Debug)]
pub struct Tiled {
    /// Bytes from one read of a line to the next.
    stride: u64,
    /// Bytes of a read.
    len: u64,
    /// Where the present line begins, as far as known.
    start: u64,
    /// Start of the last read known of the present line.
    last: u64,
    /// Bytes from the first read of a line to its last; the longest so far.
    span: u64,
    /// Lines in succession that began beside the one before.
    lines: u32,
    /// Bytes of the present line and those behind it that were asked for at each place, from the present line on.
    band: u64,
    /// The latest band's whole width, bytes.
    width: u64,
    /// Bands are at most so wide, bytes; less after they were evicted before they were read.
    widest: u64,
}

impl Tiled {
    /// A field whose first line begins at `start`.
    pub fn new(start: u64, stride: u64, len: u64) -> Tiled {
        Tiled {
            stride,
            len,
            start,
            last: start,
            span: 0,
            lines: 0,
            band: 0,
            width: 0,
            widest: u64::MAX,
        }
    }

    /// Bytes from one read of a line to the next.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Whether a second line has begun.
    pub fn is_known(&self) -> bool {
        self.lines > 0
    }

    /// Whether the present line was asked for with others.
    pub fn in_band(&self) -> bool {
        self.band > 0
    }

    /// Where a read at `offset` lies beside the present line, bytes.
    fn beside(&self, offset: u64) -> u64 {
        (offset as i64)
            .wrapping_sub(self.start as i64)
            .rem_euclid(self.stride as i64) as u64
    }

    /// Whether a read of `len` bytes at `offset` begins the next line. Lines of no more than `streams` reads are none: so many
    /// places are followed one by one, each as a stream of its own.
    pub fn turns_at(&self, offset: u64, len: u64, streams: usize) -> bool {
        let span = self.span.max(self.last.saturating_sub(self.start));
        len == self.len
            && offset < self.last
            && span / self.stride >= streams as u64
            && (1..=MISSED + 1).contains(&(self.beside(offset) / self.len))
            && self.beside(offset).is_multiple_of(self.len)
    }

    /// Whether a strided stream that was found from `start` on is the present line.
    pub fn is_on(&self, start: u64, stride: u64, len: u64) -> bool {
        stride == self.stride && len == self.len && self.beside(start) == 0
    }

    /// The next line has begun with a read at `offset`.
    pub fn turn(&mut self, offset: u64) {
        let aside = self.beside(offset);
        self.span = self.span.max(self.last.saturating_sub(self.start));
        self.start = self.start.saturating_add(aside).min(offset);
        self.last = offset;
        self.lines += 1;
        self.band = self.band.saturating_sub(aside);
    }

    /// A read of the present line at `offset`.
    pub fn step(&mut self, offset: u64) {
        self.last = self.last.max(offset);
    }

    /// Where the present line ends if it is as long as those before; `None` in the first.
    pub fn end(&self) -> Option<u64> {
        (self.span > 0).then(|| self.start + self.span + self.len)
    }

    /// At the begin of a line: what to ask for from `offset` on, at all places of the line; with the last line of a band, the
    /// next band too, so that the reader finds it on its way. `most` bounds the bytes of a band, `broad` the bytes at
    /// a place. `None` where single lines do as well.
    pub fn band(
        &mut self,
        offset: u64,
        size: u64,
        most: u64,
        broad: u64,
    ) -> Option<Vec<Range<u64>>> {
        if self.lines < CERTAIN || self.span == 0 {
            return None;
        }
        let places = self.span / self.stride + 1;
        if places > MOST_PLACES {
            return None;
        }
        let mut ask = self.len;
        if self.band <= self.len {
            let fits = broad.min(most / places).min(self.widest).min(self.stride);
            self.width = fits / self.len * self.len;
            if self.width < 2 * self.len {
                self.band = 0;
                return None;
            }
            self.band += self.width;
            ask = self.band;
            // Evicted bands made them narrower; that may have been somebody else's need for memory.
            self.widest = self.widest.saturating_add(self.len);
        }
        let end = (self.start + self.span).min(size.saturating_sub(1));
        let ranges = (offset..=end)
            .step_by(self.stride as usize)
            .map(|at| at..(at + ask).min(size));
        Some(ranges.collect())
    }

    /// What was asked for was evicted before it was read: bands become narrower, and the present one ends.
    pub fn shrink(&mut self) {
        self.widest = (self.width.min(self.widest) / 4 * 3).max(self.len);
        self.band = 0;
    }
}

#[cfg(test)]
mod tests {
    use outrider_sys::units::PAGE;

    use crate::source::predict::{Arrival, Detector, Limits};

    const TILE: u64 = 16 << 10;

    /// A picture of 64 x 128 tiles, stored by rows and read by columns, with `quantum` bytes worth a request and `max` of window.
    /// Returns the pieces asked for, the bytes of these, and the reads that were not asked for.
    fn columns(max: u64, quantum: u64) -> (usize, u64, usize) {
        let (width, height) = (64, 128);
        let size = 3 * width * height * TILE;
        let limits = Limits {
            counter_bits: 3,
            random_distance: 128 << 10,
            sparse: 0,
            delay: 0,
            now: 0,
            near: u64::MAX,
            max_streams: 16,
            initial: 128 << 10,
            max,
            quantum,
            chunk: 128 << 10,
            skip_when_steady: true,
        };
        let mut d = Detector::new(&limits);
        let mut asked = vec![false; (size / PAGE) as usize];
        let (mut pieces, mut bytes, mut missed) = (0, 0, 0);
        for column in 0..width {
            for row in 0..height {
                let at = (row * width + column) * TILE;
                let pages = (at / PAGE) as usize..((at + TILE) / PAGE) as usize;
                let there = asked[pages.clone()].iter().all(|a| *a);
                missed += usize::from(!there);
                asked[pages].fill(true);
                let arrival = if there {
                    Arrival::Present
                } else {
                    Arrival::Missing
                };
                let f = d.access(at, TILE, 1, arrival, size, &limits);
                for r in f.ranges {
                    let new = (r.start / PAGE..r.end / PAGE)
                        .filter(|p| !std::mem::replace(&mut asked[*p as usize], true))
                        .count() as u64;
                    pieces += usize::from(new > 0);
                    bytes += new * PAGE;
                }
            }
        }
        (pieces, bytes, missed)
    }

    /// LP9: with memory for a quarter of the picture, a request brings many lines; with memory for next to nothing, as for any
    /// stride, one; and in neither case is the picture read twice.
    #[test]
    fn lines_are_fetched_in_bands() {
        let picture = 64 * 128 * TILE;
        let (pieces, bytes, missed) = columns(24 << 20, 1 << 20);
        assert!(pieces < 64 * 128 / 6, "{pieces} pieces");
        assert!(bytes < picture * 11 / 10, "{bytes} bytes");
        assert!(missed < 64 * 128 / 16, "{missed} reads missed");
        let (pieces, bytes, missed) = columns(1 << 20, 1 << 20);
        assert!(pieces > 64 * 128 / 2, "{pieces} pieces");
        assert!(bytes < picture * 11 / 10, "{bytes} bytes");
        assert!(missed < 64 * 128 / 8, "{missed} reads missed");
    }
}
