//! Files, regions and lists as a process has declared them, behind one lock.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use outrider_sys::raw;
use outrider_sys::units::InodeKey;

use super::list::{KEPT, List, MAX_FILES};
use super::{ClientId, Fetcher, Kind};

/// A list and whose it is.
pub(super) struct Source {
    pub(super) generation: u32,
    pub(super) kind: Kind,
    pub(super) list: List,
    /// Entry at which the program was in the list that this one has taken the place of.
    pub(super) left: Option<u64>,
    /// The file that names it (plain, pulled).
    pub(super) file: u16,
    /// Regions that belong to it.
    pub(super) regions: usize,
    /// Entries below this number may be fetched.
    pub(super) ready: u64,
    /// When the program reaches this entry, and so many bytes of it, the fetcher wants to know.
    pub(super) wake_at: (u64, u32),
    /// When it reaches this one, the callback is due: half of the latest update is read.
    pub(super) low: u64,
    /// The pulled list is at its end.
    pub(super) ended: bool,
    /// Entries of the pulled list since the last call of its function that brought one with bytes.
    pub(super) useless: u64,
    /// Entries up to this number were seen by the fetcher as passed.
    pub(super) seen: u64,
    /// Fetched in rounds: what begins here has yet to be asked for, and a read of it waits for that. `u64::MAX` where reads don't wait.
    pub(super) asked: u64,
    /// Pages that had been asked for and were gone when the program came to them, of which the fetcher has not heard.
    pub(super) lost: u64,
    /// Reads within the region and outside the list that the fetcher has not heard of.
    pub(super) strayed: bool,
}

impl Source {
    /// Whether more is to come that nobody knows yet.
    pub(super) fn goes_on(&self) -> bool {
        matches!(self.kind, Kind::Pull(_)) && !self.ended
    }
}

/// Part of a file that belongs to a source.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) source: usize,
    /// Entries of its list that lie here are among these.
    pub(super) entries: Range<u64>,
}

pub(super) struct File {
    pub(super) generation: u32,
    pub(super) dev: u64,
    pub(super) ino: u64,
    pub(super) size: u64,
    /// A thread that had it open under `number`.
    pub(super) thread: u32,
    /// The descriptors through which it was declared; the first is shown to callbacks.
    pub(super) numbers: Vec<i32>,
    /// In file order, without overlap.
    pub(super) regions: Vec<Region>,
}

/// Numbers that no file has, the one that has been free for longest first: whoever follows a list may still come to entries that it has passed, of the file that had it.
#[derive(Default)]
struct Free {
    /// Has room for all numbers that there are, or a close would allocate.
    numbers: VecDeque<u16>,
    /// So many were added since the fetcher last heard of it.
    unheard: usize,
}

impl Free {
    /// So many are left free, as long as there are others: entries that a list keeps behind its program.
    const RESTING: usize = KEPT as usize;

    fn add(&mut self, file: u16) {
        if self.numbers.len() < self.numbers.capacity() {
            self.numbers.push_back(file);
        }
        self.unheard += 1;
    }
}

pub(super) struct State {
    files: Vec<Option<File>>,
    free: Free,
    pub(super) inodes: HashMap<InodeKey, u16>,
    pub(super) sources: Vec<Option<Source>>,
    /// No place for a source below this one is free.
    taken: usize,
    pub(super) regions: usize,
    pub(super) fetcher: Fetcher,
    /// Thread, client, how often it said so.
    pub(super) ignoring: Vec<(u32, usize, u32)>,
    /// Thread and source of the callbacks that run.
    pub(super) calling: Vec<(u32, usize)>,
    pub(super) off: bool,
}

/// Counts handed out to sources and files; goes on in forked children, so that a parent's handle is none of the child's.
static GENERATION: AtomicU32 = AtomicU32::new(1);

pub(super) fn generation() -> u32 {
    GENERATION.fetch_add(1, Relaxed)
}

impl State {
    pub(super) fn new() -> State {
        State {
            files: Vec::new(),
            free: Free::default(),
            inodes: HashMap::new(),
            sources: Vec::new(),
            taken: 0,
            regions: 0,
            fetcher: Fetcher::None,
            ignoring: Vec::new(),
            calling: Vec::new(),
            off: false,
        }
    }

    /// The numbers that files have are below this one.
    pub(super) fn numbers(&self) -> usize {
        self.files.len()
    }

