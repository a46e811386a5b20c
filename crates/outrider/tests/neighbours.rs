//! Who else reads from a disk beside hints and walks of ours, by the record of an emulated disk, in requests and bytes and never in time.
//!
//! SPEC DR7 (a foreign reader is not stalled), B12 (bounded regret).

mod support;

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use outrider_sys::extent::extents;
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::Value;
use support::{Disk, Random, eventually, fresh, outrider, outrider_run, program};

const PAGE: u64 = 4096;

/// A read that reached the disk: µs when it came and when it was answered, offset and length, bytes.
#[derive(Clone, Copy)]
struct Request {
    came: f64,
    done: f64,
    offset: u64,
    length: u64,
}

/// What a disk has recorded.
fn recorded(trace: &Path) -> Vec<Request> {
    let text = fs::read_to_string(trace).unwrap();
    let request = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [came, done, "R", offset, length] = words[..] else {
            return None;
        };
        Some(Request {
            came: came.parse().unwrap(),
            done: done.parse().unwrap(),
            offset: offset.parse().unwrap(),
            length: length.parse().unwrap(),
        })
    };
    text.lines().filter_map(request).collect()
}

/// Where a file lies on its disk, bytes.
fn places(file: &Path) -> Vec<Range<u64>> {
    let file = File::open(file).unwrap();
    file.sync_all().unwrap();
    let map = extents(file.as_fd(), 0..u64::MAX, usize::MAX).unwrap();
    let place = |e: &outrider_sys::extent::Extent| e.physical..e.physical + e.len;
    map.extents.iter().map(place).collect()
}

/// Bytes of others that each read of a page of the foreign file has found on their way, from `after` µs behind the first request elsewhere on, in ascending order.
fn found_ahead(requests: &[Request], foreign: &[Range<u64>], after: f64) -> Vec<u64> {
    let is_foreign =
        |r: &Request| r.length == PAGE && foreign.iter().any(|place| place.contains(&r.offset));
    let (theirs, ours): (Vec<Request>, Vec<Request>) = requests.iter().partition(|r| is_foreign(r));
    let from = ours.iter().find(|r| r.length > PAGE);
    let from = from.map_or(f64::MAX, |r| r.came) + after;
    let until = ours.iter().map(|r| r.done).fold(0.0, f64::max);
    let beside = theirs.iter().filter(|r| (from..until).contains(&r.came));
    let ahead = |at: f64| {
        let there = ours.iter().filter(|r| r.came <= at && at < r.done);
        there.map(|r| r.length).sum()
    };
    let mut found: Vec<u64> = beside.map(|r| ahead(r.came)).collect();
    found.sort_unstable();
    found
}

/// Of 100 in ascending order all but `but`.
fn most(found: &[u64], but: usize) -> u64 {
    let at = (found.len() * (100 - but) / 100).min(found.len().saturating_sub(1));
    found.get(at).copied().unwrap_or(0)
}

/// Reads pages of a file past the cache, one after the other in no order, until `over`.
fn read_pages(file: &Path, over: &AtomicBool) {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(CWD, file, flags, Mode::empty()).unwrap());
    let pages = file.metadata().unwrap().len() / PAGE;
    let mut memory = vec![0u8; 2 * PAGE as usize];
    let skip = memory.as_ptr().align_offset(PAGE as usize);
    let page = &mut memory[skip..][..PAGE as usize];
    let mut at = 0;
    while !over.load(Ordering::Relaxed) {
        at = (at + 2731) % pages;
        file.read_exact_at(page, at * PAGE).unwrap();
    }
}

/// A disk that is slow enough for what is on its way to tell something, with a file that others read; and where that lies.
fn disk(name: &str, dir: &Path) -> Option<(Disk, Vec<Range<u64>>)> {
    let disk = Disk::of(name, dir)?;
    let foreign = disk.dir.join("foreign");
    fs::write(&foreign, Random(1).bytes(32 << 20)).unwrap();
    let places = places(&foreign);
    Some((disk, places))
}

/// A tree of files of `each` bytes.
fn plant(tree: &Path, files: usize, each: usize) {
    let mut random = Random(2);
    for i in 0..files {
        let dir = tree.join((i / 40).to_string());
        if i % 40 == 0 {
            fs::create_dir_all(&dir).unwrap();
        }
        fs::write(dir.join(i.to_string()), random.bytes(each)).unwrap();
    }
    rustix::fs::sync();
}

