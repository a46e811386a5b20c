//! FA9, FA10, FA12: calls of the C library that are offered to the scopes of their thread, in programs that are linked with the library.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use support::{compile, graph_count as count, outrider, program, repository, scratch};

/// Compiles one of `tests/programs` against the headers and the library beside the command under test.
fn linked(name: &str) -> PathBuf {
    let libraries = outrider().parent().unwrap().display().to_string();
    let include = repository().join("include").display().to_string();
    let path = format!("-Wl,-rpath,{libraries}");
    let (i, l) = (format!("-I{include}"), format!("-L{libraries}"));
    let flags = ["-O1", "-Wextra", "-pthread", &i, &l, "-loutrider", &path];
    compile(name, name, &flags)
}

/// 256 blocks, the i-th full of the byte i.
fn blocks() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let path = scratch().join("blocks");
        let bytes: Vec<u8> = (0..=255u8).flat_map(|b| [b; 4096]).collect();
        fs::write(&path, bytes).unwrap();
        // So that programs can have it read anew.
        fs::File::open(&path).unwrap().sync_all().unwrap();
        path
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn case(wrapper: &[&Path], name: &str, engine: &str) -> Output {
    let own = linked("interposed");
    let file = blocks();
    let mut words: Vec<&Path> = wrapper.to_vec();
    words.extend([own.as_path(), Path::new(name), file]);
    let out = Command::new(words[0])
        .args(&words[1..])
        .env("OUTRIDER_GRAPH", engine)
        .output()
        .unwrap();
    assert!(
        matches!(out.status.code(), Some(0 | 77)),
        "{name} on {engine}: {:?} {}",
        out.status,
        text(&out.stderr)
    );
    out
}

/// FA9: whatever an open's third argument is where it has no mode.
#[test]
fn directories_are_foreseen_to_be_opened() {
    for engine in ["uring", "threads"] {
        let report = text(&case(&[], "opens", engine).stdout);
        assert_eq!(count(&report, "opens", "not foreseen"), 0, "{report}");
        assert!(count(&report, "opens", "ahead") > 3, "{report}");
    }
}

/// FA12: what streams, syscall(2) and functions that no graph contains change is seen by the next call.
#[test]
fn changes_by_other_functions_are_seen() {
    for engine in ["uring", "threads"] {
        let report = text(&case(&[], "changes", engine).stdout);
        // Three in each run at least.
        assert!(count(&report, "scan", "ahead") > 3 * 12, "{report}");
    }
}

/// FA12: a thread that becomes another user, goes to another root or mounts gets what it gets alone; where effects were made before it
/// changed its umask, each was made once and the graph says why it is not followed any more.
#[test]
fn a_thread_changes_whose_calls_it_makes() {
    for engine in ["uring", "threads"] {
        for name in ["other-user", "other-root", "mounts"] {
            if case(&[], name, engine).status.code() == Some(77) {
                support::skip_unprivileged("a_thread_changes_whose_calls_it_makes", name);
            }
        }
        let report = text(&case(&[], "other-mask", engine).stdout);
        assert!(count(&report, "makes", "used") > 0, "{report}");
        let why = "changes its user, its limits or its paths between effects";
        assert!(report.contains(why), "{report}");
        assert!(!report.contains("EFFECTS NOT CALLED"), "{report}");
    }
}

/// FA12: what a sandbox forbids a thread, no other thread does for it.
#[test]
fn a_sandbox_holds() {
    for engine in ["uring", "threads"] {
        if case(&[], "confined", engine).status.code() == Some(77) {
            return support::skip_unprivileged("a_sandbox_holds", "no Landlock");
        }
    }
}

/// FA8: a program whose last thread ends within a scope ends.
#[test]
fn the_last_thread_ends_the_program() {
    // Our threads block all other signals.
    let patient: [&Path; 3] = ["timeout".as_ref(), "-sKILL".as_ref(), "60".as_ref()];
    for engine in ["uring", "threads"] {
        case(&patient, "last", engine);
    }
}

