//! Declared access as a C program sees it: `include/outrider.h`, linked with `-loutrider` (SPEC LP1 to LP8, B11).
//!
//! The programs in `tests/c` check themselves and print what must not depend on how they are run. Each runs linked with the library
//! alone, in either order of fetching, and under `outrider run`, where the same library is preloaded as well.

mod support;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;
use support::{Outcome, Random, eventually, fresh, outrider, repository, scratch, supervise};

/// Compiles `tests/c/NAME.c` against the header and the library beside the command under test.
fn linked(name: &str) -> PathBuf {
    static LOCK: Mutex<()> = Mutex::new(());
    let _guard = LOCK.lock().unwrap_or_else(|e| e.into_inner());
    let dir = scratch().join("linked");
    fs::create_dir_all(&dir).unwrap();
    let target = dir.join(name);
    if target.exists() {
        return target;
    }
    let library = outrider().parent().unwrap().to_owned();
    let result = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-D_GNU_SOURCE", "-pthread", "-I"])
        .arg(repository().join("include"))
        .arg("-o")
        .arg(&target)
        .arg(repository().join("tests/c").join(format!("{name}.c")))
        .arg("-L")
        .arg(&library)
        .arg("-loutrider")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .output()
        .expect("a C compiler is needed");
    assert!(
        result.status.success(),
        "{name}.c: {}",
        String::from_utf8_lossy(&result.stderr)
    );
    target
}

/// A place with two files of so many bytes of noise, the same in every run.
fn place(name: &str, bytes: usize) -> PathBuf {
    let dir = fresh(name);
    for (file, seed) in [("one.dat", 1), ("two.dat", 2)] {
        fs::write(dir.join(file), Random(seed).bytes(bytes)).unwrap();
    }
    dir
}

fn run(dir: &Path, label: &str, argv: &[&str], env: &[(&str, &str)]) -> Outcome {
    let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
    let env: Vec<(String, String)> = env
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    let outcome = supervise(dir, label, dir, &argv, None, &env);
    assert_eq!(
        (outcome.status.as_str(), outcome.err().as_str()),
        ("exit 0", ""),
        "{label}: {argv:?}"
    );
    assert!(outcome.left.is_empty(), "{label} left {:?}", outcome.left);
    outcome
}

/// Runs a program in every way, expects the same output each time, and returns that and the report.
fn everywhere(name: &str, bytes: usize, args: &[&str]) -> (String, Value) {
    let program = linked(name);
    let program = program.to_str().unwrap();
    let dir = place(name, bytes);
    let argv = [&[program], args].concat();
    let first = run(&dir, "linked", &argv, &[]).out();
    assert!(!first.is_empty());
    for order in ["stream", "rounds"] {
        let again = run(&dir, order, &argv, &[("OUTRIDER_ORDER", order)]).out();
        assert_eq!(first, again, "{name}: {order}");
    }
    let command = outrider();
    let report = dir.join("report.json");
    let report_flag = format!("--report={}", report.display());
    let under = [
        &[command.to_str().unwrap(), "run", &report_flag, "--"],
        argv.as_slice(),
    ]
    .concat();
    assert_eq!(first, run(&dir, "run", &under, &[]).out(), "{name}: run");
    let report = serde_json::from_str(&fs::read_to_string(report).unwrap()).unwrap();
    (first, report)
}

const MIB: usize = 1 << 20;

/// LP1, LP3, LP8: the plain form. What was declared is cached after a while, and nothing is predicted on top of it.
#[test]
fn declared_ranges_are_fetched() {
    let (_, report) = everywhere("declare", 16 * MIB, &["one.dat", "16384", "60"]);
    let declared = &report["declared"];
    let bytes = 1024 * 60 / 100 * 16384;
    assert_eq!(declared["declared_bytes"], bytes, "{report:#}");
    assert_eq!(declared["diverged_reads"], 0, "{report:#}");
    // From the declaration on the service leaves the file alone; at open it fetches 2 MiB of optimism.
    let predicted = report["totals"]["prefetched_bytes"].as_u64().unwrap();
    assert!(predicted <= 2 << 20, "{report:#}");
    assert_eq!(report["totals"]["miss_bytes"], 0, "{report:#}");
}

