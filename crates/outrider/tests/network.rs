//! Trees that a server keeps are gone through ahead of programs, as far as that asks the server for nothing that they would not have.
//!
//! docs/design/22-trees-on-servers.md. Oracles: what the programs print and leave without us, and the requests that `outrider-lab mount`, a directory shown as a slow network
//! file system, has counted by kind.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{Disk, Random, eventually, fresh, have, is_root, outrider_run, skip};

const DIRECTORIES: u64 = 12;
const FILES: u64 = 25;
const ALL: u64 = DIRECTORIES * FILES;
/// Requests beyond the program's own that a mount may cost on which nothing stays.
const FEW: u64 = ALL / 2;

/// A tree in `shown`, which is to be seen in `mnt`.
fn plant(dir: &Path) {
    let mut random = Random(3);
    for d in 0..DIRECTORIES {
        let dir = dir.join(format!("shown/{}/{:x}", d % 3, random.next()));
        fs::create_dir_all(&dir).unwrap();
        for _ in 0..FILES {
            let len = 100 + random.next() as usize % 9000;
            fs::write(dir.join(format!("{:x}", random.next())), random.bytes(len)).unwrap();
        }
    }
    fs::create_dir_all(dir.join("mnt")).unwrap();
}

/// A mounted file system. Each is new to the kernel: nothing is cached of it.
struct Mount {
    server: Child,
    count: PathBuf,
    at: PathBuf,
}

impl Mount {
    /// Mounts `shown` on `mnt`; or says why that is skipped.
    fn of(test: &str, dir: &Path, manner: &[&str]) -> Option<Mount> {
        if !is_root() || !Path::new("/dev/fuse").exists() {
            skip(test, "needs root and /dev/fuse");
            return None;
        }
        let (count, at) = (dir.join("requests"), dir.join("mnt"));
        let mut server = Disk::lab();
        server.arg("mount").arg(dir.join("shown")).arg(&at);
        server.args(["--latency-us", "500"]).args(manner);
        server.arg("--count").arg(&count).stdout(Stdio::piped());
        let mut server = server.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(server.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        assert!(line.contains("parallel"), "{line}");
        Some(Mount { server, count, at })
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.server), signal).unwrap();
    }

    /// Requests by kind.
    fn asked(&self) -> BTreeMap<String, u64> {
        let told = fs::read_to_string(&self.count).unwrap();
        let words = told.lines().map(|line| line.split_whitespace());
        let pairs = words.map(|mut w| (w.next().unwrap().to_owned(), w.next().unwrap()));
        pairs.map(|(name, n)| (name, n.parse().unwrap())).collect()
    }

    /// It can be unmounted at once.
    fn end(mut self) {
        let unmounted = Command::new("umount").arg(&self.at).output().unwrap();
        assert!(unmounted.status.success(), "{unmounted:?}");
        assert!(self.server.wait().unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.server), Signal::CONT);
        let _ = kill_process(Pid::from_child(&self.server), Signal::TERM);
        let _ = self.server.wait();
    }
}

/// What a run printed, its report, and the requests that it took.
struct Run {
    printed: Vec<u8>,
    totals: Value,
    asked: BTreeMap<String, u64>,
}

impl Run {
    fn number(&self, field: &str) -> u64 {
        self.totals[field].as_u64().unwrap()
    }

    fn asked(&self, kind: &str) -> u64 {
        self.asked[kind]
    }
}

fn run(dir: &Path, test: &str, manner: &[&str], flags: &[&str], script: &str) -> Option<Run> {
    let mount = Mount::of(test, dir, manner)?;
    let flags = [flags, &["--report=r.json"]].concat();
    let output = outrider_run(dir, &flags, &["sh", "-c", script])
        .output()
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
    let asked = mount.asked();
    // Nothing of it is open any more.
    mount.end();
    Some(Run {
        printed: output.stdout,
        totals: report["totals"].clone(),
        asked,
    })
}

