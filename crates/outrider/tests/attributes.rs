//! Must 1 of the hooks' design, SPEC B1: a program has under us every attribute that it would have without us. The runner makes a child of what would have been the
//! process itself, and a child is not given all that exec(2) keeps.
//!
//! One program prints all that it can learn of itself (`tests/programs/attributes.c`); it is run below wrappers that set attributes, as others' are used.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::{fresh, have, is_root, outrider, plain_environment, program, skip_unprivileged};

/// What differs, and why.
const DIFFERENT: &[(&str, &str)] = &[
    // /proc/self/status: Pid, PPid and their like, Ngid; the program is a child.
    // /proc/self/status: Vm*, Rss*, HugetlbPages: the library is in the program's memory.
    // /proc/self/status: FDSize is the room of the table of descriptors, which a child gets made to measure; SigQ counts all processes of the user; switches of
    // context are counted from the process's beginning. All these attributes.c leaves out.
    (
        "pdeathsig ",
        "who kills the runner with SIGKILL means the program (docs/semantics.md)",
    ),
];

/// The command itself starts the program: before the C library's start, with all that is done for a report, and by a process that finds it on a path.
const WAYS: &[&[&str]] = &[&["run", "--"], &["run", "--report=report.json", "--"]];

struct Place {
    dir: PathBuf,
    attributes: PathBuf,
    /// A copy that everybody may execute.
    outrider: PathBuf,
}

