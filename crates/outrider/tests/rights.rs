//! The service never does what the program could not (SPEC B16): whoever gives up rights is served by a service with just his, or not at all; what
//! a program writes into the memory that it shares makes nobody else's file be opened; and sandboxes have no memory of ours.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::Data::{Big, Bin};
use support::{Case, check, fresh_with, outrider, outrider_run, program, skip_unprivileged};

/// Pages of a file that are in the cache.
fn cached(file: &Path) -> u64 {
    use std::os::fd::AsFd;
    let open = fs::File::open(file).unwrap();
    let len = open.metadata().unwrap().len();
    outrider_sys::cache::counted(open.as_fd(), 0..len).map_or_else(
        |_| {
            let output = Command::new(outrider())
                .arg("cached")
                .arg("--json")
                .arg(file)
                .output();
            let text = String::from_utf8(output.unwrap().stdout).unwrap();
            panic!("cachestat is needed: {text}")
        },
        |found| found.cached,
    )
}

/// A file that only its owner may read, and nothing of which is cached.
fn secret(dir: &Path) -> std::path::PathBuf {
    let file = dir.join("big.dat");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    support::make_cold(dir);
    assert_eq!(cached(&file), 0);
    file
}

/// Whoever runs the tests as root has this in directories that others may enter.
fn open_to_all(dir: &Path) {
    for above in dir.ancestors().take_while(|d| d.parent().is_some()) {
        let Ok(meta) = fs::metadata(above) else {
            continue;
        };
        if meta.uid() == 0 && meta.permissions().mode() & 0o5 != 0o5 {
            let mode = meta.permissions().mode() | 0o5;
            fs::set_permissions(above, fs::Permissions::from_mode(mode)).unwrap();
        }
    }
}

/// SPEC B16: programs that change their user, their capabilities, their root or their namespaces are run ahead of all the same, by a service
/// that has just these rights.
#[test]
fn who_changes_rights_is_served() {
    const NAME: &str = "who_changes_rights_is_served";
    if !support::is_root() {
        return skip_unprivileged(NAME, "changes users");
    }
    let backwards = "python3 -c \"import os
f = os.open('big.dat', os.O_RDONLY)
for at in reversed(range(0, 32 << 20, 16384)): os.pread(f, 16384, at)
print(os.getuid(), os.getgid(), os.getgroups())\"";
    let ways = [
        (
            "setpriv",
            "setpriv --reuid 65534 --regid 65534 --clear-groups",
        ),
        (
            "groups",
            "setpriv --reuid 65534 --regid 65534 --groups 4,24",
        ),
        ("chroot", "chroot --userspec=65534:65534 --skip-chdir /"),
        ("unshare-mounts", "unshare -m"),
        ("unshare-user", "unshare -r"),
        ("unshare-all", "unshare -r -m -p -f --mount-proc"),
        // Users have other numbers there, or none.
        ("other-number", "unshare --map-user=1000"),
        (
            "no-number",
            "setpriv --reuid 65534 --regid 65534 --clear-groups unshare -U",
        ),
        (
            "group-only",
            "setpriv --reuid 65534 --regid 65534 --clear-groups unshare --map-group=77",
        ),
        // Its mounts are those of a user namespace above.
        ("inner-of-two", "unshare -r -m unshare --map-user=1000"),
        ("inner-mounts", "unshare -m unshare -r"),
        (
            "inner-user",
            "setpriv --reuid 65534 --regid 65534 --clear-groups unshare -r",
        ),
    ];
    let cases = ways.map(|(name, way)| {
        Case::sh(&format!("rights_{name}"), &format!("{way} {backwards}"))
            .data(&[Big])
            .setup(open_to_all)
            .needs(&["setpriv", "chroot", "unshare"])
            .modes(&["predict+opt"])
            .expects_prefetch()
    });
    check(cases.into());
}

/// A program below a wrapper that has read a file backwards, and stays until it is told to end.
struct Reader {
    run: Child,
    /// Its process.
    pid: u32,
}

impl Reader {
    fn of(dir: &Path, wrapper: &[&str], file: &str) -> Reader {
        Self::within(dir, &[], wrapper, file)
    }

