//! Where profiles are kept: a file each, `$XDG_STATE_HOME/outrider/profiles/NAME.profile`.
//!
//! A file is replaced as a whole, by rename(2), so that who reads sees the old one or the new one. Runs of one job that end at the same time take turns
//! (flock(2) on the directory) and take in what the others have written meanwhile. No link is followed that others could have put there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outrider_sys::units::InodeKey;
use outrider_sys::{fnv, raw};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};

use super::format::{self, Bad, LONGEST};
use super::model::Profile;
use super::place::{LINKS, components};

/// What the names of files end with.
pub const SUFFIX: &str = ".profile";
/// Bytes of a name at most: with the suffix, and that of a file that is being written, a file system's limit of 255.
pub const NAME: usize = 200;
/// How long a run waits for its turn: another one takes a few milliseconds.
const PATIENCE: Duration = Duration::from_millis(500);

/// Why a profile could not be had or kept.
#[derive(Debug)]
pub enum Trouble {
    /// There is none.
    Missing,
    /// The kernel says no.
    Io(io::Error),
    /// The file has none.
    Bad(Bad),
    /// What is there is no regular file.
    NoFile,
    /// The way leads over a link in a directory that others may write to, or the file itself is a link.
    Link(PathBuf),
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Missing => {
                f.write_str("no such profile; outrider profile list shows those that there are")
            }
            Trouble::Io(e) => e.fmt(f),
            Trouble::Bad(bad) => bad.fmt(f),
            Trouble::NoFile => f.write_str("not a regular file; accepted is a profile's file"),
            Trouble::Link(at) => write!(
                f,
                "{} is a link, which is not followed for the file itself or where others may write; accepted is a path without it",
                String::from_utf8_lossy(at.as_os_str().as_bytes())
            ),
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(e: io::Error) -> Trouble {
        match e.kind() {
            io::ErrorKind::NotFound => Trouble::Missing,
            _ => Trouble::Io(e),
        }
    }
}

impl From<Trouble> for io::Error {
    fn from(trouble: Trouble) -> io::Error {
        match trouble {
            Trouble::Io(e) => e,
            Trouble::Missing => io::ErrorKind::NotFound.into(),
            other => io::Error::other(other.to_string()),
        }
    }
}

impl From<rustix::io::Errno> for Trouble {
    fn from(e: rustix::io::Errno) -> Trouble {
        io::Error::from(e).into()
    }
}

/// Whether this can be the name of a profile: what a file can be called by without surprises.
pub fn is_name(name: &OsStr) -> bool {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"._-+@".contains(b);
    let bytes = name.as_bytes();
    (1..=NAME).contains(&bytes.len()) && bytes.iter().all(plain) && !b".-".contains(&bytes[0])
}

/// The name of a job: its program, and a number made of that, its arguments and its directory.
pub fn name_of(command: &[OsString], directory: &Path) -> OsString {
    let parts = command.iter().map(|a| a.as_bytes());
    let parts = parts.chain([directory.as_os_str().as_bytes()]);
    // Each part ends with what no part has.
    let bytes = parts.flat_map(|part| part.iter().chain(&[0]));
    let hash = bytes.copied().fold(fnv::NOTHING, fnv::then);
    let program = command.first().map(Path::new).and_then(Path::file_name);
    let program = program.unwrap_or_default().to_string_lossy();
    let plain = program.chars().take(32).map(|c| match c {
        c if c.is_ascii_alphanumeric() || "_+".contains(c) => c,
        '.' | '-' | '@' => c,
        _ => '_',
    });
    let plain: String = plain.collect();
    let plain = plain.trim_start_matches(['.', '-']);
    format!(
        "{}-{hash:016x}",
        if plain.is_empty() { "job" } else { plain }
    )
    .into()
}

/// A directory, opened. Links on the way are followed only where nobody but its owner, or root, could have put them.
fn directory(path: &Path) -> Result<OwnedFd, Trouble> {
    let own = rustix::process::geteuid().as_raw();
    let is_kept = |holder: &libc::stat, _: &libc::stat| {
        holder.st_mode & 0o022 == 0 && [0, own].contains(&holder.st_uid)
    };
    let found = find(path, is_kept)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&found, ".", flags, Mode::empty())?)
}

/// A regular file, opened for reading, of which only as many bytes are to be taken as are expected. A link is followed if it is this user's or root's: whoever has
/// another's environment (su, sudo -E) would be led by that one's to files that he may not read.
pub fn open(file: &Path) -> Result<File, Trouble> {
    let own = rustix::process::geteuid().as_raw();
    let found = find(file, |_, link| [0, own].contains(&link.st_uid))?;
    let st = raw::status(found.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
    if FileType::from_raw_mode(st.st_mode) != FileType::RegularFile {
        return Err(Trouble::NoFile);
    }
    let opened = match crate::fetch::reopen(found.as_fd(), OFlags::empty()) {
        // Without /proc.
        Err(rustix::io::Errno::NOENT) => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, file, flags, Mode::empty())?
        }
        other => other?,
    };
    Ok(opened.into())
}

