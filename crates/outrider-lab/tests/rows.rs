//! Rows: their data sets can be made, and their commands say the same every time, with and without Outrider.
//!
//! On whatever file system holds the build, with data sets made tiny through the words of their keys; no emulated disk
//! and no particular right is needed.
#![allow(dead_code)] // of the modules that are taken in

#[path = "../src/output.rs"]
mod output;
#[path = "../src/rows/mod.rs"]
mod rows;
mod support;

use outrider_cli::size;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rows::{Data, Maker, Row, Tools};
use support::{installed, outrider, skip};

/// Data sets that are made here: the word before a key's first colon, and what replaces the words after it; `*` keeps a
/// word.
const TINY: &[(&str, &str)] = &[
    ("pages", "1M"),
    ("fragmented", "1M:1M"),
    ("blur", "256K:*:64K"),
    ("tree", "150"),
    ("flat", "100"),
    ("copy", "100K"),
    ("blocks", "1M"),
    ("odd", "1000001"),
    ("bptree-loaded", "20000:*"),
    ("bptree-inserted", "20000:*"),
    ("bptree-records", "20000"),
    ("fio", "1M:256K"),
    ("sources", "60"),
    ("lines", "1M"),
    ("project", "4"),
    ("postmark", ""),
    ("tpch", "400"),
    ("repository", "150"),
    ("samples", "40"),
    ("large", "1M"),
    ("sorted", "*:64K"),
];

/// Arguments that a row has for its full size, and what they are here.
const TINY_ARGUMENTS: &[(&str, &str, &str)] = &[("dr-fig16-postmark", "10000", "300")];

#[test]
fn rows_are_well_formed() {
    let all = rows::all();
    let mut names = BTreeSet::new();
    let mut sets = BTreeMap::new();
    for row in &all {
        let name = &row.name;
        assert!(names.insert(name.clone()), "{name} is there twice");
        assert!(
            name.chars()
                .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
            "{name}: a name must fit into a file's name"
        );
        assert!(!row.work.commands.is_empty(), "{name} runs nothing");
        assert!(!row.devices.is_empty(), "{name} has no device");
        for command in commands(row) {
            assert!(!command.is_empty(), "{name}: an empty command");
            for argument in command {
                for word in placeholders(argument) {
                    assert!(
                        ["data", "out", "bin", "drivers", "plugins"].contains(&word),
                        "{name}: nobody knows {{{word}}}"
                    );
                }
            }
        }
        for list in [&row.work.hinted, &row.work.declared, &row.work.graph]
            .into_iter()
            .flatten()
        {
            assert_eq!(
                list.len(),
                row.work.commands.len(),
                "{name}: other commands"
            );
        }
        let bytes = *sets.entry(row.data.key.clone()).or_insert(row.data.bytes);
        assert_eq!(
            bytes, row.data.bytes,
            "{}: two sizes of a data set",
            row.data.key
        );
    }
}

