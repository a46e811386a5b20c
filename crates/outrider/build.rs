//! How the command is linked.

#[path = "../liboutrider/unwinder.rs"]
mod unwinder;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../liboutrider/unwinder.rs");
    unwinder::find();
}
