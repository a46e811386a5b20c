//! A disk that the measuring engine has for itself: what `outrider-lab disk` does, without its words on standard
//! output, and taken down when the value goes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::args::{FileSystem, UpArgs};
use super::blockdev::Loop;
use super::control::{self, Answer, Ask};
use super::server::Counters;
use super::state::Place;
use super::{INTERRUPTED, bring_up, down};
use crate::output::{Context, Failure, Outcome};
use outrider_sim::device::{Device, Request};
use outrider_sim::model::{Kind, Model};

/// How often a disk that is in use is tried to be made cold, and the time between.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// A disk with a file system, or a bare one.
#[derive(Debug)]
pub struct Lease {
    dir: PathBuf,
    place: Place,
    device: Loop,
    pid: u32,
}

/// Whether this process was asked to end.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

impl Lease {
    /// Brings a disk up on `dir`, without delays, so that it can be filled.
    pub fn up(dir: &Path, size: u64, fs: FileSystem) -> Outcome<Self> {
        let state = bring_up(&UpArgs {
            model: "off".to_owned(),
            size: Some(size),
            mount: dir.to_owned(),
            fs,
            readahead_kb: 128,
            scale: None,
            image: None,
        })?;
        Ok(Self {
            place: Place::of(&state.dir),
            dir: state.dir,
            device: Loop(state.device.unwrap_or_default()),
            pid: state.pid,
        })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The block device.
    pub fn device(&self) -> PathBuf {
        self.device.path()
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Changes the model to what `words` say: a preset with its parameters.
    pub fn model(&self, words: &str) -> Outcome {
        control::ask(&self.place, &Ask::Model(words.to_owned())).map(|_| ())
    }

    /// Sets the queue up for `words` and the read-ahead, KiB, which the kernel copies whenever a file is opened. With 0, what
    /// ext4 reads ahead of inodes is off, too, until the disk is made cold.
    pub fn tune(&self, words: &str, readahead_kb: u32) -> Outcome {
        let rotational = parsed(words)?.kind == Kind::Head;
        let what = || format!("cannot set {} up", self.device.path().display());
        let set = self.device.tune(rotational, readahead_kb).doing(what())?;
        if set != readahead_kb {
            return Err(Failure::system(format!(
                "{}: read_ahead_kb was set to {readahead_kb} and is {set}",
                what()
            )));
        }
        let inodes = format!("/sys/fs/ext4/loop{}/inode_readahead_blks", self.device.0);
        if readahead_kb == 0 && Path::new(&inodes).exists() {
            fs::write(&inodes, "0").doing(&inodes)?;
        }
        // Btrfs reads ahead by the number of a backing device of its own, which each mount makes anew.
        for bdi in btrfs_devices(self.device) {
            fs::write(bdi.join("read_ahead_kb"), readahead_kb.to_string()).doing(bdi.display())?;
        }
        Ok(())
    }

    /// Drops all that the kernel has cached of the disk; its counters begin at zero.
    pub fn cold(&self) -> Outcome {
        // Processes that were killed may still be letting go of their files.
        let mut tries = 0;
        loop {
            match super::cold(&self.dir) {
                Err(_) if tries < TRIES && !interrupted() => tries += 1,
                done => return done,
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// What the disk has done since it was made cold or `reset`.
    pub fn counters(&self, reset: bool) -> Outcome<Counters> {
        match control::ask(&self.place, &Ask::Stats { reset })? {
            Answer::Stats(report) => Ok(report.1),
            _ => Err(Failure::system("the disk's server does not understand")),
        }
    }

    /// Records requests from now on.
    pub fn trace(&self, file: &Path) -> Outcome {
        control::ask(&self.place, &Ask::TraceStart(file.to_owned())).map(|_| ())
    }

    /// Ends the recording; the file is complete then.
    pub fn end_trace(&self) -> Outcome {
        super::stop_trace(&self.place).map(|_| ())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if down(&self.dir, false, false).is_err()
            && let Err(failure) = down(&self.dir, false, true)
        {
            crate::output::complain(&failure.message);
        }
    }
}

/// The parameters that `words` give.
fn parsed(words: &str) -> Outcome<Model> {
    let change = Model::default().change(words).map_err(Failure::usage)?;
    Ok(change.model.unwrap_or_default())
}

/// The backing devices of the btrfs on `device`; none if another file system is on it.
fn btrfs_devices(device: Loop) -> Vec<PathBuf> {
    let known = fs::read_dir("/sys/fs/btrfs")
        .into_iter()
        .flatten()
        .flatten();
    known
        .map(|e| e.path())
        .filter(|p| p.join(format!("devices/loop{}", device.0)).exists())
        .map(|p| p.join("bdi"))
        .collect()
}

/// Checks a model's words.
pub fn check_model(words: &str) -> Result<(), String> {
    Model::default().change(words).map(|_| ())
}

/// Whether the model has a head that moves.
pub fn has_head(words: &str) -> bool {
    parsed(words).is_ok_and(|m| m.kind == Kind::Head)
}

/// What a model promises: reads of `len` bytes at `offsets`, `depth` of them under way at any time, in virtual time.
/// When each of them is done, ns, in order of time. Answers are not sent early here: the time is the device's own.
pub fn promised(words: &str, offsets: &[u64], len: u32, depth: usize) -> Outcome<Vec<u64>> {
    let mut model = parsed(words)?;
    model.early_us = 0.0;
    let mut device = Device::new(model);
    let mut done = Vec::with_capacity(offsets.len());
    let mut next = offsets.iter().enumerate();
    let mut submit = |device: &mut Device, now: u64| {
        if let Some((tag, &offset)) = next.next() {
            device.submit(Request {
                tag: tag as u64,
                offset,
                len,
                write: false,
                arrived: now,
            });
        }
    };
    for _ in 0..depth {
        submit(&mut device, 0);
    }
    while let Some(now) = device.next_event() {
        device.advance(now);
        while device.take_due(now).is_some() {
            done.push(now);
            submit(&mut device, now);
        }
    }
    Ok(done)
}

/// Takes down disks on directories beside `dir` whose names begin as its does, up to the process id that ends it, where
/// that process is no more: what a command left that was killed.
pub fn sweep(dir: &Path) {
    let name = |d: &Path| {
        d.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let ours = name(dir);
    let stem = ours.trim_end_matches(|c: char| c.is_ascii_digit());
    for place in Place::all() {
        let Some(state) = place.load() else { continue };
        let theirs = name(&state.dir);
        let Some(pid) = theirs
            .strip_prefix(stem)
            .and_then(|p| p.parse::<u32>().ok())
        else {
            continue;
        };
        let beside = state.dir.parent() == dir.parent();
        if beside && !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = down(&state.dir, false, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_promises_latency_and_transfer() {
        // One at a time: 80 µs and 4096 / 1400 µs each.
        let one = promised("nvme", &[0, 1 << 20, 2 << 20], 4096, 1).unwrap();
        assert_eq!(one, [82_925, 165_850, 248_775]);
        // As many as there are lanes: the latencies pass together.
        let all = promised("nvme", &[0; 32], 4096, 32).unwrap();
        assert_eq!(all.last(), Some(&(80_000 + 32 * 2_925)));
    }
}
