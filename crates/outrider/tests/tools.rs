//! The tools around `outrider run`, through the built command only: what they say of the page cache is
//! compared with a `mincore` of the test's own.
//!
//! A machine may take cached pages away at any moment, so a number is accepted if it lies between what the
//! test saw before and after, and a state that should be reached gets several attempts.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tempfile::TempDir;

const OUTRIDER: &str = env!("CARGO_BIN_EXE_outrider");
const NOBODY: u32 = 65534;
const PAGE: u64 = 4096;
const ATTEMPTS: usize = 20;

/// A directory on a disk: /tmp may be a tmpfs.
fn directory() -> TempDir {
    let dir = tempfile::Builder::new()
        .prefix("tools")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn outrider<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(OUTRIDER)
        .args(args)
        .env_remove("XDG_CONFIG_HOME")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs with `--json` behind the arguments and reads what comes; no complaint is expected.
fn json<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Value {
    let mut all: Vec<OsString> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    all.push("--json".into());
    let output = outrider(all);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Writes a file of bytes that do not repeat, and waits until they are on the device.
fn write_synced(path: &Path, len: usize) {
    let mut state = 0x1234_5678_9abc_def1_u64 ^ len as u64;
    let bytes: Vec<u8> = (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    let mut file = File::create(path).unwrap();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
}

/// Which pages of a file are in the page cache.
fn mincore(path: &Path) -> Vec<bool> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(path)
        .unwrap();
    let len = file.metadata().unwrap().len() as usize;
    if len == 0 {
        return Vec::new();
    }
    let mut vec = vec![0u8; len.div_ceil(PAGE as usize)];
    // SAFETY: a mapping of our own, whose pages are not looked into, and one byte for each of its pages.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len, vec.as_mut_ptr()), 0);
        libc::munmap(at, len);
    }
    vec.iter().map(|b| b & 1 == 1).collect()
}

fn resident(path: &Path) -> u64 {
    mincore(path).into_iter().filter(|r| *r).count() as u64
}

/// The pages of a file that hold data rather than holes.
fn data_pages(path: &Path) -> Vec<u64> {
    let file = File::open(path).unwrap();
    let (mut at, mut pages) = (0, Vec::new());
    loop {
        // SAFETY: lseek takes numbers only.
        let (data, hole) = unsafe {
            let data = libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA);
            if data < 0 {
                return pages;
            }
            (data, libc::lseek(file.as_raw_fd(), data, libc::SEEK_HOLE))
        };
        pages.extend(data as u64 / PAGE..(hole as u64).div_ceil(PAGE));
        at = hole;
    }
}

