//! Connecting a process with the service.
//!
//! A process attaches when it first opens (or, after a fork, reads) a file that is worth following, so that
//! the many that never do (`true`, most of a shell script) pay for a getenv and no more. At first what the hooks keep is in memory that
//! only the process has: of files that are cached there is nothing to tell. When there is, or a report is wanted, the process makes
//! memory that can be shared, takes over what it has kept, and hands it to the service over a socket (`outrider_sys::handover`), without
//! waiting for an answer. Everything here is raw system calls on memory from the kernel, so it is safe wherever open(2) is: in signal
//! handlers, in allocators, between fork and exec.
//!
//! A forked child must not write into its parent's memory. It does not have it (MADV_DONTFORK), and the page `Local`, which says where it is, is
//! marked MADV_WIPEONFORK (Linux 4.14), so that a child of fork, of raw clone and of anything else that copies the address
//! space finds it zero and attaches anew. What a child knows of where its parent's memory was says nothing about what is there. A vfork child shares the memory and is meant to.
//! Both kinds of memory lie behind that page, in room that is taken at the start. Where the kernel chose, it would choose the hole that a
//! mapping of the program with MADV_DONTFORK leaves in a child, and a wild access there would find us instead of nothing.
//!
//! Before a process gives up rights (its user, capabilities, root, namespaces, system calls) the memory goes, too: what it may do then is
//! another matter, and another service's.

use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use outrider_core::board::Board;
use outrider_core::shm::{self, MAX_FDS, PROC_BYTES, PROC_BYTES_USED, Proc};
use outrider_sys::device::is_servers;
use outrider_sys::handover::{self, Message, NAME_BYTES, Peer};
use outrider_sys::units::DeviceId;
use outrider_sys::{decimal, environment, mapped, raw, seccomp, threads};

/// What is cleared in a forked child.
#[repr(C, align(4096))]
pub struct Local {
    /// What the hooks of this process keep, null before it has attached.
    pub proc: AtomicPtr<Proc>,
    /// Memory that the service has, where the hooks keep nothing (foreaction graphs alone); else null.
    told: AtomicPtr<Proc>,
    /// 1: the service has been handed the memory.
    handed: AtomicU32,
    /// The process that owns this memory; 0 in a forked child that has not looked yet. A vfork child finds its parent's.
    pid: AtomicU32,
    /// Memory that this process has handed to the service. See [`SHARED`].
    shared: [AtomicPtr<u8>; 2],
    /// Whether this process has used the parts of [`ROOM`].
    used: [AtomicBool; 2],
    /// Descriptors known not to be ours, a bit each, while the process has no entry to note that in.
    ignored: [AtomicU64; MAX_FDS / 64],
    /// Calls under way by which children get a copy of this process's descriptors and mappings.
    copies: AtomicU32,
    /// 1: memory is being handed over, so that there are a descriptor and perhaps a mapping which no child may have.
    handing: AtomicU32,
}

/// The wiped page; [`NOBODYS`] where there is no service.
static LOCAL: AtomicPtr<Local> = AtomicPtr::new((&raw const NOBODYS).cast_mut());
/// A page in which nothing is ever kept, so that hooks need not ask whether there is one.
static NOBODYS: Local = Local {
    proc: AtomicPtr::new(null_mut()),
    told: AtomicPtr::new(null_mut()),
    handed: AtomicU32::new(0),
    pid: AtomicU32::new(0),
    shared: [const { AtomicPtr::new(null_mut()) }; 2],
    used: [const { AtomicBool::new(false) }; 2],
    ignored: [const { AtomicU64::new(0) }; MAX_FDS / 64],
    copies: AtomicU32::new(0),
    handing: AtomicU32::new(0),
};
/// This process or an ancestor since exec has attached.
static EVER: AtomicBool = AtomicBool::new(false);
/// What in this process concerns more than files that are followed. Until a bit is set the hooks look no further.
pub static INVOLVED: AtomicU8 = AtomicU8::new(0);
/// Something uses graphs.
pub const GRAPHS: u8 = 1;
/// Something has declared what it will read.
pub const LISTS: u8 = 2;
/// Memory that the service has been handed, of this process or, in a child that has not handed over any, of its parent. There it is a hole, in which the
/// child may have put something else by now.
static SHARED: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

/// Room for what a process keeps by itself, which children of fork(2) find zero, and behind it for what it hands over. Null: there is none,
/// and the kernel chooses.
static ROOM: AtomicPtr<u8> = AtomicPtr::new(null_mut());
const OWN: usize = 0;
const HANDED: usize = 1;

/// No service is named in the environment, or this process cannot reach it.
const OFF: u64 = 0;
/// May attach.
const IDLE: u64 = 1;
/// A thread is attaching.
const BUSY: u64 = 2;
/// Beside one of the above, for good: nothing is to be followed in this process any more.
const FORBIDDEN: u64 = 4;
/// Likewise: the service can't be reached, or may not be.
const UNREACHABLE: u64 = 8;
/// The above, and in the upper half the process that set BUSY: a parent that forks while it attaches leaves it behind.
static STATE: AtomicU64 = AtomicU64::new(OFF);

/// Mode and smallest file, from the environment.
pub static MODE: AtomicU32 = AtomicU32::new(shm::MODE_APP_ONLY);
pub static MIN_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);
/// `shm::ENVIRONMENT_*`.
static FLAGS: AtomicU64 = AtomicU64::new(0);
/// User and process of the runner, who alone is trusted to listen, but for root.
static USER: AtomicU32 = AtomicU32::new(0);
static RUNNER: AtomicU32 = AtomicU32::new(0);
/// By which the service knows the programs of its run.
static SECRET: AtomicU64 = AtomicU64::new(0);
/// What the kernel calls a user whom the caller's user namespace does not have (/proc/sys/kernel/overflowuid).
const NOBODY: u32 = 65534;
/// See [`Notes::settings`]; the first is 0 where the defaults hold.
static SETTINGS: [AtomicU64; shm::SETTINGS] = [const { AtomicU64::new(0) }; shm::SETTINGS];
/// The name of the socket, written once before any thread exists.
static NAME: [AtomicU64; NAME_BYTES.div_ceil(8)] =
    [const { AtomicU64::new(0) }; NAME_BYTES.div_ceil(8)];

