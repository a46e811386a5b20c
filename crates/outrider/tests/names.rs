//! SPEC B16: whoever names a file, a program, a graph or a mount point puts neither a line of their own nor an escape sequence into what the commands
//! print, and nothing that can't be seen.

mod support;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{fresh, make_cold, outrider, plain_environment};

/// A line that looks like the report's own, colours, a title for the terminal (in one byte, too), the direction of writing turned round, nothing to be
/// seen, and what is not UTF-8.
const HOSTILE: &[u8] =
    b"a\nlost: forged\r\x1b[31m\x1b]0;t\x07\xc2\x9b1m\x7f\xe2\x80\xae\xe2\x80\x8b\xe2\x80\xa8\xef\xbb\xbf\xff\\end";
/// The name of a program: the kernel keeps 15 bytes.
const PROGRAM: &[u8] = b"p\nlost: \x1b[7m\xe2\x80\xae";

/// Whether a reader of the text sees all that is there, line by line.
fn is_plain(text: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(text).map_err(|e| e.to_string())?;
    let hidden = |c: &char| {
        let c = *c;
        c != '\n' && c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    match text.chars().find(hidden) {
        Some(c) => Err(format!("{c:?} in {text:?}")),
        None => Ok(()),
    }
}

/// The commands' output, in which names may be longer and nothing else may differ.
fn shape(output: &Output, name: &[u8]) -> Vec<String> {
    let shown = [&output.stdout, &output.stderr];
    let lines = shown.into_iter().flat_map(|text| {
        is_plain(text).unwrap_or_else(|what| panic!("{}: {what}", name.escape_ascii()));
        let text = String::from_utf8(text.clone()).unwrap();
        // What lines begin with, less figures and the name. (A row of figures of any name begins with a blank; a forged line doesn't.)
        let head = |line: &str| {
            line.chars()
                .take_while(|c| c.is_ascii_alphabetic())
                .collect::<String>()
        };
        // How many lines of figures a measurement has, it decides by itself.
        let heads = text.lines().map(head).filter(|head| !head.is_empty());
        heads.collect::<Vec<_>>()
    });
    lines.collect()
}

struct Place {
    dir: PathBuf,
    file: OsString,
    program: PathBuf,
}

impl Place {
    fn new(test: &str, file: &[u8], program: &[u8]) -> Place {
        let dir = fresh(test);
        let file = OsString::from_vec(file.to_vec());
        fs::write(dir.join(&file), support::Random(5).bytes(2 << 20)).unwrap();
        let program = dir.join(OsStr::from_bytes(program));
        fs::copy("/usr/bin/tac", &program).unwrap();
        Place { dir, file, program }
    }

    fn run(&self, words: &[&OsStr]) -> Output {
        let mut command = Command::new(outrider());
        plain_environment(&mut command, &self.dir);
        // Names are shown whole.
        command.env("COLUMNS", "1000");
        command.args(words).current_dir(&self.dir);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// The program reads the file under us.
    fn report(&self, flags: &[&str]) -> Output {
        make_cold(&self.dir);
        let mut words = vec![OsStr::new("run")];
        words.extend(flags.iter().map(OsStr::new));
        words.extend([
            OsStr::new("--"),
            self.program.as_os_str(),
            self.file.as_os_str(),
        ]);
        let mut output = self.run(&words);
        assert!(output.status.success(), "{output:?}");
        // The program's own.
        assert_eq!(output.stdout.len(), 2 << 20);
        output.stdout.clear();
        output
    }
}

/// The table, the other commands and what they complain of have the same lines whatever the names are.
#[test]
fn names_are_shown_on_one_line() {
    let hostile = Place::new("names_hostile", HOSTILE, PROGRAM);
    let tame = Place::new("names_tame", b"tame", b"program");
    // A report names a file only if the helper has had a turn; it does mostly.
    let (a, b) = [&hostile, &tame]
        .map(|p| {
            support::wait_for(support::PATIENCE, || {
                let table = p.report(&["--report"]);
                // A helper that got no turn in time is another matter.
                let busy = String::from_utf8_lossy(&table.stderr).contains("lost: service");
                (names_a_file(&table.stderr) && !busy).then_some(table)
            })
            .expect("no report names the file")
        })
        .into();
    let count = |o: &Output, start: &str| {
        let lines = String::from_utf8_lossy(&o.stderr).into_owned();
        lines.lines().filter(|l| l.starts_with(start)).count()
    };
    shape(&a, HOSTILE);
    assert_eq!(count(&a, "lost: forged"), 0);
    assert_eq!(count(&a, "lost:"), count(&b, "lost:"), "{a:?} {b:?}");
    let text = String::from_utf8_lossy(&a.stderr).into_owned();
    assert!(
        text.contains("a\\nlost: forged\\r\\u{1b}[31m") && text.contains("\\xff\\\\end"),
        "{text}"
    );
    assert!(text.contains("p\\nlost: \\u{1b}[7m"), "{text}");

    for command in [
        &["cached"][..],
        &["cached", "."],
        &["warm"],
        &["warm", "."],
        &["evict"],
        &["evict", "."],
        &["probe"],
        &["doctor"],
        // What is complained of.
        &["cached", "missing"],
        &["warm", "missing"],
        &["evict", "missing"],
        &["probe", "missing"],
        &["doctor", "missing"],
        &["run", "--plugin"],
        &["run", "--config"],
        &["run", "--"],
        &["unknown"],
        &["--unknown"],
        &["run", "--unknown"],
    ] {
        let shown = [&hostile, &tame].map(|p| {
            let mut words: Vec<&OsStr> = command.iter().map(OsStr::new).collect();
            let file = match words.pop_if(|w| *w == "missing") {
                Some(_) => OsString::from_vec([p.file.as_bytes(), b"-no"].concat()),
                None if command.contains(&"doctor") => p.program.clone().into(),
                None => p.file.clone(),
            };
            match (words.pop_if(|w| *w == "."), words.last()) {
                (Some(_), _) => words.push(p.dir.as_os_str()),
                // A word that is no command, and a flag that there is none of.
                (None, Some(last)) if last.as_bytes().ends_with(b"unknown") => {
                    let last = words.pop().unwrap();
                    let made = OsString::from_vec([last.as_bytes(), p.file.as_bytes()].concat());
                    words.push(Box::leak(made.into_boxed_os_str()));
                }
                (None, _) => words.push(file.as_os_str()),
            }
            let output = p.run(&words);
            (output.status, shape(&output, p.file.as_bytes()))
        });
        assert_eq!(shown[0], shown[1], "{command:?}");
    }
}

fn names_a_file(table: &[u8]) -> bool {
    let text = String::from_utf8_lossy(table);
    ["end\n", "/tame\n"].iter().any(|end| text.contains(end))
}

/// The bytes that a JSON document gives for a path.
fn path(row: &Value) -> Vec<u8> {
    match row.get("path_bytes") {
        Some(bytes) => serde_json::from_value(bytes.clone()).unwrap(),
        None => row["path"].as_str().unwrap().as_bytes().to_vec(),
    }
}

/// JSON is valid, plain to look at, and says every path to the byte.
#[test]
fn names_are_exact_in_json() {
    for (i, name) in [
        HOSTILE,
        &HOSTILE[..HOSTILE.len() - 5],
        "tame \u{e4}".as_bytes(),
    ]
    .into_iter()
    .enumerate()
    {
        let place = Place::new(&format!("names_json_{i}"), name, PROGRAM);
        let file = place.dir.canonicalize().unwrap().join(&place.file);
        let parsed = |text: &[u8]| -> Value {
            is_plain(text).unwrap();
            serde_json::from_slice(text).unwrap()
        };
        let report = support::wait_for(support::PATIENCE, || {
            place.report(&["--report=report.json"]);
            let report = parsed(&fs::read(place.dir.join("report.json")).unwrap());
            let files = report["files"].as_array().unwrap().clone();
            files
                .iter()
                .any(|row| path(row) == file.as_os_str().as_bytes())
                .then_some(report)
        });
        let report = report.expect("no report names the file");
        let command = report["processes"][0]["command"].as_str().unwrap();
        assert!(PROGRAM.starts_with(command.as_bytes()), "{command:?}");

        let here: &Path = &place.dir;
        let json = |command: &str| {
            let words = [command, "--json"].map(OsStr::new);
            parsed(
                &place
                    .run(&[&words[..], &[here.as_os_str()]].concat())
                    .stdout,
            )
        };
        json("probe");
        let cached = json("cached");
        let files = cached["files"].as_array().unwrap();
        let inside = here.join(&place.file);
        assert!(
            files
                .iter()
                .any(|row| path(row) == inside.as_os_str().as_bytes()),
            "{cached:#}"
        );
    }
}
