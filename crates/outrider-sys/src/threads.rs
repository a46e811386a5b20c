//! Threads of the library among those of the program.
//!
//! A program may end its main thread with pthread_exit(3) and live on in the others. The C library ends the process with the last of its
//! threads, and can't tell that the last ones are ours. So threads of ours that wait look from time to time whether anybody is left to wait for.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::raw::{getpid, syscall6};

/// How many threads of ours live, below the number of the process that counted them: a forked child has none of its parent's.
static OURS: AtomicU64 = AtomicU64::new(0);

fn change(by: impl Fn(u64) -> u64) {
    let process = u64::from(getpid()) << 32;
    let _ = OURS.fetch_update(Relaxed, Relaxed, |word| {
        let count = if word & !0xffff_ffff == process {
            word & 0xffff_ffff
        } else {
            0
        };
        Some(process | by(count))
    });
}

/// A thread of ours, as long as it runs.
pub struct Own(());

impl Own {
    /// Called in the thread.
    #[allow(clippy::new_without_default)] // it counts
    pub fn new() -> Own {
        change(|count| count + 1);
        Own(())
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        change(|count| count.saturating_sub(1));
    }
}

/// Whether the program's main thread has ended and all others that live are ours. Takes no descriptor; `false` where /proc can't tell.
pub fn are_left_alone() -> bool {
    let ours = OURS.load(Relaxed) & 0xffff_ffff;
    let mut target = [0u8; 1];
    // SAFETY: plain data, which the kernel fills in; constant C strings, and buffers of the lengths given.
    let (threads, main) = unsafe {
        let mut st: libc::stat = core::mem::zeroed();
        let path = c"/proc/self/task".as_ptr() as usize;
        let at = libc::AT_FDCWD as usize;
        let r = syscall6(
            libc::SYS_newfstatat,
            at,
            path,
            &raw mut st as usize,
            0,
            0,
            0,
        );
        if r < 0 {
            return false;
        }
        // A link to the directory, one within it, and one for each thread. The first thread is among them when it has ended, too.
        let threads = (st.st_nlink as u64).saturating_sub(2);
        // An ended thread has no program.
        let main = syscall6(
            libc::SYS_readlinkat,
            at,
            c"/proc/self/exe".as_ptr() as usize,
            target.as_mut_ptr() as usize,
            target.len(),
            0,
            0,
        );
        (threads, main)
    };
    main == -(libc::ENOENT as isize) && threads == ours + 1
}

/// A function to be called when a thread ends, for threads that ask for it. exit(3) does not call it.
pub struct AtEnd {
    call: extern "C" fn(*mut c_void),
    /// One more than the key; 0 until there is one.
    key: AtomicU32,
}

impl AtEnd {
    /// Nobody has asked for it. The function is never unloaded.
    pub const fn new(call: extern "C" fn(*mut c_void)) -> AtEnd {
        AtEnd {
            call,
            key: AtomicU32::new(0),
        }
    }

    /// The calling thread asks for it. `false`: there is no memory, or no key.
    pub fn ask(&self) -> bool {
        // Any but null, for which nothing is called.
        let value = (&raw const self.key).cast();
        // SAFETY: a key of our own, with a function that takes any value.
        unsafe {
            if self.key.load(Acquire) == 0 {
                let mut new = 0;
                if libc::pthread_key_create(&raw mut new, Some(self.call)) != 0 {
                    return false;
                }
                let first = self.key.compare_exchange(0, new + 1, AcqRel, Acquire);
                if first.is_err() {
                    libc::pthread_key_delete(new);
                }
            }
            libc::pthread_setspecific(self.key.load(Acquire) - 1, value) == 0
        }
    }
}
