//! Documents keep to the code.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files below `dir` with one of these ends, but for what is built and measured.
fn sources(dir: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_symlink() || ["target", "results"].contains(&&*name) || name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            sources(&path, ends, found);
        } else if ends.iter().any(|end| name.ends_with(end)) || name == "guest" {
            found.push(path);
        }
    }
}

/// The ids of requirements in a text.
fn ids(text: &str) -> BTreeSet<&str> {
    let is_id = |word: &&str| {
        let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
        let group = &word[..word.len() - digits.len()];
        // LP64 is how long numbers are in C.
        let few = (1..=2).contains(&digits.len()) && *word != "LP64";
        ["CP", "LP", "FA", "DR", "B"].contains(&group)
            && few
            && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(is_id).collect()
}

/// The table of requirements explains each id that a comment cites, and names code and tests that exist.
#[test]
fn requirements_are_explained() {
    let root = repository();
    let document = fs::read_to_string(root.join("docs/requirements.md")).unwrap();
    let rows: BTreeMap<&str, Vec<&str>> = document
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .map(|cells: Vec<&str>| (cells[0], cells))
        .collect();

    let mut files = Vec::new();
    let ends = [".rs", ".c", ".cc", ".h", ".py", ".md"];
    sources(&root, &ends, &mut files);
    assert!(files.len() > 300, "{} files", files.len());
    let (mut cited, mut unknown) = (BTreeSet::new(), Vec::new());
    for path in &files {
        let text = fs::read_to_string(path).unwrap();
        let is_document = path.extension().is_some_and(|e| e == "md");
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let comment = ["//", "/*", "*", "#", "\"\"\""]
                .iter()
                .any(|c| line.starts_with(c));
            if !(comment || is_document) {
                continue;
            }
            for id in ids(line) {
                cited.insert(id.to_owned());
                if !rows.contains_key(id) {
                    unknown.push(format!("{}:{}: {id}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "not explained: {unknown:#?}");
    assert!(cited.len() > 40, "{cited:?}");

    let mut missing = Vec::new();
    for cells in rows.values().filter(|cells| !ids(cells[0]).is_empty()) {
        for name in cells.iter().skip(2).map(|cell| cell.trim_matches('`')) {
            let (path, function) = name.split_once("::").unwrap_or((name, ""));
            let there = match function {
                "" => root.join(path).exists(),
                _ => fs::read_to_string(root.join(path))
                    .is_ok_and(|text| text.contains(&format!("fn {function}("))),
            };
            if !there {
                missing.push(name);
            }
        }
    }
    assert!(missing.is_empty(), "not there: {missing:?}");
}
