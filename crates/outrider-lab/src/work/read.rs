//! Reads of files in a pattern: the micro-benchmarks.
//!
//! Which blocks are read, and in which order, follows from the arguments alone, so every run prints the same digest.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::declare::{Declare, Range};
use crate::figures::Figures;
use crate::{Result, Wrong};
use outrider_sim::random::{Random, Zipf};

/// `outrider-work read`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The files. With --private, thread i reads file i (modulo their number); with --shared, all threads the first.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The order of blocks.
    #[arg(long, value_enum, default_value = "seq")]
    pattern: Pattern,
    /// Bytes of a read.
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = crate::size::parse)]
    block: u64,
    /// From the start of one block to the next (with --pattern stride).
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = crate::size::parse)]
    stride: u64,
    /// Only so much of each file, from its start. [default: all]
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse)]
    length: Option<u64>,
    /// Threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// All threads read one file through one descriptor, each a part of its own.
    #[arg(long, conflicts_with = "private")]
    shared: bool,
    /// Each thread has a file of its own (the default).
    #[arg(long)]
    private: bool,
    /// Reads of each thread; 0: as many as its part has blocks.
    #[arg(long, value_name = "N", default_value_t = 0)]
    ops: u64,
    /// Of the random patterns.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Through a memory map instead of pread.
    #[arg(long)]
    mmap: bool,
    /// Hints to the kernel: `pattern` says once whether the order is sequential or random (POSIX_FADV_SEQUENTIAL and
    /// _RANDOM, or madvise), `ahead` asks for the blocks of the next 64 reads (POSIX_FADV_WILLNEED).
    #[arg(long, value_enum, value_name = "HOW")]
    hints: Option<Hints>,
    /// Declare all reads to Outrider first.
    #[arg(long, conflicts_with = "hints")]
    declare: bool,
}

/// The order of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Pattern {
    /// One after the other.
    Seq,
    /// From the last to the first.
    Reverse,
    /// Every --stride bytes.
    Stride,
    /// Onward by steps that differ, of --stride bytes on average.
    Skip,
    /// A quarter of the blocks of each --stride bytes, in random order, and these in random order.
    Near,
    /// All in random order, each once.
    Permutation,
    /// Random ones, again and again.
    Uniform,
    /// Random ones, few of them often.
    Zipf,
}

/// Hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Hints {
    /// What the order is.
    Pattern,
    /// What comes next.
    Ahead,
}

/// How many reads ahead `--hints ahead` asks.
const AHEAD: usize = 64;
/// Skew of the Zipf pattern: YCSB's.
const THETA: f64 = 0.99;

/// What one thread reads.
struct Part {
    file: usize,
    /// Offsets in order, bytes.
    offsets: Vec<u64>,
}

/// A file that is read.
struct Source {
    file: File,
    map: Option<Map>,
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    if args.block == 0 || args.stride < args.block {
        return Err(Wrong::usage(
            "--block and --stride: accepted are a block of at least a byte and a stride of at least a block",
        ));
    }
    let declare = args.declare.then(Declare::find).transpose()?;
    let files: Vec<&PathBuf> = match args.shared {
        true => args.files.iter().take(1).collect(),
        false => args.files.iter().take(args.threads as usize).collect(),
    };
    let mut sources = Vec::new();
    for path in files {
        sources.push(open(path, args)?);
    }
    let mut parts = Vec::new();
    for thread in 0..args.threads {
        parts.push(part(args, &sources, thread)?);
    }
    if let Some(declare) = &declare {
        tell(declare, args, &sources, &parts)?;
    }
    let barrier = Barrier::new(parts.len());
    let start = Instant::now();
    let done: Vec<Result<(u64, Figures)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts
            .iter()
            .map(|part| {
                let (source, barrier) = (&sources[part.file], &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    read(args, source, part, declare.as_ref())
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Err(Wrong::system("a thread", "it died")))
            })
            .collect()
    });
    let elapsed: Duration = start.elapsed();
    let (mut digest, mut figures) = (0u64, Figures::default());
    for one in done {
        let (d, f) = one?;
        digest = digest.wrapping_add(d);
        figures.add(f);
    }
    println!("{digest:016x}");
    figures.tell(elapsed, &[]);
    Ok(())
}

fn open(path: &Path, args: &Args) -> Result<Source> {
    let file = File::open(path).map_err(|e| Wrong::system(path.display(), e))?;
    let map = match args.mmap {
        true => Some(Map::new(&file).map_err(|e| Wrong::system(path.display(), e))?),
        false => None,
    };
    if args.hints == Some(Hints::Pattern) {
        let sequential = args.pattern == Pattern::Seq;
        match &map {
            Some(map) => map.advise(if sequential {
                libc::MADV_SEQUENTIAL
            } else {
                libc::MADV_RANDOM
            }),
            None => {
                let advice = if sequential {
                    libc::POSIX_FADV_SEQUENTIAL
                } else {
                    libc::POSIX_FADV_RANDOM
                };
                // SAFETY: a call with numbers.
                unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) };
            }
        }
    }
    Ok(Source { file, map })
}

