//! How far files are read that are read from their beginning, by the kind of their names: whether it pays to fetch ahead of a reader who has come so far.
//!
//! That programs read on is what nearly all of them do, so it is what is believed of the first files of a run. A program that reads headers (file(1), a thumbnailer, an
//! index of media) shows otherwise within a few files. What is remembered is where readers stopped, not what came of what was fetched: it is learned as
//! well while nothing is fetched, so nothing has to be tried again to see whether it pays by now.
//!
//! Of names with an extension all of the same one are a kind, of others those in one directory. A kind of which little is known yet goes by all of the run.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Files that are remembered of a kind, and of the run.
const REMEMBERED: usize = 32;
/// Kinds that are remembered.
const KINDS: usize = 64;
/// Less than this part of what is fetched is not worth it if it is used.
const LEAST_USED: f64 = 0.25;
/// Bytes below which a part of what is asked for is not worth a request of its own: the kernel's own reader brings as much.
const LEAST: u64 = 128 << 10;

/// A file that is being read, among those that are remembered.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    kind: u64,
    of_kind: u64,
    of_run: u64,
}

/// How far one file was read without a gap from its beginning, `u64::MAX` for to its end, and whether somebody has it open.
#[derive(Clone, Copy, Debug)]
struct Read {
    reach: u64,
    live: bool,
}

/// The last files of a kind, numbered in the order in which they were opened.
#[derive(Debug, Default)]
struct Record {
    first: u64,
    reads: VecDeque<Read>,
    /// Files have been read on after others were opened, so that those that are open may be.
    by_turns: bool,
    used: u64,
}

impl Record {
    fn begin(&mut self) -> u64 {
        if self.reads.len() == REMEMBERED {
            self.reads.pop_front();
            self.first += 1;
        }
        self.reads.push_back(Read {
            reach: 0,
            live: true,
        });
        self.first + self.reads.len() as u64 - 1
    }

    fn at(&mut self, number: u64) -> Option<&mut Read> {
        let i = number.checked_sub(self.first)?;
        self.reads.get_mut(i as usize)
    }

    fn reached(&mut self, number: u64, reach: u64) {
        let others = self.first + (self.reads.len() as u64) > number + 1;
        if let Some(read) = self.at(number) {
            // A first read that comes late is no sign of turns.
            let goes_on = read.reach > 0 && reach > read.reach;
            read.reach = reach;
            self.by_turns |= others && goes_on;
        }
    }

    fn ended(&mut self, number: u64) {
        if let Some(read) = self.at(number) {
            read.live = false;
        }
    }

    /// Of how many readers that came as far as `from` it is known where they stopped, and which parts of `from..end` they read on average, all added up.
    fn used(&self, but: u64, from: u64, end: u64) -> (f64, f64) {
        let (mut readers, mut parts) = (0.0, 0.0);
        for (number, read) in (self.first..).zip(&self.reads) {
            if number == but || read.reach < from || read.live && self.by_turns && read.reach < end
            {
                continue;
            }
            readers += 1.0;
            parts += (read.reach.min(end) - from) as f64 / (end - from) as f64;
        }
        (readers, parts)
    }
}

/// What is known of a run's readers.
#[derive(Debug, Default)]
pub struct Reaches {
    run: Record,
    kinds: HashMap<u64, Record>,
    opens: u64,
}

impl Reaches {
    /// A file is opened.
    pub fn begin(&mut self, name: &Path) -> Place {
        let kind = kind(name);
        self.opens += 1;
        if self.kinds.len() == KINDS && !self.kinds.contains_key(&kind) {
            let oldest = self.kinds.iter().min_by_key(|(_, r)| r.used);
            if let Some(oldest) = oldest.map(|(kind, _)| *kind) {
                self.kinds.remove(&oldest);
            }
        }
        let record = self.kinds.entry(kind).or_default();
        record.used = self.opens;
        Place {
            kind,
            of_kind: record.begin(),
            of_run: self.run.begin(),
        }
    }

