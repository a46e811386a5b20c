//! Copies a file: a loop of read and write, which are linked, so that a block is written as soon as it has been read.

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;

use outrider_graph::{Builder, Data, Engine, Graph, Kind, Op};

const BLOCK: usize = 128 << 10;

struct Copy {
    from: i32,
    to: i32,
    /// Whole blocks.
    blocks: u64,
    /// Whether a part of one follows. Its read is short, so that its write is not made ahead.
    rest: bool,
}

fn graph(engine: Engine) -> Graph<Copy> {
    let mut b = Builder::<Copy>::new("copy");
    let reads = |c: &Copy| {
        Some(Op::Read {
            fd: c.from,
            len: BLOCK,
        })
    };
    let writes = |c: &Copy| {
        Some(Op::Write {
            fd: c.to,
            data: Data::Linked,
        })
    };
    let any = b.branch("any", |c, _| Some(usize::from(c.blocks == 0)));
    let read = b.call("read", Kind::Read, move |c, _| reads(c));
    let write = b.call("write", Kind::Write, move |c, _| writes(c));
    let more = b.branch("more", |c, epoch| {
        Some(usize::from(epoch[0] + 1 == c.blocks))
    });
    let rest = b.branch("rest", |c, _| Some(usize::from(!c.rest)));
    let read_rest = b.call("read the rest", Kind::Read, move |c, _| reads(c));
    let write_rest = b.call("write the rest", Kind::Write, move |c, _| writes(c));
    let read_end = b.call("find the end", Kind::Read, move |c, _| reads(c));
    b.edge(b.start(), any);
    b.edge(any, read);
    b.edge(any, rest);
    b.edge(read, write);
    b.link(read);
    b.edge(write, more);
    b.back_edge(more, read);
    b.edge(more, rest);
    b.edge(rest, read_rest);
    b.edge(rest, read_end);
    b.edge(read_rest, write_rest);
    b.link(read_rest);
    b.edge(write_rest, read_end);
    b.edge(read_end, b.end());
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
        let size = from.metadata().map_or(0, |m| m.len());
        let copy = Copy {
            from: from.as_raw_fd(),
            to: to.as_raw_fd(),
            blocks: size / BLOCK as u64,
            rest: !size.is_multiple_of(BLOCK as u64),
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
