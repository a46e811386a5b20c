//! What the measurements are made on.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use crate::results::Machine;

/// UTC, RFC 3339.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The machine; `fs` is the file system on the measured disks.
pub fn describe(fs: &str, program: &Path) -> Machine {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Machine {
        at: now(),
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        cpu: field(&cpuinfo, "model name", ':')
            .unwrap_or("unknown")
            .to_owned(),
        cpus: processors(),
        memory: kilobytes(&meminfo, "MemTotal").unwrap_or(0) * 1024,
        os: field(&os, "PRETTY_NAME", '=')
            .unwrap_or("unknown")
            .trim_matches('"')
            .to_owned(),
        version: version(program),
        fs: fs.to_owned(),
        load: load
            .split(' ')
            .next()
            .and_then(|l| l.parse().ok())
            .unwrap_or(0.0),
    }
}

/// The kind of machine, for the name of a directory: `vm-2core`.
pub fn kind() -> String {
    format!(
        "{}-{}core",
        if is_virtual() { "vm" } else { "metal" },
        processors()
    )
}

/// Whether it is a virtual machine.
pub fn is_virtual() -> bool {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = field(&cpuinfo, "flags", ':').unwrap_or_default();
    flags.split(' ').any(|f| f == "hypervisor")
}

/// A number of kB in the text of /proc/meminfo.
pub fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name, ':')?.split(' ').next()?.parse().ok()
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// What the commit that a program was built in is called, or else the version of this one.
fn version(program: &Path) -> String {
    let described = Command::new("git")
        .arg("-C")
        .arg(program.parent().unwrap_or(Path::new("/")))
        .args(["describe", "--always", "--dirty", "--tags"])
        .stdin(Stdio::null())
        .output();
    match described {
        Ok(out) if out.status.success() => String::from_utf8_lossy(&out.stdout).trim().to_owned(),
        _ => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The first value of `name` in lines of `name` and value with `between` between them.
fn field<'a>(text: &'a str, name: &str, between: char) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(between)?;
        (key.trim() == name).then(|| value.trim())
    })
}
