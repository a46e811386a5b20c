//! The library needs nothing of the C library that version 2.17 (2012) hasn't got.
//!
//! The linker binds each name to the newest version of it that the build machine's C library has, and an older dynamic linker
//! doesn't start a program whose preloaded library asks for a version it hasn't heard of. So the names that have newer versions,
//! or that came later, are defined here, for this library only (the linker's version script keeps them local): each goes to
//! whatever the process has under its name. Two are asked for by their oldest version, weakly: dlsym(3) and dlopen(3). They were
//! in a library of their own before 2.34, which a program may not have loaded; there libc's inner functions load it.
//!
//! `tests/loader.rs` holds the bound: whoever needs another new name finds it there.

use core::arch::global_asm;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use outrider_sys::raw;

/// Defines names for this library alone, each a jump to a function of this module. Weakly, because others ask for some of them so.
macro_rules! local {
    ($($name:ident)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            global_asm!(
                concat!(".pushsection .text.outrider_local_", stringify!($name), ",\"ax\",@progbits"),
                concat!(".weak ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(".type ", stringify!($name), ",@function"),
                concat!(stringify!($name), ": jmp {f}"),
                ".popsection",
                f = sym $name,
            );
            #[cfg(target_arch = "aarch64")]
            global_asm!(
                concat!(".pushsection .text.outrider_local_", stringify!($name), ",\"ax\",@progbits"),
                concat!(".weak ", stringify!($name)),
                concat!(".hidden ", stringify!($name)),
                concat!(".type ", stringify!($name), ",@function"),
                concat!(stringify!($name), ": b {f}"),
                ".popsection",
                f = sym $name,
            );
        )*
    };
}

/// Functions that are found when they are first called; without them, `$none`.
macro_rules! found {
    ($($name:ident ($($a:ident: $t:ty),*) -> $r:ty, or $none:expr;)*) => {
        local!($($name)*);
        $(
            unsafe extern "C" fn $name($($a: $t),*) -> $r {
                static ADDRESS: AtomicUsize = AtomicUsize::new(UNSEEN);
                let name = concat!(stringify!($name), "\0");
                match look_up(&ADDRESS, name) {
                    0 => $none,
                    f => {
                        // SAFETY: what the process has under this name; the signature is the C library's.
                        unsafe { core::mem::transmute::<usize, unsafe extern "C" fn($($t),*) -> $r>(f)($($a),*) }
                    }
                }
            }
        )*
    };
}

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".weak outrider_oldest_dlsym",
    ".symver outrider_oldest_dlsym, dlsym@GLIBC_2.2.5",
    ".weak outrider_oldest_dlopen",
    ".symver outrider_oldest_dlopen, dlopen@GLIBC_2.2.5",
    ".pushsection .text.outrider_oldest,\"ax\",@progbits",
    ".globl outrider_where_dlsym",
    ".hidden outrider_where_dlsym",
    "outrider_where_dlsym:",
    "mov rax, qword ptr [rip + outrider_oldest_dlsym@GOTPCREL]",
    "ret",
    ".globl outrider_where_dlopen",
    ".hidden outrider_where_dlopen",
    "outrider_where_dlopen:",
    "mov rax, qword ptr [rip + outrider_oldest_dlopen@GOTPCREL]",
    "ret",
    ".popsection",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".weak outrider_oldest_dlsym",
    ".symver outrider_oldest_dlsym, dlsym@GLIBC_2.17",
    ".weak outrider_oldest_dlopen",
    ".symver outrider_oldest_dlopen, dlopen@GLIBC_2.17",
    ".pushsection .text.outrider_oldest,\"ax\",@progbits",
    ".globl outrider_where_dlsym",
    ".hidden outrider_where_dlsym",
    "outrider_where_dlsym:",
    "adrp x0, :got:outrider_oldest_dlsym",
    "ldr x0, [x0, :got_lo12:outrider_oldest_dlsym]",
    "ret",
    ".globl outrider_where_dlopen",
    ".hidden outrider_where_dlopen",
    "outrider_where_dlopen:",
    "adrp x0, :got:outrider_oldest_dlopen",
    "ldr x0, [x0, :got_lo12:outrider_oldest_dlopen]",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    /// The address of the oldest dlsym(3), 0 where the process has none.
    safe fn outrider_where_dlsym() -> usize;
    /// The same of dlopen(3).
    safe fn outrider_where_dlopen() -> usize;
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// Nobody has looked yet.
const UNSEEN: usize = usize::MAX;

local!(dlopen);

/// See dlsym(3). It asks for the object that calls it: any code of this library will do.
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    static ADDRESS: AtomicUsize = AtomicUsize::new(UNSEEN);
    match first_of(&ADDRESS, outrider_where_dlsym, c"dlsym") {
        0 => null_mut(),
        // SAFETY: the C library's function; the caller's arguments, unchanged.
        f => unsafe { core::mem::transmute::<usize, Dlsym>(f)(handle, name) },
    }
}

