//! `outrider profile`: what jobs are remembered to need.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrider_core::profile::place::{Lost, Places};
use outrider_core::profile::replay::intersect;
use outrider_core::profile::store::{self, Trouble};
use outrider_core::profile::{Entry, Need, Profile, format};
use outrider_core::residency;
use outrider_sys::units::{PAGE, PageRange, pages_of};
use rustix::fs::Dir;
use serde_json::{Value, json};
use std::os::fd::AsFd;

use crate::cli::{
    ProfileCheckArgs, ProfileCommand, ProfileExportArgs, ProfileImportArgs, ProfileListArgs,
    ProfileMergeArgs, ProfilePruneArgs, ProfileShowArgs,
};
use crate::output::{self, Failure, Outcome, bytes, count, percent, print_json, show};
use crate::remember::{directory, file_of, load, refused};
use crate::tree::{self, Found, Listing, Remembered, Root};

/// Columns of a timeline.
const COLUMNS: usize = 40;
/// Its rows: directories that most is read of.
const ROWS: usize = 16;

/// Runs a subcommand.
pub fn command(command: &ProfileCommand) -> Outcome {
    match command {
        ProfileCommand::List(args) => list(args),
        ProfileCommand::Show(args) => show_one(args),
        ProfileCommand::Check(args) => check(args),
        ProfileCommand::Merge(args) => merge(args),
        ProfileCommand::Prune(args) => prune(args),
        ProfileCommand::Export(args) => export(args),
        ProfileCommand::Import(args) => import(args),
    }
}

/// A profile's name, and what its file has.
type Named = (OsString, Result<Profile, Trouble>);

fn all() -> Result<Vec<Named>, Failure> {
    let directory = directory()?;
    let names = store::list(&directory).map_err(|e| refused(&directory, &e))?;
    let read = |name: OsString| {
        let mut file = name.clone();
        file.push(store::SUFFIX);
        (name, store::read(&directory.join(file)))
    };
    Ok(names.into_iter().map(read).collect())
}

fn list(args: &ProfileListArgs) -> Outcome {
    let profiles = all()?;
    if args.json {
        let each = profiles.iter().map(|(name, profile)| match profile {
            Ok(p) => output::with_path(summary(p), "name", name),
            Err(e) => output::with_path(json!({ "error": e.to_string() }), "name", name),
        });
        print_json(&Value::Array(each.collect()))?;
        return Ok(0);
    }
    let mut out = io::stdout().lock();
    let width = profiles
        .iter()
        .map(|(n, _)| show(n).len())
        .max()
        .unwrap_or(0);
    for (name, profile) in &profiles {
        write!(out, "{:width$}  ", show(name))?;
        match profile {
            Ok(p) => writeln!(
                out,
                "{:>10}  {:>8}  {:>7}  {}",
                bytes(p.bytes()),
                count(p.likely().count(), "need"),
                count(p.runs as usize, "run"),
                command_line(p)
            )?,
            Err(e) => writeln!(out, "{e}")?,
        }
    }
    out.flush()?;
    Ok(0)
}

fn command_line(profile: &Profile) -> String {
    let words = profile.command.iter().map(|w| show(OsStr::from_bytes(w)));
    words.collect::<Vec<_>>().join(" ")
}

fn summary(p: &Profile) -> Value {
    let command: Vec<_> = (p.command.iter())
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect();
    json!({
        "command": command,
        "directory": p.directory.to_string_lossy(),
        "created": p.created,
        "updated": p.updated,
        "runs": p.runs,
        "bad_runs": p.bad,
        "used_share": p.used.map(|used| f64::from(used) / 1000.0),
        "portable": p.relative,
        "seeks": p.seeks,
        "needs": p.likely().count(),
        "bytes": p.bytes(),
    })
}

