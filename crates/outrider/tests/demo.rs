//! `make demo`, small: what it shows is so, by what was counted and never by time.

mod support;

use std::fs;
use std::process::Command;

use serde_json::Value;
use support::{eventually, fresh, have, repository, skip};

/// The demo runs each of its programs with the output that it has without Outrider, and on the emulated disk most of what programs read backwards, by strides, in many
/// streams of one file and at random all over a file is there before they ask for it.
#[test]
fn the_demo_shows_gains() {
    const NAME: &str = "the_demo_shows_gains";
    // And so many times what was waited for at least, in quarters. Of streams that begin within a file little is fetched before they have shown what it is worth, and these
    // are short.
    const PATTERNS: [(&str, u64); 4] = [
        ("reverse", 8),
        ("strided", 8),
        ("8 streams, one file", 1),
        ("random, dense", 8),
    ];
    let needed = [
        "python3",
        "perl",
        "sqlite3",
        "tac",
        "sort",
        "cmp",
        "sha256sum",
    ];
    if let Some(missing) = needed.into_iter().find(|program| !have(program)) {
        return skip(NAME, &format!("{missing} is not installed"));
    }
    let dir = fresh(NAME);
    let no_disk = eventually(|| {
        let output = Command::new("python3")
            .arg(repository().join("demo/run.py"))
            .args(["--rounds=1", "--scale=0.1", "--json=results.json"])
            .current_dir(&dir)
            .env("TMPDIR", &dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let results = fs::read(dir.join("results.json")).unwrap();
        let results: Value = serde_json::from_slice(&results).unwrap();
        let programs = results["programs"].as_array().unwrap();
        assert_eq!(programs.len(), 10, "{results}");
        for program in programs {
            assert_eq!(program["same_output"], true, "{program}");
        }
        if let Some(reason) = results["no_emulated_disk"].as_str() {
            return Ok(Some(reason.to_owned()));
        }
        for (pattern, quarters) in PATTERNS {
            let rows: Vec<&Value> = programs
                .iter()
                .filter(|p| p["pattern"] == pattern)
                .collect();
            assert!(!rows.is_empty(), "{pattern}: {results}");
            for row in rows {
                let count = |figure: &str| row["totals"][figure].as_u64().unwrap();
                // Who strides and doesn't think asks for all of a short file before the device can deliver it: it is on its way.
                let late = if pattern == "strided" {
                    0
                } else {
                    count("late_bytes")
                };
                let waited = late + count("miss_bytes");
                if 4 * count("used_bytes") <= quarters * waited {
                    return Err(format!("{pattern}: {row}"));
                }
            }
        }
        Ok(None)
    });
    if let Some(reason) = no_disk {
        skip(NAME, &format!("no emulated disk: {reason}"));
    }
}
