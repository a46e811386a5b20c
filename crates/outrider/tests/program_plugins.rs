//! FA11: GNU du and cp, unmodified, with their plug-ins from `plugins/programs`.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;
use support::{Random, have, make_cold, outrider, repository, scratch, skip};

/// A plug-in as `make plugins` builds it.
fn plugin(program: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let out = scratch().join("program-plugins");
        let made = Command::new("make")
            .arg("-C")
            .arg(repository().join("plugins/programs"))
            .arg(format!("OUT={}", out.display()))
            .arg("CFLAGS=-O1 -Werror")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&made.stderr).into_owned();
        assert!(made.status.success(), "{errors}");
        out
    });
    dir.join(format!("outrider_{program}.so"))
}

/// Runs a shell's script, whose programs get the plug-in of `program` if there is one. OUTRIDER_GRAPH names an engine.
fn shell_with(script: &str, program: Option<&str>, flags: &[&str], engine: &str) -> Output {
    let mut command = match program {
        Some(program) => {
            let mut c = Command::new(outrider());
            c.arg("run")
                .args(flags)
                .arg("--plugin")
                .arg(plugin(program));
            c.args(["--", "sh"]);
            c
        }
        None => Command::new("sh"),
    };
    let command = command.args(["-c", script]);
    command.env("OUTRIDER_GRAPH", engine).output().unwrap()
}

fn shell(script: &str, program: Option<&str>, flags: &[&str]) -> Output {
    shell_with(script, program, flags, "")
}

/// The plug-in changes neither what is said nor the exit code, with any of these engines.
fn same_with(script: &str, program: &str, engines: &[&str]) {
    let plain = shell(script, None, &[]);
    let told = |o: &Output| {
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        (o.status.code(), text(&o.stdout), text(&o.stderr))
    };
    for engine in engines {
        let with = shell_with(script, Some(program), &[], engine);
        assert_eq!(told(&with), told(&plain), "{script}, engine {engine:?}");
    }
}

fn same(script: &str, program: &str) {
    same_with(script, program, &[""]);
}

/// Where a file has data, from SEEK_DATA and SEEK_HOLE.
fn extents(file: &File) -> Vec<(i64, i64)> {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        // SAFETY: a descriptor of ours, integers.
        let (from, to) = unsafe {
            let from = libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA);
            (
                from,
                libc::lseek(file.as_raw_fd(), from.max(0), libc::SEEK_HOLE),
            )
        };
        if from < 0 {
            return found;
        }
        found.push((from, to));
        at = to;
    }
}

/// Of a file: kind and mode, bytes or target, and where there are no holes.
type Preserved = (u32, Vec<u8>, Vec<(i64, i64)>);

/// All that a copy is to preserve.
fn contents(root: &Path) -> BTreeMap<PathBuf, Preserved> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let about = fs::symlink_metadata(&path).unwrap();
        let (mut bytes, mut data) = (Vec::new(), Vec::new());
        if about.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if about.is_symlink() {
            bytes = fs::read_link(&path)
                .unwrap()
                .into_os_string()
                .into_encoded_bytes();
        } else if about.is_file() {
            let file = File::open(&path).unwrap();
            file.sync_all().unwrap();
            bytes = fs::read(&path).unwrap();
            data = extents(&file);
        }
        all.insert(
            path.strip_prefix(root).unwrap().to_owned(),
            (about.mode(), bytes, data),
        );
    }
    all
}

/// Files of all sizes around those at which something changes, files with holes, links, a pipe, directories within each other.
fn tree(root: &Path) {
    let mut random = Random(7);
    let deep = root.join("a/b/c/d/e");
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir_all(root.join("empty")).unwrap();
    let sizes = [
        0,
        1,
        4095,
        4096,
        131_071,
        131_072,
        131_073,
        1 << 20,
        (1 << 20) + 12_345,
        (9 << 20) + 1,
    ];
    for (n, size) in sizes.into_iter().enumerate() {
        for dir in [root, &root.join("a/b"), &deep] {
            fs::write(dir.join(format!("f{n}")), random.bytes(size)).unwrap();
        }
    }
    for i in 0..300 {
        fs::write(root.join(format!("a/small{i}")), random.bytes(i * 7)).unwrap();
    }
    for (name, size, data) in [
        ("hole", 3 << 20, vec![]),
        ("hole-first", 3 << 20, vec![2 << 20]),
        ("hole-last", 3 << 20, vec![0]),
        ("holes", 12 << 20, vec![1 << 20, 5 << 20, (11 << 20) + 4096]),
    ] {
        let file = File::create(root.join(name)).unwrap();
        file.set_len(size).unwrap();
        for at in data {
            file.write_all_at(&random.bytes(70_000), at).unwrap();
        }
    }
    symlink("f3", root.join("link")).unwrap();
    symlink("nowhere", root.join("a/dangling")).unwrap();
    let pipe = Command::new("mkfifo").arg(root.join("pipe")).status();
    assert!(pipe.unwrap().success());
}

