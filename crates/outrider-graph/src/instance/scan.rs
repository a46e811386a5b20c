//! Reads that are certain, and only fetched: a scan.
//!
//! What was fetched for such a function it reads itself, so nothing depends on which of its calls is which. They are counted, and every so many, a quarter of
//! what lies ahead, it is looked whether the count is right: the call that the graph has there must be the one that is made. Then the next ones are
//! fetched, neighbours together. A call costs no more than while looking ahead rests; whatever else comes is followed as everywhere.
//!
//! Where the kernel itself reads as far ahead, sequential reads are left to it (see `device::reads_far_ahead`), unless they wait time and again.

use std::time::Duration;

use outrider_core::device::AHEAD;

use super::{Follows, Instance, LONG, Tail};
use crate::buffers::LARGEST;
use crate::call::{Args, Call, Kind};
use crate::conflict::may_be_written;
use crate::graph::{At, Follow, Source};
use crate::limits::FIRST_BYTES;
use crate::{device, payback};

/// Of a file that the kernel does not read ahead, so many reads that were timed have waited, and a quarter of all as far as can be told, since one in four is
/// timed. Otherwise a reader waits once in a MiB, and a few times where it begins.
const UNHELPED: u64 = 8;

pub(super) struct Scan {
    /// Counted from the call at `Instance::tail` on: the first that has not been fetched …
    end: u64,
    /// … and the one at which more is.
    turn: u64,
    /// Bytes that are to lie ahead.
    bytes: usize,
    /// Where the last read ends: a descriptor, and a byte.
    last: (i32, i64),
    /// The call at which it was looked last …
    looked: u64,
    /// … and reads that were waited for since then, of those that were timed.
    waits: u64,
    /// The kernel does not help this file.
    alone: bool,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan {
            end: 0,
            turn: 0,
            bytes: FIRST_BYTES,
            last: (-1, 0),
            looked: 0,
            waits: 0,
            alone: false,
        }
    }
}

impl Scan {
    /// Whether more is to be fetched at a call.
    pub(super) fn is_turn(&self, call: u64) -> bool {
        call >= self.turn
    }

    /// A read had to be waited for.
    pub(super) fn waited(&mut self, took: Duration) {
        self.waits += 1;
        if took >= LONG {
            self.bytes = (self.bytes * 2).min(AHEAD as usize);
        }
    }
}

impl Instance<'_> {
    /// Whether more is to be fetched at this call while calls are counted, if it is a pread.
    pub(super) fn is_turn(&self, call: u64) -> bool {
        self.scan.as_ref().is_some_and(|s| s.is_turn(call))
            && !self.closing
            && !self.shared.payback.rests()
    }

    /// Fetches what comes next, this call included, if the call is the one that the graph has here. `false`: it is not, or not a read that is certain.
    pub(super) fn sweep_on(&mut self, source: &dyn Source, call: &Call) -> bool {
        let Some(mut scan) = self.scan.take() else {
            return false;
        };
        let went = self.fetch_on(source, call, &mut scan).is_some();
        self.scan = Some(scan);
        self.settle_account();
        went
    }

    fn fetch_on(&mut self, source: &dyn Source, call: &Call, scan: &mut Scan) -> Option<()> {
        let (base, now) = match self.tail {
            Tail::After(cursor) => (cursor, self.counted.wrapping_add(1)),
            Tail::Before => match source.first() {
                Follow::To {
                    cursor,
                    weak: false,
                } => (cursor, 0),
                _ => return None,
            },
            Tail::Ended => return None,
        };
        match source.at(&source.skip(&base, now)?) {
            At::Call { op, .. } if op.args() == call.args => {}
            _ => return None,
        }
        // Sequential reads are the kernel's own business there.
        let waits = std::mem::take(&mut scan.waits);
        let since = now - std::mem::replace(&mut scan.looked, now);
        scan.alone |= waits >= UNHELPED && waits * 16 >= since;
        let file = self.file(call.args.fd);
        let far = !scan.alone && file.is_some_and(|f| device::reads_far_ahead(&f));
        let most = scan
            .bytes
            .min(file.map_or(AHEAD as usize, |f| device::room(f.device)));
        let mut end = scan.end.max(now);
        let mut next = source.skip(&base, end)?;
        let mut bytes = (end - now) as usize * call.args.len;
        let (mut turn, mut fetched) = (None, 0);
        while end - now < self.options.depth as u64 && bytes < most {
            let args = match source.at(&next) {
                At::Call {
                    op, weak: false, ..
                } if self.is_fetched(&op.args()) => op.args(),
                At::End => {
                    turn = Some(u64::MAX);
                    break;
                }
                // This one itself, or it will be this one's turn then.
                _ if end == now => return None,
                At::NotReady { .. } => break,
                _ => {
                    turn = Some(end);
                    break;
                }
            };
            if !far || (args.fd, args.offset) != scan.last {
                let cx = self.cx.as_mut()?;
                cx.fetch(None, args.fd, args.offset, args.len);
                fetched += 1;
            }
            scan.last = (args.fd, args.offset.saturating_add(args.len as i64));
            bytes += args.len;
            end += 1;
            let Follow::To {
                cursor,
                weak: false,
            } = source.after(&next)
            else {
                break;
            };
            next = cursor;
        }
        let new = end - scan.end.max(now);
        let cx = self.cx.as_mut()?;
        cx.fetch_stretch();
        cx.account -= new as i64 * payback::CALL;
        self.counts.ahead += fetched;
        self.counts.foreseen += 1;
        self.kinds |= 1 << Kind::Pread as u32;
        scan.end = end;
        let part = if fetched > 0 { 4 } else { 1 };
        scan.turn = turn.unwrap_or(now + ((end - now) / part).max(1));
        if self.tail == Tail::Before {
            // It is counted in a moment.
            self.tail = Tail::After(base);
            self.counted = u64::MAX;
        }
        self.follows = Follows::Counting;
        Some(())
    }

    /// Whether what a call reads can be fetched.
    fn is_fetched(&mut self, args: &Args) -> bool {
        let whole = (1..=LARGEST).contains(&args.len) && args.offset >= 0;
        args.kind == Kind::Pread
            && whole
            && self
                .file(args.fd)
                .is_some_and(|f| f.regular && !f.direct && !may_be_written(f.device, f.inode))
    }
}
