//! Whatever is refused, broken or hostile: the program runs as if we weren't there, and the report
//! says what was lost.
//!
//! SPEC B1 (each privilege that is there makes it better, none is required), B11 (costs time, never
//! correctness), CP13 (the report), CP1 (the hooks). The first half runs programs that do to their
//! own descriptors, memory, threads and signals what hooks fear most; the second half takes away what
//! Outrider stands on, call by call, with a seccomp filter over everything, with limits, with strace's
//! fault injection on the runner alone, and by killing and stopping the helper.

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use support::Data::{Big, Bin, Text};
use support::{
    Case, Outcome, PATIENCE, check, eventually, fresh_with, helper_of, outrider_run, program,
    skip_unprivileged, wait_for,
};

// ---------------------------------------------------------------------------------------------
// Hostile programs

fn hostile(name: &str) -> Case {
    let path = program(name);
    Case::argv(name, &[path.as_os_str(), "bin.dat".as_ref()]).data(&[Bin])
}

/// Musts 1 and 2: hooks entered from signal handlers, from malloc and before main.
#[test]
fn hooks_entered_anywhere() {
    check(vec![
        hostile("signals").expects_prefetch(),
        hostile("malloc_io").expects_prefetch(),
    ]);
}

/// Must 5: fork among threads, vfork with another descriptor table in the same memory, raw clone.
#[test]
fn processes_made_in_every_way() {
    check(vec![
        hostile("fork_mt").expects_prefetch(),
        hostile("vfork_exec").expects_prefetch(),
        hostile("raw_clone").expects_prefetch(),
        hostile("copies").expects_prefetch(),
    ]);
}

/// Must 1: cancellation points stay cancellation points, and nothing else becomes one.
#[test]
fn cancellation() {
    check(vec![hostile("cancel")]);
}

/// Must 4: descriptors closed wholesale, and rights given up.
#[test]
fn descriptors_closed_and_rights_dropped() {
    let mut cases = vec![hostile("closeall").expects_prefetch()];
    if support::is_root() {
        let path = program("setuid_drop");
        cases.push(
            Case::argv(
                "setuid_drop",
                &[path.as_os_str(), "bin.dat".as_ref(), "text.txt".as_ref()],
            )
            .data(&[Bin, Text])
            .setup(|work| {
                fs::set_permissions(work.join("bin.dat"), fs::Permissions::from_mode(0o600))
                    .unwrap()
            })
            .expects_prefetch(),
        );
    } else {
        skip_unprivileged("setuid_drop", "only root can give up root's rights");
    }
    check(cases);
}

// ---------------------------------------------------------------------------------------------
// Refusals

/// Real work that needs no threads of its own, so that only we feel the refusal.
fn work(name: &str) -> Case {
    let reader = program("pread_many");
    Case::sh(
        name,
        &format!(
            "{} big.dat 2000 - bin.dat; cat bin.dat | cksum; tac text.txt | cksum; cp bin.dat copy; echo $?",
            reader.display()
        ),
    )
    .data(&[Big, Bin, Text])
}

/// Runs a case in the default mode and requires a line of the report's `lost` that has one of `words`.
///
/// What is refused is noticed when it is needed: a helper that gets no turn before the program is over needs nothing, so
/// there are several attempts.
fn must_be_named(case: Case, words: &[&str], failures: &mut Vec<String>) {
    let case = case.modes(&["predict+opt"]);
    let mut last = None;
    for _ in 0..5 {
        match case.run() {
            Err(text) => last = Some(text),
            Ok(outcomes) if names(&outcomes["predict+opt"], words) => return,
            Ok(outcomes) => {
                last = Some(format!(
                    "{}: the report names none of {words:?}; lost: {:?}",
                    case.name,
                    outcomes["predict+opt"].lost()
                ));
                continue;
            }
        }
        break;
    }
    failures.extend(last);
}

