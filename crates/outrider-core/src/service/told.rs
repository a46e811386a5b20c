//! What a process has told, as it may be believed: events come from memory that programs write, and numbers that mean nothing tell nothing.

use std::ops::Range;

use outrider_sys::units::{ByteRange, InodeKey};

use crate::shm::{self, Event, Kind};
use crate::view::PageRange;

/// Addresses, offsets and sizes lie below: what is told of others was scribbled.
const TOP: u64 = 1 << 62;

/// What happened to a descriptor, a mapping or a file.
pub(super) enum Told {
    /// A file was opened, of so many bytes.
    Opened { size: u64 },
    /// A descriptor was closed: its last read ended there, and so many reads that need not have been told were not made.
    Closed { last: u64, left: u64 },
    /// A read is about to be made.
    Read,
    /// The position was moved.
    Sought,
    /// Bytes are about to be copied within the kernel.
    Copies,
    /// A directory was entered, or something in one.
    Entered(InodeKey),
    /// Bytes will be needed; whether the kernel has begun to fetch them.
    Hinted { range: ByteRange, begun: bool },
    /// Pages were thrown out of the cache.
    Dropped(PageRange),
    /// The file ends here now, bytes.
    Truncated { size: u64 },
    /// A file was mapped to these addresses, from so many bytes on.
    Mapped { memory: Range<u64>, offset: u64 },
    /// What was mapped there is no more.
    Unmapped(Range<u64>),
    /// What was mapped from an address on is mapped elsewhere now.
    Moved { from: u64, to: ByteRange },
    /// A file must never be opened.
    Untouchable(InodeKey),
    /// What is mapped there will be needed.
    MapHinted(Range<u64>),
}

impl Told {
    /// `None` where no process can have meant it.
    pub(super) fn of(e: &Event) -> Option<Told> {
        Some(match e.kind {
            Kind::Open => Told::Opened {
                size: e.offset.min(TOP),
            },
            Kind::Close => Told::Closed {
                last: e.offset,
                left: e.len,
            },
            Kind::Read => Told::Read,
            Kind::Seek => Told::Sought,
            Kind::KernelCopy => Told::Copies,
            Kind::Entry | Kind::Visit | Kind::Listing | Kind::Attributes => {
                Told::Entered(InodeKey::new(e.offset, e.len))
            }
            Kind::WillNeed => Told::Hinted {
                range: e.offset..e.offset.saturating_add(e.len),
                begun: e.extra == shm::BEGUN,
            },
            Kind::DontNeed => Told::Dropped(PageRange::from_bytes(e.offset, e.len)),
            Kind::Truncate => Told::Truncated {
                size: e.offset.min(TOP),
            },
            Kind::Map => Told::Mapped {
                memory: memory(e.offset, e.len).filter(|_| e.extra < TOP)?,
                offset: e.extra,
            },
            Kind::Unmap => Told::Unmapped(memory(e.offset, e.len)?),
            Kind::Remap => Told::Moved {
                from: e.offset,
                to: memory(e.extra, e.len)?,
            },
            Kind::Leave => Told::Untouchable(InodeKey::new(e.offset, e.len)),
            Kind::MapWillNeed => Told::MapHinted(memory(e.offset, e.len)?),
        })
    }
}

/// The addresses that an event names, if any process can have them.
fn memory(address: u64, len: u64) -> Option<Range<u64>> {
    let end = address.checked_add(len)?;
    (len > 0 && end <= TOP).then_some(address..end)
}