/// What thread `thread` reads.
fn part(args: &Args, sources: &[Source], thread: u64) -> Result<Part> {
    let file = if args.shared {
        0
    } else {
        thread as usize % sources.len()
    };
    let size = sources[file]
        .file
        .metadata()
        .map_err(|e| Wrong::system("fstat", e))?
        .len();
    let size = size.min(args.length.unwrap_or(size));
    let step = if args.pattern == Pattern::Stride {
        args.stride
    } else {
        args.block
    };
    let all = size / step;
    let (first, count) = match args.shared {
        true => (thread * (all / args.threads), all / args.threads),
        false => (0, all),
    };
    if count == 0 {
        return Err(Wrong::usage(format!(
            "{}: of {size} bytes, too small for {} threads with blocks of {}",
            args.files[file].display(),
            args.threads,
            args.block
        )));
    }
    let ops = if args.ops == 0 { count } else { args.ops };
    let mut random = Random::new(args.seed.wrapping_add(thread));
    let blocks: Vec<u64> = match args.pattern {
        Pattern::Seq | Pattern::Stride => (0..ops).map(|i| i % count).collect(),
        Pattern::Reverse => (0..ops).map(|i| count - 1 - i % count).collect(),
        Pattern::Skip => {
            let rare = (args.stride / args.block).max(1);
            let chosen = (0..count).filter(|_| random.below(rare) == 0);
            chosen.take(ops as usize).collect()
        }
        Pattern::Near => {
            let each = (args.stride / args.block).clamp(4, count.max(4));
            let mut chosen = Vec::new();
            for group in random.permutation(count / each) {
                let order = random.permutation(each);
                let some = order.into_iter().take(each as usize / 4);
                chosen.extend(some.map(|k| group * each + k));
            }
            chosen.truncate(ops as usize);
            chosen
        }
        Pattern::Permutation => {
            let order = random.permutation(count);
            (0..ops).map(|i| order[(i % count) as usize]).collect()
        }
        Pattern::Uniform => (0..ops).map(|_| random.below(count)).collect(),
        Pattern::Zipf => {
            let zipf = Zipf::new(count, THETA);
            // Popular blocks lie anywhere in the file.
            let place = random.permutation(count);
            (0..ops)
                .map(|_| place[zipf.pick(&mut random) as usize])
                .collect()
        }
    };
    Ok(Part {
        file,
        offsets: blocks.iter().map(|b| (first + b) * step).collect(),
    })
}

/// Declares all reads of each file: of several threads' reads of one file, in turns.
fn tell(declare: &Declare, args: &Args, sources: &[Source], parts: &[Part]) -> Result {
    for (i, source) in sources.iter().enumerate() {
        let lists: Vec<&Vec<u64>> = parts
            .iter()
            .filter(|p| p.file == i)
            .map(|p| &p.offsets)
            .collect();
        let longest = lists.iter().map(|l| l.len()).max().unwrap_or(0);
        let turns = (0..longest).flat_map(|at| lists.iter().filter_map(move |l| l.get(at)));
        let ranges: Vec<Range> = turns
            .map(|&offset| Range {
                offset,
                length: args.block,
            })
            .collect();
        declare.ranges(source.file.as_raw_fd(), &ranges)?;
    }
    Ok(())
}

/// Reads a thread's part: the sum of the blocks' digests, which says nothing of their order.
fn read(
    args: &Args,
    source: &Source,
    part: &Part,
    declare: Option<&Declare>,
) -> Result<(u64, Figures)> {
    let block = args.block as usize;
    let mut figures = Figures::with_room(part.offsets.len());
    let mut buffer = vec![0u8; block];
    let mut digest = 0u64;
    let fd = source.file.as_raw_fd();
    for (i, &offset) in part.offsets.iter().enumerate() {
        if args.hints == Some(Hints::Ahead) {
            let from = if i == 0 { 0 } else { i + AHEAD - 1 };
            for &next in part.offsets.iter().take(i + AHEAD).skip(from) {
                // SAFETY: a call with numbers.
                unsafe {
                    libc::posix_fadvise(fd, next as i64, block as i64, libc::POSIX_FADV_WILLNEED)
                };
            }
        }
        let since = Instant::now();
        match &source.map {
            Some(map) => {
                // A map's reads are not seen, so they are told.
                if let Some(declare) = declare {
                    declare.reading(fd, offset, args.block);
                }
                map.copy(offset as usize, &mut buffer);
            }
            None => source
                .file
                .read_exact_at(&mut buffer, offset)
                .map_err(|e| Wrong::system(args.files[part.file].display(), e))?,
        }
        figures.done(since, args.block);
        digest = digest.wrapping_add(xxh3_64_with_seed(&buffer, offset));
    }
    Ok((digest, figures))
}

/// A file in memory.
struct Map {
    at: *mut libc::c_void,
    len: usize,
}

// SAFETY: the memory is only read, and lives as long as the value.
unsafe impl Sync for Map {}
// SAFETY: the same.
unsafe impl Send for Map {}

impl Map {
    fn new(file: &File) -> std::io::Result<Self> {
        let len = file.metadata()?.len() as usize;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { at, len })
    }

    fn advise(&self, advice: i32) {
        // SAFETY: advice on the mapping, which changes nothing in it.
        unsafe { libc::madvise(self.at, self.len, advice) };
    }

    /// Copies bytes from `offset` on, which must lie in the file.
    fn copy(&self, offset: usize, to: &mut [u8]) {
        assert!(offset + to.len() <= self.len);
        // SAFETY: within the mapping; the file is not made shorter while a row runs.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.at.cast::<u8>().add(offset),
                to.as_mut_ptr(),
                to.len(),
            )
        };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
