//! Starting a program before the C library has started.
//!
//! A process that begins with the C library spends most of its start there: the library asks the processor for its features and caches, an
//! instruction that a virtual machine has to hand to its host, some 30 µs a question. `outrider run -- PROGRAM` needs none of it, unless the
//! program reads files that are not cached: it makes the shared memory, executes the program, and waits. So the command is linked statically and begins
//! here. When there is more to do than to wait (the first process has something to tell, the program is stopped or killed by a signal),
//! and for every other command line, the C library's own beginning comes next, and `main` after it; [`has_started`] says that the
//! program is there already, and `run::carry_on` goes on where this ends.
//!
//! Nothing here may call the C library or use storage of a thread. The compiler makes calls
//! of memcpy(3) and its like, which are resolved by the library's start, out of loops over memory and out of moved structures: so bytes are read and written
//! as volatile ones, one by one, and structures are not moved. What is not simple is not done: then nothing has happened yet, and `main` does it.
//!
//! Where nothing of Outrider is cached, each page that is needed and not read with others waits for the disk. So the functions that are not inlined lie
//! side by side, where the process begins (`.text` itself, not a section of their own), and the library and the plug-ins are read ahead once they are found.

mod filter;
mod plugins;

use core::arch::global_asm;
use core::ptr::{null, null_mut};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32};

use outrider_core::config;
use outrider_core::shared::BOOKS_BYTES;
use outrider_core::shm::{self, Header};
use outrider_sys::handover::{self, NAME_BYTES};
use outrider_sys::program::{Entry, Named, Taking, has_musl, taking};
use outrider_sys::units::PAGE;
use outrider_sys::{mapped, raw};

use crate::confined::{self, Status};
use crate::kept;
use crate::locks;
use crate::own_directory::{self, is_plain};
use crate::plain::{Action, Text, after, byte, call, equals, length, variable};
use crate::preload;
use crate::signals::{IGNORED, PROGRAM, child_changed, is_passed_on, pass_on};

global_asm!(
    ".globl outrider_entry",
    "outrider_entry:",
    "xor ebp, ebp",
    "mov rbx, rsp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {start}",
    "mov rsp, rbx",
    // No function to be called at exit.
    "xor edx, edx",
    "jmp _start",
    // outrider_vfork(function, argument, end of the stack)
    ".globl outrider_vfork",
    "outrider_vfork:",
    "mov r8, rdi",
    "mov r9, rsi",
    "mov rsi, rdx",
    "mov edi, {flags}",
    "xor edx, edx",
    "xor r10d, r10d",
    "mov eax, {clone}",
    "syscall",
    "test rax, rax",
    "jnz 2f",
    "xor ebp, ebp",
    "mov rdi, r9",
    "call r8",
    "ud2",
    "2: ret",
    ".globl outrider_return",
    "outrider_return:",
    "mov eax, {sigreturn}",
    "syscall",
    start = sym start,
    // The last: see `run::spawn`.
    flags = const libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | libc::CLONE_SYSVSEM,
    clone = const libc::SYS_clone,
    sigreturn = const libc::SYS_rt_sigreturn,
);

unsafe extern "C" {
    fn outrider_vfork(
        f: unsafe extern "C" fn(*mut Launch) -> !,
        argument: *mut Launch,
        stack: *mut u8,
    ) -> i32;
    fn outrider_return();
}

/// The socket to which programs hand their memory, once a program was started; 0 before.
static SHARED: AtomicI32 = AtomicI32::new(0);
/// The memory of runner and service.
static BASE: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The program's process could not become the program.
static FAILED: AtomicU32 = AtomicU32::new(0);

/// Whether the program has been started here.
pub fn has_started() -> bool {
    SHARED.load(Relaxed) != 0
}

/// The socket and the memory that were made for the program that was started here.
pub fn shared() -> (i32, *mut u8) {
    (SHARED.load(Relaxed), BASE.load(Relaxed))
}

/// Longest path that is built here, its end included.
const PATH: usize = 4096;
/// Most descriptors that are looked at.
const DESCRIPTORS: usize = 1024;
/// Stack of the program's process until it is the program.
const STACK: usize = 64 << 10;
const NOTHING: usize = 0;

/// What the program's process needs before it is the program.
#[repr(C)]
struct Launch {
    arguments: *const Text,
    environment: *const Text,
    path: Text,
    timers: [[i64; 4]; 3],
    child_action: Action,
    mask: u64,
    runner: u32,
    /// ns, or 0; see [`kept`].
    slack: isize,
}

/// Memory for everything that is built here.
struct Arena {
    at: *mut u8,
    end: *mut u8,
}

