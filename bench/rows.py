# SPDX-License-Identifier: Apache-2.0
"""What the outbox row costs the business transaction: pgbench with 8 clients, in short turns.

    trivial   a business row and a row in a plain table with a key
    outbox    a business row and a row in the outbox, with no relay at work
    waiting   the same, beside a relay that waits and is notified
    polling   as waiting, but the trigger that notifies is off: the relay only polls"""
import re
import subprocess
import tempfile
import time
from pathlib import Path

from rig import KIND, load, middle

CLIENTS = 8
BUSINESS = "INSERT INTO business (customer, total) VALUES ('customer ' || :n, :n);"
OUTBOX = ("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES"
          f" ('{KIND}', 'order-' || :n, 'order.created.v1', '{{\"total\": 5, \"fill\": \"" + "x" * 200 + "\"}');")
TRIVIAL = ("INSERT INTO trivial (kind, thing, name, payload) VALUES"
           " ('order', 'order-' || :n, 'order.created.v1', '{\"total\": 5, \"fill\": \"" + "x" * 200 + "\"}');")
TABLES = """CREATE TABLE IF NOT EXISTS business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text, total int);
CREATE TABLE IF NOT EXISTS trivial (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text, thing text, name text,
    payload text, created_at timestamptz DEFAULT now())"""
TRIGGER = "ALTER TABLE semel_outbox {} TRIGGER semel_outbox_bell"


def script(folder, name, second):
    path = Path(folder) / name
    path.write_text(f"\\set n random(1, 100000)\nBEGIN;\n{BUSINESS}\n{second}\nCOMMIT;\n")
    return path


def commits_per_second(database, path, seconds):
    words = ["pgbench", "-n", "-M", "prepared", "-c", CLIENTS, "-j", "1", "-T", seconds, "-f", path, database.url]
    printed = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout
    return float(re.search(r"tps = ([0-9.]+)", printed).group(1))


def turn(database, semel, path, seconds, name):
    """One turn, from empty tables."""
    database.do("TRUNCATE business, trivial")
    database.empty()
    database.do("CHECKPOINT")
    database.do(TRIGGER.format("DISABLE" if name == "polling" else "ENABLE"))
    relay = semel.start("relay") if name in ("waiting", "polling") else None
    if relay:
        time.sleep(2)
    rate = commits_per_second(database, path, seconds)
    if relay:
        relay.terminate()
        relay.wait()
    return rate


def measure(database, semel, options):
    rates = {"trivial": [], "outbox": [], "waiting": [], "polling": []}
    seconds = max(options.seconds // 4, 1)
    database.do(TABLES)
    with tempfile.TemporaryDirectory() as folder:
        paths = {"trivial": script(folder, "trivial", TRIVIAL), "outbox": script(folder, "outbox", OUTBOX)}
        for number in range(options.rounds):
            names = list(rates)
            for name in names if number % 2 else reversed(names):
                path = paths["trivial" if name == "trivial" else "outbox"]
                rates[name].append(turn(database, semel, path, seconds, name))
    database.do(TRIGGER.format("ENABLE"))
    middles = {name: middle(found) for name, found in rates.items()}
    print(f"business transactions with {CLIENTS} clients, load {load()}")
    for name, rate in middles.items():
        print(f"  {name:10} {rate:8,.0f}/s")
    print(f"  outbox / trivial {middles['outbox'] / middles['trivial']:.2f}, waiting / polling "
          f"{middles['waiting'] / middles['polling']:.2f}")
