//! The library and those who load it: other C libraries, other word sizes, older versions, privileged programs, and whoever takes
//! LD_PRELOAD or what the dynamic linker lists for text (SPEC B1, B11, B16).

mod support;

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use object::Endianness;
use object::read::elf::{FileHeader, SectionHeader};
use serde_json::Value;
use support::{
    Mounted, Random, compile, eventually, fresh, install, is_root, make_cold, outrider,
    plain_environment, program, repository, skip, skip_unprivileged,
};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn library() -> PathBuf {
    outrider().with_file_name("liboutrider.so")
}

/// A command in a small environment, without Outrider or with it; what its report says is lost, too.
fn run(command: Option<&Path>, dir: &Path, argv: &[&str]) -> (Output, Vec<String>) {
    let report = dir.join("report.json");
    let mut all = Vec::new();
    if let Some(outrider) = command {
        let report = format!("--report={}", report.display());
        all = vec![
            outrider.display().to_string(),
            "run".into(),
            report,
            "--".into(),
        ];
    }
    all.extend(argv.iter().map(|a| (*a).to_owned()));
    // Where a link to the library may lie, or a filter.
    let _ = fs::create_dir(dir.join(".cache"));
    let mut command = Command::new(&all[0]);
    plain_environment(&mut command, dir);
    let output = command
        .args(&all[1..])
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output, lost(&report))
}

fn lost(report: &Path) -> Vec<String> {
    let Ok(text) = fs::read(report) else {
        return Vec::new();
    };
    let report: Value = serde_json::from_slice(&text).unwrap();
    let lines = report["lost"].as_array().unwrap().iter();
    lines.map(|l| l.as_str().unwrap().to_owned()).collect()
}

/// What can be observed of a command, but for the variables of ours that mean nothing without the library, and addresses.
fn seen(output: &Output) -> (Option<i32>, String, String) {
    let ours = |l: &&str| {
        !["OUTRIDER_SHM=", "ASAN_OPTIONS=verify_asan_link_order=0"]
            .iter()
            .any(|v| l.starts_with(v))
    };
    let without_address = |l: &str| l.split(" (0x").next().unwrap().to_owned();
    let out: Vec<String> = text(&output.stdout)
        .lines()
        .filter(ours)
        .map(without_address)
        .collect();
    (output.status.code(), out.join("\n"), text(&output.stderr))
}

/// The same with Outrider as without.
fn same(dir: &Path, argv: &[&str]) -> Vec<String> {
    let (plain, _) = run(None, dir, argv);
    let (ours, lost) = run(Some(&outrider()), dir, argv);
    assert_eq!(seen(&plain), seen(&ours), "{argv:?}");
    lost
}

/// E: the library needs nothing of the C library that version 2.17 hasn't got: Debian 11 has 2.31. (No older linker is at hand: it refuses
/// a library for a version that it doesn't know, and for nothing else that could differ here.)
#[test]
fn the_library_needs_no_new_c_library() {
    let bytes = fs::read(library()).unwrap();
    let data = bytes.as_slice();
    let header = object::elf::FileHeader64::<Endianness>::parse(data).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, data).unwrap();
    let (mut needed, link) = sections.gnu_verneed(endian, data).unwrap().unwrap();
    let strings = sections.strings(endian, data, link).unwrap();
    let mut versions = Vec::new();
    while let Some((_, mut parts)) = needed.next().unwrap() {
        while let Some(part) = parts.next().unwrap() {
            versions.push(text(part.name(endian, strings).unwrap()));
        }
    }
    assert!(
        versions.iter().any(|v| v.starts_with("GLIBC_2.")),
        "{versions:?}"
    );
    for version in &versions {
        // The unwinder's own library, where the compiler has no archive of it.
        if version.starts_with("GCC_") {
            continue;
        }
        let numbers: Vec<u32> = version
            .strip_prefix("GLIBC_")
            .unwrap_or_else(|| panic!("{version}"))
            .split('.')
            .map(|n| n.parse().unwrap_or_else(|_| panic!("{version}")))
            .collect();
        assert!(numbers <= vec![2, 17], "{version} is needed");
    }
    // What is defined for the library's own use is nobody else's.
    let (_, symbols) = sections
        .iter()
        .enumerate()
        .find(|(_, s)| s.sh_type(endian) == object::elf::SHT_DYNSYM)
        .unwrap();
    let _ = symbols;
    let table = sections
        .symbols(endian, data, object::elf::SHT_DYNSYM)
        .unwrap();
    for symbol in table.symbols() {
        use object::read::elf::Sym;
        let name = text(symbol.name(endian, table.strings()).unwrap());
        let defined = symbol.st_shndx(endian) != object::elf::SHN_UNDEF;
        assert!(
            !(defined && ["dlopen", "pthread_create", "gettid"].contains(&name.as_str())),
            "{name} is exported"
        );
    }
}

