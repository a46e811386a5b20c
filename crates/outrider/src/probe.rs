//! `outrider probe`: measures the device under a path.
//!
//! What a planner needs of a device is how long a request takes before its first byte arrives (latency),
//! how fast bytes follow (bandwidth), and how many requests it serves at once. All reads go around the page
//! cache (`O_DIRECT`) where the file system can do that, else to pages that are not cached, which are
//! dropped again. A file's contents are never touched. Everything is bounded: about three seconds and
//! 64 MiB of reads, fewer on a slow disk.
//!
//! The line time = latency + bytes / bandwidth is fitted to requests made one at a time, of 4 KiB to
//! 512 KiB: its slope is what one request gets. A device that serves several at once gives more to many;
//! that is measured apart, with large requests at depth 16.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use serde_json::{Value, json};

use outrider_core::config::Config;
use outrider_core::device::DeviceModel;
use outrider_core::engine;
use outrider_sys::cache;
use outrider_sys::device::Device;
use outrider_sys::extent;
use outrider_sys::units::{ByteRange, PAGE};

use crate::cli::ProbeArgs;
use crate::models;
use crate::output::{self, Failure, Outcome, bytes, show};
use crate::tree;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Smallest unit read; `O_DIRECT` wants multiples of the device's logical block.
const BLOCK: u64 = 4 * KIB;

/// Files smaller than this say too little.
const SMALLEST_FILE: u64 = MIB;

/// Size of a temporary file, and what a file found in a directory should have.
const WANTED_FILE: u64 = 64 * MIB;

/// Directory entries looked at for a large file.
const MAX_ENTRIES: usize = 4096;

/// Sizes of the requests that the line is fitted to, and how many of each are made at most.
const FIT_SIZES: [u64; 6] = [4 * KIB, 16 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB];
const FIT_READS: [usize; 6] = [64, 16, 12, 10, 8, 8];

/// Depths at which 4 KiB requests are counted, and how many are made at most.
const DEPTHS: [usize; 4] = [1, 4, 16, 64];
const DEPTH_READS: usize = 512;

/// Bandwidth is measured with this many requests of this size at once, over this many bytes.
const STREAM_DEPTH: usize = 16;
const STREAM_REQUEST: u64 = 512 * KIB;
const STREAM_BYTES: u64 = 24 * MIB;

/// Bytes asked for in one readahead call to see how many come, at least and at most.
const CLIP_REQUEST: ByteRange = 2 * MIB..20 * MIB;

/// Time for the single requests, for each depth, and for the stream.
const FIT_TIME: Duration = Duration::from_millis(900);
const DEPTH_TIME: Duration = Duration::from_millis(200);
const STREAM_TIME: Duration = Duration::from_millis(500);

/// The file that is read.
struct Target {
    /// For reading through the page cache.
    buffered: File,
    /// For reading around it.
    direct: Option<File>,
    size: u64,
    path: PathBuf,
    temporary: bool,
}

impl Target {
    /// The file to read from.
    fn reader(&self) -> &File {
        self.direct.as_ref().unwrap_or(&self.buffered)
    }

    fn new(buffered: File, path: PathBuf, temporary: bool) -> io::Result<Self> {
        let size = buffered.metadata()?.len() / BLOCK * BLOCK;
        let direct = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(format!("/proc/self/fd/{}", buffered.as_raw_fd()))
            .ok()
            // Some file systems accept the flag and refuse the read.
            .filter(|f| read_one(f, 0, &mut Buffer::new(BLOCK)).is_ok());
        Ok(Self {
            buffered,
            direct,
            size,
            path,
            temporary,
        })
    }
}

/// Memory that `O_DIRECT` accepts: page-aligned.
struct Buffer {
    at: *mut u8,
    layout: Layout,
}

// SAFETY: the buffer is owned memory without any tie to a thread.
unsafe impl Send for Buffer {}

impl Buffer {
    fn new(len: u64) -> Self {
        let Ok(layout) = Layout::from_size_align(len.max(1) as usize, BLOCK as usize) else {
            unreachable!("BLOCK is a power of two and lengths are small")
        };
        // SAFETY: the layout's size is not zero.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            handle_alloc_error(layout);
        }
        Self { at, layout }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `at` is valid for `size` bytes, initialised, and borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { dealloc(self.at, self.layout) };
    }
}

