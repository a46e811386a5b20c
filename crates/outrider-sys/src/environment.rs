//! What the environment says to the libraries.
//!
//! They run in other people's programs, also in those that have rights which their caller hasn't: set-user-ID, set-group-ID, or
//! with file capabilities. The environment is the caller's, so that in such a program none of it is looked at
//! (as by secure_getenv(3)). Library code reads variables by this module alone.

use core::ffi::CStr;

/// Whether the program has rights that its caller hasn't (AT_SECURE of getauxval(3)).
pub fn is_secure() -> bool {
    // SAFETY: reads what the kernel told the process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The value of a variable of ours. `None` where there is none, and in programs with rights that their caller hasn't.
///
/// # Safety
/// As for getenv(3): nobody changes the environment meanwhile, nor as long as the value is used.
pub unsafe fn variable<'a>(name: &CStr) -> Option<&'a CStr> {
    if is_secure() {
        return None;
    }
    // SAFETY: C strings; as promised.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value))
    }
}
