//! What somebody sees who has just got the command: what to type, what went wrong and what was meant, and what a run came to in words.
//!
//! SPEC B8 (usable without reading the code), CP13 (reports).

mod support;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::Data::Big;
use support::{eventually, fresh, fresh_with, outrider, outrider_run, repository};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The command in a small environment.
fn ours(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(outrider());
    support::plain_environment(&mut command, dir);
    command.args(args).current_dir(dir).stdin(Stdio::null());
    command
}

fn said(dir: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let output = ours(dir, args).output().unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn alone_it_says_what_to_type() {
    let dir = fresh("alone");
    let (code, out, err) = said(&dir, &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(err.lines().count(), 10, "{err}");
    assert!(
        err.is_ascii() && err.lines().all(|l| l.len() <= 80),
        "{err}"
    );
    // Each command that it names is one.
    let named = err.lines().filter_map(|l| l.strip_prefix("  outrider "));
    let named: Vec<&str> = named.filter_map(|l| l.split(' ').next()).collect();
    assert_eq!(named.len(), 8);
    let (code, all, err) = said(&dir, &["help"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for name in named {
        assert!(all.contains(&format!("\n  {name} ")), "{name}: {all}");
    }
    for words in [&["run"][..], &["graph", "check"], &["profile"]] {
        let (code, help, err) = said(&dir, &[&["help"], words].concat());
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let usage = format!("Usage: outrider {}", words.join(" "));
        assert!(help.contains(&usage), "{help}");
    }
    for (words, parts) in [
        (&["help", "rnu"][..], &["is run meant?", "cached"][..]),
        (
            &["help", "graph", "x"],
            &["`outrider graph` accepts check, show"],
        ),
        (&["help", "run", "x"], &["accepts no further word"]),
    ] {
        let (code, _, err) = said(&dir, words);
        assert_eq!(code, Some(2), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{err}");
    }
}

/// Mistakes are told with what was meant, in a line, and nothing is done.
#[test]
fn what_was_meant() {
    let dir = fresh("meant");
    for (args, part) in [
        (&["rnu", "ls"][..], "is run meant?"),
        (
            &["run", "--engine", "treads", "touch", "made"],
            "is threads meant?",
        ),
        (
            &["run", "--mode", "predct", "touch", "made"],
            "is predict meant?",
        ),
        (&["run", "--raport", "touch", "made"], "is --report meant?"),
        (&["cached", "--sumary", "."], "is --summary meant?"),
        (
            &["run", "--report", "made", "--", "touch", "made"],
            "write --report=made",
        ),
        (
            &["run", "--remember", "job", "touch", "made"],
            "write --remember=job",
        ),
        (
            &["try", "--runds", "1", "touch", "made"],
            "is --rounds meant?",
        ),
        (&["try", "-n", "0", "touch", "made"], "from 1 to 99"),
        (
            &["run", "--report-every", "0", "touch", "made"],
            "1 to 86400",
        ),
        (
            &["run", "--report-every", "5", "touch", "made"],
            "--report=FILE",
        ),
        (
            &[
                "run",
                "--report=/dev/null",
                "--report-every",
                "5",
                "touch",
                "made",
            ],
            "no regular file",
        ),
        (
            &["run", "--report=-", "--report-every", "5", "touch", "made"],
            "--report=FILE",
        ),
        (
            &["profile", "prune", "--unused", "x"],
            "accepted is a number of days",
        ),
        (
            &["profile", "import", "/nope", "x"],
            "/nope: no such file; accepted is",
        ),
    ] {
        let (code, out, err) = said(&dir, args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
        assert!(err.contains(part), "{args:?}: {err}");
        assert!(!dir.join("made").exists(), "{args:?}");
    }
    // A program behind the flag is one.
    let (code, ..) = said(&dir, &["run", "--report", "true", "made"]);
    assert_eq!(code, Some(0));
    // What is unlike everything is not guessed at.
    let (_, _, err) = said(&dir, &["run", "--engine", "foo", "true"]);
    assert!(!err.contains("meant"), "{err}");
}

/// Of several paths those that are there are dealt with.
#[test]
fn one_bad_path_stops_nothing() {
    let dir = fresh("paths");
    for name in ["good", "good2"] {
        fs::write(dir.join(name), vec![7; 1 << 20]).unwrap();
    }
    for (command, part) in [
        ("warm", "2 files"),
        ("cached", "good2"),
        ("evict", "2 files"),
    ] {
        let (code, out, err) = said(&dir, &[command, "good", "nosuch", "good2"]);
        assert_eq!(code, Some(1), "{command}: {err}");
        assert!(out.contains(part), "{command}: {out}");
        assert!(
            err.lines().count() == 1 && err.starts_with("outrider: nosuch: "),
            "{command}: {err}"
        );
        let (code, out, err) = said(&dir, &[command, "nosuch", "nosuch2"]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{command}");
        assert!(
            err.lines().count() == 1 && err.contains("nosuch2"),
            "{command}: {err}"
        );
    }
}

/// A large tree is summed up, and the sums are those of its files.
#[test]
fn large_trees_are_summed_up() {
    let dir = fresh("sums");
    for i in 0..300 {
        let below = dir.join(format!("tree/{:02}", i % 30));
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join(format!("{i}")), vec![1; 1000 + i]).unwrap();
    }
    fs::write(dir.join("tree/own"), [1; 77]).unwrap();
    let files = |text: &str| -> usize {
        let counts = text.lines().filter_map(|l| {
            let (_, rest) = l.split_once("  in ")?;
            rest.trim_start().split(' ').next()?.parse::<usize>().ok()
        });
        counts.sum()
    };
    let (code, out, _) = said(&dir, &["cached", "tree"]);
    assert_eq!(code, Some(0));
    let (rows, total) = out.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(rows.lines().count(), 20, "{out}");
    assert_eq!(files(rows), 301, "{out}");
    assert!(total.ends_with("in 301 files"), "{out}");
    let (_, out, _) = said(&dir, &["cached", "--summary", "tree"]);
    assert_eq!((out.lines().count(), files(&out)), (1, 301), "{out}");
    let (_, out, _) = said(
        &dir,
        &["cached", "--summary", "tree/00", "tree/01", "tree/own"],
    );
    assert_eq!(out.lines().count(), 4, "{out}");
    let (_, out, _) = said(&dir, &["cached", "--all", "tree"]);
    assert_eq!(out.lines().count(), 302, "{out}");
    // JSON has all files, whatever is shown.
    let (_, out, _) = said(&dir, &["cached", "--json", "tree"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["files"].as_array().unwrap().len(), 301);
}

/// Characters beyond ASCII are for who takes them for UTF-8, and escape sequences for nobody who says NO_COLOR.
#[test]
fn what_a_terminal_can_show() {
    let dir = fresh("locale");
    fs::write(dir.join("file"), vec![7; 1 << 20]).unwrap();
    let shown = |variables: &[(&str, &str)]| {
        let mut command = ours(&dir, &["cached", "file"]);
        command.env_remove("LC_ALL").envs(variables.iter().copied());
        support::printed(&mut command)
    };
    for variables in [
        &[][..],
        &[("LC_ALL", "C")],
        &[("LANG", "de_DE")],
        &[("LC_ALL", "C"), ("LANG", "C.UTF-8")],
    ] {
        let text = shown(variables);
        assert!(
            text.is_ascii() && text.contains('#'),
            "{variables:?}: {text}"
        );
    }
    for variables in [
        &[("LC_ALL", "C.UTF-8")][..],
        &[("LANG", "en_GB.utf8")],
        &[("LC_CTYPE", "C.UTF-8"), ("LANG", "C")],
    ] {
        assert!(shown(variables).contains('\u{2588}'), "{variables:?}");
    }
    let map = |columns: &str| {
        let text = shown(&[("COLUMNS", columns)]);
        text.split('|').nth(1).unwrap().len()
    };
    assert_eq!(["200", "80", "70", "40"].map(map), [40, 25, 15, 8]);
    // The map of a file of one page is full where that is cached.
    let page = dir.join("page");
    fs::write(&page, "x").unwrap();
    let text = support::printed(ours(&dir, &["cached", "page"]).env("LC_ALL", "C"));
    assert!(text.contains("|#| ") && text.contains("100.0%"), "{text}");

    // On a terminal of 60 columns, without colours.
    const TERMINAL: &str = "import fcntl, os, pty, struct, sys, termios
pid, master = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 60, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
seen = b''
while True:
    try: part = os.read(master, 4096)
    except OSError: break
    if not part: break
    seen += part
os.waitpid(pid, 0)
sys.stdout.buffer.write(seen)";
    for args in [
        &["help"][..],
        &["cached", "file"],
        &["warm", "file"],
        &["bogus"],
    ] {
        let mut command = Command::new("python3");
        support::plain_environment(&mut command, &dir);
        command
            .current_dir(&dir)
            .env("NO_COLOR", "1")
            .env("TERM", "xterm");
        command.args(["-c", TERMINAL]).arg(outrider()).args(args);
        let text = support::printed(&mut command);
        assert!(
            !text.contains("\u{1b}[3") && !text.contains("\u{1b}[1m"),
            "{text:?}"
        );
        assert!(text.len() > 20, "{text:?}");
        if args[0] == "cached" {
            assert!(text.lines().all(|l| l.len() <= 60), "{text:?}");
        }
    }
}

/// A report of a cold file that is read backwards, of which something was fetched.
fn told(dir: &Path, flags: &[&str], argv: &[&str], is_told: impl Fn(&Output) -> bool) -> Output {
    eventually(|| {
        support::make_cold(dir);
        let output = outrider_run(dir, flags, argv).output().unwrap();
        match is_told(&output) {
            true => Ok(output),
            false => Err(format!("{output:?}")),
        }
    })
}

/// The table begins with a sentence of what it has, and fits 80 columns whatever the names are.
#[test]
fn reports_begin_with_a_sentence() {
    let dir = fresh_with("sentence", &[Big]);
    let long = dir.join("a".repeat(120));
    fs::create_dir(&long).unwrap();
    fs::rename(dir.join("big.dat"), long.join("the_end")).unwrap();
    let file = long.join("the_end");
    let file = file.to_str().unwrap();
    let output = told(&dir, &["--report"], &["tac", file], |o| {
        text(&o.stderr).contains(" streams")
    });
    let shown = text(&output.stderr);
    let (sentence, table) = shown.split_once("       hit ").unwrap();
    let sentence = sentence.replace('\n', " ");
    assert!(
        shown.is_ascii() && shown.lines().all(|l| l.len() <= 80),
        "{shown}"
    );
    assert!(sentence.starts_with("outrider: "), "{shown}");
    assert!(
        table.contains("...") && table.contains("/the_end\n"),
        "{shown}"
    );
    // What the sentence says stands in the table's last row.
    let total = table.lines().find(|l| l.ends_with(" total")).unwrap();
    let words: Vec<&str> = total.split_whitespace().collect();
    let hit = format!("{} {} were there in time", words[0], words[1]);
    let late = format!("{} {} came late", words[2], words[3]);
    let missed = format!("{} {} were read as always", words[6], words[7]);
    for part in [&hit, &late, &missed] {
        assert!(sentence.contains(part.as_str()), "{part}: {shown}");
    }
    // On more columns more of a name is shown. Of a long path its end is kept.
    let whole = format!("{}/the_end", "a".repeat(120));
    let mut wide = outrider_run(&dir, &["--report"], &["tac", file]);
    wide.env("COLUMNS", "400");
    let shown = eventually(|| {
        support::make_cold(&dir);
        let said = text(&wide.output().unwrap().stderr);
        said.contains(&whole).then_some(said.clone()).ok_or(said)
    });
    assert!(!shown.contains("..."), "{shown}");
    // Where nothing was read there is nothing to say, and where all was cached neither.
    let (_, _, err) = said(&dir, &["run", "--report", "--", "true"]);
    assert!(err.contains("nothing was done"), "{err}");
}

/// What a command writes on a terminal of so many columns, without its styles, and what of that is wider.
fn on_terminal(mut command: Command, columns: u16) -> (String, Vec<String>) {
    let size = libc::winsize {
        ws_row: 40,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: writes two descriptors, reads a size, and takes neither a name nor settings.
    let opened = unsafe {
        let none = std::ptr::null_mut();
        libc::openpty(
            &mut ours,
            &mut theirs,
            none,
            none.cast(),
            &raw const size as *mut _,
        )
    };
    assert_eq!(opened, 0);
    // SAFETY: both were just opened and are nobody else's.
    let (ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
    let mut child = command
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs)
        .spawn()
        .unwrap();
    // The command has copies of the terminal, whose end is when all are closed.
    drop(command);
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    // Of a terminal without users reading fails.
    while let Ok(n @ 1..) = std::io::Read::read(&mut &ours, &mut part) {
        bytes.extend_from_slice(&part[..n]);
    }
    child.wait().unwrap();
    let mut plain = String::new();
    for (i, part) in text(&bytes).replace("\r\n", "\n").split('\x1b').enumerate() {
        let style = part.find('m').filter(|_| i > 0);
        plain += &part[style.map_or(0, |at| at + 1)..];
    }
    let is_wide = |line: &&str| line.chars().count() > usize::from(columns);
    let wide = plain.lines().filter(is_wide).map(str::to_owned).collect();
    (plain, wide)
}

/// Help and reports fit terminals of fewer than 80 columns, whatever the names are (SPEC B8, CP13).
#[test]
fn narrow_terminals_are_wide_enough() {
    let dir = fresh_with("narrow", &[Big]);
    let long = dir.join("a".repeat(120));
    fs::rename(dir.join("big.dat"), &long).unwrap();
    let help: [&[&str]; 12] = [
        &[],
        &["--help"],
        &["run", "--help"],
        &["help", "run"],
        &["try", "--help"],
        &["warm", "--help"],
        &["cached", "--help"],
        &["doctor", "--help"],
        &["graph", "show", "--help"],
        &["graph", "check", "-h"],
        &["profile", "merge", "--help"],
        &["profile", "export", "--help"],
    ];
    for columns in [50, 60, 79] {
        for words in help {
            let (shown, wide) = on_terminal(ours(&dir, words), columns);
            assert!(shown.lines().count() > 4, "{words:?}: {shown}");
            assert!(wide.is_empty(), "{words:?} on {columns}: {wide:#?}");
        }
        let shown = eventually(|| {
            support::make_cold(&dir);
            let reader = [
                "sh",
                "-c",
                "exec tac \"$0\" >/dev/null",
                long.to_str().unwrap(),
            ];
            let run = outrider_run(&dir, &["--report"], &reader);
            let (shown, wide) = on_terminal(run, columns);
            let at = shown.find("outrider: ").ok_or(shown.clone())?;
            assert!(wide.is_empty(), "on {columns}: {wide:#?}");
            let shown = shown[at..].to_owned();
            match shown.contains("\nstreams, ") {
                true => Ok(shown),
                false => Err(shown),
            }
        });
        // A name begins and ends as it does, and its figures are below it.
        let mut lines = shown.lines().skip_while(|l| !l.contains("...aaaa"));
        assert!(lines.next().is_some(), "{shown}");
        assert_eq!(lines.next().unwrap().chars().count(), 50, "{shown}");
    }
    // Where nobody has said how wide it is, and nothing is a terminal, lines aren't broken.
    let (_, out, _) = said(&dir, &["run", "--help"]);
    assert!(out.lines().any(|l| l.chars().count() > 100), "{out}");
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Reports of all kinds of runs are what `docs/report.schema.json` says, and lose nothing.
#[test]
fn reports_have_a_schema() {
    let schema = read_json(&repository().join("docs/report.schema.json"));
    let schema = jsonschema::draft202012::new(&schema).unwrap();
    let dir = fresh_with("schema", &[Big]);
    let odd = OsStr::from_bytes(b"odd\xff.dat");
    fs::rename(dir.join("big.dat"), dir.join(odd)).unwrap();
    let report = dir.join("r.json");
    let check = |what: &str| {
        let json = read_json(&report);
        let wrong: Vec<String> = schema
            .iter_errors(&json)
            .map(|e| format!("{}: {e}", e.instance_path))
            .collect();
        assert!(wrong.is_empty(), "{what}: {wrong:#?} in {json:#}");
        json
    };
    let json = eventually(|| {
        support::make_cold(&dir);
        let mut command = outrider_run(&dir, &["--report=r.json"], &["tac"]);
        let status = command.arg(odd).stdout(Stdio::null()).status().unwrap();
        assert!(status.success());
        let json = check("tac");
        let files = json["files"].as_array().unwrap();
        let ours = files.iter().any(|f| !f["path_bytes"].is_null());
        ours.then_some(json.clone()).ok_or(json.to_string())
    });
    let bytes = |value: &Value| -> Vec<u8> {
        let bytes = value.as_array().unwrap().iter();
        bytes.map(|b| b.as_u64().unwrap() as u8).collect()
    };
    assert_eq!(bytes(&json["command_bytes"][1]), odd.as_bytes());
    let files = json["files"].as_array().unwrap();
    let path = files.iter().find_map(|f| f.get("path_bytes")).unwrap();
    assert!(bytes(path).ends_with(odd.as_bytes()));
    assert_eq!(json["exit_code"], 0);
    assert_eq!(json["ended"], true);
    // It was there while the program took the processor.
    let time = |name: &str| json[name].as_u64().unwrap();
    assert!(time("elapsed_us") > 0 && time("user_us") + time("system_us") > 0);

    for (argv, code, signal) in [
        (&["sh", "-c", "exit 7"][..], Some(7), None),
        (&["sh", "-c", "kill -9 $$"], None, Some(9)),
        (&["nosuch"], Some(127), None),
    ] {
        let _ = outrider_run(&dir, &["--report=r.json"], argv)
            .output()
            .unwrap();
        let json = check(argv[0]);
        assert_eq!(json["exit_code"].as_i64(), code, "{json}");
        assert_eq!(json["signal"].as_i64(), signal, "{json}");
        assert!(json.get("command_bytes").is_none());
    }
    // Where no library is nothing is followed.
    let alone = dir.join("alone");
    fs::copy(outrider(), &alone).unwrap();
    let status = Command::new(&alone)
        .args(["run", "--report=r.json", "true"])
        .current_dir(&dir)
        .status();
    assert!(status.unwrap().success());
    assert!(
        check("no library")["lost"][0]
            .as_str()
            .unwrap()
            .contains("missing")
    );
    // Under a filter that might kill, the report is written by other code.
    let mut filtered = Command::new(support::program("filter"));
    filtered.args(["kill-process", &libc::SYS_readahead.to_string()]);
    filtered
        .arg(outrider())
        .args(["run", "--report=r.json", "true"]);
    let status = filtered.current_dir(&dir).env_remove("OUTRIDER").status();
    assert!(status.unwrap().success());
    check("filter");
    // The guide names all members.
    let guide = fs::read_to_string(repository().join("docs/guide/run.md")).unwrap();
    for member in json.as_object().unwrap().keys() {
        assert!(guide.contains(&format!("`{member}`")), "{member}");
    }
}

/// One sample of a metric.
struct Sample {
    labels: BTreeMap<String, String>,
    value: f64,
}

/// The text format of Prometheus, as its documentation has it: a help and a type line before a metric's samples, which stand together.
fn parse_metrics(text: &str) -> BTreeMap<String, Vec<Sample>> {
    let mut metrics: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    let mut current = String::new();
    let mut expects_type = false;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty() && !metrics.contains_key(name), "{line}");
            current = name.to_owned();
            metrics.insert(current.clone(), Vec::new());
            expects_type = true;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(expects_type && name == current, "{line}");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            expects_type = false;
        } else {
            let (name, rest) = line.split_once('{').unwrap();
            assert!(name == current && !expects_type, "{line}");
            let mut rest = rest.chars();
            let mut labels = BTreeMap::new();
            loop {
                let key: String = rest.by_ref().take_while(|c| *c != '=').collect();
                assert_eq!(rest.next(), Some('"'), "{line}");
                let mut value = String::new();
                loop {
                    match rest.next().unwrap() {
                        '"' => break,
                        '\\' => value.push(match rest.next().unwrap() {
                            'n' => '\n',
                            c @ ('\\' | '"') => c,
                            c => panic!("\\{c} in {line}"),
                        }),
                        c => value.push(c),
                    }
                }
                assert!(labels.insert(key, value).is_none(), "{line}");
                match rest.next().unwrap() {
                    ',' => continue,
                    '}' => break,
                    c => panic!("{c} in {line}"),
                }
            }
            let value = rest.as_str().strip_prefix(' ').unwrap().parse().unwrap();
            metrics
                .get_mut(name)
                .unwrap()
                .push(Sample { labels, value });
        }
    }
    assert!(text.ends_with('\n') && !expects_type);
    metrics
}

/// Metrics say what JSON says, of whatever name the program is.
#[test]
fn metrics_for_prometheus() {
    let dir = fresh_with("metrics", &[Big]);
    let name = "a \"b\"\\c";
    let tac = ["/usr/bin/tac", "/bin/tac"]
        .into_iter()
        .find(|p| Path::new(p).exists());
    fs::copy(tac.unwrap(), dir.join(name)).unwrap();
    let program = format!("./{name}");
    let output = told(&dir, &["--report=r.prom"], &[&program, "big.dat"], |_| {
        fs::read_to_string(dir.join("r.prom")).is_ok_and(|t| !t.contains("found=\"hit\"} 0\n"))
    });
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let all = fs::read_to_string(dir.join("r.prom")).unwrap();
    let metrics = parse_metrics(&all);
    for sample in metrics.values().flatten() {
        // As it is shown to people, a backslash is two.
        assert_eq!(sample.labels["program"], "a \"b\"\\\\c");
    }
    let found = &metrics["outrider_read_bytes_total"];
    let sum: f64 = found.iter().map(|s| s.value).sum();
    let big = fs::metadata(dir.join("big.dat")).unwrap().len() as f64;
    assert!(
        found.len() == 4 && sum <= 1.01 * big && sum >= 0.5 * big,
        "{all}"
    );
    assert_eq!(metrics["outrider_run_ended"][0].value, 1.0);
    assert_eq!(metrics["outrider_run_exit_code"][0].value, 0.0);
    let _ = outrider_run(&dir, &["--report=r.prom"], &["sh", "-c", "kill -15 $$"]).output();
    let all = fs::read_to_string(dir.join("r.prom")).unwrap();
    assert_eq!(
        parse_metrics(&all)["outrider_run_exit_code"][0].value,
        143.0
    );
}

/// While the program runs its report's file is written again and again, always whole, and says how far it is.
#[test]
fn reports_meanwhile() {
    let dir = fresh("meanwhile");
    for name in ["r.json", "r.prom"] {
        let flag = format!("--report={name}");
        let script = "echo ready; read line; exit 3";
        let mut child = outrider_run(&dir, &[&flag, "--report-every", "1"], &["sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let path = dir.join(name);
        let read = |ended: bool| {
            let text = fs::read_to_string(&path).ok()?;
            if text.is_empty() {
                return None;
            }
            let (over, elapsed) = if name == "r.json" {
                let json: Value = serde_json::from_str(&text).unwrap();
                let elapsed = json["elapsed_us"].as_u64().unwrap() as f64 / 1e6;
                (json["ended"].as_bool().unwrap(), elapsed)
            } else {
                let metrics = parse_metrics(&text);
                let of = |name: &str| metrics[name][0].value;
                let elapsed = of("outrider_run_elapsed_seconds");
                (of("outrider_run_ended") == 1.0, elapsed)
            };
            assert_eq!(over, ended);
            Some(elapsed)
        };
        // Two different ones.
        let first = support::wait_for(support::PATIENCE, || read(false)).unwrap();
        let later = support::wait_for(support::PATIENCE, || read(false).filter(|t| *t > first));
        assert!(later.is_some(), "{name}");
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(3));
        assert!(read(true) > later, "{name}");
        let left: Vec<_> = fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert!(
            left.iter().all(|n| !n.as_bytes().starts_with(b".")),
            "{left:?}"
        );
    }
}

/// What a report's file has is a whole report at any time, the one before until there is another: also through links, and where the run is killed. Where
/// nothing can take its place it is overwritten.
#[test]
fn a_report_is_whole_or_not_there() {
    let dir = fresh("whole_reports");
    fs::create_dir(dir.join("elsewhere")).unwrap();
    // Beside a name as long as this there is none for another file.
    let long = "r".repeat(255);
    let names = [
        // What is named, the file that it is, and whether another takes its place.
        ("r.json", "r.json", true),
        ("link", "elsewhere/r.json", true),
        ("twice", "twice", false),
        (&long, &long, false),
    ];
    std::os::unix::fs::symlink("elsewhere/r.json", dir.join("link")).unwrap();
    for (name, file, is_replaced) in names {
        let path = dir.join(file);
        fs::write(&path, "old").unwrap();
        if name == "twice" {
            fs::hard_link(&path, dir.join("once")).unwrap();
        }
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4321), Some(4321)).unwrap();
        }
        let before = fs::metadata(&path).unwrap();
        let flag = format!("--report={name}");
        let kill = ["sh", "-c", "kill -9 $PPID; sleep 100"];
        let killed = outrider_run(&dir, &[&flag], &kill).status().unwrap();
        assert_eq!(killed.signal(), Some(9));
        let seen = outrider_run(&dir, &[&flag], &["cat", name]).output();
        let seen = text(&seen.unwrap().stdout);
        if is_replaced {
            assert_eq!(seen, "old", "{name}");
        }
        let json = read_json(&path);
        assert_eq!(json["ended"], true);
        let after = fs::metadata(&path).unwrap();
        let whose = |m: &fs::Metadata| (m.uid(), m.gid(), m.mode());
        assert_eq!(whose(&after), whose(&before), "{name}");
        assert_eq!(after.ino() != before.ino(), is_replaced, "{name}");
    }
    assert!(dir.join("link").is_symlink());
    assert_eq!(
        fs::read(dir.join("once")).unwrap(),
        fs::read(dir.join("twice")).unwrap()
    );
    // Where there was none there is none until then, also behind a link.
    for (name, file, _) in names {
        let _ = fs::remove_file(dir.join(file));
        let flag = format!("--report={name}");
        let script = format!("! test -e {file}");
        let run = outrider_run(&dir, &[&flag], &["sh", "-c", &script]).status();
        assert!(run.unwrap().success(), "{name}");
        assert_eq!(read_json(&dir.join(file))["ended"], true);
        fs::remove_file(dir.join(file)).unwrap();
        // And nothing is made where the command line is wrong.
        let flags = [&flag, "--explain=/no/x"];
        let run = outrider_run(&dir, &flags, &["true"]).output().unwrap();
        assert_eq!(run.status.code(), Some(2), "{run:?}");
    }
    let left = |dir: &Path| -> Vec<_> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|e| e.unwrap().file_name()).collect()
    };
    assert!(left(&dir.join("elsewhere")).is_empty());
    let mut left = left(&dir);
    left.sort();
    assert_eq!(left, ["elsewhere", "link", "once"]);
}

/// Who may read the file before may read the report, and nobody else: access control lists, and other extended attributes, are those of the file that it
/// takes the place of, whatever list new files of the directory get.
#[test]
fn a_report_keeps_its_files_attributes() {
    const NAME: &str = "a_report_keeps_its_files_attributes";
    const LIST: &str = "system.posix_acl_access";
    // Of a list of version 2: kind, permissions, and whose they are. The owner, user 1234, the group, the mask, others.
    let list = |group: u16| {
        let entries = [
            (1u16, 6u16, !0u32),
            (2, 6, 1234),
            (4, group, !0),
            (16, 6, !0),
            (32, 0, !0),
        ];
        let bytes = |(kind, may, who): (u16, u16, u32)| {
            let whose = [kind.to_le_bytes(), may.to_le_bytes()].concat();
            [&whose[..], &who.to_le_bytes()].concat()
        };
        let entries = entries.into_iter().flat_map(bytes);
        2u32.to_le_bytes()
            .into_iter()
            .chain(entries)
            .collect::<Vec<u8>>()
    };
    let dir = fresh("report_attributes");
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty())
    };
    let all = |path: &Path| {
        let value = |name: &str| {
            let mut value = [0; 256];
            let len = rustix::fs::getxattr(path, name, &mut value).ok()?;
            Some(value[..len].to_vec())
        };
        (
            value(LIST),
            value("user.mark"),
            fs::metadata(path).unwrap().mode(),
        )
    };
    for (file, default) in [("with", false), ("without", true), ("another", true)] {
        let dir = dir.join(file);
        fs::create_dir(&dir).unwrap();
        let path = dir.join("r");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o660)).unwrap();
        let done = match file {
            "without" => Ok(()),
            _ => set(&path, LIST, &list(0)).and_then(|()| set(&path, "user.mark", b"1")),
        };
        let done = done.and_then(|()| match default {
            true => set(&dir, "system.posix_acl_default", &list(6)),
            false => Ok(()),
        });
        if let Err(e) = done {
            return support::skip(NAME, &format!("no access control lists here: {e}"));
        }
        let (before, inode) = (all(&path), fs::metadata(&path).unwrap().ino());
        let flags = ["--report=r", "--report-every=1"];
        let run = outrider_run(&dir, &flags, &["sleep", "1.5"]).status();
        assert!(run.unwrap().success());
        assert_eq!(read_json(&path)["ended"], true);
        assert_eq!(all(&path), before, "{file}");
        assert_ne!(fs::metadata(&path).unwrap().ino(), inode, "{file}");
    }
}

