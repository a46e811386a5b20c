//! Behaviour of scopes through their public interface, on every engine, compared with what the bare calls give.

// The library's own code must not: see clippy.toml.
#![allow(clippy::disallowed_methods)]

mod support;

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outrider_graph::{Builder, Data, Engine, Graph, Kind, Next, Op};
use outrider_sys::raw::thread_time;
use support::in_child;

const ENGINES: [Engine; 3] = [Engine::Serial, Engine::Uring, Engine::Threads];

/// A file of `blocks` blocks of `size` bytes; block i is filled with the number i.
fn numbered(dir: &tempfile::TempDir, blocks: u64, size: usize) -> File {
    let path = dir.path().join("numbered");
    let mut bytes = Vec::with_capacity(blocks as usize * size);
    for i in 0..blocks {
        let number = i.to_le_bytes();
        bytes.extend(number.iter().cycle().take(size));
    }
    fs::write(&path, bytes).unwrap();
    File::options().read(true).write(true).open(path).unwrap()
}

fn is_block(bytes: &[u8], i: u64) -> bool {
    bytes
        .iter()
        .eq(i.to_le_bytes().iter().cycle().take(bytes.len()))
}

struct Blocks {
    fd: i32,
    count: u64,
    len: usize,
}

impl Blocks {
    /// So many of 4 KiB.
    fn of(file: &File, count: u64) -> Blocks {
        let fd = file.as_raw_fd();
        let len = 4096;
        Blocks { fd, count, len }
    }
}

fn block_graph() -> Graph<Blocks> {
    Graph::generator("blocks", |b: &Blocks, i| {
        if i == b.count {
            return Next::End;
        }
        Next::Weak(Op::Pread {
            fd: b.fd,
            len: b.len,
            offset: (i * b.len as u64) as i64,
        })
    })
    .pure()
}

/// FA5: every call that fails gives the errno that it gives without a graph.
#[test]
fn errors_are_the_calls_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = |n: &str| CString::new(dir.path().join(n).as_os_str().as_bytes()).unwrap();
    fs::write(dir.path().join("file"), b"x").unwrap();
    fs::create_dir_all(dir.path().join("full/inner")).unwrap();
    std::os::unix::fs::symlink("loop", dir.path().join("loop")).unwrap();
    let file = File::open(dir.path().join("file")).unwrap();
    let write_only = File::options()
        .write(true)
        .open(dir.path().join("file"))
        .unwrap();
    let open_dir = File::open(dir.path()).unwrap();
    let (mut pipe, pipe_end) = std::io::pipe().unwrap();
    let long = CString::new("n".repeat(300)).unwrap();
    let names: Vec<CString> = [
        "missing",
        "file/below",
        "loop",
        "full",
        "file",
        "missing/below",
    ]
    .iter()
    .map(|n| path(n))
    .chain([long, c"".into()])
    .collect();
    let fds = [
        -1,
        1_000_000,
        file.as_raw_fd(),
        write_only.as_raw_fd(),
        open_dir.as_raw_fd(),
        pipe_end.as_raw_fd(),
        pipe.as_raw_fd(),
    ];
    struct Many {
        fds: [i32; 7],
        names: Vec<CString>,
    }
    // Every call with every descriptor or name that is wrong for most of them.
    fn op(m: &Many, i: u64) -> Option<Op<'_>> {
        let i = i as usize;
        let (which, n) = (i / 8, i % 8);
        let fd = m.fds[n % 7];
        let path: &CStr = &m.names[n];
        let dir = libc::AT_FDCWD;
        Some(match which {
            0 => Op::Pread {
                fd,
                len: 10,
                offset: 0,
            },
            1 => Op::Pread {
                fd,
                len: 10,
                offset: -1,
            },
            2 => Op::Fstat { fd },
            3 => Op::Fsync {
                fd,
                data_only: false,
            },
            4 => Op::Pwrite {
                fd,
                data: Data::Bytes(b"yy"),
                offset: 0,
            },
            5 => Op::Pwrite {
                fd,
                data: Data::Bytes(b"yy"),
                offset: -5,
            },
            6 => Op::Fstatat {
                dir,
                path,
                flags: 0,
            },
            7 => Op::Fstatat {
                dir,
                path,
                flags: 0x4000_0000,
            },
            8 => Op::Statx {
                dir,
                path,
                flags: 0,
                mask: libc::STATX_BASIC_STATS,
            },
            9 => Op::Unlinkat {
                dir,
                path,
                flags: libc::AT_REMOVEDIR,
            },
            10 => Op::Mkdirat {
                dir,
                path,
                mode: 0o700,
            },
            11 => Op::Renameat {
                from_dir: dir,
                from: path,
                to_dir: dir,
                to: &m.names[3],
            },
            12 => Op::Openat {
                dir,
                path,
                flags: libc::O_RDWR,
                mode: 0,
            },
            13 => Op::Getdents { fd, len: 100 },
            14 => Op::Fstatat {
                dir: fd,
                path: c"below",
                flags: 0,
            },
            _ => return None,
        })
    }
    let many = Many { fds, names };
    let run = |engine| {
        let graph: Graph<Many> = Graph::generator("errors", |m, i| match op(m, i) {
            Some(op) => Next::Call(op),
            None => Next::End,
        })
        .engine(engine)
        .fixed_depth(16);
        let mut scope = graph.enter(&many);
        let mut got = Vec::new();
        let mut i = 0;
        while let Some(op) = op(&many, i) {
            i += 1;
            let r = match op {
                // A pipe would have this wait for ever.
                Op::Pread { fd, len, offset } => scope.pread(&fd, &mut vec![0; len], offset),
                Op::Fstat { fd } => scope.fstat(&fd).map(|s| s.st_mode as usize),
                Op::Fsync { fd, .. } => scope.fsync(&fd).map(|()| 0),
                Op::Pwrite { fd, offset, .. } => scope.pwrite(&fd, b"yy", offset),
                Op::Fstatat { dir, path, flags } => {
                    scope.fstatat(&dir, path, flags).map(|s| s.st_mode as usize)
                }
                Op::Statx {
                    dir,
                    path,
                    flags,
                    mask,
                } => scope
                    .statx(&dir, path, flags, mask)
                    .map(|s| usize::from(s.stx_mode)),
                Op::Unlinkat { dir, path, flags } => scope.unlinkat(&dir, path, flags).map(|()| 0),
                Op::Mkdirat { dir, path, mode } => scope.mkdirat(&dir, path, mode).map(|()| 0),
                Op::Renameat {
                    from_dir,
                    from,
                    to_dir,
                    to,
                } => scope.renameat(&from_dir, from, &to_dir, to).map(|()| 0),
                Op::Openat {
                    dir,
                    path,
                    flags,
                    mode,
                } => scope.openat(&dir, path, flags, mode).map(|_| 0),
                Op::Getdents { fd, len } => scope
                    .getdents(&fd, &mut vec![0; len])
                    .map(|n| usize::from(n > 0)),
                _ => unreachable!(),
            };
            got.push(r.map_err(|e| e.raw_os_error().unwrap()));
        }
        drop(scope);
        let counts = graph.counts();
        assert_eq!(
            (counts.divergences, counts.unclaimed_effects),
            (0, 0),
            "{counts}"
        );
        // The file as it was, for the next engine; and the directory's position.
        let _ = fs::remove_dir_all(dir.path().join("missing"));
        write_only.set_len(0).unwrap();
        write_only.write_all_at(b"x", 0).unwrap();
        // SAFETY: integers only.
        unsafe { libc::lseek(open_dir.as_raw_fd(), 0, libc::SEEK_SET) };
        (got, counts.ahead)
    };
    let (expected, _) = run(Engine::Serial);
    for wanted in [
        libc::EBADF,
        libc::EISDIR,
        libc::ESPIPE,
        libc::ENOENT,
        libc::ENOTDIR,
        libc::ELOOP,
        libc::EINVAL,
        libc::EEXIST,
        libc::ENAMETOOLONG,
        libc::ENOTEMPTY,
    ] {
        assert!(expected.contains(&Err(wanted)), "{wanted} never happens");
    }
    for engine in [Engine::Uring, Engine::Threads] {
        let (got, ahead) = run(engine);
        for (i, (a, b)) in expected.iter().zip(&got).enumerate() {
            assert_eq!(a, b, "{engine:?}, call {i}");
        }
        assert!(ahead > 40, "{engine:?}: only {ahead} ahead");
    }
    drop(pipe_end);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut pipe, &mut rest).unwrap();
    assert_eq!(rest, b"", "something was written into the pipe");
}

