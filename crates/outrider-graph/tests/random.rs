//! FA12: whatever the graph, and whether the program follows it or not, nobody can tell its results and files from those of the serial
//! program. Random graphs and random programs, each run serially, on io_uring and on threads.
//!
//! The order of effects is compared, too. Of changes of names it is the kernel's: what inotify tells of the directory, below all engines. Of writes
//! to a file it can be read off the file: each begins further on than the last and ends where all end ([`STAIRS`]), so that whichever comes too
//! early loses its first bytes to one that belongs before it; in nested loops, too.

// The library's own code must not: see clippy.toml.
#![allow(clippy::disallowed_methods)]

mod support;

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{IoSliceMut, Read as _};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};
use std::path::Path;

use outrider_graph::{Builder, Data, Engine, Graph, Kind, Next, Node, Op};
use proptest::prelude::*;
use support::in_child;

const FILES: usize = 3;
const NAMES: usize = 8;

/// A call of a random program. Files and names are few, so that calls meet.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Pread(usize, usize, i64),
    Read(usize, usize),
    Pwrite(usize, Vec<u8>, i64),
    Write(usize, Vec<u8>),
    Lseek(usize, i64, i32),
    Fstat(usize),
    Fsync(usize),
    Stat(usize),
    Unlink(usize),
    Mkdir(usize),
    Rename(usize, usize),
    List,
    /// A descriptor that is not open, and one that is a directory.
    Bad(usize),
    /// A read whose bytes the next call writes.
    Copy(usize, usize, usize, i64),
    Statx(usize),
    /// Opens a name; whether it makes the file where there is none.
    Open(usize, bool),
    /// A read of what was opened as the n-th …
    PreadOpened(usize, usize, i64),
    /// … which may be closed, and its number another's; and its close.
    Close(usize),
}

/// A descriptor that nobody has.
const NOBODYS: RawFd = 1_000_000;

fn open_flags(makes: bool) -> i32 {
    let how = if makes {
        libc::O_RDWR | libc::O_CREAT
    } else {
        libc::O_RDONLY
    };
    how | libc::O_CLOEXEC
}

fn name(i: usize) -> CString {
    CString::new(format!("n{i}")).unwrap()
}

/// Where writes whose order is to be seen begin, beyond everything else that is written, and where all of them end.
const STAIRS: std::ops::Range<i64> = 100_000..100_400;
/// What each leaves of the last.
const STAIR: i64 = 3;

/// The `n`th write of a file, if its order is to be seen.
fn stair(n: i64) -> (Vec<u8>, i64) {
    let from = (STAIRS.start + n * STAIR).min(STAIRS.end - STAIR);
    (vec![n as u8 + 1; (STAIRS.end - from) as usize], from)
}

/// Changes of names in a directory, in the order in which they happened.
struct Changes(File);

/// What happened, and to which name.
type Change = (u32, String);

impl Changes {
    fn of(dir: &Path) -> Changes {
        let path = CString::new(dir.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a new descriptor, of which the file becomes the owner; a C string.
        unsafe {
            let fd = libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK);
            assert!(fd >= 0);
            let what = libc::IN_CREATE | libc::IN_DELETE | libc::IN_MOVE;
            assert!(libc::inotify_add_watch(fd, path.as_ptr(), what) >= 0);
            Changes(File::from_raw_fd(fd))
        }
    }

    /// All so far.
    fn told(mut self) -> Vec<Change> {
        let mut told = Vec::new();
        let mut room = vec![0; 64 << 10];
        while let Ok(n) = self.0.read(&mut room) {
            let mut rest = &room[..n];
            while !rest.is_empty() {
                // struct inotify_event: watch, what, cookie, length of the name.
                let word = |i: usize| u32::from_ne_bytes(rest[4 * i..][..4].try_into().unwrap());
                let (what, len) = (word(1), word(3) as usize);
                assert!(what & libc::IN_Q_OVERFLOW == 0);
                let name = std::ffi::CStr::from_bytes_until_nul(&rest[16..16 + len]).unwrap();
                told.push((what, name.to_str().unwrap().to_owned()));
                rest = &rest[16 + len..];
            }
        }
        told
    }
}

/// Changes whose order can be seen from within: all renamings, and what concerns one name. Two others may change places.
fn orders(told: &[Change]) -> Vec<Vec<&Change>> {
    let of = |n: usize| {
        let name = format!("n{n}");
        let concerns = move |c: &&Change| c.0 & libc::IN_MOVE != 0 || c.1 == name;
        told.iter().filter(concerns).collect()
    };
    (0..NAMES).map(of).collect()
}

