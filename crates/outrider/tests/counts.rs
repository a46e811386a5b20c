//! What Outrider does and what it costs, in numbers of things that happened and never in time.
//!
//! SPEC CP4 (what is cached is not asked for), CP14 (threads on one file), B11 (dense random reads), CP11 (memory-mapped files).

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use outrider_sys::cache::cachestat;
use outrider_sys::extent::extents;
use serde_json::Value;
use support::{Disk, Kept, Random, eventually, fresh, gives_up, outrider, outrider_run, program};

/// The totals of a run's report, and what it printed.
fn run(dir: &Path, argv: &[&str]) -> (Value, Vec<u8>) {
    let output = outrider_run(dir, &["--report=r.json"], argv)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    (report(dir)["totals"].clone(), output.stdout)
}

/// The report that a run has left in `dir`.
fn report(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap()
}

fn number(totals: &Value, field: &str) -> u64 {
    totals[field].as_u64().unwrap()
}

/// Bytes read that were told of.
fn counted(totals: &Value) -> u64 {
    let fields = ["hit_bytes", "late_bytes", "cached_bytes", "miss_bytes"];
    fields.iter().map(|f| number(totals, f)).sum()
}

/// Reads of what is cached cost next to nothing, however many there are: nobody is told, and no helper is started.
#[test]
fn cached_files_are_hardly_listened_to() {
    const PASSES: u64 = 128;
    const READS: u64 = PASSES * ((32 << 20) >> 14);
    /// Runs a program, ends as it does, and says at last how often it was taken off its processor.
    const PREEMPTED: &str = "import os, resource, sys
status = os.spawnv(os.P_WAIT, sys.argv[1], sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_nivcsw)
sys.exit(status)";
    let dir = fresh("cached_files");
    let file = dir.join("file");
    fs::write(&file, Random(7).bytes(32 << 20)).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    let reader = program("parallel_seq").display().to_string();
    for (threads, descriptors) in [("1", "one"), ("4", "one"), ("4", "each")] {
        eventually(|| {
            let _kept = Kept::cached(&file);
            let passes = PASSES.to_string();
            let argv = ["python3", "-c", PREEMPTED];
            let argv = [&argv[..], &[&reader, "file", threads, descriptors, &passes]].concat();
            let (totals, printed) = run(&dir, &argv);
            let printed = String::from_utf8(printed).unwrap();
            let preempted: u64 = printed.lines().last().unwrap().parse().unwrap();
            let told = number(&totals, "events") + number(&totals, "events_dropped");
            let resident = number(&totals, "resident_bytes") >> 14;
            // Who is taken off his processor looks like one who waits for a disk: four times at once, and he tells until the service has its turn.
            if told <= (READS / 256).max(16 * preempted)
                && resident + 64 * preempted > READS * 9 / 10
            {
                Ok(())
            } else {
                Err(format!(
                    "{threads} threads, {descriptors} descriptor, taken off {preempted} times: {told} of {READS} reads were told: {totals}"
                ))
            }
        });
    }
}

/// B15: of short files that are read as soon as they are open, so that nothing can come in time, ever fewer are told of: hearing them costs the program processors.
#[test]
fn short_files_that_are_read_at_once_are_hardly_listened_to() {
    const FILES: usize = 2000;
    let dir = fresh("short_files");
    fs::create_dir(dir.join("images")).unwrap();
    let bytes = Random(9).bytes(96 << 10);
    for i in 0..FILES {
        fs::write(dir.join(format!("images/{i}")), &bytes).unwrap();
    }
    fs::write(dir.join("o.toml"), "[files]\nwalk = false\n").unwrap();
    let source = "import os, random
names = sorted(os.listdir('images'))
random.Random(4).shuffle(names)
print(sum(len(open('images/' + name, 'rb').read()) for name in names))";
    eventually(|| {
        support::make_cold(&dir.join("images"));
        let flags = ["--report=r.json", "--config=o.toml"];
        let output = outrider_run(&dir, &flags, &["python3", "-c", source]).output();
        let printed = output.unwrap().stdout;
        assert_eq!(printed, format!("{}\n", FILES * bytes.len()).as_bytes());
        let totals = &report(&dir)["totals"];
        let told = number(totals, "events") + number(totals, "events_dropped");
        // An open, a read and a close of each would be 6000.
        match told < FILES as u64 / 10 {
            true => Ok(()),
            false => Err(format!("{told} events of {FILES} files: {totals}")),
        }
    });
}

/// Design, "hot-cache programs pay nothing measurable": of a program whose file is cached no helper is started, where nobody wants a report.
#[test]
fn cached_files_start_no_helper() {
    let dir = fresh("no_helper");
    fs::write(dir.join("file"), Random(8).bytes(8 << 20)).unwrap();
    let script = "cat file | cksum; read -r all </proc/$PPID/task/$PPID/children; echo $all";
    eventually(|| {
        let _kept = Kept::cached(&dir.join("file"));
        let printed = support::printed(&mut outrider_run(&dir, &[], &["sh", "-c", script]));
        let children = printed.lines().last().unwrap().split(' ').count();
        match children {
            1 => Ok(()),
            n => Err(format!("{n} children of the runner's")),
        }
    });
}

/// CP4, and design, "hot-cache programs pay nothing measurable", where cachestat(2) tells nothing: of a file of an overlay that is cached hardly anybody is told; who waits for other things meanwhile is hardly listened to; and that its pages have gone is noticed.
#[test]
fn cached_files_of_an_overlay_are_hardly_listened_to() {
    const SIZE: u64 = 64 << 20;
    const SCRIPT: &str = "import os, sys
for unwanted in sys.argv[1:]:
    fd = os.open('mnt/file', os.O_RDONLY)
    while os.read(fd, 16384): pass
    lower = os.open('lower/file', os.O_RDONLY)
    if unwanted == 'drop': os.posix_fadvise(lower, 0, 0, os.POSIX_FADV_DONTNEED)
";
    let name = "cached_files_of_an_overlay";
    if !support::is_root() {
        return support::skip_unprivileged(name, "only root may mount");
    }
    let dir = fresh(name);
    // Who reads from a disk as quick as memory waits for nothing, and nothing is noticed.
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    for made in ["disk/lower", "none", "mnt"] {
        fs::create_dir(dir.join(made)).unwrap();
    }
    std::os::unix::fs::symlink("disk/lower", dir.join("lower")).unwrap();
    let file = dir.join("lower/file");
    fs::write(&file, Random(9).bytes(SIZE as usize)).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    disk.does("model", &["remote"]);
    let script = "mount -t overlay -o lowerdir=lower:none overlay mnt";
    let _mounted = match support::Mounted::by(script, &dir) {
        Ok(mounted) => mounted,
        Err(said) => return support::skip(name, &format!("an overlay can't be mounted: {said}")),
    };
    let resident = |argv: &[&str], most: u64| {
        eventually(|| {
            fs::read(&file).unwrap();
            let (totals, _) = run(&dir, argv);
            let told = number(&totals, "events") + number(&totals, "events_dropped");
            if told <= most && number(&totals, "resident_bytes") > SIZE / 2 {
                Ok(())
            } else {
                Err(format!("{argv:?}: {totals}"))
            }
        });
    };
    resident(&["python3", "-c", SCRIPT, "keep"], SIZE / 16384 / 64);
    resident(
        &["dd", "if=mnt/file", "of=/dev/null", "bs=4K"],
        SIZE / 4096 / 64,
    );
    // A pipe is waited for all the time: the helper looks once.
    resident(
        &["sh", "-c", "dd if=mnt/file bs=4K | cksum"],
        SIZE / 4096 / 2,
    );
    eventually(|| {
        fs::read(&file).unwrap();
        let (totals, _) = run(&dir, &["python3", "-c", SCRIPT, "drop", "keep"]);
        let [resident, told] = ["resident_bytes", "events"].map(|f| number(&totals, f));
        if resident > SIZE * 9 / 10 && resident < SIZE * 5 / 4 && told > 0 {
            Ok(())
        } else {
            Err(totals.to_string())
        }
    });
}

/// CP1, must 5: a stream that was opened before a fork is followed in the child, too.
#[test]
fn streams_are_followed_in_children() {
    let dir = fresh("streams_in_children");
    fs::write(dir.join("file"), Random(6).bytes(16 << 20)).unwrap();
    let reader = program("forked_stream").display().to_string();
    eventually(|| {
        support::make_cold(&dir);
        let (totals, _) = run(&dir, &[&reader, "file"]);
        match counted(&totals) + number(&totals, "resident_bytes") {
            bytes if bytes > 15 << 20 => Ok(()),
            bytes => Err(format!("{bytes} bytes of 16 MiB: {totals}")),
        }
    });
}

/// CP13: reads that were on their way to the helper when it asked to hear rarely are counted once each.
#[test]
fn no_more_is_counted_than_was_read() {
    const SCRIPT: &str = "import os, random, time
file = os.open('file', os.O_RDONLY)
for reads, pause in (2000, 0.3), (100, 0):
    for _ in range(reads):
        os.pread(file, 4096, random.randrange(4096) * 4096)
    time.sleep(pause)
";
    let dir = fresh("no_more_is_counted");
    fs::write(dir.join("file"), Random(5).bytes(16 << 20)).unwrap();
    eventually(|| {
        let output = outrider_run(
            &dir,
            &["--report=r.json", "--mode=fetchall+opt"],
            &["python3", "-c", SCRIPT],
        )
        .output()
        .unwrap();
        assert!(output.status.success(), "{output:?}");
        let report = report(&dir);
        let file = report["files"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["path"].as_str().unwrap().ends_with("/file"))
            .unwrap();
        let counted = counted(file);
        if counted > 0 && counted <= 2100 * 4096 {
            Ok(())
        } else {
            Err(format!("{counted} bytes of 2100 reads: {report}"))
        }
    });
}