/// E: LD_PRELOAD has one plain absolute path, which make(1) and shells can take for text, wherever the library lies.
#[test]
fn the_entry_is_plain() {
    let dir = fresh("entry");
    let odd = dir.join("a place: with $LIB, and $x\tand more");
    let split = dir.join("opt");
    fs::create_dir_all(&odd).unwrap();
    fs::create_dir_all(split.join("bin")).unwrap();
    fs::create_dir_all(split.join("lib")).unwrap();
    for (bin, lib) in [(&odd, &odd), (&split.join("bin"), &split.join("lib"))] {
        install(&outrider(), &bin.join("outrider"), 0o755);
        install(&library(), &lib.join("liboutrider.so"), 0o755);
    }
    fs::write(
        dir.join("Makefile"),
        "export LD_PRELOAD := $(LD_PRELOAD)\nall:\n\t@cat f\n",
    )
    .unwrap();
    fs::write(dir.join("f"), "content\n").unwrap();
    for command in [outrider(), odd.join("outrider"), split.join("bin/outrider")] {
        let (output, _) = run(Some(&command), &dir, &["sh", "-c", "echo \"$LD_PRELOAD\""]);
        assert_eq!(text(&output.stderr), "");
        let entry = text(&output.stdout).trim_end().to_owned();
        assert!(
            entry.starts_with('/') && entry.ends_with("/liboutrider.so"),
            "{entry}"
        );
        let odd = |c: char| c.is_whitespace() || matches!(c, ':' | '$');
        assert!(!entry.contains(odd) && !entry.contains("/../"), "{entry}");
        // It is in the programs.
        let (output, _) = run(
            Some(&command),
            &dir,
            &["grep", "-c", "liboutrider.so", "/proc/self/maps"],
        );
        assert!(output.status.success(), "{command:?}: {output:?}");
        for argv in [
            ["make", "-s"].as_slice(),
            &[
                "bash",
                "-uc",
                "eval \"x=$LD_PRELOAD\"; printf \"$x\" > /dev/null; cat f",
            ],
        ] {
            let (plain, _) = run(None, &dir, argv);
            if argv[0] == "bash" {
                // Without us the variable isn't set.
                assert!(!plain.status.success());
            } else {
                assert_eq!(plain.stdout, b"content\n");
            }
            let (ours, _) = run(Some(&command), &dir, argv);
            assert_eq!(
                seen(&ours),
                (Some(0), "content".into(), String::new()),
                "{argv:?}"
            );
        }
    }
}

/// A program of musl's in `dir`, `musl`, that says hello.
fn greet_by_musl(dir: &Path) {
    let hello = dir.join("hello.c");
    fs::write(
        &hello,
        "#include <stdio.h>\nint main(void) { return puts(\"hello\") < 0; }\n",
    )
    .unwrap();
    let mut command = Command::new("musl-gcc");
    command.arg("-o").arg(dir.join("musl")).arg(&hello);
    assert!(command.status().unwrap().success());
}

