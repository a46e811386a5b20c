//! Programs that this one starts and that can't take the library, or are not to see it.
//!
//! The dynamic linker of another C library ends a program whose LD_PRELOAD it can't follow, that of another word size complains, and so
//! does the right one where our file isn't there (another root) or may not be read (another user). Who reads what `ldd` prints, or
//! otherwise has the linker list what it loads, would take our library for one that the program needs. So before
//! execve(2), posix_spawn(3) and their kin the program's file is looked at as the kernel does ([`outrider_sys::program`]), and where
//! need be the call gets a copy of the environment without our entries. What others put into LD_PRELOAD stays, and so does all else:
//! our other variables mean nothing without the library. The program's own environment isn't touched, the copy lies
//! on the stack, and it isn't made where nothing of ours is in the environment that is passed.
//!
//! What a program that was started so starts in turn has no library either: there is nobody of ours to put it back. Programs that take no
//! libraries at all (privileged ones, static ones) keep the entry and hand it on, and so some that look at LD_PRELOAD themselves (Valgrind's
//! tools) give it to the program that they run. But a static program may start one that ends or complains, and nobody would see it. musl's linker
//! makes nothing of the entry where that is a filter (`outrider::filter`), as it is where musl's linker is. The GNU C library's of 32 bits complains of any: where that
//! is, or musl's and no filter, static programs are started without.
//!
//! The look opens the file and closes it again in this process's table of descriptors, and that would drop a POSIX lock that this process
//! has on that very file. So who has ever set one here is not looked for. Such locks stay when the process executes another program: a mark in
//! the environment, where it lies, tells that.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::ptr::null;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicPtr};

use outrider_core::shm::{self, lost};
use outrider_sys::program::{Entry, Named, Taking, taking};
use outrider_sys::{environment, mapped, raw};

use crate::attach::Copying;
use crate::waits::is_guest;
use crate::{attach, declared, needs, real, symbols};

type Text = *const c_char;
type Texts = *const Text;

/// The path by which this library came here, a C string; null where it came otherwise than by LD_PRELOAD, or nothing may be looked at.
static LIBRARY: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
/// That of a filter for it, likewise: then that may be the entry.
static FILTER: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
/// This process has set POSIX locks, or the one that it is a copy of, or that has started it.
static LOCKED: AtomicBool = AtomicBool::new(false);
/// The digit of the environment that says so to the next program: see [`shm::ENVIRONMENT_LOCKED`]; null where there is none.
static MARK: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// What the library's file is called, and a filter for it.
const NAME: &[u8] = b"/liboutrider.so";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
const SHM: &[u8] = b"OUTRIDER_SHM=";
const PLUGINS: &[u8] = b"OUTRIDER_PLUGINS=";
const TRACE: &[u8] = b"LD_TRACE_LOADED_OBJECTS=";
/// What else is ours alone, in the form that it has where there was none before.
const OTHER_VARIABLES: [&[u8]; 2] = [SHM, b"ASAN_OPTIONS=verify_asan_link_order=0\0"];

/// Bytes of what others have in LD_PRELOAD; with more the environment goes on as it is.
const OTHERS: usize = 4096;
/// The same where there is little.
const FEW: usize = 256;
/// Variables in an environment; with more it goes on as it is.
const VARIABLES: usize = 8192;

unsafe extern "C" {
    static environ: AtomicPtr<Text>;
}

/// What LD_PRELOAD may have for this library.
#[derive(Clone, Copy)]
struct Own {
    library: &'static CStr,
    filter: Option<&'static CStr>,
}

impl Own {
    fn has(&self, entry: &[u8]) -> bool {
        entry == self.library.to_bytes() || self.filter.is_some_and(|f| entry == f.to_bytes())
    }

    /// Which of them a list has.
    fn entry_of(&self, list: &[u8]) -> Option<Entry> {
        if entries(list).any(|entry| entry == self.library.to_bytes()) {
            return Some(Entry::Library);
        }
        let filter = self.filter?.to_bytes();
        let has = entries(list).any(|entry| entry == filter);
        has.then_some(Entry::Filter)
    }
}

/// What this process was given; `None` where there is nothing to be looked at.
fn own() -> Option<Own> {
    let [library, filter] = [&LIBRARY, &FILTER].map(|place| {
        let name = place.load(Relaxed);
        // SAFETY: null, or the dynamic linker's name of an object that stays.
        (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })
    });
    let library = library?;
    Some(Own { library, filter })
}

/// Finds out by which entry of LD_PRELOAD the library came. Called once, from the constructor.
pub fn start() {
    // SAFETY: the constructor runs before the program can change its environment.
    let listed = unsafe { environment::variable(c"LD_PRELOAD") };
    let (Some(listed), Some(name)) = (listed, own_name()) else {
        return;
    };
    // SAFETY: a C string, which stays.
    let library = unsafe { CStr::from_ptr(name) };
    // A filter has the library's name, and another place.
    let may_be_filter = |entry: &[u8]| entry != library.to_bytes() && entry.ends_with(NAME);
    let filter = match entries(listed.to_bytes()).any(may_be_filter) {
        true => symbols::filter_for(library),
        false => None,
    };
    if (Own { library, filter })
        .entry_of(listed.to_bytes())
        .is_some()
    {
        if let Some(filter) = filter {
            FILTER.store(filter.as_ptr().cast_mut(), Relaxed);
        }
        LIBRARY.store(library.as_ptr().cast_mut(), Relaxed);
    }
}

