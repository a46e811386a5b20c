//! The bytes of the emulated disk: anonymous memory, or a file that outlives it.
//!
//! Anonymous memory is sparse by itself: reading what was never written maps the kernel's zero page, and
//! huge pages keep the copying cheap. It goes away with the process, however that ends. A file (best in
//! a tmpfs) can be kept and brought up again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

use outrider_sys::units::PAGE;
use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};

/// A mapped disk image.
#[derive(Debug)]
pub struct Image {
    base: NonNull<u8>,
    len: u64,
    file: Option<File>,
}

// SAFETY: the mapping belongs to the value alone and is valid from every thread.
unsafe impl Send for Image {}

impl Image {
    /// An image of `len` bytes in memory. It is kept out of swap, where the machine allows: a disk that
    /// waits for another disk measures the wrong one.
    pub fn in_memory(len: u64) -> io::Result<Self> {
        let size = usize::try_from(len).map_err(io::Error::other)?;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        // SAFETY: advice and locking on the mapping just made; neither changes what it holds. Failure of
        // either costs speed only.
        unsafe {
            let _ = rustix::mm::madvise(base, size, rustix::mm::Advice::LinuxHugepage);
            libc::mlock2(base, size, libc::MLOCK_ONFAULT as _);
        }
        Ok(Self {
            base: NonNull::new(base.cast()).expect("mmap does not return null"),
            len,
            file: None,
        })
    }

    /// The file at `path` as an image; it is made, or extended, to `len` bytes.
    pub fn in_file(path: &Path, len: u64) -> io::Result<Self> {
        let size = usize::try_from(len).map_err(io::Error::other)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        if file.metadata()?.len() < len {
            file.set_len(len)?;
        }
        // SAFETY: a fresh mapping at an address that the kernel chooses. What others do to the file shows
        // in it, which is why it is only ever touched through raw pointers.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file.as_fd(),
                0,
            )?
        };
        Ok(Self {
            base: NonNull::new(base.cast()).expect("mmap does not return null"),
            len,
            file: Some(file),
        })
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where the bytes from `offset` on lie; `len` of them are valid.
    ///
    /// # Panics
    /// When they are not all within the image.
    pub fn bytes(&self, offset: u64, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len as u64 <= self.len - offset);
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.as_ptr().add(offset as usize) }
    }

    /// Copies `data` to `offset`. A file gets it through write(2): on a full file system that returns an
    /// error, where a store to the mapping would kill the process.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let to = self.bytes(offset, data.len());
        if let Some(file) = &self.file {
            return file.write_all_at(data, offset);
        }
        // SAFETY: `bytes` checked the range; `data` is a reference, so it does not lie in the mapping, to
        // which no references are ever made.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
        Ok(())
    }

    /// Gives `offset..offset + len` back: it reads as zeros and takes no space.
    pub fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let start = self.bytes(offset, usize::try_from(len).map_err(io::Error::other)?);
        if let Some(file) = &self.file {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            return Ok(rustix::fs::fallocate(file, how, offset, len)?);
        }
        let end = offset + len;
        let (first, last) = (offset.next_multiple_of(PAGE), end / PAGE * PAGE);
        // SAFETY: `bytes` checked the whole range, and `first..last` and the edges lie in it.
        unsafe {
            if first >= last {
                std::ptr::write_bytes(start, 0, len as usize);
                return Ok(());
            }
            std::ptr::write_bytes(start, 0, (first - offset) as usize);
            std::ptr::write_bytes(self.bytes(last, 0), 0, (end - last) as usize);
            let middle = self.bytes(first, 0);
            let size = (last - first) as usize;
            // Locked pages need the newer advice (Linux 5.18); zeros do for older kernels.
            if libc::madvise(middle.cast(), size, libc::MADV_DONTNEED_LOCKED) != 0 {
                std::ptr::write_bytes(middle, 0, size);
            }
        }
        Ok(())
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the mapping made above; no pointer into it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut image: Image) {
        image.write(4090, &[7; 8200]).unwrap();
        let at = |image: &Image, i: u64| {
            // SAFETY: one byte within the image.
            unsafe { *image.bytes(i, 1) }
        };
        assert_eq!((at(&image, 4089), at(&image, 4090)), (0, 7));
        image.discard(4100, 8000).unwrap();
        assert_eq!((at(&image, 4099), at(&image, 4100)), (7, 0));
        assert_eq!((at(&image, 12_099), at(&image, 12_100)), (0, 7));
    }

    #[test]
    fn writes_and_discards_touch_what_they_name() {
        check(Image::in_memory(1 << 20).unwrap());
        let dir = tempfile::tempdir().unwrap();
        check(Image::in_file(&dir.path().join("image"), 1 << 20).unwrap());
    }
}