fn show_one(args: &ProfileShowArgs) -> Outcome {
    let (_, profile) = load(&args.name)?;
    if args.json {
        let entry = |e: &Entry| {
            let spans: Vec<_> = (e.spans.iter())
                .map(|s| {
                    json!({
                        "offset": s.pages.start * PAGE, "bytes": s.pages.len() * PAGE,
                        "runs": s.seen.runs, "needed_in": s.seen.bits.count_ones(),
                        "likely": s.seen.is_likely(),
                    })
                })
                .collect();
            let object = json!({
                "need": e.need.name(), "at_us": e.at_us, "size": e.size, "modified": e.modified,
                "inode": e.inode, "runs": e.seen.runs, "needed_in": e.seen.bits.count_ones(),
                "likely": e.seen.is_likely(), "ranges": spans,
            });
            output::with_path(object, "path", &e.path)
        };
        let mut object = summary(&profile);
        object["entries"] = profile.entries.iter().map(entry).collect();
        print_json(&object)?;
        return Ok(0);
    }
    if args.svg {
        return draw(&profile);
    }
    let rows = Rows::of(&profile);
    let mut out = io::stdout().lock();
    writeln!(out, "{}", command_line(&profile))?;
    writeln!(
        out,
        "{} of {} in {}, {}, {}",
        bytes(profile.bytes()),
        count(files(&profile), "file"),
        count(profile.likely().count(), "need"),
        count(profile.runs as usize, "run"),
        match profile.used {
            Some(used) => format!(
                "{:.0} % of what was fetched last was used",
                f64::from(used) / 10.0
            ),
            None => "not fetched yet".to_owned(),
        }
    )?;
    writeln!(
        out,
        "{:>10}  0{:>width$}",
        "",
        format!("{:.2} s", rows.end_us as f64 / 1e6),
        width = COLUMNS - 1
    )?;
    for row in &rows.rows {
        let most = row.columns.iter().copied().max().unwrap_or(0).max(1);
        let bar = |n: &u64| match n {
            0 => ' ',
            n => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][eighth(*n, most)],
        };
        let bars: String = row.columns.iter().map(bar).collect();
        writeln!(out, "{:>10}  {bars}  {}", bytes(row.bytes), show(&row.name))?;
    }
    out.flush()?;
    Ok(0)
}

/// Of which eighth of `most`, from 0, `n` is, from 1.
fn eighth(n: u64, most: u64) -> usize {
    ((8 * u128::from(n) - 1) / u128::from(most)).min(7) as usize
}

fn files(profile: &Profile) -> usize {
    profile.likely().filter(|e| e.need == Need::File).count()
}

/// What is needed when, by directory.
struct Rows {
    end_us: u64,
    rows: Vec<Row>,
}

struct Row {
    name: PathBuf,
    bytes: u64,
    columns: [u64; COLUMNS],
}

impl Rows {
    fn of(profile: &Profile) -> Rows {
        let end_us = profile.likely().map(|e| e.at_us).max().unwrap_or(0).max(1);
        let mut by_directory: BTreeMap<&Path, Row> = BTreeMap::new();
        for e in profile.likely() {
            let name = match e.need {
                Need::Listing => e.path.as_path(),
                _ => e.path.parent().unwrap_or(&e.path),
            };
            let row = by_directory.entry(name).or_insert_with(|| Row {
                name: name.to_owned(),
                bytes: 0,
                columns: [0; COLUMNS],
            });
            let column = (e.at_us as u128 * (COLUMNS as u128 - 1) / u128::from(end_us)) as usize;
            // What is only looked up reads a block.
            let bytes = e.bytes().max(PAGE);
            row.bytes = row.bytes.saturating_add(bytes);
            let cell = &mut row.columns[column.min(COLUMNS - 1)];
            *cell = cell.saturating_add(bytes);
        }
        let mut rows: Vec<Row> = by_directory.into_values().collect();
        rows.sort_by_key(|r| std::cmp::Reverse(r.bytes));
        rows.truncate(ROWS);
        let first = |r: &Row| r.columns.iter().position(|n| *n > 0);
        rows.sort_by_key(first);
        Rows { end_us, rows }
    }
}

