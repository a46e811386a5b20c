//! Descriptors and the files behind them: taken in, closed, duplicated, let go.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use outrider_sys::raw;
use outrider_sys::units::InodeKey;

use super::Kind;
use super::Process;
use super::state::{File, State, generation};
use crate::lock;

impl Process {
    /// Descriptor `fd` is about to be closed, or its number to become another file's.
    pub fn closing(&self, fd: i32) {
        let Some(number) = self.numbers.get(fd as usize) else {
            return;
        };
        if number.load(Relaxed) == 0 {
            return;
        }
        let mut state = lock(&self.state);
        self.forget_number(&mut state, fd);
        drop(state);
        self.ring();
        // Following the /proc link holds the program's own open file for some microseconds: its locks must end with this close.
        for _ in 0..10_000 {
            if self.opening.load(SeqCst) != fd {
                break;
            }
            // SAFETY: takes no arguments.
            unsafe { raw::syscall6(libc::SYS_sched_yield, 0, 0, 0, 0, 0, 0) };
        }
    }

    /// `fd` is no longer a descriptor of the file that it was declared for.
    fn forget_number(&self, state: &mut State, fd: i32) {
        let Some(number) = self.numbers.get(fd as usize) else {
            return;
        };
        let Some(file) = number.swap(0, Relaxed).checked_sub(1) else {
            return;
        };
        let Some(f) = state.file_mut(file as u16) else {
            return;
        };
        f.numbers.retain(|n| *n != fd);
        if f.numbers.is_empty() {
            self.drop_file(state, file as u16);
        }
    }

    /// Numbers `range` are about to be closed.
    pub fn closing_range(&self, range: Range<usize>) {
        let end = range.end.min(self.numbers.len());
        for fd in range.start..end {
            if self.follows(fd as i32) {
                self.closing(fd as i32);
            }
        }
    }

    /// `to` has become a duplicate of `from`: reads through either are reads of the same file.
    pub fn duplicated(&self, from: i32, to: i32) {
        let (Some(from), Some(number)) = (
            self.numbers.get(from as usize),
            self.numbers.get(to as usize),
        ) else {
            return;
        };
        let file = from.load(Relaxed);
        if file == 0 {
            return;
        }
        let mut state = lock(&self.state);
        if let Some(f) = state.file_mut((file - 1) as u16)
            && f.numbers.try_reserve(1).is_ok()
        {
            f.numbers.push(to);
            number.store(file, Relaxed);
        }
    }

    /// The file behind `fd` is not to be opened by us: it is taken off all lists. What is held of it [`Process::demand_release`] lets go of.
    pub fn leave_alone(&self, fd: i32) {
        let file = self
            .numbers
            .get(fd as usize)
            .and_then(|n| n.load(Relaxed).checked_sub(1));
        if let Some(file) = file {
            let mut state = lock(&self.state);
            self.drop_file(&mut state, file as u16);
        }
    }

    /// The number of the file behind `fd`. With `make` a new one is taken in; otherwise `None` where it is not known.
    pub(super) fn file(&self, state: &mut State, fd: i32, make: bool) -> Result<Option<u16>, i32> {
        let st = readable(fd)?;
        if let Some(n) = self.numbers.get(fd as usize).map(|n| n.load(Relaxed))
            && n > 0
        {
            let file = (n - 1) as u16;
            let same = |f: &File| (f.dev, f.ino) == (st.st_dev, st.st_ino);
            if state.file(file).is_some_and(same) {
                return Ok(Some(file));
            }
            // Closed where it can't be seen: nothing is interposed, or the system call was made directly.
            self.forget_number(state, fd);
        }
        let known = state
            .inodes
            .get(&InodeKey::new(st.st_dev, st.st_ino))
            .copied();
        let file = match known {
            Some(file) => file,
            None if !make => return Ok(None),
            None => state.take_in(File {
                generation: generation(),
                dev: st.st_dev,
                ino: st.st_ino,
                size: st.st_size as u64,
                thread: raw::gettid(),
                numbers: Vec::new(),
                regions: Vec::new(),
            })?,
        };
        if let Some(f) = state.file_mut(file) {
            f.numbers.try_reserve(1).map_err(|_| libc::ENOMEM)?;
            f.numbers.push(fd);
            if let Some(n) = self.numbers.get(fd as usize) {
                n.store(u32::from(file) + 1, Relaxed);
            }
        }
        Ok(Some(file))
    }

    /// Forgets a list and its regions; files that belong to nobody any more go with it, except `kept`.
    pub(super) fn drop_source(&self, state: &mut State, index: usize, kept: Option<u16>) {
        let Some(first) = state.source(index).map(|s| s.file) else {
            return;
        };
        for file in std::iter::once(first).chain(0..state.numbers() as u16) {
            let Some(source) = state.source(index).filter(|s| s.regions > 0) else {
                break;
            };
            let left = source.regions;
            let Some(f) = state.file_mut(file) else {
                continue;
            };
            let before = f.regions.len();
            f.regions.retain(|r| r.source != index);
            let gone = before - f.regions.len();
            if gone > 0 {
                state.regions = state.regions.saturating_sub(gone);
                if let Some(source) = state.source(index) {
                    source.regions = left - gone;
                }
                if kept != Some(file) {
                    self.drop_unused(state, file);
                }
            }
        }
        state.forget_source(index);
    }

    /// Forgets a file that belongs to nobody any more.
    pub(super) fn drop_unused(&self, state: &mut State, file: u16) {
        if state.file(file).is_some_and(|f| f.regions.is_empty()) {
            self.drop_file(state, file);
        }
    }

