//! `outrider warm`: reads files or trees into the page cache at the device's speed.
//!
//! Three steps, for so many files at a time that their places are sorted in memory. *Plan*: every file is opened, what is cached already or lies in
//! holes is set aside, and the rest is cut into requests that no kernel clips, as far as the budget goes. *Fetch*: the requests go to an engine, as
//! those of programs do, in the order in which they lie on the device. *Check*: cached pages are counted once more, because under memory pressure the
//! first may be gone when the last arrives, and what has not come is read, because nothing else tells why.

mod check;
mod fetch;
mod plan;

use std::collections::{BTreeMap, HashSet};
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use outrider_core::declare::contention;
use outrider_core::plan::sweep::Item;
use outrider_sys::memory::{self, Memory};
use outrider_sys::units::{DeviceId, InodeKey, PAGE};

use crate::cli::WarmArgs;
use crate::config;
use crate::output::{self, Outcome, bytes, show};
use crate::profile;
use crate::tree::{self, Found};
use fetch::Fetcher;
use plan::{Devices, FilePlan};

/// Files that are planned, fetched and checked together: an [`Item`] tells no more apart.
const TOGETHER: usize = 1 << 16;

/// How much may be read, and why.
struct Budget {
    bytes: u64,
    why: String,
}

/// What may be cached without pushing other things out: half of what the machine has available, and most
/// of the headroom of the tightest cgroup. The rest is for what others read meanwhile.
fn automatic_budget(memory: &Memory) -> Budget {
    let half = memory.available / 2;
    let most = |headroom: u64| (headroom as f64 * contention::SHARE) as u64;
    match memory.tightest() {
        Some(cgroup) if most(cgroup.headroom()) < half => Budget {
            bytes: most(cgroup.headroom()),
            why: format!("90 % of what cgroup {} has left", show(&cgroup.path)),
        },
        _ => Budget {
            bytes: half,
            why: "half of the available memory".to_owned(),
        },
    }
}

/// What it came to. Sizes are bytes.
#[derive(Default)]
struct Totals {
    /// Asked for, and what of that did not come.
    planned: u64,
    unread: u64,
    took: Duration,
    cached: u64,
    empty: u64,
    left_out: u64,
    lost: u64,
    files: usize,
    hidden: usize,
    changed: usize,
    files_left: usize,
    /// The first of them.
    first_left: Option<PathBuf>,
    problems: Vec<(PathBuf, io::Error)>,
}

/// A file of which something is fetched.
struct Chosen<'a> {
    found: &'a Found,
    key: InodeKey,
    size: u64,
    /// The kernel doesn't tell what of it is cached.
    hidden: bool,
}

/// What is fetched of some files.
#[derive(Default)]
struct Round<'a> {
    /// By their numbers in an [`Item`].
    files: BTreeMap<u16, Chosen<'a>>,
    /// By file system.
    items: BTreeMap<DeviceId, Vec<Item>>,
}

/// Runs the subcommand. Exit code 1 if some file could not be read.
pub fn command(args: &WarmArgs) -> Outcome {
    let began = Instant::now();
    let listing = match &args.profile {
        Some(name) => profile::listing(name)?,
        None => tree::list(&args.paths)?,
    };
    let budget = match args.budget {
        Some(bytes) => Budget {
            bytes,
            why: "--budget".to_owned(),
        },
        None => automatic_budget(&memory::memory()),
    };
    // A mistake in a file that nobody named costs its settings.
    let config = config::load(None, None)?.config;
    let devices = Devices::new(config.engine.chunk.bytes());
    let mut fetcher = Fetcher::new(&config, args.jobs as usize);
    let bar = progress();
    let mut totals = Totals {
        problems: listing.problems,
        ..Totals::default()
    };
    let mut seen = HashSet::new();
    for files in listing.files.chunks(TOGETHER) {
        let plans = plan::all(files, &devices);
        let mut round = Round::default();
        for (index, (found, plan)) in files.iter().zip(plans).enumerate() {
            match plan {
                Ok(Some(plan)) if seen.insert(plan.key) => {
                    totals.spend(&budget, &mut round, index as u16, found, plan);
                }
                Ok(_) => {}
                Err(e) => totals.problems.push((found.path.clone(), e)),
            }
        }
        totals.read(&mut fetcher, round, &bar);
    }
    bar.finish_and_clear();
    fetcher.end();
    totals.show(&budget, began)?;
    for (path, e) in &totals.problems {
        output::complain(&format!("{}: {e}", show(path)));
    }
    Ok(i32::from(!totals.problems.is_empty()))
}

