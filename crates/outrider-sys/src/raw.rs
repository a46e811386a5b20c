//! System calls made without libc.
//!
//! The hooks in `liboutrider` replace libc's public names, and they run inside signal handlers, inside
//! allocators and in vfork children. What they call must therefore neither resolve to themselves nor
//! touch `errno`. Every function here is one kernel call; it returns what the kernel returned: a value
//! of zero or more, or a negated errno.

use core::arch::asm;
use core::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// An open descriptor that is closed by a bare system call.
///
/// The standard library's closes by libc's public name, which in a hooked process is the hook, and that would take the number
/// for the program's own; a thread with a descriptor table of its own has numbers that mean something else there.
#[derive(Debug)]
pub struct Fd(RawFd);

impl From<OwnedFd> for Fd {
    fn from(fd: OwnedFd) -> Self {
        Fd(fd.into_raw_fd())
    }
}

impl From<Fd> for OwnedFd {
    fn from(fd: Fd) -> Self {
        let number = fd.0;
        core::mem::forget(fd);
        // SAFETY: open, and nobody's any more.
        unsafe { OwnedFd::from_raw_fd(number) }
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as self.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Fd {
    /// The descriptor, in a value of its own; what is left behind is none.
    pub fn take(&mut self) -> Fd {
        Fd(std::mem::replace(&mut self.0, -1))
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.0 >= 0 {
            close(self.0);
        }
    }
}

/// One system call with six arguments.
///
/// # Safety
/// The arguments must be valid for system call `n`, as its manual page demands.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
pub unsafe fn syscall6(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let r: isize;
    // SAFETY: the x86-64 Linux system call convention; the kernel clobbers rcx and r11 only.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => r, in("rdi") a, in("rsi") b, in("rdx") c,
             in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
             options(nostack));
    }
    r
}

/// One system call with six arguments.
///
/// # Safety
/// The arguments must be valid for system call `n`, as its manual page demands.
#[inline(always)]
#[cfg(target_arch = "aarch64")]
pub unsafe fn syscall6(
    n: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let r: isize;
    // SAFETY: the AArch64 Linux system call convention.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a => r, in("x1") b, in("x2") c, in("x3") d,
             in("x4") e, in("x5") f, options(nostack));
    }
    r
}

/// The time of a clock (`libc::CLOCK_*`) that every kernel has, s and ns.
///
/// By the C library: what a crate finds of the vDSO by itself is not there under valgrind.
pub fn clock(clock: libc::clockid_t) -> (i64, i64) {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes what it is given.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    (time.tv_sec, time.tv_nsec)
}

/// A number that is the same for every call on one thread and differs between the live threads of a
/// process: the address of the thread control block.
#[inline(always)]
pub fn thread_pointer() -> usize {
    let p: usize;
    // SAFETY: reads the thread pointer that the C library set up; no memory is written.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        // The word is the same for the life of the thread.
        asm!("mov {}, fs:0", out(reg) p, options(pure, nomem, nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mrs {}, tpidr_el0", out(reg) p, options(pure, nostack, preserves_flags, nomem));
    }
    p
}

/// `futex(FUTEX_WAKE)` on a word that processes share: wakes at most `n` waiters.
#[inline]
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, n: u32) -> isize {
    // SAFETY: the address is valid for the length of the call; FUTEX_WAKE reads nothing else.
    unsafe {
        syscall6(
            libc::SYS_futex,
            word.as_ptr() as usize,
            libc::FUTEX_WAKE as usize,
            // A signed number there.
            n.min(i32::MAX as u32) as usize,
            0,
            0,
            0,
        )
    }
}

/// `futex(FUTEX_WAIT)` on a word that processes share, until it no longer holds `expected`, someone
/// wakes us, a signal comes, or `timeout_us` microseconds have passed.
#[inline]
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, expected: u32, timeout_us: u64) -> isize {
    let ts = libc::timespec {
        tv_sec: (timeout_us / 1_000_000) as libc::time_t,
        tv_nsec: ((timeout_us % 1_000_000) * 1000) as libc::c_long,
    };
    // SAFETY: word and timespec outlive the call.
    unsafe {
        syscall6(
            libc::SYS_futex,
            word.as_ptr() as usize,
            libc::FUTEX_WAIT as usize,
            expected as usize,
            &raw const ts as usize,
            0,
            0,
        )
    }
}

/// The same without a limit of time.
#[inline]
pub fn futex_wait_forever(word: &core::sync::atomic::AtomicU32, expected: u32) -> isize {
    // SAFETY: the word outlives the call; a null timeout is none.
    unsafe {
        syscall6(
            libc::SYS_futex,
            word.as_ptr() as usize,
            libc::FUTEX_WAIT as usize,
            expected as usize,
            0,
            0,
            0,
        )
    }
}

