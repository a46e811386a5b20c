//! A directory shown a second time as a slow network file system: `outrider-lab mount`.
//!
//! Programs meet network file systems as often as disks, and with FUSE such a one behaves as those do that are served by a
//! program: each request is a message, a few at a time, and what is cached goes when a file is opened again, unless the
//! server says that it may stay. Here each request takes a time, so many of them at once, and is counted.
//!
//! A process serves and waits; threads, the lanes, answer ([`lanes`]); another process unmounts in the end ([`attach`]).

mod attach;
mod counts;
mod lanes;
mod tree;

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;

use clap::Args;

use crate::disk;
use crate::output::{Context, Failure, Outcome};
use attach::{By, Guard};
use counts::Counts;
use lanes::{Lanes, Manner};
use tree::Tree;

/// The longest time that a request may take, µs.
const LONGEST_US: u64 = 60_000_000;

fn micros() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(0..=LONGEST_US)
}

/// `outrider-lab mount`.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// The directory that is shown.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The directory to mount it on; it must be there.
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
    /// What each request takes, µs, unless the next four say otherwise.
    #[arg(long, value_name = "US", default_value_t = 2000, value_parser = micros())]
    latency_us: u64,
    /// What opening a file takes, µs.
    #[arg(long, value_name = "US", value_parser = micros())]
    open_us: Option<u64>,
    /// What looking a name up takes, and asking for attributes or for where a link leads, µs.
    #[arg(long, value_name = "US", value_parser = micros())]
    lookup_us: Option<u64>,
    /// What a read takes, µs; the kernel asks for 1 MiB at most at a time.
    #[arg(long, value_name = "US", value_parser = micros())]
    read_us: Option<u64>,
    /// What listing a directory takes, µs, however long it is.
    #[arg(long, value_name = "US", value_parser = micros())]
    list_us: Option<u64>,
    /// Requests at the same time; others wait.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    parallel: u16,
    /// Bandwidth that all reads share, 10⁶ bytes/s; 0 is unlimited.
    #[arg(long, value_name = "MB/S", default_value_t = 0.0, value_parser = bandwidth)]
    bandwidth_mbs: f64,
    /// How long names and attributes are valid, s.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=1 << 20))]
    valid_s: u64,
    /// Requests that nobody waits for, as those of readahead, that may be under way at once.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    background: u16,
    /// What is cached of a file stays when it is opened again. Without, each open(2) drops it.
    #[arg(long, conflicts_with = "direct_io")]
    keep_cache: bool,
    /// Nothing of a file is cached: each read(2) is a request.
    #[arg(long)]
    direct_io: bool,
    /// Listings are cached, too.
    #[arg(long)]
    cache_lists: bool,
    /// Count requests by kind in this file. It always has the counts of all that was answered.
    #[arg(long, value_name = "FILE")]
    count: Option<PathBuf>,
}

fn bandwidth(word: &str) -> Result<f64, String> {
    match word.parse::<f64>() {
        Ok(n) if n == 0.0 || (0.001..=1e6).contains(&n) => Ok(n),
        _ => Err("accepted are numbers from 0.001 to 1000000, and 0 for no limit".to_owned()),
    }
}

impl MountArgs {
    fn manner(&self) -> Manner {
        let ns = |own: Option<u64>| own.unwrap_or(self.latency_us) * 1000;
        Manner {
            open: ns(self.open_us),
            lookup: ns(self.lookup_us),
            read: ns(self.read_us),
            list: ns(self.list_us),
            bandwidth_mbs: self.bandwidth_mbs,
            valid: self.valid_s,
            background: self.background,
            keep_cache: self.keep_cache,
            direct_io: self.direct_io,
            cache_lists: self.cache_lists,
        }
    }
}

/// A directory by its full name.
fn directory(given: &Path, what: &str) -> Outcome<PathBuf> {
    let bad = |why: &dyn std::fmt::Display| {
        Failure::usage(format!(
            "{what} {}: {why}; accepted is a directory that is there",
            given.display()
        ))
    };
    let full = given.canonicalize().map_err(|e| bad(&e))?;
    match full.is_dir() {
        true => Ok(full),
        false => Err(bad(&"not a directory")),
    }
}

/// Each file that somebody has open there is open here, too: as many as may be.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Without it fewer are open at once, and who opens one more is told so.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// How the file system came to its end.
enum End {
    /// By a signal.
    Asked,
    /// Somebody has unmounted it.
    Gone,
    /// It cannot go on.
    Failed(String),
}

