//! Copies within the kernel.
//!
//! A call that moves a file's bytes to another file reads them one readahead window after another, and waits for each. While it goes on, what it will come to is
//! asked for, in pieces, so that it is noticed if it turns out that a head has to move, that others read from the disk, or that memory runs short. A disk with a head is kept
//! busy by the kernel's windows.

use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{ByteRange, InodeKey, PAGE};

use super::kernel::Kernel;
use super::left_to_kernel::Way;
use super::{Service, bounds};
use crate::device::Sharing;
use crate::explain::Reason;
use crate::intent::Intent;
use crate::shm::{self, Event, Origin};

/// What is asked for and has not arrived at most, bytes: what a fast device delivers while the service sleeps …
const AHEAD: u64 = 16 << 20;
/// … and while nothing is known of the device.
const AT_FIRST: u64 = 1 << 20;
/// Bytes that are asked for at once, and how often in one round.
const PIECE: u64 = 4 << 20;
const PIECES: u32 = 16;

/// A call that moves bytes.
#[derive(Debug)]
pub(super) struct KernelCopy {
    proc: usize,
    fd: u16,
    generation: u32,
    key: InodeKey,
    /// Where it began, bytes.
    begin: u64,
    /// What has not been asked for yet, bytes.
    rest: ByteRange,
}

impl<K: Kernel> Service<K> {
    /// The kernel is about to move bytes to another file, or has failed to.
    pub(super) fn kernel_copy(&mut self, i: usize, e: &Event) {
        self.has_moved(i, e.fd, None);
        let Some(key) = self.known(i, e) else {
            return;
        };
        let told = self.hearing;
        if let Some(desc) = self.desc_mut(i, e.fd) {
            desc.copies(e.offset, told);
        }
        let Some(file) = self.files.get(&key) else {
            return;
        };
        // All of it stays unused until the call is over: no more than a stream's share.
        let share = self.memory.window(self.reading.files());
        let end = e.offset.saturating_add(e.len.min(share)).min(file.size());
        // The file may be held because of others.
        if e.offset >= end || self.mode == shm::MODE_PREDICT || !self.stands(i) {
            return;
        }
        if self.device_facts(key).leaves_to_kernel(Way::Begins) {
            self.leaves(key, Reason::Kernel);
            return;
        }
        let slot = &self.shared.proc(i).slots[usize::from(e.fd)];
        let mut new = KernelCopy {
            proc: i,
            fd: e.fd,
            generation: slot.generation.load(Relaxed),
            key,
            begin: e.offset,
            rest: e.offset..end,
        };
        let of = self.kernel_copies.iter().filter(|m| m.proc == i).count();
        let few =
            of < bounds::KERNEL_COPIES_EACH && self.kernel_copies.len() < bounds::KERNEL_COPIES;
        if few && self.goes_on(&mut new) {
            self.kernel_copies.push(new);
        }
    }

    /// The call that moved bytes of a descriptor, from `begin` if that is known, is over.
    pub(super) fn has_moved(&mut self, i: usize, fd: u16, begin: Option<u64>) {
        self.kernel_copies
            .retain(|m| (m.proc, m.fd) != (i, fd) || begin.is_some_and(|begin| begin != m.begin));
    }

    /// What the kernel reads ahead at once for the call that a process is in, if that moves bytes.
    pub(super) fn moving_at_once(&self, i: usize) -> Option<u64> {
        let m = self.kernel_copies.iter().find(|m| m.proc == i)?;
        Some(self.window(i, m.fd))
    }

    /// Asks for more of what is being moved.
    pub(super) fn go_on_moving(&mut self) {
        let mut copies = std::mem::take(&mut self.kernel_copies);
        copies.retain_mut(|m| self.goes_on(m));
        self.kernel_copies = copies;
    }

    /// Whether there is more to ask for.
    fn goes_on(&mut self, m: &mut KernelCopy) -> bool {
        if self.quiesce.is_quiesced() {
            return true;
        }
        let facts = self.device_facts(m.key);
        let desc = self.desc(m.proc, m.fd);
        if desc.is_none_or(|d| d.generation != m.generation)
            || facts.leaves_to_kernel(Way::Copies)
            || !self.memory.is_aggressive()
        {
            return false;
        }
        let most = match facts.sharing {
            // No more would be asked for than the kernel does, and its windows begin anew behind what it finds cached, until they have gone.
            Sharing::Shared => return true,
            Sharing::Unknown => {
                self.begin_sharing(self.device(m.key));
                return true;
            }
            _ if facts.model.has_latency() => AHEAD,
            Sharing::Suspected | Sharing::Exclusive => AT_FIRST,
        };
        for _ in 0..PIECES {
            let Some(file) = self.files.get(&m.key) else {
                return false;
            };
            let free = most.saturating_sub(file.view.in_flight_pages() * PAGE);
            let piece = m.rest.start..m.rest.end.min(m.rest.start.saturating_add(free.min(PIECE)));
            if piece.is_empty() {
                break;
            }
            m.rest.start = piece.end;
            let plan = self.fetch(Intent::new(m.key, &[piece], Origin::KernelCopies));
            if plan.refused_at.is_some() {
                return false;
            }
        }
        !m.rest.is_empty()
    }
}
