//! Programs that no hook reaches, the one that was started and those below: looked for while they run, at most once a second, where there is to be a report.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outrider_core::fetch;

use outrider_sys::life;
use outrider_sys::look_up::openat2;
use outrider_sys::units::InodeKey;

use crate::{elf, output, preload};

/// From one look to the next, at first and at most.
const FIRST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_secs(1);
/// Processes that are looked at, programs that are remembered, and those that are named.
const PROCESSES: usize = 256;
const PROGRAMS: usize = 1024;
const NAMES: usize = 8;
/// Bytes of what /proc/PID/maps says that are looked at: a program may have 65,530 mappings with long names.
const MAPS: u64 = 4 << 20;

/// What was found.
pub struct Unhooked {
    program: u32,
    /// Readable when the program is over; `None` once it is.
    life: Option<OwnedFd>,
    pause: Duration,
    /// Device and inode of each program that was seen, by name.
    seen: BTreeMap<PathBuf, InodeKey>,
    /// The library is to be in all that can load it.
    library: Option<PathBuf>,
    /// Programs that could have loaded it and haven't, and why.
    without: BTreeMap<PathBuf, &'static str>,
    /// Processes that were looked into, with what they ran.
    known: BTreeMap<u32, InodeKey>,
    /// The network namespace in which the service is to be reached, and whether a process that has the library is in another one.
    network: Option<PathBuf>,
    is_out_of_reach: bool,
}

impl Unhooked {
    /// `None` where the end of `program` could not be told from the outside. `library` is what was preloaded, if anything was.
    pub fn below(program: i32, library: Option<PathBuf>) -> Option<Unhooked> {
        let program = program as u32;
        Some(Unhooked {
            program,
            life: Some(life::of(program)?),
            pause: FIRST,
            seen: BTreeMap::new(),
            library,
            without: BTreeMap::new(),
            known: BTreeMap::new(),
            network: network_of("self"),
            is_out_of_reach: false,
        })
    }

    /// Whether a program could not reach the service: it is in another network namespace. Who has entered one himself has said so mostly; not so who was
    /// put there by a call that no hook sees, or by a program that forbids itself calls.
    pub fn is_out_of_reach(&self) -> bool {
        self.is_out_of_reach
    }