fn read_one(file: &File, offset: u64, buffer: &mut Buffer) -> io::Result<()> {
    match file.read_at(buffer.as_mut_slice(), offset)? {
        0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        _ => Ok(()),
    }
}

/// What a row of reads took.
#[derive(Debug, Default)]
struct Round {
    /// One entry a read.
    times: Vec<Duration>,
    elapsed: Duration,
    bytes: u64,
}

impl Round {
    fn per_second(&self, amount: f64) -> f64 {
        amount / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Reads `len` bytes at each of `offsets`, `depth` at a time, until the deadline: with io_uring where
/// allowed, else with as many threads. At least one read is made.
fn read_round(
    file: &File,
    offsets: &[u64],
    len: u64,
    depth: usize,
    limit: Duration,
    ring: bool,
) -> io::Result<Round> {
    if depth == 1 {
        let began = Instant::now();
        let mut buffer = Buffer::new(len);
        let mut round = Round::default();
        for offset in offsets {
            let start = Instant::now();
            read_one(file, *offset, &mut buffer)?;
            round.times.push(start.elapsed());
            round.bytes += len;
            if began.elapsed() >= limit {
                break;
            }
        }
        round.elapsed = began.elapsed();
        return Ok(round);
    }
    if ring && let Ok(mut ring) = IoUring::new(depth as u32) {
        return read_round_ring(&mut ring, file, offsets, len, depth, limit);
    }
    read_round_threads(file, offsets, len, depth, limit)
}

fn read_round_ring(
    ring: &mut IoUring,
    file: &File,
    offsets: &[u64],
    len: u64,
    depth: usize,
    limit: Duration,
) -> io::Result<Round> {
    let mut buffers: Vec<Buffer> = (0..depth.min(offsets.len()))
        .map(|_| Buffer::new(len))
        .collect();
    let mut started = vec![Instant::now(); buffers.len()];
    let mut free: Vec<usize> = (0..buffers.len()).collect();
    let mut round = Round::default();
    let mut offsets = offsets.iter();
    let mut in_flight = 0;
    let mut failed = None;
    let began = Instant::now();
    loop {
        while let Some(slot) = free.pop() {
            let open = failed.is_none() && (round.times.is_empty() || began.elapsed() < limit);
            let Some(offset) = offsets.next().filter(|_| open) else {
                free.push(slot);
                break;
            };
            let entry =
                opcode::Read::new(types::Fd(file.as_raw_fd()), buffers[slot].at, len as u32)
                    .offset(*offset)
                    .build()
                    .user_data(slot as u64);
            started[slot] = Instant::now();
            // SAFETY: the buffer stays allocated and untouched until the completion for its slot
            // arrives; every request submitted is waited for below, also after a failure.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                free.push(slot);
                break;
            }
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                // The kernel may still write into the buffers: they must outlive the ring.
                std::mem::forget(buffers);
                return Err(e);
            }
        }
        for done in ring.completion() {
            let slot = done.user_data() as usize;
            in_flight -= 1;
            free.push(slot);
            match done.result() {
                0 => failed = Some(io::ErrorKind::UnexpectedEof.into()),
                e if e < 0 => failed = Some(io::Error::from_raw_os_error(-e)),
                _ => {}
            }
            round.times.push(started[slot].elapsed());
            round.bytes += len;
        }
    }
    round.elapsed = began.elapsed();
    buffers.clear();
    failed.map_or(Ok(round), Err)
}

fn read_round_threads(
    file: &File,
    offsets: &[u64],
    len: u64,
    depth: usize,
    limit: Duration,
) -> io::Result<Round> {
    let next = AtomicUsize::new(0);
    let times = Mutex::new(Ok(Vec::new()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..depth.min(offsets.len()) {
            // A thread that cannot start leaves its share to the others.
            let _ = std::thread::Builder::new()
                .stack_size(128 << 10)
                .spawn_scoped(scope, || {
                    let mut buffer = Buffer::new(len);
                    let mut own = Vec::new();
                    let mut failed = None;
                    while let Some(offset) = offsets.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let start = Instant::now();
                        if let Err(e) = read_one(file, *offset, &mut buffer) {
                            failed = Some(e);
                            break;
                        }
                        own.push(start.elapsed());
                        if began.elapsed() >= limit {
                            break;
                        }
                    }
                    let mut all = times
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    match (failed, all.as_mut()) {
                        (Some(e), _) => *all = Err(e),
                        (None, Ok(all)) => all.append(&mut own),
                        _ => {}
                    }
                });
        }
    });
    let elapsed = began.elapsed();
    let times: Vec<Duration> = times
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)?;
    Ok(Round {
        bytes: times.len() as u64 * len,
        times,
        elapsed,
    })
}

