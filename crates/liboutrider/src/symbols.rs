//! Functions by name: what programs ask the dynamic linker for, and what we ask.
//!
//! A program may reach the C library's functions by a handle (`dlopen("libc.so.6")`; ctypes, JNA, Fiddle, P/Invoke and their like do), past all that is
//! interposed. So dlsym(3) and dlvsym(3) are interposed, too: whoever is given the very function that one of ours stands before is given ours. Where an object defines a
//! function of that name itself, and asks for the one behind it, it is not: ours may call it, and the two would call each other for ever.
//!
//! What RTLD_DEFAULT and RTLD_NEXT stand for depends on who calls. Such a call goes on as it came, by a jump.
//!
//! The C library's dlsym(3) can't be asked for itself. It is found in the lists that the dynamic linker keeps for debuggers, and in the objects' own tables.
//! Of these only the objects are looked through that were there before the program began: nobody else can stand before a function, and they are never unloaded.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicUsize, Ordering};

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym};

/// The beginning of struct link_map (link.h).
#[repr(C)]
struct Map {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const Map,
}

/// The beginning of struct r_debug.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const Map,
}

/// An entry of an object's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

unsafe extern "C" {
    static _r_debug: Debug;
    /// This library's own.
    #[link_name = "_DYNAMIC"]
    static OWN: Dynamic;
}

// The linker makes it, for each object one.
core::arch::global_asm!(".hidden _DYNAMIC");

const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
const DT_AUXILIARY: i64 = 0x7fff_fffd;
const STT_FUNC: u8 = 2;
/// Of a symbol that is there for programs linked long ago only.
const OLD: u16 = 0x8000;

/// Objects that were there when this was first asked for; 0 before.
static OBJECTS: AtomicUsize = AtomicUsize::new(0);
/// The functions behind ours, 0 while nobody has asked.
static DLSYM: AtomicUsize = AtomicUsize::new(0);
static DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// The tables of an object.
struct Tables {
    base: usize,
    symbols: *const Elf64_Sym,
    names: *const c_char,
    /// Null where its symbols have no versions.
    versions: *const u16,
    gnu: *const u32,
    plain: *const u32,
}

fn objects() -> impl Iterator<Item = &'static Map> {
    // SAFETY: the dynamic linker's list, whose first objects stay as they are for the life of the process.
    let mut at = unsafe { _r_debug.first.as_ref() };
    let all = core::iter::from_fn(move || {
        let map = at?;
        // SAFETY: as above.
        at = unsafe { map.next.as_ref() };
        Some(map)
    });
    all.take(match OBJECTS.load(Relaxed) {
        0 => usize::MAX,
        n => n,
    })
}

/// Notes which objects are there before the program begins.
pub fn start() {
    if OBJECTS.load(Relaxed) == 0 {
        OBJECTS.store(objects().count(), Relaxed);
    }
}

fn tables(map: &Map) -> Option<Tables> {
    let mut t = Tables {
        base: map.base,
        symbols: core::ptr::null(),
        names: core::ptr::null(),
        versions: core::ptr::null(),
        gnu: core::ptr::null(),
        plain: core::ptr::null(),
    };
    let mut at = map.dynamic;
    if at.is_null() {
        return None;
    }
    // SAFETY: a loaded object's dynamic section, which ends with DT_NULL. The dynamic linker has put addresses there, where it can write.
    unsafe {
        while (*at).tag != DT_NULL {
            let value = (*at).value;
            let there = if value < map.base {
                value.wrapping_add(map.base)
            } else {
                value
            };
            match (*at).tag {
                DT_SYMTAB => t.symbols = there as *const Elf64_Sym,
                DT_STRTAB => t.names = there as *const c_char,
                DT_VERSYM => t.versions = there as *const u16,
                DT_GNU_HASH => t.gnu = there as *const u32,
                DT_HASH => t.plain = there as *const u32,
                _ => {}
            }
            at = at.add(1);
        }
    }
    (!t.symbols.is_null() && !t.names.is_null()).then_some(t)
}

/// What an object has under a name.
#[derive(Clone, Copy)]
enum Definition {
    /// A function, at this address.
    Function(usize),
    /// Something that only the dynamic linker can say the address of.
    Other,
}

/// A name and the hashes by which objects have it in their tables.
#[derive(Clone, Copy)]
pub struct Sought<'a> {
    name: &'a CStr,
    gnu: u32,
    plain: u32,
}

