#!/usr/bin/env python3
"""What reading costs where there is nothing to gain, alone and under `outrider run`, in turns: files that are cached, or blocks read again and again in too little memory.

    cached.py --dir DIR --outrider OUTRIDER [--before OUTRIDER] [--runs 31] [--jsonl FILE] hot
    cached.py … --runs 21 limited           DIR: on an emulated disk (outrider-lab disk up); as root, with control groups

`hot` reads a file of 1 GB, which is locked in memory; `limited` one of 512 MB after Zipf and uniformly, in a control group of 128 MB. The reader (ideal.c, or outrider-work for `limited`)
tells how long its own reads took. Stock's time by ours: of the medians, and the median of the pairs; for `limited` also stock's second run by its first, and what was fetched in vain of what was read.
"""
import argparse, ctypes, json, mmap, os, statistics, subprocess, sys, tempfile, time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dir", required=True)
parser.add_argument("--outrider", required=True)
parser.add_argument("--before")
parser.add_argument("--runs", type=int, default=31)
parser.add_argument("--jsonl")
parser.add_argument("what", choices=["hot", "limited"])
args = parser.parse_args()

here, bin = os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.abspath(args.outrider))
scratch = tempfile.TemporaryDirectory()
ideal, report = scratch.name + "/ideal", scratch.name + "/report.json"
subprocess.run(["cc", "-O2", "-o", ideal, here + "/ideal.c", "-lpthread"], check=True)
megabytes = 1024 if args.what == "hot" else 512
path = f"{args.dir}/read{megabytes}"
if not os.path.exists(path):
    with open(path, "wb") as f:
        for _ in range(megabytes):
            f.write(os.urandom(1 << 20))
        os.fsync(f.fileno())
columns = {"stock": [], "before": [args.before, "run", "--"], "ours": [args.outrider, "run", "--report=" + report, "--"]}
if not args.before:
    del columns["before"]


def run(wrap, command, within=None):
    done = subprocess.run([*wrap, *command], capture_output=True, text=True, check=True, preexec_fn=within)
    if args.what == "hot":
        return float(done.stdout.split()[0])
    told = json.loads(done.stderr.split(":", 1)[1])
    return told["ops"] / told["ops_per_s"]


def show(row, times, more):
    stock = times["stock"]
    for name in times:
        pairs = statistics.median(s / o for s, o in zip(stock, times[name]))
        of = statistics.median(stock) / statistics.median(times[name])
        print(f"{row:10} {name:8} {statistics.median(times[name]):.5f} s  stock's by it {of:.3f}, pairs {pairs:.3f}  {more if name == 'ours' else ''}")
    if args.jsonl:
        with open(args.jsonl, "a") as out:
            out.write(json.dumps({"date": time.strftime("%Y-%m-%d %H:%M:%S"), "row": row, **times}) + "\n")


if args.what == "hot":
    file = open(path, "rb")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    at = libc.mmap(None, megabytes << 20, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    if libc.mlock(at, megabytes << 20):
        sys.exit(f"mlock: {os.strerror(ctypes.get_errno())}")
    for row, pattern, step in [("seq", "seq", 16384), ("stride64k", "stride", 65536), ("stride1m", "stride", 1 << 20), ("reverse", "reverse", 16384), ("perm", "perm", 16384)]:
        times = {name: [] for name in columns}
        for n in range(args.runs):
            for name in list(columns)[:: 1 if n % 2 else -1]:
                times[name].append(run(columns[name], [ideal, pattern, path, "16384", str(step), "1", "0"]))
        show(row, times, "")
else:
    group = f"/sys/fs/cgroup/memory/outrider-{os.getpid()}"
    os.mkdir(group)
    with open(group + "/memory.limit_in_bytes", "w") as f:
        f.write(str(128 << 20))
    def within():
        with open(group + "/cgroup.procs", "w") as f:
            f.write(str(os.getpid()))
    columns["again"] = []
    for pattern in ["zipf", "uniform"]:
        times, vain = {name: [] for name in columns}, []
        for n in range(args.runs):
            for name in list(columns)[:: 1 if n % 2 else -1]:
                subprocess.run([bin + "/outrider-lab", "disk", "cold", args.dir], check=True, stdout=subprocess.DEVNULL)
                command = [bin + "/outrider-work", "read", "--pattern", pattern, "--seed", str(n), path]
                times[name].append(run(columns[name], command, within))
                if name == "ours":
                    totals = json.load(open(report))["totals"]
                    vain.append(100 * (totals["wasted_bytes"] + totals["evicted_bytes"]) / (megabytes << 20))
        show(pattern, times, f"in vain {statistics.median(vain):.2f} %, at most {max(vain):.2f} %")
    time.sleep(1)
    os.rmdir(group)
