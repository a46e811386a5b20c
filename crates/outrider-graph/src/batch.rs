//! Neighbours go to the ring as one.
//!
//! Reads that follow each other in a file, and writes, cost the kernel and the disk less when they come in one piece. The
//! calls that a walk launches are gathered as long as each begins where the last one ended; one vectored submission then stands for all of
//! them, and its result is divided among them.

use std::time::{Duration, Instant};

use outrider_sys::raw;
use outrider_sys::ring::{Submission, op};

use crate::limits::PLACES;
use crate::memory::Row;

/// Bytes that one submission reads, at most: more would keep the first of them waiting for the last.
const LARGEST: u64 = 256 << 10;
/// The same for writes, of which nobody waits for the first. Those that make a file longer are made one after the other, each by the disk's latency and a
/// thread's turn later than the last.
const LARGEST_WRITE: u64 = 1 << 20;
/// The same for reads through the page cache: what lies behind the kernel's read-ahead is only asked for when what lies before it has come.
const LARGEST_CACHED: u64 = 128 << 10;

/// Calls that are gathered.
pub struct Batch {
    /// The first one's submission.
    first: Submission,
    /// Where in the file the last one ends.
    end: u64,
    /// Its place.
    last: u16,
    /// Most bytes that it may have.
    most: u64,
    /// Their buffers among `vectors`.
    from: usize,
    count: usize,
    /// Buffers of all that was gathered since the kernel has last taken submissions: it reads them then and not later.
    vectors: Row<libc::iovec>,
}

impl Batch {
    /// `None` where there is no memory.
    pub fn new() -> Option<Batch> {
        let vectors = Row::new(PLACES)?;
        Some(Batch {
            first: Submission::default(),
            end: 0,
            last: 0,
            most: 0,
            from: 0,
            count: 0,
            vectors,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The place that was taken in last.
    pub fn last(&self) -> u16 {
        self.last
    }

    /// Whether a call continues what is gathered.
    pub fn continues(&self, s: &Submission) -> bool {
        self.count > 0
            && self.from + self.count < PLACES
            && (s.opcode, s.fd, s.off) == (self.first.opcode, self.first.fd, self.end)
            && self.end - self.first.off + u64::from(s.len) <= self.most
    }

    /// Takes in the call of place `i`, which continues what is gathered or begins anew. `direct`: it goes around the page cache.
    pub fn add(&mut self, i: u16, s: &Submission, direct: bool) {
        if self.count == 0 {
            self.first = *s;
            self.most = if s.opcode != op::READ {
                LARGEST_WRITE
            } else if direct {
                LARGEST
            } else {
                LARGEST_CACHED
            };
        }
        let vector = libc::iovec {
            iov_base: s.addr as *mut _,
            iov_len: s.len as usize,
        };
        match self.vectors.get_mut(self.from + self.count) {
            Some(v) => *v = vector,
            None => {
                self.vectors.push(vector);
            }
        }
        self.end = s.off.saturating_add(u64::from(s.len));
        self.last = i;
        self.count += 1;
    }

    /// The submission for all that is gathered. It names the first one's place, and points to this batch.
    pub fn close(&mut self) -> Submission {
        let mut s = self.first;
        if self.count > 1 {
            s.opcode = match s.opcode {
                op::READ => op::READV,
                _ => op::WRITEV,
            };
            s.addr = self.vectors[self.from..].as_ptr() as u64;
            s.len = self.count as u32;
        }
        self.from += self.count;
        self.count = 0;
        s
    }

    /// The kernel has taken all submissions.
    pub fn taken(&mut self) {
        if self.count == 0 {
            self.from = 0;
        }
    }

    /// Whether there is no room for another call before the kernel takes what there is.
    pub fn is_full(&self) -> bool {
        self.from + self.count == PLACES
    }
}

/// Neighbours that are fetched with one readahead(2).
#[derive(Default)]
pub struct Stretch {
    fd: i32,
    /// Bytes `from..to` of the file; none: nothing is gathered.
    from: i64,
    to: i64,
    /// The place of the read that was taken in first, if it has one.
    first: Option<u16>,
}

impl Stretch {
    /// Takes in a read of `len` bytes from `at` on, if it lies beside what is gathered.
    pub fn join(&mut self, place: Option<u16>, fd: i32, at: i64, len: i64) -> bool {
        if self.from == self.to {
            (self.fd, self.from, self.to, self.first) = (fd, at, at.saturating_add(len), place);
        } else if fd != self.fd || self.to - self.from + len > LARGEST_CACHED as i64 {
            return false;
        } else if at == self.to {
            self.to = at.saturating_add(len);
        } else if at.saturating_add(len) == self.from {
            self.from = at;
        } else {
            return false;
        }
        true
    }

    /// Has the kernel fetch it, and begins anew: the place of the first read, and how long the call took. `None`: nothing was gathered.
    pub fn fetch(&mut self) -> Option<(Option<u16>, Duration)> {
        if self.from == self.to {
            return None;
        }
        let began = Instant::now();
        raw::readahead(self.fd, self.from, (self.to - self.from) as usize);
        let took = began.elapsed();
        Some((std::mem::take(self).first, took))
    }
}

/// What of a submission's result falls to one of its calls, of `len` bytes, when `before` bytes belong to the calls before it. A write to which
/// nothing falls was not made.
pub fn share(result: i64, alone: bool, writes: bool, before: i64, len: i64) -> i64 {
    const NOT_MADE: i64 = -(libc::ECANCELED as i64);
    if alone {
        return result;
    }
    match (result - before).clamp(0, len) {
        _ if result < 0 => {
            if writes {
                NOT_MADE
            } else {
                result
            }
        }
        0 if writes => NOT_MADE,
        n => n,
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGEST_CACHED, Stretch};

    /// Neighbours on either side, of the same file, as far as no kernel clips.
    #[test]
    fn a_stretch_grows_at_both_ends() {
        let mut stretch = Stretch::default();
        assert!(stretch.join(Some(1), 3, 40960, 4096));
        assert!(stretch.join(Some(2), 3, 45056, 8192));
        assert!(stretch.join(None, 3, 32768, 8192));
        for (fd, at) in [(4, 53248), (3, 57344), (3, 32768), (3, 20480)] {
            assert!(!stretch.join(None, fd, at, 4096), "{fd}, {at}");
        }
        let most = LARGEST_CACHED as i64;
        assert!(!stretch.join(None, 3, 53248, most));
        assert!(stretch.join(None, 3, 53248, most - 20480));
        assert_eq!(
            (stretch.from, stretch.to, stretch.first),
            (32768, 32768 + most, Some(1))
        );
    }
}
