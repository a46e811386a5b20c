"""A PyTorch DataLoader, or a sampler, whose samples are in memory before a worker reads them.

The sampler knows the order, so it is drawn ahead, in the main process, and where its samples lie is declared there; as the loader asks for
more, what it has received is told. Workers know nothing of it, however they are started::

    loader = outrider.torch.prefetch(DataLoader(dataset, batch_size=64, shuffle=True, num_workers=4))
    for batch in loader:
        …

PyTorch isn't imported: whatever has a loader's attributes will do.
"""

from __future__ import annotations

import bisect
import copy
import os
import warnings
from collections import deque
from typing import Any, Callable, Deque, Iterator, List, Optional, TypeVar

from ._ranges import at_least_one, path_of
from ._stream import Found, Piece, Stream, piece_of

__all__ = ["AheadSampler", "locate_by", "prefetch"]

Loader = TypeVar("Loader")
#: Where a sample lies: a path, ``(path, offset, length)`` in bytes, several of them, or None for a sample of no file.
Place = Any
Locate = Callable[[Any], Place]

#: Samples that are drawn ahead. As many small records are worth a sweep over a disk with a head.
AHEAD = 16384
#: Of these so many at once, so that the first batch doesn't wait for all to be drawn: some 5 ms.
AT_ONCE = 512


def prefetch(
    loader: Loader, dataset: Any = None, *, locate: Optional[Locate] = None, ahead: int = AHEAD, behind: Optional[int] = None
) -> Loader:
    """The same DataLoader or sampler, whose samples are fetched ahead.

    `loader` is a DataLoader over a map-style dataset, which is copied and stays as it is; or a sampler or batch sampler, and `dataset` what
    it chooses from. Where sample i lies is told by `locate(i)`, or by the dataset: its method ``locate(i)``, or its ``paths``, ``samples`` or
    ``imgs`` (lists of paths, or of tuples that begin with one), also within Subset and ConcatDataset. A place is a path for the whole file, or
    (path, offset, length) in bytes, where a length of None means to the end; or a list of these.

    Up to `ahead` samples are drawn from the sampler before their turn, fewer where each is a file of its own. `behind` says how many draws a
    loader makes before the first of them is used: for a DataLoader it is known (workers times prefetch_factor); it is 1 for a sampler.

    TypeError: it is no loader over a map-style dataset, or nothing says where its samples lie, or what does says something else. ValueError:
    `ahead` or `behind` is less than 1, or an offset or a length is no number of bytes.
    """
    ahead = at_least_one(ahead, "ahead")
    if behind is not None:
        behind = at_least_one(behind, "behind")
    if locate is not None and not callable(locate):
        raise TypeError(f"locate must be a function that says where sample i lies, not {locate!r}")
    if dataset is not None:
        return AheadSampler(loader, _checked(dataset, locate), ahead, behind or 1)  # type: ignore[return-value]
    source: Any = loader
    if not hasattr(source, "dataset") or not (hasattr(source, "sampler") or hasattr(source, "batch_sampler")):
        raise TypeError(
            f"a DataLoader is wanted, or a sampler and its dataset, not {type(loader).__name__} alone"
        )
    if not hasattr(source.dataset, "__getitem__"):
        raise TypeError(f"a map-style dataset is wanted: {type(source.dataset).__name__} has no order to be known ahead")
    found = _checked(source.dataset, locate)
    workers = getattr(source, "num_workers", 0) or 0
    draws = behind or max(workers * (getattr(source, "prefetch_factor", None) or 2), 1)
    name = "batch_sampler" if getattr(source, "batch_sampler", None) is not None else "sampler"
    mine: Any = copy.copy(source)
    # A DataLoader refuses new samplers by assignment, and its iterator of persistent workers isn't this one's.
    mine.__dict__[name] = AheadSampler(getattr(source, name), found, ahead, draws)
    if "_iterator" in mine.__dict__:
        mine.__dict__["_iterator"] = None
    return mine  # type: ignore[no-any-return]


def _checked(dataset: Any, locate: Optional[Locate]) -> Locate:
    found = locate or locate_by(dataset)
    if len(dataset) > 0:
        try:
            place = found(0)
        except Exception:  # an epoch that comes to it warns
            return found
        _pieces(place)
    return found


def locate_by(dataset: Any) -> Locate:
    """A function that says where sample i of a dataset lies, from what the dataset has (see `prefetch`). TypeError: it has nothing."""
    method = getattr(dataset, "locate", None)
    if callable(method):
        return method  # type: ignore[no-any-return]
    for name in ("paths", "samples", "imgs"):
        value = getattr(dataset, name, None)
        if callable(value):
            value = value()
        if value is not None and hasattr(value, "__getitem__"):
            return _Listed(value, first=name != "paths")
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        return _Subset(locate_by(dataset.dataset), dataset.indices)
    if hasattr(dataset, "datasets") and hasattr(dataset, "cumulative_sizes"):
        return _Concatenated([locate_by(part) for part in dataset.datasets], list(dataset.cumulative_sizes))
    raise TypeError(
        f"nothing says where samples of {type(dataset).__name__} lie: give it paths, samples or locate(i), or pass locate="
    )