#[test]
fn cp_copies_the_same_with_its_plugin() {
    let root = scratch().join("cp-plugin");
    let from = root.join("from");
    tree(&from);
    let memory = Path::new("/dev/shm").join(format!("outrider-cp-{}", std::process::id()));
    for (what, to) in [
        ("cp -r", root.join("to")),
        ("cp -a", root.join("to")),
        ("cp -r", memory),
    ] {
        let mut copies = Vec::new();
        for program in [None, Some("cp")] {
            make_cold(&from);
            let script = format!("{what} {} {}", from.display(), to.display());
            let out = shell(&script, program, &[]);
            assert!(
                out.status.success() && out.stderr.is_empty(),
                "{script}: {out:?}"
            );
            copies.push(contents(&to));
            fs::remove_dir_all(&to).unwrap();
        }
        // Not with assert_eq: the bytes would fill the screen.
        assert!(copies[0] == copies[1], "{what} to {}", to.display());
    }
    let cd = format!("cd {} && rm -rf new && mkdir new", root.display());
    for script in [
        "cp from/f9 new && cmp from/f9 new/f9 && cp from/f1 from/f2 from/holes new && ls -s new",
        "cp from/f9 new; cp --sparse=always from/holes new/f9 && cmp new/f9 from/holes",
        "cp from/f9 from/nonexistent new; ls new",
        "cp -r from/f9 new/f9 && cp from/f0 new/f9 && ls -l --time-style=+ new",
        "cp from/f9 from/f9",
        "cp --reflink=never from/f8 new/x && cp -l from/f7 new && cp -s $PWD/from/f7 new/s && ls new",
        "cp -r from/a/b from/empty new && cp -ru from/a new && find new | sort",
    ] {
        same(&format!("{cd} && {{ {script}; }}"), "cp");
    }
}

/// What is asked for ahead: files after the one that is copied, if nothing of them is cached.
#[test]
fn cp_has_the_next_files_on_their_way() {
    if !have("strace") {
        return skip("cp_has_the_next_files_on_their_way", "no strace");
    }
    let root = scratch().join("cp-ahead");
    let from = root.join("from");
    fs::create_dir_all(&from).unwrap();
    for i in 0..6 {
        fs::write(from.join(format!("f{i}")), Random(i).bytes(600_000)).unwrap();
    }
    let asked = |cold: bool| {
        let (log, to) = (root.join("log"), root.join("to"));
        let script = format!(
            "strace -f -e trace=openat,fadvise64 -o {} cp -r {} {}",
            log.display(),
            from.display(),
            to.display()
        );
        if cold {
            make_cold(&from);
        }
        let out = shell(&script, Some("cp"), &["--mode=app-only"]);
        assert!(out.status.success(), "{out:?}");
        fs::remove_dir_all(&to).unwrap();
        fs::read_to_string(log).unwrap()
    };
    let log = asked(true);
    let wanted = "POSIX_FADV_WILLNEED";
    // In pieces of 128 KiB, all files, by the time that cp opens the second.
    let copies = |line: &&str| line.contains("/from/f") && !line.contains("O_NONBLOCK");
    let second = log.lines().filter(copies).nth(1).unwrap();
    let (before, after) = log.split_once(second).unwrap();
    assert_eq!(before.matches(wanted).count(), 6 * 5, "{log}");
    assert_eq!(after.matches(wanted).count(), 0, "{log}");
    assert_eq!(asked(false).matches(wanted).count(), 0);
}

/// FA11: of large files all is asked for ahead, in pieces of 128 KiB; but nothing where the kernel itself reads a mebibyte or more ahead.
#[test]
fn cp_leaves_large_files_to_a_far_readahead() {
    use std::os::unix::fs::MetadataExt as _;
    if !have("strace") {
        return skip("cp_leaves_large_files_to_a_far_readahead", "no strace");
    }
    let root = scratch().join("cp-far");
    let from = root.join("from");
    fs::create_dir_all(&from).unwrap();
    for i in 0..4 {
        fs::write(from.join(format!("f{i}")), Random(i).bytes(4 << 20)).unwrap();
    }
    let device = fs::metadata(&from).unwrap().dev();
    let device = format!("{}:{}", libc::major(device), libc::minor(device));
    let kib = ["queue", "../queue"]
        .iter()
        .find_map(|q| fs::read_to_string(format!("/sys/dev/block/{device}/{q}/read_ahead_kb")).ok())
        .map_or(0, |text| text.trim().parse::<u32>().unwrap());
    let (log, to) = (root.join("log"), root.join("to"));
    let script = format!(
        "strace -f -e trace=fadvise64 -o {} cp -r {} {}",
        log.display(),
        from.display(),
        to.display()
    );
    make_cold(&from);
    let out = shell(&script, Some("cp"), &["--mode=app-only"]);
    assert!(out.status.success(), "{out:?}");
    let log = fs::read_to_string(log).unwrap();
    let asked = log.matches("POSIX_FADV_WILLNEED").count();
    let wanted = if kib >= 1024 { 0 } else { 4 * 32 };
    assert_eq!(asked, wanted, "{kib} KiB: {log}");
    for i in 0..4 {
        let name = format!("f{i}");
        assert!(fs::read(to.join(&name)).unwrap() == fs::read(from.join(&name)).unwrap());
    }
}

