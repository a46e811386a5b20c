//! `outrider cached`: how much of files or trees is in the page cache, and where in each file.
//!
//! Totals come from `cachestat` where it is permitted, the map from `mincore`. Where the kernel hides
//! residency (another user's file that is not writable) `mincore` would claim that everything is
//! resident; such files are shown as unknown instead.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use outrider_sys::cache;
use outrider_sys::units::{self, ByteRange, PAGE};

use crate::cli::CachedArgs;
use crate::output::{self, Outcome, bytes, percent, show};
use crate::tree::{self, Open};

/// Cells of the residency map.
const CELLS: u64 = 40;

/// Nothing of a stretch is cached; up to a third, up to two thirds, more, all of it.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];
/// The same where text is not taken for UTF-8.
const PLAIN_SHADES: [char; 5] = [' ', '.', ':', '+', '#'];

/// Files below one PATH that are still listed one by one: what a terminal shows without scrolling.
const LISTED: usize = 40;
/// Lines of directories below one PATH.
const DIRECTORIES: usize = 20;

/// Bytes of one file looked at by one `mincore` call.
const MINCORE_STEP: u64 = 1 << 30;

/// How the number of resident pages was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `cachestat(2)`.
    Cachestat,
    /// `mincore(2)`.
    Mincore,
}

/// How much of one file is in the page cache.
#[derive(Clone, Copy, Debug)]
pub struct Residency {
    /// Size of the file, bytes.
    pub size: u64,
    /// Pages that the file occupies.
    pub pages: u64,
    /// Pages in the cache; `None` where the kernel does not tell.
    pub resident: Option<u64>,
    /// Of these, pages that wait to be written or are being written; `None` where the kernel does not tell.
    pub dirty: Option<u64>,
    /// Where the number is from.
    pub source: Option<Source>,
    /// The kernel tells nothing of this file to who neither owns it nor may write to it.
    pub is_others: bool,
}

impl Residency {
    /// Bytes in the cache: whole pages, the last one cut at the end of the file.
    pub fn resident_bytes(&self) -> Option<u64> {
        Some((self.resident? * PAGE).min(self.size))
    }
}

/// Looks at one open file.
pub fn residency(open: &Open) -> Residency {
    let fd = open.file.as_fd();
    let mut found = Residency {
        size: open.size,
        pages: units::pages_of(open.size),
        resident: None,
        dirty: None,
        source: None,
        is_others: !cache::residency_is_visible(fd),
    };
    if let Ok(stat) = cache::counted(fd, 0..open.size) {
        found.resident = Some(stat.cached.min(found.pages));
        found.dirty = Some(stat.dirty + stat.writeback);
        found.source = Some(Source::Cachestat);
    } else if !found.is_others {
        let mut resident = 0;
        let whole = steps(open.size).try_for_each(|range| {
            resident += cache::mincore(fd, range)?
                .into_iter()
                .filter(|r| *r)
                .count() as u64;
            io::Result::Ok(())
        });
        if whole.is_ok() {
            found.resident = Some(resident);
            found.source = Some(Source::Mincore);
        }
    }
    found
}

fn steps(size: u64) -> impl Iterator<Item = ByteRange> {
    (0..size)
        .step_by(MINCORE_STEP as usize)
        .map(move |at| at..size.min(at + MINCORE_STEP))
}

/// The map of one file: for each of at most [`CELLS`] equal stretches one of [`SHADES`]. `None` where residency is unknown.
fn map(open: &Open, residency: &Residency) -> Option<String> {
    let resident = residency.resident?;
    let cells = CELLS.min(residency.pages);
    if resident == 0 || resident == residency.pages {
        let cell = if resident == 0 { SHADES[0] } else { SHADES[4] };
        return Some(cell.to_string().repeat(cells as usize));
    }
    if !cache::residency_is_visible(open.file.as_fd()) {
        return None;
    }
    // Cell c holds the pages p with p * cells / pages == c.
    let mut hits = vec![0u64; cells as usize];
    let mut totals = vec![0u64; cells as usize];
    let mut page = 0;
    for range in steps(open.size) {
        for resident in cache::mincore(open.file.as_fd(), range).ok()? {
            let cell = (page * cells / residency.pages).min(cells - 1) as usize;
            totals[cell] += 1;
            hits[cell] += u64::from(resident);
            page += 1;
        }
    }
    let shade = |(hits, total): (&u64, &u64)| match (*hits, *total) {
        (0, _) => SHADES[0],
        (h, t) if h == t => SHADES[4],
        (h, t) if 3 * h <= t => SHADES[1],
        (h, t) if 3 * h <= 2 * t => SHADES[2],
        _ => SHADES[3],
    };
    Some(hits.iter().zip(&totals).map(shade).collect())
}

