#!/usr/bin/env python3
"""Runs a command for each unit of a suite and marks what it wrote: each.py JOBS SECONDS COMMAND,
units on standard input.

COMMAND is for sh; the unit is in $UNIT. A unit's output appears when it has ended, whole, between
two lines that the parsers know. A unit that takes longer than SECONDS is killed with its process
group. Run by the campaign, below `outrider run` in one of the two runs.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

WRITING = threading.Lock()


def one(unit, seconds, command):
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "UNIT": unit},
            start_new_session=True,
        )
        try:
            end = str(child.wait(seconds))
        except subprocess.TimeoutExpired:
            end = "timeout"
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        output.seek(0)
        text = output.read()
    with WRITING:
        out = sys.stdout.buffer
        out.write(f"=== begin {unit}\n".encode())
        out.write(text + (b"" if text.endswith(b"\n") or not text else b"\n"))
        out.write(f"=== end {unit} {end}\n".encode())
        out.flush()


def main():
    jobs, seconds, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    names = sys.stdin.read().split()
    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(one, name, seconds, command) for name in names]:
            done.result()


if __name__ == "__main__":
    main()
