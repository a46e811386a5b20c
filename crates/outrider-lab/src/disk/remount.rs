//! Remounting a disk, so that nothing of it is cached any more.
//!
//! It is done by the command that wants it, never by the disk's server (see [`super::control`]), and under the
//! disk's lock. The loop device would go away with its last user, and the disk's bytes with it; so it is told to
//! stay meanwhile. A mark is left in the disk's place until everything is as before: if the command dies, the next
//! one finds the mark and finishes.

use std::fs::{self, File};
use std::path::Path;

use outrider_sys::device;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::blockdev::{self, Loop};
use super::control::{self, Ask};
use super::state::{BUSY_PATIENCE, Place, State, unmount_patiently};
use crate::output::{Context, Failure, Outcome};

/// Remounts at full speed and counts from zero. The caller holds the lock.
pub fn cold(place: &Place) -> Outcome {
    let disk = Open::of(place)?;
    disk.begin()?;
    let remounted = disk.remount();
    // Also after a failure nothing must stay as it is only for the time of the remount.
    disk.end().and(remounted)
}

/// Finishes what a command that died has begun. The caller holds the lock.
pub fn recover(place: &Place) -> Outcome {
    if !place.remounting().exists() {
        return Ok(());
    }
    let disk = Open::of(place)?;
    disk.begin()?;
    let mounted = if disk.formatted() && blockdev::mounts_of(disk.device).is_empty() {
        mount_disk(&disk.state.dir, &disk.state.fs, disk.device)
    } else {
        Ok(())
    };
    disk.end().and(mounted)
}

/// A disk whose loop device is held open.
struct Open<'a> {
    place: &'a Place,
    state: State,
    device: Loop,
    node: File,
}

impl<'a> Open<'a> {
    fn of(place: &'a Place) -> Outcome<Self> {
        let unknown = || Failure::system("the disk is not up yet");
        let state = place.load().ok_or_else(unknown)?;
        let device = Loop(state.device.ok_or_else(unknown)?);
        let node = device.open().doing(device.path().display())?;
        // Its number may belong to somebody else by now.
        if !place.loops().contains(&device) {
            return Err(Failure::system("the disk's loop device is gone"));
        }
        Ok(Self {
            place,
            state,
            device,
            node,
        })
    }

    fn formatted(&self) -> bool {
        self.state.fs != "none"
    }

    fn begin(&self) -> Outcome {
        let mark = self.place.remounting();
        File::create(&mark).doing(mark.display())?;
        let begun = control::ask(self.place, &Ask::Hurry)
            .map(|_| ())
            .and_then(|()| {
                if !self.formatted() {
                    return Ok(());
                }
                blockdev::set_goes_away(&self.node, false).doing(self.device.path().display())
            });
        if begun.is_err() {
            let _ = self.end();
        }
        begun
    }

    fn remount(&self) -> Outcome {
        let dir = &self.state.dir;
        let flush = || blockdev::flush_buffers(&self.node).doing(self.device.path().display());
        if !self.formatted() {
            return flush();
        }
        match unmount_patiently(dir) {
            Err(Errno::BUSY) => {
                return Err(Failure::system(format!(
                    "{} is in use; end the programs that work in it",
                    dir.display()
                )));
            }
            done => done.doing(format!("cannot unmount {}", dir.display()))?,
        }
        // What is mounted elsewhere, too, is one file system with one cache, which an unmount here leaves as it is.
        let is_gone = blockdev::wait_until(BUSY_PATIENCE, || {
            blockdev::unmount_elsewhere(self.device) && !self.device.is_claimed()
        });
        let holders = if is_gone { Vec::new() } else { self.holders() };
        flush()?;
        mount_disk(dir, &self.state.fs, self.device)?;
        match is_gone {
            true => Ok(()),
            false => Err(Failure::system(still_cached(dir, &holders))),
        }
    }

    /// Processes that have the disk mounted in mount namespaces of their own: number and name.
    fn holders(&self) -> Vec<(u32, String)> {
        let number = self.device.number();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut found: Vec<(u32, String)> = processes
            .filter_map(|p| p.file_name().to_str()?.parse().ok())
            .filter(|pid| device::mounts_of(*pid).iter().any(|m| m.dev == number))
            .map(|pid| {
                let name = fs::read_to_string(format!("/proc/{pid}/comm"));
                (pid, name.unwrap_or_default().trim_end().to_owned())
            })
            .collect();
        found.sort_unstable();
        found
    }

    /// The mark goes last and only if all is as before.
    fn end(&self) -> Outcome {
        let goes_away = if self.formatted() {
            blockdev::set_goes_away(&self.node, true).doing(self.device.path().display())
        } else {
            Ok(())
        };
        control::ask(self.place, &Ask::Calm)?;
        goes_away?;
        fs::remove_file(self.place.remounting()).doing("cannot keep state")
    }
}

/// Why a disk is as warm as before, and who keeps it so, as far as that is known.
fn still_cached(dir: &Path, holders: &[(u32, String)]) -> String {
    const NAMED: usize = 4;
    let mut names: Vec<String> = holders
        .iter()
        .take(NAMED)
        .map(|(pid, name)| format!("process {pid} ({name})"))
        .collect();
    if holders.len() > NAMED {
        names.push(format!("{} more", holders.len() - NAMED));
    }
    let dir = dir.display();
    match names.is_empty() {
        true => format!(
            "{dir} is not cold: something that no process shows keeps its file system mounted, such as a mount namespace that is bound to a file; \
             end what does"
        ),
        false => format!(
            "{dir} is not cold: its file system is mounted in another mount namespace, too, and stays cached; end {}",
            names.join(", ")
        ),
    }
}

/// Mounts the device. Not even reading the disk shall write to it: no access times.
pub fn mount_disk(dir: &Path, fs: &str, device: Loop) -> Outcome {
    mount(device.path(), dir, fs, MountFlags::NOATIME, None).doing(format!(
        "cannot mount {} on {}",
        device.path().display(),
        dir.display()
    ))
}
