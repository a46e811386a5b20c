"""What names a file, and what names ranges of it, brought into the form that the library takes."""

from __future__ import annotations

import io
import itertools
import operator
import os
import sys
import warnings
from array import array
from typing import Any, Iterable, Optional, Protocol, Sequence, SupportsIndex, Tuple, Union

LIMIT = 1 << 64


class HasFileno(Protocol):
    """An open file."""

    def fileno(self) -> int: ...


class HasFilename(Protocol):
    """A ``numpy.memmap``."""

    @property
    def filename(self) -> Any: ...


#: What names a file: a path, a descriptor, an open file, or a ``numpy.memmap``.
FileLike = Union[int, str, bytes, "os.PathLike[str]", "os.PathLike[bytes]", HasFileno, HasFilename, SupportsIndex]
#: What names ranges: pairs (offset, length) or ``range(start, stop)``, or an array of two columns, all in bytes.
Ranges = Union[Iterable[Union[Tuple[int, int], Sequence[int], range]], Any]

_warned_of_buffers = False


def path_of(file: Any) -> Optional[Union[str, bytes]]:
    """The path by which `file` has to be opened, or None if it is open."""
    if isinstance(file, (str, bytes)):
        return file
    if isinstance(file, os.PathLike):
        path: Union[str, bytes] = os.fspath(file)
        return path
    name = getattr(file, "filename", None)  # numpy.memmap
    if name is not None and not hasattr(file, "fileno"):
        return path_of(name)
    return None


def descriptor_of(file: Any) -> int:
    """The descriptor of a file that is open. A buffered one is warned of, once."""
    global _warned_of_buffers
    if not isinstance(file, bool):
        if isinstance(file, int):
            return file
        fileno = getattr(file, "fileno", None)
        if fileno is not None:
            if isinstance(file, (io.BufferedIOBase, io.TextIOBase)) and not _warned_of_buffers:
                _warned_of_buffers = True
                warnings.warn(
                    "a buffered file reads other bytes than are asked of it: open it with buffering=0, or as outrider.File",
                    RuntimeWarning,
                    stacklevel=4,
                )
            return int(fileno())
        if hasattr(file, "__index__"):
            return operator.index(file)
    raise TypeError(f"a path, a file object or a descriptor is wanted, not {type(file).__name__}")


def number(value: Any, what: str) -> int:
    """`value` as bytes from 0 to 2^64 - 1. TypeError, ValueError: it is none; `what` it was to be is said."""
    try:
        value = operator.index(value)  # also numpy's integers
    except TypeError:
        raise TypeError(f"{what} must be a whole number of bytes from 0 to 2^64 - 1, not {value!r}") from None
    if not 0 <= value < LIMIT:
        raise ValueError(f"{what} must be from 0 to 2^64 - 1 bytes, not {value}")
    return int(value)


def at_least_one(value: Any, name: str) -> int:
    """`value` as a count. TypeError: it is no whole number. ValueError: it is less than 1."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number of at least 1, not {value!r}") from None
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return int(value)


class Packed:
    """Pairs of offset and length in memory, as ``struct outrider_range`` has them."""

    def __init__(self, buffer: Any, address: int, count: int) -> None:
        self.buffer = buffer
        self.address = address
        self.count = count

    def words(self) -> memoryview:
        """Offset, length, offset, length …"""
        return memoryview(self.buffer).cast("B").cast("Q")


def _of_array(words: "array[int]") -> Packed:
    return Packed(words, words.buffer_info()[0], len(words) // 2)


def _numpy() -> Any:
    """numpy, if the program has it: then its arrays are not gone through one by one."""
    return sys.modules.get("numpy")


def _as_numpy(value: Any) -> Any:
    """`value` as an array of numpy's, if it is one of numpy's, PyTorch's or the like; else None."""
    numpy = _numpy()
    if numpy is None or isinstance(value, (list, tuple, range)):
        return None
    if isinstance(value, numpy.ndarray) or hasattr(value, "__array__"):
        return numpy.asarray(value)
    return None