/// `getpid(2)`.
#[inline]
pub fn getpid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { syscall6(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as u32 }
}

/// `fstat(2)` into a zeroed structure, or a negated errno.
#[inline]
pub fn fstat(fd: i32) -> Result<libc::stat, i32> {
    // SAFETY: stat is plain data for which zero is a valid value.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one struct stat.
    let r = unsafe {
        syscall6(
            libc::SYS_fstat,
            fd as usize,
            &raw mut st as usize,
            0,
            0,
            0,
            0,
        )
    };
    if r < 0 { Err(-r as i32) } else { Ok(st) }
}

/// What lies at a path, a link itself.
///
/// # Errors
/// newfstatat(2)'s, positive.
pub fn lstat(path: &core::ffi::CStr) -> Result<libc::stat, i32> {
    // SAFETY: stat is plain data for which zero is a valid value.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a C string, and the kernel writes one struct stat.
    let r = unsafe {
        syscall6(
            libc::SYS_newfstatat,
            libc::AT_FDCWD as usize,
            path.as_ptr() as usize,
            &raw mut st as usize,
            libc::AT_SYMLINK_NOFOLLOW as usize,
            0,
            0,
        )
    };
    if r < 0 { Err(-r as i32) } else { Ok(st) }
}

/// What the kernel knows of an open file by itself: device, inode, mode, owner, size in bytes and times of `fstat(2)`, zero for the rest, or a negated errno. No
/// server is asked (NFS, FUSE), and none is waited for that doesn't answer; what it alone knows may be a little out of date. Times are not asked for, since
/// NFS writes everything back for them, but told as far as they are known.
#[inline]
pub fn status(fd: i32) -> Result<libc::stat, i32> {
    const FLAGS: i32 = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    const WHAT: u32 =
        libc::STATX_TYPE | libc::STATX_MODE | libc::STATX_UID | libc::STATX_INO | libc::STATX_SIZE;
    // SAFETY: plain data for which zero is a valid value.
    let mut stx: libc::statx = unsafe { core::mem::zeroed() };
    // SAFETY: an empty C string, and the kernel writes one struct statx.
    let r = unsafe {
        syscall6(
            libc::SYS_statx,
            fd as usize,
            c"".as_ptr() as usize,
            FLAGS as usize,
            WHAT as usize,
            &raw mut stx as usize,
            0,
        )
    };
    match -r as i32 {
        0 => {}
        e @ libc::EBADF => return Err(e),
        // Before Linux 4.11, or by a filter, which may say anything.
        _ => return fstat(fd),
    }
    // SAFETY: as above.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    st.st_dev = libc::makedev(stx.stx_dev_major, stx.stx_dev_minor);
    st.st_ino = stx.stx_ino;
    st.st_mode = stx.stx_mode.into();
    st.st_uid = stx.stx_uid;
    st.st_size = stx.stx_size as i64;
    (st.st_atime, st.st_atime_nsec) = (stx.stx_atime.tv_sec, stx.stx_atime.tv_nsec.into());
    (st.st_mtime, st.st_mtime_nsec) = (stx.stx_mtime.tv_sec, stx.stx_mtime.tv_nsec.into());
    (st.st_ctime, st.st_ctime_nsec) = (stx.stx_ctime.tv_sec, stx.stx_ctime.tv_nsec.into());
    Ok(st)
}

/// Whether a descriptor is one of a regular file.
#[inline]
pub fn is_regular(fd: i32) -> bool {
    status(fd).is_ok_and(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG)
}

/// The kind of file system that a file is on, `f_type` of `fstatfs(2)`; 0 where there is no answer.
#[inline]
pub fn file_system(fd: i32) -> i64 {
    // SAFETY: a number.
    unsafe { file_system_by(libc::SYS_fstatfs, fd as usize) }
}

/// The same of the file that a path leads to, by `statfs(2)`.
pub fn file_system_at(path: &CStr) -> i64 {
    // SAFETY: a C string.
    unsafe { file_system_by(libc::SYS_statfs, path.as_ptr() as usize) }
}

/// # Safety
/// `what` is a descriptor for fstatfs(2), a C string for statfs(2).
unsafe fn file_system_by(number: libc::c_long, what: usize) -> i64 {
    // SAFETY: statfs is plain data for which zero is a valid value, and the kernel writes one; the caller's promise.
    unsafe {
        let mut st: libc::statfs = core::mem::zeroed();
        syscall6(number, what, &raw mut st as usize, 0, 0, 0, 0);
        st.f_type
    }
}

