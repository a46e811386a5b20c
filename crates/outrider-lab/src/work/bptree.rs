//! A B+-tree in a file: Foreactor, sections 4.2 and 6.2.
//!
//! Pages of 8 KiB; keys and values of 64 bits; a node holds at most `degree` entries. Leaves are linked to their right
//! neighbours. Page 0 says where the root is.
//!
//! A tree is made by bulk-loading (the records are sorted, leaves are full and lie in the order of their keys) or by
//! inserting the records one by one in the order of the stream (nodes split; leaves lie in the order in which they
//! came to be). A scan finds the leaves of its range in the inner nodes and reads them in the order of their keys.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use outrider_graph::{Data, Graph, Next, Op};
use xxhash_rust::xxh3::Xxh3;

use crate::declare::{Declare, List, Range};
use crate::direct::{self, Aligned};
use crate::figures::Figures;
use crate::graph::Flag;
use crate::{Result, Wrong};
use outrider_sim::random::Random;

/// Bytes of a page.
const PAGE: usize = 8192;
/// Bytes of a page's head: kind, entries (32 bits each), right neighbour (64 bits), 16 unused.
const HEAD: usize = 32;
/// Bytes of an entry: a key, and a value or the page of a child.
const ENTRY: usize = 16;
/// Entries that fit into a page.
const MOST: usize = (PAGE - HEAD) / ENTRY;
/// Kinds of pages.
const ROOT: u32 = 0x4250_5254;
const LEAF: u32 = 1;
const INNER: u32 = 2;
/// No right neighbour: page 0 is nobody's.
const NONE: u64 = 0;

/// `outrider-work bptree`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

/// What is done.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Make records: 64-bit keys and values, evenly distributed, in no order.
    Records {
        /// The file.
        file: PathBuf,
        /// How many.
        count: u64,
        /// Of their values.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Build a tree of a file of records at once.
    Load {
        #[command(flatten)]
        build: Build,
        #[command(flatten)]
        graph: Flag,
        /// Have the pages written by an io_uring, as one would write it by hand.
        #[arg(long, conflicts_with = "graph")]
        uring: bool,
    },
    /// Build a tree of a file of records by inserting one after the other.
    Insert(Build),
    /// Scan ranges of keys.
    Scan {
        /// The tree.
        tree: PathBuf,
        /// How many.
        #[arg(long, default_value_t = 10)]
        ranges: u64,
        /// Of their bounds.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Declare the leaves of each range to Outrider.
        #[arg(long)]
        declare: bool,
        #[command(flatten)]
        graph: Flag,
        /// Have the kernel read the leaves ahead of the scan, as one would write it by hand.
        #[arg(long, conflicts_with = "graph")]
        readahead: bool,
    },
}

/// `outrider-work bptree load` and `insert`.
#[derive(Debug, clap::Args)]
struct Build {
    /// The records; of equal keys the last counts.
    records: PathBuf,
    /// The tree's file; replaced.
    tree: PathBuf,
    /// Entries in a node, 3 to 510.
    #[arg(long, default_value_t = MOST as u64, value_parser = clap::value_parser!(u64).range(3..=MOST as u64))]
    degree: u64,
    /// Write around the cache.
    #[arg(long)]
    direct: bool,
}

/// A key and its value, or the least key below a page and the page.
type Entry = (u64, u64);

/// Runs it.
pub fn run(args: &Args) -> Result {
    match &args.what {
        What::Records { file, count, seed } => records(file, *count, *seed),
        What::Load {
            build,
            graph,
            uring,
        } => make(build, *graph, *uring, load),
        What::Insert(build) => make(build, Flag::default(), false, insert),
        What::Scan {
            tree,
            ranges,
            seed,
            declare,
            graph,
            readahead,
        } => scans(tree, *ranges, *seed, *declare, *graph, *readahead),
    }
}

