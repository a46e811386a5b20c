//! Raw system calls and kernel facts. No policy lives here.

pub mod below;
pub mod cache;
pub mod caps;
pub mod child;
pub mod counters;
pub mod device;
pub mod environment;
pub mod extent;
pub mod fnv;
pub mod handover;
pub mod kernel_cache;
pub mod life;
pub mod look_up;
pub mod mapped;
pub mod memory;
pub mod pagemap;
pub mod peers;
pub mod program;
pub mod raw;
pub mod ring;
pub mod seccomp;
pub mod size;
pub mod standing;
pub mod text;
pub mod threads;
pub mod units;
pub mod valgrind;

/// A number that is nothing but digits. Allocates nothing.
pub fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, d| {
        let digit = d.is_ascii_digit().then(|| u64::from(d - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}
