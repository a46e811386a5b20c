#!/usr/bin/env python3
"""Jobs that are remembered, on cold files, in turns: what their second cold run takes beside a cached one and a lone sorted read.

    bench/remember.py [--device MODEL]... [--runs N] [--out DIR] [--list] [JOB]...

MODEL is one of `outrider-lab disk up` (nvme and remote unless told). Without JOB all are run; --list names them. Programs and data lie on one emulated disk;
git, gcc, the C library and the shell don't, and are cached. Columns, each but the warm ones from a cold disk on:

    stock      the job as it is
    run        under `outrider run`
    first      under `outrider run --remember`, which makes a new profile
    second     the same with a profile of one run
    fetch      nothing but `outrider warm` of that profile's ranges, or 64 threads in Python that read them sorted by place, whichever is sooner
    vmtouch    `vmtouch -t` of the profile's files, and then the job
    warm       the job, cached; warm-run and warm-second the same under `run`, and with a profile

*Efficiency* is the longer of warm and fetch over second. Shown are medians of N turns (5), ms, and processor time of all processes for warm-run and
warm-second; each run is a line of DIR/remember.jsonl (bench/results/DATE-remember unless told). Outputs that differ from stock's are a failure.

Needs root, FUSE, loop devices, 4 GB of memory for the disk, a release build, javac, node, git, gcc, sqlite3, vmtouch, and packages from PyPI, which are installed
once into ~/.cache/outrider/venv. Only with a machine that does nothing else do the times mean anything. Exit code 2 for a wrong argument, 1 if something fails.
"""

import argparse
import concurrent.futures
import datetime
import json
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import LAB, OUTRIDER, ROOT, VENV, Stop, adopt, children, do, measured, packages, processor, reap

PACKAGES = "numpy pyarrow duckdb polars h5py".split()
MOUNT = Path("/run/outrider-remember")
COLUMNS = "stock run first second fetch vmtouch warm warm-run warm-second".split()
READERS = 64

LOADER = """import random, sys
names = [f'images/{i:05d}' for i in range(2000)]
random.Random(7).shuffle(names)
print(sum(len(open(n, 'rb').read()) for n in names[:1200]))
"""
SCAN = "import duckdb; print(duckdb.sql(\"select k, sum(i), max(c1) from 'table.parquet' group by k order by k limit 3\"))"
REPORT = "select k, count(*), sum(length(v)) from t where k between 100 and 160 group by k;"

JOBS = {
    "imports": ["venv/bin/python", "-c", "import numpy, pyarrow, duckdb, polars, h5py; print(numpy.pi)"],
    "javac": ["jdk/bin/javac", "-d", "/tmp", "java/A.java", "java/B.java", "java/C.java"],
    "java-jar": ["jdk/bin/java", "-jar", "java/app.jar"],
    "node": ["node", "modules/main.js"],
    "git-status": ["git", "-C", "repository", "status", "--short"],
    "git-log": ["git", "-C", "repository", "log", "--stat", "--oneline"],
    "gcc": ["sh", "-c", "for f in c/*.c; do gcc -O0 -Ic/include -c -o /dev/null $f || exit 1; done"],
    "sqlite3": ["sqlite3", "report.db", REPORT],
    "loader": [sys.executable, "loader.py"],
    "duckdb": ["venv/bin/python", "-c", SCAN],
}


# ---------------------------------------------------------------------------------------------
# Data, the same every time


def java(here):
    jdk = Path(os.path.realpath(shutil.which("javac"))).parent.parent
    # Its sources may be a link to what another package has.
    shutil.copytree(jdk, here.parent / "jdk", ignore=shutil.ignore_patterns("src.zip"), ignore_dangling_symlinks=True)
    here.mkdir()
    for name in "ABC":
        (here / f"{name}.java").write_text(
            f"import java.util.*; import java.util.stream.*;\npublic class {name} {{ public static void main(String[] a) {{"
            " System.out.println(Stream.of(1, 2, 3).map(i -> i * 2).collect(Collectors.toList())); } }\n"
        )
    source = here / "source"
    source.mkdir()
    rest = random.Random(3)
    for i in range(400):
        words = ", ".join(f'"{rest.getrandbits(512):x}"' for _ in range(40))
        (source / f"C{i}.java").write_text(f"class C{i} {{ static final String[] W = {{ {words} }}; static int of() {{ return W[{i % 40}].length(); }} }}\n")
    calls = " + ".join(f"C{i}.of()" for i in range(400))
    (source / "Main.java").write_text(f"public class Main {{ public static void main(String[] a) {{ System.out.println({calls}); }} }}\n")
    classes = here / "classes"
    classes.mkdir()
    do("javac", "-d", classes, *source.iterdir())
    do("jar", "--create", "--file", here / "app.jar", "--main-class", "Main", "-C", classes, ".")
    shutil.rmtree(classes)
    shutil.rmtree(source)


