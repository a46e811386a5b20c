#!/usr/bin/env python3
"""Records runs of small programs, for the tests that replay them (crates/outrider-lab/tests/replay.rs).

    bench/recordings.py [--list] [--out DIR] [NAME…]

Every run reads from an emulated disk that is cold. Its recording goes to DIR, by default where the tests look, and
is replayed at once: it must replay as recorded and have no more than 200 KB. With NAMEs only those runs are made.
All are to be made anew when the service decides otherwise on purpose, or the format changes.

Needs root, FUSE and loop devices, a release build, and a C compiler. The columnar reader is DuckDB, which pip
installs into the scratch directory. Exit code 0 if all was recorded, 1 otherwise, 2 for a wrong argument.
"""

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import RELEASE, ROOT, Stop, do

OUTRIDER, LAB, WORK = (str(RELEASE / n) for n in ("outrider", "outrider-lab", "outrider-work"))
MIB = 1 << 20
MOST_BYTES = 200_000
DISK = Path("/mnt/recorded")

FORK_SERVER = r"""
# Serves one request after another, each by a child, as a web server with a process for each request does.
$| = 1;
for my $path (@ARGV) {
    my $child = fork // die $!;
    if (!$child) {
        open my $file, "<:raw", $path or die $!;
        my $sum = 0;
        while (sysread $file, my $block, 32768) { $sum += unpack "%32C*", $block }
        exit 0;
    }
    waitpid $child, 0;
    die if $?;
}
"""

TWO_STREAMS = r"""
# Merges the two halves of a file.
open my $file, "<:raw", $ARGV[0] or die $!;
my $half = (-s $file) >> 1;
for (my $at = 0; $at < $half; $at += 16384) {
    for my $from (0, $half) {
        sysseek $file, $from + $at, 0;
        sysread($file, my $block, 16384) or die $!;
    }
}
"""

FOOTER_FIRST = r"""
# The end first, then parts far apart, as readers of archives do.
open my $file, "<:raw", $ARGV[0] or die $!;
my $size = -s $file;
for my $at ($size - 65536, map { $_ * ($size >> 3) } 0 .. 7) {
    sysseek $file, $at, 0;
    for (1 .. 12) { sysread $file, my $block, 32768 }
}
"""

HALVES = r"""
# Reads the first half of each of several files.
for my $path (@ARGV) {
    open my $file, "<:raw", $path or die $!;
    my $left = (-s $file) >> 1;
    while ($left > 0) { $left -= sysread($file, my $block, 8192) || last }
}
"""

PARQUET = """
copy (select i as id, hash(i) as h, random() as r, 'name ' || (i * 7919 % 100003) as name from range(400000) t(i))
to '{path}' (format parquet, row_group_size 50000)
"""
COLUMNS = "import duckdb, sys; print(duckdb.sql(f\"select count(*), sum(r) from '{sys.argv[1]}' where h % 3 = 0\"))"


def disk(*words):
    return do(LAB, "disk", *words)


# ---------------------------------------------------------------------------------------------
# The files


def noise(path, size, rng):
    path.write_bytes(rng.randbytes(size))


def database(path, statements):
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("page_size = 4096", "journal_mode = off", "synchronous = off"):
        connection.execute(f"pragma {pragma}")
    connection.execute("begin")
    for sql, rows in statements:
        connection.executemany(sql, rows) if rows is not None else connection.execute(sql)
    connection.execute("commit")
    connection.close()


