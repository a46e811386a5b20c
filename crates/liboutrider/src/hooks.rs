//! The interposed names.
//!
//! A read is announced before it is made, so that while the program waits for it, what comes next is already
//! being fetched. Vectored reads are noted afterwards: their length lies in memory of the caller that only the
//! kernel may touch, since a bad pointer has to end in EFAULT and not in a fault here. Closing is told before it
//! happens, because the number can be reused at once.
//!
//! open(2), fcntl(2) and their kin take a variable number of arguments; with the calling conventions of x86-64
//! and AArch64 Linux a third integer argument arrives in the same register either way, and it is handed on
//! as it came. Names that take a mode only sometimes (`O_CREAT`) thus see what the caller passed.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use libc::{iovec, mode_t, off_t, size_t, ssize_t};
use outrider_core::shm::{self, Kind};
use outrider_graph::Kind as Step;
use outrider_sys::units::PAGE;

use crate::descriptors::Transfer;
use crate::graphs::{self, transfer, vectored};
use crate::{attach, changes, declared, descriptors, ends, exec, needs, real, rights};

/// See preadv2(2), from Linux 6.14 on: what the read brings into the page cache leaves it at once.
const RWF_DONTCACHE: c_int = 0x80;

/// Defines an interposed function under its names, which have one body.
macro_rules! hook {
    ($($(#[$doc:meta])* $first:ident $(= $alias:ident)* ($($a:ident: $t:ty),*) -> $r:ty $body:block)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $first($($a: $t),*) -> $r $body
            hook!(@alias [$($alias)*] $first ($($a: $t),*) -> $r);
        )*
    };
    (@alias [] $first:ident $args:tt -> $r:ty) => {};
    (@alias [$alias:ident $($more:ident)*] $first:ident ($($a:ident: $t:ty),*) -> $r:ty) => {
        #[doc = concat!("The same as `", stringify!($first), "` on LP64.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $alias($($a: $t),*) -> $r {
            // SAFETY: the caller's arguments, unchanged.
            unsafe { $first($($a),*) }
        }
        hook!(@alias [$($more)*] $first ($($a: $t),*) -> $r);
    };
}

/// Whether the program's hints are to be dropped (mode `os-only`).
fn drops_hints() -> bool {
    attach::MODE.load(Relaxed) == shm::MODE_OS_ONLY
}

/// A read(2) that somebody may have to hear of.
#[cold]
#[inline(never)]
unsafe extern "C" fn heard_read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    let call = move || transfer(Step::Read, fd, buf, n, 0);
    // SAFETY: the caller's arguments, unchanged.
    descriptors::transfer(fd, Transfer::Read(Some(n)), call, move || unsafe {
        real::read(fd, buf, n)
    })
}

/// A pread(2) that somebody may have to hear of.
#[cold]
#[inline(never)]
unsafe extern "C" fn heard_pread(fd: c_int, buf: *mut c_void, n: size_t, offset: off_t) -> ssize_t {
    let call = move || transfer(Step::Pread, fd, buf, n, offset);
    // SAFETY: the caller's arguments, unchanged.
    let pread = move || unsafe { real::pread(fd, buf, n, offset) };
    descriptors::read_at(fd, offset, Some(n), call, pread)
}

