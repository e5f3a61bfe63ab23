#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""A foreign producer: Python's sqlite3 or psycopg2 and hand-written SQL, a business row and an event for each
change, several changes in a transaction, and a part of the transactions rolled back. It writes until
it is killed, wherever that meets it."""
import random
import sys
import time
from pathlib import Path

from mix import STORE, Database, connect
from shop import write_order

AGGREGATES = 40


def transact(database, chance):
    changed = sorted(f"o-{chance.randrange(AGGREGATES)}" for _ in range(chance.randint(1, 5)))  # so that no two wait for each other
    for aggregate in changed:
        poison = {"poison": True} if chance.random() < 0.01 else {}
        write_order(database, aggregate, **poison)
    if chance.random() < 0.15:
        database.rollback()
    else:
        database.commit()


def main():
    store, seed = sys.argv[1:]
    chance = random.Random(seed)
    database = connect(Database(store) if STORE == "postgres" else Path(store), timeout=120)
    while True:
        transact(database, chance)
        time.sleep(chance.uniform(0, 0.03))


if __name__ == "__main__":
    main()
