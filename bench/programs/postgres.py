#!/usr/bin/env python3
"""PostgreSQL on an emulated disk: queries on cold tables, by a server alone and by one under `outrider run`, in turns.

    outrider-lab disk up --size 2G --mount DIR off
    postgres.py --dir DIR --outrider OUTRIDER [--before OUTRIDER] [--model nvme] [--runs 5] [QUERY…]

The database is made in DIR on the first run: 2.5 million rows of 230 bytes (592 MB), an index on a column in random order. Needs root, the user postgres and
PostgreSQL's server (PG, the directory of its programs). Each query is the first of a new server on a cold file system; only it is timed, and all
columns have to answer alike. Prints medians in seconds, all runs, and as JSON on the last line.
"""
import argparse, json, os, signal, statistics, subprocess, sys, time

BITMAP = "set enable_seqscan=off; set enable_indexscan=off; set max_parallel_workers_per_gather=0; "
QUERIES = {
    "scan": "set max_parallel_workers_per_gather=0; select count(*), sum(k) from a where pad<>'y'",
    "parallel-scan": "select count(*), sum(k) from a where pad<>'y'",
    # Heap pages in the order of the index: at random, 5,000 of 76,000.
    "index": "set enable_seqscan=off; set enable_bitmapscan=off; select count(pad), sum(k) from a where k<2000",
    # Heap pages in their own order, 10,000 of them; hinted none, one (PostgreSQL 15's default), or 32 pages ahead.
    "bitmap-0": "set effective_io_concurrency=0; " + BITMAP + "select count(pad), sum(k) from a where k<4000",
    "bitmap-1": "set effective_io_concurrency=1; " + BITMAP + "select count(pad), sum(k) from a where k<4000",
    "bitmap-32": "set effective_io_concurrency=32; " + BITMAP + "select count(pad), sum(k) from a where k<4000",
    # 1,000 pages of them.
    "bitmap-sparse": BITMAP + "select count(pad), sum(k) from a where k<400",
    "range": "set enable_seqscan=off; select count(pad) from a where id between 100000 and 600000",
}
MAKE = (
    "create table a(id int primary key, k int, pad text)",
    "insert into a select i, (hashint4(i)::bigint & 2147483647)::int % 1000000, repeat('x',200) from generate_series(1,2500000) i",
    "create index ak on a(k)",
    "vacuum analyze a",
    "checkpoint",
)
PG = os.environ.get("PG", "/usr/lib/postgresql/15/bin")
AS = "setpriv --reuid postgres --regid postgres --init-groups".split()

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dir", required=True)
parser.add_argument("--outrider", required=True)
parser.add_argument("--before")
parser.add_argument("--model", default="remote")
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("queries", nargs="*", metavar="QUERY", help=", ".join(QUERIES))
args = parser.parse_args()
for name in args.queries:
    if name not in QUERIES:
        parser.error(f"{name}: no such query; one of {', '.join(QUERIES)}")
lab = os.path.join(os.path.dirname(args.outrider), "outrider-lab")
data = os.path.join(args.dir, "postgres")
columns = {"stock": []} | ({"before": [args.before, "run", "--"]} if args.before else {})
columns["outrider"] = [args.outrider, "run", "--"]


def disk(*words):
    subprocess.run([lab, "disk", words[0], args.dir, *words[1:]], check=True, stdout=subprocess.DEVNULL)


def psql(query, database="postgres"):
    command = AS + [PG + "/psql", "-h", data, "-qAtX", database, "-c", query]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd="/").stdout.strip()


class Server:
    def __init__(self, prefix):
        self.process = subprocess.Popen(AS + prefix + [PG + "/postgres", "-D", data], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while subprocess.run(AS + [PG + "/pg_isready", "-q", "-h", data], cwd="/").returncode:
            if self.process.poll() is not None:
                sys.exit("the server didn't start")
            time.sleep(0.05)

    def stop(self):
        subprocess.run(AS + [PG + "/pg_ctl", "-D", data, "-m", "fast", "-w", "stop"], cwd="/", check=True, stdout=subprocess.DEVNULL)
        self.process.wait()


def make():
    disk("model", "off")
    os.mkdir(data)
    subprocess.run(["chown", "postgres", data], check=True)
    subprocess.run(AS + [PG + "/initdb", "-D", data, "--no-sync"], cwd="/", check=True, stdout=subprocess.DEVNULL)
    with open(data + "/postgresql.conf", "a") as f:
        f.write(f"listen_addresses=''\nunix_socket_directories='{data}'\nfsync=off\nshared_buffers=64MB\nautovacuum=off\nmax_wal_size=256MB\n")
    server = Server([])
    for query in MAKE:
        psql(query)
    server.stop()


def timed(prefix, query):
    disk("cold")
    server = Server(prefix)
    psql("select 1")
    begun = time.monotonic()
    answer = psql(query)
    took = time.monotonic() - begun
    server.stop()
    return took, answer


if not os.path.exists(data):
    make()
disk("model", *args.model.split())
results = []
for name in args.queries or QUERIES:
    runs, answers = {c: [] for c in columns}, set()
    for i in range(args.runs):
        for column in list(columns)[:: 1 if i % 2 == 0 else -1]:
            took, answer = timed(columns[column], QUERIES[name])
            runs[column].append(round(took, 3))
            answers.add(answer)
    if len(answers) != 1:
        sys.exit(f"{name}: answers differ: {answers}")
    results.append({"query": name, "model": args.model, "runs": runs})
    print(name, *(f"{c} {statistics.median(r):.3f} ({min(r):.3f} to {max(r):.3f})" for c, r in runs.items()), flush=True)
print(json.dumps(results))