hook! {
    /// See open(2).
    open = open64 = __open = __open64 (path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        let fd = descriptors::open(flags, move || graphs::open(libc::AT_FDCWD, path, flags, mode), move || unsafe { real::open(path, flags, mode) });
        needs::opened(libc::AT_FDCWD, path, flags, fd);
        fd
    }
    /// See openat(2).
    openat = openat64 (dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        let fd = descriptors::open(flags, move || graphs::open(dir, path, flags, mode), move || unsafe { real::openat(dir, path, flags, mode) });
        needs::opened(dir, path, flags, fd);
        fd
    }
    /// The fortified open(2).
    __open_2 = __open64_2 (path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        let fd = descriptors::open(flags, move || graphs::open(libc::AT_FDCWD, path, flags, 0), move || unsafe { real::__open_2(path, flags) });
        needs::opened(libc::AT_FDCWD, path, flags, fd);
        fd
    }
    /// The fortified openat(2).
    __openat_2 = __openat64_2 (dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        let fd = descriptors::open(flags, move || graphs::open(dir, path, flags, 0), move || unsafe { real::__openat_2(dir, path, flags) });
        needs::opened(dir, path, flags, fd);
        fd
    }
    /// See creat(2).
    creat = creat64 (path: *const c_char, mode: mode_t) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        descriptors::open(libc::O_WRONLY, move || graphs::open(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode), move || unsafe { real::creat(path, mode) })
    }
    /// See close(2).
    close = __close (fd: c_int) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        descriptors::close(fd, move || unsafe { real::close(fd) })
    }
    /// See close_range(2).
    close_range (first: c_uint, last: c_uint, flags: c_int) -> c_int {
        closing_range(first, last, flags as c_uint);
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::close_range(first, last, flags) }
    }
    /// See closefrom(3).
    closefrom (first: c_int) -> () {
        descriptors::closing_range(first.max(0) as u32, u32::MAX);
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::closefrom(first) }
    }
    /// See dup(2).
    dup = __dup (fd: c_int) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        let new = unsafe { real::dup(fd) };
        descriptors::duplicated(fd, new);
        new
    }
    /// See dup2(2).
    dup2 = __dup2 (from: c_int, to: c_int) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        descriptors::duplicate_onto(from, to, || unsafe { real::dup2(from, to) })
    }
    /// See dup3(2).
    dup3 (from: c_int, to: c_int, flags: c_int) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        descriptors::duplicate_onto(from, to, || unsafe { real::dup3(from, to, flags) })
    }
    /// See fcntl(2).
    fcntl = fcntl64 = __fcntl (fd: c_int, command: c_int, arg: usize) -> c_int {
        let _away = (command == libc::F_SETLEASE).then(|| leasing(fd, arg as c_int));
        match command {
            libc::F_SETFL => changes::new_flags(fd),
            libc::F_NOTIFY => notifying(arg),
            libc::F_SETLK | libc::F_SETLKW => exec::locking(),
            _ => {}
        }
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::fcntl(fd, command, arg) };
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => descriptors::duplicated(fd, r),
            libc::F_SETFL => descriptors::flags_changed(fd),
            _ => {}
        }
        r
    }
    /// See lockf(3).
    lockf = lockf64 (fd: c_int, command: c_int, n: off_t) -> c_int {
        exec::locking();
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::lockf(fd, command, n) }
    }
    /// See lseek(2).
    lseek = lseek64 = __lseek (fd: c_int, offset: off_t, whence: c_int) -> off_t {
        let call = move || {
            let mut c = graphs::call(Step::Lseek, fd);
            (c.args.offset, c.args.flags) = (offset, whence);
            c
        };
        // SAFETY: the caller's arguments, unchanged.
        descriptors::seek(fd, call, move || unsafe { real::lseek(fd, offset, whence) })
    }
    /// See read(2).
    read = __read (fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
        let Some(slot) = descriptors::silent_here(fd, n) else {
            // SAFETY: the caller's arguments, unchanged.
            return unsafe { heard_read(fd, buf, n) };
        };
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::read(fd, buf, n) };
        descriptors::advanced(slot, r);
        r
    }
    /// The fortified read(2).
    __read_chk (fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t {
        // More than there is room for ends the program, in the C library's function.
        let n_fitting = if n > room { usize::MAX } else { n };
        let call = move || transfer(Step::Read, fd, buf, n_fitting, 0);
        // SAFETY: the caller's arguments, unchanged.
        descriptors::transfer(fd, Transfer::Read(Some(n)), call, move || unsafe { real::__read_chk(fd, buf, n, room) })
    }
    /// See pread(2).
    pread = pread64 = __pread64 (fd: c_int, buf: *mut c_void, n: size_t, offset: off_t) -> ssize_t {
        if !descriptors::silent_at(fd, offset as u64, n) {
            // SAFETY: the caller's arguments, unchanged.
            return unsafe { heard_pread(fd, buf, n, offset) };
        }
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::pread(fd, buf, n, offset) }
    }
    /// The fortified pread(2).
    __pread_chk = __pread64_chk (fd: c_int, buf: *mut c_void, n: size_t, offset: off_t, room: size_t) -> ssize_t {
        let n_fitting = if n > room { usize::MAX } else { n };
        let call = move || transfer(Step::Pread, fd, buf, n_fitting, offset);
        // SAFETY: the caller's arguments, unchanged.
        descriptors::read_at(fd, offset, Some(n), call, move || unsafe { real::__pread_chk(fd, buf, n, offset, room) })
    }
    /// See readv(2).
    readv = __readv (fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        let call = move || vectored(Step::Read, fd, iov, n, 0);
        // SAFETY: the caller's arguments, unchanged.
        descriptors::transfer(fd, Transfer::Read(None), call, move || unsafe { real::readv(fd, iov, n) })
    }
    /// See preadv(2).
    preadv = preadv64 (fd: c_int, iov: *const iovec, n: c_int, offset: off_t) -> ssize_t {
        let call = move || vectored(Step::Pread, fd, iov, n, offset);
        // SAFETY: the caller's arguments, unchanged.
        descriptors::read_at(fd, offset, None, call, move || unsafe { real::preadv(fd, iov, n, offset) })
    }
    /// See preadv2(2). Offset -1 means the file position.
    preadv2 = preadv64v2 (fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::preadv2(fd, iov, n, offset, flags) };
        if flags & RWF_DONTCACHE != 0 && r > 0 {
            descriptors::leave_uncached(fd);
        } else if offset == -1 {
            descriptors::has_read(fd, r);
        } else {
            descriptors::has_read_at(fd, offset as u64, r);
        }
        r
    }
    /// See write(2).
    write = __write (fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
        let call = move || transfer(Step::Write, fd, buf.cast_mut(), n, 0);
        // SAFETY: the caller's arguments, unchanged.
        descriptors::transfer(fd, Transfer::Write, call, move || unsafe { real::write(fd, buf, n) })
    }
    /// See writev(2).
    writev = __writev (fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
        descriptors::changing(fd);
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::writev(fd, iov, n) };
        descriptors::has_written(fd, r);
        r
    }
    /// See sendfile(2).
    sendfile = sendfile64 (out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
        descriptors::changing(out);
        let copied = kernel_copy(from, offset, n, |_| if descriptors::device(out).is_some() { Told::After { likely: true } } else { Told::Before });
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::sendfile(out, from, offset, n) };
        has_copied(from, copied, r);
        descriptors::has_written(out, r);
        r
    }
    /// See copy_file_range(2).
    copy_file_range (from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, n: size_t, flags: c_uint) -> ssize_t {
        descriptors::changing(to);
        let copied = kernel_copy(from, from_offset, n, |slot| {
            if leads_elsewhere(slot, to) {
                // Programs that copy by reading ask for this first, for all of a file at once.
                Told::After { likely: false }
            } else if descriptors::reads_to_copy(slot.dev.load(Relaxed)) {
                Told::After { likely: true }
            } else {
                Told::Never
            }
        });
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::copy_file_range(from, from_offset, to, to_offset, n, flags) };
        has_copied(from, copied, r);
        if to_offset.is_null() {
            descriptors::has_written(to, r);
        }
        r
    }
    /// See splice(2).
    splice (from: c_int, from_offset: *mut off_t, to: c_int, to_offset: *mut off_t, n: size_t, flags: c_uint) -> ssize_t {
        descriptors::changing(to);
        let copied = kernel_copy(from, from_offset, n, |_| Told::Before);
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::splice(from, from_offset, to, to_offset, n, flags) };
        has_copied(from, copied, r);
        if to_offset.is_null() {
            descriptors::has_written(to, r);
        }
        r
    }
    /// See mmap(2).
    mmap = mmap64 (address: *mut c_void, n: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void {
        // SAFETY: the caller's arguments, unchanged.
        let p = unsafe { real::mmap(address, n, protection, flags, fd, offset) };
        if p == libc::MAP_FAILED || (n as u64) < SMALLEST_MAP {
            return p;
        }
        if flags & libc::MAP_FIXED != 0 {
            descriptors::mapping_changed(Kind::Unmap, 0, p as usize, n);
        }
        if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 {
            descriptors::mapped(fd, offset as u64, p as usize, n);
        }
        p
    }
    /// See munmap(2).
    munmap (address: *mut c_void, n: size_t) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::munmap(address, n) };
        if r == 0 && n as u64 >= SMALLEST_MAP {
            descriptors::mapping_changed(Kind::Unmap, 0, address as usize, n);
        }
        r
    }
    /// See mremap(2).
    mremap (old: *mut c_void, n: size_t, new_n: size_t, flags: c_int, place: *mut c_void) -> *mut c_void {
        // SAFETY: the caller's arguments, unchanged.
        let p = unsafe { real::mremap(old, n, new_n, flags, place) };
        let moved = p != libc::MAP_FAILED && n > 0 && flags & libc::MREMAP_DONTUNMAP == 0;
        if moved && n.max(new_n) as u64 >= SMALLEST_MAP {
            if flags & libc::MREMAP_FIXED != 0 {
                descriptors::mapping_changed(Kind::Unmap, 0, p as usize, new_n);
            }
            descriptors::mapping_changed(Kind::Remap, p as u64, old as usize, new_n);
            if p != old {
                // Of a part of a mapping nothing is followed any longer.
                descriptors::mapping_changed(Kind::Unmap, 0, old as usize, n);
            }
        }
        p
    }
    /// See madvise(2).
    madvise (address: *mut c_void, n: size_t, advice: c_int) -> c_int {
        // SAFETY: the caller's arguments; NORMAL is checked as the dropped hint would have been.
        let r = unsafe { real::madvise(address, n, if hint(advice) && drops_hints() { libc::MADV_NORMAL } else { advice }) };
        if advice == libc::MADV_WILLNEED && r == 0 {
            // The kernel clips this silently; the service completes it.
            descriptors::mapping_changed(Kind::MapWillNeed, 0, address as usize, n);
        }
        r
    }
    /// See posix_madvise(3).
    posix_madvise (address: *mut c_void, n: size_t, advice: c_int) -> c_int {
        // SAFETY: as for madvise; the POSIX numbers of these hints are the same.
        let r = unsafe { real::posix_madvise(address, n, if hint(advice) && drops_hints() { libc::POSIX_MADV_NORMAL } else { advice }) };
        if advice == libc::POSIX_MADV_WILLNEED && r == 0 {
            descriptors::mapping_changed(Kind::MapWillNeed, 0, address as usize, n);
        }
        r
    }
    /// See posix_fadvise(3).
    posix_fadvise = posix_fadvise64 (fd: c_int, offset: off_t, n: off_t, advice: c_int) -> c_int {
        let mut advice = advice;
        match advice {
            libc::POSIX_FADV_WILLNEED | libc::POSIX_FADV_SEQUENTIAL | libc::POSIX_FADV_RANDOM
                if drops_hints() => advice = libc::POSIX_FADV_NORMAL,
            // What the kernel would refuse is left to it.
            libc::POSIX_FADV_WILLNEED if offset >= 0 && n >= 0 => {
                let len = if n == 0 { u64::MAX >> 1 } else { n as u64 };
                if descriptors::take_over(fd, offset as u64, len) {
                    return 0;
                }
            }
            _ => {}
        }
        // SAFETY: the caller's arguments, or a hint that does nothing in the place of a dropped one.
        let r = unsafe { real::posix_fadvise(fd, offset, n, advice) };
        if advice == libc::POSIX_FADV_DONTNEED && r == 0 {
            let len = if n == 0 { u64::MAX >> 1 } else { n as u64 };
            descriptors::about(fd, Kind::DontNeed, 0, offset as u64, len);
        }
        if r == 0 {
            descriptors::advised(fd, advice);
        }
        r
    }
    /// See readahead(2).
    readahead (fd: c_int, offset: off_t, n: size_t) -> ssize_t {
        if drops_hints() && n as isize >= 0 {
            // Checked as the caller's call would have been, and reads nothing: the range lies behind the end of every file.
            // SAFETY: integers only.
            return unsafe { real::readahead(fd, off_t::MAX & -(PAGE as off_t), 1) };
        }
        if offset >= 0 && (n as isize) > 0 && descriptors::take_over(fd, offset as u64, n as u64) {
            return 0;
        }
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::readahead(fd, offset, n) }
    }
    /// See ftruncate(2).
    ftruncate = ftruncate64 (fd: c_int, size: off_t) -> c_int {
        descriptors::changing(fd);
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::ftruncate(fd, size) };
        if r == 0 {
            descriptors::about(fd, Kind::Truncate, 0, size as u64, 0);
        }
        r
    }
    /// See pthread_exit(3). Does not return.
    pthread_exit (value: *mut c_void) -> () {
        declared::thread_ends();
        // SAFETY: the caller's argument, unchanged.
        unsafe { real::pthread_exit(value) }
    }
    /// See prctl(2).
    prctl (option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        match option {
            libc::PR_SET_SECCOMP => confining(),
            _ => changes::of_privileges(option, a),
        }
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::prctl(option, a, b, c, d) }
    }
    /// See syscall(2).
    syscall (number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
        let _away = match number {
            libc::SYS_fcntl if b as c_int == libc::F_SETLEASE => Some(leasing(a as c_int, c as c_int)),
            libc::SYS_umount2 => Some(Some(unmounting(b as c_int))),
            libc::SYS_mount => Some(mounting(d as c_ulong)),
            libc::SYS_fsconfig => Some(configuring(b as c_uint)),
            _ => None,
        };
        match number {
            // SECCOMP_SET_MODE_STRICT and SECCOMP_SET_MODE_FILTER; the others only ask.
            libc::SYS_seccomp if a as c_uint <= libc::SECCOMP_SET_MODE_FILTER => confining(),
            libc::SYS_prctl if a as c_int == libc::PR_SET_SECCOMP => confining(),
            libc::SYS_prctl => changes::of_privileges(a as c_int, b),
            libc::SYS_unshare => unsharing(a as c_int),
            libc::SYS_close_range => closing_range(a as c_uint, b as c_uint, c as c_uint),
            libc::SYS_fcntl if b as c_int == libc::F_NOTIFY => notifying(c),
            libc::SYS_fcntl if matches!(b as c_int, libc::F_SETLK | libc::F_SETLKW) => {
                exec::locking();
            }
            libc::SYS_inotify_add_watch => watching(c as u32),
            libc::SYS_fanotify_mark => attach::watch(),
            libc::SYS_exit_group => ends::ending(),
            libc::SYS_exit => attach::maybe_through(),
            _ => {}
        }
        // SAFETY: the caller's arguments, unchanged.
        if let Some(r) = unsafe { exec::by_number(number, a, b, c, d, e) } {
            return r;
        }
        changes::by_number(number, a, b, c);
        let _copying = exec::copying(number, a);
        // SAFETY: the caller's arguments, unchanged.
        let r = unsafe { real::syscall(number, a, b, c, d, e, f) };
        if number == libc::SYS_openat2 && r >= 0 {
            // The C library has no function for it.
            descriptors::adopt(r as c_int);
        }
        if r == 0 {
            // SAFETY: the call was made.
            unsafe { exec::may_be_copied(number, a) };
        }
        r
    }
    /// See unshare(2).
    unshare (flags: c_int) -> c_int {
        unsharing(flags);
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::unshare(flags) }
    }
    /// See inotify_add_watch(2).
    inotify_add_watch (fd: c_int, path: *const c_char, mask: u32) -> c_int {
        watching(mask);
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::inotify_add_watch(fd, path, mask) }
    }
    /// See fanotify_mark(2).
    fanotify_mark (fd: c_int, flags: c_uint, mask: u64, dir: c_int, path: *const c_char) -> c_int {
        attach::watch();
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::fanotify_mark(fd, flags, mask, dir, path) }
    }
    /// See mount(2).
    mount (from: *const c_char, to: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) -> c_int {
        changes::mounts();
        let _away = mounting(flags);
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::mount(from, to, kind, flags, data) }
    }
    /// See fsconfig(2).
    fsconfig (fd: c_int, command: c_uint, key: *const c_char, value: *const c_void, number: c_int) -> c_int {
        let _away = configuring(command);
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::fsconfig(fd, command, key, value, number) }
    }
    /// See umount(2).
    umount2 (path: *const c_char, flags: c_int) -> c_int {
        let _away = unmounting(flags);
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::umount2(path, flags) }
    }
    /// See umount(2).
    umount (path: *const c_char) -> c_int {
        let _away = unmounting(0);
        // SAFETY: the caller's arguments, unchanged.
        unsafe { real::umount(path) }
    }
}