/// Files of the large directory: fts sorts directories of more than 10,000 entries by inode, and reads 100,000 at a time.
const MANY: usize = 100_500;

/// A directory of so many files, each of which has its name in it. It is made once.
fn large() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let large = scratch().join("du-plugin/large");
        fs::create_dir_all(&large).unwrap();
        for i in 0..MANY {
            fs::write(large.join(format!("{i}")), i.to_string()).unwrap();
        }
        large
    })
}

/// A directory of more than 100,000 files.
#[test]
fn cp_copies_a_large_directory_with_its_plugin() {
    let from = large();
    make_cold(from);
    let memory = Path::new("/dev/shm").join(format!("outrider-cp-large-{}", std::process::id()));
    let script = format!("cp -r {} {}", from.display(), memory.display());
    let out = shell(&script, Some("cp"), &[]);
    assert!(out.status.success() && out.stderr.is_empty(), "{out:?}");
    let mut count = 0;
    for entry in fs::read_dir(&memory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert_eq!(fs::read_to_string(entry.path()).unwrap(), name);
        count += 1;
    }
    fs::remove_dir_all(&memory).unwrap();
    assert_eq!(count, MANY);
}

#[test]
fn du_says_the_same_with_its_plugin() {
    let root = scratch().join("du-plugin");
    tree(&root.join("from"));
    let mut path = root.join("from");
    for d in 0..80 {
        path = path.join(format!("deep{d}"));
        fs::create_dir_all(&path).unwrap();
        for i in 0..d {
            fs::write(path.join(format!("x{i}")), "x").unwrap();
        }
    }
    let large = large();
    for script in [
        "du -s from",
        "du -a from",
        "du -ah --apparent-size from/a large/1 from",
        "du -L from/f1 from/a; du -x --exclude='f*' from",
        "du -s --inodes large from nonexistent",
        "du -a large | cksum",
        "mkdir -p shut/in && du shut shut/in; rmdir shut/in shut && du shut",
    ] {
        let script = format!("cd {} && {script}", root.display());
        // One that is named looks ahead although everything is cached.
        same_with(&script, "du", &["", "threads"]);
    }
    let report = root.join("report.json");
    let flag = format!("--report={}", report.display());
    let script = format!("du -s {}", large.display());
    shell_with(&script, Some("du"), &[&flag], "threads");
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let graph = &report["graphs"][0];
    assert_eq!(graph["name"], "du", "{report}");
    assert!(graph["ahead"].as_u64() > Some(0), "{graph}");
    assert_eq!(graph["divergences"], 0, "{graph}");
    assert_eq!(graph["switched_off"], Value::Null, "{graph}");
}

/// FA11, B11: the memory for a directory's names is used again for the next: to map and unmap it stops the threads that list ahead.
#[test]
fn du_keeps_the_memory_for_names() {
    if !have("strace") {
        return skip("du_keeps_the_memory_for_names", "no strace");
    }
    let root = scratch().join("du-memory");
    for d in 0..200 {
        let dir = root.join(format!("tree/d{d}"));
        fs::create_dir_all(&dir).unwrap();
        for i in 0..3 {
            fs::write(dir.join(format!("x{i}")), "x").unwrap();
        }
    }
    make_cold(&root.join("tree"));
    let log = root.join("log");
    let script = format!(
        "strace -e trace=munmap,openat -o {} du -s {}",
        log.display(),
        root.join("tree").display()
    );
    let out = shell(&script, Some("du"), &["--mode=app-only"]);
    assert!(out.status.success(), "{out:?}");
    let log = fs::read_to_string(log).unwrap();
    let (_, walk) = log.split_once("O_DIRECTORY").unwrap();
    assert!(walk.matches("O_DIRECTORY").count() >= 200, "{log}");
    let unmapped = walk.matches("munmap(").count();
    assert!(unmapped < 100, "{unmapped} of 200 directories:\n{log}");
}

/// Where everything is cached, nothing is looked ahead of, so that no thread is started; an engine that was named rests after a few listings.
#[test]
fn du_looks_ahead_of_nothing_that_is_cached() {
    let root = scratch().join("du-cached");
    for d in 0..200 {
        let dir = root.join(format!("tree/d{d}"));
        fs::create_dir_all(&dir).unwrap();
        for i in 0..20 {
            fs::write(dir.join(format!("x{i}")), "x").unwrap();
        }
    }
    let report = root.join("report.json");
    let flag = format!("--report={}", report.display());
    let script = format!("du -s {}", root.join("tree").display());
    shell(&script, None, &[]);
    // Another program may have kept a call waiting.
    let ahead = |engine| {
        let ahead = (0..3).map(|_| {
            shell_with(&script, Some("du"), &[&flag], engine);
            let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
            report["graphs"][0]["ahead"].as_u64().unwrap()
        });
        ahead.min().unwrap()
    };
    assert_eq!(ahead(""), 0, "of 200 directories");
    let fewest = ahead("threads");
    assert!((1..=32).contains(&fewest), "{fewest} of 200 directories");
}