/// Mounts, serves, and unmounts.
pub fn mount(args: &MountArgs) -> Outcome {
    let dir = directory(&args.dir, "DIR")?;
    let mountpoint = directory(&args.mountpoint, "MOUNTPOINT")?;
    if mountpoint.starts_with(&dir) {
        return Err(Failure::usage(format!(
            "MOUNTPOINT {} lies in DIR {}; accepted is one outside, for the tree would have no end",
            mountpoint.display(),
            dir.display()
        )));
    }
    if disk::mounted_on(&mountpoint).is_some() {
        return Err(Failure::usage(format!(
            "MOUNTPOINT {}: something is mounted on it already; accepted is another directory",
            mountpoint.display()
        )));
    }
    let by = By::whoever().ok_or_else(|| {
        Failure::usage(
            "an ordinary user needs fusermount3 in PATH to mount (Debian's package fuse3); root does not",
        )
    })?;
    let tree = Tree::new(dir.as_os_str())
        .map_err(|e| Failure::usage(format!("DIR {}: {e}", dir.display())))?;
    let mode = dir.metadata().doing(dir.display())?.mode();
    let count = args.count.as_ref().map(|path| {
        File::create(path).map_err(|e| Failure::usage(format!("--count {}: {e}", path.display())))
    });
    let counts = Counts::new(count.transpose()?).doing("--count")?;

    allow_many_files();
    // Whoever went away, the reader of the output or the guard: an error, not the end.
    // SAFETY: ignoring a signal needs nothing.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let guard = Guard::start(&by, &mountpoint).doing("cannot start a process")?;
    let signals = disk::block_signals();
    let mut number = None;
    let served = by
        .mount(&mountpoint, mode)
        .doing(format!("cannot mount on {}", mountpoint.display()))
        .and_then(|fuse| {
            number = disk::mounted_on(&mountpoint).map(|m| m.dev);
            let lanes = Lanes::new(fuse, tree, args.manner(), counts);
            serve(Arc::new(lanes), args.parallel, &signals, || {
                let mut out = io::stdout().lock();
                let shown = (mountpoint.display(), dir.display());
                let said = writeln!(
                    out,
                    "{}: {}, {} µs, {} parallel",
                    shown.0, shown.1, args.latency_us, args.parallel
                );
                said.and_then(|()| out.flush())
            })
        });
    let unmounted = |guard: Guard| guard.unmount(&by, &mountpoint).doing(mountpoint.display());
    match served {
        Ok(End::Asked) => unmounted(guard),
        Ok(End::Gone) => {
            // The connection may have been aborted instead: then it is mounted still.
            let now = disk::mounted_on(&mountpoint).map(|m| m.dev);
            if now.is_some() && now == number {
                return unmounted(guard);
            }
            guard.dismiss();
            Ok(())
        }
        Ok(End::Failed(why)) => {
            let _ = unmounted(guard);
            Err(Failure::system(why))
        }
        Err(failure) => {
            let _ = unmounted(guard);
            Err(failure)
        }
    }
}

/// Serves with so many lanes until the end; they go on serving while it is unmounted.
fn serve(
    lanes: Arc<Lanes>,
    parallel: u16,
    signals: &libc::sigset_t,
    ready: impl FnOnce() -> io::Result<()>,
) -> Outcome<End> {
    let (tell, hear) = mpsc::channel();
    for _ in 0..parallel {
        let (lanes, tell) = (lanes.clone(), tell.clone());
        let lane = move || {
            let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lanes.serve()));
            let _ = tell.send(match served {
                Ok(Ok(())) => End::Gone,
                Ok(Err(e)) => End::Failed(format!("the file system failed: {e}")),
                Err(_) => End::Failed("the file system failed".to_owned()),
            });
        };
        let thread = thread::Builder::new()
            .name("lane".to_owned())
            .stack_size(256 << 10);
        thread.spawn(lane).doing("cannot start a thread")?;
    }
    let signals = *signals;
    let asked = thread::Builder::new().name("signals".to_owned());
    asked
        .spawn(move || {
            disk::wait_for(&signals);
            let _ = tell.send(End::Asked);
        })
        .doing("cannot start a thread")?;
    ready()?;
    Ok(hear.recv().unwrap_or(End::Gone))
}