/// Where reads may go: stretches of the file that lie on the device.
struct Places {
    ranges: Vec<ByteRange>,
    total: u64,
    used: HashSet<u64>,
    seed: u64,
}

impl Places {
    fn of(target: &Target) -> Self {
        let ranges: Vec<ByteRange> =
            match extent::extents(target.buffered.as_fd(), 0..target.size, 4096) {
                Some(map) => map
                    .extents
                    .iter()
                    .filter(|e| e.costs_io())
                    .map(|e| {
                        e.logical.div_ceil(BLOCK) * BLOCK
                            ..e.range().end.min(target.size) / BLOCK * BLOCK
                    })
                    .filter(|r| r.start < r.end)
                    .collect(),
                None => std::iter::once(0..target.size).collect(),
            };
        // Different reads on every run: what the device itself has cached must not answer.
        let seed = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |d| d.as_nanos() as u64)
            | 1;
        let total = ranges.iter().map(|r| r.end - r.start).sum();
        Self {
            ranges,
            total,
            used: HashSet::new(),
            seed,
        }
    }

    /// xorshift64 (Marsaglia 2003).
    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    /// Up to `n` random places for `len` bytes each, not twice the same block if that can be had.
    fn pick(&mut self, target: &Target, n: usize, len: u64) -> Vec<u64> {
        let mut picked = Vec::new();
        for _ in 0..n * 4 {
            if picked.len() == n || self.total == 0 {
                break;
            }
            let mut at = self.random() % self.total / BLOCK * BLOCK;
            let Some(range) = self.ranges.iter().find(|r| {
                let here = at < r.end - r.start;
                if !here {
                    at -= r.end - r.start;
                }
                here
            }) else {
                continue;
            };
            // Aligned to their size, so that places of one size do not overlap.
            let offset = (range.start + at) / len * len;
            if offset < range.start || offset + len > range.end {
                continue;
            }
            let full = self.used.len() as u64 * BLOCK * 2 > self.total;
            if !suitable(target, offset..offset + len) || (!self.used.insert(offset) && !full) {
                continue;
            }
            picked.push(offset);
        }
        picked
    }

    /// Up to `n` places of `len` bytes that follow each other, from a random one on.
    fn run(&mut self, target: &Target, n: usize, len: u64) -> Vec<u64> {
        let longest = self.ranges.iter().max_by_key(|r| r.end - r.start).cloned();
        let Some(range) = longest else {
            return Vec::new();
        };
        let slots = (range.end - range.start) / len;
        if slots == 0 {
            return Vec::new();
        }
        let first = self.random() % (slots.saturating_sub(n as u64) + 1);
        (first..slots.min(first + n as u64))
            .map(|i| range.start + i * len)
            .filter(|at| suitable(target, *at..*at + len))
            .collect()
    }
}

/// Around the cache, a range without dirty pages, which the kernel would write first. Through the cache, one
/// of which nothing is cached.
fn suitable(target: &Target, range: ByteRange) -> bool {
    match cache::cachestat(target.buffered.as_fd(), range) {
        Ok(stat) if target.direct.is_some() => stat.dirty + stat.writeback == 0,
        Ok(stat) => stat.cached == 0,
        Err(_) => true,
    }
}

fn median(times: &[Duration]) -> Option<f64> {
    let mut us: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e6).collect();
    us.sort_by(f64::total_cmp);
    us.get(us.len() / 2).copied()
}

/// The line time = latency + bytes / bandwidth through (bytes, µs) by least squares: (latency µs, bytes per
/// µs). `None` if the points do not rise.
fn fit(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let n = points.len() as f64;
    let mean_x = points.iter().map(|p| p.0).sum::<f64>() / n;
    let mean_y = points.iter().map(|p| p.1).sum::<f64>() / n;
    let xx = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum::<f64>();
    let xy = points
        .iter()
        .map(|p| (p.0 - mean_x) * (p.1 - mean_y))
        .sum::<f64>();
    let slope = xy / xx;
    let latency = mean_y - slope * mean_x;
    (slope.is_finite() && slope > 0.0 && latency.is_finite()).then_some((latency, 1.0 / slope))
}

