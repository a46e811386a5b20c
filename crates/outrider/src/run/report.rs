//! What was prefetched, used and wasted: as a table on standard error, or as JSON in a file.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use outrider_cli::shown;
use outrider_core::board;
use outrider_core::declare::{self, FIGURES};
use outrider_core::shared::{Shared, text};
use outrider_core::shm::{
    FIGURES as BYTES, Fate, Figure, FileStat, MAX_FILES, Origin, SOURCE_FIGURES, lost,
};
use outrider_sys::device::Device;
use outrider_sys::units::DeviceId;
use serde_json::{Value, json};

use super::output_file::OutputFile;
use crate::cli::RunArgs;
use crate::graph;
use crate::output::{self, show};

/// Where a report goes.
pub enum Target {
    /// Nowhere.
    None,
    /// A table on this copy of standard error.
    Table(Option<File>),
    /// What `outrider graph check` has to say, on this copy of standard error.
    Verdict(Option<File>),
    /// JSON into this file; that it could not be written, on this copy of standard error.
    Json(OutputFile, Option<File>),
}

impl Target {
    /// What `--report` asks for that names no file.
    pub fn without_file(args: &RunArgs) -> Target {
        match args.report {
            None => Target::None,
            Some(_) => Target::Table(None),
        }
    }

    /// The descriptors that the report needs, which must stay open.
    pub fn keep(&mut self) -> Vec<i32> {
        // The number 2 is given up like the program's other descriptors.
        let stderr = || {
            let copy = rustix::io::fcntl_dupfd_cloexec(super::stderr(), 3);
            copy.ok().map(File::from)
        };
        match self {
            Target::None => Vec::new(),
            Target::Table(copy) | Target::Verdict(copy) => {
                *copy = stderr();
                copy.iter().map(AsRawFd::as_raw_fd).collect()
            }
            Target::Json(file, copy) => {
                *copy = stderr();
                let copy = copy.iter().map(AsRawFd::as_raw_fd);
                copy.chain([file.descriptor()]).collect()
            }
        }
    }

    /// Writes a verdict.
    pub fn say(self, text: &str) {
        if let Target::Verdict(Some(mut out)) = self {
            // A closed standard error must not change how the check ends.
            let _ = out.write_all(text.as_bytes());
        }
    }

    /// Writes the report.
    pub fn write(self, args: &RunArgs, shared: &Shared, mut notes: Vec<String>) {
        let bits = shared.header().notes.lost.load(Relaxed);
        notes.extend(
            lost::LINES
                .iter()
                .filter(|(bit, _)| bits & bit != 0)
                .map(|(_, line)| (*line).to_owned()),
        );
        notes.extend(left_alone(shared));
        let mut files: Vec<(OsString, &FileStat)> = (0..MAX_FILES)
            .map_while(|i| shared.path(i).map(|p| (i, p)))
            .map(|(i, p)| (OsString::from_vec(p), shared.stat(i)))
            .collect();
        files.sort_by_key(|(_, s)| {
            std::cmp::Reverse(s.figures.get(Figure::Prefetched) + s.figures.get(Figure::Miss))
        });
        self.emit(args, &files, Some(shared), notes);
    }

    /// Writes the report of a run for which nothing could be set up.
    pub fn write_without(self, args: &RunArgs, notes: Vec<String>) {
        self.emit(args, &[], None, notes);
    }

    fn emit(
        self,
        args: &RunArgs,
        files: &[(OsString, &FileStat)],
        shared: Option<&Shared>,
        notes: Vec<String>,
    ) {
        match self {
            Target::None | Target::Verdict(_) => {}
            Target::Json(file, copy) => {
                let text = output::json_text(&document(args, files, shared, &notes)) + "\n";
                let name = file.name();
                let written = file
                    .into_file()
                    .and_then(|mut file| file.write_all(text.as_bytes()));
                if let (Err(e), Some(mut out)) = (written, copy) {
                    let _ = writeln!(out, "outrider: {name}: {e}; the report is lost");
                }
            }
            Target::Table(copy) => {
                // A closed or full standard error must not change how the program ends.
                if let Some(mut out) = copy {
                    let _ = out.write_all(table(args, files, shared, &notes).as_bytes());
                }
            }
        }
    }
}

