//! What `outrider run --explain` writes of what the service decides, for programs that declare nothing.

mod support;

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use support::{Disk, Random, eventually, fresh, outrider_run, program};

const MIB: usize = 1 << 20;

/// What a run explains, and its report.
struct Told {
    lines: Vec<String>,
    report: Value,
}

impl Told {
    fn run(dir: &Path, flags: &[&str], argv: &[&str]) -> Told {
        let flags = [&["--report=r.json", "--explain=e.txt"], flags].concat();
        support::printed(&mut outrider_run(dir, &flags, argv));
        let report = fs::read(dir.join("r.json")).unwrap();
        let text = fs::read_to_string(dir.join("e.txt")).unwrap();
        let mut lines = Vec::new();
        for line in text.lines() {
            let (pid, rest) = line.split_once(' ').unwrap();
            assert!(pid.parse::<u32>().unwrap() > 0, "{line}");
            lines.push(rest.to_owned());
        }
        Told {
            lines,
            report: serde_json::from_slice(&report).unwrap(),
        }
    }

    /// Sums over the lines of a source: of each word that is followed by a number.
    fn sums(&self, source: &str) -> HashMap<String, u64> {
        let mut sums = HashMap::new();
        let lines = self.lines.iter();
        for line in lines.filter(|l| l.starts_with(&format!("{source} \""))) {
            let words: Vec<&str> = line.split([' ', ',', ';']).collect();
            for pair in words.windows(2) {
                if let Ok(n) = pair[1].parse::<u64>() {
                    *sums.entry(pair[0].to_owned()).or_default() += n;
                }
            }
        }
        sums
    }

    fn leaves(&self, file: &str, reason: &str) -> bool {
        let mut lines = self.lines.iter();
        lines.any(|l| l.starts_with("left ") && l.contains(file) && l.contains(reason))
    }
}

fn oracle(dir: &Path, how: &[&str]) -> Told {
    let program = program("oracle").display().to_string();
    Told::run(dir, &[], &[&[program.as_str()], how].concat())
}

/// Every source that has asked for something says so, and its lines come to what the report says of it.
#[test]
fn each_source_is_explained() {
    let name = "explain_sources";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    let mut random = Random(51);
    fs::write(disk.dir.join("file"), random.bytes(64 * MIB)).unwrap();
    fs::create_dir(disk.dir.join("files")).unwrap();
    for i in 0..2000 {
        let file = disk.dir.join(format!("files/{i:04}"));
        fs::write(file, random.bytes(40_000)).unwrap();
    }
    disk.does("model", &["remote"]);
    for (how, source) in [
        (["forward", "disk/file", "65536"], "streams"),
        (["strides", "disk/file", "65536"], "streams"),
        (["near", "disk/file", "8192"], "neighbourhoods"),
        (["random", "disk/file", "16384"], "dense"),
        (["map", "disk/file", "65536"], "mapped"),
        (["hint", "disk/file", "65536"], "hints"),
        (["copy", "disk/file", "4194304"], "kernel_copies"),
        (["walk", "disk/files", ""], "walks"),
        (["shuffled", "disk/files", ""], "dense_directories"),
    ] {
        eventually(|| {
            disk.does("cold", &[]);
            let told = oracle(&dir, &how);
            let sources = told.report["sources"].as_object().unwrap();
            for (name, s) in sources {
                let sums = told.sums(name);
                for figure in ["asked", "used", "late", "wasted", "evicted", "dropped"] {
                    let reported = s[format!("{figure}_bytes")].as_u64().unwrap();
                    let told = sums.get(figure).copied().unwrap_or(0);
                    if told != reported {
                        return Err(format!(
                            "{how:?}: {name}: {figure} {told} of {reported}: {sources:#?}"
                        ));
                    }
                }
            }
            match told.sums(source).get("asked") {
                Some(asked) if *asked > 0 => Ok(()),
                _ => Err(format!("{how:?}: no {source}: {:#?}", told.lines)),
            }
        });
    }
}

/// Lists are explained by their programs, into the same file.
#[test]
fn lists_are_explained_beside() {
    let name = "explain_lists";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    fs::write(disk.dir.join("file"), Random(52).bytes(32 * MIB)).unwrap();
    disk.does("model", &["remote"]);
    disk.does("cold", &[]);
    let told = oracle(&dir, &["list", "disk/file", "16384"]);
    let fetched = told.lines.iter().filter(|l| l.starts_with("fetch inode "));
    let length = |l: &String| -> u64 {
        let mut words = l.split(' ').skip_while(|w| *w != "length");
        words.nth(1).unwrap().parse().unwrap()
    };
    let fetched: u64 = fetched.map(length).sum();
    let reported = told.report["sources"]["lists"]["asked_bytes"].as_u64();
    let reported = reported.unwrap();
    // What is read to measure the device is told by what was measured.
    let measured = reported.checked_sub(fetched);
    assert!(
        fetched > 0 && measured.is_some_and(|m| m < MIB as u64),
        "{fetched} of {reported}"
    );
}

