//! The page cache: which pages are there, on their way, or gone again.
//!
//! Two lists as Linux has them (`mm/workingset.c`, `mm/swap.c`): a page begins at the head of the inactive list; a second access while it is there moves it to
//! the active one. Room is made from the tail of the inactive list; where the active list is the longer one its tail goes there first.

use std::ops::Range;

/// A page of any file: files lie one after the other.
pub type Page = u32;

/// No page.
const NONE: Page = Page::MAX;

/// What a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not in the cache.
    Absent,
    /// In it, but its bytes are still on their way.
    Reading,
    /// There.
    Uptodate,
}

#[derive(Clone, Copy)]
struct Entry {
    state: State,
    active: bool,
    /// It was accessed once since it came to its list.
    referenced: bool,
    /// `PG_readahead`: whoever comes here has the next window read.
    marked: bool,
    /// Somebody has used it since it came.
    used: bool,
    /// It was there and had to make room.
    evicted: bool,
    before: Page,
    after: Page,
}

/// A list, its head the youngest.
#[derive(Clone, Copy)]
struct List {
    head: Page,
    tail: Page,
    len: u32,
}

impl List {
    const EMPTY: List = List {
        head: NONE,
        tail: NONE,
        len: 0,
    };
}

/// The cache.
pub struct Cache {
    pages: Vec<Entry>,
    /// Inactive and active.
    lists: [List; 2],
    /// Pages that it holds at most.
    limit: u32,
    /// Pages that had to make room before anybody used them.
    wasted: u64,
}

impl Cache {
    /// An empty cache for so many pages of files, of which it holds `limit`.
    pub fn new(pages: usize, limit: u32) -> Cache {
        let entry = Entry {
            state: State::Absent,
            active: false,
            referenced: false,
            marked: false,
            used: false,
            evicted: false,
            before: NONE,
            after: NONE,
        };
        Cache {
            pages: vec![entry; pages],
            lists: [List::EMPTY; 2],
            limit: limit.max(64),
            wasted: 0,
        }
    }

    /// What a page is.
    pub fn state(&self, page: Page) -> State {
        self.pages[page as usize].state
    }

    /// Pages in it.
    pub fn held(&self) -> u32 {
        self.lists[0].len + self.lists[1].len
    }

    /// Pages that it holds at most.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Pages that had to make room before anybody used them, so far.
    pub fn wasted(&self) -> u64 {
        self.wasted
    }

    /// Pages of the range that are there or on their way.
    pub fn present(&self, pages: Range<Page>) -> u64 {
        let pages = &self.pages[pages.start as usize..pages.end as usize];
        pages.iter().filter(|p| p.state != State::Absent).count() as u64
    }

    /// Pages of the range that were there and had to make room.
    pub fn evicted(&self, pages: Range<Page>) -> u64 {
        let pages = &self.pages[pages.start as usize..pages.end as usize];
        pages.iter().filter(|p| p.evicted).count() as u64
    }

    /// A page is asked for: it comes to the cache, and others make room.
    pub fn begin(&mut self, page: Page) {
        debug_assert_eq!(self.state(page), State::Absent);
        while self.held() >= self.limit && self.make_room() {}
        let entry = &mut self.pages[page as usize];
        *entry = Entry {
            state: State::Reading,
            active: false,
            referenced: false,
            marked: false,
            used: false,
            evicted: false,
            before: NONE,
            after: NONE,
        };
        self.push(page);
    }

    /// Its bytes have come.
    pub fn arrive(&mut self, page: Page) {
        let entry = &mut self.pages[page as usize];
        if entry.state == State::Reading {
            entry.state = State::Uptodate;
        }
    }

    /// Marks it for readahead.
    pub fn mark(&mut self, page: Page) {
        self.pages[page as usize].marked = true;
    }

    /// Whether it is marked.
    pub fn is_marked(&self, page: Page) -> bool {
        self.pages[page as usize].marked
    }

