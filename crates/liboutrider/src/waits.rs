//! Whether the calling thread has waited, seen without asking the kernel: a filter of system calls may kill for any question.
//!
//! The kernel itself writes into a thread's memory when the thread was taken off its processor: a critical section that the thread has
//! registered (rseq(2)), and that it is not in, is struck out then. So before a read the thread registers a section that nobody ever enters, and if it is
//! still there afterwards the thread has not waited, however long the read took. A read that had to wait for a disk has it struck out.
//! The C library registers each thread from version 2.35 on; to leave a section there is what rseq(2) expects, and a section that somebody else registers
//! later takes its place.
//!
//! Linux strikes out only what an interrupt has met from version 6.19 on, and older C libraries register nothing. There the coarse clock stands in, which is read from memory:
//! whether it has moved on while a read was made. It moves every 1 to 10 ms, so that only more of them say something. Without either (under Valgrind) nobody
//! is ever seen to wait.

use core::arch::global_asm;
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use outrider_sys::raw;

use crate::attach::Copying;
use crate::local::{initial_exec, peek};
use crate::symbols;

/// What a thread knows of itself.
#[repr(C)]
struct Local {
    /// So many reads are still looked at one by one, because it has waited for something.
    watched: AtomicU32,
    /// vfork(2) children that run in its memory now.
    guests: AtomicU32,
    /// Where no section can be registered: what stands in for the place of one …
    section: AtomicU64,
    /// … and what the coarse clock showed before the read, ns.
    before: AtomicU64,
}

initial_exec! {
    /// The calling thread's, in which zero is valid.
    fn place() -> *mut Local = "outrider_waits", 24 bytes
}

// Two sections without an instruction: struct rseq_cs is a version, flags, where the section begins, its length, and where to go on if it is left,
// behind the number that the C library has given the kernel.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.outrider_section,\"ax\",@progbits",
    ".long 0x53053053",
    "outrider_section: ud2",
    ".popsection",
    ".pushsection .data.rel.ro.outrider_sections,\"aw\",@progbits",
    ".p2align 6",
    ".hidden outrider_sections",
    ".globl outrider_sections",
    "outrider_sections:",
    ".long 0, 0",
    ".quad outrider_section, 0, outrider_section",
    ".long 0, 0",
    ".quad outrider_section, 0, outrider_section",
    ".popsection",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".pushsection .text.outrider_section,\"ax\",@progbits",
    ".p2align 2",
    ".inst 0xd428bc00",
    "outrider_section: udf #0",
    ".popsection",
    ".pushsection .data.rel.ro.outrider_sections,\"aw\",@progbits",
    ".p2align 6",
    ".hidden outrider_sections",
    ".globl outrider_sections",
    "outrider_sections:",
    ".long 0, 0",
    ".quad outrider_section, 0, outrider_section",
    ".long 0, 0",
    ".quad outrider_section, 0, outrider_section",
    ".popsection",
);

unsafe extern "C" {
    /// The section of a thread whose reads are looked at one by one, and that of one that has not waited lately, of whose address alone [`CALM`] is a bit.
    #[link_name = "outrider_sections"]
    static SECTIONS: [[u64; 4]; 2];
}

/// Reads of a thread that are looked at one by one once it has waited for something.
const WATCHED: u32 = 64;
/// From this version on Linux strikes sections out only after interrupts.
const STRICT_LINUX: u32 = 6 << 16 | 19 << 8;
/// Where the section's address lies in struct rseq, and the least bytes that have been registered then.
const SECTION_AT: usize = 8;
const REGISTERED: u32 = 16;

/// Where a thread's section is registered, from its thread pointer on, bytes.
static PLACE: AtomicUsize = AtomicUsize::new(0);
const CALM: u64 = size_of::<[u64; 4]>() as u64;
/// The coarse clock is what is gone by.
static BY_CLOCK: AtomicBool = AtomicBool::new(false);

#[inline(always)]
fn local() -> &'static Local {
    // SAFETY: part of the calling thread; nobody keeps it beyond a call.
    unsafe { &*place() }
}

