//! The interposed names after which what was made ahead may not be what the program would get: who makes its calls and with which limits,
//! where paths lead, and changes that no graph contains.
//!
//! Without a scope or a plug-in each of them is a load more than the C library's own function.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{gid_t, mode_t, off_t, rlimit, size_t, uid_t};

use outrider_core::shm::lost;
use outrider_sys::raw;

use crate::attach::{self, Emptied};
use crate::graphs::{announce, change, is_nobodys, restrict, unsettle, unshare_files};
use crate::names::{change_by_path, change_of_names, rename_of};
use crate::{descriptors, exec, real, rights};

/// fchmodat2(2), which the crate `libc` doesn't know on every processor. The kernel numbers calls since 5.1 alike on all.
const FCHMODAT2: c_long = 452;

/// Interposes functions; `before` is what is done first, `after` what is done if they succeed, `again` whose answer it is if they don't.
macro_rules! hooks {
    ($($name:ident = $real:ident ($($a:ident: $t:ty),*) -> $r:ty, $before:expr $(=> $after:expr, $again:expr)?;)*) => {$(
        #[doc = concat!("See ", stringify!($real), " in the manual.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($a: $t),*) -> $r {
            $before;
            // SAFETY: the caller's arguments, unchanged.
            let make = || unsafe { real::$real($($a),*) };
            #[allow(unused_mut)]
            let mut answer = make();
            $(if answer != 0 {
                answer = $again.again(answer, make);
            }
            if answer == 0 {
                $after;
            })?
            answer
        }
    )*};
}

/// Names, or attributes, change.
#[inline(always)]
fn names() {
    announce(change_of_names);
}

/// Anything may change.
fn anything() {
    announce(|| change_by_path(c"".as_ptr()));
}

/// The process's user, groups, umask or limits change.
fn maker() {
    unsettle(false);
}

/// The process's user or groups change.
fn owner() {
    rights::change();
    maker();
}

/// The calling thread's capabilities or namespaces change.
fn of_thread() {
    rights::change_of_thread();
    restrict();
}

/// Before prctl(2): what the calling thread may ever do again.
pub fn of_privileges(option: c_int, what: usize) {
    match option {
        libc::PR_SET_NO_NEW_PRIVS => {
            rights::confine();
            restrict();
        }
        libc::PR_CAP_AMBIENT if what == libc::PR_CAP_AMBIENT_IS_SET as usize => {}
        libc::PR_CAPBSET_DROP | libc::PR_CAP_AMBIENT | libc::PR_SET_SECUREBITS => {
            rights::end_threads();
            restrict();
        }
        _ => {}
    }
}

/// Before setns(2): of any kind, if that is 0.
fn entering(kind: c_int) {
    if kind == 0 || kind & libc::CLONE_NEWNET != 0 {
        rights::leave_network();
    }
    mounts();
    of_thread();
}

/// Something is about to be mounted, or files are looked for in another namespace of mounts or below another root directory.
pub fn mounts() {
    crate::exec::moved();
    paths();
}

/// The root directory is another one.
fn root() {
    rights::change_of_thread();
    mounts();
    restrict();
}

/// A name is about to go, or to become another file's.
fn unlinking() {
    attach::unlinking();
    names();
}

/// Paths lead elsewhere.
pub fn paths() {
    names();
    unsettle(true);
}