/// B11, B12: most files are opened ahead of the program and nearly all of these are opened by it; each file is read once and each name looked up once, as
/// without us; nothing is asked for but names, attributes, files and lists.
#[test]
fn trees_of_servers_are_gone_through_ahead() {
    const TEST: &str = "trees_of_servers_are_gone_through_ahead";
    let dir = fresh(TEST);
    plant(&dir);
    for (program, script) in [
        ("tar", "tar c --sort=none mnt | cksum"),
        ("grep", "grep -rc x mnt"),
        (
            "cp",
            "rm -rf copy; cp -r mnt copy; find copy -type f | LC_ALL=C sort | xargs cksum; rm -r copy",
        ),
    ] {
        if !have(program) {
            skip(TEST, &format!("{program} is not installed"));
            continue;
        }
        let go = |flags: &[&str]| run(&dir, TEST, &["--keep-cache"], flags, script);
        let Some(plain) = go(&["--mode=app-only"]) else {
            return;
        };
        eventually(|| {
            let ours = go(&[]).unwrap();
            assert_eq!(ours.printed, plain.printed, "{script}");
            for (kind, n) in &ours.asked {
                let more = n - plain.asked[kind].min(*n);
                let bound = match kind.as_str() {
                    "open" => ALL,
                    // Each directory once more, and those above them.
                    "list" | "list-more" => plain.asked[kind] + 8,
                    "lookup" | "attributes" | "read" => ALL / 20,
                    "read-bytes" => ALL * 500,
                    _ => 0,
                };
                assert!(more <= bound, "{script}: {kind}: {:?}", ours.asked);
            }
            let [fetched, used] = ["files_ahead", "files_ahead_used"].map(|f| ours.number(f));
            let well = used > ALL / 2 && fetched - used < ALL / 20;
            let told = format!("{script}: {}: {:?}", ours.totals, ours.asked);
            well.then_some(()).ok_or(told)
        });
    }
}

/// B11: where the settings say so, nothing is opened, looked up or listed ahead on a server, or below a path.
#[test]
fn servers_are_left_alone_where_they_shall_be() {
    const TEST: &str = "servers_are_left_alone_where_they_shall_be";
    const SCRIPT: &str = "tar c --sort=none mnt | cksum; cat mnt/0/*/* | cksum";
    let dir = fresh(TEST);
    plant(&dir);
    let go = |flags: &[&str]| run(&dir, TEST, &["--keep-cache"], flags, SCRIPT);
    let Some(plain) = go(&["--mode=app-only"]) else {
        return;
    };
    let mnt = dir.join("mnt");
    for settings in [
        "files.network = \"files\"".to_owned(),
        "files.network = \"off\"".to_owned(),
        format!("files.exclude = [\"{}/**\"]", mnt.display()),
        format!("files.exclude = [\"/nowhere\", \"{}/*/*\"]", mnt.display()),
    ] {
        fs::write(dir.join("config.toml"), &settings).unwrap();
        let upper = u64::from(settings.contains("nowhere")) * 4;
        // The kernel may take a page away before it is read, and asks for it again.
        eventually(|| {
            let ours = go(&["--config=config.toml"]).unwrap();
            assert_eq!(ours.printed, plain.printed);
            assert_eq!(ours.number("files_ahead"), 0, "{settings}");
            for (kind, n) in &ours.asked {
                // What lies above may be listed.
                let more = if kind.starts_with("list") { upper } else { 0 };
                let most = plain.asked[kind] + more;
                if *n > most {
                    return Err(format!("{settings}: {n} times {kind} instead of {most}"));
                }
            }
            Ok(())
        });
    }
}

/// Where a part of a tree is excluded, the rest is gone through ahead.
#[test]
fn what_is_excluded_is_not_touched_on_disks_either() {
    let dir = fresh("what_is_excluded");
    plant(&dir);
    let tree = dir.join("shown");
    let setting = format!("files.exclude = [\"{}/1/**\"]", tree.display());
    fs::write(dir.join("config.toml"), setting).unwrap();
    let half = format!(
        "find {} -type f | LC_ALL=C sort | grep -v shown/1/ | xargs cksum >/dev/null",
        tree.display()
    );
    let cold = || {
        let mut left = vec![tree.clone()];
        let mut files = Vec::new();
        while let Some(path) = left.pop() {
            for entry in fs::read_dir(path).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    left.push(path);
                } else {
                    files.push(path);
                }
            }
        }
        for path in &files {
            let file = fs::File::open(path).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        files
    };
    eventually(|| {
        let files = cold();
        let flags = ["--config=config.toml", "--report=r.json"];
        let output = outrider_run(&dir, &flags, &["sh", "-c", &half]).output();
        assert!(output.unwrap().status.success());
        for path in files.iter().filter(|p| p.starts_with(tree.join("1"))) {
            use std::os::fd::AsFd;
            let file = fs::File::open(path).unwrap();
            let len = file.metadata().unwrap().len();
            let cached = outrider_sys::cache::cachestat(file.as_fd(), 0..len);
            assert!(cached.is_ok_and(|s| s.cached == 0), "{}", path.display());
        }
        let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
        let ahead = report["totals"]["files_ahead_used"].as_u64().unwrap();
        let told = format!("{ahead}: {}", report["totals"]);
        (ahead > 0).then_some(()).ok_or(told)
    });
}