fn records(path: &Path, count: u64, seed: u64) -> Result {
    let mut random = Random::new(seed);
    let mut bytes = vec![
        0;
        usize::try_from(count)
            .ok()
            .and_then(|n| n.checked_mul(ENTRY))
            .ok_or_else(|| Wrong::usage(format!("{count} records are too many")))?
    ];
    random.fill(&mut bytes);
    std::fs::write(path, bytes).map_err(|e| Wrong::system(path.display(), e))
}

/// Reads records, builds, tells what came out.
fn make(
    build: &Build,
    graph: Flag,
    uring: bool,
    how: fn(&[Entry], usize, &mut Pages) -> Result<Shape>,
) -> Result {
    let begun = Instant::now();
    let bytes =
        std::fs::read(&build.records).map_err(|e| Wrong::system(build.records.display(), e))?;
    if bytes.is_empty() || bytes.len() % ENTRY != 0 {
        return Err(Wrong::usage(format!(
            "{}: {} bytes are not a file of records of {ENTRY} bytes",
            build.records.display(),
            bytes.len()
        )));
    }
    let records: Vec<Entry> = bytes.chunks_exact(ENTRY).map(entry).collect();
    drop(bytes);
    let mut pages = Pages::create(&build.tree, build.direct, graph)?;
    pages.uring = uring;
    let shape = how(&records, build.degree as usize, &mut pages)?;
    let digest = pages.finish(build.degree, shape)?;
    println!(
        "{} records, {} leaves, height {} {digest:016x}",
        shape.records, shape.leaves, shape.height
    );
    let mut more = vec![("records", shape.records as f64)];
    more.append(&mut pages.told);
    pages.figures.tell(begun.elapsed(), &more);
    Ok(())
}

/// What a tree looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shape {
    root: u64,
    /// Levels: 1 if the root is a leaf.
    height: u64,
    leaves: u64,
    records: u64,
}

