//! B15: what a job needed is remembered, and its next run finds that fetched; a profile is never trusted, and costs little when it is wrong.
//!
//! docs/design/24-remember.md. Oracles: the blocks that the kernel says the program itself has waited for (getrusage(2)); what is cached of files, as the kernel
//! counts it; processes that would wake up if somebody opened a pipe; what the commands print.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use outrider_core::profile::{Entry, History, Need, Profile, Span, format};
use outrider_sys::cache::cachestat;
use outrider_sys::units::{PAGE, PageRange};
use serde_json::Value;
use support::{
    Disk, Kept, Random, compile, eventually, fresh, have, is_root, outrider, outrider_run, skip,
};

/// Reads the files in a list, of some only parts, at a human pace; prints how many blocks of 512 bytes it has waited for.
const JOB: &str = "import os, resource, sys, time
for line in open(sys.argv[1]).read().splitlines():
    name, *part = line.split()
    with open(name, 'rb') as f:
        if part: os.pread(f.fileno(), int(part[1]), int(part[0]))
        else: f.read()
    time.sleep(0.004)
print(resource.getrusage(resource.RUSAGE_SELF).ru_inblock)
";
/// Files of a job.
const FILES: usize = 150;

struct Bed {
    dir: PathBuf,
    disk: Disk,
    list: PathBuf,
}

impl Bed {
    /// A slow disk with files on it, in no order, of which a job reads half, and of one large file two parts.
    fn new(test: &str) -> Option<Bed> {
        if !have("python3") {
            skip(test, "python3 is not installed");
            return None;
        }
        let dir = fresh(test);
        let disk = Disk::of(test, &dir)?;
        let mut random = Random(5);
        let (mut names, mut lines) = (Vec::new(), Vec::new());
        for i in 0..2 * FILES {
            let at = disk.dir.join(format!("data/{:02x}", random.next() % 20));
            fs::create_dir_all(&at).unwrap();
            let name = at.join(format!("{:x}", random.next()));
            let len = 2000 + random.next() as usize % 100_000;
            fs::write(&name, random.bytes(len)).unwrap();
            if i % 2 == 0 {
                names.push((random.next(), name));
            }
        }
        names.sort();
        lines.extend(names.iter().map(|(_, n)| n.to_str().unwrap().to_owned()));
        let large = disk.dir.join("data/large");
        fs::write(&large, random.bytes(16 << 20)).unwrap();
        for at in [3 << 20, 11 << 20] {
            lines.push(format!("{} {at} {}", large.display(), 1 << 20));
        }
        let list = dir.join("list");
        fs::write(&list, lines.join("\n")).unwrap();
        fs::write(dir.join("job.py"), JOB).unwrap();
        disk.does("model", &["remote"]);
        Some(Bed { dir, disk, list })
    }

    fn cold(&self) {
        self.disk.does("cold", &[]);
    }

    fn argv(&self) -> Vec<String> {
        let job = self.dir.join("job.py");
        let words = [
            "python3",
            job.to_str().unwrap(),
            self.list.to_str().unwrap(),
        ];
        words.map(str::to_owned).to_vec()
    }

    /// Runs the job on cold files: blocks that it has waited for, and what the report says.
    fn run(&self, flags: &[&str]) -> (u64, Value) {
        self.cold();
        let argv = self.argv();
        let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
        let (output, totals) = run(&self.dir, flags, &argv);
        let printed = String::from_utf8(output.stdout).unwrap();
        (printed.trim().parse().unwrap(), totals)
    }

    fn profile(&self) -> PathBuf {
        self.dir.join("job.profile")
    }
}

fn run(dir: &Path, flags: &[&str], argv: &[&str]) -> (Output, Value) {
    let flags = [&["--report=r.json"], flags].concat();
    let output = outrider_run(dir, &flags, argv).output().unwrap();
    assert!(output.status.success(), "{argv:?}: {output:?}");
    let report: Value = serde_json::from_slice(&fs::read(dir.join("r.json")).unwrap()).unwrap();
    (output, report["totals"].clone())
}

fn number(totals: &Value, field: &str) -> u64 {
    totals[field]
        .as_u64()
        .unwrap_or_else(|| panic!("{field} in {totals}"))
}

/// A flag that names a profile's file.
fn remember(file: &Path) -> String {
    format!("--remember={}", file.display())
}

fn command(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(outrider());
    support::plain_environment(&mut command, dir);
    command.args(words).current_dir(dir).output().unwrap()
}

