//! Memory from the kernel, without passing through the program's allocator or anyone's hooks.

use outrider_sys::raw::syscall6;

/// New zeroed memory of `len` bytes, aligned to a page.
pub fn map(len: usize) -> Option<*mut u8> {
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let r = unsafe {
        syscall6(
            libc::SYS_mmap,
            0,
            len,
            (libc::PROT_READ | libc::PROT_WRITE) as usize,
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize,
            usize::MAX,
            0,
        )
    };
    (!(-4095..=0).contains(&r)).then_some(r as *mut u8)
}

/// Gives memory of [`map`] back; nothing may refer to it.
pub fn unmap(at: *mut u8, len: usize) {
    // SAFETY: a mapping of ours.
    unsafe { syscall6(libc::SYS_munmap, at as usize, len, 0, 0, 0, 0) };
}

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