// What is to be done before a call, by whichever name it is made.

/// The calling thread is about to forbid itself system calls (seccomp).
#[cold]
fn confining() {
    rights::confine();
    graphs::disable();
}

/// Before unshare(2): threads that have tables of descriptors of their own mean different files by one number.
fn unsharing(flags: c_int) {
    if flags & !libc::CLONE_SYSVSEM != 0 {
        rights::end_threads();
    }
    if flags & libc::CLONE_FILES != 0 {
        rights::disable();
    }
    if flags & libc::CLONE_NEWNET != 0 {
        rights::leave_network();
    }
    if flags & (libc::CLONE_NEWUSER | libc::CLONE_NEWNS) != 0 {
        rights::change_of_thread();
    } else if flags & libc::CLONE_FS != 0 {
        rights::change();
    }
    if flags & libc::CLONE_NEWPID != 0 {
        // The numbers of its children mean other processes to who reads the log.
        needs::forget();
    }
    changes::unsharing(flags);
}

/// Before close_range(2).
fn closing_range(first: c_uint, last: c_uint, flags: c_uint) {
    if flags & libc::CLOSE_RANGE_UNSHARE != 0 {
        unsharing(libc::CLONE_FILES);
    }
    // CLOSE_RANGE_CLOEXEC closes nothing yet.
    if flags & libc::CLOSE_RANGE_CLOEXEC == 0 {
        descriptors::closing_range(first, last);
    }
}

