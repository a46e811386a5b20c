//! What is kept of descriptors whose files are followed, and what the service is told of them.

use core::ffi::c_int;
use core::hint::spin_loop;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64, fence};

use outrider_core::hints;
use outrider_core::shm::{
    BEGUN, FD_IGNORED, FD_TRACKED, FD_UNKNOWN, FLAG_BLIND, FLAG_FETCHING, FLAG_HELD, FLAG_READABLE,
    FLAG_RESIDENT, FLAG_SEQUENTIAL, FLAG_SHARED_POS, FLAG_UNTOLD, FLAG_WRITABLE, Kind, MAX_FDS,
    Proc, SHORT, Slot, UNHEARD, UNTOLD,
};
use outrider_sys::raw;

use crate::{attach, resident, waits, walk};

/// A descriptor and its state.
pub type Tracked = (&'static Proc, &'static Slot);

/// Whether a descriptor's file may be followed at all, in this process.
pub fn may_track(fd: c_int) -> bool {
    fd >= 0 && (fd as usize) < MAX_FDS && attach::predicts() && attach::at_home()
}

/// The file of a descriptor that came to be with these open(2) flags, if it is a regular one that is read through the page cache.
pub fn regular(fd: c_int, flags: c_int) -> Option<libc::stat> {
    if flags & (libc::O_DIRECT | libc::O_PATH | libc::O_DIRECTORY) != 0 {
        return None;
    }
    let st = raw::status(fd).ok();
    st.filter(|st| st.st_mode & libc::S_IFMT == libc::S_IFREG)
}

/// File systems whose files copy_file_range(2) surely reads: others share blocks, or have a server copy them. Both lie on block devices.
const READS_TO_COPY: [i64; 2] = [libc::EXT4_SUPER_MAGIC, libc::F2FS_SUPER_MAGIC];

/// The device on which a file was last opened for writing, above whether its file system is one of [`READS_TO_COPY`]. 0: none.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// A regular file on this device was opened for writing, perhaps to be copied to. Then its file system is asked for: a copy may be under a filter of system
/// calls that no hook has seen.
pub fn opened_for_writing(fd: c_int, dev: u64) {
    if libc::major(dev) != 0 && WRITTEN.load(Relaxed) >> 1 != dev && attach::current().is_some() {
        let reads = READS_TO_COPY.contains(&raw::file_system(fd));
        WRITTEN.store(dev << 1 | u64::from(reads), Relaxed);
    }
}

/// Whether to copy a file within this device, where one was opened for writing, surely reads it.
pub fn reads_to_copy(dev: u64) -> bool {
    WRITTEN.load(Relaxed) == dev << 1 | 1
}

/// Whether the service has said that a file of so many bytes, opened with these open(2) flags, need not be followed; counts.
pub fn passes_unfollowed(flags: c_int, size: u64) -> bool {
    if flags & libc::O_ACCMODE != libc::O_RDONLY || size > SHORT {
        return false;
    }
    let Some(proc) = attach::current() else {
        return false;
    };
    let passes = walk::rests(&proc.unfollowed);
    proc.passed_files.fetch_add(passes.into(), Relaxed);
    passes
}

/// A descriptor came to be whose file, on this device, is not to be followed; 0: it is no regular one.
pub fn opened_unfollowed(fd: c_int, dev: u64) {
    match attach::current().and_then(|p| p.slots.get(fd as usize)) {
        Some(slot) => {
            slot.dev.store(dev, Relaxed);
            slot.state.store(FD_IGNORED, Relaxed);
        }
        None => attach::ignore(fd, true),
    }
}

