//! What was prefetched, used and wasted: as a sentence and tables on standard error, or as JSON or metrics in a file.

mod metrics;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use outrider_cli::shown;
use outrider_core::board;
use outrider_core::declare::{self, FIGURES};
use outrider_core::shared::{Shared, text};
use outrider_core::shm::{
    FIGURES as BYTES, Fate, Figure, Figures, FileStat, MAX_FILES, Origin, SAVED, SOURCE_FIGURES,
    lost,
};
use outrider_sys::device::Device;
use outrider_sys::units::DeviceId;
use serde_json::{Value, json};

use super::output_file::OutputFile;
use crate::cli::{Mode, RunArgs};
use crate::confined::METRICS;
use crate::graph;
use crate::output::{self, bytes, show};

/// Where a report goes.
pub enum Target {
    /// Nowhere.
    None,
    /// A table on this copy of standard error.
    Table(Option<File>),
    /// What `outrider graph check` has to say, on this copy of standard error.
    Verdict(Option<File>),
    /// JSON or metrics into this file; that it could not be written, on this copy of standard error.
    File(OutputFile, Option<File>),
}

/// The run that is told of.
pub struct Ran<'a> {
    pub args: &'a RunArgs,
    pub began: Instant,
    /// How the program ended, as wait(2) has it, and the processor time that it and its children took, user and system, µs.
    pub ended: Option<(i32, [u64; 2])>,
}

impl Ran<'_> {
    /// Of a program that is still to be started, or that this process becomes.
    pub fn not_yet(args: &RunArgs) -> Ran<'_> {
        Ran {
            args,
            began: Instant::now(),
            ended: None,
        }
    }
}

