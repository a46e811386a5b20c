//! The Python package as people get it and beside what they use it with (SPEC B8): the wheel in a fresh environment, PyTorch's DataLoader,
//! and the libraries whose files it knows the layout of.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use support::{fresh, have, outrider, repository, skip};

/// What the formats are checked with, from PyPI.
const PACKAGES: [&str; 8] = [
    "gguf",
    "numpy",
    "h5py",
    "mypy",
    "pyarrow",
    "safetensors",
    "webdataset",
    "zarr",
];

/// A command that succeeds, and what it printed. PyPI's clients need the environment as it is.
fn output<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[S], dir: &Path) -> String {
    let mut command = Command::new("timeout");
    command.arg("300").arg(program.as_ref());
    let output = command
        .args(arguments)
        .current_dir(dir)
        .env_remove("PYTHONPATH")
        .env_remove("OUTRIDER_LIBRARY")
        .env_remove("MAKEFLAGS")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{:?}: {}\n{}{}",
        program.as_ref(),
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a script of tests/programs with the package as it lies in the source tree.
fn script(python: &Path, name: &str, arguments: &[&str], work: &Path) -> String {
    let mut all = vec![
        format!("PYTHONPATH={}", repository().join("python").display()),
        format!("OUTRIDER_LIBRARY={}", library().display()),
        python.display().to_string(),
        repository()
            .join("tests/programs")
            .join(name)
            .display()
            .to_string(),
    ];
    all.extend(arguments.iter().map(|a| (*a).to_owned()));
    output("env", &all, work)
}

fn library() -> PathBuf {
    outrider().with_file_name("liboutrider.so")
}

/// The system's Python where it has PyTorch, or the one at OUTRIDER_TORCH.
fn with_torch() -> Option<PathBuf> {
    let named = std::env::var_os("OUTRIDER_TORCH").map(PathBuf::from);
    let pythons = named.into_iter().chain([PathBuf::from("/usr/bin/python3")]);
    pythons.into_iter().find(|python| {
        Command::new(python)
            .args(["-c", "import torch"])
            .output()
            .is_ok_and(|o| o.status.success())
    })
}

/// An environment with [`PACKAGES`], made once.
fn with_packages() -> PathBuf {
    static MADE: Mutex<()> = Mutex::new(());
    let _made = MADE.lock().unwrap_or_else(|e| e.into_inner());
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache"),
        PathBuf::from,
    );
    let venv = cache.join("outrider/venv-python");
    let python = venv.join("bin/python");
    let imports = format!("import {}", PACKAGES.join(", "));
    let there = Command::new(&python).args(["-c", &imports]).output();
    if !there.is_ok_and(|o| o.status.success()) {
        let here = Path::new("/");
        let venv = venv.to_str().unwrap();
        output("/usr/bin/python3", &["-m", "venv", venv], here);
        let install = ["-m", "pip", "install", "--quiet"];
        output(&python, &[&install[..], &PACKAGES].concat(), here);
    }
    python
}

