//! How a process hands its memory to the service: a socket of abstract name, to which the runner is bound.
//!
//! Both sides know of each other what the kernel says: who connected (SO_PEERCRED, SO_PEERPIDFD), and who sent what (SCM_CREDENTIALS). These have to be one process,
//! since a connection outlives who made it: somebody else may have inherited it, and a process number be another's by now. A name of the file system
//! would not do: the process may have another root, another user, or a view of /proc in which the runner is not. Only another network namespace is out of reach.
//!
//! The name can be read by everybody (/proc/net/unix). A secret that programs have in their environment tells those of the run from others.
//!
//! What programs call makes system calls only: no allocation, no lock, and no waiting, whoever listens.

use core::mem::MaybeUninit;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::mapped;
use crate::raw::{self, syscall6};

/// Bytes of a name: `outrider-`, and as many digits as a random number of 64 bits has in hexadecimal.
pub const NAME_BYTES: usize = 25;
/// Bytes of what is sent with the memory's descriptor: see [`Message`].
const MESSAGE_BYTES: usize = size_of::<Message>();
/// Processes that may wait to be taken in; others try again.
const BACKLOG: usize = 128;

/// What is sent with the memory's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Message {
    /// Which layout the memory has; 0 where none is sent.
    pub version: u32,
    /// Whose it is where another than the owner sends it, else 0. Without memory: what the sender has lost, as bits.
    pub on_behalf: u32,
    /// The secret of the run; where another than the owner sends it, that by which the receiver knows that other.
    pub token: u64,
}

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
            let digit = if digit < 10 {
                b'0' + digit
            } else {
                b'a' - 10 + digit
            };
            name.as_mut_ptr().add(9 + i).write_volatile(digit);
        }
        let fd = socket();
        if fd < 0 {
            return fd;
        }
        let at = write_address(&mut address, name);
        let mut r = syscall6(libc::SYS_bind, fd as usize, at, ADDRESS_BYTES, 0, 0, 0);
        if r == 0 {
            // Connections have it from here.
            let (level, on) = (libc::SOL_SOCKET as usize, 1i32);
            let at = &raw const on as usize;
            let option = libc::SO_PASSCRED as usize;
            r = syscall6(libc::SYS_setsockopt, fd as usize, level, option, at, 4, 0);
        }
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