/// One came to be whose file is, with these open(2) flags. `extra` are `FLAG_*` bits; its position is `begins`, bytes, if that is known.
pub fn opened(
    fd: c_int,
    flags: c_int,
    extra: u32,
    begins: Option<u64>,
    st: &libc::stat,
) -> Option<Tracked> {
    let proc = attach::attach()?;
    let slot = proc.slots.get(fd as usize)?;
    let mut bits = extra;
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => bits |= FLAG_READABLE,
        libc::O_RDWR => bits |= FLAG_READABLE | FLAG_WRITABLE,
        _ => bits |= FLAG_WRITABLE,
    }
    if bits & FLAG_READABLE == 0 {
        slot.dev.store(st.st_dev, Relaxed);
        slot.state.store(FD_IGNORED, Relaxed);
        return None;
    }
    slot.forget();
    slot.dev.store(st.st_dev, Relaxed);
    slot.ino.store(st.st_ino, Relaxed);
    let pos = begins.unwrap_or_else(|| raw::lseek(fd, 0, libc::SEEK_CUR).max(0) as u64);
    bits |= resident::begins(slot, fd, pos, st.st_size as u64);
    if bits & FLAG_RESIDENT != 0 || untold() {
        bits |= FLAG_UNTOLD;
    }
    slot.flags.store(bits, Relaxed);
    slot.pos.store(pos, Relaxed);
    slot.last.store(0, Relaxed);
    slot.state
        .store(FD_TRACKED, core::sync::atomic::Ordering::Release);
    if bits & FLAG_UNTOLD == 0 {
        tell(proc, Kind::Open, fd, 0, st.st_size as u64, 0);
    } else if bits & FLAG_RESIDENT != 0 && proc.walking.load(Relaxed) != 0 {
        walk::opened_cached(proc, fd, st);
    }
    Some((proc, slot))
}

/// The descriptor is about to be closed, or its number to be given to another file.
#[inline]
pub fn closing(fd: c_int) {
    let Some(proc) = attach::current() else {
        attach::ignore(fd, false);
        return;
    };
    let Some(slot) = proc.slots.get(fd as usize) else {
        return;
    };
    if slot.state.load(Relaxed) != FD_UNKNOWN {
        forget(proc, slot, fd);
    }
    if fd == libc::STDOUT_FILENO {
        attach::maybe_through();
    }
}

/// Turns of a loop, about a millisecond: an open through /proc takes microseconds, and who waits for it asks the kernel nothing.
const PATIENCE: u32 = 20_000;

#[cold]
#[inline(never)]
fn forget(proc: &'static Proc, slot: &'static Slot, fd: c_int) {
    if waits::is_guest() {
        // A vfork child closes its own descriptor, not the parent's.
        return;
    }
    let tracked = slot.state.load(Relaxed) == FD_TRACKED;
    if slot.flags.load(Relaxed) & FLAG_SHARED_POS != 0 {
        SHARED.forget(fd);
    }
    let (last, skip) = (slot.last.load(Relaxed), slot.skip.load(Relaxed));
    let reached = last.max(slot.pos.load(Relaxed));
    if tracked && slot.flags.load(Relaxed) & FLAG_RESIDENT != 0 {
        resident::ends(proc, slot, fd);
    }
    // The generation goes up first: whatever the service still holds for this number is stale from here on.
    slot.forget();
    if tracked && slot.flags.load(Relaxed) & FLAG_UNTOLD == 0 {
        tell(proc, Kind::Close, fd, 0, last, skip.into());
    }
    // The service marks the slot and then looks at the generation again; here it is the other way round.
    fence(SeqCst);
    for _ in 0..PATIENCE {
        if slot.flags.load(Relaxed) & FLAG_FETCHING == 0 {
            break;
        }
        spin_loop();
    }
    // A service that was killed leaves its mark: nobody waits for it twice.
    slot.flags.fetch_and(!FLAG_FETCHING, SeqCst);
    if tracked && (slot.flags.load(Relaxed) & FLAG_HELD != 0 || attach::gives_room(reached)) {
        attach::let_go();
    }
    if tracked {
        attach::closed(reached);
    }
}

