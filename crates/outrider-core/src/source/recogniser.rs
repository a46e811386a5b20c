//! What a recogniser is: it looks at the reads of one descriptor and says which are of its kind.
//!
//! Everything here and in the recognisers is arithmetic on offsets: no system calls, no clock. Who may claim what another would claim too is said in one
//! place, [`Detector::access`](super::Detector::access).

use outrider_sys::units::ByteRange;
use std::fmt::Debug;

use super::credit::{Funds, Stake};

/// Constants of the recognisers; see `config.rs` for their meaning and sources.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bits of the counter (paper: 3).
    pub counter_bits: u32,
    /// Reads that jump less than this many bytes are random nearby, others highly random (paper: 128 KiB).
    pub random_distance: u64,
    /// Streams per descriptor.
    pub max_streams: usize,
    /// First window of a stream that was late, bytes.
    pub initial: u64,
    /// Largest window, bytes (paper: 64 MB; 128 KB in mode `predict`).
    pub max: u64,
    /// Largest window of a stream that reads forward without gaps, bytes: less than others' where it may soon be left to the kernel's own readahead.
    pub near: u64,
    /// Smallest quantum in which a window is refilled, bytes: long enough that a seek does not show.
    pub quantum: u64,
    /// Bytes of one request, at whose multiples windows end: the next one then begins with a whole request.
    pub chunk: u64,
    /// Steady random descriptors skip prediction (SPEC CP3).
    pub skip_when_steady: bool,
    /// Reads that go onward by steps of this many bytes on average, or fewer, are answered by reading on in order; 0: never.
    pub sparse: u64,
    /// Bytes that the device delivers in the time that one read waits, where that was measured; 0: neighbourhoods are not fetched.
    pub delay: u64,
    /// What looking ahead may cost.
    pub funds: Funds,
    /// The time, µs since any.
    pub now: u64,
    /// Sources beside the streams ([`SOURCES`](super::SOURCES)).
    pub sources: &'static [New],
}

impl Limits {
    /// Bytes of a band of lines: three quarters of the budget, of which a window is half.
    pub(super) fn band(&self) -> u64 {
        self.max / 2 * 3
    }
}

/// How a read found the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Everything was there.
    Present,
    /// Something was asked for and not there yet.
    Late,
    /// Something had not been asked for.
    Missing,
}

/// A read of one descriptor, as recognisers see it.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// Where it begins, bytes.
    pub offset: u64,
    /// Bytes, none of them beyond the end of the file.
    pub len: u64,
    /// Who makes it.
    pub thread: u64,
    /// How it found the cache.
    pub arrival: Arrival,
    /// Bytes of the file.
    pub size: u64,
    /// Whether a stream expected it, as far as is known when a recogniser is asked.
    pub expected: Expected,
    /// Constants.
    pub limits: &'a Limits,
}

/// Whether a stream expected a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// None did.
    No,
    /// One that may be chance.
    ByChance,
    /// One that has been followed for long enough for its reads to be its own.
    Surely,
}

/// What a recogniser makes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is of no pattern of its kind, as far as is known.
    Nothing,
    /// It is the next of the stream with this index.
    Next(usize),
    /// It was the next of a stream that is given up.
    Lapsed,
    /// It begins a line that is read as the one before: by reads `stride` bytes apart.
    Line {
        /// Bytes from the start of one read to the start of the next.
        stride: u64,
    },
    /// It is the next of those that go onward, or backwards, by steps of so many bytes on average.
    Onward {
        /// Bytes.
        step: u64,
        /// 1, or -1.
        way: i64,
    },
    /// What will be read beside it is known: [`Source::foresee`] tells.
    Around,
}

/// Looks at the reads of one descriptor.
pub trait Recogniser {
    /// Looks at a read, and says whether it is of a pattern of its kind.
    fn observe(&mut self, read: &Read) -> Claim;
}

/// A recogniser that says itself what will be read beside a read. Those of [`SOURCES`](super::SOURCES) see every read, in the order in which they stand there.
///
/// The first of them that claims [`Claim::Around`] is asked what it foresees, if the read is none of a stream's. While one claims, streams that may be chance
/// are given up, and each read is heard.
pub trait Source: Recogniser + Debug + Send {
    /// It has claimed this read: what will be read beside it, bytes, in the order of need, `most` of them at most. Nothing, where that was said before.
    fn foresee(&mut self, read: &Read, most: u64) -> Vec<ByteRange>;

    /// What was foreseen was asked for, and so many bytes of it were not cached, or only because they had been asked for before.
    fn asked(&mut self, _bytes: u64) {}

    /// Another one in the same state.
    fn duplicate(&self) -> Box<dyn Source>;
}

/// Makes a source that has seen nothing.
pub type New = fn() -> Box<dyn Source>;

/// What is wanted after a read.
#[derive(Debug, Default, PartialEq)]
pub struct Foresight {
    /// Byte ranges that will be read, in the order of need.
    pub ranges: Vec<ByteRange>,
    /// Reads that begin in this byte range need not be told.
    pub quiet: ByteRange,
    /// So many reads need not be told.
    pub skip: u32,
    /// No pattern was found in this read.
    pub random: bool,
    /// It is no stream's, and these bytes beside it will be read, in the order of need.
    pub around: Vec<ByteRange>,
    /// Like those before, it lies behind the last one, but too far for what lies between to be read too.
    pub onward: bool,
    /// The read begins a line whose places were asked for before: they may have been evicted.
    pub line: bool,
    /// The read went on in a stream that has been told in whole: bytes that were passed since its last read was known.
    pub passed: Option<Passed>,
    /// Bytes that were skipped, and will hardly be read any more.
    pub skipped: ByteRange,
    /// What was staked on it, and has been come by.
    pub returned: Stake,
}

/// Reads that were not told because they were expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// Where the reads between the last known one and this one begin, bytes; where they touch, all of their bytes.
    pub span: ByteRange,
    /// Bytes between the starts of two reads.
    pub stride: u64,
    /// Bytes of each read.
    pub len: u64,
}

/// Where reads begin that lie between one at `last` and one at `offset`, both left out: every `stride` bytes, `len` long.
pub fn between(last: u64, offset: u64, len: u64, stride: i64) -> ByteRange {
    let step = if stride.unsigned_abs() <= len {
        len
    } else {
        stride.unsigned_abs()
    };
    if stride > 0 {
        last.wrapping_add(step)..offset
    } else {
        offset.saturating_add(step)..last
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Constants as they are by default, of a device with a latency that is worth 256 KiB.
    pub(in crate::source) fn limits() -> Limits {
        Limits {
            counter_bits: 3,
            random_distance: 128 << 10,
            max_streams: 16,
            initial: 128 << 10,
            max: 64 << 20,
            quantum: 64 << 10,
            chunk: 128 << 10,
            skip_when_steady: true,
            sparse: 256 << 10,
            near: u64::MAX,
            delay: 0,
            funds: Funds::UNLIMITED,
            now: 0,
            sources: crate::source::SOURCES,
        }
    }

    /// A read that nobody expected.
    pub(in crate::source) fn read(offset: u64, len: u64, size: u64, limits: &Limits) -> Read<'_> {
        Read {
            offset,
            len,
            thread: 1,
            arrival: Arrival::Missing,
            size,
            expected: Expected::No,
            limits,
        }
    }
}
