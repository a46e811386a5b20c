//! The C interface as programs use it: libprefetch's, in C and in C++ (SPEC LP1, LP2), the paper's Figure 7, and the examples (LP9), whose
//! results must be the same whether they declare what they read or not.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use support::{
    Random, fresh, make_cold, outrider, plain_environment, printed, repository, scratch,
};

/// Where liboutrider.so is.
fn library() -> PathBuf {
    outrider().parent().unwrap().to_path_buf()
}

/// The examples, built by their own Makefile without a warning.
fn examples() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let out = scratch().join("examples");
        let made = Command::new("make")
            .arg("-C")
            .arg(repository().join("examples"))
            .arg(format!("OUT={}", out.display()))
            .arg(format!("LIBDIR={}", library().display()))
            .arg("CFLAGS=-O1 -g -Werror")
            .env_remove("MAKEFLAGS")
            .output()
            .unwrap();
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        out
    })
}

/// A program of `tests/c`, built against the library without a warning.
fn built(work: &Path, compiler: &str, flags: &[&str], source: &str) -> PathBuf {
    let program = work.join("program");
    let made = Command::new(compiler)
        .args(flags)
        .args(["-Wall", "-Wextra", "-Werror", "-g"])
        .arg("-I")
        .arg(repository().join("include"))
        .arg(repository().join("tests/c").join(source))
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", library().display()))
        .arg(format!("-Wl,-rpath,{}", library().display()))
        .arg("-loutrider")
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{compiler} {flags:?}: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    program
}

/// Runs a program to its success and returns what it printed.
fn run(work: &Path, program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("timeout");
    plain_environment(&mut command, work);
    printed(
        command
            .arg("90")
            .arg(program)
            .args(arguments)
            .current_dir(work),
    )
}

fn fnv(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(1_099_511_628_211)
    })
}

const FNV: u64 = 14_695_981_039_346_656_037;

/// LP1, LP2: clients, regions, marks, callbacks, ignored reads and every error, compiled as both languages.
#[test]
fn libprefetch_in_c_and_in_cpp() {
    let work = fresh("libprefetch");
    let data = Random(1).bytes(256 * 4096 + 5000);
    fs::write(work.join("data"), &data).unwrap();
    let sum = (0..256).fold(FNV, |h, i| {
        let at = i * 37 % 256 * 4096;
        fnv(h, &data[at..at + 4096])
    });
    for (compiler, flags) in [
        ("cc", ["-std=gnu11", "-xc"]),
        ("cc", ["-std=c11", "-xc"]),
        ("c++", ["-std=c++17", "-xc++"]),
    ] {
        let mut all = vec!["-D_DEFAULT_SOURCE", "-D_POSIX_C_SOURCE=200809L"];
        all.push("-Wpedantic");
        all.extend(flags);
        let program = built(&work, compiler, &all, "libprefetch.c");
        make_cold(&work);
        let printed = run(&work, &program, &["data"]);
        assert_eq!(printed, format!("256 pages, checksum {sum:016x}\n"));
    }
}

/// LP1: exceptions pass through the reads and calls whose callbacks throw them, and nobody counts as within a callback afterwards.
#[test]
#[cfg(target_arch = "x86_64")]
fn callbacks_throw() {
    let work = fresh("thrown");
    fs::write(work.join("data"), Random(1).bytes(64 * 4096)).unwrap();
    let flags = ["-std=c++17", "-D_GNU_SOURCE", "-pthread"];
    let program = built(&work, "c++", &flags, "thrown.cpp");
    assert_eq!(run(&work, &program, &["data"]), "left\n");
}

/// LP1: the paper's example as printed, whose callback makes the list.
#[test]
fn figure_7_as_printed() {
    let work = fresh("figure7");
    let (columns, rows) = (16, 40);
    let data = Random(7).bytes(columns * rows * 4096 + 77);
    fs::write(work.join("swap"), &data).unwrap();
    let mut sum = FNV;
    for column in 0..columns {
        for row in 0..rows {
            let at = (row * columns + column) * 4096;
            sum = fnv(sum, &data[at..at + 4096]);
        }
    }
    make_cold(&work);
    let printed = run(&work, &examples().join("figure7"), &["swap", "16"]);
    assert_eq!(
        printed,
        format!("{} tiles, checksum {sum:016x}\n", columns * rows)
    );
}