/// E: a static program hands its environment on as it is. Where musl's linker is, what it starts is followed all the same, and what of that is musl's own
/// runs as without us.
#[test]
fn static_programs_hand_the_library_on() {
    let name = "static_programs_hand_the_library_on";
    if !support::have("musl-gcc") {
        return skip(name, "no musl-gcc");
    }
    let dir = fresh(name);
    let source = repository().join("tests/programs/start.c");
    greet_by_musl(&dir);
    let mut command = Command::new("cc");
    command.args(["-static", "-w", "-D_GNU_SOURCE", "-o"]);
    command.arg(dir.join("start")).arg(source);
    assert!(command.status().unwrap().success());
    let maps = "#!/bin/sh\ngrep -q /liboutrider.so /proc/self/maps && echo followed\nexit 0\n";
    fs::write(dir.join("maps"), maps).unwrap();
    fs::set_permissions(dir.join("maps"), fs::Permissions::from_mode(0o755)).unwrap();
    for how in ["execv", "execve", "fork", "spawn", "vfork"] {
        for argv in [
            &["./start", how, "./musl"][..],
            &["sh", "-c", "./start \"$0\" ./musl; exit $?", how],
            &["./musl"],
        ] {
            let (plain, _) = run(None, &dir, argv);
            assert_eq!(seen(&plain), (Some(0), "hello".into(), String::new()));
            let (ours, _) = run(Some(&outrider()), &dir, argv);
            assert_eq!(seen(&ours), seen(&plain), "{argv:?}");
        }
        // The linker of 32 bits complains of whatever LD_PRELOAD has: where it is, nothing is handed on.
        let followed = match fs::exists("/lib/ld-linux.so.2").unwrap() {
            true => "",
            false => "followed",
        };
        let (ours, _) = run(Some(&outrider()), &dir, &["./start", how, "./maps"]);
        assert_eq!(seen(&ours), (Some(0), followed.into(), String::new()));
    }
    // Neither the library nor what stands for it shows where it isn't wanted.
    let argv = [
        "sh",
        "-c",
        "ldd /bin/cat; ./start execv /usr/bin/ldd; ./musl",
    ];
    let (plain, ours) = (
        run(None, &dir, &argv).0,
        run(Some(&outrider()), &dir, &argv).0,
    );
    assert_eq!(seen(&ours), seen(&plain));
}

/// E: a program that can't take the library is started from a stack on which there is hardly room for its environment, as without us.
#[test]
fn programs_start_from_small_stacks() {
    let name = "programs_start_from_small_stacks";
    if !support::have("musl-gcc") {
        return skip(name, "no musl-gcc");
    }
    let dir = fresh(name);
    greet_by_musl(&dir);
    let start = program("starts_small");
    for (how, bytes, variables) in [
        ("clone", "4096", "0"),
        ("clone", "8192", "100"),
        ("clone", "16384", "600"),
        ("spawn", "16384", "600"),
        ("vfork", "16384", "600"),
        ("spawn", "65536", "5000"),
    ] {
        let argv = [start.to_str().unwrap(), how, bytes, "./musl", variables];
        let (plain, _) = run(None, &dir, &argv);
        let said = "hello\nended 0, signal 0".to_owned();
        assert_eq!(seen(&plain), (Some(0), said, String::new()), "{argv:?}");
        let (ours, _) = run(Some(&outrider()), &dir, &argv);
        assert_eq!(seen(&ours), seen(&plain), "{argv:?}");
    }
}

/// SPEC B11: a POSIX lock on the file that is executed stays, whoever has set it, and in whatever way.
#[test]
fn locks_on_what_is_executed_stay() {
    let dir = fresh("locks_on_what_is_executed_stay");
    let locks = program("locks_itself");
    for (how, said) in [
        ("again", "once: held\ntwice: held"),
        ("number", "twice: held\nafterwards: held"),
    ] {
        let argv = [locks.to_str().unwrap(), how];
        let (plain, _) = run(None, &dir, &argv);
        assert_eq!(seen(&plain), (Some(0), said.into(), String::new()));
        let (ours, _) = run(Some(&outrider()), &dir, &argv);
        assert_eq!(seen(&ours), seen(&plain), "{how}");
    }
}

