//! Calls that reach the C library past its names, and what the hooks may ask the kernel then (SPEC B11, B16).

mod support;

use support::{Case, Data, check, program};

/// SPEC B11: a program that forbids itself system calls through a handle of the C library isn't killed for ours; what a handle gives
/// is what a name gives, each time.
#[test]
fn functions_by_a_handle() {
    let by_handle = program("by_handle").display().to_string();
    let cases = ["same", "linked", "handle"]
        .map(|how| Case::argv(how, &[by_handle.as_str(), how, "big.dat"]).data(&[Data::Big]));
    check(cases.into());
}
