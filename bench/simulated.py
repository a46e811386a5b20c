#!/usr/bin/env python3
"""Compares the emulator with the simulator: the micro rows of a measurement beside the same programs in simulated time.

    outrider-lab run --out DIR 'micro-*' --columns stock-128,predict+opt
    bench/simulated.py DIR/results.jsonl

Prints a table: medians of what was measured, what is simulated, and the ratio stock / Outrider of each. Rows whose
ratios differ by more than 20 % are marked; crates/outrider-sim/README.md says why they do. Measured is the time that the
program takes to read, without its start. Needs a release build. Exit code 2 for a wrong argument.
"""

import collections
import json
import statistics
import subprocess
import sys
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent / "target" / "release" / "outrider-lab"
PROGRAMS = {
    "micro-seq": "gen:seq?size=512M",
    "micro-stride-64k": "gen:stride?size=512M",
    "micro-stride-1m": "gen:stride?size=512M&stride=1M",
    "micro-skip-64k": "gen:skip?size=512M",
    "micro-near": "gen:near?size=128M&stride=128K&block=4K",
    "micro-reverse": "gen:reverse?size=256M",
    "micro-perm": "gen:perm?size=256M",
    "micro-thr2": "gen:parts?size=512M&threads=2",
    "micro-thr4": "gen:parts?size=512M&threads=4",
    "micro-mmap-stride": "gen:mmap-stride?size=512M&block=4K",
}
DIFFERENT = 1.2


def simulated(program, device):
    """Seconds of stock, ours and the bound."""
    device = device.replace(" ", ",")
    done = subprocess.run([LAB, "simulate", "--device", device, program], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.splitlines()[1].split()[1:4]]


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    seconds = collections.defaultdict(list)
    for line in Path(sys.argv[1]).read_text().splitlines():
        run = json.loads(line)
        if run["kind"] == "run" and run["row"] in PROGRAMS and run["exit"] == 0:
            reading = run["figures"]["ops"] / run["figures"]["ops_per_s"]
            seconds[run["row"], run["device"], run["column"]].append(reading)
    print("| row | device | emulated stock, s | ours, s | ratio | simulated stock, s | ours, s | bound, s | ratio | |")
    print("| --- | --- | --: | --: | --: | --: | --: | --: | --: | --- |")
    for row in PROGRAMS:
        for device in sorted({key[1] for key in seconds if key[0] == row}):
            stock, ours = (seconds.get((row, device, column)) for column in ("stock-128", "predict+opt"))
            if not stock or not ours:
                continue
            stock, ours = statistics.median(stock), statistics.median(ours)
            s, o, bound = simulated(PROGRAMS[row], device)
            a, b = stock / ours, s / o
            mark = "differs" if max(a, b) / min(a, b) > DIFFERENT else ""
            print(f"| {row} | {device} | {stock:.3f} | {ours:.3f} | {a:.2f} | {s:.3f} | {o:.3f} | {bound:.3f} | {b:.2f} | {mark} |")


if __name__ == "__main__":
    main()
