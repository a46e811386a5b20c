//! Rows on databases: every driver reads what a naive model of it says, whatever its threads and with or without
//! Outrider, and every row's commands agree with one another.
//!
//! On whatever file system holds the build, with tiny data sets; no emulated disk and no particular right is needed.
#![allow(dead_code)] // of the modules that are taken in

#[path = "../src/output.rs"]
mod output;
#[path = "../src/rows/mod.rs"]
mod rows;
mod support;

use outrider_cli::size;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use outrider_sim::random::Random;
use rows::{Maker, OwnColumn, Row, Tools};
use support::{installed, outrider, skip};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64_with_seed;

// ---- What the drivers should say ----

/// As `mix` in the drivers.
fn mix(n: u64) -> u64 {
    Random::new(n).draw()
}

fn add(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

fn draw(seed: u64, i: u64, k: u64) -> u64 {
    mix(add(mix(add(mix(seed), i)), k))
}

fn unit(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

fn hash(bytes: &[u8]) -> u64 {
    bytes
        .chunks(8)
        .fold(0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64, |h, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            let h = (h ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
            h ^ (h >> 29)
        })
}

/// A store that holds the version of each key, and what is read of it.
struct Model {
    value: u64,
    keys: u64,
    seed: u64,
    /// Key to index and version.
    store: BTreeMap<u64, (u64, u64)>,
    operations: u64,
    bytes: u64,
    digest: u64,
}

impl Model {
    fn new(keys: u64, value: u64, seed: u64) -> Self {
        Self {
            value,
            keys,
            seed,
            store: (0..keys).map(|i| (mix(i), (i, 0))).collect(),
            operations: 0,
            bytes: 0,
            digest: 0,
        }
    }

    fn hash(&self, (index, version): (u64, u64)) -> u64 {
        let state = mix(add(mix(add(self.seed, version)), index));
        let words = (0..self.value).step_by(8).map(|at| match at {
            0 => index,
            8 => version,
            at => mix(add(state, at)),
        });
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        hash(&bytes)
    }

    fn found(&mut self, n: u64, what: (u64, u64)) {
        self.digest = add(self.digest, mix(add(self.hash(what), mix(n))));
        self.bytes += self.value;
    }

    fn read(&mut self, n: u64, index: u64) {
        let what = self.store[&mix(index)];
        self.found(n, what);
    }

    fn scan(&mut self, span: u128) {
        let end = (span << 64) / 100;
        let covered: Vec<_> = self
            .store
            .range(..)
            .filter(|(k, _)| u128::from(**k) < end)
            .map(|(_, v)| *v)
            .collect();
        for what in covered {
            self.digest = add(self.digest, mix(self.hash(what)));
            self.bytes += self.value;
            self.operations += 1;
        }
    }

    fn random(&mut self, ops: u64) {
        for n in 0..ops {
            self.read(n, draw(self.seed, n, 0) % self.keys);
        }
    }

    fn ycsb(&mut self, letter: u8, ops: u64, exponent: f64) {
        let mut sum = 0.0;
        let upto: Vec<f64> = (1..=self.keys)
            .map(|rank| {
                sum += 1.0 / (rank as f64).powf(exponent);
                sum
            })
            .collect();
        let mut count = self.keys;
        for n in 0..ops {
            let share = unit(draw(self.seed, n, 0));
            let at = unit(draw(self.seed, n, 1)) * sum;
            let rank = upto.iter().position(|u| *u > at).unwrap_or(upto.len() - 1) as u64;
            let popular = mix(add(rank, self.seed)) % self.keys;
            let write = share
                >= if matches!(letter, b'a' | b'f') {
                    0.5
                } else {
                    0.95
                };
            match (letter, write) {
                (b'c', _) | (b'a' | b'b' | b'f', false) => self.read(n, popular),
                (b'd', false) => self.read(n, count - 1 - rank),
                (b'e', false) => {
                    let length = 1 + draw(self.seed, n, 2) % 100;
                    let originals = self.store.range(mix(popular)..).map(|(_, v)| *v);
                    let originals = originals.filter(|(index, _)| *index < self.keys);
                    let covered: Vec<_> = originals.take(length as usize).collect();
                    covered.into_iter().for_each(|what| self.found(n, what));
                }
                (b'd' | b'e', true) => {
                    self.store.insert(mix(count), (count, n + 1));
                    count += 1;
                }
                (_, true) => {
                    if letter == b'f' {
                        self.read(n, popular);
                    }
                    self.store.insert(mix(popular), (popular, n + 1));
                }
                _ => unreachable!("no such load"),
            }
            self.operations += 1;
        }
    }

    fn says(&self) -> String {
        format!(
            "{} operations, {} bytes, digest {:016x}\n",
            self.operations, self.bytes, self.digest
        )
    }
}

/// What a load prints.
fn expected(
    load: &str,
    keys: u64,
    value: u64,
    seed: u64,
    ops: u64,
    exponent: f64,
    span: u128,
) -> String {
    let mut model = Model::new(keys, value, seed);
    match load {
        "readseq" | "readreverse" => model.scan(span),
        "readrandom" | "readwhilescanning" => {
            model.random(ops);
            model.operations = ops;
            if load == "readwhilescanning" {
                model.scan(span);
            }
        }
        "multireadrandom" => {
            model.random(ops);
            model.operations = ops.div_ceil(16);
        }
        _ => model.ycsb(load.as_bytes()[load.len() - 1], ops, exponent),
    }
    model.says()
}

// ---- Stores ----

/// CP12, FA11: each load on a store prints the digest of what a sequential model reads, with one thread and with four,
/// with and without Outrider, and with each of `more` flags.
fn loads_agree_with_the_model(driver: &Path, loads: &[&str], more: &[&str]) {
    let scratch = scratch();
    let base = scratch.path().join("base");
    let run = scratch.path().join("run");
    let (keys, value, seed, ops, zipf, span) = (1500, 1000, 7, 700, 0.8, 70);
    let words = |text: String| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let what = words(format!("--keys {keys} --value {value} --seed {seed}"));
    said(Command::new(driver).arg("load").arg(&base).args(&what));
    let ycsb = ["ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-e", "ycsb-f"];
    for load in loads.iter().chain(&ycsb) {
        let expected = expected(load, keys, value, seed, ops, zipf, span);
        for threads in [1, 4] {
            for (with, more) in [false, true]
                .iter()
                .flat_map(|w| more.iter().map(|m| (*w, m)))
            {
                said(Command::new(driver).arg("clone").args([&base, &run]));
                evict(&run);
                let flags = words(format!(
                    "--load {load} --ops {ops} --threads {threads} --zipf {zipf} --span {span}{more}"
                ));
                let mut command = around(with, driver);
                command.arg("run").arg(&run).args(&what).args(flags);
                let out = said(&mut command);
                assert_eq!(
                    out, expected,
                    "{load}{more}, {threads} threads, Outrider: {with}"
                );
            }
        }
    }
    // A store is not replaced by a load, nor another directory by a clone.
    let refused = Command::new(driver)
        .arg("load")
        .arg(&base)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    fs::create_dir(scratch.path().join("other")).unwrap();
    fs::write(scratch.path().join("other/file"), "kept").unwrap();
    let refused = Command::new(driver)
        .arg("clone")
        .args([&base, &scratch.path().join("other")])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
    assert_eq!(
        fs::read_to_string(scratch.path().join("other/file")).unwrap(),
        "kept"
    );
    // A value that was never written is noticed: here all of them, of another seed, are of another size.
    let wrong = Command::new(driver)
        .arg("run")
        .arg(&run)
        .args(["--keys", "1500", "--value", "1008", "--load", "readseq"])
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{}", text(&wrong.stderr));
    one_line_of_usage(
        driver,
        &[
            &["run", "d", "--threads", "0"],
            &["run", "d", "--load", "readforward"],
            &["run", "d", "--value", "12"],
            &["run", "d", "--zipf", "x"],
            &["run", "d", "--ops"],
            &["run", "d", "--quick", "1"],
            &["run"],
            &["load", "d", "e"],
            &["walk", "d"],
        ],
    );
}

#[test]
fn leveldb_reads_what_the_model_says() {
    let Some(driver) = driver("outrider-leveldb") else {
        return;
    };
    let loads = ["readseq", "readreverse", "readrandom", "readwhilescanning"];
    loads_agree_with_the_model(&driver, &loads, &[""]);
    one_line_of_usage(&driver, &[&["load", "d", "--level0", "x"]]);
}

/// FA11: LevelDB's Get with a graph, without a block cache, with one that is too small, and with one that holds everything.
#[test]
fn leveldb_with_a_graph_reads_what_the_model_says() {
    let Some(driver) = driver("outrider-leveldb-graph") else {
        return;
    };
    let caches = [" --cache 0", " --cache 65536", " --cache 8388608"];
    loads_agree_with_the_model(&driver, &["readrandom"], &caches);

    // What is foreseen of each Get is what it then reads, and on a cold store it is fetched ahead.
    let scratch = scratch();
    let (base, run) = (scratch.path().join("base"), scratch.path().join("run"));
    // Of several levels, with all of level 0's twelve tables above them.
    let what = ["--keys", "65536", "--value", "1000"];
    let level_0 = ["--level0", "1000000"];
    said(
        Command::new(&driver)
            .arg("load")
            .arg(&base)
            .args(what)
            .args(level_0),
    );
    let report = scratch.path().join("report.json");
    let outrider_run = |engine: &str| {
        said(Command::new(&driver).arg("clone").args([&base, &run]));
        evict(&run);
        let mut command = Command::new(outrider());
        command.arg("run");
        command.arg(format!("--report={}", report.display()));
        command.arg("--").arg(&driver).arg("run").arg(&run);
        command.args(what).args(["--ops", "2000", "--cache", "0"]);
        command.args(["--compaction", "off"]);
        let out = said(command.env("OUTRIDER_GRAPH", engine));
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let graph = report["graphs"][0].clone();
        assert_eq!(graph["name"], "leveldb Get", "{report}");
        assert_eq!(graph["switched_off"], serde_json::Value::Null, "{graph}");
        (out, graph)
    };
    let (plain, checked) = outrider_run("check");
    let (ahead, figures) = outrider_run("auto");
    assert_eq!(plain, ahead);
    let count = |graph: &serde_json::Value, name: &str| graph[name].as_u64().unwrap();
    // The first read of a Get is foreseen in any case, and few find their key in the newest tables.
    let later = count(&checked, "foreseen") - count(&checked, "scopes");
    assert!(later > 2000 * 10, "{checked}");
    assert_eq!(count(&checked, "skipped"), 0, "{checked}");
    assert!(count(&figures, "ahead") > 0, "{figures}");
    assert_eq!(
        count(&figures, "hits"),
        0,
        "what is fetched is not made: {figures}"
    );
}

#[test]
fn rocksdb_reads_what_the_model_says() {
    let Some(driver) = driver("outrider-rocksdb") else {
        return;
    };
    let loads = [
        "readseq",
        "readreverse",
        "readrandom",
        "multireadrandom",
        "readwhilescanning",
    ];
    loads_agree_with_the_model(&driver, &loads, &[""]);
}

// ---- Snappy ----

/// CP14, Fig. 9b: what many threads compress is what the files hold, and the digest is of what they wrote.
#[test]
fn snappy_compresses_what_is_there() {
    let Some(driver) = driver("outrider-snappy") else {
        return;
    };
    let scratch = scratch();
    let files = scratch.path().join("files");
    said(
        Command::new(&driver)
            .arg("make")
            .arg(&files)
            .args(["--files", "9", "--size", "150001"]),
    );
    let mut first = None;
    for threads in ["1", "4"] {
        for (with, hint) in [
            (false, "none"),
            (true, "none"),
            (false, "sequential"),
            (true, "willneed"),
        ] {
            evict(&files);
            let out = tempfile::tempdir_in(scratch.path()).unwrap();
            let mut command = around(with, &driver);
            command
                .arg("compress")
                .arg(&files)
                .arg("--out")
                .arg(out.path());
            let printed = said(command.args(["--threads", threads, "--hint", hint]));
            let (mut digest, mut bytes) = (0, 0);
            for (n, name) in names(&files).into_iter().enumerate() {
                let plain = fs::read(files.join(&name)).unwrap();
                let packed = fs::read(out.path().join(format!("{name}.snappy"))).unwrap();
                assert!(
                    packed.len() < plain.len() * 2 / 3,
                    "{name} is hardly compressed"
                );
                let unpacked = snap::raw::Decoder::new().decompress_vec(&packed).unwrap();
                assert!(unpacked == plain, "{name}, {threads} threads");
                digest = add(digest, mix(add(hash(&packed), mix(n as u64))));
                bytes += plain.len();
            }
            assert_eq!(
                printed,
                format!("9 operations, {bytes} bytes, digest {digest:016x}\n")
            );
            assert_eq!(*first.get_or_insert(printed.clone()), printed);
        }
    }
    one_line_of_usage(
        &driver,
        &[
            &["compress", "d", "--hint", "random"],
            &["compress", "d", "--threads", "-1"],
            &["make"],
            &[],
        ],
    );
}

// ---- SQLite ----

/// LP9: the rows in order of zip codes are those of the table, sorted; and SQLite gets them by the index, without sorting.
#[test]
fn sqlite_follows_the_index() {
    if !installed("sqlite3") {
        skip(
            "sqlite_follows_the_index",
            "sqlite3 is not installed (Debian: sqlite3)",
        );
        return;
    }
    let scratch = scratch();
    let row = rows::all()
        .into_iter()
        .find(|r| r.name == "lp-fig12-sqlite-2")
        .unwrap();
    let data = made(&row, "sqlite:3000:2", scratch.path());
    let place = Place::new(&row, &data, scratch.path());
    let plain = place.run(&row.work.commands, None);
    for (n, out) in plain.iter().enumerate() {
        let database = data.join(format!("{}.db", n + 1));
        let sqlite = |sql: &str| {
            said(
                Command::new("sqlite3")
                    .arg("-readonly")
                    .arg(&database)
                    .arg(sql),
            )
        };
        let table = sqlite("SELECT * FROM customer NOT INDEXED ORDER BY c_id");
        let mut sorted: Vec<&str> = table.lines().collect();
        assert_eq!(sorted.len(), 3000);
        // Stable: rows with one zip code stay in order of their numbers, as an index has them.
        sorted.sort_by_key(|row| row.split('|').nth(10).unwrap().to_owned());
        assert!(out.lines().eq(sorted.iter().copied()), "database {n}");
        assert_eq!(sqlite("PRAGMA page_size"), "4096\n");
        let plan = sqlite(&format!(
            "EXPLAIN QUERY PLAN {}",
            row.work.commands[n].last().unwrap()
        ));
        assert!(
            plan.contains("USING INDEX customer_zip") && !plan.contains("TEMP"),
            "{plan}"
        );
        let distinct: u64 = sqlite("SELECT count(DISTINCT c_zip) FROM customer")
            .trim()
            .parse()
            .unwrap();
        assert!(distinct > 2000, "zip codes are not random: {distinct}");
    }
    assert!(plain[0] != plain[1], "two databases with the same rows");
    assert_eq!(place.run(&row.work.commands, Some(&[])), plain);
}

// ---- Filebench ----

/// CP10, Fig. 8b: the personalities read what lies in the files, and after a reset the files are what they were.
#[test]
fn filebench_reads_and_restores_files() {
    let scratch = scratch();
    let dir = scratch.path().join("set");
    let size = 5 * 256 * 1024;
    let work = Path::new(env!("CARGO_BIN_EXE_outrider-work"));
    let size_text = size.to_string();
    said(
        Command::new(work)
            .args(["filebench", "make"])
            .arg(&dir)
            .args(["--files", "4", "--size", &size_text, "--seed", "3"]),
    );
    let original = contents(&dir);
    assert_eq!(original.len(), 4);
    assert!(original.iter().all(|(_, bytes)| bytes.len() == size));
    let whole = |n: u64, bytes: &[u8]| {
        let pieces = bytes.chunks(1 << 20).enumerate();
        pieces.fold(0, |sum, (i, piece)| {
            add(sum, xxh3_64_with_seed(piece, n << 32 | i as u64))
        })
    };
    // seqread
    let seqread = (0..)
        .zip(&original)
        .fold(0, |sum, (n, (_, bytes))| add(sum, whole(n, bytes)));
    // randread
    let randread = (0..200).fold(0, |sum, n| {
        let mut random = Random::part(5, n);
        let (_, bytes) = &original[random.below(4) as usize];
        let at = 8192 * random.below(size as u64 / 8192) as usize;
        add(sum, xxh3_64_with_seed(&bytes[at..at + 8192], n))
    });
    // mongodb
    let mut files: Vec<Vec<u8>> = original.iter().map(|(_, bytes)| bytes.clone()).collect();
    let mongodb = (0..40).fold(0, |sum, n| {
        let mut random = Random::part(5, n);
        let (appended, read) = (random.below(4), random.below(4));
        let mut more = vec![0; 16384];
        random.fill(&mut more);
        files[appended as usize].extend(more);
        add(sum, xxh3_64_with_seed(&files[read as usize], n))
    });
    // videoserver
    let videoserver = (0..10).fold(0, |sum, n| {
        let video = Random::part(5, n).below(4) as usize;
        add(sum, whole(n, &original[video].1))
    });
    let cases = [
        (&["seqread"][..], seqread),
        (&["randread", "--ops", "200", "--seed", "5"], randread),
        (&["mongodb", "--ops", "40", "--seed", "5"], mongodb),
        (
            &[
                "videoserver",
                "--ops",
                "10",
                "--seed",
                "5",
                "--threads",
                "1",
            ],
            videoserver,
        ),
        (
            &[
                "videoserver",
                "--ops",
                "10",
                "--seed",
                "5",
                "--threads",
                "4",
                "--writes",
                "2",
            ],
            videoserver,
        ),
    ];
    for (args, digest) in cases {
        for with in [false, true] {
            evict(&dir);
            let mut command = around(with, work);
            command
                .args(["filebench", args[0]])
                .arg(&dir)
                .args(&args[1..]);
            assert_eq!(
                said(&mut command),
                format!("{digest:016x}\n"),
                "{args:?}, Outrider: {with}"
            );
            let now = contents(&dir);
            match args[0] {
                "mongodb" => {
                    let grown = now.iter().map(|(_, bytes)| bytes);
                    assert!(grown.eq(&files), "what was appended");
                }
                "videoserver" => assert_eq!(
                    now.len(),
                    4 + if args.contains(&"--writes") { 2 } else { 1 }
                ),
                _ => assert!(now == original),
            }
            said(
                Command::new(work)
                    .args(["filebench", "reset"])
                    .arg(&dir)
                    .args(["--size", &size_text]),
            );
            assert!(
                contents(&dir) == original,
                "{args:?}: the files are not what they were"
            );
        }
    }
}

// ---- Rows ----

/// Families of data sets, and their words here; `*` keeps a word.
const TINY: &[(&str, &str)] = &[
    ("rocksdb", "200:1024"),
    ("leveldb", "200:*:*"),
    ("snappy", "6:100000"),
    ("filebench", "*:2:200000"),
    ("sqlite", "1500:*"),
];
/// Values of flags here.
const TINY_FLAGS: &[(&str, &str)] = &[("--keys", "200"), ("--ops", "150"), ("--size", "200000")];

/// Every row's commands, of all columns, say the same; after each, a reset brings back what they wrote to.
#[test]
fn rows_on_databases_say_the_same_in_every_column() {
    let scratch = scratch();
    let mut sets = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut families = BTreeSet::new();
    for row in rows::all() {
        let (family, words) = row.data.key.split_once(':').unwrap_or((&row.data.key, ""));
        let Some((family, tiny)) = TINY.iter().find(|(f, _)| *f == family) else {
            continue;
        };
        families.insert(*family);
        if *family == "sqlite" && !installed("sqlite3") {
            continue; // its own test says so
        }
        let named = row.work.commands[0][0].strip_prefix("{drivers}/");
        if named.is_some_and(|name| !drivers().join(name).is_file()) {
            continue; // likewise
        }
        let words = tiny.split(':').zip(words.split(':'));
        let words: Vec<_> = words
            .map(|(tiny, full)| if tiny == "*" { full } else { tiny })
            .collect();
        let key = format!("{family}:{}", words.join(":"));
        let place = Place::new(
            &row,
            sets.entry(key.clone())
                .or_insert_with(|| made(&row, &key, scratch.path())),
            scratch.path(),
        );
        // Many rows differ in nothing but their memory, or how many of the same they run at once.
        let first = &row.work.commands[0];
        let new = seen.insert(place.shortened(first));
        if !new && row.work.own.is_empty() {
            continue;
        }
        let plain = place.run(&row.work.commands, None);
        assert!(plain.iter().all(|out| !out.is_empty()), "{}", row.name);
        let run = |how: &str, commands, outrider: Option<&[String]>| {
            assert!(
                place.run(commands, outrider) == plain,
                "{}: {how}",
                row.name
            );
        };
        for own in &row.work.own {
            let flags = own.outrider.as_ref().map(|_| place.flags(own));
            // Another read-ahead of the device's is the runner's matter.
            if flags.is_some() {
                run(&own.name, place.commands(own), flags.as_deref());
            }
        }
        if !new {
            continue;
        }
        run("outrider run", &row.work.commands, Some(&[]));
        if let Some(hinted) = &row.work.hinted {
            run("hinted", hinted, None);
        }
        let built = |commands: &&Vec<Vec<String>>| {
            let driver = commands[0][0].strip_prefix("{drivers}/");
            driver.is_none_or(|name| drivers().join(name).is_file())
        };
        if let Some(graph) = row.work.graph.as_ref().filter(built) {
            run("graph", graph, None);
        }
        if let Some(declared) = &row.work.declared
            && tools().plugins.join("outrider_sqlite.so").is_file()
        {
            run("declared", declared, Some(&[]));
        }
    }
    let all: BTreeSet<_> = TINY.iter().map(|(family, _)| *family).collect();
    assert_eq!(families, all, "data sets of no row");
}

/// A row in a test.
struct Place<'a> {
    row: &'a Row,
    data: PathBuf,
    scratch: &'a Path,
}

impl<'a> Place<'a> {
    fn new(row: &'a Row, data: &Path, scratch: &'a Path) -> Self {
        Self {
            row,
            data: data.to_owned(),
            scratch,
        }
    }

    /// Words of a command as they are executed.
    fn words(&self, command: &[String]) -> Vec<String> {
        let tools = tools();
        let places = [
            ("{data}", &self.data),
            ("{bin}", &tools.bin),
            ("{drivers}", &tools.drivers),
            ("{plugins}", &tools.plugins),
        ];
        let words = self.shortened(command).into_iter();
        let filled = words.map(|word| {
            places.iter().fold(word, |word, (name, path)| {
                word.replace(name, path.to_str().unwrap())
            })
        });
        filled.collect()
    }

    /// Words of a command for the small data set.
    fn shortened(&self, command: &[String]) -> Vec<String> {
        let mut words = command.to_vec();
        for i in 1..words.len() {
            if let Some((_, tiny)) = TINY_FLAGS.iter().find(|(flag, _)| *flag == words[i - 1]) {
                words[i] = (*tiny).to_owned();
            }
            // RocksDB's values here are smaller than the row's.
            if words[i - 1] == "--value" && self.row.data.key.starts_with("rocksdb") {
                words[i] = "1024".to_owned();
            }
        }
        words
    }

    fn commands(&self, own: &OwnColumn) -> &[Vec<String>] {
        match own.which {
            rows::Which::Plain => &self.row.work.commands,
            rows::Which::Hinted => self.row.work.hinted.as_ref().unwrap(),
            rows::Which::Declared => self.row.work.declared.as_ref().unwrap(),
            rows::Which::Graph => self.row.work.graph.as_ref().unwrap(),
        }
    }

    /// Flags of `outrider run` for a column of the row's own.
    fn flags(&self, own: &OwnColumn) -> Vec<String> {
        let config = self.scratch.join("config.toml");
        fs::write(&config, &own.config).unwrap();
        let mut flags = own.outrider.clone().unwrap_or_default();
        flags.extend(["--config".to_owned(), config.to_str().unwrap().to_owned()]);
        flags
    }

    /// Runs commands at the same time, cold; what each printed.
    fn run(&self, commands: &[Vec<String>], outrider_flags: Option<&[String]>) -> Vec<String> {
        if let Some(reset) = &self.row.work.reset {
            let words = self.words(reset);
            said(Command::new(&words[0]).args(&words[1..]));
        }
        evict(&self.data);
        let running: Vec<_> = commands
            .iter()
            .map(|command| {
                let words = self.words(command);
                let mut command = match outrider_flags {
                    Some(flags) => {
                        let mut around = Command::new(outrider());
                        around.arg("run").args(flags).arg("--").arg(&words[0]);
                        around
                    }
                    None => Command::new(&words[0]),
                };
                command.args(&words[1..]);
                std::thread::spawn(move || said(&mut command))
            })
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    }
}

/// Makes a row's data set with other words in its key.
fn made(row: &Row, key: &str, scratch: &Path) -> PathBuf {
    let dir = scratch.join(key.replace(':', "-"));
    fs::create_dir(&dir).unwrap();
    let (_, words) = key.split_once(':').unwrap();
    let maker = Maker {
        dir: &dir,
        tools: &tools(),
        words,
    };
    if let Err(failure) = (row.data.make)(&maker) {
        panic!("{key}: {}", failure.message);
    }
    dir
}

// ---- Help ----

/// No command here takes longer than a few seconds; one that does hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// A command's standard output; it must succeed.
fn said(command: &mut Command) -> String {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipes.0.read_to_end(&mut bytes).map(|_| bytes)
    });
    let err = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipes.1.read_to_end(&mut bytes).map(|_| bytes)
    });
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("{command:?}: has not ended after two minutes");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let (out, err) = (out.join().unwrap().unwrap(), err.join().unwrap().unwrap());
    assert!(status.success(), "{command:?}: {status}: {}", text(&err));
    text(&out)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Each of the argument lists is refused with one line and exit code 2.