/// Runs the subcommand. Exit code 1 if some file could not be opened.
pub fn command(args: &CachedArgs) -> Outcome {
    let listing = tree::list(&args.paths)?;
    let looked = tree::parallel(&listing.files, tree::METADATA_THREADS, |found| {
        let open = tree::open(found)?;
        io::Result::Ok(open.map(|open| {
            let residency = residency(&open);
            (open.key, map(&open, &residency), residency)
        }))
    });

    let mut problems = listing.problems;
    let mut rows: Vec<Row> = Vec::new();
    let mut seen = HashSet::new();
    for (found, result) in listing.files.iter().zip(looked) {
        match result {
            // A second link to a file already shown would count its pages twice.
            Ok(Some((key, map, residency))) if seen.insert(key) => {
                rows.push((&found.path, map, residency))
            }
            Ok(_) => {}
            Err(e) => problems.push((found.path.clone(), e)),
        }
    }
    let known = || rows.iter().filter(|(_, _, r)| r.resident.is_some());
    let size: u64 = known().map(|(_, _, r)| r.size).sum();
    let resident: u64 = known().filter_map(|(_, _, r)| r.resident_bytes()).sum();
    let unknown = rows.len() - known().count();
    let is_unknown = unknown > 0 && unknown == rows.len();

    if args.json {
        let files: Vec<Value> = rows
            .iter()
            .map(|(path, map, r)| to_json(path, map.as_deref(), r))
            .collect();
        let errors: Vec<Value> = problems
            .iter()
            .map(|(path, e)| output::with_path(json!({"error": e.to_string()}), "path", path))
            .collect();
        output::print_json(&json!({
            "page_size": PAGE,
            "files": files,
            "total": {
                "files": rows.len(),
                "unknown_files": unknown,
                "bytes": size,
                "resident_bytes": (!is_unknown).then_some(resident),
                "percent": (!is_unknown).then(|| percent(resident, size)),
            },
            "errors": errors,
        }))?;
    } else {
        let mut out = BufWriter::new(io::stdout().lock());
        let style = Style::here();
        let mut rest = rows.as_slice();
        for root in &args.paths {
            let below = rest.iter().take_while(|(path, ..)| path.starts_with(root));
            let (own, others) = rest.split_at(below.count());
            rest = others;
            if args.summary || !args.all && own.len() > LISTED {
                write_sums(&mut out, root, own, args.summary)?;
            } else {
                for (path, map, r) in own {
                    style.write_row(&mut out, map.as_deref(), r, &show(path))?;
                }
            }
        }
        if rows.len() != 1 && !(args.summary && args.paths.len() == 1) {
            let share = share(resident, size, is_unknown);
            write!(
                out,
                "{share} {:>10} of {:>10}  in {}",
                bytes(resident),
                bytes(size),
                output::count(rows.len() - unknown, "file"),
            )?;
            if unknown > 0 {
                write!(
                    out,
                    "; {} hidden by the kernel and not counted",
                    output::count(unknown, "file")
                )?;
            }
            writeln!(out)?;
        }
        out.flush()?;
    }
    for (path, e) in &problems {
        output::complain(&format!("{}: {e}", show(path)));
    }
    Ok(i32::from(!problems.is_empty()))
}

/// A file's path, its map, and how much of it is cached.
type Row<'a> = (&'a PathBuf, Option<String>, Residency);

/// A share in per cent, in the columns that lines have for it.
fn share(resident: u64, size: u64, is_unknown: bool) -> String {
    match is_unknown {
        true => "unknown".to_owned(),
        false => format!("{:>6.1}%", percent(resident, size)),
    }
}

/// Of some files: their number, bytes in all and in the cache, and how many of them the kernel doesn't tell of, whose bytes are in neither.
#[derive(Default)]
struct Sum {
    files: usize,
    bytes: u64,
    resident: u64,
    unknown: usize,
}

impl Sum {
    fn add(&mut self, r: &Residency) {
        match r.resident_bytes() {
            Some(resident) => {
                self.files += 1;
                self.bytes += r.size;
                self.resident += resident;
            }
            None => self.unknown += 1,
        }
    }

    fn write(&self, out: &mut impl Write, name: &str) -> io::Result<()> {
        write!(
            out,
            "{} {:>10} of {:>10}  in {:>12}  {name}",
            share(
                self.resident,
                self.bytes,
                self.files == 0 && self.unknown > 0
            ),
            bytes(self.resident),
            bytes(self.bytes),
            output::count(self.files, "file"),
        )?;
        if self.unknown > 0 {
            write!(
                out,
                "; {} hidden by the kernel and not counted",
                output::count(self.unknown, "file")
            )?;
        }
        writeln!(out)
    }
}

