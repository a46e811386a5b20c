//! SPEC B1, B11: whichever system call the machine refuses, the program runs as it would without us, and the report names the call where its refusal has
//! silenced prefetching.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Random, fresh, have, make_cold, outrider, plain_environment, program, skip};

/// What runner, service, hooks and the C library below them ask of the kernel. Left out is what the C library of this
/// command can't start without, before any of ours runs: execve, arch_prctl, mprotect.
const CALLS: &[(&str, libc::c_long)] = &[
    ("read", libc::SYS_read),
    ("write", libc::SYS_write),
    ("readv", libc::SYS_readv),
    ("writev", libc::SYS_writev),
    ("pwrite64", libc::SYS_pwrite64),
    ("close", libc::SYS_close),
    ("lseek", libc::SYS_lseek),
    ("mmap", libc::SYS_mmap),
    ("munmap", libc::SYS_munmap),
    ("mremap", libc::SYS_mremap),
    ("brk", libc::SYS_brk),
    ("madvise", libc::SYS_madvise),
    ("mincore", libc::SYS_mincore),
    ("mlock", libc::SYS_mlock),
    ("rt_sigaction", libc::SYS_rt_sigaction),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    ("rt_sigpending", libc::SYS_rt_sigpending),
    ("rt_sigtimedwait", libc::SYS_rt_sigtimedwait),
    ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo),
    ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    ("sigaltstack", libc::SYS_sigaltstack),
    ("kill", libc::SYS_kill),
    ("tgkill", libc::SYS_tgkill),
    ("ioctl", libc::SYS_ioctl),
    ("pread64", libc::SYS_pread64),
    ("preadv", libc::SYS_preadv),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("sched_yield", libc::SYS_sched_yield),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_getscheduler", libc::SYS_sched_getscheduler),
    ("sched_setscheduler", libc::SYS_sched_setscheduler),
    ("sched_getattr", libc::SYS_sched_getattr),
    ("sched_setattr", libc::SYS_sched_setattr),
    ("getpriority", libc::SYS_getpriority),
    ("setpriority", libc::SYS_setpriority),
    ("ioprio_set", libc::SYS_ioprio_set),
    ("ioprio_get", libc::SYS_ioprio_get),
    ("nanosleep", libc::SYS_nanosleep),
    ("clock_nanosleep", libc::SYS_clock_nanosleep),
    ("clock_gettime", libc::SYS_clock_gettime),
    ("setitimer", libc::SYS_setitimer),
    ("getpid", libc::SYS_getpid),
    ("getppid", libc::SYS_getppid),
    ("gettid", libc::SYS_gettid),
    ("getsid", libc::SYS_getsid),
    ("setsid", libc::SYS_setsid),
    ("getuid", libc::SYS_getuid),
    ("geteuid", libc::SYS_geteuid),
    ("getgid", libc::SYS_getgid),
    ("getegid", libc::SYS_getegid),
    ("getresuid", libc::SYS_getresuid),
    ("getresgid", libc::SYS_getresgid),
    ("getgroups", libc::SYS_getgroups),
    ("capget", libc::SYS_capget),
    ("getrusage", libc::SYS_getrusage),
    ("prlimit64", libc::SYS_prlimit64),
    ("sysinfo", libc::SYS_sysinfo),
    ("uname", libc::SYS_uname),
    ("prctl", libc::SYS_prctl),
    ("getrandom", libc::SYS_getrandom),
    ("socket", libc::SYS_socket),
    ("bind", libc::SYS_bind),
    ("listen", libc::SYS_listen),
    ("accept4", libc::SYS_accept4),
    ("connect", libc::SYS_connect),
    ("getsockname", libc::SYS_getsockname),
    ("getsockopt", libc::SYS_getsockopt),
    ("setsockopt", libc::SYS_setsockopt),
    ("sendmsg", libc::SYS_sendmsg),
    ("sendto", libc::SYS_sendto),
    ("recvmsg", libc::SYS_recvmsg),
    ("recvfrom", libc::SYS_recvfrom),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    ("wait4", libc::SYS_wait4),
    ("waitid", libc::SYS_waitid),
    ("fcntl", libc::SYS_fcntl),
    ("dup", libc::SYS_dup),
    ("dup3", libc::SYS_dup3),
    ("pipe2", libc::SYS_pipe2),
    ("close_range", libc::SYS_close_range),
    ("ftruncate", libc::SYS_ftruncate),
    ("fchmod", libc::SYS_fchmod),
    ("fchown", libc::SYS_fchown),
    ("fallocate", libc::SYS_fallocate),
    ("memfd_create", libc::SYS_memfd_create),
    ("openat", libc::SYS_openat),
    ("openat2", libc::SYS_openat2),
    ("mkdirat", libc::SYS_mkdirat),
    ("renameat", libc::SYS_renameat),
    ("symlinkat", libc::SYS_symlinkat),
    ("unlinkat", libc::SYS_unlinkat),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("name_to_handle_at", libc::SYS_name_to_handle_at),
    ("fstat", libc::SYS_fstat),
    ("newfstatat", libc::SYS_newfstatat),
    ("statx", libc::SYS_statx),
    ("statfs", libc::SYS_statfs),
    ("fstatfs", libc::SYS_fstatfs),
    ("faccessat", libc::SYS_faccessat),
    ("faccessat2", libc::SYS_faccessat2),
    ("getxattr", libc::SYS_getxattr),
    ("listxattr", libc::SYS_listxattr),
    ("fsetxattr", libc::SYS_fsetxattr),
    ("fremovexattr", libc::SYS_fremovexattr),
    ("readlinkat", libc::SYS_readlinkat),
    ("getdents64", libc::SYS_getdents64),
    ("getcwd", libc::SYS_getcwd),
    ("chdir", libc::SYS_chdir),
    ("chroot", libc::SYS_chroot),
    ("setns", libc::SYS_setns),
    ("unshare", libc::SYS_unshare),
    ("fadvise64", libc::SYS_fadvise64),
    ("readahead", libc::SYS_readahead),
    // cachestat, since Linux 6.5.
    ("cachestat", 451),
    ("futex", libc::SYS_futex),
    ("set_robust_list", libc::SYS_set_robust_list),
    ("get_robust_list", libc::SYS_get_robust_list),
    ("set_tid_address", libc::SYS_set_tid_address),
    ("rseq", libc::SYS_rseq),
    ("membarrier", libc::SYS_membarrier),
    ("ppoll", libc::SYS_ppoll),
    ("eventfd2", libc::SYS_eventfd2),
    ("epoll_create1", libc::SYS_epoll_create1),
    ("epoll_ctl", libc::SYS_epoll_ctl),
    ("epoll_pwait", libc::SYS_epoll_pwait),
    ("inotify_init1", libc::SYS_inotify_init1),
    ("inotify_add_watch", libc::SYS_inotify_add_watch),
    ("inotify_rm_watch", libc::SYS_inotify_rm_watch),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
];

