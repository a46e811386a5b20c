//! Control groups: what bounds the memory of a run, counts its CPU time and ends all of it.
//!
//! Three things are wanted and each is taken from where this machine has it: a v2 hierarchy, even one without
//! controllers beside v1's, counts CPU time and kills; v2's or v1's memory controller bounds memory; v1's cpuacct counts
//! where there is no v2. The commands' groups are apart from those of their neighbours for CPU time, and the same for
//! memory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outrider_sys::device::mounts;

use crate::output::{Context, Failure, Outcome};

/// How our groups' names begin; the process id follows.
const PREFIX: &str = "outrider-lab.";
/// How long killed processes get to be gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the hierarchies are mounted, with the directory below which groups of ours are made.
#[derive(Clone, Debug, Default)]
pub struct Hierarchies {
    unified: Option<PathBuf>,
    memory_v1: Option<PathBuf>,
    cpuacct_v1: Option<PathBuf>,
}

impl Hierarchies {
    /// Those of this machine where groups can be made. What a lab that was killed left there is removed.
    pub fn find() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut found = Self::default();
        for mount in mounts() {
            let Some(at) = mount.mount_point.to_str() else {
                continue;
            };
            let options = &mount.options;
            let has = |name: &str| options.split(',').any(|o| o == name);
            match mount.fs_type.as_str() {
                // Not below our own group: there, a group with processes in it can't have controllers.
                "cgroup2" => found.unified = usable(Path::new(at)),
                // Below our own, so that its limit holds for the run too.
                "cgroup" if has("memory") => found.memory_v1 = usable(&below(at, &own, "memory")),
                "cgroup" if has("cpuacct") => {
                    found.cpuacct_v1 = usable(&below(at, &own, "cpuacct"));
                }
                _ => {}
            }
        }
        if let Some(root) = found.unified.as_ref().filter(|_| found.memory_v1.is_none()) {
            // Needed for limits; refused where there is no such controller or processes are in the way.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        found
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.unified, &self.memory_v1, &self.cpuacct_v1]
            .into_iter()
            .flatten()
    }

    /// Whether v2 bounds memory here.
    fn memory_v2(&self) -> Option<&PathBuf> {
        self.unified.as_ref().filter(|root| {
            fs::read_to_string(root.join("cgroup.subtree_control"))
                .is_ok_and(|s| s.split_whitespace().any(|c| c == "memory"))
        })
    }

    /// Whether memory can be bounded.
    pub fn can_limit(&self) -> bool {
        self.memory_v1.is_some() || self.memory_v2().is_some()
    }
}

/// Our own group of a v1 hierarchy mounted on `at`, or its root where that is not visible.
fn below(at: &str, own: &str, controller: &str) -> PathBuf {
    let path = own.lines().find_map(|l| {
        let mut fields = l.splitn(3, ':').skip(1);
        let names = fields.next()?;
        let path = fields.next()?;
        names.split(',').any(|n| n == controller).then_some(path)
    });
    let dir = Path::new(at).join(path.unwrap_or("/").trim_start_matches('/'));
    if dir.is_dir() { dir } else { at.into() }
}

/// `dir`, if a group can be made in it. Groups of a lab that is no more are removed.
fn usable(dir: &Path) -> Option<PathBuf> {
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix(PREFIX)
            .and_then(|p| p.parse::<u32>().ok());
        if pid.is_some_and(|p| !Path::new(&format!("/proc/{p}")).exists()) {
            remove(&entry.path());
        }
    }
    let probe = dir.join(format!("{PREFIX}{}", std::process::id()));
    fs::create_dir(&probe).ok()?;
    remove(&probe);
    Some(dir.to_owned())
}

