"""Declared access for Python: say what will be read, and have it there in time.

A program that knows what it will read declares it, as byte ranges in the order of need. Outrider fetches them into the
page cache ahead of the reads, in the order that suits the device and as far ahead as memory allows. A wrong or stale list costs
time, never correctness::

    import outrider

    with open("train.bin", "rb", buffering=0) as data:
        outrider.declare(data, [(i * RECORD, RECORD) for i in order])
        for i in order:
            sample = outrider.pread(data, RECORD, i * RECORD)

Where the order is long, or isn't known at once, `pull` takes an iterator and draws from it as far ahead as is useful.

Reads are seen by themselves where the library is preloaded (``outrider run -- python3 …``) or linked. Elsewhere Outrider has to
be told of them: by reading with `pread` or `File` of this module, or with `reading` before a memory map or anything else is read.
Telling it twice does no harm.

Files are named by an object with ``fileno()`` or a descriptor. Errors of the library are OSErrors. Buffered file objects read
ahead themselves, so open data with ``buffering=0`` or `File`.

This is one file without dependencies, over liboutrider.so, which is looked for in the process itself, at ``$OUTRIDER_LIBRARY``,
beside this file, in a build tree's ``target/release``, in ``lib`` of the prefix under which this file is installed, in
``/usr/local/lib`` and where the loader finds it.
"""

import collections
import contextlib
import ctypes
import errno
import io
import os
import threading

__all__ = [
    "APPEND",
    "SET",
    "SET_FROM_MARK",
    "Access",
    "Client",
    "File",
    "Position",
    "Stats",
    "declare",
    "pread",
    "pull",
    "reading",
    "settle",
    "stats",
    "version",
]

#: How `Client.request` changes the list: it is replaced, goes on, or what follows the latest mark passed is replaced.
SET, APPEND, SET_FROM_MARK = 0, 1, 2
_DONE = 16
_MARKED = 1


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Access(ctypes.Structure):
    _fields_ = [
        ("fd", ctypes.c_int),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
    ]


class _Position(ctypes.Structure):
    _fields_ = [
        ("mark_fd", ctypes.c_int),
        ("fd", ctypes.c_int),
        ("mark_offset", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
    ]


#: What became of what this process declared, in bytes and counts, as in ``struct outrider_stats``.
Stats = collections.namedtuple(
    "Stats",
    "declared_bytes cached_bytes fetched_bytes used_bytes evicted_bytes dropped_bytes infill_bytes rounds "
    "diverged_reads callbacks failures",
)


class _Stats(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in Stats._fields]


#: An entry of an access list: ``Access(file, offset, length, marked=False)``.
Access = collections.namedtuple("Access", "file offset length marked", defaults=(False,))

#: Where the program is in its list, for callbacks: the latest marked entry that was passed (``mark_fd`` is -1 if none was) and the
#: read that made the call.
Position = collections.namedtuple("Position", "mark_fd mark_offset fd offset")

_NEXT = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(_Access), ctypes.c_size_t)
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(_Position))

_SIGNATURES = {
    "outrider_declare": (ctypes.c_ssize_t, [ctypes.c_int, ctypes.POINTER(_Range), ctypes.c_size_t]),
    "outrider_pull": (ctypes.c_int, [ctypes.c_int, _NEXT, ctypes.c_void_p]),
    "outrider_client_new": (ctypes.c_void_p, [_CALLBACK, ctypes.c_void_p]),
    "outrider_client_free": (ctypes.c_int, [ctypes.c_void_p]),
    "outrider_region_add": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]),
    "outrider_region_remove": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]),
    "outrider_request": (
        ctypes.c_ssize_t,
        [ctypes.c_void_p, ctypes.POINTER(_Access), ctypes.c_size_t, ctypes.c_int],
    ),
    "outrider_ignore": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "outrider_reading": (ctypes.c_int, [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]),
    "outrider_stats": (ctypes.c_int, [ctypes.POINTER(_Stats), ctypes.c_size_t]),
    "outrider_settle": (ctypes.c_int, [ctypes.c_int]),
    "outrider_version": (ctypes.c_uint32, []),
}


def _load():
    """The library, and whether the process's reads go through it by themselves."""
    with contextlib.suppress(OSError, AttributeError):
        process = ctypes.CDLL(None, use_errno=True)
        process.outrider_version  # noqa: B018 - looks the name up
        return process, True
    here = os.path.dirname(os.path.abspath(__file__))
    named = os.environ.get("OUTRIDER_LIBRARY")
    places = [named] if named else [
        os.path.join(here, "liboutrider.so"),
        os.path.join(here, "..", "target", "release", "liboutrider.so"),
        os.path.join(here, "..", "..", "..", "lib", "liboutrider.so"),
        "/usr/local/lib/liboutrider.so",
        "liboutrider.so.0",
        "liboutrider.so",
    ]
    failures = []
    for place in places:
        try:
            library = ctypes.CDLL(place, use_errno=True)
            library.outrider_version  # noqa: B018
            return library, False
        except (OSError, AttributeError) as error:
            failures.append(str(error))
    raise ImportError("no liboutrider.so that can be used: " + "; ".join(failures))