/// What a path leads to, opened without any right. A link is followed if `may` says so of the directory that has it, and of itself.
fn find(path: &Path, may: impl Fn(&libc::stat, &libc::stat) -> bool) -> Result<OwnedFd, Trouble> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |dir: &OwnedFd, name: &OsStr| rustix::fs::openat(dir, name, flags, Mode::empty());
    let root = || rustix::fs::openat(CWD, "/", flags, Mode::empty());
    let absolute = std::path::absolute(path)?;
    let mut left: Vec<OsString> = components(&absolute);
    let (mut above, mut at, mut links) = (vec![root()?], PathBuf::from("/"), 0);
    while let Some(name) = left.pop() {
        let Some(dir) = above.last() else {
            return Err(Trouble::Missing);
        };
        if name == ".." {
            if above.len() > 1 {
                above.pop();
                at.pop();
            }
            continue;
        }
        let next = open(dir, &name)?;
        let st = raw::status(next.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
        if FileType::from_raw_mode(st.st_mode) != FileType::Symlink {
            above.push(next);
            at.push(name);
            continue;
        }
        let holder = raw::status(dir.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
        links += 1;
        if !may(&holder, &st) || links > LINKS {
            return Err(Trouble::Link(at.join(name)));
        }
        let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
        let target = PathBuf::from(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            (above, at) = (vec![root()?], PathBuf::from("/"));
        }
        left.extend(components(&target));
    }
    above.pop().ok_or(Trouble::Missing)
}

/// The directory of a file, and the file's name.
fn split(file: &Path) -> Result<(&Path, &OsStr), Trouble> {
    let name = file.file_name().ok_or(Trouble::NoFile)?;
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty());
    Ok((parent.unwrap_or(Path::new(".")), name))
}

/// By what a file is known that was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    key: InodeKey,
    size: i64,
    modified: (i64, i64),
}

impl From<&libc::stat> for Stamp {
    fn from(st: &libc::stat) -> Stamp {
        Stamp {
            key: InodeKey::new(st.st_dev, st.st_ino),
            size: st.st_size,
            modified: (st.st_mtime, st.st_mtime_nsec),
        }
    }
}

/// The profile in a file.
pub fn read(file: &Path) -> Result<Profile, Trouble> {
    Ok(read_stamped(file)?.0)
}

/// The profile in a file, and what the file is.
pub fn read_stamped(file: &Path) -> Result<(Profile, Stamp), Trouble> {
    let (parent, name) = split(file)?;
    read_at(&directory(parent)?, name)
}

