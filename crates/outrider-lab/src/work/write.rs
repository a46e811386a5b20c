//! Writers: neighbours of readers, and makers of data.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::{Result, Wrong};
use outrider_sim::random::Random;

/// `outrider-work make`.
#[derive(Debug, clap::Args)]
pub struct MakeArgs {
    /// The file; it must not exist.
    file: PathBuf,
    /// Its size.
    #[arg(long, value_parser = crate::size::parse)]
    size: u64,
    /// Of its bytes, which don't compress.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// `outrider-work write`.
#[derive(Debug, clap::Args)]
pub struct WriteArgs {
    /// The file, which keeps its size.
    file: PathBuf,
    /// Threads.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    threads: u64,
    /// Bytes of a write.
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = crate::size::parse)]
    block: u64,
    /// Where the part of the file begins that is written to.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = crate::size::parse)]
    start: u64,
    /// Writes of each thread per second, at most; 0: as many as it can.
    #[arg(long, value_name = "N", default_value_t = 0)]
    per_second: u64,
    /// Of the random places.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Makes a file of bytes that don't compress.
pub fn make(args: &MakeArgs) -> Result {
    let wrong = |e| Wrong::system(args.file.display(), e);
    let mut file = File::create_new(&args.file).map_err(wrong)?;
    let mut random = Random::new(args.seed);
    let mut left = args.size;
    let mut piece = vec![0u8; 1 << 20];
    while left > 0 {
        for word in piece.chunks_exact_mut(8) {
            word.copy_from_slice(&random.draw().to_le_bytes());
        }
        let n = left.min(piece.len() as u64) as usize;
        file.write_all(&piece[..n]).map_err(wrong)?;
        left -= n as u64;
    }
    Ok(())
}

/// Overwrites random blocks of a file, each thread in its own part, until it is killed.
pub fn write(args: &WriteArgs) -> Result {
    let wrong = |e| Wrong::system(args.file.display(), e);
    let file = OpenOptions::new()
        .write(true)
        .open(&args.file)
        .map_err(wrong)?;
    let size = file
        .metadata()
        .map_err(wrong)?
        .len()
        .saturating_sub(args.start);
    let blocks = size / args.block.max(1) / args.threads;
    if args.block == 0 || blocks == 0 {
        return Err(Wrong::usage(format!(
            "{}: of {size} bytes, too small for {} threads with blocks of {}",
            args.file.display(),
            args.threads,
            args.block
        )));
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads)
            .map(|thread| {
                let file = &file;
                scope.spawn(move || -> Result {
                    let mut random = Random::new(args.seed.wrapping_add(thread));
                    let mut bytes = vec![0u8; args.block as usize];
                    let since = Instant::now();
                    for count in 1.. {
                        let tag = random.draw().to_le_bytes();
                        let len = tag.len().min(bytes.len());
                        bytes[..len].copy_from_slice(&tag[..len]);
                        let at = args.start + (thread * blocks + random.below(blocks)) * args.block;
                        file.write_all_at(&bytes, at).map_err(wrong)?;
                        if args.per_second > 0 {
                            let due =
                                Duration::from_secs_f64(f64::from(count) / args.per_second as f64);
                            std::thread::sleep(due.saturating_sub(since.elapsed()));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|t| {
            t.join()
                .unwrap_or_else(|_| Err(Wrong::system("a thread", "it died")))
        })
    })
}
