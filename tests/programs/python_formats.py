"""Checks outrider.formats, ahead, load_file and shards against the real libraries, in DIR; says `well` and their names if all holds.

    python_formats.py DIR
"""

import ctypes
import io
import mmap
import os
import sys
import tarfile
import time

import gguf
import h5py
import numpy
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import safetensors.numpy
import webdataset
import zarr

import outrider
from outrider import formats

PAGE = 4096
os.chdir(sys.argv[1])
RANDOM = numpy.random.default_rng(4)


def resident(path):
    """Which pages of a file are in memory."""
    size = os.path.getsize(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        pages = (ctypes.c_ubyte * -(-size // PAGE))()
        start = ctypes.c_char.from_buffer(mapped)
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size), pages) == 0
        del start
        return [page & 1 for page in pages]


def cold(*paths):
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def holds(condition):
    for _ in range(200):
        if condition():
            return True
        time.sleep(0.05)
    return False


def fetched(places, begin):
    """What is listed comes into memory without being read. Returns the files' resident pages then."""
    paths = {place[0] for place in places}
    cold(*paths)
    with begin() as going:
        if hasattr(going, "wait"):
            going.wait()

        def there():
            pages = {path: resident(path) for path in paths}
            return all(
                all(pages[path][at // PAGE : ((at + length if length else os.path.getsize(path)) - 1) // PAGE + 1])
                for path, at, length in places
            )

        assert holds(there), places[:5]
    return {path: sum(resident(path)) for path in paths}


def contents(place):
    path, offset, length = place
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read() if length is None else file.read(length)


# numpy: rows of a memmap, of a slice of one, in any order.
table = RANDOM.integers(0, 1 << 60, size=(500, 700))
numpy.save("table.npy", table)
mapped = numpy.load("table.npy", mmap_mode="r")
order = RANDOM.permutation(500)
for array, rows in [(mapped, order), (mapped[100:300], order[order < 200]), (mapped, None)]:
    ranges = formats.npy_rows(array, rows)
    for (offset, length), row in zip(ranges.tolist(), range(len(array)) if rows is None else rows):
        assert contents(("table.npy", offset, length)) == array[row].tobytes()
half = formats.npy_rows(mapped, order[:50])
numpy.save("cold.npy", table)  # pages that are mapped stay in memory
size = os.path.getsize("cold.npy")
pages = fetched([("cold.npy", *r) for r in half.tolist()], lambda: outrider.declare("cold.npy", half))
assert sum(pages.values()) < size / PAGE / 2, pages
try:
    formats.npy_rows(mapped, [500])
except IndexError:
    pass
else:
    raise AssertionError("a row that isn't there")

# HDF5: chunks (each is uncompressed here, so the bytes are the data), and a dataset of one piece.
with h5py.File("data.h5", "w") as file:
    file["chunked"] = numpy.zeros(0)
    del file["chunked"]
    file.create_dataset("chunked", data=table, chunks=(20, 350))
    file.create_dataset("packed", data=table, chunks=(20, 350), compression="gzip")
    file["whole"] = table
with h5py.File("data.h5", "r") as file:
    places = formats.hdf5(file["chunked"], [45, 46, 3])
    assert [contents(p) for p in places] == [
        table[at : at + 20, side : side + 350].tobytes() for at in (40, 0) for side in (0, 350)
    ]
    assert len(formats.hdf5(file["chunked"])) == 50 == len(formats.hdf5(file["packed"]))
    assert sum(length for _, _, length in formats.hdf5(file["packed"])) == file["packed"].id.get_storage_size()
    whole = formats.hdf5(file["whole"], [7, 499])
    assert [contents(p) for p in whole] == [table[7].tobytes(), table[499].tobytes()]
    fetched(places, lambda: outrider.ahead(places))

# zarr: the files of other chunks may go, and those rows are still there.
chunks = zarr.create_array("data.zarr", data=table, chunks=(20, 350), compressors=None)
places = formats.zarr(chunks, [45, 46, 3])
assert len(places) == 4 and len(formats.zarr(chunks)) == 50
fetched(places, lambda: outrider.ahead(places))
for directory, _, names in os.walk("data.zarr"):
    for name in names:
        path = os.path.join(directory, name)
        if name != "zarr.json" and os.path.realpath(path) not in [os.path.realpath(p[0]) for p in places]:
            os.unlink(path)
again = zarr.open_array("data.zarr", mode="r")
assert (again[40:60] == table[40:60]).all() and (again[0:20] == table[0:20]).all() and not (again[60:] == table[60:]).any()

# Parquet: with everything else but the footer zeroed, the columns still read the same.
columns = pyarrow.table({"a": RANDOM.random(50_000), "b": RANDOM.integers(0, 9, 50_000), "c": [str(i) for i in range(50_000)]})
pyarrow.parquet.write_table(columns, "data.parquet", row_group_size=10_000)
places = formats.parquet("data.parquet", ["b", "c"])
assert places == formats.parquet(["data.parquet"], ["b", "c"]) and len(places) == 10
assert places == formats.parquet(pyarrow.dataset.dataset("data.parquet"), ["b", "c"])
with open("data.parquet", "rb") as file:
    data = file.read()
footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
wiped = bytearray(len(data))
wiped[:4], wiped[footer:] = data[:4], data[footer:]
for _, offset, length in places:
    wiped[offset : offset + length] = data[offset : offset + length]
assert wiped != data
assert pyarrow.parquet.read_table(io.BytesIO(wiped), columns=["b", "c"]) == columns.select(["b", "c"])
pages = fetched(places, lambda: outrider.ahead(places))
assert sum(pages.values()) < 0.8 * len(data) / PAGE, pages
try:
    formats.parquet("data.parquet", ["nosuch"])
except ValueError as error:
    assert "nosuch" in str(error)
else:
    raise AssertionError("a column that isn't there")

# safetensors: the same tensors as its own, and all of it fetched.
tensors = {f"t{i}": RANDOM.random((500, 500)) for i in range(8)}
safetensors.numpy.save_file(tensors, "model.safetensors", metadata={"format": "np"})
cold("model.safetensors")
before = outrider.stats()
loaded = outrider.load_file("model.safetensors", framework="np")
assert loaded.keys() == tensors.keys() and all((loaded[name] == tensors[name]).all() for name in tensors)
assert (outrider.stats() - before).declared_bytes == sum(t.nbytes for t in tensors.values())
size = os.path.getsize("model.safetensors")
fetched([("model.safetensors", 0, None)], lambda: outrider.ahead("model.safetensors"))
os.mkdir("model")
for name in ["one", "two"]:
    with open(f"model/{name}", "wb") as file:
        file.write(RANDOM.bytes(3_000_000))
fetched([("model/one", 0, None), ("model/two", 0, None)], lambda: outrider.ahead("model", "no such file"))
for wrong in ["table.npy", "model/one"]:
    try:
        outrider.load_file(wrong, framework="np")
    except ValueError as error:
        assert wrong in str(error)
    else:
        raise AssertionError(wrong)

# GGUF, as its own reader maps it.
writer = gguf.GGUFWriter("model.gguf", "test")
for name, tensor in tensors.items():
    writer.add_tensor(name, tensor.astype(numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
fetched([("model.gguf", 0, None)], lambda: outrider.ahead("model.gguf"))
with outrider.ahead("model.gguf"):
    read = {tensor.name: numpy.array(tensor.data) for tensor in gguf.GGUFReader("model.gguf").tensors}
assert read.keys() == tensors.keys() and all((read[name] == tensors[name].astype(numpy.float32)).all() for name in tensors)

# Shards: tarfile and webdataset read them, while the next ones come.
paths = [f"shard-{i}.tar" for i in range(6)]
samples = {}
for i, path in enumerate(paths):
    with tarfile.open(path, "w") as shard:
        for j in range(20):
            key, data = f"{i}-{j}", RANDOM.bytes(30_000)
            samples[key] = data
            member = tarfile.TarInfo(f"{key}.bin")
            member.size = len(data)
            shard.addfile(member, io.BytesIO(data))
cold(*paths)
found = {}
for n, file in enumerate(outrider.shards(paths, ahead=3)):
    if n == 0:
        assert holds(lambda: all(resident(paths[1])) and all(resident(paths[2])))
        assert not any(resident(paths[5]))
    assert file.name == paths[n]
    with tarfile.open(fileobj=file) as shard:
        for member in shard:
            found[member.name.partition(".")[0]] = shard.extractfile(member).read()
assert found == samples
streams = ({"url": file.name, "stream": file} for file in outrider.shards(paths))
expanded = webdataset.tariterators.group_by_keys(webdataset.tariterators.tar_file_expander(streams))
assert {sample["__key__"]: sample["bin"] for sample in expanded} == samples
assert not [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}") and "shard" in os.readlink(f"/proc/self/fd/{fd}")]

print("well,", *(f"{m.__name__} {m.__version__}" for m in (h5py, numpy, pyarrow, webdataset, zarr)))
