//! Lines of recordings.

use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use outrider_sys::cache::{CacheStat, CacheStatError};
use outrider_sys::counters::Read;
use outrider_sys::memory::Memory;
use outrider_sys::units::{ByteRange, InodeKey};

use crate::config::Config;
use crate::engine::{self, Failure, Issuing, Job};
use crate::service::FileSystem;
use crate::shm::{Event, Kind};

/// The first word of a recording, and the number of the format.
const MAGIC: &str = "outrider-recording 1";

/// What a recording begins with: all that a service is made of besides its configuration.
#[derive(Clone, Copy)]
pub struct Head {
    /// `shm::MODE_*`.
    pub mode: u32,
    /// Jobs that are done at once; 0: nothing is fetched.
    pub workers: usize,
    /// Number of the service's process.
    pub pid: u32,
}

impl Head {
    /// What a line has to look like.
    pub const FORM: &str = "outrider-recording 1 MODE WORKERS PID";

    /// Of a service of this configuration.
    pub fn of(config: &Config, mode: u32, kind: engine::Kind, pid: u32) -> Head {
        let workers = match kind {
            engine::Kind::Noop => 0,
            engine::Kind::Readahead => 1,
            _ => config.engine.workers as usize,
        };
        Head { mode, workers, pid }
    }

    /// The first two lines, the second with the configuration as TOML.
    pub fn write(self, config: &str) -> String {
        let Head { mode, workers, pid } = self;
        let config = escaped(config.as_bytes());
        format!("{MAGIC} {mode} {workers} {pid}\nconfig {config}\n")
    }

    /// From the first line; `None` if it is another.
    pub fn read(line: &str) -> Option<Head> {
        let [mode, workers, pid] = numbers(line.strip_prefix(MAGIC)?.trim_start())?;
        Some(Head {
            mode: mode.try_into().ok()?,
            workers: usize::try_from(workers).ok()?,
            pid: pid.try_into().ok()?,
        })
    }
}

/// Text as one word: what is no letter, digit or one of `/._-` is written `%XX`, and nothing as `%`.
pub fn escaped(text: &[u8]) -> String {
    let mut out = String::new();
    for b in text {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' => {
                out.push(char::from(*b));
            }
            _ => write!(out, "%{b:02x}").unwrap_or_default(),
        }
    }
    if out.is_empty() {
        out.push('%');
    }
    out
}

/// The text that [`escaped`] has made a word of; `None` for others.
pub fn unescaped(word: &str) -> Option<Vec<u8>> {
    if word == "%" {
        return Some(Vec::new());
    }
    let mut out = Vec::new();
    let mut bytes = word.bytes();
    while let Some(b) = bytes.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let digit = |b: u8| char::from(b).to_digit(16);
        let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
        out.push((high * 16 + low) as u8);
    }
    Some(out)
}

/// An answer of the kernel's: as it is written, and read.
pub trait Answer: Sized {
    /// As words.
    fn write(&self) -> String;
    /// From these words; `None` where they are none.
    fn read(words: &str) -> Option<Self>;
}

impl Answer for bool {
    fn write(&self) -> String {
        u8::from(*self).to_string()
    }

    fn read(words: &str) -> Option<bool> {
        u64::read(words).map(|n| n != 0)
    }
}

impl Answer for u64 {
    fn write(&self) -> String {
        self.to_string()
    }

    fn read(words: &str) -> Option<u64> {
        words.parse().ok()
    }
}

impl Answer for Vec<u64> {
    fn write(&self) -> String {
        let words: Vec<String> = self.iter().map(u64::to_string).collect();
        words.join(",")
    }

    fn read(words: &str) -> Option<Vec<u64>> {
        words.split(',').map(|w| w.parse().ok()).collect()
    }
}

impl Answer for Vec<u8> {
    fn write(&self) -> String {
        escaped(self)
    }

    fn read(words: &str) -> Option<Vec<u8>> {
        unescaped(words)
    }
}

impl<T: Answer> Answer for Option<T> {
    fn write(&self) -> String {
        self.as_ref().map_or("-".to_owned(), T::write)
    }

    fn read(words: &str) -> Option<Option<T>> {
        match words {
            "-" => Some(None),
            words => T::read(words).map(Some),
        }
    }
}

/// Numbers, written one after the other.
fn numbers<const N: usize>(words: &str) -> Option<[u64; N]> {
    let all: Vec<u64> = words
        .split(' ')
        .map(|w| w.parse().ok())
        .collect::<Option<_>>()?;
    all.try_into().ok()
}

