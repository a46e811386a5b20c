//! Whether a program can take a preloaded library of ours, told from its file as execve(2) and the dynamic linker look at it.
//!
//! This is asked between fork and exec, and before the C library has started: there is no allocation, no call into the C library, and
//! none that the compiler makes up (memcpy(3) and its like, out of loops over memory), so that bytes are read and written as volatile
//! ones. Two system calls look at the file, two more open and close it, and one follows where the linker's name lies further on: a file that somebody waits for on a pipe, or that isn't a
//! regular one, is not opened.

use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;

use crate::raw;

/// What becomes of a preloaded library in a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taking {
    /// It is loaded, or it isn't looked at: linked statically, privileged, not to be read, no program at all.
    Fits,
    /// The program ends, or complains: another C library's linker, another word size, another processor, limits that leave no room. Or, linked statically, it may start one that does, for this entry.
    Unfit,
    /// The file is the dynamic linker itself, told to do something with a program.
    Linker,
}

/// What LD_PRELOAD has for the library, which other linkers take as they can.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Its own path. musl's linker ends a program for it.
    Library,
    /// A filter, of which musl's makes nothing: see `outrider::filter`.
    Filter,
}

/// A program's file as it is named to execve(2) and its kin.
#[derive(Clone, Copy)]
pub struct Named {
    /// The directory that a relative path starts from, or the file itself where there is no path.
    pub dir: c_int,
    /// A C string; null for an open file.
    pub path: *const u8,
    /// What the file was called, for the linker's own; mostly the same as `path`.
    pub name: *const u8,
}

/// Bytes at a file's beginning that are looked at: headers lie there, and mostly all else.
const HEAD: usize = 1024;
/// Bytes that the kernel reads of a script's first line (BINPRM_BUF_SIZE).
const LINE: usize = 256;
/// Scripts may name scripts as their interpreters; the kernel follows five (`fs/exec.c`).
const DEPTH: u32 = 5;
/// Longest path of a dynamic linker that is told from others, bytes.
const LINKER: usize = 256;

/// elf(5).
const PT_INTERP: u64 = 3;
const CLASS_64: u8 = 2;
#[cfg(target_arch = "x86_64")]
const MACHINE: u64 = libc::EM_X86_64 as u64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u64 = libc::EM_AARCH64 as u64;

const STACK: usize = libc::RLIMIT_STACK as usize;
/// Soft limits, and bytes below which there is no room for the library, nor for `outrider run` itself. Measured (GNU C library 2.36): the dynamic
/// linker needs 24 KiB of stack for it where 12 are enough without, and dies without them; `outrider run` needs 56. The library's own data are 0.4 MiB, and the
/// linker dies where they can't be had; a program that reads buffers of 128 KiB has run out below 2 MiB, where 0.2 were enough. `outrider run` has 5.5 MiB of
/// address space. Each is taken twice and more, as libraries and names take room besides.
static ROOM: [(usize, u64, &str); 3] = [
    (STACK, 128 << 10, "RLIMIT_STACK"),
    (libc::RLIMIT_DATA as usize, 4 << 20, "RLIMIT_DATA"),
    (libc::RLIMIT_AS as usize, 16 << 20, "RLIMIT_AS"),
];

/// The limit of this process that leaves no room for a library of ours in a program that is started here, if one does. `taken`: bytes of the stack that are
/// taken already.
pub fn tight(taken: u64) -> Option<&'static str> {
    ROOM.iter()
        .find(|(limit, least, _)| {
            let mut soft = MaybeUninit::<[u64; 2]>::uninit();
            let none = 0;
            // SAFETY: the kernel writes the soft and the hard limit; none changes.
            unsafe {
                let to = soft.as_mut_ptr() as usize;
                raw::syscall6(libc::SYS_prlimit64, 0, *limit, none, to, 0, 0) == 0
                    && soft.as_ptr().cast::<u64>().read()
                        < least + if *limit == STACK { taken } else { 0 }
            }
        })
        .map(|(.., name)| *name)
}

