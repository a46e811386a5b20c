//! Tree order: the orders in which programs go through trees.
//!
//! Every program is done with a subdirectory, and with all that is below it, before it comes to what lies behind. They differ in how they sort a
//! directory's entries, from which end they take them, and whether files come before subdirectories.

/// How the entries of a directory are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sorting {
    /// As the kernel lists them (tar, grep).
    Listed,
    /// By name, byte by byte (diff, rsync, sorted lists).
    Name,
    /// By inode number (cp, and whoever saves seeks).
    Inode,
}

/// An order in which a tree is gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub(super) sorting: Sorting,
    /// The last one first, as by those who put what they find on a stack.
    pub(super) backwards: bool,
    /// A directory's files come before its subdirectories; otherwise a subdirectory is entered when its turn comes.
    pub(super) files_first: bool,
}

impl Order {
    /// As the kernel lists the entries, each subdirectory when its turn comes: that of programs that keep nothing in mind, and of graphs' walks.
    pub const LISTED: Order = Order {
        sorting: Sorting::Listed,
        backwards: false,
        files_first: false,
    };
    const BY_NAME: Order = Order {
        sorting: Sorting::Name,
        ..Order::LISTED
    };
    const BY_INODE: Order = Order {
        sorting: Sorting::Inode,
        ..Order::LISTED
    };

    /// Those in which programs open files.
    pub const OF_FILES: [Order; 6] = [
        Order::LISTED,
        Order::BY_NAME,
        Order::BY_INODE,
        Order::LISTED.files_first(),
        Order::BY_NAME.files_first(),
        Order::BY_INODE.files_first(),
    ];

    /// Those in which programs list directories.
    pub const OF_DIRECTORIES: [Order; 6] = [
        Order::LISTED,
        Order::BY_NAME,
        Order::BY_INODE,
        Order::LISTED.backwards(),
        Order::BY_NAME.backwards(),
        Order::BY_INODE.backwards(),
    ];

    const fn files_first(self) -> Order {
        Order {
            files_first: true,
            ..self
        }
    }

    const fn backwards(self) -> Order {
        Order {
            backwards: true,
            ..self
        }
    }
}

/// Lets each of several orders gain by after how many `steps` it came to what was opened; which of them is the best one now, `last` being the one so far.
pub fn judge<const N: usize>(
    scores: &mut [u32; N],
    steps: &[Option<usize>; N],
    last: usize,
) -> usize {
    for (score, steps) in scores.iter_mut().zip(steps) {
        let luck = match steps {
            Some(1) => 8,
            Some(_) => 1,
            None => 0,
        };
        *score = *score * 3 / 4 + luck;
    }
    let best = (0..N).rev().max_by_key(|o| (scores[*o], *o == last));
    best.unwrap_or(0)
}
