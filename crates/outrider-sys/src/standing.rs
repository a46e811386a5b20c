//! What a process may do: user, groups, capabilities, root, namespaces, and what confines it; whether that is just what this process may; and
//! becoming one that may just that.
//!
//! The service acts on a program's behalf only as long as both are alike, so that it never does what the program could not.

use std::fs::File;
use std::io;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat, statat};

/// What /proc tells of a process's rights. Two processes with equal ones may do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Lines of /proc/PID/status, in its order: see [`LINES`].
    lines: Vec<String>,
    /// Mount and user namespace.
    namespaces: [Vec<u8>; 2],
    /// `st_dev` and `st_ino` of the root directory.
    root: (u64, u64),
    /// The label of a security module, where there is one.
    label: Vec<u8>,
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
    /// Of process `pid`; `None` where /proc does not show it.
    pub fn of(pid: u32) -> Option<Watch> {
        Watch::at(&format!("/proc/{pid}"))
    }

    fn at(path: &str) -> Option<Watch> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty()).ok()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let status = openat(&directory, "status", flags, Mode::empty()).ok()?;
        let label = openat(&directory, "attr/current", flags, Mode::empty()).ok();
        let label = label.map(File::from);
        Some(Watch {
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
        let root = statat(&self.directory, "root", AtFlags::empty()).ok()?;
        Some(Standing {
            lines: lines.collect(),
            namespaces: [link("ns/mnt")?, link("ns/user")?],
            root: (root.st_dev, root.st_ino),
            label: self.label(),
        })
    }

    fn label(&self) -> Vec<u8> {
        let mut label = vec![0; 4096];
        let read = self.label.as_ref().and_then(|f| f.read_at(&mut label, 0).ok());
        label.truncate(read.unwrap_or(0));
        label
    }

    /// Whether the process may at this moment, or a millisecond ago, do what this one may, and nothing else.
    pub fn is_like_this(&mut self) -> bool {
        thread_local! {
            // Threads of a service change nothing of theirs.
            static OWN: Option<Standing> = Watch::at("/proc/self").and_then(|w| w.standing());
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
        self.status()
            .is_some_and(|text| text.lines().any(|l| l.starts_with("Seccomp:") && !l.ends_with("\t0")))
    }

    /// Makes this process, which has one thread, one that may do just what that one may. On failure it may have lost some rights already, and is of no use.
    /// By which of the numbers under NSpid in /proc/PID/status that process, and others with the same rights, go in the /proc that is seen from then on.
    pub fn assume(&self) -> io::Result<u32> {
        let status = self.status().ok_or(io::ErrorKind::NotFound)?;
        let wanted = self.standing().ok_or(io::ErrorKind::NotFound)?;
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name));
        let numbers = |name: &str, radix| -> Vec<u64> {
            let words = field(name).unwrap_or_default().split_whitespace();
            words.filter_map(|w| u64::from_str_radix(w, radix).ok()).collect()
        };
        if numbers("Seccomp:", 10) != [0] {
            return Err(io::Error::other("a filter of system calls stands over it"));
        }
        let began = self.began();
        let own = Watch::at("/proc/self").and_then(|w| w.standing());
        let own = own.ok_or(io::ErrorKind::NotFound)?;
        let open = |name: &str, flags| openat(&self.directory, name, flags, Mode::empty());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let user = open("ns/user", flags)?;
        let mounts = open("ns/mnt", flags)?;
        let root = open("root", OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY)?;
        let enter = |fd: &OwnedFd, kind| {
            // SAFETY: numbers only.
            match unsafe { libc::setns(fd.as_raw_fd(), kind) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        if own.namespaces[1] != wanted.namespaces[1] {
            enter(&user, libc::CLONE_NEWUSER)?;
        }
        if own.namespaces[0] != wanted.namespaces[0] {
            enter(&mounts, libc::CLONE_NEWNS)?;
        }
        if own.namespaces[0] != wanted.namespaces[0] || own.root != wanted.root {
            rustix::process::fchdir(&root)?;
            rustix::process::chroot(".")?;
        }
        let [uids, gids] = ["Uid:", "Gid:"].map(|name| numbers(name, 10));
        let groups: Vec<libc::gid_t> = numbers("Groups:", 10).iter().map(|g| *g as _).collect();
        let ids = |ids: &[u64]| -> io::Result<[libc::uid_t; 4]> {
            let ids: Vec<_> = ids.iter().map(|n| *n as libc::uid_t).collect();
            ids.try_into().map_err(|_| io::ErrorKind::InvalidData.into())
        };
        let ([ruid, euid, suid, fsuid], [rgid, egid, sgid, fsgid]) = (ids(&uids)?, ids(&gids)?);
        let done = |r: libc::c_long| match r {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        // SAFETY: numbers, and arrays that outlive the calls. Bare calls: this process has one thread.
        unsafe {
            if own.lines != wanted.lines {
                // What is not to be lost by changing the user.
                let keep = libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_KEEP_CAPS | SECBIT_NO_SETUID_FIXUP);
                if keep != 0 {
                    libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0);
                }
                let own_groups = own.lines.iter().find(|l| l.starts_with("Groups:"));
                let its_groups = wanted.lines.iter().find(|l| l.starts_with("Groups:"));
                if own_groups != its_groups {
                    done(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
                }
                done(libc::syscall(libc::SYS_setresgid, rgid, egid, sgid))?;
                libc::syscall(libc::SYS_setfsgid, fsgid);
                done(libc::syscall(libc::SYS_setresuid, ruid, euid, suid))?;
                libc::syscall(libc::SYS_setfsuid, fsuid);
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
            done(libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()))?;
            let ambient = capabilities("CapAmb:");
            for capability in 0..64u64 {
                if ambient >> capability & 1 != 0 {
                    libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, capability, 0, 0);
                }
            }
            // It holds nothing secret, and who has its rights may look at it: /proc/self is its own again.
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        }
        let now = Watch::at("/proc/self").and_then(|w| w.standing());
        if now.as_ref() != Some(&wanted) {
            return Err(io::Error::other("its rights can't be had exactly"));
        }
        let names = numbers("NSpid:", 10);
        let is_it = |n: &u64| began.is_some() && Watch::of(*n as u32).is_some_and(|w| w.began() == began);
        let level = names.iter().rposition(is_it);
        level
            .map(|level| level as u32)
            .ok_or_else(|| io::Error::other("its /proc does not show it"))
    }

    /// When the process began, in clock ticks since the system did, as /proc/PID/stat has it.
    fn began(&self) -> Option<String> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat(&self.directory, "stat", flags, Mode::empty()).ok()?;
        let mut text = Vec::new();
        File::from(file).read_to_end(&mut text).ok()?;
        let text = String::from_utf8_lossy(&text).into_owned();
        // Behind the name, which may be anything.
        let fields = text.rsplit_once(')')?.1;
        fields.split_whitespace().nth(19).map(str::to_owned)
    }
}

/// linux/securebits.h.
const SECBIT_KEEP_CAPS: libc::c_ulong = 1 << 4;
const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
/// linux/capability.h.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC B16: a process is like itself and its children; one with another user is not.
    #[test]
    fn rights_are_told_apart() {
        let mut own = Watch::of(std::process::id()).unwrap();
        assert!(own.is_like_this());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
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
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sleep", "60"])
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
