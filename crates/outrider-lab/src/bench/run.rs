//! `outrider-lab run`: every row on its devices, column by column.
//!
//! What makes the figures comparable is in [`Bench::once`]: the data set is in its first state, the disk is cold and was
//! seen to be, the read-ahead is the column's, memory is bounded, nothing runs but the row and its neighbours. The
//! columns of a row take turns, so that a machine that becomes slower does so for all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::column::{BEST, Chosen, Column, Places, SCAN_KB, STOCK_KB};
use super::device::{self, Device};
use super::exec::{self, Ended, Job, not_interrupted};
use super::group::{Group, Hierarchies};
use super::load::Sample;
use super::needed::Needed;
use super::progress::Progress;
use super::record::{self, BOUND, Record};
use super::store::{self, Set, Store};
use super::{accuracy, direct, machine, select};
use crate::cli::{FileSystem, RunArgs};
use crate::disk::{self, Lease};
use crate::output::{Context, Failure, Outcome};
use crate::results::{Bound, Line, RowInfo, Run, Skip};
use crate::rows::{Memory, Row, Tools};

/// Requests under way in a replay: what deep queues of today's devices take.
const REPLAY_DEPTH: usize = 64;
/// Replays and warm runs, at most: they vary less than runs.
const BOUNDS: u32 = 3;
/// How often a run is repeated that was discarded.
const REPEATS: u32 = 3;
/// Before a repetition, so long is waited for others to become quiet.
const QUIET: Duration = Duration::from_secs(3);
/// Foreign load is told from clock ticks of 10 ms: a run of t s may show so much / t processors that are not there.
const TICK_NOISE: f64 = 0.05;
/// Devices whose accuracy is measured unless others are named.
const ACCURACY_DEVICES: &str = "nvme,sata,remote,objstore,hdd";
/// Rows by which the lab checks itself; they are run by name only.
const SELF: &str = "self-";

/// `outrider-lab run`.
pub fn run(args: &RunArgs) -> Outcome {
    let rows = chosen_rows(args)?;
    let mut columns = Chosen::parse(args.columns.as_deref(), &rows)?;
    if args.quick && args.columns.is_none() {
        columns = columns.without(BEST);
    }
    for (flag, value, low) in [
        ("--scale", args.scale, 0.001),
        ("--timeout", args.timeout, 0.001),
        ("--max-load", args.max_load, 0.0),
        ("--minutes", args.minutes.unwrap_or(0.0), 0.0),
    ] {
        if !(value >= low && value <= 1e6) {
            return Err(Failure::usage(format!(
                "{flag} {value}: accepted are numbers from {low} to 1000000"
            )));
        }
    }
    if args.fs == FileSystem::None {
        return Err(Failure::usage(
            "--fs none: rows read files; accepted are ext4, xfs and btrfs",
        ));
    }
    let given = args
        .device
        .as_deref()
        .map(|d| device::parse(d, args.scale))
        .transpose()?;
    let mut pairs = Vec::new();
    for row in &rows {
        let own = row.devices.join(",");
        let devices = given
            .clone()
            .map_or_else(|| device::parse(&own, args.scale), Ok)?;
        pairs.push(devices);
    }
    let tools = tools(args.build.as_deref())?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::system("measuring needs root: it makes disks"));
    }
    let dir = record::directory(args.out.as_deref(), args.resume)?;
    let (record, complete) = Record::open(&dir, &|name| {
        let row = rows.iter().find(|r| r.name == name)?;
        Some(columns.of(row).into_iter().map(|c| c.name).collect())
    })?;
    disk::catch_signals();

    let mut bench = Bench {
        args,
        columns,
        runs: if args.quick { 1 } else { args.runs },
        record,
        tools,
        groups: Hierarchies::find(),
        scratch: Scratch::new()?,
        progress: Progress::new(pairs.iter().map(Vec::len).sum::<usize>().max(1)),
        digests: HashMap::new(),
        failures: 0,
        noisy: 0,
    };
    let described = machine::describe(args.fs.name(), &bench.tools.bin);
    bench.record.add(&Line::Machine(described))?;
    let mount = match &args.mount {
        Some(dir) => dir.clone(),
        None => {
            let dir =
                std::env::temp_dir().join(format!("outrider-lab-disk.{}", std::process::id()));
            disk::sweep(&dir);
            dir
        }
    };
    if args.accuracy {
        let devices = given.map_or_else(|| device::parse(ACCURACY_DEVICES, args.scale), Ok)?;
        bench.accuracy(&mount, &devices)?;
    }
    bench.rows(&mount, rows, &pairs, &complete)?;
    let (failures, noisy) = (bench.failures, bench.noisy);
    let Bench {
        record, progress, ..
    } = bench;
    record.finish()?;
    progress.say(&format!("results: {}", dir.display()));
    if noisy > 0 {
        progress.complain(&format!(
            "{noisy} runs do not count, because others used the processors meanwhile"
        ));
    }
    drop(progress);
    if args.report {
        crate::report::report(&dir)?;
    }
    if failures > 0 {
        return Err(Failure::system(format!(
            "{failures} failures (see above and {})",
            dir.join(record::FILE).display()
        )));
    }
    Ok(())
}

