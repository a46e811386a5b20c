//! A function's calls, made through its graph.

use std::ffi::CStr;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use crate::buffers::Block;
use crate::call::{Args, Call, Kind, open_creates};
use crate::context::Start;
use crate::graph::{Bound, Graph};
use crate::instance::{Instance, Into as Where, StandBy, stand_by};

/// One run of a function. The function makes its calls through this, and gets exactly what the calls alone would have given; what the
/// graph foresaw is already there. Dropping it, also in a panic, cancels what was not needed.
///
/// A scope within another scope of the same thread (a recursion, another graph) passes its calls through. So does a scope in a
/// forked child, and one whose graph was switched off.
///
/// Descriptors that the graph speaks of are opened and closed through the scope, or outlive it. What the graph says is ready must
/// not be changed by others before the function has asked for it.
pub struct Scope<'a, C: ?Sized> {
    graph: &'a Graph<C>,
    context: &'a C,
    instance: Instance<'a>,
    /// The ring belongs to the thread.
    thread: PhantomData<*mut ()>,
}

/// Where a graph foresees a call.
pub struct Place(usize);

impl<C: ?Sized> Graph<C> {
    /// The function begins, with this context for the graph's stubs. Where the graph has calls that threads make ahead, the first of them starts one.
    pub fn enter<'a>(&'a self, context: &'a C) -> Scope<'a, C> {
        self.begin(context, Start::WhenNeeded)
    }

    /// The same for a scope whose calls must start no thread, since they may be made within any other: it is started now if it may be needed.
    pub fn enter_prepared<'a>(&'a self, context: &'a C) -> Scope<'a, C> {
        self.begin(context, Start::Now)
    }

    /// The same, by system calls alone: within a call that a signal handler may make. While [`Graph::stand_by`]'s value is kept; calls pass
    /// through otherwise.
    pub fn enter_quietly<'a>(&'a self, context: &'a C) -> Scope<'a, C> {
        self.begin(context, Start::Never)
    }

    /// Prepares the calling thread for [`Graph::enter_quietly`]. `None`: nothing will be looked ahead, or there is no memory.
    pub fn stand_by(&self) -> Option<StandBy> {
        stand_by(&self.options)
    }

    fn begin<'a>(&'a self, context: &'a C, start: Start) -> Scope<'a, C> {
        Scope {
            graph: self,
            context,
            instance: Instance::new(&self.shared, self.options, self.pure, start),
            thread: PhantomData,
        }
    }
}

#[inline(always)]
fn result(r: isize) -> io::Result<usize> {
    if r < 0 {
        Err(io::Error::from_raw_os_error(-r as i32))
    } else {
        Ok(r as usize)
    }
}

/// Makes a read into memory of its own, where there is no buffer; `told` is given the result.
#[cold]
fn filled(call: &Call, told: impl FnOnce(isize)) -> io::Result<Block> {
    Block::filled(call.args.len, |bytes| {
        let mut call = *call;
        call.buffer = bytes.as_mut_ptr().cast();
        // SAFETY: there are `len` bytes.
        let r = unsafe { call.make() };
        told(r);
        result(r)
    })
}

