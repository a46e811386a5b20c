//! What this process has declared that it will read, and what the hooks on reads tell of it.
//!
//! A program that declares nothing pays one load of a static in each hook. In one that does, reads through declared
//! descriptors take a lock: the program asked for it. All signals are blocked meanwhile, so that no handler runs inside, which
//! might read too, or leave by longjmp or be cancelled and never unlock; callbacks run outside, with the caller's mask.
//!
//! What a process has declared hangs from a page that the kernel clears in a forked child (MADV_WIPEONFORK): the child has declared
//! nothing and finds no lock that a thread of its parent held. A vfork child shares the page and is told from its parent by its
//! number wherever something would change.

use core::ffi::c_int;
#[cfg(target_arch = "x86_64")]
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use outrider_core::declare::{self, Access, Call, Process};
use outrider_core::view::PageRange;
use outrider_sys::mapped::{map, unmap};
use outrider_sys::raw;

use crate::attach;

/// What is cleared in a forked child.
#[repr(C, align(4096))]
struct Page {
    process: AtomicPtr<Process>,
    pid: AtomicU32,
}

/// Null until this process or an ancestor since exec has declared something.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(null_mut());

/// What this process has declared, if it has.
#[inline(always)]
pub fn current() -> Option<&'static Process> {
    let page = PAGE.load(Ordering::Relaxed);
    if page.is_null() {
        return None;
    }
    declared(page)
}

/// Whether this process may have declared anything.
#[inline(always)]
pub fn declares() -> bool {
    !PAGE.load(Ordering::Relaxed).is_null()
}

#[cold]
#[inline(never)]
fn declared(page: *mut Page) -> Option<&'static Process> {
    // SAFETY: the page is never unmapped, and what it points to is never freed.
    unsafe { (*page).process.load(Ordering::Acquire).as_ref() }
}

fn page() -> Option<&'static Page> {
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let new = map(size_of::<Page>())?;
        // SAFETY: our own new mapping.
        let wiped = unsafe {
            raw::syscall6(
                libc::SYS_madvise,
                new as usize,
                size_of::<Page>(),
                libc::MADV_WIPEONFORK as usize,
                0,
                0,
                0,
            )
        };
        let mine = new.cast::<Page>();
        if wiped != 0 {
            unmap(new, size_of::<Page>());
            return None;
        }
        match PAGE.compare_exchange(null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                attach::INVOLVED.fetch_or(attach::LISTS, Ordering::Relaxed);
                page = mine;
            }
            Err(other) => {
                unmap(new, size_of::<Page>());
                page = other;
            }
        }
    }
    // SAFETY: never unmapped; zeroed memory is a valid Page.
    unsafe { page.as_ref() }
}

/// What this process has declared, made if need be. `None` without the memory, and in a vfork child.
pub fn process() -> Option<&'static Process> {
    let page = page()?;
    let pid = raw::getpid();
    let owner = page
        .pid
        .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Acquire);
    if owner.is_err_and(|o| o != pid) {
        return None;
    }
    // SAFETY: as in `declared`.
    if let Some(process) = unsafe { page.process.load(Ordering::Acquire).as_ref() } {
        return Some(process);
    }
    const BYTES: usize = declare::NUMBERS * size_of::<AtomicU32>();
    let numbers = map(BYTES)?;
    // SAFETY: zeroed memory of this very size that is unmapped only below, where nobody has seen it.
    let table =
        unsafe { core::slice::from_raw_parts(numbers.cast::<AtomicU32>(), declare::NUMBERS) };
    let new = Box::into_raw(Box::new(Process::new(table)));
    match page
        .process
        .compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire)
    {
        // SAFETY: never freed from here on.
        Ok(_) => unsafe { new.as_ref() },
        Err(other) => {
            // SAFETY: nobody has seen `new`; `other` is what another thread has put there for ever.
            unsafe {
                drop(Box::from_raw(new));
                unmap(numbers, BYTES);
                other.as_ref()
            }
        }
    }
}

