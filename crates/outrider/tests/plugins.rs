//! FA10: plug-ins for unchanged programs, `outrider graph check` and `outrider graph show`.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use support::{compile, outrider, program, repository, scratch};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One of the plug-ins in `tests/programs`.
fn plugin(name: &str) -> PathBuf {
    let include = format!("-I{}", repository().join("include").display());
    let flags = ["-O1", "-Wextra", "-Werror", "-shared", "-fPIC", &include];
    compile(&format!("plugin_{name}"), &format!("{name}.so"), &flags)
}

fn run(arguments: &[&str], plugin: &Path, command: &[&str]) -> Output {
    Command::new(outrider())
        .args(arguments)
        .arg("--plugin")
        .arg(plugin)
        .arg("--")
        .args(command)
        .output()
        .unwrap()
}

/// The entry of a graph in a JSON report.
fn graph(report: &Path, name: &str) -> Value {
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let graphs = report["graphs"].as_array().unwrap();
    let found = graphs.iter().find(|g| g["name"] == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {graphs:?}"))
        .clone()
}

#[test]
fn a_file_that_is_no_plugin_is_refused_before_the_program_runs() {
    let other = scratch().join("other.c");
    fs::write(&other, "const int outrider_plugin_7 = 1;\n").unwrap();
    let made = scratch().join("other.so");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&made, &other])
        .status();
    assert!(built.unwrap().success());
    let spaced = scratch().join("a plugin.so");
    fs::copy(plugin("entries"), &spaced).unwrap();
    let own = std::env::current_exe().unwrap();
    for (file, complaint) in [
        (Path::new("/nonexistent.so"), "No such file or directory"),
        (&scratch(), "not a regular file"),
        (Path::new("/etc/passwd"), "not an ELF file"),
        (&own, "exports no outrider_plugin_1"),
        (
            &made,
            "made for version 7 of the plug-in interface; accepted is version 1",
        ),
        (&spaced, "no path with a colon or white space"),
    ] {
        for command in [&["run"][..], &["graph", "check"]] {
            let out = run(command, file, &["echo", "ran"]);
            let error = text(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(error.contains(complaint), "{error}");
            assert!(error.contains(&*file.display().to_string()), "{error}");
            assert!(out.stdout.is_empty());
        }
    }
}