fn object(figures: [u64; BYTES.len()]) -> serde_json::Map<String, Value> {
    // The name of one differs from the table's.
    let name = |head: &str| match head {
        "missed" => "miss_bytes".to_owned(),
        head => format!("{head}_bytes"),
    };
    BYTES
        .into_iter()
        .zip(figures)
        .map(|(head, bytes)| (name(head), json!(bytes)))
        .collect()
}

fn document(
    args: &RunArgs,
    files: &[(OsString, &FileStat)],
    shared: Option<&Shared>,
    notes: &[String],
) -> Value {
    let files: Vec<Value> = files
        .iter()
        .map(|(path, s)| {
            let mut o = object(s.figures.all());
            o.insert("calls_saved".into(), json!(s.calls_saved.load(Relaxed)));
            output::with_path(Value::Object(o), "path", path)
        })
        .collect();
    let processes: Vec<Value> = shared
        .into_iter()
        .flat_map(Shared::records)
        .map(|p| {
            let mut o = object(p.figures.all());
            o.insert("pid".into(), json!(p.pid.load(Relaxed)));
            o.insert("command".into(), json!(text(&p.name)));
            for (name, count) in [
                ("reads", &p.reads),
                ("bytes_read", &p.bytes_read),
                ("events", &p.events),
                ("events_dropped", &p.events_dropped),
                ("calls_saved", &p.calls_saved),
            ] {
                o.insert(name.into(), json!(count.load(Relaxed)));
            }
            Value::Object(o)
        })
        .collect();
    let mut totals = serde_json::Map::new();
    if let Some(shared) = shared {
        let h = shared.header();
        totals = object(h.total.figures.all());
        totals.insert("calls_saved".into(), json!(h.calls_saved.load(Relaxed)));
        totals.insert("events".into(), json!(h.events.load(Relaxed)));
        totals.insert("events_dropped".into(), json!(h.dropped.load(Relaxed)));
        totals.insert("resident_bytes".into(), json!(h.resident.load(Relaxed)));
        totals.insert("requests".into(), json!(h.notes.requests.load(Relaxed)));
        totals.insert("wake_ups".into(), json!(h.wakeups.load(Relaxed)));
        let [walked, opened] = &h.walked;
        totals.insert("files_ahead".into(), json!(walked.load(Relaxed)));
        totals.insert("files_ahead_used".into(), json!(opened.load(Relaxed)));
        let [listed, opened] = &h.listed;
        totals.insert("directories_ahead".into(), json!(listed.load(Relaxed)));
        totals.insert("directories_ahead_used".into(), json!(opened.load(Relaxed)));
        if args.remember.is_some() {
            let names = [
                "entries",
                "lost",
                "fetched_bytes",
                "counted_bytes",
                "used_bytes",
            ];
            for (name, figure) in names.into_iter().zip(&h.remembered) {
                totals.insert(format!("remembered_{name}"), json!(figure.load(Relaxed)));
            }
        }
        for s in sources(shared) {
            totals.insert(format!("foreseen_{}_bytes", s.name), json!(s.asked));
        }
        totals.insert(
            "peak_unused_bytes".into(),
            json!(h.peak_unused.load(Relaxed)),
        );
    }
    let devices: Vec<Value> = shared
        .map(devices)
        .unwrap_or_default()
        .into_iter()
        .map(|(dev, latency, bandwidth)| json!({"dev": dev, "latency_us": latency, "bandwidth_mb_s": bandwidth}))
        .collect();
    let sources: serde_json::Map<String, Value> = shared
        .into_iter()
        .flat_map(sources)
        .map(|s| {
            let mut o = serde_json::Map::new();
            o.insert("asked_bytes".into(), json!(s.asked));
            for (name, n) in SOURCE_FIGURES.iter().zip(s.figures) {
                o.insert((*name).into(), json!(n));
            }
            (s.name.to_owned(), Value::Object(o))
        })
        .collect();
    let declared: serde_json::Map<String, Value> = declared(shared)
        .map(|(name, n)| (name.to_owned(), json!(n)))
        .collect();
    json!({
        "version": 1,
        "mode": args.mode.name(),
        "engine": args.engine.name(),
        "processes": processes,
        "files": files,
        "devices": devices,
        "totals": totals,
        "sources": sources,
        "declared": declared,
        "graphs": graph::document(&graphs(shared)),
        "lost": notes,
    })
}

