"""Declared access for Python: say what will be read, and have it there in time.

A program that knows what it will read declares it, as byte ranges in the order of need. Outrider fetches them into the page cache ahead of the
reads, in the order that suits the device and as far ahead as memory allows. A wrong or stale list costs time, never correctness::

    import outrider

    with outrider.File("train.bin") as data, outrider.declare(data, [(i * RECORD, RECORD) for i in order]):
        for i in order:
            sample = data.pread(RECORD, i * RECORD)

Where the order is long, or isn't known at once, `pull` takes an iterator and draws from it as far ahead as is useful.

`outrider.torch.prefetch` does all that for a DataLoader, `ahead` around code that loads whole files, `load_file` for safetensors,
`shards` for files that are read one after the other, and `outrider.formats` says where arrays, chunks and columns lie.

Reads are seen by themselves where the library is preloaded (``outrider run -- python3 …``) or linked. Elsewhere Outrider has to be told of
them: by reading with `pread` or `File`, or with `reading` before a memory map or anything else is read. Telling it twice does no harm.

Files are named by a path, a descriptor, an object with ``fileno()`` or a ``numpy.memmap``. Errors of the library are OSErrors.

The package is pure Python over liboutrider.so, which is looked for in the process itself, at ``$OUTRIDER_LIBRARY``, in the package, in a build
tree's ``target/release`` and in ``lib`` of the prefix under which the package is installed, if it is the package's owner's or root's there,
in ``/usr/local/lib`` and where the loader finds it.
Where there is none all functions succeed, nothing is prefetched, and one RuntimeWarning says so; `available` is False then.
"""

from . import formats, torch
from ._declared import (
    APPEND,
    LIST_MAX,
    SET,
    SET_FROM_MARK,
    Access,
    Client,
    Declared,
    File,
    Position,
    Pulled,
    Stats,
    declare,
    pread,
    pull,
    reading,
    settle,
    stats,
    version,
)
from ._library import available, seen
from ._whole import Ahead, ahead, load_file, shards

__version__ = "0.1.0"

__all__ = [
    "APPEND",
    "LIST_MAX",
    "SET",
    "SET_FROM_MARK",
    "Access",
    "Ahead",
    "Client",
    "Declared",
    "File",
    "Position",
    "Pulled",
    "Stats",
    "ahead",
    "available",
    "declare",
    "formats",
    "load_file",
    "pread",
    "pull",
    "reading",
    "seen",
    "settle",
    "shards",
    "stats",
    "torch",
    "version",
]