    /// One whose runner is started by the command `around`.
    fn within(dir: &Path, around: &[&str], wrapper: &[&str], file: &str) -> Reader {
        let program = format!(
            "import os, sys
f = os.open('{file}', os.O_RDONLY)
for at in reversed(range(0, 4 << 20, 16384)): os.pread(f, 16384, at)
print(os.getpid(), flush=True)
sys.stdin.read()"
        );
        let argv = [wrapper, &["python3", "-c", &program]].concat();
        let report = format!("--report={}", dir.join("report.json").display());
        let ours = outrider_run(dir, &[&report], &argv);
        let words = around.iter().map(OsStr::new).chain([ours.get_program()]);
        let mut words = words.chain(ours.get_args());
        let mut run = Command::new(words.next().unwrap());
        support::plain_environment(&mut run, dir);
        run.args(words).current_dir(dir);
        run.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let pid = line.trim().parse().unwrap();
        Reader { run, pid }
    }

    /// What else the runner has started.
    fn services(&self) -> Vec<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let runner = status.lines().find_map(|l| l.strip_prefix("PPid:\t"));
        let children = format!("/proc/{0}/task/{0}/children", runner.unwrap());
        let children = fs::read_to_string(children).unwrap();
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        children.filter(|pid| *pid != self.pid).collect()
    }

    /// Tells it to; whether all went well.
    fn ends(mut self) -> bool {
        drop(self.run.stdin.take());
        self.run.wait().unwrap().success()
    }
}

/// SPEC B16: a service that takes over has the user and group that the program has, also where the program's user namespace has none of them, so that they
/// can't be told from those of the run.
#[test]
fn who_takes_over_is_the_same_user() {
    const NAME: &str = "who_takes_over_is_the_same_user";
    if !support::is_root() {
        return skip_unprivileged(NAME, "changes users");
    }
    let dir = fresh_with(NAME, &[Bin]);
    open_to_all(&dir);
    for way in [
        "unshare -U",
        "unshare --map-group=77",
        "unshare --map-user=77",
    ] {
        support::make_cold(&dir);
        let way = format!("setpriv --reuid 65534 --regid 65533 --clear-groups {way}");
        let wrapper: Vec<&str> = way.split(' ').collect();
        let reader = Reader::of(&dir, &wrapper, "bin.dat");
        let program = reader.pid;
        let users = |pid: u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let is_one = |l: &&str| l.starts_with("Uid:") || l.starts_with("Gid:");
            let lines: Vec<String> = status.lines().filter(is_one).map(str::to_owned).collect();
            lines
        };
        let space = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
        let took_over = || {
            let services = reader.services();
            services
                .into_iter()
                .find(|pid| space(*pid) == space(program))
        };
        support::eventually(|| match took_over() {
            // It takes some steps to become it.
            Some(service) if users(service) == users(program) => Ok(()),
            Some(service) => Err(format!("{way}: {:?}", users(service))),
            None => Err(format!("{way}: nobody took over")),
        });
        assert!(reader.ends(), "{way}");
    }
}

/// SPEC B16: a root directory that is the same one and another mount has other mounts below it: names mean something else there. It can be unmounted as soon
/// as the run is over.
#[test]
fn another_mount_of_the_root_is_another_root() {
    const NAME: &str = "another_mount_of_the_root_is_another_root";
    if !support::is_root() {
        return skip_unprivileged(NAME, "mounts");
    }
    let dir = fresh_with(NAME, &[Bin]);
    let root = dir.join("root");
    fs::create_dir(&root).unwrap();
    let file = dir.join("bin.dat");
    // The machine's root is mounted nowhere but in a mount namespace that ends with the run.
    let script = "mount --bind / root && mount --bind /proc root/proc && \"$@\" && umount root/proc && umount root";
    let around = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
    ];
    let wrapper = ["chroot", root.to_str().unwrap()];
    let reader = Reader::within(&dir, &around, &wrapper, file.to_str().unwrap());
    let seen = |pid: u32| fs::read_link(format!("/proc/{pid}/root")).unwrap();
    let program = seen(reader.pid);
    assert_eq!(program, root);
    let services = reader.services();
    let took_over = services.iter().any(|pid| seen(*pid) == program);
    assert!(reader.ends() && took_over, "{services:?}");
}

