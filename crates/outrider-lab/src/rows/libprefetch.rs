//! libprefetch (VanDeBogart, Frost, Kohler: "Reducing Seek Overhead with Application-Directed Prefetching", USENIX ATC
//! '09): its figures, scaled to a sixteenth of its memory and below.
//!
//! Figures 1 to 3 go around the cache, as in the paper: they say what the device is like, and no prefetching changes them.

use super::make;
use super::words::{WORK, argv, data};
use super::{Data, Maker, OwnColumn, Row, Which, Workload};
use crate::output::{Failure, Outcome};

const M: u64 = 1 << 20;

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(device());
    rows.extend(sequential());
    rows.extend(blur());
    rows.extend(infill());
    rows
}

/// `pages`: a file of noise. Words: its size.
fn pages(size: &str, bytes: u64) -> Data {
    data(&format!("pages:{size}"), bytes, |maker| {
        make::noise(&maker.path("pages"), maker.size(0)?, 1)
    })
}

/// `pages`: the same in pieces of 14 KiB, those of the paper's slow file. Words: its size, and what a piece may be on
/// average.
fn fragmented(size: &str, bytes: u64) -> Data {
    // While it is made, three fillers of the same size lie between.
    data(&format!("fragmented:{size}:32K"), 4 * bytes, |maker| {
        make::fragmented(&maker.path("pages"), maker.size(0)?, 1, maker.size(1)?)
    })
}

/// `swap0` …: swap files of images, three times the image each, and `large`, a file of noise. Words: the image's size,
/// how many, the large file's size.
fn swaps(maker: &Maker) -> Outcome {
    let image = maker.size(0)?;
    for n in 0..maker.count(1)? {
        let swap = image
            .checked_mul(3)
            .ok_or_else(|| Failure::usage("an image that large has no swap file"))?;
        make::noise(&maker.path(&format!("swap{n}")), swap, n + 1)?;
    }
    match maker.size(2)? {
        0 => {}
        large => make::noise(&maker.path("large"), large, 100)?,
    }
    Ok(())
}

/// Figures 1 to 3: seeks, reorder buffers, infill.
fn device() -> Vec<Row> {
    let mut rows = vec![
        Row::new(
            "lp-fig1-seek-curve",
            "libprefetch Fig. 1: the cost of a seek by its distance (figures of the run)",
            pages("512M", 512 * M),
            Workload::one(argv(&[WORK, "seek-curve", "{data}/pages"])),
        )
        .on(&["hdd", "nvme"]),
    ];
    for buffer in ["4K", "64K", "384K", "1M", "4M", "16M", "64M"] {
        rows.push(
            Row::new(
                format!("lp-fig2-reorder-{buffer}"),
                format!("libprefetch Fig. 2: 64 MB of random pages of a file of 64 MB, sorted within {buffer}, around the cache"),
                pages("64M", 64 * M),
                Workload::one(argv(&[WORK, "planned", "{data}/pages", "--direct", "--buffer", buffer])),
            )
            .point("lp-fig2", "random pages", buffer, None)
            .on(&["hdd", "nvme"]),
        );
    }
    for (buffer, series) in [("8M", "one pass"), ("512K", "sixteen passes")] {
        for infill in ["0", "4K", "32K", "256K", "2M", "16M"] {
            rows.push(
                Row::new(
                    format!("lp-fig3-infill-{buffer}-{infill}"),
                    format!(
                        "libprefetch Fig. 3: 8 MB of random pages of a file of 512 MB in {series}, gaps up to {infill} read \
                         through, around the cache"
                    ),
                    pages("512M", 512 * M),
                    Workload::one(argv(&[
                        WORK, "planned", "{data}/pages", "--direct", "--coverage", "0.015625", "--buffer", buffer, "--infill",
                        infill,
                    ])),
                )
                .point("lp-fig3", series, infill, None)
                .on(&["hdd", "nvme"]),
            );
        }
    }
    rows
}

/// Figure 8: sequential reading. The paper's slow file takes 365 s at eight times the memory, 220 s with libprefetch; its
/// fast one is 6 s slower with it.
fn sequential() -> Vec<Row> {
    let mut rows = Vec::new();
    for (file, about, set) in [
        ("fast", "a file in one piece", pages("256M", 256 * M)),
        (
            "slow",
            "a file in pieces of 14 KiB",
            fragmented("256M", 256 * M),
        ),
    ] {
        for (ratio, memory) in [("0.5", 512 * M), ("8", 32 * M)] {
            let paper = match (file, ratio) {
                ("slow", "0.5") => Some(1.0),
                ("slow", "8") => Some(365.0 / 220.0),
                _ => None,
            };
            let read = argv(&[
                WORK,
                "planned",
                "{data}/pages",
                "--order",
                "sequential",
                "--block",
                "64K",
            ]);
            let mut row = Row::new(
                format!("lp-fig8-{file}-{ratio}x"),
                format!("libprefetch Fig. 8: {about}, {ratio} times the memory, read from the beginning to the end"),
                set.clone(),
                Workload::told(vec![read]),
            )
            .memory(memory)
            .point("lp-fig8", file, ratio, paper)
            .on(&["nvme", "hdd"]);
            if (file, ratio) == ("slow", "8") {
                row.short = &["hdd"];
            }
            rows.push(row);
        }
    }
    rows
}