/// B16: where others may write to a report's directory they can have it lost, and nothing else: what they put into its place meanwhile, a link or another name of
/// a file, is not written to.
#[test]
fn a_report_follows_no_later_link() {
    let dir = fresh("report_later_link");
    for (name, put) in [
        ("link", "ln -s elsewhere/v r"),
        ("linked", "ln -s elsewhere/two r"),
        ("named", "ln elsewhere/two r"),
        ("beside", "ln -s elsewhere/v r; ln -s elsewhere/v .r.$PPID"),
        (
            "dangling",
            "ln -s elsewhere/new r; ln -s elsewhere/new .r.$PPID",
        ),
        (
            "directory",
            "mkdir away; mv elsewhere away; ln -s away/elsewhere elsewhere; ln -s two elsewhere/r",
        ),
    ] {
        let dir = dir.join(name);
        let elsewhere = dir.join("elsewhere");
        fs::create_dir_all(&elsewhere).unwrap();
        for victim in ["v", "two"] {
            fs::write(elsewhere.join(victim), "precious").unwrap();
        }
        fs::hard_link(elsewhere.join("two"), elsewhere.join("other")).unwrap();
        let report = match name {
            "directory" => "elsewhere/r",
            _ => "r",
        };
        let flags = [&*format!("--report={report}"), "--report-every=1"];
        let script = format!("{put}; sleep 1.5; exit 3");
        let run = outrider_run(&dir, &flags, &["sh", "-c", &script]).output();
        assert_eq!(run.unwrap().status.code(), Some(3), "{name}");
        for victim in ["v", "two"] {
            let text = fs::read_to_string(elsewhere.join(victim)).unwrap();
            assert_eq!(text, "precious", "{name}");
        }
        assert!(!elsewhere.join("new").exists(), "{name}");
    }
}

