"""Lists of what will be read, clients, and reads that Outrider is told of."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import errno
import io
import itertools
import os
import sys
import threading
import time
from array import array
from dataclasses import astuple, dataclass
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, NoReturn, Optional, Tuple, Type, Union

from . import _library as lib
from ._ranges import FileLike, Packed, Ranges, _as_numpy, descriptor_of, number, pack, path_of

#: How `Client.request` changes the list: it is replaced, goes on, or what follows the latest mark passed is replaced.
SET, APPEND, SET_FROM_MARK = 0, 1, 2
#: Entries that one list of the library's holds; a longer one is handed over as it is read.
LIST_MAX = 1 << 20
#: Looks, a millisecond apart, that find a thread outside its callback before it counts as out of the library's call, too. That may call back
#: several times, and what is raised within a callback goes no further: with one look three of eight runs of the tests saw that, with five none
#: of thirty.
QUIET = 5
_DONE = 16
_MARKED = 1


@dataclass(frozen=True)
class Stats:
    """What became of what was declared, as in ``struct outrider_stats``: `rounds`, `diverged_reads`, `callbacks` and `failures` are counts,
    the others bytes. Several processes' can be added, and two of one process subtracted; `sum` takes them."""

    declared_bytes: int = 0
    cached_bytes: int = 0
    fetched_bytes: int = 0
    used_bytes: int = 0
    evicted_bytes: int = 0
    dropped_bytes: int = 0
    infill_bytes: int = 0
    rounds: int = 0
    diverged_reads: int = 0
    callbacks: int = 0
    failures: int = 0

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(*map(int.__add__, astuple(self), astuple(other)))

    def __radd__(self, other: int) -> "Stats":  # sum() begins with 0
        return self if other == 0 else NotImplemented

    def __sub__(self, other: "Stats") -> "Stats":
        return Stats(*map(int.__sub__, astuple(self), astuple(other)))


class Access(NamedTuple):
    """An entry of an access list, in bytes; `marked` makes it a landmark for `SET_FROM_MARK`."""

    file: FileLike
    offset: int
    length: int
    marked: bool = False


class Position(NamedTuple):
    """Where the program is in its list, for callbacks: the latest marked entry that was passed (`mark_fd` is -1 if none was) and the read
    that made the call. Offsets are bytes."""

    mark_fd: int
    mark_offset: int
    fd: int
    offset: int


Accesses = Union[Iterable[Any], Any]


def _identity(fd: int) -> Tuple[int, int]:
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


class _Files:
    """Files that were named by their path, open for as long as a list names them."""

    def __init__(self) -> None:
        self._open: Dict[Union[str, bytes], int] = {}
        self._process = os.getpid()

    def fd(self, file: FileLike) -> int:
        path = path_of(file)
        if path is None:
            return descriptor_of(file)
        if path not in self._open:
            self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._open[path]

    def close(self) -> None:
        opened, self._open = self._open, {}
        if os.getpid() == self._process:
            for fd in opened.values():
                os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


class _OfThisProcess:
    """What can't go to another process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} belongs to its process and can't be pickled: declare in the process that reads, "
            "or let the main process do it (outrider.torch.prefetch)"
        )


class _Live(NamedTuple):
    """A list that the library has: its owner, the descriptor that it was declared by, the function that it may call, and files that it names."""

    owner: object
    fd: int
    function: Any
    files: _Files


# By the file that names the list. A function that is replaced is kept for as long as it may run.
_live: Dict[Tuple[int, int], _Live] = {}
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


# Another thread may have it while one forks.
os.register_at_fork(after_in_child=_renew_lock)


def _begin(key: Tuple[int, int], live: _Live, call: Callable[[], Any]) -> Any:
    """Has the library take a list, in place of what it had for the file."""
    with _lock:
        before = _live.get(key)
        _live[key] = live
    try:
        return lib.check(call())
    except OSError:
        with _lock:
            if before is None:
                _live.pop(key, None)
            else:
                _live[key] = before
        raise


def _end(key: Tuple[int, int], owner: object, fd: int) -> None:
    with _lock:
        live = _live.get(key)
    if live is None or live.owner is not owner:
        return  # another list has taken its place
    with contextlib.suppress(OSError):
        if _identity(fd) == key:
            lib.check(lib.library.outrider_pull(fd, lib.NEXT(), None))
    with _lock:
        if _live.get(key) is live:
            del _live[key]
    live.files.close()
    _pass_on()


def forget_closed(fd: int, closing: Optional[int] = None) -> bool:
    """Takes back the list of the file behind `fd` if the descriptor that it was declared by is `closing`, or was closed: the library sees that
    only where it is preloaded. Whether there was one."""
    try:
        key = _identity(fd)
        live = _live.get(key)
        if live is None:
            return False
        if live.fd != closing:
            with contextlib.suppress(OSError):
                if _identity(live.fd) == key:
                    return False
        lib.check(lib.library.outrider_pull(fd, lib.NEXT(), None))
    except OSError:
        return False
    with _lock:
        if _live.get(key) is live:
            del _live[key]
    return True


class Declared(_OfThisProcess, int):
    """A declared list: how many ranges were taken, with `close`, which takes it back, as the end of a with block does."""

    _fd: Optional[int]
    _key: Tuple[int, int]

    def close(self) -> None:
        """Takes the list back. A second time, or when another list has taken its place, it does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            _end(self._key, self, fd)

    def __enter__(self) -> "Declared":
        return self

    def __exit__(
        self, _type: Optional[Type[BaseException]], _value: Optional[BaseException], _trace: Optional[TracebackType]
    ) -> None:
        self.close()