impl Arena {
    unsafe fn put(&mut self, b: u8) {
        if self.at < self.end {
            // SAFETY: within the arena.
            unsafe {
                self.at.write_volatile(b);
                self.at = self.at.add(1);
            }
        }
    }

    unsafe fn bytes(&mut self, text: Text, n: usize) {
        for i in 0..n {
            // SAFETY: so many bytes are there.
            unsafe { self.put(byte(text, i)) };
        }
    }

    unsafe fn add(&mut self, text: &[u8]) {
        // SAFETY: a slice has its length.
        unsafe { self.bytes(text.as_ptr(), text.len()) };
    }

    unsafe fn add_text(&mut self, text: Text) {
        // SAFETY: as promised.
        unsafe { self.bytes(text, length(text)) };
    }

    #[unsafe(link_section = ".text")]
    unsafe fn number(&mut self, n: u64) {
        let mut unit = 1;
        while n / unit > 9 {
            unit *= 10;
        }
        while unit > 0 {
            // SAFETY: as promised.
            unsafe { self.put(b'0' + (n / unit % 10) as u8) };
            unit /= 10;
        }
    }
}

unsafe fn prctl(what: i32, value: usize) -> isize {
    // SAFETY: as the caller promises.
    unsafe { call(libc::SYS_prctl, what as usize, value, 0, 0) }
}

/// Comes first in the process. Returns where `main` has to do the rest; else the process ends here.
#[unsafe(link_section = ".text")]
unsafe extern "C" fn start(stack: *const usize) {
    // SAFETY: the kernel puts the number of arguments, their addresses, a null pointer, those of the environment and another one there.
    unsafe {
        let count = stack.read();
        let arguments = stack.add(1).cast::<Text>();
        let environment = arguments.add(count + 1);
        let mut wanted = Wanted {
            mode: shm::MODE_PREDICT_OPT,
            plugins: [null(); plugins::MOST],
            command: arguments,
        };
        if let Some(status) = confined::look(count, arguments, environment)
            && understand(count, arguments, &mut wanted).is_some()
            && launch(&wanted, &status, environment).is_some()
        {
            wait();
        }
    }
}

/// A command line that is understood here.
struct Wanted {
    /// `MODE_PREDICT_OPT`, or with plug-ins `MODE_APP_ONLY`.
    mode: u32,
    /// As they were named; null behind the last.
    plugins: [Text; plugins::MOST],
    /// Where the program and its arguments begin.
    command: *const Text,
}

/// Whether the command line is `run [--mode app-only] [--plugin FILE]… [--] PROGRAM …`, and what it says.
unsafe fn understand(count: usize, arguments: *const Text, wanted: &mut Wanted) -> Option<()> {
    // SAFETY: so many arguments are there.
    unsafe {
        let argument = |i: usize| (i < count).then(|| arguments.add(i).read_volatile());
        if !equals(argument(1)?, b"run") {
            return None;
        }
        let (mut at, mut plugins) = (2, 0);
        loop {
            let here = argument(at)?;
            if equals(here, b"--") {
                at += 1;
                break;
            }
            if byte(here, 0) != b'-' {
                break;
            }
            let value = argument(at + 1)?;
            if equals(here, b"--plugin") && plugins < plugins::MOST {
                (&raw mut wanted.plugins)
                    .cast::<Text>()
                    .add(plugins)
                    .write_volatile(value);
                plugins += 1;
            } else if equals(here, b"--mode") && equals(value, b"app-only") {
                wanted.mode = shm::MODE_APP_ONLY;
            } else {
                return None;
            }
            at += 2;
        }
        let name = byte(argument(at)?, 0);
        if name == 0 || name == b'-' || wanted.mode == shm::MODE_APP_ONLY && plugins == 0 {
            return None;
        }
        wanted.command = arguments.add(at);
        Some(())
    }
}

unsafe fn exists(path: Text) -> bool {
    // SAFETY: as promised.
    unsafe { call(libc::SYS_access, path as usize, libc::F_OK as usize, 0, 0) == 0 }
}

/// Whether no settings are there to be read: see `config::usual_places`.
unsafe fn unconfigured(environment: *const Text, arena: &mut Arena) -> bool {
    // SAFETY: as promised.
    unsafe {
        let own = variable(environment, b"XDG_CONFIG_HOME=").filter(|p| byte(*p, 0) == b'/');
        let home = variable(environment, b"HOME=");
        let path = arena.at;
        if let Some(directory) = own.or(home) {
            if length(directory) > PATH - 64 {
                return false;
            }
            arena.add_text(directory);
            if own.is_none() {
                arena.add(b"/.config");
            }
            arena.add(b"/outrider/config.toml\0");
        }
        (path == arena.at || !exists(path)) && !exists(c"/etc/outrider/config.toml".as_ptr().cast())
    }
}