/// What the program is given of a call: its result or errno, and the bytes.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Number(Result<usize, Option<i32>>),
    Bytes(Result<Vec<u8>, Option<i32>>),
    Stat(Result<(u32, i64, u64), Option<i32>>),
}

struct Place {
    files: Vec<File>,
    dir: File,
}

fn prepare(at: &Path) -> Place {
    fs::create_dir_all(at).unwrap();
    let files = (0..FILES)
        .map(|i| {
            let path = at.join(format!("n{i}"));
            let bytes: Vec<u8> = (0..20_000 + i * 777)
                .map(|b| (b % 251) as u8 ^ i as u8)
                .collect();
            fs::write(&path, bytes).unwrap();
            // The last is only read.
            File::options()
                .read(true)
                .write(i + 1 < FILES)
                .open(path)
                .unwrap()
        })
        .collect();
    fs::create_dir(at.join("n3")).unwrap();
    Place {
        files,
        dir: File::open(at).unwrap(),
    }
}

/// Writes whose order is to be seen: their bytes and offsets by the number of their step and the passes of the loops around it.
type Stairs = HashMap<(usize, Vec<u64>), (Vec<u8>, i64)>;

struct Context {
    foreseen: Vec<(Step, bool, bool)>,
    stairs: Stairs,
    fds: Vec<RawFd>,
    dir: RawFd,
    names: Vec<CString>,
    /// What opens have returned, -1 for failures.
    opened: RefCell<Vec<RawFd>>,
    /// How often each was asked for; some are not ready at first.
    asked: RefCell<Vec<u32>>,
}

/// The foreseen calls, one by one; a copy is two.
fn foreseen(c: &Context, i: u64) -> Next<'_> {
    let mut at = 0;
    for (n, (step, weak, late)) in c.foreseen.iter().enumerate() {
        let parts = if matches!(step, Step::Copy(..)) { 2 } else { 1 };
        if i >= at + parts {
            at += parts;
            continue;
        }
        let mut asked = c.asked.borrow_mut();
        asked[n] += 1;
        if *late && asked[n] < 3 && i == at {
            return Next::NotReady;
        }
        let Some(op) = call(c, step, i - at, 0) else {
            return Next::NotReady;
        };
        return match (op, *weak) {
            (op, _) if matches!(step, Step::Copy(..)) && i == at => Next::Link(op),
            (op, true) => Next::Weak(op),
            (op, false) => Next::Call(op),
        };
    }
    Next::End
}

/// A step's call; of a copy the read (`part` 0) or the write. Offsets are moved by `by`. `None`: its descriptor is not open yet.
fn call<'a>(c: &'a Context, step: &'a Step, part: u64, by: i64) -> Option<Op<'a>> {
    let fd = |f: usize| c.fds[f];
    Some(match step {
        Step::Pread(f, len, offset) => Op::Pread {
            fd: fd(*f),
            len: *len,
            offset: *offset + by,
        },
        Step::Read(f, len) => Op::Read {
            fd: fd(*f),
            len: *len,
        },
        Step::Pwrite(f, b, offset) => Op::Pwrite {
            fd: fd(*f),
            data: Data::Bytes(b),
            offset: *offset + by,
        },
        Step::Write(f, b) => Op::Write {
            fd: fd(*f),
            data: Data::Bytes(b),
        },
        Step::Lseek(f, offset, whence) => Op::Lseek {
            fd: fd(*f),
            offset: *offset,
            whence: *whence,
        },
        Step::Fstat(f) => Op::Fstat { fd: fd(*f) },
        Step::Fsync(f) => Op::Fsync {
            fd: fd(*f),
            data_only: true,
        },
        Step::Stat(n) => Op::Fstatat {
            dir: c.dir,
            path: &c.names[*n],
            flags: 0,
        },
        Step::Unlink(n) => Op::Unlinkat {
            dir: c.dir,
            path: &c.names[*n],
            flags: 0,
        },
        Step::Mkdir(n) => Op::Mkdirat {
            dir: c.dir,
            path: &c.names[*n],
            mode: 0o755,
        },
        Step::Rename(a, b) => Op::Renameat {
            from_dir: c.dir,
            from: &c.names[*a],
            to_dir: c.dir,
            to: &c.names[*b],
        },
        Step::List => Op::Getdents {
            fd: c.dir,
            len: 4096,
        },
        Step::Bad(0) => Op::Pread {
            fd: 1_000_000,
            len: 10,
            offset: 0,
        },
        Step::Bad(_) => Op::Pread {
            fd: c.dir,
            len: 10,
            offset: 0,
        },
        Step::Copy(f, _, len, offset) if part == 0 => Op::Pread {
            fd: fd(*f),
            len: *len,
            offset: *offset + by,
        },
        Step::Copy(_, to, _, offset) => Op::Pwrite {
            fd: fd(*to),
            data: Data::Linked,
            offset: *offset + by,
        },
        Step::Statx(n) => Op::Statx {
            dir: c.dir,
            path: &c.names[*n],
            flags: libc::AT_SYMLINK_NOFOLLOW,
            mask: libc::STATX_BASIC_STATS,
        },
        Step::Open(n, makes) => Op::Openat {
            dir: c.dir,
            path: &c.names[*n],
            flags: open_flags(*makes),
            mode: 0o644,
        },
        Step::PreadOpened(n, len, offset) => Op::Pread {
            fd: *c.opened.borrow().get(*n)?,
            len: *len,
            offset: *offset + by,
        },
        Step::Close(n) => Op::Close {
            fd: *c.opened.borrow().get(*n)?,
        },
    })
}

