//! A file that a flag names and a run writes into, bit by bit or as a whole.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::output::{Failure, show};

/// Bytes that a pipe is asked to hold for its reader.
const PIPE: libc::c_int = 1 << 20;

/// Links that are followed one after another: as many as the kernel follows.
const LINKS: usize = 40;

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
    /// Whose place a whole new file takes, however often: the file itself, behind all links.
    whole: Option<PathBuf>,
    /// It was open before, under a number: what others write there stays where it is.
    is_theirs: bool,
    /// A pipe is held open, for reading too: nobody waits for a reader who comes late, and he doesn't see its end before.
    pub is_pipe: bool,
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
                other => (other, false),
            },
        };
        let file = file.map_err(|e| refused(flag, path, &e))?;
        if is_pipe {
            // SAFETY: takes numbers only. A smaller pipe is none the worse.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE) };
        }
        let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
        let whole = match place {
            Some(Place::File(path)) if way == Way::Whole && is_file => Some(path),
            _ => None,
        };
        Ok(OutputFile {
            flag,
            path: path.to_owned(),
            file: Some(file),
            reserved: None,
            made,
            whole,
            is_theirs,
            is_pipe,
        })
    }

    /// Removes the file if it was made.
    fn undo(&self) {
        if self.made {
            let path = self.path.canonicalize();
            let _ = fs::remove_file(path.as_ref().unwrap_or(&self.path));
        }
    }

    /// All files could be opened.
    fn begin(&mut self) -> Result<(), Refused> {
        if self.whole.is_some() {
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

    /// Where it lies, for programs that may change their directory.
    pub fn path(&self) -> Result<PathBuf, Failure> {
        let path = self.path.canonicalize();
        path.map_err(|e| named(self.flag, &self.path, &e))
    }

    /// The descriptor that must stay open.
    pub fn descriptor(&self) -> Option<i32> {
        let file = self.file.as_ref().or(self.reserved.as_ref());
        file.map(AsRawFd::as_raw_fd)
    }

    /// The file, to be written by this process and others.
    pub fn file(&self) -> io::Result<File> {
        match (&self.file, &self.whole) {
            (Some(file), _) => file.try_clone(),
            // Nothing may be made beside it any more.
            (None, path) => {
                let mut options = File::options();
                let path = path.as_ref().unwrap_or(&self.path);
                options.write(true).create(true).truncate(false);
                // What is there by now may be a pipe that nobody reads.
                options.custom_flags(libc::O_NONBLOCK).open(path)
            }
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

    /// Puts a new file with `text` in the place of the old one, whose owner and mode it has. `false` where that can't be: then the old one is to be
    /// overwritten. With an error there was no room for all of the text, and the old one is as it was.
    fn replace(&self, text: &str) -> io::Result<bool> {
        let Some(path) = &self.whole else {
            return Ok(false);
        };
        let mut name = OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}", std::process::id()));
        let new = path.with_file_name(name);
        let Ok(mut file) = File::options().write(true).create_new(true).open(&new) else {
            return Ok(false);
        };
        let alike = match fs::metadata(path) {
            // Its other names are to have the text, too.
            Ok(before) if before.nlink() > 1 || !before.is_file() => false,
            Ok(before) => take_after(&file, &before).is_ok(),
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        };
        let written = match alike {
            true => file
                .write_all(text.as_bytes())
                .map(|()| fs::rename(&new, path).is_ok()),
            false => Ok(false),
        };
        if !matches!(written, Ok(true)) {
            let _ = fs::remove_file(&new);
        }
        written
    }
}

/// Gives a new file the owner and the mode of the one before. Whose that was it stays, or it is not replaced.
fn take_after(file: &File, before: &fs::Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (before.uid(), before.gid()) {
        std::os::unix::fs::fchown(file, Some(before.uid()), Some(before.gid()))?;
    }
    if new.mode() != before.mode() {
        file.set_permissions(before.permissions())?;
    }
    Ok(())
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