/// Nothing but regular files and directories is read ahead: what is in a pipe stays there.
#[test]
fn pipes_and_devices_are_never_touched() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"0123456789").unwrap();
    let fd = reader.as_raw_fd();
    for engine in [Engine::Uring, Engine::Threads] {
        let graph: Graph<()> = Graph::generator("pipe", move |(), i| match i {
            0..20 if i % 2 == 0 => Next::Weak(Op::Read { fd, len: 3 }),
            0..20 => Next::Weak(Op::Pread {
                fd,
                len: 3,
                offset: 0,
            }),
            _ => Next::End,
        })
        .pure()
        .engine(engine)
        .fixed_depth(16);
        let mut scope = graph.enter(&());
        let mut b = [0; 3];
        assert_eq!(scope.read(&fd, &mut b).unwrap(), 3);
        assert_eq!(
            scope.pread(&fd, &mut b, 0).unwrap_err().raw_os_error(),
            Some(libc::ESPIPE)
        );
        drop(scope);
        assert_eq!(graph.counts().ahead, 0);
    }
    let mut left = [0; 10];
    drop(writer);
    assert_eq!(std::io::Read::read(&mut &reader, &mut left).unwrap(), 4);
    assert_eq!(&left[..4], b"6789");
}

/// FA6: reads at the position of a description that several threads share give every byte to exactly one of them.
#[test]
fn reads_at_a_shared_position_are_atomic() {
    const BLOCKS: u64 = 4000;
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, BLOCKS, 512);
    for engine in [Engine::Uring, Engine::Threads] {
        // SAFETY: integers only.
        unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_SET) };
        let graph: Graph<i32> =
            Graph::generator("shared", |fd, _| Next::Weak(Op::Read { fd: *fd, len: 512 }))
                .pure()
                .engine(engine)
                .fixed_depth(6);
        let seen: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let fd = file.as_raw_fd();
                    let mut scope = graph.enter(&fd);
                    let mut b = [0; 512];
                    loop {
                        match scope.read(&fd, &mut b).unwrap() {
                            0 => break,
                            n => assert_eq!(n, 512),
                        }
                        let i = u64::from_le_bytes(b[..8].try_into().unwrap());
                        assert!(is_block(&b, i));
                        seen[i as usize].fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let wrong: Vec<_> = seen
            .iter()
            .enumerate()
            .filter(|(_, n)| n.load(Ordering::Relaxed) != 1)
            .map(|(i, _)| i)
            .collect();
        assert!(wrong.is_empty(), "{engine:?}: blocks {wrong:?}");
    }
}

/// FA7, FA11: a linked copy, of sizes that are and are not multiples of the block, is the file; a read that comes back short never
/// lets a write run.
#[test]
fn linked_copies_are_exact() {
    const BLOCK: usize = 4096;
    struct Copy {
        from: i32,
        to: i32,
        blocks: u64,
    }
    let dir = tempfile::tempdir().unwrap();
    for engine in ENGINES {
        for (size, claimed) in [
            (0usize, 0usize),
            (1, 1),
            (4095, 4095),
            (4096, 4096),
            (4097, 4097),
            (100_000, 100_000),
            (262_144, 262_144),
            (50_000, 80_000),
        ] {
            let bytes: Vec<u8> = (0..size).map(|i| (i * 7 % 253) as u8).collect();
            fs::write(dir.path().join("from"), &bytes).unwrap();
            let from = File::open(dir.path().join("from")).unwrap();
            let to = File::create(dir.path().join("to")).unwrap();
            let mut b = Builder::<Copy>::new("copy");
            let read = b.call("read", Kind::Read, |c, _| {
                Some(Op::Read {
                    fd: c.from,
                    len: BLOCK,
                })
            });
            let write = b.call("write", Kind::Write, |c, _| {
                Some(Op::Write {
                    fd: c.to,
                    data: Data::Linked,
                })
            });
            let any = b.branch("any", |c, _| Some(usize::from(c.blocks == 0)));
            let more = b.branch("more", |c, e| Some(usize::from(e[0] + 1 >= c.blocks)));
            b.edge(b.start(), any);
            b.edge(any, read);
            b.edge(any, b.end());
            b.edge(read, write);
            b.link(read);
            b.edge(write, more);
            b.back_edge(more, read);
            b.edge(more, b.end());
            let graph = b
                .build()
                .unwrap()
                .engine(engine)
                .fixed_depth(16)
                .private_positions();
            let copy = Copy {
                from: from.as_raw_fd(),
                to: to.as_raw_fd(),
                blocks: claimed.div_ceil(BLOCK) as u64,
            };
            let mut scope = graph.enter(&copy);
            loop {
                let block = scope.read_block(&from, BLOCK).unwrap();
                if block.is_empty() {
                    break;
                }
                assert_eq!(scope.write(&to, &block).unwrap(), block.len());
            }
            drop(scope);
            assert!(
                fs::read(dir.path().join("to")).unwrap() == bytes,
                "{engine:?}, {size} bytes of {claimed}"
            );
            let c = graph.counts();
            assert_eq!(
                c.unclaimed_effects, 0,
                "{engine:?}, {size} of {claimed}: {c}"
            );
            if engine != Engine::Serial && size == 262_144 {
                // All but the first read, and of the writes those that were linked.
                assert!(c.hits > 63, "{engine:?}: {c}");
            }
        }
    }
}

/// FA8: leaving on a weak edge leaves nothing behind: no effect, no descriptor, nothing in flight.
#[test]
fn leaving_early_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 64, 4096);
    let fd = file.as_raw_fd();
    let before = fs::read(dir.path().join("numbered")).unwrap();
    for engine in [Engine::Uring, Engine::Threads] {
        let graph: Graph<()> = Graph::generator("leaves", move |(), i| match i {
            0..5 => Next::Call(Op::Pread {
                fd,
                len: 4096,
                offset: 4096 * i as i64,
            }),
            5 => Next::Weak(Op::Pread {
                fd,
                len: 4096,
                offset: 0,
            }),
            6..60 => Next::Call(Op::Pwrite {
                fd,
                data: Data::Bytes(b"spoilt"),
                offset: 100 * i as i64,
            }),
            _ => Next::End,
        })
        .engine(engine)
        .fixed_depth(64);
        for stop in 0..6 {
            let mut scope = graph.enter(&());
            for i in 0..stop {
                let block = scope.pread_block(&file, 4096, 4096 * i).unwrap();
                assert!(is_block(&block, i as u64));
            }
        }
        assert_eq!(graph.counts().unclaimed_effects, 0);
        assert!(graph.counts().ahead > 0);
    }
    assert!(fs::read(dir.path().join("numbered")).unwrap() == before);
}

/// Pages of a file that are cached, or on their way. That only cachestat(2) tells (Linux 6.5); where it isn't there, they are given time to arrive.
fn cached(file: &File, pages: usize) -> Vec<bool> {
    use outrider_sys::cache::{cachestat, mincore};
    let one = |page: u64| {
        let stat = cachestat(file.as_fd(), page * 4096..(page + 1) * 4096);
        stat.map(|s| s.cached > 0)
    };
    let all: Result<Vec<bool>, _> = (0..pages as u64).map(one).collect();
    all.unwrap_or_else(|_| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        mincore(file.as_fd(), 0..pages as u64 * 4096).unwrap()
    })
}

/// Has the cache give up a file's pages: which it has kept. From here on the kernel reads nothing by itself but what it is asked for, not even at the file's
/// beginning, where it takes any reader for a sequential one.
fn evicted(file: &File, pages: usize) -> Vec<bool> {
    for advice in [libc::POSIX_FADV_RANDOM, libc::POSIX_FADV_DONTNEED] {
        // SAFETY: integers only.
        let r = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) };
        assert_eq!(r, 0);
    }
    cached(file, pages)
}

