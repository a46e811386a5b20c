//! Programs, page cache, readahead and devices in simulated time.
//!
//! A run has no clock but its own and no chance but its seeds: it comes to the same to the digit on every machine. So a policy can be judged without noise, and
//! on machines that nobody has. See the README for what is modelled and what isn't.

pub mod cache;
mod clairvoyant;
pub mod device;
pub mod generate;
pub mod model;
pub mod ours;
pub mod phases;
pub mod random;
pub mod readahead;
pub mod remembered;
mod run;
pub mod system;
pub mod trace;

pub use clairvoyant::bound;
pub use run::{Ahead, Nothing, Outcome, Shared, run};

/// Devices that programs are tried on: presets; lanes that stand for a cloud's volume of 3,700 requests/s, kept as they are for comparison with earlier figures; a
/// network file system; a card that does one thing at a time; and volumes that let in so many requests and bytes a second, or fetch their blocks at first touch.
pub const DEVICES: [&str; 11] = [
    "nvme",
    "sata",
    "remote",
    "objstore",
    "hdd",
    "remote latency_us=800 parallel=3 bandwidth_mbs=125",
    "remote latency_us=2000 parallel=16 bandwidth_mbs=200",
    "sata latency_us=400 parallel=1 bandwidth_mbs=90",
    "gp3",
    "cloud",
    "snapshot",
];
