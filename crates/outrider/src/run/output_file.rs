//! A file that a flag names and a run writes into, bit by bit or as a whole.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use outrider_sys::look_up::openat2;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, XattrFlags, fremovexattr, fsetxattr,
    fstat, getxattr, listxattr, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use crate::output::{Failure, show};

/// Bytes that a pipe is asked to hold for its reader.
const PIPE: libc::c_int = 1 << 20;

/// Links that are followed one after another: as many as the kernel follows.
const LINKS: usize = 40;

/// Bytes of an extended attribute, and of a file's names of them, at most (XATTR_SIZE_MAX, XATTR_LIST_MAX).
const ATTRIBUTE: usize = 1 << 16;

/// How something gets into a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As it comes to be, into the file itself.
    Gradually,
    /// All at once, in the place of what was there until then, where such a place can be taken.
    Whole,
}

/// Open before the program starts, so that a bad path is told at once, and as it was until [`begin`](OutputFile::begin).
pub struct OutputFile {
    flag: &'static str,
    path: PathBuf,
    /// The file; none where it was not there and is first made when there is something to be in it.
    file: Option<File>,
    /// Then a descriptor is held for that, however few there are.
    reserved: Option<File>,
    /// It was not there before.
    made: bool,
    /// The file itself, behind all links there were. What is put into its place later is followed nowhere: others may write to its directory.
    place: Option<PathBuf>,
    /// A whole new file takes its place, however often.
    whole: bool,
    /// It was open before, under a number: what others write there stays where it is.
    is_theirs: bool,
    /// A pipe is held open, for reading too: nobody waits for a reader who comes late, and he doesn't see its end before.
    is_pipe: bool,
}

/// Why a file can't be written into.
pub enum Refused {
    /// Nobody can, under this name: the command line is wrong.
    Named(Failure),
    /// This process can't have a file, whatever its name.
    Short(String),
}