/// Paths may lead elsewhere since nothing may be asked any more.
static MOVED: AtomicBool = AtomicBool::new(false);

/// What this process starts may not open what the service may, and nobody can see it: it goes without the library.
static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// The program restricts itself, and what it starts, to a part of the files (Landlock).
#[cold]
pub fn restricted() {
    RESTRICTED.store(true, Relaxed);
    scrub_own(!attach::is_filtered());
}

/// Before the C library starts something by itself, for which it blocks signals: what [`scrub`] says of this process's own environment, which the program may have made
/// anew. `asks`: see there.
pub fn scrub_own(asks: bool) {
    if RESTRICTED.load(Relaxed) {
        // SAFETY: null, or the C library's array.
        unsafe { scrub(environ.load(Relaxed).cast_const(), asks) };
    }
}

/// Makes nothing of what an environment has of ours, in its place, however large it is: how the service is reached, and the entries of LD_PRELOAD, of which separators
/// are left. What lies where nothing can be written stays: `asks` whether it does, by rt_sigprocmask(2), which no filter kills for then.
#[cold]
unsafe fn scrub(environment: Texts, asks: bool) {
    if !plausible(environment) || !are_strings(environment) {
        return;
    }
    let own = own();
    let blank = |at: *mut u8, with: u8, length: usize| {
        if !asks || is_writable(at, length) {
            // SAFETY: part of a text of the environment, which can be written to.
            unsafe { at.write_bytes(with, length) };
        }
    };
    // SAFETY: an array that ends with a null pointer, of C strings that are written to by who owns them.
    unsafe {
        let plugins = variable(environment, PLUGINS).unwrap_or_default();
        let is_ours =
            |entry: &[u8]| own.is_some_and(|own| own.has(entry)) || is_plugin(entry, plugins);
        let mut at = environment;
        while !(*at).is_null() {
            let text = *at;
            at = at.add(1);
            if begins(text, SHM) {
                let value = text.add(SHM.len()).cast_mut().cast::<u8>();
                let length = CStr::from_ptr(value.cast()).count_bytes();
                blank(value, b'-', length);
            } else if begins(text, PRELOAD) {
                let mut entry = text.add(PRELOAD.len()).cast_mut().cast::<u8>();
                while entry.read() != 0 {
                    let rest = CStr::from_ptr(entry.cast()).to_bytes();
                    let length = rest.iter().position(|b| matches!(b, b':' | b' '));
                    let length = length.unwrap_or(rest.len());
                    if length > 0 && is_ours(&rest[..length]) {
                        blank(entry, b':', length);
                    }
                    entry = entry.add(length);
                    if entry.read() != 0 {
                        entry = entry.add(1);
                    }
                }
            }
        }
    }
}

/// Whether so many bytes can be written to, which are about to be: the kernel writes into the first ones and the last ones, and has an error where we would have a fault.
#[cold]
fn is_writable(at: *mut u8, length: usize) -> bool {
    /// Of a set of signals.
    const BYTES: usize = 8;
    let write = |at: *mut u8| {
        // SAFETY: no set is given, so nothing changes but what is about to be overwritten.
        let answer = unsafe {
            let call = libc::SYS_rt_sigprocmask;
            raw::syscall6(call, libc::SIG_BLOCK as usize, 0, at as usize, BYTES, 0, 0)
        };
        answer == 0
    };
    // What is as short is none of ours.
    length >= BYTES && write(at) && write(at.wrapping_add(length - BYTES))
}

/// The root directory is another one, or something was mounted: the library may not be found where it was.
#[cold]
pub fn moved() {
    MOVED.store(true, Relaxed);
}

/// Before chroot(2): where the library isn't below that directory, what is started there has none. It is told now, because nothing of
/// ours may be within reach afterwards.
#[cold]
pub fn changing_root(root: Text) {
    let Some(own) = own() else {
        return;
    };
    if attach::is_filtered() || !plausible(root) || !may_change_root() {
        return;
    }
    // SAFETY: a C string.
    let root = unsafe { CStr::from_ptr(root) };
    let (root, own) = (root.to_bytes(), own.library.to_bytes_with_nul());
    let mut room = PATH_ROOM;
    let Some(path) = joined(&mut room, &[root, own]) else {
        return;
    };
    let at = libc::AT_FDCWD as usize;
    // SAFETY: a C string.
    let answer = unsafe {
        raw::syscall6(
            libc::SYS_faccessat,
            at,
            path as usize,
            libc::F_OK as usize,
            0,
            0,
            0,
        )
    };
    if matches!(-answer as c_int, libc::ENOENT | libc::ENOTDIR) {
        attach::lose(lost::LIBRARY);
    }
}

/// Whether this thread has CAP_SYS_CHROOT.
fn may_change_root() -> bool {
    const VERSION: u32 = 0x2008_0522;
    const SYS_CHROOT: u32 = 18;
    let header = [VERSION, 0];
    let mut sets = [0u32; 6];
    // SAFETY: structures of the sizes that this version has.
    let answer = unsafe {
        raw::syscall6(
            libc::SYS_capget,
            header.as_ptr() as usize,
            sets.as_mut_ptr() as usize,
            0,
            0,
            0,
            0,
        )
    };
    answer == 0 && sets[0] & 1 << SYS_CHROOT != 0
}

/// What this process was given says whether it has set POSIX locks, by a digit that stays where it is.
pub fn marked(mark: *const u8, locked: bool) {
    LOCKED.store(locked, Relaxed);
    MARK.store(mark.cast_mut(), Relaxed);
}

