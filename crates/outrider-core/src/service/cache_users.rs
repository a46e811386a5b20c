//! Who else uses files that are to make room: what other processes read stays, as far as that can be known without rights.
//!
//! inotify(7) tells that a file is read, by whomever: a file that this run has not read for half of the time after which it is inactive is watched for the other half.
//! A watch ends with the first read and is set again with the next look, so that a reader pays for five events a second at most. It tells nothing of files that this run
//! reads itself, or of who has a file open and waits: for that the descriptors of other processes are looked through, under pressure only, and those of other users are
//! not to be seen.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use outrider_sys::units::InodeKey;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::kernel::Kernel;
use super::{FileState, Service};
use crate::clock::Moment;
use crate::fetch;

/// Files that are watched at most, of the least 8192 that a user may watch.
const WATCHED: usize = 1024;
/// Files of which a watch begins at one look.
const AT_ONCE: usize = 32;
/// What was found open is true for so long.
const LASTS: Duration = Duration::from_secs(2);
/// Looking through other processes may take so long at a time; until all were looked through, what is not known counts as open.
const PATIENCE: Duration = Duration::from_millis(20);

/// What is known of other readers of one file.
#[derive(Default)]
pub(super) struct Seen {
    /// Since when it has been known.
    since: Option<Moment>,
    /// The latest read.
    last: Option<Moment>,
    /// The watch, if there is one.
    watch: Option<i32>,
    /// When it could not be watched.
    refused: Option<Moment>,
}

/// The service's eyes.
#[derive(Default)]
pub(super) struct CacheUsers {
    watched: HashMap<i32, InodeKey>,
    /// When other processes were last looked through, all of them, and files that this run knows which were open there.
    open: Option<(Moment, HashSet<PathBuf>)>,
    /// The same of the round that goes on: what was found, and processes that are still to be looked through.
    round: Option<(HashSet<PathBuf>, Vec<u32>)>,
}

/// Watches of files, on Linux.
#[derive(Default)]
pub(super) struct Watches {
    /// `Some(None)`: refused.
    inotify: Option<Option<OwnedFd>>,
}

impl Watches {
    fn inotify(&mut self) -> Option<&OwnedFd> {
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        let begun = self
            .inotify
            .get_or_insert_with(|| inotify::init(flags).ok());
        begun.as_ref()
    }

    /// Begins to watch a file for being read, by its name: it need not be opened for that.
    pub(super) fn begin(&mut self, name: &Path, key: InodeKey) -> Option<i32> {
        let (found, st) = fetch::find(name)?;
        if (st.st_dev, st.st_ino) != (key.dev, key.ino) {
            return None;
        }
        let flags = WatchFlags::ACCESS | WatchFlags::ONESHOT;
        let path = format!("/proc/thread-self/fd/{}", found.as_raw_fd());
        inotify::add_watch(self.inotify()?, path, flags).ok()
    }

    /// Ends a watch.
    pub(super) fn end(&mut self, watch: i32) {
        if let Some(Some(fd)) = &self.inotify {
            let _ = inotify::remove_watch(fd, watch);
        }
    }

    /// The watches that have ended since this was asked last, and whether by a read.
    pub(super) fn heard(&mut self) -> Vec<(i32, bool)> {
        let Some(Some(fd)) = &self.inotify else {
            return Vec::new();
        };
        let mut heard = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(fd, &mut buffer);
        while let Ok(event) = events.next() {
            heard.push((event.wd(), event.events().contains(ReadFlags::ACCESS)));
        }
        heard
    }
}

impl<K: Kernel> Service<K> {
    /// How long nobody must have read a file for it to make room.
    pub(super) fn inactive_after(&self) -> Duration {
        Duration::from_secs(u64::from(self.config.reclaim.inactive_after_s))
    }