/// SPEC B11, B16: a root directory or mount namespace is free as soon as the programs in it are over, although a service had it, too; and there is one for each of
/// many in succession.
#[test]
fn places_of_programs_that_are_over_are_free() {
    const NAME: &str = "places_of_programs_that_are_over_are_free";
    if !support::is_root() {
        return skip_unprivileged(NAME, "mounts");
    }
    let dir = fresh_with(NAME, &[Bin]);
    fs::create_dir(dir.join("root")).unwrap();
    let read = format!(
        "import os; f = os.open('{}', os.O_RDONLY); os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
for at in reversed(range(0, 4 << 20, 16384)): os.pread(f, 16384, at)",
        dir.join("bin.dat").display()
    );
    fs::write(dir.join("read.py"), read).unwrap();
    // Nobody has waited for that one when its root is given back.
    let wait = "import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
while open(f'/proc/{child.pid}/stat').read().rpartition(')')[2].split()[0] != 'Z': os.sched_yield()
subprocess.run('umount root/proc; umount root && echo free', shell=True)";
    fs::write(dir.join("wait.py"), wait).unwrap();
    let [read, wait] = ["read.py", "wait.py"].map(|name| dir.join(name));
    let text = format!(
        "for i in 1 2 3 4 5 6; do
            mount --bind / root; mount --bind /proc root/proc
            chroot root python3 {read}
            umount root/proc; umount root && echo free
            unshare -m python3 {read}
        done
        mount --bind / root; mount --bind /proc root/proc
        python3 {wait} chroot root python3 {read}",
        read = read.display(),
        wait = wait.display(),
    );
    // Other tests have namespaces, too.
    let around = format!("unshare -m --propagation private sh -c '{text}'");
    let (plain, _) = support::script(&dir, false, &around);
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said(&plain).matches("free\n").count(), 7, "{plain:?}");
    support::eventually(|| {
        let (ours, report) = support::script(&dir, true, &around);
        assert_eq!(
            said(&ours).matches("free\n").count(),
            7,
            "{ours:?} {report:#}"
        );
        let lost = report["lost"].to_string();
        assert!(!lost.contains("rights:"), "{lost}");
        assert!(!lost.contains("service:"), "{lost}");
        // Thirteen read, of which each may be over before anybody could help.
        let mut processes = report["processes"].as_array().unwrap().iter();
        let helped = |p: &&serde_json::Value| p["prefetched_bytes"].as_u64() > Some(0);
        let prefetched = processes.by_ref().filter(helped).count();
        (prefetched >= 10)
            .then_some(())
            .ok_or(format!("{prefetched} {report:#}"))
    });
}