def node(here):
    rest = random.Random(4)
    for i in range(2400):
        at = here / f"p{i // 12:03d}" / "lib"
        at.mkdir(parents=True, exist_ok=True)
        body = "\n".join(f"exports.f{k} = () => '{rest.getrandbits(320):x}';" for k in range(60))
        (at / f"m{i % 12}.js").write_text(body + f"\nexports.n = {i};\n")
    names = [f"./p{i // 12:03d}/lib/m{i % 12}.js" for i in rest.sample(range(2400), 2400)]
    (here / "main.js").write_text("let n = 0;\nfor (const m of " + json.dumps(names) + ") n += require(m).n;\nconsole.log(n);\n")


def repository(here):
    rest = random.Random(5)
    here.mkdir()
    do("git", "-C", here, "init", "-q", "-b", "main")
    names = [f"d{i // 50:03d}/{i:05d}.txt" for i in range(15000)]
    text = lambda: "\n".join(f"{rest.getrandbits(160):x}" for _ in range(rest.randrange(5, 120))) + "\n"
    out = []

    def commit(n, changed):
        out.append(f"commit refs/heads/main\ncommitter A <a@example.org> {1700000000 + n} +0000\ndata 2\n{n % 10}\n")
        for name in changed:
            data = text()
            out.append(f"M 100644 inline {name}\ndata {len(data)}\n{data}\n")

    commit(0, names)
    for n in range(1, 300):
        commit(n, rest.sample(names, 20))
    subprocess.run(["git", "-C", here, "fast-import", "--quiet"], input="".join(out).encode(), check=True)
    do("git", "-C", here, "reset", "-q", "--hard")


def sources(here):
    rest = random.Random(6)
    (here / "include").mkdir(parents=True)
    for i in range(150):
        lines = "\n".join(f"static inline int h{i}_{k}(int x) {{ return x * {rest.randrange(1000)} + {k}; }}" for k in range(80))
        (here / "include" / f"h{i}.h").write_text(f"#pragma once\n{lines}\n")
    for i in range(15):
        order = rest.sample(range(150), 150)
        (here / f"s{i}.c").write_text("".join(f'#include "h{k}.h"\n' for k in order) + f"int main{i}(void) {{ return h{i}_1(2); }}\n")


def database(path):
    rest = random.Random(8)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma journal_mode = off")
    connection.execute("begin")
    connection.execute("create table t (id integer primary key, k integer, v blob)")
    connection.executemany("insert into t (k, v) values (?, ?)", ((rest.randrange(3000), rest.randbytes(400)) for _ in range(300000)))
    connection.execute("create index by_k on t (k)")
    connection.execute("commit")
    connection.close()


def images(here):
    here.mkdir()
    rest = random.Random(9)
    for i in range(2000):
        (here / f"{i:05d}").write_bytes(rest.randbytes(30000 + rest.randrange(60000)))


TABLE = """import sys, numpy as np, pyarrow as pa, pyarrow.parquet as pq
r, n = np.random.default_rng(1), 4_000_000
c = {f"c{j}": r.random(n) for j in range(6)} | {"k": r.integers(0, 1000, n), "i": np.arange(n)}
pq.write_table(pa.table(c), sys.argv[1], row_group_size=100_000)
"""


def make(here):
    packages(PACKAGES)
    do("cp", "-a", VENV, here / "venv")
    java(here / "java")
    node(here / "modules")
    repository(here / "repository")
    sources(here / "c")
    database(here / "report.db")
    images(here / "images")
    (here / "loader.py").write_text(LOADER)
    do(VENV / "bin" / "python", "-c", TABLE, here / "table.parquet")


# ---------------------------------------------------------------------------------------------
# Runs


def ranges(profile):
    """What a profile has of files: path, first byte, bytes."""
    for line in do(OUTRIDER, "profile", "export", "--ranges", profile).splitlines():
        path, start, length = line.rsplit("\t", 2)
        yield path, int(start), int(length)


def read_all(pieces):
    """Reads them with many threads, each a run of neighbours."""

    def read(piece):
        path, start, length = piece
        fd = os.open(path, os.O_RDONLY)
        while length > 0:
            got = len(os.pread(fd, min(length, 1 << 20), start))
            if got == 0:
                break
            start, length = start + got, length - got
        os.close(fd)

    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, pieces))


