//! What surrounds a run: the files of /proc and /sys that there are, filters of system calls, the C library, and a FUSE file system's manners.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::read::elf::ElfFile64;
use object::read::{ReadCache, ReadRef};
use outrider_sys::device::{Device, Mount, mounts};
use outrider_sys::units::PAGE;
use outrider_sys::{cache, seccomp};

use super::{Finding, Verdict, info};
use crate::output::show;
use crate::preload;

fn yes(name: &'static str, detail: impl Into<String>) -> Finding {
    Finding {
        name,
        verdict: Verdict::Yes,
        detail: detail.into(),
        lost: None,
    }
}

fn no(name: &'static str, detail: impl Into<String>, lost: &'static str) -> Finding {
    Finding {
        name,
        verdict: Verdict::No,
        detail: detail.into(),
        lost: Some(lost),
    }
}

/// All of it; `at` is a file or directory whose file system is looked at.
pub fn findings(at: &Path) -> Vec<Finding> {
    let mounts = mounts();
    let mut all = vec![proc(&mounts), sys(&mounts), filters(), c_library()];
    all.extend(fuse(at));
    all
}

/// What is mounted last on a directory.
fn mounted<'a>(mounts: &'a [Mount], on: &str) -> Option<&'a Mount> {
    mounts.iter().rfind(|m| m.mount_point == Path::new(on))
}

fn proc(mounts: &[Mount]) -> Finding {
    let name = "proc";
    if !Path::new("/proc/self/status").exists() {
        return no(name, "/proc is not mounted", "no program is followed");
    }
    let options = mounted(mounts, "/proc").map_or("", |m| m.options.as_str());
    let has = |start: &str| options.split(',').find(|o| o.starts_with(start));
    if has("subset=pid").is_some() || !Path::new("/proc/meminfo").exists() {
        return no(
            name,
            "subset=pid: only processes are shown",
            "what memory may be taken is estimated, and memory pressure is noticed later; --budget sets a limit",
        );
    }
    match has("hidepid=").filter(|option| !matches!(*option, "hidepid=0" | "hidepid=off")) {
        Some(option) => no(
            name,
            option,
            "programs of the run that change their user are not followed",
        ),
        None => yes(name, ""),
    }
}