/// The place of the calling thread's section.
#[inline(always)]
fn section() -> &'static AtomicU64 {
    let at = raw::thread_pointer().wrapping_add(PLACE.load(Relaxed));
    // SAFETY: `start` has found it: a part of each thread, aligned.
    unsafe { &*core::ptr::with_exposed_provenance::<AtomicU64>(at) }
}

/// Finds out what there is. Called once, from the constructor.
pub fn start() {
    let mut place = (&raw const local().section as usize).wrapping_sub(raw::thread_pointer());
    let (size, offset) = (symbol(c"__rseq_size"), symbol(c"__rseq_offset"));
    // SAFETY: where the C library has these, they are an unsigned int and a ptrdiff_t.
    let registered = unsafe {
        (!size.is_null() && !offset.is_null() && *size.cast::<u32>() >= REGISTERED)
            .then(|| *offset.cast::<isize>())
    };
    let linux = linux();
    match registered {
        Some(offset) if linux.is_none_or(|version| version < STRICT_LINUX) => {
            place = (offset as usize).wrapping_add(SECTION_AT);
        }
        // Without the kernel's own page in the process to read a clock is a system call.
        _ => BY_CLOCK.store(linux.is_some(), Relaxed),
    }
    PLACE.store(place, Relaxed);
    if let Some(other) = symbols::not_the_c_librarys(c"vfork") {
        VFORK.store(other, Relaxed);
    }
}

/// A vfork(2) that somebody else interposes; 0: none.
static VFORK: AtomicUsize = AtomicUsize::new(0);

/// Before vfork(2).
extern "C" fn copying() {
    core::mem::forget(Copying::begin());
}

/// After it, in the parent: the child, or a negated errno.
unsafe extern "C" fn made(answer: i64) -> i32 {
    drop(Copying::begun());
    if answer < 0 {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = -answer as i32 };
        return -1;
    }
    answer as i32
}

/// See vfork(2). A child is known by a count in the thread's memory, which is its parent's thread's: to ask for its number would be a system call.
/// It goes back to the caller before the parent does, so that the address to go back to is kept in a register. It has a copy of the descriptors, as a
/// forked one has.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> i32 {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "mov rax, [rip + {other}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {copying}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        ".cfi_register rip, rdi",
        "mov eax, {vfork}",
        "syscall",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        ".cfi_rel_offset rip, 0",
        "mov rcx, [rip + outrider_waits@GOTTPOFF]",
        "test rax, rax",
        "js 4f",
        "jnz 3f",
        "inc dword ptr fs:[rcx + 4]",
        "ret",
        "3:",
        // A child that was killed may not have counted itself.
        "cmp dword ptr fs:[rcx + 4], 0",
        "je 4f",
        "dec dword ptr fs:[rcx + 4]",
        "4:",
        "mov rdi, rax",
        "jmp {made}",
        ".cfi_endproc",
        other = sym VFORK,
        vfork = const libc::SYS_vfork,
        copying = sym copying,
        made = sym made,
    )
}

/// See vfork(2); as above.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> i32 {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "adrp x1, {other}",
        "ldr x1, [x1, :lo12:{other}]",
        "cbz x1, 2f",
        "br x1",
        "2:",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "bl {copying}",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "mov x0, #{flags}",
        "mov x1, xzr",
        "mov x2, xzr",
        "mov x3, xzr",
        "mov x4, xzr",
        "mov x8, #{clone}",
        "svc #0",
        "adrp x1, :gottprel:outrider_waits",
        "ldr x1, [x1, :gottprel_lo12:outrider_waits]",
        "mrs x2, tpidr_el0",
        "add x1, x1, x2",
        "ldr w2, [x1, #4]",
        "tbnz x0, #63, 4f",
        "cbnz x0, 3f",
        "add w2, w2, #1",
        "str w2, [x1, #4]",
        "ret",
        "3:",
        "cbz w2, 4f",
        "sub w2, w2, #1",
        "str w2, [x1, #4]",
        "4:",
        "b {made}",
        ".cfi_endproc",
        other = sym VFORK,
        flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
        clone = const libc::SYS_clone,
        copying = sym copying,
        made = sym made,
    )
}

