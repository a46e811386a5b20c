//! Whether this process runs on Valgrind, which complains on standard error of each system call that it doesn't know.

/// Whether this process runs on Valgrind (`RUNNING_ON_VALGRIND` of valgrind.h): instructions that change nothing, and that Valgrind takes for a request. No
/// memory is written and no call made, so it may be asked anywhere; a few nanoseconds. `false` on processors other than x86-64 and AArch64.
#[inline]
pub fn is_below() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    ask(&request) != 0
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn ask(request: &[usize; 6]) -> usize {
    let mut answer = 0usize;
    // SAFETY: four rotations by 128 bits together, and an exchange of a register with itself. Valgrind puts its answer into rdx.
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack, readonly)
        );
    }
    answer
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn ask(request: &[usize; 6]) -> usize {
    let mut answer = 0usize;
    // SAFETY: four rotations by 128 bits together, and a register combined with itself. Valgrind puts its answer into x3.
    unsafe {
        core::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") request.as_ptr(),
            inout("x3") answer,
            options(nostack, readonly)
        );
    }
    answer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
fn ask(_: &[usize; 6]) -> usize {
    0
}

#[cfg(test)]
mod tests {
    #[test]
    fn tests_run_without() {
        let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
        assert_eq!(super::is_below(), preloaded.contains("vgpreload"));
    }
}
