//! How much memory the page cache may still take: the cgroups' limits, the machine's own reserve and
//! the pressure that others feel.
//!
//! A process is charged to its own cgroup and to all of its ancestors, so the smallest headroom on that
//! way counts, and so does `MemAvailable`, which is the machine's. Both hierarchies are read: v1's memory
//! controller and v2's, whichever has a limit.
//!
//! [`MemorySources`] resolves the paths once and can then be read every few milliseconds (some 20 µs per
//! level). A process that is moved to another cgroup needs a new one.

use std::path::{Path, PathBuf};

use crate::device::{Mount, mounts};
use crate::text;

/// A limit at least this large is v1's way to say that there is none (`PAGE_COUNTER_MAX`, rounded to pages
/// of any size).
const NO_LIMIT: u64 = i64::MAX as u64 / 2;

/// Generation of the control group interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// `memory.limit_in_bytes` and friends.
    V1,
    /// `memory.max` and friends.
    V2,
}

/// One cgroup with a memory limit. All numbers are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Its directory.
    pub path: PathBuf,
    /// Which interface it has.
    pub version: CgroupVersion,
    /// The limit; in v2 the smaller of `memory.max` and `memory.high`.
    pub limit: u64,
    /// What is charged now, page cache included.
    pub usage: u64,
    /// Page cache on the inactive list: the first to be reclaimed.
    pub inactive_file: u64,
    /// Page cache on the active list.
    pub active_file: u64,
    /// Of the page cache, what must be written back before it can be reclaimed.
    pub dirty: u64,
    /// Of the page cache, what processes have in their page tables: their programs' text above all.
    pub mapped: u64,
}

impl CgroupMemory {
    /// Bytes that can be charged before anything has to be reclaimed.
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.usage)
    }

    /// Bytes that the page cache can take if all clean cache charged here is given up for it.
    pub fn headroom(&self) -> u64 {
        let clean = (self.inactive_file + self.active_file).saturating_sub(self.dirty);
        (self.free() + clean).min(self.limit)
    }
}

/// Memory as it was at one moment. All sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Memory {
    /// `/proc/meminfo` can't be read (no /proc, or one mounted with subset=pid): what the machine has is an estimate.
    pub estimated: bool,
    /// `MemTotal`.
    pub total: u64,
    /// `MemAvailable`: what programs and cache may take without swapping.
    pub available: u64,
    /// `MemFree`.
    pub free: u64,
    /// The cgroups of this process that have a limit, innermost first.
    pub cgroups: Vec<CgroupMemory>,
    /// Share of the last ten seconds, in per cent, in which some task waited for memory; the larger of
    /// the machine's and the own v2 cgroup's. `None` where the kernel keeps no such account.
    pub psi_some_avg10: Option<f64>,
}

impl Memory {
    /// The cgroup with the least headroom.
    pub fn tightest(&self) -> Option<&CgroupMemory> {
        self.cgroups.iter().min_by_key(|c| c.headroom())
    }

    /// Bytes that the page cache may take: the smaller of `MemAvailable` and the least headroom.
    pub fn headroom(&self) -> u64 {
        self.tightest()
            .map_or(self.available, |c| c.headroom().min(self.available))
    }

    /// Bytes that can be used before the kernel has to reclaim any. The machine keeps a part of `MemFree` free by itself, a sixteenth of all memory
    /// at most.
    pub fn unused(&self) -> u64 {
        let machine = self.free.saturating_sub(self.total / 16);
        let groups = self.cgroups.iter().map(CgroupMemory::free);
        groups.fold(machine, u64::min)
    }

    /// What processes of the group with the least headroom have mapped of the page cache; 0 without a group.
    pub fn mapped(&self) -> u64 {
        self.tightest().map_or(0, |c| c.mapped)
    }

    /// Bytes of the memory that counts: the smaller of `MemTotal` and the smallest limit.
    pub fn limit(&self) -> u64 {
        let smallest = self.cgroups.iter().map(|c| c.limit).min();
        smallest.map_or(self.total, |l| l.min(self.total))
    }
}

/// Where the numbers of one process are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemorySources {
    /// Directories of the cgroups, innermost first, v1 and v2.
    cgroups: Vec<(CgroupVersion, PathBuf)>,
    /// `memory.pressure` of the own v2 cgroup.
    pressure: Option<PathBuf>,
}

impl MemorySources {
    /// Finds the cgroups that the calling process is in.
    pub fn of_this_process() -> Self {
        let membership = text::read("/proc/self/cgroup").unwrap_or_default();
        Self::resolve(&membership, &mounts())
    }