impl<const N: usize> Answer for [u64; N] {
    fn write(&self) -> String {
        let words: Vec<String> = self.iter().map(u64::to_string).collect();
        words.join(" ")
    }

    fn read(words: &str) -> Option<[u64; N]> {
        numbers(words)
    }
}

impl Answer for Read {
    fn write(&self) -> String {
        [self.completed, self.merged, self.bytes].write()
    }

    fn read(words: &str) -> Option<Read> {
        let [completed, merged, bytes] = numbers(words)?;
        Some(Read {
            completed,
            merged,
            bytes,
        })
    }
}

/// Of memory what the service looks at.
impl Answer for Memory {
    fn write(&self) -> String {
        let pressure = self.psi_some_avg10.map_or(u64::MAX, f64::to_bits);
        [
            self.headroom(),
            self.limit(),
            u64::from(self.estimated),
            pressure,
        ]
        .write()
    }

    fn read(words: &str) -> Option<Memory> {
        let [available, total, estimated, pressure] = numbers(words)?;
        Some(Memory {
            estimated: estimated != 0,
            total,
            available,
            psi_some_avg10: (pressure != u64::MAX).then(|| f64::from_bits(pressure)),
            ..Memory::default()
        })
    }
}

impl Answer for FileSystem {
    fn write(&self) -> String {
        [
            self.chunk.unwrap_or(u64::MAX),
            self.clip,
            self.read_ahead,
            u64::from(self.shows_opens),
            u64::from(self.caches),
        ]
        .write()
    }

    fn read(words: &str) -> Option<FileSystem> {
        let [chunk, clip, read_ahead, shows_opens, caches] = numbers(words)?;
        Some(FileSystem {
            chunk: (chunk != u64::MAX).then_some(chunk),
            clip,
            read_ahead,
            shows_opens: shows_opens != 0,
            caches: caches != 0,
        })
    }
}

/// An answer or an error, which is written as a letter and a number.
impl<T: Answer> Answer for Result<T, CacheStatError> {
    fn write(&self) -> String {
        match self {
            Ok(answer) => answer.write(),
            Err(CacheStatError::NotPermitted) => "p".to_owned(),
            Err(CacheStatError::Refused) => "r".to_owned(),
            Err(CacheStatError::Unsupported) => "u".to_owned(),
            Err(CacheStatError::Other(e)) => format!("e{}", e.raw_os_error().unwrap_or(0)),
        }
    }

    fn read(words: &str) -> Option<Self> {
        Some(match words {
            "p" => Err(CacheStatError::NotPermitted),
            "r" => Err(CacheStatError::Refused),
            "u" => Err(CacheStatError::Unsupported),
            words => match words.strip_prefix('e') {
                Some(errno) => Err(CacheStatError::Other(io::Error::from_raw_os_error(
                    errno.parse().ok()?,
                ))),
                None => Ok(T::read(words)?),
            },
        })
    }
}

impl Answer for CacheStat {
    fn write(&self) -> String {
        [
            self.cached,
            self.dirty,
            self.writeback,
            self.evicted,
            self.recently_evicted,
        ]
        .write()
    }

    fn read(words: &str) -> Option<CacheStat> {
        let [cached, dirty, writeback, evicted, recently_evicted] = numbers(words)?;
        Some(CacheStat {
            cached,
            dirty,
            writeback,
            evicted,
            recently_evicted,
        })
    }
}

impl Answer for io::Result<Vec<ByteRange>> {
    fn write(&self) -> String {
        match self {
            Ok(found) => format!("r{}", ranges(found)),
            Err(e) => format!("e{}", e.raw_os_error().unwrap_or(0)),
        }
    }

    fn read(words: &str) -> Option<Self> {
        if let Some(errno) = words.strip_prefix('e') {
            return Some(Err(io::Error::from_raw_os_error(errno.parse().ok()?)));
        }
        let words = words.strip_prefix('r')?;
        if words.is_empty() {
            return Some(Ok(Vec::new()));
        }
        let range = |word: &str| {
            let (start, end) = word.split_once('-')?;
            Some(start.parse().ok()?..end.parse().ok()?)
        };
        words
            .split(',')
            .map(range)
            .collect::<Option<Vec<_>>>()
            .map(Ok)
    }
}

/// Ranges as one word.
pub fn ranges(all: &[ByteRange]) -> String {
    let words: Vec<String> = all
        .iter()
        .map(|r| format!("{}-{}", r.start, r.end))
        .collect();
    words.join(",")
}

