#!/usr/bin/env python3
"""Makes a trace for `outrider-lab simulate` of what a program reads.

    bench/trace.py [--out FILE] [--under DIR] -- COMMAND…

The program runs once, under strace, with its files cached, so that the time between two calls is its own; strace
makes that longer. Each of its threads, and of its processes' threads, becomes a thread of the trace that begins
when it began; what threads wait for of each other is time that they think. Files are those below DIR, by default all
that were read. Touches of maps are not seen. Exit code 2 for a wrong argument, 1 if the program can't be traced.
"""

import argparse
import collections
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CALLS = "openat,read,pread64,readv,preadv,lseek,close,fadvise64,sendfile,copy_file_range,clone,clone3,vfork,fork"
LINE = re.compile(r"^(\d+\.\d+) (\w+)\((.*)\)\s+= (-?\d+|0x[0-9a-f]+)(?:<(.*)>)?.* <(\d+\.\d+)>$")
FILE = re.compile(r"(\d+)<(/[^>]*)>")
MOST_FDS = 1024


class Calls:
    """The calls of one thread, in order: time, name, arguments, result, path of the result, and seconds taken."""

    def __init__(self, text):
        self.all = []
        for line in text.splitlines():
            found = LINE.match(line)
            if found:
                begun, name, arguments, result, path, took = found.groups()
                self.all.append((float(begun), name, arguments, int(result, 0), path, float(took)))


class Trace:
    """What becomes of them."""

    def __init__(self, under):
        self.under = under
        self.files = {}
        self.descriptors = {}
        self.free = list(range(MOST_FDS - 1, 2, -1))
        self.position = collections.defaultdict(int)
        self.threads = []

    def file(self, path):
        """Its number, or None if it isn't followed."""
        if path not in self.files:
            followed = path.startswith(self.under) and os.path.isfile(path) and not path.startswith(("/proc/", "/sys/", "/dev/"))
            size = os.stat(path).st_size if followed else 0
            self.files[path] = (sum(f is not None for f in self.files.values()), size) if size else None
        return self.files[path]

    def opened(self, key, ops):
        """The number under which the trace has a descriptor, opened if it wasn't."""
        if key not in self.descriptors:
            if not self.free:
                raise SystemExit("trace.py: more than a thousand files are open at once")
            self.descriptors[key] = self.free.pop()
            ops.append(f"open {self.descriptors[key]} {self.file(key[2])[0]}")
        return self.descriptors[key]

    def thread(self, group, calls, begun):
        ops, last = [], begun
        for time, name, arguments, result, path, took in calls.all:
            found = re.match(FILE, arguments)
            if name in ("sendfile", "copy_file_range"):
                sources = re.findall(FILE, arguments)
                source = sources[-1 if name == "sendfile" else 0] if sources else None
                number, path = (int(source[0]), source[1]) if source else (None, None)
            elif name == "openat":
                number = result
            else:
                number, path = (int(found.group(1)), found.group(2)) if found else (None, None)
            think = max(0, round((time - last) * 1e9))
            last = time + took
            if path is None or number is None or number < 0 or self.file(path) is None:
                # Time goes on to the next call that counts.
                last = last - think / 1e9 - took
                continue
            if think:
                ops.append(f"think {think}")
            key = (group, number, path)
            if name == "openat":
                self.position[key] = 0
                self.opened(key, ops)
            elif name == "lseek" and result >= 0:
                self.position[key] = result
            elif name == "fadvise64":
                for advice, word in (("SEQUENTIAL", "sequential"), ("RANDOM", "random")):
                    if f"POSIX_FADV_{advice}" in arguments:
                        ops.append(f"{word} {self.opened(key, ops)}")
            elif name == "close":
                if key in self.descriptors:
                    ops.append(f"close {self.descriptors[key]}")
                    self.free.append(self.descriptors.pop(key))
            elif result > 0 and name in ("pread64", "preadv"):
                offset = int(arguments.rsplit(", ", 1)[1])
                ops.append(f"read {self.opened(key, ops)} {offset} {result}")
            elif result > 0:
                ops.append(f"read {self.opened(key, ops)} {self.position[key]} {result}")
                self.position[key] += result
        self.threads.append(ops)

    def text(self):
        lines = [f"file {entry[1]}  # {path}" for path, entry in self.files.items() if entry]
        for number, ops in enumerate(t for t in self.threads if any(not op.startswith("think") for op in t)):
            lines += [f"thread {number}", *ops]
        return "\n".join(lines) + "\n"


def traced(command, directory):
    """Runs it twice, the second time traced; what each thread called, by number."""
    for prefix in ([], ["strace", "-ff", "-qq", "-y", "-ttt", "-T", "-s", "0", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", f"{directory}/t"]):
        done = subprocess.run([*prefix, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        if done.returncode not in (0, 1):
            raise SystemExit(f"trace.py: {command[0]}: exit code {done.returncode}")
    return {int(p.name.split(".")[1]): Calls(p.read_text(errors="surrogateescape")) for p in Path(directory).iterdir()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--under", default="/")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        try:
            threads = traced(args.command, directory)
        except FileNotFoundError as error:
            raise SystemExit(f"trace.py: {error.filename}: not found") from None
    # Threads of a process share its descriptors.
    group = {number: number for number in threads}
    for number, calls in sorted(threads.items()):
        for _, name, arguments, result, _, _ in calls.all:
            if name in ("clone", "clone3") and "CLONE_FILES" in arguments and result in group:
                group[result] = group[number]
    begun = min((calls.all[0][0] for calls in threads.values() if calls.all), default=0)
    trace = Trace(args.under)
    for number, calls in sorted(threads.items(), key=lambda item: item[1].all[0][0] if item[1].all else 0):
        trace.thread(group[number], calls, begun)
    text = trace.text()
    if args.out:
        args.out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
