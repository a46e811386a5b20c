//! `outrider-lab replay` through the built command: what a service did in runs that were recorded it does again, request by request and word by word.
//! The recordings are made by `bench/recordings.py`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn replay(files: &[PathBuf]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outrider-lab"))
        .arg("replay")
        .args(files)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// All recordings, in the order of their names.
fn recordings() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// How many requests a line of `replay` tells of.
fn requests(line: &str) -> u64 {
    let words: Vec<&str> = line.split(' ').collect();
    let at = words.iter().position(|w| *w == "requests,").unwrap();
    words[at - 1].parse().unwrap()
}

#[test]
fn what_was_recorded_is_done_again() {
    let files = recordings();
    assert!(files.len() >= 30, "{} recordings", files.len());
    for file in &files {
        let size = fs::metadata(file).unwrap().len();
        assert!(size <= 200_000, "{} has {size} bytes", file.display());
    }
    let out = replay(&files);
    let told = text(&out.stdout);
    assert!(out.status.success(), "{told}{}", text(&out.stderr));
    assert_eq!(told.lines().count(), files.len());
    // They are no replays of nothing.
    let requests: u64 = told.lines().map(requests).sum();
    assert!(requests > 1000, "{requests} requests");
}

/// The lines of a recording, with one of them changed.
fn changed(name: &str, of: impl Fn(&str) -> bool, to: &str) -> (tempfile::TempDir, PathBuf, usize) {
    let directory = tempfile::tempdir().unwrap();
    let whole = recordings().into_iter().find(|f| f.ends_with(name));
    let whole = fs::read_to_string(whole.unwrap()).unwrap();
    let at = whole.lines().position(of).unwrap();
    let lines = whole.lines().enumerate();
    let lines = lines.map(|(i, line)| if i == at { to } else { line });
    let file = directory.path().join(name);
    fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    (directory, file, at + 1)
}

#[test]
fn a_difference_is_told_with_its_time() {
    // Another request, another answer of the kernel, another word.
    let request = |line: &str| line.starts_with("> i ");
    let (_keep, file, _) = changed("tac.rec", request, "> i 1 2 0-4096");
    let out = replay(&[file]);
    assert_eq!(out.status.code(), Some(1));
    let told = text(&out.stdout);
    assert!(
        told.contains(" µs: recorded `> i 1 2 0-4096`, replayed `> i "),
        "{told}"
    );
    let answer = |line: &str| line.starts_with("Q open ");
    let (_keep, file, _) = changed("tac.rec", answer, "Q open 0 0 = -");
    assert_eq!(replay(&[file]).status.code(), Some(1));
    let word = |line: &str| line.starts_with("W ");
    let (_keep, file, _) = changed("cmp.rec", word, "W 0 e0 1");
    let told = text(&replay(&[file]).stdout);
    assert!(told.contains("recorded `W 0 e0 1`"), "{told}");
}

#[test]
fn what_is_no_recording_is_refused() {
    let first = |_: &str| true;
    let round = |line: &str| line.starts_with("R 0");
    let cases = [
        (
            "hello",
            first as fn(&str) -> bool,
            "expected `outrider-recording 1 MODE WORKERS PID`",
        ),
        (
            "outrider-recording 2 3 2 1",
            first,
            "expected `outrider-recording 1 MODE WORKERS PID`",
        ),
        ("R soon", round, "expected `R NANOSECONDS`"),
        ("Z 1", round, "no round has begun"),
        ("Q cached", round, "no round has begun"),
    ];
    for (line, of, why) in cases {
        let (_keep, file, number) = changed("cat.rec", of, line);
        let out = replay(std::slice::from_ref(&file));
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {told}");
        let expected = format!("{}: line {number}: {why}", file.display());
        assert!(told.contains(&expected), "{line}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    let out = replay(&[PathBuf::from("/nowhere/at all")]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("/nowhere/at all: No such file"));
    assert_eq!(replay(&[]).status.code(), Some(2));
}
