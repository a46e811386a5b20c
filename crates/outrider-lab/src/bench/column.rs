//! The columns: how a row's commands are run, and with which read-ahead of the kernel.

use std::fs;
use std::path::{Path, PathBuf};

use crate::output::{Context, Failure, Outcome};
use crate::results::{BEST, COLUMNS, STOCK};
use crate::rows::{OwnColumn, Row, Tools, Which, Workload};

/// The kernel's default read-ahead, KiB.
pub const STOCK_KB: u32 = 128;
/// The large one that everybody could set, KiB.
const LARGE_KB: u32 = 4096;
/// Tried for `stock-best`, KiB.
pub const SCAN_KB: [u32; 8] = [128, 256, 512, 1024, 2048, 4096, 8192, 16384];
/// What follows the name of a column that another build is measured in.
const AGAINST: &str = "@against";
/// Of [`COLUMNS`], those that are measured only if they are named.
const ON_DEMAND: [&str; 2] = ["predict", "fetchall+opt"];

/// A column of a row.
#[derive(Clone, Debug)]
pub struct Column {
    /// Its name in results and on the command line.
    pub name: String,
    /// The kernel's read-ahead, KiB; none: what a scan found.
    pub readahead_kb: Option<u32>,
    /// The data set is read by vmtouch first.
    pub touch: bool,
    which: Which,
    /// Flags of `outrider run`; none: without it.
    outrider: Option<Vec<String>>,
    /// Its configuration.
    config: String,
    /// Environment variables of the commands.
    pub env: Vec<(&'static str, String)>,
    /// It is the other build's (`--against`).
    pub against: bool,
}

impl Column {
    /// One that every row has.
    pub fn named(name: &str) -> Option<Self> {
        COLUMNS.contains(&name).then(|| {
            let mode = match name {
                "predict" | "fetchall+opt" => Some(name),
                "predict+opt" | "declared" => Some("predict+opt"),
                _ => None,
            };
            Self {
                name: name.to_owned(),
                readahead_kb: match name {
                    BEST => None,
                    "stock-4M" => Some(LARGE_KB),
                    _ => Some(STOCK_KB),
                },
                touch: name == "vmtouch",
                which: match name {
                    "app-only" => Which::Hinted,
                    "declared" => Which::Declared,
                    "graph" => Which::Graph,
                    _ => Which::Plain,
                },
                outrider: mode.map(|m| vec!["--mode".to_owned(), m.to_owned()]),
                config: String::new(),
                env: Vec::new(),
                against: false,
            }
        })
    }

    /// Stock.
    pub fn stock() -> Self {
        Self::named(STOCK).expect("stock is a column")
    }

    fn own(own: &OwnColumn) -> Self {
        Self {
            name: own.name.clone(),
            readahead_kb: Some(own.readahead_kb.unwrap_or(STOCK_KB)),
            touch: false,
            which: own.which,
            outrider: own.outrider.clone(),
            config: own.config.clone(),
            env: own.env.clone(),
            against: false,
        }
    }

    /// The same with another build; none if nothing of Outrider is in it.
    fn against(&self) -> Option<Self> {
        let ours = self.outrider.is_some() || matches!(self.which, Which::Declared | Which::Graph);
        ours.then(|| Self {
            name: format!("{}{AGAINST}", self.name),
            against: true,
            ..self.clone()
        })
    }

    /// The commands as the row has them for this column, or why it has none.
    pub fn commands<'a>(&self, work: &'a Workload) -> Result<&'a [Vec<String>], &'static str> {
        match self.which {
            Which::Plain => Ok(&work.commands),
            Which::Hinted => work
                .hinted
                .as_deref()
                .ok_or("it gives no hints beside those that it always gives"),
            Which::Declared => work
                .declared
                .as_deref()
                .ok_or("it does not declare its accesses"),
            Which::Graph => work.graph.as_deref().ok_or("it has no foreaction graph"),
        }
    }
}