/// SPEC B16: where no service can be had with a program's rights, or none can be reached, the report says so and the program runs.
#[test]
fn who_is_not_served_is_told_of() {
    const NAME: &str = "who_is_not_served_is_told_of";
    if !support::is_root() {
        return skip_unprivileged(NAME, "changes users");
    }
    let dir = fresh_with(NAME, &[Bin]);
    open_to_all(&dir);
    // As container runtimes do it, who first give up privileges: no hook is to tell of it then.
    let number = if cfg!(target_arch = "x86_64") {
        56
    } else {
        220
    };
    let quietly = format!(
        "import ctypes, os, sys
call = ctypes.CDLL(None).syscall
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
child = call({number}, 0x40000000 | 17, 0, 0, 0, 0)
if child == 0: os.execvp(sys.argv[1], sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    );
    for (wrapper, word) in [
        (&["unshare", "-n"][..], "network namespace"),
        (&["python3", "-c", &quietly], "network namespace"),
        // More users at once than there are services.
        (
            &[
                "sh",
                "-c",
                "for u in 1 2 3 4 5 6; do setpriv --reuid $u --regid $u --clear-groups \"$@\" >others-$u & done; setpriv --reuid 7 --clear-groups \"$@\"; wait",
                "sh",
            ][..],
            "rights",
        ),
    ] {
        support::make_cold(&dir);
        let report = dir.join("report.json");
        // It lives until it was looked at, and the others were.
        let program = "import os, sys, time
os.write(1, open('bin.dat', 'rb').read())
time.sleep(1)";
        let argv = wrapper.iter().copied().chain(["python3", "-c", program]);
        let argv: Vec<&str> = argv.collect();
        let flag = format!("--report={}", report.display());
        let output = outrider_run(&dir, &[&flag], &argv).output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        let expected = fs::read(dir.join("bin.dat")).unwrap();
        assert!(
            output
                .stdout
                .chunks(expected.len())
                .all(|part| part == expected)
        );
        let text = fs::read(&report).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert!(
            report["lost"].to_string().contains(word),
            "{argv:?}: {}",
            report["lost"]
        );
    }
}

/// SPEC B16: nothing of a file is read that a program names which may not read it, however the program lost its rights: its events and
/// descriptors are forged. One without any right to a descriptor (O_PATH) has none through us, whoever it is.
#[test]
fn forged_descriptors_open_nothing() {
    const NAME: &str = "forged_descriptors_open_nothing";
    if !support::is_root() {
        return skip_unprivileged(NAME, "has files that others may not read");
    }
    let dir = fresh_with(NAME, &[Bin, Big]);
    open_to_all(&dir);
    let attacker = program("deputy");
    let attacker = attacker.to_str().unwrap();
    // Somebody else has it open, who may read it, and reads its beginning.
    let owner = "import os, subprocess, sys, time
f = os.open('big.dat', os.O_RDONLY)
os.pread(f, 4096, 0)
time.sleep(0.1)
sys.exit(subprocess.run(sys.argv[1:]).returncode)";
    let owned = ["python3", "-IS", "-c", owner];
    for (who, held) in [
        ("nobody", false),
        ("owner", false),
        ("nobody", true),
        ("owner", true),
        ("closed", false),
        ("closed", true),
    ] {
        let file = secret(&dir);
        let report = dir.join("report.json");
        let flag = format!("--report={}", report.display());
        let argv = [attacker, "bin.dat", "big.dat", who];
        let argv = [if held { &owned[..] } else { &[] }, &argv].concat();
        let output = outrider_run(&dir, &[&flag], &argv).output().unwrap();
        assert!(output.status.success(), "{who} {held}: {output:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "told\n",
            "{who} {held}"
        );
        // Of what is read in order the next is fetched.
        let read = held || who == "closed";
        let most = if read { 256 } else { 0 };
        let cached = cached(&file);
        assert!(
            cached <= most,
            "{who} {held}: {cached} pages of a file were read that was only named"
        );
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let files = report["files"].to_string();
        assert!(
            read || !files.contains("big.dat"),
            "{who} {held}: {report:#}"
        );
    }
}

/// SPEC B16: what a dropped program goes through is not gone through ahead with the rights that it had.
#[test]
fn walks_of_the_dropped_read_nothing() {
    const NAME: &str = "walks_of_the_dropped_read_nothing";
    if !support::is_root() {
        return skip_unprivileged(NAME, "has files that others may not read");
    }
    let dir = fresh_with(NAME, &[Bin]);
    open_to_all(&dir);
    let tree = dir.join("w");
    fs::create_dir(&tree).unwrap();
    for i in 0..200 {
        let file = tree.join(format!("f{i:03}"));
        fs::write(&file, [7; 20000]).unwrap();
        let mode = if i % 2 == 0 { 0o600 } else { 0o644 };
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }
    for raw in [false, true] {
        support::make_all_cold(&tree);
        support::make_cold(&dir);
        let script = format!(
            "import ctypes, os
f = os.open('bin.dat', os.O_RDONLY)
for i in range(20): os.pread(f, 65536, i * 65536)
if {}:
    call = ctypes.CDLL(None).syscall
    call(116, 0, 0); call(119, 65534, 65534, 65534); call(117, 65534, 65534, 65534)
else:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
read = denied = 0
for name in sorted(os.listdir('w')):
    try: read += len(open('w/' + name, 'rb').read())
    except PermissionError: denied += 1
print(read, denied)",
            if raw { "True" } else { "False" }
        );
        let output = support::printed(&mut outrider_run(&dir, &[], &["python3", "-c", &script]));
        assert_eq!(output, "2000000 100\n");
        let unreadable = (0..200).step_by(2).map(|i| tree.join(format!("f{i:03}")));
        let fetched: Vec<_> = unreadable.filter(|f| cached(f) > 0).collect();
        assert!(fetched.is_empty(), "raw {raw}: {fetched:?}");
    }
}

/// SPEC B16: children, and whoever gives up rights, have no memory through which they could speak to a service that has them still.
#[test]
fn sandboxes_have_no_memory_of_ours() {
    const NAME: &str = "sandboxes_have_no_memory_of_ours";
    if !support::is_root() {
        return skip_unprivileged(NAME, "changes users");
    }
    let dir = fresh_with(NAME, &[Bin]);
    let tested = program("confided");
    let tested = tested.to_str().unwrap();
    for steps in [
        &["fork", "mounts", "seccomp"][..],
        &["fork", "user", "seccomp"],
        &["raw-fork", "user", "seccomp"],
        &["raw-fork", "seccomp"],
        &["mounts"],
        &["chroot"],
        &["setuid"],
        &["capset"],
        &["seccomp"],
    ] {
        support::make_cold(&dir);
        let argv: Vec<&str> = [tested, "bin.dat"]
            .into_iter()
            .chain(steps.iter().copied())
            .collect();
        let output = outrider_run(&dir, &[], &argv).output().unwrap();
        assert!(output.status.success(), "{steps:?}: {output:?}");
        let had = String::from_utf8(output.stderr).unwrap();
        assert_eq!(had, "1\n", "{steps:?}: the program itself has some");
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said.lines().count(), steps.len(), "{steps:?}: {said}");
        let none = |line: &str| line.ends_with(": 0") || line.ends_with(": done, 0");
        assert!(said.lines().all(none), "{steps:?}: {said}");
    }
}

