//! What the report says of reads, beside what the kernel said of each before it was made.
//!
//! A program of the tests (`tests/programs/oracle.c`) reads in the ways that sources know, and asks with mincore(2) before each read what of it is cached. What the
//! report calls a hit was cached then; what was not cached it calls late or missed.
//!
//! Between the program's question and its read a page may arrive, so a little is allowed: one part in fifty of what was read, and a mebibyte. How much is fetched in
//! time depends on the machine, and is no matter of these tests, but that something of it was: what calls nothing a hit would never say too much.

mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::{Disk, Random, eventually, fresh, outrider_run, program};

const MIB: u64 = 1 << 20;

/// What the program has read, and what the report says of it, bytes.
struct Both {
    there: u64,
    missing: u64,
    report: Value,
}

impl Both {
    /// Runs the program, cold.
    fn run(disk: &Disk, dir: &Path, flags: &[&str], how: &[&str]) -> Both {
        disk.does("cold", &[]);
        let oracle = program("oracle").display().to_string();
        let argv = [&[oracle.as_str()], how].concat();
        let flags = [&["--report=r.json"], flags].concat();
        let printed = support::printed(&mut outrider_run(dir, &flags, &argv));
        let mut words = printed.split_whitespace().map(|w| w.parse().unwrap());
        let report = fs::read(dir.join("r.json")).unwrap();
        Both {
            there: words.next().unwrap(),
            missing: words.next().unwrap(),
            report: serde_json::from_slice(&report).unwrap(),
        }
    }

    fn total(&self, name: &str) -> u64 {
        self.report["totals"][format!("{name}_bytes")]
            .as_u64()
            .unwrap()
    }

    fn source(&self, source: &str, figure: &str) -> u64 {
        self.report["sources"][source][figure].as_u64().unwrap()
    }

    /// What may arrive between a question and a read, bytes.
    fn slack(&self) -> u64 {
        (self.there + self.missing) / 50 + MIB
    }

    /// Nothing is called a hit, or cached, that was not there, and nothing is counted twice.
    fn is_honest(&self) -> Result<(), String> {
        let [hit, late, cached, missed] = ["hit", "late", "cached", "miss"].map(|n| self.total(n));
        let resident = self.total("resident");
        let read = self.there + self.missing;
        let all = hit + late + cached + missed + resident;
        let rules = [
            ("hit", hit <= self.there + self.slack()),
            (
                "hit and cached",
                hit + cached + resident <= self.there + self.slack(),
            ),
            ("read", all <= read + self.slack()),
        ];
        match rules.into_iter().find(|(_, holds)| !holds) {
            None => Ok(()),
            Some((rule, _)) => Err(format!(
                "{rule}: {} there, {} not, {hit} hit; {:#}",
                self.there, self.missing, self.report["totals"]
            )),
        }
    }
}

/// A disk with a file, as slow as a remote one.
fn disk(name: &str, size: u64) -> Option<(Disk, std::path::PathBuf)> {
    let dir = fresh(name);
    let disk = Disk::of(name, &dir)?;
    fs::write(disk.dir.join("file"), Random(41).bytes(size as usize)).unwrap();
    disk.does("model", &["remote"]);
    Some((disk, dir))
}

/// Honest in the way `how` of reading a file of `size` bytes, most of which `source` foresees: at least the part `found` of what was there before it was asked for
/// is known to have been, and as much is the source's.
fn agrees(name: &str, size: u64, how: &[&str], source: &str, found: f64) {
    let Some((disk, dir)) = disk(name, size) else {
        return;
    };
    eventually(|| {
        let both = Both::run(&disk, &dir, &[], how);
        both.is_honest()?;
        let used = both.source(source, "used_bytes");
        let hit = both.total("hit");
        match hit as f64 >= both.there as f64 * found && used > 0 {
            true => Ok(()),
            false => Err(format!(
                "{hit} hits of {} there, {used} used: {:#}",
                both.there, both.report
            )),
        }
    });
}

