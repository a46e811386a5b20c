//! Filebench's personalities of CrossPrefetch's Figure 8b, with its request sizes: `seqread` (singlestreamread.f: a large
//! file in order, 1 MiB at a time), `randread` (randomread.f: 8 KiB anywhere in a large file), `mongodb` (mongo.f: append to one of
//! many small files, then read another whole; each append is synchronised) and `videoserver` (videoserver.f: streams of
//! whole videos, 1 MiB at a time, while new videos are written).
//!
//! Several instances are several processes, each with a directory of its own. What an operation does is a function of
//! the seed and its number, and a file belongs to one thread where it is written to, so the digest depends on neither
//! speed nor interleaving.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::figures::Figures;
use crate::{Result, Wrong};
use outrider_sim::random::Random;

/// Bytes of a read of a large file: Filebench's `$iosize` in singlestreamread.f, `$readiosize` in videoserver.f.
const STREAM: usize = 1 << 20;
/// Bytes of a random read: `$iosize` in randomread.f.
const RANDOM: usize = 8 << 10;
/// Bytes of an append: `$meanappendsize` in mongo.f.
const APPEND: usize = 16 << 10;

/// `outrider-work filebench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    personality: Personality,
}

#[derive(Debug, clap::Subcommand)]
enum Personality {
    /// Write the files of an instance.
    Make {
        /// The directory; made if it isn't there.
        dir: PathBuf,
        #[command(flatten)]
        set: Set,
        /// Other seeds make other bytes.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Bring the files back to what `make` wrote, after `mongodb` or `videoserver`.
    Reset {
        /// Directories of the instances.
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// Bytes of a file.
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        size: u64,
    },
    /// Read every file in order.
    Seqread {
        /// The directory.
        dir: PathBuf,
    },
    /// Read anywhere in any file.
    Randread {
        /// The directory.
        dir: PathBuf,
        #[command(flatten)]
        operations: Operations,
    },
    /// Append to a file and synchronise it, then read a file whole.
    Mongodb {
        /// The directory.
        dir: PathBuf,
        #[command(flatten)]
        operations: Operations,
    },
    /// Read whole videos in several streams, and write new ones beside.
    Videoserver {
        /// The directory.
        dir: PathBuf,
        #[command(flatten)]
        operations: Operations,
        /// Streams.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
        threads: u64,
        /// New videos, of the size of the first one there.
        #[arg(long, default_value_t = 1)]
        writes: u64,
    },
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Files.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=999_999))]
    files: u64,
    /// Bytes of each.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    size: u64,
}

#[derive(Debug, clap::Args)]
struct Operations {
    /// How many.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    ops: u64,
    /// Other seeds choose otherwise.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    match &args.personality {
        Personality::Make { dir, set, seed } => make(dir, set, *seed),
        Personality::Reset { dirs, size } => dirs.iter().try_for_each(|dir| reset(dir, *size)),
        Personality::Seqread { dir } => measured(|work| seqread(dir, work)),
        Personality::Randread { dir, operations } => {
            measured(|work| randread(dir, operations, work))
        }
        Personality::Mongodb { dir, operations } => measured(|work| mongodb(dir, operations, work)),
        Personality::Videoserver {
            dir,
            operations,
            threads,
            writes,
        } => measured(|work| videoserver(dir, operations, *threads, *writes, work)),
    }
}

/// What a thread has read and how long it took.
#[derive(Default)]
struct Work {
    figures: Figures,
    digest: u64,
}

impl Work {
    /// Bytes that operation `n` read.
    fn read(&mut self, n: u64, bytes: &[u8]) {
        self.digest = self.digest.wrapping_add(xxh3_64_with_seed(bytes, n));
    }

    fn add(&mut self, other: Self) {
        self.figures.add(other.figures);
        self.digest = self.digest.wrapping_add(other.digest);
    }
}

/// Runs a personality and tells digest and figures.
fn measured(body: impl FnOnce(&mut Work) -> Result) -> Result {
    let mut work = Work::default();
    let since = Instant::now();
    body(&mut work)?;
    let took = since.elapsed();
    println!("{:016x}", work.digest);
    work.figures.tell(took, &[]);
    Ok(())
}

fn at<T>(path: &Path, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|e| Wrong::system(path.display(), e))
}

/// The files that `make` wrote, in order, without new videos.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in at(dir, fs::read_dir(dir))? {
        let entry = at(dir, entry)?;
        if entry.file_name().as_encoded_bytes().starts_with(b"file-") {
            files.push(entry.path());
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Wrong::system(
            dir.display(),
            "no files of `filebench make` are there",
        ));
    }
    Ok(files)
}

