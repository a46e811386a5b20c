"""Threads that scan one database by an index, each with a connection of its own, while another changes it; then all of it again
with one connection between them. Prints what they found. With `helped` the extension is loaded first.

    sqlite_threads.py plain|helped EXTENSION DATABASE
"""

import hashlib
import sqlite3
import sys
import threading

mode, extension, path = sys.argv[1:]
if mode == "helped":
    loader = sqlite3.connect(":memory:")
    loader.enable_load_extension(True)
    loader.load_extension(extension)

found = {}


def scan(name, query, connection=None):
    own = connection or sqlite3.connect(path, timeout=60)
    digest = hashlib.md5()
    rows = 0
    for row in own.execute(query):
        digest.update(repr(row).encode())
        rows += 1
    found[name] = (rows, digest.hexdigest())
    if connection is None:
        own.close()


def change():
    own = sqlite3.connect(path, timeout=60)
    for i in range(40):
        with own:
            own.execute("UPDATE other SET b = b + 1 WHERE a = ?", (i,))
    own.close()


def together(jobs):
    threads = [threading.Thread(target=job, args=arguments) for job, *arguments in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


connection = sqlite3.connect(path)
connection.execute("PRAGMA journal_mode=WAL")
queries = {
    "up": "SELECT * FROM customer ORDER BY zip",
    "down": "SELECT id, data FROM customer ORDER BY zip DESC",
    "part": "SELECT * FROM customer WHERE zip > 300000000 AND zip < 700000000 ORDER BY zip",
}
together([(scan, name, query) for name, query in queries.items()] + [(change,)])

# Two statements of one connection in turns, one of which is left unfinished.
first, second = connection.execute(queries["up"]), connection.execute(queries["down"])
digest = hashlib.md5()
for a, b, _ in zip(first, second, range(3000)):
    digest.update(repr((a, b)).encode())
found["turns"] = digest.hexdigest()
first.close()
second.close()

# A scan over what it changes itself, in both kinds of journal.
for journal in ("WAL", "DELETE"):
    connection.execute(f"PRAGMA journal_mode={journal}")
    with connection:
        for (key,) in connection.execute("SELECT id FROM customer ORDER BY zip LIMIT 400"):
            connection.execute("UPDATE customer SET data = data || 'y' WHERE id = ?", (key,))
    scan(f"changed {journal}", queries["up"], connection)
connection.execute("VACUUM")
scan("vacuumed", queries["up"], connection)
found["integrity"] = connection.execute("PRAGMA integrity_check").fetchone()
connection.close()
for name in sorted(found):
    print(name, found[name])
