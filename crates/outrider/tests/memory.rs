//! Memory is borrowed, and given back: one budget for all processes, and what nobody reads any more makes room.
//!
//! SPEC CP9, CP10 (watermarks, reclaim), CP14 (many processes, one budget).

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use support::{
    Group, PATIENCE, Random, eventually, fresh, outrider, outrider_run, program, wait_for,
};

/// Writes a file that is on the disk and not in the cache.
fn make(path: &Path, seed: u64, len: usize) {
    fs::write(path, Random(seed).bytes(len)).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn resident(path: &Path) -> u64 {
    let out = Command::new(outrider())
        .args(["cached", "--json"])
        .arg(path)
        .output()
        .unwrap();
    let report: Value =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    report["total"]["resident_bytes"].as_u64().unwrap()
}

const MIB: usize = 1 << 20;
const A: u64 = 32 << 20;

/// What a run of `two_files` left in the cache of its file A, bytes, and of a file that it never touched.
struct Left {
    a: u64,
    foreign: u64,
    prefetched: u64,
}

/// Runs `two_files` in a group of 256 MiB, of which it holds 64 itself, and waits until `enough` of A has been dropped, at
/// most for `seconds`.
fn two_files(
    name: &str,
    config: &str,
    enough: impl Fn(u64) -> bool,
    seconds: f64,
) -> Result<Left, String> {
    let group = Group::new(256 << 20)?;
    let dir = fresh(name);
    let (a, b, d, foreign) = (
        dir.join("a"),
        dir.join("b"),
        dir.join("d"),
        dir.join("foreign"),
    );
    for (n, (path, len)) in [
        (&a, A as usize),
        (&b, 2 * MIB),
        (&d, 8 * MIB),
        (&foreign, 8 * MIB),
    ]
    .into_iter()
    .enumerate()
    {
        make(path, n as u64, len);
    }
    let foreign_bytes = fs::read(&foreign).unwrap();
    fs::write(dir.join("config.toml"), config).unwrap();
    let plain = |extra: &str| {
        let mut words = vec![program("two_files").display().to_string()];
        words.extend(["a", "b", "d", extra].map(str::to_owned));
        words
    };
    let words = plain("64");
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let run = outrider_run(
        &dir,
        &["--config", "config.toml", "--report=r.json"],
        &words,
    );
    let mut child = group
        .start(&run)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "read\n");
    wait_for(seconds, || enough(resident(&a)).then_some(()));
    let (left, left_foreign) = (resident(&a), resident(&foreign));
    drop(child.stdin.take());
    let mut ours = String::new();
    out.read_line(&mut ours).unwrap();
    assert!(child.wait().unwrap().success());

    // Nothing that was read or written differs from what a run without us reads and writes.
    let written = fs::read(&d).unwrap();
    make(&d, 2, 8 * MIB);
    let words = plain("1");
    let theirs = Command::new(&words[0])
        .args(&words[1..])
        .current_dir(&dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(
        format!("read\n{ours}"),
        String::from_utf8_lossy(&theirs.stdout)
    );
    assert!(fs::read(&d).unwrap() == written, "dirty data was lost");
    assert!(fs::read(&foreign).unwrap() == foreign_bytes);
    let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
    let files = report["files"].as_array().unwrap();
    let of_a = files
        .iter()
        .find(|f| f["path"].as_str().is_some_and(|p| p.ends_with("/a")));
    Ok(Left {
        a: left,
        foreign: left_foreign,
        prefetched: of_a.map_or(0, |f| f["prefetched_bytes"].as_u64().unwrap()),
    })
}

/// CP10: under pressure a file that was not read for a while goes, whole; the file that is being read, files of others and dirty
/// data stay. Without pressure, or while a file may still be wanted, nothing goes.
#[test]
fn inactive_files_make_room() {
    if let Err(reason) = Group::new(256 << 20) {
        support::skip_unprivileged("inactive_files_make_room", &reason);
        return;
    }
    // The program's own memory is a quarter of the group's: less than nine tenths are available for cache.
    let pressed =
        "[budget]\nhigh_watermark = 0.9\nlow_watermark = 0.05\n[reclaim]\ninactive_after_s = ";
    eventually(|| {
        let left = two_files("reclaim", &format!("{pressed}2\n"), |a| a < A / 4, PATIENCE)?;
        if left.prefetched == 0 {
            return Err("nothing of A was prefetched".into());
        }
        if left.a >= A / 4 {
            return Err(format!("{} bytes of A are left", left.a));
        }
        Ok(())
    });
    // The kernel may take pages by itself: then a file that nobody has touched loses them too.
    for (name, config) in [
        (
            "no_pressure",
            "[reclaim]\ninactive_after_s = 1\n".to_owned(),
        ),
        ("still_active", format!("{pressed}3600\n")),
        ("disabled", format!("{pressed}1\nenabled = false\n")),
    ] {
        eventually(|| {
            let left = two_files(name, &config, |_| false, 4.0)?;
            if left.a < A / 2 && left.foreign >= 4 << 20 {
                return Err(format!("{name}: {} bytes of A are left", left.a));
            }
            Ok(())
        });
    }
}

/// CP10: who reads slowly, in a silence that was agreed on, keeps what was fetched for it; and what others read too stays, whether they keep the file open or read it
/// time and again.
#[test]
fn what_is_in_use_stays() {
    const SLOWLY: &str = "import os, sys, time
fd = os.open('a', os.O_RDONLY)
at = os.fstat(fd).st_size
def read():
    return int(open('/proc/self/io').read().split('read_bytes: ')[1].split()[0])
for i in range(3072):
    at -= 4096
    os.pread(fd, 4096, at)
before = read()
for i in range(80):
    at -= 4096
    os.pread(fd, 4096, at)
    time.sleep(.05)
print(read() - before)
";
    const BRIEFLY: &str = "import os, time
fd = os.open('a', os.O_RDONLY)
for i in range(512):
    os.pread(fd, 4096, (2 << 20) - 4096 * (i + 1))
print('read', flush=True)
time.sleep(4)
";
    const OTHER: &str = "import os, select, sys
kept = os.open('a', os.O_RDONLY) if sys.argv[1] == 'open' else None
def read():
    fd = kept if kept is not None else os.open('a', os.O_RDONLY)
    for at in range(0, 32 << 20, 4096):
        os.pread(fd, 4096, at)
    if kept is None:
        os.close(fd)
    return int(open('/proc/self/io').read().split('read_bytes: ')[1].split()[0])
before = read()
while not select.select([sys.stdin], [], [], .4)[0]:
    if kept is None:
        read()
print(read() - before)
";
    let dir = fresh("in_use");
    make(&dir.join("a"), 1, A as usize);
    let config =
        "[budget]\nhigh_watermark = 1.0\nlow_watermark = 0.0\n[reclaim]\ninactive_after_s = 1\n";
    fs::write(dir.join("config.toml"), config).unwrap();
    let flags = ["--config", "config.toml"];
    let again = |out: &str| {
        let again: u64 = out.trim().parse().unwrap();
        (again == 0)
            .then_some(())
            .ok_or(format!("{again} bytes were read once more"))
    };
    eventually(|| {
        support::make_cold(&dir);
        let run = outrider_run(&dir, &flags, &["python3", "-c", SLOWLY]).output();
        again(&String::from_utf8(run.unwrap().stdout).unwrap())
    });
    // What nobody else uses goes, or nothing is shown by what stays.
    eventually(|| {
        support::make_cold(&dir);
        let run = outrider_run(&dir, &flags, &["python3", "-c", BRIEFLY]).output();
        assert!(run.unwrap().status.success());
        let left = resident(&dir.join("a"));
        match left < MIB as u64 {
            true => Ok(()),
            false => Err(format!("{left} bytes are left")),
        }
    });
    for how in ["open", "again"] {
        eventually(|| {
            support::make_cold(&dir);
            let mut run = outrider_run(&dir, &flags, &["python3", "-c", BRIEFLY])
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            let mut out = BufReader::new(run.stdout.take().unwrap());
            out.read_line(&mut line).unwrap();
            assert_eq!(line, "read\n");
            let mut other = Command::new("python3")
                .args(["-c", OTHER, how])
                .current_dir(&dir)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            assert!(run.wait().unwrap().success());
            drop(other.stdin.take());
            let other = other.wait_with_output().unwrap();
            assert!(other.status.success());
            again(&String::from_utf8(other.stdout).unwrap()).map_err(|e| format!("{how}: {e}"))
        });
    }
}

/// CP14: eight processes with a file each have one budget: what was prefetched and not read yet never exceeds it.
#[test]
fn processes_share_one_budget() {
    const PROCESSES: u64 = 8;
    const BUDGET: u64 = 6 << 20;
    /// Bytes of a request.
    const CHUNK: u64 = 128 << 10;
    let dir = fresh("one_budget");
    for n in 0..PROCESSES {
        make(&dir.join(format!("f{n}")), n, 16 * MIB);
    }
    let script = "for n in 0 1 2 3 4 5 6 7; do tac f$n | cksum >sum$n & done; wait; cat sum?";
    let plain = Command::new("bash")
        .args(["-c", script])
        .current_dir(&dir)
        .output()
        .unwrap();
    eventually(|| {
        support::make_cold(&dir);
        let flags = ["--budget", "6M", "--report=r.json"];
        let ours = outrider_run(&dir, &flags, &["bash", "-c", script])
            .output()
            .unwrap();
        assert_eq!(ours.stdout, plain.stdout);
        let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
        let total = |field: &str| report["totals"][field].as_u64().unwrap();
        let peak = total("peak_unused_bytes");
        assert!(
            peak <= BUDGET + PROCESSES * CHUNK,
            "{peak} bytes were prefetched and not read at one time: {report:#}"
        );
        // It was needed, or the bound shows nothing.
        let files = report["files"].as_array().unwrap();
        let fetched = files
            .iter()
            .filter(|f| f["prefetched_bytes"].as_u64().unwrap() > 0)
            .count() as u64;
        if fetched == PROCESSES && peak > BUDGET / 4 && total("prefetched_bytes") > 2 * BUDGET {
            Ok(())
        } else {
            Err(format!("too little was prefetched: {report:#}"))
        }
    });
}

/// CP10: of a large file that is being read the least recently used ranges go under pressure, and before what was read last.
#[test]
fn ranges_of_a_large_file_make_room() {
    // What is known of a file is kept in nodes of at most 64 MiB, which are these ranges.
    const SIZE: u64 = 256 << 20;
    const RANGE: u64 = 64 << 20;
    const NAME: &str = "ranges_of_a_large_file_make_room";
    // Holds a quarter of the group's memory, and reads the file from its end, slowly.
    const SCRIPT: &str = "import os, sys, time
held = bytearray(128 << 20)
fd = os.open('file', os.O_RDONLY)
for at in range((256 << 20) - 16384, -1, -16384):
    os.pread(fd, 16384, at)
    if at % (1 << 20) == 0: time.sleep(0.02)
print(flush=True)
sys.stdin.read()
";
    let group = match Group::new(512 << 20) {
        Ok(group) => group,
        Err(reason) => return support::skip_unprivileged(NAME, &reason),
    };
    let dir = fresh(NAME);
    let path = dir.join("file");
    let config = "budget.high_watermark = 0.9\nreclaim.inactive_after_s = 2\n";
    fs::write(dir.join("config.toml"), config).unwrap();
    make(&path, 19, SIZE as usize);
    let cached = |range| {
        // Kept open it would count as in use.
        let file = File::open(&path).unwrap();
        let pages = outrider_sys::cache::cached_pages(file.as_fd(), range);
        pages.unwrap() * outrider_sys::units::PAGE
    };
    eventually(|| {
        let file = File::open(&path).unwrap();
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let flags = ["--config=config.toml"];
        let run = outrider_run(&dir, &flags, &["python3", "-c", SCRIPT]);
        let mut child = group
            .start(&run)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let (old, new) = (cached(SIZE - RANGE..SIZE), cached(0..RANGE / 2));
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        match old < RANGE / 8 && new > RANGE / 2 - (1 << 20) {
            true => Ok(()),
            false => Err(format!(
                "{old} bytes of what was read first are cached, {new} of what was read last"
            )),
        }
    });
}
