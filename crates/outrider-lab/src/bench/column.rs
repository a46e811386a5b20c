//! The columns: how a row's commands are run, and with which read-ahead of the kernel.

use std::path::Path;

use crate::output::{Failure, Outcome};
use crate::rows::{Tools, Workload};

/// The kernel's default read-ahead, KiB.
pub const STOCK_KB: u32 = 128;
/// The large one that everybody could set, KiB.
const LARGE_KB: u32 = 4096;
/// Tried for `stock-best`, KiB.
pub const SCAN_KB: [u32; 8] = [128, 256, 512, 1024, 2048, 4096, 8192, 16384];

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Column {
    /// Stock, 128 KiB.
    Stock128,
    /// Stock, 4 MiB.
    Stock4M,
    /// Stock, the best of a scan.
    StockBest,
    /// Stock with the program's own hints.
    AppOnly,
    /// vmtouch -t over the data set, then stock.
    Vmtouch,
    /// outrider run --mode predict.
    Predict,
    /// outrider run.
    PredictOpt,
    /// outrider run --mode fetchall+opt.
    FetchallOpt,
    /// The program declares its accesses.
    Declared,
    /// The program runs under a foreaction graph.
    Graph,
}

/// All, in the order of tables.
pub const ALL: [Column; 10] = [
    Column::Stock128,
    Column::Stock4M,
    Column::StockBest,
    Column::AppOnly,
    Column::Vmtouch,
    Column::Predict,
    Column::PredictOpt,
    Column::FetchallOpt,
    Column::Declared,
    Column::Graph,
];

/// Those that are measured unless others are named.
pub const DEFAULT: [Column; 8] = [
    Column::Stock128,
    Column::Stock4M,
    Column::StockBest,
    Column::AppOnly,
    Column::Vmtouch,
    Column::PredictOpt,
    Column::Declared,
    Column::Graph,
];

impl Column {
    /// Its name in results and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stock128 => "stock-128",
            Self::Stock4M => "stock-4M",
            Self::StockBest => "stock-best",
            Self::AppOnly => "app-only",
            Self::Vmtouch => "vmtouch",
            Self::Predict => "predict",
            Self::PredictOpt => "predict+opt",
            Self::FetchallOpt => "fetchall+opt",
            Self::Declared => "declared",
            Self::Graph => "graph",
        }
    }

    /// The kernel's read-ahead, KiB; `best` is what a scan found.
    pub fn readahead_kb(self, best: u32) -> u32 {
        match self {
            Self::Stock4M => LARGE_KB,
            Self::StockBest => best,
            _ => STOCK_KB,
        }
    }

    /// The mode of `outrider run`; none where it is not used.
    fn mode(self) -> Option<&'static str> {
        match self {
            Self::Predict => Some("predict"),
            Self::PredictOpt | Self::Declared | Self::Graph => Some("predict+opt"),
            Self::FetchallOpt => Some("fetchall+opt"),
            _ => None,
        }
    }

    /// The commands as the row has them for this column, or why it has none.
    pub fn commands(self, work: &Workload) -> Result<&[Vec<String>], &'static str> {
        match self {
            Self::AppOnly => work
                .hinted
                .as_deref()
                .ok_or("it gives no hints beside those that it always gives"),
            Self::Declared => work
                .declared
                .as_deref()
                .ok_or("it does not declare its accesses"),
            Self::Graph => work.graph.as_deref().ok_or("it has no foreaction graph"),
            _ => Ok(&work.commands),
        }
    }
}

/// Reads `--columns`.
pub fn parse(list: Option<&str>) -> Outcome<Vec<Column>> {
    let mut columns = match list {
        None => DEFAULT.to_vec(),
        Some("all") => ALL.to_vec(),
        Some(list) => list
            .split(',')
            .map(|name| {
                ALL.into_iter().find(|c| c.name() == name).ok_or_else(|| {
                    Failure::usage(format!(
                        "--columns: no column '{name}'; accepted are {} and all",
                        ALL.map(Column::name).join(", ")
                    ))
                })
            })
            .collect::<Outcome<_>>()?,
    };
    columns.sort();
    columns.dedup();
    Ok(columns)
}

/// Where the words of a row's commands point.
pub struct Places<'a> {
    /// The data set.
    pub data: &'a Path,
    /// An empty directory in memory.
    pub out: &'a Path,
    /// Our programs.
    pub tools: &'a Tools,
}

impl Places<'_> {
    /// Puts the places into a command's words.
    pub fn fill(&self, command: &[String]) -> Vec<String> {
        let places = [
            ("{data}", self.data),
            ("{out}", self.out),
            ("{bin}", &self.tools.bin),
            ("{drivers}", &self.tools.drivers),
            ("{plugins}", &self.tools.plugins),
        ];
        let fill = |word: &String| {
            places.iter().fold(word.clone(), |word, (name, path)| {
                word.replace(name, &path.to_string_lossy())
            })
        };
        command.iter().map(fill).collect()
    }

    /// The commands of `column` as they are executed, and where Outrider's reports will be.
    pub fn commands(
        &self,
        column: Column,
        commands: &[Vec<String>],
        reports: &Path,
    ) -> (Vec<Vec<String>>, Vec<std::path::PathBuf>) {
        let mut files = Vec::new();
        let filled = commands.iter().enumerate().map(|(i, command)| {
            let mut command = self.fill(command);
            let Some(mode) = column.mode() else {
                return command;
            };
            let report = reports.join(format!("report-{i}.json"));
            let flag = format!("--report={}", report.display());
            files.push(report);
            let outrider = self
                .tools
                .bin
                .join("outrider")
                .to_string_lossy()
                .into_owned();
            // A row may have its own flags for Outrider.
            if command.first() == Some(&outrider) && command.get(1).is_some_and(|w| w == "run") {
                command.insert(2, flag);
                return command;
            }
            let mut around: Vec<String> = [&outrider, "run", "--mode", mode, &flag, "--"]
                .map(str::to_owned)
                .to_vec();
            around.append(&mut command);
            around
        });
        (filled.collect(), files)
    }
}