/// FA3: a function that often ends early has what it may read fetched into the page cache, so much as lies within the depth, and nothing else; the reads are its own.
#[test]
fn reads_that_are_fetched_are_the_functions_own() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = numbered(&dir, 400, 4096);
    file.sync_all().unwrap();
    // Far enough from each other for the kernel to see no sequence.
    let place = |i: u64| (i * 37 % 400 * 4096) as i64;
    for engine in [Engine::Uring, Engine::Threads] {
        let were = evicted(&file, 400);
        let fd = file.as_raw_fd();
        let graph: Graph<()> = Graph::generator("fetches", move |(), i| {
            Next::Weak(Op::Pread {
                fd,
                len: 4096,
                offset: place(i),
            })
        })
        .pure()
        .fetch()
        .engine(engine)
        .fixed_depth(8);
        let mut scope = graph.enter(&());
        let block = scope.pread_block(&file, 4096, place(0)).unwrap();
        assert!(is_block(&block, 0));
        drop(scope);
        let c = graph.counts();
        assert_eq!((c.hits, c.unused, c.divergences), (0, 0, 0), "{c}");
        // The first too, with those behind it.
        assert_eq!(c.ahead, 9, "{c}");
        let are = cached(&file, 400);
        let new = (0..400).filter(|i| are[*i] && !were[*i]);
        let wanted: Vec<usize> = (0..9).map(|i| place(i) as usize / 4096).collect();
        // On a file system in memory all were.
        for page in new {
            assert!(wanted.contains(&page), "{page} of {wanted:?}");
        }
        assert!(wanted.iter().all(|i| are[*i]), "{wanted:?}");
    }
}

/// The kernel's read-ahead on the disk of a file, bytes; 0 where sysfs does not say.
fn kernels_readahead(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let device = file.metadata().unwrap().dev();
    let disk = format!(
        "/sys/dev/block/{}:{}",
        libc::major(device),
        libc::minor(device)
    );
    let said = |below| fs::read_to_string(format!("{disk}/{below}/read_ahead_kb")).ok();
    let kib = said("queue").or_else(|| said("../queue"));
    kib.map_or(0, |kib| kib.trim().parse::<u64>().unwrap() << 10)
}

/// FA3: of reads that are certain, 1 MiB and no more is fetched ahead, again when a quarter of it is used up; where the kernel reads as far ahead by itself,
/// sequential ones are left to it until it is seen not to. The bytes are the function's own, also when it leaves some out.
#[test]
fn a_scan_is_fetched_ahead_as_far_as_it_goes() {
    const BLOCKS: usize = 1000;
    const AHEAD: usize = 256;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = numbered(&dir, BLOCKS as u64, 4096);
    file.sync_all().unwrap();
    let fd = file.as_raw_fd();
    let left_to_kernel = kernels_readahead(&file) >= 1 << 20;
    for (upwards, leaves_out) in [(false, 0), (true, 0), (false, 3), (false, 40)] {
        let place = move |i: usize| if upwards { i } else { BLOCKS - 1 - i };
        let graph: Graph<()> = Graph::generator("scan", move |(), i| match i as usize {
            i if i < BLOCKS => Next::Call(Op::Pread {
                fd,
                len: 4096,
                offset: (place(i) * 4096) as i64,
            }),
            _ => Next::End,
        })
        .pure()
        .fetch();
        let were = evicted(&file, BLOCKS);
        let mut scope = graph.enter(&());
        let mut read = |i: usize| {
            let at = place(i);
            let block = scope.pread_block(&file, 4096, at as i64 * 4096).unwrap();
            assert!(is_block(&block, at as u64), "block {at}");
        };
        // How many of the function's blocks are cached from the first one on.
        let reach = || {
            let are = cached(&file, BLOCKS);
            (0..BLOCKS).take_while(|i| are[place(*i)]).count()
        };
        let wanted = |reach| if upwards && left_to_kernel { 1 } else { reach };
        let cold = were.iter().all(|kept| !kept);
        read(0);
        assert!(!cold || reach() == wanted(AHEAD), "{upwards}: {}", reach());
        (1..AHEAD / 4).for_each(&mut read);
        assert!(!cold || upwards || reach() == AHEAD, "{}", reach());
        let next = AHEAD / 4;
        read(next);
        let further = AHEAD + AHEAD / 4;
        assert!(!cold || upwards || reach() == further, "{}", reach());
        (next + 1..BLOCKS / 2).for_each(&mut read);
        (BLOCKS / 2 + leaves_out..BLOCKS).for_each(&mut read);
        drop(scope);
        let c = graph.counts();
        let reads = (BLOCKS - leaves_out) as u64;
        // Few that are left out are looked past; more are a divergence, and it is followed no further.
        let lost = u64::from(leaves_out > 16);
        assert_eq!((c.calls, c.hits, c.unused), (reads, 0, 0), "{c}");
        assert!(!cold || c.divergences == lost, "{c}");
        // It was found again; and a kernel that was told not to read ahead does not help. In memory looking ahead rests.
        let least = if upwards || lost > 0 {
            BLOCKS / 2
        } else {
            BLOCKS * 9 / 10
        };
        assert!(!cold || c.ahead > least as u64, "{upwards}: {c}");
    }
}

/// Directories that are opened below `root` from when this is made on: their paths, in order.
struct Opened {
    events: File,
    names: Vec<(i32, std::path::PathBuf)>,
}

impl Opened {
    fn below(root: &std::path::Path) -> Opened {
        // SAFETY: a new descriptor, of which the file becomes the owner.
        let events = unsafe {
            let fd = libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        };
        let mut names = Vec::new();
        let mut left = vec![root.to_owned()];
        while let Some(dir) = left.pop() {
            left.extend(
                fs::read_dir(&dir)
                    .unwrap()
                    .map(|e| e.unwrap().path())
                    .filter(|p| p.is_dir()),
            );
            let path = CString::new(dir.as_os_str().as_bytes()).unwrap();
            // SAFETY: a C string.
            let watch = unsafe {
                let what = libc::IN_OPEN | libc::IN_ONLYDIR;
                libc::inotify_add_watch(events.as_raw_fd(), path.as_ptr(), what)
            };
            assert!(watch >= 0);
            names.push((watch, dir));
        }
        Opened { events, names }
    }

    /// Adds those that were opened since the last time.
    fn more(&mut self, seen: &mut Vec<std::path::PathBuf>) {
        let mut room = [0; 16384];
        while let Ok(n) = self.events.read(&mut room) {
            let mut rest = &room[..n];
            while !rest.is_empty() {
                // struct inotify_event: watch, what, cookie, length of the name, which is there if a directory's entry was opened.
                let word = |i: usize| u32::from_ne_bytes(rest[4 * i..][..4].try_into().unwrap());
                let (watch, len) = (word(0) as i32, word(3) as usize);
                if len == 0 {
                    let (_, name) = self.names.iter().find(|n| n.0 == watch).unwrap();
                    seen.push(name.clone());
                }
                rest = &rest[16 + len..];
            }
        }
    }
}

/// Directories below `root`, in the order of a walk.
fn walked(root: &std::path::Path, order: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(root).unwrap() {
        order.push(entry.unwrap().path());
        walked(&order[order.len() - 1].clone(), order);
    }
}

/// A walk is listed on below its first directory, in the program's order, only a little ahead of it where all is cached, and nothing twice.
#[test]
fn a_walk_is_listed_on_below() {
    in_child("a_walk_is_listed_on_below", || {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..300 {
            fs::create_dir_all(dir.path().join(format!("{i}/below"))).unwrap();
        }
        let mut order = Vec::new();
        walked(dir.path(), &mut order);
        let graph: Graph<()> = Graph::generator("walk", |(), _| Next::NotReady)
            .pure()
            .walk()
            .engine(Engine::Threads);
        let mut opened = Opened::below(dir.path());
        let own = File::open(dir.path()).unwrap();
        let mut scope = graph.enter(&());
        scope.walk(own.as_raw_fd());
        let mut seen = Vec::new();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        // The program's own, the lister's, and two below.
        while seen.len() < 4 && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(5));
            opened.more(&mut seen);
        }
        // Whoever goes too far does so soon.
        std::thread::sleep(std::time::Duration::from_millis(100));
        opened.more(&mut seen);
        // Listers that were started together may be at work in a directory and in the one behind it, before anybody knows what is below the first. But
        // what lies before it in the same directory was found together with it, and taken before it; whoever took that may not have had a turn yet.
        let skipped = |seen: &[std::path::PathBuf]| {
            let before = |p: &std::path::PathBuf| {
                let all = order.iter().take_while(move |q| *q != p);
                let beside = all.filter(|q| q.parent() == p.parent());
                beside.cloned().collect::<Vec<_>>()
            };
            let below = seen.iter().filter(|p| *p != dir.path());
            let mut before = below.flat_map(before);
            before.find(|p| !seen.contains(p))
        };
        while skipped(&seen).is_some() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(5));
            opened.more(&mut seen);
        }
        assert_eq!(skipped(&seen), None, "what comes next is listed");
        let below: Vec<_> = seen.iter().filter(|p| *p != dir.path()).collect();
        assert!((2..40).contains(&below.len()), "{below:?}");
        drop(scope);
        // The program comes along; what it enters is opened by itself, and once at most by a lister.
        for path in &order {
            let own = File::open(path).unwrap();
            let mut scope = graph.enter(&());
            scope.walk(own.as_raw_fd());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        opened.more(&mut seen);
        for path in &order {
            let times = seen.iter().filter(|p| *p == path).count();
            assert!(
                (1..=2).contains(&times),
                "{path:?} was opened {times} times"
            );
        }
    });
}