/// Trees of all kinds, with what GNU programs do to them.
#[test]
fn programs_do_the_same_with_a_plugin_for_their_directories() {
    let entries = plugin("entries");
    let root = scratch().join("trees");
    let from = root.join("from");
    for d in 0..6 {
        let deep = from.join(format!("d{d}/e/f/g"));
        fs::create_dir_all(&deep).unwrap();
        for i in 0..80 {
            fs::write(from.join(format!("d{d}/n{i}")), vec![0; i * 100]).unwrap();
            fs::write(deep.join(format!("m{i}")), b"x").unwrap();
        }
        std::os::unix::fs::symlink("n1", from.join(format!("d{d}/link"))).unwrap();
    }
    let report = root.join("report.json");
    let flag = format!("--report={}", report.display());
    let shell = |script: &str, with: bool| {
        let script = format!("cd {} && {script}", root.display());
        let out = if with {
            run(&["run", &flag], &entries, &["sh", "-c", &script])
        } else {
            Command::new("sh").args(["-c", &script]).output().unwrap()
        };
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    for script in [
        "du -a from",
        "du -s --apparent-size from",
        "find from -size +3k",
        "ls -lR --time-style=+ from",
        "rm -rf to && cp -a from to && diff -r from to && chmod -R u-w to/d1 && chmod -R u+w to && rm -r to && ls",
        "du -s from nonexistent",
    ] {
        assert_eq!(shell(script, true), shell(script, false), "{script}");
    }
    shell("du -a from", true);
    let g = graph(&report, "entries");
    // Everything is cached, so that looking ahead soon rests.
    assert!(g["hits"].as_u64() > Some(0), "{g}");
    assert_eq!(g["switched_off"], Value::Null, "{g}");
}

/// A directory that is listed in several pieces, sorted by fts, and whose entries outgrow their memory.
#[test]
fn a_directory_of_seventy_thousand_entries() {
    let dir = scratch().join("many");
    fs::create_dir_all(&dir).unwrap();
    for i in 0..70_000 {
        fs::File::create(dir.join(format!("an-entry-with-a-name-of-some-length-{i}"))).unwrap();
    }
    let report = scratch().join("many.json");
    let flag = format!("--report={}", report.display());
    let name = dir.to_str().unwrap();
    let out = run(&["run", &flag], &plugin("entries"), &["du", "-a", name]);
    let plain = Command::new("du").args(["-a", name]).output().unwrap();
    assert_eq!(out.stdout.len(), plain.stdout.len());
    assert!(out.stdout == plain.stdout && out.status.success());
    // The check follows every call; otherwise looking ahead rests, because everything is cached.
    let out = Command::new(outrider())
        .args(["run", &flag, "--plugin"])
        .arg(plugin("entries"))
        .args(["--", "du", "-a", name])
        .env("OUTRIDER_GRAPH", "check")
        .output()
        .unwrap();
    assert!(out.stdout == plain.stdout && out.status.success());
    let g = graph(&report, "entries");
    assert_eq!(g["calls"].as_u64(), Some(70_000), "{g}");
    assert_eq!(g["divergences"].as_u64(), Some(0), "{g}");
    assert!(g["foreseen"].as_u64() > Some(60), "{g}");
    fs::remove_dir_all(&dir).unwrap();
}

/// B16: a name without a slash or a dot is an installed plug-in's: what lies in the working directory, to which others may write, is loaded by a path only.
#[test]
fn nothing_is_loaded_from_the_working_directory() {
    let dir = scratch().join("plugin-here");
    fs::create_dir_all(&dir).unwrap();
    fs::copy(plugin("observer"), dir.join("here")).unwrap();
    let with = |name: &str| {
        let mut command = Command::new(outrider());
        let command = command.args(["run", "--plugin", name, "--", "true"]);
        command.current_dir(&dir).output().unwrap()
    };
    let by_name = with("here");
    let told = text(&by_name.stderr);
    assert_eq!(by_name.status.code(), Some(2), "{told}");
    assert!(told.contains("by a name with a slash"), "{told}");
    assert!(with("./here").status.success());
}

/// Every event, in its order; nothing of the plug-in's own calls, of other programs, or of forked children; errno stays the program's.
#[test]
fn an_observer_is_told_of_the_programs_calls() {
    let program = compile("observed", "observed", &["-O1"]);
    let dir = scratch().join("observed-in");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("one"), "abcd\n").unwrap();
    fs::write(dir.join("sub/x"), "").unwrap();
    let script = format!("cd {} && {}", dir.display(), program.display());
    let out = run(&["run"], &plugin("observer"), &["sh", "-c", &script]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let told = text(&out.stderr);
    let expected = "0 one 0\npread 8 at 2: 3\n0 none 2\n8 none 2\ndup 3 4\nclose 3\nclose 9\ndup 4 9\nclose 4\n\
                    listing 1 3\nentry x\nentry -\nrewound 1 3\nclosing 1 3\nclose 3\n14 new 0\n12 new 0\n";
    // After rewinddir the first entry is read again, whichever that is.
    let told: String = told.split_inclusive('\n').collect::<Vec<_>>().concat();
    assert_eq!(
        told.replacen("rewound 1 3\nentry x\n", "rewound 1 3\n", 1),
        expected
    );
}

/// A program that copies by a function of a shared library, which the plug-in `wrapper` wraps.
fn wrapped() -> PathBuf {
    let library = compile("wrapped_lib", "libwrapped.so", &["-O1", "-shared", "-fPIC"]);
    let [place, path] = support::where_it_is(&library);
    let flags = ["-O1", "-pthread", &place, "-lwrapped", &path];
    compile("wrapped_main", "wrapped", &flags)
}

/// FA10: a plug-in builds its graph once in each process, however often, in however many threads and in whichever forked child the function runs.
#[test]
fn a_graph_is_built_once_in_each_process() {
    let program = wrapped();
    let wrapper = plugin("wrapper");
    let at = |name: &str| scratch().join(name).display().to_string();
    let (from, starts) = (at("once-from"), at("once-starts"));
    let bytes: Vec<u8> = (0..64 * 4096u32).map(|i| (i % 253) as u8).collect();
    fs::write(&from, &bytes).unwrap();
    let report = scratch().join("once.json");
    // Two processes one after the other, which run the function 8 times each, and once more in a child.
    let script = "for to in \"$2\" \"$3\"; do \"$0\" \"$1\" \"$to\" 64 8 || exit; done";
    let command = [
        "sh",
        "-c",
        script,
        program.to_str().unwrap(),
        &from,
        &at("once-to-1"),
        &at("once-to-2"),
    ];
    let _ = fs::remove_file(&starts);
    let out = Command::new(outrider())
        .arg("run")
        .arg(format!("--report={}", report.display()))
        .arg("--plugin")
        .arg(&wrapper)
        .arg("--")
        .args(command)
        .env("STARTS", &starts)
        // With an engine of their own choice graphs pass some of the runs by where nothing waits for a device.
        .env("OUTRIDER_GRAPH", "threads")
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    for to in ["once-to-1", "once-to-2"] {
        assert!(fs::read(at(to)).unwrap() == bytes, "{to}");
    }
    let built = fs::read_to_string(&starts).unwrap();
    let mut processes: Vec<_> = built.lines().collect();
    processes.sort_unstable();
    processes.dedup();
    // The shell, and the program twice.
    assert_eq!((built.lines().count(), processes.len()), (3, 3), "{built}");
    let g = graph(&report, "copy_blocks");
    assert!(g["scopes"].as_u64() >= Some(16), "{g}");
    assert_eq!(g["unclaimed_effects"].as_u64(), Some(0), "{g}");
}

/// A wrapped function of a shared library with effects: its graph makes them ahead, and check finds the one that it doesn't make.
#[test]
fn check_finds_an_effect_that_would_be_wrong() {
    let program = wrapped();
    let wrapper = plugin("wrapper");
    let from = scratch().join("copied-from");
    let to = scratch().join("copied-to");
    let bytes: Vec<u8> = (0..256 * 4096u32).map(|i| (i % 251) as u8).collect();
    fs::write(&from, &bytes).unwrap();
    let command = |count: &'static str| -> Vec<&str> {
        vec![
            program.to_str().unwrap(),
            from.to_str().unwrap(),
            to.to_str().unwrap(),
            count,
        ]
    };
    let report = scratch().join("wrapper.json");
    let flag = format!("--report={}", report.display());
    let out = run(&["run", &flag], &wrapper, &command("256"));
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(fs::read(&to).unwrap() == bytes);
    let g = graph(&report, "copy_blocks");
    assert!(g["hits"].as_u64() > Some(100), "{g}");
    assert_eq!(g["unclaimed_effects"].as_u64(), Some(0), "{g}");

    let out = run(&["graph", "check"], &wrapper, &command("256"));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let row = |out: &Output| -> Vec<String> {
        let text = text(&out.stderr);
        let line = text.lines().find(|l| l.ends_with(" copy_blocks"));
        let words = line.unwrap_or_else(|| panic!("{text}")).split_whitespace();
        words.map(str::to_owned).collect()
    };
    assert_eq!(row(&out), ["1", "512", "512", "0", "0", "copy_blocks"]);
    assert!(fs::read(&to).unwrap() == bytes);

    // The graph foresees one block more than there are in the function's loop: the check makes nothing of it, and says so.
    let wrong = Command::new(outrider())
        .args(["graph", "check", "--plugin"])
        .arg(&wrapper)
        .arg("--")
        .args(command("200"))
        .env("ONE_TOO_MANY", "1")
        .output()
        .unwrap();
    assert_eq!(wrong.status.code(), Some(1), "{}", text(&wrong.stderr));
    assert_eq!(row(&wrong)[4], "1");
    let told = text(&wrong.stderr);
    assert!(
        told.contains("pwrite(")
            && told.contains("4096 bytes at 819200) would have been made ahead as certain"),
        "{told}"
    );
    assert!(
        told.contains("calls with effects would have been made that"),
        "{told}"
    );
    assert!(fs::read(&to).unwrap() == bytes[..200 * 4096]);

    // The program's own failure is told, and is the check's.
    let out = run(&["graph", "check"], &wrapper, &command("300"));
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stderr).contains("itself ended with 3"));
    let out = run(&["graph", "check"], &wrapper, &["true"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("nothing was checked"));
}