/// What was not prefetched because of where it lies.
fn left_alone(shared: &Shared) -> Vec<String> {
    const REASONS: [&str; 2] = [
        "page cache: what is read below {} does not stay in it; it was not prefetched",
        "server: the one of what lies below {} did not answer; it was not prefetched any more",
    ];
    let all = shared.header().left_alone.iter().zip(REASONS);
    all.flat_map(|(devices, reason)| {
        let devices = devices.iter().map(|d| d.load(Relaxed));
        devices.filter(|d| *d != 0).map(move |dev| {
            let mount = Device::of_dev(DeviceId(dev)).mount;
            let place = mount.map_or_else(
                || format!("device {}", DeviceId(dev)),
                |m| show(m.mount_point),
            );
            reason.replace("{}", &place)
        })
    })
    .collect()
}

/// What the programs told of their foreaction graphs.
fn graphs(shared: Option<&Shared>) -> Vec<board::Told> {
    shared.map(|s| board::told(s.board())).unwrap_or_default()
}

/// Figures of declared access, by name.
fn declared(shared: Option<&Shared>) -> impl Iterator<Item = (&'static str, u64)> {
    let figure = move |i: usize| {
        shared
            .and_then(|s| s.header().notes.declared.get(i))
            .map_or(0, |n| n.load(Relaxed))
    };
    FIGURES
        .into_iter()
        .enumerate()
        .map(move |(i, name)| (name, figure(i)))
}

/// What became of what a source foresaw.
struct Source {
    name: &'static str,
    /// Bytes that were asked for.
    asked: u64,
    /// In the order of [`SOURCE_FIGURES`].
    figures: [u64; SOURCE_FIGURES.len()],
}

/// What became of what was asked for, by who foresaw it: by the service, and for declared lists by their programs.
fn sources(shared: &Shared) -> impl Iterator<Item = Source> {
    let header = shared.header();
    let declared = |figure: declare::Figure| header.notes.declared[figure as usize].load(Relaxed);
    Origin::ALL.into_iter().map(move |of| {
        let mut figures = header.sources[of as usize]
            .each_ref()
            .map(|n| n.load(Relaxed));
        let mut asked = header.foreseen[of as usize].load(Relaxed);
        if of == Origin::Lists {
            asked = declared(declare::Figure::Fetched);
            figures[Fate::Used as usize] = declared(declare::Figure::Used);
            figures[Fate::Evicted as usize] = declared(declare::Figure::Evicted);
        }
        Source {
            name: of.name(),
            asked,
            figures,
        }
    })
}

