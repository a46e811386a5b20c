"""Code that loads whole files, as models are, with them fetched ahead of it."""

from __future__ import annotations

import importlib.util
import io
import json
import os
from types import TracebackType
from typing import IO, Any, Dict, Iterable, Iterator, List, Optional, Tuple, Type, Union

from ._declared import File, _OfThisProcess
from ._ranges import at_least_one, number, path_of
from ._stream import Path, Piece, Stream, piece_of

#: Bytes that safetensors allows for a header.
HEADER_MAX = 100_000_000
#: Bytes that a shard is read in.
READER = 1 << 18


class Ahead(_OfThisProcess):
    """Files that are fetched ahead until `close` or the end of the with block. Made by `ahead`."""

    def __init__(self, pieces: List[Piece]) -> None:
        self._stream = Stream()
        self._stream.extend(pieces)
        self._stream.begin()

    def reading(self, file: Union[Path, "os.PathLike[str]"], offset: int, length: int) -> None:
        """Says that `length` bytes of `file` at `offset` are about to be read: what is larger than memory is fetched at that pace."""
        self._stream.reading(os.fspath(file), number(offset, "an offset"), number(length, "a length"))

    def passed(self, count: int = 1) -> None:
        """Says that the next `count` of what was given, files or ranges, were read."""
        self._stream.passed(count)

    def wait(self) -> None:
        """Waits until all of it was asked for, or as much as memory allows."""
        self._stream.wait()

    def close(self) -> None:
        """Ends the fetching. What was fetched stays in the page cache."""
        self._stream.close()

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(
        self, _type: Optional[Type[BaseException]], _value: Optional[BaseException], _trace: Optional[TracebackType]
    ) -> None:
        self.close()


def ahead(*what: Any) -> Ahead:
    """Fetches files while the code in its with block loads them, however that reads::

        with outrider.ahead("model.safetensors"):
            model = torch.load("model.pt", mmap=True)

    `what` are paths of files, of directories (all files below, by name), or lists of (path, offset, length) in bytes, in the order of need, as
    `outrider.formats` makes them. Fetching begins at once, and goes as far as memory allows; further where the reads are seen
    (``outrider run``) or told (`Ahead.reading`, `Ahead.passed`). It ends with the block, so data that is mapped and used later should be waited
    for with `Ahead.wait`. Files that can't be opened are left to the code. TypeError: it is none of these. ValueError: an offset or a length is
    negative or from 2^64 on.
    """
    return Ahead([piece for one in what for piece in _pieces(one)])


def _pieces(what: Any) -> Iterator[Piece]:
    path = path_of(what)
    if path is not None:
        if os.path.isdir(path):
            for directory, directories, names in os.walk(os.fsdecode(path)):
                directories.sort()
                for name in sorted(names):
                    yield Piece(os.path.join(directory, name))
        else:
            yield Piece(path)
        return
    if isinstance(what, int) or not hasattr(what, "__iter__"):
        raise TypeError(f"a path or accesses (path, offset, length) are wanted, not {type(what).__name__}")
    for access in what:
        path = path_of(access)
        if path is not None:
            yield Piece(path)
        else:
            try:
                name, offset, length = access
            except (TypeError, ValueError):
                raise TypeError(f"a path or an access (path, offset, length) in bytes is wanted, not {access!r}") from None
            path = path_of(name)
            if path is None:
                raise TypeError(f"a path is wanted, not {type(name).__name__}")
            yield piece_of(path, offset, length)


def safetensors_header(path: Union[Path, "os.PathLike[str]"]) -> Tuple[int, Dict[str, Any]]:
    """Where the data of a safetensors file begins, in bytes, and its header. ValueError: it has none. OSError: it can't be read."""
    with open(path, "rb", buffering=0) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(HEADER_MAX, os.fstat(file.fileno()).st_size - 8):
            raise ValueError(f"{os.fsdecode(path)} has no safetensors header")
        return 8 + length, json.loads(io.BufferedReader(file).read(length))


def load_file(path: Union[str, "os.PathLike[str]"], framework: Optional[str] = None, device: str = "cpu") -> Dict[str, Any]:
    """The tensors of a safetensors file, by name, as safetensors' own `load_file` has them, fetched ahead of being read.

    They are read in the order in which they lie. `framework` is ``"pt"`` or ``"np"`` (or another that safetensors knows); PyTorch if it is
    installed, unless told. Needs safetensors. ValueError, OSError: the file can't be read; ImportError: safetensors isn't there.
    """
    import safetensors

    if framework is None:
        framework = "pt" if importlib.util.find_spec("torch") else "np"
    start, header = safetensors_header(path)
    names = [name for name in header if name != "__metadata__"]
    names.sort(key=lambda name: header[name]["data_offsets"])
    pieces = []
    for name in names:
        begin, end = header[name]["data_offsets"]
        pieces.append(Piece(os.fspath(path), start + begin, end - begin))
    tensors = {}
    # PyTorch's tensors on the CPU are the mapped file: nothing is read before they are used.
    lazy = framework in ("pt", "torch", "pytorch") and str(device) == "cpu"
    with Ahead(pieces) as fetched:
        with safetensors.safe_open(os.fspath(path), framework=framework, device=device) as file:
            for name in names:
                tensors[name] = file.get_tensor(name)
                if not lazy:
                    fetched.passed()
        if lazy:
            fetched.wait()
    return tensors


def shards(paths: Iterable[Union[Path, "os.PathLike[str]"]], ahead: int = 4) -> Iterator[IO[bytes]]:
    """Yields files that are read one after the other, as tar shards are, each opened for reading, with what follows fetched meanwhile.

    Each is closed when the next is asked for, so its ``name`` is its path. Up to `ahead` files are declared. OSError: one can't be opened.
    ValueError: `ahead` is less than 1. TypeError: it is no whole number, or `paths` is one path, or nothing that has any.
    """
    if path_of(paths) is not None or not hasattr(paths, "__iter__"):
        raise TypeError(f"a list of paths is wanted, as [path] is for one file, not {paths!r}")
    return _shards(iter(paths), at_least_one(ahead, "ahead"))


def _shards(upcoming: Iterator[Union[Path, "os.PathLike[str]"]], ahead: int) -> Iterator[IO[bytes]]:
    waiting: List[Path] = []
    stream = Stream()
    try:
        while True:
            for path in upcoming:
                waiting.append(os.fspath(path))
                stream.extend([Piece(waiting[-1])])
                if len(waiting) == ahead:
                    break
            if not waiting:
                return
            reader: Any = io.BufferedReader(File(waiting.pop(0)), READER)
            with reader:
                yield reader
            stream.passed(1)
    finally:
        stream.close()