impl Totals {
    /// Takes of a file what the budget has left, in the order of the command line, so that what is left out is the end of it.
    fn spend<'a>(
        &mut self,
        budget: &Budget,
        round: &mut Round<'a>,
        index: u16,
        found: &'a Found,
        plan: FilePlan,
    ) {
        self.files += 1;
        self.hidden += usize::from(plan.hidden);
        self.cached += plan.cached.min(plan.size);
        self.empty += plan.empty;
        let (mut taken, mut whole) = (Vec::new(), true);
        for item in &plan.items {
            let bytes = bytes_of(item, plan.size);
            // Once something did not fit, nothing after it is taken either.
            if self.left_out == 0 && self.planned + bytes <= budget.bytes {
                self.planned += bytes;
                taken.push(*item);
            } else {
                self.left_out += bytes;
                whole = false;
            }
        }
        if !whole {
            self.files_left += 1;
            self.first_left.get_or_insert_with(|| found.path.clone());
        }
        if taken.is_empty() {
            return;
        }
        let chosen = Chosen {
            found,
            key: plan.key,
            size: plan.size,
            hidden: plan.hidden,
        };
        round.files.insert(index, chosen);
        round
            .items
            .entry(plan.key.device())
            .or_default()
            .append(&mut taken);
    }

    /// Fetches a round, and sees what has come of it.
    fn read(&mut self, fetcher: &mut Fetcher, mut round: Round<'_>, bar: &ProgressBar) {
        if round.files.is_empty() {
            return;
        }
        let began = Instant::now();
        bar.set_length(self.planned);
        let fetched = fetcher.fetch(&mut round, bar);
        self.took += began.elapsed();
        self.changed += fetched.changed.len();
        self.unread += fetched.skipped;
        let items = round.items.into_values().flatten().collect();
        let checked = check::all(&round.files, items, &fetched);
        let mut problems = fetched.problems;
        for (index, checked) in checked {
            self.lost += checked.lost;
            self.unread += checked.unread;
            self.changed += usize::from(checked.changed);
            problems.extend(checked.problem.map(|e| (index, e)));
        }
        for (index, e) in problems {
            let chosen = round.files.get(&index);
            self.problems
                .extend(chosen.map(|c| (c.found.path.clone(), e)));
        }
    }

    /// Says what it came to.
    fn show(&self, budget: &Budget, began: Instant) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let read = self.planned.saturating_sub(self.unread);
        let seconds = self.took.as_secs_f64();
        let rate = match read > 0 && seconds > 0.0 {
            true => format!(
                " in {seconds:.2} s ({}/s)",
                bytes((read as f64 / seconds) as u64)
            ),
            false => String::new(),
        };
        writeln!(out, "read      {:>10}{rate}", bytes(read))?;
        write!(out, "cached    {:>10} already", bytes(self.cached))?;
        if self.hidden > 0 {
            write!(
                out,
                "; {} hidden by the kernel were read, cached or not",
                output::count(self.hidden, "file")
            )?;
        }
        writeln!(out)?;
        if self.empty > 0 {
            writeln!(out, "holes     {:>10} need no reading", bytes(self.empty))?;
        }
        if self.left_out > 0 {
            writeln!(
                out,
                "left out  {:>10} in {}, from {} on: the budget is {} ({}); --budget SIZE sets another",
                bytes(self.left_out),
                output::count(self.files_left, "file"),
                self.first_left.as_ref().map(show).unwrap_or_default(),
                bytes(budget.bytes),
                budget.why,
            )?;
        }
        if self.lost > 0 {
            writeln!(
                out,
                "lost      {:>10} were pushed out again: memory is short",
                bytes(self.lost)
            )?;
        }
        if self.changed > 0 {
            writeln!(
                out,
                "changed   {:>10} removed or cut short meanwhile",
                output::count(self.changed, "file")
            )?;
        }
        writeln!(
            out,
            "{} in {:.2} s",
            output::count(self.files, "file"),
            began.elapsed().as_secs_f64()
        )?;
        out.flush()
    }
}

/// Bytes of an item, of a file of `size` bytes.
fn bytes_of(item: &Item, size: u64) -> u64 {
    (item.end() * PAGE)
        .min(size)
        .saturating_sub(item.page() * PAGE)
}

/// A bar on a terminal, and nothing elsewhere.
fn progress() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(
        "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
    );
    if let Ok(style) = style {
        // Blocks, where they are shown.
        let cells = if output::is_utf8() { "█░" } else { "#-" };
        bar.set_style(style.progress_chars(cells));
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_is_the_budget() {
        let mut memory = Memory {
            total: 8 << 30,
            available: 4 << 30,
            ..Memory::default()
        };
        assert_eq!(automatic_budget(&memory).bytes, 2 << 30);
        memory.cgroups.push(memory::CgroupMemory {
            path: "/sys/fs/cgroup/x".into(),
            version: memory::CgroupVersion::V2,
            limit: 1000,
            usage: 900,
            inactive_file: 400,
            active_file: 0,
            dirty: 0,
            mapped: 0,
        });
        assert_eq!(automatic_budget(&memory).bytes, 450);
    }
}
