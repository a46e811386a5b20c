//! What was fetched and not read yet, and is gone: the kernel reclaims it before its reader comes, somebody drops it, the memory of a control group is made smaller.
//!
//! A reader who finds everything cached is not heard, so it is looked for in a few places of each file five times a second, and only where that shows
//! something more closely. What was read as well may be gone when a file is opened again, of which the hook has found pages missing: then that is looked for.

use outrider_sys::units::{InodeKey, PAGE};

use super::Service;
use super::kernel::Kernel;
use super::still_cached::{Counted, Places, WORTH_A_LOOK};
use crate::view::{FileView, PageRange};

/// Files in which it is looked for at a time.
const FILES: usize = 32;
/// Places of a file that are looked at …
const PLACES: usize = 8;
/// … and so many that are considered for that.
const CONSIDERED: u64 = 256;
/// Bytes of such a place.
const PLACE: u64 = 16 << 10;
/// Parts of a file that are looked at if places are gone.
const PARTS: u64 = 256;

impl<K: Kernel> Service<K> {
    /// Looks for what is gone, in some of the files that are open.
    pub(super) fn look_for_evictions(&mut self) {
        if !self.config.view.cache_visibility || self.quiesce.is_quiesced() {
            return;
        }
        let mut keys: Vec<InodeKey> = self
            .files
            .values()
            .filter(|f| f.hold.is_open() && !f.is_blind() && f.view.in_flight_pages() == 0)
            .filter(|f| f.view.unused_pages() > WORTH_A_LOOK)
            .map(|f| f.key)
            .collect();
        // In turns, where there are many.
        keys.sort_unstable_by_key(|key| key.ino.wrapping_add(self.looked).wrapping_mul(0x9e37));
        keys.truncate(FILES);
        self.looked = self.looked.wrapping_add(1);
        for key in keys {
            self.look_for_gone(key);
        }
    }

    fn look_for_gone(&mut self, key: InodeKey) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        let held = file.hold.held().is_some();
        if !held && self.devices.may_show_opens(key.dev) {
            return;
        }
        let (view, size) = (file.view.clone(), file.size());
        let places = self.unread(key, &view, size);
        if places.is_empty() {
            return;
        }
        let lost = self.gone(key, &view, size, &places);
        if !lost.is_empty() {
            self.ask_again(key);
        }
        for pages in lost {
            self.lost_pages(key, pages);
        }
    }

    /// A file is opened that nobody else has open, and not all of it is cached: of what was fetched or read before nothing may be left.
    pub(super) fn look_for_dropped(&mut self, key: InodeKey) {
        let Some(file) = self.files.get(&key) else {
            return;
        };
        // Where a server keeps it, opening it for a look would take an answer.
        let served = self.devices.may_show_opens(key.dev);
        let (view, size) = (file.view.clone(), file.size());
        let all = PageRange::from_bytes(0, size);
        if !self.config.view.cache_visibility
            || file.is_blind()
            || served
            || view.in_flight_pages() > 0
            || view.count(all).present_pages <= WORTH_A_LOOK
        {
            return;
        }
        let places = (0..CONSIDERED).map(|k| PageRange::from_bytes(size / CONSIDERED * k, PLACE));
        let present: Vec<PageRange> = places.filter(|place| view.is_cached(*place)).collect();
        let step = present.len().div_ceil(PLACES).max(1);
        let places: Vec<PageRange> = present.into_iter().step_by(step).collect();
        for pages in self.gone(key, &view, size, &places) {
            self.lost_pages(key, pages);
        }
    }

    /// Parts of a file that were present and are gone; looked for if some `places` are.
    fn gone(
        &mut self,
        key: InodeKey,
        view: &FileView,
        size: u64,
        places: &[PageRange],
    ) -> Vec<PageRange> {
        let Some(handle) = self.handle_for_a_look(key).filter(|_| !places.is_empty()) else {
            return Vec::new();
        };
        let count = |pages: &PageRange| self.count_cached(&handle, pages.bytes());
        let is_gone = |pages: &&PageRange| count(pages).is_ok_and(|c| !c.is_whole());
        let (all, gone) = (places.len(), places.iter().filter(is_gone).count());
        if !(Places { all, gone }).are_mostly_gone() {
            return Vec::new();
        }
        let part = (size.div_ceil(PAGE) / PARTS).max(PLACE / PAGE);
        let parts = (0..size.div_ceil(PAGE)).step_by(part as usize);
        parts
            .map(|start| PageRange::new(start, start + part))
            .filter(|pages| {
                let present = view.count(*pages).present_pages;
                let of_present = |c: Counted| Counted {
                    pages: present,
                    ..c
                };
                present > 0 && count(pages).is_ok_and(|c| of_present(c).is_mostly_gone())
            })
            .collect()
    }

    /// Some places of a file that were fetched and are still to be read: of its streams what comes next, and elsewhere in equal distances.
    fn unread(&self, key: InodeKey, view: &FileView, size: u64) -> Vec<PageRange> {
        let mut found = Vec::new();
        let mut consider = |at: u64, len: u64| {
            let pages = PageRange::from_bytes(at, len.min(size.saturating_sub(at)));
            if found.len() < PLACES && view.is_cached(pages) && view.count(pages).unused_pages > 0 {
                found.push(pages);
            }
        };
        let descs = self.processes.descs_of(key);
        for stream in descs.flat_map(|d| d.detector.streams.all()) {
            let step = stream.stride.unsigned_abs().max(stream.len).max(PLACE);
            let steps = stream.front.abs_diff(stream.last) / step;
            // Not next to the reader, who takes it away.
            for k in (1..PLACES as u64)
                .map(|k| steps / PLACES as u64 * k + steps % PLACES as u64 * k / PLACES as u64)
            {
                let at = match stream.stride > 0 {
                    true => stream.last.saturating_add(k * step),
                    false => stream.last.saturating_sub(k * step),
                };
                if k > 0 && at < size {
                    consider(at, stream.len.max(PAGE));
                }
            }
        }
        for k in 0..CONSIDERED {
            consider(size / CONSIDERED * k, PLACE);
        }
        found
    }

    /// Nothing counts as asked for any more beyond where each stream is, and all reads are told again.
    fn ask_again(&mut self, key: InodeKey) {
        let limits = self.limits(key);
        self.listen_anew(key, |desc| {
            desc.ask_again(&limits);
            0
        });
    }
}