/// A bad pattern is one line with key and line, and nothing is started.
#[test]
fn bad_patterns_are_refused() {
    let dir = fresh("bad_patterns");
    for bad in ["relative/**", "/mnt/[a"] {
        let text = format!("[files]\nwalk = true\nexclude = [\"/fine\", \"{bad}\"]\n");
        fs::write(dir.join("config.toml"), text).unwrap();
        let flags = ["--config=config.toml"];
        let output = outrider_run(&dir, &flags, &["touch", "started"])
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(
            told.contains("config.toml:3") && told.contains("files.exclude"),
            "{told}"
        );
        assert!(!dir.join("started").exists());
    }
}

/// Where nothing stays of what is read, or of names, that is found out from a few.
#[test]
fn forgetful_mounts_cost_little() {
    const TEST: &str = "forgetful_mounts_cost_little";
    const SCRIPT: &str = "tar c --sort=none mnt | cksum";
    let dir = fresh(TEST);
    plant(&dir);
    for manner in [
        &[][..],
        &["--direct-io"],
        &["--valid-s", "0"],
        &["--valid-s", "0", "--keep-cache"],
    ] {
        let Some(plain) = run(&dir, TEST, manner, &["--mode=app-only"], SCRIPT) else {
            return;
        };
        eventually(|| {
            let ours = run(&dir, TEST, manner, &[], SCRIPT).unwrap();
            assert_eq!(ours.printed, plain.printed);
            let names = |run: &Run| run.asked("lookup") + run.asked("attributes");
            let files = |run: &Run| run.asked("open") + run.asked("read");
            let more = [
                files(&ours).saturating_sub(files(&plain)),
                names(&ours).saturating_sub(names(&plain)),
            ];
            let told = format!("{manner:?}: {:?}, stock {:?}", ours.asked, plain.asked);
            (more < [FEW; 2] && more[1] < 2 * FEW)
                .then_some(())
                .ok_or(told)
        });
    }
}

/// B15, B12: a run that is remembered looks up nothing on a server, also not behind a link that leads there from a disk.
#[test]
fn what_lies_behind_links_to_servers_is_not_remembered() {
    const TEST: &str = "what_lies_behind_links_to_servers_is_not_remembered";
    const SCRIPT: &str = "cat link/*/*/* | cksum; stat link/0/*/* | wc -l; cat inner/own | wc -c";
    let dir = fresh(TEST);
    plant(&dir);
    std::os::unix::fs::symlink("mnt", dir.join("link")).unwrap();
    // One that stays on its disk is followed.
    fs::create_dir(dir.join("outer")).unwrap();
    fs::write(dir.join("outer/own"), "own").unwrap();
    std::os::unix::fs::symlink("outer", dir.join("inner")).unwrap();
    let manner = ["--valid-s", "0"];
    let off = ["--mode=app-only"];
    let Some(plain) = run(&dir, TEST, &manner, &off, SCRIPT) else {
        return;
    };
    fs::write(dir.join("off.toml"), "[files]\nnetwork = \"off\"\n").unwrap();
    let flags = ["--remember=./p", "--config=off.toml"];
    let ours = run(&dir, TEST, &manner, &flags, SCRIPT).unwrap();
    assert_eq!(ours.printed, plain.printed);
    let asked = |run: &Run| run.asked("lookup") + run.asked("attributes");
    // Names stay for no time, so that each look-up of ours is one more for each part of the path.
    let more = asked(&ours).saturating_sub(asked(&plain));
    assert!(more < FEW, "{:?}, stock {:?}", ours.asked, plain.asked);
    let profile = fs::read(dir.join("p")).unwrap();
    let profile = outrider_core::profile::format::decode(&profile).unwrap();
    let has = |end: &str| profile.entries.iter().any(|e| e.path.ends_with(end));
    assert!(has("outer/own"), "{:?}", profile.entries);
}

