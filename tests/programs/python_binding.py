"""Exercises python/outrider on FILE of 256 pages of 4096 bytes; says `well` if all holds. Runs with and without the library
preloaded."""

import errno
import itertools
import os
import pathlib
import pickle
import signal
import sys
import threading
import time
import warnings

import outrider

PAGE, PAGES = 4096, 256
path = sys.argv[1]
with open(path, "rb") as whole:
    DATA = whole.read()
assert len(DATA) == PAGE * PAGES
ORDER = [i * 37 % PAGES for i in range(PAGES)]


def fails(number, function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        assert error.errno == number, error
    else:
        raise AssertionError(f"{function} did not fail")


def refuses(kind, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        assert str(error)
    else:
        raise AssertionError((function, arguments))


def page(i):
    return DATA[i * PAGE : (i + 1) * PAGE]


assert outrider.version() == (0, 1, 0)

# The plain form; reads by pread and through a file's position.
with outrider.File(path) as file:
    before = outrider.stats()
    assert outrider.declare(file, [(i * PAGE, PAGE) for i in ORDER]) == PAGES
    assert outrider.stats().declared_bytes - before.declared_bytes == PAGE * PAGES
    for n, i in enumerate(ORDER):
        if n % 3 == 0:
            assert file.pread(PAGE, i * PAGE) == page(i)
        elif n % 3 == 1:
            file.seek(i * PAGE)
            assert file.read(PAGE) == page(i)
        else:
            buffer = bytearray(PAGE)
            file.seek(i * PAGE)
            assert file.readinto(buffer) == PAGE and buffer == page(i)
    outrider.settle(60)
    assert outrider.stats().diverged_reads == before.diverged_reads
    assert outrider.declare(file, []) == 0

# Whole files, and buffered reading on top.
with outrider.File(path) as file:
    outrider.declare(file, [(0, PAGE * PAGES)])
    assert file.read() == DATA
    assert file.read() == b""

# Pulled: drawn from as it is read, never all at once.
drawn = 0


def endless():
    global drawn
    while True:
        yield drawn * 37 % PAGES * PAGE, PAGE
        drawn += 1


with outrider.File(path) as file:
    before = outrider.stats()
    with outrider.pull(file, (item for item, _ in zip(endless(), range(200_000)))):
        first = drawn
        assert 0 < first < 200_000, first
        for n in range(100_000):
            i = n * 37 % PAGES
            got = outrider.pread(file, PAGE, i * PAGE)
            assert n % 1000 or got == page(i)
        assert drawn > first
    assert outrider.stats().diverged_reads == before.diverged_reads
    after = drawn
    outrider.pread(file, PAGE, 0)
    assert drawn == after

# An exception in the iterator ends the list and reaches sys.unraisablehook.
unraisable = []
sys.unraisablehook = lambda args: unraisable.append(args.exc_value)


def broken():
    yield 0, PAGE
    raise RuntimeError("of the iterator")


with outrider.File(path) as file:
    with outrider.pull(file, broken()):
        assert outrider.pread(file, PAGE, 0) == page(0)
    assert [str(e) for e in unraisable] == ["of the iterator"]

# One that yields nothing but empty ranges ends too; some are passed over.
with outrider.File(path) as file:
    for useless in [(0, 0), (1 << 62, 1), (PAGE * PAGES, PAGE)]:
        with outrider.pull(file, itertools.repeat(useless)):
            assert outrider.pread(file, PAGE, 0) == page(0)
    before = outrider.stats()
    with outrider.pull(file, itertools.chain([(0, 0)] * 1000, [(PAGE, PAGE)])):
        assert outrider.pread(file, PAGE, PAGE) == page(1)
    assert outrider.stats().diverged_reads == before.diverged_reads and len(unraisable) == 1, unraisable


# An interrupt within the iterator is the main program's, once.
def interrupted():
    yield 0, PAGE
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)
    yield 0, PAGE


interrupts = 0
with outrider.File(path) as file:
    try:
        with outrider.pull(file, interrupted()):
            outrider.pread(file, PAGE, 0)
            time.sleep(1)
    except KeyboardInterrupt:
        interrupts += 1
    try:
        time.sleep(0.1)
    except KeyboardInterrupt:
        interrupts += 1
assert interrupts == 1 and len(unraisable) == 1, (interrupts, unraisable)


# What ends a thread is raised in the one that reads, behind the read, as it is: the same object.
class Cancelled(BaseException):
    pass


def ended(error):
    yield 0, PAGE
    raise error


def ends(error, read):
    with outrider.File(path) as file:
        try:
            with outrider.pull(file, ended(error)):
                read(file)
                for _ in range(100):
                    time.sleep(0.1)
        except type(error) as caught:
            return caught is error
    return False


def read_unseen(file):
    """By the C library's function where its reads are seen, which no Python is behind."""
    (os.pread if outrider.seen else outrider.pread)(file.fileno(), PAGE, 0)


for read in [lambda file: outrider.pread(file, PAGE, 0), lambda file: file.read(PAGE), read_unseen]:
    for error in [SystemExit(7), SystemExit(), Cancelled("by its owner", 3)]:
        assert ends(error, read), (error, unraisable)
        caught = []
        thread = threading.Thread(target=lambda: caught.append(ends(error, read)))
        thread.start()
        thread.join()
        assert caught == [True], (error, unraisable)
assert len(unraisable) == 1, unraisable

# A callback's, too.
with outrider.File(path) as file:
    error = SystemExit("of the callback")

    def leave(client, at):
        raise error

    try:
        with outrider.Client(leave) as client:
            client.add_region(file, 0, PAGE * PAGES)
            for i in range(PAGES):
                file.pread(PAGE, i * PAGE)
            time.sleep(10)
        raise AssertionError("no exit")
    except SystemExit as caught:
        assert caught is error
assert len(unraisable) == 1, unraisable

# A client: callback, marks, ignoring.
with outrider.File(path) as file:
    positions = []
    upcoming = iter(ORDER)

    def more(client, at):
        positions.append(at)
        batch = [i for _, i in zip(range(16), upcoming)]
        accesses = [outrider.Access(file, i * PAGE, PAGE, marked=n == 0) for n, i in enumerate(batch)]
        assert client.request(accesses, client.APPEND) == len(batch)
        try:
            outrider.declare(file, [(0, 1)])
        except OSError as error:
            assert error.errno == errno.EDEADLK
        else:
            raise AssertionError("declare in a callback")

    with outrider.Client(more) as client:
        client.add_region(file, 0, PAGE * PAGES)
        fails(errno.EEXIST, client.add_region, file, 0, 1)
        fails(errno.EBUSY, outrider.declare, file, [(0, 1)])
        for i in ORDER:
            assert file.pread(PAGE, i * PAGE) == page(i)
        assert not unraisable[1:], unraisable
        assert len(positions) >= PAGES // 16
        assert positions[0] == outrider.Position(-1, 0, file.fileno(), 0), positions[0]
        assert positions[-1].mark_fd == file.fileno() and positions[-1].mark_offset % PAGE == 0
        assert client.request([(file, 0, PAGE)], client.SET) == 1
        calls = len(positions)
        with client.ignore():
            file.pread(PAGE, 100 * PAGE)
        assert len(positions) == calls
        client.remove_region(file)
        fails(errno.ENOENT, client.remove_region, file)
    fails(errno.EINVAL, client.request, [])

# Misuse.
reader, writer = os.pipe()
fails(errno.ESPIPE, outrider.declare, reader, [(0, 1)])
fails(errno.EBADF, outrider.declare, writer, [(0, 1)])
fails(errno.EBADF, outrider.reading, 9999, 0, 1)
with outrider.File(path) as file:
    for wrong in [(-1, 5), (0, -5), (1 << 64, 1)]:
        refuses(ValueError, outrider.declare, file, [wrong])
    for wrong in [None, 1.5, True, object()]:
        refuses(TypeError, outrider.declare, wrong, [(0, 1)])
    for wrong in [[(0, 1, 2)], [5], [(0, 1.5)], [(float("nan"), 1)], ["ab"], [b"ab"], [{0, 1}], range(10), [range(0, 10, 2)]]:
        refuses(TypeError if wrong != [range(0, 10, 2)] else ValueError, outrider.declare, file, wrong)
    refuses(ValueError, outrider.declare, file, [0, 1], [1])
    for wrong, said in [([(float("nan"), 1)], "an offset"), ([(0, 1.5)], "a length"), ([b"ab"], "(offset, length)")]:
        try:
            outrider.declare(file, wrong)
        except TypeError as error:
            assert said in str(error) and "bytes" in str(error), error
    refuses(TypeError, outrider.settle, "x")
    refuses(ValueError, outrider.settle, float("nan"))
    outrider.settle(1e300)
    # Files ahead: what is wrong is said at the call, and nobody waits for it.
    for wrong, kind in [(-5, ValueError), (1 << 64, ValueError), (float("nan"), TypeError), (1.5, TypeError), ("x", TypeError)]:
        refuses(kind, outrider.ahead, [(path, wrong, 10), (path, 0, None)])
        refuses(kind, outrider.ahead, [(path, 0, wrong)])
    for wrong in [[(path, 0)], [5], [(path, 0, 1, 2)], 5, [(5, 0, 1)]]:
        refuses(TypeError, outrider.ahead, wrong)
    with outrider.ahead([(path, (1 << 64) - 1, (1 << 64) - 1), ("no such file", 0, None), (path, 0, PAGE)]) as coming:
        coming.wait()
        refuses(ValueError, coming.reading, path, -1, 5)
        refuses(TypeError, coming.reading, path, 0, 1.5)
    for wrong in [path, os.fsencode(path), pathlib.Path(path), 5]:
        refuses(TypeError, outrider.shards, wrong)
    refuses(TypeError, outrider.shards, [path], "x")
    refuses(ValueError, outrider.shards, [path], 0)
    fails(errno.ENOENT, outrider.declare, "no such file", [(0, 1)])
    # Hostile lists cost time only.
    outrider.declare(file, [((1 << 63) + i, 1 << 62) for i in range(1000)] + [(5, 0)] * 1000 + [(0, PAGE)] * 10000)
    assert file.pread(10, 0) == DATA[:10]

# Threads read what one of them has declared.
with outrider.File(path) as file:
    outrider.declare(file, [(i * PAGE, PAGE) for i in range(PAGES)])
    bad = []

    def reader_of(part):
        for i in range(part, PAGES, 4):
            if file.pread(PAGE, i * PAGE) != page(i):
                bad.append(i)

    threads = [threading.Thread(target=reader_of, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad

# A child that fork made while files are being opened has no list, and waits for nothing.
for i in range(20):
    coming = outrider.ahead(*[f"no such file {n}" for n in range(200)], path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns where a process with threads forks
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        coming.passed()
        coming.reading(path, 0, 1)
        coming.wait()
        coming.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, i
    coming.wait()
    coming.close()


# Whatever names a file and ranges of it comes to the same.
def declared_bytes(*arguments, **named):
    before = outrider.stats()
    with outrider.declare(*arguments, **named) as taken:
        return taken, (outrider.stats() - before).declared_bytes


raw = open(path, "rb", buffering=0)
OFFSETS = [i * PAGE for i in ORDER]
for name in [path, os.fsencode(path), pathlib.Path(path), raw.fileno(), raw]:
    assert declared_bytes(name, [(i, PAGE) for i in OFFSETS]) == (PAGES, PAGES * PAGE), name
for ranges in [((i, PAGE) for i in OFFSETS), [[i, PAGE] for i in OFFSETS], [range(i, i + PAGE) for i in OFFSETS]]:
    assert declared_bytes(raw, ranges) == (PAGES, PAGES * PAGE)
for offsets in [OFFSETS, iter(OFFSETS), range(0, PAGES * PAGE, PAGE)]:
    assert declared_bytes(raw, offsets, length=PAGE) == (PAGES, PAGES * PAGE)
assert declared_bytes(raw, [0, PAGE], length=[10, 20]) == (2, 30)

# By a path: the list outlives the call, and its end closes the file.
descriptors = set(os.listdir("/proc/self/fd"))
outrider.declare(path, OFFSETS, PAGE)
assert len(set(os.listdir("/proc/self/fd")) - descriptors) == 1
outrider.reading(path, ORDER[0] * PAGE, PAGE)
with outrider.declare(path, OFFSETS, PAGE) as taken:
    assert len(set(os.listdir("/proc/self/fd")) - descriptors) == 1
    taken.close()
assert set(os.listdir("/proc/self/fd")) == descriptors
with outrider.pull(path, ((path, i, PAGE) for i in OFFSETS)):
    pass
assert set(os.listdir("/proc/self/fd")) == descriptors

# More than a list holds is handed over as it is read.
TOO_MANY = outrider.LIST_MAX + 1000
with outrider.declare(raw, (i % len(DATA) for i in range(TOO_MANY)), length=1) as taken:
    assert taken == TOO_MANY
    before = outrider.stats()
    for i in range(TOO_MANY):
        outrider.reading(raw, i % len(DATA), 1)
    assert outrider.stats().diverged_reads == before.diverged_reads

# What a list is can't go to another process; figures can, and are added.
for thing in [outrider.declare(raw, [(0, PAGE)]), outrider.pull(raw, [(0, PAGE)]), outrider.Client()]:
    refuses(TypeError, pickle.dumps, thing)
    thing.close()
figures = outrider.stats()
assert figures.declared_bytes > 0
assert sum([figures, pickle.loads(pickle.dumps(figures))]).declared_bytes == 2 * figures.declared_bytes
assert figures - figures == outrider.Stats()

# A buffered file is warned of, once.
with warnings.catch_warnings(record=True) as said, open(path, "rb") as buffered:
    warnings.simplefilter("always")
    outrider.declare(buffered, [(0, PAGE)]).close()
    outrider.declare(buffered, [(0, PAGE)]).close()
assert [w.category for w in said] == [RuntimeWarning] and "buffering=0" in str(said[0].message), said

# Arrays of numpy's, where it is.
try:
    import numpy
except ImportError:
    numpy = None
if numpy is not None:
    at = numpy.array(OFFSETS)
    mapped = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    for name in [raw, mapped, numpy.int64(raw.fileno())]:
        assert declared_bytes(name, at, length=PAGE) == (PAGES, PAGES * PAGE)
    for kind in [numpy.int32, numpy.uint64, numpy.int64]:
        assert declared_bytes(raw, numpy.stack([at, at * 0 + 7], 1).astype(kind)) == (PAGES, PAGES * 7)
    assert declared_bytes(raw, at, length=at * 0 + 3) == (PAGES, PAGES * 3)
    assert declared_bytes(raw, [(i, numpy.int64(PAGE)) for i in at]) == (PAGES, PAGES * PAGE)
    for wrong, kind in [(-at, ValueError), (at * 0.5, TypeError)]:
        refuses(kind, outrider.declare, raw, wrong, PAGE)
    refuses(TypeError, outrider.declare, raw, at)
    refuses(ValueError, outrider.declare, raw, at, at[:2])
    with outrider.pull(raw, at, length=PAGE):
        for i in OFFSETS:
            assert outrider.pread(raw, PAGE, i) == DATA[i : i + PAGE]
raw.close()

print("well, reads", "seen" if outrider.seen else "told")
