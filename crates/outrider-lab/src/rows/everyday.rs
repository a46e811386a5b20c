//! What people run every day: du, find, tar, grep, git, loaders.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::foreactor::tree;
use super::make::{self, Text, Tree};
use super::words::{COREUTILS, FINDUTILS, argv, data, script};
use super::{Data, Row, Workload};
use crate::output::{Context, Outcome};

const M: u64 = 1 << 20;

/// The rows.
pub fn rows() -> Vec<Row> {
    let files = || tree(20_000);
    let over_tree =
        |name: &str, about: &str, text: &str, needs: &[(&'static str, &'static str)]| {
            Row::new(
                format!("day-{name}"),
                format!("everyday: {about}"),
                files(),
                Workload::one(script(text)).needs(needs),
            )
        };
    // What a copy holds, whatever the order in which its directories list it.
    let copied = "cd '{out}/copy' && find . -type f -print0 | sort -z | xargs -0 cat | cksum";
    let mut rows = vec![
        over_tree(
            "du",
            "du over 20,000 small files",
            "cd '{data}' && du --apparent-size --block-size=1 tree | sort",
            &[("du", "coreutils")],
        ),
        over_tree(
            "find-size",
            "find -size over 20,000 small files",
            "cd '{data}' && find tree -type f -size +7k -printf '%s %p\\n' | sort",
            &[("find", "findutils")],
        ),
        over_tree(
            "tar",
            "tar c of 20,000 small files into a pipe",
            "tar c --owner=0 --group=0 --numeric-owner -C '{data}' tree | cksum",
            &[("tar", "tar")],
        ),
        over_tree(
            "grep",
            "grep -r over 20,000 small files",
            "cd '{data}' && grep -rc Zebra tree | sort | cksum",
            &[("grep", "grep"), COREUTILS],
        ),
        over_tree(
            "wc",
            "wc -l over 20,000 small files, in the order of their names",
            "cd '{data}' && find tree -type f -print0 | sort -z | xargs -0 wc -l | cksum",
            &[FINDUTILS, COREUTILS],
        ),
        over_tree(
            "cp",
            "cp -r of 20,000 small files to memory",
            &format!("cp -r '{{data}}/tree' '{{out}}/copy' && {copied}"),
            &[FINDUTILS, COREUTILS],
        ),
        over_tree(
            "rsync",
            "rsync -a of 20,000 small files to memory",
            &format!("rsync -a '{{data}}/tree/' '{{out}}/copy' && {copied}"),
            &[("rsync", "rsync"), FINDUTILS, COREUTILS],
        ),
        Row::new(
            "day-git-status",
            "everyday: git status of a repository of 6,000 files",
            repository(6000),
            // Without leave to write its index, as git is run by editors and prompts.
            Workload::one(argv(&[
                "git",
                "--no-optional-locks",
                "-C",
                "{data}/repository",
                "status",
                "--porcelain",
            ]))
            .needs(&[("git", "git")]),
        ),
        Row::new(
            "day-loader",
            "everyday: a Python loader over 3,000 shuffled files of 16 to 100 KB",
            samples(3000),
            Workload::one(argv(&["python3", "-c", LOADER, "{data}/samples"]))
                .needs(&[("python3", "python3")]),
        ),
        Row::new(
            "day-sha256sum",
            "everyday: sha256sum of a file of 256 MB",
            data("large:256M", 256 * M, |maker| {
                make::noise(&maker.path("large"), maker.size(0)?, 9)
            }),
            Workload::one(argv(&["sh", "-c", "exec sha256sum <'{data}/large'"]))
                .needs(&[("sha256sum", "coreutils")]),
        ),
        Row::new(
            "day-sort-merge",
            "everyday: sort -m of eight sorted files of 16 MB",
            sorted(8, "16M", 16 * M),
            Workload::one(script("cd '{data}' && sort -m s* | cksum")).needs(&[COREUTILS]),
        ),
    ];
    for row in &mut rows {
        if matches!(
            &*row.name,
            "day-tar" | "day-grep" | "day-git-status" | "day-loader"
        ) {
            row.short = &["remote"];
        }
    }
    rows
}

/// What a loader of samples does: all files in an order that is random, but known.
const LOADER: &str = "\
import os, random, sys, zlib
names = sorted(os.path.join(d, f) for d, _, files in os.walk(sys.argv[1]) for f in files)
random.Random(7).shuffle(names)
total = crc = 0
for name in names:
    with open(name, 'rb') as file:
        data = file.read()
    total += len(data)
    crc = zlib.crc32(data, crc)
print(len(names), total, crc)
";

/// `samples`: files of noise. Words: how many.
fn samples(files: u64) -> Data {
    data(&format!("samples:{files}"), files * 62_000, |maker| {
        let tree = Tree {
            files: maker.count(0)?,
            in_directory: 100,
            sizes: (16_000, 100_000),
            seed: 10,
        };
        tree.noise(&maker.path("samples"))
    })
}

/// `s0` …: sorted lines. Words: how many files, their size.
fn sorted(files: u64, size: &str, bytes: u64) -> Data {
    data(&format!("sorted:{files}:{size}"), files * bytes, |maker| {
        for n in 0..maker.count(0)? {
            let mut text = Text::new(20 + n);
            let (mut lines, mut length) = (Vec::new(), 0);
            while length < maker.size(1)? {
                let mut line = Vec::new();
                text.line(&mut line);
                length += line.len() as u64;
                lines.push(line);
            }
            lines.sort_unstable();
            let path = maker.path(&format!("s{n}"));
            fs::write(&path, lines.concat()).doing(path.display())?;
        }
        Ok(())
    })
}

/// `repository`: a git repository of text files, with some changed, one gone and one that is not in it since the last
/// commit. Words: how many files.
fn repository(files: u64) -> Data {
    data(
        &format!("repository:{files}"),
        files * 16_000 + 8 * M,
        |maker| {
            let tree = Tree {
                files: maker.count(0)?,
                in_directory: 30,
                sizes: (500, 12_000),
                seed: 11,
            };
            let root = maker.path("repository");
            tree.text(&root)?;
            let names = tree.names(".txt");
            // Files as young as the index would have to be read.
            for name in &names {
                make::old(&root.join(name))?;
            }
            git(&root, &["init", "-q"])?;
            git(&root, &["add", "-A"])?;
            git(&root, &["commit", "-q", "-m", "All"])?;
            git(&root, &["repack", "-adq"])?;
            for name in names.iter().step_by(997) {
                let path = root.join(name);
                let mut text = fs::read(&path).doing(path.display())?;
                text.extend(b"One more line.\n");
                fs::write(&path, text).doing(path.display())?;
            }
            if let Some(last) = names.last() {
                let path = root.join(last);
                fs::remove_file(&path).doing(path.display())?;
            }
            let path = root.join("untracked");
            fs::write(&path, "Not in it.\n").doing(path.display())
        },
    )
}

/// Runs git without anything of the user's.
fn git(root: &Path, args: &[&str]) -> Outcome {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(root)
        .args(["-c", "gc.auto=0", "-c", "maintenance.auto=false"])
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE");
    for who in ["AUTHOR", "COMMITTER"] {
        command
            .env(format!("GIT_{who}_NAME"), "Nobody")
            .env(format!("GIT_{who}_EMAIL"), "nobody@example.org")
            .env(format!("GIT_{who}_DATE"), "2001-09-09T01:46:40Z");
    }
    make::run(&mut command)
}
