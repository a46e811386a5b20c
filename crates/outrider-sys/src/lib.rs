//! Raw system calls and kernel facts. No policy lives here.

pub mod below;
pub mod cache;
pub mod caps;
pub mod device;
pub mod extent;
pub mod kernel_cache;
pub mod mapped;
pub mod memory;
pub mod pagemap;
pub mod peers;
pub mod raw;
pub mod ring;
pub mod seccomp;
pub mod size;
mod text;
pub mod threads;