/// Runs a command while a foreign reader reads, if `beside` says so: its report, and what the disk recorded.
fn run(dir: &Path, disk: &Disk, beside: bool, argv: &[&str]) -> (Value, Vec<Request>) {
    let trace = dir.join("trace");
    disk.does("cold", &[]);
    disk.does("trace", &["start", trace.to_str().unwrap()]);
    let (over, foreign) = (AtomicBool::new(false), disk.dir.join("foreign"));
    let output = std::thread::scope(|scope| {
        if beside {
            scope.spawn(|| read_pages(&foreign, &over));
        }
        let output = outrider_run(dir, &["--report=r.json"], argv).output();
        over.store(true, Ordering::Relaxed);
        output.unwrap()
    });
    disk.does("trace", &["stop"]);
    assert!(output.status.success(), "{output:?}");
    let report = fs::read(dir.join("r.json")).unwrap();
    (serde_json::from_slice(&report).unwrap(), recorded(&trace))
}

/// DR7: hints of 8 MiB that the kernel carries out hide no foreign reader, and of pages that were cached when they were asked for nothing is learned about the disk: a stream
/// beside them has no more on its way before his reads than half a MiB, and the disk is taken for no faster than it can be.
#[test]
fn hints_hide_no_neighbour_from_a_stream() {
    const NAME: &str = "hints_hide_no_neighbour";
    /// The emulated disk's link, 10⁶ bytes/s.
    const LINK: u64 = 1000;
    let dir = fresh(NAME);
    let Some((disk, foreign)) = disk(NAME, &dir) else {
        return;
    };
    fs::write(disk.dir.join("hinted"), Random(3).bytes(24 << 20)).unwrap();
    let file = disk.dir.join("file");
    fs::write(&file, Random(5).bytes(128 << 20)).unwrap();
    let file = places(&file);
    disk.does("model", &["remote"]);
    let script = "\"$0\" disk/hinted 1000000 & hints=$!
for round in 1 2 3 4 5; do
    dd if=disk/file of=/dev/null bs=64k status=none
    dd if=disk/file iflag=nocache count=0 status=none
done
kill $hints";
    let hints = program("hints");
    eventually(|| {
        let argv = ["sh", "-c", script, hints.to_str().unwrap()];
        let (report, mut requests) = run(&dir, &disk, true, &argv);
        // What the kernel has on its way for the hints it has without us, too.
        let is = |r: &Request, of: &[Range<u64>]| of.iter().any(|p| p.contains(&r.offset));
        requests.retain(|r| is(r, &file) || is(r, &foreign));
        let found = found_ahead(&requests, &foreign, 100e3);
        let ahead = most(&found, 2);
        let devices = report["devices"].as_array().unwrap().iter();
        let told = devices.map(|d| d["bandwidth_mb_s"].as_u64().unwrap_or(0));
        let told = told.max().unwrap_or(0);
        if ahead <= 512 << 10 && found.len() > 100 && told <= 3 * LINK / 2 {
            Ok(())
        } else {
            Err(format!(
                "{ahead} bytes of the stream ahead of {} reads, {told} MB/s: {report}",
                found.len()
            ))
        }
    });
}

/// DR7: beside a foreign reader a walk has no more on its way than a stream may, 640 KiB (360 KiB on a quiet machine), and not as many files as it has
/// threads.
#[test]
fn a_walk_leaves_a_neighbour_his_turn() {
    const NAME: &str = "a_walk_leaves_a_neighbour_his_turn";
    let dir = fresh(NAME);
    let Some((disk, foreign)) = disk(NAME, &dir) else {
        return;
    };
    // Each a page less than what is fetched whole.
    plant(&disk.dir.join("tree"), 1600, 60 << 10);
    disk.does("model", &["remote"]);
    eventually(|| {
        let argv = ["grep", "-rc", "no such line", "disk/tree"];
        let argv = ["sh", "-c", "\"$@\" >/dev/null; true", "sh"]
            .iter()
            .chain(&argv)
            .copied()
            .collect::<Vec<_>>();
        let (report, requests) = run(&dir, &disk, true, &argv);
        let found = found_ahead(&requests, &foreign, 100e3);
        let ahead = most(&found, 1);
        let fetched = report["totals"]["files_ahead"].as_u64().unwrap();
        if ahead <= 640 << 10 && found.len() > 100 && fetched > 100 {
            Ok(())
        } else {
            Err(format!(
                "{ahead} bytes ahead of {} reads: {report}",
                found.len()
            ))
        }
    });
}

/// Reads a file in order.
fn streams(name: &str) -> Vec<String> {
    let input = format!("if=disk/{name}");
    ["dd", &input, "of=/dev/null", "bs=64k", "status=none"]
        .map(String::from)
        .to_vec()
}

