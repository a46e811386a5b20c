//! Other runs of the same user on this machine: each shows who reads for it, so that none takes another for a stranger.
//!
//! A run has a file of its own, named by the number of its service's process, in a directory in memory to which only its user can write. What stands in
//! it is a claim of that user's: numbers within bounds, of processes whose counts the kernel shows to him alone. The file of a run that has
//! ended without removing it is known by the time at which its process began, and is removed.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::AsRawFd;

use outrider_sys::counters::began;
use outrider_sys::raw::Fd;
use outrider_sys::units::DeviceId;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::tree::listing::Listing;

/// What a run shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The devices that it reads from, as in `st_dev`.
    pub devices: Vec<DeviceId>,
    /// Bytes that it has on their way there, at most.
    pub in_flight: u64,
    /// Requests that its service has made so far, and the bytes that these have had fetched.
    pub made: (u64, u64),
    /// Whether it sees somebody there who is none of these runs.
    pub sees_somebody: bool,
    /// Its processes, the service's first, and the bytes of one of their requests.
    pub members: Vec<(u32, u64)>,
}

/// Devices and processes that a run can show. Of more it shows nothing: it will be counted as somebody else, as it was before it showed anything.
const DEVICES: usize = 8;
const MEMBERS: usize = 33;
/// Other runs that are looked at.
const RUNS: usize = 16;
/// Begins each file: a format that others understand.
const FORMAT: u64 = u64::from_le_bytes(*b"outrun\0\x01");

impl Run {
    /// The process that has the engine.
    pub fn leader(&self) -> Option<u32> {
        self.members.first().map(|m| m.0)
    }

    /// As a list of numbers.
    pub fn numbers(&self) -> Vec<u64> {
        let counts = [
            self.in_flight,
            self.made.0,
            self.made.1,
            u64::from(self.sees_somebody),
            self.devices.len() as u64,
            self.members.len() as u64,
        ];
        let members = self.members.iter();
        let members = members.flat_map(|(pid, bytes)| [u64::from(*pid), *bytes]);
        let devices = self.devices.iter().map(|d| d.0);
        counts.into_iter().chain(devices).chain(members).collect()
    }

    /// From such a list, if it is one.
    pub fn of(numbers: &[u64]) -> Option<Run> {
        let [
            in_flight,
            requests,
            bytes,
            sees,
            devices,
            members,
            rest @ ..,
        ] = numbers
        else {
            return None;
        };
        let (devices, members) = (*devices as usize, *members as usize);
        if devices > DEVICES || members > MEMBERS || rest.len() < devices + 2 * members {
            return None;
        }
        let (of_devices, rest) = rest.split_at(devices);
        let (of_members, _) = rest.split_at(2 * members);
        let member = |m: &[u64]| Some((u32::try_from(m[0]).ok()?, m[1].max(1)));
        Some(Run {
            devices: of_devices.iter().copied().map(DeviceId).collect(),
            in_flight: *in_flight,
            made: (*requests, *bytes),
            sees_somebody: *sees != 0,
            members: of_members
                .chunks_exact(2)
                .map(member)
                .collect::<Option<_>>()?,
        })
    }
}

/// Where runs show themselves.
pub struct Runs {
    directory: Fd,
    own: Fd,
    pid: u32,
    user: u32,
    /// Clock ticks at which the service's process began.
    begun: u64,
    shown: Option<Run>,
}

impl Runs {
    /// `None` where there is no such directory and none can be made, or where others could write to it.
    pub fn open() -> Option<Runs> {
        let user = rustix::process::geteuid().as_raw();
        let path = format!("{DIRECTORY}{user}");
        let pid = std::process::id();
        let begun = began(pid)?;
        // The last of other runs may just be removing it.
        (0..3).find_map(|_| {
            let _ = rustix::fs::mkdir(&path, Mode::RWXU);
            let directory = own_directory(&path, user)?;
            let name = pid.to_string();
            let _ = rustix::fs::unlinkat(&directory, &name, AtFlags::empty());
            let flags =
                OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let own = rustix::fs::openat(&directory, &name, flags, mode).ok()?;
            Some(Runs {
                directory,
                own: own.into(),
                pid,
                user,
                begun,
                shown: None,
            })
        })
    }

    /// The user and the process by which others find what is shown.
    pub fn name(&self) -> (u32, u32) {
        (self.user, self.pid)
    }

    /// Shows this run to others.
    pub fn show(&mut self, run: &Run) {
        if self.shown.as_ref() == Some(run)
            || run.devices.len() > DEVICES
            || run.members.len() > MEMBERS
        {
            return;
        }
        let mut text = Vec::new();
        for number in [FORMAT, self.begun].into_iter().chain(run.numbers()) {
            let _ = text.write_all(&number.to_le_bytes());
        }
        if rustix::io::pwrite(&self.own, &text, 0) == Ok(text.len()) {
            self.shown = Some(run.clone());
        }
    }