/// FA3: a function that makes other calls than its graph foresees gets what it asks for; the calls are counted, the graph switches itself off, and the
/// report has a line that says so.
#[test]
fn a_graph_that_is_not_followed_is_off_and_the_report_says_so() {
    let program = wrapped();
    let at = |name: &str| scratch().join(name).display().to_string();
    let (from, to) = (at("elsewhere-from"), at("elsewhere-to"));
    let bytes: Vec<u8> = (0..64 * 4096u32).map(|i| (i % 241) as u8).collect();
    fs::write(&from, &bytes).unwrap();
    let report = scratch().join("elsewhere.json");
    for engine in ["uring", "threads"] {
        let run = |flag: &str| {
            Command::new(outrider())
                .args(["run", flag, "--plugin"])
                .arg(plugin("wrapper"))
                .args(["--", program.to_str().unwrap(), &from, &to, "64"])
                .env("ELSEWHERE", "1")
                .env("OUTRIDER_GRAPH", engine)
                .output()
                .unwrap()
        };
        let out = run(&format!("--report={}", report.display()));
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert!(fs::read(&to).unwrap() == bytes, "{engine}");
        let why = "the function makes other calls than the graph foresees";
        let g = graph(&report, "copy_blocks");
        assert_eq!(g["switched_off"], why, "{g}");
        assert!(g["divergences"].as_u64() > Some(8), "{g}");
        assert_eq!(g["hits"].as_u64(), Some(0), "{g}");
        assert_eq!(g["unclaimed_effects"].as_u64(), Some(0), "{g}");

        let told = text(&run("--report").stderr);
        let line = told.lines().find(|l| l.contains(why));
        assert!(line.is_some_and(|l| l.contains("copy_blocks")), "{told}");
    }
}

