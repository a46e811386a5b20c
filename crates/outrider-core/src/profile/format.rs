//! How a profile lies in its file: docs/profiles.md has the layout.
//!
//! Numbers are varints, lists of alike numbers lie together, and names share their beginnings with the one before, so that deflate finds little left to repeat. A
//! file is taken within bounds on its length, on what it unpacks to, and on how much it lists; a checksum tells what a crash has cut off.

use std::collections::HashSet;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use miniz_oxide::deflate::compress_to_vec_zlib;
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use outrider_sys::units::PageRange;

use super::model::{Entry, History, Need, PATH, Profile, Span};

/// What a file begins with; the last byte is the version.
pub const MAGIC: &[u8; 8] = b"ORPROF\0\x01";
/// Bytes of a file at most …
pub const LONGEST: u64 = 16 << 20;
/// … and of what it unpacks to.
const UNPACKED: usize = 64 << 20;
/// Entries and spans at most.
const ENTRIES: usize = 1 << 19;
const SPANS: usize = 1 << 21;
/// Bytes of all paths together, written out: names share their beginnings with the one before, so that a short file could list long ones. Half of what it may
/// unpack to.
const PATHS: usize = UNPACKED / 2;
/// Arguments of a command that are kept, and bytes of each.
const ARGUMENTS: usize = 64;
const ARGUMENT: usize = 4095;
/// zlib's level: higher ones save 2 % and take four times as long. A run waits for it, so long bodies are packed more quickly.
const LEVEL: u8 = 6;
const QUICK: u8 = 2;
/// Bytes of a long body: 10 ms.
const LONG: usize = 256 << 10;
/// Pages of a file at most: 2^63 bytes.
const PAGES: u64 = 1 << 51;

/// Bits of the header's flags.
const SEEKS: u64 = 1;
const RELATIVE: u64 = 2;
const USED: u64 = 4;

/// Why a file is no profile.
#[derive(Debug, PartialEq, Eq)]
pub enum Bad {
    /// It is something else.
    Magic,
    /// It is of a later version.
    Version(u8),
    /// It is damaged, or was made to do harm.
    Damaged(&'static str),
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bad::Magic => write!(
                f,
                "not a profile; accepted is what outrider run --remember or outrider profile export --portable has written"
            ),
            Bad::Version(v) => write!(
                f,
                "a profile of version {v}; accepted is version {}, which this command writes",
                MAGIC[7]
            ),
            Bad::Damaged(what) => write!(
                f,
                "a damaged profile: {what}; the next run with --remember makes a new one"
            ),
        }
    }
}

#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn number(&mut self, mut n: u64) {
        while n >= 0x80 {
            self.0.push(n as u8 | 0x80);
            n >>= 7;
        }
        self.0.push(n as u8);
    }

    fn signed(&mut self, n: i64) {
        self.number((n << 1 ^ n >> 63) as u64);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }
}

