//! System calls as values: what a graph foresees ([`Op`]), what the program makes ([`Call`]), and both in one form
//! ([`Args`]) in which they are compared and issued.

use core::ffi::{CStr, c_char, c_void};

/// The calls that a graph may contain.
#[allow(missing_docs)] // each is the system call of its name
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    Openat,
    Close,
    Read,
    Pread,
    Write,
    Pwrite,
    Lseek,
    Fstat,
    Fstatat,
    Statx,
    Getdents,
    Fsync,
    Unlinkat,
    Renameat,
    Mkdirat,
}

impl Kind {
    /// All of them, in the order of their numbers, which are those of the C interface.
    pub const ALL: [Kind; 15] = [
        Kind::Openat,
        Kind::Close,
        Kind::Read,
        Kind::Pread,
        Kind::Write,
        Kind::Pwrite,
        Kind::Lseek,
        Kind::Fstat,
        Kind::Fstatat,
        Kind::Statx,
        Kind::Getdents,
        Kind::Fsync,
        Kind::Unlinkat,
        Kind::Renameat,
        Kind::Mkdirat,
    ];

    /// The system call's name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Openat => "openat",
            Kind::Close => "close",
            Kind::Read => "read",
            Kind::Pread => "pread",
            Kind::Write => "write",
            Kind::Pwrite => "pwrite",
            Kind::Lseek => "lseek",
            Kind::Fstat => "fstat",
            Kind::Fstatat => "fstatat",
            Kind::Statx => "statx",
            Kind::Getdents => "getdents",
            Kind::Fsync => "fsync",
            Kind::Unlinkat => "unlinkat",
            Kind::Renameat => "renameat",
            Kind::Mkdirat => "mkdirat",
        }
    }

    /// Whether the call changes more than its caller's buffers. Such a call is made ahead only when it is certain to come.
    /// openat is not one of these: it is never made ahead, only its look-up is.
    pub fn has_effects(self) -> bool {
        matches!(
            self,
            Kind::Write
                | Kind::Pwrite
                | Kind::Close
                | Kind::Fsync
                | Kind::Unlinkat
                | Kind::Renameat
                | Kind::Mkdirat
        )
    }

    /// Whether it names its file by a path.
    #[inline]
    pub fn takes_path(self) -> bool {
        matches!(
            self,
            Kind::Openat
                | Kind::Fstatat
                | Kind::Statx
                | Kind::Unlinkat
                | Kind::Renameat
                | Kind::Mkdirat
        )
    }

    /// Whether it reads bytes of a file.
    pub fn reads(self) -> bool {
        matches!(self, Kind::Read | Kind::Pread)
    }

    /// Whether it writes bytes of a file.
    pub fn writes(self) -> bool {
        matches!(self, Kind::Write | Kind::Pwrite)
    }

    /// Whether it is ever made ahead. What is not is made when the program makes it; for openat and getdents, what they will need
    /// from the disk is fetched ahead.
    pub fn runs_ahead(self) -> bool {
        !matches!(
            self,
            Kind::Openat | Kind::Close | Kind::Lseek | Kind::Getdents
        )
    }
}

/// Whether an open with these flags makes a file, and so has a mode. O_TMPFILE contains the bit of O_DIRECTORY.
pub fn open_creates(flags: i32) -> bool {
    flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE
}

/// The bytes of a foreseen write.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// These. They are copied when the write is made ahead, and compared with what the program writes in the end, unless that is the same memory
    /// and borrowed (see [`crate::Graph::changing`]).
    Bytes(&'a [u8]),
    /// Those that the read before, which is linked to this write, returns: all of them, as many as they are.
    Linked,
}