impl<'a> Sought<'a> {
    pub const fn new(name: &'a CStr) -> Self {
        let (mut gnu, mut plain) = (5381u32, 0u32);
        let mut rest = name.to_bytes();
        while let Some((b, more)) = rest.split_first() {
            gnu = gnu.wrapping_mul(33).wrapping_add(*b as u32);
            plain = plain.wrapping_mul(16).wrapping_add(*b as u32);
            plain = (plain ^ plain >> 24 & 0xf0) & 0x0fff_ffff;
            rest = more;
        }
        Self { name, gnu, plain }
    }
}

impl Tables {
    /// The function that the object defines under a name, of several versions the one that is linked with today.
    fn function(&self, name: &CStr) -> Option<usize> {
        match self.definition(&Sought::new(name))? {
            Definition::Function(f) => Some(f),
            Definition::Other => None,
        }
    }

    /// What the object defines under a name, likewise.
    #[inline]
    fn definition(&self, sought: &Sought) -> Option<Definition> {
        // SAFETY: tables that the static linker has made for the dynamic one.
        unsafe {
            if !self.gnu.is_null() {
                return self.by_gnu_hash(sought);
            }
            if !self.plain.is_null() {
                return self.by_plain_hash(sought);
            }
        }
        None
    }

    unsafe fn by_plain_hash(&self, sought: &Sought) -> Option<Definition> {
        // SAFETY: numbers of buckets and of symbols; the buckets; the chains.
        unsafe {
            let [buckets, symbols] = self.plain.cast::<[u32; 2]>().read();
            if buckets == 0 {
                return None;
            }
            let bucket = self.plain.add(2);
            let mut i = bucket.add((sought.plain % buckets) as usize).read();
            while i != 0 && i < symbols {
                if let Some(found) = self.is(i, sought.name) {
                    return Some(found);
                }
                i = bucket.add((buckets + i) as usize).read();
            }
            None
        }
    }

    #[inline]
    unsafe fn by_gnu_hash(&self, sought: &Sought) -> Option<Definition> {
        let hash = sought.gnu;
        // SAFETY: numbers of buckets, the first symbol, the size of the filter and its shift; the filter; the buckets; the chains.
        unsafe {
            let [buckets, first, words, shift] = self.gnu.cast::<[u32; 4]>().read();
            if buckets == 0 || words == 0 {
                return None;
            }
            let filter = self.gnu.add(4).cast::<u64>();
            let word = filter.add((hash / 64 % words) as usize).read_unaligned();
            if word >> (hash % 64) & word >> (hash.wrapping_shr(shift) % 64) & 1 == 0 {
                return None;
            }
            let bucket = filter.add(words as usize).cast::<u32>();
            let chain = bucket.add(buckets as usize);
            let mut i = bucket.add((hash % buckets) as usize).read();
            if i < first {
                return None;
            }
            loop {
                let found = chain.add((i - first) as usize).read();
                if found | 1 == hash | 1
                    && let Some(f) = self.is(i, sought.name)
                {
                    return Some(f);
                }
                if found & 1 != 0 {
                    return None;
                }
                i += 1;
            }
        }
    }

    /// What the symbol is that has this number, if it has that name.
    unsafe fn is(&self, i: u32, name: &CStr) -> Option<Definition> {
        // SAFETY: a number from the object's own hash table.
        unsafe {
            let symbol = &*self.symbols.add(i as usize);
            let old = !self.versions.is_null() && *self.versions.add(i as usize) & OLD != 0;
            let here = symbol.st_shndx != 0 && !old;
            let named = || CStr::from_ptr(self.names.add(symbol.st_name as usize)) == name;
            (here && named()).then(|| match symbol.st_info & 15 {
                STT_FUNC => Definition::Function(self.base.wrapping_add(symbol.st_value as usize)),
                _ => Definition::Other,
            })
        }
    }
}

/// The name of the object that is a filter for this library, if one is loaded.
pub fn filter_for(library: &CStr) -> Option<&'static CStr> {
    // SAFETY: the dynamic linker's names, and a loaded object's dynamic section, which ends with DT_NULL.
    let is_filter = |map: &&'static Map| unsafe {
        let Some(tables) = tables(map) else {
            return false;
        };
        let mut at = map.dynamic;
        while !matches!((*at).tag, DT_NULL | DT_AUXILIARY) {
            at = at.add(1);
        }
        (*at).tag == DT_AUXILIARY && CStr::from_ptr(tables.names.add((*at).value)) == library
    };
    let filter = objects().find(is_filter)?;
    // SAFETY: as above; what was preloaded stays.
    (!filter.name.is_null()).then(|| unsafe { CStr::from_ptr(filter.name) })
}

fn is_own(map: &Map) -> bool {
    core::ptr::eq(map.dynamic, &raw const OWN)
}

/// Most objects whose tables are kept at hand.
const KEPT: usize = 128;

