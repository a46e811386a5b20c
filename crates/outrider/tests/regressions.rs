//! Things that once went wrong, each named after what broke.

mod support;

use std::io::{BufRead, BufReader, Write};
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
        "jailed_calls",
        "jailed_children",
        "lease",
        "lease_apart",
        "flock",
        "hints",
        "vfork",
        "vfork_dup",
        "leader",
        "holes",
    ]
    .map(|what| {
        Case::argv(what, &[oddities.as_str(), what, "big.dat"])
            .data(&[Data::Big])
            .modes(&["predict+opt", "fetchall+opt", "os-only"])
    });
    check(cases.into());
}

/// SPEC CP1: a program that has functions of its own under some of the C library's names, and calls each by another, calls none of them in circles.
#[test]
fn names_of_the_program_itself() {
    let own_names = program("own_names").display().to_string();
    check(vec![
        Case::argv("own_names", &[own_names.as_str(), "big.dat"]).data(&[Data::Big]),
    ]);
}

/// SPEC B11: programs whose dynamic linker or runtime would refuse our library run as if we weren't there, alone and as children.
#[test]
fn programs_of_another_make() {
    let dir = fresh_with("another_make", &[Data::Text]);
    let source = dir.join("reads.c");
    std::fs::write(
        &source,
        "#include <stdio.h>
int main(void)
{
	FILE *f = fopen(\"text.txt\", \"r\");
	unsigned long sum = 0;
	for (int c; f && (c = getc(f)) != EOF;)
		sum = sum * 31 + (unsigned)c;
	printf(\"%lu\\n\", sum);
	return f == NULL;
}
",
    )
    .unwrap();
    let makes: [(&str, &str, &[&str]); 3] = [
        ("glibc", "cc", &[]),
        ("musl", "musl-gcc", &[]),
        ("asan", "cc", &["-fsanitize=address"]),
    ];
    let mut sums = Vec::new();
    for (name, compiler, flags) in makes {
        if !support::have(compiler) {
            support::skip("programs_of_another_make", &format!("no {compiler}"));
            continue;
        }
        let made = Command::new(compiler)
            .args(flags)
            .args(["-O1", "-o", name, "reads.c"])
            .current_dir(&dir)
            .status();
        assert!(made.unwrap().success(), "{name}");
        let program = format!("./{name}");
        let plain = support::printed(Command::new(&program).current_dir(&dir));
        for argv in [&[program.as_str()][..], &["sh", "-c", &program]] {
            let ours = support::printed(&mut support::outrider_run(&dir, &[], argv));
            assert_eq!(ours, plain, "{argv:?}");
        }
        sums.push(plain);
    }
    sums.dedup();
    assert_eq!(sums.len(), 1, "{sums:?}");
}

/// SPEC B11: where a filter of system calls is in force that kills for one of ours, the program runs without us, and one line says so.
#[test]
fn filters_that_kill() {
    let dir = fresh_with("filters_that_kill", &[Data::Text]);
    let deny = program("deny");
    for call in ["cachestat", "madvise", "memfd_create"] {
        let output = Command::new(&deny)
            .args([&format!("{call}=KILL"), "--"])
            .arg(outrider())
            .args(["run", "--", "cksum", "text.txt"])
            .current_dir(&dir)
            .output()
            .unwrap();
        let plain = support::printed(Command::new("cksum").arg("text.txt").current_dir(&dir));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{call}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), plain);
        assert!(
            error.lines().count() == 1 && error.contains(call),
            "{call}: {error}"
        );
    }
}

/// SPEC CP13: where filters are in force that can't be counted, as before Linux 5.9, nothing is followed, and the report says so.
#[test]
fn filters_that_cannot_be_counted() {
    const NAME: &str = "filters_that_cannot_be_counted";
    let dir = fresh_with(NAME, &[Data::Big]);
    let possible = Command::new("unshare").args(["-m", "true"]).status();
    if !possible.is_ok_and(|s| s.success()) {
        support::skip_unprivileged(NAME, "unshare --mount is not permitted");
        return;
    }
    let script = "mount -t tmpfs none /proc && mkdir /proc/self && ln -s \"$1\" /proc/self/exe &&
        printf 'Seccomp:\\t2\\n' >/proc/self/status && OUTRIDER=on exec \"$1\" run --report=r.json -- cksum big.dat";
    let command = outrider();
    let output = support::printed(
        Command::new("unshare")
            .args(["-m", "sh", "-c", script, "sh"])
            .arg(command)
            .current_dir(&dir),
    );
    let plain = support::printed(Command::new("cksum").arg("big.dat").current_dir(&dir));
    assert_eq!(output, plain);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("r.json")).unwrap()).unwrap();
    let lost = json["lost"].to_string();
    assert!(lost.contains("seccomp"), "{lost}");
    assert_eq!(json["processes"].as_array().map(Vec::len), Some(0));
}

