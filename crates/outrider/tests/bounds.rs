//! Whatever a program says, and however fast: the service stays small, lives, and helps the others.
//!
//! SPEC B16 (what is indexed by what programs say is bounded), B11. `tests/programs/forger.c` writes into the memory that it has with the service what it likes, a mode
//! for each table of the service's; beside it, and after it, a program that does nothing of the kind is helped all the same. What bounds each table is said in
//! docs/semantics.md, "What bounds the service".

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use support::Data::Big;
use support::{PATIENCE, fresh_with, helper_of, outrider_run, program, wait_for};

/// What the service may grow by at most, bytes: its bounds for files, directories and mappings are 32, 32 and 16 MiB, of which one process fills only some in each mode.
const GROWTH: u64 = 64 << 20;

fn memory(pid: i32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix(field));
    let words = line.unwrap_or_default().split_whitespace().next();
    words.and_then(|w| w.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// What the others got, and what the report complains of.
struct Seen {
    grown: u64,
    prefetched: u64,
    lost: Vec<String>,
}

/// Runs the forger in a mode, and `tac` once all was told, or while it goes on. `linger` is how long it goes on before, s.
fn forge(mode: &str, count: u64, linger: f64) -> Seen {
    let dir = fresh_with(&format!("forge_{mode}"), &[Big]);
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    for i in 0..3000 {
        fs::create_dir_all(dir.join(format!("tree/d{}", i % 50))).unwrap();
        fs::write(dir.join(format!("tree/d{}/f{i}", i % 50)), "x").unwrap();
    }
    support::make_cold(&dir);
    let forger = program("forger");
    let script = format!(
        "exec 3<&0; {} {mode} {count} sparse tree <&3 & while [ ! -e go ]; do sleep 0.02; done; tac big.dat > reversed; echo read; wait",
        forger.display()
    );
    let report = dir.join("report.json");
    let flag = format!("--report={}", report.display());
    let mut runner = outrider_run(&dir, &[&flag], &["sh", "-c", &script])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(dir.join("stdout")).unwrap())
        .spawn()
        .unwrap();
    let says = |word: &str, seconds: f64| {
        let said = || {
            fs::read_to_string(dir.join("stdout"))
                .unwrap_or_default()
                .contains(word)
        };
        wait_for(seconds, || said().then_some(())).is_some()
    };
    if !says("ready", PATIENCE) {
        let _ = runner.kill();
        panic!("{mode}: not followed");
    }
    let helper = helper_of(runner.id() as i32).expect("no helper");
    let before = memory(helper, "VmRSS:");
    let mut stdin = runner.stdin.take().unwrap();
    stdin.write_all(b"!").unwrap();
    if linger == 0.0 {
        assert!(says("told", 4.0 * PATIENCE), "{mode}: never told");
    } else {
        std::thread::sleep(std::time::Duration::from_secs_f64(linger));
    }
    let grown = memory(helper, "VmHWM:").saturating_sub(before);
    support::make_cold(&dir);
    fs::write(dir.join("go"), "").unwrap();
    let read = says("read", PATIENCE);
    let alive = Path::new(&format!("/proc/{helper}")).exists()
        && helper_of(runner.id() as i32) == Some(helper);
    drop(stdin);
    let status = runner.wait().unwrap();
    assert!(read && alive, "{mode}: read {read}, helper alive {alive}");
    assert!(status.success(), "{mode}: {status}");
    let mut data = fs::read(dir.join("big.dat")).unwrap();
    let plain = std::process::Command::new("tac")
        .arg(dir.join("big.dat"))
        .output()
        .unwrap();
    assert!(
        plain.stdout == fs::read(dir.join("reversed")).unwrap(),
        "{mode}: other data"
    );
    data.clear();
    let report = fs::read(&report).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let processes = report["processes"].as_array().unwrap();
    let of = |p: &&serde_json::Value| p["command"] == "tac";
    let tac = processes
        .iter()
        .find(of)
        .map(|p| p["prefetched_bytes"].as_u64());
    let lost = report["lost"].as_array().into_iter().flatten();
    let seen = Seen {
        grown,
        prefetched: tac.flatten().unwrap_or(0),
        lost: lost
            .map(|l| l.as_str().unwrap_or_default().to_owned())
            .collect(),
    };
    println!(
        "{mode}: {} KiB more, {} bytes prefetched, {:?}",
        grown >> 10,
        seen.prefetched,
        seen.lost
    );
    seen
}

/// All that is told in a mode costs no more memory than is stated, and others are helped afterwards.
fn stays_small(mode: &str, count: u64) -> Seen {
    helps_others(mode, || {
        let seen = forge(mode, count, 0.0);
        assert!(seen.grown < GROWTH, "{mode}: {} bytes more", seen.grown);
        seen
    })
}

/// On a busy machine others may find everything cached, or no memory be left: it is tried again.
fn helps_others(mode: &str, forge: impl Fn() -> Seen) -> Seen {
    support::eventually(|| {
        let seen = forge();
        match seen.prefetched {
            0 => Err(format!("{mode}: nothing for others; lost: {:?}", seen.lost)),
            _ => Ok(seen),
        }
    })
}

/// Files that must never be opened: who names more than can be remembered is left alone, and it is said.
#[test]
fn files_to_be_left_alone() {
    let seen = stays_small("leave", 2_000_000);
    assert!(
        seen.lost.iter().any(|l| l.starts_with("leases: ")),
        "{:?}",
        seen.lost
    );
}

/// Files that a process does not have, and others' names for its own.
#[test]
fn files_that_nobody_has() {
    stays_small("open", 500_000);
}

/// One file under very many numbers, each with streams of its own.
#[test]
fn descriptors() {
    stays_small("held", 1_000_000);
}

/// Single pages all over a file of 1 TiB.
#[test]
fn pages() {
    stays_small("random", 1_000_000);
    stays_small("stride", 300_000);
}

/// Hints of any length, and what takes them back.
#[test]
fn hints() {
    stays_small("hint", 200_000);
}

/// Mappings of any length that are nowhere, moved and cut.
#[test]
fn mappings() {
    stays_small("map", 100_000);
}

/// Directories and small files, by devices and inodes that they don't have.
#[test]
fn walks() {
    stays_small("walk", 250_000);
}

/// Copies within the kernel that nobody makes.
#[test]
fn moves() {
    stays_small("move", 200_000);
}

/// Graphs with all names and all lines.
#[test]
fn boards() {
    stays_small("board", 200_000);
}

/// Anything at all.
#[test]
fn noise() {
    stays_small("noise", 20_000);
}

/// Calls for which nothing may be open, and demands to let go of everything, that are never over: after a while nobody else waits for them.
#[test]
fn demands() {
    helps_others("demand", || forge("demand", 0, 12.0));
}
