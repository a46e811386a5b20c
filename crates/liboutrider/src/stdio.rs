//! Buffered streams.
//!
//! The C library fills a stream's buffer with its internal read, which no hook sees. After a call that may have done
//! so, the stream's read pointers tell whether it did, and how far it has come: the kernel, which would know, is not asked, since the program may
//! have forbidden itself the call. Once a stream was positioned the C library notes where its descriptor stands; until then what was taken out of
//! the buffer and what is in it now says how much was read. (Of a line longer than the buffer that fgets(3) or scanf(3) took only the last part is seen.)

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use core::sync::atomic::Ordering::Relaxed;

use libc::{FILE, off_t, size_t, ssize_t};

use crate::libio::{Stream, descriptor};
use crate::{descriptors, needs, real};

/// Where a stream's buffer stands before a call.
#[derive(Clone, Copy)]
struct Before {
    fd: c_int,
    read_ptr: *const u8,
    read_end: *const u8,
    /// Where the decoded characters stand, null if there are none.
    wide: *const libc::wchar_t,
    wide_end: *const libc::wchar_t,
}

/// Where a stream's decoded characters stand, and where they end.
///
/// # Safety
/// As in [`before`].
unsafe fn decoded(fp: *mut FILE) -> (*const libc::wchar_t, *const libc::wchar_t) {
    // SAFETY: as promised; every stream has such a structure, or none.
    unsafe {
        let wide = (&raw const (*fp.cast::<Stream>()).wide).read_volatile();
        if wide.is_null() {
            return (core::ptr::null(), core::ptr::null());
        }
        (
            (&raw const (*wide).read_ptr).read_volatile(),
            (&raw const (*wide).read_end).read_volatile(),
        )
    }
}

/// Looks at the buffer before a call. `None` for a stream that is not followed.
#[inline(always)]
fn before(fp: *mut FILE) -> Option<Before> {
    if fp.is_null() {
        return None;
    }
    // SAFETY: a FILE* that the caller passes to the C library; the fields lie within every glibc FILE. Another
    // thread may change them meanwhile: a stale pointer is only ever compared.
    unsafe {
        let s = fp.cast::<Stream>();
        let fd = descriptor(fp);
        // The file may have been opened before a fork, or by the C library itself.
        if !descriptors::is_followed(fd) {
            return None;
        }
        let (wide, wide_end) = decoded(fp);
        Some(Before {
            fd,
            read_ptr: (&raw const (*s).read_ptr).read_volatile(),
            read_end: (&raw const (*s).read_end).read_volatile(),
            wide,
            wide_end,
        })
    }
}

/// Whether the buffer holds at least `asked` bytes, so that taking them reads nothing. Programs take single bytes by the million.
#[inline(always)]
fn holds(fp: *mut FILE, asked: usize) -> bool {
    if fp.is_null() {
        return false;
    }
    // SAFETY: as in `before`.
    let (ptr, end) = unsafe {
        let s = fp.cast::<Stream>();
        (
            (&raw const (*s).read_ptr).read_volatile() as usize,
            (&raw const (*s).read_end).read_volatile() as usize,
        )
    };
    ptr < end && end - ptr >= asked
}

/// The same of wide characters.
#[inline(always)]
fn holds_wide(fp: *mut FILE, asked: usize) -> bool {
    if fp.is_null() {
        return false;
    }
    // SAFETY: as in `before`; every stream has such a structure, or none.
    unsafe {
        let wide = (&raw const (*fp.cast::<Stream>()).wide).read_volatile();
        if wide.is_null() {
            return false;
        }
        let ptr = (&raw const (*wide).read_ptr).read_volatile() as usize;
        let end = (&raw const (*wide).read_end).read_volatile() as usize;
        ptr < end && (end - ptr) / size_of::<libc::wchar_t>() >= asked
    }
}

/// Of functions that may take more than the buffer holds.
fn never(_: *mut FILE, _: usize) -> bool {
    false
}

/// Looks again afterwards; tells of the read that was made to fill the buffer, if there was one. `asked` is what the caller
/// wanted, bytes: large reads bypass the buffer. `taken` is what it got, where that is known.
#[inline(always)]
fn after(fp: *mut FILE, was: Option<Before>, asked: usize, taken: Option<usize>) {
    let Some(was) = was else { return };
    // SAFETY: as in `before`.
    let (read_ptr, wide) = unsafe {
        let s = fp.cast::<Stream>();
        ((&raw const (*s).read_ptr).read_volatile(), decoded(fp).0)
    };
    let had = (was.read_end as usize).wrapping_sub(was.read_ptr as usize);
    if had >= asked.max(1) && read_ptr >= was.read_ptr {
        return;
    }
    // Nothing was decoded that was not there before.
    if !was.wide.is_null() && was.wide < was.wide_end && wide >= was.wide && asked != usize::MAX {
        return;
    }
    filled(fp, was.fd, had, asked, taken);
}

