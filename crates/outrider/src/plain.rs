//! Texts and system calls before the C library has started: see `fast_start`. Bytes are read and written as volatile ones, because the compiler makes calls of the
//! library's functions out of loops over others.

use outrider_sys::raw;

/// A text that ends with a zero byte, as the kernel hands them over.
pub type Text = *const u8;

/// struct sigaction of the kernel.
#[repr(C)]
pub struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

/// # Safety
/// The byte is there. For this and all that follow: texts end with a zero byte, and arrays of texts with a null pointer.
pub unsafe fn byte(text: Text, i: usize) -> u8 {
    // SAFETY: as promised.
    unsafe { text.add(i).read_volatile() }
}

pub unsafe fn length(text: Text) -> usize {
    let mut n = 0;
    // SAFETY: a text ends with a zero byte.
    while unsafe { byte(text, n) } != 0 {
        n += 1;
    }
    n
}

/// What follows `prefix` in `text`, if it begins so.
pub unsafe fn after(text: Text, prefix: &[u8]) -> Option<Text> {
    for i in 0..prefix.len() {
        // SAFETY: the text goes on at least to the first difference.
        if unsafe { byte(text, i) != byte(prefix.as_ptr(), i) } {
            return None;
        }
    }
    // SAFETY: within the text, or at its end.
    Some(unsafe { text.add(prefix.len()) })
}

pub unsafe fn equals(text: Text, other: &[u8]) -> bool {
    // SAFETY: within the text, or at its end.
    unsafe { after(text, other).is_some_and(|rest| byte(rest, 0) == 0) }
}

pub unsafe fn call(n: i64, a: usize, b: usize, c: usize, d: usize) -> isize {
    // SAFETY: as the caller promises.
    unsafe { raw::syscall6(n, a, b, c, d, 0, 0) }
}

/// The value of a variable of the environment.
pub unsafe fn variable(environment: *const Text, name: &[u8]) -> Option<Text> {
    let mut i = 0;
    // SAFETY: the array ends with a null pointer.
    unsafe {
        loop {
            let entry = environment.add(i).read_volatile();
            if entry.is_null() {
                return None;
            }
            if let Some(value) = after(entry, name) {
                return Some(value);
            }
            i += 1;
        }
    }
}

/// A number of at most nine digits.
pub unsafe fn number(mut digits: Text) -> Option<usize> {
    let mut n = 0;
    // SAFETY: a text ends with a zero byte.
    unsafe {
        while byte(digits, 0).is_ascii_digit() {
            n = 10 * n + usize::from(byte(digits, 0) - b'0');
            (n < 1 << 30).then_some(())?;
            digits = digits.add(1);
        }
    }
    Some(n)
}
