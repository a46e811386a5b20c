//! What kind of program a file is, and whether a preloaded library reaches its reads.
//!
//! Hooks work through the dynamic linker: they see what a program calls in the C library that the hooks
//! were built for. A program without a dynamic linker, with another C library, or that makes its system
//! calls itself passes them by, and the linker itself ignores preloads for privileged programs. The
//! checks read headers and section names only, except for programs linked
//! statically and where more is asked than whether they can be hooked: then their bytes are searched as well.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::read::{ReadCache, ReadRef};

use outrider_sys::units::InodeKey;

use crate::output::show;

/// Programs larger than this, bytes, are not searched for traces of their origin and for system calls: reading them cold takes longer than the answer is worth.
const SEARCH_LIMIT: u64 = 64 << 20;

/// Scripts may name scripts as their interpreters; the kernel follows five (`fs/exec.c`).
const MAX_INTERPRETERS: u32 = 5;

/// What a statically linked program was built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaticLibc {
    /// GNU C library.
    Glibc,
    /// musl.
    Musl,
    /// None that is recognised.
    Unknown,
}

/// Why the dynamic linker ignores preloads for a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// The set-user-id bit.
    SetUid,
    /// The set-group-id bit.
    SetGid,
    /// File capabilities.
    Capabilities,
}

/// The kind of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramKind {
    /// Dynamically linked with the GNU C library: can be hooked.
    Dynamic {
        /// Carries code that makes system calls of its own.
        direct_calls: bool,
    },
    /// Dynamically linked with musl.
    Musl,
    /// Dynamically linked by something else.
    OtherLinker {
        /// The dynamic linker that the program names.
        linker: PathBuf,
    },
    /// Linked statically.
    Static {
        /// With which C library.
        libc: StaticLibc,
        /// Written in Rust.
        rust: bool,
    },
    /// Written in Go, whose runtime makes its system calls itself, dynamically linked or not.
    Go {
        /// True if it has a dynamic linker (cgo).
        dynamic: bool,
    },
    /// Runs with privileges that its caller does not have.
    Privileged {
        /// By what.
        by: Privilege,
    },
    /// A script: what counts is its interpreter.
    Script {
        /// The program that the kernel starts for it.
        interpreter: PathBuf,
        /// What that is, `None` if it could not be read.
        kind: Option<Box<ProgramKind>>,
    },
    /// A program for another processor or word size than ours.
    OtherArchitecture,
    /// Neither a program nor a script that says what runs it.
    NotAProgram,
}

impl ProgramKind {
    /// Why Outrider's hooks cannot see this program's reads, as a clause that completes "cannot be hooked:
    /// it …". `None` if they can.
    pub fn cannot_hook_reason(&self) -> Option<String> {
        let reason = match self {
            Self::Dynamic { .. } => return None,
            Self::Musl => "is linked with musl, and the hooks are for the GNU C library".to_owned(),
            Self::OtherLinker { linker } => {
                format!(
                    "is started by {}, not by the GNU C library's dynamic linker",
                    show(linker)
                )
            }
            Self::Static { libc, rust } => {
                let by = match (libc, rust) {
                    (StaticLibc::Glibc, false) => " (GNU C library)",
                    (StaticLibc::Musl, false) => " (musl)",
                    (_, true) => " (Rust)",
                    (StaticLibc::Unknown, false) => "",
                };
                format!("is statically linked{by}, so there is no dynamic linker to load the hooks")
            }
            Self::Go { .. } => {
                "is written in Go, which makes its system calls without the C library".to_owned()
            }
            Self::Privileged { by } => {
                let by = match by {
                    Privilege::SetUid => "is set-user-id",
                    Privilege::SetGid => "is set-group-id",
                    Privilege::Capabilities => "has file capabilities",
                };
                format!("{by}, and privileged programs load no foreign libraries")
            }
            Self::Script { interpreter, kind } => {
                let inner = kind.as_ref()?.cannot_hook_reason()?;
                format!("is a script run by {}, which {inner}", show(interpreter))
            }
            Self::OtherArchitecture => "is built for another processor or word size".to_owned(),
            Self::NotAProgram => return None,
        };
        Some(reason)
    }

    /// What the hooks may miss in a program that they do reach; `None` if nothing is known to be missed.
    pub fn may_miss(&self) -> Option<String> {
        match self {
            Self::Dynamic { direct_calls: true } => {
                Some("contains code that can make system calls without the C library".to_owned())
            }
            Self::Script {
                kind: Some(kind), ..
            } => kind.may_miss(),
            _ => None,
        }
    }

