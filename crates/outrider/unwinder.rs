//! The compiler's unwinder, linked in.
//!
//! Rust's standard library asks for libgcc_s.so, for the backtrace of a panic. Loading it takes a process 0.1 ms before its first
//! instruction (its constructor asks for the processor's features, which is dear in virtual machines), and every program that
//! `outrider run` starts would pay that. Shared by the build scripts of the library and of the command.

use std::path::Path;
use std::process::Command;

/// Where the compiler has the unwinder as an archive, says where, and sets `static_unwinder`; else libgcc_s.so it is.
pub fn find() {
    println!("cargo::rustc-check-cfg=cfg(static_unwinder)");
    println!("cargo::rerun-if-env-changed=CC");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let native = std::env::var("HOST") == std::env::var("TARGET");
    let answer = Command::new(compiler)
        .arg("-print-file-name=libgcc_eh.a")
        .output();
    let Some(answer) = answer.ok().filter(|_| native) else {
        return;
    };
    // A compiler that has none answers with the bare name.
    let text = String::from_utf8_lossy(&answer.stdout);
    let archive = Path::new(text.trim());
    if let Some(directory) = archive
        .parent()
        .filter(|_| archive.is_absolute() && archive.is_file())
    {
        println!("cargo::rustc-link-search=native={}", directory.display());
        println!("cargo::rustc-cfg=static_unwinder");
    }
}