/// A profile's file.
pub fn encode(profile: &Profile) -> Vec<u8> {
    let mut out = Out::default();
    let flag = |is, bit| if is { bit } else { 0 };
    out.number(
        flag(profile.seeks, SEEKS)
            | flag(profile.relative, RELATIVE)
            | flag(profile.used.is_some(), USED),
    );
    out.number(profile.created);
    out.number(profile.updated);
    out.number(profile.runs.into());
    out.number(profile.bad.into());
    out.number(profile.used.unwrap_or(0).into());
    let directory = profile.directory.as_os_str().as_bytes();
    out.bytes(&directory[..directory.len().min(PATH)]);
    let command = &profile.command[..profile.command.len().min(ARGUMENTS)];
    out.number(command.len() as u64);
    for argument in command {
        out.bytes(&argument[..argument.len().min(ARGUMENT)]);
    }
    let entries = &profile.entries[..fitting(&profile.entries)];
    out.number(entries.len() as u64);
    let mut last: &[u8] = b"";
    for entry in entries {
        let path = entry.path.as_os_str().as_bytes();
        let same = path.iter().zip(last).take_while(|(a, b)| a == b).count();
        out.number(same as u64);
        out.bytes(&path[same..]);
        last = path;
    }
    let each = |out: &mut Out, put: &dyn Fn(&mut Out, &Entry)| {
        for entry in entries {
            put(out, entry);
        }
    };
    each(&mut out, &|out, e| {
        let need = Need::ALL.iter().position(|n| *n == e.need);
        out.0.push(need.unwrap_or(0) as u8);
    });
    each(&mut out, &|out, e| out.0.push(e.seen.bits));
    each(&mut out, &|out, e| out.0.push(e.seen.runs));
    each(&mut out, &|out, e| out.number(e.size));
    let (mut modified, mut inode, mut at) = (0i64, 0u64, 0u64);
    for e in entries {
        out.signed(e.modified.wrapping_sub(modified));
        modified = e.modified;
    }
    for e in entries {
        out.signed(e.inode.wrapping_sub(inode) as i64);
        inode = e.inode;
    }
    for e in entries {
        out.signed(e.at_us.wrapping_sub(at) as i64);
        at = e.at_us;
    }
    each(&mut out, &|out, e| out.number(e.spans.len() as u64));
    for e in entries {
        let mut at = 0;
        for span in &e.spans {
            out.number(span.pages.start.saturating_sub(at));
            out.number(span.pages.len());
            at = span.pages.end;
        }
    }
    each(&mut out, &|out, e| {
        e.spans.iter().for_each(|s| out.0.push(s.seen.bits));
    });
    each(&mut out, &|out, e| {
        e.spans.iter().for_each(|s| out.0.push(s.seen.runs));
    });
    let mut file = MAGIC.to_vec();
    let level = if out.0.len() < LONG { LEVEL } else { QUICK };
    file.extend(compress_to_vec_zlib(&out.0, level));
    file
}

/// How many entries a file has room for, the first ones.
fn fitting(entries: &[Entry]) -> usize {
    let (mut paths, mut spans) = (0, 0);
    let fits = |e: &&Entry| {
        paths += e.path.as_os_str().len();
        spans += e.spans.len();
        paths <= PATHS && spans <= SPANS
    };
    entries.iter().take(ENTRIES).take_while(fits).count()
}

struct In<'a>(&'a [u8]);

const SHORT: Bad = Bad::Damaged("it ends too soon");

impl<'a> In<'a> {
    fn byte(&mut self) -> Result<u8, Bad> {
        let (first, rest) = self.0.split_first().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, Bad> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            n |= part << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(Bad::Damaged("a number has too many digits"))
    }

