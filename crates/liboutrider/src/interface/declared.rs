//! Declared access (`include/outrider.h`).

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use libc::{size_t, ssize_t};
use outrider_core::declare::{Access, Callee, ClientId, Position, Process};
use outrider_sys::raw;

use crate::declared::{alone, current, is_guest, make, process, reading_at, report};
use crate::descriptors;

/// `struct outrider_range`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

type Next = unsafe extern "C" fn(*mut c_void, *mut Access, size_t) -> size_t;
type Callback = unsafe extern "C" fn(*mut c_void, *mut c_void, *const Position);

fn fail(errno: c_int) -> c_int {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = errno };
    -1
}

fn answer(result: Result<usize, c_int>) -> ssize_t {
    match result {
        Ok(n) => n as ssize_t,
        Err(e) => fail(e) as ssize_t,
    }
}

fn done(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => fail(e),
    }
}

fn client(handle: *mut c_void) -> Result<(&'static Process, ClientId), c_int> {
    let process = current().filter(|_| !is_guest()).ok_or(libc::EINVAL)?;
    let id = ClientId::from_bits(handle as usize).ok_or(libc::EINVAL)?;
    Ok((process, id))
}

/// See outrider.h.
///
/// # Safety
/// `ranges` points to `n` ranges.
#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_declare(fd: c_int, ranges: *const c_void, n: size_t) -> ssize_t {
    if ranges.is_null() && n > 0 {
        return answer(Err(libc::EINVAL));
    }
    let given = if n == 0 {
        &[]
    } else {
        // SAFETY: as the caller promises.
        unsafe { core::slice::from_raw_parts(ranges.cast::<Range>(), n) }
    };
    let Some(process) = process() else {
        return answer(Err(libc::ENOMEM));
    };
    let result = alone(|| {
        process.not_in_callback()?;
        report(process);
        process.declare(fd, given.iter().map(|r| (r.offset, r.length)))
    });
    if result.is_ok() {
        descriptors::leave_to_declared(fd);
    }
    answer(result)
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_pull(fd: c_int, next: Option<Next>, context: *mut c_void) -> c_int {
    let Some(process) = process() else {
        return fail(libc::ENOMEM);
    };
    let callee = Callee {
        function: next.map_or(0, |f| f as usize),
        context: context as usize,
    };
    let result = alone(|| {
        process.not_in_callback()?;
        report(process);
        process.pull(fd, callee)
    });
    match result {
        Ok(call) => {
            descriptors::leave_to_declared(fd);
            if let Some(call) = call {
                make(process, call);
            }
            0
        }
        Err(e) => fail(e),
    }
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_client_new(callback: Option<Callback>, context: *mut c_void) -> *mut c_void {
    let callee = Callee {
        function: callback.map_or(0, |f| f as usize),
        context: context as usize,
    };
    let made = process().ok_or(libc::ENOMEM).and_then(|process| {
        alone(|| {
            process.not_in_callback()?;
            report(process);
            process.client_new(callee)
        })
    });
    match made {
        Ok(id) => id.to_bits() as *mut c_void,
        Err(e) => {
            fail(e);
            null_mut()
        }
    }
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_client_free(handle: *mut c_void) -> c_int {
    // Signals stay as they are: this may wait for a callback.
    done(client(handle).and_then(|(process, id)| {
        alone(|| process.not_in_callback())?;
        process.client_free(id)
    }))
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_region_add(
    handle: *mut c_void,
    fd: c_int,
    offset: u64,
    length: u64,
) -> c_int {
    let result = client(handle).and_then(|(process, id)| {
        alone(|| {
            process.not_in_callback()?;
            process.region_add(id, fd, offset, length)
        })
    });
    if result.is_ok() {
        descriptors::leave_to_declared(fd);
    }
    done(result)
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_region_remove(handle: *mut c_void, fd: c_int, offset: u64) -> c_int {
    done(client(handle).and_then(|(process, id)| {
        alone(|| {
            process.not_in_callback()?;
            process.region_remove(id, fd, offset)
        })
    }))
}

/// See outrider.h.
///
/// # Safety
/// `accesses` points to `n` entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_request(
    handle: *mut c_void,
    accesses: *const Access,
    n: size_t,
    how: c_int,
) -> ssize_t {
    if accesses.is_null() && n > 0 {
        return answer(Err(libc::EINVAL));
    }
    let given = if n == 0 {
        &[]
    } else {
        // SAFETY: as the caller promises.
        unsafe { core::slice::from_raw_parts(accesses, n) }
    };
    answer(client(handle).and_then(|(process, id)| alone(|| process.request(id, given, how))))
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_ignore(handle: *mut c_void, on: c_int) -> c_int {
    done(client(handle).and_then(|(process, id)| {
        alone(|| {
            process.not_in_callback()?;
            process.ignore(id, on != 0)
        })
    }))
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_reading(fd: c_int, offset: u64, length: u64) -> c_int {
    if raw::status(fd).is_err() {
        return fail(libc::EBADF);
    }
    reading_at(fd, offset, length as usize);
    0
}

/// See outrider.h.
///
/// # Safety
/// `stats` points to `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn outrider_stats(stats: *mut u8, size: size_t) -> c_int {
    if stats.is_null() || size == 0 {
        return fail(libc::EINVAL);
    }
    let figures = current().map_or([0; 11], |p| p.figures());
    let mut bytes = [0u8; 88];
    for (to, from) in bytes.chunks_exact_mut(8).zip(figures) {
        to.copy_from_slice(&from.to_ne_bytes());
    }
    // SAFETY: as the caller promises; what later versions know and this one doesn't is zero.
    unsafe {
        core::ptr::write_bytes(stats, 0, size);
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), stats, size.min(bytes.len()));
    }
    0
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_settle(timeout_ms: c_int) -> c_int {
    done(match current().filter(|_| !is_guest()) {
        None => Ok(()),
        Some(process) => {
            alone(|| process.not_in_callback()).and_then(|()| process.settle(timeout_ms))
        }
    })
}

/// See outrider.h.
#[unsafe(no_mangle)]
extern "C" fn outrider_version() -> u32 {
    0x000100
}
