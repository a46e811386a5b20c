//! `outrider-lab regret` through the built command.

use std::process::{Command, Output};

fn lab(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_outrider-lab"))
        .args(words)
        .output()
        .unwrap()
}

fn printed(words: &[&str]) -> String {
    let out = lab(words);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{words:?}: {told}");
    String::from_utf8(out.stdout).unwrap()
}

/// The ratio, the times, and the program of each line that shows one.
fn shown(table: &str) -> Vec<(f64, [&str; 2], &str)> {
    table
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [ratio, stock, "->", ours, program] => {
                    Some((ratio.parse().unwrap(), [stock, ours], program))
                }
                _ => None,
            }
        })
        .collect()
}

/// SPEC B12: what is found is found again, on however many threads, and each line makes the same program again, which takes the same time.
#[test]
fn what_is_found_is_made_again() {
    let words = [
        "regret",
        "--device",
        "sata",
        "--programs",
        "60",
        "--climb",
        "20",
        "--worst",
        "2",
        "--jobs",
    ];
    let on = |jobs: &str| printed(&[&words[..], &[jobs]].concat());
    let table = on("3");
    assert_eq!(table, on("1"));
    let found = shown(&table);
    assert_eq!(found.len(), 4, "{table}");
    // Who searches finds nothing better than what it had at first.
    assert!(
        found[2].0 >= found[0].0 && found[3].0 >= found[1].0,
        "{table}"
    );
    for (_, times, program) in found {
        let row = printed(&["simulate", "--device", "sata", program]);
        let row = row.lines().nth(1).unwrap();
        let columns: Vec<&str> = row.split_whitespace().collect();
        for (short, long) in times.iter().zip(&columns[1..]) {
            let (short, long): (f64, f64) = (short.parse().unwrap(), long.parse().unwrap());
            assert!((short - long).abs() < 1e-6, "{program}: {times:?}, {row}");
        }
    }
}

#[test]
fn what_is_wrong_is_told() {
    let cases: [(&[&str], &str); 4] = [
        (&["--programs", "0"], "--programs"),
        (
            &["--device", "floppy"],
            "--device floppy: no model 'floppy'",
        ),
        (&["--worst", "none"], "--worst"),
        (&["--config", "/not/there"], "/not/there: No such file"),
    ];
    for (words, why) in cases {
        let out = lab(&[&["regret"], words].concat());
        let told = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{words:?}: {told}");
        assert!(
            told.contains(why) && told.lines().count() == 1,
            "{words:?}: {told}"
        );
        assert!(out.stdout.is_empty());
    }
}
