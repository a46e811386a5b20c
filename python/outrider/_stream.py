"""A list over any number of files, which are opened ahead of their turn and closed behind it."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from array import array
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Deque, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

from . import _library as lib
from ._declared import APPEND, _DONE, forget_closed
from ._ranges import number

Path = Union[str, bytes]

#: Threads that open files: as many requests as remote storage answers side by side.
OPENERS = 16
#: Files that a thread takes at once where opening waits for storage, and where names are cached: there one thread does it all, since threads
#: of one interpreter wake each other for longer than an open takes.
TOGETHER, TOGETHER_QUICK = 4, 32
#: Seconds: an open that takes longer has waited for storage; so long a thread may keep to itself what it has opened.
WAITED = 100e-6
#: Files in a row that were found wholly cached, of which one in so many is looked at, until all are looked at, and cached ones left to the program.
#: Fewer may be chance: where memory is short, what is cached now is gone when its turn comes.
CACHED_IN_A_ROW, LOOK = 256, 8
#: Bytes of a file at most that is looked at: counting its pages takes as long as opening it.
LOOK_MAX = 16 << 20
#: Files that are open at most, of the 4096 regions that the library has for a process.
FILES_MAX = 1024
#: Bytes of an entry at most, so that a reader's place in a large file is known.
ENTRY = 1 << 20


class Piece(NamedTuple):
    """What will be read: bytes of a file. A length of None means to its end."""

    path: Path
    offset: int = 0
    length: Optional[int] = None


def piece_of(path: Path, offset: Any, length: Any) -> Piece:
    """A piece whose offset and length are checked, here and not on a thread that opens files. TypeError, ValueError: they are none."""
    return Piece(path, number(offset, "an offset"), None if length is None else number(length, "a length"))


class _Open:
    """A file that is open, or on the way to be."""

    __slots__ = ("fd", "size", "done", "region", "uses")

    def __init__(self) -> None:
        self.fd: Optional[int] = None
        self.size = 0
        self.done = False
        self.region = False
        self.uses = 0


class _Entry:
    __slots__ = ("piece", "file", "declared", "passed")

    def __init__(self, piece: Piece, file: _Open) -> None:
        self.piece = piece
        self.file = file
        self.declared: Optional[List[Tuple[int, int]]] = None
        self.passed = False


class Found:
    """What was found of files when they were opened, from one stream to the next over the same files."""

    __slots__ = ("cached", "unlooked")

    def __init__(self) -> None:
        # Files that were cached, one after the other, and files since the last look. Threads may count at once: neither need be exact.
        self.cached = 0
        self.unlooked = 0


def files_max() -> int:
    """Files that may be open at once: half of what the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_MAX if soft == resource.RLIM_INFINITY else max(min(soft // 2, FILES_MAX), 1)


class Stream:
    """Pieces of files in the order of need. `extend` adds to it, `passed` says how many more of them were read.

    Files are opened on threads, so neither waits for storage. What can't be opened is left to the program, which will see why.

    A child that fork made has none of the threads, and its lock may be held by one of them for ever: there all methods do nothing."""

    def __init__(self, found: Optional[Found] = None) -> None:
        self._process = os.getpid()
        self._found = found or Found()
        self._files_max = files_max()
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._open: Dict[Path, _Open] = {}
        self._entries: Deque[_Entry] = deque()
        self._waiting: Deque[_Entry] = deque()
        self._unopened: Deque[Tuple[Path, _Open]] = deque()
        self._opened = 0
        # Files that were passed. Many are closed at once, and those of late not: taking one off the list has the library look through it anew, and
        # what was used it counts a little later.
        self._passed: Deque[_Open] = deque()
        # Files that threads have taken and not told of yet, the threads, and how many are wanted.
        self._opening = 0
        self._threads = 0
        self._wanted = 1
        self._begun = False
        self._client: Optional[int] = None
        self._closed = False
        self._openers: Optional[ThreadPoolExecutor] = None
        if lib.available:
            with contextlib.suppress(OSError):
                self._client = lib.check(lib.library.outrider_client_new(lib.CALLBACK(), None))
        if self._client is not None:
            self._openers = ThreadPoolExecutor(OPENERS, "outrider-open")

    def __len__(self) -> int:
        """Pieces that were not passed yet."""
        return len(self._entries)

    @property
    def live(self) -> bool:
        """Whether anything is fetched."""
        return self._client is not None and self._is_mine()

    def _is_mine(self) -> bool:
        return os.getpid() == self._process

    def full(self) -> bool:
        """Whether as many files are wanted as may be open."""
        return len(self._open) >= self._files_max

    def extend(self, pieces: Iterable[Piece]) -> None:
        """Adds what will be read next."""
        if not self.live:
            return
        with self._lock:
            for piece in pieces:
                file = self._open.get(piece.path)
                if file is None:
                    file = self._open[piece.path] = _Open()
                    self._unopened.append((piece.path, file))
                file.uses += 1
                entry = _Entry(piece, file)
                self._entries.append(entry)
                self._waiting.append(entry)
            self._open_more()
            self._declare()

    def _may_open(self) -> bool:
        return bool(self._unopened) and self._opened < self._files_max and self._openers is not None

    def _open_more(self) -> None:
        while self._threads < self._wanted and self._threads * TOGETHER < len(self._unopened) and self._may_open():
            try:
                self._openers.submit(self._open_all)  # type: ignore[union-attr]
            except RuntimeError:  # no thread can be had, or the interpreter ends
                if self._threads == 0:
                    self._openers = None
                return
            self._threads += 1

    def _open_all(self) -> None:
        """A thread's work: opens files until none is left or as many are open as may be."""
        taken: List[Tuple[Path, _Open]] = []
        opened: List[Tuple[_Open, Optional[int], int]] = []
        ended = False
        try:
            while self._take_some(taken, opened):
                since = time.perf_counter()
                while taken:
                    path, _ = taken[-1]
                    found = self._open_one(path)
                    opened.append((taken.pop()[1], *found))
                    now = time.perf_counter()
                    if now - since > WAITED * len(opened):
                        self._tell(opened, now - since)
                        since = time.perf_counter()
            ended = True
        finally:
            if not ended:  # nobody may wait for what will never be opened, nor what follows it in the list
                with self._change:
                    self._threads -= 1
                    self._opening -= len(taken) + len(opened)
                    left: List[Tuple[_Open, Optional[int]]] = [(file, None) for _, file in taken]
                    left += [(file, fd) for file, fd, _ in opened]
                    for file, fd in left:
                        if file.done:
                            continue
                        if fd is not None:
                            os.close(fd)
                        file.done = True
                        self._opened -= 1
                    self._open_more()
                    if not self._closed:
                        self._declare()
                    self._change.notify_all()

    def _take_some(self, taken: List[Tuple[Path, _Open]], opened: List[Tuple[_Open, Optional[int], int]]) -> bool:
        """Tells of what was opened, and takes what is opened next, the first last. False: there is none, and the thread ends."""
        with self._change:
            if opened:
                self._tell(opened, 0.0)
            most = TOGETHER if self._wanted > 1 else TOGETHER_QUICK
            while self._may_open() and len(taken) < most:
                path, file = self._unopened.popleft()
                if file.uses > 0:
                    self._opened += 1
                    taken.append((path, file))
            taken.reverse()
            self._opening += len(taken)
            if not taken:  # not later: who adds files meanwhile counts on it
                self._threads -= 1
                self._change.notify_all()
            return bool(taken)

    def _tell(self, opened: List[Tuple[_Open, Optional[int], int]], waited: float) -> None:
        """Files have been opened, which took so many seconds: 0 for less than a wait."""
        with self._change:
            for file, fd, size in opened:
                self._begun = self._begun or not self._waiting or file is self._waiting[0].file
                file.fd, file.size, file.done = fd, size, True
                if fd is None:
                    self._opened -= 1
                if self._closed or file.uses == 0:
                    self._close_file(file)
            self._opening -= len(opened)
            opened.clear()
            self._wanted = min(2 * self._wanted, OPENERS) if waited > 0 else max(self._wanted // 2, 1)
            self._open_more()
            if not self._closed:
                self._declare()
            self._change.notify_all()

    def _open_one(self, path: Path) -> Tuple[Optional[int], int]:
        fd, size = _open(path)
        if fd is None:
            return fd, size
        found = self._found
        if found.cached < CACHED_IN_A_ROW:
            found.unlooked += 1
            if found.unlooked < LOOK:
                return fd, size
            found.unlooked = 0
        if not lib.is_cached(fd, size, LOOK_MAX):
            found.cached = 0
        elif found.cached < CACHED_IN_A_ROW:
            found.cached += LOOK
        else:
            os.close(fd)
            return None, 0
        return fd, size

    def _declare(self) -> None:
        """Declares what is next and whose files are open."""
        words = array("Q")
        while self._waiting and (self._waiting[0].file.done or self._waiting[0].passed):
            entry = self._waiting.popleft()
            file = entry.file
            if entry.passed or file.fd is None:
                continue
            if not file.region:
                file.region = self._take(file.fd)
                if not file.region:
                    continue  # another list has it
            at = entry.piece.offset
            end = file.size if entry.piece.length is None else min(at + entry.piece.length, file.size)
            while at < end:
                length = min(end - at, ENTRY)
                if entry.declared is None:
                    entry.declared = []
                entry.declared.append((at, length))
                words.extend((file.fd, at, length))
                at += length
        if words and self._client is not None:
            lib.library.outrider_request(self._client, words.buffer_info()[0], len(words) // 3, APPEND | _DONE)

    def _take(self, fd: int) -> bool:
        add = lib.library.outrider_region_add
        return bool(add(self._client, fd, 0, 0) == 0 or (forget_closed(fd) and add(self._client, fd, 0, 0) == 0))

    def passed(self, count: int) -> None:
        """The next `count` pieces were read, or will be at once."""
        if not self._is_mine():
            return
        with self._lock:
            for _ in range(min(count, len(self._entries))):
                entry = self._entries.popleft()
                entry.passed = True
                file = entry.file
                for offset, length in entry.declared or ():
                    lib.library.outrider_reading(file.fd, offset, length)
                file.uses -= 1
                if file.uses == 0:
                    del self._open[entry.piece.path]
                    if file.fd is not None:
                        self._passed.append(file)
            if len(self._passed) > self._files_max // 4:
                while len(self._passed) > self._files_max // 16:
                    self._close_file(self._passed.popleft())
            self._open_more()
            self._declare()

    def reading(self, path: Path, offset: int, length: int) -> None:
        """So many bytes of a file are about to be read. Nothing, if it isn't open here."""
        if not self._is_mine():
            return
        with self._lock:
            file = self._open.get(path)
            if file is not None and file.fd is not None:
                lib.library.outrider_reading(file.fd, offset, length)

    def _close_file(self, file: _Open) -> None:
        fd, file.fd = file.fd, None
        if fd is None:
            return
        self._opened -= 1
        if file.region and self._client is not None:
            lib.library.outrider_region_remove(self._client, fd, 0)
        os.close(fd)

    def _is_idle(self) -> bool:
        """Whether nothing is being opened, or about to be."""
        return self._opening <= 0 and (self._threads <= 0 or not self._may_open())

    def begin(self) -> None:
        """Waits until the first file was opened, and so fetching has begun."""
        if not self._is_mine():
            return
        with self._change:
            self._change.wait_for(lambda: self._begun or self._is_idle())

    def wait(self) -> None:
        """Waits until everything was opened, and asked for as far as memory allows."""
        if not self._is_mine():
            return
        with self._change:
            self._change.wait_for(self._is_idle)
        with contextlib.suppress(OSError):
            lib.check(lib.library.outrider_settle(-1))

    def close(self) -> None:
        """Takes the list back and closes all files. In a child that fork made the files alone are its own."""
        if not self._is_mine() or self._closed:
            return
        with self._lock:
            self._closed = True
            for file in self._open.values():
                if file.done:
                    self._close_file(file)
            while self._passed:
                self._close_file(self._passed.popleft())
            self._open.clear()
            self._entries.clear()
            self._waiting.clear()
            self._unopened.clear()
            client, self._client = self._client, None
            if client is not None:
                lib.library.outrider_client_free(client)
        if self._openers is not None:
            self._openers.shutdown(wait=False)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _open(path: Path) -> Tuple[Optional[int], int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        return fd, os.fstat(fd).st_size
    except Exception:  # it isn't there, or can't be a path
        return None, 0