class _Listed:
    """Samples that are files of a list."""

    def __init__(self, paths: Any, first: bool) -> None:
        self._paths = paths
        self._first = first

    def __call__(self, index: Any) -> Place:
        found = self._paths[index]
        return found[0] if self._first and isinstance(found, (tuple, list)) else found


class _Subset:
    def __init__(self, locate: Locate, indices: Any) -> None:
        self._locate = locate
        self._indices = indices

    def __call__(self, index: Any) -> Place:
        return self._locate(self._indices[index])


class _Concatenated:
    def __init__(self, parts: List[Locate], ends: List[int]) -> None:
        self._parts = parts
        self._ends = ends

    def __call__(self, index: Any) -> Place:
        if index < 0:
            index += self._ends[-1]
        part = bisect.bisect_right(self._ends, index)
        return self._parts[part](index - (self._ends[part - 1] if part > 0 else 0))


def _pieces(place: Place) -> List[Piece]:
    """What a sample's place names. TypeError, ValueError: it is no place."""
    if place is None:
        return []
    if isinstance(place, (str, bytes, os.PathLike)):
        return [Piece(os.fspath(place))]
    if isinstance(place, (tuple, list)):
        path = path_of(place[0]) if len(place) in (2, 3) else None
        if path is not None and not any(isinstance(part, (str, bytes, os.PathLike, tuple, list)) for part in place[1:]):
            return [piece_of(path, 0 if place[1] is None else place[1], place[2] if len(place) == 3 else None)]
        return [piece for part in place for piece in _pieces(part)]
    raise TypeError(f"a sample's place is a path, (path, offset, length), a list of these or None, not {place!r}")


class AheadSampler:
    """A sampler or batch sampler that is drawn ahead, and yields what it would by itself. Made by `prefetch`.

    It has all attributes of the one that it wraps (``set_epoch`` …), and each iteration of it is an epoch with a list of its own."""

    def __init__(self, sampler: Any, locate: Locate, ahead: int, behind: int) -> None:
        self.wrapped = sampler
        self._locate = locate
        self._ahead = ahead
        self._behind = behind
        self._found = Found()

    def __iter__(self) -> Iterator[Any]:
        return _Epoch(self.wrapped, self._locate, self._ahead, self._behind, self._found)

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped" or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        return getattr(self.wrapped, name)


class _Drawn:
    """A draw of the sampler: an index or those of a batch, and how many pieces of files its samples are."""

    def __init__(self, indices: Any, pieces: int) -> None:
        self.indices = indices
        self.pieces = pieces
        self.samples = max(len(indices), 1) if isinstance(indices, (list, tuple)) else 1


class _Epoch:
    """One iteration of a sampler. Each call says that the loader has received another batch."""

    def __init__(self, sampler: Any, locate: Locate, ahead: int, behind: int, found: Found) -> None:
        self._source = iter(sampler)
        self._locate: Optional[Locate] = locate
        self._ahead = ahead
        self._behind = behind
        self._calls = 0
        self._found = found
        # Made at the first draw: workers that are forked before don't inherit its files.
        self._stream: Optional[Stream] = None
        self._drawn: Deque[_Drawn] = deque()
        self._samples = 0
        # Draws that the loader has, and what they are of files.
        self._given: Deque[int] = deque()
        self._error: Optional[BaseException] = None
        self._ended = False

    def __iter__(self) -> "_Epoch":
        return self

    def __next__(self) -> Any:
        if self._stream is None:
            self._stream = Stream(self._found)
        self._calls += 1
        if self._calls > self._behind and self._given:
            count = self._given.popleft()
            self._guarded(lambda stream: stream.passed(count), self._stream)
        self._draw_ahead(self._stream)
        if self._drawn:
            drawn = self._drawn.popleft()
            self._samples -= drawn.samples
            self._given.append(drawn.pieces)
            return drawn.indices
        if not self._given:
            self._stream.close()
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        raise StopIteration

    def _draw_ahead(self, stream: Stream) -> None:
        end = min(self._samples + AT_ONCE, self._ahead)
        while not self._ended and (not self._drawn or (stream.live and self._samples < end and not stream.full())):
            try:
                indices = next(self._source)
            except StopIteration:
                self._ended = True
                break
            except Exception as error:  # the loader gets it in its turn
                self._error, self._ended = error, True
                break
            found = self._find(indices)
            self._guarded(lambda stream: stream.extend(found), stream)
            drawn = _Drawn(indices, len(found))
            self._drawn.append(drawn)
            self._samples += drawn.samples
            if self._locate is None:
                break

    def _guarded(self, call: Callable[[Stream], None], stream: Stream) -> None:
        """What goes wrong with the list costs time, never the program."""
        try:
            call(stream)
        except Exception as error:
            self._locate = None
            warnings.warn(f"nothing more is prefetched: {error!r}", RuntimeWarning, stacklevel=4)

    def _find(self, indices: Any) -> List[Piece]:
        if self._locate is None:
            return []
        try:
            if isinstance(indices, (list, tuple)):
                return [piece for index in indices for piece in _pieces(self._locate(index))]
            return _pieces(self._locate(indices))
        except Exception as error:
            self._locate = None
            warnings.warn(f"nothing more is prefetched: where sample {indices!r} lies: {error!r}", RuntimeWarning, stacklevel=4)
            return []