/// Whether the caller runs in a vfork child: it must not change what its parent has declared. Likewise under a filter of system calls, which may kill for what that takes.
pub fn is_guest() -> bool {
    // SAFETY: null or a page that is never unmapped.
    attach::is_filtered()
        || unsafe { PAGE.load(Ordering::Acquire).as_ref() }
            .is_some_and(|p| p.pid.load(Ordering::Acquire) != raw::getpid())
}

/// Runs `f` with all signals blocked and errno kept.
pub fn alone<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let old = raw::set_signal_mask(u64::MAX);
    let result = f();
    raw::set_signal_mask(old);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

// ---- What the hooks tell

/// Whether reads through `fd` are followed here.
#[inline(always)]
pub fn follows(fd: c_int) -> bool {
    current().is_some_and(|p| p.follows(fd))
}

/// A read of `len` bytes at `offset` is about to be made, or was.
#[inline(always)]
pub fn reading_at(fd: c_int, offset: u64, len: usize) {
    if let Some(process) = current() {
        tell(process, fd, offset, len);
    }
}

/// A read of `len` bytes at the file position is about to be made.
#[inline(always)]
pub fn reading(fd: c_int, len: usize) {
    if let Some(process) = current() {
        tell_here(process, fd, len);
    }
}

/// `n` bytes were read at the file position.
#[inline(always)]
pub fn has_read(fd: c_int, n: isize) {
    if n > 0
        && let Some(process) = current()
    {
        tell_back(process, fd, n as usize);
    }
}

#[cold]
#[inline(never)]
fn tell_here(process: &'static Process, fd: c_int, len: usize) {
    if process.follows(fd) {
        let at = raw::lseek(fd, 0, libc::SEEK_CUR);
        if at >= 0 {
            tell(process, fd, at as u64, len);
        }
    }
}

#[cold]
#[inline(never)]
fn tell_back(process: &'static Process, fd: c_int, n: usize) {
    if process.follows(fd) {
        let at = raw::lseek(fd, 0, libc::SEEK_CUR);
        if at > 0 {
            let n = n.min(at as usize);
            tell(process, fd, at as u64 - n as u64, n);
        }
    }
}

#[cold]
#[inline(never)]
fn tell(process: &'static Process, fd: c_int, offset: u64, len: usize) {
    if !process.follows(fd) || is_guest() {
        return;
    }
    let due = alone(|| process.reading(fd, offset, len as u64));
    if let Some(call) = due.call {
        make(process, call);
    }
    if let Some(entry) = due.entry {
        let pages = PageRange::from_bytes(offset, len as u64);
        process.await_sweep(entry, fd, pages, |look| alone(look));
    }
}

/// Descriptor `fd` is about to be closed, or its number to become another file's.
#[inline(always)]
pub fn closing(fd: c_int) {
    if let Some(process) = current() {
        closed(process, fd as usize..(fd as usize).saturating_add(1));
    }
}

/// Descriptors `first..=last` are about to be closed.
#[inline(always)]
pub fn closing_range(first: u32, last: u32) {
    if let Some(process) = current() {
        closed(process, first as usize..(last as usize).saturating_add(1));
    }
}

#[cold]
#[inline(never)]
fn closed(process: &'static Process, range: core::ops::Range<usize>) {
    let single = range.end - range.start == 1;
    if (!single || process.follows(range.start as c_int)) && !is_guest() {
        alone(|| process.closing_range(range));
    }
}

/// `to` has become a duplicate of `from`.
#[inline(always)]
pub fn duplicated(from: c_int, to: c_int) {
    if let Some(process) = current()
        && to >= 0
        && process.follows(from)
        && !is_guest()
    {
        alone(|| process.duplicated(from, to));
    }
}

/// An open of ours would be in the way of a lease on the file of `fd`.
pub fn leave_alone(fd: c_int, until_us: u64) {
    if let Some(process) = current()
        && process.follows(fd)
        && !is_guest()
    {
        alone(|| process.leave_alone(fd));
        release(process, until_us);
    }
}

