//! SPEC B1, B11: in poor surroundings the program runs as it would without us: no /proc or another's, no /dev, no limits to speak of, closed streams, no
//! directory. Where nothing can be prefetched there, the report says why.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::{Random, fresh, have, is_root, make_cold, outrider, plain_environment};

const SCRIPT: &str = "tac \"$0\"; cksum \"$0\"; echo \"$#\" >&2; exit 5";
const NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups";

struct Place {
    dir: PathBuf,
    command: PathBuf,
}

impl Place {
    fn new(name: &str) -> Place {
        let dir = fresh(name);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let mut text = String::new();
        let mut random = Random(12);
        while text.len() < 6 << 20 {
            text.push_str(&format!("{:x} {:x}\n", random.next(), random.next()));
        }
        fs::write(dir.join("data"), text).unwrap();
        Place {
            dir,
            command: outrider(),
        }
    }

    fn run(&self, wrapper: &[String], ours: Option<&[&str]>) -> Output {
        make_cold(&self.dir);
        let mut command = Command::new("timeout");
        plain_environment(&mut command, &self.dir);
        command.args(["-k", "5", "200"]).args(wrapper);
        if let Some(flags) = ours {
            command.arg(&self.command).arg("run").args(flags).arg("--");
        }
        command.args(["/bin/sh", "-c", SCRIPT]);
        command.arg(self.dir.join("data")).arg("a");
        command.stdin(Stdio::null()).current_dir(&self.dir);
        command.output().unwrap()
    }

