//! `outrider run` itself: between the caller and the program it is glass. Exit codes, signals,
//! terminals, inherited state and standard streams pass through; its own errors are one line each.
//!
//! SPEC CP1 (unmodified programs), CP13 (reports), B1 (nothing required).

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::Data::{Big, Bin, Text, Tree};
use support::{
    Case, PATIENCE, check, compile, eventually, fresh, fresh_with, install, outrider, outrider_run,
    program, wait_for,
};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A shell line in which `$OUTRIDER` is the command.
fn shell(dir: &std::path::Path, script: &str) -> Output {
    let mut command = Command::new("bash");
    support::plain_environment(&mut command, dir);
    command
        .env("OUTRIDER", outrider())
        .arg("-c")
        .arg(script)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// All 256 exit codes.
#[test]
fn exit_codes() {
    let dir = fresh("exit_codes");
    for code in 0..=255 {
        let status = outrider_run(&dir, &[], &["sh", "-c", &format!("exit {code}")])
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(code));
    }
}

/// SPEC CP13: a report for which the program's limit on the size of files leaves no room is lost, and nothing else: the program isn't told that it is too large.
#[test]
fn a_report_that_is_too_large_ends_nothing() {
    let dir = fresh("too_large_a_report");
    let script = "ulimit -f 0; exec \"$OUTRIDER\" run --report=r.json --report-every 1 -- sh -c 'sleep 2.5; exit 7'";
    let output = shell(&dir, script);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(text(&output.stderr).contains("is lost"), "{output:?}");
}

/// A runner whose program is over, and whose report nobody reads, is ended by what ends programs.
#[test]
fn a_runner_that_writes_its_report_can_be_ended() {
    use std::io::Write;
    let dir = fresh("report_nobody_reads");
    for (signal, ignores) in [
        (libc::SIGTERM, false),
        (libc::SIGINT, false),
        (libc::SIGHUP, true),
    ] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while writer.write(&[b'x'; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        // One that ignores a signal goes on doing so.
        let words = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
        let words = if ignores { &words[..] } else { &["env"] };
        let mut command = Command::new(words[0]);
        support::plain_environment(&mut command, &dir);
        let mut runner = command
            .args(&words[1..])
            .arg(outrider())
            .args(["run", "--report", "--", "touch", "done"])
            .current_dir(&dir)
            .stderr(writer)
            .spawn()
            .unwrap();
        let children = format!("/proc/{0}/task/{0}/children", runner.id());
        let is_over = || {
            let none = fs::read_to_string(&children).is_ok_and(|c| c.trim().is_empty());
            (none && dir.join("done").exists()).then_some(())
        };
        wait_for(PATIENCE, is_over).unwrap();
        let ends = || {
            // SAFETY: our own child, not waited for yet.
            unsafe { libc::kill(runner.id() as i32, signal) };
            runner.try_wait().unwrap()
        };
        match ignores {
            false => {
                let status = wait_for(PATIENCE, ends).unwrap();
                assert_eq!(status.signal(), Some(signal));
            }
            true => {
                assert!(wait_for(0.5, ends).is_none());
                drop(reader);
                assert!(runner.wait().unwrap().success());
            }
        }
        fs::remove_file(dir.join("done")).unwrap();
    }
}

/// Under nohup(1) hang-ups are ignored, and what is ignored is inherited.
fn hang_ups_count() {
    // SAFETY: no handler of anybody's is replaced.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
}

/// A program that dies by a signal: a direct parent sees the same signal, a shell says 128+n.
#[test]
fn death_by_signal() {
    let dir = fresh("death_by_signal");
    hang_ups_count();
    for signal in [1, 2, 3, 6, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 34, 64] {
        let script = format!("ulimit -c 0; exec \"$0\" run -- sh -c 'kill -{signal} $$; sleep 5'");
        let mut command = Command::new("bash");
        support::plain_environment(&mut command, &dir);
        let status = command
            .args(["-c", &script])
            .arg(outrider())
            .current_dir(&dir)
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(signal), "signal {signal}: {status}");
        let said = shell(
            &dir,
            &format!(
                "ulimit -c 0; $OUTRIDER run -- sh -c 'kill -{signal} $$; sleep 5' 2>/dev/null; echo $?"
            ),
        );
        assert_eq!(text(&said.stdout).trim(), (128 + signal).to_string());
    }
}

/// Signals sent to `outrider run` reach the program, once, whether it handles them or not.
#[test]
fn signals_are_passed_on() {
    let dir = fresh("signals_are_passed_on");
    hang_ups_count();
    let count = "import signal, sys, time
n = 0
def h(s, f):
    global n; n += 1
signal.signal(int(sys.argv[1]), h); print('ready', flush=True)
end = time.time() + 120
while not n and time.time() < end: time.sleep(0.01)
time.sleep(0.2); print(n, flush=True); sys.exit(7)";
    for signal in [
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGCONT,
        libc::SIGWINCH,
        libc::SIGALRM,
        libc::SIGABRT,
        libc::SIGPIPE,
        libc::SIGSEGV,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGSYS,
    ] {
        let file = dir.join(format!("out{signal}"));
        let mut child = outrider_run(&dir, &[], &["python3", "-c", count, &signal.to_string()])
            .stdout(fs::File::create(&file).unwrap())
            .spawn()
            .unwrap();
        assert!(
            wait_for(PATIENCE, || fs::read_to_string(&file)
                .ok()
                .filter(|t| t.contains("ready")))
            .is_some()
        );
        // SAFETY: kill has no memory effects.
        unsafe { libc::kill(child.id() as i32, signal) };
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(7), "signal {signal}");
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "ready\n1\n",
            "signal {signal}"
        );
    }
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGUSR1] {
        let mut child = outrider_run(&dir, &[], &["sleep", "1000"]).spawn().unwrap();
        let runner = child.id() as i32;
        let sleeper = wait_for(PATIENCE, || {
            let all = support::processes();
            all.iter()
                .find(|p| p.parent == runner && p.name == "sleep")
                .map(|p| p.pid)
        });
        // SAFETY: kill has no memory effects.
        unsafe { libc::kill(runner, signal) };
        let status = wait_for(PATIENCE, || child.try_wait().unwrap());
        if status.is_none() {
            let _ = child.kill();
        }
        assert!(sleeper.is_some(), "the program was not started");
        assert_eq!(status.and_then(|s| s.signal()), Some(signal));
    }
}

/// What is sent by sigqueue(3) to `outrider run` arrives with its value.
#[test]
fn signals_keep_their_values() {
    let dir = fresh("signals_keep_their_values");
    let signalled = program("signalled");
    let told = |prefix: &[&Path], signal: i32| {
        let mut argv = [prefix, &[&signalled]].concat();
        let mut command = Command::new(argv.remove(0));
        support::plain_environment(&mut command, &dir);
        let mut child = command.args(argv).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let value = libc::sigval {
            sival_ptr: 4242 as *mut libc::c_void,
        };
        // SAFETY: sends a number.
        let sent = unsafe { libc::sigqueue(child.id() as i32, signal, value) };
        assert_eq!(sent, 0);
        line.clear();
        output.read_line(&mut line).unwrap();
        (line, child.wait().unwrap().code())
    };
    for signal in [libc::SIGRTMIN() + 3, libc::SIGUSR1, libc::SIGABRT] {
        let plain = told(&[], signal);
        assert!(plain.0.contains("value 4242"), "{plain:?}");
        let outrider = outrider();
        let ours = told(&[&outrider, Path::new("run"), Path::new("--")], signal);
        assert_eq!(plain, ours);
    }
}

/// When the terminal is gone the leader of its session is told, whatever process group it is in.
#[test]
fn hang_ups_reach_the_leader() {
    const DRIVER: &str = "import os, pty, sys, time
pid, master = pty.fork()
if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])
seen = b''
while b'ready' not in seen: seen += os.read(master, 4096)
os.close(master)
os.waitpid(pid, 0)";
    const PROGRAM: &str = "import os, signal, sys, time
