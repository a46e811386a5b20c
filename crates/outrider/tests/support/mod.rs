//! The harness behind every transparency claim: run a command without Outrider and with it, in the
//! same place, on the same cold files, and compare everything an observer could see.
//!
//! What is compared: standard output, standard error, how the command ended (exit code or signal),
//! which processes it left behind, and the tree it left: names, types, contents, modes, owners, link
//! counts, symlink targets, sizes, extended attributes, and modification times that were set or kept.
//!  Both runs happen under the same path, one after the other, because paths appear in output.
//!
//! A command that differs from itself without us proves nothing. So on a difference the plain run is
//! repeated: where the plain runs agree with each other, the difference is ours. Where they do not, both are run
//! again, and ours has to agree with one of the plain ones; a case that never does is reported as not deterministic.
#![allow(dead_code)] // each test binary uses its part

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use serde_json::Value;

/// The modes a case runs in: the default one, and the one that prefetches hardest.
pub const MODES: &[&str] = &["predict+opt", "fetchall+opt"];

/// No case takes longer than this without us; one that does with us hangs.
const TIME_LIMIT_SECONDS: u32 = 300;

/// How often something is tried that a busy machine may prevent: prefetching when the helper got no processor before
/// the program was over, a script whose outcome depends on who came first.
const ATTEMPTS: usize = 5;

/// How long a test waits for what must come about, seconds.
pub const PATIENCE: f64 = 120.0;

// ---------------------------------------------------------------------------------------------
// Where things are

/// The repository's root, found upwards from this package.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The command under test: `$OUTRIDER_BIN`, or the release build that `make build` leaves, or this
/// test build if the library lies beside it. The library must be there: without it every case would
/// pass and show nothing.
pub fn outrider() -> PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            if let Some(named) = std::env::var_os("OUTRIDER_BIN") {
                return PathBuf::from(named);
            }
            let mut candidates = Vec::new();
            if let Some(target) = std::env::var_os("CARGO_TARGET_DIR") {
                candidates.push(PathBuf::from(target).join("release/outrider"));
            }
            candidates.push(repository().join("target/release/outrider"));
            candidates.push(PathBuf::from(env!("CARGO_BIN_EXE_outrider")));
            for candidate in &candidates {
                if candidate.is_file() && candidate.with_file_name("liboutrider.so").is_file() {
                    return candidate.canonicalize().unwrap();
                }
            }
            panic!(
                "no outrider with liboutrider.so beside it in {candidates:?}: `make build` first"
            );
        })
        .clone()
}

/// Scratch space of this test binary, on the disk that holds the build (never tmpfs: files there are
/// not ours to prefetch). Scratch of earlier runs that have ended is removed.
pub fn scratch() -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let base = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(base).unwrap();
        for entry in fs::read_dir(base).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix("run-");
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                remove(&entry.path());
            }
        }
        let dir = base
            .canonicalize()
            .unwrap()
            .join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    })
    .clone()
}