/// Before fcntl(2) with F_SETLEASE: an open of ours would break a lease, and refuse one for writing.
#[cold]
fn leasing(fd: c_int, kind: c_int) -> Option<attach::Quiesced> {
    let until_us = attach::until(shm::PATIENCE_US);
    descriptors::leave_alone(fd, until_us);
    (kind == libc::F_WRLCK as c_int).then(|| attach::quiesce(until_us))
}

/// Before fcntl(2) with F_NOTIFY.
fn notifying(mask: usize) {
    /// DN_ACCESS, of those that the crate `libc` doesn't know.
    const ACCESS: usize = 1;
    if mask & ACCESS != 0 {
        attach::watch();
    }
}

/// Before inotify_add_watch(2).
fn watching(mask: u32) {
    if mask & (libc::IN_OPEN | libc::IN_ACCESS | libc::IN_CLOSE_NOWRITE) != 0 {
        attach::watch();
    }
}

/// Before umount(2). What is unmounted lazily may be open, and by force a disk that does not answer.
#[cold]
fn unmounting(flags: c_int) -> attach::Quiesced {
    changes::paths();
    let until_us = match flags & (libc::MNT_DETACH | libc::MNT_FORCE) {
        0 => attach::until(shm::PATIENCE_US),
        _ => attach::impatient(),
    };
    declared::release_all(until_us);
    attach::quiesce(until_us)
}

