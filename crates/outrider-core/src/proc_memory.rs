//! The memory of a process ([`Proc`]), as whoever made it has it mapped: a stand-in for a program, in simulations, recordings and tests.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use outrider_sys::handover::{self, Handed, Message, Peer};
use outrider_sys::mapped;

use crate::shared::Shared;
use crate::shm::{self, PROC_BYTES, Proc};

/// A mapping, until it is dropped.
pub struct ProcMemory {
    at: *mut u8,
}

// SAFETY: a mapping that stays until it is dropped, and is used by atomics only.
unsafe impl Send for ProcMemory {}
// SAFETY: as above.
unsafe impl Sync for ProcMemory {}

impl ProcMemory {
    /// New memory, and the descriptor by which it is handed over.
    pub fn new() -> io::Result<(ProcMemory, OwnedFd)> {
        let (fd, at) = handover::memory(shm::NAME, PROC_BYTES, 0, std::ptr::null_mut())
            .map_err(io::Error::from_raw_os_error)?;
        // SAFETY: a new descriptor, nobody else's.
        Ok((ProcMemory { at }, unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Memory that somebody else has made, mapped here, too; `None` where that is refused.
    pub fn map(fd: &OwnedFd) -> Option<ProcMemory> {
        let at = mapped::map_file(fd.as_raw_fd(), PROC_BYTES, std::ptr::null_mut())?;
        Some(ProcMemory { at })
    }

    /// What is in it.
    pub fn proc(&self) -> &Proc {
        // SAFETY: the memory of a whole Proc; zero is a valid one.
        unsafe { &*self.at.cast::<Proc>() }
    }

    /// The word at so many bytes from its beginning, a multiple of 4 within it.
    pub fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at < PROC_BYTES);
        // SAFETY: within the mapping, aligned.
        unsafe { &*self.at.add(at).cast::<AtomicU32>() }
    }

    /// What the kernel would tell of somebody who hands this memory, of descriptor `fd`, over as process `pid` of the run.
    pub fn handed(fd: OwnedFd, shared: &Shared, pid: u32) -> Handed {
        Handed {
            from: Peer {
                pid,
                uid: 0,
                gid: 0,
            },
            effective: [0, 0],
            life: None,
            message: Message {
                version: shm::VERSION,
                on_behalf: 0,
                token: shared.header().secret.load(Ordering::Relaxed),
            },
            memory: fd,
            sent: [0, 0],
        }
    }
}

impl Drop for ProcMemory {
    fn drop(&mut self) {
        mapped::unmap(self.at, PROC_BYTES);
    }
}
