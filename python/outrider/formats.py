"""Where the data of common file formats lies: what `outrider.declare` and `outrider.ahead` take.

Each function takes the format's own objects, and imports nothing by itself but what made them. Offsets and lengths are bytes.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

__all__ = ["hdf5", "npy_rows", "parquet", "zarr"]

#: A path, an offset and a length in bytes; None is to the end.
Place = Tuple[str, int, Optional[int]]


def npy_rows(array: Any, rows: Any = None) -> Any:
    """Ranges of a ``numpy.memmap`` for rows, all unless told, in the order in which they will be read: an array for `outrider.declare`::

        outrider.declare(array, outrider.formats.npy_rows(array, order))

    `rows` are indices along the first axis, from 0. ValueError: a row isn't in one piece. IndexError: there is no such row.
    """
    import numpy

    if array.ndim == 0 or not (array[:1].flags.c_contiguous or array.shape[0] == 0):
        raise ValueError("the rows of this array aren't in one piece")
    root = array
    while isinstance(root.base, numpy.memmap):
        root = root.base
    begin = int(root.offset) + array.ctypes.data - root.ctypes.data
    indices = numpy.arange(array.shape[0]) if rows is None else numpy.asarray(rows, dtype=numpy.int64)
    if indices.size and not (0 <= indices.min() and indices.max() < array.shape[0]):
        raise IndexError(f"rows are from 0 to {array.shape[0] - 1}")
    ranges = numpy.empty((indices.size, 2), dtype=numpy.int64)
    ranges[:, 0] = begin + indices * array.strides[0]
    ranges[:, 1] = array[:1].nbytes
    return ranges


def _blocks(rows: Optional[Iterable[int]], count: int, size: int) -> Iterator[int]:
    """The blocks of `size` rows that `rows` are in, each as often as rows come to it anew."""
    if rows is None:
        yield from range(-(-count // size) if size else 0)
        return
    before = -1
    for row in rows:
        if not 0 <= row < count:
            raise IndexError(f"rows are from 0 to {count - 1}, not {row}")
        if row // size != before:
            before = int(row // size)
            yield before


def hdf5(dataset: Any, rows: Optional[Iterable[int]] = None) -> List[Place]:
    """Where the chunks of an h5py dataset lie that `rows` of it are in, or all, in that order. Needs HDF5 1.10.5 or later.

    `rows` are indices along the first axis, from 0. A dataset of one piece has each row's own bytes. IndexError: there is no such row.
    """
    path = os.fsdecode(dataset.file.filename)
    if dataset.chunks is None:
        start = dataset.id.get_offset()
        if start is None:
            return []  # kept in the file's header, or elsewhere
        if rows is None or dataset.ndim == 0:
            return [(path, start, int(dataset.id.get_storage_size()))]
        size = int(dataset.id.get_storage_size()) // dataset.shape[0] if dataset.shape[0] else 0
        return [(path, start + row * size, size) for row in _blocks(rows, dataset.shape[0], 1)]
    by_block: Dict[int, List[Tuple[Tuple[int, ...], int, int]]] = {}
    for i in range(dataset.id.get_num_chunks()):
        chunk = dataset.id.get_chunk_info(i)
        if chunk.byte_offset is not None:
            at = tuple(chunk.chunk_offset)
            by_block.setdefault(at[0] // dataset.chunks[0], []).append((at, chunk.byte_offset, chunk.size))
    return [
        (path, offset, size)
        for block in _blocks(rows, dataset.shape[0], dataset.chunks[0])
        for _, offset, size in sorted(by_block.get(block, []))
    ]


def zarr(array: Any, rows: Optional[Iterable[int]] = None) -> List[Place]:
    """The files of a zarr array's chunks (or shards) in a directory that `rows` of it are in, or all, in that order.

    `rows` are indices along the first axis, from 0. Files that aren't there are chunks of the fill value. For zarr 2 and 3.
    TypeError: the array isn't in a directory. IndexError: there is no such row.
    """
    store = array.store
    root = getattr(store, "root", None) or getattr(store, "path", None)
    if not isinstance(root, (str, os.PathLike)) or not os.path.isdir(root):
        raise TypeError(f"a zarr array in a directory is wanted, not in {type(store).__name__}")
    sizes: Sequence[int] = getattr(array, "shards", None) or array.chunks
    if hasattr(array, "metadata"):  # zarr 3
        key = array.metadata.encode_chunk_key
        base = os.path.join(os.fspath(root), array.path)
    else:
        key = array._chunk_key
        base = os.fspath(root)
    others = [range(-(-length // size)) for length, size in zip(array.shape[1:], sizes[1:])]
    return [
        (os.path.join(base, key((block, *rest))), 0, None)
        for block in _blocks(rows, array.shape[0], sizes[0])
        for rest in itertools.product(*others)
    ]


def parquet(source: Any, columns: Optional[Iterable[str]] = None) -> List[Place]:
    """Where the column chunks of Parquet files lie, row group by row group, of `columns` or all.

    `source` is a path, a list of paths, or a ``pyarrow.dataset.Dataset`` of Parquet files. Needs pyarrow, which reads the footers now.
    ValueError: there is no such column, or the dataset's files aren't Parquet's. OSError: a file can't be read.
    """
    import pyarrow.parquet

    groups: List[Tuple[str, Optional[Set[int]]]]
    if hasattr(source, "get_fragments"):
        groups = []
        for fragment in source.get_fragments():
            if not hasattr(fragment, "row_groups"):
                raise ValueError("a dataset of Parquet files is wanted")
            groups.append((fragment.path, {group.id for group in fragment.row_groups}))
    else:
        single = isinstance(source, (str, os.PathLike))
        groups = [(os.fspath(path), None) for path in ([source] if single else source)]
    wanted = None if columns is None else set(columns)
    places: List[Place] = []
    for path, chosen in groups:
        metadata = pyarrow.parquet.read_metadata(path)
        found = {metadata.schema.column(i).path.split(".")[0] for i in range(metadata.num_columns)}
        if wanted is not None and not wanted <= found:
            raise ValueError(f"{path} has no column {sorted(wanted - found)[0]!r}, only {', '.join(sorted(found))}")
        for number in range(metadata.num_row_groups):
            if chosen is not None and number not in chosen:
                continue
            group = metadata.row_group(number)
            for i in range(group.num_columns):
                column = group.column(i)
                if wanted is None or column.path_in_schema.split(".")[0] in wanted:
                    start = column.data_page_offset
                    if column.has_dictionary_page and column.dictionary_page_offset:
                        start = min(start, column.dictionary_page_offset)
                    places.append((path, start, column.total_compressed_size))
    return places
