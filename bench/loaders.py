#!/usr/bin/env python3
"""PyTorch's DataLoader over shuffled images on cold disks: as it is, with `outrider.torch.prefetch`, and what the device allows.

    bench/loaders.py [--device MODEL]... [--workers N]... [--turns N] [--epochs N] [--images N] [--out DIR]
    bench/loaders.py --model [--device MODEL]... [--turns N] [--out DIR]

MODEL is one of `outrider-lab disk up` (remote and cloud unless told). Images are files of 90 KB, a batch is 64 of them, in an order that is another
in each epoch; hardly anything is done with them. Columns, in turns, each from a cold disk on, all epochs in one process with memory for a quarter
of the data (a memory cgroup, which is joined when PyTorch has been loaded, with 16 MiB more, and 12 for each worker):

    stock       the loader as it is
    outrider    the same loader through outrider.torch.prefetch, nothing else changed
    readers     32 threads in C read the same files in the same order, and do nothing else
    warm        the loader as it is with all in memory, and no limit: one epoch that counts

With --model instead: a model of 512 MiB in 32 tensors that `torch.load` reads, cold: stock, under `outrider run`, and within `outrider.ahead`; and
the same by a map (`mmap=True`, from PyTorch 2.1 on). Seconds from the call to the last tensor's touch, without the interpreter's start.

The *bound* of an epoch is the longer of readers' and warm; *of the bound* is the bound over outrider's time, by medians of N turns (5). Each run is a
line of DIR/loaders.jsonl (bench/results/DATE-loaders unless told). Batches that differ from stock's are a failure.

Needs root, FUSE, loop devices, a memory cgroup, cc, a release build (or OUTRIDER_BIN), and Debian's python3-torch, or a Python with PyTorch named by
OUTRIDER_TORCH. Only with a machine that does nothing else do the times mean anything. Exit code 2 for a wrong argument, 1 if something fails.
"""

import argparse
import datetime
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import LAB, OUTRIDER, ROOT, Stop, do

PYTHON = os.environ.get("OUTRIDER_TORCH", "/usr/bin/python3")
MOUNT = Path("/run/outrider-loaders")
COLUMNS = ["stock", "outrider", "readers", "warm"]
IMAGE, BATCH, READERS = 90_000, 64, 32
TENSORS, TENSOR = 32, 16 << 20
MODEL_COLUMNS = ["stock", "run", "ahead", "warm"]
# Beside a quarter of the data: what a process takes after it has loaded PyTorch, and a worker.
OWN, WORKER = 16 << 20, 12 << 20


# ---------------------------------------------------------------------------------------------
# What is measured, in a process of its own


