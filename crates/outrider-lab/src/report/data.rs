//! The raw results put in order: which runs count, and what they come to.
//!
//! A file may hold several invocations, one after the other, because a measurement that was interrupted is resumed into the same
//! file. A later line about the same thing therefore replaces an earlier one. What was discarded stays on record as a number.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::output::{Failure, Outcome};
use crate::results::{Accuracy, Bound, COLUMNS, Line, Machine, RowInfo, Run, STOCK, Skip, median};

/// The file of raw results in a directory of results.
pub const FILE: &str = "results.jsonl";

/// Fewer valid runs than this are too few to speak of a spread.
pub const ENOUGH: usize = 3;

/// Differences below this share are taken for noise, whatever the runs say: 5 % is what stock differs by from one day to the next.
pub const NOISE: f64 = 0.05;

/// Everything in a directory of results.
#[derive(Debug, Default)]
pub struct Measured {
    /// One per invocation, in order.
    pub machines: Vec<Machine>,
    /// Rows on devices, in the order in which they first appear.
    pub benches: Vec<Bench>,
    /// The emulator's accuracy, by device and measure, in the order of their first appearance.
    pub accuracy: Vec<Accuracy>,
}

/// A row on a device.
#[derive(Debug, Default)]
pub struct Bench {
    /// The row.
    pub row: String,
    /// The device.
    pub device: String,
    /// What the row is about.
    pub info: Option<RowInfo>,
    /// What limits it.
    pub bound: Option<Bound>,
    /// What was measured of it.
    pub cells: Vec<Cell>,
    /// What was not.
    pub skips: Vec<Skip>,
}

/// A column of a row on a device.
#[derive(Debug)]
pub struct Cell {
    /// The column.
    pub column: String,
    /// By number, the last of each.
    pub runs: BTreeMap<u32, Run>,
    /// Why runs didn't count, repeated ones included, each with how many there were.
    pub invalid: BTreeMap<String, usize>,
}

/// How two sets of runs differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The second is slower, beyond noise.
    Slower,
    /// The second is faster, beyond noise.
    Faster,
    /// The runs overlap, or the medians differ by 5 % or less.
    Noise,
    /// One of them has fewer than three valid runs.
    TooFew,
}

impl Difference {
    /// In a word or two.
    pub fn words(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Noise => "within noise",
            Self::TooFew => "too few runs",
        }
    }
}

impl Measured {
    /// Reads `DIR/results.jsonl`. A line that cannot be understood is an error that names it.
    pub fn load(dir: &Path) -> Outcome<Self> {
        let path = dir.join(FILE);
        let bytes = fs::read(&path).map_err(|e| {
            Failure::usage(format!(
                "{}: {e} (accepted: a directory with {FILE} in it)",
                path.display()
            ))
        })?;
        let mut measured = Self::default();
        let lines = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        if lines.is_empty() {
            return Err(Failure::usage(format!(
                "{}: no results in it",
                path.display()
            )));
        }
        for (at, line) in lines.split(|b| *b == b'\n').enumerate() {
            let parsed = serde_json::from_slice(line).map_err(|e| told(&e));
            let checked = parsed.and_then(|line| check(&line).map(|()| line));
            let line = checked.map_err(|why| bad_line(&path, at + 1, &why))?;
            measured.add(line);
        }
        for bench in &mut measured.benches {
            // A stable sort keeps unknown columns in the order of their first run.
            bench.cells.sort_by_key(|cell| rank(&cell.column));
        }
        Ok(measured)
    }

    /// The row on the device, new if it isn't there yet.
    fn bench(&mut self, row: &str, device: &str) -> &mut Bench {
        let found = self
            .benches
            .iter()
            .position(|b| b.row == row && b.device == device);
        let at = found.unwrap_or_else(|| {
            self.benches.push(Bench {
                row: row.to_owned(),
                device: device.to_owned(),
                ..Bench::default()
            });
            self.benches.len() - 1
        });
        &mut self.benches[at]
    }