/// Tries until `reached`, a few times; the last attempt's complaint counts.
fn eventually(mut reached: impl FnMut() -> Result<(), String>) {
    for attempt in 1.. {
        match reached() {
            Ok(()) => return,
            Err(e) if attempt == ATTEMPTS => panic!("{e}"),
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
}

/// Says that something was not tested, past the capture of test output.
fn skip_unprivileged(name: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {name}: {reason}");
}

/// Like [`skip_unprivileged`], for what a package can provide: a failure where nothing may be skipped.
fn skip(name: &str, reason: &str) {
    let required = ["CI", "OUTRIDER_REQUIRE_ALL"].map(std::env::var_os);
    assert!(
        required.iter().all(Option::is_none),
        "{name}: {reason}, and nothing may be skipped here"
    );
    skip_unprivileged(name, reason);
}

/// A tree with the kinds of files that matter.
struct Tree {
    dir: TempDir,
    files: Vec<PathBuf>,
}

fn tree() -> Tree {
    let dir = directory();
    let root = dir.path();
    fs::create_dir_all(root.join("sub/deep")).unwrap();
    let mut files = Vec::new();
    let mut add = |name: &OsStr, len: usize| {
        let path = root.join(name);
        write_synced(&path, len);
        files.push(path);
    };
    add("large".as_ref(), 9 << 20);
    add("sub/odd".as_ref(), 300_001);
    add("sub/deep/one".as_ref(), 1);
    add("empty".as_ref(), 0);
    add("new\nline \u{1b}[31m".as_ref(), 5000);
    add(OsStr::from_bytes(b"sub/\xff\xfe bytes"), 70_000);
    add("fragmented".as_ref(), 1 << 20);

    let punched = OpenOptions::new()
        .write(true)
        .open(root.join("fragmented"))
        .unwrap();
    for at in (0..1 << 20).step_by(32 << 10) {
        // SAFETY: fallocate takes numbers only.
        let r = unsafe {
            libc::fallocate(
                punched.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                at,
                16 << 10,
            )
        };
        if r != 0 {
            println!("file system punches no holes: 'fragmented' is in one piece");
            break;
        }
    }
    punched.sync_all().unwrap();

    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"begin", 0).unwrap();
    sparse.write_all_at(b"end", 20 << 20).unwrap();
    sparse.sync_all().unwrap();
    files.push(root.join("sparse"));

    // None of these is a file of its own.
    symlink("large", root.join("link")).unwrap();
    symlink("/", root.join("sub/root")).unwrap();
    fs::hard_link(root.join("large"), root.join("sub/second link")).unwrap();
    files.sort();
    Tree { dir, files }
}

fn row<'a>(report: &'a Value, path: &Path) -> &'a Value {
    let rows = report["files"].as_array().unwrap();
    rows.iter()
        .find(|r| match r.get("path_bytes") {
            Some(bytes) => {
                let bytes: Vec<u8> = serde_json::from_value(bytes.clone()).unwrap();
                bytes == path.as_os_str().as_bytes()
            }
            None => r["path"].as_str() == path.to_str(),
        })
        .unwrap_or_else(|| panic!("{path:?} is missing"))
}

/// Compares a report with mincore before and after it.
fn check_report(tree: &Tree) {
    eventually(|| compare_report(tree));
}

fn compare_report(tree: &Tree) -> Result<(), String> {
    let before: Vec<u64> = tree.files.iter().map(|f| resident(f)).collect();
    let report = json([OsStr::new("cached"), tree.dir.path().as_os_str()]);
    for (file, before) in tree.files.iter().zip(before) {
        let after = resident(file);
        let row = row(&report, file);
        let said = row["resident_pages"].as_u64().unwrap();
        // A page may come and another go between two looks.
        if said < before.min(after) || said > before.max(after) {
            return Err(format!("{file:?}: {said}, {before}..{after}"));
        }
        let size = fs::metadata(file).unwrap().len();
        assert_eq!(row["bytes"], size);
        assert_eq!(row["pages"], size.div_ceil(PAGE));
        assert_eq!(row["resident_bytes"], (said * PAGE).min(size));
        let map: Vec<char> = row["map"].as_str().unwrap().chars().collect();
        assert_eq!(map.len() as u64, size.div_ceil(PAGE).min(40));
        if said == 0 {
            assert!(map.iter().all(|c| *c == ' '), "{map:?}");
        }
        if said == size.div_ceil(PAGE) {
            assert!(map.iter().all(|c| *c == '█'), "{map:?}");
        }
    }
    assert_eq!(report["total"]["files"], tree.files.len());
    assert_eq!(report["total"]["unknown_files"], 0);
    Ok(())
}

