//! Names by which files are opened, started or asked about, for a run that is remembered: see `outrider_core::needs`.
//!
//! Where a run isn't remembered all of this is a load and a branch. Where it is, a name is copied after the call was made and only if it succeeded, so that the
//! kernel has read it before. No system call is made: the log is mapped when the library is loaded.

use core::ffi::{c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use outrider_core::needs::{self, Did, Log};
use outrider_sys::{mapped, raw};

use crate::attach;

static LOG: AtomicPtr<Log> = AtomicPtr::new(null_mut());

/// A path below /proc: text and numbers.
struct Path {
    bytes: [u8; 40],
    len: usize,
}

impl Path {
    fn new(text: &[u8]) -> Path {
        let path = Path {
            bytes: [0; 40],
            len: 0,
        };
        path.then(text)
    }

    fn then(mut self, text: &[u8]) -> Path {
        for byte in text {
            // The last one stays zero.
            if self.len + 1 < self.bytes.len() {
                self.bytes[self.len] = *byte;
                self.len += 1;
            }
        }
        self
    }

    fn number(self, number: u32) -> Path {
        self.then(decimal(number, &mut [0; 10]))
    }

    /// The mount and the inode of what it leads to, if the kernel tells the mount (from 5.8 on). The system has no two mounts of one number.
    fn mount(&self) -> Option<(u64, u64)> {
        // SAFETY: plain data for which zero is a valid value.
        let mut st: libc::statx = unsafe { core::mem::zeroed() };
        let (path, to) = (self.bytes.as_ptr() as usize, &raw mut st as usize);
        let (at, flags) = (libc::AT_FDCWD as usize, libc::AT_STATX_DONT_SYNC as usize);
        let what = (libc::STATX_MNT_ID | libc::STATX_INO) as usize;
        // SAFETY: a path that ends with a zero, and the kernel writes one struct statx.
        let r = unsafe { raw::syscall6(libc::SYS_statx, at, path, flags, what, to, 0) };
        let told = r == 0 && st.stx_mask & libc::STATX_MNT_ID != 0;
        told.then_some((st.stx_mnt_id, st.stx_ino))
    }

    /// What it leads to.
    fn status(&self) -> Option<libc::stat> {
        // SAFETY: plain data for which zero is a valid value.
        let mut st: libc::stat = unsafe { core::mem::zeroed() };
        let (path, to) = (self.bytes.as_ptr() as usize, &raw mut st as usize);
        let at = libc::AT_FDCWD as usize;
        // SAFETY: a path that ends with a zero, and the kernel writes one struct stat.
        let r = unsafe { raw::syscall6(libc::SYS_newfstatat, at, path, to, 0, 0, 0) };
        (r == 0).then_some(st)
    }

    /// `st_dev` and `st_ino` of what it leads to.
    fn leads_to(&self) -> Option<(u64, u64)> {
        self.status().map(|st| (st.st_dev, st.st_ino))
    }
}

/// Whether names mean the same here as for the runner: root directory and mounts are the same. A mount is part of one namespace, so that who has its root directory
/// on the same mount sees the same mounts.
fn shares_names_with(runner: u32) -> bool {
    if let Some(own) = Path::new(b"/").mount() {
        return Path::new(b"/proc/").number(runner).then(b"/root").mount() == Some(own);
    }
    let own = |name: &[u8]| Path::new(b"/proc/self/").then(name).leads_to();
    let its = |name: &[u8]| {
        let path = Path::new(b"/proc/").number(runner).then(b"/");
        path.then(name).leads_to()
    };
    [&b"root"[..], b"ns/mnt"]
        .iter()
        .all(|name| own(name).is_some_and(|own| its(name) == Some(own)))
}

/// Maps the log of the run: descriptor `fd` of process `runner`, by whose `secret` it is known. Called once, from the constructor.
pub fn start(runner: u32, fd: u32, secret: u64) {
    if !shares_names_with(runner) {
        return;
    }
    let path = Path::new(b"/proc/").number(runner);
    let path = path.then(b"/fd/").number(fd);
    let is_file = |st: libc::stat| st.st_mode & libc::S_IFMT == libc::S_IFREG;
    // The number may be another process's by now: a pipe's readers, or a device, would notice.
    if !path.status().is_some_and(is_file) {
        return;
    }
    let flags = (libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: a path that ends with a zero, and numbers.
    let file = unsafe {
        raw::syscall6(
            libc::SYS_openat,
            libc::AT_FDCWD as usize,
            path.bytes.as_ptr() as usize,
            flags,
            0,
            0,
            0,
        )
    };
    if file < 0 {
        return;
    }
    let file = file as c_int;
    // SAFETY: numbers. Only memory that can be sealed answers this, and only what can't become shorter is mapped.
    let seals = unsafe {
        raw::syscall6(
            libc::SYS_fcntl,
            file as usize,
            libc::F_GET_SEALS as usize,
            0,
            0,
            0,
            0,
        )
    };
    let sealed = seals >= 0 && seals as c_int & libc::F_SEAL_SHRINK != 0;
    let fits = raw::fstat(file).is_ok_and(|st| st.st_size as usize == needs::BYTES);
    let made = match sealed && fits {
        true => mapped::map_file(file, needs::BYTES, null_mut()),
        false => None,
    };
    raw::close(file);
    if let Some(at) = made {
        let log = at.cast::<Log>();
        // SAFETY: mapped just now, whole.
        match unsafe { (*log).is_of(secret) } {
            true => {
                LOG.store(log, Release);
                // SAFETY: asks for what the kernel has put there: the name by which the program was started, a C string, or null.
                let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
                note(Did::Start, libc::AT_FDCWD, name);
            }
            false => mapped::unmap(at, needs::BYTES),
        }
    }
}

/// A number's digits.
fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut first = digits.len();
    for (i, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        first = i;
        if number == 0 {
            break;
        }
    }
    digits.get(first..).unwrap_or_default()
}

/// Nothing is written down any more: this process is about to give up rights, and the log's reader has them.
#[cold]
pub fn forget() {
    // A child of vfork(2) runs in its parent's memory. Under a filter of system calls that no hook has seen nothing may be asked for.
    if LOG.load(Relaxed).is_null() || attach::is_filtered() || !attach::at_home() {
        return;
    }
    let log = LOG.swap(null_mut(), Relaxed);
    if !log.is_null() {
        // Another thread may be writing: what it finds is memory of nobody.
        mapped::map_over(log.cast(), needs::BYTES);
    }
}

/// `name`, relative to `dir`, was opened with these open(2) flags.
#[inline(always)]
pub fn opened(dir: c_int, name: *const c_char, flags: c_int, fd: c_int) {
    let aside = libc::O_PATH | libc::O_TRUNC | libc::O_CREAT | libc::O_DIRECT;
    let reads = flags & libc::O_ACCMODE != libc::O_WRONLY && flags & aside == 0;
    if fd >= 0 && reads {
        note(Did::Open, dir, name);
    }
}

/// A stream or a directory was opened by its name.
#[inline(always)]
pub fn opened_by_name(name: *const c_char) {
    note(Did::Open, libc::AT_FDCWD, name);
}

/// The attributes of `name` were told.
#[inline(always)]
pub fn looked(dir: c_int, name: *const c_char) {
    note(Did::Look, dir, name);
}

#[inline(always)]
fn note(did: Did, dir: c_int, name: *const c_char) {
    let log = LOG.load(Acquire);
    if !log.is_null() && !name.is_null() {
        add(log, did, dir, name);
    }
}

#[cold]
#[inline(never)]
fn add(log: *mut Log, did: Did, dir: c_int, name: *const c_char) {
    // SAFETY: the log stays mapped; the kernel has just read the name, which therefore is a C string.
    unsafe { (*log).add(did, raw::getpid, dir, name) };
}
