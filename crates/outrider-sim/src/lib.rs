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
mod run;
pub mod system;
pub mod trace;

pub use clairvoyant::bound;
pub use run::{Ahead, Nothing, Outcome, Shared, run};
