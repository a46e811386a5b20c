//! Buffered streams as glibc keeps them.
//!
//! Their pointers are part of its binary interface (bits/types/struct_FILE.h): programs compiled against its
//! getc macros depend on their places.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};

use libc::{FILE, off_t};

/// The beginning of glibc's `struct _IO_FILE`.
#[repr(C)]
pub struct Stream {
    pub flags: c_int,
    pub read_ptr: *const u8,
    pub read_end: *const u8,
    pub read_base: *const u8,
    write: [*const u8; 3],
    buf_base: *const u8,
    buf_end: *const u8,
    save: [*const u8; 3],
    markers: *const c_void,
    chain: *const c_void,
    pub fileno: c_int,
    flags2: c_int,
    old_offset: c_long,
    /// `_cur_column`, `_vtable_offset`, `_shortbuf`.
    column: u32,
    lock: *const c_void,
    pub offset: off_t,
    codecvt: *const c_void,
    pub wide: *const Wide,
}

/// The beginning of glibc's `struct _IO_wide_data`: characters that were decoded and not taken yet.
#[repr(C)]
pub struct Wide {
    pub read_ptr: *const libc::wchar_t,
    pub read_end: *const libc::wchar_t,
}

/// glibc's flag of streams that have a descriptor, as fileno(3) looks at it: others (open_memstream(3)) leave the field as they found it.
const IS_FILEBUF: c_int = 0x2000;

/// The descriptor of a stream, -1 for one that has none. fileno(3) would set errno.
#[inline(always)]
pub fn descriptor(fp: *mut FILE) -> c_int {
    if fp.is_null() {
        return -1;
    }
    let s = fp.cast::<Stream>();
    // SAFETY: a stream of the C library's; the fields lie within every glibc FILE.
    unsafe {
        match (&raw const (*s).flags).read_volatile() & IS_FILEBUF {
            0 => -1,
            _ => (&raw const (*s).fileno).read_volatile(),
        }
    }
}

/// Flags of open(2) for a mode of fopen(3), and where the file position begins, bytes; of one that appends only the kernel knows.
pub fn opened_as(mode: *const c_char) -> Option<(c_int, Option<u64>)> {
    if mode.is_null() {
        return None;
    }
    // SAFETY: a C string that the C library has just understood; what follows a comma is something else.
    let (kind, updates) = unsafe {
        let text = CStr::from_ptr(mode).to_bytes();
        let mode = text.split(|b| *b == b',').next().unwrap_or_default();
        (mode.first().copied(), mode.contains(&b'+'))
    };
    let flags = match kind {
        Some(b'r') if !updates => libc::O_RDONLY,
        _ if updates => libc::O_RDWR,
        _ => libc::O_WRONLY,
    };
    Some((flags, (kind != Some(b'a')).then_some(0)))
}