/// Reads a file's blocks of 4 KiB in an order that it has declared.
fn declares(name: &str) -> Vec<String> {
    let work = outrider().with_file_name("outrider-work");
    let work = work.to_str().unwrap();
    [work, "planned", "--declare", &format!("disk/{name}")]
        .map(String::from)
        .to_vec()
}

/// Two runs that read a file each at the same time, beside a foreign reader if `beside` says so: what the disk recorded.
fn run_two(dir: &Path, disk: &Disk, beside: bool, reads: fn(&str) -> Vec<String>) -> Vec<Request> {
    let trace = dir.join("trace");
    disk.does("cold", &[]);
    disk.does("trace", &["start", trace.to_str().unwrap()]);
    let (over, foreign) = (AtomicBool::new(false), disk.dir.join("foreign"));
    std::thread::scope(|scope| {
        if beside {
            scope.spawn(|| read_pages(&foreign, &over));
        }
        let runs = ["one", "two"].map(|name| {
            let argv = reads(name);
            let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
            let mut run = outrider_run(dir, &[], &argv);
            run.stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        });
        let ends = runs.map(|mut run| run.wait().unwrap());
        over.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(|end| end.success()), "{ends:?}");
    });
    disk.does("trace", &["stop"]);
    recorded(&trace)
}

/// Two runs don't take each other for a stranger, beside whom either would have half a MiB on its way at most, and share what one of them would have; a
/// foreign reader beside both is seen by both, within `sight` µs. The disk's link has `link` 10⁶ bytes/s.
fn two_share(name: &str, reads: fn(&str) -> Vec<String>, sight: f64, link: u32) {
    let dir = fresh(name);
    let Some((disk, foreign)) = disk(name, &dir) else {
        return;
    };
    for name in ["one", "two"] {
        fs::write(disk.dir.join(name), Random(7).bytes(96 << 20)).unwrap();
    }
    let files = ["one", "two"]
        .map(|name| places(&disk.dir.join(name)))
        .concat();
    // Slow, so that both read beside each other for as long as it takes to see that.
    disk.does("model", &["remote", &format!("bandwidth_mbs={link}")]);
    eventually(|| {
        let mut requests = run_two(&dir, &disk, false, reads);
        requests.retain(|r| files.iter().any(|place| place.contains(&r.offset)));
        // Bytes of both that are on their way when one of them is asked for more.
        let from = 100e3 + requests.first().map_or(0.0, |r| r.came);
        let ahead = |at: f64| {
            let there = requests.iter().filter(|r| r.came < at && at < r.done);
            there.map(|r| r.length).sum::<u64>()
        };
        let came = requests.iter().filter(|r| r.came > from);
        let mut found: Vec<u64> = came.map(|r| ahead(r.came)).collect();
        found.sort_unstable();
        let ahead = most(&found, 25);
        match ahead >= 1280 << 10 {
            true => Ok(()),
            false => Err(format!("{ahead} bytes of both on their way")),
        }
    });
    eventually(|| {
        let requests = run_two(&dir, &disk, true, reads);
        let found = found_ahead(&requests, &foreign, sight);
        let ahead = most(&found, 5);
        match ahead <= 1280 << 10 && found.len() > 100 {
            true => Ok(()),
            false => Err(format!("{ahead} bytes ahead of {} reads", found.len())),
        }
    });
}

/// Design, "one machine, one budget", and DR7: two runs of one user share a disk, and both see a foreign reader.
#[test]
fn runs_are_no_strangers() {
    two_share("runs_are_no_strangers", streams, 100e3, 250);
}

/// The same of what two programs have declared, on a link so slow that the processors are not what bounds them.
#[test]
fn declared_lists_are_no_strangers() {
    two_share("declared_lists_are_no_strangers", declares, 300e3, 100);
}

/// DR7: a declared list yields to a foreign reader: it has no more on its way before his reads than half a MiB, once he was seen.
#[test]
fn a_declared_list_leaves_a_neighbour_his_turn() {
    const NAME: &str = "a_declared_list_leaves_a_neighbour_his_turn";
    let dir = fresh(NAME);
    let Some((disk, foreign)) = disk(NAME, &dir) else {
        return;
    };
    fs::write(disk.dir.join("one"), Random(7).bytes(192 << 20)).unwrap();
    disk.does("model", &["remote", "bandwidth_mbs=250"]);
    eventually(|| {
        let argv = declares("one");
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let (report, requests) = run(&dir, &disk, true, &argv);
        let found = found_ahead(&requests, &foreign, 300e3);
        let ahead = most(&found, 5);
        let declared = report["declared"].clone();
        if ahead <= 512 << 10 && found.len() > 100 {
            Ok(())
        } else {
            Err(format!(
                "{ahead} bytes ahead of {} reads: {declared}",
                found.len()
            ))
        }
    });
}
