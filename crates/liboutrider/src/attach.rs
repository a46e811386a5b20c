//! Connecting a process with the service's memory.
//!
//! A process attaches when it first opens (or, after a fork, reads) a file that is worth following, so that
//! the many that never do (`true`, most of a shell script) pay for a getenv and no more. Everything here is raw
//! system calls on memory from the kernel, so it is safe wherever open(2) is: in signal handlers, in
//! allocators, between fork and exec.
//!
//! A forked child must not write into its parent's entry. It has no way to know that it is a child except
//! asking (a system call per read) or memory that the kernel clears for it: the page `Local` is marked
//! MADV_WIPEONFORK (Linux 4.14), so a child of fork, of raw clone and of anything else that copies the address
//! space finds it zero and attaches anew. A vfork child shares the memory and is meant to.

use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use outrider_core::board::Board;
use outrider_core::shm::{self, Header, MAX_FDS, Proc};
use outrider_sys::{decimal, mapped, raw, seccomp};

/// What is cleared in a forked child.
#[repr(C, align(4096))]
pub struct Local {
    /// This process's entry, null before it has attached.
    pub proc: AtomicPtr<Proc>,
    /// The process that owns this memory; 0 in a forked child that has not looked yet. A vfork child finds its parent's.
    pid: AtomicU32,
    /// Descriptors known not to be ours, a bit each, while the process has no entry to note that in.
    ignored: [AtomicU64; MAX_FDS / 64],
}

/// The wiped page; null where there is no service.
pub static LOCAL: AtomicPtr<Local> = AtomicPtr::new(null_mut());
static HEADER: AtomicPtr<Header> = AtomicPtr::new(null_mut());
/// This process or an ancestor since exec has attached.
static EVER: AtomicBool = AtomicBool::new(false);

/// No service is named in the environment, or this process cannot reach it.
const OFF: u64 = 0;
/// May attach.
const IDLE: u64 = 1;
/// A thread is attaching.
const BUSY: u64 = 2;
/// Beside one of the above, for good: nothing is to be followed in this process any more.
const FORBIDDEN: u64 = 4;
/// The above, and in the upper half the process that set BUSY: a parent that forks while it attaches leaves it behind.
static STATE: AtomicU64 = AtomicU64::new(OFF);

/// Mode and smallest file, copied from the header or the environment.
pub static MODE: AtomicU32 = AtomicU32::new(shm::MODE_APP_ONLY);
pub static MIN_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);

/// A filter of system calls stands over this process: whatever the C library has not asked the kernel before may kill it.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// From this entry on processes make themselves heard although they have nothing to tell.
const SCARCE: usize = shm::MAX_PROCS / 4;

const PATH_MAX: usize = 64;
/// The path of the memory object, a C string, written once before any thread exists.
static PATH: [AtomicUsize; PATH_MAX / size_of::<usize>()] =
    [const { AtomicUsize::new(0) }; PATH_MAX / size_of::<usize>()];

/// Reads `OUTRIDER_SHM=PATH:MODE:MIN_SIZE:FILTERS`, which `outrider run` sets. Called once, from the constructor. `false`: a filter of system
/// calls stands over this process that the runner is not under, so that nothing may be done in it.
pub fn start() -> bool {
    // SAFETY: the constructor runs before the program can change its environment from another thread.
    let text = unsafe {
        let p = libc::getenv(c"OUTRIDER_SHM".as_ptr());
        if p.is_null() {
            return true;
        }
        CStr::from_ptr(p).to_bytes()
    };
    let Some(end) = text.iter().position(|b| *b == b':') else {
        return true;
    };
    let (Some(path), Some(rest)) = (text.get(..end), text.get(end + 1..)) else {
        return true;
    };
    let mut numbers = rest.split(|b| *b == b':').map(decimal);
    let [Some(mode), Some(min_size), Some(filters)] = [(); 3].map(|()| numbers.next().flatten())
    else {
        return true;
    };
    if path.len() >= PATH_MAX {
        return true;
    }
    if filters == u64::from(seccomp::UNKNOWN) || seccomp::filters().map(u64::from) != Some(filters)
    {
        return false;
    }
    for (word, bytes) in PATH.iter().zip(path.chunks(size_of::<usize>())) {
        let mut w = [0u8; size_of::<usize>()];
        for (to, from) in w.iter_mut().zip(bytes) {
            *to = *from;
        }
        word.store(usize::from_ne_bytes(w), Ordering::Relaxed);
    }
    if mode as u32 >= shm::MODE_PREDICT && !make_local() {
        return true;
    }
    MODE.store(mode as u32, Ordering::Relaxed);
    MIN_SIZE.store(min_size, Ordering::Relaxed);
    STATE.store(IDLE, Ordering::Release);
    if predicts() {
        // A redirected standard input is a file that no hook sees being opened.
        crate::track::adopt(0);
    }
    true
}

