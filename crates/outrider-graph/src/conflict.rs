//! Which calls must keep their order.
//!
//! Calls are made ahead in parallel, so they may change places. That must never be seen: a call is made ahead only if no earlier
//! call that is not done yet conflicts with it. Two calls conflict if one has effects that the other could notice. Where that can't be
//! told cheaply (two paths may name the same file), they do.

use std::sync::OnceLock;

use crate::call::{Args, Kind};

/// A file, as far as the order of calls depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    pub fd: i32,
    pub device: u64,
    pub inode: u64,
    pub size: i64,
    /// A regular file, and not one [of the kernel's own](is_of_kernel) …
    pub regular: bool,
    /// … or such a directory.
    pub directory: bool,
    /// O_APPEND: writes go to the end whatever their offset.
    pub append: bool,
    /// O_DIRECT.
    pub direct: bool,
}

/// A call with where it reads or writes.
pub struct Touch<'a> {
    pub args: &'a Args,
    /// Offset in bytes, of calls at the descriptor's position too, if it's known.
    pub position: Option<i64>,
    pub path: &'a [u8],
    /// The file that `args.fd` names, of calls that take no path.
    pub file: Option<File>,
}

/// Whether a file is on a file system by which the kernel shows itself (linux/magic.h): its regular files are none, and to read one may take a message
/// away, wait for the next, or set something off.
pub fn is_of_kernel(fd: i32) -> bool {
    const KINDS: [u32; 32] = [
        0x9fa0,      // proc
        0x6265_6572, // sysfs
        0x6462_6720, // debugfs
        0x7472_6163, // tracefs
        0x7363_6673, // securityfs
        0x6265_6570, // configfs
        0x0027_e0eb, // cgroup
        0x6367_7270, // cgroup2
        0xcafe_4a11, // bpf
        0x6165_676c, // pstore
        0xde5e_81e4, // efivarfs
        0xf97c_ff8c, // selinuxfs
        0x4341_5d53, // smackfs
        0x5a3c_69f0, // apparmorfs
        0x4249_4e4d, // binfmt_misc
        0x1cd1,      // devpts
        0x1980_0202, // mqueue
        0x6e73_6673, // nsfs
        0x5049_4446, // pidfs
        0x534f_434b, // sockfs
        0x5049_5045, // pipefs
        0x0904_1934, // anon_inode
        0x444d_4142, // dma-buf
        0x6c6f_6f70, // binder
        0x6573_5543, // fusectl
        0x0765_5821, // resctrl
        0x9584_58f6, // hugetlbfs
        0x9fa1,      // openprom
        0x9fa2,      // usbdevfs
        0xabba_1974, // xenfs
        0x6759_6969, // rpc_pipefs
        0x6e66_7364, // nfsd
    ];
    KINDS.contains(&(outrider_sys::raw::file_system(fd) as u32))
}

type Asked = fn(u64, u64) -> bool;

/// Who knows of writers that are not seen writing.
static WRITERS: OnceLock<Asked> = OnceLock::new();

/// Has `writers` be asked whether somebody in this process, who can't be seen writing, may write to the file of a device and an inode: what was
/// made ahead is not used then. It is called within calls of the program, and must neither allocate nor wait.
pub fn ask_who_writes(writers: fn(u64, u64) -> bool) {
    let _ = WRITERS.set(writers);
}

/// Whether that is so.
pub(crate) fn may_be_written(device: u64, inode: u64) -> bool {
    WRITERS.get().is_some_and(|writers| writers(device, inode))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Reads or writes bytes of a descriptor's file.
    Bytes,
    /// fstat, fsync.
    Inode,
    /// Changes nothing but the position.
    Seek,
    Close,
    /// Lists a directory.
    List,
    /// Follows a path, and may look at what it finds.
    Look,
    /// Changes names.
    Names,
}