/// Without any memory the calls are made as ever.
#[test]
fn scopes_need_no_memory() {
    for engine in ["uring", "threads"] {
        case(&[], "memory", engine);
        case(&[], "memory-warm", engine);
    }
}

/// A plug-in's scopes are entered and left by a handler's calls, in which nothing may be allocated.
#[test]
fn a_handler_names_the_entries_of_a_directory() {
    let include = format!("-I{}", repository().join("include").display());
    let flags = ["-O1", "-shared", "-fPIC", &include];
    let plugin = compile("plugin_entries", "entries-of-handlers.so", &flags);
    let report = scratch().join("handlers.json");
    let flag = format!("--report={}", report.display());
    let own = outrider();
    let wrapper: [&Path; 6] = [
        &own,
        "run".as_ref(),
        flag.as_ref(),
        "--plugin".as_ref(),
        &plugin,
        "--".as_ref(),
    ];
    for engine in ["uring", "threads"] {
        case(&wrapper, "lists", engine);
        let told = fs::read_to_string(&report).unwrap();
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let graphs = told["graphs"].as_array().unwrap();
        let graph = graphs.iter().find(|g| g["name"] == "entries");
        assert!(graph.unwrap()["scopes"].as_u64() >= Some(20), "{told}");
    }
}

/// FA8: fork and vfork in the middle, threads that end within a scope, longjmp, scopes bound to descriptors that are closed and reused.
#[test]
fn scopes_may_be_left_in_any_way() {
    for (name, runs) in [("forks", 1), ("exits", 21), ("jumps", 2), ("bound", 8)] {
        for engine in ["uring", "threads"] {
            let report = text(&case(&[], name, engine).stdout);
            assert!(count(&report, "scan", "runs") >= runs, "{name}: {report}");
            // The file is cached: threads soon rest.
            assert!(count(&report, "scan", "used") > 10, "{name}: {report}");
            assert_eq!(
                count(&report, "scan", "not foreseen"),
                0,
                "{name}: {report}"
            );
        }
    }
}

/// Thousands of signals whose handlers read by themselves, on the file that is being looked ahead in and another: none of them allocates,
/// and those that leave by siglongjmp leave a program behind that goes on.
#[test]
fn handlers_read_while_their_thread_is_in_a_scope() {
    for engine in ["uring", "threads"] {
        let report = text(&case(&[], "storm", engine).stdout);
        assert!(count(&report, "scan", "used") > 100, "{report}");
        case(&[], "storm-out", engine);
    }
}

/// FA4: where the ring is refused, threads take over; where both are, the calls are made as ever.
#[test]
fn refused_rings_and_threads_are_no_failure() {
    let deny = program("deny");
    let rules = |r: &'static str| [deny.clone(), r.into(), "--".into()];
    let no_ring = rules("io_uring_setup=EPERM");
    let no_ring: Vec<&Path> = no_ring.iter().map(PathBuf::as_path).collect();
    let report = text(&case(&no_ring, "bound", "uring").stdout);
    assert!(count(&report, "scan", "used") > 10, "{report}");
    let nothing = rules("io_uring_setup=EPERM,clone:0&0x10000=EAGAIN,clone3=ENOSYS");
    let nothing: Vec<&Path> = nothing.iter().map(PathBuf::as_path).collect();
    let report = text(&case(&nothing, "bound", "uring").stdout);
    assert_eq!(count(&report, "scan", "used"), 0, "{report}");
}

/// What a directory holds: names, kinds and bytes.
fn tree(dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(tree(&path));
            all.push((path, None));
        } else {
            let bytes = fs::read(&path).unwrap();
            all.push((path, Some(bytes)));
        }
    }
    all.sort();
    all
}

