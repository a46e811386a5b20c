//! The tables of a report: what is compared with what, and what each number is.

use super::data::{Bench, Cell, Difference, Measured};
use super::table::{
    Table, Tone, Value, figure, megabytes, percent, seconds, signed_percent, times,
};
use crate::results::Machine;
use crate::results::STOCK;
use crate::results::median;

/// Behind a median of fewer than three valid runs.
const FEW: &str = " †";

/// What is meant, for whoever reads only the report.
pub const MEANING: [(&str, &str); 8] = [
    (
        "time",
        "median over the valid runs of the wall-clock time of the whole command, start and end of Outrider included; † behind it: fewer than three valid runs",
    ),
    (
        "speed-up",
        "median time of stock-128 (the kernel's readahead of 128 KiB) / time",
    ),
    (
        "best other peer",
        "the fastest of what a user would pick instead: a larger readahead (stock-4M, stock-best), the program's own hints (app-only), warming whole files first (vmtouch, its time included)",
    ),
    (
        "limit",
        "the longer of two medians: reading the blocks that the program needs, sorted and merged, with a deep queue past the cache; and running with everything cached",
    ),
    ("efficiency", "limit / time"),
    ("share of gain", "(stock-128 − time) / (stock-128 − limit)"),
    (
        "CPU",
        "CPU time of the commands and of all that Outrider ran for them",
    ),
    (
        "beyond noise",
        "the ranges of the valid runs do not overlap, and the medians differ by more than 5 %; both have three valid runs or more",
    ),
];

/// Everything, in the order in which it is to be read.
pub fn all(measured: &Measured) -> Vec<Table> {
    let tables = [
        headline(measured),
        losses(measured),
        cells(measured),
        figures(measured),
        outrider(measured),
        limits(measured),
        skips(measured),
        invalid(measured),
        accuracy(measured),
    ];
    // An empty list of losses is news; the others would be headings without a word.
    tables
        .into_iter()
        .filter(|t| !t.lines.is_empty() || t.id == "losses")
        .collect()
}

/// The first two fields of every line.
fn place(bench: &Bench) -> Vec<Value> {
    vec![Value::text(&bench.row), Value::text(&bench.device)]
}

/// The time of a column, marked where it rests on too few runs.
fn time(cell: Option<&Cell>) -> Value {
    let value = Value::number(cell.and_then(Cell::median), seconds);
    match cell {
        Some(cell) if cell.few() && value.number.is_some() => value.with(FEW),
        _ => value,
    }
}

/// A speed-up over stock-128: good or bad news where it is more than noise.
fn gain(bench: &Bench, cell: Option<&Cell>) -> Value {
    let value = Value::number(
        cell.and_then(Cell::median).and_then(|s| bench.speed_up(s)),
        times,
    );
    let difference = cell
        .zip(bench.column(STOCK))
        .map(|(cell, stock)| cell.against(stock));
    match difference {
        Some(Difference::Faster) => value.tone(Tone::Good),
        Some(Difference::Slower) => value.tone(Tone::Bad),
        _ => value,
    }
}

fn read_bytes(cell: Option<&Cell>) -> Value {
    let bytes = cell.and_then(|c| c.median_of(|run| Some(run.read_bytes as f64)));
    Value::number(bytes, megabytes)
}

fn cpu(cell: Option<&Cell>) -> Value {
    Value::number(
        cell.and_then(|c| c.median_of(|run| Some(run.cpu_seconds))),
        seconds,
    )
}

/// Latencies have columns where anything has them.
fn latencies(measured: &Measured) -> bool {
    let mut all = measured.benches.iter().flat_map(|b| b.cells.iter());
    all.any(|c| c.figure("p50_us").is_some() || c.figure("p99_us").is_some())
}