/// SPEC B11: another library that is preloaded keeps its say from the first call on, before ours or behind it: also in the constructors of libraries that a
/// program needs, which come before ours.
#[test]
fn other_preloaded_libraries_keep_their_say() {
    let dir = fresh("other_preloaded_libraries_keep_their_say");
    fs::write(dir.join("f"), "content").unwrap();
    let object = |output: &str, flags: &[&str]| {
        let flags = [&["-O1"][..], flags].concat();
        compile("redirects", output, &flags)
    };
    let shared = ["-shared", "-fPIC"];
    let redirects = object(
        "libredirects.so",
        &[&shared[..], &["-DREDIRECTS", "-ldl"]].concat(),
    );
    let needed = object("libredirected.so", &[&shared[..], &["-DNEEDED"]].concat());
    let [place, path] = support::where_it_is(&needed);
    let program = object(
        "redirected",
        &[&place, "-Wl,--no-as-needed", "-lredirected", &path],
    );
    for list in ["$LD_PRELOAD:$0", "$0:$LD_PRELOAD"] {
        let script = format!("REDIRECTED=f LD_PRELOAD={list} exec $1");
        let (own, program) = (redirects.to_str().unwrap(), program.to_str().unwrap());
        let argv = ["sh", "-c", &script, own, program];
        let (plain, _) = run(None, &dir, &argv);
        let (_, said, _) = seen(&plain);
        assert!(said.contains("needed: 7 content"), "{said}");
        assert_eq!(seen(&run(Some(&outrider()), &dir, &argv).0), seen(&plain));
    }
}

/// SPEC B11: where a program that nothing is asked of any more has hidden the library from the one that it becomes, that one is started without, and otherwise with it.
#[test]
fn what_hides_the_library_is_seen() {
    let name = "what_hides_the_library_is_seen";
    if !is_root() {
        return skip_unprivileged(name, "mounting needs root");
    }
    let dir = fresh(name);
    let hides = program("hides_library");
    let hides = hides.to_str().unwrap();
    for when in ["neither", "announced", "filtered"] {
        let script = "echo ${LD_PRELOAD+with it}";
        for (what, with) in [("library", ""), ("another", "with it")] {
            let argv = [hides, when, what, "/bin/sh", "-c", script];
            let (plain, _) = run(None, &dir, &argv);
            assert_eq!(seen(&plain), (Some(0), String::new(), String::new()));
            let (ours, _) = run(Some(&outrider()), &dir, &argv);
            let said = (Some(0), with.to_owned(), String::new());
            assert_eq!(seen(&ours), said, "{when} {what}");
        }
    }
}

/// E: whoever has the dynamic linker list what a program loads, doesn't find us there, and finds what others have put into LD_PRELOAD.
#[test]
fn the_list_of_loaded_objects_is_the_programs() {
    let dir = fresh("listed");
    let other = compile(
        "preload",
        "preload.so",
        &["-shared", "-fPIC", "-O1", "-DNAME=\"other\""],
    );
    let other = other.to_str().unwrap();
    let linker = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"]
        .into_iter()
        .find(|l| Path::new(l).exists())
        .unwrap();
    for argv in [
        vec!["ldd", "/bin/cat"],
        vec![linker, "--list", "/bin/cat"],
        vec![linker, "--inhibit-rpath", "x", "--list", "/bin/cat"],
        vec!["env", "LD_TRACE_LOADED_OBJECTS=1", "/bin/cat"],
        vec![
            "sh",
            "-c",
            "ldd /bin/cat; echo; LD_TRACE_LOADED_OBJECTS=1 /bin/cat; \"$0\" --list /bin/cat; \"$0\" --verify /bin/cat; echo $?",
            linker,
        ],
        vec![
            "python3",
            "-c",
            "import subprocess; print(subprocess.run(['ldd', '/bin/cat'], capture_output=True, text=True).stdout)",
        ],
        vec!["env", "-S", &format!("LD_PRELOAD={other} ldd /bin/cat")],
    ] {
        same(&dir, &argv);
    }
    let script = format!("LD_PRELOAD=\"$LD_PRELOAD:{other}\" ldd /bin/cat");
    let (ours, _) = run(Some(&outrider()), &dir, &["sh", "-c", &script]);
    let listed = text(&ours.stdout);
    assert!(
        listed.contains(other) && !listed.contains("liboutrider"),
        "{listed}"
    );
    // The runner's own program, too.
    let output = Command::new(outrider())
        .args(["run", "--", "/bin/cat"])
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .output()
        .unwrap();
    let listed = text(&output.stdout);
    assert!(
        listed.contains("libc.so.6") && !listed.contains("liboutrider"),
        "{listed}"
    );
    // Run by the linker, not listed, a program has the library.
    let (output, _) = run(
        Some(&outrider()),
        &dir,
        &[
            "sh",
            "-c",
            "\"$0\" /bin/grep -c liboutrider /proc/self/maps",
            linker,
        ],
    );
    assert!(output.status.success(), "{output:?}");
}