/// A line for each directory right below `root` with what lies below it, the largest first, or one for all of them.
fn write_sums(out: &mut impl Write, root: &Path, rows: &[Row], all: bool) -> io::Result<()> {
    let mut sums: BTreeMap<PathBuf, Sum> = BTreeMap::new();
    for (path, _, r) in rows {
        let below = path.strip_prefix(root).unwrap_or(path);
        let mut parts = below.components();
        let first = parts.next().filter(|_| !all && parts.next().is_some());
        let name = first.map_or_else(|| root.to_owned(), |first| root.join(first));
        sums.entry(name).or_default().add(r);
    }
    let mut sums: Vec<(PathBuf, Sum)> = sums.into_iter().collect();
    if sums.len() > DIRECTORIES {
        sums.sort_by_key(|(_, sum)| Reverse(sum.bytes));
        let rest = sums.split_off(DIRECTORIES - 1);
        let mut sum = Sum::default();
        for (_, other) in &rest {
            sum.files += other.files;
            sum.bytes += other.bytes;
            sum.resident += other.resident;
            sum.unknown += other.unknown;
        }
        for (name, sum) in &sums {
            sum.write(out, &show(name))?;
        }
        let others = format!("{} more directories, all smaller", rest.len());
        return sum.write(out, &others);
    }
    for (name, sum) in &sums {
        let (root, own) = (name == root, sums.len() > 1);
        let within = if root && own {
            " (files right there)"
        } else {
            ""
        };
        sum.write(out, &format!("{}{within}", show(name)))?;
    }
    Ok(())
}

/// How rows look where they are read.
struct Style {
    /// Columns of the map.
    width: usize,
    utf8: bool,
}

impl Style {
    fn here() -> Style {
        // What stands beside the map, and 20 columns of a name.
        let beside = 35 + 20;
        let room = output::columns(io::stdout()).map(|n| n.saturating_sub(beside));
        Style {
            width: room.unwrap_or(usize::MAX).clamp(8, CELLS as usize),
            utf8: output::is_utf8(),
        }
    }

    /// A map of at most so many columns as there are, of characters that are shown.
    fn fitted(&self, map: &str) -> String {
        let cells: Vec<usize> = map
            .chars()
            .map(|c| SHADES.iter().position(|s| *s == c).unwrap_or(0))
            .collect();
        let shades = if self.utf8 { SHADES } else { PLAIN_SHADES };
        let columns = cells.len().min(self.width);
        let shown = (0..columns).map(|i| {
            let of = |i: usize| i * cells.len() / columns;
            let cells = &cells[of(i)..of(i + 1)];
            let (least, most) = (cells.iter().min(), cells.iter().max());
            // Neither all nor nothing is said of what is in part.
            let mean = (cells.iter().sum::<usize>() / cells.len().max(1)).clamp(1, 3);
            let shade = if least == most {
                least.copied()
            } else {
                Some(mean)
            };
            shades[shade.unwrap_or(0)]
        });
        shown.collect()
    }

    fn write_row(
        &self,
        out: &mut impl Write,
        map: Option<&str>,
        r: &Residency,
        name: &str,
    ) -> io::Result<()> {
        let width = self.width + 2;
        match r.resident_bytes() {
            Some(resident) => writeln!(
                out,
                "{:>6.1}% {:>10} of {:>10} {:<width$} {name}",
                percent(resident, r.size),
                bytes(resident),
                bytes(r.size),
                // It ends where the file does: a file of few pages that is all cached shows no gap.
                match (map, r.is_others) {
                    (Some(map), _) => format!("|{}|", self.fitted(map)),
                    (None, true) => "|map unknown: not owner, not writable|".to_owned(),
                    (None, false) => "|map unknown: mincore refused|".to_owned(),
                },
            ),
            None => writeln!(
                out,
                "{:>7} {:>10} of {:>10} {:<width$} {name}",
                "unknown",
                "?",
                bytes(r.size),
                match r.is_others {
                    true => "|hidden: not owner, not writable|",
                    false => "|hidden: cachestat and mincore refused|",
                },
            ),
        }
    }
}

fn to_json(path: &std::path::Path, map: Option<&str>, r: &Residency) -> Value {
    let row = json!({
        "bytes": r.size,
        "pages": r.pages,
        "known": r.resident.is_some(),
        "resident_pages": r.resident,
        "resident_bytes": r.resident_bytes(),
        "percent": r.resident_bytes().map(|b| percent(b, r.size)),
        "dirty_pages": r.dirty,
        "map": map,
        "source": r.source.map(|s| match s {
            Source::Cachestat => "cachestat",
            Source::Mincore => "mincore",
        }),
    });
    output::with_path(row, "path", path)
}
