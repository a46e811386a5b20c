#!/usr/bin/env python3
"""Real programs on cold files, in turns: stock, stock with a readahead of 4 MiB, with Outrider, and cached.

    bench/real/run.py [--device MODEL]... [--runs N] [--out DIR] [--remember] [ROW]...

--remember adds three columns: a first run that is remembered, a second one, both cold, and a cached one.

MODEL is one of `outrider-lab disk up` (nvme, remote and cloud unless told), or `network`: a file system that takes 2 ms for each of 16
requests at a time. Without ROW all are run; --list names them. Shown are medians of N runs (5 unless told) in seconds, processor time of all
processes, and what was read from the device; each run's numbers are appended to DIR/real.jsonl (bench/results/DATE-real unless told).
Outputs that differ from stock's are a failure.

Needs root, FUSE, loop devices, 3 GB of memory for the disk, a release build, and packages from PyPI, which are installed once into
~/.cache/outrider/venv. Only with a machine that does nothing else do the times mean anything. Exit code 2 for a wrong argument, 1 if a program
fails.
"""

import argparse
import contextlib
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from common import LAB, OUTRIDER, ROOT, VENV, Stop, adopt, do, measured, packages

PACKAGES = "numpy safetensors duckdb polars pyarrow h5py lmdb".split()
PYTHON = VENV / "bin" / "python"
MOUNT = Path("/run/outrider-real")
READAHEAD = 4096  # KiB, what people set
COLUMNS = ["stock", "readahead", "outrider", "warm"]
REMEMBERED = ["first", "second", "remembered"]

OWN = """safetensors safetensors-lazy model-server npy-rows npy-columns duckdb-columns duckdb-scan polars pyarrow-groups pyarrow-table hdf5-chunks
zarr-chunks lmdb-get images-shuffled images-few images-workers headers random-3000 random-300 willneed-unread willneed-read thrown-away""".split()
TOOLS = {
    "tar": ["tar", "-cf", "-", "tree"],
    "grep": ["grep", "-rc", "nowhere", "tree"],
    "imports": ["venv/bin/python", "-c", "import numpy, pyarrow, duckdb, polars, h5py; print(numpy.pi)"],
}
ROWS = OWN + list(TOOLS)
NETWORK = ["tar", "grep", "safetensors", "images-few", "pyarrow-table"]


class Disk:
    """An emulated disk with all data on it."""

    def __enter__(self):
        do(LAB, "disk", "up", "off", "--mount", MOUNT, "--size", "5G")
        self.data = MOUNT / "data"
        self.data.mkdir()
        # Not on the disk: it goes on while that is made cold.
        self.profiles = Path(tempfile.mkdtemp(prefix="outrider-real-"))
        do(PYTHON, HERE / "data.py", self.data)
        do("cp", "-a", VENV, self.data / "venv")
        device = do("findmnt", "-no", "SOURCE", MOUNT).strip()
        self.block = Path("/sys/block") / Path(device).name
        return self

    def __exit__(self, *_):
        do(LAB, "disk", "down", MOUNT)
        shutil.rmtree(self.profiles)

    def model(self, model):
        do(LAB, "disk", "model", MOUNT, model)

    def cold(self):
        do(LAB, "disk", "cold", MOUNT)

    def read(self):
        """Bytes that were read from it."""
        return int((self.block / "stat").read_text().split()[2]) * 512

    @contextlib.contextmanager
    def readahead(self, kib):
        file = self.block / "queue" / "read_ahead_kb"
        before = file.read_text()
        if kib:
            file.write_text(str(kib))
        try:
            yield
        finally:
            file.write_text(before)


class Network:
    """The same data on a slow network file system."""

    def __init__(self, disk):
        self.disk, self.data = disk, Path(f"{MOUNT}-net")

    def __enter__(self):
        self.disk.model("off")
        self.data.mkdir(exist_ok=True)
        self.mount()
        return self

    def mount(self):
        command = [LAB, "mount", "--keep-cache", self.disk.data, self.data]
        self.server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        while not os.path.ismount(self.data):
            time.sleep(0.05)
            if self.server.poll() is not None:
                raise Stop(f"outrider-lab mount: {self.server.returncode}")

    def unmount(self):
        do("umount", self.data)
        self.server.wait()

    def __exit__(self, *_):
        self.unmount()
        self.data.rmdir()

    def cold(self):
        self.unmount()
        self.mount()

    def read(self):
        return 0

    @contextlib.contextmanager
    def readahead(self, kib):
        minor = os.stat(self.data).st_dev
        file = Path(f"/sys/class/bdi/{os.major(minor)}:{os.minor(minor)}/read_ahead_kb")
        if kib:
            file.write_text(str(kib))
        yield


