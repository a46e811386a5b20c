//! `outrider-lab list` and `run` through the built command: what is measured is what was asked for, on cold files, bounded
//! in memory, compared by output, written down as it was, and nothing is ever left behind.
//!
//! The cases need root, FUSE and loop devices; without them each prints why it was skipped. None looks at how long
//! anything took.

#[path = "support/disks.rs"]
mod disks;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use disks::need_disks;
use serde_json::Value;
use tempfile::TempDir;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

/// How long is waited for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// The build whose `outrider` is measured: that of `make build`, or the one that this test belongs to.
fn build() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target =
        target.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let own = Path::new(env!("CARGO_BIN_EXE_outrider-work"))
        .parent()
        .unwrap();
    [target.join("release"), own.to_owned()]
        .into_iter()
        .find(|d| {
            ["outrider", "liboutrider.so", "outrider-work"]
                .iter()
                .all(|f| d.join(f).is_file())
        })
        .expect("no outrider with its library and outrider-work beside it: `make build` first")
}

/// A place for a disk and for results.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        Self {
            dir: tempfile::Builder::new()
                .prefix("lab-run-test")
                .tempdir()
                .unwrap(),
        }
    }

    fn mount(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("results")
    }

    /// `outrider-lab run` with what every case has: a place of its own, and a machine that may be busy.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrider-lab"));
        command.arg("run").args(args).args(["--max-load", "100000"]);
        command
            .arg("--mount")
            .arg(self.mount())
            .arg("--out")
            .arg(self.out());
        command.arg("--build").arg(build());
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String, String) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.command(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (status.code().unwrap_or(-1), text(&stdout), text(&stderr))
    }

    fn text(&self) -> String {
        fs::read_to_string(self.out().join("results.jsonl")).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        self.text()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }

    /// What is left of a run in the process `pid`: mounts, loop devices, control groups, memory, processes.
    fn left(&self, pid: u32) -> Vec<String> {
        let mut left = Vec::new();
        let here = self.dir.path().to_string_lossy().into_owned();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        left.extend(
            mounts
                .lines()
                .filter(|l| l.contains(&here))
                .map(str::to_owned),
        );
        let disks = Command::new(env!("CARGO_BIN_EXE_outrider-lab"))
            .args(["disk", "list"])
            .output()
            .unwrap();
        let disks = String::from_utf8_lossy(&disks.stdout).into_owned();
        left.extend(
            disks
                .lines()
                .filter(|l| l.contains(&here))
                .map(str::to_owned),
        );
        left.extend(groups(
            Path::new("/sys/fs/cgroup"),
            &format!("outrider-lab.{pid}"),
            6,
        ));
        let scratch = format!("/dev/shm/outrider-lab.{pid}");
        left.extend(Path::new(&scratch).exists().then_some(scratch));
        // Whatever ran for it had its files in one of these.
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let cwd = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            let cwd = cwd.to_string_lossy();
            if cwd.contains(&format!("outrider-lab.{pid}")) || cwd.contains(&here) {
                left.push(format!("{} in {cwd}", entry.path().display()));
            }
        }
        left
    }

    fn assert_nothing_left(&self, pid: u32) {
        let until = Instant::now() + PATIENCE;
        while !self.left(pid).is_empty() && Instant::now() < until {
            sleep(Duration::from_millis(50));
        }
        assert_eq!(self.left(pid), [""; 0]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut down = Command::new(env!("CARGO_BIN_EXE_outrider-lab"));
        let _ = down
            .args(["disk", "down", "--lazy"])
            .arg(self.mount())
            .output();
    }
}

/// Control groups of this name, at most `depth` levels down.
fn groups(dir: &Path, name: &str, depth: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|t| t.is_dir()) {
            continue;
        }
        if entry.file_name() == *name {
            found.push(entry.path().display().to_string());
        } else if depth > 0 {
            found.extend(groups(&entry.path(), name, depth - 1));
        }
    }
    found
}

fn of<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|l| l["kind"] == kind).collect()
}

