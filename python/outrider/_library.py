"""liboutrider.so: where it is, what its functions take, and what stands in for it where there is none."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import warnings
from typing import Any, Callable, Dict, Iterator, List, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))


class Range(ctypes.Structure):
    """``struct outrider_range``."""

    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class Access(ctypes.Structure):
    """``struct outrider_access``."""

    _fields_ = [
        ("fd", ctypes.c_int),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
    ]


class Position(ctypes.Structure):
    """``struct outrider_position``."""

    _fields_ = [
        ("mark_fd", ctypes.c_int),
        ("fd", ctypes.c_int),
        ("mark_offset", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
    ]


FIGURES = (
    "declared_bytes",
    "cached_bytes",
    "fetched_bytes",
    "used_bytes",
    "evicted_bytes",
    "dropped_bytes",
    "infill_bytes",
    "rounds",
    "diverged_reads",
    "callbacks",
    "failures",
)


class Figures(ctypes.Structure):
    """``struct outrider_stats``."""

    _fields_ = [(name, ctypes.c_uint64) for name in FIGURES]


NEXT: Any = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
CALLBACK: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(Position))

# Arrays are passed by address, so that numpy's and array's go as they are.
_SIGNATURES: Dict[str, Tuple[Any, List[Any]]] = {
    "outrider_declare": (ctypes.c_ssize_t, [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]),
    "outrider_pull": (ctypes.c_int, [ctypes.c_int, NEXT, ctypes.c_void_p]),
    "outrider_client_new": (ctypes.c_void_p, [CALLBACK, ctypes.c_void_p]),
    "outrider_client_free": (ctypes.c_int, [ctypes.c_void_p]),
    "outrider_region_add": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]),
    "outrider_region_remove": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]),
    "outrider_request": (ctypes.c_ssize_t, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]),
    "outrider_ignore": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "outrider_reading": (ctypes.c_int, [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]),
    "outrider_stats": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t]),
    "outrider_settle": (ctypes.c_int, [ctypes.c_int]),
    "outrider_version": (ctypes.c_uint32, []),
}


class Nothing:
    """What is called where there is no library: everything succeeds, and nothing is prefetched."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name not in _SIGNATURES:
            raise AttributeError(name)
        return lambda *_: 0

    def outrider_declare(self, _fd: int, _ranges: Any, count: int) -> int:
        return count

    def outrider_client_new(self, _callback: Any, _context: Any) -> int:
        return 1

    def outrider_request(self, _client: int, _accesses: Any, count: int, _how: int) -> int:
        return count


def _typed(library: Any) -> Any:
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def kept(place: str) -> Iterator[str]:
    """A file above the package, if whoever can put another in its place could do so with the package: where that was unpacked in a directory of all, anybody may put
    one near it."""
    try:
        file, own = os.path.realpath(place), os.path.realpath(__file__)
        package, beside = os.lstat(own), os.lstat(os.path.dirname(own))
        owners = {0, os.geteuid(), package.st_uid, beside.st_uid}
        groups: List[int] = []
        if beside.st_mode & 0o1020 == 0o020:
            groups.append(beside.st_gid)
        if package.st_mode & 0o020:
            groups.append(package.st_gid)
        # As on a file system that has no permissions.
        anybody = package.st_mode & 0o002 or beside.st_mode & 0o1002 == 0o002
        at = os.path.commonpath([file, own])
        for name in os.path.relpath(file, at).split(os.sep):
            at = os.path.join(at, name)
            found = os.lstat(at)
            closed = anybody or not found.st_mode & 0o022
            # A group, if it may exchange the package, or is its owner's own.
            closed = closed or not found.st_mode & 0o002 and found.st_gid in [*groups, found.st_uid]
            # Of what lies in such a directory each is changed by its owner only.
            closed = closed or bool(at != file and found.st_mode & 0o1000)
            if stat.S_ISLNK(found.st_mode) or not closed or found.st_uid not in owners:
                return
        yield file
    except (OSError, AttributeError, ValueError):
        return


def _load() -> Tuple[Any, bool, bool]:
    """The library, whether it is one, and whether the process's reads go through it by themselves."""
    try:
        return _typed(ctypes.CDLL(None, use_errno=True)), True, True
    except (OSError, AttributeError, TypeError):
        pass
    named = os.environ.get("OUTRIDER_LIBRARY")
    above = [
        os.path.join(HERE, "..", "..", "target", "release", "liboutrider.so"),
        os.path.join(HERE, "..", "..", "..", "..", "lib", "liboutrider.so"),
    ]
    places = [named] if named else [
        os.path.join(HERE, "lib", "liboutrider.so"),
        *(file for place in above for file in kept(place)),
        "/usr/local/lib/liboutrider.so",
        "liboutrider.so.0",
        "liboutrider.so",
    ]
    failures = []
    for place in places:
        try:
            return _typed(ctypes.CDLL(place, use_errno=True)), True, False
        except (OSError, AttributeError) as error:
            failures.append(str(error))
    # The warning names whoever imports the package; frames of the import itself don't count.
    level, frame = 1, sys._getframe()
    while frame.f_back:
        level += os.path.dirname(frame.f_code.co_filename) == HERE
        frame = frame.f_back
    warnings.warn(
        "nothing is prefetched: no liboutrider.so that can be used: " + "; ".join(failures),
        RuntimeWarning,
        stacklevel=level,
    )
    return Nothing(), False, False


library, available, seen = _load()


def check(result: Any) -> Any:
    """The result of a call, or OSError with what the library says."""
    if result is None or result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class _Counted(ctypes.Structure):
    """``struct cachestat_range`` and ``struct cachestat`` of the kernel."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("offset", "length", "cached", "dirty", "writeback", "evicted", "recently_evicted")]


def _cachestat() -> Any:
    """The C library's `syscall`, called with the interpreter's lock held: it takes less than letting that go."""
    try:
        call = ctypes.PyDLL(None).syscall
    except (OSError, AttributeError, TypeError):
        return None
    call.restype = ctypes.c_long
    call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    return call


#: The number of cachestat(2), from Linux 6.5 on, on every architecture but Alpha.
_CACHESTAT = 451
_counts = _cachestat() if available else None
_page = os.sysconf("SC_PAGE_SIZE") if available else 4096


def is_cached(fd: int, size: int, most: int) -> bool:
    """Whether a file of `size` bytes is wholly in the page cache. False also where the kernel doesn't tell, and beyond `most` bytes."""
    if _counts is None or size > most:
        return False
    counted = _Counted()
    at = ctypes.addressof(counted)
    if _counts(_CACHESTAT, fd, at, at + 16, 0) != 0:
        return False
    return bool(counted.cached * _page >= size)