/// A report goes behind what else is in a file that is open already, and a pipe in its place that nobody reads holds up nobody.
#[test]
fn a_report_is_in_nobodys_way() {
    let dir = fresh("report_beside");
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let log = dir.join("log");
        fs::write(&log, "before\n").unwrap();
        let open = fs::OpenOptions::new().append(true).open(&log).unwrap();
        let flag = format!("--report={name}");
        let run = outrider_run(&dir, &[&flag], &["echo", "said"])
            .stdout(open.try_clone().unwrap())
            .status();
        assert!(run.unwrap().success());
        writeln!(&open, "after").unwrap();
        let log = fs::read_to_string(&log).unwrap();
        let json = log.strip_prefix("before\nsaid\n").expect(&log);
        let json = json.strip_suffix("after\n").expect(json);
        let json: Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["ended"], true, "{name}");
    }
    let closed = ["sh", "-c", "exec \"$@\" 7<log", "_"];
    let mut run = Command::new(closed[0]);
    support::plain_environment(&mut run, &dir);
    run.args(&closed[1..]).arg(outrider());
    let run = run.args(["run", "--report=/dev/fd/7", "echo", "said"]);
    let refused = run.current_dir(&dir).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        fs::read_to_string(dir.join("log"))
            .unwrap()
            .starts_with("before")
    );
    for flags in [&["--report=r"][..], &["--report=r", "--report-every=1"]] {
        let script = "rm -f r; mkfifo r; sleep 1.5; exit 3";
        let run = outrider_run(&dir, flags, &["sh", "-c", script])
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(3), "{run:?}");
        assert!(text(&run.stderr).contains("the report is lost"), "{run:?}");
        fs::remove_file(dir.join("r")).unwrap();
    }
}