/// Streams, by reads of the position and of places, forwards, backwards and beside one another, and of a block of every four.
#[test]
fn streams_agree_with_the_kernel() {
    for (how, found) in [
        (["slow", "disk/file", "65536"], 0.5),
        (["forward", "disk/file", "65536"], 0.0),
        (["forward", "disk/file", "16384"], 0.0),
        (["backward", "disk/file", "65536"], 0.0),
        (["beside", "disk/file", "65536"], 0.0),
        (["strides", "disk/file", "65536"], 0.0),
    ] {
        agrees(
            &format!("oracle_{}", how[0]),
            64 * MIB,
            &how,
            "streams",
            found,
        );
    }
}

/// Random reads within neighbourhoods.
#[test]
fn neighbourhoods_agree_with_the_kernel() {
    let how = ["near", "disk/file", "8192"];
    agrees("oracle_near", 128 * MIB, &how, "neighbourhoods", 0.2);
}

/// Random reads that add up to all of a file.
#[test]
fn dense_reads_agree_with_the_kernel() {
    let how = ["random", "disk/file", "16384"];
    agrees("oracle_random", 64 * MIB, &how, "dense", 0.5);
}

/// A mapping that is gone through in order. Touches are seen some time after they were made, and all of a block of 64 KiB at once.
#[test]
fn mappings_agree_with_the_kernel() {
    let how = ["map", "disk/file", "65536"];
    agrees("oracle_map", 64 * MIB, &how, "mapped", 0.0);
}

/// A hint of the program, which then reads in no order.
#[test]
fn hints_agree_with_the_kernel() {
    let how = ["hint", "disk/file", "65536"];
    agrees("oracle_hint", 64 * MIB, &how, "hints", 0.0);
}

/// Copies within the kernel, several of a file: what a call asks for at once is not there before it, however soon it comes.
#[test]
fn copies_agree_with_the_kernel() {
    let how = ["copies", "disk/file", "4194304"];
    agrees("oracle_copies", 64 * MIB, &how, "kernel_copies", 0.0);
    // In order they are a stream as well: whoever first knows what will be read has it fetched, and that is the stream where the service is kept from a processor
    // while nobody knows yet whether others read from the disk.
    let Some((disk, dir)) = disk("oracle_copy", 64 * MIB) else {
        return;
    };
    eventually(|| {
        let both = Both::run(&disk, &dir, &[], &["copy", "disk/file", "4194304"]);
        both.is_honest()?;
        let used = ["kernel_copies", "streams"].map(|source| both.source(source, "used_bytes"));
        match used.iter().any(|used| *used > 0) {
            true => Ok(()),
            false => Err(format!("{used:?} used: {:#}", both.report)),
        }
    });
}

/// Declared lists: what the report calls used was there, and nothing is foreseen beside. Of their reads nobody else is told.
#[test]
fn lists_agree_with_the_kernel() {
    let Some((disk, dir)) = disk("oracle_list", 64 * MIB) else {
        return;
    };
    eventually(|| {
        let both = Both::run(&disk, &dir, &[], &["list", "disk/file", "16384"]);
        both.is_honest()?;
        let used = both.source("lists", "used_bytes");
        match used > 0 && used <= both.there + both.missing {
            true => Ok(()),
            false => Err(format!("{used} used: {:#}", both.report)),
        }
    });
}

/// What was read before is cached, not a hit, and whatever the kernel reads ahead by itself isn't either.
#[test]
fn what_others_fetch_is_no_hit() {
    let Some((disk, dir)) = disk("oracle_others", 64 * MIB) else {
        return;
    };
    let how = ["twice", "disk/file", "65536"];
    eventually(|| {
        let both = Both::run(&disk, &dir, &[], &how);
        both.is_honest()?;
        let again = both.total("cached") + both.total("resident");
        match again >= 24 * MIB && both.total("hit") <= 65 * MIB {
            true => Ok(()),
            false => Err(format!("{:#}", both.report["totals"])),
        }
    });
    // Where nothing is fetched nothing is a hit.
    for how in [["forward", "disk/file", "65536"], how] {
        let both = Both::run(&disk, &dir, &["--engine=noop"], &how);
        assert_eq!(both.total("hit"), 0, "{:#}", both.report);
        assert!(both.there > 0);
        let both = Both::run(&disk, &dir, &["--mode=app-only"], &how);
        assert_eq!(both.report["totals"], serde_json::json!({}));
        assert!(both.there > 0);
    }
}

