//! What is missing of files, and where it lies.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use outrider_core::engine::Handle;
use outrider_core::plan::sweep::Item;
use outrider_core::plan::{Terms, plan};
use outrider_core::residency;
use outrider_core::view::{FileView, Granularity};
use outrider_sys::device::{Device, UNCLIPPED_CHUNK};
use outrider_sys::units::{ByteRange, DeviceId, InodeKey, PAGE, PageRange};

use crate::cached;
use crate::tree::{self, Found, Open};

/// The view of one file, while it is planned, may take so many bytes: those of a file of 700 GB. What lies beyond is asked for, cached or not.
const VIEW_BYTES: usize = 64 << 20;

/// What is to be done for one file.
pub struct FilePlan {
    pub key: InodeKey,
    pub size: u64,
    /// What is to be fetched, in file order.
    pub items: Vec<Item>,
    /// Bytes cached already; 0 where the kernel does not tell.
    pub cached: u64,
    /// The kernel does not tell what is cached.
    pub hidden: bool,
    /// Bytes in holes and unwritten extents, which cost no reading.
    pub empty: u64,
}

/// What planning needs to know of a device.
#[derive(Clone, Copy)]
struct DeviceFacts {
    chunk: u64,
    in_memory: bool,
}

/// Devices already looked up, by st_dev.
pub struct Devices {
    known: Mutex<HashMap<DeviceId, DeviceFacts>>,
    /// Bytes of a request at most.
    most: u64,
}

impl Devices {
    /// None yet; requests have `most` bytes at most.
    pub fn new(most: u64) -> Devices {
        Devices {
            known: Mutex::default(),
            most,
        }
    }

    fn of(&self, open: &Open) -> DeviceFacts {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(open.key.device()).or_insert_with(|| {
            let device = Device::of_fd(open.file.as_fd()).ok();
            let chunk = device.as_ref().map(Device::unclipped_chunk);
            DeviceFacts {
                chunk: chunk.unwrap_or(UNCLIPPED_CHUNK).min(self.most),
                in_memory: device.is_some_and(|d| d.is_memory()),
            }
        })
    }
}

/// Plans files, in inode order, which is how inode tables lie on the device. The result is in the order of `files`, whose places there are their numbers. Of one that
/// is gone, or none any more, there is nothing.
pub fn all(files: &[Found], devices: &Devices) -> Vec<io::Result<Option<FilePlan>>> {
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|i| files[*i].ino);
    let one = |i: &usize| file(&files[*i], *i as u16, devices);
    let plans = tree::parallel(&order, tree::METADATA_THREADS, one);
    let mut plans: Vec<_> = order.into_iter().zip(plans).collect();
    plans.sort_by_key(|(i, _)| *i);
    plans.into_iter().map(|(_, plan)| plan).collect()
}

fn file(found: &Found, index: u16, devices: &Devices) -> io::Result<Option<FilePlan>> {
    let Some(open) = tree::open(found)? else {
        return Ok(None);
    };
    let resident = cached::residency(&open).resident_bytes();
    let device = devices.of(&open);
    let (key, size) = (open.key, open.size);
    let mut file = FilePlan {
        key,
        size,
        items: Vec::new(),
        cached: resident.unwrap_or(0),
        hidden: resident.is_none(),
        empty: 0,
    };
    if device.in_memory {
        file.cached = size;
    }
    if file.cached >= size {
        return Ok(Some(file));
    }
    let handle = Handle::new(OwnedFd::from(open.file));
    let whole = || vec![0..size];
    let wanted: Vec<ByteRange> = found.remembered.as_ref().map_or_else(whole, |known| {
        let pages = known
            .pages
            .iter()
            .map(|r| r.start * PAGE..(r.end * PAGE).min(size));
        pages.filter(|r| r.start < r.end).collect()
    });
    let placement = handle.placement();
    let read: Vec<ByteRange> = (wanted.iter())
        .flat_map(|range| placement.stretches(range.clone()).map(|s| s.bytes))
        .collect();
    let bytes = |ranges: &[ByteRange]| ranges.iter().map(|r| r.end - r.start).sum::<u64>();
    file.empty = bytes(&wanted) - bytes(&read);
    let view = (file.cached > 0).then(|| known(&handle, size)).flatten();
    let terms = Terms {
        chunk: device.chunk,
        gap: 0,
        room: u64::MAX,
        size,
    };
    requests(read, view.as_ref(), terms, |request| {
        place(&handle, index, request, &mut file.items);
    });
    Ok(Some(file))
}

/// What of a file is cached, where the kernel tells.
fn known(handle: &Handle, size: u64) -> Option<FileView> {
    let end = PageRange::from_bytes(0, size).end;
    let missing = residency::missing(handle.fd(), PageRange::new(0, end))?;
    let view = FileView::new(Granularity::Page, VIEW_BYTES);
    let mut at = 0;
    for run in missing {
        view.present(PageRange::new(at, run.start), 0);
        at = run.end;
    }
    view.present(PageRange::new(at, end), 0);
    Some(view)
}

/// Calls `each` with what is to be asked for of `read`, in order.
fn requests(
    mut read: Vec<ByteRange>,
    view: Option<&FileView>,
    mut terms: Terms,
    mut each: impl FnMut(ByteRange),
) {
    loop {
        let planned = plan(&read, view, terms, 0);
        planned.requests.into_iter().for_each(&mut each);
        let Some(from) = planned.refused_at else {
            return;
        };
        // Single pages are missing among others, too many for a request each: what is cached between them is asked for as well, which the kernel passes over.
        terms.gap = terms.chunk;
        read.retain_mut(|r| {
            r.start = r.start.max(from);
            r.start < r.end
        });
    }
}

/// Adds a request, extent by extent. Those whose place is not known come first, in file order.
fn place(handle: &Handle, index: u16, request: ByteRange, items: &mut Vec<Item>) {
    let mut at = request.start / PAGE;
    for stretch in handle.placement().stretches(request) {
        let end = stretch.bytes.end.div_ceil(PAGE);
        // Of a page in two extents the first tells the place.
        if end > at {
            let from = at.max(stretch.bytes.start / PAGE);
            let place = stretch.address.map_or(0, |address| address / PAGE);
            items.push(Item::new(place, index, from, (end - from) as u32, 0));
            at = end;
        }
    }
}