fn names(outcome: &Outcome, words: &[&str]) -> bool {
    words.is_empty()
        || outcome
            .lost()
            .iter()
            .any(|line| words.iter().any(|w| line.to_lowercase().contains(w)))
}

fn report(failures: Vec<String>) {
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// System calls that a container or an old kernel refuses, for the runner, the helper and the
/// program alike. No words: nothing need be lost, because there is another way.
#[test]
fn system_calls_refused() {
    let deny = program("deny");
    let cases: &[(&str, &str, &[&str], &[&str])] = &[
        (
            "io_uring_eperm",
            "io_uring_setup=EPERM",
            &["--engine", "uring"],
            &["io_uring"],
        ),
        (
            "io_uring_enosys",
            "io_uring_setup=ENOSYS",
            &["--engine", "uring"],
            &["io_uring"],
        ),
        ("io_uring_auto", "io_uring_setup=EPERM", &[], &[]),
        (
            "io_uring_enter",
            "io_uring_enter=EPERM,io_uring_register=EPERM",
            &["--engine", "uring"],
            &["io_uring"],
        ),
        (
            // Files are opened by their /proc/PID/fd names.
            "pidfd",
            "pidfd_open=ENOSYS,pidfd_getfd=ENOSYS",
            &[],
            &[],
        ),
        (
            "threads",
            "clone:0&0x10000=EAGAIN,clone3=ENOSYS",
            &["--engine", "threads"],
            &["thread"],
        ),
        (
            "memfd",
            "memfd_create=EMFILE",
            &[],
            &["memfd", "shared memory"],
        ),
        ("cachestat", "cachestat=EPERM", &[], &["cachestat"]),
        ("cachestat_enosys", "cachestat=ENOSYS", &[], &["cachestat"]),
        (
            "readahead",
            "readahead=EINVAL",
            &["--engine", "readahead"],
            &[],
        ),
        (
            "readahead_and_fadvise",
            "readahead=ENOSYS,fadvise64=ENOSYS",
            &["--engine", "readahead"],
            &["readahead"],
        ),
        ("no_pages", "fadvise64=ENOMEM", &[], &["enomem"]),
        ("populate", "madvise:2~22=EINVAL", &[], &[]),
        ("madvise", "madvise=EINVAL,mincore=EPERM", &[], &[]),
        (
            "little_things",
            "ioprio_set=EPERM,sched_setscheduler=EPERM,eventfd2=EMFILE",
            &[],
            &[],
        ),
        (
            "descriptor_tables",
            "close_range=ENOSYS,unshare=EPERM",
            &[],
            &[],
        ),
        ("fiemap", "ioctl:1~0xc020660b=EPERM", &[], &[]),
        (
            "nearly_everything",
            "io_uring_setup=EPERM,pidfd_open=EPERM,pidfd_getfd=EPERM,memfd_create=ENOSYS,cachestat=EPERM,readahead=EPERM,fadvise64=EPERM,madvise:2~22=EPERM,clone:0&0x10000=EAGAIN,clone3=ENOSYS",
            &[],
            // Whichever was needed first.
            &["memfd", "shared memory", "thread", "cachestat", "readahead"],
        ),
    ];
    let mut failures = Vec::new();
    for (name, rules, flags, words) in cases {
        let wrapper = [deny.as_os_str(), rules.as_ref(), "--".as_ref()];
        must_be_named(
            work(&format!("refused_{name}"))
                .wrapped(&wrapper)
                .flags(flags),
            words,
            &mut failures,
        );
    }
    report(failures);
}

/// Memory and descriptors that run out, and what that costs is said. A limit binds the runner and the program alike; the limits on
/// open files are lifted again by the program, so that it is the runner that suffers.
#[test]
fn limits() {
    let under = |name: &str, limit: &str| {
        work(&format!("limit_{name}")).wrapped(&[
            "bash".to_string(),
            "-c".into(),
            format!("{limit}; exec \"$@\""),
            "_".into(),
        ])
    };
    let reader = program("pread_many");
    let script = format!(
        "ulimit -Sn 1024; {} big.dat 2000 - bin.dat; cat bin.dat text.txt | cksum",
        reader.display()
    );
    let few_files = |name: &str, n: u32| {
        Case::sh(name, &script).data(&[Big, Bin, Text]).wrapped(&[
            "bash".to_string(),
            "-c".into(),
            format!("ulimit -Sn {n}; exec \"$@\""),
            "_".into(),
        ])
    };
    let mut failures = Vec::new();
    let few = few_files("named_files_5", 5);
    must_be_named(few, &["shared memory"], &mut failures);
    report(failures);
    check(vec![
        under("address_space_40", "ulimit -v 40000"),
        under("address_space_80", "ulimit -v 80000"),
        under("address_space_300", "ulimit -v 300000"),
        under("locked_memory", "ulimit -l 0"),
        under("stack", "ulimit -s 128"),
        under("file_size", "ulimit -f 40000"),
        few_files("limit_files_4", 4),
        few_files("limit_files_6", 6),
        few_files("limit_files_8", 8),
        few_files("limit_files_12", 12),
    ]);
}

/// The runner's own fork, for the helper or for the program, fails. Either the program runs as if we
/// weren't there, or (if it is the program's process that cannot be made) it is not started at all and
/// one line says so, as a shell would.
#[test]
fn fork_refused() {
    if !support::have("strace") {
        return support::skip("fork_refused", "strace is not installed");
    }
    let reader = program("pread_many");
    let mut ran = 0;
    for when in ["1", "2", "3", "3+", "4"] {
        let dir = fresh_with(&format!("fork_refused_{when}"), &[Big, Bin]);
        let plain = Command::new(&reader)
            .args(["big.dat", "1000", "-", "bin.dat"])
            .current_dir(&dir)
            .output()
            .unwrap();
        let json = dir.join("report.json");
        let run = outrider_run(
            &dir,
            &[&format!("--report={}", json.display())],
            &[reader.to_str().unwrap(), "big.dat", "1000", "-", "bin.dat"],
        );
        let mut traced = Command::new("strace");
        support::plain_environment(&mut traced, &dir);
        let inject = format!("inject=clone,clone3,fork,vfork:error=EAGAIN:when={when}");
        traced
            .args(["-o", "/dev/null", "-e", &inject])
            .arg(run.get_program())
            .args(run.get_args())
            .current_dir(&dir);
        let ours = traced.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&ours.stderr);
        if ours.stdout == plain.stdout {
            assert!(
                ours.status.success(),
                "fork {when} refused: {} {text}",
                ours.status
            );
            // The first only asks what is refused; without the second it is the program alone that runs.
            let alone = text.ends_with(": the program runs without Outrider\n");
            assert_eq!(alone, when == "2", "fork {when} refused: {text}");
            assert_eq!(text.lines().count(), usize::from(alone), "{text}");
            ran += 1;
        } else {
            assert!(
                ours.stdout.is_empty() && !ours.status.success(),
                "fork {when} refused: half a run, {}",
                ours.status
            );
            assert_eq!(
                text.lines().count(),
                1,
                "fork {when} refused: one line must say so: {text}"
            );
        }
    }
    assert!(ran > 0, "with no refused fork did the program run");
}

