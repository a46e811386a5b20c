//! CrossPrefetch's Figure 9b: files compressed in parallel with Snappy.
//!
//! The paper has 120 GB in files of 100 MB, 16 threads, and memory from a sixth of the data to all of it. A thread holds a
//! file and what becomes of it in memory, so files are small enough for 16 of them to fit into the smallest memory.

use super::{line, of_threads};
use crate::output::Outcome;
use crate::rows::make::run;
use crate::rows::words::data;
use crate::rows::{Data, Maker, Row, Workload};

const DRIVER: &str = "{drivers}/outrider-snappy";
const FILES: u64 = 512;
/// Bytes of a file.
const FILE: u64 = 1 << 20;
const BYTES: u64 = FILES * FILE;

fn files() -> Data {
    data(
        &format!("snappy:{FILES}:{FILE}"),
        BYTES + (BYTES >> 6),
        make,
    )
}

fn make(maker: &Maker) -> Outcome {
    run(
        std::process::Command::new(maker.tools.drivers.join("outrider-snappy"))
            .arg("make")
            .arg(maker.dir)
            .args(["--files", maker.word(0)?, "--size", maker.word(1)?]),
    )
}

/// "We modify the application to explicitly issue a fadvise after opening a file in the APPonly approach", to exploit
/// sequential access.
fn compress(threads: u64) -> Workload {
    let plain = line(&format!("{DRIVER} compress {{data}} --threads {threads}"));
    let mut hinted = plain.clone();
    hinted.extend(line("--hint sequential"));
    Workload {
        hinted: Some(vec![hinted]),
        ..Workload::one(plain)
    }
}

/// Threads with all the memory that they want, and memory with 16 threads.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for threads in [1, 4, 16] {
        let mut row = Row::new(
            format!("cp-fig9b-snappy-{threads}"),
            format!(
                "CrossPrefetch Fig. 9b, Snappy, {}, memory free",
                of_threads(threads)
            ),
            files(),
            compress(threads),
        )
        .point("cp-fig9b", format!("{threads} threads"), "free", None)
        .on(&["nvme", "remote"]);
        if threads == 1 {
            row.short = &["nvme"];
        }
        rows.push(row);
    }
    for part in [6, 3, 2, 1] {
        // Section 5.5: "up to 31 % performance gains with a 1:2 memory-to-disk ratio".
        let paper = (part == 2).then_some(1.31);
        let mut row = Row::new(
            format!("cp-fig9b-snappy-16-1to{part}"),
            format!("CrossPrefetch Fig. 9b, Snappy, 16 threads, memory to data 1:{part}"),
            files(),
            compress(16),
        )
        .point("cp-fig9b", "16 threads", format!("1:{part}"), paper)
        .memory(BYTES / part)
        .on(&["nvme"]);
        if part == 2 {
            row.short = &["nvme"];
        }
        rows.push(row);
    }
    rows
}
