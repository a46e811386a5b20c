//! What the service holds of programs' files, and for how long: nobody who learns that a program has closed a file, or is over, finds it open (SPEC B11), and
//! servers of files (FUSE) see one open of ours at most, and no read that serves nobody.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use support::{
    Disk, Mounted, fresh, is_root, make_cold, processes, program, script, skip_unprivileged,
    wait_for,
};

/// The ways in which a program comes to have a file no more; see `ends.c`.
const WAYS: [&str; 9] = [
    "close", "exit", "_exit", "quick", "number", "alone", "exec", "kill", "map",
];

/// A file system of `fuse_server.c` on `mnt`, as long as it lives.
struct Server(PathBuf);

impl Server {
    fn start(dir: &Path, words: &[&str]) -> Server {
        let at = dir.join("mnt");
        fs::create_dir_all(&at).unwrap();
        let started = Command::new(program("fuse_server"))
            .arg(&at)
            .args(words)
            .status();
        assert!(started.unwrap().success());
        Server(at)
    }

    /// What it counted: the number behind `name`.
    fn counted(&self, name: &str) -> u64 {
        let stats = fs::read_to_string(self.0.join("stats")).unwrap();
        let mut words = stats.split_whitespace();
        words.find(|w| *w == name).unwrap();
        words.next().unwrap().parse().unwrap()
    }

    /// Nobody has the file open there.
    fn is_closed(&self) {
        let closed = wait_for(30.0, || (self.counted("now") == 0).then_some(()));
        assert!(closed.is_some());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // By force: what has not been answered ends, too.
        for flags in ["-f", "-l"] {
            let mut umount = Command::new("umount");
            let _ = umount
                .arg(flags)
                .arg(&self.0)
                .stderr(Stdio::null())
                .status();
        }
    }
}

fn may_mount(name: &str) -> bool {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        skip_unprivileged(name, "mounts file systems");
        return false;
    }
    true
}

/// What a shell's commands say beside a server of files that hide when they are unlinked while somebody has them open, and how often one was opened.
fn beside_files_that_hide(dir: &Path, ours: bool, text: &str) -> (Output, u64) {
    let server = Server::start(dir, &["hide", "keep", "delay=100"]);
    let (output, _) = script(dir, ours, text);
    server.is_closed();
    (output, server.counted("opens"))
}

/// The same beside a tree of small files; what they say on both streams, how often a file was unlinked while it was open, and the report.
fn beside_a_tree_that_hides(
    dir: &Path,
    ours: bool,
    text: &str,
) -> (String, u32, serde_json::Value) {
    let at = dir.join("mnt");
    let _ = fs::create_dir(&at);
    let mut server = Command::new(program("hiding_tree"));
    let started = server.arg(&at).args(["60", "20000"]).status();
    assert!(started.unwrap().success());
    let _mounted = Mounted(at.clone());
    let (output, report) = script(dir, ours, text);
    let hidden = fs::read_to_string(at.join("hidden")).unwrap();
    let said = [&output.stdout, &output.stderr].map(|b| String::from_utf8_lossy(b));
    (said.concat(), hidden.trim().parse().unwrap(), report)
}

fn figure(report: &serde_json::Value, name: &str) -> u64 {
    let figure = report["totals"][format!("{name}_bytes")].as_u64();
    figure.unwrap_or_else(|| panic!("{name}: {report:#}"))
}

fn lost(report: &serde_json::Value, words: &str) -> bool {
    let lines = report["lost"].as_array().into_iter().flatten();
    let mut lines = lines.filter_map(|l| l.as_str());
    lines.any(|l| l.contains(words))
}