/// A bar for each directory and time, as high as what is needed of it then.
fn draw(profile: &Profile) -> Outcome {
    const WIDTH: usize = 16;
    const HEIGHT: usize = 24;
    const LEFT: usize = 320;
    let rows = Rows::of(profile);
    let mut out = io::stdout().lock();
    let (width, height) = (LEFT + COLUMNS * WIDTH + 10, (rows.rows.len() + 2) * HEIGHT);
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">"#
    )?;
    for (i, row) in rows.rows.iter().enumerate() {
        let base = (i + 1) * HEIGHT;
        let name = escaped(&show(&row.name));
        writeln!(
            out,
            r#"<text x="4" y="{}">{} {name}</text>"#,
            base - 4,
            bytes(row.bytes)
        )?;
        let most = row.columns.iter().copied().max().unwrap_or(0).max(1);
        for (k, n) in row.columns.iter().enumerate().filter(|(_, n)| **n > 0) {
            let high = 1 + (*n as u128 * (HEIGHT as u128 - 3) / u128::from(most)) as usize;
            writeln!(
                out,
                r##"<rect x="{}" y="{}" width="{}" height="{high}" fill="#3468a8"/>"##,
                LEFT + k * WIDTH,
                base - high,
                WIDTH - 2
            )?;
        }
    }
    writeln!(
        out,
        r#"<text x="{LEFT}" y="{0}">0</text><text x="{1}" y="{0}" text-anchor="end">{2:.2} s</text>"#,
        height - 8,
        LEFT + COLUMNS * WIDTH,
        rows.end_us as f64 / 1e6
    )?;
    writeln!(out, "</svg>")?;
    out.flush()?;
    Ok(0)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// How much of a profile fits.
#[derive(Default)]
struct Fit {
    same: usize,
    changed: usize,
    gone: usize,
    left_alone: usize,
    bytes: u64,
    cached: u64,
    hidden: usize,
}

impl Fit {
    fn of(profile: &Profile) -> Fit {
        let places = Places::new();
        let likely: Vec<&Entry> = profile.likely().collect();
        let one = |entry: &&Entry| {
            let mut fit = Fit::default();
            let found = match places.find(&entry.path) {
                Ok(found) => found,
                Err(Lost::Gone) => {
                    fit.gone = 1;
                    return fit;
                }
                Err(Lost::LeftAlone) => {
                    fit.left_alone = 1;
                    return fit;
                }
            };
            if entry.need == Need::File && !found.is_regular() {
                fit.gone = 1;
                return fit;
            }
            let same = entry.size == found.size() && entry.modified == found.st.st_mtime;
            match same || entry.need != Need::File {
                true => fit.same = 1,
                false => fit.changed = 1,
            }
            if entry.need == Need::File {
                let pages = entry.pages(found.size());
                let own: u64 = pages.iter().map(PageRange::len).sum();
                fit.bytes = own * PAGE;
                let end = PageRange::new(0, pages_of(found.size()));
                let missing = found
                    .open()
                    .and_then(|f| residency::missing(f.as_fd(), end));
                match missing {
                    Some(missing) => {
                        let gaps = intersect(&missing, &pages);
                        let gaps: u64 = gaps.iter().map(PageRange::len).sum();
                        fit.cached = (own - gaps) * PAGE;
                    }
                    None => fit.hidden = 1,
                }
            }
            fit
        };
        let fits = tree::parallel(&likely, tree::METADATA_THREADS, one);
        fits.into_iter().fold(Fit::default(), |a, b| Fit {
            same: a.same + b.same,
            changed: a.changed + b.changed,
            gone: a.gone + b.gone,
            left_alone: a.left_alone + b.left_alone,
            bytes: a.bytes + b.bytes,
            cached: a.cached + b.cached,
            hidden: a.hidden + b.hidden,
        })
    }
}

/// A profile whose paths are absolute.
fn usable(name: &OsStr) -> Result<(PathBuf, Profile), Failure> {
    let (file, profile) = load(name)?;
    match profile.relative {
        true => Err(Failure::usage(format!(
            "{}: a portable profile; accepted is one that outrider profile import has given a root",
            show(name)
        ))),
        false => Ok((file, profile)),
    }
}

