//! `outrider graph`: looks at the foreaction graphs of plug-ins, and checks them against what a program does.

use std::io::Write;
use std::process::{Command, Stdio};

use outrider_core::board::Told;
use outrider_graph::Counts;

use crate::cli::{GraphShowArgs, RunArgs};
use crate::output::{Failure, Outcome, show as shown};
use crate::{plugin, preload};

/// Wrong predictions of a graph that are shown.
const SHOWN: usize = 10;

/// `outrider graph show`: has the plug-ins build their graphs in a process of its own, which ends before it does anything else.
pub fn show(args: &GraphShowArgs) -> Outcome {
    let library = preload::library()?;
    let plugins = plugin::check(&args.plugin)?;
    // SAFETY: this process has one thread.
    unsafe { preload::set(&library, None, &plugins) };
    // Any program that is linked dynamically: this command may not be, and the library ends the process before it begins.
    let out = Command::new("/bin/sh")
        .args(["-c", ":"])
        .env(
            "OUTRIDER_GRAPH_SHOW",
            if args.text { "text" } else { "dot" },
        )
        .env_remove("OUTRIDER_SHM")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| Failure::system(format!("cannot load the plug-ins: {e}")))?;
    if !out.status.success() {
        return Err(Failure::system(format!(
            "the plug-ins could not be started: {}",
            out.status
        )));
    }
    if out.stdout.is_empty() {
        return Err(Failure::system(
            "the plug-ins build no graph when they are started".to_owned(),
        ));
    }
    std::io::stdout()
        .write_all(&shown_lines(&out.stdout))
        .map_err(|e| Failure::system(format!("standard output: {e}")))?;
    Ok(0)
}

/// What the plug-ins wrote, line by line, without what a terminal would obey.
fn shown_lines(text: &[u8]) -> Vec<u8> {
    let lines = text.split_inclusive(|b| *b == b'\n').map(|line| {
        let (line, end) = match line.strip_suffix(b"\n") {
            Some(line) => (line, "\n"),
            None => (line, ""),
        };
        outrider_cli::shown::line(line) + end
    });
    lines.collect::<String>().into_bytes()
}

/// `outrider graph check`: what the graphs foresaw, of which nothing was made ahead. `code` is how the program ended, as a shell has it.
pub fn verdict(args: &RunArgs, graphs: &[Told], code: i32) -> (String, i32) {
    let mut text = format!(
        "{:>10} {:>10} {:>10} {:>10} {:>13}  graph\n",
        "runs", "calls", "right", "wrong", "wrong effects"
    );
    let mut harmful = Vec::new();
    for g in graphs {
        let c = Counts::from_values(&g.counts);
        text += &format!(
            "{:>10} {:>10} {:>10} {:>10} {:>13}  {}\n",
            c.scopes,
            c.calls,
            c.foreseen,
            c.skipped + c.divergences,
            c.unclaimed_effects,
            shown(&g.name)
        );
        for problem in g.problems.iter().take(SHOWN) {
            text += &format!("    {}\n", shown(problem));
        }
        if g.problems.len() > SHOWN {
            text += &format!("    and {} more of this kind\n", g.problems.len() - SHOWN);
        }
        if c.unclaimed_effects > 0 {
            harmful.push(shown(&g.name));
        }
    }
    let program = shown(&args.command[0]);
    if code != 0 {
        text += &format!("{program} itself ended with {code}\n");
    }
    if graphs
        .iter()
        .all(|g| Counts::from_values(&g.counts).scopes == 0)
    {
        text += &format!("{program} entered no graph: nothing was checked\n");
        return (text, if code != 0 { code } else { 1 });
    }
    if !harmful.is_empty() {
        text += &format!(
            "{}: calls with effects would have been made that {program} does not make\n",
            harmful.join(", ")
        );
        return (text, 1);
    }
    (text, code)
}

/// A line for each graph, for the report of `outrider run`.
pub fn lines(graphs: &[Told]) -> String {
    let mut text = String::new();
    for g in graphs {
        let name = shown(&g.name);
        text += &format!("graph {name}: {}\n", Counts::from_values(&g.counts));
        if let Some(why) = &g.off {
            text += &format!("graph {name}: switched off: {}\n", shown(why));
        }
    }
    text
}

/// The same for a JSON report.
pub fn document(graphs: &[Told]) -> serde_json::Value {
    let one = |g: &Told| {
        let mut o = serde_json::Map::new();
        o.insert("name".into(), g.name.clone().into());
        for (name, n) in Counts::NAMES.iter().zip(g.counts) {
            o.insert((*name).into(), n.into());
        }
        o.insert("switched_off".into(), g.off.clone().into());
        o.insert("problems".into(), g.problems.clone().into());
        serde_json::Value::Object(o)
    };
    graphs.iter().map(one).collect()
}
