//! The C interface of foreaction graphs (`include/outrider_graph.h`), over `outrider-graph`.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;

use libc::{iovec, mode_t, off_t, size_t, ssize_t};
use outrider_graph::{Args, Builder, Call, Kind, Node, open_creates};

use crate::descriptors;
use crate::graphs::made::{FLAGS, generator, with_flags};
use crate::graphs::scopes::{self, CScope};
use crate::graphs::structures::{CGraph, Foreseen, NextStub};
use crate::graphs::{total, turns};

type ArgsStub = unsafe extern "C" fn(*mut c_void, *const u64, size_t, *mut Foreseen) -> c_int;
type ChoiceStub = unsafe extern "C" fn(*mut c_void, *const u64, size_t) -> c_int;
type HarvestStub = unsafe extern "C" fn(*mut c_void, *const u64, size_t, ssize_t);

const EDGE_WEAK: c_uint = 1;
const EDGE_BACK: c_uint = 2;
const NODE_LINK: c_uint = 1;
const NODE_HELD: c_uint = 2;

/// struct outrider_builder.
pub struct CBuilder {
    inner: Builder<*mut c_void>,
    nodes: Vec<Node>,
}

impl CBuilder {
    /// The node of a number.
    fn node(&self, i: c_int) -> Option<Node> {
        usize::try_from(i)
            .ok()
            .and_then(|i| self.nodes.get(i))
            .copied()
    }
}

fn fail<T>(errno: c_int, r: T) -> T {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    r
}

