//! `make install`: what it puts under a prefix works from there, by itself.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use support::{
    Random, eventually, fresh, have, make_cold, outrider, plain_environment, printed, repository,
    skip,
};

/// `make install` of the built release, by a user whose files are nobody else's to read.
fn install(words: &[String]) -> Output {
    Command::new("sh")
        .args(["-c", "umask 077; exec make \"$@\"", "sh", "-C"])
        .arg(repository())
        .arg("install")
        .arg(format!(
            "RELEASE={}",
            outrider().parent().unwrap().display()
        ))
        .args(words)
        .output()
        .unwrap()
}

/// Regular files and links below `dir`, as paths in it.
fn files(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            } else {
                found.insert(entry.path().strip_prefix(dir).unwrap().to_path_buf());
            }
        }
    }
    found
}

/// A command in a plain environment, in which nothing points to the prefix or to the build.
fn command(work: &Path, program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    plain_environment(&mut command, work);
    command.current_dir(work);
    command
}

/// docs/contributing.md, "Build": commands, library, headers, manual pages, the module for Python. `outrider run` of a real program from there
/// prefetches (SPEC CP1) and changes nothing, and a C program is compiled and linked against what is there (SPEC LP1).
#[test]
fn what_is_installed_works_from_its_prefix() {
    let name = "what_is_installed_works_from_its_prefix";
    for program in ["make", "cc"] {
        if !have(program) {
            return skip(name, &format!("{program} is not installed"));
        }
    }
    let work = fresh("install");
    let prefix = work.join("opt/outrider");
    let plugins = work.join("plugins");
    let mut make = Command::new("make");
    make.arg("-C").arg(repository().join("plugins/programs"));
    printed(make.arg(format!("OUT={}", plugins.display())));
    let plugins = format!("PROGRAM_PLUGINS={}/outrider_du.so", plugins.display());
    let made = install(&[format!("PREFIX={}", prefix.display()), plugins.clone()]);
    assert!(made.status.success(), "{made:?}");
    // Nobody's linker looks there, and that is said.
    let said = String::from_utf8_lossy(&made.stdout).into_owned();
    let place = format!("{}/lib", prefix.display());
    let told = |line: &str| line.contains("the dynamic linker") && line.contains(&place);
    assert!(said.lines().any(told), "{said}");
    let bin = prefix.join("bin/outrider");

    let data = work.join("data");
    fs::write(&data, Random(11).bytes(32 << 20)).unwrap();
    // Backwards: forwards the kernel's own readahead may be all that it takes.
    let backwards = ["sh", "-c", "tac data | cksum"];
    let expected = printed(command(&work, backwards[0]).args(&backwards[1..]));
    eventually(|| {
        make_cold(&work);
        let words = [&["run", "--report=r.json", "--"][..], &backwards].concat();
        let run = printed(command(&work, &bin).args(words));
        assert_eq!(run, expected);
        let report: Value =
            serde_json::from_slice(&fs::read(work.join("r.json")).unwrap()).unwrap();
        match report["totals"]["prefetched_bytes"].as_u64() {
            Some(4096..) => Ok(()),
            _ => Err(report.to_string()),
        }
    });
    let cached = printed(command(&work, &bin).args(["cached", "--json", "data"]));
    let cached: Value = serde_json::from_str(&cached).unwrap();
    assert!(cached["total"]["percent"].is_number(), "{cached}");
    let doctor = printed(command(&work, &bin).args(["doctor", "/bin/sh"]));
    assert!(doctor.contains("hooks"), "{doctor}");
    let with_plugin = ["run", "--plugin", "du", "--", "echo", "here"];
    assert_eq!(printed(command(&work, &bin).args(with_plugin)), "here\n");
    let lab = printed(command(&work, prefix.join("bin/outrider-lab")).arg("--version"));
    assert!(lab.starts_with("outrider-lab "), "{lab}");

    fs::write(
        work.join("declares.c"),
        "#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\n#include <libprefetch.h>\n#include <outrider.h>\n\
         #include <outrider_graph.h>\n#include <outrider_plugin.h>\nint main(void)\n{\n\
         struct outrider_range ranges[] = {{9 << 20, 65536}, {3 << 20, 65536}};\nstatic char buffer[65536];\n\
         int fd = open(\"data\", O_RDONLY);\nif (outrider_declare(fd, ranges, 2) != 2)\nreturn 1;\n\
         for (int i = 0; i < 2; i++)\nif (pread(fd, buffer, 65536, ranges[i].offset) != 65536)\nreturn 2;\n\
         struct outrider_stats stats;\nif (outrider_stats(&stats, sizeof stats) || outrider_version() != OUTRIDER_VERSION)\nreturn 3;\n\
         printf(\"%d\\n\", (int)stats.declared_bytes);\nreturn 0;\n}\n",
    )
    .unwrap();
    let compiled = command(&work, "cc")
        .args(["-Wall", "-Werror", "-o", "declares", "declares.c"])
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg(format!("-L{}", prefix.join("lib").display()))
        .arg("-loutrider")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let mut declares = command(&work, work.join("declares"));
    declares.env("LD_LIBRARY_PATH", prefix.join("lib"));
    assert_eq!(printed(&mut declares), "131072\n");

    if have("python3") {
        let module = prefix.join("share/outrider/python");
        let script = "import outrider; assert outrider.available; print(outrider.__file__)";
        let mut python = command(&work, "python3");
        let said = printed(python.args(["-B", "-c", script]).env("PYTHONPATH", &module));
        assert_eq!(
            Path::new(said.trim_end()),
            module.join("outrider/__init__.py")
        );
    }

    let installed = files(&prefix);
    for (from, to) in [("man", "share/man"), ("include", "include")] {
        for file in files(&repository().join(from)) {
            let section = file.extension().unwrap().to_string_lossy().into_owned();
            let to = match from {
                "man" => format!("{to}/man{section}"),
                _ => to.to_owned(),
            };
            let there = prefix.join(to).join(&file);
            let same = fs::read(&there).ok() == fs::read(repository().join(from).join(&file)).ok();
            assert!(same, "{}", there.display());
        }
    }
    // Anybody may use it.
    for file in &installed {
        let mode = fs::metadata(prefix.join(file))
            .unwrap()
            .permissions()
            .mode();
        let wanted = if file.starts_with("bin") {
            0o755
        } else {
            0o644
        };
        assert_eq!(mode & 0o777, wanted, "{}", file.display());
    }
    let stage = work.join("stage");
    let made = install(&[
        "PREFIX=/usr".to_owned(),
        format!("DESTDIR={}", stage.display()),
        plugins,
    ]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(files(&stage.join("usr")), installed);
    let besides: Vec<_> = fs::read_dir(&stage).unwrap().flatten().collect();
    assert_eq!(besides.len(), 1, "{besides:?}");
}