fn number(line: &Value, field: &str) -> u64 {
    line[field]
        .as_u64()
        .unwrap_or_else(|| panic!("no {field} in {line}"))
}

/// What `outrider-work read` prints of files that were read once, found out in the plainest way.
fn naive_digest(files: &[PathBuf], block: usize) -> String {
    let mut sum = 0u64;
    for file in files {
        for (i, bytes) in fs::read(file).unwrap().chunks_exact(block).enumerate() {
            sum = sum.wrapping_add(xxh3_64_with_seed(bytes, (i * block) as u64));
        }
    }
    format!("{sum:016x}\n")
}

/// A build that writes down what is asked of its `outrider`, and then does it.
fn another_build(dir: &Path) -> PathBuf {
    let asked = dir.join("asked");
    for name in ["liboutrider.so", "outrider-work"] {
        symlink(build().join(name), dir.join(name)).unwrap();
    }
    let outrider = dir.join("outrider");
    let real = build().join("outrider");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >>{}\nexec {} \"$@\"\n",
        asked.display(),
        real.display()
    );
    fs::write(&outrider, script).unwrap();
    fs::set_permissions(&outrider, fs::Permissions::from_mode(0o755)).unwrap();
    asked
}

#[test]
fn two_builds_are_measured_in_one_series() {
    need_disks!();
    let place = Place::new();
    let other = TempDir::new().unwrap();
    let asked = another_build(other.path());
    let against = other.path().to_str().unwrap();
    let columns = ["--columns", "stock-128,predict+opt", "--runs", "2"];
    let (code, stdout, stderr) =
        place.run(&[&["self-read", "--against", against], &columns[..]].concat());
    assert_eq!(code, 0, "{stdout}{stderr}");
    let lines = place.lines();
    let of_column = |name: &str| {
        let runs = of(&lines, "run").into_iter();
        runs.filter(|r| r["column"] == name).collect::<Vec<_>>()
    };
    for column in ["stock-128", "predict+opt", "predict+opt@against"] {
        assert_eq!(of_column(column).len(), 2, "{column}");
    }
    for run in of_column("predict+opt@against") {
        assert!(number(run, "read_bytes") > 0 && !run["outrider"].is_null());
    }
    // The other build's, and nobody else's. Its version may be asked for too.
    let asked = fs::read_to_string(asked).unwrap();
    let runs = asked.lines().filter(|l| l.starts_with("run ")).count();
    assert_eq!(runs, 2, "{asked}");
}

