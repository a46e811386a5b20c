//! Lists that a program gives whole, or as they are pulled from it.

use std::sync::atomic::Ordering::Relaxed;

use super::list::{Entry, List, MAX_LENGTH, MAX_OFFSET};
use super::state::{Region, State};
use super::{Access, Call, Callee, ClientId, Figure, Kind, LIST_MAX, MARKED, Process};
use crate::lock;

/// Entries that a pulled list is filled up to, at most and at least. It is filled again when half of them are left.
const PULL_FULL: u64 = 1 << 16;
const PULL_LEAST: u64 = 1 << 12;
/// Entries in a row without a byte to read after which a pulled list's function is taken for one that has nothing else: far more than anybody skips, and
/// told within milliseconds. In the header file.
const USELESS: u64 = 1 << 16;
/// It is filled up to so many times the memory for data: the list, and what its function reads to draw it up, take memory from the data as well,
/// and what comes later than some rounds from now decides nothing.
const PULL_ROUNDS: u64 = 12;

impl Process {
    /// See outrider_declare. `ranges` yields offsets and lengths, bytes.
    pub fn declare(
        &'static self,
        fd: i32,
        ranges: impl ExactSizeIterator<Item = (u64, u64)>,
    ) -> Result<usize, i32> {
        let n = ranges.len();
        let mut state = lock(&self.state);
        let file = match self.file(&mut state, fd, n > 0)? {
            Some(file) => file,
            None => return Ok(0),
        };
        let own = state.own_source(file)?;
        if n == 0 {
            if let Some(source) = own {
                self.drop_source(&mut state, source, Some(file));
            }
            self.drop_unused(&mut state, file);
            return Ok(0);
        }
        // The new list is whole before the old one goes: nothing changes without the memory.
        let mut list = List::default();
        if !list.reserve(n.min(LIST_MAX)) {
            self.drop_unused(&mut state, file);
            return Err(libc::ENOMEM);
        }
        let size = state.size(file);
        let mut taken = 0;
        let mut bytes = 0u64;
        for (offset, length) in ranges {
            match append(&mut list, file, offset, length, false, size) {
                Some(b) => bytes = bytes.saturating_add(b),
                None => break,
            }
            taken += 1;
        }
        let left = own.map(|source| self.leave(&mut state, source, file));
        let index = self.whole_file_source(&mut state, Kind::Plain, file)?;
        if let Some(source) = state.source(index) {
            source.left = left;
            source.ready = list.end();
            source.low = u64::MAX;
            source.list = list;
        }
        self.count(Figure::Declared, bytes);
        self.start(state);
        self.ring();
        Ok(taken)
    }

    /// Drops a source of `file`, which stays. Returns where in its list the program is.
    fn leave(&self, state: &mut State, source: usize, file: u16) -> u64 {
        let at = state.source(source).map_or(0, |s| s.list.at());
        self.drop_source(state, source, Some(file));
        at
    }

    /// A new source over all of `file`, or `ENOMEM` and nothing left of it.
    fn whole_file_source(&self, state: &mut State, kind: Kind, file: u16) -> Result<usize, i32> {
        let Some(index) = state.new_source(kind, file, usize::MAX) else {
            self.drop_unused(state, file);
            return Err(libc::ENOMEM);
        };
        if !state.add_region(file, 0, u64::MAX, index) {
            self.drop_source(state, index, Some(file));
            self.drop_unused(state, file);
            return Err(libc::ENOMEM);
        }
        Ok(index)
    }

    /// See outrider_pull. Returns the call that fills the list first.
    pub fn pull(&'static self, fd: i32, callee: Callee) -> Result<Option<Call>, i32> {
        let mut state = lock(&self.state);
        let file = match self.file(&mut state, fd, callee.function != 0)? {
            Some(file) => file,
            None => return Ok(None),
        };
        let own = state.own_source(file)?;
        let left = own.map(|source| self.leave(&mut state, source, file));
        if callee.function == 0 {
            self.drop_unused(&mut state, file);
            return Ok(None);
        }
        let index = self.whole_file_source(&mut state, Kind::Pull(callee), file)?;
        if let Some(source) = state.source(index) {
            source.left = left;
        }
        let call = self.begin_call(&mut state, index, -1, 0);
        self.start(state);
        Ok(call)
    }