/// SPEC B11: a file system on which a program of the run has read can be unmounted as soon as the program is over, or has closed its file, also by a program that no
/// library sees: ten times of ten, as without us.
#[test]
fn what_was_read_can_be_unmounted_at_once() {
    const NAME: &str = "what_was_read_can_be_unmounted_at_once";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let (from, unmount) = support::to_unmount(&dir, 10, 6);
    let reader = program("ends");
    let _mounted = Mounted(dir.join("mnt"));
    for way in WAYS {
        let text = format!(
            "for i in 0 1 2 3 4 5 6 7 8 9; do mount --bind from mnt && {} mnt/f$i {way} 3 back; {} mnt || umount mnt; done",
            reader.display(),
            unmount.display()
        );
        make_cold(&from);
        let (plain, _) = script(&dir, false, &text);
        make_cold(&from);
        let (ours, report) = script(&dir, true, &text);
        let lines = String::from_utf8_lossy(&ours.stdout);
        assert_eq!(lines.matches("unmounted").count(), 10, "{way}: {ours:?}");
        assert_eq!(
            (plain.status, &plain.stdout),
            (ours.status, &ours.stdout),
            "{way}"
        );
        if way != "map" {
            assert!(figure(&report, "prefetched") > 0, "{way}: {report:#}");
        }
    }
}

/// SPEC B11: the end of what a program writes tells whoever reads it that the program is through, and by then nothing is open that it has closed.
#[test]
fn the_end_of_the_output_finds_nothing_open() {
    const NAME: &str = "the_end_of_the_output_finds_nothing_open";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let (from, unmount) = support::to_unmount(&dir, 30, 3);
    let reader = program("ends");
    let _mounted = Mounted(dir.join("mnt"));
    let text = format!(
        "i=0; while [ $i -lt 30 ]; do mount --bind from mnt && {} mnt/f$i hush 2 back | {} mnt after || umount mnt; i=$((i + 1)); done",
        reader.display(),
        unmount.display()
    );
    make_cold(&from);
    let (ours, report) = script(&dir, true, &text);
    let lines = String::from_utf8_lossy(&ours.stdout);
    assert_eq!(lines.matches("unmounted").count(), 30, "{ours:?}");
    assert!(figure(&report, "prefetched") > 0, "{report:#}");
}

/// SPEC B11: a file system on which a file has lost its name can be made read-only once nobody has that open.
#[test]
fn file_systems_can_be_made_read_only() {
    const NAME: &str = "file_systems_can_be_made_read_only";
    let dir = fresh(NAME);
    let Some(disk) = support::Disk::of(NAME, &dir) else {
        return;
    };
    let name = |i: u32| disk.dir.join(format!("f{i:02}"));
    let text = "python3 -IS -c \"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def remount(flags): return libc.mount(None, b'disk', None, 32 | flags, None) and ctypes.get_errno()
for i in range(10):
    name = 'disk/f%02d' % i
    f = os.open(name, os.O_RDONLY)
    for k in range(40): os.read(f, 65536)
    if i % 2: os.unlink(name)
    os.close(f)
    if not i % 2: os.unlink(name)
    print(remount(1), remount(0))
\"";
    for ours in [false, true, true] {
        for i in 0..10 {
            fs::write(name(i), support::Random(i.into()).bytes(8 << 20)).unwrap();
        }
        disk.does("cold", &[]);
        let (output, report) = script(&dir, ours, text);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "0 0\n".repeat(10), "{output:?} {report:#}");
    }
}

/// SPEC B11: on FUSE an unlinked file that somebody has open stays under another name, and its directory can't be removed. Whatever way a program
/// came to have the file no more, its directory can be removed next.
#[test]
fn unlinked_files_of_a_server_vanish() {
    const NAME: &str = "unlinked_files_of_a_server_vanish";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let reader = program("ends");
    let mut opened = false;
    for way in WAYS {
        let text = format!(
            "{} mnt/box/f {way} 8; rm -r mnt/box && echo gone",
            reader.display()
        );
        let (plain, opens) = beside_files_that_hide(&dir, false, &text);
        assert!(
            String::from_utf8_lossy(&plain.stdout).ends_with("gone\n"),
            "{way}"
        );
        for _ in 0..3 {
            let (ours, its) = beside_files_that_hide(&dir, true, &text);
            assert_eq!(
                (plain.status, &plain.stdout),
                (ours.status, &ours.stdout),
                "{way}: {ours:?}"
            );
            opened |= its > opens;
        }
    }
    assert!(opened, "nothing was prefetched");
}

