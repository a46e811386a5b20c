//! FA11: the examples, as they are, on real files. What they leave or print is compared with what the bare calls give.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

const ENGINES: [&str; 4] = ["auto", "uring", "threads", "check"];
/// What the copy moves at a time.
const COPIED: usize = 128 << 10;
/// What the search looks at of each file.
const SEARCHED: usize = 4096;

fn example(name: &str) -> PathBuf {
    static BUILT: Once = Once::new();
    let tests = std::env::current_exe().unwrap();
    let at = tests.ancestors().nth(2).unwrap().join("examples");
    BUILT.call_once(|| {
        // Cargo builds examples with the tests, unless it was asked for single tests. Of one package alone others' features would be left out, and all that it
        // is built from would be built anew.
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--workspace", "--examples"])
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", text(&built.stderr));
    });
    at.join(name)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs an example in `dir`; it must say that the serial run gave the same. Its output, and how many results that were made ahead it used.
fn run(dir: &Path, name: &str, engine: &str, arguments: &[&str]) -> (String, u64) {
    let out = Command::new(example(name))
        .current_dir(dir)
        .arg(format!("--engine={engine}"))
        .args(arguments)
        .output()
        .unwrap();
    let said = text(&out.stdout) + &text(&out.stderr);
    assert!(out.status.success(), "{name}, {engine}: {said}");
    assert!(said.contains("results equal"), "{name}, {engine}: {said}");
    let before = said.split(" used (").next().unwrap();
    let used = before.rsplit(' ').next().unwrap().parse();
    (said, used.unwrap())
}

/// The same bytes every time, and no block like another.
fn bytes(len: usize, mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (seed >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A copy is the file, whatever its size, over a longer file as well as over none.
#[test]
fn copy_copies() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = [
        0,
        1,
        4096,
        COPIED - 1,
        COPIED,
        COPIED + 1,
        3 * COPIED + 777,
        40 * COPIED,
        40 * COPIED + 4097,
    ];
    for (n, size) in sizes.into_iter().enumerate() {
        let from = bytes(size, n as u64 + 1);
        fs::write(dir.path().join("from"), &from).unwrap();
        for engine in ENGINES {
            let to = dir.path().join("to");
            match n % 2 {
                0 => fs::write(&to, vec![b'x'; size + 5000]).unwrap(),
                _ => drop(fs::remove_file(&to)),
            }
            let (said, used) = run(dir.path(), "copy", engine, &["from", "to"]);
            assert!(fs::read(to).unwrap() == from, "{size}, {engine}: {said}");
            // The short ones' are the first reads, which the function makes itself, and the check makes none ahead.
            let far = size >= 40 * COPIED && engine != "check";
            assert!(used > 40 || !far, "{size}, {engine}: {said}");
        }
    }
}

/// What cannot be copied is said, and nothing is left of another file's bytes.
#[test]
fn copy_refuses_what_it_cannot_read() {
    let dir = tempfile::tempdir().unwrap();
    let out = Command::new(example("copy"))
        .current_dir(dir.path())
        .args(["missing", "to"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("missing: No such file"));
    assert!(!dir.path().join("to").exists());
}

/// The first file that has the text in its first block, as a naive search finds it: among short and empty files, where the text lies at a block's
/// end, beyond it, across it, and in none.
#[test]
fn search_finds_what_a_naive_search_finds() {
    const TEXT: &[u8] = b"needle";
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..90).map(|i| format!("f{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        let len = [0, 3, 700, SEARCHED - 1, SEARCHED, SEARCHED + 1, 9000][i % 7];
        fs::write(dir.path().join(name), bytes(len, i as u64 + 1)).unwrap();
    }
    // A file and where in it the text is put, all at once; only some of these count.
    let put: [&[(usize, usize)]; 6] = [
        &[],
        &[(0, 0)],
        &[(83, SEARCHED - TEXT.len())],
        &[(6, SEARCHED), (13, SEARCHED - 1), (41, 100), (60, 0)],
        &[(89, 694), (55, SEARCHED - 3)],
        &[(2, 694), (3, 0)],
    ];
    for (n, put) in put.into_iter().enumerate() {
        let clean: Vec<_> = put
            .iter()
            .map(|(i, at)| {
                let path = dir.path().join(&names[*i]);
                let clean = fs::read(&path).unwrap();
                let mut new = clean.clone();
                new.resize(clean.len().max(at + TEXT.len()), 0);
                new[*at..at + TEXT.len()].copy_from_slice(TEXT);
                fs::write(&path, new).unwrap();
                (path, clean)
            })
            .collect();
        let naive = names.iter().find(|name| {
            let all = fs::read(dir.path().join(name)).unwrap();
            let block = &all[..all.len().min(SEARCHED)];
            block.windows(TEXT.len()).any(|w| w == TEXT)
        });
        let expected = match naive {
            Some(name) => format!("found in {name}\n"),
            None => "not found\n".to_owned(),
        };
        let mut arguments = vec!["needle"];
        arguments.extend(names.iter().map(String::as_str));
        for engine in ENGINES {
            let (said, used) = run(dir.path(), "search", engine, &arguments);
            assert!(said.starts_with(&expected), "{n}, {engine}: {said}");
            // Whole blocks can be used, and where it ends with the first file there is nothing to use but that.
            let far = naive.is_none_or(|name| name.len() > 2) && engine != "check";
            assert!(used > 5 || !far, "{n}, {engine}: {said}");
        }
        for (path, clean) in clean {
            fs::write(path, clean).unwrap();
        }
    }
}

/// Blocks that lie far apart, close together, and beyond the end of a small file.
#[test]
fn read_blocks_reads_the_same() {
    let dir = tempfile::tempdir().unwrap();
    for size in [0, 5000, 128 * 4096, 4 << 20] {
        fs::write(dir.path().join("file"), bytes(size, 1)).unwrap();
        for engine in ENGINES {
            run(dir.path(), "read_blocks", engine, &["file"]);
        }
    }
}

/// What a tree takes, as the files' own attributes add up.
#[test]
fn usage_adds_up_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    let mut below = root.clone();
    for depth in 0..6 {
        fs::create_dir_all(below.join("empty")).unwrap();
        for i in 0..depth * 30 {
            let name = below.join(format!("f{i}"));
            fs::write(name, bytes(i * 997 % 20_000, 1)).unwrap();
        }
        std::os::unix::fs::symlink("missing", below.join("link")).unwrap();
        below.push("below");
    }
    fs::create_dir(&below).unwrap();
    fn add(at: &Path, blocks: &mut u64, entries: &mut u64) {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let st = fs::symlink_metadata(&path).unwrap();
            *blocks += st.blocks();
            *entries += 1;
            if st.is_dir() {
                add(&path, blocks, entries);
            }
        }
    }
    // What has no blocks yet gets them when it is written back.
    assert!(Command::new("sync").status().unwrap().success());
    let (mut blocks, mut entries) = (0, 0);
    add(&root, &mut blocks, &mut entries);
    let expected = format!("{} KiB in {entries} entries\n", blocks / 2);
    for engine in ENGINES {
        let (said, _) = run(dir.path(), "usage", engine, &["root"]);
        assert!(said.starts_with(&expected), "{engine}: {said} {expected}");
    }
}
