//! Where a file may lie that LD_PRELOAD names in the library's place: in a directory that only this user can change. It stays there, for programs that go on
//! when the runner is gone.
//!
//! No functions of the C library: `fast_start` looks there, too.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use outrider_sys::{fnv, raw};

use crate::plain::{Text, after, byte};

/// Below [`ROOTS`] if the user is root, and below [`IN_HOME`] of HOME if only this user can put something there. A program in another root, or where something else is
/// mounted, may find another file by the same name: so no directory will do that is mounted anew for programs and open to all then, as /tmp and /run are.
/// Who can change these has the user's programs anyway.
pub const NAME: &str = "/outrider";
pub const ROOTS: &CStr = c"/var/lib";
pub const IN_HOME: &str = "/.cache";

/// Whether a path is absolute and means the same to everybody who takes LD_PRELOAD for text: the dynamic linker has no way to quote what separates
/// entries, and it, make(1) and shells expand what begins with `$`.
///
/// # Safety
/// A text. For this and all that follow.
#[unsafe(link_section = ".text")]
pub unsafe fn is_plain(path: Text) -> bool {
    let mut i = 0;
    // SAFETY: within the text, or at its end.
    unsafe {
        loop {
            match byte(path, i) {
                0 => return byte(path, 0) == b'/',
                1..=b' ' | b':' | b'$' | 127 => return false,
                b'/' if after(path.add(i + 1), b"..")
                    .is_some_and(|rest| matches!(byte(rest, 0), 0 | b'/')) =>
                {
                    return false;
                }
                _ => i += 1,
            }
        }
    }
}

/// What lies at a path, a link itself: its kind and permissions, and whose it is.
struct Look {
    mode: u32,
    owner: u32,
    group: u32,
}

impl Look {
    fn is(&self, kind: u32) -> bool {
        self.mode & libc::S_IFMT == kind
    }
}

unsafe fn look(path: Text) -> Option<Look> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    let status = status.as_mut_ptr();
    let (at, link) = (libc::AT_FDCWD, libc::AT_SYMLINK_NOFOLLOW);
    // SAFETY: as promised; the kernel writes the structure before it is read.
    unsafe {
        let answer = raw::syscall6(
            libc::SYS_newfstatat,
            at as usize,
            path as usize,
            status as usize,
            link as usize,
            0,
            0,
        );
        (answer == 0).then(|| Look {
            mode: (*status).st_mode,
            owner: (*status).st_uid,
            group: (*status).st_gid,
        })
    }
}

/// The same of the first `end` bytes of a path, which is cut off in its place, and is what it was then. The root is its own slash.
unsafe fn look_before(path: *mut u8, end: usize) -> Option<Look> {
    // SAFETY: within the text, or at its end.
    unsafe {
        let cut = path.add(end.max(1));
        let there = cut.read_volatile();
        cut.write_volatile(0);
        let found = look(path);
        cut.write_volatile(there);
        found
    }
}

/// Whether a path is a directory's that only this user can change.
pub unsafe fn is_ours(path: Text, user: u32) -> bool {
    // SAFETY: as promised.
    unsafe { look(path) }.is_some_and(|found| {
        found.is(libc::S_IFDIR) && found.owner == user && found.mode & 0o022 == 0
    })
}

/// Whether nobody but this user and root can put another directory in the place of this one, nor where something else is mounted in the place of one above which all may
/// write to: whoever has another's environment (su, sudo -E) has his directory, too. The path is absolute; it is what it was, afterwards.
#[unsafe(link_section = ".text")]
pub unsafe fn is_kept_by(path: *mut u8, user: u32) -> bool {
    let mut end = 0;
    // SAFETY: within the text, or at its end.
    unsafe {
        loop {
            let next = byte(path, end);
            if next == b'/' || next == 0 {
                let kept = look_before(path, end).is_some_and(|found| {
                    let is_closed = found.is(libc::S_IFDIR) && found.mode & 0o022 == 0;
                    is_closed && (found.owner == 0 || found.owner == user)
                });
                if !kept || next == 0 {
                    return kept;
                }
            }
            end += 1;
        }
    }
}

