//! `summary.md` and `index.html`: the same words and tables, for a reader of text and for a browser.

use super::data::Measured;
use super::plot::Plot;
use super::table::{Table, html, markdown};
use super::tables::{MEANING, machine, verdict};

/// On top where columns of a row printed different things.
const WRONG: &str = "WRONG OUTPUT";

/// The Markdown file.
pub fn summary(measured: &Measured, tables: &[Table], plots: &[Plot]) -> String {
    let mut out = "# Measurements\n\n".to_owned();
    for wrong in measured.wrong_output() {
        out += &format!("**{WRONG}**: {}\n\n", markdown(&wrong));
    }
    out += &format!("{}\n\n", verdict(measured));
    for (name, value) in machine(measured) {
        out += &format!("- {name}: {}\n", markdown(&value));
    }
    for table in tables {
        out += &format!("\n{}", table.markdown());
    }
    if !plots.is_empty() {
        out += "\n## Plots\n";
        for plot in plots {
            out += &format!("\n![{}](plots/{})\n", markdown(&plot.title), plot.file);
        }
    }
    out += "\n## What the numbers mean\n\n";
    for (name, meaning) in MEANING {
        out += &format!("- **{name}**: {meaning}\n");
    }
    out
}

/// The page, without anything from elsewhere.
pub fn index(measured: &Measured, tables: &[Table], plots: &[Plot]) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n{HEAD}<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>Outrider: measurements</h1>\n"
    );
    for wrong in measured.wrong_output() {
        out += &format!(
            "<p class=\"wrong\"><strong>{WRONG}</strong>: {}</p>\n",
            html(&wrong)
        );
    }
    out += &format!("<p class=\"verdict\">{}</p>\n", html(&verdict(measured)));
    let facts = machine(measured);
    if !facts.is_empty() {
        out += "<dl>\n";
        for (name, value) in facts {
            out += &format!("<div><dt>{name}</dt><dd>{}</dd></div>\n", html(&value));
        }
        out += "</dl>\n";
    }
    out += "<nav>";
    let (before, after) = tables.split_at(
        tables
            .iter()
            .position(|t| t.id == "cells")
            .unwrap_or(tables.len()),
    );
    let link = |id: &str, title: &str| format!("<a href=\"#{id}\">{}</a> ", html(title));
    before.iter().for_each(|t| out += &link(t.id, t.title));
    if !plots.is_empty() {
        out += &link("plots", "Plots");
    }
    after.iter().for_each(|t| out += &link(t.id, t.title));
    out += &link("meaning", "What the numbers mean");
    out += "</nav>\n</header>\n<main>\n";
    before.iter().for_each(|t| out += &t.html());
    if !plots.is_empty() {
        out += "<section id=\"plots\">\n<h2>Plots</h2>\n<p>Speed-up over stock-128, medians; thin lines reach from the slowest to the fastest valid run. The star is what the paper claims over its own stock system.</p>\n";
        for plot in plots {
            out += &figure(plot);
        }
        out += "</section>\n";
    }
    after.iter().for_each(|t| out += &t.html());
    out += "<section id=\"meaning\">\n<h2>What the numbers mean</h2>\n<dl class=\"meaning\">\n";
    for (name, meaning) in MEANING {
        out += &format!("<dt>{name}</dt><dd>{}</dd>\n", html(meaning));
    }
    out += &format!("</dl>\n</section>\n</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n");
    out
}

/// A figure: heading, legend, and its panels side by side as far as there is room.
fn figure(plot: &Plot) -> String {
    let mut out = format!(
        "<figure id=\"plot-{}\">\n<figcaption>{} <a href=\"plots/{}\">SVG</a></figcaption>\n<p class=\"legend\">",
        html(plot.file.trim_end_matches(".svg")),
        html(&plot.title),
        html(&plot.file),
    );
    for (name, mark) in &plot.legend {
        out += &format!("<span>{mark}{}</span>\n", html(name));
    }
    out += "</p>\n<div class=\"panels\">\n";
    for (name, panel) in &plot.panels {
        out += &format!(
            "<div class=\"panel\" role=\"img\" aria-label=\"{}\">{panel}</div>\n",
            html(name)
        );
    }
    out += "</div>\n</figure>\n";
    out
}

const HEAD: &str = r#"<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>Outrider: measurements</title>
"#;

/// Plots are drawn in fixed colours; ink, grid and ground among them follow the page's (see `plot::INK` and others).
const STYLE: &str = include_str!("page.css");

/// Sorts a table by the column whose heading was pressed. It holds neither `<` nor `&`, so that the page is well-formed XML.
const SCRIPT: &str = include_str!("page.js");
