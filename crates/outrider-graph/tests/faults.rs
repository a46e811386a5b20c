//! Calls that fail: every kind of call that is made ahead, with every errno; and more calls in flight than a ring has room for.

mod support;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, IoSliceMut, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use outrider_graph::{Data, Engine, Graph, Next, Op, Scope};
use support::in_child;

const ENGINES: [Engine; 3] = [Engine::Serial, Engine::Uring, Engine::Threads];
/// The last errno of Linux that programs see.
const LAST_ERRNO: i32 = libc::EHWPOISON;
/// Calls on descriptor `BYTES + e`, of those that transfer bytes, fail with errno e …
const BYTES: i32 = 600;
/// … and calls on `NAMES + e`, of those that look names up, change them or ask for attributes.
const NAMES: i32 = 800;

/// From now on the thread, and those that it starts, have the calls above fail without being made.
fn fail_by_descriptor() {
    let bytes = [
        libc::SYS_pread64,
        libc::SYS_preadv,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_pwrite64,
        libc::SYS_write,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_getdents64,
    ];
    let names = [
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_openat,
        libc::SYS_unlinkat,
        libc::SYS_renameat,
        libc::SYS_renameat2,
        libc::SYS_mkdirat,
    ];
    const LOAD: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const IF_AT_LEAST: u16 = 0x35;
    const SUBTRACT: u16 = 0x14;
    const OR: u16 = 0x44;
    const RETURN: u16 = 0x06;
    const RETURN_A: u16 = 0x16;
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;
    let step = |code, k: u32, jt: usize, jf: usize| libc::sock_filter {
        code,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    // A range of descriptors: seven instructions.
    let range = |from: i32| {
        let from = from as u32;
        [
            step(LOAD, 16, 0, 0),
            step(IF_AT_LEAST, from + 1, 0, 4),
            step(IF_AT_LEAST, from + LAST_ERRNO as u32 + 1, 3, 0),
            step(SUBTRACT, from, 0, 0),
            step(OR, ERRNO, 0, 0),
            step(RETURN_A, 0, 0, 0),
            step(RETURN, ALLOW, 0, 0),
        ]
    };
    let mut program = vec![step(LOAD, 0, 0, 0)];
    let calls = bytes.len() + names.len();
    for (n, number) in bytes.iter().chain(&names).enumerate() {
        let after = calls - n - 1;
        // Behind the comparisons: one that allows, then the range of `bytes`, then that of `names`.
        let to = after + 1 + if n < bytes.len() { 0 } else { 7 };
        program.push(step(IF_EQUAL, *number as u32, to, 0));
    }
    program.push(step(RETURN, ALLOW, 0, 0));
    program.extend(range(BYTES));
    program.extend(range(NAMES));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: a filter program that outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter), 0);
    }
}