/// E: who traces calls of libraries finds in what LD_PRELOAD names what he looks for in any library, also where musl's linker is.
#[test]
fn the_entry_can_be_traced() {
    let name = "the_entry_can_be_traced";
    if !support::have("ltrace") {
        return skip(name, "no ltrace");
    }
    let dir = fresh(name);
    fs::write(dir.join("f"), "content\n").unwrap();
    same(&dir, &["ltrace", "-f", "-o", "/dev/null", "cat", "f"]);
}

/// A program for another linker, of 64 or 32 bits; `None` where the compiler can't make one of 32 or the kernel not run it.
fn foreign(wide: bool, dir: &Path) -> Option<PathBuf> {
    let (flag, name) = if wide {
        ("-O1", "wide")
    } else {
        ("-m32", "narrow")
    };
    let source = repository().join("tests/programs/other_linker.c");
    let linker = dir.join(format!("ld-{name}.so.1"));
    let made = dir.join(name);
    for (output, more) in [
        (&linker, vec!["-static".to_owned(), "-no-pie".into()]),
        (
            &made,
            vec![
                "-pie".into(),
                "-fPIE".into(),
                format!("-Wl,--dynamic-linker={}", linker.display()),
            ],
        ),
    ] {
        let status = Command::new("cc")
            .args([
                flag,
                "-O1",
                "-nostdlib",
                "-ffreestanding",
                "-fno-stack-protector",
            ])
            .args(["-w", "-o"])
            .arg(output)
            .arg(&source)
            .args(more)
            .stderr(Stdio::null())
            .status()
            .unwrap();
        if !status.success() {
            return None;
        }
    }
    Command::new(&made)
        .output()
        .ok()?
        .status
        .success()
        .then_some(made)
}

const WAYS: [&str; 17] = [
    "execl",
    "execl_short",
    "execlp",
    "execle",
    "execle_short",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "fexecve",
    "execveat",
    "execveat_empty",
    "syscall",
    "vfork",
    "fork",
    "spawn",
    "spawnp",
];

