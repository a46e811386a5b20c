#!/usr/bin/env python3
"""The demo: real programs on cold files, without and with Outrider.

    demo/run.py [--dir DIR] [--rounds N] [--scale X] [--seed N] [--json FILE]

As root, where FUSE and loop devices are there, the files lie on an emulated disk with the latency of network
storage (`outrider-lab disk`, model `remote`: 500 µs, 64 requests at once, 1 GB/s). Otherwise, or with --dir,
they lie in a new directory under DIR (else $TMPDIR, else /var/tmp) on the disk that is there, and the gains are
those of that disk. Everything is removed at the end, also after Ctrl-C.

Each program runs in N rounds, in each once without and once with Outrider, in alternating order, always on a
cold cache: the emulated disk is remounted, a real one's files are evicted, and `outrider cached` must
then find nothing. Shown are medians. Whether the output was the same is judged from the SHA-256 of what the
program itself wrote, over all runs. With --json FILE the results are written as JSON, too, with what `outrider run
--report` counted in the last run of each program.

Only Python's standard library is used. Exit code 0 unless an output differed, a program failed, or no
measurement could be made.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
# File systems without a disk below, where no file is ever cold.
IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs"}


class Stop(Exception):
    """The demo can't go on; the text says why."""


def interrupted(number, _frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


# ---------------------------------------------------------------------------------------------
# Where the files lie


class EmulatedDisk:
    """A disk made by outrider-lab."""

    def __init__(self, lab, base, megabytes):
        self.lab = lab
        self.mount = base / "disk"
        self.megabytes = megabytes
        self.directory = self.mount

    def disk(self, *words):
        done = subprocess.run(
            [self.lab, "disk", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise Stop(f"outrider-lab disk {words[0]}: {done.stderr.strip() or done.returncode}")

    def up(self):
        # Fast while the files are written.
        self.disk("up", "off", "--size", f"{self.megabytes}M", "--mount", str(self.mount))

    def ready(self):
        os.sync()
        self.disk("model", str(self.mount), "remote")

    def make_cold(self, _files):
        self.disk("cold", str(self.mount))

    def down(self):
        try:
            self.disk("down", str(self.mount))
        except Stop:
            # It may never have come up.
            if os.path.ismount(self.mount):
                self.disk("down", str(self.mount), "--lazy")

    def describe(self):
        return "an emulated disk, model remote: 500 µs, 64 requests at once, 1 GB/s; ext4"


class RealDisk:
    """A directory on the disk that is there."""

    def __init__(self, outrider, base):
        self.outrider = outrider
        self.directory = base / "files"

    def up(self):
        self.directory.mkdir()

    def ready(self):
        for path in self.directory.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())

    def make_cold(self, files):
        subprocess.run(
            [self.outrider, "evict", *files], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True
        )

    def down(self):
        pass  # it goes with the directory above

    def describe(self):
        return f"{self.directory.parent.parent}, on {file_system(self.directory)}; the files are evicted before each run"


def file_system(path):
    """The type of the file system that holds a path, from /proc/self/mountinfo."""
    device = os.stat(path).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    found = "an unknown file system"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            if left.split()[2] == name:
                found = right.split()[0]
    return found


def why_no_emulated_disk(lab):
    if os.geteuid() != 0:
        return "not root; `sudo demo/run.py` has one where FUSE and loop devices are"
    for device in ("/dev/fuse", "/dev/loop-control"):
        try:
            os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            return f"{device}: {error.strerror}"
    if not lab.is_file():
        return "outrider-lab is not built"
    if not shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
        return "no mkfs.ext4"
    return None


# ---------------------------------------------------------------------------------------------
# The files


def write_noise(path, megabytes, rng):
    with open(path, "wb") as file:
        for _ in range(megabytes):
            file.write(rng.randbytes(MIB))


def make_files(directory, rng, scale):
    """Writes the file set; the same for the same seed and scale."""
    size = lambda megabytes: max(1, int(megabytes * scale))

    # Records of 64 KiB, the first 16 KiB of each the column that is read; also a plain large file.
    write_noise(directory / "records.bin", size(192), rng)
    # Almost the same again, for cmp.
    shutil.copyfile(directory / "records.bin", directory / "copy.bin")
    with open(directory / "copy.bin", "r+b") as file:
        for _ in range(1000):
            file.seek(rng.randrange(size(192) * MIB))
            file.write(b"\n")

    # Lines, for tac.
    with open(directory / "lines.txt", "wb") as file:
        number = 0
        for _ in range(size(64)):
            noise = rng.randbytes(MIB * 27 // 64).hex()
            lines = [b"%08d %s\n" % (number + i, noise[i * 54 : i * 54 + 54].encode()) for i in range(MIB // 64)]
            number += len(lines)
            file.write(b"".join(lines))

    # Sorted files, for sort -m.
    for run in range(8):
        value, lines = 0, []
        for _ in range(size(96) * MIB // 8 // 64):
            value += rng.getrandbits(20)
            lines.append(b"%015d %047d\n" % (value, value))
        (directory / f"run{run}.txt").write_bytes(b"".join(lines))

    # A table with a secondary index whose order has nothing to do with the table's.
    with database(directory / "orders.db", 8192) as db:
        db.execute("create table orders (id integer primary key, customer integer, note blob)")
        db.executemany(
            "insert into orders values (?, ?, ?)",
            ((i, rng.getrandbits(30), rng.randbytes(1900)) for i in range(size(96) * 512)),
        )
        db.execute("create index by_customer on orders (customer)")

    # Eight tables in one file, for a join that reads them side by side.
    with database(directory / "parts.db", 4096) as db:
        for table in "abcdefgh":
            db.execute(f"create table {table} (id integer primary key, v blob)")
            db.executemany(
                f"insert into {table} values (?, ?)",
                ((i, rng.randbytes(950)) for i in range(size(160) * 1024 // 8)),
            )


class database:
    """A new SQLite database, written without a journal and committed at the end."""

    def __init__(self, path, page_size):
        self.connection = sqlite3.connect(path, isolation_level=None)
        for pragma in (f"page_size = {page_size}", "journal_mode = off", "synchronous = off"):
            self.connection.execute(f"pragma {pragma}")
        self.connection.execute("begin")

    def __enter__(self):
        return self.connection

    def __exit__(self, kind, *_):
        if kind is None:
            self.connection.execute("commit")
        self.connection.close()


# ---------------------------------------------------------------------------------------------
# The programs


COLUMN = r"""
open my $file, "<:raw", $ARGV[0] or die $!;
my ($sum, $records) = (0, (-s $file) >> 16);
for my $i (0 .. $records - 1) {
    sysseek $file, $i << 16, 0;
    sysread($file, my $column, 16384) == 16384 or die $!;
    $sum = ($sum * 31 + unpack "%32N*", $column) % 4294967291;
}
print "$records $sum\n";
"""

SHUFFLED = r"""
import os, random, sys, zlib
fd = os.open(sys.argv[1], os.O_RDONLY)
order = list(range(os.fstat(fd).st_size >> 14))
random.Random(1).shuffle(order)
total = 0
for i in order[: len(order) * int(sys.argv[2]) // 100]:
    total = zlib.crc32(os.pread(fd, 16384, i << 14), total)
print(total)
"""

BY_CUSTOMER = """
select count(*), sum(length(note)), sum(id * (customer & 255)), sum(unicode(hex(note)))
from orders indexed by by_customer where customer < 500000000;
"""

JOIN = """
select count(*), sum(unicode(hex(a.v)) + unicode(hex(d.v)) + unicode(hex(h.v))),
    sum(length(a.v) + length(b.v) + length(c.v) + length(d.v)
      + length(e.v) + length(f.v) + length(g.v) + length(h.v))
from a join b using (id) join c using (id) join d using (id)
join e using (id) join f using (id) join g using (id) join h using (id);
"""


class Program:
    """A program, the files it reads, and what it is called in the table."""

    def __init__(self, title, pattern, argv, files, success=(0,)):
        self.title = title
        self.pattern = pattern
        self.argv = argv
        self.files = [str(f) for f in files]
        self.success = success
        self.times = {"stock": [], "outrider": []}
        self.hashes = set()
        self.warm_starts = 0
        self.failure = None
        self.totals = None


def programs(directory):
    records, copy, lines = (directory / n for n in ("records.bin", "copy.bin", "lines.txt"))
    orders, parts = directory / "orders.db", directory / "parts.db"
    runs = sorted(directory.glob("run?.txt"))
    # The interpreter itself: a version manager's `python3` is a shell script.
    python = os.path.realpath(sys.executable)
    return [
        Program("tac, 64-byte lines", "reverse", ["tac", lines], [lines]),
        Program("perl, a column of 64 KiB records", "strided", ["perl", "-e", COLUMN, records], [records]),
        Program("sqlite3, join of 8 tables", "8 streams, one file", ["sqlite3", parts, JOIN], [parts]),
        Program("cmp -l, two files", "2 streams", ["cmp", "-l", records, copy], [records, copy], (0, 1)),
        Program("sort -m, eight sorted files", "8 streams", ["sort", "-m", *runs], runs),
        Program("python3, every 16 KiB, shuffled", "random, dense", [python, "-c", SHUFFLED, records, "60"], [records]),
        Program("sqlite3, through an index", "random, dense", ["sqlite3", orders, BY_CUSTOMER], [orders]),
        Program("python3, 4 % of a file", "random, sparse", [python, "-c", SHUFFLED, records, "4"], [records]),
        Program("sha256sum", "sequential", ["sha256sum", records], [records]),
        Program("cat", "sequential", ["cat", records], [records]),
    ]


# ---------------------------------------------------------------------------------------------
# Measuring


class Demo:
    def __init__(self, outrider, disk, counts):
        self.outrider = str(outrider)
        self.disk = disk
        self.counts = counts
        self.environment = dict(os.environ, LC_ALL="C")

    def resident(self, files):
        """Bytes of the files that are in the cache, or None where that can't be known."""
        done = subprocess.run(
            [self.outrider, "cached", "--json", *files], stdin=subprocess.DEVNULL, capture_output=True
        )
        try:
            total = json.loads(done.stdout)["total"]
        except (ValueError, KeyError):
            return None
        return None if total["unknown_files"] else total["resident_bytes"]

    def run(self, program, way):
        """One cold run."""
        self.disk.make_cold(program.files)
        if self.resident(program.files) != 0:
            program.warm_starts += 1
        counts = [f"--report={self.counts}"] if self.counts else []
        prefix = [self.outrider, "run", *counts, "--"] if way == "outrider" else []
        began = time.monotonic()
        child = subprocess.Popen(
            [*prefix, *map(str, program.argv)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=self.environment,
            bufsize=0,
        )
        try:
            digest = hashlib.sha256()
            while block := child.stdout.read(MIB):
                digest.update(block)
            code = child.wait()
            took = time.monotonic() - began
        except BaseException:
            child.terminate()
            child.wait()
            raise
        finally:
            child.stdout.close()
        if code not in program.success:
            program.failure = f"exit code {code} ({way})"
        program.times[way].append(took)
        program.hashes.add((code, digest.hexdigest()))
        if counts and way == "outrider":
            program.totals = json.loads(self.counts.read_text())["totals"]

    def start_up(self, times):
        """Times `true`, in turns without and with; medians, milliseconds."""
        ways = ([], [self.outrider, "run", "--"])
        samples = ([], [])
        for _ in range(times):
            for prefix, taken in zip(ways, samples):
                began = time.monotonic()
                subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, env=self.environment, check=True)
                taken.append(1e3 * (time.monotonic() - began))
        return [statistics.median(taken) for taken in samples]


def results(all_programs, why_not):
    """What --json writes."""
    programs = [
        {
            "program": p.title,
            "pattern": p.pattern,
            "failure": p.failure,
            "same_output": len(p.hashes) == 1,
            "warm_starts": p.warm_starts,
            "seconds": p.times,
            "totals": p.totals,
        }
        for p in all_programs
    ]
    return {"no_emulated_disk": why_not, "programs": programs}


def table(rows):
    """Lines of a table; text columns left, numbers right."""
    numeric = (False, False, True, True, True, False)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric))
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * w for w in widths))
    return lines


def report(all_programs, start_up):
    """Prints the table. Whether everything was as it should be."""
    rows = [("program", "pattern", "stock", "outrider", "ratio", "same output")]
    fine, notes = True, []
    for p in all_programs:
        if p.failure:
            rows.append((p.title, p.pattern, "-", "-", "-", p.failure))
            fine = False
            continue
        stock, ours = statistics.median(p.times["stock"]), statistics.median(p.times["outrider"])
        same = len(p.hashes) == 1
        fine = fine and same
        mark = ""
        if p.warm_starts:
            mark = " *"
            notes.append(f"* {p.title}: {p.warm_starts} runs did not begin cold, or that could not be seen")
        rows.append((p.title, p.pattern, f"{stock:.2f} s", f"{ours:.2f} s", f"{stock / ours:.2f}", ("yes" if same else "NO") + mark))
    rows.append(("true", "start-up", f"{start_up[0]:.1f} ms", f"{start_up[1]:.1f} ms", f"{start_up[0] / start_up[1]:.2f}", "-"))
    print()
    print("\n".join(table(rows)))
    print("\nratio: stock / outrider; above 1 is faster with Outrider, below 1 is slower")
    for note in notes:
        print(note)
    return fine


# ---------------------------------------------------------------------------------------------


def available_memory():
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def choose_base(args):
    """The directory under which ours is made."""
    if args.dir:
        base = Path(args.dir)
        if not base.is_dir():
            raise Stop(f"{base} is not a directory")
        return base
    return Path(os.environ.get("TMPDIR") or "/var/tmp")


def arguments():
    parser = argparse.ArgumentParser(description="Real programs on cold files, without and with Outrider.")
    parser.add_argument("--dir", help="a directory on a real disk to make the files under, instead of an emulated disk")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each program each way (default 3)")
    parser.add_argument("--scale", type=float, metavar="X", help="multiply the sizes of all files (default 1, less in little memory)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the files' contents (default 1)")
    parser.add_argument("--json", metavar="FILE", help="write the results, and what was counted, as JSON as well")
    args = parser.parse_args()
    if args.rounds < 1 or (args.scale is not None and not 0.05 <= args.scale <= 16):
        parser.error("--rounds is at least 1, --scale 0.05 to 16")
    return args


def main():
    args = arguments()
    release = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release"
    outrider, lab = release / "outrider", release / "outrider-lab"
    for needed in (outrider, release / "liboutrider.so"):
        if not needed.is_file():
            raise Stop(f"{needed} is missing: `make build` first")
    for tool in ("tac", "perl", "sqlite3", "sort", "cmp", "sha256sum"):
        if not shutil.which(tool):
            raise Stop(f"{tool} is not installed")

    why_not = "--dir was given" if args.dir else why_no_emulated_disk(lab)
    scale = args.scale
    if scale is None:
        # The image, the page cache and room to prefetch in.
        scale = min(1.0, max(0.1, available_memory() / (3 << 30)))
    # Everything that asks for an end ends through the clean-up below.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)

    base = disk = None
    try:
        base = Path(tempfile.mkdtemp(prefix="outrider-demo-", dir=choose_base(args)))
        if why_not is None:
            disk = EmulatedDisk(str(lab), base, int(1100 * scale) + 128)
        else:
            disk = RealDisk(str(outrider), base)
            if (kind := file_system(base)) in IN_MEMORY:
                raise Stop(f"{base.parent} is a {kind}: nothing there is ever cold; name another with --dir or DIR=")
            free = shutil.disk_usage(base).free
            if free < int(1000 * scale) * MIB:
                raise Stop(f"{base.parent} has {free // MIB} MiB free; needed are {int(1000 * scale)} (see --scale)")
        disk.up()
        print(f"files     {disk.describe()}")
        if why_not and not args.dir:
            print(f"          (no emulated disk: {why_not})")
        began = time.monotonic()
        make_files(disk.directory, random.Random(args.seed), scale)
        disk.ready()
        size = sum(f.stat().st_size for f in disk.directory.iterdir() if f.is_file())
        print(f"          {size // MIB} MiB made from seed {args.seed} in {time.monotonic() - began:.0f} s")
        load, processors = os.getloadavg()[0], len(os.sched_getaffinity(0))
        print(f"machine   Linux {os.uname().release}, {processors} processors, load {load:.1f}")
        print(f"runs      {args.rounds} of each, cold, medians", flush=True)
        demo = Demo(outrider, disk, base / "counts.json" if args.json else None)
        everything = programs(disk.directory)
        for number in range(args.rounds):
            for program in everything:
                show(f"round {number + 1} of {args.rounds}: {program.title}")
                ways = ("stock", "outrider") if number % 2 == 0 else ("outrider", "stock")
                for way in ways:
                    demo.run(program, way)
        show("true")
        start_up = demo.start_up(30)
        show("")
        fine = report(everything, start_up)
        if args.json:
            Path(args.json).write_text(json.dumps(results(everything, why_not), indent=1) + "\n", encoding="utf-8")
        print(f"\ntook {time.monotonic() - began:.0f} s")
        return 0 if fine else 1
    finally:
        # Nothing may interrupt the clean-up.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        try:
            if disk is not None:
                disk.down()
        finally:
            if base is not None:
                shutil.rmtree(base, ignore_errors=True)


def show(text):
    """What is going on, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stop as stop:
        print(f"demo: {stop}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt as stop:
        number = signal.Signals[str(stop)] if str(stop) in signal.Signals.__members__ else signal.SIGINT
        print(f"\ndemo: ended by {number.name}, everything is removed", file=sys.stderr)
        sys.exit(128 + number)
