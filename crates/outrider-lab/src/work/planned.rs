//! Reads in an order that is known beforehand: libprefetch, sections 3.2, 3.3 and 5.2.
//!
//! The program uses blocks in one order and may read them in another: as many as its reorder buffer holds are read by
//! ascending offset, with gaps read through if they are small, and then used in the order of the plan. So the digest
//! depends on the plan only.

use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use xxhash_rust::xxh3::Xxh3;

use crate::declare::{self, Declare, List, Range};
use crate::direct::{self, ALIGN, Aligned};
use crate::figures::Figures;
use crate::{Result, Wrong, size};
use outrider_sim::random::Random;

/// A request that reads through gaps is at most this long (bytes).
const LONGEST: u64 = 1 << 20;

/// `outrider-work planned`.
///
/// Uses blocks of a file in an order that it knows.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file.
    file: PathBuf,
    /// In which order.
    #[arg(long, value_enum, default_value_t = Order::Random)]
    order: Order,
    /// Bytes of a block.
    #[arg(long, value_parser = size::parse, default_value = "4K")]
    block: u64,
    /// How many are used, as a multiple of how many the file has.
    #[arg(long, default_value_t = 1.0)]
    coverage: f64,
    /// Reorder buffer, bytes: so many are read by offset before they are used. 0: none is.
    #[arg(long, value_parser = size::parse, default_value = "0")]
    buffer: u64,
    /// Gaps of up to so many bytes between two reads of the buffer are read through.
    #[arg(long, value_parser = size::parse, default_value = "0")]
    infill: u64,
    /// Around the cache.
    #[arg(long)]
    direct: bool,
    /// Advise the kernel 64 reads ahead (posix_fadvise).
    #[arg(long, conflicts_with_all = ["direct", "buffer"])]
    hint: bool,
    /// Declare the plan to Outrider.
    #[arg(long, conflicts_with_all = ["direct", "buffer"])]
    declare: bool,
    /// Of the order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// In which order blocks are used.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Order {
    /// From the first to the last.
    Sequential,
    /// Evenly distributed; some more than once, some never.
    Random,
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    if args.block == 0 || (args.direct && !args.block.is_multiple_of(ALIGN as u64)) {
        return Err(Wrong::usage(format!(
            "--block {}: must be positive, and a multiple of {ALIGN} with --direct",
            args.block
        )));
    }
    if !(args.coverage > 0.0 && args.coverage <= 1000.0) {
        return Err(Wrong::usage("--coverage must be above 0 and at most 1000"));
    }
    let file = direct::open(&args.file, args.direct)?;
    let size = file
        .metadata()
        .map_err(|e| Wrong::system(args.file.display(), e))?
        .len();
    let blocks = size / args.block;
    if blocks == 0 {
        return Err(Wrong::usage(format!(
            "{}: shorter than a block of {} bytes",
            args.file.display(),
            args.block
        )));
    }
    let plan = plan(args, blocks);
    let begun = Instant::now();
    let mut figures = Figures::with_room(plan.len());
    let mut digest = Xxh3::new();
    let mut told = 0;
    if args.buffer == 0 {
        told = as_planned(args, &file, &plan, &mut figures, &mut digest)?;
    } else {
        let round = (args.buffer / args.block).max(1) as usize;
        for part in plan.chunks(round) {
            reordered(args, &file, part, &mut figures, &mut digest)?;
        }
    }
    println!("{} reads {:016x}", plan.len(), digest.digest());
    figures.tell(begun.elapsed(), &[("declared", told as f64)]);
    Ok(())
}

/// The blocks that are used, in order.
fn plan(args: &Args, blocks: u64) -> Vec<u64> {
    let wanted = ((blocks as f64 * args.coverage).round() as usize).max(1);
    let mut random = Random::new(args.seed);
    match args.order {
        Order::Sequential => (0..blocks).cycle().take(wanted).collect(),
        Order::Random => (0..wanted).map(|_| random.below(blocks)).collect(),
    }
}

/// Reads in the plan's own order; how many reads were declared.
fn as_planned(
    args: &Args,
    file: &File,
    plan: &[u64],
    figures: &mut Figures,
    digest: &mut Xxh3,
) -> Result<usize> {
    let range = |block: &u64| Range {
        offset: block * args.block,
        length: args.block,
    };
    let call = args.declare.then(Declare::find).transpose()?;
    let mut list = List::new(call, file, || plan.iter().map(range).collect())?;
    let mut buffer = Aligned::new(args.block as usize);
    if args.hint {
        for block in plan.iter().take(declare::AHEAD) {
            declare::hint(file, range(block));
        }
    }
    for (n, block) in plan.iter().enumerate() {
        list.read(n)?;
        if args.hint
            && let Some(later) = plan.get(n + declare::AHEAD)
        {
            declare::hint(file, range(later));
        }
        let since = Instant::now();
        direct::read(file, &args.file, buffer.bytes(), block * args.block)?;
        figures.done(since, args.block);
        digest.update(buffer.bytes());
    }
    Ok(list.told())
}

/// Reads `part` by ascending offset, then uses it in its own order.
fn reordered(
    args: &Args,
    file: &File,
    part: &[u64],
    figures: &mut Figures,
    digest: &mut Xxh3,
) -> Result {
    let mut sorted = part.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let block = args.block as usize;
    let mut kept = vec![0; sorted.len() * block];
    let mut buffer = Aligned::new(LONGEST.max(args.block) as usize);
    // Where in `sorted` the request begins, and its blocks.
    let mut first = 0;
    while first < sorted.len() {
        let mut last = first;
        while last + 1 < sorted.len() {
            let gap = (sorted[last + 1] - sorted[last] - 1) * args.block;
            let length = (sorted[last + 1] + 1 - sorted[first]) * args.block;
            // A gap beyond a request's length is read by requests of its own.
            if gap > args.infill || length > LONGEST.max(args.block) {
                break;
            }
            last += 1;
        }
        let length = ((sorted[last] + 1 - sorted[first]) * args.block) as usize;
        let since = Instant::now();
        let bytes = &mut buffer.bytes()[..length];
        direct::read(file, &args.file, bytes, sorted[first] * args.block)?;
        figures.done(since, length as u64);
        for n in first..=last {
            let from = (sorted[n] - sorted[first]) as usize * block;
            kept[n * block..][..block].copy_from_slice(&bytes[from..from + block]);
        }
        // What lies between two requests is read too if infill says so.
        if let Some(&next) = sorted.get(last + 1) {
            let gap = sorted[last] + 1..next;
            if (gap.end - gap.start) * args.block <= args.infill {
                through(args, file, gap, &mut buffer, figures)?;
            }
        }
        first = last + 1;
    }
    for wanted in part {
        let n = sorted.binary_search(wanted).expect("each was sorted in");
        digest.update(&kept[n * block..][..block]);
    }
    Ok(())
}

/// Reads a gap that nobody uses.
fn through(
    args: &Args,
    file: &File,
    gap: std::ops::Range<u64>,
    buffer: &mut Aligned,
    figures: &mut Figures,
) -> Result {
    let mut at = gap.start * args.block;
    let end = gap.end * args.block;
    while at < end {
        let length = (end - at).min(LONGEST);
        let since = Instant::now();
        direct::read(file, &args.file, &mut buffer.bytes()[..length as usize], at)?;
        figures.done(since, length);
        at += length;
    }
    Ok(())
}
