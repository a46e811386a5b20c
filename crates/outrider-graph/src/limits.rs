//! Bounds that several rooms go by.

/// Most calls that are looked ahead: the depth of the paper's deepest experiments.
pub const DEEPEST_WINDOW: usize = 256;
/// Places of a thread: a full window, and as many that still wait for results that nobody wants.
pub const PLACES: usize = 2 * DEEPEST_WINDOW;
/// Bytes that are looked ahead at first, where all calls are certain: what keeps a disk of 1 GB/s and 1 ms busy.
pub const FIRST_BYTES: usize = 1 << 20;