/// A number that nobody can guess; `None` where the kernel has none.
#[inline(always)]
pub fn random() -> Option<u64> {
    let mut number = 0u64;
    // SAFETY: the kernel writes eight bytes.
    let got = unsafe { syscall6(libc::SYS_getrandom, &raw mut number as usize, 8, 0, 0, 0, 0) };
    (got == 8).then_some(number)
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

/// Has this process listen at a socket that another one has made: to who connects from here on the kernel shows this one (see [`send`]).
pub fn listen_at(socket: BorrowedFd<'_>) -> io::Result<()> {
    let fd = socket.as_raw_fd() as usize;
    // SAFETY: numbers only.
    match unsafe { syscall6(libc::SYS_listen, fd, BACKLOG, 0, 0, 0, 0) } {
        0 => Ok(()),
        r => Err(io::Error::from_raw_os_error(-r as i32)),
    }
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

/// What the kernel says of a connection, over `value`: that, or an errno.
fn option<T>(fd: i32, name: libc::c_int, mut value: T) -> Result<T, i32> {
    let mut len = size_of::<T>() as u32;
    let level = libc::SOL_SOCKET as usize;
    // SAFETY: the kernel writes no more than there is room for; callers name a type of plain numbers.
    let r = unsafe {
        syscall6(
            libc::SYS_getsockopt,
            fd as usize,
            level,
            name as usize,
            &raw mut value as usize,
            &raw mut len as usize,
            0,
        )
    };
    match r {
        0 if len as usize == size_of::<T>() => Ok(value),
        0 => Err(libc::EBADF),
        r => Err(-r as i32),
    }
}

fn peer(fd: i32) -> Option<Peer> {
    // A struct ucred has this form.
    let nobody = Peer {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    option(fd, libc::SO_PEERCRED, nobody).ok()
}

/// Newer than the C library's headers.
const SO_PEERPIDFD: libc::c_int = 77;

/// Whoever has connected, as a descriptor that is of no other process, whatever becomes of its number. An error of ENOPROTOOPT where the kernel has none
/// (before 6.5).
fn peer_life(fd: i32) -> Result<OwnedFd, i32> {
    match option(fd, SO_PEERPIDFD, -1i32)? {
        // SAFETY: the kernel has made it for this process.
        life if life >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(life) }),
        _ => Err(libc::EBADF),
    }
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

/// Sends the descriptor of a process's memory to whoever listens under `name`, if `trusted` says so of that process. 0, or a negated errno: EAGAIN where
/// too many wait.
pub fn send(
    name: &[u8; NAME_BYTES],
    memory: i32,
    message: Message,
    trusted: impl Fn(Peer) -> bool,
) -> isize {
    let fd = socket();
    if fd < 0 {
        return fd;
    }
    let Ok(st) = raw::fstat(fd as i32) else {
        return -(libc::EBADF as isize);
    };
    let sent = send_through(fd as i32, name, memory, message, trusted);
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
    message: Message,
    trusted: impl Fn(Peer) -> bool,
) -> isize {
    let r = connect(fd, name);
    if r < 0 {
        return r;
    }
    if !peer(fd).is_some_and(trusted) {
        return -(libc::EACCES as isize);
    }
    send_message(fd, memory, message)
}

fn connect(fd: i32, name: &[u8; NAME_BYTES]) -> isize {
    let mut address = MaybeUninit::uninit();
    let at = write_address(&mut address, name);
    // SAFETY: the address outlives the call.
    unsafe { syscall6(libc::SYS_connect, fd as usize, at, ADDRESS_BYTES, 0, 0, 0) }
}

fn send_message(fd: i32, memory: i32, words: Message) -> isize {
    let part = libc::iovec {
        iov_base: (&raw const words).cast_mut().cast(),
        iov_len: MESSAGE_BYTES,
    };
    let control = Control {
        len: CONTROL_BYTES,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fd: memory,
        _pad: 0,
    };
    // SAFETY: structures that outlive the call.
    unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = (&raw const part).cast_mut();
        message.msg_iovlen = 1;
        if memory >= 0 {
            message.msg_control = (&raw const control).cast_mut().cast();
            message.msg_controllen = size_of::<Control>() as _;
        }
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize;
        let at = &raw const message as usize;
        let r = syscall6(libc::SYS_sendmsg, fd as usize, at, flags, 0, 0, 0);
        if r < 0 { r } else { 0 }
    }
}

/// Says what is lost, as bits, where there is no memory to say it in.
pub fn complain(name: &[u8; NAME_BYTES], lost: u32, token: u64, trusted: impl Fn(Peer) -> bool) {
    let message = Message {
        version: 0,
        on_behalf: lost,
        token,
    };
    send(name, -1, message, trusted);
}

/// Wakes whoever listens under `name`: a connection that says nothing.
pub fn knock_at(name: &[u8; NAME_BYTES]) {
    let fd = socket();
    if fd < 0 {
        return;
    }
    connect(fd as i32, name);
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
    /// Who connected and sent it: one process. User and group are the real ones.
    pub from: Peer,
    /// The effective user and group that it had when it connected.
    pub effective: [u32; 2],
    /// Readable when that process is over; as long as it is not, the number is that process's. `None` where the kernel has no such thing.
    pub life: Option<OwnedFd>,
    /// What was sent with it.
    pub message: Message,
    /// The memory.
    pub memory: OwnedFd,
    /// `st_dev` and `st_ino` of the memory that was sent.
    pub sent: [u64; 2],
}

/// What came to a socket.
pub enum Arrival {
    /// Nothing.
    Nobody,
    /// Somebody knocked, or sent what makes no sense.
    Knock,
    /// Somebody who shows this token has lost something, as bits.
    Complaint(u32, u64),
    /// Memory.
    Memory(Handed),
    /// There is something, but this process has no descriptor for it (EMFILE): it stays there.
    Deaf,
}

/// Who has come and not said anything yet.
#[derive(Default)]
pub struct Waiting(Vec<(OwnedFd, Instant)>);

/// Connections that may have said nothing yet, and for how long: others, and what is said later, are not heard. Between the two calls of [`send`] a process
/// may be stopped, but seldom is.
const SILENT: usize = 64;
const PATIENCE: Duration = Duration::from_secs(1);

impl Waiting {
    /// Takes what came first.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> Arrival {
        let mut found = None;
        self.0.retain(|(connection, since)| {
            if found.is_none() {
                found = received(connection);
                found.is_none() && since.elapsed() < PATIENCE
            } else {
                true
            }
        });
        if let Some(found) = found {
            return found;
        }
        let flags = (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as usize;
        let fd = socket.as_raw_fd() as usize;
        // SAFETY: numbers only.
        let r = unsafe { syscall6(libc::SYS_accept4, fd, 0, 0, flags, 0, 0) };
        match -r as i32 {
            ..=0 => {}
            // That one is gone, others may not be.
            libc::ECONNABORTED => return Arrival::Knock,
            libc::EMFILE | libc::ENFILE => return Arrival::Deaf,
            _ => return Arrival::Nobody,
        }
        // SAFETY: a new descriptor, nobody else's.
        let connection = unsafe { OwnedFd::from_raw_fd(r as i32) };
        received(&connection).unwrap_or_else(|| {
            if self.0.len() < SILENT {
                self.0.push((connection, Instant::now()));
            }
            Arrival::Knock
        })
    }

    /// Whether nobody has come who has not said anything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a connection has said; `None`: nothing yet.
fn received(connection: &OwnedFd) -> Option<Arrival> {
    let fd = connection.as_raw_fd();
    let Some(connected) = peer(fd) else {
        return Some(Arrival::Knock);
    };
    let mut words = Message::default();
    let part = libc::iovec {
        iov_base: (&raw mut words).cast(),
        iov_len: MESSAGE_BYTES,
    };
    let mut control = Received {
        credentials: Credentials {
            len: 0,
            level: 0,
            kind: 0,
            from: Peer {
                pid: 0,
                uid: u32::MAX,
                gid: u32::MAX,
            },
            _pad: 0,
        },
        descriptor: Control {
            len: 0,
            level: 0,
            kind: 0,
            fd: -1,
            _pad: 0,
        },
    };
    // SAFETY: structures that outlive the call, with room for one descriptor: the kernel closes others.
    let (n, flags) = unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = (&raw const part).cast_mut();
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = (size_of::<Credentials>() + CONTROL_BYTES) as _;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as usize;
        let at = &raw mut message as usize;
        let n = syscall6(libc::SYS_recvmsg, fd as usize, at, flags, 0, 0, 0);
        (n, message.msg_flags)
    };
    if n == -(libc::EAGAIN as isize) {
        return None;
    }
    // The kernel puts credentials first, and has them for every message.
    let sender = &control.credentials;
    let told = sender.len == CREDENTIALS_BYTES
        && (sender.level, sender.kind) == (libc::SOL_SOCKET, libc::SCM_CREDENTIALS);
    let control = &control.descriptor;
    let one = control.len == CONTROL_BYTES
        && (control.level, control.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    if !one || control.fd < 0 {
        let complains = n == MESSAGE_BYTES as isize && words.version == 0;
        return Some(match () {
            () if flags & libc::MSG_CTRUNC != 0 => Arrival::Deaf,
            () if complains => Arrival::Complaint(words.on_behalf, words.token),
            () => Arrival::Knock,
        });
    }
    // SAFETY: the kernel has made it for this process.
    let memory = unsafe { OwnedFd::from_raw_fd(control.fd) };
    let from = sender.from;
    if !told || from.pid != connected.pid || n != MESSAGE_BYTES as isize {
        return Some(Arrival::Knock);
    }
    let life = match peer_life(fd) {
        Ok(life) => Some(life),
        Err(libc::ENOPROTOOPT) => None,
        Err(libc::EMFILE | libc::ENFILE) => return Some(Arrival::Deaf),
        // It is over, and its number may be another's.
        Err(_) => return Some(Arrival::Knock),
    };
    let Ok(sent) = raw::fstat(memory.as_raw_fd()) else {
        return Some(Arrival::Knock);
    };
    Some(Arrival::Memory(Handed {
        from,
        effective: [connected.uid, connected.gid],
        life,
        message: words,
        memory,
        sent: [sent.st_dev, sent.st_ino],
    }))
}

/// Control data with the sender's credentials, which come first, and a descriptor.
#[repr(C, align(8))]
struct Received {
    credentials: Credentials,
    descriptor: Control,
}

#[repr(C, align(8))]
struct Credentials {
    len: usize,
    level: i32,
    kind: i32,
    from: Peer,
    _pad: u32,
}

/// Bytes of a header of control data and struct ucred.
const CREDENTIALS_BYTES: usize = 16 + size_of::<Peer>();

/// Memory of `len` bytes that may be handed over, and its mapping: nobody can change its length any more. Children of fork(2) don't have it; the descriptor may be
/// with one that was made before this returns, or until it is closed (see [`belongs`]).
/// `reserve` bytes are taken at once, where that is demanded: where memory is committed strictly a page for which nothing is left is
/// SIGBUS when it is first touched; here it is an answer. It lies in the place of a mapping of ours at `place`, or where the kernel chooses
/// if that is null.
pub fn memory(
    name: &core::ffi::CStr,
    len: usize,
    reserve: usize,
    place: *mut u8,
) -> Result<(i32, *mut u8), i32> {
    // A limit on the size of files (RLIMIT_FSIZE) counts here, too, and would end the process with SIGXFSZ.
    let mut limit = [0u64; 2];
    let (which, at) = (libc::RLIMIT_FSIZE as usize, limit.as_mut_ptr() as usize);
    // SAFETY: the kernel writes two numbers.
    let asked = unsafe { syscall6(libc::SYS_prlimit64, 0, which, 0, at, 0, 0) };
    if asked != 0 || limit[0] < len as u64 {
        return Err(libc::EFBIG);
    }
    let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
    // SAFETY: a C string; numbers; a new mapping at an address of the kernel's choice.
    unsafe {
        let fd = syscall6(
            libc::SYS_memfd_create,
            name.as_ptr() as usize,
            flags,
            0,
            0,
            0,
            0,
        );
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
        let Some(at) = mapped::map_file(fd, len, place) else {
            return give_up(-(libc::ENOMEM as isize));
        };
        let advice = libc::MADV_DONTFORK as usize;
        let r = syscall6(libc::SYS_madvise, at as usize, len, advice, 0, 0, 0);
        if r < 0 {
            if place.is_null() || !mapped::map_over(place, len) {
                mapped::unmap(at, len);
            }
            return give_up(r);
        }
        Ok((fd, at))
    }
}

/// The kernel's `include/uapi/linux/magic.h`.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// What was handed over is mapped by both whom it belongs to: nobody else who has a descriptor of it can write into it any more, from Linux 5.1 on. He may read.
pub fn belongs(memory: BorrowedFd<'_>) {
    let seals = libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
    let (fd, add) = (memory.as_raw_fd() as usize, libc::F_ADD_SEALS as usize);
    // SAFETY: numbers only.
    unsafe { syscall6(libc::SYS_fcntl, fd, add, seals as usize, 0, 0, 0) };
}

/// Whether a descriptor is one of memory of just this length that nobody can change any more, and that can still be written to. Where somebody takes that away before it is
/// mapped it can't be mapped, and afterwards the kernel takes it from nobody.
pub fn is_sealed(fd: BorrowedFd<'_>, len: usize) -> bool {
    let number = fd.as_raw_fd();
    // SAFETY: numbers only.
    let seals = unsafe {
        syscall6(
            libc::SYS_fcntl,
            number as usize,
            libc::F_GET_SEALS as usize,
            0,
            0,
            0,
            0,
        )
    };
    seals >= 0
        && seals as i32 & SEALS == SEALS
        && seals as i32 & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) == 0
        && raw::fstat(number).is_ok_and(|st| st.st_size as usize == len)
        // Not of huge pages of their own: where there is none left touching one is SIGBUS.
        && rustix::fs::fstatfs(fd).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn socket_to(name: &[u8; NAME_BYTES]) -> i32 {
        let fd = socket() as i32;
        assert_eq!(connect(fd, name), 0);
        fd
    }

    /// SPEC B16: the receiver learns from the kernel who has sent what, whatever the message says; memory that may shrink is none.
    #[test]
    fn memory_is_handed_over() {
        let socket = listen().unwrap();
        let name = name_of(socket.as_fd()).unwrap();
        let mut waiting = Waiting::default();
        assert!(matches!(waiting.receive(socket.as_fd()), Arrival::Nobody));
        let (fd, at) = memory(c"test", 8192, 0, core::ptr::null_mut()).unwrap();
        // SAFETY: mapped just now.
        unsafe { at.write(7) };
        let message = Message {
            version: 3,
            on_behalf: 9,
            token: 7,
        };
        assert_eq!(
            send(&name, fd, message, |_| false),
            -(libc::EACCES as isize)
        );
        assert_eq!(
            send(&name, fd, message, |peer| peer.pid == raw::getpid()),
            0
        );
        knock(socket.as_raw_fd());
        // Turned away.
        assert!(matches!(waiting.receive(socket.as_fd()), Arrival::Knock));
        let Arrival::Memory(handed) = waiting.receive(socket.as_fd()) else {
            panic!("no memory")
        };
        assert_eq!(handed.message, message);
        // SAFETY: takes no arguments.
        let uid = unsafe { libc::geteuid() };
        assert_eq!((handed.from.pid, handed.from.uid), (raw::getpid(), uid));
        assert!(is_sealed(handed.memory.as_fd(), 8192));
        assert!(!is_sealed(handed.memory.as_fd(), 4096));
        // Where both have mapped it whoever else has it may read.
        let its = mapped::map_file(handed.memory.as_raw_fd(), 8192, core::ptr::null_mut()).unwrap();
        belongs(handed.memory.as_fd());
        // SAFETY: mapped just now, and above.
        unsafe {
            its.write(8);
            assert_eq!(at.read(), 8);
            at.write(9);
            assert_eq!(its.read(), 9);
        }
        assert!(mapped::map_file(fd, 8192, core::ptr::null_mut()).is_none());
        assert_eq!(
            rustix::io::write(&handed.memory, b"x"),
            Err(rustix::io::Errno::PERM)
        );
        assert!(!is_sealed(handed.memory.as_fd(), 8192));
        let open = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 8192).unwrap();
        assert!(!is_sealed(open.as_fd(), 8192));
        assert!(!is_sealed(socket.as_fd(), 8192));
        assert!(matches!(waiting.receive(socket.as_fd()), Arrival::Knock));
        // Who has connected and is yet to say something is heard later.
        let silent = socket_to(&name);
        assert!(matches!(waiting.receive(socket.as_fd()), Arrival::Knock));
        assert!(!waiting.is_empty());
        assert_eq!(send_message(silent, fd, message), 0);
        assert!(matches!(
            waiting.receive(socket.as_fd()),
            Arrival::Memory(_)
        ));
        assert!(waiting.is_empty());
        raw::close(silent);
        complain(&name, 5, 6, |_| true);
        assert!(matches!(
            waiting.receive(socket.as_fd()),
            Arrival::Complaint(5, 6)
        ));
        assert!(matches!(waiting.receive(socket.as_fd()), Arrival::Nobody));
        raw::close(fd);
    }
}