/// A directory of files, whose order somebody may know or not.
fn files_agree(name: &str, how: &str, source: &str, (files, size): (usize, usize)) {
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    fs::create_dir(disk.dir.join("files")).unwrap();
    let mut random = Random(42);
    for i in 0..files {
        fs::write(disk.dir.join(format!("files/{i:04}")), random.bytes(size)).unwrap();
    }
    disk.does("model", &["remote"]);
    eventually(|| {
        let both = Both::run(&disk, &dir, &[], &[how, "disk/files"]);
        both.is_honest()?;
        let [used, late] = ["used_bytes", "late_bytes"].map(|f| both.source(source, f));
        // What was there when its file was opened was so when it was read.
        match used > 0 && used - late <= both.there + both.slack() {
            true => Ok(()),
            false => Err(format!("{}: {:#}", both.there, both.report)),
        }
    });
}

/// Files that are opened in order.
#[test]
fn walks_agree_with_the_kernel() {
    files_agree("oracle_walk", "walk", "walks", (2000, 40_000));
}

/// Files that are opened in no order, small ones and such whose reads are told: of these each was waited for.
#[test]
fn dense_directories_agree_with_the_kernel() {
    files_agree(
        "oracle_shuffled",
        "shuffled",
        "dense_directories",
        (2000, 40_000),
    );
}

/// Files of 90 KB, read whole in no order, are no hits where the program has waited for each.
#[test]
fn what_the_program_waits_for_is_no_hit() {
    let name = "oracle_pictures";
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    fs::create_dir(disk.dir.join("files")).unwrap();
    let mut random = Random(43);
    for i in 0..1500 {
        let file = disk.dir.join(format!("files/{i:04}.jpg"));
        fs::write(file, random.bytes(90_000)).unwrap();
    }
    fs::write(dir.join("config"), "[dense]\nenabled = false\n").unwrap();
    disk.does("model", &["remote"]);
    for flags in [&[][..], &["--config=config"]] {
        eventually(|| {
            let both = Both::run(&disk, &dir, flags, &["shuffled", "disk/files"]);
            both.is_honest()
        });
    }
}

/// Each source accounts for what it has asked for, and together they do for the totals.
#[test]
fn sources_add_up_to_the_totals() {
    let Some((disk, dir)) = disk("oracle_sums", 64 * MIB) else {
        return;
    };
    for how in [
        "forward", "backward", "beside", "strides", "near", "random", "hint", "map", "copy",
    ] {
        eventually(|| {
            let both = Both::run(&disk, &dir, &[], &[how, "disk/file", "65536"]);
            let sources = both.report["sources"].as_object().unwrap();
            let sum = |figure: &str| -> u64 {
                sources.values().map(|s| s[figure].as_u64().unwrap()).sum()
            };
            for figure in ["used", "wasted", "evicted"] {
                let (of_sources, total) = (sum(&format!("{figure}_bytes")), both.total(figure));
                if of_sources != total {
                    return Err(format!("{how}: {figure}: {of_sources}: {:#}", both.report));
                }
            }
            let [asked, came] = [
                sum("asked_bytes"),
                sum("used_bytes") + sum("wasted_bytes") + sum("evicted_bytes"),
            ];
            match came + both.total("dropped") <= asked + MIB
                && sum("late_bytes") <= sum("used_bytes")
            {
                true => Ok(()),
                false => Err(format!("{how}: {asked} {came}: {:#}", both.report)),
            }
        });
    }
}
