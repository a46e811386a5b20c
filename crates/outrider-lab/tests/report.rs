//! `outrider-lab report` and `compare` through the built command, on results made by hand: what the tables say is worked out
//! again here, in the plainest way, from the same lines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Value, json};
use tempfile::TempDir;

fn lab(args: &[&Path]) -> Output {
    let command = if args.len() == 1 { "report" } else { "compare" };
    let mut lab = Command::new(env!("CARGO_BIN_EXE_outrider-lab"));
    lab.arg(command).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A directory of results with these lines.
fn results(lines: &[Value]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(dir.path().join("results.jsonl"), lines).unwrap();
    dir
}

/// The report's exit code, complaint and summary.
fn report(dir: &TempDir) -> (i32, String, String) {
    let out = lab(&[dir.path()]);
    let summary = fs::read_to_string(dir.path().join("summary.md")).unwrap_or_default();
    (out.status.code().unwrap(), text(&out.stderr), summary)
}

fn machine(at: &str, load: f64) -> Value {
    json!({"kind": "machine", "at": at, "kernel": "6.18.5", "cpu": "A <fast> one", "cpus": 2, "memory": 8_u64 << 30,
        "os": "Debian 13", "version": "0.1.0", "fs": "ext4", "load": load})
}

fn row(
    name: &str,
    device: &str,
    figure: Option<&str>,
    x: Option<&str>,
    paper: Option<f64>,
) -> Value {
    json!({"kind": "row", "row": name, "device": device, "about": format!("Paper & Co. Fig. 1, {name}"), "figure": figure,
        "series": null, "x": x, "paper": paper, "memory": null, "data_bytes": 1 << 20})
}

fn run(name: &str, device: &str, column: &str, number: usize, seconds: f64) -> Value {
    let seed = (number + column.len()) as f64;
    json!({"kind": "run", "row": name, "device": device, "column": column, "run": number, "seconds": seconds,
        "cpu_seconds": seconds / 7.0 + seed / 100.0, "read_bytes": 250_000_000 + 1_300_000 * (number + column.len()),
        "requests": 1000 + 10 * number, "digests": ["d1", "d2"], "exit": 0, "readahead_kb": 128, "cached_before": 0,
        "foreign_load": 0.01, "discarded": null, "figures": {}, "outrider": {}, "at": "2026-11-21T12:00:00Z"})
}

fn runs(name: &str, device: &str, column: &str, seconds: &[f64]) -> Vec<Value> {
    let each = seconds.iter().enumerate();
    each.map(|(number, s)| run(name, device, column, number, *s))
        .collect()
}

fn with(mut line: Value, field: &str, value: Value) -> Value {
    line[field] = value;
    line
}

fn bound(name: &str, device: &str, replay: &[f64], warm: &[f64]) -> Value {
    json!({"kind": "bound", "row": name, "device": device, "replay": replay, "warm": warm,
        "needed_bytes": 240_500_000, "needed_requests": 321})
}

fn skip(name: &str, device: &str, column: &str, why: &str) -> Value {
    json!({"kind": "skip", "row": name, "device": device, "column": column, "why": why})
}

fn accuracy(device: &str, measure: &str, modelled: f64, measured: f64) -> Value {
    json!({"kind": "accuracy", "device": device, "measure": measure, "modelled": modelled, "measured": measured})
}

const HDD: &str = "hdd scale=0.1";

/// Two invocations, all kinds of lines, gains, losses, and runs that don't count.
fn sample() -> Vec<Value> {
    let mut lines = vec![machine("2026-11-21T12:00:00Z", 0.25)];
    // A curve over 0, 2 and 64K on two devices.
    for (device, slower) in [("nvme", 1.0), (HDD, 3.0)] {
        for (x, gain) in [("0", 1.3), ("2", 2.1), ("64K", 4.4)] {
            let name = format!("t-fig1-{x}");
            lines.push(row(
                &name,
                device,
                Some("t-fig1"),
                Some(x),
                Some(gain * 0.8),
            ));
            lines.extend(runs(
                &name,
                device,
                "predict+opt",
                &[2.0, 2.06, 1.98, 2.01].map(|s| s * slower / gain),
            ));
            lines.extend(runs(
                &name,
                device,
                "stock-128",
                &[2.04, 2.0, 2.1, 2.2, 1.9].map(|s| s * slower),
            ));
            lines.extend(runs(
                &name,
                device,
                "stock-4M",
                &[1.61, 1.6, 1.7].map(|s| s * slower),
            ));
            lines.extend(runs(
                &name,
                device,
                "vmtouch",
                &[1.6, 1.53, 1.5].map(|s| s * slower),
            ));
            lines.push(bound(
                &name,
                device,
                &[0.31, 0.3, 0.35, 0.32].map(|s| s * slower),
                &[0.1, 0.12],
            ));
        }
    }
    // Bars; one of Outrider's columns loses to stock, one only to a peer, beyond noise and within.
    for (x, stock) in [("read forwards", 12.0), ("read/backwards", 130.0)] {
        let name = format!("t-fig2-{}", x.len());
        lines.push(row(
            &name,
            "remote",
            Some("../t fig2"),
            Some(x),
            (x.len() == 13).then_some(6.5),
        ));
        lines.extend(runs(
            &name,
            "remote",
            "stock-128",
            &[stock, stock * 1.01, stock * 0.99],
        ));
        lines.extend(runs(
            &name,
            "remote",
            "app-only",
            &[stock / 5.0, stock / 5.1, stock / 4.9],
        ));
        lines.extend(runs(
            &name,
            "remote",
            "predict",
            &[stock * 1.3, stock * 1.25, stock * 1.31],
        ));
        lines.extend(runs(
            &name,
            "remote",
            "declared",
            &[stock / 4.95, stock / 5.0, stock / 4.8],
        ));
        lines.extend(runs(
            &name,
            "remote",
            "graph",
            &[stock / 18.0, stock / 19.0],
        ));
        // Working takes longer than reading.
        lines.push(bound(
            &name,
            "remote",
            &[0.2, 0.21, 0.19],
            &[stock / 30.0, stock / 29.0, stock / 31.0],
        ));
        lines.push(skip(
            &name,
            "remote",
            "stock-best",
            "no <time> | no | money",
        ));
    }
    // No figure, no limit; latencies, figures of its own; a row that could not be measured.
    lines.push(row("t-plain", "nvme", None, None, None));
    for (number, s) in [0.04, 0.05, 0.045].into_iter().enumerate() {
        // The last two are the row's own; Outrider was at work in one of them.
        for (column, part) in [
            ("stock-128", 1.0),
            ("predict+opt", 0.5),
            ("budget", 0.4),
            ("narrow", 0.9),
        ] {
            let mut line = run("t-plain", "nvme", column, number, s * part);
            line["figures"] = json!({"p50_us": 80.5 * part + number as f64, "p99_us": 900.0 * part, "ops_per_s": 1234.5 / part});
            if column == "predict+opt" || column == "budget" {
                line["outrider"] =
                    json!({"prefetched": 5.5e6 + number as f64 * 1e6, "wasted": 1.25e6});
            }
            lines.push(line);
        }
    }
    lines.push(row(
        "t-absent",
        "nvme",
        Some("t-fig3"),
        Some("4"),
        Some(2.0),
    ));
    lines.push(skip("t-absent", "nvme", "*", "no such program"));
    // Left out at first, measured later.
    lines.push(skip("t-plain", "nvme", "vmtouch", "not installed"));
    lines.push(accuracy("nvme", "latency-4k-d1", 80.0, 99.0));
    lines.push(accuracy("remote", "sequential", 1000.0, 988.0));
    // A second invocation: repeats some, discards some.
    lines.push(machine("2026-11-21T18:00:00Z", 0.5));
    lines.extend(runs("t-plain", "nvme", "vmtouch", &[0.03, 0.031, 0.032]));
    lines.push(accuracy("nvme", "latency-4k-d1", 80.0, 83.5));
    lines.push(run("t-fig1-2", "nvme", "predict+opt", 1, 0.777));
    let load = "foreign load 0.4";
    lines.push(with(
        run("t-fig1-2", "nvme", "stock-128", 5, 9.0),
        "discarded",
        json!(load),
    ));
    lines.push(with(
        run("t-fig1-2", "nvme", "stock-128", 6, 9.0),
        "discarded",
        json!(load),
    ));
    lines.push(run("t-fig1-2", "nvme", "stock-128", 6, 2.07));
    let failed = with(
        run("t-fig1-64K", HDD, "vmtouch", 2, 0.001),
        "exit",
        json!(3),
    );
    lines.push(with(failed, "digests", json!([])));
    lines
}

// The naive reference.

/// Runs of a cell that count: of each number the last, if it ended well and wasn't discarded.
fn valid<'a>(lines: &'a [Value], place: &[&str; 3]) -> Vec<&'a Value> {
    let mut last: BTreeMap<u64, &Value> = BTreeMap::new();
    for line in lines.iter().filter(|l| l["kind"] == "run") {
        if ["row", "device", "column"]
            .iter()
            .zip(place)
            .all(|(field, value)| line[field] == **value)
        {
            last.insert(line["run"].as_u64().unwrap(), line);
        }
    }
    let counts = |l: &&Value| l["exit"] == 0 && l["discarded"].is_null();
    last.into_values().filter(counts).collect()
}

fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match n {
        0 => None,
        _ => Some((values[(n - 1) / 2] + values[n / 2]) / 2.0),
    }
}

fn medians(lines: &[Value], place: &[&str; 3], field: &str) -> Option<f64> {
    let number = |line: &&Value| match field.split_once('.') {
        Some((map, key)) => line[map][key].as_f64(),
        None => line[field].as_f64(),
    };
    middle(valid(lines, place).iter().filter_map(number).collect())
}

/// The last line of a kind about a row on a device.
fn last<'a>(lines: &'a [Value], kind: &str, row: &str, device: &str) -> Option<&'a Value> {
    lines
        .iter()
        .rfind(|l| l["kind"] == kind && l["row"] == row && l["device"] == device)
}

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|n| n.as_f64().unwrap())
        .collect()
}

fn limit(lines: &[Value], row: &str, device: &str) -> Option<f64> {
    let bound = last(lines, "bound", row, device)?;
    Some(f64::max(
        middle(numbers(&bound["replay"]))?,
        middle(numbers(&bound["warm"]))?,
    ))
}

fn columns(lines: &[Value], row: &str, device: &str) -> BTreeSet<String> {
    let of_row = lines
        .iter()
        .filter(|l| l["kind"] == "run" && l["row"] == row && l["device"] == device);
    of_row
        .map(|l| l["column"].as_str().unwrap().to_owned())
        .collect()
}