/// Bytes of the longest read that goes around the buffer and is told whole.
const LARGEST: u64 = 64 << 20;

#[cold]
#[inline(never)]
fn filled(fp: *mut FILE, fd: c_int, had: usize, asked: usize, taken: Option<usize>) {
    // SAFETY: as in `before`.
    let (read_ptr, read_end, read_base, offset) = unsafe {
        let s = fp.cast::<Stream>();
        (
            (&raw const (*s).read_ptr).read_volatile() as usize,
            (&raw const (*s).read_end).read_volatile() as usize,
            (&raw const (*s).read_base).read_volatile() as usize,
            (&raw const (*s).offset).read_volatile(),
        )
    };
    let buffered = read_end.wrapping_sub(read_base);
    // Either the buffer was filled, or a large request went around it and may have filled it afterwards.
    let n = if asked == usize::MAX {
        buffered
    } else {
        buffered.max(asked)
    };
    if descriptors::has_read_declared(fd, n) {
        return;
    }
    let Some((_, slot)) = descriptors::tracked(fd) else {
        return;
    };
    descriptors::came(fd);
    let old = slot.pos.load(Relaxed);
    let now = match taken {
        // The C library knows.
        _ if offset >= 0 => offset as u64,
        _ if asked == usize::MAX => return,
        // What came out of the buffer was in it before, or was read; and so was what is in it now.
        Some(taken) if taken > had => {
            let read = (taken - had).wrapping_add(read_end.wrapping_sub(read_ptr));
            old.wrapping_add(read as u64)
        }
        _ => old.wrapping_add(buffered as u64),
    };
    if now == old {
        return;
    }
    slot.pos.store(now, Relaxed);
    // Forward by no more than was asked for, or a few buffers: the bytes between; otherwise there was a seek, and the buffer holds
    // what was read after it.
    let most = match asked {
        usize::MAX => 0,
        _ => (asked.saturating_add(buffered) as u64).clamp(descriptors::FAR as u64, LARGEST),
    };
    let start = if now > old && now - old <= most && slot.last.load(Relaxed) == old {
        old
    } else {
        let start = now.saturating_sub(buffered as u64);
        descriptors::moved_on(slot, fd, start);
        start
    };
    if start < now {
        descriptors::reading_at(fd, start, (now - start) as usize);
    }
    slot.last.store(now, Relaxed);
}

/// Interposes functions that read from a stream: the body is the real call, between two looks at the buffer, unless it is enough to
/// know that the buffer holds what is asked for.
macro_rules! readers {
    (if $suffices:ident; $($name:ident ($($a:ident: $t:ty),*; $fp:ident; $asked:expr $(; $taken:expr)?) -> $r:ty;)*) => {
        $(
            /// See the C library's manual.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($a: $t),*) -> $r {
                #[inline(never)]
                unsafe extern "C" fn looked_at($($a: $t),*) -> $r {
                    let was = before($fp);
                    // SAFETY: the caller's arguments, unchanged.
                    let r = unsafe { real::$name($($a),*) };
                    #[allow(unused_mut, unused_assignments)]
                    let mut taken: Option<usize> = None;
                    $(taken = Some(($taken)(r));)?
                    after($fp, was, $asked, taken);
                    r
                }
                // SAFETY: the caller's arguments, unchanged.
                unsafe {
                    if $suffices($fp, $asked) {
                        real::$name($($a),*)
                    } else {
                        looked_at($($a),*)
                    }
                }
            }
        )*
    };
}

readers! {
    if holds;
    fread(buf: *mut c_void, size: size_t, n: size_t, fp: *mut FILE; fp; size.wrapping_mul(n); |r: size_t| r.wrapping_mul(size)) -> size_t;
    fread_unlocked(buf: *mut c_void, size: size_t, n: size_t, fp: *mut FILE; fp; size.wrapping_mul(n); |r: size_t| r.wrapping_mul(size)) -> size_t;
    __fread_chk(buf: *mut c_void, room: size_t, size: size_t, n: size_t, fp: *mut FILE; fp; size.wrapping_mul(n); |r: size_t| r.wrapping_mul(size)) -> size_t;
    __fread_unlocked_chk(buf: *mut c_void, room: size_t, size: size_t, n: size_t, fp: *mut FILE; fp; size.wrapping_mul(n); |r: size_t| r.wrapping_mul(size)) -> size_t;
    fgetc(fp: *mut FILE; fp; 1) -> c_int;
    fgetc_unlocked(fp: *mut FILE; fp; 1) -> c_int;
    getc(fp: *mut FILE; fp; 1) -> c_int;
    getc_unlocked(fp: *mut FILE; fp; 1) -> c_int;
    _IO_getc(fp: *mut FILE; fp; 1) -> c_int;
}