/// B12: a server that does not answer any more keeps nobody from ending, is written off after a while, and its file system can be unmounted afterwards.
#[test]
fn silent_servers_hold_nobody_up() {
    const TEST: &str = "silent_servers_hold_nobody_up";
    const SCRIPT: &str = "import os, signal, sys, time
files = sorted(os.path.join(w, n) for w, _, names in os.walk('mnt') for n in names)
for i, name in enumerate(files):
    file = open(name, 'rb')
    if i == 40: break
    file.read()
os.kill(int(sys.argv[1]), signal.SIGSTOP)
time.sleep(float(sys.argv[2]))
";
    let dir = fresh(TEST);
    plant(&dir);
    for (waits, silent) in [("0.3", false), ("14", true)] {
        eventually(|| {
            // The program is never far behind what is being fetched when the server stops.
            let slow = ["--keep-cache", "--read-us", "20000"];
            let Some(mount) = Mount::of(TEST, &dir, &slow) else {
                return Ok(());
            };
            let server = mount.server.id().to_string();
            let argv = ["python3", "-c", SCRIPT, &server, waits];
            let began = Instant::now();
            let mut child = outrider_run(&dir, &["--report=r.json"], &argv)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                // Forever, if it hung.
                assert!(began.elapsed() < Duration::from_secs(120), "it hangs");
                std::thread::sleep(Duration::from_millis(20));
            };
            assert!(status.success());
            let report = fs::read_to_string(dir.join("r.json")).unwrap();
            mount.signal(Signal::CONT);
            // As soon as the service's threads have their answers.
            let at = mount.at.clone();
            let until = Instant::now() + Duration::from_secs(60);
            while Command::new("umount")
                .arg(&at)
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|s| !s.success())
            {
                assert!(Instant::now() < until, "it can't be unmounted");
                std::thread::sleep(Duration::from_millis(20));
            }
            let told = report.contains("did not answer; it was not prefetched any more");
            (told == silent).then_some(()).ok_or(report)
        });
    }
}