/// Says that a profile was used and is right as it is: its file's times become now.
pub fn touch(file: &Path) -> Result<(), Trouble> {
    let (parent, name) = split(file)?;
    let now = rustix::fs::Timespec {
        tv_sec: 0,
        tv_nsec: rustix::fs::UTIME_NOW,
    };
    let times = rustix::fs::Timestamps {
        last_access: now,
        last_modification: now,
    };
    let dir = directory(parent)?;
    Ok(rustix::fs::utimensat(
        &dir,
        name,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

fn read_at(dir: &OwnedFd, name: &OsStr) -> Result<(Profile, Stamp), Trouble> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let st = raw::status(found.as_raw_fd()).map_err(io::Error::from_raw_os_error)?;
    match FileType::from_raw_mode(st.st_mode) {
        FileType::RegularFile => {}
        // Whoever may write to the directory may put another file there as well: a link leads no further than that only if it isn't followed.
        FileType::Symlink => return Err(Trouble::Link(PathBuf::from(name))),
        _ => return Err(Trouble::NoFile),
    }
    let file = match crate::fetch::reopen(found.as_fd(), OFlags::empty()) {
        // Without /proc.
        Err(rustix::io::Errno::NOENT) => {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            rustix::fs::openat(dir, name, flags, Mode::empty())?
        }
        other => other?,
    };
    let mut bytes = Vec::new();
    File::from(file).take(LONGEST + 1).read_to_end(&mut bytes)?;
    let mut profile = format::decode(&bytes).map_err(Trouble::Bad)?;
    // A run that found it right as it is has only touched the file.
    profile.updated = profile.updated.max(st.st_mtime.max(0) as u64);
    Ok((profile, Stamp::from(&st)))
}

/// Puts a profile in a file's place, whose directory is made if there is none.
pub fn write(file: &Path, profile: &Profile) -> Result<(), Trouble> {
    change(file, None, |_| Some(profile.clone()))
}

/// Changes the profile in a file, while nobody else does: `change` is given what is there and returns what is to be there; `None`: nothing. What
/// is `known` of the file is not read again if it still is what it was.
pub fn change(
    file: &Path,
    known: Option<(Stamp, &Profile)>,
    change: impl FnOnce(Option<Profile>) -> Option<Profile>,
) -> Result<(), Trouble> {
    let (parent, name) = split(file)?;
    let dir = made(parent)?;
    let began = Instant::now();
    while rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err()
        && began.elapsed() < PATIENCE
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let is = rustix::fs::openat(&dir, name, flags, Mode::empty());
    let is = is.ok().and_then(|is| raw::status(is.as_raw_fd()).ok());
    let known = known.filter(|(stamp, _)| is.is_some_and(|st| Stamp::from(&st) == *stamp));
    let old = known.map(|(stamp, profile)| (profile.clone(), stamp));
    let old = match old.map_or_else(|| read_at(&dir, name), Ok) {
        Ok((old, _)) => Some(old),
        // A damaged profile makes room for a new one; what is something else stays.
        Err(Trouble::Missing | Trouble::Bad(Bad::Damaged(_))) => None,
        Err(other) => return Err(other),
    };
    match change(old) {
        Some(profile) => replace(&dir, name, &format::encode(&profile), OWN),
        None => match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            other => Ok(other?),
        },
    }
}

/// A directory, which is made if there is none, and so are those above it.
fn made(path: &Path) -> Result<OwnedFd, Trouble> {
    match directory(path) {
        Err(Trouble::Missing) => {}
        other => return other,
    }
    let (parent, name) = split(path)?;
    match rustix::fs::mkdirat(&made(parent)?, name, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => directory(path),
        Err(e) => Err(e.into()),
    }
}

/// Puts text in a file's place, which others may read, and whose directory is made if there is none. Whoever reads meanwhile sees the old file or the new one.
pub fn put(file: &Path, text: &str) -> Result<(), Trouble> {
    let (parent, name) = split(file)?;
    replace(&made(parent)?, name, text.as_bytes(), 0o666)
}

/// Removes a file.
pub fn remove(file: &Path) -> Result<(), Trouble> {
    let (parent, name) = split(file)?;
    Ok(rustix::fs::unlinkat(
        &directory(parent)?,
        name,
        AtFlags::empty(),
    )?)
}

/// Permissions of a profile: what a user's jobs read is his business.
const OWN: u32 = 0o600;

/// Replaces a file of a directory by one with these permissions, as far as the umask leaves them.
fn replace(dir: &OwnedFd, name: &OsStr, bytes: &[u8], mode: u32) -> Result<(), Trouble> {
    let mut new = OsString::from(".");
    new.push(name);
    new.push(format!(".{}", raw::getpid()));
    // What is there of that name is nobody's: left by one of this number.
    let _ = rustix::fs::unlinkat(dir, &new, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, &new, flags, Mode::from_raw_mode(mode))?;
    let written = File::from(file).write_all(bytes);
    let renamed = written.and_then(|()| Ok(rustix::fs::renameat(dir, &new, dir, name)?));
    if let Err(e) = renamed {
        let _ = rustix::fs::unlinkat(dir, &new, AtFlags::empty());
        return Err(Trouble::Io(e));
    }
    Ok(())
}

/// The profiles in a directory, by name.
pub fn list(directory_path: &Path) -> Result<Vec<OsString>, Trouble> {
    let dir = match directory(directory_path) {
        Err(Trouble::Missing) => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let stem = name.as_bytes().strip_suffix(SUFFIX.as_bytes());
        if let Some(stem) = stem.map(OsStr::from_bytes).filter(|s| is_name(s)) {
            names.push(stem.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    raw::clock(libc::CLOCK_REALTIME).0.max(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B15, B16: files are put, and removed, behind no link of others, and directories are made so.
    #[test]
    fn nothing_is_done_behind_links_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let file = dir.join("state/outrider/a.profile");
        put(&file, "one").unwrap();
        put(&file, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        let others = dir.join("others");
        std::fs::create_dir(&others).unwrap();
        let link = others.join("state");
        std::os::unix::fs::symlink(dir.join("state"), &link).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&others, Some(1234), None).unwrap();
            std::os::unix::fs::lchown(&link, Some(1234), None).unwrap();
            let behind = link.join("outrider/a.profile");
            let refused = |done: Result<(), Trouble>| matches!(done, Err(Trouble::Link(_)));
            assert!(refused(remove(&behind)) && refused(put(&behind, "three")));
            assert!(refused(put(&link.join("made/a"), "four")));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "two");
        assert!(!dir.join("state/made").exists());
        remove(&file).unwrap();
        assert!(matches!(remove(&file), Err(Trouble::Missing)));
    }

    /// B15: the same job has the same name wherever it is derived, and another one has another.
    #[test]
    fn names_are_made_of_the_job() {
        let job = |command: &[&str], at: &str| {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            let name = name_of(&command, Path::new(at));
            assert!(is_name(&name), "{name:?}");
            name
        };
        let one = job(&["/usr/bin/python3", "-c", "import numpy"], "/home/u");
        assert_eq!(
            one,
            job(&["/usr/bin/python3", "-c", "import numpy"], "/home/u")
        );
        let others = [
            job(&["/usr/bin/python3", "-c", "import numpy"], "/home/v"),
            job(&["/usr/bin/python3", "-c", "import", "numpy"], "/home/u"),
            job(&["/usr/bin/python3", "-c", "import pandas"], "/home/u"),
            job(&["..\n", ""], "/"),
            job(&[""], "/"),
        ];
        assert!(!others.contains(&one));
        assert!(one.to_str().unwrap().starts_with("python3-"));
        assert!(
            !is_name(OsStr::new("../x")) && !is_name(OsStr::new("")) && !is_name(OsStr::new("-x"))
        );
    }
}