    /// It has been read up to this byte of so many, without a gap.
    pub fn reached(&mut self, place: Place, reach: u64, size: u64) {
        let reach = if reach < size { reach } else { u64::MAX };
        self.run.reached(place.of_run, reach);
        if let Some(record) = self.kinds.get_mut(&place.kind) {
            record.reached(place.of_kind, reach);
        }
    }

    /// Nobody has it open any more.
    pub fn ended(&mut self, place: Place) {
        self.run.ended(place.of_run);
        if let Some(record) = self.kinds.get_mut(&place.kind) {
            record.ended(place.of_kind);
        }
    }

    /// Up to which byte it pays to fetch ahead of a reader who has read a file up to `from`, where `end` is what would be fetched if all readers went on.
    pub fn ahead(&self, place: Place, from: u64, end: u64) -> u64 {
        let mut ahead = end.saturating_sub(from);
        loop {
            if self.likely(place, from, from + ahead) >= LEAST_USED {
                return from + ahead;
            }
            if ahead < 2 * LEAST {
                return from;
            }
            ahead /= 2;
        }
    }

    /// Which part of `from..end` is read by who has come to `from`.
    fn likely(&self, place: Place, from: u64, end: u64) -> f64 {
        if end <= from {
            return 1.0;
        }
        // One reader who reads all of it stands for what is believed before anything is known, and what the run's readers do for one of the kind.
        let (readers, parts) = self.run.used(place.of_run, from, end);
        let of_run = (parts + 1.0) / (readers + 1.0);
        let (readers, parts) = match self.kinds.get(&place.kind) {
            Some(record) => record.used(place.of_kind, from, end),
            None => (0.0, 0.0),
        };
        (parts + of_run) / (readers + 1.0)
    }
}

/// How far a file is read from its beginning, since somebody has it open.
#[derive(Debug, Default)]
pub struct Progress {
    /// Up to which byte, without a gap.
    reach: u64,
    /// Where that is remembered.
    place: Option<Place>,
}

impl Progress {
    /// It is opened, and nobody else has it open.
    pub fn begin(&mut self, reaches: &mut Reaches, name: &Path) {
        self.reach = 0;
        self.place = Some(reaches.begin(name));
    }

    /// Bytes were read of so many that it has.
    pub fn read(&mut self, reaches: &mut Reaches, offset: u64, len: u64, size: u64) {
        if let Some(place) = self.place
            && (offset..=offset + len).contains(&self.reach)
        {
            self.reach = offset + len;
            reaches.reached(place, self.reach, size);
        }
    }

    /// Nobody has it open any more.
    pub fn end(&mut self, reaches: &mut Reaches) {
        self.reach = 0;
        if let Some(place) = self.place.take() {
            reaches.ended(place);
        }
    }

    /// Up to which byte it pays to fetch when it is opened, if all of `ahead` bytes would be fetched.
    pub fn at_open(&self, reaches: &Reaches, ahead: u64) -> u64 {
        self.place
            .map_or(ahead, |place| reaches.ahead(place, 0, ahead))
    }

    /// See [`Reaches::ahead`], for a reader who has read up to `end`, where all before was read.
    pub fn ahead(&self, reaches: &Reaches, end: u64, ahead: u64) -> Option<u64> {
        let reach = Some(self.reach).filter(|reach| *reach >= end)?;
        Some(reaches.ahead(self.place?, reach, ahead))
    }
}