/// Where nothing waits for a device, looking ahead rests after what it may cost at first, 160 µs: 320 calls that are followed, or 4 listings.
#[test]
fn looking_ahead_of_what_is_cached_rests_soon() {
    let graph: Graph<()> = Graph::generator("followed", |(), _| Next::End).pure();
    let mut followed = 0;
    while !graph.rests() {
        graph.followed();
        followed += 1;
    }
    assert_eq!(followed, 320);

    let dir = tempfile::tempdir().unwrap();
    let names: Vec<CString> = (0..64)
        .map(|i| {
            let path = dir.path().join(format!("d{i}"));
            fs::create_dir(&path).unwrap();
            fs::read_dir(&path).unwrap().for_each(drop);
            CString::new(path.as_os_str().as_bytes()).unwrap()
        })
        .collect();
    const FLAGS: i32 = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // Another program may have kept a thread waiting.
    let fewest = (0..16).map(|_| {
        let graph: Graph<[CString]> = Graph::generator("lists", |names: &[CString], i| {
            names.get(i as usize).map_or(Next::End, |path| {
                Next::Weak(Op::Openat {
                    dir: libc::AT_FDCWD,
                    path,
                    flags: FLAGS,
                    mode: 0,
                })
            })
        })
        .pure();
        let mut scope = graph.enter(&names[..]);
        for name in &names {
            scope.openat(&libc::AT_FDCWD, name, FLAGS, 0).unwrap();
        }
        drop(scope);
        graph.counts().ahead
    });
    assert_eq!(fewest.min(), Some(4));
}

/// Threads of this process.
fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// A second thread makes each system call of the process dearer. A scope starts one with the first call that a thread is to make, and where its calls may be
/// made within any other (`enter_prepared`) at its beginning, but not where its reads are only fetched.
#[test]
fn a_thread_is_started_when_a_call_needs_it() {
    in_child("a_thread_is_started_when_a_call_needs_it", || {
        let dir = tempfile::tempdir().unwrap();
        let file = numbered(&dir, 64, 4096);
        let blocks = Blocks::of(&file, 64);
        let alone = threads();
        let fetches = || block_graph().fetch().fixed_depth(16);
        let graph = fetches();
        let mut scope = graph.enter(&blocks);
        for i in 0..64 {
            let block = scope.pread_block(&file, 4096, i * 4096).unwrap();
            assert!(is_block(&block, i as u64));
        }
        drop(scope);
        assert!(graph.counts().ahead > 0, "{}", graph.counts());
        assert_eq!(threads(), alone, "reads that are only fetched");
        let graph = fetches();
        drop(graph.enter_prepared(&blocks));
        assert_eq!(threads(), alone, "the same, from hooks");

        let path = CString::new(dir.path().join("numbered").as_os_str().as_bytes()).unwrap();
        let graph: Graph<CString> = Graph::generator("looks up", |path: &CString, i| {
            if i == 64 {
                return Next::End;
            }
            Next::Weak(Op::Fstatat {
                dir: libc::AT_FDCWD,
                path,
                flags: 0,
            })
        })
        .pure()
        .fixed_depth(16);
        let mut scope = graph.enter(&path);
        assert_eq!(threads(), alone, "nothing is to be made ahead yet");
        for _ in 0..64 {
            let st = scope.fstatat(&libc::AT_FDCWD, &path, 0).unwrap();
            assert_eq!(st.st_size, 64 * 4096);
        }
        drop(scope);
        assert!(threads() > alone);
        assert!(graph.counts().hits > 0, "{}", graph.counts());
    });
}

/// A run that begins while looking ahead rests, and then waits for a disk, is followed from there on.
#[test]
fn a_run_that_began_at_rest_is_followed_when_it_waits() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    numbered(&dir, 256, 4096).sync_all().unwrap();
    // Every read goes to the disk.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.path().join("numbered"))
        .unwrap();
    for engine in [Engine::Uring, Engine::Threads] {
        let graph = block_graph().engine(engine);
        while !graph.rests() {
            graph.followed();
        }
        let blocks = Blocks::of(&file, 256);
        let mut scope = graph.enter(&blocks);
        for i in 0..256 {
            let block = scope.pread_block(&file, 4096, i * 4096).unwrap();
            assert!(is_block(&block, i as u64), "{engine:?}, block {i}");
        }
        drop(scope);
        let c = graph.counts();
        assert!(c.hits > 128 && c.divergences == 0, "{engine:?}: {c}");
    }
}

/// FA3: how far is looked ahead behind weak edges follows from what it brings: four calls at first, more the more the function has waited, never beyond the graph's depth, and
/// few again once what was made ahead is not asked for.
#[test]
fn the_window_grows_where_the_function_waits() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    numbered(&dir, 256, 4096).sync_all().unwrap();
    // Every read goes to the disk.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.path().join("numbered"))
        .unwrap();
    let blocks = Blocks::of(&file, 256);
    for engine in [Engine::Uring, Engine::Threads] {
        let graph = block_graph().engine(engine);
        // A run of so many calls, and how many calls it had made ahead for nothing when it ended.
        let run = |calls: i64| {
            let before = graph.counts();
            let mut scope = graph.enter(&blocks);
            for i in 0..calls {
                let block = scope.pread_block(&file, 4096, i * 4096).unwrap();
                // To look at all of it takes longer than the disk.
                assert!(is_block(&block[..16], i as u64), "{engine:?}, block {i}");
            }
            drop(scope);
            graph.counts().ahead - before.ahead - (graph.counts().hits - before.hits)
        };
        let first = run(1);
        assert!((1..=8).contains(&first), "{engine:?}: {first}");
        // Where others have the processor a run may find that all of it came in time.
        let later = (0..16).map(|_| run(128)).max().unwrap();
        assert!(later > 8, "{engine:?}: {later}");
        assert!(later <= 256 - 128, "{engine:?}: {later}");
        // Each of these ends after one of many.
        for _ in 0..15 {
            run(1);
        }
        let last = run(1);
        assert!(last <= 8, "{engine:?}: {last}");
        assert_eq!(graph.counts().divergences, 0);
    }
}

/// FA3: what is made ahead at the same time is 8 MiB at most, however deep the graph is and however certain its calls are.
#[test]
fn what_is_read_ahead_is_bounded_in_bytes() {
    const LEN: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 1, 8);
    file.set_len(64 * LEN as u64).unwrap();
    let blocks = Blocks {
        fd: file.as_raw_fd(),
        count: 64,
        len: LEN,
    };
    for engine in [Engine::Uring, Engine::Threads] {
        let graph: Graph<Blocks> = Graph::generator("large", |b: &Blocks, i| match i < b.count {
            true => Next::Call(Op::Pread {
                fd: b.fd,
                len: b.len,
                offset: (i * b.len as u64) as i64,
            }),
            false => Next::End,
        })
        .pure()
        .engine(engine)
        .fixed_depth(64);
        let mut scope = graph.enter(&blocks);
        let block = scope.pread_block(&file, LEN, 0).unwrap();
        assert!(block[..8] == [0; 8] && block.len() == LEN);
        drop(scope);
        let ahead = graph.counts().ahead;
        assert!((4..=9).contains(&ahead), "{engine:?}: {ahead}");
    }
}

