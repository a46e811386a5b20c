//! Directories that processes list.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::units::InodeKey;

use super::super::large::Large;
use super::super::link::Opened;
use super::super::stream::Listen;
use super::super::visits::Visits;
use super::{Guide, Told};
use crate::engine::Names;
use crate::fetch;
use crate::intent::{Intent, Target};
use crate::shm;
use crate::tree::known::Directory;

/// Large directories that are listed in parts at a time, one of a process.
const LARGE: usize = 8;

impl Guide {
    /// A process has opened a directory.
    pub(super) fn visited(&mut self, opened: Opened) {
        let Opened { proc, pid, .. } = opened;
        let lane = self.lane.clone();
        let found = self.tree.find(opened.key).map(|place| place.path());
        let Some(_permit) = lane.permit(proc) else {
            if let (Some(path), Some(visits)) = (found, self.visits.get_mut(&proc)) {
                visits.count(&path);
            }
            return self.listen(Told::Directories, proc, pid, Listen::Cold);
        };
        let path = found.or_else(|| self.link_of(opened));
        let (device, server) = (opened.key.device(), lane.server());
        let fit = |path: &PathBuf| {
            !self.link.excluded.holds(path) && self.systems.is_fit(device, path, server)
        };
        let Some(path) = path.filter(fit) else {
            let listen = self.visits.entry(proc).or_default().astray();
            return self.listen(Told::Directories, proc, pid, listen);
        };
        let visits = self.visits.entry(proc).or_default();
        let (sure, latest) = (visits.is_sure(), visits.latest().map(Path::to_owned));
        let known = self.tree.get(&path).map(|dir| dir.key == opened.key);
        let unknown = known == Some(false) || known.is_none() && !sure;
        if unknown && !self.list_in_parts(opened, &path, 0) {
            self.list_now(proc, &path);
            self.look_up(proc, &path, 0);
        }
        if let Some(latest) = latest {
            self.relate(proc, &latest, &path);
        }
        let asked = self.link.shared.proc(proc).asked.load(Relaxed);
        let visits = self.visits.entry(proc).or_default();
        let listen = visits.opened(&self.tree, &path, asked);
        self.listen(Told::Directories, proc, pid, listen);
    }

    /// A process lists a large directory, has waited, and goes on at position `at`: the rest of it is listed in parts.
    pub(super) fn listing(&mut self, opened: Opened, at: u64) {
        let Opened { proc, key, .. } = opened;
        let lane = self.lane.clone();
        let Some(_permit) = lane.permit(proc) else {
            return;
        };
        if let Some(large) = self.large.get_mut(&proc).filter(|l| l.key == key) {
            return large.waited(at);
        }
        let known = self.tree.find(key).map(|place| place.path());
        let Some(path) = known.or_else(|| self.link_of(opened)) else {
            return;
        };
        if !self.link.excluded.holds(&path)
            && self.systems.is_fit(key.device(), &path, lane.server())
        {
            self.list_in_parts(opened, &path, at);
        }
    }

    /// Has what is left of a directory at position `at` listed in parts, if it is a large one.
    fn list_in_parts(&mut self, of: Opened, path: &Path, at: u64) -> bool {
        let same = |st: &libc::stat| InodeKey::new(st.st_dev, st.st_ino) == of.key;
        let found = fetch::find(path).map(|(_, st)| st);
        let Some(st) = found.filter(same) else {
            return false;
        };
        let bytes = st.st_size as u64;
        let room = self.large.len() < LARGE || self.large.contains_key(&of.proc);
        if bytes < shm::LARGE_DIRECTORY || !room || !self.link.is_owner(of.proc, of.pid) {
            return false;
        }
        let entry = self.link.shared.proc(of.proc);
        let asked = entry.asked.load(Relaxed);
        let path = path.to_owned();
        let large = Large::new(path, of.key, bytes, at, asked);
        self.large.insert(of.proc, large);
        let counts = &entry.visiting;
        let _ = counts.compare_exchange(0, shm::COUNTS, Relaxed, Relaxed);
        true
    }

    /// A directory was listed ahead for a process.
    pub(super) fn listed(&mut self, proc: usize, dir: Directory, cold: bool) {
        self.listing.remove(&dir.path);
        let path = dir.path.clone();
        self.take_in(dir);
        if let Some(visits) = self.visits.get_mut(&proc) {
            let ahead = visits.arrived(&path, cold);
            let header = self.link.shared.header();
            header.listed[0].fetch_add(u64::from(ahead), Relaxed);
            self.look_up(proc, &path, Names::MOST);
        }
    }

    /// A part of a large directory was.
    pub(super) fn part_listed(
        &mut self,
        proc: usize,
        key: InodeKey,
        entries: Vec<(u64, OsString)>,
        cold: bool,
    ) {
        let large = self.large.get_mut(&proc).filter(|l| l.key == key);
        if large.is_some_and(|l| l.arrived(entries, cold)) {
            for figure in &self.link.shared.header().listed {
                figure.fetch_add(1, Relaxed);
            }
        }
        self.look_up_large(proc);
    }

    /// Has entries of a large directory looked up, if the program has begun to ask for attributes.
    pub(super) fn look_up_large(&mut self, proc: usize) {
        let asked = self.link.shared.proc(proc).asked.load(Relaxed);
        let Some(large) = self.large.get_mut(&proc) else {
            return;
        };
        let asks = self.visits.get(&proc).is_some_and(Visits::asks);
        if !asks && !large.asks(asked) {
            return;
        }
        let names = std::mem::take(&mut large.names);
        let (path, key) = (large.path.clone(), large.key);
        self.look_up_names(proc, &path, key, &names);
    }

    fn look_up_names(&mut self, proc: usize, path: &Path, key: InodeKey, names: &[OsString]) {
        for names in names.chunks(Names::MOST) {
            // What isn't looked up ahead the program looks up.
            if !self.lane.has_room(proc) {
                return;
            }
            let names = Names {
                path: path.to_owned(),
                key,
                names: names.to_vec(),
            };
            self.issue(Intent::of_walk(proc, Target::Inodes(names)));
        }
    }

    /// Has the files of a listed directory looked up, if the program asks for their attributes, but for the first `done` that are to be.
    fn look_up(&mut self, proc: usize, path: &Path, done: usize) {
        let asks = self.visits.get(&proc).is_some_and(Visits::asks);
        let Some(dir) = self.tree.get(path).filter(|_| asks).cloned() else {
            return;
        };
        let names: Vec<OsString> = dir.one_of_each_block().skip(done).cloned().collect();
        self.look_up_names(proc, &dir.path, dir.key, &names);
    }

    /// Has the directories listed that a process comes to next, unless its files are fetched, for which that is done, too.
    pub(super) fn list_ahead(&mut self, proc: usize) {
        let mut wanted = Vec::new();
        let walking = self.link.shared.proc(proc).walking.load(Relaxed) & shm::ALL_FILES != 0;
        if let Some(visits) = self.visits.get_mut(&proc).filter(|_| !walking) {
            self.link.shared.header().listed[1].fetch_add(visits.take_used(), Relaxed);
            wanted.extend(visits.wanted(&self.tree));
        }
        if let Some(large) = self.large.get_mut(&proc) {
            wanted.extend(large.wanted());
        }
        for target in wanted {
            self.issue(Intent::of_walk(proc, target));
        }
    }
}
