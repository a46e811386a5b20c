//! Declared access (`include/outrider.h`) where Outrider is there: a program that was started without it runs as it is.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::AsRawFd;

/// `struct outrider_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

type Declare = unsafe extern "C" fn(c_int, *const Range, usize) -> isize;

/// A list of what will be read of a file, told in parts as long as Outrider takes.
pub struct List<'a> {
    call: Option<Declare>,
    file: &'a File,
    ranges: Vec<Range>,
    /// How many were told.
    told: usize,
}

impl<'a> List<'a> {
    /// Tells `ranges` of `file`, in the order in which they will be read, if `wanted` and Outrider is there.
    pub fn new(wanted: bool, file: &'a File, ranges: impl FnOnce() -> Vec<Range>) -> Self {
        let call = if wanted { function() } else { None };
        let ranges = if call.is_some() { ranges() } else { Vec::new() };
        let mut list = Self {
            call,
            file,
            ranges,
            told: 0,
        };
        list.tell();
        list
    }

    /// `done` ranges were read: tells more when all that Outrider took was.
    pub fn read(&mut self, done: usize) {
        if done == self.told && done < self.ranges.len() {
            self.tell();
        }
    }

    /// How many ranges were told: 0 without Outrider.
    pub fn told(&self) -> usize {
        self.told
    }

    fn tell(&mut self) {
        let Some(call) = self.call else { return };
        let rest = &self.ranges[self.told..];
        if rest.is_empty() {
            return;
        }
        // SAFETY: the function's contract is in outrider.h; `rest` lives through the call, which copies it.
        let taken = unsafe { call(self.file.as_raw_fd(), rest.as_ptr(), rest.len()) };
        self.told += usize::try_from(taken).unwrap_or(0);
    }
}

fn function() -> Option<Declare> {
    // SAFETY: the name is a C string; RTLD_DEFAULT searches what is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"outrider_declare".as_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the symbol of this name has this type (outrider.h).
    Some(unsafe { std::mem::transmute::<*mut libc::c_void, Declare>(found) })
}

/// Hints as a program gives them that knows what it will read: posix_fadvise(WILLNEED), [`AHEAD`] reads ahead.
pub fn hint(file: &File, range: Range) {
    // SAFETY: no memory is involved.
    unsafe {
        libc::posix_fadvise(
            file.as_raw_fd(),
            range.offset as i64,
            range.length as i64,
            libc::POSIX_FADV_WILLNEED,
        )
    };
}

/// How many reads ahead a hint is given: what a queue of the fastest modelled device holds.
pub const AHEAD: usize = 64;
