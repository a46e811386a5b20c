//! Units in which files are spoken of.

/// Bytes of a page, of memory and of the page cache: the kernels this runs on use 4 KiB pages
/// (asm/page.h).
pub const PAGE: u64 = 4096;

/// What tells a file from all others that exist at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InodeKey {
    /// Its file system: `st_dev`.
    pub dev: u64,
    /// Its number there: `st_ino`.
    pub ino: u64,
}

impl InodeKey {
    /// The file with this `st_dev` and `st_ino`.
    pub fn new(dev: u64, ino: u64) -> InodeKey {
        InodeKey { dev, ino }
    }
}