/// LP8, CP13: in a mode in which nothing is foreseen lists are fetched and told of all the same, and nothing is said of reads, which nobody counts.
#[test]
fn lists_are_told_of_where_nothing_is_foreseen() {
    let program = linked("declare");
    let argv = [program.to_str().unwrap(), "one.dat", "16384", "60"];
    let none = ["true"];
    for mode in ["app-only", "os-only"] {
        let dir = place("alone", 16 * MIB);
        for (argv, bytes) in [(&argv[..], 1024 * 60 / 100 * 16384), (&none, 0)] {
            let run = |report: &str| {
                let mut command = Command::new(outrider());
                command.args(["run", "--mode", mode, report, "--"]);
                let output = command.args(argv).current_dir(&dir).output().unwrap();
                assert!(output.status.success(), "{output:?}");
                String::from_utf8(output.stderr).unwrap().replace('\n', " ")
            };
            let said = run("--report");
            let declared = match bytes {
                0 => "no program declared what it reads",
                _ => "that programs declared",
            };
            let parts = ["no reads are counted", declared];
            assert!(parts.iter().all(|p| said.contains(p)), "{said}");
            assert!(!said.contains("missed"), "{said}");
            assert_eq!(run("--report=r.json"), "");
            let report = fs::read_to_string(dir.join("r.json")).unwrap();
            let report: Value = serde_json::from_str(&report).unwrap();
            assert_eq!(report["declared"]["declared_bytes"], bytes, "{report:#}");
            assert_eq!(report["totals"], serde_json::json!({}), "{report:#}");
            assert!(report.get("waited_us").is_none(), "{report:#}");
        }
    }
}

/// LP2, B1: a function that tells nothing of use, for ever, ends the list, and keeps no read from returning.
#[test]
fn functions_that_tell_nothing_end_their_list() {
    let (out, _) = everywhere("useless", MIB, &["one.dat"]);
    assert_eq!(out, "ended\n");
}

/// LP4, CP9: of lists nothing is fetched where the budget is nothing, and a small one doesn't keep them from it.
#[test]
fn a_budget_of_nothing_is_one_for_lists() {
    let program = linked("declare");
    let argv = [program.to_str().unwrap(), "one.dat", "16384", "60"];
    for (budget, mode, fetches) in [
        ("0", "predict+opt", false),
        ("4095", "predict+opt", false),
        ("0", "app-only", false),
        ("4096", "predict+opt", true),
    ] {
        let dir = place("nothing", 16 * MIB);
        let mut command = Command::new(outrider());
        command.args(["run", "--report=r.json", "--budget", budget, "--mode", mode]);
        // It looks for what is not fetched, and ends.
        let output = command.arg("--").args(argv).current_dir(&dir).output();
        assert!(output.unwrap().status.code().is_some());
        let report = fs::read_to_string(dir.join("r.json")).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        let declared = &report["declared"];
        assert!(declared["declared_bytes"].as_u64() > Some(0), "{report:#}");
        assert_eq!(
            declared["fetched_bytes"].as_u64() > Some(0),
            fetches,
            "{budget} {mode}: {report:#}"
        );
    }
}

/// CP9, LP4: lists and the service have one budget. Whoever comes later has what is left: a list a megabyte at least, the service half.
#[test]
fn lists_share_the_budget_of_the_service() {
    const BUDGET: u64 = 32 << 20;
    let program = linked("budget");
    let hinted = (24 << 20).to_string();
    for order in ["stream", "rounds"] {
        for (first, most) in [("hint", BUDGET), ("list", BUDGET + BUDGET / 2)] {
            let dir = place("budget", 48 * MIB);
            let mut command = Command::new(outrider());
            command.args(["run", "--budget", &BUDGET.to_string(), "--"]);
            command.arg(&program);
            command.args(["one.dat", "two.dat", &hinted, first]);
            let output = command.env("OUTRIDER_ORDER", order).current_dir(&dir);
            let output = output.output().unwrap();
            assert!(output.status.success(), "{order}: {output:?}");
            let out = String::from_utf8(output.stdout).unwrap();
            let pages: Vec<u64> = out.split_whitespace().flat_map(str::parse).collect();
            let [of_list, of_hint] = pages[..] else {
                panic!("{order}: {out}");
            };
            // Either goes on beside the other, but only so far. Kernels read a page or two more than they are asked for.
            let what = format!("{order}, {first} first: {out}");
            assert!(of_list >= 256 && of_hint >= 256, "{what}");
            assert!((of_list + of_hint) * 4096 <= most + (1 << 20), "{what}");
        }
    }
}

