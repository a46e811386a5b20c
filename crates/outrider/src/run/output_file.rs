//! A file that a flag names and a run writes into.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::output::{Failure, show};

/// Bytes that a pipe is asked to hold for its reader.
const PIPE: libc::c_int = 1 << 20;

/// Open before the program starts, so that a bad path is told at once, and as it was until [`empty`](OutputFile::empty).
pub struct OutputFile {
    flag: &'static str,
    path: PathBuf,
    file: File,
    /// It was not there before.
    made: bool,
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

/// Opens the files that flags name, and empties them. If something is wrong with one of them, all are left as they were.
pub fn open<const N: usize>(
    named: [(&'static str, Option<&Path>); N],
) -> Result<[Option<OutputFile>; N], Refused> {
    let mut opened = [const { None }; N];
    let undo =
        |opened: &[Option<OutputFile>; N]| opened.iter().flatten().for_each(OutputFile::undo);
    for i in 0..N {
        let (flag, Some(path)) = named[i] else {
            continue;
        };
        let new = OutputFile::open(flag, path).inspect_err(|_| undo(&opened))?;
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
    opened.iter().flatten().try_for_each(OutputFile::empty)?;
    Ok(opened)
}

impl OutputFile {
    fn open(flag: &'static str, path: &Path) -> Result<OutputFile, Refused> {
        let is_pipe = fs::metadata(path).is_ok_and(|m| m.file_type().is_fifo());
        let open = |made: bool| {
            // A pipe that is opened for writing alone waits for a reader.
            let mut options = File::options();
            options.write(true).read(is_pipe).create(made).open(path)
        };
        let (file, made) = match open(false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => (open(true), true),
            other => (other, false),
        };
        let file = file.map_err(|e| refused(flag, path, &e))?;
        if is_pipe {
            // SAFETY: takes numbers only. A smaller pipe is none the worse.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETPIPE_SZ, PIPE) };
        }
        Ok(OutputFile {
            flag,
            path: path.to_owned(),
            file,
            made,
            is_pipe,
        })
    }

    /// Removes the file if it was made.
    fn undo(&self) {
        if self.made {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn empty(&self) -> Result<(), Refused> {
        let refused = |e| refused(self.flag, &self.path, &e);
        let meta = self.file.metadata().map_err(refused)?;
        if !meta.is_file() || meta.len() == 0 || self.file.set_len(0).is_ok() {
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
            let meta = w.file.metadata().ok()?;
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
    pub fn descriptor(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The file, to be written by this process and others.
    pub fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// The file, to be written; a pipe without this end for reading, so that it is an error if nobody reads it.
    pub fn into_file(self) -> io::Result<File> {
        if !self.is_pipe {
            return Ok(self.file);
        }
        File::options()
            .write(true)
            .open(format!("/proc/self/fd/{}", self.descriptor()))
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
