//! The program reads: where it is in its list, and which calls of its functions are due.

use std::sync::atomic::Ordering::{Relaxed, Release};

use outrider_sys::raw;

use super::list::Found;
use super::state::{State, lock};
use super::{Call, ClientId, Figure, Kind, Position, Process};

impl Process {
    /// The program is about to read `offset..offset+len` (bytes) of `fd`, or has. Returns the call that is due now; it must be
    /// followed by [`Process::called`].
    pub fn reading(&'static self, fd: i32, offset: u64, len: u64) -> Option<Call> {
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
            .copied()?;
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
        call
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
        let mut state = lock(&self.state);
        let me = raw::gettid();
        state.calling.retain(|c| *c != (me, id.index));
        drop(state);
        self.returned.fetch_add(1, Release);
        raw::futex_wake(&self.returned, u32::MAX);
        self.ring();
    }
}
