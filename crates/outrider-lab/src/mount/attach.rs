//! Mounting, and unmounting whatever happens.
//!
//! A process of its own, the guard, unmounts: when it is told to, or when the server is gone without a word, as after
//! SIGKILL. The server must not do it: killed while it waits for answers of its own, it would keep the kernel waiting.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use rustix::process::{Pid, WaitOptions, WaitStatus};

use crate::disk::mounted_on;
use crate::fuse;

/// What the mount table calls the file system.
const TYPE: &str = "fuse.outrider-lab";
/// What mounts and unmounts for ordinary users.
const HELPER: &str = "fusermount3";
/// To the guard: unmount.
const UNMOUNT: u8 = b'u';
/// To the guard: it is unmounted already.
const GONE: u8 = b'g';

/// Who mounts.
#[derive(Clone, Debug)]
pub enum By {
    /// Root.
    Root,
    /// An ordinary user, with this program's help.
    Helper(PathBuf),
}

impl By {
    /// Whoever runs this; `None` for an ordinary user who has no [`HELPER`].
    pub fn whoever() -> Option<Self> {
        if rustix::process::geteuid().is_root() {
            return Some(Self::Root);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut found = std::env::split_paths(&path).map(|dir| dir.join(HELPER));
        found.find(|helper| helper.is_file()).map(Self::Helper)
    }

    /// Mounts a file system on `dir`, whose top has this mode. Requests come through what is returned.
    pub fn mount(&self, dir: &Path, mode: u32) -> io::Result<OwnedFd> {
        match self {
            Self::Root => mount(dir, mode),
            Self::Helper(helper) => have_mounted(helper, dir),
        }
    }

    /// Unmounts it from `dir`, also while it is used.
    fn unmount(&self, dir: &Path) -> io::Result<()> {
        match self {
            Self::Root => {
                let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
                Ok(rustix::mount::unmount(dir, flags)?)
            }
            Self::Helper(helper) => {
                let mut command = Command::new(helper);
                let status = command.args(["-u", "-z", "--"]).arg(dir).status()?;
                match status.success() {
                    true => Ok(()),
                    false => Err(io::Error::other(format!("{HELPER}: {status}"))),
                }
            }
        }
    }
}

fn mount(dir: &Path, mode: u32) -> io::Result<OwnedFd> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("/dev/fuse: {e}"));
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    let fuse = OwnedFd::from(fuse.map_err(named)?);
    let options = format!(
        "fd={},rootmode={mode:o},user_id=0,group_id=0,allow_other,default_permissions,max_read={}",
        fuse.as_raw_fd(),
        fuse::MAX_IO
    );
    let options = std::ffi::CString::new(options).map_err(io::Error::other)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("outrider-lab", dir, TYPE, flags, Some(options.as_c_str()))?;
    Ok(fuse)
}

/// Has the helper mount, which sends `/dev/fuse` through a socket.
fn have_mounted(helper: &Path, dir: &Path) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let options = format!(
        "ro,nosuid,nodev,default_permissions,fsname=outrider-lab,subtype=outrider-lab,max_read={}",
        fuse::MAX_IO
    );
    // The copy is open in the helper, too.
    let theirs_there = rustix::io::dup(&theirs)?;
    drop(theirs);
    let child = Command::new(helper)
        .args(["-o", &options, "--"])
        .arg(dir)
        .env("_FUSE_COMMFD", theirs_there.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    drop(theirs_there);
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let got = recvmsg(&ours, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    let sent = got.ok().and_then(|_| {
        control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
    });
    let out = child.wait_with_output()?;
    sent.ok_or_else(|| {
        let said = String::from_utf8_lossy(&out.stderr);
        io::Error::other(format!("{HELPER}: {}, {}", out.status, said.trim()))
    })
}

/// The process that unmounts.
#[derive(Debug)]
pub struct Guard {
    process: Pid,
    words: File,
}

impl Guard {
    /// Starts it, before anything is mounted on `dir`. No other thread may run yet.
    pub fn start(by: &By, dir: &Path) -> io::Result<Self> {
        let (hears, says) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // SAFETY: this process has one thread, so the child may do whatever it does.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(says);
                exit(guard(by, dir, File::from(hears)))
            }
            child => Ok(Self {
                process: Pid::from_raw(child).ok_or(io::ErrorKind::Other)?,
                words: File::from(says),
            }),
        }
    }

    /// Says its last word; how it ended.
    fn end(mut self, word: u8) -> Option<WaitStatus> {
        // It may be gone: then its status says so.
        let _ = self.words.write_all(&[word]);
        drop(self.words);
        loop {
            match rustix::process::waitpid(Some(self.process), WaitOptions::empty()) {
                Ok(ended) => return ended.map(|(_, status)| status),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return None,
            }
        }
    }

    /// Has it unmount; where somebody has killed it, this process does, whose lanes serve on meanwhile.
    pub fn unmount(self, by: &By, dir: &Path) -> io::Result<()> {
        match self.end(UNMOUNT).and_then(WaitStatus::exit_status) {
            Some(0) => Ok(()),
            Some(_) => Err(io::Error::other("it could not be unmounted")),
            None if is_there(dir) => by.unmount(dir),
            None => Ok(()),
        }
    }

    /// Nothing is mounted any more.
    pub fn dismiss(self) {
        let _ = self.end(GONE);
    }
}

/// Whether a file system of this kind is mounted on `dir`.
fn is_there(dir: &Path) -> bool {
    mounted_on(dir).is_some_and(|m| m.fs_type == TYPE)
}

/// The guard's life; its exit code.
fn guard(by: &By, dir: &Path, mut hears: File) -> i32 {
    let _ = rustix::process::setsid();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: ignoring a signal needs nothing.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Nobody shall wait for the end of its output but for what it complains about.
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for stream in [0, 1] {
            // SAFETY: puts an open file in the place of a standard stream, which nobody else uses here.
            unsafe { libc::dup2(null.as_fd().as_raw_fd(), stream) };
        }
    }
    let _ = std::env::set_current_dir("/");
    let mut word = [0];
    let told = hears.read(&mut word).is_ok_and(|n| n == 1);
    if (told && word[0] == GONE) || !is_there(dir) {
        return 0;
    }
    match by.unmount(dir) {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("outrider-lab: cannot unmount {}: {e}", dir.display());
            1
        }
    }
}