/// E: a program that another C library's linker starts, or one of 32 bits, is started as if we weren't there: by each call that starts
/// programs, directly, by PATH, and as the interpreter of scripts. Nobody's own environment is touched, and what we can't do is lost.
#[test]
fn programs_that_cannot_take_the_library_start_without() {
    let dir = fresh("foreign");
    let start = program("start");
    let start = start.to_str().unwrap();
    let mut targets = Vec::new();
    for wide in [true, false] {
        match foreign(wide, &dir) {
            Some(path) => targets.push(path),
            None => skip(
                "foreign",
                "the compiler or the kernel has no programs of 32 bits",
            ),
        }
    }
    assert!(!targets.is_empty());
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    // A directory of the name that is looked for is none that PATH finds.
    fs::create_dir_all(dir.join("first/wide")).unwrap();
    for target in targets.clone() {
        let name = target.file_name().unwrap().to_str().unwrap().to_owned();
        let script = dir.join(format!("{name}.script"));
        fs::write(&script, format!("#! {} -x\n", target.display())).unwrap();
        let outer = dir.join(format!("{name}.outer"));
        fs::write(&outer, format!("#!{}\n", script.display())).unwrap();
        for path in [&script, &outer] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::copy(&target, bin.join(&name)).unwrap();
        targets.extend([script, outer]);
    }
    for target in &targets {
        let target = target.to_str().unwrap();
        for how in WAYS {
            let lost = same(&dir, &[start, how, target]);
            assert!(
                lost.iter()
                    .any(|l| l.contains("another C library, another word size")),
                "{how} {target}: {lost:?}"
            );
        }
        // The runner starts it, a shell, and another program on its behalf.
        let lost = same(&dir, &[target, "a"]);
        assert!(!lost.is_empty());
        same(
            &dir,
            &["sh", "-c", "\"$0\" a; echo $?; exec \"$0\" b", target],
        );
        same(&dir, &["nice", "-n", "1", target]);
        same(
            &dir,
            &[
                "python3",
                "-c",
                "import os, sys; sys.exit(os.spawnv(os.P_WAIT, sys.argv[1], ['x']))",
                target,
            ],
        );
    }
    let path = format!(
        "PATH={0}/first::{0}/nowhere:{0}/bin:/usr/bin:/bin",
        dir.display()
    );
    for how in ["execvp", "execlp", "execvpe", "spawnp"] {
        same(&dir, &["env", &path, start, how, "wide"]);
    }
    // What others have put there stays.
    let other = compile(
        "preload",
        "preload.so",
        &["-shared", "-fPIC", "-O1", "-DNAME=\"other\""],
    );
    let script = format!("LD_PRELOAD={}:$LD_PRELOAD exec \"$0\"", other.display());
    let target = targets[0].to_str().unwrap();
    let (output, _) = run(Some(&outrider()), &dir, &["sh", "-c", &script, target]);
    let entry = format!("LD_PRELOAD={}", other.display());
    assert!(
        text(&output.stdout).lines().any(|l| l == entry),
        "{}",
        text(&output.stdout)
    );
    // Bad pointers end as the kernel has it.
    same(&dir, &[start, "bad", "-"]);
}

/// What the hooks leave alone: a program that can take the library gets it, by every call, with what else it was given.
#[test]
fn programs_that_can_take_the_library_get_it() {
    let dir = fresh("fitting");
    let start = program("start");
    let start = start.to_str().unwrap();
    let show = dir.join("show");
    fs::write(&show, "#!/bin/sh\necho \"$# $*\"; env | grep -v '^_=\\|^LD_PRELOAD=' | sort; grep -q liboutrider /proc/$$/maps && echo hooked >&2; exit 3\n").unwrap();
    fs::set_permissions(&show, fs::Permissions::from_mode(0o755)).unwrap();
    let show = show.to_str().unwrap();
    for how in WAYS {
        let (plain, _) = run(None, &dir, &[start, how, show]);
        let (ours, lost) = run(Some(&outrider()), &dir, &[start, how, show]);
        let (mut plain, ours) = (seen(&plain), seen(&ours));
        assert_eq!(plain.2, "");
        plain.2 = "hooked\n".into();
        assert_eq!(plain, ours, "{how}");
        assert!(!lost.iter().any(|l| l.contains("library")), "{lost:?}");
    }
}