fn check(args: &ProfileCheckArgs) -> Outcome {
    let (_, profile) = usable(&args.name)?;
    let fit = Fit::of(&profile);
    let needs = profile.likely().count();
    if args.json {
        let mut object = summary(&profile);
        object["same"] = json!(fit.same);
        object["changed"] = json!(fit.changed);
        object["gone"] = json!(fit.gone);
        object["left_alone"] = json!(fit.left_alone);
        object["there_bytes"] = json!(fit.bytes);
        object["cached_bytes"] = json!(fit.cached);
        object["hidden_files"] = json!(fit.hidden);
        print_json(&object)?;
        return Ok(0);
    }
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "fits      {:>5.1} % of {}",
        percent((fit.same + fit.changed) as u64, needs as u64),
        count(needs, "need")
    )?;
    writeln!(out, "changed   {:>7}", count(fit.changed, "file"))?;
    writeln!(out, "gone      {:>7}", count(fit.gone, "need"))?;
    if fit.left_alone > 0 {
        writeln!(
            out,
            "left      {:>7} on servers or in memory",
            count(fit.left_alone, "need")
        )?;
    }
    writeln!(
        out,
        "next run  would find {} fetched ahead; {} are cached already",
        bytes(fit.bytes - fit.cached),
        bytes(fit.cached)
    )?;
    if fit.hidden > 0 {
        writeln!(
            out,
            "hidden    of {} the kernel doesn't tell what is cached",
            count(fit.hidden, "file")
        )?;
    }
    out.flush()?;
    Ok(0)
}

fn merge(args: &ProfileMergeArgs) -> Outcome {
    let into = file_of(&args.into)?;
    let mut from = Vec::new();
    for name in &args.from {
        from.push(load(name)?.1);
    }
    let relative = from.first().is_some_and(|p| p.relative);
    let mixed = || {
        Failure::usage(format!(
            "{}: portable profiles and others can't be merged; accepted are profiles of one kind",
            show(&args.into)
        ))
    };
    let own = match store::read(&into) {
        Ok(own) => Some(own),
        Err(Trouble::Missing) => None,
        Err(e) => return Err(refused(&args.into, &e)),
    };
    if own.iter().chain(&from).any(|p| p.relative != relative) {
        return Err(mixed());
    }
    let merged = |own: Option<Profile>| {
        let mut all = own.into_iter().chain(from);
        let mut first = all.next()?;
        all.for_each(|next| first.merge(next));
        Some(first)
    };
    store::change(&into, None, merged).map_err(|e| refused(&args.into, &e))?;
    Ok(0)
}

fn prune(args: &ProfilePruneArgs) -> Outcome {
    let mut out = io::stdout().lock();
    if let Some(days) = args.unused {
        let before = store::now().saturating_sub(u64::from(days) * 86_400);
        let directory = directory()?;
        for (name, profile) in all()? {
            // What can't be read nobody uses.
            if profile.is_ok_and(|p| p.updated > before) {
                continue;
            }
            let mut file = name.clone();
            file.push(store::SUFFIX);
            store::remove(&directory.join(file)).map_err(|e| refused(&name, &e))?;
            writeln!(out, "removed {}", show(&name))?;
        }
        return Ok(0);
    }
    let Some(name) = &args.name else {
        return Ok(0);
    };
    let (file, _) = usable(name)?;
    let places = Places::new();
    let mut dropped = 0;
    let pruned = |profile: Option<Profile>| {
        let mut profile = profile?;
        let before = profile.entries.len();
        profile.entries.retain_mut(|e| {
            e.spans.retain(|s| s.seen.is_likely());
            let found = places.find(&e.path);
            e.seen.is_likely() && !matches!(found, Err(Lost::Gone))
        });
        dropped = before - profile.entries.len();
        Some(profile)
    };
    store::change(&file, None, pruned).map_err(|e| refused(name, &e))?;
    writeln!(out, "dropped {}", count(dropped, "need"))?;
    Ok(0)
}

