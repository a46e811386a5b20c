//! How a process hands its memory to the service: a socket of abstract name, to which the runner is bound.
//!
//! Both sides know of each other what the kernel says (SO_PEERCRED). A name of the file system would not do: the process may have another
//! root, another user, or a view of /proc in which the runner is not. Only another network namespace is out of reach.
//!
//! What programs call makes system calls only: no allocation, no lock, and no waiting, whoever listens.

use core::mem::MaybeUninit;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::raw::{self, syscall6};

/// Bytes of a name: `outrider-`, and as many digits as a random number of 64 bits has in hexadecimal.
pub const NAME_BYTES: usize = 25;
/// What is sent with the memory's descriptor: which layout it has, and whose it is where another than the owner sends it.
const MESSAGE_BYTES: usize = 8;
/// Processes that may wait to be taken in; others try again.
const BACKLOG: usize = 128;

/// struct sockaddr_un with an abstract name of ours: behind the family a zero, and the name.
#[repr(C, align(8))]
struct Address([u8; ADDRESS_BYTES]);

/// Bytes of an address.
const ADDRESS_BYTES: usize = 2 + 1 + NAME_BYTES;

/// The address of a name, written where nothing was before. By volatile writes, as nothing here may become a call of memcpy(3) or memset(3).
#[inline(always)]
fn write_address(to: &mut MaybeUninit<Address>, name: &[u8; NAME_BYTES]) -> usize {
    let at = to.as_mut_ptr().cast::<u8>();
    let [low, high] = (libc::AF_UNIX as u16).to_ne_bytes();
    // SAFETY: within the structure.
    unsafe {
        at.write_volatile(low);
        at.add(1).write_volatile(high);
        at.add(2).write_volatile(0);
        for i in 0..NAME_BYTES {
            let byte = name.as_ptr().add(i).read_volatile();
            at.add(3 + i).write_volatile(byte);
        }
    }
    at as usize
}

/// Makes the socket, and writes its name. A negated errno where that fails. Calls nothing of the C library's.
#[inline(always)]
pub fn listen_as(name: &mut [u8; NAME_BYTES]) -> isize {
    let mut random = 0u64;
    let mut address = MaybeUninit::uninit();
    // SAFETY: numbers, and structures that outlive the calls.
    unsafe {
        let to = &raw mut random as usize;
        let got = syscall6(libc::SYS_getrandom, to, 8, 0, 0, 0, 0);
        if got != 8 {
            return if got < 0 { got } else { -(libc::EIO as isize) };
        }
        for i in 0..9 {
            let byte = b"outrider-".as_ptr().add(i).read_volatile();
            name.as_mut_ptr().add(i).write_volatile(byte);
        }
        for i in 0..16 {
            let digit = (random >> (4 * i) & 15) as u8;
            let digit = if digit < 10 { b'0' + digit } else { b'a' - 10 + digit };
            name.as_mut_ptr().add(9 + i).write_volatile(digit);
        }
        let fd = socket();
        if fd < 0 {
            return fd;
        }
        let at = write_address(&mut address, name);
        let mut r = syscall6(libc::SYS_bind, fd as usize, at, ADDRESS_BYTES, 0, 0, 0);
        if r == 0 {
            r = syscall6(libc::SYS_listen, fd as usize, BACKLOG, 0, 0, 0, 0);
        }
        if r < 0 {
            raw::close(fd as i32);
            return r;
        }
        fd
    }
}

#[inline(always)]
fn socket() -> isize {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let family = libc::AF_UNIX as usize;
    // SAFETY: numbers only.
    unsafe { syscall6(libc::SYS_socket, family, kind as usize, 0, 0, 0, 0) }
}

/// Makes the socket.
pub fn listen() -> io::Result<OwnedFd> {
    let mut name = [0; NAME_BYTES];
    let fd = listen_as(&mut name);
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd as i32));
    }
    // SAFETY: a new descriptor, nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// The name of a socket that [`listen`] has made.
