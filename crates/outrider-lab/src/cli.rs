//! The command line: subcommands, their flags and how mistakes in them are told.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::mount::MountArgs;
use crate::regret::RegretArgs;
use crate::simulate::SimulateArgs;
use crate::size;

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

/// `outrider-lab disk`.
#[derive(Debug, Args)]
pub struct DiskArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DiskCommand,
}

/// The subcommands of `disk`.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Make a disk and mount it.
    ///
    /// MODEL is nvme (80 µs, 32 parallel, 1.4 GB/s), sata (150 µs, 8, 0.5 GB/s), remote (500 µs, 64, 1 GB/s),
    /// objstore (15 ms, 64, 0.5 GB/s), hdd (one head, 5-10 ms a seek, 100 MB/s), gp3 (800 µs, 64, 3,000
    /// requests/s, 125 MiB/s), pd-balanced (700 µs, 64, 3,600 requests/s, 168 MiB/s), cloud (as gp3, with a
    /// second's worth saved up), snapshot (as gp3, 15 ms at the first touch of each 512 KiB) or off (no delay),
    /// with key=value words after it, separated by commas: `hdd,schedule=fifo`. The words are those of
    /// `disk model`.
    Up(UpArgs),
    /// Change the model of a running disk.
    ///
    /// Words are a model's name or key=value: scale (all times), latency_us, parallel, bandwidth_mbs
    /// (10⁶ bytes/s), lane_mbs (of one of the parallel lanes), iops (requests let in per second, 0 for no limit),
    /// iops_burst (let in at once after a pause), iops_kb (KiB that count as one request), rate_mbs and
    /// rate_burst_mb (the same of 10⁶ bytes), first_us and first_kb (the first touch of a block, and its KiB), jitter (fraction), tail_p and tail_x
    /// (probability of a slow request and how many times slower), schedule=fifo|clook, queue (requests that
    /// a head chooses from), stroke (bytes of a head's full travel), write_cache=0|1, early_us (what the
    /// path costs by itself), eio=START-END, eio_read=…, eio_write=… (bytes of the disk that fail), and
    /// stall=SECONDS (nothing is answered for so long from now). eio_read=none, eio_write=none and stall=none take back
    /// what of that was said, eio=none both kinds of failure.
    Model {
        /// The directory that the disk is mounted on.
        dir: PathBuf,
        /// A model's name or key=value.
        #[arg(required = true)]
        words: Vec<String>,
    },
    /// Show the model and what the disk has done.
    Stats {
        /// The directory that the disk is mounted on.
        dir: PathBuf,
        /// As JSON.
        #[arg(long)]
        json: bool,
        /// Count from zero afterwards.
        #[arg(long)]
        reset: bool,
    },
    /// Record the requests that reach the disk.
    ///
    /// `start FILE` begins; `stop` writes a line per request to FILE, in order of arrival: when it came and
    /// when it was answered (µs since the start), R or W, offset and length (bytes).
    Trace {
        /// The directory that the disk is mounted on.
        dir: PathBuf,
        /// Begin or end.
        what: TraceWhat,
        /// The file (with start).
        file: Option<PathBuf>,
    },
    /// Drop what the kernel has cached of the disk, by remounting it at full speed; counts from zero.
    Cold {
        /// The directory that the disk is mounted on.
        dir: PathBuf,
    },
    /// Unmount the disk and remove it, whatever state it is in.
    Down {
        /// The directory that the disk is mounted on.
        dir: PathBuf,
        /// Keep the image's file (see `up --image`); one that was there before `up` is always kept.
        #[arg(long)]
        keep: bool,
        /// Even while programs use it: they keep what they have open, and the disk goes with the last.
        #[arg(long)]
        lazy: bool,
    },
    /// List the disks.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// The server process.
    #[command(hide = true)]
    Serve {
        /// The disk.
        key: String,
        /// Bytes.
        size: u64,
        /// The image's file.
        image: Option<PathBuf>,
    },
    /// Unmounts for the server.
    #[command(hide = true)]
    Release {
        /// The disk.
        key: String,
    },
}

/// `outrider-lab disk up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// The model.
    pub model: String,
    /// The disk's size: bytes, or with K, M, G or T (binary). It takes memory only where it was written.
    /// [default: the image's, or 8G]
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// The directory to mount it on; made if it isn't there.
    #[arg(long, value_name = "DIR")]
    pub mount: PathBuf,
    /// The file system.
    #[arg(long, value_enum, default_value_t = FileSystem::Ext4)]
    pub fs: FileSystem,
    /// The kernel's read-ahead on the device, KiB.
    #[arg(long, value_name = "KB", default_value_t = 128)]
    pub readahead_kb: u32,
    /// Multiply all times of the model by this.
    #[arg(long)]
    pub scale: Option<f64>,
    /// Keep the disk's bytes in this file, best in a tmpfs, instead of in memory. A file with a file
    /// system on it is mounted as it is.
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
}

/// File systems that a disk may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileSystem {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
    /// None: a bare block device.
    None,
}

impl FileSystem {
    /// Its name as the kernel knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::None => "none",
        }
    }
}

/// Begin or end a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TraceWhat {
    /// Begin to record.
    Start,
    /// Write what was recorded.
    Stop,
}