/// Whether whoever can put another file in the place of this one could do so with the `command`, too, or is this user or root: what is found because it lies near a command
/// is loaded into programs. Both are absolute paths without `.` and `..`, and are what they were, afterwards. Directories that both lie in are not looked at. `links` may be
/// on the way, whose targets are to be looked at besides.
#[unsafe(link_section = ".text")]
pub unsafe fn is_as_kept(path: *mut u8, command: *mut u8, user: u32, links: bool) -> bool {
    // SAFETY: within the texts, or at their ends.
    unsafe {
        let (mut directory, mut common, mut i) = (0, 0, 0);
        let mut alike = true;
        while byte(command, i) != 0 {
            // Not beyond the end of the shorter one.
            alike = alike && byte(command, i) == byte(path, i);
            if byte(command, i) == b'/' {
                directory = i;
                if alike {
                    common = i;
                }
            }
            i += 1;
        }
        let (Some(own), Some(above)) = (look(command), look_before(command, directory)) else {
            return false;
        };
        // As on a file system that has no permissions.
        if own.mode & 0o002 != 0 || above.mode & 0o1002 == 0o002 {
            return true;
        }
        let groups = [
            (above.mode & 0o1020 == 0o020).then_some(above.group),
            (own.mode & 0o020 != 0).then_some(own.group),
        ];
        let mut end = common + 1;
        loop {
            let next = byte(path, end);
            if next == b'/' || next == 0 {
                let kept = look_before(path, end).is_some_and(|found| {
                    let kind = match next {
                        0 => libc::S_IFREG,
                        _ => libc::S_IFDIR,
                    };
                    let is_link = links && found.is(libc::S_IFLNK);
                    let is_closed = match found.mode & 0o022 {
                        0 => true,
                        // Of what lies there each is changed by its owner only.
                        _ if next != 0 && found.mode & 0o1000 != 0 => true,
                        // A group, if it may exchange the command, or is the owner's own.
                        0o020 => groups.contains(&Some(found.group)) || found.group == found.owner,
                        _ => false,
                    };
                    let owner = found.owner;
                    (is_link || found.is(kind) && is_closed)
                        && (owner == 0
                            || owner == user
                            || owner == own.owner
                            || owner == above.owner)
                });
                if !kept || next == 0 {
                    return kept;
                }
            }
            end += 1;
        }
    }
}

