//! Plug-ins before the C library has started: `plugin::check` for those with which all is well. Whatever is not, `main` names.

use outrider_sys::raw;

use super::{Arena, NOTHING, Text, byte, call, equals, open_text, path_of};
use crate::own_directory::is_plain;
use crate::preload;

/// Most of them.
pub const MOST: usize = 4;

/// A plug-in's absolute path, as a text; `None` if `file` is none, or its path can't be preloaded.
#[unsafe(link_section = ".text")]
pub unsafe fn path(file: Text, arena: &mut Arena) -> Option<Text> {
    // SAFETY: as promised; the arena has room.
    unsafe {
        // What has neither is an installed one's name, which `main` looks up.
        let (mut i, mut is_file) = (0, false);
        while byte(file, i) != 0 {
            is_file |= matches!(byte(file, i), b'/' | b'.');
            i += 1;
        }
        if !is_file {
            return None;
        }
        let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
        let status = status.as_mut_ptr();
        if call(libc::SYS_stat, file as usize, status as usize, NOTHING, 0) != 0
            || (*status).st_mode & libc::S_IFMT != libc::S_IFREG
        {
            return None;
        }
        let fd = open_text(file, libc::O_RDONLY);
        if fd < 0 {
            return None;
        }
        preload::read_ahead(fd as i32);
        let path = path_of(fd, arena);
        let good = is_one(fd as i32, (*status).st_size as usize);
        raw::close(fd as i32);
        path.filter(|p| good && is_plain(*p))
    }
}

/// Whether the file, of so many bytes, is a shared object of this machine's kind that exports the table.
unsafe fn is_one(fd: i32, size: usize) -> bool {
    // SAFETY: the mapping is private, and read within its size only.
    unsafe {
        let (access, kind) = (libc::PROT_READ as usize, libc::MAP_PRIVATE as usize);
        let at = raw::syscall6(libc::SYS_mmap, 0, size, access, kind, fd as usize, 0);
        if (-4095..=0).contains(&at) {
            return false;
        }
        let object = Object {
            at: at as Text,
            size,
        };
        let is_one = object.exports(b"outrider_plugin_1").is_some();
        call(libc::SYS_munmap, at as usize, size, NOTHING, NOTHING);
        is_one
    }
}

/// A file in memory.
struct Object {
    at: Text,
    size: usize,
}

impl Object {
    /// The number of so many bytes at an offset, the least significant first.
    unsafe fn number(&self, offset: usize, bytes: usize) -> Option<usize> {
        if offset.checked_add(bytes)? > self.size {
            return None;
        }
        let mut n = 0;
        for i in 0..bytes {
            // SAFETY: within the file.
            n |= usize::from(unsafe { byte(self.at, offset + i) }) << (8 * i);
        }
        Some(n)
    }

    /// Says so if this is a shared object for x86-64 that defines a symbol of this name: elf(5).
    unsafe fn exports(&self, name: &[u8]) -> Option<()> {
        const HEAD: usize = 0x0001_0102_464c_457f; // magic number, 64 bits, least significant byte first, version 1
        const DYNSYM: usize = 11;
        const SECTION: usize = 64;
        const SYMBOL: usize = 24;
        // SAFETY: as promised.
        unsafe {
            let is = |offset, bytes, value| self.number(offset, bytes).filter(|n| *n == value);
            is(0, 7, HEAD)?;
            is(16, 2, usize::from(libc::ET_DYN))?;
            is(18, 2, usize::from(libc::EM_X86_64))?;
            let sections = self.number(40, 8)?;
            let section = |i: usize| sections.checked_add(i * SECTION);
            let mut table = 0;
            for i in 1..self.number(60, 2)? {
                if self.number(section(i)? + 4, 4)? == DYNSYM {
                    table = section(i)?;
                }
            }
            if table == 0 {
                return None;
            }
            let (symbols, length) = (self.number(table + 24, 8)?, self.number(table + 32, 8)?);
            let names = section(self.number(table + 40, 4)?)?;
            let (texts, end) = (self.number(names + 24, 8)?, self.number(names + 32, 8)?);
            for i in 0..length / SYMBOL {
                let symbol = symbols.checked_add(i * SYMBOL)?;
                let text = self.number(symbol, 4)?;
                let fits = text.checked_add(name.len())? < end;
                let last = texts.checked_add(text)?.checked_add(name.len())?;
                if fits
                    && self.number(symbol + 6, 2)? != 0
                    && self.number(last, 1)? == 0
                    && equals(self.at.add(texts + text), name)
                {
                    return Some(());
                }
            }
            None
        }
    }
}
