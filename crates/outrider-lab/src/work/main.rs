//! The `outrider-work` command: programs that read in known ways, for the rows of `outrider-lab run`.
//!
//! A module per family of workloads. Each prints a digest of all that it read on standard output, the same however
//! fast the data came, and figures of its own in one line on standard error ([`figures`]).

mod customer;
mod figures;
mod filebench;
mod random;
mod read;

use clap::{Parser, Subcommand};

/// Programs that read in known ways, for `outrider-lab run`.
#[derive(Debug, Parser)]
#[command(name = "outrider-work", version, about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    family: Family,
}

/// The families.
#[derive(Debug, Subcommand)]
enum Family {
    /// Read files in a pattern.
    Read(read::Args),
    /// Print a table of customers as SQL, to be piped into sqlite3.
    Customer(customer::Args),
    /// Read and write as Filebench's personalities do.
    Filebench(filebench::Args),
}

fn main() {
    let result = match Cli::parse().family {
        Family::Read(args) => read::run(&args),
        Family::Customer(args) => customer::run(&args),
        Family::Filebench(args) => filebench::run(&args),
    };
    if let Err(wrong) = result {
        wrong.end();
    }
}

/// Why a workload ends early.
#[derive(Debug)]
pub struct Wrong {
    /// One line for standard error.
    pub message: String,
    /// 2 for bad input, 1 for what the machine refused.
    pub code: i32,
}

impl Wrong {
    /// Bad input: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: 2,
        }
    }

    /// The machine refused: exit code 1.
    pub fn system(what: impl std::fmt::Display, error: impl std::fmt::Display) -> Self {
        Self {
            message: format!("{what}: {error}"),
            code: 1,
        }
    }

    fn end(&self) -> ! {
        eprintln!("outrider-work: {}", self.message.replace('\n', "; "));
        std::process::exit(self.code)
    }
}

/// What a workload returns.
pub type Result<T = ()> = std::result::Result<T, Wrong>;
