//! `outrider-lab report` and `outrider-lab compare`: what raw results come to.
//!
//! Everything is made from `results.jsonl` alone, so that a report of old results needs no code of the time, and it is
//! made completely before the first file is written.

mod compare;
mod data;
mod page;
mod plot;
mod table;
mod tables;

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::output::{Context, Failure, Outcome};
use data::Measured;

/// Writes `summary.md`, `index.html` and `plots/FIGURE.svg` beside the raw results. Fails with exit code 1, after writing, if
/// columns of a row printed different things.
pub fn report(dir: &Path) -> Outcome {
    let measured = Measured::load(dir)?;
    let tables = tables::all(&measured);
    let plots = plot::all(&measured)?;
    let mut files = vec![
        (
            "summary.md".to_owned(),
            page::summary(&measured, &tables, &plots),
        ),
        (
            "index.html".to_owned(),
            page::index(&measured, &tables, &plots),
        ),
    ];
    files.extend(
        plots
            .into_iter()
            .map(|plot| (format!("plots/{}", plot.file), plot.svg)),
    );
    if files.len() > 2 {
        let plots = dir.join("plots");
        fs::create_dir_all(&plots).doing(plots.display())?;
    }
    for (name, text) in &files {
        write(&dir.join(name), text)?;
    }
    let _ = writeln!(
        std::io::stdout(),
        "{}: summary.md, index.html, {} plots",
        dir.display(),
        files.len() - 2
    );
    match measured.wrong_output().as_slice() {
        [] => Ok(()),
        wrong => Err(Failure::system(format!(
            "WRONG OUTPUT: {}",
            wrong.join("; ")
        ))),
    }
}

/// Compares the results in `after` with those in `before`. Fails with exit code 1 if something got worse beyond noise.
pub fn compare(before: &Path, after: &Path) -> Outcome {
    let comparison = compare::compare(&Measured::load(before)?, &Measured::load(after)?);
    let _ = std::io::stdout().write_all(comparison.text.as_bytes());
    match comparison.regressions {
        0 => Ok(()),
        n => Err(Failure::system(format!("worse beyond noise: {n}"))),
    }
}

/// Replaces a file; a reader sees the old one or the new one.
fn write(path: &Path, text: &str) -> Outcome {
    let new = path.with_extension("new");
    fs::write(&new, text).doing(new.display())?;
    fs::rename(&new, path).doing(path.display())
}