fn class(a: &Args) -> Class {
    match a.kind {
        Kind::Read | Kind::Pread | Kind::Write | Kind::Pwrite => Class::Bytes,
        Kind::Fstat | Kind::Fsync => Class::Inode,
        Kind::Lseek => Class::Seek,
        Kind::Close => Class::Close,
        Kind::Getdents => Class::List,
        Kind::Fstatat | Kind::Statx => Class::Look,
        Kind::Openat if a.has_effects() => Class::Names,
        Kind::Openat => Class::Look,
        Kind::Unlinkat | Kind::Renameat | Kind::Mkdirat => Class::Names,
    }
}

/// Whether two calls must be made in their order.
pub fn conflict(earlier: &Touch<'_>, later: &Touch<'_>) -> bool {
    let (a, b) = (earlier.args, later.args);
    let (ca, cb) = (class(a), class(b));
    if ca == Class::Close || cb == Class::Close {
        let (closed, other) = if ca == Class::Close { (a, b) } else { (b, a) };
        return closed.fd == other.fd || other.kind == Kind::Renameat && closed.fd == other.fd2;
    }
    if !a.has_effects() && !b.has_effects() {
        return false;
    }
    let truncates = |x: &Args| x.kind == Kind::Openat && x.flags & libc::O_TRUNC != 0;
    if truncates(a) || truncates(b) {
        return true;
    }
    if ca == Class::Seek || cb == Class::Seek {
        // Where the file or its data end depends on what was written.
        let from_data = |x: &Args| {
            x.kind == Kind::Lseek && x.flags != libc::SEEK_SET && x.flags != libc::SEEK_CUR
        };
        return (from_data(a) || from_data(b))
            && (a.kind.writes() || b.kind.writes())
            && same_file(earlier, later);
    }
    match (ca, cb) {
        (Class::Names, Class::Names) => !independent_names(earlier, later),
        // What changes names changes no bytes.
        (Class::Names, Class::Bytes) | (Class::Bytes, Class::Names) => false,
        (Class::Names, _) | (_, Class::Names) => true,
        // An open file's look-up is not affected by what is written; its size, as stat tells it, is.
        (Class::Look, _) => a.kind != Kind::Openat,
        (_, Class::Look) => b.kind != Kind::Openat,
        (Class::List, _) | (_, Class::List) => false,
        _ => same_file(earlier, later) && files_conflict(earlier, later),
    }
}

/// Writes at offsets through one descriptor that are not done, as one range: in a row of writes that follow each other, each is compared with all
/// of those before it at once.
#[derive(Clone, Copy, Default)]
pub enum Writes {
    #[default]
    None,
    At {
        fd: i32,
        start: i64,
        end: i64,
    },
    /// Among them is something else.
    Mixed,
}

impl Writes {
    /// One more call is not done.
    pub fn add(&mut self, call: &Args) {
        let (from, to) = (call.offset, call.offset.saturating_add(call.len as i64));
        *self = match *self {
            _ if call.kind != Kind::Pwrite => Writes::Mixed,
            Writes::None => Writes::At {
                fd: call.fd,
                start: from,
                end: to,
            },
            Writes::At { fd, start, end } if fd == call.fd => Writes::At {
                fd,
                start: start.min(from),
                end: end.max(to),
            },
            _ => Writes::Mixed,
        };
    }

    /// Whether `later` is a write of the same kind that [`conflict`]s with none of them. `false` says nothing: they may lie on both sides of it.
    pub fn let_by(&self, later: &Touch<'_>) -> bool {
        let a = later.args;
        let in_place = a.kind == Kind::Pwrite && later.file.is_some_and(|f| !f.append);
        match *self {
            Writes::None => true,
            Writes::At { fd, start, end } => {
                let apart = a.offset >= end || a.offset.saturating_add(a.len as i64) <= start;
                in_place && fd == a.fd && apart
            }
            Writes::Mixed => false,
        }
    }
}

