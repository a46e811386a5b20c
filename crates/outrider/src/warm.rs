//! `outrider warm`: reads files or trees into the page cache at the device's speed.
//!
//! Three steps. *Plan*: every file is opened, what is cached already is set aside, and the rest is cut into
//! pieces small enough that no readahead call is clipped, as far as the budget goes. *Read*: all pieces are
//! sorted by their place on the device, and a few threads take them in that order. Each thread starts
//! several pieces (`WILLNEED` returns once a read is submitted) before it reads the oldest one, which waits
//! until the data has arrived; a call that merely started a read proves nothing. *Check*: cached pages are
//! counted once more, because under memory pressure the first may be gone when the last arrives.
//!
//! How much is in flight is found by trying: it doubles while that makes the reading faster. A device with
//! 15 ms latency needs 8 MiB, a local disk a tenth of that, and more only makes others wait.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use outrider_sys::cache;
use outrider_sys::device::Device;
use outrider_sys::extent::{self, Extent};
use outrider_sys::memory::{self, Memory};
use outrider_sys::units::{self, InodeKey, PAGE};

use crate::cached::residency;
use crate::cli::WarmArgs;
use crate::output::{self, Outcome, bytes, show};
use crate::tree::{self, Found, Open};

/// Extents asked for per file; what lies beyond is read in file order. A file of a million fragments
/// costs 40 MB to describe in full.
const MAX_EXTENTS: usize = 65_536;

/// Bytes in flight over all threads, at first and at most.
const IN_FLIGHT: Range<u64> = (2 << 20)..(16 << 20);

/// Pieces in flight over all threads. Each holds a descriptor, and a process may have 1024 of them.
const PIECES_IN_FLIGHT: usize = 512;

/// Files that a thread keeps open between pieces.
const KEPT_OPEN: usize = 8;

/// Share of a memory limit's headroom that is filled. libprefetch starts at 90 % of the memory available
/// for cache too (section 4.3): the rest is for what others read meanwhile.
const HEADROOM_SHARE: f64 = 0.9;

/// Bytes of one file to be read in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    device: u64,
    /// Where it begins on the device, bytes; pieces whose place is not known come first, in file order.
    physical: u64,
    /// Index of the file.
    file: u32,
    start: u64,
    len: u32,
}

/// What is to be done for one file.
#[derive(Debug)]
struct FilePlan {
    key: InodeKey,
    size: u64,
    /// In file order, each with the bytes of it that are not cached.
    pieces: Vec<(Piece, u64)>,
    /// Bytes cached already; 0 where the kernel does not tell.
    cached: u64,
    /// The kernel does not tell what is cached.
    hidden: bool,
    /// Bytes in holes and unwritten extents, which cost no reading.
    empty: u64,
}

/// Plans one file as number `index`. `None` if it is empty, gone or lives in memory.
fn plan(found: &Found, index: u32, devices: &Devices) -> io::Result<Option<FilePlan>> {
    let Some(open) = tree::open(found)? else {
        return Ok(None);
    };
    let resident = residency(&open).resident_bytes();
    let mut plan = FilePlan {
        key: open.key,
        size: open.size,
        pieces: Vec::new(),
        cached: resident.unwrap_or(0),
        hidden: resident.is_none(),
        empty: 0,
    };
    let device = devices.of(&open);
    if device.in_memory {
        plan.cached = open.size;
    }
    if plan.cached >= open.size {
        return Ok(Some(plan));
    }
    let mut from = 0;
    let mut described = 0;
    for e in placed_extents(&open) {
        let range = e.range().start / PAGE * PAGE..e.range().end.min(open.size);
        described += range.end.saturating_sub(range.start.max(from));
        if !e.costs_io() {
            plan.empty += range.end.saturating_sub(range.start.max(from));
            from = from.max(range.end);
            continue;
        }
        let mut at = range.start.max(from);
        while at < range.end {
            let end = range.end.min((at / device.chunk + 1) * device.chunk);
            let physical = if e.is_placed() {
                e.physical + at.saturating_sub(e.logical)
            } else {
                0
            };
            let piece = Piece {
                device: open.key.dev,
                physical,
                file: index,
                start: at,
                len: (end - at) as u32,
            };
            let missing = missing(&open, at..end, plan.cached == 0);
            if missing > 0 {
                plan.pieces.push((piece, missing));
            }
            at = end;
        }
        from = from.max(range.end);
    }
    plan.empty += open.size.saturating_sub(described);
    Ok(Some(plan))
}

