//! The program reads: where it is in its list, and which calls of its functions are due.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use outrider_sys::units::PAGE;
use outrider_sys::{cache, raw};

use super::list::Found;
use super::state::State;
use super::{Call, ClientId, Due, Figure, Kind, Place, Position, Process};
use crate::lock;
use crate::view::PageRange;

/// A read waits so long for the sweep that will bring its pages, then it is made. One read in between costs a disk 20 ms.
const PATIENCE: Duration = Duration::from_millis(500);
/// All reads together wait so long for one round: what keeps it for longer (whose turn it is was stopped, a disk fails) must not cost each read its
/// patience anew.
const IN_ALL_US: u64 = 2_000_000;
/// It looks so often whether they are there.
const LOOK_US: u64 = 5000;
/// The fetcher is told of lost pages by so many.
const LOST: u64 = 8;

impl Process {
    /// The program is about to read `offset..offset+len` (bytes) of `fd`, or has. Returns what is due now.
    pub fn reading(&'static self, fd: i32, offset: u64, len: u64) -> Due {
        self.read(fd, offset, len).unwrap_or_default()
    }

    fn read(&'static self, fd: i32, offset: u64, len: u64) -> Option<Due> {
        let number = self.numbers.get(fd as usize)?.load(Relaxed);
        let file = u16::try_from(number.checked_sub(1)?).ok()?;
        if len == 0 {
            return None;
        }
        let mut state = lock(&self.state);
        let end = offset.saturating_add(len);
        let region = state
            .file(file)?
            .regions
            .iter()
            .find(|r| r.start < end && offset < r.end)
            .cloned()?;
        if !(state.ignoring.is_empty() && state.calling.is_empty()) {
            let me = raw::gettid();
            let ignored = state
                .ignoring
                .iter()
                .any(|(t, s, _)| (*t, *s) == (me, region.source))
                || state.calling.iter().any(|(t, _)| *t == me);
            if ignored {
                return None;
            }
        }
        let source = state.source(region.source)?;
        let found = source
            .list
            .read(file, offset.max(region.start), end.min(region.end));
        let at = source.list.at();
        let entry = (found == Found::Ahead && source.asked < u64::MAX).then(|| Place {
            source: ClientId {
                index: region.source,
                generation: source.generation,
            },
            // One that was read to its end is behind the program.
            n: at.saturating_sub(u64::from(source.list.within() == 0)),
        });
        let mut ring = (at, source.list.within()) >= source.wake_at;
        if ring {
            source.wake_at = (u64::MAX, 0);
        }
        let due = match found {
            Found::Outside => {
                source.strayed = true;
                self.count(Figure::Diverged, 1);
                true
            }
            Found::Ahead => at >= source.low,
            Found::Behind => false,
        };
        let mut call = None;
        if due {
            source.low = if at >= source.list.end() {
                u64::MAX
            } else {
                source.list.end()
            };
            ring |= found == Found::Outside && source.list.pending() > 0;
            call = self.begin_call(&mut state, region.source, fd, offset);
        }
        drop(state);
        if ring {
            self.ring();
        }
        Some(Due { call, entry })
    }

    /// Waits until `offset..offset+len` (bytes) of `fd`, which the program is about to read, are on their way, where a sweep over the disk
    /// will bring them: a read of its own would make the head go there and back, and the next one again (libprefetch blocks the program for
    /// the whole round). What was brought and is gone is noted, as a sign that memory is short (SPEC LP4).
    ///
    /// `held` runs each look, which takes the lock: with signals held back where their handlers may come here, too. They are not held back
    /// while this waits.
    pub fn await_sweep(
        &'static self,
        entry: Place,
        fd: i32,
        pages: PageRange,
        held: impl Fn(&dyn Fn() -> Option<u32>) -> Option<u32>,
    ) {
        let since = Instant::now();
        let before = self.waited_us.load(Relaxed);
        while let Some(seen) = held(&|| self.to_come(entry, fd, pages)) {
            let waited = since.elapsed();
            if waited >= PATIENCE || before + waited.as_micros() as u64 >= IN_ALL_US {
                self.waited_us.fetch_add(waited.as_micros() as u64, Relaxed);
                return;
            }
            raw::futex_wait(&self.swept, seen, LOOK_US);
        }
    }

    /// The count of `swept` on which to wait for `pages`, if a sweep will bring them.
    fn to_come(&self, entry: Place, fd: i32, pages: PageRange) -> Option<u32> {
        let seen = self.swept.load(Acquire);
        // SAFETY: the caller is about to read from it.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let bytes = pages.start * PAGE..pages.end * PAGE;
        let missing = pages
            .len()
            .saturating_sub(cache::cachestat(file, bytes).ok()?.cached);
        // Of an overlay's files nobody knows.
        if missing == 0 || cache::is_overlaid(file) {
            return None;
        }
        let mut state = lock(&self.state);
        let source = state.named(entry.source)?;
        if entry.n < source.asked {
            let before = source.lost / LOST;
            source.lost += missing;
            let ring = source.lost / LOST > before;
            drop(state);
            if ring {
                self.ring();
            }
            return None;
        }
        (source.asked < u64::MAX && entry.n < source.ready).then_some(seen)
    }

    pub(super) fn begin_call(
        &self,
        state: &mut State,
        index: usize,
        fd: i32,
        offset: u64,
    ) -> Option<Call> {
        let me = raw::gettid();
        // One at a time: what another thread's call brings is what this one would ask for.
        if state.calling.iter().any(|(_, s)| *s == index) || state.calling.try_reserve(1).is_err() {
            state.calling.retain(|(t, _)| raw::thread_lives(*t));
            return None;
        }
        let source = state.source(index)?;
        let id = ClientId {
            index,
            generation: source.generation,
        };
        let (kind, ended, mark) = (source.kind, source.ended, source.list.mark());
        let call = match kind {
            Kind::Plain => return None,
            Kind::Pull(callee) if ended || callee.function == 0 => return None,
            Kind::Pull(callee) => Call::Pull { id, callee },
            Kind::Client(callee) if callee.function == 0 => return None,
            Kind::Client(callee) => Call::Client {
                id,
                callee,
                at: Position {
                    mark_fd: mark
                        .and_then(|m| state.file(m.file)?.numbers.first().copied())
                        .unwrap_or(-1),
                    fd,
                    mark_offset: mark.map_or(0, |m| m.offset),
                    offset,
                },
            },
        };
        state.calling.push((me, index));
        self.count(Figure::Callbacks, 1);
        Some(call)
    }

    /// The call that [`Process::reading`] or [`Process::pull`] asked for has returned.
    pub fn called(&self, id: ClientId) {
        let me = raw::gettid();
        self.end_calls(|call| call == (me, id.index));
    }

    /// The calling thread has left the call that it was in, if it was in one: by an exception or by its end.
    pub fn left(&self) {
        let me = raw::gettid();
        self.end_calls(|(thread, _)| thread == me);
    }

    fn end_calls(&self, ended: impl Fn((u32, usize)) -> bool) {
        lock(&self.state).calling.retain(|call| !ended(*call));
        self.returned.fetch_add(1, Release);
        raw::futex_wake(&self.returned, u32::MAX);
        self.ring();
    }
}