/// SPEC B11: what is not the caller's own file keeps its access time as long as the program reads nothing of it.
#[test]
fn access_times_of_others_files() {
    const NAME: &str = "access_times_of_others_files";
    if !support::is_root() {
        support::skip_unprivileged(NAME, "only root can become another user");
        return;
    }
    let dir = fresh_with("access_times", &[Data::Big]);
    let nobody = |argv: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .args(argv)
            .current_dir("/");
        command
    };
    let outrider = outrider().display().to_string();
    let file = dir.join("big.dat").display().to_string();
    let reached = nobody(&[&outrider, "cached", &file]).status();
    if !reached.is_ok_and(|s| s.success()) {
        support::skip_unprivileged(NAME, "another user cannot reach the build directory");
        return;
    }
    let dated = Command::new("touch")
        .args(["-a", "-d", "2020-01-01", &file])
        .status();
    assert!(dated.unwrap().success());
    let script = "import os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
for at in range(0, 16 << 20, 1 << 20):
    os.posix_fadvise(fd, at, 1 << 20, os.POSIX_FADV_WILLNEED)
time.sleep(.3)
print(time.gmtime(os.fstat(fd).st_atime).tm_year)
";
    let argv = [&outrider, "run", "--", "python3", "-c", script, &file];
    assert_eq!(support::printed(&mut nobody(&argv)), "2020\n");
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

/// SPEC CP4: a hint that the service can't carry out is the kernel's, and not called saved.
#[test]
fn hints_are_not_lost() {
    let dir = fresh_with("hints_lost", &[Data::Big]);
    let script = "import ctypes, os, sys, time
fd = os.open('big.dat', os.O_RDONLY)
os.pread(fd, 4096, 20 << 20)
time.sleep(.5)
if sys.argv[1] == 'watches':
    libc = ctypes.CDLL(None)
    os.mkdir('watched')
    libc.inotify_add_watch(libc.inotify_init(), b'watched', 0x20)
    os.rmdir('watched')
for at in range(0, 16 << 20, 1 << 20):
    os.posix_fadvise(fd, at, 1 << 20, os.POSIX_FADV_WILLNEED)
time.sleep(.5)
";
    std::fs::write(
        dir.join("low.toml"),
        "[budget]\nlow_watermark = 1.0\nhigh_watermark = 1.0\n",
    )
    .unwrap();
    let resident = |command: &mut Command| {
        support::make_cold(&dir);
        assert!(command.current_dir(&dir).status().unwrap().success());
        let cached = ["cached", "--json", "big.dat"];
        let mut asks = Command::new(outrider());
        let out = asks.args(cached).current_dir(&dir).output().unwrap();
        let residency: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        residency["total"]["resident_bytes"].as_u64().unwrap()
    };
    let plain = resident(Command::new("python3").args(["-c", script, ""]));
    for (flags, what) in [
        (&[][..], "watches"),
        (&["--config", "low.toml"], ""),
        (&["--budget", "1M"], ""),
        (&["--engine", "noop"], ""),
        (&[], ""),
    ] {
        support::eventually(|| {
            let words = ["python3", "-c", script, what];
            let cached = resident(&mut support::outrider_run(&dir, flags, &words));
            // The kernel takes single pages away at any time.
            match cached + (1 << 20) >= plain {
                true => Ok(()),
                false => Err(format!("{flags:?} {what}: {cached} bytes of {plain}")),
            }
        });
    }
}

