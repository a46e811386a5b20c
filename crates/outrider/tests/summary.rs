//! `.ci/summary`, which decides whether a change passes, with a `cargo` that says what it is told to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// What a run of the script came to.
struct Summary {
    code: i32,
    lines: Vec<String>,
    /// The command lines that `cargo` got.
    calls: Vec<String>,
}

impl Summary {
    fn last(&self) -> &str {
        self.lines.last().map_or("", String::as_str)
    }

    fn flaky(&self) -> Vec<&str> {
        let names = self.lines.iter().filter_map(|l| l.strip_prefix("flaky: "));
        names.collect()
    }
}

/// Runs the script over `cargo test --workspace`, where `cargo` first runs `first`, and `again` (with the test's name in
/// `$name`) whenever it is to run one test alone.
fn summary(first: &str, again: &str) -> Summary {
    summary_in(&[], first, again)
}

/// The same with these variables, and without those that CI sets.
fn summary_in(environment: &[(&str, &str)], first: &str, again: &str) -> Summary {
    let dir = TempDir::new().unwrap();
    let cargo = dir.path().join("cargo");
    let calls = dir.path().join("calls");
    let script = format!(
        "#!/bin/bash\necho \"$*\" >>{}\nfor name; do :; done\nif [[ \" $* \" = *' --exact '* ]]; then\n{again}\nelse\n{first}\nfi\n",
        calls.display()
    );
    // Installed by another process: a child that another test has just forked would hold it open for writing, and
    // running it would fail with ETXTBSY.
    fs::write(dir.path().join("calls"), script).unwrap();
    let installed = Command::new("install")
        .arg("--mode=755")
        .args([&calls, &cargo])
        .status()
        .unwrap();
    assert!(installed.success());
    fs::write(&calls, "").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join(".ci/summary"))
        .arg(&cargo)
        .args(["test", "--workspace", "--no-fail-fast"])
        .env("TMPDIR", dir.path())
        .env_remove("CI")
        .env_remove("OUTRIDER_REQUIRE_ALL")
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let left: Vec<PathBuf> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| *p != cargo && *p != calls)
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    Summary {
        code: output.status.code().unwrap(),
        lines: text.lines().map(str::to_owned).collect(),
        calls: fs::read_to_string(&calls)
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect(),
    }
}

/// What a test binary prints, and cargo around it. Of `failed` all fail; `passed` is a number.
fn binary(target: &str, passed: usize, failed: &[&str]) -> String {
    let mut out = format!("     Running {target} (target/debug/deps/x-0123)\n\n");
    out += &format!("running {} tests\n", passed + failed.len());
    for n in 0..passed {
        out += &format!("test good::number_{n} ... ok\n");
    }
    for name in failed {
        out += &format!("test {name} ... FAILED\n");
    }
    let word = if failed.is_empty() { "ok" } else { "FAILED" };
    if !failed.is_empty() {
        out += "\nfailures:\n\n";
        for name in failed {
            // The first output of a test must not be taken for its name.
            out +=
                &format!("---- {name} stdout ----\n    it went wrong\nfailures:\n    no name\n\n");
        }
        out += "\nfailures:\n";
        for name in failed {
            out += &format!("    {name}\n");
        }
    }
    out += &format!(
        "\ntest result: {word}. {passed} passed; {} failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\n",
        failed.len()
    );
    if !failed.is_empty() {
        out += &format!("error: test failed, to rerun pass `-p some --test {target}`\n");
    }
    out
}

fn say(text: &str, code: i32) -> String {
    format!("cat <<'END OF OUTPUT'\n{text}END OF OUTPUT\nexit {code}\n")
}

#[test]
fn sums_and_skips_are_counted() {
    let mut text = binary("a", 3, &[]) + &binary("b", 2, &[]);
    text += "SKIP number_1: no such program\nSKIP a_case: not root\n";
    let s = summary(&say(&text, 0), "exit 9");
    assert_eq!(s.last(), "4 passed, 0 failed, 4 skipped");
    assert_eq!((s.code, s.calls.len()), (0, 1));

    // Nothing ran, and nothing failed: that is no success.
    let s = summary(&say("error: could not compile `x`\n", 101), "exit 0");
    assert_eq!(s.last(), "0 passed, 0 failed, 0 skipped");
    assert_eq!((s.code, s.calls.len()), (1, 1));

    // Everything passed, and the command failed all the same.
    let s = summary(&say(&binary("a", 3, &[]), 101), "exit 0");
    assert_eq!(s.last(), "3 passed, 1 failed, 1 skipped");
    assert_eq!((s.code, s.calls.len()), (1, 1));
}