readers! {
    if never;
    fgets(buf: *mut c_char, n: c_int, fp: *mut FILE; fp; 1) -> *mut c_char;
    fgets_unlocked(buf: *mut c_char, n: c_int, fp: *mut FILE; fp; 1) -> *mut c_char;
    __fgets_chk(buf: *mut c_char, room: size_t, n: c_int, fp: *mut FILE; fp; 1) -> *mut c_char;
    __fgets_unlocked_chk(buf: *mut c_char, room: size_t, n: c_int, fp: *mut FILE; fp; 1) -> *mut c_char;
    getline(line: *mut *mut c_char, n: *mut size_t, fp: *mut FILE; fp; 1; |r: ssize_t| usize::try_from(r).unwrap_or(0)) -> ssize_t;
    getdelim(line: *mut *mut c_char, n: *mut size_t, delimiter: c_int, fp: *mut FILE; fp; 1; |r: ssize_t| usize::try_from(r).unwrap_or(0)) -> ssize_t;
    __getdelim(line: *mut *mut c_char, n: *mut size_t, delimiter: c_int, fp: *mut FILE; fp; 1; |r: ssize_t| usize::try_from(r).unwrap_or(0)) -> ssize_t;
    __uflow(fp: *mut FILE; fp; 1) -> c_int;
    __underflow(fp: *mut FILE; fp; 1) -> c_int;
    getw(fp: *mut FILE; fp; size_of::<c_int>()) -> c_int;
    vfscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void; fp; 1) -> c_int;
    __isoc99_vfscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void; fp; 1) -> c_int;
    __isoc23_vfscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void; fp; 1) -> c_int;
    fseek(fp: *mut FILE, offset: c_long, whence: c_int; fp; usize::MAX) -> c_int;
    fseeko(fp: *mut FILE, offset: off_t, whence: c_int; fp; usize::MAX) -> c_int;
    fseeko64(fp: *mut FILE, offset: off_t, whence: c_int; fp; usize::MAX) -> c_int;
}

// Bytes are decoded into another buffer. When that was empty, where the descriptor stands tells whether the first one was filled.
readers! {
    if holds_wide;
    fgetwc(fp: *mut FILE; fp; 1) -> c_uint;
    fgetwc_unlocked(fp: *mut FILE; fp; 1) -> c_uint;
    getwc(fp: *mut FILE; fp; 1) -> c_uint;
    getwc_unlocked(fp: *mut FILE; fp; 1) -> c_uint;
    __wuflow(fp: *mut FILE; fp; 1) -> c_uint;
    __wunderflow(fp: *mut FILE; fp; 1) -> c_uint;
    fgetws(buf: *mut libc::wchar_t, n: c_int, fp: *mut FILE; fp; n.max(1) as usize) -> *mut libc::wchar_t;
    fgetws_unlocked(buf: *mut libc::wchar_t, n: c_int, fp: *mut FILE; fp; n.max(1) as usize) -> *mut libc::wchar_t;
    __fgetws_chk(buf: *mut libc::wchar_t, room: size_t, n: c_int, fp: *mut FILE; fp; n.max(1) as usize) -> *mut libc::wchar_t;
    __fgetws_unlocked_chk(buf: *mut libc::wchar_t, room: size_t, n: c_int, fp: *mut FILE; fp; n.max(1) as usize) -> *mut libc::wchar_t;
}

readers! {
    if never;
    vfwscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void; fp; 1) -> c_int;
    __isoc99_vfwscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void; fp; 1) -> c_int;
    __isoc23_vfwscanf(fp: *mut FILE, format: *const c_char, arguments: *mut c_void; fp; 1) -> c_int;
}

unsafe extern "C" {
    /// Standard input, which may be a file.
    static stdin: *mut FILE;
}

/// The C library's standard input. It was inherited, so this is where it is seen for the first time.
#[inline(always)]
fn standard_input() -> *mut FILE {
    // SAFETY: set before the program runs; a program that assigns to it while it reads is at fault itself.
    let fp = unsafe { stdin };
    descriptors::tracked(descriptor(fp));
    fp
}

