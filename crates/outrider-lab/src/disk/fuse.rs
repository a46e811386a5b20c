//! The part of the kernel's FUSE protocol that one file needs (`linux/fuse.h`, minor version 31, Linux
//! 5.4 and later).
//!
//! The protocol is spoken directly: requests are answered from a timer heap, in any order, by the same
//! thread that takes them in. A library would put a thread or a queue between the two.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The largest request, bytes.
pub const MAX_IO: u32 = 1 << 20;
/// Bytes that a buffer for `read` must hold: the largest write and its headers.
pub const BUFFER: usize = MAX_IO as usize + 65536;
/// The node of the root directory.
pub const ROOT: u64 = 1;
/// The node of the disk.
pub const DISK: u64 = 2;

const VERSION: u32 = 7;
const MINOR: u32 = 31;
/// Attributes and names stay valid for this long, s: nothing here ever changes.
const VALID_SECONDS: u64 = 1 << 20;

const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;

const OPEN_DIRECT_IO: u32 = 1 << 0;
const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// A request of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub enum Call<'a> {
    /// The first of all; holds the largest read-ahead, bytes, and the flags that the kernel offers.
    Init {
        minor: u32,
        readahead: u32,
        flags: u32,
    },
    /// Which node has this name?
    Lookup { parent: u64, name: &'a [u8] },
    /// What are the node's attributes? (Also when asked to change them.)
    Attributes,
    /// Open the node.
    Open,
    /// Read `offset..offset + len`.
    Read { offset: u64, len: u32 },
    /// Write `data` at `offset`.
    Write { offset: u64, data: &'a [u8] },
    /// Change the allocation of `offset..offset + len` (flags as in fallocate(2)).
    Allocate { offset: u64, len: u64, mode: u32 },
    /// Put what was written on the medium.
    Sync,
    /// Something that succeeds without doing anything.
    Nothing,
    /// Something that is not answered.
    Silent,
    /// The file system goes away.
    Destroy,
    /// Something else.
    Unknown,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let b = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(b.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let b = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(b.try_into().ok()?))
}

/// Takes a message apart: its number, the node it is about and what is asked. `None` if it is cut short.
pub fn parse(message: &[u8]) -> Option<(u64, u64, Call<'_>)> {
    // struct fuse_in_header: len, opcode, unique, nodeid, uid, gid, pid, padding.
    const HEADER: usize = 40;
    let opcode = u32_at(message, 4)?;
    let unique = u64_at(message, 8)?;
    let node = u64_at(message, 16)?;
    let body = message.get(HEADER..)?;
    let call = match opcode {
        1 => Call::Lookup {
            parent: node,
            name: body.split(|b| *b == 0).next().unwrap_or_default(),
        },
        3 | 4 => Call::Attributes,
        14 | 27 => Call::Open,
        // struct fuse_read_in and fuse_write_in: fh, offset, size, …; the data follows 40 bytes.
        15 => Call::Read {
            offset: u64_at(body, 8)?,
            len: u32_at(body, 16)?,
        },
        16 => {
            let len = u32_at(body, 16)? as usize;
            Call::Write {
                offset: u64_at(body, 8)?,
                data: body.get(40..40 + len)?,
            }
        }
        18 | 25 | 29 | 34 => Call::Nothing, // release, flush, releasedir, access
        20 => Call::Sync,
        26 => Call::Init {
            minor: u32_at(body, 4)?,
            readahead: u32_at(body, 8)?,
            flags: u32_at(body, 12)?,
        },
        2 | 36 | 42 => Call::Silent, // forget, interrupt, batch_forget
        38 => Call::Destroy,
        // struct fuse_fallocate_in: fh, offset, length, mode, padding.
        43 => Call::Allocate {
            offset: u64_at(body, 8)?,
            len: u64_at(body, 16)?,
            mode: u32_at(body, 24)?,
        },
        _ => Call::Unknown,
    };
    Some((unique, node, call))
}

/// A growing answer.
#[derive(Debug, Default)]
pub struct Body(Vec<u8>);

impl Body {
    fn u16(mut self, v: u16) -> Self {
        self.0.extend(v.to_ne_bytes());
        self
    }
    fn u32(mut self, v: u32) -> Self {
        self.0.extend(v.to_ne_bytes());
        self
    }
    fn u64(mut self, v: u64) -> Self {
        self.0.extend(v.to_ne_bytes());
        self
    }
    /// struct fuse_attr.
    fn attributes(self, node: u64, size: u64) -> Self {
        let (mode, links, size) = if node == ROOT {
            (libc::S_IFDIR | 0o700, 2, 0)
        } else {
            (libc::S_IFREG | 0o600, 1, size)
        };
        let mut body = self.u64(node).u64(size).u64(size / 512);
        body.0.extend([0; 36]); // three times, s and ns
        body.u32(mode)
            .u32(links)
            .u32(0)
            .u32(0)
            .u32(0)
            .u32(4096)
            .u32(0)
    }
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The answer to [`Call::Init`].
pub fn init(minor: u32, readahead: u32, offered: u32) -> Body {
    let flags = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES;
    // More than the loop device ever has under way (its queue is 128 deep), so that only the model
    // bounds depth.
    let background = 1024;
    let mut body = Body::default()
        .u32(VERSION)
        .u32(minor.min(MINOR))
        .u32(readahead)
        .u32(flags & offered)
        .u16(background)
        .u16(background)
        .u32(MAX_IO)
        .u32(1) // time granularity, ns
        .u16((MAX_IO / 4096) as u16)
        .u16(0);
    body.0.extend([0; 32]);
    body
}

/// The answer to [`Call::Lookup`] of the disk.
pub fn entry(node: u64, size: u64) -> Body {
    Body::default()
        .u64(node)
        .u64(1) // generation
        .u64(VALID_SECONDS)
        .u64(VALID_SECONDS)
        .u64(0)
        .attributes(node, size)
}

/// The answer to [`Call::Attributes`].
pub fn attributes(node: u64, size: u64) -> Body {
    Body::default()
        .u64(VALID_SECONDS)
        .u64(0)
        .attributes(node, size)
}

/// The answer to [`Call::Open`].
pub fn open() -> Body {
    Body::default()
        .u64(0)
        .u32(OPEN_DIRECT_IO | OPEN_PARALLEL_DIRECT_WRITES)
        .u32(0)
}

/// The answer to a write of `len` bytes.
pub fn written(len: u32) -> [u8; 8] {
    let mut body = [0; 8];
    body[..4].copy_from_slice(&len.to_ne_bytes());
    body
}

/// Sends an answer: `errno` (0 for success) and `len` bytes at `data`.
///
/// The kernel no longer waiting for it (ENOENT, after an interrupt) is not an error here, nor are data that
/// cannot be read: the kernel fails the request by itself then.
///
/// # Safety
/// `len` bytes at `data` can be read.
pub unsafe fn reply(
    fuse: BorrowedFd<'_>,
    unique: u64,
    errno: i32,
    data: *const u8,
    len: usize,
) -> io::Result<()> {
    // struct fuse_out_header: len, error, unique.
    const HEADER: usize = 16;
    let mut header = [0u8; HEADER];
    header[..4].copy_from_slice(&((HEADER + len) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    let parts = [
        libc::iovec {
            iov_base: header.as_mut_ptr().cast(),
            iov_len: HEADER,
        },
        libc::iovec {
            iov_base: data.cast_mut().cast(),
            iov_len: len,
        },
    ];
    let count = if len == 0 { 1 } else { 2 };
    loop {
        // SAFETY: both parts are readable, the second by the caller's promise.
        if unsafe { libc::writev(fuse.as_raw_fd(), parts.as_ptr(), count) } >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // EFAULT: a hole of an image file on a file system that is full.
            Some(libc::ENOENT | libc::EFAULT) => return Ok(()),
            _ => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as the kernel lays it out.
    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let header = Body::default()
            .u32(40 + body.len() as u32)
            .u32(opcode)
            .u64(99)
            .u64(DISK)
            .u64(0)
            .u64(0);
        [header.bytes(), body].concat()
    }

    #[test]
    fn messages_are_taken_apart() {
        let read = Body::default()
            .u64(0)
            .u64(8192)
            .u32(4096)
            .u32(0)
            .u64(0)
            .u64(0);
        let read = message(15, read.bytes());
        let wanted = Call::Read {
            offset: 8192,
            len: 4096,
        };
        assert_eq!(parse(&read), Some((99, DISK, wanted)));
        let write = Body::default().u64(0).u64(512).u32(3).u32(0).u64(0).u64(0);
        let write = message(16, &[write.bytes(), b"abc"].concat());
        let wanted = Call::Write {
            offset: 512,
            data: b"abc",
        };
        assert_eq!(parse(&write), Some((99, DISK, wanted)));
        for cut in 0..write.len() {
            assert_eq!(parse(&write[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn answers_have_the_kernels_sizes() {
        assert_eq!(init(31, 0, !0).bytes().len(), 64);
        assert_eq!(entry(DISK, 0).bytes().len(), 128);
        assert_eq!(attributes(DISK, 0).bytes().len(), 104);
        assert_eq!(open().bytes().len(), 16);
    }
}