/// LP5, LP10: two processes that know nothing of one another get parts of the memory that both are in of the same size, within a fifth, and that is half of
/// what one alone gets. What counts is the buffer of each round, as `OUTRIDER_EXPLAIN` tells it.
#[test]
fn processes_share_memory_fairly() {
    let group = match support::Group::new(32 << 20) {
        Ok(group) => group,
        Err(why) => return support::skip("processes_share_memory_fairly", &why),
    };
    let dir = fresh("share");
    for file in ["one.dat", "two.dat"] {
        let page = |i: u64| [&(i * 4096).to_le_bytes()[..], &[0; 4088]].concat();
        fs::write(
            dir.join(file),
            (0..16384).flat_map(page).collect::<Vec<u8>>(),
        )
        .unwrap();
    }
    // The middle one of the buffers of each process that reads one of `files`, bytes.
    let buffers = |files: &[&str]| -> Vec<u64> {
        let running: Vec<_> = files
            .iter()
            .map(|file| {
                let explained = dir.join(format!("{file}.explained"));
                fs::write(&explained, "").unwrap();
                let mut program = Command::new(linked("share"));
                program.args([file, "40000"]).current_dir(&dir);
                group
                    .start(&program)
                    .env("OUTRIDER_ORDER", "rounds")
                    .env("OUTRIDER_EXPLAIN", explained)
                    .stdin(std::process::Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        // All are there, and begin together when their inputs end.
        let ended = running.into_iter().map(|mut r| (r.stdin.take(), r));
        let mut running: Vec<_> = ended.collect();
        std::thread::sleep(std::time::Duration::from_millis(200));
        running.iter_mut().for_each(|(input, _)| drop(input.take()));
        for (_, program) in &mut running {
            assert!(program.wait().unwrap().success());
        }
        let buffer = |file: &&str| {
            let text = fs::read_to_string(dir.join(format!("{file}.explained"))).unwrap();
            let rounds = text.lines().filter(|l| l.contains(" round of entries "));
            let memory = rounds.filter_map(|l| l.rsplit_once("memory ")?.1.parse().ok());
            let mut memory: Vec<u64> = memory.collect();
            memory.sort_unstable();
            assert!(memory.len() >= 4, "{file}: {memory:?}");
            memory[memory.len() / 2]
        };
        files.iter().map(buffer).collect()
    };
    let alone = buffers(&["one.dat"])[0];
    // A run is a handful of rounds, and a busy machine lets one begin late.
    eventually(|| {
        let both = buffers(&["one.dat", "two.dat"]);
        let (least, most) = (both[0].min(both[1]), both[0].max(both[1]));
        let fair = least * 5 >= most * 4;
        match fair && least * 10 >= alone * 3 && most * 10 <= alone * 6 {
            true => Ok(()),
            false => Err(format!("{both:?} of {alone}")),
        }
    });
}

/// LP3, LP6: an entry costs one call that asks for it and one that gives it up; waking, waiting and looking are shared by many.
#[test]
fn entries_share_their_calls() {
    if !support::have("strace") {
        return support::skip("entries_share_their_calls", "strace is not installed");
    }
    const ENTRIES: u64 = 4096;
    let dir = place("calls", ENTRIES as usize * 8192);
    let (trace, report) = (dir.join("trace"), dir.join("report.json"));
    let status = Command::new("strace")
        .args(["-f", "-qq", "-c", "-o"])
        .arg(&trace)
        .arg(outrider())
        .args(["run", "--budget=8M"])
        .arg(format!("--report={}", report.display()))
        .arg("--")
        .arg(linked("again"))
        // A busy machine keeps the fetcher from the processor: what the program reads before it comes costs no calls.
        .args(["one.dat", "8192", "1", "64"])
        .env("OUTRIDER_ORDER", "stream")
        .current_dir(&dir)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let table = fs::read_to_string(&trace).unwrap();
    let calls = |name: &str| -> u64 {
        table
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>())
            .find(|words| words.last() == Some(&name))
            .map_or(0, |words| words[3].parse().unwrap())
    };
    let advice = calls("fadvise64");
    let report: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
    let entries = |figure: &str| report["declared"][figure].as_u64().unwrap() / 8192;
    let (cached, fetched) = (entries("cached_bytes"), entries("fetched_bytes"));
    // On a busy machine the program is there first now and then, and the kernel takes pages: what was fetched is counted by.
    assert!(cached + fetched >= ENTRIES / 4, "{report:#}");
    let wanted = fetched + entries("dropped_bytes");
    assert!(
        (fetched..=wanted * 21 / 20 + 64).contains(&advice),
        "{advice} fadvise64 for {wanted} entries asked for and given up:\n{table}"
    );
    for name in ["futex", "madvise", "mmap", "munmap", "fstat"] {
        let n = calls(name);
        assert!(
            n < ENTRIES / 4,
            "{n} {name} for {ENTRIES} entries:\n{table}"
        );
    }
}

/// LP3, B16: what is to be known of a device is looked up once, and not for each of the files that lie there.
#[test]
fn files_of_a_device_are_looked_up_together() {
    const NAME: &str = "files_of_a_device_are_looked_up_together";
    if !support::have("strace") {
        return support::skip(NAME, "strace is not installed");
    }
    const FILES: usize = 200;
    let dir = fresh(NAME);
    for i in 0..FILES {
        fs::write(dir.join(format!("f{i}")), Random(i as u64).bytes(4096)).unwrap();
    }
    let trace = dir.join("trace");
    let files = FILES.to_string();
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=open,openat", "-o"]);
    command.arg(&trace).arg(linked("files")).args([".", &files]);
    let output = command.current_dir(&dir).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = fs::read_to_string(&trace).unwrap();
    let opened = |part: &str| log.lines().filter(|l| l.contains(part)).count();
    // The files themselves are opened anew.
    let files = opened("/proc/self/fd/").max(opened("/proc/thread-self/fd/"));
    assert!(files >= FILES, "{files} files opened");
    let looks = opened("mountinfo");
    assert!(looks < FILES / 8, "{looks} for {FILES} files");
}

/// LP3, LP6: with less memory than the list needs, what is needed last is given up, in either order of fetching, and read anew.
#[test]
fn short_of_memory() {
    let program = linked("again");
    let program = program.to_str().unwrap();
    let dir = place("short", 16 * MIB);
    let argv = [program, "one.dat", "4096", "3"];
    let truth = run(&dir, "linked", &argv, &[]).out();
    let command = outrider();
    for order in ["stream", "rounds"] {
        let report = dir.join("report.json");
        let explain = dir.join("explain");
        let report_flag = format!("--report={}", report.display());
        let under = [
            &[
                command.to_str().unwrap(),
                "run",
                "--budget=6M",
                &report_flag,
                "--explain",
                explain.to_str().unwrap(),
                "--",
            ],
            &argv[..],
        ]
        .concat();
        let env = [("OUTRIDER_ORDER", order), ("OUTRIDER_INFILL", "0")];
        assert_eq!(truth, run(&dir, order, &under, &env).out(), "{order}");
        let report: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
        let figure = |name: &str| report["declared"][name].as_u64().unwrap();
        assert_eq!(figure("declared_bytes"), 48 << 20);
        assert_eq!(figure("diverged_reads"), 0);
        // All of it once at least, and never more often than it is read.
        let fetched = figure("fetched_bytes");
        assert!((14 << 20..=48 << 20).contains(&fetched), "{report:#}");
        assert!(figure("dropped_bytes") > 4 << 20, "{report:#}");
        let text = fs::read_to_string(&explain).unwrap();
        assert!(text.contains(" evict inode "), "{order}");
        // What was skipped as cached: of each round, or of each buffer that was used up.
        let what = match order {
            "rounds" => "round of entries ",
            _ => "window until entry ",
        };
        let told = text.lines().filter(|l| l.contains(what));
        let cached: Vec<u64> = told.map(|l| number(l, "cached ")).collect();
        assert!(!cached.is_empty(), "{order}");
        assert!(
            order == "rounds" || cached.iter().sum::<u64>() > 1 << 20,
            "{cached:?}"
        );
    }
}

/// LP3, LP6: where one list takes the place of another, what is held and the new one doesn't want makes room: the stream doesn't wait for it.
#[test]
fn lists_take_the_place_of_others() {
    let dir = place("anew", 16 * MIB);
    let program = linked("anew");
    for order in ["stream", "rounds"] {
        let output = Command::new(outrider())
            .args(["run", "--budget=6M", "--"])
            .arg(&program)
            .arg("one.dat")
            .env("OUTRIDER_ORDER", order)
            .current_dir(&dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "{order}: {output:?}");
        let told = String::from_utf8(output.stderr).unwrap();
        let fetched: Vec<u64> = told.lines().map(|l| l.parse().unwrap()).collect();
        // Either half once at least, but for what the program reads itself at its start.
        assert!(
            fetched.len() == 2 && fetched.iter().all(|f| *f > 7 << 20),
            "{order}: {fetched:?}"
        );
    }
}

/// LP4, LP5: pages that are gone while memory lies unused are fetched again, and the buffer is not halved: nobody is short of memory.
#[test]
fn losses_without_need() {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
    let kib = |name| number(meminfo.lines().find(|l| l.starts_with(name)).unwrap(), name);
    let (all, free) = (kib("MemTotal:"), kib("MemFree:"));
    if kib("MemAvailable:") < all / 4 {
        return support::skip("losses_without_need", "this machine's memory is in use");
    }
    if free < all / 8 {
        // The page cache has it: it gives back what somebody takes.
        drop(vec![1u8; (all as usize / 6) << 10]);
    }
    let dir = place("lost", 16 * MIB);
    let explain = dir.join("explain");
    let status = Command::new(outrider())
        .args(["run", "--budget=6M", "--explain"])
        .arg(&explain)
        .arg("--")
        .arg(linked("lost"))
        .arg("one.dat")
        .env("OUTRIDER_ORDER", "rounds")
        .current_dir(&dir)
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let text = fs::read_to_string(&explain).unwrap();
    assert!(text.contains("memory lies unused"), "{text}");
    // Halved buffers are told of.
    assert!(!text.contains("memory is short"), "{text}");
}

/// LP5, LP6: when memory becomes less in the middle of a list that doesn't fit in it, what is needed last is given up, and the stream goes on.
#[test]
fn memory_that_shrinks() {
    const ENTRIES: u64 = 60_000;
    let group = match support::Group::new(40 << 20) {
        Ok(group) => group,
        Err(why) => return support::skip("memory_that_shrinks", &why),
    };
    let dir = place("shrinks", 40 * MIB);
    let mut program = Command::new(linked("shrink"));
    program
        .args(["one.dat", &ENTRIES.to_string(), &(10 << 20).to_string()])
        .current_dir(&dir);
    let out = group
        .start(&program)
        .env("OUTRIDER_ORDER", "stream")
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
    let missed: u64 = String::from_utf8_lossy(&out.stdout).trim().parse().unwrap();
    // A stream that stands still leaves a third of the pages to the program.
    assert!(missed * 10 < ENTRIES / 3, "{missed} of {}", ENTRIES / 3);
}

/// LP4, LP6: what a program writes while it reads a list that doesn't fit in memory is written back early and given up once it is clean, and nothing of it is
/// lost; where the list fits it is left to the kernel.
#[test]
fn written_pages_make_room() {
    for order in ["stream", "rounds"] {
        for (limit, exceeds) in [(24 << 20, true), (512 << 20, false)] {
            let group = match support::Group::new(limit) {
                Ok(group) => group,
                Err(why) => return support::skip("written_pages_make_room", &why),
            };
            let dir = place("behind", 80 * MIB);
            let explain = dir.join("explain");
            let mut program = Command::new(outrider());
            program
                .args(["run", "--explain"])
                .arg(&explain)
                .arg("--")
                .arg(linked("behind"))
                .args(["one.dat", "10000"])
                .current_dir(&dir);
            let half = 40 * MIB as u64;
            // The kernel may take what is clean before we do.
            support::eventually(|| {
                let out = group
                    .start(&program)
                    .env("OUTRIDER_ORDER", order)
                    .output()
                    .unwrap();
                assert!(out.status.success(), "{out:?}");
                assert_eq!(String::from_utf8_lossy(&out.stdout), "all there\n");
                let text = fs::read_to_string(&explain).unwrap();
                let begun = text.lines().filter(|l| l.contains(" write back inode "));
                let given_up: Vec<u64> = text
                    .lines()
                    .filter(|l| l.ends_with("written back"))
                    .map(|l| number(l, " at "))
                    .collect();
                assert_eq!(begun.count() > 0, exceeds, "{order}");
                assert!(given_up.iter().all(|at| *at >= half), "{order}");
                assert!(exceeds || given_up.is_empty(), "{order}");
                match given_up.is_empty() {
                    true if exceeds => Err(format!("{order}: nothing was given up")),
                    _ => Ok(()),
                }
            });
        }
    }
}

/// LP1, LP2: clients, callbacks, marks, reads that are ignored or stray, lists that are replaced.
#[test]
fn callbacks_extend_the_list() {
    let (_, report) = everywhere("clients", 8 * MIB, &["one.dat"]);
    assert!(report["declared"]["callbacks"].as_u64() > Some(0));
}

/// LP1, LP2: the pull form, over two files, read by every call that reads.
#[test]
fn pulled_lists_are_followed() {
    everywhere("pulled", 8 * MIB, &["one.dat", "two.dat"]);
}

/// LP1, LP8: misuse has the errors of the header file, and changes nothing.
#[test]
fn misuse_is_told() {
    everywhere("misuse", 16 * MIB, &["one.dat"]);
}

/// B11: wrong, stale and hostile lists cost time only.
#[test]
fn hostile_lists_cost_time_only() {
    everywhere("hostile", 8 * MIB, &["one.dat"]);
}

/// Processes, signals and threads during a round.
#[test]
fn processes_signals_and_cancellation() {
    everywhere("processes", 8 * MIB, &["one.dat"]);
}

/// B1, LP3: handlers that come while the program waits for a sweep read the same files, neither wait for themselves nor get other bytes.
#[test]
fn handlers_read_during_a_sweep() {
    everywhere("handlers", 8 * MIB, &["one.dat"]);
}

/// B1: handlers that interrupt malloc(3) read what another thread declares; nothing of the library waits for the program's allocator.
#[test]
fn handlers_read_within_malloc() {
    everywhere("malloc", MIB, &["one.dat"]);
}

/// B1: the library has descriptors in a table of its own, and closing one of them is no close of the program's.
#[test]
fn numbers_of_another_table_mean_nothing() {
    everywhere("numbers", MIB, &["one.dat", "two.dat"]);
}

/// S1, B16: before a thread of the program gives up what it may do, in whatever way, the library's threads end, which would keep it; where the C library has
/// all threads give it up, at once, they do as well.
#[test]
fn nobody_keeps_what_is_given_up() {
    let (said, _) = everywhere("narrowed", 8 * MIB, &["one.dat"]);
    let mut lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.pop(), Some("setresuid: 0 of some"), "{said}");
    assert!(lines.iter().all(|line| line.ends_with(": 0")), "{said}");
    assert_eq!(lines.len(), 18, "{said}");
}

/// Locks, descriptors, positions and numbers are what they would be.
#[test]
fn nothing_is_noticed() {
    everywhere("transparent", 16 * MIB, &["one.dat"]);
}

/// B1: without memory, descriptors or threads calls succeed, or say ENOMEM, and the program reads on.
#[test]
fn poverty_is_no_failure() {
    everywhere("poor", 4 * MIB, &["one.dat"]);
}

/// A million entries cost at most 24 bytes each, and a fetcher with nothing to do sleeps.
#[test]
fn idle_lists_cost_nothing() {
    everywhere("idle", 8 * MIB, &["one.dat"]);
}

/// Numbers after `word` in a line.
fn number(line: &str, word: &str) -> u64 {
    let rest = line.split(word).nth(1).unwrap_or_else(|| panic!("{line}"));
    let rest = rest.trim_start();
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..digits].parse().unwrap_or_else(|_| panic!("{line}"))
}