/// What lies behind this library, for looking up many names: dlsym(3) takes a thousand instructions for each, and memory of the
/// program's for one that isn't there.
pub struct Behind {
    /// The first so many are there.
    tables: [MaybeUninit<Tables>; KEPT],
    count: usize,
    /// The C library is among them: a name that none of them has is none that dlsym(3) would find behind us.
    is_all: bool,
}

impl Behind {
    pub fn new() -> Self {
        let mut behind = Self {
            tables: [const { MaybeUninit::uninit() }; KEPT],
            count: 0,
            is_all: false,
        };
        let c_library = Sought::new(c"gnu_get_libc_version");
        let maps = objects().skip_while(|map| !is_own(map)).skip(1);
        for tables in maps.filter_map(tables) {
            let Some(place) = behind.tables.get_mut(behind.count) else {
                behind.is_all = false;
                break;
            };
            behind.is_all |= tables.definition(&c_library).is_some();
            place.write(tables);
            behind.count += 1;
        }
        behind
    }

    /// The function that ours of this name stands before, as dlsym(3) finds it with RTLD_NEXT; 0 without one.
    #[inline(never)]
    pub fn function(&self, sought: &Sought) -> usize {
        let kept = self.tables.iter().take(self.count);
        // SAFETY: written above, so many.
        let mut kept = kept.map(|tables| unsafe { tables.assume_init_ref() });
        match kept.find_map(|tables| tables.definition(sought)) {
            Some(Definition::Function(f)) => f,
            None if self.is_all => 0,
            _ => look_up(libc::RTLD_NEXT, sought.name).expose_provenance(),
        }
    }
}

/// The function that ours of this name stands before: of the first object behind this library that has one.
pub fn next(name: &CStr) -> Option<usize> {
    let behind = objects().skip_while(|map| !is_own(map)).skip(1);
    behind.filter_map(tables).find_map(|t| t.function(name))
}

/// The function behind ours, if it isn't the C library's own: somebody else interposes it, too.
pub fn not_the_c_librarys(name: &CStr) -> Option<usize> {
    let behind = objects().skip_while(|map| !is_own(map)).skip(1);
    let (object, f) = behind
        .filter_map(tables)
        .find_map(|t| t.function(name).map(|f| (t, f)))?;
    object
        .function(c"gnu_get_libc_version")
        .is_none()
        .then_some(f)
}

/// Ours.
fn own(name: &CStr) -> Option<usize> {
    tables(objects().find(|map| is_own(map))?)?.function(name)
}

/// Whether the object that `address` lies in has a function of this name itself.
fn has_its_own(address: usize, name: &CStr) -> bool {
    let holds = |(i, map): &(usize, &'static Map)| {
        // SAFETY: what the kernel has handed over; of all others the file's header lies at its beginning, which is mapped.
        let (parts, n) = unsafe {
            if *i == 0 {
                (
                    libc::getauxval(libc::AT_PHDR),
                    libc::getauxval(libc::AT_PHNUM),
                )
            } else if map.base == 0 {
                return false;
            } else {
                let header = map.base as *const Elf64_Ehdr;
                let at = map.base as u64 + (*header).e_phoff;
                (at, u64::from((*header).e_phnum))
            }
        };
        // SAFETY: the object's program headers, so many.
        let parts = unsafe { core::slice::from_raw_parts(parts as *const Elf64_Phdr, n as usize) };
        parts.iter().any(|part| {
            let start = map.base.wrapping_add(part.p_vaddr as usize);
            part.p_type == libc::PT_LOAD && address.wrapping_sub(start) < part.p_memsz as usize
        })
    };
    let object = objects().enumerate().find(holds);
    object.is_some_and(|(_, map)| tables(map).is_some_and(|t| t.function(name).is_some()))
}