/// Whether a plan's graph always looks equally far ahead; others as far as they find useful.
fn looks_far(plan: &[(Step, bool, bool)]) -> bool {
    plan.len().is_multiple_of(2)
}

/// Runs `program`; what it saw.
fn run(
    at: &Path,
    engine: Engine,
    plan: &[(Step, bool, bool)],
    program: &[Step],
    (graph, stairs): (Graph<Context>, Stairs),
) -> (Vec<Seen>, Vec<Change>, outrider_graph::Counts, Vec<String>) {
    let place = prepare(at);
    let changes = Changes::of(at);
    let context = Context {
        foreseen: plan.to_vec(),
        stairs,
        fds: place.files.iter().map(|f| f.as_raw_fd()).collect(),
        dir: place.dir.as_raw_fd(),
        names: (0..NAMES).map(name).collect(),
        opened: RefCell::new(Vec::new()),
        asked: RefCell::new(vec![0; plan.len()]),
    };
    let mut graph = graph.engine(engine).private_positions();
    if looks_far(plan) {
        graph = graph.fixed_depth(12);
    }
    let mut scope = graph.enter(&context);
    let mut seen = Vec::new();
    let number = |r: std::io::Result<usize>| Seen::Number(r.map_err(|e| e.raw_os_error()));
    let unit = |r: std::io::Result<()>| Seen::Number(r.map(|()| 0).map_err(|e| e.raw_os_error()));
    let bytes = |r: std::io::Result<usize>, mut b: Vec<u8>| {
        b.truncate(*r.as_ref().unwrap_or(&0));
        Seen::Bytes(r.map(|_| b).map_err(|e| e.raw_os_error()))
    };
    let opened = |n: usize| context.opened.borrow().get(n).copied().unwrap_or(NOBODYS);
    let stat = |r: std::io::Result<libc::stat>| {
        Seen::Stat(
            r.map(|s| {
                (
                    s.st_mode,
                    if s.st_mode & libc::S_IFMT == libc::S_IFDIR {
                        0
                    } else {
                        s.st_size
                    },
                    s.st_nlink,
                )
            })
            .map_err(|e| e.raw_os_error()),
        )
    };
    for step in program {
        match step {
            Step::Pread(f, len, offset) => {
                // All ways of taking a result.
                let file = &place.files[*f];
                let mut b = vec![0; *len];
                let r = match len % 3 {
                    0 => scope.pread(file, &mut b, *offset),
                    1 => {
                        let (one, two) = b.split_at_mut(len / 3);
                        let parts = &mut [IoSliceMut::new(one), IoSliceMut::new(two)];
                        scope.preadv(file, parts, *offset)
                    }
                    _ => scope.pread_block(file, *len, *offset).map(|block| {
                        b[..block.len()].copy_from_slice(&block);
                        block.len()
                    }),
                };
                seen.push(bytes(r, b));
            }
            Step::Read(f, len) => {
                let file = &place.files[*f];
                let mut b = vec![0; *len];
                let r = match len % 3 {
                    0 => scope.read(file, &mut b),
                    1 => {
                        let (one, two) = b.split_at_mut(len / 3);
                        let parts = &mut [IoSliceMut::new(one), IoSliceMut::new(two)];
                        scope.readv(file, parts)
                    }
                    _ => scope.read_block(file, *len).map(|block| {
                        b[..block.len()].copy_from_slice(&block);
                        block.len()
                    }),
                };
                seen.push(bytes(r, b));
            }
            Step::Pwrite(f, b, offset) => {
                seen.push(number(scope.pwrite(&place.files[*f], b, *offset)))
            }
            Step::Write(f, b) => seen.push(number(scope.write(&place.files[*f], b))),
            Step::Lseek(f, o, w) => seen.push(number(
                scope.lseek(&place.files[*f], *o, *w).map(|r| r as usize),
            )),
            Step::Fstat(f) => seen.push(stat(scope.fstat(&place.files[*f]))),
            Step::Fsync(f) => seen.push(unit(scope.fdatasync(&place.files[*f]))),
            Step::Stat(n) => seen.push(stat(scope.fstatat(&place.dir, &name(*n), 0))),
            Step::Statx(n) => {
                let (flags, mask) = (libc::AT_SYMLINK_NOFOLLOW, libc::STATX_BASIC_STATS);
                let r = scope.statx(&place.dir, &name(*n), flags, mask);
                seen.push(Seen::Stat(
                    r.map(|s| {
                        let is_dir = u32::from(s.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
                        let size = if is_dir { 0 } else { s.stx_size as i64 };
                        (u32::from(s.stx_mode), size, u64::from(s.stx_nlink))
                    })
                    .map_err(|e| e.raw_os_error()),
                ));
            }
            Step::Open(n, makes) => {
                let r = scope.openat(&place.dir, &name(*n), open_flags(*makes), 0o644);
                let r = r.map(IntoRawFd::into_raw_fd);
                context.opened.borrow_mut().push(*r.as_ref().unwrap_or(&-1));
                // The very number: nothing else opens files in this process.
                seen.push(number(r.map(|fd| fd as usize)));
            }
            Step::PreadOpened(n, len, offset) => {
                let mut b = vec![0; *len];
                let r = scope.pread(&opened(*n), &mut b, *offset);
                seen.push(bytes(r, b));
            }
            Step::Close(n) => seen.push(unit(scope.close(opened(*n)))),
            Step::Unlink(n) => seen.push(unit(scope.unlinkat(&place.dir, &name(*n), 0))),
            Step::Mkdir(n) => seen.push(unit(scope.mkdirat(&place.dir, &name(*n), 0o755))),
            Step::Rename(a, b) => seen.push(unit(scope.renameat(
                &place.dir,
                &name(*a),
                &place.dir,
                &name(*b),
            ))),
            Step::List => {
                let mut b = [0; 4096];
                // Directories differ in the numbers and order of their entries; that there are some is the same.
                seen.push(number(
                    scope
                        .getdents(&place.dir, &mut b)
                        .map(|n| usize::from(n > 0)),
                ));
            }
            Step::Bad(0) => {
                let r = scope.pread(&1_000_000, &mut [0; 10], 0);
                seen.push(number(r));
            }
            Step::Bad(_) => seen.push(number(scope.pread(&place.dir, &mut [0; 10], 0))),
            Step::Copy(f, to, len, offset) => {
                let r = scope.pread_block(&place.files[*f], *len, *offset);
                if let Ok(b) = &r
                    && !b.is_empty()
                {
                    seen.push(number(scope.pwrite(&place.files[*to], b, *offset)));
                }
                seen.push(Seen::Bytes(
                    r.map(|b| b.to_vec()).map_err(|e| e.raw_os_error()),
                ));
            }
        }
    }
    drop(scope);
    for fd in context.opened.take() {
        // SAFETY: the program's own; those that it has closed itself are nobody's.
        unsafe { libc::close(fd) };
    }
    let positions: Vec<_> = place
        .files
        .iter()
        // SAFETY: integers only.
        .map(|f| unsafe { libc::lseek(f.as_raw_fd(), 0, libc::SEEK_CUR) } as usize)
        .collect();
    seen.extend(positions.into_iter().map(|p| Seen::Number(Ok(p))));
    (seen, changes.told(), graph.counts(), graph.problems())
}

/// Names, types and contents.
fn tree(at: &Path) -> Vec<(String, Option<Vec<u8>>)> {
    let mut all: Vec<_> = fs::read_dir(at)
        .unwrap()
        .map(|e| {
            let e = e.unwrap();
            (
                e.file_name().into_string().unwrap(),
                fs::read(e.path()).ok(),
            )
        })
        .collect();
    all.sort();
    all
}

fn step() -> impl Strategy<Value = Step> {
    let file = 0..FILES;
    let len = prop_oneof![1usize..9000, 1usize..64];
    let offset = prop_oneof![0i64..22_000, Just(0i64)];
    let bytes = prop::collection::vec(any::<u8>(), 1..300);
    prop_oneof![
        6 => (file.clone(), len.clone(), offset.clone()).prop_map(|(f, l, o)| Step::Pread(f, l, o)),
        4 => (file.clone(), len.clone()).prop_map(|(f, l)| Step::Read(f, l)),
        4 => (file.clone(), bytes.clone(), offset.clone()).prop_map(|(f, b, o)| Step::Pwrite(f, b, o)),
        3 => (file.clone(), bytes).prop_map(|(f, b)| Step::Write(f, b)),
        1 => (file.clone(), -100i64..21_000, 0i32..3).prop_map(|(f, o, w)| Step::Lseek(f, o, w)),
        1 => file.clone().prop_map(Step::Fstat),
        1 => file.clone().prop_map(Step::Fsync),
        2 => (0usize..8).prop_map(Step::Stat),
        1 => (0usize..8).prop_map(Step::Unlink),
        1 => (0usize..8).prop_map(Step::Mkdir),
        1 => (0usize..8, 0usize..8).prop_map(|(a, b)| Step::Rename(a, b)),
        1 => Just(Step::List),
        1 => (0usize..2).prop_map(Step::Bad),
        1 => (0usize..8).prop_map(Step::Statx),
        2 => (0usize..8, any::<bool>()).prop_map(|(n, makes)| Step::Open(n, makes)),
        3 => (0usize..40, len.clone(), offset.clone()).prop_map(|(n, l, o)| Step::PreadOpened(n, l, o)),
        1 => (0usize..40).prop_map(Step::Close),
        3 => (file.clone(), file, len, offset).prop_map(|(a, b, l, o)| Step::Copy(a, b, l, o)),
    ]
}

/// A step of a descriptor that was opened is one of the `opens` before it, or of none.
fn settle(step: &mut Step, opens: &mut usize) {
    match step {
        Step::Open(..) => *opens += 1,
        Step::PreadOpened(n, ..) | Step::Close(n) if *opens > 0 => *n %= *opens,
        Step::PreadOpened(..) | Step::Close(_) => *step = Step::Bad(0),
        _ => {}
    }
}

/// A program and a graph of it. `follows`: the program does what the graph calls certain; it may leave at a weak edge. Otherwise the
/// graph has no effects but lies about everything else.
fn case(follows: bool) -> impl Strategy<Value = (Vec<(Step, bool, bool)>, Vec<Step>)> {
    let flags = (prop::bool::weighted(0.15), prop::bool::weighted(0.15));
    let steps = prop::collection::vec((step(), flags, 0u32..10), 1..40);
    (steps, any::<bool>()).prop_map(move |(mut steps, in_stairs)| {
        let (mut writes, mut opens) = ([0; FILES], 0);
        for (step, ..) in &mut steps {
            settle(step, &mut opens);
            if let Step::Pwrite(f, bytes, offset) = step
                && in_stairs
            {
                (*bytes, *offset) = stair(writes[*f]);
                writes[*f] += 1;
            }
        }
        let mut plan = Vec::new();
        let mut program = Vec::new();
        let mut left = false;
        for (step, (weak, late), luck) in steps {
            let effects = matches!(
                step,
                Step::Pwrite(..)
                    | Step::Write(..)
                    | Step::Fsync(_)
                    | Step::Unlink(_)
                    | Step::Mkdir(_)
                    | Step::Rename(..)
                    | Step::Copy(..)
                    | Step::Close(_)
            );
            if follows {
                // A copy's read may be short or fail, and then its write has other bytes or does not come: the graph is
                // right only if the function may leave there, which `Link` does not say. Its write is held back then.
                plan.push((step.clone(), weak, late));
                if !left {
                    program.push(step);
                }
                left |= weak && luck == 0;
            } else {
                if !effects && luck < 8 {
                    plan.push((step.clone(), true, late));
                }
                if luck != 1 {
                    program.push(step);
                }
            }
        }
        (plan, program)
    })
}

/// A step that looks at what file `f` holds, or may.
fn looks_at(step: &Step, f: usize) -> bool {
    match step {
        Step::Pread(g, ..) | Step::Read(g, _) | Step::Fstat(g) | Step::Copy(g, ..) => *g == f,
        Step::Stat(_) | Step::Statx(_) | Step::PreadOpened(..) => true,
        _ => false,
    }
}

/// A program that does all that its graph calls certain, but not only that, nor with the bytes that it says: some writes have others, and some calls come
/// besides. What a write changes unforeseen is not looked at before the last write to the file: that one may have been made ahead already.
fn strayed() -> impl Strategy<Value = (Vec<(Step, bool, bool)>, Vec<Step>)> {
    let luck = prop::collection::vec(0u32..12, 40);
    (case(true), luck).prop_map(|((plan, program), luck)| {
        let mut strayed = Vec::new();
        for (n, mut step) in program.iter().cloned().enumerate() {
            let behind = &program[n + 1..];
            if let Step::Pwrite(f, bytes, offset) = &mut step {
                let writes = |s: &Step| {
                    matches!(s, Step::Pwrite(g, ..) | Step::Write(g, _) | Step::Copy(_, g, ..) if g == f)
                };
                let last = behind.iter().rposition(writes).unwrap_or(0);
                let unseen = !behind[..last].iter().any(|s| looks_at(s, *f));
                match luck[n] {
                    0..3 if unseen => bytes.iter_mut().for_each(|b| *b = !*b),
                    3..6 if unseen => strayed.push(Step::Pwrite(*f, vec![n as u8; 200], *offset + 50)),
                    _ => {}
                }
            }
            if luck[n] == 6 {
                strayed.push(Step::Pread(FILES - 1, 111, n as i64));
            }
            strayed.push(step);
        }
        (plan, strayed)
    })
}

/// `right`: the graph must be found right, too. Not where little is looked ahead: a call that is not ready yet may then be taken for left out, if one like it comes
/// later.
fn compare(
    plan: &[(Step, bool, bool)],
    program: &[Step],
    graph: impl Fn() -> (Graph<Context>, Stairs),
    right: bool,
) -> Result<u64, TestCaseError> {
    let right = right && looks_far(plan);
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    let (expected, changes, _, _) = run(&at("serial"), Engine::Serial, plan, program, graph());
    let files = tree(&at("serial"));
    let mut ahead = 0;
    for (engine, n) in [(Engine::Uring, "uring"), (Engine::Threads, "threads")] {
        let (seen, told, counts, problems) = run(&at(n), engine, plan, program, graph());
        let first = expected.iter().zip(&seen).position(|(a, b)| a != b);
        prop_assert!(
            expected == seen,
            "{engine:?}: result {first:?} differs; {problems:?}; {counts}"
        );
        prop_assert!(
            orders(&changes) == orders(&told),
            "{engine:?}: names changed in another order, {changes:?} and {told:?}; {counts}"
        );
        let differ: Vec<_> = files
            .iter()
            .zip(&tree(&at(n)))
            .filter(|(a, b)| a != b)
            .map(|(a, _)| a.0.clone())
            .collect();
        prop_assert!(
            files == tree(&at(n)),
            "{engine:?}: {differ:?} differ; {counts}"
        );
        prop_assert!(
            counts.unclaimed_effects == 0 && (problems.is_empty() || !right),
            "{engine:?}: {problems:?}; {counts}"
        );
        ahead += counts.hits;
    }
    Ok(ahead)
}

/// The same cases every time; `OUTRIDER_GRAPH_CASES` asks for more of them.
fn property<S: Strategy>(
    cases: u32,
    strategy: S,
    compare: impl Fn(S::Value) -> Result<u64, TestCaseError>,
) {
    let cases = std::env::var("OUTRIDER_GRAPH_CASES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(cases);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        ProptestConfig {
            cases,
            failure_persistence: None,
            ..ProptestConfig::default()
        },
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let used = std::cell::Cell::new(0);
    runner
        .run(&strategy, |case| {
            used.set(used.get() + compare(case)?);
            Ok(())
        })
        .unwrap();
    // It did look ahead, or nothing was shown.
    assert!(used.get() > u64::from(cases), "{} results used", used.get());
}

fn generator() -> (Graph<Context>, Stairs) {
    (Graph::generator("random", foreseen), Stairs::new())
}

#[test]
fn programs_that_follow_their_graph_are_as_without_it() {
    in_child("programs_that_follow_their_graph_are_as_without_it", || {
        property(100, case(true), |(plan, program)| {
            compare(&plan, &program, generator, true)
        });
    });
}

#[test]
fn programs_that_do_not_follow_their_graph_are_as_without_it() {
    let name = "programs_that_do_not_follow_their_graph_are_as_without_it";
    in_child(name, || {
        property(100, case(false), |(plan, program)| {
            compare(&plan, &program, generator, false)
        });
    });
}

#[test]
fn programs_that_stray_from_their_graph_are_as_without_it() {
    let name = "programs_that_stray_from_their_graph_are_as_without_it";
    in_child(name, || {
        property(200, strayed(), |(plan, program)| {
            compare(&plan, &program, generator, false)
        });
    });
}

/// From now on some calls of this thread, and of those that it starts, fail for a moment: a write at an odd offset, and a change of names whose path lies at
/// certain addresses.
fn fail_for_a_moment() {
    const ERRNO: u32 = 0x0005_0000;
    let step = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let (load, equal, any_of, give) = (0x20, 0x15, 0x45, 0x06);
    let mut program = [
        step(load, 0, 0, 0),
        step(equal, libc::SYS_pwrite64 as u32, 0, 2),
        // The low words of the fourth argument and of the second.
        step(load, 16 + 3 * 8, 0, 0),
        step(any_of, 1, 6, 5),
        step(equal, libc::SYS_mkdirat as u32, 2, 0),
        step(equal, libc::SYS_unlinkat as u32, 1, 0),
        step(equal, libc::SYS_renameat2 as u32, 0, 2),
        step(load, 16 + 8, 0, 0),
        step(any_of, 0x400, 2, 0),
        step(give, 0x7fff_0000, 0, 0),
        step(give, ERRNO | libc::EINTR as u32, 0, 0),
        step(give, ERRNO | libc::ENOMEM as u32, 0, 0),
    ];
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

/// The program's own thread makes again what has failed in one that makes its calls ahead.
#[test]
fn programs_whose_calls_ahead_fail_for_a_moment_are_as_without_their_graph() {
    let name = "programs_whose_calls_ahead_fail_for_a_moment_are_as_without_their_graph";
    in_child(name, || {
        let (started, wait) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let first = std::thread::spawn(move || {
            fail_for_a_moment();
            // Threads of the pool are started by this one, and by each other; one stays as long as the scope.
            let nothing = Graph::generator("nothing", |_: &(), _| Next::End);
            let nothing = nothing.engine(Engine::Threads);
            let scope = nothing.enter_prepared(&());
            started.send(()).unwrap();
            ended.recv().unwrap_err();
            drop(scope);
        });
        wait.recv().unwrap();
        property(200, case(true), |(plan, program)| {
            compare(&plan, &program, generator, true)
        });
        drop(end);
        first.join().unwrap();
    });
}

/// A program with loops: steps, of which some may be its last or are known late, and loops of them.
#[derive(Clone, Debug)]
enum Code {
    Step(Step, bool, bool),
    /// Passed so often, each time with offsets moved on.
    Loop(u64, Vec<Code>),
}

fn code() -> impl Strategy<Value = Vec<Code>> {
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.1));
    let one = (step(), flags).prop_map(|(s, (weak, late))| Code::Step(s, weak, late));
    let tree = one.prop_recursive(3, 24, 5, |inner| {
        (1u64..6, step(), prop::collection::vec(inner, 0..5)).prop_map(|(n, first, mut body)| {
            // Each loop has a head of its own.
            body.insert(0, Code::Step(first, false, false));
            Code::Loop(n, body)
        })
    });
    prop::collection::vec(tree, 1..6).prop_map(|mut code| {
        settle_all(&mut code, &mut 0);
        code
    })
}