    /// Watches files that this run has ceased to read.
    pub(super) fn watch_for_others(&mut self) {
        if !self.config.reclaim.enabled || self.quiesce.is_quiesced() {
            return;
        }
        let now = self.kernel.now();
        for (watch, was_read) in self.kernel.reads_heard() {
            let Some(key) = self.cache_users.watched.remove(&watch) else {
                continue;
            };
            let Some(file) = self.files.get_mut(&key) else {
                continue;
            };
            file.seen.watch = None;
            match was_read {
                true => file.seen.last = Some(now),
                // It was unmounted or deleted.
                false => file.seen.since = None,
            }
        }
        let idle = self.inactive_after();
        let quiet = |f: &&FileState| {
            let is_held = f.view.present_pages() > 0;
            let refused = f.seen.refused.is_some_and(|when| now - when < idle);
            // Where opens show, and others may be on other machines, nothing is opened for this.
            let shows = self.devices.may_show_opens(f.key.dev);
            is_held
                && f.seen.watch.is_none()
                && !refused
                && !shows
                && now - f.last_access() >= idle / 2
        };
        let room = WATCHED.saturating_sub(self.cache_users.watched.len());
        let keys = self.files.values().filter(quiet).map(|f| f.key);
        let keys: Vec<InodeKey> = keys.take(AT_ONCE.min(room)).collect();
        for key in keys {
            let name = self.files.get(&key).map(|f| f.name().to_path_buf());
            let watch = name.and_then(|name| self.kernel.watch_reads(&name, key));
            if let Some(watch) = watch {
                self.cache_users.watched.insert(watch, key);
            }
            let Some(file) = self.files.get_mut(&key) else {
                continue;
            };
            file.seen.watch = watch;
            (file.seen.since, file.seen.refused) = match watch {
                Some(_) => (file.seen.since.or(Some(now)), file.seen.refused),
                None => (None, Some(now)),
            };
        }
    }

    /// Ends the watch of a file that is forgotten.
    pub(super) fn forget_watch(&mut self, seen: &Seen) {
        if let Some(watch) = seen.watch {
            self.cache_users.watched.remove(&watch);
            self.kernel.unwatch(watch);
        }
    }

    /// Whether other processes have read a file lately, or that is not known yet.
    pub(super) fn others_read(&self, key: InodeKey) -> bool {
        let Some(file) = self.files.get(&key) else {
            return false;
        };
        let idle = self.inactive_after();
        if file
            .seen
            .last
            .is_some_and(|last| self.kernel.since(last) < idle)
        {
            return true;
        }
        match file.seen.since {
            Some(since) => self.kernel.since(since) < idle / 2,
            // It can't be watched, or there are too many: then it isn't known.
            None => {
                let shows = self.devices.may_show_opens(key.dev);
                !shows && file.seen.refused.is_none() && self.cache_users.watched.len() < WATCHED
            }
        }
    }

    /// Whether a process that this run doesn't follow has a file open.
    pub(super) fn is_open_elsewhere(&mut self, key: InodeKey) -> bool {
        let last = self.cache_users.open.as_ref().map(|(when, _)| *when);
        if last.is_none_or(|when| self.kernel.since(when) >= LASTS) {
            self.look_through_processes();
        }
        let name = self.files.get(&key).map(FileState::name);
        match (&self.cache_users.open, name) {
            (Some((_, found)), Some(name)) => found.contains(name),
            _ => true,
        }
    }

    /// Looks for the files of this run that other processes have open, in some of these.
    fn look_through_processes(&mut self) {
        let begun = self.kernel.now();
        let known: HashSet<&Path> = self.files.values().map(FileState::name).collect();
        let followed = self.processes.iter().map(|(_, p)| p.pid());
        let followed: HashSet<u32> = followed.chain([self.kernel.own_pid()]).collect();
        let round = self.cache_users.round.take();
        let (mut found, mut left) =
            round.unwrap_or_else(|| (HashSet::new(), self.kernel.processes()));
        while let Some(pid) = left.pop() {
            if followed.contains(&pid) {
                continue;
            }
            let names = self.kernel.open_files(pid).into_iter();
            found.extend(names.filter(|name| known.contains(name.as_path())));
            if self.kernel.since(begun) > PATIENCE {
                break;
            }
        }
        match left.is_empty() {
            true => self.cache_users.open = Some((self.kernel.now(), found)),
            false => self.cache_users.round = Some((found, left)),
        }
    }
}
