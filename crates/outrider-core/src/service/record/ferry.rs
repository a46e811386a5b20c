//! The service's copy of a process's memory, and what goes to and fro between the two.
//!
//! Each word has a value that both had at the last crossing. What the copy has another value of since was written by the service, what the process's memory has another
//! of was written there.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::SeqCst;

use outrider_sys::raw;

use crate::proc_memory::ProcMemory;
use crate::shm::{self, Event, PROC_FUTEXES, PROC_WORDS, RING, Slot};

/// Words of a descriptor's state.
const SLOT_WORDS: usize = size_of::<Slot>() / 4;
/// Of these, the one of flags: both sides change single bits of it.
const FLAGS: usize = std::mem::offset_of!(Slot, flags) / 4;

/// A word that was written: bytes from the beginning of the memory, and its value.
pub type Written = (usize, u32);

/// Both, or the copy alone, where there is nobody whose it is.
pub struct Ferry {
    copy: ProcMemory,
    /// What single words were at the last crossing, by place in [`PROC_WORDS`].
    words: Vec<u32>,
    /// The same of the states of descriptors that were told of.
    slots: BTreeMap<u16, [u32; SLOT_WORDS]>,
}

/// Where the state of a descriptor begins, bytes.
fn slot_at(fd: u16) -> usize {
    std::mem::offset_of!(shm::Proc, slots) + usize::from(fd) * size_of::<Slot>()
}

/// All words that are looked at, with their values at the last crossing.
fn places<'a>(
    words: &'a mut [u32],
    slots: &'a mut BTreeMap<u16, [u32; SLOT_WORDS]>,
) -> impl Iterator<Item = (usize, &'a mut u32)> {
    let words = words.iter_mut().enumerate();
    let words = words.map(|(i, was)| (PROC_WORDS.start + 4 * i, was));
    let slots = slots.iter_mut().flat_map(|(fd, was)| {
        let was = was.iter_mut().enumerate();
        was.map(|(i, was)| (slot_at(*fd) + 4 * i, was))
    });
    words.chain(slots)
}

impl Ferry {
    /// Over a copy that is still as it was made.
    pub fn new(copy: ProcMemory) -> Ferry {
        Ferry {
            copy,
            words: vec![0; PROC_WORDS.len() / 4],
            slots: BTreeMap::new(),
        }
    }

    /// The copy.
    pub fn copy(&self) -> &ProcMemory {
        &self.copy
    }

    /// A descriptor was told of: its state is looked at from now on.
    fn tells_of(&mut self, fd: u16) {
        if usize::from(fd) < shm::MAX_FDS {
            self.slots.entry(fd).or_insert([0; SLOT_WORDS]);
        }
    }

    /// Takes over what the process has written and told. Events go before what they tell of is looked at, so that it is no older.
    pub fn come(&mut self, real: &ProcMemory) -> (Vec<Event>, Vec<Written>) {
        let mut events = Vec::new();
        while (self.copy.proc().waiting() as usize) < RING
            && let Some(event) = real.proc().pop(false)
        {
            self.tell(&event);
            events.push(event);
        }
        let mut written = Vec::new();
        for (at, was) in places(&mut self.words, &mut self.slots) {
            let now = real.word(at).load(SeqCst);
            if now != *was {
                *was = now;
                self.copy.word(at).store(now, SeqCst);
                written.push((at, now));
            }
        }
        (events, written)
    }

    /// What [`come`](Ferry::come) has found elsewhere: an event.
    pub fn tell(&mut self, event: &Event) {
        self.tells_of(event.fd);
        self.copy.proc().pass(event);
    }

    /// What it has found elsewhere: a word that was written.
    pub fn write(&mut self, (at, value): Written) {
        let first = slot_at(0);
        if at >= first {
            self.tells_of(((at - first) / size_of::<Slot>()) as u16);
        }
        let mut places = places(&mut self.words, &mut self.slots);
        if let Some((_, was)) = places.find(|(place, _)| *place == at) {
            *was = value;
            self.copy.word(at).store(value, SeqCst);
        }
    }

    /// What the service has written since the last crossing, each with the value before.
    pub fn go(&mut self) -> Vec<(Written, u32)> {
        let mut written = Vec::new();
        for (at, was) in places(&mut self.words, &mut self.slots) {
            let now = self.copy.word(at).load(SeqCst);
            if now != *was {
                written.push(((at, now), std::mem::replace(was, now)));
            }
        }
        written
    }
}

/// Carries what the service has written to the process.
pub fn carry(real: &ProcMemory, written: &[(Written, u32)]) {
    for ((at, now), was) in written {
        let word = real.word(*at);
        let of_slot = at.checked_sub(slot_at(0));
        match of_slot.map(|at| at % size_of::<Slot>() / 4) {
            Some(FLAGS) => _ = word.fetch_xor(now ^ was, SeqCst),
            _ => word.store(*now, SeqCst),
        }
        if PROC_FUTEXES.contains(at) {
            raw::futex_wake(word, u32::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::shm::{FD_TRACKED, FLAG_RESIDENT, FLAG_SHARED_POS, Kind};

    /// What either side writes arrives at the other one, of flags bit by bit, and an event comes with the state of its descriptor.
    #[test]
    fn both_sides_see_what_the_other_has_written() {
        let (real, _fd) = ProcMemory::new().unwrap();
        let mut ferry = Ferry::new(ProcMemory::new().unwrap().0);
        let slot = &real.proc().slots[5];
        slot.state.store(FD_TRACKED, Relaxed);
        slot.generation.store(3, Relaxed);
        assert!(real.proc().push(Kind::Open, 5, 0, 1 << 20, 0));
        slot.generation.store(4, Relaxed);
        let (events, written) = ferry.come(&real);
        assert_eq!((events.len(), events[0].generation), (1, 3));
        let copy = &ferry.copy().proc().slots[5];
        assert_eq!((copy.generation.load(Relaxed), written.len()), (4, 2));
        // At once, so that none of both may win alone.
        copy.flags.fetch_or(FLAG_RESIDENT, Relaxed);
        copy.skip.store(9, Relaxed);
        slot.flags.fetch_or(FLAG_SHARED_POS, Relaxed);
        let written = ferry.go();
        assert_eq!(written.len(), 2);
        carry(&real, &written);
        assert_eq!(slot.skip.load(Relaxed), 9);
        assert_eq!(slot.flags.load(Relaxed), FLAG_RESIDENT | FLAG_SHARED_POS);
        let (_, written) = ferry.come(&real);
        assert_eq!(written.len(), 1);
        let copy = &ferry.copy().proc().slots[5];
        assert_eq!(copy.flags.load(Relaxed), FLAG_RESIDENT | FLAG_SHARED_POS);
        assert!(ferry.go().is_empty());
        assert_eq!(ferry.copy().proc().pop(false).map(|e| e.fd), Some(5));
    }
}
