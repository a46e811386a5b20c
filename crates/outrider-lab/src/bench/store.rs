//! Data sets on the disk: made once, kept as long as there is room, found cold.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outrider_sys::cache::{self, CacheStatError};
use std::os::fd::AsFd;

use crate::disk::Lease;
use crate::output::{Context, Failure, Outcome};
use crate::rows::{Data, Maker, Row, Tools};

/// The least size of a disk, bytes. It takes memory only where it was written, and a file system of this size has room for
/// some hundred thousand files.
const LEAST_SIZE: u64 = 8 << 30;
/// Data sets of up to so many files are verified where they are: opening them costs a few reads of metadata. Larger ones
/// are verified and then made cold once more, or the metadata would be warm.
const VERIFIED_IN_PLACE: usize = 32;

/// A disk's size for so many bytes of data, with room for what the file system needs beside them.
pub fn disk_size(data: u64) -> u64 {
    (2 * data).next_multiple_of(1 << 20).max(LEAST_SIZE)
}

/// What is made of a data set.
#[derive(Clone, Debug)]
pub struct Set {
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes in its files.
    pub bytes: u64,
    /// Bytes it may take on the disk.
    room: u64,
    /// Its files as they were made.
    files: Vec<PathBuf>,
}

/// The data sets on a disk.
#[derive(Debug, Default)]
pub struct Store {
    room: u64,
    sets: HashMap<String, Set>,
}

impl Store {
    /// No sets yet, room for `room` bytes of them.
    pub fn new(room: u64) -> Self {
        Self {
            room,
            sets: HashMap::new(),
        }
    }

    /// The data set, made now if it is not there; sets that none of the rows `ahead` needs go first where there is no room.
    /// The disk must be at full speed.
    pub fn get(&mut self, disk: &Lease, data: &Data, tools: &Tools, ahead: &[Row]) -> Outcome<Set> {
        if let Some(set) = self.sets.get(&data.key) {
            return Ok(set.clone());
        }
        self.make_room(disk, data, ahead)?;
        // Keys may hold what is no good in a name.
        let name: String = data
            .key
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "-_.".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        let dir = disk.dir().join(name);
        let words = data.key.split_once(':').map_or("", |(_, words)| words);
        let made = fs::create_dir(&dir).doing(dir.display()).and_then(|()| {
            (data.make)(&Maker {
                dir: &dir,
                tools,
                words,
            })
        });
        if let Err(failure) = made {
            let _ = fs::remove_dir_all(&dir);
            return Err(failure);
        }
        let root = File::open(&dir).doing(dir.display())?;
        rustix::fs::syncfs(&root).doing(dir.display())?;
        let mut files = Vec::new();
        walk(&dir, &mut files)?;
        let set = Set {
            bytes: files.iter().map(|(_, bytes)| bytes).sum(),
            files: files.into_iter().map(|(path, _)| path).collect(),
            room: data.bytes,
            dir,
        };
        self.sets.insert(data.key.clone(), set.clone());
        Ok(set)
    }

    fn make_room(&mut self, disk: &Lease, data: &Data, ahead: &[Row]) -> Outcome {
        let used = |sets: &HashMap<String, Set>| sets.values().map(|s| s.room).sum::<u64>();
        if data.bytes > self.room {
            return Err(Failure::system(format!(
                "the data set takes {}, the disk has {}",
                crate::size::show(data.bytes),
                crate::size::show(self.room)
            )));
        }
        let mut removed = false;
        while used(&self.sets) + data.bytes > self.room {
            // Not needed at all, or else needed last.
            let when = |key: &str| {
                ahead
                    .iter()
                    .position(|r| r.data.key == key)
                    .unwrap_or(usize::MAX)
            };
            let Some(key) = self
                .sets
                .keys()
                .max_by_key(|k| (when(k), (*k).clone()))
                .cloned()
            else {
                break;
            };
            if let Some(set) = self.sets.remove(&key) {
                fs::remove_dir_all(&set.dir).doing(set.dir.display())?;
                removed = true;
            }
        }
        if removed {
            let root = File::open(disk.dir()).doing(disk.dir().display())?;
            rustix::fs::syncfs(&root).doing(disk.dir().display())?;
            disk.trim()?;
        }
        Ok(())
    }
}

impl Set {
    /// Makes the disk cold and sees to it that nothing of the set is cached: the bytes of it that are.
    pub fn make_cold(&self, disk: &Lease) -> Outcome<u64> {
        disk.cold()?;
        if self.files.len() <= VERIFIED_IN_PLACE {
            return self.cached();
        }
        let cached = self.cached()?;
        disk.cold()?;
        Ok(cached)
    }

    /// Bytes of the set that are in the page cache.
    fn cached(&self) -> Outcome<u64> {
        let mut all = 0;
        for path in &self.files {
            let file = fs::OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NOATIME | libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(path);
            let file = match file {
                // A row may remove what it was given; its `reset` brings it back.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                file => file.doing(path.display())?,
            };
            let len = file.metadata().doing(path.display())?.len();
            let pages = match cache::cachestat(file.as_fd(), 0..len) {
                Ok(stat) => stat.cached,
                Err(CacheStatError::Unsupported) => {
                    let resident = cache::mincore(file.as_fd(), 0..len).doing(path.display())?;
                    resident.iter().filter(|r| **r).count() as u64
                }
                Err(e) => return Err(e).doing(path.display()),
            };
            all += pages * cache::page_size();
        }
        Ok(all)
    }
}

/// The regular files below `dir` with their sizes, in order of their paths.
fn walk(dir: &Path, files: &mut Vec<(PathBuf, u64)>) -> Outcome {
    let mut entries = fs::read_dir(dir)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .doing(dir.display())?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let meta = entry.metadata().doing(path.display())?;
        if meta.is_dir() {
            walk(&path, files)?;
        } else if meta.is_file() && meta.size() > 0 {
            files.push((path, meta.size()));
        }
    }
    Ok(())
}