def declare(file: FileLike, ranges: Ranges, length: Any = None) -> Declared:
    """Declares that `ranges` of `file` will be read in this order.

    `ranges` are pairs (offset, length), ``range(start, stop)`` or an array of numpy's with two columns, all in bytes. With `length`, in bytes,
    they are offsets instead: a list, a ``range`` or an array, and `length` is one for all or one for each.

    It replaces what was declared for the file before; an empty list takes it back. A file that is named by its path is kept open meanwhile.
    A list of more than `LIST_MAX` ranges is handed over as it is read.

    Returns how many ranges were taken, which is also a context manager. OSError: EBADF, ESPIPE for what is no regular file open for reading,
    EBUSY where a client has the file, ENOMEM; and what opening a path gives. TypeError, ValueError: these are no ranges.
    """
    packed = pack(ranges, length)
    files = _Files()
    fd = files.fd(file)
    declared = Declared(packed.count)
    declared._fd = fd
    if not lib.available:
        declared._key = (0, 0)
        return declared
    if packed.count > LIST_MAX:
        declared._key = _identity(fd)
        function = _next(_Whole(fd, packed).fill)
        _begin(declared._key, _Live(declared, fd, function, files), lambda: lib.library.outrider_pull(fd, function, None))
        return declared
    with contextlib.suppress(OSError):  # the library says what is wrong
        declared._key = _identity(fd)

    def call() -> Any:
        return lib.library.outrider_declare(fd, packed.address, packed.count)

    if packed.count == 0 or not hasattr(declared, "_key"):
        lib.check(call())
        declared._fd = None
        with _lock:
            _live.pop(_identity(fd), None)
        return declared
    _begin(declared._key, _Live(declared, fd, None, files), call)
    return declared


class _Whole:
    """A list in memory that is handed over in parts."""

    def __init__(self, fd: int, packed: Packed) -> None:
        self._fd = fd
        self._packed = packed
        self._words = packed.words()
        self._at = 0

    def fill(self, _context: Any, entries: int, room: int) -> int:
        count = min(room, self._packed.count - self._at)
        words = array("Q", bytes(24 * count))
        view = memoryview(words)
        view[0::3] = memoryview(array("Q", [self._fd]) * count)
        part = self._words[2 * self._at : 2 * (self._at + count)]
        view[1::3] = part[0::2]
        view[2::3] = part[1::2]
        ctypes.memmove(entries, words.buffer_info()[0], 24 * count)
        self._at += count
        return count


def _access(access: Any, default: Optional[int], files: _Files) -> Tuple[int, int, int]:
    """Descriptor with flags, offset and length of an `Access`, a triple (file, offset, length), a pair (offset, length) or a range."""
    marked = False
    if isinstance(access, range):
        access = (access.start, len(access))
    if not isinstance(access, (tuple, list)) and (isinstance(access, (str, bytes, bytearray)) or not hasattr(access, "__len__")):
        raise TypeError(f"an access (offset, length) or (file, offset, length) in bytes is wanted, not {access!r}")
    if len(access) == 2:
        if default is None:
            raise TypeError("an access needs a file: (file, offset, length)")
        fd, (offset, length) = default, access
    else:
        fd, offset, length = files.fd(access[0]), access[1], access[2]
        marked = len(access) > 3 and bool(access[3])
    return (
        (fd & 0xFFFFFFFF) | (_MARKED << 32 if marked else 0),
        number(offset, "an offset"),
        number(length, "a length"),
    )


