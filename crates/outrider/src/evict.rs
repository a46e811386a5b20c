//! `outrider evict`: drops clean pages of files or trees from the page cache.
//!
//! `POSIX_FADV_DONTNEED` keeps dirty pages, but it starts writing them, and when data goes to its device is
//! not ours to decide. So dirty stretches are found by halving and left out of the calls; they stay and
//! are reported. Where the kernel does not tell which pages are dirty (another user's file) the call is
//! made for the whole file. Pages that a running program has mapped stay as well.

use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};

use outrider_sys::cache;
use outrider_sys::units::{self, ByteRange, PAGE};

use crate::cached::{Residency, residency};
use crate::cli::EvictArgs;
use crate::output::{self, Outcome, bytes, show};
use crate::tree::{self, Open};

/// Drops what is clean in `range`, which starts and ends on page boundaries.
fn drop_clean(fd: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    let stat = match cache::cachestat(fd, range.clone()) {
        Ok(stat) => stat,
        Err(_) => return cache::drop_range(fd, range),
    };
    let unclean = stat.dirty + stat.writeback;
    if stat.cached == 0 || unclean >= stat.cached {
        return Ok(());
    }
    let pages = units::pages_of(range.end - range.start);
    if unclean == 0 {
        return cache::drop_range(fd, range);
    }
    if pages <= 1 {
        return Ok(());
    }
    let middle = range.start + pages / 2 * PAGE;
    drop_clean(fd, range.start..middle)?;
    drop_clean(fd, middle..range.end)
}

/// Drops the clean pages of a file.
pub fn evict(open: &Open) -> io::Result<()> {
    let fd = open.file.as_fd();
    let clean = cache::cachestat(fd, 0..u64::MAX >> 1).is_ok_and(|s| s.dirty + s.writeback == 0);
    // The kernel leaves out what is dirty, too, where its pages can't be counted.
    if clean || cache::is_overlaid(fd) {
        // One call for everything: folios that reach beyond the end of the file go too.
        return cache::drop_all(fd);
    }
    drop_clean(fd, 0..units::pages_of(open.size) * PAGE)
}

/// Runs the subcommand. Exit code 1 if some file could not be opened.
pub fn command(args: &EvictArgs) -> Outcome {
    let listing = tree::list(&args.paths)?;
    let done = tree::parallel(&listing.files, tree::METADATA_THREADS, |found| {
        let Some(open) = tree::open(found)? else {
            return Ok(None);
        };
        let before = residency(&open);
        evict(&open)?;
        io::Result::Ok(Some((open.key, before, residency(&open))))
    });

    let mut problems = listing.problems;
    let mut seen = HashSet::new();
    let (mut before_all, mut after_all, mut dirty_all) = (0, 0, 0);
    let (mut files, mut unknown) = (0, 0);
    let mut out = BufWriter::new(io::stdout().lock());
    for (found, result) in listing.files.iter().zip(done) {
        let (key, before, after) = match result {
            Ok(Some(result)) => result,
            Ok(None) => continue,
            Err(e) => {
                problems.push((found.path.clone(), e));
                continue;
            }
        };
        if !seen.insert(key) {
            continue;
        }
        files += 1;
        let dirty = dirty_bytes(&after);
        match (before.resident_bytes(), after.resident_bytes()) {
            (Some(b), Some(a)) => {
                before_all += b;
                after_all += a;
                dirty_all += dirty;
                if b > 0 || a > 0 {
                    write!(
                        out,
                        "{:>10} -> {:>10}  {}",
                        bytes(b),
                        bytes(a),
                        show(&found.path)
                    )?;
                    if dirty > 0 {
                        write!(
                            out,
                            "  ({} not yet written to the device, kept)",
                            bytes(dirty)
                        )?;
                    } else if a > 0 {
                        write!(out, "  (kept: in use)")?;
                    }
                    writeln!(out)?;
                }
            }
            _ => {
                unknown += 1;
                writeln!(
                    out,
                    "{:>10} -> {:>10}  {}",
                    "unknown",
                    "unknown",
                    show(&found.path)
                )?;
            }
        }
    }
    write!(
        out,
        "{:>10} -> {:>10}  in {}",
        bytes(before_all),
        bytes(after_all),
        output::count(files, "file")
    )?;
    if dirty_all > 0 {
        write!(
            out,
            "; {} stay because they are not yet written to the device",
            bytes(dirty_all)
        )?;
    }
    if unknown > 0 {
        write!(
            out,
            "; {} hidden by the kernel: dropped what could be, not counted",
            output::count(unknown, "file")
        )?;
    }
    writeln!(out)?;
    out.flush()?;
    drop(out);
    for (path, e) in &problems {
        output::complain(&format!("{}: {e}", show(path)));
    }
    Ok(i32::from(!problems.is_empty()))
}

pub fn dirty_bytes(r: &Residency) -> u64 {
    r.dirty.unwrap_or(0) * PAGE
}