/// The memory of what all threads read ahead stays below 64 MiB together, whatever each of them may have alone; who gets none reads by itself, and what
/// threads leave others get.
#[test]
fn what_all_threads_read_ahead_is_bounded_together() {
    const LEN: usize = 1 << 20;
    const THREADS: usize = 32;
    // Nobody else takes of it.
    in_child("what_all_threads_read_ahead_is_bounded_together", || {
        let dir = tempfile::tempdir().unwrap();
        let file = numbered(&dir, 16, LEN);
        let blocks = Blocks {
            fd: file.as_raw_fd(),
            count: 16,
            len: LEN,
        };
        for engine in [Engine::Uring, Engine::Threads] {
            for _ in 0..2 {
                let graph: Graph<Blocks> =
                    Graph::generator("large", |b: &Blocks, i| match i < b.count {
                        true => Next::Call(Op::Pread {
                            fd: b.fd,
                            len: b.len,
                            offset: (i * b.len as u64) as i64,
                        }),
                        false => Next::End,
                    })
                    .pure()
                    .engine(engine)
                    .fixed_depth(8);
                let all = std::sync::Barrier::new(THREADS);
                let run = || {
                    let mut scope = graph.enter(&blocks);
                    let block = scope.pread_block(&file, LEN, 0).unwrap();
                    assert!(is_block(&block, 0), "{engine:?}");
                    // Until here each has taken what it could and given nothing back.
                    all.wait();
                    drop(scope);
                    all.wait();
                };
                std::thread::scope(|s| {
                    for _ in 0..THREADS {
                        s.spawn(run);
                    }
                });
                let taken = graph.counts().ahead as usize;
                assert!((32..=64).contains(&taken), "{engine:?}: {taken} MiB");
            }
        }
    });
}

/// FA4: the kernel is not told to have a thread read what is cached: it does so at once, while it is asked.
#[test]
fn cached_reads_are_not_forced_into_threads() {
    in_child("cached_reads_are_not_forced_into_threads", || {
        use outrider_sys::ring::{Ring, Submission, op};
        const ASYNC: u8 = 1 << 4;
        let Ok(mut ring) = Ring::new() else {
            return eprintln!("skipped: the kernel refuses io_uring");
        };
        // The kernel's threads are seen among the process's own, and stay for some seconds.
        let has_workers = || {
            fs::read_dir("/proc/self/task").unwrap().any(|task| {
                let name = fs::read_to_string(task.unwrap().path().join("comm"));
                name.is_ok_and(|n| n.starts_with("iou-wrk"))
            })
        };
        let dir = tempfile::tempdir().unwrap();
        let file = numbered(&dir, 256, 4096);
        let blocks = Blocks::of(&file, 256);
        let graph = block_graph().engine(Engine::Uring).fixed_depth(64);
        let mut scope = graph.enter(&blocks);
        for i in 0..256 {
            let block = scope.pread_block(&file, 4096, i * 4096).unwrap();
            assert!(is_block(&block, i as u64));
            assert!(!has_workers(), "{i}");
        }
        drop(scope);
        assert!(graph.counts().hits > 250, "{}", graph.counts());
        // A read that is forced has one: otherwise nothing was shown.
        let mut block = [0; 4096];
        let forced = Submission {
            opcode: op::READ,
            flags: ASYNC,
            fd: file.as_raw_fd(),
            addr: block.as_mut_ptr() as u64,
            len: 4096,
            ..Submission::default()
        };
        // SAFETY: the block outlives the read, which is waited for.
        assert!(unsafe { ring.push(&forced) });
        while ring.completion().is_none() {
            assert!(ring.enter(1) >= 0);
        }
        assert!(has_workers());
    });
}

/// A descriptor that is closed, and whose number another file gets, is that file: what was read ahead of the old one is not used, whether the graph
/// has the close or not.
#[test]
fn a_number_that_another_file_gets_is_that_file() {
    // Other tests of this process open files too.
    in_child("a_number_that_another_file_gets_is_that_file", || {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| {
            let path = dir.path().join(name);
            fs::write(&path, name.repeat(20 * 4096)).unwrap();
            CString::new(path.as_os_str().as_bytes()).unwrap()
        });
        struct Files {
            fd: Cell<i32>,
            has_close: bool,
        }
        for engine in [Engine::Uring, Engine::Threads] {
            for has_close in [true, false] {
                let graph: Graph<Files> = Graph::generator("numbers", |f: &Files, i| match i {
                    _ if f.fd.get() < 0 => Next::NotReady,
                    8 if f.has_close => Next::Weak(Op::Close { fd: f.fd.get() }),
                    0..20 => Next::Weak(Op::Pread {
                        fd: f.fd.get(),
                        len: 4096,
                        offset: 4096 * i as i64,
                    }),
                    _ => Next::End,
                })
                .engine(engine)
                .fixed_depth(16);
                let files = Files {
                    fd: Cell::new(-1),
                    has_close,
                };
                let mut scope = graph.enter(&files);
                let open = |scope: &mut outrider_graph::Scope<'_, Files>, path| {
                    let fd = scope.openat(&libc::AT_FDCWD, path, libc::O_RDONLY, 0);
                    let fd = fd.unwrap();
                    files.fd.set(fd.as_raw_fd());
                    fd
                };
                let mut fd = open(&mut scope, &paths[0]);
                for i in 0..20 {
                    if i == 8 {
                        let number = fd.as_raw_fd();
                        scope.close(fd).unwrap();
                        fd = open(&mut scope, &paths[1]);
                        assert_eq!(fd.as_raw_fd(), number);
                    }
                    if i == 8 && has_close {
                        // In its place the graph has the close.
                        continue;
                    }
                    let block = scope.pread_block(&fd, 4096, 4096 * i).unwrap();
                    let expected = if i < 8 { b'a' } else { b'b' };
                    assert!(block.iter().all(|b| *b == expected), "{engine:?}, {i}");
                }
                drop(scope);
                let counts = graph.counts();
                assert!(counts.hits >= 6, "{engine:?}: {counts}");
            }
        }
    });
}

/// No descriptor of the library has a number in the program, and opens get the numbers they would get.
#[test]
fn descriptor_numbers_are_the_programs() {
    // Other tests of this process open files too, so this one runs in a process of its own.
    in_child("descriptor_numbers_are_the_programs", || {
        c_library_has_looked();
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<CString> = (0..40)
            .map(|i| {
                let p = dir.path().join(format!("f{i}"));
                fs::write(&p, b"x").unwrap();
                CString::new(p.as_os_str().as_bytes()).unwrap()
            })
            .collect();
        let numbers = || {
            let mut all: Vec<i32> = fs::read_dir("/proc/self/fd")
                .unwrap()
                .filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok())
                .collect();
            all.sort_unstable();
            all
        };
        let opened = |engine| {
            let graph: Graph<Vec<CString>> =
                Graph::generator("opens", |p: &Vec<CString>, i| match p.get(i as usize) {
                    Some(path) => Next::Call(Op::Openat {
                        dir: libc::AT_FDCWD,
                        path,
                        flags: libc::O_RDONLY | libc::O_CLOEXEC,
                        mode: 0,
                    }),
                    None => Next::End,
                })
                .engine(engine)
                .fixed_depth(32);
            let mut scope = graph.enter(&paths);
            let before = numbers();
            let files: Vec<OwnedFd> = paths
                .iter()
                .map(|p| {
                    scope
                        .openat(&libc::AT_FDCWD, p, libc::O_RDONLY | libc::O_CLOEXEC, 0)
                        .unwrap()
                })
                .collect();
            let got: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
            for f in files {
                scope.close(f).unwrap();
            }
            assert_eq!(numbers(), before);
            drop(scope);
            assert!(engine == Engine::Serial || graph.counts().ahead > 30);
            (before, got)
        };
        let expected = opened(Engine::Serial);
        assert_eq!(opened(Engine::Uring), expected);
        assert_eq!(opened(Engine::Threads), expected);
    });
}

/// The C library's allocator opens two files for a moment, once in a process and on whichever thread makes it: the list of
/// processors when the threads with memory of their own become many, and how memory is overcommitted when one gives some back.
fn c_library_has_looked() {
    let all = std::sync::Barrier::new(32);
    std::thread::scope(|s| {
        for _ in 0..32 {
            s.spawn(|| {
                let blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 16 << 10]).collect();
                all.wait();
                drop(blocks);
            });
        }
    });
}

