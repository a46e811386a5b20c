//! `outrider-lab simulate` through the built command.

use std::fs;
use std::process::{Command, Output};

fn simulate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outrider-lab"))
        .arg("simulate")
        .args(words)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn printed(words: &[&str]) -> String {
    let out = simulate(words);
    assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

/// What a program takes as it is on a device, ns.
fn stock_nanos(program: &str, device: &str) -> u64 {
    let table = printed(&[program, "--device", device]);
    let row = table.lines().nth(1).unwrap();
    let seconds = row.split_whitespace().nth(1).unwrap();
    seconds.replace('.', "").parse().unwrap()
}

/// To the digit, on every machine: what stock Linux takes here follows from the model by hand (see `runs.rs` of outrider-sim).
#[test]
fn the_table_is_the_same_everywhere() {
    let words = [
        "gen:stride?size=64M&stride=1M&block=4K",
        "gen:perm?size=8M",
        "--device",
        "remote",
    ];
    let first = printed(&words);
    assert_eq!(first, printed(&words));
    let row = first.lines().nth(1).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[..2], [words[0], "0.032570332"], "{row}");
    let gain: f64 = columns[4].parse().unwrap();
    assert!(gain > 3.0, "{row}");
}

/// B10: the table's program on volumes of clouds. 64 reads that wait for each other take 300 µs longer each on gp3 than on remote, which lets in more than they are, and
/// 14,500 µs on a snapshot that nobody has touched; their bytes, 16 KiB and 63 times 4 KiB, are on the link for 0.8 of the time.
#[test]
fn volumes_of_clouds_take_what_the_model_says() {
    let remote = 32_570_332;
    let link = (16_384 - 13_107) + 63 * (4096 - 3276);
    for (device, longer) in [
        ("gp3", 300_000),
        ("cloud", 300_000),
        ("pd-balanced", 200_000),
        ("snapshot", 14_500_000),
        // One a millisecond: the first is let in at once, each later one a millisecond after the one before.
        ("gp3,iops=1000", 0),
    ] {
        let nanos = stock_nanos("gen:stride?size=64M&stride=1M&block=4K", device);
        let expected = match longer {
            0 => stock_nanos("gen:seq?size=4K&block=4K", device) + 63_000_000,
            longer => remote + 64 * longer - link,
        };
        assert_eq!(nanos, expected, "{device}");
    }
}

/// A trace that was printed is the program that it was made from.
#[test]
fn traces_are_read_from_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a trace");
    let name = file.to_str().unwrap();
    let made = "gen:parts?size=4M&threads=3&think=1000";
    fs::write(&file, printed(&[made, "--print"])).unwrap();
    let figures = |name: &str| {
        let table = printed(&[name, "--device", "sata,latency_us=70", "--memory", "2M"]);
        let row = table.lines().nth(1).unwrap().to_owned();
        row[row.find("  ").unwrap()..].trim().to_owned()
    };
    assert_eq!(figures(name), figures(made));
}

#[test]
fn what_is_wrong_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("trace");
    fs::write(&file, "file 1M\nopen 3 0\nread 3 0\n").unwrap();
    let name = file.to_str().unwrap();
    let settings = directory.path().join("settings");
    fs::write(&settings, "[window]\nmax = \"none\"\n").unwrap();
    let settings = settings.to_str().unwrap();
    let cases: [(&[&str], &str); 9] = [
        (&[], "<TRACE>"),
        (&[name], "line 3: `read 3 0`; accepted are"),
        (&["/not/there"], "/not/there: No such file"),
        (&["gen:all"], "gen:all: no program `all`; accepted are seq,"),
        (
            &["gen:seq?size=0"],
            "size=0; accepted is a whole number from 1",
        ),
        (
            &["gen:seq", "--device", "floppy"],
            "--device floppy: no model 'floppy'; accepted are nvme,",
        ),
        (
            &["gen:seq", "--neighbour", "0"],
            "accepted is a number of requests from 1 to 1024",
        ),
        (&["gen:seq", "--memory", "much"], "--memory"),
        (&["gen:seq", "--config", settings], "settings: "),
    ];
    for (words, why) in cases {
        let out = simulate(words);
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {told}");
        assert!(
            told.contains(why) && told.lines().count() == 1,
            "{words:?}: {told}"
        );
        assert!(out.stdout.is_empty());
    }
    assert!(printed(&["--list"]).contains("gen:perm"));
}