    /// What a pulled list's function returned. `true` if it is to be called again at once.
    pub fn pulled(&'static self, id: ClientId, accesses: &[Access]) -> bool {
        let mut state = lock(&self.state);
        if state.named(id).is_none() {
            return false;
        }
        let Some(before) = state.source(id.index).map(|s| s.list.end()) else {
            return false;
        };
        let more = self.take(&mut state, id.index, accesses);
        let Some(source) = state.source(id.index) else {
            return false;
        };
        source.ready = source.list.end();
        source.useless = match more {
            Ok(taken) if source.ready == before => source.useless + taken as u64,
            Ok(_) => 0,
            Err(_) => source.useless,
        };
        source.ended |= source.useless >= USELESS;
        source.low = source.list.at() + source.list.pending() / 2;
        source.ended |= accesses.is_empty();
        let bytes: u64 = accesses.iter().map(|a| a.length.min(MAX_LENGTH)).sum();
        let full = filled(self.memory.load(Relaxed), bytes, accesses.len() as u64);
        let again = !source.ended && more.is_ok() && source.list.pending() < full;
        if !again {
            drop(state);
            self.ring();
        }
        again
    }

    /// Adds accesses to a list; how many were taken.
    pub(super) fn take(
        &'static self,
        state: &mut State,
        index: usize,
        accesses: &[Access],
    ) -> Result<usize, i32> {
        let pulls = state
            .source(index)
            .is_some_and(|s| matches!(s.kind, Kind::Pull(_)));
        let mut last: Option<(i32, u16)> = None;
        let mut taken = 0;
        let mut bytes = 0u64;
        if !state
            .source(index)
            .is_some_and(|s| s.list.reserve(accesses.len().min(LIST_MAX)))
        {
            return Err(libc::ENOMEM);
        }
        for a in accesses {
            if state
                .source(index)
                .is_none_or(|s| s.list.pending() >= LIST_MAX as u64)
            {
                break;
            }
            taken += 1;
            let end = a.offset.saturating_add(a.length);
            let file = match last {
                Some((fd, file)) if fd == a.fd => Some(file),
                _ => self.file(state, a.fd, pulls).ok().flatten(),
            };
            let Some(file) = file else { continue };
            if last != Some((a.fd, file)) {
                last = Some((a.fd, file));
                if pulls && state.file(file).is_some_and(|f| f.regions.is_empty()) {
                    state.add_region(file, 0, u64::MAX, index);
                }
            }
            let first = state.source(index).map_or(0, |s| s.list.end());
            let is = |r: &&mut Region| r.source == index && r.start <= a.offset && end <= r.end;
            let regions = state.file_mut(file).map(|f| f.regions.iter_mut());
            let Some(region) = regions.and_then(|mut regions| regions.find(is)) else {
                continue;
            };
            if region.entries.is_empty() {
                region.entries.start = first;
            }
            region.entries.end = first.saturating_add(a.length.div_ceil(MAX_LENGTH));
            if state.file(file).is_some_and(|f| end > f.size) {
                state.refresh(file, a.fd);
            }
            let size = state.size(file);
            let Some(source) = state.source(index) else {
                break;
            };
            let marked = a.flags & MARKED != 0;
            bytes = bytes.saturating_add(
                append(&mut source.list, file, a.offset, a.length, marked, size).unwrap_or(0),
            );
        }
        self.count(Figure::Declared, bytes);
        Ok(taken)
    }
}

/// Entries that a pulled list is filled up to with `memory` bytes for data (0: not known), where the latest `entries` have `bytes`.
fn filled(memory: u64, bytes: u64, entries: u64) -> u64 {
    if memory == 0 || bytes == 0 {
        return PULL_FULL;
    }
    let most = memory.saturating_mul(PULL_ROUNDS).saturating_mul(entries) / bytes;
    most.clamp(PULL_LEAST, PULL_FULL)
}

/// Adds one range to a list, clipped to the file's `size`. Bytes that were taken, or `None` if the list is full.
fn append(
    list: &mut List,
    file: u16,
    offset: u64,
    length: u64,
    marked: bool,
    size: u64,
) -> Option<u64> {
    if list.pending() >= LIST_MAX as u64 {
        return None;
    }
    let end = offset.saturating_add(length).min(size).min(MAX_OFFSET);
    if offset >= end {
        return Some(0);
    }
    let mut at = offset;
    while at < end {
        let piece = (end - at).min(MAX_LENGTH);
        if !list.reserve(1) {
            return None;
        }
        list.push(Entry {
            file,
            offset: at,
            length: piece as u32,
            marked: marked && at == offset,
            read: false,
        });
        at += piece;
    }
    Some(end - offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LP3, LP5: a pulled list names some rounds' worth of data, whatever its entries' size, and never grows with memory beyond what it was.
    #[test]
    fn pulled_lists_go_with_memory() {
        const MIB: u64 = 1 << 20;
        assert_eq!(filled(0, 4096 * 100, 100), PULL_FULL);
        assert_eq!(filled(6 * MIB, 0, 100), PULL_FULL);
        assert_eq!(filled(6 * MIB, 4096 * 100, 100), 72 * MIB / 4096);
        assert_eq!(filled(1, 4096, 1), PULL_LEAST);
        assert_eq!(filled(u64::MAX, 4096, 1), PULL_FULL);
    }
}