/// Before mount(2). A file system that is made read-only must have no file open that has lost its name (EBUSY).
#[cold]
fn mounting(flags: c_ulong) -> Option<attach::Quiesced> {
    const READ_ONLY: c_ulong = libc::MS_REMOUNT | libc::MS_RDONLY;
    (flags & (READ_ONLY | libc::MS_BIND) == READ_ONLY).then(|| unmounting(0))
}

/// Before fsconfig(2), which may do the same.
#[cold]
fn configuring(command: c_uint) -> Option<attach::Quiesced> {
    /// FSCONFIG_CMD_RECONFIGURE
    const AGAIN: c_uint = 7;
    (command == AGAIN).then(|| unmounting(0))
}

/// Mappings below this many bytes are not followed: one fault-around and one readahead window cover them.
const SMALLEST_MAP: u64 = 1 << 20;

/// Advice that only guides readahead. The numbers of madvise and posix_madvise agree.
fn hint(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_WILLNEED | libc::MADV_SEQUENTIAL | libc::MADV_RANDOM
    )
}

/// Whether a followed file and `to` lie on different devices, between which copy_file_range(2) mostly copies nothing (EXDEV).
fn leads_elsewhere(from: &shm::Slot, to: c_int) -> bool {
    descriptors::device(to).is_some_and(|dev| dev != from.dev.load(Relaxed))
}

