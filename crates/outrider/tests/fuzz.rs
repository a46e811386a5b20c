//! Differential fuzzing: random sequences of file operations give the same results with and without us.
//!
//! SPEC CP1 (unmodified programs) and B11 (speculation that is wrong costs time, never correctness).
//! `tests/programs/fuzz.c` makes the operations and logs all that a program can see of them; the log
//! depends on the seed alone, so that any line that differs under `outrider run` is our doing.
//!
//! The size of a run is set from outside:
//!
//!     OUTRIDER_FUZZ_OPS=2000000 cargo test --test fuzz            # default 100000
//!     OUTRIDER_FUZZ_SEED=17 OUTRIDER_FUZZ_OPS=5000 cargo test --test fuzz   # seed 17 alone
//!     OUTRIDER_FUZZ_JOBS=16 cargo test --test fuzz                # sequences at a time, default 4 for each processor
//!
//! Nine tenths of the time a sequence on a disk waits for it: for what is written out so that reads are cold, and for fsync. As root all but a few sequences
//! therefore work in a file system whose disk lies in memory. Reads there are cold, are told and fetched just the same.

mod support;

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{compile, outrider, repository, scratch};

/// Operations of one sequence: long enough for state to build up, short enough to read the log.
const OPS_PER_SEED: u64 = 5_000;

const DEFAULT_OPS: u64 = 100_000;

/// One sequence takes a second or two; one that takes this long hangs.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// One of so many sequences stays on the disk that holds the build: there fetching is still under way when the program is done, which it seldom is in memory.
const ON_DISK: u64 = 16;

/// Bytes of the disk in memory, of which only what files take is kept, and what must be available.
const DISK_SIZE: u64 = 4 << 30;
const AVAILABLE: u64 = 2 * DISK_SIZE;

/// Every mode. What the modes do to the cache differs widely, what the program sees does not: even
/// `os-only`, which drops hints, returns from each hint what the kernel would have.
const MODES: &[&str] = &[
    "predict+opt",
    "fetchall+opt",
    "predict",
    "app-only",
    "os-only",
];

/// The program in the forms in which libc is reached: plain names; `__read_chk` and its kind; 64-bit
/// names with run-time object sizes.
const VARIANTS: &[(&str, &[&str])] = &[
    ("fuzz-plain", &["-O1"]),
    (
        "fuzz-fortified",
        &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"],
    ),
    (
        "fuzz-fortified-64",
        &[
            "-O2",
            "-U_FORTIFY_SOURCE",
            "-D_FORTIFY_SOURCE=3",
            "-D_FILE_OFFSET_BITS=64",
        ],
    ),
];

const PARTS: &[&str] = &["core", "rw", "fd", "map", "stdio", "names", "proc"];

/// Which program a seed runs and how: all of it follows from the seed, so that a seed reproduces.
#[derive(Clone, Copy)]
struct Sequence {
    seed: u64,
    ops: u64,
}

impl Sequence {
    fn variant(self) -> usize {
        (self.seed % VARIANTS.len() as u64) as usize
    }

    fn engine(self) -> &'static str {
        ["auto", "uring", "readahead"][(self.seed / VARIANTS.len() as u64 % 3) as usize]
    }

    /// Every fifth sequence is several at once, in threads.
    fn threads(self) -> Option<u64> {
        (self.seed % 5 == 4).then_some(4)
    }

    fn argv(self, directory: &Path) -> Vec<String> {
        let mut argv = vec![
            program(self.variant()).display().to_string(),
            self.seed.to_string(),
            self.ops.to_string(),
            directory.display().to_string(),
        ];
        if let Some(n) = self.threads() {
            argv.extend(["--threads".to_string(), n.to_string()]);
        }
        argv
    }
}

fn program(variant: usize) -> PathBuf {
    let (name, flags) = VARIANTS[variant];
    let parts: Vec<String> = PARTS
        .iter()
        .map(|part| {
            repository()
                .join(format!("tests/programs/fuzz_{part}.c"))
                .display()
                .to_string()
        })
        .collect();
    let mut all: Vec<&str> = parts.iter().map(String::as_str).collect();
    all.extend(flags);
    all.push("-pthread");
    compile("fuzz", name, &all)
}

/// Where sequences work: on the disk that holds the build, and in memory if that can be.
struct Places {
    disk: PathBuf,
    memory: Option<PathBuf>,
}

impl Places {
    /// The disk only.
    fn disk() -> Places {
        Places {
            disk: scratch(),
            memory: None,
        }
    }

    /// In memory, too: for this thread, and for threads and programs that it starts from now on.
    fn all() -> Places {
        let memory = disk_in_memory()
            .inspect_err(|e| println!("no disk in memory, and so ten times slower: {e}"));
        Places {
            memory: memory.ok(),
            ..Places::disk()
        }
    }

