//! Data sets on a disk: made once for all rows that share them, found cold.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outrider_sys::cache::{self, CacheStatError};
use outrider_sys::units::PAGE;
use std::os::fd::AsFd;

use crate::disk::Lease;
use crate::output::{Context, Outcome};
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

/// Cuts rows into stretches whose data sets have room together in `room` bytes, or that are one row with a larger set:
/// `start..end` among the rows, and the bytes of the sets.
pub fn stretches(rows: &[Row], room: u64) -> Vec<(Range<usize>, u64)> {
    let mut all: Vec<(Range<usize>, u64)> = Vec::new();
    let mut keys = BTreeSet::new();
    for (i, row) in rows.iter().enumerate() {
        let more = if keys.contains(&row.data.key) {
            0
        } else {
            row.data.bytes
        };
        match all.last_mut() {
            Some((stretch, used)) if *used + more <= room => {
                stretch.end = i + 1;
                *used += more;
            }
            _ => {
                keys.clear();
                all.push((i..i + 1, row.data.bytes));
            }
        }
        keys.insert(row.data.key.clone());
    }
    all
}

/// What is made of a data set.
#[derive(Clone, Debug)]
pub struct Set {
    /// Its directory.
    pub dir: PathBuf,
    /// Bytes in its files.
    pub bytes: u64,
    /// Its files as they were made.
    files: Vec<PathBuf>,
}

/// The data sets on a disk.
#[derive(Debug, Default)]
pub struct Store {
    sets: HashMap<String, Set>,
}

impl Store {
    /// The data set, made now if it is not there. The disk must be at full speed.
    pub fn get(&mut self, disk: &Lease, data: &Data, tools: &Tools) -> Outcome<Set> {
        if let Some(set) = self.sets.get(&data.key) {
            return Ok(set.clone());
        }
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
            dir,
        };
        self.sets.insert(data.key.clone(), set.clone());
        Ok(set)
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
            all += pages * PAGE;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{Memory, Workload};

    fn row(key: &str, bytes: u64) -> Row {
        Row {
            name: String::new(),
            about: String::new(),
            point: None,
            data: Data {
                key: key.to_owned(),
                bytes,
                make: |_| Ok(()),
            },
            memory: Memory::Free,
            work: Workload::default(),
            short: &[],
            devices: &[],
        }
    }

    #[test]
    fn what_shares_data_shares_a_disk() {
        let rows = [
            row("a", 4),
            row("b", 5),
            row("a", 4),
            row("c", 2),
            row("a", 4),
            row("d", 20),
            row("c", 2),
        ];
        assert_eq!(
            stretches(&rows, 10),
            [(0..3, 9), (3..5, 6), (5..6, 20), (6..7, 2)]
        );
        assert_eq!(stretches(&[], 10), []);
    }
}
