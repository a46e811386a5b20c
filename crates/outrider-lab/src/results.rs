//! Raw results: one JSON object a line in `results.jsonl`, in the order in which they were measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The column that others are compared with: the kernel's own readahead of 128 KiB.
pub const STOCK: &str = "stock-128";
/// The column with the best readahead of a scan.
pub const BEST: &str = "stock-best";

/// The columns that every row has, in the order of tables; a row's own follow.
pub const COLUMNS: [&str; 10] = [
    STOCK,
    "stock-4M",
    BEST,
    "app-only",
    "vmtouch",
    "predict",
    "predict+opt",
    "fetchall+opt",
    "declared",
    "graph",
];

/// A line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Line {
    /// What it was measured on; the first line of each invocation.
    Machine(Machine),
    /// A row on a device, before its runs.
    Row(RowInfo),
    /// One run.
    Run(Run),
    /// The limit of a row on a device.
    Bound(Bound),
    /// A column that was left out of a row, and why.
    Skip(Skip),
    /// How well the emulator keeps to its model.
    Accuracy(Accuracy),
}

/// The machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// UTC, RFC 3339.
    pub at: String,
    /// Kernel release.
    pub kernel: String,
    /// Processor model as the kernel names it.
    pub cpu: String,
    /// Processors.
    pub cpus: u32,
    /// Bytes.
    pub memory: u64,
    /// Distribution.
    pub os: String,
    /// The version of Outrider: `git describe` or the crate's.
    pub version: String,
    /// The file system on the measured disks.
    pub fs: String,
    /// Load average over one minute at the start.
    pub load: f64,
}

/// A row as it was measured (a copy of what [`crate::rows::Row`] says, so that a report needs no code of the time).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RowInfo {
    /// The row.
    pub row: String,
    /// The device: a model's words, `hdd scale=0.1`.
    pub device: String,
    /// In words.
    pub about: String,
    /// The figure it is drawn in.
    pub figure: Option<String>,
    /// Its curve there.
    pub series: Option<String>,
    /// Its place on the horizontal axis.
    pub x: Option<String>,
    /// The paper's gain at this point.
    pub paper: Option<f64>,
    /// Memory limit, bytes.
    pub memory: Option<u64>,
    /// Bytes of the data set.
    pub data_bytes: u64,
}

/// One run of one column.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Run {
    /// The row.
    pub row: String,
    /// The device.
    pub device: String,
    /// `stock-128`, `stock-4M`, `stock-best`, `app-only`, `vmtouch`, `predict`, `predict+opt`, `fetchall+opt`, `declared`, `graph`.
    pub column: String,
    /// From 0.
    pub run: u32,
    /// Wall-clock time of the whole command, s.
    pub seconds: f64,
    /// CPU time of the commands and of all that Outrider ran for them, s.
    pub cpu_seconds: f64,
    /// Bytes that the device was asked to read.
    pub read_bytes: u64,
    /// Requests that the device got.
    pub requests: u64,
    /// What the commands printed: a digest per command.
    pub digests: Vec<String>,
    /// Exit codes other than 0 make a run invalid.
    pub exit: i32,
    /// KiB.
    pub readahead_kb: u32,
    /// Bytes of the data set found cached before the run (0, or the run is discarded).
    pub cached_before: u64,
    /// Foreign load during the run, in processors (CPU time of others / wall-clock time).
    pub foreign_load: f64,
    /// Why the run does not count.
    pub discarded: Option<String>,
    /// The program's own figures, summed or, for percentiles, the worst of the commands: `ops`, `bytes`, `ops_per_s`,
    /// `p50_us`, `p99_us`, `waited_permille` (operations that took over 40 µs) …
    pub figures: BTreeMap<String, f64>,
    /// From Outrider's report, bytes: `prefetched`, `used`, `wasted`, `evicted`, `late`, `missed`, `hit`.
    pub outrider: BTreeMap<String, f64>,
    /// UTC, RFC 3339.
    pub at: String,
}

/// The limit: the blocks that the program needs (traced with readahead off), deduplicated, sorted, merged, read with a deep
/// queue and O_DIRECT; and the run with everything cached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bound {
    /// The row.
    pub row: String,
    /// The device.
    pub device: String,
    /// Replays, s.
    pub replay: Vec<f64>,
    /// Warm runs, s.
    pub warm: Vec<f64>,
    /// Bytes that are needed.
    pub needed_bytes: u64,
    /// Requests after merging.
    pub needed_requests: u64,
}

/// A column that was left out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Skip {
    /// The row.
    pub row: String,
    /// The device.
    pub device: String,
    /// The column, or `*`.
    pub column: String,
    /// Why.
    pub why: String,
}

/// One figure of the emulator's accuracy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Accuracy {
    /// The model.
    pub device: String,
    /// `latency-4k-d1` (µs), `iops-4k-d4`, `iops-4k-d16`, `iops-4k-d64`, `iops-16k-d64` (per s), `sequential` (MB/s).
    pub measure: String,
    /// What the model says.
    pub modelled: f64,
    /// Median of what was measured.
    pub measured: f64,
}

/// The middle value; the mean of the middle two where their number is even.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.is_empty() {
        None
    } else if sorted.len() % 2 == 1 {
        Some(sorted[middle])
    } else {
        Some(f64::midpoint(sorted[middle - 1], sorted[middle]))
    }
}
