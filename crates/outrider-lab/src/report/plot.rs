//! Plots: one per figure of a paper, with a panel per device and series.
//!
//! Speed-up over stock-128 stands upwards. Where the horizontal axis is a number a column is a curve, otherwise a bar that
//! begins at 1, so that a loss points down. Columns differ in colour (Okabe and Ito's, which the colour-blind can tell
//! apart, and three of Tol's) and in the shape of their marks.
//!
//! Lengths are halves of a CSS pixel: the drawing library knows only whole numbers.

mod draw;
mod marks;

use super::data::{Bench, Measured, rank};
use crate::output::{Context, Outcome};
use crate::results::STOCK;

/// A figure.
#[derive(Debug)]
pub struct Plot {
    /// Its key and what its rows have in common.
    pub title: String,
    /// The name of its file below `plots/`.
    pub file: String,
    /// All of it, as a file of its own.
    pub svg: String,
    /// For the page: names of what is drawn, and the mark of each as SVG.
    pub legend: Vec<(String, String)>,
    /// For the page: each panel's title and SVG.
    pub panels: Vec<(String, String)>,
}

/// A device and a series of a figure.
#[derive(Debug, Default)]
struct Panel {
    title: String,
    points: Vec<Point>,
    /// Whether the horizontal axis is a number.
    numeric: bool,
}

/// A row in a panel.
#[derive(Debug)]
struct Point {
    /// Its place in words.
    label: String,
    /// Its place on the axis.
    x: f64,
    /// Column, and speed-up of its slowest run, median and fastest run.
    speeds: Vec<(String, [f64; 3])>,
    /// Speed-up at the limit.
    limit: Option<f64>,
    /// The paper's gain.
    paper: Option<f64>,
}

/// The name of the limit in legends.
const LIMIT: &str = "lower bound";
/// The name of the paper's claim in legends.
const PAPER: &str = "paper";

/// All figures, in the order of their first row.
pub fn all(measured: &Measured) -> Outcome<Vec<Plot>> {
    let mut keys: Vec<&str> = Vec::new();
    for key in measured.benches.iter().filter_map(figure_of) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut plots: Vec<Plot> = Vec::new();
    for key in keys {
        let benches: Vec<&Bench> = measured
            .benches
            .iter()
            .filter(|b| figure_of(b) == Some(key))
            .collect();
        let mut file = format!("{}.svg", file_name(key));
        for again in 2.. {
            if plots.iter().all(|p| p.file != file) {
                break;
            }
            file = format!("{}-{again}.svg", file_name(key));
        }
        plots.push(plot(key, file, &benches)?);
    }
    Ok(plots)
}

fn figure_of(bench: &Bench) -> Option<&str> {
    bench.info.as_ref()?.figure.as_deref()
}

/// A name that is safe in a directory: a figure's key comes from a file that anyone may have written.
fn file_name(key: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = key.chars().map(safe).collect();
    match name.trim_start_matches(['.', '-']) {
        "" => "figure".to_owned(),
        name => name.to_owned(),
    }
}

fn plot(key: &str, file: String, benches: &[&Bench]) -> Outcome<Plot> {
    let title = match common(benches) {
        Some(words) => format!("{key}: {words}"),
        None => key.to_owned(),
    };
    let panels = panels(benches);
    let names = names(&panels);
    let drawn = |panel: &Panel| {
        let svg = draw::panel(panel, &names).doing(format_args!("drawing {key}"))?;
        Ok((panel.title.clone(), svg))
    };
    Ok(Plot {
        svg: draw::figure(&title, &panels, &names).doing(format_args!("drawing {key}"))?,
        legend: names
            .iter()
            .map(|name| {
                Ok((
                    name.clone(),
                    draw::swatch(name, &names).doing(format_args!("drawing {key}"))?,
                ))
            })
            .collect::<Outcome<_>>()?,
        panels: panels.iter().map(drawn).collect::<Outcome<_>>()?,
        title: clean(&title),
        file,
    })
}

