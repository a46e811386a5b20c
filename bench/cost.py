#!/usr/bin/env python3
"""What Outrider costs where it can gain nothing: cached reads and starts of programs.

    bench/cost.py [--runs N] [--json FILE]

*Instructions* of a cached `pread` of 4 KiB (callgrind), exact, and its time in ns, by a loop of them. *Starts*: µs that a
process takes that does nothing, by a shell that starts many; and of `outrider run -- true`, everything included. Times are
taken without and with Outrider in turns; shown are medians of N runs (7 unless told), with the least and the most in brackets.
They need a machine that does nothing else.

--json appends one object a line with every run's number. Only Python's standard library is used, a C compiler, and valgrind for
the first, which is left out without it. Exit code 2 for a wrong argument, or where the library isn't in the process whose
instructions are counted, 1 if a program fails.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import RELEASE, ROOT, Stop

OURS = [str(RELEASE / "outrider"), "run", "--"]
LIBRARY = "liboutrider.so"
BLOCK = 4096
FILE_BYTES = 8 << 20
STARTS = 500


class Absent(Stop):
    """What was measured is something else."""

    code = 2


def run(command):
    """Runs to the end; seconds, standard output and error."""
    start = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise Stop(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return seconds, done.stdout + done.stderr


def compiled(base):
    """The program that reads: FILE and the number of reads are its arguments."""
    source = ROOT / "tests" / "programs" / "cached_preads.c"
    run(["cc", "-O1", "-o", str(base / "reader"), str(source)])
    file = base / "file"
    file.write_bytes(bytes(FILE_BYTES))
    file.read_bytes()
    return [str(base / "reader"), str(file)]


def of_one(measured, few, many):
    """What one read takes, without the start: what so many take more than so few."""
    return (measured(many) - measured(few)) / (many - few)


def instructions(prefix, reader, profile):
    # Neither the start nor the end, at which a program waits for the service.
    grind = ["valgrind", "--tool=callgrind", "--toggle-collect=main"]
    grind.append(f"--callgrind-out-file={profile}")

    def counted(reads):
        _, told = run([*prefix, *grind, *reader, str(reads)])
        # It names the object of each function that was called.
        if (LIBRARY in profile.read_text()) != bool(prefix):
            where = "isn't in" if prefix else "is in"
            raise Absent(f"{LIBRARY} {where} the process whose instructions were counted: {told}")
        return int(re.search(r"Collected : (\d+)", told)[1])

    return of_one(counted, 10_000, 110_000)


def nanoseconds(prefix, reader):
    return of_one(lambda reads: run([*prefix, *reader, str(reads)])[0] * 1e9, 100_000, 2_100_000)


def start(prefix):
    """Of a process in µs: a shell that starts many of them, and one that starts none."""
    loop = f"i=0; while [ $i -lt COUNT ]; do {shutil.which('true')}; i=$((i + 1)); done"
    many, none = (
        run([*prefix, "sh", "-c", loop.replace("COUNT", str(count))])[0] for count in (STARTS, 0)
    )
    return (many - none) * 1e6 / STARTS


def in_turns(runs, columns):
    """Each column's numbers, by name; the order turns round each time."""
    found = {name: [] for name in columns}
    for turn in range(runs):
        for name in list(columns)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(columns[name]())
    return found


def show(numbers, digits=0):
    low, mid, high = min(numbers), statistics.median(numbers), max(numbers)
    return f"{mid:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def measure(runs):
    with tempfile.TemporaryDirectory(prefix="outrider-cost-", dir="/var/tmp") as base:
        reader = compiled(Path(base))
        name = f"cached pread of {BLOCK} bytes"
        if shutil.which("valgrind"):
            profile = Path(base) / "profile"
            stock, ours = (instructions(prefix, reader, profile) for prefix in ([], OURS))
            yield {"what": name, "unit": "instructions", "stock": [stock], "ours": [ours]}
        found = in_turns(
            runs,
            {"stock": lambda: nanoseconds([], reader), "ours": lambda: nanoseconds(OURS, reader)},
        )
        yield {"what": name, "unit": "ns", **found}
    found = in_turns(runs, {"stock": lambda: start([]), "ours": lambda: start(OURS)})
    yield {"what": "start of a process", "unit": "us", **found}
    true = [shutil.which("true")]
    found = in_turns(
        runs * 10,
        {"stock": lambda: run(true)[0] * 1e6, "ours": lambda: run([*OURS, *true])[0] * 1e6},
    )
    yield {"what": "the whole command, true", "unit": "us", **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=7, help="runs of each column (7)")
    parser.add_argument("--json", type=Path, help="append what was measured to this file")
    args = parser.parse_args()
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: accepted are 1 and more")
    if not Path(OURS[0]).exists():
        raise Stop(f"{OURS[0]} is not there: make build first")
    print("| what | unit | without | with Outrider | more |\n| --- | --- | --- | --- | --- |")
    for row in measure(args.runs):
        stock, ours = row["stock"], row["ours"]
        digits = 1 if row["unit"] == "instructions" else 0
        more = statistics.median(ours) - statistics.median(stock)
        cells = [row["what"], row["unit"], show(stock, digits), show(ours, digits)]
        print("|", " | ".join([*cells, f"{more:+.{digits}f}"]), "|", flush=True)
        if args.json:
            with args.json.open("a") as out:
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    try:
        main()
    except Stop as why:
        print(f"cost: {why}", file=sys.stderr)
        sys.exit(why.code)
