//! Device models that `outrider probe --save` leaves for `outrider run`.
//!
//! One small file, because a model is no setting: nobody writes it by hand, and whatever it says is corrected by the first requests. A file system is
//! known by the number that it gives itself (`f_fsid` of statfs(2)), most often its UUID, so that it is found again under another device number.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};

use outrider_core::device::DeviceModel;
use outrider_core::profile::store;
use outrider_sys::device::file_system_id;
use serde::{Deserialize, Serialize};

use crate::config::base_directory;
use crate::output::{Failure, show};

/// What is kept of a device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Saved {
    /// Microseconds before a request's first byte.
    latency_us: f64,
    bandwidth_bytes_per_s: f64,
}

/// By file system, in hexadecimal.
type Saveds = BTreeMap<String, Saved>;

/// `$XDG_STATE_HOME/outrider/devices.json`, `~/.local/state` where that is not set.
fn place() -> Option<PathBuf> {
    Some(base_directory("XDG_STATE_HOME", ".local/state")?.join("outrider/devices.json"))
}

/// Bytes of the file at most: more models than a machine has file systems.
const MOST: u64 = 1 << 20;

/// All that is kept; nothing where that is not to be understood. Nobody waits for what is no regular file.
fn read(path: &Path) -> io::Result<Saveds> {
    let file = store::open(path)?;
    let mut text = Vec::new();
    file.take(MOST).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text).unwrap_or_default())
}

/// The models by file system. What can't be read is not known: it will be measured.
pub fn load() -> HashMap<u64, DeviceModel> {
    let saved = place().and_then(|path| read(&path).ok());
    let entry = |(id, s): (String, Saved)| {
        let id = u64::from_str_radix(&id, 16).ok()?;
        let model = DeviceModel::saved(s.latency_us, s.bandwidth_bytes_per_s / 1e6)?;
        Some((id, model))
    };
    saved
        .unwrap_or_default()
        .into_iter()
        .filter_map(entry)
        .collect()
}

/// Keeps the model of the file system on which `file` lies: microseconds and bytes per second. Returns where.
pub fn save(
    file: &fs::File,
    latency_us: f64,
    bandwidth_bytes_per_s: f64,
) -> Result<PathBuf, Failure> {
    let id = file_system_id(file).ok_or_else(|| {
        Failure::system("this file system has no number by which it could be known again")
    })?;
    let path = place().ok_or_else(|| {
        Failure::usage("--save: neither XDG_STATE_HOME nor HOME says where; accepted is an absolute path in either")
    })?;
    let mut all = match read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Saveds::new(),
        other => other.map_err(|e| failed(&path, &e))?,
    };
    let saved = Saved {
        latency_us,
        bandwidth_bytes_per_s,
    };
    all.insert(format!("{id:016x}"), saved);
    let text = serde_json::to_string_pretty(&all).map_err(|e| failed(&path, &e.into()))?;
    let put = store::put(&path, &(text + "\n"));
    put.map_err(|e| failed(&path, &e.into()))?;
    Ok(path)
}

fn failed(path: &Path, e: &io::Error) -> Failure {
    Failure::system(format!("{}: {e}", show(path)))
}