/// A filter of system calls stands over this process: whatever the C library has not asked the kernel before may kill it.
static CONFINED: AtomicBool = AtomicBool::new(false);
/// This program watches files for being opened or closed.
static WATCHES: AtomicBool = AtomicBool::new(false);
/// Times that the service did not take what was handed to it because too many others were waiting, and how often it is not tried after the last.
static REFUSED: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Reads `OUTRIDER_SHM=NAME:MODE:MIN_SIZE:FILTERS:FLAGS:USER:RUNNER:SECRET[:SETTINGS…]`, which `outrider run` sets. Called once, from the constructor. `false`: a
/// filter of system calls stands over this process that the runner is not under, so that nothing may be done in it.
pub fn start() -> bool {
    // SAFETY: the constructor runs before the program can change its environment from another thread.
    let Some(text) = (unsafe { environment::variable(c"OUTRIDER_SHM") }).map(CStr::to_bytes) else {
        return true;
    };
    let Some(end) = text.iter().position(|b| *b == b':') else {
        return true;
    };
    let (Some(name), Some(rest)) = (text.get(..end), text.get(end + 1..)) else {
        return true;
    };
    let mut numbers = rest.split(|b| *b == b':').map(decimal);
    let [
        Some(mode),
        Some(min_size),
        Some(filters),
        Some(flags),
        Some(user),
        Some(runner),
        Some(secret),
    ] = [(); 7].map(|()| numbers.next().flatten())
    else {
        return true;
    };
    if name.len() != NAME_BYTES && name != b"none" {
        return true;
    }
    let locked = mode >= shm::ENVIRONMENT_LOCKED;
    crate::exec::marked(rest.as_ptr(), locked);
    let mode = mode % shm::ENVIRONMENT_LOCKED;
    if filters == u64::from(seccomp::UNKNOWN) || seccomp::filters().map(u64::from) != Some(filters)
    {
        return false;
    }
    for (word, bytes) in NAME.iter().zip(name.chunks(8)) {
        let mut w = [0u8; 8];
        for (to, from) in w.iter_mut().zip(bytes) {
            *to = *from;
        }
        word.store(u64::from_ne_bytes(w), Ordering::Relaxed);
    }
    for (to, value) in SETTINGS.iter().zip(numbers) {
        to.store(value.unwrap_or(0), Ordering::Relaxed);
    }
    if name.len() == NAME_BYTES && !make_local(flags & shm::ENVIRONMENT_STRICT != 0) {
        return true;
    }
    FLAGS.store(flags, Ordering::Relaxed);
    USER.store(user as u32, Ordering::Relaxed);
    RUNNER.store(runner as u32, Ordering::Relaxed);
    SECRET.store(secret, Ordering::Relaxed);
    MODE.store(mode as u32, Ordering::Relaxed);
    MIN_SIZE.store(min_size, Ordering::Relaxed);
    if name.len() == NAME_BYTES {
        STATE.store(IDLE, Ordering::Release);
    }
    if flags & shm::ENVIRONMENT_REMEMBERS != 0 {
        let log = (flags >> shm::ENVIRONMENT_LOG_SHIFT) as u32;
        crate::needs::start(runner as u32, log, secret);
    }
    true
}

/// Whether this mode foresees reads.
#[inline]
pub fn predicts() -> bool {
    MODE.load(Ordering::Relaxed) >= shm::MODE_PREDICT
        && may_attach(STATE.load(Ordering::Relaxed))
        && !current().is_some_and(is_confined)
}

/// Whether the service has found that a filter of system calls stands over the process, which no hook has seen being installed; then nothing is followed
/// from here on. No call is made.
fn is_confined(proc: &Proc) -> bool {
    let confined = proc.confined.load(Ordering::Relaxed) != 0;
    if confined && !crate::waits::is_guest() {
        CONFINED.store(true, Ordering::Release);
        STATE.fetch_or(FORBIDDEN, Ordering::AcqRel);
        // The memory stays, which nobody else has any more: to give it back is a call.
        withdraw();
    }
    confined
}

fn may_attach(state: u64) -> bool {
    state & FORBIDDEN == 0 && may_reach(state)
}

fn may_reach(state: u64) -> bool {
    state & UNREACHABLE == 0 && state & 3 != OFF
}

fn local() -> Option<&'static Local> {
    // SAFETY: LOCAL points to a page that is never unmapped.
    let local = unsafe { LOCAL.load(Ordering::Acquire).as_ref() }?;
    (!core::ptr::eq(local, &raw const NOBODYS)).then_some(local)
}

