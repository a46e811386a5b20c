//! The interposed names that only graphs need: attributes, names, directory streams, and what leaves functions.
//!
//! Without a scope or a plug-in each of them is a load more than the C library's own function.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{AT_FDCWD, DIR, dirent, iovec, mode_t, off_t, size_t, ssize_t};
use outrider_graph::{Call, Kind};

use crate::attach::{self, Emptied};
use crate::graphs::{announce, call, change, jumping, open, through, through_or_past, transfer};
use crate::{descriptors, needs, real};

#[inline(always)]
fn at_path(kind: Kind, dir: c_int, path: *const c_char, flags: c_int) -> Call {
    let mut c = call(kind, dir);
    (c.args.flags, c.path) = (flags, path);
    c
}

#[inline(always)]
fn status_at(dir: c_int, path: *const c_char, st: *mut libc::stat, flags: c_int) -> Call {
    let mut c = at_path(Kind::Fstatat, dir, path, flags);
    c.buffer = st.cast();
    c
}

#[inline(always)]
fn status_of(fd: c_int, st: *mut libc::stat) -> Call {
    let mut c = call(Kind::Fstat, fd);
    c.buffer = st.cast();
    c
}

/// A change of a file's name.
#[inline(always)]
pub fn rename_of(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> Call {
    let mut c = call(Kind::Renameat, from_dir);
    (c.args.fd2, c.path, c.second_path) = (to_dir, from, to);
    c
}

/// A change of names or attributes that no graph contains.
#[inline(always)]
pub fn change_of_names() -> Call {
    rename_of(AT_FDCWD, c"".as_ptr(), AT_FDCWD, c"".as_ptr())
}

/// A change of the bytes of a file that a path names.
#[inline(always)]
pub fn change_by_path(path: *const c_char) -> Call {
    open(AT_FDCWD, path, libc::O_WRONLY | libc::O_TRUNC, 0)
}

/// Interposes functions that a graph may contain, under all their names; `as` says how the call is put for graphs, and after it comes what is noted of it, and at
/// which directory the path begins; `=>` what comes before the call, and after it if it has succeeded; and whose answer it is if it has not.
macro_rules! foreseen {
    ($($name:ident $(= $alias:ident)* ($($a:ident: $t:ty),*) -> $r:ty as $call:expr $(, $note:path, ($dir:expr, $at:expr))? $(=> $before:expr, $after:expr, $again:expr)?;)*) => {$(
        #[doc = concat!("See ", stringify!($name), " in the manual.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($a: $t),*) -> $r {
            $($before;)?
            $($note();)?
            // SAFETY: the caller's arguments, unchanged.
            let make = || unsafe { real::$name($($a),*) };
            #[allow(unused_mut)]
            let mut answer = through_or_past(|| $call, || make() as isize) as $r;
            $(if answer != 0 {
                answer = $again.again(answer, make);
            })?
            $(if answer == 0 {
                needs::looked($dir, $at);
            })?
            $(if answer == 0 {
                $after;
            })?
            answer
        }
        foreseen!(@alias [$($alias)*] $name ($($a: $t),*) -> $r);
    )*};
    (@alias [] $name:ident $args:tt -> $r:ty) => {};
    (@alias [$alias:ident $($more:ident)*] $name:ident ($($a:ident: $t:ty),*) -> $r:ty) => {
        #[doc = concat!("The same as `", stringify!($name), "` on LP64.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $alias($($a: $t),*) -> $r {
            // SAFETY: the caller's arguments, unchanged.
            unsafe { $name($($a),*) }
        }
        foreseen!(@alias [$($more)*] $name ($($a: $t),*) -> $r);
    };
}