unsafe fn open_text(path: Text, flags: i32) -> isize {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: as promised.
    unsafe { call(libc::SYS_openat, at, path as usize, flags, 0) }
}

/// The beginning of a file, as a text. `None` if it can't be read, or is longer than `most`.
#[unsafe(link_section = ".text")]
unsafe fn contents(path: Text, most: usize, arena: &mut Arena) -> Option<Text> {
    // SAFETY: the arena has room.
    unsafe {
        let fd = open_text(path, libc::O_RDONLY);
        if fd < 0 {
            return None;
        }
        let text = arena.at;
        let mut length = 0;
        let end = loop {
            let room = most - length;
            let n = call(
                libc::SYS_read,
                fd as usize,
                text.add(length) as usize,
                room,
                0,
            );
            if n <= 0 || n as usize == room {
                break n;
            }
            length += n as usize;
        };
        raw::close(fd as i32);
        if end != 0 {
            return None;
        }
        arena.at = text.add(length);
        arena.put(0);
        Some(text)
    }
}

/// Whether none of the first so many descriptors has a POSIX lock (see `locks`). One call finds those that are open.
#[unsafe(link_section = ".text")]
unsafe fn unlocked(descriptors: usize, arena: &mut Arena) -> Option<()> {
    (1..=DESCRIPTORS).contains(&descriptors).then_some(())?;
    // SAFETY: the arena has room for as many structures as are asked for, for paths, and for what is read.
    unsafe {
        // struct pollfd: the descriptor, and behind it what is waited for and what was found.
        let asked = arena.at.add(8 - arena.at as usize % 8).cast::<[i32; 2]>();
        for fd in 0..descriptors {
            asked.add(fd).write_volatile([fd as i32, 0]);
        }
        let found = call(libc::SYS_poll, asked as usize, descriptors, 0, 0);
        (found >= 0).then_some(())?;
        arena.at = asked.add(descriptors).cast();
        for fd in 0..descriptors {
            let closed = i32::from(libc::POLLNVAL) << 16;
            if asked.add(fd).read_volatile()[1] & closed == 0 {
                is_nobodys(fd)?;
                suits_a_child(fd as i32, arena)?;
            }
        }
    }
    Some(())
}

/// Whether the signals of a descriptor are not for this process.
unsafe fn is_nobodys(fd: usize) -> Option<()> {
    let mut owner: kept::Owner = [0; 2];
    let at = owner.as_mut_ptr();
    // SAFETY: the structure is written by the call.
    unsafe {
        let which = kept::F_GETOWN_EX as usize;
        let answer = call(libc::SYS_fcntl, fd, which, at as usize, 0);
        let who = at.add(1).read_volatile();
        (answer != 0 || who == 0 || who as u32 != raw::getpid()).then_some(())
    }
}

/// Whether a descriptor has no POSIX lock, and tells of no events of this process (see [`kept::obstacle`]).
#[unsafe(link_section = ".text")]
unsafe fn suits_a_child(fd: i32, arena: &mut Arena) -> Option<()> {
    // SAFETY: the structures are written by the calls before they are read; the arena has room, again for each.
    unsafe {
        let mut status = core::mem::MaybeUninit::<libc::statx>::uninit();
        let status = status.as_mut_ptr();
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let answer = raw::syscall6(
            libc::SYS_statx,
            fd as usize,
            c"".as_ptr() as usize,
            flags as usize,
            libc::STATX_TYPE as usize,
            status as usize,
            0,
        );
        (answer == 0).then_some(())?;
        let kind = (&raw const (*status).stx_mode).read_volatile();
        if kept::is_anonymous(kind.into()) {
            let place = arena.at;
            let name = path_of(fd as isize, arena)?;
            let is = |what: &str| after(name, what.as_bytes()).is_some();
            (!is(kept::COUNTER) && !is(kept::WAITER)).then_some(())?;
            arena.at = place;
        }
        if !locks::may_be_locked(fd, kind.into()) {
            return Some(());
        }
        // Without a device of its own a file may be a server's, which would be asked for locks.
        if (&raw const (*status).stx_dev_major).read_volatile() != 0 {
            // struct flock: type and origin, beginning, length (all), process.
            let mut lock = [libc::F_WRLCK as u64, 0, 0, 0];
            let which = libc::F_OFD_GETLK as usize;
            let at = lock.as_mut_ptr();
            let answer = call(libc::SYS_fcntl, fd as usize, which, at as usize, 0);
            if answer == 0 && at.read_volatile() as u16 == libc::F_UNLCK as u16 {
                return Some(());
            }
        }
        let path = arena.at;
        arena.add(b"/proc/self/fdinfo/");
        arena.number(fd as u64);
        arena.put(0);
        let mut text = contents(path, PATH, arena)?;
        while byte(text, 0) != 0 {
            // Other locks have other names.
            after(text, b"POSIX").is_none().then_some(())?;
            text = text.add(1);
        }
        arena.at = path;
        Some(())
    }
}

