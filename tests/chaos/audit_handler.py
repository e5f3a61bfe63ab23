#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""A handler for --pipe as a careful user writes one: its effect is in a database of its own, in a
transaction of its own, keyed by the event's id, because a call may be repeated after a crash."""
import json
import sqlite3
import sys

TABLE = "CREATE TABLE IF NOT EXISTS effect_audit (event_id TEXT, aggregate TEXT, number INTEGER)"
KEEP = """INSERT INTO effect_audit SELECT :id, :aggregateId, :number
    WHERE NOT EXISTS (SELECT 1 FROM effect_audit WHERE event_id = :id)"""


def main():
    database = sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")  # processes die here, not machines
    database.execute(TABLE)
    database.execute("CREATE INDEX IF NOT EXISTS effect_audit_id ON effect_audit (event_id)")
    for line in sys.stdin:
        event = json.loads(line)
        database.execute("BEGIN IMMEDIATE")
        database.execute(KEEP, {"id": event["id"], "aggregateId": event["aggregateId"], "number": event["payload"]["number"]})
        database.execute("COMMIT")
        print(json.dumps({"id": event["id"], "verdict": "done"}), flush=True)


if __name__ == "__main__":
    main()
