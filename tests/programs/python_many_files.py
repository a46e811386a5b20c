"""Many files that are cached, and then cold, in DIR: says `well` if cached ones cost no list and cold ones are on it, `no cachestat` where the kernel
doesn't tell.

    python_many_files.py DIR            cached, then cold
    python_many_files.py --cold DIR     cold only
"""

import ctypes
import os
import sys
import time

import outrider
from outrider import _stream

FILES, SIZE = 480, 8192
directory = sys.argv[-1]
paths = [os.path.join(directory, f"f{i}") for i in range(FILES)]


def cached(file):
    """Pages of a file that are cached, as the kernel counts them; none where it doesn't."""
    words = (ctypes.c_uint64 * 7)()
    at = ctypes.addressof(words)
    call = ctypes.CDLL(None).syscall
    return words[2] if call(451, file.fileno(), ctypes.c_void_p(at), ctypes.c_void_p(at + 16), 0) == 0 else 0


def counts():
    """Whether the kernel counts cached pages."""
    with open(paths[0], "rb") as file:
        return cached(file) > 0


def write(cold):
    for path in paths:
        with open(path, "wb") as file:
            file.write(b"x" * SIZE)
            if cold:
                file.flush()
                os.fsync(file.fileno())
    if not cold:
        return
    # What a list that was taken back had asked for may still come, and a page that somebody holds isn't dropped.
    end = time.monotonic() + 30
    left = paths
    while left:
        for path in left:
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left = [path for path in left if is_cached(path)]
        assert time.monotonic() < end, f"{len(left)} files don't become cold"


def is_cached(path):
    with open(path, "rb") as file:
        return cached(file) > 0


def declared(files):
    """How many of the files came to be on a list."""
    before = outrider.stats().declared_bytes
    with outrider.ahead(*files) as coming:
        coming.wait()
    return (outrider.stats().declared_bytes - before) // SIZE


class Draws:
    def __iter__(self):
        return iter(range(FILES))

    def __len__(self):
        return FILES


class Files:
    paths = paths

    def __len__(self):
        return FILES


def epoch(sampler, waits=False):
    """How many files an epoch declares; it waits for the first, if told: on a busy machine a program that does nothing else has read all files
    before the thread that opens them has a turn."""
    before = outrider.stats().declared_bytes
    end = time.monotonic() + 30
    for i in sampler:
        while waits and outrider.stats().declared_bytes == before and time.monotonic() < end:
            time.sleep(0.001)
        with open(paths[i], "rb", buffering=0) as file:
            file.read()
    return (outrider.stats().declared_bytes - before) // SIZE


if "--cold" not in sys.argv:
    write(cold=False)
    if not counts():
        print("no cachestat")
        sys.exit()
    # The first 256 are looked at now and then, and are on the list meanwhile.
    assert declared(paths) < 320, "cached files"
    # An epoch knows of those before it.
    sampler = outrider.torch.prefetch(Draws(), Files())
    assert 0 in (epoch(sampler) for _ in range(10)), "epochs of cached files"
    # However many were cached, a cold one is not left out, nor what comes after it.
    write(cold=True)
    after = epoch(sampler, waits=True)
    assert after > 0, "an epoch of cold files"
write(cold=True)
assert declared(paths) == FILES, "cold files"
# A thread that fails takes no more with it than it had taken.
write(cold=True)
opens = _stream._open


def fails(path):
    if path == paths[100]:
        raise MemoryError
    return opens(path)


_stream._open = fails
most = FILES - _stream.TOGETHER_QUICK
assert declared(paths) >= most, "files behind one that fails"
print("well")