const OUTRIDERS: [&str; 6] = [
    "budget",
    "predict",
    "predict+opt",
    "fetchall+opt",
    "declared",
    "graph",
];

/// The fastest of the others.
fn peer(lines: &[Value], row: &str, device: &str) -> Option<(String, f64)> {
    let others = columns(lines, row, device).into_iter();
    let others = others.filter(|c| c != "stock-128" && !OUTRIDERS.contains(&c.as_str()));
    let times =
        others.filter_map(|c| medians(lines, &[row, device, &c], "seconds").map(|s| (c, s)));
    times.min_by(|a, b| a.1.total_cmp(&b.1))
}

/// A table of the summary: a map from heading to field per line.
fn table(summary: &str, title: &str) -> Vec<BTreeMap<String, String>> {
    let section = summary
        .split("\n## ")
        .find(|s| s.starts_with(&format!("{title}\n")));
    let section = section.unwrap_or_else(|| panic!("no table {title}"));
    let mut lines = section.lines().filter(|l| l.starts_with('|')).map(|line| {
        let line = line.replace("\\|", "\u{1}");
        let fields = line.trim_matches('|').split('|');
        fields
            .map(|f| f.trim().replace('\u{1}', "|"))
            .collect::<Vec<_>>()
    });
    let head = lines.next().unwrap_or_default();
    lines
        .skip(1)
        .map(|fields| {
            assert_eq!(fields.len(), head.len(), "{title}: {fields:?}");
            head.iter().cloned().zip(fields).collect()
        })
        .collect()
}

/// The field is the number, rounded to as many digits as it shows.
#[track_caller]
fn shows(field: &str, expected: Option<f64>) {
    let Some(expected) = expected else {
        assert_eq!(field, "–");
        return;
    };
    let digits: String = field
        .chars()
        .take_while(|c| "+-.0123456789".contains(*c))
        .collect();
    let number: f64 = digits
        .parse()
        .unwrap_or_else(|_| panic!("{field} is no number; expected {expected}"));
    let decimals = digits.split_once('.').map_or(0, |(_, d)| d.len());
    let half = 0.5 * 10f64.powi(-i32::try_from(decimals).unwrap());
    assert!(
        (number - expected).abs() <= half * 1.000_001,
        "{field} for {expected}"
    );
    // Three digits at least, or the error is half a per cent of something large.
    assert!(
        half <= expected.abs() * 0.06 + 0.051,
        "{field} is too coarse for {expected}"
    );
}