/// Looks at a program's file: whether it may be given this entry.
///
/// # Safety
/// The pointers are null or C strings.
pub unsafe fn taking(program: Named, entry: Entry) -> Taking {
    let mut head = MaybeUninit::<[u8; HEAD]>::uninit();
    let head = head.as_mut_ptr().cast::<u8>();
    let mut at = program;
    let mut depth = 0;
    loop {
        // SAFETY: as promised; the buffer has room for what is asked for, and a path that lies in it is read before it is written over.
        unsafe {
            let fd = if at.path.is_null() { at.dir } else { open(at) };
            if fd < 0 {
                return Taking::Fits;
            }
            let n = read(fd, head, HEAD, 0);
            let script = n > 2 && byte(head, 0) == b'#' && byte(head, 1) == b'!';
            let answer = if script {
                Taking::Fits
            } else {
                elf(fd, head, n, at.name, entry)
            };
            if !at.path.is_null() {
                raw::close(fd);
            }
            if !script || depth == DEPTH {
                return match answer {
                    Taking::Fits if tight(0).is_some() => Taking::Unfit,
                    answer => answer,
                };
            }
            depth += 1;
            let Some(interpreter) = interpreter(head, n.min(LINE)) else {
                return Taking::Fits;
            };
            at = Named {
                dir: libc::AT_FDCWD,
                path: interpreter,
                name: interpreter,
            };
        }
    }
}

/// Opens a regular file for reading; negative where it is none, or may not be read.
unsafe fn open(at: Named) -> c_int {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    let status = status.as_mut_ptr();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let (dir, path) = (at.dir as usize, at.path as usize);
    // SAFETY: as promised; the kernel writes the structure.
    unsafe {
        if raw::syscall6(libc::SYS_newfstatat, dir, path, status as usize, 0, 0, 0) != 0
            || (*status).st_mode & libc::S_IFMT != libc::S_IFREG
        {
            return -1;
        }
        raw::syscall6(libc::SYS_openat, dir, path, flags as usize, 0, 0, 0) as c_int
    }
}

/// Reads at an offset, as much as there is; the number of bytes, 0 where that fails.
unsafe fn read(fd: c_int, to: *mut u8, n: usize, offset: u64) -> usize {
    // SAFETY: so many bytes are there.
    let n = unsafe {
        raw::syscall6(
            libc::SYS_pread64,
            fd as usize,
            to as usize,
            n,
            offset as usize,
            0,
            0,
        )
    };
    n.max(0) as usize
}

unsafe fn byte(text: *const u8, i: usize) -> u8 {
    // SAFETY: as the caller promises.
    unsafe { text.add(i).read_volatile() }
}

/// The path behind `#!` in a script's first bytes, made a C string in its place. `None` where the kernel finds none.
unsafe fn interpreter(line: *mut u8, n: usize) -> Option<*const u8> {
    // SAFETY: so many bytes are there.
    unsafe {
        let blank = |b: u8| b == b' ' || b == b'\t';
        let mut from = 2;
        while from < n && blank(byte(line, from)) {
            from += 1;
        }
        let mut to = from;
        while to < n && !blank(byte(line, to)) && !matches!(byte(line, to), b'\n' | 0) {
            to += 1;
        }
        // A name that may go on behind what the kernel reads is no name.
        if to == from || to == LINE {
            return None;
        }
        line.add(to).write_volatile(0);
        Some(line.add(from))
    }
}

/// Looks at a file that is no script, whose first `n` bytes are here.
unsafe fn elf(fd: c_int, head: *mut u8, n: usize, name: *const u8, entry: Entry) -> Taking {
    // SAFETY: so many bytes are there; the length is looked at before.
    unsafe {
        let magic = byte(head, 0) == 0x7f
            && byte(head, 1) == b'E'
            && byte(head, 2) == b'L'
            && byte(head, 3) == b'F';
        if n < 64 || !magic {
            return Taking::Fits;
        }
        let wide = byte(head, 4) == CLASS_64;
        let big = byte(head, 5) == 2;
        let number = |offset: usize, bytes: usize| {
            let mut n = 0u64;
            for i in 0..bytes {
                let at = if big { i } else { bytes - 1 - i };
                n = n << 8 | u64::from(byte(head, offset + at));
            }
            n
        };
        let native = wide && !big && number(18, 2) == MACHINE;
        let (table, size, count) = if wide {
            (number(32, 8), number(54, 2), number(56, 2))
        } else {
            (number(28, 4), number(42, 2), number(44, 2))
        };
        let (offset_at, length_at, word) = if wide { (8, 32, 8) } else { (4, 16, 4) };
        let least = length_at + word;
        for i in 0..count {
            let Some(at) = size.checked_mul(i).and_then(|x| x.checked_add(table)) else {
                return Taking::Fits;
            };
            // The table lies within what was read, but for files that somebody has put together by hand.
            if size < least as u64 || at.saturating_add(least as u64) > n as u64 {
                return Taking::Fits;
            }
            let at = at as usize;
            if number(at, 4) != PT_INTERP {
                continue;
            }
            if !native {
                return Taking::Unfit;
            }
            let (offset, length) = (number(at + offset_at, word), number(at + length_at, word));
            let length = (length as usize).min(LINKER);
            // Mostly it is here already.
            let (path, n) = match offset.saturating_add(length as u64) <= n as u64 {
                true => (head.add(offset as usize).cast_const(), length),
                false => (head.cast_const(), read(fd, head, length, offset)),
            };
            return match n > 0 && is_glibc(path, n) {
                true => Taking::Fits,
                false => Taking::Unfit,
            };
        }
        // Without a linker: static, or one itself. What a static program starts gets its environment as it is: nobody takes the library out of it for those
        // that can't load it.
        match linker(name) {
            None => match has_narrow() || entry == Entry::Library && has_musl() {
                false => Taking::Fits,
                true => Taking::Unfit,
            },
            Some(glibc) if native && glibc => Taking::Linker,
            Some(_) => Taking::Unfit,
        }
    }
}

