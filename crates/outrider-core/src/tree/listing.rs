//! Reading directories: the one reader of the records that getdents64(2) fills in.
//!
//! Graphs list directories in the program's own process, where nothing may be allocated. So the memory is the caller's, and names are lent from there.

use std::ffi::CStr;
use std::ops::Range;

use outrider_sys::raw;

/// Where the name begins in a struct linux_dirent64, behind inode, position, length and type; bytes.
const NAME: usize = 19;

/// What an entry is, as far as the file system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    Regular,
    /// Something else, or not known.
    Other,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Its inode's number.
    pub ino: u64,
    /// The position in the directory from which on the listing continues behind it, for lseek(2).
    pub next: i64,
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: &'a CStr,
}

impl Record<'_> {
    fn of(bytes: &[u8]) -> Option<Record<'_>> {
        let (head, name) = bytes.split_at_checked(NAME)?;
        Some(Record {
            ino: u64::from_ne_bytes(head[..8].try_into().ok()?),
            next: i64::from_ne_bytes(head[8..16].try_into().ok()?),
            kind: match head[18] {
                libc::DT_DIR => Kind::Directory,
                libc::DT_REG => Kind::Regular,
                _ => Kind::Other,
            },
            name: CStr::from_bytes_until_nul(name).ok()?,
        })
    }
}

/// A directory that is being read.
#[derive(Debug)]
pub struct Listing<'a> {
    fd: i32,
    room: &'a mut [u8],
    /// What of it holds records that were not read.
    left: Range<usize>,
}

impl<'a> Listing<'a> {
    /// Of the directory that is open as `fd` in the calling thread's table, from where it stands on. `room`: for what is read at once, at least 280 bytes
    /// for the longest name.
    pub fn new(fd: i32, room: &'a mut [u8]) -> Listing<'a> {
        Listing {
            fd,
            room,
            left: 0..0,
        }
    }

    /// The next entry that is neither `.` nor `..`, `None` at the end, or an errno.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, i32> {
        let found = loop {
            if self.left.is_empty() {
                self.left = 0..raw::getdents64(self.fd, self.room)?;
            }
            let unread = self.room.get(self.left.clone()).unwrap_or(&[]);
            let Some((head, name)) = unread.split_at_checked(NAME) else {
                return Ok(None);
            };
            let length = usize::from(u16::from_ne_bytes([head[16], head[17]]));
            let found = self.left.start..self.left.start + length.max(NAME);
            self.left.start = found.end;
            if !matches!(name, [b'.', 0, ..] | [b'.', b'.', 0, ..]) {
                break found;
            }
        };
        Ok(self.room.get(found).and_then(Record::of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::os::fd::AsRawFd;

    /// What is left of a directory, read with so much memory: names with inode numbers and kinds, and the positions behind them.
    fn read(dir: &File, room: usize) -> (BTreeMap<String, (u64, Kind)>, Vec<i64>) {
        let mut room = vec![0; room];
        let mut listing = Listing::new(dir.as_raw_fd(), &mut room);
        let (mut found, mut positions) = (BTreeMap::new(), Vec::new());
        while let Some(record) = listing.next_record().unwrap() {
            let name = record.name.to_str().unwrap().to_owned();
            assert_eq!(found.insert(name, (record.ino, record.kind)), None);
            positions.push(record.next);
        }
        (found, positions)
    }

    /// However little memory there is, every entry is found once, and behind each position the rest.
    #[test]
    fn every_entry_is_found_once() {
        use std::os::unix::fs::{DirEntryExt, symlink};
        let path = std::env::temp_dir().join(format!("outrider-listing-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        for i in 0..100 {
            fs::write(path.join("f".repeat(1 + 2 * i)), "").unwrap();
            fs::create_dir(path.join(format!(".{i}"))).unwrap();
        }
        symlink("..", path.join("link")).unwrap();
        let expected: BTreeMap<_, _> = fs::read_dir(&path)
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                let kind = match &*name {
                    "link" => Kind::Other,
                    name if name.starts_with('.') => Kind::Directory,
                    _ => Kind::Regular,
                };
                (name, (entry.ino(), kind))
            })
            .collect();
        for room in [280, 1000, 1 << 16] {
            let (found, positions) = read(&File::open(&path).unwrap(), room);
            assert_eq!((&found, positions.len()), (&expected, 201));
            for (read_before, position) in positions.iter().enumerate().step_by(50) {
                let dir = File::open(&path).unwrap();
                raw::lseek(dir.as_raw_fd(), *position, libc::SEEK_SET);
                assert_eq!(read(&dir, room).0.len(), 200 - read_before);
            }
        }
        let dir = File::open(&path).unwrap();
        let mut little = [0; 16];
        let refused = Listing::new(dir.as_raw_fd(), &mut little)
            .next_record()
            .err();
        assert_eq!(refused, Some(libc::EINVAL));
        fs::remove_dir_all(&path).unwrap();
    }
}
