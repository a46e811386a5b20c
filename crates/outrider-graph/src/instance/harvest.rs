//! Taking results: what was made ahead is compared and handed out, or made again.

use std::time::Instant;

use outrider_sys::raw;

use super::{Instance, Into, LONG, Words};
use crate::call::{Call, Kind};
use crate::conflict::may_be_written;
use crate::context::Progress;
use crate::graph::Source;
use crate::limits::FIRST_BYTES;

const MOVED: &str = "a position that was declared private was moved by someone else";

impl Instance<'_> {
    /// Waits until the call of place `i` is done, and has what depends on others issued meanwhile. `was_ahead`: it was issued before the program asked for
    /// it. One that was not, a run's first, is waited for however far is looked ahead.
    pub(super) fn wait(&mut self, source: &dyn Source, i: u16, was_ahead: bool) {
        let mut waited: Option<Instant> = None;
        loop {
            let Some(cx) = self.cx.as_mut() else { return };
            if cx.poll(i) || cx.broken {
                break;
            }
            if cx.places[i as usize].on_ring {
                // What is finished is let in first; only what is not is waited for.
                cx.enter(0);
                if cx.places[i as usize].progress != Progress::Flying {
                    break;
                }
            }
            waited.get_or_insert_with(Instant::now);
            cx.sleep(i);
            if self.waiting > 0 {
                self.pump(source);
            }
        }
        if let Some(since) = waited {
            self.counts.waits += 1;
            // Waiting for a thread's turn is not waiting for a device.
            let quick = self.place(i).and_then(|p| p.quick) == Some(true);
            if self.adapts() && !quick {
                let took = since.elapsed();
                self.earn(took.as_nanos() as i64, false);
                self.see_latency(i);
                let len = self.place(i).map_or(0, |p| p.args.len);
                let near = self.depth_on(self.device) * len < FIRST_BYTES;
                if was_ahead && (took >= LONG || near) {
                    self.deepen(i);
                }
            }
        }
        if self.waiting > 0 && self.ordered {
            self.pump(source);
        }
    }

    /// The result of a call that was made ahead, or `None` if the program is to make it itself.
    ///
    /// # Safety
    /// As [`Instance::make`].
    pub(super) unsafe fn harvest(&mut self, i: u16, call: &Call, into: Into) -> Option<isize> {
        let cx = self.cx.as_mut()?;
        let p = &cx.places[i as usize];
        if p.progress != Progress::Done || p.pretended || p.stale {
            return self.unusable(i, call);
        }
        let r = p.result as isize;
        let kind = p.args.kind;
        if kind.has_effects() {
            if !p.stands() {
                return None;
            }
            if kind.writes() {
                let b = p.buffer.as_ref()?;
                let ours = b.at().cast_const();
                let theirs = call.buffer.cast::<u8>().cast_const();
                // SAFETY: both have `len` bytes.
                let same = ours == theirs
                    || p.lent != 0 && p.lent == theirs as usize
                    || unsafe {
                        core::slice::from_raw_parts(ours, p.args.len)
                            == core::slice::from_raw_parts(theirs, p.args.len)
                    };
                if !same {
                    // The program writes other bytes to the same place.
                    self.counts.divergences += 1;
                    self.shared.note(format_args!(
                        "{} was called with other bytes than foreseen",
                        cx.words(i)
                    ));
                    self.shared.diverged(&self.counts);
                    return None;
                }
            }
            if kind == Kind::Write && r > 0 {
                let (fd, position) = (p.args.fd, p.position?);
                if raw::lseek(fd, 0, libc::SEEK_CUR) != position {
                    self.switch_off(MOVED);
                    return None;
                }
                raw::lseek(fd, r as i64, libc::SEEK_CUR);
            }
            return Some(r);
        }
        if r < 0 || kind.reads() && r as usize != p.args.len {
            return None;
        }
        match kind {
            Kind::Pread | Kind::Read => {
                // A buffer that O_DIRECT would not take must fail as it would.
                let aligned = |at: usize| !p.direct || at.is_multiple_of(512);
                if !call.vectored && into == Into::Memory && !aligned(call.buffer as usize)
                    || p.direct && call.vectored
                {
                    return None;
                }
                if kind == Kind::Read {
                    let (fd, position) = (p.args.fd, p.position?);
                    let now = raw::lseek(fd, r as i64, libc::SEEK_CUR);
                    if now - r as i64 != position {
                        // Someone else moved it. These bytes are ours now, as if read(2) had been first.
                        // SAFETY: as promised by the caller.
                        return unsafe { self.read_claimed(i, call, into, now - r as i64) };
                    }
                }
                let b = p.buffer.as_ref()?;
                if into == Into::Block {
                    self.handed = Some(b.clone());
                } else {
                    // SAFETY: `r` bytes were read; the caller's memory has room for them.
                    unsafe { copy_out(b.at(), r as usize, call) };
                }
            }
            Kind::Statx => {
                // SAFETY: the kernel filled a struct statx.
                let stx = unsafe { &*cx.flights[i as usize].stat.get().cast::<libc::statx>() };
                let device = libc::makedev(stx.stx_dev_major, stx.stx_dev_minor);
                if may_be_written(device, stx.stx_ino) {
                    return None;
                }
                // SAFETY: the kernel filled a struct statx; the caller's memory has room for one.
                unsafe {
                    core::ptr::copy_nonoverlapping(
                        cx.flights[i as usize].stat.get().cast::<libc::statx>(),
                        call.buffer.cast::<libc::statx>(),
                        1,
                    );
                }
            }
            Kind::Fstat | Kind::Fstatat => {
                // SAFETY: a thread filled a struct stat.
                let st = unsafe { &*cx.flights[i as usize].stat.get().cast::<libc::stat>() };
                if may_be_written(st.st_dev, st.st_ino) {
                    return None;
                }
                // SAFETY: a thread filled a struct stat; the caller's memory has room for one.
                unsafe {
                    core::ptr::copy_nonoverlapping(
                        cx.flights[i as usize].stat.get().cast::<libc::stat>(),
                        call.buffer.cast::<libc::stat>(),
                        1,
                    );
                }
            }
            _ => {}
        }
        Some(r)
    }

    /// A result that can't be used; in the check engine, what it would have been.
    pub(super) fn unusable(&mut self, i: u16, call: &Call) -> Option<isize> {
        let p = self.place(i)?;
        if p.pretended && p.args.kind.writes() {
            let same = p.buffer.as_ref().is_some_and(|b| {
                // SAFETY: both have `len` bytes.
                unsafe {
                    core::slice::from_raw_parts(b.at(), p.args.len)
                        == core::slice::from_raw_parts(call.buffer.cast::<u8>(), p.args.len)
                }
            });
            let elsewhere = p.args.kind == Kind::Write
                && p.position != Some(raw::lseek(p.args.fd, 0, libc::SEEK_CUR));
            if elsewhere {
                self.shared
                    .note(format_args!("{MOVED}: {}", Words::of(call)));
            }
            if !same {
                self.counts.divergences += 1;
                self.shared.note(format_args!(
                    "{} was called with other bytes than foreseen",
                    Words::of(call)
                ));
            }
        }
        None
    }

    /// Reads what the position was moved over.
    ///
    /// # Safety
    /// As [`Instance::make`].
    pub(super) unsafe fn read_claimed(
        &mut self,
        i: u16,
        call: &Call,
        into: Into,
        offset: i64,
    ) -> Option<isize> {
        let p = self.place(i)?;
        let (len, fd) = (p.args.len, p.args.fd);
        let mut at = *call;
        at.args.kind = Kind::Pread;
        at.args.offset = offset;
        if into == Into::Block {
            at.buffer = p.buffer.as_ref()?.at().cast();
            self.handed = p.buffer.clone();
        }
        // SAFETY: as promised by the caller.
        let r = unsafe { at.make() };
        raw::lseek(fd, r.max(0) as i64 - len as i64, libc::SEEK_CUR);
        Some(r)
    }
}

/// Copies `n` bytes to where a call wants them.
///
/// # Safety
/// `from` has them; the call's memory has room for them.
unsafe fn copy_out(from: *const u8, n: usize, call: &Call) {
    // SAFETY: as promised.
    unsafe {
        if !call.vectored {
            core::ptr::copy_nonoverlapping(from, call.buffer.cast(), n);
            return;
        }
        let mut done = 0;
        for v in core::slice::from_raw_parts(call.vectors, call.vector_count as usize) {
            let part = v.iov_len.min(n - done);
            core::ptr::copy_nonoverlapping(from.add(done), v.iov_base.cast(), part);
            done += part;
        }
    }
}
