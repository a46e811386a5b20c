//! Files that a server keeps (NFS, FUSE), where opening one is no small matter.

use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::{ByteRange, InodeKey};

use super::Service;
use super::kernel::Kernel;
use super::opening::Opening;
use crate::config::Network;
use crate::fetch::Wanted;
use crate::shm::{self, Event, FD_IGNORED, Slot};

/// Bytes that a program may have read of a file until it is opened here.
const EARLY: u64 = 4 << 20;
/// Hints that wait for a file to be opened.
const HINTS: usize = 64;

/// What is known of a file while programs have it open, where opening it is no small matter.
#[derive(Default)]
pub(super) struct Served {
    /// It was opened, or couldn't be: it is not opened again before all programs have closed it.
    spent: bool,
    /// It is being opened.
    pending: bool,
    /// Whether what is read of it stays cached.
    caches: Option<bool>,
    /// A read that was told when the file was open here already: descriptor, thread, bytes.
    read: Option<(u16, u64, ByteRange)>,
    /// Bytes that programs have read since they opened it.
    bytes: u64,
    /// What programs have asked for while it was being opened.
    hinted: Vec<ByteRange>,
}

impl Served {
    /// So many bytes were read.
    pub(super) fn has_read(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Pages were thrown out of the cache: that what was read last is not there says nothing.
    pub(super) fn forget_read(&mut self) {
        self.read = None;
    }

    /// Whether what is read of it is known to stay cached.
    pub(super) fn surely_caches(&self) -> bool {
        self.caches == Some(true)
    }

    /// Whether what is read of it is known not to stay cached.
    pub(super) fn never_caches(&self) -> bool {
        self.caches == Some(false)
    }

    /// Takes it for a file that stays cached, or as it was before; returns that.
    pub(super) fn believe(&mut self, caches: Option<bool>) -> Option<bool> {
        std::mem::replace(&mut self.caches, caches)
    }

    /// The program will need these bytes: they are asked for once it is open, if it is being opened.
    pub(super) fn hint(&mut self, range: ByteRange) {
        if self.pending && self.hinted.len() < HINTS {
            self.hinted.push(range);
        }
    }

    /// Whether it may be opened, because something is `hinted`, or early enough.
    fn may_be_opened(&self, hinted: bool) -> bool {
        !self.pending && (hinted || !self.spent && self.bytes <= EARLY)
    }
}

impl<K: Kernel> Service<K> {
    /// Finds out whether a server keeps the files of a file system that is new, before anything is asked of it: by the mounts that a process sees, and the name under
    /// which it has a file open.
    pub(super) fn find_server(&mut self, opening: &Opening, slot: &Slot) {
        let (wanted, dev) = (opening.wanted, opening.key.dev);
        if self.devices.file_system(dev).is_some() {
            return;
        }
        if let Some(found) = self.kernel.server(wanted, slot, opening.generation) {
            self.devices.found(dev, found);
        }
    }

    /// Has a server's file opened, if that may pay: something is to be fetched, and it is early. A FUSE server that does not keep the cache loses what was read
    /// of the file until then.
    /// `hinted`: the program has said itself what it will read.
    pub(super) fn ask_server(&mut self, key: InodeKey, hinted: bool) {
        let served = self.devices.shows_opens(key.dev);
        if !served || self.devices.leaves_alone(key.dev) || self.quiesce.is_quiesced() {
            return;
        }
        if self.kernel.is_stuck(key.device()) {
            self.leave_alone(key.dev, shm::UNANSWERED);
            return;
        }
        let watched =
            self.header().watched.load(Relaxed) != 0 || self.files.untouchable().contains(&key);
        let Some(file) = self.files.get(&key) else {
            return;
        };
        if watched || !file.served.may_be_opened(hinted) {
            return;
        }
        let Some(source) = self.source(key) else {
            return;
        };
        let Some(file) = self.files.get_mut(&key) else {
            return;
        };
        let openers = file.hold.watched();
        let begun = self.kernel.begin_to_open(&self.shared, source, openers);
        (file.served.pending, file.served.spent) = (begun, begun);
    }

