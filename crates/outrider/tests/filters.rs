//! Filters of system calls (seccomp): those under which `outrider run` is started, and those that programs install. Nobody is killed for a call of ours
//! (SPEC B11, B16).

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use support::{Data, Disk, fresh, fresh_with, make_cold, outrider, program, skip_unprivileged};

/// One more than the highest number of a system call.
const CALLS: usize = 472;

/// What can be seen of how a command ended.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    out: String,
    err: String,
    code: Option<i32>,
    signal: Option<i32>,
}

impl Seen {
    fn of(output: &Output) -> Seen {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Seen {
            out: text(&output.stdout),
            err: text(&output.stderr),
            code: output.status.code(),
            signal: output.status.signal(),
        }
    }

    fn by(command: &mut Command) -> Seen {
        Seen::of(&command.output().unwrap())
    }

    /// The same, but for lines of ours on standard error.
    fn without_ours(mut self) -> Seen {
        let lines = self.err.lines().filter(|l| !l.starts_with("outrider: "));
        self.err = lines.fold(String::new(), |all, l| all + l + "\n");
        self
    }
}

/// `filter HOW CALLS …` in `dir`.
fn filtered(dir: &Path, how: &str, calls: &str) -> Command {
    let mut command = Command::new(program("filter"));
    command.args([how, calls]).current_dir(dir);
    command.env_remove("OUTRIDER").env_remove("INVOCATION_ID");
    command
}

