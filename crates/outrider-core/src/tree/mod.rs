//! Trees of directories, for whoever goes through them ahead of a program: the service's walks, and graphs in the program itself.
//!
//! [`listing`] reads directories and [`known`] remembers them, [`order`] says how they are gone through, [`cursor`] what comes next in them, and [`inode_block`] which of
//! their entries' inodes are read together.

pub mod cursor;
pub mod inode_block;
pub mod known;
pub mod listing;
pub mod order;