/// See the header. The functions below are unsafe as C is: pointers are what the header says.
#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_graph_generator(
    name: *const c_char,
    next: Option<NextStub>,
    flags: c_uint,
) -> *mut CGraph {
    let Some(next) = next.filter(|_| !name.is_null() && flags & !FLAGS == 0) else {
        return fail(libc::EINVAL, null_mut());
    };
    // SAFETY: not null, and a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    generator(&name, next, flags)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_builder_new(name: *const c_char) -> *mut CBuilder {
    if name.is_null() {
        return fail(libc::EINVAL, null_mut());
    }
    // SAFETY: a C string.
    let inner = Builder::new(&unsafe { CStr::from_ptr(name) }.to_string_lossy());
    let nodes = vec![inner.start(), inner.end()];
    Box::into_raw(Box::new(CBuilder { inner, nodes }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_builder_call(
    b: *mut CBuilder,
    name: *const c_char,
    kind: c_uint,
    args: Option<ArgsStub>,
) -> c_int {
    // SAFETY: null or a builder.
    let b = unsafe { b.as_mut() };
    let (Some(b), Some(args), Some(kind)) = (b, args, Kind::ALL.get(kind as usize)) else {
        return fail(libc::EINVAL, -1);
    };
    if name.is_null() {
        return fail(libc::EINVAL, -1);
    }
    // SAFETY: a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let node = b
        .inner
        .call_or_broken(&name, *kind, move |context: &*mut c_void, epochs| {
            let mut op = Foreseen::new();
            op.kind = *kind as u32;
            // SAFETY: the stub, with the context that it is meant for; what it gives lives as long as the header says.
            unsafe {
                if args(*context, epochs.as_ptr(), epochs.len(), &raw mut op) == 0 {
                    return Ok(None);
                }
                op.op().map(Some)
            }
        });
    b.nodes.push(node);
    b.nodes.len() as c_int - 1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_builder_branch(
    b: *mut CBuilder,
    name: *const c_char,
    choice: Option<ChoiceStub>,
) -> c_int {
    // SAFETY: null or a builder.
    let b = unsafe { b.as_mut() };
    let (Some(b), Some(choice), false) = (b, choice, name.is_null()) else {
        return fail(libc::EINVAL, -1);
    };
    // SAFETY: a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let node = b.inner.branch(&name, move |context: &*mut c_void, epochs| {
        // SAFETY: the stub, with the context that it is meant for.
        let said = unsafe { choice(*context, epochs.as_ptr(), epochs.len()) };
        usize::try_from(said).ok()
    });
    b.nodes.push(node);
    b.nodes.len() as c_int - 1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_builder_edge(
    b: *mut CBuilder,
    from: c_int,
    to: c_int,
    flags: c_uint,
) -> c_int {
    // SAFETY: null or a builder.
    let Some(b) = (unsafe { b.as_mut() }) else {
        return fail(libc::EINVAL, -1);
    };
    let (Some(from), Some(to)) = (b.node(from), b.node(to)) else {
        return fail(libc::EINVAL, -1);
    };
    match flags {
        0 => b.inner.edge(from, to),
        EDGE_WEAK => b.inner.weak_edge(from, to),
        EDGE_BACK => b.inner.back_edge(from, to),
        f if f == EDGE_WEAK | EDGE_BACK => b.inner.weak_back_edge(from, to),
        _ => return fail(libc::EINVAL, -1),
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_builder_mark(b: *mut CBuilder, node: c_int, marks: c_uint) -> c_int {
    // SAFETY: null or a builder.
    let Some(b) = (unsafe { b.as_mut() }) else {
        return fail(libc::EINVAL, -1);
    };
    let unknown = marks & !(NODE_LINK | NODE_HELD);
    let Some(node) = b.node(node).filter(|_| unknown == 0) else {
        return fail(libc::EINVAL, -1);
    };
    if marks & NODE_LINK != 0 {
        b.inner.link(node);
    }
    if marks & NODE_HELD != 0 {
        b.inner.held(node);
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_builder_harvest(
    b: *mut CBuilder,
    node: c_int,
    then: Option<HarvestStub>,
) -> c_int {
    // SAFETY: null or a builder.
    let (Some(b), Some(then)) = (unsafe { b.as_mut() }, then) else {
        return fail(libc::EINVAL, -1);
    };
    let Some(node) = b.node(node) else {
        return fail(libc::EINVAL, -1);
    };
    b.inner
        .harvest(node, move |context: &*mut c_void, epochs, result| {
            // SAFETY: the stub, with the context that it is meant for.
            unsafe { then(*context, epochs.as_ptr(), epochs.len(), result) }
        });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_builder_build(
    b: *mut CBuilder,
    flags: c_uint,
    why: *mut c_char,
    room: size_t,
) -> *mut CGraph {
    if b.is_null() {
        return fail(libc::EINVAL, null_mut());
    }
    // SAFETY: made by outrider_builder_new, and given up by the caller.
    let b = unsafe { Box::from_raw(b) };
    let built = if flags & !FLAGS == 0 {
        b.inner.build().map_err(|e| e.to_string())
    } else {
        Err(format!("unknown flags: {:#x}", flags & !FLAGS))
    };
    match built {
        Ok(graph) => with_flags(graph, flags),
        Err(e) => {
            // SAFETY: `room` bytes, as the header says.
            unsafe { put(&e, why, room) };
            fail(libc::EINVAL, null_mut())
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_graph_free(graph: *mut CGraph) {
    if !graph.is_null() {
        // SAFETY: made by `with_flags`, and given up by the caller.
        drop(unsafe { Box::from_raw(graph) });
    }
}

/// Writes text, cut to `room` bytes with the final zero; the length of the whole.
///
/// # Safety
/// `to` is null or has `room` bytes.
unsafe fn put(text: &str, to: *mut c_char, room: size_t) -> size_t {
    if !to.is_null() && room > 0 {
        let n = text.len().min(room - 1);
        // SAFETY: as promised.
        unsafe {
            core::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), n);
            *to.add(n) = 0;
        }
    }
    text.len()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_graph_dot(
    graph: *const CGraph,
    to: *mut c_char,
    room: size_t,
) -> size_t {
    // SAFETY: null or a graph; `room` bytes.
    unsafe { graph.as_ref().map_or(0, |g| put(&g.0.dot(), to, room)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_graph_report(
    graph: *const CGraph,
    to: *mut c_char,
    room: size_t,
) -> size_t {
    // SAFETY: null or a graph.
    let Some(graph) = (unsafe { graph.as_ref() }) else {
        return 0;
    };
    let mut text = format!("{}: {}\n", graph.0.name(), graph.0.counts());
    for problem in graph.0.problems() {
        text += &problem;
        text.push('\n');
    }
    // SAFETY: `room` bytes.
    unsafe { put(&text, to, room) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_enter(graph: *const CGraph, context: *mut c_void) -> *mut CScope {
    // SAFETY: null or a graph, which the caller keeps until it has left.
    let Some(graph) = (unsafe { graph.as_ref::<'static>() }) else {
        return fail(libc::EINVAL, null_mut());
    };
    turns::enter(&graph.0, context)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_bind(scope: *mut CScope, fd: c_int) -> c_int {
    // SAFETY: null or the caller's scope.
    if unsafe { scopes::bind(scope, fd) } {
        0
    } else {
        fail(libc::EINVAL, -1)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_leave(scope: *mut CScope) {
    // SAFETY: null or made by outrider_enter, and given up by the caller.
    unsafe { scopes::leave(scope) };
}

/// Makes a call through a scope, or without one where it is null.
///
/// # Safety
/// The scope is null or one of this thread; the call's pointers are what the system call wants.
unsafe fn make(scope: *mut CScope, call: &Call) -> isize {
    // SAFETY: as promised.
    let r = unsafe { turns::make(scope, call, descriptors::forget) };
    if r < 0 { fail(-r as c_int, -1) } else { r }
}

/// The calls: arguments as in C, and how they are put into [`Args`] and [`Call`].
macro_rules! calls {
    ($($name:ident ($($a:ident: $t:ty),*) -> $r:ty = $kind:ident $fd:ident { $($f:ident: $e:expr),* } { $($g:ident: $h:expr),* };)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(scope: *mut CScope, $($a: $t),*) -> $r {
            #[allow(clippy::needless_update)]
            let args = Args { $($f: $e,)* ..Args::new(Kind::$kind, $fd) };
            #[allow(clippy::needless_update)]
            let call = Call { $($g: $h,)* ..Call::new(args) };
            // SAFETY: the caller's scope and pointers.
            unsafe { make(scope, &call) as $r }
        }
    )*};
}

calls! {
    outrider_openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int
        = Openat dir { flags: flags, extra: if open_creates(flags) { mode } else { 0 } } { path: path };
    outrider_close(fd: c_int) -> c_int = Close fd {} {};
    outrider_read(fd: c_int, buffer: *mut c_void, n: size_t) -> ssize_t = Read fd { len: n } { buffer: buffer };
    outrider_pread(fd: c_int, buffer: *mut c_void, n: size_t, offset: off_t) -> ssize_t
        = Pread fd { len: n, offset: offset } { buffer: buffer };
    outrider_readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t
        // SAFETY: the caller's array.
        = Read fd { len: unsafe { total(parts, n) } } { vectored: true, vectors: parts, vector_count: n };
    outrider_preadv(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t
        // SAFETY: the caller's array.
        = Pread fd { len: unsafe { total(parts, n) }, offset: offset } { vectored: true, vectors: parts, vector_count: n };
    outrider_write(fd: c_int, bytes: *const c_void, n: size_t) -> ssize_t = Write fd { len: n } { buffer: bytes.cast_mut() };
    outrider_pwrite(fd: c_int, bytes: *const c_void, n: size_t, offset: off_t) -> ssize_t
        = Pwrite fd { len: n, offset: offset } { buffer: bytes.cast_mut() };
    outrider_lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = Lseek fd { offset: offset, flags: whence } {};
    outrider_fstat(fd: c_int, st: *mut c_void) -> c_int = Fstat fd {} { buffer: st };
    outrider_fstatat(dir: c_int, path: *const c_char, st: *mut c_void, flags: c_int) -> c_int
        = Fstatat dir { flags: flags } { path: path, buffer: st };
    outrider_statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, st: *mut c_void) -> c_int
        = Statx dir { flags: flags, extra: mask } { path: path, buffer: st };
    outrider_getdents64(fd: c_int, entries: *mut c_void, n: size_t) -> ssize_t = Getdents fd { len: n } { buffer: entries };
    outrider_fsync(fd: c_int) -> c_int = Fsync fd {} {};
    outrider_fdatasync(fd: c_int) -> c_int = Fsync fd { flags: 1 } {};
    outrider_unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int = Unlinkat dir { flags: flags } { path: path };
    outrider_renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int
        = Renameat from_dir { fd2: to_dir } { path: from, second_path: to };
    outrider_mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int = Mkdirat dir { extra: mode } { path: path };
}