def command(row, data):
    if row in TOOLS:
        return TOOLS[row]
    return [PYTHON, HERE / "programs.py", row, data]


def once(place, row, column):
    """One run: seconds, processor seconds, bytes read, what it printed."""
    words = command(row, place.data)
    if column == "outrider":
        words = [str(OUTRIDER), "run", "--", *words]
    if column in REMEMBERED:
        profile = place.profiles / f"{row}.{'first' if column == 'first' else 'known'}"
        if column == "first":
            profile.unlink(missing_ok=True)
        words = [str(OUTRIDER), "run", f"--remember={profile}", "--", *words]
    if column not in ("warm", "remembered"):
        place.cold()
    before = place.read()
    with place.readahead(READAHEAD if column == "readahead" else 0):
        code, seconds, used, printed = measured(words, place.data)
    if code not in (0, 1 if row == "grep" else 0):
        raise Stop(f"{row} ({column}): exit code {code}")
    return seconds, used, place.read() - before, printed


def measure(place, device, row, runs, out, remember):
    columns = COLUMNS + (REMEMBERED if remember else [])
    if remember:
        once(place, row, "second")
    found = {c: [] for c in columns}
    expected = None
    for turn in range(runs):
        for column in columns:
            *numbers, printed = once(place, row, column)
            expected = printed if expected is None else expected
            if printed != expected:
                raise Stop(f"{row} ({column}): printed something else than stock")
            found[column].append(numbers)
            line = dict(zip(("seconds", "cpu", "bytes"), numbers))
            out.write(json.dumps({"device": device, "row": row, "column": column, "turn": turn} | line) + "\n")
            out.flush()
    middle = {c: [statistics.median(n) for n in zip(*found[c])] for c in columns}
    stock, ahead, ours, warm = (middle[c] for c in COLUMNS)
    print(
        f"{device:8} {row:17} {stock[0]:7.2f} {ahead[0]:7.2f} {ours[0]:7.2f} {warm[0]:6.2f}"
        f" {stock[0] / ours[0]:6.2f}x {ahead[0] / ours[0]:6.2f}x"
        f" {stock[1]:6.2f} {ours[1]:6.2f} {stock[2] / 1e6:7.0f} {ours[2] / 1e6:7.0f}"
        + "".join(f" {middle[c][0]:10.2f}" for c in columns[len(COLUMNS) :]),
        flush=True,
    )


def main():
    told = argparse.ArgumentParser(usage=__doc__, add_help=True)
    told.add_argument("--device", action="append")
    told.add_argument("--runs", type=int, default=5)
    told.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"{datetime.date.today()}-real")
    told.add_argument("--remember", action="store_true")
    told.add_argument("--list", action="store_true")
    told.add_argument("rows", nargs="*", metavar="ROW")
    told = told.parse_args()
    if told.list:
        print("\n".join(ROWS))
        return
    unknown = [r for r in told.rows if r not in ROWS]
    if unknown or told.runs < 1:
        what = f"row {unknown[0]}: one of {', '.join(ROWS)}" if unknown else "--runs: at least 1"
        told.error(what)
    adopt()
    packages(PACKAGES)
    told.out.mkdir(parents=True, exist_ok=True)
    more = "".join(f" {c:>10}" for c in REMEMBERED if told.remember)
    print("device   row                 stock    4 MiB    ours   warm  stock/  4 MiB/    cpu   ours    read    ours" + more)
    with Disk() as disk, (told.out / "real.jsonl").open("a") as out:
        for device in told.device or ["nvme", "remote", "cloud"]:
            if device == "network":
                with Network(disk) as network:
                    for row in told.rows or NETWORK:
                        measure(network, device, row, told.runs, out, False)
                continue
            disk.model(device)
            for row in told.rows or ROWS:
                measure(disk, device, row, told.runs, out, told.remember)


try:
    main()
except Stop as stop:
    sys.exit(f"{Path(__file__).name}: {stop}")
