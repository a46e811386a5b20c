//! The file of raw results: appended line by line, so that what was measured before an interruption is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::machine;
use crate::output::{Context, Failure, Outcome};
use crate::results::Line;

/// The file's name.
pub const FILE: &str = "results.jsonl";
/// Stands in a directory while something is being measured into it, and after an interruption.
const UNFINISHED: &str = "unfinished";
/// The column of [`crate::results::Skip`] that says why there is no lower bound.
pub const BOUND: &str = "bound";
/// Where results lie unless another place is named.
const ROOT: &str = "bench/results";

/// An open file of results.
pub struct Record {
    dir: PathBuf,
    file: File,
    /// Locked as long as this lives.
    _mark: File,
}

/// Locks a directory's mark, unless somebody else has.
fn claim(mark: &File) -> bool {
    rustix::fs::flock(mark, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Where results will go.
pub fn directory(out: Option<&Path>, resume: bool) -> Outcome<PathBuf> {
    if let Some(dir) = out {
        if dir.exists() && !dir.is_dir() {
            return Err(Failure::usage(format!(
                "--out {}: not a directory",
                dir.display()
            )));
        }
        let there = fs::metadata(dir.join(FILE)).is_ok_and(|m| m.len() > 0);
        if there && !resume {
            return Err(Failure::usage(format!(
                "--out {}: has results already; accepted are another directory, or --resume to go on with it",
                dir.display()
            )));
        }
        return Ok(dir.to_owned());
    }
    let kind = machine::kind();
    if resume {
        let mut unfinished: Vec<PathBuf> = fs::read_dir(ROOT)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .filter(|p| p.to_string_lossy().contains(&kind) && p.join(UNFINISHED).exists())
            .filter(|p| File::open(p.join(UNFINISHED)).is_ok_and(|f| claim(&f)))
            .collect();
        unfinished.sort();
        if let Some(dir) = unfinished.pop() {
            return Ok(dir);
        }
    }
    let date = machine::now()[..10].to_owned();
    let first = Path::new(ROOT).join(format!("{date}-{kind}"));
    let further = (2..).map(|i| Path::new(ROOT).join(format!("{date}-{kind}-{i}")));
    let free = std::iter::once(first).chain(further).find(|d| !d.exists());
    Ok(free.expect("numbers do not end"))
}

impl Record {
    /// Opens the file in `dir` and returns the rows on devices that are complete there already: those with all columns that
    /// `wanted` names for the row. Lines about its other devices and rows are dropped, for they will be measured again; those
    /// of rows for which nothing is wanted stay.
    pub fn open(
        dir: &Path,
        wanted: &dyn Fn(&str) -> Option<Vec<String>>,
    ) -> Outcome<(Self, BTreeSet<(String, String)>)> {
        fs::create_dir_all(dir).doing(dir.display())?;
        let mark = File::create(dir.join(UNFINISHED)).doing(dir.display())?;
        if !claim(&mark) {
            return Err(Failure::usage(format!(
                "{}: another invocation is measuring into it",
                dir.display()
            )));
        }
        let path = dir.join(FILE);
        let mut complete = BTreeSet::new();
        if let Ok(text) = fs::read_to_string(&path) {
            // The last line may have been cut off.
            let lines: Vec<Line> = text
                .lines()
                .filter_map(|l| serde_json::from_str(l).ok())
                .collect();
            complete = completed(&lines, wanted);
            let kept: String = lines
                .iter()
                .filter(|l| pair(l).is_none_or(|p| complete.contains(&p) || wanted(&p.0).is_none()))
                .map(|l| serde_json::to_string(l).map(|s| s + "\n"))
                .collect::<Result<_, _>>()
                .doing(path.display())?;
            let new = dir.join("results.new");
            fs::write(&new, kept).doing(new.display())?;
            fs::rename(&new, &path).doing(path.display())?;
        }
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .doing(path.display())?;
        let record = Self {
            dir: dir.to_owned(),
            file,
            _mark: mark,
        };
        Ok((record, complete))
    }

    /// Adds a line.
    pub fn add(&mut self, line: &Line) -> Outcome {
        let mut text = serde_json::to_string(line).doing(FILE)?;
        text.push('\n');
        self.file
            .write_all(text.as_bytes())
            .doing(self.dir.join(FILE).display())
    }

    /// All that was wanted has been measured.
    pub fn finish(self) -> Outcome {
        fs::remove_file(self.dir.join(UNFINISHED)).doing(self.dir.display())
    }
}

/// The row and device that a line is about.
fn pair(line: &Line) -> Option<(String, String)> {
    match line {
        Line::Machine(_) | Line::Accuracy(_) => None,
        Line::Row(l) => Some((l.row.clone(), l.device.clone())),
        Line::Run(l) => Some((l.row.clone(), l.device.clone())),
        Line::Bound(l) => Some((l.row.clone(), l.device.clone())),
        Line::Skip(l) => Some((l.row.clone(), l.device.clone())),
    }
}

/// Rows on devices that have a run or a skip for every column, and their bound: runs of a row are interleaved and its bound
/// comes last, so the bound says that all runs are there.
fn completed(
    lines: &[Line],
    wanted: &dyn Fn(&str) -> Option<Vec<String>>,
) -> BTreeSet<(String, String)> {
    let mut have: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for line in lines {
        let Some(pair) = pair(line) else { continue };
        let columns = have.entry(pair).or_default();
        match line {
            Line::Run(run) => columns.insert(&run.column),
            Line::Skip(skip) => columns.insert(&skip.column),
            Line::Bound(_) => columns.insert(BOUND),
            _ => continue,
        };
    }
    let complete = have.into_iter().filter(|((row, _), columns)| {
        let all = |names: Vec<String>| names.iter().all(|n| columns.contains(n.as_str()));
        columns.contains("*") || (columns.contains(BOUND) && wanted(row).is_none_or(all))
    });
    complete.map(|(pair, _)| pair).collect()
}
