//! Maps whose order is the same in every run with the same key, and nobody's to choose without it.

use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};

/// A map that is hashed with a key.
pub type Map<K, V> = HashMap<K, V, Keyed>;

/// The key.
#[derive(Clone, Copy, Debug)]
pub struct Keyed(u64);

impl Keyed {
    /// A key that nobody knows.
    pub fn random() -> Keyed {
        Keyed(RandomState::new().hash_one(0u8))
    }

    /// A key that is known: of a simulation.
    pub const fn with(key: u64) -> Keyed {
        Keyed(key)
    }
}

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}