/// See getchar(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn getchar() -> c_int {
    // SAFETY: what getchar is defined as.
    unsafe { getc(standard_input()) }
}

/// See unlocked_stdio(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn getchar_unlocked() -> c_int {
    // SAFETY: what getchar_unlocked is defined as.
    unsafe { getc_unlocked(standard_input()) }
}

/// See getwchar(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn getwchar() -> c_uint {
    // SAFETY: what getwchar is defined as.
    unsafe { getwc(standard_input()) }
}

/// See unlocked_stdio(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn getwchar_unlocked() -> c_uint {
    // SAFETY: what getwchar_unlocked is defined as.
    unsafe { getwc_unlocked(standard_input()) }
}

/// The functions with a variable number of arguments become those with a list of them. Stable Rust can't take such a list, so
/// this is what a C compiler makes of `va_start`: the registers that may hold arguments are stored in the save area,
/// and the list says from where on they and the stack are to be read (System V ABI, AMD64, section 3.5.7; Procedure Call Standard for the Arm 64-bit
/// Architecture, appendix B).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod variadic {
    use super::{__vdprintf_chk, FILE, c_char, c_int, c_void, standard_input, vdprintf};

    #[cfg(target_arch = "x86_64")]
    macro_rules! scanning {
        ($($name:ident, $named:literal named, list in $list:literal => $to:ident;)*) => {
            $(
                /// See the C library's manual.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $name() {
                    core::arch::naked_asm!(
                        ".cfi_startproc",
                        // 0: va_list; 0x20: six integer registers; 0x50: eight of floating point, if al says so.
                        "sub rsp, 0xd8",
                        ".cfi_adjust_cfa_offset 0xd8",
                        "mov [rsp + 0x20], rdi",
                        "mov [rsp + 0x28], rsi",
                        "mov [rsp + 0x30], rdx",
                        "mov [rsp + 0x38], rcx",
                        "mov [rsp + 0x40], r8",
                        "mov [rsp + 0x48], r9",
                        "test al, al",
                        "je 2f",
                        "movaps [rsp + 0x50], xmm0",
                        "movaps [rsp + 0x60], xmm1",
                        "movaps [rsp + 0x70], xmm2",
                        "movaps [rsp + 0x80], xmm3",
                        "movaps [rsp + 0x90], xmm4",
                        "movaps [rsp + 0xa0], xmm5",
                        "movaps [rsp + 0xb0], xmm6",
                        "movaps [rsp + 0xc0], xmm7",
                        "2:",
                        concat!("mov dword ptr [rsp], 8 * ", $named),
                        "mov dword ptr [rsp + 4], 0x30",
                        "lea rax, [rsp + 0xe0]",
                        "mov [rsp + 8], rax",
                        "lea rax, [rsp + 0x20]",
                        "mov [rsp + 16], rax",
                        concat!("mov ", $list, ", rsp"),
                        "call {to}",
                        "add rsp, 0xd8",
                        ".cfi_adjust_cfa_offset -0xd8",
                        "ret",
                        ".cfi_endproc",
                        to = sym $to,
                    )
                }
            )*
        };
    }

    #[cfg(target_arch = "aarch64")]
    macro_rules! scanning {
        ($($name:ident, $named:literal named, list in $x86:literal => $to:ident;)*) => {
            $(
                /// See the C library's manual.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $name() {
                    core::arch::naked_asm!(
                        ".cfi_startproc",
                        // 0x10: va_list; 0x30: eight general registers; 0x70: eight of floating point.
                        "stp x29, x30, [sp, #-0xf0]!",
                        ".cfi_def_cfa_offset 0xf0",
                        ".cfi_offset x29, -0xf0",
                        ".cfi_offset x30, -0xe8",
                        "mov x29, sp",
                        "stp x0, x1, [sp, #0x30]",
                        "stp x2, x3, [sp, #0x40]",
                        "stp x4, x5, [sp, #0x50]",
                        "stp x6, x7, [sp, #0x60]",
                        "stp q0, q1, [sp, #0x70]",
                        "stp q2, q3, [sp, #0x90]",
                        "stp q4, q5, [sp, #0xb0]",
                        "stp q6, q7, [sp, #0xd0]",
                        // Arguments on the stack; the ends of both kinds of registers; how far before these the next one is.
                        "add x8, sp, #0xf0",
                        "add x9, sp, #0x70",
                        "stp x8, x9, [sp, #0x10]",
                        "str x8, [sp, #0x20]",
                        concat!("mov w9, #-8 * (8 - ", $named, ")"),
                        "mov w10, #-0x80",
                        "stp w9, w10, [sp, #0x28]",
                        concat!("add x", $named, ", sp, #0x10"),
                        "bl {to}",
                        "ldp x29, x30, [sp], #0xf0",
                        ".cfi_restore x30",
                        ".cfi_restore x29",
                        ".cfi_def_cfa_offset 0",
                        "ret",
                        ".cfi_endproc",
                        to = sym $to,
                    )
                }
            )*
        };
    }

    scanning! {
        fscanf, "2" named, list in "rdx" => plain;
        __isoc99_fscanf, "2" named, list in "rdx" => c99;
        __isoc23_fscanf, "2" named, list in "rdx" => c23;
        scanf, "1" named, list in "rsi" => input_plain;
        __isoc99_scanf, "1" named, list in "rsi" => input_c99;
        __isoc23_scanf, "1" named, list in "rsi" => input_c23;
        fwscanf, "2" named, list in "rdx" => wide;
        __isoc99_fwscanf, "2" named, list in "rdx" => wide_c99;
        __isoc23_fwscanf, "2" named, list in "rdx" => wide_c23;
        wscanf, "1" named, list in "rsi" => wide_input;
        __isoc99_wscanf, "1" named, list in "rsi" => wide_input_c99;
        __isoc23_wscanf, "1" named, list in "rsi" => wide_input_c23;
    }

    scanning! {
        dprintf, "2" named, list in "rdx" => printed;
        __dprintf_chk, "3" named, list in "rcx" => printed_chk;
    }

    unsafe extern "C" fn printed(
        fd: c_int,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        unsafe { vdprintf(fd, format, arguments) }
    }

    unsafe extern "C" fn printed_chk(
        fd: c_int,
        flag: c_int,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's arguments, unchanged.
        unsafe { __vdprintf_chk(fd, flag, format, arguments) }
    }

    macro_rules! lists {
        ($($on_stream:ident, $on_input:ident, $vscanf:ident = $to:ident;)*) => {
            $(
                unsafe extern "C" fn $on_stream(fp: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int {
                    // SAFETY: the caller's arguments, unchanged.
                    unsafe { super::$to(fp, format, arguments) }
                }

                unsafe extern "C" fn $on_input(format: *const c_char, arguments: *mut c_void) -> c_int {
                    // SAFETY: the caller's arguments, unchanged.
                    unsafe { super::$to(standard_input(), format, arguments) }
                }

                /// See vscanf(3).
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $vscanf(format: *const c_char, arguments: *mut c_void) -> c_int {
                    // SAFETY: the caller's arguments, unchanged.
                    unsafe { $on_input(format, arguments) }
                }
            )*
        };
    }

    lists! {
        plain, input_plain, vscanf = vfscanf;
        c99, input_c99, __isoc99_vscanf = __isoc99_vfscanf;
        c23, input_c23, __isoc23_vscanf = __isoc23_vfscanf;
        wide, wide_input, vwscanf = vfwscanf;
        wide_c99, wide_input_c99, __isoc99_vwscanf = __isoc99_vfwscanf;
        wide_c23, wide_input_c23, __isoc23_vwscanf = __isoc23_vfwscanf;
    }
}