/// This process is about to set a POSIX lock.
pub fn locking() {
    let mark = MARK.load(Relaxed);
    if !LOCKED.swap(true, Relaxed) && !mark.is_null() {
        // SAFETY: a byte of what the kernel has put on the stack for the process, which may write it and has it for good.
        unsafe { *mark += shm::ENVIRONMENT_LOCKED as u8 };
    }
}

/// The name by which the dynamic linker knows this library: for what is preloaded, the entry itself.
fn own_name() -> Option<Text> {
    struct Search {
        here: usize,
        name: Text,
    }
    unsafe extern "C" fn look(
        object: *mut libc::dl_phdr_info,
        _size: usize,
        search: *mut c_void,
    ) -> c_int {
        // SAFETY: passed below; the object is described as long as this runs, and its name as long as it is loaded: ours for good.
        unsafe {
            let (object, search) = (&*object, &mut *search.cast::<Search>());
            let base = object.dlpi_addr as usize;
            for i in 0..usize::from(object.dlpi_phnum) {
                let segment = &*object.dlpi_phdr.add(i);
                let from = base.wrapping_add(segment.p_vaddr as usize);
                if segment.p_type == libc::PT_LOAD
                    && search.here.wrapping_sub(from) < segment.p_memsz as usize
                {
                    search.name = object.dlpi_name;
                    return 1;
                }
            }
        }
        0
    }
    let mut search = Search {
        here: &raw const LIBRARY as usize,
        name: null(),
    };
    // SAFETY: the callback takes what is passed here.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    (!search.name.is_null()).then_some(search.name)
}

/// What LD_PRELOAD lists.
fn entries(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|b| matches!(b, b':' | b' '))
        .filter(|entry| !entry.is_empty())
}

/// Whether an entry is one of the plug-ins that the environment names.
fn is_plugin(entry: &[u8], plugins: &[u8]) -> bool {
    plugins.split(|b| *b == b':').any(|p| p == entry)
}

/// Whether the pointer may be one to something: for others the kernel has an error.
fn plausible<T>(p: *const T) -> bool {
    (4096..1 << 47).contains(&(p as usize)) && (p as usize).is_multiple_of(align_of::<T>())
}

/// Bytes up to which memory is readable as a whole if one of them is.
const READABLE: usize = 4096;

/// Memory of a caller who may have passed anything: the kernel has an error where we would have a fault.
#[derive(Default)]
struct Readable {
    /// Where the pieces lie that were found readable last, if any were: an array's, and that of the strings which it leads to.
    at: [Option<usize>; 2],
}

impl Readable {
    /// Whether the bytes around `at` can be read. prlimit(2) reads a limit before it finds that there is none of that kind. (Of rt_sigprocmask(2) and
    /// the like Valgrind says that it knows no such change.)
    fn is(&mut self, at: usize) -> bool {
        let piece = at / READABLE * READABLE;
        if self.at.contains(&Some(piece)) {
            if self.at[0] != Some(piece) {
                self.at.swap(0, 1);
            }
            return true;
        }
        // No set is none that can't be read.
        if piece == 0 {
            return false;
        }
        let none = u32::MAX as usize;
        // SAFETY: nothing is written, and no limit changes.
        let answer = unsafe { raw::syscall6(libc::SYS_prlimit64, 0, none, piece, 0, 0, 0) };
        if -answer as c_int == libc::EFAULT {
            return false;
        }
        self.at = [Some(piece), self.at[0]];
        true
    }

    /// Whether there is a C string.
    fn string(&mut self, text: Text) -> bool {
        let mut at = text as usize;
        loop {
            if !self.is(at) {
                return false;
            }
            let end = (at / READABLE + 1) * READABLE;
            // SAFETY: up to there it can be read.
            if (at..end).any(|at| unsafe { *(at as Text) } == 0) {
                return true;
            }
            at = end;
        }
    }

    /// Whether there is an array of C strings that ends with a null pointer.
    fn strings(&mut self, texts: Texts) -> bool {
        let mut at = texts;
        loop {
            if !plausible(at) || !self.is(at as usize) {
                return false;
            }
            // SAFETY: aligned, and can be read.
            let text = unsafe { *at };
            if text.is_null() {
                return true;
            }
            if !self.string(text) {
                return false;
            }
            at = at.wrapping_add(1);
        }
    }
}

/// Whether there is an array of C strings. Where a filter of system calls may kill for the question it is believed.
fn are_strings(texts: Texts) -> bool {
    attach::is_filtered() || Readable::default().strings(texts)
}

/// What follows `name` in the first entry that begins so.
unsafe fn variable<'a>(environment: Texts, name: &[u8]) -> Option<&'a [u8]> {
    // SAFETY: an array that ends with a null pointer, of C strings.
    unsafe {
        let mut at = environment;
        while !(*at).is_null() {
            if begins(*at, name) {
                return Some(CStr::from_ptr((*at).add(name.len())).to_bytes());
            }
            at = at.add(1);
        }
    }
    None
}

unsafe fn begins(text: Text, with: &[u8]) -> bool {
    with.iter().enumerate().all(|(i, b)| {
        // SAFETY: all bytes before were those of `with`, which has no zero.
        (unsafe { *text.add(i) }) as u8 == *b
    })
}