/// The file behind a descriptor is not to be touched from outside, through whatever descriptor.
pub fn leave_alone(fd: c_int) {
    if !attach::predicts() {
        return;
    }
    let Ok(st) = raw::status(fd) else { return };
    let Some(proc) = attach::attach() else { return };
    for (number, slot) in proc.slots.iter().enumerate() {
        if slot.state.load(Relaxed) == FD_TRACKED
            && slot.dev.load(Relaxed) == st.st_dev
            && slot.ino.load(Relaxed) == st.st_ino
        {
            closing(number as c_int);
            slot.state.store(FD_IGNORED, Relaxed);
        }
    }
    tell(proc, Kind::Leave, fd, 0, st.st_dev, st.st_ino);
}

/// The file of a descriptor is not followed any longer.
pub fn ignore(fd: c_int) {
    closing(fd);
    opened_unfollowed(fd, 0);
}

/// Descriptors `first..=last` are about to be closed.
pub fn closing_range(first: u32, last: u32) {
    if let Some(proc) = attach::current() {
        for fd in first as usize..(last as usize).saturating_add(1).min(proc.slots.len()) {
            closing(fd as c_int);
        }
    }
}

/// `to` has become a duplicate of a descriptor whose file is not followed.
#[inline]
pub fn duplicated_unfollowed(to: c_int) {
    if let Some(slot) = attach::current().and_then(|p| p.slots.get(to as usize))
        && slot.state.load(Relaxed) != FD_UNKNOWN
        && !waits::is_guest()
    {
        slot.state.store(FD_UNKNOWN, Relaxed);
    }
}

/// `to` has become a duplicate of `from`: both share one file position.
pub fn duplicated((proc, slot): Tracked, from: c_int, to: c_int) {
    slot.flags.fetch_or(FLAG_SHARED_POS, Relaxed);
    if copied(proc, slot, to) {
        SHARED.note(from, to);
    }
}

/// What is known of a descriptor holds for `to`, its duplicate: nothing is asked, since a filter of system calls may stand over the process that no hook
/// has seen. Whether `to` is followed.
#[cold]
fn copied(proc: &'static Proc, from: &Slot, to: c_int) -> bool {
    if !attach::predicts() || waits::is_guest() {
        return false;
    }
    let Some(slot) = proc.slots.get(to as usize) else {
        return false;
    };
    slot.forget();
    slot.dev.store(from.dev.load(Relaxed), Relaxed);
    slot.ino.store(from.ino.load(Relaxed), Relaxed);
    let bits = from.flags.load(Relaxed)
        & (FLAG_READABLE | FLAG_WRITABLE | FLAG_RESIDENT | FLAG_BLIND | FLAG_UNTOLD);
    if bits & FLAG_RESIDENT != 0 {
        // The hooks' own then: see `resident`.
        slot.quiet_start
            .store(from.quiet_start.load(Relaxed), Relaxed);
        slot.quiet_len.store(from.quiet_len.load(Relaxed), Relaxed);
    }
    slot.flags.store(bits | FLAG_SHARED_POS, Relaxed);
    slot.pos.store(from.pos.load(Relaxed), Relaxed);
    slot.last.store(0, Relaxed);
    slot.state
        .store(FD_TRACKED, core::sync::atomic::Ordering::Release);
    if bits & FLAG_UNTOLD == 0 {
        // How long the file is the service knows, or finds out.
        tell(proc, Kind::Open, to, 0, 0, 0);
    }
    true
}

/// Pairs of descriptors with one file position, each plus one in half a word; 0: free. Of more than there is room for each goes by its own reads.
struct Pairs([AtomicU64; 16]);

static SHARED: Pairs = Pairs([const { AtomicU64::new(0) }; 16]);

impl Pairs {
    fn note(&self, a: c_int, b: c_int) {
        let pair = (a as u64 + 1) << 32 | (b as u64 + 1);
        let free = |word: &&AtomicU64| word.compare_exchange(0, pair, Relaxed, Relaxed).is_ok();
        let _ = self.0.iter().find(free);
    }

