//! Forward runs, read by the kernel's own readahead.
//!
//! WILLNEED puts single pages into the page cache. The readahead that follows a sequential reader puts larger and larger folios there, at a third
//! of the processor's time, and the program's reads copy faster out of them. It goes from mark to mark: a read that comes upon a marked page starts
//! the window behind the last one, whether or not the data of the mark is there yet. So requests of one length that follow one
//! another are started by touching the mark of the one before, as many ahead as the engine likes.
//!
//! Nothing depends on it: a request that this doesn't bring into the cache is asked for with WILLNEED.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use outrider_sys::cache;
use rustix::fs::OFlags;

use crate::view::PAGE_BYTES as PAGE;

/// Shorter requests have no folios worth it.
const SHORTEST: u64 = 64 << 10;
/// After so many first windows in a row that were wider than asked for it is the device's way, and not the program's own readahead.
const STRIKES: u32 = 4;

/// Where the readahead of one open file stands.
#[derive(Default)]
struct State {
    run: Option<Run>,
    /// First windows in a row that took more than their request, which would be more than was granted.
    wide: u32,
}

/// Windows that follow one another.
#[derive(Clone, Copy)]
struct Run {
    /// End of the last window, bytes.
    end: u64,
    /// Bytes of each.
    len: u64,
    /// The marked page of the last one, bytes.
    mark: u64,
}

/// How a request was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Led {
    /// It was not: ask for it.
    Not,
    /// While the one before was on its way.
    InTime,
    /// When the one before had arrived: the device had nothing to do meanwhile.
    Late,
}

/// The readahead of one open file of ours.
pub struct Lead(Option<Mutex<State>>);

impl Lead {
    /// Of `fd`. Touching a page counts as an access, so it takes a descriptor that leaves access times alone.
    pub fn of(fd: BorrowedFd<'_>) -> Lead {
        let quiet = rustix::fs::fcntl_getfl(fd).is_ok_and(|f| f.contains(OFlags::NOATIME));
        Lead(quiet.then(Mutex::default))
    }

    /// Starts the read of `range`, if it goes on where a run ended or where a run can begin.
    pub fn start(&self, fd: BorrowedFd<'_>, range: &Range<u64>) -> Led {
        let len = range.end - range.start;
        // Folios are as large as their place in the file is aligned.
        if len < SHORTEST || !len.is_power_of_two() || !range.start.is_multiple_of(len) {
            return Led::Not;
        }
        let Some(Ok(mut state)) = self.0.as_ref().map(Mutex::try_lock) else {
            return Led::Not;
        };
        if state.wide >= STRIKES {
            return Led::Not;
        }
        let run = state.run.take();
        let (mark, led) = match run.filter(|r| r.end == range.start && r.len == len) {
            Some(run) => {
                let led = match cache::nudge_readahead(fd, run.mark, len) {
                    true => Led::Late,
                    false => Led::InTime,
                };
                // From the second window on the first page is the mark.
                (range.start, led)
            }
            None => {
                let behind = range.end..range.end + len;
                // The kernel takes it for a sequential reader where the file begins, or behind pages that are cached.
                let begins =
                    range.start == 0 || cached(fd, range.start - len..range.start) == len / PAGE;
                if !begins || cached(fd, behind.clone()) > 0 {
                    return Led::Not;
                }
                let (first, mark) = match range.start {
                    0 => (len, len / 2),
                    _ => (1, range.end - PAGE),
                };
                cache::nudge_readahead(fd, range.start, first);
                if cached(fd, behind) > 0 {
                    state.wide += 1;
                    return Led::Not;
                }
                state.wide = 0;
                (mark, Led::InTime)
            }
        };
        if cached(fd, range.clone()) < len / PAGE {
            return Led::Not;
        }
        state.run = Some(Run {
            end: range.end,
            len,
            mark,
        });
        led
    }
}

/// Pages of `range` that are cached or on their way; 0 where nobody tells.
fn cached(fd: BorrowedFd<'_>, range: Range<u64>) -> u64 {
    cache::cachestat(fd, range).map_or(0, |s| s.cached)
}