/// LP3, LP7: `--explain` shows rounds that are sorted by place, go back at most once each, and read through gaps as they were told.
#[test]
fn rounds_are_explained() {
    let program = linked("declare");
    let dir = place("explain", 16 * MIB);
    let command = outrider();
    for (infill, gaps) in [("0", false), ("64K", true)] {
        let explain = dir.join(format!("explain-{infill}"));
        let report = dir.join("report.json");
        let argv = [
            command.to_str().unwrap(),
            "run",
            &format!("--report={}", report.display()),
            "--explain",
            explain.to_str().unwrap(),
            "--",
            program.to_str().unwrap(),
            "one.dat",
            "4096",
            "50",
        ];
        let env = [("OUTRIDER_ORDER", "rounds"), ("OUTRIDER_INFILL", infill)];
        run(&dir, "explain", &argv, &env);
        let text = fs::read_to_string(&explain).unwrap();
        let report: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
        let mut rounds = 0;
        let mut places: Vec<u64> = Vec::new();
        let turns = |places: &[u64]| places.windows(2).filter(|w| w[1] < w[0]).count();
        let pid = text.split(' ').next().unwrap().to_owned();
        for line in text.lines() {
            assert!(line.starts_with(&format!("{pid} ")), "{line}");
            if line.contains(" round of entries ") {
                assert!(turns(&places) <= 1, "{places:?}");
                places.clear();
                rounds += 1;
            } else if line.contains(" fetch inode ") {
                places.push(number(line, "physical"));
                assert!(number(line, "length") > 0);
            }
        }
        assert!(turns(&places) <= 1, "{places:?}");
        assert!(rounds > 0, "{text}");
        assert_eq!(report["declared"]["rounds"], rounds, "{report:#}");
        let read_through = report["declared"]["infill_bytes"].as_u64().unwrap();
        assert_eq!(read_through > 0, gaps, "{report:#}");
    }
    let bad = Command::new(&command)
        .args(["run", "--explain", "/nonexistent/file", "--", "true"])
        .output()
        .unwrap();
    assert_eq!(bad.status.code(), Some(2));
    let message = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(
        message.contains("--explain=/nonexistent/file") && message.lines().count() == 1,
        "{message}"
    );
}

