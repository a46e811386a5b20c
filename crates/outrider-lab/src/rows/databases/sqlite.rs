//! libprefetch's rows on SQLite: a query in the order of a secondary index (its section 5.4).
//!
//! The table is 58 MB where the paper has 132 MB to 4 GB on 512 MB of memory; memory is what varies here. For the
//! largest ratio the table is twice as large, because less memory than a quarter of 58 MB holds no process at all; for
//! several instances each has half of it.

use std::process::{Command, Stdio};

use crate::output::{Context, Failure, Outcome};
use crate::rows::words::{argv, data};
use crate::rows::{Data, Maker, Row, Workload};

/// Rows of 58 MB of table and index.
const ROWS: u64 = 95_000;
const BYTES: u64 = 58_000_000;

/// The words of the key are rows and databases; they differ in their seeds.
fn customers(rows: u64, databases: u64) -> Data {
    let bytes = BYTES * rows / ROWS * databases;
    data(
        &format!("sqlite:{rows}:{databases}"),
        bytes + (bytes >> 4),
        make,
    )
}

fn make(maker: &Maker) -> Outcome {
    for n in 1..=maker.count(1)? {
        let mut writer = Command::new(maker.tools.bin.join("outrider-work"))
            .args([
                "customer",
                "--rows",
                maker.word(0)?,
                "--seed",
                &n.to_string(),
            ])
            .stdout(Stdio::piped())
            .spawn()
            .doing("outrider-work")?;
        let sql = writer.stdout.take().expect("it is piped");
        let loaded = Command::new("sqlite3")
            .arg("-batch")
            .arg(maker.path(&format!("{n}.db")))
            .stdin(sql)
            .stdout(Stdio::null())
            .status();
        let written = writer.wait().doing("outrider-work")?;
        let loaded = loaded.doing("sqlite3")?;
        if !written.success() || !loaded.success() {
            return Err(Failure::system(format!(
                "the table of customers was not made: {written}, sqlite3: {loaded}"
            )));
        }
    }
    Ok(())
}

/// The query on the n-th database. SQLite must not sort, and its own cache is small, so that it is the page cache that
/// counts. The extension helps databases that are opened after it was loaded.
fn query(n: u64, declared: bool) -> Vec<String> {
    let open = format!(".open --readonly {{data}}/{n}.db");
    let load = ".load {plugins}/outrider_sqlite";
    let mut command = argv(&["sqlite3", "-batch", ":memory:"]);
    if declared {
        command.push(load.to_owned());
    }
    command.extend([
        open,
        "PRAGMA cache_size=-256".to_owned(),
        "SELECT * FROM customer INDEXED BY customer_zip ORDER BY c_zip".to_owned(),
    ]);
    command
}

fn queries(instances: u64) -> Workload {
    let all = |declared| (1..=instances).map(|n| query(n, declared)).collect();
    Workload {
        declared: Some(all(true)),
        ..Workload::all(all(false))
    }
    .needs(&[("sqlite3", "sqlite3")])
}

/// Fig. 10 and 12.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    // Data to memory; section 5.4 and 1: "roughly 14x" initially, "20x … on a data set that is twice the size of
    // memory", 7.7x for 4 GB.
    let ratios = [
        (0.25, Some(14.0)),
        (0.5, None),
        (1.0, None),
        (2.0, Some(20.0)),
        (4.0, None),
        (8.0, Some(7.7)),
    ];
    for (ratio, paper) in ratios {
        let size = if ratio == 8.0 { 2 } else { 1 };
        let mut row = Row::new(
            format!("lp-fig10-sqlite-{ratio}x"),
            format!(
                "libprefetch Fig. 10, SQLite by a secondary index, data {ratio} times the memory"
            ),
            customers(ROWS * size, 1),
            queries(1),
        )
        .point("lp-fig10", "SQLite", ratio.to_string(), paper)
        .memory((BYTES as f64 * size as f64 / ratio) as u64)
        // With a head, what exceeds memory takes minutes a run.
        .on(if ratio <= 1.0 {
            &["nvme", "hdd"]
        } else {
            &["nvme"]
        });
        if ratio == 0.25 {
            row.short = &["nvme", "hdd"];
        } else if ratio == 2.0 {
            row.short = &["nvme"];
        }
        rows.push(row);
    }
    for instances in 1..=3 {
        // Section 5.6, over stock with as many instances.
        let paper = [None, Some(23.5), Some(21.5)][instances as usize - 1];
        rows.push(
            Row::new(
                format!("lp-fig12-sqlite-{instances}"),
                format!("libprefetch Fig. 12, SQLite queries at once: {instances}, memory for the data of one"),
                customers(ROWS / 2, 3),
                queries(instances),
            )
            .point("lp-fig12", "SQLite", instances.to_string(), paper)
            .memory(BYTES / 2)
            .on(&["nvme", "hdd"]),
        );
    }
    rows
}
