//! Files that are opened in no order, and add up to most of a directory or of several: shuffled images, chunks of an array, mail.
//!
//! It is the ski rental of [`source::dense`](crate::source::dense) one level up: a file stands for a block, and what processes open of directories on one device for the
//! reads of a file. The directories' files are fetched in the order in which they lie, each an investment that delays the program; what they have cost stays within a share of
//! what it has waited for files, and of what it was saved by files that it came to open. All processes of a run share the account.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use outrider_sys::units::{InodeKey, PAGE};

use super::stream::Tally;
use crate::device::{ROOM, Seeks, TRIES};
use crate::source::dense::{
    AT_ONCE, CREDIT_US, Case, Draws, FEWEST, Price, Random, TOUCH_BITS, Verdict,
};
use crate::tree::known::{Directory, Place};

/// Calls that are made alone before it is tried whether the device has room for two.
const ALONE: u32 = 2;
/// Calls at once at most where there is credit for as many: threads of the engine's lane.
const MOST_AT_ONCE: usize = 16;
/// Files that were found cached in succession, after which none is fetched before one is opened that isn't.
const CACHED: u32 = 16;

/// What calls take that open a file and have it fetched, µs.
#[derive(Debug, Default)]
struct Calls {
    /// Those that were made alone: how many, what they take, and the quickest.
    alone: u32,
    took_us: f64,
    quickest_us: f64,
    /// Two that were made at once, until both were done, at the quickest; and how often two were made.
    two_us: f64,
    tries: u32,
    /// One of many that are made at once; 0: not known yet.
    one_of_many_us: f64,
    /// A processor's time for one.
    processor_us: f64,
}

/// Approaches what was measured; the first counts alone.
fn approach(known: &mut f64, measured: f64) {
    let weight = if *known == 0.0 { 1.0 } else { 0.2 };
    *known += (measured - *known) * weight;
}

impl Calls {
    /// So many were made at once, and the last was done after `us`.
    fn made(&mut self, calls: usize, us: f64) {
        let quicker = |known: f64| if known == 0.0 { us } else { known.min(us) };
        match calls {
            1 => {
                self.alone += 1;
                self.quickest_us = quicker(self.quickest_us);
                approach(&mut self.took_us, us);
            }
            2 => {
                self.tries += 1;
                self.two_us = quicker(self.two_us);
            }
            many => approach(&mut self.one_of_many_us, us / many as f64),
        }
    }

    /// How long the second of two waits for the first, µs.
    fn waits_us(&self) -> f64 {
        (self.two_us - self.quickest_us).max(0.0)
    }

    /// How many are to be made at once to see what they take: alone first, then two, whether the device has room for these.
    fn to_try(&self) -> Option<usize> {
        match (self.alone < ALONE, self.tries < TRIES) {
            (true, _) => Some(1),
            (_, true) if !self.move_a_head() => Some(2),
            _ => None,
        }
    }

    /// Whether they take as long as if a head had to be moved, once for the inode and once for the data. What lies side by side it reads together, which says nothing
    /// of room.
    fn move_a_head(&self) -> bool {
        Seeks::of(self.quickest_us / 2.0) == Seeks::Yes
    }

    fn have_room(&self) -> bool {
        self.tries >= TRIES && !self.move_a_head() && self.waits_us() < ROOM * self.quickest_us
    }

    /// How many may be made at once beside a program: so many that they take half of the device's time.
    fn beside(&self) -> usize {
        ((self.quickest_us / 2.0 / self.waits_us().max(1.0)) as usize).clamp(2, MOST_AT_ONCE / 2)
    }

    /// What one takes, where many are made at once if there is no room for more, µs.
    fn one_us(&self) -> f64 {
        match self.one_of_many_us {
            many if many > 0.0 => many.min(self.took_us),
            _ => self.took_us,
        }
    }

    /// By how much work that takes `us` when it is made alone delays a program.
    fn delay_us(&self, us: f64) -> f64 {
        match self.have_room() {
            true => us * self.waits_us() / 2.0 / self.quickest_us.max(1.0),
            false => us,
        }
    }
}

/// Calls that were made at once while no other was.
#[derive(Debug, Default)]
struct Batch {
    calls: usize,
    /// Those that aren't done, …
    left: usize,
    /// … what the longest took of the others, µs, and whether all of these had to read something.
    longest_us: f64,
    cold: bool,
}

