//! What the tests share.
#![allow(dead_code)] // each takes a part of it

use std::io::Write;
use std::path::{Path, PathBuf};

/// `$OUTRIDER_BIN`, or the release build that `make build` leaves.
pub fn outrider() -> PathBuf {
    if let Some(named) = std::env::var_os("OUTRIDER_BIN") {
        return PathBuf::from(named);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let found = target.join("release/outrider");
    assert!(
        found.is_file() && found.with_file_name("liboutrider.so").is_file(),
        "no {} with liboutrider.so beside it: `make build` first",
        found.display()
    );
    found.canonicalize().unwrap()
}

/// Whether `program` is found in PATH.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Says that something was not tested, past the capture of test output; where all must be tested, that is a failure.
pub fn skip(name: &str, reason: &str) {
    let required = ["CI", "OUTRIDER_REQUIRE_ALL"]
        .map(std::env::var_os)
        .iter()
        .any(Option::is_some);
    assert!(
        !required,
        "{name}: {reason}, and nothing may be skipped here"
    );
    let _ = writeln!(std::io::stderr(), "SKIP {name}: {reason}");
}