/// Whether a child has all that this process would keep, but for what [`launch`] looks after itself: see [`kept`].
#[unsafe(link_section = ".text")]
unsafe fn can_be_handed_on(arena: &mut Arena) -> Option<()> {
    // SAFETY: as promised.
    unsafe {
        let policy = call(libc::SYS_sched_getscheduler, 0, 0, 0, 0);
        let plain = policy >= 0 && policy & kept::RESET == 0 && policy != kept::DEADLINE;
        plain.then_some(())?;
        for [own, children] in &kept::NAMESPACES {
            let place = arena.at;
            if let Some(own) = link(own.as_ptr().cast(), arena) {
                let children = link(children.as_ptr().cast(), arena)?;
                let same = after(children, core::slice::from_raw_parts(own, length(own)));
                same.filter(|rest| byte(*rest, 0) == 0)?;
            }
            arena.at = place;
        }
        Some(())
    }
}

/// Where a symbolic link leads, as a text. `None` if it is none, or leads too far.
unsafe fn link(path: Text, arena: &mut Arena) -> Option<Text> {
    // SAFETY: the arena has room.
    unsafe {
        let text = arena.at;
        let (at, room) = (libc::AT_FDCWD as usize, PATH - 64);
        let n = call(libc::SYS_readlinkat, at, path as usize, text as usize, room);
        if n <= 0 || n as usize == room {
            return None;
        }
        arena.at = text.add(n as usize);
        arena.put(0);
        Some(text)
    }
}

/// The absolute path of an open file.
#[unsafe(link_section = ".text")]
unsafe fn path_of(fd: isize, arena: &mut Arena) -> Option<Text> {
    // SAFETY: the arena has room.
    unsafe {
        let name = arena.at;
        arena.add(b"/proc/self/fd/");
        arena.number(fd as u64);
        arena.put(0);
        link(name, arena)
    }
}

/// The library's path as LD_PRELOAD wants it: see [`preload::library`] and [`preload::set`].
#[unsafe(link_section = ".text")]
unsafe fn library(arena: &mut Arena) -> Option<Text> {
    // SAFETY: as promised.
    unsafe {
        let exe = link(c"/proc/self/exe".as_ptr().cast(), arena)?;
        if !is_plain(exe) || !exists(preload::LINKER.as_ptr().cast()) {
            return None;
        }
        let directory = (0..length(exe)).rfind(|i| byte(exe, *i) == b'/')?;
        let path = arena.at;
        arena.bytes(exe, directory);
        arena.add(b"/liboutrider.so\0");
        if !exists(path) {
            let parent = (0..directory).rfind(|i| byte(exe, *i) == b'/')?;
            arena.at = path.add(parent);
            arena.add(b"/lib/liboutrider.so\0");
            if !exists(path) {
                // As [`preload::PACKAGED`].
                arena.at = path.add(parent);
                arena.add(b"/lib/outrider/liboutrider.so\0");
                if !exists(path) {
                    return None;
                }
            }
        }
        let user = call(libc::SYS_geteuid, 0, 0, 0, 0) as u32;
        // What links lead to `main` looks at.
        let is_kept = own_directory::is_as_kept(path, exe.cast_mut(), user, false);
        (is_kept && read_ahead(path)).then_some(path)
    }
}

unsafe fn is_directory(path: Text, arena: &mut Arena) -> bool {
    // SAFETY: the path lies at the arena's beginning, and what is put behind it has room.
    unsafe {
        arena.at = path.cast_mut().add(length(path));
        arena.add(b"/\0");
        let answer = exists(path);
        arena.at = path.cast_mut().add(length(path) - 1);
        arena.put(0);
        answer
    }
}