// ---------------------------------------------------------------------------------------------
// The helper in trouble

/// A run that has been stopped in the middle: the program has read a quarter of its file in order,
/// the helper has been started, and the program waits for [`Midway::go_on`].
struct Midway {
    dir: std::path::PathBuf,
    runner: Child,
    helper: i32,
    expected: String,
}

impl Midway {
    fn start(name: &str, preads: &str) -> Midway {
        Midway::start_in("predict+opt", name, preads)
    }

    fn start_in(mode: &str, name: &str, preads: &str) -> Midway {
        let dir = fresh_with(name, &[Big, Bin]);
        let reader = program("pread_many");
        let plain = Command::new(&reader)
            .args(["big.dat", preads, "-", "bin.dat"])
            .current_dir(&dir)
            .output()
            .unwrap();
        support::make_cold(&dir);
        let json = format!("--report={}", dir.join("report.json").display());
        let mut runner = outrider_run(
            &dir,
            &["--mode", mode, &json],
            &[
                reader.to_str().unwrap(),
                "big.dat",
                preads,
                "pause",
                "bin.dat",
            ],
        )
        .stdin(Stdio::piped())
        .stdout(fs::File::create(dir.join("stdout")).unwrap())
        .stderr(fs::File::create(dir.join("stderr")).unwrap())
        .spawn()
        .unwrap();
        let pid = runner.id() as i32;
        let ready = wait_for(PATIENCE, || {
            fs::read_to_string(dir.join("stdout"))
                .ok()
                .filter(|s| s.starts_with("ready"))
        });
        let helper = wait_for(PATIENCE, || helper_of(pid));
        if ready.is_none() || helper.is_none() {
            let _ = runner.kill();
            panic!(
                "{name}: ready {ready:?}, helper {helper:?}: after 8 MiB of cold reads in order there must be a helper"
            );
        }
        Midway {
            dir,
            runner,
            helper: helper.unwrap(),
            expected: format!("ready\n{}", String::from_utf8_lossy(&plain.stdout)),
        }
    }

