//! What a seek costs: libprefetch, section 3.1 and Figure 1.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use crate::direct::{self, Aligned};
use crate::figures::Figures;
use crate::{Result, Wrong};

/// A read's bytes: the paper's block.
const BLOCK: u64 = 4096;
/// Bytes of a request when throughput is measured.
const LARGE: u64 = 1 << 20;

/// `outrider-work seek-curve`.
///
/// Reads blocks of 4 KiB at growing distances, forward and backward, around the cache. Figures: `forward_N_us` and
/// `backward_N_us`, the mean time of a read N bytes away from the last one's end, and `read_mb_per_s`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file that lies in one piece, or a device.
    file: PathBuf,
    /// Timed reads for each distance and direction.
    #[arg(long, default_value_t = 16)]
    reads: u64,
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    let file = direct::open(&args.file, true)?;
    // A device has no length in its metadata.
    let size = {
        use std::io::Seek;
        (&file)
            .seek(std::io::SeekFrom::End(0))
            .map_err(|e| Wrong::system(args.file.display(), e))?
    };
    let blocks = size / BLOCK;
    if blocks < 4 || args.reads == 0 {
        return Err(Wrong::usage(format!(
            "{}: at least 16 KiB and --reads 1 are needed",
            args.file.display()
        )));
    }
    let mut buffer = Aligned::new(LARGE as usize);
    let mut all = Figures::with_room(0);
    let mut digest = Xxh3::new();
    let mut means = BTreeMap::new();
    let begun = Instant::now();
    // Distances in blocks: none, then powers of two up to half of the file.
    let distances = std::iter::once(0).chain((0..).map(|k| 1 << k).take_while(|d| d * 2 < blocks));
    for distance in distances {
        let step = distance + 1;
        // Reads that fit into one walk over the file after the one that brings the head to its beginning.
        let in_walk = (blocks / step).saturating_sub(1).clamp(1, args.reads);
        for (direction, backward) in [("forward", false), ("backward", true)] {
            let mut took = 0.0;
            let mut done = 0;
            let mut walk = 0;
            while done < args.reads {
                // Each walk begins elsewhere, lest a drive's own cache answer.
                let shift = (walk * 17) % (blocks - step * in_walk);
                for n in 0..=in_walk {
                    let forward = shift + n * step;
                    let block = if backward {
                        blocks - 1 - forward
                    } else {
                        forward
                    };
                    let bytes = &mut buffer.bytes()[..BLOCK as usize];
                    let since = Instant::now();
                    direct::read(&file, &args.file, bytes, block * BLOCK)?;
                    if n > 0 {
                        took += since.elapsed().as_secs_f64();
                        all.done(since, BLOCK);
                        done += 1;
                    }
                    digest.update(bytes);
                    if done == args.reads {
                        break;
                    }
                }
                walk += 1;
            }
            means.insert(
                format!("{direction}_{}_us", distance * BLOCK),
                took * 1e6 / args.reads as f64,
            );
        }
    }
    let large = (size / LARGE).min(32);
    let since = Instant::now();
    for n in 0..large {
        direct::read(&file, &args.file, buffer.bytes(), n * LARGE)?;
        digest.update(buffer.bytes());
    }
    if large > 0 {
        let mb_per_s = (large * LARGE) as f64 / 1e6 / since.elapsed().as_secs_f64();
        means.insert("read_mb_per_s".to_owned(), mb_per_s);
    }
    println!("{:016x}", digest.digest());
    let more: Vec<_> = means.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    all.tell(begun.elapsed(), &more);
    Ok(())
}