/// B12, B16: a program whose mappings are held by a call that waits for a server which doesn't answer keeps the service from nobody else.
#[test]
fn held_mappings_hold_nobody_up() {
    const TEST: &str = "held_mappings_hold_nobody_up";
    /// Touches a mapping of a disk's file. Then one thread waits for a page of a server's file, and another, which maps that anew, for the page to be free.
    const HOLDER: &str = "import ctypes, os, signal, sys, threading, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
byte = ctypes.create_string_buffer(1)
def mapped(f): return libc.mmap(None, os.fstat(f).st_size, 1, 2, f, 0)
def touch(at): libc.memcpy(byte, ctypes.c_void_p(at), 1)
own = mapped(os.open(sys.argv[2] + '/mapped', os.O_RDONLY))
for k in range(40): touch(own + k * 65536)
files = [os.open('mnt/file', os.O_RDONLY) for _ in range(2)]
there = mapped(files[0])
first = threading.Thread(target=touch, args=(there,))
second = threading.Thread(target=mapped, args=(files[1],))
os.kill(int(sys.argv[1]), signal.SIGSTOP)
first.start()
time.sleep(0.1)
second.start()
time.sleep(60)";
    const SIZE: usize = 32 << 20;
    let dir = fresh(TEST);
    let Some(disk) = Disk::of(TEST, &dir) else {
        return;
    };
    for name in ["mapped", "read"] {
        fs::write(disk.dir.join(name), Random(7).bytes(SIZE)).unwrap();
    }
    disk.does("model", &["remote"]);
    fs::create_dir_all(dir.join("shown")).unwrap();
    fs::create_dir_all(dir.join("mnt")).unwrap();
    fs::write(dir.join("shown/file"), Random(8).bytes(1 << 20)).unwrap();
    let place = disk.dir.to_str().unwrap();
    eventually(|| {
        let Some(mount) = Mount::of(TEST, &dir, &["--direct-io"]) else {
            return Ok(());
        };
        disk.does("cold", &[]);
        let server = mount.server.id().to_string();
        // Who holds his mappings for good is alive all the while.
        let script = "python3 -IS -c \"$0\" $1 $2 & sleep 2; tac $2/read | wc -c; kill -CONT $1; kill -KILL $!; wait";
        let argv = ["sh", "-c", script, HOLDER, &server, place];
        let run = outrider_run(&dir, &["--report=r.json"], &argv);
        let output = { run }.output().unwrap();
        mount.signal(Signal::CONT);
        assert!(output.status.success(), "{output:?}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed.trim(), SIZE.to_string());
        let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
        let files = report["files"].as_array().unwrap();
        let fetched = |name: &str| {
            let its = files
                .iter()
                .find(|f| f["path"].as_str().unwrap().ends_with(name));
            its.map_or(0, |f| f["prefetched_bytes"].as_u64().unwrap())
        };
        // The first was mapped and looked at, before.
        match fetched("/mapped") > 0 && fetched("/read") > SIZE as u64 * 3 / 4 {
            true => Ok(()),
            false => Err(format!(
                "{} {}: {report:#}",
                fetched("/mapped"),
                fetched("/read")
            )),
        }
    });
}

/// B15: what an earlier run needed of a disk is not looked for where the disk is mounted below a server that does not answer any more, and the run ends.
#[test]
fn disks_below_silent_servers_hold_nobody_up() {
    const TEST: &str = "disks_below_silent_servers_hold_nobody_up";
    let dir = fresh(TEST);
    let within = dir.join("shown/within");
    fs::create_dir_all(&within).unwrap();
    fs::create_dir_all(dir.join("mnt")).unwrap();
    fs::create_dir_all(dir.join("disk")).unwrap();
    for name in ["first", "file"] {
        fs::write(dir.join("disk").join(name), Random(5).bytes(300_000)).unwrap();
    }
    // Names have to be asked for each time.
    let Some(mount) = Mount::of(TEST, &dir, &["--valid-s", "0"]) else {
        return;
    };
    let below = mount.at.join("within");
    let bind = Command::new("mount")
        .arg("--bind")
        .arg(dir.join("disk"))
        .arg(&below)
        .status();
    assert!(bind.unwrap().success());
    let remember = |script: &str| {
        let flags = ["--remember=./p", "--report=r.json"];
        outrider_run(&dir, &flags, &["sh", "-c", script])
    };
    // As an earlier run may have left it.
    let path = below.join("file");
    let read = remember("cat disk/first disk/file | cksum")
        .output()
        .unwrap();
    assert!(read.status.success(), "{read:?}");
    let mut profile =
        outrider_core::profile::format::decode(&fs::read(dir.join("p")).unwrap()).unwrap();
    let [first, plain] = ["first", "file"].map(|name| dir.join("disk").join(name));
    profile
        .entries
        .retain(|e| e.path == first || e.path == plain);
    for entry in profile.entries.iter_mut().filter(|e| e.path == plain) {
        entry.path.clone_from(&path);
    }
    assert!(profile.entries.iter().any(|e| e.path == path));
    fs::write(
        dir.join("p"),
        outrider_core::profile::format::encode(&profile),
    )
    .unwrap();
    support::make_cold(&dir.join("disk"));
    mount.signal(Signal::STOP);
    let child = remember("sleep 0.3").spawn().unwrap();
    // The service was not given up.
    let lost = lost_beside(&dir, child, &mount, 30.0);
    assert_eq!(lost, serde_json::json!([]));
    let unmounted = Command::new("umount").arg(&below).status();
    assert!(unmounted.unwrap().success());
    mount.end();
}

/// S1, B12: where a server that doesn't answer is mounted over files that a program has mapped, has read before or goes through, nobody asks it but who has it as
/// its own: the service stays with the run.
#[test]
fn silent_servers_over_what_programs_know_are_not_asked() {
    const TEST: &str = "silent_servers_over_what_programs_know_are_not_asked";
    const HIDDEN: &str = "print('ready', flush=True); sys.stdin.readline()";
    const MAPS: &str = "f = os.open('mnt/file', os.O_RDONLY)
for i in range(10): os.pread(f, 4096, i * 300000)
HIDDEN
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
for _ in range(20):
    again = os.open(f'/proc/self/fd/{f}', os.O_RDONLY)
    at = libc.mmap(None, ctypes.c_size_t(4 << 20), 1, 1, again, ctypes.c_size_t(0))
    os.close(again)
    for i in range(64): ctypes.string_at(at + i * 4096, 1)
time.sleep(.3)";
    // It is looked who else reads it, half of a second after its last read.
    const READS: &str = "with open('mnt/file', 'rb') as f: f.read()
HIDDEN
time.sleep(3)";
    const WALKS: &str = "names = sorted(os.listdir('mnt/tree'))
at = os.open('mnt/tree', os.O_RDONLY)
for i, name in enumerate(names):
    f = os.open(name, os.O_RDONLY, dir_fd=at)
    os.read(f, 30000)
    os.close(f)
    if i == 150: HIDDEN
time.sleep(.3)";
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return skip(TEST, "needs root and /dev/fuse");
    }
    let dir = fresh(TEST);
    let mnt = dir.join("mnt");
    fs::create_dir_all(mnt.join("tree")).unwrap();
    fs::create_dir_all(dir.join("shown")).unwrap();
    fs::write(mnt.join("file"), Random(9).bytes(8 << 20)).unwrap();
    for i in 0..400 {
        let name = mnt.join(format!("tree/{i:03}"));
        fs::write(name, Random(i).bytes(20_000)).unwrap();
    }
    fs::write(dir.join("other"), Random(1).bytes(4 << 20)).unwrap();
    fs::write(dir.join("config.toml"), "[reclaim]\ninactive_after_s = 1\n").unwrap();
    for script in [MAPS, READS, WALKS] {
        support::make_cold(&mnt);
        support::make_cold(&mnt.join("tree"));
        support::make_cold(&dir);
        // The service is not without work after it.
        let script = format!(
            "import ctypes, os, sys, time\n{}\nwith open('other', 'rb') as f: f.read()",
            script.replace("HIDDEN", HIDDEN)
        );
        let flags = ["--config=config.toml", "--report=r.json"];
        let mut run = outrider_run(&dir, &flags, &["python3", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(run.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        assert_eq!(said, "ready\n");
        let mount = Mount::of(TEST, &dir, &["--valid-s", "0"]).unwrap();
        mount.signal(Signal::STOP);
        drop(run.stdin.take());
        let lost = lost_beside(&dir, run, &mount, support::PATIENCE).to_string();
        assert!(!lost.contains("helper"), "{lost}");
    }
}

/// The run ends within so many seconds although the server doesn't answer; what was lost.
fn lost_beside(dir: &Path, mut run: Child, mount: &Mount, seconds: f64) -> Value {
    let status = support::wait_for(seconds, || run.try_wait().unwrap());
    mount.signal(Signal::CONT);
    let status = status.unwrap_or_else(|| {
        let _ = run.kill();
        panic!("it hangs")
    });
    assert!(status.success());
    let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
    report["lost"].clone()
}

/// S1: what a program has read in another process namespace is looked up by its name nowhere, also not to see who else reads it: among the service's mounts that name may
/// lead to a server, which doesn't answer.
#[test]
fn names_of_containers_lead_to_no_server() {
    const TEST: &str = "names_of_containers_lead_to_no_server";
    const READ: &str = "import os, time
f = os.open('mnt/file', os.O_RDONLY)
for at in reversed(range(0, 8 << 20, 16384)): os.pread(f, 16384, at)
os.close(f)
time.sleep(3)";
    let dir = fresh(TEST);
    for name in ["mnt", "shown", "within"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    fs::write(dir.join("within/file"), Random(9).bytes(8 << 20)).unwrap();
    fs::write(dir.join("config.toml"), "[reclaim]\ninactive_after_s = 1\n").unwrap();
    let Some(mount) = Mount::of(TEST, &dir, &["--valid-s", "0"]) else {
        return;
    };
    mount.signal(Signal::STOP);
    support::make_cold(&dir.join("within"));
    let script = "umount -l mnt && mount --bind within mnt && exec python3 -c \"$0\"";
    let argv = ["unshare", "-pfm", "--mount-proc", "sh", "-c", script, READ];
    let run = outrider_run(&dir, &["--config=config.toml", "--report=r.json"], &argv);
    let run = { run }.spawn().unwrap();
    let lost = lost_beside(&dir, run, &mount, support::PATIENCE).to_string();
    assert!(!lost.contains("helper"), "{lost}");
}