/// Ends what is in a group and removes it with those below.
fn remove(dir: &Path) {
    let mut below: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect();
    below.retain(|p| p.is_dir());
    for group in &below {
        remove(group);
    }
    let until = Instant::now() + PATIENCE;
    while fs::remove_dir(dir).is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY)) {
        if Instant::now() > until {
            crate::output::complain(&format!("{}: processes in it do not end", dir.display()));
            return;
        }
        kill_listed(dir);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills the processes that a group lists. Never this one.
fn kill_listed(dir: &Path) {
    let listed = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in listed.lines().filter_map(|l| l.parse::<i32>().ok()) {
        if pid > 1 && pid != std::process::id() as i32 {
            // SAFETY: a plain system call.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// The groups of one run; removed, with everything in them, when the value goes.
#[derive(Debug)]
pub struct Group {
    /// Those that were made, the outer ones.
    made: Vec<PathBuf>,
    /// Where the commands enter.
    work: Vec<File>,
    /// Where their neighbours enter.
    beside: Vec<File>,
    /// Groups that hold the commands and the neighbours, of one hierarchy.
    cpu: Option<Cpu>,
    /// Groups to be killed as a whole (v2).
    kill: Vec<PathBuf>,
}

/// Where CPU time is counted.
#[derive(Debug)]
struct Cpu {
    work: PathBuf,
    beside: PathBuf,
    v2: bool,
}

impl Group {
    /// Groups for one run, whose memory is bounded to `limit` bytes.
    pub fn new(where_: &Hierarchies, limit: Option<u64>) -> Outcome<Self> {
        let name = format!("{PREFIX}{}", std::process::id());
        let mut group = Self {
            made: Vec::new(),
            work: Vec::new(),
            beside: Vec::new(),
            cpu: None,
            kill: Vec::new(),
        };
        for root in where_.all() {
            let outer = root.join(&name);
            fs::create_dir(&outer).doing(outer.display())?;
            group.made.push(outer.clone());
            let v2 = Some(root) == where_.unified.as_ref();
            let cpu = Some(root) == where_.cpuacct_v1.as_ref();
            if v2 || cpu {
                let (work, beside) = (outer.join("work"), outer.join("beside"));
                for (dir, entries) in [(&work, &mut group.work), (&beside, &mut group.beside)] {
                    fs::create_dir(dir).doing(dir.display())?;
                    entries.push(entry(dir)?);
                }
                if v2 {
                    group.kill = vec![work.clone(), beside.clone()];
                }
                if group.cpu.is_none() || v2 {
                    group.cpu = Some(Cpu { work, beside, v2 });
                }
            } else {
                group.work.push(entry(&outer)?);
                group.beside.push(entry(&outer)?);
            }
        }
        if let Some(limit) = limit {
            let v2 = where_.memory_v2().map(|r| (r, "memory.max"));
            let v1 = where_
                .memory_v1
                .as_ref()
                .map(|r| (r, "memory.limit_in_bytes"));
            let (root, file) = v2.or(v1).ok_or_else(|| {
                Failure::system("memory cannot be bounded here: no memory control groups")
            })?;
            let file = root.join(&name).join(file);
            fs::write(&file, limit.to_string()).doing(file.display())?;
        }
        Ok(group)
    }

    /// Descriptors to which a child writes "0" to enter.
    pub fn work_entries(&self) -> Vec<RawFd> {
        self.work.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// The same for a neighbour.
    pub fn beside_entries(&self) -> Vec<RawFd> {
        self.beside.iter().map(AsRawFd::as_raw_fd).collect()
    }

    /// CPU time of the commands and of their neighbours so far, s; none where no group counts it.
    pub fn cpu_seconds(&self) -> Option<(f64, f64)> {
        let cpu = self.cpu.as_ref()?;
        let read = |dir: &Path| {
            if cpu.v2 {
                let stat = fs::read_to_string(dir.join("cpu.stat")).ok()?;
                let us = stat.lines().find_map(|l| l.strip_prefix("usage_usec "))?;
                Some(us.parse::<f64>().ok()? / 1e6)
            } else {
                let ns = fs::read_to_string(dir.join("cpuacct.usage")).ok()?;
                Some(ns.trim().parse::<f64>().ok()? / 1e9)
            }
        };
        Some((read(&cpu.work)?, read(&cpu.beside)?))
    }

    /// Kills everything in the groups.
    pub fn kill(&self) {
        for dir in &self.kill {
            let _ = fs::write(dir.join("cgroup.kill"), "1");
        }
        for dir in &self.made {
            for dir in [dir.clone(), dir.join("work"), dir.join("beside")] {
                kill_listed(&dir);
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        for dir in &self.made {
            remove(dir);
        }
    }
}

fn entry(dir: &Path) -> Outcome<File> {
    let path = dir.join("cgroup.procs");
    OpenOptions::new()
        .write(true)
        .open(&path)
        .doing(path.display())
}

/// Moves the calling process into the groups behind `entries`. For a child between fork and exec: no allocation.
pub fn enter(entries: &[RawFd]) -> io::Result<()> {
    for fd in entries {
        // SAFETY: the descriptor is open in the parent and was inherited by fork.
        let file = unsafe {
            std::mem::ManuallyDrop::new(<File as std::os::fd::FromRawFd>::from_raw_fd(*fd))
        };
        (&*file).write_all(b"0")?;
    }
    Ok(())
}