/// The kind of a file's name.
fn kind(name: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    match name.extension() {
        Some(extension) => extension.as_bytes().hash(&mut hasher),
        None => name.parent().hash(&mut hasher),
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: u64 = 2 << 20;
    const SIZE: u64 = 8 << 20;

    /// What is fetched at open and after a first read of 4 KiB by a reader who then reads on to `end`, and closes the file.
    fn reader(reaches: &mut Reaches, name: &str, end: u64) -> (u64, u64) {
        let place = reaches.begin(Path::new(name));
        let at_open = reaches.ahead(place, 0, OPEN);
        reaches.reached(place, 4096, SIZE);
        let then = reaches.ahead(place, 4096, 4096 + OPEN) - 4096;
        reaches.reached(place, end, SIZE);
        reaches.ended(place);
        (at_open, then)
    }

    #[test]
    fn headers_are_known_after_two() {
        let mut reaches = Reaches::default();
        let fetched: Vec<_> = (0..300)
            .map(|i| reader(&mut reaches, &format!("/d/{i}.bin"), 4096).0)
            .collect();
        assert_eq!(fetched[..2], [OPEN, OPEN]);
        assert!(fetched[2..].iter().all(|f| *f == 0), "{fetched:?}");
        // A header of another kind is likely no more than that, and a reader who goes on is followed.
        let place = reaches.begin(Path::new("/d/other.txt"));
        assert_eq!(reaches.ahead(place, 0, OPEN), 0);
        reaches.reached(place, 8192, SIZE);
        assert_eq!(reaches.ahead(place, 8192, 8192 + OPEN), 8192 + OPEN);
    }

    #[test]
    fn whole_files_are_fetched_whatever_another_kind_is() {
        let mut reaches = Reaches::default();
        for i in 0..100 {
            reader(&mut reaches, &format!("/d/{i}.bin"), 4096);
            let (at_open, then) = reader(&mut reaches, &format!("/d/{i}.dat"), SIZE);
            // The first one is taken for what the others are.
            assert!(i == 0 || at_open == OPEN && then == OPEN, "{i}");
        }
        let (at_open, then) = reader(&mut reaches, "/d/x.bin", 4096);
        assert_eq!((at_open, then), (0, 0));
    }

    #[test]
    fn a_part_is_fetched_where_a_part_is_read() {
        let mut reaches = Reaches::default();
        for i in 0..REMEMBERED {
            reader(&mut reaches, &format!("/d/{i}.bin"), 200 << 10);
        }
        let (at_open, then) = reader(&mut reaches, "/d/x.bin", 200 << 10);
        assert_eq!(at_open, 512 << 10);
        assert_eq!(then, 512 << 10);
    }

    #[test]
    fn small_files_read_whole_say_that_readers_go_on() {
        let mut reaches = Reaches::default();
        for i in 0..REMEMBERED {
            let place = reaches.begin(Path::new(&format!("/d/{i}.bin")));
            reaches.reached(place, 70 << 10, 70 << 10);
            reaches.ended(place);
        }
        assert_eq!(reader(&mut reaches, "/d/x.bin", SIZE), (OPEN, OPEN));
    }

    #[test]
    fn files_that_stay_open_count_unless_they_are_read_by_turns() {
        let mut heads = Reaches::default();
        let mut turns = Reaches::default();
        let mut last = (0, 0);
        let mut open = Vec::new();
        for i in 0..20 {
            let place = heads.begin(Path::new(&format!("/d/{i}.bin")));
            let at_open = heads.ahead(place, 0, OPEN);
            heads.reached(place, 4096, SIZE);
            last = (at_open, heads.ahead(place, 4096, OPEN) - 4096);
            open.push(turns.begin(Path::new(&format!("/d/{i}.bin"))));
        }
        assert_eq!(last, (0, 0));
        for round in 1..5 {
            for place in &open {
                turns.reached(*place, round << 16, SIZE);
                let goes_on = turns.ahead(*place, round << 16, OPEN) == OPEN;
                assert!(round == 1 || goes_on, "{round}");
            }
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut reaches = Reaches::default();
        for i in 0..10_000 {
            reader(&mut reaches, &format!("/d/{i}.{i}"), 4096);
        }
        assert!(reaches.kinds.len() <= KINDS && reaches.run.reads.len() <= REMEMBERED);
        let reads = reaches.kinds.values().map(|r| r.reads.len());
        assert!(reads.sum::<usize>() <= KINDS * REMEMBERED);
        // A place that is forgotten changes nothing.
        let old = Place {
            kind: 1,
            of_kind: 0,
            of_run: 0,
        };
        reaches.reached(old, 1 << 20, SIZE);
        reaches.ended(old);
    }
}