/// How a program is named to the call that starts it.
#[derive(Clone, Copy)]
pub enum Program {
    /// A path, from a directory on.
    At(c_int, Text),
    /// An open file.
    Open(c_int),
    /// A name that is looked for in PATH, if it has no slash.
    Searched(Text),
}

/// Makes a call that starts a program, with the environment that the program is to have. `executes`: the call is execve(2), of this process.
///
/// # Safety
/// What the call that is hooked demands of its arguments.
#[inline(never)]
unsafe fn with_environment(
    (program, executes): (Program, bool),
    arguments: Texts,
    environment: Texts,
    call: &dyn Fn(Texts) -> c_long,
) -> c_long {
    let restricted = RESTRICTED.load(Relaxed);
    let asks = !attach::is_filtered();
    // As it is, for want of room for a copy.
    let plainly = |environment| {
        if restricted {
            // SAFETY: what the caller passes on.
            unsafe { scrub(environment, asks) };
        }
        call(environment)
    };
    let Some(own) = own() else {
        return plainly(environment);
    };
    let looks = asks || restricted || executes && MOVED.load(Relaxed);
    if !looks || !plausible(environment) || asks && !are_strings(environment) {
        return call(environment);
    }
    // SAFETY: an array that ends with a null pointer, of C strings.
    unsafe {
        let list = variable(environment, PRELOAD);
        let traced = variable(environment, TRACE).is_some();
        let all = match list.and_then(|list| own.entry_of(list)) {
            _ if restricted => false,
            None => {
                attach::lose(lost::ENVIRONMENT);
                return call(environment);
            }
            Some(entry) if asks => {
                !traced && readable(own, entry) && takes(program, arguments, entry)
            }
            Some(entry) if is_hidden(own, entry) => false,
            Some(_) => return call(environment),
        };
        if all {
            let answer = call(environment);
            if !is_too_big(answer) {
                return answer;
            }
            // There may be room for what is not ours.
            attach::lose(lost::ENVIRONMENT);
        }
        let mut count = 0;
        while !(*environment.add(count)).is_null() {
            count += 1;
        }
        // What others have in LD_PRELOAD, at most.
        let bytes = PRELOAD.len() + list.map_or(0, <[u8]>::len) + 1;
        let all = all || restricted;
        let make = |copy: &mut _, text: &mut _| {
            without(own, all, environment, (copy, text), (call, &plainly))
        };
        let make = |copy: &mut _| match bytes {
            0..=FEW => with_room::<u8, FEW>(|text| make(copy, text)),
            _ => with_room::<u8, OTHERS>(|text| make(copy, text)),
        };
        // The stack of a thread may be small: of what is on it a half is used, or more. In a child that shares our memory what is mapped would stay here.
        match count {
            0..32 => with_room::<Text, 32>(make),
            32..64 => with_room::<Text, 64>(make),
            64..128 => with_room::<Text, 128>(make),
            128..256 => with_room::<Text, 256>(make),
            256..512 => with_room::<Text, 512>(make),
            512..1024 => with_room::<Text, 1024>(make),
            1024..VARIABLES if is_guest() || !asks => with_room::<Text, VARIABLES>(make),
            1024..VARIABLES => match mapped::map(size_of::<[Text; VARIABLES]>()) {
                Some(at) => {
                    // SAFETY: room for so many, which is nobody else's, until it is given back.
                    let copy = core::slice::from_raw_parts_mut(at.cast(), VARIABLES);
                    let answer = make(copy);
                    mapped::unmap(at, size_of::<[Text; VARIABLES]>());
                    answer
                }
                None => plainly(environment),
            },
            _ => plainly(environment),
        }
    }
}

/// Room for so many, on the stack of the calling thread as long as that takes.
#[inline(never)]
fn with_room<T: Copy, const N: usize>(
    make: impl FnOnce(&mut [MaybeUninit<T>]) -> c_long,
) -> c_long {
    make(&mut [const { MaybeUninit::uninit() }; N])
}

/// Whether a call that starts a program has refused so many arguments and variables: they have a size that all together may have.
fn is_too_big(answer: c_long) -> bool {
    const TOO_BIG: c_long = libc::E2BIG as c_long;
    // posix_spawn(3) returns the error itself.
    // SAFETY: errno of this thread.
    answer == TOO_BIG || answer == -1 && unsafe { *libc::__errno_location() } == libc::E2BIG
}

/// Makes the call with a copy of the environment in which LD_PRELOAD has nothing of ours. There is room for all of its entries, and for text.
/// `all`: nor are there the other variables of ours, so that there is room. `plainly`: there is no room for the copy.
unsafe fn without(
    own: Own,
    all: bool,
    environment: Texts,
    (copy, text): (&mut [MaybeUninit<Text>], &mut [MaybeUninit<u8>]),
    (call, plainly): (&dyn Fn(Texts) -> c_long, &dyn Fn(Texts) -> c_long),
) -> c_long {
    let (mut used, mut n, mut at) = (0, 0, environment);
    // SAFETY: as in `with_environment`; the copy has room for as many entries as there are, and is written before it is read.
    unsafe {
        let plugins = variable(environment, PLUGINS).unwrap_or_default();
        let is_ours = |entry: &[u8]| own.has(entry) || is_plugin(entry, plugins);
        loop {
            let mut entry = *at;
            at = at.add(1);
            if !entry.is_null() && begins(entry, PRELOAD) {
                let list = CStr::from_ptr(entry.add(PRELOAD.len())).to_bytes();
                if text.len() - used < PRELOAD.len() + list.len() + 1 {
                    return plainly(environment);
                }
                let from = used;
                let mut put = |bytes: &[u8]| {
                    for b in bytes {
                        text[used].write(*b);
                        used += 1;
                    }
                };
                put(PRELOAD);
                let mut first = true;
                for other in entries(list).filter(|entry| !is_ours(entry)) {
                    if !first {
                        put(b":");
                    }
                    first = false;
                    put(other);
                }
                put(b"\0");
                if first {
                    continue;
                }
                entry = text.as_ptr().add(from).cast();
            } else if all
                && !entry.is_null()
                && OTHER_VARIABLES.iter().any(|name| begins(entry, name))
            {
                continue;
            }
            copy[n].write(entry);
            n += 1;
            if entry.is_null() {
                break;
            }
        }
        call(copy.as_ptr().cast())
    }
}