/// FA4: where io_uring is refused, threads take over by themselves.
#[test]
fn threads_take_over_where_io_uring_is_refused() {
    in_child("threads_take_over_where_io_uring_is_refused", || {
        let filter = [
            // Load the call's number; EPERM for io_uring_setup, else allow.
            libc::sock_filter {
                code: 0x20,
                jt: 0,
                jf: 0,
                k: 0,
            },
            libc::sock_filter {
                code: 0x15,
                jt: 0,
                jf: 1,
                k: libc::SYS_io_uring_setup as u32,
            },
            libc::sock_filter {
                code: 0x06,
                jt: 0,
                jf: 0,
                k: 0x0005_0000 | libc::EPERM as u32,
            },
            libc::sock_filter {
                code: 0x06,
                jt: 0,
                jf: 0,
                k: 0x7fff_0000,
            },
        ];
        let program = libc::sock_fprog {
            len: 4,
            filter: filter.as_ptr().cast_mut(),
        };
        // SAFETY: a filter program that outlives the call.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
        }
        let dir = tempfile::tempdir().unwrap();
        let file = numbered(&dir, 64, 4096);
        let graph = block_graph().engine(Engine::Uring).fixed_depth(16);
        let blocks = Blocks::of(&file, 64);
        let mut scope = graph.enter(&blocks);
        for i in 0..64 {
            assert!(is_block(
                &scope.pread_block(&file, 4096, i * 4096).unwrap(),
                i as u64
            ));
        }
        let threads = fs::read_dir("/proc/self/task").unwrap().filter(|t| {
            let name = t.as_ref().unwrap().path().join("comm");
            fs::read_to_string(name).is_ok_and(|n| n.trim() == "outrider-call")
        });
        assert!(threads.count() > 0, "no threads");
        drop(scope);
        assert!(graph.counts().hits > 50, "{}", graph.counts());
    });
}

/// A signal that comes all the time, with a handler that does not restart calls, changes nothing.
#[test]
fn signals_change_nothing() {
    in_child("signals_change_nothing", || {
        static CAUGHT: AtomicU64 = AtomicU64::new(0);
        extern "C" fn caught(_: i32) {
            CAUGHT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: a handler that only counts.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = caught as *const () as usize;
            assert_eq!(
                libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()),
                0
            );
            let often = libc::timeval {
                tv_sec: 0,
                tv_usec: 300,
            };
            let timer = libc::itimerval {
                it_interval: often,
                it_value: often,
            };
            assert_eq!(
                libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()),
                0
            );
        }
        let dir = tempfile::tempdir().unwrap();
        let file = numbered(&dir, 256, 4096);
        let blocks = Blocks::of(&file, 256);
        for engine in [Engine::Uring, Engine::Threads] {
            let before = CAUGHT.load(Ordering::Relaxed);
            let graph = block_graph().engine(engine).fixed_depth(32);
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            // Until enough signals have come.
            while CAUGHT.load(Ordering::Relaxed) < before + 200 && std::time::Instant::now() < end {
                let mut scope = graph.enter(&blocks);
                for i in 0..256 {
                    assert!(is_block(
                        &scope.pread_block(&file, 4096, i * 4096).unwrap(),
                        i as u64
                    ));
                }
            }
            assert!(CAUGHT.load(Ordering::Relaxed) >= before + 200);
        }
        let never = libc::timeval {
            tv_sec: 0,
            tv_usec: 0,
        };
        let timer = libc::itimerval {
            it_interval: never,
            it_value: never,
        };
        // SAFETY: stops the timer.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) };
    });
}

/// A child forked in the middle of a scope passes its calls through, may end the scope and begin another; the parent goes on.
#[test]
fn a_forked_child_passes_through() {
    in_child("a_forked_child_passes_through", || {
        let dir = tempfile::tempdir().unwrap();
        let file = numbered(&dir, 64, 4096);
        let blocks = Blocks::of(&file, 64);
        for engine in [Engine::Uring, Engine::Threads] {
            let graph = block_graph().engine(engine).fixed_depth(16);
            let mut scope = graph.enter(&blocks);
            let read = |scope: &mut outrider_graph::Scope<'_, Blocks>, from: i64| {
                (from..64).all(|i| {
                    let mut b = [0; 4096];
                    scope.pread(&file, &mut b, i * 4096).unwrap() == 4096 && is_block(&b, i as u64)
                })
            };
            for i in 0..10 {
                assert!(is_block(
                    &scope.pread_block(&file, 4096, i * 4096).unwrap(),
                    i as u64
                ));
            }
            // SAFETY: the child makes calls, and ends without unwinding into the test harness.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let first = read(&mut scope, 5);
                let passing = scope.is_passing();
                drop(scope);
                let mut again = graph.enter(&blocks);
                let works = !again.is_passing();
                let second = read(&mut again, 0);
                drop(again);
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!(first && passing && works && second))) };
            }
            assert!(child > 0);
            assert!(read(&mut scope, 10));
            assert!(!scope.is_passing());
            drop(scope);
            let mut status = 0;
            // SAFETY: waits for our child.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "{engine:?}");
        }
    });
}

/// A panic through a scope, and one in a stub, end it like any other way out; a scope in a scope passes through.
#[test]
fn panics_and_nesting() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 64, 4096);
    let fd = file.as_raw_fd();
    let blocks = Blocks {
        fd,
        count: 64,
        len: 4096,
    };
    for engine in [Engine::Uring, Engine::Threads] {
        let graph = block_graph().engine(engine).fixed_depth(16);
        for at in [0, 1, 17] {
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let mut scope = graph.enter(&blocks);
                for i in 0..=at {
                    scope.pread_block(&file, 4096, i * 4096).unwrap();
                }
                std::panic::resume_unwind(Box::new(at));
            }));
            assert_eq!(unwound.unwrap_err().downcast_ref(), Some(&at));
        }
        let stub: Graph<Cell<bool>> = Graph::generator("stub", move |armed: &Cell<bool>, i| {
            if armed.get() && i == 9 {
                std::panic::resume_unwind(Box::new("stub"));
            }
            Next::Call(Op::Pwrite {
                fd,
                data: Data::Bytes(b"q"),
                offset: 1_000_000 + i as i64,
            })
        })
        .engine(engine)
        .fixed_depth(16);
        let armed = Cell::new(true);
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut scope = stub.enter(&armed);
            let _ = scope.pwrite(&file, b"q", 1_000_000);
        }));
        assert!(unwound.is_err());
        // What it had foreseen by then was not written.
        assert_eq!(file.metadata().unwrap().len(), 64 * 4096);

        let mut outer = graph.enter(&blocks);
        assert!(!outer.is_passing());
        assert!(is_block(&outer.pread_block(&file, 4096, 0).unwrap(), 0));
        let mut inner = graph.enter(&blocks);
        assert!(inner.is_passing());
        for i in 0..64 {
            assert!(is_block(
                &inner.pread_block(&file, 4096, i * 4096).unwrap(),
                i as u64
            ));
        }
        drop(inner);
        for i in 1..64 {
            assert!(is_block(
                &outer.pread_block(&file, 4096, i * 4096).unwrap(),
                i as u64
            ));
        }
        drop(outer);
        assert!(!graph.enter(&blocks).is_passing());

        // What the inner function writes, the outer reads, whether or not the inner graph is followed.
        let off = block_graph().engine(Engine::Serial);
        for within in [&graph, &off] {
            let mut outer = graph.enter(&blocks);
            for i in 0..64 {
                let mut block = [0; 4096];
                outer.pread(&file, &mut block, i * 4096).unwrap();
                let mut inner = within.enter(&blocks);
                for ahead in [1, 2] {
                    // The first call of a scope that passes through, and one after it.
                    let at = (i + ahead) * 4096;
                    if at < 64 * 4096 {
                        inner.pwrite(&file, &[i as u8; 4096], at).unwrap();
                    }
                }
                let expected = if i > 0 { [i as u8 - 1; 4096] } else { block };
                assert!(block == expected, "{engine:?}, block {i}");
            }
        }
        let bytes: Vec<u8> = (0..64u64)
            .flat_map(|i| i.to_le_bytes().repeat(512))
            .collect();
        file.write_all_at(&bytes, 0).unwrap();
    }
}

/// A graph that is wrong is switched off, and nothing else happens.
#[test]
fn a_wrong_graph_is_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 64, 4096);
    let blocks = Blocks::of(&file, 64);
    for engine in [Engine::Uring, Engine::Threads] {
        let graph = block_graph().engine(engine).fixed_depth(16);
        for _ in 0..3 {
            let mut scope = graph.enter(&blocks);
            for i in (0..64).rev() {
                let mut b = [0; 1000];
                assert_eq!(scope.pread(&file, &mut b, i * 4096 + 8).unwrap(), 1000);
                assert!(is_block(&b, i as u64));
            }
        }
        assert!(graph.is_off());
        assert!(graph.enter(&blocks).is_passing());
        assert!(
            graph.problems()[0].contains("other calls"),
            "{:?}",
            graph.problems()
        );
        assert_eq!(graph.counts().hits, 0);
    }
}