def _raise(error: BaseException) -> None:
    raise error


# Goes to sys.unraisablehook: ctypes gives it what a function without a result raises.
_report: Any = ctypes.CFUNCTYPE(None, ctypes.py_object)(_raise)


# What ends a thread, by the thread that is to get it: one error, until somebody has taken it out to raise it.
_due: Dict[int, List[BaseException]] = {}


def _pass_on() -> None:
    """At the end of a call that may have had the library ask: raises what can't pass through it."""
    if not _due:
        return
    error = None
    with contextlib.suppress(KeyError, IndexError):
        error = _due.pop(threading.get_ident()).pop()
    if error is not None:
        raise error


def _ending(call: Callable[..., int]) -> Callable[..., int]:
    """`call` for the library. What ends a thread (SystemExit and whatever else is no `Exception`) can't pass through the read that asked, so its
    thread gets it after that, and a KeyboardInterrupt the main program."""

    def called(*arguments: Any) -> int:
        try:
            return call(*arguments)
        except Exception:  # ctypes reports it
            raise
        except BaseException as error:
            to: Optional[int] = threading.get_ident()
            if isinstance(error, KeyboardInterrupt):
                to = threading.main_thread().ident
            if to is not None and not _due.get(to):
                due = _due[to] = [error]
                _thread.start_new_thread(_end_thread, (to, due, called.__code__))
            return 0

    return called


def _end_thread(thread: int, due: List[BaseException], code: Any) -> None:
    """Raises in a thread what is due there, where no call of this package passes it on, as soon as it isn't within the library's call any more."""
    quiet = 0
    while due and quiet < QUIET:
        time.sleep(0.001)
        frame = sys._current_frames().get(thread)
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        quiet = quiet + 1 if frame is None else 0
    error = None
    with contextlib.suppress(IndexError):
        error = due.pop()
    if isinstance(error, KeyboardInterrupt):
        _thread.interrupt_main()
    elif error is not None and not _raise_in(thread, error):
        with contextlib.suppress(BaseException):
            _report(error)


def _raise_in(thread: int, error: BaseException) -> bool:
    """Has a thread go on by raising `error`. False: it has ended, or isn't Python's."""

    def raised(_class: Any, *_arguments: Any) -> BaseException:
        return error

    # The interpreter takes classes only, and raises what calling one gives; before 3.11 by the class's name.
    namespace = {"__new__": raised}
    try:
        carrier = type("Raised", (type(error),), namespace)
    except Exception:  # not to be derived from
        carrier = type("Raised", (BaseException,), namespace)
    with contextlib.suppress(AttributeError):  # not in every interpreter
        told = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(carrier))
        return bool(told > 0)
    return False


def _next(fill: Callable[[Any, int, int], int]) -> Any:
    return lib.NEXT(_ending(fill))


class Pulled(_OfThisProcess):
    """A list that is drawn from an iterator; ends with `close` or at the end of a with block."""

    def __init__(self, fd: int, key: Tuple[int, int]) -> None:
        self._fd: Optional[int] = fd
        self._key = key

    def close(self) -> None:
        """Takes the list back: the iterator is not asked any more."""
        fd, self._fd = self._fd, None
        if fd is not None:
            _end(self._key, self, fd)

    def __enter__(self) -> "Pulled":
        return self

    def __exit__(
        self, _type: Optional[Type[BaseException]], _value: Optional[BaseException], _trace: Optional[TracebackType]
    ) -> None:
        self.close()