def _of_numpy(values: Any, length: Any) -> Packed:
    numpy = _numpy()
    if values.size and values.dtype.kind not in "iu":
        raise TypeError(f"offsets and lengths are whole numbers of bytes, not {values.dtype}")
    if length is None and values.size and (values.ndim != 2 or values.shape[1] != 2):
        raise TypeError(
            f"an array of shape (n, 2) with offsets and lengths is wanted, or offsets and length=, not shape {values.shape}"
        )
    if length is None:
        _no_negative(values, "an offset or a length")
        words = numpy.ascontiguousarray(values, dtype=numpy.uint64).reshape(-1, 2)
    else:
        lengths = numpy.asarray(length)
        if lengths.ndim > 0 and lengths.size != values.size:
            raise ValueError(f"{values.size} offsets and {lengths.size} lengths")
        if lengths.size and lengths.dtype.kind not in "iu":
            raise TypeError(f"a length is a whole number of bytes, not {lengths.dtype}")
        _no_negative(values, "an offset")
        _no_negative(lengths, "a length")
        words = numpy.empty((values.size, 2), dtype=numpy.uint64)
        words[:, 0] = values.reshape(-1)
        words[:, 1] = lengths.reshape(-1) if lengths.ndim > 0 else lengths
    return Packed(words, int(words.ctypes.data), len(words))


def _no_negative(values: Any, what: str) -> None:
    if values.size and values.min() < 0:
        number(int(values.min()), what)


#: What has two parts of which the first isn't an offset and the second a length; and ranges, which are taken otherwise.
_NO_PAIRS = frozenset([range, str, bytes, bytearray, set, frozenset, dict])


def pack(ranges: Ranges, length: Any = None) -> Packed:
    """`ranges` of bytes as the library takes them.

    They are pairs (offset, length), ``range(start, stop)`` or an array of two columns. With `length`, in bytes, they are offsets instead: a
    list, a range, an array; `length` is one for all, or as many as there are offsets. TypeError, ValueError: neither.
    """
    values = _as_numpy(ranges)
    if values is not None or (length is not None and _as_numpy(length) is not None and _numpy() is not None):
        numpy = _numpy()
        return _of_numpy(values if values is not None else numpy.asarray(list(ranges)), length)
    if length is not None:
        offsets = ranges if isinstance(ranges, range) else list(ranges)
        each = hasattr(length, "__len__")
        if each and len(length) != len(offsets):
            raise ValueError(f"{len(offsets)} offsets and {len(length)} lengths")
        words = array("Q", bytes(16 * len(offsets)))
        view = memoryview(words)
        view[0::2] = memoryview(_words(offsets, "an offset"))
        view[1::2] = memoryview(_words(length if each else itertools.repeat(length, len(offsets)), "a length"))
        view.release()
        return _of_array(words)
    if isinstance(ranges, range):
        raise TypeError("a range is taken for offsets with length=, or for bytes as one of a list")
    pairs = list(ranges)
    try:
        if _NO_PAIRS.isdisjoint(map(type, pairs)) and set(map(len, pairs)) <= {2}:
            return _of_array(array("Q", itertools.chain.from_iterable(pairs)))
    except (OverflowError, TypeError):
        pass  # said below, of the one that is wrong
    words = array("Q")
    for pair in pairs:
        words.extend(_pair(pair))
    return _of_array(words)


def _words(values: Iterable[Any], what: str) -> "array[int]":
    values = values if hasattr(values, "__len__") else list(values)
    try:
        return array("Q", values)
    except (OverflowError, TypeError):
        return array("Q", [number(value, what) for value in values])


def _pair(pair: Any) -> Tuple[int, int]:
    if isinstance(pair, range):
        if pair.step != 1:
            raise ValueError(f"bytes are a range with a step of 1, not {pair}")
        return number(pair.start, "an offset"), len(pair)
    try:
        if type(pair) in _NO_PAIRS:
            raise TypeError
        offset, length = pair
    except (TypeError, ValueError):
        raise TypeError(f"a pair (offset, length) of bytes or a range is wanted, not {pair!r}") from None
    return number(offset, "an offset"), number(length, "a length")