    /// The kind in a few words.
    pub fn describe(&self) -> String {
        match self {
            Self::Dynamic {
                direct_calls: false,
            } => "dynamically linked (GNU C library)".to_owned(),
            Self::Dynamic { direct_calls: true } => {
                "dynamically linked (GNU C library), with direct system calls".to_owned()
            }
            Self::Musl => "dynamically linked (musl)".to_owned(),
            Self::OtherLinker { linker } => format!("dynamically linked by {}", show(linker)),
            Self::Static { libc, rust } => {
                let libc = match libc {
                    StaticLibc::Glibc => " (GNU C library)",
                    StaticLibc::Musl => " (musl)",
                    StaticLibc::Unknown => "",
                };
                format!(
                    "statically linked{libc}{}",
                    if *rust { ", Rust" } else { "" }
                )
            }
            Self::Go { dynamic: true } => "Go, dynamically linked".to_owned(),
            Self::Go { dynamic: false } => "Go, statically linked".to_owned(),
            Self::Privileged {
                by: Privilege::SetUid,
            } => "set-user-id".to_owned(),
            Self::Privileged {
                by: Privilege::SetGid,
            } => "set-group-id".to_owned(),
            Self::Privileged {
                by: Privilege::Capabilities,
            } => "with file capabilities".to_owned(),
            Self::Script { interpreter, kind } => {
                let kind = kind
                    .as_ref()
                    .map_or("unreadable".to_owned(), |k| k.describe());
                format!("script run by {}, which is {kind}", show(interpreter))
            }
            Self::OtherArchitecture => "for another processor or word size".to_owned(),
            Self::NotAProgram => "no program".to_owned(),
        }
    }

    /// One word for machines.
    pub fn tag(&self) -> &'static str {
        match self {
            Self::Dynamic { .. } => "dynamic",
            Self::Musl => "musl",
            Self::OtherLinker { .. } => "other-linker",
            Self::Static { .. } => "static",
            Self::Go { .. } => "go",
            Self::Privileged { .. } => "privileged",
            Self::Script { .. } => "script",
            Self::OtherArchitecture => "other-architecture",
            Self::NotAProgram => "not-a-program",
        }
    }
}

/// The file that the shell would run for `name`: itself if it has a slash, else the first executable file of
/// that name in PATH.
pub fn look_up(name: &OsStr) -> Option<PathBuf> {
    let executable = |path: &Path| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return path.exists().then_some(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/bin:/usr/bin".into());
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|p| executable(p))
}

/// Tells what kind of program `path` is. Errors are those of opening and reading it.
pub fn classify(path: &Path) -> io::Result<ProgramKind> {
    classify_nested(path, 0, true)
}

/// [`ProgramKind::cannot_hook_reason`] of `path`, without a search for what hooks may miss in a program that they reach: that
/// takes milliseconds, which every start of it would pay.
pub fn obstacle(path: &Path) -> io::Result<Option<String>> {
    Ok(classify_nested(path, 0, false)?.cannot_hook_reason())
}

/// The same of a program that has run, with this `st_dev` and `st_ino`, and of no other file: whoever may write to it may have made anything of it
/// by now, and what that leads to is not opened.
pub fn obstacle_of(path: &Path, key: InodeKey) -> io::Result<Option<String>> {
    let (file, meta) = open_regular(path)?;
    if InodeKey::new(meta.dev(), meta.ino()) != key {
        return Err(io::ErrorKind::NotFound.into());
    }
    let mut head = [0u8; 2];
    file.read_at(&mut head, 0)?;
    if head == *b"#!" {
        return Ok(None);
    }
    Ok(classify_opened(path, file, &meta, 0, false)?.cannot_hook_reason())
}

/// Opens a file for reading if it is a regular one; nothing else is opened: a device or a pipe may take it for more than a question.
fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    let found = File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)?;
    let meta = found.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    match File::open(format!("/proc/self/fd/{}", found.as_raw_fd())) {
        // There may be no /proc.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok((File::open(path)?, meta)),
        file => Ok((file?, meta)),
    }
}

fn classify_nested(path: &Path, depth: u32, search: bool) -> io::Result<ProgramKind> {
    let (file, meta) = open_regular(path)?;
    classify_opened(path, file, &meta, depth, search)
}

fn classify_opened(
    path: &Path,
    file: File,
    meta: &Metadata,
    depth: u32,
    search: bool,
) -> io::Result<ProgramKind> {
    let mut head = [0u8; 256];
    let n = file.read_at(&mut head, 0)?;
    if head[..n].starts_with(b"#!") {
        return Ok(classify_script(&head[2..n], depth, search));
    }
    // The kernel heeds these bits and capabilities for binaries only.
    if let Some(by) = privilege(path, meta.mode()) {
        return Ok(ProgramKind::Privileged { by });
    }
    if !head[..n].starts_with(&elf::ELFMAG) {
        return Ok(ProgramKind::NotAProgram);
    }
    let native = if cfg!(target_endian = "big") { 2 } else { 1 };
    // e_ident: class at 4, byte order at 5; e_machine at 18 in every class.
    let machine = elf::Machine(u16::from_ne_bytes([head[18], head[19]]));
    if n < 64 || head[4] != 2 || head[5] != native || machine != native_machine() {
        return Ok(ProgramKind::OtherArchitecture);
    }
    let facts = read_facts(&file).ok_or_else(|| io::Error::other("its headers can't be read"))?;
    Ok(classify_elf(&file, meta.len(), facts, search))
}