impl<C: ?Sized> Scope<'_, C> {
    /// Whether calls pass straight through, because looking ahead is off or rests.
    pub fn is_passing(&self) -> bool {
        self.instance.is_passing()
    }

    /// Takes in what has come back; whether nothing is under way any more. While that is not so, ending the scope waits.
    pub fn is_idle(&mut self) -> bool {
        self.instance.is_idle()
    }

    /// Whether its graph is switched off.
    pub fn is_off(&self) -> bool {
        self.graph.is_off()
    }

    /// Makes a call that is given in its general form. A result of zero or more, or a negated errno.
    ///
    /// # Safety
    /// The pointers are what the system call wants, and memory that it writes to is valid.
    #[inline(always)]
    pub unsafe fn make(&mut self, call: &Call) -> isize {
        if self.instance.passes(call.args.kind) {
            // SAFETY: as promised by the caller.
            unsafe { call.make() }
        } else {
            // SAFETY: as promised by the caller.
            unsafe { self.make_followed(call) }
        }
    }

    /// # Safety
    /// As [`Scope::make`].
    #[inline(never)]
    unsafe fn make_followed(&mut self, call: &Call) -> isize {
        let source = Bound {
            graph: self.graph,
            context: self.context,
        };
        // SAFETY: as promised by the caller.
        unsafe { self.instance.make(&source, call) }
    }

    /// Where the graph foresees a call that the function is about to make by itself, if it does; [`Scope::begin`] is to follow, or
    /// another call.
    pub fn foresees(&mut self, call: &Call) -> Option<Place> {
        let source = Bound {
            graph: self.graph,
            context: self.context,
        };
        self.instance.foresees(&source, call).map(Place)
    }

    /// The function makes the call that [`Scope::foresees`] found: its result, or `None` if it is to be made and [`Scope::made`] told.
    ///
    /// # Safety
    /// As [`Scope::make`].
    pub unsafe fn begin(&mut self, call: &Call, place: Place) -> Option<isize> {
        let source = Bound {
            graph: self.graph,
            context: self.context,
        };
        // SAFETY: as promised by the caller.
        unsafe { self.instance.begin(&source, call, place.0, Where::Memory) }
    }

    /// The function is about to make a call of its own that the graph does not foresee; [`Scope::made`] is to follow.
    pub fn surprise(&mut self, call: &Call) {
        self.instance.surprise(call);
    }

    /// The call was made, with this result or negated errno.
    pub fn made(&mut self, result: isize) {
        let source = Bound {
            graph: self.graph,
            context: self.context,
        };
        self.instance.after(&source, result);
    }

    /// The thread is about to make a call that is none of this scope's.
    pub fn notice(&mut self, call: &Call) {
        self.instance.notice(call);
    }

    /// The function is about to walk through directory `fd` ([`Graph::walk`]).
    pub fn walk(&mut self, fd: i32) {
        self.instance.walk(fd);
    }

    /// The thread is about to change who makes its calls, or with which limits (`names_only`: only where its paths lead). Nothing more is made
    /// ahead, and what is done is handed out if it had effects. Does not allocate or free.
    pub fn unsettle(&mut self, names_only: bool) {
        self.instance.unsettle(names_only);
    }

    /// The thread is about to close descriptors `first..=last`. Does not allocate or free.
    pub fn closing_range(&mut self, first: u32, last: u32) {
        self.instance.closing_range(first, last);
    }

    /// Makes nothing more ahead and asks the graph for nothing any more; effects that were made are still handed out. Does not allocate or free.
    pub fn retire(&mut self) {
        self.instance.retire();
    }

    /// The process is about to be forked by this thread. If the graph has effects, nothing more is made ahead: of those that are left, either process
    /// may make the next.
    pub fn forking(&mut self) {
        self.instance.forking();
    }

    /// After [`Scope::forking`], in the child: has effects handed out here that were made ahead. `false`: there are none, and calls pass through.
    pub fn forked(&mut self) -> bool {
        self.instance.forked()
    }

    /// Cancels what is not needed and asks the graph for nothing any more. Does not allocate or free.
    pub fn halt(&mut self) {
        self.instance.halt();
    }

    #[inline(always)]
    fn with(&mut self, args: Args, fill: impl FnOnce(&mut Call)) -> io::Result<usize> {
        let mut call = Call::new(args);
        fill(&mut call);
        // SAFETY: every caller below passes references that outlive the call, of the length in `args`.
        result(unsafe { self.make(&call) })
    }

    #[inline(always)]
    fn block(&mut self, args: Args) -> io::Result<Block> {
        let mut call = Call::new(args);
        if !self.instance.passes(args.kind) {
            return self.block_followed(call);
        }
        let Some(buffer) = self.instance.buffer(args.len) else {
            return filled(&call, |_| ());
        };
        call.buffer = buffer.at().cast();
        // SAFETY: the buffer holds `len` bytes.
        let n = result(unsafe { call.make() })?;
        Ok(Block::new(buffer, n))
    }

    #[inline(never)]
    fn block_followed(&mut self, mut call: Call) -> io::Result<Block> {
        let source = Bound {
            graph: self.graph,
            context: self.context,
        };
        // SAFETY: nothing is written to the call's memory with `Where::Block`.
        if let Some(r) = unsafe { self.instance.before(&source, &call, Where::Block) } {
            let n = result(r)?;
            return Ok(self.instance.block(n).unwrap_or_else(Block::empty));
        }
        let Some(buffer) = self.instance.buffer(call.args.len) else {
            return filled(&call, |r| self.instance.passed(&source, r));
        };
        call.buffer = buffer.at().cast();
        // SAFETY: the buffer holds `len` bytes.
        let r = unsafe { call.make() };
        self.instance.passed(&source, r);
        result(r).map(|n| Block::new(buffer, n))
    }

    /// openat(2), with `dir` a descriptor or `AT_FDCWD`.
    pub fn openat(
        &mut self,
        dir: &impl AsRawFd,
        path: &CStr,
        flags: i32,
        mode: u32,
    ) -> io::Result<OwnedFd> {
        let args = Args {
            flags,
            extra: if open_creates(flags) { mode } else { 0 },
            ..Args::new(Kind::Openat, dir.as_raw_fd())
        };
        let fd = self.with(args, |c| c.path = path.as_ptr())?;
        // SAFETY: the kernel has just given it to us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    /// close(2).
    pub fn close(&mut self, fd: impl IntoRawFd) -> io::Result<()> {
        self.with(Args::new(Kind::Close, fd.into_raw_fd()), |_| {})
            .map(drop)
    }

    /// read(2).
    pub fn read(&mut self, fd: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<usize> {
        let args = Args {
            len: buffer.len(),
            ..Args::new(Kind::Read, fd.as_raw_fd())
        };
        self.with(args, |c| c.buffer = buffer.as_mut_ptr().cast())
    }

    /// read(2) of up to `len` bytes into memory of the library: nothing is copied.
    pub fn read_block(&mut self, fd: &impl AsRawFd, len: usize) -> io::Result<Block> {
        self.block(Args {
            len,
            ..Args::new(Kind::Read, fd.as_raw_fd())
        })
    }

    /// pread(2).
    pub fn pread(
        &mut self,
        fd: &impl AsRawFd,
        buffer: &mut [u8],
        offset: i64,
    ) -> io::Result<usize> {
        let args = Args {
            len: buffer.len(),
            offset,
            ..Args::new(Kind::Pread, fd.as_raw_fd())
        };
        self.with(args, |c| c.buffer = buffer.as_mut_ptr().cast())
    }

    /// pread(2) of up to `len` bytes into memory of the library: nothing is copied.
    pub fn pread_block(&mut self, fd: &impl AsRawFd, len: usize, offset: i64) -> io::Result<Block> {
        self.block(Args {
            len,
            offset,
            ..Args::new(Kind::Pread, fd.as_raw_fd())
        })
    }

    fn vectored(&mut self, mut args: Args, parts: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
        args.len = parts.iter().map(|p| p.len()).sum();
        self.with(args, |c| {
            // IoSliceMut has the layout of iovec.
            c.vectored = true;
            c.vectors = parts.as_ptr().cast();
            c.vector_count = parts.len() as i32;
        })
    }

    /// readv(2).
    pub fn readv(
        &mut self,
        fd: &impl AsRawFd,
        parts: &mut [io::IoSliceMut<'_>],
    ) -> io::Result<usize> {
        self.vectored(Args::new(Kind::Read, fd.as_raw_fd()), parts)
    }

    /// preadv(2).
    pub fn preadv(
        &mut self,
        fd: &impl AsRawFd,
        parts: &mut [io::IoSliceMut<'_>],
        offset: i64,
    ) -> io::Result<usize> {
        self.vectored(
            Args {
                offset,
                ..Args::new(Kind::Pread, fd.as_raw_fd())
            },
            parts,
        )
    }

    /// write(2). A [`Block`] that a linked read gave is written as it is.
    pub fn write(&mut self, fd: &impl AsRawFd, bytes: &[u8]) -> io::Result<usize> {
        let args = Args {
            len: bytes.len(),
            ..Args::new(Kind::Write, fd.as_raw_fd())
        };
        self.with(args, |c| c.buffer = bytes.as_ptr().cast_mut().cast())
    }

    /// pwrite(2).
    pub fn pwrite(&mut self, fd: &impl AsRawFd, bytes: &[u8], offset: i64) -> io::Result<usize> {
        let args = Args {
            len: bytes.len(),
            offset,
            ..Args::new(Kind::Pwrite, fd.as_raw_fd())
        };
        self.with(args, |c| c.buffer = bytes.as_ptr().cast_mut().cast())
    }

    /// lseek(2).
    pub fn lseek(&mut self, fd: &impl AsRawFd, offset: i64, whence: i32) -> io::Result<u64> {
        let args = Args {
            offset,
            flags: whence,
            ..Args::new(Kind::Lseek, fd.as_raw_fd())
        };
        self.with(args, |_| {}).map(|r| r as u64)
    }

    fn stat(&mut self, args: Args, path: Option<&CStr>) -> io::Result<libc::stat> {
        // SAFETY: plain data for which zero is a valid value.
        let mut st: libc::stat = unsafe { std::mem::zeroed() };
        self.with(args, |c| {
            c.path = path.map_or(std::ptr::null(), CStr::as_ptr);
            c.buffer = (&raw mut st).cast();
        })?;
        Ok(st)
    }

    /// fstat(2).
    pub fn fstat(&mut self, fd: &impl AsRawFd) -> io::Result<libc::stat> {
        self.stat(Args::new(Kind::Fstat, fd.as_raw_fd()), None)
    }

    /// fstatat(2).
    pub fn fstatat(
        &mut self,
        dir: &impl AsRawFd,
        path: &CStr,
        flags: i32,
    ) -> io::Result<libc::stat> {
        let args = Args {
            flags,
            ..Args::new(Kind::Fstatat, dir.as_raw_fd())
        };
        self.stat(args, Some(path))
    }

    /// statx(2).
    pub fn statx(
        &mut self,
        dir: &impl AsRawFd,
        path: &CStr,
        flags: i32,
        mask: u32,
    ) -> io::Result<libc::statx> {
        // SAFETY: plain data for which zero is a valid value.
        let mut stx: libc::statx = unsafe { std::mem::zeroed() };
        let args = Args {
            flags,
            extra: mask,
            ..Args::new(Kind::Statx, dir.as_raw_fd())
        };
        self.with(args, |c| {
            c.path = path.as_ptr();
            c.buffer = (&raw mut stx).cast();
        })?;
        Ok(stx)
    }

    /// getdents64(2): fills `buffer` with entries, and says how many bytes.
    pub fn getdents(&mut self, fd: &impl AsRawFd, buffer: &mut [u8]) -> io::Result<usize> {
        let args = Args {
            len: buffer.len(),
            ..Args::new(Kind::Getdents, fd.as_raw_fd())
        };
        self.with(args, |c| c.buffer = buffer.as_mut_ptr().cast())
    }

    /// fsync(2).
    pub fn fsync(&mut self, fd: &impl AsRawFd) -> io::Result<()> {
        self.with(Args::new(Kind::Fsync, fd.as_raw_fd()), |_| {})
            .map(drop)
    }

    /// fdatasync(2).
    pub fn fdatasync(&mut self, fd: &impl AsRawFd) -> io::Result<()> {
        let args = Args {
            flags: 1,
            ..Args::new(Kind::Fsync, fd.as_raw_fd())
        };
        self.with(args, |_| {}).map(drop)
    }

    /// unlinkat(2).
    pub fn unlinkat(&mut self, dir: &impl AsRawFd, path: &CStr, flags: i32) -> io::Result<()> {
        let args = Args {
            flags,
            ..Args::new(Kind::Unlinkat, dir.as_raw_fd())
        };
        self.with(args, |c| c.path = path.as_ptr()).map(drop)
    }

    /// renameat(2).
    pub fn renameat(
        &mut self,
        from_dir: &impl AsRawFd,
        from: &CStr,
        to_dir: &impl AsRawFd,
        to: &CStr,
    ) -> io::Result<()> {
        let args = Args {
            fd2: to_dir.as_raw_fd(),
            ..Args::new(Kind::Renameat, from_dir.as_raw_fd())
        };
        self.with(args, |c| {
            c.path = from.as_ptr();
            c.second_path = to.as_ptr();
        })
        .map(drop)
    }

    /// mkdirat(2).
    pub fn mkdirat(&mut self, dir: &impl AsRawFd, path: &CStr, mode: u32) -> io::Result<()> {
        let args = Args {
            extra: mode,
            ..Args::new(Kind::Mkdirat, dir.as_raw_fd())
        };
        self.with(args, |c| c.path = path.as_ptr()).map(drop)
    }
}

impl<C: ?Sized> Drop for Scope<'_, C> {
    fn drop(&mut self) {
        self.instance.end();
    }
}
