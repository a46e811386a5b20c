//! How rows are written down.

use super::{Data, Maker, Memory, Point, Row, Workload};
use crate::output::Outcome;

/// Our program that reads in known ways.
pub const WORK: &str = "{bin}/outrider-work";
/// Coreutils, as the commands of rows need them.
pub const COREUTILS: (&str, &str) = ("cksum", "coreutils");
/// find and xargs.
pub const FINDUTILS: (&str, &str) = ("xargs", "findutils");

/// An argument list.
pub fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).collect()
}

/// A shell's script: it ends at the first command that fails, and sorts by bytes.
pub fn script(text: &str) -> Vec<String> {
    argv(&["sh", "-c", &format!("set -e; export LC_ALL=C; {text}")])
}

/// A list of arguments with one more.
pub fn with(command: &[String], word: &str) -> Vec<String> {
    let mut longer = command.to_vec();
    longer.push(word.to_owned());
    longer
}

/// A data set of `bytes` bytes.
pub fn data(key: &str, bytes: u64, make: fn(&Maker) -> Outcome) -> Data {
    Data {
        key: key.to_owned(),
        bytes,
        make,
    }
}

impl Workload {
    /// One command.
    pub fn one(command: Vec<String>) -> Self {
        Self::all(vec![command])
    }

    /// Commands that run at the same time.
    pub fn all(commands: Vec<Vec<String>>) -> Self {
        Self {
            commands,
            ..Self::default()
        }
    }

    /// Commands of ours that take `--hint` and `--declare`.
    pub fn told(commands: Vec<Vec<String>>) -> Self {
        let flagged = |flag| Some(commands.iter().map(|c| with(c, flag)).collect());
        Self {
            hinted: flagged("--hint"),
            declared: flagged("--declare"),
            commands,
            ..Self::default()
        }
    }

    /// What must be installed.
    pub fn needs(mut self, programs: &[(&'static str, &'static str)]) -> Self {
        self.needs = programs.to_vec();
        self
    }

    /// How the data set is brought back.
    pub fn reset(mut self, command: Vec<String>) -> Self {
        self.reset = Some(command);
        self
    }

    /// A neighbour.
    pub fn beside(mut self, command: Vec<String>) -> Self {
        self.beside.push(command);
        self
    }
}

impl Row {
    /// A row on all devices, without a point, without a limit, not in `make bench`.
    pub fn new(
        name: impl Into<String>,
        about: impl Into<String>,
        data: Data,
        work: Workload,
    ) -> Self {
        Self {
            name: name.into(),
            about: about.into(),
            point: None,
            data,
            memory: Memory::Free,
            work,
            short: &[],
            devices: &["nvme", "remote", "hdd"],
        }
    }

    /// Where it is drawn, and the paper's gain there.
    pub fn point(
        mut self,
        figure: &'static str,
        series: impl Into<String>,
        x: impl Into<String>,
        paper: Option<f64>,
    ) -> Self {
        self.point = Some(Point {
            figure,
            series: series.into(),
            x: x.into(),
            paper,
        });
        self
    }

    /// Memory that the commands may use, bytes.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Memory::Bytes(bytes);
        self
    }

    /// `make bench` runs it on these devices.
    pub fn short(mut self, devices: &'static [&'static str]) -> Self {
        self.short = devices;
        self
    }

    /// On these devices only.
    pub fn on(mut self, devices: &'static [&'static str]) -> Self {
        self.devices = devices;
        self
    }
}