/// What a program gets that was given `found` for a name by a handle.
fn given(found: *mut c_void, name: *const c_char, caller: usize) -> *mut c_void {
    if found.is_null() || name.is_null() {
        return found;
    }
    // SAFETY: the dynamic linker has just looked for it.
    let name = unsafe { CStr::from_ptr(name) };
    match own(name) {
        Some(ours) if next(name) == Some(found as usize) && !has_its_own(caller, name) => {
            ours as *mut c_void
        }
        _ => found,
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// dlsym(3) of a handle, or null where there is none.
unsafe extern "C" fn by_handle(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> *mut c_void {
    let real = real_dlsym();
    // SAFETY: the C library's function, or another that stands before it; the caller's arguments.
    let found = unsafe { core::mem::transmute::<usize, Dlsym>(real)(handle, name) };
    given(found, name, caller)
}

/// dlvsym(3) of a handle.
unsafe extern "C" fn by_handle_versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> *mut c_void {
    let real = real_dlvsym();
    // SAFETY: as above.
    let found = unsafe { core::mem::transmute::<usize, Dlvsym>(real)(handle, name, version) };
    given(found, name, caller)
}

/// Where nobody has such a function.
unsafe extern "C" fn nothing() -> *mut c_void {
    core::ptr::null_mut()
}

fn found(place: &AtomicUsize, name: &CStr) -> usize {
    let known = place.load(Relaxed);
    if known != 0 {
        return known;
    }
    start();
    match next(name) {
        Some(f) => {
            place.store(f, Ordering::Relaxed);
            f
        }
        None => nothing as *const () as usize,
    }
}

extern "C" fn real_dlsym() -> usize {
    found(&DLSYM, c"dlsym")
}

extern "C" fn real_dlvsym() -> usize {
    found(&DLVSYM, c"dlvsym")
}

/// What dlsym(3) finds for us by `handle`, RTLD_NEXT or RTLD_DEFAULT; where it isn't there, what lies behind us.
pub fn look_up(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = real_dlsym();
    if real == nothing as *const () as usize {
        return next(name).map_or(core::ptr::null_mut(), |f| f as *mut c_void);
    }
    // SAFETY: as above; a C string.
    unsafe { core::mem::transmute::<usize, Dlsym>(real)(handle, name.as_ptr()) }
}

/// Interposes a function that looks names up: what depends on the caller goes on as it came, with the caller's address where it was.
#[cfg(target_arch = "x86_64")]
macro_rules! by_caller {
    ($name:ident, $place:ident, $find:ident, $by_handle:ident, $last:literal) => {
        /// See dlsym(3).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                // RTLD_NEXT is -1 and RTLD_DEFAULT 0.
                "lea rax, [rdi + 1]",
                "cmp rax, 1",
                "jbe 2f",
                concat!("mov ", $last, ", [rsp]"),
                "jmp {by_handle}",
                "2:",
                "mov rax, [rip + {place}]",
                "test rax, rax",
                "jz 3f",
                "jmp rax",
                "3:",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "call {find}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "jmp rax",
                ".cfi_endproc",
                place = sym $place,
                find = sym $find,
                by_handle = sym $by_handle,
            )
        }
    };
}

/// The same.
#[cfg(target_arch = "aarch64")]
macro_rules! by_caller {
    ($name:ident, $place:ident, $find:ident, $by_handle:ident, $last:literal) => {
        /// See dlsym(3).
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "add x9, x0, #1",
                "cmp x9, #1",
                "b.ls 2f",
                concat!("mov ", $last, ", x30"),
                "b {by_handle}",
                "2:",
                "stp x29, x30, [sp, #-48]!",
                ".cfi_adjust_cfa_offset 48",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {find}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                ".cfi_adjust_cfa_offset -48",
                "br x16",
                ".cfi_endproc",
                find = sym $find,
                by_handle = sym $by_handle,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
by_caller!(dlsym, DLSYM, real_dlsym, by_handle, "rdx");
#[cfg(target_arch = "x86_64")]
by_caller!(dlvsym, DLVSYM, real_dlvsym, by_handle_versioned, "rcx");
#[cfg(target_arch = "aarch64")]
by_caller!(dlsym, DLSYM, real_dlsym, by_handle, "x2");
#[cfg(target_arch = "aarch64")]
by_caller!(dlvsym, DLVSYM, real_dlvsym, by_handle_versioned, "x3");

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&CStr; 8] = [
        c"read",
        c"fopen",
        c"posix_spawn",
        c"__pread64_chk",
        c"siglongjmp",
        // One of those that the dynamic linker chooses among.
        c"memcpy",
        c"outrider_nowhere",
        c"",
    ];

    /// Each function is found that dlsym(3) finds, of several versions the same one, and no other.
    #[test]
    fn functions_are_found_where_dlsym_finds_them() {
        start();
        let behind = Behind::new();
        assert!(behind.is_all && behind.count > 0);
        for name in NAMES {
            // SAFETY: a C string.
            let known = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
            assert_eq!(
                behind.function(&Sought::new(name)),
                known as usize,
                "{name:?}"
            );
        }
    }

    /// The two kinds of hash tables say the same.
    #[test]
    fn plain_tables_are_as_good() {
        for tables in objects().filter_map(tables).filter(|t| !t.plain.is_null()) {
            let plain = Tables {
                gnu: core::ptr::null(),
                ..tables
            };
            for name in NAMES {
                assert_eq!(plain.function(name), tables.function(name), "{name:?}");
            }
        }
    }
}
