//! The block of an inode: which inodes a file system reads together.
//!
//! A look-up of one inode fetches the block of its file system's table in which it lies, so that one of each block is enough.
//! The numbers are ext4's, whose first inode is 1: a block of 4 KiB holds 16 of 256 bytes. XFS holds 8 to 16 in one, and where a
//! table begins elsewhere, as XFS's at multiples of 64, one inode of sixteen counts to the block before it.

/// Inodes in a block of the table.
const IN_BLOCK: u64 = 16;
/// Blocks that ext4 reads ahead where one is read (`inode_readahead_blks`, unless it is mounted otherwise).
const READ_AHEAD: u64 = 32;

/// The block of an inode; inodes with the same one are read together.
pub fn of(inode: u64) -> u64 {
    inode.wrapping_sub(1) / IN_BLOCK
}

/// The blocks that are read ahead with an inode's: those of inodes with the same number are fetched by one look-up where ext4 reads ahead.
pub fn read_ahead(inode: u64) -> u64 {
    of(inode) / READ_AHEAD
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ext4's first block holds inodes 1 to 16, and it reads 32 blocks at once.
    #[test]
    fn blocks_begin_at_inode_one() {
        assert!((1..=16).all(|inode| of(inode) == 0));
        assert_eq!((of(17), of(32), of(33)), (1, 1, 2));
        assert_eq!((read_ahead(1), read_ahead(512), read_ahead(513)), (0, 0, 1));
    }
}
