//! The C interface of declared access (`include/outrider.h`), looked up at run time: under `outrider run` the library
//! is there, and without it a program that needs it says so.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::os::fd::AsRawFd;

use crate::{Result, Wrong};

/// struct outrider_range.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Range {
    /// Bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

type DeclareFn = unsafe extern "C" fn(c_int, *const Range, usize) -> isize;
type ReadingFn = unsafe extern "C" fn(c_int, u64, u64) -> c_int;

/// The functions.
#[derive(Clone, Copy, Debug)]
pub struct Declare {
    declare: DeclareFn,
    reading: ReadingFn,
}

impl Declare {
    /// Finds them among the libraries that this process has loaded.
    pub fn find() -> Result<Self> {
        Ok(Self {
            // SAFETY: these are the types that the header gives the functions of these names.
            declare: unsafe {
                std::mem::transmute::<*mut libc::c_void, DeclareFn>(symbol(c"outrider_declare")?)
            },
            // SAFETY: the same.
            reading: unsafe {
                std::mem::transmute::<*mut libc::c_void, ReadingFn>(symbol(c"outrider_reading")?)
            },
        })
    }

    /// `ranges` of the file will be read in this order.
    pub fn ranges(&self, fd: i32, ranges: &[Range]) -> Result {
        let taken = self.take(fd, ranges)?;
        if taken != ranges.len() {
            let text = format!("took {taken} of {} ranges", ranges.len());
            return Err(Wrong::system("outrider_declare", text));
        }
        Ok(())
    }

    /// The same; how many were taken, which may be less.
    fn take(&self, fd: i32, ranges: &[Range]) -> Result<usize> {
        // SAFETY: the ranges live during the call, which copies them.
        let taken = unsafe { (self.declare)(fd, ranges.as_ptr(), ranges.len()) };
        usize::try_from(taken)
            .map_err(|_| Wrong::system("outrider_declare", std::io::Error::last_os_error()))
    }

    /// The range is about to be read, in a way that is not seen.
    pub fn reading(&self, fd: i32, offset: u64, length: u64) {
        // SAFETY: a call with numbers.
        unsafe { (self.reading)(fd, offset, length) };
    }
}

/// A list of what will be read of a file, told in parts as long as Outrider takes.
pub struct List<'a> {
    call: Option<Declare>,
    file: &'a File,
    ranges: Vec<Range>,
    /// How many were told.
    told: usize,
}

impl<'a> List<'a> {
    /// Tells `ranges` of `file`, in the order in which they will be read, if that is wanted.
    pub fn new(
        call: Option<Declare>,
        file: &'a File,
        ranges: impl FnOnce() -> Vec<Range>,
    ) -> Result<Self> {
        let ranges = call.map(|_| ranges()).unwrap_or_default();
        let mut list = Self {
            call,
            file,
            ranges,
            told: 0,
        };
        list.tell()?;
        Ok(list)
    }

    /// `done` ranges were read: tells more when all that Outrider took was.
    pub fn read(&mut self, done: usize) -> Result {
        if done == self.told && done < self.ranges.len() {
            self.tell()?;
        }
        Ok(())
    }

    /// How many ranges were told.
    pub fn told(&self) -> usize {
        self.told
    }

    fn tell(&mut self) -> Result {
        let rest = &self.ranges[self.told..];
        if let Some(call) = &self.call
            && !rest.is_empty()
        {
            self.told += call.take(self.file.as_raw_fd(), rest)?;
        }
        Ok(())
    }
}

/// Advice as a program gives it that knows what it will read: this range soon (posix_fadvise).
pub fn hint(file: &File, range: Range) {
    // SAFETY: a call with numbers.
    unsafe {
        libc::posix_fadvise(
            file.as_raw_fd(),
            range.offset as i64,
            range.length as i64,
            libc::POSIX_FADV_WILLNEED,
        )
    };
}

/// How many reads ahead a hint is given: what a queue of the deepest modelled device holds.
pub const AHEAD: usize = 64;

fn symbol(name: &CStr) -> Result<*mut libc::c_void> {
    // SAFETY: the name is a C string.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if at.is_null() {
        return Err(Wrong::usage(format!(
            "--declare: {} is not there; run this under `outrider run`, with a library that has it",
            name.to_string_lossy()
        )));
    }
    Ok(at)
}
