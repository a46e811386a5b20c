//! SPEC B16: a service ends when it is not needed any more, whatever somebody did to it and however the run ended.

mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use support::Data::{Big, Bin};
use support::{PATIENCE, fresh_with, helper_of, outrider_run, program, wait_for};

fn send(pid: i32, signal: i32) {
    // SAFETY: kill has no memory effects.
    unsafe { libc::kill(pid, signal) };
}

fn state(pid: i32) -> Option<char> {
    support::processes()
        .iter()
        .find(|p| p.pid == pid)
        .map(|p| p.state)
}

fn alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// The process is gone before long; it is killed if not.
fn gone(what: &str, pid: i32) {
    let is_gone = wait_for(PATIENCE, || (!alive(pid)).then_some(()));
    if is_gone.is_none() {
        let state = state(pid);
        send(pid, libc::SIGKILL);
        panic!("{what}: process {pid} stays, in state {state:?}");
    }
}

/// A run in which a program has read something in order, so that there is a service, and waits to be told to go on.
struct Midway {
    dir: PathBuf,
    runner: Child,
    service: i32,
    expected: String,
}

impl Midway {
    fn start(name: &str) -> Midway {
        let dir = fresh_with(name, &[Big, Bin]);
        let reader = program("pread_many").display().to_string();
        let plain = Command::new(&reader)
            .args(["big.dat", "1000", "-", "bin.dat"])
            .current_dir(&dir)
            .output()
            .unwrap();
        let expected = format!("ready\n{}", String::from_utf8(plain.stdout).unwrap());
        Midway::of(
            dir,
            &[&reader, "big.dat", "1000", "pause", "bin.dat"],
            expected,
        )
    }

    /// A program that leaves a reader behind, which waits for a line in `go`, and that waits itself for the end of its input.
    fn with_daemon(name: &str) -> Midway {
        let dir = fresh_with(name, &[Big, Bin]);
        let reader = program("pread_many").display().to_string();
        // The reader holds both ends, so that it waits for as long as nothing is written.
        let script = format!(
            "mkfifo go; setsid {reader} big.dat 1000 pause bin.dat <>go >daemon & echo $! >pid; \
             until grep -q ready daemon; do sleep 0.01; done; echo ready; cat"
        );
        Midway::of(dir, &["bash", "-c", &script], "ready\n".to_owned())
    }

    fn of(dir: PathBuf, argv: &[&str], expected: String) -> Midway {
        support::make_cold(&dir);
        let report = format!("--report={}", dir.join("report.json").display());
        let mut runner = outrider_run(&dir, &[&report], argv)
            .stdin(Stdio::piped())
            .stdout(File::create(dir.join("stdout")).unwrap())
            .stderr(File::create(dir.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let pid = runner.id() as i32;
        let ready = wait_for(PATIENCE, || {
            let said = fs::read_to_string(dir.join("stdout")).ok()?;
            said.starts_with("ready").then_some(())
        });
        let service = wait_for(PATIENCE, || helper_of(pid));
        if ready.is_none() || service.is_none() {
            let _ = runner.kill();
            panic!("{argv:?}: ready {ready:?}, service {service:?}");
        }
        Midway {
            dir,
            runner,
            service: service.unwrap(),
            expected,
        }
    }

    /// Tells the program to go on; it ends as without us. The report's lines on what was lost.
    fn finish(&mut self) -> String {
        let _ = self.runner.stdin.take().unwrap().write_all(b"g");
        let status = wait_for(PATIENCE, || self.runner.try_wait().unwrap());
        if status.is_none() {
            let _ = self.runner.kill();
        }
        assert!(
            status.is_some_and(|status| status.success()),
            "the run ended with {status:?}"
        );
        let said = |name: &str| fs::read_to_string(self.dir.join(name)).unwrap();
        // The program that only copies its input says that, too.
        let stdout = said("stdout");
        let stdout = stdout.strip_suffix('g').unwrap_or(&stdout);
        assert_eq!(stdout, self.expected);
        assert_eq!(said("stderr"), "");
        let report: serde_json::Value = serde_json::from_str(&said("report.json")).unwrap();
        report["lost"].to_string()
    }

    fn kill_runner(&mut self) {
        self.runner.kill().unwrap();
        assert_eq!(self.runner.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    fn daemon(&self) -> i32 {
        let pid = fs::read_to_string(self.dir.join("pid")).unwrap();
        pid.trim().parse().unwrap()
    }
}

/// Somebody stopped the service, once: the run's end lets it go on, so that its figures are final and nothing stays.
#[test]
fn a_stopped_service_ends_with_the_run() {
    let mut run = Midway::start("stopped_service");
    send(run.service, libc::SIGSTOP);
    run.finish();
    gone("the run is over", run.service);
}

/// Somebody stops it whenever it goes on: the report says that it didn't answer, and nothing stays.
#[test]
fn a_service_that_is_always_stopped_ends_with_the_run() {
    let mut run = Midway::start("always_stopped_service");
    let service = run.service;
    let over = AtomicBool::new(false);
    let lost = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) && alive(service) {
                for _ in 0..1000 {
                    send(service, libc::SIGSTOP);
                }
            }
        });
        let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.finish()));
        over.store(true, Ordering::Relaxed);
        lost.unwrap()
    });
    // It may have had a moment that was long enough.
    println!("lost: {lost}");
    gone("the run is over", service);
}