#[test]
fn rows_say_the_same_every_time() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tools = tools();
    let outrider = outrider();
    let direct = takes_direct(scratch.path());
    let mut made = BTreeSet::new();
    let mut used = BTreeSet::new();
    let mut tested = 0;
    for row in rows::all() {
        let Some((family, key)) = tiny(&row.data) else {
            // Of other tests.
            continue;
        };
        used.insert(family);
        if let Some((program, package)) = row.work.needs.iter().find(|(p, _)| !installed(p)) {
            skip(
                &row.name,
                &format!("{program} is not installed (Debian: {package})"),
            );
            continue;
        }
        let around = |c: &Vec<String>| {
            c.iter()
                .any(|a| ["--direct", "seek-curve", "read-blocks"].contains(&a.as_str()))
        };
        if !direct && commands(&row).any(around) {
            println!("SKIP {}: the file system has no O_DIRECT", row.name);
            continue;
        }
        let data = scratch.path().join(&key);
        if made.insert(key.clone()) {
            make(&row.data, &key, &data, &tools);
        }
        let place = Place {
            row: &row,
            data: &data,
            scratch: scratch.path(),
            tools: &tools,
        };
        let plain = place.run("plain", &row.work.commands, &[]);
        for (n, said) in plain.iter().enumerate() {
            let silent = row.name.contains("hog") || row.name.contains("walk");
            assert!(
                !said.is_empty() || silent && n > 0,
                "{}: command {n} said nothing",
                row.name
            );
        }
        let run = [outrider.to_str().unwrap(), "run", "--"];
        let mut again = vec![
            ("plain once more", &row.work.commands, &[][..]),
            ("outrider run", &row.work.commands, &run[..]),
        ];
        if let Some(hinted) = &row.work.hinted {
            again.push(("hinted", hinted, &[][..]));
        }
        if let Some(declared) = &row.work.declared {
            again.push(("declared", declared, &run[..]));
        }
        // FA3: on every engine, and no prediction fails to come true.
        let graphs = row.work.graph.iter().flat_map(|commands| {
            let with = |engine: &str| -> Vec<Vec<String>> {
                let flag = format!("--graph={engine}");
                let word = |w: &String| w.replace("--graph", &flag);
                commands
                    .iter()
                    .map(|c| c.iter().map(word).collect())
                    .collect()
            };
            ["auto", "threads", "serial", "check"].map(with)
        });
        let graphs: Vec<_> = graphs.collect();
        for (n, commands) in graphs.iter().enumerate() {
            let before = if n == 0 { &run[..] } else { &[] };
            again.push(("graph", commands, before));
        }
        for (how, commands, before) in again {
            let said = place.run(how, commands, before);
            assert!(
                said == plain,
                "{}: {how} says {:?}, plain {:?}",
                row.name,
                shown(&said),
                shown(&plain)
            );
        }
        tested += 1;
    }
    let families: BTreeSet<_> = TINY.iter().map(|(family, _)| *family).collect();
    assert_eq!(used, families, "data sets of no row");
    println!("{tested} rows");
}

/// LP, Fig. 8: the slow file is slow because it lies in pieces.
#[test]
fn a_fragmented_file_lies_in_pieces() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let of_ext4 = rustix::fs::statfs(scratch.path()).unwrap().f_type as u64 == 0xef53;
    if !of_ext4 {
        println!("SKIP a_fragmented_file_lies_in_pieces: the build is not on ext4");
        return;
    }
    let data = rows::all()
        .into_iter()
        .find(|r| r.data.key.starts_with("fragmented:"))
        .unwrap()
        .data;
    // The maker itself refuses a file in larger pieces.
    make(
        &data,
        "fragmented:4M:32K",
        &scratch.path().join("f"),
        &tools(),
    );
    let refused = attempt(
        &data,
        "fragmented:1M:4K",
        &scratch.path().join("g"),
        &tools(),
    );
    assert!(refused.unwrap_err().message.contains("pieces"));
}

/// A row in a test.
struct Place<'a> {
    row: &'a Row,
    data: &'a Path,
    scratch: &'a Path,
    tools: &'a Tools,
}

impl Place<'_> {
    /// Runs `commands` at the same time, cold, each with `before` before it: what each wrote to standard output.
    fn run(&self, how: &str, commands: &[Vec<String>], before: &[&str]) -> Vec<Vec<u8>> {
        let name = format!("{}, {how}", self.row.name);
        if let Some(reset) = &self.row.work.reset {
            let status = self
                .command(reset, &[], Path::new("/nowhere"))
                .status()
                .unwrap();
            assert!(status.success(), "{name}: reset: {status}");
        }
        evict(self.data);
        let out = tempfile::tempdir_in(self.scratch).unwrap();
        let neighbours: Vec<Neighbour> = self
            .row
            .work
            .beside
            .iter()
            .map(|c| Neighbour(self.command(c, &[], out.path()).spawn().unwrap()))
            .collect();
        let logs = tempfile::tempdir_in(self.scratch).unwrap();
        let file = |n: usize, what: &str| logs.path().join(format!("{n}.{what}"));
        let children: Vec<Child> = commands
            .iter()
            .enumerate()
            .map(|(n, command)| {
                self.command(command, before, out.path())
                    .stdout(File::create(file(n, "out")).unwrap())
                    .stderr(File::create(file(n, "err")).unwrap())
                    .spawn()
                    .unwrap_or_else(|e| panic!("{name}: {command:?}: {e}"))
            })
            .collect();
        for (n, mut child) in children.into_iter().enumerate() {
            let status = ended(&mut child, &name);
            let err = fs::read_to_string(file(n, "err")).unwrap_or_default();
            assert!(status.success(), "{name}: command {n}: {status}: {err}");
        }
        for mut neighbour in neighbours {
            let ended = neighbour.0.try_wait().unwrap();
            assert!(ended.is_none(), "{name}: a neighbour has left: {ended:?}");
        }
        (0..commands.len())
            .map(|n| fs::read(file(n, "out")).unwrap())
            .collect()
    }

    fn command(&self, words: &[String], before: &[&str], out: &Path) -> Command {
        let filled = words.iter().map(|word| {
            let word = word
                .replace("{data}", self.data.to_str().unwrap())
                .replace("{out}", out.to_str().unwrap())
                .replace("{bin}", self.tools.bin.to_str().unwrap());
            TINY_ARGUMENTS
                .iter()
                .find(|(row, full, _)| *row == self.row.name && *full == word)
                .map_or(word, |(_, _, tiny)| (*tiny).to_owned())
        });
        let mut all = before.iter().map(|w| (*w).to_owned()).chain(filled);
        let mut command = Command::new(all.next().unwrap());
        command.args(all).stdin(Stdio::null());
        command
    }
}