fn symbol(name: &CStr) -> *const u8 {
    symbols::look_up(libc::RTLD_DEFAULT, name).cast::<u8>()
}

/// The kernel's version, as LINUX_VERSION_CODE, from a note in the page of code that it maps into each process; `None` where there is none.
fn linux() -> Option<u32> {
    // SAFETY: reads what the kernel has handed over.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    if base == 0 {
        return None;
    }
    // SAFETY: an ELF image that the kernel has made, as long as its headers say.
    unsafe {
        let header = base as *const libc::Elf64_Ehdr;
        let parts = (base + (*header).e_phoff as usize) as *const libc::Elf64_Phdr;
        for i in 0..usize::from((*header).e_phnum) {
            let part = &*parts.add(i);
            if part.p_type != libc::PT_NOTE {
                continue;
            }
            let mut at = base + part.p_offset as usize;
            let end = at + part.p_filesz as usize;
            while at + 12 <= end {
                // Lengths of name and contents, kind.
                let [name, contents, kind] = (at as *const [u32; 3]).read_unaligned();
                let text = at + 12;
                let value = text + (name as usize).next_multiple_of(4);
                if kind == 0 && name == 6 && (text as *const [u8; 6]).read() == *b"Linux\0" {
                    return Some((value as *const u32).read_unaligned());
                }
                at = value + (contents as usize).next_multiple_of(4);
            }
        }
    }
    None
}

/// What the coarse clock shows, ns.
fn coarse() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the C library reads it from the kernel's page; see `start`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Whether the thread's reads need not be looked at one by one: it has not waited for anything since [`before`].
#[inline(always)]
pub fn is_calm() -> bool {
    // What somebody else has registered may have the bit: then it is seen when the kernel strikes that out.
    peek(section()) & CALM != 0
}

/// A read that is looked at is about to be made. `true`: the thread's next one is to be looked at, too.
#[inline(never)]
pub fn before() -> bool {
    let local = local();
    let mut left = local.watched.load(Relaxed);
    if has_waited(local) {
        left = WATCHED;
    }
    local.watched.store(left.saturating_sub(1), Relaxed);
    mark(local, left > 0);
    left > 0
}

fn mark(local: &Local, watched: bool) {
    if BY_CLOCK.load(Relaxed) {
        local.before.store(coarse(), Relaxed);
    }
    let one_by_one = (&raw const SECTIONS).expose_provenance() as u64;
    let calm = one_by_one | CALM;
    section().store(if watched { one_by_one } else { calm }, Relaxed);
}

/// Whether the thread has waited since [`mark`], if it was called at all.
fn has_waited(local: &Local) -> bool {
    if BY_CLOCK.load(Relaxed) {
        let before = local.before.load(Relaxed);
        return before != 0 && coarse() != before;
    }
    // A thread that was never marked goes on from here.
    section().load(Relaxed) == 0
}

/// The read was made. Whether the thread has waited for it, as far as can be seen; what follows is looked at then.
#[inline(never)]
pub fn after() -> bool {
    let local = local();
    let waited = has_waited(local);
    if waited {
        local.watched.store(WATCHED, Relaxed);
        mark(local, true);
    }
    waited
}

/// Whether the caller is a child of vfork(2), which runs in its parent's memory.
#[inline(always)]
pub fn is_guest() -> bool {
    local().guests.load(Relaxed) != 0
}

/// The memory is a copy: whoever runs in it is at home.
pub fn forked() {
    local().guests.store(0, Relaxed);
}

/// How much must have been read meanwhile for a few waits to be none that matter, bytes.
pub fn enough_read() -> u64 {
    if BY_CLOCK.load(Relaxed) {
        16 << 20
    } else {
        2 << 20
    }
}
