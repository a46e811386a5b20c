//! How the library gets into the program: LD_PRELOAD.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use outrider_sys::program::{Entry, Named, Taking, has_musl, taking};
use outrider_sys::{device, raw};

use crate::output::{Failure, show};
use crate::{elf, filter, own_directory};

/// The library's file.
pub const LIBRARY: &str = "liboutrider.so";

/// Where packages have the library, below the directory above the command's: in a directory of its own, so that a
/// command never meets another version of it.
pub const PACKAGED: &str = "lib/outrider";

/// The library: beside the command, in ../lib, or in ../lib/outrider.
pub fn library() -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe()
        .or_else(|e| named_by_the_kernel().ok_or(e))
        .map_err(|e| Failure::usage(format!("cannot find this command's own file: {e}")))?;
    let directory = exe.parent().unwrap_or(Path::new("/"));
    let above = directory.parent().unwrap_or(directory);
    let places = [
        directory.join(LIBRARY),
        above.join("lib").join(LIBRARY),
        above.join(PACKAGED).join(LIBRARY),
    ];
    let found = places.iter().find_map(|place| kept_near(place, &exe));
    let Some(found) = found else {
        let [beside, lib, packaged] = places.each_ref().map(show);
        let other = places.iter().find(|place| place.is_file());
        let left = other.map_or_else(String::new, |other| {
            let what = "is left alone, as others can exchange it than can this command";
            format!("; {} {what}", show(other))
        });
        return Err(Failure::usage(format!(
            "liboutrider.so is missing: looked for {beside}, {lib} and {packaged}{left}"
        )));
    };
    let found: &Path = &found;
    if is_plain(found) {
        return Ok(found.to_owned());
    }
    link_to(found).ok_or_else(|| {
        Failure::usage(format!(
            "{} cannot be preloaded: LD_PRELOAD accepts no path with a colon, white space, `$` or `..`, and a link to it could not be made in ~/.cache, or root's /var/lib",
            show(found)
        ))
    })
}

fn is_plain(path: &Path) -> bool {
    // SAFETY: a C string.
    text(path).is_some_and(|text| unsafe { own_directory::is_plain(text.as_ptr().cast()) })
}

/// Where a file lies that is named so, if whoever can put another in its place, or have its name lead elsewhere, could do so with this command: see
/// [`own_directory::is_as_kept`].
pub fn kept_near(file: &Path, command: &Path) -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let is_kept = |file: &Path, links| {
        let texts = text(file).zip(text(command));
        texts.is_some_and(|(file, command)| {
            let [mut file, mut command] = [file, command].map(CString::into_bytes_with_nul);
            let (file, command) = (file.as_mut_ptr(), command.as_mut_ptr());
            // SAFETY: texts of their own.
            unsafe { own_directory::is_as_kept(file, command, user, links) }
        })
    };
    let found = file.canonicalize().ok().filter(|file| file.is_file())?;
    (is_kept(file, true) && is_kept(&found, false)).then_some(found)
}

fn text(path: &Path) -> Option<CString> {
    CString::new(path.as_os_str().as_bytes()).ok()
}

/// A plain path to the library: a link in a directory that only this user can change.
fn link_to(library: &Path) -> Option<PathBuf> {
    let (path, mut name) = (text(library)?, String::new());
    // SAFETY: a C string.
    unsafe { own_directory::name_of(path.as_ptr().cast(), |b| name.push(b.into())) };
    in_own_directory(&name, |link| {
        // Another run may be making it.
        let _ = std::os::unix::fs::symlink(library, link);
        let leads_there = std::fs::read_link(link).is_ok_and(|target| target == library);
        leads_there && link.is_file()
    })
}

/// A filter that stands for the library in LD_PRELOAD, where musl's programs may be: see [`filter`]. With plug-ins, which stand there themselves, there
/// is no use in one.
pub fn filter_for(library: &Path, plugins: &[PathBuf]) -> Option<PathBuf> {
    if !plugins.is_empty() || !has_musl() {
        return None;
    }
    let (path, mut name) = (text(library)?, String::new());
    // SAFETY: a C string.
    unsafe { filter::directory(path.as_ptr().cast(), |b| name.push(b.into())) };
    in_own_directory(&name, |path| filter::made(library, path))
}