/// Whether the program can be given the library: see [`preload::fits`]. What is not found here `main` looks for.
#[unsafe(link_section = ".text")]
unsafe fn takes_library(name: Text, entry: Entry, path: Text, arena: &mut Arena) -> bool {
    let look = |path: Text| {
        let named = Named {
            dir: libc::AT_FDCWD,
            path,
            name: path,
        };
        // SAFETY: a text.
        unsafe { taking(named, entry) == Taking::Fits }
    };
    let begin = arena.at;
    let mut directory = path;
    // SAFETY: as promised; the arena has room, again for each directory.
    unsafe {
        for i in 0..length(name) {
            if byte(name, i) == b'/' {
                return look(name);
            }
        }
        loop {
            let mut n = 0;
            while byte(directory, n) != 0 && byte(directory, n) != b':' {
                n += 1;
            }
            if n + length(name) + 2 > PATH {
                return false;
            }
            arena.at = begin;
            arena.bytes(directory, n);
            if n > 0 {
                arena.put(b'/');
            }
            arena.add_text(name);
            arena.put(0);
            let executable = call(
                libc::SYS_access,
                begin as usize,
                libc::X_OK as usize,
                NOTHING,
                NOTHING,
            );
            if executable == 0 && !is_directory(begin, arena) {
                return look(begin);
            }
            if byte(directory, n) == 0 {
                return false;
            }
            directory = directory.add(n + 1);
        }
    }
}

/// Has the kernel read the file at `path`, without waiting for it: see [`preload::read_ahead`].
/// Whether the file may be read and executed, too.
unsafe fn read_ahead(path: Text) -> bool {
    // SAFETY: as promised.
    unsafe {
        let fd = open_text(path, libc::O_RDONLY);
        if fd < 0 {
            return false;
        }
        preload::read_ahead(fd as i32);
        let can = preload::can_be_executed(fd as i32).is_ok();
        raw::close(fd as i32);
        can
    }
}

/// A variable with `value` and, before or behind a colon, what it was.
#[unsafe(link_section = ".text")]
unsafe fn joined(name: &[u8], first: Text, second: Option<Text>, arena: &mut Arena) -> Text {
    // SAFETY: as promised.
    unsafe {
        let text = arena.at;
        arena.add(name);
        arena.add_text(first);
        if let Some(second) = second {
            if byte(first, 0) != 0 && byte(second, 0) != 0 {
                arena.put(b':');
            }
            arena.add_text(second);
        }
        arena.put(0);
        text
    }
}

/// The environment with the variable `entry`, whose name is `name`, in its place or at the end, where there is room.
unsafe fn set(environment: *mut Text, name: &[u8], entry: Text) {
    let mut i = 0;
    // SAFETY: the array ends with a null pointer, and has room for one more.
    unsafe {
        loop {
            let there = environment.add(i).read_volatile();
            if there.is_null() {
                environment.add(i + 1).write_volatile(null());
            }
            if there.is_null() || after(there, name).is_some() {
                environment.add(i).write_volatile(entry);
                return;
            }
            i += 1;
        }
    }
}

/// Makes the socket to which programs hand their memory, whose name goes to `name`, and the memory of runner and service: see `Shared::create`. The socket's descriptor;
/// nothing is left of it where that fails.
#[unsafe(link_section = ".text")]
unsafe fn make_shared(mode: u32, name: &mut [u8; NAME_BYTES], arena: &mut Arena) -> Option<i32> {
    // SAFETY: plain calls; a new mapping touches no existing memory.
    unsafe {
        let strict = c"/proc/sys/vm/overcommit_memory".as_ptr().cast();
        let strict = contents(strict, 64, arena)?;
        if byte(strict, 0) == b'2' {
            return None;
        }
        let secret = handover::random()?;
        let fd = handover::listen_as(name) as i32;
        // The number of a standard stream that is closed is none for it.
        let base = (fd > 2).then(|| mapped::map_shared(BOOKS_BYTES)).flatten();
        let Some(base) = base else {
            if fd >= 0 {
                raw::close(fd);
            }
            return None;
        };
        (*base.cast::<Header>()).begin(mode, config::Files::MIN_SIZE.0, secret);
        BASE.store(base, Release);
        Some(fd)
    }
}

unsafe fn give_up_shared(fd: i32) {
    mapped::unmap(BASE.swap(null_mut(), Relaxed), BOOKS_BYTES);
    raw::close(fd);
}

unsafe fn handle(signal: i32, handler: usize, old: *mut Action) {
    let action = Action {
        handler,
        flags: (libc::SA_SIGINFO | 0x0400_0000) as u64,
        restorer: outrider_return as *const () as usize,
        mask: 0,
    };
    // SAFETY: a handler that is async-signal-safe, and the code that returns from it.
    unsafe {
        let new = &raw const action;
        call(
            libc::SYS_rt_sigaction,
            signal as usize,
            new as usize,
            old as usize,
            8,
        );
    }
}

