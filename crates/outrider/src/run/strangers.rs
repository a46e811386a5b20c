//! Programs below the one that was started which no hook reaches: looked for while they run, at most once a second, where there is to be a report.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outrider_core::fetch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::elf;

/// From one look to the next, at first and at most.
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);
/// Processes that are looked at, and programs that are named.
const PROCESSES: usize = 256;
const NAMES: usize = 8;

/// What was found.
pub struct Strangers {
    program: u32,
    /// Readable when the program is over.
    life: OwnedFd,
    pause: Duration,
    known: HashSet<(u32, PathBuf)>,
    /// Why they can't be hooked, by file.
    found: BTreeMap<PathBuf, String>,
}

impl Strangers {
    /// `None` where the end of `program` could not be told from the outside.
    pub fn below(program: i32) -> Option<Strangers> {
        let program = program as u32;
        Some(Strangers {
            program,
            life: fetch::life(program)?,
            pause: FIRST,
            known: HashSet::new(),
            found: BTreeMap::new(),
        })
    }

    /// How long to wait until the next look.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    /// Waits until it is time for a look, a signal comes, or the program is over.
    pub fn wait(&self) {
        let mut life = [PollFd::new(&self.life, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: self.pause.as_secs() as i64,
            tv_nsec: self.pause.subsec_nanos().into(),
        };
        let _ = poll(&mut life, Some(&timeout));
    }

    /// Looks who is there.
    pub fn look(&mut self) {
        self.pause = (2 * self.pause).min(LONGEST);
        let mut below = children(self.program);
        let mut at = 0;
        while at < below.len().min(PROCESSES) {
            let pid = below[at];
            at += 1;
            below.extend(children(pid));
            let link = PathBuf::from(format!("/proc/{pid}/exe"));
            let Ok(name) = std::fs::read_link(&link) else {
                continue;
            };
            if self.found.len() < NAMES
                && self.known.insert((pid, name.clone()))
                && !self.found.contains_key(&name)
                && let Some(reason) = obstacle(&link, &name)
            {
                self.found.insert(name, reason);
            }
        }
    }

    /// A line for each program.
    pub fn notes(self) -> impl Iterator<Item = String> {
        let found = self.found.into_iter();
        found.map(|(name, why)| format!("{}: {why}; it ran without Outrider", name.display()))
    }
}

/// Why a program can't be hooked. By its link it is found also where it has been removed meanwhile.
fn obstacle(link: &Path, name: &Path) -> Option<String> {
    let found = elf::obstacle(name).or_else(|_| elf::obstacle(link));
    found.ok().flatten()
}

fn children(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
    {
        let Ok(thread) = thread else { continue };
        let text = std::fs::read_to_string(thread.path().join("children"));
        let text = text.unwrap_or_default();
        all.extend(
            text.split_ascii_whitespace()
                .filter_map(|p| p.parse::<u32>().ok()),
        );
    }
    all
}