#[test]
fn cached_evict_and_warm_agree_with_mincore() {
    let tree = tree();
    let root = tree.dir.path();
    let run = |tool: &str| {
        let output = outrider([OsStr::new(tool), root.as_os_str()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };

    eventually(|| {
        let said = run("evict");
        match tree.files.iter().find(|f| resident(f) > 0) {
            Some(file) => Err(format!("{file:?} is still resident; {said}")),
            None => Ok(()),
        }
    });
    check_report(&tree);

    // Some of it, with gaps.
    let large = File::open(root.join("large")).unwrap();
    let mut buffer = vec![0u8; 100_000];
    for at in [0, 1 << 20, 5 << 20] {
        large.read_exact_at(&mut buffer, at).unwrap();
    }
    check_report(&tree);

    eventually(|| {
        let said = run("warm");
        assert!(said.contains("already") && said.contains("holes"), "{said}");
        for file in &tree.files {
            let there = mincore(file);
            if let Some(page) = data_pages(file).into_iter().find(|p| !there[*p as usize]) {
                return Err(format!("page {page} of {file:?} is not resident; {said}"));
            }
        }
        Ok(())
    });
    check_report(&tree);
    eventually(|| {
        let said = run("warm");
        // Nothing is read a second time.
        if said.starts_with("read             0 B\n") {
            Ok(())
        } else {
            Err(said)
        }
    });
    eventually(|| {
        run("evict");
        let left: u64 = tree.files.iter().map(|f| resident(f)).sum();
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} pages left"))
        }
    });
}

#[test]
fn single_files_and_links_named_on_the_command_line() {
    let tree = tree();
    let report = json([
        OsStr::new("cached"),
        tree.dir.path().join("link").as_os_str(),
    ]);
    assert_eq!(report["files"][0]["bytes"], 9 << 20);
    // The same file twice is one file.
    let report = json([
        OsStr::new("cached"),
        tree.dir.path().join("link").as_os_str(),
        tree.dir.path().join("large").as_os_str(),
    ]);
    assert_eq!(report["total"]["files"], 1);
}

