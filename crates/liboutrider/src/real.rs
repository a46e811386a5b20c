//! The functions that the hooks stand before.
//!
//! Each is looked up once, in the constructor, as dlsym(RTLD_NEXT) would find it ([`symbols::Behind`]), so that
//! another preloaded library below us keeps its say. A function that is called before that is looked up then: the constructors of
//! all libraries that the program needs run earlier than ours.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use libc::{DIR, FILE, dirent, iovec, mode_t, off_t, size_t, ssize_t};
use outrider_sys::raw::syscall6;

use crate::symbols::{self, Behind, Sought};

/// What the C library makes of a system call's answer: -1 and errno for a failure.
#[inline]
fn answer(r: isize) -> isize {
    if r < 0 && r > -4096 {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = -r as c_int };
        -1
    } else {
        r
    }
}

/// A function's arguments as a system call takes them.
macro_rules! word {
    ($e:expr) => {
        $e as usize
    };
}

/// Functions that are a system call: name(arguments) -> result, and the call with its arguments.
macro_rules! syscalls {
    ($($name:ident ($($a:ident: $t:ty),*) -> $r:ty = $n:ident ($($e:expr),*);)*) => {
        /// What is called until all are found: the function, or the system call itself where there is none.
        mod call {
            #![allow(non_snake_case)]
            use super::{address, answer, early, c_char, c_int, c_uint, c_void, iovec, mode_t, off_t, size_t, ssize_t, syscall6};
            $(
                #[cold]
                #[allow(clippy::too_many_arguments)]
                pub unsafe extern "C" fn $name($($a: $t),*) -> $r {
                    if let Some(f) = early(&address::$name, concat!(stringify!($name), "\0")) {
                        // SAFETY: f is the next function of this name; the signature is the C library's.
                        return unsafe {
                            core::mem::transmute::<*mut (), unsafe extern "C" fn($($t),*) -> $r>(f)($($a),*)
                        };
                    }
                    let mut args = [0usize; 6];
                    let given: &[usize] = &[$(word!($e)),*];
                    for (to, from) in args.iter_mut().zip(given) {
                        *to = *from;
                    }
                    let [a, b, c, d, e, f] = args;
                    // SAFETY: the caller's arguments, in the kernel's order.
                    answer(unsafe { syscall6(libc::$n, a, b, c, d, e, f) }) as $r
                }
            )*
        }
        mod address {
            #![allow(non_upper_case_globals)]
            use super::{AtomicPtr, call};
            $(pub static $name: AtomicPtr<()> = AtomicPtr::new(call::$name as *const () as *mut ());)*
        }
        $(
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $name($($a: $t),*) -> $r {
                let f = address::$name.load(Ordering::Relaxed);
                // SAFETY: f is what dlsym found for this name, or as above; the signature is the C library's.
                unsafe {
                    core::mem::transmute::<*mut (), unsafe extern "C" fn($($t),*) -> $r>(f)($($a),*)
                }
            }
        )*
        fn resolve_syscalls(behind: &Behind) {
            $(
                let next = behind.function(&const { Sought::new(c_name(concat!(stringify!($name), "\0"))) });
                if next != 0 {
                    address::$name.store(core::ptr::with_exposed_provenance_mut(next), Ordering::Relaxed);
                }
            )*
        }
    };
}

/// Functions that are no system call.
macro_rules! functions {
    ($($name:ident ($($a:ident: $t:ty),*) -> $r:ty, or $none:expr;)*) => {
        mod function {
            #![allow(non_upper_case_globals)]
            use super::AtomicUsize;
            $(pub static $name: AtomicUsize = AtomicUsize::new(0);)*
        }
        $(
            #[inline(always)]
            #[allow(non_snake_case)]
            pub unsafe fn $name($($a: $t),*) -> $r {
                let mut f = function::$name.load(Ordering::Relaxed);
                if f == 0 {
                    find(&function::$name, concat!(stringify!($name), "\0"));
                    f = function::$name.load(Ordering::Relaxed);
                    if f == 0 {
                        return $none;
                    }
                }
                // SAFETY: f is what dlsym found for this name; the signature is the C library's.
                unsafe {
                    core::mem::transmute::<usize, unsafe extern "C" fn($($t),*) -> $r>(f)($($a),*)
                }
            }
        )*
        fn resolve_functions(behind: &Behind) {
            $(
                let next = behind.function(&const { Sought::new(c_name(concat!(stringify!($name), "\0"))) });
                function::$name.store(next, Ordering::Relaxed);
            )*
        }
    };
}