/// The library's name in a directory that only this user can change, once `make` has made the file.
fn in_own_directory(name: &str, make: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let is_kept = |directory: &PathBuf| {
        let text = text(directory).map(CString::into_bytes_with_nul);
        // SAFETY: a text of its own.
        text.is_some_and(|mut text| unsafe { own_directory::is_kept_by(text.as_mut_ptr(), user) })
    };
    let below = |place: &Path, name: &str| {
        let mut path = place.as_os_str().to_owned();
        path.push(name);
        PathBuf::from(path)
    };
    let places = [
        (user == 0).then(|| PathBuf::from(OsStr::from_bytes(own_directory::ROOTS.to_bytes()))),
        variable("HOME").map(|home| below(&home, own_directory::IN_HOME)),
    ];
    let kept = places.into_iter().flatten();
    let kept = kept.filter(|directory| is_plain(directory) && is_kept(directory));
    let mut places = kept.map(|directory| below(&directory, own_directory::NAME));
    places.find_map(|own| {
        let within = own.join(name);
        for directory in [&own, &within] {
            // Others may load the library, too.
            let _ = std::fs::DirBuilder::new().mode(0o755).create(directory);
            let text = text(directory)?;
            // SAFETY: a C string.
            unsafe { own_directory::is_ours(text.as_ptr().cast(), user) }.then_some(())?;
        }
        let path = within.join(LIBRARY);
        make(&path).then_some(path)
    })
}

/// What the report says where [`fits`] doesn't hold, and nothing else told why.
pub const UNFIT: &str = "library: what was started can't be given it (no dynamic linker of the GNU C library here, one that only lists what it would load, or one of another word size or for another C library, which what a static program starts may need); it ran without Outrider, and so did what it started";

/// Whether the program, with its arguments, can be given the library: it is not one that another linker starts, or that only has a linker
/// list what it would load. `entry` is what LD_PRELOAD is to have. `false` where the GNU C library's linker isn't there at all.
pub fn fits(command: &[OsString], entry: Entry) -> bool {
    if !Path::new(OsStr::from_bytes(LINKER.to_bytes())).exists()
        || std::env::var_os("LD_TRACE_LOADED_OBJECTS").is_some()
    {
        return false;
    }
    let Some(path) = elf::look_up(&command[0]) else {
        return true;
    };
    let Ok(text) = CString::new(path.into_os_string().into_vec()) else {
        return true;
    };
    let path = text.as_ptr().cast();
    let named = Named {
        dir: libc::AT_FDCWD,
        path,
        name: path,
    };
    // SAFETY: a C string.
    match unsafe { taking(named, entry) } {
        Taking::Fits => true,
        Taking::Unfit => false,
        Taking::Linker => !command[1..]
            .iter()
            .any(|argument| argument == "--list" || argument == "--verify"),
    }
}

/// This command's own file by the name that it was executed by: for where there is no /proc.
fn named_by_the_kernel() -> Option<PathBuf> {
    // SAFETY: a C string that stays, or nothing.
    let name = unsafe {
        let at = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        (!at.is_null()).then(|| CStr::from_ptr(at))?
    };
    Path::new(OsStr::from_bytes(name.to_bytes()))
        .canonicalize()
        .ok()
}

/// Why the library can't be loaded, if that can be seen: the dynamic linker would say so in the program's name.
pub fn unloadable(library: &Path) -> Option<String> {
    let what = match elf::classify_library(library) {
        Ok(true) => match std::fs::File::open(library).map(|f| can_be_executed(f.as_raw_fd())) {
            Ok(Ok(())) => return None,
            Ok(Err(errno)) => format!(
                "can't be mapped for execution: {}; a file system mounted noexec, or a security module, refuses it",
                std::io::Error::from_raw_os_error(errno)
            ),
            Err(e) => format!("can't be read: {e}"),
        },
        Ok(false) => "is no shared object of this machine's kind".to_owned(),
        Err(e) => format!("can't be read: {e}"),
    };
    Some(format!("{} {what}", show(library)))
}