#[test]
fn a_failed_test_gets_one_more_chance() {
    let first = say(
        &(binary("a", 3, &["deep::shaky", "broken"]) + &binary("b", 2, &["shaky"])),
        101,
    );
    let passes = say(&binary("again", 1, &[]), 0);
    let fails = say(&binary("again", 0, &["broken"]), 101);
    let s = summary(
        &first,
        &format!("if [ \"$name\" = broken ]; then\n{fails}\nfi\n{passes}"),
    );
    assert_eq!(s.flaky(), ["deep::shaky", "shaky"]);
    assert_eq!(s.last(), "7 passed, 1 failed, 2 skipped");
    assert_eq!(s.code, 1);
    assert_eq!(
        s.calls[1..],
        [
            "test --workspace --no-fail-fast -p some --test a -- --exact --test-threads=1 deep::shaky",
            "test --workspace --no-fail-fast -p some --test a -- --exact --test-threads=1 broken",
            "test --workspace --no-fail-fast -p some --test b -- --exact --test-threads=1 shaky",
        ]
    );
    assert!(
        s.lines.iter().any(|l| l == "    it went wrong"),
        "the first output is lost"
    );

    let s = summary(&say(&binary("a", 3, &["shaky"]), 101), &passes);
    assert_eq!(s.flaky(), ["shaky"]);
    assert_eq!(s.last(), "4 passed, 0 failed, 1 skipped");
    assert_eq!(s.code, 0);

    // A run that finds no such test shows nothing.
    let none = say(&binary("again", 0, &[]), 0).replace("1 ignored", "0 ignored");
    let s = summary(&say(&binary("a", 3, &["shaky"]), 101), &none);
    assert_eq!((s.flaky().len(), s.code), (0, 1));
    assert_eq!(s.last(), "3 passed, 1 failed, 1 skipped");
}

