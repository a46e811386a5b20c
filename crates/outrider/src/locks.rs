//! Locks that this process holds and a child would not.
//!
//! POSIX locks (fcntl(2), lockf(3)) belong to the process: exec(2) keeps them, fork(2) doesn't hand them on, and closing any descriptor of the file
//! gives them up. So a process that holds some has to become the program itself.

/// Why the program runs without us.
pub const REASON: &str = "POSIX locks (fcntl, lockf) are held, which only this process can hold";

/// Whether `kind` of descriptor `fd` is one that programs lock. Standard streams are locked where they are regular files.
pub fn may_be_locked(fd: i32, kind: u32) -> bool {
    match kind & libc::S_IFMT {
        libc::S_IFREG => true,
        libc::S_IFIFO | libc::S_IFSOCK => false,
        _ => fd > 2,
    }
}

/// Whether this process holds a POSIX lock, as far as /proc tells.
pub fn held() -> bool {
    descriptors()
        .filter(|fd| kind(*fd).is_none_or(|kind| may_be_locked(*fd, kind)))
        .any(
            |fd| match std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")) {
                Ok(info) => info
                    .lines()
                    .any(|line| line.starts_with("lock:") && line.contains("POSIX")),
                Err(_) => is_locked(fd),
            },
        )
}

/// Whether anybody holds a lock on a file, this process or another: where /proc doesn't tell whose it is.
fn is_locked(fd: i32) -> bool {
    // SAFETY: zero is a valid structure, of a lock on the whole file; the kernel writes it.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as i16;
        libc::fcntl(fd, libc::F_OFD_GETLK, &mut lock) == 0 && lock.l_type != libc::F_UNLCK as i16
    }
}

/// Numbers up to which is looked for open descriptors where /proc doesn't name them.
const LOOKED_FOR: i32 = 4096;

/// The open descriptors of this process.
pub fn descriptors() -> impl Iterator<Item = i32> {
    let listed = std::fs::read_dir("/proc/self/fd").ok();
    let others = if listed.is_some() { 0 } else { LOOKED_FOR };
    let listed = listed.into_iter().flatten().flatten();
    listed
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        // SAFETY: takes and returns numbers.
        .chain((0..others).filter(|fd| unsafe { libc::fcntl(*fd, libc::F_GETFD) } >= 0))
}

/// What kind of file a descriptor is of, without asking a server for it.
pub fn kind(fd: i32) -> Option<u32> {
    // SAFETY: the structure is plain data, written by the call.
    unsafe {
        let mut status: libc::statx = std::mem::zeroed();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let answer = libc::statx(fd, c"".as_ptr(), flags, libc::STATX_TYPE, &mut status);
        (answer == 0).then_some(status.stx_mode.into())
    }
}