/// What a command prints that succeeds.
fn tells(dir: &Path, words: &[&str]) -> String {
    let output = command(dir, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What it complains of that finds its input bad: one line.
fn complains(dir: &Path, words: &[&str]) -> String {
    let output = command(dir, words);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn cached_pages(file: &Path) -> u64 {
    let file = File::open(file).unwrap();
    cachestat(file.as_fd(), 0..u64::MAX >> 1).unwrap().cached
}

fn entry(path: impl Into<PathBuf>, pages: u64) -> Entry {
    let span = Span {
        pages: PageRange::new(0, pages),
        seen: History::NEW,
    };
    Entry {
        path: path.into(),
        need: Need::File,
        size: pages * PAGE,
        modified: 0,
        inode: 0,
        at_us: 0,
        seen: History::NEW,
        spans: vec![span],
    }
}

fn profile_of(entries: Vec<Entry>) -> Profile {
    Profile {
        command: vec![b"job".to_vec()],
        directory: "/".into(),
        runs: 1,
        entries,
        ..Profile::default()
    }
}

fn put(file: &Path, profile: &Profile) {
    fs::write(file, format::encode(profile)).unwrap();
}

/// B15: the second cold run waits for a fraction of what the first waited for, nothing is fetched that the first didn't read, and all that is fetched is used.
#[test]
fn a_second_run_finds_what_it_needs() {
    let Some(bed) = Bed::new("a_second_run_finds_what_it_needs") else {
        return;
    };
    let flag = remember(&bed.profile());
    let (stock, _) = bed.run(&[]);
    let (first, totals) = bed.run(&[&flag]);
    assert!(first > stock / 2, "{first} of {stock} blocks");
    assert_eq!(number(&totals, "remembered_fetched_bytes"), 0);
    support::eventually(|| {
        let (second, totals) = bed.run(&[&flag]);
        let fetched = number(&totals, "remembered_fetched_bytes");
        // Two parts of the large file, and what the kernel read around them.
        let large = cached_pages(&bed.disk.dir.join("data/large")) * PAGE;
        if second < first / 4 && fetched > 4 << 20 && large < 4 << 20 {
            Ok(())
        } else {
            Err(format!(
                "{second} of {first} blocks; {large} bytes of the large file; {totals}"
            ))
        }
    });
    // What nobody read in any run isn't there.
    let list = fs::read_to_string(&bed.list).unwrap();
    let mut others = 0;
    for at in fs::read_dir(bed.disk.dir.join("data")).unwrap().flatten() {
        for file in fs::read_dir(at.path()).into_iter().flatten().flatten() {
            if !list.contains(file.path().to_str().unwrap()) {
                assert_eq!(cached_pages(&file.path()), 0, "{:?}", file.path());
                others += 1;
            }
        }
    }
    assert!(others >= FILES);
}

/// B6, B15: programs without hooks are remembered by what they have mapped, open, and waited for.
#[test]
fn unhooked_programs_are_remembered() {
    let test = "unhooked_programs_are_remembered";
    let Some(bed) = Bed::new(test) else {
        return;
    };
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists() {
        return skip(test, "busybox is not installed");
    }
    let program = bed.disk.dir.join("busybox");
    fs::copy(busybox, &program).unwrap();
    let large = bed.disk.dir.join("data/large");
    let argv = [program.to_str().unwrap(), "md5sum", large.to_str().unwrap()];
    let flag = remember(&bed.profile());
    bed.cold();
    let (_, totals) = run(&bed.dir, &[&flag], &argv);
    assert_eq!(number(&totals, "remembered_fetched_bytes"), 0);
    // Its runs are short: it is only certain that what was there of it is fetched.
    bed.cold();
    let (_, totals) = run(&bed.dir, &[&flag], &argv);
    let fetched = number(&totals, "remembered_fetched_bytes");
    assert!(fetched > 8 << 20, "{totals}");
    let exported = tells(
        &bed.dir,
        &[
            "profile",
            "export",
            flag.split_once('=').unwrap().1,
            "--paths",
        ],
    );
    assert!(exported.contains(large.to_str().unwrap()), "{exported}");
}

/// B15, B16: what a profile names that is no regular file, can't be read by its user or is reached over a link is not opened; ranges beyond files and what is gone
/// cost nothing.
#[test]
fn hostile_profiles_open_nothing() {
    let test = "hostile_profiles_open_nothing";
    let Some(bed) = Bed::new(test) else {
        return;
    };
    let at = |name: &str| bed.disk.dir.join(name);
    let fifo = at("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    for name in ["target", "fine", "secret"] {
        fs::write(at(name), vec![b'x'; 1 << 20]).unwrap();
    }
    symlink(at("target"), at("link")).unwrap();
    fs::create_dir(at("real")).unwrap();
    fs::rename(at("target"), at("real/target")).unwrap();
    symlink(at("real"), at("dir")).unwrap();
    symlink("real/target", at("link2")).unwrap();
    let names = [
        fifo.clone(),
        at("link2"),
        at("dir/target"),
        at("real"),
        at("gone"),
        at("fine/below"),
        at("secret"),
        "/proc/self/environ".into(),
        "/dev/zero".into(),
        "/dev/full".into(),
        "/".into(),
    ];
    let mut entries: Vec<Entry> = names.iter().map(|n| entry(n, 1 << 40)).collect();
    entries.push(entry(at("fine"), 1 << 50));
    for need in [Need::Listing, Need::Attributes] {
        entries.extend(names.iter().map(|n| Entry {
            need,
            ..entry(n, 1)
        }));
    }
    let wrong = (0..20_000).map(|i| entry(format!("/nowhere/{i}"), 1));
    entries.extend(wrong);
    put(&bed.profile(), &profile_of(entries));
    // Nobody but root may read it, nor list what it lies in.
    fs::set_permissions(at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(bed.profile(), fs::Permissions::from_mode(0o644)).unwrap();
    bed.cold();
    // Would go on if somebody opened the pipe for reading.
    let mut writer = Command::new("sh")
        .args(["-c", "echo x > \"$0\""])
        .arg(&fifo)
        .spawn()
        .unwrap();
    let report = bed.dir.join("r.json");
    fs::write(&report, "").unwrap();
    fs::set_permissions(&report, fs::Permissions::from_mode(0o666)).unwrap();
    let flag = remember(&bed.profile());
    let flags = ["--report=r.json", flag.as_str()];
    let mut command = outrider_run(&bed.dir, &flags, &["sleep", "1"]);
    if is_root() {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let totals = &report["totals"];
    // Look-ups have their bound, too: so many blocks as a slice has. What isn't there is passed over as what is cached is.
    let lost = number(totals, "remembered_lost");
    assert!((100..9000).contains(&lost), "{totals}");
    assert_eq!(cached_pages(&at("real/target")), 0, "a link was followed");
    if is_root() {
        assert_eq!(cached_pages(&at("secret")), 0, "a secret was read");
    }
    assert_eq!(
        number(totals, "remembered_fetched_bytes"),
        1 << 20,
        "{totals}"
    );
    assert!(writer.try_wait().unwrap().is_none(), "the pipe was opened");
    writer.kill().unwrap();
    writer.wait().unwrap();
}

/// B15, B16: whatever a file has, the command ends soon, either well or with one line and exit code 2, and what is no profile stays as it is.
#[test]
fn files_that_are_no_profiles_are_refused() {
    let dir = fresh("files_that_are_no_profiles_are_refused");
    let sound = format::encode(&profile_of(vec![entry("/bin/sh", 3), entry("/bin/ls", 9)]));
    let mut random = Random(11);
    for i in 0..60 {
        let mut file = sound.clone();
        for _ in 0..1 + random.next() % 4 {
            let at = random.next() as usize % file.len();
            file[at] = random.next() as u8;
        }
        file.truncate(1 + random.next() as usize % (2 * file.len()));
        let name = format!("./{i}.profile");
        fs::write(dir.join(&name), &file).unwrap();
        let output = command(&dir, &["profile", "show", &name, "--json"]);
        match output.status.code() {
            Some(0) => drop(serde_json::from_slice::<Value>(&output.stdout).unwrap()),
            Some(2) => assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1),
            code => panic!("{code:?}: {output:?}"),
        }
    }
    fs::write(dir.join("notes"), "my notes\n").unwrap();
    fs::create_dir(dir.join("directory")).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(dir.join("fifo"))
            .status()
            .unwrap()
            .success()
    );
    for name in ["./notes", "./directory", "./fifo"] {
        complains(&dir, &["profile", "show", name]);
        complains(&dir, &["run", &format!("--remember={name}"), "--", "true"]);
        complains(&dir, &["warm", "--profile", name]);
    }
    assert_eq!(fs::read(dir.join("notes")).unwrap(), b"my notes\n");
    for name in ["../x", "-x", ".x", "a b", ""] {
        if name != "../x" {
            let text = complains(&dir, &["run", &format!("--remember={name}"), "--", "true"]);
            assert!(text.contains("accepted are"), "{text}");
        }
    }
    complains(&dir, &["profile", "show", "nothing"]);
    // A damaged one is told, and makes room.
    fs::write(dir.join("damaged"), &sound[..sound.len() - 3]).unwrap();
    let output = command(&dir, &["run", "--remember=./damaged", "--", "true"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap().lines().count(), 1);
    tells(&dir, &["profile", "show", "./damaged"]);
}

/// B1, B15: that there is no place for a profile, or that it can't be read, stops no job.
#[test]
fn a_job_runs_without_a_profile() {
    let dir = fresh("a_job_runs_without_a_profile");
    let place = dir.join("state/outrider/profiles");
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join("strange.profile"), "no profile\n").unwrap();
    let mut later = format::encode(&profile_of(vec![entry("/bin/sh", 3)]));
    later[7] += 1;
    fs::write(place.join("later.profile"), later).unwrap();
    fs::create_dir(place.join("directory.profile")).unwrap();
    let state = dir.join("state");
    let (state, nowhere) = (
        state.to_str().unwrap(),
        dir.join("state/outrider/profiles/strange.profile"),
    );
    let cases = [
        (None, "x"),
        (nowhere.to_str(), "x"),
        (Some(state), "strange"),
        (Some(state), "later"),
        (Some(state), "directory"),
    ];
    for (state, name) in cases {
        let flags = ["--report=r.json", &format!("--remember={name}")];
        for flags in [&flags[1..], &flags] {
            let mut command = outrider_run(&dir, flags, &["sh", "-c", "echo here; exit 3"]);
            command.env_remove("XDG_STATE_HOME").env_remove("HOME");
            let output = command
                .envs(state.map(|s| ("XDG_STATE_HOME", s)))
                .output()
                .unwrap();
            assert_eq!(output.status.code(), Some(3), "{name}: {output:?}");
            assert_eq!(output.stdout, b"here\n");
            let told = match flags.len() {
                1 => String::from_utf8(output.stderr).unwrap(),
                _ => fs::read_to_string(dir.join("r.json")).unwrap(),
            };
            assert!(told.contains("nothing is remembered"), "{name}: {told}");
        }
    }
    assert_eq!(fs::read(nowhere).unwrap(), b"no profile\n");
}

/// B15, B16: a profile is not taken over a link in a directory that others may write to, and none is written over one.
#[test]
fn links_of_others_are_not_followed() {
    let dir = fresh("links_of_others_are_not_followed");
    let (open, own) = (dir.join("open"), dir.join("own"));
    for at in [&open, &own] {
        fs::create_dir(at).unwrap();
    }
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    put(&own.join("p"), &profile_of(vec![entry("/bin/sh", 1)]));
    symlink(own.join("p"), open.join("p")).unwrap();
    symlink(&own, open.join("d")).unwrap();
    symlink(&own, dir.join("mine")).unwrap();
    for name in ["open/p", "open/d/p"] {
        let text = complains(&dir, &["profile", "show", name]);
        assert!(text.contains("link"), "{text}");
        complains(&dir, &["run", &format!("--remember={name}"), "--", "true"]);
    }
    // Nobody else can have made this one.
    tells(&dir, &["profile", "show", "mine/p"]);
    fs::remove_file(open.join("p")).unwrap();
    symlink(dir.join("victim"), open.join("p")).unwrap();
    complains(&dir, &["run", "--remember=open/p", "--", "true"]);
    assert!(!dir.join("victim").exists());
}

/// B12, B15: a profile of another job costs its first slice twice, and what it had is forgotten after three runs.
#[test]
fn a_wrong_profile_is_bounded_and_forgotten() {
    const SLICE: u64 = 32 << 20;
    let Some(bed) = Bed::new("a_wrong_profile_is_bounded_and_forgotten") else {
        return;
    };
    let mut entries = Vec::new();
    for i in 0..96 {
        let name = bed.disk.dir.join(format!("wrong{i}"));
        fs::write(&name, vec![i as u8; 1 << 20]).unwrap();
        entries.push(entry(name, 256));
    }
    put(&bed.profile(), &profile_of(entries));
    let flag = remember(&bed.profile());
    let run = || {
        bed.cold();
        let (_, totals) = run(&bed.dir, &[&flag], &["sleep", "1"]);
        number(&totals, "remembered_fetched_bytes")
    };
    for _ in 0..2 {
        let fetched = run();
        // What any program reads, the C library, may be among what was learned.
        assert!(
            fetched > SLICE / 2 && fetched <= SLICE + (16 << 20),
            "{fetched}"
        );
    }
    // What two runs did not need is unlikely from here on, and what three did not is forgotten.
    assert!(run() < 4 << 20);
    let exported = tells(&bed.dir, &["profile", "show", "./job.profile", "--json"]);
    assert!(!exported.contains("/wrong"), "{exported}");
}

/// B15, B12: what is cached is looked at here and there, and what is cold all of it.
#[test]
fn a_cached_run_looks_at_little() {
    const MANY: u64 = 2000;
    let Some(bed) = Bed::new("a_cached_run_looks_at_little") else {
        return;
    };
    let mut entries = Vec::new();
    for i in 0..MANY {
        let at = bed.disk.dir.join(format!("many/{}", i / 100));
        fs::create_dir_all(&at).unwrap();
        let name = at.join(format!("{i}"));
        fs::write(&name, vec![i as u8; 4096]).unwrap();
        entries.push(entry(name, 1));
    }
    put(&bed.profile(), &profile_of(entries.clone()));
    let flag = remember(&bed.profile());
    bed.cold();
    let (_, totals) = run(&bed.dir, &[&flag], &["sleep", "4"]);
    assert_eq!(number(&totals, "remembered_entries"), MANY, "{totals}");
    assert_eq!(number(&totals, "remembered_fetched_bytes"), MANY * PAGE);
    // They are there now, and stay.
    let kept = (entries.iter()).map(|e| Kept::cached(&e.path));
    let _kept: Vec<Kept> = kept.collect();
    put(&bed.profile(), &profile_of(entries));
    let (_, totals) = run(&bed.dir, &[&flag], &["sleep", "1"]);
    let looked_at = number(&totals, "remembered_entries");
    assert!(looked_at < MANY / 3, "{totals}");
    // The kernel may have given up a page or two before.
    assert!(
        number(&totals, "remembered_fetched_bytes") < 16 * PAGE,
        "{totals}"
    );
}

/// B15, B12: a run that needs what the profile has, and finds it cached, leaves the profile as it is; what has changed meanwhile is learned.
#[test]
fn what_is_right_is_left_as_it_is() {
    let Some(bed) = Bed::new("what_is_right_is_left_as_it_is") else {
        return;
    };
    let flag = remember(&bed.profile());
    for _ in 0..3 {
        bed.run(&[&flag]);
    }
    let argv = bed.argv();
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let warm = || {
        run(&bed.dir, &[&flag], &argv);
        fs::read(bed.profile()).unwrap()
    };
    // Some may learn what was touched last, of which beside a busy processor there is something each time for a while.
    let mut before = warm();
    support::eventually(|| {
        let now = warm();
        match std::mem::replace(&mut before, now) == before {
            true => Ok(()),
            false => Err("the profile changes with each run".to_owned()),
        }
    });
    let list = fs::read_to_string(&bed.list).unwrap();
    let names: Vec<&str> = list.lines().filter(|l| !l.contains(' ')).collect();
    for name in &names {
        fs::write(name, vec![7; 4321]).unwrap();
    }
    warm();
    let profile = format::decode(&warm()).unwrap();
    let sizes = |e: &&Entry| names.iter().any(|n| e.path == Path::new(n));
    let own: Vec<&Entry> = profile.entries.iter().filter(sizes).collect();
    assert_eq!(own.len(), names.len());
    assert!(own.iter().all(|e| e.size == 4321), "{own:?}");
}

/// B15: what a run makes for itself is not remembered, not even in its first second.
#[test]
fn what_a_run_makes_is_not_remembered() {
    let Some(bed) = Bed::new("what_a_run_makes_is_not_remembered") else {
        return;
    };
    let at = bed.disk.dir.join("made");
    let script = format!(
        "sleep 0.1; echo x > {0}; cat {0}; sleep 0.1; rm {0}",
        at.display()
    );
    // The clock of a second may strike meanwhile.
    for _ in 0..3 {
        run(
            &bed.dir,
            &[&remember(&bed.profile())],
            &["sh", "-c", &script],
        );
        let profile = format::decode(&fs::read(bed.profile()).unwrap()).unwrap();
        let made = profile.entries.iter().find(|e| e.path.ends_with("made"));
        assert!(made.is_none(), "{made:?}");
    }
}

/// B15: what a profile has fetched before a program reads it was there in time, and counts as read once.
#[test]
fn what_a_profile_fetched_is_not_missing() {
    const SIZE: u64 = 32 << 20;
    let Some(bed) = Bed::new("what_a_profile_fetched_is_not_missing") else {
        return;
    };
    let file = bed.disk.dir.join("whole");
    fs::write(&file, vec![5; SIZE as usize]).unwrap();
    let flag = remember(&bed.profile());
    let mut found = Vec::new();
    for _ in 0..5 {
        bed.cold();
        let (_, totals) = run(&bed.dir, &[&flag], &["cat", file.to_str().unwrap()]);
        let [missed, fetched] =
            ["miss_bytes", "remembered_fetched_bytes"].map(|field| number(&totals, field));
        found.push((missed, fetched));
    }
    // What it fetched while the program waited for it may be either.
    let twice = |(missed, fetched): &&(u64, u64)| missed + fetched > SIZE + SIZE / 2;
    assert!(found.iter().skip(1).filter(twice).count() < 2, "{found:?}");
}

/// B15: what is fetched of a profile is in the report as of every other source, all of it used or wasted, and explained.
#[test]
fn a_profile_is_a_source() {
    let Some(bed) = Bed::new("a_profile_is_a_source") else {
        return;
    };
    let flag = remember(&bed.profile());
    bed.run(&[&flag]);
    let explain = bed.dir.join("explained");
    let explained = format!("--explain={}", explain.display());
    bed.run(&[&flag, &explained]);
    let report = fs::read(bed.dir.join("r.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let totals = &report["totals"];
    let of = |field| number(&report["sources"]["remembered"], field);
    let fetched = number(totals, "remembered_fetched_bytes");
    assert!(fetched > 0, "{totals}");
    assert_eq!(number(totals, "foreseen_remembered_bytes"), fetched);
    assert_eq!(of("asked_bytes"), fetched);
    assert_eq!(of("used_bytes") + of("wasted_bytes"), fetched);
    assert!(of("used_bytes") > fetched / 2, "{report}");
    assert!(of("late_bytes") <= of("used_bytes"), "{report}");
    let lines = fs::read_to_string(&explain).unwrap();
    let told = lines.lines().filter(|l| l.contains(" remembered \""));
    assert!(told.count() > FILES / 2, "{lines}");
}

/// B15: what the settings exclude is not fetched, whatever a profile says.
#[test]
fn what_is_excluded_is_not_fetched() {
    let Some(bed) = Bed::new("what_is_excluded_is_not_fetched") else {
        return;
    };
    let flag = remember(&bed.profile());
    bed.run(&[&flag]);
    let data = bed.disk.dir.join("data").canonicalize().unwrap();
    let config = bed.dir.join("excluding.toml");
    let text = format!("[files]\nexclude = [{:?}]\n", data.to_str().unwrap());
    fs::write(&config, text).unwrap();
    let config = format!("--config={}", config.display());
    bed.cold();
    let (_, totals) = run(&bed.dir, &[&flag, &config], &["sleep", "0.5"]);
    assert!(
        number(&totals, "remembered_lost") >= FILES as u64,
        "{totals}"
    );
    let list = fs::read_to_string(&bed.list).unwrap();
    for line in list.lines() {
        let name = Path::new(line.split(' ').next().unwrap());
        assert_eq!(cached_pages(name), 0, "{name:?}");
    }
}

/// B15: of many names that are asked about those are kept whose inodes others are read with, the same ones in each run, and their directories.
#[test]
fn many_names_leave_few_entries() {
    let Some(bed) = Bed::new("many_names_leave_few_entries") else {
        return;
    };
    let many = bed.disk.dir.join("many");
    for i in 0..7000 {
        let at = many.join(format!("{:02}", i % 20));
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join(format!("name_{i}")), "x").unwrap();
    }
    let script = "import os, sys
for at, _, names in os.walk(sys.argv[1]):
    for name in names: os.stat(os.path.join(at, name))";
    let argv = ["python3", "-c", script, many.to_str().unwrap()];
    let flag = remember(&bed.profile());
    let kept = || {
        bed.cold();
        run(&bed.dir, &[&flag], &argv);
        let told = tells(&bed.dir, &["profile", "show", "./job.profile", "--json"]);
        let profile: Value = serde_json::from_str(&told).unwrap();
        let entries = profile["entries"].as_array().unwrap().iter();
        let below = entries.filter(|e| {
            e["path"]
                .as_str()
                .is_some_and(|p| p.starts_with(many.to_str().unwrap()))
        });
        let mut all: Vec<(String, String)> = below
            .map(|e| (e["need"].to_string(), e["path"].to_string()))
            .collect();
        all.sort();
        all
    };
    let first = kept();
    let count = |need: &str| first.iter().filter(|(n, _)| n.contains(need)).count();
    assert_eq!(count("directory"), 21, "{first:?}");
    assert!((1..400).contains(&count("attributes")), "{first:?}");
    assert_eq!(kept(), first);
}

/// B15: runs of one job at the same time share its profile, and what each of them needs is in it.
#[test]
fn runs_at_the_same_time_share() {
    let dir = fresh("runs_at_the_same_time_share");
    let names: Vec<PathBuf> = (0..3).map(|i| dir.join(format!("own{i}"))).collect();
    for name in &names {
        fs::write(name, name.to_str().unwrap()).unwrap();
    }
    let profile = dir.join("p");
    let start = |name: &PathBuf| {
        let flag = remember(&profile);
        let mut command = outrider_run(&dir, &[&flag], &["cat", name.to_str().unwrap()]);
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let runs: Vec<_> = names.iter().map(start).collect();
    for mut run in runs {
        assert!(run.wait().unwrap().success());
    }
    let paths = tells(&dir, &["profile", "show", "./p", "--json"]);
    for name in &names {
        assert!(
            paths.contains(name.to_str().unwrap()),
            "{name:?} in {paths}"
        );
    }
    let left: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left.len(), names.len() + 1, "{left:?}");
}

/// B15: a file that was replaced by another one of its name is fetched as far as its old ranges reach, and one of which the job needs more is learned.
#[test]
fn an_upgraded_file_is_known_by_its_name() {
    let Some(bed) = Bed::new("an_upgraded_file_is_known_by_its_name") else {
        return;
    };
    let large = bed.disk.dir.join("data/large");
    let flag = remember(&bed.profile());
    bed.run(&[&flag]);
    for len in [20 << 20, 4 << 20] {
        fs::remove_file(&large).unwrap();
        fs::write(&large, vec![7u8; len]).unwrap();
        let list = fs::read_to_string(&bed.list).unwrap();
        let new = bed.dir.join("new");
        // It is replaced, and not read.
        let kept: Vec<&str> = list.lines().filter(|l| !l.contains("large")).collect();
        fs::write(&new, kept.join("\n")).unwrap();
        let known = fs::read(bed.profile()).unwrap();
        // Kernels that reclaim ahead of need (DAMON's pageout) may take single pages back at once.
        eventually(|| {
            fs::write(bed.profile(), &known).unwrap();
            bed.cold();
            let argv = bed.argv();
            run(
                &bed.dir,
                &[&flag],
                &[&argv[0], &argv[1], new.to_str().unwrap()],
            );
            let cached = cached_pages(&large) * PAGE;
            let expected = if len > 12 << 20 { 2 << 20 } else { 1 << 20 };
            match cached >= expected && cached < expected + (1 << 20) {
                true => Ok(()),
                false => Err(format!("{cached} of {len}")),
            }
        });
    }
}

/// B15: without a name each job has its own, which its program, arguments and directory make; with one it is the user's.
#[test]
fn a_job_has_a_name() {
    let dir = fresh("a_job_has_a_name");
    fs::create_dir(dir.join("sub")).unwrap();
    let run = |at: &str, flag: &str, argv: &[&str]| {
        let mut command = outrider_run(&dir, &[flag], argv);
        let output = command.current_dir(dir.join(at)).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    run(".", "--remember", &["echo", "a"]);
    run(".", "--remember", &["echo", "a"]);
    run(".", "--remember", &["echo", "b"]);
    run("sub", "--remember", &["echo", "a"]);
    run(".", "--remember=mine", &["echo", "c"]);
    run(".", "--remember=mine", &["echo", "d"]);
    let list: Value = serde_json::from_str(&tells(&dir, &["profile", "list", "--json"])).unwrap();
    let runs: Vec<(bool, u64)> = (list.as_array().unwrap().iter())
        .map(|p| (p["name"] == "mine", p["runs"].as_u64().unwrap()))
        .collect();
    let own = runs.iter().filter(|(mine, _)| !mine).count();
    assert_eq!((runs.len(), own), (4, 3), "{list}");
    assert!(
        runs.contains(&(true, 2)) && runs.contains(&(false, 2)),
        "{list}"
    );
    assert!(
        dir.join(".local/state/outrider/profiles/mine.profile")
            .is_file()
    );
}

/// B15: a profile that can't be written is used all the same, and stays as it is.
#[test]
fn a_profile_that_cannot_be_written_is_used() {
    let Some(bed) = Bed::new("a_profile_that_cannot_be_written_is_used") else {
        return;
    };
    if !is_root() {
        return;
    }
    let place = bed.dir.join("place");
    fs::create_dir(&place).unwrap();
    let profile = place.join("p");
    let name = bed.disk.dir.join("data/large");
    put(&profile, &profile_of(vec![entry(&name, 512)]));
    let before = fs::read(&profile).unwrap();
    fs::write(bed.dir.join("r.json"), "").unwrap();
    fs::set_permissions(bed.dir.join("r.json"), fs::Permissions::from_mode(0o666)).unwrap();
    bed.cold();
    let flags = ["--report=r.json", &remember(&profile)];
    let mut command = outrider_run(&bed.dir, &flags, &["sleep", "0.5"]);
    let output = command.uid(65534).gid(65534).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let report: Value = serde_json::from_slice(&fs::read(bed.dir.join("r.json")).unwrap()).unwrap();
    assert_eq!(
        number(&report["totals"], "remembered_fetched_bytes"),
        2 << 20
    );
    assert_eq!(cached_pages(&name), 512);
    assert!(
        report["lost"]
            .to_string()
            .contains("profile: it could not be written"),
        "{report}"
    );
    assert_eq!(fs::read(&profile).unwrap(), before);
}

/// B15: profiles are shown, checked, merged, pruned, exported and taken in elsewhere, and warm reads what one has.
#[test]
fn profiles_go_elsewhere() {
    let Some(bed) = Bed::new("profiles_go_elsewhere") else {
        return;
    };
    let dir = &bed.dir;
    let flag = remember(&bed.profile());
    bed.run(&[&flag]);
    let own = "./job.profile";
    let paths = tells(dir, &["profile", "export", own, "--paths"]);
    let list = fs::read_to_string(&bed.list).unwrap();
    let mut names: Vec<&str> = list.lines().map(|l| l.split(' ').next().unwrap()).collect();
    names.dedup();
    let exported: Vec<&str> = paths.lines().filter(|p| names.contains(p)).collect();
    assert_eq!(exported, names, "in the order of need");
    let of_large = || {
        let ranges = tells(dir, &["profile", "export", own, "--ranges"]);
        let lines = ranges.lines().filter(|l| l.contains("/large\t"));
        let bytes = lines.map(|l| l.rsplit('\t').next().unwrap().parse::<u64>().unwrap());
        bytes.sum::<u64>()
    };
    // Where the machine is busy a run may miss what its program reads last; the next one learns it.
    for _ in 0..4 {
        if of_large() < 2 << 20 {
            bed.run(&[&flag]);
        }
    }
    let of_large = of_large();
    assert!((2 << 20..4 << 20).contains(&of_large), "{of_large}");
    assert!(tells(dir, &["profile", "show", own]).contains("data"));
    assert!(tells(dir, &["profile", "show", own, "--svg"]).ends_with("</svg>\n"));

    // Elsewhere: the same files below another root.
    let copy = bed.disk.dir.join("copy");
    let mut copied = Command::new("cp");
    copied.arg("-a").arg(bed.disk.dir.join("data")).arg(&copy);
    assert!(copied.status().unwrap().success());
    let root = bed.disk.dir.join("data");
    let portable = command(
        dir,
        &[
            "profile",
            "export",
            own,
            "--portable",
            "--root",
            root.to_str().unwrap(),
        ],
    );
    assert!(portable.status.success());
    fs::write(dir.join("portable"), portable.stdout).unwrap();
    complains(dir, &["profile", "import", own, "x"]);
    complains(
        dir,
        &[
            "profile",
            "import",
            "./portable",
            "x",
            "--root",
            "./nowhere",
        ],
    );
    complains(dir, &["profile", "export", own]);
    complains(dir, &["run", "--remember=./portable", "--", "true"]);
    tells(
        dir,
        &[
            "profile",
            "import",
            "./portable",
            "x",
            "--root",
            copy.to_str().unwrap(),
        ],
    );
    let check = |name: &str| -> Value {
        serde_json::from_str(&tells(dir, &["profile", "check", name, "--json"])).unwrap()
    };
    let checked = check("x");
    assert_eq!(number(&checked, "gone"), 0, "{checked}");
    assert!(number(&checked, "needs") >= names.len() as u64);

    bed.cold();
    tells(dir, &["warm", "--profile", "x"]);
    let checked = check("x");
    assert_eq!(checked["cached_bytes"], checked["there_bytes"]);
    let large = cached_pages(&copy.join("large")) * PAGE;
    assert!((2 << 20..4 << 20).contains(&large), "{large}");

    let gone = copy.join(Path::new(names[0]).strip_prefix(&root).unwrap());
    fs::remove_file(&gone).unwrap();
    assert_eq!(number(&check("x"), "gone"), 1);
    assert_eq!(tells(dir, &["profile", "prune", "x"]), "dropped 1 need\n");
    assert_eq!(number(&check("x"), "gone"), 0);
    let needs = |name: &str| number(&check(name), "needs");
    let (a, b) = (needs(own), needs("x"));
    tells(dir, &["profile", "merge", "both", own, "x"]);
    assert_eq!(needs("both"), a + b);
    complains(dir, &["profile", "merge", "both", "./portable"]);
    assert_eq!(needs("both"), a + b);
    assert_eq!(tells(dir, &["profile", "prune", "--unused", "1"]), "");
    assert_eq!(tells(dir, &["profile", "list"]).lines().count(), 2);
}

/// B15, B16: a profile that is taken in has no path that is longer than the kernel takes, and can be read again.
#[test]
fn a_profile_below_a_long_root_can_be_read() {
    let dir = fresh("a_profile_below_a_long_root_can_be_read");
    let long = |n: usize| vec!["d".repeat(200); n].join("/");
    let root = dir.join(long(9));
    fs::create_dir_all(&root).unwrap();
    let profile = Profile {
        relative: true,
        ..profile_of(vec![entry(long(15), 1), entry("bin/sh", 1)])
    };
    put(&dir.join("portable"), &profile);
    let root = root.to_str().unwrap();
    tells(
        &dir,
        &["profile", "import", "./portable", "./p", "--root", root],
    );
    let shown = tells(&dir, &["profile", "show", "./p", "--json"]);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["entries"].as_array().unwrap().len(), 1);
}

/// B15: as the entry of a container: below another root, with a profile that came with it, where nothing can be written.
#[test]
fn a_container_brings_its_profile() {
    let test = "a_container_brings_its_profile";
    let Some(bed) = Bed::new(test) else {
        return;
    };
    let busybox = Path::new("/bin/busybox");
    if !busybox.exists() || !is_root() {
        return skip(test, "busybox and root are needed");
    }
    let root = bed.disk.dir.join("root");
    fs::create_dir_all(root.join("proc")).unwrap();
    fs::copy(busybox, root.join("busybox")).unwrap();
    fs::copy(outrider(), root.join("outrider")).unwrap();
    fs::copy(
        outrider().with_file_name("liboutrider.so"),
        root.join("liboutrider.so"),
    )
    .unwrap();
    let mut data = File::create(root.join("data")).unwrap();
    data.write_all(&vec![1u8; 8 << 20]).unwrap();
    drop(data);
    put(
        &root.join("app.profile"),
        &profile_of(vec![entry("/data", 1024)]),
    );
    let before = fs::read(root.join("app.profile")).unwrap();
    // Without /proc nothing is fetched, and the program runs all the same.
    for (proc, pages) in [("mount -t proc proc proc", 1024), ("true", 0)] {
        bed.cold();
        let script = format!(
            "mount --bind . . && cd \"$(pwd)\" && mount -o remount,bind,ro . && {proc} && exec chroot . /outrider run --remember=/app.profile -- /busybox sleep 0.7"
        );
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .current_dir(&root)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            cached_pages(&root.join("data")),
            pages,
            "{proc}: {output:?}"
        );
    }
    assert_eq!(fs::read(root.join("app.profile")).unwrap(), before);
}

/// B15, B16: a process that has given up rights by an instruction of its own still has the log mapped in which hooks write names: what it writes there is not looked
/// up with the rights that it had.
#[test]
fn names_are_of_those_who_may_look_them_up() {
    let test = "names_are_of_those_who_may_look_them_up";
    if !is_root() {
        return skip(test, "needs root");
    }
    let dir = fresh(test);
    let secret = dir.join("secret");
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).unwrap();
    let name = secret.join("file");
    fs::write(&name, vec![b'x'; 1 << 20]).unwrap();
    let program = compile("forged_needs", "forged_needs", &[]);
    // What was found out before a name was written says nothing of it, however short a time before: while names are opened it is looked all the time.
    for (opens, wait) in [("0", "0"), ("0", "250")]
        .into_iter()
        .chain([("3000", "0"); 8])
    {
        let flags = ["--remember=./p", "--report=r.json"];
        let argv = [program.to_str().unwrap(), opens, wait];
        let mut command = outrider_run(&dir, &flags, &argv);
        let command = command.env("FORGED", &name).stdin(Stdio::piped());
        let mut run = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        let mut out = BufReader::new(run.stdout.take().unwrap());
        out.read_line(&mut said).unwrap();
        assert_eq!(said, "written\n");
        looks_at_log(run.id() as i32);
        drop(run.stdin.take());
        assert!(run.wait().unwrap().success());
        let shown = tells(&dir, &["profile", "show", "./p", "--json"]);
        assert!(!shown.contains("secret"), "{opens} {wait}: {shown}");
        let report = fs::read_to_string(dir.join("r.json")).unwrap();
        assert!(report.contains("\"rights: "), "{opens} {wait}: {report}");
        fs::remove_file(dir.join("p")).unwrap();
    }
}

/// Returns when the thread that takes names from the log of a run has done so since: not after a time, for it may wait for a processor, but after turns. Before each it
/// sleeps, for 20 ms at most and for a little more than it has worked.
fn looks_at_log(runner: i32) {
    let service = support::helper_of(runner).expect("a service");
    let witness = || {
        let threads = fs::read_dir(format!("/proc/{service}/task")).unwrap();
        let is = |at: &PathBuf| {
            let name = fs::read_to_string(at.join("comm")).unwrap_or_default();
            name.starts_with("outrider-profil")
        };
        threads.flatten().map(|t| t.path()).find(is)
    };
    let witness = support::wait_for(300.0, witness).expect("a witness");
    let turns = || {
        let status = fs::read_to_string(witness.join("status")).unwrap();
        let turns = status
            .lines()
            .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        turns.unwrap().trim().parse::<u64>().unwrap()
    };
    let first = turns();
    support::wait_for(300.0, || (turns() > first + 50).then_some(())).expect("it goes on");
}

/// B6, B15, B16: of programs without hooks count what they have open for reading: not what they write to, nor what they have found without any right, nor what a
/// program has open that runs with other rights than the service.
#[test]
fn only_what_is_open_for_reading_is_needed() {
    let test = "only_what_is_open_for_reading_is_needed";
    if !have("python3") {
        return skip(test, "python3 is not installed");
    }
    let dir = fresh(test);
    let Some(disk) = Disk::of(test, &dir) else {
        return;
    };
    for name in ["read", "written", "found", "others"] {
        fs::write(disk.dir.join(name), vec![b'x'; 200_000]).unwrap();
    }
    // Without hooks, for it is started without the library.
    let script = "import os, sys, time
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
held = [os.open(sys.argv[1] + name, flags) for name, flags in eval(sys.argv[3])]
os.pread(held[0], 200000, 0)
time.sleep(1)
";
    fs::write(dir.join("hold.py"), script).unwrap();
    let at = format!("{}/", disk.dir.display());
    let hold = |user: &str, what: &str| {
        let job = dir.join("hold.py");
        let argv = [
            "env",
            "-u",
            "LD_PRELOAD",
            "python3",
            job.to_str().unwrap(),
            &at,
        ];
        let argv = [&argv[..], &[user, what]].concat();
        disk.does("cold", &[]);
        run(&dir, &["--remember=./p"], &argv);
        let shown = tells(&dir, &["profile", "show", "./p", "--json"]);
        fs::remove_file(dir.join("p")).unwrap();
        shown
    };
    let user = rustix::process::geteuid().as_raw().to_string();
    let what = "[('read', os.O_RDONLY), ('written', os.O_WRONLY), ('found', os.O_PATH)]";
    let shown = hold(&user, what);
    assert!(shown.contains("/read\""), "{shown}");
    assert!(
        !shown.contains("/written\"") && !shown.contains("/found\""),
        "{shown}"
    );
    if is_root() {
        let shown = hold("65534", "[('others', os.O_RDONLY)]");
        assert!(!shown.contains("/others\""), "{shown}");
    }
}

/// B15: a job that is remembered may unmount what it has read from, and what its profile names lies on: nothing there is held.
#[test]
fn a_remembered_job_unmounts() {
    let test = "a_remembered_job_unmounts";
    let dir = fresh(test);
    let Some(disk) = Disk::of(test, &dir) else {
        return;
    };
    let (below, mount) = (disk.dir.join("below"), dir.join("mount"));
    fs::create_dir_all(&below).unwrap();
    fs::create_dir_all(&mount).unwrap();
    for i in 0..20 {
        fs::write(below.join(format!("f{i}")), vec![b'x'; 200_000]).unwrap();
    }
    let mount_it = || {
        let mut command = Command::new("mount");
        let command = command.arg("--bind").args([&below, &mount]);
        assert!(command.status().unwrap().success());
    };
    let script = "cat mount/* > /dev/null; ls mount > /dev/null; umount mount";
    // Until its profile is known, with it, and where the job itself has mounted it.
    for own in [false, false, true] {
        let script = match own {
            false => script.to_owned(),
            true => format!("mount --bind {} mount && {script}", below.display()),
        };
        if !own {
            mount_it();
        }
        let flags = ["--remember=./p"];
        let output = outrider_run(&dir, &flags, &["sh", "-c", &script]).output();
        let output = output.unwrap();
        let _ = Command::new("umount").arg("-q").arg(&mount).output();
        assert!(output.status.success(), "{output:?}");
    }
}

/// B15, B16: who begins in a user, mount or process namespace of its own, or enters one, has the log of names no longer: what it would write there means something
/// else to who reads it.
#[test]
fn no_log_in_other_namespaces() {
    let test = "no_log_in_other_namespaces";
    if !is_root() {
        return skip(test, "needs root");
    }
    let dir = fresh(test);
    let program = compile("kept_needs", "kept_needs", &[]);
    let argv = [program.to_str().unwrap()];
    let (output, _) = run(&dir, &["--remember=./p"], &argv);
    let said = String::from_utf8(output.stdout).unwrap();
    let spaces = ["user", "mount", "process"];
    let ways = spaces.iter().flat_map(|space| {
        let ways = ["clone", "syscall", "unshare"];
        ways.map(|way| format!("{way}-{space} 0\n"))
    });
    let expected = format!("here 1\n{}here 1\n", ways.collect::<String>());
    assert_eq!(said, expected);
}

/// S1, B16: the log goes when a process changes its user or groups, also where it has no memory with the service because none could be made.
#[test]
fn the_log_goes_where_there_is_no_memory() {
    let test = "the_log_goes_where_there_is_no_memory";
    if !is_root() || !have("python3") {
        return skip(test, "needs root and python3");
    }
    let dir = fresh(test);
    fs::write(dir.join("data"), Random(3).bytes(16 << 20)).unwrap();
    let script = "import os, resource, sys, threading
if len(sys.argv) < 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
    os.execvp('python3', ['python3', '-u', 'job.py', 'again'])
def kept(when): print(when, [name for l in open('/proc/self/maps') if 'memfd:outrider' in l for name in l.split()[5:6]])
def each(name, change):
    child = os.fork()
    if child: return os.waitpid(child, 0)
    change()
    kept(name)
    os._exit(0)
data = os.open('data', os.O_RDONLY)
os.fsync(data)
os.posix_fadvise(data, 0, 0, os.POSIX_FADV_DONTNEED)
for at in range(16, 0, -1): os.pread(data, 65536, (at - 1) << 20)
kept('before')
each('groups', lambda: os.setgroups([]))
each('group', lambda: os.setgid(65534))
each('user', lambda: os.setresuid(65534, 65534, 65534))
each('thread', lambda: (t := threading.Thread(target=os.chroot, args=('/proc/self/root',)), t.start(), t.join()))
os.setuid(65534)
kept('after')
";
    fs::write(dir.join("job.py"), script).unwrap();
    let (output, _) = run(&dir, &["--remember=./p"], &["python3", "-u", "job.py"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let gone = ["groups", "group", "user", "thread", "after"].map(|when| format!("{when} []\n"));
    let expected = format!("before ['/memfd:outrider-needs']\n{}", gone.concat());
    assert_eq!(said, expected);
}

/// B15: a program that watches files sees its own opens and no more, also where its run is remembered for the first time.
#[test]
fn a_remembered_job_that_watches_sees_no_others() {
    let test = "a_remembered_job_that_watches_sees_no_others";
    if !have("python3") {
        return skip(test, "python3 is not installed");
    }
    let dir = fresh(test);
    let Some(disk) = Disk::of(test, &dir) else {
        return;
    };
    fs::write(disk.dir.join("large"), vec![b'x'; 1 << 20]).unwrap();
    let script = "import ctypes, os, struct, sys, time
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(os.O_NONBLOCK)
assert libc.inotify_add_watch(watch, sys.argv[1].encode(), 0x30) > 0
time.sleep(0.2)
open(sys.argv[1] + '/large', 'rb').read()
time.sleep(0.3)
data, opens = os.read(watch, 65536), 0
while data:
    # IN_OPEN; between two of them is one of IN_CLOSE_NOWRITE, or they would be told as one.
    opens += bool(struct.unpack('iIII', data[:16])[1] & 0x20)
    data = data[16 + struct.unpack('iIII', data[:16])[3]:]
print(opens)
";
    fs::write(dir.join("watch.py"), script).unwrap();
    let job = dir.join("watch.py");
    let argv = ["python3", job.to_str().unwrap(), disk.dir.to_str().unwrap()];
    for _ in 0..2 {
        let (output, _) = run(&dir, &["--remember=./p"], &argv);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "1\n");
    }
}

/// A path that flags name is taken as it is written: what names a directory, or lies in what is none, is an error, and nothing is made (SPEC B15, CP13).
#[test]
fn flags_that_want_a_file_take_no_directory() {
    let dir = fresh("paths-of-flags");
    fs::create_dir(dir.join("dir")).unwrap();
    fs::write(dir.join("file"), "no profile, no settings").unwrap();
    for flag in [
        "report", "explain", "record", "remember", "config", "plugin",
    ] {
        for path in [
            "nx/", "nx/.", "nx/..", "dir/", "./dir", "file/", "file/x", "",
        ] {
            complains(&dir, &["run", &format!("--{flag}={path}"), "--", "true"]);
        }
    }
    for path in ["nx/", "dir/", "file/", "file/x", ""] {
        complains(&dir, &["profile", "show", path]);
        complains(&dir, &["profile", "merge", path, "./file"]);
        complains(&dir, &["profile", "import", "./file", path, "--root", "/"]);
    }
    let mut names: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["dir", "file"]);
    assert!(fs::read_dir(dir.join("dir")).unwrap().next().is_none());
}