/// E: an environment without our entry, a root without our directory, a library that the user may not read: the program starts as it
/// would, silently, and the report says what was lost.
#[test]
fn what_starts_without_the_library_is_told() {
    let dir = fresh("told");
    fs::write(dir.join("f"), Random(5).bytes(1 << 20)).unwrap();
    let says = |lost: &[String], what: &str| {
        assert!(lost.iter().any(|l| l.contains(what)), "{what}: {lost:?}");
    };
    for argv in [
        ["env", "-i", "cat", "f"].as_slice(),
        &["sh", "-c", "unset LD_PRELOAD; cat f"],
        &["sh", "-c", "LD_PRELOAD= cat f"],
    ] {
        says(&same(&dir, argv), "LD_PRELOAD: a program was started");
    }
    // Which one it was is seen while it runs.
    eventually(|| {
        let lost = same(&dir, &["env", "-i", "/bin/sleep", "1"]);
        match lost
            .iter()
            .any(|l| l.contains("sleep: was not told of the library"))
        {
            true => Ok(()),
            false => Err(format!("{lost:?}")),
        }
    });
    let none = same(&dir, &["sh", "-c", "cat f; /bin/sleep 0.2"]);
    assert!(!none.iter().any(|l| l.contains("library")), "{none:?}");
    if !is_root() {
        return skip_unprivileged("told", "only root can change its root and its user");
    }
    // Another root.
    let root = dir.join("root");
    let script = "mkdir -p root && cp /bin/cat f root && ldd /bin/cat | grep -o '/[^ ]*' | while read l; do mkdir -p \"root$(dirname \"$l\")\" && cp \"$l\" \"root$l\"; done";
    assert!(
        Command::new("sh")
            .args(["-c", script])
            .current_dir(&dir)
            .status()
            .unwrap()
            .success()
    );
    says(
        &same(&dir, &["chroot", root.to_str().unwrap(), "/cat", "/f"]),
        "library: it isn't there",
    );
    // Another user, for whom it is none.
    let own = dir.join("own");
    fs::create_dir(&own).unwrap();
    install(&outrider(), &own.join("outrider"), 0o755);
    install(&library(), &own.join("liboutrider.so"), 0o600);
    let argv = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "sh",
        "-c",
        "cat /etc/hostname; sleep 1; exit 3",
    ];
    let (plain, _) = run(None, &dir, &argv);
    eventually(|| {
        let (ours, lost) = run(Some(&own.join("outrider")), &dir, &argv);
        assert_eq!(seen(&plain), seen(&ours));
        match lost
            .iter()
            .any(|l| l.contains("sh: could not load the library, which its user may not read"))
        {
            true => Ok(()),
            false => Err(format!("{lost:?}")),
        }
    });
}