    /// `membership` is the text of `/proc/PID/cgroup`.
    fn resolve(membership: &str, mounts: &[Mount]) -> Self {
        let mut sources = Self {
            cgroups: Vec::new(),
            pressure: None,
        };
        for line in membership.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let version = match controllers {
                "" => CgroupVersion::V2,
                c if c.split(',').any(|c| c == "memory") => CgroupVersion::V1,
                _ => continue,
            };
            let mount = mounts.iter().find(|m| match version {
                CgroupVersion::V2 => m.fs_type == "cgroup2",
                CgroupVersion::V1 => {
                    m.fs_type == "cgroup" && m.options.split(',').any(|o| o == "memory")
                }
            });
            let Some(mount) = mount else { continue };
            let levels = levels(mount, Path::new(path));
            if version == CgroupVersion::V2 {
                sources.pressure = levels.first().map(|l| l.join("memory.pressure"));
            }
            sources
                .cgroups
                .extend(levels.into_iter().map(|l| (version, l)));
        }
        sources
    }

    /// A file that stands for the memory that counts now, the same one for all processes that share it, for
    /// [`Peers`](crate::peers::Peers).
    pub fn shared_file(&self) -> PathBuf {
        match self.read().tightest() {
            Some(group) => group.path.join(match group.version {
                CgroupVersion::V1 => "memory.limit_in_bytes",
                CgroupVersion::V2 => "memory.max",
            }),
            None => PathBuf::from("/proc/meminfo"),
        }
    }

    /// Reads all numbers now. What cannot be read is estimated, absent or `None`.
    pub fn read(&self) -> Memory {
        let machine = machine();
        let psi = |path: &Path| some_avg10(&text::read(path).ok()?);
        let mut memory = Memory {
            psi_some_avg10: psi(Path::new("/proc/pressure/memory")),
            ..machine
        };
        if let Some(own) = self.pressure.as_deref().and_then(psi) {
            memory.psi_some_avg10 = Some(memory.psi_some_avg10.unwrap_or(0.0).max(own));
        }
        memory.cgroups = self
            .cgroups
            .iter()
            .filter_map(|(version, path)| read_cgroup(*version, path))
            .collect();
        memory
    }
}

/// The machine's own numbers: `/proc/meminfo`, or what sysfs says of its nodes, or what sysinfo(2) says.
fn machine() -> Memory {
    let meminfo = text::read("/proc/meminfo").unwrap_or_default();
    let kib = |name| field(&meminfo, name).map(|n| n * 1024);
    if let (Some(total), Some(available)) = (kib("MemTotal:"), kib("MemAvailable:")) {
        return Memory {
            total,
            available,
            free: kib("MemFree:").unwrap_or(0),
            ..Memory::default()
        };
    }
    let nodes = (0..NODES).filter_map(|n| {
        let path = format!("/sys/devices/system/node/node{n}/meminfo");
        text::read(path).ok()
    });
    of_nodes(nodes).unwrap_or_else(of_sysinfo)
}

/// Most nodes that are looked for.
const NODES: u32 = 64;

/// The sum of `/sys/devices/system/node/node*/meminfo`. What is available is reckoned as the kernel does for `MemAvailable`, but for the zones' watermarks,
/// which are not there.
fn of_nodes(nodes: impl Iterator<Item = String>) -> Option<Memory> {
    let mut memory = Memory {
        estimated: true,
        ..Memory::default()
    };
    let mut cache = 0;
    for node in nodes {
        // Each line begins with "Node" and a number.
        let lines: Vec<&str> = node
            .lines()
            .filter_map(|l| l.splitn(3, ' ').nth(2))
            .collect();
        let text = lines.join("\n");
        let kib = |name| field(&text, name).unwrap_or(0) * 1024;
        memory.total += kib("MemTotal:");
        memory.free += kib("MemFree:");
        cache += kib("Active(file):") + kib("Inactive(file):") + kib("SReclaimable:") / 2;
    }
    let kept = memory.total / 64;
    memory.available = (memory.free + cache).saturating_sub(kept).min(memory.total);
    (memory.total > 0).then_some(memory)
}

/// Of the page cache sysinfo(2) says nothing: a quarter of all memory is taken to be available at least.
fn of_sysinfo() -> Memory {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit).max(1);
    let [total, free, buffers] = [info.totalram, info.freeram, info.bufferram].map(|n| n * unit);
    Memory {
        estimated: true,
        total,
        available: (free + buffers).max(total / 4),
        free,
        ..Memory::default()
    }
}

/// Memory as the calling process has it now; [`MemorySources`] is cheaper for repeated reading.
pub fn memory() -> Memory {
    MemorySources::of_this_process().read()
}

/// The directories of the cgroup `path` and its visible ancestors, innermost first.
///
/// In a container the mount may show only a part of the hierarchy (`root`), and a process outside its
/// cgroup namespace's root has a path that starts with `/..`; both leave the mount point itself.
fn levels(mount: &Mount, path: &Path) -> Vec<PathBuf> {
    let inside = path
        .strip_prefix(&mount.root)
        .unwrap_or_else(|_| path.strip_prefix("/").unwrap_or(path));
    if inside.starts_with("..") {
        return vec![mount.mount_point.clone()];
    }
    let mut all: Vec<_> = inside
        .ancestors()
        .map(|a| mount.mount_point.join(a))
        .collect();
    // Where the path is of a hierarchy that this mount does not show, the mount point is all there is.
    all.retain(|dir| rustix::fs::stat(dir).is_ok());
    all
}