    /// What differs, if anything does. `cause` is what the report says if nothing was prefetched; without one there is something to prefetch.
    fn compare(&self, wrapper: &[String], cause: Option<&str>) -> Result<(), String> {
        let plain = self.run(wrapper, None);
        let seen = |o: &Output| {
            let said = String::from_utf8_lossy(&o.stderr).into_owned();
            let lines: Vec<&str> = said.lines().collect();
            // The one in which the command says that it becomes the program.
            let lines = lines.into_iter().filter(|l| !l.starts_with("outrider: "));
            let lines: Vec<String> = lines.map(str::to_owned).collect();
            (o.status.code(), o.stdout.clone(), lines)
        };
        let (a, said) = (seen(&plain), String::from_utf8_lossy(&plain.stderr));
        let b = self.run(wrapper, Some(&[]));
        if seen(&b) != a {
            return Err(format!("{:?} and not {:?}: {said}", seen(&b).2, a.2));
        }
        let report = self.dir.join("report/r.json");
        let flag = format!("--report={}", report.display());
        let mut last = String::new();
        // Where nothing was fetched the machine may have been too busy.
        for _ in 0..5 {
            let _ = fs::create_dir(self.dir.join("report"));
            let _ = fs::remove_file(&report);
            fs::set_permissions(self.dir.join("report"), fs::Permissions::from_mode(0o777))
                .unwrap();
            let c = self.run(wrapper, Some(&[&flag]));
            if seen(&c) != a {
                return Err(format!(
                    "with a report: {:?} {:?} and not {:?} {:?}",
                    c.status, c.stderr, plain.status, a.2
                ));
            }
            let told = String::from_utf8_lossy(&c.stderr).into_owned();
            let json: serde_json::Value =
                serde_json::from_slice(&fs::read(&report).unwrap_or_default()).unwrap_or_default();
            let fetched = json["totals"]["prefetched_bytes"].as_u64().unwrap_or(0);
            last = format!("{fetched} bytes fetched; {} {told}", json["lost"]);
            match cause {
                Some(cause) if json["lost"].to_string().contains(cause) => return Ok(()),
                Some(cause) if told.contains(cause) => return Ok(()),
                None if fetched > 0 => return Ok(()),
                _ => {}
            }
        }
        Err(last)
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A shell command below which the rest is run.
fn shell(script: &str) -> Vec<String> {
    let mut argv = words("sh -c");
    argv.push(format!("{script} && exec \"$@\""));
    argv.push("_".into());
    argv
}

fn mounted(script: &str, user: &str) -> Vec<String> {
    let mut argv = words("unshare --mount --propagation private");
    argv.extend(shell(script));
    argv.extend(words(user));
    argv
}

fn all(place: &Place, cases: Vec<(Vec<String>, Option<&str>)>) {
    let mut failures = Vec::new();
    for (wrapper, cause) in cases {
        if !have(&wrapper[0]) {
            support::skip(&wrapper.join(" "), "not installed");
            continue;
        }
        // What the machine refuses shows nothing.
        let mut command = Command::new(&wrapper[0]);
        plain_environment(&mut command, &place.dir);
        command.args(&wrapper[1..]).arg("true").stdin(Stdio::null());
        let tried = command.current_dir(&place.dir).output().unwrap();
        let hopeless = tried.status.code() == Some(127);
        if !tried.status.success() && !hopeless {
            let said = String::from_utf8_lossy(&tried.stderr).into_owned();
            support::skip_unprivileged(&wrapper.join(" "), &said);
            continue;
        }
        if wrapper.iter().any(|word| word.contains(" /tmp")) && place.dir.starts_with("/tmp") {
            support::skip_unprivileged(&wrapper.join(" "), "all of it lies below /tmp");
            continue;
        }
        if let Err(failure) = place.compare(&wrapper, cause) {
            failures.push(format!("{}: {failure}", wrapper.join(" ")));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Limits, streams, the directory, the environment: nothing here needs a privilege.
#[test]
fn limits_streams_and_variables() {
    let place = Place::new("limits");
    let gone = shell("mkdir gone && cd gone && rmdir ../gone");
    let limit = |text: &str| words(&format!("prlimit --{text}"));
    all(
        &place,
        vec![
            (words("env"), None),
            (words("env -u HOME"), None),
            (words("env HOME=/nonexistent"), None),
            (words("env -i"), None),
            (words("env -i PATH=/usr/bin:/bin"), None),
            (limit("nofile=3"), Some("Too many open files")),
            (limit("nofile=4"), Some("Too many open files")),
            (limit("nofile=5"), Some("Too many open files")),
            (limit("nofile=8"), Some("descriptors")),
            (limit("nofile=11"), Some("descriptors")),
            (limit("as=67108864"), None),
            (limit("data=1000000"), Some("RLIMIT_DATA")),
            (limit("stack=65536"), Some("RLIMIT_STACK")),
            (limit("stack=262144"), None),
            (limit("memlock=0"), None),
            (limit("fsize=0"), Some("File too large")),
            (limit("core=0"), None),
            (limit("sigpending=0"), None),
            (limit("nice=0"), None),
            (shell("exec <&- >&- 2>&-"), None),
            (shell("exec <&-"), None),
            (shell("exec >&-"), None),
            (shell("exec 2>&-"), None),
            (gone, None),
            (words("nohup"), None),
            (words("setsid --wait"), None),
            (words("nice"), None),
            (words("timeout 100"), None),
            (words("env --ignore-signal"), None),
            (words("env --block-signal"), None),
            (words("setpriv --no-new-privs"), None),
        ],
    );
}

/// What is mounted, and who looks.
#[test]
fn mounts_and_users() {
    if !is_root() {
        return support::skip_unprivileged("mounts_and_users", "only root can mount");
    }
    let place = Place::new("mounts");
    let proc = |options: &str| format!("mount -t proc -o {options} proc /proc");
    let mut nproc = words(NOBODY);
    nproc.extend(words("prlimit --nproc=1"));
    all(
        &place,
        vec![
            (words(NOBODY), None),
            (
                mounted("mount -t tmpfs none /proc", ""),
                Some("/proc: not mounted"),
            ),
            (mounted(&proc("hidepid=2"), ""), None),
            (mounted(&proc("hidepid=1"), NOBODY), None),
            (mounted(&proc("hidepid=2"), NOBODY), None),
            (mounted(&proc("hidepid=4"), NOBODY), None),
            (mounted(&proc("subset=pid"), ""), None),
            (mounted(&proc("subset=pid"), ""), Some("/proc/meminfo")),
            (mounted(&proc("subset=pid"), NOBODY), None),
            // Another process namespace than /proc's.
            (
                words("unshare --pid --fork"),
                Some("of another PID namespace"),
            ),
            (words("unshare --net"), None),
            (words("unshare --user --map-root-user"), None),
            (mounted("mount -t tmpfs none /sys", ""), None),
            (mounted("mount -t tmpfs none /dev", ""), None),
            (mounted("mount --bind /etc/hostname /dev/null", ""), None),
            (
                mounted("mount -t tmpfs -o ro none /tmp", "env -u TMPDIR"),
                None,
            ),
            (mounted("mount --bind /dev/null /etc/passwd", ""), None),
            // Nobody writes into it.
            (
                mounted(
                    "rm -f /dev/shm/outrider-pipe && mkfifo /dev/shm/outrider-pipe && mount --bind /dev/shm/outrider-pipe /proc/meminfo",
                    "",
                ),
                Some("/proc/meminfo"),
            ),
            (nproc, Some("fork")),
        ],
    );
}

/// A group of processes that may have no more of them.
#[test]
fn no_more_processes() {
    let place = Place::new("processes");
    let group = Path::new("/sys/fs/cgroup/pids").join(format!("outrider-{}", std::process::id()));
    if !is_root() || fs::create_dir(&group).is_err() {
        return support::skip_unprivileged("no_more_processes", "no cgroup of its own");
    }
    let enter = |most: u32| {
        shell(&format!(
            "echo {most} > {0}/pids.max && echo $$ > {0}/cgroup.procs",
            group.display()
        ))
    };
    let one = place.compare(&enter(1), Some("fork"));
    // The shell and what it starts; the runner's start of the program, too, and then there is no room for the service.
    let few = place.compare(&enter(3), Some("service"));
    fs::remove_dir(&group).unwrap();
    assert_eq!((one, few), (Ok(()), Ok(())));
}

/// A library that may not be executed where it lies is not given to programs, which would complain.
#[test]
fn a_library_on_a_mount_without_execution() {
    if !is_root() {
        return support::skip_unprivileged("noexec", "only root can mount");
    }
    let mut place = Place::new("noexec");
    let (bin, lib) = (place.dir.join("opt/bin"), place.dir.join("opt/lib"));
    for directory in [&bin, &lib] {
        fs::create_dir_all(directory).unwrap();
    }
    support::install(&outrider(), &bin.join("outrider"), 0o755);
    place.command = bin.join("outrider");
    let library = outrider().with_file_name("liboutrider.so");
    let script = format!(
        "mount -t tmpfs -o noexec none {0} && cp {1} {0}",
        lib.display(),
        library.display()
    );
    all(
        &place,
        vec![(
            mounted(&script, ""),
            Some("can't be mapped for execution: Operation not permitted"),
        )],
    );
}

/// The linker of another C library.
const OTHER_LINKER: &str = match cfg!(target_arch = "aarch64") {
    true => "/lib/ld-musl-aarch64.so.1",
    false => "/lib/ld-musl-x86_64.so.1",
};

/// A root below `dir` with the command, its library, a shell, the linker of another C library, a program for that, and a static one.
fn root_with_another_linker(dir: &Path) -> PathBuf {
    let root = dir.join("root");
    let source = support::repository().join("tests/programs");
    let build = |output: &Path, file: &str, flags: &[&str]| {
        fs::create_dir_all(output.parent().unwrap()).unwrap();
        let mut command = Command::new("cc");
        command
            .args(["-O1", "-w", "-D_GNU_SOURCE", "-o"])
            .arg(output);
        command.arg(source.join(file)).args(flags);
        assert!(command.status().unwrap().success());
    };
    let bare = ["-nostdlib", "-ffreestanding", "-fno-stack-protector"];
    let with = |more: &[&'static str]| [&bare[..], more].concat();
    build(
        &root.join(&OTHER_LINKER[1..]),
        "other_linker.c",
        &with(&["-static", "-no-pie"]),
    );
    let named = format!("-Wl,--dynamic-linker={OTHER_LINKER}");
    let mut flags = with(&["-pie", "-fPIE"]);
    flags.push(&named);
    build(&root.join("program"), "other_linker.c", &flags);
    build(&root.join("start"), "start.c", &["-static"]);
    let library = outrider().with_file_name("liboutrider.so");
    for file in [&outrider(), &library] {
        fs::copy(file, root.join(file.file_name().unwrap())).unwrap();
    }
    // The GNU C library and what a shell needs of it.
    let copied = Command::new("sh")
        .args(["-c", "for f in /bin/sh $(ldd /bin/sh | grep -o '/[^ ]*'); do mkdir -p \"$0$(dirname $f)\" && cp \"$f\" \"$0$f\"; done; mkdir -p \"$0/proc\""])
        .arg(&root)
        .status()
        .unwrap();
    assert!(copied.success());
    root
}

/// Has a command run in a root of its own.
fn enter(command: &mut Command, root: &Path, argv: &[&str]) {
    command.args([
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        "mount -t proc proc \"$0/proc\" && exec chroot \"$0\" \"$@\"",
    ]);
    command.arg(root).args(argv).stdin(Stdio::null());
}

/// E: what a static program starts is given its environment as it is. Where there are programs for another linker, which ends with our library, a static
/// program is started without it.
#[test]
fn static_programs_where_another_linker_is() {
    if !is_root() {
        return support::skip_unprivileged("static", "only root can change its root");
    }
    let dir = fresh("static_children");
    let root = root_with_another_linker(&dir);
    let run = |argv: &[&str]| {
        let mut command = Command::new("env");
        plain_environment(&mut command, &dir);
        enter(&mut command, &root, argv);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let ours = |l: &&str| !l.starts_with("OUTRIDER_SHM=") && !l.starts_with("ASAN_OPTIONS=");
        let lines: Vec<String> = text.lines().filter(ours).map(str::to_owned).collect();
        (output.status.code(), lines, output.stderr)
    };
    let scripts: [&[&str]; 3] = [
        &["/start", "execv", "/program"],
        &["/start", "spawn", "/program"],
        &[
            "/bin/sh",
            "-c",
            "/start fork /program; echo $?; exec /start execve /program",
        ],
    ];
    for argv in scripts {
        let plain = run(argv);
        assert_eq!(plain.0, Some(0), "{plain:?}");
        for flags in [
            &["/outrider", "run", "--"][..],
            &["/outrider", "run", "--report=/r", "--"],
        ] {
            assert_eq!(run(&[flags, argv].concat()), plain, "{argv:?}");
        }
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(root.join("r")).unwrap()).unwrap();
        assert!(report["lost"].to_string().contains("static"), "{report}");
    }
}

/// Must 7: where there are programs for another linker, the filter that stands for the library is found before the command's C library is started, if it
/// lies where the command itself has made it. Whatever is odd there is the command's to decide.
#[test]
fn an_early_start_where_another_linker_is() {
    const NAME: &str = "an_early_start_where_another_linker_is";
    if !is_root() {
        return support::skip_unprivileged(NAME, "only root can change its root");
    }
    if !have("strace") {
        return support::skip(NAME, "strace is not installed");
    }
    let dir = fresh(NAME);
    let root = root_with_another_linker(&dir);
    let trace = dir.join("trace");
    let directory = |path: &str, mode| {
        let path = root.join(&path[1..]);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let show = "#!/bin/sh\nwhile read -r map; do\n    case $map in *\" /liboutrider.so\") has=1; esac\ndone </proc/self/maps\necho \"$LD_PRELOAD\"\ntest \"$has\"\n";
    fs::write(root.join("show"), show).unwrap();
    fs::set_permissions(root.join("show"), fs::Permissions::from_mode(0o755)).unwrap();
    // Whether the start was early, and what the program had in LD_PRELOAD, by which the library was loaded.
    let run = |home: Option<&str>, before: &[&str]| {
        let mut command = Command::new("strace");
        plain_environment(&mut command, &dir);
        if let Some(home) = home {
            command.env("HOME", home);
        }
        command.args(["-qq", "-etrace=execve,arch_prctl", "-o"]);
        let argv = [&["/outrider", "run", "--"], before, &["/show"]].concat();
        enter(command.arg(&trace), &root, &argv);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        let calls = fs::read_to_string(&trace).unwrap();
        let (_, ours) = calls.rsplit_once("execve(\"/outrider\"").unwrap();
        let preload = String::from_utf8(output.stdout).unwrap();
        (!ours.contains("arch_prctl"), preload.trim().to_owned())
    };
    let library = "/liboutrider.so";
    // No directory, no filter.
    assert_eq!(run(None, &[]), (false, library.to_owned()));
    let linker = root.join(&OTHER_LINKER[1..]);
    fs::rename(&linker, root.join("linker")).unwrap();
    if !run(None, &[]).0 {
        return support::skip(
            NAME,
            "the command was linked without the C library's archives",
        );
    }
    fs::rename(root.join("linker"), &linker).unwrap();
    directory("/var/lib", 0o755);
    for (home, mode) in [
        ("user", 0o700),
        ("open", 0o777),
        ("other", 0o700),
        ("o dd", 0o700),
    ] {
        directory(&format!("/home/{home}/.cache"), mode);
    }
    let other = root.join("home/other/.cache");
    std::os::unix::fs::chown(other, Some(65534), None).unwrap();
    let (early, filter) = run(None, &[]);
    let name = filter.strip_prefix("/var/lib/outrider/").unwrap();
    let name = name.strip_suffix("-filter/liboutrider.so").unwrap();
    assert!(!early && name.len() == 16, "{filter}");
    let at_home = filter.replace("/var/lib/outrider", "/home/user/.cache/outrider");
    // A static program hands a filter on.
    for before in [&[][..], &["/start", "execv"]] {
        assert_eq!(run(None, before), (true, filter.clone()), "{before:?}");
    }
    // Where all may write there is none: then the user's own directory has it, where one has to be made first.
    directory("/var/lib", 0o777);
    for early in [false, true] {
        let found = run(Some("/home/user"), &[]);
        assert_eq!(found, (early, at_home.clone()));
    }
    for home in [
        "",
        "home/user",
        "/home/o dd",
        "/home/open",
        "/home/other",
        "/home/absent",
        "/home/other/../user",
    ] {
        let found = run(Some(home), &[]);
        assert_eq!(found, (false, library.to_owned()), "{home}");
    }
    directory("/var/lib", 0o755);
    // What isn't as it was made is made again.
    let file = root.join(&filter[1..]);
    let bytes = fs::read(&file).unwrap();
    let mut changed = bytes.clone();
    changed[bytes.len() - 5] ^= 1;
    for odd in [&bytes[..bytes.len() - 1], &changed, b""] {
        fs::write(&file, odd).unwrap();
        assert_eq!(run(None, &[]), (false, filter.clone()));
        assert_eq!(fs::read(&file).unwrap(), bytes);
        assert_eq!(run(None, &[]), (true, filter.clone()));
    }
    // A directory that others can change.
    let own = root.join("var/lib/outrider");
    let within = file.parent().unwrap();
    for directory in [&own, within] {
        let permissions = |mode| fs::Permissions::from_mode(mode);
        let belongs_to = |user| std::os::unix::fs::chown(directory, Some(user), None).unwrap();
        let is_refused = |how: &str| {
            let found = run(None, &[]);
            assert_eq!(found, (false, library.to_owned()), "{directory:?} {how}");
        };
        for mode in [0o775, 0o757, 0o1777] {
            fs::set_permissions(directory, permissions(mode)).unwrap();
            is_refused("may be written to");
        }
        fs::set_permissions(directory, permissions(0o755)).unwrap();
        belongs_to(65534);
        is_refused("is another user's");
        belongs_to(0);
        fs::rename(directory, root.join("moved")).unwrap();
        std::os::unix::fs::symlink("/moved", directory).unwrap();
        is_refused("is a link");
        fs::remove_file(directory).unwrap();
        fs::rename(root.join("moved"), directory).unwrap();
        assert_eq!(run(None, &[]), (true, filter.clone()));
    }
}
