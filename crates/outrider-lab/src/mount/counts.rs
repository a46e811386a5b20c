//! Counts of the kernel's requests by kind, for whoever wants to know what was asked for.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The node of a name.
    Lookup,
    /// A node's attributes.
    Attributes,
    /// Where a link leads.
    Link,
    /// To open a file.
    Open,
    /// Bytes of a file.
    Read,
    /// A directory's entries, from the first on.
    List,
    /// More of them.
    ListMore,
}

/// Their names in the file, in order; the last is that of the bytes that were read.
const NAMES: [&str; 8] = [
    "lookup",
    "attributes",
    "link",
    "open",
    "read",
    "list",
    "list-more",
    "read-bytes",
];
const BYTES: usize = NAMES.len() - 1;

/// Counts, and the file that always has them.
#[derive(Debug)]
pub struct Counts {
    numbers: Mutex<[u64; NAMES.len()]>,
    file: Option<File>,
}

impl Counts {
    /// Zeros, in this file too.
    pub fn new(file: Option<File>) -> io::Result<Self> {
        let counts = Self {
            numbers: Mutex::default(),
            file,
        };
        counts.write(&[0; NAMES.len()])?;
        Ok(counts)
    }

    /// Counts a request, and the bytes that it gets. Whoever has the answer finds it counted.
    pub fn count(&self, kind: Kind, bytes: usize) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers[kind as usize] += 1;
        numbers[BYTES] += bytes as u64;
        if let Err(e) = self.write(&numbers) {
            eprintln!("outrider-lab: the file of counts: {e}");
        }
    }

    /// The text is of the same length at any time, so that nobody reads half of an old one.
    fn write(&self, numbers: &[u64; NAMES.len()]) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let lines = NAMES.iter().zip(numbers);
        let text: String = lines
            .map(|(name, n)| format!("{name:10} {n:20}\n"))
            .collect();
        file.write_all_at(text.as_bytes(), 0)
    }
}
