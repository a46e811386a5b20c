//! Programs that go through trees of files: tar, grep -r, cp -r, rsync, diff -r.
//!
//! Each of many small files costs them several waits, one after the other: for its inode, for its data, and for each directory. Hooks tell the
//! service of files that are opened one after the other and are not cached ([`shm::Kind::Entry`](crate::shm::Kind::Entry)). Where the files of a directory turn
//! out to be opened in an order that is known ([`Order::OF_FILES`]), those that come next are fetched ahead of the program, many at once: looked
//! up, opened, and read into the cache. The next directories are listed, too.
//!
//! [`Order::OF_FILES`]: crate::tree::order::Order::OF_FILES
//!
//! Where they are opened in no order, but add up to most of a directory, all of it is fetched ([`dense`]).
//!
//! [`stream`], [`dense`], [`visits`] and [`large`] are policy, and yield what is wanted. [`walker`] hears of what processes do, and a thread ([`guide`]) finds out where
//! that is and asks them. What they want becomes [intents](crate::intent), and calls of the [engine's lane](crate::engine::Lane).

mod dense;
mod guide;
mod large;
mod link;
mod stream;
mod visits;
mod walker;

pub use link::Opened;
pub use walker::{Leaving, Manner, Walker};