/// A directory of which files were opened.
#[derive(Debug)]
struct Folder {
    dir: Arc<Directory>,
    /// The number of its first file among those of all directories.
    begin: u64,
    /// Those of its entries that need not be fetched, by inode: they were opened, were asked for, or are no files.
    done: Vec<bool>,
    left: usize,
    /// All before it are done.
    next: usize,
}

/// A file that was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    /// What that was expected to cost, µs.
    us: f64,
    /// It was opened meanwhile.
    opened: bool,
}

/// What processes open of the directories of one device.
#[derive(Debug, Default)]
pub(super) struct DenseDirectories {
    seen: Random,
    folders: Vec<Folder>,
    by_path: HashMap<PathBuf, usize>,
    /// Files in them that were neither opened nor asked for.
    left: usize,
    /// From which files are being fetched.
    current: usize,
    calls: Calls,
    batch: Batch,
    /// Files that are on their way, and that are there and were not opened, with their bytes.
    asked: HashMap<InodeKey, Asked>,
    here: HashMap<InodeKey, u64>,
    held: u64,
    /// Files that were opened, and their bytes.
    opened: (u64, u64),
    found_cached: u32,
    verdict: Option<Verdict>,
    /// Files that are to be fetched, as it was decided last, and how many at once.
    due: usize,
    at_once: usize,
    /// When a file was opened last, µs, and whether it was not cached; how long it takes from one that isn't to the next open, of whichever process.
    last: Option<(f64, bool)>,
    from_cold_us: f64,
    /// Files that were opened and not cached, and what listing directories has cost for that, µs.
    cold: u64,
    listing_us: f64,
    tally: Tally,
}

/// A file was opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// It was not cached then.
    pub(super) cold: bool,
    /// Bytes.
    pub(super) size: u64,
}

/// What may be fetched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes that may be fetched and not read, now …
    pub(super) room: u64,
    /// … and once all that is ahead was read.
    pub(super) grant: u64,
    /// Bytes that may be on their way at once of all that is fetched so.
    pub(super) together: u64,
    /// The device answers in so many µs, and delivers so many bytes/µs.
    pub(super) latency_us: f64,
    pub(super) bandwidth: f64,
    /// See `dense.share`.
    pub(super) share: f64,
    /// How likely it is that a processor's time is one that somebody else would have had.
    pub(super) displaces: f64,
}

/// Something that is to be fetched: a file, unless it has more bytes.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) place: Place,
    pub(super) most: u64,
}

impl DenseDirectories {
    /// Bytes of a file, on average.
    fn each(&self) -> u64 {
        let (files, bytes) = self.opened;
        bytes.checked_div(files).unwrap_or(0).max(PAGE)
    }

    /// Bytes that are there or on their way, and were not opened.
    pub(super) fn held(&self) -> u64 {
        self.held + self.asked.len() as u64 * self.each()
    }

    /// Whether a file was fetched, or is to be.
    pub(super) fn knows(&self, key: InodeKey) -> bool {
        self.asked.contains_key(&key) || self.here.contains_key(&key)
    }

    /// Whether a file was asked for and isn't there.
    pub(super) fn awaits(&self, key: InodeKey) -> bool {
        self.asked.contains_key(&key)
    }

