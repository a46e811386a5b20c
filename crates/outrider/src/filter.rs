//! The library's entry in LD_PRELOAD on systems that have programs of musl, too.
//!
//! musl's dynamic linker ends a program for which LD_PRELOAD names a library that needs what musl doesn't have. Programs that are started
//! by one of ours don't get the entry (`liboutrider::exec`), but a static program hands its environment on as it is. So LD_PRELOAD names a
//! file here that has no code and no symbols: a filter, as the System V ABI calls it, whose one statement (DT_AUXILIARY) is the path of the
//! library. The GNU C library's linker loads that, in the filter's place and in front of it, as if it had been named itself. musl's knows
//! no such statement: it loads the filter, and there is nothing in it. Nor does it take one of another word size for more than a file.

use std::ffi::CString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::own_directory;
use crate::plain::{Text, byte, length};

/// elf(5).
const ET_DYN: u64 = 3;
#[cfg(not(target_arch = "aarch64"))]
const MACHINE: u64 = libc::EM_X86_64 as u64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u64 = libc::EM_AARCH64 as u64;
const LOAD: u64 = of(libc::PT_LOAD);
const DYNAMICS: u64 = of(libc::PT_DYNAMIC);
const STACK: u64 = of(libc::PT_GNU_STACK);
const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_AUXILIARY: u64 = 0x7fff_fffd;

/// The first word of a program header, of this kind: to be read and written.
const fn of(kind: u32) -> u64 {
    kind as u64 | ((libc::PF_R | libc::PF_W) as u64) << 32
}

const SHT_DYNSYM: u64 = 11;
const SHT_STRTAB: u64 = 3;
const SHF_ALLOC: u64 = 2;

/// Bytes of the file's header, of a program header, a section header, a symbol, and an entry of the dynamic section.
const HEADER: u64 = 64;
const PART: u64 = 56;
const SECTION_HEADER: u64 = 64;
const SYMBOL: u64 = 24;
const ENTRY: u64 = 16;
/// The largest page that these machines have, bytes.
const ALIGNMENT: u64 = 64 << 10;

/// Where things lie in the file, and from its beginning on in memory, bytes: behind the headers an empty hash table, the one symbol that every table
/// has, the dynamic section, the sections' headers, and the texts. Nothing is loaded by sections, but tracers (ltrace) look for the symbols and their texts there.
const PARTS: u64 = 3;
const TABLE: u64 = HEADER + PARTS * PART;
const SYMBOLS: u64 = TABLE + 16;
const DYNAMIC: u64 = SYMBOLS + SYMBOL;
const ENTRIES: u64 = 7;
const HEADERS: u64 = DYNAMIC + ENTRIES * ENTRY;
const SECTIONS: u64 = 3;
/// That of the texts, also of the sections' names, which have none.
const TEXT_SECTION: u64 = 2;
const TEXTS: u64 = HEADERS + SECTIONS * SECTION_HEADER;

/// Bytes in the dynamic section.
const SECTION: u64 = ENTRIES * ENTRY;
/// Words of the file that depend on the path's length: bytes to be loaded, in the file and in memory, and those of the texts.
const IN_FILE: usize = (HEADER / 8) as usize + 4;
const IN_MEMORY: usize = IN_FILE + 1;
const OF_TEXTS: usize = (DYNAMIC / 8) as usize + 7;
const IN_TEXT_SECTION: usize = ((HEADERS + TEXT_SECTION * SECTION_HEADER) / 8) as usize + 4;

/// What lies before the texts, in words.
#[rustfmt::skip]
static WORDS: [u64; (TEXTS / 8) as usize] = [
    u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0"), 0,
    // No entry point.
    ET_DYN | MACHINE << 16 | 1 << 32, 0, HEADER, HEADERS, HEADER << 32 | PART << 48,
    PARTS | SECTION_HEADER << 16 | SECTIONS << 32 | TEXT_SECTION << 48,
    LOAD, 0, 0, 0, 0, 0, ALIGNMENT,
    DYNAMICS, DYNAMIC, DYNAMIC, DYNAMIC, SECTION, SECTION, 8,
    // Without it the stack would become executable.
    STACK, 0, 0, 0, 0, 0, 16,
    // One bucket, one symbol, and no chain.
    1 | 1 << 32, 0,
    0, 0, 0,
    DT_HASH, TABLE,
    DT_SYMTAB, SYMBOLS,
    DT_STRTAB, TEXTS,
    DT_STRSZ, 0,
    DT_SYMENT, SYMBOL,
    DT_AUXILIARY, 1,
    DT_NULL, 0,
    0, 0, 0, 0, 0, 0, 0, 0,
    // Its one symbol is local.
    SHT_DYNSYM << 32, SHF_ALLOC, SYMBOLS, SYMBOLS, SYMBOL, TEXT_SECTION | 1 << 32, 8, SYMBOL,
    SHT_STRTAB << 32, SHF_ALLOC, TEXTS, TEXTS, 0, 0, 1, 0,
];