/// Whether this mode foresees reads.
#[inline]
pub fn predicts() -> bool {
    MODE.load(Ordering::Relaxed) >= shm::MODE_PREDICT && may_attach(STATE.load(Ordering::Relaxed))
}

fn may_attach(state: u64) -> bool {
    state & FORBIDDEN == 0 && state & 3 != OFF
}

/// This process's entry, if it has attached.
#[inline(always)]
pub fn current() -> Option<&'static Proc> {
    let local = LOCAL.load(Ordering::Acquire);
    if local.is_null() {
        return None;
    }
    // SAFETY: LOCAL points to a page that is never unmapped; the entry it names is unmapped only in a forked
    // child, whose copy of the page is cleared.
    unsafe { (*local).proc.load(Ordering::Acquire).as_ref() }
}

/// Whether this process or one that it is a copy of has ever attached.
#[inline(always)]
pub fn ever() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// Whether this is a forked child of a process that had attached, has not done so itself, and knows nothing of `fd` yet.
#[inline]
pub fn orphaned(fd: i32) -> bool {
    ever() && ignored(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit == 0)
}

fn ignored(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    // SAFETY: LOCAL points to a page that is never unmapped.
    let local = unsafe { LOCAL.load(Ordering::Relaxed).as_ref() }?;
    Some((
        local.ignored.get(fd as usize / 64)?,
        1 << (fd as usize % 64),
    ))
}

