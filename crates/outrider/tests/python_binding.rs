//! The Python module (SPEC LP1, B8), with and without the library preloaded, and the loader in the style of a sampler's.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{
    Random, fresh, have, make_cold, outrider, plain_environment, printed, repository, skip,
};

/// Runs a Python program to its success, as it is or under `outrider run`, and returns what it printed.
fn python(work: &Path, preloaded: bool, script: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("timeout");
    plain_environment(&mut command, work);
    command.arg("90");
    if preloaded {
        command.arg(outrider()).args(["run", "--"]);
    }
    printed(
        command
            .arg("python3")
            .arg(script)
            .args(arguments)
            .env("PYTHONPATH", repository().join("python"))
            .env(
                "OUTRIDER_LIBRARY",
                outrider().with_file_name("liboutrider.so"),
            )
            .current_dir(work),
    )
}

#[test]
fn the_module_keeps_what_it_says() {
    if !have("python3") {
        return skip("the_module_keeps_what_it_says", "python3 is not installed");
    }
    let work = fresh("python");
    fs::write(work.join("data"), Random(5).bytes(256 * 4096)).unwrap();
    let script = repository().join("tests/programs/python_binding.py");
    for (preloaded, said) in [(false, "well, reads told\n"), (true, "well, reads seen\n")] {
        make_cold(&work);
        assert_eq!(python(&work, preloaded, &script, &["data"]), said);
    }
}

/// Files that are cached cost an open and a look, as soon as many in a row were; cold ones are on the list (SPEC B8).
#[test]
fn cached_files_are_on_no_list() {
    let name = "cached_files_are_on_no_list";
    if !have("python3") {
        return skip(name, "python3 is not installed");
    }
    let work = fresh("python-many");
    let script = repository().join("tests/programs/python_many_files.py");
    match python(&work, false, &script, &["."]).as_str() {
        "well\n" => {}
        "no cachestat\n" => skip(name, "the kernel doesn't count cached pages"),
        said => panic!("{said}"),
    }
}

/// What is below many files of a list is asked about once in a while, and not for each: that takes longer than fetching it (SPEC B8).
#[test]
fn what_is_below_many_files_is_asked_once() {
    let name = "what_is_below_many_files_is_asked_once";
    if !have("python3") || !have("strace") {
        return skip(name, "python3 or strace is not installed");
    }
    let work = fresh("python-below");
    let log = work.join("strace.log");
    let mut command = Command::new("timeout");
    plain_environment(&mut command, &work);
    let library = outrider().with_file_name("liboutrider.so");
    let said = printed(
        command
            .args(["90", "strace", "-f", "-qq", "-e", "trace=open,openat", "-o"])
            .arg(&log)
            .arg("python3")
            .arg(repository().join("tests/programs/python_many_files.py"))
            .args(["--cold", "."])
            .env("PYTHONPATH", repository().join("python"))
            .env("OUTRIDER_LIBRARY", library)
            .current_dir(&work),
    );
    assert_eq!(said, "well\n");
    let log = fs::read_to_string(log).unwrap();
    let opened = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    // Some are given up before their turn.
    let (files, asked) = (opened("/proc/self/fd/"), opened("mountinfo"));
    assert!(files >= 100, "the files are opened anew: {files}");
    assert!(asked <= files / 8, "{asked} times for {files} files");
}

/// SPEC B16: a library that somebody else has put above the package is not loaded.
#[test]
fn libraries_of_others_are_not_loaded() {
    const NAME: &str = "libraries_of_others_are_not_loaded";
    if !support::is_root() {
        return support::skip_unprivileged(NAME, "has another user's file");
    }
    let work = fresh(NAME);
    let package = work.join("deps/outrider");
    let release = work.join("target/release");
    fs::create_dir_all(&package).unwrap();
    fs::create_dir_all(&release).unwrap();
    for file in fs::read_dir(repository().join("python/outrider")).unwrap() {
        let from = file.unwrap().path();
        if from.extension().is_some_and(|e| e == "py") {
            fs::copy(&from, package.join(from.file_name().unwrap())).unwrap();
        }
    }
    let (library, command) = (release.join("liboutrider.so"), release.join("outrider"));
    fs::copy(outrider().with_file_name("liboutrider.so"), &library).unwrap();
    fs::copy(outrider(), &command).unwrap();
    // Whose the library is, and whose the directory in which he may exchange it.
    for (owner, above, taken) in [(0, 0, true), (65534, 0, false), (0, 65534, false)] {
        for (place, owner) in [(&library, owner), (&command, owner), (&release, above)] {
            std::os::unix::fs::chown(place, Some(owner), None).unwrap();
        }
        let mut command = Command::new("python3");
        plain_environment(&mut command, &work);
        let script = "import outrider, outrider.__main__ as m
loaded = 'release/liboutrider' in open('/proc/self/maps').read()
found = '/target/release/outrider' in (m.command() or '')
print(loaded if loaded == found else (loaded, found))";
        let said = printed(
            command
                .args(["-W", "ignore", "-c", script])
                .env("PYTHONPATH", work.join("deps"))
                .current_dir(&work),
        );
        let expected = if taken { "True\n" } else { "False\n" };
        assert_eq!(said, expected, "{owner} {above}");
    }
}

/// Without a library a program runs as it would, and is told once where it was looked for.
#[test]
fn without_a_library_nothing_is_prefetched() {
    if !have("python3") {
        return skip(
            "without_a_library_nothing_is_prefetched",
            "python3 is not installed",
        );
    }
    let work = fresh("python-none");
    fs::write(work.join("data"), Random(7).bytes(64 * 4096)).unwrap();
    let mut command = Command::new("python3");
    plain_environment(&mut command, &work);
    let output = command
        .arg(repository().join("tests/programs/python_without_library.py"))
        .arg("data")
        .current_dir(&work)
        .env("PYTHONPATH", repository().join("python"))
        .env("OUTRIDER_LIBRARY", "/nowhere/liboutrider.so")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("RuntimeWarning").count(), 1, "{said}");
    assert!(
        said.contains("/nowhere/liboutrider.so") && said.contains("python_without_library.py"),
        "{said}"
    );
}

#[test]
fn the_loader_gives_the_same_samples() {
    if !have("python3") {
        return skip(
            "the_loader_gives_the_same_samples",
            "python3 is not installed",
        );
    }
    let work = fresh("python-loader");
    let mut random = Random(6);
    fs::write(work.join("records"), random.bytes(4_000_000)).unwrap();
    fs::create_dir(work.join("files")).unwrap();
    for i in 0..400 {
        let len = random.next() as usize % 12_000;
        fs::write(work.join(format!("files/f{i}")), random.bytes(len)).unwrap();
    }
    let script = repository().join("examples/loader.py");
    for arguments in [["--record", "5000", "records"].as_slice(), &["files"]] {
        let mut lines = Vec::new();
        for (preloaded, plain) in [(false, true), (false, false), (true, true), (true, false)] {
            make_cold(&work);
            make_cold(&work.join("files"));
            let mut all = vec!["--seed", "4", "--epochs", "2"];
            all.extend(plain.then_some("--plain"));
            all.extend(arguments);
            lines.push(python(&work, preloaded, &script, &all));
        }
        assert!(lines[0].contains("checksum"));
        assert!(lines.iter().all(|l| *l == lines[0]), "{lines:?}");
    }
}