/// A foreseen system call with its arguments. Descriptors are numbers of the calling process; lengths and offsets are bytes.
#[allow(missing_docs)] // the fields are the call's arguments
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// openat(2) (and open(2), with `AT_FDCWD`). Its path is looked up ahead; the file is opened by the call itself, so that descriptor
    /// numbers, locks and devices are not affected.
    Openat {
        dir: i32,
        path: &'a CStr,
        flags: i32,
        mode: u32,
    },
    /// close(2); never ahead.
    Close { fd: i32 },
    /// read(2), and readv(2) of `len` bytes in all, at the descriptor's position.
    Read { fd: i32, len: usize },
    /// pread(2), and preadv(2) of `len` bytes in all.
    Pread { fd: i32, len: usize, offset: i64 },
    /// write(2) at the descriptor's position. Made ahead only in graphs whose descriptors' positions are private (see
    /// [`crate::Graph::private_positions`]).
    Write { fd: i32, data: Data<'a> },
    /// pwrite(2).
    Pwrite {
        fd: i32,
        data: Data<'a>,
        offset: i64,
    },
    /// lseek(2); never ahead, but what follows it is.
    Lseek { fd: i32, offset: i64, whence: i32 },
    /// fstat(2).
    Fstat { fd: i32 },
    /// fstatat(2) (and stat(2), lstat(2)).
    Fstatat {
        dir: i32,
        path: &'a CStr,
        flags: i32,
    },
    /// statx(2).
    Statx {
        dir: i32,
        path: &'a CStr,
        flags: i32,
        mask: u32,
    },
    /// getdents64(2) (and readdir(3)'s). The directory is listed ahead through a description of our own.
    Getdents { fd: i32, len: usize },
    /// fsync(2), or fdatasync(2) if `data_only`.
    Fsync { fd: i32, data_only: bool },
    /// unlinkat(2) (and unlink(2), rmdir(2)).
    Unlinkat {
        dir: i32,
        path: &'a CStr,
        flags: i32,
    },
    /// renameat(2).
    Renameat {
        from_dir: i32,
        from: &'a CStr,
        to_dir: i32,
        to: &'a CStr,
    },
    /// mkdirat(2).
    Mkdirat { dir: i32, path: &'a CStr, mode: u32 },
}

/// The arguments that are numbers, of every call in one form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Args {
    /// Which call.
    pub kind: Kind,
    /// The descriptor, or the directory of the path.
    pub fd: i32,
    /// renameat: the second directory.
    pub fd2: i32,
    /// Bytes to read or written.
    pub len: usize,
    /// In bytes.
    pub offset: i64,
    /// Flags; whence; 1 for fdatasync.
    pub flags: i32,
    /// Mode or statx's mask.
    pub extra: u32,
}

impl Args {
    /// All but kind and descriptor zero.
    pub fn new(kind: Kind, fd: i32) -> Args {
        Args {
            kind,
            fd,
            fd2: 0,
            len: 0,
            offset: 0,
            flags: 0,
            extra: 0,
        }
    }
}

impl<'a> Op<'a> {
    /// Which call it is.
    pub fn kind(&self) -> Kind {
        self.args().kind
    }

    /// A write's length is that of its bytes; 0 where they are linked.
    pub(crate) fn args(&self) -> Args {
        let data_len = |d: &Data<'_>| match d {
            Data::Bytes(b) => b.len(),
            Data::Linked => 0,
        };
        let with = Args::new;
        match *self {
            Op::Openat {
                dir, flags, mode, ..
            } => Args {
                flags,
                extra: if open_creates(flags) { mode } else { 0 },
                ..with(Kind::Openat, dir)
            },
            Op::Close { fd } => with(Kind::Close, fd),
            Op::Read { fd, len } => Args {
                len,
                ..with(Kind::Read, fd)
            },
            Op::Pread { fd, len, offset } => Args {
                len,
                offset,
                ..with(Kind::Pread, fd)
            },
            Op::Write { fd, ref data } => Args {
                len: data_len(data),
                ..with(Kind::Write, fd)
            },
            Op::Pwrite {
                fd,
                ref data,
                offset,
            } => Args {
                len: data_len(data),
                offset,
                ..with(Kind::Pwrite, fd)
            },
            Op::Lseek { fd, offset, whence } => Args {
                offset,
                flags: whence,
                ..with(Kind::Lseek, fd)
            },
            Op::Fstat { fd } => with(Kind::Fstat, fd),
            Op::Fstatat { dir, flags, .. } => Args {
                flags,
                ..with(Kind::Fstatat, dir)
            },
            Op::Statx {
                dir, flags, mask, ..
            } => Args {
                flags,
                extra: mask,
                ..with(Kind::Statx, dir)
            },
            Op::Getdents { fd, len } => Args {
                len,
                ..with(Kind::Getdents, fd)
            },
            Op::Fsync { fd, data_only } => Args {
                flags: i32::from(data_only),
                ..with(Kind::Fsync, fd)
            },
            Op::Unlinkat { dir, flags, .. } => Args {
                flags,
                ..with(Kind::Unlinkat, dir)
            },
            Op::Renameat {
                from_dir, to_dir, ..
            } => Args {
                fd2: to_dir,
                ..with(Kind::Renameat, from_dir)
            },
            Op::Mkdirat { dir, mode, .. } => Args {
                extra: mode,
                ..with(Kind::Mkdirat, dir)
            },
        }
    }

    pub(crate) fn path(&self) -> Option<&'a CStr> {
        match *self {
            Op::Openat { path, .. }
            | Op::Fstatat { path, .. }
            | Op::Statx { path, .. }
            | Op::Unlinkat { path, .. }
            | Op::Mkdirat { path, .. } => Some(path),
            Op::Renameat { from, .. } => Some(from),
            _ => None,
        }
    }

    pub(crate) fn second_path(&self) -> Option<&'a CStr> {
        match *self {
            Op::Renameat { to, .. } => Some(to),
            _ => None,
        }
    }

    pub(crate) fn data(&self) -> Option<Data<'a>> {
        match *self {
            Op::Write { data, .. } | Op::Pwrite { data, .. } => Some(data),
            _ => None,
        }
    }
}