/// Bytes that change after they were written ahead are written again.
#[test]
fn a_write_with_other_bytes_than_foreseen_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 4, 4096);
    let fd = file.as_raw_fd();
    for engine in [Engine::Uring, Engine::Threads] {
        let graph: Graph<()> = Graph::generator("changes", move |(), i| match i {
            0..8 => Next::Call(Op::Pwrite {
                fd,
                data: Data::Bytes(b"before"),
                offset: 10 * i as i64,
            }),
            _ => Next::End,
        })
        .engine(engine)
        .fixed_depth(8);
        let mut scope = graph.enter(&());
        for i in 0..8 {
            let bytes: &[u8] = if i % 2 == 0 { b"before" } else { b"after!" };
            assert_eq!(scope.pwrite(&file, bytes, 10 * i).unwrap(), 6);
        }
        drop(scope);
        for i in 0..8u64 {
            let mut b = [0; 6];
            file.read_exact_at(&mut b, 10 * i).unwrap();
            assert_eq!(&b, if i % 2 == 0 { b"before" } else { b"after!" });
        }
        assert_eq!(graph.counts().divergences, 4);
    }
}

/// Reads of `fd` that are only fetched, `count` of them and none beside another; `foresee` is run for each that is foreseen.
fn fetches<C: 'static>(
    count: u64,
    fd: i32,
    foresee: impl Fn(&C) + Send + Sync + 'static,
) -> Graph<C> {
    let graph = Graph::generator("fetches", move |cx, i| {
        if i >= count {
            return Next::End;
        }
        foresee(cx);
        Next::Weak(Op::Pread {
            fd,
            len: 4096,
            offset: i as i64 * 8192,
        })
    });
    graph.pure().among().stable().fetch()
}

/// FA3: what a descriptor names is asked once in a run whose reads are only fetched, and not with each of its calls.
#[test]
fn fetches_ask_once_what_a_descriptor_names() {
    const NAME: &str = "fetches_ask_once_what_a_descriptor_names";
    const IN_TRACE: &str = "OUTRIDER_GRAPH_TRACED";
    if std::env::var_os(IN_TRACE).is_some() {
        let dir = tempfile::tempdir().unwrap();
        let file = numbered(&dir, 400, 4096);
        let fd = file.as_raw_fd();
        let graph = fetches(200, fd, |()| {}).fixed_depth(4);
        let mut scope = graph.enter(&());
        let mut bytes = [0; 4096];
        for i in 0..200 {
            assert_eq!(scope.pread(&file, &mut bytes, i * 8192).unwrap(), 4096);
            assert!(is_block(&bytes, 2 * i as u64));
        }
        drop(scope);
        assert!(graph.counts().ahead >= 190);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let traced = std::process::Command::new("strace")
        .args(["-f", "-e", "trace=fstat,newfstatat,fcntl", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--test-threads=1"])
        .env(IN_TRACE, "1")
        .output();
    let Ok(traced) = traced else {
        return eprintln!("skipped: strace is not installed");
    };
    let said = String::from_utf8_lossy(&traced.stdout).into_owned();
    assert!(
        traced.status.success() && said.contains("1 passed"),
        "{said}"
    );
    let calls = fs::read_to_string(trace).unwrap().lines().count();
    assert!(
        calls < 100,
        "{calls} calls of fstat and fcntl for 200 reads"
    );
}

/// FA3: where reads are only fetched, and nothing of it is waited for, the processor time of looking ahead itself is what it costs.
#[test]
fn looking_ahead_that_takes_long_rests_soon() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 16, 4096);
    let fd = file.as_raw_fd();
    let run = |graph: &Graph<Duration>, cost: Duration| {
        let mut scope = graph.enter(&cost);
        let mut bytes = [0; 4096];
        for i in 0..8 {
            assert_eq!(scope.pread(&file, &mut bytes, i * 8192).unwrap(), 4096);
        }
    };
    // A first run may be slow for reasons of its own, page faults of an unoptimised build among them: not so each time.
    let quick = (0..8).any(|_| {
        let graph = fetches(8, fd, |cost: &Duration| {
            let began = thread_time();
            while thread_time() - began < *cost {}
        });
        run(&graph, Duration::ZERO);
        let rested = graph.rests();
        run(&graph, Duration::from_millis(1));
        assert!(graph.rests());
        let ahead = graph.counts().ahead;
        run(&graph, Duration::ZERO);
        assert_eq!(graph.counts().ahead, ahead);
        !rested
    });
    assert!(quick, "eight calls have cost that much");
}

/// The same where they have changed in the memory that they were foreseen in, as a C program's may.
#[test]
fn a_write_whose_bytes_have_changed_in_place_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 4, 4096);
    let fd = file.as_raw_fd();
    for engine in [Engine::Uring, Engine::Threads] {
        let memory = Box::into_raw(Box::new(*b"before"));
        let graph: Graph<usize> = Graph::generator("changes in place", move |at, i| match i {
            0..8 => Next::Call(Op::Pwrite {
                fd,
                // SAFETY: six bytes, which nobody writes to while they are looked at.
                data: Data::Bytes(unsafe { std::slice::from_raw_parts(*at as *const u8, 6) }),
                offset: 10 * i as i64,
            }),
            _ => Next::End,
        })
        .changing()
        .engine(engine)
        .fixed_depth(8);
        let context = memory as usize;
        let mut scope = graph.enter(&context);
        for i in 0..8 {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), 6) };
            if i == 4 {
                bytes.copy_from_slice(b"after!");
            }
            assert_eq!(scope.pwrite(&file, bytes, 10 * i).unwrap(), 6);
        }
        drop(scope);
        for i in 0..8u64 {
            let mut b = [0; 6];
            file.read_exact_at(&mut b, 10 * i).unwrap();
            assert_eq!(&b, if i < 4 { b"before" } else { b"after!" });
        }
        // SAFETY: made above.
        drop(unsafe { Box::from_raw(memory) });
    }
}

/// Loops of any length, here ten million iterations (fewer without optimisation); FA9: on several threads at once.
#[test]
fn long_loops_on_many_threads() {
    let each: u64 = if cfg!(debug_assertions) {
        70_000
    } else {
        2_500_000
    };
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 251, 8);
    let mut b = Builder::<i32>::new("long");
    let read = b.call("read", Kind::Pread, |fd, e| {
        Some(Op::Pread {
            fd: *fd,
            len: 8,
            offset: (e[0] % 251 * 8) as i64,
        })
    });
    let more = b.branch("more", move |_, e| Some(usize::from(e[0] + 1 == each)));
    b.edge(b.start(), read);
    b.edge(read, more);
    b.back_edge(more, read);
    b.edge(more, b.end());
    // Adaptive: it rests most of the time, and comes back.
    let graph = b.build().unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let fd = file.as_raw_fd();
                let mut scope = graph.enter(&fd);
                let mut b = [0; 8];
                for i in 0..each {
                    assert_eq!(scope.pread(&fd, &mut b, (i % 251 * 8) as i64).unwrap(), 8);
                    assert_eq!(u64::from_le_bytes(b), i % 251);
                }
            });
        }
    });
    let c = graph.counts();
    assert_eq!((c.calls, c.divergences, c.scopes), (each * 4, 0, 4), "{c}");
}