    fn add(&mut self, line: Line) {
        match line {
            Line::Machine(machine) => self.machines.push(machine),
            Line::Row(info) => {
                let bench = self.bench(&info.row, &info.device);
                bench.info = Some(info);
            }
            Line::Bound(bound) => {
                let bench = self.bench(&bound.row, &bound.device);
                bench.bound = Some(bound);
            }
            Line::Skip(skip) => {
                let bench = self.bench(&skip.row, &skip.device);
                bench.skips.retain(|s| s.column != skip.column);
                bench.skips.push(skip);
            }
            Line::Run(run) => {
                let bench = self.bench(&run.row, &run.device);
                // It was possible after all.
                bench
                    .skips
                    .retain(|s| s.column != run.column && s.column != "*");
                bench.cell(&run.column).add(run);
            }
            Line::Accuracy(figure) => {
                let same =
                    |a: &&mut Accuracy| a.device == figure.device && a.measure == figure.measure;
                match self.accuracy.iter_mut().find(same) {
                    Some(there) => *there = figure,
                    None => self.accuracy.push(figure),
                }
            }
        }
    }

    /// The row on the device, if it is there.
    pub fn find(&self, row: &str, device: &str) -> Option<&Bench> {
        self.benches
            .iter()
            .find(|b| b.row == row && b.device == device)
    }

    /// A sentence for each column that printed something else than the others of its row.
    pub fn wrong_output(&self) -> Vec<String> {
        self.benches.iter().flat_map(Bench::wrong_output).collect()
    }
}

impl Bench {
    fn cell(&mut self, column: &str) -> &mut Cell {
        let found = self.cells.iter().position(|c| c.column == column);
        let at = found.unwrap_or_else(|| {
            self.cells.push(Cell {
                column: column.to_owned(),
                runs: BTreeMap::new(),
                invalid: BTreeMap::new(),
            });
            self.cells.len() - 1
        });
        &mut self.cells[at]
    }

    /// The column, if it has runs.
    pub fn column(&self, name: &str) -> Option<&Cell> {
        self.cells.iter().find(|c| c.column == name)
    }

    /// Median time of `stock-128`, s.
    pub fn stock(&self) -> Option<f64> {
        self.column(STOCK)?.median()
    }