/// Whether the environment has settings: see `settings`.
unsafe fn has_settings(environment: *const Text) -> bool {
    let mut i = 0;
    // SAFETY: the array ends with a null pointer; within the texts, or at their ends.
    unsafe {
        loop {
            let entry = environment.add(i).read_volatile();
            if entry.is_null() {
                return false;
            }
            if let Some(name) = after(entry, b"OUTRIDER_")
                && (after(name, b"MODE=").is_some()
                    || after(name, b"ENGINE=").is_some()
                    || after(name, b"BUDGET=").is_some()
                    || after(name, b"CONFIG=").is_some()
                    || after(name, b"REPORT").is_some())
            {
                return true;
            }
            i += 1;
        }
    }
}

/// Starts the program as `run::run` does, from the shared memory to standing aside. `None`: nothing has been done.
unsafe fn launch(wanted: &Wanted, status: &Status, environment: *const Text) -> Option<()> {
    // SAFETY: as promised; the arena is large enough for all that is put into it, and stays.
    unsafe {
        let mut terminal = core::mem::MaybeUninit::<libc::termios>::uninit();
        let terminal = terminal.as_mut_ptr() as usize;
        if call(libc::SYS_ioctl, 2, libc::TCGETS as usize, terminal, 0) == 0 {
            // Somebody looks, and wants to be told why nothing is foreseen of a program.
            return None;
        }
        let path = variable(environment, b"PATH=")?;
        if variable(environment, b"LD_TRACE_LOADED_OBJECTS=").is_some() {
            return None;
        }
        if variable(environment, b"OUTRIDER=").is_some() {
            // What it says is `main`'s to understand, which does little else then.
            return None;
        }
        if has_settings(environment) {
            return None;
        }
        let preloaded = variable(environment, b"LD_PRELOAD=");
        let sanitizer = variable(environment, b"ASAN_OPTIONS=");
        let mut variables = 0;
        while !environment.add(variables).read().is_null() {
            variables += 1;
        }
        let named = variable(environment, b"OUTRIDER_PLUGINS=");
        let texts = preloaded.map_or(0, |t| length(t))
            + sanitizer.map_or(0, |t| length(t))
            + named.map_or(0, |t| length(t));
        let paths = (8 + 4 * plugins::MOST) * PATH;
        let size = (variables + 8) * size_of::<Text>() + texts + 8 * DESCRIPTORS + paths + STACK;
        let size = size.next_multiple_of(PAGE as usize);
        let at = mapped::map(size)?;
        let mut arena = Arena {
            at,
            end: at.add(size - STACK),
        };
        let given = arena.at.cast::<Text>();
        for i in 0..=variables {
            given
                .add(i)
                .write_volatile(environment.add(i).read_volatile());
        }
        arena.at = given.add(variables + 5).cast();
        unconfigured(environment, &mut arena).then_some(())?;
        unlocked(status.descriptors, &mut arena)?;
        let runner = raw::getpid();
        can_be_handed_on(&mut arena)?;
        let mut reaper = [0i32];
        let answer = reaper.as_mut_ptr();
        let which = libc::PR_GET_CHILD_SUBREAPER as usize;
        call(libc::SYS_prctl, which, answer as usize, 0, 0);
        if runner == 1
            || answer.read_volatile() != 0
            || variable(environment, b"LISTEN_PID=").is_some()
            || variable(environment, b"WATCHDOG_PID=").is_some()
        {
            // There is more to be handed on, or to be waited for.
            return None;
        }
        let begin = arena.at;
        let entry = match wanted.plugins[0].is_null() && has_musl() {
            true => Entry::Filter,
            false => Entry::Library,
        };
        takes_library(wanted.command.read(), entry, path, &mut arena).then_some(())?;
        arena.at = begin;
        let library = library(&mut arena)?;
        let first = match entry {
            Entry::Filter => filter::path(library, environment, &mut arena)?,
            Entry::Library => library,
        };
        // Behind the first, with a colon before each, as LD_PRELOAD and as OUTRIDER_PLUGINS want them.
        let mut found = [null(); plugins::MOST];
        let mut count = 0;
        for (i, path) in found.iter_mut().enumerate() {
            let file = (&raw const wanted.plugins)
                .cast::<Text>()
                .add(i)
                .read_volatile();
            if !file.is_null() {
                *path = plugins::path(file, &mut arena)?;
                count += 1;
            }
        }
        let found = &found[..count];
        let mut socket = core::mem::MaybeUninit::<[u8; NAME_BYTES]>::uninit();
        let socket = &mut *socket.as_mut_ptr();
        let fd = make_shared(wanted.mode, socket, &mut arena)?;
        let own = arena.at;
        arena.add_text(first);
        for path in found {
            arena.put(b':');
            arena.add_text(*path);
        }
        arena.put(0);
        let name = joined(b"LD_PRELOAD=", own, preloaded, &mut arena);
        set(given, b"LD_PRELOAD=", name);
        let option = preload::SANITIZER_OPTION.as_ptr().cast();
        let name = joined(
            b"ASAN_OPTIONS=",
            sanitizer.unwrap_or(c"".as_ptr().cast()),
            Some(option),
            &mut arena,
        );
        set(given, b"ASAN_OPTIONS=", name);
        if let Some((first, more)) = found.split_first() {
            let own = arena.at;
            arena.add_text(*first);
            for path in more {
                arena.put(b':');
                arena.add_text(*path);
            }
            arena.put(0);
            let name = joined(b"OUTRIDER_PLUGINS=", own, named, &mut arena);
            set(given, b"OUTRIDER_PLUGINS=", name);
        }
        let name = arena.at;
        arena.add(b"OUTRIDER_SHM=");
        arena.bytes(socket.as_ptr(), NAME_BYTES);
        arena.put(b':');
        arena.number(wanted.mode.into());
        arena.put(b':');
        arena.number(config::Files::MIN_SIZE.0);
        arena.add(b":0:");
        arena.number(shm::ENVIRONMENT_LOOKS);
        arena.put(b':');
        arena.number(call(libc::SYS_geteuid, 0, 0, 0, 0) as u64);
        arena.put(b':');
        arena.number(runner.into());
        arena.put(b':');
        let header = BASE.load(Relaxed).cast::<Header>();
        arena.number((*header).secret.load(Relaxed));
        arena.put(0);
        set(given, b"OUTRIDER_SHM=", name);

        let launch = arena.at.add(16 - arena.at as usize % 16).cast::<Launch>();
        arena.at = launch.add(1).cast();
        if arena.at.add(2 * PATH) > arena.end {
            give_up_shared(fd);
            return None;
        }
        let l = &mut *launch;
        l.arguments = wanted.command;
        l.environment = given;
        l.path = path;
        l.runner = runner;
        l.mask = raw::set_signal_mask(u64::MAX);
        let mut waiting = [0u64];
        let signals = waiting.as_mut_ptr();
        call(libc::SYS_rt_sigpending, signals as usize, 8, 0, 0);
        if signals.read_volatile() != 0 {
            // These are for `main` to hand on.
            raw::set_signal_mask(l.mask);
            give_up_shared(fd);
            return None;
        }
        handle(
            libc::SIGCHLD,
            child_changed as *const () as usize,
            &mut l.child_action,
        );
        let none = [0u64; 4];
        for (which, timer) in l.timers.iter_mut().enumerate() {
            let old = timer.as_mut_ptr() as usize;
            call(libc::SYS_setitimer, which, none.as_ptr() as usize, old, 0);
        }
        l.slack = prctl(libc::PR_GET_TIMERSLACK, 0);
        prctl(libc::PR_SET_TIMERSLACK, 0);
        if prctl(libc::PR_GET_TIMERSLACK, 0) == l.slack {
            l.slack = 0;
        }
        let program = outrider_vfork(become_program, launch, at.add(size));
        if program < 0 || FAILED.load(Acquire) != 0 {
            if program > 0 {
                call(libc::SYS_wait4, program as usize, NOTHING, 0, 0);
                let ended = [1u64 << (libc::SIGCHLD - 1)];
                let (ended, now) = (ended.as_ptr() as usize, none.as_ptr() as usize);
                call(libc::SYS_rt_sigtimedwait, ended, NOTHING, now, 8);
            }
            restore(l);
            raw::set_signal_mask(l.mask);
            give_up_shared(fd);
            return None;
        }
        PROGRAM.store(program, Release);
        call(libc::SYS_unshare, libc::CLONE_SYSVSEM as usize, 0, 0, 0);
        if l.slack > 0 {
            prctl(libc::PR_SET_TIMERSLACK, l.slack as usize);
        }
        for signal in 1..=64 {
            if is_passed_on(signal) {
                let mut old = Action {
                    handler: libc::SIG_DFL,
                    flags: 0,
                    restorer: 0,
                    mask: 0,
                };
                handle(signal, pass_on as *const () as usize, &raw mut old);
                let was_ignored = u64::from(old.handler == libc::SIG_IGN);
                IGNORED.fetch_or(was_ignored << (signal - 1), Relaxed);
            }
        }
        call(libc::SYS_close_range, 0, fd as usize - 1, 0, 0);
        call(
            libc::SYS_close_range,
            fd as usize + 1,
            u32::MAX as usize,
            0,
            0,
        );
        call(libc::SYS_chdir, c"/".as_ptr() as usize, 0, 0, 0);
        raw::set_signal_mask(0);
        SHARED.store(fd, Release);
        Some(())
    }
}

