//! How the command is linked.

#[path = "unwinder.rs"]
mod unwinder;

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=unwinder.rs");
    println!("cargo::rustc-check-cfg=cfg(fast_start)");
    if std::env::var("HOST") == std::env::var("TARGET")
        && std::env::var("TARGET").is_ok_and(|t| t == "x86_64-unknown-linux-gnu")
        // Unoptimised code calls memcpy(3) wherever a structure is moved.
        && std::env::var("OPT_LEVEL").is_ok_and(|level| level != "0")
    {
        // Without the archives the command is linked as others are, and starts its programs later.
        let _ = link_statically();
    }
    unwinder::find();
}

/// Links the command with the C library's archives, and gives it an entry of its own: see src/fast_start.rs.
fn link_statically() -> Option<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR")?).join("static");
    std::fs::create_dir_all(&out).ok()?;
    // The compiler asks for shared libraries by these names, and finds the archives behind them.
    let stand_in = |directory: &Path, name: &str, archive: PathBuf| {
        let script = format!("INPUT({})\n", archive.display());
        std::fs::write(directory.join(format!("lib{name}.so")), script).ok()
    };
    for name in ["c", "m", "util", "rt", "pthread", "dl"] {
        stand_in(&out, name, archive(name)?)?;
    }
    // This one lies where the compiler's own directory, which has the archive, would be looked into first.
    let unwinder = out.join("unwinder");
    std::fs::create_dir_all(&unwinder).ok()?;
    stand_in(&unwinder, "gcc_s", archive("gcc_eh")?)?;
    println!("cargo::rustc-link-search=native={}", unwinder.display());
    println!("cargo::rustc-cfg=fast_start");
    for argument in [
        format!("-L{}", out.display()),
        // At fixed addresses, because nobody has relocated anything at the entry.
        "-no-pie".to_owned(),
        "-static".to_owned(),
        "-Wl,--entry=outrider_entry".to_owned(),
    ] {
        println!("cargo::rustc-link-arg-bin=outrider={argument}");
    }
    Some(())
}

/// Where the compiler finds lib`name`.a; it answers with the bare name of one that it hasn't got.
fn archive(name: &str) -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let answer = Command::new(compiler)
        .arg(format!("-print-file-name=lib{name}.a"))
        .output()
        .ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    let path = Path::new(text.trim());
    (path.is_absolute() && path.is_file()).then(|| path.to_owned())
}