/// Whether a file is a shared object for this machine.
pub fn classify_library(path: &Path) -> io::Result<bool> {
    let mut head = [0u8; 64];
    let n = File::open(path)?.read_at(&mut head, 0)?;
    let native = if cfg!(target_endian = "big") { 2 } else { 1 };
    let machine = elf::Machine(u16::from_ne_bytes([head[18], head[19]]));
    Ok(n == head.len()
        && head.starts_with(&elf::ELFMAG)
        && head[4..6] == [2, native]
        && machine == native_machine())
}

/// The processor that this command, and so the hooks, are built for.
fn native_machine() -> elf::Machine {
    if cfg!(target_arch = "aarch64") {
        elf::EM_AARCH64
    } else {
        elf::EM_X86_64
    }
}

/// What the headers of a program tell.
#[derive(Debug, Default)]
struct Facts {
    /// The dynamic linker.
    linker: Option<PathBuf>,
    /// A section that only Go's linker writes.
    go: bool,
    /// Where in the file its instructions lie.
    code: Vec<Range<usize>>,
    /// The compiler left its name, or the libraries are those that Rust programs have and others rarely.
    rust: bool,
    /// A table of sections is there at all.
    sections: bool,
}

/// A file of which no more than so many bytes are read and kept: what its tables say of sizes may be anything, and what no disk holds (a hole) may be long.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    file: &'a ReadCache<&'a File>,
    left: &'a Cell<u64>,
}

impl<'a> ReadRef<'a> for Bounded<'a> {
    fn len(self) -> Result<u64, ()> {
        self.file.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        let left = self.left.get().checked_sub(size).ok_or(())?;
        self.left.set(left);
        self.file.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        self.file.read_bytes_at_until(range, delimiter)
    }
}

fn read_facts(file: &File) -> Option<Facts> {
    let cache = ReadCache::new(file);
    let left = Cell::new(SEARCH_LIMIT);
    let data = Bounded {
        file: &cache,
        left: &left,
    };
    let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let mut facts = Facts::default();
    for segment in header.program_headers(endian, data).ok()? {
        if let Ok(Some(linker)) = segment.interpreter(endian, data) {
            facts.linker = Some(PathBuf::from(OsStr::from_bytes(linker)));
        }
        if segment.p_type(endian) == elf::PT_LOAD && segment.p_flags(endian).contains(elf::PF_X) {
            let (at, bytes) = segment.file_range(endian);
            facts
                .code
                .push(at as usize..at.saturating_add(bytes) as usize);
        }
    }
    // A program whose section table was stripped still runs: what it would have told stays unknown.
    let Ok(sections) = header.sections(endian, data) else {
        return Some(facts);
    };
    let mut comment = None;
    for section in sections.iter() {
        facts.sections = true;
        let contains = |needle: &str| {
            section
                .data(endian, data)
                .is_ok_and(|d| find(d, needle.as_bytes()))
        };
        match sections.section_name(endian, section).unwrap_or_default() {
            b".note.go.buildid" | b".go.buildinfo" | b".gopclntab" => facts.go = true,
            b".comment" => comment = Some(contains("rustc version")),
            // Rust programs need the unwinder's library, and rarely that of C++.
            b".dynstr" if contains("libgcc_s.so.1") && !contains("libstdc++") => facts.rust = true,
            _ => {}
        }
    }
    // Where a compiler left its name, that decides; distributions strip it.
    if let Some(rust) = comment {
        facts.rust = rust;
    }
    Some(facts)
}