/// SPEC CP4: in mode `os-only` a hint reads nothing, and elsewhere what the kernel would clip is fetched whole, whichever call it is given by; hints of
/// what is cached don't reach the kernel, and the report says of which file and process they were.
#[test]
fn hints_are_dropped_or_completed() {
    let dir = fresh_with("hints", &[Data::Big]);
    const HINTS: [&str; 3] = [
        "os.posix_fadvise(fd, at, size, os.POSIX_FADV_WILLNEED)",
        "ctypes.CDLL(None).readahead(fd, ctypes.c_int64(at), ctypes.c_size_t(size))",
        "memory.madvise(mmap.MADV_WILLNEED, at, size)",
    ];
    let script = |hint: &str, pieces: u64| {
        format!(
            "import ctypes,mmap,os,sys
fd = os.open('big.dat', os.O_RDONLY)
memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
os.pread(fd, 4096, 20 << 20)
print('read', flush=True)
sys.stdin.readline()
for piece in range({pieces}):
    size = (16 << 20) // {pieces}
    at = piece * size
    {hint}
print('asked', flush=True)
sys.stdin.read()
"
        )
    };
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
    // The program asks once there is a helper, where there is to be one, and waits until it has been seen that `enough` is
    // cached.
    let cached = |mode: &str, hint: &str, pieces: u64, warm: bool, enough: u64| {
        support::make_cold(&dir);
        if warm {
            let head = ["-c", "16M", "big.dat"];
            let mut command = Command::new("head");
            assert!(
                command
                    .args(head)
                    .current_dir(&dir)
                    .output()
                    .unwrap()
                    .status
                    .success()
            );
        }
        let mut program = support::outrider_run(
            &dir,
            &["--mode", mode, "--report=r.json"],
            &["python3", "-c", &script(hint, pieces)],
        );
        let mut program = program
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(program.stdout.take().unwrap());
        let mut says = |what: &str| {
            let mut said = String::new();
            out.read_line(&mut said).unwrap();
            assert_eq!(said, what);
        };
        says("read\n");
        if mode != "os-only" {
            let helper =
                support::wait_for(
                    support::PATIENCE,
                    || support::helper_of(program.id() as i32),
                );
            assert!(helper.is_some(), "no helper after a cold read");
        }
        writeln!(program.stdin.as_ref().unwrap()).unwrap();
        says("asked\n");
        support::wait_for(support::PATIENCE, || (resident() >= enough).then_some(()));
        let bytes = resident();
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("r.json")).unwrap()).unwrap();
        (bytes, json)
    };
    for hint in HINTS {
        let (_, json) = cached("os-only", hint, 1, false, 0);
        assert_eq!(json["totals"]["prefetched_bytes"].as_u64().unwrap_or(0), 0);
        let bytes = resident();
        assert!(
            bytes < 10 << 20,
            "{bytes} bytes cached although hints are dropped: {hint}"
        );
        // The kernel may take pages away meanwhile, and the helper not be known yet: a hint is the kernel's then. What madvise(2) asks for the
        // kernel begins.
        let saved = u64::from(!hint.contains("madvise"));
        support::eventually(|| {
            let (bytes, json) = cached("predict", hint, 1, false, 12 << 20);
            if bytes >= 12 << 20 && json["totals"]["calls_saved"] == saved {
                return Ok(());
            }
            Err(format!(
                "{bytes} bytes cached of 16 MiB that were asked for: {hint}: {json}"
            ))
        });
    }
    // Hints that the service carries out, and those that are the kernel's where something is missing.
    for (hint, hints) in HINTS[..2].iter().flat_map(|h| [(h, 16), (h, 256)]) {
        support::eventually(|| {
            let (_, json) = cached("predict", hint, hints, true, 0);
            let file = json["files"].as_array().unwrap().iter();
            let mut file = file.filter(|f| f["path"].as_str().unwrap().ends_with("/big.dat"));
            let saved = [
                &json["totals"]["calls_saved"],
                &json["processes"][0]["calls_saved"],
                &file.next().ok_or(format!("{json}"))?["calls_saved"],
            ];
            let asked = json["totals"]["prefetched_bytes"].as_u64().unwrap();
            if saved.iter().all(|n| **n == hints) && asked < 1 << 20 {
                return Ok(());
            }
            Err(format!("{hints} hints of what is cached: {hint}: {json}"))
        });
    }
}