/// All that was measured. Times in µs, bandwidths in bytes per second.
struct Measured {
    latency_p50: f64,
    /// Median time of one request of each size, µs.
    sizes: Vec<(u64, f64)>,
    fit: Option<(f64, f64)>,
    /// Reads per second at each depth.
    iops: Vec<(usize, f64)>,
    stream: f64,
    /// Bytes asked for in one readahead call, and bytes obtained.
    clip: Option<(u64, u64)>,
    read: u64,
    took: Duration,
}

fn measure(target: &Target, device: Option<&Device>) -> io::Result<Measured> {
    let began = Instant::now();
    let mut places = Places::of(target);
    let file = target.reader();
    // Reads through the cache by a ring would wait in the kernel's own threads: there, threads of ours.
    let ring = target.direct.is_some();
    if !ring {
        cache::advise_random(file.as_fd())?;
    }
    let mut touched: Vec<(u64, u64)> = Vec::new();
    let mut read = 0;
    let mut round = |offsets: Vec<u64>, len: u64, depth: usize, limit: Duration| {
        let done = read_round(file, &offsets, len, depth, limit, ring)?;
        read += done.bytes;
        touched.extend(offsets.iter().map(|o| (*o, len)));
        io::Result::Ok(done)
    };

    let mut sizes = Vec::new();
    for (len, n) in FIT_SIZES.into_iter().zip(FIT_READS) {
        let offsets = places.pick(target, n, len);
        // A share of the time by size of the job, so that slow disks keep all points of the line.
        let done = round(offsets, len, 1, FIT_TIME / FIT_SIZES.len() as u32)?;
        if let Some(us) = median(&done.times) {
            sizes.push((len, us));
        }
    }
    let Some(latency_p50) = sizes.first().filter(|s| s.0 == BLOCK).map(|s| s.1) else {
        return Err(io::Error::other(
            "no part of it can be measured: all is cached, not yet written or a hole; name another file or a directory",
        ));
    };
    let mut iops = Vec::new();
    for depth in DEPTHS {
        let offsets = places.pick(target, DEPTH_READS.min(depth * 64), BLOCK);
        let done = round(offsets, BLOCK, depth, DEPTH_TIME)?;
        if !done.times.is_empty() {
            iops.push((depth, done.per_second(done.times.len() as f64)));
        }
    }
    let n = (STREAM_BYTES / STREAM_REQUEST) as usize;
    let offsets = places.run(target, n, STREAM_REQUEST);
    let done = round(offsets, STREAM_REQUEST, STREAM_DEPTH, STREAM_TIME)?;
    let points: Vec<(f64, f64)> = sizes.iter().map(|(len, us)| (*len as f64, *us)).collect();
    let fit = fit(&points);
    let single = fit.map_or(BLOCK as f64 / latency_p50, |f| f.1) * 1e6;
    let stream = done.per_second(done.bytes as f64).max(single);

    if target.direct.is_none() {
        for (at, len) in touched {
            cache::drop_range(target.buffered.as_fd(), at..at + len)?;
        }
    }
    let clip = measure_clip(target, device);
    read += clip.map_or(0, |c| c.1);
    Ok(Measured {
        latency_p50,
        sizes,
        fit,
        iops,
        stream,
        clip,
        read,
        took: began.elapsed(),
    })
}

/// Asks for more in one call than the device's declared limit and counts what came: (asked, obtained), in
/// bytes. `None` where no stretch of the file is free of cached pages, or the kernel does not tell.
fn measure_clip(target: &Target, device: Option<&Device>) -> Option<(u64, u64)> {
    // The limit is copied when a file is opened, and reading sequentially changes it: a fresh one.
    let file = File::open(format!("/proc/self/fd/{}", target.buffered.as_raw_fd())).ok()?;
    let declared = device.and_then(Device::readahead_clip).unwrap_or(0);
    let want = (2 * declared)
        .clamp(CLIP_REQUEST.start, CLIP_REQUEST.end)
        .min(target.size);
    let cached = |range: ByteRange| cache::cachestat(file.as_fd(), range).ok().map(|s| s.cached);
    let mut start = 0;
    while cached(start..start + want)? != 0 {
        start += want;
        if start + want > target.size {
            return None;
        }
    }
    let range = start..start + want;
    engine::ask(file.as_fd(), range.clone()).ok()?;
    let obtained = (cached(range.clone())? * PAGE).min(want);
    // Pages on their way cannot be dropped: wait for them.
    let _ = engine::bring(file.as_fd(), start..start + obtained);
    let _ = cache::drop_range(file.as_fd(), range);
    Some((want, obtained))
}