#[test]
fn tables_say_what_a_naive_reference_says() {
    let lines = sample();
    let dir = results(&lines);
    let (code, complaint, summary) = report(&dir);
    assert_eq!((code, complaint.as_str()), (0, ""));

    let mut cells = 0;
    let places: BTreeSet<(String, String)> = lines
        .iter()
        .filter(|l| l["kind"] == "row")
        .map(|l| {
            (
                l["row"].as_str().unwrap().to_owned(),
                l["device"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    let headline = table(&summary, "Headline");
    let all = table(&summary, "All columns");
    let limits = table(&summary, "Limits");
    let mut losses = BTreeSet::new();
    for (row, device) in &places {
        let place = |t: &BTreeMap<String, String>| t["row"] == *row && t["device"] == *device;
        let stock = medians(&lines, &[row, device, "stock-128"], "seconds");
        let limit = limit(&lines, row, device);
        let peer = peer(&lines, row, device);
        let names = columns(&lines, row, device);
        for column in &names {
            let at = [row.as_str(), device.as_str(), column.as_str()];
            let time = medians(&lines, &at, "seconds");
            let times: Vec<f64> = valid(&lines, &at)
                .iter()
                .map(|l| l["seconds"].as_f64().unwrap())
                .collect();
            let speed_up = stock.zip(time).map(|(a, b)| a / b);
            let efficiency = limit.zip(time).map(|(a, b)| a / b * 100.0);
            let share = stock
                .zip(time)
                .zip(limit)
                .map(|((s, t), l)| (s - t) / (s - l) * 100.0);
            let few = if times.len() < 3 { " †" } else { "" };
            let dropped = lines.iter().filter(|l| {
                l["row"] == *row
                    && l["device"] == *device
                    && l["column"] == *column
                    && l["kind"] == "run"
                    && (l["exit"] != 0 || !l["discarded"].is_null())
            });

            let found: Vec<_> = all
                .iter()
                .filter(|t| place(t) && t["column"] == *column)
                .collect();
            assert_eq!(found.len(), 1, "{at:?}");
            let line = found[0];
            cells += 1;
            shows(&line["time, s"], time);
            assert_eq!(line["time, s"].ends_with(" †"), !few.is_empty(), "{line:?}");
            shows(&line["min, s"], times.iter().copied().reduce(f64::min));
            shows(&line["max, s"], times.iter().copied().reduce(f64::max));
            assert_eq!(line["valid runs"], times.len().to_string());
            assert_eq!(line["discarded"], dropped.count().to_string(), "{at:?}");
            shows(&line["speed-up"], speed_up);
            shows(&line["efficiency"], efficiency);
            shows(&line["share of gain"], share);
            shows(&line["CPU, s"], medians(&lines, &at, "cpu_seconds"));
            shows(
                &line["read, MB"],
                medians(&lines, &at, "read_bytes").map(|b| b / 1e6),
            );
            shows(&line["requests"], medians(&lines, &at, "requests"));
            shows(&line["p50, µs"], medians(&lines, &at, "figures.p50_us"));
            shows(&line["p99, µs"], medians(&lines, &at, "figures.p99_us"));

            if !OUTRIDERS.contains(&column.as_str()) {
                continue;
            }
            let found: Vec<_> = headline
                .iter()
                .filter(|t| place(t) && t["column"] == *column)
                .collect();
            assert_eq!(found.len(), 1, "{at:?}");
            let line = found[0];
            shows(&line["stock-128, s"], stock);
            shows(&line["best other peer, s"], peer.as_ref().map(|p| p.1));
            if let Some((name, _)) = &peer {
                assert!(
                    line["best other peer, s"].ends_with(&format!(" {name}")),
                    "{line:?}"
                );
            }
            shows(&line["limit, s"], limit);
            shows(&line["time, s"], time);
            assert_eq!(line["time, s"].ends_with(" †"), !few.is_empty(), "{line:?}");
            shows(&line["speed-up"], speed_up);
            shows(
                &line["paper"],
                last(&lines, "row", row, device).unwrap()["paper"].as_f64(),
            );
            shows(&line["efficiency"], efficiency);
            shows(&line["share of gain"], share);
            let base = [row.as_str(), device.as_str(), "stock-128"];
            shows(&line["CPU, s"], medians(&lines, &at, "cpu_seconds"));
            shows(&line["stock CPU, s"], medians(&lines, &base, "cpu_seconds"));
            shows(&line["p50, µs"], medians(&lines, &at, "figures.p50_us"));
            shows(
                &line["stock p50, µs"],
                medians(&lines, &base, "figures.p50_us"),
            );
            shows(&line["p99, µs"], medians(&lines, &at, "figures.p99_us"));
            shows(
                &line["stock p99, µs"],
                medians(&lines, &base, "figures.p99_us"),
            );
            shows(
                &line["read, MB"],
                medians(&lines, &at, "read_bytes").map(|b| b / 1e6),
            );
            shows(
                &line["stock read, MB"],
                medians(&lines, &base, "read_bytes").map(|b| b / 1e6),
            );

            let rivals = [stock.map(|s| ("stock-128".to_owned(), s)), peer.clone()];
            for (rival, theirs) in rivals.into_iter().flatten() {
                if time.unwrap() > theirs {
                    losses.insert((row.clone(), device.clone(), column.clone(), rival));
                }
            }
        }
        if let Some(bound) = last(&lines, "bound", row, device) {
            let line = limits.iter().find(|t| place(t)).unwrap();
            shows(&line["reading, s"], middle(numbers(&bound["replay"])));
            shows(
                &line["everything cached, s"],
                middle(numbers(&bound["warm"])),
            );
            shows(&line["limit, s"], limit);
            shows(&line["needed, MB"], Some(240.5));
            assert_eq!(line["requests"], "321");
        }
    }
    assert_eq!(all.len(), cells, "nothing else is in the table");
    // A row without a column of Outrider's is there with what was measured of it.
    let lonely = headline
        .iter()
        .filter(|t| t["column"] == "–")
        .map(|t| t["row"].as_str())
        .collect::<Vec<_>>();
    assert_eq!(lonely, ["t-absent"]);

    let told = table(&summary, "Losses");
    let said: BTreeSet<_> = told
        .iter()
        .map(|t| {
            (
                t["row"].clone(),
                t["device"].clone(),
                t["column"].clone(),
                t["slower than"].clone(),
            )
        })
        .collect();
    assert_eq!(said, losses);
    assert_eq!(told.len(), losses.len());
    let mut worst = f64::INFINITY;
    for line in &told {
        let seconds =
            |column: &str| medians(&lines, &[&line["row"], &line["device"], column], "seconds");
        let (ours, theirs) = (seconds(&line["column"]), seconds(&line["slower than"]));
        shows(&line["time, s"], ours);
        shows(&line["its time, s"], theirs);
        let by = (ours.unwrap() / theirs.unwrap() - 1.0) * 100.0;
        shows(&line["by"], Some(by));
        assert!(by <= worst, "the worst comes first");
        worst = by;
        let ranges = |column: &str| {
            let runs = valid(&lines, &[&line["row"], &line["device"], column]);
            runs.iter()
                .map(|l| l["seconds"].as_f64().unwrap())
                .collect::<Vec<_>>()
        };
        let (a, b) = (ranges(&line["column"]), ranges(&line["slower than"]));
        let apart = a.iter().all(|x| b.iter().all(|y| x > y));
        assert_eq!(
            line["beyond noise"],
            if by > 5.0 && apart { "yes" } else { "no" },
            "{line:?}"
        );
    }
    assert!(
        told.iter().any(|t| t["beyond noise"] == "yes")
            && told.iter().any(|t| t["beyond noise"] == "no")
    );

    let deviations: Vec<_> = table(&summary, "Accuracy of the emulator")
        .iter()
        .map(|t| {
            ["device", "measure", "modelled", "measured", "deviation"]
                .map(|c| t[c].clone())
                .join(" ")
        })
        .collect();
    assert_eq!(
        deviations,
        [
            "nvme latency-4k-d1 80 83.50 +4.4 %",
            "remote sequential 1000 988 -1.2 %"
        ]
    );
    let left_out: Vec<_> = table(&summary, "Columns left out")
        .iter()
        .map(|t| ["row", "column", "why"].map(|c| t[c].clone()).join(": "))
        .collect();
    assert_eq!(
        left_out,
        [
            "t-fig2-13: stock-best: no &lt;time> | no | money",
            "t-fig2-14: stock-best: no &lt;time> | no | money",
            "t-absent: all: no such program"
        ]
    );
    let dropped: Vec<_> = table(&summary, "Runs that do not count")
        .iter()
        .map(|t| {
            ["row", "device", "column", "runs", "why"]
                .map(|c| t[c].clone())
                .join(" ")
        })
        .collect();
    assert_eq!(
        dropped,
        [
            "t-fig1-2 nvme stock-128 2 foreign load 0.4",
            "t-fig1-64K hdd scale=0.1 vmtouch 1 exit code 3"
        ]
    );
    for line in table(&summary, "The programs' own figures") {
        let figure = format!("figures.{}", line["figure"]);
        shows(
            &line["value"],
            medians(
                &lines,
                &[&line["row"], &line["device"], &line["column"]],
                &figure,
            ),
        );
        shows(
            &line["with stock-128"],
            medians(
                &lines,
                &[&line["row"], &line["device"], "stock-128"],
                &figure,
            ),
        );
    }
    let fetched = table(&summary, "What became of what was prefetched");
    assert_eq!(fetched.len(), 2);
    assert_eq!(
        [
            &fetched[0]["prefetched"],
            &fetched[0]["wasted"],
            &fetched[0]["hit"]
        ],
        ["6.5", "1.2", "–"]
    );
    for said in [
        "2 x A &lt;fast> one",
        "2026-11-21T12:00:00Z to 2026-11-21T18:00:00Z (2 invocations)",
        "0.25, then 0.50",
    ] {
        assert!(summary.contains(said), "{said}");
    }
}

/// What an SVG shows upwards: from the labels of the axis, as a function from a place to a speed-up.
fn upwards(svg: &[Node], log: bool) -> impl Fn(f64) -> f64 {
    let number = |node: &Node, name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap();
    let ticks: Vec<(f64, f64)> = svg
        .iter()
        .filter(|n| n.has_tag_name("text"))
        .filter_map(|n| {
            Some((
                n.text()?.trim().strip_suffix('x')?.parse::<f64>().ok()?,
                number(n, "y"),
            ))
        })
        .collect();
    // The line at 1 says how far the text of a label is from its place.
    let points = svg
        .iter()
        .find(|n| n.has_tag_name("polyline") && n.attribute("stroke-width") == Some("3"))
        .unwrap();
    let base: f64 = points
        .attribute("points")
        .unwrap()
        .split([' ', ','])
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let scale = move |v: f64| if log { v.log10() } else { v };
    let (first, second) = (ticks[0], *ticks.last().unwrap());
    let slope = (scale(second.0) - scale(first.0)) / (second.1 - first.1);
    move |y: f64| {
        let value = scale(1.0) + (y - base) * slope;
        if log { 10f64.powf(value) } else { value }
    }
}

/// The middle of a mark.
fn centre(points: &str) -> f64 {
    let ys: Vec<f64> = points
        .split_whitespace()
        .map(|p| p.split_once(',').unwrap().1.parse().unwrap())
        .collect();
    ys.iter().sum::<f64>() / ys.len() as f64
}

/// The paper's stars.
fn stars<'a>(nodes: &[Node<'a, 'a>]) -> Vec<&'a str> {
    let polygons = nodes
        .iter()
        .filter(|n| n.has_tag_name("polygon") && n.attribute("fill") == Some("#F0E442"));
    polygons.map(|n| n.attribute("points").unwrap()).collect()
}

#[track_caller]
fn same(mut found: Vec<f64>, mut expected: Vec<f64>) {
    found.sort_by(f64::total_cmp);
    expected.sort_by(f64::total_cmp);
    assert_eq!(found.len(), expected.len(), "{found:?} {expected:?}");
    for (a, b) in found.iter().zip(&expected) {
        assert!((a / b - 1.0).abs() < 0.02, "{found:?} {expected:?}");
    }
}

#[test]
fn plots_show_the_numbers_and_the_papers_claims() {
    let lines = sample();
    let dir = results(&lines);
    assert_eq!(report(&dir).0, 0);
    let mut files: Vec<String> = fs::read_dir(dir.path().join("plots"))
        .unwrap()
        .map(|f| f.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    // A figure's key cannot lead out of the directory.
    assert_eq!(files, ["t-fig1.svg", "t-fig2.svg", "t-fig3.svg"]);
    let stars_of = |file: &str| {
        let svg = fs::read_to_string(dir.path().join("plots").join(file)).unwrap();
        let svg = Document::parse(&svg).unwrap();
        let nodes: Vec<Node> = svg.descendants().collect();
        let legend = nodes
            .iter()
            .filter(|n| n.has_tag_name("text") && n.text().is_some_and(|t| t.trim() == "paper"))
            .count();
        // One is the legend's.
        (stars(&nodes).len() - 1, legend)
    };
    assert_eq!(stars_of("t-fig1.svg"), (6, 1));
    assert_eq!(stars_of("t-fig2.svg"), (1, 1));
    assert_eq!(stars_of("t-fig3.svg"), (1, 1));

    let page = fs::read_to_string(dir.path().join("index.html")).unwrap();
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    let page = Document::parse_with_options(&page, options).unwrap();
    // Nothing from elsewhere.
    for node in page.descendants().filter(Node::is_element) {
        let name = node.tag_name().name();
        assert!(
            !["link", "img", "iframe", "object", "image"].contains(&name),
            "{name}"
        );
        assert!(node.attribute("src").is_none());
        let target = node.attribute("href").unwrap_or("#");
        assert!(
            target.starts_with('#') || dir.path().join(target).is_file(),
            "{target}"
        );
    }
    let style = page
        .descendants()
        .find(|n| n.has_tag_name("style"))
        .unwrap()
        .text()
        .unwrap();
    assert!(!style.contains("url(") && !style.contains("@import"));
    // The same tables as in the summary.
    let summary = fs::read_to_string(dir.path().join("summary.md")).unwrap();
    for title in [
        "Headline",
        "Losses",
        "All columns",
        "Limits",
        "Accuracy of the emulator",
    ] {
        let section = page.descendants().find(|n| {
            n.has_tag_name("section")
                && n.descendants()
                    .any(|h| h.has_tag_name("h2") && h.text() == Some(title))
        });
        let section = section.unwrap_or_else(|| panic!("no {title}"));
        let bodies = section.descendants().filter(|n| n.has_tag_name("tbody"));
        let rows = bodies
            .flat_map(|b| b.children())
            .filter(|n| n.has_tag_name("tr"));
        let heads: Vec<&str> = section
            .descendants()
            .filter(|n| n.has_tag_name("button"))
            .map(|n| n.text().unwrap())
            .collect();
        let shown: Vec<BTreeMap<String, String>> = rows
            .map(|r| {
                let fields = r
                    .children()
                    .filter(|n| n.has_tag_name("td"))
                    .map(|n| n.text().unwrap_or("").to_owned());
                heads.iter().map(|h| (*h).to_owned()).zip(fields).collect()
            })
            .collect();
        assert_eq!(shown, table(&summary, title), "{title}");
    }

    // Each panel's marks stand where the numbers say.
    let panels: Vec<Node> = page
        .descendants()
        .filter(|n| n.attribute("class") == Some("panel"))
        .collect();
    let titles: Vec<&str> = panels
        .iter()
        .map(|p| p.attribute("aria-label").unwrap())
        .collect();
    assert_eq!(titles, ["nvme", HDD, "remote", "nvme"]);
    for (panel, device) in panels.iter().zip(["nvme", HDD]) {
        let nodes: Vec<Node> = panel.descendants().collect();
        let place = upwards(&nodes, false);
        let gains = |of: &dyn Fn(&str) -> Option<f64>| -> Vec<f64> {
            ["t-fig1-0", "t-fig1-2", "t-fig1-64K"]
                .iter()
                .filter_map(|row| of(row))
                .collect()
        };
        same(
            stars(&nodes)
                .iter()
                .map(|points| centre(points))
                .map(&place)
                .collect(),
            gains(&|row| last(&lines, "row", row, device).unwrap()["paper"].as_f64()),
        );
        let discs = nodes
            .iter()
            .filter(|n| n.has_tag_name("circle") && n.attribute("fill") == Some("#0072B2"));
        same(
            discs
                .map(|n| place(n.attribute("cy").unwrap().parse().unwrap()))
                .collect(),
            gains(&|row| {
                let time = |column: &str| medians(&lines, &[row, device, column], "seconds");
                Some(time("stock-128")? / time("predict+opt")?)
            }),
        );
        let words: Vec<&str> = nodes
            .iter()
            .filter(|n| n.has_tag_name("text"))
            .filter_map(|n| Some(n.text()?.trim()))
            .collect();
        for label in ["0", "2", "64K", "speed-up over stock-128"] {
            assert!(words.contains(&label), "{label} in {words:?}");
        }
    }
    // From 0.77 to 30: a logarithmic axis. Bars begin at the line at 1.
    let nodes: Vec<Node> = panels[2].descendants().collect();
    let place = upwards(&nodes, true);
    same(
        stars(&nodes)
            .iter()
            .map(|points| place(centre(points)))
            .collect(),
        vec![6.5],
    );
    let bars = nodes
        .iter()
        .filter(|n| n.has_tag_name("rect") && n.attribute("fill") == Some("#D55E00"));
    let ends = bars.map(|n| {
        let number = |name: &str| n.attribute(name).unwrap().parse::<f64>().unwrap();
        same(vec![place(number("y") + number("height"))], vec![1.0]);
        place(number("y"))
    });
    let speed_up = |row: &str| {
        let time = |column: &str| medians(&lines, &[row, "remote", column], "seconds").unwrap();
        time("stock-128") / time("declared")
    };
    same(
        ends.collect(),
        vec![speed_up("t-fig2-13"), speed_up("t-fig2-14")],
    );
    // What was not measured has no bars, and says so.
    let said = panels[3]
        .descendants()
        .any(|n| n.text().is_some_and(|t| t.trim() == "no valid runs"));
    assert!(said);
}

#[test]
fn wrong_output_is_told_first_and_fails() {
    let mut lines = sample();
    let wrong = lines.iter_mut().find(|l| {
        l["kind"] == "run"
            && l["row"] == "t-fig1-0"
            && l["column"] == "predict+opt"
            && l["run"] == 2
    });
    wrong.unwrap()["digests"] = json!(["d1", "other"]);
    let dir = results(&lines);
    let (code, complaint, summary) = report(&dir);
    assert_eq!(code, 1);
    let told = "t-fig1-0 on nvme: predict+opt printed something else than the first run of stock-128 did (run 2)";
    assert_eq!(complaint, format!("outrider-lab: WRONG OUTPUT: {told}\n"));
    let mut first = summary.lines().filter(|l| !l.is_empty()).skip(1);
    assert_eq!(first.next().unwrap(), format!("**WRONG OUTPUT**: {told}"));
    let page = fs::read_to_string(dir.path().join("index.html")).unwrap();
    assert!(page.find("WRONG OUTPUT").unwrap() < page.find("<main>").unwrap());

    // A wrong answer counts on a busy machine as well, and in a comparison.
    let good = results(&sample());
    let out = lab(&[good.path(), dir.path()]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stdout).starts_with("WRONG OUTPUT in the second: t-fig1-0 on nvme: predict+opt")
    );
    for line in &mut lines {
        if line["digests"] == json!(["d1", "other"]) {
            line["discarded"] = json!("foreign load 0.9");
        }
    }
    assert_eq!(report(&results(&lines)).0, 1);
}

#[test]
fn bad_lines_are_named_and_nothing_is_written() {
    let start = [
        machine("2026-11-21T12:00:00Z", 0.1),
        row("r", "nvme", None, None, None),
    ];
    let good: String = start.iter().map(|l| format!("{l}\n")).collect();
    let a_run = run("r", "nvme", "stock-128", 0, 1.0);
    let mut incomplete = a_run.clone();
    incomplete.as_object_mut().unwrap().remove("cpu_seconds");
    let cases: [(Vec<u8>, &str); 7] = [
        (a_run.to_string()[..40].into(), "EOF"),
        (
            json!({"kind": "guess"}).to_string().into(),
            "unknown variant `guess`",
        ),
        (incomplete.to_string().into(), "missing field `cpu_seconds`"),
        (
            with(a_run.clone(), "seconds", json!("1.0"))
                .to_string()
                .into(),
            "invalid type: string",
        ),
        (
            with(a_run.clone(), "seconds", json!(0)).to_string().into(),
            "seconds is 0 (accepted: above 0)",
        ),
        (b"\xff\xfe".to_vec(), "expected value"),
        (format!("\n{a_run}").into(), "EOF"),
    ];
    let fine = results(&sample());
    for (bad, why) in cases {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("results.jsonl");
        fs::write(&file, [good.as_bytes(), bad.as_slice(), b"\n"].concat()).unwrap();
        for out in [
            lab(&[dir.path()]),
            lab(&[dir.path(), fine.path()]),
            lab(&[fine.path(), dir.path()]),
        ] {
            let complaint = text(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{complaint}");
            let start = format!("outrider-lab: {}:3: ", file.display());
            assert!(
                complaint.starts_with(&start) && complaint.contains(why),
                "{complaint}"
            );
            assert_eq!(
                (complaint.lines().count(), out.stdout.len()),
                (1, 0),
                "{complaint}"
            );
        }
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "nothing is written"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    for empty in [false, true] {
        if empty {
            fs::write(dir.path().join("results.jsonl"), "").unwrap();
        }
        let (code, complaint, _) = report(&dir);
        assert_eq!(code, 2, "{complaint}");
        assert!(complaint.contains("results.jsonl: "), "{complaint}");
    }
}

#[test]
fn a_comparison_tells_regressions_from_noise() {
    let at = |column: &str, seconds: &[f64]| runs("r", "nvme", column, seconds);
    let first: Vec<Value> = [
        vec![
            machine("2026-11-21T12:00:00Z", 0.1),
            row("r", "nvme", None, None, None),
        ],
        at("stock-128", &[10.0, 10.1, 10.2]),
        at("stock-4M", &[8.0, 8.01, 8.02]),
        at("predict", &[3.0, 3.5, 4.0]),
        at("predict+opt", &[2.0, 2.1, 2.2]),
        at("declared", &[5.0, 5.1, 5.2]),
        at("graph", &[1.0, 1.0]),
        at("vmtouch", &[7.0, 7.1, 7.2]),
    ]
    .concat();
    let second = |regression: bool, failure: bool| -> Vec<Value> {
        let mut lines = [
            vec![
                machine("2026-11-22T12:00:00Z", 0.1),
                row("r", "nvme", None, None, None),
            ],
            at("stock-128", &[10.0, 10.15, 10.3]),
            // Apart, but by less than 5 %.
            at("stock-4M", &[8.2, 8.21, 8.22]),
            // By 20 %, but not apart.
            at("predict", &[3.9, 4.2, 4.5]),
            at(
                "predict+opt",
                if regression {
                    &[2.6, 2.7, 2.8]
                } else {
                    &[2.05, 2.1, 2.3]
                },
            ),
            at("declared", &[4.0, 4.1, 4.2]),
            at("graph", &[3.0, 3.0]),
            at("app-only", &[9.0, 9.1, 9.2]),
        ]
        .concat();
        if failure {
            let fails = at("vmtouch", &[0.1, 0.1, 0.1]).into_iter();
            lines.extend(fails.map(|run| with(run, "exit", json!(4))));
        }
        lines
    };
    let compare = |regression: bool, failure: bool| {
        let (before, after) = (results(&first), results(&second(regression, failure)));
        let out = lab(&[before.path(), after.path()]);
        (
            out.status.code().unwrap(),
            text(&out.stdout),
            text(&out.stderr),
        )
    };
    // Fields are two spaces apart.
    let fields = |out: &str| -> Vec<Vec<String>> {
        let split = |l: &str| {
            l.split("  ")
                .map(str::trim)
                .filter(|f| !f.is_empty())
                .map(str::to_owned)
                .collect()
        };
        out.lines().filter(|l| !l.is_empty()).map(split).collect()
    };

    let (code, out, complaint) = compare(true, false);
    assert_eq!(
        (code, complaint.as_str()),
        (1, "outrider-lab: worse beyond noise: 1\n"),
        "{out}"
    );
    let lines = fields(&out);
    let verdicts: Vec<(&str, &str, &str)> = lines
        .iter()
        .filter(|l| l.len() == 9 && l[1] == "r")
        .map(|l| (l[0].as_str(), l[3].as_str(), l[6].as_str()))
        .collect();
    assert_eq!(
        verdicts,
        [
            ("SLOWER", "predict+opt", "1.29x"),
            ("faster", "declared", "0.80x"),
            ("too few runs", "graph", "3.00x"),
            ("within noise", "predict", "1.20x"),
            ("within noise", "stock-4M", "1.02x"),
            ("within noise", "stock-128", "1.00x"),
        ]
    );
    let slower = lines.iter().find(|l| l[0] == "SLOWER").unwrap();
    assert_eq!(
        slower[4..],
        ["2.100", "2.700", "1.29x", "2.000-2.200", "2.600-2.800"]
    );
    assert!(
        out.starts_with("6 compared: 1 slower beyond noise, 1 faster beyond noise; 0 fail"),
        "{out}"
    );
    assert!(out.contains("\nbeyond noise: the ranges of the valid runs do not overlap and the medians differ by more than 5 %"));
    let only: Vec<String> = lines
        .iter()
        .filter(|l| l[0] == "first" || l[0] == "second")
        .map(|l| l.join(" "))
        .collect();
    assert_eq!(
        only,
        [
            "second r nvme app-only 9.100 not measured",
            "first r nvme vmtouch 7.100 not measured"
        ]
    );

    let (code, out, complaint) = compare(false, false);
    assert_eq!((code, complaint.as_str()), (0, ""), "{out}");
    // What worked and always fails now is worse than slow.
    let (code, out, _) = compare(false, true);
    assert_eq!(code, 1, "{out}");
    let only = fields(&out)
        .into_iter()
        .find(|l| l.first().is_some_and(|f| f == "first"))
        .unwrap();
    assert_eq!(
        only.join(" "),
        "first r nvme vmtouch 7.100 no valid run: 3 x exit code 4"
    );
}