/// SPEC B11: the same of what was opened ahead of a program that goes through a directory: whoever removes that next, the program itself or one that it starts, finds none of it open.
#[test]
fn what_was_opened_ahead_on_a_server_vanishes() {
    const NAME: &str = "what_was_opened_ahead_on_a_server_vanishes";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let python = "import os, shutil\nfor f in sorted(os.listdir('mnt/box'))[:30]: open('mnt/box/' + f, 'rb').read()\nshutil.rmtree('mnt/box')";
    let mut ahead = 0;
    for text in [
        "for f in mnt/box/f0[0-2]*; do read x < $f; done; rm -r mnt/box && echo gone",
        "cat mnt/box/f0[0-2]* > copy; busybox rm -r mnt/box && echo gone",
        &format!("python3 -c \"{python}\" && echo gone"),
    ] {
        for _ in 0..3 {
            let (ours, hidden, report) = beside_a_tree_that_hides(&dir, true, text);
            assert_eq!((&*ours, hidden), ("gone\n", 0), "{text}: {report:#}");
            ahead += report["totals"]["files_ahead"].as_u64().unwrap();
        }
    }
    assert!(ahead > 30, "{ahead} files were opened ahead");
}

/// SPEC B11: likewise another process of the run, which the reader tells while it lives on, can remove the directory; one that isn't empty without us either stays.
#[test]
fn another_process_can_remove_what_was_opened_ahead() {
    const NAME: &str = "another_process_can_remove_what_was_opened_ahead";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let reads = "import os, time\nfor f in sorted(os.listdir('mnt/box'))[:30]: open('mnt/box/' + f, 'rb').read()";
    let mut ahead = 0;
    for (tells, removes) in [
        (
            "print(1, flush=True)\ntime.sleep(0.3)",
            "read x; rm -r mnt/box && echo gone",
        ),
        (
            "print(1, flush=True)\ntime.sleep(0.3)",
            "read x; sleep 0.01; rm mnt/box/*; rmdir mnt/box && echo gone",
        ),
        (
            "f = open('mnt/box/f000')\nprint(1, flush=True)\ntime.sleep(0.3)",
            "read x; rm -r mnt/box || echo stays",
        ),
    ] {
        let text = format!("python3 -c \"{reads}\n{tells}\" | ({removes})");
        let (plain, ..) = beside_a_tree_that_hides(&dir, false, &text);
        for _ in 0..2 {
            let (ours, _, report) = beside_a_tree_that_hides(&dir, true, &text);
            assert_eq!(plain, ours, "{text}: {report:#}");
            ahead += report["totals"]["files_ahead"].as_u64().unwrap();
        }
    }
    assert!(ahead > 30, "{ahead} files were opened ahead");
}

/// On FUSE what a program closes and unlinks by system calls of its own numbers (syscall(2)) is gone at once, too.
#[test]
fn what_is_closed_by_number_is_let_go_of() {
    const NAME: &str = "what_is_closed_by_number_is_let_go_of";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let (close, unlink) = (libc::SYS_close, libc::SYS_unlinkat);
    let text = format!(
        "python3 -IS -c \"
import ctypes, os
call = ctypes.CDLL(None).syscall
fd = os.open('mnt/box/f', os.O_RDONLY)
for k in range(128): os.read(fd, 65536)
print(call({close}, fd), call({unlink}, -100, b'mnt/box/f', 0), os.listdir('mnt/box'))
\""
    );
    let (plain, opens) = beside_files_that_hide(&dir, false, &text);
    assert_eq!(plain.stdout, b"0 0 []\n", "{plain:?}");
    let mut opened = false;
    for _ in 0..8 {
        let (ours, its) = beside_files_that_hide(&dir, true, &text);
        assert_eq!((plain.status, &plain.stdout), (ours.status, &ours.stdout));
        opened |= its > opens;
    }
    assert!(opened, "nothing was prefetched");
}