/// Finds or makes a file to read.
fn target(path: &Path) -> Result<Target, Failure> {
    let fail = |e: io::Error| Failure::usage(format!("{}: {e}", show(path)));
    let meta = tree::attributes(path)?;
    if meta.is_file() {
        if meta.len() < SMALLEST_FILE {
            return Err(Failure::usage(format!(
                "{}: too small to measure; accepted are a file of at least 1 MiB or a directory",
                show(path)
            )));
        }
        return Target::new(File::open(path).map_err(fail)?, path.to_owned(), false).map_err(fail);
    }
    fs::read_dir(path).map_err(fail)?;
    if let Some((file, found)) = large_file(path, meta.dev()) {
        return Target::new(file, found, false).map_err(fail);
    }
    let file = temporary_file(path).map_err(|e| {
        Failure::usage(format!(
            "{}: no readable file of 1 MiB or more in it, and a temporary one cannot be made: {e}",
            show(path)
        ))
    })?;
    Target::new(file, path.to_owned(), true).map_err(fail)
}

/// The largest readable file below a directory, of those among its first entries; the search ends at one
/// that is large enough.
fn large_file(root: &Path, device: u64) -> Option<(File, PathBuf)> {
    let mut best: Option<(u64, File, PathBuf)> = None;
    let mut directories = vec![root.to_owned()];
    let mut looked_at = 0;
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            looked_at += 1;
            if looked_at > MAX_ENTRIES {
                return best.map(|(_, file, path)| (file, path));
            }
            let Ok(meta) = entry.metadata() else { continue };
            if meta.dev() != device {
                continue;
            }
            if meta.is_dir() {
                directories.push(entry.path());
            }
            // Blocks count, not the size: a sparse file has nothing to read.
            let size = meta.len().min(meta.blocks() * 512);
            let least = best.as_ref().map_or(SMALLEST_FILE, |b| b.0 + 1);
            if !meta.is_file() || size < least {
                continue;
            }
            let Ok(file) = File::open(entry.path()) else {
                continue;
            };
            let dirty = cache::cachestat(file.as_fd(), 0..meta.len())
                .is_ok_and(|s| s.dirty + s.writeback > 0);
            if dirty {
                continue;
            }
            best = Some((size, file, entry.path()));
            if size >= WANTED_FILE {
                return best.map(|(_, file, path)| (file, path));
            }
        }
    }
    best.map(|(_, file, path)| (file, path))
}

/// A file without a name that goes away with its descriptor, of random bytes, on the device and not in the
/// cache.
fn temporary_file(directory: &Path) -> io::Result<File> {
    let anonymous = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_EXCL)
        .open(directory);
    let file = match anonymous {
        Ok(file) => file,
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
            ) =>
        {
            let name = directory.join(format!(".outrider-probe-{}", std::process::id()));
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&name)?;
            fs::remove_file(&name)?;
            file
        }
        Err(e) => return Err(e),
    };
    // Random bytes: a device or file system that compresses must not have it easy.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = vec![0u8; MIB as usize];
    let began = Instant::now();
    let mut size = 0;
    while size < WANTED_FILE && (size < 8 * MIB || began.elapsed() < Duration::from_millis(700)) {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        match file.write_all_at(&block, size) {
            Ok(()) => size += MIB,
            Err(_) if size >= SMALLEST_FILE => break,
            Err(e) => return Err(e),
        }
        if size % (8 * MIB) == 0 {
            file.sync_data()?;
        }
    }
    file.sync_data()?;
    cache::drop_all(file.as_fd())?;
    Ok(file)
}

