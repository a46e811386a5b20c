//! `outrider-lab compare`: two directories of results, cell by cell, regressions first.

use super::data::{Bench, Cell, Difference, Measured};
use super::table::{Table, Tone, Value, seconds, times};

/// What a comparison found.
#[derive(Debug)]
pub struct Comparison {
    /// All of it, in words.
    pub text: String,
    /// Cells that got slower beyond noise, that fail now, and rows whose output is wrong now.
    pub regressions: usize,
}

/// A cell in both.
struct Pair<'a> {
    bench: &'a Bench,
    old: &'a Cell,
    new: &'a Cell,
    ratio: f64,
    difference: Difference,
}

/// Compares the second with the first.
pub fn compare(before: &Measured, after: &Measured) -> Comparison {
    let mut pairs = Vec::new();
    let mut only = Vec::new();
    let mut failing = 0;
    for new_bench in &after.benches {
        for new in &new_bench.cells {
            let old = before
                .find(&new_bench.row, &new_bench.device)
                .and_then(|b| b.column(&new.column));
            let medians = (old.and_then(Cell::median), new.median());
            match (old, medians) {
                (Some(old), (Some(a), Some(b))) => pairs.push(Pair {
                    bench: new_bench,
                    old,
                    new,
                    ratio: b / a,
                    difference: new.against(old),
                }),
                (_, (None, Some(_))) => only.push(alone(new_bench, new, "second", old)),
                _ => {}
            }
        }
    }
    for old_bench in &before.benches {
        for old in old_bench.cells.iter().filter(|c| c.median().is_some()) {
            let new = after
                .find(&old_bench.row, &old_bench.device)
                .and_then(|b| b.column(&old.column));
            if new.and_then(Cell::median).is_none() {
                if new.is_some_and(fails) {
                    failing += 1;
                }
                only.push(alone(old_bench, old, "first", new));
            }
        }
    }
    // Regressions, the worst first; then gains; then what says nothing.
    let order = |d: Difference| match d {
        Difference::Slower => 0,
        Difference::Faster => 1,
        Difference::TooFew => 2,
        Difference::Noise => 3,
    };
    pairs.sort_by(|a, b| {
        let kind = order(a.difference).cmp(&order(b.difference));
        kind.then(b.ratio.total_cmp(&a.ratio))
    });
    let slower = pairs
        .iter()
        .filter(|p| p.difference == Difference::Slower)
        .count();
    let faster = pairs
        .iter()
        .filter(|p| p.difference == Difference::Faster)
        .count();
    let wrong = after.wrong_output();

    let mut text = String::new();
    for line in &wrong {
        text += &format!("WRONG OUTPUT in the second: {line}\n");
    }
    text += &format!(
        "{} compared: {slower} slower beyond noise, {faster} faster beyond noise; {failing} fail in the second only\n",
        pairs.len()
    );
    text += "beyond noise: the ranges of the valid runs do not overlap and the medians differ by more than 5 %; three valid runs or more in both\n";
    if pairs
        .iter()
        .any(|p| p.difference == Difference::Slower && !p.new.is_outrider())
    {
        text +=
            "columns without Outrider got slower too: the machine or what else ran on it differs\n";
    }
    if !pairs.is_empty() {
        text += &format!("\n{}", table(&pairs).plain());
    }
    if !only.is_empty() {
        text += &format!("\n{}", only_table(only).plain());
    }
    Comparison {
        text,
        regressions: slower + failing + wrong.len(),
    }
}

fn table(pairs: &[Pair]) -> Table {
    let range = |cell: &Cell| {
        let (least, most) = cell.range().unzip();
        [least, most]
            .map(|s| Value::number(s, seconds).text)
            .join("-")
    };
    let line = |p: &Pair| {
        vec![
            Value::text(match p.difference {
                Difference::Slower => "SLOWER",
                other => other.words(),
            }),
            Value::text(&p.bench.row),
            Value::text(&p.bench.device),
            Value::text(&p.new.column),
            Value::number(p.old.median(), seconds),
            Value::number(p.new.median(), seconds),
            Value::number(Some(p.ratio), times),
            Value::text(range(p.old)),
            Value::text(range(p.new)),
        ]
    };
    Table {
        id: "compared",
        title: "Compared",
        note: String::new(),
        head: vec![
            "second is",
            "row",
            "device",
            "column",
            "first, s",
            "second, s",
            "ratio",
            "first min-max",
            "second min-max",
        ],
        lines: pairs.iter().map(line).collect(),
    }
}

/// It ran, and every run failed.
fn fails(cell: &Cell) -> bool {
    !cell.runs.is_empty() && cell.runs.values().all(|run| run.exit != 0)
}

/// A line on what has valid runs on one side only.
fn alone(bench: &Bench, cell: &Cell, side: &str, other: Option<&Cell>) -> Vec<Value> {
    let why = match other {
        None => "not measured".to_owned(),
        Some(other) => {
            let reasons: Vec<String> = other
                .invalid
                .iter()
                .map(|(why, n)| format!("{n} x {why}"))
                .collect();
            format!("no valid run: {}", reasons.join(", "))
        }
    };
    vec![
        Value::text(side),
        Value::text(&bench.row),
        Value::text(&bench.device),
        Value::text(&cell.column),
        Value::number(cell.median(), seconds),
        Value::text(why).tone(Tone::Plain),
    ]
}

fn only_table(lines: Vec<Vec<Value>>) -> Table {
    Table {
        id: "only",
        title: "In one only",
        note: String::new(),
        head: vec![
            "only in",
            "row",
            "device",
            "column",
            "time, s",
            "in the other",
        ],
        lines,
    }
}
