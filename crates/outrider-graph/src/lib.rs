//! Foreaction graphs: explicit speculation.
//!
//! A function whose system calls are known beforehand describes them as a [`Graph`] and makes them through a [`Scope`]. The calls are
//! then made ahead and in parallel, by io_uring or by threads, and the function finds their results ready. (Foreactor: Exploiting
//! Storage I/O Parallelism with Explicit Speculation.) What the function gets and leaves behind is what it would be without; a wrong
//! graph costs time.
//!
//! ```
//! use outrider_graph::{Graph, Next, Op};
//! use std::os::fd::AsRawFd;
//!
//! # fn main() -> std::io::Result<()> {
//! # let file = std::fs::File::open("/proc/self/exe")?;
//! // Built once: the i-th call reads the i-th block, and the function may stop after any of them.
//! type Search = (i32, Vec<i64>);
//! let graph = Graph::generator("search", |s: &Search, i| {
//!     match s.1.get(i as usize) {
//!         Some(at) => Next::Weak(Op::Pread { fd: s.0, len: 4096, offset: *at }),
//!         None => Next::End,
//!     }
//! }).pure();
//!
//! let context = (file.as_raw_fd(), (0..8).map(|i| i * 4096).collect());
//! let mut scope = graph.enter(&context);
//! for at in &context.1 {
//!     let block = scope.pread_block(&file, 4096, *at)?;
//!     if block.contains(&0x7f) {
//!         break;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod account;
mod batch;
mod buffers;
mod call;
mod conflict;
mod context;
mod device;
mod frontier;
mod graph;
mod instance;
mod limits;
mod memory;
mod payback;
mod pool;
mod process;
mod scope;
mod stats;
mod walk;

pub use buffers::Block;
pub use call::{Args, Call, Data, Kind, Op, open_creates};
pub use conflict::ask_who_writes;
pub use device::ask_room;
pub use graph::{Builder, Engine, Error, Graph, Next, Node};
pub use instance::StandBy;
pub use process::{end_threads, token as process_token};
pub use scope::{Place, Scope};
pub use stats::{Counts, Sink};
