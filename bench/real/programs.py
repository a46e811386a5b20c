"""The programs of `run.py`, as people write them: `programs.py NAME DIR`. Each prints what it found."""

import os
import random
import sys
from pathlib import Path

name, here = sys.argv[1], Path(sys.argv[2])
PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__.replace("_", "-")] = f


def some(tensor):
    return int(tensor.view("u1")[::97].sum())


def shuffled(items, seed):
    items = list(items)
    random.Random(seed).shuffle(items)
    return items


@program
def safetensors():
    from safetensors.numpy import load_file

    return sum(some(t) for t in load_file(here / "model.safetensors").values())


@program
def safetensors_lazy():
    from safetensors import safe_open

    with safe_open(here / "model.safetensors", "np") as f:
        return sum(some(f.get_tensor(k)) for k in shuffled(sorted(f.keys()), 3))


@program
def model_server():
    """As vLLM's default loader goes through a shard: tensor by tensor in the order of the file's keys, each copied to where it is used."""
    from safetensors import safe_open

    total = 0
    with safe_open(here / "model.safetensors", "np") as f:
        for name in f.keys():
            total += some(f.get_tensor(name).copy())
    return total


@program
def npy_rows():
    import numpy as np

    rows = np.load(here / "rows.npy", mmap_mode="r")
    order = np.random.default_rng(2).permutation(len(rows))
    return sum(int(rows[order[i : i + 64]].sum()) for i in range(0, 20000, 64))


@program
def npy_columns():
    import numpy as np

    return int(np.load(here / "rows.npy", mmap_mode="r")[:, ::512].sum())


@program
def duckdb_columns():
    import duckdb

    table = f"'{here}/table.parquet'"
    c = duckdb.connect()
    c.execute("set threads=2")
    all = c.execute(f"select k % 10, count(*), round(sum(c1)) from {table} where c3 > 0.5 group by 1 order by 1")
    part = c.execute(f"select round(sum(c7)) from {table} where id between 1000000 and 1200000")
    return part.fetchall(), len(all.fetchall())


@program
def duckdb_scan():
    import duckdb

    c = duckdb.connect()
    c.execute("set threads=2")
    sums = ", ".join(f"round(sum(c{i}))" for i in range(8))
    return c.execute(f"select {sums}, max(s) from '{here}/table.parquet'").fetchall()


@program
def polars():
    import polars as pl

    table = pl.scan_parquet(here / "table.parquet").filter(pl.col("k") < 50)
    return table.select(pl.col("c2").sum().round(3), pl.len()).collect().rows()


@program
def pyarrow_groups():
    import pyarrow.parquet as pq

    f = pq.ParquetFile(here / "table.parquet")
    groups = shuffled(range(f.num_row_groups), 5)[:20]
    return round(sum(f.read_row_group(g, columns=["c1", "c5"])["c1"].to_numpy().sum() for g in groups))


@program
def pyarrow_table():
    import pyarrow.parquet as pq

    return pq.read_table(here / "table.parquet", memory_map=False).num_rows


@program
def hdf5_chunks():
    import h5py

    with h5py.File(here / "chunks.h5") as f:
        starts = shuffled(range(0, 20000, 16), 7)[:600]
        return round(sum(float(f["x"][i : i + 16, 0].sum()) for i in starts))


@program
def zarr_chunks():
    # What zarr's local store does for each chunk.
    chunks = shuffled(sorted(os.listdir(here / "chunks.zarr")), 6)
    return sum((here / "chunks.zarr" / c).read_bytes()[7] for c in chunks)


@program
def lmdb_get():
    import lmdb

    keys = random.Random(9)
    with lmdb.open(str(here / "store.lmdb"), readonly=True, lock=False).begin() as get:
        return sum(get.get(b"%08d" % keys.randrange(60000))[0] for _ in range(8000))


def images():
    return shuffled(sorted(os.listdir(here / "images")), 4)


def size(image):
    return len((here / "images" / image).read_bytes())


@program
def images_shuffled():
    return sum(map(size, images()))


@program
def images_few():
    return sum(map(size, images()[:180]))


@program
def images_workers():
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(4) as workers:
        return sum(workers.imap(size, images(), chunksize=16))


@program
def headers():
    def head(f):
        with open(here / "headers" / f, "rb", buffering=0) as f:
            return f.read(4096)[9]

    return sum(head(f) for f in sorted(os.listdir(here / "headers")))


def blocks(count, size=4096):
    blob = os.open(here / "blob", os.O_RDONLY)
    places = random.Random(11)
    all = os.fstat(blob).st_size // size
    return sum(os.pread(blob, size, places.randrange(all) * size)[5] for _ in range(count))


@program
def random_3000():
    return blocks(3000)


@program
def random_300():
    return blocks(300)


@program
def willneed_unread():
    import mmap

    with open(here / "blob", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        m.madvise(mmap.MADV_WILLNEED)
        places = random.Random(12)
        return sum(m[places.randrange(len(m))] for _ in range(200))


@program
def willneed_read():
    import mmap

    with open(here / "blob", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        m.madvise(mmap.MADV_WILLNEED)
        return sum(m[i] for i in range(0, len(m), 4096))


@program
def thrown_away():
    blob, sum = os.open(here / "blob", os.O_RDONLY), 0
    for at in range(0, 200 << 20, 1 << 20):
        sum += os.pread(blob, 1 << 20, at)[3]
        os.posix_fadvise(blob, 0, 0, os.POSIX_FADV_DONTNEED)
    return sum


print(PROGRAMS[name]())
