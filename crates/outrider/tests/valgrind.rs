//! SPEC CP1: a program on Valgrind says on standard error what it says without us. Valgrind complains of each system call that it doesn't know, so none of ours
//! may be one.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use support::{Disk, Random, fresh, have, outrider, plain_environment, program, skip};

/// A tool that only runs the program, with nothing of its own to say.
const VALGRIND: [&str; 3] = ["valgrind", "-q", "--tool=none"];

fn run(dir: &Path, argv: &[&str]) -> Output {
    support::make_cold(dir);
    let mut command = Command::new(argv[0]);
    plain_environment(&mut command, dir);
    command
        .args(&argv[1..])
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn same(what: &str, plain: &Output, ours: &Output) {
    assert_eq!(
        String::from_utf8_lossy(&ours.stderr),
        String::from_utf8_lossy(&plain.stderr),
        "{what}"
    );
    assert_eq!(ours.status, plain.status, "{what}");
    assert!(ours.stdout == plain.stdout, "{what}: the output differs");
}

/// Some files in some directories.
fn plant(tree: &Path) {
    for i in 0..200 {
        let below = tree.join((i % 10).to_string());
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join(i.to_string()), Random(i).bytes(100 << 10)).unwrap();
    }
}

/// Programs on Valgrind below us, which read what is cold and what is cached, and walk a tree; and the same with all of us on Valgrind.
#[test]
fn valgrind_has_nothing_to_say_of_us() {
    let name = "valgrind_has_nothing_to_say_of_us";
    if !have("valgrind") {
        return skip(name, "no valgrind");
    }
    let dir = fresh(name);
    fs::write(dir.join("file"), Random(3).bytes(24 << 20)).unwrap();
    plant(&dir.join("tree"));
    let scan = program("pread_many").display().to_string();
    let outrider = outrider().display().to_string();
    for argv in [
        &["cat", "file"][..],
        &["tac", "file"],
        &[&scan, "file", "500", "-", "file"],
        &["sh", "-c", "cat file file | wc -c; grep -rc x tree | sort"],
    ] {
        let what = argv.join(" ");
        let plain = run(&dir, &[&VALGRIND[..], argv].concat());
        assert!(plain.status.success(), "{what}: {plain:?}");
        let report = format!("--report={}", dir.join("report").display());
        let ours = [&[&outrider, "run", &report, "--"][..], &VALGRIND, argv].concat();
        same(&what, &plain, &run(&dir, &ours));
        let report: serde_json::Value =
            serde_json::from_slice(&fs::read(dir.join("report")).unwrap()).unwrap();
        // Its tools are static, and these start without the library where a linker of 32 bits is: then the report says so.
        let is_narrow = fs::exists("/lib/ld-linux.so.2").unwrap();
        let without = report["lost"].to_string().contains("linked statically");
        assert!(
            is_narrow && without || report["totals"]["events"].as_u64() > Some(0),
            "{what}: {report:#}"
        );
        let children = ["--trace-children=yes", &outrider, "run", "--"];
        let all = [&VALGRIND[..], &children, argv].concat();
        same(&format!("valgrind {what}"), &plain, &run(&dir, &all));
    }
}

/// All of us on Valgrind, where a disk is slow enough that a walk's files are opened ahead.
#[test]
fn valgrind_has_nothing_to_say_of_a_walk() {
    let name = "valgrind_has_nothing_to_say_of_a_walk";
    if !have("valgrind") {
        return skip(name, "no valgrind");
    }
    let dir = fresh(name);
    let Some(disk) = Disk::of(name, &dir) else {
        return;
    };
    plant(&disk.dir.join("tree"));
    disk.does("model", &["remote"]);
    let [plain, ours] = [
        &["tar"][..],
        &[&outrider().display().to_string(), "run", "--", "tar"],
    ]
    .map(|tar| {
        disk.does("cold", &[]);
        let children = ["--trace-children=yes"];
        let argv = [&VALGRIND[..], &children, tar, &["cf", "-", "disk/tree"]].concat();
        run(&dir, &argv)
    });
    assert!(plain.status.success(), "{plain:?}");
    same("valgrind tar", &plain, &ours);
}