foreseen! {
    stat = stat64 (path: *const c_char, st: *mut libc::stat) -> c_int as status_at(AT_FDCWD, path, st, 0), descriptors::asked, (AT_FDCWD, path);
    lstat = lstat64 (path: *const c_char, st: *mut libc::stat) -> c_int
        as status_at(AT_FDCWD, path, st, libc::AT_SYMLINK_NOFOLLOW), descriptors::asked, (AT_FDCWD, path);
    fstat = fstat64 (fd: c_int, st: *mut libc::stat) -> c_int as status_of(fd, st);
    fstatat = fstatat64 (dir: c_int, path: *const c_char, st: *mut libc::stat, flags: c_int) -> c_int
        as status_at(dir, path, st, flags), descriptors::asked, (dir, path);
    // Programs linked against C libraries before 2.33 call these. The version says how the structure is laid out; there is one on LP64.
    __xstat = __xstat64 (version: c_int, path: *const c_char, st: *mut libc::stat) -> c_int as status_at(AT_FDCWD, path, st, 0), descriptors::asked, (AT_FDCWD, path);
    __lxstat = __lxstat64 (version: c_int, path: *const c_char, st: *mut libc::stat) -> c_int
        as status_at(AT_FDCWD, path, st, libc::AT_SYMLINK_NOFOLLOW), descriptors::asked, (AT_FDCWD, path);
    __fxstat = __fxstat64 (version: c_int, fd: c_int, st: *mut libc::stat) -> c_int as status_of(fd, st);
    __fxstatat = __fxstatat64 (version: c_int, dir: c_int, path: *const c_char, st: *mut libc::stat, flags: c_int) -> c_int
        as status_at(dir, path, st, flags), descriptors::asked, (dir, path);
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, stx: *mut libc::statx) -> c_int as {
        let mut c = at_path(Kind::Statx, dir, path, flags);
        (c.args.extra, c.buffer) = (mask, stx.cast());
        c
    }, descriptors::asked, (dir, path);
    getdents64(fd: c_int, entries: *mut c_void, n: size_t) -> ssize_t as transfer(Kind::Getdents, fd, entries, n, 0);
    fsync(fd: c_int) -> c_int as call(Kind::Fsync, fd);
    fdatasync(fd: c_int) -> c_int as {
        let mut c = call(Kind::Fsync, fd);
        c.args.flags = 1;
        c
    };
    unlink(path: *const c_char) -> c_int as at_path(Kind::Unlinkat, AT_FDCWD, path, 0)
        => attach::unlinking(), attach::unlinked(path), Emptied::at(AT_FDCWD, path);
    rmdir(path: *const c_char) -> c_int as at_path(Kind::Unlinkat, AT_FDCWD, path, libc::AT_REMOVEDIR)
        => attach::unlinking(), attach::unlinked(path), Emptied::at(AT_FDCWD, path);
    unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int
        as at_path(Kind::Unlinkat, dir, path, flags) => attach::unlinking(), attach::unlinked(path), Emptied::at(dir, path);
    rename(from: *const c_char, to: *const c_char) -> c_int
        as rename_of(AT_FDCWD, from, AT_FDCWD, to) => attach::unlinking(), attach::unlinked(to), Emptied::at(AT_FDCWD, to);
    renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int
        as rename_of(from_dir, from, to_dir, to) => attach::unlinking(), attach::unlinked(to), Emptied::at(to_dir, to);
    mkdir(path: *const c_char, mode: mode_t) -> c_int as {
        let mut c = at_path(Kind::Mkdirat, AT_FDCWD, path, 0);
        c.args.extra = mode;
        c
    };
    mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int as {
        let mut c = at_path(Kind::Mkdirat, dir, path, 0);
        c.args.extra = mode;
        c
    };
}

/// See pwrite(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, bytes: *const c_void, n: size_t, offset: off_t) -> ssize_t {
    through(
        || transfer(Kind::Pwrite, fd, bytes.cast_mut(), n, offset),
        // SAFETY: the caller's arguments, unchanged.
        || unsafe { real::pwrite(fd, bytes, n, offset) },
    )
}

/// The same as `pwrite` on LP64.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(
    fd: c_int,
    bytes: *const c_void,
    n: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { pwrite(fd, bytes, n, offset) }
}