/// A neighbour ends with the run, however that ends.
struct Neighbour(Child);

impl Drop for Neighbour {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a command that takes well under a second; one that hangs is killed.
fn ended(child: &mut Child, name: &str) -> std::process::ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begun.elapsed() > Duration::from_secs(120) {
            let _ = child.kill();
            panic!("{name}: has not ended after two minutes");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Every command of a row.
fn commands(row: &Row) -> impl Iterator<Item = &Vec<String>> {
    let work = &row.work;
    work.commands
        .iter()
        .chain(work.hinted.iter().flatten())
        .chain(work.declared.iter().flatten())
        .chain(work.graph.iter().flatten())
        .chain(&work.beside)
        .chain(&work.reset)
}

/// The words in braces.
fn placeholders(argument: &str) -> impl Iterator<Item = &str> {
    argument.split('{').skip(1).filter_map(|rest| {
        let (word, _) = rest.split_once('}')?;
        let letters = !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase());
        letters.then_some(word)
    })
}

/// The family of a data set and its tiny key, if it is made here.
fn tiny(data: &Data) -> Option<(&'static str, String)> {
    let (family, words) = data.key.split_once(':').unwrap_or((&data.key, ""));
    let (family, tiny) = TINY.iter().find(|(f, _)| *f == family)?;
    let words: Vec<_> = tiny
        .split(':')
        .zip(words.split(':'))
        .map(|(tiny, full)| if tiny == "*" { full } else { tiny })
        .collect();
    Some((family, format!("{family}:{}", words.join(":"))))
}

fn attempt(data: &Data, key: &str, dir: &Path, tools: &Tools) -> output::Outcome {
    fs::create_dir(dir).unwrap();
    let words = key.split_once(':').map_or("", |(_, words)| words);
    (data.make)(&Maker { dir, tools, words })
}

fn make(data: &Data, key: &str, dir: &Path, tools: &Tools) {
    if let Err(failure) = attempt(data, key, dir, tools) {
        panic!("{key}: {}", failure.message);
    }
}

/// Drops the files that Outrider cares for from the cache: those of 64 KiB and more.
fn evict(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        if meta.is_dir() {
            evict(&entry.path());
        } else if meta.is_file() && meta.len() >= 64 << 10 {
            let file = File::open(entry.path()).unwrap();
            file.sync_data().unwrap();
            // SAFETY: no memory is involved.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
}

fn takes_direct(dir: &Path) -> bool {
    let path = dir.join("direct");
    fs::write(&path, vec![0; 4096]).unwrap();
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path);
    fs::remove_file(&path).unwrap();
    opened.is_ok()
}

fn shown(said: &[Vec<u8>]) -> Vec<String> {
    said.iter()
        .map(|s| String::from_utf8_lossy(&s[..s.len().min(300)]).into_owned())
        .collect()
}

fn tools() -> Tools {
    let bin = Path::new(env!("CARGO_BIN_EXE_outrider-work"))
        .parent()
        .unwrap();
    Tools {
        bin: bin.to_owned(),
        drivers: bin.join("drivers"),
        plugins: bin.join("plugins"),
    }
}