/// Whether our library is there for the program, and may be read. access(2) asks for the real user without the capabilities that a
/// process keeps when it becomes another user, which is as the program will have it. (Where the effective user is another one than the real one the dynamic
/// linker looks at no library.)
fn readable(own: Own, entry: Entry) -> bool {
    let is_there = |path: &CStr| {
        // SAFETY: a C string.
        let answer = unsafe {
            raw::syscall6(
                libc::SYS_faccessat,
                libc::AT_FDCWD as usize,
                path.as_ptr() as usize,
                libc::R_OK as usize,
                0,
                0,
                0,
            )
        };
        !matches!(
            -answer as c_int,
            libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP
        )
    };
    // Of a filter that leads nowhere the dynamic linker says nothing, but the report does.
    let filter = own.filter.filter(|_| entry == Entry::Filter);
    let ours = |path: &CStr| is_there(path) && !(is_made(path) && is_others(path));
    let there = ours(own.library) && filter.is_none_or(ours);
    if !there {
        attach::lose(lost::LIBRARY);
    }
    there
}

/// Whether a path is that of a link to the library, or a filter for it, which runners make in their users' directories: in one that is called by 16 digits.
fn is_made(path: &CStr) -> bool {
    let directory = path.to_bytes().strip_suffix(NAME);
    let name = directory.and_then(|d| d.rsplit(|b| *b == b'/').next());
    let name = name.map(|name| name.strip_suffix(b"-filter").unwrap_or(name));
    name.is_some_and(|name| name.len() == 16 && name.iter().all(u8::is_ascii_hexdigit))
}

/// Whether what lies at a path is neither root's nor this process's own, nor of a user for whom this process's namespace has no number: in another root, or where
/// something was mounted since, somebody else may have put it there.
fn is_others(path: &CStr) -> bool {
    let Ok(found) = raw::lstat(path) else {
        return false;
    };
    let owner = found.st_uid;
    let is_known = owner == 0 || u64::from(owner) == attach::own_user();
    !is_known && !attach::is_unknown(owner)
}

/// Whether the dynamic linker won't find what LD_PRELOAD has of ours, where a filter of system calls may kill for any but the one that is about to be made. That one is
/// made for what lies below the library, where there is never anything: the answer tells whether the library itself is there.
#[cold]
#[inline(never)]
fn is_hidden(own: Own, entry: Entry) -> bool {
    let name = match entry {
        Entry::Library => own.library,
        Entry::Filter => own.filter.unwrap_or(own.library),
    };
    let mut room = PATH_ROOM;
    let Some(path) = joined(&mut room, &[name.to_bytes(), b"/-\0"]) else {
        return false;
    };
    let [arguments, environment] = [[path, null()], [null(); 2]];
    // SAFETY: a C string, and arrays of such that end with a null pointer. What lies below a file can't be executed.
    let answer = unsafe {
        let [arguments, environment] = [&arguments, &environment].map(|a| a.as_ptr() as usize);
        raw::syscall6(
            libc::SYS_execve,
            path as usize,
            arguments,
            environment,
            0,
            0,
            0,
        )
    };
    matches!(-answer as c_int, libc::ENOENT | libc::EACCES | libc::ELOOP)
}

/// Whether the program takes the library, or doesn't look for it.
unsafe fn takes(program: Program, arguments: Texts, entry: Entry) -> bool {
    if LOCKED.load(Relaxed) {
        return true;
    }
    let look = |dir, path: Text, name: Text| {
        // SAFETY: null, or C strings.
        let found = unsafe {
            let named = Named {
                dir,
                path: path.cast(),
                name: name.cast(),
            };
            taking(named, entry)
        };
        match found {
            Taking::Fits => true,
            Taking::Unfit => {
                attach::lose(lost::UNFIT);
                false
            }
            // SAFETY: the caller's arguments.
            Taking::Linker => unsafe { !only_lists(arguments) },
        }
    };
    match program {
        Program::At(dir, path) if plausible(path) => look(dir, path, path),
        Program::Open(fd) if fd >= 0 => look(fd, null(), null()),
        // SAFETY: a C string.
        Program::Searched(name) if plausible(name) => unsafe {
            search(name, |path| look(libc::AT_FDCWD, path, path))
        },
        _ => true,
    }
}