/// Writes a file of `size` bytes of noise.
fn write_file(path: &Path, size: u64, mut noise: Random) -> Result {
    let mut file = at(path, File::create(path))?;
    let mut buffer = vec![0; STREAM];
    for start in (0..size).step_by(STREAM) {
        let part = &mut buffer[..(size - start).min(STREAM as u64) as usize];
        noise.fill(part);
        at(path, file.write_all(part))?;
    }
    Ok(())
}

fn make(dir: &Path, set: &Set, seed: u64) -> Result {
    at(dir, fs::create_dir_all(dir))?;
    for n in 0..set.files {
        write_file(
            &dir.join(format!("file-{n:06}")),
            set.size,
            Random::part(seed, n),
        )?;
    }
    Ok(())
}

/// Appends only grow the files, and new videos have names of their own.
fn reset(dir: &Path, size: u64) -> Result {
    for path in files(dir)? {
        let file = at(&path, OpenOptions::new().write(true).open(&path))?;
        if at(&path, file.metadata())?.len() != size {
            at(&path, file.set_len(size))?;
        }
    }
    for entry in at(dir, fs::read_dir(dir))? {
        let entry = at(dir, entry)?;
        if entry.file_name().as_encoded_bytes().starts_with(b"new-") {
            at(dir, fs::remove_file(entry.path()))?;
        }
    }
    Ok(())
}

/// Reads a file to its end in pieces, an operation each; `n` names the first.
fn stream(path: &Path, n: u64, buffer: &mut [u8], work: &mut Work) -> Result {
    let mut file = at(path, File::open(path))?;
    for piece in 0.. {
        let since = Instant::now();
        let got = at(path, file.read(buffer))?;
        if got == 0 {
            break;
        }
        work.read(n << 32 | piece, &buffer[..got]);
        work.figures.done(since, got as u64);
    }
    Ok(())
}

fn seqread(dir: &Path, work: &mut Work) -> Result {
    let mut buffer = vec![0; STREAM];
    for (n, path) in files(dir)?.iter().enumerate() {
        stream(path, n as u64, &mut buffer, work)?;
    }
    Ok(())
}

fn randread(dir: &Path, operations: &Operations, work: &mut Work) -> Result {
    let mut open = Vec::new();
    for path in files(dir)? {
        let file = at(&path, File::open(&path))?;
        let places = at(&path, file.metadata())?.len() / RANDOM as u64;
        if places == 0 {
            return Err(Wrong::system(
                path.display(),
                "it is smaller than a request",
            ));
        }
        open.push((path, file, places));
    }
    let mut buffer = vec![0; RANDOM];
    for n in 0..operations.ops {
        let mut random = Random::part(operations.seed, n);
        let (path, file, places) = &open[random.below(open.len() as u64) as usize];
        let place = random.below(*places);
        let since = Instant::now();
        at(path, file.read_exact_at(&mut buffer, place * RANDOM as u64))?;
        work.read(n, &buffer);
        work.figures.done(since, RANDOM as u64);
    }
    Ok(())
}

fn mongodb(dir: &Path, operations: &Operations, work: &mut Work) -> Result {
    let files = files(dir)?;
    let mut buffer = vec![0; APPEND];
    let mut whole = Vec::new();
    for n in 0..operations.ops {
        let since = Instant::now();
        let mut random = Random::part(operations.seed, n);
        let mut any = || &files[random.below(files.len() as u64) as usize];
        let (appended, read) = (any(), any());
        random.fill(&mut buffer);
        let mut file = at(appended, OpenOptions::new().append(true).open(appended))?;
        at(appended, file.write_all(&buffer))?;
        at(appended, file.sync_data())?;
        drop(file);
        whole.clear();
        at(
            read,
            File::open(read).and_then(|mut f| f.read_to_end(&mut whole)),
        )?;
        work.read(n, &whole);
        work.figures.done(since, (whole.len() + APPEND) as u64);
    }
    Ok(())
}

fn videoserver(
    dir: &Path,
    operations: &Operations,
    threads: u64,
    writes: u64,
    work: &mut Work,
) -> Result {
    let files = &files(dir)?;
    let size = at(&files[0], fs::metadata(&files[0]))?.len();
    let reader = |t: u64| {
        let mut work = Work::default();
        let mut buffer = vec![0; STREAM];
        for n in (t..operations.ops).step_by(threads as usize) {
            let video = &files[Random::part(operations.seed, n).below(files.len() as u64) as usize];
            stream(video, n, &mut buffer, &mut work)?;
        }
        Ok(work)
    };
    let writer = || {
        for n in 0..writes {
            write_file(
                &dir.join(format!("new-{n:06}")),
                size,
                Random::part(!operations.seed, n),
            )?;
        }
        Ok(Work::default())
    };
    thread::scope(|scope| {
        let mut running: Vec<_> = (0..threads)
            .map(|t| scope.spawn(move || reader(t)))
            .collect();
        running.push(scope.spawn(writer));
        for one in running {
            work.add(one.join().expect("a reader does not panic")?);
        }
        Ok(())
    })
}