    /// Whether any file was asked for and isn't there.
    pub(super) fn awaits_any(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether files are ahead of the program, so that each that it opens says something.
    pub(super) fn is_ahead(&self) -> bool {
        !self.here.is_empty() || !self.asked.is_empty()
    }

    /// Whether there is a chance that it pays to hear of more files.
    pub(super) fn is_promising(&self) -> bool {
        self.is_ahead() || !matches!(self.verdict, Some(Verdict::No))
    }

    /// Whether a directory may be listed that isn't known: what that has cost stays within a share of what the program has waited.
    pub(super) fn may_list(&mut self, bounds: &Bounds) -> bool {
        self.cold += 1;
        let waited = self.cold as f64 * self.miss_us(bounds);
        self.listing_us < CREDIT_US + bounds.share * waited
    }

    /// Directories were listed for that, which took `us`.
    pub(super) fn listed(&mut self, us: f64) {
        self.listing_us += self.calls.delay_us(us);
    }

    /// What a program waits for a file that isn't cached, µs.
    fn miss_us(&self, bounds: &Bounds) -> f64 {
        let read = bounds.latency_us + self.each() as f64 / bounds.bandwidth.max(f64::MIN_POSITIVE);
        let waits = read.max(self.calls.took_us);
        match self.from_cold_us {
            // Where several processes wait at once, the run waits less for each.
            from_cold if from_cold > 0.0 => waits.min(from_cold),
            _ => waits,
        }
    }

    /// At time `now`, µs, a file was opened that nobody had foreseen otherwise.
    pub(super) fn opened(&mut self, place: &Place, open: &Open, now: f64) {
        let Open { cold, size } = *open;
        if let Some((last, true)) = self.last.replace((now, cold)) {
            approach(&mut self.from_cold_us, (now - last).max(1.0));
        }
        self.opened.0 += 1;
        self.opened.1 += size;
        let key = place.key();
        let mut missing = cold;
        if let Some(asked) = self.asked.get_mut(&key) {
            missing = false;
            if !std::mem::replace(&mut asked.opened, true) {
                self.seen.used += PAGE;
            }
        } else if let Some(bytes) = self.here.remove(&key) {
            self.held -= bytes;
            if cold {
                self.tally.wasted_bytes += bytes;
            } else {
                self.seen.used += PAGE;
                self.use_up(bytes);
            }
        }
        if missing {
            self.found_cached = 0;
        }
        let at = self.folder(&place.dir);
        let rank = place.dir.rank_by_inode(place.entry);
        self.take(at, rank);
        let position = (self.folders[at].begin + rank as u64) * PAGE;
        self.seen
            .count(position, PAGE, missing, 0, TOUCH_BITS * PAGE);
        self.due = 0;
    }

    fn use_up(&mut self, bytes: u64) {
        self.tally.used += u64::from(bytes > 0);
        self.tally.used_bytes += bytes;
    }

    /// The index of a directory, which is taken in.
    fn folder(&mut self, dir: &Arc<Directory>) -> usize {
        if let Some(at) = self.by_path.get(&dir.path) {
            if Arc::ptr_eq(&self.folders[*at].dir, dir) {
                return *at;
            }
            // It has changed, and its files have other numbers.
            let at = *at;
            self.left -= std::mem::take(&mut self.folders[at].left);
            self.folders[at].done = Vec::new();
        }
        let last = self.folders.last();
        let begin = last.map_or(0, |f| f.begin + f.dir.entries.len() as u64);
        let entries = dir.by_inode().map(|entry| dir.entries[entry].directory);
        let done: Vec<bool> = entries.collect();
        let left = done.iter().filter(|done| !**done).count();
        self.left += left;
        self.by_path.insert(dir.path.clone(), self.folders.len());
        self.folders.push(Folder {
            dir: dir.clone(),
            begin,
            done,
            left,
            next: 0,
        });
        self.folders.len() - 1
    }

    fn take(&mut self, at: usize, rank: usize) {
        let folder = &mut self.folders[at];
        if folder.left > 0 && !std::mem::replace(&mut folder.done[rank], true) {
            folder.left -= 1;
            self.left -= 1;
        }
    }

    /// The next file: of the directory of which most was opened, in the order in which its files lie.
    fn next(&mut self) -> Option<Place> {
        if self.folders.get(self.current).is_none_or(|f| f.left == 0) {
            let share = |f: &Folder| f.left as f64 / f.done.len() as f64;
            let open = self.folders.iter().enumerate().filter(|(_, f)| f.left > 0);
            self.current = open.min_by(|a, b| share(a.1).total_cmp(&share(b.1)))?.0;
        }
        let folder = &mut self.folders[self.current];
        while folder.done.get(folder.next)? == &true {
            folder.next += 1;
        }
        let entry = folder.dir.entry_by_inode(folder.next)?;
        let (dir, rank) = (folder.dir.clone(), folder.next);
        self.take(self.current, rank);
        Some(Place { dir, entry })
    }

    fn price(&self, bounds: &Bounds) -> Price {
        let calls = &self.calls;
        let miss_us = self.miss_us(bounds);
        let alone = match calls.alone {
            0 => 2.0 * bounds.latency_us + miss_us,
            _ if calls.to_try().is_some() => calls.took_us,
            _ => calls.one_us(),
        };
        let has_room = calls.have_room();
        let displaced = calls.processor_us * bounds.displaces;
        let hurried = if has_room { calls.waits_us() } else { alone };
        Price {
            miss_us,
            piece_us: calls.delay_us(alone) * self.seen.missing_lately + displaced,
            hurried_us: hurried * self.seen.missing_lately + displaced,
            piece: PAGE,
            soon: 4 * AT_ONCE,
            has_room,
        }
    }

    /// Files to be fetched now.
    pub(super) fn wanted(&mut self, bounds: &Bounds) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        if self.seen.reads < FEWEST || self.found_cached >= CACHED || self.left == 0 {
            return wanted;
        }
        let price = self.price(bounds);
        let each = self.each();
        if self.due == 0 {
            // In files, of which each counts for a page.
            let files = |bytes: u64| (bytes / each).saturating_mul(PAGE);
            let case = Case {
                missing: self.left as u64 * PAGE,
                others: 0,
                room: files(bounds.room),
                grant: files(bounds.grant),
                draws: Draws::default(),
                held: None,
            };
            let verdict = self.seen.decide(case, price, bounds.share);
            self.verdict = Some(verdict);
            // Two that wait for each other because of who else reads say nothing of the device.
            let fit = (bounds.together / each).max(1) as usize;
            let trial = self.calls.to_try().map(|calls| calls.min(fit));
            (self.due, self.at_once) = match (verdict, trial) {
                (Verdict::Buy(files) | Verdict::Hurry(files), Some(trial)) => {
                    (trial.min(files as usize), trial)
                }
                // What is gained before that shows is not worth what a program loses that opens a few files of many.
                _ if !self.seen.draws().are_once() => (0, 0),
                (Verdict::Buy(files), _) if price.has_room => (files as usize, self.calls.beside()),
                (Verdict::Buy(files) | Verdict::Hurry(files), _) => (files as usize, MOST_AT_ONCE),
                _ => (0, 0),
            };
        }
        // What costs no less than it can save.
        let dear = price.piece_us.min(price.hurried_us) >= price.miss_us;
        if dear
            && self.calls.to_try().is_none()
            && (price.has_room || self.calls.one_of_many_us > 0.0)
        {
            self.due = 0;
            self.verdict = Some(Verdict::No);
            return wanted;
        }
        // Where there is no room, and while that isn't known, so many are made at once, and then none before all are done: then a head goes from file to file.
        let waits =
            !price.has_room && (!self.asked.is_empty() || self.due < self.at_once.min(self.left));
        if waits {
            self.due = 0;
            return wanted;
        }
        let us = match self.at_once > self.calls.beside() {
            true => price.hurried_us,
            false => price.piece_us,
        };
        let most = self.due as u64 * each;
        let free = self.at_once.saturating_sub(self.asked.len());
        for _ in 0..free.min(self.due) {
            let Some(place) = self.next() else { break };
            self.due -= 1;
            self.seen.bought += PAGE;
            self.seen.spent_us += us;
            self.asked.insert(place.key(), Asked { us, opened: false });
            wanted.push(Wanted { place, most });
        }
        if wanted.len() == self.asked.len() {
            self.batch = Batch {
                calls: wanted.len(),
                left: wanted.len(),
                longest_us: 0.0,
                cold: true,
            };
        } else if !wanted.is_empty() {
            self.batch = Batch::default();
        }
        wanted
    }