/// The extents of a file; where the file system does not tell, one that covers all of it.
fn placed_extents(open: &Open) -> Vec<Extent> {
    let rest = |from: u64| Extent {
        logical: from,
        physical: 0,
        len: open.size - from,
        flags: Extent::UNKNOWN,
    };
    match extent::extents(open.file.as_fd(), 0..open.size, MAX_EXTENTS) {
        Some(map) => {
            let mut extents = map.extents;
            if !map.complete {
                let end = extents.last().map_or(0, |e| e.range().end);
                if end < open.size {
                    extents.push(rest(end));
                }
            }
            extents
        }
        None => vec![rest(0)],
    }
}

/// Bytes of `range` that are not cached; all of them where the kernel does not tell or `nothing_cached`.
fn missing(open: &Open, range: Range<u64>, nothing_cached: bool) -> u64 {
    let len = range.end - range.start;
    if nothing_cached {
        return len;
    }
    match cache::cached_pages(open.file.as_fd(), range) {
        Ok(cached) => {
            let pages = units::pages_of(len).saturating_sub(cached);
            (pages * PAGE).min(len)
        }
        Err(_) => len,
    }
}

/// What planning needs to know of a device.
#[derive(Clone, Copy)]
struct DeviceFacts {
    chunk: u64,
    in_memory: bool,
}

/// Devices already looked up, by st_dev.
#[derive(Default)]
struct Devices(Mutex<HashMap<u64, DeviceFacts>>);

impl Devices {
    fn of(&self, open: &Open) -> DeviceFacts {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(open.key.dev).or_insert_with(|| {
            let device = Device::of_fd(open.file.as_fd()).ok();
            DeviceFacts {
                chunk: device
                    .as_ref()
                    .map_or(cache::UNCLIPPED_CHUNK, Device::unclipped_chunk),
                in_memory: device.is_some_and(|d| d.is_memory()),
            }
        })
    }
}

/// How much may be read, and why.
struct Budget {
    bytes: u64,
    why: String,
}

/// What may be cached without pushing other things out: half of what the machine has available, and most
/// of the headroom of the tightest cgroup.
fn automatic_budget(memory: &Memory) -> Budget {
    let half = memory.available / 2;
    match memory.tightest() {
        Some(cgroup) if (cgroup.headroom() as f64 * HEADROOM_SHARE) < half as f64 => Budget {
            bytes: (cgroup.headroom() as f64 * HEADROOM_SHARE) as u64,
            why: format!("90 % of what cgroup {} has left", show(&cgroup.path)),
        },
        _ => Budget {
            bytes: half,
            why: "half of the available memory".to_owned(),
        },
    }
}

/// What the reading threads share.
struct Shared<'a> {
    pieces: &'a [Piece],
    files: &'a [Found],
    keys: &'a HashMap<u32, InodeKey>,
    next: AtomicUsize,
    /// Bytes that may be in flight, per thread.
    window: AtomicU64,
    /// Bytes arrived.
    done: AtomicU64,
    problems: Mutex<HashMap<u32, io::Error>>,
    /// Files that vanished, shrank or were replaced while we ran.
    changed: Mutex<HashSet<u32>>,
}