/// SPEC S1: who stops the services of his own user, of which there are several, has the run wait for all of them no longer than for one.
#[test]
fn stopped_services_are_waited_for_together() {
    const NAME: &str = "stopped_services";
    if !support::is_root() {
        return support::skip_unprivileged(NAME, "changes users");
    }
    let dir = fresh_with(NAME, &[Big, Bin]);
    // A service ends with those that it serves: each of these stays.
    let reader = "import os, time
f = os.open('big.dat', os.O_RDONLY)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
for at in reversed(range(0, 4 << 20, 16384)): os.pread(f, 16384, at)
time.sleep(600)";
    fs::write(dir.join("reader.py"), reader).unwrap();
    let script = "for group in 10 11 12 13; do
            setpriv --reuid 65534 --regid 65534 --groups $group python3 -IS reader.py &
        done; echo ready; cat; kill $(jobs -p); wait";
    let mut run = Midway::of(dir, &["bash", "-c", script], "ready\n".to_owned());
    let runner = run.runner.id() as i32;
    let nobodys = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("\nUid:\t65534")
    };
    let services = || {
        let all = support::processes().into_iter();
        let found = all.filter(|p| p.parent == runner && p.name == "outrider" && nobodys(p.pid));
        let found: Vec<i32> = found.map(|p| p.pid).collect();
        (found.len() == 4).then_some(found)
    };
    let services = wait_for(PATIENCE, services).unwrap();
    let (tell, stopped) = std::sync::mpsc::channel();
    // Stopped as a debugger stops them: nobody else has them go on.
    let ends = std::thread::spawn(move || {
        let mut left = services;
        for service in &left {
            let none = std::ptr::null_mut::<libc::c_void>();
            // SAFETY: numbers only; no status is wanted.
            unsafe {
                assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, *service, none, none), 0);
                assert_eq!(
                    libc::ptrace(libc::PTRACE_INTERRUPT, *service, none, none),
                    0
                );
                libc::waitpid(*service, std::ptr::null_mut(), libc::__WALL);
            }
        }
        tell.send(()).unwrap();
        let mut ends = Vec::new();
        while !left.is_empty() {
            left.retain(|service| {
                let (mut status, how) = (0, libc::__WALL | libc::WNOHANG);
                // SAFETY: a number, and a status.
                let changed = unsafe { libc::waitpid(*service, &mut status, how) } == *service;
                let over = changed && libc::WIFSIGNALED(status);
                ends.extend(over.then(Instant::now));
                !over
            });
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        ends
    });
    stopped.recv().unwrap();
    let began = Instant::now();
    println!("lost: {}", run.finish());
    let ends = ends.join().unwrap();
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(
        *last - *first < *first - began,
        "{ends:?}, from {began:?} on"
    );
}

/// The runner is killed: neither a service at work nor one that is stopped stays, and no more does one that had somebody to serve.
#[test]
fn a_service_does_not_outlive_a_killed_runner() {
    let mut run = Midway::start("killed_runner");
    run.kill_runner();
    gone("the runner was killed", run.service);

    let mut run = Midway::start("killed_runner_stopped_service");
    send(run.service, libc::SIGSTOP);
    run.kill_runner();
    gone("the runner was killed", run.service);

    let mut run = Midway::with_daemon("killed_runner_daemon");
    let daemon = run.daemon();
    run.kill_runner();
    gone("the runner was killed", run.service);
    assert!(
        alive(daemon),
        "what the program left behind is not the runner's"
    );
    send(daemon, libc::SIGKILL);
}

/// A run that ends leaves the service to what the program left behind, and it ends with that.
#[test]
fn a_service_stays_for_what_the_program_left_behind() {
    let mut run = Midway::with_daemon("service_stays");
    let daemon = run.daemon();
    run.finish();
    assert!(alive(daemon) && alive(run.service));
    fs::write(run.dir.join("go"), "g").unwrap();
    gone("what was left behind goes on to its end", daemon);
    gone("all that the program left behind is over", run.service);
    let said = fs::read_to_string(run.dir.join("daemon")).unwrap();
    assert_eq!(said.lines().count(), 2, "{said}");
}