pub fn name_of(socket: BorrowedFd<'_>) -> Option<[u8; NAME_BYTES]> {
    let mut address = Address([0; ADDRESS_BYTES]);
    let mut len = ADDRESS_BYTES as u32;
    let (at, len_at) = (&raw mut address as usize, &raw mut len as usize);
    let fd = socket.as_raw_fd() as usize;
    // SAFETY: the kernel writes an address of at most the length given, and its length.
    let r = unsafe { syscall6(libc::SYS_getsockname, fd, at, len_at, 0, 0, 0) };
    let name = address.0.get(3..)?.try_into().ok();
    name.filter(|_| r == 0 && len as usize == ADDRESS_BYTES)
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Peer {
    /// Process, as this process's /proc numbers it; 0 where it has no number there.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

fn peer(fd: i32) -> Option<Peer> {
    let mut peer = Peer {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<Peer>() as u32;
    let level = libc::SOL_SOCKET as usize;
    // SAFETY: the kernel writes a struct ucred, which has this form.
    let r = unsafe {
        syscall6(
            libc::SYS_getsockopt,
            fd as usize,
            level,
            libc::SO_PEERCRED as usize,
            &raw mut peer as usize,
            &raw mut len as usize,
            0,
        )
    };
    (r == 0 && len as usize == size_of::<Peer>()).then_some(peer)
}

/// Control data with one descriptor.
#[repr(C, align(8))]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fd: i32,
    _pad: i32,
}

/// Bytes of a header of control data and one descriptor.
const CONTROL_BYTES: usize = 16 + 4;

/// Sends the descriptor of a process's memory, whose layout is number `version`, to whoever listens under `name`, if `trusted` says so of that
/// process. `on_behalf` is the process whose memory it is, or 0 for the caller's. 0, or a negated errno: EAGAIN where too many wait.
pub fn send(
    name: &[u8; NAME_BYTES],
    memory: i32,
    version: u32,
    on_behalf: u32,
    trusted: impl Fn(Peer) -> bool,
) -> isize {
    let fd = socket();
    if fd < 0 {
        return fd;
    }
    let Ok(st) = raw::fstat(fd as i32) else {
        return -(libc::EBADF as isize);
    };
    let sent = send_through(fd as i32, name, memory, version, on_behalf, trusted);
    // Another thread may have closed all descriptors, and the number be another file's.
    if raw::fstat(fd as i32).is_ok_and(|now| (now.st_dev, now.st_ino) == (st.st_dev, st.st_ino)) {
        raw::close(fd as i32);
    }
    sent
}

fn send_through(
    fd: i32,
    name: &[u8; NAME_BYTES],
    memory: i32,
    version: u32,
    on_behalf: u32,
    trusted: impl Fn(Peer) -> bool,
) -> isize {
    let mut address = MaybeUninit::uninit();
    let at = write_address(&mut address, name);
    // SAFETY: structures that outlive the calls.
    unsafe {
        let r = syscall6(libc::SYS_connect, fd as usize, at, ADDRESS_BYTES, 0, 0, 0);
        if r < 0 {
            return r;
        }
        if !peer(fd).is_some_and(trusted) {
            return -(libc::EACCES as isize);
        }
        let words = [version, on_behalf];
        let part = libc::iovec {
            iov_base: words.as_ptr().cast_mut().cast(),
            iov_len: MESSAGE_BYTES,
        };
        let control = Control {
            len: CONTROL_BYTES,
            level: libc::SOL_SOCKET,
            kind: libc::SCM_RIGHTS,
            fd: memory,
            _pad: 0,
        };
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = (&raw const part).cast_mut();
        message.msg_iovlen = 1;
        message.msg_control = (&raw const control).cast_mut().cast();
        message.msg_controllen = size_of::<Control>() as _;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        let at = &raw const message as usize;
        let r = syscall6(libc::SYS_sendmsg, fd as usize, at, flags as usize, 0, 0, 0);
        if r < 0 { r } else { 0 }
    }
}

/// Wakes whoever listens under `name`: a connection that says nothing.
pub fn knock_at(name: &[u8; NAME_BYTES]) {
    let fd = socket();
    if fd < 0 {
        return;
    }
    let mut address = MaybeUninit::uninit();
    let at = write_address(&mut address, name);
    // SAFETY: the address outlives the call.
    unsafe { syscall6(libc::SYS_connect, fd as usize, at, ADDRESS_BYTES, 0, 0, 0) };
    raw::close(fd as i32);
}

/// Wakes whoever listens at this socket.
pub fn knock(socket: i32) {
    // SAFETY: asked about only.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    if let Some(name) = name_of(socket) {
        knock_at(&name);
    }
}

/// What somebody has sent.
pub struct Handed {
    /// Who sent it.
    pub from: Peer,
    /// Which layout it has.
    pub version: u32,
    /// Whose it is where another sent it.
    pub on_behalf: u32,
    /// The memory.
    pub memory: OwnedFd,
}

/// Takes what somebody has sent; `None` where nobody waits.
pub fn receive(socket: BorrowedFd<'_>) -> Option<Option<Handed>> {
    let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize;
    let fd = socket.as_raw_fd() as usize;
    // SAFETY: numbers only.
    let r = unsafe { syscall6(libc::SYS_accept4, fd, 0, 0, flags, 0, 0) };
    match r {
        0.. => {}
        // That one is gone, others may not be.
        _ if r == -(libc::ECONNABORTED as isize) => return Some(None),
        _ => return None,
    }
    // SAFETY: a new descriptor, nobody else's.
    let connection = unsafe { OwnedFd::from_raw_fd(r as i32) };
    Some(received(&connection))
}

fn received(connection: &OwnedFd) -> Option<Handed> {
    let fd = connection.as_raw_fd();
    let from = peer(fd)?;
    let mut words = [0u32; 2];
    let part = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: MESSAGE_BYTES,
    };
    let mut control = Control {
        len: 0,
        level: 0,
        kind: 0,
        fd: -1,
        _pad: 0,
    };
    // SAFETY: structures that outlive the call, with room for one descriptor: the kernel closes others.
    let n = unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = (&raw const part).cast_mut();
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = CONTROL_BYTES as _;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as usize;
        let at = &raw mut message as usize;
        syscall6(libc::SYS_recvmsg, fd as usize, at, flags, 0, 0, 0)
    };
    let one = control.len == CONTROL_BYTES
        && (control.level, control.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    if !one || control.fd < 0 {
        return None;
    }
    // SAFETY: the kernel has made it for this process.
    let memory = unsafe { OwnedFd::from_raw_fd(control.fd) };
    (n == MESSAGE_BYTES as isize).then_some(Handed {
        from,
        version: words[0],
        on_behalf: words[1],
        memory,
    })
}