/// What the descriptions of rows begin with, up to a comma, a colon or the end.
fn common(benches: &[&Bench]) -> Option<String> {
    let abouts = || {
        benches
            .iter()
            .filter_map(|b| b.info.as_ref())
            .map(|i| i.about.as_str())
    };
    let first = abouts().next()?;
    let same = |about: &str| {
        first
            .chars()
            .zip(about.chars())
            .take_while(|(a, b)| a == b)
            .map(|(c, _)| c.len_utf8())
            .sum()
    };
    let shared = &first[..abouts().map(same).min().unwrap_or(0)];
    let whole = match abouts().all(|about| about == first) {
        true => shared,
        false => &shared[..shared.rfind([',', ':', ';']).unwrap_or(0)],
    };
    (!whole.trim().is_empty()).then(|| whole.trim().to_owned())
}

/// Devices in the order of their first row, and the series of each.
fn panels(benches: &[&Bench]) -> Vec<Panel> {
    let mut keys: Vec<(&str, Option<&str>)> = Vec::new();
    for device in firsts(benches.iter().map(|b| b.device.as_str())) {
        let of_device = benches.iter().filter(|b| b.device == device);
        keys.extend(firsts(of_device.map(|b| (device, series_of(b)))));
    }
    // A number's text for all rows of the figure makes the axis a number.
    let numeric = benches.iter().all(|b| {
        b.info
            .as_ref()
            .is_some_and(|i| i.x.as_deref().and_then(number).is_some())
    });
    keys.iter()
        .map(|&(device, series)| {
            let of_panel = benches
                .iter()
                .filter(|b| b.device == device && series_of(b) == series);
            let mut points: Vec<Point> = of_panel.map(|b| point(b)).collect();
            let first = points.first().map_or(0.0, |p| p.x);
            // A curve needs two places.
            let curve = numeric && points.iter().any(|p| p.x != first);
            if numeric {
                points.sort_by(|a, b| a.x.total_cmp(&b.x));
            }
            Panel {
                title: clean(
                    &series.map_or_else(|| device.to_owned(), |s| format!("{device} · {s}")),
                ),
                points,
                numeric: curve,
            }
        })
        .collect()
}

fn series_of(bench: &Bench) -> Option<&str> {
    bench
        .info
        .as_ref()?
        .series
        .as_deref()
        .filter(|s| !s.is_empty())
}

/// Each once, in order.
fn firsts<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut kept = Vec::new();
    for one in all {
        if !kept.contains(&one) {
            kept.push(one);
        }
    }
    kept
}

/// A number, or one with K, M, G or T (binary) behind it.
fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let unit = ["K", "M", "G", "T"]
        .iter()
        .zip(1..)
        .find(|(unit, _)| text.ends_with(**unit));
    let (digits, factor) = match unit {
        Some((unit, power)) => (text.strip_suffix(unit)?, 1024f64.powi(power)),
        None => (text, 1.0),
    };
    let number: f64 = digits.parse().ok()?;
    number.is_finite().then_some(number * factor)
}

fn point(bench: &Bench) -> Point {
    let label = bench
        .info
        .as_ref()
        .and_then(|i| i.x.clone())
        .unwrap_or_else(|| bench.row.clone());
    let speeds = |cell: &super::data::Cell| {
        let (least, most) = cell.range()?;
        let speeds = [
            bench.speed_up(most)?,
            bench.speed_up(cell.median()?)?,
            bench.speed_up(least)?,
        ];
        Some((cell.column.clone(), speeds))
    };
    Point {
        x: number(&label).unwrap_or(0.0),
        label: clean(&label),
        speeds: bench.cells.iter().filter_map(speeds).collect(),
        limit: bench.limit().and_then(|s| bench.speed_up(s)),
        paper: bench
            .info
            .as_ref()
            .and_then(|i| i.paper)
            .filter(|gain| *gain > 0.0),
    }
}

/// Everything that is drawn in any of the panels, in the order of the legend.
fn names(panels: &[Panel]) -> Vec<String> {
    let points = || panels.iter().flat_map(|p| &p.points);
    let mut names = vec![STOCK.to_owned()];
    names.extend(points().flat_map(|p| p.speeds.iter().map(|(column, _)| column.clone())));
    let mut names = firsts(names.into_iter());
    names.sort_by_key(|name| rank(name));
    if points().any(|p| p.limit.is_some()) {
        names.push(LIMIT.to_owned());
    }
    if points().any(|p| p.paper.is_some()) {
        names.push(PAPER.to_owned());
    }
    names
}

/// Without what an XML file cannot hold.
fn clean(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
