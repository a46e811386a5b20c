//! Where files are: paths, and the directories that hold them.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outrider_sys::device::Device;
use outrider_sys::raw::blocks_read;
use outrider_sys::standing;
use outrider_sys::units::{DeviceId, InodeKey};

use super::super::link::Opened;
use super::super::stream::common;
use super::Guide;
use crate::engine::{Server, find_directory, modified_at};
use crate::fetch;
use crate::tree::known::{Directory, Place};

/// How long it is believed what a number of a device stands for.
const STALE: Duration = Duration::from_secs(1);
/// Directories listed to find out how two are related.
const LEVELS: usize = 4;
/// File systems of which it is remembered whether files are fetched from them.
const SYSTEMS: usize = 64;

/// Whether files of a file system are fetched, by `st_dev`, as far as was asked.
#[derive(Default)]
pub(super) struct Systems(HashMap<DeviceId, (Instant, bool)>);

impl Systems {
    /// Whether files are fetched from the file system of a directory, with this `st_dev`: it lies on a disk, as far as can be seen, and nobody
    /// else sees that they are open.
    pub(super) fn is_fit(&mut self, dev: DeviceId, dir: &Path, server: Option<&Server>) -> bool {
        if let Some(server) = server {
            // It is not asked for more than names.
            let lies_there = || {
                let found = find_directory(dir, Some(server));
                found.is_some_and(|(_, st)| st.st_dev == dev.0)
            };
            return server.device == dev && !standing::is_apart() && lies_there();
        }
        let known = self.0.get(&dev).filter(|(at, _)| at.elapsed() < STALE);
        let known = known.map(|(_, fit)| *fit);
        if known == Some(false) {
            return false;
        }
        // What a process says of a device must not count for the others.
        let Some((found, _)) = fetch::find(dir).filter(|(_, st)| st.st_dev == dev.0) else {
            return false;
        };
        if let Some(fit) = known {
            return fit;
        }
        if self.0.len() >= SYSTEMS {
            self.0.clear();
        }
        let fit = if fetch::server(std::process::id(), dev, dir).is_some() {
            // It is not asked anything.
            false
        } else if dev.major() != 0 {
            true
        } else {
            Device::of_fd(found.as_fd()).is_ok_and(|device| {
                // The layers of a container's root can't be seen from within.
                let overlay = device.mount.as_ref().filter(|m| m.fs_type == "overlay");
                let hidden = overlay.is_some_and(|m| m.dev == device.id);
                device.id.major() != 0 || hidden
            })
        };
        self.0.insert(dev, (Instant::now(), fit));
        fit
    }
}

impl Guide {
    /// The name under which the program has something open.
    pub(super) fn link_of(&self, opened: Opened) -> Option<PathBuf> {
        let proc = self.link.shared.proc(opened.proc);
        let slot = proc.slots.get(usize::from(opened.fd))?;
        fetch::link(opened.pid, opened.fd, slot, opened.generation)
            .filter(|path| path.is_absolute())
    }

    /// Where a file is that the program has open, by the name under which it was opened.
    pub(super) fn locate(&mut self, opened: Opened) -> Option<Place> {
        let path = self.link_of(opened)?;
        let dir = path.parent()?;
        let server = self.lane.server();
        if self.link.excluded.holds(&path) || !self.systems.is_fit(opened.key.device(), dir, server)
        {
            return None;
        }
        match self.tree.get(dir) {
            None => {
                if !self.may_list(opened) {
                    return None;
                }
                self.list_now(opened.proc, dir);
            }
            Some(known) => {
                let now = modified_at(dir, server)?;
                let patience = self.patience.get_mut(dir);
                match patience {
                    _ if now == known.modified => {}
                    Some(left) if *left > 0 => *left -= 1,
                    _ => self.list_now(opened.proc, dir),
                }
            }
        }
        self.tree.find(opened.key)
    }

    /// Lists what lies between two directories and the one that holds both.
    pub(super) fn relate(&mut self, proc: usize, a: &Path, b: &Path) {
        let above = common(a, b);
        for dir in [a, b] {
            let up = dir.ancestors().skip(1).take(LEVELS);
            for dir in up.take_while(|d| d.starts_with(&above)) {
                if self.tree.get(dir).is_none() {
                    self.list_now(proc, dir);
                }
            }
        }
    }

    /// Lists a directory. One that can't be listed is one without entries.
    pub(super) fn list_now(&mut self, proc: usize, path: &Path) {
        let (began, before) = (Instant::now(), blocks_read());
        let listed = {
            let Some(permit) = self.lane.permit(proc) else {
                return;
            };
            let excluded = self.link.excluded.holds(path);
            let listed = (!excluded).then(|| self.lane.list_here(&permit, path));
            listed.flatten().unwrap_or_else(|| {
                let now = modified_at(path, self.lane.server()).unwrap_or_default();
                Directory::new(path.to_owned(), InodeKey::default(), now, Vec::new())
            })
        };
        if blocks_read() != before {
            self.has_listed(listed.key.device(), began.elapsed());
        }
        self.take_in(listed);
    }

    /// Remembers what is in a directory.
    pub(super) fn take_in(&mut self, dir: Directory) {
        self.patience.insert(dir.path.clone(), dir.entries.len());
        if !self.tree.insert(dir) {
            self.patience.clear();
            self.forget_dense();
        }
    }
}
