//! Who else uses files that are to make room: what other processes read stays, as far as that can be known without rights.
//!
//! inotify(7) tells that a file is read, by whomever: a file that this run has not read for half of the time after which it is inactive is watched for the other half.
//! A watch ends with the first read and is set again with the next look, so that a reader pays for five events a second at most. It tells nothing of files that this run
//! reads itself, or of who has a file open and waits: for that the descriptors of other processes are looked through, under pressure only, and those of other users are
//! not to be seen.

use std::mem::MaybeUninit;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use super::*;

/// Files that are watched at most, of the least 8192 that a user may watch.
const WATCHED: usize = 1024;
/// Files of which a watch begins at one look.
const AT_ONCE: usize = 32;
/// What was found open is true for so long.
const LASTS: Duration = Duration::from_secs(2);
/// Looking through other processes may take so long; what is not known then counts as open.
const PATIENCE: Duration = Duration::from_millis(20);

/// What is known of other readers of one file.
#[derive(Default)]
pub(super) struct Seen {
    /// Since when it has been known.
    since: Option<Instant>,
    /// The latest read.
    last: Option<Instant>,
    /// The watch, if there is one.
    watch: Option<i32>,
}

/// The service's eyes.
#[derive(Default)]
pub(super) struct Others {
    /// `Some(None)`: refused.
    inotify: Option<Option<OwnedFd>>,
    watched: HashMap<i32, FileKey>,
    /// When other processes were looked through, and files that this run knows which were open there; `None`: that took too long.
    open: Option<(Instant, Option<HashSet<PathBuf>>)>,
}

impl Others {
    fn inotify(&mut self) -> Option<&OwnedFd> {
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        let begun = self
            .inotify
            .get_or_insert_with(|| inotify::init(flags).ok());
        begun.as_ref()
    }

    /// Ends the watch of a file that is forgotten.
    pub(super) fn forget(&mut self, seen: &Seen) {
        if let (Some(watch), Some(Some(fd))) = (seen.watch, &self.inotify) {
            self.watched.remove(&watch);
            let _ = inotify::remove_watch(fd, watch);
        }
    }

    /// The files whose watches have ended since this was asked last, and whether by a read.
    fn heard(&mut self) -> Vec<(FileKey, bool)> {
        let Some(Some(fd)) = &self.inotify else {
            return Vec::new();
        };
        let mut heard = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(fd, &mut buffer);
        while let Ok(event) = events.next() {
            if let Some(key) = self.watched.remove(&event.wd()) {
                heard.push((key, event.events().contains(ReadFlags::ACCESS)));
            }
        }
        heard
    }
}

impl Service {
    /// How long nobody must have read a file for it to make room.
    pub(super) fn inactive_after(&self) -> Duration {
        Duration::from_secs(u64::from(self.config.reclaim.inactive_after_s))
    }

    /// Watches files that this run has ceased to read.
    pub(super) fn watch_for_others(&mut self) {
        if !self.config.reclaim.enabled || self.away.is_away() {
            return;
        }
        let now = Instant::now();
        for (key, was_read) in self.others.heard() {
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
        let half = self.inactive_after() / 2;
        let quiet = |f: &&FileState| {
            let is_held = f.view.present_pages() > 0;
            is_held && f.seen.watch.is_none() && now - f.last_access >= half
        };
        let room = WATCHED.saturating_sub(self.others.watched.len());
        let keys = self.files.values().filter(quiet).map(|f| f.key);
        let keys: Vec<FileKey> = keys.take(AT_ONCE.min(room)).collect();
        for key in keys {
            let Some(handle) = self.handle(key) else {
                continue;
            };
            let path = format!("/proc/self/fd/{}", handle.fd().as_raw_fd());
            let flags = WatchFlags::ACCESS | WatchFlags::ONESHOT;
            let Some(fd) = self.others.inotify() else {
                return;
            };
            let Ok(watch) = inotify::add_watch(fd, path, flags) else {
                continue;
            };
            self.others.watched.insert(watch, key);
            if let Some(file) = self.files.get_mut(&key) {
                file.seen.watch = Some(watch);
                file.seen.since.get_or_insert(now);
            }
        }
    }

    /// Whether other processes have read a file lately, or that is not known yet.
    pub(super) fn others_read(&self, key: FileKey) -> bool {
        let Some(file) = self.files.get(&key) else {
            return false;
        };
        let idle = self.inactive_after();
        if file.seen.last.is_some_and(|last| last.elapsed() < idle) {
            return true;
        }
        match file.seen.since {
            Some(since) => since.elapsed() < idle / 2,
            // It can't be watched, or there are too many: then it isn't known.
            None => {
                let refused = matches!(self.others.inotify, Some(None));
                !refused && self.others.watched.len() < WATCHED
            }
        }
    }

    /// Whether a process that this run doesn't follow has a file open.
    pub(super) fn is_open_elsewhere(&mut self, key: FileKey) -> bool {
        let last = self.others.open.as_ref().map(|(when, _)| *when);
        if last.is_none_or(|when| when.elapsed() >= LASTS) {
            let found = self.open_elsewhere();
            self.others.open = Some((Instant::now(), found));
        }
        let found = self.others.open.as_ref().and_then(|(_, f)| f.as_ref());
        let name = self.files.get(&key).map(|f| &f.name);
        match (found, name) {
            (Some(found), Some(name)) => found.contains(name),
            _ => true,
        }
    }

    /// The files of this run that other processes have open.
    fn open_elsewhere(&self) -> Option<HashSet<PathBuf>> {
        let begun = Instant::now();
        let known: HashSet<&PathBuf> = self.files.values().map(|f| &f.name).collect();
        let followed = self.procs.iter().flatten().map(|p| p.pid);
        let followed: HashSet<u32> = followed.chain([std::process::id()]).collect();
        let mut found = HashSet::new();
        for process in std::fs::read_dir("/proc").ok()?.flatten() {
            let pid = process.file_name().to_str().and_then(|n| n.parse().ok());
            if pid.is_none_or(|pid| followed.contains(&pid)) {
                continue;
            }
            let Ok(descriptors) = std::fs::read_dir(process.path().join("fd")) else {
                continue;
            };
            for descriptor in descriptors.flatten() {
                if begun.elapsed() > PATIENCE {
                    return None;
                }
                if let Ok(name) = std::fs::read_link(descriptor.path())
                    && known.contains(&name)
                {
                    found.insert(name);
                }
            }
        }
        Some(found)
    }
}