_library, _seen = _load()
for _name, (_result, _arguments) in _SIGNATURES.items():
    _function = getattr(_library, _name)
    _function.restype = _result
    _function.argtypes = _arguments


def _check(result):
    if result is None or result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _fd(file):
    if isinstance(file, int) and not isinstance(file, bool):
        return file
    try:
        return file.fileno()
    except AttributeError:
        raise TypeError(f"a file object or a descriptor is wanted, not {type(file).__name__}") from None


def _number(value, what):
    if not isinstance(value, int):
        value = value.__index__()  # numpy's integers
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{what} must be from 0 to 2^64 - 1 bytes, not {value}")
    return value


def declare(file, ranges):
    """Declares that `ranges`, pairs of offset and length in bytes, of `file` will be read in this order.

    It replaces what was declared for the file before; an empty list takes it back. Returns how many ranges were taken.
    """
    fd = _fd(file)
    ranges = list(ranges)
    array = (_Range * max(len(ranges), 1))()
    for slot, (offset, length) in zip(array, ranges):
        slot.offset = _number(offset, "an offset")
        slot.length = _number(length, "a length")
    return _check(_library.outrider_declare(fd, array, len(ranges)))


def _fill(slot, access, default):
    """Fills an array's slot from an `Access`, a triple (file, offset, length), or a pair (offset, length)."""
    marked = False
    if len(access) == 2:
        fd, (offset, length) = default, access
        if fd is None:
            raise TypeError("an access needs a file: (file, offset, length)")
    else:
        fd, offset, length = _fd(access[0]), access[1], access[2]
        marked = len(access) > 3 and bool(access[3])
    slot.fd = fd
    slot.flags = _MARKED if marked else 0
    slot.offset = _number(offset, "an offset")
    slot.length = _number(length, "a length")


# Functions that the library may call, by the file that names their list. One that is replaced is kept for as long as it may run.
_pulled = {}
_pulled_lock = threading.Lock()


@ctypes.CFUNCTYPE(None, ctypes.py_object)
def _report(error):
    """Goes to sys.unraisablehook: ctypes gives it what a function without a result raises."""
    raise error


def _identity(fd):
    about = os.fstat(fd)
    return about.st_dev, about.st_ino