fn headline(measured: &Measured) -> Table {
    let latency = latencies(measured);
    let mut lines = Vec::new();
    for bench in &measured.benches {
        let stock = bench.column(STOCK);
        let mut columns: Vec<Option<&Cell>> = bench.outrider().map(Some).collect();
        if columns.is_empty() {
            columns.push(None);
        }
        for cell in columns {
            let median = cell.and_then(Cell::median);
            let mut line = place(bench);
            line.push(time(stock));
            line.push(match bench.best_peer() {
                Some((peer, _)) => {
                    let value = time(Some(peer));
                    value.with(&format!(" {}", peer.column))
                }
                None => Value::number(None, seconds),
            });
            line.push(Value::number(bench.limit(), seconds));
            line.push(cell.map_or_else(|| Value::text("–"), |c| Value::text(&c.column)));
            line.push(time(cell));
            line.push(gain(bench, cell));
            line.push(Value::number(
                bench.info.as_ref().and_then(|i| i.paper),
                times,
            ));
            line.push(Value::number(
                median.and_then(|s| bench.efficiency(s)),
                percent,
            ));
            line.push(Value::number(median.and_then(|s| bench.share(s)), percent));
            line.extend([cpu(cell), cpu(stock), read_bytes(cell), read_bytes(stock)]);
            if latency {
                for name in ["p50_us", "p99_us"] {
                    line.extend(
                        [cell, stock]
                            .map(|c| Value::number(c.and_then(|c| c.figure(name)), figure)),
                    );
                }
            }
            lines.push(line);
        }
    }
    let mut head = vec![
        "row",
        "device",
        "stock-128, s",
        "best other peer, s",
        "limit, s",
        "column",
        "time, s",
        "speed-up",
        "paper",
        "efficiency",
        "share of gain",
        "CPU, s",
        "stock CPU, s",
        "read, MB",
        "stock read, MB",
    ];
    if latency {
        head.extend(["p50, µs", "stock p50, µs", "p99, µs", "stock p99, µs"]);
    }
    Table {
        id: "headline",
        title: "Headline",
        note: "Each of Outrider's columns against stock Linux, against the best that a user would pick instead, and against the physical limit. “paper” is what the paper gained over its own stock system.".to_owned(),
        head,
        lines,
    }
}