fn classify_elf(file: &File, size: u64, facts: Facts, search: bool) -> ProgramKind {
    let dynamic = facts.linker.is_some();
    if facts.go {
        return ProgramKind::Go { dynamic };
    }
    let contents = |wanted: bool| {
        let mut all = Vec::new();
        if wanted && size <= SEARCH_LIMIT {
            // Reading the headers has moved the file's position.
            let _ = { file }
                .rewind()
                .and_then(|()| { file }.read_to_end(&mut all));
        }
        all
    };
    let Some(linker) = facts.linker else {
        let all = contents(true);
        let rust = facts.rust || has_rust_paths(&all);
        // Go's build information survives the loss of the section table. (A Rust program may look for it,
        // as this one does.)
        if !rust && find(&all, b"\xff Go buildinf:") {
            return ProgramKind::Go { dynamic };
        }
        let libc = if find(&all, b"GLIBC_TUNABLES") {
            StaticLibc::Glibc
        } else if find(&all, b"MUSL_LOCPATH") {
            StaticLibc::Musl
        } else {
            StaticLibc::Unknown
        };
        return ProgramKind::Static { libc, rust };
    };
    let name = linker.file_name().unwrap_or_default().as_bytes();
    if name.starts_with(b"ld-musl") {
        return ProgramKind::Musl;
    }
    if !name.starts_with(b"ld-linux") && name != b"ld64.so.1" && name != b"ld.so.1" {
        return ProgramKind::OtherLinker { linker };
    }
    let all = contents(search || !facts.sections);
    if !facts.sections && !has_rust_paths(&all) && find(&all, b"\xff Go buildinf:") {
        return ProgramKind::Go { dynamic };
    }
    let code = facts.code.iter().filter_map(|r| all.get(r.clone()));
    ProgramKind::Dynamic {
        direct_calls: names_rustix(&all) || { code }.any(reads_directly),
    }
}

/// Panic messages name the source files of the standard library, which lie in such directories.
fn has_rust_paths(contents: &[u8]) -> bool {
    find(contents, b"/rustc/") || find(contents, b"/library/std/src/")
}

/// Traces of rustix's backend that makes system calls itself. The path is in the program where some call
/// can panic, so its absence proves nothing.
fn names_rustix(contents: &[u8]) -> bool {
    find(contents, b"backend/linux_raw/")
}

/// Whether read(2), pread(2), readv(2) or preadv(2) is called by number somewhere in these instructions, which the C library does within itself. Numbers that come from elsewhere (as in a function
/// like syscall(2)) aren't seen.
fn reads_directly(code: &[u8]) -> bool {
    /// As far before the call as its number is looked for, bytes: its other arguments are put in place between.
    const NEAR: usize = 24;
    if cfg!(target_arch = "aarch64") {
        // svc #0, after movz to w8 or x8.
        return memchr::memmem::find_iter(code, b"\x01\0\0\xd4").any(|at| {
            let before = code[at.saturating_sub(NEAR)..at].chunks_exact(4);
            before
                .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
                .any(|word| {
                    let number = word >> 5 & 0xffff;
                    word & 0x7fe0_001f == 0x5280_0008 && matches!(number, 63 | 65 | 67 | 69)
                })
        });
    }
    // syscall, after mov to eax; of zero also right after xor eax, eax. Bytes of something else are rarely preceded by these.
    memchr::memmem::find_iter(code, b"\x0f\x05").any(|at| {
        let before = &code[at.saturating_sub(NEAR)..at];
        let moved = |number: u16| {
            let [low, high] = number.to_le_bytes();
            let to_eax = [0xb8, low, high, 0, 0];
            let mut found = memchr::memmem::find_iter(before, &to_eax);
            // With such a prefix it goes to another register.
            found.any(|i| i == 0 || !(0x40..0x50).contains(&before[i - 1]))
        };
        [0, 17, 19, 295].into_iter().any(moved) || before.ends_with(&[0x31, 0xc0])
    })
}

fn find(haystack: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(haystack, needle).is_some()
}

/// What gives the program at `path` privileges that its caller does not have.
fn privilege(path: &Path, mode: u32) -> Option<Privilege> {
    if mode & libc::S_ISUID != 0 {
        return Some(Privilege::SetUid);
    }
    // Without group execution the bit means something else (mandatory locking).
    if mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 {
        return Some(Privilege::SetGid);
    }
    let mut value = [0u8; 64];
    let capabilities = rustix::fs::getxattr(path, c"security.capability", &mut value[..]);
    capabilities
        .is_ok_and(|n| n > 0)
        .then_some(Privilege::Capabilities)
}

/// `line` is what follows `#!`.
fn classify_script(line: &[u8], depth: u32, search: bool) -> ProgramKind {
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|b| *b == b' ' || *b == b'\t' || *b == b'\r')
        .filter(|w| !w.is_empty());
    let Some(first) = words.next() else {
        return ProgramKind::NotAProgram;
    };
    let mut interpreter = PathBuf::from(OsStr::from_bytes(first));
    // `env NAME` starts NAME, which is what reads.
    if interpreter.file_name() == Some(OsStr::new("env")) {
        let name = words.find(|w| !w.starts_with(b"-") && !w.contains(&b'='));
        if let Some(found) = name.and_then(|n| look_up(OsStr::from_bytes(n))) {
            interpreter = found;
        }
    }
    let kind = if depth < MAX_INTERPRETERS {
        classify_nested(&interpreter, depth + 1, search)
            .ok()
            .map(Box::new)
    } else {
        None
    };
    ProgramKind::Script { interpreter, kind }
}