counts = {}
def h(s, f): counts[s] = counts.get(s, 0) + 1
for s in (signal.SIGHUP, signal.SIGCONT): signal.signal(s, h)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
if sys.argv[1] == 'background':
    try: os.setpgid(0, 0)
    except OSError: pass                       # the leader of a session has its own
    gone, stays = os.pipe()
    if os.fork() == 0:
        os.close(stays); os.setpgid(0, 0); os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGHUP, signal.SIG_IGN); print('ready', flush=True)
        os.read(gone, 1); os._exit(0)
else: print('ready', flush=True)
end = time.time() + 60
while signal.SIGHUP not in counts and time.time() < end: time.sleep(0.01)
time.sleep(0.3)                                # for a second signal that must not come
open('told', 'w').write(str({int(k): v for k, v in sorted(counts.items())}))";
    let dir = fresh("hang_ups_reach_the_leader");
    hang_ups_count();
    fs::write(dir.join("driver.py"), DRIVER).unwrap();
    fs::write(dir.join("program.py"), PROGRAM).unwrap();
    for group in ["foreground", "background"] {
        let told = |prefix: &[&str]| {
            let mut command = Command::new("python3");
            support::plain_environment(&mut command, &dir);
            command.arg("driver.py").args(prefix);
            command.args(["python3", "program.py", group]);
            assert!(command.current_dir(&dir).status().unwrap().success());
            // The program may outlive the driver's child that it is a child of.
            let told = wait_for(PATIENCE, || fs::read_to_string(dir.join("told")).ok());
            fs::remove_file(dir.join("told")).unwrap();
            told.unwrap()
        };
        let plain = told(&[]);
        assert!(plain.contains("1: 1"), "{group}: {plain}");
        let ours = told(&[outrider().to_str().unwrap(), "run", "--"]);
        assert_eq!(plain, ours, "{group}");
    }
}

