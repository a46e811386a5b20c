//! Looks for a byte string in the first block of many files and stops at the first that has it: every edge is weak, so what is
//! looked at too much costs a read and nothing else.

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;

use outrider_graph::{Engine, Graph, Next, Op};

const BLOCK: usize = 4096;

fn graph(engine: Engine) -> Graph<Vec<File>> {
    Graph::generator("search", |files: &Vec<File>, i| {
        match files.get(i as usize) {
            Some(f) => Next::Weak(Op::Pread {
                fd: f.as_raw_fd(),
                len: BLOCK,
                offset: 0,
            }),
            None => Next::End,
        }
    })
    .pure()
    .engine(engine)
}

fn main() {
    let (arguments, engine) = support::arguments("search TEXT FILE…");
    let wanted = arguments[0].as_bytes();
    let files: Vec<File> = arguments[1..].iter().map(|p| support::open(p)).collect();
    if wanted.is_empty() || files.is_empty() {
        support::fail("usage: search TEXT FILE…");
    }
    let run = |graph: &Graph<Vec<File>>| {
        files.iter().for_each(support::cool);
        support::timed(|| {
            let mut scope = graph.enter(&files);
            files.iter().position(|f| {
                let block = scope
                    .pread_block(f, BLOCK, 0)
                    .unwrap_or_else(|e| support::fail(&e.to_string()));
                block.windows(wanted.len()).any(|w| w == wanted)
            })
        })
    };
    let plain = run(&graph(Engine::Serial));
    let graph = graph(engine);
    let ahead = run(&graph);
    match ahead.0 {
        Some(n) => println!("found in {}", arguments[n + 1]),
        None => println!("not found"),
    }
    support::conclude(plain, ahead, graph.counts(), &graph.problems());
}