    /// It is marked no longer.
    pub fn unmark(&mut self, page: Page) {
        self.pages[page as usize].marked = false;
    }

    /// It is read (`mark_page_accessed`).
    pub fn access(&mut self, page: Page) {
        let entry = &mut self.pages[page as usize];
        entry.used = true;
        if !entry.referenced {
            entry.referenced = true;
        } else if !entry.active {
            self.unlink(page);
            let entry = &mut self.pages[page as usize];
            (entry.active, entry.referenced) = (true, false);
            self.push(page);
        }
    }

    /// It is dropped, if it is there.
    pub fn discard(&mut self, page: Page) {
        if self.state(page) == State::Uptodate {
            self.unlink(page);
            self.pages[page as usize].state = State::Absent;
        }
    }

    /// One page leaves, or goes from the active list to the other; `false` if none can.
    fn make_room(&mut self) -> bool {
        if self.lists[1].len > self.lists[0].len {
            let page = self.lists[1].tail;
            self.unlink(page);
            let entry = &mut self.pages[page as usize];
            (entry.active, entry.referenced) = (false, false);
            self.push(page);
            return true;
        }
        // What is on its way can't leave.
        let mut page = self.lists[0].tail;
        while page != NONE && self.state(page) == State::Reading {
            page = self.pages[page as usize].before;
        }
        if page == NONE {
            return false;
        }
        self.unlink(page);
        let entry = &mut self.pages[page as usize];
        (entry.state, entry.evicted) = (State::Absent, true);
        self.wasted += u64::from(!entry.used);
        true
    }

    fn push(&mut self, page: Page) {
        let which = usize::from(self.pages[page as usize].active);
        let first = self.lists[which].head;
        let entry = &mut self.pages[page as usize];
        (entry.before, entry.after) = (NONE, first);
        match first {
            NONE => self.lists[which].tail = page,
            _ => self.pages[first as usize].before = page,
        }
        self.lists[which].head = page;
        self.lists[which].len += 1;
    }

    fn unlink(&mut self, page: Page) {
        let Entry {
            active,
            before,
            after,
            ..
        } = self.pages[page as usize];
        let list = &mut self.lists[usize::from(active)];
        list.len -= 1;
        match before {
            NONE => list.head = after,
            _ => self.pages[before as usize].after = after,
        }
        let list = &mut self.lists[usize::from(active)];
        match after {
            NONE => list.tail = before,
            _ => self.pages[after as usize].before = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cache: &mut Cache, page: Page) {
        if cache.state(page) == State::Absent {
            cache.begin(page);
            cache.arrive(page);
        }
        cache.access(page);
    }

    /// Pages that are read once go before those that were read twice, whatever their age.
    #[test]
    fn what_is_used_again_outlives_a_stream() {
        let mut cache = Cache::new(1000, 64);
        for page in 0..16 {
            read(&mut cache, page);
            read(&mut cache, page);
        }
        for page in 100..900 {
            read(&mut cache, page);
        }
        assert_eq!(cache.present(0..16), 16);
        assert_eq!(cache.held(), 64);
        assert_eq!(cache.present(852..900), 48);
        assert_eq!(cache.evicted(100..852), 752);
        assert_eq!(cache.wasted(), 0);
    }

    /// What is on its way stays, even where there is no room for it.
    #[test]
    fn what_is_on_its_way_is_not_evicted() {
        let mut cache = Cache::new(200, 64);
        (0..100).for_each(|page| cache.begin(page));
        assert_eq!(cache.held(), 100);
        (0..100).for_each(|page| cache.arrive(page));
        cache.begin(100);
        assert_eq!(cache.held(), 64);
        assert_eq!(cache.state(0), State::Absent);
        assert_eq!(cache.wasted(), 37);
        cache.discard(99);
        cache.discard(100);
        assert_eq!(
            (cache.state(99), cache.state(100)),
            (State::Absent, State::Reading)
        );
    }
}