fn entry(bytes: &[u8]) -> Entry {
    (word(bytes, 0), word(bytes, 8))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Lays a node out in a page.
fn lay(page: &mut [u8], kind: u32, entries: &[Entry], next: u64) {
    page.fill(0);
    page[..4].copy_from_slice(&kind.to_le_bytes());
    page[4..8].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    page[8..16].copy_from_slice(&next.to_le_bytes());
    for (place, (key, value)) in page[HEAD..].chunks_exact_mut(ENTRY).zip(entries) {
        place[..8].copy_from_slice(&key.to_le_bytes());
        place[8..].copy_from_slice(&value.to_le_bytes());
    }
}

/// A tree's file while it is written.
struct Pages {
    file: File,
    path: PathBuf,
    page: Aligned,
    digest: Xxh3,
    figures: Figures,
    graph: Flag,
    /// Nodes are written by a ring, without a graph.
    uring: bool,
    /// What became of the graph.
    told: Vec<(&'static str, f64)>,
}

impl Pages {
    fn create(path: &Path, direct: bool, graph: Flag) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(if direct { libc::O_DIRECT } else { 0 })
            .open(path)
            .map_err(|e| Wrong::system(path.display(), e))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            page: Aligned::new(PAGE),
            digest: Xxh3::new(),
            figures: Figures::with_room(0),
            graph,
            uring: false,
            told: Vec::new(),
        })
    }

    /// Writes the nodes of a bulk-loaded tree, through a graph if that is wanted.
    fn put_levels(&mut self, levels: &[Level]) -> Result {
        if self.uring {
            return self.by_hand(levels);
        }
        let mut memory;
        let Some(graph) = self.graph.of(writes) else {
            for level in levels {
                for n in 0..level.nodes() {
                    lay(self.page.bytes(), level.kind, level.part(n), level.next(n));
                    self.write(level.first + n)?;
                }
            }
            return Ok(());
        };
        let most = levels.iter().map(Level::nodes).max().unwrap_or(0);
        memory = Aligned::new(BATCH.min(most as usize) * PAGE);
        let mut spare: Vec<_> = memory.bytes().chunks_exact_mut(PAGE).rev().collect();
        for level in levels {
            for from in (0..level.nodes()).step_by(BATCH) {
                let count = (level.nodes() - from).min(BATCH as u64);
                let batch = Batch {
                    fd: self.file.as_raw_fd(),
                    level,
                    from,
                    pages: (0..count).map(|_| OnceCell::new()).collect(),
                    spare: RefCell::new(spare),
                };
                let mut scope = graph.enter(&batch);
                for i in 0..count {
                    let since = Instant::now();
                    let (page, at) = (batch.page(i), batch.offset(i));
                    scope
                        .pwrite(&self.file, page, at)
                        .and_then(|n| self.file.write_all_at(&page[n..], at as u64 + n as u64))
                        .map_err(|e| Wrong::system(self.path.display(), e))?;
                    self.figures.done(since, PAGE as u64);
                    self.digest.update(page);
                }
                drop(scope);
                spare = batch.into_spare();
            }
        }
        self.told = self.graph.told(Some(&graph))?;
        Ok(())
    }

    /// The same with io_uring and nothing else: what a graph is to be as good as.
    fn by_hand(&mut self, levels: &[Level]) -> Result {
        let failed = |e| Wrong::system(self.path.display(), e);
        let mut ring = IoUring::new(PIECES as u32).map_err(failed)?;
        let mut memory = Aligned::new(PIECES * PIECE);
        let pieces: Vec<_> = memory
            .bytes()
            .chunks_exact_mut(PIECE)
            .map(|piece| libc::iovec {
                iov_base: piece.as_mut_ptr().cast(),
                iov_len: PIECE,
            })
            .collect();
        // SAFETY: the memory stays where it is for longer than the ring.
        unsafe { ring.submitter().register_buffers(&pieces) }.map_err(failed)?;
        let mut nodes = levels
            .iter()
            .flat_map(|level| (0..level.nodes()).map(move |n| (level, n)))
            .peekable();
        let mut free: Vec<usize> = (0..PIECES).collect();
        let mut at = PAGE as u64;
        while nodes.peek().is_some() || free.len() < PIECES {
            if nodes.peek().is_none() || free.is_empty() {
                ring.submit_and_wait(1).map_err(failed)?;
                for done in ring.completion() {
                    let (piece, len) = (done.user_data() >> 32, done.user_data() as u32);
                    if done.result() != len as i32 {
                        let e = std::io::Error::from_raw_os_error(-done.result().min(0));
                        return Err(failed(e));
                    }
                    free.push(piece as usize);
                }
                continue;
            }
            let since = Instant::now();
            let i = free.pop().expect("one is free");
            let start = pieces[i].iov_base.cast::<u8>();
            // SAFETY: a piece of `memory` that is free: the ring does not look at it.
            let piece = unsafe { std::slice::from_raw_parts_mut(start, PIECE) };
            let mut len = 0;
            for (page, (level, n)) in piece.chunks_exact_mut(PAGE).zip(nodes.by_ref()) {
                lay(page, level.kind, level.part(n), level.next(n));
                self.digest.update(page);
                len += PAGE;
            }
            let fd = types::Fd(self.file.as_raw_fd());
            let write = opcode::WriteFixed::new(fd, start, len as u32, i as u16)
                .offset(at)
                .build()
                .user_data((i as u64) << 32 | len as u64);
            // SAFETY: registered memory, which nobody writes to before it is free; the ring has room for all pieces.
            unsafe { ring.submission().push(&write) }.expect("the ring has room");
            ring.submit().map_err(failed)?;
            at += len as u64;
            self.figures.done(since, len as u64);
        }
        Ok(())
    }

    fn put(&mut self, number: u64, kind: u32, entries: &[Entry], next: u64) -> Result {
        lay(self.page.bytes(), kind, entries, next);
        self.write(number)
    }

    fn write(&mut self, number: u64) -> Result {
        let since = Instant::now();
        let page = self.page.bytes();
        self.file
            .write_all_at(page, number * PAGE as u64)
            .map_err(|e| Wrong::system(self.path.display(), e))?;
        self.figures.done(since, PAGE as u64);
        self.digest.update(page);
        Ok(())
    }

    /// Writes page 0 and waits until all is on the disk; a digest of all pages in the order of their writing.
    fn finish(&mut self, degree: u64, shape: Shape) -> Result<u64> {
        lay(self.page.bytes(), ROOT, &[], shape.root);
        let numbers = [degree, shape.height, shape.leaves, shape.records];
        for (place, n) in self.page.bytes()[HEAD..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&n.to_le_bytes());
        }
        self.write(0)?;
        self.file
            .sync_data()
            .map_err(|e| Wrong::system(self.path.display(), e))?;
        Ok(self.digest.digest())
    }
}