/// Bytes from which on it matters when a call that moves them is told: several of the kernel's readahead windows.
const LONG_MOVE: size_t = 1 << 20;

/// When a read by a call that moves bytes within the kernel is told.
#[derive(Clone, Copy)]
enum Told {
    /// Before it is made.
    Before,
    /// After it; before it that it is to be ([`Kind::KernelCopy`]), if it isn't likely to fail.
    After { likely: bool },
    /// Nothing may be read.
    Never,
}

/// What a call moves bytes out of.
struct Moved {
    slot: &'static shm::Slot,
    generation: u32,
    /// Where from, bytes; from the file position where `offset` is null.
    at: u64,
    offset: *const off_t,
    told: Told,
    /// The service knows that it is to be.
    announced: bool,
}

/// A call moved bytes from elsewhere than where the last one had ended.
static ASTRAY: AtomicBool = AtomicBool::new(false);

/// A call is about to move `n` bytes out of a file inside the kernel, from `*offset` or the file position; [`has_copied`] is to follow. The
/// offset's memory is the caller's to get wrong: it is read by the kernel first. A long one is told as `long` says.
fn kernel_copy(
    from: c_int,
    offset: *const off_t,
    n: size_t,
    long: impl Fn(&shm::Slot) -> Told,
) -> Option<Moved> {
    let (_, slot) = descriptors::tracked(from)?;
    let here = offset.is_null();
    let resident = slot.flags.load(Relaxed) & shm::FLAG_RESIDENT != 0;
    let told = match n {
        LONG_MOVE.. => long(slot),
        _ => Told::Before,
    };
    // Whether a file is still cached has to be seen before it is read.
    let told = match told {
        Told::After { likely: true } if resident => Told::Before,
        told => told,
    };
    let at = match told {
        // Most continue where the last one ended.
        _ if !here => slot.last.load(Relaxed),
        Told::After { .. } => slot.pos.load(Relaxed),
        Told::Before | Told::Never => 0,
    };
    let mut announced = false;
    if let Told::After { .. } = told {
        slot.flags.fetch_or(shm::FLAG_COPIES, Relaxed);
    }
    match told {
        Told::Before if here => _ = descriptors::reading(from, n),
        Told::Before => descriptors::reading_at(from, at, n),
        Told::After { likely: true } if here || !ASTRAY.load(Relaxed) => {
            announced = descriptors::about(from, Kind::KernelCopy, 0, at, n as u64);
        }
        Told::After { .. } | Told::Never => {}
    }
    let generation = slot.generation.load(Relaxed);
    Some(Moved {
        slot,
        generation,
        at,
        offset,
        told,
        announced,
    })
}

/// `n` bytes were moved, or none if that is negative.
fn has_copied(from: c_int, moved: Option<Moved>, n: ssize_t) {
    let Some(m) = moved.filter(|m| m.slot.generation.load(Relaxed) == m.generation) else {
        return;
    };
    descriptors::came(from);
    let mut at = m.at;
    if n > 0 && !m.offset.is_null() {
        // SAFETY: the kernel has just read this off_t and written it.
        at = (unsafe { m.offset.read_unaligned() } as u64).wrapping_sub(n as u64);
        if at != m.at {
            ASTRAY.store(true, Relaxed);
        }
    }
    if m.announced && (n <= 0 || at != m.at) {
        descriptors::about(from, Kind::KernelCopy, 0, 0, 0);
    }
    if let Told::After { .. } = m.told {
        descriptors::has_read_at(from, at, n);
    }
    if m.offset.is_null() {
        descriptors::advanced(Some(m.slot), n);
    } else {
        m.slot.last.store(at.wrapping_add(n.max(0) as u64), Relaxed);
    }
}