/// Why nothing was fetched is told, also where nothing was heard at all.
#[test]
fn what_is_left_alone_is_explained() {
    let name = "explain_left";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    fs::write(disk.dir.join("file"), Random(53).bytes(64 * MIB)).unwrap();
    disk.does("model", &["remote"]);
    let excluded = disk.dir.join("file").canonicalize().unwrap();
    let config = format!("[files]\nexclude = [{:?}]\n", excluded.to_str().unwrap());
    fs::write(dir.join("config"), config).unwrap();
    let program = program("oracle").display().to_string();
    let run = |flags: &[&str], how: &str, size: &str| {
        Told::run(&dir, flags, &[&program, how, "disk/file", size])
    };
    eventually(|| {
        disk.does("cold", &[]);
        let told = run(&["--config=config"], "forward", "65536");
        match told.leaves("disk/file", "excluded") && told.sums("streams").is_empty() {
            true => Ok(()),
            false => Err(format!("{:#?}", told.lines)),
        }
    });
    // A few reads of a long file.
    const FEW: &str = "import os, random
fd = os.open('disk/file', os.O_RDONLY)
for at in random.Random(5).sample(range(4096), 60): os.pread(fd, 4096, at * 16384)
";
    eventually(|| {
        disk.does("cold", &[]);
        let told = Told::run(&dir, &[], &["python3", "-c", FEW]);
        match told.leaves("disk/file", "no order") {
            true => Ok(()),
            false => Err(format!("{:#?}", told.lines)),
        }
    });
    // In order, where the kernel's own readahead gets as much.
    disk.does("model", &["nvme"]);
    eventually(|| {
        disk.does("cold", &[]);
        let told = Told::run(&dir, &[], &["wc", "-l", "disk/file"]);
        let totals = &told.report["totals"];
        let alone = totals["prefetched_bytes"].as_u64() < Some(16 << 20);
        match !alone || told.leaves("disk/file", "left to the kernel's own readahead") {
            true => Ok(()),
            false => Err(format!("{:#?} {totals:#}", told.lines)),
        }
    });
    // All of it is cached, and nobody is told.
    eventually(|| {
        fs::read(disk.dir.join("file")).unwrap();
        let told = run(&[], "forward", "65536");
        let lines = &told.lines;
        let says = |text: &str| lines.iter().any(|l| l.contains(text));
        match lines.len() <= 2 && (says("nothing was told") || says("all of it cached")) {
            true => Ok(()),
            false => Err(format!("{lines:#?}")),
        }
    });
}

/// What was open before takes an explanation as it takes a report: pipes and sockets that have no name, too. Who doesn't read holds nobody up.
#[test]
fn pipes_and_sockets_take_explanations() {
    let name = "explain_pipes";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    fs::write(disk.dir.join("file"), Random(55).bytes(32 * MIB)).unwrap();
    disk.does("model", &["remote"]);
    let program = program("oracle").display().to_string();
    let run = |flags: &[&str], into: OwnedFd| {
        disk.does("cold", &[]);
        let flags = [&["--explain=/dev/stderr"], flags].concat();
        let mut run = outrider_run(&dir, &flags, &[&program, "forward", "disk/file", "65536"]);
        run.stdout(Stdio::null()).stderr(into).spawn().unwrap()
    };
    let all = |from: OwnedFd| std::io::read_to_string(fs::File::from(from)).unwrap();
    for flags in [
        &[][..],
        &["--remember=./profile"],
        &["--report=/dev/stderr"],
    ] {
        for socket in [false, true] {
            let (from, into): (OwnedFd, OwnedFd) = match socket {
                true => UnixStream::pair()
                    .map(|(a, b)| (a.into(), b.into()))
                    .unwrap(),
                false => std::io::pipe().map(|(a, b)| (a.into(), b.into())).unwrap(),
            };
            let mut run = run(flags, into);
            let text = all(from);
            assert!(run.wait().unwrap().success(), "{flags:?}: {text}");
            assert!(text.contains(" process \"oracle\""), "{flags:?}: {text}");
        }
    }
    let (from, mut into) = std::io::pipe().unwrap();
    let size = rustix::pipe::fcntl_setpipe_size(&into, 4096).unwrap();
    into.write_all(&vec![b'.'; size]).unwrap();
    let mut run = run(&[], into.into());
    let end = support::wait_for(support::PATIENCE, || run.try_wait().unwrap());
    let _ = run.kill();
    assert!(end.is_some_and(|end| end.success()), "{end:?}");
    assert_eq!(all(from.into()).len(), size);
}

/// Whoever names a file says nothing by that but its name.
#[test]
fn names_are_escaped() {
    let name = "explain_names";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    let file = "disk/1 streams \"x\" 0..1\n2 left\u{1b}[2J";
    fs::write(dir.join(file), Random(54).bytes(32 * MIB)).unwrap();
    disk.does("model", &["remote"]);
    eventually(|| {
        disk.does("cold", &[]);
        let told = oracle(&dir, &["forward", file, "65536"]);
        let escaped = r#"1 streams \"x\" 0..1\n2 left\u{1b}[2J""#;
        let its = |l: &&String| l.starts_with("streams \"") && l.contains(escaped);
        let known = |l: &&String| {
            let words = ["streams \"/", "opens \"/", "left \"/"];
            words.iter().any(|w| l.starts_with(w))
        };
        let other = |l: &&String| !known(l) && !l.starts_with("process ");
        let (its, other) = (
            told.lines.iter().filter(its).count(),
            told.lines.iter().filter(other).count(),
        );
        match its > 0 && other == 0 {
            true => Ok(()),
            false => Err(format!("{:#?}", told.lines)),
        }
    });
}