/// A loop is passed at least once, so as many opens lie before a step as are written before it, or more.
fn settle_all(code: &mut [Code], opens: &mut usize) {
    for c in code {
        match c {
            Code::Step(step, ..) => settle(step, opens),
            Code::Loop(_, body) => settle_all(body, opens),
        }
    }
}

/// Bytes that offsets move on with each pass of the innermost loop.
const PASS: i64 = 1777;

/// Adds `code` to a graph; `open` are the edges that lead to what comes next (from where, and whether weak). The steps go to
/// `steps`, in the order of the nodes.
fn add(
    b: &mut Builder<Context>,
    code: &[Code],
    mut open: (Node, bool),
    steps: &mut Vec<(Step, bool, bool)>,
) -> (Node, bool) {
    let connect = |b: &mut Builder<Context>, open: (Node, bool), to: Node| match open {
        (from, true) => b.weak_edge(from, to),
        (from, false) => b.edge(from, to),
    };
    for c in code {
        match c {
            Code::Step(step, weak, late) => {
                let n = steps.len();
                steps.push((step.clone(), *weak, *late));
                let node = |b: &mut Builder<Context>, part: u64| {
                    let at = Context::op(step, part);
                    let node = b.call(&format!("{n}.{part}"), at, move |c: &Context, e: &[u64]| {
                        let (step, _, late) = &c.foreseen[n];
                        let mut asked = c.asked.borrow_mut();
                        asked[n] += 1;
                        if *late && asked[n] < 3 && part == 0 {
                            return None;
                        }
                        if let Step::Pwrite(f, ..) = step
                            && let Some((bytes, offset)) = c.stairs.get(&(n, e.to_vec()))
                        {
                            return Some(Op::Pwrite {
                                fd: c.fds[*f],
                                data: Data::Bytes(bytes),
                                offset: *offset,
                            });
                        }
                        let pass = e.last().copied().unwrap_or(0) as i64;
                        call(c, step, part, pass * PASS)
                    });
                    // Whatever leads to it: it is known that it may have to wait.
                    b.held(node);
                    node
                };
                let first = node(b, 0);
                connect(b, open, first);
                open = (first, *weak);
                if let Step::Copy(..) = step {
                    let write = node(b, 1);
                    b.link(first);
                    b.edge(first, write);
                    open = (write, *weak);
                }
            }
            Code::Loop(n, body) => {
                let n = *n;
                let first = steps.len();
                let end = add(b, body, open, steps);
                let again = b.branch(&format!("again {first}"), move |_: &Context, e: &[u64]| {
                    Some(usize::from(e[e.len() - 1] + 1 >= n))
                });
                connect(b, end, again);
                let head = b.find(&format!("{first}.0")).unwrap();
                b.back_edge(again, head);
                open = (again, false);
            }
        }
    }
    open
}