/// A prediction that is wrong and harmless is shown in full, and is no failure.
#[test]
fn check_shows_what_was_foreseen_and_what_was_done() {
    let dir = scratch().join("twice");
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("file"), "").unwrap();
    let command = ["rm", "-r", "-v", dir.to_str().unwrap()];
    let out = run(&["graph", "check"], &plugin("entries"), &command);
    let told = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{told}");
    assert!(!dir.exists());
    assert!(
        told.contains(", flags 0x100) was foreseen, and the function"),
        "{told}"
    );
}

#[test]
fn show_prints_the_graphs_that_a_plugin_builds() {
    let both = |flags: &[&str]| {
        let out = Command::new(outrider())
            .args(["graph", "show"])
            .args(flags)
            .arg("--plugin")
            .arg(plugin("entries"))
            .arg("--plugin")
            .arg(plugin("wrapper"))
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let dot = both(&[]);
    assert!(dot.starts_with("digraph \"entries\" {\n"), "{dot}");
    assert!(dot.contains("digraph \"copy_blocks\" {\n"), "{dot}");
    assert_eq!(
        both(&["--text"]),
        "graph entries\n  next(i): one loop, no effects\ngraph copy_blocks\n  next(i): one loop\n"
    );
}

/// The plug-in in docs/guide/plugins.md, with the programs that it names.
#[test]
fn the_plugin_in_the_guide_works() {
    let guide = fs::read_to_string(repository().join("docs/guide/plugins.md")).unwrap();
    let (_, code) = guide.split_once("```c\n").unwrap();
    let (code, _) = code.split_once("```").unwrap();
    let source = scratch().join("guide.c");
    fs::write(&source, format!("#define _GNU_SOURCE\n{code}")).unwrap();
    let made = scratch().join("guide.so");
    let built = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"])
        .arg(repository().join("include"))
        .args([&source, Path::new("-o"), &made])
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let dir = scratch().join("guide-dir");
    fs::create_dir_all(&dir).unwrap();
    for i in 0..200 {
        fs::write(dir.join(format!("f{i}")), "").unwrap();
    }
    let report = scratch().join("guide.json");
    let flag = format!("--report={}", report.display());
    let dir = dir.to_str().unwrap();
    for command in [["du", "-a", dir], ["find", dir, "-ls"], ["ls", "-lU", dir]] {
        let with = run(&["run", &flag], &made, &command);
        let without = Command::new(command[0])
            .args(&command[1..])
            .output()
            .unwrap();
        assert!(
            with.stdout == without.stdout && with.status.success(),
            "{command:?}"
        );
        if command[0] == "du" {
            let g = graph(&report, "entries");
            assert!(g["hits"].as_u64() > Some(0), "{g}");
        }
    }
}

/// SPEC B11: where a filter is in force that kills for a call that only graphs make, a program with a plug-in runs without us; without one it is followed.
#[test]
fn filters_that_kill_for_what_graphs_call() {
    let under = |flags: &[&OsStr]| {
        let out = Command::new(program("deny"))
            .args(["pidfd_getfd=KILL", "--"])
            .arg(outrider())
            .arg("run")
            .args(flags)
            .args(["--", "true"])
            .output()
            .unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stderr).unwrap()
    };
    let entries = plugin("entries");
    let alone = under(&["--plugin".as_ref(), entries.as_os_str()]);
    assert!(
        alone.lines().count() == 1 && alone.contains("pidfd_getfd"),
        "{alone}"
    );
    assert_eq!(under(&[]), "");
}