/// Whether code of this file may be executed: the dynamic linker would say that it may not in the program's name. The errno where it may not.
// No functions of the C library: `fast_start` asks, too.
#[inline]
pub fn can_be_executed(fd: i32) -> Result<(), i32> {
    let access = (libc::PROT_READ | libc::PROT_EXEC) as usize;
    let private = libc::MAP_PRIVATE as usize;
    // SAFETY: a new mapping, which is gone again at once.
    unsafe {
        let at = raw::syscall6(libc::SYS_mmap, 0, PAGE, access, private, fd as usize, 0);
        if at < 0 && at > -4096 {
            return Err(-at as i32);
        }
        raw::syscall6(libc::SYS_munmap, at as usize, PAGE, 0, 0, 0, 0);
    }
    Ok(())
}

const PAGE: usize = outrider_sys::units::PAGE as usize;

/// Bytes of a file that are read ahead: all of the library, and most of it is needed.
const AHEAD: usize = 2 << 20;

/// Has the kernel read a file that the program's start will need, without waiting for it. The dynamic linker and then the code itself
/// would otherwise find a page in eight places that is not there, and wait for each. The engine can't: this runs before the C library has started, too.
#[inline]
pub fn read_ahead(fd: i32) {
    let mut at = 0;
    while at < AHEAD {
        raw::readahead(fd, at as i64, PIECE);
        at += PIECE;
    }
}

/// [`device::UNCLIPPED_CHUNK`].
const PIECE: usize = device::UNCLIPPED_CHUNK as usize;

/// Puts the library, or a filter that stands for it, and the plug-ins into LD_PRELOAD, in front of what is there, and names the plug-ins to the library.
///
/// # Safety
/// The process has one thread.
pub unsafe fn set(library: &Path, filter: Option<&Path>, plugins: &[PathBuf]) {
    let listed = |paths: Vec<OsString>, variable: &str| {
        let old = std::env::var_os(variable).filter(|v| !v.is_empty());
        let value = paths.into_iter().chain(old).reduce(|mut list, path| {
            list.push(":");
            list.push(path);
            list
        });
        // SAFETY: as promised.
        unsafe { std::env::set_var(variable, value.unwrap_or_default()) };
    };
    for path in std::iter::once(library).chain(plugins.iter().map(PathBuf::as_path)) {
        if let Ok(file) = std::fs::File::open(path) {
            read_ahead(file.as_raw_fd());
        }
    }
    let plugins = || plugins.iter().map(PathBuf::as_path);
    let preloaded = std::iter::once(filter.unwrap_or(library)).chain(plugins());
    listed(preloaded.map(OsString::from).collect(), "LD_PRELOAD");
    suit_sanitizers();
    if plugins().next().is_some() {
        listed(plugins().map(OsString::from).collect(), "OUTRIDER_PLUGINS");
    }
}

/// The GNU C library's dynamic linker, by the name that programs ask for.
#[cfg(not(target_arch = "aarch64"))]
pub const LINKER: &CStr = c"/lib64/ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
pub const LINKER: &CStr = c"/lib/ld-linux-aarch64.so.1";

/// What makes AddressSanitizer's runtime start where another library comes before it.
pub const SANITIZER_OPTION: &CStr = c"verify_asan_link_order=0";

/// AddressSanitizer's runtime refuses to start where another library comes before it. Ours may: what it hands on goes to the
/// next library's functions, which are the runtime's.
fn suit_sanitizers() {
    let mut value = std::env::var_os("ASAN_OPTIONS").unwrap_or_default();
    if !value.is_empty() {
        value.push(":");
    }
    value.push(OsStr::from_bytes(SANITIZER_OPTION.to_bytes()));
    // SAFETY: as promised to `set`.
    unsafe { std::env::set_var("ASAN_OPTIONS", value) };
}
