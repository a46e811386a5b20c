//! Foreactor (Hu, Arpaci-Dusseau, Arpaci-Dusseau: "Foreactor: Exploiting Storage I/O Parallelism with Explicit Speculation"):
//! reading blocks, du, cp, a copy of ours and a B+-tree. LevelDB's rows are with the databases.

use super::make::{self, Tree};
use super::words::{COREUTILS, WORK, argv, data, script, with};
use super::{Data, Maker, OwnColumn, Row, Workload};
use crate::output::{Context, Outcome};
use outrider_sim::random::Random;

const M: u64 = 1 << 20;

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.push(blocks());
    rows.extend(du());
    rows.extend(cp());
    rows.push(copy());
    rows.extend(bptree());
    rows
}

/// Reading 128 blocks of 4 KiB around the cache, one after the other or as many as the device takes at once.
fn blocks() -> Row {
    let plain = argv(&[WORK, "read-blocks", "{data}/blocks"]);
    let data = data("blocks:256M", 256 * M, |maker| {
        make::noise(&maker.path("blocks"), maker.size(0)?, 1)
    });
    Row::new(
        "fa-read-blocks",
        "Foreactor section 2: reading 128 blocks of 4 KiB with O_DIRECT",
        data,
        Workload {
            hinted: Some(vec![with(&plain, "--uring")]),
            graph: Some(vec![with(&plain, "--graph")]),
            ..Workload::one(plain)
        },
    )
    .point("fa-read-blocks", "128 x 4K", "128", None)
}

/// A copy whose reads are linked to its writes, of a size that is no multiple of its block; what it wrote is read again.
fn copy() -> Row {
    const BYTES: u64 = 128 * M + 12_345;
    let command = |flag| {
        script(&format!(
            "'{WORK}' copy {flag} '{{data}}/from' '{{data}}/to' && cksum <'{{data}}/to'"
        ))
    };
    Row::new(
        "fa-copy",
        "Foreactor section 4.1: a copy of 128 MiB and 12,345 bytes, a linked write after each read",
        data(&format!("odd:{BYTES}"), 2 * BYTES, |maker| {
            make::noise(&maker.path("from"), maker.size(0)?, 4)
        }),
        Workload {
            graph: Some(vec![command("--graph")]),
            ..Workload::one(command(""))
        }
        .needs(&[COREUTILS])
        .reset(argv(&["rm", "-f", "{data}/to"])),
    )
    .point("fa-copy", "same device", "128M", None)
}

/// `tree`: text files of 500 bytes to 8 KiB, 50 in a directory. Words: how many files.
pub fn tree(files: u64) -> Data {
    // A file of 4 KiB on average takes 6 KiB and an inode.
    data(&format!("tree:{files}"), files * 10_000 + 16 * M, |maker| {
        let tree = Tree {
            files: maker.count(0)?,
            in_directory: 50,
            sizes: (500, 8192),
            seed: 2,
        };
        tree.text(&maker.path("tree"))
    })
}

/// `tree`: files of 100 bytes in a single directory. Words: how many.
fn flat(files: u64) -> Data {
    data(&format!("flat:{files}"), files * 5000 + 16 * M, |maker| {
        let tree = Tree {
            files: maker.count(0)?,
            in_directory: u64::MAX,
            sizes: (100, 100),
            seed: 3,
        };
        tree.noise(&maker.path("tree"))
    })
}

/// `tree`: empty files, 50 in a directory, whose inodes lie scattered among those of four times as many that were removed again. Words:
/// how many.
fn scattered(files: u64) -> Data {
    data(
        &format!("scattered:{files}"),
        5 * files * 1000 + 64 * M,
        |maker| {
            let tree = Tree {
                files: 5 * maker.count(0)?,
                in_directory: 250,
                sizes: (0, 0),
                seed: 6,
            };
            let root = maker.path("tree");
            tree.noise(&root)?;
            let mut names = tree.names(".dat");
            // Not the order in which they were made: those that are kept would lie together.
            Random::new(tree.seed).shuffle(&mut names);
            for name in &names[maker.count(0)? as usize..] {
                let path = root.join(name);
                std::fs::remove_file(&path).doing(path.display())?;
            }
            Ok(())
        },
    )
}

