//! The structures of the C headers (`include/outrider_graph.h`, `include/outrider_plugin.h`).

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libc::{DIR, dirent, size_t};
use outrider_graph::{Call, Data, Graph, Kind, Op};

/// struct outrider_op.
#[repr(C)]
pub struct Foreseen {
    pub kind: u32,
    pub fd: i32,
    pub fd2: i32,
    pub flags: i32,
    pub mode: u32,
    pub linked: u32,
    pub offset: i64,
    pub length: size_t,
    pub path: *const c_char,
    pub path2: *const c_char,
    pub data: *const c_void,
}

/// outrider_graph_next.
pub type NextStub = unsafe extern "C" fn(*mut c_void, u64, *mut Foreseen) -> c_int;

/// struct outrider_graph. The context is what the function gave when it entered.
pub struct CGraph(pub Graph<*mut c_void>);

impl Foreseen {
    /// A call of the program as observers are told of it.
    pub fn of(call: &Call) -> Foreseen {
        let a = &call.args;
        Foreseen {
            kind: a.kind as u32,
            fd: a.fd,
            fd2: a.fd2,
            flags: a.flags,
            mode: a.extra,
            linked: 0,
            offset: a.offset,
            length: a.len,
            path: call.path,
            path2: call.second_path,
            data: if a.kind.writes() {
                call.buffer.cast_const()
            } else {
                core::ptr::null()
            },
        }
    }

    /// Nothing yet.
    pub fn new() -> Foreseen {
        Foreseen {
            kind: 0,
            fd: 0,
            fd2: 0,
            flags: 0,
            mode: 0,
            linked: 0,
            offset: 0,
            length: 0,
            path: core::ptr::null(),
            path2: core::ptr::null(),
            data: core::ptr::null(),
        }
    }

    /// The call, or what is wrong with it.
    ///
    /// # Safety
    /// The pointers are null or what the header says, for as long as `'a`.
    pub unsafe fn op<'a>(&self) -> Result<Op<'a>, &'static str> {
        let text = |p: *const c_char| {
            if p.is_null() {
                Err("a stub gave a call without its path")
            } else {
                // SAFETY: as promised.
                Ok(unsafe { CStr::from_ptr(p) })
            }
        };
        let data = || match (self.linked, self.data.is_null()) {
            (0, true) => Err("a stub gave a write without its bytes"),
            // SAFETY: as promised.
            (0, false) => Ok(Data::Bytes(unsafe {
                core::slice::from_raw_parts(self.data.cast(), self.length)
            })),
            _ => Ok(Data::Linked),
        };
        let Some(kind) = Kind::ALL.get(self.kind as usize) else {
            return Err("a stub gave a call of an unknown kind");
        };
        let (fd, dir, flags, mode) = (self.fd, self.fd, self.flags, self.mode);
        let (len, offset) = (self.length, self.offset);
        Ok(match kind {
            Kind::Openat => Op::Openat {
                dir,
                path: text(self.path)?,
                flags,
                mode,
            },
            Kind::Close => Op::Close { fd },
            Kind::Read => Op::Read { fd, len },
            Kind::Pread => Op::Pread { fd, len, offset },
            Kind::Write => Op::Write { fd, data: data()? },
            Kind::Pwrite => Op::Pwrite {
                fd,
                data: data()?,
                offset,
            },
            Kind::Lseek => Op::Lseek {
                fd,
                offset,
                whence: flags,
            },
            Kind::Fstat => Op::Fstat { fd },
            Kind::Fstatat => Op::Fstatat {
                dir,
                path: text(self.path)?,
                flags,
            },
            Kind::Statx => Op::Statx {
                dir,
                path: text(self.path)?,
                flags,
                mask: mode,
            },
            Kind::Getdents => Op::Getdents { fd, len },
            Kind::Fsync => Op::Fsync {
                fd,
                data_only: flags == 1,
            },
            Kind::Unlinkat => Op::Unlinkat {
                dir,
                path: text(self.path)?,
                flags,
            },
            Kind::Renameat => Op::Renameat {
                from_dir: dir,
                from: text(self.path)?,
                to_dir: self.fd2,
                to: text(self.path2)?,
            },
            Kind::Mkdirat => Op::Mkdirat {
                dir,
                path: text(self.path)?,
                mode,
            },
        })
    }
}

/// struct outrider_entry.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry {
    pub name: *const c_char,
    pub inode: u64,
    pub kind: u32,
}

/// struct outrider_directory.
#[repr(C)]
pub struct Directory {
    pub fd: c_int,
    pub complete: c_int,
    pub count: usize,
    pub entries: *mut Entry,
}

/// struct outrider_observer.
#[repr(C)]
pub struct Observer {
    pub before: Option<unsafe extern "C" fn(*const Foreseen)>,
    pub after: Option<unsafe extern "C" fn(*const Foreseen, i64)>,
    pub duplicated: Option<unsafe extern "C" fn(c_int, c_int)>,
    pub listing: Option<unsafe extern "C" fn(*mut DIR, c_int)>,
    pub entry: Option<unsafe extern "C" fn(*mut DIR, *const dirent)>,
    pub closing: Option<unsafe extern "C" fn(*mut DIR, c_int)>,
    pub rewound: Option<unsafe extern "C" fn(*mut DIR, c_int)>,
}

/// struct outrider_plugin.
#[repr(C)]
pub struct Plugin {
    pub name: *const c_char,
    pub programs: *const *const c_char,
    pub start: Option<unsafe extern "C" fn() -> c_int>,
    pub observer: *const Observer,
    pub directory: Option<NextStub>,
    pub directory_flags: c_uint,
    pub arrange: Option<unsafe extern "C" fn(*mut Directory, usize)>,
}
