//! What a source of foresight wants, and who it was.

use std::ops::Range;
use std::sync::Arc;

use outrider_sys::units::{ByteRange, InodeKey};

use crate::asked::Overtaken;
use crate::engine::{Class, Listing, Names};
use crate::shm::Origin;
use crate::tree::known::Place;

/// What is wanted.
#[derive(Debug)]
pub enum Target<'a> {
    /// Bytes of a file that a program has open, in the order of need.
    Ranges(InodeKey, &'a [ByteRange]),
    /// A file that nobody has open, by its entry in a directory: all of one that has less than so many bytes (`None`: of a small one), of others the inode.
    Entry(Place, Option<u64>),
    /// Inodes of entries of a directory.
    Inodes(Names),
    /// What is in a directory.
    Listing(Listing),
    /// Entries of a profile.
    Remembered(Wanted),
}

/// What is wanted of a profile, by the numbers of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Names that are looked up, and directories that are listed.
    Names(Vec<usize>),
    /// Pages of a file: so many of those that are needed from some on, counted through.
    Pages(usize, Range<u64>),
    /// Where files lie on their device.
    Places(Vec<usize>),
    /// Whether something of these is not cached: the first that isn't is enough.
    Probe(Vec<usize>),
}

impl Wanted {
    /// Its first entry.
    pub fn first(&self) -> Option<usize> {
        match self {
            Wanted::Names(entries) | Wanted::Places(entries) | Wanted::Probe(entries) => {
                entries.first().copied()
            }
            Wanted::Pages(entry, _) => Some(*entry),
        }
    }
}

/// What is wanted, by whom and how urgently.
pub struct Intent<'a> {
    /// What is wanted.
    pub target: Target<'a>,
    /// Who foresaw it.
    pub origin: Origin,
    /// How urgent it is.
    pub class: Class,
    /// Who reads it, to drop what comes too late.
    pub reader: Option<Arc<dyn Overtaken>>,
    /// The stream's descriptor, by the entry of its process and its number: what was fetched for it before and is gone was too much.
    pub descriptor: Option<(usize, u16)>,
    /// Entry of the process for which something is opened that it hasn't.
    pub process: Option<usize>,
}

impl Intent<'_> {
    /// What lies in the way of a program that is reading.
    pub fn new(file: InodeKey, ranges: &[ByteRange], origin: Origin) -> Intent<'_> {
        Intent {
            target: Target::Ranges(file, ranges),
            origin,
            class: Class::Window,
            reader: None,
            descriptor: None,
            process: None,
        }
    }

    /// What the process in an entry will come to on its way through a tree.
    pub fn of_walk(process: usize, target: Target<'static>) -> Intent<'static> {
        Intent {
            target,
            origin: Origin::Walks,
            class: Class::Background,
            reader: None,
            descriptor: None,
            process: Some(process),
        }
    }

    /// What an earlier run of the job needed.
    pub fn of_profile(wanted: Wanted) -> Intent<'static> {
        Intent {
            target: Target::Remembered(wanted),
            origin: Origin::Remembered,
            class: Class::Background,
            reader: None,
            descriptor: None,
            process: None,
        }
    }

    /// A file of less than `most` bytes that some process may open, such as the one in an entry.
    pub fn of_directory(process: usize, file: Place, most: u64) -> Intent<'static> {
        Intent {
            origin: Origin::DenseDirectories,
            ..Intent::of_walk(process, Target::Entry(file, Some(most)))
        }
    }
}