/// Whether there may be programs on this system for the GNU C library's linker of 32 bits, which complains of every entry that it can't load.
fn has_narrow() -> bool {
    #[cfg(target_arch = "x86_64")]
    return exists(c"/lib/ld-linux.so.2");
    #[cfg(target_arch = "aarch64")]
    return exists(c"/lib/ld-linux-armhf.so.3");
}

/// Whether there may be programs for musl's.
pub fn has_musl() -> bool {
    // No array of paths: their addresses are not known before the C library has started.
    #[cfg(target_arch = "x86_64")]
    return exists(c"/lib/ld-musl-x86_64.so.1") || exists(c"/lib/ld-musl-i386.so.1");
    #[cfg(target_arch = "aarch64")]
    return exists(c"/lib/ld-musl-aarch64.so.1") || exists(c"/lib/ld-musl-armhf.so.1");
}

#[inline(always)]
fn exists(path: &CStr) -> bool {
    let (dir, mode) = (libc::AT_FDCWD as usize, libc::F_OK as usize);
    let path = path.as_ptr() as usize;
    // SAFETY: a C string.
    unsafe { raw::syscall6(libc::SYS_faccessat, dir, path, mode, 0, 0, 0) == 0 }
}

/// What begins behind the last slash, and how long it is.
unsafe fn last_part(path: *const u8, n: usize) -> (*const u8, usize) {
    let mut from = 0;
    let mut end = 0;
    // SAFETY: so many bytes are there.
    unsafe {
        while end < n && byte(path, end) != 0 {
            if byte(path, end) == b'/' {
                from = end + 1;
            }
            end += 1;
        }
        (path.add(from), end - from)
    }
}

unsafe fn begins(text: *const u8, n: usize, with: &[u8]) -> bool {
    let mut i = 0;
    // SAFETY: so many bytes are there.
    unsafe {
        while i < with.len() {
            if i == n || byte(text, i) != byte(with.as_ptr(), i) {
                return false;
            }
            i += 1;
        }
    }
    true
}

/// Whether the GNU C library's linkers have this name.
unsafe fn is_glibc(path: *const u8, n: usize) -> bool {
    // SAFETY: as promised.
    unsafe {
        let (text, n) = last_part(path, n);
        begins(text, n, b"ld-linux")
            || begins(text, n, b"ld64.so")
            || begins(text, n, b"ld.so")
            // As builds of the library itself and older distributions have it.
            || begins(text, n, b"ld-2.")
    }
}