/// See dlopen(3).
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    static ADDRESS: AtomicUsize = AtomicUsize::new(UNSEEN);
    match first_of(&ADDRESS, outrider_where_dlopen, c"dlopen") {
        0 => null_mut(),
        // SAFETY: the C library's function; the caller's arguments, unchanged.
        f => unsafe { core::mem::transmute::<usize, Dlopen>(f)(path, flags) },
    }
}

/// A function of libdl: where the linker has bound it, or by the C library's inner ways before 2.34.
fn first_of(known: &AtomicUsize, bound: extern "C" fn() -> usize, name: &CStr) -> usize {
    let address = known.load(Relaxed);
    if address != UNSEEN {
        return address;
    }
    let mut address = bound();
    if address == 0 {
        address = through_libc(name);
    }
    known.store(address, Relaxed);
    address
}

/// A function of a libdl that the program hasn't loaded. The two functions by which libc itself loads what it needs have versions
/// that nobody else should ask for, and are gone since 2.34: they are looked for among the loaded objects' symbols.
#[cold]
fn through_libc(name: &CStr) -> usize {
    /// What libc's own calls pass beside the flags: `__RTLD_DLOPEN`.
    const INNER: c_int = i32::MIN;
    let (open, find) = (
        symbols::find(b"__libc_dlopen_mode"),
        symbols::find(b"__libc_dlsym"),
    );
    if open == 0 || find == 0 {
        return 0;
    }
    // SAFETY: functions of these signatures in every C library that has them.
    unsafe {
        let open = core::mem::transmute::<usize, Dlopen>(open);
        let find = core::mem::transmute::<usize, Dlsym>(find);
        let handle = open(c"libdl.so.2".as_ptr(), libc::RTLD_NOW | INNER);
        if handle.is_null() {
            return 0;
        }
        find(handle, name.as_ptr()) as usize
    }
}

/// A function of the process by its name, 0 where it has none. Before 2.34 that of threads may be in a library that the program has
/// not loaded; whoever calls here is about to start a thread.
fn look_up(known: &AtomicUsize, name: &'static str) -> usize {
    let address = known.load(Relaxed);
    if address != UNSEEN {
        return address;
    }
    let name = name.as_ptr().cast();
    // SAFETY: C strings.
    let address = unsafe {
        match dlsym(libc::RTLD_DEFAULT, name) as usize {
            0 if is_old() => match dlopen(c"libpthread.so.0".as_ptr(), libc::RTLD_NOW) {
                handle if handle.is_null() => 0,
                handle => dlsym(handle, name) as usize,
            },
            address => address,
        }
    };
    known.store(address, Relaxed);
    address
}

/// Whether threads have a library of their own here.
fn is_old() -> bool {
    // SAFETY: a C string; created threads are asked for by a name that every such C library has.
    unsafe { dlsym(libc::RTLD_DEFAULT, c"pthread_create".as_ptr()).is_null() }
}

type Attributes = *mut c_void;

found! {
    pthread_create(thread: *mut usize, attributes: Attributes, f: *mut c_void, argument: *mut c_void) -> c_int, or libc::EAGAIN;
    pthread_detach(thread: usize) -> c_int, or 0;
    pthread_join(thread: usize, value: *mut *mut c_void) -> c_int, or libc::ESRCH;
    pthread_attr_setstacksize(attributes: Attributes, size: usize) -> c_int, or 0;
    pthread_attr_getstack(attributes: Attributes, at: *mut *mut c_void, size: *mut usize) -> c_int, or libc::ENOSYS;
    pthread_attr_getguardsize(attributes: Attributes, size: *mut usize) -> c_int, or libc::ENOSYS;
    pthread_getattr_np(thread: usize, attributes: Attributes) -> c_int, or libc::ENOSYS;
    pthread_setname_np(thread: usize, name: *const c_char) -> c_int, or libc::ENOSYS;
    pthread_key_create(key: *mut c_uint, f: *mut c_void) -> c_int, or libc::EAGAIN;
    __pthread_key_create(key: *mut c_uint, f: *mut c_void) -> c_int, or libc::EAGAIN;
    pthread_key_delete(key: c_uint) -> c_int, or libc::EINVAL;
    pthread_getspecific(key: c_uint) -> *mut c_void, or null_mut();
    pthread_setspecific(key: c_uint, value: *const c_void) -> c_int, or libc::EINVAL;
    // Without threads nobody else is at it.
    pthread_once(done: *mut c_int, f: extern "C" fn()) -> c_int, or {
        // SAFETY: the caller's own word.
        if unsafe { done.replace(2) } == 0 {
            f();
        }
        0
    };
    // 2.18. What it was to free at a thread's end is left before that.
    __cxa_thread_atexit_impl(f: *mut c_void, argument: *mut c_void, object: *mut c_void) -> c_int, or -1;
    // 2.35. The unwinder finds nothing, as in code without tables.
    _dl_find_object(address: *mut c_void, found: *mut c_void) -> c_int, or -1;
}

local!(gettid getrandom);

/// See gettid(2), which has a function since 2.30.
unsafe extern "C" fn gettid() -> c_int {
    // SAFETY: takes nothing.
    unsafe { raw::syscall6(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) as c_int }
}

