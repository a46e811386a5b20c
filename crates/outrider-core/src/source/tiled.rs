//! Reads across the grain: a picture stored tile by tile in rows and read by columns, a matrix, a table of fixed records.
//!
//! Such a reader makes *lines*: strided passes, each of which begins where the one before began, one read further. The next line
//! of each place lies right behind this one, and on a device whose requests cost more than the transfer of a read, asking for
//! several lines at once saves most of the requests. How many, a *band*, is bounded by memory: all of a band is held until its last line is
//! read. The kernel does the same in the small: it reads ahead where it finds the pages before cached, which a prefetch of single
//! lines would take from it.

use outrider_sys::units::ByteRange;

use super::recogniser::{Claim, Limits, Read, Recogniser};

/// Lines that have begun beside the one before until the next is taken for granted.
const CERTAIN: u32 = 2;
/// Whole lines that may go by while there was no time to look at reads.
const MISSED: u64 = 3;
/// Places of a line at most; bounds the work of one event.
const MOST_PLACES: u64 = 2048;

/// The lines of one descriptor, forwards.
#[derive(Clone, Debug)]
pub(super) struct Tiled {
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

/// The lines that a descriptor is read by, if it is read by such.
#[derive(Clone, Debug, Default)]
pub(super) struct Tiles(Option<Tiled>);

impl Recogniser for Tiles {
    /// Looks whether a line is over and the next one begins.
    fn observe(&mut self, read: &Read) -> Claim {
        let next = |t: &&mut Tiled| t.turns_at(read.offset, read.len, read.limits.max_streams);
        let Some(tiled) = self.0.as_mut().filter(next) else {
            return Claim::Nothing;
        };
        tiled.turn(read.offset);
        Claim::Line {
            stride: tiled.stride,
        }
    }
}

impl Tiles {
    /// The lines of which a read at `offset` is one, of a stream of reads `stride` bytes apart and `len` long.
    pub(super) fn line_of(&mut self, offset: u64, stride: i64, len: u64) -> Option<&mut Tiled> {
        let is = |t: &&mut Tiled| stride > 0 && t.is_on(offset, stride.unsigned_abs(), len);
        self.0.as_mut().filter(is)
    }

    /// A stream of reads `stride` bytes apart and `len` long was found that began at `start`: perhaps the first line.
    pub(super) fn begin(&mut self, start: u64, stride: u64, len: u64) {
        let known = self.0.as_ref();
        if !known.is_some_and(|t| t.is_on(start, stride, len)) {
            self.0 = Some(Tiled::new(start, stride, len));
        }
    }

    /// The stride of the streams that are lines, once a second one has begun.
    pub(super) fn known(&self) -> Option<u64> {
        let known = self.0.as_ref().filter(|t| t.lines > 0);
        known.map(|t| t.stride)
    }

    /// The same where the present line was asked for with others.
    pub(super) fn band(&self) -> Option<u64> {
        let band = self.0.as_ref().filter(|t| t.in_band());
        band.map(|t| t.stride)
    }

    /// The line that begins with a read at `offset` was asked for and evicted before it was read: what to ask for instead.
    pub(super) fn narrow(
        &mut self,
        offset: u64,
        size: u64,
        limits: &Limits,
    ) -> Option<Vec<ByteRange>> {
        let tiled = self.0.as_mut()?;
        tiled.shrink();
        tiled.band(offset, size, limits.band(), limits.quantum)
    }
}

impl Tiled {
    /// A field whose first line begins at `start`.
    fn new(start: u64, stride: u64, len: u64) -> Tiled {
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

    /// Whether the present line was asked for with others.
    pub(super) fn in_band(&self) -> bool {
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
    fn turns_at(&self, offset: u64, len: u64, streams: usize) -> bool {
        let span = self.span.max(self.last.saturating_sub(self.start));
        len == self.len
            && offset < self.last
            && span / self.stride >= streams as u64
            && (1..=MISSED + 1).contains(&(self.beside(offset) / self.len))
            && self.beside(offset).is_multiple_of(self.len)
    }

    /// Whether a strided stream that was found from `start` on is the present line.
    fn is_on(&self, start: u64, stride: u64, len: u64) -> bool {
        stride == self.stride && len == self.len && self.beside(start) == 0
    }

    /// The next line has begun with a read at `offset`.
    fn turn(&mut self, offset: u64) {
        let aside = self.beside(offset);
        self.span = self.span.max(self.last.saturating_sub(self.start));
        self.start = self.start.saturating_add(aside).min(offset);
        self.last = offset;
        self.lines += 1;
        self.band = self.band.saturating_sub(aside);
    }

    /// A read of the present line at `offset`.
    pub(super) fn step(&mut self, offset: u64) {
        self.last = self.last.max(offset);
    }

    /// Where the present line ends if it is as long as those before; `None` in the first.
    pub(super) fn end(&self) -> Option<u64> {
        (self.span > 0).then(|| self.start + self.span + self.len)
    }

    /// At the begin of a line: what to ask for from `offset` on, at all places of the line; with the last line of a band, the
    /// next band too, so that the reader finds it on its way. `most` bounds the bytes of a band, `broad` the bytes at
    /// a place. `None` where single lines do as well.
    pub(super) fn band(
        &mut self,
        offset: u64,
        size: u64,
        most: u64,
        broad: u64,
    ) -> Option<Vec<ByteRange>> {
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
    fn shrink(&mut self) {
        self.widest = (self.width.min(self.widest) / 4 * 3).max(self.len);
        self.band = 0;
    }
}

#[cfg(test)]
mod tests {
    use outrider_sys::units::PAGE;

    use super::*;
    use crate::source::recogniser::testing::{limits, read};
    use crate::source::{Arrival, Detector};

    const TILE: u64 = 16 << 10;

    /// A picture of 64 x 128 tiles, stored by rows and read by columns, with `quantum` bytes worth a request and `max` of window.
    /// Returns the pieces asked for, the bytes of these, and the reads that were not asked for.
    fn columns(max: u64, quantum: u64) -> (usize, u64, usize) {
        let (width, height) = (64, 128);
        let size = 3 * width * height * TILE;
        let limits = Limits {
            sparse: 0,
            max,
            quantum,
            ..limits()
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

    /// LP9: a line that begins one read beside the one before is claimed, with the stride of both; reads elsewhere, and lines as short as the streams that are
    /// followed one by one, are not.
    #[test]
    fn the_next_line_is_claimed() {
        let (limits, row) = (limits(), 64 * TILE);
        let claims = |places: u64, next: u64| {
            let mut tiles = Tiles::default();
            tiles.begin(0, row, TILE);
            for at in (0..places).map(|k| k * row) {
                let line = tiles.line_of(at, row as i64, TILE);
                line.expect("a read of the first line").step(at);
            }
            tiles.observe(&read(next, TILE, 1 << 30, &limits))
        };
        assert_eq!(claims(128, TILE), Claim::Line { stride: row });
        assert_eq!(claims(128, TILE / 2), Claim::Nothing);
        assert_eq!(claims(128, 32 * TILE), Claim::Nothing);
        assert_eq!(claims(limits.max_streams as u64 / 2, TILE), Claim::Nothing);
    }
}