/// S1, S2, B16: a child that another thread forks while a process first tells something has neither the mapping nor the descriptor of the memory that is shared
/// from then on. One that is made by an instruction of the program's own, which no hook sees, may have the descriptor, but can't write by it.
#[test]
fn children_of_any_moment_have_no_memory_of_their_parents() {
    let dir = fresh_with(
        "children_of_any_moment_have_no_memory_of_their_parents",
        &[Bin],
    );
    let tested = program("inherits");
    let tested = tested.to_str().unwrap();
    for how in ["libc", "_Fork", "clone", "syscall", "vfork", "bare"] {
        support::make_cold(&dir);
        let said = support::printed(&mut outrider_run(
            &dir,
            &[],
            &[tested, how, "100", "bin.dat"],
        ));
        let numbers: Vec<u32> = said
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        let [made, mapped, open, writable] = numbers[..] else {
            panic!("{how}: {said}")
        };
        assert!(made >= 100, "{how}: {said}");
        assert_eq!((mapped, writable), (0, 0), "{how}: {said}");
        assert!(open == 0 || how == "bare", "{how}: {said}");
    }
}

/// SPEC B16: what programs share with the service nobody else can open, or change the length of.
#[test]
fn memory_keeps_its_length() {
    let dir = fresh_with("memory_keeps_its_length", &[Bin]);
    let script = "import os
f = os.open('bin.dat', os.O_RDONLY)
for at in reversed(range(0, 4 << 20, 65536)): os.pread(f, 4096, at)
for line in open('/proc/self/maps'):
    if 'memfd:outrider' in line:
        try: fd = os.open('/proc/self/map_files/' + line.split()[0], os.O_RDWR)
        except PermissionError: print('not opened'); continue
        for size in 0, os.fstat(fd).st_size * 2:
            try: os.ftruncate(fd, size); print('truncated')
            except OSError as e: print('not truncated')
runner = os.getppid()
for fd in os.listdir(f'/proc/{runner}/fd'):
    try: os.open(f'/proc/{runner}/fd/{fd}', os.O_RDWR); print('opened', fd)
    except OSError: pass
";
    let output = support::printed(&mut outrider_run(&dir, &[], &["python3", "-c", script]));
    let expected = match output.starts_with("not opened") {
        true => "not opened\n",
        false => "not truncated\nnot truncated\n",
    };
    assert_eq!(output, expected);
}

