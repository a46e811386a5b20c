//! What has become of what was fetched.
//!
//! An engine asks the kernel, which tells nobody why something did not come. So what is not there in the end is read: from what failed that gets the error,
//! and from what the kernel would not read ahead the data. What had come and is gone again is not read a second time: that would push out the rest.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use outrider_core::plan::sweep::Item;
use outrider_core::residency;
use outrider_sys::cache;
use outrider_sys::units::{ByteRange, PAGE, PageRange};

use super::Chosen;
use super::fetch::Fetched;
use crate::tree;

/// Bytes of one read.
const READ: u64 = 128 << 10;

/// What became of a file. Sizes are bytes.
#[derive(Debug, Default)]
pub struct Checked {
    /// They came, and were pushed out again, where the kernel tells.
    pub lost: u64,
    /// They did not come.
    pub unread: u64,
    /// It ends sooner than it did.
    pub changed: bool,
    /// Why they did not.
    pub problem: Option<io::Error>,
}

/// Looks at all files of which `items` were asked for.
pub fn all(
    files: &BTreeMap<u16, Chosen<'_>>,
    mut items: Vec<Item>,
    fetched: &Fetched,
) -> Vec<(u16, Checked)> {
    items.sort_unstable_by_key(|i| (i.file(), i.page()));
    let each: Vec<&[Item]> = items.chunk_by(|a, b| a.file() == b.file()).collect();
    let one = |items: &&[Item]| {
        let index = items.first()?.file();
        // Nothing of these was asked for.
        if fetched.changed.contains(&index) || fetched.problems.contains_key(&index) {
            return None;
        }
        Some((index, file(files.get(&index)?, items, fetched)))
    };
    let checked = tree::parallel(&each, tree::METADATA_THREADS, one);
    checked.into_iter().flatten().collect()
}

fn file(chosen: &Chosen<'_>, items: &[Item], fetched: &Fetched) -> Checked {
    let mut checked = Checked::default();
    let open = match tree::open(chosen.found) {
        Ok(Some(open)) if open.key == chosen.key => open,
        // It has vanished since.
        _ => return checked,
    };
    checked.changed = open.size < chosen.size;
    let asked = items.chunk_by(|a, b| a.end() == b.page());
    let asked = asked.filter_map(|run| Some(run.first()?.page()..run.last()?.end()));
    for run in asked {
        let bytes = run.start * PAGE..(run.end * PAGE).min(chosen.size);
        let there = bytes.start..bytes.end.min(open.size);
        checked.unread += (bytes.end - bytes.start) - there.end.saturating_sub(there.start);
        // What lies in one piece fails as one. One call less than looking at each page, which takes a mapping.
        let came = fetched.seen && items.len() == 1;
        if there.start < there.end && !(came && is_cached(&open.file, &there)) {
            checked.look(&open.file, there, chosen.hidden, fetched.refused);
        }
    }
    checked
}

/// Whether all of a range lies in the cache, up to date or not.
fn is_cached(file: &File, range: &ByteRange) -> bool {
    let pages = PageRange::from_bytes(range.start, range.end - range.start);
    cache::counted(file.as_fd(), range.clone()).is_ok_and(|stat| stat.cached >= pages.len())
}

impl Checked {
    /// Looks what of a range is there.
    fn look(&mut self, file: &File, range: ByteRange, hidden: bool, refused: bool) {
        let missing = |range: &ByteRange| {
            let pages = PageRange::from_bytes(range.start, range.end - range.start);
            let missing = match hidden {
                true => None,
                false => residency::missing(file.as_fd(), pages),
            };
            let runs = missing.map(|runs| runs.into_iter().map(|r| r.start * PAGE..r.end * PAGE));
            runs.map(|runs| {
                runs.map(|r| r.start..r.end.min(range.end))
                    .collect::<Vec<_>>()
            })
        };
        let told = missing(&range);
        let is_told = told.is_some();
        for run in told.unwrap_or_else(|| vec![range]) {
            let len = run.end - run.start;
            // What has failed lies in the cache all the same, and so does what is still on its way.
            let counted = cache::counted(file.as_fd(), run.clone());
            let came = is_told && !refused && counted.is_ok_and(|stat| stat.cached == 0);
            if came && self.lost > 0 {
                self.lost += len;
                continue;
            }
            // One read tells whether the device fails there now.
            let end = match came {
                true => run.end.min(run.start + PAGE),
                false => run.end,
            };
            match self.read(file, run.start..end) {
                Ok(()) if is_told => {
                    let gone = missing(&run).unwrap_or_default();
                    self.lost += gone.iter().map(|r| r.end - r.start).sum::<u64>();
                }
                Ok(()) => {}
                Err(e) => {
                    self.unread += len;
                    self.problem.get_or_insert(e);
                }
            }
        }
    }

    /// Reads a range, unless something of the file could not be read before.
    fn read(&mut self, file: &File, range: ByteRange) -> io::Result<()> {
        if self.problem.is_some() {
            return Err(io::ErrorKind::Other.into());
        }
        // What is read is what is missing: no readahead of the kernel's on top.
        let _ = cache::advise_random(file.as_fd());
        let mut buffer = vec![0; READ.min(range.end - range.start) as usize];
        let mut at = range.start;
        while at < range.end {
            let most = (range.end - at).min(buffer.len() as u64) as usize;
            match file.read_at(&mut buffer[..most], at) {
                Ok(0) => {
                    self.changed = true;
                    self.unread += range.end - at;
                    break;
                }
                Ok(n) => at += n as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