/// This process's entry, if it has attached.
#[inline(always)]
pub fn current() -> Option<&'static Proc> {
    let local = LOCAL.load(Ordering::Acquire);
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
    let local = local()?;
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
    let Some(local) = local() else {
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

/// Before fork(3): what the service has found of this process the child can't read, and what it holds others may be in the way of.
unsafe extern "C" fn forking() {
    if predicts() {
        starting();
    }
    core::mem::forget(Copying::begin());
    threads::forking();
}

/// After it, in the parent.
unsafe extern "C" fn has_forked() {
    threads::has_forked();
    drop(Copying::begun());
}

/// While it lives a child may be made that gets a copy of this process's descriptors and mappings: nothing is handed over. In the child there is no such call.
#[must_use]
pub struct Copying(Option<&'static Local>);

impl Copying {
    /// Waits until what another thread hands over is, asking the kernel nothing. No signal comes to that one, so that the caller is not it.
    #[inline]
    pub fn begin() -> Copying {
        let local = local();
        if let Some(local) = local {
            local.copies.fetch_add(1, Ordering::SeqCst);
            turn(MOMENT.load(Ordering::Relaxed), || {
                local.handing.load(Ordering::SeqCst) == 0
            });
        }
        Copying(local)
    }

    /// One that was forgotten.
    pub fn begun() -> Copying {
        Copying(local())
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if let Some(local) = self.0 {
            let less = |n: u32| n.checked_sub(1);
            let _ = local
                .copies
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        }
    }
}

/// Hands memory over while no child can get its descriptor, but one of a system call instruction of the program's own. `None`: one is being made.
fn unseen<T>(hand_over: impl FnOnce() -> T) -> Option<T> {
    let local = local()?;
    let mask = raw::set_signal_mask(u64::MAX);
    local.handing.store(1, Ordering::SeqCst);
    let done = (local.copies.load(Ordering::SeqCst) == 0).then(hand_over);
    local.handing.store(0, Ordering::SeqCst);
    raw::set_signal_mask(mask);
    done
}

/// In the child of fork(3): the memory is its own, and not that of a child which it makes with vfork before it has looked. A child of the
/// bare system call says so when it first looks. Where nothing is followed nobody asks.
unsafe extern "C" fn forked() {
    copied();
    if may_attach(STATE.load(Ordering::Relaxed)) {
        at_home();
    }
}

/// In a child that has a copy of its parent's memory, as soon as it is there: by fork(3), or by another call, where nobody has handlers called.
#[cold]
pub fn copied() {
    threads::forked();
    crate::waits::forked();
    // Where the parent's memory was is a hole, which a hook that a signal handler forked in may still look into.
    for place in &SHARED {
        let at = place.swap(null_mut(), Ordering::AcqRel);
        if at.is_null() {
            continue;
        }
        let filled = !CONFINED.load(Ordering::Relaxed) && mapped::map_hole(at, PROC_BYTES);
        if !filled && is_in_room(at) {
            ROOM.store(null_mut(), Ordering::Relaxed);
        }
    }
}

fn is_in_room(at: *mut u8) -> bool {
    let room = ROOM.load(Ordering::Relaxed);
    !room.is_null() && at == room.wrapping_add(HANDED * PROC_BYTES)
}

/// A part of [`ROOM`], for the first time in this process.
fn part(which: usize) -> Option<*mut u8> {
    let room = ROOM.load(Ordering::Relaxed);
    let unknown = |place: &AtomicPtr<u8>| !place.load(Ordering::Acquire).is_null();
    // A child of a bare system call, which does not know yet what is where its parent's memory was.
    if room.is_null() || which == HANDED && SHARED.iter().any(unknown) {
        return None;
    }
    let used = local()?.used.get(which)?.swap(true, Ordering::Relaxed);
    (!used).then_some(room.wrapping_add(which * PROC_BYTES))
}

/// The page that a forked child finds zero, and the room behind it, but where memory is committed strictly: there only what is used is
/// taken. `false` where the kernel can't make one.
fn make_local(strict: bool) -> bool {
    const PAGE: usize = size_of::<Local>();
    let with_room = match strict {
        true => None,
        false => mapped::map(PAGE + 2 * PROC_BYTES),
    };
    let Some(local) = with_room.or_else(|| mapped::map(PAGE)) else {
        return false;
    };
    let wiped = PAGE + with_room.map_or(0, |_| PROC_BYTES);
    // SAFETY: anonymous memory; advised before anything points to it.
    unsafe {
        let done = raw::syscall6(
            libc::SYS_madvise,
            local as usize,
            wiped,
            libc::MADV_WIPEONFORK as usize,
            0,
            0,
            0,
        );
        if done != 0 {
            return false;
        }
        if with_room.is_some() {
            ROOM.store(local.wrapping_add(PAGE), Ordering::Relaxed);
        }
        LOCAL.store(local.cast(), Ordering::Release);
        libc::pthread_atfork(Some(forking), Some(has_forked), Some(forked));
    }
    at_home()
}

/// Runs `claim` while no other thread attaches or hands over. `None`: another one does, or `may` does not allow it.
fn alone<T>(may: impl Fn(u64) -> bool, claim: impl FnOnce() -> T) -> Option<T> {
    if !at_home() {
        return None;
    }
    let state = STATE.load(Ordering::Acquire);
    let before = state & (FORBIDDEN | UNREACHABLE);
    let busy = u64::from(raw::getpid()) << 32 | BUSY | before;
    if !may(state) || state == busy {
        return None;
    }
    STATE
        .compare_exchange(state, busy, Ordering::AcqRel, Ordering::Relaxed)
        .ok()?;
    let done = claim();
    if STATE
        .compare_exchange(busy, IDLE | before, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        // Forbidden meanwhile.
        detach();
        return None;
    }
    Some(done)
}

/// Not again in this process.
fn give_up() {
    STATE.fetch_or(FORBIDDEN | UNREACHABLE, Ordering::AcqRel);
}

/// What the hooks of this process keep; attaches if that has not been done. `None` where it cannot be (then for good).
#[cold]
#[inline(never)]
pub fn attach() -> Option<&'static Proc> {
    if let Some(p) = current() {
        return Some(p);
    }
    let proc = alone(may_attach, || {
        // Another thread may have attached between the first look and the claim.
        if let Some(p) = current() {
            return Some(p);
        }
        let Some(at) = part(OWN).or_else(|| mapped::map(PROC_BYTES)) else {
            lose(shm::lost::MEMORY);
            give_up();
            return None;
        };
        // SAFETY: fresh memory, for good; zero is a valid Proc. A forked child has none or a copy, in which it does not look.
        let proc = unsafe { &*at.cast::<Proc>() };
        begin(proc);
        local()?.proc.store(at.cast(), Ordering::Release);
        EVER.store(true, Ordering::Release);
        Some(proc)
    });
    let proc = proc??;
    if FLAGS.load(Ordering::Relaxed) & shm::ENVIRONMENT_REPORTS != 0 {
        return Some(announce(proc));
    }
    Some(proc)
}

/// What is known of a process before it has told anything.
fn begin(proc: &Proc) {
    let looks = FLAGS.load(Ordering::Relaxed) & shm::ENVIRONMENT_LOOKS != 0;
    proc.looks.store(looks.into(), Ordering::Relaxed);
    let watches = WATCHES.load(Ordering::Relaxed);
    proc.watches.store(watches.into(), Ordering::Relaxed);
    for (to, value) in proc.notes.settings.iter().zip(&SETTINGS) {
        to.store(value.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    tell_name(proc);
}

/// Whether hooks look for themselves whether files are cached.
pub fn looks() -> bool {
    match current() {
        Some(proc) => proc.looks.load(Ordering::Relaxed) != 0,
        None => FLAGS.load(Ordering::Relaxed) & shm::ENVIRONMENT_LOOKS != 0,
    }
}

/// The service is to hear from this process: hands its memory over if that has not been done. What is told, and what is kept, from here on belongs into
/// what this returns.
#[inline]
pub fn announce(proc: &'static Proc) -> &'static Proc {
    match local() {
        Some(local) if local.handed.load(Ordering::Acquire) == 0 => announce_first(proc),
        _ => proc,
    }
}

#[cold]
#[inline(never)]
fn announce_first(proc: &'static Proc) -> &'static Proc {
    let [refused, left] = &REFUSED;
    let passes = left.load(Ordering::Relaxed);
    if passes > 0 {
        left.store(passes - 1, Ordering::Relaxed);
        return proc;
    }
    let handed = alone(may_attach, || {
        let local = local()?;
        if local.handed.load(Ordering::Acquire) != 0 {
            return current();
        }
        let Some(new) = unseen(|| hand_over(Some(proc), 0)) else {
            return current();
        };
        let new = new?;
        local
            .proc
            .store(core::ptr::from_ref(new).cast_mut(), Ordering::Release);
        local.handed.store(1, Ordering::Release);
        Some(new)
    });
    if handed.is_some_and(|h| h.is_none()) && may_attach(STATE.load(Ordering::Relaxed)) {
        let times = refused.fetch_add(1, Ordering::Relaxed).min(10);
        left.store(1 << times, Ordering::Relaxed);
    }
    handed.flatten().or_else(current).unwrap_or(proc)
}

/// Makes memory that can be shared, into which goes what was kept elsewhere, and hands it over. `None` where it cannot be: now, or, when that
/// is said, for good. Where it lies is noted in this place of [`SHARED`].
fn hand_over(old: Option<&Proc>, place: usize) -> Option<&'static Proc> {
    let strict = FLAGS.load(Ordering::Relaxed) & shm::ENVIRONMENT_STRICT != 0;
    let reserve = if strict { PROC_BYTES_USED } else { 0 };
    let free = part(HANDED).unwrap_or(null_mut());
    REAL_TIME.store(is_real_time(), Ordering::Relaxed);
    time_moment();
    mapped::was_copied();
    let made = handover::memory(shm::NAME, PROC_BYTES, reserve, free);
    let Ok((fd, at)) = made else {
        lose(shm::lost::MEMORY);
        give_up();
        return None;
    };
    let Ok(st) = raw::fstat(fd) else {
        give_up();
        return None;
    };
    // SAFETY: new memory of this size, for good; zero is a valid Proc.
    let new = unsafe { &*at.cast::<Proc>() };
    match old {
        Some(old) => new.take_over(old),
        None => begin(new),
    }
    let message = Message {
        version: shm::VERSION,
        on_behalf: 0,
        token: SECRET.load(Ordering::Relaxed),
    };
    // What a child has that no hook has seen is not this process's alone. It is tried again.
    let again = -(libc::EAGAIN as isize);
    let mut sent = match mapped::was_copied() {
        true => again,
        false => handover::send(&name(), fd, message, trusted),
    };
    // Another thread may have closed all descriptors, and the number be another file's.
    if raw::fstat(fd).is_ok_and(|now| (now.st_dev, now.st_ino) == (st.st_dev, st.st_ino)) {
        raw::close(fd);
    }
    if sent == 0 && mapped::was_copied() {
        new.closed.store(1, Ordering::Release);
        sent = again;
    }
    if sent == 0 {
        if let (Some(local), Some(shared)) = (local(), SHARED.get(place)) {
            local.shared[place].store(at, Ordering::Release);
            shared.store(at, Ordering::Release);
        }
        return Some(new);
    }
    if let Some(old) = old {
        old.take_over(new);
    }
    if is_in_room(at) && mapped::map_over(at, PROC_BYTES) {
        if let Some([_, handed]) = local().map(|l| &l.used) {
            handed.store(false, Ordering::Relaxed);
        }
    } else {
        mapped::unmap(at, PROC_BYTES);
    }
    if sent != again {
        // The run is over, or out of reach.
        give_up();
    }
    None
}

/// Whether that process may be told what this one does.
fn trusted(peer: Peer) -> bool {
    let [user, runner] = [&USER, &RUNNER].map(|n| n.load(Ordering::Relaxed));
    let may_be_it = peer.pid == runner || peer.pid == 0;
    peer.uid == user || peer.uid == 0 || may_be_it && is_called(user, peer)
}

/// Whether this process's user namespace calls the runner's user so: it may have another number for him, or none, and then he is [`NOBODY`]. So is whoever else it has no
/// number for, who is told from him by the runner's number as a process: where process namespaces differ, too, it isn't known. In a namespace within another one the number
/// can't be known: there it may be this process's own user, who can see what it does anyway.
fn is_called(user: u32, peer: Peer) -> bool {
    let is_nobody = peer.uid == NOBODY && peer.pid != 0;
    let Some(users) = Users::of(user) else {
        return is_nobody;
    };
    let is_its = match users.called {
        Some(called) => u64::from(peer.uid) == called,
        None => is_nobody,
    };
    let is_own = peer.uid != NOBODY && u64::from(peer.uid) == own_user();
    !users.all && (is_its || is_own)
}

/// Whether `uid` is what this process's user namespace calls all users whom it doesn't have.
pub fn is_unknown(uid: u32) -> bool {
    uid == NOBODY && Users::of(0).is_some_and(|users| !users.all)
}

/// The effective user.
pub fn own_user() -> u64 {
    // SAFETY: no arguments.
    unsafe { raw::syscall6(libc::SYS_geteuid, 0, 0, 0, 0, 0, 0) as u64 }
}

/// What is known of this process's user namespace.
struct Users {
    /// It has all users: there [`NOBODY`] is one like others.
    all: bool,
    /// What it calls a user of the namespace outside.
    called: Option<u64>,
}

impl Users {
    /// With what it calls `user`. `None`: that can't be looked up.
    fn of(user: u32) -> Option<Users> {
        const ALL: u64 = u32::MAX as u64;
        // Seven ranges, of three numbers of ten digits each.
        let mut map = [0u8; 256];
        let path = c"/proc/self/uid_map".as_ptr() as usize;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        let at = libc::AT_FDCWD as usize;
        // SAFETY: a C string, and a buffer that outlives the call.
        let len = unsafe {
            let fd = raw::syscall6(libc::SYS_openat, at, path, flags, 0, 0, 0);
            if fd < 0 {
                return None;
            }
            let to = map.as_mut_ptr() as usize;
            let len = raw::syscall6(libc::SYS_read, fd as usize, to, map.len(), 0, 0, 0);
            raw::close(fd as i32);
            len.max(0) as usize
        };
        let map = map.get(..len).unwrap_or_default();
        let (mut all, mut called) = (false, None);
        for line in map.split(|b| *b == b'\n') {
            let mut numbers = line.split(|b| *b == b' ').filter_map(decimal);
            let [Some(inside), Some(outside), Some(count)] = [(); 3].map(|()| numbers.next())
            else {
                continue;
            };
            all |= count >= ALL;
            // Outside is where the runner is, unless there is another namespace in between.
            if let Some(nth) = u64::from(user).checked_sub(outside)
                && nth < count
            {
                called = called.or(Some(inside.saturating_add(nth)));
            }
        }
        Some(Users { all, called })
    }
}

fn name() -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    let bytes = NAME
        .iter()
        .flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes());
    for (to, from) in name.iter_mut().zip(bytes) {
        *to = from;
    }
    name
}

/// Nothing is kept any more.
fn withdraw() {
    if let Some(local) = local() {
        local.proc.store(null_mut(), Ordering::Release);
        local.told.store(null_mut(), Ordering::Release);
        local.handed.store(0, Ordering::Release);
    }
}

/// Nothing is kept any more, and the service's memory is gone from this process. Other threads may still write where it was.
fn detach() {
    withdraw();
    let Some(local) = local() else { return };
    // What a child only knows from its parent is not there, and may be the program's.
    for (own, shared) in local.shared.iter().zip(&SHARED) {
        let at = own.swap(null_mut(), Ordering::AcqRel);
        if !at.is_null() {
            shared.store(null_mut(), Ordering::Release);
            mapped::map_over(at, PROC_BYTES);
        }
    }
}

/// The memory that the service has of this process, in which nothing is followed, if it was handed any.
fn told() -> Option<&'static Proc> {
    // SAFETY: null, or memory that stays; a forked child finds null.
    unsafe { local()?.told.load(Ordering::Acquire).as_ref() }
}

/// The memory that the service has of this process, handed over if need be; `None` where it can't be.
fn handed() -> Option<&'static Proc> {
    if predicts() {
        let proc = announce(attach()?);
        return local()
            .filter(|l| l.handed.load(Ordering::Acquire) != 0)
            .map(|_| proc);
    }
    // Nothing is followed in this process.
    let told = told();
    if told.is_some() {
        return told;
    }
    alone(may_reach, || {
        let new = unseen(|| hand_over(None, 1))??;
        local()?
            .told
            .store(core::ptr::from_ref(new).cast_mut(), Ordering::Release);
        Some(new)
    })?
}