    fn go_on(&mut self) {
        self.runner.stdin.take().unwrap().write_all(b"g").unwrap();
    }

    fn stdout(&self) -> String {
        fs::read_to_string(self.dir.join("stdout")).unwrap()
    }

    /// The run ends well, with the right output and nothing on stderr.
    fn finish(mut self) -> Outcome {
        let status = wait_for(PATIENCE, || self.runner.try_wait().unwrap());
        let Some(status) = status else {
            let _ = self.runner.kill();
            panic!(
                "{}: the runner does not end; stdout {}",
                self.dir.display(),
                self.stdout()
            );
        };
        assert_eq!(self.stdout(), self.expected, "{}", self.dir.display());
        assert!(status.success(), "{}: {status}", self.dir.display());
        assert_eq!(
            fs::read_to_string(self.dir.join("stderr")).unwrap(),
            "",
            "{}",
            self.dir.display()
        );
        let report = fs::read(self.dir.join("report.json"))
            .ok()
            .and_then(|j| serde_json::from_slice(&j).ok());
        assert!(report.is_some(), "{}: no report", self.dir.display());
        Outcome {
            report,
            ..Outcome::default()
        }
    }
}

fn send(pid: i32, signal: i32) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid, signal) };
}

/// The helper is killed: before, at the beginning and in the middle of the random reads. CP13: what it had counted by then is in the report, of the process as
/// in all.
#[test]
fn helper_killed() {
    for (i, delay_ms) in [0u64, 1, 5, 20, 60].into_iter().enumerate() {
        let mode = ["fetchall+opt", "predict+opt"][i % 2];
        let mut run = Midway::start_in(mode, &format!("helper_killed_{i}"), "300000");
        if i == 0 {
            send(run.helper, libc::SIGKILL);
            run.go_on();
        } else {
            run.go_on();
            std::thread::sleep(std::time::Duration::from_millis(delay_ms));
            send(run.helper, libc::SIGKILL);
        }
        // The program may have ended before the blow fell.
        let in_time = !run.stdout().contains("sum");
        let outcome = run.finish();
        assert!(
            !in_time || names(&outcome, &["helper"]),
            "delay {delay_ms} ms; lost: {:?}",
            outcome.lost()
        );
        let report = outcome.report.as_ref().unwrap();
        let [process, all] = [&report["processes"][0], &report["totals"]];
        let figure = |of: &serde_json::Value, name: &str| of[name].as_u64().unwrap_or(0);
        for name in ["prefetched_bytes", "used_bytes", "hit_bytes", "miss_bytes"] {
            assert_eq!(
                figure(process, name),
                figure(all, name),
                "delay {delay_ms} ms, {name}: {report:#}"
            );
        }
        assert!(
            figure(process, "bytes_read") > 0
                && (mode == "predict+opt" || figure(process, "prefetched_bytes") > 1 << 20),
            "delay {delay_ms} ms: {report:#}"
        );
    }
}