class Bench:
    def __init__(self, runs, out):
        self.runs, self.out = runs, out
        self.profiles = Path(tempfile.mkdtemp(prefix="outrider-remember-"))

    def __enter__(self):
        do(LAB, "disk", "up", "off", "--mount", MOUNT, "--size", "4G")
        self.data = MOUNT / "data"
        self.data.mkdir()
        try:
            make(self.data)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        do(LAB, "disk", "down", MOUNT)
        shutil.rmtree(self.profiles)

    def cold(self):
        do(LAB, "disk", "cold", MOUNT)

    def job(self, job, prefix):
        """One run: seconds, processor seconds, what it printed."""
        code, seconds, used, printed = measured([*prefix, *JOBS[job]], self.data)
        if code != 0:
            raise Stop(f"{job}: exit code {code}")
        return seconds, used, printed

    def timed(self, do_it):
        self.cold()
        staying, start = children(), time.perf_counter()
        do_it()
        seconds = time.perf_counter() - start
        reap(staying)
        return seconds

    def turn(self, job):
        """All columns once: column, seconds, processor seconds, what it printed."""
        profile, known = (self.profiles / f"{job}.{n}" for n in ("first", "known"))
        remembered = lambda file: [OUTRIDER, "run", f"--remember={file}", "--"]
        run = [OUTRIDER, "run", "--"]
        for column, prefix in (("stock", []), ("run", run), ("first", remembered(profile))):
            profile.unlink(missing_ok=True)
            self.cold()
            yield column, *self.job(job, prefix)
        of_first = profile.read_bytes()
        self.cold()
        yield "second", *self.job(job, remembered(profile))
        profile.write_bytes(of_first)
        pieces = [p for p in ranges(profile) if p[0].startswith(f"{MOUNT}/")]
        yield "fetch", self.fetch(profile, pieces), 0.0, None
        files = "\n".join(dict.fromkeys(p[0] for p in pieces))
        self.cold()
        used, start = processor(), time.perf_counter()
        subprocess.run(["vmtouch", "-tq", "-b", "-"], input=files.encode(), check=True)
        touched = time.perf_counter() - start
        seconds, _, printed = self.job(job, [])
        yield "vmtouch", touched + seconds, processor() - used, printed
        self.job(job, [])
        yield "warm", *self.job(job, [])
        yield "warm-run", *self.job(job, run)
        if not known.exists():
            for _ in range(4):
                self.job(job, remembered(known))
        yield "warm-second", *self.job(job, remembered(known))

    def fetch(self, profile, pieces):
        """Seconds that it takes to bring what a profile has, and nothing else."""
        place = {path: os.stat(path).st_ino for path, _, _ in pieces}
        pieces.sort(key=lambda p: (place[p[0]], p[1]))
        own = self.timed(lambda: do(OUTRIDER, "warm", "--profile", profile))
        return min(own, self.timed(lambda: read_all(pieces)))

    def measure(self, device, job):
        found = {c: [] for c in COLUMNS}
        expected = None
        for turn in range(self.runs):
            for column, seconds, cpu, printed in self.turn(job):
                if printed is not None:
                    expected = printed if expected is None else expected
                    if printed != expected:
                        raise Stop(f"{job} ({column}): printed something else than stock")
                found[column].append((seconds, cpu))
                line = {"device": device, "job": job, "column": column, "turn": turn, "seconds": seconds, "cpu": cpu}
                self.out.write(json.dumps(line) + "\n")
                self.out.flush()
        ms = {c: [1e3 * statistics.median(n) for n in zip(*found[c])] for c in COLUMNS}
        bound = max(ms["warm"][0], ms["fetch"][0])
        print(
            f"{device:7} {job:10} "
            + " ".join(f"{ms[c][0]:8.0f}" for c in COLUMNS)
            + f" {bound / ms['second'][0]:10.2f} {ms['first'][0] / ms['run'][0]:9.2f} {ms['warm-run'][1]:6.0f} {ms['warm-second'][1]:6.0f}",
            flush=True,
        )


def main():
    told = argparse.ArgumentParser(usage=__doc__)
    told.add_argument("--device", action="append")
    told.add_argument("--runs", type=int, default=5)
    told.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / f"{datetime.date.today()}-remember")
    told.add_argument("--list", action="store_true")
    told.add_argument("jobs", nargs="*", metavar="JOB")
    parser, told = told, told.parse_args()
    if told.list:
        print("\n".join(JOBS))
        return
    unknown = [j for j in told.jobs if j not in JOBS]
    if unknown or told.runs < 1:
        parser.error(f"JOB {unknown[0]}: one of {', '.join(JOBS)}" if unknown else "--runs: at least 1")
    if os.geteuid() != 0:
        raise Stop("emulated disks need root")
    adopt()
    told.out.mkdir(parents=True, exist_ok=True)
    with (told.out / "remember.jsonl").open("a") as out, Bench(told.runs, out) as bench:
        print("device  job        " + " ".join(f"{c[-8:]:>8}" for c in COLUMNS) + " efficiency first/run    cpu second")
        for device in told.device or ["nvme", "remote"]:
            do(LAB, "disk", "model", MOUNT, device)
            for job in told.jobs or JOBS:
                # Git writes down what it has seen of its files.
                bench.job(job, [])
                bench.measure(device, job)


try:
    main()
except Stop as stop:
    sys.exit(f"{Path(__file__).name}: {stop}")
