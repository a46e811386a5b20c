//! `outrider run --remember`: which profile a job has, and what its service is handed.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use outrider_core::needs::{self, Mapped};
use outrider_core::profile::format::Bad;
use outrider_core::profile::observe::Subject;
use outrider_core::profile::store::{self, Stamp, Trouble};
use outrider_core::profile::{Job, Profile};
use outrider_sys::units::InodeKey;
use outrider_sys::{handover, mapped, raw};

use crate::config::base_directory;
use crate::elf;
use crate::output::{self, Failure, show};

/// Where profiles are kept that have a name: `$XDG_STATE_HOME/outrider/profiles`, `~/.local/state` where that is not set.
pub fn directory() -> Result<PathBuf, Failure> {
    let base = base_directory("XDG_STATE_HOME", ".local/state");
    let base = base.map(|base| base.join("outrider/profiles"));
    base.ok_or_else(|| {
        Failure::usage("profiles: neither XDG_STATE_HOME nor HOME says where they are kept; accepted is an absolute path in either, or a profile's file, by a name with a slash")
    })
}

/// The file of a profile: a name with a slash is one.
pub fn file_of(name: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        // A path without its last slash would be another one than was given.
        let end = name.as_bytes().rsplit(|b| *b == b'/').next();
        if matches!(end, Some(b"" | b"." | b"..")) {
            return Err(Failure::usage(format!(
                "{}: the name of a directory; accepted is a profile's file",
                show(name)
            )));
        }
        return std::path::absolute(name)
            .map_err(|e| Failure::usage(format!("{}: {e}", show(name))));
    }
    if !store::is_name(name) {
        return Err(Failure::usage(format!(
            "{}: no name of a profile; accepted are up to {} letters, digits and ._-+@, not beginning with . or -, or a file, by a name with a slash",
            show(name),
            store::NAME
        )));
    }
    let mut file = name.to_owned();
    file.push(store::SUFFIX);
    Ok(directory()?.join(file))
}

/// A profile's file, and what it has.
pub fn load(name: &OsStr) -> Result<(PathBuf, Profile), Failure> {
    let file = file_of(name)?;
    match store::read(&file) {
        Ok(profile) => Ok((file, profile)),
        Err(e) => Err(refused(name, &e)),
    }
}

/// Why a profile can't be used.
pub fn refused(name: impl AsRef<OsStr>, why: &Trouble) -> Failure {
    Failure::usage(format!("{}: {why}", show(name)))
}

/// A job that is to be remembered, in the runner.
pub struct Remembered {
    file: PathBuf,
    profile: Cell<Option<(Profile, Stamp)>>,
    command: Vec<OsString>,
    directory: PathBuf,
    /// Before the program is started: the service gets a processor later, where all are busy.
    began_at: (i64, i64),
    files: Vec<PathBuf>,
    /// The log, and where it is mapped.
    log: Option<(OwnedFd, Mapped)>,
    log_is: InodeKey,
}

impl Remembered {
    /// The job that `command` is, under a name or one of its own. What its profile is like is told at once. Where it is not the user's mistake
    /// that there can be none, the job goes on without, and the answer says why.
    pub fn new(
        name: Option<&OsStr>,
        command: &[OsString],
    ) -> Result<Result<Remembered, String>, Failure> {
        let directory = std::env::current_dir().unwrap_or_default();
        let own;
        let name = match name {
            Some(name) => name,
            None => {
                own = store::name_of(command, &directory);
                &own
            }
        };
        let is_path = name.as_bytes().contains(&b'/');
        let file = match file_of(name) {
            // There is no place for any.
            Err(Failure { message, .. }) if !is_path && store::is_name(name) => {
                return Ok(Err(message));
            }
            file => file?,
        };
        let profile = match store::read_stamped(&file) {
            Ok((profile, _)) if profile.relative => {
                return Err(Failure::usage(format!(
                    "{}: a portable profile; accepted is one that outrider profile import has given a root",
                    show(name)
                )));
            }
            Ok(profile) => Some(profile),
            Err(Trouble::Missing) => None,
            // The job goes on, and makes a new one.
            Err(why @ Trouble::Bad(Bad::Damaged(_))) => {
                output::complain(&refused(name, &why).message);
                None
            }
            // Somebody has named a file that can't be there, since what it is to lie in is none of a directory,
            Err(Trouble::Io(e)) if is_path && e.kind() == std::io::ErrorKind::NotADirectory => {
                return Err(refused(name, &Trouble::Io(e)));
            }
            // or one that is no profile.
            Err(why @ (Trouble::Bad(Bad::Magic) | Trouble::NoFile | Trouble::Link(_)))
                if is_path =>
            {
                return Err(refused(name, &why));
            }
            Err(why) => return Ok(Err(refused(name, &why).message)),
        };
        let program = elf::look_up(&command[0]).map(|path| directory.join(path));
        let arguments = command.iter().skip(1).map(|a| directory.join(Path::new(a)));
        // Only names: what they lead to is looked at by who is not in the program's way.
        let files = program
            .into_iter()
            .chain(arguments.filter(|a| a.as_os_str().len() < needs::LONGEST));
        Ok(Ok(Remembered {
            file,
            profile: Cell::new(profile),
            command: command.to_vec(),
            files: files.take(64).collect(),
            directory,
            began_at: raw::clock(libc::CLOCK_REALTIME),
            log: None,
            log_is: InodeKey::default(),
        }))
    }

    /// Makes the log that hooks write, of the run that has this secret.
    pub fn make_log(&mut self, secret: u64) {
        let Ok((fd, at)) = handover::memory(needs::NAME, needs::BYTES, 0, std::ptr::null_mut())
        else {
            return;
        };
        // What is mapped there no child would have.
        mapped::unmap(at, needs::BYTES);
        // SAFETY: made just now, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let Ok(is) = raw::fstat(fd.as_raw_fd()) else {
            return;
        };
        self.log_is = InodeKey::new(is.st_dev, is.st_ino);
        if let Some(at) = mapped::map_file(fd.as_raw_fd(), needs::BYTES, std::ptr::null_mut()) {
            // SAFETY: the memory stays mapped.
            let log = unsafe { Mapped::at(at) };
            log.begin(secret);
            // Not a standard stream's number, should one of these be closed.
            self.log = rustix::io::fcntl_dupfd_cloexec(&fd, 3)
                .ok()
                .map(|fd| (fd, log));
        }
    }

    /// The log's descriptor, as programs find it in /proc.
    pub fn descriptor(&self) -> Option<i32> {
        self.log.as_ref().map(|(fd, _)| fd.as_raw_fd())
    }

    /// What the service is handed, a child of `runner`. What the profile has is handed on once.
    pub fn job(&self, runner: u32) -> Job {
        Job {
            file: self.file.clone(),
            profile: self.profile.take(),
            command: self.command.iter().map(|a| a.as_bytes().to_vec()).collect(),
            subject: Subject {
                runner,
                log: self.log.as_ref().map(|(_, log)| *log),
                log_is: self.log_is,
                files: self.files.clone(),
                directory: self.directory.clone(),
                began_at: self.began_at,
            },
        }
    }
}