// Whose calls they are.
hooks! {
    umask = umask(mask: mode_t) -> mode_t, maker();
    setuid = setuid(user: uid_t) -> c_int, owner();
    setgid = setgid(group: gid_t) -> c_int, owner();
    seteuid = seteuid(user: uid_t) -> c_int, owner();
    setegid = setegid(group: gid_t) -> c_int, owner();
    setreuid = setreuid(real: uid_t, effective: uid_t) -> c_int, owner();
    setregid = setregid(real: gid_t, effective: gid_t) -> c_int, owner();
    setresuid = setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int, owner();
    setresgid = setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int, owner();
    setgroups = setgroups(n: size_t, groups: *const gid_t) -> c_int, owner();
    initgroups = initgroups(user: *const c_char, group: gid_t) -> c_int, owner();
    setrlimit = setrlimit(resource: c_int, limit: *const rlimit) -> c_int, limits(resource);
    setrlimit64 = setrlimit(resource: c_int, limit: *const rlimit) -> c_int, limits(resource);
    prlimit = prlimit(process: c_int, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int, limits(resource);
    prlimit64 = prlimit(process: c_int, resource: c_int, new: *const rlimit, old: *mut rlimit) -> c_int, limits(resource);
}

/// Only the size of files is asked for in calls of a graph.
fn limits(resource: c_int) {
    if resource == libc::RLIMIT_FSIZE as c_int {
        maker();
    }
}

// The thread alone confines itself: others can't make its calls any more.
hooks! {
    setfsuid = setfsuid(user: uid_t) -> c_int, of_thread();
    setfsgid = setfsgid(group: gid_t) -> c_int, of_thread();
    capset = capset(header: *mut c_void, data: *const c_void) -> c_int, of_thread();
    setns = setns(fd: c_int, kind: c_int) -> c_int, entering(kind);
}

// Where paths lead.
hooks! {
    chdir = chdir(path: *const c_char) -> c_int, paths();
    fchdir = fchdir(fd: c_int) -> c_int, paths();
    chroot = chroot(path: *const c_char) -> c_int, {
        crate::exec::changing_root(path);
        root();
    };
    pivot_root = pivot_root(new: *const c_char, old: *const c_char) -> c_int, root();
}

// Changes that no graph contains.
hooks! {
    remove = remove(path: *const c_char) -> c_int, unlinking() => attach::unlinked(path), Emptied::at(libc::AT_FDCWD, path);
    renameat2 = renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int, {
        attach::unlinking();
        announce(|| rename_of(from_dir, from, to_dir, to));
    } => attach::unlinked(to), Emptied::at(to_dir, to);
    utime = utime(path: *const c_char, times: *const c_void) -> c_int, names();
    utimes = utimes(path: *const c_char, times: *const c_void) -> c_int, names();
    lutimes = lutimes(path: *const c_char, times: *const c_void) -> c_int, names();
    futimes = futimes(fd: c_int, times: *const c_void) -> c_int, names();
    futimesat = futimesat(dir: c_int, path: *const c_char, times: *const c_void) -> c_int, names();
    posix_fallocate = posix_fallocate(fd: c_int, offset: off_t, n: off_t) -> c_int, announce(|| change(fd));
    posix_fallocate64 = posix_fallocate(fd: c_int, offset: off_t, n: off_t) -> c_int, announce(|| change(fd));
    mknod = mknod(path: *const c_char, mode: mode_t, device: u64) -> c_int, names();
    mknodat = mknodat(dir: c_int, path: *const c_char, mode: mode_t, device: u64) -> c_int, names();
    // Programs linked against C libraries before 2.33 call these.
    __xmknod = __xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut u64) -> c_int, names();
    __xmknodat = __xmknodat(version: c_int, dir: c_int, path: *const c_char, mode: mode_t, device: *mut u64) -> c_int, names();
    mkfifo = mkfifo(path: *const c_char, mode: mode_t) -> c_int, names();
    mkfifoat = mkfifoat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int, names();
    lchmod = lchmod(path: *const c_char, mode: mode_t) -> c_int, names();
    setxattr = setxattr(path: *const c_char, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int, names();
    lsetxattr = lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int, names();
    fsetxattr = fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int, names();
    removexattr = removexattr(path: *const c_char, name: *const c_char) -> c_int, names();
    lremovexattr = lremovexattr(path: *const c_char, name: *const c_char) -> c_int, names();
    fremovexattr = fremovexattr(fd: c_int, name: *const c_char) -> c_int, names();
    mkstemp = mkstemp(path: *mut c_char) -> c_int, names();
    mkstemp64 = mkstemp(path: *mut c_char) -> c_int, names();
    mkostemp = mkostemp(path: *mut c_char, flags: c_int) -> c_int, names();
    mkostemp64 = mkostemp(path: *mut c_char, flags: c_int) -> c_int, names();
    mkstemps = mkstemps(path: *mut c_char, suffix: c_int) -> c_int, names();
    mkstemps64 = mkstemps(path: *mut c_char, suffix: c_int) -> c_int, names();
    mkostemps = mkostemps(path: *mut c_char, suffix: c_int, flags: c_int) -> c_int, names();
    mkostemps64 = mkostemps(path: *mut c_char, suffix: c_int, flags: c_int) -> c_int, names();
    mkdtemp = mkdtemp(path: *mut c_char) -> *mut c_char, names();
    // A third argument arrives in the same register whether or not it is variable (see `hooks`).
    ioctl = ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int, if is_clone(request) {
        announce(|| change(fd));
    };
}

/// The flags of a descriptor change: O_APPEND and O_DIRECT have their say in how its file is read and written.
#[inline(always)]
pub fn new_flags(fd: c_int) {
    if !is_nobodys() && raw::is_regular(fd) {
        maker();
    }
}

/// FICLONE and FICLONERANGE give a file the bytes of another.
fn is_clone(request: c_ulong) -> bool {
    matches!(request, 0x4004_9409 | 0x4020_940d)
}

/// The number `to` is about to become a duplicate of `from`.
fn replaced(from: c_int, to: c_int) {
    if from != to {
        descriptors::closing(to);
    }
}

/// A system call that the program is about to make by syscall(2), which no other hook sees. Those that concern more than graphs are not among them.
pub fn by_number(number: c_long, a: usize, b: usize, c: usize) {
    match number {
        libc::SYS_close => descriptors::closing(a as c_int),
        libc::SYS_dup3 => replaced(a as c_int, b as c_int),
        libc::SYS_write
        | libc::SYS_pwrite64
        | libc::SYS_writev
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_sendfile => announce(|| change(a as c_int)),
        libc::SYS_copy_file_range | libc::SYS_splice => announce(|| change(c as c_int)),
        libc::SYS_ioctl if is_clone(b as c_ulong) => announce(|| change(a as c_int)),
        libc::SYS_fcntl if b as c_int == libc::F_SETFL => {
            new_flags(a as c_int);
            descriptors::flags_changed(a as c_int);
        }
        libc::SYS_umask => maker(),
        libc::SYS_setrlimit => limits(a as c_int),
        libc::SYS_prlimit64 => limits(b as c_int),
        // Those of the thread alone, where the C library's functions speak to all of them.
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups
        | libc::SYS_setfsuid
        | libc::SYS_setfsgid
        | libc::SYS_capset => of_thread(),
        libc::SYS_landlock_restrict_self => {
            // What it takes away nobody else can see.
            attach::lose(lost::RIGHTS);
            exec::restricted();
            rights::confine();
            restrict();
        }
        libc::SYS_setns => entering(b as c_int),
        libc::SYS_chroot | libc::SYS_pivot_root => root(),
        libc::SYS_chdir | libc::SYS_fchdir => paths(),
        libc::SYS_mount | libc::SYS_move_mount | libc::SYS_mount_setattr => mounts(),
        libc::SYS_unlinkat | libc::SYS_renameat2 => unlinking(),
        libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_linkat
        | libc::SYS_symlinkat
        | libc::SYS_fchmod
        | libc::SYS_fchmodat
        | FCHMODAT2
        | libc::SYS_fchown
        | libc::SYS_fchownat
        | libc::SYS_utimensat
        | libc::SYS_setxattr
        | libc::SYS_lsetxattr
        | libc::SYS_fsetxattr
        | libc::SYS_removexattr
        | libc::SYS_lremovexattr
        | libc::SYS_fremovexattr => names(),
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_open_by_handle_at
        | libc::SYS_truncate
        | libc::SYS_io_submit
        | libc::SYS_io_uring_enter => anything(),
        _ => by_old_number(number, a, b),
    }
}

/// The same for calls that newer architectures don't have.
#[cfg(target_arch = "x86_64")]
fn by_old_number(number: c_long, a: usize, b: usize) {
    match number {
        libc::SYS_dup2 => replaced(a as c_int, b as c_int),
        libc::SYS_open | libc::SYS_creat => anything(),
        libc::SYS_unlink | libc::SYS_rename | libc::SYS_renameat => unlinking(),
        libc::SYS_mkdir
        | libc::SYS_rmdir
        | libc::SYS_link
        | libc::SYS_symlink
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat
        | libc::SYS_mknod => names(),
        _ => {}
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn by_old_number(_: c_long, _: usize, _: usize) {}

/// unshare(2): a descriptor table of its own makes numbers say nothing; whatever else makes paths or rights the thread's own.
pub fn unsharing(flags: c_int) {
    if flags & libc::CLONE_FILES != 0 {
        unshare_files();
    } else if flags & !libc::CLONE_SYSVSEM != 0 {
        paths();
        restrict();
    }
}