    fn of(&self, sequence: Sequence) -> &Path {
        match &self.memory {
            Some(memory) if !sequence.seed.is_multiple_of(ON_DISK) => memory,
            _ => &self.disk,
        }
    }
}

/// A file system whose disk is a file in memory. Files of tmpfs itself are never cold. Nobody else sees it: it goes with the last process of a mount namespace that
/// only this thread and its descendants are in.
fn disk_in_memory() -> Result<PathBuf, String> {
    let available = fs::read_to_string("/proc/meminfo").unwrap();
    let available = available.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?
            .split_whitespace()
            .next()
    });
    let available = available.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) << 10;
    if available < AVAILABLE {
        return Err(format!("{available} bytes are available of {AVAILABLE}"));
    }
    // SAFETY: it affects this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(format!("unshare: {}", io::Error::last_os_error()));
    }
    // Without a journal nothing waits for one; with `discard` the memory of what is removed is given back.
    let script = "mount --make-rprivate / && mount -t tmpfs memory \"$1\" && cd \"$1\" && mkdir files && \
        truncate -s \"$2\" image && mkfs.ext4 -q -F -O ^has_journal image && \
        mount -o loop,noatime,discard image files";
    let at = scratch().join("memory");
    fs::create_dir_all(&at).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&at);
    let done = command.arg(DISK_SIZE.to_string()).output().unwrap();
    match done.status.success() {
        true => Ok(at.join("files")),
        false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
    }
}

/// What all runs under us told the service and had fetched: without it they would show nothing.
const FIGURES: [&str; 2] = ["events", "prefetched_bytes"];
static SEEN: [AtomicU64; FIGURES.len()] = [const { AtomicU64::new(0) }; FIGURES.len()];