fn chosen_rows(args: &RunArgs) -> Outcome<Vec<Row>> {
    let all = crate::rows::all();
    if !args.rows.is_empty() {
        return select::rows(all, &args.rows);
    }
    Ok(all
        .into_iter()
        .filter(|r| !r.name.starts_with(SELF) && (args.all || r.short))
        .collect())
}

/// Where our programs are: in `build`, or else beside this one; `drivers` and `plugins` beside that directory.
fn tools(build: Option<&Path>) -> Outcome<Tools> {
    let bin = match build {
        Some(dir) => dir
            .canonicalize()
            .map_err(|e| Failure::usage(format!("--build {}: {e}", dir.display())))?,
        None => {
            let program = std::env::current_exe().doing("cannot find this program")?;
            program.parent().unwrap_or(Path::new("/")).to_owned()
        }
    };
    for name in ["outrider", "liboutrider.so", "outrider-work"] {
        if !bin.join(name).is_file() {
            return Err(Failure::usage(format!(
                "{} is not there; `make build` builds it, and --build names its directory",
                bin.join(name).display()
            )));
        }
    }
    let beside = bin.parent().unwrap_or(Path::new("/"));
    Ok(Tools {
        drivers: beside.join("drivers"),
        plugins: beside.join("plugins"),
        bin,
    })
}

/// A directory in memory for what runs write, removed with the value.
struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    fn new() -> Outcome<Self> {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() {
            memory.to_owned()
        } else {
            std::env::temp_dir()
        };
        let dir = root.join(format!("outrider-lab.{}", std::process::id()));
        exec::empty(&dir)?;
        Ok(Self { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Everything that one invocation has.
struct Bench<'a> {
    args: &'a RunArgs,
    columns: Chosen,
    runs: u32,
    record: Record,
    tools: Tools,
    groups: Hierarchies,
    scratch: Scratch,
    progress: Progress,
    /// What each row printed the first time, under stock.
    digests: HashMap<String, Vec<String>>,
    /// Runs that failed, or printed something else.
    failures: u32,
    /// Runs that were discarded to the end.
    noisy: u32,
}

/// A row on a device.
struct Pair<'a> {
    disk: &'a Lease,
    set: &'a Set,
    row: &'a Row,
    device: &'a Device,
}

impl Pair<'_> {
    fn skip(&self, column: &str, why: impl Into<String>) -> Line {
        skip(self.row, self.device, column, why)
    }
}

fn skip(row: &Row, device: &Device, column: &str, why: impl Into<String>) -> Line {
    Line::Skip(Skip {
        row: row.name.clone(),
        device: device.label.clone(),
        column: column.to_owned(),
        why: why.into(),
    })
}

/// How a row's commands are to be run once.
struct Way<'a> {
    /// The model's words.
    model: &'a str,
    readahead_kb: u32,
    memory: Memory,
    /// With the row's neighbours.
    beside: bool,
    /// With nothing cached.
    cold: bool,
    column: &'a Column,
    /// Where the disk's requests are recorded.
    trace: Option<&'a Path>,
}

/// What came of it.
struct Done {
    ended: Ended,
    cpu_seconds: f64,
    foreign: f64,
    cached_before: u64,
    read_bytes: u64,
    requests: u64,
    outrider: BTreeMap<String, f64>,
}