/// A server's file is opened once at most beside the program's own open. FUSE drops what is cached of a file that is opened: nearly nothing is read twice from there.
#[test]
fn a_servers_file_is_opened_once() {
    const NAME: &str = "a_servers_file_is_opened_once";
    /// Bytes that had been read when the file was opened once more.
    const BOUND: u64 = 16 << 20;
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let text = format!("{} mnt/box/f close 48 slow", program("ends").display());
    let run = |ours| {
        let server = Server::start(&dir, &["delay=50"]);
        let (output, report) = script(&dir, ours, &text);
        server.is_closed();
        let [opens, bytes] = ["opens", "bytes"].map(|name| server.counted(name));
        (output, report, opens, bytes)
    };
    let (plain, _, opens, bytes) = run(false);
    assert_eq!((opens, plain.status.code()), (1, Some(0)), "{plain:?}");
    let (ours, report, its, read) = run(true);
    assert_eq!((plain.status, plain.stdout), (ours.status, ours.stdout));
    assert!(its <= 2, "{its} opens: {report:#}");
    assert!(
        read <= bytes + BOUND,
        "{read} instead of {bytes}: {report:#}"
    );
}

/// What bypasses the page cache is not prefetched: it would be fetched twice. The report says so, and counts nothing as a hit.
#[test]
fn what_bypasses_the_cache_is_left_alone() {
    const NAME: &str = "what_bypasses_the_cache_is_left_alone";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    // Twice: what was read before is not there either.
    let text = "python3 -IS -c \"
import os
fd = os.open('mnt/box/f', os.O_RDONLY)
for at in 2 * list(range(0, 32 << 20, 32768)): assert len(os.pread(fd, 32768, at)) == 32768\"";
    let run = |ours| {
        let server = Server::start(&dir, &["direct", "delay=200"]);
        let (output, report) = script(&dir, ours, text);
        server.is_closed();
        (output, report, server.counted("bytes"))
    };
    let (plain, _, bytes) = run(false);
    let (ours, report, read) = run(true);
    assert_eq!((plain.status, plain.stdout), (ours.status, ours.stdout));
    assert_eq!(read, bytes, "{report:#}");
    for name in ["hit", "late", "cached", "prefetched"] {
        assert_eq!(figure(&report, name), 0, "{name}: {report:#}");
    }
    assert!(lost(&report, "does not stay in it"), "{report:#}");
}

/// A server is asked for the attributes of a file as often as without us, and one that never answers that holds nobody up: the program doesn't ask itself.
#[test]
fn a_server_is_not_asked_for_attributes() {
    const NAME: &str = "a_server_is_not_asked_for_attributes";
    /// FUSE_GETATTR.
    const NEVER_ANSWERED: &str = "hang=3";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let reader = program("ends");
    let run = |ours, text: &str, words: &[&str]| {
        let server = Server::start(&dir, &[&["keep", "delay=200"], words].concat());
        let (output, report) = script(&dir, ours, text);
        server.is_closed();
        let [asked, unanswered] = ["asked", "unanswered"].map(|name| server.counted(name));
        (output, report, asked + unanswered)
    };
    let read = |how| format!("{} mnt/box/f close 32 {how}", reader.display());
    let advise = "python3 -c \"import os
fd = os.open('mnt/box/f', os.O_RDONLY)
for at in range(0, 32 << 20, 4 << 20):
    os.posix_fadvise(fd, at, 4 << 20, os.POSIX_FADV_WILLNEED)
    print(len(os.pread(fd, 1 << 16, at)), flush=True)
copy = os.dup(fd)
print(len(os.read(copy, 1 << 16)))\"";
    for (text, words) in [
        (read("blind"), &[][..]),
        (read("blind"), &[NEVER_ANSWERED]),
        (read(""), &[]),
        (advise.to_owned(), &[]),
    ] {
        let (plain, _, asked) = run(false, &text, words);
        assert!(plain.status.success(), "{plain:?}");
        support::eventually(|| {
            let (ours, report, its) = run(true, &text, words);
            assert_eq!(
                (plain.status, &plain.stdout, asked),
                (ours.status, &ours.stdout, its),
                "{text} {words:?}: {report:#}"
            );
            match figure(&report, "prefetched") {
                0 => Err(format!("{text}: {report:#}")),
                _ => Ok(()),
            }
        });
    }
}

