//! Files around the page cache: O_DIRECT, and memory that suits it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::{Result, Wrong};

/// What O_DIRECT wants offsets, lengths and memory to be multiples of, on all devices that we know.
pub const ALIGN: usize = 4096;

/// Opens a file for reading, around the cache if `direct`.
pub fn open(path: &Path, direct: bool) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(if direct { libc::O_DIRECT } else { 0 })
        .open(path)
        .map_err(|e| Wrong::system(path.display(), e))
}

/// Bytes of a file.
pub fn size(file: &File, path: &Path) -> Result<u64> {
    let about = file.metadata();
    Ok(about.map_err(|e| Wrong::system(path.display(), e))?.len())
}

/// Bytes that begin at a multiple of [`ALIGN`].
pub struct Aligned {
    store: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// So many, zero.
    pub fn new(length: usize) -> Self {
        let store = vec![0; length + ALIGN];
        let start = store.as_ptr().align_offset(ALIGN);
        Self {
            store,
            start,
            length,
        }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.store[self.start..self.start + self.length]
    }
}

/// Reads exactly `bytes.len()` bytes at `offset`.
pub fn read(file: &File, path: &Path, bytes: &mut [u8], offset: u64) -> Result {
    file.read_exact_at(bytes, offset)
        .map_err(|e| Wrong::system(format!("{} at {offset}", path.display()), e))
}
