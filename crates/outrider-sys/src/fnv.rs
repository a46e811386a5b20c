//! FNV-1a with 64 bits: tells names from others where nobody tries to find two that are alike.

/// Of no bytes.
pub const NOTHING: u64 = 0xcbf2_9ce4_8422_2325;

/// Of what has this hash, and one byte more.
#[inline(always)]
pub const fn then(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x100_0000_01b3)
}
