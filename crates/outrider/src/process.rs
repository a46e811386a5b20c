//! What this process has declared, and the calls back into it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use outrider_core::declare::{Access, Call, Callee, ClientId, NUMBERS, Position, Process};
use outrider_core::view::PageRange;

/// Fills a pulled list: appends at most so many accesses; none ends it.
pub type Next = dyn FnMut(&mut Vec<Access>, usize) + Send;
/// A client's callback.
pub type Callback = dyn Fn(ClientId, &Position) + Send + Sync;

/// A function that may be called, by the number that stands for it.
#[derive(Clone)]
enum Function {
    Next(Arc<Mutex<Next>>),
    Callback(Arc<Callback>),
}

struct Functions {
    last: usize,
    by_number: HashMap<usize, Function>,
}

static FUNCTIONS: OnceLock<Mutex<Functions>> = OnceLock::new();
/// The process that made it, and what it declared: a forked child has neither the fetching thread nor its locks.
static PROCESS: OnceLock<(u32, Process)> = OnceLock::new();

fn functions() -> MutexGuard<'static, Functions> {
    FUNCTIONS
        .get_or_init(|| {
            Mutex::new(Functions {
                last: 0,
                by_number: HashMap::new(),
            })
        })
        .lock()
        .unwrap_or_else(|e| e.into_inner())
}

fn own((pid, process): &'static (u32, Process)) -> Option<&'static Process> {
    (*pid == std::process::id()).then_some(process)
}

/// What this process has declared, if it has.
pub fn existing() -> Option<&'static Process> {
    own(PROCESS.get()?)
}

/// What this process has declared, made if need be. Fails in a forked child of one that has.
pub fn get() -> io::Result<&'static Process> {
    let made = PROCESS.get_or_init(|| {
        let layout = std::alloc::Layout::array::<AtomicU32>(NUMBERS).expect("a constant size");
        // SAFETY: the layout isn't empty. Zeroed memory of it holds valid atomics, and is never freed.
        let numbers = unsafe {
            let at = std::alloc::alloc_zeroed(layout).cast::<AtomicU32>();
            if at.is_null() {
                std::alloc::handle_alloc_error(layout);
            }
            std::slice::from_raw_parts(at, NUMBERS)
        };
        (std::process::id(), Process::new(numbers))
    });
    own(made).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "the process was forked from one that has declared accesses",
        )
    })
}

/// An errno value as an error.
pub fn error<T>(result: Result<T, i32>) -> io::Result<T> {
    result.map_err(io::Error::from_raw_os_error)
}

fn add(function: Function) -> usize {
    let mut functions = functions();
    functions.last += 1;
    let number = functions.last;
    functions.by_number.insert(number, function);
    number
}

/// Has a number stand for a list's source. [`forget`] it when it's no longer wanted.
pub fn add_next(next: Box<Next>) -> Callee {
    let next: Arc<Mutex<Next>> = Arc::new(Mutex::new(next));
    Callee {
        function: 1,
        context: add(Function::Next(next)),
    }
}

/// Has a number stand for a client's callback.
pub fn add_callback(callback: Arc<Callback>) -> Callee {
    Callee {
        function: 1,
        context: add(Function::Callback(callback)),
    }
}

/// The function is not called any more, except where it runs now.
pub fn forget(callee: Callee) {
    let gone = functions().by_number.remove(&callee.context);
    drop(gone); // not with the lock held: it's the user's
}

/// Nobody to call.
pub const NOBODY: Callee = Callee {
    function: 0,
    context: 0,
};

/// The end of a call, also when it panics: the panic goes on into the caller's read.
struct Called {
    process: &'static Process,
    id: ClientId,
    /// A pulled list whose source has panicked is at its end.
    ends: bool,
}

impl Drop for Called {
    fn drop(&mut self) {
        if self.ends {
            self.process.pulled(self.id, &[]);
        }
        self.process.called(self.id);
    }
}

/// Makes a call that is due.
pub fn make(process: &'static Process, call: Call) {
    let (id, callee) = match &call {
        Call::Client { id, callee, .. } | Call::Pull { id, callee } => (*id, *callee),
    };
    let function = functions().by_number.get(&callee.context).cloned();
    let mut called = Called {
        process,
        id,
        ends: true,
    };
    match (call, function) {
        (Call::Client { id, at, .. }, Some(Function::Callback(callback))) => {
            called.ends = false;
            callback(id, &at);
        }
        (Call::Pull { id, .. }, Some(Function::Next(next))) => {
            const ROOM: usize = 256;
            let mut next = next.lock().unwrap_or_else(|e| e.into_inner());
            let mut entries = Vec::with_capacity(ROOM);
            loop {
                entries.clear();
                next(&mut entries, ROOM);
                if !process.pulled(id, &entries) {
                    break;
                }
            }
            called.ends = false;
        }
        // Taken back between the read that asked and here.
        (Call::Client { .. }, _) => called.ends = false,
        (Call::Pull { .. }, _) => {}
    }
}

/// See [`crate::reading`].
pub fn reading(fd: i32, offset: u64, length: u64) {
    let Some((_, process)) = PROCESS.get() else {
        return;
    };
    if process.follows(fd) && existing().is_some() {
        let due = process.reading(fd, offset, length);
        if let Some(call) = due.call {
            make(process, call);
        }
        if let Some(entry) = due.entry {
            let pages = PageRange::from_bytes(offset, length);
            process.await_sweep(entry, fd, pages, |look| look());
        }
    }
}

/// Descriptor `fd` is about to be closed.
pub fn closing(fd: i32) {
    let Some((_, process)) = PROCESS.get() else {
        return;
    };
    if process.follows(fd) && existing().is_some() {
        process.closing(fd);
    }
}