/// One thread: starts pieces up to the window, then reads the oldest.
fn read_pieces(shared: &Shared<'_>, pieces_allowed: usize) {
    let mut kept: VecDeque<(u32, Arc<File>)> = VecDeque::new();
    let mut started: VecDeque<(Piece, Arc<File>)> = VecDeque::new();
    let mut in_flight = 0;
    let mut buffer = vec![0u8; cache::UNCLIPPED_CHUNK as usize];
    loop {
        let window = shared.window.load(Ordering::Relaxed);
        let mut exhausted = false;
        while started.is_empty() || (in_flight < window && started.len() < pieces_allowed) {
            let Some(piece) = shared
                .pieces
                .get(shared.next.fetch_add(1, Ordering::Relaxed))
            else {
                exhausted = true;
                break;
            };
            let Some(file) = open_kept(shared, &mut kept, piece.file) else {
                continue;
            };
            // A refusal shows when the piece is read.
            let _ = cache::will_need_once(
                file.as_fd(),
                piece.start..piece.start + u64::from(piece.len),
            );
            in_flight += u64::from(piece.len);
            started.push_back((*piece, file));
        }
        let Some((piece, file)) = started.pop_front() else {
            if exhausted {
                return;
            }
            continue;
        };
        in_flight -= u64::from(piece.len);
        let arrived = arrive(&file, &piece, &mut buffer);
        match arrived {
            Ok(n) => {
                shared.done.fetch_add(n, Ordering::Relaxed);
                if n < u64::from(piece.len) {
                    shared
                        .changed
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(piece.file);
                }
            }
            Err(e) => {
                let mut problems = shared
                    .problems
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                problems.entry(piece.file).or_insert(e);
            }
        }
    }
}