/// What the calling thread has had read from disks so far, in blocks of 512 bytes, inodes and directories, too; and how often it has waited for
/// anything (`ru_inblock` and `ru_nvcsw` of `getrusage(2)`).
#[inline]
pub fn blocks_and_waits() -> (i64, i64) {
    // SAFETY: rusage is plain data for which zero is a valid value, and the kernel writes one.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        let (whose, buf) = (libc::RUSAGE_THREAD as usize, &raw mut usage as usize);
        syscall6(libc::SYS_getrusage, whose, buf, 0, 0, 0, 0);
        (usage.ru_inblock, usage.ru_nvcsw)
    }
}

/// The first of [`blocks_and_waits`].
#[inline]
pub fn blocks_read() -> i64 {
    blocks_and_waits().0
}

/// `lseek(2)`: the new position, or a negated errno.
#[inline]
pub fn lseek(fd: i32, offset: i64, whence: i32) -> i64 {
    // SAFETY: no memory is passed.
    unsafe {
        syscall6(
            libc::SYS_lseek,
            fd as usize,
            offset as usize,
            whence as usize,
            0,
            0,
            0,
        ) as i64
    }
}

/// `readahead(2)`: has the kernel read `len` bytes from `offset` on into the page cache, without waiting for them.
pub fn readahead(fd: i32, offset: i64, len: usize) {
    // SAFETY: no memory is passed.
    unsafe {
        syscall6(
            libc::SYS_readahead,
            fd as usize,
            offset as usize,
            len,
            0,
            0,
            0,
        );
    }
}

/// `fallocate(2)`: whether `len` bytes from `offset` on have room of their own.
pub fn fallocate(fd: i32, offset: usize, len: usize) -> bool {
    // SAFETY: no memory is passed.
    unsafe { syscall6(libc::SYS_fallocate, fd as usize, 0, offset, len, 0, 0) == 0 }
}

/// `getdents64(2)`: fills `room` with entries of a directory, from where it stands on. Bytes, 0 at its end, or an errno.
pub fn getdents64(fd: i32, room: &mut [u8]) -> Result<usize, i32> {
    let (at, len) = (room.as_mut_ptr() as usize, room.len());
    // SAFETY: the kernel writes at most `len` bytes there.
    let r = unsafe { syscall6(libc::SYS_getdents64, fd as usize, at, len, 0, 0, 0) };
    usize::try_from(r).map_err(|_| -r as i32)
}

/// `close(2)`.
#[inline]
pub fn close(fd: i32) -> isize {
    // SAFETY: no memory is passed.
    unsafe { syscall6(libc::SYS_close, fd as usize, 0, 0, 0, 0, 0) }
}

/// `gettid(2)`.
#[inline]
pub fn gettid() -> u32 {
    // SAFETY: takes no arguments and cannot fail.
    unsafe { syscall6(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) as u32 }
}

/// Faults of the calling thread, as far as the kernel counts them.
#[inline]
pub fn faults() -> i64 {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure, which outlives the call; zero is a valid one.
    let usage = unsafe {
        let (whose, to) = (libc::RUSAGE_THREAD as usize, usage.as_mut_ptr() as usize);
        syscall6(libc::SYS_getrusage, whose, to, 0, 0, 0, 0);
        usage.assume_init()
    };
    usage.ru_minflt + usage.ru_majflt
}

/// Whether thread `tid` of this process still lives.
pub fn thread_lives(tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    let r = unsafe {
        syscall6(
            libc::SYS_tgkill,
            getpid() as usize,
            tid as usize,
            0,
            0,
            0,
            0,
        )
    };
    r != -(libc::ESRCH as isize)
}

/// `rt_sigprocmask(SIG_SETMASK)` on the kernel's 64 bits, bit n - 1 for signal n; returns the mask before.
#[inline]
pub fn set_signal_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: two 8-byte sets that outlive the call.
    unsafe {
        syscall6(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK as usize,
            &raw const mask as usize,
            &raw mut old as usize,
            8,
            0,
            0,
        )
    };
    old
}

/// What the monotonic clock shows, µs.
pub fn monotonic_us() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel fills in the structure, which outlives the call.
    unsafe {
        syscall6(
            libc::SYS_clock_gettime,
            libc::CLOCK_MONOTONIC as usize,
            &raw mut t as usize,
            0,
            0,
            0,
            0,
        )
    };
    t.tv_sec as u64 * 1_000_000 + t.tv_nsec as u64 / 1000
}

/// Time that the calling thread has waited for a processor while it could have gone on; zero where the kernel doesn't count that.
pub fn thread_waited() -> std::time::Duration {
    // Nanoseconds on a processor, nanoseconds waited, and how often.
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = told.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    std::time::Duration::from_nanos(waited.unwrap_or(0))
}

/// Time that the calling thread has spent on a processor.
pub fn thread_time() -> std::time::Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(t.tv_sec.max(0) as u64, t.tv_nsec.max(0) as u32)
}