/// Timers, timer slack, and what becomes of ended children, as they were.
#[unsafe(link_section = ".text")]
unsafe fn restore(launch: &Launch) {
    // SAFETY: structures that the kernel has written.
    unsafe {
        for (which, timer) in launch.timers.iter().enumerate() {
            if timer[2] != 0 || timer[3] != 0 {
                call(
                    libc::SYS_setitimer,
                    which,
                    timer.as_ptr() as usize,
                    NOTHING,
                    0,
                );
            }
        }
        if launch.slack > 0 {
            prctl(libc::PR_SET_TIMERSLACK, launch.slack as usize);
        }
        let action = &raw const launch.child_action as usize;
        call(
            libc::SYS_rt_sigaction,
            libc::SIGCHLD as usize,
            action,
            NOTHING,
            8,
        );
    }
}

/// The program's process, which shares the runner's memory while the runner waits. What can't be executed at once is tried again by
/// `main`, which says what was wrong.
#[unsafe(link_section = ".text")]
unsafe extern "C" fn become_program(launch: *mut Launch) -> ! {
    // SAFETY: as promised; behind the structure is room for two paths.
    unsafe {
        let l = &*launch;
        restore(l);
        let kill = libc::SIGKILL as usize;
        call(libc::SYS_prctl, libc::PR_SET_PDEATHSIG as usize, kill, 0, 0);
        if call(libc::SYS_getppid, 0, 0, 0, 0) as u32 != l.runner {
            call(libc::SYS_kill, raw::getpid() as usize, kill, 0, 0);
        }
        raw::set_signal_mask(l.mask);
        let name = l.arguments.read();
        let execute = |path: Text| {
            let (arguments, environment) = (l.arguments as usize, l.environment as usize);
            call(libc::SYS_execve, path as usize, arguments, environment, 0) as i32
        };
        let mut slash = false;
        for i in 0..length(name) {
            slash |= byte(name, i) == b'/';
        }
        if slash {
            execute(name);
        } else if length(name) <= 255 {
            let mut directory = l.path;
            loop {
                let mut n = 0;
                while byte(directory, n) != 0 && byte(directory, n) != b':' {
                    n += 1;
                }
                let path = launch.add(1).cast::<u8>();
                let mut arena = Arena {
                    at: path,
                    end: path.add(2 * PATH),
                };
                if n < PATH {
                    arena.bytes(directory, n);
                    if n > 0 {
                        arena.put(b'/');
                    }
                    arena.add_text(name);
                    arena.put(0);
                    let error = -execute(path);
                    if error != libc::ENOENT && error != libc::ENOTDIR && error != libc::EACCES {
                        break;
                    }
                }
                if byte(directory, n) == 0 {
                    break;
                }
                directory = directory.add(n + 1);
            }
        }
        FAILED.store(1, Release);
        call(libc::SYS_exit_group, 127, 0, 0, 0);
        core::hint::unreachable_unchecked()
    }
}