/// Whether the dynamic linker's arguments, before the program's name, have it list what it would load.
unsafe fn only_lists(arguments: Texts) -> bool {
    if !plausible(arguments) || !are_strings(arguments) {
        return false;
    }
    // SAFETY: an array that ends with a null pointer, of C strings; the first is a name.
    unsafe {
        if (*arguments).is_null() {
            return false;
        }
        let mut at = arguments.add(1);
        while !(*at).is_null() && begins(*at, b"--") {
            if begins(*at, b"--list\0") || begins(*at, b"--verify\0") {
                return true;
            }
            // These have a value of their own.
            let valued: [&[u8]; 6] = [
                b"--library-path\0",
                b"--inhibit-rpath\0",
                b"--audit\0",
                b"--preload\0",
                b"--argv0\0",
                b"--glibc-hwcaps-prepend\0",
            ];
            if valued.iter().any(|v| begins(*at, v)) && !(*at.add(1)).is_null() {
                at = at.add(1);
            }
            at = at.add(1);
        }
    }
    false
}

/// Bytes of the longest path that is looked for, with its end.
const PATH: usize = 4096;
/// Room for one.
const PATH_ROOM: [MaybeUninit<u8>; PATH] = [const { MaybeUninit::uninit() }; PATH];

/// The parts of a path, of which the last ends with a zero byte, one behind the other; `None` if that is too long.
fn joined(room: &mut [MaybeUninit<u8>; PATH], parts: &[&[u8]]) -> Option<Text> {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    if bytes > PATH {
        return None;
    }
    for (to, from) in room.iter_mut().zip(parts.iter().copied().flatten()) {
        to.write(*from);
    }
    Some(room.as_ptr().cast())
}

/// Has the file looked at that execvp(3) would find for a name; `true` without one.
#[inline(never)]
unsafe fn search(name: Text, look: impl Fn(Text) -> bool) -> bool {
    // SAFETY: a C string.
    let text = unsafe { CStr::from_ptr(name) }.to_bytes();
    if text.contains(&b'/') {
        return look(name);
    }
    let here = own_environment();
    // Empty entries of PATH are the working directory.
    let path = if plausible(here) {
        // SAFETY: the process's own environment.
        unsafe { variable(here, b"PATH=") }
    } else {
        None
    };
    let mut room = PATH_ROOM;
    for directory in path.unwrap_or(b"/bin:/usr/bin").split(|b| *b == b':') {
        let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        let Some(candidate) = joined(&mut room, &[directory, slash, text, b"\0"]) else {
            continue;
        };
        // SAFETY: a C string.
        let answer = unsafe {
            raw::syscall6(
                libc::SYS_faccessat,
                libc::AT_FDCWD as usize,
                candidate as usize,
                libc::X_OK as usize,
                0,
                0,
                0,
            )
        };
        if answer == 0 && is_file(candidate) {
            return look(candidate);
        }
    }
    true
}

