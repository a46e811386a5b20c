//! Plain access patterns: the micro-benchmarks that every table of Outrider begins with, and the same blocks declared.

use super::plain::{read, row};
use super::{Memory, Point, Row};

/// The emulated devices that differ most.
const THREE: &[&str] = &["nvme", "remote", "hdd"];
/// Those on which many requests at once pay.
const TWO: &[&str] = &["nvme", "remote"];

/// The rows.
pub fn rows() -> Vec<Row> {
    let patterns = [
        (
            "seq",
            "sequential, 16K reads of 512 MB",
            "1x512M",
            "--pattern seq",
            THREE,
        ),
        (
            "stride-64k",
            "16K every 64K of 512 MB",
            "1x512M",
            "--pattern stride --stride 64K",
            THREE,
        ),
        (
            "stride-1m",
            "16K every 1 MB of 512 MB",
            "1x512M",
            "--pattern stride --stride 1M",
            TWO,
        ),
        (
            "skip-64k",
            "skip-sequential, 16K after 64K of 512 MB on average",
            "1x512M",
            "--pattern skip --stride 64K",
            THREE,
        ),
        (
            "near",
            "neighbourhoods of 128K in random order, 4K eight times in each of 128 MB",
            "1x128M",
            "--pattern near --block 4K --stride 128K",
            THREE,
        ),
        (
            "reverse",
            "from the end to the start, 16K reads of 256 MB",
            "1x256M",
            "--pattern reverse",
            THREE,
        ),
        (
            "perm",
            "random permutation, 16K over 256 MB",
            "1x256M",
            "--pattern permutation",
            THREE,
        ),
        (
            "thr2",
            "2 threads, one descriptor, sequential parts of 512 MB",
            "1x512M",
            "--threads 2 --shared",
            THREE,
        ),
        (
            "thr4",
            "4 threads, one descriptor, sequential parts of 512 MB",
            "1x512M",
            "--threads 4 --shared",
            THREE,
        ),
        (
            "mmap-stride",
            "memory map, 4K every 64K of 512 MB",
            "1x512M",
            "--mmap --block 4K --pattern stride --stride 64K",
            TWO,
        ),
    ];
    let plain = patterns.map(|(name, about, files, words, devices)| {
        let mut row = row(
            &format!("micro-{name}"),
            &format!("Micro: {about}"),
            files,
            words,
            devices,
        );
        row.short = match name {
            "seq" | "thr4" => THREE,
            "stride-64k" | "reverse" | "perm" => TWO,
            _ => &["nvme"],
        };
        row.point = Some(point(name));
        row
    });
    plain.into_iter().chain(large()).chain(known()).collect()
}

/// What the row shows in the report.
fn point(name: &str) -> Point {
    Point {
        figure: "micro",
        series: name.to_owned(),
        x: String::new(),
        paper: None,
    }
}

/// Some of them at twice the size, where a start weighs less; and in memory for a sixteenth.
fn large() -> Vec<Row> {
    let patterns = [
        (
            "seq-1g",
            "sequential, 16K reads of 1 GB",
            "1x1G",
            "seq",
            Memory::Free,
        ),
        (
            "seq-1g-group",
            "sequential, 16K reads of 1 GB, in memory for 64 MB",
            "1x1G",
            "seq",
            Memory::Bytes(64 << 20),
        ),
        (
            "stride-1m-1g",
            "16K every 1 MB of 1 GB",
            "1x1G",
            "stride --stride 1M",
            Memory::Free,
        ),
        (
            "reverse-512m",
            "from the end to the start, 16K reads of 512 MB",
            "1x512M",
            "reverse",
            Memory::Free,
        ),
        (
            "perm-512m",
            "random permutation, 16K over 512 MB",
            "1x512M",
            "permutation",
            Memory::Free,
        ),
    ];
    patterns
        .map(|(name, about, files, pattern, memory)| {
            let mut row = row(
                &format!("micro-{name}"),
                &format!("Micro: {about}"),
                files,
                &format!("--pattern {pattern}"),
                THREE,
            );
            row.memory = memory;
            row.point = Some(point(name));
            row
        })
        .into()
}

/// Known accesses: the program declares them, or asks the kernel for the next 64.
fn known() -> Vec<Row> {
    [
        (
            "random",
            "16K blocks over 512 MB in random order",
            "permutation",
            Memory::Free,
        ),
        (
            "random-quarter",
            "16K blocks over 512 MB in random order, in memory for a quarter",
            "permutation",
            Memory::Bytes(128 << 20),
        ),
        (
            "sequential",
            "16K blocks of 512 MB in order",
            "seq",
            Memory::Free,
        ),
    ]
    .map(|(name, about, pattern, memory)| {
        let words = format!("--pattern {pattern}");
        let mut row = row(
            &format!("lp-known-{name}"),
            &format!("libprefetch, known accesses: {about}"),
            "1x512M",
            &words,
            TWO,
        );
        row.short = TWO;
        row.memory = memory;
        row.point = Some(Point {
            figure: "lp-known",
            series: pattern.to_owned(),
            x: if memory == Memory::Free {
                "free"
            } else {
                "quarter"
            }
            .to_owned(),
            paper: None,
        });
        row.work.hinted = Some(vec![read(1, &format!("{words} --hints ahead"))]);
        row.work.declared = Some(vec![read(1, &format!("{words} --declare"))]);
        row
    })
    .into()
}