impl Place {
    fn new(name: &str) -> Place {
        // Below /tmp: other users reach it.
        let dir = std::env::temp_dir().join(format!("outrider-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let copy = |from: &Path| {
            let to = dir.join(from.file_name().unwrap());
            fs::copy(from, &to).unwrap();
            to
        };
        copy(&outrider().with_file_name("liboutrider.so"));
        Place {
            attributes: copy(&program("attributes")),
            outrider: copy(&outrider()),
            dir,
        }
    }

    /// `WRAPPER… [outrider run …] attributes`
    fn run(&self, wrapper: &[String], ours: Option<&[&str]>) -> Output {
        let mut argv = wrapper.to_vec();
        if let Some(flags) = ours {
            argv.push(self.outrider.to_str().unwrap().to_owned());
            argv.extend(flags.iter().map(|f| f.to_string()));
        }
        argv.push(self.attributes.to_str().unwrap().to_owned());
        let work = self.dir.join("work");
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work).unwrap();
        fs::set_permissions(&work, fs::Permissions::from_mode(0o777)).unwrap();
        let mut command = Command::new(&argv[0]);
        plain_environment(&mut command, &work);
        command.args(&argv[1..]).current_dir(&work);
        command.stdin(Stdio::null()).output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The lines that are to be the same.
fn compared(output: &Output, first: bool) -> Vec<String> {
    let text = text(&output.stdout);
    let differs = |line: &str| {
        DIFFERENT.iter().any(|(start, _)| line.starts_with(start))
            // Orphans in a container become the children of its process 1: the runner has them become the program's (docs/semantics.md).
            || first && line.starts_with("subreaper ")
    };
    let lines = text.lines().filter(|l| !differs(l));
    lines.map(str::to_owned).collect()
}

/// How the program runs under us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum As {
    Child,
    /// As the process itself, since something can't be handed on; that is told in a line.
    Itself,
}
use As::{Child, Itself};

/// Compares the program with and without us below a wrapper. What the machine refuses is skipped.
fn compare(place: &Place, words: &str, how: As, failures: &mut Vec<String>) {
    let attributes = place.attributes.to_str().unwrap();
    let wrapper: Vec<String> = words
        .split_whitespace()
        .map(|w| w.replace("ATTRIBUTES", attributes))
        .collect();
    if let Some(tool) = wrapper.first()
        && !tool.contains('/')
        && !have(tool)
    {
        return support::skip(words, "not installed");
    }
    let plain = place.run(&wrapper, None);
    if plain.status.code() != Some(23) {
        return skip_unprivileged(words, &format!("refused: {}", text(&plain.stderr)));
    }
    for way in WAYS {
        let ours = place.run(&wrapper, Some(way));
        let case = format!("{words} {way:?}");
        let said = text(&ours.stderr);
        let bare = said.contains("the program runs without Outrider");
        if bare != (how == Itself)
            || said.lines().count() != usize::from(bare) + text(&plain.stderr).lines().count()
        {
            failures.push(format!("{case}: {said}"));
        }
        if ours.status != plain.status {
            failures.push(format!("{case}: {} and not {}", ours.status, plain.status));
        }
        let first = words.contains("--pid --fork");
        let (a, b) = (compared(&plain, first), compared(&ours, first));
        for (a, b) in a.iter().zip(&b).filter(|(a, b)| a != b) {
            failures.push(format!("{case}:\n  without {a}\n  with    {b}"));
        }
        if a.len() != b.len() {
            failures.push(format!("{case}: {} lines and not {}", b.len(), a.len()));
        }
        let death = format!("pdeathsig {}", libc::SIGKILL);
        if how == Child && !text(&ours.stdout).lines().any(|l| l == death) {
            failures.push(format!("{case}: killing the runner spares the program"));
        }
    }
}

fn all(test: &str, cases: &[(&str, As)]) {
    let place = Place::new(test);
    let mut failures = Vec::new();
    for (words, how) in cases {
        compare(&place, words, *how, &mut failures);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Tools that set something and execute a program.
#[test]
fn below_wrappers() {
    all(
        "attributes-wrappers",
        &[
            ("env", Child),
            ("nice -n 5", Child),
            ("nice -n -5", Child),
            ("nohup", Child),
            ("setsid --wait", Child),
            ("timeout 100", Child),
            (
                "env --block-signal=TERM,CHLD,USR1 --ignore-signal=INT,CHLD",
                Child,
            ),
            ("stdbuf -o0", Child),
            ("ionice -c 2 -n 7", Child),
            ("ionice -c 3", Child),
            ("taskset -c 0", Child),
            ("choom -n 500 --", Child),
            (
                "prlimit --nofile=77:99 --core=0 --nproc=5000 --fsize=1000000000 --cpu=1000 --rtprio=3 --nice=30 --sigpending=100",
                Child,
            ),
            ("setarch x86_64 -R", Child),
            ("setarch x86_64 -R -L", Child),
            ("chrt -b 0", Child),
            ("chrt -i 0", Child),
            ("chrt -r 5", Child),
            ("chrt -f 5", Child),
            ("chrt -R -r 5", Child),
            ("chrt -R -f 99", Child),
            ("chrt -R -o 0", Child),
            ("nice -n -7 chrt -R -b 0", Child),
            ("chrt -R -i 0", Child),
            ("chrt -d -T 1000000 -D 15000000 -P 20000000 0", Child),
            ("chrt -R -d -T 1000000 -D 15000000 -P 20000000 0", Child),
            ("uclampset -m 100 -M 700", Child),
            ("uclampset -R -m 100 -M 700", Child),
            ("setpriv --pdeathsig TERM", Child),
            (
                "setpriv --no-new-privs --bounding-set -sys_admin --inh-caps +net_raw --ambient-caps +net_raw",
                Child,
            ),
            ("setpriv --securebits +noroot,+noroot_locked", Child),
            ("setpriv --reuid 65534 --regid 65534 --clear-groups", Child),
            ("setpriv --groups 4,5,6", Child),
            ("capsh --drop=cap_chown -- -c exec\u{20}\"$@\" _", Child),
            ("unshare --user", Child),
            (
                "unshare --user --map-root-user --mount --net --uts --ipc --cgroup",
                Child,
            ),
            ("unshare --pid --fork --mount-proc", Child),
            ("unshare --pid --fork --kill-child", Child),
            ("unshare --pid", Itself),
            ("unshare --user --map-root-user --pid", Itself),
            ("unshare --time --boottime 1000", Child),
        ],
    );
}

/// What no tool sets.
#[test]
fn below_a_launcher() {
    all(
        "attributes-launcher",
        &[
            ("ATTRIBUTES slack=1000000 --", Child),
            ("ATTRIBUTES slack=1 --", Child),
            (
                "ATTRIBUTES pdeath=15 keepcaps subreaper nonewprivs thp mce --",
                Child,
            ),
            ("ATTRIBUTES ioflusher --", Child),
            ("ATTRIBUTES mdwe --", Child),
            ("ATTRIBUTES ksm --", Child),
            ("ATTRIBUTES core --", Child),
            ("ATTRIBUTES spec=0 --", Child),
            ("ATTRIBUTES spec=1 --", Child),
            ("ATTRIBUTES securebits=47 --", Child),
            ("ATTRIBUTES coredump=127 oom=300 --", Child),
            ("ATTRIBUTES autogroup=3 --", Child),
            ("ATTRIBUTES mempolicy --", Child),
            ("ATTRIBUTES real=7 virtual=8 prof=9 --", Child),
            ("ATTRIBUTES block=17 ignore=17 ignore=13 --", Child),
            // Signals that wait: of processes, of the thread, several of one number, for a timer, one that is ignored.
            ("ATTRIBUTES kill=15 --", Child),
            ("ATTRIBUTES kill=17 kill=1 --", Child),
            ("ATTRIBUTES tkill=10 kill=10 --", Child),
            ("ATTRIBUTES queue=35 queue=35 queue=40 queue=34 --", Child),
            ("ATTRIBUTES expire --", Child),
            ("ATTRIBUTES ignore=12 kill=12 --", Child),
            ("ATTRIBUTES kill=18 --", Child),
            ("ATTRIBUTES kill=20 --", Child),
            // Scheduling that children are not given.
            ("ATTRIBUTES reset=0 --", Child),
            ("ATTRIBUTES reset=1 --", Child),
            ("ATTRIBUTES reset=2 slack=70000 --", Child),
            ("ATTRIBUTES reset=3 --", Child),
            ("ATTRIBUTES reset=5 --", Child),
            ("ATTRIBUTES reset=6 --", Child),
            ("ATTRIBUTES deadline --", Child),
            ("ATTRIBUTES batchnice slack=2000 --", Child),
            ("ATTRIBUTES clamp=500 --", Child),
            ("ATTRIBUTES clampkept=500 --", Child),
            ("ATTRIBUTES slice=1500000 --", Child),
            ("ATTRIBUTES reset=2 rtprio=10 user=65534 --", Child),
            // Without the privilege that set it.
            ("ATTRIBUTES reset=2 rtprio=0 user=65534 --", Itself),
            ("ATTRIBUTES reset=0 user=65534 --", Itself),
            ("ATTRIBUTES deadline user=65534 --", Itself),
            ("ATTRIBUTES reset=6 user=65534 --", Itself),
            // Whose a descriptor's signals are.
            ("ATTRIBUTES owner=7 --", Child),
            ("ATTRIBUTES threadowner=7 owner=200 --", Child),
            ("ATTRIBUTES groupowner=7 --", Child),
            ("ATTRIBUTES signalled=0 --", Child),
            ("ATTRIBUTES lease=9 --", Child),
            ("ATTRIBUTES dnotify=9 --", Itself),
            // What tells of this process's events, and no other's.
            ("ATTRIBUTES waits=1 --", Itself),
            ("ATTRIBUTES waits=0 --", Child),
            ("ATTRIBUTES counts --", Itself),
            ("ATTRIBUTES keyring --", Child),
            ("ATTRIBUTES pidns --", Itself),
            (
                "ATTRIBUTES slack=30000 kill=15 real=5 owner=8 reset=2 oom=10 --",
                Child,
            ),
        ],
    );
}

/// Namespaces: process 1 of a new one is the program's first child, as without us.
#[test]
fn children_are_the_first_in_their_namespace() {
    if !is_root() {
        return skip_unprivileged("children_are_the_first", "unshare --pid is not permitted");
    }
    let dir = fresh("first_in_their_namespace");
    let script = "sh -c 'echo $$'; echo again; sh -c 'echo $$'";
    let run = |ours: &[&str]| {
        let mut command = Command::new("unshare");
        plain_environment(&mut command, &dir);
        command.arg("--pid").args(ours).args(["sh", "-c", script]);
        let output = command.current_dir(&dir).output().unwrap();
        (output.status, text(&output.stdout))
    };
    let plain = run(&[]);
    assert!(plain.1.starts_with("1\nagain\n"), "{plain:?}");
    let outrider = outrider();
    assert_eq!(run(&[outrider.to_str().unwrap(), "run", "--"]), plain);
}