/// On a terminal: Ctrl-C reaches the program exactly once, Ctrl-Z stops the whole job and `fg` goes on
/// with it, a program that stops itself stops the job, the program is in the foreground and has the
/// terminal as its standard streams. A miniature shell drives it; both runs print the same.
#[test]
fn terminals_and_job_control() {
    // argv: ACTION COMMAND…; prints what the job's shell and the job said.
    const DRIVER: &str = r#"
import os, pty, select, signal, sys, time
action, command = sys.argv[1], sys.argv[2:]
pid, master = pty.fork()
if pid == 0:                                   # the miniature shell: session leader on the new terminal
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.setpgid(0, 0); os.tcsetpgrp(0, os.getpid()); signal.signal(signal.SIGTTOU, signal.SIG_DFL)
        os.execvp(command[0], command)
    try: os.setpgid(job, job)
    except OSError: pass
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.tcsetpgrp(0, os.getpgrp()); print('shell: stopped', os.WSTOPSIG(status), flush=True); time.sleep(0.3)
            os.tcsetpgrp(0, job)
            if action == 'alone': os.kill(int(open('pid').read()), signal.SIGCONT)
            else: os.killpg(job, signal.SIGCONT)
            continue
        os.tcsetpgrp(0, os.getpgrp())
        print('shell: signal %d' % os.WTERMSIG(status) if os.WIFSIGNALED(status) else 'shell: exit %d' % os.WEXITSTATUS(status), flush=True)
        os._exit(0)
seen = b''; sent = False; end = time.time() + 120
while time.time() < end:
    if select.select([master], [], [], 0.1)[0]:
        try: data = os.read(master, 4096)
        except OSError: break
        if not data: break
        seen += data
    if b'ready' in seen and not sent:
        sent = True; time.sleep(0.2); os.write(master, {'int': b'\x03', 'quit': b'\x1c', 'stop': b'\x1a', 'none': b'', 'alone': b'', 'eof': b'line\n\x04'}[action])
else: print('DRIVER: time is up')
print(seen.replace(b'\r', b'').replace(b'^C', b'').replace(b'^Z', b'').replace(b'^\\', b'').decode())
"#;
    const PROGRAM: &str = r#"
import os, signal, sys, time
counts = {}
def h(s, f): counts[s] = counts.get(s, 0) + 1
mode = sys.argv[1]
for s in (signal.SIGCONT, signal.SIGHUP): signal.signal(s, h)
if mode != 'default':
    for s in (signal.SIGINT, signal.SIGQUIT): signal.signal(s, h)
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
open('bin.dat', 'rb').read(); open('pid', 'w').write(str(os.getpid()))
print('tty', [os.isatty(i) for i in range(3)], 'foreground', os.tcgetpgrp(0) == os.getpgrp(), flush=True)
if mode == 'self': print('stopping', flush=True); os.kill(os.getpid(), signal.SIGSTOP)
print('ready', flush=True)
if mode == 'read': print('read', sys.stdin.read(), flush=True)
end = time.time() + 60
while mode != 'read' and not counts and time.time() < end: time.sleep(0.01)
time.sleep(0.3)                                # for a second signal that must not come
print({int(k): v for k, v in sorted(counts.items())}, flush=True); sys.exit(5)
"#;
    let both = |name: &str, action: &str, mode: &str| {
        let dir = fresh_with(&format!("terminal_{name}"), &[Bin]);
        fs::write(dir.join("driver.py"), DRIVER).unwrap();
        fs::write(dir.join("program.py"), PROGRAM).unwrap();
        let run = |prefix: &[String]| {
            support::make_cold(&dir);
            let mut command = Command::new("python3");
            support::plain_environment(&mut command, &dir);
            command
                .args(["driver.py", action])
                .args(prefix)
                .args(["python3", "program.py", mode]);
            text(&command.current_dir(&dir).output().unwrap().stdout)
        };
        let plain = run(&[]);
        let ours = run(&[outrider().display().to_string(), "run".into(), "--".into()]);
        assert!(
            plain.contains("ready") && !plain.contains("DRIVER"),
            "{name}: the plain run fails: {plain}"
        );
        (plain != ours).then(|| format!("{name}:\n--- without\n{plain}\n--- with\n{ours}"))
    };
    let differences: Vec<String> = [
        both("ctrl_c_handled", "int", "count"),
        both("ctrl_c_default", "int", "default"),
        both("ctrl_backslash_handled", "quit", "count"),
        both("ctrl_z_and_fg", "stop", "count"),
        both("stops_itself", "none", "self"),
        both("is_continued_alone", "alone", "self"),
        both("reads_the_terminal", "eof", "read"),
    ]
    .into_iter()
    .flatten()
    .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Who waits for the program sees it stopped, with and without a terminal, and whoever continues it or `outrider run`, or kills either, the two go on
/// and end together.
#[test]
fn stops_are_seen() {
    const DRIVER: &str = r#"
import os, signal, subprocess, sys
stops, sent, to, command = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
p = subprocess.Popen([*command, 'python3', 'program.py', stops], stdout=subprocess.PIPE)
program = int(p.stdout.readline())
if stops == 'stopped': os.kill(program, signal.SIGSTOP)
for _ in range(2 if stops == 'twice' else 1):
    _, status = os.waitpid(p.pid, os.WUNTRACED)
    print('stopped', os.WSTOPSIG(status) if os.WIFSTOPPED(status) else 'NOT', flush=True)
    if not os.WIFSTOPPED(status): os._exit(1)
    os.kill(program if to == 'program' else p.pid, sent)
if stops == 'stopped' and sent == signal.SIGCONT: os.kill(program, signal.SIGTERM)
print('ended', p.wait(), flush=True)
"#;
    const PROGRAM: &str = "import os, signal, sys, time
if sys.argv[1] == 'group': os.setpgid(0, 0)
print(os.getpid(), flush=True)
if sys.argv[1] == 'stopped': time.sleep(60)
if sys.argv[1] == 'twice': os.kill(os.getpid(), signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGSTOP); sys.exit(5)";
    let dir = fresh("stops_are_seen");
    fs::write(dir.join("driver.py"), DRIVER).unwrap();
    fs::write(dir.join("program.py"), PROGRAM).unwrap();
    for stops in ["itself", "twice", "group", "stopped"] {
        for (signal, to) in [
            (libc::SIGCONT, "run"),
            (libc::SIGCONT, "program"),
            (libc::SIGKILL, "program"),
        ] {
            let told = |prefix: &[&str]| {
                let mut command = Command::new("timeout");
                support::plain_environment(&mut command, &dir);
                command.args([&PATIENCE.to_string(), "python3", "driver.py", stops]);
                command.args([&signal.to_string(), to]).args(prefix);
                text(&command.current_dir(&dir).output().unwrap().stdout)
            };
            if signal == libc::SIGKILL && stops == "twice" {
                continue;
            }
            let plain = told(&[]);
            assert!(plain.contains("stopped 19\nended"), "{plain}");
            let ours = told(&[outrider().to_str().unwrap(), "run", "--"]);
            assert_eq!(plain, ours, "{stops}, signal {signal} to the {to}");
        }
    }
}

/// What a program inherits it inherits unchanged: ignored and blocked signals, umask, directory,
/// priority, limits, streams of every kind.
#[test]
fn inherited_state() {
    let view = program("selfview");
    let file = fs::canonicalize(support::data()).unwrap().join("bin.dat");
    let under = |name: &str, shell: &str| {
        Case::argv(
            &format!("inherits_{name}"),
            &[view.as_os_str(), file.as_os_str()],
        )
        .data(&[Tree, Text])
        .wrapped(&["bash".to_string(), "-c".into(), shell.into(), "_".into()])
    };
    let python = |name: &str, code: &str| {
        Case::argv(
            &format!("inherits_{name}"),
            &[view.as_os_str(), file.as_os_str()],
        )
        .wrapped(&[
            "python3".to_string(),
            "-c".into(),
            format!(
                "import os, resource, signal, sys\n{code}\nos.execvp(sys.argv[1], sys.argv[1:])"
            ),
        ])
        .needs(&["python3"])
    };
    check(vec![
        under("defaults", "exec \"$@\""),
        under(
            "ignored_signals",
            "trap '' HUP INT QUIT PIPE TERM USR1 TSTP; exec \"$@\"",
        ),
        under("umask", "umask 0137; exec \"$@\""),
        under("directory", "cd tree/d1; pwd; exec \"$@\""),
        under("nice", "exec nice -n 7 \"$@\""),
        under(
            "limits",
            "ulimit -n 77; ulimit -c 0; ulimit -s 1024; ulimit -Su 5000; ulimit -f 100000; exec \"$@\"",
        ),
        under("descriptors", "exec 3<text.txt 5>out 9<>rw; exec \"$@\""),
        under("affinity", "exec taskset -c 0 \"$@\""),
        under("nohup", "exec nohup \"$@\" 2>&1"),
        under("stdin_pipe", "cat text.txt | \"$@\""),
        under("stdin_closed", "exec \"$@\" <&-"),
        under("stdout_pipe", "set -o pipefail; \"$@\" | cat; echo $?"),
        under("stderr_closed", "exec \"$@\" 2>&-"),
        under("all_closed", "\"$@\" <&- >&- 2>&-; echo $?"),
        // SIGPIPE is ignored by Python itself, and so by whatever it starts in this way.
        python(
            "blocked_signals",
            "signal.pthread_sigmask(signal.SIG_BLOCK, [1, 2, 10, 13, 15, 17, 35])",
        ),
        python(
            "sigchld_ignored",
            "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        ),
        python(
            "default_sigpipe",
            "signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
        ),
        python(
            "scheduler",
            "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
        ),
        python(
            "no_core",
            "resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.environ.clear(); os.environ['PATH'] = '/usr/bin:/bin'",
        ),
    ]);
}

/// Locks that a process has taken before it became `outrider run` are held as long as the program runs. POSIX locks can't be handed on: the program
/// runs without us, and that is told.
#[test]
fn locks_are_kept() {
    const LOCKER: &str = "import fcntl, os, sys, struct
kind, fd, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
f = os.open('locked', os.O_RDWR | os.O_CREAT)
if f != fd: os.dup2(f, fd); os.close(f)
os.set_inheritable(fd, True)
if kind == 'posix': fcntl.lockf(fd, fcntl.LOCK_EX, 10, 5)
elif kind == 'shared': fcntl.lockf(fd, fcntl.LOCK_SH)
elif kind == 'flock': fcntl.flock(fd, fcntl.LOCK_EX)
else: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack('hhqqi', fcntl.F_WRLCK, 0, 0, 0, 0))
os.execvp(command[0], command)";
    const TRY: &str = "import fcntl, os, sys
f = os.open('locked', os.O_RDWR)
try: (fcntl.flock if sys.argv[1] == 'flock' else fcntl.lockf)(f, fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')
except OSError: print('held')";
    let dir = fresh("locks_are_kept");
    fs::write(dir.join("locker.py"), LOCKER).unwrap();
    fs::write(dir.join("try.py"), TRY).unwrap();
    for (kind, bare) in [
        ("posix", true),
        ("shared", true),
        ("flock", false),
        ("ofd", false),
    ] {
        for fd in ["0", "9", "400"] {
            for flags in [&[][..], &["--report=r.json"]] {
                let mut command = Command::new("python3");
                support::plain_environment(&mut command, &dir);
                command.args(["locker.py", kind, fd]).arg(outrider());
                command.arg("run").args(flags).args(["--", "sh", "-c"]);
                command.args(["env >&2; python3 try.py $0; exit 5", kind]);
                let output = command.current_dir(&dir).output().unwrap();
                let said = text(&output.stderr);
                let case = format!("{kind} lock on {fd}, {flags:?}: {output:?}");
                assert_eq!(text(&output.stdout), "held\n", "{case}");
                assert_eq!(output.status.code(), Some(5), "{case}");
                assert_eq!(said.contains("runs without Outrider"), bare, "{case}");
                assert_eq!(said.contains("OUTRIDER_SHM="), !bare, "{case}");
            }
        }
    }
}

/// A program that would have been told of orphans (process 1 of a container, a subreaper) is told of them, and no dead process is left.
#[test]
fn orphans_are_waited_for() {
    const NAME: &str = "orphans_are_waited_for";
    const SUBREAPER: &str = "import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)        # PR_SET_CHILD_SUBREAPER
os.execvp(sys.argv[1], sys.argv[1:])";
    let dir = fresh(NAME);
    let orphans = program("orphans").display().to_string();
    let printed = |before: &[&str], prefix: &[&str], after: &[&str]| {
        let mut command = Command::new(before[0]);
        support::plain_environment(&mut command, &dir);
        command.args(&before[1..]).args(prefix).arg(&orphans);
        text(&command.args(after).output().unwrap().stdout)
    };
    let outrider = outrider().display().to_string();
    let both = |before: &[&str], after: &[&str]| {
        let plain = printed(before, &[], after);
        (plain, printed(before, &[&outrider, "run", "--"], after))
    };
    let (plain, ours) = both(&["python3", "-c", SUBREAPER], &[]);
    assert_eq!(plain, "waited for 10\n");
    assert_eq!(ours, plain);
    let (plain, ours) = both(&["env"], &[]);
    assert_eq!(plain, "waited for 5\n");
    assert_eq!(ours, plain);
    let (plain, ours) = both(&["unshare", "-pf", "--mount-proc"], &["dead"]);
    if plain.is_empty() {
        return support::skip_unprivileged(NAME, "process namespaces need a privilege");
    }
    assert_eq!(plain, "waited for 10\n0\n");
    assert_eq!(ours, plain);
}

/// What a service manager hands on to one process by its number is the program's.
#[test]
fn services_are_handed_on() {
    let dir = fresh("services_are_handed_on");
    let script =
        "export LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_PIDFDID=7 WATCHDOG_PID=${1:-$$}; exec \"${@:2}\"";
    let told = |watchdog: &str, prefix: &[&str]| {
        let mut command = Command::new("bash");
        support::plain_environment(&mut command, &dir);
        command.current_dir(&dir);
        command.args(["-c", script, "_", watchdog]).args(prefix);
        let show = "[ $LISTEN_PID = $$ ] && echo own; [ \"$WATCHDOG_PID\" = $$ ] && echo own; env | sed \"s/=$$\\$/=pid/\" | grep -E '^(LISTEN|WATCHDOG)' | sort";
        text(&command.args(["sh", "-c", show]).output().unwrap().stdout)
    };
    for (watchdog, own) in [("", "own\nown\n"), ("1", "own\nLISTEN")] {
        let plain = told(watchdog, &[]);
        assert!(plain.starts_with(own), "{plain}");
        let plain = plain.replace("LISTEN_PIDFDID=7\n", "");
        for flags in [&[][..], &["--report=r.json"]] {
            let outrider = outrider().display().to_string();
            let prefix = [&[&outrider, "run"], flags, &["--"]].concat();
            assert_eq!(told(watchdog, &prefix), plain, "{watchdog}, {flags:?}");
        }
    }
}

/// Where there can be no more processes the program runs by itself, with what it was given.
#[test]
fn without_a_process_to_spare() {
    const NAME: &str = "without_a_process_to_spare";
    if !support::is_root() {
        return support::skip_unprivileged(NAME, "only root can become somebody else");
    }
    let reached = Command::new("setpriv")
        .args(["--reuid=65529", "--clear-groups", "test", "-x"])
        .arg(outrider())
        .status();
    if !reached.unwrap().success() {
        return support::skip_unprivileged(NAME, "others can't run the command where it is");
    }
    let dir = fresh(NAME);
    let state = "import os, signal, sys
os.environ['LISTEN_PID'] = str(os.getpid())
signal.setitimer(signal.ITIMER_REAL, 100); signal.pthread_sigmask(signal.SIG_BLOCK, [10]); signal.signal(17, signal.SIG_IGN)
os.execvp(sys.argv[1], sys.argv[1:])";
    let view = "import os, signal
environment = dict(os.environ); own = environment.pop('LISTEN_PID') == str(os.getpid())
print(sorted(environment.items()), own, signal.getitimer(signal.ITIMER_REAL)[0] > 0, signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(17))";
    let told = |prefix: &[&str]| {
        let mut command = Command::new("prlimit");
        support::plain_environment(&mut command, &dir);
        // A user who has no other processes.
        command.args(["--nproc=1", "setpriv", "--reuid=65529", "--clear-groups"]);
        command.args(["python3", "-c", state]).args(prefix);
        let command = command.args(["python3", "-c", view]).current_dir("/");
        let output = command.output().unwrap();
        (
            text(&output.stdout),
            output.status.code(),
            text(&output.stderr),
        )
    };
    let plain = told(&[]);
    assert_eq!(plain.1, Some(0), "{plain:?}");
    for flags in [&[][..], &["--mode=predict"]] {
        let outrider = outrider().display().to_string();
        let ours = told(&[&[&outrider, "run"], flags, &["--"]].concat());
        assert_eq!((&ours.0, ours.1), (&plain.0, plain.1), "{ours:?}");
        assert_eq!(ours.2.lines().count(), 1, "{ours:?}");
        assert!(ours.2.contains("runs without Outrider"), "{ours:?}");
    }
}

/// Pipes end when the program's own processes let go of them, not when ours do.
#[test]
fn pipes_end() {
    let dir = fresh_with("pipes_end", &[Big]);
    for script in [
        "$OUTRIDER run -- true | cat",
        "$OUTRIDER run -- cat big.dat | cksum >/dev/null",
        // The daemon has let go of the pipe, so the pipe must end, although the daemon lives.
        "$OUTRIDER run -- sh -c 'cksum big.dat; (sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >left)' | cat",
        "$OUTRIDER run -- sh -c 'cksum big.dat; setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $! >left' 2>&1 | cat",
        "x=$($OUTRIDER run --report=r.json -- cksum big.dat); echo $x",
        // And the other way round: who reads ends first, so the writer dies of SIGPIPE.
        "set -o pipefail; $OUTRIDER run -- yes | head -1; [ $? = 141 ] || echo wrong",
        "$OUTRIDER run -- cat big.dat | head -c 10 | wc -c",
    ] {
        let output = shell(
            &dir,
            &format!("timeout -k 1 {PATIENCE} bash -c {}", quoted(script)),
        );
        if let Ok(left) = fs::read_to_string(dir.join("left")) {
            let pid: i32 = left.trim().parse().unwrap();
            // SAFETY: kill has no memory effects; the sleeper is this test's own and still there.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0, "{script}");
            fs::remove_file(dir.join("left")).unwrap();
        }
        assert!(
            output.status.success() && !text(&output.stdout).contains("wrong"),
            "{script}: {output:?}"
        );
    }
}

/// As one word of a shell line.
fn quoted(script: &str) -> String {
    format!("'{}'", script.replace('\'', "'\\''"))
}

/// CP13: the report goes to stderr after the program, or to a file as JSON; the program's own output
/// stays its own.
#[test]
fn reports() {
    let dir = fresh_with("reports", &[Big, Text]);
    let output = outrider_run(&dir, &["--report"], &["cksum", "big.dat"])
        .output()
        .unwrap();
    let plain = Command::new("cksum")
        .arg("big.dat")
        .current_dir(&dir)
        .output()
        .unwrap();
    assert_eq!(output.stdout, plain.stdout);
    let table = text(&output.stderr);
    assert!(table.contains("big.dat"), "{table}");

    // On a busy machine the helper may get no turn before the program is over, or fall behind.
    let json = eventually(|| {
        support::make_cold(&dir);
        let script = "tac big.dat | cksum; cat text.txt >/dev/null; exit 9";
        let output = outrider_run(&dir, &["--report=r.json"], &["sh", "-c", script])
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(9), "")
        );
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
        let total = |field: &str| json["totals"][field].as_u64().unwrap();
        if total("prefetched_bytes") > 0 && total("events_dropped") == 0 {
            Ok(json)
        } else {
            Err(format!(
                "nothing was prefetched, or events were dropped: {json}"
            ))
        }
    });
    assert_eq!(json["version"], 1);
    for field in ["mode", "engine"] {
        assert!(json[field].is_string(), "{field}: {json}");
    }
    const COUNTERS: [&str; 9] = [
        "hit_bytes",
        "late_bytes",
        "cached_bytes",
        "miss_bytes",
        "prefetched_bytes",
        "used_bytes",
        "wasted_bytes",
        "evicted_bytes",
        "dropped_bytes",
    ];
    let processes = json["processes"].as_array().unwrap();
    assert!(
        processes
            .iter()
            .filter(|p| p["command"]
                .as_str()
                .is_some_and(|c| c == "cat" || c == "tac"))
            .count()
            >= 2,
        "{json}"
    );
    for process in processes {
        for field in [
            "pid",
            "reads",
            "bytes_read",
            "events",
            "events_dropped",
            "calls_saved",
        ]
        .into_iter()
        .chain(COUNTERS)
        {
            assert!(process[field].is_u64(), "processes.{field}: {json}");
        }
    }
    let file = json["files"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["path"].as_str().is_some_and(|p| p.ends_with("/big.dat")));
    let file = file.unwrap_or_else(|| panic!("big.dat is not in the report: {json}"));
    assert!(file["calls_saved"].is_u64(), "{json}");
    for field in COUNTERS {
        // CP13: by file and by process it is the same.
        let sum: u64 = processes.iter().map(|p| p[field].as_u64().unwrap()).sum();
        assert_eq!(
            json["totals"][field].as_u64(),
            Some(sum),
            "totals.{field} is not the processes' sum: {json}"
        );
        assert!(
            file[field].is_u64() && json["totals"][field].is_u64(),
            "{field}: {json}"
        );
        let sum: u64 = json["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f[field].as_u64().unwrap())
            .sum();
        assert_eq!(
            json["totals"][field].as_u64(),
            Some(sum),
            "totals.{field} is not the files' sum: {json}"
        );
    }
    let n = |field: &str| file[field].as_u64().unwrap();
    // Every byte was read once. Reads may be sampled, so the counters are good to a tenth.
    let read = n("hit_bytes") + n("late_bytes") + n("cached_bytes") + n("miss_bytes");
    let whole = 32 << 20;
    assert!(
        read.abs_diff(whole) < whole / 10,
        "{read} bytes counted of {whole} read: {file}"
    );

    assert!(
        n("prefetched_bytes") > 0 && n("prefetched_bytes") <= 32 << 20,
        "{file}"
    );
    assert!(
        n("used_bytes") + n("wasted_bytes") <= n("prefetched_bytes"),
        "{file}"
    );
    assert!(json["lost"].is_array());

    // A report that cannot be written costs the report, never the program's result.
    let output = outrider_run(
        &dir,
        &["--report=/nothere/r.json"],
        &["sh", "-c", "echo out; exit 4"],
    )
    .output()
    .unwrap();
    let ran = output.status.code() == Some(4) && text(&output.stdout) == "out\n";
    let refused = output.status.code() == Some(2) && output.stdout.is_empty();
    assert!(
        (ran || refused)
            && text(&output.stderr).lines().count() == 1
            && text(&output.stderr).contains("nothere"),
        "{output:?}"
    );
}

/// Wrong flags and wrong configurations: exit 2, one line that names what is wrong, nothing started.
#[test]
fn usage_errors() {
    let dir = fresh("usage_errors");
    let config = |name: &str, body: &str| fs::write(dir.join(name), body).unwrap();
    config("unknown.toml", "# a comment\nno_such_key = 3\n");
    config("syntax.toml", "# a comment\n\nthis is not toml\n");
    let wrong: &[(&[&str], &[&str])] = &[
        (&["--mode", "fastest"], &["fastest"]),
        (&["--engine", "steam"], &["steam"]),
        (&["--budget", "lots"], &["lots"]),
        (&["--no-such-flag"], &["--no-such-flag"]),
        (&["--config", "nothere.toml"], &["nothere.toml"]),
        (
            &["--config", "unknown.toml"],
            &["unknown.toml", "no_such_key", "2"],
        ),
        (&["--config", "syntax.toml"], &["syntax.toml", "3"]),
    ];
    for (flags, words) in wrong {
        let output = outrider_run(&dir, flags, &["touch", "started"])
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{flags:?}: {said}");
        assert!(
            words.iter().all(|w| said.contains(w)),
            "{flags:?} should name {words:?}: {said}"
        );
        assert!(
            output.stdout.is_empty() && !dir.join("started").exists(),
            "{flags:?}"
        );
    }
    let output = Command::new(outrider())
        .args(["run", "--"])
        .output()
        .unwrap();
    assert_eq!(
        output.status.code(),
        Some(2),
        "no command: {}",
        text(&output.stderr)
    );
}

/// Where a report or an explanation can't go, nothing is started and nothing that was there is changed; two of them in one file are refused.
#[test]
fn files_that_are_named_stay_as_they_are_on_errors() {
    let dir = fresh("named_files");
    let fifo = Command::new("mkfifo").arg(dir.join("fifo")).status();
    assert!(fifo.unwrap().success());
    for (flags, words) in [
        (["--report=kept", "--explain=/no/x"], &["/no/x"][..]),
        (["--report=new", "--explain=/no/x"], &["/no/x"]),
        (["--report=/no/x", "--explain=kept"], &["/no/x"]),
        (["--report=/no/x", "--explain=new"], &["/no/x"]),
        (
            ["--report=kept", "--explain=./kept"],
            &["--report=kept", "--explain=./kept"],
        ),
        (
            ["--report=new", "--explain=new"],
            &["--report=new", "--explain=new"],
        ),
        (
            ["--report=fifo", "--explain=fifo"],
            &["--report=fifo", "--explain=fifo"],
        ),
    ] {
        fs::write(dir.join("kept"), "old").unwrap();
        let run = outrider_run(&dir, &flags, &["touch", "started"]).output();
        let run = run.unwrap();
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{flags:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{flags:?}: {said}");
        assert!(words.iter().all(|w| said.contains(w)), "{flags:?}: {said}");
        assert_eq!(fs::read(dir.join("kept")).unwrap(), b"old", "{flags:?}");
        for name in ["new", "started"] {
            assert!(!dir.join(name).exists(), "{flags:?} left {name}");
        }
    }
    // What was there is gone where all is well, and devices take both.
    for (flags, left) in [
        (["--report=kept", "--explain=kept2"], "kept2"),
        (["--report=/dev/null", "--explain=/dev/null"], "kept"),
    ] {
        fs::write(dir.join(left), "").unwrap();
        let run = outrider_run(&dir, &flags, &["true"]).output().unwrap();
        assert!(run.status.success() && run.stderr.is_empty(), "{run:?}");
    }
    let report = outrider_run(&dir, &["--report=kept"], &["true"]).status();
    assert!(report.unwrap().success());
    let report = fs::read(dir.join("kept")).unwrap();
    assert!(serde_json::from_slice::<Value>(&report).is_ok());
}

/// Must 8, CP13: what a report can't tell it says: which program may read past the hooks, however it was named, and that processes are missing.
#[test]
fn reports_say_what_they_lack() {
    let dir = fresh_with("reports_lack", &[Text]);
    let lost = |argv: &[&str]| -> Value {
        let output = outrider_run(&dir, &["--report=r.json"], argv)
            .output()
            .unwrap();
        assert!(output.status.success(), "{argv:?}: {output:?}");
        let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
        report["lost"].clone()
    };
    let direct = support::program("direct");
    fs::copy(&direct, dir.join("direct")).unwrap();
    for name in [direct.to_str().unwrap(), "./direct"] {
        let lost = lost(&[name, "text.txt"]);
        assert!(
            lost.to_string().contains("without the C library"),
            "{name}: {lost}"
        );
    }
    assert_eq!(lost(&["cat", "text.txt"]).to_string(), "[]");
    // One that a shell starts, and that runs for some time.
    let fixed = compile("static_reader", "fixed_reader", &["-O1", "-static"]);
    let script = "mkfifo pipe; \"$0\" pipe & sleep 0.5
while kill -0 $! 2>/dev/null; do timeout 0.2 sh -c 'echo >pipe'; done; exit 0";
    let said = lost(&["bash", "-c", script, fixed.to_str().unwrap()]).to_string();
    assert!(
        said.contains("fixed_reader: is statically linked"),
        "{said}"
    );
    let script = "i=0; while [ $i -lt 300 ]; do cat text.txt >/dev/null; i=$((i + 1)); done";
    let lost = lost(&["sh", "-c", script]);
    assert!(lost.to_string().contains("more than 256"), "{lost}");
}

/// CP13: of cached files just what was read is counted, though hardly a read is looked at: not what the last one asked for beyond the end, nor the one
/// that finds the end.
#[test]
fn cached_reads_are_counted_as_they_were() {
    let dir = fresh("cached_counts");
    for size in [70_000, 300_000, 1_000_000, 9_999_999] {
        fs::write(dir.join("file"), vec![1; size]).unwrap();
        for argv in [
            &["cat", "file"][..],
            &["head", "-c", "66000", "file"],
            &["dd", "bs=5000", "status=none", "if=file"],
            // Without what packages have it read when it starts.
            &["python3", "-IS", "-c", "open('file', 'rb', 0).readall()"],
        ] {
            let output = outrider_run(&dir, &["--report=r.json"], argv).output();
            assert!(output.unwrap().status.success(), "{argv:?}");
            let report = fs::read(dir.join("r.json")).unwrap();
            let report: Value = serde_json::from_slice(&report).unwrap();
            let read = report["processes"][0]["bytes_read"].as_u64();
            // What head asks for it also reads.
            let expected = if argv[0] == "head" {
                66_000
            } else {
                size as u64
            };
            assert_eq!(read, Some(expected), "{size} {argv:?}: {report:#}");
        }
    }
    // So they are where the service hears of the process, and once where a descriptor is closed before the end.
    let cold = dir.join("cold");
    fs::write(&cold, vec![1; 1 << 20]).unwrap();
    let script = "import os
c = os.open('cold', os.O_RDONLY)
while os.read(c, 65536): pass
f = os.open('file', os.O_RDONLY)
for i in range(1500): os.read(f, 5000)
os.close(f)";
    for _ in 0..3 {
        support::make_cold(&cold);
        let argv = ["python3", "-IS", "-c", script];
        let output = outrider_run(&dir, &["--report=r.json"], &argv).output();
        assert!(output.unwrap().status.success());
        let report = fs::read(dir.join("r.json")).unwrap();
        let report: Value = serde_json::from_slice(&report).unwrap();
        let read = report["processes"][0]["bytes_read"].as_u64();
        assert_eq!(read, Some((1 << 20) + 1500 * 5000), "{report:#}");
    }
}

/// A report that can't be written is a line on standard error, and a pipe for it keeps nobody waiting: the program ends as it does otherwise.
#[test]
fn reports_that_nobody_gets_change_nothing() {
    let dir = fresh("lost_reports");
    let fifo = dir.join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let run = |target: &str, script: &str| {
        let flag = format!("--report={target}");
        let mut run = outrider_run(&dir, &[&flag], &["sh", "-c", script]);
        let child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        let ended = wait_for(PATIENCE, || child.try_wait().unwrap());
        if ended.is_none() {
            let _ = child.kill();
        }
        let output = child.wait_with_output().unwrap();
        assert_eq!(ended.and_then(|e| e.code()), Some(4), "{target}");
        assert_eq!(text(&output.stdout), "out\n", "{target}");
        text(&output.stderr)
    };
    for target in ["/dev/full", "fifo"] {
        let said = run(target, "echo out; exit 4");
        let flag = format!("--report={target}: ");
        let one = said.lines().count() == 1 && said.ends_with("the report is lost\n");
        assert!(one && said.contains(&flag), "{target}: {said}");
    }
    let script = "{ : >opened; cat; } <fifo >got & until test -e opened; do sleep 0.01; done; echo out; exit 4";
    assert_eq!(run("fifo", script), "");
    let report = wait_for(PATIENCE, || {
        serde_json::from_slice::<Value>(&fs::read(dir.join("got")).unwrap()).ok()
    });
    assert_eq!(report.expect("a whole report")["version"], 1);

    // Whoever read the table is gone.
    let script = "{ $OUTRIDER run --report -- sh -c 'sleep 0.5; exit 4'; echo $? >code; } 2>&1 | true; cat code";
    assert_eq!(text(&shell(&dir, script).stdout), "4\n");
}

/// A command that is not there: 127; one that is no program: 126; in env's words.
#[test]
fn commands_that_do_not_start() {
    let dir = fresh("commands_that_do_not_start");
    fs::write(dir.join("data"), "not a program\n").unwrap();
    fs::create_dir(dir.join("directory")).unwrap();
    fs::write(dir.join("script"), "#!/no/such/interpreter\n").unwrap();
    install(&dir.join("script"), &dir.join("interpreter"), 0o755);
    for command in [
        "no-such-command",
        "./nothere",
        "./data",
        "./directory",
        "./interpreter",
        "",
    ] {
        let mut env = Command::new("env");
        support::plain_environment(&mut env, &dir);
        let theirs = env.arg(command).current_dir(&dir).output().unwrap();
        let ours = outrider_run(&dir, &[], &[command]).output().unwrap();
        assert_eq!(
            ours.status.code(),
            theirs.status.code(),
            "`{command}`: {}",
            text(&ours.stderr)
        );
        let said = text(&ours.stderr);
        let reason = text(&theirs.stderr)
            .trim_end()
            .rsplit(": ")
            .next()
            .unwrap()
            .to_string();
        assert!(
            said.lines().count() == 1 && said.contains(command) && said.contains(&reason),
            "`{command}`: `{said}` against env's `{}`",
            text(&theirs.stderr)
        );
    }
}

/// Must 8: LD_PRELOAD is extended, never overwritten: another library works before us and after us.
#[test]
fn other_preload_libraries() {
    let library = |name: &str| {
        compile(
            "preload",
            &format!("{name}.so"),
            &["-shared", "-fPIC", &format!("-DNAME=\"{name}\""), "-ldl"],
        )
        .display()
        .to_string()
    };
    let (a, b) = (library("a"), library("b"));
    check(vec![
        Case::argv("preload_before", &["head", "-c", "3000000", "bin.dat"]).data(&[Bin]).env("PRELOAD_WATCH", "head").env("LD_PRELOAD", &a),
        Case::argv("preload_two_before", &["tac", "text.txt"]).data(&[Text]).env("PRELOAD_WATCH", "tac").env("LD_PRELOAD", &format!("{a}:{b}")),
        Case::argv("preload_with_spaces", &["tac", "text.txt"]).data(&[Text]).env("PRELOAD_WATCH", "tac").env("LD_PRELOAD", &format!("{b} {a}")),
        Case::sh("preload_after", &format!("LD_PRELOAD=\"$LD_PRELOAD:{a}\" cksum bin.dat; LD_PRELOAD=\"{b}:$LD_PRELOAD\" cksum bin.dat; LD_PRELOAD={a} cksum bin.dat; env -u LD_PRELOAD cksum bin.dat"))
            .data(&[Bin])
            .env("PRELOAD_WATCH", "cksum"),
    ]);
}

/// The system calls of a command line, as strace with these flags writes them.
fn straced(dir: &Path, flags: &[&str], run: &Command) -> String {
    let trace = dir.join("trace");
    let mut traced = Command::new("strace");
    support::plain_environment(&mut traced, dir);
    let output = traced
        .arg("-qq")
        .args(flags)
        .arg("-o")
        .arg(&trace)
        .arg(run.get_program())
        .args(run.get_args())
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(&trace).unwrap()
}

/// CP2: `app-only` leaves a program's own hints as they are, each of them, and `os-only` drops those of reading ahead.
#[test]
fn modes_pass_hints_on_or_drop_them() {
    const NAME: &str = "modes_pass_hints_on_or_drop_them";
    const SCRIPT: &str = "import os
fd = os.open('big.dat', os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
for i in range(40):
    os.posix_fadvise(fd, i << 19, 1 << 19, os.POSIX_FADV_WILLNEED)
    os.pread(fd, 4096, i << 19)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
";
    if !support::have("strace") {
        return support::skip(NAME, "strace is not installed");
    }
    let dir = fresh_with(NAME, &[Big]);
    let hints = |run: &Command| -> Vec<String> {
        support::make_cold(&dir);
        let calls = straced(&dir, &["-f", "-y", "-etrace=fadvise64,readahead"], run);
        calls
            .lines()
            .filter(|l| l.contains("/big.dat>"))
            .filter_map(|l| l.split_once("big.dat>, ").map(|call| call.1.to_owned()))
            .collect()
    };
    let argv = ["python3", "-c", SCRIPT];
    let mut plain = Command::new(argv[0]);
    let stock = hints(plain.args(&argv[1..]));
    assert_eq!(stock.len(), 42, "{stock:?}");
    let app = hints(&outrider_run(&dir, &["--mode=app-only"], &argv));
    assert_eq!(app, stock);
    let os = hints(&outrider_run(&dir, &["--mode=os-only"], &argv));
    // Only what gives memory back is none of reading ahead; a call that means nothing may take a hint's place.
    let left: Vec<&str> = os
        .iter()
        .map(String::as_str)
        .filter(|call| !call.contains("_NORMAL"))
        .collect();
    assert_eq!(left, [&stock[41]]);
}

/// Must 7: a program that reads nothing costs nothing: no thread, no helper; one that reads a warm
/// or small file neither.
#[test]
fn nothing_starts_for_nothing() {
    if !support::have("strace") {
        return support::skip("nothing_starts_for_nothing", "strace is not installed");
    }
    const FORKS: &str = "-etrace=clone,clone3,fork,vfork";
    let dir = fresh("nothing_starts_for_nothing");
    fs::write(dir.join("small"), "x\n").unwrap();
    for command in [&["true"][..], &["cat", "small"], &["ls", "/"]] {
        let run = outrider_run(&dir, &[], command);
        let calls = straced(&dir, &["-f", "-e", "signal=none", FORKS], &run);
        let made: Vec<&str> = calls
            .lines()
            .filter(|l| {
                l.rsplit("= ")
                    .next()
                    .is_some_and(|r| r.trim().parse::<i32>().is_ok_and(|pid| pid > 0))
            })
            .collect();
        assert_eq!(
            made.len(),
            1,
            "{command:?}: only the program itself is forked:\n{calls}"
        );
    }
}

/// Must 7: what the program's start needs of Outrider is on its way before the program is, all of it, also where the command's own C library is
/// started first (`--report`); and the files have no lines of code in them, which would be read with the rest.
#[test]
fn a_start_reads_its_files_ahead() {
    const NAME: &str = "a_start_reads_its_files_ahead";
    if !support::have("strace") {
        return support::skip(NAME, "strace is not installed");
    }
    let dir = fresh(NAME);
    let include = format!("-I{}", support::repository().join("include").display());
    let flags = ["-O1", "-shared", "-fPIC", &include];
    let plugin = compile("plugin_observer", "observer.so", &flags);
    let plugin = format!("--plugin={}", plugin.display());
    let library = support::outrider().with_file_name("liboutrider.so");
    let size = fs::metadata(&library).unwrap().len();
    for flags in [
        &["--report=r.json", &plugin][..],
        &["--plugin", &plugin[9..]],
    ] {
        let run = outrider_run(&dir, flags, &["true"]);
        let calls = straced(&dir, &["-f", "-y", "-e", "trace=readahead,execve"], &run);
        let before = calls.split("/true\"").next().unwrap();
        let end = |name: &str| {
            before
                .lines()
                .filter(|l| l.contains("readahead(") && l.contains(&format!("/{name}>")))
                .filter_map(|l| {
                    let mut words = l.split([',', ')']).skip(1);
                    let mut number = || words.next()?.trim().parse::<u64>().ok();
                    Some(number()? + number()?)
                })
                .max()
        };
        assert!(end("liboutrider.so") >= Some(size), "{flags:?}: {calls}");
        assert!(end("observer.so").is_some(), "{flags:?}: {calls}");
    }
    for file in [&library, &support::outrider()] {
        let bytes = fs::read(file).unwrap();
        let lines = bytes
            .windows(12)
            .any(|w| w == b"\0.debug_line\0"[..12].as_ref());
        assert!(!lines, "{}", file.display());
    }
}

/// Must 7, 8, FA10: a plain command line, and one with plug-ins, starts the program before the C library of the command is started, and the
/// program finds what it finds after any other.
#[test]
fn the_program_is_started_early_and_finds_the_same() {
    const NAME: &str = "the_program_is_started_early_and_finds_the_same";
    let dir = fresh(NAME);
    let environment = |flags: &[&str]| {
        let mut run = outrider_run(&dir, flags, &["env"]);
        run.env("LD_PRELOAD", "libc.so.6")
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env("OUTRIDER_PLUGINS", "/other.so");
        let printed = text(&run.output().unwrap().stdout);
        // The name of a socket of its own, its process id, and a secret.
        let of_process = |line: &str| {
            let (name, rest) = line
                .strip_prefix("OUTRIDER_SHM=outrider-")?
                .split_once(':')?;
            assert_eq!(name.len(), 16);
            Some(format!("OUTRIDER_SHM={}", rest.rsplitn(3, ':').nth(2)?))
        };
        printed
            .lines()
            .map(|line| of_process(line).unwrap_or_else(|| line.to_owned()))
            .collect::<Vec<_>>()
    };
    let include = format!("-I{}", support::repository().join("include").display());
    let plugin = |name: &str| {
        let flags = ["-O1", "-shared", "-fPIC", &include];
        let made = compile(&format!("plugin_{name}"), &format!("{name}.so"), &flags);
        let link = dir.join(name);
        std::os::unix::fs::symlink(made, &link).unwrap();
        link.to_str().unwrap().to_owned()
    };
    let (one, other) = (plugin("entries"), plugin("observer"));
    let joined = [&one, &other].map(|file| format!("--plugin={file}"));
    let lines: [(&[&str], &[&str]); 3] = [
        (&[], &["--mode", "predict+opt"]),
        (&["--plugin", "./observer"], &[&joined[1]]),
        (
            &["--plugin", &one, "--mode", "app-only", "--plugin", &other],
            &["--mode=app-only", &joined[0], &joined[1]],
        ),
    ];
    for (early, late) in lines {
        let found = environment(early);
        assert_eq!(found, environment(late));
        let has = |start: &str| found.iter().any(|l| l.starts_with(start));
        assert!(has("OUTRIDER_SHM="), "{found:?}");
        let plugins = has("OUTRIDER_PLUGINS=/other.so");
        assert_eq!(plugins, early.is_empty(), "{found:?}");
    }
    if !support::have("strace") {
        return support::skip(NAME, "strace is not installed");
    }
    for (early, _) in lines {
        let run = outrider_run(&dir, early, &["true"]);
        let calls = straced(&dir, &["-etrace=arch_prctl,clone"], &run);
        if early.is_empty() && calls.starts_with("arch_prctl") {
            return support::skip(
                NAME,
                "the command was linked without the C library's archives",
            );
        }
        assert!(
            calls.starts_with("clone") && !calls.contains("arch_prctl"),
            "{early:?}: {calls}"
        );
    }
}

/// Must 8: the time of the processor that a program used is the runner's children's.
#[test]
#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
fn what_a_program_used_is_accounted_for() {
    let dir = fresh("what_a_program_used_is_accounted_for");
    let count = "i=0; while test $i -lt 300000; do i=$((i+1)); done";
    let mut run = outrider_run(&dir, &[], &["sh", "-c", count]);
    let child = run.spawn().unwrap();
    // SAFETY: plain data that the kernel fills in, about a child of ours that nobody else waits for.
    let used = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert!(libc::wait4(child.id() as i32, std::ptr::null_mut(), 0, &mut usage) > 0);
        usage.ru_utime.tv_sec * 1_000_000 + usage.ru_utime.tv_usec
    };
    assert!(used > 20_000, "{used} µs for 300,000 rounds");
}

/// Must 8: programs that no hook reaches are named in the report, with the reason.
#[test]
fn unhookable_programs_are_named() {
    let dir = fresh_with("unhookable_programs_are_named", &[Bin]);
    let fixed = compile("static_reader", "fixed_reader", &["-O1", "-static"]);
    let setuid = dir.join("setuid_reader");
    install(
        &program("static_reader"),
        &dir.join("dynamic_reader"),
        0o755,
    );
    install(&program("static_reader"), &setuid, 0o4755);
    let programs = [(fixed.as_path(), "static"), (setuid.as_path(), "set-u")];
    for (path, reason) in programs {
        let name = path.file_name().unwrap().to_str().unwrap();
        let output = outrider_run(&dir, &["--report"], &[path.to_str().unwrap(), "bin.dat"])
            .output()
            .unwrap();
        let said = text(&output.stderr).to_lowercase();
        assert_eq!(output.status.code(), Some(4));
        assert!(
            said.lines().any(|l| l.contains(name) && l.contains(reason)),
            "{name} should be named as {reason}: {said}"
        );
        let output = outrider_run(
            &dir,
            &["--report=r.json"],
            &[path.to_str().unwrap(), "bin.dat"],
        )
        .output()
        .unwrap();
        assert_eq!(output.status.code(), Some(4));
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
        assert!(
            json["lost"]
                .as_array()
                .unwrap()
                .iter()
                .any(|l| l.as_str().is_some_and(|l| l.contains(name))),
            "{json}"
        );
    }
    let output = outrider_run(&dir, &["--report"], &["./dynamic_reader", "bin.dat"])
        .output()
        .unwrap();
    assert!(
        !text(&output.stderr).contains("static"),
        "{}",
        text(&output.stderr)
    );
}

/// What `outrider probe --save` measured is what `outrider run` assumes of that file system from its first request on, whatever else was kept or was
/// not to be understood (SPEC DR4, DR7).
#[test]
fn measured_devices_are_known_again() {
    let dir = fresh_with("known_devices", &[Big]);
    let state = dir.join("state");
    let kept = state.join("outrider/devices.json");
    let probe = || {
        Command::new(outrider())
            .args(["probe", "--json", "--save", "big.dat"])
            .env("XDG_STATE_HOME", &state)
            .current_dir(&dir)
            .output()
            .unwrap()
    };
    // Nothing is asked of the device, so that nothing but what was kept is known of it.
    let assumed = || {
        let evicted = Command::new(outrider())
            .args(["evict", "big.dat"])
            .current_dir(&dir)
            .output();
        assert!(evicted.unwrap().status.success());
        let flags = ["--engine=noop", "--report=r.json"];
        let status = outrider_run(&dir, &flags, &["cksum", "big.dat"])
            .env("XDG_STATE_HOME", &state)
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
        let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
        report["devices"].as_array().unwrap().clone()
    };
    assert_eq!(assumed(), Vec::<Value>::new());

    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, "{\"0000000000000001\": {\"latency_us\": 5").unwrap();
    assert_eq!(assumed(), Vec::<Value>::new(), "half a file");
    for _ in 0..2 {
        let said = probe();
        assert!(said.status.success(), "{said:?}");
        let planner = serde_json::from_slice::<Value>(&said.stdout).unwrap()["planner"].clone();
        let whole = |v: &Value| v.as_f64().unwrap() as u64;
        let known = assumed();
        assert_eq!(known.len(), 1, "{known:?}");
        assert_eq!(
            whole(&known[0]["latency_us"]),
            whole(&planner["latency_us"])
        );
        assert_eq!(
            whole(&known[0]["bandwidth_mb_s"]),
            whole(&planner["bandwidth_bytes_per_s"]) / 1_000_000
        );
        let mut all: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
        all["0000000000000001"] =
            serde_json::json!({"latency_us": 5.0, "bandwidth_bytes_per_s": -1.0});
        fs::write(&kept, all.to_string()).unwrap();
    }
    let all: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    assert_eq!(
        all.as_object().unwrap().len(),
        2,
        "others' numbers stay: {all}"
    );

    fs::remove_file(&kept).unwrap();
    fs::create_dir(&kept).unwrap();
    let said = probe();
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(text(&said.stderr).contains("devices.json"), "{said:?}");
    assert_eq!(assumed(), Vec::<Value>::new(), "no file");
}

/// B1: a program that is called like the command itself, or like a word before it, is one like others.
#[test]
fn a_program_may_be_called_as_the_command() {
    let dir = fresh("a_program_may_be_called_as_the_command");
    let own = outrider();
    let own = own.to_str().unwrap();
    // Flags that are settled by `main`.
    for flag in [
        "--report=r",
        "--explain=e",
        "--remember=./p",
        "--config=/dev/null",
    ] {
        let argv = [own, "run", flag, "--", "sh", "-c", "echo $0; exit 5", own];
        let output = outrider_run(&dir, &[flag], &argv).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{flag}: {output:?}");
        assert_eq!(text(&output.stdout), format!("{own}\n"));
    }
    fs::write(dir.join("script"), "#!/bin/sh\nexit 6\n").unwrap();
    install(&dir.join("script"), &dir.join("run"), 0o755);
    let said = shell(&dir, "PATH=$PWD:$PATH; $OUTRIDER run --remember=./q run");
    assert_eq!(said.status.code(), Some(6), "{said:?}");
}

/// B1: a limit under which the dynamic linker or `outrider run` would have no room stops no program.
#[test]
fn limits_leave_room_for_the_program() {
    let dir = fresh("limits_leave_room_for_the_program");
    let what = "exec /bin/echo here";
    for limit in ["-s 16", "-s 40", "-d 250", "-d 600", "-v 7000"] {
        let plain = shell(&dir, &format!("ulimit {limit}; {what}"));
        assert!(plain.status.success(), "{limit}: {plain:?}");
        let around = format!("ulimit {limit}; exec $OUTRIDER run --report=r.json /bin/echo here");
        let within = format!("exec $OUTRIDER run -- sh -c 'ulimit {limit}; {what}'");
        for script in [around, within] {
            let ours = shell(&dir, &script);
            assert_eq!(ours.status, plain.status, "{script}: {ours:?}");
            assert_eq!(ours.stdout, plain.stdout, "{script}");
            assert_eq!(ours.stderr, plain.stderr, "{script}");
        }
        let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
        let lost = report["lost"].to_string();
        assert!(lost.contains("RLIMIT_"), "{limit}: {lost}");
    }
}

/// B1: as many arguments as there is room for without our variables are taken with them, from `outrider run` and from programs under it.
#[test]
fn arguments_up_to_the_limit() {
    const NAME: &str = "arguments_up_to_the_limit";
    if !support::have("python3") {
        return support::skip(NAME, "python3 is not installed");
    }
    let dir = fresh(NAME);
    // A short name, so that what the command's own line takes is less than what is added.
    std::os::unix::fs::symlink(outrider(), dir.join("o")).unwrap();
    // How many bytes of arguments are refused where others are not, of those around the limit.
    let script = "import os, sys, subprocess
def takes(command, n, env):
    words = command + ['x' * 1000] * (n // 1009) + ['y' * (n % 1009)]
    try:
        return subprocess.run(words, env=env, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False
def spawns(command, n, env):
    words = command + ['x' * 1000] * (n // 1009) + ['y' * (n % 1009)]
    try:
        return os.waitpid(os.posix_spawn(words[0], words, env), 0)[1] == 0
    except OSError:
        return False
def edge(takes):
    low, high = 0, 1 << 23
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if takes(middle) else (low, middle)
    return low
plain = {'A': 'b'}
if sys.argv[1] == 'around':
    off = edge(lambda n: takes(['./o', 'run', '--', '/bin/true'], n, {**plain, 'OUTRIDER': 'off'}))
    ours = {**plain, 'OUTRIDER': 'yes'}
    refused = [n for n in range(off - 320, off - 8, 8) if not takes(['./o', 'run', '--', '/bin/true'], n, ours)]
else:
    ours = {**plain, **{k: v for k, v in os.environ.items() if k in ('LD_PRELOAD', 'OUTRIDER_SHM', 'ASAN_OPTIONS')}}
    assert len(ours) > 2, ours
    refused = []
    for starts in takes, spawns:
        most = edge(lambda n: starts(['/bin/true'], n, plain))
        refused += [n for n in range(most - 320, most - 8, 8) if not starts(['/bin/true'], n, ours)]
print(len(refused))";
    fs::write(dir.join("edge.py"), script).unwrap();
    let around = shell(&dir, "python3 edge.py around");
    assert_eq!(text(&around.stdout), "0\n", "{around:?}");
    let mut within = outrider_run(&dir, &[], &["python3", "edge.py", "within"]);
    let within = within.output().unwrap();
    assert_eq!(text(&within.stdout), "0\n", "{within:?}");
}
