//! The plain form: a list that is known, or can be drawn from an iterator.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use outrider_core::declare::Callee;

use crate::{Entry, process};

/// What is declared for a file; taken back when this is dropped.
///
/// A file has one list at a time: declaring another replaces it, and then dropping the earlier one takes the later one back.
#[derive(Debug)]
#[must_use = "dropping it takes back what was declared"]
pub struct Declared<'a> {
    file: BorrowedFd<'a>,
    taken: usize,
    callee: Option<Callee>,
}

impl<'a> Declared<'a> {
    /// Declares that these ranges of `file`, in bytes, will be read in this order.
    ///
    /// Fails with EBADF where `file` isn't open for reading, ESPIPE where it is no regular file, EBUSY where it belongs to a
    /// [`Client`](crate::Client), EDEADLK within a callback.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// # let file = std::fs::File::open(std::env::current_exe()?)?;
    /// let declared = outrider::Declared::ranges(&file, [4096..8192, 0..4096])?;
    /// assert_eq!(declared.taken(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ranges(
        file: &'a impl AsFd,
        ranges: impl IntoIterator<Item = Range<u64>>,
    ) -> io::Result<Declared<'a>> {
        let file = file.as_fd();
        let ranges: Vec<(u64, u64)> = ranges
            .into_iter()
            .map(|r| (r.start, r.end.saturating_sub(r.start)))
            .collect();
        let process = process::get()?;
        process::error(process.not_in_callback())?;
        let taken = process::error(process.declare(file.as_raw_fd(), ranges.into_iter()))?;
        Ok(Declared {
            file,
            taken,
            callee: None,
        })
    }

    /// Declares what an iterator yields, of `file` and others, drawing from it as far ahead as is useful.
    ///
    /// It is asked from within reads and in this call, and must not call functions of this crate (they fail with EDEADLK). The list
    /// ends with it, or with 65,536 entries in a row, or some more, that have no byte to read: empty, or past the end. If it
    /// panics the list ends, and the panic goes on in the read that asked. Errors as [`Declared::ranges`].
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use outrider::{Declared, Entry, File};
    ///
    /// let file: &'static File = Box::leak(Box::new(File::open(std::env::current_exe()?)?));
    /// let every_other = (0..1000u64).map(move |i| Entry::new(file, i * 8192, 4096));
    /// let _declared = Declared::pull(file, every_other)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn pull(
        file: &'a impl AsFd,
        entries: impl IntoIterator<Item = Entry<'static>, IntoIter: Send + 'static>,
    ) -> io::Result<Declared<'a>> {
        Self::draw(
            file.as_fd(),
            Box::new(entries.into_iter().map(|e| e.access())),
        )
    }

    /// [`Declared::pull`] for ranges of `file` alone.
    pub fn pull_ranges(
        file: &'a impl AsFd,
        ranges: impl IntoIterator<Item = Range<u64>, IntoIter: Send + 'static>,
    ) -> io::Result<Declared<'a>> {
        let fd = file.as_fd().as_raw_fd();
        let accesses = ranges
            .into_iter()
            .map(move |r| outrider_core::declare::Access {
                fd,
                flags: 0,
                offset: r.start,
                length: r.end.saturating_sub(r.start),
            });
        Self::draw(file.as_fd(), Box::new(accesses))
    }

    fn draw(
        file: BorrowedFd<'a>,
        mut accesses: Box<dyn Iterator<Item = outrider_core::declare::Access> + Send>,
    ) -> io::Result<Declared<'a>> {
        let process = process::get()?;
        process::error(process.not_in_callback())?;
        let callee = process::add_next(Box::new(move |entries, room| {
            entries.extend(accesses.by_ref().take(room));
        }));
        match process::error(process.pull(file.as_raw_fd(), callee)) {
            Ok(call) => {
                let declared = Declared {
                    file,
                    taken: 0,
                    callee: Some(callee),
                };
                if let Some(call) = call {
                    process::make(process, call);
                }
                Ok(declared)
            }
            Err(error) => {
                process::forget(callee);
                Err(error)
            }
        }
    }

    /// How many ranges were taken: fewer than were given where there were more than [`LIST_MAX`](crate::LIST_MAX). 0 for a list that is
    /// pulled.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

impl Drop for Declared<'_> {
    fn drop(&mut self) {
        if let Some(process) = process::existing() {
            // Nothing to do about a failure: the file belongs to somebody else then.
            let _ = match self.callee {
                None => process
                    .declare(self.file.as_raw_fd(), std::iter::empty())
                    .map(drop),
                Some(_) => process
                    .pull(self.file.as_raw_fd(), process::NOBODY)
                    .map(drop),
            };
        }
        if let Some(callee) = self.callee {
            process::forget(callee);
        }
    }
}