    fn signed(&mut self) -> Result<i64, Bad> {
        let n = self.number()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], Bad> {
        let len = self.number()?;
        if len > most as u64 {
            return Err(Bad::Damaged("a name is too long"));
        }
        let (bytes, rest) = self.0.split_at_checked(len as usize).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// How many of something follow, of which each takes a byte at least.
    fn count(&mut self, most: usize) -> Result<usize, Bad> {
        let n = self.number()?;
        match n <= most as u64 && n <= self.0.len() as u64 {
            true => Ok(n as usize),
            false => Err(Bad::Damaged("it lists more than it has room for")),
        }
    }

    fn history(&mut self, bits: u8) -> Result<History, Bad> {
        let runs = self.byte()?;
        match runs <= 8 {
            true => Ok(History { bits, runs }),
            false => Err(Bad::Damaged("a history is too long")),
        }
    }
}

/// What a file has, which may be anything.
pub fn decode(file: &[u8]) -> Result<Profile, Bad> {
    if file.is_empty() {
        // What a full disk or a crash leaves.
        return Err(Bad::Damaged("it is empty"));
    }
    let (magic, packed) = file.split_at_checked(MAGIC.len()).ok_or(Bad::Magic)?;
    if magic[..7] != MAGIC[..7] {
        return Err(Bad::Magic);
    }
    if magic[7] != MAGIC[7] {
        return Err(Bad::Version(magic[7]));
    }
    if file.len() as u64 > LONGEST {
        return Err(Bad::Damaged("it is longer than 16 MiB"));
    }
    let unpacked = decompress_to_vec_zlib_with_limit(packed, UNPACKED)
        .map_err(|_| Bad::Damaged("its checksum is wrong, or it unpacks to more than 64 MiB"))?;
    let mut of = In(&unpacked);
    let mut profile = head(&mut of)?;
    let mut entries = names(&mut of, profile.relative)?;
    facts(&mut of, &mut entries)?;
    spans(&mut of, &mut entries)?;
    if !of.0.is_empty() {
        return Err(Bad::Damaged("something follows its end"));
    }
    profile.entries = entries;
    Ok(profile)
}

/// All but the entries.
fn head(of: &mut In<'_>) -> Result<Profile, Bad> {
    let flags = of.number()?;
    let mut profile = Profile {
        seeks: flags & SEEKS != 0,
        relative: flags & RELATIVE != 0,
        created: of.number()?,
        updated: of.number()?,
        runs: of.number()?.min(u32::MAX.into()) as u32,
        bad: of.number()?.min(u8::MAX.into()) as u8,
        ..Profile::default()
    };
    let used = of.number()?.min(1000) as u16;
    profile.used = (flags & USED != 0).then_some(used);
    profile.directory = path(of.bytes(PATH)?.to_vec());
    for _ in 0..of.count(ARGUMENTS)? {
        profile.command.push(of.bytes(ARGUMENT)?.to_vec());
    }
    Ok(profile)
}

/// Entries, of which nothing is known but their names and what was needed of them.
fn names(of: &mut In<'_>, relative: bool) -> Result<Vec<Entry>, Bad> {
    let count = of.count(ENTRIES)?;
    let mut entries: Vec<Entry> = Vec::with_capacity(count);
    let (mut last, mut paths): (Vec<u8>, usize) = (Vec::new(), 0);
    for _ in 0..count {
        let same = of.number()?;
        if same > last.len() as u64 {
            return Err(Bad::Damaged(
                "a name begins with more than the one before has",
            ));
        }
        last.truncate(same as usize);
        last.extend(of.bytes(PATH)?);
        paths += last.len();
        if paths > PATHS {
            return Err(Bad::Damaged("its names are longer than 32 MiB together"));
        }
        entries.push(Entry {
            path: checked(&last, relative)?,
            need: Need::File,
            size: 0,
            modified: 0,
            inode: 0,
            at_us: 0,
            seen: History::default(),
            spans: Vec::new(),
        });
    }
    for e in &mut entries {
        let need = Need::ALL.get(usize::from(of.byte()?));
        e.need = *need.ok_or(Bad::Damaged("an entry is of no kind"))?;
    }
    let mut all = HashSet::with_capacity(count);
    if !(entries.iter()).all(|e| all.insert((e.path.as_os_str(), e.need))) {
        return Err(Bad::Damaged("it lists something twice"));
    }
    Ok(entries)
}

/// What is known of each entry, its pages left aside.
fn facts(of: &mut In<'_>, entries: &mut [Entry]) -> Result<(), Bad> {
    for e in &mut *entries {
        e.seen.bits = of.byte()?;
    }
    for e in &mut *entries {
        e.seen = of.history(e.seen.bits)?;
    }
    for e in &mut *entries {
        e.size = of.number()?;
    }
    let (mut modified, mut inode, mut at) = (0i64, 0u64, 0u64);
    for e in &mut *entries {
        modified = modified.wrapping_add(of.signed()?);
        e.modified = modified;
    }
    for e in &mut *entries {
        inode = inode.wrapping_add(of.signed()? as u64);
        e.inode = inode;
    }
    for e in entries {
        at = at.wrapping_add(of.signed()? as u64);
        e.at_us = at;
    }
    Ok(())
}

/// The pages that were needed of each entry.
fn spans(of: &mut In<'_>, entries: &mut [Entry]) -> Result<(), Bad> {
    let (mut counts, mut all) = (Vec::with_capacity(entries.len()), 0);
    for _ in 0..entries.len() {
        let spans = of.count(SPANS)?;
        all += spans;
        counts.push(spans);
    }
    if all > SPANS || all > of.0.len() {
        return Err(Bad::Damaged("it lists more than it has room for"));
    }
    for (e, spans) in entries.iter_mut().zip(counts) {
        let mut at = 0u64;
        e.spans.reserve_exact(spans);
        for _ in 0..spans {
            let start = at.saturating_add(of.number()?);
            at = start.saturating_add(of.number()?);
            if start >= at || at > PAGES {
                return Err(Bad::Damaged("pages are none, or beyond any file"));
            }
            e.spans.push(Span {
                pages: PageRange::new(start, at),
                seen: History::default(),
            });
        }
    }
    for s in entries.iter_mut().flat_map(|e| &mut e.spans) {
        s.seen.bits = of.byte()?;
    }
    for s in entries.iter_mut().flat_map(|e| &mut e.spans) {
        s.seen = of.history(s.seen.bits)?;
    }
    Ok(())
}

fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// A path that leads down only.
fn checked(bytes: &[u8], relative: bool) -> Result<PathBuf, Bad> {
    let path = path(bytes.to_vec());
    let plain = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::RootDir);
    let sound = bytes.len() <= PATH
        && !bytes.is_empty()
        && !bytes.contains(&0)
        && Path::new(&path).is_absolute() != relative
        && path.components().all(plain);
    match sound {
        true => Ok(path),
        false if relative => Err(Bad::Damaged("a path is not below its root")),
        false => Err(Bad::Damaged("a path is not absolute")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn history() -> impl Strategy<Value = History> {
        (any::<u8>(), 0u8..=8).prop_map(|(bits, runs)| History { bits, runs })
    }

    fn entry(relative: bool) -> impl Strategy<Value = Entry> {
        let path = prop::collection::vec("[a-c\u{e9} ]{1,4}", 1..4);
        let spans = prop::collection::vec((0u64..99, 1u64..99, history()), 0..5);
        let numbers = (any::<u64>(), any::<i64>(), any::<u64>(), any::<u64>());
        (path, 0usize..3, numbers, history(), spans).prop_map(
            move |(path, need, n, seen, spans)| {
                let mut at = 0;
                let spans = spans.into_iter().map(|(gap, len, seen)| {
                    let start = at + gap;
                    at = start + len;
                    Span {
                        pages: PageRange::new(start, at),
                        seen,
                    }
                });
                let root = if relative { "" } else { "/" };
                Entry {
                    path: (root.to_owned() + &path.join("/")).into(),
                    need: Need::ALL[need],
                    size: n.0,
                    modified: n.1,
                    inode: n.2,
                    at_us: n.3,
                    seen,
                    spans: spans.collect(),
                }
            },
        )
    }

    fn profile() -> impl Strategy<Value = Profile> {
        any::<bool>().prop_flat_map(|relative| {
            let entries = prop::collection::vec(entry(relative), 0..20).prop_map(|mut all| {
                let mut known = HashSet::new();
                all.retain(|e| known.insert((e.path.clone(), e.need)));
                all
            });
            let command = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..5);
            let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u8>());
            let used = prop::option::of(0u16..=1000);
            (entries, command, numbers, used, any::<bool>()).prop_map(
                move |(entries, command, n, used, seeks)| Profile {
                    command,
                    directory: "/somewhere".into(),
                    created: n.0,
                    updated: n.1,
                    runs: n.2,
                    bad: n.3,
                    used,
                    seeks,
                    relative,
                    entries,
                },
            )
        })
    }