    /// A file that was fetched has taken so much of a processor's time, µs.
    pub(super) fn takes_processor(&mut self, us: f64) {
        approach(&mut self.calls.processor_us, us);
    }

    /// A file is there that was asked for: `bytes` of it had been missing, or something else (`cold`), and the call took so long, µs.
    pub(super) fn arrived(&mut self, key: InodeKey, bytes: u64, cold: bool, us: f64) {
        let Some(asked) = self.asked.remove(&key) else {
            return;
        };
        self.batch.cold &= cold;
        self.batch.longest_us = self.batch.longest_us.max(us);
        self.batch.left = self.batch.left.saturating_sub(1);
        if self.batch.left == 0 && self.batch.calls > 0 {
            let batch = std::mem::take(&mut self.batch);
            if batch.cold {
                self.calls.made(batch.calls, batch.longest_us);
            }
        }
        if cold {
            self.found_cached = 0;
        } else {
            self.found_cached += 1;
        }
        if bytes == 0 {
            self.refund(&asked, cold);
            return;
        }
        // What is larger than others costs more.
        let larger = bytes as f64 / self.each() as f64 - 1.0;
        self.seen.spent_us += asked.us * larger.max(0.0);
        if asked.opened {
            self.tally.late_bytes += bytes;
            self.use_up(bytes);
        } else {
            self.here.insert(key, bytes);
            self.held += bytes;
        }
    }

