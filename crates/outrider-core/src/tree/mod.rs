//! Trees of directories, for whoever goes through them ahead of a program: the service's walks, and graphs in the program itself.

pub mod inode_block;
pub mod listing;