/// Removes a directory of a test, if it is there, with what is in it; but nothing of what is mounted there. A test that fails may leave a mount behind,
/// through which anything on the machine can be reached.
pub fn remove(dir: &Path) {
    // Those made last come last.
    for at in mounted_at_or_below(dir).into_iter().rev() {
        let path = CString::new(at.as_os_str().as_bytes()).unwrap();
        // SAFETY: a text that ends with a zero byte.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
    let left = mounted_at_or_below(dir);
    assert!(left.is_empty(), "{left:?} are mounted: nothing is removed");
    let _ = fs::remove_dir_all(dir);
}

/// Mount points in a directory, and itself if it is one.
fn mounted_at_or_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(dir) = dir.canonicalize() else {
        return Vec::new();
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = mounts.lines().filter_map(|l| l.split(' ').nth(4));
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let plain = |point: &str| {
        escapes
            .iter()
            .fold(point.to_owned(), |p, (from, to)| p.replace(from, to))
    };
    let points = points.map(|point| PathBuf::from(plain(point)));
    points.filter(|point| point.starts_with(&dir)).collect()
}

/// Says that something was not tested, past the capture of test output: a skip is never a pass.
pub fn skip(name: &str, reason: &str) {
    let required =
        std::env::var_os("CI").is_some() || std::env::var_os("OUTRIDER_REQUIRE_ALL").is_some();
    assert!(
        !required,
        "{name}: {reason}, and nothing may be skipped here"
    );
    let _ = writeln!(std::io::stderr(), "SKIP {name}: {reason}");
}

/// Like [`skip`], for what no package can provide (a privilege, a kernel feature): never a failure.
pub fn skip_unprivileged(name: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {name}: {reason}");
}

/// The search path of every run. The system's own programs come first: version managers put shims
/// (shell scripts) before them, and it is the real programs that are to be tested.
fn search_path() -> OsString {
    let mut path = OsString::from("/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin");
    for tail in [
        std::env::var_os("PATH"),
        Some(OsString::from("/usr/local/go/bin:/usr/lib/go/bin")),
    ] {
        path.push(":");
        path.push(tail.unwrap_or_default());
    }
    path
}

/// Whether a program is on the search path.
pub fn have(program: &str) -> bool {
    std::env::split_paths(&search_path()).any(|dir| {
        fs::metadata(dir.join(program))
            .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

// ---------------------------------------------------------------------------------------------
// C programs

/// Compiles `tests/programs/NAME.c` once per test binary and returns the executable.
pub fn program(name: &str) -> PathBuf {
    compile(name, name, &["-O1", "-pthread"])
}

/// What tells the compiler, and later the dynamic linker, in which directory a library is.
pub fn where_it_is(library: &Path) -> [String; 2] {
    let place = library.parent().unwrap().display();
    [format!("-L{place}"), format!("-Wl,-rpath,{place}")]
}

/// Compiles `tests/programs/NAME.c` with the given flags to `output`.
pub fn compile(name: &str, output: &str, flags: &[&str]) -> PathBuf {
    let source = repository()
        .join("tests/programs")
        .join(format!("{name}.c"));
    let dir = scratch().join("programs");
    fs::create_dir_all(&dir).unwrap();
    let target = dir.join(output);
    // Two tests may want the same program at once: each builds under a name of its own, and the
    // rename makes whichever comes last win with identical bytes.
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(|e| e.into_inner());
    if target.exists() {
        return target;
    }
    let result = Command::new("cc")
        .args(["-std=gnu11", "-g", "-Wall", "-D_GNU_SOURCE", "-o"])
        .arg(&target)
        .arg(&source)
        .args(flags)
        .output()
        .expect("a C compiler is needed");
    assert!(
        result.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&result.stderr)
    );
    target
}

// ---------------------------------------------------------------------------------------------
// Data sets

/// Named inputs, made from a seed once per test binary and copied fresh into each run. Large enough
/// to be worth prefetching, small enough to copy a few hundred times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// `bin.dat`: 8 MiB of noise.
    Bin,
    /// `big.dat`: 32 MiB of noise, for programs that read at random or in parallel.
    Big,
    /// `text.txt`: about 6 MiB of lines of words and numbers, unsorted.
    Text,
    /// `a.txt`, `b.txt`: about 3 MiB each, sorted, keyed, half of the keys in common.
    Sorted,
    /// `sparse.dat`: 24 MiB, every other 1 MiB a hole.
    Sparse,
    /// `tree/`: directories with 120 files of 1 to 400 KiB, symlinks, hard links, odd modes.
    Tree,
}

impl Data {
    fn names(self) -> &'static [&'static str] {
        match self {
            Data::Bin => &["bin.dat"],
            Data::Big => &["big.dat"],
            Data::Text => &["text.txt"],
            Data::Sorted => &["a.txt", "b.txt"],
            Data::Sparse => &["sparse.dat"],
            Data::Tree => &["tree"],
        }
    }
}

/// A small generator (splitmix64): the same data on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

/// The directory that holds all data sets.
pub fn data() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch().join("data");
        fs::create_dir_all(&dir).unwrap();
        make_data(&dir);
        // Archivers record modification times: make them the same in every run.
        let touched = Command::new("find")
            .arg(&dir)
            .args([
                "-depth",
                "-exec",
                "touch",
                "-h",
                "-d",
                "@1600000000",
                "{}",
                "+",
            ])
            .status()
            .unwrap();
        assert!(touched.success());
        dir
    })
}

const WORDS: &[&str] = &[
    "stone", "river", "ember", "quill", "north", "sable", "linen", "harbour", "thistle", "copper",
    "winter", "lantern", "meadow", "cinder", "falcon", "orchard",
];

fn make_data(dir: &Path) {
    let mut r = Random(20240417);
    fs::write(dir.join("bin.dat"), r.bytes(8 << 20)).unwrap();
    fs::write(dir.join("big.dat"), r.bytes(32 << 20)).unwrap();

    let mut text = String::new();
    while text.len() < 6 << 20 {
        let v = r.next();
        let w = |shift: u32| WORDS[(v >> shift) as usize % WORDS.len()];
        text.push_str(&format!("{} {} {} {}\n", w(0), v >> 40, w(4), w(8)));
    }
    fs::write(dir.join("text.txt"), text).unwrap();

    for (name, phase) in [("a.txt", 0u64), ("b.txt", 1)] {
        let mut lines = String::new();
        for key in 0..120_000u64 {
            if key % 2 == 0 || key % 4 == 1 + 2 * phase {
                let payload = if key % 6 == 0 { key } else { key * 31 + phase };
                lines.push_str(&format!(
                    "key{key:08} {} {payload}\n",
                    WORDS[key as usize % WORDS.len()]
                ));
            }
        }
        fs::write(dir.join(name), lines).unwrap();
    }

    let sparse = File::create(dir.join("sparse.dat")).unwrap();
    sparse.set_len(24 << 20).unwrap();
    for mib in (0..24u64).step_by(2) {
        use std::os::unix::fs::FileExt;
        sparse.write_all_at(&r.bytes(1 << 20), mib << 20).unwrap();
    }

    let tree = dir.join("tree");
    for d in 0..6 {
        let sub = tree.join(format!("d{d}/inner"));
        fs::create_dir_all(&sub).unwrap();
        for f in 0..20u64 {
            let len = 1024 + (r.next() % 100_000) as usize * (1 + 3 * (f % 2) as usize);
            let body = if f % 3 == 0 {
                r.bytes(len)
            } else {
                let mut s = String::new();
                while s.len() < len {
                    s.push_str(WORDS[r.next() as usize % WORDS.len()]);
                    s.push(if r.next() & 7 == 0 { '\n' } else { ' ' });
                }
                s.into_bytes()
            };
            let path = sub.join(format!("file{f:02}"));
            fs::write(&path, body).unwrap();
            if f == 7 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
                fs::hard_link(&path, tree.join(format!("d{d}/hard"))).unwrap();
                std::os::unix::fs::symlink("inner/file07", tree.join(format!("d{d}/soft")))
                    .unwrap();
                std::os::unix::fs::symlink("nowhere", tree.join(format!("d{d}/dangling"))).unwrap();
            }
        }
    }
}