/// Seconds after which a process that has told something is served, or is not.
const LONG_ENOUGH: f64 = 1.5;

/// The lines of a run's report about what was lost.
fn lost(report: &Path) -> String {
    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    report["lost"].to_string()
}

/// A socket at which somebody listens under this abstract name, as soon as nobody else does.
fn listen_as(name: &str) -> std::os::fd::OwnedFd {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    // SAFETY: zeros are an address of no family, which is filled in; a new descriptor; structures that outlive the calls.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as _;
        let path = &mut address.sun_path[1..];
        path.iter_mut()
            .zip(name.bytes())
            .for_each(|(to, byte)| *to = byte as _);
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, kind, 0));
        let (fd, len) = (socket.as_raw_fd(), 3 + name.len());
        support::wait_for(support::PATIENCE, || {
            let r = libc::bind(fd, (&raw const address).cast(), len as _);
            (r == 0).then_some(())
        })
        .unwrap();
        let (on, size) = (1i32, size_of::<i32>());
        let on = (&raw const on).cast();
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_PASSCRED, on, size as _);
        assert_eq!(libc::listen(fd, 16), 0);
        socket
    }
}

/// SPEC S1: who ends the service of his user and listens in its place gets no memory of a process that has more rights than he has.
#[test]
fn memory_is_handed_on_to_services_only() {
    use outrider_sys::handover::{Arrival, Waiting};
    use std::io::Write;
    use std::os::fd::AsFd;
    const NAME: &str = "memory_is_handed_on_to_services_only";
    if !support::is_root() {
        return skip_unprivileged(NAME, "changes users");
    }
    let dir = fresh_with(NAME, &[Bin]);
    open_to_all(&dir);
    let read = "import os
f = os.open('bin.dat', os.O_RDONLY)
for at in reversed(range(0, 4 << 20, 16384)): os.pread(f, 16384, at)
print('read', flush=True)
os.read(0, 1)";
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups python3 -c \"$0\"";
    let script = format!("{nobody}; {nobody}");
    let report = dir.join("report.json");
    let flag = format!("--report={}", report.display());
    let mut run = outrider_run(&dir, &[&flag], &["sh", "-c", &script, read])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let runner = run.id() as i32;
    let mut said = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "read");
    let is_nobodys = |pid: i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("\nUid:\t65534")
    };
    let service = support::processes()
        .into_iter()
        .find(|p| (p.parent, p.name.as_str()) == (runner, "outrider") && is_nobodys(p.pid));
    let service = service.unwrap().pid;
    let sockets: Vec<String> = fs::read_dir(format!("/proc/{service}/fd"))
        .unwrap()
        .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .filter_map(|link| {
            let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(number.to_owned())
        })
        .collect();
    let all = fs::read_to_string("/proc/net/unix").unwrap();
    let name = all.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(6);
        let known = sockets.iter().any(|s| Some(s.as_str()) == words.next());
        words.next()?.strip_prefix('@').filter(|_| known)
    });
    // The runner would find out at once that it has ended.
    let send = |pid: i32, signal: i32| {
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    };
    send(runner, libc::SIGSTOP);
    send(service, libc::SIGKILL);
    let socket = listen_as(name.unwrap());
    let mut go = run.stdin.take().unwrap();
    go.write_all(b"g").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "read");
    let mut waiting = Waiting::default();
    let came = support::wait_for(LONG_ENOUGH, || match waiting.receive(socket.as_fd()) {
        Arrival::Memory(handed) => Some(handed.message),
        _ => None,
    });
    send(runner, libc::SIGCONT);
    drop(go);
    assert!(run.wait().unwrap().success());
    assert!(came.is_none(), "somebody else got the memory: {came:?}");
    assert!(lost(&report).contains("rights"), "{}", lost(&report));
}