/// Bulk-loads: leaf after leaf, then the levels above.
fn load(records: &[Entry], degree: usize, pages: &mut Pages) -> Result<Shape> {
    let mut sorted = records.to_vec();
    // Stable, so that the last of equal keys stays the last.
    sorted.sort_by_key(|r| r.0);
    sorted.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            kept.1 = later.1;
        }
        same
    });
    let records = sorted.len() as u64;
    let mut levels = vec![Level {
        kind: LEAF,
        first: 1,
        degree,
        entries: sorted,
    }];
    while let below = &levels[levels.len() - 1]
        && below.nodes() > 1
    {
        let above = Level {
            kind: INNER,
            first: below.first + below.nodes(),
            degree,
            entries: (0..below.nodes())
                .map(|n| (below.part(n)[0].0, below.first + n))
                .collect(),
        };
        levels.push(above);
    }
    pages.put_levels(&levels)?;
    Ok(Shape {
        root: levels[levels.len() - 1].first,
        height: levels.len() as u64,
        leaves: levels[0].nodes(),
        records,
    })
}

/// The nodes of a height, of a tree that is bulk-loaded: they lie side by side.
struct Level {
    kind: u32,
    /// The first node's page.
    first: u64,
    degree: usize,
    /// Of all nodes; all but the last are full.
    entries: Vec<Entry>,
}

impl Level {
    fn nodes(&self) -> u64 {
        self.entries.len().div_ceil(self.degree) as u64
    }

    /// The entries of the `n`th node.
    fn part(&self, n: u64) -> &[Entry] {
        let from = n as usize * self.degree;
        &self.entries[from..self.entries.len().min(from + self.degree)]
    }

    /// The right neighbour's page.
    fn next(&self, n: u64) -> u64 {
        if self.kind == LEAF && n + 1 < self.nodes() {
            self.first + n + 1
        } else {
            NONE
        }
    }
}

/// What is written at once without a graph, by hand …
const PIECE: usize = 1 << 20;
/// … and how many of them are in flight: less does not keep a disk busy, more leaves the processor's caches.
const PIECES: usize = 8;

/// Nodes that are written in one run of the graph: their pages are kept until it ends, 16 MiB.
const BATCH: usize = 2048;

/// A part of a level, while it is written. Pages are laid out when the graph looks ahead to them.
struct Batch<'a> {
    fd: i32,
    level: &'a Level,
    /// The first node.
    from: u64,
    pages: Vec<OnceCell<&'a mut [u8]>>,
    /// Memory for those that were not laid out yet, the first one last.
    spare: RefCell<Vec<&'a mut [u8]>>,
}

impl<'a> Batch<'a> {
    fn page(&self, i: u64) -> &[u8] {
        self.pages[i as usize].get_or_init(|| {
            let mut spare = self.spare.borrow_mut();
            let page = spare.pop().expect("a page for every node");
            let n = self.from + i;
            lay(
                page,
                self.level.kind,
                self.level.part(n),
                self.level.next(n),
            );
            page
        })
    }

    /// The memory, for the next one.
    fn into_spare(self) -> Vec<&'a mut [u8]> {
        let mut spare = self.spare.into_inner();
        let used = self.pages.into_iter().rev();
        spare.extend(used.filter_map(OnceCell::into_inner));
        spare
    }

    /// Where the page lies, bytes.
    fn offset(&self, i: u64) -> i64 {
        ((self.level.first + self.from + i) * PAGE as u64) as i64
    }
}