/// The program under `outrider run` with the plug-in that `make plugins` built for it, and nothing else of Outrider.
fn plugin(name: &str) -> OwnColumn {
    let plugin = format!("{{plugins}}/outrider_{name}.so");
    let flags = ["--mode", "app-only", "--plugin", &plugin];
    OwnColumn {
        name: "plugin".to_owned(),
        outrider: Some(flags.map(str::to_owned).to_vec()),
        ..OwnColumn::default()
    }
}

/// Figure 6(a). Apparent sizes: what a file takes on the disk may change after it was written.
fn du() -> Vec<Row> {
    let du = || {
        let command = script("cd '{data}' && du -s --apparent-size --block-size=1 tree");
        Workload {
            own: vec![plugin("du")],
            ..Workload::one(command).needs(&[("du", "coreutils")])
        }
    };
    let mut rows = vec![
        Row::new(
            "fa-fig6a-du-tree",
            "Foreactor Fig. 6(a): du over 20,000 files in 400 directories",
            tree(20_000),
            du(),
        )
        .point("fa-fig6a", "tree", "20000", None)
        .short(&["remote"]),
        Row::new(
            "fa-fig6a-du-scattered",
            "Foreactor Fig. 6(a): du over 20,000 files in 400 directories, inodes scattered",
            scattered(20_000),
            du(),
        )
        .point("fa-fig6a", "scattered", "20000", None),
    ];
    // "Up to 50 %" less time, at a depth of 16; the largest directory is where that was.
    for (files, paper) in [(1000, None), (10_000, Some(2.0))] {
        rows.push(
            Row::new(
                format!("fa-fig6a-du-{files}"),
                format!("Foreactor Fig. 6(a): du over a directory of {files} files"),
                flat(files),
                du(),
            )
            .point("fa-fig6a", "one directory", files.to_string(), paper),
        );
    }
    rows
}

/// `files`: eight files of noise. Words: how large each is.
fn eight(maker: &Maker) -> Outcome {
    let dir = maker.path("files");
    std::fs::create_dir(&dir).doing(dir.display())?;
    for n in 0..8 {
        make::noise(&dir.join(format!("f{n}")), maker.size(0)?, n)?;
    }
    Ok(())
}

/// Figure 6(b): eight files, to memory and beside themselves. "Up to 29 %" less time.
fn cp() -> Vec<Row> {
    let mut rows = Vec::new();
    for (size, bytes, paper) in [
        ("4M", 4 * M, None),
        ("32M", 32 * M, None),
        ("128M", 128 * M, Some(1.41)),
    ] {
        let set = |copies: u64| data(&format!("copy:{size}"), copies * 8 * bytes, eight);
        rows.push(
            Row::new(
                format!("fa-fig6b-cp-{size}"),
                format!("Foreactor Fig. 6(b): cp of eight files of {size} to memory"),
                set(2),
                Workload {
                    own: vec![plugin("cp")],
                    ..Workload::one(script(
                        "cp -r '{data}/files' '{out}/copy' && cd '{out}/copy' && cksum f*",
                    ))
                    .needs(&[COREUTILS])
                },
            )
            .point("fa-fig6b", "to memory", size, None),
        );
        rows.push(
            Row::new(
                format!("fa-fig6b-cp-same-{size}"),
                format!("Foreactor Fig. 6(b): cp of eight files of {size} to the same device"),
                set(2),
                Workload {
                    own: vec![plugin("cp")],
                    ..Workload::one(script(
                        "cp -r '{data}/files' '{data}/copy' && cd '{data}/copy' && cksum f*",
                    ))
                    .needs(&[COREUTILS])
                    .reset(argv(&["rm", "-rf", "{data}/copy"]))
                },
            )
            .point("fa-fig6b", "same device", size, paper),
        );
    }
    for row in &mut rows {
        if row.name == "fa-fig6b-cp-32M" {
            row.short = &["remote"];
        }
    }
    rows
}

