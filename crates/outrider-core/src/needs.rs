//! What the programs of a run need, in the order in which they come to it: a log in memory that all of them share with the service.
//!
//! Only a run that is remembered has one. Hooks add the names by which files and directories were opened, started or asked about; the service takes them. The log
//! only grows, so a hook needs one addition to find its place and no lock; what no longer fits is not remembered. Processes that may be hostile write into it:
//! what is taken from it is a name and nothing more, which the service looks up with its own rights.

use core::ffi::c_char;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64};

use outrider_sys::fnv;

/// Bytes of a log: 200,000 names of usual length. Only what is written takes memory.
pub const BYTES: usize = 16 << 20;
/// What /proc/PID/maps shows for it.
pub const NAME: &core::ffi::CStr = c"outrider-needs";
/// Bytes of a name at most, its zero not counted: the kernel's PATH_MAX.
pub const LONGEST: usize = 4095;
/// Looks of a run that are all written down.
const ALL_LOOKS: u32 = 1024;
/// Of those that come later only samples are, one of so many.
const ONE_OF: u64 = 16;
/// Bytes before the first entry.
const BEGIN: u32 = 64;
/// Bytes of an entry before its name.
const HEAD: usize = 16;
/// The highest byte of an entry's first word.
const MARK: u64 = 0xA7;

/// What was done by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Did {
    /// A file was opened for reading, or a directory.
    Open = 1,
    /// Attributes were asked for.
    Look = 2,
    /// A program was started.
    Start = 3,
}

impl Did {
    fn of(number: u8) -> Option<Did> {
        [Did::Open, Did::Look, Did::Start]
            .into_iter()
            .find(|did| *did as u8 == number)
    }
}

/// Whether a name is one of those that stand for all: the same ones in each run. Inodes lie side by side in blocks of 16, of which file systems read many at once,
/// and names a hundred to a block.
pub fn is_sample(name: &[u8]) -> bool {
    // The last bytes of a hash hardly reach the bits in the middle, and names of one directory differ in these only: without mixing it once more of some
    // directories half of the names would be samples and of others none. The constants are those of MurmurHash3's end.
    let hash = name.iter().copied().fold(fnv::NOTHING, fnv::then);
    let hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (hash >> 33).is_multiple_of(ONE_OF)
}

/// An entry as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What was done.
    pub did: Did,
    /// The process, as it knows itself.
    pub pid: u32,
    /// The directory that a relative name begins at: a descriptor's number, or `AT_FDCWD`.
    pub dir: i32,
    /// The name.
    pub name: Vec<u8>,
}

/// A log of [`BYTES`] bytes. Zeroed memory is an empty one.
#[repr(C, align(64))]
pub struct Log {
    /// Bytes that are taken, from the first entry on.
    taken: AtomicU32,
    /// Looks so far.
    looks: AtomicU32,
    /// By which programs know that it is their run's.
    secret: AtomicU64,
}

impl Log {
    /// It is the log of the run that has this secret.
    pub fn begin(&self, secret: u64) {
        self.secret.store(secret, Relaxed);
    }

    /// Whether it is that run's.
    pub fn is_of(&self, secret: u64) -> bool {
        self.secret.load(Relaxed) == secret
    }

    fn word(&self, at: usize) -> Option<&AtomicU64> {
        if !at.is_multiple_of(8) || at + 8 > BYTES {
            return None;
        }
        // SAFETY: whoever has a Log has mapped BYTES bytes from its beginning on; a word is within these, aligned, and only ever used as an atomic.
        Some(unsafe { &*core::ptr::from_ref(self).byte_add(at).cast::<AtomicU64>() })
    }

    /// Whether there is room for a look more, at a name of which this is told: at all of them at first, and then at samples.
    pub fn wants_look(&self, name: &[u8]) -> bool {
        self.looks.fetch_add(1, Relaxed) < ALL_LOOKS || is_sample(name)
    }