/// Figure 11: reading through gaps, off and on, beside what Outrider chooses by itself. The paper gains up to 2.3 times on one disk, and loses on
/// another.
fn infill() -> Vec<Row> {
    // Pages lie 16 KiB apart on average, or 128 KiB.
    [("dense", "0.25"), ("sparse", "0.03125")]
        .map(|(density, coverage)| {
            let read = argv(&[
                WORK,
                "planned",
                "{data}/pages",
                "--coverage",
                coverage,
            ]);
            let column = |name: &str, gap: &str| OwnColumn {
                name: name.to_owned(),
                which: Which::Declared,
                outrider: Some(Vec::new()),
                env: vec![("OUTRIDER_INFILL", gap.to_owned())],
                ..OwnColumn::default()
            };
            let mut work = Workload::told(vec![read]);
            work.own = vec![column("infill-off", "0"), column("infill-32K", "32K")];
            Row::new(
                format!("lp-fig11-infill-{density}"),
                format!(
                    "libprefetch Fig. 11: {coverage} of the pages of a file of 128 MB at random, gaps left out or read through"
                ),
                pages("128M", 128 * M),
                work,
            )
            .point("lp-fig11", "infill", density, None)
            .on(&["hdd", "nvme"])
        })
        .into()
}

/// Figures 9, 12 and 13: a blur over an image in tiles, as GIMP does it.
fn blur() -> Vec<Row> {
    let set = |image: &str, bytes: u64, count: u64, large: u64| {
        let key = format!("blur:{image}:{count}:{}M", large / M);
        data(&key, 3 * bytes * count + large, swaps)
    };
    let command = |n: usize| argv(&[WORK, "blur", &format!("{{data}}/swap{n}")]);
    let mut rows = Vec::new();
    // The ratio of the image to memory; the paper's gain: 28 s of 28 s where all fits, 4.9x at the peak (1 GB of image,
    // 512 MB of memory), 7.5 hours to 3 at 24 times.
    for (ratio, image, bytes, memory, paper) in [
        ("0.5", "128M", 128 * M, 256 * M, Some(1.0)),
        ("1", "128M", 128 * M, 128 * M, None),
        ("2", "128M", 128 * M, 64 * M, Some(4.9)),
        ("4", "128M", 128 * M, 32 * M, None),
        ("8", "192M", 192 * M, 24 * M, None),
        ("24", "384M", 384 * M, 16 * M, Some(2.5)),
    ] {
        let mut row = Row::new(
            format!("lp-fig9-blur-{ratio}x"),
            format!("libprefetch Fig. 9: blur of an image of {image}, {ratio} times the memory, in three passes over a swap file"),
            set(image, bytes, 1, 0),
            Workload::told(vec![command(0)]),
        )
        .memory(memory)
        .point("lp-fig9", "blur", ratio, paper)
        .on(&["nvme", "hdd"]);
        if ratio == "2" {
            row.short = &["hdd"];
        }
        rows.push(row);
    }
    let shared = || set("64M", 64 * M, 3, 128 * M);
    for instances in 1..=3 {
        rows.push(
            Row::new(
                format!("lp-fig12-blur-{instances}"),
                format!(
                    "libprefetch Fig. 12: {instances} blurs at the same time, of an image as large as memory each (the paper: 3 to 4 \
                     times faster)"
                ),
                shared(),
                Workload::told((0..instances).map(command).collect()),
            )
            .memory(64 * M)
            .point("lp-fig12", "blur", instances.to_string(), Some(3.0))
            .on(&["nvme", "hdd"]),
        );
    }
    let beside = |name: &str, about: &str, work: Workload| {
        Row::new(
            format!("lp-fig13-blur-{name}"),
            format!("libprefetch Fig. 13: blur of an image as large as memory beside {about}"),
            shared(),
            work,
        )
        .memory(64 * M)
        .point("lp-fig13", "blur", name, None)
        .on(&["nvme", "hdd"])
    };
    let mut summed = Workload::told(vec![command(0)]);
    let md5sum = argv(&["sh", "-c", "exec md5sum <'{data}/large'"]);
    for commands in [
        Some(&mut summed.commands),
        summed.hinted.as_mut(),
        summed.declared.as_mut(),
    ] {
        commands.expect("told").push(md5sum.clone());
    }
    rows.push(beside(
        "md5sum",
        "md5sum of a file of 128 MB",
        summed.needs(&[("md5sum", "coreutils")]),
    ));
    rows.push(beside(
        "hog",
        "a program that keeps a processor busy",
        Workload::told(vec![command(0)]).beside(argv(&[WORK, "hog"])),
    ));
    rows.push(beside(
        "walk",
        "a program that walks over 16 MB of memory",
        Workload::told(vec![command(0)]).beside(argv(&[WORK, "walk-memory", "16M"])),
    ));
    rows
}