/// Waits for the program, and ends as it ends. Returns when there is something else to do; see `run::wait_for`.
unsafe fn wait() {
    let socket = SHARED.load(Relaxed);
    let program = PROGRAM.load(Relaxed) as usize;
    loop {
        // Whatever comes from here on interrupts the wait.
        raw::set_signal_mask(u64::MAX);
        // siginfo_t: signal, error, code, and from the fifth on process, user, status.
        let mut info = core::mem::MaybeUninit::<[i32; 32]>::uninit();
        let info = info.as_mut_ptr().cast::<i32>();
        let word = |i: usize| info.wrapping_add(i);
        let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: the kernel writes the structure, which has room; what it does not write is not read.
        unsafe {
            info.write_volatile(0);
            let at = info as usize;
            let answer = call(
                libc::SYS_waitid,
                libc::P_PID as usize,
                program,
                at,
                flags as usize,
            );
            let changed = word(0).read_volatile() != 0;
            if answer == 0 && changed && word(2).read_volatile() == libc::CLD_EXITED {
                // What it used counts as used by this process's children.
                call(libc::SYS_wait4, program, NOTHING, 0, NOTHING);
                call(
                    libc::SYS_exit_group,
                    word(6).read_volatile() as usize,
                    0,
                    0,
                    0,
                );
            }
            let mut somebody = 0;
            if answer == 0 && !changed {
                // struct pollfd: the descriptor, and behind it what is waited for and what was found.
                let mut asked = [socket, i32::from(libc::POLLIN)];
                let none = 0u64;
                let (at, mask) = (asked.as_mut_ptr() as usize, &raw const none as usize);
                somebody = raw::syscall6(libc::SYS_ppoll, at, 1, NOTHING, mask, 8, 0);
            }
            raw::set_signal_mask(0);
            if answer != 0 || changed || somebody > 0 {
                return;
            }
        }
    }
}
