//! CrossPrefetch (ASPLOS '24): its microbenchmarks, Figures 5 and 6, Tables 3 and 4.
//!
//! Threads read 16 KiB blocks. The paper has 200 GB of data in 93 GB of memory; here it is 256 MB in 120 MB, which keeps the
//! ratio, and 4 threads. Its random order is a permutation, which flatters whoever streams the file; drawing with
//! replacement and Zipf's distribution stand beside it.

use super::plain::{files, read, row};
use super::{Memory, Point, Row};

/// The paper's device.
const LOCAL: &[&str] = &["nvme"];
/// The same and its remote one.
const BOTH: &[&str] = &["nvme", "remote"];
/// Memory to 256 MB of data as 93 to 200.
const MEMORY: Memory = Memory::Bytes(120 << 20);

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(figure_5());
    rows.extend(figure_6());
    rows.extend(table_3());
    rows.extend(table_4());
    rows
}

/// A pattern as rows name it and as `outrider-work` does, and in words.
const PATTERNS: [(&str, &str, &str); 4] = [
    ("seq", "seq", "sequential"),
    ("rand", "permutation", "random, each block once"),
    ("uniform", "uniform", "random with replacement"),
    ("zipf", "zipf", "random after Zipf"),
];

fn shared(sharing: &str) -> (&'static str, &'static str) {
    match sharing {
        "private" => ("4x64M", "--private"),
        _ => ("1x256M", "--shared"),
    }
}

fn figure_5() -> Vec<Row> {
    let mut rows = Vec::new();
    for sharing in ["private", "shared"] {
        for (name, pattern, about) in PATTERNS {
            let (files, flag) = shared(sharing);
            let devices = if name == "seq" || name == "rand" {
                BOTH
            } else {
                LOCAL
            };
            let mut row = row(
                &format!("cp-fig5-{sharing}-{name}"),
                &format!("CrossPrefetch Fig. 5, {sharing} files, 4 threads, {about}"),
                files,
                &format!("--threads 4 {flag} --pattern {pattern}"),
                devices,
            );
            row.memory = MEMORY;
            row.short = LOCAL;
            row.point = Some(Point {
                figure: "cp-fig5",
                series: sharing.to_owned(),
                x: name.to_owned(),
                // Section 5.2.1: over APPonly, which turns the kernel's readahead off.
                paper: match (sharing, name) {
                    ("private", "rand") => Some(1.97),
                    ("shared", "rand") => Some(1.81),
                    _ => None,
                },
            });
            rows.push(row);
        }
    }
    rows
}

/// Readers beside 4 writers, all of one file, in parts that do not overlap. Here the readers' time is measured.
fn figure_6() -> Vec<Row> {
    [1u32, 2, 4, 8]
        .map(|readers| {
            let words = format!("--threads {readers} --shared --pattern permutation --length 128M");
            let mut row = row(
                &format!("cp-fig6-readers-{readers}"),
                &format!("CrossPrefetch Fig. 6, {readers} random readers beside 4 writers of the same file"),
                "1x256M",
                &words,
                LOCAL,
            );
            // Not the set that others read: it is written to.
            row.data = files("1x257M");
            row.work.beside = vec![
                "{bin}/outrider-work write {data}/0 --threads 4 --start 128M --per-second 500"
                    .split(' ')
                    .map(str::to_owned)
                    .collect(),
            ];
            row.short = LOCAL;
            row.point = Some(Point {
                figure: "cp-fig6",
                series: "readers".to_owned(),
                x: readers.to_string(),
                paper: None,
            });
            row
        })
        .into()
}

/// The share of reads that had to wait, which is what the paper's cache misses are to a program.
fn table_3() -> Vec<Row> {
    [PATTERNS[1], PATTERNS[0]]
        .map(|(name, pattern, about)| {
            let mut row = row(
                &format!("cp-table3-shared-{name}"),
                &format!("CrossPrefetch Table 3, misses: one file, 4 threads, {about}"),
                "1x256M",
                &format!("--threads 4 --shared --pattern {pattern}"),
                LOCAL,
            );
            row.memory = MEMORY;
            row.short = LOCAL;
            row.point = Some(Point {
                figure: "cp-table3",
                series: "shared".to_owned(),
                x: name.to_owned(),
                paper: None,
            });
            row
        })
        .into()
}

fn table_4() -> Vec<Row> {
    // Over OSonly: 1270.32 to 829.52 and 751.57 to 484.34 MB/s.
    [
        ("readseq", "seq", 1.53),
        ("readrandom", "permutation", 1.55),
    ]
    .map(|(name, pattern, paper)| {
        let words = format!("--threads 4 --shared --mmap --pattern {pattern}");
        let mut row = row(
            &format!("cp-table4-mmap-{name}"),
            &format!("CrossPrefetch Table 4, memory map, {name}"),
            "1x256M",
            &words,
            LOCAL,
        );
        row.memory = MEMORY;
        row.work.hinted = Some(vec![read(1, &format!("{words} --hints pattern"))]);
        row.short = LOCAL;
        row.point = Some(Point {
            figure: "cp-table4",
            series: "mmap".to_owned(),
            x: name.to_owned(),
            paper: Some(paper),
        });
        row
    })
    .into()
}
