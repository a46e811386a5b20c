//! Events: what processes tell, in turns.

use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{InodeKey, PAGE};

use super::kernel::Kernel;
use super::processes::ProcState;
use super::told::Told;
use super::{BEHIND, Service, bounds};
use crate::asked::When;
use crate::clock::Moment;
use crate::shm::{self, Event, Kind};
use crate::view::PageRange;

impl<K: Kernel> Service<K> {
    /// Takes the events of all processes; `true` if there were any.
    pub(super) fn drain_all(&mut self) -> bool {
        let mut any = false;
        for k in 0..self.processes.len() {
            let Some((i, process)) = self.processes.nth_mut(k) else {
                continue;
            };
            any |= process.debt().sits_out() || self.drain(i);
        }
        any
    }

    /// Takes the events of a process, for a turn; `true` if there were any.
    pub(super) fn drain(&mut self, i: usize) -> bool {
        let turn = self.kernel.now();
        let epoch = self.shared.begin_epoch();
        let (_, place) = self.shared.proc(i).places();
        if let Some(state) = self.processes.get_mut(i) {
            state.epochs().begin(epoch, place);
        }
        let any = self.drain_for(i, turn);
        self.hearing = When::UNKNOWN;
        if any {
            self.keep_to_bytes();
            if let Some(state) = self.processes.get_mut(i) {
                state.debt().takes(self.kernel.since(turn));
            }
        }
        any
    }

    fn drain_for(&mut self, i: usize, turn: Moment) -> bool {
        let mut any = false;
        // A reader that finds everything cached can outrun this thread. What it read long ago helps nobody: only
        // the latest reads are looked at.
        let behind = self.shared.proc(i).waiting();
        let mut passed_over = if behind > BEHIND {
            behind - BEHIND / 4
        } else {
            0
        };
        // Bounded, so that a busy process does not keep the others waiting.
        for k in 0..shm::RING {
            if k % 8 == 7 && self.kernel.since(turn) > bounds::TURN {
                return true;
            }
            let Some(event) = self.shared.proc(i).pop(false) else {
                let waiting = self.shared.proc(i).waiting() > 0;
                let Some(state) = self.processes.get_mut(i) else {
                    return any;
                };
                if state.gives_up(waiting, &self.kernel) {
                    self.shared.proc(i).pop(true);
                }
                return any;
            };
            any = true;
            let place = self.shared.proc(i).places().0.wrapping_sub(1);
            let epochs = self.processes.get_mut(i).map(|p| p.epochs().before(place));
            self.hearing = When::Told {
                proc: i as u32,
                place,
                epoch: epochs.unwrap_or(0),
            };
            let who = self.processes.get(i).map(ProcState::who);
            if let Some(record) = who.and_then(|who| self.shared.record(who)) {
                record.events.fetch_add(1, Relaxed);
            }
            let no_time = passed_over > 0;
            passed_over = passed_over.saturating_sub(1);
            if event.kind == Kind::Read && (no_time || self.is_stale(i, &event)) {
                self.overlook(i, event);
                continue;
            }
            self.handle_event(i, event);
        }
        any
    }