/// Interposes functions that no graph contains and that change what those in a graph return.
macro_rules! change_hooks {
    ($($name:ident = $real:ident ($($a:ident: $t:ty),*) -> $r:ty as $call:expr;)*) => {$(
        #[doc = concat!("See ", stringify!($real), " in the manual.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($a: $t),*) -> $r {
            announce(|| $call);
            // SAFETY: the caller's arguments, unchanged.
            unsafe { real::$real($($a),*) }
        }
    )*};
}

change_hooks! {
    pwritev = pwritev(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t as change(fd);
    pwritev64 = pwritev(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t as change(fd);
    pwritev2 = pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t as change(fd);
    pwritev64v2 = pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t as change(fd);
    fallocate = fallocate(fd: c_int, mode: c_int, offset: off_t, n: off_t) -> c_int as change(fd);
    fallocate64 = fallocate(fd: c_int, mode: c_int, offset: off_t, n: off_t) -> c_int as change(fd);
    truncate = truncate(path: *const c_char, size: off_t) -> c_int as change_by_path(path);
    truncate64 = truncate(path: *const c_char, size: off_t) -> c_int as change_by_path(path);
    link = link(from: *const c_char, to: *const c_char) -> c_int as change_of_names();
    linkat = linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int
        as change_of_names();
    symlink = symlink(target: *const c_char, path: *const c_char) -> c_int as change_of_names();
    symlinkat = symlinkat(target: *const c_char, dir: c_int, path: *const c_char) -> c_int as change_of_names();
    chmod = chmod(path: *const c_char, mode: mode_t) -> c_int as change_of_names();
    fchmod = fchmod(fd: c_int, mode: mode_t) -> c_int as change_of_names();
    fchmodat = fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int as change_of_names();
    chown = chown(path: *const c_char, user: c_uint, group: c_uint) -> c_int as change_of_names();
    lchown = lchown(path: *const c_char, user: c_uint, group: c_uint) -> c_int as change_of_names();
    fchown = fchown(fd: c_int, user: c_uint, group: c_uint) -> c_int as change_of_names();
    fchownat = fchownat(dir: c_int, path: *const c_char, user: c_uint, group: c_uint, flags: c_int) -> c_int
        as change_of_names();
    utimensat = utimensat(dir: c_int, path: *const c_char, times: *const c_void, flags: c_int) -> c_int as change_of_names();
    futimens = futimens(fd: c_int, times: *const c_void) -> c_int as change_of_names();
}

/// See opendir(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: the caller's arguments, unchanged.
    let stream = unsafe { real::opendir(path) };
    descriptors::opened_directory(stream);
    if !stream.is_null() {
        needs::opened_by_name(path);
    }
    stream
}

/// See fdopendir(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn fdopendir(fd: c_int) -> *mut DIR {
    // SAFETY: the caller's arguments, unchanged.
    let stream = unsafe { real::fdopendir(fd) };
    descriptors::opened_directory(stream);
    stream
}

/// See readdir(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn readdir(stream: *mut DIR) -> *mut dirent {
    // SAFETY: the caller's arguments, unchanged.
    let entry = unsafe { real::readdir(stream) };
    descriptors::listed(stream, entry);
    entry
}

/// The same as `readdir` on LP64.
#[unsafe(no_mangle)]
unsafe extern "C" fn readdir64(stream: *mut DIR) -> *mut dirent {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { readdir(stream) }
}

/// See rewinddir(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn rewinddir(stream: *mut DIR) {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::rewinddir(stream) };
    descriptors::rewound(stream);
}

/// See closedir(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn closedir(stream: *mut DIR) -> c_int {
    descriptors::closing_directory(stream);
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::closedir(stream) }
}

/// Interposes functions that leave others behind.
macro_rules! jumps {
    ($($name:ident)*) => {$(
        /// See setjmp(3).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(env: *mut c_void, value: c_int) -> ! {
            jumping();
            // SAFETY: the caller's arguments, unchanged. Nothing on this stack frame has anything to be done.
            unsafe { real::$name(env, value) }
        }
    )*};
}

jumps! { longjmp _longjmp siglongjmp __longjmp_chk }
