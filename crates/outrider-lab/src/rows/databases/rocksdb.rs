//! CrossPrefetch's rows on RocksDB: db_bench's loads and YCSB's.
//!
//! The paper has 40 million keys in 120 GB and up to 32 threads; here 96 000 keys of 4 KB (the value's size that it states
//! for YCSB) and up to 16 threads. Its "OSonly" is RocksDB without advice to the kernel, our plain command; its
//! "APPonly" is RocksDB as it comes, which advises tables as random and calls readahead in iterators: `--hints app`.

use super::{line, load_and_clone, of_threads};
use crate::output::Outcome;
use crate::rows::words::data;
use crate::rows::{Data, Maker, OwnColumn, Row, Which, Workload};

const DRIVER: &str = "{drivers}/outrider-rocksdb";
/// Of the initial load.
const KEYS: u64 = 96_000;
/// Bytes of a value.
const VALUE: u64 = 4096;
/// Bytes of the store.
const STORE: u64 = KEYS * (VALUE + 64);
/// Random reads of a run: a third of the keys, or so.
const READS: u64 = 30_000;
/// Where the paper has 32 threads: it has 64 processors.
const THREADS: u64 = 16;

/// `base`, which is never changed, and `run`, a clone of it. Loads that write put as much again on the disk as they
/// merge: at most all of the store twice.
fn store() -> Data {
    data(&format!("rocksdb:{KEYS}:{VALUE}"), 3 * STORE, make)
}

fn make(maker: &Maker) -> Outcome {
    load_and_clone(maker, "outrider-rocksdb", &[])
}

/// A load on `{data}/DIR`, plain and with RocksDB's own hints.
fn load(dir: &str, load: &str, threads: u64, more: &str) -> Workload {
    let plain = line(&format!(
        "{DRIVER} run {{data}}/{dir} --keys {KEYS} --value {VALUE} --load {load} --threads {threads} {more}"
    ));
    let mut hinted = plain.clone();
    hinted.extend(line("--hints app"));
    Workload {
        hinted: Some(vec![hinted]),
        ..Workload::one(plain)
    }
}

fn multireadrandom(threads: u64) -> Workload {
    load(
        "base",
        "multireadrandom",
        threads,
        &format!("--ops {READS}"),
    )
}

/// The access patterns of Figures 7b and 8a beside multireadrandom. Reading backwards waits for every block, so it covers
/// less.
const PATTERNS: [(&str, &str); 4] = [
    ("readseq", ""),
    ("readreverse", "--span 25"),
    ("readrandom", "--ops 30000"),
    ("readwhilescanning", "--ops 30000 --span 50"),
];

/// Fig. 7a, 7b, 7c, 8a, 10, 9a and Table 5.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for threads in [1, 4, 16] {
        // Section 5.3: 1.22x over OSonly, without a number of threads; it is drawn at the most.
        let paper = (threads == THREADS).then_some(1.22);
        let mut row = Row::new(
            format!("cp-fig7a-multireadrandom-{threads}"),
            format!(
                "CrossPrefetch Fig. 7a, RocksDB multireadrandom, {}",
                of_threads(threads)
            ),
            store(),
            multireadrandom(threads),
        )
        .point("cp-fig7a", "multireadrandom", threads.to_string(), paper)
        .on(&["nvme", "remote"]);
        if threads != 4 {
            row.short = if threads == 1 {
                &["nvme"]
            } else {
                &["nvme", "remote"]
            };
        }
        rows.push(row);
    }
    for threads in [1, 4, 16] {
        for (pattern, more) in PATTERNS {
            // Section 5.3: "for reverse read access, resulting in 3.7x gains".
            let paper = (threads == THREADS && pattern == "readreverse").then_some(3.7);
            let mut row = Row::new(
                format!("cp-fig7b-{pattern}-{threads}"),
                format!(
                    "CrossPrefetch Fig. 7b, RocksDB {pattern}, {}",
                    of_threads(threads)
                ),
                store(),
                load("base", pattern, threads, more),
            )
            .point("cp-fig7b", format!("{threads} threads"), pattern, paper)
            .on(&["nvme"]);
            if threads == THREADS {
                row.short = &["nvme"];
            }
            rows.push(row);
        }
    }
    for part in [6, 3, 2, 1] {
        let mut row = Row::new(
            format!("cp-fig7c-multireadrandom-1to{part}"),
            format!("CrossPrefetch Fig. 7c, RocksDB multireadrandom, {THREADS} threads, memory to data 1:{part}"),
            store(),
            multireadrandom(THREADS),
        )
        .point("cp-fig7c", "multireadrandom", format!("1:{part}"), None)
        .memory(STORE / part)
        .on(&["nvme"]);
        if part == 6 {
            row.short = &["nvme"];
        }
        rows.push(row);
    }
    for (pattern, more) in PATTERNS {
        // Section 5.3: "for reverse read, where it achieves up to 5.68x gains".
        let paper = (pattern == "readreverse").then_some(5.68);
        rows.push(
            Row::new(
                format!("cp-fig8a-{pattern}"),
                format!(
                    "CrossPrefetch Fig. 8a, RocksDB {pattern} on remote storage, {THREADS} threads"
                ),
                store(),
                load("base", pattern, THREADS, more),
            )
            .point("cp-fig8a", "ext4", pattern, paper)
            .on(&["remote"]),
        );
    }
    rows.extend(ycsb());
    rows.extend(limits());
    rows.push(increments());
    rows
}

