//! The part of the kernel's FUSE protocol that an emulated disk's one file and a tree that is only read need
//! (`linux/fuse.h`, minor version 31, Linux 5.4 and later).
//!
//! The protocol is spoken directly: a disk's requests are answered from a timer heap, in any order, by the same
//! thread that takes them in, and those of a tree by the lane that has waited for them. A library would put a
//! thread or a queue between the two.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use outrider_sys::units::PAGE;

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

/// Several reads of a file at once.
pub const ASYNC_READ: u32 = 1 << 0;
/// Writes of more than a page.
pub const BIG_WRITES: u32 = 1 << 5;
/// Pages go when a file's time or size is another one.
pub const AUTO_INVAL_DATA: u32 = 1 << 12;
/// Several direct reads of a file at once.
pub const ASYNC_DIO: u32 = 1 << 15;
/// Several look-ups and listings of a directory at once.
pub const PARALLEL_DIROPS: u32 = 1 << 18;
/// Requests of up to [`MAX_IO`].
pub const MAX_PAGES: u32 = 1 << 22;
/// Targets of links are kept.
pub const CACHE_SYMLINKS: u32 = 1 << 23;

/// Reads go past the page cache.
pub const OPEN_DIRECT_IO: u32 = 1 << 0;
/// What is cached of the file stays.
pub const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// The listing is kept.
pub const OPEN_CACHE_DIR: u32 = 1 << 3;
/// Several direct writes of a file at once.
pub const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

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
    /// Where does the link lead?
    Link,
    /// Open the node.
    Open,
    /// Open the directory.
    OpenList,
    /// Read `offset..offset + len` of what was opened under this handle.
    Read { handle: u64, offset: u64, len: u32 },
    /// The entries from `offset` on, as many as fit into `len` bytes, of the directory that was opened under this handle.
    List { handle: u64, offset: u64, len: u32 },
    /// Nobody uses the handle any more.
    Release { handle: u64 },
    /// Each of these nodes was told so many times less.
    Forget(Vec<(u64, u64)>),
    /// How large is the file system?
    Space,
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
        2 => Call::Forget(vec![(node, u64_at(body, 0)?)]),
        5 => Call::Link,
        14 => Call::Open,
        17 => Call::Space,
        27 => Call::OpenList,
        // struct fuse_read_in and fuse_write_in: fh, offset, size, …; the data follows 40 bytes.
        15 => Call::Read {
            handle: u64_at(body, 0)?,
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
        18 | 29 => Call::Release {
            handle: u64_at(body, 0)?,
        },
        28 => Call::List {
            handle: u64_at(body, 0)?,
            offset: u64_at(body, 8)?,
            len: u32_at(body, 16)?,
        },
        25 | 34 => Call::Nothing, // flush, access
        20 | 30 => Call::Sync,
        26 => Call::Init {
            minor: u32_at(body, 4)?,
            readahead: u32_at(body, 8)?,
            flags: u32_at(body, 12)?,
        },
        36 => Call::Silent, // interrupt
        // struct fuse_batch_forget_in: count, dummy; then node and count, each.
        42 => {
            let one = |i: usize| Some((u64_at(body, 8 + 16 * i)?, u64_at(body, 16 + 16 * i)?));
            let all: Option<Vec<_>> = (0..u32_at(body, 0)? as usize).map(one).collect();
            Call::Forget(all?)
        }
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

/// The attributes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number, as stat(2) tells it.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// 512 bytes each.
    pub blocks: u64,
    /// Of access, modification and change: s since 1970 and ns.
    pub times: [(i64, u32); 3],
    /// Type and permissions.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// The owner.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Of a device's node, as the kernel encodes it: bits 8..20 the major number, the others the minor one.
    pub device: u32,
    /// Bytes that are read best at once.
    pub block_size: u32,
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
    fn attributes(self, a: &Attributes) -> Self {
        let body = self.u64(a.inode).u64(a.size).u64(a.blocks);
        let body = a.times.iter().fold(body, |b, t| b.u64(t.0 as u64));
        let body = a.times.iter().fold(body, |b, t| b.u32(t.1));
        body.u32(a.mode)
            .u32(a.links)
            .u32(a.user)
            .u32(a.group)
            .u32(a.device)
            .u32(a.block_size)
            .u32(0)
    }
    /// struct fuse_dirent: an entry of a listing, `next` the offset of the one behind it, `kind` as in dirent(3). Not
    /// added if the body would be longer than `most` bytes then; whether it was.
    pub fn entry(&mut self, inode: u64, next: u64, kind: u32, name: &[u8], most: usize) -> bool {
        let len = (24 + name.len()).next_multiple_of(8);
        let end = self.0.len() + len;
        if end > most {
            return false;
        }
        let body = Self(std::mem::take(&mut self.0));
        let body = body.u64(inode).u64(next).u32(name.len() as u32).u32(kind);
        self.0 = body.0;
        self.0.extend(name);
        self.0.resize(end, 0);
        true
    }
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The answer to [`Call::Init`]: the flags, as far as they were offered; how many requests nobody waits for may be
/// under way, and from how many on the kernel reads ahead less; the largest write, bytes.
pub fn init(
    minor: u32,
    readahead: u32,
    flags: u32,
    (background, congested): (u16, u16),
    largest_write: u32,
) -> Body {
    let mut body = Body::default()
        .u32(VERSION)
        .u32(minor.min(MINOR))
        .u32(readahead)
        .u32(flags)
        .u16(background)
        .u16(congested)
        .u32(largest_write)
        .u32(1) // time granularity, ns
        .u16((MAX_IO as u64 / PAGE) as u16)
        .u16(0);
    body.0.extend([0; 32]);
    body
}

/// The answer to [`Call::Lookup`]: the node, and its attributes; name and attributes are valid for so many s.
pub fn entry(node: u64, attributes: &Attributes, valid: u64) -> Body {
    Body::default()
        .u64(node)
        .u64(1) // generation
        .u64(valid)
        .u64(valid)
        .u64(0)
        .attributes(attributes)
}

/// The answer to [`Call::Attributes`], which are valid for so many s.
pub fn attributes(attributes: &Attributes, valid: u64) -> Body {
    Body::default().u64(valid).u64(0).attributes(attributes)
}

/// The answer to [`Call::Open`] and [`Call::OpenList`].
pub fn open(handle: u64, flags: u32) -> Body {
    Body::default().u64(handle).u32(flags).u32(0)
}

/// The answer to [`Call::Space`], struct fuse_kstatfs: blocks in all, free, and free for everybody; inodes in all and free;
/// bytes of a block, of a name at most, and of a block in which the counts are.
pub fn space(counts: [u64; 5], sizes: [u32; 3]) -> Body {
    let body = counts.into_iter().fold(Body::default(), Body::u64);
    let mut body = sizes.into_iter().fold(body, Body::u32);
    body.0.extend([0; 28]);
    body
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
            handle: 0,
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
        let two = Body::default().u32(2).u32(0).u64(7).u64(1).u64(8).u64(3);
        let two = message(42, two.bytes());
        let wanted = Call::Forget(vec![(7, 1), (8, 3)]);
        assert_eq!(parse(&two), Some((99, DISK, wanted)));
        for cut in 0..two.len() {
            assert_eq!(parse(&two[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn listings_end_where_they_are_full() {
        let mut body = Body::default();
        assert!(body.entry(5, 1, 8, b"a name", 64));
        assert_eq!(body.bytes().len(), 32);
        assert!(body.entry(6, 2, 4, b"12345678", 64));
        assert_eq!(body.bytes()[32..40], 6u64.to_ne_bytes());
        assert!(!body.entry(7, 3, 4, b"x", 64));
        assert_eq!(body.bytes().len(), 64);
    }

    #[test]
    fn answers_have_the_kernels_sizes() {
        let none = Attributes::default();
        assert_eq!(init(31, 0, !0, (1, 1), MAX_IO).bytes().len(), 64);
        assert_eq!(entry(DISK, &none, 0).bytes().len(), 128);
        assert_eq!(attributes(&none, 0).bytes().len(), 104);
        assert_eq!(open(1, 0).bytes().len(), 16);
        assert_eq!(space([0; 5], [0; 3]).bytes().len(), 80);
    }
}