/// CP13: of what a stream reads while the helper gets no processor, until the file is closed, all is counted, and nothing twice.
#[test]
fn what_is_heard_too_late_is_counted_once() {
    const SCRIPT: &str = "import os, signal, sys, time
file = os.open(sys.argv[1], os.O_RDONLY)
for _ in range(32):
    os.read(file, 131072)
    time.sleep(0.002)
runner = os.getppid()
children = open(f'/proc/{runner}/task/{runner}/children').read().split()
helper = [int(child) for child in children if int(child) != os.getpid()][0]
os.kill(helper, signal.SIGSTOP)
while os.read(file, 131072):
    pass
os.close(file)
os.kill(helper, signal.SIGCONT)
";
    const SIZE: u64 = 96 << 20;
    let dir = fresh("heard_too_late");
    let Some(disk) = Disk::of("what_is_heard_too_late_is_counted_once", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, Random(9).bytes(SIZE as usize)).unwrap();
    disk.does("model", &["remote"]);
    eventually(|| {
        disk.does("cold", &[]);
        let (totals, _) = run(&dir, &["python3", "-c", SCRIPT, file.to_str().unwrap()]);
        let all = counted(&totals) + number(&totals, "resident_bytes");
        if all.abs_diff(SIZE) <= 16 << 20 && number(&totals, "events") > 64 {
            Ok(())
        } else {
            Err(format!("{all} bytes of {SIZE}: {totals}"))
        }
    });
}

/// CP13: what was opened, read and closed before the service could hear of it is counted as it was.
#[test]
fn what_is_heard_of_after_its_close_is_counted() {
    const SCRIPT: &str = "import os
def read(name):
    file = os.open(name, os.O_RDONLY)
    while os.read(file, 65536): pass
    os.close(file)
read('0')
runner = os.getppid()
children = open(f'/proc/{runner}/task/{runner}/children').read().split()
service = [int(child) for child in children if int(child) != os.getpid()][0]
os.kill(service, 19)
for name in '123': read(name)
os.kill(service, 18)
";
    const SIZE: usize = 600_001;
    let dir = fresh("after_its_close");
    let names = ["0", "1", "2", "3"];
    for name in names {
        fs::write(dir.join(name), vec![1; SIZE]).unwrap();
    }
    for _ in 0..3 {
        for name in names {
            support::make_cold(&dir.join(name));
        }
        run(&dir, &["python3", "-IS", "-c", SCRIPT]);
        let report = report(&dir);
        let read = number(&report["processes"][0], "bytes_read");
        assert_eq!(read, (names.len() * SIZE) as u64, "{report:#}");
    }
}

/// CP12: of files that are read to their ends, one quickly after the other through the same descriptor, cold and cached, all is counted, nothing twice, and
/// nothing that was fetched for them as wasted; what a program asks for in vain before it reads is not.
#[test]
fn what_is_read_to_its_end_is_counted() {
    const FILES: u64 = 8;
    const SIZE: u64 = 8 << 20;
    let dir = fresh("read_to_its_end");
    let names: Vec<String> = (0..FILES).map(|i| format!("file{i}")).collect();
    let mut random = Random(13);
    for name in &names {
        fs::write(dir.join(name), random.bytes(SIZE as usize)).unwrap();
    }
    let elsewhere = PathBuf::from(format!("/dev/shm/outrider-{}", std::process::id()));
    // From cat(1) the kernel refuses to copy between file systems.
    let copied = format!("exec cat \"$@\" >{}", elsewhere.display());
    let programs: [&[&str]; 4] = [
        &["head", "-c", "1G"],
        &["md5sum"],
        &["tac"],
        &["sh", "-c", &copied, "sh"],
    ];
    for program in programs {
        let argv: Vec<&str> = program
            .iter()
            .copied()
            .chain(names.iter().map(String::as_str))
            .collect();
        for cached in [false, true] {
            eventually(|| {
                if !cached {
                    support::make_cold(&dir);
                }
                let (totals, _) = run(&dir, &argv);
                let counted = counted(&totals) + number(&totals, "resident_bytes");
                let wasted = number(&totals, "wasted_bytes");
                let off = counted.abs_diff(FILES * SIZE);
                if off < FILES * SIZE / 20 && wasted < FILES * SIZE / 20 {
                    Ok(())
                } else {
                    Err(format!(
                        "{argv:?}: {counted} bytes counted of {}: {totals}",
                        FILES * SIZE
                    ))
                }
            });
        }
    }
    let _ = fs::remove_file(elsewhere);
}

/// CP1: a file that isn't cached is followed by whatever function of the C library it is read, also by the fortified and the unlocked ones.
#[test]
fn every_function_is_heard() {
    const LINES: u64 = 160_000;
    const SIZE: u64 = LINES * 64;
    const NAMES: &str = "fread fread_unlocked __fread_chk __fread_unlocked_chk fgetc fgetc_unlocked getc getc_unlocked _IO_getc fgetwc fgetwc_unlocked getwc \
        getwc_unlocked fgets fgets_unlocked __fgets_chk __fgets_unlocked_chk getline getdelim __getdelim fscanf __isoc99_fscanf read __read __read_chk pread pread64 \
        __pread_chk __pread64_chk readv preadv preadv64 preadv2 preadv64v2 splice sendfile sendfile64 copy_file_range";
    let dir = fresh("every_function");
    let file = dir.join("file");
    let text: String = (0..LINES).map(|i| format!("{i:063}\n")).collect();
    fs::write(&file, text).unwrap();
    let reader = program("names").display().to_string();
    for name in NAMES.split_ascii_whitespace() {
        eventually(|| {
            support::make_cold(&dir);
            let output =
                outrider_run(&dir, &["--report=r.json"], &[&reader, "file", name]).output();
            let output = output.unwrap();
            if output.status.code() == Some(77) {
                // Not on every system; most are.
                assert!(name.starts_with('_'), "{name}: {output:?}");
                return Ok(());
            }
            assert_eq!(
                output.stdout,
                format!("{SIZE}\n").as_bytes(),
                "{name}: {output:?}"
            );
            let totals = report(&dir)["totals"].clone();
            let counted = counted(&totals) + number(&totals, "resident_bytes");
            match counted > 0 && counted.abs_diff(SIZE) < SIZE / 20 {
                true => Ok(()),
                false => Err(format!(
                    "{name}: {counted} of {SIZE} bytes counted: {totals}"
                )),
            }
        });
    }
}

/// CP13: what a process reads of a file that isn't cached is counted as it is, in all and of the process, though most of it is agreed to go untold, and though
/// the file is cached again before it ends.
#[test]
fn patterns_are_counted_as_they_are_read() {
    const SIZE: u64 = 64 << 20;
    const READ: u64 = 16 << 10;
    let dir = fresh("counted_patterns");
    fs::write(dir.join("file"), Random(41).bytes(SIZE as usize)).unwrap();
    let script = "import os, random, sys
n = 4096
order = {'none': [], 'forward': range(n), 'backward': range(n - 1, -1, -1), 'stride': range(0, n, 4),
    'random': random.Random(1).sample(range(n), n)}[sys.argv[1]]
fd = os.open('file', os.O_RDONLY)
for at in order:
    os.pread(fd, 16384, at * 16384)
";
    // What Python reads for itself is the same each time.
    let read_by = |pattern: &str| {
        let (totals, _) = run(&dir, &["python3", "-c", script, pattern]);
        let process = report(&dir)["processes"][0].clone();
        let of_process = ["reads", "bytes_read"].map(|f| number(&process, f));
        (
            counted(&totals) + number(&totals, "resident_bytes"),
            of_process,
        )
    };
    let (own, [own_reads, own_bytes]) = read_by("none");
    for (pattern, reads) in [
        ("forward", SIZE / READ),
        ("backward", SIZE / READ),
        ("stride", SIZE / READ / 4),
        ("random", SIZE / READ),
    ] {
        eventually(|| {
            support::make_cold(&dir);
            let (all, [of_process, bytes]) = read_by(pattern);
            let off = [
                all.abs_diff(own + reads * READ) / READ,
                bytes.abs_diff(own_bytes + reads * READ) / READ,
                of_process.abs_diff(own_reads + reads),
            ];
            match off.iter().all(|off| *off <= reads / 50) {
                true => Ok(()),
                false => Err(format!(
                    "{pattern}: of {reads} reads off by {off:?}: {:#}",
                    report(&dir)
                )),
            }
        });
    }
}

