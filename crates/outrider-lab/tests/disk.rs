//! `outrider-lab disk` through the built command: what is written comes back, what happened is counted,
//! faults fail, and nothing is ever left behind.
//!
//! The cases need root, FUSE and loop devices; without them each prints why it was skipped.

#[path = "support/disks.rs"]
mod disks;
mod support;

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use disks::need_disks;
use serde_json::Value;
use support::skip;
use tempfile::TempDir;

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_outrider-lab"))
}

fn disk(args: &[&str]) -> Output {
    lab().arg("disk").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs and expects success; standard output.
fn done(args: &[&str]) -> String {
    let out = disk(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// A disk that is taken down however the test ends.
struct Disk {
    _parent: TempDir,
    dir: PathBuf,
}

impl Disk {
    /// A place where nothing is yet.
    fn nowhere() -> Self {
        let parent = tempfile::Builder::new()
            .prefix("lab test")
            .tempdir()
            .unwrap();
        let dir = parent.path().join("a disk");
        Self {
            _parent: parent,
            dir,
        }
    }

    fn up(model: &str, more: &[&str]) -> Self {
        let disk = Self::nowhere();
        disk.bring_up(model, more);
        disk
    }

    fn bring_up(&self, model: &str, more: &[&str]) {
        let mut args = vec!["up", model, "--mount", self.at()];
        if !more.contains(&"--size") {
            args.extend(["--size", "96M"]);
        }
        args.extend(more);
        done(&args);
    }

    fn at(&self) -> &str {
        self.dir.to_str().unwrap()
    }

    fn model(&self, words: &str) {
        done(&["model", self.at(), words]);
    }

    fn stats(&self) -> Value {
        serde_json::from_str(&done(&["stats", self.at(), "--json"])).unwrap()
    }

    fn counter(&self, name: &str) -> u64 {
        self.stats()["counters"][name].as_u64().unwrap()
    }

    fn device(&self) -> PathBuf {
        self.stats()["disk"]["device"].as_str().unwrap().into()
    }

    fn pid(&self) -> i32 {
        self.stats()["disk"]["pid"].as_i64().unwrap() as i32
    }

    fn kill(&self, signal: rustix::process::Signal) -> i32 {
        let pid = self.pid();
        let process = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(process, signal).unwrap();
        pid
    }

    /// The key by which the loop device's file is named, while the disk is known.
    fn key(&self) -> Option<String> {
        let all: Value = serde_json::from_str(&done(&["list", "--json"])).unwrap();
        let all = all.as_array().unwrap().clone();
        let row = all.iter().find(|row| row["dir"] == self.at())?;
        Some(row["key"].as_str().unwrap().to_owned())
    }

    /// What is left of the disk with this key: mounts, loop devices, state.
    fn left(&self, key: &str) -> Vec<String> {
        let mut left = Vec::new();
        let escaped = self.at().replace(' ', "\\040");
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        left.extend(
            mounts
                .lines()
                .filter(|l| l.contains(&escaped))
                .map(str::to_owned),
        );
        let loops = Command::new("losetup").arg("-l").output().unwrap();
        let loops = text(&loops.stdout);
        left.extend(loops.lines().filter(|l| l.contains(key)).map(str::to_owned));
        left.extend(self.key());
        left
    }

    fn gone(&self, key: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.left(key).is_empty() && Instant::now() < until {
            sleep(Duration::from_millis(20));
        }
        assert_eq!(self.left(key), [""; 0]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = disk(&["down", self.at(), "--lazy"]);
    }
}

/// Bytes that neither repeat nor compress.
fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x2545_f491_4f6c_dd1d_u64;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend(x.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Reads `count` blocks of 4 KiB from a device, past the page cache.
fn read_direct(device: &Path, count: u32) -> Output {
    Command::new("dd")
        .arg(format!("if={}", device.display()))
        .args(["of=/dev/null", "bs=4096", "iflag=direct"])
        .arg(format!("count={count}"))
        .output()
        .unwrap()
}

fn round_trip(fs: &str, size: &str) {
    let disk = Disk::up("remote", &["--fs", fs, "--size", size]);
    let key = disk.key().unwrap();
    let data = noise(8 << 20);
    let file = disk.dir.join("file");
    fs::write(&file, &data).unwrap();

    done(&["cold", disk.at()]);
    let trace = disk._parent.path().join("trace");
    done(&["trace", disk.at(), "start", trace.to_str().unwrap()]);
    done(&["stats", disk.at(), "--reset"]);
    assert!(
        fs::read(&file).unwrap() == data,
        "the file came back changed"
    );
    done(&["trace", disk.at(), "stop"]);
    let counters = &disk.stats()["counters"];

    let (mut reads, mut bytes) = (0, 0);
    let mut last = 0.0;
    for line in fs::read_to_string(&trace).unwrap().lines() {
        let f: Vec<&str> = line.split(' ').collect();
        let [start, done, op, offset, len] = f[..] else {
            panic!("{line}");
        };
        let (start, done): (f64, f64) = (start.parse().unwrap(), done.parse().unwrap());
        let (offset, len): (u64, u64) = (offset.parse().unwrap(), len.parse().unwrap());
        assert!(
            start >= last && done > start && offset + len <= 1 << 30,
            "{line}"
        );
        last = start;
        if op == "R" {
            reads += 1;
            bytes += len;
        }
    }
    assert!(bytes >= data.len() as u64, "{bytes} bytes were read cold");
    assert_eq!(counters["reads"], reads);
    assert_eq!(counters["read_bytes"], bytes);
    assert_eq!(counters["in_flight"], 0);
    assert_eq!(counters["errors"], 0);

    done(&["down", disk.at()]);
    disk.gone(&key);
    assert!(!disk.dir.exists());
}

#[test]
fn what_is_written_comes_back_and_is_counted() {
    need_disks!();
    round_trip("ext4", "96M");
}

/// Why this file system cannot be made here.
fn no_file_system(fs: &str) -> Option<String> {
    if Command::new(format!("mkfs.{fs}"))
        .arg("-V")
        .output()
        .is_err()
    {
        return Some(format!("no mkfs.{fs}"));
    }
    let known = || {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap();
        known
            .lines()
            .any(|l| l.split_whitespace().last() == Some(fs))
    };
    if !known() {
        let _ = Command::new("modprobe")
            .arg(fs)
            .stderr(Stdio::null())
            .status();
    }
    (!known()).then(|| format!("this kernel has no {fs}"))
}

#[test]
fn xfs_works_too() {
    need_disks!();
    if let Some(reason) = no_file_system("xfs") {
        skip("xfs_works_too", &reason);
        return;
    }
    round_trip("xfs", "320M");
}

#[test]
fn btrfs_works_too() {
    need_disks!();
    if let Some(reason) = no_file_system("btrfs") {
        skip("btrfs_works_too", &reason);
        return;
    }
    round_trip("btrfs", "320M");
}

#[test]
fn a_bare_device_sees_exactly_what_is_asked() {
    need_disks!();
    let disk = Disk::up("nvme", &["--fs", "none", "--readahead-kb", "64"]);
    let key = disk.key().unwrap();
    let device = disk.device();
    let queue = Path::new("/sys/block").join(device.file_name().unwrap());
    let read = |what: &str| {
        fs::read_to_string(queue.join(what))
            .unwrap()
            .trim()
            .to_owned()
    };
    assert_eq!(read("queue/read_ahead_kb"), "64");
    assert_eq!(read("loop/dio"), "1");
    assert_eq!(read("size"), ((96 << 20) / 512).to_string());

    done(&["stats", disk.at(), "--reset"]);
    assert!(read_direct(&device, 100).status.success());
    assert_eq!(disk.counter("reads"), 100);
    assert_eq!(disk.counter("read_bytes"), 409_600);
    assert_eq!(disk.counter("writes"), 0);

    // Data survives `cold`, which has no mount to renew here.
    let data = noise(1 << 20);
    File::options()
        .write(true)
        .open(&device)
        .unwrap()
        .write_all_at(&data, 4096)
        .unwrap();
    done(&["cold", disk.at()]);
    let mut back = vec![0; data.len()];
    File::open(&device)
        .unwrap()
        .read_exact_at(&mut back, 4096)
        .unwrap();
    assert!(back == data);
    assert!(disk.counter("read_bytes") >= 1 << 20);

    // A trace that is being recorded is not lost when the disk goes.
    let trace = disk._parent.path().join("trace");
    done(&["trace", disk.at(), "start", trace.to_str().unwrap()]);
    assert!(read_direct(&device, 3).status.success());
    done(&["down", disk.at()]);
    assert_eq!(fs::read_to_string(trace).unwrap().matches(" R ").count(), 3);
    disk.gone(&key);
}

/// B10: a volume of a snapshot answers for blocks that were touched while it fetches another, and is as new after `cold`.
#[test]
fn a_volume_of_a_snapshot_fetches_its_blocks_once() {
    need_disks!();
    let slow = "snapshot first_us=2000000 iops=0";
    let disk = Disk::up("off", &["--fs", "none"]);
    let device = disk.device();
    let read = |block: u32| {
        Command::new("dd")
            .arg(format!("if={}", device.display()))
            .args(["of=/dev/null", "bs=4096", "iflag=direct", "count=1"])
            .arg(format!("skip={}", block * 128))
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let ends = |block: u32| assert!(read(block).wait().unwrap().success());
    disk.model(slow);
    ends(1);
    let mut first = read(2);
    while disk.counter("in_flight") == 0 {
        assert!(first.try_wait().unwrap().is_none(), "block 2 was there");
    }
    ends(1);
    assert!(first.try_wait().unwrap().is_none(), "block 2 came first");
    assert!(first.wait().unwrap().success());
    done(&["cold", disk.at()]);
    let mut again = read(1);
    while disk.counter("in_flight") == 0 {
        assert!(again.try_wait().unwrap().is_none(), "block 1 was there");
    }
    assert!(again.wait().unwrap().success());
    let model = &disk.stats()["model"];
    assert_eq!(
        (&model["name"], &model["first_kb"]),
        (&"snapshot".into(), &512.into())
    );
}

/// B10: a volume that has let in what its bucket holds answers no further request until that is refilled.
#[test]
fn a_volume_lets_in_what_its_bucket_holds() {
    need_disks!();
    let disk = Disk::up("off", &["--fs", "none"]);
    let device = disk.device();
    disk.model("cloud latency_us=0 iops=1 iops_burst=3 scale=3");
    done(&["stats", disk.at(), "--reset"]);
    assert!(read_direct(&device, 3).status.success());
    let mut fourth = Command::new("dd")
        .arg(format!("if={}", device.display()))
        .args(["of=/dev/null", "bs=4096", "iflag=direct", "count=1"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while disk.counter("in_flight") == 0 {
        assert!(fourth.try_wait().unwrap().is_none(), "it was let in");
    }
    assert_eq!(disk.counter("reads"), 4);
    assert!(fourth.try_wait().unwrap().is_none(), "it was let in");
    assert!(fourth.wait().unwrap().success());
}

#[test]
fn models_change_at_run_time() {
    need_disks!();
    let disk = Disk::up("hdd,schedule=fifo", &["--fs", "none", "--scale", "0.5"]);
    let model = &disk.stats()["model"];
    assert_eq!(model["name"], "hdd");
    assert_eq!(model["schedule"], "fifo");
    assert_eq!(model["scale"], 0.5);
    done(&["stats", disk.at(), "--reset"]);
    assert!(read_direct(&disk.device(), 2).status.success());
    disk.model("sata latency_us=170");
    let model = &disk.stats()["model"];
    assert_eq!(model["name"], "sata");
    assert_eq!(model["latency_us"], 170.0);
    assert_eq!(model["scale"], 0.5);
    let told = done(&["stats", disk.at()]);
    assert!(
        told.contains("sata") && told.contains("reads   2, 8.0 KiB"),
        "{told}"
    );
}

#[test]
fn bad_ranges_fail() {
    need_disks!();
    let disk = Disk::up("off", &["--fs", "none", "--readahead-kb", "0"]);
    disk.model("eio=1M-2M,eio_write=4M-5M");
    let device = File::options()
        .read(true)
        .write(true)
        .open(disk.device())
        .unwrap();
    let mut block = [0; 4096];
    let eio = |r: std::io::Result<()>| r.unwrap_err().raw_os_error() == Some(5);
    assert!(eio(device.read_exact_at(&mut block, 1 << 20)));
    assert!(eio(device.read_exact_at(&mut block, (2 << 20) - 4096)));
    device.read_exact_at(&mut block, 2 << 20).unwrap();
    device.read_exact_at(&mut block, 4 << 20).unwrap();
    assert!(disk.counter("errors") >= 2);
    device.write_all_at(&[1; 4096], 4 << 20).unwrap();
    assert!(eio(device.sync_all()));
    disk.model("eio=none");
    device.read_exact_at(&mut block, 1 << 20).unwrap();

    // What one key has said is taken back by that key, and what others have said stays.
    disk.model("eio_read=1M-2M eio_write=4M-5M eio=6M-7M");
    // Of what is cached nothing is read from the disk.
    let drop = || rustix::fs::fadvise(&device, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let reads = |block: &mut [u8], at: u64| {
        drop();
        device.read_exact_at(block, at).is_ok()
    };
    let writes =
        |block: &[u8], at: u64| device.write_all_at(block, at).is_ok() && device.sync_all().is_ok();
    assert!(!reads(&mut block, 1 << 20) && !reads(&mut block, 6 << 20));
    disk.model("eio_read=none");
    assert!(reads(&mut block, 1 << 20) && reads(&mut block, 6 << 20));
    assert!(!writes(&block, 4 << 20));
    assert!(!writes(&block, 6 << 20));
    disk.model("eio_read=1M-2M eio_write=none");
    assert!(writes(&block, 4 << 20) && writes(&block, 6 << 20));
    // The cache has none of it.
    assert!(!reads(&mut block, 1 << 20));
    disk.model("stall=3600");
    disk.model("stall=none,eio_read=none");
    assert!(reads(&mut block, 1 << 20));
}

#[test]
fn a_stall_holds_requests_and_lets_them_go() {
    need_disks!();
    let disk = Disk::up("off", &["--fs", "none"]);
    let device = disk.device();
    let start = Instant::now();
    disk.model("stall=1");
    assert!(read_direct(&device, 1).status.success());
    assert!(
        start.elapsed() >= Duration::from_millis(950),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn after_a_crash_down_leaves_nothing() {
    need_disks!();
    for fs in ["ext4", "none"] {
        let disk = Disk::up("nvme", &["--fs", fs]);
        let key = disk.key().unwrap();
        if fs == "ext4" {
            // Dirty pages that can never be written any more.
            fs::write(disk.dir.join("file"), noise(1 << 20)).unwrap();
        }
        ended(disk.kill(rustix::process::Signal::KILL));
        let out = self::disk(&["stats", disk.at()]);
        assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
        assert!(done(&["list"]).contains("dead"));
        done(&["down", disk.at()]);
        disk.gone(&key);
    }
}

#[test]
fn up_clears_what_a_crash_left() {
    need_disks!();
    let disk = Disk::up("nvme", &[]);
    ended(disk.kill(rustix::process::Signal::KILL));
    disk.bring_up("nvme", &[]);
    fs::write(disk.dir.join("file"), "works").unwrap();
    let key = disk.key().unwrap();
    done(&["down", disk.at()]);
    disk.gone(&key);
}

#[test]
fn the_stack_goes_with_sigterm_or_a_plain_umount() {
    need_disks!();
    let disk = Disk::up("remote", &[]);
    let key = disk.key().unwrap();
    fs::write(disk.dir.join("file"), noise(1 << 20)).unwrap();
    disk.kill(rustix::process::Signal::TERM);
    disk.gone(&key);

    disk.bring_up("remote", &[]);
    umount(&disk.dir);
    disk.gone(&key);
}

#[test]
fn a_disk_in_use_stays() {
    need_disks!();
    let disk = Disk::up("off", &[]);
    let key = disk.key().unwrap();
    let mut file = File::create(disk.dir.join("file")).unwrap();
    for command in ["down", "cold"] {
        let out = self::disk(&[command, disk.at()]);
        assert_eq!(out.status.code(), Some(1));
        assert!(
            text(&out.stderr).contains("in use"),
            "{}",
            text(&out.stderr)
        );
    }
    file.write_all(b"still there").unwrap();
    // The lazy way hides it now; it goes with its last user.
    done(&["down", disk.at(), "--lazy"]);
    assert!(
        !fs::read_to_string("/proc/mounts")
            .unwrap()
            .contains(&disk.at().replace(' ', "\\040"))
    );
    file.write_all(b", still").unwrap();
    drop(file);
    disk.gone(&key);
}

/// What is made cold is cold, also where others have made mount namespaces, each with a copy of the mount; where one of these is in use that is told.
#[test]
fn a_cold_disk_is_cold_in_all_namespaces() {
    need_disks!();
    let disk = Disk::up("off", &[]);
    let file = disk.dir.join("file");
    fs::write(&file, noise(4 << 20)).unwrap();
    let cached = || {
        let file = File::open(&file).unwrap();
        let pages = outrider_sys::cache::mincore(file.as_fd(), 0..4 << 20).unwrap();
        pages.into_iter().filter(|is| *is).count()
    };
    let elsewhere = |script: &str| {
        let mut there = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .current_dir("/")
            .env("DISK", &disk.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 1];
        std::io::Read::read_exact(there.stdout.as_mut().unwrap(), &mut said).unwrap();
        there
    };
    let end = |mut there: Child| {
        drop(there.stdin.take());
        assert!(there.wait().unwrap().success());
    };
    fs::read(&file).unwrap();
    assert_eq!(cached(), 1024);
    let idle = elsewhere("echo; read end; test ! -e \"$DISK/file\"");
    done(&["cold", disk.at()]);
    assert_eq!(cached(), 0);
    end(idle);

    fs::read(&file).unwrap();
    let user = elsewhere("exec <\"$DISK/file\" && cd \"$DISK\" && echo && exec sleep 1000");
    let out = self::disk(&["cold", disk.at()]);
    assert_eq!(out.status.code(), Some(1));
    let who = format!("process {} (sleep)", user.id());
    let why = text(&out.stderr);
    assert!(why.contains("is not cold") && why.contains(&who), "{why}");
    // It is where it was.
    assert_eq!(fs::metadata(&file).unwrap().len(), 4 << 20);
    let mut user = user;
    user.kill().unwrap();
    user.wait().unwrap();
    done(&["cold", disk.at()]);
    assert_eq!(cached(), 0);

    // Nor does a copy of the mount keep the disk.
    let idle = elsewhere("echo; read end; true");
    let key = disk.key().unwrap();
    done(&["down", disk.at()]);
    assert_eq!(disk.left(&key), Vec::<String>::new());
    end(idle);
}

#[test]
fn an_image_can_be_kept() {
    need_disks!();
    let disk = Disk::nowhere();
    let image = disk._parent.path().join("image");
    let image = image.to_str().unwrap();
    let file = disk.dir.join("file");
    fs::write(image, noise(1 << 20)).unwrap();
    let out = self::disk(&["up", "off", "--image", image, "--mount", disk.at()]);
    assert_eq!(out.status.code(), Some(2), "somebody's file was taken");
    assert!(fs::read(image).unwrap() == noise(1 << 20));
    fs::remove_file(image).unwrap();
    disk.bring_up("off", &["--image", image]);
    fs::write(&file, "kept").unwrap();
    done(&["down", disk.at(), "--keep"]);
    done(&["up", "nvme", "--image", image, "--mount", disk.at()]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    done(&["down", disk.at()]);
    assert!(Path::new(image).exists(), "the second `up` did not make it");
    fs::remove_file(image).unwrap();
    disk.bring_up("off", &["--image", image]);
    done(&["down", disk.at()]);
    assert!(!Path::new(image).exists());

    disk.bring_up("off", &[]);
    let out = self::disk(&["down", disk.at(), "--keep"]);
    assert_eq!(out.status.code(), Some(2));
}

/// Waits until the process has ended: it is gone, or nobody has asked for its exit code yet. Its first thread can be
/// through before the others, and the files (a lock with them) are closed by the last.
fn ended(pid: i32) {
    let until = Instant::now() + Duration::from_secs(60);
    let state = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        stat.rsplit(')').next()?.trim().chars().next()
    };
    let running = || -> Vec<char> {
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        let threads = threads.into_iter().flatten().flatten();
        threads.filter_map(state).filter(|s| *s != 'Z').collect()
    };
    while !running().is_empty() {
        assert!(
            Instant::now() < until,
            "threads of process {pid} are in states {:?}",
            running()
        );
        sleep(Duration::from_millis(20));
    }
}

/// A plain umount(8). Children of other tests' may hold our open files until they run their programs.
fn umount(dir: &Path) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let out = Command::new("umount").arg(dir).output().unwrap();
        if out.status.success() {
            return;
        }
        let said = text(&out.stderr);
        assert!(said.contains("busy") && Instant::now() < until, "{said}");
        sleep(Duration::from_millis(20));
    }
}

/// Waits for a command of ours, but not for ever.
fn finished(mut child: Child) -> std::process::ExitStatus {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(
            Instant::now() < until,
            "a command hangs: {}",
            fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default()
        );
        sleep(Duration::from_millis(5));
    }
}

fn start_cold(disk: &Disk) -> Child {
    lab()
        .args(["disk", "cold", disk.at()])
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Ends the server at different moments of a remount: everybody comes to an end, and nothing is left.
#[test]
fn a_remount_does_not_outlive_the_disk() {
    need_disks!();
    let disk = Disk::nowhere();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        for delay_ms in [0, 1, 2, 4, 8, 16, 32] {
            disk.bring_up("remote", &[]);
            let key = disk.key().unwrap();
            // Unmounting has to write it first.
            fs::write(disk.dir.join("file"), noise(4 << 20)).unwrap();
            let server = disk.pid();
            let cold = start_cold(&disk);
            sleep(Duration::from_millis(delay_ms));
            let process = rustix::process::Pid::from_raw(server).unwrap();
            rustix::process::kill_process(process, signal).unwrap();
            let status = finished(cold);
            assert!(status.code().is_some(), "{status}");
            ended(server);
            if signal == rustix::process::Signal::KILL {
                done(&["down", disk.at()]);
            }
            disk.gone(&key);
        }
    }
}

/// Kills the remounting command at different moments: the next command finds the disk with its data and model.
#[test]
fn a_remount_that_was_cut_short_is_finished() {
    need_disks!();
    let disk = Disk::up("remote", &[]);
    let key = disk.key().unwrap();
    let data = noise(1 << 20);
    let file = disk.dir.join("file");
    fs::write(&file, &data).unwrap();
    let whole = |disk: &Disk| {
        assert_eq!(disk.stats()["model"]["name"], "remote");
        assert!(fs::read(&file).unwrap() == data);
    };
    for delay_ms in [0, 1, 2, 4, 6, 8, 12, 16, 24, 32] {
        let mut cold = start_cold(&disk);
        sleep(Duration::from_millis(delay_ms));
        cold.kill().unwrap();
        finished(cold);
        whole(&disk);
    }
    // The worst moment, made by hand: unmounted, and nobody there to mount it.
    let held = File::open(disk.device()).unwrap();
    umount(&disk.dir);
    File::create(Path::new("/run/outrider-lab").join(&key).join("remounting")).unwrap();
    whole(&disk);
    drop(held);
    whole(&disk);
    done(&["cold", disk.at()]);
    whole(&disk);
    // A plain umount takes all down again.
    umount(&disk.dir);
    disk.gone(&key);
}

/// Sends a signal to `up` at different moments: afterwards the disk is there as a whole, or nothing is.
#[test]
fn an_interrupted_up_leaves_nothing() {
    need_disks!();
    let disk = Disk::nowhere();
    let start = |disk: &Disk| -> Child {
        let args = ["disk", "up", "off", "--size", "1G", "--mount", disk.at()];
        let quiet = || Stdio::null();
        lab()
            .args(args)
            .stdout(quiet())
            .stderr(quiet())
            .spawn()
            .unwrap()
    };
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        for delay_ms in [0, 2, 5, 10, 20, 40, 80] {
            let mut up = start(&disk);
            sleep(Duration::from_millis(delay_ms));
            let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&up), signal);
            let status = up.wait().unwrap();
            if status.success() {
                done(&["down", disk.at()]);
            }
            // After a kill the server notices by itself.
            disk.gone("a disk-nothing");
            let until = Instant::now() + Duration::from_secs(60);
            while ours().iter().any(|l| l.contains(disk.at())) && Instant::now() < until {
                sleep(Duration::from_millis(20));
            }
            assert!(
                !ours().iter().any(|l| l.contains(disk.at())),
                "{:?}",
                ours()
            );
        }
    }
}

/// The disks that `list` shows.
fn ours() -> Vec<String> {
    done(&["list"]).lines().map(str::to_owned).collect()
}

#[test]
fn wrong_input_is_told_in_one_line() {
    let cases: &[&[&str]] = &[
        &[],
        &["up"],
        &["up", "nvme"],
        &["up", "floppy", "--mount", "/mnt/x"],
        &["up", "nvme", "--mount", "/mnt/x", "--size", "8Q"],
        &["up", "nvme", "--mount", "/mnt/x", "--size", "1K"],
        &["up", "nvme", "--mount", "/mnt/x", "--fs", "ntfs"],
        &["up", "nvme", "--mount", "/mnt/x", "--scale", "0"],
        &["up", "nvme", "--mount", "/nowhere/at/all"],
        &["up", "nvme", "--mount", "/proc/version"],
        &["up", "nvme", "--mount", "/mnt/x", "--image", "/dev/null"],
        &["up", "nvme,speed=9", "--mount", "/mnt/x"],
        &["model", "/", "nvme"],
        &["model", "/"],
        &["stats", "/nowhere"],
        &["trace", "/", "pause"],
        &["cold", "/"],
        &["down", "/"],
        &["down", "/nowhere/at/all"],
    ];
    let root = rustix::process::geteuid().is_root();
    for case in cases {
        if !root && !matches!(case.first(), None | Some(&"up")) {
            skip("a case of bad input", "not root");
            continue;
        }
        let out = disk(case);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{case:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{case:?}: {said}");
        assert!(out.stdout.is_empty());
    }
    assert_eq!(
        fs::metadata("/mnt/x").unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[test]
fn wrong_words_to_a_running_disk() {
    need_disks!();
    let disk = Disk::up("off", &["--fs", "none"]);
    for words in ["floppy", "scale=0", "stall=x"] {
        let out = self::disk(&["model", disk.at(), words]);
        assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
        assert_eq!(text(&out.stderr).lines().count(), 1);
    }
    for trace in [&["start"][..], &["stop", "/tmp/x"]] {
        let out = self::disk(&[&["trace", disk.at()], trace].concat());
        assert_eq!(out.status.code(), Some(2));
    }
    assert_eq!(
        self::disk(&["trace", disk.at(), "stop"]).status.code(),
        Some(1)
    );
    let again = ["up", "off", "--mount", disk.at()];
    assert_eq!(self::disk(&again).status.code(), Some(1));
    assert_eq!(disk.stats()["model"]["name"], "off");
}