impl Context {
    fn op(step: &Step, part: u64) -> Kind {
        match step {
            Step::Pread(..) | Step::PreadOpened(..) | Step::Bad(_) => Kind::Pread,
            Step::Copy(..) if part == 0 => Kind::Pread,
            Step::Copy(..) | Step::Pwrite(..) => Kind::Pwrite,
            Step::Read(..) => Kind::Read,
            Step::Write(..) => Kind::Write,
            Step::Lseek(..) => Kind::Lseek,
            Step::Fstat(_) => Kind::Fstat,
            Step::Fsync(_) => Kind::Fsync,
            Step::Stat(_) => Kind::Fstatat,
            Step::Unlink(_) => Kind::Unlinkat,
            Step::Mkdir(_) => Kind::Mkdirat,
            Step::Rename(..) => Kind::Renameat,
            Step::List => Kind::Getdents,
            Step::Statx(_) => Kind::Statx,
            Step::Open(..) => Kind::Openat,
            Step::Close(_) => Kind::Close,
        }
    }
}

/// A program with loops as it runs.
#[derive(Default)]
struct Unrolled {
    program: Vec<Step>,
    /// Of all that it would write if it did not leave.
    stairs: Stairs,
    /// Writes of each file so far.
    writes: [i64; FILES],
    /// Passes of the loops at hand.
    passes: Vec<u64>,
}

