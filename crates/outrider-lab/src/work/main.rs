//! The `outrider-work` command: programs that read in known ways, for the rows of `outrider-lab run`.
//!
//! A module per family of workloads. Each prints a digest of all that it read on standard output, the same however
//! fast the data came, and figures of its own in one line on standard error ([`figures`]).

mod blur;
mod bptree;
mod copy;
mod customer;
mod declare;
mod direct;
mod figures;
mod filebench;
mod graph;
mod neighbour;
mod planned;
mod postmark;
mod read;
mod read_blocks;
mod seek_curve;
#[allow(dead_code)] // what it shows is shown by outrider-lab
mod write;

use clap::{Parser, Subcommand};
use outrider_cli::size;

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
    /// Make a file of bytes that don't compress, from a seed.
    Make(write::MakeArgs),
    /// Overwrite random blocks of a file until killed.
    Write(write::WriteArgs),
    /// Print a table of customers as SQL, to be piped into sqlite3.
    Customer(customer::Args),
    /// Read and write as Filebench's personalities do.
    Filebench(filebench::Args),
    /// Measure what a seek costs.
    SeekCurve(seek_curve::Args),
    /// Use blocks of a file in an order that is known beforehand.
    Planned(planned::Args),
    /// Blur an image in a swap file.
    Blur(blur::Args),
    /// Keep processors busy.
    Hog(neighbour::HogArgs),
    /// Take memory and walk over it.
    WalkMemory(neighbour::WalkArgs),
    /// Build and scan B+-trees.
    Bptree(bptree::Args),
    /// Make, read, append to and delete small files.
    Postmark(postmark::Args),
    /// Copy a file.
    Copy(copy::Args),
    /// Read blocks of 4 KiB around the cache.
    ReadBlocks(read_blocks::Args),
}

fn main() {
    let result = match Cli::parse().family {
        Family::Read(args) => read::run(&args),
        Family::Make(args) => write::make(&args),
        Family::Write(args) => write::write(&args),
        Family::Customer(args) => customer::run(&args),
        Family::Filebench(args) => filebench::run(&args),
        Family::SeekCurve(args) => seek_curve::run(&args),
        Family::Planned(args) => planned::run(&args),
        Family::Blur(args) => blur::run(&args),
        Family::Hog(args) => neighbour::hog(&args),
        Family::WalkMemory(args) => neighbour::walk(&args),
        Family::Bptree(args) => bptree::run(&args),
        Family::Postmark(args) => postmark::run(&args),
        Family::Copy(args) => copy::run(&args),
        Family::ReadBlocks(args) => read_blocks::run(&args),
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
        outrider_cli::complain("outrider-work", &self.message);
        std::process::exit(self.code)
    }
}

/// What a workload returns.
pub type Result<T = ()> = std::result::Result<T, Wrong>;