/// Memory of `len` bytes that may be handed over, and its mapping: nobody can change its length any more. Children of fork(2) don't have it.
/// `reserve` bytes are taken at once, where that is demanded: where memory is committed strictly a page for which nothing is left is
/// SIGBUS when it is first touched; here it is an answer.
pub fn memory(name: &core::ffi::CStr, len: usize, reserve: usize) -> Result<(i32, *mut u8), i32> {
    let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
    // SAFETY: a C string; numbers; a new mapping at an address of the kernel's choice.
    unsafe {
        let fd = syscall6(libc::SYS_memfd_create, name.as_ptr() as usize, flags, 0, 0, 0, 0);
        if fd < 0 {
            return Err(-fd as i32);
        }
        let fd = fd as i32;
        let number = fd as usize;
        let give_up = |r: isize| {
            raw::close(fd);
            Err(-r as i32)
        };
        let r = syscall6(libc::SYS_ftruncate, number, len, 0, 0, 0, 0);
        if r < 0 {
            return give_up(r);
        }
        let (add, seals) = (libc::F_ADD_SEALS as usize, SEALS as usize);
        let r = syscall6(libc::SYS_fcntl, number, add, seals, 0, 0, 0);
        if r < 0 {
            return give_up(r);
        }
        if reserve > 0 && !raw::fallocate(fd, 0, reserve) {
            return give_up(-(libc::ENOMEM as isize));
        }
        let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let shared = libc::MAP_SHARED as usize;
        let at = syscall6(libc::SYS_mmap, 0, len, access, shared, number, 0);
        if (-4095..=0).contains(&at) {
            return give_up(at);
        }
        let advice = libc::MADV_DONTFORK as usize;
        let r = syscall6(libc::SYS_madvise, at as usize, len, advice, 0, 0, 0);
        if r < 0 {
            syscall6(libc::SYS_munmap, at as usize, len, 0, 0, 0, 0);
            return give_up(r);
        }
        Ok((fd, at as *mut u8))
    }
}

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Whether a descriptor is one of memory of just this length that nobody can change any more.
pub fn is_sealed(fd: BorrowedFd<'_>, len: usize) -> bool {
    let number = fd.as_raw_fd();
    // SAFETY: numbers only.
    let seals =
        unsafe { syscall6(libc::SYS_fcntl, number as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0) };
    seals >= 0
        && seals as i32 & SEALS == SEALS
        && seals as i32 & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) == 0
        && raw::fstat(number).is_ok_and(|st| st.st_size as usize == len && st.st_blksize == 4096)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// SPEC B16: the receiver learns from the kernel who has sent what, whatever the message says; memory that may shrink is none.
    #[test]
    fn memory_is_handed_over() {
        let socket = listen().unwrap();
        let name = name_of(socket.as_fd()).unwrap();
        assert!(receive(socket.as_fd()).is_none());
        let (fd, at) = memory(c"test", 8192, 0).unwrap();
        // SAFETY: mapped just now.
        unsafe { at.write(7) };
        assert_eq!(send(&name, fd, 3, 0, |_| false), -(libc::EACCES as isize));
        assert_eq!(send(&name, fd, 3, 9, |peer| peer.pid == raw::getpid()), 0);
        knock(socket.as_raw_fd());
        // Turned away.
        assert!(receive(socket.as_fd()).unwrap().is_none());
        let handed = receive(socket.as_fd()).unwrap().unwrap();
        assert_eq!((handed.version, handed.on_behalf), (3, 9));
        // SAFETY: takes no arguments.
        let uid = unsafe { libc::geteuid() };
        assert_eq!((handed.from.pid, handed.from.uid), (raw::getpid(), uid));
        assert!(is_sealed(handed.memory.as_fd(), 8192));
        assert!(!is_sealed(handed.memory.as_fd(), 4096));
        let open = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 8192).unwrap();
        assert!(!is_sealed(open.as_fd(), 8192));
        assert!(!is_sealed(socket.as_fd(), 8192));
        // The knock, and nothing more.
        assert!(receive(socket.as_fd()).unwrap().is_none());
        assert!(receive(socket.as_fd()).is_none());
        raw::close(fd);
    }
}