fn export(args: &ProfileExportArgs) -> Outcome {
    let (_, mut profile) = load(&args.name)?;
    let mut out = io::stdout().lock();
    if args.portable && out.is_terminal() {
        return Err(Failure::usage(
            "--portable: a profile is not text; accepted is standard output to a file or a pipe",
        ));
    }
    if let Some(root) = &args.root {
        if profile.relative {
            return Err(Failure::usage(format!(
                "--root: {} is relative to a root already; accepted is export without --root",
                show(&args.name)
            )));
        }
        let named = |e: io::Error| Failure::usage(format!("{}: {e}", show(root)));
        profile.relative_to(&root.canonicalize().map_err(named)?);
    } else if args.portable && !profile.relative {
        profile.relative_to(Path::new("/"));
    }
    if args.portable {
        // Where it was made is nobody's business elsewhere.
        profile.directory = PathBuf::new();
        out.write_all(&format::encode(&profile))?;
        out.flush()?;
        return Ok(0);
    }
    // It would do what a name says.
    let is_terminal = out.is_terminal();
    for entry in profile.likely().filter(|e| e.need == Need::File) {
        let path = entry.path.as_os_str().as_bytes();
        if path.contains(&b'\n') {
            continue;
        }
        let text = match is_terminal {
            true => show(&entry.path).into_bytes(),
            false => path.to_owned(),
        };
        if args.paths {
            out.write_all(&text)?;
            out.write_all(b"\n")?;
            continue;
        }
        for range in entry.pages(entry.size) {
            out.write_all(&text)?;
            let start = range.start * PAGE;
            let end = (range.end * PAGE).min(entry.size);
            writeln!(out, "\t{start}\t{}", end - start)?;
        }
    }
    out.flush()?;
    Ok(0)
}

fn import(args: &ProfileImportArgs) -> Outcome {
    let into = file_of(&args.name)?;
    let mut profile = store::read(&args.file).map_err(|e| match e {
        Trouble::Missing => Failure::usage(format!(
            "{}: no such file; accepted is what outrider profile export --portable has written",
            show(&args.file)
        )),
        e => refused(&args.file, &e),
    })?;
    if !profile.relative {
        return Err(Failure::usage(format!(
            "{}: paths are not relative; accepted is what outrider profile export --portable has written",
            show(&args.file)
        )));
    }
    let named = |e: io::Error| Failure::usage(format!("{}: {e}", show(&args.root)));
    let root = args.root.canonicalize().map_err(named)?;
    if !root.is_dir() {
        return Err(Failure::usage(format!(
            "{}: no directory; accepted is the one that the profile's paths begin at",
            show(&args.root)
        )));
    }
    profile.below(&root);
    // It has to show on this machine that it is right.
    (profile.bad, profile.used) = (0, None);
    store::write(&into, &profile).map_err(|e| refused(&args.name, &e))?;
    Ok(0)
}

/// What a profile has, for `outrider warm`: its names are looked up, its directories listed, and its files to be read.
pub fn listing(name: &OsStr) -> Result<Listing, Failure> {
    let (_, profile) = usable(name)?;
    let places = Arc::new(Places::new());
    let root = Root::of(Path::new("/")).ok();
    let likely: Vec<&Entry> = profile.likely().collect();
    let one = |entry: &&Entry| {
        let found = places.find(&entry.path).ok()?;
        if entry.need == Need::Listing && found.is_directory() {
            // What was found, not what has its name by now.
            let dir = found.open().and_then(|dir| Dir::new(dir).ok());
            dir.into_iter().flatten().for_each(drop);
        }
        let pages = entry.pages(found.size());
        (entry.need == Need::File && found.is_regular() && !pages.is_empty()).then(|| Found {
            path: entry.path.clone(),
            ino: found.st.st_ino,
            root: root.clone(),
            remembered: Some(Remembered {
                places: places.clone(),
                pages,
            }),
        })
    };
    let files = tree::parallel(&likely, tree::METADATA_THREADS, one);
    Ok(Listing {
        files: files.into_iter().flatten().collect(),
        problems: Vec::new(),
    })
}