/// Reads a piece, which waits for its pages, and returns how many bytes there were.
fn arrive(file: &File, piece: &Piece, buffer: &mut [u8]) -> io::Result<u64> {
    let mut read = 0;
    while read < u64::from(piece.len) {
        let want = (u64::from(piece.len) - read).min(buffer.len() as u64) as usize;
        match file.read_at(&mut buffer[..want], piece.start + read) {
            Ok(0) => break,
            Ok(n) => read += n as u64,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read)
}

/// The open file of a piece, from those kept open if it is there.
fn open_kept(
    shared: &Shared<'_>,
    kept: &mut VecDeque<(u32, Arc<File>)>,
    index: u32,
) -> Option<Arc<File>> {
    if let Some((_, file)) = kept.iter().find(|(i, _)| *i == index) {
        return Some(Arc::clone(file));
    }
    let open = match tree::open(&shared.files[index as usize]) {
        Ok(Some(open)) if shared.keys.get(&index) == Some(&open.key) => open,
        Ok(_) => {
            shared
                .changed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(index);
            return None;
        }
        Err(e) => {
            shared
                .problems
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(index)
                .or_insert(e);
            return None;
        }
    };
    // What is read is what was planned: no readahead of the kernel's on top.
    let _ = cache::advise_random(open.file.as_fd());
    let file = Arc::new(open.file);
    kept.push_front((index, Arc::clone(&file)));
    kept.truncate(KEPT_OPEN);
    Some(file)
}

/// Finds how much must be in flight: doubles it while that gains at least a tenth, else goes one step
/// back and stays. A step without gain is given a second chance, because one that is disturbed by a
/// busy machine would settle the matter for the whole run.
struct Tuner {
    total: u64,
    settled: bool,
    doubts: u32,
    since: Instant,
    done: u64,
    rate: f64,
}

impl Tuner {
    /// Long enough for several round trips to a device with 15 ms latency.
    const STEP: Duration = Duration::from_millis(100);

    fn new(now: Instant) -> Self {
        Self {
            total: IN_FLIGHT.start,
            settled: false,
            doubts: 0,
            since: now,
            done: 0,
            rate: 0.0,
        }
    }

    /// Looks at the bytes done so far and returns the bytes that may be in flight from now on.
    fn step(&mut self, now: Instant, done: u64) -> u64 {
        let elapsed = now - self.since;
        if self.settled || elapsed < Self::STEP {
            return self.total;
        }
        let rate = (done - self.done) as f64 / elapsed.as_secs_f64();
        (self.since, self.done) = (now, done);
        if rate < self.rate * 1.1 && self.doubts == 0 {
            self.doubts = 1;
        } else if rate < self.rate * 1.1 {
            self.total = (self.total / 2).max(IN_FLIGHT.start);
            self.settled = true;
        } else if self.total >= IN_FLIGHT.end {
            self.settled = true;
        } else {
            self.rate = rate;
            self.doubts = 0;
            self.total *= 2;
        }
        self.total
    }
}

/// Runs the subcommand. Exit code 1 if some file below a directory could not be read.
pub fn command(args: &WarmArgs) -> Outcome {
    let began = Instant::now();
    let listing = tree::list(&args.paths)?;
    let budget = match args.budget {
        Some(bytes) => Budget {
            bytes,
            why: "--budget".to_owned(),
        },
        None => automatic_budget(&memory::memory()),
    };

    // Plan in inode order, which is how inode tables lie on the device.
    let devices = Devices::default();
    let mut order: Vec<u32> = (0..listing.files.len() as u32).collect();
    order.sort_by_key(|i| listing.files[*i as usize].ino);
    let mut plans: Vec<(u32, io::Result<Option<FilePlan>>)> = order
        .iter()
        .copied()
        .zip(tree::parallel(&order, tree::METADATA_THREADS, |i| {
            plan(&listing.files[*i as usize], *i, &devices)
        }))
        .collect();
    plans.sort_by_key(|(i, _)| *i);

    // Spend the budget in the order of the command line, so that what is left out is the end of it.
    let mut problems = listing.problems;
    let mut seen = HashSet::new();
    let mut keys = HashMap::new();
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut planned, mut cached, mut empty, mut left_out) = (0, 0, 0, 0);
    let (mut files, mut hidden, mut files_left) = (0usize, 0usize, Vec::new());
    for (index, result) in plans {
        let plan = match result {
            Ok(Some(plan)) if seen.insert(plan.key) => plan,
            Ok(_) => continue,
            Err(e) => {
                problems.push((listing.files[index as usize].path.clone(), e));
                continue;
            }
        };
        files += 1;
        hidden += usize::from(plan.hidden);
        cached += plan.cached.min(plan.size);
        empty += plan.empty;
        keys.insert(index, plan.key);
        let mut whole = true;
        for (piece, missing) in plan.pieces {
            // Once something did not fit, nothing after it is taken either.
            if left_out == 0 && planned + missing <= budget.bytes {
                planned += missing;
                pieces.push(piece);
            } else {
                left_out += missing;
                whole = false;
            }
        }
        if !whole {
            files_left.push(index);
        }
    }
    pieces.sort_unstable();

    let shared = Shared {
        pieces: &pieces,
        files: &listing.files,
        keys: &keys,
        next: AtomicUsize::new(0),
        window: AtomicU64::new(IN_FLIGHT.start / args.jobs),
        done: AtomicU64::new(0),
        problems: Mutex::default(),
        changed: Mutex::default(),
    };
    let reading = Instant::now();
    read_all(&shared, args.jobs);
    let took = reading.elapsed();

    let lost = lost(&shared);
    let read = shared.done.load(Ordering::Relaxed);
    let failed = shared
        .problems
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let changed = shared
        .changed
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let mut failed: Vec<(PathBuf, io::Error)> = failed
        .into_iter()
        .map(|(i, e)| (listing.files[i as usize].path.clone(), e))
        .collect();
    failed.sort_by(|a, b| a.0.cmp(&b.0));
    problems.append(&mut failed);

    let mut out = io::stdout().lock();
    let rate = if read > 0 && took.as_secs_f64() > 0.0 {
        format!(
            " in {:.2} s ({}/s)",
            took.as_secs_f64(),
            bytes((read as f64 / took.as_secs_f64()) as u64)
        )
    } else {
        String::new()
    };
    writeln!(out, "read      {:>10}{rate}", bytes(read))?;
    write!(out, "cached    {:>10} already", bytes(cached))?;
    if hidden > 0 {
        write!(
            out,
            "; {} hidden by the kernel were read, cached or not",
            output::count(hidden, "file")
        )?;
    }
    writeln!(out)?;
    if empty > 0 {
        writeln!(out, "holes     {:>10} need no reading", bytes(empty))?;
    }
    if left_out > 0 {
        let first = files_left
            .first()
            .map(|i| show(&listing.files[*i as usize].path));
        writeln!(
            out,
            "left out  {:>10} in {}, from {} on: the budget is {} ({}); --budget SIZE sets another",
            bytes(left_out),
            output::count(files_left.len(), "file"),
            first.unwrap_or_default(),
            bytes(budget.bytes),
            budget.why,
        )?;
    }
    if lost > 0 {
        writeln!(
            out,
            "lost      {:>10} were pushed out again: memory is short",
            bytes(lost)
        )?;
    }
    if !changed.is_empty() {
        writeln!(
            out,
            "changed   {:>10} removed or cut short meanwhile",
            output::count(changed.len(), "file")
        )?;
    }
    writeln!(
        out,
        "{} in {:.2} s",
        output::count(files, "file"),
        began.elapsed().as_secs_f64()
    )?;
    out.flush()?;
    drop(out);
    for (path, e) in &problems {
        output::complain(&format!("{}: {e}", show(path)));
    }
    Ok(i32::from(!problems.is_empty()))
}