fn one_line_of_usage(driver: &Path, cases: &[&[&str]]) {
    for args in cases {
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new(driver).args(*args).output().unwrap();
        let said = text(&stderr);
        assert_eq!(status.code(), Some(2), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
        assert!(stdout.is_empty(), "{args:?}");
    }
}

/// A command, or `outrider run` around it.
fn around(with: bool, program: &Path) -> Command {
    if !with {
        return Command::new(program);
    }
    let mut command = Command::new(outrider());
    command.args(["run", "--"]).arg(program);
    command
}

/// Names of a directory's files, sorted.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| (name.clone(), fs::read(dir.join(name)).unwrap());
    names(dir).into_iter().map(read).collect()
}

/// Drops files from the cache, as far as that is to be had without rights.
fn evict(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            evict(&path);
        } else {
            let file = File::open(path).unwrap();
            let _ = file.sync_data();
            // SAFETY: no memory is involved.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
}

fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Where Cargo builds.
fn target() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from)
}

fn drivers() -> PathBuf {
    target().join("drivers")
}

fn tools() -> Tools {
    Tools {
        bin: Path::new(env!("CARGO_BIN_EXE_outrider-work"))
            .parent()
            .unwrap()
            .to_owned(),
        drivers: drivers(),
        plugins: target().join("plugins"),
    }
}

/// A driver that `make drivers` built. RocksDB's library is large, and no other test needs it: where it is not there, that
/// is no failure.
fn driver(name: &str) -> Option<PathBuf> {
    let path = drivers().join(name);
    if path.is_file() {
        return Some(path.canonicalize().unwrap());
    }
    let test = std::thread::current()
        .name()
        .unwrap_or("databases")
        .to_owned();
    let reason = format!("{name} was not built: `make drivers` first");
    skip(&test, &reason);
    None
}