/// A descriptor of this number for what `file` is.
fn at_number(file: &File, number: i32) -> OwnedFd {
    // SAFETY: a number that nobody has.
    unsafe {
        assert_eq!(libc::fcntl(number, libc::F_GETFD), -1);
        assert_eq!(libc::dup2(file.as_raw_fd(), number), number);
        OwnedFd::from_raw_fd(number)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    Pread,
    Preadv,
    Read,
    Readv,
    Pwrite,
    Write,
    Fsync,
    Fdatasync,
    Getdents,
    Fstat,
    Fstatat,
    Statx,
    Openat,
    Unlinkat,
    Renameat,
    Mkdirat,
}

use Does::*;

const ALL: [Does; 16] = [
    Pread, Preadv, Read, Readv, Pwrite, Write, Fsync, Fdatasync, Getdents, Fstat, Fstatat, Statx,
    Openat, Unlinkat, Renameat, Mkdirat,
];

impl Does {
    /// A ring takes these, and a filter of system calls does not see them there.
    fn is_for_a_ring(self) -> bool {
        matches!(self, Pread | Preadv | Read | Readv | Pwrite | Write)
    }

    /// The range of descriptors that has it fail.
    fn range(self) -> i32 {
        match self {
            Fstat | Fstatat | Statx | Openat | Unlinkat | Renameat | Mkdirat => NAMES,
            _ => BYTES,
        }
    }

    /// Whether a descriptor is the directory that a name lies in.
    fn takes_name(self) -> bool {
        self.range() == NAMES && self != Fstat
    }

    /// Changes of names in several directories are not made ahead of each other; they are made ahead of writes.
    fn goes_behind_writes(self) -> bool {
        matches!(self, Unlinkat | Renameat | Mkdirat)
    }
}

/// A call on `fd`, or on `name` in the directory `fd`.
struct One {
    does: Does,
    fd: i32,
    offset: i64,
    name: CString,
    other: CString,
    /// What it fails with.
    errno: Option<i32>,
}

impl One {
    fn op(&self) -> Op<'_> {
        let (fd, path): (i32, &CStr) = (self.fd, &self.name);
        let dir = fd;
        match self.does {
            Pread | Preadv => Op::Pread {
                fd,
                len: 4,
                offset: 0,
            },
            Read | Readv => Op::Read { fd, len: 4 },
            Pwrite => Op::Pwrite {
                fd,
                data: Data::Bytes(b"new!"),
                offset: self.offset,
            },
            Write => Op::Write {
                fd,
                data: Data::Bytes(b"new!"),
            },
            Fsync | Fdatasync => Op::Fsync {
                fd,
                data_only: self.does == Fdatasync,
            },
            Getdents => Op::Getdents { fd, len: 4096 },
            Fstat => Op::Fstat { fd },
            Fstatat => Op::Fstatat {
                dir,
                path,
                flags: 0,
            },
            Statx => Op::Statx {
                dir,
                path,
                flags: 0,
                mask: libc::STATX_BASIC_STATS,
            },
            Openat => Op::Openat {
                dir,
                path,
                flags: libc::O_RDONLY,
                mode: 0,
            },
            Unlinkat => Op::Unlinkat {
                dir,
                path,
                flags: 0,
            },
            Renameat => Op::Renameat {
                from_dir: dir,
                from: path,
                to_dir: dir,
                to: &self.other,
            },
            Mkdirat => Op::Mkdirat {
                dir,
                path: &self.other,
                mode: 0o700,
            },
        }
    }

    /// Makes it. What it says in the end: bytes, or a size.
    fn make(&self, scope: &mut Scope<'_, Vec<One>>) -> io::Result<usize> {
        let (fd, path): (&i32, &CStr) = (&self.fd, &self.name);
        let (mut a, mut b) = ([0; 2], [0; 2]);
        let mut four = [0; 4];
        let done = |n: usize, bytes: &[u8]| {
            assert_eq!((n, bytes), (4, &b"old!"[..]), "{:?}", self.does);
            n
        };
        match self.does {
            Pread => scope.pread(fd, &mut four, 0).map(|n| done(n, &four)),
            Read => scope.read(fd, &mut four).map(|n| done(n, &four)),
            Preadv | Readv => {
                let mut parts = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
                let n = if self.does == Preadv {
                    scope.preadv(fd, &mut parts, 0)
                } else {
                    scope.readv(fd, &mut parts)
                };
                n.map(|n| done(n, &[a, b].concat()))
            }
            Pwrite => scope.pwrite(fd, b"new!", self.offset),
            Write => scope.write(fd, b"new!"),
            Fsync => scope.fsync(fd).map(|()| 0),
            Fdatasync => scope.fdatasync(fd).map(|()| 0),
            Getdents => scope.getdents(fd, &mut [0; 4096]).map(|n| n.min(1)),
            Fstat => scope.fstat(fd).map(|s| s.st_size as usize),
            Fstatat => scope.fstatat(fd, path, 0).map(|s| s.st_size as usize),
            Statx => scope
                .statx(fd, path, 0, libc::STATX_BASIC_STATS)
                .map(|s| s.stx_size as usize),
            Openat => scope
                .openat(fd, path, libc::O_RDONLY, 0)
                .map(drop)
                .map(|()| 0),
            Unlinkat => scope.unlinkat(fd, path, 0).map(|()| 0),
            Renameat => scope.renameat(fd, path, fd, &self.other).map(|()| 0),
            Mkdirat => scope.mkdirat(fd, &self.other, 0o700).map(|()| 0),
        }
    }
}

/// Names and contents; directories have none.
type Tree = BTreeSet<(String, Option<Vec<u8>>)>;

fn tree(at: &Path) -> Tree {
    let entries = fs::read_dir(at).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).ok())
    });
    entries.collect()
}

