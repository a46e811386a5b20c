//! `outrider-lab run`: every row on its devices, column by column.
//!
//! What makes the figures comparable is in [`once`]: the data set is in its first state, the disk is cold and was
//! seen to be, the read-ahead is the column's, memory is bounded, nothing runs but the row and its neighbours. The
//! columns of a row take turns, so that a machine that becomes slower does so for all of them.

mod bound;
mod once;
mod pair;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use super::column::{Chosen, Column};
use super::device::{self, Device};
use super::exec::{self, not_interrupted};
use super::group::Hierarchies;
use super::needed::Needed;
use super::progress::Progress;
use super::record::{self, Record};
use super::store::{self, Set, Store};
use super::{accuracy, machine, select};
use crate::cli::RunArgs;
use crate::disk::FileSystem;
use crate::disk::{self, Lease};
use crate::output::{Context, Failure, Outcome};
use crate::results::BEST;
use crate::results::{Line, Skip};
use crate::rows::{Memory, Row, Tools};

/// Replays and warm runs, at most: they vary less than runs.
const BOUNDS: u32 = 3;
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
        let chosen = args.rows.is_empty() && !args.all;
        let own = if chosen { row.short } else { row.devices }.join(",");
        let devices = given
            .clone()
            .map_or_else(|| device::parse(&own, args.scale), Ok)?;
        pairs.push(devices);
    }
    let other = args.against.as_deref();
    let other = other.map(|dir| tools("--against", Some(dir))).transpose()?;
    let tools = tools("--build", args.build.as_deref())?;
    let against = other.map(|other| filled_up(other, &tools));
    if against.is_some() {
        columns = columns.and_against();
    }
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
        against,
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
        .filter(|r| !r.name.starts_with(SELF) && (args.all || !r.short.is_empty()))
        .collect())
}

/// Where our programs are: in `build`, or else beside this one; `drivers` and `plugins` beside that directory.
fn tools(flag: &str, build: Option<&Path>) -> Outcome<Tools> {
    let bin = match build {
        Some(dir) => dir
            .canonicalize()
            .map_err(|e| Failure::usage(format!("{flag} {}: {e}", dir.display())))?,
        None => {
            let program = std::env::current_exe().doing("cannot find this program")?;
            program.parent().unwrap_or(Path::new("/")).to_owned()
        }
    };
    for name in ["outrider", "liboutrider.so", "outrider-work"] {
        if !bin.join(name).is_file() {
            return Err(Failure::usage(format!(
                "{} is not there; `make build` builds it, and {flag} names its directory",
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

/// Another build, with drivers and plug-ins of this one where it has none.
fn filled_up(other: Tools, own: &Tools) -> Tools {
    let there = |dir: PathBuf, own: &PathBuf| if dir.is_dir() { dir } else { own.clone() };
    Tools {
        drivers: there(other.drivers, &own.drivers),
        plugins: there(other.plugins, &own.plugins),
        bin: other.bin,
    }
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
    /// The other build's.
    against: Option<Tools>,
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

impl Bench<'_> {
    /// The build that a column is measured with.
    fn tools_of(&self, column: &Column) -> &Tools {
        match &self.against {
            Some(other) if column.against => other,
            _ => &self.tools,
        }
    }

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
        // A disk lies in memory; half of that must be left for the page cache.
        for (stretch, bytes) in store::stretches(&rows, available_memory() / 2) {
            let mut disk = None;
            for i in stretch {
                let row = &rows[i];
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
                    let (disk, store) = match &mut disk {
                        Some(there) => there,
                        none => {
                            let disk = Lease::up(mount, store::disk_size(bytes), self.args.fs)?;
                            none.insert((disk, Store::default()))
                        }
                    };
                    self.row(disk, store, row, device, &mut needed)?;
                }
            }
        }
        Ok(())
    }

    fn row(
        &mut self,
        disk: &Lease,
        store: &mut Store,
        row: &Row,
        device: &Device,
        needed: &mut Option<Needed>,
    ) -> Outcome {
        let what = format!("{}: making its data", row.name);
        self.progress.at(&what, 0.0);
        disk.model(disk::FULL_SPEED)?;
        let set = match store.get(disk, &row.data, &self.tools) {
            Ok(set) => set,
            Err(failure) => {
                not_interrupted()?;
                self.failures += 1;
                return self.left_out(row, device, &failure.message);
            }
        };
        let pair = Pair {
            disk,
            set: &set,
            row,
            device,
        };
        self.pair(&pair, needed)?;
        self.progress.next();
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
}

/// µs are more than these times mean.
fn round(seconds: f64) -> f64 {
    (seconds * 1e6).round() / 1e6
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