#[test]
fn what_is_no_accident_stays_a_failure() {
    let passes = say(&binary("again", 1, &[]), 0);

    // More than ten.
    let names: Vec<String> = (0..11).map(|n| format!("bad_{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let s = summary(&say(&binary("a", 1, &names), 101), &passes);
    assert_eq!(s.last(), "1 passed, 11 failed, 1 skipped");
    assert_eq!((s.code, s.calls.len()), (1, 1));

    // A binary that died without a result, beside a test that is only flaky.
    let dead = "     Running tests/c.rs (target/debug/deps/c-0123)\n\nrunning 2 tests\n\
        error: test failed, to rerun pass `-p some --test c`\n\nCaused by:\n  process didn't exit successfully (signal: 6)\n";
    let s = summary(&say(&(binary("a", 3, &["shaky"]) + dead), 101), &passes);
    assert_eq!(s.flaky(), ["shaky"]);
    assert_eq!(s.last(), "4 passed, 1 failed, 1 skipped");
    assert_eq!(s.code, 1);
}

/// What depends on who gets a processor when is not decided on a busy machine; CI is to be a machine that isn't.
#[test]
fn a_busy_machine_decides_nothing() {
    let first = say(&binary("a", 3, &["deep::shaky", "broken"]), 101);
    let busy = "BUSY deep::shaky: other work keeps the processors busy\n".to_owned();
    let busy = say(&(busy + &binary("again", 0, &["deep::shaky"])), 101);
    let again = format!(
        "if [ \"$name\" = broken ]; then\n{}\nfi\n{busy}",
        say(&binary("again", 1, &[]), 0)
    );
    let s = summary(&first, &again);
    assert_eq!(s.last(), "4 passed, 0 failed, 2 skipped");
    assert!(s.lines.iter().any(|l| l == "busy: deep::shaky"));
    assert_eq!((s.flaky(), s.code), (vec!["broken"], 0));
    for variable in ["CI", "OUTRIDER_REQUIRE_ALL"] {
        let s = summary_in(&[(variable, "1")], &first, &again);
        assert_eq!(s.last(), "4 passed, 1 failed, 1 skipped");
        assert_eq!(s.code, 1);
    }
    // One that doesn't say so has failed.
    let fails = say(&binary("again", 0, &["deep::shaky"]), 101);
    let s = summary(&first, &fails);
    assert_eq!(s.last(), "3 passed, 2 failed, 1 skipped");
}

/// Where nothing can be counted there is no sum, but one line that says why: before the tests run if awk is missing, after them if it fails.
#[test]
fn what_cannot_be_counted_is_no_sum() {
    let dir = TempDir::new().unwrap();
    let programs = ["bash", "cat", "mktemp", "rm", "sleep", "tee"];
    for name in programs {
        let found = Command::new("sh")
            .args(["-c", "command -v \"$1\"", "sh", name])
            .output()
            .unwrap();
        let found = String::from_utf8(found.stdout).unwrap();
        std::os::unix::fs::symlink(found.trim(), dir.path().join(name)).unwrap();
    }
    let path = dir.path().to_str().unwrap();
    let passes = say(&binary("a", 3, &[]), 0);
    let s = summary_in(&[("PATH", path)], &passes, "exit 9");
    assert_eq!(
        s.lines,
        ["summary: the tests can't be counted: awk is missing"]
    );
    assert_eq!((s.code, s.calls.len()), (2, 0));

    for (awk, why) in [
        ("/bin/false", "awk fails"),
        ("/bin/echo", "awk prints no number: -v"),
    ] {
        let _ = fs::remove_file(dir.path().join("awk"));
        std::os::unix::fs::symlink(awk, dir.path().join("awk")).unwrap();
        let s = summary_in(&[("PATH", path)], &passes, "exit 9");
        let expected = format!("summary: the tests can't be counted: {why}");
        assert_eq!(s.last(), expected);
        assert_eq!((s.code, s.calls.len()), (2, 1));
    }
}

/// Programs that the packages in `.ci/deps` have beside the one by which they are known, or that every Debian and Ubuntu has.
const BESIDE: &[&str] = &[
    // coreutils, dash, bash, dpkg and libc-bin
    "bash", "cat", "chroot", "cp", "dd", "dpkg-deb", "du", "env", "head", "install", "ldd",
    "mkfifo", "sh", "sleep", "timeout", "touch", "kill", // util-linux and mount
    "ipcrm", "ipcs", "prlimit", "taskset", "unshare", "umount",
    // binutils, gcc, g++, Go, e2fsprogs and Python
    "strip", "readelf", "c++", "go",
];

/// A test whose program no list of `.ci/deps` has would be skipped on every fresh machine, and nobody would know (SPEC B8).
#[test]
fn what_tests_run_is_installed_for_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let deps = fs::read_to_string(root.join(".ci/deps")).unwrap();
    let marks: Vec<&str> = deps
        .split([' ', '(', ')', '\n', '"'])
        .filter_map(|word| word.split_once(':'))
        .map(|(_, mark)| mark.rsplit('/').next().unwrap())
        .collect();
    let mut missing = Vec::new();
    let mut seen = 0;
    for tests in [
        "crates/outrider/tests",
        "crates/outrider/tests/support",
        "crates/outrider-lab/tests",
    ] {
        for file in fs::read_dir(root.join(tests)).unwrap().flatten() {
            // This file's `cargo` and what it says are its own.
            if file.path().extension().is_none_or(|e| e != "rs") || file.file_name() == "summary.rs"
            {
                continue;
            }
            let text = fs::read_to_string(file.path()).unwrap();
            for call in ["have(\"", "Command::new(\""] {
                for at in text.split(call).skip(1) {
                    let program = at.split('"').next().unwrap();
                    seen += 1;
                    let known = marks.contains(&program) || BESIDE.contains(&program);
                    // What lies below a directory of the test's is made by it.
                    if !known && !program.starts_with("/proc/") && !program.starts_with("./") {
                        missing.push(format!("{program}, in {}", file.path().display()));
                    }
                }
            }
        }
    }
    assert!(seen > 100, "{seen}");
    assert!(
        missing.is_empty(),
        "no package of .ci/deps has {missing:#?}"
    );
}