    /// The fastest of what a user would pick instead of Outrider, `stock-128` apart.
    pub fn best_peer(&self) -> Option<(&Cell, f64)> {
        let peers = self
            .cells
            .iter()
            .filter(|c| c.column != STOCK && !c.is_outrider());
        peers
            .filter_map(|c| Some((c, c.median()?)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Outrider's columns.
    pub fn outrider(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|c| c.is_outrider())
    }

    /// No run can be faster than this, s: the longer one of reading what is needed (median) and working with
    /// everything cached (median).
    pub fn limit(&self) -> Option<f64> {
        let bound = self.bound.as_ref()?;
        let parts = [median(&bound.replay), median(&bound.warm)];
        parts
            .into_iter()
            .flatten()
            .filter(|s| *s > 0.0)
            .reduce(f64::max)
    }

    /// How many times faster than `stock-128` so many seconds are.
    pub fn speed_up(&self, seconds: f64) -> Option<f64> {
        Some(self.stock()? / seconds)
    }

    /// Limit / time.
    pub fn efficiency(&self, seconds: f64) -> Option<f64> {
        Some(self.limit()? / seconds)
    }

    /// (stock − time) / (stock − limit); none where stock is at the limit already.
    pub fn share(&self, seconds: f64) -> Option<f64> {
        let (stock, limit) = (self.stock()?, self.limit()?);
        (stock > limit).then(|| (stock - seconds) / (stock - limit))
    }

    /// Runs that succeeded print what the first run of the first column printed (discarded ones too: a wrong answer is wrong
    /// on a busy machine as well).
    fn wrong_output(&self) -> Vec<String> {
        let ended = |cell: &Cell| -> Vec<Run> {
            cell.runs
                .values()
                .filter(|r| r.exit == 0)
                .cloned()
                .collect()
        };
        let Some((reference, expected)) = self
            .cells
            .iter()
            .find_map(|cell| Some((cell.column.clone(), ended(cell).first()?.digests.clone())))
        else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for cell in &self.cells {
            let differ: Vec<String> = ended(cell)
                .iter()
                .filter(|run| run.digests != expected)
                .map(|run| run.run.to_string())
                .collect();
            if !differ.is_empty() {
                found.push(format!(
                    "{} on {}: {} printed something else than the first run of {reference} did (run {})",
                    self.row,
                    self.device,
                    cell.column,
                    differ.join(", "),
                ));
            }
        }
        found
    }
}

impl Cell {
    fn add(&mut self, run: Run) {
        if let Some(why) = why_invalid(&run) {
            *self.invalid.entry(why).or_default() += 1;
        }
        self.runs.insert(run.run, run);
    }

    /// Whether Outrider was at work in it. Columns of a row's own tell by their figures.
    pub fn is_outrider(&self) -> bool {
        let begins = |names: &[&str]| names.iter().any(|name| self.column.starts_with(name));
        match self.column.as_str() {
            "app-only" | "vmtouch" => false,
            _ if begins(&["stock-"]) => false,
            _ if begins(&["predict", "fetchall", "declared", "graph", "plugin"]) => true,
            _ => self.runs.values().any(|run| !run.outrider.is_empty()),
        }
    }

    /// Runs that count.
    pub fn valid(&self) -> impl Iterator<Item = &Run> {
        self.runs.values().filter(|run| why_invalid(run).is_none())
    }

    /// How many runs didn't count, repeated ones included.
    pub fn discarded(&self) -> usize {
        self.invalid.values().sum()
    }

    /// Times of the runs that count, s.
    pub fn times(&self) -> Vec<f64> {
        self.valid().map(|run| run.seconds).collect()
    }

    /// Median time, s.
    pub fn median(&self) -> Option<f64> {
        median(&self.times())
    }

    /// Shortest and longest time, s.
    pub fn range(&self) -> Option<(f64, f64)> {
        range(&self.times())
    }

    /// Median of something else than time, over the runs that count and have it.
    pub fn median_of(&self, what: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        median(&self.valid().filter_map(what).collect::<Vec<_>>())
    }

    /// Median of a figure of the program's own.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.median_of(|run| run.figures.get(name).copied())
    }

    /// Whether there are too few runs that count to rely on it.
    pub fn few(&self) -> bool {
        self.valid().count() < ENOUGH
    }

    /// How `self` differs from `before`.
    pub fn against(&self, before: &Self) -> Difference {
        let (old, new) = (before.times(), self.times());
        if old.len() < ENOUGH || new.len() < ENOUGH {
            return Difference::TooFew;
        }
        let (Some(a), Some(b), Some((old_min, old_max)), Some((new_min, new_max))) =
            (median(&old), median(&new), range(&old), range(&new))
        else {
            return Difference::TooFew;
        };
        if new_min > old_max && b / a > 1.0 + NOISE {
            Difference::Slower
        } else if new_max < old_min && a / b > 1.0 + NOISE {
            Difference::Faster
        } else {
            Difference::Noise
        }
    }
}

/// Least and greatest.
fn range(values: &[f64]) -> Option<(f64, f64)> {
    let least = values.iter().copied().reduce(f64::min)?;
    Some((least, values.iter().copied().reduce(f64::max)?))
}

/// Where a column stands among the others; `usize::MAX` if it is a row's own.
pub fn rank(column: &str) -> usize {
    COLUMNS
        .iter()
        .position(|c| *c == column)
        .unwrap_or(usize::MAX)
}

/// Why a run does not count.
fn why_invalid(run: &Run) -> Option<String> {
    match (&run.discarded, run.exit) {
        (_, exit) if exit != 0 => Some(format!("exit code {exit}")),
        (why, _) => why.clone(),
    }
}

/// What the types don't say.
fn check(line: &Line) -> Result<(), String> {
    match line {
        Line::Run(run) if why_invalid(run).is_none() && run.seconds <= 0.0 => {
            Err(format!("seconds is {} (accepted: above 0)", run.seconds))
        }
        Line::Accuracy(figure) if figure.modelled == 0.0 => {
            Err("modelled is 0 (accepted: anything else)".to_owned())
        }
        _ => Ok(()),
    }
}

/// The parser's complaint without its idea of lines: it sees one at a time.
fn told(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(" at line ") {
        Some((what, _)) if error.column() > 0 => format!("{what} (column {})", error.column()),
        Some((what, _)) => what.to_owned(),
        None => text,
    }
}

fn bad_line(path: &Path, number: usize, why: &str) -> Failure {
    Failure::usage(format!("{}:{number}: {why}", path.display()))
}