/// Throws out of the page cache whatever lies in a directory of files, however small it is.
pub fn make_all_cold(dir: &Path) {
    for file in fs::read_dir(dir).unwrap() {
        let file = File::open(file.unwrap().path()).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    }
}

/// Drops the pages of a file, or of every file in a directory, from the cache, writing them back first: the runs must
/// wait for the disk, or there is nothing to prefetch. Best effort: it needs no privilege, and
/// nothing fails where the file system keeps the pages.
pub fn make_cold(path: &Path) {
    let Ok(about) = fs::symlink_metadata(path) else {
        return;
    };
    if about.is_dir() {
        let entries = fs::read_dir(path).into_iter().flatten();
        entries.flatten().for_each(|e| make_cold(&e.path()));
    } else if about.is_file()
        && about.len() >= 64 << 10
        && let Ok(file) = File::open(path)
    {
        let _ = rustix::fs::fdatasync(&file);
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// A file that stays cached: kernels that reclaim ahead of need (DAMON's pageout) take what nobody has mapped, also what was read a moment ago.
pub struct Kept {
    base: *mut libc::c_void,
    len: usize,
}

impl Kept {
    /// Has all of a file cached, from here on until this is dropped.
    pub fn cached(path: &Path) -> Kept {
        let file = File::open(path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        // SAFETY: a new mapping, of which nothing is read.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "{path:?}");
        Kept { base, len }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the mapping of `cached`.
        unsafe { libc::munmap(self.base, self.len) };
    }
}

// ---------------------------------------------------------------------------------------------
// Cases

/// Prepares the working directory, beyond data sets and files.
type Setup = Box<dyn Fn(&Path)>;

/// One command to be run without us and with us.
pub struct Case {
    pub name: String,
    argv: Vec<OsString>,
    data: Vec<Data>,
    files: Vec<(String, String)>,
    setup: Option<Setup>,
    stdin: Option<String>,
    env: Vec<(String, String)>,
    normalise: Vec<fn(String) -> String>,
    unstable: Vec<&'static str>,
    needs: Vec<String>,
    modes: Vec<String>,
    flags: Vec<String>,
    before_outrider: Vec<OsString>,
    expects_events: bool,
    expects_prefetch: bool,
    notice_allowed: bool,
}

impl Case {
    /// A command given as words.
    pub fn argv<S: AsRef<std::ffi::OsStr>>(name: &str, argv: &[S]) -> Case {
        Case {
            name: name.to_string(),
            argv: argv.iter().map(|s| s.as_ref().to_owned()).collect(),
            data: Vec::new(),
            files: Vec::new(),
            setup: None,
            stdin: None,
            env: Vec::new(),
            normalise: Vec::new(),
            unstable: Vec::new(),
            needs: Vec::new(),
            modes: MODES.iter().map(|m| m.to_string()).collect(),
            flags: Vec::new(),
            before_outrider: Vec::new(),
            expects_events: false,
            expects_prefetch: false,
            notice_allowed: false,
        }
    }

    /// A bash script; the shell itself runs under Outrider and so does all that it starts.
    pub fn sh(name: &str, script: &str) -> Case {
        Case::argv(name, &["bash", "-c", script])
    }

    /// A Python program, saved as `main.py` (multiprocessing's spawn needs a file to import).
    pub fn python(name: &str, source: &str) -> Case {
        Case::argv(name, &["python3", "main.py"])
            .file("main.py", source)
            .needs(&["python3"])
    }

    /// A Perl program.
    pub fn perl(name: &str, source: &str) -> Case {
        Case::argv(name, &["perl", "-e", source]).needs(&["perl"])
    }

    /// Data sets to be copied into the working directory.
    pub fn data(mut self, sets: &[Data]) -> Case {
        self.data.extend_from_slice(sets);
        self
    }

    /// A file to be written into the working directory.
    pub fn file(mut self, path: &str, content: &str) -> Case {
        self.files.push((path.to_string(), content.to_string()));
        self
    }

    /// Anything else that must be there before the run.
    pub fn setup(mut self, setup: impl Fn(&Path) + 'static) -> Case {
        self.setup = Some(Box::new(setup));
        self
    }

    /// Standard input from a file of the working directory (otherwise /dev/null).
    pub fn stdin(mut self, path: &str) -> Case {
        self.stdin = Some(path.to_string());
        self
    }

    pub fn env(mut self, key: &str, value: &str) -> Case {
        self.env.push((key.to_string(), value.to_string()));
        self
    }

    /// Rewrites output before it is compared; for process ids, times and addresses only.
    pub fn normalise(mut self, f: fn(String) -> String) -> Case {
        self.normalise.push(f);
        self
    }

    /// Paths (below the working directory, `*` at the end allowed) whose contents and sizes hold
    /// times, process ids or inode numbers. That they exist is still compared.
    pub fn unstable(mut self, paths: &[&'static str]) -> Case {
        self.unstable.extend_from_slice(paths);
        self
    }

    /// Programs without which the case cannot run.
    pub fn needs(mut self, programs: &[&str]) -> Case {
        self.needs.extend(programs.iter().map(|p| p.to_string()));
        self
    }

    /// Runs in these modes instead of [`MODES`].
    pub fn modes(mut self, modes: &[&str]) -> Case {
        self.modes = modes.iter().map(|m| m.to_string()).collect();
        self
    }

    /// More flags for `outrider run`.
    pub fn flags(mut self, flags: &[&str]) -> Case {
        self.flags.extend(flags.iter().map(|f| f.to_string()));
        self
    }

    /// A wrapper around the whole: `WRAPPER… outrider run … -- CMD` against `WRAPPER… CMD`.
    pub fn wrapped<S: AsRef<std::ffi::OsStr>>(mut self, wrapper: &[S]) -> Case {
        self.before_outrider = wrapper.iter().map(|s| s.as_ref().to_owned()).collect();
        self
    }

    /// Reads of ours to see: the report must count events, which shows that the hooks were there.
    /// Whether anything is prefetched is chance where a file is read in order: the kernel's own
    /// readahead on a fast disk may be done before our helper has started.
    pub fn expects_events(mut self) -> Case {
        self.expects_events = true;
        self
    }

    /// The case reads backwards or at random, cold and long enough that something must have been
    /// prefetched in one of its modes at least.
    pub fn expects_prefetch(mut self) -> Case {
        self.expects_events = true;
        self.expects_prefetch = true;
        self
    }

    /// Outrider may say on stderr that the program cannot be hooked (lines `outrider: …`).
    pub fn notice_allowed(mut self) -> Case {
        self.notice_allowed = true;
        self
    }

    fn prepare(&self, work: &Path) {
        remove(work);
        fs::create_dir_all(work).unwrap();
        let sources: Vec<PathBuf> = self
            .data
            .iter()
            .flat_map(|d| d.names())
            .map(|name| data().join(name))
            .collect();
        if !sources.is_empty() {
            let copied = Command::new("cp")
                .arg("-a")
                .arg("--sparse=always")
                .args(&sources)
                .arg(work)
                .status()
                .unwrap();
            assert!(copied.success(), "{}: cannot copy the data sets", self.name);
        }
        for (path, content) in &self.files {
            let path = work.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        if let Some(setup) = &self.setup {
            setup(work);
        }
        make_cold(work);
    }

    /// One run. `mode` is `None` for the plain one.
    fn observe(&self, mode: Option<&str>) -> Outcome {
        let place = scratch().join(&self.name);
        let work = place.join("work");
        let label = mode.unwrap_or("plain");
        // Every run's tree is kept until the case is over: contents are compared on the disk.
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let kept = place.join(format!("{label}-{}", RUNS.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&place).unwrap();
        let began = std::time::SystemTime::now();
        self.prepare(&work);

        let report = place.join(format!("{label}.json"));
        let _ = fs::remove_file(&report);
        let mut argv = self.before_outrider.clone();
        if let Some(mode) = mode {
            argv.extend([
                outrider().into(),
                "run".into(),
                "--mode".into(),
                mode.into(),
            ]);
            argv.extend(self.flags.iter().map(OsString::from));
            let mut flag = OsString::from("--report=");
            flag.push(&report);
            argv.push(flag);
            argv.push("--".into());
        }
        argv.extend(self.argv.iter().cloned());
        let mut outcome = supervise(
            &place,
            label,
            &work,
            &argv,
            self.stdin.as_deref(),
            &self.env,
        );

        if self.notice_allowed && mode.is_some() {
            outcome.stderr = outcome
                .stderr
                .split_inclusive(|b| *b == b'\n')
                .filter(|line| !line.starts_with(b"outrider:"))
                .collect::<Vec<_>>()
                .concat();
        }
        for f in &self.normalise {
            for stream in [&mut outcome.stdout, &mut outcome.stderr] {
                *stream = f(String::from_utf8_lossy(stream).into_owned()).into_bytes();
            }
        }
        if mode.is_some() {
            outcome.report = fs::read(&report)
                .ok()
                .and_then(|json| serde_json::from_slice(&json).ok());
        }
        fs::rename(&work, &kept).unwrap();
        outcome.tree = Tree::read(&kept, began);
        outcome
    }

    /// The first thing that differs, in words.
    fn difference(&self, plain: &Outcome, ours: &Outcome) -> Option<String> {
        if plain.status != ours.status {
            return Some(format!(
                "ended differently: without `{}`, with `{}`; stderr with: {}",
                plain.status,
                ours.status,
                tail(&ours.stderr)
            ));
        }
        if let Some(d) = bytes_difference("stderr", &plain.stderr, &ours.stderr) {
            return Some(d);
        }
        if let Some(d) = bytes_difference("stdout", &plain.stdout, &ours.stdout) {
            return Some(d);
        }
        if plain.left != ours.left {
            return Some(format!(
                "left other processes: without {:?}, with {:?}",
                plain.left, ours.left
            ));
        }
        plain.tree.difference(&ours.tree, &self.unstable)
    }

    /// Runs the case in all its modes. `Err` says what differs.
    pub fn run(&self) -> Result<BTreeMap<String, Outcome>, String> {
        // Tests run side by side, and a case's place is its own.
        static RUNNING: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let running = || RUNNING.lock().unwrap_or_else(|e| e.into_inner());
        let alone = running().insert(self.name.clone());
        assert!(alone, "two cases are named {}", self.name);
        let result = self.run_alone();
        running().remove(&self.name);
        result
    }

    fn run_alone(&self) -> Result<BTreeMap<String, Outcome>, String> {
        remove(&scratch().join(&self.name));
        let plain = self.observe(None);
        if plain.status == "timeout" {
            return Err(format!(
                "{}: runs into the time limit without us",
                self.name
            ));
        }
        let mut outcomes = BTreeMap::new();
        let mut failure = None;
        for mode in &self.modes {
            match self.run_in(mode, &plain) {
                Ok(ours) => outcomes.insert(mode.clone(), ours),
                Err(text) => {
                    failure = Some(text);
                    break;
                }
            };
        }
        for _ in 1..ATTEMPTS {
            if failure.is_some() || !self.expects_prefetch || prefetched(&outcomes) {
                break;
            }
            for mode in &self.modes {
                match self.run_in(mode, &plain) {
                    Ok(ours) => outcomes.insert(mode.clone(), ours),
                    Err(text) => {
                        failure = Some(text);
                        break;
                    }
                };
            }
        }
        if failure.is_none() && self.expects_prefetch && !prefetched(&outcomes) {
            failure = Some(format!("{}: nothing was prefetched in any mode", self.name));
        }
        let place = scratch().join(&self.name);
        match failure {
            Some(text) => Err(format!("{text}\n    (kept in {})", place.display())),
            None => {
                remove(&place);
                outcomes.insert("plain".into(), plain);
                Ok(outcomes)
            }
        }
    }
}

impl Case {
    /// Runs the case in one mode and compares with the plain run.
    fn run_in(&self, mode: &str, plain: &Outcome) -> Result<Outcome, String> {
        let mut failure = String::new();
        let mut others: Vec<Outcome> = Vec::new();
        for _ in 0..ATTEMPTS {
            let ours = self.observe(Some(mode));
            if let Some(difference) = self.difference(plain, &ours)
                && others.iter().all(|o| self.difference(o, &ours).is_some())
            {
                let again = self.observe(None);
                if self.difference(&again, &ours).is_some() {
                    let Some(other) = self.difference(plain, &again) else {
                        return Err(format!("{} [{mode}]: {difference}", self.name));
                    };
                    failure = format!("{}: differs from itself without us ({other})", self.name);
                    others.push(again);
                    continue;
                }
            }
            if self.expects_events && ours.total("events").unwrap_or(0) == 0 {
                failure = format!(
                    "{} [{mode}]: no report, or no events in it: not hooked",
                    self.name
                );
                continue;
            }
            return Ok(ours);
        }
        Err(failure)
    }
}

/// Whether something was prefetched in one of the runs at least.
fn prefetched(outcomes: &BTreeMap<String, Outcome>) -> bool {
    let mut all = outcomes.values();
    all.any(|o| o.total("prefetched_bytes").unwrap_or(0) > 0)
}

/// Runs a script with us or without, which is given a minute, and what the report says.
pub fn script(dir: &Path, ours: bool, text: &str) -> (Output, serde_json::Value) {
    let report = dir.join("report.json");
    let words = ["timeout", "-s", "KILL", "60", "sh", "-c", text];
    let mut command = if ours {
        let flag = format!("--report={}", report.display());
        outrider_run(dir, &[&flag], &words)
    } else {
        let mut command = Command::new(words[0]);
        plain_environment(&mut command, dir);
        command.args(&words[1..]).current_dir(dir);
        command
    };
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = fs::read_to_string(&report).unwrap_or_default();
    let _ = fs::remove_file(&report);
    (output, serde_json::from_str(&text).unwrap_or_default())
}

/// Makes a directory `from` with `files` files `f0`, `f1` … of `mib` MiB, and an empty one `mnt` to see it at; returns the first, and a program that unmounts what it is told,
/// which no library sees.
pub fn to_unmount(dir: &Path, files: u8, mib: usize) -> (PathBuf, PathBuf) {
    let from = dir.join("from");
    fs::create_dir_all(&from).unwrap();
    fs::create_dir_all(dir.join("mnt")).unwrap();
    for i in 0..files {
        fs::write(from.join(format!("f{i}")), vec![i + 1; mib << 20]).unwrap();
    }
    (from, compile("unmount", "unmount_static", &["-static"]))
}

/// Tries something that depends on the helper having had a turn while the program ran; the last attempt's complaint
/// counts.
pub fn eventually<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    for _ in 1..ATTEMPTS {
        if let Ok(done) = attempt() {
            return done;
        }
    }
    attempt().unwrap_or_else(|text| gives_up(&text))
}

/// Fails, of what other work on the machine can change: a count of events, requests or bytes that depends on who gets a processor when. Where others keep the
/// processors busy that is said, and `.ci/summary` counts a test that says so, alone, as left out, but not in CI.
pub fn gives_up(text: &str) -> ! {
    /// Of ten seconds somebody who could run waited for a processor for so many percent. A test alone comes to less than half of that on two processors.
    const BUSY: f64 = 60.0;
    let pressure = fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let some = pressure.lines().next().and_then(|line| {
        let average = line.split(' ').find_map(|word| word.strip_prefix("avg10="));
        average?.parse::<f64>().ok()
    });
    if let Some(some) = some.filter(|some| *some >= BUSY) {
        let current = std::thread::current();
        let name = current.name().unwrap_or("a test");
        let _ = writeln!(
            std::io::stderr(),
            "BUSY {name}: other work keeps the processors busy, {some} % of the time"
        );
    }
    panic!("{text}")
}

/// Copies a program that is about to be run. Not with [`fs::copy`]: another thread's child, between fork and exec, would
/// still hold the copy open for writing, and running it would fail with ETXTBSY.
pub fn install(from: &Path, to: &Path, mode: u32) {
    let done = Command::new("install")
        .arg(format!("--mode={mode:o}"))
        .args([from, to])
        .status()
        .unwrap();
    assert!(done.success(), "cannot install {}", to.display());
}

/// Runs all cases and fails with everything that differed. `OUTRIDER_CASE=text` picks cases by name.
pub fn check(cases: Vec<Case>) {
    let only = std::env::var("OUTRIDER_CASE").unwrap_or_default();
    let total = cases.len();
    let mut failures = Vec::new();
    for case in cases {
        if !case.name.contains(&only) {
            continue;
        }
        if let Some(missing) = case.needs.iter().find(|p| !have(p)) {
            skip(&case.name, &format!("{missing} is not installed"));
            continue;
        }
        let started = std::time::Instant::now();
        if let Err(text) = case.run() {
            failures.push(text);
        }
        if std::env::var_os("OUTRIDER_TIMES").is_some() {
            let _ = writeln!(
                std::io::stderr(),
                "{:6.2} s {}",
                started.elapsed().as_secs_f64(),
                case.name
            );
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {total} cases differ:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

// ---------------------------------------------------------------------------------------------
// Running and observing

/// Everything observable about one run.
#[derive(Default, Debug)]
pub struct Outcome {
    /// `exit N`, `signal N` or `timeout`.
    pub status: String,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Names of the processes that outlived the command.
    pub left: Vec<String>,
    pub tree: Tree,
    pub report: Option<Value>,
}

impl Outcome {
    pub fn total(&self, field: &str) -> Option<u64> {
        self.report.as_ref()?["totals"][field].as_u64()
    }

    /// The report's lines on what was refused and what it cost.
    pub fn lost(&self) -> Vec<String> {
        let lines = self
            .report
            .as_ref()
            .and_then(|r| r["lost"].as_array().cloned())
            .unwrap_or_default();
        lines
            .iter()
            .map(|l| l.as_str().unwrap_or("").to_string())
            .collect()
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// Runs a command under `tests/programs/supervise.c`, which adopts whatever the command leaves behind
/// and so sees it even after it has daemonised, and which ends it all at the time limit.
pub fn supervise(
    place: &Path,
    label: &str,
    work: &Path,
    argv: &[OsString],
    stdin: Option<&str>,
    env: &[(String, String)],
) -> Outcome {
    let supervisor = program("supervise");
    // The streams have the same names in every run, for programs that look where they write to.
    let (out, err, status) = (
        place.join("stdout"),
        place.join("stderr"),
        place.join("status"),
    );
    for old in [&out, &err, &status] {
        let _ = fs::remove_file(old);
    }
    let input = match stdin {
        Some(path) => File::open(work.join(path)).unwrap(),
        None => File::open("/dev/null").unwrap(),
    };
    let mut command = Command::new(supervisor);
    command
        .arg(&status)
        .arg(TIME_LIMIT_SECONDS.to_string())
        .args(argv)
        .current_dir(work);
    plain_environment(&mut command, place);
    command.envs(env.iter().map(|(k, v)| (k, v)));
    let ended = command
        .stdin(Stdio::from(input))
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(&err).unwrap())
        .status()
        .unwrap();
    assert!(ended.success(), "the supervisor failed: {ended}");
    let status = fs::read_to_string(&status).unwrap();
    for stream in ["stdout", "stderr"] {
        let _ = fs::copy(place.join(stream), place.join(format!("{label}.{stream}")));
    }
    let mut lines = status.lines();
    let mut outcome = Outcome {
        status: lines.next().unwrap_or("").to_string(),
        stdout: fs::read(&out).unwrap(),
        stderr: fs::read(&err).unwrap(),
        left: lines.map(str::to_string).collect(),
        ..Outcome::default()
    };
    // Our helper may stay as long as the program's own daemons do, and no longer.
    if outcome.left.iter().any(|name| name != "outrider") {
        outcome.left.retain(|name| name != "outrider");
    }
    outcome
}

/// The same small environment for every run: nothing of the developer's reaches the programs.
pub fn plain_environment(command: &mut Command, home: &Path) {
    command
        .env_clear()
        .env("PATH", search_path())
        .env("HOME", home)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONHASHSEED", "0");
}

/// `outrider run FLAGS… -- ARGV…` in a small environment, ready to be started.
pub fn outrider_run(work: &Path, flags: &[&str], argv: &[&str]) -> Command {
    let mut command = Command::new(outrider());
    plain_environment(&mut command, work);
    command
        .arg("run")
        .args(flags)
        .arg("--")
        .args(argv)
        .current_dir(work)
        .stdin(Stdio::null());
    command
}

/// What a command prints that succeeds and has nothing to complain of.
pub fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The number before `word` in the line for `graph` of a report.
pub fn graph_count(report: &str, graph: &str, word: &str) -> u64 {
    let line = report
        .lines()
        .find(|l| l.starts_with(&format!("{graph}: ")))
        .unwrap_or_else(|| panic!("no line for {graph} in {report}"));
    let (before, _) = line.split_once(&format!(" {word}")).unwrap();
    before.rsplit([' ', '(']).next().unwrap().parse().unwrap()
}

/// A fresh directory for a test that drives commands itself.
pub fn fresh(name: &str) -> PathBuf {
    // Apart from the cases, which have names too.
    let dir = scratch().join("fresh").join(name);
    remove(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// A fresh directory with data sets in it, cold.
pub fn fresh_with(name: &str, sets: &[Data]) -> PathBuf {
    let dir = fresh(name);
    Case::argv(name, &["true"]).data(sets).prepare(&dir);
    dir
}

/// A mount point, until it is dropped.
pub struct Mounted(pub PathBuf);

impl Mounted {
    /// What a script, run in `dir`, mounts on its `mnt`; or what the script complains of.
    pub fn by(script: &str, dir: &Path) -> Result<Mounted, String> {
        let output = Command::new("sh")
            .args(["-c", script])
            .current_dir(dir)
            .output()
            .unwrap();
        if output.status.success() {
            Ok(Mounted(dir.join("mnt")))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

// ---------------------------------------------------------------------------------------------
// Processes

/// One row of /proc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    pub name: String,
    pub state: char,
}

/// All processes.
pub fn processes() -> Vec<Process> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<i32>() else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else {
            continue;
        };
        let mut rest = stat[close + 2..].split(' ');
        let state = rest.next().and_then(|s| s.chars().next()).unwrap_or('?');
        let parent = rest.next().and_then(|s| s.parse().ok()).unwrap_or(0);
        all.push(Process {
            pid,
            parent,
            name: stat[open + 1..close].to_string(),
            state,
        });
    }
    all
}

/// Outrider's helper below a runner: a process named `outrider` that descends from it.
pub fn helper_of(runner: i32) -> Option<i32> {
    let all = processes();
    let descends = |mut pid: i32| {
        for _ in 0..16 {
            match all.iter().find(|p| p.pid == pid) {
                Some(p) if p.parent == runner => return true,
                Some(p) => pid = p.parent,
                None => return false,
            }
        }
        false
    };
    all.iter()
        .find(|p| p.name == "outrider" && p.pid != runner && descends(p.pid))
        .map(|p| p.pid)
}

/// Waits until `condition` gives something, at most `seconds`.
pub fn wait_for<T>(seconds: f64, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let end = std::time::Instant::now() + std::time::Duration::from_secs_f64(seconds);
    loop {
        if let Some(found) = condition() {
            return Some(found);
        }
        if std::time::Instant::now() > end {
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

// ---------------------------------------------------------------------------------------------
// Trees

/// A directory tree as an observer sees it. Contents stay on disk and are compared there. A
/// modification time from before the run was kept or set by the program and is compared; later ones
/// only say that the run wrote.
#[derive(Default, Debug)]
pub struct Tree {
    root: PathBuf,
    entries: BTreeMap<PathBuf, Entry>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    kind: &'static str,
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    target: Option<PathBuf>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Seconds and nanoseconds; `None` if written during the run.
    mtime: Option<(i64, i64)>,
}

impl Tree {
    pub fn read(root: &Path, began: std::time::SystemTime) -> Tree {
        let mut tree = Tree {
            root: root.to_path_buf(),
            entries: BTreeMap::new(),
        };
        let began = began
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64;
        tree.walk(Path::new(""), began);
        tree
    }

    fn walk(&mut self, below: &Path, began: i64) {
        for entry in fs::read_dir(self.root.join(below)).unwrap() {
            let name = below.join(entry.unwrap().file_name());
            let path = self.root.join(&name);
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            let is_file = kind.is_file();
            self.entries.insert(
                name.clone(),
                Entry {
                    kind: match () {
                        _ if is_file => "file",
                        _ if kind.is_dir() => "directory",
                        _ if kind.is_symlink() => "symlink",
                        _ if kind.is_fifo() => "fifo",
                        _ if kind.is_socket() => "socket",
                        _ => "device",
                    },
                    mode: meta.mode(),
                    owner: (meta.uid(), meta.gid()),
                    links: if is_file { meta.nlink() } else { 0 },
                    size: if is_file { meta.len() } else { 0 },
                    target: fs::read_link(&path).ok(),
                    attributes: attributes(&path),
                    mtime: (meta.mtime() < began).then(|| (meta.mtime(), meta.mtime_nsec())),
                },
            );
            if kind.is_dir() {
                self.walk(&name, began);
            }
        }
    }

    fn difference(&self, other: &Tree, unstable: &[&str]) -> Option<String> {
        for name in self.entries.keys() {
            if !other.entries.contains_key(name) {
                return Some(format!("{} is missing with us", name.display()));
            }
        }
        for (name, theirs) in &other.entries {
            let Some(ours) = self.entries.get(name) else {
                return Some(format!("{} exists only with us", name.display()));
            };
            let text = name.to_string_lossy();
            let skip_content = unstable.iter().any(|u| match u.strip_suffix('*') {
                Some(prefix) => text.starts_with(prefix),
                None => text == *u,
            });
            let describe = |e: &Entry| {
                format!(
                    "{} mode {:o} owner {:?} links {} size {} target {:?} attributes {:?} mtime {:?}",
                    e.kind,
                    e.mode,
                    e.owner,
                    e.links,
                    if skip_content { 0 } else { e.size },
                    e.target,
                    e.attributes,
                    e.mtime
                )
            };
            let (a, b) = (describe(ours), describe(theirs));
            if a != b {
                return Some(format!("{text}:\n    without {a}\n    with    {b}"));
            }
            if ours.kind == "file" && !skip_content {
                let a = fs::read(self.root.join(name)).unwrap();
                let b = fs::read(other.root.join(name)).unwrap();
                if let Some(d) = bytes_difference(&text, &a, &b) {
                    return Some(d);
                }
            }
        }
        None
    }
}

fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0u8; 4096];
    let mut found = BTreeMap::new();
    let Ok(len) = rustix::fs::llistxattr(path, &mut names[..]) else {
        return found;
    };
    for name in names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 4096];
        let len = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value[..])
            .unwrap_or(0);
        found.insert(name.to_vec(), value[..len].to_vec());
    }
    found
}

fn tail(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(600);
    format!("`{}`", bytes[from..].escape_ascii())
}

/// Where two byte strings part, with the line around it.
fn bytes_difference(what: &str, plain: &[u8], ours: &[u8]) -> Option<String> {
    if plain == ours {
        return None;
    }
    let at = plain.iter().zip(ours).take_while(|(a, b)| a == b).count();
    let line = plain[..at].iter().filter(|b| **b == b'\n').count() + 1;
    let start = plain[..at]
        .iter()
        .rposition(|b| *b == b'\n')
        .map_or(0, |p| p + 1)
        .max(at.saturating_sub(80));
    let show = |bytes: &[u8]| {
        let end = bytes[at..]
            .iter()
            .position(|b| *b == b'\n')
            .map_or(bytes.len(), |p| at + p)
            .min(at + 160);
        bytes[start..end].escape_ascii().to_string()
    };
    Some(format!(
        "{what} differs at byte {at}, line {line} ({} bytes without, {} with):\n    without `{}`\n    with    `{}`",
        plain.len(),
        ours.len(),
        show(plain),
        show(ours)
    ))
}

/// A memory control group of the test's own, removed with its value.
pub struct Group {
    dir: PathBuf,
}

impl Group {
    /// A group of at most `limit` bytes, v1's or v2's; why there can be none.
    pub fn new(limit: u64) -> Result<Group, String> {
        // Tests of one process run at the same time.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mut refused = "no memory control group is mounted".to_owned();
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let file = match fields[2] {
                "cgroup" if fields[3].split(',').any(|o| o == "memory") => "memory.limit_in_bytes",
                "cgroup2" => "memory.max",
                _ => continue,
            };
            let dir =
                Path::new(fields[1]).join(format!("outrider-test-{}-{number}", std::process::id()));
            if let Err(e) = fs::create_dir(&dir) {
                refused = format!("{}: {e}", dir.display());
                continue;
            }
            let group = Group { dir };
            match fs::write(group.dir.join(file), limit.to_string()) {
                Ok(()) => return Ok(group),
                Err(e) => refused = format!("{}: {e}", group.dir.join(file).display()),
            }
        }
        Err(refused)
    }

    /// The same command, started in the group.
    pub fn start(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.dir.join("cgroup.procs"))
            .arg(command.get_program())
            .args(command.get_args());
        if let Some(dir) = command.get_current_dir() {
            inside.current_dir(dir);
        }
        inside
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may still be on its way out.
        wait_for(PATIENCE, || fs::remove_dir(&self.dir).ok());
    }
}

/// An emulated disk of 256 MiB.
pub struct Disk {
    /// Where it is mounted.
    pub dir: PathBuf,
}

impl Disk {
    /// The command.
    pub fn lab() -> Command {
        Command::new(outrider().with_file_name("outrider-lab"))
    }

    fn up(dir: PathBuf) -> Result<Disk, String> {
        let output = Self::lab()
            .args(["disk", "up", "off", "--size", "256M", "--mount"])
            .arg(&dir)
            .output()
            .map_err(|e| format!("outrider-lab: {e}"))?;
        if output.status.success() {
            Ok(Disk { dir })
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    /// One below `dir` for a test, or says that the test is skipped.
    pub fn of(test: &str, dir: &Path) -> Option<Disk> {
        Self::up(dir.join("disk"))
            .inspect_err(|reason| skip_unprivileged(test, reason))
            .ok()
    }

    /// `outrider-lab disk COMMAND` on it.
    pub fn does(&self, command: &str, words: &[&str]) {
        let mut lab = Self::lab();
        lab.args(["disk", command]).arg(&self.dir).args(words);
        // Programs of other tests may have mount namespaces, with copies of all mounts, as long as they run.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let output = loop {
            let output = lab.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            if !said.contains("is not cold") || std::time::Instant::now() > until {
                break output;
            }
        };
        assert!(output.status.success(), "{command}: {output:?}");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Self::lab()
            .args(["disk", "down", "--lazy"])
            .arg(&self.dir)
            .status();
    }
}