/// One kind of call: with each errno once, and after each failure once with success. The results, the tree that is left, and how many were made ahead.
fn alternating(does: Does, engine: Engine) -> (Vec<Result<usize, i32>>, Tree, u64) {
    let dir = tempfile::tempdir().unwrap();
    let place = File::open(dir.path()).unwrap();
    let (mut calls, mut held, mut open) = (Vec::new(), Vec::new(), Vec::new());
    let written = File::create(dir.path().join("written")).unwrap();
    for errno in 1..=LAST_ERRNO {
        for fails in [true, false] {
            let name = format!("{}{errno}", if fails { "bad" } else { "good" });
            let path = dir.path().join(&name);
            let file = if does == Getdents {
                fs::create_dir(&path).unwrap();
                File::open(&path).unwrap()
            } else {
                fs::write(&path, b"old!").unwrap();
                File::options().read(true).write(true).open(&path).unwrap()
            };
            let on = if does.takes_name() { &place } else { &file };
            let fd = if fails {
                held.push(at_number(on, does.range() + errno));
                does.range() + errno
            } else {
                on.as_raw_fd()
            };
            if does.goes_behind_writes() {
                calls.push(One {
                    does: Pwrite,
                    fd: written.as_raw_fd(),
                    offset: 4 * calls.len() as i64,
                    name: c"".into(),
                    other: c"".into(),
                    errno: None,
                });
            }
            calls.push(One {
                does,
                fd,
                offset: 0,
                name: CString::new(name.clone()).unwrap(),
                other: CString::new(format!("{name}-other")).unwrap(),
                errno: fails.then_some(errno),
            });
            open.push(file);
        }
    }
    let graph = Graph::generator("errnos", |calls: &Vec<One>, i| {
        match calls.get(i as usize) {
            Some(one) => Next::Call(one.op()),
            None => Next::End,
        }
    })
    .private_positions()
    .engine(engine)
    .fixed_depth(32);
    let mut scope = graph.enter(&calls);
    let mut got = Vec::new();
    for one in &calls {
        let r = one.make(&mut scope).map_err(|e| e.raw_os_error().unwrap());
        if let Some(errno) = one.errno {
            assert_eq!(r, Err(errno), "{does:?}, {engine:?}");
        } else {
            assert!(r.is_ok(), "{does:?} after a failure, {engine:?}: {r:?}");
        }
        got.push(r);
    }
    drop(scope);
    let counts = graph.counts();
    assert_eq!(
        graph.problems(),
        Vec::<String>::new(),
        "{does:?}, {engine:?}"
    );
    assert_eq!(
        (counts.divergences, counts.skipped, counts.unclaimed_effects),
        (0, 0, 0),
        "{does:?}, {engine:?}: {counts}"
    );
    (got, tree(dir.path()), counts.ahead)
}

/// FA3, FA5, FA7: each kind of call, made ahead, fails with each errno there is: the function is told just that, what does not fail is done once and is
/// whole, and what fails has no effect.
#[test]
fn every_call_fails_with_every_errno() {
    in_child("every_call_fails_with_every_errno", || {
        fail_by_descriptor();
        for does in ALL {
            let (expected, left, _) = alternating(does, Engine::Serial);
            let engines = if does.is_for_a_ring() {
                &[Engine::Threads][..]
            } else {
                &[Engine::Uring, Engine::Threads][..]
            };
            for engine in engines {
                let (got, tree, ahead) = alternating(does, *engine);
                assert_eq!(got, expected, "{does:?}, {engine:?}");
                assert_eq!(tree, left, "{does:?}, {engine:?}");
                // A run lists sixteen directories ahead and no more.
                let least = match does {
                    Getdents => 16,
                    // More than the writes, or the failures, alone.
                    _ => expected.len() as u64 * 3 / 4,
                };
                assert!(ahead >= least, "{does:?}, {engine:?}: only {ahead} ahead");
            }
        }
    });
}

/// FA3, FA4: the same of a ring, whose calls no filter sees: files that refuse to be read or written, each for its own reason.
#[test]
fn files_that_refuse_reads_and_writes() {
    in_child("files_that_refuse_reads_and_writes", refused);
}

/// Bytes of a file; more than that it may not have.
const SIZE: usize = 1 << 20;