/// The helper is stopped, so the event queue fills up: the program must not wait for it.
#[test]
fn event_queue_full() {
    let mut run = Midway::start("event_queue_full", "400000");
    send(run.helper, libc::SIGSTOP);
    run.go_on();
    let done = wait_for(PATIENCE, || run.stdout().contains("sum").then_some(()));
    send(run.helper, libc::SIGCONT);
    assert!(
        done.is_some(),
        "the program waits for a helper that is stopped"
    );
    let outcome = run.finish();
    assert!(
        outcome.total("events_dropped").is_some_and(|n| n > 0),
        "totals: {}",
        outcome.report.as_ref().unwrap()["totals"]
    );
    assert!(
        names(&outcome, &["event", "queue", "drop"]),
        "lost: {:?}",
        outcome.lost()
    );
}

/// A program writes into the memory that it shares that its queue is full of events, and none ever comes: the helper sleeps between looks.
#[test]
fn event_queue_scribbled_over() {
    let script = "import ctypes, os, sys
file = os.open('bin.dat', os.O_RDONLY)
for at in reversed(range(0, os.fstat(file).st_size, 4096)):
    os.pread(file, 4096, at)
memory = next(int(line.split('-')[0], 16) for line in open('/proc/self/maps') if 'memfd:outrider' in line)
head = memory + 64
ctypes.c_uint32.from_address(head).value = 0x7f7f7f7f
print('ready', flush=True)
sys.stdin.read()
";
    let dir = fresh_with("event_queue_scribbled_over", &[Bin]);
    support::make_cold(&dir);
    let mut runner = outrider_run(&dir, &[], &["python3", "-c", script])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(dir.join("stdout")).unwrap())
        .spawn()
        .unwrap();
    let ready = wait_for(PATIENCE, || {
        let text = fs::read_to_string(dir.join("stdout")).unwrap();
        text.starts_with("ready").then_some(())
    });
    let helper = wait_for(PATIENCE, || helper_of(runner.id() as i32));
    let sleeps = || {
        let status = fs::read_to_string(format!("/proc/{}/status", helper?)).ok()?;
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    let before = sleeps();
    let slept = wait_for(PATIENCE / 4.0, || {
        sleeps().filter(|now| Some(*now) >= before.map(|b| b + 20))
    });
    drop(runner.stdin.take());
    let status = runner.wait().unwrap();
    assert!(
        ready.is_some() && status.success() && before.is_some(),
        "{status}, helper {helper:?}"
    );
    assert!(slept.is_some(), "the helper never sleeps");
}

/// The helper is stopped for good: the report says that it could not be asked for its figures.
#[test]
fn helper_silent() {
    let mut run = Midway::start("helper_silent", "1000");
    let helper = run.helper;
    send(helper, libc::SIGSTOP);
    // The runner has it go on, but for whom a debugger has; where that is not permitted it is stopped again and again.
    let (over, held) = (Arc::new(AtomicBool::new(false)), std::sync::mpsc::channel());
    let stopper = std::thread::spawn({
        let over = over.clone();
        move || {
            // SAFETY: a process of this run, or none any more; nothing is written.
            unsafe {
                let ask = |what| libc::ptrace(what, helper, 0, 0) == 0;
                let wait =
                    |flags| libc::waitpid(helper, std::ptr::null_mut(), libc::__WALL | flags);
                let debugs = ask(libc::PTRACE_SEIZE) && ask(libc::PTRACE_INTERRUPT) && wait(0) > 0;
                held.0.send(()).unwrap();
                while !over.load(Relaxed) {
                    if debugs {
                        // Nobody else learns of its end before.
                        wait(libc::WNOHANG);
                        std::thread::sleep(Duration::from_millis(1));
                    } else {
                        libc::kill(helper, libc::SIGSTOP);
                        std::thread::yield_now();
                    }
                }
                ask(libc::PTRACE_DETACH);
            }
        }
    });
    held.1.recv().unwrap();
    run.go_on();
    let outcome = run.finish();
    over.store(true, Relaxed);
    stopper.join().unwrap();
    assert!(
        names(&outcome, &["did not answer"]),
        "lost: {:?}",
        outcome.lost()
    );
}