    proptest! {
        /// B15: what is written is read back.
        #[test]
        fn a_profile_survives_its_file(profile in profile()) {
            prop_assert_eq!(decode(&encode(&profile)), Ok(profile));
        }

        /// B15, B16: whatever a file has, it is taken or refused, and what is taken names nothing above its root.
        #[test]
        fn nothing_in_a_file_is_believed(
            profile in profile(), changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6),
            cut in any::<usize>(), repack in any::<bool>()
        ) {
            let mut file = encode(&profile);
            if repack {
                // Behind a sound checksum.
                let mut body = decompress_to_vec_zlib_with_limit(&file[8..], UNPACKED).unwrap();
                for (at, byte) in changes {
                    let len = body.len();
                    body[at % len] = byte;
                }
                body.truncate(1 + cut % (2 * body.len()));
                file.truncate(8);
                file.extend(compress_to_vec_zlib(&body, 1));
            } else {
                for (at, byte) in changes {
                    let len = file.len();
                    file[at % len] ^= byte;
                }
                file.truncate(cut % (2 * file.len()));
            }
            if let Ok(profile) = decode(&file) {
                for entry in profile.entries {
                    prop_assert!(entry.path.is_absolute() != profile.relative);
                    prop_assert!(!entry.path.components().any(|c| c == Component::ParentDir));
                    prop_assert!(entry.spans.iter().all(|s| s.pages.start < s.pages.end));
                }
            }
        }
    }

    /// B15, B16: a file that claims much, or unpacks to much, is refused at once.
    #[test]
    fn a_bomb_is_refused() {
        let mut bomb = MAGIC.to_vec();
        bomb.extend(compress_to_vec_zlib(&vec![0; UNPACKED + 1], 9));
        assert!(matches!(decode(&bomb), Err(Bad::Damaged(_))));
        let mut out = Out::default();
        (0..7).for_each(|_| out.number(0));
        out.number(0);
        out.number(u64::MAX);
        let mut claim = MAGIC.to_vec();
        claim.extend(compress_to_vec_zlib(&out.0, 1));
        assert!(matches!(decode(&claim), Err(Bad::Damaged(_))));
        assert_eq!(decode(b"#!/bin/sh"), Err(Bad::Magic));
        assert!(matches!(decode(b""), Err(Bad::Damaged(_))));
        assert_eq!(decode(b"ORPROF\0\x09"), Err(Bad::Version(9)));
    }

    /// B15, B16: names that share their beginnings take little room in a file and much in memory: they have a bound together, which no file that is written exceeds.
    /// Nothing is listed twice.
    #[test]
    fn many_long_names_are_refused() {
        let long = format!("/{}", "a".repeat(PATH - 9));
        let named = |i: usize| Entry {
            path: format!("{long}{i:06}").into(),
            need: Need::Listing,
            size: 0,
            modified: 0,
            inode: 0,
            at_us: 0,
            seen: History::NEW,
            spans: Vec::new(),
        };
        let of = |entries: Vec<Entry>| Profile {
            entries,
            ..Profile::default()
        };
        let many = PATHS / long.len() + 100;
        let written = decode(&encode(&of((0..many).map(named).collect()))).unwrap();
        assert!((many - 200..many).contains(&written.entries.len()));
        let twice = encode(&of(vec![named(1), named(1)]));
        assert!(matches!(decode(&twice), Err(Bad::Damaged(_))));
        // As somebody else would write it.
        let mut out = Out::default();
        (0..6).for_each(|_| out.number(0));
        out.bytes(b"/");
        out.number(0);
        out.number(many as u64);
        out.number(0);
        out.bytes(long.as_bytes());
        for _ in 1..many {
            out.number(long.len() as u64);
            out.bytes(b"");
        }
        (0..9 * many).for_each(|_| out.0.push(0));
        let mut file = MAGIC.to_vec();
        file.extend(compress_to_vec_zlib(&out.0, 1));
        assert!(file.len() < 1 << 20);
        let refused = decode(&file);
        assert!(matches!(refused, Err(Bad::Damaged(what)) if what.contains("names")));
    }

    /// B15: a page range takes two bytes at most on average, and a job of 1 GB less than 100 KB.
    #[test]
    fn a_profile_is_small() {
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut entries = Vec::new();
        let mut at = 0;
        for file in 0..1500u64 {
            let mut spans = Vec::new();
            let mut page = 0;
            for _ in 0..1 + next(25) {
                let start = page + next(40) + 5;
                page = start + 1 + next(20);
                spans.push(Span {
                    pages: PageRange::new(start, page),
                    seen: History::NEW,
                });
            }
            at += next(2000);
            entries.push(Entry {
                path: format!(
                    "/usr/lib/python3.11/site-packages/package{}/module_{}.pyc",
                    file / 40,
                    next(999)
                )
                .into(),
                need: Need::File,
                size: page * 4096 + next(4096),
                modified: 1_700_000_000 + next(100) as i64,
                inode: 130_000 + file * 3 + next(3),
                at_us: at,
                seen: History::NEW,
                spans,
            });
        }
        let spans: usize = entries.iter().map(|e| e.spans.len()).sum();
        let profile = Profile {
            entries,
            ..Profile::default()
        };
        let all = encode(&profile).len();
        let mut without = profile.clone();
        without.entries.iter_mut().for_each(|e| e.spans.clear());
        let of_spans = all - encode(&without).len();
        assert!(of_spans <= 2 * spans, "{of_spans} bytes for {spans} ranges");
        assert!(profile.bytes() > 800 << 20 && all < 100_000, "{all} bytes");
    }
}