/// A server that never answers, a read of the program's (15) or the helper's open, holds up nothing else: what lies beside is prefetched, the run ends, and
/// where the program's own wait can be ended, nothing of ours stays in the kernel.
#[test]
fn a_server_that_never_answers_holds_nothing_up() {
    const NAME: &str = "a_server_that_never_answers_holds_nothing_up";
    if !may_mount(NAME) {
        return;
    }
    let reader = program("ends");
    for how in ["hang=15", "stall"] {
        let dir = fresh(NAME);
        fs::write(dir.join("beside"), vec![7; 32 << 20]).unwrap();
        make_cold(&dir);
        let server = Server::start(&dir, &[how, "delay=2000"]);
        let text = format!(
            "{0} mnt/box/f close 8 > /dev/null & sleep 1.5; {0} beside close 32 back; kill -9 $!; wait $! 2>/dev/null; echo $?",
            reader.display()
        );
        let (ours, report) = script(&dir, true, &text);
        let expected = format!("{}\n", 7u64 * (32 << 20));
        let out = String::from_utf8_lossy(&ours.stdout);
        assert!(
            ours.status.success() && out.starts_with(&expected),
            "{how}: {ours:?}"
        );
        assert!(figure(&report, "prefetched") > 0, "{how}: {report:#}");
        let stuck = || {
            let all = processes();
            let mut all = all.iter();
            all.any(|p| p.state == 'D' && p.name.starts_with("outrider"))
        };
        if how == "hang=15" {
            // A disk may be waited for just now.
            assert!(wait_for(30.0, || (!stuck()).then_some(())).is_some());
        }
        drop(server);
    }
}

/// SPEC B11: what a program gives back by unlinking a file, or by closing one that has no name any more, is free when its call returns, as without us.
#[test]
fn the_room_of_what_is_unlinked_is_free_at_once() {
    const NAME: &str = "the_room_of_what_is_unlinked_is_free_at_once";
    if !may_mount(NAME) {
        return;
    }
    let dir = fresh(NAME);
    let giver = program("gives_room");
    fs::create_dir_all(dir.join("mnt")).unwrap();
    let _mounted = Mounted(dir.join("mnt"));
    let text = format!(
        "truncate -s 64M disk && mkfs.ext4 -q -F disk && mount -o loop disk mnt && {} mnt/f; umount mnt",
        giver.display()
    );
    let (plain, _) = script(&dir, false, &text);
    let (ours, report) = script(&dir, true, &text);
    let lines = String::from_utf8_lossy(&plain.stdout);
    assert_eq!(lines.matches(": free").count(), 12, "{plain:?}");
    assert_eq!(
        (plain.status, plain.stdout),
        (ours.status, ours.stdout),
        "{report:#}"
    );
    assert!(figure(&report, "prefetched") > 0, "{report:#}");
}