    /// Waits until it is time for a look, a child changes its state, the program is over, or somebody comes to the socket: whether somebody did. To be called
    /// with all signals blocked, of which `mask` is what lets them through: whatever came before is still there to be waited for.
    pub fn wait(&mut self, mask: &libc::sigset_t, socket: Option<BorrowedFd<'_>>) -> bool {
        // A negative one is passed over.
        let number = |fd: Option<BorrowedFd<'_>>| libc::pollfd {
            fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
            events: libc::POLLIN,
            revents: 0,
        };
        let life = self.life.as_ref().map(AsFd::as_fd);
        let mut poll = [number(life), number(socket)];
        // Once the program is over there is only its end to wait for.
        let timeout = self.life.as_ref().map(|_| libc::timespec {
            tv_sec: self.pause.as_secs() as i64,
            tv_nsec: self.pause.subsec_nanos().into(),
        });
        let limit = timeout
            .as_ref()
            .map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: structures of this frame.
        let r = unsafe { libc::ppoll(poll.as_mut_ptr(), 2, limit, mask) };
        if r > 0 && poll[0].revents & libc::POLLIN != 0 {
            self.life = None;
        }
        r > 0 && poll[1].revents & libc::POLLIN != 0
    }

    /// Looks who is there.
    pub fn look(&mut self) {
        self.pause = (2 * self.pause).min(LONGEST);
        self.look_into(self.program);
        let mut below = fetch::children(self.program);
        let mut at = 0;
        while at < below.len().min(PROCESSES) {
            let pid = below[at];
            at += 1;
            below.extend(fetch::children(pid));
            let link = format!("/proc/{pid}/exe");
            if self.seen.len() < PROGRAMS
                && let (Ok(name), Some(key)) = (std::fs::read_link(&link), key_of(&link))
            {
                self.seen.insert(name, key);
            }
            self.look_into(pid);
        }
    }

    /// Looks whether a process has the library, once for each program that it becomes. Whoever has loaded the C library has loaded what
    /// LD_PRELOAD names before that.
    fn look_into(&mut self, pid: u32) {
        let Some(library) = self
            .library
            .as_ref()
            .filter(|_| self.known.len() < PROGRAMS)
        else {
            return;
        };
        let link = format!("/proc/{pid}/exe");
        let Some(file) = key_of(&link) else {
            return;
        };
        if self.known.get(&pid) == Some(&file) {
            return;
        }
        let Ok(maps) = std::fs::File::open(format!("/proc/{pid}/maps")) else {
            return;
        };
        let mut text = Vec::new();
        if std::io::Read::read_to_end(&mut std::io::Read::take(maps, MAPS), &mut text).is_err() {
            return;
        }
        let maps = String::from_utf8_lossy(&text);
        let has = |name: &str| maps.lines().any(|line| line.ends_with(name));
        let loaded = has(&format!("/{}", preload::LIBRARY));
        if !loaded && !has("/libc.so.6") {
            // Another kind of program, or on its way.
            return;
        }
        self.known.insert(pid, file);
        if loaded {
            let its = network_of(&pid.to_string());
            self.is_out_of_reach |= its.is_some() && self.network.is_some() && its != self.network;
            return;
        }
        let Ok(name) = std::fs::read_link(&link) else {
            return;
        };
        let user = std::fs::metadata(format!("/proc/{pid}")).map_or(0, |m| m.uid());
        let own = rustix::process::geteuid().as_raw();
        let why = if !is_below_root_of(pid, library) {
            "could not load the library, which isn't there below its root directory"
        } else if user != own && !is_everybodys(library) {
            "could not load the library, which its user may not read"
        } else {
            "was not told of the library: LD_PRELOAD doesn't name it in its environment"
        };
        self.without.insert(name, why);
    }

    /// A line for each program that can't be hooked. Looks into the programs, which takes time and reads them.
    pub fn notes(self) -> impl Iterator<Item = String> {
        // A server need not answer.
        let asks_nobody = |(name, key): &(PathBuf, InodeKey)| {
            fetch::server(std::process::id(), key.device(), name).is_none()
        };
        let seen = self.seen.into_iter().filter(asks_nobody);
        let without = self
            .without
            .into_iter()
            .map(|(name, why)| format!("{}: {why}; it ran without Outrider", output::show(&name)));
        let found = seen.filter_map(|(name, file)| {
            // Not another one of this name: there are other roots, and names are given again.
            let why = elf::obstacle_of(&name, file).ok()??;
            Some(format!(
                "{}: {why}; it ran without Outrider",
                output::show(&name)
            ))
        });
        found.take(NAMES).chain(without.take(NAMES))
    }
}

/// The network namespace of a process, by its name in /proc.
fn network_of(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

/// `st_dev` and `st_ino` of what a link in /proc leads to. A server is not asked.
fn key_of(link: &str) -> Option<InodeKey> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
    let st = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some(InodeKey::new(
        makedev(st.stx_dev_major, st.stx_dev_minor),
        st.stx_ino,
    ))
}

/// Whether a file is there below the root directory of a process, whose links lead nowhere else. What lies on another file system is believed to be: who keeps it
/// is not asked.
fn is_below_root_of(pid: u32, file: &Path) -> bool {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat};
    use rustix::io::Errno;
    let root = format!("/proc/{pid}/root");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let served = |key: InodeKey| fetch::server(pid, key.device(), Path::new("/")).is_some();
    if key_of(&root) == key_of("/proc/self/root") || key_of(&root).is_none_or(served) {
        return true;
    }
    let Ok(root) = openat(CWD, &root, flags | OFlags::DIRECTORY, Mode::empty()) else {
        return true;
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    match openat2(&root, file, flags, resolve) {
        Ok(_) => true,
        Err(e) => !matches!(e, Errno::NOENT | Errno::NOTDIR | Errno::ACCESS),
    }
}

/// Whether any user may read a file, by its mode and those of the directories above it.
fn is_everybodys(file: &Path) -> bool {
    let mode = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.mode());
    mode(file) & libc::S_IROTH != 0
        && file
            .ancestors()
            .skip(1)
            .all(|directory| mode(directory) & libc::S_IXOTH != 0)
}
