//! How the library is linked.

// What runs here is the build, not a program of somebody's.
#![allow(clippy::disallowed_methods)]

use std::path::Path;

#[path = "../outrider/unwinder.rs"]
mod unwinder;

/// The name that programs linked with the library ask for at run time.
const SONAME: &str = "liboutrider.so.0";

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
    // Its threads and hooks must not lose their code to a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // One name of a function calls the other of its own, whatever the program calls its functions: `open` of a program that calls `open64`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../outrider/unwinder.rs");
    unwinder::find();
    // Beside the library, so that a program built with -L and -rpath of the build directory runs. OUT_DIR is three levels below.
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    if let Some(profile) = Path::new(&out).ancestors().nth(3) {
        let _ = std::os::unix::fs::symlink("liboutrider.so", profile.join(SONAME));
    }
}