    /// The descriptor is another file's from now on.
    fn forget(&self, fd: c_int) {
        for word in &self.0 {
            let pair = word.load(Relaxed);
            if pair != 0 && (pair >> 32 == fd as u64 + 1 || pair as u32 == fd as u32 + 1) {
                word.store(0, Relaxed);
            }
        }
    }

    /// The position of `fd` is where `slot` says: that of all that share it.
    fn moved(&self, proc: &Proc, fd: c_int, slot: &Slot) {
        let pos = slot.pos.load(Relaxed);
        for word in &self.0 {
            let pair = word.load(Relaxed);
            let (a, b) = (pair >> 32, pair & u64::from(u32::MAX));
            let other = match fd as u64 + 1 {
                n if n == a => b,
                n if n == b => a,
                _ => continue,
            };
            if let Some(other) = proc.slots.get((other as usize).wrapping_sub(1)) {
                other.pos.store(pos, Relaxed);
            }
        }
    }
}

/// The position of a descriptor with FLAG_SHARED_POS was moved by a call of this process.
#[cold]
#[inline(never)]
fn moved_shared(slot: &Slot) {
    if let Some(proc) = attach::current() {
        SHARED.moved(proc, number(proc, slot), slot);
    }
}

/// The number of a descriptor, by its state.
fn number(proc: &Proc, slot: &Slot) -> c_int {
    let from = core::ptr::from_ref(slot)
        .addr()
        .wrapping_sub(proc.slots.as_ptr().addr());
    (from / size_of::<Slot>()) as c_int
}

/// Bytes by which a position is moved onward at least for it to be told: a window of the kernel's readahead.
pub const FAR: i64 = 128 << 10;

/// The descriptor whose position was moved onward last, plus one, and the end of what was read before. Where two threads do so
/// at once one of them is not told.
static SOUGHT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// A hash of the calling thread, stable for its life.
#[inline(always)]
fn thread_tag() -> u64 {
    (raw::thread_pointer() >> 6) as u64
}

/// Whether the service need not know of files that nobody has told of yet.
fn untold() -> bool {
    attach::current().is_some_and(|p| p.untold.load(Relaxed) == UNTOLD)
}

/// Whether a read of a descriptor that nobody has told of need not be told either; otherwise all that follow are.
#[cold]
#[inline(never)]
fn passes_untold(slot: &Slot, offset: u64, len: u64) -> bool {
    slot.last.store(offset.wrapping_add(len), Relaxed);
    let passes = untold();
    if !passes {
        slot.flags.fetch_and(!FLAG_UNTOLD, Relaxed);
    }
    passes
}

#[inline]
fn tell(proc: &'static Proc, kind: Kind, fd: c_int, extra: u64, offset: u64, len: u64) -> bool {
    // Nobody waits for the end of a file: the service looks by itself while it holds one.
    let proc = match kind {
        Kind::Close => proc,
        _ => attach::announce(proc),
    };
    proc.push(kind, fd as u16, extra, offset, len)
}

/// A read of `offset..offset+len` is about to be made.
#[inline(always)]
pub fn reading_at((proc, slot): Tracked, fd: c_int, offset: u64, len: usize) {
    let len = len as u64;
    if !hushed(slot, fd, offset, len) {
        speak(proc, slot, fd, offset, len);
    }
}

/// Whether [`hushed`] says so, where that is seen without calling anything; if it isn't, nothing has been changed that would be another time.
#[inline(always)]
fn plainly_hushed(slot: &Slot, fd: c_int, offset: u64, len: u64) -> bool {
    let flags = slot.flags.load(Relaxed);
    if flags & (FLAG_RESIDENT | FLAG_UNTOLD) != 0 {
        return flags & FLAG_RESIDENT != 0 && resident::passes(slot, fd);
    }
    slot.passes(offset, len)
}