/// From nothing to a prefetching DataLoader: the wheel is made, installed without a network, and used.
#[test]
fn a_wheel_is_all_that_a_fresh_environment_needs() {
    let name = "a_wheel_is_all_that_a_fresh_environment_needs";
    if !Path::new("/usr/share/doc/python3-venv").exists() || !have("readelf") {
        return skip(name, "python3-venv or binutils is not installed");
    }
    let Some(python) = with_torch() else {
        return skip(name, "python3-torch is not installed");
    };
    let work = fresh("wheel");
    let dist = work.join("dist");
    let from = outrider().parent().unwrap().display().to_string();
    let make = [
        "wheel".to_owned(),
        format!("DIST={}", dist.display()),
        format!("FROM={from}"),
        "PYTHON=/usr/bin/python3".to_owned(),
    ];
    output("make", &make, &repository());
    let wheels: Vec<_> = fs::read_dir(&dist).unwrap().flatten().collect();
    let [wheel] = wheels.as_slice() else {
        panic!("{wheels:?}");
    };
    let wheel = wheel.path();
    let file_name = wheel.file_name().unwrap().to_str().unwrap();

    let venv = work.join("venv");
    // PyTorch is the system's: 150 MB are no part of what is tested.
    let words = ["-m", "venv", "--system-site-packages"];
    let place = venv.to_str().unwrap();
    output(&python, &[&words[..], &[place]].concat(), &work);
    let python = venv.join("bin/python");
    let wheel = wheel.to_str().unwrap();
    let pip = ["-m", "pip", "install", "--quiet", "--no-index", wheel];
    output(&python, &pip, &work);

    // What it is named after is what it needs.
    let package = "import os, outrider; print(os.path.dirname(outrider.__file__))";
    let package = output(&python, &["-c", package], &work);
    let package = Path::new(package.trim_end());
    assert!(package.starts_with(&venv), "{package:?}");
    let binaries = [
        package.join("lib/liboutrider.so"),
        package.join("bin/outrider"),
    ];
    let versions = output(
        "readelf",
        &[
            "-VW",
            binaries[0].to_str().unwrap(),
            binaries[1].to_str().unwrap(),
        ],
        &work,
    );
    let newest = versions
        .split("Name: GLIBC_2.")
        .skip(1)
        .map(|v| v.split([' ', '.']).next().unwrap().parse::<u32>().unwrap())
        .max()
        .unwrap();
    let tag = format!("-py3-none-manylinux_2_{}_x86_64.whl", newest.max(17));
    assert!(file_name.ends_with(&tag), "{file_name} {tag}");
    assert!(package.join("py.typed").exists());

    let version = output(outrider(), &["--version"], &work);
    assert_eq!(
        output(&python, &["-m", "outrider", "--version"], &work),
        version
    );
    assert_eq!(
        output(venv.join("bin/outrider"), &["--version"], &work),
        version
    );
    let number = version.trim_end().replace("outrider ", "outrider-");
    assert!(file_name.starts_with(&format!("{number}-")), "{file_name}");
    fs::write(work.join("text"), "what is read\n").unwrap();
    let run = ["-m", "outrider", "run", "--", "cat", "text"];
    assert_eq!(output(&python, &run, &work), "what is read\n");

    let seen = "import outrider; print(outrider.seen, outrider.stats().failures)";
    let run = ["-m", "outrider", "run", "--", "python3", "-c", seen];
    let path = format!("PATH={}:/usr/bin:/bin", venv.join("bin").display());
    let words = [&[path.as_str(), python.to_str().unwrap()][..], &run].concat();
    assert_eq!(output("env", &words, &work), "True 0\n");

    let data = work.join("data");
    fs::create_dir(&data).unwrap();
    let loader = repository().join("tests/programs/torch_loader.py");
    let words = [loader.to_str().unwrap(), data.to_str().unwrap()];
    let said = output(&python, &words, &work);
    assert!(said.starts_with("well, PyTorch "), "{said}");
}

/// Two processes of torch.distributed, each with its shard and its own list.
#[test]
fn each_rank_declares_its_shard() {
    let Some(python) = with_torch() else {
        return skip(
            "each_rank_declares_its_shard",
            "python3-torch is not installed",
        );
    };
    let work = fresh("ranks");
    let words = ["--ranks", work.to_str().unwrap()];
    let said = script(&python, "torch_loader.py", &words, &work);
    assert!(said.starts_with("well, PyTorch "), "{said}");
}

#[test]
fn the_layouts_of_formats_are_what_their_libraries_read() {
    let name = "the_layouts_of_formats_are_what_their_libraries_read";
    if !Path::new("/usr/share/doc/python3-venv").exists() {
        return skip(name, "python3-venv is not installed");
    }
    let work = fresh("formats");
    let python = with_packages();
    let said = script(
        &python,
        "python_formats.py",
        &[work.to_str().unwrap()],
        &work,
    );
    assert!(said.starts_with("well, "), "{said}");
    let binding = script(&python, "python_binding.py", &[data(&work)], &work);
    assert_eq!(binding, "well, reads told\n");
}

/// A file as python_binding.py wants it; that test runs without numpy elsewhere.
fn data(work: &Path) -> &'static str {
    fs::write(work.join("data"), support::Random(5).bytes(256 * 4096)).unwrap();
    "data"
}

#[test]
fn the_package_is_typed() {
    if !Path::new("/usr/share/doc/python3-venv").exists() {
        return skip("the_package_is_typed", "python3-venv is not installed");
    }
    let python = with_packages();
    let cache = fresh("mypy");
    let words = ["-m", "mypy", "--cache-dir", cache.to_str().unwrap()];
    output(&python, &words, &repository().join("python"));
}