    pub(super) fn drop_file(&self, state: &mut State, file: u16) {
        let Some(gone) = state.let_go(file) else {
            return;
        };
        for fd in &gone.numbers {
            if let Some(n) = self.numbers.get(*fd as usize) {
                n.store(0, Relaxed);
            }
        }
        for region in gone.regions {
            let Some(source) = state.source(region.source) else {
                continue;
            };
            if source.file == file && !matches!(source.kind, Kind::Client(_)) {
                self.drop_source(state, region.source, None);
            } else {
                let bytes = region.start..region.end;
                source.list.forget(file, bytes, region.entries);
            }
        }
    }
}

/// What a descriptor open for reading refers to. EBADF, or ESPIPE where it is no regular file.
fn readable(fd: i32) -> Result<libc::stat, i32> {
    // SAFETY: F_GETFL takes no memory.
    let flags = unsafe {
        raw::syscall6(
            libc::SYS_fcntl,
            fd as usize,
            libc::F_GETFL as usize,
            0,
            0,
            0,
            0,
        )
    };
    if flags < 0
        || flags as i32 & libc::O_ACCMODE == libc::O_WRONLY
        || flags as i32 & libc::O_PATH != 0
    {
        return Err(libc::EBADF);
    }
    let st = raw::status(fd).map_err(|_| libc::EBADF)?;
    if st.st_mode & libc::S_IFMT != libc::S_IFREG {
        return Err(libc::ESPIPE);
    }
    Ok(st)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicU32;

    use super::super::{APPEND, Access, Callee, ClientId, NUMBERS};
    use super::*;

    const SIZE: u64 = 4096;

    /// A process without a fetcher, and a client with a list of files that are read one after the other.
    fn declared(files: &[File]) -> (&'static Process, ClientId) {
        let numbers: Vec<AtomicU32> = (0..NUMBERS).map(|_| AtomicU32::new(0)).collect();
        let process = Box::leak(Box::new(Process::new(numbers.leak())));
        lock(&process.state).off = true;
        let callee = Callee {
            function: 0,
            context: 0,
        };
        let id = process.client_new(callee).unwrap();
        for file in files {
            process.region_add(id, file.as_raw_fd(), 0, 0).unwrap();
            let access = Access {
                fd: file.as_raw_fd(),
                offset: 0,
                length: SIZE,
                ..Access::default()
            };
            assert_eq!(process.request(id, &[access], APPEND), Ok(1));
        }
        (process, id)
    }

    fn files(n: usize) -> Vec<File> {
        let file = || {
            let file = rustix::fs::memfd_create("read", rustix::fs::MemfdFlags::CLOEXEC);
            let file = File::from(file.unwrap());
            file.set_len(SIZE).unwrap();
            file
        };
        (0..n).map(|_| file()).collect()
    }

    /// The list's epoch, and the number of the entry that the program is at.
    fn place(process: &Process, id: ClientId) -> (u32, u64) {
        let mut state = lock(&process.state);
        let list = &state.source(id.index).unwrap().list;
        (list.epoch(), list.at())
    }

    /// LP2: a file that is closed once it has been read leaves the list, and whoever works ahead in it, as they are. One that is closed before it is read is read no more.
    #[test]
    fn what_was_read_is_closed_in_peace() {
        let files = files(100);
        let (process, id) = declared(&files);
        let (epoch, _) = place(process, id);
        for (i, file) in files[..90].iter().enumerate() {
            let _ = process.reading(file.as_raw_fd(), 0, SIZE);
            process.closing(file.as_raw_fd());
            assert_eq!(place(process, id), (epoch, i as u64 + 1));
        }
        process.closing(files[90].as_raw_fd());
        let (changed, at) = place(process, id);
        assert!(changed != epoch && at == 91);
        process.closing(files[95].as_raw_fd());
        for file in &files[91..95] {
            let _ = process.reading(file.as_raw_fd(), 0, SIZE);
        }
        let _ = process.reading(files[96].as_raw_fd(), 0, SIZE);
        assert_eq!(place(process, id).1, 97);
    }

    /// LP1: a close allocates nothing, and the fetcher hears which files are gone, or that they are too many; a number that is free rests while others do.
    #[test]
    fn numbers_of_closed_files_rest() {
        let some = files(100);
        let (process, id) = declared(&some);
        let room = lock(&process.state).room();
        some.iter().for_each(|f| process.closing(f.as_raw_fd()));
        let mut state = lock(&process.state);
        assert_eq!(state.room(), room);
        let gone: Vec<u16> = state.gone().unwrap().collect();
        assert_eq!(gone, Vec::from_iter(0..100));
        assert_eq!(state.gone().unwrap().count(), 0);
        assert_eq!((state.regions, state.numbers()), (0, 100));
        drop(state);
        let mut taken = Vec::new();
        let more = files(2000);
        for file in &more {
            process.region_add(id, file.as_raw_fd(), 0, 0).unwrap();
            let mut state = lock(&process.state);
            taken.push(process.file(&mut state, file.as_raw_fd(), false).unwrap());
            drop(state);
            process.closing(file.as_raw_fd());
        }
        let rested = |w: &[Option<u16>]| w[..64].iter().all(|n| *n != w[64]);
        assert!(taken.windows(65).all(rested));
        let mut state = lock(&process.state);
        assert_eq!(state.numbers(), 100);
        assert!(state.gone().is_none());
    }
}