/// SPEC B11: the same of files that were opened ahead of a program and that it has never opened: each is gone, and its inode free, when the call returns that takes its name away.
#[test]
fn the_inode_of_what_was_opened_ahead_is_free_at_once() {
    const NAME: &str = "the_inode_of_what_was_opened_ahead_is_free_at_once";
    let dir = fresh(NAME);
    let Some(disk) = Disk::of(NAME, &dir) else {
        return;
    };
    let tree = disk.dir.join("tree");
    let text = format!("{} {}", program("gives_inodes").display(), tree.display());
    let go = |ours| {
        disk.does("model", &["off"]);
        let _ = fs::remove_dir_all(&tree);
        fs::create_dir(&tree).unwrap();
        for i in 0..400 {
            fs::write(tree.join(format!("f{i:03}")), [1; 9000]).unwrap();
        }
        disk.does("model", &["remote"]);
        disk.does("cold", &[]);
        let (output, report) = script(&dir, ours, &text);
        (String::from_utf8(output.stdout).unwrap(), report)
    };
    assert_eq!(go(false).0, "100 gone, 0 late\n");
    for _ in 0..3 {
        // Where others keep the processors busy hardly anything is opened ahead, which proves nothing.
        support::eventually(|| {
            let (said, report) = go(true);
            assert_eq!(said, "100 gone, 0 late\n", "{report:#}");
            let ahead = report["totals"]["files_ahead"].as_u64().unwrap();
            (ahead > 40).then_some(()).ok_or(format!("{report:#}"))
        });
    }
}

/// Real-time programs on one processor get it before the service does: they wait for nothing that it would have to do, and are not killed for the time that this takes.
#[test]
fn real_time_programs_wait_for_nobody() {
    const NAME: &str = "real_time_programs_wait_for_nobody";
    let dir = fresh(NAME);
    let Some(disk) = Disk::of(NAME, &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, vec![1; 8 << 20]).unwrap();
    disk.does("model", &["nvme"]);
    for policy in ["-f", "-r"] {
        for _ in 0..3 {
            disk.does("cold", &[]);
            let ours = Command::new("taskset")
                .args(["-c", "0", "chrt", policy, "20", "prlimit"])
                .args(["--rttime=100000:100000"])
                .arg(support::outrider())
                .args(["run", "--", "head", "-c", "4000000"])
                .arg(&file)
                .output()
                .unwrap();
            assert!(ours.status.success(), "{:?}", ours.status);
            assert_eq!(ours.stdout.len(), 4_000_000);
        }
    }
}

/// A file that the service may not open is not tried at each read: who watches opens, or audits, sees a few.
#[test]
fn what_may_not_be_opened_is_hardly_tried() {
    const NAME: &str = "what_may_not_be_opened_is_hardly_tried";
    if !is_root() || !support::have("strace") {
        return skip_unprivileged(NAME, "becomes another user");
    }
    let dir = fresh(NAME);
    fs::write(dir.join("file"), vec![1; 64 << 20]).unwrap();
    let owner = rustix::fs::Uid::from_raw(65534);
    rustix::fs::chown(dir.join("file"), Some(owner), None).unwrap();
    rustix::fs::chown(&dir, Some(owner), None).unwrap();
    let read = "import os
f = os.open('file', os.O_RDONLY)
os.chmod('file', 0)
while os.read(f, 16384): pass";
    let log = dir.join("log");
    support::eventually(|| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(dir.join("file"), mode).unwrap();
        make_cold(&dir);
        let mut command = Command::new("strace");
        support::plain_environment(&mut command, &dir);
        command
            .args(["-f", "-q", "-e", "trace=open,openat,openat2", "-o"])
            .arg(&log)
            .args([
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
            ])
            .arg(support::outrider())
            .args(["run", "--", "python3", "-ISc", read])
            .current_dir(&dir);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let log = fs::read_to_string(&log).unwrap();
        let refused = log.lines().filter(|l| l.contains("EACCES")).count();
        // Of 4,096 reads. The pause grows to a second in ten of them, and this may take a minute where many want the processor.
        assert!(refused < 80, "{refused}");
        (refused > 0).then_some(()).ok_or("nobody tried".to_owned())
    });
}