/// `f` of each of these, by a few threads.
fn each<T: Send + Sync, R: Send>(of: Vec<T>, f: impl Fn(&T) -> Option<R> + Sync) -> Vec<R> {
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(one) = of.get(next.fetch_add(1, Relaxed)) {
                    if let Some(r) = f(one) {
                        found.lock().unwrap().push(r);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

/// Programs without a filter of their own: one that forks nothing, and one that does.
fn commands() -> [Vec<&'static str>; 2] {
    [
        vec!["/usr/bin/cksum", "text.txt", "none"],
        vec!["/bin/sh", "-c", "cksum text.txt; exit 7"],
    ]
}

/// A filter that kills for one system call, whichever that is, or has it fail: whoever would live without us lives, with the same output and end. `vouched`: the
/// user says that processes may be made.
fn one_call(name: &str, hows: &[&str], vouched: bool) {
    let dir = fresh_with(name, &[Data::Text]);
    let ours = outrider();
    let all = hows
        .iter()
        .flat_map(|how| (0..CALLS).map(move |call| (*how, call)));
    let failures = each(all.collect(), |(how, call)| {
        let mut all = Vec::new();
        for argv in commands() {
            let run = |extra: &[&std::ffi::OsStr]| {
                let mut command = filtered(&dir, how, &call.to_string());
                command.args(extra).args(&argv);
                if vouched {
                    command.env("OUTRIDER", "on");
                }
                Seen::by(&mut command)
            };
            let plain = run(&[]);
            // The one by which processes are made that try the others: see docs/semantics.md.
            if plain.signal.is_some() || vouched && how.len() > 3 && *call as i64 == libc::SYS_vfork
            {
                continue;
            }
            make_cold(&dir);
            let with = run(&[ours.as_os_str(), "run".as_ref(), "--".as_ref()]).without_ours();
            if with != plain {
                all.push(format!(
                    "{how} {call} {argv:?}: {with:?}, without us {plain:?}"
                ));
            }
        }
        (!all.is_empty()).then(|| all.join("\n"))
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// SPEC B11: nothing speaks for it that processes may be made.
#[test]
fn each_call_killed() {
    one_call(
        "each_killed",
        &["kill-process", "kill-thread", "trap"],
        false,
    );
}

/// SPEC B11: processes may be made, so that all other calls are tried.
#[test]
fn each_call_killed_where_processes_may_be_made() {
    one_call("each_killed_vouched", &["kill-process"], true);
}

/// SPEC B11: calls that fail, with EPERM and ENOSYS.
#[test]
fn each_call_refused() {
    one_call("each_refused", &["1", "38"], true);
}

/// The numbers of the calls that a command makes, by strace(1).
fn calls_of(dir: &Path, argv: &[&str]) -> Option<BTreeSet<i64>> {
    let log = dir.join("strace.log");
    let output = Command::new("strace")
        .args(["-f", "-n", "-qq", "-o"])
        .arg(&log)
        .args(argv)
        .current_dir(dir)
        .output()
        .ok()?;
    output.status.code()?;
    let text = fs::read_to_string(&log).ok()?;
    // `PID [ NUMBER] name(…`
    let number = |line: &str| {
        line.split_once('[')?
            .1
            .split_once(']')?
            .0
            .trim()
            .parse()
            .ok()
    };
    let found: BTreeSet<i64> = text.lines().filter_map(number).collect();
    fs::remove_file(&log).ok()?;
    (found.len() > 5).then_some(found)
}

/// SPEC B11: a filter that kills for all that the program doesn't need itself.
#[test]
fn nothing_but_what_the_program_needs() {
    const NAME: &str = "nothing_but_what_the_program_needs";
    if !support::have("strace") {
        support::skip(NAME, "no strace");
        return;
    }
    let dir = fresh_with(NAME, &[Data::Text, Data::Big]);
    let ours = outrider();
    for argv in [
        &["/bin/cat", "text.txt"][..],
        &["/usr/bin/cksum", "big.dat", "none"],
        &["/usr/bin/wc", "-l", "text.txt"],
        &["/usr/bin/head", "-c", "3000000", "big.dat"],
    ] {
        let calls = calls_of(&dir, argv).expect("strace names calls");
        let calls: Vec<String> = calls.iter().map(i64::to_string).collect();
        for how in ["only:kill-process", "only:trap"] {
            let run = |flags: &[&str]| {
                let mut command = filtered(&dir, how, &calls.join(","));
                if !flags.is_empty() {
                    command.arg(&ours).args(flags);
                }
                make_cold(&dir);
                Seen::by(command.args(argv))
            };
            let plain = run(&[]);
            assert_eq!(plain.signal, None, "{argv:?}");
            assert_eq!(run(&["run", "--"]), plain, "{argv:?}");
            assert_eq!(run(&["run", "--mode", "fetchall+opt"]), plain, "{argv:?}");
            // Whoever wants a report is told.
            let told = run(&["run", "--report"]);
            assert!(
                told.err.contains("OUTRIDER=on") && told.err.contains("runs without"),
                "{told:?}"
            );
            assert_eq!(told.without_ours(), plain, "{argv:?}");
            // Its name is looked for.
            let name = Path::new(argv[0]).file_name().unwrap();
            let mut command = filtered(&dir, how, &calls.join(","));
            command.env("PATH", "/none:/usr/bin:/bin");
            command
                .arg(&ours)
                .args(["run", "--"])
                .arg(name)
                .args(&argv[1..]);
            let named = Seen::by(&mut command);
            assert_eq!((named.out, named.code), (plain.out.clone(), plain.code));
        }
    }
}

/// SPEC B11: as above, into a file.
#[test]
fn the_report_of_a_run_under_a_filter() {
    let dir = fresh_with("report_under_filter", &[Data::Text]);
    let mut command = filtered(&dir, "kill-process", &libc::SYS_readahead.to_string());
    command
        .arg(outrider())
        .args(["run", "--report=r.json", "--mode=predict"]);
    command.args(["--engine", "threads", "--", "cksum", "text.txt"]);
    let seen = Seen::by(&mut command);
    let plain = Seen::by(Command::new("cksum").arg("text.txt").current_dir(&dir));
    assert_eq!(seen, plain);
    let text = fs::read_to_string(dir.join("r.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(
        json["lost"][0].as_str().unwrap().contains("seccomp"),
        "{json}"
    );
    assert_eq!(
        (&json["mode"], &json["engine"]),
        (&"predict".into(), &"threads".into())
    );
    // As any other that couldn't prefetch.
    let mut command = Command::new(outrider());
    command.args([
        "run",
        "--report=r2.json",
        "--mode=predict",
        "--engine",
        "threads",
        "--",
        "true",
    ]);
    assert!(command.current_dir(&dir).status().unwrap().success());
    let other = fs::read_to_string(dir.join("r2.json")).unwrap();
    let other: serde_json::Value = serde_json::from_str(&other).unwrap();
    let keys = |v: &serde_json::Value| -> BTreeSet<String> {
        v.as_object().unwrap().keys().cloned().collect()
    };
    // But for what is only known of a run that came to its end.
    let own = "command elapsed_us exit_code saved_us system_us user_us waited_us";
    let own = own.split(' ').map(str::to_owned).collect();
    assert_eq!(&keys(&other) - &keys(&json), own);
    assert!(keys(&json).is_subset(&keys(&other)));
    assert_eq!(json["ended"], false);
}

/// Reads of the programs that were followed by a run below a command, as its report tells.
fn followed(dir: &Path, command: &mut Command) -> u64 {
    let report = dir.join("r.json");
    let _ = fs::remove_file(&report);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let json = fs::read_to_string(&report).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let processes = json["processes"].as_array().unwrap().iter();
    processes.filter_map(|p| p["reads"].as_u64()).sum()
}

/// SPEC B11: under filters as containers, services and shells in sandboxes have them, which kill for nothing of ours, programs are followed.
#[test]
fn filters_that_do_not_kill() {
    const NAME: &str = "filters_that_do_not_kill";
    let dir = fresh_with(NAME, &[Data::Big]);
    let ours = outrider();
    // swapon(2): EPERM.
    let forbidden = libc::SYS_swapon.to_string();
    let run = [
        ours.to_str().unwrap(),
        "run",
        "--report=r.json",
        "--",
        "cat",
        "big.dat",
    ];
    let script = format!("{}; exit $?", run.join(" "));
    let service = ["/bin/sh", "-c", "SYSTEMD_EXEC_PID=$$ exec \"$@\"", "sh"];
    let vouched = ["/usr/bin/env", "OUTRIDER=on"];
    for (name, argv) in [
        ("a shell", vec!["/bin/bash", "-c", &script]),
        ("vouched for", [&vouched[..], &run].concat()),
        ("a service", [&service[..], &run].concat()),
    ] {
        let mut command = filtered(&dir, "1", &forbidden);
        assert!(followed(&dir, command.args(&argv)) > 0, "{name}");
    }
    if !support::is_root() {
        skip_unprivileged(NAME, "only root makes process namespaces");
        return;
    }
    // A container's first process.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]);
    command.arg(program("filter")).args(["1", &forbidden]);
    command.args(run).current_dir(&dir).env_remove("OUTRIDER");
    assert!(followed(&dir, &mut command) > 0, "a container");
}

/// SPEC B1, B16: where children are to be in a new process namespace its first process is the program's first child, and none of ours, with which the
/// namespace would end.
#[test]
fn the_first_child_of_a_namespace() {
    const NAME: &str = "the_first_child_of_a_namespace";
    if !support::is_root() {
        return skip_unprivileged(NAME, "only root makes process namespaces");
    }
    let dir = fresh_with(NAME, &[]);
    let ours = outrider();
    let ours = ours.to_str().unwrap();
    // swapon(2): EPERM.
    let forbidden = libc::SYS_swapon.to_string();
    let run = |ours: &[&str]| {
        let mut command = Command::new("unshare");
        command.arg("--pid").arg(program("filter"));
        command.args(["1", &forbidden]).args(ours);
        command.args([
            "/bin/sh",
            "-c",
            "sh -c 'echo $$'; echo again; sh -c 'echo $$'",
        ]);
        command.current_dir(&dir).env("OUTRIDER", "on");
        Seen::by(&mut command).without_ours()
    };
    let plain = run(&[]);
    assert!(plain.out.starts_with("1\nagain\n"), "{plain:?}");
    assert_eq!(run(&[ours, "run", "--"]), plain);
    assert_eq!(run(&[ours, "run", "--report=r.json", "--"]), plain);
}

/// SPEC B16: what stops being followed because of a filter leaves nothing behind: no child, no signal, no core.
#[test]
fn what_was_tried_leaves_nothing() {
    let dir = fresh_with("leaves_nothing", &[]);
    let script = "ulimit -c unlimited; trap '' CHLD; exec \"$@\"";
    let show = "import glob, os
for line in open('/proc/self/status'):
    if line.startswith(('SigPnd', 'ShdPnd', 'SigBlk', 'SigIgn', 'SigCgt', 'Threads')):
        print(line)
own = 'PPid:\\t%d\\n' % os.getpid()
for status in glob.glob('/proc/[0-9]*/status'):
    try:
        text = open(status).read()
    except OSError:
        continue
    if own in text:
        print('a child', text)
print(os.listdir('.'), flush=True)
os._exit(5)";
    let numbers = [
        libc::SYS_statx,
        libc::SYS_wait4,
        libc::SYS_prlimit64,
        libc::SYS_write,
    ];
    for number in numbers.map(|n| n.to_string()) {
        for blocked in [false, true] {
            let python = "import os, signal, sys
if sys.argv[1] == '1':
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
os.execvp(sys.argv[2], sys.argv[2:])";
            let run = |ours: Option<&Path>| {
                let mut command = Command::new("bash");
                command.args(["-c", script, "bash", "python3", "-c", python]);
                command.arg(if blocked { "1" } else { "0" });
                command
                    .arg(program("filter"))
                    .args(["kill-process", &number]);
                if let Some(ours) = ours {
                    command
                        .arg("/usr/bin/env")
                        .arg("OUTRIDER=on")
                        .arg(ours)
                        .args(["run", "--"]);
                }
                command
                    .args(["/usr/bin/env", "python3", "-c", show])
                    .current_dir(&dir);
                Seen::by(&mut command)
            };
            let plain = run(None);
            let with = run(Some(&outrider())).without_ours();
            assert_eq!(with, plain, "{number} {blocked}");
        }
    }
}

/// A file on a slow disk, and how it is read without us; with `cached` also while it is cached.
fn own_filter(name: &str, hows: &[&str], whats: &[&str], attempts: usize, cached: bool) {
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, support::Random(5).bytes(12 << 20)).unwrap();
    disk.does("model", &["nvme"]);
    let confines = program("confines");
    let mut failures = Vec::new();
    for how in hows {
        for what in whats {
            for bytes in ["200000", "6000000"] {
                let run = |ours: bool, cached: bool| {
                    let mut command = match ours {
                        true => Command::new(outrider()),
                        false => Command::new(&confines),
                    };
                    if ours {
                        command.args(["run", "--"]).arg(&confines);
                    }
                    disk.does("cold", &[]);
                    if cached {
                        fs::read(&file).unwrap();
                    }
                    Seen::by(command.args([how, what]).arg(&file).arg(bytes))
                };
                let plain = run(false, false);
                assert_eq!(plain.code, Some(3), "{how} {what}: {plain:?}");
                for i in 0..attempts {
                    for cached in [false, true].into_iter().filter(|c| cached || !c) {
                        let with = run(true, cached);
                        if with != plain {
                            failures.push(format!(
                                "{how} {what} {bytes}, {i}, {cached}: {with:?}, without us {plain:?}"
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

const WHATS: [&str; 12] = [
    "r", "rx", "rl", "rd", "p", "v", "s", "m", "rc", "rpvslmdc", "Drpvm", "Dr",
];

/// SPEC B11, B16: a filter that hooks see being installed, by whatever name: whatever else the program does is left alone.
#[test]
fn filters_that_are_seen() {
    own_filter("seen", &["linked", "handle", "call"], &WHATS, 2, true);
    let more = [
        "ro",
        "rF",
        "ra",
        "rqk",
        "ru",
        "rM",
        "rpf",
        "rz",
        "ry",
        "ri",
        "rt",
        "ropaqMfzyit",
    ];
    own_filter("seen_more", &["linked", "handle", "call"], &more, 1, true);
}

/// SPEC B11, B16: a filter that the program installs by an instruction of its own, for one thread or all, or strict mode: reads in all their kinds and the end
/// of the process are no reason to kill it. Of files that were cached when they were opened nothing has been told yet; the first read that waits, be it for a
/// processor, is: that window remains (docs/semantics.md), and whether it is met is chance.
#[test]
fn filters_that_are_not_seen() {
    own_filter("unseen", &["raw", "thread", "tsync"], &WHATS, 2, false);
    own_filter(
        "unseen_more",
        &["raw", "tsync"],
        &["rM", "ru", "rpf", "rz", "ry", "rt", "rq", "rk", "qk"],
        2,
        false,
    );
    own_filter("strict", &["strict"], &["r", "rx"], 3, false);
}

/// SPEC B11, B16: who is under a filter waits for a child that a signal has ended, and is not killed for what that would have us ask.
#[test]
fn killed_children_of_the_filtered() {
    let dir = fresh_with("killed_children_of_the_filtered", &[Data::Big]);
    let built = program("waits_filtered");
    let argv = [built.to_str().unwrap(), "big.dat"];
    for _ in 0..3 {
        make_cold(&dir);
        let with = Seen::by(&mut support::outrider_run(&dir, &[], &argv));
        assert_eq!((with.code, with.signal), (Some(3), None), "{with:?}");
    }
}

/// SPEC B11, B16: once the service has found a filter that no hook saw, no call asks the kernel for anything of ours any more.
#[test]
#[cfg(target_arch = "x86_64")]
fn calls_after_a_filter_was_found() {
    const NAME: &str = "calls_after_a_filter_was_found";
    const CALLS: &str = "nothing wait rmdir unlinkat rename renameat2 lease inotify dnotify umount remount exec dup2 setuid sys_setuid setresuid \
        setgroups setfsuid capset bound chroot unshare_fs landlock no_new_privs seccomp close_range unshare_files";
    if !support::is_root() {
        return support::skip_unprivileged(NAME, "changes what it may do");
    }
    let dir = fresh_with(NAME, &[Data::Big]);
    for path in ["d/a", "e"] {
        fs::create_dir_all(dir.join(path)).unwrap();
    }
    for path in ["x", "y"] {
        fs::write(dir.join(path), "").unwrap();
    }
    let built = program("after_filter");
    for call in CALLS.split_ascii_whitespace() {
        let argv = |ms| [built.to_str().unwrap(), "big.dat", ms, call];
        make_cold(&dir);
        // The service looks ten times a second.
        let with = Seen::by(&mut support::outrider_run(&dir, &[], &argv("800")));
        let plain = Seen::by(Command::new(&built).args(&argv("0")[1..]).current_dir(&dir));
        assert!(
            plain.code == Some(0) && plain.out.starts_with(call),
            "{plain:?}"
        );
        assert_eq!(with, plain, "{call}");
    }
}

/// SPEC B11, B16: libraries that install filters, as file(1) does, and through ctypes.
#[test]
fn programs_that_filter_themselves() {
    const NAME: &str = "programs_that_filter_themselves";
    let dir = fresh_with(NAME, &[Data::Big, Data::Text]);
    let ctypes = "import ctypes, os, struct
f = open('big.dat', 'rb', buffering=0)
f.read(65536)
libc = ctypes.CDLL('libc.so.6', use_errno=True)
allowed = [0, 1, 3, 8, 9, 10, 11, 12, 13, 17, 25, 28, 60, 72, 202, 228, 231, 5, 262, 16, 24, 318, 14]
code = [(0x20, 0, 0, 0)]
for n in allowed:
    code += [(0x15, 0, 1, n), (0x06, 0, 0, 0x7fff0000)]
code += [(0x06, 0, 0, 0x80000000)]
text = b''.join(struct.pack('HBBI', *c) for c in code)
buffer = ctypes.create_string_buffer(text)
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(code), ctypes.addressof(buffer)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0
total = 0
while True:
    data = f.read(65536)
    if not data:
        break
    total += len(data) + data[0]
os.write(1, b'%d\\n' % total)
os._exit(4)";
    let mut cases: Vec<Vec<&str>> = Vec::new();
    if cfg!(target_arch = "x86_64") {
        cases.push(vec!["python3", "-c", ctypes]);
    }
    if support::have("file") {
        cases.push(vec!["file", "big.dat", "text.txt", "/bin/sh"]);
        cases.push(vec!["file", "-z", "big.dat", "text.txt"]);
    }
    for argv in cases {
        for _ in 0..3 {
            let plain = {
                make_cold(&dir);
                Seen::by(Command::new(argv[0]).args(&argv[1..]).current_dir(&dir))
            };
            make_cold(&dir);
            let with = Seen::by(&mut support::outrider_run(&dir, &[], &argv));
            assert_eq!(with, plain, "{argv:?}");
        }
    }
}