/// A call that the program makes, with its pointers.
#[derive(Clone, Copy)]
pub struct Call {
    /// The arguments that are numbers.
    pub args: Args,
    /// A path, or null.
    pub path: *const c_char,
    /// renameat's second path, or null.
    pub second_path: *const c_char,
    /// Where the result goes, or what is written; null where `vectors` is used.
    pub buffer: *mut c_void,
    /// It is readv or preadv.
    pub vectored: bool,
    /// Their array.
    pub vectors: *const libc::iovec,
    /// Entries of `vectors`.
    pub vector_count: i32,
}

impl Args {
    /// Whether the call changes what others may see, openat included.
    pub fn has_effects(&self) -> bool {
        self.kind.has_effects()
            || self.kind == Kind::Openat
                && (open_creates(self.flags) || self.flags & libc::O_TRUNC != 0)
    }
}

impl Call {
    /// A call without pointers.
    #[inline]
    pub fn new(args: Args) -> Call {
        Call {
            args,
            path: core::ptr::null(),
            second_path: core::ptr::null(),
            buffer: core::ptr::null_mut(),
            vectored: false,
            vectors: core::ptr::null(),
            vector_count: 0,
        }
    }

    /// Whether it changes what another call may see, or closes a descriptor.
    pub fn changes(&self) -> bool {
        self.args.has_effects()
    }

    /// The system call: number and arguments.
    #[inline(always)]
    pub(crate) fn words(&self) -> (i64, [usize; 6]) {
        let a = &self.args;
        let path = self.path as usize;
        let buffer = self.buffer as usize;
        let fd = a.fd as usize;
        if self.vectored {
            let (at, n) = (self.vectors as usize, self.vector_count as usize);
            return match a.kind {
                Kind::Pread => (libc::SYS_preadv, [fd, at, n, a.offset as usize, 0, 0]),
                _ => (libc::SYS_readv, [fd, at, n, 0, 0, 0]),
            };
        }
        let flags = a.flags as usize;
        let extra = a.extra as usize;
        match a.kind {
            Kind::Openat => (libc::SYS_openat, [fd, path, flags, extra, 0, 0]),
            Kind::Close => (libc::SYS_close, [fd, 0, 0, 0, 0, 0]),
            Kind::Read => (libc::SYS_read, [fd, buffer, a.len, 0, 0, 0]),
            Kind::Pread => (
                libc::SYS_pread64,
                [fd, buffer, a.len, a.offset as usize, 0, 0],
            ),
            Kind::Write => (libc::SYS_write, [fd, buffer, a.len, 0, 0, 0]),
            Kind::Pwrite => (
                libc::SYS_pwrite64,
                [fd, buffer, a.len, a.offset as usize, 0, 0],
            ),
            Kind::Lseek => (libc::SYS_lseek, [fd, a.offset as usize, flags, 0, 0, 0]),
            Kind::Fstat => (libc::SYS_fstat, [fd, buffer, 0, 0, 0, 0]),
            Kind::Fstatat => (libc::SYS_newfstatat, [fd, path, buffer, flags, 0, 0]),
            Kind::Statx => (libc::SYS_statx, [fd, path, flags, extra, buffer, 0]),
            Kind::Getdents => (libc::SYS_getdents64, [fd, buffer, a.len, 0, 0, 0]),
            Kind::Fsync if a.flags == 0 => (libc::SYS_fsync, [fd, 0, 0, 0, 0, 0]),
            Kind::Fsync => (libc::SYS_fdatasync, [fd, 0, 0, 0, 0, 0]),
            Kind::Unlinkat => (libc::SYS_unlinkat, [fd, path, flags, 0, 0, 0]),
            // renameat is missing on newer architectures; renameat2 without flags is the same.
            Kind::Renameat => (
                libc::SYS_renameat2,
                [fd, path, a.fd2 as usize, self.second_path as usize, 0, 0],
            ),
            Kind::Mkdirat => (libc::SYS_mkdirat, [fd, path, extra, 0, 0, 0]),
        }
    }

    /// Makes the call. A result of zero or more, or a negated errno.
    ///
    /// # Safety
    /// The pointers are what the system call wants.
    #[inline(always)]
    pub unsafe fn make(&self) -> isize {
        let (n, [a, b, c, d, e, f]) = self.words();
        // SAFETY: as promised by the caller.
        unsafe { outrider_sys::raw::syscall6(n, a, b, c, d, e, f) }
    }
}
