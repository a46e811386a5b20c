//! Reads 128 blocks of 4 KiB that lie far apart, first one by one, then along a generator.

mod support;

use std::os::fd::AsRawFd;

use outrider_graph::{Graph, Next, Op};

const BLOCK: usize = 4096;
const COUNT: u64 = 128;

struct Reads {
    fd: i32,
    /// Bytes from one block to the next.
    stride: i64,
}

fn main() {
    let (paths, engine) = support::arguments("read_blocks FILE");
    let file = support::open(&paths[0]);
    let size = file.metadata().map_or(0, |m| m.len());
    let reads = Reads {
        fd: file.as_raw_fd(),
        stride: (size / COUNT / BLOCK as u64 * BLOCK as u64).max(BLOCK as u64) as i64,
    };
    // The whole graph. A run reads 128 blocks, and it never stops before.
    let graph = Graph::generator("read_blocks", |r: &Reads, i| match i {
        0..COUNT => Next::Call(Op::Pread {
            fd: r.fd,
            len: BLOCK,
            offset: r.stride * i as i64,
        }),
        _ => Next::End,
    })
    .pure();

    let run = |graph: &Graph<Reads>| {
        support::cool(&file);
        support::timed(|| {
            let mut scope = graph.enter(&reads);
            let mut sum = 0u64;
            for i in 0..COUNT as i64 {
                let block = scope
                    .pread_block(&file, BLOCK, reads.stride * i)
                    .unwrap_or_else(|e| support::fail(&e.to_string()));
                sum = block
                    .iter()
                    .fold(sum, |s, b| s.wrapping_mul(31).wrapping_add(u64::from(*b)));
            }
            sum
        })
    };
    let serial =
        Graph::generator("serial", |_: &Reads, _| Next::End).engine(outrider_graph::Engine::Serial);
    let plain = run(&serial);
    let graph = graph.engine(engine);
    let ahead = run(&graph);
    support::conclude(plain, ahead, graph.counts(), &graph.problems());
}
