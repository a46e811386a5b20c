//! libprefetch's interface, for byte ranges: regions, marks, callbacks.

use outrider_sys::units::ByteRange;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

use outrider_core::declare::{self, Callee, ClientId};

use crate::{Entry, process};

/// How a list changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// It is replaced.
    Set,
    /// It goes on.
    Append,
    /// What follows the latest marked entry that was passed is replaced.
    SetFromMark,
}

/// Where a program is in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The latest marked entry that was passed: descriptor and byte.
    pub mark: Option<(RawFd, u64)>,
    /// The read that made the call: descriptor and byte.
    pub read: Option<(RawFd, u64)>,
}

fn request<'e>(
    id: ClientId,
    update: Update,
    entries: impl IntoIterator<Item = Entry<'e>>,
    done: bool,
) -> io::Result<usize> {
    let process = process::get()?;
    let accesses: Vec<_> = entries.into_iter().map(|e| e.access()).collect();
    let how = match update {
        Update::Set => 0,
        Update::Append => declare::APPEND,
        Update::SetFromMark => declare::SET_FROM_MARK,
    };
    process::error(process.request(id, &accesses, how | if done { declare::DONE } else { 0 }))
}

/// What a callback may do with its client.
#[derive(Debug)]
pub struct Requests<'c> {
    id: ClientId,
    callback: PhantomData<&'c ()>,
}

impl Requests<'_> {
    /// See [`Client::request`].
    pub fn request<'e>(
        &self,
        update: Update,
        entries: impl IntoIterator<Item = Entry<'e>>,
        done: bool,
    ) -> io::Result<usize> {
        request(self.id, update, entries, done)
    }
}

/// An access list of its own, over regions of files. Ends when it is dropped.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use outrider::{Client, Entry, File, Update};
///
/// let file = File::open(std::env::current_exe()?)?;
/// let client = Client::new()?;
/// client.add_region(&file, 0..u64::MAX)?;
/// let taken = client.request(Update::Set, [3, 1, 2].map(|i| Entry::new(&file, i * 4096, 4096)), true)?;
/// assert_eq!(taken, 3);
/// # Ok(())
/// # }
/// ```
pub struct Client {
    id: ClientId,
    callee: Callee,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).finish()
    }
}

impl Client {
    /// A client without a callback. Fails with ENOSPC where there are 256, EDEADLK within a callback.
    pub fn new() -> io::Result<Client> {
        Self::make(process::NOBODY)
    }

    /// A client whose callback is called from within reads, when the list is half read or runs out, or the program reads within a region but
    /// outside the list. It may read files, whose reads are ignored then, and change the list through the argument; everything else
    /// of this crate fails with EDEADLK in it. If it panics, the panic goes on in the read that made the call.
    pub fn with_callback(
        callback: impl Fn(&Requests<'_>, Position) + Send + Sync + 'static,
    ) -> io::Result<Client> {
        let callee = process::add_callback(Arc::new(move |id, at: &declare::Position| {
            let place = |fd: i32, offset| (fd >= 0).then_some((fd, offset));
            callback(
                &Requests {
                    id,
                    callback: PhantomData,
                },
                Position {
                    mark: place(at.mark_fd, at.mark_offset),
                    read: place(at.fd, at.offset),
                },
            );
        }));
        Self::make(callee).inspect_err(|_| process::forget(callee))
    }

    fn make(callee: Callee) -> io::Result<Client> {
        let process = process::get()?;
        process::error(process.not_in_callback())?;
        let id = process::error(process.client_new(callee))?;
        Ok(Client { id, callee })
    }

    /// Lets the list cover these bytes of `file`; an end of `u64::MAX` means to its end and all that it grows by.
    ///
    /// Regions of one process must not overlap: EEXIST. EBADF and ESPIPE as [`Declared::ranges`](crate::Declared::ranges); EINVAL for an
    /// empty range or one beyond 2^63 - 1; ENOSPC where there are 4096.
    pub fn add_region(&self, file: &impl AsFd, range: ByteRange) -> io::Result<()> {
        let process = process::get()?;
        process::error(process.not_in_callback())?;
        let length = match range.end {
            u64::MAX => 0,
            end if end > range.start => end - range.start,
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        process::error(process.region_add(self.id, file.as_fd().as_raw_fd(), range.start, length))
    }

    /// Takes the region back that begins at `start` of `file`. ENOENT where there is none of this client.
    pub fn remove_region(&self, file: &impl AsFd, start: u64) -> io::Result<()> {
        let process = process::get()?;
        process::error(process.not_in_callback())?;
        process::error(process.region_remove(self.id, file.as_fd().as_raw_fd(), start))
    }

    /// Gives accesses that will follow; with `done` the update is complete and fetching starts. Returns how many were taken: fewer than
    /// given where the list is full, which completes the update as well. Those outside the client's regions are taken and
    /// left out.
    pub fn request<'e>(
        &self,
        update: Update,
        entries: impl IntoIterator<Item = Entry<'e>>,
        done: bool,
    ) -> io::Result<usize> {
        request(self.id, update, entries, done)
    }

    /// Until the result is dropped, reads of the calling thread count neither as progress nor as leaving the list. Nests.
    pub fn ignore(&self) -> io::Result<Ignoring<'_>> {
        let process = process::get()?;
        process::error(process.not_in_callback())?;
        process::error(process.ignore(self.id, true))?;
        Ok(Ignoring {
            client: self,
            thread: PhantomData,
        })
    }
}

impl Drop for Client {
    /// Waits until callbacks that run on other threads have returned. Within a callback it can't: the client lives on then.
    fn drop(&mut self) {
        let Some(process) = process::existing() else {
            return;
        };
        if process.not_in_callback().is_ok() && process.client_free(self.id).is_ok() {
            process::forget(self.callee);
        }
    }
}

/// See [`Client::ignore`]. Stays on its thread.
#[derive(Debug)]
pub struct Ignoring<'c> {
    client: &'c Client,
    thread: PhantomData<*const ()>,
}

impl Drop for Ignoring<'_> {
    fn drop(&mut self) {
        if let Some(process) = process::existing() {
            let _ = process.ignore(self.client.id, false);
        }
    }
}
