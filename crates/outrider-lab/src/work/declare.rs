//! The C interface of declared access (`include/outrider.h`), looked up at run time: under `outrider run` the library
//! is there, and without it a program that needs it says so.

use std::ffi::{CStr, c_int};

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
        // SAFETY: the ranges live during the call, which copies them.
        let taken = unsafe { (self.declare)(fd, ranges.as_ptr(), ranges.len()) };
        if taken < 0 {
            return Err(Wrong::system(
                "outrider_declare",
                std::io::Error::last_os_error(),
            ));
        }
        if taken as usize != ranges.len() {
            let text = format!("took {taken} of {} ranges", ranges.len());
            return Err(Wrong::system("outrider_declare", text));
        }
        Ok(())
    }

    /// The range is about to be read, in a way that is not seen.
    pub fn reading(&self, fd: i32, offset: u64, length: u64) {
        // SAFETY: a call with numbers.
        unsafe { (self.reading)(fd, offset, length) };
    }
}

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