/// FA12: random functions with effects, which leave their graphs where these allow it, beside a second graph that is bound to a
/// descriptor: results, errno, bytes and files are those of the serial run.
#[test]
fn random_functions_cannot_be_told_from_the_serial_ones() {
    let own = linked("interposed_random");
    let work = scratch().join("random");
    let (mut used, mut effects) = (0, 0);
    for seed in 1..=60 {
        let mut serial = None;
        for engine in ["serial", "uring", "threads"] {
            let _ = fs::remove_dir_all(&work);
            fs::create_dir_all(&work).unwrap();
            let out = Command::new(&own)
                .arg(&work)
                .arg(seed.to_string())
                .env("OUTRIDER_GRAPH", engine)
                .output()
                .unwrap();
            let report = text(&out.stderr);
            assert!(out.status.success(), "seed {seed} on {engine}: {report}");
            assert!(
                !report.contains("EFFECTS NOT CALLED"),
                "seed {seed}: {report}"
            );
            let seen = (text(&out.stdout), tree(&work));
            match &serial {
                None => serial = Some(seen),
                Some(expected) => {
                    let line = expected.0.lines().zip(seen.0.lines());
                    let first = line.enumerate().find(|(_, (a, b))| a != b);
                    assert!(expected == &seen, "seed {seed} on {engine}: {first:?}");
                    used += count(&report, "all", "used");
                    effects += count(&report, "beside", "used");
                }
            }
        }
    }
    // Otherwise nothing was shown.
    assert!(used > 6000 && effects > 2000, "{used}, {effects}");
}

/// FA3, FA8, FA12: whatever comes between effects that were made ahead, each is made as often as in the serial run and with the same outcome; what
/// a normal run can't make good, the check finds.
#[test]
fn effects_are_those_of_the_serial_run() {
    let own = linked("graph_effects");
    let work = scratch().join("effects");
    let run = |case: &str, engine: &str| {
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work).unwrap();
        let out = Command::new(&own)
            .args([Path::new(case), &work])
            .env("OUTRIDER_GRAPH", engine)
            .output()
            .unwrap();
        let report = text(&out.stderr);
        assert!(out.status.success(), "{case} on {engine}: {report}");
        ((text(&out.stdout), tree(&work)), report)
    };
    // A part of what the check says of it; and how many results are used at least, and at most.
    let cases = [
        ("once-jump", None, 4..6),
        ("once-close-range", None, 4..6),
        ("once-closefrom", None, 4..6),
        ("once-unshare", None, 4..6),
        ("once-removed", Some("may meet mkdirat"), 1..6),
        ("once-fork", Some("forks between effects"), 4..6),
        ("writes-plain", None, 1..6),
        ("writes-bytes", Some("other bytes than foreseen"), 1..6),
        ("writes-truncate", Some("a change of the file of"), 1..4),
        ("writes-write", Some("may meet pwrite"), 1..5),
        ("looks", Some("other bytes than foreseen"), 0..1),
        ("limited", None, 0..1),
        ("sync-stream", None, 0..1),
        ("sync-write", Some("may meet fsync"), 0..1),
        ("copies", None, 1..13),
        ("copies-changed", Some("other bytes than foreseen"), 1..13),
        ("stops", None, 0..1),
        ("plain", None, 1..7),
        ("jumps", None, 4..6),
        ("forgets", Some("a call without its path"), 0..1),
    ];
    for (case, problem, used) in cases {
        let (serial, _) = run(case, "serial");
        for engine in ["uring", "threads"] {
            let (seen, report) = run(case, engine);
            assert!(
                seen == serial,
                "{case} on {engine}: {seen:?}, not {serial:?}"
            );
            // Child and parent have reports of their own.
            let n = count(&report, "effects", "used");
            assert!(used.contains(&n), "{case} on {engine}: {report}");
            assert!(
                !report.contains("EFFECTS NOT"),
                "{case} on {engine}: {report}"
            );
        }
        let (seen, report) = run(case, "check");
        assert!(seen == serial, "{case}, checked: {seen:?}, not {serial:?}");
        let problems: Vec<_> = report.lines().skip(1).collect();
        match problem {
            Some(part) => assert!(report.contains(part), "{case}: {report}"),
            None => assert!(problems.is_empty(), "{case}: {report}"),
        }
    }
    // What graphs may not do.
    for (case, problem) in [
        ("moves", "was moved by someone else: write("),
        ("recursion", "at 0) may meet pwrite"),
        (
            "beside",
            "pread(3, 4096 bytes at 4096) may meet pwrite(3, 4096 bytes at 4096)",
        ),
        (
            "fails",
            "would have been made ahead as certain, and the function did",
        ),
    ] {
        let (seen, report) = run(case, "check");
        assert!(seen == run(case, "serial").0, "{case}, checked");
        assert!(report.contains(problem), "{case}: {report}");
    }
}

