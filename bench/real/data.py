"""Makes what `programs.py` reads, in the directory that is its argument; the same bytes every time.

Some 2 GB: a model of 200 tensors of 2 MB, a table of 4 million rows in Parquet, chunks of 256 KiB in HDF5 and Zarr, a key-value store, an
array by rows, 6,000 files of 60 to 120 KB in one directory, 300 files of 256 KB, a tree of 5,000 small files, and a file of 512 MB.
"""

import sys
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

here = Path(sys.argv[1])
random = np.random.default_rng(1)


def noise(size):
    return random.bytes(int(size))


tensors = {
    f"layer.{i}.w": random.integers(0, 255, (1024, 2048), dtype=np.uint8).view(np.float32)
    for i in range(200)
}
save_file(tensors, here / "model.safetensors")

rows = 4_000_000
columns = {f"c{j}": random.random(rows) for j in range(8)}
columns |= {"id": np.arange(rows), "k": random.integers(0, 1000, rows)}
columns |= {"s": [f"x{i % 9973}" for i in range(rows)]}
pq.write_table(pa.table(columns), here / "table.parquet", row_group_size=100_000)

with h5py.File(here / "chunks.h5", "w") as f:
    x = f.create_dataset("x", (20000, 4096), chunks=(16, 4096), dtype="f4")
    for i in range(0, 20000, 1000):
        x[i : i + 1000] = random.random((1000, 4096), dtype="f4")

(here / "chunks.zarr").mkdir()
for i in range(800):
    (here / "chunks.zarr" / f"{i // 40}.{i % 40}").write_bytes(noise(256 << 10))

store = lmdb.open(str(here / "store.lmdb"), map_size=1 << 30)
with store.begin(write=True) as put:
    for i in range(60000):
        put.put(b"%08d" % i, noise(4000))
store.close()

np.save(here / "rows.npy", random.integers(0, 255, (100000, 3072), dtype=np.uint8))

(here / "images").mkdir()
for i in range(6000):
    (here / "images" / f"{i:05d}.jpg").write_bytes(noise(60000 + random.integers(0, 60000)))

(here / "headers").mkdir()
for i in range(300):
    (here / "headers" / f"{i:03d}").write_bytes(noise(256 << 10))

for i in range(5000):
    place = here / "tree" / f"{i // 500}" / f"{i // 25 % 20}"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{i}.txt").write_bytes(noise(random.integers(500, 12000)))

(here / "blob").write_bytes(noise(512 << 20))
