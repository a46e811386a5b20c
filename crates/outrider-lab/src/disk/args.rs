//! The flags of `outrider-lab disk`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::size;

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