impl Target {
    /// Writes what is known while the program runs, if there is a file for it.
    pub fn write_meanwhile(&self, ran: &Ran, shared: &Shared, notes: &[String]) {
        if let Target::File(file, _) = self {
            // If it can't be written now, perhaps it can the next time.
            let _ = file.put_meanwhile(&content(ran, &files(shared), Some(shared), notes));
        }
    }

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
            Target::File(file, copy) => {
                *copy = stderr();
                let copy = copy.iter().map(AsRawFd::as_raw_fd);
                copy.chain(file.descriptor()).collect()
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
    pub fn write(self, ran: &Ran, shared: &Shared, mut notes: Vec<String>) {
        let bits = shared.header().notes.lost.load(Relaxed);
        notes.extend(
            lost::LINES
                .iter()
                .filter(|(bit, _)| bits & bit != 0)
                .map(|(_, line)| (*line).to_owned()),
        );
        notes.extend(left_alone(shared));
        self.emit(ran, &files(shared), Some(shared), notes);
    }

    /// Writes the report of a run for which nothing could be set up.
    pub fn write_without(self, ran: &Ran, notes: Vec<String>) {
        self.emit(ran, &[], None, notes);
    }

    fn emit(
        self,
        ran: &Ran,
        files: &[(OsString, &FileStat)],
        shared: Option<&Shared>,
        notes: Vec<String>,
    ) {
        match self {
            Target::None | Target::Verdict(_) => {}
            Target::File(file, copy) => {
                let text = content(ran, files, shared, &notes);
                let name = file.name();
                if let (Err(e), Some(mut out)) = (file.put(&text), copy) {
                    let _ = writeln!(out, "outrider: {name}: {e}; the report is lost");
                }
            }
            Target::Table(copy) => {
                // A closed or full standard error must not change how the program ends.
                if let Some(mut out) = copy {
                    let width = output::columns(&out).map(|n| n.max(NARROWEST));
                    let mut text = table(ran, files, shared, &notes, width.unwrap_or(WIDTH));
                    if let Some(width) = width {
                        text = output::fitted(&text, width);
                    }
                    let _ = out.write_all(text.as_bytes());
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

/// The files that are told of, those of which most was fetched or missed first.
fn files(shared: &Shared) -> Vec<(OsString, &FileStat)> {
    let mut files: Vec<(OsString, &FileStat)> = (0..MAX_FILES)
        .map_while(|i| shared.path(i).map(|p| (i, p)))
        .map(|(i, p)| (OsString::from_vec(p), shared.stat(i)))
        .collect();
    files.sort_by_key(|(_, s)| {
        std::cmp::Reverse(s.figures.get(Figure::Prefetched) + s.figures.get(Figure::Miss))
    });
    files
}

/// Whether the report's file is to have metrics.
fn is_metrics(args: &RunArgs) -> bool {
    let path = args.report.as_ref().and_then(Option::as_deref);
    path.is_some_and(|p| p.as_os_str().as_bytes().ends_with(METRICS.as_bytes()))
}

/// Whether reads are followed in this mode. Elsewhere nothing is known of them.
fn follows(args: &RunArgs) -> bool {
    !matches!(args.mode(), Mode::OsOnly | Mode::AppOnly)
}

/// What the report's file is to have.
fn content(
    ran: &Ran,
    files: &[(OsString, &FileStat)],
    shared: Option<&Shared>,
    notes: &[String],
) -> String {
    match is_metrics(ran.args) {
        true => metrics::text(ran, shared, notes),
        false => output::json_text(&document(ran, files, shared, notes)) + "\n",
    }
}

/// How long something took, µs.
fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// What programs have waited for what was missed, as far as is known of the devices, µs: no longer than they were there.
fn waited_us(ran: &Ran, shared: &Shared) -> u64 {
    let processes = shared.records().count().max(1) as u64;
    let there = us(ran.began.elapsed()).saturating_mul(processes);
    (shared.header().waited_ns.load(Relaxed) / 1000).min(there)
}

/// What the device would have taken for what was there in time, as far as is known of it, µs.
fn saved_us(shared: &Shared) -> u64 {
    sources(shared).map(|s| s.figures[SAVED]).sum()
}

fn document(
    ran: &Ran,
    files: &[(OsString, &FileStat)],
    shared: Option<&Shared>,
    notes: &[String],
) -> Value {
    let args = ran.args;
    let followed = shared.filter(|_| follows(args));
    let files: Vec<Value> = files
        .iter()
        .map(|(path, s)| {
            let mut o = object(s.figures.all());
            o.insert("calls_saved".into(), json!(s.calls_saved.load(Relaxed)));
            output::with_path(Value::Object(o), "path", path)
        })
        .collect();
    let processes: Vec<Value> = followed
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
    if let Some(shared) = followed {
        let h = shared.header();
        totals = object(h.total.figures.all());
        totals.insert("calls_saved".into(), json!(h.calls_saved.load(Relaxed)));
        totals.insert("events".into(), json!(h.events.load(Relaxed)));
        totals.insert("events_dropped".into(), json!(h.dropped.load(Relaxed)));
        totals.insert("resident_bytes".into(), json!(h.resident.load(Relaxed)));
        let passed = h.passed_files.load(Relaxed);
        totals.insert("passed_files".into(), json!(passed));
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
    let sources: serde_json::Map<String, Value> = followed
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
    let command = args.command.iter();
    let is_text = command.clone().all(|word| word.to_str().is_some());
    let lossy: Vec<String> = command
        .clone()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut document = json!({
        "schema": "outrider-report",
        "version": 1,
        "command": lossy,
        "ended": ran.ended.is_some(),
        "elapsed_us": us(ran.began.elapsed()),
        "mode": args.mode().name(),
        "engine": args.engine().name(),
        "processes": processes,
        "files": files,
        "devices": devices,
        "totals": totals,
        "sources": sources,
        "declared": declared,
        "graphs": graph::document(&graphs(shared)),
        "lost": notes,
    });
    if !is_text {
        let bytes: Vec<&[u8]> = command.map(|word| word.as_bytes()).collect();
        document["command_bytes"] = json!(bytes);
    }
    if let Some((status, [user, system])) = ran.ended {
        match libc::WIFSIGNALED(status) {
            true => document["signal"] = json!(libc::WTERMSIG(status)),
            false => document["exit_code"] = json!(libc::WEXITSTATUS(status)),
        }
        document["user_us"] = json!(user);
        document["system_us"] = json!(system);
    }
    if let Some(shared) = followed {
        document["waited_us"] = json!(waited_us(ran, shared));
        document["saved_us"] = json!(saved_us(shared));
    }
    document
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

/// Columns of a report that nobody says the width of.
const WIDTH: usize = 80;
/// On fewer columns names have lines of their own: beside the figures there is no room for them.
const NARROW: usize = WIDTH;
/// A narrower terminal breaks the lines: figures take as much.
const NARROWEST: usize = CELL * COLUMNS.len();
/// Columns of a figure.
const CELL: usize = 10;
/// Of less nothing is said, µs.
const LEAST_US: u64 = 10_000;

/// A duration, µs, as people read it.
fn seconds(us: u64) -> String {
    format!("{:.2} s", us as f64 / 1e6)
}

/// What became of it, in a sentence. What would have been waited for is reckoned, and said to be.
fn sentence(ran: &Ran, shared: Option<&Shared>) -> String {
    let took = seconds(us(ran.began.elapsed()));
    let Some(shared) = shared else {
        return "nothing was done for the program; the lost lines say why".to_owned();
    };
    if !follows(ran.args) {
        let [declared, fetched] = [declare::Figure::Declared, declare::Figure::Fetched]
            .map(|figure| shared.header().notes.declared[figure as usize].load(Relaxed));
        let lists = match declared {
            0 => "no program declared what it reads".to_owned(),
            n => format!(
                "of {} that programs declared {} were fetched ahead, by themselves",
                bytes(n),
                bytes(fetched)
            ),
        };
        let mode = ran.args.mode().name();
        return format!(
            "in mode {mode} nothing is foreseen and no reads are counted; {lists}; it took {took}"
        );
    }
    let total = &shared.header().total.figures;
    let [hit, late, cached, missed] =
        [Figure::Hit, Figure::Late, Figure::Cached, Figure::Miss].map(|figure| total.get(figure));
    let used = total.get(Figure::Used);
    let resident = cached + shared.header().resident.load(Relaxed);
    if hit + late + missed + used == 0 {
        return match resident {
            0 => format!("no reads of large files were told in {took}, and nothing was done"),
            n => format!(
                "{} were read in {took} that were cached before: there was nothing to do",
                bytes(n)
            ),
        };
    }
    // Of processes side by side it is more than the run took.
    let waited = waited_us(ran, shared).min(us(ran.began.elapsed()));
    let saved = saved_us(shared);
    let mut said = format!(
        "{} were there in time, {} came late and {} were read as always",
        bytes(hit),
        bytes(late),
        bytes(missed)
    );
    // What the kernel's own readahead brought while a program waited is not known.
    let times = [("waited", waited), ("was spared", saved)]
        .into_iter()
        .filter(|(_, us)| *us >= LEAST_US)
        .map(|(what, us)| format!("{what} about {}", seconds(us)));
    match times.collect::<Vec<_>>().join(" and ") {
        known if known.is_empty() => said += &format!("; it took {took}"),
        known => said += &format!("; in {took} the program {known}, by the device's figures"),
    }
    let remembered = shared.header().remembered[2].load(Relaxed);
    if remembered > 0 {
        said += &format!(
            "; {} were fetched because earlier runs had needed them",
            bytes(remembered)
        );
    }
    let ahead = shared.header().walked[1].load(Relaxed);
    if ahead > 0 {
        said += &format!("; {ahead} small files were fetched before it opened them");
    }
    said
}

/// Columns of the table's figures: what programs have read, by what they found, and what was fetched in vain.
const COLUMNS: [Figure; 5] = [
    Figure::Hit,
    Figure::Late,
    Figure::Cached,
    Figure::Miss,
    Figure::Wasted,
];

fn table(
    ran: &Ran,
    files: &[(OsString, &FileStat)],
    shared: Option<&Shared>,
    notes: &[String],
    width: usize,
) -> String {
    const ROWS: usize = 20;
    let args = ran.args;
    let mut out = output::fitted(&format!("outrider: {}.\n", sentence(ran, shared)), width);
    let narrow = width < NARROW;
    // Where there is room each has a column of space behind it.
    let cells = |values: &[u64]| -> String {
        let cells = values.iter().map(|v| match narrow {
            true => format!("{:>CELL$}", bytes(*v).replace(' ', "")),
            false => format!("{:>CELL$} ", bytes(*v)),
        });
        cells.collect()
    };
    let heads = |names: &[&str], last: &str| -> String {
        let heads = names.iter().map(|name| match narrow {
            true => format!("{name:>CELL$}"),
            false => format!("{name:>CELL$} "),
        });
        let last = if narrow { "" } else { last };
        heads.collect::<String>() + last + "\n"
    };
    let line = |figures: &[u64], name: &str| match narrow {
        true => format!("{name}\n{}\n", cells(figures)),
        false => format!("{}{name}\n", cells(figures)),
    };
    let room = match narrow {
        true => width,
        false => width.saturating_sub((CELL + 1) * COLUMNS.len()),
    };
    let row = |name: &str, figures: &Figures| {
        let values = COLUMNS.map(|figure| figures.get(figure));
        line(&values, &output::shortened(name, room))
    };
    if let Some(shared) = shared.filter(|_| follows(args)) {
        let names = COLUMNS.map(|figure| BYTES[figure as usize]);
        out += &heads(&names, "file or process");
        for (path, s) in files.iter().take(ROWS) {
            out += &row(&show(path), &s.figures);
        }
        if files.len() > ROWS {
            out += &format!("{:>10} more files\n", files.len() - ROWS);
        }
        let h = shared.header();
        for p in shared.records().take(ROWS) {
            let reads = p.reads.load(Relaxed);
            let (pid, command) = (p.pid.load(Relaxed), show(text(&p.name)));
            let rest = format!(" ({pid}), {reads} reads");
            let command = output::shortened(&command, room.saturating_sub(rest.len()).max(6));
            out += &row(&(command + &rest), &p.figures);
        }
        let more = shared.records().count().saturating_sub(ROWS);
        if more > 0 {
            out += &format!("{more:>10} more processes\n");
        }
        let total = &h.total.figures;
        out += &row("total", total);
        let asked: Vec<Source> = sources(shared).filter(|s| s.asked > 0).collect();
        if !asked.is_empty() {
            let names = ["asked", "used", "late", "wasted", "evicted"];
            out += &heads(&names, "wait saved source");
        }
        for s in asked {
            let [used, late, wasted, evicted, _, saved] = s.figures;
            let name = match narrow {
                true => format!("{}, {} of waiting saved", s.name, seconds(saved)),
                false => format!("{:>CELL$} {}", seconds(saved), s.name),
            };
            out += &line(&[s.asked, used, late, wasted, evicted], &name);
        }
        let of = |figure| bytes(total.get(figure));
        let fetched = format!(
            "prefetched {}: {} used, {} wasted, {} evicted; {} dropped before that\n",
            of(Figure::Prefetched),
            of(Figure::Used),
            of(Figure::Wasted),
            of(Figure::Evicted),
            of(Figure::Dropped)
        );
        out += &output::fitted(&fetched, width);
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
                bytes(resident)
            );
        }
        let passed = h.passed_files.load(Relaxed);
        if passed > 0 {
            out += &format!("{passed} short files not followed, since nothing came of that\n");
        }
        out += &format!(
            "{} requests, {} events, {} dropped, {} calls saved\n",
            h.notes.requests.load(Relaxed),
            h.events.load(Relaxed),
            h.dropped.load(Relaxed),
            h.calls_saved.load(Relaxed)
        );
    }
    out += &format!(
        "mode {}, engine {}\n",
        args.mode().name(),
        args.engine().name()
    );
    if declared(shared).any(|(_, n)| n > 0) {
        let cells: Vec<String> = declared(shared)
            .map(|(name, n)| match name.strip_suffix("_bytes") {
                Some("declared") => bytes(n),
                Some(name) => format!("{} {name}", bytes(n)),
                None => format!("{n} {}", name.replace('_', " ")),
            })
            .collect();
        out += &format!("declared {}\n", cells.join(", "));
    }
    out += &graph::lines(&graphs(shared));
    for (dev, latency, bandwidth) in shared.map(devices).unwrap_or_default() {
        let rate = |mb: u64| format!("{}/s", bytes(mb * 1_000_000));
        let bandwidth = bandwidth.map_or("bandwidth not measured".into(), rate);
        let unit = output::micros();
        out += &format!("device {dev}: {latency} {unit}, {bandwidth}\n");
    }
    for note in notes {
        out += &format!("lost: {}\n", shown::line(note.as_bytes()));
    }
    out
}