/// Notes for a process without an entry whether `fd` is known not to be ours.
pub fn ignore(fd: i32, yes: bool) {
    if ever()
        && let Some((word, bit)) = ignored(fd)
    {
        if yes {
            word.fetch_or(bit, Ordering::Relaxed);
        } else {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

/// Whether the caller is the process whose memory this is, not a vfork child that runs in it.
pub fn at_home() -> bool {
    // SAFETY: LOCAL points to a page that is never unmapped.
    let Some(local) = (unsafe { LOCAL.load(Ordering::Relaxed).as_ref() }) else {
        return true;
    };
    let pid = raw::getpid();
    match local
        .pid
        .compare_exchange(0, pid, Ordering::Relaxed, Ordering::Relaxed)
    {
        Ok(_) => true,
        Err(owner) => owner == pid,
    }
}

/// In the child of fork(3): the memory is its own, and not that of a child which it makes with vfork before it has looked. A child of the
/// bare system call says so when it first looks. Where nothing is followed nobody asks.
unsafe extern "C" fn forked() {
    if predicts() {
        at_home();
    }
}

/// The page that a forked child finds zero. `false` where the kernel can't make one.
fn make_local() -> bool {
    let Some(local) = mapped::map(size_of::<Local>()) else {
        return false;
    };
    // SAFETY: an anonymous page; advised before anything points to it.
    unsafe {
        let wiped = raw::syscall6(
            libc::SYS_madvise,
            local as usize,
            size_of::<Local>(),
            libc::MADV_WIPEONFORK as usize,
            0,
            0,
            0,
        );
        if wiped != 0 {
            return false;
        }
        LOCAL.store(local.cast(), Ordering::Release);
        libc::pthread_atfork(None, None, Some(forked));
    }
    at_home()
}

/// The memory all processes share, if it has been mapped.
#[inline]
pub fn header() -> Option<&'static Header> {
    // SAFETY: mapped once and never unmapped.
    unsafe { HEADER.load(Ordering::Acquire).as_ref() }
}

/// The board on which processes tell of their foreaction graphs; null where there is none. Not through the process's entry, which
/// only those get that read files worth following.
static BOARD: AtomicPtr<Board> = AtomicPtr::new(null_mut());

/// The board, mapped at the first call; for when a graph is built.
pub fn board() -> Option<&'static Board> {
    if BOARD.load(Ordering::Acquire).is_null()
        && may_attach(STATE.load(Ordering::Relaxed))
        && let Some(shm) = Shm::open()
    {
        // SAFETY: zero is a valid board.
        let at = unsafe { shm.map(shm::BOARD_AT, size_of::<Board>()) };
        let _ = BOARD.compare_exchange(null_mut(), at.cast(), Ordering::AcqRel, Ordering::Relaxed);
    }
    // SAFETY: null or mapped for good.
    unsafe { BOARD.load(Ordering::Acquire).as_ref() }
}

/// The memory object, open for some microseconds. Another thread may close all descriptors meanwhile, and the number be another file's: nothing
/// is believed, and nothing closed, before it was looked at again.
struct Shm {
    fd: i32,
    dev: u64,
    ino: u64,
}

impl Shm {
    /// Finds it through PATH.
    fn open() -> Option<Shm> {
        let path = PATH.as_ptr() as usize;
        // The number may be another file's by now, in another process: only the memory object is opened at all.
        let mut target = [0u8; 32];
        // SAFETY: PATH is a C string in static memory; the kernel writes at most the length given.
        let n = unsafe {
            raw::syscall6(
                libc::SYS_readlinkat,
                libc::AT_FDCWD as usize,
                path,
                target.as_mut_ptr() as usize,
                target.len(),
                0,
                0,
            )
        };
        if target.get(..n.max(0) as usize) != Some(shm::SHM_NAME.as_bytes()) {
            return None;
        }
        // SAFETY: PATH is a C string in static memory.
        let fd = unsafe {
            raw::syscall6(
                libc::SYS_openat,
                libc::AT_FDCWD as usize,
                path,
                (libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK) as usize,
                0,
                0,
                0,
            ) as i32
        };
        if fd < 0 {
            return None;
        }
        match raw::fstat(fd) {
            Ok(st) if st.st_size as usize == shm::SHM_BYTES => Some(Shm {
                fd,
                dev: st.st_dev,
                ino: st.st_ino,
            }),
            _ => {
                raw::close(fd);
                None
            }
        }
    }

    fn is_still_open(&self) -> bool {
        raw::fstat(self.fd).is_ok_and(|st| st.st_dev == self.dev && st.st_ino == self.ino)
    }

    /// Maps `len` bytes from `offset` on; null where that fails.
    ///
    /// # Safety
    /// Whatever the object has there is valid for what the mapping is taken for.
    unsafe fn map(&self, offset: usize, len: usize) -> *mut u8 {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let r = unsafe {
            raw::syscall6(
                libc::SYS_mmap,
                0,
                len,
                (libc::PROT_READ | libc::PROT_WRITE) as usize,
                libc::MAP_SHARED as usize,
                self.fd as usize,
                offset,
            )
        };
        if r < 0 && r > -4096 {
            return null_mut();
        }
        if !self.is_still_open() {
            // SAFETY: mapped just now, and nobody was told of it.
            unsafe { raw::syscall6(libc::SYS_munmap, r as usize, len, 0, 0, 0, 0) };
            return null_mut();
        }
        r as *mut u8
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        if self.is_still_open() {
            raw::close(self.fd);
        }
    }
}

/// This process's number in the /proc that the service shares with us: in a pid namespace of its own a process has
/// another number for itself.
fn visible_pid() -> Option<u32> {
    let mut text = [0u8; 16];
    // SAFETY: a constant C string; the kernel writes at most the length given.
    let n = unsafe {
        raw::syscall6(
            libc::SYS_readlinkat,
            libc::AT_FDCWD as usize,
            c"/proc/self".as_ptr() as usize,
            text.as_mut_ptr() as usize,
            text.len(),
            0,
            0,
        )
    };
    decimal(text.get(..n.max(0) as usize)?).map(|pid| pid as u32)
}

/// This process's entry; attaches if that has not been done. `None` where it cannot be (then for good).
#[cold]
#[inline(never)]
pub fn attach() -> Option<&'static Proc> {
    if let Some(p) = current() {
        return Some(p);
    }
    if !at_home() {
        return None;
    }
    let busy = u64::from(raw::getpid()) << 32 | BUSY;
    let state = STATE.load(Ordering::Acquire);
    if !may_attach(state) || state == busy {
        return None;
    }
    if STATE
        .compare_exchange(state, busy, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return None;
    }
    // Another thread may have attached between the first look and the claim.
    let done = match current() {
        Some(p) => Some(p),
        None => try_attach(),
    };
    let state = if done.is_some() { IDLE } else { OFF };
    if STATE
        .compare_exchange(busy, state, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        // Forbidden meanwhile.
        detach();
        return None;
    }
    done
}

fn detach() {
    // SAFETY: LOCAL's page is never unmapped.
    if let Some(local) = unsafe { LOCAL.load(Ordering::Acquire).as_ref() } {
        local.proc.store(null_mut(), Ordering::Release);
    }
}

#[inline(never)]
fn try_attach() -> Option<&'static Proc> {
    let pid = visible_pid()?;
    attach_through(&Shm::open()?, pid)
}