/// Fig. 9a. Loads that write run on the clone, which is made anew before each run.
fn ycsb() -> Vec<Row> {
    let loads = [
        ('a', 40_000),
        ('b', 40_000),
        ('c', 40_000),
        ('d', 40_000),
        ('e', 3_000),
        ('f', 30_000),
    ];
    loads
        .into_iter()
        .map(|(letter, ops)| {
            let mut work = load(
                "run",
                &format!("ycsb-{letter}"),
                THREADS,
                &format!("--ops {ops}"),
            );
            work.reset = Some(line(&format!("{DRIVER} clone {{data}}/base {{data}}/run")));
            // Section 5.5 gives a number for E alone: "a twofold increase".
            let paper = (letter == 'e').then_some(2.0);
            let mut row = Row::new(
                format!("cp-fig9a-ycsb-{letter}"),
                format!(
                    "CrossPrefetch Fig. 9a, RocksDB under YCSB {}, {THREADS} threads",
                    letter.to_ascii_uppercase()
                ),
                store(),
                work,
            )
            .point("cp-fig9a", "YCSB", letter.to_string(), paper)
            .on(&["nvme"]);
            row.short = &["nvme"];
            row
        })
        .collect()
}

/// Fig. 10: what a larger limit of the kernel's read-ahead is worth, alone and under Outrider, whose windows are then as
/// large at most.
fn limits() -> Vec<Row> {
    [32, 128, 512, 2048, 8192]
        .into_iter()
        .map(|kb: u32| {
            let column = |name: &str, which, outrider: Option<&str>, config: String| OwnColumn {
                name: name.to_owned(),
                which,
                readahead_kb: Some(kb),
                outrider: outrider.map(line),
                config,
                ..OwnColumn::default()
            };
            let window = format!("[window]\ninitial = \"{}K\"\nmax = \"{kb}K\"\n", kb.min(128));
            let mut work = multireadrandom(THREADS);
            work.own = vec![
                column("stock-limit", Which::Plain, None, String::new()),
                column("app-only-limit", Which::Hinted, None, String::new()),
                column(
                    "predict+opt-limit",
                    Which::Plain,
                    Some("--mode predict+opt"),
                    window,
                ),
            ];
            Row::new(
                format!("cp-fig10-multireadrandom-{kb}k"),
                format!("CrossPrefetch Fig. 10, RocksDB multireadrandom, {THREADS} threads, prefetch limit {kb} KiB"),
                store(),
                work,
            )
            .point("cp-fig10", "multireadrandom", kb.to_string(), None)
            .on(&["nvme"])
        })
        .collect()
}

/// Table 5: what each part adds. The paper's gain over OSonly is 2143, 2379 and 2642 to 1834 kop/s; the row's is the last.
fn increments() -> Row {
    let column = |name: &str, mode: &str, view: &str| OwnColumn {
        name: name.to_owned(),
        outrider: Some(line(&format!("--mode {mode}"))),
        config: format!("[view]\n{view}"),
        ..OwnColumn::default()
    };
    let mut work = multireadrandom(THREADS);
    work.own = vec![
        column(
            "cache-visibility",
            "predict",
            "cache_visibility = true\nrange_tree = \"off\"\n",
        ),
        column(
            "range-tree",
            "predict",
            "cache_visibility = true\nrange_tree = \"page\"\n",
        ),
        column(
            "aggressive-prefetch",
            "predict+opt",
            "cache_visibility = true\nrange_tree = \"page\"\n",
        ),
    ];
    Row::new(
        "cp-table5-multireadrandom",
        format!("CrossPrefetch Table 5, its parts one after the other, RocksDB multireadrandom, {THREADS} threads"),
        store(),
        work,
    )
    .point("cp-table5", "multireadrandom", "all", Some(2642.0 / 1834.0))
    .on(&["nvme"])
}
