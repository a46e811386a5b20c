"""Scans a database by its index with the extension loaded and prints, as JSON, what became of what it has declared.

    sqlite_figures.py EXTENSION DATABASE
"""

import json
import sqlite3
import sys

loader = sqlite3.connect(":memory:")
loader.enable_load_extension(True)
loader.load_extension(sys.argv[1])
connection = sqlite3.connect(sys.argv[2])
rows = sum(1 for _ in connection.execute("SELECT * FROM customer ORDER BY zip"))
counts = json.loads(connection.execute("SELECT outrider_counts()").fetchone()[0])

import dataclasses

import outrider

print(json.dumps({"rows": rows, "seen": outrider.seen, **counts, **dataclasses.asdict(outrider.stats())}))