/// Whether a file is a dynamic linker, by its name; then, whether it is the GNU C library's.
unsafe fn linker(name: *const u8) -> Option<bool> {
    if name.is_null() {
        return None;
    }
    // SAFETY: a C string.
    unsafe {
        if is_glibc(name, usize::MAX) {
            return Some(true);
        }
        let (text, n) = last_part(name, usize::MAX);
        begins(text, n, b"ld-musl").then_some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(path: &std::path::Path) -> Taking {
        look_for(path, Entry::Library)
    }

    fn look_for(path: &std::path::Path, entry: Entry) -> Taking {
        let text = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        let path = text.as_ptr().cast();
        // SAFETY: a C string.
        unsafe {
            let named = Named {
                dir: libc::AT_FDCWD,
                path,
                name: path,
            };
            taking(named, entry)
        }
    }

    /// An ELF header with one program header, PT_INTERP, and behind it the linker's name.
    fn program(class: u8, machine: u16, linker: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0u8; 256];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        let kind = linker.map_or(1u32, |_| 3).to_le_bytes();
        let length = linker.map_or(0, |l| l.len() + 1) as u32;
        if class == 2 {
            bytes[32] = 64;
            bytes[54] = 56;
            bytes[56] = 1;
            bytes[64..68].copy_from_slice(&kind);
            bytes[72] = 200;
            bytes[96..100].copy_from_slice(&length.to_le_bytes());
        } else {
            bytes[28] = 64;
            bytes[42] = 32;
            bytes[44] = 1;
            bytes[64..68].copy_from_slice(&kind);
            bytes[68] = 200;
            bytes[80..84].copy_from_slice(&length.to_le_bytes());
        }
        if let Some(linker) = linker {
            bytes.truncate(200);
            bytes.extend(linker.bytes());
            bytes.push(0);
        }
        bytes
    }

    #[test]
    fn programs_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let native = MACHINE as u16;
        let alone = match has_narrow() || has_musl() {
            true => Taking::Unfit,
            false => Taking::Fits,
        };
        let cases = [
            (
                program(2, native, Some("/lib64/ld-linux-x86-64.so.2")),
                Taking::Fits,
            ),
            (
                program(2, native, Some("/nix/store/x/lib/ld-linux-x86-64.so.2")),
                Taking::Fits,
            ),
            (
                program(2, native, Some("/lib/ld-musl-x86_64.so.1")),
                Taking::Unfit,
            ),
            (
                program(2, native, Some("/system/bin/linker64")),
                Taking::Unfit,
            ),
            (program(2, native, None), alone),
            (program(1, 3, Some("/lib/ld-linux.so.2")), Taking::Unfit),
            (program(1, 3, None), alone),
            (
                program(1, native, Some("/libx32/ld-linux-x32.so.2")),
                Taking::Unfit,
            ),
            (
                program(2, 243, Some("/lib/ld-linux-riscv64-lp64d.so.1")),
                Taking::Unfit,
            ),
            (b"#!/bin/true\n".to_vec(), Taking::Fits),
            (b"echo hello\n".to_vec(), Taking::Fits),
            (Vec::new(), Taking::Fits),
            (b"\x7fELF".to_vec(), Taking::Fits),
            // A table that lies behind the end.
            (program(2, native, Some("x"))[..100].to_vec(), Taking::Fits),
        ];
        for (i, (bytes, expected)) in cases.iter().enumerate() {
            let path = dir.path().join(format!("p{i}"));
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(look(&path), *expected, "case {i}");
            // A script that it runs, and one that runs that.
            let (first, second) = (dir.path().join("a"), dir.path().join("b"));
            std::fs::write(&first, format!("#! \t{} -x\n", path.display())).unwrap();
            std::fs::write(&second, format!("#!{}", first.display())).unwrap();
            assert_eq!(look(&first), *expected, "case {i}");
            assert_eq!(look(&second), *expected, "case {i}");
        }
        assert_eq!(look(dir.path()), Taking::Fits);
        assert_eq!(look(&dir.path().join("absent")), Taking::Fits);
        // A script that names itself is the kernel's to refuse.
        let endless = dir.path().join("endless");
        std::fs::write(&endless, format!("#!{}\n", endless.display())).unwrap();
        assert_eq!(look(&endless), Taking::Fits);
        for (name, expected) in [
            ("ld-linux-x86-64.so.2", Taking::Linker),
            ("ld.so", Taking::Linker),
            ("ld-musl-x86_64.so.1", Taking::Unfit),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, program(2, native, None)).unwrap();
            assert_eq!(look(&path), expected, "{name}");
        }
        // Static programs hand a filter on wherever only musl's linker is, and musl's own programs need none.
        let path = dir.path().join("alone");
        std::fs::write(&path, program(2, native, None)).unwrap();
        let fits = look_for(&path, Entry::Filter) == Taking::Fits;
        assert_eq!(fits, !has_narrow());
        std::fs::write(&path, program(2, native, Some("/lib/ld-musl-x86_64.so.1"))).unwrap();
        assert_eq!(look_for(&path, Entry::Filter), Taking::Unfit);
        let path = dir.path().join("ld-linux.so.2");
        std::fs::write(&path, program(1, 3, None)).unwrap();
        assert_eq!(look(&path), Taking::Unfit);
    }
}
