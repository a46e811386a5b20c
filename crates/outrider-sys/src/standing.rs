//! What a process may do: user, groups, capabilities, root, namespaces, and what confines it; whether that is just what this process may; and
//! becoming one that may just that.
//!
//! The service acts on a program's behalf only as long as both are alike, so that it never does what the program could not.

use std::fs::File;
use std::io;
use std::io::{BufRead, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, openat, readlinkat, statx};

use crate::raw;
use crate::text::noted;

/// See [`is_apart`].
static APART: AtomicBool = AtomicBool::new(false);

/// Whether this process has the rights of others that have other mounts or another root than it has: it may open what they have open, and nothing by name.
pub fn is_apart() -> bool {
    APART.load(Ordering::Relaxed)
}

/// How files of /proc are opened: where a program has mounts of its own it may have put a pipe in the place of one.
const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// What /proc tells of a process's rights. Two processes with equal ones may do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Lines of /proc/PID/status, in its order: see [`LINES`].
    lines: Vec<String>,
    /// Mount and user namespace; of the former nothing where this process is apart.
    namespaces: [Vec<u8>; 2],
    /// `st_dev` and `st_ino` of the root directory, and as which mount it is seen (since Linux 5.8): what lies below depends on that. Likewise.
    root: (u64, u64, u64),
    /// The label of a security module, where there is one.
    label: Vec<u8>,
}

impl Standing {
    /// What this process may do. `None` where /proc does not tell.
    pub fn own() -> Option<Standing> {
        Watch::at("/proc/self").ok()?.standing()
    }

    /// Whether whoever has these rights has any capability.
    pub fn has_capabilities(&self) -> bool {
        let status = self.lines.join("\n");
        ["CapPrm:", "CapEff:"]
            .iter()
            .any(|name| numbers(&status, name, 16).iter().any(|set| *set != 0))
    }

    /// Whether a process with these rights may do no more than one with the rights `wanted`, and all of that but for what depends on its mounts and root: these may be
    /// those of `starter`, from which it comes (see [`is_apart`]).
    pub fn serves(&self, wanted: &Standing, starter: &Standing) -> bool {
        let places = |of: &Standing| (of.namespaces[0].clone(), of.root);
        (&self.lines, &self.label, &self.namespaces[1])
            == (&wanted.lines, &wanted.label, &wanted.namespaces[1])
            && [wanted, starter].map(places).contains(&places(self))
    }
}

/// Users, groups and capabilities that count now, and filters of system calls. What a process could still take away from itself or its
/// children (bounding set, no_new_privs) takes nothing from it now.
const LINES: [&str; 8] = [
    "Uid:",
    "Gid:",
    "Groups:",
    "CapPrm:",
    "CapEff:",
    "Seccomp:",
    "Seccomp_filters:",
    "CapAmb:",
];

/// The lines of /proc/PID/status that tell of rights. `None` where there are none: the process is over.
pub fn rights_of(status: &[u8]) -> Option<Vec<Vec<u8>>> {
    let is_one = |line: &&[u8]| LINES.iter().any(|name| line.starts_with(name.as_bytes()));
    // Before them is only the program's own name, which may be anything.
    let lines = status.split(|b| *b == b'\n').skip(1).filter(is_one);
    let lines: Vec<_> = lines.map(<[u8]>::to_vec).collect();
    (!lines.is_empty()).then_some(lines)
}

/// Where a process's rights are looked up: its directory in /proc, held so that the number may be another's later.
#[derive(Debug)]
pub struct Watch {
    directory: OwnedFd,
    status: File,
    /// Where a security module tells its label, if there is one.
    label: Option<File>,
    /// When it was last found to be like this process.
    alike: Option<Instant>,
}

/// So long a process that was found to have the rights of this one is not asked again. To ask takes some 20 µs, as long as fetching a small file; what
/// a process was allowed to do a moment ago it could have done then.
const VALID: Duration = Duration::from_millis(1);

