//! The interface for Rust (SPEC LP1) is the one that is written down, in `public-api.txt`: whoever changes it sees what changes for others.
//!
//! It is read off the compiler's own description of the crates, whose form no version of the compiler promises. A compiler that is newer than the
//! reader of it is said to be, and the test is left out.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use support::{repository, skip_unprivileged};

const HOW: &str = "OUTRIDER_REGENERATE=1 cargo test -p outrider --test public_api";

/// Has rustdoc describe a crate; the file it wrote.
fn described(package: &str, features: &[&str]) -> PathBuf {
    // Others' build scripts ask what the compiler can do, and would be built anew for each answer.
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("public-api");
    let output = Command::new(env!("CARGO"))
        .args(["rustdoc", "--locked", "--lib", "-p", package])
        .args(features)
        .arg("--target-dir")
        .arg(&target)
        .args(["--", "-Zunstable-options", "--output-format=json"])
        // The description is not for stable compilers otherwise; the library itself is built without.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(repository())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    target.join(format!("doc/{}.json", package.replace('-', "_")))
}

#[test]
fn the_interface_is_the_one_that_is_written_down() {
    let name = "the_interface_is_the_one_that_is_written_down";
    let mut there = String::new();
    let graph = ["--no-default-features", "--features", "graph"];
    for (package, features) in [("outrider", &graph[..]), ("outrider-graph", &[])] {
        let api = public_api::Builder::from_rustdoc_json(described(package, features))
            .omit_blanket_impls(true)
            .omit_auto_trait_impls(true)
            .omit_auto_derived_impls(true)
            .build();
        let api = match api {
            Ok(api) => api,
            Err(e) => {
                let reason = format!("this compiler describes crates in another form: {e}");
                return skip_unprivileged(name, &reason);
            }
        };
        for item in api.items() {
            there.push_str(&format!("{item}\n"));
        }
    }
    assert!(there.contains("outrider::Declared"), "{there}");
    let path = repository().join("crates/outrider/public-api.txt");
    if std::env::var_os("OUTRIDER_REGENERATE").is_some() {
        return fs::write(path, there).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differs = written.lines().zip(there.lines()).find(|(a, b)| a != b);
    assert!(
        written == there,
        "crates/outrider/public-api.txt is not what the code has; `{HOW}` writes it anew. The first line that differs, written and there: {differs:#?}"
    );
}