fn sys(mounts: &[Mount]) -> Finding {
    let name = "sys";
    if !Path::new("/sys/dev/block").exists() {
        return no(
            name,
            "/sys is not mounted",
            "how far the kernel reads ahead, whether a disk rotates and what a volume lies on are not known; they are measured or assumed",
        );
    }
    // A flag of the mount, which its own options don't have.
    let flags = rustix::fs::statvfs("/sys").map(|st| st.f_flag);
    let read_only = flags.is_ok_and(|f| f.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    match read_only && mounted(mounts, "/sys").is_some() {
        true => info(
            name,
            "read-only: nothing is lost, since nothing is written there".to_owned(),
        ),
        false => yes(name, ""),
    }
}

fn filters() -> Finding {
    let name = "seccomp";
    match seccomp::filters() {
        Some(0) => yes(name, "no filter of system calls"),
        Some(n) if n != seccomp::UNKNOWN => no(
            name,
            crate::output::count(n as usize, "filter") + " of system calls",
            "the program runs without Outrider, unless something speaks for it that the filter kills nobody (a container, a service, OUTRIDER=on); a report names what is refused",
        ),
        _ => info(
            name,
            "the filters of system calls can't be counted".to_owned(),
        ),
    }
}

/// A version of the GNU C library.
type Version = (u32, u32);

fn shown((major, minor): Version) -> String {
    format!("{major}.{minor}")
}

/// The newest version of the GNU C library that a shared object's symbols have, which it needs, or which it defines.
fn newest(path: &Path, defined: bool) -> Option<Version> {
    let data = ReadCache::new(File::open(path).ok()?);
    let mut found: Vec<Version> = Vec::new();
    collect(&data, defined, |name| {
        let version = std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")?;
        let mut parts = version.split('.').map(str::parse);
        found.push((parts.next()?.ok()?, parts.next()?.ok()?));
        Some(())
    })
    .ok()?;
    found.into_iter().max()
}

fn collect<'a, R: ReadRef<'a>>(
    data: R,
    defined: bool,
    mut take: impl FnMut(&[u8]) -> Option<()>,
) -> object::Result<()> {
    let file = ElfFile64::<Endianness, R>::parse(data)?;
    let (endian, sections) = (file.endian(), file.elf_section_table());
    if defined {
        if let Some((mut all, link)) = sections.gnu_verdef(endian, data)? {
            let strings = sections.strings(endian, data, link)?;
            while let Some((_, mut names)) = all.next()? {
                if let Some(name) = names.next()? {
                    take(name.name(endian, strings)?);
                }
            }
        }
    } else if let Some((mut all, link)) = sections.gnu_verneed(endian, data)? {
        let strings = sections.strings(endian, data, link)?;
        while let Some((_, mut names)) = all.next()? {
            while let Some(name) = names.next()? {
                take(name.name(endian, strings)?);
            }
        }
    }
    Ok(())
}

/// The C libraries that a root's dynamic linker would load, where distributions keep them.
const LIBRARIES: [&str; 5] = [
    "lib/x86_64-linux-gnu/libc.so.6",
    "usr/lib/x86_64-linux-gnu/libc.so.6",
    "lib64/libc.so.6",
    "usr/lib/libc.so.6",
    "lib/aarch64-linux-gnu/libc.so.6",
];

/// Whether the C library of this root can load ours.
fn c_library() -> Finding {
    let name = "c_library";
    let lost = "programs that use it run without Outrider";
    let library = match preload::library() {
        Ok(library) => library,
        Err(failure) => return no(name, failure.message, "no program is followed"),
    };
    let there = LIBRARIES.iter().map(|path| Path::new("/").join(path));
    let Some(libc) = there.into_iter().find(|path| path.exists()) else {
        return no(name, "no GNU C library is here", lost);
    };
    match (newest(&libc, true), newest(&library, false)) {
        (Some(has), Some(needs)) if has < needs => no(
            name,
            format!(
                "{} is version {}, and {} needs {}",
                show(&libc),
                shown(has),
                show(&library),
                shown(needs)
            ),
            lost,
        ),
        (Some(has), Some(needs)) => yes(
            name,
            format!(
                "GNU C library {}; {} or later is needed",
                shown(has),
                shown(needs)
            ),
        ),
        _ => info(
            name,
            format!("the version of {} can't be read", show(&libc)),
        ),
    }
}

/// What a FUSE file system keeps in the page cache. Found out by reading a page of a file that is there.
fn fuse(at: &Path) -> Option<Finding> {
    let name = "fuse";
    let device = Device::of_path(at).ok()?;
    let kind = device.mount.as_ref()?.fs_type.clone();
    if kind != "fuse" && kind != "fuseblk" && !kind.starts_with("fuse.") {
        return None;
    }
    let Some(file) = some_file(at) else {
        let detail = format!("{kind}: no file in {} to be looked at", show(at));
        return Some(info(name, detail));
    };
    Some(match keeps(&file) {
        Ok((false, _)) => no(
            name,
            format!(
                "{kind}: direct_io, {} was read and isn't cached",
                show(&file)
            ),
            "nothing can be fetched ahead: what is read goes around the page cache",
        ),
        Ok((true, false)) => no(
            name,
            format!(
                "{kind}: no keep_cache, {} was dropped when it was opened again",
                show(&file)
            ),
            "what was fetched or cached of a file is gone when a program opens it; it is fetched while the file is open",
        ),
        Ok((true, true)) => yes(name, format!("{kind}: what is read stays cached")),
        Err(e) => info(name, format!("{kind}: {}: {e}", show(&file))),
    })
}

/// Whether what is read of a file is cached, and still is when it is opened again.
fn keeps(path: &Path) -> io::Result<(bool, bool)> {
    let file = File::open(path)?;
    file.read_at(&mut [0; 1], 0)?;
    let cached = |file: &File| {
        let count = cache::counted(file.as_fd(), 0..PAGE).map(|stat| stat.cached);
        count.or_else(|_| {
            let pages = cache::mincore(file.as_fd(), 0..PAGE)?;
            io::Result::Ok(pages.into_iter().filter(|page| *page).count() as u64)
        })
    };
    let kept = cached(&file)? > 0;
    let again = File::open(path)?;
    Ok((kept, cached(&again)? > 0))
}

/// A regular file that isn't empty: `at`, or one in it.
fn some_file(at: &Path) -> Option<PathBuf> {
    /// Entries that are looked at.
    const MOST: usize = 1000;
    let fits = |path: &Path| {
        let meta = fs::symlink_metadata(path);
        meta.is_ok_and(|m| m.is_file() && m.len() > 0) && File::open(path).is_ok()
    };
    if fits(at) {
        return Some(at.to_owned());
    }
    let entries = fs::read_dir(at).ok()?.take(MOST).flatten();
    entries.map(|entry| entry.path()).find(|path| fits(path))
}