def make_files(scratch):
    rng = random.Random(1)
    noise(DISK / "a", 16 * MIB, rng)
    shutil.copyfile(DISK / "a", DISK / "b")
    for run in range(4):
        value, lines = 0, []
        for _ in range(32768):
            value += rng.getrandbits(20)
            lines.append(b"%015d %047d\n" % (value, value))
        (DISK / f"run{run}").write_bytes(b"".join(lines))
    with open(DISK / "lines", "wb") as file:
        for i in range(131072):
            file.write(b"%08d %054x\n" % (i, rng.getrandbits(216)))
    rows = lambda size, count: ((i, rng.getrandbits(30), rng.randbytes(size)) for i in range(count))
    database(DISK / "orders.db", [
        ("create table orders (id integer primary key, customer integer, note blob)", None),
        ("insert into orders values (?, ?, ?)", rows(1900, 4096)),
        ("create index by_customer on orders (customer)", None),
    ])
    database(DISK / "parts.db", [
        statement
        for table in "abcd"
        for statement in (
            (f"create table {table} (id integer primary key, n integer, v blob)", None),
            (f"insert into {table} values (?, ?, ?)", rows(900, 3072)),
        )
    ])
    for tree in ("tree", "other"):
        for i in range(200):
            path = DISK / tree / f"d{i // 20}" / f"f{i}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(random.Random(i).randbytes(1 << random.Random(i).randrange(8, 17)))
    (DISK / "samples").mkdir()
    for i in range(120):
        noise(DISK / "samples" / f"s{i:03}", rng.randrange(20_000, 60_000), rng)
    (DISK / "images").mkdir()
    for i in range(40):
        noise(DISK / "images" / f"i{i:02}", rng.randrange(200_000, 400_000), rng)
    do("git", "-c", "init.defaultBranch=main", "init", "-q", cwd=DISK / "tree")
    do("git", "add", ".", cwd=DISK / "tree")
    do("git", "-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "-q", "-m", "all", cwd=DISK / "tree")
    do("cc", "-O1", "-o", scratch / "near", ROOT / "bench" / "programs" / "near.c")


def columnar(scratch):
    """A Python with DuckDB, and its file."""
    python = scratch / "venv" / "bin" / "python"
    if not python.exists():
        do(sys.executable, "-m", "venv", scratch / "venv")
        do(python, "-m", "pip", "install", "-q", "duckdb")
        do(python, "-c", "import duckdb, sys; duckdb.sql(sys.argv[1])", PARQUET.format(path=DISK / "c.parquet"))
    return [python, "-c", COLUMNS, DISK / "c.parquet"]


# ---------------------------------------------------------------------------------------------
# The runs


class Run:
    """A program, the disk's model, and what else is special."""

    def __init__(self, *command, model="remote", options=(), memory=None, beside=None, success=(0,)):
        self.command, self.model, self.options = command, model, options
        self.memory, self.beside, self.success = memory, beside, success


def runs(scratch):
    d = DISK
    read = lambda *words, **more: Run(WORK, "read", *words, **more)
    return {
        "cat": lambda: Run("cat", d / "a"),
        "cat-nvme": lambda: Run("cat", d / "a", model="nvme"),
        "cat-hdd": lambda: Run("cat", d / "run0", model="hdd"),
        "cat-objstore": lambda: Run("cat", d / "run0", model="objstore"),
        "cat-cached": lambda: Run("sh", "-c", f"cat {d}/run0 {d}/run0 {d}/run0"),
        "cat-fetchall": lambda: Run("cat", d / "a", options=("--mode", "fetchall+opt")),
        "cat-predict": lambda: Run("cat", d / "a", options=("--mode", "predict")),
        "cat-readahead": lambda: Run("cat", d / "a", options=("--engine", "readahead")),
        "small-blocks": lambda: Run("dd", f"if={d}/run0", "of=/dev/null", "bs=2k"),
        "sha256sum": lambda: Run("sha256sum", d / "a"),
        "tac": lambda: Run("tac", d / "lines"),
        "cmp": lambda: Run("cmp", d / "a", d / "b"),
        "sort-merge": lambda: Run("sort", "-m", *(d / f"run{i}" for i in range(4))),
        "column": lambda: read(d / "a", "--pattern", "stride", "--stride", "64K"),
        "stride-1m": lambda: read(d / "a", "--pattern", "stride", "--stride", "1M", model="nvme"),
        "skip": lambda: read(d / "a", "--pattern", "skip", "--stride", "64K"),
        "reverse": lambda: read(d / "a", "--pattern", "reverse", model="nvme"),
        "permutation": lambda: read(d / "a", "--pattern", "permutation"),
        "zipf": lambda: read(d / "a", "--pattern", "zipf", "--ops", "600", model="nvme"),
        "clustered": lambda: Run(scratch / "near", d / "a", 131072, 8, "random"),
        "threads": lambda: read(d / "a", "--threads", "4", "--shared"),
        "mmap": lambda: read(d / "a", "--mmap"),
        "mmap-stride": lambda: read(d / "a", "--mmap", "--block", "4K", "--pattern", "stride"),
        "hints-pattern": lambda: read(d / "a", "--hints", "pattern"),
        "hints-ahead": lambda: read(d / "a", "--pattern", "permutation", "--hints", "ahead"),
        "declared": lambda: read(d / "a", "--pattern", "permutation", "--declare"),
        "two-streams": lambda: Run("perl", "-e", TWO_STREAMS, d / "a"),
        "two-programs": lambda: Run("sh", "-c", f"cat {d}/a >/dev/null & tac {d}/lines >/dev/null; wait"),
        "fork-server": lambda: Run("perl", "-e", FORK_SERVER, *(d / "images" / f"i{i:02}" for i in range(40))),
        "sqlite-index": lambda: Run("sqlite3", d / "orders.db", "select sum(length(note)) from orders indexed by by_customer where customer < 500000000"),
        "sqlite-join": lambda: Run("sqlite3", d / "parts.db", "select sum(length(a.v) + length(b.v) + length(c.v) + length(d.v)) from a join b using (id) join c using (id) join d using (id)"),
        "tar": lambda: Run("tar", "-cf", scratch / "tar", "-C", d, "tree"),
        "find": lambda: Run("find", d / "tree", "-type", "f", "-size", "+20k"),
        "diff": lambda: Run("diff", "-r", "-x", ".git", d / "tree", d / "other"),
        "grep": lambda: Run("grep", "-rc", "outrider", d / "samples", success=(0, 1)),
        "images": lambda: Run("sh", "-c", f"cat {d}/images/*"),
        "samples": lambda: Run("sh", "-c", f"cat {d}/samples/*"),
        "git": lambda: Run("git", "-C", d / "tree", "grep", "-c", "-I", "outrider", success=(0, 1)),
        "copy": lambda: Run("cp", d / "a", d / "copy"),
        "footer-first": lambda: Run("perl", "-e", FOOTER_FIRST, d / "a"),
        "halves": lambda: Run("perl", "-e", HALVES, d / "a", d / "b"),
        "columnar": lambda: Run(*columnar(scratch)),
        "memory-pressure": lambda: Run("cat", d / "a", d / "b", memory=24 * MIB),
        "budget": lambda: Run("cmp", "-n", "8M", d / "a", d / "b", options=("--budget", "1M")),
        "foreign-reader": lambda: Run("cat", d / "a", beside=(WORK, "read-blocks", d / "b", "--count", "100000")),
    }


def group(most):
    """A memory cgroup with this limit, or a stop."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ")
        at, kind, options = left.split()[4], right.split()[0], right.split()[2].split(",")
        if kind == "cgroup" and "memory" in options or kind == "cgroup2" and Path(at, "memory.max").parent.exists() and "memory" in Path(at, "cgroup.subtree_control").read_text():
            made = Path(at) / "outrider-recordings"
            made.mkdir(exist_ok=True)
            limit = "memory.max" if kind == "cgroup2" else "memory.limit_in_bytes"
            (made / limit).write_text(str(most))
            return made
    raise Stop("no memory cgroup can be made")


def leave(group):
    """Removes it. What has just ended may still be counted there."""
    for _ in range(50):
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.1)


def record(name, run, out):
    """Makes one recording and proves it; what is wrong with it, or nothing."""
    disk("model", DISK, run.model)
    disk("cold", DISK)
    path = out / f"{name}.rec"
    command = [OUTRIDER, "run", "--record", path, *run.options, "--", *run.command]
    within = group(run.memory) if run.memory else None
    # A shell that has entered the group becomes the command.
    if within:
        command = ["sh", "-c", f'echo $$ >{within}/cgroup.procs; exec "$@"', "sh", *command]
    beside = run.beside and subprocess.Popen([str(c) for c in run.beside], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    finally:
        if beside:
            beside.terminate()
            beside.wait()
        if within:
            leave(within)
    if done.returncode not in run.success:
        return f"exit code {done.returncode}: {done.stderr.strip()}"
    replayed = subprocess.run([LAB, "replay", path], capture_output=True, text=True)
    size = path.stat().st_size
    print(f"{name:16} {size:7} bytes, {(replayed.stdout or replayed.stderr).strip().removeprefix(str(path) + ': ')}", flush=True)
    if replayed.returncode != 0:
        return "replays otherwise"
    return f"{size} bytes, more than {MOST_BYTES}" if size > MOST_BYTES else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "crates" / "outrider-lab" / "tests" / "recordings")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outrider-recordings-") as scratch:
        known = runs(Path(scratch))
        if args.list:
            print("\n".join(known))
            return 0
        unknown = [n for n in args.names if n not in known]
        if unknown:
            parser.error(f"no such run: {', '.join(unknown)}; --list shows all")
        args.out.mkdir(parents=True, exist_ok=True)
        try:
            disk("up", "off", "--size", "1G", "--mount", DISK)
            try:
                make_files(Path(scratch))
                wrong = {}
                for name in args.names or known:
                    why = record(name, known[name](), args.out)
                    if why:
                        wrong[name] = why
            finally:
                disk("down", DISK)
        except Stop as stop:
            print(f"recordings.py: {stop}", file=sys.stderr)
            return 1
        for name, why in wrong.items():
            print(f"recordings.py: {name}: {why}", file=sys.stderr)
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