/// SPEC S1: a service doesn't believe what a program has put in its root where the kernel shows processes.
#[test]
fn a_made_up_proc_is_not_believed() {
    const NAME: &str = "a_made_up_proc_is_not_believed";
    if !support::is_root() {
        return skip_unprivileged(NAME, "mounts");
    }
    let dir = fresh_with(NAME, &[Bin]);
    fs::create_dir(dir.join("root")).unwrap();
    // It shows what is true, of the processes that may come next, and might show anything.
    let script = "mount --bind / root && mount -t tmpfs none root/proc && mount -t tmpfs none root/mnt && mkdir root/mnt/p && mount --bind /proc root/mnt/p && (
cd root/proc; ln -s /mnt/p/self /mnt/p/mounts /mnt/p/thread-self .
next=$(cut -d ' ' -f 5 /proc/loadavg); ln -s $(seq -f /mnt/p/%.0f $next $((next + 3000))) .) && exec \"$@\"";
    let around = [
        "unshare",
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
    ];
    let file = dir.join("bin.dat");
    let wrapper = ["chroot", dir.join("root").to_str().unwrap()].map(str::to_owned);
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let reader = Reader::within(&dir, &around, &wrapper, file.to_str().unwrap());
    std::thread::sleep(std::time::Duration::from_secs_f64(LONG_ENOUGH));
    assert!(reader.ends());
    let lost = lost(&dir.join("report.json"));
    assert!(lost.contains("rights"), "{lost}");
}

/// SPEC B16: what a program starts that has confined itself by Landlock is not gone ahead of with rights that it hasn't. The report says so, where the
/// program may still be asked.
#[test]
fn what_landlock_confines_is_left_alone() {
    const NAME: &str = "what_landlock_confines_is_left_alone";
    /// Lets itself, and what it starts, read what lies below the directories named before `--`.
    const CONFINE: &str = "import ctypes, os, shlex, struct, sys
libc = ctypes.CDLL(None)
rules = libc.syscall(444, struct.pack('Q', 12), 8, 0)
if rules < 0: sys.exit(77)
end = sys.argv.index('--')
for path in sys.argv[2:end]:
    if not os.path.exists(path): continue
    f = os.open(path, os.O_PATH)
    if libc.syscall(445, rules, 1, struct.pack('=Qi', 12, f), 0): sys.exit(3)
kept = [n + '=' + os.environ[n] for n in os.environ]
if 'locked' in sys.argv[1]: libc.prctl(38, 1, 0, 0, 0)
if libc.syscall(446, rules, 0): sys.exit(4)
if os.access('d39/f00', os.R_OK) and not os.system('cat d39/f00 >/dev/null 2>&1'): sys.exit(5)
if sys.argv[1] == 'system': sys.exit(os.system(shlex.join(sys.argv[end + 1:])))
if sys.argv[1] == 'wordexp':
    texts, words = [v.encode() for v in kept], (ctypes.c_void_p * 3)()
    for text in texts: libc.putenv(ctypes.c_char_p(text))
    if libc.wordexp(('$(' + shlex.join(sys.argv[end + 1:]) + ')').encode(), words, 0): sys.exit(6)
    print(ctypes.cast(words[1], ctypes.POINTER(ctypes.c_char_p))[0].decode())
    sys.exit()
if 'unwritable' in sys.argv[1]:
    # Where nobody may write.
    import mmap
    texts = [v.encode() + b'\\0' for v in kept]
    room = mmap.mmap(-1, 8 * (len(texts) + 1) + sum(map(len, texts)))
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    at, places = 8 * (len(texts) + 1), []
    for text in texts:
        room[at:at + len(text)] = text
        places.append(base + at)
        at += len(text)
    room[:8 * (len(texts) + 1)] = struct.pack('Q' * (len(texts) + 1), *places, 0)
    libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(len(room)), 1)
    argv = sys.argv[end + 1:]
    if 'system' in sys.argv[1]:
        # What is started so has ours, and the library: it must not be found to have been written to.
        ctypes.c_void_p.in_dll(libc, 'environ').value = base
        sys.exit(os.system('echo 4800000') >> 8)
    args = (ctypes.c_char_p * (len(argv) + 2))(b'env', *[a.encode() for a in argv], None)
    libc.execve(b'/usr/bin/env', args, ctypes.c_void_p(base))
    sys.exit(7)
os.execvp(sys.argv[end + 1], sys.argv[end + 1:])";
    /// Goes through the first half of the directories.
    const WALK: &str = "import os
n = 0
for d in range(20):
    for f in sorted(os.listdir('d%02d' % d)): n += len(open('d%02d/%s' % (d, f), 'rb').read())