def pull(file: FileLike, accesses: Optional[Accesses], length: Any = None) -> Optional[Pulled]:
    """Declares what an iterator yields, drawing from it as far ahead as is useful, from within reads.

    It yields pairs (offset, length) of `file`, ``range(start, stop)``, triples (file, offset, length), or `Access`, in bytes; with `length`, in
    bytes, it yields offsets. `file` names the list and must be one of its files. A file that is named by a path is kept open until the list
    ends. An exception in the iterator ends the list and is reported as unraisable. SystemExit and what else is no `Exception` is raised behind
    the read that asked for more, in its thread, and KeyboardInterrupt in the main program. About 65,536 ranges in a row that are empty or past
    the end of their file end the list, too. The iterator must not call this package.

    Returns an object whose `close` (or with block) takes the list back; `pull(file, None)` does as well, and returns None. OSError as `declare`.
    """
    files = _Files()
    fd = files.fd(file)
    if not lib.available:
        return None if accesses is None else Pulled(fd, (0, 0))
    if accesses is None:
        lib.check(lib.library.outrider_pull(fd, lib.NEXT(), None))
        with _lock:
            live = _live.pop(_identity(fd), None)
        if live is not None:
            live.files.close()
        return None
    fill: Callable[[Any, int, int], int]
    if isinstance(accesses, range) or _as_numpy(accesses) is not None:
        fill = _Whole(fd, pack(accesses, length)).fill
    else:
        fill = _Drawn(fd, accesses, length, files).fill
    function = _next(fill)
    key = _identity(fd)
    pulled = Pulled(fd, key)
    _begin(key, _Live(pulled, fd, function, files), lambda: lib.library.outrider_pull(fd, function, None))
    _pass_on()
    return pulled


class _Drawn:
    """A list that an iterator yields."""

    def __init__(self, fd: int, accesses: Iterable[Any], length: Optional[int], files: _Files) -> None:
        self._fd = fd
        self._iterator = iter(accesses)
        self._length = length
        self._files = files
        # Two threads may read at once, but a generator runs once at a time.
        self._turn = threading.Lock()

    def fill(self, _context: Any, entries: int, room: int) -> int:
        words = array("Q")
        try:
            with self._turn:
                for access in itertools.islice(self._iterator, room):
                    if self._length is not None:
                        access = (access, self._length)
                    words.extend(_access(access, self._fd, self._files))
        except Exception as error:  # it can't pass through the read that asked
            _report(error)
            return 0
        ctypes.memmove(entries, words.buffer_info()[0], 8 * len(words))
        return len(words) // 3


