//! Nobody speaks for another (SPEC B16): not who knows the name of the socket, not who has inherited a connection, and not who gives names a meaning of his own.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::Data::{Big, Bin};
use support::{
    fresh, fresh_with, is_root, outrider, outrider_run, plain_environment, processes, program,
    skip_unprivileged,
};

/// Whoever runs the tests as root has these in directories that others may enter.
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

fn report(file: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// A program of the run that says how its service is reached, and goes on until its standard input ends.
fn speaking(dir: &Path, reports: bool) -> (Child, String, String) {
    let flag = format!("--report={}", dir.join("report.json").display());
    // Without one the program is started early.
    let flags = [&flag[..]];
    let mut run = outrider_run(
        dir,
        if reports { &flags } else { &[] },
        &[
            "sh",
            "-c",
            "cat bin.dat > /dev/null; echo $OUTRIDER_SHM; read line; exit 0",
        ],
    )
    .stdin(Stdio::piped())
    .stdout(Stdio::piped())
    .spawn()
    .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(run.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let mut words = line.trim().split(':');
    let name = words.next().unwrap().to_owned();
    (run, name, words.nth(6).unwrap_or("0").to_owned())
}

/// SPEC B16: who only knows the name of the socket, which is everybody, is turned away: no service is started for him, and the report says nothing of his. Who
/// has the secret of the run, from a program's environment, is served as himself.
#[test]
fn strangers_are_turned_away() {
    const NAME: &str = "strangers_are_turned_away";
    let dir = fresh_with(NAME, &[Bin]);
    open_to_all(&dir);
    let stranger = program("stranger");
    let said = |user: Option<u32>, name: &str, secret: &str| {
        let mut command = Command::new(&stranger);
        command.args(["send", name, secret]);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let users: &[Option<u32>] = match is_root() {
        true => &[Some(65534), None],
        false => &[None],
    };
    for user in users {
        for (secret, reports, served) in [
            (false, true, "served 0\n"),
            (true, true, "served 1\n"),
            (true, false, "served 1\n"),
        ] {
            if user.is_some() && secret {
                continue;
            }
            let (mut run, name, known) = speaking(&dir, reports);
            let before = processes();
            let shown = if secret { &known[..] } else { "1" };
            assert_eq!(said(*user, &name, shown), served, "{user:?}");
            let services = |all: &[support::Process]| {
                let its = |p: &&support::Process| p.parent == run.id() as i32;
                all.iter().filter(its).count()
            };
            let (before, after) = (services(&before), services(&processes()));
            drop(run.stdin.take());
            assert!(run.wait().unwrap().success());
            assert!(after <= before.max(2), "{before} and {after} children");
            if !reports {
                continue;
            }
            let report = report(&dir.join("report.json"));
            let commands = report["processes"].to_string();
            assert_eq!(commands.contains("stranger"), secret, "{commands}");
            assert!(!commands.contains("forged"), "{commands}");
            let lost = report["lost"].as_array().map_or(0, Vec::len);
            assert_eq!(lost > 0, secret, "{user:?}: {}", report["lost"]);
        }
    }
}

/// SPEC B16: a connection is its maker's as long as he lives. Who has inherited it does not speak for another process that has his number by now.
#[test]
fn inherited_connections_are_nobodys() {
    const NAME: &str = "inherited_connections_are_nobodys";
    if !is_root() {
        return skip_unprivileged(NAME, "gives a process a number");
    }
    let dir = fresh_with(NAME, &[Bin]);
    open_to_all(&dir);
    let secrets = dir.join("secrets");
    fs::create_dir(&secrets).unwrap();
    for i in 0..200 {
        let file = secrets.join(format!("f{i:03}"));
        fs::write(&file, [7; 20000]).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let stranger = program("stranger");
    let mut reused = false;
    for _ in 0..40 {
        support::make_all_cold(&secrets);
        let argv = [
            stranger.to_str().unwrap(),
            "inherit",
            secrets.to_str().unwrap(),
        ];
        let output = outrider_run(&dir, &[], &argv).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("served 0"), "{said}");
        // The first is cached by who has it open.
        let cached = |name: &str| {
            let file = fs::File::open(secrets.join(name)).unwrap();
            outrider_sys::cache::counted(file.as_fd(), 0..20000).is_ok_and(|c| c.cached > 0)
        };
        let fetched = (1..200).filter(|i| cached(&format!("f{i:03}"))).count();
        assert_eq!(fetched, 0, "{said}");
        // On a busy machine somebody else may get the number.
        reused |= said.contains("reused 1");
        if reused {
            break;
        }
    }
    assert!(reused, "no number was used again");
}

/// SPEC B16: memory is the program's that has handed it over, and not that of one which its process has become since and which has more rights by its file: nobody gets a
/// service with the rights of such a one.
#[test]
fn memory_is_not_a_privileged_programs() {
    const NAME: &str = "memory_is_not_a_privileged_programs";
    if !is_root() {
        return skip_unprivileged(NAME, "makes a program set-user-ID");
    }
    let dir = fresh_with(NAME, &[]);
    open_to_all(&dir);
    let secrets = dir.join("secrets");
    fs::create_dir(&secrets).unwrap();
    let name = |i: usize| secrets.join(format!("f{i:03}"));
    for i in 0..200 {
        fs::write(name(i), [7; 20000]).unwrap();
        let mode = if i == 0 { 0o644 } else { 0o600 };
        fs::set_permissions(name(i), fs::Permissions::from_mode(mode)).unwrap();
    }
    let stranger = program("stranger");
    for way in ["set-user-ID", "capabilities"] {
        let privileged = dir.join(way);
        fs::copy(&stranger, &privileged).unwrap();
        if way == "set-user-ID" {
            fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).unwrap();
        } else {
            // CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE, in the kernel's struct vfs_cap_data.
            let words = [0x0200_0001u32, 1 << 1 | 1 << 2 | 1 << 19, 0, 0, 0];
            let value: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let (to, how) = ("security.capability", rustix::fs::XattrFlags::empty());
            if rustix::fs::setxattr(&privileged, to, &value, how).is_err() {
                support::skip(NAME, "files have no capabilities here");
                continue;
            }
        }
        support::make_all_cold(&secrets);
        let argv = [&stranger, &secrets, &privileged].map(|p| p.to_str().unwrap());
        let argv = [argv[0], "lend", argv[1], argv[2]];
        let output = outrider_run(&dir, &[], &argv).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        if !said.contains("privileged 1") {
            support::skip(NAME, "such programs have no rights here");
            continue;
        }
        let cached = |i: &usize| {
            let file = fs::File::open(name(*i)).unwrap();
            outrider_sys::cache::counted(file.as_fd(), 0..20000).is_ok_and(|c| c.cached > 0)
        };
        let fetched = (1..200).filter(cached).count();
        assert_eq!(fetched, 0, "{way}: {said}");
        assert!(said.contains("taken 0"), "{way}: {said}");
    }
}

/// SPEC B16: what a process tells that had never the service's rights is counted at most, whatever it has become since and whoever has the file open of which it tells:
/// nothing is fetched, and no walk of others ends.
#[test]
fn claims_of_privileged_programs_come_to_nothing() {
    const NAME: &str = "claims_of_privileged_programs_come_to_nothing";
    /// Has a file open that only root may read, of which it reads the beginning, while a program runs.
    const OWNER: &str = "import os, subprocess, sys, time
f = os.open(sys.argv[1], os.O_RDONLY)
os.pread(f, 4096, 0)
time.sleep(0.2)
subprocess.run(sys.argv[2:])
time.sleep(0.2)
os.pread(f, 4096, 4096)";
    const SIZE: u64 = 16 << 20;
    if !is_root() {
        return skip_unprivileged(NAME, "makes a program set-user-ID");
    }
    let dir = fresh_with(NAME, &[]);
    open_to_all(&dir);
    let secret = dir.join("secret");
    fs::write(&secret, vec![7; SIZE as usize]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let stranger = program("stranger");
    let privileged = dir.join("privileged");
    fs::copy(&stranger, &privileged).unwrap();
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).unwrap();
    let report_file = dir.join("report.json");
    let flag = format!("--report={}", report_file.display());
    for _ in 0..3 {
        support::make_cold(&secret);
        let [secret, stranger, privileged] =
            [&secret, &stranger, &privileged].map(|p| p.to_str().unwrap());
        let argv = [
            "python3", "-IS", "-c", OWNER, secret, stranger, "claim", secret, privileged,
        ];
        let output = outrider_run(&dir, &[&flag], &argv).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let file = File::open(secret).unwrap();
        let cached = outrider_sys::cache::counted(file.as_fd(), SIZE / 2..SIZE).unwrap();
        assert_eq!(cached.cached, 0, "fetched for somebody who may not read it");
        let report = report(&report_file);
        assert!(!report["lost"].to_string().contains("leases"), "{report:#}");
    }
}

/// SPEC B16: who has another user's environment (sudo -E) is not led by that one's links to files that only he may read: nothing of them is in the report. A settings file
/// of one's own is found behind one's own links.
#[test]
fn links_of_others_lead_to_no_settings() {
    const NAME: &str = "links_of_others_lead_to_no_settings";
    if !is_root() {
        return skip_unprivileged(NAME, "has files of other users");
    }
    let dir = fresh_with(NAME, &[]);
    let secret = dir.join("secret");
    fs::write(&secret, "root:$6$hash:1:\n").unwrap();
    let home = dir.join("home");
    fs::create_dir_all(home.join(".config/outrider")).unwrap();
    let link = home.join(".config/outrider/config.toml");
    std::os::unix::fs::symlink(&secret, &link).unwrap();
    for (owner, shown) in [(65534, false), (0, true)] {
        std::os::unix::fs::lchown(&link, Some(owner), None).unwrap();
        let mut run = outrider_run(&dir, &["--report"], &["true"]);
        let output = run.env("HOME", &home).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("the defaults hold"), "{said}");
        assert_eq!(said.contains("$6$hash"), shown, "{said}");
        assert_eq!(said.contains("a link of another user's"), !shown, "{said}");
    }
}

/// SPEC B11: what lies where models of devices are kept and is no regular file keeps nobody waiting.
#[test]
fn kept_models_are_regular_files() {
    let dir = fresh_with("kept_models_are_regular_files", &[Big]);
    fs::create_dir_all(dir.join(".local/state/outrider")).unwrap();
    let pipe = dir.join(".local/state/outrider/devices.json");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    support::make_cold(&dir);
    let flag = format!("--report={}", dir.join("report.json").display());
    let mut run = outrider_run(&dir, &[&flag], &["tac", "big.dat"]);
    let output = run.stdout(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = report(&dir.join("report.json"));
    assert!(
        !report["lost"].to_string().contains("did not answer"),
        "{report}"
    );
    let fetched = report["totals"]["prefetched_bytes"].as_u64();
    assert!(fetched.is_some_and(|n| n > 0), "{report}");
}

/// SPEC B16: where all may write, what somebody else has put there is written into as a shell would, and not where the kernel keeps a shell from it.
#[test]
fn reports_go_where_a_shell_would_write() {
    const NAME: &str = "reports_go_where_a_shell_would_write";
    if !is_root() {
        return skip_unprivileged(NAME, "has files of other users");
    }
    let dir = fresh_with(NAME, &[]);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    let file = dir.join("report.json");
    fs::write(&file, "theirs").unwrap();
    std::os::unix::fs::chown(&file, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let shell = Command::new("sh")
        .args(["-c", ": >> report.json"])
        .current_dir(&dir)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    // By fs.protected_regular.
    let refused = !shell.success();
    for flag in ["--report=report.json", "--explain=report.json"] {
        let mut again = File::options()
            .write(true)
            .truncate(true)
            .open(&file)
            .unwrap();
        again.write_all(b"theirs").unwrap();
        let output = outrider_run(&dir, &[flag], &["true"]).output().unwrap();
        let code = if refused { 2 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let kept = fs::read(&file).unwrap() == b"theirs";
        assert!(kept == refused || flag.starts_with("--explain"), "{flag}");
    }
}

/// SPEC B16: a report belongs to whom its file belonged when the run began: who may write to its directory, and puts one of his own there since, doesn't get it.
#[test]
fn reports_are_not_given_away() {
    const NAME: &str = "reports_are_not_given_away";
    if !is_root() {
        return skip_unprivileged(NAME, "has files of other users");
    }
    let dir = fresh_with(NAME, &[]);
    open_to_all(&dir);
    let theirs = dir.join("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
    let file = theirs.join("report.json");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let flag = format!("--report={}", file.display());
    let replace = "rm -f theirs/report.json; : > theirs/report.json";
    let user = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let argv = [&user[..], &["sh", "-c", replace]].concat();
    let output = outrider_run(&dir, &[&flag], &argv).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(report(&file)["command"][0], "setpriv");
    let meta = fs::metadata(&file).unwrap();
    assert_eq!((meta.uid(), meta.permissions().mode() & 0o777), (0, 0o600));
}

/// A file that only root may read, and whether anybody opens it while a program runs below us, which says "told".
fn is_opened(name: &str, dir: &Path, flags: &[&str], argv: &dyn Fn(&str) -> Vec<String>) -> bool {
    open_to_all(dir);
    let secret = dir.join("secret");
    fs::write(&secret, "Uid:\t0\t0\t0\t0\n").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let secret = secret.to_str().unwrap();
    let stranger = program("stranger");
    let mut watcher = Command::new(&stranger)
        .args(["watch", secret])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(watcher.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "watching\n");
    let mut words = vec![stranger.to_str().unwrap().to_owned()];
    words.extend(argv(secret));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let run = outrider_run(dir, flags, &words).output().unwrap();
    assert!(run.status.success(), "{run:?}");
    watcher.stdin.take();
    let mut seen = String::new();
    std::io::Read::read_to_string(&mut output, &mut seen).unwrap();
    watcher.wait().unwrap();
    if run.stdout.starts_with(b"no namespaces") {
        support::skip(name, "users have no namespaces here");
        return false;
    }
    assert_eq!(run.stdout, b"told\n");
    !seen.is_empty()
}

/// SPEC B16: while a service takes on the rights of a process in namespaces of its own, it opens nothing by names that are that process's to give.
#[test]
fn names_of_others_lead_nowhere() {
    const NAME: &str = "names_of_others_lead_nowhere";
    if !is_root() {
        return skip_unprivileged(NAME, "has files that others may not read");
    }
    let dir = fresh_with(NAME, &[Bin]);
    let argv = |secret: &str| vec!["names".to_owned(), secret.to_owned()];
    assert!(!is_opened(NAME, &dir, &[], &argv), "the secret was opened");
}

/// SPEC B16: what the runner looks into for the report is what ran, and not what its owner has made of it since: no interpreter that such a file names is opened.
#[test]
fn rewritten_programs_lead_nowhere() {
    const NAME: &str = "rewritten_programs_lead_nowhere";
    if !is_root() {
        return skip_unprivileged(NAME, "has files that others may not read");
    }
    let dir = fresh_with(NAME, &[Bin]);
    let own = dir.join("own");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    let argv = |secret: &str| {
        let own = own.to_str().unwrap().to_owned();
        vec!["turn".to_owned(), secret.to_owned(), own]
    };
    let flag = format!("--report={}", dir.join("report.json").display());
    let opened = is_opened(NAME, &dir, &[&flag], &argv);
    assert!(!opened, "the secret was opened");
    assert!(own.join("program").exists());
}

/// SPEC B16: a program notes what it has lost itself, and nothing of the service and the runner.
#[test]
fn programs_note_only_their_own_losses() {
    let dir = fresh_with("programs_note_only_their_own_losses", &[Bin]);
    let stranger = program("stranger");
    let flag = format!("--report={}", dir.join("report.json").display());
    let argv = [stranger.to_str().unwrap(), "note"];
    let output = outrider_run(&dir, &[&flag], &argv).output().unwrap();
    assert_eq!(output.stdout, b"served 1\n", "{output:?}");
    let lost = report(&dir.join("report.json"))["lost"].to_string();
    assert!(lost.contains("could not make any"), "{lost}");
    for word in ["was killed", "did not answer", "leases:", "inotify:"] {
        assert!(!lost.contains(word), "{word} {lost}");
    }
}

/// SPEC B16, B11: a server's file whose mount can't be seen (it was detached, or is another namespace's) is one all the same: where the server doesn't answer
/// others are helped, and the run ends on time.
#[test]
fn detached_servers_keep_nobody_waiting() {
    const NAME: &str = "detached_servers_keep_nobody_waiting";
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return skip_unprivileged(NAME, "mounts a file system");
    }
    let dir = fresh_with(NAME, &[Big]);
    let mount = dir.join("mnt");
    fs::create_dir(&mount).unwrap();
    // It answers opens of a file that nobody has open, as long as it lives.
    let status = Command::new(program("fuse_server"))
        .arg(&mount)
        .arg("stall")
        .status();
    assert!(status.unwrap().success());
    let file = fs::File::open(mount.join("box/f"));
    let umount = Command::new("umount").arg("-l").arg(&mount).status();
    assert!(umount.unwrap().success());
    support::make_cold(&dir);
    let script = "import os
for at in reversed(range(0, 4 << 20, 16384)): os.pread(0, 16384, at)
f = os.open('big.dat', os.O_RDONLY)
for at in reversed(range(0, 32 << 20, 16384)): os.pread(f, 16384, at)
print('read')";
    let flag = format!("--report={}", dir.join("report.json").display());
    let output = outrider_run(&dir, &[&flag], &["python3", "-c", script])
        .stdin(file.unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"read\n");
    // What it has not answered ends with it.
    for process in processes() {
        let line = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        let mount = mount.as_os_str().as_encoded_bytes();
        if process.name == "fuse_server" && line.windows(mount.len()).any(|part| part == mount) {
            let server = rustix::process::Pid::from_raw(process.pid).unwrap();
            let _ = rustix::process::kill_process(server, rustix::process::Signal::KILL);
        }
    }
    let report = report(&dir.join("report.json"));
    assert!(
        !report["lost"].to_string().contains("did not answer in"),
        "{}",
        report["lost"]
    );
    let files = report["files"].as_array().unwrap();
    let big = |f: &&serde_json::Value| f["path"].as_str().is_some_and(|p| p.ends_with("big.dat"));
    let big = files
        .iter()
        .find(big)
        .map(|f| f["prefetched_bytes"].as_u64());
    assert!(big.flatten().is_some_and(|n| n > 0), "{report}");
}

/// Makes `evil.so`, a library, and a plug-in with an empty table, that prints a line wherever it is loaded.
fn make_evil(dir: &Path) {
    let text = "#include <unistd.h>\n__attribute__((constructor)) static void c(void) { write(1, \"EVIL\\n\", 5); }\nchar outrider_plugin_1[256];\n";
    fs::write(dir.join("evil.c"), text).unwrap();
    let flags = ["-shared", "-fPIC", "-o", "evil.so", "evil.c"];
    let made = Command::new("cc").args(flags).current_dir(dir).status();
    assert!(made.unwrap().success());
}

/// SPEC B16: where the library's own path can't be preloaded, no directory takes its place in which somebody else could put another one.
#[test]
fn libraries_come_from_nobody_elses_directory() {
    const NAME: &str = "libraries_come_from_nobody_elses_directory";
    if !is_root() {
        return skip_unprivileged(NAME, "has directories of other users");
    }
    let dir = fresh_with(NAME, &[]);
    open_to_all(&dir);
    let odd = dir.join("a:b");
    fs::create_dir(&odd).unwrap();
    for file in ["outrider", "liboutrider.so"] {
        fs::copy(outrider().with_file_name(file), odd.join(file)).unwrap();
    }
    for (owner, mode, taken) in [
        (65533, 0o755, true),
        (65534, 0o755, false),
        (65533, 0o777, false),
    ] {
        let home = dir.join(format!("{owner}-{mode:o}"));
        let cache = home.join(".cache");
        fs::create_dir_all(&cache).unwrap();
        fs::set_permissions(&cache, fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&cache, Some(owner), None).unwrap();
        let mut command = Command::new("setpriv");
        plain_environment(&mut command, &home);
        let output = command
            .args(["--reuid", "65533", "--regid", "65533", "--clear-groups"])
            .arg(odd.join("outrider"))
            .args(["run", "--", "sh", "-c", "echo $LD_PRELOAD"])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let its = said.starts_with(home.to_str().unwrap());
        assert_eq!(its, taken, "{owner} {mode:o}: {said}");
        assert_eq!(said.contains("liboutrider.so"), taken, "{said}");
    }
    // A program has something else mounted where that is usual, which all may write to, and another user puts a library of his where ours is.
    make_evil(&dir);
    let plant = "evil=$PWD/evil.so; places=$(ls -d $(dirname $(dirname $1))/*)
for above in /tmp /run /dev/shm; do
    case $evil in $above/*) ;; *) mount -t tmpfs -o mode=1777 none $above || exit 3; esac
done
for place in $places; do
    setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"mkdir -p $place && cp $evil $place/liboutrider.so\" 2>/dev/null
done
test -s $1 || exit 4";
    // By the C library, by hooks that ask, and by hooks that may not.
    let program = "import ctypes, os, subprocess, sys
entry = os.environ['LD_PRELOAD'].split(':')[0]
subprocess.run(['sh', '-c', sys.argv[1], 'sh', entry], check=True)
os.system('id -u')
subprocess.run(['id', '-u'], check=True)
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
os.execvp('id', ['id', '-u'])";
    let mut command = Command::new(odd.join("outrider"));
    plain_environment(&mut command, &dir);
    let argv = ["unshare", "--mount", "python3", "-IS", "-c", program, plant];
    let output = command.args(["run", "--"]).args(argv).current_dir(&dir);
    let output = output.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "0\n0\n0\n", "{output:?}");
}

/// SPEC B16: of what lies near a command nothing is loaded that others could exchange than could the command: neither a library nor a plug-in.
#[test]
fn nothing_of_others_is_loaded_that_lies_near() {
    const NAME: &str = "nothing_of_others_is_loaded_that_lies_near";
    if !is_root() {
        return skip_unprivileged(NAME, "has directories of other users");
    }
    let dir = fresh_with(NAME, &[]);
    open_to_all(&dir);
    make_evil(&dir);
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    fs::copy(outrider(), bin.join("outrider")).unwrap();
    let run = |flags: &[&str]| {
        let mut command = Command::new(bin.join("outrider"));
        plain_environment(&mut command, &dir);
        let command = command.arg("run").args(flags).args(["--", "echo", "well"]);
        let output = command.output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let give = |place: &Path, owner| std::os::unix::fs::chown(place, Some(owner), None).unwrap();
    for below in ["lib", "lib/outrider"] {
        let place = dir.join(below);
        fs::create_dir(&place).unwrap();
        let library = place.join("liboutrider.so");
        fs::copy(dir.join("evil.so"), &library).unwrap();
        for (directory, file, taken) in [(0, 0, true), (65534, 0, false), (0, 65534, false)] {
            give(&place, directory);
            give(&library, file);
            let said = run(&[]);
            assert_eq!(
                said.contains("EVIL"),
                taken,
                "{below} {directory} {file}: {said}"
            );
            assert!(said.contains("well"), "{said}");
        }
        give(&place, 0);
        fs::remove_file(&library).unwrap();
    }
    // The true library, and a plug-in behind a link of another's to a directory that a group may write to.
    let library = outrider().with_file_name("liboutrider.so");
    fs::copy(library, bin.join("liboutrider.so")).unwrap();
    let (shared, link) = (dir.join("shared"), dir.join("plugins"));
    fs::create_dir(&shared).unwrap();
    fs::copy(dir.join("evil.so"), shared.join("outrider_evil.so")).unwrap();
    std::os::unix::fs::symlink(&shared, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
    for mode in [0o755, 0o775] {
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
        let said = run(&["--plugin=evil"]);
        assert_eq!(said, "", "{mode:o}");
    }
    fs::remove_file(&link).unwrap();
    fs::rename(&shared, &link).unwrap();
    std::os::unix::fs::chown(&link, None, Some(65534)).unwrap();
    assert_eq!(run(&["--plugin=evil"]), "");
    fs::set_permissions(&link, fs::Permissions::from_mode(0o755)).unwrap();
    let said = run(&["--plugin=evil"]);
    assert!(said.contains("EVIL") && said.contains("well"), "{said}");
}

/// SPEC B16: what a program of the run leaves behind, in a user namespace that has the runner's user under another number, hands nothing to somebody who listens in the
/// service's place when the run is over.
#[test]
fn programs_left_behind_talk_to_nobody_else() {
    const NAME: &str = "programs_left_behind_talk_to_nobody_else";
    /// Listens at a socket as soon as nobody else does, and says how much it is told.
    const LISTENER: &str = "import socket, sys, time
name = '\\0' + sys.stdin.readline().split(':')[0]
for _ in range(1000):
    try:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.bind(name)
        break
    except OSError:
        time.sleep(0.01)
s.listen(50)
print('listens', flush=True)
s.settimeout(5)
told = 0
try:
    while True:
        c, _ = s.accept()
        c.settimeout(1)
        told += len(c.recv(64))
except TimeoutError:
    pass
print('told', told)";
    if !is_root() {
        return skip_unprivileged(NAME, "has another user listen");
    }
    let dir = fresh_with(NAME, &[Big]);
    open_to_all(&dir);
    support::make_cold(&dir);
    let copies = ["outrider", "liboutrider.so"];
    for file in copies {
        fs::copy(outrider().with_file_name(file), dir.join(file)).unwrap();
    }
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let as_user = |user: &str, command: &str| {
        let mut setpriv = Command::new("setpriv");
        plain_environment(&mut setpriv, &dir);
        let ids = ["--reuid", user, "--regid", user, "--clear-groups", command];
        setpriv.args(ids).current_dir(&dir);
        setpriv
    };
    for (user, nested) in [("0", ""), ("65533", ""), ("65533", "unshare -Ur")] {
        let mut listener = as_user("65534", "python3")
            .args(["-c", LISTENER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let left = dir.join(format!("left-{user}-{}", nested.len()));
        let read = format!(
            "sleep 2; cat big.dat >/dev/null; echo read >{}",
            left.display()
        );
        let script = format!(
            "echo $OUTRIDER_SHM; {nested} unshare -Ur --pid --fork --mount-proc sh -c '{read}' >/dev/null 2>&1 & sleep 0.5"
        );
        let output = as_user(user, dir.join("outrider").to_str().unwrap())
            .args(["run", "--", "sh", "-c", &script])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        listener
            .stdin
            .take()
            .unwrap()
            .write_all(&output.stdout)
            .unwrap();
        let output = listener.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "listens\ntold 0\n", "{user} {nested}: {output:?}");
        // Where users may have no namespaces there is nothing to be seen.
        assert!(user != "0" || left.exists());
    }
}

/// SPEC B16, S1: a thread gives up its capabilities in a signal's handler, wherever that comes, be it within fork(3): no thread of ours is left that has them.
#[test]
fn rights_given_up_in_a_handler() {
    const NAME: &str = "rights_given_up_in_a_handler";
    let dir = fresh(NAME);
    File::create(dir.join("file"))
        .and_then(|f| f.set_len(160 << 20))
        .unwrap();
    let built = program("rights_in_fork");
    let argv = [built.to_str().unwrap(), "file", "30"];
    let said = support::printed(&mut outrider_run(&dir, &[], &argv));
    assert_eq!(said, "30 declared, 0 accompanied\n");
}

/// SPEC B16: a thread that gives up rights of its own is not gone ahead of with those that others of its process still have, however it does so.
#[test]
fn threads_with_rights_of_their_own_are_left_alone() {
    const NAME: &str = "threads_with_rights_of_their_own_are_left_alone";
    if !is_root() {
        return skip_unprivileged(NAME, "has files that others may not read");
    }
    let dir = fresh_with(NAME, &[Bin]);
    open_to_all(&dir);
    let tree = dir.join("w");
    fs::create_dir(&tree).unwrap();
    let name = |i: usize| tree.join(format!("f{i:03}"));
    for i in 0..200 {
        fs::write(name(i), [7; 20000]).unwrap();
        let mode = if i % 2 == 0 { 0o600 } else { 0o644 };
        fs::set_permissions(name(i), fs::Permissions::from_mode(mode)).unwrap();
    }
    for way in ["none", "fsuid", "syscall", "bare"] {
        if way == "bare" && !cfg!(target_arch = "x86_64") {
            continue;
        }
        for i in 0..200 {
            let file = fs::File::open(name(i)).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        support::make_cold(&dir);
        let script = format!(
            "import ctypes, mmap, os, threading, time
f = os.open('bin.dat', os.O_RDONLY)
for i in range(20): os.pread(f, 65536, i * 65536)
library = ctypes.CDLL(None)
def work():
    way = '{way}'
    if way == 'fsuid': library.setfsuid(65534)
    if way == 'syscall': library.syscall(117, 65534, 65534, 65534)
    if way == 'bare':
        code = mmap.mmap(-1, 4096, prot=7)
        code.write(bytes.fromhex('4889f84889f74889d64889ca0f05c3'))
        at = ctypes.addressof(ctypes.c_char.from_buffer(code))
        ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 4)(at)(117, 65534, 65534, 65534)
        time.sleep(1)
    read = denied = 0
    for name in sorted(os.listdir('w')):
        try: read += len(open('w/' + name, 'rb').read())
        except PermissionError: denied += 1
    print(read, denied)
thread = threading.Thread(target=work)
thread.start()
thread.join()"
        );
        let report = dir.join("report.json");
        let flag = format!("--report={}", report.display());
        let argv = ["python3", "-c", &script];
        let output = support::printed(&mut outrider_run(&dir, &[&flag], &argv));
        let expected = if way == "none" {
            "4000000 0\n"
        } else {
            "2000000 100\n"
        };
        assert_eq!(output, expected, "{way}");
        let report = self::report(&report);
        if way == "none" {
            let ahead = report["totals"]["files_ahead"].as_u64();
            assert!(ahead.is_some_and(|n| n > 0), "{}", report["totals"]);
            continue;
        }
        let cached = |i: &usize| {
            let file = fs::File::open(name(*i)).unwrap();
            outrider_sys::cache::counted(file.as_fd(), 0..20000).is_ok_and(|c| c.cached > 0)
        };
        let fetched: Vec<_> = (0..200).step_by(2).filter(cached).collect();
        assert!(fetched.is_empty(), "{way}: {fetched:?}");
        assert!(
            report["lost"].to_string().contains("rights"),
            "{way}: {}",
            report["lost"]
        );
    }
}

/// SPEC B16: what a program's file says of its own sizes costs the runner no memory.
#[test]
fn large_tables_of_programs_cost_no_memory() {
    const SAID: u64 = 1 << 30;
    let dir = fresh_with("large_tables_of_programs_cost_no_memory", &[]);
    let number = |bytes: &[u8], at: usize, len: usize| {
        let mut n = [0; 8];
        n[..len].copy_from_slice(&bytes[at..at + len]);
        u64::from_le_bytes(n) as usize
    };
    let mut bytes = fs::read(program("stranger")).unwrap();
    // Of ELF64: the table of sections, their count, and the one with their names.
    let (table, count, names) = (
        number(&bytes, 40, 8),
        number(&bytes, 60, 2),
        number(&bytes, 62, 2),
    );
    let texts = number(&bytes, table + 64 * names + 24, 8);
    let is_strings = |i: &usize| {
        let name = texts + number(&bytes, table + 64 * i, 4);
        bytes[name..].starts_with(b".dynstr\0")
    };
    let section = table + 64 * (0..count).find(is_strings).unwrap();
    bytes[section + 32..section + 40].copy_from_slice(&SAID.to_le_bytes());
    let file = dir.join("large");
    fs::write(&file, &bytes).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let open = fs::File::options().write(true).open(&file).unwrap();
    open.set_len(2 * SAID).unwrap();
    drop(open);
    let flag = format!("--report={}", dir.join("report.json").display());
    let run = outrider_run(&dir, &[&flag], &["./large", "stay"])
        .spawn()
        .unwrap();
    let id = run.id();
    let mut most = 0;
    let watched = std::thread::spawn(move || {
        let mut run = run;
        while run.try_wait().unwrap().is_none() {
            let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
            let words = line.unwrap_or_default().split_whitespace().next();
            most = words
                .and_then(|w| w.parse::<u64>().ok())
                .unwrap_or(0)
                .max(most);
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        most
    });
    let most = watched.join().unwrap();
    assert!(most > 0 && most < 200 << 10, "{most} KiB");
}

/// SPEC B16: before Linux 6.5 memory is its sender's only if he has it mapped: which nobody has who came by his number, or became another program.
#[test]
fn memory_is_whose_it_is_mapped_by() {
    use outrider_sys::standing::Watch;
    let (fd, at) =
        outrider_sys::handover::memory(c"mapped", 8192, 0, std::ptr::null_mut()).unwrap();
    // SAFETY: made just now, nobody else's.
    let fd: std::os::fd::OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
    let st = rustix::fs::fstat(&fd).unwrap();
    let own = Watch::of(std::process::id()).unwrap();
    assert!(own.has_mapped(st.st_dev, st.st_ino));
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    assert!(
        !Watch::of(other.id())
            .unwrap()
            .has_mapped(st.st_dev, st.st_ino)
    );
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(!own.has_mapped(st.st_dev, st.st_ino + 1));
    outrider_sys::mapped::unmap(at, 8192);
    assert!(!own.has_mapped(st.st_dev, st.st_ino));
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let (uid, gid) = (uid.as_raw(), gid.as_raw());
    assert!(own.is_users([uid; 2], [gid; 2]));
    assert!(!own.is_users([uid + 1, uid], [gid; 2]) && !own.is_users([uid, uid + 1], [gid; 2]));
    assert!(!own.is_users([uid; 2], [gid, gid + 1]));
}

/// SPEC B16: whoever goes through another's directory isn't led out of it by links that take the places of directories meanwhile.
#[test]
fn exchanged_directories_lead_nowhere() {
    const NAME: &str = "exchanged_directories_lead_nowhere";
    /// Exchanges a directory and a link, as quickly as it can, until its standard input ends.
    const EXCHANGE: &str = "import ctypes, os, select
libc = ctypes.CDLL(None)
done = 0
while True:
    for _ in range(1000):
        done += libc.renameat2(-100, b'own/directory', -100, b'own/link', 2) == 0
    if select.select([0], [], [], 0)[0]: break
print(done)";
    let dir = fresh(NAME);
    for place in ["own/directory", "others"] {
        fs::create_dir_all(dir.join(place)).unwrap();
        for i in 0..40 {
            fs::write(dir.join(place).join(format!("f{i}")), [7; 200_000]).unwrap();
        }
    }
    std::os::unix::fs::symlink("../others", dir.join("own/link")).unwrap();
    let mut exchange = Command::new("python3")
        .args(["-c", EXCHANGE])
        .current_dir(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let tool = |command: &str| {
        let output = Command::new(outrider())
            .args([command, "own"])
            .current_dir(&dir)
            .output();
        let output = output.unwrap();
        // Files that are gone by now are no failure; a directory that is, may be.
        assert!(output.status.code().is_some_and(|c| c < 2), "{output:?}");
    };
    let cached = || {
        let each = (0..40).map(|i| {
            let file = File::open(dir.join("others").join(format!("f{i}"))).unwrap();
            let counted = outrider_sys::cache::counted(file.as_fd(), 0..200_000);
            counted.unwrap().cached
        });
        each.sum::<u64>()
    };
    for i in 0..40 {
        fs::read(dir.join("others").join(format!("f{i}"))).unwrap();
    }
    let all = cached();
    for _ in 0..10 {
        tool("evict");
        tool("cached");
    }
    // Some may have been reclaimed.
    assert!(cached() > all / 2, "what is another's was thrown out");
    support::make_cold(&dir.join("others"));
    for _ in 0..10 {
        tool("warm");
    }
    assert_eq!(cached(), 0, "what is another's was read");
    drop(exchange.stdin.take());
    let output = exchange.wait_with_output().unwrap();
    let exchanged: u64 = String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(exchanged > 100, "{exchanged}");
}