fn is_file(path: Text) -> bool {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    let status = status.as_mut_ptr();
    // SAFETY: a C string; the kernel writes the structure.
    unsafe {
        raw::syscall6(
            libc::SYS_newfstatat,
            libc::AT_FDCWD as usize,
            path as usize,
            status as usize,
            0,
            0,
            0,
        ) == 0
            && (*status).st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// The program's environment as it is now.
fn own_environment() -> Texts {
    // SAFETY: the C library's variable; programs put what they want there.
    unsafe { environ.load(Relaxed).cast_const() }
}

/// Has this process become another program, by a call that only returns when it could not: what the service has open because of it is let go of before.
///
/// # Safety
/// As for [`with_environment`].
unsafe fn become_another<const BY_EXECVE: bool>(
    program: Program,
    arguments: Texts,
    environment: Texts,
    call: &dyn Fn(Texts) -> c_long,
) -> c_long {
    // SAFETY: the caller's promise.
    unsafe {
        with_environment(
            (program, BY_EXECVE),
            arguments,
            environment,
            &|environment| {
                attach::leaving();
                declared::ending();
                // What a child of vfork leaves is its parent's, and what it starts may look for what that has closed.
                attach::starting();
                let answer = call(environment);
                attach::stays();
                answer
            },
        )
    }
}

/// Defines an interposed function that starts a program: where its file is, what its arguments and its environment are called, and the call.
macro_rules! starts {
    ($start:path: $($(#[$doc:meta])* $name:ident ($($a:ident: $t:ty),*): $program:expr, $arguments:ident, $given:expr => |$environment:ident| $call:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($a: $t),*) -> c_int {
                // SAFETY: the caller's arguments, but for our part of the environment.
                unsafe {
                    $start($program, $arguments, $given, &|$environment| c_long::from($call)) as c_int
                }
            }
        )*
    };
}

starts! {
    become_another::<true>:
    /// See execve(2).
    execve(path: Text, arguments: Texts, environment: Texts):
        Program::At(libc::AT_FDCWD, path), arguments, environment
        => |environment| real::execve(path, arguments, environment);
    /// See execv(3).
    execv(path: Text, arguments: Texts):
        Program::At(libc::AT_FDCWD, path), arguments, own_environment()
        => |environment| match environment == own_environment() {
            true => real::execv(path, arguments),
            false => real::execve(path, arguments, environment),
        };
    /// See execvp(3).
    execvp(name: Text, arguments: Texts):
        Program::Searched(name), arguments, own_environment()
        => |environment| match environment == own_environment() {
            true => real::execvp(name, arguments),
            false => real::execvpe(name, arguments, environment),
        };
    /// See execvpe(3).
    execvpe(name: Text, arguments: Texts, environment: Texts):
        Program::Searched(name), arguments, environment
        => |environment| real::execvpe(name, arguments, environment);
}

starts! {
    become_another::<false>:
    /// See execveat(2).
    execveat(dir: c_int, path: Text, arguments: Texts, environment: Texts, flags: c_int):
        by_descriptor(dir, path, flags), arguments, environment
        => |environment| real::execveat(dir, path, arguments, environment, flags);
    /// See fexecve(3).
    fexecve(fd: c_int, arguments: Texts, environment: Texts):
        Program::Open(fd), arguments, environment
        => |environment| real::fexecve(fd, arguments, environment);
}

/// Starts another program beside this one.
///
/// # Safety
/// As for [`with_environment`].
unsafe fn start_another(
    program: Program,
    arguments: Texts,
    environment: Texts,
    call: &dyn Fn(Texts) -> c_long,
) -> c_long {
    attach::starting();
    // SAFETY: the caller's promise.
    unsafe { with_environment((program, false), arguments, environment, call) }
}

starts! {
    start_another:
    /// See posix_spawn(3). File actions may lead to another directory first: a relative path is then looked for where it may not be, and what
    /// isn't found gets the environment as it is.
    posix_spawn(pid: *mut libc::pid_t, path: Text, actions: *const c_void, attributes: *const c_void, arguments: Texts, environment: Texts):
        Program::At(libc::AT_FDCWD, path), arguments, environment
        => |environment| real::posix_spawn(pid, path, actions, attributes, arguments, environment);
    /// See posix_spawnp(3).
    posix_spawnp(pid: *mut libc::pid_t, name: Text, actions: *const c_void, attributes: *const c_void, arguments: Texts, environment: Texts):
        Program::Searched(name), arguments, environment
        => |environment| real::posix_spawnp(pid, name, actions, attributes, arguments, environment);
    /// See pidfd_spawn(3), since version 2.39 of the C library; ENOSYS without it.
    pidfd_spawn(pidfd: *mut c_int, path: Text, actions: *const c_void, attributes: *const c_void, arguments: Texts, environment: Texts):
        Program::At(libc::AT_FDCWD, path), arguments, environment
        => |environment| real::pidfd_spawn(pidfd, path, actions, attributes, arguments, environment);
    /// See pidfd_spawn(3).
    pidfd_spawnp(pidfd: *mut c_int, name: Text, actions: *const c_void, attributes: *const c_void, arguments: Texts, environment: Texts):
        Program::Searched(name), arguments, environment
        => |environment| real::pidfd_spawnp(pidfd, name, actions, attributes, arguments, environment);
}

unsafe fn by_descriptor(dir: c_int, path: Text, flags: c_int) -> Program {
    // SAFETY: a path that the caller passes.
    match flags & libc::AT_EMPTY_PATH != 0 && plausible(path) && unsafe { *path } == 0 {
        true => Program::Open(dir),
        false => Program::At(dir, path),
    }
}

/// execve(2) and execveat(2) by syscall(2); what comes before a process is made. `None`: it is another call.
///
/// # Safety
/// As for these.
#[inline]
pub unsafe fn by_number(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
) -> Option<c_long> {
    // SAFETY: the caller's arguments, but for our part of the environment.
    unsafe {
        match number {
            libc::SYS_execve => Some(become_another::<true>(
                Program::At(libc::AT_FDCWD, a as Text),
                b as Texts,
                c as Texts,
                &|environment| real::syscall(number, a, b, environment as usize, d, e, 0),
            )),
            libc::SYS_execveat => Some(become_another::<false>(
                by_descriptor(a as c_int, b as Text, e as c_int),
                c as Texts,
                d as Texts,
                &|environment| real::syscall(number, a, b, c, environment as usize, e, 0),
            )),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork | libc::SYS_vfork => {
                attach::starting();
                None
            }
            libc::SYS_clone | libc::SYS_clone3 => {
                attach::starting();
                None
            }
            _ => None,
        }
    }
}

/// syscall(2) is about to be made: where a child may come of it that gets copies of descriptors and mappings.
#[inline]
pub fn copying(number: c_long, a: usize) -> Option<Copying> {
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(Copying::begin()),
        libc::SYS_clone if a as c_int & libc::CLONE_VM == 0 => Some(Copying::begin()),
        // What it has as its flags the kernel is to find out.
        libc::SYS_clone3 => Some(Copying::begin()),
        _ => None,
    }
}

/// syscall(2) has returned 0: this may be a child, with a copy of the memory, where the C library calls no handlers of fork(3).
///
/// # Safety
/// The kernel has taken the arguments of that call.
#[inline]
pub unsafe fn may_be_copied(number: c_long, a: usize) {
    let flags = match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => 0,
        libc::SYS_clone => a as c_int,
        // SAFETY: struct clone_args, which begins with the flags.
        libc::SYS_clone3 => unsafe { (a as *const u64).read_unaligned() as c_int },
        _ => return,
    };
    if flags & libc::CLONE_VM == 0 {
        begun(flags);
    }
}

/// A child with a copy of the memory begins.
fn begun(flags: c_int) {
    attach::copied();
    if flags & (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID) != 0 {
        // Its rights are others, its names and numbers mean something else to who reads them.
        needs::forget();
    }
}

/// See _Fork(3), since version 2.34 of the C library; ENOSYS without it. Nobody calls handlers of fork(3) there.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    attach::starting();
    let _copying = Copying::begin();
    // SAFETY: no arguments.
    let child = unsafe { real::_Fork() };
    if child == 0 {
        attach::copied();
    }
    child
}