/// Maps the first page of the shared memory, if that has not been done.
fn header_through(shm: &Shm) -> Option<&'static Header> {
    if HEADER.load(Ordering::Relaxed).is_null() {
        // SAFETY: maps the object's first page.
        let p = unsafe { shm.map(0, size_of::<Header>()) } as *mut Header;
        // SAFETY: p is null or a page-sized mapping of a Header.
        let h = unsafe { p.as_ref() }?;
        if h.magic.load(Ordering::Acquire) != shm::MAGIC
            || h.version.load(Ordering::Relaxed) != shm::VERSION
        {
            return None;
        }
        // Two threads may both have mapped it; either will do.
        HEADER.store(p, Ordering::Release);
    }
    header()
}

/// The header, mapped if need be, for what concerns more than this process: whether it is followed itself does not matter, but a filter of
/// system calls may not stand over it.
fn reach_header() -> Option<&'static Header> {
    if let Some(header) = header() {
        return Some(header);
    }
    if PATH[0].load(Ordering::Relaxed) == 0 || CONFINED.load(Ordering::Relaxed) {
        return None;
    }
    header_through(&Shm::open()?)
}

fn attach_through(shm: &Shm, pid: u32) -> Option<&'static Proc> {
    let header = header_through(shm)?;
    if header.closed.load(Ordering::Relaxed) != 0 {
        return None;
    }
    let mut claimed = None;
    for (i, owner) in header.owners.iter().enumerate() {
        let o = owner.load(Ordering::Relaxed);
        if o == pid {
            // Ours, from before an exec: its descriptors are another program's.
            owner.store(shm::OWNER_GONE, Ordering::Release);
        } else if o == shm::OWNER_FREE
            && claimed.is_none()
            && owner
                .compare_exchange(o, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            claimed = Some((i, owner));
        }
    }
    let Some((index, owner)) = claimed else {
        header.lose(shm::lost::PROCS_FULL);
        return None;
    };
    let at = shm::PROCS_AT + index * size_of::<Proc>();
    let entry = if shm.is_still_open() && header.reserve(shm.fd, at, size_of::<Proc>()) {
        // SAFETY: the object is SHM_BYTES long; the entry lies within it and is page-aligned.
        unsafe { shm.map(at, size_of::<Proc>()) }.cast::<Proc>()
    } else {
        null_mut()
    };
    // SAFETY: null, or a mapping of a whole Proc that stays for the life of this process (a forked child keeps its
    // parent's too: a hook that a signal handler forked in may still hold it).
    let Some(found) = (unsafe { entry.as_ref() }) else {
        header.lose(shm::lost::MEMORY);
        owner.store(shm::OWNER_FREE, Ordering::Release);
        return None;
    };
    tell_name(found);
    found.pid.store(pid, Ordering::Release);
    EVER.store(true, Ordering::Release);
    // SAFETY: LOCAL's page is never unmapped, and predicting modes begin with making it.
    unsafe { LOCAL.load(Ordering::Acquire).as_ref() }?
        .proc
        .store(entry, Ordering::Release);
    if index >= SCARCE {
        // Only the service clears the entries of ended processes.
        found.announce(header);
    }
    Some(found)
}

unsafe extern "C" {
    /// See program_invocation_short_name(3).
    static program_invocation_short_name: AtomicPtr<u8>;
}

/// Leaves this program's name in its entry.
fn tell_name(proc: &Proc) {
    // SAFETY: the C library sets it before any code of ours runs; programs may point it elsewhere, at a string.
    let mut at = unsafe { program_invocation_short_name.load(Ordering::Relaxed) };
    if at.is_null() {
        return;
    }
    for word in &proc.name {
        let mut bytes = [0u8; 8];
        for byte in &mut bytes {
            // SAFETY: within a string that a zero ends; nothing is read after that.
            *byte = unsafe { *at };
            if *byte == 0 {
                break;
            }
            at = at.wrapping_add(1);
        }
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        if bytes[7] == 0 {
            break;
        }
    }
}

/// Nothing is followed in this process any more: its threads no longer share one descriptor table, so that numbers say nothing,
/// or a filter of system calls (seccomp) would kill it for one of ours.
#[cold]
pub fn disable() {
    if !at_home() {
        return;
    }
    // The service holds nothing for this process any longer, because nobody would tell it when that is in the way.
    crate::track::closing_range(0, u32::MAX);
    STATE.fetch_or(FORBIDDEN, Ordering::AcqRel);
    detach();
}

/// The program is about to forbid itself and the programs that it starts some system calls, on pain of death perhaps: from here on hooks
/// ask the kernel nothing that programs don't ask themselves, in no process of the tree.
#[cold]
pub fn confine() {
    if MODE.load(Ordering::Relaxed) >= shm::MODE_PREDICT
        && let Some(header) = reach_header()
    {
        header.looks.store(0, Ordering::Release);
    }
    disable();
    CONFINED.store(true, Ordering::Release);
}

