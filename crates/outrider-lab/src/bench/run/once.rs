//! One run of a row's commands: what makes the figures comparable.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Bench, Pair};
use crate::bench::backing;
use crate::bench::column::{Column, Places};
use crate::bench::exec::{self, Ended, Job, not_interrupted};
use crate::bench::group::Group;
use crate::bench::load::Sample;
use crate::disk;
use crate::output::{Failure, Outcome};
use crate::rows::Memory;

/// How a row's commands are to be run once.
pub struct Way<'a> {
    /// The model's words.
    pub model: &'a str,
    pub readahead_kb: u32,
    pub memory: Memory,
    /// With the row's neighbours.
    pub beside: bool,
    /// With nothing cached.
    pub cold: bool,
    pub column: &'a Column,
    /// Where the disk's requests are recorded.
    pub trace: Option<&'a Path>,
}

/// What came of it.
pub struct Done {
    pub ended: Ended,
    pub cpu_seconds: f64,
    pub foreign: f64,
    pub cached_before: u64,
    pub read_bytes: u64,
    pub requests: u64,
    pub outrider: BTreeMap<String, f64>,
}

impl Bench<'_> {
    /// Runs a row's commands once, in one way.
    pub fn once(&mut self, pair: &Pair, way: &Way) -> Outcome<Done> {
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
        backing::renew(row.data.bytes);

        let (out, reports) = (self.scratch.path("out"), self.scratch.path("reports"));
        exec::empty(&out)?;
        exec::empty(&reports)?;
        let places = Places {
            data: &pair.set.dir,
            out: &out,
            tools: self.tools_of(way.column),
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
        let mut env = way.column.env.clone();
        env.push((
            "XDG_CONFIG_HOME",
            self.scratch.path("config").to_string_lossy().into_owned(),
        ));
        let before = Sample::take(disk.pid());
        let started = Instant::now();
        let ran = exec::run(&Job {
            before: way.column.touch.then(|| places.fill(&touch)),
            commands: &commands,
            beside: &beside,
            group: &group,
            out: &out,
            env: &env,
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
}

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