/// CP1, CP12: a read at a position that several descriptors share counts from where it began, also where that is known only after it.
#[test]
fn what_is_read_at_a_shared_position_is_counted() {
    const SIZE: u64 = 8 << 20;
    let dir = fresh("shared_position");
    fs::write(dir.join("file"), Random(17).bytes(SIZE as usize)).unwrap();
    for call in ["readv(other, part)", "preadv(other, part, -1)"] {
        let script = format!(
            "import os
fd = os.open('file', os.O_RDONLY)
other = os.dup(fd)
part = [bytearray({SIZE} // 4), bytearray({SIZE} // 4)]
assert [os.{call} for _ in range(3)] == [{SIZE} // 2, {SIZE} // 2, 0]
"
        );
        eventually(|| {
            support::make_cold(&dir);
            let (totals, _) = run(&dir, &["python3", "-c", &script]);
            let counted = counted(&totals) + number(&totals, "resident_bytes");
            match counted.abs_diff(SIZE) < SIZE / 20 {
                true => Ok(()),
                false => Err(format!("{call}: {counted} bytes counted: {totals}")),
            }
        });
    }
}

/// CP4: where the cached part of a file ends is noticed, and the rest of it is fetched ahead.
#[test]
fn what_is_no_longer_cached_is_told() {
    let dir = fresh("no_longer_cached");
    // How far the kernel reads ahead by itself is known there: where that is far, such streams are left to it.
    let Some(disk) = Disk::of("what_is_no_longer_cached_is_told", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, Random(8).bytes(64 << 20)).unwrap();
    let script = "import os
fd = os.open('disk/file', os.O_RDONLY)
os.posix_fadvise(fd, 32 << 20, 0, os.POSIX_FADV_DONTNEED)
for _ in range((44 << 20) // 16384): os.read(fd, 16384)
";
    disk.does("model", &["remote"]);
    // Not to the end: all of the file would be cached again before, and the rest of it left to the hooks.
    eventually(|| {
        let whole = File::open(&file).unwrap();
        whole.sync_all().unwrap();
        fs::read(&file).unwrap();
        let (totals, _) = run(&dir, &["python3", "-c", script]);
        let (resident, missed, told) = (
            number(&totals, "resident_bytes"),
            number(&totals, "miss_bytes"),
            number(&totals, "events"),
        );
        // The end of the cached half is seen 16 MB before it is reached.
        if resident > 8 << 20 && resident < 20 << 20 && told > 0 && missed < 16 << 20 {
            Ok(())
        } else {
            Err(totals.to_string())
        }
    });
}

/// Design, "hot-cache programs pay nothing measurable"; CP5 (the view follows what others do to the cache): a file of which pages go in
/// the middle of a run is left to the hooks again. One page that nobody reads makes no difference, and of a half of the file is
/// told until it has been read again.
#[test]
fn files_that_are_cached_again_are_hardly_listened_to() {
    const SIZE: u64 = 32 << 20;
    const PASSES: u64 = 32;
    const READS: u64 = PASSES * (SIZE >> 14);
    let dir = fresh("cached_again");
    let name = dir.join("file");
    fs::write(&name, Random(12).bytes(SIZE as usize)).unwrap();
    let script = "import os, random, sys
fd = os.open('file', os.O_RDONLY)
blocks = list(range(0, (32 << 20) - 65536, 16384))
if sys.argv[1] == 'random':
    random.Random(5).shuffle(blocks)
for half in range(2):
    for i in range(32):
        for at in blocks: os.pread(fd, 16384, at)
    if half == 0:
        os.write(1, b'half')
        os.read(0, 1)
";
    let page = rustix::param::page_size() as u64;
    let drop = |file: &File, lost: Range<u64>| {
        let len = std::num::NonZeroU64::new(lost.end - lost.start);
        rustix::fs::fadvise(file, lost.start, len, rustix::fs::Advice::DontNeed).unwrap();
        let left = cachestat(file.as_fd(), lost.clone()).map_err(|e| e.to_string())?;
        if left.cached == 0 {
            Ok(())
        } else {
            Err(format!("{lost:?} stays cached"))
        }
    };
    // With the most events, and the fewest of the passes after the loss in which most reads are not even told rarely.
    for (order, lost, most, passes) in [
        ("random", SIZE - page..SIZE, READS / 8, PASSES / 2),
        ("sequential", SIZE - page..SIZE, READS / 8, PASSES / 2),
        ("random", SIZE / 2..SIZE, READS / 4, PASSES / 2),
        ("sequential", SIZE / 2..SIZE, READS / 4, PASSES / 2),
    ] {
        eventually(|| {
            let file = File::open(&name).unwrap();
            file.sync_all().unwrap();
            drop(&file, 0..SIZE)?;
            // Cached in single pages, so that one can go.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
            for at in (0..SIZE).step_by(page as usize) {
                file.read_exact_at(&mut [0; 4096], at).unwrap();
            }
            let argv = ["python3", "-c", script, order];
            let mut program = outrider_run(&dir, &["--report=r.json"], &argv)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let (mut input, mut output) = (
                program.stdin.take().unwrap(),
                program.stdout.take().unwrap(),
            );
            output.read_exact(&mut [0; 4]).unwrap();
            let dropped = drop(&file, lost.clone());
            input.write_all(b"\n").unwrap();
            assert!(program.wait().unwrap().success());
            dropped?;
            let report = report(&dir);
            let totals = &report["totals"];
            let told = number(totals, "events") + number(totals, "events_dropped");
            if told < most && number(totals, "resident_bytes") > (PASSES + passes) * SIZE {
                Ok(())
            } else {
                Err(format!(
                    "{order}, {lost:?} lost: {told} of {READS} reads were told: {totals}"
                ))
            }
        });
    }
}

/// B11, "off is a decision too": a program that reads at random, the same blocks again and again, is listened to ever less, and
/// little is fetched for it in vain.
#[test]
fn random_reads_that_nothing_helps() {
    const READS: u64 = 16384;
    let dir = fresh("random_reads");
    let file = dir.join("file");
    fs::write(&file, Random(9).bytes(256 << 20)).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    // A third of the reads goes to a hundredth of the blocks; pages are dropped, so that they go on missing.
    let script = "import os, random
random.seed(5)
fd = os.open('file', os.O_RDONLY)
for i in range(16384):
    block = random.randrange(160) * 100 if i % 3 else random.randrange(16384)
    os.pread(fd, 16384, block << 14)
    os.posix_fadvise(fd, block << 14, 16384, os.POSIX_FADV_DONTNEED)
";
    eventually(|| {
        support::make_cold(&dir);
        let (totals, _) = run(&dir, &["python3", "-c", script]);
        let told = number(&totals, "events") + number(&totals, "events_dropped");
        let in_vain = number(&totals, "wasted_bytes") + number(&totals, "evicted_bytes");
        if told < READS / 4 && in_vain < (READS << 14) / 20 {
            Ok(())
        } else {
            Err(format!("{told} of {READS} told: {totals}"))
        }
    });
}

/// CP1: a cached `pread` of 4 KiB costs at most 46 instructions more than without us, and a byte that a stream has in its buffer at most 10.
#[test]
fn a_cached_read_costs_few_instructions() {
    const READS: u64 = 50_000;
    const FIRST: u64 = 10_000;
    let name = "a_cached_read_costs_few_instructions";
    if !support::have("valgrind") {
        return support::skip(name, "valgrind is not installed");
    }
    let dir = fresh(name);
    let file = dir.join("file");
    fs::write(&file, Random(9).bytes(8 << 20)).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    for (reader, most) in [("cached_preads", 46), ("cached_getcs", 10)] {
        let reader = program(reader).display().to_string();
        // `app-only` leaves the program alone.
        let instructions = |mode: &str, reads: u64| -> u64 {
            let reads = reads.to_string();
            let argv = [
                "valgrind",
                "--tool=callgrind",
                // Neither the start nor the end, at which a program waits for the service.
                "--toggle-collect=main",
                "--callgrind-out-file=profile",
                &reader,
                "file",
                &reads,
            ];
            let mut run = outrider_run(&dir, &["--mode", mode], &argv);
            let output = run.output().unwrap();
            let told = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{told}");
            // It names the object of each function that was called: what is counted is a program with us, or without.
            let profile = fs::read_to_string(dir.join("profile")).unwrap();
            let is_with_us = profile.contains("liboutrider.so");
            assert_eq!(is_with_us, mode != "app-only", "{mode}: {told}");
            let counted = told.lines().find_map(|l| l.split_once("Collected : "));
            counted
                .unwrap_or_else(|| panic!("{told}"))
                .1
                .parse()
                .unwrap()
        };
        // The kernel may take pages away meanwhile.
        eventually(|| {
            fs::read(&file).unwrap();
            let [stock, ours] = ["app-only", "predict+opt"]
                .map(|mode| instructions(mode, FIRST + READS) - instructions(mode, FIRST));
            if ours <= stock + most * READS {
                Ok(())
            } else {
                Err(format!(
                    "{stock} instructions without us, {ours} with, for {READS} reads"
                ))
            }
        });
    }
}

/// Design, "off is a decision too": sixteen threads that read many files, and quickly, are left alone, and hardly any of their files is told of;
/// whoever reads after them is.
#[test]
fn crowds_are_left_alone_while_they_last() {
    const FILES: u64 = 128;
    const PASSES: u64 = 16;
    let dir = fresh("crowds_are_left_alone");
    let mut random = Random(11);
    for i in 0..FILES {
        fs::write(dir.join(i.to_string()), random.bytes(1 << 20)).unwrap();
    }
    fs::write(dir.join("alone"), random.bytes(32 << 20)).unwrap();
    let reader = program("crowd").display().to_string();
    let argv = [&FILES.to_string(), "16", &PASSES.to_string()];
    let argv = [&[&reader, "."], &argv[..], &["alone"]].concat();
    // Other tests may keep the machine from reading quickly.
    eventually(|| {
        support::make_cold(&dir);
        let mut plain = outrider_run(&dir, &["--mode", "app-only"], &argv);
        let plain = plain.output().unwrap().stdout;
        support::make_cold(&dir);
        let (totals, printed) = run(&dir, &argv);
        assert_eq!(printed, plain);
        let report = report(&dir);
        let files = report["files"].as_array().unwrap();
        let heard = files
            .iter()
            .find(|f| f["path"].as_str().unwrap().ends_with("/alone"))
            .map_or(0, counted);
        let told = number(&totals, "events") + number(&totals, "events_dropped");
        if told < FILES * PASSES && heard > 4 << 20 {
            Ok(())
        } else {
            Err(format!(
                "{told} events of {FILES} files read {PASSES} times, {heard} bytes of the last: {report}"
            ))
        }
    });
}

/// CP14, B11: four threads that read a file in random order make one picture of it, through one descriptor and through
/// four: it is streamed, and most reads find their data.
#[test]
fn threads_at_random_are_streamed_together() {
    const SIZE: u64 = 128 << 20;
    let dir = fresh("threads_at_random");
    let Some(disk) = Disk::of("threads_at_random_are_streamed_together", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    let bytes = Random(3).bytes(SIZE as usize);
    File::create(&file)
        .unwrap()
        .write_all_at(&bytes, 0)
        .unwrap();
    let reader = program("shared_rand").display().to_string();
    let plain = Command::new(&reader)
        .arg(&file)
        .args(["1", "one", "taken"])
        .output()
        .unwrap()
        .stdout;
    disk.does("model", &["remote"]);
    for descriptors in ["one", "each"] {
        for order in ["taken", "parts"] {
            eventually(|| {
                disk.does("cold", &[]);
                let name = file.to_str().unwrap();
                let (totals, out) = run(&dir, &[&reader, name, "4", descriptors, order]);
                assert_eq!(out, plain);
                let (missed, fetched) = (
                    number(&totals, "miss_bytes"),
                    number(&totals, "prefetched_bytes"),
                );
                if missed < SIZE / 3 && fetched > SIZE / 2 {
                    Ok(())
                } else {
                    Err(format!("{descriptors} descriptor, {order}: {totals}"))
                }
            });
        }
    }
}

/// What a reader prints by itself, and the number that this begins with.
fn alone(reader: &str, words: &[&str]) -> (Vec<u8>, u64) {
    let plain = Command::new(reader).args(words).output().unwrap().stdout;
    let reads = str::from_utf8(&plain).unwrap().split(' ').next().unwrap();
    let reads = reads.parse().unwrap();
    (plain, reads)
}

/// CP3 (the paper's states between random and sequential): reads that go onward, or backwards, and skip some blocks are foreseen where a block's way is
/// longer than to read on to it, at any steps; where it isn't, and where everything is cached, nothing is done.
#[test]
fn reads_that_skip_blocks_are_foreseen() {
    const SIZE: u64 = 128 << 20;
    let dir = fresh("reads_that_skip");
    let Some(disk) = Disk::of("reads_that_skip_blocks_are_foreseen", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, Random(5).bytes(SIZE as usize)).unwrap();
    let name = file.to_str().unwrap();
    let reader = program("skips").display().to_string();
    disk.does("model", &["remote"]);
    let cases = [("4", true), ("12", true), ("400", true), ("4", false)];
    let backwards = [("-12", true), ("-400", true), ("-4", false)];
    for (mean, cold) in cases.into_iter().chain(backwards) {
        let (plain, reads) = alone(&reader, &[name, mean, "0"]);
        let read = reads * 8192;
        eventually(|| {
            if cold {
                disk.does("cold", &[]);
            } else {
                fs::read(&file).unwrap();
            }
            let (totals, out) = run(&dir, &[&reader, name, mean, "0"]);
            assert_eq!(out, plain);
            let [hit, late, missed, fetched] =
                ["hit_bytes", "late_bytes", "miss_bytes", "prefetched_bytes"]
                    .map(|n| number(&totals, n));
            let well = match (mean, cold) {
                (_, false) => fetched < 1 << 20,
                ("400" | "-400", _) => fetched < 8 << 20,
                // What was read silently is estimated.
                _ => {
                    let counted = read / 2..read * 5 / 4;
                    counted.contains(&(hit + late)) && missed < read / 4 && fetched <= SIZE
                }
            };
            well.then_some(())
                .ok_or(format!("{mean}: {read} bytes read, {totals}"))
        });
    }
}

/// CP3: strides of any length in either direction, reverse reads, and several of them in turns on one descriptor are foreseen as what they are: little is
/// missed, and little fetched that isn't read.
#[test]
fn patterns_are_foreseen_as_what_they_are() {
    const SIZE: u64 = 128 << 20;
    const SCRIPT: &str = "import os, sys, zlib
SIZE = 128 << 20
THIRD = SIZE // 3 >> 14 << 14
def streams(what):
    if what == 'stride': return [range(0, SIZE, 65536)], 16384
    if what == 'odd stride': return [range(0, SIZE - 10000, 50001)], 10000
    if what == 'backward stride': return [range(SIZE - 16384, -1, -65536)], 16384
    if what == 'reverse': return [range(SIZE - 16384, -1, -16384)], 16384
    if what == 'interleaved':
        return [range(0, THIRD // 4, 16384), range(THIRD, 2 * THIRD, 65536), range(3 * THIRD - 16384, 2 * THIRD, -65536)], 16384
places, length = streams(sys.argv[1])
fd, sum = os.open(sys.argv[2], os.O_RDONLY), 0
for turn in zip(*places):
    for at in turn:
        sum = zlib.crc32(os.pread(fd, length, at), sum)
print(length * len(places) * min(len(p) for p in places), sum)
";
    let dir = fresh("patterns");
    let Some(disk) = Disk::of("patterns_are_foreseen_as_what_they_are", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, Random(7).bytes(SIZE as usize)).unwrap();
    let name = file.to_str().unwrap();
    disk.does("model", &["remote"]);
    for what in [
        "stride",
        "odd stride",
        "backward stride",
        "reverse",
        "interleaved",
    ] {
        let (plain, read) = alone("python3", &["-c", SCRIPT, what, name]);
        eventually(|| {
            disk.does("cold", &[]);
            let (totals, out) = run(&dir, &["python3", "-c", SCRIPT, what, name]);
            assert_eq!(out, plain, "{what}");
            let [missed, fetched, wasted] = ["miss_bytes", "prefetched_bytes", "wasted_bytes"]
                .map(|figure| number(&totals, figure));
            // Streams that end in the middle of the file were foreseen to go on.
            let ends = what == "interleaved" || wasted < read / 5;
            let known = counted(&totals).abs_diff(read) < read / 4;
            let well = missed < read / 5 && fetched > read / 4 * 3 && ends && known;
            well.then_some(())
                .ok_or(format!("{what}: {read} bytes read, {totals}"))
        });
    }
}

/// Each setting does what it says, as far as that can be counted: what it changes lies elsewhere with the defaults. (CP3, CP9, CP12; those of
/// reclaim are in the tests of memory.)
#[test]
fn settings_have_their_effect() {
    const SIZE: u64 = 128 << 20;
    const SCRIPT: &str = "import os, random, sys, time
SIZE, THIRD = 128 << 20, (128 << 20) // 3 >> 14 << 14
what, places, random = sys.argv[1], [0], random.Random(1)
if what == 'sequential': places = range(0, SIZE, 16384)
if what == 'stride': places = range(0, SIZE, 65536)
if what == 'random': places = random.sample(range(0, SIZE, 16384), SIZE >> 14)
if what == 'skips':
    places, at = [], 0
    while at < SIZE - 8192:
        places.append(at)
        at += random.randrange(1, 24) * 8192
if what == 'three':
    places = [p for i in range(THIRD >> 16) for p in (i << 14, THIRD + (i << 16), 3 * THIRD - 16384 - (i << 16))]
if what == 'near': places = [b + (p << 14) for b in random.sample(range(0, SIZE, 1 << 18), 300) for p in random.sample(range(16), 10)]
if what == 'eight': places = [p for i in range(SIZE >> 17) for p in range(i << 14, SIZE, SIZE >> 3)]
fd = os.open('disk/file', os.O_RDONLY)
for at in places: os.pread(fd, 16384, at)
# What was asked for arrives.
if what == 'first': time.sleep(0.5)
for name in sorted(os.listdir('disk/tree')) if what == 'tree' else []:
    open('disk/tree/' + name, 'rb').read()
";
    // What is read and how, the settings, and the least and the most of a figure. Who reads the first 16 KiB may be there before the kernel is asked.
    const ROWS: &str = "
sequential|predict+opt||prefetched_bytes|112M|128M
sequential|predict+opt|budget.low_watermark=1.0,budget.high_watermark=1.0|prefetched_bytes|0|0
sequential|predict+opt||events|1|1T
sequential|predict+opt|files.min_size='1G'|events|0|0
sequential|predict+opt||peak_unused_bytes|6M|128M
sequential|predict+opt|budget.high_watermark=1.0|peak_unused_bytes|1|3M
sequential|predict+opt|window.max='1M'|peak_unused_bytes|1|3M
sequential|predict+opt|budget.memory='4M'|peak_unused_bytes|1|5M
sequential|predict+opt|budget.memory='256K'|peak_unused_bytes|1|1M
sequential|predict+opt|budget.memory=0|prefetched_bytes|0|0
sequential|predict+opt|budget.memory=4095|prefetched_bytes|0|0
sequential|predict+opt|budget.memory='64T'|prefetched_bytes|112M|128M
eight|predict+opt|budget.memory=0|prefetched_bytes|0|0
random|predict+opt|budget.memory=0|prefetched_bytes|0|0
first|fetchall+opt|budget.memory=0|prefetched_bytes|0|0
tree|predict+opt|budget.memory=0|files_ahead|0|0
sequential|predict+opt|budget.memory='256K',budget.stream_minimum='8M'|peak_unused_bytes|2M|9M
sequential|predict+opt||requests|500|1050
sequential|predict+opt|engine.chunk='32K'|requests|2000|5000
sequential|predict+opt|view.cache_visibility=false|requests|1080|1T
sequential|predict+opt||used_bytes|100M|128M
sequential|predict+opt|view.range_tree='off'|used_bytes|100M|128M
sequential|predict+opt|view.cache_visibility=false|used_bytes|0|0
stride|predict+opt||used_bytes|25M|33M
stride|predict+opt|view.range_tree='coarse'|used_bytes|0|12M
stride|predict+opt||prefetched_bytes|25M|45M
stride|predict+opt||wasted_bytes|0|4M
stride|predict+opt|predict.counter_bits=8|wasted_bytes|0|4M
three|predict+opt||peak_unused_bytes|16M|128M
eight|predict+opt|budget.memory='256K',budget.stream_minimum='4M'|peak_unused_bytes|12M|40M
three|predict+opt|dense.enabled=false,predict.max_streams=2|peak_unused_bytes|0|8M
random|predict+opt||prefetched_bytes|64M|128M
random|predict+opt|dense.enabled=false|prefetched_bytes|0|12M
random|predict+opt||miss_bytes|1|8M
random|predict+opt|dense.share=0|foreseen_dense_bytes|0|0
random|predict+opt|dense.enabled=false|events|1|6000
random|predict+opt|dense.enabled=false,predict.skip_when_steady=false|events|8K|9K
sequential|predict+opt|predict.skip_when_steady=false|events|8K|9K
near|predict+opt|dense.enabled=false|used_bytes|12M|48M
near|predict+opt|dense.enabled=false,predict.random_distance='8K'|used_bytes|0|8M
near|predict|dense.enabled=false|used_bytes|0|8M
skips|predict+opt||prefetched_bytes|64M|128M
skips|predict+opt|predict.sparse=0|prefetched_bytes|0|12M
first|predict+opt||prefetched_bytes|512K|2M
first|predict+opt|window.optimistic_open='8M'|prefetched_bytes|8176K|8M
first|predict+opt|window.optimistic_open=0|prefetched_bytes|0|512K
first|fetchall+opt||prefetched_bytes|131056K|128M
first|fetchall+opt|window.whole_file_max='4M'|prefetched_bytes|4080K|4M
first|fetchall+opt|budget.share=0.5|prefetched_bytes|64M|128M
first|fetchall+opt|budget.share=0.01|prefetched_bytes|1|16M
sequential|predict+opt||foreseen_streams_bytes|100M|128M
sequential|predict+opt||foreseen_opens_bytes|1|2M
random|predict+opt||foreseen_dense_bytes|64M|128M
random|predict+opt||foreseen_streams_bytes|0|16M
near|predict+opt|dense.enabled=false|foreseen_neighbourhoods_bytes|20M|96M
first|fetchall+opt||foreseen_opens_bytes|128M|128M
tree|predict+opt||files_ahead|100|1T
tree|predict+opt|files.walk=false|files_ahead|0|0
";
    let dir = fresh("settings");
    let Some(disk) = Disk::of("settings_have_their_effect", &dir) else {
        return;
    };
    let mut random = Random(15);
    fs::write(disk.dir.join("file"), random.bytes(SIZE as usize)).unwrap();
    fs::create_dir(disk.dir.join("tree")).unwrap();
    for i in 0..400 {
        let name = format!("tree/{i:03}");
        fs::write(disk.dir.join(name), random.bytes(5000)).unwrap();
    }
    disk.does("model", &["remote"]);
    let group = support::Group::new(512 << 20);
    for row in ROWS.lines().skip(1) {
        let [what, mode, settings, figure, least, most] =
            row.split('|').collect::<Vec<_>>()[..].try_into().unwrap();
        let bounds = [least, most].map(|n| outrider_sys::size::parse(n).unwrap());
        fs::write(dir.join("config.toml"), settings.replace(',', "\n")).unwrap();
        let flags = ["--mode", mode, "--config=config.toml", "--report=r.json"];
        let mut run = outrider_run(&dir, &flags, &["python3", "-c", SCRIPT, what]);
        if settings.contains("share") {
            // Of a memory that is known.
            match &group {
                Ok(group) => run = group.start(&run),
                Err(reason) => {
                    support::skip_unprivileged(row, reason);
                    continue;
                }
            }
        }
        eventually(|| {
            disk.does("cold", &[]);
            let output = run.output().unwrap();
            assert!(output.status.success(), "{row}: {output:?}");
            let report = report(&dir);
            let found = number(&report["totals"], figure);
            match (bounds[0]..=bounds[1]).contains(&found) {
                true => Ok(()),
                false => Err(format!("{row}: {found}: {report}")),
            }
        });
    }
}

/// Settings of the workers: as many threads as may be, and their I/O priority.
#[test]
fn workers_are_as_configured() {
    const SCRIPT: &str = "import os, sys
fd = os.open('disk/file', os.O_RDONLY)
while os.read(fd, 16384): pass
print(flush=True)
sys.stdin.read()
";
    // As linux/ioprio.h has them: class << 13 | level.
    const HUMBLE: i64 = 2 << 13 | 7;
    let dir = fresh("workers");
    let Some(disk) = Disk::of("workers_are_as_configured", &dir) else {
        return;
    };
    fs::write(disk.dir.join("file"), Random(16).bytes(64 << 20)).unwrap();
    disk.does("model", &["remote"]);
    for (settings, expected) in [
        ("", vec![HUMBLE; 2]),
        ("workers = 1", vec![HUMBLE]),
        ("workers = 4", vec![HUMBLE; 4]),
        ("io_priority = 'idle'", vec![3 << 13; 2]),
        ("io_priority = 'none'", vec![]),
    ] {
        fs::write(dir.join("config.toml"), format!("[engine]\n{settings}\n")).unwrap();
        eventually(|| {
            disk.does("cold", &[]);
            let argv = ["python3", "-c", SCRIPT];
            let mut run = outrider_run(&dir, &["--config=config.toml"], &argv);
            let mut program = run
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = program.stdout.take().unwrap();
            output.read_exact(&mut [0]).unwrap();
            let helper = support::helper_of(program.id() as i32);
            let tasks = helper.map(|pid| fs::read_dir(format!("/proc/{pid}/task")));
            let set: Vec<i64> = tasks
                .into_iter()
                .flatten()
                .flatten()
                .map(|task| {
                    let thread = task.unwrap().file_name().into_string().unwrap();
                    let thread: libc::c_int = thread.parse().unwrap();
                    // SAFETY: takes numbers only; 1 is IOPRIO_WHO_PROCESS.
                    unsafe { libc::syscall(libc::SYS_ioprio_get, 1, thread) }
                })
                // Who has set none, such as the main thread, has that of its niceness or none.
                .filter(|priority| priority & 7 == 7 || priority >> 13 == 3)
                .collect();
            drop(program.stdin.take());
            assert!(program.wait().unwrap().success());
            match set == expected {
                true => Ok(()),
                false => Err(format!("{settings}: {set:?}, not {expected:?}")),
            }
        });
    }
}

/// CP13: what others drop before it is read counts as evicted, what is still on its way when it is read as late, and what is foreseen and not asked for any more
/// as dropped.
#[test]
fn late_evicted_and_dropped_bytes_are_counted() {
    const SCRIPT: &str = "import os, subprocess, sys, time
fd = os.open('disk/file', os.O_RDONLY)
for _ in range(1024): os.read(fd, 16384)
if len(sys.argv) > 1:
    # What was asked for arrives, and its end is noticed.
    time.sleep(0.5)
    subprocess.run([sys.argv[1], 'evict', 'disk/file'], stdout=subprocess.DEVNULL)
    for _ in range(1024): os.read(fd, 16384)
    time.sleep(0.5)
";
    let dir = fresh("late_evicted_dropped");
    let Some(disk) = Disk::of("late_evicted_and_dropped_bytes_are_counted", &dir) else {
        return;
    };
    fs::write(disk.dir.join("file"), Random(17).bytes(128 << 20)).unwrap();
    let command = outrider().display().to_string();
    for (model, argument, figures) in [
        ("remote", Some(command.as_str()), &["evicted_bytes"][..]),
        ("objstore", None, &["late_bytes", "dropped_bytes"]),
    ] {
        disk.does("model", &[model]);
        let argv = ["python3", "-c", SCRIPT].into_iter().chain(argument);
        let argv: Vec<&str> = argv.collect();
        eventually(|| {
            disk.does("cold", &[]);
            let (totals, _) = run(&dir, &argv);
            let counted = figures.iter().all(|figure| number(&totals, figure) > 0);
            let nobody = argument.is_some() || number(&totals, "evicted_bytes") == 0;
            match counted && nobody {
                true => Ok(()),
                false => Err(format!("{model}: {totals}")),
            }
        });
    }
}

/// CP13: whatever the pattern, what somebody drops before it is read counts as evicted, and is fetched again.
#[test]
fn what_is_evicted_is_fetched_again() {
    const SIZE: u64 = 128 << 20;
    const BLOCK: u64 = 16 << 10;
    const SCRIPT: &str = "import os, random, subprocess, sys, time
command, pattern, block, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
places = list(range(0, size, 4 * block if pattern == 'stride' else block))
if pattern == 'reverse': places.reverse()
if pattern == 'random': random.Random(3).shuffle(places)
fd = os.open('disk/file', os.O_RDONLY)
quarter = len(places) // 4
for at in places[:quarter]: os.pread(fd, block, at)
# What was asked for arrives.
time.sleep(0.5)
subprocess.run([command, 'evict', 'disk/file'], stdout=subprocess.DEVNULL)
for at in places[quarter:]: os.pread(fd, block, at)
";
    let name = "what_is_evicted_is_fetched_again";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    let mut random = Random(18);
    fs::write(disk.dir.join("file"), random.bytes(SIZE as usize)).unwrap();
    disk.does("model", &["remote"]);
    let command = outrider().display().to_string();
    let (block, size) = (BLOCK.to_string(), SIZE.to_string());
    for (pattern, read) in [("reverse", SIZE), ("stride", SIZE / 4), ("random", SIZE)] {
        let argv = ["python3", "-c", SCRIPT, &command, pattern, &block, &size];
        eventually(|| {
            disk.does("cold", &[]);
            let (totals, _) = run(&dir, &argv);
            let [evicted, missed] =
                ["evicted_bytes", "miss_bytes"].map(|figure| number(&totals, figure));
            match evicted > 0 && missed < read / 3 {
                true => Ok(()),
                false => Err(format!("{pattern}: {totals}")),
            }
        });
    }
}

/// CP5 (the view follows what others do to the cache): what somebody drops after it was read, with nobody having the file open, is fetched again by whoever
/// reads it next, and doesn't count as found.
#[test]
fn what_is_dropped_is_fetched_again() {
    const SIZE: u64 = 64 << 20;
    const ROUNDS: u64 = 3;
    const SCRIPT: &str = "for round in 1 2 3; do
    dd if=disk/file of=/dev/null bs=64k status=none
    \"$0\" evict disk/file >/dev/null
done";
    let name = "what_is_dropped_is_fetched_again";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    let mut random = Random(19);
    fs::write(disk.dir.join("file"), random.bytes(SIZE as usize)).unwrap();
    disk.does("model", &["remote"]);
    let command = outrider().display().to_string();
    eventually(|| {
        disk.does("cold", &[]);
        let (totals, _) = run(&dir, &["sh", "-c", SCRIPT, &command]);
        let fetched = number(&totals, "prefetched_bytes");
        match fetched > (ROUNDS - 1) * SIZE {
            true => Ok(()),
            false => Err(format!("{fetched} bytes fetched: {totals}")),
        }
    });
}

/// CP4: who hints each block some reads ahead is left alone: the kernel gets each hint from the program itself, and nobody is told of the
/// reads; who hints only the next block waits as without hints, and is helped as without.
#[test]
fn programs_that_hint_well_are_left_alone() {
    const SIZE: u64 = 128 << 20;
    let dir = fresh("programs_that_hint");
    let Some(disk) = Disk::of("programs_that_hint_well_are_left_alone", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, Random(6).bytes(SIZE as usize)).unwrap();
    let name = file.to_str().unwrap();
    let reader = program("skips").display().to_string();
    disk.does("model", &["remote"]);
    for ahead in ["32", "1"] {
        let (plain, reads) = alone(&reader, &[name, "6", ahead]);
        eventually(|| {
            disk.does("cold", &[]);
            let (totals, out) = run(&dir, &[&reader, name, "6", ahead]);
            assert_eq!(out, plain);
            let [told, fetched] = ["events", "prefetched_bytes"].map(|n| number(&totals, n));
            let well = match ahead {
                "32" => told < reads / 4 && fetched < 8 << 20,
                _ => fetched > SIZE / 2,
            };
            well.then_some(())
                .ok_or(format!("{ahead} ahead, {reads} reads: {totals}"))
        });
    }
}

/// CP11: what is read through a mapping is followed over all of a long file, with the scan of the page map that Linux 6.7 has and without it.
#[test]
fn mapped_files_are_followed_to_their_end() {
    const SIZE: u64 = 192 << 20;
    let dir = fresh("mapped_files");
    let Some(disk) = Disk::of("mapped_files_are_followed_to_their_end", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    let bytes = Random(4).bytes(SIZE as usize);
    fs::write(&file, &bytes).unwrap();
    let sum: u64 = bytes.iter().step_by(64 << 10).map(|b| u64::from(*b)).sum();
    let name = file.to_str().unwrap();
    let script = "import mmap, sys
f = open(sys.argv[1], 'rb')
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print(sum(m[i] for i in range(0, len(m), 1 << 16)))
";
    let deny = program("deny").display().to_string();
    let old_kernel = [&deny, "ioctl:1~0xc0606610=ENOTTY", "--"];
    disk.does("model", &["nvme"]);
    for wrapper in [&[][..], &old_kernel] {
        eventually(|| {
            disk.does("cold", &[]);
            let output = Command::new("env")
                .args(wrapper)
                .arg(outrider())
                .args(["run", "--report=r.json", "--"])
                .args(["python3", "-c", script, name])
                .current_dir(&dir)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            assert_eq!(output.stdout, format!("{sum}\n").into_bytes());
            let report = report(&dir);
            let totals = &report["totals"];
            let fetched = number(totals, "prefetched_bytes");
            // A touch every 64 KiB is not taken for a stride: what a fault maps at once would look like that only where it is cached in part.
            let requests = number(totals, "requests");
            if fetched > SIZE / 10 * 9 && requests < SIZE / (64 << 10) {
                Ok(())
            } else {
                Err(format!(
                    "{wrapper:?}: {fetched} of {SIZE} bytes fetched in {requests} requests"
                ))
            }
        });
    }
}

/// CP11: a file that was closed as soon as it was mapped (memmap2, safetensors), before the service could look, is followed in every run.
#[test]
fn files_closed_once_mapped_are_followed() {
    const SIZE: u64 = 64 << 20;
    let dir = fresh("closed_once_mapped");
    let Some(disk) = Disk::of("files_closed_once_mapped_are_followed", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    let bytes = Random(14).bytes(SIZE as usize);
    fs::write(&file, &bytes).unwrap();
    let sum: u64 = bytes.iter().step_by(64 << 10).map(|b| u64::from(*b)).sum();
    let script = "import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
size = os.stat(sys.argv[1]).st_size
fd = os.open(sys.argv[1], os.O_RDONLY)
at = libc.mmap(None, size, 1, 1, fd, 0)
os.close(fd)
print(sum((ctypes.c_ubyte * size).from_address(at)[:: 1 << 16]))
";
    disk.does("model", &["nvme"]);
    for _ in 0..6 {
        disk.does("cold", &[]);
        // A copy of the mount in another test's namespace keeps what is cached.
        support::make_cold(&disk.dir);
        let argv = ["python3", "-c", script, file.to_str().unwrap()];
        let (totals, printed) = run(&dir, &argv);
        assert_eq!(printed, format!("{sum}\n").into_bytes());
        let fetched = number(&totals, "prefetched_bytes");
        assert!(fetched > SIZE / 2, "{totals}");
    }
}

/// CP4, B11: a hint at all of a large mapping is carried out while nobody waits, and while it is used; a program that reads some pages of it has little else fetched.
#[test]
fn hints_are_carried_out_as_they_are_used() {
    const SIZE: u64 = 192 << 20;
    let dir = fresh("hints_as_used");
    let Some(disk) = Disk::of("hints_are_carried_out_as_they_are_used", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, Random(15).bytes(SIZE as usize)).unwrap();
    let script = "import mmap, random, sys, time
with open(sys.argv[1], 'rb') as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
    m.madvise(mmap.MADV_WILLNEED)
    places = random.Random(1)
    if sys.argv[2] == 'unread':
        print(sum(m[places.randrange(len(m))] for _ in range(100)))
    elif sys.argv[2] == 'read':
        print(sum(m[i] for i in range(0, len(m), 4096)))
    else:
        time.sleep(3)
";
    disk.does("model", &["remote"]);
    for how in ["unread", "read", "waited"] {
        let argv = ["python3", "-c", script, file.to_str().unwrap(), how];
        let plain = Command::new(argv[0]).args(&argv[1..]).output().unwrap();
        eventually(|| {
            disk.does("cold", &[]);
            let (totals, printed) = run(&dir, &argv);
            assert_eq!(printed, plain.stdout);
            let names = ["foreseen_hints_bytes", "prefetched_bytes"];
            let [hinted, fetched] = names.map(|n| number(&totals, n));
            let right = match how {
                "unread" => hinted < SIZE / 8,
                // Its order is foreseen besides.
                "read" => fetched > SIZE / 10 * 9,
                _ => hinted > SIZE / 10 * 9,
            };
            right
                .then_some(())
                .ok_or_else(|| format!("{how}: {totals}"))
        });
    }
}

/// CP11: a mapping that is moved, extended or unmapped in part is followed where it is, and one that another covers is followed no longer.
#[test]
fn mappings_are_followed_where_they_are() {
    const SIZE: u64 = 96 << 20;
    let dir = fresh("remapped");
    let Some(disk) = Disk::of("mappings_are_followed_where_they_are", &dir) else {
        return;
    };
    let [file, other] = ["file", "other"].map(|name| {
        let path = disk.dir.join(name);
        fs::write(&path, Random(6).bytes(SIZE as usize)).unwrap();
        path.display().to_string()
    });
    let remapped = program("remapped").display().to_string();
    disk.does("model", &["nvme"]);
    for how in ["moved", "cut", "covered"] {
        let argv = [&*remapped, &file, how, &other];
        let plain = Command::new(&remapped).args(&argv[1..]).output().unwrap();
        eventually(|| {
            disk.does("cold", &[]);
            let (_, printed) = run(&dir, &argv);
            assert_eq!(printed, plain.stdout);
            let report = report(&dir);
            let files = report["files"].as_array().unwrap();
            let fetched = |name: &str| {
                let of = files.iter().filter(|f| f["path"] == *name);
                of.map(|f| number(f, "prefetched_bytes")).sum::<u64>()
            };
            let fetched = [fetched(&file), fetched(&other)];
            let right = match how {
                "covered" => fetched[0] < SIZE / 2 && fetched[1] > SIZE / 4 * 3,
                _ => fetched[0] > SIZE / 10 * 9,
            };
            right
                .then_some(())
                .ok_or_else(|| format!("{how}: {fetched:?} of {SIZE} bytes fetched"))
        });
    }
}

/// CP3, B11: who reads on for a while, seeks far ahead and reads on (unzip of some members) finds each run fetched, and what it left out mostly isn't: neither for
/// what was passed in silence nor for windows that grow from run to run.
#[test]
fn runs_between_seeks_stay_runs() {
    const SIZE: u64 = 224 << 20;
    let dir = fresh("runs_between_seeks");
    let Some(disk) = Disk::of("runs_between_seeks_stay_runs", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, Random(7).bytes(SIZE as usize)).unwrap();
    let name = file.to_str().unwrap();
    let runs = program("runs").display().to_string();
    disk.does("model", &["remote"]);
    for how in ["read", "fread"] {
        let (plain, read) = alone(&runs, &[name, how]);
        eventually(|| {
            disk.does("cold", &[]);
            let (totals, out) = run(&dir, &[&runs, name, how]);
            assert_eq!(out, plain);
            let [hit, late, fetched, used] =
                ["hit_bytes", "late_bytes", "prefetched_bytes", "used_bytes"]
                    .map(|n| number(&totals, n));
            // Whether what was foreseen is there in time is the device's and the processors' affair.
            let foreseen = hit + late;
            (foreseen > read / 10 * 8 && fetched < 3 * read && used <= read + read / 8)
                .then_some(())
                .ok_or_else(|| {
                    format!(
                        "{how}: {fetched} bytes fetched, {used} used, {foreseen} foreseen, of {read}"
                    )
                })
        });
    }
}

/// CP3, B11: who takes a member out of an archive, goes onward by long steps, reads a piece in order and goes on: what was passed is not fetched, whatever the
/// waits have cost so far, and nor is what follows.
#[test]
fn a_member_of_an_archive_is_all_that_is_fetched() {
    const FILES: usize = 600;
    let dir = fresh("a_member");
    let Some(disk) = Disk::of("a_member_of_an_archive_is_all_that_is_fetched", &dir) else {
        return;
    };
    let mut random = Random(11);
    let members = dir.join("members");
    fs::create_dir(&members).unwrap();
    for k in 0..FILES {
        let long = if k == FILES * 3 / 5 { 4 << 20 } else { 0 };
        let size = (300 << 10) + random.next() as usize % (100 << 10) + long;
        fs::write(members.join(format!("{k:03}")), random.bytes(size)).unwrap();
    }
    let archive = disk.dir.join("archive");
    let made = Command::new("tar")
        .args(["--sort=name", "-cf"])
        .args([&archive, Path::new("members")])
        .current_dir(&dir)
        .status();
    if !made.is_ok_and(|made| made.success()) {
        return;
    }
    fs::remove_dir_all(&members).unwrap();
    let (archive, size) = (archive.display(), fs::metadata(&archive).unwrap().len());
    disk.does("model", &["nvme"]);
    let member = format!("members/{:03}", FILES * 3 / 5);
    let mut fetched: Vec<u64> = (0..5)
        .map(|_| {
            disk.does("cold", &[]);
            let (totals, _) = run(&dir, &["tar", "-xf", &archive.to_string(), &member]);
            number(&totals, "prefetched_bytes")
        })
        .collect();
    // Where other work keeps the processors busy a wait may be so long that reading on is worth it.
    fetched.sort_unstable();
    if fetched[2] >= size / 8 {
        gives_up(&format!("{fetched:?} of {size} bytes"));
    }
}

/// CP1, CP3: what a program has the kernel copy in one call is fetched at once and not one readahead window after another, if it goes to a file; what is sent
/// to whom it may take long to get there is not.
#[test]
fn copies_within_the_kernel_are_fetched_at_once() {
    const SIZE: u64 = 64 << 20;
    const COPY: &str = "import os
source, copy = os.open('disk/file', os.O_RDONLY), os.open('disk/copy', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
done = 0
while n := CALL:
    done += n
";
    const SEND: &str = "import os, socket
source, (out, other) = os.open('disk/file', os.O_RDONLY), socket.socketpair()
out.setblocking(False)
os.sendfile(out.fileno(), source, 0, 64 << 20)
";
    let dir = fresh("copies");
    let Some(disk) = Disk::of("copies_within_the_kernel_are_fetched_at_once", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    let bytes = Random(14).bytes(SIZE as usize);
    fs::write(&file, &bytes).unwrap();
    disk.does("model", &["remote"]);
    for call in [
        "os.sendfile(copy, source, done, 1 << 30)",
        "os.sendfile(copy, source, None, 1 << 30)",
        "os.copy_file_range(source, copy, 1 << 30)",
    ] {
        eventually(|| {
            disk.does("cold", &[]);
            let (totals, _) = run(&dir, &["python3", "-c", &COPY.replace("CALL", call)]);
            assert!(fs::read(disk.dir.join("copy")).unwrap() == bytes, "{call}");
            let [fetched, used, wasted] =
                ["prefetched_bytes", "used_bytes", "wasted_bytes"].map(|f| number(&totals, f));
            if fetched > SIZE * 3 / 4 && used == fetched && wasted == 0 {
                Ok(())
            } else {
                Err(format!("{call}: {totals}"))
            }
        });
    }
    disk.does("cold", &[]);
    let (totals, _) = run(&dir, &["python3", "-c", SEND]);
    assert!(number(&totals, "prefetched_bytes") <= SIZE / 8, "{totals}");

    // A disk may take short requests only: what becomes of ours is nobody else's.
    let device = rustix::fs::stat(&disk.dir).unwrap().st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let limit = format!("/sys/dev/block/{major}:{minor}/queue/max_sectors_kb");
    let usual = fs::read_to_string(&limit).unwrap();
    fs::write(&limit, "16").unwrap();
    eventually(|| {
        disk.does("cold", &[]);
        let (totals, _) = run(&dir, &["cp", "disk/file", "disk/copy"]);
        let fetched = number(&totals, "prefetched_bytes");
        // Beside somebody else it would be a piece.
        (fetched > SIZE / 4)
            .then_some(())
            .ok_or(format!("short requests: {totals}"))
    });
    fs::write(&limit, usual.trim()).unwrap();

    // A kernel that reads far ahead by itself keeps the device busy: what is copied, and what is read of a file first, is left to it.
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    for (kib, left) in [("8192", true), ("128", false)] {
        fs::write(&knob, kib).unwrap();
        eventually(|| {
            disk.does("cold", &[]);
            let (totals, _) = run(&dir, &["cp", "disk/file", "disk/copy"]);
            let fetched = number(&totals, "prefetched_bytes");
            let well = match left {
                true => fetched == 0,
                false => fetched > SIZE * 3 / 4,
            };
            well.then_some(()).ok_or(format!("{kib} KiB: {totals}"))
        });
    }
}

/// CP2: a shell that redirects its input closes the descriptor that it has opened at once, and reads from another: its files are found all the same.
#[test]
fn files_that_a_shell_reads_are_foreseen() {
    const FILES: u64 = 600;
    let dir = fresh("shell_reads");
    let Some(disk) = Disk::of("files_that_a_shell_reads_are_foreseen", &dir) else {
        return;
    };
    let tree = disk.dir.join("tree");
    fs::create_dir(&tree).unwrap();
    let mut random = Random(12);
    for i in 0..FILES {
        fs::write(tree.join(format!("{i:03}")), random.bytes(5000)).unwrap();
    }
    disk.does("model", &["remote"]);
    let script = format!(
        "LC_ALL=C; for f in {}/*; do read -r -n 9 l < $f; echo $l; done",
        tree.display()
    );
    let command = ["bash", "-c", &script];
    let plain = Command::new("bash").args(&command[1..]).output().unwrap();
    eventually(|| {
        disk.does("cold", &[]);
        let (totals, out) = run(&dir, &command);
        assert_eq!(out, plain.stdout);
        let used = number(&totals, "files_ahead_used");
        (used > FILES / 3)
            .then_some(())
            .ok_or_else(|| format!("{used} of {FILES} files were fetched: {totals}"))
    });
}

/// CP11, B11: touches of a mapping in no order that add up to most of the file are answered by streaming it; where memory doesn't hold the file nothing is streamed,
/// because it can't be seen whether anything is touched twice.
#[test]
fn mappings_at_random_are_streamed() {
    const SIZE: u64 = 192 << 20;
    let dir = fresh("mappings_at_random");
    let Some(disk) = Disk::of("mappings_at_random_are_streamed", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    let bytes = Random(9).bytes(SIZE as usize);
    fs::write(&file, &bytes).unwrap();
    let name = file.to_str().unwrap();
    let script = "import mmap, random, sys
f = open(sys.argv[1], 'rb')
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
pages = list(range(0, len(m), 1 << 14))
random.Random(1).shuffle(pages)
print(sum(m[i] for i in pages))
";
    let sum: u64 = bytes.iter().step_by(16 << 10).map(|b| u64::from(*b)).sum();
    disk.does("model", &["remote"]);
    for (budget, streamed) in [("1G", true), ("16M", false)] {
        eventually(|| {
            disk.does("cold", &[]);
            let output = outrider_run(
                &dir,
                &["--budget", budget, "--report=r.json"],
                &["python3", "-c", script, name],
            )
            .output()
            .unwrap();
            assert!(output.status.success(), "{output:?}");
            assert_eq!(output.stdout, format!("{sum}\n").into_bytes());
            let report = report(&dir);
            let fetched = number(&report["totals"], "prefetched_bytes");
            match streamed {
                true if fetched > SIZE / 2 => Ok(()),
                // The rest may fit at the end.
                false if fetched < SIZE / 8 => Ok(()),
                _ => Err(format!("{budget}: {fetched} of {SIZE} bytes fetched")),
            }
        });
    }
}

/// Design, "a process start costs under a millisecond": of all libraries only ours comes into a program, and it brings no other with it.
#[test]
fn programs_get_one_library() {
    let dir = fresh("one_library");
    let argv = ["cat", "/proc/self/maps"];
    let libraries = |output: std::process::Output| {
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let mut names: Vec<String> = text
            .split_whitespace()
            .filter(|w| w.starts_with('/') && w.contains(".so"))
            .map(|w| w.rsplit('/').next().unwrap().to_owned())
            .collect();
        names.sort();
        names.dedup();
        names
    };
    let stock = libraries(Command::new(argv[0]).args(&argv[1..]).output().unwrap());
    let mut ours = libraries(outrider_run(&dir, &[], &argv).output().unwrap());
    assert!(ours.contains(&"liboutrider.so".to_owned()), "{ours:?}");
    ours.retain(|name| name != "liboutrider.so");
    assert_eq!(ours, stock);
}

/// LP3, LP9: a file in pieces that is read from its beginning, with memory for an eighth of it, on a disk with a head: it lies upwards as it is,
/// so it is not fetched in rounds, and nothing is read twice.
#[test]
fn what_lies_in_order_is_not_sorted() {
    const SIZE: u64 = 64 << 20;
    const PIECE: u64 = 16 << 10;
    let dir = fresh("lies_in_order");
    let Some(disk) = Disk::of("what_lies_in_order_is_not_sorted", &dir) else {
        return;
    };
    let name = disk.dir.join("file");
    let (file, other) = (
        File::create(&name).unwrap(),
        File::create(disk.dir.join("other")).unwrap(),
    );
    let bytes = Random(5).bytes(SIZE as usize);
    for at in (0..SIZE).step_by(PIECE as usize) {
        let piece = &bytes[at as usize..][..PIECE as usize];
        for f in [&file, &other] {
            f.write_all_at(piece, at).unwrap();
            f.sync_data().unwrap();
        }
    }
    drop((file, other));
    disk.does("model", &["hdd,scale=0.2"]);
    disk.does("cold", &[]);
    disk.does("stats", &["--reset"]);
    let work = outrider().with_file_name("outrider-work");
    let explain = dir.join("explain");
    let flags = ["--budget=8M", "--explain", explain.to_str().unwrap()];
    let words = ["--order", "sequential", "--block", "64K", "--declare"];
    let argv = [
        &[work.to_str().unwrap(), "planned", name.to_str().unwrap()],
        &words[..],
    ]
    .concat();
    let output = outrider_run(&dir, &flags, &argv).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let decisions = fs::read_to_string(&explain).unwrap();
    assert!(decisions.contains(": rounds"), "{decisions}");
    assert!(!decisions.contains(" round of entries "), "{decisions}");
    let stats = Disk::lab()
        .args(["disk", "stats", "--json"])
        .arg(&disk.dir)
        .output()
        .unwrap();
    let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
    let read = number(&stats["counters"], "read_bytes");
    assert!(
        (SIZE..SIZE + SIZE / 32).contains(&read),
        "{read} of {SIZE} bytes were read"
    );
}

/// How often a file's next bytes lie before its last ones.
fn goes_back(file: &Path) -> usize {
    let file = File::open(file).unwrap();
    file.sync_all().unwrap();
    let map = extents(file.as_fd(), 0..u64::MAX, usize::MAX).unwrap();
    map.extents
        .windows(2)
        .filter(|w| w[1].physical < w[0].physical)
        .count()
}

/// A read in the trace of an emulated disk: µs when it came and when it was answered, offset and length, bytes.
struct Traced {
    came: f64,
    done: f64,
    offset: u64,
    length: u64,
}

/// The reads that a trace of an emulated disk has, in the order in which they came.
fn traced(trace: &Path) -> Vec<Traced> {
    let text = fs::read_to_string(trace).unwrap();
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [came, done, "R", offset, length] = words[..] else {
                return None;
            };
            Some(Traced {
                came: came.parse().unwrap(),
                done: done.parse().unwrap(),
                offset: offset.parse().unwrap(),
                length: length.parse().unwrap(),
            })
        })
        .collect()
}

/// The requests of at least `least` bytes that a trace of an emulated disk has: where each reads, and how much.
fn requests(trace: &Path, least: u64) -> Vec<(u64, u64)> {
    let reads = traced(trace).into_iter().filter(|r| r.length >= least);
    reads.map(|r| (r.offset, r.length)).collect()
}

/// How often a request lies before the one before it.
fn turns(requests: &[(u64, u64)]) -> usize {
    requests.windows(2).filter(|w| w[1].0 < w[0].0).count()
}

/// `warm` reads a file in the order in which it lies, not in its own, and shows on a terminal how far it is; elsewhere it says nothing before the end.
#[test]
fn warm_reads_in_physical_order() {
    const SIZE: u64 = 64 << 20;
    const PIECE: u64 = 2 << 20;
    let name = "warm_reads_in_physical_order";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    let path = disk.dir.join("file");
    let file = File::create(&path).unwrap();
    let mut random = Random(18);
    let mut places: Vec<u64> = (0..SIZE / PIECE).collect();
    for i in (1..places.len()).rev() {
        places.swap(i, random.next() as usize % (i + 1));
    }
    for place in places {
        file.write_all_at(&random.bytes(PIECE as usize), place * PIECE)
            .unwrap();
        file.sync_data().unwrap();
    }
    drop(file);
    let goes_back = goes_back(&path);
    assert!(goes_back > 4, "the file lies in order: {goes_back}");
    disk.does("model", &["hdd"]);
    let trace = dir.join("trace");
    let warm = || {
        let mut warm = Command::new(outrider());
        warm.args(["warm", "--jobs", "1"]).arg(&path);
        warm
    };
    eventually(|| {
        disk.does("cold", &[]);
        disk.does("trace", &["start", trace.to_str().unwrap()]);
        support::printed(&mut warm());
        disk.does("trace", &["stop"]);
        // Metadata is read in smaller pieces.
        let requests = requests(&trace, 16 << 10);
        let read: u64 = requests.iter().map(|r| r.1).sum();
        match turns(&requests) == 0 && read >= SIZE * 15 / 16 {
            true => Ok(()),
            false => Err(format!(
                "{} of {} requests go back, the file {goes_back} times; {read} bytes",
                turns(&requests),
                requests.len()
            )),
        }
    });
    if !support::have("script") {
        return support::skip(name, "script is not installed");
    }
    eventually(|| {
        disk.does("cold", &[]);
        let line = format!("{} warm {}", outrider().display(), path.display());
        let output = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            // On others there are no such characters, or no line is written anew.
            .envs([("LC_ALL", "C.UTF-8"), ("TERM", "xterm")])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        match shown.contains('█') && shown.contains("of 64.00 MiB") {
            true => Ok(()),
            false => Err(shown),
        }
    });
}

/// What a device can't read `warm` names, with why; it reads the rest, and says how much that was.
#[test]
fn warm_names_what_cannot_be_read() {
    const SIZE: u64 = 1 << 20;
    const BAD: u64 = 4096;
    let name = "warm_names_what_cannot_be_read";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    let mut random = Random(19);
    for file in ["broken", "whole"] {
        let mut file = File::create(disk.dir.join(file)).unwrap();
        file.write_all(&random.bytes(SIZE as usize)).unwrap();
        file.sync_all().unwrap();
    }
    let broken = disk.dir.join("broken");
    let map = extents(File::open(&broken).unwrap().as_fd(), 0..SIZE, 64).unwrap();
    let at = SIZE / 2 + 8 * BAD;
    let extent = map.extents.iter().find(|e| e.range().contains(&at));
    let extent = extent.unwrap();
    let bad = extent.physical + at - extent.logical;
    eventually(|| {
        disk.does("cold", &[]);
        disk.does("model", &[&format!("eio_read={bad}-{}", bad + BAD)]);
        let mut warm = Command::new(outrider());
        let output = warm.arg("warm").arg(&disk.dir).output().unwrap();
        disk.does("model", &["eio=none"]);
        let (said, told) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert_eq!(output.status.code(), Some(1), "{said}{told}");
        assert_eq!(told.lines().count(), 1, "{told}");
        let named = told.contains("broken: ") && told.contains("Input/output error");
        assert!(named, "{told}");
        let cached = |file: &str| {
            let file = File::open(disk.dir.join(file)).unwrap();
            cachestat(file.as_fd(), 0..SIZE).unwrap().cached * 4096
        };
        let (whole, rest) = (cached("whole"), cached("broken"));
        match whole == SIZE && rest > SIZE / 2 {
            true => Ok(()),
            false => Err(format!("{whole} and {rest} bytes are cached; {said}")),
        }
    });
}

/// What a sequential reader makes us fetch is asked for in the order in which it lies: a disk
/// with a head would seek twice for each piece that comes out of turn.
#[test]
fn a_stream_reaches_the_device_in_order() {
    const SIZE: u64 = 160 << 20;
    let dir = fresh("stream_in_order");
    let Some(disk) = Disk::of("a_stream_reaches_the_device_in_order", &dir) else {
        return;
    };
    let file = disk.dir.join("file");
    fs::write(&file, Random(11).bytes(SIZE as usize)).unwrap();
    disk.does("model", &["hdd"]);
    // Some file systems begin a file behind a part of its rest.
    let file_goes_back = goes_back(&file);
    let trace = dir.join("trace");
    let work = outrider().with_file_name("outrider-work");
    eventually(|| {
        disk.does("cold", &[]);
        disk.does("trace", &["start", trace.to_str().unwrap()]);
        let argv = [work.to_str().unwrap(), "read", file.to_str().unwrap()];
        let (totals, _) = run(&dir, &argv);
        disk.does("trace", &["stop"]);
        // Metadata is read in smaller pieces.
        let requests = requests(&trace, 64 << 10);
        let large: u64 = requests.iter().map(|r| r.1).sum();
        let back = turns(&requests);
        let fetched = number(&totals, "prefetched_bytes");
        // A reader who is given a processor sooner than a worker overtakes what that one holds.
        let few = requests.len() / 64;
        if fetched > SIZE * 9 / 10 && large > SIZE * 9 / 10 && back <= file_goes_back + few {
            Ok(())
        } else {
            Err(format!(
                "{back} requests went back, the file {file_goes_back} times, {large} bytes in large ones: {totals}"
            ))
        }
    });
}

/// CP6, FACTS ("in flight"): what is on its way at one time is what the device wants, within the settings' bounds, by an emulated disk's own record.
#[test]
fn in_flight_is_as_configured() {
    const SIZE: u64 = 64 << 20;
    const NAME: &str = "in_flight_is_as_configured";
    let dir = fresh(NAME);
    let Some(disk) = Disk::of(NAME, &dir) else {
        return;
    };
    fs::write(disk.dir.join("file"), Random(43).bytes(SIZE as usize)).unwrap();
    disk.does("model", &["remote"]);
    let trace = dir.join("trace");
    // What the device wants is some 512 KiB; one request of ours and one of the reader's come on top of a bound.
    for (settings, least, most) in [
        ("engine.in_flight_max = '256K'", 128 << 10, 640 << 10),
        (
            "engine.in_flight_min = '6M'\nengine.in_flight_max = '8M'",
            // The emulator takes no more than some 2 MiB at a time.
            5 << 18,
            10 << 20,
        ),
    ] {
        fs::write(dir.join("config.toml"), settings).unwrap();
        eventually(|| {
            disk.does("cold", &[]);
            disk.does("trace", &["start", trace.to_str().unwrap()]);
            let flags = ["--mode", "fetchall+opt", "--config=config.toml"];
            let argv = [
                "dd",
                "if=disk/file",
                "of=/dev/null",
                "bs=64k",
                "status=none",
            ];
            let run = outrider_run(&dir, &flags, &argv).status().unwrap();
            disk.does("trace", &["stop"]);
            assert!(run.success());
            let requests = traced(&trace);
            let way = |at: f64| {
                let there = requests.iter().filter(|r| r.came <= at && at < r.done);
                there.map(|r| r.length).sum::<u64>()
            };
            let found = requests.iter().map(|r| way(r.came)).max().unwrap_or(0);
            match (least..=most).contains(&found) {
                true => Ok(()),
                false => Err(format!("{settings}: {found} bytes were on their way")),
            }
        });
    }
}

/// The most bytes of other requests that were on their way when one of 4 KiB came, by a trace of an emulated disk, from `after` µs behind the first longer
/// one on; and how many of these came.
fn most_ahead(trace: &Path, after: f64) -> (u64, usize) {
    let reads = traced(trace);
    let first = reads.iter().find(|r| r.length > 4096);
    let from = first.map_or(0.0, |r| r.came) + after;
    let ahead = |at: usize| -> u64 {
        let before = reads[..at].iter().filter(|r| r.done > reads[at].came);
        before.map(|r| r.length).sum()
    };
    let mut found = (0, 0);
    for (at, read) in reads.iter().enumerate() {
        if read.length == 4096 && read.came > from {
            found = (ahead(at).max(found.0), found.1 + 1);
        }
    }
    found
}

/// DR7, and design, "a foreign reader is not stalled": who reads from the disk that a stream of ours is fetched from is noticed within a tenth of a second, and has no
/// more ahead of him from then on than a shared queue may hold, 1 MiB (256 to 384 KiB on a quiet machine), though 4 MiB are in flight where nobody else reads.
#[test]
fn a_neighbour_finds_little_ahead_of_him() {
    const SIZE: usize = 160 << 20;
    const PAGES: u64 = 8192;
    let dir = fresh("neighbour");
    let Some(disk) = Disk::of("a_neighbour_finds_little_ahead_of_him", &dir) else {
        return;
    };
    let (file, foreign) = (disk.dir.join("file"), disk.dir.join("foreign"));
    fs::write(&file, Random(12).bytes(SIZE)).unwrap();
    fs::write(&foreign, Random(13).bytes((PAGES << 12) as usize)).unwrap();
    let trace = dir.join("trace");
    let work = outrider().with_file_name("outrider-work");
    for model in ["nvme", "remote"] {
        disk.does("model", &[model]);
        eventually(|| {
            disk.does("cold", &[]);
            disk.does("trace", &["start", trace.to_str().unwrap()]);
            let over = AtomicBool::new(false);
            let totals = std::thread::scope(|scope| {
                scope.spawn(|| {
                    let file = File::open(&foreign).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
                    // Each page once, in no order.
                    for k in (0..PAGES).take_while(|_| !over.load(Ordering::Relaxed)) {
                        let page = k * 2731 % PAGES;
                        file.read_exact_at(&mut [0; 4096], page << 12).unwrap();
                    }
                });
                let argv = [work.to_str().unwrap(), "read", file.to_str().unwrap()];
                let (totals, _) = run(&dir, &argv);
                over.store(true, Ordering::Relaxed);
                totals
            });
            disk.does("trace", &["stop"]);
            let (ahead, reads) = most_ahead(&trace, 100e3);
            let fetched = number(&totals, "prefetched_bytes");
            if ahead <= 1 << 20 && reads > 100 && fetched > 4 << 20 {
                Ok(())
            } else {
                Err(format!(
                    "{model}: up to {ahead} bytes ahead of {reads} reads: {totals}"
                ))
            }
        });
    }
}

/// CP13: of what a program reads from one end of a file to the other nothing is wasted, whether or not a profile brings the same.
#[test]
fn what_is_read_to_the_end_is_not_wasted() {
    const SIZE: u64 = 96 << 20;
    let name = "what_is_read_to_the_end_is_not_wasted";
    let dir = fresh("not_wasted");
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    fs::write(disk.dir.join("file"), Random(77).bytes(SIZE as usize)).unwrap();
    disk.does("model", &["nvme"]);
    let profile = format!("--remember={}", dir.join("reads.profile").display());
    for remember in [None, Some(profile.as_str())] {
        for _ in 0..8 {
            disk.does("cold", &[]);
            let flags: Vec<&str> = remember.into_iter().chain(["--report=r.json"]).collect();
            let output = outrider_run(&dir, &flags, &["tac", "disk/file"]).output();
            assert!(output.unwrap().status.success());
            let report = report(&dir);
            let wasted = number(&report["totals"], "wasted_bytes");
            // A few reads may be made while the program ends that nobody hears of.
            assert!(wasted <= SIZE / 512, "{wasted} {remember:?}: {report:#}");
        }
    }
}