    /// Takes in files that servers have opened.
    pub(super) fn take_opened(&mut self) {
        let mut hinted = Vec::new();
        for opened in self.kernel.opened() {
            let closed = self.quiesce.is_quiesced() || self.header().watched.load(Relaxed) != 0;
            let closed = closed || self.files.untouchable().contains(&opened.key);
            let Some(file) = self.files.get_mut(&opened.key) else {
                continue;
            };
            file.served.pending = false;
            match opened.file {
                Some((handle, size)) if file.hold.is_open() && !closed => {
                    file.set_size(size);
                    file.hold.begins(handle, opened.proc);
                    file.hold.touch(self.kernel.now());
                    let ranges = std::mem::take(&mut file.served.hinted);
                    hinted.push((opened.proc, opened.key, ranges));
                }
                Some((handle, _)) => handle.let_go(),
                None => file.served.hinted.clear(),
            }
        }
        for (proc, key, ranges) in hinted {
            for range in ranges {
                self.advise(proc, key, range);
            }
        }
    }

    /// A read of a file is about to be made. Where it isn't known whether what is read stays cached, the one before tells: the same thread has made it. `false`: it does
    /// not, or that is not known yet.
    pub(super) fn stays_cached(&mut self, key: InodeKey, e: &Event) -> bool {
        if self.devices.file_system(key.dev).is_none_or(|p| p.caches) {
            return true;
        }
        let known = self.files.get(&key).and_then(|f| f.served.caches);
        if let Some(caches) = known {
            return caches;
        }
        let Some(handle) = self.handle(key) else {
            return false;
        };
        let Some(file) = self.files.get_mut(&key) else {
            return false;
        };
        let bytes = e.offset..e.offset.saturating_add(e.len).min(file.size());
        let before = file.served.read.take();
        let caches = match before {
            Some((fd, thread, bytes)) if (fd, thread) == (e.fd, e.extra) => {
                // Where it can't be seen it is believed.
                self.kernel
                    .counted(&handle, bytes)
                    .is_ok_and(|stat| stat.cached == 0)
            }
            _ => {
                file.served.read = (!bytes.is_empty()).then_some((e.fd, e.extra, bytes));
                return false;
            }
        };
        let caches = !caches;
        file.served.caches = Some(caches);
        if caches {
            self.devices.has_cached(key.dev);
        } else {
            file.served.spent = true;
            file.hold.let_go();
            self.devices.has_not_cached(key.dev);
            self.header().leave_alone(shm::BYPASSED, key.dev);
        }
        caches
    }

    /// A read was told: whether the descriptor's reads go past the page cache by now, without any hook having seen that. Then it is left alone, as if it had been opened so.
    pub(super) fn is_read_directly(&mut self, i: usize, e: &Event) -> bool {
        let now = self.kernel.now();
        let Some(desc) = self.desc_mut(i, e.fd) else {
            return false;
        };
        let (key, generation) = (desc.key, desc.generation);
        if !desc.is_to_be_looked_at(now) {
            return false;
        }
        let Some(state) = self.processes.get_mut(i) else {
            return false;
        };
        let wanted = Wanted {
            pid: state.pid(),
            fd: e.fd,
            dev: key.dev,
            ino: key.ino,
        };
        let slot = &self.shared.proc(i).slots[usize::from(e.fd)];
        if !self.kernel.is_direct(wanted, slot, generation) {
            return false;
        }
        let desc = state.unfollow(e.fd);
        slot.state.store(FD_IGNORED, Relaxed);
        if let Some(desc) = desc {
            self.abandoned(i, e.fd, desc);
        }
        true
    }

    /// Leaves servers alone whose trees are gone through, and that don't answer.
    pub(super) fn look_at_servers(&mut self) {
        let Some(walker) = &mut self.walker else {
            return;
        };
        for device in walker.silent() {
            self.leave_alone(device.0, shm::UNANSWERED);
        }
    }

    /// Whether nothing may be fetched of a file that a process has open, by where it lies: the settings say so. Nothing is asked for that.
    pub(super) fn is_off_limits(&mut self, opening: &Opening, slot: &Slot) -> bool {
        let off = self.config.files.network == Network::Off;
        let link = || self.kernel.link(opening.wanted, slot, opening.generation);
        off && self.devices.shows_opens(opening.key.dev)
            || !self.excluded.is_empty() && self.excluded.holds(&link())
    }

    /// Nothing is prefetched of a file system any more.
    pub(super) fn leave_alone(&mut self, dev: u64, reason: usize) {
        self.devices.leave_alone(dev);
        self.header().leave_alone(reason, dev);
        for file in self.files.values_mut().filter(|f| f.key.dev == dev) {
            file.hold.let_go();
        }
    }
}
