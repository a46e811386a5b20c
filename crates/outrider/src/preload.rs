//! How the library gets into the program: LD_PRELOAD.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use outrider_sys::{cache, raw};

use crate::elf;
use crate::output::{Failure, show};

/// The library: beside the command, or in ../lib.
pub fn library() -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe()
        .or_else(|e| named_by_the_kernel().ok_or(e))
        .map_err(|e| Failure::usage(format!("cannot find this command's own file: {e}")))?;
    let directory = exe.parent().unwrap_or(Path::new("/"));
    let places = [
        directory.join("liboutrider.so"),
        directory.join("../lib/liboutrider.so"),
    ];
    let Some(found) = places.iter().find(|p| p.is_file()) else {
        return Err(Failure::usage(format!(
            "liboutrider.so is missing: looked for {} and {}",
            show(&places[0]),
            show(&places[1])
        )));
    };
    if found
        .as_os_str()
        .as_bytes()
        .iter()
        .any(|b| matches!(b, b':' | b' ' | b'\t' | b'\n'))
    {
        return Err(Failure::usage(format!(
            "{} cannot be preloaded: LD_PRELOAD accepts no path with a colon or white space",
            show(found)
        )));
    }
    Ok(found.clone())
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
        Ok(true) => return None,
        Ok(false) => "is no shared object of this machine's kind".to_owned(),
        Err(e) => format!("can't be read: {e}"),
    };
    Some(format!("{} {what}", show(library)))
}

/// Bytes of a file that are read ahead: all of the library, and most of it is needed.
const AHEAD: usize = 2 << 20;

/// Has the kernel read a file that the program's start will need, without waiting for it. The dynamic linker and then the code itself
/// would otherwise find a page in eight places that is not there, and wait for each.
#[inline]
pub fn read_ahead(fd: i32) {
    let mut at = 0;
    while at < AHEAD {
        raw::readahead(fd, at as i64, PIECE);
        at += PIECE;
    }
}

/// [`cache::UNCLIPPED_CHUNK`].
const PIECE: usize = cache::UNCLIPPED_CHUNK as usize;

/// Puts the library and the plug-ins into LD_PRELOAD, in front of what is there, and names the plug-ins to the library.
///
/// # Safety
/// The process has one thread.
pub unsafe fn set(library: &Path, plugins: &[PathBuf]) {
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
    let prefix = glibc_only();
    let spelled = |path: &Path| match prefix {
        Some(prefix) if path.is_absolute() => {
            OsString::from_iter([prefix.as_ref(), path.as_os_str()])
        }
        _ => path.into(),
    };
    let plugins = || plugins.iter().map(PathBuf::as_path);
    let preloaded = std::iter::once(library).chain(plugins()).map(spelled);
    listed(preloaded.collect(), "LD_PRELOAD");
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

/// What to write before an absolute path so that the GNU C library's dynamic linker finds the file and no other does: musl's would end a
/// program that it can't load the library into. Only the former knows `$LIB`, the name of a directory under /usr from which enough
/// steps up lead to the root; the latter passes over what it doesn't find.
pub const GLIBC_ONLY: &str = "/usr/$LIB/../../../../../../../..";

/// [`GLIBC_ONLY`] where that directory is there. `$LIB` is where the dynamic linker itself lies: lib64, lib, or one of those that
/// Debian has for each architecture.
fn glibc_only() -> Option<&'static str> {
    let linker = std::fs::canonicalize(OsStr::from_bytes(LINKER.to_bytes())).ok()?;
    let directory = linker.parent()?;
    let under_usr = directory
        .strip_prefix("/usr")
        .or(directory.strip_prefix("/"));
    let lib = under_usr
        .ok()
        .filter(|d| d.starts_with("lib") || d.starts_with("lib64"))?;
    Path::new("/usr").join(lib).is_dir().then_some(GLIBC_ONLY)
}

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