class Client(_OfThisProcess):
    """An access list of its own, over regions of files (libprefetch's interface).

    `callback(client, position)` is called from within reads, when the list is half read or runs out, or the program reads in a region but
    outside the list; it may call `request` of this client and nothing else of this package. Exceptions in it are reported as unraisable, but
    SystemExit and what else is no `Exception` is raised behind the read, and KeyboardInterrupt in the main program.
    Files that are named by their path are open until `close`. OSError: ENOSPC where 256 clients exist, ENOMEM.
    """

    SET, APPEND, SET_FROM_MARK = SET, APPEND, SET_FROM_MARK

    def __init__(self, callback: Optional[Callable[["Client", Position], object]] = None) -> None:
        self._handle: Optional[int] = None
        self._files = _Files()
        if callback is None:
            self._function = lib.CALLBACK()
        else:
            told = callback

            def call(_client: Any, _context: Any, at: Any) -> int:
                at = at.contents
                told(self, Position(at.mark_fd, at.mark_offset, at.fd, at.offset))
                return 0

            self._function = lib.CALLBACK(_ending(call))
        self._handle = lib.check(lib.library.outrider_client_new(self._function, None))

    def _live(self) -> int:
        if self._handle is None:
            raise OSError(errno.EINVAL, "the client is closed")
        return self._handle

    def add_region(self, file: FileLike, offset: int = 0, length: int = 0) -> None:
        """Lets the list cover `length` bytes of `file` from `offset` on; 0 means to its end, wherever that will be.

        OSError: EEXIST where it overlaps another region or what was declared, ENOSPC where 4096 regions exist, EBADF, ESPIPE, EINVAL."""
        fd = self._files.fd(file)
        lib.check(
            lib.library.outrider_region_add(self._live(), fd, number(offset, "an offset"), number(length, "a length"))
        )

    def remove_region(self, file: FileLike, offset: int = 0) -> None:
        """Takes the region of `file` that begins at `offset`, in bytes, back. OSError: ENOENT where there is none."""
        fd = self._files.fd(file)
        lib.check(lib.library.outrider_region_remove(self._live(), fd, number(offset, "an offset")))

    def request(self, accesses: Iterable[Any], how: int = SET, done: bool = True) -> int:
        """Gives accesses that will follow: triples (file, offset, length) or `Access`. Returns how many were taken.

        `how` is `SET`, `APPEND` or `SET_FROM_MARK`; with `done` the update is complete and fetching starts."""
        words = array("Q")
        for access in accesses:
            words.extend(_access(access, None, self._files))
        how |= _DONE if done else 0
        handle = self._live()
        return int(lib.check(lib.library.outrider_request(handle, words.buffer_info()[0], len(words) // 3, how)))

    @contextlib.contextmanager
    def ignore(self) -> Iterator["Client"]:
        """Within this block what the calling thread reads doesn't count for the list."""
        lib.check(lib.library.outrider_ignore(self._live(), 1))
        try:
            yield self
        finally:
            lib.check(lib.library.outrider_ignore(self._live(), 0))

    def close(self) -> None:
        """Ends the client: its list is forgotten and its regions are free."""
        handle, self._handle = self._handle, None
        if handle is not None:
            lib.check(lib.library.outrider_client_free(handle))
        self._files.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, _type: Optional[Type[BaseException]], _value: Optional[BaseException], _trace: Optional[TracebackType]
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def reading(file: FileLike, offset: int, length: int) -> None:
    """Says that `length` bytes of `file` at `offset` are about to be read, where Outrider can't see it by itself. OSError: EBADF."""
    at, size = number(offset, "an offset"), number(length, "a length")
    path = path_of(file)
    if path is None:
        lib.check(lib.library.outrider_reading(descriptor_of(file), at, size))
        _pass_on()
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        lib.check(lib.library.outrider_reading(fd, at, size))
    finally:
        os.close(fd)
    _pass_on()


def pread(file: FileLike, length: int, offset: int) -> bytes:
    """os.pread that Outrider knows of. Returns the bytes, fewer at the end of the file. OSError as os.pread."""
    fd = descriptor_of(file)
    if not lib.seen and length > 0 and offset >= 0:
        lib.library.outrider_reading(fd, offset, length)
        _pass_on()
    data = os.pread(fd, length, offset)
    _pass_on()
    return data


class File(io.FileIO):
    """An unbuffered file opened for reading whose reads Outrider knows of. What was declared by it ends with it."""

    def __init__(self, file: Any, closefd: bool = True, opener: Optional[Callable[[str, int], int]] = None) -> None:
        super().__init__(file, "r", closefd, opener)

    def _tell_outrider(self, length: int) -> None:
        if lib.seen or length == 0:
            return
        fd = self.fileno()
        with contextlib.suppress(OSError):
            at = self.tell()
            if length < 0:
                length = max(os.fstat(fd).st_size - at, 0)
            lib.library.outrider_reading(fd, at, length)
        _pass_on()

    def close(self) -> None:
        if not self.closed and not lib.seen and lib.available:
            with contextlib.suppress(OSError, ValueError):
                fd = self.fileno()
                forget_closed(fd, closing=fd)
        super().close()

    def readinto(self, buffer: Any) -> Any:
        self._tell_outrider(memoryview(buffer).nbytes)
        return super().readinto(buffer)

    def read(self, size: Optional[int] = -1) -> Any:
        self._tell_outrider(-1 if size is None or size < 0 else size)
        return super().read(-1 if size is None else size)

    def readall(self) -> Any:
        self._tell_outrider(-1)
        return super().readall()

    def pread(self, length: int, offset: int) -> bytes:
        """Reads `length` bytes at `offset`, without moving the file's own."""
        return pread(self, length, offset)


def stats() -> Stats:
    """What became of what this process declared so far."""
    figures = lib.Figures()
    lib.check(lib.library.outrider_stats(ctypes.addressof(figures), ctypes.sizeof(figures)))
    return Stats(*(getattr(figures, name) for name in lib.FIGURES))


def settle(timeout: Optional[float] = None) -> None:
    """Waits until what is wanted now was asked for, at most `timeout` seconds. For tests and tools. OSError: ETIMEDOUT. TypeError, ValueError:
    `timeout` is no number of seconds. More than 24 days are 24 days."""
    milliseconds = -1
    if timeout is not None:
        try:
            seconds = timeout * 1.0
        except (TypeError, OverflowError):
            raise TypeError(f"timeout must be a number of seconds or None, not {timeout!r}") from None
        if seconds != seconds:
            raise ValueError("timeout must be a number of seconds or None, not nan")
        milliseconds = int(min(max(seconds, 0.0) * 1000, float((1 << 31) - 1)))
    lib.check(lib.library.outrider_settle(milliseconds))


def version() -> Tuple[int, int, int]:
    """The library's version; (0, 0, 0) where there is none."""
    value = int(lib.library.outrider_version())
    return value >> 16 & 0xFF, value >> 8 & 0xFF, value & 0xFF
