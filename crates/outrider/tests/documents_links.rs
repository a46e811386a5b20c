//! What documents lead to is there, and they keep to their size: links and anchors, the length of lines, of README.md and of
//! the design notes.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Columns of prose, and lines of documents that have to be short.
const COLUMNS: usize = 100;
const README_LINES: usize = 150;
const NOTE_LINES: usize = 80;

fn repository() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    path.canonicalize().unwrap()
}

/// The documents below `dir`.
fn below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            below(&path, found);
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
}

/// All documents that are written by hand; not those of measurements.
fn documents() -> Vec<PathBuf> {
    let root = repository();
    let mut found: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "bench/README.md",
        "bench/campaign/README.md",
        "kernel/README.md",
    ]
    .map(|name| root.join(name))
    .into();
    below(&root.join("docs"), &mut found);
    for crate_dir in fs::read_dir(root.join("crates")).unwrap() {
        let readme = crate_dir.unwrap().path().join("README.md");
        found.extend(readme.exists().then_some(readme));
    }
    found
}

/// The lines of a text with their numbers, without those of code, whether fenced or indented.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut fenced, mut indented, mut blank) = (Vec::new(), false, false, true);
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        indented = line.starts_with("    ") && (blank || indented);
        blank = line.trim().is_empty();
        if !fenced && !indented {
            found.push((at + 1, line));
        }
    }
    found
}

/// A text without what stands between backticks.
fn without_code(text: &str) -> String {
    text.split('`').step_by(2).collect()
}

/// Where the links of a text lead, with what is before `](` and behind the next `)` left out.
fn targets(text: &str) -> Vec<String> {
    let plain: Vec<&str> = prose(text).into_iter().map(|(_, line)| line).collect();
    without_code(&plain.join("\n"))
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0.trim().to_owned()))
        .collect()
}

/// The anchors of a document's headings, as GitHub makes them, and those that are written down.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (_, line) in prose(text) {
        let written = line.split("<a id=\"").skip(1);
        found.extend(written.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let name: String = title
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        let again = (1..).map(|n| format!("{name}-{n}"));
        let mut names = std::iter::once(name.clone()).chain(again);
        found.insert(names.find(|n| !found.contains(n)).unwrap());
    }
    found
}

/// The file to which a link of the document at `path` leads; `None` where it leads out of the repository.
fn file(path: &Path, target: &str) -> Option<PathBuf> {
    let name = target.split('#').next().unwrap();
    match name {
        _ if target.contains("://") || target.starts_with("mailto:") => None,
        "" => Some(path.to_owned()),
        _ => Some(path.parent().unwrap().join(name)),
    }
}

/// Links of a document that lead nowhere.
fn broken(path: &Path, text: &str) -> Vec<String> {
    let leads_nowhere = |target: &String| {
        let Some(file) = file(path, target) else {
            return false;
        };
        let anchor = target.split_once('#').map(|(_, anchor)| anchor);
        let has = |anchor| match file == *path {
            true => anchors(text).contains(anchor),
            false => fs::read_to_string(&file).is_ok_and(|t| anchors(&t).contains(anchor)),
        };
        !file.exists() || anchor.is_some_and(|anchor| !has(anchor))
    };
    targets(text).into_iter().filter(leads_nowhere).collect()
}

/// Numbers of lines of prose that are too long, without the targets of their links. Tables are no prose.
fn long(text: &str) -> Vec<usize> {
    let columns = |line: &str| {
        let mut parts = line.split("](");
        let first = parts.next().unwrap().chars().count();
        let rest = parts.map(|p| p.split_once(')').map_or(p, |(_, rest)| rest));
        first + rest.map(|p| 3 + p.chars().count()).sum::<usize>()
    };
    let lines = prose(text).into_iter();
    lines
        .filter(|(_, line)| !line.trim_start().starts_with('|') && columns(line) > COLUMNS)
        .map(|(number, _)| number)
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut links = 0;
    let mut found = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        links += targets(&text).len();
        let faults = broken(&path, &text).into_iter();
        found.extend(faults.map(|target| format!("{}: {target}", path.display())));
    }
    assert!(links > 200, "{links} links");
    assert!(found.is_empty(), "these lead nowhere: {found:#?}");
}

/// Whoever begins with README.md comes to every document of docs/.
#[test]
fn every_document_is_reached() {
    let root = repository();
    let mut reached = BTreeSet::new();
    let mut next = vec![root.join("README.md")];
    while let Some(path) = next.pop() {
        let is_document = path.extension().is_some_and(|e| e == "md");
        if !is_document || !reached.insert(path.clone()) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let there = targets(&text).into_iter().filter_map(|t| file(&path, &t));
        next.extend(there.filter_map(|f| f.canonicalize().ok()));
    }
    let mut all = Vec::new();
    below(&root.join("docs"), &mut all);
    all.retain(|path| !reached.contains(path));
    assert!(all.is_empty(), "no way leads there: {all:#?}");
}

#[test]
fn documents_keep_to_their_size() {
    let mut found = Vec::new();
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.display();
        found.extend(
            long(&text)
                .iter()
                .map(|n| format!("{name}:{n}: more than {COLUMNS} columns")),
        );
        let most = match path.strip_prefix(repository()).unwrap() {
            p if p == Path::new("README.md") => README_LINES,
            p if p.starts_with("docs/design") => NOTE_LINES,
            _ => usize::MAX,
        };
        let lines = text.lines().count();
        if lines > most {
            found.push(format!("{name}: {lines} lines, and may have {most}"));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The checks above find what they look for.
#[test]
fn mistakes_are_found() {
    let path = repository().join("docs/performance.md");
    let text = "# A `title`, here\n\n## Twice\n\n## Twice\n\n\
        [a](#a-title-here) [b](#twice-1) [c](semantics.md#unchanged)\n[d `](e)` d](../README.md)\n\
        [f](#twice-2) [g](nowhere.md) [h](semantics.md#no-heading) [i](https://example.org/#x)\n\
        ```\n[j](code.md)\n```\n\n    [k](code.md)\n";
    let faults = ["#twice-2", "nowhere.md", "semantics.md#no-heading"];
    assert_eq!(broken(&path, text), faults);

    let words = "word ".repeat(25);
    let text = format!(
        "{words}\n| {words} |\n\n    {words}\n\n- {words}\n[{}]({words})\n```\n{words}\n```\n",
        "x".repeat(96)
    );
    assert_eq!(long(&text), [1, 6]);
}