/// How a sequence is run.
enum Under<'a> {
    Nothing,
    Mode(&'a str),
    Preload(&'a Path),
}

/// Runs a sequence in a directory of its own below `base` and returns the log. What a report says of it is added to `SEEN`.
fn run(sequence: Sequence, base: &Path, name: &str, under: &Under) -> Result<String, String> {
    let place = base.join(format!("fuzz-{}-{name}", sequence.seed));
    let directory = place.join("files");
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(&directory).unwrap();
    let argv = sequence.argv(&directory);
    let mut command = match under {
        Under::Mode(mode) => {
            let mut command = Command::new(outrider());
            command.args(["run", "--mode", mode, "--engine", sequence.engine()]);
            command.arg(format!("--report={}", place.join("report").display()));
            command.arg("--").args(&argv);
            command
        }
        _ => {
            let mut command = Command::new(&argv[0]);
            command.args(&argv[1..]);
            command
        }
    };
    command.env_remove("LD_PRELOAD");
    if let Under::Preload(library) = under {
        command.env("LD_PRELOAD", library);
    }
    let (out, err) = (place.join("log"), place.join("stderr"));
    command
        .stdin(Stdio::null())
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .process_group(0);
    let status = finish(command)?;
    // Bytes, not text: a log that was overwritten must still be shown.
    let log = String::from_utf8_lossy(&fs::read(&out).unwrap()).into_owned();
    let complaints = fs::read_to_string(&err).unwrap_or_default();
    if let Ok(report) = fs::read(place.join("report")) {
        let report: serde_json::Value =
            serde_json::from_slice(&report).map_err(|e| format!("the report: {e}"))?;
        for (seen, figure) in SEEN.iter().zip(FIGURES) {
            let n = report["totals"][figure].as_u64().unwrap_or_default();
            seen.fetch_add(n, Ordering::Relaxed);
        }
    }
    let _ = fs::remove_dir_all(&place);
    Ok(format!("{log}{complaints}{status}\n"))
}

/// Waits, but not for ever; kills the whole process group of a run that hangs.
fn finish(mut command: Command) -> Result<ExitStatus, String> {
    let mut child = command.spawn().expect("the command starts");
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Ok(status);
        }
        if began.elapsed() > TIME_LIMIT {
            let group = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            let _ = child.wait();
            return Err(format!(
                "hangs: not finished after {} s",
                TIME_LIMIT.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The first line in which two logs differ, with what came before it.
fn divergence(plain: &str, other: &str) -> Option<String> {
    if plain == other {
        return None;
    }
    const CONTEXT: usize = 8;
    let (a, b): (Vec<&str>, Vec<&str>) = (plain.lines().collect(), other.lines().collect());
    let at = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let mut text = String::new();
    for line in &a[at.saturating_sub(CONTEXT)..at] {
        text += &format!("        {line}\n");
    }
    text += &format!("  plain {}\n", a.get(at).unwrap_or(&"(end of log)"));
    text += &format!("  other {}\n", b.get(at).unwrap_or(&"(end of log)"));
    let more = a.iter().zip(&b).skip(at).filter(|(x, y)| x != y).count();
    text += &format!(
        "  line {} of {}; {more} lines differ in place\n",
        at + 1,
        a.len()
    );
    Some(text)
}

/// How often what differed is run again, on both sides.
const REPEATS: usize = 4;

/// Runs a sequence without us and in each mode. Where a mode's log differs, the run without us is
/// repeated, which checks the oracle: if that differs from itself, the sequence shows nothing about us
/// and the fuzzer is at fault.
fn compare(sequence: Sequence, places: &Places) -> Vec<String> {
    let seed = sequence.seed;
    let base = places.of(sequence);
    let again = format!(
        "  reproduce: OUTRIDER_FUZZ_SEED={seed} OUTRIDER_FUZZ_OPS={} cargo test --test fuzz random\n         or: {}",
        sequence.ops,
        sequence.argv(Path::new("EMPTY-DIR")).join(" "),
    );
    let plain = match run(sequence, base, "plain", &Under::Nothing) {
        Ok(log) => log,
        Err(e) => return vec![format!("seed {seed}, without us, {e}\n{again}")],
    };
    if !plain.ends_with(&format!("end\n{}\n", ExitStatus::default())) {
        let tail = plain.lines().rev().take(3).collect::<Vec<_>>();
        return vec![format!(
            "seed {seed}: the fuzzer itself fails: {tail:?}\n{again}"
        )];
    }
    let under = |mode: &str| match run(sequence, base, mode, &Under::Mode(mode)) {
        Ok(log) => divergence(&plain, &log),
        Err(e) => Some(format!("  {e}\n")),
    };
    let differing: Vec<_> = MODES
        .iter()
        .filter_map(|&mode| Some((mode, under(mode)?)))
        .collect();
    if differing.is_empty() {
        return Vec::new();
    }
    for _ in 0..REPEATS {
        let text = match run(sequence, base, "repeated", &Under::Nothing) {
            Ok(log) => divergence(&plain, &log),
            Err(e) => Some(format!("  {e}\n")),
        };
        if let Some(text) = text {
            return vec![format!(
                "seed {seed}: the fuzzer itself is not deterministic\n{text}{again}"
            )];
        }
    }
    let engine = sequence.engine();
    differing
        .into_iter()
        .map(|(mode, text)| {
            let more = (0..REPEATS).filter(|_| under(mode).is_some()).count();
            format!(
                "seed {seed}, mode {mode}, engine {engine}, {} of {}\n{text}{again}",
                1 + more,
                1 + REPEATS
            )
        })
        .collect()
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

/// CP1, B11: a program cannot tell from any result of any file operation whether we are there.
#[test]
fn random_operations_give_the_same_results() {
    let total = from_environment("OUTRIDER_FUZZ_OPS").unwrap_or(DEFAULT_OPS);
    let first = from_environment("OUTRIDER_FUZZ_SEED").unwrap_or(1);
    let count = total.div_ceil(OPS_PER_SEED);
    let ops = total.min(OPS_PER_SEED);
    let places = Places::all();
    outrider(); // says what is missing before anything is compiled
    let next = AtomicU64::new(first);
    let found = Mutex::new(Vec::new());
    // More than processors: a sequence waits for the disk and for its children most of the time.
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get().min(4));
    let workers = from_environment("OUTRIDER_FUZZ_JOBS").unwrap_or(4 * processors as u64);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        break;
                    }
                    // Before the lock is taken: else there would be one sequence at a time.
                    let different = compare(Sequence { seed, ops }, &places);
                    found.lock().unwrap().extend(different);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(
        found.is_empty(),
        "{} divergences\n\n{}",
        found.len(),
        found.join("\n\n")
    );
    let seen = SEEN.each_ref().map(|n| n.load(Ordering::Relaxed));
    println!("{FIGURES:?}: {seen:?}");
    assert!(seen.iter().all(|n| *n > 0), "{FIGURES:?}: {seen:?}");
}

/// The fuzzer can fail: libraries that each do one thing that we must not do are all found out, and
/// one that does nothing is not.
#[test]
fn faults_are_found() {
    let faults = [
        ("nothing", false),
        ("every fiftieth pread is a byte short", true),
        ("errno changes on success", true),
        ("POSIX locks are lost by a second descriptor's close", true),
        ("a descriptor is kept", true),
        ("the position moves", true),
    ];
    // A seed whose sequence is the plain program's, in one thread.
    let sequence = Sequence {
        seed: 42,
        ops: OPS_PER_SEED,
    };
    let base = Places::disk().disk;
    let plain = run(sequence, &base, "oracle", &Under::Nothing).unwrap();
    for (number, (fault, is_fault)) in faults.into_iter().enumerate() {
        let define = format!("-DFAULT={number}");
        let library = compile(
            "fuzz_fault",
            &format!("fault{number}.so"),
            &["-shared", "-fPIC", &define],
        );
        let log = run(
            sequence,
            &base,
            &format!("fault{number}"),
            &Under::Preload(&library),
        )
        .unwrap();
        assert_eq!(divergence(&plain, &log).is_some(), is_fault, "{fault}");
    }
}