impl Bench<'_> {
    fn accuracy(&mut self, mount: &Path, devices: &[Device]) -> Outcome {
        let rounds = self.runs.min(BOUNDS);
        let (record, progress) = (&mut self.record, &self.progress);
        accuracy::measure(mount, devices, rounds, |figure| {
            progress.say(&format!(
                "accuracy {} {}: {:.0}, modelled {:.0}",
                figure.device, figure.measure, figure.measured, figure.modelled
            ));
            record.add(&Line::Accuracy(figure))
        })
    }

    fn rows(
        &mut self,
        mount: &Path,
        rows: Vec<Row>,
        pairs: &[Vec<Device>],
        complete: &BTreeSet<(String, String)>,
    ) -> Outcome {
        if rows.is_empty() {
            return Ok(());
        }
        let mut sets = BTreeMap::new();
        for row in &rows {
            sets.insert(row.data.key.as_str(), row.data.bytes);
        }
        let largest = sets.values().copied().max().unwrap_or(0);
        // The disk lies in memory; half of that must be left for the page cache.
        let room = sets
            .values()
            .sum::<u64>()
            .min((available_memory() / 2).max(largest));
        let disk = Lease::up(mount, store::disk_size(room), self.args.fs)?;
        let mut store = Store::new(room);
        for (i, row) in rows.iter().enumerate() {
            let mut needed = None;
            for device in &pairs[i] {
                not_interrupted()?;
                if complete.contains(&(row.name.clone(), device.label.clone())) {
                    self.progress.next();
                    continue;
                }
                if let Some(why) = self.impossible(row) {
                    self.left_out(row, device, &why)?;
                    continue;
                }
                let what = format!("{}: making its data", row.name);
                self.progress.at(&what, 0.0);
                disk.model(disk::FULL_SPEED)?;
                let set = match store.get(&disk, &row.data, &self.tools, &rows[i..]) {
                    Ok(set) => set,
                    Err(failure) => {
                        not_interrupted()?;
                        self.failures += 1;
                        self.left_out(row, device, &failure.message)?;
                        continue;
                    }
                };
                let pair = Pair {
                    disk: &disk,
                    set: &set,
                    row,
                    device,
                };
                self.pair(&pair, &mut needed)?;
                self.progress.next();
            }
        }
        Ok(())
    }

    fn left_out(&mut self, row: &Row, device: &Device, why: &str) -> Outcome {
        self.progress
            .complain(&format!("{} on {}: {why}", row.name, device.label));
        self.progress.next();
        self.record.add(&skip(row, device, "*", why))
    }

    /// Why a row cannot be run here.
    fn impossible(&self, row: &Row) -> Option<String> {
        let missing = row
            .work
            .needs
            .iter()
            .find(|(program, _)| !installed(program));
        if let Some((program, package)) = missing {
            return Some(format!(
                "{program} is not installed (Debian's package {package})"
            ));
        }
        if row.memory != Memory::Free && !self.groups.can_limit() {
            return Some("memory cannot be bounded here: no memory control groups".to_owned());
        }
        let over = self
            .args
            .minutes
            .filter(|m| *m > 0.0)
            .is_some_and(|m| self.progress.elapsed().as_secs_f64() > m * 60.0);
        over.then(|| "no time was left (--minutes)".to_owned())
    }

    /// A row on a device, all columns and its bound.
    fn pair(&mut self, pair: &Pair, needed: &mut Option<Needed>) -> Outcome {
        let (row, device) = (pair.row, pair.device);
        self.record.add(&Line::Row(RowInfo {
            row: row.name.clone(),
            device: device.label.clone(),
            about: row.about.clone(),
            figure: row.point.as_ref().map(|p| p.figure.to_owned()),
            series: row.point.as_ref().map(|p| p.series.clone()),
            x: row.point.as_ref().map(|p| p.x.clone()),
            paper: row.point.as_ref().and_then(|p| p.paper),
            memory: match row.memory {
                Memory::Free => None,
                Memory::Bytes(n) => Some(n),
            },
            data_bytes: pair.set.bytes,
        }))?;
        let mut columns = Vec::new();
        for column in self.columns.of(row) {
            let why = match column.commands(&row.work) {
                Err(why) => Some(why.to_owned()),
                Ok(_) if column.touch && !installed("vmtouch") => {
                    Some("vmtouch is not installed (Debian's package vmtouch)".to_owned())
                }
                Ok(commands) => self.missing_program(commands),
            };
            match why {
                Some(why) => self.record.add(&pair.skip(&column.name, why))?,
                None => columns.push(column),
            }
        }
        let start = Instant::now();
        let mut medians: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let mut broken = BTreeSet::new();
        let mut best = None;
        let mut runs = self.runs;
        let mut round = 0;
        while round < runs {
            // Each round begins with another column.
            let mut order = columns.clone();
            let turn = round as usize % order.len().max(1);
            order.rotate_left(turn);
            if round == 0 {
                // What the scan finds is known after the others' first runs.
                order.sort_by_key(|c| c.readahead_kb.is_none());
            }
            for (i, column) in order.iter().enumerate() {
                if broken.contains(&column.name) {
                    continue;
                }
                let part =
                    (f64::from(round) + i as f64 / order.len() as f64) / (f64::from(runs) + 1.0);
                if column.readahead_kb.is_none() && best.is_none() {
                    // Nothing is the best of runs that fail.
                    let why_not = if !broken.is_empty() {
                        Some("other columns fail")
                    } else if !self.can_scan(start.elapsed(), order.len() - 1) {
                        Some("no time was left for a scan (--minutes)")
                    } else {
                        None
                    };
                    if let Some(why) = why_not {
                        self.record.add(&pair.skip(&column.name, why))?;
                        columns.retain(|c| c.name != column.name);
                        continue;
                    }
                    best = Some(self.scan(pair, column, &columns, &medians, part)?);
                }
                let readahead = column.readahead_kb.or(best).unwrap_or(STOCK_KB);
                self.show(pair, &column.name, round, part);
                match self.counted(pair, column, round, readahead)? {
                    Some(seconds) => medians
                        .entry(column.name.clone())
                        .or_default()
                        .push(seconds),
                    None => {
                        broken.insert(column.name.clone());
                    }
                }
            }
            round += 1;
            if round == 1 {
                runs = self.affordable(start.elapsed());
            }
        }
        self.show(pair, "limit", 0, f64::from(runs) / (f64::from(runs) + 1.0));
        let bound = self.bound(pair, needed, runs)?;
        self.sum_up(pair, &columns, &medians, bound);
        Ok(())
    }

    fn show(&self, pair: &Pair, what: &str, round: u32, part: f64) {
        let line = format!(
            "{} on {}: {what}, run {}",
            pair.row.name,
            pair.device.label,
            round + 1
        );
        self.progress.at(&line, part);
    }

    /// A program of ours that a column needs and that was not built.
    fn missing_program(&self, commands: &[Vec<String>]) -> Option<String> {
        let places = Places {
            data: Path::new("/"),
            out: Path::new("/"),
            tools: &self.tools,
        };
        commands.iter().find_map(|command| {
            let program = places.fill(command).into_iter().next()?;
            let ours = program.starts_with('/');
            (ours && !Path::new(&program).exists()).then(|| format!("{program} was not built"))
        })
    }

    /// Time that a row on a device may take, s, of which `spent` has passed already: what is left, shared evenly.
    fn share(&self, spent: Duration) -> Option<f64> {
        let minutes = self.args.minutes.filter(|m| *m > 0.0)?;
        let left = minutes * 60.0 - self.progress.elapsed().as_secs_f64() + spent.as_secs_f64();
        Some(left / self.progress.pairs_left() as f64)
    }

    /// How many runs there is time for, when the first of each column took so long.
    fn affordable(&self, one: Duration) -> u32 {
        match self.share(one) {
            None => self.runs,
            // The bound takes about as long as a round.
            Some(share) => {
                let rounds = (share / one.as_secs_f64().max(1e-3)) as u32;
                rounds.saturating_sub(1).clamp(1, self.runs)
            }
        }
    }

    /// Whether there is time for a scan, when the first runs of `columns` columns took so long.
    fn can_scan(&self, taken: Duration, columns: usize) -> bool {
        let one = taken.as_secs_f64() / columns.max(1) as f64;
        // The scan, a round with its column, and the bound.
        let needed = 2.0 * taken.as_secs_f64() + one * (SCAN_KB.len() + 1) as f64;
        self.share(taken).is_none_or(|share| needed <= share)
    }

    /// The read-ahead with which stock is fastest, KiB, by one run of `column` at each. What was measured with it already is
    /// used.
    fn scan(
        &mut self,
        pair: &Pair,
        column: &Column,
        columns: &[Column],
        measured: &BTreeMap<String, Vec<f64>>,
        part: f64,
    ) -> Outcome<u32> {
        let mut best = (f64::INFINITY, STOCK_KB);
        for kb in SCAN_KB {
            let known = columns
                .iter()
                .find(|c| c.name.starts_with("stock-") && c.readahead_kb == Some(kb))
                .and_then(|c| measured.get(&c.name)?.first().copied());
            let seconds = match known {
                Some(seconds) => seconds,
                None => {
                    self.show(pair, &format!("scan at {kb} KiB"), 0, part);
                    let way = self.way(pair, column, kb);
                    let done = self.once(pair, &way)?;
                    let mut run = self.run_line(pair, &way, 0, &done);
                    let failed = run.exit != 0;
                    run.discarded = Some("a try of one read-ahead".to_owned());
                    self.record.add(&Line::Run(run))?;
                    if failed {
                        break;
                    }
                    done.ended.seconds
                }
            };
            if seconds < best.0 {
                best = (seconds, kb);
            }
        }
        Ok(best.1)
    }

    fn way<'b>(&self, pair: &'b Pair, column: &'b Column, readahead_kb: u32) -> Way<'b> {
        Way {
            model: &pair.device.words,
            readahead_kb,
            memory: pair.row.memory,
            beside: true,
            cold: true,
            column,
            trace: None,
        }
    }

    /// A run that is written down; repeated if it does not count. Its time, or none if it failed.
    fn counted(
        &mut self,
        pair: &Pair,
        column: &Column,
        number: u32,
        readahead_kb: u32,
    ) -> Outcome<Option<f64>> {
        let way = self.way(pair, column, readahead_kb);
        for attempt in 0..=REPEATS {
            let done = self.once(pair, &way)?;
            let mut run = self.run_line(pair, &way, number, &done);
            let at = format!(
                "{} on {}, {}",
                pair.row.name, pair.device.label, column.name
            );
            if run.exit != 0 {
                self.failures += 1;
                let said = done
                    .ended
                    .said
                    .trim()
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .to_owned();
                self.progress.complain(&if done.ended.timed_out {
                    format!("FAILED: {at}: took over {} s", self.args.timeout)
                } else {
                    format!("FAILED: {at}: exit code {}: {said}", run.exit)
                });
                self.record.add(&Line::Run(run))?;
                return Ok(None);
            }
            if !self.same_output(pair.row, &run.digests) {
                self.failures += 1;
                self.progress.complain(&format!(
                    "FAILED: {at}: printed something else than stock did"
                ));
            }
            run.discarded = self.unusable(&done);
            let again = run.discarded.is_some() && attempt < REPEATS;
            self.noisy += u32::from(run.discarded.is_some() && !again);
            self.record.add(&Line::Run(run))?;
            if !again {
                return Ok(Some(done.ended.seconds));
            }
            self.wait_for_quiet(pair.disk.pid())?;
        }
        unreachable!("the last attempt returns")
    }

    /// Why a run does not count.
    fn unusable(&self, done: &Done) -> Option<String> {
        if done.cached_before > 0 {
            return Some(format!(
                "{} bytes of the data set were cached before it",
                done.cached_before
            ));
        }
        let most = self.args.max_load + TICK_NOISE / done.ended.seconds.max(0.01);
        (done.foreign > most).then(|| format!("others used {:.2} processors", done.foreign))
    }

    fn wait_for_quiet(&self, server: u32) -> Outcome {
        let until = Instant::now() + QUIET;
        let step = Duration::from_millis(250);
        while Instant::now() < until {
            let before = Sample::take(server);
            exec::pause(step)?;
            let seconds = step.as_secs_f64();
            if before.foreign(&Sample::take(server), seconds, 0.0) <= self.args.max_load {
                break;
            }
        }
        Ok(())
    }

    /// Whether a row printed what it printed the first time.
    fn same_output(&mut self, row: &Row, digests: &[String]) -> bool {
        let first = self
            .digests
            .entry(row.name.clone())
            .or_insert_with(|| digests.to_vec());
        first == digests
    }

    fn run_line(&self, pair: &Pair, way: &Way, number: u32, done: &Done) -> Run {
        Run {
            row: pair.row.name.clone(),
            device: pair.device.label.clone(),
            column: way.column.name.clone(),
            run: number,
            seconds: round(done.ended.seconds),
            cpu_seconds: round(done.cpu_seconds),
            read_bytes: done.read_bytes,
            requests: done.requests,
            digests: done.ended.digests.clone(),
            exit: if done.ended.timed_out {
                TIMED_OUT
            } else {
                done.ended.exit
            },
            readahead_kb: way.readahead_kb,
            cached_before: done.cached_before,
            foreign_load: round(done.foreign),
            discarded: None,
            figures: done.ended.figures.clone(),
            outrider: done.outrider.clone(),
            at: machine::now(),
        }
    }

    /// Runs a row's commands once, in one way.
    fn once(&mut self, pair: &Pair, way: &Way) -> Outcome<Done> {
        not_interrupted()?;
        let (disk, row) = (pair.disk, pair.row);
        disk.model(disk::FULL_SPEED)?;
        self.reset(pair)?;
        let cached_before = if way.cold {
            pair.set.make_cold(disk)?
        } else {
            0
        };
        disk.tune(way.model, way.readahead_kb)?;
        disk.model(way.model)?;

        let (out, reports) = (self.scratch.path("out"), self.scratch.path("reports"));
        exec::empty(&out)?;
        exec::empty(&reports)?;
        let places = Places {
            data: &pair.set.dir,
            out: &out,
            tools: &self.tools,
        };
        let words = way.column.commands(&row.work).map_err(Failure::system)?;
        let (commands, files) = places.commands(way.column, words, &reports)?;
        let touch = ["vmtouch", "-q", "-t", "{data}"].map(str::to_owned);
        let limit = match way.memory {
            Memory::Free => None,
            Memory::Bytes(n) => Some(n),
        };
        let group = Group::new(&self.groups, limit)?;
        let beside: Vec<_> = row
            .work
            .beside
            .iter()
            .filter(|_| way.beside)
            .map(|c| places.fill(c))
            .collect();
        disk.counters(true)?;
        if let Some(file) = way.trace {
            disk.trace(file)?;
        }
        let before = Sample::take(disk.pid());
        let started = Instant::now();
        let ran = exec::run(&Job {
            before: way.column.touch.then(|| places.fill(&touch)),
            commands: &commands,
            beside: &beside,
            group: &group,
            out: &out,
            env: &[(
                "XDG_CONFIG_HOME",
                self.scratch.path("config").to_string_lossy().into_owned(),
            )],
            limit: Duration::from_secs_f64(self.args.timeout),
        });
        let seconds = started.elapsed().as_secs_f64();
        if way.trace.is_some() {
            disk.end_trace()?;
        }
        let ended = ran?;
        let after = Sample::take(disk.pid());
        let counters = disk.counters(false)?;
        let (cpu, neighbours) = group.cpu_seconds().unwrap_or((ended.cpu_seconds, 0.0));
        Ok(Done {
            cpu_seconds: cpu,
            foreign: before.foreign(&after, seconds, cpu + neighbours),
            cached_before,
            read_bytes: counters.read_bytes,
            requests: counters.reads,
            outrider: reported(&files),
            ended,
        })
    }

    /// Brings the data set back to its first state, where the row has a command for that.
    fn reset(&self, pair: &Pair) -> Outcome {
        let Some(reset) = &pair.row.work.reset else {
            return Ok(());
        };
        let out = self.scratch.path("reset");
        exec::empty(&out)?;
        let places = Places {
            data: &pair.set.dir,
            out: &out,
            tools: &self.tools,
        };
        let group = Group::new(&self.groups, None)?;
        let ended = exec::run(&Job {
            before: None,
            commands: &[places.fill(reset)],
            beside: &[],
            group: &group,
            out: &out,
            env: &[],
            limit: Duration::from_secs_f64(self.args.timeout),
        })?;
        if ended.exit != 0 || ended.timed_out {
            return Err(Failure::system(format!(
                "{}: its data could not be brought back to its first state: {}",
                pair.row.name,
                ended.said.trim()
            )));
        }
        Ok(())
    }

    /// The lower bound: its median time, s, or none if it could not be told.
    fn bound(
        &mut self,
        pair: &Pair,
        needed: &mut Option<Needed>,
        runs: u32,
    ) -> Outcome<Option<f64>> {
        let count = runs.min(BOUNDS);
        if needed.is_none() {
            *needed = match self.trace(pair)? {
                Ok(found) => Some(found),
                Err(why) => {
                    self.record.add(&pair.skip(BOUND, why))?;
                    return Ok(None);
                }
            };
        }
        let Some(needed) = needed else {
            return Ok(None);
        };
        let reads = needed.reads();
        pair.disk.tune(&pair.device.words, STOCK_KB)?;
        pair.disk.model(&pair.device.words)?;
        let mut replay = Vec::new();
        for _ in 0..count {
            not_interrupted()?;
            replay.push(round(
                direct::read(&pair.disk.device(), &reads, REPLAY_DEPTH)?.seconds,
            ));
        }
        let mut warm = Vec::new();
        let stock = Column::stock();
        // The first one fills the cache.
        for i in 0..=count {
            let way = Way {
                model: if i == 0 {
                    disk::FULL_SPEED
                } else {
                    &pair.device.words
                },
                readahead_kb: STOCK_KB,
                memory: Memory::Free,
                beside: false,
                cold: i == 0,
                column: &stock,
                trace: None,
            };
            let done = self.once(pair, &way)?;
            if done.ended.exit != 0 || done.ended.timed_out {
                self.record
                    .add(&pair.skip(BOUND, "the commands fail when everything is cached"))?;
                return Ok(None);
            }
            if i > 0 {
                warm.push(round(done.ended.seconds));
            }
        }
        let bound = median(&replay).max(median(&warm));
        self.record.add(&Line::Bound(Bound {
            row: pair.row.name.clone(),
            device: pair.device.label.clone(),
            replay,
            warm,
            needed_bytes: needed.bytes(),
            needed_requests: needed.requests(),
        }))?;
        Ok(Some(bound))
    }

    /// The blocks that a row needs, or why that could not be found out.
    fn trace(&mut self, pair: &Pair) -> Outcome<Result<Needed, String>> {
        let file = self.scratch.path("trace");
        let stock = Column::stock();
        let way = Way {
            model: disk::FULL_SPEED,
            readahead_kb: 0,
            memory: Memory::Free,
            beside: false,
            cold: true,
            column: &stock,
            trace: Some(&file),
        };
        let done = self.once(pair, &way)?;
        if done.ended.exit != 0 || done.ended.timed_out {
            return Ok(Err("the commands fail without readahead".to_owned()));
        }
        let needed = Needed::of(&file)?;
        let _ = fs::remove_file(&file);
        Ok(Ok(needed))
    }

    fn sum_up(
        &self,
        pair: &Pair,
        columns: &[Column],
        seconds: &BTreeMap<String, Vec<f64>>,
        bound: Option<f64>,
    ) {
        let mut line = format!("{} on {}:", pair.row.name, pair.device.label);
        for column in columns {
            let told = match seconds.get(&column.name) {
                Some(s) => format!("{:.3} s", median(s)),
                None => "failed".to_owned(),
            };
            line.push_str(&format!(" {} {told},", column.name));
        }
        match bound {
            Some(bound) => line.push_str(&format!(" limit {bound:.3} s")),
            None => line.push_str(" limit unknown"),
        }
        self.progress.say(&line);
    }
}

/// The exit code of a run that took too long, as timeout(1) has it.
const TIMED_OUT: i32 = 124;

/// Outrider's totals, summed over its reports.
fn reported(files: &[PathBuf]) -> BTreeMap<String, f64> {
    let mut all = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        for (name, value) in report["totals"].as_object().into_iter().flatten() {
            let name = match name.strip_suffix("_bytes").unwrap_or(name) {
                "miss" => "missed",
                name => name,
            };
            *all.entry(name.to_owned()).or_insert(0.0) += value.as_f64().unwrap_or(0.0);
        }
    }
    all
}

/// µs are more than these times mean.
fn round(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Whether a program is in PATH.
fn installed(program: &str) -> bool {
    if program.contains('/') {
        return Path::new(program).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Bytes that can be had without swapping.
fn available_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kb = text.lines().find_map(|l| {
        l.strip_prefix("MemAvailable:")?
            .trim()
            .strip_suffix(" kB")?
            .parse::<u64>()
            .ok()
    });
    kb.unwrap_or(1 << 20) * 1024
}
