//! Thread-local storage that is there from a thread's beginning.
//!
//! Rust's `thread_local!` in a shared library asks the C library where the variable is (`__tls_get_addr`), which may allocate on a thread's
//! first call, and so within the program's allocator or a signal handler. Initial-exec storage is part of the thread, at a fixed distance from the thread
//! pointer, and zero at first.

use core::sync::atomic::AtomicU64;

/// A relaxed load that may become part of the instruction which compares it: the compiler leaves an atomic one by itself. For what every read looks at.
#[inline(always)]
pub fn peek(word: &AtomicU64) -> u64 {
    // SAFETY: an aligned word, which is only ever stored whole.
    unsafe { word.as_ptr().read_volatile() }
}

/// A variable of so many bytes for each thread, by the name of its symbol, as a function that finds the calling thread's.
macro_rules! initial_exec {
    ($(#[$doc:meta])* $vis:vis fn $name:ident() -> *mut $type:ty = $symbol:literal, $bytes:literal bytes) => {
        core::arch::global_asm!(
            concat!(".pushsection .tbss.", $symbol, ",\"awT\",@nobits"),
            ".p2align 3",
            concat!(".type ", $symbol, ", @object"),
            concat!(".size ", $symbol, ", ", $bytes),
            concat!(".hidden ", $symbol),
            concat!(".globl ", $symbol),
            concat!($symbol, ":"),
            concat!(".zero ", $bytes),
            ".popsection",
        );

        const _: () = assert!(size_of::<$type>() == $bytes && align_of::<$type>() <= 8);

        $(#[$doc])*
        #[inline(always)]
        $vis fn $name() -> *mut $type {
            let at: *mut $type;
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the thread pointer and an offset that the dynamic linker has put into the global offset table.
            unsafe {
                core::arch::asm!(
                    concat!("mov {at}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "add {at}, qword ptr fs:[0]",
                    at = out(reg) at,
                    options(pure, nomem, nostack)
                );
            }
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            unsafe {
                core::arch::asm!(
                    concat!("adrp {at}, :gottprel:", $symbol),
                    concat!("ldr {at}, [{at}, :gottprel_lo12:", $symbol, "]"),
                    "mrs {base}, tpidr_el0",
                    "add {at}, {at}, {base}",
                    at = out(reg) at,
                    base = out(reg) _,
                    options(pure, nomem, nostack)
                );
            }
            at
        }
    };
}

pub(crate) use initial_exec;
