//! A process that writes anything into the memory that it has with the service, at any time.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};

use outrider_sys::{handover, mapped, raw};

use super::{Service, bounds};
use crate::config::Config;
use crate::shared::Shared;
use crate::shm::{FD_TRACKED, Kind, Proc};
use crate::{engine, shm};

/// The process's memory, as it is mapped there.
struct Memory(*mut u8);

// SAFETY: a mapping that stays, and is used by atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn proc(&self) -> &Proc {
        // SAFETY: the memory of a whole Proc; zero is a valid one.
        unsafe { &*self.0.cast::<Proc>() }
    }

    /// Writes a word anywhere, but so that the process still takes part; `ring`: where it tells, too, in which nothing is found then.
    fn scribble(&self, r: &mut Random, ring: bool) {
        let words = shm::PROC_BYTES / 8;
        let used = shm::PROC_BYTES_USED / 8;
        let at = match r.next() % 8 {
            0 => r.next() as usize % words,
            1 => r.next() as usize % 48,
            _ => r.next() as usize % used,
        };
        let value = match r.next() % 4 {
            0 => r.next(),
            1 => r.next() >> (r.next() % 64),
            2 => 0,
            _ => u64::MAX,
        };
        // That would be its end, or everybody's.
        let ends = [&self.proc().closed, &self.proc().watches];
        if ends
            .iter()
            .any(|end| (end.as_ptr() as usize - self.0 as usize) / 8 == at)
        {
            return;
        }
        let told = std::mem::offset_of!(Proc, notes) / 8 + size_of::<shm::Notes>() / 8;
        if !ring && (at < 24 || (told..told + shm::RING * 4 + 8).contains(&at)) {
            return;
        }
        // SAFETY: within the memory, aligned.
        let word = unsafe { &*self.0.add(at * 8).cast::<std::sync::atomic::AtomicU64>() };
        word.store(value, Relaxed);
    }

    /// A plausible event: of a descriptor that is open, with numbers that are not.
    fn tell(&self, file: (u16, u64, u64), r: &mut Random) {
        let (fd, dev, ino) = file;
        let proc = self.proc();
        let slot = &proc.slots[usize::from(fd)];
        slot.dev.store(dev, Relaxed);
        slot.ino.store(ino, Relaxed);
        slot.flags.store(shm::FLAG_READABLE, Relaxed);
        slot.state.store(FD_TRACKED, Release);
        let kinds = [
            Kind::Open,
            Kind::Read,
            Kind::Read,
            Kind::Read,
            Kind::Close,
            Kind::WillNeed,
            Kind::DontNeed,
            Kind::Truncate,
            Kind::Map,
            Kind::Unmap,
            Kind::MapWillNeed,
            Kind::Entry,
            Kind::Visit,
            Kind::Listing,
            Kind::Attributes,
            Kind::Seek,
            Kind::KernelCopy,
            Kind::Remap,
        ];
        let kind = kinds[r.next() as usize % kinds.len()];
        let mut any = || {
            let n = r.next();
            n >> (r.next() % 64)
        };
        proc.push(kind, fd, any(), any(), any());
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }
}

fn attach(socket: std::os::fd::BorrowedFd<'_>, secret: u64) -> Memory {
    let (fd, at) = handover::memory(shm::NAME, shm::PROC_BYTES, 0, std::ptr::null_mut()).unwrap();
    let name = handover::name_of(socket).unwrap();
    let message = handover::Message {
        version: shm::VERSION,
        token: secret,
        ..Default::default()
    };
    assert_eq!(handover::send(&name, fd, message, |_| true), 0);
    raw::close(fd);
    Memory(at)
}

/// A file that is open, and what tells it from others.
fn open_file(name: &str, len: u64) -> (OwnedFd, (u16, u64, u64)) {
    let path = std::env::temp_dir().join(format!("outrider-{name}-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(len).unwrap();
    let fd: OwnedFd = std::fs::File::open(&path).unwrap().into();
    std::fs::remove_file(path).unwrap();
    let st = rustix::fs::fstat(&fd).unwrap();
    let number = fd.as_raw_fd() as u16;
    (fd, (number, st.st_dev, st.st_ino))
}

/// SPEC B16: whatever is written into a process's memory, and when, by several threads, the service neither panics nor stops, opens nothing but files that the
/// process has open, and stays within what bounds it.
#[test]
fn scribbled_memory_harms_nobody() {
    scribble(500, false, 300);
    scribble(150, true, 0);
}

/// So many rounds of a service, and more until so many reads were told: who scribbles may get no processor for a while.
fn scribble(rounds: u32, ring: bool, least: u64) {
    let shared = Arc::new(Shared::create(shm::MODE_PREDICT_OPT, 65536).unwrap());
    let mut service = Service::new(
        shared.clone(),
        Config::default(),
        shm::MODE_PREDICT_OPT,
        engine::Kind::Noop,
        HashMap::new(),
    );
    let memory = attach(
        shared.socket().as_fd(),
        shared.header().secret.load(Relaxed),
    );
    service.round();
    assert_eq!(service.processes.len(), 1);
    let (_held, file) = open_file("scribbled", 1 << 42);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (memory, over) = (&memory, &over);
            scope.spawn(move || {
                let mut r = Random(seed);
                while !over.load(Relaxed) {
                    for _ in 0..64 {
                        memory.tell(file, &mut r);
                    }
                    memory.scribble(&mut r, ring);
                }
            });
        }
        let stop = Over(&over);
        let mut done = 0;
        while done < rounds || service.header().events.load(Relaxed) < least {
            service.round();
            done += 1;
            for key in service.files.values().map(|f| f.key) {
                assert_eq!((key.dev, key.ino), (file.1, file.2));
            }
            assert!(service.kernel_copies.len() <= bounds::KERNEL_COPIES);
            assert_eq!(service.processes.len(), 1);
        }
        drop(stop);
    });
    mapped::unmap(memory.0, shm::PROC_BYTES);
}

/// Ends the threads, also where an assertion fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