/// What clone(2) is to call.
type Begin = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// What a child with a copy of the memory begins with, on its parent's stack, of which it has a copy, too.
struct Beginning {
    begin: Begin,
    argument: *mut c_void,
    flags: c_int,
}

unsafe extern "C-unwind" fn begin(beginning: *mut c_void) -> c_int {
    // SAFETY: passed below.
    unsafe {
        let Beginning {
            begin,
            argument,
            flags,
        } = *beginning.cast::<Beginning>();
        begun(flags);
        begin(argument)
    }
}

/// See clone(2). The last three arguments need not be there: what is in their place is handed on.
#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    f: Option<Begin>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut libc::pid_t,
    area: *mut c_void,
    child: *mut libc::pid_t,
) -> c_int {
    if flags & libc::CLONE_THREAD == 0 {
        attach::starting();
    }
    // SAFETY: the caller's arguments, but for what is called first.
    unsafe {
        match f {
            Some(f) if flags & libc::CLONE_VM == 0 => {
                let beginning = Beginning {
                    begin: f,
                    argument,
                    flags,
                };
                let beginning = (&raw const beginning).cast_mut().cast();
                let _copying = Copying::begin();
                real::clone(Some(begin), stack, flags, beginning, parent, area, child)
            }
            _ => real::clone(f, stack, flags, argument, parent, area, child),
        }
    }
}

/// The same.
#[unsafe(no_mangle)]
unsafe extern "C" fn __clone(
    f: Option<Begin>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut libc::pid_t,
    area: *mut c_void,
    child: *mut libc::pid_t,
) -> c_int {
    // SAFETY: the caller's arguments, unchanged.
    unsafe { clone(f, stack, flags, argument, parent, area, child) }
}

/// Arguments that lie in a row: those of execl(3) and its kin, as `thunks` finds them.
///
/// # Safety
/// `registers` are so many pointers, and behind them on the stack come more, up to a null pointer.
#[inline(never)]
unsafe fn in_a_row<R>(
    registers: *const Text,
    count: usize,
    stack: *const Text,
    call: impl FnOnce(Texts, Text) -> R,
) -> R {
    // SAFETY: as promised.
    let word = |i: usize| unsafe {
        if i < count {
            *registers.add(i)
        } else {
            *stack.add(i - count)
        }
    };
    let mut n = 0;
    while !word(n).is_null() {
        n += 1;
    }
    // What lies behind: execle(3)'s environment.
    let next = word(n + 1);
    #[inline(never)]
    fn filled<const N: usize, R>(
        n: usize,
        word: impl Fn(usize) -> Text,
        call: impl FnOnce(Texts) -> R,
    ) -> R {
        let mut row = [const { MaybeUninit::<Text>::uninit() }; N];
        for (i, to) in row.iter_mut().enumerate().take(n + 1) {
            to.write(word(i));
        }
        call(row.as_ptr().cast())
    }
    match n {
        0..32 => filled::<32, R>(n, word, |row| call(row, next)),
        32..1024 => filled::<1024, R>(n, word, |row| call(row, next)),
        // Somebody has written so many down in a source file.
        _ => filled::<32768, R>(n.min(32767), word, |row| call(row, next)),
    }
}

unsafe extern "C" fn execl_at(path: Text, registers: *const Text, stack: *const Text) -> c_int {
    // SAFETY: as for execve.
    unsafe { in_a_row(registers, REGISTERS, stack, |row, _| execv(path, row)) }
}

unsafe extern "C" fn execlp_at(name: Text, registers: *const Text, stack: *const Text) -> c_int {
    // SAFETY: as for execve.
    unsafe { in_a_row(registers, REGISTERS, stack, |row, _| execvp(name, row)) }
}

unsafe extern "C" fn execle_at(path: Text, registers: *const Text, stack: *const Text) -> c_int {
    // SAFETY: as for execve.
    unsafe {
        in_a_row(registers, REGISTERS, stack, |row, environment| {
            execve(path, row, environment.cast())
        })
    }
}

/// Arguments behind the first that come in registers.
#[cfg(target_arch = "x86_64")]
const REGISTERS: usize = 5;
#[cfg(target_arch = "aarch64")]
const REGISTERS: usize = 7;

/// Functions with a variable number of arguments, which Rust can call and not be: the registers go to the stack, and a function above
/// gets the addresses of both parts.
macro_rules! thunks {
    ($($name:ident = $f:ident)*) => {
        $(
            /// See exec(3).
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "sub rsp, 40",
                    "mov [rsp], rsi",
                    "mov [rsp + 8], rdx",
                    "mov [rsp + 16], rcx",
                    "mov [rsp + 24], r8",
                    "mov [rsp + 32], r9",
                    "mov rsi, rsp",
                    "lea rdx, [rsp + 48]",
                    "call {f}",
                    "add rsp, 40",
                    "ret",
                    f = sym $f,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "stp x29, x30, [sp, -80]!",
                    "mov x29, sp",
                    "stp x1, x2, [sp, 16]",
                    "stp x3, x4, [sp, 32]",
                    "stp x5, x6, [sp, 48]",
                    "str x7, [sp, 64]",
                    "add x1, sp, 16",
                    "add x2, sp, 80",
                    "bl {f}",
                    "ldp x29, x30, [sp], 80",
                    "ret",
                    f = sym $f,
                );
            }
        )*
    };
}

thunks! {
    execl = execl_at
    execlp = execlp_at
    execle = execle_at
}