    /// A file that was asked for will not be fetched.
    pub(super) fn cancelled(&mut self, key: InodeKey) {
        if let Some(asked) = self.asked.remove(&key) {
            self.refund(&asked, false);
        }
    }

    /// Nothing of a file was fetched; what it took to find that out was paid (`cold`), or not.
    fn refund(&mut self, asked: &Asked, cold: bool) {
        self.seen.bought -= PAGE;
        if asked.opened {
            self.seen.used -= PAGE;
        }
        if !cold {
            self.seen.spent_us -= asked.us;
        }
    }

    /// Forgets which directories there are; what was fetched of them was in vain, and what it has cost stays spent.
    pub(super) fn clear(&mut self) {
        self.tally.wasted_bytes += self.held;
        let mut seen = Random::default();
        seen.spent_us = CREDIT_US;
        *self = DenseDirectories {
            seen,
            calls: std::mem::take(&mut self.calls),
            opened: self.opened,
            cold: self.cold,
            listing_us: self.listing_us,
            tally: self.tally,
            ..DenseDirectories::default()
        };
    }

    /// What became of files since this was asked last.
    pub(super) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The same, from zero again.
    pub(super) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::tree::known::{Entry, Tree};

    const FILE_SYSTEM: u64 = 5;
    /// Bytes of a file.
    const SIZE: u64 = 90 << 10;
    /// What a file takes that is cached, µs.
    const CACHED_US: f64 = 30.0;

    /// A device on which a file takes so many µs, and the next one of a directory less if it is read right behind.
    #[derive(Clone, Copy)]
    struct Device {
        file_us: f64,
        next_us: f64,
        /// It does several at once, as far as their bytes leave room on the way; otherwise one after the other.
        parallel: bool,
        /// Until then, µs, it isn't known that nobody else reads there, and what is fetched waits for what is on its way.
        known_us: f64,
    }

    const REMOTE: Device = Device {
        file_us: 1100.0,
        next_us: 1100.0,
        parallel: true,
        known_us: 0.0,
    };
    const NVME: Device = Device {
        file_us: 200.0,
        next_us: 200.0,
        parallel: true,
        known_us: 0.0,
    };
    const DISK: Device = Device {
        file_us: 14_000.0,
        next_us: 3_000.0,
        parallel: false,
        known_us: 0.0,
    };
    /// Bytes/µs.
    const BANDWIDTH: f64 = 1000.0;

    /// What became of a program that opens files.
    struct Outcome {
        us: f64,
        stock_us: f64,
        fetched: usize,
    }

    impl Outcome {
        fn gain(&self) -> f64 {
            self.stock_us / self.us
        }
    }

    /// So many directories of so many files.
    fn tree(directories: u64, files: u64) -> Tree {
        let mut tree = Tree::default();
        for d in 0..directories {
            let entry = |n: u64| Entry {
                name: format!("{n:04}").into(),
                ino: 1000 + d * files + n,
                directory: false,
            };
            let entries = (0..files).map(entry).collect();
            let key = InodeKey::new(FILE_SYSTEM, 1 + d);
            let dir = Directory::new(format!("/d/{d}").into(), key, (0, 0), entries);
            tree.insert(dir);
        }
        tree
    }