/// The helper can open nothing more, and has no memory to map.
#[test]
fn helper_without_resources() {
    for (name, limit, words) in [
        (
            "nofile",
            "--nofile=3:3",
            &["descriptor", "emfile", "open files", "too many"][..],
        ),
        ("as", "--as=1000:1000", &[][..]),
    ] {
        // It notices only if it gets a turn while the program runs.
        eventually(|| {
            let mut run = Midway::start(&format!("helper_without_{name}"), "100000");
            let set = Command::new("prlimit")
                .args(["--pid", &run.helper.to_string(), limit])
                .status()
                .unwrap();
            assert!(set.success());
            run.go_on();
            let outcome = run.finish();
            if names(&outcome, words) {
                Ok(())
            } else {
                Err(format!("{name}: lost: {:?}", outcome.lost()))
            }
        });
    }
}

/// SPEC B16: a program whose helper is gone, or stopped, goes on and on making children without waiting for it: what it takes of a processor for one may be
/// spent once. Forty would take 6 s, and a fiftieth of that by themselves.
#[test]
fn helper_gone_is_waited_for_once() {
    let dir = support::fresh("helper_gone_is_waited_for_once");
    for i in 0..50 {
        fs::write(dir.join(format!("f{i}")), support::Random(i).bytes(1 << 20)).unwrap();
    }
    for signal in ["SIGKILL", "SIGSTOP"] {
        support::make_cold(&dir);
        let script = format!(
            "import os, resource, signal
def helpers():
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try: status = dict(line.split(':\\t', 1) for line in open(f'/proc/{{pid}}/status'))
        except (OSError, ValueError): continue
        if int(status['PPid']) == os.getppid() and int(pid) != os.getpid(): yield int(pid)
for i in range(50):
    f = os.open(f'f{{i}}', os.O_RDONLY)
    while os.read(f, 65536): pass
    if i == 9:
        gone = list(helpers())
        for pid in gone: os.kill(pid, signal.{signal})
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    os.close(f)
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
for pid in gone:
    try: os.kill(pid, signal.SIGCONT)
    except ProcessLookupError: pass
print(len(gone) > 0, spent < 2)"
        );
        let said = support::printed(&mut outrider_run(&dir, &[], &["python3", "-c", &script]));
        assert_eq!(said, "True True\n", "{signal}");
    }
}

/// The runner is killed with SIGKILL, which means the program: it dies too, as it would have without us, and the helper
/// does not outlive it.
#[test]
fn runner_killed() {
    let mut run = Midway::start("runner_killed", "100000");
    run.runner.kill().unwrap();
    assert_eq!(run.runner.wait().unwrap().signal(), Some(libc::SIGKILL));
    let gone = wait_for(PATIENCE, || (!alive(run.helper)).then_some(()));
    assert!(
        gone.is_some(),
        "the helper {} outlives the program",
        run.helper
    );
}

fn alive(pid: i32) -> bool {
    support::processes()
        .iter()
        .any(|p| p.pid == pid && p.state != 'Z')
}