    /// Adds an entry, unless the log is full or has enough of the kind. Async-signal-safe: arithmetic and stores, and `pid`, which is asked for who does it where that
    /// matters.
    ///
    /// # Safety
    /// `name` is a C string.
    pub unsafe fn add(&self, did: Did, pid: impl Fn() -> u32, dir: i32, name: *const c_char) {
        let mut len = 0;
        // SAFETY: within the string, which ends with a zero.
        while len <= LONGEST && unsafe { *name.add(len) } != 0 {
            len += 1;
        }
        // SAFETY: what was gone through just now.
        let text = unsafe { core::slice::from_raw_parts(name.cast::<u8>(), len) };
        if did == Did::Look && !self.wants_look(text) {
            return;
        }
        // Who it is matters only where the name begins at a directory of its own.
        let pid = match text.first() {
            Some(b'/') => 0,
            _ => pid(),
        };
        let bytes = HEAD + len.next_multiple_of(8);
        if len == 0 || len > LONGEST || self.taken.load(Relaxed) as usize + bytes > BYTES - 64 {
            return;
        }
        let at = BEGIN as usize + self.taken.fetch_add(bytes as u32, Relaxed) as usize;
        // Others may have taken what was left.
        let (Some(head), true) = (self.word(at), at + bytes <= BYTES) else {
            return;
        };
        for (i, part) in text.chunks(8).enumerate() {
            let mut word = [0; 8];
            word.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            if let Some(to) = self.word(at + HEAD + 8 * i) {
                to.store(u64::from_le_bytes(word), Relaxed);
            }
        }
        if let Some(to) = self.word(at + 8) {
            to.store(u64::from(pid) | u64::from(dir as u32) << 32, Relaxed);
        }
        let first = MARK << 56 | (did as u64) << 48 | len as u64;
        head.store(first, Release);
    }

    /// Takes the entry at `from` bytes, 0 for the first, and says where the next one begins; `None`: there is none yet. At the `end` of a run what nobody has
    /// finished is passed over.
    pub fn take(&self, from: &mut u32, end: bool) -> Option<Entry> {
        loop {
            let taken = (self.taken.load(Acquire) as usize).min(BYTES - 64);
            if *from as usize >= taken {
                return None;
            }
            let at = BEGIN as usize + *from as usize;
            let first = self.word(at)?.load(Acquire);
            let (mark, len) = (first >> 56, (first & 0xffff) as usize);
            let did = Did::of((first >> 48) as u8);
            let sound = mark == MARK && (1..=LONGEST).contains(&len);
            let (true, Some(did)) = (sound, did) else {
                if first == 0 && !end {
                    return None;
                }
                *from += 8;
                continue;
            };
            *from += (HEAD + len.next_multiple_of(8)) as u32;
            let who = self.word(at + 8)?.load(Relaxed);
            let mut name = Vec::with_capacity(len.next_multiple_of(8));
            for i in (0..len).step_by(8) {
                name.extend(self.word(at + HEAD + i)?.load(Relaxed).to_le_bytes());
            }
            name.truncate(len);
            if name.contains(&0) {
                continue;
            }
            return Some(Entry {
                did,
                pid: who as u32,
                dir: (who >> 32) as i32,
                name,
            });
        }
    }
}

/// A log that this process has mapped.
#[derive(Clone, Copy)]
pub struct Mapped(*const Log);

// SAFETY: a log is made of atomics, and stays mapped.
unsafe impl Send for Mapped {}
// SAFETY: likewise.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// The log that lies at `at`.
    ///
    /// # Safety
    /// [`BYTES`] bytes are mapped there, and stay.
    pub unsafe fn at(at: *const u8) -> Mapped {
        Mapped(at.cast())
    }
}

impl core::ops::Deref for Mapped {
    type Target = Log;

