//! The kernel's own readahead: `mm/readahead.c` and `mm/filemap.c` of Linux 6.18, in pages.
//!
//! Windows only; what is submitted is up to whoever asks. Up to 6.9 the first window of a read that is as long as the whole of it is marked at its begin instead
//! of in its middle; nothing else that is modelled here differs since 6.1.

use std::ops::Range;

use outrider_sys::units::PAGE;

/// What the kernel remembers of an open file (`struct file_ra_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readahead {
    /// The current window, pages: where it begins, how long it is …
    pub start: u64,
    /// … how long …
    pub size: u64,
    /// … and how many of its pages lie behind the marked one, that one included.
    pub ahead: u64,
    /// The longest window, pages: `read_ahead_kb`.
    pub most: u64,
    /// Faults that found nothing, less those that did.
    pub misses: u32,
    /// Where the last read ended, bytes.
    pub previous: u64,
    /// Nothing is read ahead (POSIX_FADV_RANDOM).
    pub random: bool,
}

/// What is to be read, pages, and which of them is marked for the next time, if any is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Pages.
    pub pages: Range<u64>,
    /// The marked one.
    pub marked: Option<u64>,
}

/// Faults more than hits from which on maps are not read ahead (`MMAP_LOTSAMISS`).
const MANY_MISSES: u32 = 100;
/// Pages of a chunk of `force_page_cache_ra`: 2 MiB.
const CHUNK: u64 = 512;

impl Readahead {
    /// Of a file that was just opened; the longest window in pages.
    pub fn new(most: u64) -> Readahead {
        Readahead {
            start: 0,
            size: 0,
            ahead: 0,
            most,
            misses: 0,
            previous: u64::MAX,
            random: false,
        }
    }

    /// Is advised (`generic_fadvise`): windows are twice as long for who reads in order. `most` is the longest window of others, pages.
    pub fn advise(&mut self, sequential: bool, most: u64) {
        self.random = !sequential;
        self.most = if sequential { 2 * most } else { most };
    }

    /// A page at `index` is not cached, where `count` are read (`page_cache_sync_ra`). `cached(page)` says whether one is; `longest` is the longest request
    /// of the device, pages.
    pub fn missed(
        &mut self,
        index: u64,
        count: u64,
        longest: u64,
        cached: impl Fn(u64) -> bool,
    ) -> Window {
        if self.random || self.most == 0 {
            // As it is, no more than a request: `force_page_cache_ra`. Without readahead it is a page at a time.
            let count = if self.random {
                count.min(self.most.max(longest))
            } else {
                1
            };
            return Window {
                pages: index..index + count,
                marked: None,
            };
        }
        let most = self.most_for(count, longest);
        let previous = self.previous / PAGE;
        if index == 0 || count > most || index.wrapping_sub(previous) <= 1 {
            self.start = index;
            self.size = first_size(count, most);
            self.ahead = match self.size > count {
                true => self.size - count,
                false => self.size >> 1,
            };
            return self.window();
        }
        // What a stream would have left behind.
        let before = (0..most.min(index)).take_while(|k| cached(index - 1 - k));
        let mut before = before.count() as u64;
        if before <= count {
            // A random read: as it is, and nothing is remembered.
            return Window {
                pages: index..index + count,
                marked: None,
            };
        }
        if before == index {
            before *= 2;
        }
        self.start = index;
        self.size = (before + count).min(most);
        self.ahead = 1;
        self.window()
    }

    /// The marked page at `index` is come to, where `count` are read (`page_cache_async_ra`).
    pub fn came(
        &mut self,
        index: u64,
        count: u64,
        longest: u64,
        cached: impl Fn(u64) -> bool,
    ) -> Option<Window> {
        let most = self.most_for(count, longest);
        if index == (self.start + self.size).wrapping_sub(self.ahead) {
            self.start += self.size;
            self.size = self.size.max(self.next_size(most));
        } else {
            // Another stream's: what is cached behind it was its window.
            let behind = (1..=most).take_while(|k| cached(index + k)).count() as u64;
            if behind >= most {
                return None;
            }
            self.start = index + 1 + behind;
            self.size = self.start - index + count;
            self.size = self.next_size(most);
        }
        self.ahead = self.size;
        Some(self.window())
    }

    /// A fault at `index` finds no page (`do_sync_mmap_readahead`).
    pub fn faulted(&mut self, index: u64) -> Option<Window> {
        self.misses = (self.misses + 1).min(10 * MANY_MISSES);
        if self.misses > MANY_MISSES {
            return None;
        }
        self.start = index.saturating_sub(self.most / 2);
        self.size = self.most;
        self.ahead = self.most / 4;
        Some(self.window())
    }

    /// One finds it.
    pub fn found(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }

    fn window(&self) -> Window {
        Window {
            pages: self.start..self.start + self.size,
            marked: (self.ahead > 0).then(|| self.start + self.size - self.ahead),
        }
    }

    fn most_for(&self, count: u64, longest: u64) -> u64 {
        match count > self.most && longest > self.most {
            true => count.min(longest),
            false => self.most,
        }
    }

    /// `get_next_ra_size`.
    fn next_size(&self, most: u64) -> u64 {
        match self.size {
            size if size < most / 16 => 4 * size,
            size if size <= most / 2 => 2 * size,
            _ => most,
        }
    }
}