/// What a planner makes of the measurement.
struct Assumed {
    /// µs before a request's first byte.
    latency: f64,
    /// Bytes per second.
    bandwidth: f64,
    /// latency x bandwidth, bytes: what must be in flight for the device never to wait.
    product: u64,
    /// Bytes of a gap between two requests up to which it is read through: only a head moves further than it reads.
    gap: u64,
    /// Bytes in flight where nobody else reads, to begin with …
    in_flight: u64,
    /// … and at most, where more brings more.
    most: u64,
}

fn assume(measured: &Measured) -> Assumed {
    let latency = measured
        .fit
        .map_or(measured.latency_p50, |f| f.0)
        // A line through noisy points may cross zero; a request is never faster than that.
        .max(measured.latency_p50 / 4.0);
    let model = DeviceModel::saved(latency, measured.stream / 1e6).unwrap_or_default();
    let engine = Config::default().engine;
    let (least, most) = (engine.in_flight_min.bytes(), engine.in_flight_max.bytes());
    Assumed {
        latency,
        bandwidth: measured.stream,
        product: model.bandwidth_delay(),
        gap: model.merge_gap(),
        in_flight: model.reserve().clamp(least, most),
        most,
    }
}

/// Runs the subcommand. Exit code 1 if the device cannot be measured.
pub fn command(args: &ProbeArgs) -> Outcome {
    tree::attributes(&args.path)?;
    let device = Device::of_path(&args.path)
        .map_err(|e| Failure::usage(format!("{}: {e}", show(&args.path))))?;
    if device.is_memory() {
        if args.json {
            output::print_json(
                &json!({"device": device_json(&device), "measured": null, "planner": null}),
            )?;
        } else {
            let fs_type = device.mount.as_ref().map_or("", |m| m.fs_type.as_str());
            println!(
                "{} is on {fs_type}: its files live in memory, there is nothing to measure",
                show(&args.path)
            );
        }
        return Ok(0);
    }
    let target = target(&args.path)?;
    let measured = measure(&target, Some(&device))
        .map_err(|e| Failure::system(format!("{}: {e}", show(&target.path))))?;
    let assumed = assume(&measured);
    if args.json {
        output::print_json(&to_json(&device, &target, &measured, &assumed))?;
    } else {
        report(&device, &target, &measured, &assumed)?;
    }
    if args.save {
        let path = models::save(target.reader(), assumed.latency, assumed.bandwidth)?;
        if !args.json {
            println!(
                "\nkept in {}: outrider run begins with it on this file system",
                show(&path)
            );
        }
    }
    Ok(0)
}

fn device_json(device: &Device) -> Value {
    let queue = device.queue.as_ref();
    let shown = json!({
        "id": device.id.to_string(),
        "block_device": device.block_name,
        "fs_type": device.mount.as_ref().map(|m| &m.fs_type),
        "mount_point": null,
        "read_ahead_bytes": device.read_ahead,
        "max_request_bytes": queue.and_then(|q| q.max_request),
        "rotational": queue.and_then(|q| q.rotational),
        "scheduler": queue.and_then(|q| q.scheduler.as_ref()),
        "declared_clip_bytes": device.readahead_clip(),
    });
    match &device.mount {
        Some(mount) => output::with_path(shown, "mount_point", &mount.mount_point),
        None => shown,
    }
}

fn to_json(device: &Device, target: &Target, m: &Measured, a: &Assumed) -> Value {
    json!({
        "device": device_json(device),
        "file": output::with_path(
            json!({
                "temporary": target.temporary,
                "direct": target.direct.is_some(),
            }),
            "path",
            &target.path,
        ),
        "measured": {
            "latency_4k_p50_us": m.latency_p50,
            "request_time_us": m.sizes.iter().map(|(len, us)| json!({"bytes": len, "us": us})).collect::<Vec<_>>(),
            "fit": m.fit.map(|(latency, rate)| json!({"latency_us": latency, "bandwidth_bytes_per_s": rate * 1e6})),
            "iops_4k": m.iops.iter().map(|(depth, n)| json!({"depth": depth, "iops": n})).collect::<Vec<_>>(),
            "bandwidth_bytes_per_s": m.stream,
            "readahead": m.clip.map(|(asked, got)| json!({
                "asked_bytes": asked,
                "obtained_bytes": got,
                "clipped": got < asked,
            })),
            "read_bytes": m.read,
            "seconds": m.took.as_secs_f64(),
        },
        "planner": {
            "latency_us": a.latency,
            "bandwidth_bytes_per_s": a.bandwidth,
            "bandwidth_delay_product_bytes": a.product,
            "merge_gap_bytes": a.gap,
            "in_flight_bytes": a.in_flight,
            "in_flight_cap_bytes": a.most,
        },
    })
}

