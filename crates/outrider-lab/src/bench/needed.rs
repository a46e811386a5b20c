//! The blocks that a program needs: what a trace of the disk shows that was recorded with the kernel's readahead off.

use std::fs;
use std::path::Path;

use super::direct::Read;
use crate::output::{Context, Failure, Outcome};

/// The longest request of a replay, bytes: a multiple of what any of the models moves in a latency on one lane, and short
/// enough for 64 of them to keep all lanes busy.
const LONGEST: u64 = 256 << 10;
/// What a disk is read in, bytes.
const BLOCK: u64 = 4096;

/// Blocks of a disk, each once, in the order of the disk, neighbours merged.
#[derive(Clone, Debug, PartialEq)]
pub struct Needed {
    /// `start..end` in bytes.
    ranges: Vec<(u64, u64)>,
}

impl Needed {
    /// What was read according to a trace: lines of when it came and was answered, R or W, offset and length.
    pub fn of(trace: &Path) -> Outcome<Self> {
        let text = fs::read_to_string(trace).doing(trace.display())?;
        let mut reads = Vec::new();
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let number = |i: usize| fields.get(i)?.parse::<u64>().ok();
            let (Some(what), Some(offset), Some(len)) = (fields.get(2), number(3), number(4))
            else {
                return Err(Failure::system(format!(
                    "{}: not a trace: {line}",
                    trace.display()
                )));
            };
            if *what == "R" {
                reads.push((offset, offset + len));
            }
        }
        Ok(Self::union(reads))
    }

    fn union(mut reads: Vec<(u64, u64)>) -> Self {
        for (start, end) in &mut reads {
            *start = *start / BLOCK * BLOCK;
            *end = end.next_multiple_of(BLOCK);
        }
        reads.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (start, end) in reads {
            match ranges.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => ranges.push((start, end)),
            }
        }
        Self { ranges }
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// Requests, however long.
    pub fn requests(&self) -> u64 {
        self.ranges.len() as u64
    }

    /// The same as reads that a device takes at once.
    pub fn reads(&self) -> Vec<Read> {
        let cut = |&(start, end): &(u64, u64)| {
            (start..end)
                .step_by(LONGEST as usize)
                .map(move |at| (at, (end - at).min(LONGEST) as u32))
        };
        self.ranges.iter().flat_map(cut).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_once_and_merged() {
        let needed = Needed::union(vec![
            (8192, 12288),
            (0, 4096),
            (512, 1024),
            (4096, 8192),
            (1 << 20, (1 << 20) + 1),
        ]);
        assert_eq!(needed.ranges, [(0, 12288), (1 << 20, (1 << 20) + 4096)]);
        assert_eq!((needed.bytes(), needed.requests()), (16384, 2));
        let long = Needed::union(vec![(4096, 4096 + LONGEST + 4096)]);
        assert_eq!(
            long.reads(),
            [(4096, LONGEST as u32), (4096 + LONGEST, 4096)]
        );
    }
}
