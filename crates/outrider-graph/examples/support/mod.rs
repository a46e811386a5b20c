//! What the examples share: the engine's name on the command line, cold files, and one line of result.
#![allow(dead_code)] // each example uses its part

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use outrider_graph::{Counts, Engine};

/// The arguments, without `--engine=NAME`, and the engine.
pub fn arguments(usage: &str) -> (Vec<String>, Engine) {
    let mut engine = Engine::Auto;
    let mut rest = Vec::new();
    for a in std::env::args().skip(1) {
        match a.strip_prefix("--engine=") {
            Some("auto") => engine = Engine::Auto,
            Some("uring") => engine = Engine::Uring,
            Some("threads") => engine = Engine::Threads,
            Some("check") => engine = Engine::Check,
            Some(other) => fail(&format!(
                "no engine {other:?}; there are auto, uring, threads, check"
            )),
            None => rest.push(a),
        }
    }
    if rest.is_empty() || rest[0].starts_with('-') {
        fail(&format!(
            "usage: {usage} [--engine=auto|uring|threads|check]"
        ));
    }
    (rest, engine)
}

/// Says what is wrong and ends.
pub fn fail(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(2);
}

/// Opens a file or ends.
pub fn open(path: &str) -> File {
    File::open(path).unwrap_or_else(|e| fail(&format!("{path}: {e}")))
}

/// Takes a file's clean pages out of the page cache.
pub fn cool(file: &File) {
    // SAFETY: integers only.
    unsafe {
        libc::fsync(file.as_raw_fd());
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
    }
}

/// How long `run` takes, and what it gives.
pub fn timed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let r = run();
    (r, began.elapsed())
}

/// Compares and prints; the exit code says whether the results were the same.
pub fn conclude<T: PartialEq>(
    serial: (T, Duration),
    graph: (T, Duration),
    counts: Counts,
    problems: &[String],
) {
    let same = serial.0 == graph.0;
    println!(
        "serial {:?}, graph {:?}, results {}",
        serial.1,
        graph.1,
        if same { "equal" } else { "DIFFERENT" }
    );
    println!("{counts}");
    for p in problems {
        println!("problem: {p}");
    }
    std::process::exit(i32::from(!same || !problems.is_empty()));
}
