//! The command line: subcommands, their flags and how mistakes in them are told.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::disk::{DiskArgs, FileSystem};
use crate::mount::MountArgs;
use crate::regret::RegretArgs;
use crate::simulate::SimulateArgs;

/// Devices that this machine doesn't have, to measure prefetching on.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-lab",
    version,
    about,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Emulated disks with a real file system on them (needs root, FUSE and loop devices).
    Disk(DiskArgs),
    /// Show a directory a second time, as a slow network file system (needs FUSE).
    ///
    /// MOUNTPOINT has what DIR has, read-only and without extended attributes. Each request of the kernel takes a
    /// time. Serves until it is unmounted, or until SIGINT, SIGTERM or SIGHUP, which unmount it. As root everybody may
    /// use it; others need fusermount3.
    Mount(MountArgs),
    /// List the rows that `run` measures.
    List(ListArgs),
    /// Measure rows on emulated devices: stock Linux, what else a user may choose, Outrider, and the limit.
    ///
    /// Raw results go to results.jsonl in a new directory below bench/results, or to --out. Exit code 1 if a run failed
    /// or printed something else than stock.
    #[command(args_override_self = true)]
    Run(RunArgs),
    /// Turn raw results into tables, a page and plots.
    ///
    /// Reads DIR/results.jsonl; writes DIR/summary.md, DIR/index.html and DIR/plots/FIGURE.svg. Exit code 1 if
    /// columns of a row printed different things.
    Report {
        /// A directory of results.
        dir: PathBuf,
    },
    /// Drive the service from what `outrider run --record FILE` has written, and compare all that it does.
    ///
    /// Prints a line for each file. Exit code 1 if the service did something else than in a recording.
    Replay {
        /// Recordings.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Run programs in simulated time: stock Linux, Outrider, and the best that anybody could do.
    ///
    /// Times are seconds, to the digit the same on every machine. `gain` is stock's over ours, `of best` the bound's over ours; bytes are those that ours has read
    /// from the device, and in vain.
    Simulate(SimulateArgs),
    /// Draw random programs, and search for those that Outrider slows down most, in simulated time.
    ///
    /// The ratio is Outrider's time over stock's, where a run shorter than 20 ms counts as one of 20 ms. Each line shown can be given to `simulate`.
    Regret(RegretArgs),
    /// Compare two directories of results, regressions first.
    ///
    /// A difference is beyond noise if the ranges of the valid runs do not overlap and the medians differ by more
    /// than 5 %. Exit code 1 if something got slower beyond noise, fails now, or prints something else now.
    Compare {
        /// The directory of results to compare with.
        before: PathBuf,
        /// The directory of results that is compared.
        after: PathBuf,
    },
}

/// `outrider-lab list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only these rows: names, or patterns with `*` and `?`.
    #[arg(value_name = "ROW")]
    pub rows: Vec<String>,
    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// `outrider-lab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Rows: names, or patterns with `*` and `?`; `outrider-lab list` shows them. [default: the short ones]
    #[arg(value_name = "ROW", conflicts_with = "all")]
    pub rows: Vec<String>,
    /// All rows.
    #[arg(long)]
    pub all: bool,
    /// Devices, separated by commas: nvme, sata, remote, objstore, hdd, cloud, gp3, pd-balanced or snapshot, each with words of `disk model` after it
    /// (nvme,jitter=0.1,remote). [default: those of each row]
    #[arg(long, value_name = "LIST")]
    pub device: Option<String>,
    /// Multiply the times of hdd by this.
    #[arg(long, value_name = "FACTOR", default_value_t = 0.1)]
    pub scale: f64,
    /// Columns, separated by commas, or all: stock-128, stock-4M, stock-best, app-only, vmtouch, predict, predict+opt,
    /// fetchall+opt, declared, graph. [default: all but predict and fetchall+opt]
    #[arg(long, value_name = "LIST")]
    pub columns: Option<String>,
    /// Runs of each column.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// One run of each column, and no scan for the best read-ahead unless stock-best is named.
    #[arg(long, conflicts_with = "runs")]
    pub quick: bool,
    /// Fewer runs of long rows, and no new row at the end, so that it all takes about so long; 0 is no limit.
    #[arg(long, value_name = "MINUTES")]
    pub minutes: Option<f64>,
    /// The file system on the disk.
    #[arg(long, value_enum, default_value_t = FileSystem::Ext4)]
    pub fs: FileSystem,
    /// Where results go. [default: bench/results/DATE-MACHINE]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The directory to mount the disk on. [default: a new one in the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// The directory of the build that is measured: outrider, liboutrider.so and outrider-work. [default: this program's]
    #[arg(long, value_name = "DIR")]
    pub build: Option<PathBuf>,
    /// The directory of another build, which is measured in the same series: columns with Outrider a second time, as
    /// COLUMN@against. Drivers and plug-ins are those beside it, or else the measured build's.
    #[arg(long, value_name = "DIR")]
    pub against: Option<PathBuf>,
    /// Go on where an earlier invocation was interrupted: in --out, or else in the newest directory that it left. Rows
    /// that are complete there are not run again.
    #[arg(long)]
    pub resume: bool,
    /// Measure first how well the emulator keeps to its models.
    #[arg(long)]
    pub accuracy: bool,
    /// Write the report in the end, as `outrider-lab report` does.
    #[arg(long)]
    pub report: bool,
    /// The longest that one run may take, s.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    pub timeout: f64,
    /// Discard and repeat a run during which others used more than so many processors.
    #[arg(long, value_name = "PROCESSORS", default_value_t = 0.3)]
    pub max_load: f64,
}