/// Bytes of a shared object that stands for a library, whose path has so many.
// This and what follows: no functions of the C library, because `fast_start` asks, too.
const fn size(length: usize) -> usize {
    TEXTS as usize + texts(length)
}

/// An empty text, the path, and their ends, bytes.
const fn texts(length: usize) -> usize {
    length + 2
}

/// A byte of the shared object that stands for the library at `path`, which has so many.
unsafe fn byte_at(i: usize, path: Text, length: usize) -> u8 {
    if let Some(word) = WORDS.get(i / 8) {
        let word = match i / 8 {
            IN_FILE | IN_MEMORY => size(length) as u64,
            OF_TEXTS | IN_TEXT_SECTION => texts(length) as u64,
            _ => *word,
        };
        return (word >> (8 * (i % 8))) as u8;
    }
    match i - TEXTS as usize {
        0 => 0,
        // SAFETY: within the text, or at its end.
        i => unsafe { byte(path, i - 1) },
    }
}

/// Whether the `n` bytes at `file` are a shared object that stands for the library at `path`.
#[cfg(fast_start)]
#[unsafe(link_section = ".text")]
pub unsafe fn is_for(path: Text, file: Text, n: usize) -> bool {
    // SAFETY: as promised.
    unsafe {
        let length = length(path);
        n == size(length) && (0..n).all(|i| byte(file, i) == byte_at(i, path, length))
    }
}

/// What the directory is called in which the one for the library at `path` lies.
pub unsafe fn directory(path: Text, mut put: impl FnMut(u8)) {
    // SAFETY: as promised.
    unsafe { own_directory::name_of(path, &mut put) };
    b"-filter".iter().copied().for_each(put);
}

/// A shared object that stands for the one at `library`.
fn bytes(library: &Path) -> Option<Vec<u8>> {
    let path = CString::new(library.as_os_str().as_bytes()).ok()?;
    let text = path.as_ptr().cast();
    // SAFETY: a C string.
    let length = unsafe { length(text) };
    // SAFETY: a C string.
    let byte = |i| unsafe { byte_at(i, text, length) };
    Some((0..size(length)).map(byte).collect())
}

/// Has a filter for the library lie at `path`, in a directory that only this user can change. Whether it does.
pub fn made(library: &Path, path: &Path) -> bool {
    let Some(wanted) = bytes(library) else {
        return false;
    };
    let is_there = || std::fs::read(path).is_ok_and(|found| found == wanted);
    if is_there() {
        return true;
    }
    // Another run may be making it, and programs may be loading what is there.
    let new = path.with_extension(std::process::id().to_string());
    let open = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&new);
    let written = open.and_then(|mut file| file.write_all(&wanted));
    if written.and_then(|()| std::fs::rename(&new, path)).is_err() {
        let _ = std::fs::remove_file(&new);
    }
    is_there()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dynamic linker loads what it leads to; where nothing is there it says nothing.
    #[test]
    fn a_filter_stands_for_a_library() {
        let dir = tempfile::tempdir().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let c_library = maps
            .split_whitespace()
            .find(|word| word.ends_with("/libc.so.6"));
        let Some(c_library) = c_library else {
            return;
        };
        // Any library that the program doesn't need.
        let library = Path::new(c_library).with_file_name("libm.so.6");
        let (filter, empty) = (dir.path().join("filter.so"), dir.path().join("empty.so"));
        assert!(made(&library, &filter) && made(&library, &filter));
        assert!(made(&dir.path().join("absent.so"), &empty));
        for (preload, loads) in [(&filter, true), (&empty, false)] {
            let mut command = std::process::Command::new("cat");
            command.arg("/proc/self/maps").env("LD_PRELOAD", preload);
            let output = command.output().unwrap();
            assert!(output.status.success() && output.stderr.is_empty());
            let maps = String::from_utf8(output.stdout).unwrap();
            assert!(maps.contains(preload.to_str().unwrap()), "{maps}");
            assert_eq!(maps.contains("/libm.so.6"), loads, "{maps}");
            assert!(
                !maps
                    .lines()
                    .any(|l| l.contains("[stack]") && l.contains('x'))
            );
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// Who looks for a library's symbols by its sections finds that there are none.
    #[test]
    fn a_filter_has_sections() {
        use object::read::elf::{FileHeader, SectionHeader};
        let file = bytes(Path::new("/usr/lib/liboutrider.so")).unwrap();
        let data = file.as_slice();
        let header = object::elf::FileHeader64::<object::Endianness>::parse(data).unwrap();
        let endian = header.endian().unwrap();
        let sections = header.sections(endian, data).unwrap();
        let symbols = sections
            .symbols(endian, data, object::elf::SHT_DYNSYM)
            .unwrap();
        assert_eq!(symbols.symbols().len(), 1);
        let texts = sections.section(object::SectionIndex(TEXT_SECTION as usize));
        let texts = texts.unwrap().data(endian, data).unwrap();
        assert_eq!(texts, b"\0/usr/lib/liboutrider.so\0");
    }
}