impl Watch {
    /// Of process `pid`.
    ///
    /// # Errors
    /// Where /proc does not show it, or there are no descriptors for it (EMFILE).
    pub fn of(pid: u32) -> io::Result<Watch> {
        Watch::at(&format!("/proc/{pid}"))
    }

    fn at(path: &str) -> io::Result<Watch> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Watch::within(noted(openat(CWD, path, flags, Mode::empty()))?)
    }

    /// Of the process whose directory in /proc this is. Users are numbered as in the namespace of who asks for this.
    fn within(directory: OwnedFd) -> io::Result<Watch> {
        let status = noted(openat(&directory, "status", READ, Mode::empty()))?;
        let label = noted(openat(&directory, "attr/current", READ, Mode::empty())).ok();
        let label = label.map(File::from);
        Ok(Watch {
            directory,
            status: status.into(),
            label: label.filter(|file| file.read_at(&mut [0], 0).is_ok()),
            alike: None,
        })
    }

    fn status(&self) -> Option<String> {
        let mut text = vec![0; 4096];
        let len = loop {
            match self.status.read_at(&mut text, 0).ok()? {
                // There is more, of somebody in many groups.
                n if n == text.len() => text.resize(4 * n, 0),
                n => break n,
            }
        };
        text.truncate(len);
        // Only the program's own name can be anything else.
        (len > 0).then(|| String::from_utf8_lossy(&text).into_owned())
    }

    /// What the process may do at this moment. `None` where it is over, or does not let that be seen.
    pub fn standing(&self) -> Option<Standing> {
        let status = self.status()?;
        let is_one = |line: &&str| LINES.iter().any(|name| line.starts_with(name));
        let lines = status.lines().skip(1).filter(is_one).map(str::to_owned);
        let link = |name: &str| {
            let link = readlinkat(&self.directory, name, Vec::new()).ok()?;
            Some(link.into_bytes())
        };
        let (mounts, root) = match is_apart() {
            true => (Vec::new(), (0, 0, 0)),
            false => (link("ns/mnt")?, self.root()?),
        };
        Some(Standing {
            lines: lines.collect(),
            namespaces: [mounts, link("ns/user")?],
            root,
            label: self.label(),
        })
    }

    /// Its root directory. A server that it may be kept by is not asked: it need not answer.
    fn root(&self) -> Option<(u64, u64, u64)> {
        let flags = AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
        match statx(&self.directory, "root", flags, wanted) {
            Ok(st) => {
                let dev = rustix::fs::makedev(st.stx_dev_major, st.stx_dev_minor);
                let tells = st.stx_mask & StatxFlags::MNT_ID.bits() != 0;
                Some((dev, st.stx_ino, if tells { st.stx_mnt_id } else { 0 }))
            }
            // Before Linux 4.11, and under filters that don't know it.
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                let st = rustix::fs::statat(&self.directory, "root", AtFlags::empty()).ok()?;
                Some((st.st_dev, st.st_ino, 0))
            }
            Err(_) => None,
        }
    }

    /// Whether these are the process's real and effective user, and its real and effective group.
    pub fn is_users(&self, user: [u32; 2], group: [u32; 2]) -> bool {
        self.status().is_some_and(|status| {
            let has =
                |name, ids: [u32; 2]| numbers(&status, name, 10).starts_with(&ids.map(u64::from));
            has("Uid:", user) && has("Gid:", group)
        })
    }

    /// Whether the process has this file mapped.
    pub fn has_mapped(&self, dev: u64, ino: u64) -> bool {
        let maps = noted(openat(&self.directory, "maps", READ, Mode::empty()));
        maps.is_ok_and(|maps| lists(maps.into(), dev, ino))
    }

    /// Whether the process has got rights by the file that it executes, set-user-ID or with capabilities: what the dynamic linker calls secure execution. So it is for one
    /// that does not tell.
    pub fn is_privileged(&self) -> bool {
        let mut words = [0; 1024];
        let auxv = noted(openat(&self.directory, "auxv", READ, Mode::empty()));
        let read = auxv.and_then(|auxv| rustix::io::read(auxv, &mut words));
        let read = words.get(..read.unwrap_or(0)).unwrap_or_default();
        // Pairs of words: a name, and its value. One of 32 bits has it nowhere or with another value.
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let mut pairs = read.chunks_exact(16).map(|pair| pair.split_at(8));
        let secure = pairs.find(|(name, _)| word(name) == libc::AT_SECURE);
        secure.is_none_or(|(_, value)| word(value) != 0)
    }

    fn label(&self) -> Vec<u8> {
        let mut label = vec![0; 4096];
        let read = self
            .label
            .as_ref()
            .and_then(|f| f.read_at(&mut label, 0).ok());
        label.truncate(read.unwrap_or(0));
        label
    }

    /// Whether the process may at this moment, or a millisecond ago, do what this one may, and nothing else.
    pub fn is_like_this(&mut self) -> bool {
        thread_local! {
            // Threads of a service change nothing of theirs.
            static OWN: Option<Standing> = Standing::own();
        }
        let now = Instant::now();
        if self.alike.is_some_and(|at| now - at < VALID) {
            return true;
        }
        let its = self.standing();
        let alike = OWN.with(|own| own.is_some() && *own == its);
        self.alike = alike.then_some(now);
        alike
    }

    /// Whether a filter of system calls stands over the process.
    pub fn is_filtered(&self) -> bool {
        self.status().is_some_and(|text| {
            text.lines()
                .any(|l| l.starts_with("Seccomp:") && !l.ends_with("\t0"))
        })
    }

    /// Enters the namespaces and the root of that process, of which [`Watch::assume`] is then to be called with what this returns: where this process's own
    /// rights are looked up. There names are that process's to give: until this one has no more rights than that one, it follows none, not even /proc/self.
    /// This process is to have one thread; on failure it is of no use. The process namespace is not entered: whoever is in it would see one process more. Where that is another one, /proc may be, too, and
    /// nothing but the user namespace is entered: this process is apart from then on ([`is_apart`]).
    pub fn enter(&self) -> io::Result<OwnedFd> {
        let own = Watch::at("/proc/self")?;
        let differs = |name: &str| -> io::Result<bool> {
            let [its, own] = [self, &own].map(|w| readlinkat(&w.directory, name, Vec::new()));
            Ok(its? != own?)
        };
        let open = |name: &str, flags| openat(&self.directory, name, flags, Mode::empty());
        let root = open("root", OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY)?;
        let enter = |name: &str, kind| -> io::Result<bool> {
            if !differs(name)? {
                return Ok(false);
            }
            let space = open(name, READ)?;
            // SAFETY: numbers only.
            match unsafe { libc::setns(space.as_raw_fd(), kind) } {
                0 => Ok(true),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let [its_root, own_root] = [self, &own].map(|w| w.root().ok_or(io::ErrorKind::NotFound));
        let (its_root, own_root) = (its_root?, own_root?);
        // In a user namespace of its own it may be forbidden.
        let groups = |of: &Watch| of.status().map(|status| numbers(&status, "Groups:", 10));
        let its = groups(self).ok_or(io::ErrorKind::NotFound)?;
        if groups(&own).as_ref() != Some(&its) {
            set_groups(&its)?;
        }
        APART.store(differs("ns/pid")?, Ordering::Relaxed);
        // Who is not root may be anybody within a namespace of his own.
        let is_its_user = !differs("ns/user")? || self.become_its_user(&own).is_ok();
        let mut mounts = false;
        if !is_apart() && self.enter_owner_of_mounts(&own)? {
            mounts = enter("ns/mnt", libc::CLONE_NEWNS)?;
        }
        enter("ns/user", libc::CLONE_NEWUSER)?;
        if !is_its_user && self.has_no_number()? {
            return Err(io::Error::other("whose rights it has can't be told"));
        }
        if is_apart() {
            return Ok(own.directory);
        }
        if !mounts {
            mounts = enter("ns/mnt", libc::CLONE_NEWNS)?;
        }
        if mounts || its_root != own_root {
            rustix::process::fchdir(&root)?;
            rustix::process::chroot(".")?;
        }
        Ok(own.directory)
    }

    /// Enters the user namespace to which that process's mounts belong, where that is another one than its own, above it: they can't be entered from below. Whether it
    /// is so.
    fn enter_owner_of_mounts(&self, own: &Watch) -> io::Result<bool> {
        /// The kernel's `include/uapi/linux/nsfs.h`, since Linux 4.9.
        const NS_GET_USERNS: libc::c_ulong = 0xb701;
        let open = |of: &Watch, name: &str| openat(&of.directory, name, READ, Mode::empty());
        let key = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|st| (st.st_dev, st.st_ino));
        let mounts = open(self, "ns/mnt")?;
        // SAFETY: no argument; on success the kernel has made a descriptor for this process.
        let owner = unsafe {
            let fd = libc::ioctl(mounts.as_raw_fd(), NS_GET_USERNS as _);
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        let Some(owner) = owner else {
            return Ok(false);
        };
        let its = key(&open(self, "ns/user")?)?;
        let (own, owners) = (key(&open(own, "ns/user")?)?, key(&owner)?);
        if owners == its || own == its {
            return Ok(false);
        }
        // SAFETY: numbers only.
        if owners != own && unsafe { libc::setns(owner.as_raw_fd(), libc::CLONE_NEWUSER) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(true)
    }

    /// Whether this process's user namespace may have no number for a user or a group of that process, which can't be told from others then.
    fn has_no_number(&self) -> io::Result<bool> {
        /// What the kernel shows in its place, if nobody has changed that (/proc/sys/kernel/overflowuid).
        const NOBODY: u64 = 65534;
        let status = Watch::within(self.directory.try_clone()?)?.status();
        let status = status.ok_or(io::ErrorKind::NotFound)?;
        let is_nobody = |name| numbers(&status, name, 10).contains(&NOBODY);
        Ok(is_nobody("Uid:") || is_nobody("Gid:"))
    }

    /// Takes on users and groups of that process, and keeps its own capabilities. In a user namespace that does not have them they can't be told from others.
    fn become_its_user(&self, own: &Watch) -> io::Result<()> {
        let status = |of: &Watch| of.status().ok_or(io::ErrorKind::NotFound);
        let [its, own] = [status(self)?, status(own)?];
        keep_capabilities();
        for (name, set) in [("Gid:", libc::SYS_setresgid), ("Uid:", libc::SYS_setresuid)] {
            let wanted = ids(&its, name)?;
            if ids(&own, name)? != wanted {
                set_ids(set, wanted)?;
            }
        }
        Ok(())
    }

    /// Makes this process, which has one thread and is where that one is, one that may do just what that one may. On failure it may have lost some rights already, and is
    /// of no use. By which of the numbers under NSpid in /proc/PID/status that process, and others with the same rights, go in the /proc that is seen from there.
    pub fn assume(&self, own_directory: OwnedFd) -> io::Result<u32> {
        // Users are numbered as in the namespace of who opens the file.
        let open = |name: &str| openat(&self.directory, name, READ, Mode::empty());
        let inside = Watch {
            directory: self.directory.try_clone()?,
            status: open("status")?.into(),
            label: self.label.as_ref().map(File::try_clone).transpose()?,
            alike: None,
        };
        let status = inside.status().ok_or(io::ErrorKind::NotFound)?;
        let wanted = inside.standing().ok_or(io::ErrorKind::NotFound)?;
        let numbers = |name: &str, radix| numbers(&status, name, radix);
        if numbers("Seccomp:", 10) != [0] {
            return Err(io::Error::other("a filter of system calls stands over it"));
        }
        let began = inside.began();
        let own_rights = || {
            Watch::within(own_directory.try_clone().ok()?)
                .ok()?
                .standing()
        };
        let own = own_rights().ok_or(io::ErrorKind::NotFound)?;
        let (uids, gids) = (ids(&status, "Uid:")?, ids(&status, "Gid:")?);
        let line =
            |of: &Standing, name: &str| of.lines.iter().find(|l| l.starts_with(name)).cloned();
        let differ = |name: &str| line(&own, name) != line(&wanted, name);
        let done = |r: libc::c_long| match r {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        keep_capabilities();
        // SAFETY: numbers, and arrays that outlive the calls. Bare calls: this process has one thread.
        unsafe {
            if differ("Groups:") {
                set_groups(&numbers("Groups:", 10))?;
            }
            if differ("Gid:") {
                set_ids(libc::SYS_setresgid, gids)?;
                libc::syscall(libc::SYS_setfsgid, gids[3]);
            }
            if differ("Uid:") {
                set_ids(libc::SYS_setresuid, uids)?;
                libc::syscall(libc::SYS_setfsuid, uids[3]);
            }
            let capabilities = |name| numbers(name, 16).first().copied().unwrap_or(0);
            let (permitted, effective) = (capabilities("CapPrm:"), capabilities("CapEff:"));
            let inheritable = capabilities("CapInh:");
            let header = [CAPABILITY_VERSION_3, 0u32];
            let mut data = [0u32; 6];
            for (half, chunk) in data.chunks_mut(3).enumerate() {
                let part = |bits: u64| (bits >> (32 * half)) as u32;
                chunk.copy_from_slice(&[part(effective), part(permitted), part(inheritable)]);
            }
            done(libc::syscall(
                libc::SYS_capset,
                header.as_ptr(),
                data.as_ptr(),
            ))?;
            let ambient = capabilities("CapAmb:");
            for capability in 0..64u64 {
                if ambient >> capability & 1 != 0 {
                    let raise = libc::PR_CAP_AMBIENT_RAISE;
                    libc::prctl(libc::PR_CAP_AMBIENT, raise, capability, 0, 0);
                }
            }
        }
        if own_rights().as_ref() != Some(&wanted) {
            return Err(io::Error::other("its rights can't be had exactly"));
        }
        // Who becomes another user forgets both. From here on names are followed that may lead nowhere.
        crate::child::die_with_parent();
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
        if !is_proc() {
            return Err(io::Error::other("its /proc is not the kernel's"));
        }
        let names = numbers("NSpid:", 10);
        let is_it =
            |n: &u64| began.is_some() && Watch::of(*n as u32).is_ok_and(|w| w.began() == began);
        let level = names.iter().rposition(is_it);
        level
            .map(|level| level as u32)
            .ok_or_else(|| io::Error::other("its /proc does not show it"))
    }

    /// When the process began, in clock ticks since the system did, as /proc/PID/stat has it.
    fn began(&self) -> Option<String> {
        Some(self.stat()?.nth_field(19)?.to_owned())
    }

    /// Whether the process is ending or over, or its only thread is: it has no root any more, some time before its end can be waited for.
    pub fn is_ending(&self) -> bool {
        /// What the kernel's `include/linux/sched.h` says of a thread that ends.
        const PF_EXITING: u64 = 4;
        let Some(stat) = self.stat() else {
            return true;
        };
        let number = |i| stat.nth_field(i).and_then(|n| n.parse::<u64>().ok());
        number(6).is_some_and(|flags| flags & PF_EXITING != 0) && number(17) <= Some(1)
    }

    fn stat(&self) -> Option<Stat> {
        let file = openat(&self.directory, "stat", READ, Mode::empty()).ok()?;
        let mut text = Vec::new();
        File::from(file).read_to_end(&mut text).ok()?;
        Some(Stat::new(&text))
    }
}

/// Whether at /proc there is what the kernel shows of processes, and not what a program has put there.
pub fn is_proc() -> bool {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let found = openat(CWD, "/proc", flags, Mode::empty());
    found.is_ok_and(|proc| raw::file_system(proc.as_raw_fd()) == libc::PROC_SUPER_MAGIC)
}

/// /proc/PID/stat.
pub(crate) struct Stat(String);

impl Stat {
    pub(crate) fn new(text: &[u8]) -> Stat {
        Stat(String::from_utf8_lossy(text).into_owned())
    }

    /// A field behind the name, which may be anything; the state is the first, 0.
    pub(crate) fn nth_field(&self, i: usize) -> Option<&str> {
        self.0.rsplit_once(')')?.1.split_whitespace().nth(i)
    }
}

/// The numbers behind a name in what /proc/PID/status says.
fn numbers(status: &str, name: &str, radix: u32) -> Vec<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    let words = line.unwrap_or_default().split_whitespace();
    words
        .filter_map(|w| u64::from_str_radix(w, radix).ok())
        .collect()
}

/// Users or groups of such a line: real, effective, saved, and of the file system.
fn ids(status: &str, name: &str) -> io::Result<[libc::uid_t; 4]> {
    let ids: Vec<_> = numbers(status, name, 10)
        .iter()
        .map(|n| *n as libc::uid_t)
        .collect();
    ids.try_into()
        .map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Takes these on but for the last, by setresuid(2) or setresgid(2).
fn set_ids(call: libc::c_long, [real, effective, saved, _]: [libc::uid_t; 4]) -> io::Result<()> {
    // SAFETY: numbers only. A bare call: this process has one thread.
    match unsafe { libc::syscall(call, real, effective, saved) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Capabilities are not lost by changing the user.
fn keep_capabilities() {
    let bits = SECBIT_KEEP_CAPS | SECBIT_NO_SETUID_FIXUP;
    // SAFETY: numbers only.
    unsafe {
        if libc::prctl(libc::PR_SET_SECUREBITS, bits, 0, 0, 0) != 0 {
            libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
        }
    }
}

fn set_groups(groups: &[u64]) -> io::Result<()> {
    let groups: Vec<libc::gid_t> = groups.iter().map(|g| *g as libc::gid_t).collect();
    // SAFETY: an array that outlives the call. A bare call: this process has one thread.
    match unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// linux/securebits.h.
const SECBIT_KEEP_CAPS: libc::c_ulong = 1 << 4;
const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
/// linux/capability.h.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Whether a process's list of mappings has this file.
fn lists(maps: File, dev: u64, ino: u64) -> bool {
    let wanted = format!("{:02x}:{:02x}", libc::major(dev), libc::minor(dev));
    // ADDRESSES PERMISSIONS OFFSET MAJOR:MINOR INODE NAME
    let is_it = |line: &[u8]| {
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|w| !w.is_empty())
            .skip(3);
        words.next() == Some(wanted.as_bytes())
            && words.next().and_then(crate::decimal) == Some(ino)
    };
    // Of a process that is over by now each further read fails.
    let lines = io::BufReader::new(maps).split(b'\n');
    lines.map_while(Result::ok).any(|line| is_it(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC B16: a process that is ending has no root to look at, and has changed no rights.
    #[test]
    fn ends_are_no_changes_of_rights() {
        assert!(!Watch::of(std::process::id()).unwrap().is_ending());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut watch = Watch::of(child.id()).unwrap();
        assert!(!watch.is_ending());
        child.kill().unwrap();
        // Over, and not waited for.
        while !watch.is_ending() {
            std::thread::yield_now();
        }
        assert!(!watch.is_like_this());
        let maps = File::open(format!("/proc/{}/maps", child.id())).unwrap();
        child.wait().unwrap();
        assert!(watch.is_ending());
        // What can't be read has an end, too.
        assert!(!lists(maps, 1, 1) && !watch.has_mapped(1, 1));
    }

    /// SPEC B16: a process is like itself and its children; one with another user is not.
    #[test]
    fn rights_are_told_apart() {
        let mut own = Watch::of(std::process::id()).unwrap();
        assert!(own.is_like_this());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert!(Watch::of(child.id()).unwrap().is_like_this());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut init = Watch::of(1).unwrap();
        // SAFETY: takes no arguments.
        if unsafe { libc::geteuid() } != 0 {
            assert!(!init.is_like_this());
            return;
        }
        let other = std::process::Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "sleep",
                "60",
            ])
            .spawn();
        let Ok(mut other) = other else { return };
        while std::fs::read_to_string(format!("/proc/{}/comm", other.id())).unwrap() != "sleep\n" {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!Watch::of(other.id()).unwrap().is_like_this());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