/// FA11: a directory of 70,000 entries, listed and looked at, as without a graph.
#[test]
fn a_directory_of_70000_entries() {
    const ENTRIES: usize = 70_000;
    let dir = tempfile::tempdir().unwrap();
    // Links to a few files are quicker to make than files.
    for i in 0..ENTRIES / 10_000 {
        let first = dir.path().join(format!("{i}-0"));
        fs::write(&first, vec![b'x'; i]).unwrap();
        for j in 1..10_000 {
            fs::hard_link(&first, dir.path().join(format!("{i}-{j}"))).unwrap();
        }
    }
    let open = File::open(dir.path()).unwrap();
    let walk = |engine| {
        // SAFETY: integers only.
        unsafe { libc::lseek(open.as_raw_fd(), 0, libc::SEEK_SET) };
        let lists: Graph<i32> = Graph::generator("list", |fd, _| {
            Next::Weak(Op::Getdents {
                fd: *fd,
                len: 32768,
            })
        })
        .engine(engine)
        .fixed_depth(4);
        let fd = open.as_raw_fd();
        let mut names: Vec<CString> = Vec::new();
        let mut scope = lists.enter(&fd);
        let mut room = vec![0u8; 32768];
        loop {
            let n = scope.getdents(&fd, &mut room).unwrap();
            if n == 0 {
                break;
            }
            let mut at = 0;
            while at < n {
                let length = u16::from_ne_bytes([room[at + 16], room[at + 17]]) as usize;
                let name = CStr::from_bytes_until_nul(&room[at + 19..at + length]).unwrap();
                if name.to_bytes() != b"." && name.to_bytes() != b".." {
                    names.push(name.into());
                }
                at += length;
            }
        }
        drop(scope);
        struct Stats<'a> {
            dir: i32,
            names: &'a [CString],
        }
        // The names live as long as the walk; the graph is of this walk only.
        let stats: Graph<Stats<'_>> =
            Graph::generator("stat", |s: &Stats<'_>, i| match s.names.get(i as usize) {
                Some(n) => Next::Call(Op::Fstatat {
                    dir: s.dir,
                    path: n,
                    flags: libc::AT_SYMLINK_NOFOLLOW,
                }),
                None => Next::End,
            })
            .pure()
            .engine(engine)
            .fixed_depth(32);
        let context = Stats {
            dir: fd,
            names: &names,
        };
        let mut scope = stats.enter(&context);
        let mut all: Vec<(CString, i64, u64)> = names
            .iter()
            .map(|n| {
                let s = scope.fstatat(&fd, n, libc::AT_SYMLINK_NOFOLLOW).unwrap();
                (n.clone(), s.st_size, s.st_ino)
            })
            .collect();
        drop(scope);
        if engine != Engine::Serial {
            assert!(
                stats.counts().hits > ENTRIES as u64 - 100,
                "{}",
                stats.counts()
            );
        }
        all.sort();
        all
    };
    let expected = walk(Engine::Serial);
    assert_eq!(expected.len(), ENTRIES);
    for engine in [Engine::Uring, Engine::Threads] {
        assert!(walk(engine) == expected, "{engine:?}");
    }
}

/// A file that others truncate and fill while it is read: every byte is one that was there, and nothing breaks.
#[test]
fn a_file_truncated_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 64, 4096);
    let whole = fs::read(dir.path().join("numbered")).unwrap();
    let other = File::options()
        .write(true)
        .open(dir.path().join("numbered"))
        .unwrap();
    let blocks = Blocks::of(&file, 64);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut i = 0;
            while !stop.load(Ordering::Relaxed) {
                other.set_len([0, 1000, 100_000, 4096 * 64][i % 4]).unwrap();
                other.write_all_at(&whole, 0).unwrap();
                i += 1;
            }
        });
        for engine in [Engine::Uring, Engine::Threads] {
            let graph = block_graph().engine(engine).fixed_depth(16);
            for _ in 0..50 {
                let mut scope = graph.enter(&blocks);
                for i in 0..64 {
                    let block = scope.pread_block(&file, 4096, i * 4096).unwrap();
                    let original = &whole[i as usize * 4096..][..block.len()];
                    assert!(block.iter().zip(original).all(|(a, b)| a == b || *a == 0));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // When it's quiet, short is exactly short.
    other.set_len(10_000).unwrap();
    let graph = block_graph().engine(Engine::Uring).fixed_depth(16);
    let mut scope = graph.enter(&blocks);
    let lengths: Vec<usize> = (0..4)
        .map(|i| scope.pread_block(&file, 4096, i * 4096).unwrap().len())
        .collect();
    assert_eq!(lengths, [4096, 4096, 10_000 - 8192, 0]);
}

/// A graph that is switched off in the middle still hands out the effects that it has had already: none happens twice.
#[test]
fn effects_are_handed_out_after_the_graph_was_switched_off() {
    let dir = tempfile::tempdir().unwrap();
    let file = numbered(&dir, 4, 4096);
    let open = File::open(dir.path()).unwrap();
    struct Names {
        fd: i32,
        dir: i32,
        all: Vec<CString>,
    }
    let name = |i: i32| CString::new(format!("d{i}")).unwrap();
    for engine in [Engine::Uring, Engine::Threads] {
        let context = Names {
            fd: file.as_raw_fd(),
            dir: open.as_raw_fd(),
            all: (0..6).map(name).collect(),
        };
        let graph: Graph<Names> = Graph::generator("directories", |n: &Names, i| match i {
            0 => Next::Call(Op::Pread {
                fd: n.fd,
                len: 10,
                offset: 0,
            }),
            1..=6 => Next::Call(Op::Mkdirat {
                dir: n.dir,
                path: &n.all[i as usize - 1],
                mode: 0o700,
            }),
            7 => Next::Call(Op::Pread {
                fd: n.fd,
                len: 20,
                offset: 0,
            }),
            _ => Next::End,
        })
        .engine(engine)
        .fixed_depth(16);
        let mut scope = graph.enter(&context);
        let mut b = [0; 10];
        // Once the read and the first directory are made, so are the others.
        for i in 0..40 {
            assert_eq!(
                scope
                    .pread(&file, &mut b[..9 + usize::from(i == 0)], 0)
                    .unwrap(),
                9 + usize::from(i == 0)
            );
            if i == 0 {
                scope.mkdirat(&open, &context.all[0], 0o700).unwrap();
            }
        }
        assert!(graph.is_off());
        for i in 1..6 {
            scope.mkdirat(&open, &context.all[i], 0o700).unwrap();
        }
        assert_eq!(scope.pread(&file, &mut [0; 20], 0).unwrap(), 20);
        assert!(scope.is_passing());
        drop(scope);
        let c = graph.counts();
        assert!(c.hits > 0 && c.unclaimed_effects == 0, "{engine:?}: {c}");
        for n in &context.all {
            fs::remove_dir(dir.path().join(n.to_str().unwrap())).unwrap();
        }
    }
}

/// O_DIRECT takes only aligned memory, also where nothing is made ahead: blocks are aligned in every scope.
#[test]
fn blocks_are_aligned_in_every_scope() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = numbered(&dir, 16, 4096);
    for engine in ENGINES {
        let graph = block_graph().engine(engine);
        let context = Blocks::of(&file, 16);
        let outer = graph.enter(&context);
        let mut inner = graph.enter(&context);
        // All are held at once, so that no two are the same memory.
        let held: Vec<_> = (0..16)
            .map(|i| inner.pread_block(&file, 4096, i * 4096).unwrap())
            .collect();
        drop(inner);
        drop(outer);
        let mut scope = graph.enter(&context);
        let more = (0..16).map(|i| scope.pread_block(&file, 4096, i * 4096).unwrap());
        for (i, block) in held.into_iter().chain(more).enumerate() {
            assert!((block.as_ptr() as usize).is_multiple_of(4096), "{engine:?}");
            assert!(is_block(&block, i as u64 % 16), "{engine:?}");
        }
    }
}

/// FA3: behind an effect that failed only what was on its way beside it has happened, and nothing where the graph says that the function ends there.
#[test]
fn effects_behind_one_that_failed_wait_for_the_function() {
    const DEPTH: usize = 4;
    const FAILS: usize = 2;
    struct Names {
        dir: File,
        names: Vec<CString>,
    }
    for engine in ENGINES {
        for stops in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let at = |i: usize| dir.path().join(i.to_string());
            fs::create_dir(at(FAILS)).unwrap();
            let context = Names {
                dir: File::open(dir.path()).unwrap(),
                names: (0..40)
                    .map(|i: i32| CString::new(i.to_string()).unwrap())
                    .collect(),
            };
            let mut graph = Graph::generator("makes", |c: &Names, i| {
                let Some(path) = c.names.get(i as usize) else {
                    return Next::End;
                };
                Next::Call(Op::Mkdirat {
                    dir: c.dir.as_raw_fd(),
                    path,
                    mode: 0o755,
                })
            })
            .engine(engine)
            .fixed_depth(DEPTH);
            if stops {
                graph = graph.stops();
            }
            let mut scope = graph.enter(&context);
            let failed = context.names.iter().position(|name| {
                let r = scope.mkdirat(&context.dir, name, 0o755);
                std::thread::sleep(Duration::from_millis(5));
                r.is_err()
            });
            drop(scope);
            assert_eq!(failed, Some(FAILS), "{engine:?}");
            let most = if stops { FAILS } else { DEPTH };
            let made = (most + 1..40).find(|i| at(*i).exists());
            assert_eq!(made, None, "{engine:?}, {stops}");
            if stops {
                assert_eq!(graph.problems(), Vec::<String>::new(), "{engine:?}");
            }
        }
    }
}
