//! What is known of a disk between two commands, and how to take it down in whatever state it is.
//!
//! A disk belongs to the directory that it is mounted on. Its loop device is recognised by the name of
//! the file behind it, which holds the directory's key, so that nothing is left behind even when the
//! server and `/run` are gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use serde::{Deserialize, Serialize};

use super::blockdev::{self, Loop};
use crate::output::{Context, Failure, Outcome};

/// Where the state of all disks lies: memory, emptied by a restart as the disks are.
const ROOT: &str = "/run/outrider-lab";
/// How the files behind our loop devices begin.
const PREFIX: &str = "outrider-lab.";
/// How directories begin that are being removed; keys don't begin so.
const FORGOTTEN: char = '.';
/// How long the kernel and the server get to let go.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same where programs may hold on to the disk.
const LAZY_PATIENCE: Duration = Duration::from_millis(500);
/// How long unmounting is tried again while the kernel says that the disk is in use: programs that have
/// just ended may not have let go yet.
pub const BUSY_PATIENCE: Duration = Duration::from_secs(3);
/// How long a server that was told to end waits for a command that works on its disk.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// What `up` decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    /// The directory.
    pub dir: PathBuf,
    /// The directory was made by `up`.
    pub made_dir: bool,
    /// The image's file; none when it is in memory only.
    pub image: Option<PathBuf>,
    /// The image's file was made by `up`.
    pub made_image: bool,
    /// Bytes.
    pub size: u64,
    /// ext4, xfs, btrfs or none.
    pub fs: String,
    /// The server.
    pub pid: u32,
    /// The loop device, once there is one.
    pub device: Option<u32>,
    /// Its read-ahead, KiB.
    pub readahead_kb: u32,
}

/// The name under which a directory's disk is kept.
#[derive(Clone, Debug)]
pub struct Place {
    key: String,
}

/// Holds a disk for one command at a time. Who lets go of it when nothing of the disk is left removes its file; nobody
/// else may, or two commands could hold a lock each.
#[derive(Debug)]
pub struct Lock {
    place: Place,
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if !self.place.exists() {
            let _ = fs::remove_file(self.place.lock_path());
            let _ = fs::remove_dir(ROOT);
            return;
        }
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        // The server may have ended in between, and found the lock taken.
        if !self.place.exists() {
            self.place.tidy();
        }
    }
}