class _Pulled:
    """A list that is drawn from an iterator; ends with `close` or at the end of a with block."""

    def __init__(self, fd, key):
        self._fd = fd
        self._key = key

    def close(self):
        """Takes the list back: the iterator is not asked any more."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        with _pulled_lock:
            mine = _pulled.get(self._key, (None, None))[0] is self
        if not mine:
            return  # another list has taken its place
        with contextlib.suppress(OSError):
            if _identity(fd) == self._key:
                _check(_library.outrider_pull(fd, _NEXT(), None))
        with _pulled_lock:
            if _pulled.get(self._key, (None, None))[0] is self:
                del _pulled[self._key]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def pull(file, accesses):
    """Declares what an iterator yields, drawing from it as far ahead as is useful, from within reads.

    It yields pairs (offset, length) of `file`, or triples (file, offset, length), or `Access`. `file` names the list and must be
    one of its files. An exception in the iterator ends the list and is reported as unraisable. The iterator must not call
    this module. Returns an object whose `close` (or with block) takes the list back; `pull(file, None)` does as well.
    """
    fd = _fd(file)
    key = _identity(fd)
    if accesses is None:
        _check(_library.outrider_pull(fd, _NEXT(), None))
        with _pulled_lock:
            _pulled.pop(key, None)
        return None
    iterator = iter(accesses)
    # Two threads may read at once, but a generator runs once at a time.
    turn = threading.Lock()

    def fill(_ctx, entries, room):
        count = 0
        try:
            with turn:
                while count < room:
                    try:
                        access = next(iterator)
                    except StopIteration:
                        break
                    _fill(entries[count], access, fd)
                    count += 1
        except BaseException as error:  # it can't pass through the read that asked
            _report(error)
            return 0
        return count

    function = _NEXT(fill)
    pulled = _Pulled(fd, key)
    with _pulled_lock:
        before = _pulled.get(key)
        _pulled[key] = (pulled, function)
    try:
        _check(_library.outrider_pull(fd, function, None))
    except OSError:
        with _pulled_lock:
            if before is None:
                _pulled.pop(key, None)
            else:
                _pulled[key] = before
        raise
    return pulled


class Client:
    """An access list of its own, over regions of files (libprefetch's interface).

    `callback(client, position)` is called from within reads, when the list is half read or runs out, or the program reads in a region but outside the
    list; it may call `request` of this client and nothing else of this module. Exceptions in it are reported as unraisable.
    """

    SET, APPEND, SET_FROM_MARK = SET, APPEND, SET_FROM_MARK

    def __init__(self, callback=None):
        self._handle = None
        if callback is None:
            self._function = _CALLBACK()
        else:

            def call(_client, _ctx, at):
                at = at.contents
                callback(self, Position(at.mark_fd, at.mark_offset, at.fd, at.offset))

            self._function = _CALLBACK(call)
        self._handle = _check(_library.outrider_client_new(self._function, None))

    def _live(self):
        if self._handle is None:
            raise OSError(errno.EINVAL, "the client is closed")
        return self._handle

    def add_region(self, file, offset=0, length=0):
        """Lets the list cover `length` bytes of `file` from `offset` on; 0 means to its end, wherever that will be."""
        _check(
            _library.outrider_region_add(
                self._live(), _fd(file), _number(offset, "an offset"), _number(length, "a length")
            )
        )

    def remove_region(self, file, offset=0):
        """Takes the region of `file` that begins at `offset` back."""
        _check(_library.outrider_region_remove(self._live(), _fd(file), _number(offset, "an offset")))

    def request(self, accesses, how=SET, done=True):
        """Gives accesses that will follow: triples (file, offset, length) or `Access`. Returns how many were taken.

        `how` is `SET`, `APPEND` or `SET_FROM_MARK`; with `done` the update is complete and fetching starts.
        """
        accesses = list(accesses)
        array = (_Access * max(len(accesses), 1))()
        for slot, access in zip(array, accesses):
            _fill(slot, access, None)
        return _check(_library.outrider_request(self._live(), array, len(accesses), how | (_DONE if done else 0)))

    @contextlib.contextmanager
    def ignore(self):
        """Within this block what the calling thread reads doesn't count for the list."""
        _check(_library.outrider_ignore(self._live(), 1))
        try:
            yield self
        finally:
            _check(_library.outrider_ignore(self._live(), 0))

    def close(self):
        """Ends the client: its list is forgotten and its regions are free."""
        if self._handle is not None:
            _check(_library.outrider_client_free(self._handle))
            self._handle = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()


def reading(file, offset, length):
    """Says that `length` bytes of `file` at `offset` are about to be read, where Outrider can't see it by itself."""
    _check(_library.outrider_reading(_fd(file), _number(offset, "an offset"), _number(length, "a length")))


def pread(file, length, offset):
    """os.pread that Outrider knows of. Returns the bytes, fewer at the end of the file."""
    fd = _fd(file)
    if not _seen and length > 0 and offset >= 0:
        _library.outrider_reading(fd, offset, length)
    return os.pread(fd, length, offset)


class File(io.FileIO):
    """An unbuffered file opened for reading whose reads Outrider knows of."""

    def __init__(self, file, closefd=True, opener=None):
        super().__init__(file, "r", closefd, opener)

    def _tell_outrider(self, length):
        if _seen or length == 0:
            return
        fd = self.fileno()
        with contextlib.suppress(OSError):
            at = self.tell()
            if length < 0:
                length = max(os.fstat(fd).st_size - at, 0)
            _library.outrider_reading(fd, at, length)

    def readinto(self, buffer):
        self._tell_outrider(memoryview(buffer).nbytes)
        return super().readinto(buffer)

    def read(self, size=-1):
        self._tell_outrider(-1 if size is None or size < 0 else size)
        return super().read(size)

    def readall(self):
        self._tell_outrider(-1)
        return super().readall()

    def pread(self, length, offset):
        """Reads at an offset, without moving the file's own."""
        return pread(self, length, offset)


def stats():
    """What became of what this process declared so far, as `Stats`."""
    figures = _Stats()
    _check(_library.outrider_stats(ctypes.byref(figures), ctypes.sizeof(figures)))
    return Stats(*(getattr(figures, name) for name in Stats._fields))


def settle(timeout=None):
    """Waits until what is wanted now was asked for, at most `timeout` seconds. For tests and tools."""
    _check(_library.outrider_settle(-1 if timeout is None else max(int(timeout * 1000), 0)))


def version():
    """The library's version as a triple."""
    number = _library.outrider_version()
    return number >> 16 & 0xFF, number >> 8 & 0xFF, number & 0xFF