/// LP9: the tiled blur gives the same image, and that is what a box blur of the whole image gives.
#[test]
fn blur_with_and_without() {
    let work = fresh("blur");
    let blur = examples().join("blur");
    let (width, height, radius) = (700usize, 459usize, 9i64);
    run(&work, &blur, &["--make", "700x459", "swap"]);
    let swap = fs::read(work.join("swap")).unwrap();
    let (columns, rows) = (width.div_ceil(64), height.div_ceil(64));
    assert_eq!(swap.len(), (1 + columns * rows) * 16384);
    let mut results = Vec::new();
    for (flags, output) in [(vec!["--plain"], "plain.pam"), (vec![], "declared.pam")] {
        fs::write(work.join("swap"), &swap).unwrap();
        make_cold(&work);
        let mut arguments = flags;
        arguments.extend(["--radius", "9", "swap", output]);
        let line = run(&work, &blur, &arguments);
        results.push((line, fs::read(work.join(output)).unwrap()));
    }
    assert!(results[0] == results[1], "declared and plain differ");

    // The naive blur: all of the image, first along rows, then along columns.
    let mut image = vec![[0u8; 4]; width * height];
    for y in 0..height {
        for x in 0..width {
            let tile = 1 + y / 64 * columns + x / 64;
            let at = tile * 16384 + (y % 64 * 64 + x % 64) * 4;
            image[y * width + x] = swap[at..at + 4].try_into().unwrap();
        }
    }
    for (dx, dy) in [(1i64, 0i64), (0, 1)] {
        let from = image.clone();
        for y in 0..height as i64 {
            for x in 0..width as i64 {
                let mut sums = [0u64; 4];
                for k in -radius..=radius {
                    let px = (x + k * dx).clamp(0, width as i64 - 1) as usize;
                    let py = (y + k * dy).clamp(0, height as i64 - 1) as usize;
                    for (sum, value) in sums.iter_mut().zip(from[py * width + px]) {
                        *sum += u64::from(value);
                    }
                }
                image[y as usize * width + x as usize] =
                    sums.map(|s| (s / (2 * radius as u64 + 1)) as u8);
            }
        }
    }
    let pam = &results[0].1;
    let pixels = &pam[pam.len() - width * height * 4..];
    assert!(pixels == image.as_flattened(), "not a box blur");
}

/// The loaders in C and in Rust, of records and of files (B8's pattern), give the same samples in the same order.
#[test]
fn loaders_with_and_without() {
    let work = fresh("loader");
    let mut random = Random(3);
    fs::write(work.join("records"), random.bytes(3_000_000)).unwrap();
    fs::create_dir(work.join("files")).unwrap();
    for i in 0..600 {
        let len = if i % 100 == 0 {
            0
        } else {
            random.next() as usize % 12_000
        };
        fs::write(work.join(format!("files/f{i}")), random.bytes(len)).unwrap();
    }
    let in_rust = Path::new(env!("CARGO_BIN_EXE_outrider"))
        .parent()
        .unwrap()
        .join("examples/loader");
    if !in_rust.exists() {
        // Cargo builds examples with the tests, unless it was asked for single tests.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "-p", "outrider", "--example", "loader"]);
        if in_rust.iter().any(|part| part == "release") {
            build.arg("--release");
        }
        let built = build.output().unwrap();
        assert!(built.status.success() && in_rust.exists());
    }
    for arguments in [
        ["--record", "5000", "--epochs", "2", "records"].as_slice(),
        &["--epochs", "2", "files"],
    ] {
        let mut lines = Vec::new();
        for program in [examples().join("loader"), in_rust.clone()] {
            for plain in [true, false] {
                make_cold(&work);
                make_cold(&work.join("files"));
                let mut all = vec!["--seed", "11"];
                all.extend(plain.then_some("--plain"));
                all.extend(arguments);
                lines.push(run(&work, &program, &all));
            }
        }
        assert!(lines[0].contains("checksum"));
        assert!(lines.iter().all(|l| *l == lines[0]), "{lines:?}");
    }
}

/// Bad arguments: one line that says what was wrong, exit code 2, nothing written.
#[test]
fn examples_refuse_bad_arguments() {
    let work = fresh("arguments");
    for (program, arguments, wrong) in [
        ("blur", vec!["--make", "0x5", "swap"], "WIDTHxHEIGHT"),
        ("blur", vec!["--radius", "x", "swap"], "--radius"),
        ("blur", vec![], "SWAPFILE"),
        ("loader", vec!["--record", "0", "data"], "--record"),
        ("loader", vec!["--epochs", "-1", "data"], "--epochs"),
        ("figure7", vec![], "SWAPFILE"),
    ] {
        let output = Command::new(examples().join(program))
            .args(&arguments)
            .current_dir(&work)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{program} {arguments:?}");
        assert!(said.contains(wrong), "{program} {arguments:?}: {said}");
    }
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
}

/// Every function of the headers has a manual page that names it, of its own or shared with its kin, and both commands have one.
#[test]
fn every_function_has_a_page() {
    let root = repository();
    let file = |name: &str| fs::read_to_string(root.join("man").join(name)).unwrap_or_default();
    let page = |name: &str| {
        let text = file(name);
        let other = text.strip_prefix(".so man3/").map(str::trim_end);
        other.map(file).unwrap_or(text)
    };
    let mut functions = 0;
    for header in ["outrider.h", "libprefetch.h", "outrider_graph.h"] {
        let text = fs::read_to_string(root.join("include").join(header)).unwrap();
        for line in text.lines() {
            // Declarations and inline functions begin at the margin; what is private has a name that says so.
            let (Some(open), false) = (line.find('('), line.starts_with([' ', '/', '#', '}']))
            else {
                continue;
            };
            let Some(name) = line[..open].rsplit([' ', '*']).next() else {
                continue;
            };
            if line.starts_with("typedef") || name.is_empty() || name.starts_with("libprefetch_") {
                continue;
            }
            functions += 1;
            let page = page(&format!("{name}.3"));
            let named = page
                .lines()
                .skip_while(|l| *l != ".SH NAME")
                .nth(1)
                .and_then(|l| l.split_once(" \\- "))
                .is_some_and(|(names, _)| names.split(", ").any(|n| n == name));
            assert!(
                named && page.contains(&format!("{name}(")),
                "{header}: {name} has no page"
            );
        }
    }
    assert_eq!(functions, 12 + 7 + 32);
    for command in ["outrider", "outrider-lab"] {
        assert!(page(&format!("{command}.1")).contains(".SH SYNOPSIS"));
    }
}