fn same_file(x: &Touch<'_>, y: &Touch<'_>) -> bool {
    match (&x.file, &y.file) {
        (Some(f), Some(g)) => (f.device, f.inode) == (g.device, g.inode),
        _ => true,
    }
}

/// Two calls on one file, one of which has effects.
fn files_conflict(x: &Touch<'_>, y: &Touch<'_>) -> bool {
    let (a, b) = (x.args, y.args);
    if !a.kind.writes() && !b.kind.writes() {
        // fsync: with another fsync.
        return a.kind == Kind::Fsync && b.kind == Kind::Fsync;
    }
    let bytes = |k: Kind| k.reads() || k.writes();
    if !bytes(a.kind) || !bytes(b.kind) || a.kind == Kind::Write || b.kind == Kind::Write {
        return true;
    }
    if x.file.is_none_or(|f| f.append) || y.file.is_none_or(|f| f.append) {
        return true;
    }
    let (Some(p), Some(q)) = (x.position, y.position) else {
        return true;
    };
    let (p_end, q_end) = (
        p.saturating_add(a.len as i64),
        q.saturating_add(b.len as i64),
    );
    if p < q_end && q < p_end {
        return true;
    }
    // A write further on makes a file longer, which a read near its end would notice.
    let size = x.file.map_or(0, |f| f.size);
    a.kind.reads() && p_end > size || b.kind.reads() && q_end > size
}

/// Two changes of names that can't meet: different plain names in one directory.
fn independent_names(x: &Touch<'_>, y: &Touch<'_>) -> bool {
    let simple = |t: &Touch<'_>| matches!(t.args.kind, Kind::Unlinkat | Kind::Mkdirat);
    let plain = |p: &[u8]| !p.is_empty() && p != b"." && p != b".." && !p.contains(&b'/');
    simple(x)
        && simple(y)
        && x.args.fd == y.args.fd
        && plain(x.path)
        && plain(y.path)
        && x.path != y.path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(fd: i32) -> File {
        File {
            fd,
            device: 1,
            inode: 7,
            size: 4096,
            regular: true,
            directory: false,
            append: fd == 5,
            direct: false,
        }
    }

    /// What is let by all at once conflicts with none of them; writes that follow each other are.
    #[test]
    fn a_range_of_writes_lets_by_what_meets_none_of_them() {
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut let_by, mut held) = (0, 0);
        for _ in 0..20_000 {
            let mut call = || {
                let kind = match random(8) {
                    0 => Kind::Pread,
                    1 => Kind::Fsync,
                    _ => Kind::Pwrite,
                };
                let fd = if random(8) == 0 {
                    3 + random(3) as i32
                } else {
                    3
                };
                Args {
                    len: 1 + random(4) as usize,
                    offset: random(16) as i64,
                    ..Args::new(kind, fd)
                }
            };
            let earlier: Vec<Args> = (0..3).map(|_| call()).collect();
            let later = call();
            let touch = |args| Touch {
                args,
                position: Some(args.offset),
                path: &[],
                file: Some(file(args.fd)),
            };
            let mut writes = Writes::None;
            earlier.iter().for_each(|e| writes.add(e));
            let conflicts = earlier.iter().any(|e| conflict(&touch(e), &touch(&later)));
            if writes.let_by(&touch(&later)) {
                assert!(!conflicts, "{earlier:?}, {later:?}");
                let_by += 1;
            } else {
                held += usize::from(conflicts);
            }
        }
        assert!(let_by > 1000 && held > 1000, "{let_by}, {held}");
        let mut writes = Writes::None;
        for i in 0..100 {
            let next = Args {
                len: 8192,
                offset: 8192 * i,
                ..Args::new(Kind::Pwrite, 3)
            };
            assert!(writes.let_by(&Touch {
                args: &next,
                position: Some(next.offset),
                path: &[],
                file: Some(file(3)),
            }));
            writes.add(&next);
        }
    }
}