/// The program is about to watch files for being opened or closed, by anyone: from here on nobody opens any for its sake.
#[cold]
pub fn watch() {
    if MODE.load(Ordering::Relaxed) < shm::MODE_PREDICT {
        return;
    }
    // Once nothing is opened any more there is nothing to let go of.
    if let Some(header) = reach_header()
        && header.watched.swap(1, Ordering::AcqRel) == 0
    {
        release_all(impatient());
    }
}

/// What the monotonic clock shows when disks have been waited for that the call can do without, µs.
pub fn impatient() -> u64 {
    raw::monotonic_us() + shm::IMPATIENCE_US
}

/// As long as it lives the service opens no file.
#[must_use]
pub struct Away(Option<Call>);

struct Call {
    number: u32,
    word: &'static AtomicU32,
    pid: u32,
}

impl Drop for Away {
    fn drop(&mut self) {
        // A child that a signal handler forked has a copy.
        if let Some(call) = &self.0
            && call.pid == raw::getpid()
        {
            let _ = call
                .word
                .compare_exchange(call.number, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// The runner's memory, if there is a service that may hold descriptors. Under a filter of system calls nobody is asked.
fn reach_service() -> Option<&'static Header> {
    if MODE.load(Ordering::Relaxed) < shm::MODE_PREDICT || CONFINED.load(Ordering::Relaxed) {
        return None;
    }
    reach_header().filter(|header| header.closed.load(Ordering::Relaxed) == 0)
}

/// Before umount(2) (EBUSY) and F_SETLEASE (EAGAIN), which an open descriptor elsewhere would disturb: [`release_all`], and nothing is opened until the
/// call is over.
#[cold]
pub fn keep_away(until_us: u64) -> Away {
    let Some(header) = reach_service() else {
        return Away(None);
    };
    let number = header.called.fetch_add(1, Ordering::Relaxed) << 1 | 1;
    let claims = |word: &&AtomicU32| {
        word.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let call = header.calls.iter().find(claims).map(|word| Call {
        number,
        word,
        pid: raw::getpid(),
    });
    release_all(until_us);
    Away(call)
}

/// Asks the service to let go of every descriptor, and waits until it has, or the monotonic clock shows `until_us` µs.
#[cold]
pub fn release_all(until_us: u64) {
    let Some(header) = reach_service() else {
        return;
    };
    if header.service_pid.load(Ordering::Relaxed) == 0 {
        return;
    }
    let wanted = header
        .release_wanted
        .fetch_add(1, Ordering::AcqRel)
        .wrapping_add(1);
    header.ring_doorbell();
    let asked = raw::monotonic_us();
    let honours = |word: &AtomicU32| {
        let value = word.load(Ordering::Acquire);
        (value, value.wrapping_sub(wanted) as i32 >= 0)
    };
    while header.closed.load(Ordering::Relaxed) == 0 {
        let (done, is_done) = honours(&header.release_done);
        let (_, has_begun) = honours(&header.release_begun);
        let until_us = match has_begun {
            true => until_us,
            false => until_us.min(asked + shm::IMPATIENCE_US),
        };
        if is_done || raw::monotonic_us() >= until_us {
            return;
        }
        raw::futex_wait(&header.release_done, done, 10_000);
    }
}

/// This process is about to end, to become another program, or has unmapped a file: what the service has open for it is let go of first where others notice
/// that it is open.
#[cold]
pub fn leaving() {
    if let Some(proc) = current()
        && let Some(header) = header()
        && header.shown.load(Ordering::SeqCst) != 0
        && header.holds_for(proc.pid.load(Ordering::Relaxed))
        && at_home()
    {
        release_all(impatient());
    }
}

/// A child was waited for, process `child` or one that is not known: what the service had open for it is let go of. It has noticed by itself mostly.
#[cold]
pub fn child_ended(child: Option<u32>) {
    /// So often is looked whether it has, each for so long, µs, before it is demanded.
    const LOOKS: u32 = 40;
    const LOOK: u64 = 50;
    let Some(header) = reach_service() else {
        return;
    };
    let holds = || match child {
        Some(child) => header.holds_for(child),
        None => header.shown.load(Ordering::SeqCst) != 0,
    };
    for _ in 0..LOOKS {
        if !holds() {
            return;
        }
        let done = header.release_done.load(Ordering::Relaxed);
        raw::futex_wait(&header.release_done, done, LOOK);
    }
    if holds() {
        release_all(impatient());
    }
}