/// See vdprintf(3), which writes at once.
#[unsafe(no_mangle)]
unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    descriptors::changing(fd);
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::vdprintf(fd, format, arguments) }
}

/// The fortified vdprintf(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    descriptors::changing(fd);
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::__vdprintf_chk(fd, flag, format, arguments) }
}

/// See fopen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
    descriptors::opening_stream(path, mode);
    // SAFETY: the caller's arguments, unchanged.
    let fp = unsafe { real::fopen(path, mode) };
    descriptors::opened_stream(fp, mode);
    if !fp.is_null() {
        needs::opened_by_name(path);
    }
    fp
}

/// See fopen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { fopen(path, mode) }
}

/// See fdopen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's arguments, unchanged.
    let fp = unsafe { real::fdopen(fd, mode) };
    descriptors::wrapped(fd, fp, mode);
    fp
}

/// See freopen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    old: *mut FILE,
) -> *mut FILE {
    descriptors::closing_stream(old);
    descriptors::opening_stream(path, mode);
    // SAFETY: the caller's arguments, unchanged.
    let fp = unsafe { real::freopen(path, mode, old) };
    descriptors::opened_stream(fp, mode);
    fp
}

/// See freopen(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    old: *mut FILE,
) -> *mut FILE {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { freopen(path, mode, old) }
}

/// See fclose(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn fclose(fp: *mut FILE) -> c_int {
    descriptors::closing_stream(fp);
    // SAFETY: the caller's arguments, unchanged.
    unsafe { real::fclose(fp) }
}