/// FA10: a function of a program that is linked anew, and whose source is not touched.
#[test]
fn the_linker_wraps_a_function() {
    let target = scratch().join("wrap");
    let out = Command::new("make")
        .arg("-C")
        .arg(repository().join("examples"))
        .arg(format!("OUT={}", target.display()))
        .arg(format!("LIBDIR={}", outrider().parent().unwrap().display()))
        .arg(format!("{}/sums", target.display()))
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let file = blocks();
    let sum = |arguments: &[&str], engine: &str| {
        let out = Command::new(target.join("sums"))
            .arg(file)
            .args(arguments)
            .env("OUTRIDER_GRAPH", engine)
            .env("SUMS_REPORT", "1")
            .output()
            .unwrap();
        assert!(out.status.success());
        (text(&out.stdout), text(&out.stderr))
    };
    let all = 4096 * (0..256).sum::<u64>();
    for (engine, used) in [("serial", false), ("uring", true), ("threads", true)] {
        let (total, report) = sum(&[], engine);
        assert_eq!(total.trim(), all.to_string(), "{engine}");
        assert_eq!(count(&report, "sum_blocks", "used") > 0, used, "{report}");
        assert_eq!(sum(&["3", "200", "5"], engine).0.trim(), "851968");
        // Beyond the end: the first short read is the function's own.
        assert_eq!(sum(&["3", "300", "5"], engine).0.trim(), "32768");
    }
}

/// FA8: a wrapped function that ends by an exception has left its graph, and so has one whose thread is cancelled.
#[test]
fn exceptions_and_cancellation_leave_a_wrapped_function() {
    let name = "exceptions_and_cancellation_leave_a_wrapped_function";
    if Command::new("c++").arg("--version").output().is_err() {
        return support::skip(name, "no C++ compiler");
    }
    let libraries = outrider().parent().unwrap().to_owned();
    let source = repository().join("tests/programs/wrapped_throw.cpp");
    let mut parts = Vec::new();
    for part in 1..=3 {
        let object = scratch().join(format!("throw-{part}.o"));
        let built = Command::new("c++")
            .args([
                "-std=c++17",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
                "-c",
            ])
            .arg(format!("-DPART={part}"))
            .arg("-I")
            .arg(repository().join("include"))
            .args([&source, Path::new("-o"), &object])
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", text(&built.stderr));
        parts.push(object);
    }
    let own = scratch().join("throw");
    let built = Command::new("c++")
        .args(&parts)
        .args(["-pthread", "-Wl,--wrap=walk", "-o"])
        .arg(&own)
        .arg(format!("-L{}", libraries.display()))
        .arg("-loutrider")
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    for engine in ["serial", "uring", "threads"] {
        let out = Command::new(&own)
            .arg(blocks())
            .env("OUTRIDER_GRAPH", engine)
            // Cargo's, by which a debug build would come first: that one aborts where somebody unwinds through it.
            .env_remove("LD_LIBRARY_PATH")
            .output()
            .unwrap();
        assert!(out.status.success(), "{engine}: {out:?}");
        let report = text(&out.stdout);
        assert!(count(&report, "walk", "runs") > 22, "{report}");
        assert_eq!(
            count(&report, "walk", "used") > 0,
            engine != "serial",
            "{report}"
        );
        // Nothing of what was called between the runs went to a graph.
        assert_eq!(count(&report, "walk", "not foreseen"), 0, "{report}");
    }
}
