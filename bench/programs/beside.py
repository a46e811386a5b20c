#!/usr/bin/env python3
"""What a foreign reader finds ahead of his reads: a command on a cold emulated disk beside one that reads 4 KiB at random (beside.c), alone and under `outrider run`, in turns.

    outrider-lab disk up --size 2G --mount DIR nvme
    beside.py --dir DIR --outrider OUTRIDER [--before OUTRIDER] [--runs 9] [--jsonl FILE] [--direct US] seq|cat|cp|tac|walk|hints|streams

DIR/stream (512 MB), DIR/foreign (256 MB) and DIR/tree are made the first time. walk is grep -r of the tree, then find; hints is a WILLNEED of 8 MiB, again and again; streams are
four dd, each of a quarter of the file. With
--direct the foreign reader reads around the cache, with a pause of so many µs after each read. Medians: the seconds of the command, the reader's p50 and p99 (µs), and of the disk's own record of requests how long the
reader's took (p99, µs), and the KiB of all others that were on their way when one of them came (mean, p99). These depend less, or not at all, on how soon a busy machine wakes whom. Needs root and
a C compiler.
"""
import argparse, heapq, json, os, statistics, subprocess, sys, tempfile, time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dir", required=True)
parser.add_argument("--outrider", required=True)
parser.add_argument("--before")
parser.add_argument("--runs", type=int, default=9)
parser.add_argument("--jsonl")
parser.add_argument("--direct", metavar="US")
parser.add_argument("what", choices=["seq", "cat", "cp", "tac", "walk", "hints", "streams"])
args = parser.parse_args()

here, bin = os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.abspath(args.outrider))
lab, stream, foreign, copy = bin + "/outrider-lab", args.dir + "/stream", args.dir + "/foreign", args.dir + "/copy"
scratch = tempfile.TemporaryDirectory()
beside, trace = scratch.name + "/beside", scratch.name + "/trace"
subprocess.run(["cc", "-O2", "-o", beside, here + "/beside.c"], check=True)
for name, megabytes in [(stream, 512), (foreign, 256)]:
    if not os.path.exists(name):
        with open(name, "wb") as f:
            for _ in range(megabytes):
                f.write(os.urandom(1 << 20))
tree = args.dir + "/tree"
if args.what == "walk" and not os.path.exists(tree):
    for i in range(4000):
        os.makedirs(f"{tree}/{i // 100}", exist_ok=True)
        with open(f"{tree}/{i // 100}/{i}", "wb") as f:
            f.write(os.urandom(12 << 10).hex().encode())
hints = """import os, sys
f = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(f).st_size
for at in range(0, size, 8 << 20):
    os.posix_fadvise(f, at, 8 << 20, os.POSIX_FADV_WILLNEED)
    for block in range(at, min(at + (8 << 20), size), 64 << 10):
        os.pread(f, 64 << 10, block)
"""
quarters = f"for i in 0 1 2 3; do dd if={stream} bs=128K skip=$((i * 1024)) count=1024 of=/dev/null 2>&- & done; wait"
command = {"seq": [bin + "/outrider-work", "read", "--pattern", "seq", stream], "cat": ["cat", stream], "cp": ["cp", stream, copy], "tac": ["tac", stream], "walk": ["sh", "-c", f"grep -rc nothing {tree}; find {tree}"], "hints": [sys.executable, "-c", hints, stream], "streams": ["sh", "-c", quarters]}[args.what]
columns = {"stock": [], "before": [args.before or "", "run", "--"], "now": [args.outrider, "run", "--"]}
if not args.before:
    del columns["before"]


def disk(*words):
    subprocess.run([lab, "disk", words[0], args.dir, *words[1:]], check=True, stdout=subprocess.DEVNULL)


def ahead():
    """Of each of the reader's requests, from the command's first on: KiB on their way when it came, and how long the disk took for it, µs; each in order of size."""
    requests = [line.split() for line in open(trace)]
    reads = [(float(start), float(done), int(length)) for start, done, what, _, length in requests if what == "R"]
    first = next(start for start, _, length in reads if length > 4096)
    found, took, waiting, sum_ = [], [], [], 0
    for start, done, length in reads:
        while waiting and waiting[0][0] <= start:
            sum_ -= heapq.heappop(waiting)[1]
        if length == 4096 and start >= first:
            found.append(sum_ / 1024)
            took.append(done - start)
        heapq.heappush(waiting, (done, length))
        sum_ += length
    return sorted(found), sorted(took)


direct = ["-d", args.direct] if args.direct else []
results = {name: [] for name in columns}
for run in range(args.runs):
    turn = list(columns) if run % 2 == 0 else list(columns)[::-1]
    for name in turn:
        if os.path.exists(copy):
            os.unlink(copy)
        disk("cold")
        disk("trace", "start", trace)
        done = subprocess.run([beside, *direct, foreign, *columns[name], *command], check=True, capture_output=True, text=True)
        disk("trace", "stop")
        words, (found, took) = done.stdout.split(), ahead()
        values = {"seconds": float(words[0]), "p50_us": float(words[2]), "p99_us": float(words[3]), "disk_p99_us": took[len(took) * 99 // 100]}
        values |= {"ahead_kib": statistics.mean(found), "ahead_p99_kib": found[len(found) * 99 // 100]}
        results[name].append(values)
        if args.jsonl:
            with open(args.jsonl, "a") as out:
                line = {"date": time.strftime("%Y-%m-%d"), "disk": subprocess.check_output([lab, "disk", "list"], text=True).split("\t")[2], "what": args.what, "column": name, "run": run, **values}
                out.write(json.dumps(line) + "\n")
for name, runs in results.items():
    print(f"{name:8}", "  ".join(f"{key} {statistics.median(r[key] for r in runs):.3f}" for key in runs[0]))