/// A file system is about to be unmounted: nothing may be open.
pub fn release_all(until_us: u64) {
    if let Some(process) = current()
        && !is_guest()
    {
        release(process, until_us);
    }
}

/// Signals come through while it waits.
fn release(process: &Process, until_us: u64) {
    if let Some(demand) = alone(|| process.demand_release(until_us)) {
        process.await_release(demand, until_us);
    }
}

/// The calling thread is about to end, others go on: if it is the first, the process must still end with the last of them.
pub fn thread_ends() {
    if let Some(process) = current()
        && raw::gettid() == raw::getpid()
        && !is_guest()
    {
        alone(|| process.leader_ends());
    }
}

/// The program is about to end.
pub fn ending() {
    if let Some(process) = current()
        && !is_guest()
    {
        alone(|| process.ends());
    }
}

/// Nothing can be followed in this process any more.
pub fn disable() {
    if let Some(process) = current()
        && !is_guest()
    {
        alone(|| process.turn_off());
        release(process, attach::impatient());
    }
}

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".hidden outrider_program_call",
    ".globl outrider_program_call",
    ".type outrider_program_call, @function",
    "outrider_program_call:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {unwound}",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, rdx",
    "mov rdx, rcx",
    "call rax",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size outrider_program_call, . - outrider_program_call",
    unwound = sym unwound,
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// Calls `function(a, b, c)`. If that is left by an exception or the end of its thread, the unwinder asks `unwound` about this frame. Elsewhere the
    /// thread counts as within its callback from then on.
    #[link_name = "outrider_program_call"]
    fn program_call(function: usize, a: usize, b: usize, c: usize) -> usize;
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn program_call(function: usize, a: usize, b: usize, c: usize) -> usize {
    // SAFETY: as the caller promises.
    unsafe {
        let f =
            core::mem::transmute::<usize, extern "C" fn(usize, usize, usize) -> usize>(function);
        f(a, b, c)
    }
}

/// A personality routine (Itanium C++ ABI, Exception Handling, 1.6.3) that handles nothing: where the frame goes, the callback is over.
#[cfg(target_arch = "x86_64")]
extern "C" fn unwound(
    _version: c_int,
    actions: c_int,
    _class: u64,
    _exception: *mut c_void,
    _context: *mut c_void,
) -> c_int {
    const CLEANUP_PHASE: c_int = 2;
    const CONTINUE_UNWIND: c_int = 8;
    if actions & CLEANUP_PHASE != 0
        && let Some(process) = current()
    {
        alone(|| process.left());
    }
    CONTINUE_UNWIND
}

/// Calls a function of the program, on its thread and with its signal mask.
#[cold]
pub fn make(process: &'static Process, call: Call) {
    // SAFETY: errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let id = match call {
        Call::Client { id, callee, at } => {
            // SAFETY: what the program gave as its callback, with its own argument; the position outlives the call.
            unsafe {
                program_call(
                    callee.function,
                    id.to_bits(),
                    callee.context,
                    (&raw const at) as usize,
                );
            }
            id
        }
        Call::Pull { id, callee } => {
            const ROOM: usize = 256;
            let mut entries = [Access::default(); ROOM];
            loop {
                // SAFETY: what the program gave, with its own argument and room for so many entries.
                let n = unsafe {
                    program_call(
                        callee.function,
                        callee.context,
                        entries.as_mut_ptr() as usize,
                        ROOM,
                    )
                };
                let given = entries.get(..n.min(ROOM)).unwrap_or_default();
                if !alone(|| process.pulled(id, given)) {
                    break;
                }
            }
            id
        }
    };
    alone(|| process.called(id));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Under a runner: what is declared is not predicted as well, and figures go into its report.
pub fn report(process: &Process) {
    let is_heard = match attach::predicts() {
        true => attach::attach().map(attach::announce).is_some(),
        false => attach::reports_alone(),
    };
    if is_heard {
        process.report_to(attach::shown);
    }
}
