//! What is measured: a row per workload, named after the figure or table of the paper that it stands for.
//!
//! A row says which data it needs, which commands it runs, and how much memory they get. It knows nothing of
//! devices, columns or measuring; [`crate::bench`] runs it.

mod crossprefetch;
mod databases;
mod everyday;
mod foreactor;
mod libprefetch;
mod make;
mod micro;
mod plain;
mod selfcheck;
mod ssdcache;
mod words;

use std::path::Path;

use crate::output::Outcome;

/// A workload with its data.
pub struct Row {
    /// Unique, `cp-fig5-private-seq`: the paper (`cp`, `lp`, `fa`, `dr`, `day`), its figure or table, the variant.
    pub name: String,
    /// What it stands for, in words: "CrossPrefetch Fig. 5, private files, sequential".
    pub about: String,
    /// Where it is drawn. Rows of one figure share [`Point::figure`].
    pub point: Option<Point>,
    /// The data set.
    pub data: Data,
    /// Memory that the commands may use.
    pub memory: Memory,
    /// What is run.
    pub work: Workload,
    /// Devices on which `make bench` runs it; none: only `--all` does, or its name.
    pub short: &'static [&'static str],
    /// Devices on which it is run by name or `--all`, without `--device`.
    pub devices: &'static [&'static str],
}

/// A point of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The figure's key: `cp-fig5`.
    pub figure: &'static str,
    /// The curve or group of bars within it.
    pub series: String,
    /// The place on the horizontal axis: a number's text where the axis is a number.
    pub x: String,
    /// The paper's own gain over its stock system at this point (times faster), where it gives one.
    pub paper: Option<f64>,
}

/// Files that a row reads, made from a seed, shared by all rows that name the same key.
#[derive(Clone)]
pub struct Data {
    /// Names the set; also its directory on the disk.
    pub key: String,
    /// Bytes it takes on the disk, at most (for the disk's size).
    pub bytes: u64,
    /// Makes it in the directory, which exists and is empty; every run makes the same bytes.
    pub make: fn(&Maker) -> Outcome,
}

/// What a data set is made with.
pub struct Maker<'a> {
    /// The empty directory.
    pub dir: &'a Path,
    /// Programs of ours: `outrider-work`, and drivers built from `crates/outrider-lab/drivers`.
    pub tools: &'a Tools,
    /// Words after the key's first colon, where one function makes several sets: `sqlite:64M` gives `64M`.
    pub words: &'a str,
}

/// Where programs of ours are found.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Directory of `outrider`, `outrider-lab`, `outrider-work`, `liboutrider.so`: `target/release`.
    pub bin: std::path::PathBuf,
    /// Directory of the drivers that `make drivers` builds: `target/drivers`.
    pub drivers: std::path::PathBuf,
    /// Directory of the plug-ins that `make plugins` builds: `target/plugins`.
    pub plugins: std::path::PathBuf,
}

/// Memory limit of a run (a control group; page cache included).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    /// None.
    Free,
    /// So many bytes.
    Bytes(u64),
}

/// The commands of a row.
///
/// Arguments may hold `{data}` (the data set's directory on the measured disk), `{out}` (an empty directory in
/// memory, new for each run), `{bin}`, `{drivers}`, `{plugins}` (see [`Tools`]). A command is not passed through a shell;
/// use `sh -c` where one is wanted.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// Run at the same time; the time is until the last one ends. What they print is the result: every column must
    /// print the same (digests of each one's standard output are compared).
    pub commands: Vec<Vec<String>>,
    /// The same with the program's own readahead hints, or with io_uring by hand, for the column `app-only`, which stays empty without
    /// them: stock is the program with the hints that it always gives.
    pub hinted: Option<Vec<Vec<String>>>,
    /// The same with its accesses declared to Outrider (`outrider.h`), for the column `declared`.
    pub declared: Option<Vec<Vec<String>>>,
    /// The same with a foreaction graph, for the column `graph`.
    pub graph: Option<Vec<Vec<String>>>,
    /// Neighbours: started before, killed after, not timed (a CPU hog, a memory walker, writers).
    pub beside: Vec<Vec<String>>,
    /// Run before each run and before the cache is dropped, untimed: brings the data set back to its first state
    /// where the commands write to it.
    pub reset: Option<Vec<String>>,
    /// Programs that must be installed, each with the Debian package that has it: `("git", "git")`.
    pub needs: Vec<(&'static str, &'static str)>,
    /// Columns of this row alone, beside those that every row has.
    pub own: Vec<OwnColumn>,
}

/// A column of a row's own: another read-ahead, or Outrider with other flags, another configuration or environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnColumn {
    /// Its name among the results: `predict+view`.
    pub name: String,
    /// Which of the row's commands it runs.
    pub which: Which,
    /// The device's `read_ahead_kb`, KiB; none: 128.
    pub readahead_kb: Option<u32>,
    /// Flags of `outrider run`, without `--report`, with places as in commands; none: without Outrider.
    pub outrider: Option<Vec<String>>,
    /// A configuration's text, given to `outrider run` as `--config`; empty: the defaults.
    pub config: String,
    /// Environment variables of the commands.
    pub env: Vec<(&'static str, String)>,
}

/// Which commands of a [`Workload`] a column runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// [`Workload::commands`].
    #[default]
    Plain,
    /// [`Workload::hinted`].
    Hinted,
    /// [`Workload::declared`].
    Declared,
    /// [`Workload::graph`].
    Graph,
}

/// A program's figures of its own: a line `outrider-work: {json}` on standard error (it is taken out of what is shown).
/// All are optional; [`crate::results::Run`] keeps them.
pub const FIGURES_PREFIX: &str = "outrider-work: ";

/// All rows, in the order of the papers.
pub fn all() -> Vec<Row> {
    [
        micro::rows(),
        crossprefetch::rows(),
        databases::rows(),
        libprefetch::rows(),
        foreactor::rows(),
        ssdcache::rows(),
        everyday::rows(),
        selfcheck::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