/// Where this process tells of its foreaction graphs, if there is a report.
pub fn board() -> Option<&'static Board> {
    if FLAGS.load(Ordering::Relaxed) & shm::ENVIRONMENT_REPORTS == 0 {
        return None;
    }
    Some(&handed()?.board)
}

/// Bytes that foreaction graphs of this process may have in flight on the device with this `st_dev`, if the service has seen others read there.
pub fn room(device: DeviceId) -> Option<u64> {
    let proc = current().or_else(told)?;
    match proc.closed.load(Ordering::Relaxed) {
        0 => proc.rooms.of(device),
        _ => None,
    }
}

/// In a mode in which nothing is foreseen: whether there is a report all the same, into which goes what this process notes.
pub fn reports_alone() -> bool {
    MODE.load(Ordering::Relaxed) < shm::MODE_PREDICT
        && FLAGS.load(Ordering::Relaxed) & shm::ENVIRONMENT_REPORTS != 0
        && handed().is_some()
}

/// The memory that the service has of this process, or the report, if there is one.
pub fn shown() -> Option<&'static Proc> {
    current().or_else(told)
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

/// The service need not listen any longer, and its memory goes.
pub fn retire() {
    crate::needs::forget();
    if let Some(proc) = current() {
        proc.closed.store(1, Ordering::Release);
    }
    detach();
}