/// Whether a file is followed and cached: both of a look, which most reads need.
#[inline(always)]
fn is_resident(slot: &Slot) -> bool {
    const MASK: u64 = u32::MAX as u64 | (FLAG_RESIDENT as u64) << 32;
    const RESIDENT: u64 = FD_TRACKED as u64 | (FLAG_RESIDENT as u64) << 32;
    // SAFETY: the first two words of a structure that is aligned for it; both are only ever stored whole.
    let both = unsafe { core::ptr::from_ref(slot).cast::<u64>().read_volatile() };
    cfg!(target_endian = "little") && both & MASK == RESIDENT
}

/// Whether nobody need hear of a read of `len` bytes that is about to be made, `at(slot)`, where that is seen without calling anything: with the state of the descriptor, if
/// its file is followed. A hook that saves no registers for what it might call takes a dozen instructions less.
#[inline(always)]
pub fn silent(fd: c_int, at: impl Fn(&Slot) -> u64, len: usize) -> Option<Option<&'static Slot>> {
    let Some(proc) = attach::current() else {
        return (!attach::ever()).then_some(None);
    };
    let Some(slot) = proc.slots.get(fd as usize) else {
        return Some(None);
    };
    if is_resident(slot) {
        return resident::passes(slot, fd).then_some(Some(slot));
    }
    match slot.state.load(Relaxed) {
        FD_IGNORED => Some(None),
        FD_TRACKED if plainly_hushed(slot, fd, at(slot), len as u64) => Some(Some(slot)),
        _ => None,
    }
}

/// Whether the service has said that it need not hear of a read at `offset`, or would learn nothing from it.
#[inline(always)]
fn hushed(slot: &Slot, fd: c_int, offset: u64, len: u64) -> bool {
    if plainly_hushed(slot, fd, offset, len) {
        return true;
    }
    let flags = slot.flags.load(Relaxed);
    if flags & (FLAG_RESIDENT | FLAG_UNTOLD) != 0 {
        return flags & FLAG_RESIDENT == 0 && passes_untold(slot, offset, len);
    }
    slot.tells(flags);
    false
}

#[cold]
#[inline(never)]
fn speak(proc: &'static Proc, slot: &'static Slot, fd: c_int, offset: u64, len: u64) {
    if slot.flags.load(Relaxed) & FLAG_RESIDENT != 0 {
        if resident::stays(proc, slot, fd, offset, len) {
            return;
        }
        slot.skip.store(0, Relaxed);
        slot.quiet_len.store(0, Relaxed);
        slot.flags
            .fetch_and(!(FLAG_RESIDENT | FLAG_UNTOLD), Relaxed);
        slot.last.store(offset.wrapping_add(len), Relaxed);
    }
    let generation = slot.generation.load(Relaxed);
    if proc.hinted.load(Relaxed) != 0 && proc.hints.in_time(fd, generation, offset) {
        return;
    }
    let proc = attach::announce(proc);
    if SOUGHT[0].load(Relaxed) == fd as u64 + 1 {
        sought(proc, fd, offset);
    }
    if !proc.push(Kind::Read, fd as u16, thread_tag(), offset, len)
        && let Some(slot) = proc.slots.get(fd as usize)
    {
        slot.skip.store(UNHEARD, Relaxed);
    }
}

/// A read of `len` bytes at the file position was made or is about to be; [`advanced`] is to follow.
#[inline(always)]
pub fn reading((proc, slot): Tracked, fd: c_int, len: usize) {
    let len = len as u64;
    let pos = slot.pos.load(Relaxed);
    if !hushed(slot, fd, pos, len) {
        speak(proc, slot, fd, pos, len);
    }
}