/// Which columns are meant.
#[derive(Clone, Debug)]
pub struct Chosen {
    names: Vec<String>,
    /// Besides, those that rows have of their own.
    own: bool,
    /// Each with Outrider a second time, with another build.
    against: bool,
}

impl Chosen {
    /// Reads `--columns`, which may name columns that one of `rows` has of its own.
    pub fn parse(list: Option<&str>, rows: &[Row]) -> Outcome<Self> {
        let standard = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        match list {
            None => {
                let usual: Vec<&str> = COLUMNS
                    .into_iter()
                    .filter(|n| !ON_DEMAND.contains(n))
                    .collect();
                Ok(Self {
                    names: standard(&usual),
                    own: true,
                    against: false,
                })
            }
            Some("all") => Ok(Self {
                names: standard(&COLUMNS),
                own: true,
                against: false,
            }),
            Some(list) => {
                let names: Vec<String> = list.split(',').map(str::to_owned).collect();
                let of_rows = || {
                    rows.iter()
                        .flat_map(|r| &r.work.own)
                        .map(|c| c.name.as_str())
                };
                if let Some(bad) = names
                    .iter()
                    .find(|n| !COLUMNS.contains(&n.as_str()) && !of_rows().any(|o| o == *n))
                {
                    return Err(Failure::usage(format!(
                        "--columns: no column '{bad}'; accepted are {}, names of rows' own columns, and all",
                        COLUMNS.join(", ")
                    )));
                }
                Ok(Self {
                    names,
                    own: false,
                    against: false,
                })
            }
        }
    }

    /// The same without a column.
    pub fn without(mut self, name: &str) -> Self {
        self.names.retain(|n| n != name);
        self
    }

    /// The same, and each with Outrider a second time, with another build.
    pub fn and_against(mut self) -> Self {
        self.against = true;
        self
    }

    /// The columns of a row, in the order of tables.
    pub fn of(&self, row: &Row) -> Vec<Column> {
        let wanted = |name: &str| self.names.iter().any(|n| n == name);
        let standard = COLUMNS
            .into_iter()
            .filter(|n| wanted(n))
            .filter_map(Column::named);
        let own = row
            .work
            .own
            .iter()
            .filter(|c| self.own || wanted(&c.name))
            .map(Column::own);
        standard
            .chain(own)
            .flat_map(|column| {
                let other = column.against().filter(|_| self.against);
                std::iter::once(column).chain(other)
            })
            .collect()
    }
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

    /// The commands of `column` as they are executed, and the files in `reports` to which Outrider will report.
    pub fn commands(
        &self,
        column: &Column,
        commands: &[Vec<String>],
        reports: &Path,
    ) -> Outcome<(Vec<Vec<String>>, Vec<PathBuf>)> {
        let filled = commands.iter().map(|c| self.fill(c));
        let Some(flags) = &column.outrider else {
            return Ok((filled.collect(), Vec::new()));
        };
        let mut flags = self.fill(flags);
        if !column.config.is_empty() {
            let file = reports.join("config.toml");
            fs::write(&file, &column.config).doing(file.display())?;
            flags.extend(["--config".to_owned(), file.to_string_lossy().into_owned()]);
        }
        let outrider = self
            .tools
            .bin
            .join("outrider")
            .to_string_lossy()
            .into_owned();
        let mut files = Vec::new();
        let around = filled.enumerate().map(|(i, mut command)| {
            let report = reports.join(format!("report-{i}.json"));
            let flag = format!("--report={}", report.display());
            files.push(report);
            // A row may have its own flags for Outrider.
            if command.first() == Some(&outrider) && command.get(1).is_some_and(|w| w == "run") {
                command.insert(2, flag);
                return command;
            }
            let mut around = vec![outrider.clone(), "run".to_owned(), flag];
            around.extend(flags.iter().cloned());
            around.push("--".to_owned());
            around.append(&mut command);
            around
        });
        let around = around.collect();
        Ok((around, files))
    }
}