fn read_cgroup(version: CgroupVersion, path: &Path) -> Option<CgroupMemory> {
    let (limit, usage) = match version {
        CgroupVersion::V1 => (
            text::read_number(path.join("memory.limit_in_bytes"))?,
            text::read_number(path.join("memory.usage_in_bytes"))?,
        ),
        CgroupVersion::V2 => {
            // "max" is not a number: no limit of that kind.
            let max = text::read_number(path.join("memory.max"));
            let high = text::read_number(path.join("memory.high"));
            let limit = [max, high].into_iter().flatten().min()?;
            (limit, text::read_number(path.join("memory.current"))?)
        }
    };
    if limit >= NO_LIMIT {
        return None;
    }
    let stat = text::read(path.join("memory.stat")).unwrap_or_default();
    let prefix = if version == CgroupVersion::V1 {
        "total_"
    } else {
        ""
    };
    let of = |name: &str| field(&stat, &format!("{prefix}{name}"));
    let (dirty, mapped) = if version == CgroupVersion::V1 {
        (of("dirty"), of("mapped_file"))
    } else {
        (of("file_dirty"), of("file_mapped"))
    };
    Some(CgroupMemory {
        path: path.to_owned(),
        version,
        limit,
        usage,
        inactive_file: of("inactive_file").unwrap_or(0),
        active_file: of("active_file").unwrap_or(0),
        dirty: dirty.unwrap_or(0),
        mapped: mapped.unwrap_or(0),
    })
}

/// The number that follows `name` on its line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|l| l.split_once(char::is_whitespace))
        .find(|(n, _)| *n == name)
        .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok())
}

/// `avg10` of the line `some avg10=0.12 avg60=… total=…`.
fn some_avg10(text: &str) -> Option<f64> {
    let some = text.lines().find(|l| l.starts_with("some "))?;
    some.split_whitespace()
        .find_map(|w| w.strip_prefix("avg10="))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let memory = memory();
        assert!(memory.total > 0 && memory.available <= memory.total);
        assert!(memory.headroom() <= memory.available);
        assert!(memory.limit() > 0);
    }

    #[test]
    fn estimates_are_near_what_the_kernel_says() {
        let memory = memory();
        let nodes = text::read("/sys/devices/system/node/node0/meminfo");
        let other = of_sysinfo();
        assert!(
            other.estimated
                && other.available > 0
                && other.total.abs_diff(memory.total) < memory.total / 8
        );
        // Where there is one node only.
        if let Ok(node) = nodes
            && let Some(other) = of_nodes([node].into_iter())
            && other.total.abs_diff(memory.total) < memory.total / 8
        {
            assert!(
                other.available.abs_diff(memory.available) < memory.total / 4,
                "{other:?} {memory:?}"
            );
        }
        let node = "Node 0 MemTotal:  100 kB\nNode 0 MemFree:  10 kB\nNode 0 Inactive(file): 20 kB"
            .to_owned();
        let two = of_nodes([node.clone(), node].into_iter()).unwrap();
        assert_eq!((two.total, two.free), (200 << 10, 20 << 10));
        assert_eq!(two.available, (60 << 10) - (200 << 10) / 64);
        assert_eq!(of_nodes([].into_iter()), None);
    }

    #[test]
    fn fields_and_pressure() {
        assert_eq!(
            field("MemTotal:   5 kB\nMemFree: 3 kB", "MemFree:"),
            Some(3)
        );
        assert_eq!(field("a 1\nab 2", "ab"), Some(2));
        assert_eq!(
            some_avg10("some avg10=1.50 avg60=0 total=0\nfull avg10=9"),
            Some(1.5)
        );
        assert_eq!(some_avg10(""), None);
    }

    #[test]
    fn smallest_headroom_counts() {
        let group = |limit, usage, inactive_file| CgroupMemory {
            path: PathBuf::new(),
            version: CgroupVersion::V2,
            limit,
            usage,
            inactive_file,
            active_file: 0,
            dirty: 0,
            mapped: 30,
        };
        let memory = Memory {
            total: 1000,
            available: 500,
            free: 80,
            cgroups: vec![group(300, 290, 40), group(200, 100, 0)],
            ..Memory::default()
        };
        assert_eq!(memory.headroom(), 50);
        assert_eq!(memory.unused(), 10);
        let alone = Memory {
            cgroups: Vec::new(),
            ..memory.clone()
        };
        assert_eq!(alone.unused(), 80 - 1000 / 16);
        assert_eq!(memory.mapped(), 30);
        assert_eq!(memory.limit(), 200);
    }
}
