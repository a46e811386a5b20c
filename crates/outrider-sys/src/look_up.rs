//! Looking names up without asking a server.
//!
//! A file is found by its name some time after the kernel told it, and whatever lies on the way may have changed: a server (FUSE, NFS) may be mounted there that
//! never answers, and whoever asks it for a part of the name waits for ever. So the kernel is asked for what it knows by itself, which is all that somebody has open or
//! mapped. What it has forgotten is looked for from the root of its mount on, which is known, and no other mount is entered. Links are followed nowhere: names that the kernel
//! tells have none.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::fs::{openat, statx};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::device::{Mount, above, with_mounts};
use crate::raw::Fd;
use crate::units::DeviceId;
use crate::valgrind;

/// openat2(2) of what exists, as `how` says to look it up. ENOSYS on Valgrind, which complains of it, and before Linux 5.6; a filter that doesn't know it says
/// EPERM.
pub fn openat2(
    dir: impl AsFd,
    name: impl Arg,
    flags: OFlags,
    how: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    if valgrind::is_below() {
        return Err(Errno::NOSYS);
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that asks who runs us"
    )]
    rustix::fs::openat2(dir, name, flags, Mode::empty(), how)
}

/// What has this absolute name, opened without any right (O_PATH). `None` as well where a server would have to be asked.
pub fn look_up(name: &Path) -> Option<Fd> {
    find(name, || with_mounts(|mounts| below(name, mounts)))
}

/// The same where these are the mounts; no descriptor stays open for them.
pub(crate) fn look_up_among(name: &Path, mounts: &[Mount]) -> Option<Fd> {
    find(name, || below(name, mounts))
}

fn find(name: &Path, otherwise: impl FnOnce() -> Option<Fd>) -> Option<Fd> {
    if !name.is_absolute() {
        return None;
    }
    match known(name) {
        Ok(found) => Some(found),
        Err(e) if e == Errno::AGAIN || is_strange(e) => otherwise(),
        Err(_) => None,
    }
}

/// The number of a disk by its name below /dev, where links are followed that stay there.
pub(crate) fn disk_named(name: &Path) -> Option<DeviceId> {
    let rest = name.strip_prefix("/dev").ok()?;
    let (flags, mode) = (OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let found = match known(Path::new("/dev")) {
        Ok(dev) => openat2(dev, rest, flags, how),
        Err(e) if is_strange(e) => openat(CWD, name, flags, mode),
        Err(e) => Err(e),
    };
    let found = Fd::from(found.ok()?);
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let st = statx(&found, c"", flags, StatxFlags::TYPE).ok()?;
    let is_disk = FileType::from_raw_mode(st.stx_mode.into()).is_block_device();
    is_disk.then(|| DeviceId::new(st.stx_rdev_major, st.stx_rdev_minor))
}

/// How something is looked up.
const FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const STRAIGHT: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);
const WITHIN: ResolveFlags = STRAIGHT
    .union(ResolveFlags::BENEATH)
    .union(ResolveFlags::NO_XDEV);

/// The same as far as the kernel knows names by itself, without waiting for anything; EAGAIN: it doesn't.
fn known(name: &Path) -> rustix::io::Result<Fd> {
    /// It says so, too, where something is being mounted or renamed at this moment.
    const TIMES: usize = 3;
    let how = STRAIGHT.union(ResolveFlags::CACHED);
    let mut found = Err(Errno::AGAIN);
    for _ in 0..TIMES {
        found = openat2(CWD, name, FLAGS, how);
        if !matches!(found, Err(Errno::AGAIN)) {
            break;
        }
    }
    found.map(Fd::from)
}

/// Whether nobody looks up so: on Valgrind, before Linux 5.12, or for a filter.
fn is_strange(e: Errno) -> bool {
    matches!(e, Errno::INVAL | Errno::NOSYS | Errno::PERM)
}

/// The same below what is mounted last on the way to it, if nothing on the way is a server's.
fn below(name: &Path, mounts: &[Mount]) -> Option<Fd> {
    let on_the_way = || mounts.iter().filter(|m| name.starts_with(&m.mount_point));
    if on_the_way().any(|m| m.fs_type == "autofs" || m.is_served() || m.has_served_layers(mounts)) {
        return None;
    }
    let mount = above(name, mounts);
    // The root of a process need not be one.
    let at = mount.map_or(Path::new("/"), |m| &m.mount_point);
    let root = match known(at) {
        Err(e) if is_strange(e) => openat(CWD, at, FLAGS, Mode::empty()).map(Fd::from),
        found => found,
    };
    let root = root.ok()?;
    // Something else may have been mounted there or above it by now.
    if mount.is_some_and(|m| id_of_mount(&root).is_some_and(|id| id != m.id)) {
        return None;
    }
    let rest = name.strip_prefix(at).ok()?;
    if rest.as_os_str().is_empty() {
        return Some(root);
    }
    let found = match openat2(&root, rest, FLAGS, WITHIN) {
        Err(e) if is_strange(e) => openat(&root, rest, FLAGS, Mode::empty()),
        found => found,
    };
    found.ok().map(Fd::from)
}

/// The number of the mount as which something was found, from Linux 5.8 on.
fn id_of_mount(found: &Fd) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let st = statx(found, c"", flags, StatxFlags::MNT_ID).ok()?;
    (st.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(st.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::raw;

    /// A file is found by its name whether the kernel knows it by heart or not, and neither behind a link nor on another mount than the one of its directory.
    #[test]
    fn names_are_looked_up_where_they_lie() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let file = dir.join("file");
        std::fs::write(&file, "").unwrap();
        symlink("file", dir.join("link")).unwrap();
        symlink(&dir, dir.join("around")).unwrap();
        let is_it = |found: Option<Fd>| {
            use std::os::unix::fs::MetadataExt;
            let st = found.and_then(|found| raw::status(found.as_raw_fd()).ok());
            let own = std::fs::metadata(&file).unwrap();
            st.is_some_and(|st| (st.st_dev, st.st_ino) == (own.dev(), own.ino()))
        };
        assert!(is_it(look_up(&file)));
        with_mounts(|mounts| {
            assert!(is_it(below(&file, mounts)));
            assert!(below(&dir.join("link/file"), mounts).is_none());
            assert!(below(&dir.join("around/file"), mounts).is_none());
            assert!(below(Path::new("/"), mounts).is_some());
            // A table that is out of date.
            let mut gone = mounts.to_vec();
            for mount in &mut gone {
                mount.id += 1 << 40;
            }
            assert!(below(&file, &gone).is_none());
            for kind in ["fuse.sshfs", "autofs", "nfs4"] {
                let mut served = mounts.to_vec();
                for mount in &mut served {
                    kind.clone_into(&mut mount.fs_type);
                }
                assert!(below(&file, &served).is_none());
            }
        });
        for wrong in [
            dir.join("none"),
            dir.join("around/file"),
            "file".into(),
            "/proc/self/cwd/file".into(),
        ] {
            assert!(look_up(&wrong).is_none(), "{}", wrong.display());
        }
    }
}
