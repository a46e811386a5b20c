//! Things that once went wrong, each named after what broke.

mod support;

use std::process::{Command, Stdio};

use support::{Case, Data, check, fresh, fresh_with, outrider, program};

/// SPEC CP1, B11: races, sandboxes, leases, locks and errno, in `tests/programs/oddities.c`.
#[test]
fn programs_see_what_they_saw_without_us() {
    let oddities = program("oddities").display().to_string();
    let cases = [
        "race",
        "null_stream",
        "errno",
        "seccomp",
        "jail",
        "lease",
        "flock",
        "hints",
        "vfork",
    ]
    .map(|what| {
        Case::argv(what, &[oddities.as_str(), what, "big.dat"])
            .data(&[Data::Big])
            .modes(&["predict+opt", "fetchall+opt", "os-only"])
    });
    check(cases.into());
}

/// SPEC B1: the runner hears of the program's end whatever it inherited for SIGCHLD, and hands timers on.
#[test]
fn signals_and_timers_are_inherited() {
    let dir = fresh("inherited_oddities");
    let ends = |before: &[&str], command: &[&str]| {
        let mut c = Command::new("timeout");
        c.args(["-k", "1", "120"])
            .args(before)
            .arg(outrider())
            .args(["run", "--"])
            .args(command);
        c.current_dir(&dir)
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .code()
    };
    for round in 0..5 {
        assert_eq!(
            ends(&["env", "--block-signal=CHLD"], &["true"]),
            Some(0),
            "round {round}"
        );
        assert_eq!(
            ends(&["env", "--ignore-signal=CHLD"], &["true"]),
            Some(0),
            "round {round}"
        );
    }
    // 128 + SIGALRM as timeout(1) reports it, and not the sleeper's own end.
    let alarm = ends(&["perl", "-e", "alarm 1; exec @ARGV"], &["sleep", "20"]);
    assert_ne!(alarm, Some(0));
}

/// SPEC B11: the runner holds no pipe that its program has closed. The program closes its output and waits for a word that is sent
/// only when the reader has seen the end.
#[test]
fn pipes_end_when_the_program_closes_them() {
    let dir = fresh("closed_pipe");
    let script = format!(
        "mkfifo f && {{ {} run -- sh -c 'exec >&-; read word <f' & }} | cat && echo go >f && wait",
        outrider().display()
    );
    let status = Command::new("timeout")
        .args(["-k", "1", "120", "bash", "-c", &script])
        .current_dir(&dir)
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

/// SPEC B1: in a pid namespace of its own a process has another number; the service must follow the right one and end with it.
#[test]
fn pid_namespaces() {
    let dir = fresh_with("pid_namespace", &[Data::Big]);
    let possible = Command::new("unshare")
        .args(["--pid", "--fork", "true"])
        .status();
    if !possible.is_ok_and(|s| s.success()) {
        support::skip_unprivileged("pid_namespaces", "unshare --pid is not permitted");
        return;
    }
    let output = support::outrider_run(
        &dir,
        &["--report=r.json"],
        &["unshare", "--pid", "--fork", "tac", "big.dat"],
    )
    .output()
    .unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout.len(), 32 << 20);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("r.json")).unwrap()).unwrap();
    let commands: Vec<_> = json["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["command"].as_str().unwrap())
        .collect();
    assert_eq!(commands, ["tac"], "{json}");
}

/// SPEC CP4: in mode `os-only` a hint reads nothing, and elsewhere what the kernel would clip is fetched whole.
#[test]
fn hints_are_dropped_or_completed() {
    let dir = fresh_with("hints", &[Data::Big]);
    let script = "import os,sys,time
fd = os.open('big.dat', os.O_RDONLY)
os.pread(fd, 4096, 20 << 20)
os.posix_fadvise(fd, 0, 16 << 20, os.POSIX_FADV_WILLNEED)
print('asked', flush=True)
sys.stdin.read()
";
    let resident = || {
        let out = Command::new(outrider())
            .args(["cached", "--json", "big.dat"])
            .current_dir(&dir)
            .output()
            .unwrap();
        let residency: serde_json::Value =
            serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        residency["total"]["resident_bytes"].as_u64().unwrap()
    };
    // The program waits until it has been seen that `enough` is cached.
    let cached = |mode: &str, enough: u64| {
        support::make_cold(&dir);
        let mut program = support::outrider_run(
            &dir,
            &["--mode", mode, "--report=r.json"],
            &["python3", "-c", script],
        );
        let mut program = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let out = program.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).unwrap();
        assert_eq!(said, "asked\n");
        support::wait_for(support::PATIENCE, || (resident() >= enough).then_some(()));
        let bytes = resident();
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("r.json")).unwrap()).unwrap();
        (bytes, json["totals"].clone())
    };
    let (_, totals) = cached("os-only", 0);
    assert_eq!(totals["prefetched_bytes"].as_u64().unwrap_or(0), 0);
    let bytes = resident();
    assert!(
        bytes < 10 << 20,
        "{bytes} bytes cached although hints are dropped"
    );
    // The kernel may take pages away meanwhile.
    support::eventually(|| {
        let (bytes, totals) = cached("predict", 12 << 20);
        assert_eq!(totals["calls_saved"], 1);
        if bytes >= 12 << 20 {
            return Ok(());
        }
        Err(format!(
            "{bytes} bytes cached of 16 MiB that were asked for"
        ))
    });
}
