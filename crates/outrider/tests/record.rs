//! `outrider run --record`: the run is as it is otherwise, and what was written replays.

mod support;

use std::fs;
use std::path::Path;
use std::process::Output;

use support::{Disk, Random, fresh, outrider_run};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn replay(file: &Path) -> Output {
    Disk::lab().arg("replay").arg(file).output().unwrap()
}

/// Requests that a replay tells of.
fn requests(told: &str) -> usize {
    let words: Vec<&str> = told.split(' ').collect();
    let at = words.iter().position(|w| *w == "requests,").unwrap();
    words[at - 1].parse().unwrap()
}

#[test]
fn a_run_is_recorded_and_replays() {
    let dir = fresh("record");
    let Some(disk) = Disk::of("record", &dir) else {
        return;
    };
    let data = disk.dir.join("data");
    fs::write(&data, Random(3).bytes(12 << 20)).unwrap();
    disk.does("model", &["remote"]);
    let name = data.to_str().unwrap();
    let both = format!("cat {name}; head -c 1000000 {name}");
    let programs: [&[&str]; 3] = [&["cat", name], &["tac", name], &["sh", "-c", &both]];
    let recording = dir.join("a recording");
    let mut handed = 0;
    for program in programs {
        disk.does("cold", &[]);
        let plain = outrider_run(&dir, &[], program).output().unwrap();
        disk.does("cold", &[]);
        let flags = ["--record", recording.to_str().unwrap()];
        let out = outrider_run(&dir, &flags, program).output().unwrap();
        assert_eq!(out, plain, "{program:?}");
        let replayed = replay(&recording);
        let told = text(&replayed.stdout);
        assert!(replayed.status.success(), "{program:?}: {told}");
        let whole = fs::read_to_string(&recording).unwrap();
        let written = whole.lines().filter(|l| l.starts_with("> i ")).count();
        assert_eq!(requests(&told), written, "{told}");
        handed += written;
    }
    assert!(handed > 0);
}

#[test]
fn runs_without_a_service_are_recorded_or_refused() {
    let dir = fresh("record_nothing");
    let file = dir.join("a run");
    let named = file.to_str().unwrap();
    let record = |flags: &[&str]| {
        let flags: Vec<&str> = ["--record", named]
            .into_iter()
            .chain(flags.iter().copied())
            .collect();
        outrider_run(&dir, &flags, &["echo", "hello"])
            .output()
            .unwrap()
    };
    // Nothing is read that is not cached: no service is started.
    let out = record(&[]);
    assert_eq!(text(&out.stdout), "hello\n");
    let replayed = replay(&file);
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    assert_eq!(requests(&text(&replayed.stdout)), 0);
    // There can't be one, or the file can't be written.
    let same = format!("--report={named}");
    let nowhere = dir.join("not/there").display().to_string();
    let cases: [(&[&str], &str); 4] = [
        (
            &["--mode", "os-only"],
            "accepted are predict, predict+opt and fetchall+opt",
        ),
        (
            &["--mode", "app-only"],
            "accepted are predict, predict+opt and fetchall+opt",
        ),
        (&[&same], "accepted are two"),
        (&["--explain", &nowhere], "No such file"),
    ];
    for (flags, why) in cases {
        fs::write(&file, "kept").unwrap();
        let out = record(flags);
        let told = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{flags:?}: {told}");
        assert!(
            told.contains(why) && told.lines().count() == 1,
            "{flags:?}: {told}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept", "{flags:?}");
        assert!(out.stdout.is_empty());
    }
}