/// Opens the files that flags name, and empties those that are written gradually. If something is wrong with one of them, all are left as they were.
pub fn open<const N: usize>(
    named: [(&'static str, Option<&Path>, Way); N],
) -> Result<[Option<OutputFile>; N], Refused> {
    let mut opened = [const { None }; N];
    let undo =
        |opened: &[Option<OutputFile>; N]| opened.iter().flatten().for_each(OutputFile::undo);
    for i in 0..N {
        let (flag, Some(path), way) = named[i] else {
            continue;
        };
        let new = OutputFile::open(flag, path, way).inspect_err(|_| undo(&opened))?;
        let same = opened.iter().flatten().find(|w| w.is_same(&new));
        let what = same.map(|w| {
            let (one, other) = (w.name(), new.name());
            format!("{one} and {other} are one file; accepted are two")
        });
        opened[i] = Some(new);
        if let Some(what) = what {
            undo(&opened);
            return Err(Refused::Named(Failure::usage(what)));
        }
    }
    opened
        .iter_mut()
        .flatten()
        .try_for_each(OutputFile::begin)?;
    Ok(opened)
}

impl OutputFile {
    fn open(flag: &'static str, path: &Path, way: Way) -> Result<OutputFile, Refused> {
        let place = Place::of(path);
        let is_theirs = matches!(place, Some(Place::Open(_)));
        let is_pipe = !is_theirs && fs::metadata(path).is_ok_and(|m| m.file_type().is_fifo());
        let open = |made: bool| {
            // A pipe that is opened for writing alone waits for a reader.
            let mut options = File::options();
            options.write(true).read(is_pipe).create(made).open(path)
        };
        let (file, made) = match place {
            Some(Place::Open(number)) => (duplicate(number), false),
            _ => match open(false) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => (open(true), true),
                // Asked as a shell asks: where all may write, the kernel refuses what somebody else has put there (fs.protected_regular, fs.protected_fifos).
                Ok(found) if found.metadata().is_ok_and(|m| m.is_file()) || is_pipe => {
                    (open(true), false)
                }
                other => (other, false),
            },
        };
        let file = file.map_err(|e| refused(flag, path, &e))?;
        if is_pipe {
            // SAFETY: takes numbers only. A smaller pipe is none the worse.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE) };
        }
        let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
        let place = match place {
            Some(Place::File(place)) => Some(place),
            _ => None,
        };
        let whole = way == Way::Whole && is_file && place.is_some();
        Ok(OutputFile {
            flag,
            path: path.to_owned(),
            file: Some(file),
            reserved: None,
            made,
            place,
            whole,
            is_theirs,
            is_pipe,
        })
    }

    /// Removes the file if it was made, and nothing else that has its name by now.
    fn undo(&self) {
        let made = self.file.as_ref().filter(|_| self.made);
        let (Some(made), Ok((dir, name))) = (made.and_then(|f| f.metadata().ok()), self.at())
        else {
            return;
        };
        let is = statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW);
        if is.is_ok_and(|is| (is.st_dev, is.st_ino) == (made.dev(), made.ino())) {
            let _ = unlinkat(&dir, name, AtFlags::empty());
        }
    }

    /// The directory of the file itself, reached as it was found, and the name in it.
    fn at(&self) -> io::Result<(OwnedFd, &OsStr)> {
        let place = self.place.as_deref();
        let parts = place.and_then(|p| Some((p.parent()?, p.file_name()?)));
        let (parent, name) = parts.ok_or(io::ErrorKind::NotFound)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let links = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let dir = match openat2(CWD, parent, flags, links) {
            // It isn't there, or a filter doesn't know it.
            Err(Errno::NOSYS | Errno::PERM) => openat(CWD, parent, flags, Mode::empty()),
            other => other,
        };
        Ok((dir?, name))
    }

    /// All files could be opened.
    fn begin(&mut self) -> Result<(), Refused> {
        if self.whole {
            if self.made {
                self.undo();
                self.file = None;
                self.reserved = File::open("/dev/null").ok();
            }
            return Ok(());
        }
        let Some(file) = self.file.as_ref().filter(|_| !self.is_theirs) else {
            return Ok(());
        };
        let refused = |e| refused(self.flag, &self.path, &e);
        let meta = file.metadata().map_err(refused)?;
        if !meta.is_file() || meta.len() == 0 || file.set_len(0).is_ok() {
            return Ok(());
        }
        // Where ftruncate(2) is refused.
        let mut options = File::options();
        let emptied = options.write(true).truncate(true).open(&self.path);
        emptied.map(drop).map_err(refused)
    }

    /// Whether what goes into both would be mixed. Devices take it as it comes.
    fn is_same(&self, other: &OutputFile) -> bool {
        let key = |w: &OutputFile| {
            let meta = w.file.as_ref()?.metadata().ok()?;
            let mixed = meta.is_file() || w.is_pipe;
            mixed.then_some((meta.dev(), meta.ino()))
        };
        key(self).is_some_and(|k| Some(k) == key(other))
    }

    /// The flag as it was given.
    pub fn name(&self) -> String {
        format!("{}={}", self.flag, show(&self.path))
    }

    /// Where it lies, for programs that may change their directory. None of a pipe or socket that was open before and has no name.
    pub fn path(&self) -> Result<Option<PathBuf>, Failure> {
        if let Some(place) = &self.place {
            return Ok(Some(place.clone()));
        }
        match self.path.canonicalize() {
            Err(_) if self.is_stream() => Ok(None),
            path => path.map(Some).map_err(|e| named(self.flag, &self.path, &e)),
        }
    }

    /// The same for processes that are forked by this one, and have the descriptor.
    pub fn path_within(&self) -> Option<PathBuf> {
        match self.descriptor().filter(|_| self.is_stream()) {
            Some(descriptor) => Some(format!("/proc/self/fd/{descriptor}").into()),
            None => self.path().ok().flatten(),
        }
    }

    /// Whether it is a pipe or a socket that was open before.
    fn is_stream(&self) -> bool {
        let kind = self.file.as_ref().and_then(|f| f.metadata().ok());
        let kind = kind.map(|meta| meta.file_type());
        self.is_theirs && kind.is_some_and(|kind| kind.is_fifo() || kind.is_socket())
    }

    /// Whether its descriptor must stay open for what others write by its path.
    pub fn stays_open(&self) -> bool {
        self.is_pipe || self.is_stream()
    }

    /// The descriptor that must stay open.
    pub fn descriptor(&self) -> Option<i32> {
        let file = self.file.as_ref().or(self.reserved.as_ref());
        file.map(AsRawFd::as_raw_fd)
    }

    /// The file, to be written by this process and others.
    pub fn file(&self) -> io::Result<File> {
        if let Some(file) = &self.file {
            return file.try_clone();
        }
        // Nothing may be made beside it any more. What is there by now may be a pipe that nobody reads, or another name of a file that others chose.
        let (dir, name) = self.at()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = Mode::from_raw_mode(0o666);
        let file = File::from(openat(&dir, name, flags | OFlags::CLOEXEC, mode)?);
        match file.metadata()?.nlink() {
            0 | 1 => Ok(file),
            _ => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// The file, to be written; a pipe without this end for reading, so that it is an error if nobody reads it.
    fn into_file(self) -> io::Result<File> {
        let Some(descriptor) = self.descriptor().filter(|_| self.is_pipe) else {
            return self.file();
        };
        File::options()
            .write(true)
            .open(format!("/proc/self/fd/{descriptor}"))
    }

    /// Has `text` in the file, and nothing else, while the program runs. Into a pipe goes the last text alone.
    pub fn put_meanwhile(&self, text: &str) -> io::Result<()> {
        if self.replace(text)? {
            return Ok(());
        }
        let file = self.file()?;
        if !self.is_theirs && file.metadata()?.is_file() {
            // The begin of the file stays where the next text is written.
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_len(text.len() as u64)?;
        }
        Ok(())
    }

    /// The same for the last time.
    pub fn put(mut self, text: &str) -> io::Result<()> {
        drop(self.reserved.take());
        if self.replace(text)? {
            return Ok(());
        }
        let (len, is_theirs) = (text.len() as u64, self.is_theirs);
        let mut file = self.into_file()?;
        file.write_all(text.as_bytes())?;
        if is_theirs {
            return Ok(());
        }
        let is_longer = file.metadata().is_ok_and(|m| m.is_file() && m.len() > len);
        if is_longer { file.set_len(len) } else { Ok(()) }
    }

    /// Makes a new file like what was there before. `false` if it may not take its place.
    fn make_alike(&self, new: &File, before: &OwnedFd) -> io::Result<bool> {
        let found = fstat(before)?;
        let its = self.file.as_ref();
        let is_it = || {
            let its = its.and_then(|f| fstat(f).ok());
            let same = |its: Stat| (its.st_dev, its.st_ino) == (found.st_dev, found.st_ino);
            found.st_uid == rustix::process::geteuid().as_raw() || its.is_some_and(same)
        };
        match FileType::from_raw_mode(found.st_mode) {
            // Its other names are to have the text, too, if it is the one that was there.
            FileType::RegularFile if found.st_nlink > 1 => Ok(its.is_none()),
            FileType::RegularFile if is_it() => {
                take_after(new, before.as_fd())?;
                Ok(true)
            }
            // Somebody else has put it there since.
            FileType::RegularFile | FileType::Symlink => {
                its.map_or(Ok(()), |its| take_after(new, its.as_fd()))?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Puts a new file with `text` in the place of the old one, whose owner, mode and extended attributes it has. `false` where that can't be: then the old one is to be
    /// overwritten. With an error there was no room for all of the text, and the old one is as it was.
    fn replace(&self, text: &str) -> io::Result<bool> {
        if !self.whole {
            return Ok(false);
        }
        let Ok((dir, name)) = self.at() else {
            return Ok(false);
        };
        let mut new = OsString::from(".");
        new.push(name);
        new.push(format!(".{}", std::process::id()));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let Ok(file) = openat(&dir, &new, flags, Mode::from_raw_mode(0o666)) else {
            return Ok(false);
        };
        let mut file = File::from(file);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let alike = match openat(&dir, name, flags, Mode::empty()) {
            Ok(before) => self.make_alike(&file, &before).unwrap_or(false),
            Err(e) => e == Errno::NOENT,
        };
        let rename = || renameat(&dir, &new, &dir, name).is_ok();
        let written = match alike {
            true => file.write_all(text.as_bytes()).map(|()| rename()),
            false => Ok(false),
        };
        if !matches!(written, Ok(true)) {
            let _ = unlinkat(&dir, &new, AtFlags::empty());
        }
        written
    }
}

/// Gives a new file the owner, the attributes and the permissions of the one before. Whose that was it stays, or it is not replaced.
fn take_after(file: &File, before: BorrowedFd<'_>) -> io::Result<()> {
    let (new, old) = (file.metadata()?, fstat(before)?);
    if (new.uid(), new.gid()) != (old.st_uid, old.st_gid) {
        std::os::unix::fs::fchown(file, Some(old.st_uid), Some(old.st_gid))?;
    }
    // Where there is an access control list the permissions are a part of it.
    take_attributes(file, before)?;
    let permissions = old.st_mode & 0o777;
    if file.metadata()?.mode() & 0o777 != permissions {
        file.set_permissions(Permissions::from_mode(permissions))?;
    }
    Ok(())
}

/// Gives a new file the extended attributes of the one before, access control lists among them. Of those that belong to neither users nor lists it must have
/// the same already.
fn take_attributes(file: &File, before: BorrowedFd<'_>) -> io::Result<()> {
    let (mut new, old) = (attributes(file.as_fd())?, attributes(before)?);
    let is_ours = |name: &CStr| {
        let name = name.to_bytes();
        match name.starts_with(b"user.") || name == b"system.posix_acl_access" {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::Unsupported)),
        }
    };
    for (name, value) in old {
        if new.remove(&name).as_ref() != Some(&value) {
            is_ours(&name)?;
            fsetxattr(file, &*name, &value, XattrFlags::empty())?;
        }
    }
    for name in new.keys() {
        is_ours(name)?;
        fremovexattr(file, &**name)?;
    }
    Ok(())
}

/// The extended attributes of an open file, and their values.
fn attributes(file: BorrowedFd<'_>) -> io::Result<BTreeMap<CString, Vec<u8>>> {
    // One that was opened as a place alone is asked by a path.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut found = BTreeMap::new();
    let mut names = vec![0; ATTRIBUTE];
    let len = match listxattr(&path, &mut names) {
        // This file system has none.
        Err(Errno::NOTSUP) => 0,
        len => len?,
    };
    for name in names[..len].split_inclusive(|b| *b == 0) {
        let name = CStr::from_bytes_with_nul(name).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut value = vec![0; ATTRIBUTE];
        let len = getxattr(&path, name, &mut value)?;
        value.truncate(len);
        found.insert(name.to_owned(), value);
    }
    Ok(found)
}

/// What a path names, behind all links.
enum Place {
    /// An open descriptor of this process, as /dev/stdout does.
    Open(RawFd),
    /// A file that is there, or may be made.
    File(PathBuf),
}

impl Place {
    /// None for what else the kernel has a name for and no place.
    fn of(path: &Path) -> Option<Place> {
        let own = ["/proc/self/fd", "/proc/thread-self/fd"].map(fs::canonicalize);
        let mut path = path.to_owned();
        for _ in 0..LINKS {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
            let name = path.file_name()?;
            if own.iter().flatten().any(|own| *own == parent) {
                return name.to_str()?.parse().ok().map(Place::Open);
            }
            if rustix::fs::statfs(&parent).ok()?.f_type == rustix::fs::PROC_SUPER_MAGIC {
                return None;
            }
            let here = parent.join(name);
            match fs::read_link(&here) {
                Ok(target) => path = parent.join(target),
                Err(_) => return Some(Place::File(here)),
            }
        }
        None
    }
}

/// The same open file under another number, if it may be written.
fn duplicate(number: RawFd) -> io::Result<File> {
    // SAFETY: takes numbers only, and says if there is none.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: nobody else has it.
    let file = unsafe { File::from_raw_fd(copy) };
    // SAFETY: takes numbers only.
    let flags = unsafe { libc::fcntl(copy, libc::F_GETFL) };
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Err(io::Error::from_raw_os_error(libc::EBADF)),
        _ => Ok(file),
    }
}

fn named(flag: &str, path: &Path, e: &io::Error) -> Failure {
    Failure::usage(format!(
        "{flag}={}: {e}; accepted is a file that can be written",
        show(path)
    ))
}

fn refused(flag: &str, path: &Path, e: &io::Error) -> Refused {
    match e.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOSYS) => {
            Refused::Short(format!("{flag}={}: {e}", show(path)))
        }
        _ => Refused::Named(named(flag, path, e)),
    }
}