#[test]
fn names_cannot_disturb_the_lines() {
    let tree = tree();
    let output = outrider([OsStr::new("cached"), tree.dir.path().as_os_str()]);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), tree.files.len() + 1, "{text}");
    assert!(
        text.contains("new\\nline \\u{1b}[31m") && text.contains("\\xff\\xfe bytes"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn warm_stops_at_the_budget_and_says_so() {
    let dir = directory();
    write_synced(&dir.path().join("a"), 3 << 20);
    write_synced(&dir.path().join("b"), 3 << 20);
    let root = dir.path().as_os_str();
    eventually(|| {
        outrider([OsStr::new("evict"), root]);
        let output = outrider([
            OsStr::new("warm"),
            OsStr::new("--budget"),
            OsStr::new("4M"),
            root,
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let said = stdout(&output);
        let (a, b) = (
            resident(&dir.path().join("a")),
            resident(&dir.path().join("b")),
        );
        if (a, b) != (768, 256) {
            return Err(format!("{a} and {b} pages; {said}"));
        }
        assert!(
            said.contains("left out     2.0 MiB in 1 file") && said.contains("--budget"),
            "{said}"
        );
        Ok(())
    });
    let output = outrider([OsStr::new("warm"), OsStr::new("--budget=0"), root]);
    assert_eq!(output.status.code(), Some(0));
}

/// What the kernel will not read ahead is read all the same: here a setting makes every second request fail.
#[test]
fn warm_reads_what_could_not_be_asked_for() {
    let settings = directory();
    let place = settings.path().join("outrider");
    fs::create_dir(&place).unwrap();
    fs::write(
        place.join("config.toml"),
        "[monitor]\nfail_every = 2\n[engine]\nchunk = \"16K\"\n",
    )
    .unwrap();
    let dir = directory();
    let path = dir.path().join("file");
    write_synced(&path, 1 << 20);
    eventually(|| {
        outrider([OsStr::new("evict"), path.as_os_str()]);
        let output = Command::new(OUTRIDER)
            .arg("warm")
            .arg(&path)
            .env("XDG_CONFIG_HOME", settings.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let said = stdout(&output);
        match (resident(&path), said.contains("1.0 MiB in ")) {
            (256, true) => Ok(()),
            (n, _) => Err(format!("{n} pages; {said}")),
        }
    });
}

#[test]
fn evict_neither_loses_nor_writes_dirty_pages() {
    let dir = directory();
    let path = dir.path().join("dirty");
    eventually(|| {
        let mut file = File::create(&path).unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(&[8; 40_960], 81_920).unwrap();
        let said = stdout(&outrider([OsStr::new("evict"), path.as_os_str()]));
        let there: Vec<usize> = mincore(&path)
            .iter()
            .enumerate()
            .filter(|(_, r)| **r)
            .map(|(i, _)| i)
            .collect();
        let bytes = fs::read(&path).unwrap();
        assert!(bytes[81_920..122_880].iter().all(|b| *b == 8) && bytes[0] == 7);
        // The kernel writes on its own after some seconds; then nothing is dirty, and another attempt is
        // made. Folios of several pages are dirty as a whole.
        if (20..30).all(|p| there.contains(&p)) && said.contains("not yet written") {
            Ok(())
        } else {
            Err(format!("{there:?}; {said}"))
        }
    });
}

#[test]
fn files_may_vanish_and_shrink_while_we_run() {
    let dir = directory();
    let root = dir.path().to_owned();
    for i in 0..200 {
        fs::write(root.join(format!("f{i}")), vec![i as u8; 20_000]).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0usize;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                let path = root.join(format!("f{}", n % 200));
                match n % 4 {
                    0 => drop(fs::remove_file(&path)),
                    1 => drop(fs::write(&path, vec![1; 50_000])),
                    2 => drop(
                        File::options()
                            .write(true)
                            .open(&path)
                            .and_then(|f| f.set_len(10)),
                    ),
                    _ => {
                        let _ = fs::create_dir(root.join("d"));
                        let _ = fs::write(root.join("d/x"), b"x");
                        let _ = fs::remove_dir_all(root.join("d"));
                    }
                }
            }
        });
        for _ in 0..10 {
            for tool in ["cached", "warm", "evict"] {
                let output = outrider([OsStr::new(tool), root.as_os_str()]);
                let code = output.status.code();
                if code != Some(0) {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{tool}: {:?} {}", output.status, stderr(&output));
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// A command that runs as nobody, if we are root and nobody can reach the binary.
fn as_nobody(dir: &Path) -> Option<impl Fn(&[&OsStr]) -> Output> {
    // SAFETY: takes no arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip_unprivileged(
            "unreadable_and_foreign_files",
            "only root can become another user",
        );
        return None;
    }
    let binary = dir.join("outrider");
    // Not copied by ourselves: a child that another test has just forked would hold it open for writing, and
    // running it would fail with ETXTBSY.
    let copied = Command::new("cp").arg(OUTRIDER).arg(&binary).status();
    assert!(copied.unwrap().success());
    let run = move |args: &[&OsStr]| {
        Command::new(&binary)
            .args(args)
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY)
            .env_remove("HOME")
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .output()
    };
    match run(&[OsStr::new("--version")]) {
        Ok(output) if output.status.success() => Some(move |args: &[&OsStr]| run(args).unwrap()),
        other => {
            skip_unprivileged(
                "unreadable_and_foreign_files",
                &format!("nobody cannot run the command: {other:?}"),
            );
            None
        }
    }
}

#[test]
fn unreadable_and_foreign_files() {
    let tools = directory();
    let dir = directory();
    let Some(run) = as_nobody(tools.path()) else {
        return;
    };
    let secret = dir.path().join("secret");
    let open = dir.path().join("open");
    write_synced(&secret, 10_000);
    write_synced(&open, 50_000);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();

    for tool in ["cached", "warm", "evict"] {
        // Named: refused before anything is done.
        let output = run(&[tool.as_ref(), secret.as_os_str()]);
        assert_eq!(output.status.code(), Some(2), "{tool}");
        assert!(stdout(&output).is_empty());
        assert!(stderr(&output).starts_with("outrider: ") && stderr(&output).contains("secret"));
        // Met on the way: named, and the rest is done.
        let output = run(&[tool.as_ref(), dir.path().as_os_str()]);
        assert_eq!(output.status.code(), Some(1), "{tool}: {}", stdout(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        assert!(
            stderr(&output).contains("secret: Permission denied"),
            "{}",
            stderr(&output)
        );
    }
    // mincore would claim that all of it is resident.
    let mut said = String::new();
    eventually(|| {
        outrider([OsStr::new("evict"), open.as_os_str()]);
        said = stdout(&run(&["cached".as_ref(), open.as_os_str()]));
        // Before Linux 6.15 or so cachestat told everybody: then it must tell the truth.
        if said.contains("unknown") || said.contains(" 0.0%") {
            Ok(())
        } else {
            Err(said.clone())
        }
    });
    if said.contains("unknown") {
        let output = run(&["cached".as_ref(), "--json".as_ref(), open.as_os_str()]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["files"][0]["known"], false);
        assert_eq!(report["files"][0]["resident_pages"], Value::Null);
        assert_eq!(report["total"]["unknown_files"], 1);
    }
    // A file that nobody can read but not look into is warmed all the same.
    eventually(|| {
        outrider([OsStr::new("evict"), open.as_os_str()]);
        let output = run(&["warm".as_ref(), open.as_os_str()]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        match resident(&open) {
            13 => Ok(()),
            n => Err(format!("{n} pages; {}", stdout(&output))),
        }
    });
}

#[test]
fn bad_input_exits_2_with_one_line() {
    let dir = directory();
    let small = dir.path().join("small");
    fs::write(&small, b"x").unwrap();
    let fifo = dir.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let small = small.to_str().unwrap();
    let fifo = fifo.to_str().unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["bogus"], "doctor"),
        (&["cached"], "<PATH>"),
        (&["cached", "/no/such"], "/no/such"),
        (&["cached", fifo], "regular file"),
        (&["warm", "--budget", "12Q", small], "128K"),
        (&["warm", "--budget", "-1", small], "--budget"),
        (&["warm", "--jobs", "0", small], "1 to 16"),
        (&["warm", "--jobs", "-1", small], "1 to 16"),
        (&["warm", "--jobs", "x", small], "1 to 16"),
        (
            &["warm", "--budget", "99999999T", small],
            "K, M, G or T, such as 4096, 128K or 1.5G, at most 16777215T",
        ),
        (
            &["warm", "--jsno", small],
            "accepts --profile, --budget, --jobs, --help, [PATH]...",
        ),
        (
            &["cached", "--jsno", small],
            "accepts --json, --summary, --all, --help, <PATH>...",
        ),
        (&["evict", "--json", small], "accepts --help, <PATH>..."),
        (
            &["probe", "--jsno", small],
            "accepts --json, --save, --help, <PATH>",
        ),
        (&["probe", small, small], "accepts --json, --save"),
        (
            &["doctor", "--jsno"],
            "accepts --at, --json, --help, [PROGRAM]",
        ),
        (
            &["run", "--jsno", "true"],
            "accepted are --mode, --engine, --budget, --config, --report, --report-every, --explain, --record, --remember and --plugin",
        ),
        (
            &["--jsno"],
            "accepts --help, --version, run, try, report, cached",
        ),
        (&["graph"], "`outrider graph` accepts check, show"),
        (&["graph", "bogus"], "`outrider graph` accepts check, show"),
        (
            &["graph", "show", "--jsno"],
            "`outrider graph show` accepts --plugin, --text",
        ),
        (&["evict", "/no/such", "/no/such/either"], "/no/such/either"),
        (&["probe", "/no/such"], "/no/such"),
        (&["probe", small], "1 MiB"),
        (&["probe", "/dev/null"], "regular file"),
        (&["probe", fifo], "regular file"),
        (&["doctor", "no-such-program"], "PATH"),
        (
            &["doctor", dir.path().to_str().unwrap()],
            "accepted are the path of a file or the name of a program in PATH",
        ),
        (&["run"], "<CMD>"),
        (&["run", "--mode", "fast", "true"], "predict+opt"),
        (&["run", "--engine", "warp", "true"], "readahead"),
        (&["run", "--budget", "much", "true"], "128K"),
        (
            &["run", "--config", "/no/such.toml", "true"],
            "/no/such.toml",
        ),
    ];
    for (args, part) in cases {
        let output = outrider(*args);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(
            said.starts_with("outrider: ") && said.contains(part),
            "{args:?}: {said}"
        );
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    for args in [["--help"], ["--version"]] {
        assert_eq!(outrider(args).status.code(), Some(0));
        let full = Command::new(OUTRIDER)
            .args(args)
            .stdout(File::create("/dev/full").unwrap())
            .output()
            .unwrap();
        assert_eq!(full.status.code(), Some(1), "{args:?}");
        assert!(stderr(&full).contains("standard output"), "{full:?}");
    }
}

#[test]
fn config_mistakes_name_file_and_line() {
    let dir = directory();
    let path = dir.path().join("my.toml");
    let ran = dir.path().join("ran");
    for (text, line, part) in [
        ("[predict]\n\ncounter_bit = 3\n", 3, "counter_bits"),
        ("[predict]\ncounter_bits = 9\n", 2, "1 to 8"),
        ("# one\n[window]\ninitial = \"128Q\"\n", 3, "128K"),
        (
            "[budget]\nlow_watermark = 0.5\n",
            2,
            "budget.high_watermark",
        ),
        (
            "[engine]\nworkers = \"two\"\n",
            2,
            "engine.workers: \"two\" is not accepted; accepted is a whole number, 1 to 4",
        ),
        ("[engine]\nio_priority = \"realtime\"\n", 2, "idle"),
        (
            "[view]\nrange_tree = 3\n",
            2,
            "\"page\", \"coarse\", \"off\"",
        ),
        ("[surprise]\n", 1, "predict"),
        ("[files\n", 1, ""),
    ] {
        fs::write(&path, text).unwrap();
        let output = outrider([
            OsStr::new("run"),
            "--config".as_ref(),
            path.as_os_str(),
            "--".as_ref(),
            "touch".as_ref(),
            ran.as_os_str(),
        ]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.starts_with("outrider: ") && said.contains(&format!("my.toml:{line}: ")),
            "{said}"
        );
        assert!(said.contains(part), "{said}");
        assert!(!ran.exists());
    }
    fs::write(&path, b"\xff\xfe").unwrap();
    let output = outrider([
        OsStr::new("run"),
        "--config".as_ref(),
        path.as_os_str(),
        "true".as_ref(),
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("UTF-8"));
}

#[test]
fn a_reader_that_goes_away_ends_us_quietly() {
    let mut child = Command::new(OUTRIDER)
        .args(["cached", "/usr"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGPIPE));
    let said = stderr(&output);
    assert!(said.is_empty(), "{said}");
}

fn check_probe(report: &Value) {
    let measured = &report["measured"];
    let positive = |v: &Value| {
        assert!(
            v.as_f64().is_some_and(|n| n > 0.0 && n.is_finite()),
            "{v} in {report:#}"
        )
    };
    positive(&measured["latency_4k_p50_us"]);
    positive(&measured["bandwidth_bytes_per_s"]);
    for entry in measured["iops_4k"].as_array().unwrap() {
        positive(&entry["iops"]);
    }
    assert_eq!(measured["iops_4k"].as_array().unwrap().len(), 4);
    for key in ["latency_us", "bandwidth_bytes_per_s", "in_flight_cap_bytes"] {
        positive(&report["planner"][key]);
    }
    let read = measured["read_bytes"].as_u64().unwrap();
    assert!(read > 0 && read <= 64 << 20, "{read}");
    if let Some(obtained) = measured["readahead"]["obtained_bytes"].as_u64() {
        assert!(obtained > 0 && obtained <= measured["readahead"]["asked_bytes"].as_u64().unwrap());
    }
}

#[test]
fn probe_measures_files_and_directories() {
    let dir = directory();
    // An empty directory: a temporary file is made and leaves nothing behind.
    let report = json([OsStr::new("probe"), dir.path().as_os_str()]);
    check_probe(&report);
    assert_eq!(report["file"]["temporary"], true);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);

    let file = dir.path().join("file");
    write_synced(&file, 12 << 20);
    let before = fs::read(&file).unwrap();
    outrider([OsStr::new("evict"), file.as_os_str()]);
    for path in [file.as_path(), dir.path()] {
        let report = json([OsStr::new("probe"), path.as_os_str()]);
        check_probe(&report);
        assert_eq!(report["file"]["temporary"], false);
    }
    assert!(resident(&file) < 64, "probe leaves pages behind");
    assert!(fs::read(&file).unwrap() == before);
    let output = outrider([OsStr::new("probe"), file.as_os_str()]);
    assert!(
        stdout(&output).contains("the planner will assume"),
        "{}",
        stdout(&output)
    );

    // A hole answers without the device: nothing to measure, and no invented numbers.
    let hole = dir.path().join("hole");
    File::create(&hole).unwrap().set_len(8 << 20).unwrap();
    let output = outrider([OsStr::new("probe"), hole.as_os_str()]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(stderr(&output).contains("hole"));
}

fn program(path: &Path) -> Value {
    json([OsStr::new("doctor"), path.as_os_str()])["program"].clone()
}

/// Builds something, or prints why it could not be built.
fn built(what: &str, command: &mut Command) -> bool {
    match command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
    {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            skip(what, said.lines().next().unwrap_or("it fails"));
            false
        }
        Err(e) => {
            skip(what, &e.to_string());
            false
        }
    }
}

#[test]
fn doctor_tells_programs_apart() {
    let dir = directory();
    let root = dir.path();
    let ls = program(Path::new("/bin/ls"));
    assert_eq!(
        (&ls["kind"], &ls["hookable"]),
        (&"dynamic".into(), &true.into()),
        "{ls}"
    );
    // Looked up in PATH.
    assert_eq!(program(Path::new("ls"))["kind"], "dynamic");
    // Rust, but this command is not one that hides from the hooks by being misread as Go.
    // Without what is there for debuggers, with which it is too long to be searched.
    let plain = root.join("plain");
    let strip = Command::new("strip")
        .arg("-o")
        .arg(&plain)
        .arg(OUTRIDER)
        .status();
    assert!(strip.unwrap().success());
    let own = program(&plain);
    assert_eq!(own["kind"], "dynamic");
    // It makes system calls by rustix, which hooks don't see; ls makes none.
    let direct = "can make system calls without the C library";
    assert!(own["may_miss"].as_str().unwrap().contains(direct), "{own}");
    assert_eq!(ls["may_miss"], Value::Null);
    // So does a program that calls by number, in whatever language.
    let source = root.join("direct.c");
    let call = if cfg!(target_arch = "aarch64") {
        "register long x8 asm(\"x8\") = 67, x0 asm(\"x0\") = 0; asm volatile(\"svc #0\" : \"+r\"(x0) : \"r\"(x8) : \"memory\"); return (int)x0;"
    } else {
        "long r; asm volatile(\"syscall\" : \"=a\"(r) : \"a\"(17), \"D\"(0) : \"rcx\", \"r11\", \"memory\"); return (int)r;"
    };
    fs::write(&source, format!("int main(void) {{ {call} }}")).unwrap();
    let by_number = root.join("by_number");
    let mut cc = Command::new("cc");
    cc.arg("-O2").arg("-o").args([&by_number, &source]);
    if built("a program that calls by number", &mut cc) {
        let found = program(&by_number);
        assert!(
            found["may_miss"]
                .as_str()
                .is_some_and(|m| m.contains(direct)),
            "{found}"
        );
    }
    for (path, says) in [(plain.to_str().unwrap(), true), ("ls", false)] {
        let said = stdout(&outrider(["doctor", path]));
        assert_eq!(said.contains(direct), says, "{said}");
    }

    let script = root.join("script");
    fs::write(&script, "#! /bin/sh -e\necho\n").unwrap();
    let found = program(&script);
    assert_eq!(
        (&found["kind"], &found["hookable"]),
        (&"script".into(), &true.into()),
        "{found}"
    );
    fs::write(&script, "#!/usr/bin/env ls\n").unwrap();
    assert!(
        program(&script)["description"]
            .as_str()
            .unwrap()
            .contains("/ls"),
        "{}",
        program(&script)
    );

    let setuid = root.join("setuid");
    fs::copy("/bin/ls", &setuid).unwrap();
    for (mode, part) in [(0o4755, "set-user-id"), (0o2755, "set-group-id")] {
        fs::set_permissions(&setuid, fs::Permissions::from_mode(mode)).unwrap();
        let found = program(&setuid);
        assert_eq!(
            (&found["kind"], &found["hookable"]),
            (&"privileged".into(), &false.into()),
            "{found}"
        );
        assert!(found["reason"].as_str().unwrap().contains(part));
    }

    let text = root.join("text");
    fs::write(&text, "no program at all").unwrap();
    assert_eq!(program(&text)["kind"], "not-a-program");
    fs::write(&text, "\x7fELF").unwrap();
    assert_eq!(program(&text)["hookable"], false);
    fs::write(&text, "#!").unwrap();
    assert_eq!(program(&text)["kind"], "not-a-program");
    // A script that is its own interpreter ends.
    fs::write(&text, format!("#!{}\n", text.display())).unwrap();
    assert_eq!(program(&text)["kind"], "script");

    let source = root.join("x.c");
    fs::write(&source, "int main(void){return 0;}").unwrap();
    let fixed = root.join("static");
    if built(
        "static_c_program",
        Command::new("gcc")
            .arg("-static")
            .arg("-o")
            .arg(&fixed)
            .arg(&source),
    ) {
        let found = program(&fixed);
        assert_eq!(
            (&found["kind"], &found["hookable"]),
            (&"static".into(), &false.into()),
            "{found}"
        );
        let bare = root.join("stripped");
        if built(
            "stripped_program",
            Command::new("strip")
                .arg("-R")
                .arg(".comment")
                .arg("-o")
                .arg(&bare)
                .arg(&fixed),
        ) {
            assert_eq!(program(&bare)["kind"], "static");
        }
    }
    let musl = root.join("musl");
    if built(
        "musl_program",
        Command::new("musl-gcc").arg("-o").arg(&musl).arg(&source),
    ) {
        assert_eq!(program(&musl)["kind"], "musl");
    }
    let go = root.join("x.go");
    fs::write(&go, "package main\nfunc main() {}\n").unwrap();
    let with_go = root.join("go-program");
    let mut build = Command::new("go");
    build
        .args(["build", "-o"])
        .arg(&with_go)
        .arg(&go)
        .env("GOCACHE", root.join("gocache"))
        .env("GOFLAGS", "-mod=mod")
        .env("CGO_ENABLED", "0");
    if built("go_program_found", &mut build) {
        let found = program(&with_go);
        assert_eq!(
            (&found["kind"], &found["hookable"]),
            (&"go".into(), &false.into()),
            "{found}"
        );
    }
}

#[test]
fn doctor_tells_about_the_machine() {
    let report = json(["doctor"]);
    let machine = report["machine"].as_object().unwrap();
    for name in [
        "kernel",
        "cachestat",
        "io_uring",
        "pidfd_getfd",
        "yama",
        "cgroup_limit",
        "psi",
        "populate_read",
        "readahead_clip",
    ] {
        let finding = &machine[name];
        let verdict = finding["verdict"].as_str().unwrap();
        assert!(["yes", "no", "info"].contains(&verdict));
        // Every no says what is lost.
        assert_eq!(
            verdict == "no",
            finding["lost"].is_string(),
            "{name}: {finding}"
        );
    }
    let output = outrider(["doctor", "ls"]);
    assert!(stdout(&output).contains("this machine") && stdout(&output).contains("hooks"));
}
