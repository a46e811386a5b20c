//! A file that tells of its reads.

use std::fs;
use std::io::{self, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::process;

/// A [`std::fs::File`] that tells Outrider of each read, and of its end.
///
/// Reads at the file's position tell where it is, which takes a system call more where the file was declared; [`read_at`](File::read_at)
/// does not.
#[derive(Debug)]
pub struct File {
    inner: ManuallyDrop<fs::File>,
}

impl File {
    /// Opens a file for reading.
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        fs::File::open(path).map(File::from)
    }

    /// The standard library's file.
    pub fn get_ref(&self) -> &fs::File {
        &self.inner
    }

    /// The standard library's file, whose reads are no longer told of.
    pub fn into_inner(self) -> fs::File {
        let mut this = ManuallyDrop::new(self);
        process::closing(this.inner.as_raw_fd());
        // SAFETY: `this` is not dropped, and nothing uses `inner` after this.
        unsafe { ManuallyDrop::take(&mut this.inner) }
    }

    /// Attributes of the file.
    pub fn metadata(&self) -> io::Result<fs::Metadata> {
        self.inner.metadata()
    }

    /// Reads at a byte offset, without moving the file's position. See [`FileExt::read_at`].
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        process::reading(self.as_raw_fd(), offset, buffer.len() as u64);
        self.inner.read_at(buffer, offset)
    }

    /// Fills the buffer from a byte offset on. See [`FileExt::read_exact_at`].
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        process::reading(self.as_raw_fd(), offset, buffer.len() as u64);
        self.inner.read_exact_at(buffer, offset)
    }

    /// Tells of a read of `length` bytes at the file's position.
    fn tell(&self, length: usize) {
        if process::existing().is_some_and(|p| p.follows(self.as_raw_fd()))
            && let Ok(at) = (&*self.inner).stream_position()
        {
            process::reading(self.as_raw_fd(), at, length as u64);
        }
    }
}

impl From<fs::File> for File {
    fn from(file: fs::File) -> File {
        File {
            inner: ManuallyDrop::new(file),
        }
    }
}

impl From<OwnedFd> for File {
    fn from(fd: OwnedFd) -> File {
        File::from(fs::File::from(fd))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        process::closing(self.inner.as_raw_fd());
        // SAFETY: nothing uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.inner) }
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tell(buffer.len());
        (&*self.inner).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.tell(buffers.iter().map(|b| b.len()).sum());
        (&*self.inner).read_vectored(buffers)
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self.inner).seek(to)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self.inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self.inner).flush()
    }
}