/// The same for good: nothing is to be followed in this process any more.
pub fn forbid() {
    STATE.fetch_or(FORBIDDEN, Ordering::AcqRel);
    retire();
}

/// The same under a filter of system calls that is about to come: the service isn't asked for anything from here on.
pub fn forbid_calls() {
    give_up();
    retire();
    CONFINED.store(true, Ordering::Release);
}

/// Whether the service has the memory that the hooks of this process keep.
pub fn is_handed() -> bool {
    local().is_some_and(|l| l.handed.load(Ordering::Acquire) != 0)
}

/// Whether files may be followed in this process, and the caller is it: not a vfork child that runs in its memory.
pub fn may_follow() -> bool {
    !is_filtered() && may_attach(STATE.load(Ordering::Relaxed)) && at_home()
}

/// Whether a filter of system calls is known to stand over this process, by a hook or by the service. Whoever is about to ask the kernel for something on the
/// program's behalf asks this first.
pub fn is_filtered() -> bool {
    CONFINED.load(Ordering::Relaxed) || current().is_some_and(is_confined)
}

/// The program is about to watch files for being opened or closed, by anyone: from here on nobody opens any for its sake.
#[cold]
pub fn watch() {
    if MODE.load(Ordering::Relaxed) < shm::MODE_PREDICT
        || is_filtered()
        || WATCHES.swap(true, Ordering::AcqRel)
    {
        return;
    }
    if let Some(proc) = attach() {
        proc.watches.store(1, Ordering::Release);
        // Once nothing is opened any more there is nothing to let go of.
        release_all(impatient());
    }
}