/// A directory's name for a file of this path, to `put` byte by byte: another one for another path is all that it needs to be.
pub unsafe fn name_of(path: Text, mut put: impl FnMut(u8)) {
    let mut hash = fnv::NOTHING;
    let mut i = 0;
    // SAFETY: within the text, or at its end.
    unsafe {
        while byte(path, i) != 0 {
            hash = fnv::then(hash, byte(path, i));
            i += 1;
        }
    }
    for digit in 0..16 {
        let digit = (hash >> (60 - 4 * digit) & 15) as u8;
        put(digit + if digit < 10 { b'0' } else { b'a' - 10 });
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn plain_paths_are_told_from_others() {
        let plain = |path: &str| {
            let text = CString::new(path).unwrap();
            // SAFETY: a C string.
            unsafe { is_plain(text.as_ptr().cast()) }
        };
        for path in ["/", "/a", "/a..", "/..a/b.so", "/a/.../b", "/a//b/", "/ä"] {
            assert!(plain(path), "{path}");
        }
        for path in [
            "", "a", "./a", "/..", "/../a", "/a/..", "/a/../b", "/a b", "/a:b", "/a$b", "/a\nb",
            "/a\x7f",
        ] {
            assert!(!plain(path), "{path}");
        }
    }

    #[test]
    fn a_name_is_the_paths_hash() {
        let mut name = String::new();
        // SAFETY: a C string.
        unsafe { name_of(c"foobar".as_ptr().cast(), |b| name.push(b.into())) };
        // FNV's own test vector.
        assert_eq!(name, "85944171f73967e8");
    }

    /// B11, B16: what lies near a command is taken if who could exchange it could exchange that as well.
    #[test]
    fn what_lies_near_a_command() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let user = rustix::process::geteuid().as_raw();
        let set = |name: &str, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(dir.join(name), mode).unwrap();
        };
        let both = |name: &str| {
            let text = |path: std::path::PathBuf| {
                CString::new(path.into_os_string().into_encoded_bytes())
                    .unwrap()
                    .into_bytes_with_nul()
            };
            let (mut path, mut command) = (text(dir.join(name)), text(dir.join("bin/command")));
            let before = (path.clone(), command.clone());
            let [kept, with_links] = [false, true].map(|links| {
                // SAFETY: texts of their own.
                unsafe { is_as_kept(path.as_mut_ptr(), command.as_mut_ptr(), user, links) }
            });
            assert_eq!((path, command), before);
            (kept, with_links)
        };
        let kept = |name: &str| {
            let (kept, with_links) = both(name);
            assert_eq!(kept, with_links, "{name}");
            kept
        };
        for name in ["bin", "lib", "lib/below"] {
            std::fs::create_dir(dir.join(name)).unwrap();
            set(name, 0o755);
        }
        for name in ["bin/command", "bin/a", "lib/a", "lib/below/a"] {
            std::fs::write(dir.join(name), "").unwrap();
            set(name, 0o644);
        }
        std::os::unix::fs::symlink("a", dir.join("lib/link")).unwrap();
        std::os::unix::fs::symlink("lib", dir.join("around")).unwrap();
        let near = ["bin/a", "lib/a", "lib/below/a"];
        assert!(near.iter().all(|name| kept(name)));
        assert!(!kept("lib/absent") && !kept("lib/below"));
        for name in ["lib/link", "around/a"] {
            assert_eq!(both(name), (false, true), "{name}");
        }
        // Whoever may write where both are may exchange both.
        set(".", 0o777);
        assert!(near.iter().all(|name| kept(name)));
        set("lib/a", 0o666);
        assert!(!kept("lib/a") && kept("lib/below/a"));
        set("lib", 0o777);
        assert!(!kept("lib/below/a") && kept("bin/a"));
        set("lib", 0o1777);
        assert!(kept("lib/below/a"));
        // A group, if it is that of the command's directory.
        let give_group = |group| {
            std::os::unix::fs::chown(dir.join("lib"), None, Some(group)).unwrap();
            std::os::unix::fs::chown(dir.join("bin"), None, Some(group)).unwrap();
        };
        if user == 0 {
            give_group(1236);
            set("lib", 0o775);
            assert!(!kept("lib/below/a"));
            set("bin", 0o775);
            assert!(kept("lib/below/a"));
            // The owner's own.
            set("bin", 0o755);
            give_group(0);
            assert!(kept("lib/below/a"));
        }
        // What all may write to is no safer itself.
        set("lib", 0o777);
        for own in ["bin/command", "bin"] {
            set(own, 0o777);
            assert!(kept("lib/below/a"));
            set(own, 0o755);
            assert!(!kept("lib/below/a"));
        }
        set("lib", 0o755);
        // Another's.
        if user == 0 {
            let give =
                |name: &str, user| std::os::unix::fs::chown(dir.join(name), Some(user), None);
            give("lib/below", 1234).unwrap();
            assert!(!kept("lib/below/a"));
            give("bin/command", 1234).unwrap();
            assert!(kept("lib/below/a"));
            give("bin/a", 1235).unwrap();
            assert!(!kept("bin/a"));
        }
    }

    #[test]
    fn whose_a_directory_is() {
        // Not below /tmp, where all may write.
        let above = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(above.parent().unwrap()).unwrap();
        let user = rustix::process::geteuid().as_raw();
        let path = dir.path().canonicalize().unwrap().join("a");
        std::fs::create_dir_all(path.join("b")).unwrap();
        std::os::unix::fs::symlink(&path, path.with_file_name("link")).unwrap();
        let ours = |path: &std::path::Path, user| {
            let text = CString::new(path.to_str().unwrap()).unwrap();
            // SAFETY: a C string.
            unsafe { is_ours(text.as_ptr().cast(), user) }
        };
        let kept = |path: &str, user| {
            let mut text = CString::new(path).unwrap().into_bytes_with_nul();
            let before = text.clone();
            // SAFETY: a text of its own.
            let kept = unsafe { is_kept_by(text.as_mut_ptr(), user) };
            assert_eq!(text, before);
            kept
        };
        let below = |name: &str| path.with_file_name(name).to_str().unwrap().to_owned();
        let set = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(0o755);
        assert!(ours(&path, user) && !ours(&path, user + 1));
        assert!(!ours(&path.with_file_name("link"), user));
        assert!(kept("/", user) && kept(&below("a/b"), user) && kept(&below("a//b/"), user));
        assert!(!kept(&below("link"), user) && !kept(&below("link/b"), user));
        assert!(!kept(&below("absent"), user));
        // A file's.
        std::fs::write(path.join("f"), "").unwrap();
        assert!(!ours(&path.join("f"), user) && !kept(&below("a/f"), user));
        // root's are everybody's.
        assert_eq!(kept(&below("a/b"), user + 1), user == 0);
        for (mode, only_ours, closed) in [
            (0o775, false, false),
            (0o757, false, false),
            (0o1777, false, false),
            (0o700, true, true),
        ] {
            set(mode);
            assert_eq!(ours(&path, user), only_ours, "{mode:o}");
            assert_eq!(kept(&below("a"), user), closed, "{mode:o}");
            assert_eq!(kept(&below("a/b"), user), closed, "{mode:o}");
        }
    }
}