fn report(device: &Device, target: &Target, m: &Measured, a: &Assumed) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    let micros = output::micros();
    let per_second = |rate: f64| format!("{}/s", bytes(rate as u64));
    let name = device.block_name.as_deref().unwrap_or("no block device");
    let fs_type = device
        .mount
        .as_ref()
        .map_or("unknown file system".to_owned(), |m| show(&m.fs_type));
    writeln!(out, "device        {name} ({}), {fs_type}", device.id)?;
    if let Some(queue) = &device.queue {
        let claims = match queue.rotational {
            Some(true) => "claims to rotate",
            Some(false) => "claims not to rotate",
            None => "does not say whether it rotates",
        };
        writeln!(
            out,
            "declared      {claims}, scheduler {}",
            queue.scheduler.as_deref().unwrap_or("unknown")
        )?;
    }
    let kind = if target.temporary {
        "temporary file in "
    } else {
        ""
    };
    let way = if target.direct.is_some() {
        "around the cache"
    } else {
        "through the cache"
    };
    writeln!(
        out,
        "read          {kind}{}, {way}: {} in {:.1} s",
        show(&target.path),
        bytes(m.read),
        m.took.as_secs_f64()
    )?;
    writeln!(out)?;
    writeln!(out, "measured")?;
    writeln!(
        out,
        "  4 KiB read, one at a time   {:.0} {micros} (median)",
        m.latency_p50
    )?;
    for (len, us) in m.sizes.iter().skip(1) {
        writeln!(
            out,
            "  {:>9} read             {us:.0} {micros}",
            bytes(*len)
        )?;
    }
    if let Some((latency, rate)) = m.fit {
        writeln!(
            out,
            "  fitted line                 {latency:.0} {micros} + bytes / {}",
            per_second(rate * 1e6)
        )?;
    }
    for (depth, iops) in &m.iops {
        writeln!(
            out,
            "  4 KiB reads, {depth:>2} at once      {iops:.0} per s"
        )?;
    }
    writeln!(
        out,
        "  512 KiB reads, 16 at once   {}",
        per_second(m.stream)
    )?;
    let declared = device.readahead_clip().map_or("nothing".to_owned(), bytes);
    match m.clip {
        Some((asked, got)) if got < asked => writeln!(
            out,
            "  one readahead call          {} of {} asked (declared limit {declared})",
            bytes(got),
            bytes(asked)
        )?,
        Some((asked, _)) => writeln!(
            out,
            "  one readahead call          all of {} asked (declared limit {declared})",
            bytes(asked)
        )?,
        None => writeln!(
            out,
            "  one readahead call          not measured (declared limit {declared})"
        )?,
    }
    writeln!(out)?;
    writeln!(out, "the planner will assume")?;
    writeln!(
        out,
        "  latency                     {:.0} {micros}",
        a.latency
    )?;
    writeln!(
        out,
        "  bandwidth                   {}",
        per_second(a.bandwidth)
    )?;
    writeln!(out, "  bandwidth-delay product     {}", bytes(a.product))?;
    match a.gap {
        0 => writeln!(
            out,
            "  merge gap                   none (gaps are not read through)"
        )?,
        gap => writeln!(
            out,
            "  merge gap                   {} (a smaller gap is read through)",
            bytes(gap)
        )?,
    }
    writeln!(
        out,
        "  in flight                   {}, up to {} where more brings more; less beside others",
        bytes(a.in_flight),
        bytes(a.most)
    )?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let points: Vec<(f64, f64)> = [4096.0, 65536.0, 524_288.0]
            .map(|x| (x, 100.0 + x / 1000.0))
            .to_vec();
        let (latency, rate) = fit(&points).unwrap();
        assert!((latency - 100.0).abs() < 1e-6 && (rate - 1000.0).abs() < 1e-6);
        assert!(fit(&[(1.0, 5.0), (2.0, 4.0)]).is_none());
        assert!(fit(&[(1.0, 5.0)]).is_none());
    }
}