/// `get_init_ra_size`.
fn first_size(count: u64, most: u64) -> u64 {
    match count.next_power_of_two() {
        size if size <= most / 32 => 4 * size,
        size if size <= most / 4 => 2 * size,
        _ => most,
    }
}

/// What readahead(2) and POSIX_FADV_WILLNEED have read of `pages` (`force_page_cache_ra`): no more than the longest request or window, in chunks.
pub fn forced(pages: Range<u64>, most: u64, longest: u64) -> impl Iterator<Item = Range<u64>> {
    let end = pages.end.min(pages.start + most.max(longest));
    let starts = (pages.start..end).step_by(CHUNK as usize);
    starts.map(move |start| start..end.min(start + CHUNK))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 128 KiB, and a device that takes 1280 KiB.
    const MOST: u64 = 32;
    const LONGEST: u64 = 320;

    fn window(pages: Range<u64>, marked: u64) -> Window {
        Window {
            pages,
            marked: Some(marked),
        }
    }

    /// Reads of 16 KiB from the begin on: windows of 8 pages (4 are asked for), then 16, then 32.
    #[test]
    fn a_stream_ramps_up() {
        let mut ra = Readahead::new(MOST);
        let none = |_| false;
        assert_eq!(ra.missed(0, 4, LONGEST, none), window(0..8, 4));
        assert_eq!(ra.came(4, 4, LONGEST, none), Some(window(8..24, 8)));
        assert_eq!(ra.came(8, 4, LONGEST, none), Some(window(24..56, 24)));
        assert_eq!(ra.came(24, 4, LONGEST, none), Some(window(56..88, 56)));
        assert_eq!(ra.came(56, 4, LONGEST, none), Some(window(88..120, 88)));
    }

    /// cat's reads of 128 KiB: the first window is all of it, marked in its middle.
    #[test]
    fn a_long_first_read_is_its_own_window() {
        let mut ra = Readahead::new(MOST);
        assert_eq!(ra.missed(0, 32, LONGEST, |_| false), window(0..32, 16));
        assert_eq!(
            ra.came(16, 16, LONGEST, |_| false),
            Some(window(32..64, 32))
        );
    }

    /// A read that is longer than the window is read whole, as far as the device takes it at once.
    #[test]
    fn an_oversize_read_goes_out_whole() {
        let mut ra = Readahead::new(MOST);
        ra.previous = 100 << 12;
        assert_eq!(ra.missed(1000, 256, LONGEST, |_| false).pages, 1000..1256);
        let mut ra = Readahead::new(MOST);
        ra.previous = 100 << 12;
        assert_eq!(ra.missed(1000, 1000, LONGEST, |_| false).pages, 1000..1320);
    }

    /// A random read is read as it is, and a cached run before it makes a stream of it.
    #[test]
    fn history_in_the_cache_makes_a_stream() {
        let mut ra = Readahead::new(MOST);
        ra.previous = 5 << 12;
        let random = Window {
            pages: 500..504,
            marked: None,
        };
        assert_eq!(ra.missed(500, 4, LONGEST, |_| false), random);
        assert_eq!(ra.size, 0);
        // Ten cached pages before it: 10 + 4 are read.
        let history = |page: u64| (490..500).contains(&page);
        assert_eq!(ra.missed(500, 4, LONGEST, history), window(500..514, 513));
        // Cached from the begin of the file on: twice as much.
        let all = |page: u64| page < 6;
        ra.previous = 900 << 12;
        assert_eq!(ra.missed(6, 4, LONGEST, all), window(6..22, 21));
    }

    /// A second stream through the same descriptor finds its own window by what is cached behind the marked page.
    #[test]
    fn interleaved_streams_find_their_windows() {
        let mut ra = Readahead::new(MOST);
        ra.missed(0, 4, LONGEST, |_| false);
        let cached = |page: u64| (1000..1008).contains(&page);
        // Marked at 1004: 4 pages with it, 4 asked for, doubled.
        assert_eq!(
            ra.came(1004, 4, LONGEST, cached),
            Some(window(1008..1024, 1008))
        );
        let all = |_| true;
        assert_eq!(ra.came(5000, 4, LONGEST, all), None);
    }

    /// Faults have what lies around them read, until a hundred have been in vain.
    #[test]
    fn maps_are_read_around() {
        let mut ra = Readahead::new(MOST);
        assert_eq!(ra.faulted(100), Some(window(84..116, 108)));
        assert_eq!(ra.faulted(3), Some(window(0..32, 24)));
        for _ in 0..98 {
            assert!(ra.faulted(1000).is_some());
        }
        assert_eq!(ra.faulted(1000), None);
        ra.found();
        ra.found();
        assert!(ra.faulted(1000).is_some());
    }

    /// 4 MiB are asked for; the device takes 1280 KiB at once.
    #[test]
    fn what_is_forced_is_clipped() {
        let all: Vec<_> = forced(100..1124, MOST, LONGEST).collect();
        assert_eq!(all, [100..420]);
        let all: Vec<_> = forced(0..2000, MOST, 1024).collect();
        assert_eq!(all, [0..512, 512..1024]);
        assert_eq!(forced(7..9, MOST, LONGEST).collect::<Vec<_>>(), [7..9]);
    }
}