impl Unrolled {
    /// Adds what `code` calls, until the `leave`-th time that it may leave. `first` is the number of its first step; says that of the next.
    fn add(&mut self, code: &[Code], mut first: usize, in_stairs: bool, leave: &mut i32) -> usize {
        for c in code {
            match c {
                Code::Step(step, weak, _) => {
                    let mut step = step.clone();
                    let pass = self.passes.last().copied().unwrap_or(0) as i64;
                    match &mut step {
                        Step::Pwrite(f, bytes, offset) if in_stairs => {
                            let stair = stair(self.writes[*f]);
                            self.writes[*f] += 1;
                            let place = (first, self.passes.clone());
                            self.stairs.insert(place, stair.clone());
                            (*bytes, *offset) = stair;
                        }
                        Step::Pread(_, _, o)
                        | Step::PreadOpened(_, _, o)
                        | Step::Pwrite(_, _, o)
                        | Step::Copy(_, _, _, o) => {
                            *o += pass * PASS;
                        }
                        _ => {}
                    }
                    if *leave > 0 {
                        self.program.push(step);
                    }
                    *leave -= i32::from(*weak);
                    first += 1;
                }
                Code::Loop(n, body) => {
                    let mut next = first;
                    for pass in 0..*n {
                        self.passes.push(pass);
                        next = self.add(body, first, in_stairs, leave);
                        self.passes.pop();
                    }
                    first = next;
                }
            }
        }
        first
    }
}

/// FA1, FA2: random graphs of nodes with nested loops, links, weak edges and nodes that are not ready at first.
#[test]
fn programs_with_nested_loops_are_as_without_their_graph() {
    in_child(
        "programs_with_nested_loops_are_as_without_their_graph",
        || {
            property(
                100,
                (code(), 1i32..12, any::<bool>()),
                |(code, leave, in_stairs)| {
                    let mut unrolled = Unrolled::default();
                    unrolled.add(&code, 0, in_stairs, &mut leave.clone());
                    let graph = || {
                        let mut b = Builder::new("random");
                        let mut steps = Vec::new();
                        let start = (b.start(), false);
                        let open = add(&mut b, &code, start, &mut steps);
                        let end = b.end();
                        match open {
                            (from, true) => b.weak_edge(from, end),
                            (from, false) => b.edge(from, end),
                        }
                        (b.build().unwrap(), steps)
                    };
                    let plan = graph().1;
                    let with_stairs = || (graph().0, unrolled.stairs.clone());
                    compare(&plan, &unrolled.program, with_stairs, true)
                },
            );
        },
    );
}