/// The report, if there is one, is to say what was lost.
#[cold]
pub fn lose(bit: u32) {
    let reports = FLAGS.load(Ordering::Relaxed) & shm::ENVIRONMENT_REPORTS != 0;
    if reports && may_reach(STATE.load(Ordering::Relaxed)) && !is_filtered() {
        handover::complain(&name(), bit, SECRET.load(Ordering::Relaxed), trusted);
    }
}

/// What the monotonic clock shows when disks have been waited for that the call can do without, µs.
pub fn impatient() -> u64 {
    until(shm::IMPATIENCE_US)
}

/// What the monotonic clock shows when so many µs are over. Where nobody may be asked nobody is waited for.
pub fn until(us: u64) -> u64 {
    if is_filtered() {
        return 0;
    }
    raw::monotonic_us() + us
}

/// As long as it lives the service opens no file.
#[must_use]
pub struct Quiesced(Option<Call>);

struct Call {
    number: u32,
    word: &'static AtomicU32,
    pid: u32,
}

impl Drop for Quiesced {
    fn drop(&mut self) {
        // A child that a signal handler forked does not have the word.
        if let Some(call) = &self.0
            && call.pid == raw::getpid()
        {
            let _ = call
                .word
                .compare_exchange(call.number, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// The memory of this process that the service has, if there is a service that may hold descriptors. Under a filter of system calls nobody is asked.
fn reach_service() -> Option<&'static Proc> {
    if MODE.load(Ordering::Relaxed) < shm::MODE_PREDICT || is_filtered() {
        return None;
    }
    handed()
        .filter(|proc| [&proc.closed, &proc.confined].map(|w| w.load(Ordering::Relaxed)) == [0, 0])
}

/// Before umount(2) (EBUSY) and F_SETLEASE (EAGAIN), which an open descriptor elsewhere would disturb: [`release_all`], and nothing is opened until the
/// call is over.
#[cold]
pub fn quiesce(until_us: u64) -> Quiesced {
    let Some(proc) = reach_service() else {
        return Quiesced(None);
    };
    let number = proc.called.fetch_add(1, Ordering::Relaxed) << 1 | 1;
    let claims = |word: &&AtomicU32| {
        word.compare_exchange(0, number, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let call = proc.calls.iter().find(claims).map(|word| Call {
        number,
        word,
        pid: raw::getpid(),
    });
    release_all(until_us);
    Quiesced(call)
}

/// A call that has failed and would take a directory away, by this name. Where a server gives unlinked files that somebody has open another name, the directory
/// may not be empty because of what the service has open, ahead of another process perhaps.
pub struct Emptied {
    dir: i32,
    path: *const c_char,
}

impl Emptied {
    /// As for `unlinkat`.
    pub fn at(dir: i32, path: *const c_char) -> Emptied {
        Emptied { dir, path }
    }

    /// Makes the call again while it fails because of that, and it may be otherwise now; what the last one has answered. The server hears that a file is closed
    /// before it is asked again, but may look at that later.
    pub fn again(self, mut answer: c_int, make: impl Fn() -> c_int) -> c_int {
        /// The last of them after 63 ms.
        const ATTEMPTS: u32 = 7;
        // SAFETY: errno of this thread.
        let fails = |r| r != 0 && unsafe { *libc::__errno_location() } == libc::ENOTEMPTY;
        if !fails(answer) {
            return answer;
        }
        // Nothing is opened from the first attempt on.
        let Some(_quiesced) = self.let_go() else {
            return answer;
        };
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                raw::futex_wait(&AtomicU32::new(0), 0, 500 << attempt);
            }
            answer = make();
            if !fails(answer) {
                break;
            }
        }
        answer
    }

    /// Where the name is a server's: lets go of everything. `None`: elsewhere, or nothing was open.
    #[cold]
    fn let_go(&self) -> Option<Quiesced> {
        if !may_follow() {
            return None;
        }
        // SAFETY: the kernel has just read the path, which therefore is a C string. It leads to a directory, and to no link.
        let path = unsafe { CStr::from_ptr(self.path) };
        let file_system = match self.dir {
            dir if dir != libc::AT_FDCWD && !path.to_bytes().starts_with(b"/") => {
                raw::file_system(dir)
            }
            _ => raw::file_system_at(path),
        };
        if !is_servers(file_system) {
            return None;
        }
        let quiesced = quiesce(until(shm::PATIENCE_US));
        let proc = reach_service()?;
        let [found, wanted] =
            [&proc.release_found, &proc.release_wanted].map(|w| w.load(Ordering::Relaxed));
        (found == wanted).then_some(quiesced)
    }
}

/// What is waited for a service at most that is about to answer, where the kernel may not be asked for time: turns of a loop, some 30 ms.
static MOMENT: AtomicU32 = AtomicU32::new(SHORTEST_MOMENT);
/// The same on processors that take longest for a turn, 60 ns.
const SHORTEST_MOMENT: u32 = 500_000;

/// Sees how many turns that are here. Where this thread was taken off its processor meanwhile they stay as few as anywhere.
fn time_moment() {
    const MOMENT_NS: i64 = 30_000_000;
    /// 4 to 15 µs.
    const TURNS: u32 = 256;
    let now = || {
        let (s, ns) = raw::clock(libc::CLOCK_MONOTONIC);
        s * 1_000_000_000 + ns
    };
    let began = now();
    turn(TURNS, || false);
    let took = (now() - began).max(1);
    let turns = MOMENT_NS * i64::from(TURNS) / took;
    let turns = turns.clamp(SHORTEST_MOMENT.into(), (8 * SHORTEST_MOMENT).into());
    MOMENT.store(turns as u32, Ordering::Relaxed);
}

/// Waits so many turns of a loop at most, asking the kernel nothing; whether it is over then.
#[inline]
fn turn(times: u32, is_over: impl Fn() -> bool) -> bool {
    for _ in 0..times {
        if is_over() {
            return true;
        }
        core::hint::spin_loop();
    }
    false
}

/// The thread that has handed memory over was real-time then (SCHED_FIFO, SCHED_RR, SCHED_DEADLINE).
static REAL_TIME: AtomicBool = AtomicBool::new(false);

/// Whether the calling thread is.
fn is_real_time() -> bool {
    // SAFETY: numbers only.
    let policy = unsafe { raw::syscall6(libc::SYS_sched_getscheduler, 0, 0, 0, 0, 0, 0) } as c_int;
    matches!(
        policy & !libc::SCHED_RESET_ON_FORK,
        libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE
    )
}

/// How far the service had come when it was last waited for in vain; 0: it never was.
static SILENT: AtomicU64 = AtomicU64::new(0);

/// How far the service has come with what this process tells and asks, and never 0.
fn come(proc: &Proc) -> u64 {
    let (taken, _) = proc.places();
    let answered = [&proc.start_done, &proc.release_done, &proc.holds];
    let answered = answered.map(|w| u64::from(w.load(Ordering::Relaxed)));
    let all = answered
        .iter()
        .fold(u64::from(taken), |all, n| all.rotate_left(20) ^ n);
    all | 1 << 63
}

/// Whether it is in vain to wait for the service: it was waited for and has done nothing since, as it is over, or stopped; or it gets no processor while this process has
/// one.
fn is_silent(proc: &Proc) -> bool {
    let silent = SILENT.load(Ordering::Relaxed);
    silent != 0 && silent == come(proc) || REAL_TIME.load(Ordering::Relaxed)
}

/// Asks the service to let go of every descriptor, and waits a moment until it has, asking the kernel nothing.
#[cold]
pub fn let_go() {
    let Some(proc) = current() else {
        return;
    };
    let wanted = proc
        .release_wanted
        .fetch_add(1, Ordering::AcqRel)
        .wrapping_add(1);
    if is_silent(proc) {
        return;
    }
    turn(MOMENT.load(Ordering::Relaxed), || {
        let done = proc.release_done.load(Ordering::Acquire);
        done.wrapping_sub(wanted) as i32 >= 0 || proc.closed.load(Ordering::Relaxed) != 0
    });
}

/// Asks the service to let go of every descriptor, and waits until it has, or the monotonic clock shows `until_us` µs.
#[cold]
pub fn release_all(until_us: u64) {
    let Some(proc) = reach_service() else {
        return;
    };
    let wanted = proc
        .release_wanted
        .fetch_add(1, Ordering::AcqRel)
        .wrapping_add(1);
    handover::knock_at(&name());
    let asked = raw::monotonic_us();
    let honours = |word: &AtomicU32| {
        let value = word.load(Ordering::Acquire);
        (value, value.wrapping_sub(wanted) as i32 >= 0)
    };
    while proc.closed.load(Ordering::Relaxed) == 0 {
        let (done, is_done) = honours(&proc.release_done);
        let (_, has_begun) = honours(&proc.release_begun);
        let until_us = match has_begun {
            true => until_us,
            false => until_us.min(asked + shm::IMPATIENCE_US),
        };
        if is_done || raw::monotonic_us() >= until_us {
            return;
        }
        raw::futex_wait(&proc.release_done, done, 10_000);
    }
}

/// The memory of this process that the service has, if it has any and may be asked.
fn handed_before() -> Option<&'static Proc> {
    let local = local()?;
    if local.handed.load(Ordering::Acquire) == 0 || is_filtered() {
        return None;
    }
    current()
        .filter(|proc| [&proc.closed, &proc.confined].map(|w| w.load(Ordering::Relaxed)) == [0, 0])
}

/// This process is about to become another program: what the service has open because of it is let go of first, so that nobody who learns that it
/// is over finds anything open. Nothing more is opened, until [`stays`].
#[cold]
pub fn leaving() {
    // What a child of vfork leaves is its parent's.
    if handed_before().is_some() && at_home() {
        ending();
    }
}

/// The same where it is about to end.
#[cold]
pub fn ending() {
    let Some(proc) = handed_before().filter(|_| !crate::waits::is_guest()) else {
        return;
    };
    crate::resident::all_end(proc);
    // The service counts first and looks at this then; here it is the other way round.
    proc.departs.store(1, Ordering::SeqCst);
    await_release(proc, || proc.holds.load(Ordering::SeqCst) == 0);
}

/// This process may be through: a thread is about to end by a call of its own, perhaps the last one, or standard output is about to be closed, by
/// which whoever reads it learns that. What the service has open because of this process is let go of; more may be opened.
#[cold]
pub fn maybe_through() {
    if handed_before().is_some_and(|proc| proc.holds.load(Ordering::SeqCst) != 0)
        && !crate::waits::is_guest()
    {
        let_go();
    }
}

/// Waits until the service has let go of so much that `is_enough`, or has had time enough.
///
/// A filter of system calls may stand over the process that no hook has seen, and kill for any but the one that ends it: the kernel is not asked for anything, be it only
/// for sleep.
fn await_release(proc: &Proc, is_enough: impl Fn() -> bool) {
    /// Turns of a loop, 60 to 200 ms of a processor. While files are fetched for a program the service looks every millisecond or two, as soon as it gets a processor, and
    /// after seconds of silence every 50 ms.
    const PATIENCE: u32 = 4_000_000;
    if is_silent(proc) {
        return;
    }
    let over = turn(PATIENCE, || {
        let words = [&proc.closed, &proc.confined].map(|w| w.load(Ordering::Relaxed));
        is_enough() || words != [0, 0]
    });
    SILENT.store(if over { 0 } else { come(proc) }, Ordering::Relaxed);
}

/// Something that the service may have open was closed by this process since it last started another.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// One that was read up to [`LARGE`] or farther, since a name last went.
static CLOSED_LARGE: AtomicBool = AtomicBool::new(false);

/// A file that is followed was closed, or is no longer mapped; it had been read up to byte `reached`.
#[inline]
pub fn closed(reached: u64) {
    CLOSED.store(true, Ordering::Relaxed);
    if reached >= LARGE {
        CLOSED_LARGE.store(true, Ordering::Relaxed);
    }
}

/// This process, or a child that runs in its memory, is about to start another: that one, which may be anybody, finds nothing open any more that was closed
/// here. What a server keeps was let go of before that was.
#[cold]
pub fn starting() {
    let Some(proc) = handed_before() else {
        return;
    };
    let walks = [&proc.walking, &proc.visiting].map(|w| w.load(Ordering::Relaxed));
    rest(proc);
    if CLOSED.swap(false, Ordering::Relaxed) || walks != [0, 0] {
        settle(proc);
    }
}

/// This process has taken names away, by unlink(2) or rename(2).
static UNLINKS: AtomicBool = AtomicBool::new(false);

/// Bytes of a file from which on it matters when its room is given back. To wait for the service takes up to a millisecond, as long as reading a fourth of that.
const LARGE: u64 = 4 << 20;

/// A name is about to go: where it was a file's last, its room is free when the call is over. So nothing large is open any more that was closed here; nor is anything that
/// a server keeps and nobody has opened yet, which it would only give another name.
#[inline]
pub fn unlinking() {
    UNLINKS.store(true, Ordering::Relaxed);
    let walking = current().map_or(0, |proc| proc.walking.load(Ordering::Relaxed));
    if CLOSED_LARGE.load(Ordering::Relaxed) || walking & shm::SERVED != 0 {
        unlinking_closed();
    }
}

#[cold]
fn unlinking_closed() {
    CLOSED_LARGE.store(false, Ordering::Relaxed);
    if let Some(proc) = handed_before() {
        rest(proc);
        settle(proc);
    }
}

/// Nothing that a server keeps is opened ahead of a process that goes through its tree, until that [goes on](goes_on).
fn rest(proc: &Proc) {
    if proc.walking.load(Ordering::Relaxed) & shm::SERVED != 0 {
        proc.rests.store(1, Ordering::SeqCst);
    }
}

/// A name has gone, by which nothing is opened any more. If it is open ahead of this process it is let go of, as its room is free when the call is over.
#[inline]
pub fn unlinked(path: *const c_char) {
    if let Some(proc) = current()
        && proc.walking.load(Ordering::Relaxed) != 0
    {
        unlinked_ahead(proc, path);
    }
}

#[cold]
fn unlinked_ahead(proc: &Proc, path: *const c_char) {
    // SAFETY: the kernel has just read the path, which therefore is a C string.
    let path = unsafe { CStr::from_ptr(path) };
    let tag = shm::name_tag(path.to_bytes().iter().copied());
    let is_open = proc.ahead.iter().any(|w| w.load(Ordering::SeqCst) == tag);
    if is_open && let Some(proc) = handed_before() {
        settle(proc);
    }
}

/// A file was opened: what comes after it may be opened ahead again.
#[inline]
pub fn goes_on(proc: &Proc) {
    if proc.rests.load(Ordering::Relaxed) != 0 {
        proc.rests.store(0, Ordering::SeqCst);
    }
}

/// Whether to close a descriptor that was read up to byte `reached` may give a file's room back, so that the service must not have it open. The kernel is not asked whether
/// the file still has a name: a filter that no hook has seen may kill for that.
pub fn gives_room(reached: u64) -> bool {
    UNLINKS.load(Ordering::Relaxed) && reached >= LARGE && handed_before().is_some_and(holds_unseen)
}

/// Whether the service has more open because of this process than what servers keep.
fn holds_unseen(proc: &Proc) -> bool {
    proc.holds.load(Ordering::SeqCst) > proc.shows.load(Ordering::SeqCst)
}

/// Waits until the service has let go of what nobody has open any more.
fn settle(proc: &Proc) {
    if !holds_unseen(proc) {
        return;
    }
    let wanted = proc
        .start_wanted
        .fetch_add(1, Ordering::SeqCst)
        .wrapping_add(1);
    await_release(proc, || {
        let done = proc.start_done.load(Ordering::Acquire);
        done.wrapping_sub(wanted) as i32 >= 0
    });
}

/// It goes on: the other program could not be started.
#[cold]
pub fn stays() {
    if let Some(proc) = handed_before()
        && at_home()
    {
        proc.departs.store(0, Ordering::SeqCst);
    }
}

/// A file was unmapped: where others notice that it is open the service lets go of it first.
#[cold]
pub fn unmapped() {
    if let Some(proc) = handed_before()
        && proc.shows.load(Ordering::SeqCst) != 0
        && at_home()
    {
        release_all(impatient());
    }
}

/// A child was waited for that a signal has ended: it could not say that it ends. What the service had open because of it is let go of.
#[cold]
pub fn child_killed() {
    // Under a filter of system calls not even for the process's number may be asked.
    if reach_service().is_some() && at_home() {
        release_all(impatient());
    }
}
