#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""A foreign producer: Python's sqlite3 and hand-written SQL, a business row and an event for each
change, several changes in a transaction, and a part of the transactions rolled back. It writes until
it is killed, wherever that meets it."""
import random
import sqlite3
import sys
import time

from shop import write_order

AGGREGATES = 40


def transact(database, chance):
    database.execute("BEGIN IMMEDIATE")
    for _ in range(chance.randint(1, 5)):
        poison = {"poison": True} if chance.random() < 0.01 else {}
        write_order(database, f"o-{chance.randrange(AGGREGATES)}", **poison)
    database.execute("ROLLBACK" if chance.random() < 0.15 else "COMMIT")


def main():
    store, seed = sys.argv[1:]
    chance = random.Random(seed)
    database = sqlite3.connect(store, timeout=120, isolation_level=None)
    while True:
        transact(database, chance)
        time.sleep(chance.uniform(0, 0.03))


if __name__ == "__main__":
    main()