/// Functions that never come back.
macro_rules! jumps {
    ($($name:ident)*) => {
        mod jump {
            #![allow(non_upper_case_globals)]
            use super::AtomicUsize;
            $(pub static $name: AtomicUsize = AtomicUsize::new(0);)*
        }
        $(
            pub unsafe fn $name(env: *mut c_void, value: c_int) -> ! {
                if jump::$name.load(Ordering::Relaxed) == 0 {
                    find(&jump::$name, concat!(stringify!($name), "\0"));
                }
                let f = jump::$name.load(Ordering::Relaxed);
                if f == 0 {
                    std::process::abort();
                }
                // SAFETY: f is what dlsym found for this name; the signature is the C library's.
                unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void, c_int) -> !>(f)(env, value) }
            }
        )*
        fn resolve_jumps(behind: &Behind) {
            $(
                let next = behind.function(&const { Sought::new(c_name(concat!(stringify!($name), "\0"))) });
                jump::$name.store(next, Ordering::Relaxed);
            )*
        }
    };
}

jumps! { longjmp _longjmp siglongjmp __longjmp_chk }

#[cold]
#[inline(never)]
fn find(to: &AtomicUsize, name: &'static str) {
    to.store(found(name), Ordering::Relaxed);
}

/// The next function of this name before the constructor, which is kept. Nobody else is asked: the C library's allocator may be what calls.
#[cold]
#[inline(never)]
fn early(to: &AtomicPtr<()>, name: &'static str) -> Option<*mut ()> {
    let next = core::ptr::with_exposed_provenance_mut(symbols::next(c_name(name))?);
    to.store(next, Ordering::Relaxed);
    Some(next)
}

/// The address of the next function of this name, 0 for none.
fn found(name: &'static str) -> usize {
    symbols::look_up(libc::RTLD_NEXT, c_name(name)).expose_provenance()
}

/// A name that ends with a zero byte, as the macros have them.
const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// Looks everything up.
pub fn resolve() {
    symbols::start();
    let behind = Behind::new();
    resolve_syscalls(&behind);
    resolve_functions(&behind);
    resolve_jumps(&behind);
}

