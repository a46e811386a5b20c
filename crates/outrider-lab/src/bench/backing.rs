//! The memory of a virtual machine that its host has taken back.
//!
//! A guest that reports its free pages (virtio balloon) loses them: whoever uses such a page next waits until the host has found it a new one. With 4 KiB
//! pages at the host that was 11 µs a page, seven times what taking a page costs otherwise, so that the same run reads at 1400 or at 370 MB/s.
//! Pages that were free for less than some seconds have not been reported yet: so as much memory as a run may use is taken and given back right before it.

use std::fs;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::machine;

const PAGE: usize = outrider_sys::units::PAGE as usize;
/// What programs need besides their data, bytes.
const BESIDES: u64 = 256 << 20;

/// Sees to it that the host of a virtual machine backs as much free memory as a run over `data` bytes may use: the data twice, because what is free is
/// not handed out in the order in which it became so. At most half of what is free. Nothing where the machine is none.
pub fn renew(data: u64) {
    if !machine::is_virtual() {
        return;
    }
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = machine::kilobytes(&meminfo, "MemFree").unwrap_or(0) * 1024;
    touch((2 * data + BESIDES).min(free / 2) as usize / PAGE * PAGE);
}

/// Takes `len` bytes of memory, each page of it, and gives them back.
fn touch(len: usize) {
    // SAFETY: a new mapping, of which nothing is used after it is unmapped; pages are written within it.
    unsafe {
        let Ok(memory) = mmap_anonymous(
            ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        ) else {
            return;
        };
        // The page cache takes single pages.
        let _ = madvise(memory, len, Advice::LinuxNoHugepage);
        for at in (0..len).step_by(PAGE) {
            memory.cast::<u8>().add(at).write_volatile(1);
        }
        let _ = munmap(memory, len);
    }
}