#[test]
fn every_column_is_measured_cold_and_compared() {
    need_disks!();
    let place = Place::new();
    let (code, stdout, stderr) = place.run(&["self-read", "--columns", "all", "--quick"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let lines = place.lines();
    assert_eq!(lines[0]["kind"], "machine");
    assert_eq!(
        number(&lines[0], "cpus"),
        std::thread::available_parallelism().unwrap().get() as u64
    );
    let rows = of(&lines, "row");
    assert_eq!(rows.len(), 1);
    assert_eq!(number(rows[0], "data_bytes"), 16 * MIB);

    // The same bytes, made again, and digested without any of our readers.
    let work = build().join("outrider-work");
    let files: Vec<PathBuf> = (0..2)
        .map(|i| place.dir.path().join(i.to_string()))
        .collect();
    for (i, file) in files.iter().enumerate() {
        let mut make = Command::new(&work);
        make.arg("make")
            .arg(file)
            .args(["--size", "8M", "--seed", &(i + 1).to_string()]);
        assert!(make.status().unwrap().success());
    }
    let expected = format!("{:032x}", xxh3_128(naive_digest(&files, 16384).as_bytes()));

    let runs = of(&lines, "run");
    let mut seen = BTreeMap::new();
    for run in &runs {
        let column = run["column"].as_str().unwrap();
        assert_eq!(run["exit"], 0, "{run}");
        assert_eq!(run["digests"], serde_json::json!([expected]), "{run}");
        assert_eq!(number(run, "cached_before"), 0, "{run}");
        assert!(number(run, "requests") > 0, "{run}");
        assert_eq!(
            number(run, "read_bytes") / (16 * MIB),
            1,
            "all of it, and not twice: {run}"
        );
        assert_eq!(run["figures"]["ops"], 1024.0, "{run}");
        assert_eq!(run["figures"]["bytes"], (16 * MIB) as f64, "{run}");
        assert!(
            run["seconds"].as_f64().unwrap() > 0.0 && run["cpu_seconds"].as_f64().unwrap() > 0.0,
            "{run}"
        );
        let reported = run["outrider"].as_object().unwrap();
        let ours = ["predict", "predict+opt", "fetchall+opt", "declared"].contains(&column);
        assert_eq!(!reported.is_empty(), ours, "{run}");
        if run["discarded"].is_null() {
            seen.insert(column, number(run, "readahead_kb"));
        }
    }
    let names: BTreeSet<&str> = seen.keys().copied().collect();
    assert_eq!(
        names,
        BTreeSet::from([
            "stock-128",
            "stock-4M",
            "stock-best",
            "app-only",
            "vmtouch",
            "predict",
            "predict+opt",
            "fetchall+opt",
            "declared",
        ])
    );
    assert_eq!(
        (seen["stock-128"], seen["stock-4M"], seen["predict+opt"]),
        (128, 4096, 128)
    );
    assert!([128, 256, 512, 1024, 2048, 4096, 8192, 16384].contains(&seen["stock-best"]));
    let skips = of(&lines, "skip");
    assert_eq!(skips.len(), 1);
    assert_eq!(skips[0]["column"], "graph");

    let bounds = of(&lines, "bound");
    assert_eq!(bounds.len(), 1);
    let needed = number(bounds[0], "needed_bytes");
    assert!(
        (16 * MIB..17 * MIB).contains(&needed),
        "the files' bytes and a few of metadata: {needed}"
    );
    assert!(number(bounds[0], "needed_requests") >= 1);
    for times in ["replay", "warm"] {
        let times = bounds[0][times].as_array().unwrap();
        assert!(
            times.len() == 1 && times[0].as_f64().unwrap() > 0.0,
            "{times:?}"
        );
    }
    assert!(
        stdout
            .trim_end()
            .ends_with(&format!("results: {}", place.out().display())),
        "{stdout}"
    );
    assert!(!place.out().join("unfinished").exists());
}

#[test]
fn memory_is_bounded() {
    need_disks!();
    let place = Place::new();
    let columns = ["--columns", "stock-128,predict+opt", "--quick"];
    let (code, stdout, stderr) =
        place.run(&[&["self-limited", "self-twice"], &columns[..]].concat());
    if stderr.contains("memory cannot be bounded") {
        let _ = writeln!(
            std::io::stderr(),
            "SKIP memory_is_bounded: no memory control groups"
        );
        return;
    }
    assert_eq!(code, 0, "{stdout}{stderr}");
    let lines = place.lines();
    let runs = of(&lines, "run");
    assert_eq!(runs.len(), 4);
    for run in runs {
        let read = number(run, "read_bytes");
        if run["row"] == "self-limited" {
            // 64 MiB twice through 32 MiB: at least half of it had gone when it was wanted again.
            assert!(read >= (64 + 32) * MIB, "{run}");
        } else {
            assert!(read < (64 + 8) * MIB, "{run}");
        }
    }
    let limits: Vec<&Value> = of(&lines, "row").iter().map(|r| &r["memory"]).collect();
    assert_eq!(limits, [&serde_json::json!(32 * MIB), &Value::Null]);
}

#[test]
fn failures_are_told_and_written_down() {
    need_disks!();
    for (rows, seconds) in [
        (
            &[
                ("self-broken", "--block", 2),
                ("self-unsteady", "printed something else", 0),
            ][..],
            "300",
        ),
        (&[("self-endless", "took over", 124)], "1"),
    ] {
        let place = Place::new();
        let names: Vec<&str> = rows.iter().map(|r| r.0).collect();
        let flags = [
            "--columns",
            "stock-128,stock-4M",
            "--quick",
            "--timeout",
            seconds,
        ];
        let mut child = place.command(&[&names[..], &flags].concat());
        let child = child
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let done = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{stderr}");
        let lines = place.lines();
        for (row, why, exit) in rows {
            let told = |l: &str| l.contains("FAILED") && l.contains(row) && l.contains(why);
            assert!(stderr.lines().any(told), "{row}: {stderr}");
            let runs: Vec<_> = of(&lines, "run")
                .into_iter()
                .filter(|r| r["row"] == *row)
                .collect();
            assert_eq!(runs.len(), 2, "{row}: {stderr}");
            assert!(runs.iter().all(|r| r["exit"] == *exit), "{runs:?}");
        }
        place.assert_nothing_left(pid);
    }
}

#[test]
fn what_is_complete_is_not_measured_again() {
    need_disks!();
    let place = Place::new();
    let args = [
        "self-read",
        "--device",
        "nvme,remote",
        "--columns",
        "stock-128",
        "--runs",
        "2",
    ];
    let (code, stdout, stderr) = place.run(&args);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let first = place.text();
    assert_eq!(of(&place.lines(), "run").len(), 4);

    // Not without --resume.
    let (code, _, stderr) = place.run(&args);
    assert_eq!(code, 2);
    assert!(stderr.contains("--resume"), "{stderr}");
    assert_eq!(place.text(), first);

    // As an interruption would leave it: the second device's bound is missing, and the last line is cut off.
    let kept: Vec<&str> = first.lines().collect();
    let (last, before) = kept.split_last().unwrap();
    assert!(
        last.contains("\"bound\"") && last.contains("remote"),
        "{last}"
    );
    let cut = format!("{}\n{}", before.join("\n"), &last[..20]);
    fs::write(place.out().join("results.jsonl"), cut).unwrap();
    let (code, stdout, stderr) = place.run(&[&args[..], &["--resume"]].concat());
    assert_eq!(code, 0, "{stdout}{stderr}");
    let lines = place.text();
    let about = |text: &str, device: &str| -> Vec<String> {
        let of_device = |l: &&str| l.contains(&format!("\"device\":\"{device}\""));
        text.lines().filter(of_device).map(str::to_owned).collect()
    };
    assert_eq!(about(&lines, "nvme"), about(&first, "nvme"));
    assert_eq!(about(&lines, "remote").len(), about(&first, "remote").len());
    assert_eq!(
        of(&place.lines(), "machine").len(),
        2,
        "one of each invocation"
    );

    // All of it is there: nothing is added but who asked.
    let (code, stdout, stderr) = place.run(&[&args[..], &["--resume"]].concat());
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(place.text().starts_with(&lines));
    assert_eq!(place.text().lines().count(), lines.lines().count() + 1);
}

#[test]
fn accuracy_is_measured_beside_what_the_model_says() {
    need_disks!();
    let place = Place::new();
    let (code, stdout, stderr) = place.run(&[
        "self-read",
        "--columns",
        "stock-128",
        "--quick",
        "--accuracy",
        "--device",
        "nvme",
    ]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let lines = place.lines();
    let figures: BTreeMap<&str, f64> = of(&lines, "accuracy")
        .into_iter()
        .map(|l| {
            assert_eq!(l["device"], "nvme");
            assert!(l["measured"].as_f64().unwrap() > 0.0, "{l}");
            (
                l["measure"].as_str().unwrap(),
                l["modelled"].as_f64().unwrap(),
            )
        })
        .collect();
    // 80 µs and the transfer at 1.4 GB/s; 4, 16 and 32 lanes; the link.
    let one = 80.0 + 4096.0 / 1400.0;
    assert!((figures["latency-4k-d1"] - one).abs() < 0.01, "{figures:?}");
    for (measure, modelled) in [
        ("iops-4k-d4", 4e6 / one),
        ("iops-4k-d16", 16e6 / one),
        ("iops-4k-d64", 1.4e9 / 4096.0),
        ("iops-16k-d64", 1.4e9 / 16384.0),
        ("sequential", 1400.0),
    ] {
        let said = figures[measure];
        assert!(
            (said / modelled - 1.0).abs() < 0.1,
            "{measure}: {said}, {modelled}"
        );
    }
}

/// A child that is killed if a test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn interrupted_it_leaves_nothing() {
    need_disks!();
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let place = Place::new();
        let mut command = place.command(&["self-endless", "--columns", "stock-128,predict+opt"]);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        let pid = child.0.id();
        // Until its commands run: they work in its scratch directory.
        let until = Instant::now() + PATIENCE;
        while !place.left(pid).iter().any(|l| l.contains("/out")) {
            assert!(
                Instant::now() < until,
                "it never began: {:?}",
                place.left(pid)
            );
            assert!(child.0.try_wait().unwrap().is_none(), "it ended");
            sleep(Duration::from_millis(20));
        }
        let process = rustix::process::Pid::from_child(&child.0);
        rustix::process::kill_process(process, signal).unwrap();
        let status = child.0.wait().unwrap();
        assert_eq!(status.code(), Some(130));
        place.assert_nothing_left(pid);
        // It can be taken up again.
        assert!(place.out().join("unfinished").exists());
    }
}

#[test]
fn mistakes_change_nothing() {
    let place = Place::new();
    let out = place.out();
    for (args, named) in [
        (&["no-such-row"][..], "no-such-row"),
        (&["self-*", "nothing-*"], "nothing-*"),
        (&["self-read", "--all"], "--all"),
        (&["self-read", "--columns", "stock-128,fast"], "fast"),
        (&["self-read", "--device", "floppy"], "floppy"),
        (&["self-read", "--device", "off"], "off"),
        (&["self-read", "--device", ""], "--device"),
        (&["self-read", "--runs", "0"], "0"),
        (&["self-read", "--runs", "3", "--quick"], "--quick"),
        (&["self-read", "--scale", "-1"], "-1"),
        (&["self-read", "--timeout", "0"], "--timeout"),
        (&["self-read", "--max-load", "nan"], "--max-load"),
        (&["self-read", "--fs", "none"], "none"),
        (&["self-read", "--fs", "ntfs"], "ntfs"),
        (&["self-read", "--build", "/nonexistent"], "/nonexistent"),
        (&["self-read", "--against", "/nonexistent"], "--against"),
        (&["self-read", "--against", "/dev/shm"], "--against"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrider-lab"));
        command
            .arg("run")
            .args(args)
            .arg("--out")
            .arg(&out)
            .arg("--mount")
            .arg(place.mount());
        let done = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.contains(named), "{args:?}: {stderr}");
        assert!(!out.exists() && !place.mount().exists(), "{args:?}");
    }
}

#[test]
fn rows_are_listed_once_each() {
    let list = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outrider-lab"));
        let done = command.arg("list").args(args).output().unwrap();
        assert!(done.status.success());
        String::from_utf8(done.stdout).unwrap()
    };
    let all: Value = serde_json::from_str(&list(&["--json"])).unwrap();
    let all = all.as_array().unwrap();
    let names: BTreeSet<&str> = all.iter().map(|r| r["row"].as_str().unwrap()).collect();
    assert_eq!(names.len(), all.len(), "a name twice");
    assert_eq!(list(&[]).lines().count(), all.len());
    for row in all {
        assert!(!row["devices"].as_array().unwrap().is_empty(), "{row}");
        let (data, memory) = (number(row, "data_bytes"), row["memory"].as_u64());
        assert!(data > 0 && memory.is_none_or(|m| m >= MIB), "{row}");
    }
    // The same key is the same data.
    let mut sets = BTreeMap::new();
    for row in all {
        let bytes = number(row, "data_bytes");
        assert_eq!(
            *sets.entry(row["data"].to_string()).or_insert(bytes),
            bytes,
            "{row}"
        );
    }
    let some: Value = serde_json::from_str(&list(&["cp-fig5-*", "micro-s?q", "--json"])).unwrap();
    let some: BTreeSet<&str> = some
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["row"].as_str().unwrap())
        .collect();
    let expected = names
        .iter()
        .filter(|n| n.starts_with("cp-fig5-") || **n == "micro-seq");
    assert_eq!(some, expected.copied().collect());
}