syscalls! {
    open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = SYS_openat(libc::AT_FDCWD, path, flags, mode);
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = SYS_openat(dir, path, flags, mode);
    creat(path: *const c_char, mode: mode_t) -> c_int
        = SYS_openat(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);
    __open_2(path: *const c_char, flags: c_int) -> c_int
        = SYS_openat(libc::AT_FDCWD, path, flags);
    __openat_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int
        = SYS_openat(dir, path, flags);
    close(fd: c_int) -> c_int = SYS_close(fd);
    close_range(first: libc::c_uint, last: libc::c_uint, flags: c_int) -> c_int
        = SYS_close_range(first, last, flags);
    dup(fd: c_int) -> c_int = SYS_dup(fd);
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int = SYS_dup3(from, to, flags);
    fcntl(fd: c_int, command: c_int, arg: usize) -> c_int = SYS_fcntl(fd, command, arg);
    lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = SYS_lseek(fd, offset, whence);
    read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t = SYS_read(fd, buf, n);
    pread(fd: c_int, buf: *mut c_void, n: size_t, offset: off_t) -> ssize_t
        = SYS_pread64(fd, buf, n, offset);
    readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t = SYS_readv(fd, iov, n);
    preadv(fd: c_int, iov: *const iovec, n: c_int, offset: off_t) -> ssize_t
        = SYS_preadv(fd, iov, n, offset, 0);
    preadv2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t
        = SYS_preadv2(fd, iov, n, offset, 0, flags);
    __read_chk(fd: c_int, buf: *mut c_void, n: size_t, _size: size_t) -> ssize_t
        = SYS_read(fd, buf, n);
    __pread_chk(fd: c_int, buf: *mut c_void, n: size_t, offset: off_t, _size: size_t) -> ssize_t
        = SYS_pread64(fd, buf, n, offset);
    write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t = SYS_write(fd, buf, n);
    writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t = SYS_writev(fd, iov, n);
    sendfile(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t
        = SYS_sendfile(out, from, offset, n);
    copy_file_range(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, n: size_t, flags: libc::c_uint) -> ssize_t
        = SYS_copy_file_range(from, from_offset, to, to_offset, n, flags);
    splice(from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, n: size_t, flags: libc::c_uint) -> ssize_t
        = SYS_splice(from, from_offset, to, to_offset, n, flags);
    mmap(address: *mut c_void, n: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void
        = SYS_mmap(address, n, protection, flags, fd, offset);
    munmap(address: *mut c_void, n: size_t) -> c_int = SYS_munmap(address, n);
    mremap(old: *mut c_void, n: size_t, new_n: size_t, flags: c_int, place: *mut c_void) -> *mut c_void
        = SYS_mremap(old, n, new_n, flags, place);
    madvise(address: *mut c_void, n: size_t, advice: c_int) -> c_int
        = SYS_madvise(address, n, advice);
    readahead(fd: c_int, offset: off_t, n: size_t) -> ssize_t = SYS_readahead(fd, offset, n);
    ftruncate(fd: c_int, size: off_t) -> c_int = SYS_ftruncate(fd, size);
    execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int
        = SYS_execve(path, arguments, environment);
    execveat(dir: c_int, path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char, flags: c_int) -> c_int
        = SYS_execveat(dir, path, arguments, environment, flags);
    umount2(path: *const c_char, flags: c_int) -> c_int = SYS_umount2(path, flags);
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = SYS_prctl(option, a, b, c, d);
    unshare(flags: c_int) -> c_int = SYS_unshare(flags);
    inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int = SYS_inotify_add_watch(fd, path, mask);
    fanotify_mark(fd: c_int, flags: c_uint, mask: u64, dir: c_int, path: *const c_char) -> c_int
        = SYS_fanotify_mark(fd, flags, mask, dir, path);
    umount(path: *const c_char) -> c_int = SYS_umount2(path, 0);
    stat(path: *const c_char, st: *mut libc::stat) -> c_int = SYS_newfstatat(libc::AT_FDCWD, path, st, 0);
    lstat(path: *const c_char, st: *mut libc::stat) -> c_int
        = SYS_newfstatat(libc::AT_FDCWD, path, st, libc::AT_SYMLINK_NOFOLLOW);
    fstat(fd: c_int, st: *mut libc::stat) -> c_int = SYS_fstat(fd, st);
    fstatat(dir: c_int, path: *const c_char, st: *mut libc::stat, flags: c_int) -> c_int
        = SYS_newfstatat(dir, path, st, flags);
    __xstat(_version: c_int, path: *const c_char, st: *mut libc::stat) -> c_int
        = SYS_newfstatat(libc::AT_FDCWD, path, st, 0);
    __lxstat(_version: c_int, path: *const c_char, st: *mut libc::stat) -> c_int
        = SYS_newfstatat(libc::AT_FDCWD, path, st, libc::AT_SYMLINK_NOFOLLOW);
    __fxstat(_version: c_int, fd: c_int, st: *mut libc::stat) -> c_int = SYS_fstat(fd, st);
    __fxstatat(_version: c_int, dir: c_int, path: *const c_char, st: *mut libc::stat, flags: c_int) -> c_int
        = SYS_newfstatat(dir, path, st, flags);
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: libc::c_uint, stx: *mut libc::statx) -> c_int
        = SYS_statx(dir, path, flags, mask, stx);
    getdents64(fd: c_int, entries: *mut c_void, n: size_t) -> ssize_t = SYS_getdents64(fd, entries, n);
    pwrite(fd: c_int, bytes: *const c_void, n: size_t, offset: off_t) -> ssize_t = SYS_pwrite64(fd, bytes, n, offset);
    pwritev(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t
        = SYS_pwritev(fd, parts, n, offset, 0);
    pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t
        = SYS_pwritev2(fd, parts, n, offset, 0, flags);
    fallocate(fd: c_int, mode: c_int, offset: off_t, n: off_t) -> c_int = SYS_fallocate(fd, mode, offset, n);
    truncate(path: *const c_char, size: off_t) -> c_int = SYS_truncate(path, size);
    fsync(fd: c_int) -> c_int = SYS_fsync(fd);
    fdatasync(fd: c_int) -> c_int = SYS_fdatasync(fd);
    unlink(path: *const c_char) -> c_int = SYS_unlinkat(libc::AT_FDCWD, path, 0);
    rmdir(path: *const c_char) -> c_int = SYS_unlinkat(libc::AT_FDCWD, path, libc::AT_REMOVEDIR);
    unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int = SYS_unlinkat(dir, path, flags);
    rename(from: *const c_char, to: *const c_char) -> c_int
        = SYS_renameat2(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0);
    renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int
        = SYS_renameat2(from_dir, from, to_dir, to, 0);
    renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: libc::c_uint) -> c_int
        = SYS_renameat2(from_dir, from, to_dir, to, flags);
    mkdir(path: *const c_char, mode: mode_t) -> c_int = SYS_mkdirat(libc::AT_FDCWD, path, mode);
    mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int = SYS_mkdirat(dir, path, mode);
    link(from: *const c_char, to: *const c_char) -> c_int
        = SYS_linkat(libc::AT_FDCWD, from, libc::AT_FDCWD, to, 0);
    linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int
        = SYS_linkat(from_dir, from, to_dir, to, flags);
    symlink(target: *const c_char, path: *const c_char) -> c_int = SYS_symlinkat(target, libc::AT_FDCWD, path);
    symlinkat(target: *const c_char, dir: c_int, path: *const c_char) -> c_int = SYS_symlinkat(target, dir, path);
    chmod(path: *const c_char, mode: mode_t) -> c_int = SYS_fchmodat(libc::AT_FDCWD, path, mode);
    fchmod(fd: c_int, mode: mode_t) -> c_int = SYS_fchmod(fd, mode);
    chown(path: *const c_char, user: libc::c_uint, group: libc::c_uint) -> c_int
        = SYS_fchownat(libc::AT_FDCWD, path, user, group, 0);
    lchown(path: *const c_char, user: libc::c_uint, group: libc::c_uint) -> c_int
        = SYS_fchownat(libc::AT_FDCWD, path, user, group, libc::AT_SYMLINK_NOFOLLOW);
    fchown(fd: c_int, user: libc::c_uint, group: libc::c_uint) -> c_int = SYS_fchown(fd, user, group);
    fchownat(dir: c_int, path: *const c_char, user: libc::c_uint, group: libc::c_uint, flags: c_int) -> c_int
        = SYS_fchownat(dir, path, user, group, flags);
    utimensat(dir: c_int, path: *const c_char, times: *const c_void, flags: c_int) -> c_int
        = SYS_utimensat(dir, path, times, flags);
    futimens(fd: c_int, times: *const c_void) -> c_int = SYS_utimensat(fd, 0, times, 0);
    chdir(path: *const c_char) -> c_int = SYS_chdir(path);
    fchdir(fd: c_int) -> c_int = SYS_fchdir(fd);
    chroot(path: *const c_char) -> c_int = SYS_chroot(path);
    pivot_root(new: *const c_char, old: *const c_char) -> c_int = SYS_pivot_root(new, old);
    fsconfig(fd: c_int, command: libc::c_uint, key: *const c_char, value: *const c_void, number: c_int) -> c_int
        = SYS_fsconfig(fd, command, key, value, number);
    mount(from: *const c_char, to: *const c_char, kind: *const c_char, flags: libc::c_ulong, data: *const c_void) -> c_int
        = SYS_mount(from, to, kind, flags, data);
    setns(fd: c_int, kind: c_int) -> c_int = SYS_setns(fd, kind);
    umask(mask: mode_t) -> mode_t = SYS_umask(mask);
    setuid(user: c_uint) -> c_int = SYS_setuid(user);
    setgid(group: c_uint) -> c_int = SYS_setgid(group);
    seteuid(user: c_uint) -> c_int = SYS_setresuid(-1isize, user, -1isize);
    setegid(group: c_uint) -> c_int = SYS_setresgid(-1isize, group, -1isize);
    setreuid(real: c_uint, effective: c_uint) -> c_int = SYS_setreuid(real, effective);
    setregid(real: c_uint, effective: c_uint) -> c_int = SYS_setregid(real, effective);
    setresuid(real: c_uint, effective: c_uint, saved: c_uint) -> c_int = SYS_setresuid(real, effective, saved);
    setresgid(real: c_uint, effective: c_uint, saved: c_uint) -> c_int = SYS_setresgid(real, effective, saved);
    setgroups(n: size_t, groups: *const c_uint) -> c_int = SYS_setgroups(n, groups);
    setfsuid(user: c_uint) -> c_int = SYS_setfsuid(user);
    setfsgid(group: c_uint) -> c_int = SYS_setfsgid(group);
    capset(header: *mut c_void, data: *const c_void) -> c_int = SYS_capset(header, data);
    setrlimit(resource: c_int, limit: *const libc::rlimit) -> c_int = SYS_prlimit64(0, resource, limit, 0);
    prlimit(process: c_int, resource: c_int, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int
        = SYS_prlimit64(process, resource, new, old);
    ioctl(fd: c_int, request: libc::c_ulong, argument: *mut c_void) -> c_int = SYS_ioctl(fd, request, argument);
    mknodat(dir: c_int, path: *const c_char, mode: mode_t, device: u64) -> c_int = SYS_mknodat(dir, path, mode, device);
    mknod(path: *const c_char, mode: mode_t, device: u64) -> c_int = SYS_mknodat(libc::AT_FDCWD, path, mode, device);
    mkfifo(path: *const c_char, mode: mode_t) -> c_int = SYS_mknodat(libc::AT_FDCWD, path, mode | libc::S_IFIFO, 0);
    mkfifoat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int = SYS_mknodat(dir, path, mode | libc::S_IFIFO, 0);
    setxattr(path: *const c_char, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int
        = SYS_setxattr(path, name, value, n, flags);
    lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int
        = SYS_lsetxattr(path, name, value, n, flags);
    fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int
        = SYS_fsetxattr(fd, name, value, n, flags);
    removexattr(path: *const c_char, name: *const c_char) -> c_int = SYS_removexattr(path, name);
    lremovexattr(path: *const c_char, name: *const c_char) -> c_int = SYS_lremovexattr(path, name);
    fremovexattr(fd: c_int, name: *const c_char) -> c_int = SYS_fremovexattr(fd, name);
    wait(status: *mut c_int) -> c_int = SYS_wait4(usize::MAX, status, 0, 0);
    waitpid(process: c_int, status: *mut c_int, options: c_int) -> c_int = SYS_wait4(process, status, options, 0);
    wait3(status: *mut c_int, options: c_int, usage: *mut c_void) -> c_int = SYS_wait4(usize::MAX, status, options, usage);
    wait4(process: c_int, status: *mut c_int, options: c_int, usage: *mut c_void) -> c_int
        = SYS_wait4(process, status, options, usage);
    waitid(kind: c_uint, id: c_uint, info: *mut libc::siginfo_t, options: c_int) -> c_int
        = SYS_waitid(kind, id, info, options, 0);
}

functions! {
    _exit(status: c_int) -> (), or {
        // SAFETY: does not return.
        unsafe { syscall6(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    };
    quick_exit(status: c_int) -> (), or {
        // SAFETY: does not return.
        unsafe { syscall6(libc::SYS_exit_group, status as usize, 0, 0, 0, 0, 0) };
    };
    system(command: *const c_char) -> c_int, or -1;
    popen(command: *const c_char, kind: *const c_char) -> *mut FILE, or core::ptr::null_mut();
    wordexp(words: *const c_char, found: *mut c_void, flags: c_int) -> c_int, or 1;
    pclose(stream: *mut FILE) -> c_int, or -1;
    pthread_exit(value: *mut c_void) -> (), or {
        let _ = value;
        // Without the C library's there is only the end of the thread.
        // SAFETY: does not return.
        unsafe { syscall6(libc::SYS_exit, 0, 0, 0, 0, 0, 0) };
    };
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long, or {
        // SAFETY: the caller's arguments, unchanged.
        answer(unsafe { syscall6(number, a, b, c, d, e, f) }) as c_long
    };
    dup2(from: c_int, to: c_int) -> c_int, or {
        // Not every architecture has the call, and dup3 refuses equal numbers.
        // SAFETY: integers only.
        answer(unsafe {
            if from == to {
                match syscall6(libc::SYS_fcntl, from as usize, libc::F_GETFD as usize, 0, 0, 0, 0) {
                    e if e < 0 => e,
                    _ => to as isize,
                }
            } else {
                syscall6(libc::SYS_dup3, from as usize, to as usize, 0, 0, 0, 0)
            }
        }) as c_int
    };
    // Returns an error number and leaves errno alone.
    posix_fadvise(fd: c_int, offset: off_t, n: off_t, advice: c_int) -> c_int, or {
        // SAFETY: integers only.
        (unsafe { -syscall6(libc::SYS_fadvise64, fd as usize, offset as usize, n as usize, advice as usize, 0, 0) }) as c_int
    };
    posix_madvise(address: *mut c_void, n: size_t, advice: c_int) -> c_int, or {
        if advice == libc::POSIX_MADV_DONTNEED { 0 } else {
            // SAFETY: the caller's arguments; DONTNEED, which the C library ignores here, is not passed on.
            (unsafe { -syscall6(libc::SYS_madvise, address as usize, n, advice as usize, 0, 0, 0) }) as c_int
        }
    };
    closefrom(first: c_int) -> (), or {
        // SAFETY: integers only.
        unsafe { syscall6(libc::SYS_close_range, first.max(0) as usize, u32::MAX as usize, 0, 0, 0, 0) };
    };
    // The system call knows no flags.
    fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int, or {
        if flags != 0 {
            answer(-libc::ENOTSUP as isize) as c_int
        } else {
            // SAFETY: the caller's arguments, unchanged.
            answer(unsafe { syscall6(libc::SYS_fchmodat, dir as usize, path as usize, mode as usize, 0, 0, 0) }) as c_int
        }
    };
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int, or -1;
    execvp(name: *const c_char, arguments: *const *const c_char) -> c_int, or -1;
    execvpe(name: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, or -1;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, or -1;
    lockf(fd: c_int, command: c_int, n: off_t) -> c_int, or -1;
    // These return an error number.
    posix_spawn(pid: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, or libc::ENOSYS;
    posix_spawnp(pid: *mut libc::pid_t, name: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, or libc::ENOSYS;
    pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, or libc::ENOSYS;
    pidfd_spawnp(pidfd: *mut c_int, name: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: *const *const c_char, environment: *const *const c_char) -> c_int, or libc::ENOSYS;
    _Fork() -> libc::pid_t, or answer(-libc::ENOSYS as isize) as libc::pid_t;
    clone(f: Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut libc::pid_t, area: *mut c_void, child: *mut libc::pid_t) -> c_int, or answer(-libc::ENOSYS as isize) as c_int;
    initgroups(user: *const c_char, group: c_uint) -> c_int, or -1;
    remove(path: *const c_char) -> c_int, or -1;
    utime(path: *const c_char, times: *const c_void) -> c_int, or -1;
    utimes(path: *const c_char, times: *const c_void) -> c_int, or -1;
    lutimes(path: *const c_char, times: *const c_void) -> c_int, or -1;
    futimes(fd: c_int, times: *const c_void) -> c_int, or -1;
    futimesat(dir: c_int, path: *const c_char, times: *const c_void) -> c_int, or -1;
    // Returns an error number.
    posix_fallocate(fd: c_int, offset: off_t, n: off_t) -> c_int, or libc::ENOSYS;
    __xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut u64) -> c_int, or -1;
    __xmknodat(version: c_int, dir: c_int, path: *const c_char, mode: mode_t, device: *mut u64) -> c_int, or -1;
    lchmod(path: *const c_char, mode: mode_t) -> c_int, or -1;
    mkstemp(path: *mut c_char) -> c_int, or -1;
    mkostemp(path: *mut c_char, flags: c_int) -> c_int, or -1;
    mkstemps(path: *mut c_char, suffix: c_int) -> c_int, or -1;
    mkostemps(path: *mut c_char, suffix: c_int, flags: c_int) -> c_int, or -1;
    mkdtemp(path: *mut c_char) -> *mut c_char, or core::ptr::null_mut();
    opendir(path: *const c_char) -> *mut DIR, or core::ptr::null_mut();
    fdopendir(fd: c_int) -> *mut DIR, or core::ptr::null_mut();
    readdir(stream: *mut DIR) -> *mut dirent, or core::ptr::null_mut();
    rewinddir(stream: *mut DIR) -> (), or { let _ = stream; };
    closedir(stream: *mut DIR) -> c_int, or -1;
    vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int, or -1;
    __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int, or -1;
    fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, or core::ptr::null_mut();
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, or core::ptr::null_mut();
    freopen(path: *const c_char, mode: *const c_char, fp: *mut FILE) -> *mut FILE, or core::ptr::null_mut();
    fclose(fp: *mut FILE) -> c_int, or libc::EOF;
    fread(buf: *mut c_void, size: size_t, n: size_t, fp: *mut FILE) -> size_t, or 0;
    fread_unlocked(buf: *mut c_void, size: size_t, n: size_t, fp: *mut FILE) -> size_t, or 0;
    __fread_chk(buf: *mut c_void, room: size_t, size: size_t, n: size_t, fp: *mut FILE) -> size_t, or 0;
    __fread_unlocked_chk(buf: *mut c_void, room: size_t, size: size_t, n: size_t, fp: *mut FILE) -> size_t, or 0;
    fgets(buf: *mut c_char, n: c_int, fp: *mut FILE) -> *mut c_char, or core::ptr::null_mut();
    fgets_unlocked(buf: *mut c_char, n: c_int, fp: *mut FILE) -> *mut c_char, or core::ptr::null_mut();
    __fgets_chk(buf: *mut c_char, room: size_t, n: c_int, fp: *mut FILE) -> *mut c_char, or core::ptr::null_mut();
    __fgets_unlocked_chk(buf: *mut c_char, room: size_t, n: c_int, fp: *mut FILE) -> *mut c_char, or core::ptr::null_mut();
    getline(line: *mut *mut c_char, n: *mut size_t, fp: *mut FILE) -> ssize_t, or -1;
    getdelim(line: *mut *mut c_char, n: *mut size_t, delimiter: c_int, fp: *mut FILE) -> ssize_t, or -1;
    __getdelim(line: *mut *mut c_char, n: *mut size_t, delimiter: c_int, fp: *mut FILE) -> ssize_t, or -1;
    fgetc(fp: *mut FILE) -> c_int, or libc::EOF;
    fgetc_unlocked(fp: *mut FILE) -> c_int, or libc::EOF;
    getc(fp: *mut FILE) -> c_int, or libc::EOF;
    getc_unlocked(fp: *mut FILE) -> c_int, or libc::EOF;
    _IO_getc(fp: *mut FILE) -> c_int, or libc::EOF;
    __uflow(fp: *mut FILE) -> c_int, or libc::EOF;
    __underflow(fp: *mut FILE) -> c_int, or libc::EOF;
    getw(fp: *mut FILE) -> c_int, or libc::EOF;
    vfscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int, or libc::EOF;
    __isoc99_vfscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int, or libc::EOF;
    __isoc23_vfscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int, or libc::EOF;
    fgetwc(fp: *mut FILE) -> c_uint, or c_uint::MAX;
    fgetwc_unlocked(fp: *mut FILE) -> c_uint, or c_uint::MAX;
    getwc(fp: *mut FILE) -> c_uint, or c_uint::MAX;
    getwc_unlocked(fp: *mut FILE) -> c_uint, or c_uint::MAX;
    __wuflow(fp: *mut FILE) -> c_uint, or c_uint::MAX;
    __wunderflow(fp: *mut FILE) -> c_uint, or c_uint::MAX;
    fgetws(buf: *mut libc::wchar_t, n: c_int, fp: *mut FILE) -> *mut libc::wchar_t, or core::ptr::null_mut();
    fgetws_unlocked(buf: *mut libc::wchar_t, n: c_int, fp: *mut FILE) -> *mut libc::wchar_t, or core::ptr::null_mut();
    __fgetws_chk(buf: *mut libc::wchar_t, room: size_t, n: c_int, fp: *mut FILE) -> *mut libc::wchar_t, or core::ptr::null_mut();
    __fgetws_unlocked_chk(buf: *mut libc::wchar_t, room: size_t, n: c_int, fp: *mut FILE) -> *mut libc::wchar_t, or core::ptr::null_mut();
    vfwscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int, or libc::EOF;
    __isoc99_vfwscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int, or libc::EOF;
    __isoc23_vfwscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int, or libc::EOF;
    fseek(fp: *mut FILE, offset: c_long, whence: c_int) -> c_int, or -1;
    fseeko(fp: *mut FILE, offset: off_t, whence: c_int) -> c_int, or -1;
    fseeko64(fp: *mut FILE, offset: off_t, whence: c_int) -> c_int, or -1;
}
