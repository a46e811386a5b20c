//! Searches in a file whose blocks lie in heap order (Eytzinger layout): behind block i comes 2i + 1 or 2i + 2.

use std::ops::Range;

use outrider_core::source::{Claim, Read, Recogniser, Source};

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// Steps downward after which the search is believed to go on.
const STEPS: u32 = 2;

#[derive(Clone, Debug, Default)]
pub struct HeapOrder {
    last: u64,
    steps: u32,
}

impl Recogniser for HeapOrder {
    fn observe(&mut self, read: &Read) -> Claim {
        let block = read.offset / BLOCK;
        let down = (1..=2).contains(&block.wrapping_sub(2 * self.last));
        self.steps = if down { self.steps + 1 } else { 0 };
        self.last = block;
        match self.steps >= STEPS {
            true => Claim::Around,
            false => Claim::Nothing,
        }
    }
}

impl Source for HeapOrder {
    fn foresee(&mut self, read: &Read, most: u64) -> Vec<Range<u64>> {
        // The eight blocks of which one is read after the next two lie side by side.
        let start = (8 * self.last + 7) * BLOCK;
        let end = (start + most.min(8 * BLOCK)).min(read.size);
        Vec::from_iter((start < end).then_some(start..end))
    }

    fn duplicate(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}
