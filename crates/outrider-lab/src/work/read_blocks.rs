//! Reads blocks of a file around the cache, in an order that is known beforehand: Foreactor, section 2.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use outrider_graph::{Graph, Next, Op};
use xxhash_rust::xxh3::Xxh3;

use crate::direct::{self, Aligned};
use crate::figures::Figures;
use crate::graph::Flag;
use crate::{Result, Wrong};
use outrider_sim::random::Random;

/// Bytes of a block.
const BLOCK: usize = direct::ALIGN;

/// `outrider-work read-blocks`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file, of at least one block of 4 KiB.
    file: PathBuf,
    /// How many blocks.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    count: u64,
    /// Of their places.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    graph: Flag,
    /// Have all of them read by an io_uring, as one would write it by hand.
    #[arg(long, conflicts_with = "graph")]
    uring: bool,
}

/// What will be read.
struct Plan {
    fd: i32,
    /// Bytes.
    offsets: Vec<u64>,
}

fn graph() -> Graph<Plan> {
    Graph::generator("read-blocks", |plan: &Plan, i| {
        match plan.offsets.get(i as usize) {
            Some(offset) => Next::Call(Op::Pread {
                fd: plan.fd,
                len: BLOCK,
                offset: *offset as i64,
            }),
            None => Next::End,
        }
    })
    .pure()
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    let begun = Instant::now();
    let file = direct::open(&args.file, true)?;
    let blocks = direct::size(&file, &args.file)? / BLOCK as u64;
    if blocks == 0 {
        return Err(Wrong::usage(format!(
            "{}: shorter than a block of {BLOCK} bytes",
            args.file.display()
        )));
    }
    let mut random = Random::new(args.seed);
    let plan = Plan {
        fd: file.as_raw_fd(),
        offsets: (0..args.count)
            .map(|_| random.draw() % blocks * BLOCK as u64)
            .collect(),
    };
    if args.uring {
        return by_hand(args, &plan, begun);
    }
    let graph = args.graph.of(graph);
    let mut scope = graph.as_ref().map(|g| g.enter(&plan));
    let mut memory = Aligned::new(BLOCK);
    let mut digest = Xxh3::new();
    let mut figures = Figures::default();
    for &offset in &plan.offsets {
        let since = Instant::now();
        let block =
            match &mut scope {
                Some(scope) => Some(scope.pread_block(&file, BLOCK, offset as i64).map_err(
                    |e| Wrong::system(format!("{} at {offset}", args.file.display()), e),
                )?),
                None => None,
            };
        match block.filter(|b| b.len() == BLOCK) {
            Some(block) => digest.update(&block),
            None => {
                direct::read(&file, &args.file, memory.bytes(), offset)?;
                digest.update(memory.bytes());
            }
        }
        figures.done(since, BLOCK as u64);
    }
    drop(scope);
    println!("{} blocks {:016x}", args.count, digest.digest());
    figures.tell(begun.elapsed(), &args.graph.told(graph.as_ref())?);
    Ok(())
}

/// Blocks that are in flight at the same time, without a graph.
const DEPTH: usize = 128;

/// The same with io_uring and nothing else: what a graph is to be as good as.
fn by_hand(args: &Args, plan: &Plan, begun: Instant) -> Result {
    let failed = |e| Wrong::system(args.file.display(), e);
    let mut ring = IoUring::new(DEPTH as u32).map_err(failed)?;
    let count = plan.offsets.len();
    let mut memory = Aligned::new(DEPTH.min(count) * BLOCK);
    let start = memory.bytes().as_mut_ptr();
    let mut arrived = [false; DEPTH];
    let (mut asked, mut digest, mut figures) = (0, Xxh3::new(), Figures::default());
    for n in 0..count {
        let since = Instant::now();
        while asked < count.min(n + DEPTH) {
            // SAFETY: a block within `memory`, which nobody else looks at until it has arrived.
            let to = unsafe { start.add(asked % DEPTH * BLOCK) };
            let read = opcode::Read::new(types::Fd(plan.fd), to, BLOCK as u32)
                .offset(plan.offsets[asked])
                .build()
                .user_data(asked as u64);
            // SAFETY: as above; the ring has room for all that are in flight.
            unsafe { ring.submission().push(&read) }.expect("the ring has room");
            asked += 1;
        }
        while !arrived[n % DEPTH] {
            ring.submit_and_wait(1).map_err(failed)?;
            for done in ring.completion() {
                let at = done.user_data() as usize;
                if done.result() != BLOCK as i32 {
                    let text = format!("{} at {}", args.file.display(), plan.offsets[at]);
                    let e = std::io::Error::from_raw_os_error(-done.result().min(0));
                    return Err(Wrong::system(text, e));
                }
                arrived[at % DEPTH] = true;
            }
        }
        arrived[n % DEPTH] = false;
        // SAFETY: it has arrived; the ring does not write to it until it is asked to.
        digest.update(unsafe { std::slice::from_raw_parts(start.add(n % DEPTH * BLOCK), BLOCK) });
        figures.done(since, BLOCK as u64);
    }
    println!("{count} blocks {:016x}", digest.digest());
    figures.tell(begun.elapsed(), &[]);
    Ok(())
}
