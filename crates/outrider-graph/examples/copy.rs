//! Copies a file: a loop of read and write, which are linked, so that a block is written as soon as it has been read.

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;

use outrider_graph::{Builder, Data, Engine, Graph, Kind, Op};

const BLOCK: usize = 128 << 10;

struct Copy {
    from: i32,
    to: i32,
    /// Whole blocks; what is left is read and written without being foreseen as certain.
    blocks: u64,
}

fn graph(engine: Engine) -> Graph<Copy> {
    let mut b = Builder::<Copy>::new("copy");
    let any = b.branch("any", |c, _| Some(usize::from(c.blocks == 0)));
    let read = b.call("read", Kind::Read, |c, _| {
        Some(Op::Read {
            fd: c.from,
            len: BLOCK,
        })
    });
    let write = b.call("write", Kind::Write, |c, _| {
        Some(Op::Write {
            fd: c.to,
            data: Data::Linked,
        })
    });
    let more = b.branch("more", |c, epoch| {
        Some(usize::from(epoch[0] + 1 == c.blocks))
    });
    let tail = b.call("tail", Kind::Read, |c, _| {
        Some(Op::Read {
            fd: c.from,
            len: BLOCK,
        })
    });
    b.edge(b.start(), any);
    b.edge(any, read);
    b.edge(any, tail);
    b.edge(read, write);
    b.link(read);
    b.edge(write, more);
    b.back_edge(more, read);
    b.edge(more, tail);
    b.edge(tail, b.end());
    b.build()
        .unwrap_or_else(|e| support::fail(&e.to_string()))
        .private_positions()
        .engine(engine)
}

fn main() {
    let (paths, engine) = support::arguments("copy FROM TO");
    let Some(target) = paths.get(1) else {
        support::fail("usage: copy FROM TO");
    };
    let run = |graph: &Graph<Copy>| {
        let from = support::open(&paths[0]);
        let to = File::create(target).unwrap_or_else(|e| support::fail(&format!("{target}: {e}")));
        support::cool(&from);
        let copy = Copy {
            from: from.as_raw_fd(),
            to: to.as_raw_fd(),
            blocks: from.metadata().map_or(0, |m| m.len()) / BLOCK as u64,
        };
        let (copied, time) = support::timed(|| {
            let mut scope = graph.enter(&copy);
            loop {
                let block = scope.read_block(&from, BLOCK)?;
                if block.is_empty() {
                    return Ok(());
                }
                let mut rest = &block[..];
                while !rest.is_empty() {
                    let n = scope.write(&to, rest)?;
                    rest = &rest[n..];
                }
            }
        });
        copied.unwrap_or_else(|e: std::io::Error| support::fail(&e.to_string()));
        let equal = std::fs::read(target).ok() == std::fs::read(&paths[0]).ok();
        (equal, time)
    };
    let plain = run(&graph(Engine::Serial));
    let graph = graph(engine);
    let ahead = run(&graph);
    if !ahead.0 {
        support::fail("the copy differs");
    }
    support::conclude(plain, ahead, graph.counts(), &graph.problems());
}
