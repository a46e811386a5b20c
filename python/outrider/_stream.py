"""A list over any number of files, which are opened ahead of their turn and closed behind it."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
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
#: Files that a thread is given at once: waking it takes longer than opening a file whose name is cached.
TOGETHER = 4
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

    def __init__(self) -> None:
        self.fd: Optional[int] = None
        self.size = 0
        self.done = False
        self.region = False
        self.uses = 0


class _Entry:
    def __init__(self, piece: Piece, file: _Open) -> None:
        self.piece = piece
        self.file = file
        self.declared: List[Tuple[int, int]] = []
        self.passed = False


def files_max() -> int:
    """Files that may be open at once: half of what the process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_MAX if soft == resource.RLIM_INFINITY else max(min(soft // 2, FILES_MAX), 1)


class Stream:
    """Pieces of files in the order of need. `extend` adds to it, `passed` says how many more of them were read.

    Files are opened on threads, so neither waits for storage. What can't be opened is left to the program, which will see why.

    A child that fork made has none of the threads, and its lock may be held by one of them for ever: there all methods do nothing."""

    def __init__(self) -> None:
        self._process = os.getpid()
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
        self._pending = 0
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

    def _open_more(self) -> None:
        while self._unopened and self._opened < self._files_max and self._openers is not None:
            group: List[Tuple[Path, _Open]] = []
            while self._unopened and self._opened < self._files_max and len(group) < TOGETHER:
                path, file = self._unopened.popleft()
                if file.uses > 0:
                    self._opened += 1
                    group.append((path, file))
            self._pending += len(group)
            try:
                self._openers.submit(self._open_group, group)
            except RuntimeError:  # no thread can be had, or the interpreter ends
                self._pending -= len(group)
                return

    def _open_group(self, group: List[Tuple[Path, _Open]]) -> None:
        left = len(group)
        try:
            for path, file in group:
                fd, size = _open(path)
                left -= 1
                self._was_opened(file, fd, size)
        finally:
            if left > 0:  # nobody may wait for what will never be opened
                with self._change:
                    self._pending -= left
                    self._change.notify_all()

    def _was_opened(self, file: _Open, fd: Optional[int], size: int) -> None:
        with self._change:
            self._pending -= 1
            self._change.notify_all()
            self._begun = self._begun or not self._waiting or file is self._waiting[0].file
            file.fd, file.size, file.done = fd, size, True
            if fd is None:
                self._opened -= 1
            if self._closed or file.uses == 0:
                self._close_file(file)
            else:
                self._declare()

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
                for offset, length in entry.declared:
                    lib.library.outrider_reading(file.fd, offset, length)
                file.uses -= 1
                if file.uses == 0:
                    del self._open[entry.piece.path]
                    if file.done:
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

    def begin(self) -> None:
        """Waits until the first file was opened, and so fetching has begun."""
        if not self._is_mine():
            return
        with self._change:
            self._change.wait_for(lambda: self._begun or self._pending <= 0)

    def wait(self) -> None:
        """Waits until everything was opened, and asked for as far as memory allows."""
        if not self._is_mine():
            return
        with self._change:
            self._change.wait_for(lambda: self._pending <= 0)
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
