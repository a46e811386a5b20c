//! Random numbers that are a function of where they are used, so that neither threads nor order matter. The drivers in
//! C++ have the same.

/// The finaliser of SplitMix64: a bijection of 64 bits that mixes well.
pub fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The `k`-th random number of operation `i`.
pub fn draw(seed: u64, i: u64, k: u64) -> u64 {
    mix(mix(mix(seed).wrapping_add(i)).wrapping_add(k))
}