/// Reads all pieces with `jobs` threads while this one shows progress and tunes what is in flight.
fn read_all(shared: &Shared<'_>, jobs: u64) {
    if shared.pieces.is_empty() {
        return;
    }
    let total = shared.pieces.iter().map(|p| u64::from(p.len)).sum();
    let bar = if io::stderr().is_terminal() {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(
            "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        ) {
            bar.set_style(style);
        }
        bar
    } else {
        ProgressBar::hidden()
    };
    std::thread::scope(|scope| {
        let (ended, news) = mpsc::channel::<()>();
        for _ in 0..jobs {
            let ended = ended.clone();
            scope.spawn(move || {
                read_pieces(shared, PIECES_IN_FLIGHT / jobs as usize);
                drop(ended);
            });
        }
        drop(ended);
        let mut tuner = Tuner::new(Instant::now());
        // Nothing is ever sent: the channel closes when the last thread has ended.
        while news.recv_timeout(Duration::from_millis(20)) == Err(mpsc::RecvTimeoutError::Timeout) {
            let done = shared.done.load(Ordering::Relaxed);
            bar.set_position(done);
            shared
                .window
                .store(tuner.step(Instant::now(), done) / jobs, Ordering::Relaxed);
        }
    });
    bar.finish_and_clear();
}

/// Bytes that were read and are not in the cache any more, where the kernel tells.
fn lost(shared: &Shared<'_>) -> u64 {
    let mut by_file: HashMap<u32, Vec<Range<u64>>> = HashMap::new();
    for piece in shared.pieces {
        by_file
            .entry(piece.file)
            .or_default()
            .push(piece.start..piece.start + u64::from(piece.len));
    }
    let mut files: Vec<(u32, Vec<Range<u64>>)> = by_file.into_iter().collect();
    files.sort_unstable_by_key(|(i, _)| *i);
    tree::parallel(&files, tree::METADATA_THREADS, |(index, ranges)| {
        let Ok(Some(open)) = tree::open(&shared.files[*index as usize]) else {
            return 0;
        };
        if shared.keys.get(index) != Some(&open.key) {
            return 0;
        }
        ranges
            .iter()
            .map(|r| r.start..r.end.min(open.size))
            .filter(|r| r.start < r.end)
            .filter_map(|r| {
                let pages = units::pages_of(r.end - r.start);
                let cached = cache::cached_pages(open.file.as_fd(), r).ok()?;
                Some(pages.saturating_sub(cached) * PAGE)
            })
            .sum::<u64>()
    })
    .into_iter()
    .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_flight_grows_while_it_pays_and_no_longer() {
        let start = Instant::now();
        let mut tuner = Tuner::new(start);
        // A device that needs 8 MiB in flight: rate is proportional up to there.
        let (mut now, mut done) = (start, 0);
        for _ in 0..10 {
            now += Tuner::STEP;
            done += tuner.total.min(8 << 20) * 10;
            tuner.step(now, done);
        }
        assert_eq!(tuner.total, 8 << 20);
    }

    #[test]
    fn the_tightest_limit_is_the_budget() {
        let mut memory = Memory {
            total: 8 << 30,
            available: 4 << 30,
            ..Memory::default()
        };
        assert_eq!(automatic_budget(&memory).bytes, 2 << 30);
        memory.cgroups.push(memory::CgroupMemory {
            path: "/sys/fs/cgroup/x".into(),
            version: memory::CgroupVersion::V2,
            limit: 1000,
            usage: 900,
            inactive_file: 400,
            active_file: 0,
            dirty: 0,
            mapped: 0,
        });
        assert_eq!(automatic_budget(&memory).bytes, 450);
    }
}
