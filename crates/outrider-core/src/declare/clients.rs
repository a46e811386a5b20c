//! Clients: regions, and lists that callbacks fill (libprefetch section 4).

use std::sync::atomic::Ordering::Acquire;

use outrider_sys::raw;

use super::list::MAX_FILES;
use super::{
    APPEND, Access, CLIENTS_MAX, Callee, ClientId, DONE, Kind, LIST_MAX, MARKED, Process,
    REGIONS_MAX, SET_FROM_MARK,
};
use crate::lock;

impl Process {
    /// See outrider_client_new.
    pub fn client_new(&'static self, callee: Callee) -> Result<ClientId, i32> {
        let mut state = lock(&self.state);
        let clients = state
            .sources
            .iter()
            .flatten()
            .filter(|s| matches!(s.kind, Kind::Client(_)))
            .count();
        if clients >= CLIENTS_MAX {
            return Err(libc::ENOSPC);
        }
        let index = state
            .new_source(Kind::Client(callee), 0, MAX_FILES)
            .ok_or(libc::ENOMEM)?;
        let generation = state.source(index).map_or(0, |s| s.generation);
        Ok(ClientId { index, generation })
    }

    /// See outrider_client_free.
    pub fn client_free(&'static self, id: ClientId) -> Result<(), i32> {
        let mut state = lock(&self.state);
        state.client(id)?;
        // From here on no callback begins; those that run are waited for.
        if let Some(source) = state.source(id.index) {
            source.kind = Kind::Client(Callee {
                function: 0,
                context: 0,
            });
        }
        loop {
            state.calling.retain(|(t, _)| raw::thread_lives(*t));
            if !state.calling.iter().any(|(_, s)| *s == id.index) {
                break;
            }
            let seen = self.returned.load(Acquire);
            drop(state);
            // A thread that was cancelled in its callback never returns: look again now and then.
            raw::futex_wait(&self.returned, seen, 100_000);
            state = lock(&self.state);
            state.client(id)?;
        }
        self.drop_source(&mut state, id.index, None);
        drop(state);
        self.ring();
        Ok(())
    }

    /// See outrider_region_add.
    pub fn region_add(
        &'static self,
        id: ClientId,
        fd: i32,
        offset: u64,
        length: u64,
    ) -> Result<(), i32> {
        const LAST: u64 = i64::MAX as u64;
        let end = match length {
            0 => u64::MAX,
            n => offset
                .checked_add(n)
                .filter(|e| *e <= LAST)
                .ok_or(libc::EINVAL)?,
        };
        if offset > LAST {
            return Err(libc::EINVAL);
        }
        let mut state = lock(&self.state);
        state.client(id)?;
        let file = self.file(&mut state, fd, true)?.ok_or(libc::EBADF)?;
        let overlaps = state
            .file(file)
            .is_some_and(|f| f.regions.iter().any(|r| r.start < end && offset < r.end));
        let result = if overlaps {
            Err(libc::EEXIST)
        } else if state.regions >= REGIONS_MAX {
            Err(libc::ENOSPC)
        } else if !state.add_region(file, offset, end, id.index) {
            Err(libc::ENOMEM)
        } else {
            Ok(())
        };
        self.drop_unused(&mut state, file);
        result
    }

    /// See outrider_region_remove.
    pub fn region_remove(&'static self, id: ClientId, fd: i32, offset: u64) -> Result<(), i32> {
        let mut state = lock(&self.state);
        state.client(id)?;
        let found = self.file(&mut state, fd, false)?;
        let file = found.ok_or(libc::ENOENT)?;
        if !state.remove_region(file, offset, id.index) {
            return Err(libc::ENOENT);
        }
        self.drop_unused(&mut state, file);
        drop(state);
        self.ring();
        Ok(())
    }

    /// See outrider_request.
    pub fn request(
        &'static self,
        id: ClientId,
        accesses: &[Access],
        how: i32,
    ) -> Result<usize, i32> {
        let mut state = lock(&self.state);
        let me = raw::gettid();
        if let Some((_, own)) = state.calling.iter().find(|(t, _)| *t == me)
            && *own != id.index
        {
            return Err(libc::EDEADLK);
        }
        state.client(id)?;
        let done = how & DONE != 0;
        let what = how & !DONE;
        if !(0..=SET_FROM_MARK).contains(&what) || accesses.iter().any(|a| a.flags & !MARKED != 0) {
            return Err(libc::EINVAL);
        }
        {
            let list = &mut state.source(id.index).ok_or(libc::EINVAL)?.list;
            // The memory comes first, so that a failure changes nothing.
            let room = LIST_MAX.min(accesses.len());
            if !list.reserve(room) {
                return Err(libc::ENOMEM);
            }
            match what {
                APPEND => {}
                SET_FROM_MARK => list.clear_from_mark(),
                _ => list.clear(),
            }
        }
        let taken = self.take(&mut state, id.index, accesses)?;
        let full = taken < accesses.len();
        let Some(source) = state.source(id.index) else {
            return Err(libc::EINVAL);
        };
        source.ready = source.ready.min(source.list.end());
        if what != APPEND {
            // What was given before is gone: nothing of it is still to be fetched.
            source.seen = source.seen.min(source.list.at());
        }
        if done || full {
            source.ready = source.list.end();
            source.low = source.list.at() + source.list.pending() / 2;
        }
        if taken > 0 {
            self.start(state);
        } else {
            drop(state);
        }
        self.ring();
        Ok(taken)
    }

    /// See outrider_ignore.
    pub fn ignore(&self, id: ClientId, on: bool) -> Result<(), i32> {
        let mut state = lock(&self.state);
        state.client(id)?;
        let me = raw::gettid();
        let at = state
            .ignoring
            .iter()
            .position(|(t, s, _)| (*t, *s) == (me, id.index));
        match (at, on) {
            (Some(i), true) => {
                if let Some(e) = state.ignoring.get_mut(i) {
                    e.2 = e.2.saturating_add(1);
                }
            }
            (None, true) => {
                if state.ignoring.try_reserve(1).is_err() {
                    return Err(libc::ENOMEM);
                }
                state.ignoring.push((me, id.index, 1));
            }
            (Some(i), false) => {
                if let Some(e) = state.ignoring.get_mut(i) {
                    e.2 -= 1;
                    if e.2 == 0 {
                        state.ignoring.swap_remove(i);
                    }
                }
            }
            (None, false) => return Err(libc::EINVAL),
        }
        Ok(())
    }
}
