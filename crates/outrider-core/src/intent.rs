//! What a source of foresight wants fetched of a file, and who it was.

use std::ops::Range;
use std::sync::Arc;

use outrider_sys::units::InodeKey;

use crate::engine::{Class, Overtaken};
use crate::shm::Origin;

/// Bytes of a file that are wanted.
pub struct Intent<'a> {
    /// The file.
    pub file: InodeKey,
    /// Bytes, in the order of need.
    pub ranges: &'a [Range<u64>],
    /// Who foresaw them.
    pub origin: Origin,
    /// How urgent they are.
    pub class: Class,
    /// Who reads them, to drop what comes too late.
    pub reader: Option<Arc<dyn Overtaken>>,
    /// The stream's descriptor, by the entry of its process and its number: what was fetched for it before and is gone was too much.
    pub descriptor: Option<(usize, u16)>,
}

impl Intent<'_> {
    /// What lies in the way of a program that is reading.
    pub fn new(file: InodeKey, ranges: &[Range<u64>], origin: Origin) -> Intent<'_> {
        Intent {
            file,
            ranges,
            origin,
            class: Class::Window,
            reader: None,
            descriptor: None,
        }
    }
}