    /// What numbers that become free may take without allocating.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.free.numbers.capacity()
    }

    /// Takes a file in under a free number.
    pub(super) fn take_in(&mut self, file: File) -> Result<u16, i32> {
        let key = InodeKey::new(file.dev, file.ino);
        self.inodes.try_reserve(1).map_err(|_| libc::ENOMEM)?;
        let rested = self.free.numbers.len() > Free::RESTING || self.files.len() >= MAX_FILES;
        let number = match rested.then(|| self.free.numbers.pop_front()) {
            Some(number) => number.ok_or(libc::ENOMEM)?,
            None => {
                let more = self.files.len() + 1 - self.free.numbers.len();
                self.free
                    .numbers
                    .try_reserve(more)
                    .map_err(|_| libc::ENOMEM)?;
                self.files.try_reserve(1).map_err(|_| libc::ENOMEM)?;
                self.files.push(None);
                (self.files.len() - 1) as u16
            }
        };
        if let Some(slot) = self.files.get_mut(usize::from(number)) {
            *slot = Some(file);
        }
        self.inodes.insert(key, number);
        Ok(number)
    }

    /// Lets go of a file, whose number is free from here on.
    pub(super) fn let_go(&mut self, file: u16) -> Option<File> {
        let gone = self.files.get_mut(usize::from(file))?.take()?;
        self.inodes.remove(&InodeKey::new(gone.dev, gone.ino));
        self.free.add(file);
        for region in &gone.regions {
            if let Some(source) = self.sources.get_mut(region.source).and_then(Option::as_mut) {
                source.regions = source.regions.saturating_sub(1);
            }
        }
        self.regions = self.regions.saturating_sub(gone.regions.len());
        Some(gone)
    }

    /// The fetcher hears of the numbers that have become free since it last did, of which some may be other files' by now. `None`: it may be any.
    pub(super) fn gone(&mut self) -> Option<impl Iterator<Item = u16>> {
        let Free { numbers, unheard } = &mut self.free;
        let first = numbers.len().checked_sub(std::mem::take(unheard));
        first.map(|first| numbers.range(first..).copied())
    }

    pub(super) fn file(&self, file: u16) -> Option<&File> {
        self.files.get(usize::from(file))?.as_ref()
    }

    pub(super) fn file_mut(&mut self, file: u16) -> Option<&mut File> {
        self.files.get_mut(usize::from(file))?.as_mut()
    }

    pub(super) fn source(&mut self, index: usize) -> Option<&mut Source> {
        self.sources.get_mut(index)?.as_mut()
    }

    pub(super) fn named(&mut self, id: ClientId) -> Option<&mut Source> {
        self.source(id.index)
            .filter(|s| s.generation == id.generation)
    }

    pub(super) fn client(&mut self, id: ClientId) -> Result<(), i32> {
        match self.named(id) {
            Some(s) if matches!(s.kind, Kind::Client(_)) => Ok(()),
            _ => Err(libc::EINVAL),
        }
    }

    pub(super) fn size(&self, file: u16) -> u64 {
        self.file(file).map_or(0, |f| f.size)
    }

    /// The file may have grown.
    pub(super) fn refresh(&mut self, file: u16, fd: i32) {
        if let (Some(f), Ok(st)) = (self.file_mut(file), raw::status(fd))
            && (st.st_dev, st.st_ino) == (f.dev, f.ino)
        {
            f.size = st.st_size as u64;
        }
    }

    /// The plain or pulled list of a file. EBUSY where a client has it.
    pub(super) fn own_source(&mut self, file: u16) -> Result<Option<usize>, i32> {
        let first = self.file(file).and_then(|f| f.regions.first());
        let Some(first) = first.map(|r| r.source) else {
            return Ok(None);
        };
        match self.source(first).map(|s| (s.kind, s.file)) {
            Some((Kind::Client(_), _)) => Err(libc::EBUSY),
            // One of the files of a list that another one names.
            Some((_, named)) if named != file => Err(libc::EBUSY),
            Some(_) => Ok(Some(first)),
            None => Ok(None),
        }
    }

    /// A new source at a free place below `most`.
    pub(super) fn new_source(&mut self, kind: Kind, file: u16, most: usize) -> Option<usize> {
        let behind = self.sources.get(self.taken..).unwrap_or_default();
        let index = match behind.iter().position(Option::is_none) {
            Some(i) => self.taken + i,
            None => {
                self.sources.try_reserve(1).ok()?;
                self.sources.push(None);
                self.sources.len() - 1
            }
        };
        if index >= most.min(MAX_FILES - 1) {
            return None;
        }
        *self.sources.get_mut(index)? = Some(Source {
            generation: generation(),
            kind,
            list: List::default(),
            left: None,
            file,
            regions: 0,
            ready: 0,
            wake_at: (0, 0),
            low: 0,
            ended: false,
            useless: 0,
            seen: 0,
            asked: u64::MAX,
            lost: 0,
            strayed: false,
        });
        self.taken = index + 1;
        Some(index)
    }

    /// A source is gone, and its place free.
    pub(super) fn forget_source(&mut self, index: usize) {
        self.ignoring.retain(|(_, s, _)| *s != index);
        if let Some(slot) = self.sources.get_mut(index) {
            *slot = None;
            self.taken = self.taken.min(index);
        }
    }

    /// A part of a file belongs to a source, which has no entries there yet.
    pub(super) fn add_region(&mut self, file: u16, start: u64, end: u64, source: usize) -> bool {
        let Some(f) = self.file_mut(file) else {
            return false;
        };
        if f.regions.try_reserve(1).is_err() {
            return false;
        }
        let at = f.regions.partition_point(|r| r.start < start);
        let region = Region {
            start,
            end,
            source,
            entries: 0..0,
        };
        f.regions.insert(at, region);
        self.regions += 1;
        if let Some(source) = self.source(source) {
            source.regions += 1;
        }
        true
    }

    /// Takes the part of a file that begins at a byte from a source, and off its list.
    pub(super) fn remove_region(&mut self, file: u16, start: u64, source: usize) -> bool {
        let Some(f) = self.file_mut(file) else {
            return false;
        };
        let is = |r: &Region| r.start == start && r.source == source;
        let Some(i) = f.regions.iter().position(is) else {
            return false;
        };
        let gone = f.regions.remove(i);
        self.regions = self.regions.saturating_sub(1);
        if let Some(source) = self.source(source) {
            source.regions = source.regions.saturating_sub(1);
            source.list.forget(file, gone.start..gone.end, gone.entries);
        }
        true
    }
}