/// B1: where the GNU C library's dynamic linker isn't there (Alpine), a program starts as it would, and the report says that nothing came of it.
#[test]
fn a_system_with_another_linker_is_left_alone() {
    let dir = fresh("elsewhere");
    if !is_root() {
        return skip_unprivileged("elsewhere", "only root can change its root");
    }
    let is_static = Command::new("ldd").arg(outrider()).output().unwrap();
    if text(&is_static.stdout).contains("libc.so") {
        return skip(
            "elsewhere",
            "this build of the command needs the GNU C library's linker itself",
        );
    }
    let made = foreign(true, &dir).unwrap();
    let root = dir.join("root");
    for part in ["proc", "mnt", "dev", "tmp", "etc"] {
        fs::create_dir_all(root.join(part)).unwrap();
    }
    fs::copy(outrider(), root.join("outrider")).unwrap();
    fs::copy(library(), root.join("liboutrider.so")).unwrap();
    fs::copy(&made, root.join("program")).unwrap();
    let linker = dir.join("ld-wide.so.1");
    let inside = root.join(linker.strip_prefix("/").unwrap());
    fs::create_dir_all(inside.parent().unwrap()).unwrap();
    fs::copy(&linker, &inside).unwrap();
    fs::write(root.join("script"), "#!/program\n").unwrap();
    fs::set_permissions(root.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    // Unmounted when it is dropped: its name for that is mnt.
    let _proc = match Mounted::by(
        "mount -t proc proc mnt && rmdir proc && ln -s mnt proc",
        &root,
    ) {
        Ok(mounted) => mounted,
        Err(e) => return skip("elsewhere", &e),
    };
    let within = |argv: &[&str]| {
        let mut command = Command::new("chroot");
        plain_environment(&mut command, &dir);
        command
            .arg(&root)
            .args(argv)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    for target in ["/program", "/script"] {
        let plain = within(&[target, "a"]);
        assert!(plain.status.success());
        assert_eq!(
            seen(&plain),
            seen(&within(&["/outrider", "run", "--", target, "a"]))
        );
        let report = root.join("report");
        let ours = within(&["/outrider", "run", "--report=/report", "--", target, "a"]);
        assert_eq!(seen(&plain), seen(&ours));
        assert!(!lost(&report).is_empty(), "{:?}", lost(&report));
        fs::remove_file(report).unwrap();
    }
}

/// S3, B16: a set-user-ID or set-group-ID program, or one with file capabilities, that is linked with the library does nothing that its
/// caller's environment says, and attaches to nothing.
#[test]
fn privileged_programs_heed_no_environment() {
    if !is_root() {
        return skip_unprivileged("privileged", "only root can make a set-user-ID program");
    }
    // Where others get at it.
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    install(&library(), &dir.join("liboutrider.so"), 0o755);
    install(&outrider(), &dir.join("outrider"), 0o755);
    let _ = std::os::unix::fs::symlink("liboutrider.so", dir.join("liboutrider.so.0"));
    let made = compile(
        "privileged",
        "privileged",
        &[
            "-O1",
            "-I",
            repository().join("include").to_str().unwrap(),
            "-L",
            dir.to_str().unwrap(),
            "-loutrider",
            &format!("-Wl,-rpath,{}", dir.display()),
        ],
    );
    fs::write(dir.join("data"), Random(7).bytes(8 << 20)).unwrap();
    fs::set_permissions(dir.join("data"), fs::Permissions::from_mode(0o644)).unwrap();
    // What only root may write to, and what is everybody's.
    let told = dir.join("told");
    fs::write(&told, "").unwrap();
    fs::set_permissions(&told, fs::Permissions::from_mode(0o666)).unwrap();
    let call = |name: &str, user: &str| {
        fs::write(&told, "").unwrap();
        make_cold(dir);
        let mut command = Command::new("setpriv");
        plain_environment(&mut command, dir);
        let output = command
            .args([
                &format!("--reuid={user}"),
                &format!("--regid={user}"),
                "--clear-groups",
            ])
            .arg(dir.join("outrider"))
            .args(["run", "--"])
            .arg(dir.join(name))
            .arg(dir.join("data"))
            .env("OUTRIDER_EXPLAIN", &told)
            .env("OUTRIDER_ORDER", "rounds")
            .current_dir("/")
            .output()
            .unwrap();
        (
            text(&output.stdout),
            text(&output.stderr),
            fs::read_to_string(&told).unwrap(),
        )
    };
    let copy = |name: &str, mode: u32| {
        let path = dir.join(name);
        install(&made, &path, 0o755);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    // Without privileges all of it counts: otherwise nothing would be shown.
    copy("usual", 0o755);
    let (out, err, explained) = call("usual", "65534");
    assert_eq!(
        (out.as_str(), err.as_str()),
        ("declared 2, read 131072, attached\n", "")
    );
    assert!(!explained.is_empty());
    copy("user", 0o4755);
    copy("group", 0o2755);
    let able = copy("capable", 0o755);
    let mut names = vec!["user", "group"];
    // VFS_CAP_REVISION_2, effective: CAP_NET_RAW.
    let mut value = [0u8; 20];
    value[..4].copy_from_slice(&0x0200_0001u32.to_le_bytes());
    value[4..8].copy_from_slice(&(1u32 << 13).to_le_bytes());
    let path = CString::new(able.as_os_str().as_bytes()).unwrap();
    // SAFETY: C strings, and so many bytes.
    let set = unsafe {
        libc::setxattr(
            path.as_ptr(),
            c"security.capability".as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    match set {
        0 => names.push("capable"),
        _ => skip("privileged", "this file system has no file capabilities"),
    }
    for name in names {
        let (out, err, explained) = call(name, "65534");
        assert_eq!(
            (out.as_str(), err.as_str()),
            ("declared 2, read 131072, alone\n", ""),
            "{name}"
        );
        assert_eq!(explained, "", "{name}");
    }
}