def child(column, directory, workers, epochs, group):
    """Prints a line for each epoch: seconds, and what the batches were."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset):
        def __init__(self):
            self.paths = sorted(str(p) for p in Path(directory).iterdir())

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            data = Path(self.paths[index]).read_bytes()
            return index, len(data), data[index % len(data)]

    images = Images()
    loader = DataLoader(images, batch_size=BATCH, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(1))
    if column == "outrider":
        import outrider

        loader = outrider.torch.prefetch(loader)
    if column == "warm":
        for path in images.paths:
            Path(path).read_bytes()
    if group:
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    for _ in range(epochs):
        seen = hashlib.sha256()
        start = time.perf_counter()
        for indices, lengths, bytes_ in loader:
            seen.update(repr((indices.tolist(), lengths.tolist(), bytes_.tolist())).encode())
        print(time.perf_counter() - start, seen.hexdigest(), flush=True)


def model(column, path, mapped):
    """Prints the seconds that a model takes to be loaded and touched once."""
    import contextlib

    import torch

    ahead = contextlib.nullcontext()
    if column == "ahead":
        import outrider

        ahead = outrider.ahead(path)
    if column == "warm":
        Path(path).read_bytes()
    start = time.perf_counter()
    with ahead:
        tensors = torch.load(path, **({"mmap": True} if mapped else {}))
        touched = sum(int(t[::4096].sum()) for t in tensors.values())
    print(time.perf_counter() - start, touched)


# ---------------------------------------------------------------------------------------------


class Group:
    """A memory cgroup, of either version."""

    def __init__(self):
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        if (v1 / "memory.limit_in_bytes").exists():
            self.path, self.limit = v1 / "outrider-loaders", "memory.limit_in_bytes"
        elif "memory" in (v2 / "cgroup.controllers").read_text().split() if (v2 / "cgroup.controllers").exists() else False:
            (v2 / "cgroup.subtree_control").write_text("+memory")
            self.path, self.limit = v2 / "outrider-loaders", "memory.max"
        else:
            raise Stop("no memory cgroup here")

    def renew(self, size):
        """An empty one with this limit, bytes: what an earlier run has cached is charged to nobody."""
        self.remove()
        self.path.mkdir()
        (self.path / self.limit).write_text(str(size))

    def remove(self):
        end = time.monotonic() + 10
        while self.path.exists():
            try:
                self.path.rmdir()
            except OSError:  # a process of it is about to end
                if time.monotonic() > end:
                    raise Stop(f"{self.path} stays in use") from None
                time.sleep(0.01)


class Bench:
    def __init__(self, told, work):
        self.told = told
        self.readers = work / "readers"
        do("cc", "-O2", "-pthread", "-o", self.readers, ROOT / "bench" / "programs" / "readers.c")
        self.group = Group()
        self.data = MOUNT / "images"

    def __enter__(self):
        size = (self.told.images * IMAGE * 5 // 4 + (256 << 20)) if not self.told.model else TENSORS * TENSOR + (256 << 20)
        do(LAB, "disk", "up", "off", "--mount", MOUNT, "--size", f"{size >> 20}M")
        self.data.mkdir()
        noise = random.Random(1)
        for i in range(0 if self.told.model else self.told.images):
            (self.data / f"{i:06}.jpg").write_bytes(noise.randbytes(IMAGE))
        if self.told.model:
            make = "import sys, torch; torch.save({f't{i}': torch.randint(0, 255, (%d,), dtype=torch.uint8) for i in range(%d)}, sys.argv[1])"
            do(PYTHON, "-c", make % (TENSOR, TENSORS), MOUNT / "model.pt")
        os.sync()
        return self

    def __exit__(self, *_):
        self.group.remove()
        do(LAB, "disk", "down", MOUNT)

    def limit(self, workers):
        return self.told.images * IMAGE // 4 + OWN + workers * WORKER

    def once(self, column, workers):
        """One run: seconds of each epoch, and what the batches were."""
        do(LAB, "disk", "cold", MOUNT)
        if column != "warm":
            self.group.renew(self.limit(workers))
        if column == "readers":
            return self.read(workers), None
        epochs = 2 if column == "warm" else self.told.epochs
        group = "" if column == "warm" else str(self.group.path)
        words = [PYTHON, __file__, "--child", column, str(self.data), str(workers), str(epochs), group]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.environment())
        if done.returncode != 0 or "Warning" in done.stderr:
            raise Stop(f"{column}: {done.stderr.strip() or done.returncode}")
        lines = [line.split() for line in done.stdout.splitlines()]
        # The first warm one has also started PyTorch's machinery.
        seconds = [float(s) for s, _ in lines][-1:] if column == "warm" else [float(s) for s, _ in lines]
        return seconds, [seen for _, seen in lines]

    def environment(self):
        return os.environ | {
            "PYTHONPATH": str(ROOT / "python"),
            "OUTRIDER_LIBRARY": str(OUTRIDER.with_name("liboutrider.so")),
        }

    def load(self, device, mapped, out):
        """Measures how a model is loaded on a device."""
        do(LAB, "disk", "model", MOUNT, device)
        found = {column: [] for column in MODEL_COLUMNS}
        for turn in range(self.told.turns):
            for column in MODEL_COLUMNS:
                do(LAB, "disk", "cold", MOUNT)
                words = [PYTHON, __file__, "--model-child", column, str(MOUNT / "model.pt"), "1" if mapped else ""]
                if column == "run":
                    words = [str(OUTRIDER), "run", "--", *words]
                done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.environment())
                if done.returncode != 0:
                    raise Stop(f"{column}: {done.stderr.strip() or done.returncode}")
                found[column].append(float(done.stdout.split()[0]))
                line = {"device": device, "row": "map" if mapped else "load", "column": column, "turn": turn}
                out.write(json.dumps(line | {"seconds": found[column][-1]}) + "\n")
                out.flush()
        middle = [statistics.median(found[column]) for column in MODEL_COLUMNS]
        print(f"{device:8} {'map' if mapped else 'load':5}" + "".join(f" {seconds:7.2f}" for seconds in middle), flush=True)

    def read(self, workers):
        paths = sorted(str(p) for p in self.data.iterdir())
        rounds = []
        for epoch in range(self.told.epochs):
            random.Random(epoch).shuffle(paths)
            rounds.append("".join(f"{p}\n" for p in paths) + "\n")
        join = f'echo $$ >"{self.group.path}/cgroup.procs"; exec "{self.readers}" {READERS}'
        done = subprocess.run(["sh", "-c", join], input="".join(rounds), capture_output=True, text=True)
        if done.returncode != 0:
            raise Stop(f"readers: {done.stderr.strip() or done.returncode}")
        return [float(line) for line in done.stdout.split()]

    def measure(self, device, workers, out):
        do(LAB, "disk", "model", MOUNT, device)
        found = {column: [] for column in COLUMNS}
        expected = None
        for turn in range(self.told.turns):
            for column in COLUMNS:
                seconds, seen = self.once(column, workers)
                found[column].append(seconds)
                if column in ("stock", "outrider"):
                    expected = expected or seen
                    if seen != expected:
                        raise Stop(f"{column}: other batches than stock's")
                line = {"device": device, "workers": workers, "column": column, "turn": turn, "seconds": seconds}
                out.write(json.dumps(line | {"images": self.told.images, "limit": self.limit(workers)}) + "\n")
                out.flush()
        middle = {column: [statistics.median(e) for e in zip(*found[column])] for column in COLUMNS}
        for epoch in range(self.told.epochs):
            stock, ours, readers = (middle[c][epoch] for c in COLUMNS[:3])
            bound = max(readers, middle["warm"][0])
            print(
                f"{device:8} {workers:7} {epoch + 1:5} {stock:7.2f} {ours:8.2f} {bound:7.2f} {stock / ours:7.2f}x {bound / ours:12.2f}",
                flush=True,
            )


def main():
    parser = told = argparse.ArgumentParser(usage=__doc__)
    told.add_argument("--device", action="append")
    told.add_argument("--workers", action="append", type=int)
    told.add_argument("--turns", type=int, default=5)
    told.add_argument("--epochs", type=int, default=3)
    told.add_argument("--images", type=int, default=4000)
    told.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"{datetime.date.today()}-loaders")
    told.add_argument("--model", action="store_true")
    told = told.parse_args()
    if min(told.turns, told.epochs, told.images) < 1 or min(told.workers or [0]) < 0:
        parser.error("--turns, --epochs and --images are at least 1, --workers 0")
    if os.geteuid() != 0:
        raise Stop("emulated disks and memory limits need root")
    for needed in (OUTRIDER, LAB):
        if not needed.exists():
            raise Stop(f"{needed} is missing: make build first")
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode != 0:
        raise Stop(f"{PYTHON} has no PyTorch (Debian: python3-torch): name one that has with OUTRIDER_TORCH")
    told.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, (told.out / "loaders.jsonl").open("a") as out:
        with Bench(told, Path(work)) as bench:
            if told.model:
                print("device   row   " + "".join(f" {column:>7}" for column in MODEL_COLUMNS))
                version = do(PYTHON, "-c", "import torch; print(torch.__version__)").split(".")
                for device in told.device or ["remote", "cloud"]:
                    for mapped in [False, True][: 1 + ([int(v) for v in version[:2]] >= [2, 1])]:
                        bench.load(device, mapped, out)
                return
            print("device   workers epoch   stock outrider   bound  speed-up of the bound")
            for device in told.device or ["remote", "cloud"]:
                for workers in told.workers or [0, 2]:
                    bench.measure(device, workers, out)


if sys.argv[1:2] == ["--child"]:
    child(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
elif sys.argv[1:2] == ["--model-child"]:
    model(*sys.argv[2:5])
else:
    try:
        main()
    except Stop as stop:
        sys.exit(f"{Path(__file__).name}: {stop}")