/// See getrandom(2), which has a function since 2.25.
unsafe extern "C" fn getrandom(buffer: *mut c_void, n: usize, flags: c_uint) -> isize {
    // SAFETY: the caller's arguments, unchanged; errno of this thread.
    unsafe {
        let r = raw::syscall6(
            libc::SYS_getrandom,
            buffer as usize,
            n,
            flags as usize,
            0,
            0,
            0,
        );
        if r >= 0 {
            return r;
        }
        *libc::__errno_location() = -r as c_int;
        -1
    }
}

/// Symbols of the loaded objects, without dlsym(3).
mod symbols {
    use core::ffi::{c_int, c_void};

    /// elf(5): the tags of what is looked at.
    const HASH: u64 = 4;
    const STRTAB: u64 = 5;
    const SYMTAB: u64 = 6;
    const GNU_HASH: u64 = 0x6fff_fef5;

    struct Search<'a> {
        name: &'a [u8],
        address: usize,
    }

    /// The address of the first definition of `name`, 0 if there is none.
    pub fn find(name: &[u8]) -> usize {
        let mut search = Search { name, address: 0 };
        // SAFETY: the callback takes what is passed here.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.address
    }

    unsafe extern "C" fn look(
        object: *mut libc::dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: `find` passes it; the object is described as long as the callback runs.
        let (object, search) = unsafe { (&*object, &mut *search.cast::<Search<'_>>()) };
        let base = object.dlpi_addr as usize;
        // The kernel's own has no name, and tables that aren't relocated.
        // SAFETY: a C string.
        if object.dlpi_phdr.is_null() || unsafe { object.dlpi_name.read() } == 0 {
            return 0;
        }
        // SAFETY: the object's program headers.
        let segments =
            unsafe { core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
        let Some(dynamic) = segments.iter().find(|s| s.p_type == libc::PT_DYNAMIC) else {
            return 0;
        };
        let mut at = (base + dynamic.p_vaddr as usize) as *const [u64; 2];
        let (mut symbols, mut names, mut gnu, mut hash) = (0, 0, 0, 0);
        loop {
            // SAFETY: pairs up to one that is zero.
            let [tag, value] = unsafe { at.read() };
            let value = value as usize;
            // The dynamic linker has put addresses there, or (musl's) left offsets.
            let address = if value < base { base + value } else { value };
            match tag {
                0 => break,
                SYMTAB => symbols = address,
                STRTAB => names = address,
                GNU_HASH => gnu = address,
                HASH => hash = address,
                _ => {}
            }
            at = at.wrapping_add(1);
        }
        if symbols == 0 || names == 0 {
            return 0;
        }
        // SAFETY: the object's own tables.
        let count = unsafe { count(gnu, hash) };
        for i in 0..count {
            // SAFETY: below the table's length.
            let symbol = unsafe { &*(symbols as *const libc::Elf64_Sym).add(i) };
            let text = (names + symbol.st_name as usize) as *const u8;
            // STT_FUNC, defined.
            if symbol.st_info & 15 == 2
                && symbol.st_shndx != 0
                // SAFETY: texts end with a zero byte, at which the comparison ends.
                && unsafe { equals(text, search.name) }
            {
                search.address = base + symbol.st_value as usize;
                return 1;
            }
        }
        0
    }

    unsafe fn equals(text: *const u8, name: &[u8]) -> bool {
        let same = |(i, b): (usize, &u8)| {
            // SAFETY: a byte that differs, the end among them, ends the comparison.
            (unsafe { text.add(i).read() }) == *b
        };
        // SAFETY: all before were equal, so that the text goes on.
        name.iter().enumerate().all(same) && unsafe { text.add(name.len()).read() } == 0
    }

    /// How many symbols there are: no table says so but those for looking them up.
    unsafe fn count(gnu: usize, hash: usize) -> usize {
        // SAFETY: the tables as elf(5) and the GNU extension have them.
        unsafe {
            if hash != 0 {
                return (hash as *const u32).add(1).read() as usize;
            }
            if gnu == 0 {
                return 0;
            }
            let head = gnu as *const u32;
            let [buckets, first, words] = [0, 1, 2].map(|i| head.add(i).read() as usize);
            let bucket = head.add(4 + 2 * words);
            let chain = bucket.add(buckets);
            let last = (0..buckets).map(|i| bucket.add(i).read() as usize).max();
            let mut last = last.unwrap_or(0);
            if last < first {
                return first;
            }
            while chain.add(last - first).read() & 1 == 0 {
                last += 1;
            }
            last + 1
        }
    }

    #[cfg(test)]
    mod tests {
        /// What the C library's own look-up finds is found here, and nothing else.
        #[test]
        fn symbols_are_found_where_the_c_library_has_them() {
            for name in [c"getppid", c"nice", c"hcreate", c"qsort_r", c"wordfree"] {
                // SAFETY: a C string.
                let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
                assert_ne!(known as usize, 0);
                assert_eq!(super::find(name.to_bytes()), known as usize, "{name:?}");
            }
            assert_eq!(super::find(b"getppi"), 0);
            assert_eq!(super::find(b"getppid_"), 0);
        }
    }
}