/// A name as bytes …
pub fn bytes(name: &Path) -> Vec<u8> {
    name.as_os_str().as_bytes().to_vec()
}

/// … and back.
pub fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}

/// What a job is, as a line.
pub fn job(job: &Job) -> String {
    match job {
        Job::Issue(issuing) => asked(issuing),
        Job::Await(awaited) => {
            let InodeKey { dev, ino } = awaited.handle().file();
            format!("> a {dev} {ino} {}", awaited.last())
        }
    }
}

fn asked(issuing: &Issuing) -> String {
    let requests = issuing.requests();
    let first = requests.first();
    let InodeKey { dev, ino } = first.map_or(InodeKey::default(), |r| r.handle.file());
    let asked: Vec<ByteRange> = requests.iter().map(|r| r.range.clone()).collect();
    format!("> i {dev} {ino} {}", ranges(&asked))
}

/// Requests that were refused, as one word: `-`, or indices, each with a letter.
pub fn failed(all: &[(usize, Failure)]) -> String {
    if all.is_empty() {
        return "-".to_owned();
    }
    let word = |(i, why): &(usize, Failure)| {
        let why = match why {
            Failure::OutOfMemory => 'm',
            Failure::Engine => 'e',
            Failure::NotAllowed => 'n',
            Failure::Refused => 'r',
        };
        format!("{i}{why}")
    };
    all.iter().map(word).collect::<Vec<_>>().join(",")
}

/// The same, read.
pub fn read_failed(word: &str) -> Option<Vec<(usize, Failure)>> {
    if word == "-" {
        return Some(Vec::new());
    }
    let one = |word: &str| {
        let why = match word.chars().next_back()? {
            'm' => Failure::OutOfMemory,
            'e' => Failure::Engine,
            'n' => Failure::NotAllowed,
            'r' => Failure::Refused,
            _ => return None,
        };
        Some((word.get(..word.len() - 1)?.parse().ok()?, why))
    };
    word.split(',').map(one).collect()
}

/// An event of the process with this memory, as a line.
pub fn event(memory: usize, e: &Event) -> String {
    let (kind, fd, generation) = (e.kind as u8, e.fd, e.generation);
    let (extra, offset, len) = (e.extra, e.offset, e.len);
    format!("E {memory} {kind} {fd} {generation} {extra:x} {offset} {len}")
}

/// The same, read from the words behind the memory's.
pub fn read_event(words: &[&str]) -> Option<Event> {
    let [kind, fd, generation, extra, offset, len] = words else {
        return None;
    };
    Some(Event {
        kind: Kind::from_u8(kind.parse().ok()?)?,
        fd: fd.parse().ok()?,
        generation: generation.parse().ok()?,
        extra: u64::from_str_radix(extra, 16).ok()?,
        offset: offset.parse().ok()?,
        len: len.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_word_and_comes_back() {
        for text in [&b""[..], b"%", b"a b\n\x1b[0m=\xff", "größe/x.y".as_bytes()] {
            let word = escaped(text);
            assert!(
                !word.contains([' ', '\n', '=']) && !word.is_empty(),
                "{word}"
            );
            assert_eq!(unescaped(&word).as_deref(), Some(text));
        }
        assert_eq!(unescaped("%4"), None);
    }

    #[test]
    fn answers_come_back() {
        let stat = CacheStat {
            cached: 7,
            evicted: 3,
            ..CacheStat::default()
        };
        let written = Ok::<_, CacheStatError>(stat).write();
        assert_eq!(
            Result::<CacheStat, CacheStatError>::read(&written)
                .unwrap()
                .unwrap(),
            stat
        );
        let refused = Err::<u64, _>(CacheStatError::Other(io::Error::from_raw_os_error(9)));
        let back = Result::<u64, CacheStatError>::read(&refused.write());
        assert!(matches!(back, Some(Err(CacheStatError::Other(e))) if e.raw_os_error() == Some(9)));
        let touched: io::Result<Vec<ByteRange>> = Ok(vec![0..4096, 8192..9000]);
        let back = io::Result::<Vec<ByteRange>>::read(&touched.write());
        assert_eq!(back.unwrap().unwrap(), [0..4096, 8192..9000]);
        assert_eq!(Option::<u64>::read("-"), Some(None));
        assert_eq!(Option::<[u64; 2]>::read("3 4"), Some(Some([3, 4])));
        let all = vec![(0, Failure::Refused), (12, Failure::OutOfMemory)];
        assert_eq!(read_failed(&failed(&all)), Some(all));
    }
}