/// LP3: where a file system doesn't say where a file lies (squashfs has no FIEMAP), rounds are in the order of the file.
#[test]
fn rounds_go_by_the_file_where_no_place_is_known() {
    let name = "rounds_go_by_the_file";
    if !support::is_root() {
        return support::skip_unprivileged(name, "only root may mount");
    }
    if !support::have("mksquashfs") {
        return support::skip(name, "mksquashfs is not installed");
    }
    let dir = place("by_file", 8 * MIB);
    let script = "mkdir mnt && mksquashfs one.dat image -b 4K -noI -noD -noF -noX -quiet -no-progress && mount -o loop,ro image mnt";
    let _mounted = match support::Mounted::by(script, &dir) {
        Ok(mounted) => mounted,
        Err(said) => {
            return support::skip_unprivileged(name, &format!("squashfs can't be mounted: {said}"));
        }
    };
    let program = linked("declare");
    let program = program.to_str().unwrap();
    let plain = run(&dir, "plain", &[program, "one.dat", "4096", "50"], &[]).out();
    let command = outrider();
    let mut argv = vec![command.to_str().unwrap(), "run", "--explain", "explain"];
    argv.extend(["--", program, "mnt/one.dat", "4096", "50"]);
    let env = [("OUTRIDER_ORDER", "rounds"), ("OUTRIDER_INFILL", "0")];
    let out = run(&dir, "by file", &argv, &env).out();
    assert_eq!(out, plain);
    let text = fs::read_to_string(dir.join("explain")).unwrap();
    let fetched = || text.lines().filter(|l| l.contains(" fetch inode "));
    assert!(fetched().all(|l| !l.contains("physical")), "{text}");
    let places: Vec<u64> = fetched().map(|l| number(l, " at ")).collect();
    let rounds = text.matches(" round of entries ").count();
    let turns = places.windows(2).filter(|w| w[1] < w[0]).count();
    // A round goes on from where the last one ended, and comes back once.
    assert!(turns < 2 * rounds && places.len() > 100, "{rounds}: {text}");
}