/// A batch's writes, all of them certain.
fn writes<'a>() -> Graph<Batch<'a>> {
    Graph::generator("load", |batch: &Batch<'a>, i| {
        if i >= batch.pages.len() as u64 {
            return Next::End;
        }
        Next::Call(Op::Pwrite {
            fd: batch.fd,
            data: Data::Bytes(batch.page(i)),
            offset: batch.offset(i),
        })
    })
}

/// A node in memory, while records are inserted.
struct Node {
    kind: u32,
    entries: Vec<Entry>,
    next: u64,
}

/// Inserts one by one; nodes that are full split in halves.
fn insert(records: &[Entry], degree: usize, pages: &mut Pages) -> Result<Shape> {
    let leaf = |entries, next| Node {
        kind: LEAF,
        entries,
        next,
    };
    // Node n is page n + 1.
    let mut nodes = vec![leaf(Vec::new(), NONE)];
    let mut shape = Shape {
        root: 1,
        height: 1,
        leaves: 1,
        records: 0,
    };
    let mut path = Vec::new();
    for &(key, value) in records {
        path.clear();
        let mut at = shape.root;
        while nodes[at as usize - 1].kind == INNER {
            let entries = &mut nodes[at as usize - 1].entries;
            let child = entries.partition_point(|e| e.0 <= key).max(1) - 1;
            // The least key below the first child may become smaller.
            entries[child].0 = entries[child].0.min(key);
            path.push((at, child));
            at = entries[child].1;
        }
        let entries = &mut nodes[at as usize - 1].entries;
        match entries.binary_search_by_key(&key, |e| e.0) {
            Ok(place) => {
                entries[place].1 = value;
                continue;
            }
            Err(place) => entries.insert(place, (key, value)),
        }
        shape.records += 1;
        // Splits go up as long as nodes overflow.
        while nodes[at as usize - 1].entries.len() > degree {
            let fresh = nodes.len() as u64 + 1;
            let node = &mut nodes[at as usize - 1];
            let right = node.entries.split_off(node.entries.len() / 2);
            let (least, kind, next) = (right[0].0, node.kind, node.next);
            if kind == LEAF {
                node.next = fresh;
                shape.leaves += 1;
            }
            let left = node.entries[0].0;
            nodes.push(Node {
                kind,
                entries: right,
                next,
            });
            match path.pop() {
                Some((parent, child)) => {
                    let entries = &mut nodes[parent as usize - 1].entries;
                    entries.insert(child + 1, (least, fresh));
                    at = parent;
                }
                None => {
                    nodes.push(Node {
                        kind: INNER,
                        entries: vec![(left, at), (least, fresh)],
                        next: NONE,
                    });
                    shape.root = fresh + 1;
                    shape.height += 1;
                    break;
                }
            }
        }
    }
    for (n, node) in nodes.iter().enumerate() {
        pages.put(n as u64 + 1, node.kind, &node.entries, node.next)?;
    }
    Ok(shape)
}

/// A tree that is read.
struct Tree {
    file: File,
    path: PathBuf,
    root: u64,
    height: u64,
    /// Inner nodes that were read: their entries.
    inner: HashMap<u64, Vec<Entry>>,
    figures: Figures,
    graph: Option<Graph<Leaves>>,
    /// Leaves are read ahead by hand.
    readahead: bool,
}

/// The leaves of a scan.
struct Leaves {
    fd: i32,
    numbers: Vec<u64>,
}

/// A scan's reads.
fn reads() -> Graph<Leaves> {
    Graph::generator("scan", |leaves: &Leaves, i| {
        match leaves.numbers.get(i as usize) {
            Some(number) => Next::Call(Op::Pread {
                fd: leaves.fd,
                len: PAGE,
                offset: number.saturating_mul(PAGE as u64) as i64,
            }),
            None => Next::End,
        }
    })
    .pure()
    .fetch()
}

/// Leaves that lie ahead of a scan that is written by hand …
const AHEAD: usize = 128;
/// … and that it asks for together, if they lie side by side: what no kernel clips.
const TOGETHER: usize = 16;