/// A run that is asked writes its report, its program notices nothing, and nobody is asked who has none.
#[test]
fn reports_on_request() {
    let dir = fresh("request");
    let script = "trap 'echo urgent' URG; echo ready; read line; exit 3";
    let mut child = outrider_run(&dir, &["--report=r.json"], &["bash", "-c", script])
        .stdin(Stdio::piped())
        .stdout(fs::File::create(dir.join("out")).unwrap())
        .spawn()
        .unwrap();
    let out = || fs::read_to_string(dir.join("out")).unwrap();
    let ready = support::wait_for(support::PATIENCE, || (out() == "ready\n").then_some(()));
    assert!(ready.is_some());
    let path = dir.join("r.json");
    assert!(!path.exists());
    let pid = child.id().to_string();
    let mut before = 0;
    for _ in 0..2 {
        let (code, out, err) = said(&dir, &["report", &pid]);
        assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", ""));
        let written = support::wait_for(support::PATIENCE, || {
            let json: Value = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
            assert_eq!(json["ended"], false);
            json["elapsed_us"].as_u64().filter(|us| *us > before)
        });
        before = written.unwrap();
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(3));
    let json = read_json(&path);
    assert_eq!(
        (&json["ended"], &json["exit_code"]),
        (&Value::from(true), &Value::from(3))
    );
    assert_eq!(out(), "ready\n");

    // A run without a file: the signal is the program's, as any other, if somebody sends it all the same.
    let mut child = outrider_run(&dir, &[], &["sleep", "1000"]).spawn().unwrap();
    let own = std::process::id().to_string();
    for (pid, part) in [
        (child.id().to_string(), "no file for a report"),
        (
            own,
            "no run of outrider; accepted is the PID of `outrider run` itself",
        ),
        ("4194305".to_owned(), "there is none"),
        ("-1".to_owned(), "number of a process"),
    ] {
        let (code, _, err) = said(&dir, &["report", &pid]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(part) && err.lines().count() == 1, "{err}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The command line goes before the environment, that before the program's section, and that before the rest of the file.
#[test]
fn settings_have_an_order() {
    let dir = fresh("order");
    fs::write(
        dir.join("c.toml"),
        "[budget]\nmemory = \"1M\"\n[program.sh]\nmode = \"predict\"\nengine = \"noop\"\n[program.off]\nenabled = false\n",
    )
    .unwrap();
    let modes = |flags: &[&str], variables: &[(&str, &str)], program: &str| {
        let mut command = outrider_run(&dir, flags, &[program, "-c", "true"]);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        let json = read_json(&dir.join("r.json"));
        let word = |name: &str| json[name].as_str().unwrap().to_owned();
        (word("mode"), word("engine"))
    };
    let pair = |mode: &str, engine: &str| (mode.to_owned(), engine.to_owned());
    let config = ("OUTRIDER_CONFIG", "c.toml");
    let report = ("OUTRIDER_REPORT", "r.json");
    let mode = ("OUTRIDER_MODE", "fetchall+opt");
    assert_eq!(modes(&[], &[report], "sh"), pair("predict+opt", "auto"));
    assert_eq!(modes(&[], &[report, config], "sh"), pair("predict", "noop"));
    assert_eq!(
        modes(&[], &[report, config], "/bin/sh"),
        pair("predict", "noop")
    );
    assert_eq!(
        modes(&[], &[report, config], "bash"),
        pair("predict+opt", "auto")
    );
    assert_eq!(
        modes(&[], &[report, config, mode], "sh"),
        pair("fetchall+opt", "noop")
    );
    assert_eq!(
        modes(&["--mode", "os-only"], &[report, config, mode], "sh"),
        pair("os-only", "noop")
    );
    // An empty variable says nothing.
    assert_eq!(
        modes(&[], &[report, ("OUTRIDER_MODE", "")], "sh"),
        pair("predict+opt", "auto")
    );
    // Without a terminal and a flag the program is started by other code, which knows of them as well.
    let run = |variables: &[(&str, &str)], argv: &[&str]| {
        let mut command = outrider_run(&dir, &[], argv);
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let bad = [
        ("OUTRIDER_MODE", "fast", "predict+opt"),
        ("OUTRIDER_ENGINE", "warp", "readahead"),
        ("OUTRIDER_BUDGET", "much", "128K"),
        ("OUTRIDER_REPORT_EVERY", "0", "1 to 86400"),
        ("OUTRIDER_CONFIG", "/no/such", "/no/such"),
    ];
    for (name, value, accepted) in bad {
        let output = run(&[(name, value)], &["touch", "made"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(value) && said.contains(accepted), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!dir.join("made").exists());
        // Switched off it is as if nothing of this were there.
        let output = run(
            &[(name, value), ("OUTRIDER", "off")],
            &["sh", "-c", "echo $LD_PRELOAD.; exit 5"],
        );
        assert_eq!(output.status.code(), Some(5));
        assert_eq!(
            (text(&output.stdout).as_str(), text(&output.stderr).as_str()),
            (".\n", "")
        );
    }
    // A file that nobody named is none for the variable that runs inherit; a device is one, and the variable is what is named.
    for report in ["", "-"] {
        let variables = [("OUTRIDER_REPORT_EVERY", "5"), ("OUTRIDER_REPORT", report)];
        let output = run(&variables, &["sh", "-c", "exit 5"]);
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        let told = text(&output.stderr).contains("mode predict+opt");
        assert_eq!(told, report == "-", "{output:?}");
    }
    let variables = [
        ("OUTRIDER_REPORT_EVERY", "5"),
        ("OUTRIDER_REPORT", "/dev/null"),
    ];
    let output = run(&variables, &["touch", "made"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("OUTRIDER_REPORT_EVERY: /dev/null"), "{said}");
    // The flag's value is the same as the variable's.
    let mut command = outrider_run(&dir, &["--report=-"], &["true"]);
    let output = command.output().unwrap();
    assert!(text(&output.stderr).contains("mode predict+opt"));
    assert!(!dir.join("-").exists() && !dir.join("made").exists());
    // A section switches off one program.
    std::os::unix::fs::symlink("/bin/sh", dir.join("off")).unwrap();
    let preloaded =
        |program: &str| text(&run(&[config], &[program, "-c", "echo \"$LD_PRELOAD\""]).stdout);
    assert_eq!(preloaded("./off"), "\n");
    assert!(preloaded("sh").contains("liboutrider.so"));
}

/// `outrider try` runs the program so often, on files that are cold each time, and says what came of it; what it can't make cold it doesn't measure.
#[test]
fn trying_a_program() {
    let began = std::time::SystemTime::now();
    let dir = fresh("trying");
    let file = dir.join("file");
    fs::write(&file, support::Random(1).bytes(24 << 20)).unwrap();
    // What waits to be written can't be made cold.
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let file = file.to_str().unwrap();
    // What of the file is cached when the program begins, it writes down itself.
    let script = format!(
        "{} cached --json {file} | tr -d ' \\n' | grep -o '\"total\":.*' | grep -o '\"resident_bytes\":[0-9]*' >>counts; tac {file} | cksum",
        outrider().display()
    );
    let (code, out, err) = said(&dir, &["try", "-n", "2", "--", "sh", "-c", &script]);
    assert_eq!(code, Some(0), "{err}");
    let plain = Command::new("sh")
        .args(["-c", &format!("tac {file} | cksum")])
        .output()
        .unwrap();
    assert_eq!(out, text(&plain.stdout), "{err}");
    let counts = fs::read_to_string(dir.join("counts")).unwrap();
    let counts: Vec<&str> = counts.lines().collect();
    assert_eq!(counts.len(), 5, "{counts:?}");
    for count in &counts[1..] {
        assert_eq!(*count, "\"resident_bytes\":0", "{err}");
    }
    for part in ["stock  ", "Outrider  ", "outrider: cold, it takes "] {
        assert_eq!(err.matches(part).count(), 1, "{part}: {err}");
    }

    let refused = |argv: &[&str], parts: &[&str]| {
        let (code, _, err) = said(&dir, &[&["try", "-n", "1", "--"], argv].concat());
        assert_eq!(code, Some(1), "{argv:?}: {err}");
        for part in parts {
            assert!(err.contains(part), "{argv:?}: no {part:?} in {err}");
        }
        assert!(!err.contains("it takes"), "{err}");
    };
    // Held in memory by somebody.
    let mut holder = Command::new("python3")
        .args([
            "-c",
            "import mmap, sys
f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
sum(m[i] for i in range(0, len(m), 4096)); print('held', flush=True); sys.stdin.read()",
        ])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(holder.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    refused(
        &["cksum", file],
        &["in use by running programs", "nothing was measured"],
    );
    drop(holder.stdin.take());
    holder.wait().unwrap();
    // A program that ends in different ways is not measured to its end.
    refused(
        &[
            "sh",
            "-c",
            &format!("cat {file} >/dev/null; echo >>n; exit $(($(wc -l <n) % 2))"),
        ],
        &["different ways"],
    );
    refused(&["sh", "-c", "kill -9 $$"], &["signal 9"]);
    // With bad settings, and where both ways are the same, nothing is run.
    fs::write(dir.join("c.toml"), "[program.touch]\nenabled = false\n").unwrap();
    for (name, value, part) in [
        ("OUTRIDER_MODE", "bad", "OUTRIDER_MODE=bad is not accepted"),
        (
            "OUTRIDER_MODE",
            "app-only",
            "app-only: by OUTRIDER_MODE or the configuration",
        ),
        ("OUTRIDER_CONFIG", "c.toml", "touch: the configuration says"),
    ] {
        let mut command = ours(&dir, &["try", "-n", "1", "--", "touch", "made"]);
        let output = command.env(name, value).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(
            said.contains(part) && said.contains("; accepted "),
            "{said}"
        );
        assert!(!dir.join("made").exists());
    }
    // A script that doesn't say what runs it is the shell's, in both ways.
    let script = dir.join("script");
    fs::write(&script, format!("cksum {file}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (code, _, err) = said(&dir, &["try", "-n", "1", "--", "./script"]);
    assert!(code == Some(0) && err.contains("it takes"), "{err}");
    // A program that fails alike each time is measured, and the verdict says that it does.
    let argv = ["sh", "-c", &format!("cksum {file}; exit 3")];
    let (code, _, err) = said(&dir, &[&["try", "-n", "1", "--"], &argv[..]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("ended with exit code 3 each time"), "{err}");
    let (code, _, err) = said(&dir, &["try", "nosuch"]);
    assert_eq!(code, Some(127), "{err}");
    // A process that a program leaves behind is not waited for, though it holds the output.
    let behind = format!("cksum {file}; sleep 1000 & echo $! >>behind");
    let mut trial = ours(&dir, &["try", "-n", "1", "--", "sh", "-c", &behind]);
    let ended = trial.stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(ended.unwrap().success());
    let left = fs::read_to_string(dir.join("behind")).unwrap();
    assert_eq!(left.lines().count(), 3);
    for pid in left.lines() {
        let killed = Command::new("kill").arg(pid).status().unwrap();
        assert!(killed.success(), "{pid} was waited for");
    }
    // A signal is passed on, and ended by, once the program has.
    let patient =
        "trap 'echo told >>told; exit 0' TERM; echo begun >>told; while :; do sleep 0.01; done";
    let mut trial = ours(&dir, &["try", "-n", "1", "--", "sh", "-c", patient]);
    let mut trial = trial.stderr(Stdio::null()).spawn().unwrap();
    while !dir.join("told").exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // SAFETY: numbers only.
    unsafe { libc::kill(trial.id() as i32, libc::SIGTERM) };
    let ended = trial.wait().unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGTERM));
    let told = fs::read_to_string(dir.join("told")).unwrap();
    assert_eq!(told, "begun\ntold\n");
    // Of its runs; those of others come and go.
    let left = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let left = left.filter(|entry| {
        let name = entry.file_name();
        let ours = name.as_bytes().starts_with(b"outrider-try-");
        let made = entry.metadata().and_then(|m| m.modified());
        ours && made.is_ok_and(|made| made > began)
    });
    assert_eq!(left.count(), 0);
}

/// Of files that the kernel tells nothing of nothing is said: no share, in no form.
#[test]
fn what_is_hidden_is_unknown() {
    let dir = fresh("hidden");
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.join("file"), [1; 50_000]).unwrap();
    fs::set_permissions(dir.join("file"), Permissions::from_mode(0o644)).unwrap();
    let binary = dir.join("outrider");
    fs::copy(outrider(), &binary).unwrap();
    fs::set_permissions(&binary, Permissions::from_mode(0o755)).unwrap();
    let tree = dir.join("tree");
    fs::create_dir(&tree).unwrap();
    fs::rename(dir.join("file"), tree.join("file")).unwrap();
    let cached = |flag: &str| {
        let mut command = Command::new(&binary);
        support::plain_environment(&mut command, &dir);
        command.args(["cached", flag]).arg(&tree).current_dir("/");
        let nobody = 65534;
        let output = command.uid(nobody).gid(nobody).output();
        output.ok().filter(|output| output.status.success())
    };
    let json = cached("--json").map(|output| text(&output.stdout));
    let json: Option<Value> = json.map(|json| serde_json::from_str(&json).unwrap());
    // Only root runs it as nobody, and before Linux 6.15 or so everybody was told.
    let Some(json) = json.filter(|json| json["total"]["unknown_files"] == 1) else {
        return;
    };
    assert_eq!(json["total"]["percent"], Value::Null);
    assert_eq!(json["total"]["resident_bytes"], Value::Null);
    let summary = text(&cached("--summary").unwrap().stdout);
    assert!(summary.starts_with("unknown "), "{summary}");
    assert!(!summary.contains('%'), "{summary}");
}

/// `outrider doctor` says what surrounds a run: filters, /proc and /sys as they are mounted, and what a FUSE file system keeps.
#[test]
fn doctor_looks_around() {
    let dir = fresh("doctor");
    let findings = |command: &mut Command| -> Value {
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["machine"].clone()
    };
    let here = findings(&mut ours(&dir, &["doctor", "--json"]));
    let detail = here["c_library"]["detail"].as_str().unwrap();
    assert_eq!(here["c_library"]["verdict"], "yes", "{detail}");
    assert!(detail.starts_with("GNU C library 2."), "{detail}");
    assert!(here.get("fuse").is_none());
    let (code, _, err) = said(&dir, &["doctor", "--at", "/no/such"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("--at /no/such") && err.lines().count() == 1,
        "{err}"
    );

    // Under a filter that refuses pidfd_getfd(2).
    let mut filtered = Command::new(support::program("filter"));
    filtered
        .args(["1", "438"])
        .arg(outrider())
        .args(["doctor", "--json"]);
    let found = findings(&mut filtered);
    assert_eq!(found["seccomp"]["verdict"], "no", "{found}");
    assert!(
        found["seccomp"]["detail"]
            .as_str()
            .unwrap()
            .starts_with("1 filter"),
        "{found}"
    );
    assert_eq!(found["pidfd_getfd"]["verdict"], "no", "{found}");

    let name = "doctor_looks_around (mounts)";
    if !support::is_root() {
        return support::skip_unprivileged(name, "not root");
    }
    for (script, finding, verdict, part) in [
        (
            "mount -t proc -o subset=pid proc /proc",
            "proc",
            "no",
            "subset=pid",
        ),
        (
            "mount -t proc -o hidepid=2 proc /proc",
            "proc",
            "no",
            "hidepid=",
        ),
        ("umount -l /proc", "proc", "no", "not mounted"),
        ("mount -o remount,bind,ro /sys", "sys", "info", "read-only"),
        ("umount -R -l /sys", "sys", "no", "not mounted"),
    ] {
        let mut command = Command::new("unshare");
        let script = format!("{script} && exec \"$0\" doctor --json");
        command
            .args(["--mount", "--", "sh", "-c", &script])
            .arg(outrider());
        let output = command.output().unwrap();
        if !output.status.success() {
            support::skip_unprivileged(name, &text(&output.stderr));
            continue;
        }
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = &found["machine"][finding];
        assert_eq!(found["verdict"], verdict, "{script}: {found}");
        assert!(
            found["detail"].as_str().unwrap().contains(part),
            "{script}: {found}"
        );
    }
}

/// What a FUSE file system keeps in the page cache is found out by a file that is there.
#[test]
fn doctor_on_fuse() {
    let dir = fresh("doctor_fuse");
    fs::create_dir_all(dir.join("files")).unwrap();
    fs::create_dir_all(dir.join("mnt")).unwrap();
    fs::write(dir.join("files/a"), vec![7; 10_000]).unwrap();
    for (flags, verdict, part) in [
        (&["--keep-cache"][..], "yes", "stays cached"),
        (&[], "no", "no keep_cache"),
        (&["--direct-io"], "no", "direct_io"),
    ] {
        let mut lab = support::Disk::lab();
        lab.args(["mount", "--latency-us", "100"]).args(flags);
        let mut server = lab
            .args(["files", "mnt"])
            .current_dir(&dir)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let shown = support::wait_for(support::PATIENCE, || {
            let there = dir.join("mnt/a").exists();
            (there || server.try_wait().unwrap().is_some()).then_some(there)
        });
        if shown != Some(true) {
            let _ = server.kill();
            let said = server.wait_with_output().unwrap();
            return support::skip_unprivileged("doctor_on_fuse", &text(&said.stderr));
        }
        let (code, out, err) = said(&dir, &["doctor", "--json", "--at", "mnt"]);
        // SAFETY: our own child, not waited for yet.
        unsafe { libc::kill(server.id() as i32, libc::SIGTERM) };
        server.wait().unwrap();
        assert_eq!(code, Some(0), "{err}");
        let found: Value = serde_json::from_str(&out).unwrap();
        let found = &found["machine"]["fuse"];
        assert_eq!(found["verdict"], verdict, "{flags:?}: {found}");
        assert!(
            found["detail"].as_str().unwrap().contains(part),
            "{flags:?}: {found}"
        );
    }
}

/// Under what Docker's default profiles refuse (as errors) programs are followed, and a report names what was refused.
#[test]
fn under_a_containers_filter() {
    let dir = fresh_with("containers_filter", &[Big]);
    // pidfd_getfd, kcmp, process_madvise, setns, unshare, mount, umount2, perf_event_open, bpf, fanotify_init, open_by_handle_at, syslog, chroot.
    let both: [i64; 13] = [
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        libc::SYS_process_madvise,
        libc::SYS_setns,
        libc::SYS_unshare,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_perf_event_open,
        libc::SYS_bpf,
        libc::SYS_fanotify_init,
        libc::SYS_open_by_handle_at,
        libc::SYS_syslog,
        libc::SYS_chroot,
    ];
    // Those from before Linux 6.5 don't know cachestat, the later ones refuse io_uring.
    const CACHESTAT: i64 = 451;
    let older = [&both[..], &[CACHESTAT]].concat();
    let newer = [
        &both[..],
        &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter],
    ]
    .concat();
    let filter = support::program("filter");
    let report = dir.join("r.json");
    let followed = |profile: &str, refused: &[i64], command: &dyn Fn() -> Command| {
        let numbers: Vec<String> = refused.iter().map(i64::to_string).collect();
        let json = eventually(|| {
            support::make_cold(&dir);
            // Whoever it is may write into it.
            fs::write(&report, "").unwrap();
            fs::set_permissions(&report, Permissions::from_mode(0o666)).unwrap();
            let mut command = command();
            command.arg(&filter).args(["1", &numbers.join(",")]);
            let script = "\"$0\" run --report=r.json -- tac big.dat | cksum; true";
            match command.get_program() == "unshare" {
                true => command
                    .arg(outrider())
                    .args(["run", "--report=r.json", "--"])
                    .args(["tac", "big.dat"]),
                // The shell has made the process under the same filter, which speaks for it.
                false => command.args(["/bin/sh", "-c", script]).arg(outrider()),
            };
            let output = command.current_dir(&dir).output().unwrap();
            assert!(
                output.status.success() && output.stderr.is_empty(),
                "{output:?}"
            );
            let json = read_json(&report);
            let hit = json["totals"]["hit_bytes"].as_u64().unwrap_or(0);
            (hit > 0).then_some(json.clone()).ok_or(json.to_string())
        });
        let lost = json["lost"].to_string();
        assert!(
            lost.contains("unshare") && lost.contains("setns"),
            "{profile}: {lost}"
        );
        let known = !refused.contains(&CACHESTAT);
        assert!(known || lost.contains("cachestat"), "{profile}: {lost}");
    };
    let plain = || {
        let mut command = Command::new("env");
        support::plain_environment(&mut command, &dir);
        command
    };
    followed("older", &older, &plain);
    followed("newer", &newer, &plain);
    // A container's first process: without privileges, on a read-only root.
    let container = || {
        let mut command = Command::new("unshare");
        support::plain_environment(&mut command, &dir);
        let script = "mount --bind . . && cd \"$PWD\" && mount -o remount,bind,ro / && exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all \"$@\"";
        command.args([
            "--pid",
            "--fork",
            "--mount",
            "--mount-proc",
            "sh",
            "-c",
            script,
            "sh",
        ]);
        command
    };
    let can = support::is_root() && {
        let mut command = container();
        command.arg("true").output().unwrap().status.success()
    };
    // Where others may not go into the directories above, nobody can be tried.
    let reached = dir.ancestors().chain(outrider().ancestors()).all(|above| {
        fs::metadata(above).is_ok_and(|m| m.is_file() || m.permissions().mode() & 1 != 0)
    });
    if can && reached {
        followed("container", &newer, &container);
    } else {
        let why = format!(
            "no namespaces for root ({can}), or directories that are closed to others ({reached})"
        );
        support::skip_unprivileged("under_a_containers_filter (container)", &why);
    }
}

/// What a line of the report, or of doctor, begins with, as an anchor has it.
fn anchor(kind: &str, words: &str) -> String {
    let words = words.to_lowercase();
    let words = words.split('(').next().unwrap_or_default();
    let parts = words.split(|c: char| !c.is_ascii_alphanumeric());
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    format!("<a id=\"{kind}-{}\">", parts.join("-"))
}

/// Each line of `outrider doctor` and each `lost` line of a report has its place in docs/troubleshooting.md.
#[test]
fn troubleshooting_has_every_line() {
    let root = repository();
    let document = fs::read_to_string(root.join("docs/troubleshooting.md")).unwrap();
    let mut wanted: Vec<String> = outrider_core::shm::lost::LINES
        .iter()
        .map(|(_, line)| {
            anchor(
                "lost",
                line.split_once(": ").map_or(*line, |(start, _)| start),
            )
        })
        .collect();
    assert!(wanted.len() > 25);
    // Those that are put together in the command's own source: texts that begin with a word or two and a colon.
    for file in ["run.rs", "run/report.rs", "refused.rs", "preload.rs"] {
        let source = fs::read_to_string(root.join("crates/outrider/src").join(file)).unwrap();
        for text in source.split('"').skip(1) {
            let Some((start, rest)) = text.split_once(": ") else {
                continue;
            };
            let plain = |c: char| c.is_ascii_lowercase() || c == ' ' || c == '/';
            let words = start.split(' ').count();
            // That is how every complaint begins.
            let ours = start == "outrider";
            if !ours
                && (4..=20).contains(&start.len())
                && words <= 2
                && start.chars().all(plain)
                && rest.len() > 20
            {
                wanted.push(anchor("lost", start));
            }
        }
    }
    assert!(
        wanted.contains(&anchor("lost", "/proc")) && wanted.contains(&anchor("lost", "server"))
    );
    let doctor = root.join("crates/outrider/src/doctor");
    let mut names = 0;
    for file in [doctor.with_extension("rs"), doctor.join("place.rs")] {
        let source = fs::read_to_string(file).unwrap();
        let words: Vec<&str> = source.split('"').collect();
        for pair in words.windows(2) {
            let before = pair[0].trim_end();
            let is_name = ["check(", "info(", "name:", "let name ="];
            if is_name.iter().any(|end| before.ends_with(end)) {
                wanted.push(anchor("doctor", pair[1]));
                names += 1;
            }
        }
    }
    assert!(names > 20, "{names}");
    let missing: Vec<&String> = wanted.iter().filter(|a| !document.contains(*a)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    // And what doctor says here is there.
    let dir = fresh("every_line");
    let (_, out, _) = said(&dir, &["doctor", "--json", "sh"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    for name in json["machine"].as_object().unwrap().keys() {
        assert!(document.contains(&anchor("doctor", name)), "{name}");
    }
}

/// Each `lost` line that such a run shows fits what one of the lines of docs/troubleshooting.md begins with, where `…` is any text.
#[test]
fn lost_lines_are_explained() {
    let document = fs::read_to_string(repository().join("docs/troubleshooting.md")).unwrap();
    let table = document
        .split_once("## The report has a lost line")
        .unwrap()
        .1;
    let table = table.split_once("\n## ").unwrap().0;
    let rows = table.lines().filter(|l| l.starts_with("| "));
    let beginnings: Vec<&str> = rows
        .flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2))
        .collect();
    assert!(beginnings.len() > 30, "{beginnings:#?}");
    let fits = |line: &str, beginning: &str| {
        let mut rest = Some(line);
        for (i, part) in beginning.replace("PATH", "…").split('…').enumerate() {
            rest = rest.and_then(|rest| match i {
                0 => rest.strip_prefix(part),
                _ => rest.split_once(part).map(|(_, rest)| rest),
            });
        }
        rest.is_some()
    };
    let dir = fresh("lost_lines");
    let alone = dir.join("outrider");
    fs::copy(outrider(), &alone).unwrap();
    fs::create_dir_all(dir.join("config/outrider")).unwrap();
    fs::write(dir.join("config/outrider/config.toml"), "nonsense = 1\n").unwrap();
    let run = ["run", "--report", "--", "true"];
    let command = |program: &Path| {
        let mut command = Command::new(program);
        support::plain_environment(&mut command, &dir);
        command.args(run).current_dir(&dir);
        command
    };
    let mut misunderstood = command(&outrider());
    misunderstood.env("OUTRIDER", "perhaps");
    let mut mistaken = command(&outrider());
    mistaken.env("XDG_CONFIG_HOME", dir.join("config"));
    let runs = [misunderstood, mistaken, command(&alone)];
    for mut run in runs {
        let output = run.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = text(&output.stderr);
        let lost: Vec<&str> = said
            .lines()
            .filter_map(|l| l.strip_prefix("lost: "))
            .collect();
        assert!(!lost.is_empty(), "{run:?}: {said}");
        for line in lost {
            assert!(beginnings.iter().any(|b| fits(line, b)), "{line}");
        }
    }
}

/// What a build lacks is said before it begins, and all of it at once.
#[test]
fn builds_say_what_they_lack() {
    let dir = fresh("toolchain");
    let bin = dir.join("bin");
    let real = |name: &str| {
        let path = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&path).map(|dir| dir.join(name));
        found.into_iter().find(|path| path.is_file()).unwrap()
    };
    let says = |fakes: &[(&str, &str)], what: &[&str]| {
        let _ = fs::remove_dir_all(&bin);
        fs::create_dir(&bin).unwrap();
        for name in [
            "sh", "sed", "cut", "sort", "head", "mktemp", "rm", "dirname",
        ] {
            std::os::unix::fs::symlink(real(name), bin.join(name)).unwrap();
        }
        for (name, script) in fakes {
            fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(bin.join(name), Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = Command::new(repository().join(".ci/toolchain"));
        let output = command
            .args(what)
            .env_clear()
            .env("PATH", &bin)
            .envs(what.contains(&"sudo").then_some(("SUDO_USER", "user")))
            .output()
            .unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let new = ("rustc", "echo 'rustc 1.999.0-nightly (abc 2030-01-01)'");
    let (cargo, cc) = (("cargo", "true"), ("cc", "cat >/dev/null"));
    let cat = ("cat", "exec /bin/cat \"$@\"");
    assert_eq!(says(&[cargo, new, cc, cat], &[]), (Some(0), String::new()));
    for (fakes, what, parts) in [
        (&[cc, cat][..], &[][..], &["cargo: Rust 1."][..]),
        (
            &[cargo, cc, cat, ("rustc", "echo 'rustc 1.63.0 (Debian)'")],
            &[],
            &["rustc is 1.63.0", "or later"],
        ),
        (&[cargo, new, ("cc", "exit 1")], &[], &["libc6-dev"]),
        (&[cargo, new], &[], &["gcc", "libc6-dev"]),
        (&[cargo, new, cc, cat], &["demo"], &["python3"]),
        (&[cargo, new, cc, cat], &["dist"], &["zstd"]),
        // Who has Rust in a directory of its own has it there alone.
        (&[cc, cat], &["sudo"], &["without sudo", "demo/run.py"]),
        (&[], &["demo"], &["cargo", "gcc", "python3"]),
    ] {
        let (code, said) = says(fakes, what);
        assert_eq!(code, Some(1), "{said}");
        assert_eq!(
            said.lines().count(),
            if fakes.is_empty() { 3 } else { 1 },
            "{said}"
        );
        assert!(
            parts.iter().all(|part| said.contains(part)),
            "{parts:?}: {said}"
        );
    }
}

/// An installed plug-in has a name; which there are is said to who names another.
#[test]
fn plugins_by_name() {
    let dir = fresh("plugins_by_name");
    let prefix = dir.join("prefix");
    let library = outrider().with_file_name("liboutrider.so");
    let plugins = prefix.join("lib/outrider/plugins");
    fs::create_dir_all(&plugins).unwrap();
    fs::create_dir_all(prefix.join("bin")).unwrap();
    fs::copy(outrider(), prefix.join("bin/outrider")).unwrap();
    fs::copy(library, prefix.join("lib/liboutrider.so")).unwrap();
    let made = Command::new("make")
        .arg("-C")
        .arg(repository().join("plugins/programs"))
        .arg(format!("OUT={}", plugins.display()))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    // SQLite's extension is none, and lies beside the library.
    let no_plugin = prefix.join("lib/outrider_sqlite.so");
    fs::copy(outrider().with_file_name("liboutrider.so"), no_plugin).unwrap();
    let run = |name: &str, report: &str| {
        let mut command = Command::new(prefix.join("bin/outrider"));
        support::plain_environment(&mut command, &dir);
        command.args(["run", "--mode", "app-only", "--plugin", name]);
        let argv = ["--", "sh", "-c", "echo $OUTRIDER_PLUGINS"];
        command
            .args((!report.is_empty()).then_some(report))
            .args(argv);
        command
            .current_dir(&dir)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    // By the start that does without the C library, too, which leaves it to the other.
    for report in ["", "--report=r.json"] {
        let output = run("du", report);
        assert!(output.status.success(), "{output:?}");
        assert!(
            text(&output.stdout).trim().ends_with("/outrider_du.so"),
            "{output:?}"
        );
    }
    // By what a plug-in is shown a program is not kept from running.
    let mut command = Command::new(prefix.join("bin/outrider"));
    support::plain_environment(&mut command, &dir);
    let command = command.args(["run", "--plugin=du", "--", "echo", "well"]);
    let output = command.env("OUTRIDER_GRAPH_SHOW", "text").output().unwrap();
    assert_eq!(text(&output.stdout), "well\n", "{output:?}");
    let output = run("dd", "");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("installed plug-in, and installed are cp, du"),
        "{output:?}"
    );
    // A file of that name is meant by a path only: others may have put it there.
    fs::write(dir.join("du"), "text").unwrap();
    let output = run("du", "");
    assert!(output.status.success(), "{output:?}");
    let output = run("./du", "");
    assert!(
        text(&output.stderr).contains("not an ELF file"),
        "{output:?}"
    );
}