/// LP3: a named pipe for `--explain` keeps nobody waiting, whether its reader never opens it, or late, when more was written than it holds; whatever it
/// gets are whole lines.
#[test]
fn explanations_go_into_pipes() {
    let dir = place("piped", 16 * MIB);
    let [pipe, done, go] = ["pipe", "done", "go"].map(|name| dir.join(name));
    for path in [&pipe, &done, &go] {
        let made = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }
    let program = linked("again");
    let program = program.to_str().unwrap();
    let truth = run(&dir, "linked", &[program, "one.dat", "4096", "3"], &[]).out();
    let under = |rest: &[&str]| {
        let command = outrider();
        let flags = [
            "run",
            "--budget=6M",
            "--report=report.json",
            "--explain",
            "pipe",
            "--",
        ];
        [&[command.to_str().unwrap()], &flags[..], rest]
            .concat()
            .join(" ")
    };
    let report = || -> Value {
        serde_json::from_str(&fs::read_to_string(dir.join("report.json")).unwrap()).unwrap()
    };
    let env = [("OUTRIDER_ORDER", "stream")];
    let unread = under(&[program, "one.dat", "4096", "3"]);
    let argv = ["sh", "-c", &unread];
    assert_eq!(truth, run(&dir, "unread", &argv, &env).out());
    assert!(
        report()["declared"]["fetched_bytes"].as_u64() > Some(8 << 20),
        "{:#}",
        report()
    );
    // The reader comes when all has been read once and more than a pipe of 64 KiB holds was written.
    let script =
        format!("{program} one.dat 4096 3; echo >done; read x <go; {program} one.dat 4096 1");
    fs::write(dir.join("script"), script).unwrap();
    let reader = std::thread::spawn({
        let (pipe, done, go) = (pipe.clone(), done.clone(), go.clone());
        move || {
            fs::read(done).unwrap();
            let mut from = fs::File::open(pipe).unwrap();
            fs::write(go, "\n").unwrap();
            let mut text = String::new();
            std::io::Read::read_to_string(&mut from, &mut text).unwrap();
            text
        }
    });
    let late = under(&["sh", "script"]);
    let out = run(&dir, "late", &["sh", "-c", &late], &env).out();
    assert!(out.starts_with(&truth), "{out}");
    let text = reader.join().unwrap();
    assert!(
        text.len() > 64 << 10 && text.ends_with('\n'),
        "{}",
        text.len()
    );
    for line in text.lines() {
        let (pid, what) = line.split_once(' ').unwrap();
        let known = [
            "fetch ",
            "evict ",
            "stream ",
            "device ",
            "lost ",
            "left out ",
            "round ",
            "window ",
            // The service's.
            "process ",
            "left \"",
            "opens \"",
            "streams \"",
        ];
        assert!(
            pid.parse::<u32>().is_ok() && known.iter().any(|k| what.starts_with(k)),
            "{line}"
        );
    }
}

/// The library exports the functions of its header, each of them, and has the name that linked programs ask for.
#[test]
fn the_library_is_what_the_header_says() {
    let library = outrider().with_file_name("liboutrider.so");
    let header = fs::read_to_string(repository().join("include/outrider.h")).unwrap();
    let bytes = fs::read(&library).unwrap();
    let contains = |name: &str| {
        let mut wanted = name.as_bytes().to_vec();
        wanted.push(0);
        memchr::memmem::find(&bytes, &wanted).is_some()
    };
    let mut functions = 0;
    let declares = |l: &&str| {
        l.contains(" outrider_") && l.contains('(') && l.ends_with(';') && !l.starts_with("typedef")
    };
    for line in header.lines().filter(declares) {
        let name = line.split('(').next().unwrap();
        let name = name.rsplit([' ', '*']).next().unwrap();
        assert!(contains(name), "{name}");
        functions += 1;
    }
    assert!(functions >= 11, "{functions}");
    assert!(contains("liboutrider.so.0"));
}
