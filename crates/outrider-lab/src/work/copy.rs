//! Copies a file as cp does: a read, a write of what it returned, and so on. Foreactor, section 4.1.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::Instant;

use outrider_graph::{Data, Graph, Next, Op};
use xxhash_rust::xxh3::Xxh3;

use crate::direct;
use crate::figures::Figures;
use crate::graph::Flag;
use crate::{Result, Wrong, size};

/// `outrider-work copy`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file.
    from: PathBuf,
    /// The copy; replaced.
    to: PathBuf,
    /// Bytes per read.
    #[arg(long, value_name = "SIZE", default_value = "128K", value_parser = size::parse)]
    block: u64,
    #[command(flatten)]
    graph: Flag,
}

/// What will be read and written.
struct Plan {
    from: i32,
    to: i32,
    /// Bytes.
    size: u64,
    /// Bytes per read.
    block: u64,
}

impl Plan {
    /// The length of the read at `at`.
    fn length(&self, at: u64) -> usize {
        self.block.min(self.size - at) as usize
    }
}

fn graph() -> Graph<Plan> {
    Graph::generator("copy", |plan: &Plan, i| {
        let at = i / 2 * plan.block;
        let offset = at as i64;
        if at >= plan.size {
            Next::End
        } else if i.is_multiple_of(2) {
            Next::Link(Op::Pread {
                fd: plan.from,
                len: plan.length(at),
                offset,
            })
        } else {
            Next::Call(Op::Pwrite {
                fd: plan.to,
                data: Data::Linked,
                offset,
            })
        }
    })
}

/// Runs it.
pub fn run(args: &Args) -> Result {
    if !(1..=8 << 20).contains(&args.block) {
        return Err(Wrong::usage(format!(
            "--block {}: from 1 byte to 8M",
            args.block
        )));
    }
    let begun = Instant::now();
    let from = direct::open(&args.from, false)?;
    let size = direct::size(&from, &args.from)?;
    let failed = |e| Wrong::system(args.to.display(), e);
    let to = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&args.to)
        .map_err(failed)?;
    let what = |file: &File| file.metadata().map(|m| (m.dev(), m.ino()));
    if what(&from).map_err(failed)? == what(&to).map_err(failed)? {
        return Err(Wrong::usage(format!(
            "{}: is the same file as {}",
            args.to.display(),
            args.from.display()
        )));
    }
    to.set_len(0).map_err(failed)?;
    let plan = Plan {
        from: from.as_raw_fd(),
        to: to.as_raw_fd(),
        size,
        block: args.block,
    };
    let graph = args.graph.of(graph);
    let mut copy = Copy {
        args,
        from: &from,
        to: &to,
        digest: Xxh3::new(),
        figures: Figures::default(),
    };
    match &graph {
        Some(graph) => copy.ahead(graph, &plan)?,
        None => copy.plain(&plan)?,
    }
    println!("{size} bytes {:016x}", copy.digest.digest());
    copy.figures
        .tell(begun.elapsed(), &args.graph.told(graph.as_ref())?);
    Ok(())
}

struct Copy<'a> {
    args: &'a Args,
    from: &'a File,
    to: &'a File,
    digest: Xxh3,
    figures: Figures,
}

impl Copy<'_> {
    fn plain(&mut self, plan: &Plan) -> Result {
        let mut block = vec![0; plan.block as usize];
        let mut at = 0;
        while at < plan.size {
            let since = Instant::now();
            let bytes = &mut block[..plan.length(at)];
            direct::read(self.from, &self.args.from, bytes, at)?;
            self.digest.update(bytes);
            self.to
                .write_all_at(bytes, at)
                .map_err(|e| Wrong::system(self.args.to.display(), e))?;
            self.figures.done(since, bytes.len() as u64);
            at += bytes.len() as u64;
        }
        Ok(())
    }

    fn ahead(&mut self, graph: &Graph<Plan>, plan: &Plan) -> Result {
        let mut scope = graph.enter(plan);
        let mut at = 0;
        while at < plan.size {
            let since = Instant::now();
            let block = scope
                .pread_block(self.from, plan.length(at), at as i64)
                .map_err(|e| Wrong::system(format!("{} at {at}", self.args.from.display()), e))?;
            if block.is_empty() {
                let text = format!("{} at {at}", self.args.from.display());
                return Err(Wrong::system(text, "it has become shorter"));
            }
            self.digest.update(&block);
            let written = scope
                .pwrite(self.to, &block, at as i64)
                .and_then(|n| self.to.write_all_at(&block[n..], at + n as u64));
            written.map_err(|e| Wrong::system(self.args.to.display(), e))?;
            self.figures.done(since, block.len() as u64);
            at += block.len() as u64;
        }
        Ok(())
    }
}
