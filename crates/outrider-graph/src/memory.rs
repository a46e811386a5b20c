//! Memory from the kernel, without passing through the program's allocator or anyone's hooks.

pub use outrider_sys::mapped::{Fifo, Mapped, Row, map, unmap};
use outrider_sys::raw::syscall6;

/// madvise(2) on memory of [`map`]; whether the kernel took it.
pub fn advise(at: *mut u8, len: usize, advice: i32) -> bool {
    // SAFETY: a mapping of ours.
    unsafe {
        syscall6(
            libc::SYS_madvise,
            at as usize,
            len,
            advice as usize,
            0,
            0,
            0,
        ) == 0
    }
}