    pub(super) fn handle_event(&mut self, i: usize, e: Event) {
        if self.processes.get(i).is_none_or(ProcState::is_left_alone) {
            return;
        }
        self.turns.stir(e.kind != Kind::Read);
        let Some(told) = Told::of(&e) else { return };
        let reads = matches!(told, Told::Opened { .. } | Told::Closed { .. } | Told::Read);
        if !reads && self.processes.get(i).is_some_and(|p| !p.stood()) {
            return;
        }
        match told {
            Told::Opened { size } => self.has_opened(i, &e, size),
            Told::Closed { last, left } => self.has_closed(i, &e, last, left),
            Told::Read => self.read(i, e),
            Told::Sought => self.sought(i, &e),
            Told::Copies => self.kernel_copy(i, &e),
            Told::Entered(key) => self.entered(i, e.kind, e.fd, e.extra, key),
            Told::Hinted { range, begun } => {
                if let Some(key) = self.known(i, &e) {
                    if begun {
                        self.begins(i, key, e.len);
                    }
                    self.advise(i, key, range);
                }
            }
            Told::Dropped(pages) => {
                if let Some(key) = self.known(i, &e) {
                    self.lost_pages(key, pages);
                    if let Some(file) = self.files.get_mut(&key) {
                        file.served.forget_read();
                        file.hinted.forget();
                    }
                }
            }
            Told::Truncated { size } => {
                if let Some(key) = self.known(i, &e) {
                    let beyond = PageRange::new(size.div_ceil(PAGE), u64::MAX / PAGE);
                    self.lost_pages(key, beyond);
                    if let Some(file) = self.files.get_mut(&key) {
                        file.set_size(size);
                    }
                }
            }
            Told::Mapped { memory, offset } => self.has_mapped(i, &e, memory, offset),
            Told::Unmapped(gone) => self.remap(i, |m| m.without(&gone)),
            Told::Moved { from, to } => {
                self.remap(i, |m| {
                    (m.memory().start == from).then(|| vec![m.at(to.clone())])
                });
            }
            Told::Untouchable(key) => {
                self.leave_untouched(i, key);
                if let Some(file) = self.files.get_mut(&key) {
                    file.hold.let_go();
                    file.account.cancelled.store(true, Relaxed);
                }
            }
            Told::MapHinted(memory) => {
                let mapped = self
                    .processes
                    .get(i)
                    .into_iter()
                    .flat_map(ProcState::mapped);
                let found: Vec<_> = mapped
                    .filter_map(|m| Some((m.file(), m.file_range(memory.clone())?)))
                    .collect();
                for (key, range) in found {
                    self.advise(i, key, range);
                }
            }
        }
    }

    /// The file of a descriptor, taken in now if the event that told of it was lost.
    pub(super) fn known(&mut self, i: usize, e: &Event) -> Option<InodeKey> {
        if self.is_stale(i, e) {
            return None;
        }
        let slot = self.shared.proc(i).slots.get(usize::from(e.fd))?;
        let generation = slot.generation.load(Relaxed);
        match self.desc(i, e.fd) {
            Some(d) if d.generation == generation => Some(d.key),
            _ => self.opened(i, e.fd, 0),
        }
    }

    /// Whether a descriptor has been closed since an event was told.
    pub(super) fn is_stale(&self, i: usize, e: &Event) -> bool {
        let slot = self.shared.proc(i).slots.get(usize::from(e.fd));
        slot.is_none_or(|s| s.generation.load(Relaxed) as u8 != e.generation)
    }

    /// A read that helps to foresee nothing any more is counted.
    fn overlook(&mut self, i: usize, e: Event) {
        self.header().events.fetch_add(1, Relaxed);
        let stale = self.is_stale(i, &e);
        let key = if stale {
            let desc = self.desc(i, e.fd);
            desc.filter(|d| d.is_of(e.generation)).map(|d| d.key)
        } else {
            self.known(i, &e)
        };
        self.has_moved(i, e.fd, Some(e.offset));
        let Some(key) = key else {
            self.read_unseen(i, &e);
            return;
        };
        if !stale && self.told_before(i, key, e) {
            return;
        }
        let shared = self.shared.clone();
        let desc = self.processes.get_mut(i).and_then(|p| p.desc_mut(e.fd));
        self.turns
            .stir(desc.as_ref().is_none_or(|d| d.rarely() == 0));
        let followed = desc.is_some_and(|d| d.overlook(e.offset, e.extra, shared.proc(i)));
        if !followed {
            let span = e.offset..e.offset.saturating_add(e.len);
            let when = self.asked_at(i, &e);
            self.pass(i, key, (span, 1, e.len), &when);
        }
    }
}