/// A read of a file that is followed was made: whether it was waited for shows where files are cached.
#[inline(always)]
pub fn came(fd: c_int) {
    if let Some(proc) = attach::current()
        && let Some(slot) = proc.slots.get(fd as usize)
        && slot.state.load(Relaxed) == FD_TRACKED
        && slot.flags.load(Relaxed) & FLAG_RESIDENT != 0
    {
        resident::came(slot, fd);
    }
}

/// The read announced with [`reading`] returned `n`.
#[inline(always)]
pub fn advanced(slot: Option<&Slot>, n: isize) {
    if let Some(slot) = slot {
        if n > 0 {
            moved_by(slot, n as u64);
        } else {
            got_nothing(slot);
        }
    }
}

/// The file position was moved onward.
#[inline(always)]
fn moved_by(slot: &Slot, n: u64) {
    slot.pos
        .store(slot.pos.load(Relaxed).wrapping_add(n), Relaxed);
    if slot.flags.load(Relaxed) & FLAG_SHARED_POS != 0 {
        moved_shared(slot);
    }
}

/// A read was at the end of the file, or failed.
#[cold]
#[inline(never)]
fn got_nothing(slot: &Slot) {
    if slot.flags.load(Relaxed) & FLAG_RESIDENT != 0
        && let Some(proc) = attach::current()
    {
        resident::unread(slot, number(proc, slot));
    }
}

/// The file position was set to `pos`, or a call that moves it failed (`pos` < 0).
#[inline(always)]
pub fn moved(fd: c_int, pos: i64) {
    if pos >= 0
        && let Some(proc) = attach::current()
        && let Some(slot) = proc.slots.get(fd as usize)
        && slot.state.load(Relaxed) == FD_TRACKED
    {
        slot.pos.store(pos as u64, Relaxed);
        if slot.flags.load(Relaxed) & FLAG_SHARED_POS != 0 {
            SHARED.moved(proc, fd, slot);
        }
        moved_on(slot, fd, pos as u64);
    }
}

/// The next read is at `pos`.
#[inline(always)]
pub fn moved_on(slot: &Slot, fd: c_int, pos: u64) {
    let last = slot.last.load(Relaxed);
    if pos.wrapping_sub(last) as i64 >= FAR {
        SOUGHT[1].store(last, Relaxed);
        SOUGHT[0].store(fd as u64 + 1, Relaxed);
        // It is told.
        if slot.flags.load(Relaxed) & FLAG_RESIDENT == 0 {
            slot.quiet_len.store(0, Relaxed);
        }
    }
}

/// A read at `offset` is about to be told, of a descriptor whose position was moved onward: after a silence the service would otherwise take all up to here
/// for read.
#[cold]
#[inline(never)]
fn sought(proc: &Proc, fd: c_int, offset: u64) {
    SOUGHT[0].store(0, Relaxed);
    let from = SOUGHT[1].load(Relaxed);
    if offset.wrapping_sub(from) as i64 >= FAR {
        proc.push(Kind::Seek, fd as u16, 0, from, offset);
    }
}

/// `n` bytes were written at the file position, or read there by somebody who has not told [`reading`].
#[inline(always)]
pub fn transferred(fd: c_int, n: isize) {
    if n > 0
        && let Some(proc) = attach::current()
        && let Some(slot) = proc.slots.get(fd as usize)
        && slot.state.load(Relaxed) == FD_TRACKED
    {
        moved_by(slot, n as u64);
    }
}

/// The kernel has taken this advice on how a file is read.
pub fn advised(slot: &Slot, advice: c_int) {
    let is_sequential = match advice {
        libc::POSIX_FADV_SEQUENTIAL => true,
        libc::POSIX_FADV_NORMAL | libc::POSIX_FADV_RANDOM => false,
        _ => return,
    };
    if is_sequential {
        slot.flags.fetch_or(FLAG_SEQUENTIAL, Relaxed);
    } else {
        slot.flags.fetch_and(!FLAG_SEQUENTIAL, Relaxed);
    }
}