    fn deref(&self) -> &Log {
        // SAFETY: as promised.
        unsafe { &*self.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> Mapped {
        let at = outrider_sys::mapped::map_shared(BYTES).unwrap();
        // SAFETY: mapped just now.
        unsafe { Mapped::at(at) }
    }

    /// Whatever processes do at the same time, each entry is taken once and whole.
    #[test]
    fn all_that_is_added_is_taken() {
        let log = log();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                scope.spawn(move || {
                    for i in 0..1000usize {
                        let text = format!("{thread}/{:0>1$}", i, i % 90);
                        let name = std::ffi::CString::new(text);
                        // SAFETY: a C string.
                        unsafe { log.add(Did::Open, || thread, -100, name.unwrap().as_ptr()) };
                    }
                });
            }
        });
        let (mut from, mut next) = (0, [0usize; 4]);
        while let Some(entry) = log.take(&mut from, false) {
            let i = next[entry.pid as usize];
            let expected = format!("{}/{:0>2$}", entry.pid, i, i % 90);
            assert_eq!(entry.name, expected.as_bytes());
            assert_eq!((entry.did, entry.dir), (Did::Open, -100));
            next[entry.pid as usize] += 1;
        }
        assert_eq!(next, [1000; 4]);
    }

    /// Of many names that are asked about the first are written down, and then one of sixteen, in each run the same; files that are opened are, all of them.
    #[test]
    fn looks_are_thinned_out() {
        let taken = |first: usize| {
            let log = log();
            let names = (0..20_000).map(|i| format!("src/{:02}/file_{i}.c", i % 40));
            let names: Vec<String> = names.collect();
            for i in (first..20_000).chain(0..first) {
                let name = std::ffi::CString::new(&*names[i]).unwrap();
                // SAFETY: a C string.
                unsafe { log.add(Did::Look, || 1, -100, name.as_ptr()) };
            }
            let mut from = 0;
            let all: Vec<Entry> = std::iter::from_fn(|| log.take(&mut from, false)).collect();
            all
        };
        let samples = |all: &[Entry]| {
            let names = all.iter().map(|e| e.name.clone());
            let samples = names.filter(|n| is_sample(n));
            samples.collect::<std::collections::BTreeSet<_>>()
        };
        let (one, other) = (taken(0), taken(7000));
        assert_eq!(samples(&one), samples(&other));
        let few = samples(&one).len();
        assert!((1000..1500).contains(&few), "{few}");
        // … of each directory, however its names are made.
        for at in 0..500 {
            let names = (0..500).map(|i| format!("/home/{at}/name_{i}"));
            let few = names.filter(|name| is_sample(name.as_bytes())).count();
            assert!((5..70).contains(&few), "{at}: {few}");
        }
        assert!(one.len() < ALL_LOOKS as usize + few, "{}", one.len());
        let log = log();
        for i in 0..20_000 {
            let name = std::ffi::CString::new(format!("{i}")).unwrap();
            // SAFETY: a C string.
            unsafe { log.add(Did::Open, || 1, -100, name.as_ptr()) };
        }
        let mut from = 0;
        let all = std::iter::from_fn(|| log.take(&mut from, false)).count();
        assert_eq!(all, 20_000);
    }

    /// What is full takes no more, and what was scribbled yields nothing that no program can have meant.
    #[test]
    fn nothing_is_believed() {
        let log = log();
        let name = std::ffi::CString::new(vec![b'x'; LONGEST]).unwrap();
        for _ in 0..BYTES / LONGEST + 10 {
            // SAFETY: a C string.
            unsafe { log.add(Did::Open, || 1, 2, name.as_ptr()) };
        }
        let (mut from, mut count) = (0, 0);
        while let Some(entry) = log.take(&mut from, true) {
            assert_eq!(entry.name.len(), LONGEST);
            count += 1;
        }
        assert!(count >= BYTES / (LONGEST + 17) - 1);
        let mut seed = 7u64;
        for at in (0..BYTES).step_by(8) {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let odd = if seed >> 60 == 0 {
                MARK << 56 | 1 << 48 | seed >> 48
            } else {
                seed
            };
            log.word(at).unwrap().store(odd, Relaxed);
        }
        let mut from = 0;
        while let Some(entry) = log.take(&mut from, true) {
            assert!(entry.name.len() <= LONGEST && !entry.name.contains(&0));
        }
    }
}