/// Those that only older processors' kernels have.
#[cfg(target_arch = "x86_64")]
const OLD: &[(&str, libc::c_long)] = &[
    ("open", libc::SYS_open),
    ("stat", libc::SYS_stat),
    ("lstat", libc::SYS_lstat),
    ("access", libc::SYS_access),
    ("mkdir", libc::SYS_mkdir),
    ("rename", libc::SYS_rename),
    ("symlink", libc::SYS_symlink),
    ("unlink", libc::SYS_unlink),
    ("readlink", libc::SYS_readlink),
    ("poll", libc::SYS_poll),
    ("epoll_wait", libc::SYS_epoll_wait),
    ("pipe", libc::SYS_pipe),
    ("dup2", libc::SYS_dup2),
    ("fork", libc::SYS_fork),
    ("vfork", libc::SYS_vfork),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[(&str, libc::c_long)] = &[];

/// Reads a file backwards and forwards, says something on both streams, and ends with a code of its own.
const SCRIPT: &str = "tac data; cksum data; echo \"$#\" >&2; exit 5";

/// Bytes of the file.
const SIZE: usize = 6 << 20;

struct Place {
    dir: PathBuf,
    deny: PathBuf,
}

impl Place {
    fn new(name: &str) -> Place {
        let dir = fresh(name);
        let mut text = String::new();
        let mut random = Random(11);
        while text.len() < SIZE {
            text.push_str(&format!("{:x} {:x}\n", random.next(), random.next()));
        }
        fs::write(dir.join("data"), text).unwrap();
        Place {
            dir,
            deny: program("deny"),
        }
    }

    /// The program where a call is refused, without us or with us.
    fn run(&self, number: libc::c_long, errno: &str, ours: Option<&[&str]>) -> Output {
        make_cold(&self.dir);
        // Whoever hangs is killed, and its end is another one.
        let mut command = Command::new("timeout");
        plain_environment(&mut command, &self.dir);
        command.args(["-k", "5", "100"]).arg(&self.deny);
        command.args([&format!("{number}={errno}"), "--"]);
        if let Some(flags) = ours {
            command.arg(outrider()).arg("run").args(flags).arg("--");
        }
        command.args(["sh", "-c", SCRIPT, "_", "a"]);
        command.stdin(Stdio::null()).current_dir(&self.dir);
        command.output().unwrap()
    }
}

/// What can be observed, but for the names of temporary files, and the line in which the command says that it becomes the program.
fn seen(output: &Output) -> (Option<i32>, Vec<u8>, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = String::new();
    for line in text.lines().filter(|l| !l.starts_with("outrider: ")) {
        let words = line
            .split(' ')
            .map(|w| match w.contains("/tmp/tac") {
                true => "temporary",
                false => w,
            })
            .collect::<Vec<_>>();
        lines.push_str(&words.join(" "));
        lines.push('\n');
    }
    (output.status.code(), output.stdout.clone(), lines)
}

fn explained(lost: &serde_json::Value, name: &str) -> bool {
    let text = lost.to_string();
    let word = match name {
        "fadvise64" => "fadvise",
        name if name.starts_with("io_uring") => "io_uring",
        name => name,
    };
    text.contains(word)
}

/// A failure in words, if there is one.
fn compare(place: &Place, name: &str, number: libc::c_long, errno: &str) -> Option<String> {
    let seen = |output: &Output| {
        let mut seen = seen(output);
        if name == "wait4" {
            // The shell doesn't wait: who comes first says its lines first.
            seen.1.sort_unstable();
        }
        seen
    };
    let plain = seen(&place.run(number, errno, None));
    // Where the program itself can't read it through there is nothing to be fetched.
    let reads = plain.1.len() >= SIZE;
    let differs = |ours: &Output, how: &str| {
        let ours = seen(ours);
        (ours != plain).then(|| {
            let same = ours.1 == plain.1;
            format!(
                "{name} {errno} {how}: {:?} {:?} and not {:?} {:?}; the same output: {same}",
                ours.0, ours.2, plain.0, plain.2
            )
        })
    };
    if errno == "ENOSYS"
        && let Some(failure) = differs(&place.run(number, errno, Some(&[])), "run")
    {
        return Some(failure);
    }
    let report = place.dir.join("r.json");
    let mut last = String::new();
    // Where nothing was fetched the machine may have been too busy.
    for _ in 0..5 {
        let _ = fs::remove_file(&report);
        let ours = place.run(number, errno, Some(&["--report=r.json"]));
        if let Some(failure) = differs(&ours, "report") {
            return Some(failure);
        }
        let text = fs::read(&report).unwrap_or_default();
        if text.is_empty() {
            // What the command writes with is refused; where it can, it says so.
            let said = String::from_utf8_lossy(&ours.stderr).into_owned();
            return (!said.contains(name) && name != "write")
                .then(|| format!("{name} {errno}: no report, and nobody says why: {said}"));
        }
        let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let fetched = report["totals"]["prefetched_bytes"].as_u64();
        if !reads || fetched.unwrap_or(0) > 0 || explained(&report["lost"], name) {
            return None;
        }
        last = format!("{name} {errno}: nothing was fetched: {}", report["lost"]);
    }
    Some(last)
}

fn all() -> Vec<(&'static str, libc::c_long)> {
    CALLS.iter().chain(OLD).copied().collect()
}

#[test]
fn each_call_refused() {
    let calls = all();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (calls, next, failures) = (&calls, &next, &failures);
            scope.spawn(move || {
                let place = Place::new(&format!("refused_{worker}"));
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some((name, number)) = calls.get(i / 2) else {
                        return;
                    };
                    let errno = ["ENOSYS", "EPERM"][i % 2];
                    failures
                        .lock()
                        .unwrap()
                        .extend(compare(&place, name, *number, errno));
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The table above has all: what strace(1) sees with us and not without.
#[test]
fn the_table_is_complete() {
    if !have("strace") {
        return skip("the_table_is_complete", "strace is not installed");
    }
    let place = Place::new("table");
    let calls = |name: &str, ours: &[&str]| -> Option<BTreeSet<String>> {
        make_cold(&place.dir);
        let log = place.dir.join(name);
        let mut command = Command::new("strace");
        plain_environment(&mut command, &place.dir);
        command.args(["-f", "-qq", "-o"]).arg(&log);
        if !ours.is_empty() {
            command.arg(outrider()).args(ours);
        }
        command.args(["sh", "-c", SCRIPT, "_", "a"]);
        let output = command.current_dir(&place.dir).output().unwrap();
        (output.status.code() == Some(5)).then_some(())?;
        let text = String::from_utf8_lossy(&fs::read(log).unwrap()).into_owned();
        let name = |line: &str| {
            let call = line.split_once(' ')?.1.trim_start().split_once('(')?.0;
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
            // One that strace(1) is too old for.
            let hex = call.strip_prefix("syscall_0x");
            let number = hex.and_then(|n| libc::c_long::from_str_radix(n, 16).ok());
            let known = number.and_then(|n| all().into_iter().find(|(_, m)| *m == n));
            let call = known.map_or(call, |(name, _)| name);
            (!call.is_empty() && call.chars().all(plain)).then(|| call.to_owned())
        };
        Some(text.lines().filter_map(name).collect())
    };
    let Some(plain) = calls("plain", &[]) else {
        return skip("the_table_is_complete", "strace may not trace here");
    };
    let known: BTreeSet<&str> = all().iter().map(|(name, _)| *name).collect();
    // These end or begin a process, or are what a signal's handler ends with.
    let never = [
        "execve",
        "exit_group",
        "exit",
        "rt_sigreturn",
        "restart_syscall",
        "vfork",
    ];
    for flags in [&["run", "--"][..], &["run", "--report=r.json", "--"]] {
        let ours = calls("ours", flags).expect("ends as it does without");
        assert!(ours.len() > plain.len(), "{ours:?}");
        let missing: Vec<_> = ours
            .difference(&plain)
            .filter(|name| !known.contains(name.as_str()) && !never.contains(&name.as_str()))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

/// A filter that refuses is no reason to be silent about it where all else is found.
#[test]
fn what_is_refused_is_named() {
    let place = Place::new("named");
    for (name, number) in [("accept4", libc::SYS_accept4), ("statx", libc::SYS_statx)] {
        place.run(number, "EPERM", Some(&["--report=r.json"]));
        let text = fs::read(Path::new(&place.dir).join("r.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let lost = report["lost"].to_string();
        assert!(
            lost.contains(&format!("{name} (Operation not permitted)")),
            "{lost}"
        );
    }
}