print(n)";
    let dir = fresh_with(NAME, &[]);
    let place = |i: usize| dir.join(format!("d{i:02}"));
    for i in 0..40 {
        fs::create_dir(place(i)).unwrap();
        for k in 0..12 {
            fs::write(place(i).join(format!("f{k:02}")), [7; 20000]).unwrap();
        }
    }
    let allowed = (0..20).map(|i| place(i).display().to_string());
    let library = outrider().parent().unwrap().display().to_string();
    let system = "/usr /lib /lib64 /bin /etc /dev /proc /run /tmp".split(' ');
    let system = system.map(str::to_owned).chain([library]);
    let allowed: Vec<String> = allowed.chain(system).collect();
    let ways = "locked free system wordexp unwritable unwritable-locked unwritable-system-locked"
        .split(' ');
    for how in ways.clone().chain(ways) {
        if !how.contains("locked") && !support::is_root() {
            support::skip_unprivileged(NAME, "confines itself and may gain rights");
            continue;
        }
        for i in 0..40 {
            support::make_all_cold(&place(i));
        }
        let mut argv = vec!["python3", "-IS", "-c", CONFINE, how];
        argv.extend(allowed.iter().map(String::as_str));
        argv.extend(["--", "python3", "-IS", "-c", WALK]);
        let report = dir.join("report.json");
        let flag = format!("--report={}", report.display());
        let output = outrider_run(&dir, &[&flag], &argv).output().unwrap();
        if output.status.code() == Some(77) {
            return support::skip(NAME, "no Landlock");
        }
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "4800000\n");
        let files = (20..40).flat_map(|i| (0..12).map(move |k| format!("d{i}/f{k:02}")));
        let beyond: u64 = files.map(|f| cached(&dir.join(f))).sum();
        assert_eq!(beyond, 0, "fetched for a program that may not read it");
        let text = fs::read_to_string(&report).unwrap();
        assert!(
            how.contains("locked") || text.contains("by Landlock"),
            "{text}"
        );
    }
}

/// SPEC B16, B11: of processes that services with their rights serve as many are known as may be; for the others, and for its own, the first service has descriptors left.
#[test]
fn processes_with_other_rights_are_bounded() {
    const NAME: &str = "processes_with_other_rights_are_bounded";
    /// Has as many processes of another user read at once as are named, and says how many descriptors that child of the runner has which has most.
    const MANY: &str = "import os, subprocess, sys, time
reader = '''import os, time
for i in range(%s):
    if os.fork() == 0:
        f = os.open('big.dat', os.O_RDONLY)
        for k in range(4): os.pread(f, 4096, (4 * i + k) * 32768)
        time.sleep(4)
        os._exit(0)
time.sleep(3)''' % sys.argv[1]
nobody = 'setpriv --reuid 65534 --regid 65534 --clear-groups'.split()
with subprocess.Popen(nobody + ['python3', '-IS', '-c', reader]):
    time.sleep(2.5)
    runner = os.getppid()
    children = open(f'/proc/{runner}/task/{runner}/children').read().split()
    print(max(len(os.listdir(f'/proc/{child}/fd')) for child in children if int(child) != os.getpid()))";
    if !support::is_root() {
        return skip_unprivileged(NAME, "becomes another user");
    }
    let dir = fresh_with(NAME, &[Big]);
    open_to_all(&dir);
    support::make_cold(&dir);
    let report = dir.join("report.json");
    let mut command = Command::new("prlimit");
    support::plain_environment(&mut command, &dir);
    let output = command
        .arg("--nofile=400")
        .arg(outrider())
        .args(["run", &format!("--report={}", report.display()), "--"])
        .args(["python3", "-IS", "-c", MANY, "250"])
        .current_dir(&dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let descriptors: u64 = said.trim().parse().unwrap();
    let text = fs::read_to_string(&report).unwrap();
    // A quarter of them, and some that it needs itself. The service with the others' rights has two for each that it serves.
    assert!(
        (100..260).contains(&descriptors),
        "{descriptors}: {}",
        &text[text.find("\"lost\"").unwrap()..]
    );
    assert!(text.contains("more processes at once than can be followed"));
}