/// `records`: keys and values in no order. Words: how many.
fn records(maker: &Maker) -> Outcome {
    let (count, file) = (maker.word(0)?, maker.path("records"));
    maker.work(&[
        "bptree".as_ref(),
        "records".as_ref(),
        file.as_os_str(),
        count.as_ref(),
    ])
}

/// `records`, and `tree` that was bulk-loaded with them. Words: how many, the degree.
fn loaded(maker: &Maker) -> Outcome {
    built(maker, "load")
}

/// The same, inserted one by one: the leaves lie in no order.
fn inserted(maker: &Maker) -> Outcome {
    built(maker, "insert")
}

fn built(maker: &Maker, how: &str) -> Outcome {
    records(maker)?;
    let (records, tree) = (maker.path("records"), maker.path("tree"));
    maker.work(&[
        "bptree".as_ref(),
        how.as_ref(),
        records.as_os_str(),
        tree.as_os_str(),
        "--degree".as_ref(),
        maker.word(1)?.as_ref(),
    ])
}

/// Figure 7: ten scans over, and a bulk load of, a tree of two million records. Up to 37 % more throughput.
fn bptree() -> Vec<Row> {
    const RECORDS: u64 = 2_000_000;
    let bytes =
        |degree: u64, fill: u64| RECORDS * 16 + RECORDS / degree * 8192 * 100 / fill + 8 * M;
    let scan = || {
        let plain = argv(&[WORK, "bptree", "scan", "{data}/tree"]);
        let declared = argv(&[WORK, "bptree", "scan", "{data}/tree", "--declare"]);
        Workload {
            hinted: Some(vec![with(&plain, "--readahead")]),
            declared: Some(vec![declared]),
            graph: Some(vec![with(&plain, "--graph")]),
            ..Workload::one(plain)
        }
    };
    let mut rows = Vec::new();
    for degree in [64, 128, 256, 510] {
        let paper = (degree == 510).then_some(1.37);
        let mut row = Row::new(
            format!("fa-fig7a-scan-{degree}"),
            format!("Foreactor Fig. 7(a): ten scans of a B+-tree of degree {degree}"),
            data(
                &format!("bptree-loaded:{RECORDS}:{degree}"),
                bytes(degree, 100),
                loaded,
            ),
            scan(),
        )
        .point("fa-fig7a", "loaded", degree.to_string(), paper);
        if degree == 128 {
            row.short = &["remote"];
        }
        rows.push(row);
    }
    for degree in [128, 510] {
        rows.push(
            Row::new(
                format!("fa-fig7a-scan-inserted-{degree}"),
                format!("Foreactor Fig. 7(a): ten scans of a B+-tree of degree {degree} into which records were inserted one by one"),
                data(&format!("bptree-inserted:{RECORDS}:{degree}"), bytes(degree, 50), inserted),
                scan(),
            )
            .point("fa-fig7a", "inserted", degree.to_string(), None),
        );
    }
    for degree in [64, 128, 256, 510] {
        let degree = degree.to_string();
        let plain = argv(&[
            WORK,
            "bptree",
            "load",
            "{data}/records",
            "{data}/new",
            "--degree",
            &degree,
            "--direct",
        ]);
        rows.push(
            Row::new(
                format!("fa-fig7b-load-{degree}"),
                format!("Foreactor Fig. 7(b): bulk load of a B+-tree of degree {degree}, written around the cache"),
                data(&format!("bptree-records:{RECORDS}"), bytes(64, 100), records),
                Workload {
                    hinted: Some(vec![with(&plain, "--uring")]),
                    graph: Some(vec![with(&plain, "--graph")]),
                    ..Workload::one(plain)
                }
                .reset(argv(&["rm", "-f", "{data}/new"])),
            )
            .point("fa-fig7b", "load", degree, None),
        );
    }
    rows
}
