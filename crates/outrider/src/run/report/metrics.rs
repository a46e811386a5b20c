//! A report in the text format of Prometheus, version 0.0.4, as the textfile collector of its node exporter takes it.

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use outrider_core::shared::Shared;
use outrider_core::shm::Figure;

use super::{Ran, follows, saved_us, us, waited_us};
use crate::output::show;

/// A label's value: what would end it, or the line, is escaped.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Metrics as they are written one after the other.
struct Metrics {
    text: String,
    /// The program's label, which all have.
    program: String,
}

impl Metrics {
    /// A metric and its samples, each with further labels.
    fn add(&mut self, name: &str, kind: &str, help: &str, samples: &[(String, f64)]) {
        let _ = writeln!(self.text, "# HELP outrider_{name} {help}");
        let _ = writeln!(self.text, "# TYPE outrider_{name} {kind}");
        for (labels, value) in samples {
            let program = &self.program;
            let _ = writeln!(
                self.text,
                "outrider_{name}{{program=\"{program}\"{labels}}} {value}"
            );
        }
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.add(name, kind, help, &[(String::new(), value)]);
    }
}

fn label(name: &str, value: &str) -> String {
    format!(",{name}=\"{}\"", escaped(value))
}

/// The report of a run.
pub fn text(ran: &Ran, shared: Option<&Shared>, notes: &[String]) -> String {
    let args = ran.args;
    let name = Path::new(&args.command[0]).file_name().unwrap_or_default();
    let mut all = Metrics {
        text: String::new(),
        program: escaped(&show(name)),
    };
    let info = [
        label("mode", args.mode().name()),
        label("engine", args.engine().name()),
        label("version", env!("CARGO_PKG_VERSION")),
    ];
    all.add(
        "run_info",
        "gauge",
        "How the program was run; always 1.",
        &[(info.concat(), 1.0)],
    );
    all.one(
        "run_elapsed_seconds",
        "gauge",
        "Time since the program was started.",
        us(ran.began.elapsed()) as f64 / 1e6,
    );
    all.one(
        "run_ended",
        "gauge",
        "1 once the program is over.",
        f64::from(u8::from(ran.ended.is_some())),
    );
    if let Some((status, cpu)) = ran.ended {
        let code = match libc::WIFSIGNALED(status) {
            true => 128 + libc::WTERMSIG(status),
            false => libc::WEXITSTATUS(status),
        };
        all.one(
            "run_exit_code",
            "gauge",
            "The program's exit code, or 128 and the signal that has ended it.",
            f64::from(code),
        );
        let seconds = |us: u64| us as f64 / 1e6;
        all.add(
            "run_cpu_seconds_total",
            "counter",
            "Processor time of the program and of those that it has waited for.",
            &[
                (label("state", "user"), seconds(cpu[0])),
                (label("state", "system"), seconds(cpu[1])),
            ],
        );
    }
    if let Some(shared) = shared.filter(|_| follows(args)) {
        let header = shared.header();
        let total = &header.total.figures;
        let samples = |label_name: &str, figures: &[(&str, Figure)]| {
            let sample = |(word, figure): &(&str, Figure)| {
                (label(label_name, word), total.get(*figure) as f64)
            };
            figures.iter().map(sample).collect::<Vec<_>>()
        };
        all.add(
            "read_bytes_total",
            "counter",
            "Bytes that programs have read, by what they found.",
            &samples(
                "found",
                &[
                    ("hit", Figure::Hit),
                    ("late", Figure::Late),
                    ("cached", Figure::Cached),
                    ("missed", Figure::Miss),
                ],
            ),
        );
        all.one(
            "prefetched_bytes_total",
            "counter",
            "Bytes that were fetched ahead.",
            total.get(Figure::Prefetched) as f64,
        );
        all.add(
            "foreseen_bytes_total",
            "counter",
            "Bytes that were foreseen, by what became of them.",
            &samples(
                "fate",
                &[
                    ("used", Figure::Used),
                    ("wasted", Figure::Wasted),
                    ("evicted", Figure::Evicted),
                    ("dropped", Figure::Dropped),
                ],
            ),
        );
        let counts = [
            (
                "requests_total",
                "Requests to the kernel.",
                &header.notes.requests,
            ),
            (
                "events_total",
                "Events of programs that were looked at.",
                &header.events,
            ),
            (
                "events_dropped_total",
                "Events that found a queue full.",
                &header.dropped,
            ),
        ];
        for (name, help, count) in counts {
            all.one(name, "counter", help, count.load(Relaxed) as f64);
        }
        all.one(
            "waited_seconds_total",
            "counter",
            "What programs have waited for what was missed, as far as is known of the devices.",
            waited_us(ran, shared) as f64 / 1e6,
        );
        all.one(
            "wait_saved_seconds_total",
            "counter",
            "What the devices would have taken for what was there in time, by their figures.",
            saved_us(shared) as f64 / 1e6,
        );
        all.one(
            "peak_unused_bytes",
            "gauge",
            "The most bytes that were fetched ahead and not read yet at one time.",
            header.peak_unused.load(Relaxed) as f64,
        );
    }
    let mut lost: Vec<(String, f64)> = Vec::new();
    for note in notes {
        let (reason, _) = note.split_once(": ").unwrap_or((note, ""));
        let labels = label("reason", &show(reason));
        // The same word may begin several lines.
        match lost.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, n)) => *n += 1.0,
            None => lost.push((labels, 1.0)),
        }
    }
    all.add(
        "lost",
        "gauge",
        "Lines of the report that name what could not be done, by how they begin.",
        &lost,
    );
    all.text
}