/// Something happened to the pages of a followed file; see [`Kind`]. `true` if the service will hear of it.
pub fn about(
    (mut proc, mut slot): Tracked,
    fd: c_int,
    kind: Kind,
    extra: u64,
    offset: u64,
    len: u64,
) -> bool {
    if kind == Kind::DontNeed && slot.flags.load(Relaxed) & FLAG_RESIDENT != 0 {
        // What is read next is missing, and has to be told: now, with the program in a call that a read may not be.
        proc = attach::announce(proc);
        if let Some(announced) = proc.slots.get(fd as usize) {
            slot = announced;
            resident::dropped(slot, offset, len);
        }
    }
    // Pages of a file that nobody has heard of.
    if kind != Kind::Map && slot.flags.load(Relaxed) & FLAG_UNTOLD != 0 {
        return false;
    }
    slot.is_told();
    tell(proc, kind, fd, extra, offset, len)
}

/// A hint of the program need not reach the kernel (SPEC CP4), and the call is to succeed: what it names is cached, or the service fetches it or has
/// heard of it. What the kernel carries out whole is left to it: the program's thread is there at once.
pub fn take_over((proc, slot): Tracked, fd: c_int, offset: u64, len: u64) -> bool {
    let saved = saves(proc, slot, fd, offset, len);
    if saved {
        proc.calls_saved.fetch_add(1, Relaxed);
        proc.saved
            .count(slot.dev.load(Relaxed), slot.ino.load(Relaxed));
    }
    saved
}

/// Whether the kernel would have nothing to do that the service doesn't do, of a hint for a followed file.
fn saves(proc: &'static Proc, slot: &'static Slot, fd: c_int, offset: u64, len: u64) -> bool {
    let short = len <= hints::WHOLE;
    let cared_for =
        offset.wrapping_sub(slot.quiet_start.load(Relaxed)) < slot.quiet_len.load(Relaxed);
    if short && !cared_for {
        proc.hinted.store(1, Relaxed);
        proc.hints
            .give(fd, slot.generation.load(Relaxed), offset, len);
        return resident::holds(fd, offset, len);
    }
    // The call is answered here, so its errors are too: the number must still be this file (a system call that no hook
    // sees may have closed it).
    let Some(st) = raw::status(fd)
        .ok()
        .filter(|st| st.st_dev == slot.dev.load(Relaxed) && st.st_ino == slot.ino.load(Relaxed))
    else {
        return false;
    };
    let len = len.min((st.st_size as u64).saturating_sub(offset));
    if proc.is_served() && proc.takes_hint(len) {
        slot.is_told();
        return short || tell(proc, Kind::WillNeed, fd, 0, offset, len);
    }
    if resident::holds(fd, offset, len) {
        return true;
    }
    // The kernel begins, and drops what is beyond its limit: as much of that as there is room for is the service's, once it is there.
    if !short && proc.watched.load(Relaxed) == 0 {
        slot.is_told();
        tell(proc, Kind::WillNeed, fd, BEGUN, offset, len);
    }
    false
}

/// Some file that is followed was mapped in this process, or one that it is a copy of.
static MAPS: AtomicBool = AtomicBool::new(false);

/// A file was mapped at `address`, `len` bytes from `offset` on.
pub fn mapped(tracked: Tracked, fd: c_int, offset: u64, address: usize, len: usize) {
    if about(tracked, fd, Kind::Map, offset, address as u64, len as u64) {
        MAPS.store(true, Relaxed);
    }
}

/// An address range of this process was unmapped, moved or advised; only told where a file was mapped that is followed.
pub fn mapping_changed(kind: Kind, extra: u64, address: usize, len: usize) {
    if MAPS.load(Relaxed)
        && let Some(proc) = attach::current()
    {
        tell(proc, kind, 0, extra, address as u64, len as u64);
        if kind == Kind::Unmap {
            attach::unmapped();
            attach::closed(len as u64);
        }
    }
}