fn losses(measured: &Measured) -> Table {
    let mut found: Vec<(f64, Vec<Value>)> = Vec::new();
    for bench in &measured.benches {
        let rivals = [bench.column(STOCK), bench.best_peer().map(|(cell, _)| cell)];
        for cell in bench.outrider() {
            for rival in rivals.into_iter().flatten() {
                let (Some(ours), Some(theirs)) = (cell.median(), rival.median()) else {
                    continue;
                };
                if ours <= theirs {
                    continue;
                }
                let mut line = place(bench);
                line.extend([Value::text(&cell.column), time(Some(cell))]);
                line.extend([Value::text(&rival.column), time(Some(rival))]);
                line.push(Value::number(Some(ours / theirs - 1.0), signed_percent).tone(Tone::Bad));
                line.push(Value::text(match cell.against(rival) {
                    Difference::Slower => "yes",
                    Difference::TooFew => "too few runs",
                    _ => "no",
                }));
                found.push((ours / theirs, line));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let note = match found.is_empty() {
        true => "None of Outrider's columns is slower than stock-128 or than the best other peer.",
        false => {
            "Every one of Outrider's columns that is slower than stock-128 or than the best other peer of its row, the worst first."
        }
    };
    Table {
        id: "losses",
        title: "Losses",
        note: note.to_owned(),
        head: vec![
            "row",
            "device",
            "column",
            "time, s",
            "slower than",
            "its time, s",
            "by",
            "beyond noise",
        ],
        lines: found.into_iter().map(|(_, line)| line).collect(),
    }
}

fn cells(measured: &Measured) -> Table {
    let latency = latencies(measured);
    let mut lines = Vec::new();
    for bench in &measured.benches {
        for cell in &bench.cells {
            let median = cell.median();
            let (least, most) = cell.range().unzip();
            let mut line = place(bench);
            line.extend([Value::text(&cell.column), time(Some(cell))]);
            line.extend([Value::number(least, seconds), Value::number(most, seconds)]);
            line.extend(
                [cell.valid().count(), cell.discarded()]
                    .map(|n| Value::number(Some(n as f64), figure)),
            );
            line.push(gain(bench, Some(cell)));
            line.push(Value::number(
                median.and_then(|s| bench.efficiency(s)),
                percent,
            ));
            line.push(Value::number(median.and_then(|s| bench.share(s)), percent));
            line.extend([cpu(Some(cell)), read_bytes(Some(cell))]);
            line.push(Value::number(
                cell.median_of(|run| Some(run.requests as f64)),
                figure,
            ));
            if latency {
                line.extend(
                    ["p50_us", "p99_us"].map(|name| Value::number(cell.figure(name), figure)),
                );
            }
            lines.push(line);
        }
    }
    let mut head = vec![
        "row",
        "device",
        "column",
        "time, s",
        "min, s",
        "max, s",
        "valid runs",
        "discarded",
        "speed-up",
        "efficiency",
        "share of gain",
        "CPU, s",
        "read, MB",
        "requests",
    ];
    if latency {
        head.extend(["p50, µs", "p99, µs"]);
    }
    Table {
        id: "cells",
        title: "All columns",
        note: "Everything that was measured, peers included, with the shortest and the longest valid run.".to_owned(),
        head,
        lines,
    }
}

/// What programs tell of themselves, apart from the latencies that stand with the times.
fn figures(measured: &Measured) -> Table {
    let mut lines = Vec::new();
    for bench in &measured.benches {
        for cell in &bench.cells {
            let mut names: Vec<&String> = cell.valid().flat_map(|run| run.figures.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                if name == "p50_us" || name == "p99_us" {
                    continue;
                }
                let stock = bench.column(STOCK).and_then(|c| c.figure(name));
                let mut line = place(bench);
                line.extend([Value::text(&cell.column), Value::text(name)]);
                line.extend([cell.figure(name), stock].map(|n| Value::number(n, figure)));
                lines.push(line);
            }
        }
    }
    Table {
        id: "figures",
        title: "The programs' own figures",
        note: "Medians over the valid runs, as the programs print them.".to_owned(),
        head: vec![
            "row",
            "device",
            "column",
            "figure",
            "value",
            "with stock-128",
        ],
        lines,
    }
}

/// What Outrider fetched, and what became of it.
fn outrider(measured: &Measured) -> Table {
    const KEPT: [&str; 7] = [
        "prefetched",
        "used",
        "wasted",
        "evicted",
        "hit",
        "late",
        "missed",
    ];
    let mut lines = Vec::new();
    for bench in &measured.benches {
        for cell in bench.outrider() {
            let kept = KEPT.map(|name| cell.median_of(|run| run.outrider.get(name).copied()));
            if kept.iter().any(Option::is_some) {
                let mut line = place(bench);
                line.push(Value::text(&cell.column));
                line.extend(kept.map(|bytes| Value::number(bytes, megabytes)));
                lines.push(line);
            }
        }
    }
    Table {
        id: "outrider",
        title: "What became of what was prefetched",
        note: "MB, medians over the valid runs. Of what was prefetched: used, wasted (never read), evicted (thrown out before it was read). Of what the program read: hit (it was there), late (on its way), missed (not foreseen).".to_owned(),
        head: vec![
            "row",
            "device",
            "column",
            "prefetched",
            "used",
            "wasted",
            "evicted",
            "hit",
            "late",
            "missed",
        ],
        lines,
    }
}

fn limits(measured: &Measured) -> Table {
    let mut lines = Vec::new();
    for bench in &measured.benches {
        if let Some(bound) = &bench.bound {
            let mut line = place(bench);
            let parts = [median(&bound.replay), median(&bound.warm), bench.limit()];
            line.extend(parts.map(|s| Value::number(s, seconds)));
            line.push(Value::number(Some(bound.needed_bytes as f64), megabytes));
            line.push(Value::number(Some(bound.needed_requests as f64), figure));
            lines.push(line);
        }
    }
    Table {
        id: "limits",
        title: "Limits",
        note: "Reading what is needed (traced with readahead off; sorted, merged, deep queue, past the cache) and working with everything cached. No order of reading beats the longer one.".to_owned(),
        head: vec!["row", "device", "reading, s", "everything cached, s", "limit, s", "needed, MB", "requests"],
        lines,
    }
}

fn skips(measured: &Measured) -> Table {
    let mut lines = Vec::new();
    for bench in &measured.benches {
        for skip in &bench.skips {
            let mut line = place(bench);
            line.push(Value::text(if skip.column == "*" {
                "all"
            } else {
                &skip.column
            }));
            line.push(Value::text(&skip.why));
            lines.push(line);
        }
    }
    Table {
        id: "skips",
        title: "Columns left out",
        note: String::new(),
        head: vec!["row", "device", "column", "why"],
        lines,
    }
}

fn invalid(measured: &Measured) -> Table {
    let mut lines = Vec::new();
    for bench in &measured.benches {
        for cell in &bench.cells {
            for (why, count) in &cell.invalid {
                let mut line = place(bench);
                line.push(Value::text(&cell.column));
                line.push(Value::number(Some(*count as f64), figure));
                line.push(Value::text(why));
                lines.push(line);
            }
        }
    }
    Table {
        id: "discarded",
        title: "Runs that do not count",
        note: String::new(),
        head: vec!["row", "device", "column", "runs", "why"],
        lines,
    }
}

fn accuracy(measured: &Measured) -> Table {
    let line = |a: &crate::results::Accuracy| {
        vec![
            Value::text(&a.device),
            Value::text(&a.measure),
            Value::number(Some(a.modelled), figure),
            Value::number(Some(a.measured), figure),
            Value::number(Some((a.measured - a.modelled) / a.modelled), signed_percent),
        ]
    };
    Table {
        id: "accuracy",
        title: "Accuracy of the emulator",
        note: "What the model of the device says and what was measured on the bare device: latency in µs, IOPS per s, sequential in MB/s.".to_owned(),
        head: vec!["device", "measure", "modelled", "measured", "deviation"],
        lines: measured.accuracy.iter().map(line).collect(),
    }
}

/// What it was measured on: a name and a value each.
pub fn machine(measured: &Measured) -> Vec<(&'static str, String)> {
    let Some(last) = measured.machines.last() else {
        return Vec::new();
    };
    let memory = |m: &Machine| format!("{:.1} GiB", m.memory as f64 / f64::from(1 << 30));
    // What changed between invocations is told with all its values.
    let each = |of: &dyn Fn(&Machine) -> String| {
        let mut values: Vec<String> = Vec::new();
        for machine in &measured.machines {
            let value = of(machine);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values.join(", then ")
    };
    let when = match measured.machines.as_slice() {
        [first, .., last] => format!(
            "{} to {} ({} invocations)",
            first.at,
            last.at,
            measured.machines.len()
        ),
        _ => last.at.clone(),
    };
    vec![
        ("measured", when),
        ("processor", each(&|m| format!("{} x {}", m.cpus, m.cpu))),
        ("memory", each(&memory)),
        ("system", each(&|m| m.os.clone())),
        ("kernel", each(&|m| m.kernel.clone())),
        ("file system", each(&|m| m.fs.clone())),
        ("Outrider", each(&|m| m.version.clone())),
        ("load at the start", each(&|m| format!("{:.2}", m.load))),
    ]
}

/// How many of Outrider's columns gained and lost, in a sentence; and how many runs that rests on.
pub fn verdict(measured: &Measured) -> String {
    let (mut faster, mut slower, mut same, mut unknown) = (0, 0, 0, 0);
    for bench in &measured.benches {
        for cell in bench.outrider() {
            match bench.column(STOCK).map(|stock| cell.against(stock)) {
                Some(Difference::Faster) => faster += 1,
                Some(Difference::Slower) => slower += 1,
                Some(Difference::Noise) => same += 1,
                Some(Difference::TooFew) | None => unknown += 1,
            }
        }
    }
    let cells = || measured.benches.iter().flat_map(|b| b.cells.iter());
    let valid: usize = cells().map(|c| c.valid().count()).sum();
    let discarded: usize = cells().map(Cell::discarded).sum();
    format!(
        "Against stock-128, of {} results of Outrider's: {faster} faster beyond noise, {slower} slower beyond noise, {same} within noise, {unknown} with too few runs to tell. {valid} valid runs, {discarded} discarded.",
        faster + slower + same + unknown,
    )
}