/// Has the kernel read the first of these leaves ahead, and those beside it: how many.
fn ask(file: &File, leaves: &[u64]) -> usize {
    let beside = leaves.windows(2).take_while(|w| w[1] == w[0] + 1).count();
    let count = (beside + 1).min(TOGETHER);
    let at = leaves[0].saturating_mul(PAGE as u64) as i64;
    // SAFETY: no memory is passed.
    unsafe { libc::readahead(file.as_raw_fd(), at, count * PAGE) };
    count
}

impl Tree {
    fn open(path: &Path, graph: Flag) -> Result<Self> {
        let file = direct::open(path, false)?;
        let mut tree = Self {
            file,
            path: path.to_owned(),
            root: 0,
            height: 0,
            inner: HashMap::new(),
            figures: Figures::with_room(0),
            graph: graph.of(reads),
            readahead: false,
        };
        let mut page = vec![0; PAGE];
        tree.read(0, &mut page)?;
        tree.root = word(&page, 8);
        tree.height = word(&page, HEAD + 8);
        if half(&page, 0) != ROOT || tree.root == 0 || !(1..=64).contains(&tree.height) {
            return Err(tree.broken(0));
        }
        Ok(tree)
    }

    fn broken(&self, number: u64) -> Wrong {
        Wrong::usage(format!(
            "{}: page {number} is not what `outrider-work bptree load` writes",
            self.path.display()
        ))
    }

    fn read(&self, number: u64, page: &mut [u8]) -> Result {
        direct::read(
            &self.file,
            &self.path,
            page,
            number.saturating_mul(PAGE as u64),
        )
    }

    /// Reads a node of `kind`: its entries and right neighbour.
    fn node(&self, number: u64, kind: u32, page: &mut [u8]) -> Result<(Vec<Entry>, u64)> {
        self.read(number, page)?;
        self.parsed(number, kind, page)
    }

    /// What a page of `kind` says.
    fn parsed(&self, number: u64, kind: u32, page: &[u8]) -> Result<(Vec<Entry>, u64)> {
        let count = half(page, 4) as usize;
        if half(page, 0) != kind || count > MOST {
            return Err(self.broken(number));
        }
        let entries = page[HEAD..].chunks_exact(ENTRY).take(count).map(entry);
        Ok((entries.collect(), word(page, 8)))
    }

    /// The leaves that may hold keys of `low..=high`, from left to right.
    fn leaves(&mut self, low: u64, high: u64) -> Result<Vec<u64>> {
        let mut level = vec![self.root];
        let mut page = vec![0; PAGE];
        for _ in 1..self.height {
            let mut below = Vec::new();
            for number in level {
                if !self.inner.contains_key(&number) {
                    let (entries, _) = self.node(number, INNER, &mut page)?;
                    self.inner.insert(number, entries);
                }
                let entries = &self.inner[&number];
                let first = entries.partition_point(|e| e.0 <= low).max(1) - 1;
                let end = entries.partition_point(|e| e.0 <= high).max(first + 1);
                below.extend(entries.iter().take(end).skip(first).map(|e| e.1));
            }
            level = below;
        }
        Ok(level)
    }

    /// Hands the records with keys of `low..=high` to `with`, in order; how many leaves were declared.
    fn scan(
        &mut self,
        low: u64,
        high: u64,
        call: Option<Declare>,
        mut with: impl FnMut(Entry),
    ) -> Result<usize> {
        let leaves = Leaves {
            numbers: self.leaves(low, high)?,
            fd: self.file.as_raw_fd(),
        };
        let mut scope = self.graph.as_ref().map(|g| g.enter(&leaves));
        let leaves = &leaves.numbers;
        let mut figures = std::mem::take(&mut self.figures);
        let mut list = List::new(call, &self.file, || {
            let range = |number: &u64| Range {
                offset: number.saturating_mul(PAGE as u64),
                length: PAGE as u64,
            };
            leaves.iter().map(range).collect()
        })?;
        let mut asked = 0;
        let mut page = vec![0; PAGE];
        for (n, &number) in leaves.iter().enumerate() {
            list.read(n)?;
            let since = Instant::now();
            while self.readahead && asked < leaves.len() && asked <= n + AHEAD {
                asked += ask(&self.file, &leaves[asked..]);
            }
            let ahead = match &mut scope {
                Some(scope) => scope
                    .pread_block(&self.file, PAGE, number.saturating_mul(PAGE as u64) as i64)
                    .ok()
                    .filter(|b| b.len() == PAGE),
                None => None,
            };
            let (entries, next) = match ahead {
                Some(block) => self.parsed(number, LEAF, &block)?,
                None => self.node(number, LEAF, &mut page)?,
            };
            figures.done(since, PAGE as u64);
            // The neighbours' chain and the inner nodes must say the same.
            if leaves.get(n + 1).is_some_and(|after| *after != next) {
                return Err(self.broken(number));
            }
            for record in entries {
                if (low..=high).contains(&record.0) {
                    with(record);
                }
            }
        }
        let told = list.told();
        drop(scope);
        self.figures = figures;
        Ok(told)
    }
}

