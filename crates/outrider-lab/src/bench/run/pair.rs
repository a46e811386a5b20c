//! A row on a device: its columns in turns, each run judged and written down, then its limit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use super::once::{Done, Way};
use super::{Bench, Pair, installed, round};
use crate::bench::column::{Column, Places, SCAN_KB, STOCK_KB};
use crate::bench::load::Sample;
use crate::bench::needed::Needed;
use crate::bench::{exec, machine};
use crate::output::Outcome;
use crate::results::median;
use crate::results::{Line, RowInfo, Run};
use crate::rows::{Memory, Row};

/// How often a run is repeated that was discarded.
const REPEATS: u32 = 3;
/// Before a repetition, so long is waited for others to become quiet.
const QUIET: Duration = Duration::from_secs(3);
/// Foreign load is told from clock ticks of 10 ms: a run of t s may show so much / t processors that are not there.
const TICK_NOISE: f64 = 0.05;
/// The exit code of a run that took too long, as timeout(1) has it.
const TIMED_OUT: i32 = 124;

impl Bench<'_> {
    /// A row on a device, all columns and its bound.
    pub fn pair(&mut self, pair: &Pair, needed: &mut Option<Needed>) -> Outcome {
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
                Ok(commands) => self.missing_program(&column, commands),
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
    fn missing_program(&self, column: &Column, commands: &[Vec<String>]) -> Option<String> {
        let places = Places {
            data: Path::new("/"),
            out: Path::new("/"),
            tools: self.tools_of(column),
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

    fn sum_up(
        &self,
        pair: &Pair,
        columns: &[Column],
        seconds: &BTreeMap<String, Vec<f64>>,
        bound: Option<f64>,
    ) {
        let mut line = format!("{} on {}:", pair.row.name, pair.device.label);
        for column in columns {
            let told = match seconds.get(&column.name).and_then(|s| median(s)) {
                Some(s) => format!("{s:.3} s"),
                None => "failed".to_owned(),
            };
            line.push_str(&format!(" {} {told},", column.name));
        }
        match bound {
            Some(bound) => line.push_str(&format!(" limit {bound:.3} s")),
            None => line.push_str(" limit unknown"),
        }
        self.progress.say_result(&line);
    }
}