/// Requests that come late or fail, by the engine in between that the config asks for: what the program reads is the same, and nothing is cached of which
/// all requests fail.
#[test]
fn requests_delayed_and_failed() {
    let dir = fresh_with("requests_delayed_and_failed", &[]);
    let content = support::Random(12).bytes(8 << 20);
    std::fs::write(dir.join("file"), content).unwrap();
    let script = "
import os, time, zlib
f = os.open('file', os.O_RDONLY)
os.fsync(f)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
f = os.open('file', os.O_RDONLY)
os.pread(f, 1, 0)
time.sleep(.5)
os.system(os.environ['OUTRIDER'] + ' cached --json file')
print(*[zlib.crc32(os.pread(f, 65536, at)) for at in range(0, 8 << 20, 65536)])
";
    let run = |engine: &str, monitor: &str| {
        std::fs::write(dir.join("config.toml"), format!("[monitor]\n{monitor}\n")).unwrap();
        let flags = ["--mode=fetchall+opt", "--config=config.toml", engine];
        let output = outrider_run(&dir, &flags, &["python3", "-c", script])
            .env("OUTRIDER", support::outrider())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let (cached, sums) = text.trim_end().rsplit_once('\n').unwrap();
        let cached: serde_json::Value = serde_json::from_str(cached).unwrap();
        let percent = cached["total"]["percent"].as_f64().unwrap();
        (percent, sums.to_owned())
    };
    let plain = run("--engine=noop", "").1;
    for engine in ["--engine=threads", "--engine=uring"] {
        for (monitor, share) in [
            ("delay_us = 2000", 95.0..100.1),
            ("fail_every = 2", 30.0..70.0),
            ("fail_every = 1", 0.0..10.0),
        ] {
            eventually(|| {
                let (percent, sums) = run(engine, monitor);
                assert_eq!(sums, plain, "{engine} {monitor}");
                if share.contains(&percent) {
                    Ok(())
                } else {
                    Err(format!("{engine} {monitor}: {percent} % cached"))
                }
            });
        }
    }
}

/// A config file that was named and cannot be read is an error before anything starts (exit 2, one line). One in a usual place costs its settings, and
/// the report says so; so does a mistake in it.
#[test]
fn config_unreadable() {
    let dir = fresh_with("config_in_its_place", &[Text]);
    fs::create_dir(dir.join("outrider")).unwrap();
    let place = dir.join("outrider/config.toml");
    // Memory that is not there: even root can't read it.
    std::os::unix::fs::symlink("/proc/self/mem", &place).unwrap();
    let run = || {
        outrider_run(&dir, &["--report=r.json"], &["cksum", "text.txt"])
            .env("XDG_CONFIG_HOME", &dir)
            .output()
            .unwrap()
    };
    let plain = Command::new("cksum")
        .arg("text.txt")
        .current_dir(&dir)
        .output();
    let output = run();
    assert_eq!(output, plain.unwrap());
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
    let lost = json["lost"].to_string();
    assert!(
        lost.contains("outrider/config.toml cannot be read") && lost.contains("the defaults hold"),
        "{lost}"
    );
    // One without an end is no more than one that is too long.
    let endless = ["--config=/dev/zero"];
    let refused = outrider_run(&dir, &endless, &["true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("longer than 8 MiB"), "{told}");
    fs::remove_file(&place).unwrap();
    fs::write(&place, "[budget]\nmemory = \"much\"\n").unwrap();
    assert_eq!(run(), output);
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
    let lost = json["lost"].to_string();
    assert!(
        lost.contains("config.toml:2") && lost.contains("the defaults hold"),
        "{lost}"
    );
    // No settings are that long; reading them would keep the program from starting.
    let long = fs::File::create(&place).unwrap();
    long.set_len(8 << 30).unwrap();
    assert_eq!(run(), output);
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
    assert!(
        json["lost"].to_string().contains("longer than 8 MiB"),
        "{json}"
    );

    let dir = fresh_with("config_unreadable", &[]);
    fs::create_dir(dir.join("directory.toml")).unwrap();
    for config in ["nothere.toml", "directory.toml", "/proc/self/mem"] {
        let output = outrider_run(&dir, &["--config", config], &["touch", "started"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{config}: {text}");
        assert!(
            text.lines().count() == 1 && text.contains(config),
            "{config}: {text}"
        );
        assert!(
            !Path::new(&dir).join("started").exists(),
            "{config}: the program was started"
        );
    }
}