    /// Opens files, one after the other, with a grant of memory, bytes.
    fn open(device: Device, tree: &Tree, files: impl Iterator<Item = u64>, grant: u64) -> Outcome {
        let mut dense = DenseDirectories::default();
        let (mut now, mut stock_us, mut fetched) = (0.0, 0.0, 0);
        // Until when the device, or the way to it, is busy; what is on its way, and what is there.
        let (mut busy, mut last) = (0.0f64, 0u64);
        let mut coming: Vec<(f64, f64, InodeKey)> = Vec::new();
        let mut cached = HashSet::new();
        let mut seen = HashSet::new();
        let transfer = SIZE as f64 / BANDWIDTH;
        let mut read = |at: f64, ino: u64, busy: &mut f64| {
            let begin = at.max(*busy);
            let next = std::mem::replace(&mut last, ino) + 1 == ino;
            let us = if next { device.next_us } else { device.file_us };
            let end = begin + us;
            *busy = if device.parallel {
                begin + transfer
            } else {
                end
            };
            end
        };
        for n in files {
            let key = InodeKey::new(FILE_SYSTEM, 1000 + n);
            let cold = !cached.contains(&key);
            let place = tree.find(key).unwrap();
            let first = seen.insert(key);
            stock_us += CACHED_US + if first { device.file_us } else { 0.0 };
            cached.insert(key);
            let waits = coming.iter().find(|c| c.2 == key).map(|c| c.0);
            dense.opened(&place, &Open { cold, size: SIZE }, now);
            now = match (cold, waits) {
                (false, _) => now + CACHED_US,
                (true, Some(until)) => until.max(now) + CACHED_US,
                (true, None) => read(now, key.ino, &mut busy) + CACHED_US,
            };
            loop {
                let known = now >= device.known_us;
                let bounds = Bounds {
                    room: grant.saturating_sub(dense.held()),
                    grant,
                    together: if known { u64::MAX } else { SIZE / 4 },
                    latency_us: 200.0,
                    bandwidth: BANDWIDTH,
                    share: 0.05,
                    displaces: 0.5,
                };
                let wanted = dense.wanted(&bounds);
                fetched += wanted.len();
                for wanted in &wanted {
                    let key = wanted.place.key();
                    let before = coming.iter().map(|c| c.0);
                    let before = before.filter(|_| !known).fold(now, f64::max);
                    coming.push((read(before, key.ino, &mut busy), now, key));
                }
                coming.sort_by(|a, b| b.0.total_cmp(&a.0));
                let Some((end, begun, key)) = coming.pop_if(|c| c.0 <= now) else {
                    break;
                };
                cached.insert(key);
                dense.arrived(key, SIZE, true, end - begun);
                dense.takes_processor(20.0);
            }
        }
        Outcome {
            us: now,
            stock_us,
            fetched,
        }
    }

    /// A permutation of so many.
    fn shuffled(files: u64) -> impl Iterator<Item = u64> {
        // An odd factor makes one of a power of two; the rest is left out.
        let all = files.next_power_of_two();
        (0..all)
            .map(move |i| (i * 40_503 + 77) % all)
            .filter(move |n| *n < files)
    }

    /// B11: a folder that is read in no order, all of it, is fetched in the order in which it lies; in one directory or in many.
    #[test]
    fn shuffled_folders_are_fetched() {
        for (directories, files) in [(1, 6000), (100, 60)] {
            let tree = tree(directories, files);
            for (device, least) in [(REMOTE, 4.0), (NVME, 1.5), (DISK, 1.65)] {
                let all = directories * files;
                let done = open(device, &tree, shuffled(all), u64::MAX);
                assert!(done.gain() > least, "{} of {least}", done.gain());
                assert!(done.fetched as u64 > all / 2);
            }
        }
    }

    /// B11: what is found out of a device while others may read there is nothing that its room is judged by later.
    #[test]
    fn a_device_is_tried_once_it_is_known_who_reads_there() {
        let tree = tree(1, 6000);
        for (device, least) in [(REMOTE, 3.8), (NVME, 1.5)] {
            let known_us = 700.0 * device.file_us;
            let done = open(
                Device { known_us, ..device },
                &tree,
                shuffled(6000),
                u64::MAX,
            );
            assert!(done.gain() > least, "{} of {least}", done.gain());
        }
    }

    /// B11: a few files of many, files that are read again and again, and more than memory holds are left alone: what is tried costs next to nothing.
    #[test]
    fn what_is_of_no_use_costs_little() {
        let tree = tree(1, 6000);
        for device in [REMOTE, NVME, DISK] {
            let few = open(device, &tree, shuffled(6000).take(180), u64::MAX);
            assert!(few.gain() > 1.0 / 1.03, "few: {}", few.gain());
            let hot: Vec<u64> = shuffled(6000).take(300).collect();
            let again = hot.into_iter().cycle().take(6000);
            let again = open(device, &tree, again, u64::MAX);
            assert!(again.gain() > 1.0 / 1.3, "again: {}", again.gain());
            let large = open(device, &tree, shuffled(6000), 1000 * SIZE);
            assert!(large.gain() > 1.0 / 1.03, "large: {}", large.gain());
        }
    }
}