/// Measured devices: `major:minor`, latency in µs, and bandwidth in MB/s if that was measured.
fn devices(shared: &Shared) -> Vec<(String, u64, Option<u64>)> {
    let number = |d: u64| DeviceId(d).to_string();
    let entries = shared
        .header()
        .devices
        .iter()
        .map(|d| [0, 1, 2].map(|i: usize| d[i].load(Relaxed)));
    entries
        .filter(|d| d[0] != 0)
        .map(|[dev, latency, bandwidth]| {
            (number(dev), latency, (bandwidth > 0).then_some(bandwidth))
        })
        .collect()
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

fn table(
    args: &RunArgs,
    files: &[(OsString, &FileStat)],
    shared: Option<&Shared>,
    notes: &[String],
) -> String {
    const ROWS: usize = 20;
    let mut out = format!(
        "outrider: mode {}, engine {}\n",
        args.mode.name(),
        args.engine.name()
    );
    let row = |name: &str, figures: [u64; BYTES.len()], saved: &AtomicU64| {
        let cells = figures.map(|v| format!("{:>10}", size(v)));
        let saved = saved.load(Relaxed);
        format!("{} {saved:>11} {name}\n", cells.join(" "))
    };
    if let Some(shared) = shared {
        out += &BYTES.map(|h| format!("{h:>10}")).join(" ");
        out += " calls saved file or process\n";
        for (path, s) in files.iter().take(ROWS) {
            out += &row(&show(path), s.figures.all(), &s.calls_saved);
        }
        if files.len() > ROWS {
            out += &format!("{:>10} more files\n", files.len() - ROWS);
        }
        let h = shared.header();
        for p in shared.records().take(ROWS) {
            let [reads, bytes] = [&p.reads, &p.bytes_read].map(|n| n.load(Relaxed));
            let (pid, command) = (p.pid.load(Relaxed), show(text(&p.name)));
            let name = format!("{command} ({pid}): {reads} reads, {}", size(bytes));
            out += &row(&name, p.figures.all(), &p.calls_saved);
        }
        let more = shared.records().count().saturating_sub(ROWS);
        if more > 0 {
            out += &format!("{more:>10} more processes\n");
        }
        out += &row("total", h.total.figures.all(), &h.calls_saved);
        let asked: Vec<Source> = sources(shared).filter(|s| s.asked > 0).collect();
        if !asked.is_empty() {
            let heads = ["asked", "used", "late", "wasted", "evicted", "dropped"];
            out += &heads.map(|h| format!("{h:>10}")).join(" ");
            out += "  wait saved source\n";
        }
        for s in asked {
            let [used, late, wasted, evicted, dropped, saved_us] = s.figures;
            let cells = [s.asked, used, late, wasted, evicted, dropped];
            out += &cells.map(|v| format!("{:>10}", size(v))).join(" ");
            let saved = format!("{:.3} s", saved_us as f64 / 1e6);
            out += &format!(" {saved:>11} {}\n", s.name);
        }
        let [walked, opened] = h.walked.each_ref().map(|n| n.load(Relaxed));
        if walked > 0 {
            out +=
                &format!("{walked} files fetched before they were opened, {opened} of them were\n");
        }
        let [listed, opened] = h.listed.each_ref().map(|n| n.load(Relaxed));
        if listed > 0 {
            out += &format!("{listed} directories listed ahead, {opened} of them were opened\n");
        }
        let resident = h.resident.load(Relaxed);
        if resident > 0 {
            out += &format!(
                "{} read of files that were cached when they were opened\n",
                size(resident)
            );
        }
        out += &format!(
            "{} requests, {} events, {} dropped\n",
            h.notes.requests.load(Relaxed),
            h.events.load(Relaxed),
            h.dropped.load(Relaxed)
        );
    }
    if declared(shared).any(|(_, n)| n > 0) {
        let cells: Vec<String> = declared(shared)
            .map(|(name, n)| match name.strip_suffix("_bytes") {
                Some("declared") => size(n),
                Some(name) => format!("{} {name}", size(n)),
                None => format!("{n} {}", name.replace('_', " ")),
            })
            .collect();
        out += &format!("declared {}\n", cells.join(", "));
    }
    out += &graph::lines(&graphs(shared));
    for (dev, latency, bandwidth) in shared.map(devices).unwrap_or_default() {
        let bandwidth = bandwidth.map_or("bandwidth not measured".into(), |b| format!("{b} MB/s"));
        out += &format!("device {dev}: {latency} µs, {bandwidth}\n");
    }
    for note in notes {
        out += &format!("lost: {}\n", shown::line(note.as_bytes()));
    }
    out
}