impl Place {
    /// The place of the disk on `dir`, an absolute path.
    pub fn of(dir: &Path) -> Self {
        // FNV-1a over the whole path keeps places apart; the last name is for people. Short: the path of a
        // socket has 107 bytes.
        let hash = dir
            .as_os_str()
            .as_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
                (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3)
            });
        let name: String = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c))
            .take(24)
            .collect();
        Self {
            key: format!("{name}-{hash:016x}"),
        }
    }

    /// The place with this key.
    pub fn with_key(key: &str) -> Self {
        Self {
            key: key.to_owned(),
        }
    }

    /// All places with a state or a loop device.
    pub fn all() -> Vec<Self> {
        let states = fs::read_dir(ROOT).into_iter().flatten().flatten();
        let mut keys: Vec<String> = states
            .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
            .filter_map(|e| e.file_name().into_string().ok())
            .filter(|name| !name.starts_with(FORGOTTEN))
            .chain(Loop::all().iter().filter_map(|(_, file)| {
                let name = std::str::from_utf8(file).ok()?;
                let key = name.trim_start_matches('/').strip_prefix(PREFIX)?;
                Some(key.trim_end_matches(" (deleted)").to_owned())
            }))
            .collect();
        keys.sort();
        keys.dedup();
        keys.iter().map(|k| Self::with_key(k)).collect()
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The name of the disk's file.
    pub fn file_name(&self) -> String {
        format!("{PREFIX}{}", self.key)
    }

    fn path(&self, what: &str) -> PathBuf {
        Path::new(ROOT).join(&self.key).join(what)
    }

    fn lock_path(&self) -> PathBuf {
        Path::new(ROOT).join(format!("{}.lock", self.key))
    }

    /// The server's socket.
    pub fn control(&self) -> PathBuf {
        self.path("control")
    }

    /// The server's complaints.
    pub fn log(&self) -> PathBuf {
        self.path("log")
    }

    /// Makes the place for state.
    pub fn make(&self) -> io::Result<()> {
        let mut maker = fs::DirBuilder::new();
        maker.recursive(true).mode(0o700);
        maker.create(self.path(""))
    }

    /// Waits until no other command works on this disk.
    pub fn lock(&self) -> io::Result<Lock> {
        let lock = self.lock_with(FlockOperation::LockExclusive)?;
        lock.ok_or_else(|| Errno::AGAIN.into())
    }

    /// The same, for at most [`LOCK_PATIENCE`]; none if another command still works on it.
    pub fn lock_patiently(&self) -> io::Result<Option<Lock>> {
        let mut got = Ok(None);
        blockdev::wait_until(LOCK_PATIENCE, || {
            got = self.lock_with(FlockOperation::NonBlockingLockExclusive);
            !matches!(got, Ok(None))
        });
        got
    }

    fn lock_with(&self, operation: FlockOperation) -> io::Result<Option<Lock>> {
        let path = self.lock_path();
        loop {
            let mut maker = fs::DirBuilder::new();
            maker.recursive(true).mode(0o700).create(ROOT)?;
            let opened = OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path);
            let file = match opened {
                // The last of the other disks took the directory with it just now.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            match rustix::fs::flock(&file, operation) {
                Err(Errno::INTR) => return Err(io::ErrorKind::Interrupted.into()),
                Err(Errno::AGAIN) => return Ok(None),
                done => done?,
            }
            // The holder before us may have removed the file.
            let ours = file.metadata()?;
            if fs::metadata(&path).is_ok_and(|m| m.ino() == ours.ino()) {
                let place = self.clone();
                return Ok(Some(Lock { place, file }));
            }
        }
    }

    /// Says for as long as the file lives that the server does.
    pub fn claim(&self) -> io::Result<File> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.path("alive"))?;
        // Whoever looks whether we live holds it for a moment.
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// The mark of a command that remounts the disk; left behind by one that died meanwhile.
    pub fn remounting(&self) -> PathBuf {
        self.path("remounting")
    }

    /// Whether the server lives.
    pub fn alive(&self) -> bool {
        let Ok(file) = File::open(self.path("alive")) else {
            return false;
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// What `up` decided, if that was written.
    pub fn load(&self) -> Option<State> {
        serde_json::from_slice(&fs::read(self.path("state.json")).ok()?).ok()
    }

    /// Writes what `up` decided.
    pub fn save(&self, state: &State) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(state)?;
        let new = self.path("state.new");
        fs::write(&new, text)?;
        fs::rename(new, self.path("state.json"))
    }

    /// Loop devices over this disk.
    pub fn loops(&self) -> Vec<Loop> {
        let wanted = format!("/{}", self.file_name());
        Loop::all()
            .into_iter()
            .filter(|(_, file)| {
                let file = file.strip_suffix(b" (deleted)").unwrap_or(file);
                file == wanted.as_bytes()
            })
            .map(|(device, _)| device)
            .collect()
    }

    /// Whether anything of the disk is left.
    pub fn exists(&self) -> bool {
        self.path("").exists() || !self.loops().is_empty()
    }

    /// Unmounts the disk and detaches its loop device. A file system in use is left as it is, unless
    /// `lazy`: then it vanishes from the tree now, and its device when the last user is gone.
    pub fn release(&self, lazy: bool) -> Outcome {
        for device in self.loops() {
            // While it is open, its number can't come to belong to another disk.
            let node = match device.open() {
                // It is going already.
                Err(e) if e.raw_os_error() == Some(libc::ENXIO) => continue,
                node => node.doing(device.path().display())?,
            };
            if !self.loops().contains(&device) {
                continue;
            }
            for dir in blockdev::mounts_of(device) {
                let unmounted = if lazy {
                    unmount(&dir, UnmountFlags::empty())
                } else {
                    unmount_patiently(&dir)
                };
                match unmounted {
                    Err(Errno::BUSY) if lazy => {
                        unmount(&dir, UnmountFlags::DETACH).doing(dir.display())?;
                    }
                    Err(Errno::BUSY) => {
                        return Err(Failure::system(format!(
                            "{} is in use; end the programs that work in it, or use --lazy",
                            dir.display()
                        )));
                    }
                    // Somebody else was faster.
                    Err(Errno::INVAL | Errno::NOENT) => {}
                    done => done.doing(format!("cannot unmount {}", dir.display()))?,
                }
            }
            blockdev::detach(&node).doing(format!("cannot detach {}", device.path().display()))?;
        }
        Ok(())
    }

    /// Takes everything down, whatever is left of it. The caller holds the lock.
    pub fn tear_down(&self, keep_image: bool, lazy: bool) -> Outcome {
        let state = self.load();
        self.release(lazy)?;
        let patience = if lazy { LAZY_PATIENCE } else { PATIENCE };
        let gone = blockdev::wait_until(patience, || {
            // Another namespace's copy of the mount keeps it, too.
            self.loops().into_iter().all(blockdev::unmount_elsewhere) && self.loops().is_empty()
        });
        let ended = !gone || blockdev::wait_until(PATIENCE, || !self.alive());
        if !gone && lazy {
            // The server stays until the last user is gone, and then cleans up by itself.
            return Ok(());
        }
        if !gone {
            return Err(Failure::system("the loop device is still in use"));
        }
        if !ended {
            self.kill(libc::SIGKILL);
            blockdev::wait_until(PATIENCE, || !self.alive());
        }
        self.forget();
        if let Some(state) = state
            && let Some(image) = state.image.filter(|_| state.made_image && !keep_image)
        {
            match fs::remove_file(&image) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::system(format!("{}: {e}", image.display())));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends the server a signal, if it lives.
    pub fn kill(&self, signal: i32) {
        // Only while the lock is held by somebody is the number known to be the server's.
        if let Some(state) = self.load().filter(|s| s.pid > 1 && self.alive()) {
            // SAFETY: a plain system call.
            unsafe { libc::kill(state.pid as i32, signal) };
        }
    }

    /// Removes what is written about the disk, and the directory if `up` made it and it is empty.
    pub fn forget(&self) {
        if let Some(state) = self.load().filter(|s| s.made_dir) {
            let _ = fs::remove_dir(&state.dir);
        }
        // All at once: the server does this without the lock, and others do too.
        let name = format!("{FORGOTTEN}{}.{}", self.key, std::process::id());
        let forgotten = Path::new(ROOT).join(name);
        let _ = fs::remove_dir_all(&forgotten);
        let _ = fs::rename(self.path(""), &forgotten);
        let _ = fs::remove_dir_all(&forgotten);
    }

    /// The same for the server, which has no lock: a command that works on the disk at the moment has it.
    pub fn forget_at_end(&self) {
        self.forget();
        self.tidy();
    }

    /// Removes the lock's file, if nothing of the disk is left and nobody holds the lock.
    fn tidy(&self) {
        let _ = self.lock_with(FlockOperation::NonBlockingLockExclusive);
    }
}

/// Unmounts `dir`, and tries for [`BUSY_PATIENCE`] if it is in use.
pub fn unmount_patiently(dir: &Path) -> rustix::io::Result<()> {
    let mut done = Err(Errno::BUSY);
    blockdev::wait_until(BUSY_PATIENCE, || {
        done = unmount(dir, UnmountFlags::empty());
        done != Err(Errno::BUSY)
    });
    done
}

/// The absolute path of a directory without looking into it: what is mounted there may be out of order.
pub fn absolute(dir: &Path) -> io::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return Ok(dir);
    };
    if name == ".." {
        return dir.canonicalize();
    }
    let plain = parent.canonicalize()?.join(name);
    if plain.is_symlink() {
        plain.canonicalize()
    } else {
        Ok(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_short_and_apart() {
        let long = format!("/mnt/{}", "x".repeat(250));
        let a = Place::of(Path::new(&long));
        let b = Place::of(Path::new(&format!("{long}/y")));
        assert!(a.control().as_os_str().len() < 108);
        assert_ne!(a.key(), b.key());
        assert_ne!(
            Place::of(Path::new("/a-b")).key(),
            Place::of(Path::new("/a/b")).key()
        );
    }
}