    /// What other runs show.
    pub fn others(&self) -> Vec<Run> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(directory) = rustix::fs::openat(&self.directory, ".", flags, Mode::empty()) else {
            return Vec::new();
        };
        let directory = Fd::from(directory);
        let mut room = [0; 1024];
        let mut listing = Listing::new(directory.as_raw_fd(), &mut room);
        let mut runs = Vec::new();
        while runs.len() < RUNS
            && let Ok(Some(record)) = listing.next_record()
        {
            let name = record.name.to_str().ok();
            let pid = name.and_then(|name| name.parse().ok());
            let other = pid.filter(|pid| *pid != self.pid);
            runs.extend(other.and_then(|pid| self.other(pid)));
        }
        runs
    }

    fn other(&self, pid: u32) -> Option<Run> {
        const MOST: usize = 8 * (8 + DEVICES + 2 * MEMBERS);
        let name = pid.to_string();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, &name, flags, Mode::empty()).ok()?;
        let file = Fd::from(file);
        let st = rustix::fs::fstat(&file).ok()?;
        if FileType::from_raw_mode(st.st_mode) != FileType::RegularFile {
            return None;
        }
        let mut bytes = [0; MOST];
        let read = rustix::io::pread(&file, &mut bytes, 0).ok()?;
        let numbers: Vec<u64> = bytes[..read]
            .chunks_exact(8)
            .filter_map(|n| Some(u64::from_le_bytes(n.try_into().ok()?)))
            .collect();
        // One that has just begun has shown nothing yet.
        let [FORMAT, when, rest @ ..] = numbers.as_slice() else {
            return None;
        };
        if began(pid) != Some(*when) {
            let _ = rustix::fs::unlinkat(&self.directory, &name, AtFlags::empty());
            return None;
        }
        Run::of(rest)
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        remove(self.name());
    }
}

/// Removes what a process shows of this name. It may be about to end in a signal handler: nothing is allocated.
pub fn remove((user, pid): (u32, u32)) {
    let (mut file, mut directory) = ([0; PATH], [0; PATH]);
    let file = path(&mut file, format_args!("{pid}"));
    let directory = path(&mut directory, format_args!("{DIRECTORY}{user}"));
    let Some(open) = own_directory(directory, user) else {
        return;
    };
    if rustix::fs::unlinkat(&open, file, AtFlags::empty()) != Err(Errno::NOENT) {
        // The last one takes the directory along.
        let _ = rustix::fs::rmdir(directory);
    }
}

/// A directory that only this user can write to: anybody may have made one of this name, or a link.
fn own_directory(path: impl Arg, user: u32) -> Option<Fd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = Fd::from(rustix::fs::openat(CWD, path, flags, Mode::empty()).ok()?);
    let st = rustix::fs::fstat(&directory).ok()?;
    (st.st_uid == user && st.st_mode & 0o077 == 0).then_some(directory)
}

/// What stands before the number of a user in the name of the directory of his runs.
const DIRECTORY: &str = "/dev/shm/outrider-";
/// Bytes of the longest name of a run's file: two numbers of ten digits.
const PATH: usize = DIRECTORY.len() + 10 + 1 + 10 + 1;

/// A path in a buffer of zeroes that holds it.
fn path<'a>(buffer: &'a mut [u8; PATH], text: std::fmt::Arguments<'_>) -> &'a CStr {
    let _ = buffer.as_mut_slice().write_fmt(text);
    CStr::from_bytes_until_nul(buffer).unwrap_or(c"")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown is read again; numbers that promise more than there is are none.
    #[test]
    fn runs_are_lists_of_numbers() {
        let run = Run {
            devices: vec![DeviceId(7), DeviceId(8)],
            in_flight: 1 << 20,
            made: (3, 5000),
            sees_somebody: true,
            members: vec![(10, 4096), (11, 131_072)],
        };
        let numbers = run.numbers();
        assert_eq!(Run::of(&numbers), Some(run));
        assert_eq!(Run::of(&numbers[..11]), None);
        assert_eq!(
            Run::of(&[0, 0, 0, 0, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
            None
        );
        assert_eq!(Run::of(&[0, 0, 0, 0, 0, 1, 1 << 40, 1]), None);
        assert_eq!(Run::of(&[1, 2]), None);
    }

    /// Nothing is removed behind a link that others have put in the directory's place, nor from a directory of others.
    #[test]
    fn only_what_a_run_has_shown_is_removed() {
        let elsewhere = tempfile::tempdir().unwrap();
        // No user has this number: nobody else is in the way.
        let (user, own) = (u32::MAX - 7, rustix::process::geteuid().as_raw());
        let file = elsewhere.path().join("77");
        std::fs::write(&file, "").unwrap();
        let place = format!("{DIRECTORY}{user}");
        std::os::unix::fs::symlink(elsewhere.path(), &place).unwrap();
        remove((user, 77));
        std::fs::remove_file(&place).unwrap();
        assert!(file.exists());
        // Only its user may write to it, or read it.
        for (mode, is_own) in [(0o700, true), (0o755, false)] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(elsewhere.path(), mode).unwrap();
            assert_eq!(own_directory(elsewhere.path(), own).is_some(), is_own);
        }
        assert!(own_directory(elsewhere.path(), user).is_none());
    }

    /// The longest name of a run fits.
    #[test]
    fn names_fit() {
        let longest = format_args!("{DIRECTORY}{}/{}", u32::MAX, u32::MAX).to_string();
        let mut buffer = [0; PATH];
        let path = path(&mut buffer, format_args!("{longest}"));
        assert_eq!(path.to_bytes(), longest.as_bytes());
    }
}