fn scans(
    path: &Path,
    ranges: u64,
    seed: u64,
    declare: bool,
    graph: Flag,
    readahead: bool,
) -> Result {
    let call = declare.then(Declare::find).transpose()?;
    let begun = Instant::now();
    let mut tree = Tree::open(path, graph)?;
    tree.readahead = readahead;
    let mut random = Random::new(seed);
    let (mut total, mut told) = (0u64, 0);
    for _ in 0..ranges {
        let (a, b) = (random.draw(), random.draw());
        let mut digest = Xxh3::new();
        let mut count = 0u64;
        told += tree.scan(a.min(b), a.max(b), call, |(key, value)| {
            count += 1;
            digest.update(&key.to_le_bytes());
            digest.update(&value.to_le_bytes());
        })?;
        println!("{count} records {:016x}", digest.digest());
        total += count;
    }
    let mut more = vec![("records", total as f64), ("declared", told as f64)];
    more.extend(graph.told(tree.graph.as_ref())?);
    tree.figures.tell(begun.elapsed(), &more);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// FA11: what a scan finds is what a sorted list holds, however the tree came to be.
        #[test]
        fn a_scan_is_a_naive_sort(
            keys in prop::collection::vec(prop_oneof![0u64..300, any::<u64>()], 1..3000),
            degree in prop_oneof![3u64..12, 3u64..=MOST as u64],
            ranges in prop::collection::vec((prop_oneof![0u64..300, any::<u64>()], any::<u64>()), 1..6),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let records = dir.path().join("records");
            let mut naive = BTreeMap::new();
            let mut bytes = Vec::new();
            for (value, key) in keys.iter().enumerate() {
                naive.insert(*key, value as u64);
                bytes.extend(key.to_le_bytes());
                bytes.extend((value as u64).to_le_bytes());
            }
            std::fs::write(&records, bytes).unwrap();
            let whole = |path: &Path| std::fs::read(path).unwrap();
            let mut loaded = None;
            let ways = Flag::all().map(|flag| (flag, false, true));
            let by_hand = (Flag::default(), true, true);
            let inserted = (Flag::default(), false, false);
            for (flag, uring, at_once) in ways.into_iter().chain([by_hand, inserted]) {
                let tree = dir.path().join("tree");
                let build = Build { records: records.clone(), tree: tree.clone(), degree, direct: false };
                make(&build, flag, uring, if at_once { load } else { insert }).unwrap();
                if at_once {
                    // FA3: the graph's tree is the same, byte by byte.
                    prop_assert!(*loaded.get_or_insert_with(|| whole(&tree)) == whole(&tree));
                }
                let mut tree = Tree::open(&tree, flag).unwrap();
                let all = (0, u64::MAX);
                for &(a, b) in ranges.iter().chain([&all]) {
                    let mut found = Vec::new();
                    tree.scan(a.min(b), a.max(b), None, |r| found.push(r)).unwrap();
                    let wanted: Vec<_> = naive.range(a.min(b)..=a.max(b)).map(|(k, v)| (*k, *v)).collect();
                    prop_assert_eq!(found, wanted);
                }
            }
        }
    }
}