/// From now on no file of this process becomes longer than so many bytes, and it is not killed for trying.
fn limit_files(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: integers.
    unsafe {
        assert_ne!(libc::signal(libc::SIGXFSZ, libc::SIG_IGN), libc::SIG_ERR);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

fn refused() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    fs::write(&path, vec![7; SIZE]).unwrap();
    let open = |options: &mut fs::OpenOptions| options.open(&path).unwrap();
    let whole = open(File::options().read(true).write(true));
    let for_writing = open(File::options().write(true));
    let for_reading = open(File::options().read(true));
    // Nothing is mapped at the beginning.
    let memory = File::options()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    // SAFETY: makes a descriptor, which is ours.
    let sealed = unsafe {
        let fd = libc::memfd_create(c"sealed".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    sealed.set_len(SIZE as u64).unwrap();
    // SAFETY: an integer.
    let r = unsafe { libc::fcntl(sealed.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    assert_eq!(r, 0);

    struct Access {
        fd: i32,
        writes: bool,
        offset: i64,
    }
    // Nothing is made ahead in files of the kernel's own, and no write where files may only become so long.
    let cases = [
        (libc::EBADF, &for_writing, false, 0, 48..65),
        (libc::EBADF, &for_reading, true, 0, 48..65),
        (libc::EIO, &memory, false, 0, 24..33),
        (libc::EIO, &memory, true, 0, 24..33),
        (libc::EPERM, &sealed, true, 0, 48..65),
        (libc::EFBIG, &whole, true, SIZE as i64, 0..1),
    ];
    for (errno, file, writes, from, ahead) in cases {
        if errno == libc::EFBIG {
            limit_files(SIZE as u64);
        }
        // One that fails, one that does not, and so on, none beside another.
        let calls: Vec<Access> = (0..64)
            .map(|i| Access {
                fd: if i % 2 == 0 { file } else { &whole }.as_raw_fd(),
                writes,
                offset: if i % 2 == 0 { from } else { 0 } + i * 8192,
            })
            .collect();
        for engine in ENGINES {
            let graph = Graph::generator("refused", |calls: &Vec<Access>, i| {
                let Some(c) = calls.get(i as usize) else {
                    return Next::End;
                };
                Next::Call(if c.writes {
                    Op::Pwrite {
                        fd: c.fd,
                        data: Data::Bytes(&[8; 512]),
                        offset: c.offset,
                    }
                } else {
                    Op::Pread {
                        fd: c.fd,
                        len: 512,
                        offset: c.offset,
                    }
                })
            })
            .engine(engine)
            .fixed_depth(16);
            whole.write_all_at(&vec![7; SIZE], 0).unwrap();
            let mut scope = graph.enter(&calls);
            for (i, c) in calls.iter().enumerate() {
                let mut bytes = [0; 512];
                let r = if c.writes {
                    scope.pwrite(&c.fd, &[8; 512], c.offset)
                } else {
                    scope.pread(&c.fd, &mut bytes, c.offset)
                };
                let r = r.map_err(|e| e.raw_os_error().unwrap());
                if i % 2 == 0 {
                    assert_eq!(r, Err(errno), "{engine:?}, {errno}, call {i}");
                } else {
                    assert_eq!(r, Ok(512), "{engine:?}, {errno}, call {i}");
                    assert!(writes || bytes == [7; 512], "{engine:?}, {errno}, call {i}");
                }
            }
            drop(scope);
            let counts = graph.counts();
            assert_eq!(counts.unclaimed_effects, 0, "{engine:?}, {errno}: {counts}");
            assert!(
                engine == Engine::Serial || ahead.contains(&counts.ahead),
                "{engine:?}, {errno}: {counts}"
            );
            let mut content = vec![7; SIZE];
            if writes {
                for i in (1..64).step_by(2) {
                    content[i * 8192..][..512].fill(8);
                }
            }
            assert!(fs::read(&path).unwrap() == content, "{engine:?}, {errno}");
        }
    }
}

/// FA5, FA7: writes that come to an end in the middle, where somebody sees to it that a file may not become longer: the function is told how much was
/// written, and goes on from there.
#[test]
fn short_writes_are_short() {
    in_child("short_writes_are_short", || {
        const PIECE: usize = 8192;
        const FILES: u64 = 32;
        for engine in ENGINES {
            for at_position in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                let files: Vec<File> = (0..FILES)
                    .map(|n| File::create(dir.path().join(n.to_string())).unwrap())
                    .collect();
                // Of each file's last piece only half fits.
                let start = (SIZE - PIECE / 2) as i64;
                if at_position {
                    for mut file in &files {
                        file.seek(SeekFrom::Start(start as u64)).unwrap();
                    }
                }
                let first = File::create(dir.path().join("first")).unwrap();
                let files_of_all = files.iter().chain([&first]);
                let fds: Vec<i32> = files_of_all.map(AsRawFd::as_raw_fd).collect();
                let graph = Graph::generator("short", |c: &(Vec<i32>, bool, i64), i| {
                    let (fds, at_position, start) = c;
                    // Before anything else it is asked whether there is a limit.
                    let Some(i) = i.checked_sub(2) else {
                        let op = Op::Pwrite {
                            fd: fds[FILES as usize],
                            data: Data::Bytes(&[1; 64]),
                            offset: i as i64 * 64,
                        };
                        return if i == 0 {
                            Next::Call(op)
                        } else {
                            Next::Weak(op)
                        };
                    };
                    let (rest, n) = (i / FILES == 1, (i % FILES) as usize);
                    if i == 2 * FILES {
                        return Next::End;
                    }
                    let len = if rest { PIECE / 2 } else { PIECE };
                    let (fd, data) = (fds[n], Data::Bytes(&[9; PIECE][..len]));
                    Next::Call(if *at_position {
                        Op::Write { fd, data }
                    } else {
                        Op::Pwrite {
                            fd,
                            data,
                            offset: if rest { SIZE as i64 } else { *start },
                        }
                    })
                })
                .private_positions()
                .engine(engine)
                .fixed_depth(8);
                let context = (fds, at_position, start);
                let mut scope = graph.enter(&context);
                scope.pwrite(&first, &[1; 64], 0).unwrap();
                limit_files(SIZE as u64);
                scope.pwrite(&first, &[1; 64], 64).unwrap();
                for file in &files {
                    let written = if at_position {
                        scope.write(file, &[9; PIECE])
                    } else {
                        scope.pwrite(file, &[9; PIECE], start)
                    };
                    assert_eq!(written.unwrap(), PIECE / 2, "{engine:?}");
                }
                // The rest does not fit anywhere.
                for mut file in &files {
                    let rest = if at_position {
                        assert_eq!(file.stream_position().unwrap(), SIZE as u64, "{engine:?}");
                        scope.write(file, &[9; PIECE / 2])
                    } else {
                        scope.pwrite(file, &[9; PIECE / 2], SIZE as i64)
                    };
                    let errno = rest.unwrap_err().raw_os_error();
                    assert_eq!(errno, Some(libc::EFBIG), "{engine:?}");
                }
                drop(scope);
                limit_files(libc::RLIM_INFINITY);
                let counts = graph.counts();
                assert_eq!(graph.problems(), Vec::<String>::new(), "{engine:?}");
                assert!(
                    engine == Engine::Serial || counts.hits >= FILES / 2,
                    "{engine:?}: {counts}"
                );
                for n in 0..FILES {
                    let bytes = fs::read(dir.path().join(n.to_string())).unwrap();
                    let (hole, end) = bytes.split_at(start as usize);
                    assert_eq!(end, [9; PIECE / 2], "{engine:?}");
                    assert!(hole.iter().all(|b| *b == 0), "{engine:?}");
                }
            }
        }
    });
}

/// FA3, FA4: more calls in flight than a ring takes at once (64), all of them done before one is asked for, which is more than it has room for results
/// (128): none is lost, whether they are asked for or not.
#[test]
fn more_in_flight_than_a_ring_holds() {
    const CALLS: u64 = 1000;
    const DEPTH: usize = 256;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    let bytes: Vec<u8> = (0..2 * CALLS * 512)
        .map(|at| (at / 512 % 251) as u8)
        .collect();
    fs::write(&path, &bytes).unwrap();
    // From the last on, every second block of 512 bytes: no two are read together.
    fn offset(i: u64) -> u64 {
        2 * (CALLS - 1 - i) * 512
    }
    let direct = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let cached = File::open(&path).unwrap();
    for file in [&cached, &direct] {
        for (engine, asked) in [Engine::Uring, Engine::Threads]
            .iter()
            .flat_map(|e| [(*e, CALLS), (*e, 1)])
        {
            let graph = Graph::generator("many", |fd: &i32, i| {
                if i == CALLS {
                    return Next::End;
                }
                Next::Call(Op::Pread {
                    fd: *fd,
                    len: 512,
                    offset: offset(i) as i64,
                })
            })
            .pure()
            .engine(engine)
            .fixed_depth(DEPTH);
            let fd = file.as_raw_fd();
            let mut scope = graph.enter(&fd);
            for i in 0..asked {
                let block = scope.pread_block(file, 512, offset(i) as i64).unwrap();
                assert_eq!(
                    block[..],
                    bytes[offset(i) as usize..][..512],
                    "{engine:?}, call {i}"
                );
                if i == 0 {
                    // What is in flight comes back meanwhile.
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            }
            drop(scope);
            let counts = graph.counts();
            if asked == 1 {
                assert!(counts.ahead >= DEPTH as u64, "{engine:?}: {counts}");
            } else {
                assert!(counts.hits >= CALLS - 1, "{engine:?}: {counts}");
            }
        }
    }
}
