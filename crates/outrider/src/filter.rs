//! The library's entry in LD_PRELOAD on systems that have programs of musl, too.
//!
//! musl's dynamic linker ends a program for which LD_PRELOAD names a library that needs what musl doesn't have. Programs that are started
//! by one of ours don't get the entry (`liboutrider::exec`), but a static program hands its environment on as it is. So LD_PRELOAD names a
//! file here that has no code and no symbols: a filter, as the System V ABI calls it, whose one statement (DT_AUXILIARY) is the path of the
//! library. The GNU C library's linker loads that, in the filter's place and in front of it, as if it had been named itself. musl's knows
//! no such statement: it loads the filter, and there is nothing in it. Nor does it take one of another word size for more than a file.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// elf(5).
const ET_DYN: u16 = 3;
#[cfg(not(target_arch = "aarch64"))]
const MACHINE: u16 = libc::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = libc::EM_AARCH64;
const READ_WRITE: u32 = libc::PF_R | libc::PF_W;
const DT_NULL: u64 = 0;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_SYMENT: u64 = 11;
const DT_AUXILIARY: u64 = 0x7fff_fffd;

/// Bytes of the file's header, of a program header, a symbol, and an entry of the dynamic section.
const HEADER: u64 = 64;
const PART: u64 = 56;
const SYMBOL: u64 = 24;
const ENTRY: u64 = 16;
/// The largest page that these machines have, bytes.
const ALIGNMENT: u64 = 64 << 10;

/// Where things lie in the file, and from its beginning on in memory, bytes: behind the headers an empty hash table, the one symbol that every table
/// has, the dynamic section, and the texts.
const PARTS: u64 = 3;
const TABLE: u64 = HEADER + PARTS * PART;
const SYMBOLS: u64 = TABLE + 16;
const DYNAMIC: u64 = SYMBOLS + SYMBOL;
const ENTRIES: u64 = 7;
const TEXTS: u64 = DYNAMIC + ENTRIES * ENTRY;

/// A shared object that stands for the one at `library`.
fn bytes(library: &Path) -> Vec<u8> {
    let path = library.as_os_str().as_bytes();
    // An empty text, the path, and their ends.
    let texts = path.len() as u64 + 2;
    let size = TEXTS + texts;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let halves = |file: &mut Vec<u8>, values: &[u16]| {
        file.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
    };
    let words = |file: &mut Vec<u8>, values: &[u32]| {
        file.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
    };
    let longs = |file: &mut Vec<u8>, values: &[u64]| {
        file.extend(values.iter().flat_map(|v| v.to_ne_bytes()));
    };
    halves(&mut file, &[ET_DYN, MACHINE]);
    words(&mut file, &[1]);
    // No entry point, and no sections.
    longs(&mut file, &[0, HEADER, 0]);
    words(&mut file, &[0]);
    let sizes = [HEADER as u16, PART as u16, PARTS as u16, 0, 0, 0];
    halves(&mut file, &sizes);
    for (kind, at, length, alignment) in [
        (libc::PT_LOAD, 0, size, ALIGNMENT),
        (libc::PT_DYNAMIC, DYNAMIC, ENTRIES * ENTRY, 8),
        // Without it the stack would become executable.
        (libc::PT_GNU_STACK, 0, 0, 16),
    ] {
        words(&mut file, &[kind, READ_WRITE]);
        longs(&mut file, &[at, at, at, length, length, alignment]);
    }
    // One bucket, one symbol, and no chain.
    words(&mut file, &[1, 1, 0, 0]);
    longs(&mut file, &[0; SYMBOL as usize / 8]);
    for (tag, value) in [
        (DT_HASH, TABLE),
        (DT_SYMTAB, SYMBOLS),
        (DT_STRTAB, TEXTS),
        (DT_STRSZ, texts),
        (DT_SYMENT, SYMBOL),
        (DT_AUXILIARY, 1),
        (DT_NULL, 0),
    ] {
        longs(&mut file, &[tag, value]);
    }
    file.push(0);
    file.extend(path);
    file.push(0);
    file
}

/// Has a filter for the library lie at `path`, in a directory that only this user can change. Whether it does.
pub fn made(library: &Path, path: &Path) -> bool {
    let wanted = bytes(library);
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
}
